//! Order of rows for grouped products: every routed slot of every token gets a position among those of its expert.
//!
//! Expert `e` owns the positions `expert_start[e] .. expert_end[e]`, as many as it has slots, rounded up to `alignment`; inside,
//! slots stand in ascending order of `token·k + slot`, so no position depends on timing. `pos_to_expert`, `pos_to_token` and
//! `pos_to_token_topk` (that flat slot) describe positions, -1 for padding; `token_topk_to_pos` is the inverse, -1 for slots
//! without expert.
//!
//! *Tensors*: `topk_idx` `[t, k]` i64, ids outside `0 .. num_experts` count as none; all outputs i32: `expert_start`,
//! `expert_end`, `num_tokens_per_expert` (rounded up) `[num_experts]`; `pos_to_*` `[n]`; `token_topk_to_pos` `[t, k]`.
//! `n` is the parameter `num_expanded_tokens`, or the most that can be needed, `⌊(t·k + (alignment−1)·experts)/alignment⌋ ·
//! alignment`; what is not needed is padding at the end.
//! *Cost*: latency: ids are read twice.  *Numerics*: integers.
//! *Schedule*: two launches. Blocks count their part of the slots; then each adds up the counts of the blocks before it and
//! places its slots, by counts of windows of slots and by comparing slots inside a window.
//! *Source*: the published interface of TileKernels.

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

/// How slots are spread over blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct MappingConfig {
    /// Warps of a block; a step places one slot a thread.
    #[tune(32, 16, 8)]
    pub warps: usize,
    /// Slots that are compared with each other.
    #[tune(128, 64)]
    pub window: usize,
    /// Blocks at most: each reads what all counted.
    #[tune(128, 64)]
    pub blocks: usize,
    /// Steps of a block.
    #[default(1)]
    pub steps: usize,
}

/// The expert of a slot, -1 for none.
#[kernel_fn]
fn expert_of(ids: Gm<I64, 1>, at: Ix, experts: usize) -> V<I32> {
    let id = ids.get_or(at, -1);
    select(id >= 0 && id < experts as i64, id, -1i64).to::<I32>()
}

/// Counts each block's slots of each expert, and clears all positions: what no slot overwrites afterwards is padding.
#[kernel(dims(e: fixed), deterministic)]
pub fn moe_mapping_count(
    cfg: &MappingConfig,
    ids: In![I64; slots],
    counts: Out![I32; blocks, e],
    pos_to_expert: Out![I32; n],
    pos_to_token: Out![I32; n],
    pos_to_slot: Out![I32; n],
) {
    warps(cfg.warps);
    let step = cfg.warps * 32;
    let b = grid(blocks);
    let own = shared::<U32, 1>([e]);
    zero(own);
    for c in 0..cfg.steps {
        for i in parallel([step]) {
            let id = expert_of(ids, (b * cfg.steps + c) * step + i, e);
            if id >= 0 {
                own.atomic_add(id.clamp_index(0, e - 1), 1);
            }
        }
    }
    for x in parallel([e]) {
        counts[(b, x)] = own[x].to::<I32>();
    }
    let share = n.div_ceil(blocks);
    for i in spread((b * share).min(n)..((b + 1) * share).min(n)) {
        pos_to_expert[i] = -1;
        pos_to_token[i] = -1;
        pos_to_slot[i] = -1;
    }
}

