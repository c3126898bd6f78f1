//! Cast of a matrix to e4m3 with one scale for each block of rows and columns.
//!
//! `amax = max(max|x|, amax_min)` over a block, `sf = amax/448` (with `ue8m0` the next power of two),
//! `q = e4m3(x · inv)` with `inv = 1/sf`, or `448/amax` in the mode `max_over_amax`.
//!
//! *Tensors*: `x` `[m, n]` bf16 or f32; `q` `[m, n]` e4m3; `sf` `[⌈m/rows⌉, ⌈n/columns⌉]` f32.
//! *Cost*: 3 bytes moved per bf16 element, memory bound.
//! *Numerics*: as `per_token_fp8`. Blocks at the edges hold fewer elements; nothing outside raises a maximum.
//! *Schedule*: a block of the matrix is a block of threads, and its elements stay in registers between maximum and cast.
//! *Source*: weight blocks of 128 by 128, DeepSeek-V3 technical report, 3.3.2.

use crate::numeric::round::{e4m3_code, e4m3_tensor, f32_tensor};
use crate::problem as p;
use crate::quant::scale::{Inverse, reference_scale, scale_and_inverse};
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and which cast is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct PerBlockConfig {
    /// Warps of a block.
    #[tune(8, 4, 16)]
    pub warps: usize,
    /// Rows that share a scale.
    #[default(128)]
    pub rows: usize,
    /// Columns that share a scale.
    #[default(128)]
    pub columns: usize,
    /// Scales are powers of two.
    #[default(false)]
    pub ue8m0: bool,
    /// How the factor is formed.
    #[default(Inverse::RecipSf)]
    pub inverse: Inverse,
}

/// Casts one block of the matrix.
#[kernel(dims(n: fixed), deterministic)]
pub fn per_block_cast_fp8<T: Float>(
    cfg: &PerBlockConfig,
    x: In![T; m, n; strides(_, 1)],
    q: Out![E4m3; m, n],
    sf: Out![F32; blocks_m, blocks_n],
    amax_min: Scalar![F32],
) {
    let (rows, columns) = (cfg.rows, cfg.columns);
    // One axis, blocks of a row of blocks next to each other: memory is walked in its order.
    let across = host!(n.div_ceil(columns));
    let block = grid(m.div_ceil(rows) * across);
    let (mi, ni) = (block / across, block % across);
    let (r0, c0) = (mi * rows, ni * columns);
    warps(cfg.warps);

    let xf = frag::<F32, 2>([rows, columns]);
    for (i, j) in parallel([rows, columns]) {
        xf[(i, j)] = x[(r0 + i, c0 + j)].to::<F32>();
    }
    let amax = tile_absmax([rows, columns], |(i, j)| xf[(i, j)]);
    let (scale, by) = scale_and_inverse(amax, amax_min, cfg.ue8m0, cfg.inverse);
    sf[(mi, ni)] = scale;
    for (i, j) in parallel([rows, columns]) {
        q[(r0 + i, c0 + j)] = (xf[(i, j)] * by).to::<E4m3>();
    }
}

/// The plain loops: codes and scales.
pub fn reference(
    x: &[f32],
    [m, n]: [usize; 2],
    [rows, columns]: [usize; 2],
    (floor, ue8m0, inverse): (f32, bool, Inverse),
) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0; m * n], vec![]);
    for r0 in (0..m).step_by(rows) {
        for c0 in (0..n).step_by(columns) {
            let inside = || (r0..m.min(r0 + rows)).flat_map(|r| (c0..n.min(c0 + columns)).map(move |c| r * n + c));
            let amax = inside().fold(floor, |max, at| max.max(x[at].abs()));
            let (scale, by) = reference_scale(amax, ue8m0, inverse);
            inside().for_each(|at| codes[at] = e4m3_code((x[at] * by) as f64));
            scales.push(scale);
        }
    }
    (codes, scales)
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    block: [usize; 2],
    ue8m0: bool,
    inverse: Inverse,
    amax_min: f32,
    dtype: DType,
}

