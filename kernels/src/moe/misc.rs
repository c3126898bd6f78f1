//! The small operations around a gate: counts of experts, ids of a tensor-parallel rank, unique groups, normalised weights.
//!
//! *Counts*: `group_count[e]` is how often `topk_idx` names `e`; `aux_fi[e] = group_count[e] · num_experts / (t · num_aux_topk)`,
//! 0 without tokens. *Local ids*: with `per = n / num_ep_ranks` and `span = per · num_tp_ranks`, an expert belongs to this rank if
//! `⌊id/per⌋ mod num_tp_ranks = tp_rank`; with `v = id − tp_rank·per` its local id is `v − ⌊v/span⌋·(span − per)`, any other
//! gives -1. *Unique groups*: of equal non-negative entries of a row of `group_idx` the first stays, later ones become -1.
//! *Weights*: `denominator[t] = 1e-20 + Σ weights[t]` in slot order, `normalized = weights / denominator`.
//!
//! *Tensors*: `topk_idx` `[t, k]` i64 gives `group_count` i32 and `aux_fi` f32 `[num_experts]`, `masked_idx` `[t, k]` i64;
//! `group_idx` `[t, k]` i64 gives `unique_group_idx` `[t, k]` i64; `weights` `[t, k]` f32 gives `denominator` `[t]` and
//! `normalized` `[t, k]` f32. Each input may be left out, and its outputs with it.
//! *Cost*: each tensor is read once.  *Numerics*: integers; f32 sums one slot after another, quotients correctly rounded.
//! *Schedule*: one launch for each of the four, but two for counts: blocks count their part, then the parts are added up.
//! *Source*: the published interface of TileKernels.

use super::fused_mapping::{field, spread_steps};
use super::local_id::{local, local_id};
use crate::numeric::round::{f32_tensor, i32_tensor, i64_tensor};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How counts are spread over blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct CountConfig {
    /// Warps of a block.
    #[tune(8, 16)]
    pub warps: usize,
    /// Blocks at most: what each counted is added up.
    #[tune(128, 64)]
    pub blocks: usize,
    /// Steps of a block.
    #[default(1)]
    pub steps: usize,
}

/// How elements are spread over blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct SlotConfig {
    /// Elements or rows of a block.
    #[tune(256, 128)]
    pub block: usize,
}

/// Bins of a block that adds up, and threads for each of them.
const BINS: usize = 64;
const SEGMENTS: usize = 8;

/// The grid of a kernel that adds up what blocks counted for each bin: hands each sum to `put`.
#[kernel_fn]
pub(super) fn add_up<F: Fn(Ix, V<I32>)>(parts: Gm<I32, 2>, blocks: Ix, bins: usize, put: F) {
    warps(BINS * SEGMENTS / 32);
    let x0 = grid(bins.div_ceil(BINS)) * BINS;
    let sums = shared::<I32, 2>([SEGMENTS, BINS]);
    for (g, l) in parallel([SEGMENTS, BINS]) {
        let each = blocks.div_ceil(SEGMENTS);
        let mut sum = 0i32;
        for o in (g * each).min(blocks)..((g + 1) * each).min(blocks) {
            sum += parts.get_or((o, x0 + l), 0);
        }
        sums[(g, l)] = sum;
    }
    for l in parallel([BINS]) {
        let mut total = 0i32;
        for g in 0..SEGMENTS {
            total += sums[(g, l)];
        }
        let total = total;
        put(x0 + l, total);
    }
}

/// Counts each block's ids.
#[kernel(dims(e: fixed), deterministic)]
pub fn count_ids(cfg: &CountConfig, ids: In![I64; slots], parts: Out![I32; blocks, e]) {
    warps(cfg.warps);
    let step = cfg.warps * 32;
    let b = grid(blocks);
    let own = shared::<U32, 1>([e]);
    zero(own);
    for c in 0..cfg.steps {
        for i in parallel([step]) {
            let id = ids.get_or((b * cfg.steps + c) * step + i, -1);
            if id >= 0 && id < e as i64 {
                own.atomic_add(id.clamp_index(0, e - 1), 1);
            }
        }
    }
    for x in parallel([e]) {
        parts[(b, x)] = own[x].to::<I32>();
    }
}

