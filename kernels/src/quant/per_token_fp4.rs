//! Cast of rows to e2m1 (fp4) with one power-of-two scale for each `gran_k` consecutive elements of a row.
//!
//! `amax = max(max|x|, 6·2⁻¹²⁶)` over a group, `sf` the smallest power of two not below `amax/6`, `q = e2m1(x / sf)`.
//!
//! *Tensors*: `x` `[m, n]` bf16 or f32, `n` even; `q_packed` `[m, n/2]` u8, two codes a byte, the even column in the low
//! half; `sf_exp` `[m, ⌈n/gran_k⌉]` u8, the biased exponent of `sf`.
//! *Cost*: 2.5 bytes moved per bf16 element, memory bound.
//! *Numerics*: dividing by a power of two is exact; one rounding to the nearest code, ties to even, saturating at 6. The sign
//! of zero is kept. A zero group gets exponent 1.
//! *Schedule*: as `per_token_fp8`; a thread's codes leave as whole words.
//! *Source*: OCP Microscaling Formats 1.0 (MXFP4).

use crate::gemm::fp8::as_e2m1;
use crate::numeric::round::{e2m1_code, power_of_two_at_least, u8_tensor, ue8m0_code};
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

/// Work of a block, and the length of a group.
#[derive(KernelConfig, Clone, Debug)]
pub struct PerTokenFp4Config {
    /// Rows of a block.
    #[tune(1, 4)]
    pub rows: usize,
    /// Groups of each row.
    #[tune(256, 64, 128)]
    pub groups: usize,
    /// Warps of a block.
    #[tune(4, 8)]
    pub warps: usize,
    /// Elements that share a scale.
    #[default(32)]
    pub group: usize,
}

/// Largest magnitude of e2m1.
pub const E2M1_MAX: f32 = 6.0;
/// Smallest maximum of a group, so that no scale is subnormal.
const FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;

/// Casts rows.
#[kernel(dims(n: fixed), deterministic, batch_invariant(m))]
pub fn per_token_cast_fp4<T: Float>(
    cfg: &PerTokenFp4Config,
    x: In![T; m, n; strides(_, 1)],
    q: Out![E2m1; m, n],
    sf_exp: Out![U8; m, blocks],
) {
    let (rows, groups, group) = (cfg.rows, cfg.groups, cfg.group);
    let (ri, gi) = grid((m.div_ceil(rows), n.div_ceil(groups * group)));
    let (r0, g0) = (ri * rows, gi * groups);
    warps(cfg.warps);

    let xf = frag::<F32, 3>([rows, groups, group]);
    for (i, g, j) in parallel([rows, groups, group]) {
        xf[(i, g, j)] = x[(r0 + i, (g0 + g) * group + j)].to::<F32>();
    }
    let amax = reduce_absmax(xf, 2);
    let factor = frag::<F32, 2>([rows, groups]);
    for (i, g) in parallel([rows, groups]) {
        let scale = E8m0::ceil_from(max(amax[(i, g)], FLOOR) / E2M1_MAX);
        sf_exp[(r0 + i, g0 + g)] = scale.bits();
        factor[(i, g)] = scale.recip();
    }
    for (i, g, j) in parallel([rows, groups, group]) {
        q[(r0 + i, (g0 + g) * group + j)] = (xf[(i, g, j)] * factor[(i, g)]).to::<E2m1>();
    }
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    group: usize,
    dtype: DType,
}

impl Cast {
    fn blocks(&self) -> usize {
        self.n.div_ceil(self.group)
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct PerTokenFp4;

const OP: &str = "quant_per_token_fp4";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { per_token_cast_fp4::kernel::<F32>() } else { per_token_cast_fp4::kernel::<Bf16>() }
}

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    p::word(OP, params, "fmt", &["e2m1"])?;
    // Neither is free: they are what the format's scales can express.
    p::word(OP, params, "amax_min", &["6*2^-126"])?;
    p::word(OP, params, "rounding", &["nearest-even, saturate 6, sign kept"])?;
    let group = p::count(OP, params, "gran_k", Some(32))?;
    let (m, n) = (x.shape[0], x.shape[1]);
    if n % 2 != 0 || group % 2 != 0 {
        let message =
            format!("rows of {n} in groups of {group}; expected even numbers, because a byte holds two codes");
        return Err(p::refuse(OP, message));
    }
    Ok(Cast { m, n, group, dtype: x.dtype })
}

impl OpSpec for PerTokenFp4 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_fp4_1x32"),
            family: "quant",
            formula: "sf = 2^⌈log2(max(max|x|, floor)/6)⌉ over groups; q = e2m1(x/sf)",
            source: "OCP Microscaling Formats 1.0",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        let exponents = p::spec("sf_exp", DType::U8, &[c.m, c.blocks()]);
        Ok(vec![p::spec("q_packed", DType::U8, &[c.m, c.n / 2]), exponents])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(c.dtype);
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n), ("blocks", c.blocks())]);
        p::set(&mut config, "group", ConfigValue::Int(c.group));
        p::at_most(&mut config, "groups", c.blocks());
        let codes = as_e2m1(p::view(OP, problem, "q_packed")?);
        let args = vec![p::arg(OP, problem, "x")?, Arg::Tensor(codes), p::arg(OP, problem, "sf_exp")?];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let c = cast_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let (mut codes, mut exponents) = (vec![], vec![]);
        for group in x.chunks(c.n.max(1)).flat_map(|row| row.chunks(c.group)) {
            let amax = group.iter().fold(FLOOR, |m, v| m.max(v.abs()));
            let scale = power_of_two_at_least(amax / E2M1_MAX);
            exponents.push(ue8m0_code(scale));
            codes.extend(group.iter().map(|&v| e2m1_code(v as f64 / scale as f64)));
        }
        let packed = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
        Ok([
            ("q_packed".into(), u8_tensor(&[c.m, c.n / 2], packed)),
            ("sf_exp".into(), u8_tensor(&[c.m, c.blocks()], exponents)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        vec![p::split("tokens", c.m, 1, &[("x", 0, 1), ("q_packed", 0, 1), ("sf_exp", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, group: i64| {
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &[("gran_k", ParamValue::Int(group))])
        };
        let normal = || Fill::Normal(2.0);
        // Every middle between two codes and its neighbours in f32, beside a 6 that makes the scale 1.
        let ties: Vec<f64> = [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
            .into_iter()
            .flat_map(|m| [m.next_down(), m, m.next_up()])
            .flat_map(|v| [v as f64, -v as f64])
            .chain([0.0, -0.0, 6.0, 1e-30, -1e-30, 5.9])
            .collect();
        vec![
            make("no_rows", [0, 64], DType::Bf16, normal(), 32),
            make("m5_n7168", [5, 7168], DType::Bf16, normal(), 32),
            make("m3_n200_tail", [3, 200], DType::Bf16, normal(), 32),
            make("m9_n90_rows_of_odd_bytes", [9, 90], DType::F32, normal(), 16),
            make("m1_n2", [1, 2], DType::Bf16, normal(), 32),
            make("ties", [1, ties.len()], DType::F32, Fill::Values(ties.clone()), ties.len() as i64),
            make("zeros", [2, 96], DType::Bf16, Fill::Constant(0.0), 32),
            make("negative_zeros", [2, 64], DType::F32, Fill::Constant(-0.0), 32),
            make("tiny", [4, 64], DType::F32, Fill::Normal(1e-38), 32),
            make("huge", [4, 64], DType::Bf16, Fill::Uniform(-3e38, 3e38), 32),
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
