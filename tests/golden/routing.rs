//! Random problems of routing, sampling and n-gram operators: ties, dropped ids, NaN, poisoned rows.

use super::{Dice, Random};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::ParamValue;

/// Makes the problem of an operator, if this file knows it.
pub(super) fn problem(op: &str, d: &mut Dice, r: &mut Random) -> bool {
    match op {
        "moe_gate" => gate(d, r),
        "moe_topk" => topk(d, r),
        "moe_group_topk" => group_topk(d, r),
        "moe_fused_mapping" => {
            let (t, k, e) = (d.within(0, 400), d.within(1, 8), d.within(1, 300));
            ids(d, r, "topk_idx", [t, k], e);
            r.int("num_experts", e);
            r.int("alignment", d.pick(&[1, 4, 16, 128]));
        }
        "moe_expand_reduce" => expand_reduce(d, r),
        "moe_misc" => misc(d, r),
        "ep_dispatch_layout" => {
            let (t, k, ranks) = (d.within(0, 500), d.within(1, 8), d.pick(&[1, 3, 8, 16, 24]));
            let e = ranks * d.within(1, 9);
            ids(d, r, "topk_idx", [t, k], e);
            r.int("num_experts", e);
            r.int("num_ranks", ranks);
            r.int("ranks_per_node", d.pick(&[4, 8]));
        }
        "sampling" => sampling(d, r),
        "engram_gate" => engram_gate(d, r),
        "engram_hash" => engram_hash(d, r),
        _ => return false,
    }
    true
}

fn values(n: usize, mut f: impl FnMut() -> f64) -> Vec<f64> {
    (0..n).map(|_| f()).collect()
}

fn normal(d: &mut Dice, n: usize, scale: f64) -> Vec<f64> {
    values(n, || (0..12).map(|_| d.uniform(-0.5, 0.5)).sum::<f64>() * scale)
}

fn bits(d: &mut Dice, dtype: DType, shape: &[usize]) -> HostTensor {
    let bytes = dtype.bytes(shape.iter().product());
    HostTensor { dtype, shape: shape.to_vec(), data: (0..bytes).map(|_| d.next() as u8).collect() }
}

/// Ids of experts, some of them dropped or of experts there are not.
fn ids(d: &mut Dice, r: &mut Random, name: &str, shape: [usize; 2], experts: usize) {
    let one = || match d.below(100) {
        0..12 => -1.0,
        12 => (experts + 3) as f64,
        _ => d.below(experts) as f64,
    };
    let x = values(shape[0] * shape[1], one);
    r.tensor(name, DType::I64, &shape, &x);
}

fn gate(d: &mut Dice, r: &mut Random) {
    let (t, e) = (d.within(0, 30), d.pick(&[4, 12, 36, 64, 72, 96, 160, 256, 288, 384]));
    let groups = d.pick(&(1..=16).filter(|g| e % g == 0).collect::<Vec<usize>>());
    let keep = d.within(1, groups);
    let k = d.within(1, (keep * (e / groups)).min(8));
    let scoring = d.pick(&["sigmoid", "sqrtsoftplus", "softmax"]);
    // Steps give exact ties. Larger numbers would saturate a sigmoid, whose ties in f32 the f64 reference does not see.
    let (ties, wide) = (d.chance(33), scoring != "sigmoid" && d.chance(33));
    let logits = match (ties, wide) {
        (true, _) => values(t * e, || d.below(5) as f64 * 0.5 - 1.0),
        (false, true) => normal(d, t * e, 30.0),
        (false, false) => normal(d, t * e, 1.0),
    };
    r.gapped(d, "logits", DType::F32, &[t, e], &logits, 1);
    let bias = if ties { vec![0.0; e] } else { normal(d, e, 0.5) };
    r.tensor("bias", DType::F32, &[e], &bias);
    let flags = |d: &mut Dice, r: &mut Random, name: &str| {
        let x = values(t, || d.below(2) as f64);
        r.tensor(name, DType::Bool, &[t], &x);
    };
    if d.chance(33) {
        flags(d, r, "mask");
    }
    if d.chance(33) {
        flags(d, r, "fix_routing_mask");
        ids(d, r, "fixed_topk_idx", [t, k], e);
    }
    if d.chance(20) {
        let tokens = values(t, || d.below(45) as f64 - 2.0);
        r.tensor("token_ids", DType::I64, &[t], &tokens);
        let table = values(40 * k, || d.below(e) as f64);
        r.tensor("token_to_experts", DType::I32, &[40, k], &table);
    }
    let shared = d.below(3);
    if d.chance(33) {
        let copies = d.within(1, 4);
        let map = values((e + shared) * copies, || d.below(e) as f64);
        r.tensor("to_physical_map", DType::I32, &[e + shared, copies], &map);
        let count = values(e + shared, || d.within(1, copies) as f64);
        r.tensor("logical_count", DType::I32, &[e + shared], &count);
    }
    let (tp, ep) = (d.within(1, 2), d.pick(&[1, 2, 4]));
    for (name, x) in
        [("num_topk", k), ("num_groups", groups), ("num_topk_groups", keep), ("num_shared_experts", shared)]
    {
        r.int(name, x);
    }
    r.int("num_tp_ranks", tp);
    r.int("tp_rank", d.below(tp));
    r.int("num_ep_ranks", ep);
    r.int("ep_rank", d.below(ep));
    r.set("scoring", ParamValue::Text(scoring.into()));
    r.set("routed_scaling_factor", ParamValue::Float(2.5));
}