/// Adds up counts, and gives their shares.
#[kernel(dims(e: fixed), deterministic)]
pub fn group_count(
    _cfg: &CountConfig,
    parts: In![I32; blocks, e],
    count: Out![I32; e],
    aux: Out![F32; e],
    share: Scalar![F32],
) {
    add_up(parts, blocks, e, |x: Ix, total: V<I32>| {
        count.put(x, total);
        aux.put(x, total.to::<F32>() * share);
    });
}

/// Ids of experts as ids of this rank.
#[kernel(deterministic, batch_invariant(n))]
pub fn mask_indices_by_tp(
    cfg: &SlotConfig,
    ids: In![I64; n],
    out: Out![I64; n],
    per_rank: Scalar![I32],
    tp_rank: Scalar![I32],
    tp_ranks: Scalar![I32],
) {
    let i0 = grid(n.div_ceil(cfg.block)) * cfg.block;
    for i in parallel([cfg.block]) {
        let id = ids[i0 + i];
        // Ids past 32 bits name no expert.
        let id = select(id >= 0 && id <= i64::from(i32::MAX), id, -1i64).to::<I32>();
        out[i0 + i] = local_id(id, per_rank, tp_rank, tp_ranks).to::<I64>();
    }
}

/// Later duplicates of a row become -1.
#[kernel(dims(k: fixed), deterministic, batch_invariant(t))]
pub fn unique_groups(cfg: &SlotConfig, groups: In![I64; t, k], out: Out![I64; t, k]) {
    let r0 = grid(t.div_ceil(cfg.block)) * cfg.block;
    for (i, j) in parallel([cfg.block, k]) {
        let own = groups[(r0 + i, j)];
        let mut seen = 0i32;
        for o in 0..j {
            seen += select(groups[(r0 + i, o)] == own, 1, 0);
        }
        out[(r0 + i, j)] = select(seen > 0, -1i64, own);
    }
}

/// Weights of a row by their sum.
#[kernel(dims(k: fixed), deterministic, batch_invariant(t))]
pub fn normalize_weight(cfg: &SlotConfig, weights: In![F32; t, k], sum: Out![F32; t], out: Out![F32; t, k]) {
    let r0 = grid(t.div_ceil(cfg.block)) * cfg.block;
    for i in parallel([cfg.block]) {
        let mut total = 1e-20f32;
        for j in 0..k {
            total += weights[(r0 + i, j)];
        }
        sum[r0 + i] = total;
        for j in 0..k {
            out[(r0 + i, j)] = weights[(r0 + i, j)] / total;
        }
    }
}

