//! Schedule of a split decode: which range of (request, block of keys) each part walks, filled greedily by cost.
//!
//! A request of `len` keys has `max(1, ⌈len/64⌉)` blocks and costs 5 more; a part takes `⌈Σ cost / parts⌉ + 5`. A request that
//! does not fit is cut, and the rest begins the next part.
//!
//! *Tensors*: `seqlens_k` `[b]` i32; `tile_scheduler_metadata` `[parts, 8]` i32: first request, last request (inclusive),
//! first block, last block (exclusive), first split, and whether the first and the last request are cut; `num_splits`
//! `[b + 1]` i32, the running number of splits.
//! *Cost*: nothing but latency.  *Numerics*: integers.
//! *Schedule*: one block walks the list. The decode kernels of this library need no such table: they split by a fixed number
//! of keys, so that a request keeps its bits in any batch. This serves callers that have their own kernels.
//! *Source*: the published interface of FlashMLA.

use crate::numeric::round::i32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One choice only.
#[derive(KernelConfig, Clone, Debug)]
pub struct SchedConfig {
    /// Warps of the block.
    #[default(1)]
    pub warps: usize,
}

/// Fills the parts.
#[kernel(dims(), deterministic)]
pub fn mla_sched_meta(
    cfg: &SchedConfig,
    lens: In![I32; b],
    meta: Out![I32; parts, 8],
    splits: Out![I32; b + 1],
    block: Scalar![I32],
    overhead: Scalar![I32],
) {
    warps(cfg.warps);
    grid(1);
    let requests = b.value();

    let mut total = 0i32;
    for r in 0..b {
        let len = lens[r];
        let blocks = max(1, (len + block - 1) / block);
        total += blocks + overhead;
    }
    let payload = (total + parts.value() - 1) / parts.value() + overhead;

    // Where the walk stands: a request, a block of it, its splits so far, and all splits of finished requests.
    let mut request = 0i32;
    let mut at = 0i32;
    let mut split = 0i32;
    let mut finished = 0i32;
    for i in parallel([1]) {
        splits[i] = 0;
    }
    for part in 0..parts {
        let (begin, begin_block, begin_split) = (request, at, split);
        let mut left = payload;
        while request < requests {
            let blocks = max(1, (lens.get_or(request, 0) + block - 1) / block);
            let rest = blocks - at + overhead;
            if left < rest {
                if left > overhead {
                    at += left - overhead;
                    split += 1;
                }
                break;
            }
            finished += split + 1;
            let (to, count) = (request + 1, finished);
            for _i in parallel([1]) {
                splits.put(to, count);
            }
            left -= rest;
            request += 1;
            at = 0;
            split = 0;
        }
        // A part that stopped inside a request ends there, any other with the last block of the request before.
        let cut = at > 0;
        let end = select(cut, request, request - 1);
        let len = lens.get_or(end, 0);
        let blocks = max(1, (len + block - 1) / block);
        let end_block = select(cut, at, select(len == 0, 0, blocks));
        let last_cut = end_block != blocks && len != 0;
        let first_cut = begin_block != 0;
        let (first, last) = if_one_request(begin == end, first_cut, last_cut);
        let row = [begin, end, begin_block, end_block, begin_split, first, last];
        for j in parallel([8]) {
            let mut cell = 0i32;
            for (at, x) in unroll(row.into_iter().enumerate()) {
                cell = select(j == at, x, cell);
            }
            meta[(part, j)] = cell;
        }
    }
}

/// Whether the first and the last request of a part are cut, as numbers; of a part inside one request both say the same.
#[kernel_fn]
fn if_one_request(one: V<Bool>, first: V<Bool>, last: V<Bool>) -> (V<I32>, V<I32>) {
    let both = first || last;
    (select(one, both, first).to::<I32>(), select(one, both, last).to::<I32>())
}