fn topk(d: &mut Dice, r: &mut Random) {
    let (t, e) = (d.within(0, 40), d.within(1, 320));
    let odd = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.0, -0.0, 0.5, -2.0, 1e-40];
    let x = if d.chance(50) { normal(d, t * e, 1.0) } else { values(t * e, || d.pick(&odd)) };
    r.gapped(d, "scores", DType::F32, &[t, e], &x, 1);
    r.int("num_topk", d.within(1, e.min(12)));
}

fn group_topk(d: &mut Dice, r: &mut Random) {
    let [t, groups, n] = [d.within(0, 30), d.within(1, 32), d.within(1, 33)];
    let x = values(t * groups * n, || d.below(9) as f64 * 0.25);
    r.tensor("scores", DType::F32, &[t, groups, n], &x);
    r.int("num_topk_groups", d.within(1, groups));
    r.int("num_topk_sum", d.within(1, 2));
}

fn expand_reduce(d: &mut Dice, r: &mut Random) {
    let (t, k, h) = (d.within(0, 20), d.within(1, 6), d.within(1, 300));
    let n = t * k + d.below(40);
    // Positions in a random order, some slots without one.
    let mut free: Vec<usize> = (0..n).collect();
    let to = values(t * k, || {
        let at = d.below(free.len());
        if d.chance(25) { -1.0 } else { free.swap_remove(at) as f64 }
    });
    let experts: Vec<f64> = (0..n).map(|p| if to.contains(&(p as f64)) { 1.0 } else { -1.0 }).collect();
    r.tensor("token_topk_to_pos", DType::I32, &[t, k], &to);
    r.tensor("pos_to_expert", DType::I32, &[n], &experts);
    let dtype = d.pick(&[DType::Bf16, DType::F32, DType::E4m3]);
    let x = normal(d, t * h, 1.0);
    r.gapped(d, "x", dtype, &[t, h], &x, 1);
    // Positions without a slot hold what nobody may add.
    let y: Vec<f64> = normal(d, n * h, 1.0).iter().map(|x| x.abs()).collect();
    let y: Vec<f64> = y.iter().enumerate().map(|(i, &x)| if experts[i / h] < 0.0 { f64::NAN } else { x }).collect();
    r.gapped(d, "y", dtype, &[n, h], &y, 1);
    if d.chance(50) {
        let w = d.floats(t * k, 0.0, 1.0);
        r.tensor("topk_weights", DType::F32, &[t, k], &w);
    }
    if d.chance(50) {
        let (g, blocks) = (d.within(1, 5), h.div_ceil(32));
        let sf = values(t * g, || d.below(1 << 20) as f64);
        let dtype = d.pick(&[DType::F32, DType::I32]);
        r.gapped(d, "sf", dtype, &[t, g], &sf, 1);
        let y_sf = d.floats(n * blocks, 0.5, 2.0);
        r.gapped(d, "y_sf", DType::F32, &[n, blocks], &y_sf, 1);
    }
    r.int("gran_k", 32);
    r.set("out", ParamValue::Text(d.pick(&["bf16", "f32"]).into()));
}

