//! Random problems of operators, each from a seed: sizes that no tile divides, rows with gaps, and numbers nobody likes.
//!
//! Not every operator: those whose problems are a few tensors of one another's sizes. What is judged relatively gets
//! numbers of one sign, since a bound says nothing where terms cancel; casts and copies get everything.

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{ParamValue, Params};
use kiln_kernels::numeric::Tensors;
use std::collections::BTreeMap;

#[path = "grouped.rs"]
mod grouped;
#[path = "routing.rs"]
mod routing;
#[path = "selection.rs"]
mod selection;

/// A problem on the host.
#[derive(Debug, Default)]
pub struct Random {
    /// Inputs.
    pub inputs: Tensors,
    /// Parameters.
    pub params: Params,
    /// Elements between the pieces of the first axis of an input.
    pub gaps: BTreeMap<String, usize>,
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // Steele et al., SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn within(&mut self, lo: usize, hi: usize) -> usize {
        lo + self.below(hi - lo + 1)
    }
    fn uniform(&mut self, lo: f64, hi: f64) -> f64 {
        lo + (self.next() >> 11) as f64 / (1u64 << 53) as f64 * (hi - lo)
    }
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
    fn floats(&mut self, n: usize, lo: f64, hi: f64) -> Vec<f64> {
        (0..n).map(|_| self.uniform(lo, hi)).collect()
    }
    /// Finite numbers of every size and kind, `row` of them with one magnitude.
    fn hostile(&mut self, n: usize, row: usize) -> Vec<f64> {
        let mut values = vec![];
        while values.len() < n {
            let size = self.pick(&[0.0, 1.0, 1.0, 30.0, 1e-3, 1e-30, 1e-40, 1e30, 3e38, 448.0, 6.0, 65024.0]);
            for _ in 0..row.max(1) {
                let kind = self.below(12);
                values.push(match kind {
                    0 => 0.0,
                    1 => -0.0,
                    // Middles between codes, once a scale is a power of two.
                    2 => size * self.pick(&[0.25, 0.75, 0.875, 0.9375, 0.96875, 1.0]),
                    3 => -size,
                    _ => size * self.uniform(-1.0, 1.0),
                });
            }
        }
        values.truncate(n);
        values
    }
}

impl Random {
    fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], values: &[f64]) {
        self.inputs.insert(name.into(), HostTensor::from_f64(dtype, shape, values));
    }
    /// A tensor whose first axis may have gaps, of a multiple of `step` elements.
    fn gapped(&mut self, dice: &mut Dice, name: &str, dtype: DType, shape: &[usize], values: &[f64], step: usize) {
        self.tensor(name, dtype, shape, values);
        if dice.chance(60) {
            let gap = step * dice.pick(&[1, 3, 8, 16]);
            self.gaps.insert(name.into(), gap);
        }
    }
    fn set(&mut self, name: &str, value: ParamValue) {
        self.params.insert(name.into(), value);
    }
    fn int(&mut self, name: &str, value: usize) {
        self.set(name, ParamValue::Int(value as i64));
    }
    fn block(&mut self, name: &str, block: [usize; 2]) {
        self.set(name, ParamValue::List(block.map(|b| ParamValue::Int(b as i64)).to_vec()));
    }
}

/// The problem of an operator and a seed, if this file knows the operator.
pub fn problem(op: &str, seed: u64) -> Option<Random> {
    let mut dice = Dice(op.bytes().fold(seed, |h, b| h.wrapping_mul(0x100_0000_01b3) ^ b as u64));
    let d = &mut dice;
    let mut r = Random::default();
    match op {
        "quant_per_block_fp8"
        | "quant_per_channel_fp8"
        | "quant_per_token_fp8"
        | "quant_per_token_fp4"
        | "quant_e5m6" => cast(op, d, &mut r),
        "quant_lossless_fp4_to_fp8" => lossless(d, &mut r),
        "kv_cache_pack" | "kv_cache_write" => cache(op, d, &mut r),
        "kv_compressor" => compressor(d, &mut r),
        "topk_select" => selection::topk(d, &mut r),
        "mha_prefill_dense" => prefill_dense(d, &mut r),
        "mla_prefill_sparse" => prefill_sparse(d, &mut r),
        "mhc_expand" | "mhc_pre" | "mhc_post" | "mhc_sinkhorn" | "mhc_head_mix" => hyper(op, d, &mut r),
        _ => return (routing::problem(op, d, &mut r) || grouped::problem(op, d, &mut r)).then_some(r),
    }
    Some(r)
}

