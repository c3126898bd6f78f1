//! Best groups of experts: a group's score is the sum of its one or two largest entries.
//!
//! `group_idx[t] =` the `num_topk_groups` groups with the largest sums, best first, smaller group first among equals. A value
//! that occurs twice counts twice: `[10, 10, 5]` gives 20.
//!
//! *Tensors*: `scores` `[t, groups, n]` f32; `group_idx` `[t, num_topk_groups]` i64.
//! *Cost*: one read of the scores.  *Numerics*: one f32 sum of two a group.
//! *Schedule*: as `moe_gate`, of which this is one step; sums pass through shared memory once.
//! *Source*: DeepSeek-V3 Technical Report, 2024, section 2.1.2; the published interface of TileKernels.

use super::gate::{largest, two_largest};
use super::rank::{best_columns, group_scores, live_key, rows_at_once, warps_for};
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
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How rows are spread.
#[derive(KernelConfig, Clone, Debug)]
pub struct GroupTopkConfig {
    /// Warps of a block; rows of more than 256 entries take one.
    #[tune(4, 2, 8)]
    pub warps: usize,
    /// The two largest count, not one.
    #[default(true)]
    pub two: bool,
}

/// Ranks groups.
#[kernel(dims(groups: fixed, n: fixed, k: fixed), deterministic, batch_invariant(t))]
pub fn moe_group_topk(cfg: &GroupTopkConfig, scores: In![F32; t, groups, n], ids: Out![I64; t, k]) {
    let warps_used = warps_for(groups * n, cfg.warps);
    let rows = rows_at_once(groups * n, warps_used);
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(warps_used);
    let x = frag::<F32, 3>([rows, groups, n]);
    for (i, g, j) in parallel([rows, groups, n]) {
        x[(i, g, j)] = scores[(r0 + i, g, j)];
    }
    let sums = group_scores(x, cfg.two);
    let all = shared::<U32, 2>([rows, groups]);
    for (i, g) in parallel([rows, groups]) {
        all[(i, g)] = live_key(sums[(i, g)]);
    }
    let keys = frag::<U32, 2>([rows, groups]);
    for (i, g) in parallel([rows, groups]) {
        keys[(i, g)] = all[(i, g)];
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
pub struct MoeGroupTopk;

const OP: &str = "moe_group_topk";

/// Tokens, groups, entries of a group, groups to choose, and whether two entries count.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<([usize; 4], bool), OpError> {
    let scores = p::input(OP, specs, "scores", &[Data::F32], 3)?;
    let [t, groups, n] = [scores.shape[0], scores.shape[1], scores.shape[2]];
    let k = p::count(OP, params, "num_topk_groups", None)?;
    let sum = p::count(OP, params, "num_topk_sum", Some(2))?;
    if k > groups || groups > 32 || sum > 2 || n == 0 {
        return Err(p::refuse(
            OP,
            format!(
                "{groups} groups of {n}, `num_topk_groups` {k}, `num_topk_sum` {sum}; expected at most 32 groups with \
                 entries, no more chosen than there are, and a sum of 1 or 2"
            ),
        ));
    }
    Ok(([t, groups, n, k], sum == 2))
}

impl OpSpec for MoeGroupTopk {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "moe",
            formula: "groups with the largest sums of their two largest entries",
            source: "DeepSeek-V3 Technical Report, 2024",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![moe_group_topk::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let ([t, .., k], _) = shape_of(specs, params)?;
        Ok(vec![p::spec("group_idx", Data::I64, &[t, k])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let ([t, groups, n, k], two) = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = moe_group_topk::kernel();
        let mut config = p::choose(configs, &kernel, &[("t", t), ("groups", groups), ("n", n), ("k", k)]);
        p::set(&mut config, "two", ConfigValue::Bool(two));
        let args = vec![p::arg(OP, problem, "scores")?, p::arg(OP, problem, "group_idx")?];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let ([t, groups, n, k], two) = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x = p::numbers(OP, problem, "scores")?;
        let row = |r: usize| two_largest(&x[r * groups * n..][..groups * n], groups, if two { 2 } else { 1 });
        let ids: Vec<i64> = (0..t).flat_map(|r| largest(&row(r), k)).map(|i| i as i64).collect();
        Ok([("group_idx".into(), i64_tensor(&[t, k], &ids))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(([t, ..], _)) = shape_of(specs, params) else { return vec![] };
        vec![p::split("tokens", t, 1, &[("scores", 0, 1), ("group_idx", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, groups, n, k]: [usize; 4], sum: i64, fill: Fill| {
            let params = [("num_topk_groups", ParamValue::Int(k as i64)), ("num_topk_sum", ParamValue::Int(sum))];
            p::case(id, vec![p::filled("scores", Data::F32, &[t, groups, n], fill)], &params)
        };
        // Sums of quarters are exact in every type, so ties stay ties.
        let quarters = |n: usize| Fill::Values((0..n).map(|i| (i * 11 % 7) as f64 * 0.25).collect());
        vec![
            make("no_tokens", [0, 8, 8, 4], 2, Fill::Normal(1.0)),
            make("t21_g8_n32_k4", [21, 8, 32, 4], 2, Fill::Normal(1.0)),
            make("t5_g3_n5_odd", [5, 3, 5, 2], 2, Fill::Normal(1.0)),
            make("largest_only", [7, 4, 16, 4], 1, Fill::Normal(1.0)),
            make("one_entry", [3, 6, 1, 3], 2, Fill::Normal(1.0)),
            make("g32_n32", [2, 32, 32, 7], 2, Fill::Normal(1.0)),
            make("ties", [9, 8, 8, 8], 2, quarters(576)),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