/// Places slots.
#[kernel(dims(e: fixed), deterministic)]
pub fn moe_mapping_place(
    cfg: &MappingConfig,
    ids: In![I64; slots],
    counts: In![I32; blocks, e],
    pos_to_expert: InOut![I32; n],
    pos_to_token: InOut![I32; n],
    pos_to_slot: InOut![I32; n],
    slot_to_pos: Out![I32; slots],
    start: Out![I32; e],
    end: Out![I32; e],
    size: Out![I32; e],
    topk: Scalar![I32],
    alignment: Scalar![I32],
) {
    warps(cfg.warps);
    let step = cfg.warps * 32;
    let b = grid(blocks);
    let lo = b * (step * cfg.steps);

    // Counts of all blocks and of those before this one, a few blocks a thread.
    let parts = host!((step / e).max(1));
    let (all, before) = (shared::<I32, 2>([parts, e]), shared::<I32, 2>([parts, e]));
    for (g, x) in parallel([parts, e]) {
        let each = blocks.div_ceil(parts);
        let mut total = 0i32;
        let mut earlier = 0i32;
        for o in (g * each).min(blocks)..((g + 1) * each).min(blocks) {
            let count = counts[(o, x)];
            total += count;
            earlier += select(o < b, count, 0);
        }
        all[(g, x)] = total;
        before[(g, x)] = earlier;
    }
    let sizes = frag::<I32, 1>([e]);
    for x in parallel([e]) {
        let mut total = 0i32;
        for g in 0..parts {
            total += all[(g, x)];
        }
        sizes[x] = (total + alignment - 1) / alignment * alignment;
    }
    let (starts, _all) = prefix_sum_exclusive(sizes);
    if b == 0 {
        for x in parallel([e]) {
            start[x] = starts[x];
            end[x] = starts[x] + sizes[x];
            size[x] = sizes[x];
        }
    }
    // Where the next slot of each expert goes.
    let next = shared::<I32, 1>([e]);
    for x in parallel([e]) {
        let mut at = starts[x];
        for g in 0..parts {
            at += before[(g, x)];
        }
        next[x] = at;
    }

    let windows = step / cfg.window;
    let experts = shared::<I32, 1>([step]);
    let places = shared::<U32, 2>([windows, e]);
    for c in 0..cfg.steps {
        zero(places);
        for i in parallel([step]) {
            let id = expert_of(ids, lo + c * step + i, e);
            experts[i] = id;
            if id >= 0 {
                places.atomic_add((i / cfg.window, id.clamp_index(0, e - 1)), 1);
            }
        }
        for x in parallel([e]) {
            let mut at = next[x];
            for w in 0..windows {
                let count = places[(w, x)].to::<I32>();
                places[(w, x)] = at.to::<U32>();
                at += count;
            }
            next[x] = at;
        }
        for i in parallel([step]) {
            let id = experts[i];
            let mut earlier = 0i32;
            for o in i / cfg.window * cfg.window..i {
                earlier += select(experts[o] == id, 1, 0);
            }
            let slot = lo + c * step + i;
            let first = places[(i / cfg.window, id.clamp_index(0, e - 1))].to::<I32>();
            let pos = select(id >= 0, first + earlier, -1);
            slot_to_pos[slot] = pos;
            pos_to_expert.put(pos, id);
            pos_to_token.put(pos, slot.value() / topk);
            pos_to_slot.put(pos, slot.value());
        }
    }
}

/// The maps of a routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Expert, token and flat slot of each position.
    pub positions: [Vec<i32>; 3],
    /// Position of each flat slot.
    pub of_slot: Vec<i32>,
    /// Start, end and size of each expert's range.
    pub ranges: [Vec<i32>; 3],
}