fn cast(op: &str, d: &mut Dice, r: &mut Random) {
    let dtype = d.pick(&[DType::Bf16, DType::F32]);
    let (m, n) = match op {
        "quant_per_block_fp8" => (d.within(0, 90), d.within(1, 200)),
        "quant_per_channel_fp8" => (d.within(0, 150), d.within(1, 150)),
        "quant_per_token_fp4" => (d.within(0, 5), 2 * d.within(1, 200)),
        "quant_e5m6" => (d.within(0, 5), 8 * d.within(1, 60)),
        _ => (d.within(0, 5), d.within(1, 500)),
    };
    let values = d.hostile(m * n, n);
    match op {
        // Its operator declares whole rows without gaps.
        "quant_per_token_fp8" => r.tensor("x", dtype, &[m, n], &values),
        _ => r.gapped(d, "x", dtype, &[m, n], &values, 1),
    }
    let group = d.pick(&[16usize, 32, 48, 64, 128]);
    match op {
        "quant_per_block_fp8" => r.block("block", [d.pick(&[1, 16, 32, 128]), group]),
        "quant_per_channel_fp8" => r.block("block", [group, 1]),
        "quant_per_token_fp8" => r.block("block", [1, group]),
        "quant_per_token_fp4" => return r.int("gran_k", group),
        _ => {
            r.set("dequant", ParamValue::Bool(d.chance(50)));
            return r.set("ue8m0", ParamValue::Bool(d.chance(50)));
        }
    }
    r.set("ue8m0", ParamValue::Bool(d.chance(50)));
    r.set("inv_mode", ParamValue::Text(d.pick(&["recip_sf", "max_over_amax"]).into()));
}

fn lossless(d: &mut Dice, r: &mut Random) {
    let (m, n) = (d.within(0, 70), 2 * d.within(1, 100));
    let fine = [d.pick(&[1, 2]), d.pick(&[8, 16, 32])];
    let coarse = [fine[0] * d.pick(&[1, 4, 16]), fine[1] * d.pick(&[1, 2, 4])];
    let codes: Vec<f64> = (0..m * n / 2).map(|_| d.below(256) as f64).collect();
    r.gapped(d, "q_packed", DType::U8, &[m, n / 2], &codes, 1);
    // A window of 11 binades somewhere.
    let low = d.within(0, 244) as f64;
    let exponents = [m.div_ceil(fine[0]), n.div_ceil(fine[1])];
    let values: Vec<f64> = (0..exponents.iter().product()).map(|_| low + d.below(11) as f64).collect();
    r.tensor("sf_exp", DType::U8, &exponents, &values);
    r.block("in_block", fine);
    r.block("out_block", coarse);
}

fn cache(op: &str, d: &mut Dice, r: &mut Random) {
    let layouts =
        [("v32_656", 576), ("v32_656_f32scale", 576), ("model1_584", 512), ("v41_528", 512), ("v41fp4_288", 512)];
    let (layout, width) = d.pick(&[&layouts[..], &[("indexer_fp8", 128)]].concat());
    let (pages, page) = (d.within(1, 3), 4 * d.within(1, 3));
    r.set("layout", ParamValue::Text(layout.into()));
    r.int("block_size", page);
    if op == "kv_cache_pack" {
        let values = d.hostile(pages * page * width, width);
        return r.tensor("x", DType::Bf16, &[pages, page, width], &values);
    }
    let n = d.within(0, pages * page);
    let values = d.hostile(n * width, width);
    r.gapped(d, "x", DType::Bf16, &[n, width], &values, 1);
    // Each slot once, in any order, and some that are none.
    let mut slots: Vec<f64> = (0..pages * page).map(|s| s as f64).collect();
    for i in (1..slots.len()).rev() {
        slots.swap(i, d.below(i + 1));
    }
    slots.truncate(n);
    for slot in &mut slots {
        if d.chance(20) {
            *slot = d.pick(&[-1.0, -9e15, (pages * page) as f64, 4_294_967_296.0, 9e15]);
        }
    }
    r.tensor("slot_mapping", DType::I64, &[n], &slots);
    let bytes = match layout {
        "model1_584" => (584 * page).next_multiple_of(576),
        "v41_528" => 528 * page,
        "v41fp4_288" => 288 * page,
        "indexer_fp8" => 132 * page,
        _ => 656 * page,
    };
    let before: Vec<f64> = (0..pages * bytes).map(|_| d.below(256) as f64).collect();
    r.tensor("cache_before", DType::U8, &[pages, bytes], &before);
}

