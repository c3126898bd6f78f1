//! Gate of a mixture of experts: the `k` experts of each token and their weights.
//!
//! With `s = σ(logits)` (sigmoid, `√softplus` or softmax over experts) a token's experts are the `k` largest of `s + bias`
//! (of `logits + bias` for softmax, which orders the same way), smaller index first among equals. With groups only experts of
//! the best `num_topk_groups` groups count, a group's score being the sum of its two largest keys. The weights are
//! `s / (1e-20 + Σ s) · routed_scaling_factor` over the chosen ones, summed in slot order, without the bias.
//!
//! *Variants*: `fix_routing_mask[t]` takes the ids of a token from `fixed_topk_idx`, `token_ids` takes those of all from the
//! table `token_to_experts` (hash routing); weights are computed for them all the same. Shared experts follow as slots of
//! weight 1 with ids from `num_experts` on. `to_physical_map[e, (ep_rank + token·23333) mod logical_count[e]]` replaces a
//! logical expert by one of its copies. Ids then become those of this tensor-parallel rank, as in `moe_misc`, or -1. A token
//! whose `mask` is false has ids -1 and weights 0.
//! *Tensors*: `logits` `[t, e]` f32, rows at any distance; `bias` `[e]` f32; `mask`, `fix_routing_mask` `[t]` bool;
//! `fixed_topk_idx` `[t, k]` i64; `token_ids` `[t]` i64; `token_to_experts` `[v, k]` i32; `to_physical_map` `[e + shared,
//! copies]` i32; `logical_count` `[e + shared]` i32; `topk_idx` `[t, k + shared]` i64; `unmapped_topk_idx` `[t, k]` i64, ids
//! before shared experts and maps; `topk_weights` `[t, k + shared]` f32.
//! *Cost*: the logits are read once: 4 bytes an expert and token, memory bound.
//! *Numerics*: f32. Exponentials and logarithms keep their relative precision. Logits must be finite; a launch with others
//! fails with a message.
//! *Schedule*: a row belongs to a group of lanes, eight experts a lane; ranking stays in registers, but for the groups' scores.
//! The chosen ids then go through shared memory to one thread a slot.
//! *Source*: DeepSeek-V3 Technical Report, 2024, section 2.1.2.

use super::local_id::{local, local_id};
use super::rank::{best_columns, group_scores, live_key, rows_at_once, warps_for};
use crate::numeric::round::{f32_tensor, i64_tensor};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What turns logits into scores.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// `1/(1 + e^-z)`.
    Sigmoid,
    /// `√ln(1 + e^z)`.
    Sqrtsoftplus,
    /// `e^z` over the sum of all experts' `e^z`.
    Softmax,
}

/// Which gate, and how rows are spread.
#[derive(KernelConfig, Clone, Debug)]
pub struct GateConfig {
    /// Warps of a block; rows of more than 256 experts take one.
    #[tune(4, 2, 8)]
    pub warps: usize,
    /// Scores.
    #[default(Scoring::Sigmoid)]
    pub scoring: Scoring,
    /// Groups of experts; 0 or 1 for none.
    #[default(0)]
    pub groups: usize,
    /// Groups that count.
    #[default(0)]
    pub keep: usize,
    /// Every token's experts are given, so nothing is ranked.
    #[default(false)]
    pub given: bool,
    /// Ids become those of one rank.
    #[default(false)]
    pub local: bool,
}

/// What a gate reads: logits, where a token's experts come from, if not from ranking, and where they go.
#[derive(Clone, Copy, Debug)]
struct Given {
    logits: Gm<F32, 2>,
    bias: Gm<F32, 1>,
    mask: Option<Gm<Bool, 1>>,
    fixed_rows: Option<Gm<Bool, 1>>,
    fixed: Option<Gm<I64, 2>>,
    tokens: Option<Gm<I64, 1>>,
    table: Option<Gm<I32, 2>>,
    physical: Option<Gm<I32, 2>>,
    copies: Option<Gm<I32, 1>>,
}

/// What it writes.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    ids: Gm<I64, 2, Wr>,
    logical: Gm<I64, 2, Wr>,
    weights: Gm<F32, 2, Wr>,
}

/// Scalars of the weights and maps.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    scale: V<F32>,
    ep_rank: V<I64>,
    per_rank: V<I32>,
    tp_rank: V<I32>,
    tp_ranks: V<I32>,
}

