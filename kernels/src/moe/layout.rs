//! Layout of an expert-parallel dispatch: to which ranks each token goes, and how many each rank, node and expert gets.
//!
//! Expert `e` lives on rank `⌊e / (num_experts / num_ranks)⌋`, `ranks_per_node` ranks on a node. `is_token_in_rank[t, r]` is true
//! if a slot of token `t` names an expert of rank `r`; a token counts once for a rank and once for a node, but once a slot for
//! an expert. Ids that name no expert are ignored.
//!
//! *Tensors*: `topk_idx` `[t, k]` i64; `is_token_in_rank` `[t, num_ranks]` bool; `num_tokens_per_rank` `[num_ranks]`,
//! `num_tokens_per_node` `[max(num_ranks / ranks_per_node, 1)]`, `num_tokens_per_expert` `[num_experts]` i32.
//! *Cost*: one read of the ids, one byte a token and rank.  *Numerics*: integers.
//! *Schedule*: two launches: blocks count their tokens, then what all counted is added up.
//! *Source*: the published interface of DeepEP.

use super::fused_mapping::{field, spread_steps};
use super::misc::add_up;
use crate::numeric::round::i32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How tokens are spread over blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct LayoutConfig {
    /// Warps of a block; a step takes one token a thread.
    #[tune(8, 4)]
    pub warps: usize,
    /// Blocks at most: what each counted is added up.
    #[tune(128, 64)]
    pub blocks: usize,
    /// Steps of a block.
    #[default(1)]
    pub steps: usize,
    /// Nodes.
    #[default(1)]
    pub nodes: usize,
}

/// Finds the ranks of tokens, and counts each block's tokens of ranks, nodes and experts, which are bins one after another.
#[kernel(dims(k: fixed, ranks: fixed, bins: fixed), deterministic)]
pub fn ep_layout_count(
    cfg: &LayoutConfig,
    ids: In![I64; t, k],
    parts: Out![I32; blocks, bins],
    in_rank: Out![Bool; t, ranks],
    node_ranks: Scalar![I32],
) {
    warps(cfg.warps);
    let step = cfg.warps * 32;
    let b = grid(blocks);
    let nodes = cfg.nodes;
    let e = host!(bins.saturating_sub(ranks + nodes).max(1));
    let own = shared::<U32, 1>([bins]);
    zero(own);
    let experts = e / ranks;
    let named = shared::<I32, 2>([step, k]);
    for c in 0..cfg.steps {
        let t0 = (b * cfg.steps + c) * step;
        for (i, s) in parallel([step, k]) {
            let id = ids.get_or((t0 + i, s), -1);
            let id = select(id >= 0 && id < e as i64, id, -1i64).to::<I32>();
            named[(i, s)] = id;
            if id >= 0 {
                own.atomic_add(id.clamp_index(0, e - 1) + (ranks + nodes), 1);
            }
        }
        for (i, r) in parallel([step, ranks]) {
            let hit = names_one(named, i, r, lit(experts as i32));
            in_rank[(t0 + i, r)] = hit;
            if hit {
                own.atomic_add(r, 1);
            }
        }
        for (i, n) in parallel([step, nodes]) {
            if names_one(named, i, n, node_ranks * experts as i32) {
                own.atomic_add(n + ranks, 1);
            }
        }
    }
    for x in parallel([bins]) {
        parts[(b, x)] = own[x].to::<I32>();
    }
}

/// Whether a token names an expert of part `n` of the experts, cut every `span`.
#[kernel_fn]
fn names_one(named: Tile<I32, Shared, 2>, token: Ix, n: Ix, span: V<I32>) -> V<Bool> {
    let lo = n.value() * span;
    let mut hits = 0i32;
    for s in 0..named.extent(1) {
        let id = named[(token, s)];
        hits += select(id >= lo && id < lo + span, 1, 0);
    }
    hits > 0
}

/// Adds up what blocks counted.
#[kernel(dims(ranks: fixed, nodes: fixed, e: fixed), deterministic)]
pub fn ep_layout_sum(
    _cfg: &LayoutConfig,
    parts: In![I32; blocks, ranks + nodes + e],
    per_rank: Out![I32; ranks],
    per_node: Out![I32; nodes],
    per_expert: Out![I32; e],
) {
    add_up(parts, blocks, ranks + nodes + e, |x: Ix, total: V<I32>| {
        per_rank.put(x, total);
        per_node.put(x - ranks, total);
        per_expert.put(x - (ranks + nodes), total);
    });
}

