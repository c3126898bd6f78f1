//! Top-k of short rows in descending order: the experts of a token when the scores are given.
//!
//! `topk_idx[t] =` the indices of the `k` largest of `scores[t]`, best first, smaller index first among equals. `-0` equals
//! `+0`; NaN ranks below `-inf`.
//!
//! *Tensors*: `scores` `[t, e]` f32, rows at any distance; `topk_idx` `[t, k]` i64.
//! *Cost*: one read of the scores.  *Numerics*: none; keys that order like the values are compared.
//! *Schedule*: as `moe_gate`. For long rows and large `k` there is `topk_select`.
//! *Source*: the published interface of TileKernels.

use super::gate::largest;
use super::rank::{best_columns, live_key, rows_at_once, warps_for};
use crate::numeric::round::i64_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How rows are spread.
#[derive(KernelConfig, Clone, Debug)]
pub struct TopkConfig {
    /// Warps of a block; rows of more than 256 entries take one.
    #[tune(4, 2, 8)]
    pub warps: usize,
}

/// Ranks the columns of rows.
#[kernel(dims(e: fixed, k: fixed), deterministic, batch_invariant(t))]
pub fn moe_topk(cfg: &TopkConfig, scores: In![F32; t, e; strides(ld, 1)], ids: Out![I64; t, k]) {
    let warps_used = warps_for(e, cfg.warps);
    let rows = rows_at_once(e, warps_used);
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(warps_used);
    let keys = frag::<U32, 2>([rows, e]);
    for (i, j) in parallel([rows, e]) {
        keys[(i, j)] = live_key(scores[(r0 + i, j)]);
    }
    let best = best_columns(keys, k);
    for i in parallel([rows]) {
        for (slot, at) in unroll(best.iter().enumerate()) {
            ids[(r0 + i, slot)] = at[i].to::<I64>();
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MoeTopk;

const OP: &str = "moe_topk";

/// Tokens, columns and `k`.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<[usize; 3], OpError> {
    let scores = p::input(OP, specs, "scores", &[Data::F32], 2)?;
    let k = p::count(OP, params, "num_topk", None)?;
    if k > scores.shape[1] || k > 32 {
        let most = scores.shape[1].min(32);
        return Err(p::refuse(OP, format!("parameter `num_topk` is {k}; expected at most {most}")));
    }
    Ok([scores.shape[0], scores.shape[1], k])
}

impl OpSpec for MoeTopk {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "moe",
            formula: "indices of the k largest of a row, best first",
            source: "interface of TileKernels",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![moe_topk::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let [t, _, k] = shape_of(specs, params)?;
        Ok(vec![p::spec("topk_idx", Data::I64, &[t, k])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let [t, e, k] = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = moe_topk::kernel();
        let config = p::choose(configs, &kernel, &[("t", t), ("e", e), ("k", k)]);
        let args = vec![p::arg(OP, problem, "scores")?, p::arg(OP, problem, "topk_idx")?];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let [t, e, k] = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x = p::numbers(OP, problem, "scores")?;
        let rows = (0..t).flat_map(|r| largest(&x[r * e..][..e], k));
        let ids: Vec<i64> = rows.map(|i| i as i64).collect();
        Ok([("topk_idx".into(), i64_tensor(&[t, k], &ids))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok([t, ..]) = shape_of(specs, params) else { return vec![] };
        vec![p::split("tokens", t, 1, &[("scores", 0, 1), ("topk_idx", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, e, k]: [usize; 3], fill: Fill| {
            let params = [("num_topk", ParamValue::Int(k as i64))];
            p::case(id, vec![p::filled("scores", Data::F32, &[t, e], fill)], &params)
        };
        let odd = [f64::NAN, f64::NEG_INFINITY, 0.0, -0.0, f64::INFINITY, 1.0];
        let hostile = Fill::Values((0..4 * 48).map(|i| odd[i * 5 % 6]).collect());
        vec![
            make("no_tokens", [0, 72, 6], Fill::Normal(1.0)),
            make("t37_e256_k8", [37, 256, 8], Fill::Normal(1.0)),
            make("t3_e300_k32", [3, 300, 32], Fill::Normal(1.0)),
            make("e1", [5, 1, 1], Fill::Normal(1.0)),
            make("all_chosen", [2, 9, 9], Fill::Normal(1.0)),
            make("nan_zeros_infinities", [4, 48, 30], hostile),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