/// Score of a logit; `softmax` holds the row's largest logit and the sum of exponentials.
#[kernel_fn]
fn score(z: V<F32>, scoring: Scoring, softmax: Option<(V<F32>, V<F32>)>) -> V<F32> {
    match (scoring, softmax) {
        (Scoring::Sqrtsoftplus, _) => sqrt(softplus(z)),
        (Scoring::Softmax, Some((top, sum))) => exp_precise(z - top) / sum,
        (Scoring::Sigmoid | Scoring::Softmax, _) => 1.0 / (1.0 + exp_precise(-z)),
    }
}

/// The gate of the rows of a block; `sizes` are experts, experts of a token, and slots with those shared.
#[kernel_fn]
fn gate_rows(cfg: &GateConfig, sizes: [usize; 3], t: Ix, given: Given, ranks: Ranks, to: Chosen) {
    let [e, k, slots] = sizes;
    let Given { logits, bias, .. } = given;
    let Chosen { ids, logical, weights } = to;
    let warps_used = warps_for(e, cfg.warps);
    let rows = rows_at_once(e, warps_used);
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(warps_used);

    // Softmax needs the whole row, ranking too.
    let softmax = cfg.scoring == Scoring::Softmax;
    let mut extremes = host!(None);
    let mut chosen: Vec<Tile<I32, Frag, 1>> = host!(Vec::new());
    if softmax || !cfg.given {
        let z = frag::<F32, 2>([rows, e]);
        for (i, j) in parallel([rows, e]) {
            let x = logits[(r0 + i, j)];
            check!(abs(x) < INF, "logits are finite");
            z[(i, j)] = x;
        }
        if softmax {
            let top = reduce_max(z, 1);
            let powers = frag::<F32, 2>([rows, e]);
            for (i, j) in parallel([rows, e]) {
                powers[(i, j)] = exp_precise(z[(i, j)] - top[i]);
            }
            extremes = host!(Some((top, reduce_sum(powers, 1))));
        }
        if !cfg.given {
            let keys = frag::<F32, 2>([rows, e]);
            for (i, j) in parallel([rows, e]) {
                let s = if softmax { z[(i, j)] } else { score(z[(i, j)], cfg.scoring, None) };
                keys[(i, j)] = s + bias[j];
            }
            let order = frag::<U32, 2>([rows, e]);
            if cfg.groups > 1 && cfg.keep < cfg.groups {
                let groups = cfg.groups;
                let n = e / groups;
                let sums = group_scores(keys.reshape([rows, groups, n]), true);
                let all = shared::<F32, 2>([rows, groups]);
                for (i, g) in parallel([rows, groups]) {
                    all[(i, g)] = sums[(i, g)];
                }
                // A group counts if fewer than `keep` are better.
                let counts = shared::<I32, 2>([rows, groups]);
                for (i, g) in parallel([rows, groups]) {
                    let own = all[(i, g)];
                    let mut better = 0i32;
                    for o in 0..groups {
                        let other = all[(i, o)];
                        better += select(other > own || (other == own && o < g), 1, 0);
                    }
                    counts[(i, g)] = better;
                }
                for (i, j) in parallel([rows, e]) {
                    let kept = counts[(i, j / n)] < cfg.keep as i32;
                    order[(i, j)] = live_key(select(kept, keys[(i, j)], NEG_INF));
                }
            } else {
                for (i, j) in parallel([rows, e]) {
                    order[(i, j)] = live_key(keys[(i, j)]);
                }
            }
            chosen = host!(best_columns(order, k));
        }
    }

    // From here on a slot has a thread: a row's lanes would all do the same.
    let ranked = shared::<I32, 2>([rows, k]);
    if !cfg.given {
        for i in parallel([rows]) {
            for slot in unroll(0..k) {
                ranked[(i, slot)] = chosen[slot][i];
            }
        }
    }
    let picked = shared::<I32, 2>([rows, k]);
    let scores = shared::<F32, 2>([rows, k]);
    for (i, slot) in parallel([rows, k]) {
        let row = r0 + i;
        let id = if cfg.given { lit(-1) } else { ranked[(i, slot)] };
        let id = if let Some(table) = given.table
            && let Some(tokens) = given.tokens
        {
            table.get_or((tokens[row], slot), -1)
        } else {
            id
        };
        let id = if let Some(rows) = given.fixed_rows
            && let Some(fixed) = given.fixed
        {
            let other = fixed[(row, slot)];
            select(rows[row], select(other >= 0 && other < e as i64, other, -1i64).to::<I32>(), id)
        } else {
            id
        };
        let real = id >= 0 && id < e as i32;
        let pair =
            host!(extremes.map(|(top, sum): (Tile<F32, Frag, 1>, Tile<F32, Frag, 1>)| (top.load_(i), sum.load_(i))));
        picked[(i, slot)] = select(real, id, -1);
        scores[(i, slot)] = select(real, score(logits.get_or((row, id), 0.0), cfg.scoring, pair), 0.0);
    }
    for (i, slot) in parallel([rows, slots]) {
        let row = r0 + i;
        let open = if let Some(mask) = given.mask { mask[row] } else { lit(true) };
        let mut sum = 0.0f32;
        for o in 0..k {
            sum += scores[(i, o)];
        }
        let (id, s) = if slots > k {
            // Shared experts follow.
            (picked.get_or((i, slot), 0), scores.get_or((i, slot), 0.0))
        } else {
            (picked[(i, slot)], scores[(i, slot)])
        };
        let w = s / (sum + 1e-20) * ranks.scale;
        logical.put((row, slot), select(open, id, -1).to::<I64>());
        let id = if slots > k { select(slot < k, id, slot.value() + (e - k) as i32) } else { id };
        let w = if slots > k { select(slot < k, w, 1.0) } else { w };
        let id = if let Some(map) = given.physical
            && let Some(copies) = given.copies
        {
            let copy = (ranks.ep_rank + row.to::<I64>() * 23333) % copies.get_or(id, 1).to::<I64>();
            select(id >= 0, map.get_or((id, copy), -1), -1)
        } else {
            id
        };
        let id = if cfg.local { local_id(id, ranks.per_rank, ranks.tp_rank, ranks.tp_ranks) } else { id };
        ids[(row, slot)] = select(open, id, -1).to::<I64>();
        weights[(row, slot)] = select(open, w, 0.0);
    }
}