/// Metadata rows and running splits, by plain loops.
pub fn reference(lens: &[i64], parts: usize, block: i64, overhead: i64) -> (Vec<i64>, Vec<i64>) {
    let blocks: Vec<i64> = lens.iter().map(|&len| (len + block - 1).div_euclid(block).max(1)).collect();
    let total: i64 = blocks.iter().map(|n| n + overhead).sum();
    let payload = (total + parts as i64 - 1) / (parts as i64).max(1) + overhead;
    let (mut meta, mut splits) = (vec![], vec![0]);
    let (mut request, mut at, mut split, mut finished) = (0usize, 0, 0, 0);
    for _ in 0..parts {
        let begin = [request as i64, at, split];
        let mut left = payload;
        while request < lens.len() {
            let rest = blocks[request] - at + overhead;
            if left < rest {
                if left > overhead {
                    at += left - overhead;
                    split += 1;
                }
                break;
            }
            finished += split + 1;
            splits.push(finished);
            left -= rest;
            (request, at, split) = (request + 1, 0, 0);
        }
        let end = if at > 0 { request as i64 } else { request as i64 - 1 };
        let (len, n) = (usize::try_from(end).ok()).map_or((0, 1), |e| (lens[e], blocks[e]));
        let end_block = match (at > 0, len) {
            (true, _) => at,
            (false, 0) => 0,
            (false, _) => n,
        };
        let (mut first, mut last) = (begin[1] != 0, end_block != n && len != 0);
        if begin[0] == end {
            (first, last) = (first || last, first || last);
        }
        meta.extend([begin[0], end, begin[1], end_block, begin[2], i64::from(first), i64::from(last), 0]);
    }
    (meta, splits)
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MlaSchedMeta;

const OP: &str = "mla_sched_meta";

/// Requests, parts, keys of a block and overhead in blocks.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<(usize, usize, usize, usize), OpError> {
    let lens = p::input(OP, specs, "seqlens_k", &[Data::I32], 1)?;
    let overhead = p::number(OP, params, "fixed_overhead_num_blocks", Some(5.0))?;
    if overhead < 0.0 || overhead.fract() != 0.0 {
        let message = format!("parameter `fixed_overhead_num_blocks` is {overhead}; expected a whole number");
        return Err(p::refuse(OP, message));
    }
    let parts = p::count(OP, params, "num_sm_parts", None)?;
    Ok((lens.shape[0], parts, p::count(OP, params, "block_size_n", Some(64))?, overhead as usize))
}

impl OpSpec for MlaSchedMeta {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "attention",
            formula: "greedy fill of (request, block) into parts of equal cost",
            source: "interface of FlashMLA",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![mla_sched_meta::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (requests, parts, _, _) = shape_of(specs, params)?;
        Ok(vec![
            p::spec("tile_scheduler_metadata", Data::I32, &[parts, 8]),
            p::spec("num_splits", Data::I32, &[requests + 1]),
        ])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (requests, parts, block, overhead) = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = mla_sched_meta::kernel();
        let config = p::choose(configs, &kernel, &[("b", requests), ("parts", parts)]);
        let args = vec![
            p::arg(OP, problem, "seqlens_k")?,
            p::arg(OP, problem, "tile_scheduler_metadata")?,
            p::arg(OP, problem, "num_splits")?,
            Arg::Scalar(Literal { dtype: Data::I32, bits: block as u64 }),
            Arg::Scalar(Literal { dtype: Data::I32, bits: overhead as u64 }),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let (requests, parts, block, overhead) = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let lens: Vec<i64> = p::numbers(OP, problem, "seqlens_k")?.iter().map(|&x| x as i64).collect();
        let (meta, splits) = reference(&lens, parts, block as i64, overhead as i64);
        let narrow = |v: Vec<i64>| v.into_iter().map(|x| x as i32).collect::<Vec<_>>();
        Ok([
            ("tile_scheduler_metadata".into(), i32_tensor(&[parts, 8], &narrow(meta))),
            ("num_splits".into(), i32_tensor(&[requests + 1], &narrow(splits))),
        ]
        .into())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, lens: &[f64], parts: i64| {
            let lens = p::filled("seqlens_k", Data::I32, &[lens.len()], Fill::Values(lens.to_vec()));
            p::case(id, vec![lens], &[("num_sm_parts", ParamValue::Int(parts))])
        };
        vec![
            make("one_request_cut", &[100_000.0], 7),
            make("equal", &[64.0; 9], 3),
            make("more_parts_than_blocks", &[1.0, 0.0], 12),
            make("empty_requests", &[0.0, 0.0, 0.0], 2),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
