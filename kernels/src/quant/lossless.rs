//! fp4 with fine power-of-two scales to e4m3 with coarse ones, without any rounding.
//!
//! `e_out = max(max e_in − 6, 0)` over a coarse block, `q = v · 2^(e_in − e_out)`, where `e` are biased exponents: the largest
//! value of a block, 6 · 2⁶, is below 448, and the smallest, ½, stays a number of e4m3 down to `e_in = e_out − 5`. A block
//! whose exponents spread wider would lose bits; a check of the kernel ends the run instead.
//!
//! *Tensors*: `q_packed` `[m, n/2]` u8, two e2m1 codes a byte, the even column in the low half; `sf_exp`
//! `[⌈m/in₀⌉, ⌈n/in₁⌉]` u8; `q` `[m, n]` e4m3; `out_sf_exp` `[⌈m/out₀⌉, ⌈n/out₁⌉]` u8.
//! *Cost*: 1.5 bytes moved an element, memory bound.  *Numerics*: exact; the sign of zero is kept.
//! *Schedule*: a coarse block is a block of threads.
//! *Source*: OCP Microscaling Formats 1.0 for the formats; the rest is arithmetic on exponents.

use crate::gemm::fp8::as_e2m1;
use crate::numeric::round::{e2m1_value as reference_value, e4m3_code, e4m3_tensor, u8_tensor};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and the blocks of both sides.
#[derive(KernelConfig, Clone, Debug)]
pub struct LosslessConfig {
    /// Warps of a block.
    #[tune(8, 4, 16)]
    pub warps: usize,
    /// Rows of a fine block.
    #[default(1)]
    pub in_rows: usize,
    /// Columns of a fine block.
    #[default(32)]
    pub in_columns: usize,
    /// Rows of a coarse block.
    #[default(128)]
    pub rows: usize,
    /// Columns of a coarse block.
    #[default(128)]
    pub columns: usize,
}

/// Casts one coarse block.
#[kernel(
    dims(n: fixed),
    require(cfg.rows % cfg.in_rows == 0, cfg.columns % cfg.in_columns == 0),
    deterministic,
)]
pub fn per_block_cast_lossless(
    cfg: &LosslessConfig,
    codes: In![E2m1; m, n; strides(_, 1)],
    sf_exp: In![U8; in_m, in_n],
    q: Out![E4m3; m, n],
    out_sf_exp: Out![U8; out_m, out_n],
) {
    let (rows, columns, in_rows, in_columns) = (cfg.rows, cfg.columns, cfg.in_rows, cfg.in_columns);
    // One axis, blocks of a row of blocks next to each other: memory is walked in its order.
    let across = host!(n.div_ceil(columns));
    let block = grid(m.div_ceil(rows) * across);
    let (mi, ni) = (block / across, block % across);
    let (r0, c0) = (mi * rows, ni * columns);
    let (fine_r, fine_c) = host!((rows / in_rows, columns / in_columns));
    warps(cfg.warps);

    // A fine block outside of the matrix reads as exponent 0, which raises no maximum.
    let fine = shared::<I32, 2>([fine_r, fine_c]);
    for (i, j) in parallel([fine_r, fine_c]) {
        fine[(i, j)] = sf_exp[(mi * fine_r + i, ni * fine_c + j)].to::<I32>();
    }
    let largest = tile_max([fine_r, fine_c], |(i, j)| fine[(i, j)]);
    let out = max(largest - 6, 0);
    for (i, j) in parallel([fine_r, fine_c]) {
        let outside = mi * fine_r + i >= in_m || ni * fine_c + j >= in_n;
        check!(outside || fine[(i, j)] + 5 >= out, "the exponents of a coarse block lie within 11 binades");
    }
    out_sf_exp[(mi, ni)] = out.to::<U8>();
    for (i, j) in parallel([rows, columns]) {
        let power = V::<F32>::from_bits((127 + fine[(i / in_rows, j / in_columns)] - out).to::<U32>() << 23);
        q[(r0 + i, c0 + j)] = (codes[(r0 + i, c0 + j)].to::<F32>() * power).to::<E4m3>();
    }
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    fine: [usize; 2],
    coarse: [usize; 2],
}

/// Blocks of a matrix.
fn count([m, n]: [usize; 2], block: [usize; 2]) -> [usize; 2] {
    [m.div_ceil(block[0]), n.div_ceil(block[1])]
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Lossless;

const OP: &str = "quant_lossless_fp4_to_fp8";
/// Elements of a coarse block at most.
const LARGEST: usize = 1 << 14;

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let codes = p::input(OP, specs, "q_packed", &[DType::U8], 2)?;
    let (m, n) = (codes.shape[0], codes.shape[1] * 2);
    let (fine, coarse) = (p::pair(OP, params, "in_block", [1, 32])?, p::pair(OP, params, "out_block", [128, 128])?);
    if coarse[0] % fine[0] != 0 || coarse[1] % fine[1] != 0 || coarse.iter().product::<usize>() > LARGEST {
        let message = format!("blocks of {fine:?} become blocks of {coarse:?}; expected multiples");
        return Err(p::refuse(OP, format!("{message} of at most {LARGEST} elements")));
    }
    let exponents = p::input(OP, specs, "sf_exp", &[DType::U8], 2)?;
    p::shaped(OP, exponents, &count([m, n], fine), "one a fine block")?;
    Ok(Cast { m, n, fine, coarse })
}