impl Cast {
    fn scales(&self) -> [usize; 2] {
        [self.m.div_ceil(self.block[0]), self.n.div_ceil(self.block[1])]
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct PerBlockFp8;

const OP: &str = "quant_per_block_fp8";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];
/// Elements of a block of threads at most: they stay in registers.
const LARGEST: usize = 1 << 14;

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { per_block_cast_fp8::kernel::<F32>() } else { per_block_cast_fp8::kernel::<Bf16>() }
}

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    p::word(OP, params, "fmt", &["e4m3"])?;
    let block = p::pair(OP, params, "block", [128, 128])?;
    if block.iter().product::<usize>() > LARGEST {
        return Err(p::refuse(OP, format!("blocks of {block:?}; expected at most {LARGEST} elements")));
    }
    Ok(Cast {
        m: x.shape[0],
        n: x.shape[1],
        block,
        ue8m0: p::flag(OP, params, "ue8m0", false)?,
        inverse: Inverse::read(OP, params)?,
        amax_min: p::number(OP, params, "amax_min", Some(1e-4))? as f32,
        dtype: x.dtype,
    })
}

impl OpSpec for PerBlockFp8 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_fp8_128x128"),
            family: "quant",
            formula: "sf = max(max|x|, amax_min)/448 over blocks of rows and columns; q = e4m3(x/sf)",
            source: "DeepSeek-V3 technical report, 3.3.2",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        Ok(vec![p::spec("q", DType::E4m3, &[c.m, c.n]), p::spec("sf", DType::F32, &c.scales())])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(c.dtype);
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n)]);
        p::set(&mut config, "rows", ConfigValue::Int(c.block[0]));
        p::set(&mut config, "columns", ConfigValue::Int(c.block[1]));
        p::set(&mut config, "ue8m0", ConfigValue::Bool(c.ue8m0));
        p::set(&mut config, "inverse", ConfigValue::Word(format!("{:?}", c.inverse)));
        let args = vec![
            p::arg(OP, problem, "x")?,
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "sf")?,
            Arg::Scalar(Literal::f32(c.amax_min)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let c = cast_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let (codes, scales) = reference(&x, [c.m, c.n], c.block, (c.amax_min, c.ue8m0, c.inverse));
        let scales: Vec<f64> = scales.into_iter().map(f64::from).collect();
        Ok([("q".into(), e4m3_tensor(&[c.m, c.n], codes)), ("sf".into(), f32_tensor(&c.scales(), &scales))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        vec![p::split("m", c.m, c.block[0], &[("x", 0, c.block[0]), ("q", 0, c.block[0]), ("sf", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, block: [i64; 2], ue8m0: bool, mode: &str| {
            let params = [
                ("block", ParamValue::List(block.map(ParamValue::Int).to_vec())),
                ("ue8m0", ParamValue::Bool(ue8m0)),
                ("inv_mode", ParamValue::Text(mode.into())),
            ];
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &params)
        };
        let (recip, over, large) = ("recip_sf", "max_over_amax", [128, 128]);
        let normal = || Fill::Normal(2.0);
        vec![
            make("no_rows", [0, 256], DType::Bf16, normal(), large, true, recip),
            make("m200_n300_tails", [200, 300], DType::Bf16, normal(), large, true, recip),
            make("m130_n129_odd_f32", [130, 129], DType::F32, normal(), large, false, recip),
            make("m40_n72_32x32_max_over_amax", [40, 72], DType::Bf16, normal(), [32, 32], false, over),
            make("m33_n256_32x128", [33, 256], DType::Bf16, normal(), [32, 128], true, recip),
            make("zeros", [128, 256], DType::Bf16, Fill::Constant(0.0), large, true, recip),
            make("tiny", [70, 64], DType::F32, Fill::Normal(1e-30), large, false, recip),
            make("huge", [130, 140], DType::Bf16, Fill::Uniform(-3e38, 3e38), large, true, recip),
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
        let x = p::filled("x", DType::Bf16, &[tokens, hidden], Fill::Normal(1.0));
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), vec![x], &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        p::moved(self, specs, params, 2.0)
    }
}