/// Ranks the experts of tokens.
#[kernel(dims(e: fixed, k: fixed, slots: fixed), deterministic, batch_invariant(t))]
pub fn moe_gate(
    cfg: &GateConfig,
    logits: In![F32; t, e; strides(ld, 1)],
    bias: In![F32; e],
    mask: Option<In![Bool; t]>,
    fixed_rows: Option<In![Bool; t]>,
    fixed: Option<In![I64; t, k]>,
    tokens: Option<In![I64; t]>,
    table: Option<In![I32; vocab, k]>,
    ids: Out![I64; t, slots],
    logical: Out![I64; t, k],
    weights: Out![F32; t, slots],
    scale: Scalar![F32],
    per_rank: Scalar![I32],
    tp_rank: Scalar![I32],
    tp_ranks: Scalar![I32],
) {
    let given = Given { logits, bias, mask, fixed_rows, fixed, tokens, table, physical: None, copies: None };
    let ranks = Ranks { scale, ep_rank: lit(0i64), per_rank, tp_rank, tp_ranks };
    gate_rows(cfg, [e, k, slots], t, given, ranks, Chosen { ids, logical, weights });
}

/// Ranks the experts of tokens and spreads them over copies. Which copy depends on the token's number, so a row's ids are not
/// those it would have in another batch.
#[kernel(dims(e: fixed, k: fixed, slots: fixed), deterministic)]
pub fn moe_gate_copies(
    cfg: &GateConfig,
    logits: In![F32; t, e; strides(ld, 1)],
    bias: In![F32; e],
    mask: Option<In![Bool; t]>,
    fixed_rows: Option<In![Bool; t]>,
    fixed: Option<In![I64; t, k]>,
    tokens: Option<In![I64; t]>,
    table: Option<In![I32; vocab, k]>,
    physical: In![I32; experts, most],
    copies: In![I32; experts],
    ids: Out![I64; t, slots],
    logical: Out![I64; t, k],
    weights: Out![F32; t, slots],
    scale: Scalar![F32],
    ep_rank: Scalar![I64],
    per_rank: Scalar![I32],
    tp_rank: Scalar![I32],
    tp_ranks: Scalar![I32],
) {
    let given =
        Given { logits, bias, mask, fixed_rows, fixed, tokens, table, physical: Some(physical), copies: Some(copies) };
    let ranks = Ranks { scale, ep_rank, per_rank, tp_rank, tp_ranks };
    gate_rows(cfg, [e, k, slots], t, given, ranks, Chosen { ids, logical, weights });
}