/// Rows with later duplicates as -1.
fn unique(row: &[i64]) -> Vec<i64> {
    (0..row.len()).map(|j| if row[..j].contains(&row[j]) { -1 } else { row[j] }).collect()
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MoeMisc;

const OP: &str = "moe_misc";

/// What a problem asks for.
struct Shape {
    /// Shapes of `topk_idx`, `group_idx` and `weights`.
    ids: Option<[usize; 2]>,
    groups: Option<[usize; 2]>,
    weights: Option<[usize; 2]>,
    experts: usize,
    aux_topk: usize,
    per_rank: i64,
    tp_rank: i64,
    tp_ranks: i64,
}

impl Shape {
    /// Factor from a count to its share.
    fn share(&self) -> f64 {
        let tokens = self.ids.map_or(0, |s| s[0]);
        if tokens == 0 { 0.0 } else { self.experts as f64 / (tokens as f64 * self.aux_topk as f64) }
    }
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let pair = |name: &str, dtype| -> Result<Option<[usize; 2]>, OpError> {
        Ok(p::optional_input(OP, specs, name, &[dtype], 2)?.map(|t| [t.shape[0], t.shape[1]]))
    };
    let (ids, groups, weights) =
        (pair("topk_idx", Data::I64)?, pair("group_idx", Data::I64)?, pair("weights", Data::F32)?);
    if ids.is_none() && groups.is_none() && weights.is_none() {
        return Err(p::refuse(OP, "needs one of the inputs `topk_idx`, `group_idx` and `weights`; got none"));
    }
    let all = [("topk_idx", ids), ("group_idx", groups), ("weights", weights)];
    if let Some((name, _)) = all.iter().find(|(_, s)| s.is_some_and(|s| s[1] == 0)) {
        return Err(p::refuse(OP, format!("input `{name}` has no slots; expected at least one a token")));
    }
    let experts = p::count(OP, params, "num_experts", ids.is_none().then_some(1))?;
    let n = p::count(OP, params, "n", Some(experts))?;
    let (ep_ranks, tp_ranks) =
        (p::count(OP, params, "num_ep_ranks", Some(1))?, p::count(OP, params, "num_tp_ranks", Some(1))?);
    let tp_rank = p::natural(OP, params, "tp_rank", 0)?;
    if tp_rank >= tp_ranks || n / ep_ranks == 0 || experts > 8192 {
        return Err(p::refuse(
            OP,
            format!(
                "`tp_rank` {tp_rank} of {tp_ranks}, {n} ids over {ep_ranks} ranks, {experts} experts; expected a rank below \
                 their number, an id for each, and at most 8192 experts"
            ),
        ));
    }
    let slots = ids.map_or(1, |s| s[1]);
    Ok(Shape {
        ids,
        groups,
        weights,
        experts,
        aux_topk: p::count(OP, params, "num_aux_topk", Some(slots))?,
        per_rank: (n / ep_ranks) as i64,
        tp_rank: tp_rank as i64,
        tp_ranks: tp_ranks as i64,
    })
}

impl OpSpec for MoeMisc {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "moe",
            formula: "counts of experts, local ids, unique groups, normalised weights",
            source: "interface of TileKernels",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![
            count_ids::kernel(),
            group_count::kernel(),
            mask_indices_by_tp::kernel(),
            unique_groups::kernel(),
            normalize_weight::kernel(),
        ]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let mut outputs = vec![];
        if let Some(shape) = s.ids {
            outputs.push(p::spec("group_count", Data::I32, &[s.experts]));
            outputs.push(p::spec("aux_fi", Data::F32, &[s.experts]));
            outputs.push(p::spec("masked_idx", Data::I64, &shape));
        }
        if let Some(shape) = s.groups {
            outputs.push(p::spec("unique_group_idx", Data::I64, &shape));
        }
        if let Some(shape) = s.weights {
            outputs.push(p::spec("denominator", Data::F32, &shape[..1]));
            outputs.push(p::spec("normalized", Data::F32, &shape));
        }
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let flat =
            |name: &str| -> Result<Arg, OpError> { Ok(Arg::Tensor(p::flat(OP, name, p::view(OP, problem, name)?)?)) };
        let (mut steps, mut workspaces) = (vec![], vec![]);
        let mut launch =
            |kernel: Arc<dyn KernelDef>, config: Config, args: Vec<Arg>| steps.push(Launch { kernel, config, args });
        if let Some([t, k]) = s.ids {
            let kernel = group_count::kernel();
            let mut config = p::choose(configs, &kernel, &[("slots", t * k), ("e", s.experts)]);
            let (blocks, each) = spread_steps(t * k, field(&config, "warps") * 32, field(&config, "blocks"));
            p::set(&mut config, "steps", ConfigValue::Int(each));
            workspaces.push(blocks * s.experts * 4);
            let parts = Arg::Workspace { index: 0, dtype: Data::I32, shape: vec![blocks, s.experts], offset_bytes: 0 };
            let (count, aux) = (p::arg(OP, problem, "group_count")?, p::arg(OP, problem, "aux_fi")?);
            launch(count_ids::kernel(), config.clone(), vec![flat("topk_idx")?, parts.clone()]);
            launch(kernel, config, vec![parts, count, aux, Arg::Scalar(Literal::f32(s.share() as f32))]);
            let kernel = mask_indices_by_tp::kernel();
            let config = p::choose(configs, &kernel, &[("n", t * k)]);
            let ranks = [s.per_rank, s.tp_rank, s.tp_ranks].map(|x| Arg::Scalar(Literal::i32(x as i32)));
            launch(kernel, config, [flat("topk_idx")?, flat("masked_idx")?].into_iter().chain(ranks).collect());
        }
        if let Some([t, k]) = s.groups {
            let kernel = unique_groups::kernel();
            let config = p::choose(configs, &kernel, &[("t", t), ("k", k)]);
            launch(kernel, config, vec![p::arg(OP, problem, "group_idx")?, p::arg(OP, problem, "unique_group_idx")?]);
        }
        if let Some([t, k]) = s.weights {
            let kernel = normalize_weight::kernel();
            let config = p::choose(configs, &kernel, &[("t", t), ("k", k)]);
            let mut args = vec![];
            for name in ["weights", "denominator", "normalized"] {
                args.push(p::arg(OP, problem, name)?);
            }
            launch(kernel, config, args);
        }
        Ok(Plan { steps, workspaces })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let mut outputs: BTreeMap<String, HostTensor> = BTreeMap::new();
        if let (Some(shape), Some(ids)) = (s.ids, p::integers(problem, "topk_idx")) {
            let count = |e: usize| ids.iter().filter(|&&id| id == e as i64).count();
            let counts: Vec<i32> = (0..s.experts).map(|e| count(e) as i32).collect();
            let aux: Vec<f64> = counts.iter().map(|&c| f64::from(c) * s.share()).collect();
            let own: Vec<i64> = ids.iter().map(|&id| local(id, s.per_rank, s.tp_rank, s.tp_ranks)).collect();
            outputs.insert("group_count".into(), i32_tensor(&[s.experts], &counts));
            outputs.insert("aux_fi".into(), f32_tensor(&[s.experts], &aux));
            outputs.insert("masked_idx".into(), i64_tensor(&shape, &own));
        }
        if let (Some(shape), Some(groups)) = (s.groups, p::integers(problem, "group_idx")) {
            let rows: Vec<i64> = groups.chunks(shape[1]).flat_map(unique).collect();
            outputs.insert("unique_group_idx".into(), i64_tensor(&shape, &rows));
        }
        if let Some(shape) = s.weights {
            let w = p::numbers(OP, problem, "weights")?;
            let sums: Vec<f64> = w.chunks(shape[1]).map(|row| 1e-20 + row.iter().sum::<f64>()).collect();
            let shares: Vec<f64> = w.iter().enumerate().map(|(i, x)| x / sums[i / shape[1]]).collect();
            outputs.insert("denominator".into(), f32_tensor(&shape[..1], &sums));
            outputs.insert("normalized".into(), f32_tensor(&shape, &shares));
        }
        Ok(outputs)
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            // Sums of up to 32 numbers and a quotient: a few units in the last place.
            "aux_fi" | "denominator" | "normalized" => Tolerance::AllCloseOr { abs: 0.0, rel: 1e-6, cos_diff: None },
            _ => Tolerance::BitExact,
        }
    }
    fn cases(&self) -> Vec<Case> {
        let param = |name: &'static str, x: i64| (name, ParamValue::Int(x));
        let ids = |t: usize, k: usize, e: f64| p::filled("topk_idx", Data::I64, &[t, k], Fill::Uniform(-e / 4.0, e));
        let groups = |t: usize, k: usize, fill: Fill| p::filled("group_idx", Data::I64, &[t, k], fill);
        let weights = |t: usize, k: usize, fill: Fill| p::filled("weights", Data::F32, &[t, k], fill);
        let tp = [param("num_experts", 24), param("num_ep_ranks", 4), param("num_tp_ranks", 2), param("tp_rank", 1)];
        vec![
            p::case(
                "no_tokens",
                vec![ids(0, 6, 24.0), groups(0, 6, Fill::Constant(0.0)), weights(0, 6, Fill::Normal(1.0))],
                &[param("num_experts", 24)],
            ),
            p::case("ids_t701_k8_tp", vec![ids(701, 8, 24.0)], &tp),
            p::case(
                "ids_of_300_experts",
                vec![ids(97, 3, 300.0)],
                &[param("num_experts", 300), param("num_aux_topk", 2)],
            ),
            p::case("repeated_groups", vec![groups(300, 8, Fill::Uniform(-2.0, 4.0))], &[]),
            p::case("one_group", vec![groups(3, 1, Fill::Constant(7.0))], &[]),
            p::case("weights_t257_k8", vec![weights(257, 8, Fill::Uniform(0.0, 1.0))], &[]),
            p::case("zero_weights", vec![weights(5, 6, Fill::Constant(0.0))], &[]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
