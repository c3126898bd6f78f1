//! What the compiler proves of the properties kernels declare, over every declared case with its default configuration.

#![allow(clippy::print_stdout, reason = "what is not proven is named in the test's output")]

use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::analysis::Ranges;
use kiln_codegen::analysis::invariance;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::spec::{DefaultConfigs, Problem, TensorSpec};
use kiln_codegen::{bind, compile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Kernels every declared dimension of which is followed from source to sink in every case. One that leaves this list
/// has lost its proof.
const PROVEN: [&str; 32] = [
    "rmsnorm",
    "rope_partial",
    "swiglu_cast_fp8",
    "hadamard",
    "transpose",
    "gemm_bf16",
    "product_sum",
    "product_by_head",
    "mla_decode_dense",
    "mla_decode_sparse",
    "mla_combine",
    "topk_select",
    "per_token_cast_fp4",
    "per_token_cast_e5m6",
    "mhc_expand",
    "mhc_mix_product",
    "mhc_mix_streams",
    "mhc_sinkhorn",
    "mhc_post",
    "mhc_head_mix",
    "mla_prefill_sparse",
    "moe_gate",
    "moe_topk",
    "moe_group_topk",
    "moe_reduce",
    "mask_indices_by_tp",
    "unique_groups",
    "normalize_weight",
    "sampling",
    "philox_uniform",
    "engram_gate",
    "engram_hash",
];

#[test]
fn declared_properties_hold_and_the_listed_ones_are_proven() {
    let mut unproven: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut refused, mut seen) = (vec![], BTreeSet::new());
    for op in kiln_kernels::registry() {
        for case in op.cases() {
            let inputs: BTreeMap<String, TensorSpec> =
                case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
            let outputs = op.outputs(&inputs, &case.params).unwrap_or_else(|e| panic!("{}: {e}", case.id));
            let zeros = |bytes: usize| Arc::new(HostMemory::zeroed(bytes));
            let tensors = inputs.into_values().chain(outputs).map(|t| {
                let memory = zeros(t.dtype.bytes(t.shape.iter().product()));
                (t.name, TensorView::contiguous(t.dtype, &t.shape, memory))
            });
            let problem = Problem { tensors: tensors.collect(), params: case.params.clone() };
            let plan = op.plan(&problem, &DefaultConfigs).unwrap_or_else(|e| panic!("{}: {e}", case.id));
            for step in &plan.steps {
                let placed = |a: &Arg| match a {
                    Arg::Workspace { index, dtype, shape, offset_bytes } => {
                        let view = TensorView::contiguous(*dtype, shape, zeros(plan.workspaces[*index]));
                        Arg::Tensor(TensorView { offset_bytes: *offset_bytes, ..view })
                    }
                    Arg::Tensor(_) | Arg::Scalar(_) | Arg::Absent => a.clone(),
                };
                let args: Vec<Arg> = step.args.iter().map(placed).collect();
                let bound = bind::bind(step.kernel.as_ref(), &step.config, &args)
                    .unwrap_or_else(|e| panic!("{}: {e}", case.id));
                let name = step.kernel.info().name.clone();
                let built = match compile::build(step.kernel.as_ref(), &bound.request) {
                    Ok(built) => built,
                    Err(list) => {
                        refused.extend(list.iter().map(|d| format!("{name}, {}: {d}", case.id)));
                        continue;
                    }
                };
                let k = &built.kernel;
                let ranges = Ranges::new(k);
                for dim in &k.properties.batch_invariant {
                    seen.insert(name.clone());
                    let verdict = invariance::batch(k, &ranges, dim).expect("the dimension is one of launches");
                    for p in verdict.unproven.iter().chain(&verdict.violations) {
                        let at = k.span_of(k.op(p.at).span);
                        let text = format!("{:?} {} ({}:{}:{})", p.source, p.what, at.file, at.line, at.column);
                        unproven.entry(name.clone()).or_default().insert(text);
                    }
                }
            }
        }
    }
    for (kernel, why) in &unproven {
        println!("not proven: {kernel}\n  {}", why.iter().cloned().collect::<Vec<_>>().join("\n  "));
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let lost: Vec<_> = PROVEN.iter().filter(|k| !seen.contains(**k) || unproven.contains_key(**k)).collect();
    assert!(lost.is_empty(), "no longer proven: {lost:?}");
}