impl OpSpec for Lossless {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_fp4_to_fp8"),
            family: "quant",
            formula: "e_out = max(max e_in − 6, 0) over coarse blocks; q = v · 2^(e_in − e_out)",
            source: "OCP Microscaling Formats 1.0",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![per_block_cast_lossless::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        let exponents = p::spec("out_sf_exp", DType::U8, &count([c.m, c.n], c.coarse));
        Ok(vec![p::spec("q", DType::E4m3, &[c.m, c.n]), exponents])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = per_block_cast_lossless::kernel();
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n)]);
        let fields =
            [("in_rows", c.fine[0]), ("in_columns", c.fine[1]), ("rows", c.coarse[0]), ("columns", c.coarse[1])];
        fields.into_iter().for_each(|(name, x)| p::set(&mut config, name, ConfigValue::Int(x)));
        let args = vec![
            Arg::Tensor(as_e2m1(p::view(OP, problem, "q_packed")?)),
            p::arg(OP, problem, "sf_exp")?,
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "out_sf_exp")?,
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let c = cast_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (bytes, exponents) = (&problem.tensors["q_packed"].data, &problem.tensors["sf_exp"].data);
        let ([_, fine_n], [out_m, out_n]) = (count([c.m, c.n], c.fine), count([c.m, c.n], c.coarse));
        let exponent = |r: usize, col: usize| exponents[r / c.fine[0] * fine_n + col / c.fine[1]];
        let mut coarse = vec![0u8; out_m * out_n];
        for r in 0..c.m {
            for col in 0..c.n {
                let out = &mut coarse[r / c.coarse[0] * out_n + col / c.coarse[1]];
                *out = (*out).max(exponent(r, col).saturating_sub(6));
            }
        }
        let mut codes = vec![];
        for r in 0..c.m {
            for col in 0..c.n {
                let code = bytes[(r * c.n + col) / 2] >> (4 * (col % 2)) & 15;
                let shift = exponent(r, col) as i32 - coarse[r / c.coarse[0] * out_n + col / c.coarse[1]] as i32;
                codes.push(e4m3_code(reference_value(code) * 2f64.powi(shift)));
            }
        }
        Ok([("q".into(), e4m3_tensor(&[c.m, c.n], codes)), ("out_sf_exp".into(), u8_tensor(&[out_m, out_n], coarse))]
            .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        let (rows, fine) = (c.coarse[0], c.coarse[0] / c.fine[0]);
        let tensors = [("q_packed", 0, rows), ("sf_exp", 0, fine), ("q", 0, rows), ("out_sf_exp", 0, 1)];
        vec![p::split("m", c.m, rows, &tensors)]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [m, n]: [usize; 2], range: [f64; 2], blocks: Option<[[i64; 2]; 2]>| {
            let [fine, coarse] = blocks.unwrap_or([[1, 32], [128, 128]]);
            let list = |block: [i64; 2]| ParamValue::List(block.map(ParamValue::Int).to_vec());
            let exponents = count([m, n], fine.map(|x| x as usize));
            let inputs = vec![
                p::filled("q_packed", DType::U8, &[m, n / 2], Fill::Bits),
                p::filled("sf_exp", DType::U8, &exponents, Fill::Uniform(range[0], range[1])),
            ];
            p::case(id, inputs, &[("in_block", list(fine)), ("out_block", list(coarse))])
        };
        vec![
            make("no_rows", [0, 64], [100.0, 110.0], None),
            make("m200_n320_tails", [200, 320], [100.0, 111.0], None),
            make("m33_n70_odd", [33, 70], [120.0, 131.0], Some([[1, 16], [32, 64]])),
            make("m8_n64_fine_rows", [8, 64], [100.0, 110.0], Some([[2, 8], [4, 32]])),
            make("smallest_exponents", [130, 64], [0.0, 11.0], None),
            make("largest_exponents", [5, 64], [244.0, 255.0], None),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        p::token_shapes()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [tokens, hidden] = p::bench_sizes(OP, shape, ["tokens", "hidden"])?;
        let inputs = vec![
            p::filled("q_packed", DType::U8, &[tokens, hidden / 2], Fill::Bits),
            p::filled("sf_exp", DType::U8, &[tokens, (hidden / 2 * 2).div_ceil(32)], Fill::Uniform(118.0, 126.0)),
        ];
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        p::moved(self, specs, params, 0.0)
    }
}