/// Ranks of each token, and tokens of each rank, node and expert.
pub fn reference(
    ids: &[i64],
    k: usize,
    experts: usize,
    ranks: usize,
    node: usize,
    nodes: usize,
) -> (Vec<bool>, [Vec<i32>; 3]) {
    let of = |row: &[i64], size: usize, n: usize| {
        row.iter().any(|&id| id >= 0 && id < experts as i64 && id as usize / size == n)
    };
    let rows: Vec<&[i64]> = ids.chunks(k).collect();
    let size = experts / ranks;
    let inside = rows.iter().flat_map(|row| (0..ranks).map(|r| of(row, size, r))).collect();
    let tokens = |size: usize, n: usize| rows.iter().filter(|row| of(row, size, n)).count() as i32;
    let per_rank = (0..ranks).map(|r| tokens(size, r)).collect();
    let per_node = (0..nodes).map(|n| tokens(size * node, n)).collect();
    let per_expert = (0..experts).map(|e| ids.iter().filter(|&&id| id == e as i64).count() as i32).collect();
    (inside, [per_rank, per_node, per_expert])
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct EpDispatchLayout;

const OP: &str = "ep_dispatch_layout";
const COUNTS: [&str; 3] = ["num_tokens_per_rank", "num_tokens_per_node", "num_tokens_per_expert"];

/// What a problem asks for.
struct Shape {
    tokens: usize,
    k: usize,
    experts: usize,
    ranks: usize,
    node: usize,
    nodes: usize,
}

impl Shape {
    fn bins(&self) -> [usize; 3] {
        [self.ranks, self.nodes, self.experts]
    }
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let ids = p::input(OP, specs, "topk_idx", &[Data::I64], 2)?;
    let count = |name: &str, default| p::count(OP, params, name, default);
    let (experts, ranks, node) =
        (count("num_experts", None)?, count("num_ranks", None)?, count("ranks_per_node", Some(8))?);
    let k = ids.shape[1];
    if !experts.is_multiple_of(ranks) || experts > 4096 || k == 0 || k > 32 {
        return Err(p::refuse(
            OP,
            format!(
                "{experts} experts on {ranks} ranks, {k} slots a token; expected as many experts on each rank, at most 4096, \
                 and 1 to 32 slots"
            ),
        ));
    }
    // A node of more ranks than there are is the one node of all.
    let node = node.min(ranks);
    Ok(Shape { tokens: ids.shape[0], k, experts, ranks, node, nodes: (ranks / node).max(1) })
}

impl OpSpec for EpDispatchLayout {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("ep_dispatch_layout"),
            family: "moe",
            formula: "ranks of each token; tokens of each rank, node and expert",
            source: "interface of DeepEP",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![ep_layout_count::kernel(), ep_layout_sum::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let mut outputs = vec![p::spec("is_token_in_rank", Data::Bool, &[s.tokens, s.ranks])];
        outputs.extend(COUNTS.iter().zip(s.bins()).map(|(n, x)| p::spec(n, Data::I32, &[x])));
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let (count, sum) = (ep_layout_count::kernel(), ep_layout_sum::kernel());
        let dims = [("t", s.tokens), ("k", s.k), ("ranks", s.ranks), ("e", s.experts)];
        let mut config = p::choose(configs, &count, &dims);
        let (blocks, steps) = spread_steps(s.tokens, field(&config, "warps") * 32, field(&config, "blocks"));
        p::set(&mut config, "steps", ConfigValue::Int(steps));
        p::set(&mut config, "nodes", ConfigValue::Int(s.nodes));
        let bins: usize = s.bins().iter().sum();
        let parts = Arg::Workspace { index: 0, dtype: Data::I32, shape: vec![blocks, bins], offset_bytes: 0 };
        let node = Arg::Scalar(Literal { dtype: Data::I32, bits: s.node as u64 });
        let args =
            vec![p::arg(OP, problem, "topk_idx")?, parts.clone(), p::arg(OP, problem, "is_token_in_rank")?, node];
        let first = Launch { kernel: count, config: config.clone(), args };
        let mut args = vec![parts];
        for name in COUNTS {
            args.push(p::arg(OP, problem, name)?);
        }
        Ok(Plan { steps: vec![first, Launch { kernel: sum, config, args }], workspaces: vec![blocks * bins * 4] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let ids = p::integers(problem, "topk_idx").unwrap_or_default();
        let (inside, counts) = reference(&ids, s.k, s.experts, s.ranks, s.node, s.nodes);
        let data = inside.iter().map(|&b| u8::from(b)).collect();
        let inside = HostTensor { dtype: Data::Bool, shape: vec![s.tokens, s.ranks], data };
        let counts = COUNTS.iter().zip(&counts).map(|(n, x)| (n.to_string(), i32_tensor(&[x.len()], x)));
        Ok(counts.chain([("is_token_in_rank".to_string(), inside)]).collect())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, k, e, ranks, node]: [usize; 5], fill: Fill| {
            let params = [("num_experts", e), ("num_ranks", ranks), ("ranks_per_node", node)];
            let params = params.map(|(n, x)| (n, ParamValue::Int(x as i64)));
            p::case(id, vec![p::filled("topk_idx", Data::I64, &[t, k], fill)], &params)
        };
        let sparse = |e: usize| Fill::Uniform(-(e as f64) / 4.0, e as f64 * 1.02);
        vec![
            make("no_tokens", [0, 4, 32, 8, 8], Fill::Constant(0.0)),
            make("t700_k8_e256_r16", [700, 8, 256, 16, 8], sparse(256)),
            make("few_ranks", [300, 6, 12, 4, 8], sparse(12)),
            make("rank_an_expert", [33, 1, 24, 24, 8], sparse(24)),
            make("ranks_past_the_last_node", [50, 4, 36, 12, 8], sparse(36)),
            make("node_past_all_ranks", [50, 4, 32, 8, i32::MAX as usize], sparse(32)),
            make("all_dropped", [40, 4, 32, 8, 8], Fill::Constant(-1.0)),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "topk", "experts", "ranks"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 4]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 8, 256, 8], [16384, 8, 256, 16], [16384, 8, 256, 64]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, k, e, ranks] = p::bench_sizes(OP, shape, ["tokens", "topk", "experts", "ranks"])?;
        let ids = p::filled("topk_idx", Data::I64, &[t, k], Fill::Uniform(0.0, e as f64));
        let params = [("num_experts", ParamValue::Int(e as i64)), ("num_ranks", ParamValue::Int(ranks as i64))];
        Ok(p::case(format!("tokens{t}_topk{k}_experts{e}_ranks{ranks}"), vec![ids], &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