fn misc(d: &mut Dice, r: &mut Random) {
    let (t, k, e) = (d.within(0, 300), d.within(1, 8), 8 * d.within(1, 40));
    ids(d, r, "topk_idx", [t, k], e);
    let groups = values(t * k, || d.below(6) as f64 - 1.0);
    r.tensor("group_idx", DType::I64, &[t, k], &groups);
    let weights = d.floats(t * k, 0.0, 1.0);
    r.tensor("weights", DType::F32, &[t, k], &weights);
    let tp = d.within(1, 2);
    r.int("num_experts", e);
    r.int("num_ep_ranks", d.pick(&[1, 2, 4, 8]));
    r.int("num_tp_ranks", tp);
    r.int("tp_rank", d.below(tp));
}

fn sampling(d: &mut Dice, r: &mut Random) {
    let (b, v) = (d.within(0, 7), d.within(1, 900));
    let logits = match d.below(3) {
        0 => values(b * v, || d.below(7) as f64 * 0.75),
        1 => values(b * v, || if d.chance(11) { f64::NAN } else { d.below(1000) as f64 * 0.01 }),
        _ => normal(d, b * v, 3.0),
    };
    let dtype = d.pick(&[DType::F32, DType::Bf16]);
    r.gapped(d, "logits", dtype, &[b, v], &logits, 1);
    let mut column = |name: &str, dtype, from: &[f64]| {
        let x = values(b, || d.pick(from));
        r.tensor(name, dtype, &[b], &x);
    };
    column("temperature", DType::F32, &[0.0, 0.5, 1.0, 1.75]);
    let all = |bits: u32| (0..37u64).map(|i| ((i * i * 0x9e37_79b9 + 1) % (1 << bits)) as f64).collect::<Vec<_>>();
    column("seeds", DType::I64, &all(50));
    column("positions", DType::I64, &all(40));
    let chosen = d.below(16);
    let mut column = |name: &str, dtype, from: &[f64]| {
        let x = values(b, || d.pick(from));
        r.tensor(name, dtype, &[b], &x);
    };
    if chosen & 1 != 0 {
        column("top_k", DType::I32, &[0.0, 1.0, 7.0, 2000.0]);
    }
    if chosen & 2 != 0 {
        column("top_p", DType::F32, &[1.0, 0.9, 0.33, 0.01]);
    }
    if chosen & 4 != 0 {
        column("min_p", DType::F32, &[0.0, 0.03, 0.7]);
    }
    if chosen & 8 != 0 {
        let mask = bits(d, DType::I32, &[b, v.div_ceil(32)]);
        r.inputs.insert("bitmask".into(), mask);
    }
    r.set("status", ParamValue::Bool(d.chance(50)));
}

fn engram_gate(d: &mut Dice, r: &mut Random) {
    let [t, m, h] = [d.within(0, 5), d.within(1, 4), d.within(1, 700)];
    for name in ["x", "k"] {
        let scale = d.pick(&[1.0, 1.0, 1e-6, 1e6, 0.0]);
        let x = normal(d, t * m * h, scale);
        r.tensor(name, DType::Bf16, &[t, m, h], &x);
    }
    let v = normal(d, t * h, 1.0);
    r.tensor("v", DType::Bf16, &[t, h], &v);
    let fused = d.chance(50);
    let names: &[&str] = if fused { &["weight_fused"] } else { &["weight_hidden", "weight_embed"] };
    for name in names {
        let w = normal(d, m * h, 1.0);
        r.tensor(name, if fused { DType::F32 } else { DType::Bf16 }, &[m, h], &w);
    }
}

fn engram_hash(d: &mut Dice, r: &mut Random) {
    let [t, g, layers, tables] = [d.within(0, 50), d.within(2, 5), d.within(1, 3), d.within(1, 7)];
    let (tokens, multipliers) = (bits(d, DType::I32, &[t, g]), bits(d, DType::I64, &[layers, g]));
    r.inputs.insert("ngram_token_ids".into(), tokens);
    r.inputs.insert("multipliers".into(), multipliers);
    let columns = (g - 1) * tables;
    let vocab = values(layers * columns, || d.within(1, 2_000_000_000) as f64);
    r.tensor("vocab_sizes", DType::I32, &[layers, g - 1, tables], &vocab);
    let offsets = values(layers * columns, || d.below(100_000_000) as f64);
    r.tensor("offsets", DType::I32, &[layers, columns], &offsets);
}