/// The maps, one slot after another.
pub fn reference(ids: &[i64], k: usize, experts: usize, alignment: usize, n: usize) -> Mapping {
    let expert = |id: i64| usize::try_from(id).ok().filter(|&e| e < experts);
    let mut m = Mapping { positions: [vec![-1; n], vec![-1; n], vec![-1; n]], ..Mapping::default() };
    m.of_slot = vec![-1; ids.len()];
    let mut from = 0;
    for e in 0..experts {
        let mine: Vec<usize> = (0..ids.len()).filter(|&s| expert(ids[s]) == Some(e)).collect();
        let size = mine.len().div_ceil(alignment) * alignment;
        for (at, &slot) in mine.iter().enumerate() {
            m.of_slot[slot] = (from + at) as i32;
            if from + at < n {
                for (map, x) in m.positions.iter_mut().zip([e, slot / k, slot]) {
                    map[from + at] = x as i32;
                }
            }
        }
        for (range, x) in m.ranges.iter_mut().zip([from, from + size, size]) {
            range.push(x as i32);
        }
        from += size;
    }
    m
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MoeFusedMapping;

const OP: &str = "moe_fused_mapping";
const POSITIONS: [&str; 3] = ["pos_to_expert", "pos_to_token", "pos_to_token_topk"];
const RANGES: [&str; 3] = ["expert_start", "expert_end", "num_tokens_per_expert"];

/// What a problem asks for.
struct Shape {
    tokens: usize,
    k: usize,
    experts: usize,
    alignment: usize,
    positions: usize,
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let ids = p::input(OP, specs, "topk_idx", &[Data::I64], 2)?;
    let [tokens, k] = [ids.shape[0], ids.shape[1]];
    let (experts, alignment) =
        (p::count(OP, params, "num_experts", None)?, p::count(OP, params, "alignment", Some(1))?);
    if experts > 1024 || k == 0 {
        return Err(p::refuse(
            OP,
            format!("{experts} experts, {k} slots a token; expected at most 1024 and at least 1"),
        ));
    }
    let most = (tokens * k + (alignment - 1) * experts) / alignment * alignment;
    if most > i32::MAX as usize {
        return Err(p::refuse(
            OP,
            format!("{tokens} tokens of {k} slots need up to {most} positions; expected below 2^31"),
        ));
    }
    let positions = p::count(OP, params, "num_expanded_tokens", Some(most.max(1)))?;
    let positions = if params.contains_key("num_expanded_tokens") { positions } else { most };
    Ok(Shape { tokens, k, experts, alignment, positions })
}

/// Blocks of a grid over `work` items, `step` at a time, and the steps of each: a power of two, so that few sizes are
/// built.
pub(super) fn spread_steps(work: usize, step: usize, most_blocks: usize) -> (usize, usize) {
    let steps = work.div_ceil((step * most_blocks).max(1)).max(1).next_power_of_two();
    (work.div_ceil(step * steps).max(1), steps)
}

/// A whole-number field of a configuration.
pub(super) fn field(config: &kiln_codegen::tune::Config, name: &str) -> usize {
    match config.0.get(name) {
        Some(ConfigValue::Int(x)) => *x,
        _ => 1,
    }
}

impl OpSpec for MoeFusedMapping {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("moe_fused_mapping"),
            family: "moe",
            formula: "positions of routed slots, ordered by expert and slot",
            source: "interface of TileKernels",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![moe_mapping_count::kernel(), moe_mapping_place::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let mut outputs: Vec<_> = POSITIONS.iter().map(|n| p::spec(n, Data::I32, &[s.positions])).collect();
        outputs.push(p::spec("token_topk_to_pos", Data::I32, &[s.tokens, s.k]));
        outputs.extend(RANGES.iter().map(|n| p::spec(n, Data::I32, &[s.experts])));
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = moe_mapping_place::kernel();
        let slots = s.tokens * s.k;
        let mut config = p::choose(configs, &kernel, &[("slots", slots), ("e", s.experts)]);
        // Few slots need few threads; a step holds whole windows.
        p::at_most(&mut config, "warps", slots.div_ceil(32).next_power_of_two().max(4));
        let (blocks, steps) = spread_steps(slots, field(&config, "warps") * 32, field(&config, "blocks"));
        p::set(&mut config, "steps", ConfigValue::Int(steps));
        let flat =
            |name: &str| -> Result<Arg, OpError> { Ok(Arg::Tensor(p::flat(OP, name, p::view(OP, problem, name)?)?)) };
        let counts = Arg::Workspace { index: 0, dtype: Data::I32, shape: vec![blocks, s.experts], offset_bytes: 0 };
        let mut args = vec![flat("topk_idx")?, counts];
        for name in POSITIONS {
            args.push(flat(name)?);
        }
        let count = Launch { kernel: moe_mapping_count::kernel(), config: config.clone(), args: args.clone() };
        for name in ["token_topk_to_pos"].iter().chain(&RANGES) {
            args.push(flat(name)?);
        }
        args.extend([s.k, s.alignment].map(|x| Arg::Scalar(Literal { dtype: Data::I32, bits: x as u64 })));
        let steps = vec![count, Launch { kernel, config, args }];
        Ok(Plan { steps, workspaces: vec![blocks * s.experts * 4] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let ids = p::integers(problem, "topk_idx").unwrap_or_default();
        let m = reference(&ids, s.k, s.experts, s.alignment, s.positions);
        let positions = POSITIONS.iter().zip(&m.positions).map(|(n, x)| (n.to_string(), i32_tensor(&[s.positions], x)));
        let ranges = RANGES.iter().zip(&m.ranges).map(|(n, x)| (n.to_string(), i32_tensor(&[s.experts], x)));
        let of_slot = ("token_topk_to_pos".to_string(), i32_tensor(&[s.tokens, s.k], &m.of_slot));
        Ok(positions.chain(ranges).chain([of_slot]).collect())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, k, e, alignment]: [usize; 4], fill: Fill| {
            let params = [("num_experts", ParamValue::Int(e as i64)), ("alignment", ParamValue::Int(alignment as i64))];
            p::case(id, vec![p::filled("topk_idx", Data::I64, &[t, k], fill)], &params)
        };
        let bounded = |mut case: Case, n: i64| {
            case.params.insert("num_expanded_tokens".into(), ParamValue::Int(n));
            case
        };
        // A third of the slots are dropped, and some name experts there are not.
        let sparse = |e: usize| Fill::Uniform(-(e as f64) / 2.0, e as f64 * 1.05);
        vec![
            make("no_tokens", [0, 4, 5, 8], Fill::Constant(0.0)),
            make("one_slot", [1, 1, 1, 1], Fill::Constant(0.0)),
            make("all_dropped", [9, 4, 6, 64], Fill::Constant(-1.0)),
            make("one_expert_takes_all", [700, 2, 3, 128], Fill::Constant(1.0)),
            make("t301_k6_e72", [301, 6, 72, 128], sparse(72)),
            make("t1500_k8_e256", [1500, 8, 256, 64], sparse(256)),
            make("e1024", [40, 8, 1024, 16], sparse(1024)),
            bounded(make("positions_given", [50, 4, 9, 8], sparse(9)), 300),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "topk", "experts", "alignment"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 4]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 8, 256, 128], [16384, 8, 256, 128], [16384, 6, 64, 128]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, k, e, alignment] = p::bench_sizes(OP, shape, ["tokens", "topk", "experts", "alignment"])?;
        let ids = p::filled("topk_idx", Data::I64, &[t, k], Fill::Uniform(0.0, e as f64));
        let params = [("num_experts", ParamValue::Int(e as i64)), ("alignment", ParamValue::Int(alignment as i64))];
        Ok(p::case(format!("tokens{t}_topk{k}_experts{e}_alignment{alignment}"), vec![ids], &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