fn compressor(d: &mut Dice, r: &mut Random) {
    let (ratio, width, overlap) = (d.within(1, 9), 2 * d.within(1, 40), d.chance(50));
    let n = d.within(0, 30);
    let half = d.within(0, width / 2);
    let wide = if overlap { 2 * width } else { width };
    let scale = d.pick(&[0.1, 3.0, 1e3]);
    let (kv, score) = (d.floats(n * wide, 0.5, 2.0), d.floats(n * wide, -scale, scale));
    r.gapped(d, "kv", DType::F32, &[n, wide], &kv, 1);
    r.gapped(d, "score", DType::F32, &[n, wide], &score, 1);
    r.tensor("ape", DType::F32, &[ratio, wide], &d.floats(ratio * wide, -0.5, 0.5));
    r.tensor("norm_weight", DType::F32, &[width], &d.floats(width, 0.5, 1.5));
    let rows = n / ratio;
    // Angles that turn by less than the neighbours differ: no difference is small.
    r.tensor("cos", DType::F32, &[rows, half], &d.floats(rows * half, 0.9, 1.0));
    r.tensor("sin", DType::F32, &[rows, half], &d.floats(rows * half, 0.05, 0.15));
    r.int("ratio", ratio);
    r.set("overlap", ParamValue::Bool(overlap));
}

fn prefill_dense(d: &mut Dice, r: &mut Random) {
    let (group, hk) = (d.within(1, 3), d.within(1, 2));
    let (dk, dv) = (8 * d.within(1, 8), 8 * d.within(1, 6));
    let sequences = d.within(0, 4);
    let lengths = |d: &mut Dice| -> Vec<usize> { (0..sequences).map(|_| d.pick(&[0, 1, 3, 17, 40, 70])).collect() };
    let (lq, lk) = (lengths(d), lengths(d));
    let (t, tk) = (lq.iter().sum::<usize>(), lk.iter().sum::<usize>());
    let starts = |l: &[usize]| -> Vec<f64> { (0..=l.len()).map(|i| l[..i].iter().sum::<usize>() as f64).collect() };
    let q = d.floats(t * group * hk * dk, -0.7, 0.7);
    r.gapped(d, "q", DType::Bf16, &[t, group * hk, dk], &q, 1);
    let k = d.floats(tk * hk * dk, -0.7, 0.7);
    r.gapped(d, "k", DType::Bf16, &[tk, hk, dk], &k, 1);
    let v = d.floats(tk * hk * dv, 0.5, 2.0);
    r.gapped(d, "v", DType::Bf16, &[tk, hk, dv], &v, 1);
    r.tensor("cu_seqlens_q", DType::I32, &[sequences + 1], &starts(&lq));
    r.tensor("cu_seqlens_k", DType::I32, &[sequences + 1], &starts(&lk));
    let causal = d.chance(50);
    r.set("causal", if causal { ParamValue::Text("bottom-right".into()) } else { ParamValue::Null });
}

