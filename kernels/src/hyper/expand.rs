//! The first residual streams: `y[t, j, c] = x[t, c]` for every stream `j`.
//!
//! *Tensors*: `x` `[t, h]` bf16 or f32; `y` `[t, m, h]` of its type; the parameter `mhc_mult` is `m`, 4 if left out.
//! *Cost*: a row read once and written `m` times, memory bound.  *Numerics*: none; bits are moved.
//! *Schedule*: a piece of a row a block, written to all streams by the threads that read it.
//! *Source*: Zhu et al., Hyper-Connections, 2024.

use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct ExpandConfig {
    /// Columns of a block.
    #[tune(2048, 1024, 4096)]
    pub columns: usize,
    /// Warps of a block.
    #[tune(8, 4)]
    pub warps: usize,
}

/// Copies a piece of a row to all streams.
#[kernel(dims(m: fixed, h: fixed), deterministic, batch_invariant(t))]
pub fn mhc_expand<T: Float>(cfg: &ExpandConfig, x: In![T; t, h; strides(_, 1)], y: Out![T; t, m, h]) {
    let (row, ci) = grid((t, h.div_ceil(cfg.columns)));
    let c0 = ci * cfg.columns;
    warps(cfg.warps);
    for c in parallel([cfg.columns]) {
        let value = x[(row, c0 + c)];
        for j in unroll(0..m) {
            y[(row, j, c0 + c)] = value;
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhcExpand;

const OP: &str = "mhc_expand";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { mhc_expand::kernel::<F32>() } else { mhc_expand::kernel::<Bf16>() }
}

/// `x` and the number of streams.
fn inputs<'a>(specs: &'a p::Specs, params: &Params) -> Result<(&'a TensorSpec, usize), OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    let m = p::count(OP, params, "mhc_mult", Some(4))?;
    if m > 16 {
        return Err(p::refuse(OP, format!("parameter `mhc_mult` is {m}; expected at most 16 streams")));
    }
    Ok((x, m))
}

impl OpSpec for MhcExpand {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mhc_expand"),
            family: "hyper",
            formula: "y[t, j, c] = x[t, c]",
            source: "Zhu et al., 2024",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (x, m) = inputs(specs, params)?;
        Ok(vec![p::spec("y", x.dtype, &[x.shape[0], m, x.shape[1]])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let (x, m) = inputs(&specs, &problem.params)?;
        let kernel = kernel_for(x.dtype);
        let mut config = p::choose(configs, &kernel, &[("t", x.shape[0]), ("m", m), ("h", x.shape[1])]);
        p::at_most(&mut config, "columns", x.shape[1].next_multiple_of(8));
        Ok(p::single(kernel, config, vec![p::arg(OP, problem, "x")?, p::arg(OP, problem, "y")?]))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let (x, m) = inputs(&specs, &problem.params)?;
        let row = x.dtype.bytes(x.shape[1]).max(1);
        let data = problem.tensors["x"].data.chunks(row).flat_map(|r| r.repeat(m)).collect();
        Ok([("y".into(), HostTensor { dtype: x.dtype, shape: vec![x.shape[0], m, x.shape[1]], data })].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok((x, _)) = inputs(specs, params) else { return vec![] };
        vec![p::split("tokens", x.shape[0], 1, &[("x", 0, 1), ("y", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, m: i64| {
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &[("mhc_mult", ParamValue::Int(m))])
        };
        vec![
            make("no_tokens", [0, 128], DType::Bf16, Fill::Bits, 4),
            make("t5_h1280", [5, 1280], DType::Bf16, Fill::Normal(1.0), 4),
            make("t3_h77_odd_f32", [3, 77], DType::F32, Fill::Normal(1.0), 3),
            make("any_bits", [2, 256], DType::Bf16, Fill::Bits, 4),
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
        p::moved(self, specs, params, 0.0)
    }
}
