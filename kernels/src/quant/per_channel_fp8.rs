//! Cast of a matrix to e4m3 with one scale for each `group` consecutive elements of a column.
//!
//! `amax = max(max|x|, amax_min)` over `group` rows of a column, `sf = amax/448` (with `ue8m0` the next power of two),
//! `q = e4m3(x · inv)` with `inv = 1/sf`, or `448/amax` in the mode `max_over_amax`.
//!
//! *Tensors*: `x` `[m, n]` bf16 or f32; `q` `[m, n]` e4m3; `sf` `[⌈m/group⌉, n]` f32.
//! *Cost*: 3 bytes moved per bf16 element, memory bound.
//! *Numerics*: as `per_token_fp8`. The last group of a column may be shorter.
//! *Schedule*: some columns of one group a block, through shared memory: both sides of global memory see whole rows, while
//! a thread takes the maximum of a column.
//! *Source*: DeepSeek-V3 technical report, 3.3.2: activations of the backward pass are grouped along tokens.

use crate::numeric::round::{e4m3_tensor, f32_tensor};
use crate::problem as p;
use crate::quant::per_block_fp8::reference;
use crate::quant::scale::{Inverse, scale_and_inverse};
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
pub struct PerChannelConfig {
    /// Columns of a block.
    #[tune(128, 64, 256)]
    pub columns: usize,
    /// Warps of a block.
    #[tune(4, 8)]
    pub warps: usize,
    /// Rows that share a scale.
    #[default(128)]
    pub group: usize,
    /// Scales are powers of two.
    #[default(false)]
    pub ue8m0: bool,
    /// How the factor is formed.
    #[default(Inverse::RecipSf)]
    pub inverse: Inverse,
}

/// Casts one group of some columns.
#[kernel(dims(n: fixed), deterministic)]
pub fn per_channel_cast_fp8<T: Float + Arith>(
    cfg: &PerChannelConfig,
    x: In![T; m, n; strides(_, 1)],
    q: Out![E4m3; m, n],
    sf: Out![F32; groups, n],
    amax_min: Scalar![F32],
) {
    let (group, columns) = (cfg.group, cfg.columns);
    // One axis, blocks of one group next to each other: memory is walked in its order.
    let across = host!(n.div_ceil(columns));
    let block = grid(m.div_ceil(group) * across);
    let (gi, ci) = (block / across, block % across);
    let (r0, c0) = (gi * group, ci * columns);
    warps(cfg.warps);

    let part = shared::<T, 2>([group, columns]);
    copy(x.at((r0, c0)), part);
    let amax = reduce_absmax(part, 0);
    let factor = shared::<F32, 1>([columns]);
    for j in parallel([columns]) {
        let (scale, by) = scale_and_inverse(amax[j].to::<F32>(), amax_min, cfg.ue8m0, cfg.inverse);
        sf[(gi, c0 + j)] = scale;
        factor[j] = by;
    }
    for (i, j) in parallel([group, columns]) {
        q[(r0 + i, c0 + j)] = (part[(i, j)].to::<F32>() * factor[j]).to::<E4m3>();
    }
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    group: usize,
    ue8m0: bool,
    inverse: Inverse,
    amax_min: f32,
    dtype: DType,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct PerChannelFp8;

const OP: &str = "quant_per_channel_fp8";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { per_channel_cast_fp8::kernel::<F32>() } else { per_channel_cast_fp8::kernel::<Bf16>() }
}

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    p::word(OP, params, "fmt", &["e4m3"])?;
    let block = p::pair(OP, params, "block", [128, 1])?;
    let [group @ 1..=128, 1] = block else {
        return Err(p::refuse(OP, format!("parameter `block` is {block:?}; expected [group, 1], a group of 1 to 128")));
    };
    Ok(Cast {
        m: x.shape[0],
        n: x.shape[1],
        group,
        ue8m0: p::flag(OP, params, "ue8m0", false)?,
        inverse: Inverse::read(OP, params)?,
        amax_min: p::number(OP, params, "amax_min", Some(1e-4))? as f32,
        dtype: x.dtype,
    })
}

impl OpSpec for PerChannelFp8 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_fp8_128x1"),
            family: "quant",
            formula: "sf = max(max|x|, amax_min)/448 over groups of a column; q = e4m3(x/sf)",
            source: "DeepSeek-V3 technical report, 3.3.2",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        let sf = p::spec("sf", DType::F32, &[c.m.div_ceil(c.group), c.n]);
        Ok(vec![p::spec("q", DType::E4m3, &[c.m, c.n]), sf])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(c.dtype);
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n)]);
        p::set(&mut config, "group", ConfigValue::Int(c.group));
        p::set(&mut config, "ue8m0", ConfigValue::Bool(c.ue8m0));
        p::set(&mut config, "inverse", ConfigValue::Word(format!("{:?}", c.inverse)));
        p::at_most(&mut config, "columns", c.n.next_multiple_of(8));
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
        let (codes, scales) = reference(&x, [c.m, c.n], [c.group, 1], (c.amax_min, c.ue8m0, c.inverse));
        let scales: Vec<f64> = scales.into_iter().map(f64::from).collect();
        Ok([
            ("q".into(), e4m3_tensor(&[c.m, c.n], codes)),
            ("sf".into(), f32_tensor(&[c.m.div_ceil(c.group), c.n], &scales)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        vec![p::split("m", c.m, c.group, &[("x", 0, c.group), ("q", 0, c.group), ("sf", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, group: i64, ue8m0: bool, mode: &str| {
            let params = [
                ("block", ParamValue::List([group, 1].map(ParamValue::Int).to_vec())),
                ("ue8m0", ParamValue::Bool(ue8m0)),
                ("inv_mode", ParamValue::Text(mode.into())),
            ];
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &params)
        };
        let (recip, over) = ("recip_sf", "max_over_amax");
        let normal = || Fill::Normal(2.0);
        vec![
            make("no_rows", [0, 64], DType::Bf16, normal(), 128, true, recip),
            make("m128_n300", [128, 300], DType::Bf16, normal(), 128, true, recip),
            make("m100_n33_odd_tail", [100, 33], DType::Bf16, normal(), 32, false, recip),
            make("m70_n40_f32_max_over_amax", [70, 40], DType::F32, normal(), 64, false, over),
            make("m1_n16", [1, 16], DType::Bf16, normal(), 128, true, recip),
            make("zeros", [64, 24], DType::Bf16, Fill::Constant(0.0), 32, true, recip),
            make("tiny", [40, 8], DType::F32, Fill::Normal(1e-30), 32, false, recip),
            make("huge", [33, 72], DType::Bf16, Fill::Uniform(-3e38, 3e38), 32, true, recip),
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