fn prefill_sparse(d: &mut Dice, r: &mut Random) {
    let (sq, skv, h, topk) = (d.within(0, 5), d.within(0, 60), d.within(1, 9), d.within(0, 130));
    let dk = 8 * d.within(2, 12);
    let dv = 8 * d.within(1, dk / 8);
    let q = d.floats(sq * h * dk, -0.5, 0.5);
    r.gapped(d, "q", DType::Bf16, &[sq, h, dk], &q, 1);
    let kv = d.floats(skv * dk, 0.2, 1.0);
    r.gapped(d, "kv", DType::Bf16, &[skv, 1, dk], &kv, 1);
    let outside = [-1.0, -2_147_483_648.0, skv as f64, 2_147_483_647.0];
    let indices: Vec<f64> =
        (0..sq * topk).map(|_| if skv == 0 || d.chance(25) { d.pick(&outside) } else { d.below(skv) as f64 }).collect();
    r.gapped(d, "indices", DType::I32, &[sq, 1, topk], &indices, 1);
    if d.chance(50) {
        let lengths: Vec<f64> = (0..sq).map(|_| d.pick(&[0.0, -5.0, 1.0, 64.0, 65.0, 1e9])).collect();
        r.tensor("topk_length", DType::I32, &[sq], &lengths);
    }
    if d.chance(50) {
        let sinks: Vec<f64> = (0..h).map(|_| d.pick(&[f64::INFINITY, f64::NEG_INFINITY, 0.5, 3.0])).collect();
        r.tensor("attn_sink", DType::F32, &[h], &sinks);
    }
    r.int("d_v", dv);
    r.set("sm_scale", ParamValue::Float(0.1));
}

fn hyper(op: &str, d: &mut Dice, r: &mut Random) {
    let (t, m, h) = (d.within(0, 9), d.within(1, 4), d.within(1, 90));
    let iters = d.within(1, 12);
    match op {
        "mhc_expand" => {
            let values = d.hostile(t * h, h);
            let dtype = d.pick(&[DType::Bf16, DType::F32]);
            r.gapped(d, "x", dtype, &[t, h], &values, 1);
            r.int("mhc_mult", m);
        }
        "mhc_sinkhorn" => {
            let spread = d.pick(&[0.0, 1.0, 40.0, 1e4]);
            let values = d.floats(t * m * m, -spread, spread);
            r.tensor("x", DType::F32, &[t, m, m], &values);
            r.int("iters", iters);
        }
        "mhc_head_mix" => {
            let spread = d.pick(&[1.0, 50.0, 1e5]);
            let values = d.floats(t * m, -spread, spread);
            r.gapped(d, "mix", DType::F32, &[t, m], &values, 1);
            r.tensor("scale", DType::F32, &[1], &d.floats(1, 0.1, 1.0));
            r.tensor("base", DType::F32, &[m], &d.floats(m, -1.0, 1.0));
        }
        _ => {
            let size = d.pick(&[1e-20, 1.0, 1e10]);
            let residual = d.floats(t * m * h, 0.1 * size, size);
            r.gapped(d, "residual", DType::Bf16, &[t, m, h], &residual, 1);
            if op == "mhc_post" {
                let x = d.floats(t * h, 0.1 * size, size);
                r.gapped(d, "x", DType::Bf16, &[t, h], &x, 1);
                r.tensor("post_mix", DType::F32, &[t, m], &d.floats(t * m, 0.1, 2.0));
                r.tensor("comb_mix", DType::F32, &[t, m, m], &d.floats(t * m * m, 0.0, 1.0));
                return;
            }
            let n = m * (m + 2);
            // Small enough for mixes near 1: their bound is relative, and absolute below that.
            let bound = 1.0 / ((m * h) as f64).sqrt();
            r.tensor("fn", DType::F32, &[n, m * h], &d.floats(n * m * h, -bound, bound));
            r.tensor("scale", DType::F32, &[3], &d.floats(3, -0.7, 0.7));
            r.tensor("base", DType::F32, &[n], &d.floats(n, -0.5, 0.5));
            if d.chance(50) {
                r.tensor("norm_weight", DType::F32, &[m * h], &d.floats(m * h, 0.8, 1.2));
            }
            r.int("sinkhorn_iters", iters);
        }
    }
}