/// Score of every expert of a row.
fn scores(z: &[f64], scoring: Scoring) -> Vec<f64> {
    let top = z.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let sum: f64 = z.iter().map(|x| (x - top).exp()).sum();
    let one = |x: f64| match scoring {
        Scoring::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Scoring::Sqrtsoftplus => (if x > 20.0 { x } else { x.exp().ln_1p() }).sqrt(),
        Scoring::Softmax => (x - top).exp() / sum,
    };
    z.iter().map(|&x| one(x)).collect()
}

/// Indices of the `k` largest, best first: by sorting all of them.
pub(super) fn largest(values: &[f64], k: usize) -> Vec<usize> {
    crate::index::topk_select::reference(values, k)
}

/// Sum of the two largest of each group.
pub(super) fn two_largest(row: &[f64], groups: usize, count: usize) -> Vec<f64> {
    let size = row.len() / groups.max(1);
    let sum = |g: &[f64]| largest(g, count).iter().map(|&i| g[i]).sum();
    row.chunks(size.max(1)).map(sum).collect()
}

/// Experts of a row and their scores, by sorting.
pub fn reference(
    z: &[f64],
    bias: &[f64],
    scoring: Scoring,
    k: usize,
    groups: usize,
    keep: usize,
) -> (Vec<usize>, Vec<f64>) {
    let s = scores(z, scoring);
    let mut keys: Vec<f64> =
        (if scoring == Scoring::Softmax { z } else { &s }).iter().zip(bias).map(|(a, b)| a + b).collect();
    if groups > 1 && keep < groups {
        let kept = largest(&two_largest(&keys, groups, 2), keep);
        let size = keys.len() / groups;
        for (j, key) in keys.iter_mut().enumerate() {
            if !kept.contains(&(j / size)) {
                *key = f64::NEG_INFINITY;
            }
        }
    }
    (largest(&keys, k), s)
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MoeGate;

const OP: &str = "moe_gate";

/// What a problem asks for.
struct Shape {
    tokens: usize,
    experts: usize,
    k: usize,
    shared: usize,
    scoring: Scoring,
    groups: usize,
    keep: usize,
    scale: f64,
    ep_rank: i64,
    per_rank: i64,
    tp_rank: i64,
    tp_ranks: i64,
    copies: bool,
    hash: bool,
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let logits = p::input(OP, specs, "logits", &[Data::F32], 2)?;
    let [tokens, experts] = [logits.shape[0], logits.shape[1]];
    let number = |name: &str, default| p::natural(OP, params, name, default);
    let bias = p::input(OP, specs, "bias", &[Data::F32], 1)?;
    p::shaped(OP, bias, &[experts], "one entry an expert")?;
    let k = p::count(OP, params, "num_topk", None)?;
    if k > experts || k > 32 {
        return Err(p::refuse(
            OP,
            format!("parameter `num_topk` is {k}; expected at most 32 and at most {experts} experts"),
        ));
    }
    let (groups, keep) = (number("num_groups", 0)?, number("num_topk_groups", 0)?);
    if groups > 1 && (!experts.is_multiple_of(groups) || keep == 0 || keep > groups || keep * (experts / groups) < k) {
        return Err(p::refuse(
            OP,
            format!(
                "{experts} experts in `num_groups` {groups} of which `num_topk_groups` {keep} count; expected equal groups \
                 and at least `num_topk` {k} experts in those that count"
            ),
        ));
    }
    for name in ["mask", "fix_routing_mask"] {
        if let Some(t) = p::optional_input(OP, specs, name, &[Data::Bool], 1)? {
            p::shaped(OP, t, &[tokens], "one entry a token")?;
        }
    }
    let pairs = [
        ("fix_routing_mask", "fixed_topk_idx"),
        ("token_ids", "token_to_experts"),
        ("to_physical_map", "logical_count"),
    ];
    for (a, b) in pairs {
        if specs.contains_key(a) != specs.contains_key(b) {
            return Err(p::refuse(OP, format!("`{a}` and `{b}` come together; give both or neither")));
        }
    }
    if let Some(t) = p::optional_input(OP, specs, "fixed_topk_idx", &[Data::I64], 2)? {
        p::shaped(OP, t, &[tokens, k], "as many ids as `num_topk` a token")?;
    }
    if let Some(t) = p::optional_input(OP, specs, "token_ids", &[Data::I64], 1)? {
        p::shaped(OP, t, &[tokens], "one id a token")?;
    }
    if let Some(t) = p::optional_input(OP, specs, "token_to_experts", &[Data::I32], 2)? {
        p::shaped(OP, t, &[t.shape[0], k], "as many experts as `num_topk` a vocabulary entry")?;
    }
    let shared = number("num_shared_experts", 0)?;
    let mut total = experts;
    if let Some(map) = p::optional_input(OP, specs, "to_physical_map", &[Data::I32], 2)? {
        p::shaped(OP, map, &[experts + shared, map.shape[1]], "a row an expert, shared ones included")?;
        total += map.shape[1].saturating_sub(1);
    }
    if let Some(count) = p::optional_input(OP, specs, "logical_count", &[Data::I32], 1)? {
        p::shaped(OP, count, &[experts + shared], "one entry an expert, shared ones included")?;
    }
    let (ep_rank, ep_ranks) = (number("ep_rank", 0)?, p::count(OP, params, "num_ep_ranks", Some(1))?);
    let (tp_rank, tp_ranks) = (number("tp_rank", 0)?, p::count(OP, params, "num_tp_ranks", Some(1))?);
    if tp_rank >= tp_ranks || ep_rank >= ep_ranks || total / ep_ranks == 0 {
        return Err(p::refuse(
            OP,
            format!(
                "rank {ep_rank} of {ep_ranks} and {tp_rank} of {tp_ranks} over {total} experts; expected ranks below their \
                 number and an expert for each"
            ),
        ));
    }
    Ok(Shape {
        tokens,
        experts,
        k,
        shared,
        scoring: match p::word(OP, params, "scoring", &["sigmoid", "sqrtsoftplus", "softmax"])? {
            "softmax" => Scoring::Softmax,
            "sqrtsoftplus" => Scoring::Sqrtsoftplus,
            _ => Scoring::Sigmoid,
        },
        groups,
        keep,
        scale: p::number(OP, params, "routed_scaling_factor", Some(1.0))?,
        ep_rank: ep_rank as i64,
        per_rank: (total / ep_ranks) as i64,
        tp_rank: tp_rank as i64,
        tp_ranks: tp_ranks as i64,
        copies: specs.contains_key("to_physical_map"),
        hash: specs.contains_key("token_ids"),
    })
}

impl OpSpec for MoeGate {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("moe_gate"),
            family: "moe",
            formula: "the k largest of σ(logits) + bias, weights σ/Σσ · scale",
            source: "DeepSeek-V3 Technical Report, 2024",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![moe_gate::kernel(), moe_gate_copies::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        Ok(vec![
            p::spec("topk_idx", Data::I64, &[s.tokens, s.k + s.shared]),
            p::spec("unmapped_topk_idx", Data::I64, &[s.tokens, s.k]),
            p::spec("topk_weights", Data::F32, &[s.tokens, s.k + s.shared]),
        ])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = if s.copies { moe_gate_copies::kernel() } else { moe_gate::kernel() };
        let mut config = p::choose(configs, &kernel, &[("t", s.tokens), ("e", s.experts), ("k", s.k)]);
        p::set(&mut config, "scoring", dsl::ConfigField::to_value(&s.scoring));
        p::set(&mut config, "groups", ConfigValue::Int(s.groups));
        p::set(&mut config, "keep", ConfigValue::Int(s.keep));
        p::set(&mut config, "given", ConfigValue::Bool(s.hash));
        // One rank owns all experts, and ids stay.
        p::set(&mut config, "local", ConfigValue::Bool(s.tp_ranks > 1 || s.copies));
        let mut args = vec![p::arg(OP, problem, "logits")?, p::arg(OP, problem, "bias")?];
        args.extend(
            ["mask", "fix_routing_mask", "fixed_topk_idx", "token_ids", "token_to_experts"]
                .map(|name| p::optional_arg(problem, name)),
        );
        if s.copies {
            args.extend([p::arg(OP, problem, "to_physical_map")?, p::arg(OP, problem, "logical_count")?]);
        }
        for name in ["topk_idx", "unmapped_topk_idx", "topk_weights"] {
            args.push(p::arg(OP, problem, name)?);
        }
        args.push(Arg::Scalar(Literal::f32(s.scale as f32)));
        if s.copies {
            args.push(Arg::Scalar(Literal { dtype: Data::I64, bits: s.ep_rank as u64 }));
        }
        args.extend([s.per_rank, s.tp_rank, s.tp_ranks].map(|x| Arg::Scalar(Literal::i32(x as i32))));
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (z, bias) = (p::numbers(OP, problem, "logits")?, p::numbers(OP, problem, "bias")?);
        let given = |name: &str| p::integers(problem, name);
        let (mask, fixed_rows, fixed) = (given("mask"), given("fix_routing_mask"), given("fixed_topk_idx"));
        let (tokens, table) = (given("token_ids"), given("token_to_experts"));
        let (map, copies) = (given("to_physical_map"), given("logical_count"));
        if let (Some(map), Some(copies)) = (&map, &copies) {
            let width = (map.len() / copies.len().max(1)) as i64;
            if let Some(c) = copies.iter().find(|c| !(1..=width).contains(*c)) {
                return Err(p::refuse(
                    OP,
                    format!("`logical_count` holds {c}; expected 1 to {width}, the copies in `to_physical_map`"),
                ));
            }
        }
        let (mut ids, mut logical, mut weights) = (vec![], vec![], vec![]);
        for t in 0..s.tokens {
            let (best, all) = reference(&z[t * s.experts..][..s.experts], &bias, s.scoring, s.k, s.groups, s.keep);
            let mut chosen: Vec<i64> = best.iter().map(|&i| i as i64).collect();
            if let (Some(tokens), Some(table)) = (&tokens, &table) {
                let row = table.chunks(s.k).nth(usize::try_from(tokens[t]).unwrap_or(usize::MAX));
                chosen = row.map_or(vec![-1; s.k], <[i64]>::to_vec);
            }
            if let (Some(rows), Some(fixed)) = (&fixed_rows, &fixed)
                && rows[t] != 0
            {
                chosen = fixed[t * s.k..][..s.k].to_vec();
            }
            let real = |id: &i64| *id >= 0 && *id < s.experts as i64;
            let chosen: Vec<i64> = chosen.into_iter().map(|id| if real(&id) { id } else { -1 }).collect();
            let own: Vec<f64> = chosen.iter().map(|id| if real(id) { all[*id as usize] } else { 0.0 }).collect();
            let total: f64 = own.iter().sum::<f64>() + 1e-20;
            let open = mask.as_ref().is_none_or(|m| m[t] != 0);
            logical.extend(chosen.iter().map(|&id| if open { id } else { -1 }));
            let shared = (0..s.shared).map(|i| (s.experts + i) as i64);
            for id in chosen.iter().copied().chain(shared) {
                let physical = match (&map, &copies) {
                    (Some(map), Some(copies)) if id >= 0 => {
                        let width = map.len() / copies.len();
                        map[id as usize * width + ((s.ep_rank + t as i64 * 23333) % copies[id as usize]) as usize]
                    }
                    _ => id,
                };
                ids.push(if open { local(physical, s.per_rank, s.tp_rank, s.tp_ranks) } else { -1 });
            }
            let own = own.iter().map(|x| x / total * s.scale).chain(vec![1.0; s.shared]);
            weights.extend(own.map(|w| if open { w } else { 0.0 }));
        }
        Ok([
            ("topk_idx".into(), i64_tensor(&[s.tokens, s.k + s.shared], &ids)),
            ("unmapped_topk_idx".into(), i64_tensor(&[s.tokens, s.k], &logical)),
            ("topk_weights".into(), f32_tensor(&[s.tokens, s.k + s.shared], &weights)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        // With copies a token's number matters.
        let Some(s) = shape_of(specs, params).ok().filter(|s| !s.copies) else { return vec![] };
        let cut = [
            "logits",
            "mask",
            "fix_routing_mask",
            "fixed_topk_idx",
            "token_ids",
            "topk_idx",
            "unmapped_topk_idx",
            "topk_weights",
        ];
        vec![p::split("tokens", s.tokens, 1, &cut.map(|name| (name, 0, 1)))]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "topk_weights" => Tolerance::AllCloseOr { abs: 1e-7, rel: 2e-6, cos_diff: None },
            _ => Tolerance::BitExact,
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, e, k]: [usize; 3], scoring: &str, logits: Fill, params: &[(&str, ParamValue)]| {
            let mut all = vec![("num_topk", ParamValue::Int(k as i64)), ("scoring", ParamValue::Text(scoring.into()))];
            all.extend(params.iter().cloned());
            let inputs = vec![
                p::filled("logits", Data::F32, &[t, e], logits),
                p::filled("bias", Data::F32, &[e], Fill::Normal(0.5)),
            ];
            p::case(id, inputs, &all)
        };
        let with = |mut case: Case, name: &str, dtype, shape: &[usize], fill: Fill| {
            case.inputs.push(p::filled(name, dtype, shape, fill));
            case
        };
        let param = |name: &'static str, x: i64| (name, ParamValue::Int(x));
        let groups = |g, keep| [param("num_groups", g), param("num_topk_groups", keep)];
        let steps = |n: usize, m: usize| Fill::Values((0..n).map(|i| (i * 7 % m) as f64 * 0.5 - 1.0).collect());
        let normal = || Fill::Normal(1.0);
        let no_bias = |mut case: Case| {
            case.inputs[1].fill = Fill::Constant(0.0);
            case
        };
        let fixed = |case| {
            let case =
                with(case, "fix_routing_mask", Data::Bool, &[6], Fill::Values(vec![0.0, 1.0, 1.0, 0.0, 0.0, 1.0]));
            let ids = (0..24).map(|i| if i == 5 { -1.0 } else { (i * 5 % 60) as f64 }).collect();
            let case = with(case, "fixed_topk_idx", Data::I64, &[6, 4], Fill::Values(ids));
            with(case, "mask", Data::Bool, &[6], Fill::Values(vec![1.0, 1.0, 0.0, 0.0, 1.0, 1.0]))
        };
        let copies = |case| {
            let case = with(case, "to_physical_map", Data::I32, &[62, 3], Fill::Uniform(0.0, 62.0));
            with(case, "logical_count", Data::I32, &[62], Fill::Uniform(1.0, 4.0))
        };
        let hash = |case| {
            let ids = Fill::Values(vec![3.0, 0.0, 9.0, -1.0, 10.0, 7.0]);
            let case = with(case, "token_ids", Data::I64, &[6], ids);
            with(case, "token_to_experts", Data::I32, &[10, 4], Fill::Uniform(0.0, 60.0))
        };
        let tp = [
            param("num_shared_experts", 2),
            param("num_ep_ranks", 2),
            param("ep_rank", 1),
            param("num_tp_ranks", 2),
            param("tp_rank", 1),
        ];
        vec![
            make("no_tokens", [0, 64, 6], "sigmoid", normal(), &[]),
            make("sigmoid_t37_e256_k8_groups", [37, 256, 8], "sigmoid", normal(), &groups(8, 4)),
            make("softmax_t9_e72_k6", [9, 72, 6], "softmax", Fill::Normal(3.0), &[]),
            make("softplus_t5_e36_k1_odd", [5, 36, 1], "sqrtsoftplus", Fill::Normal(30.0), &[]),
            make("softmax_e384_k8", [3, 384, 8], "softmax", normal(), &[]),
            make("e7_all_chosen", [4, 7, 7], "sigmoid", normal(), &[]),
            no_bias(make("ties_in_groups", [6, 64, 4], "sigmoid", steps(384, 5), &groups(8, 3))),
            no_bias(make("all_equal", [3, 96, 6], "sqrtsoftplus", Fill::Constant(-0.0), &groups(4, 2))),
            copies(fixed(make("fixed_copies_tp", [6, 60, 4], "sigmoid", normal(), &tp))),
            fixed(make("fixed_tp", [6, 60, 4], "softmax", normal(), &tp)),
            hash(make("hash", [6, 60, 4], "sqrtsoftplus", normal(), &[])),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "experts", "topk", "groups", "keep"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 5]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 256, 8, 8, 4], [16384, 256, 8, 8, 4], [16384, 256, 8, 1, 1], [16384, 384, 6, 1, 1]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, e, k, groups, keep] = p::bench_sizes(OP, shape, ["tokens", "experts", "topk", "groups", "keep"])?;
        let inputs = vec![
            p::filled("logits", Data::F32, &[t, e], Fill::Normal(1.0)),
            p::filled("bias", Data::F32, &[e], Fill::Normal(0.1)),
        ];
        let int = |x: usize| ParamValue::Int(x as i64);
        let params = [("num_topk", int(k)), ("num_groups", int(groups)), ("num_topk_groups", int(keep))];
        Ok(p::case(format!("tokens{t}_experts{e}_topk{k}_groups{groups}_keep{keep}"), inputs, &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
