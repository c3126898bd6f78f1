//! One token of each row of logits: greedy, or random after top-k, min-p and top-p filters.
//!
//! Order: `bitmask` (bit `t mod 32` of word `t / 32`, 1 allows token `t`), division by the temperature, top-k (all values that
//! are at least the k-th largest stay), softmax, min-p (`p ≥ min_p · p_max` stays), top-p (the shortest prefix of the rest, by
//! descending probability and then ascending token, whose share reaches `top_p`; the first always stays), then the largest of
//! `logit/T + g` over what stays, with the Gumbel variable `g` of [`philox`](super::philox): a sample of the softmax over it.
//! Temperature 0 takes the largest logit. Ties go to the smaller token. A row without allowed token gives -1. NaN counts as
//! not allowed, and sets `status` to 1; infinity counts as the largest number.
//!
//! *Tensors*: `logits` `[b, v]` f32 or bf16, rows at any distance; `temperature` `[b]` f32; `top_k` `[b]` i32 (0: off), `top_p`
//! (1: off), `min_p` (0: off) `[b]` f32, `bitmask` `[b, ⌈v/32⌉]` i32, each may be left out; `seeds`, `positions` `[b]` i64;
//! `token_ids` `[b]` i32; with the parameter `status`, `status` `[b]` i32. Without `logits` the operator gives the generator's
//! numbers: `u` `[b, vocab]` f32 from `seeds` and `positions`.
//! *Cost*: rows are read twice, and with filters a few times more; they stay in the second-level cache.
//! *Numerics*: f32, logarithms and exponentials precise. What a token is depends on its row, seed and position alone.
//! *Schedule*: a block a row, four tokens a thread at a time. Top-k finds its threshold by histograms of key digits. Top-p
//! sorts nothing: it samples, adds up what ranks before the sample, and if that reaches `top_p` samples again among what ranks
//! before. Each try succeeds with a probability of at least `top_p`, and the result is that of a filter before sampling, since
//! the largest score of a set that lies in a subset is the subset's largest.
//! *Source*: Gumbel, Statistical theory of extreme values, 1954; Holtzman et al., The curious case of neural text
//! degeneration, 2020.

use super::philox;
use crate::index::largest::sort_key;
use crate::numeric::round::{f32_tensor, i32_tensor};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a row is read.
#[derive(KernelConfig, Clone, Debug)]
pub struct SampleConfig {
    /// Warps of a block.
    #[numerics]
    #[tune(16, 8, 32)]
    pub warps: usize,
}

/// How numbers are spread.
#[derive(KernelConfig, Clone, Debug)]
pub struct UniformConfig {
    /// Tokens of a block.
    #[tune(1024, 512)]
    pub block: usize,
}

/// Tokens of a call of the generator.
const WORDS: usize = 4;
/// The score of the best token is at least its logit (over the temperature) less 2.86, and no `g` is above 17.33: tokens
/// further than this below the largest logit cannot win.
const REACH: f32 = 20.5;

/// A row of logits as the filters see it.
#[derive(Clone, Copy, Debug)]
struct Row<T: DType> {
    logits: Gm<T, 1>,
    bits: Option<Gm<I32, 1>>,
    n: Ix,
}

impl<T: Float> Row<T> {
    /// The logit of a token that is a number; `-inf` for one that is not allowed or not there.
    #[kernel_fn]
    fn at(self, token: Ix) -> V<F32> {
        let x = self.logits[token].to::<F32>();
        let inside = token < self.n;
        let allowed = if let Some(bits) = self.bits {
            let word = bits[token / 32] >> (token % 32).value();
            inside && (word & 1) == 1
        } else {
            inside
        };
        // Infinity would make differences to it NaN.
        select(allowed && x == x, min(x, f32::MAX), NEG_INF)
    }
}

/// What survives the filters that need no probability of others.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Smallest key that top-k keeps.
    threshold: V<U32>,
    /// Largest logit.
    top: V<F32>,
    /// `1 / T`.
    inverse: V<F32>,
    /// Smallest share of the largest probability.
    min_p: V<F32>,
}

impl Kept {
    /// Probability of a logit over that of the largest, 0 if a filter drops it.
    #[kernel_fn]
    fn weight(self, x: V<F32>) -> V<F32> {
        let e = exp_precise((x - self.top) * self.inverse);
        select(x > NEG_INF && sort_key(x) >= self.threshold && e >= self.min_p, e, 0.0)
    }
    /// Whether a filter keeps it; its probability may round to 0.
    #[kernel_fn]
    fn has(self, x: V<F32>) -> V<Bool> {
        let e = exp_precise((x - self.top) * self.inverse);
        x > NEG_INF && sort_key(x) >= self.threshold && e >= self.min_p
    }
}

/// Whether a token ranks before another one: by logit, then by smaller number.
#[kernel_fn]
fn before(x: V<F32>, token: V<I32>, than: V<F32>, other: V<I32>) -> V<Bool> {
    x > than || (x == than && token < other)
}

/// The largest score and the first token that has it, from one candidate a thread.
#[kernel_fn]
fn winner(best: Tile<F32, Frag, 1>, at: Tile<I32, Frag, 1>) -> (V<F32>, V<I32>) {
    let top = reduce_max(best, 0);
    let [threads] = best.extents();
    let first = tile_min([threads], |i| select(best[i] == top && at[i] >= 0, at[i], i32::MAX));
    (top, first)
}

/// Smallest key among the `want` largest of a row, digit by digit.
#[kernel_fn]
fn kth_key<T: Float>(row: Row<T>, want: V<U32>) -> V<U32> {
    let mut threshold = 0u32;
    let mut need = want;
    let counts = shared::<U32, 1>([256]);
    for digit in unroll((0..4usize).rev()) {
        let shift = host!(digit as u32 * 8);
        zero(counts);
        for i in spread(0..row.n) {
            let x = row.at(i);
            let key = sort_key(x);
            let here = if host!(digit < 3) { (key >> (shift + 8)) == (threshold >> (shift + 8)) } else { lit(true) };
            if x > NEG_INF && here {
                counts.atomic_add(((key >> shift) & 0xff).clamp_index(0, 255), 1);
            }
        }
        let above = suffix_sum_exclusive(counts);
        let found = find_first([256], |b| above[b] < need && above[b] + counts[b] >= need);
        let bin = found.min(255);
        need = need - above[bin];
        threshold = threshold | (bin.to::<U32>() << shift);
    }
    threshold
}

/// Samples rows.
#[kernel(dims(), deterministic, batch_invariant(b))]
pub fn sampling<T: Float>(
    cfg: &SampleConfig,
    logits: In![T; b, n; strides(ld, 1)],
    temperature: In![F32; b],
    top_k: Option<In![I32; b]>,
    top_p: Option<In![F32; b]>,
    min_p: Option<In![F32; b]>,
    bits: Option<In![I32; b, ceil(n, 32)]>,
    seeds: In![I64; b],
    positions: In![I64; b],
    ids: Out![I32; b],
    status: Option<Out![I32; b]>,
) {
    let r = grid(b);
    warps(cfg.warps);
    let threads = cfg.warps * 32;
    let chunk = threads * WORDS;
    let steps = n.div_ceil(chunk);
    let row = Row { logits: logits.pick(r), bits: bits.map(|bits| bits.pick(r)), n: n };

    // The largest logit, the first token that has it, and how many are allowed.
    let best = frag::<F32, 1>([threads]);
    let at = frag::<I32, 1>([threads]);
    let open = frag::<U32, 1>([threads]);
    let odd = frag::<I32, 1>([threads]);
    fill(best, NEG_INF);
    fill(at, -1);
    zero(open);
    zero(odd);
    for c in 0..steps {
        for i in parallel([threads]) {
            let mut top = best[i];
            let mut token = at[i];
            let mut count = open[i];
            let mut strange = odd[i];
            for l in unroll(0..WORDS) {
                let t = c * chunk + i * WORDS + l;
                let x = row.at(t);
                let better = x > top;
                top = select(better, x, top);
                token = select(better, t.value(), token);
                count += select(x > NEG_INF, 1u32, 0u32);
                if host!(status.is_some()) {
                    let raw = row.logits[t].to::<F32>();
                    strange = select(raw == raw, strange, 1);
                }
            }
            best[i] = top;
            at[i] = token;
            open[i] = count;
            odd[i] = strange;
        }
    }
    let (top, first) = winner(best, at);
    let allowed = reduce_sum(open, 0);
    if let Some(status) = status {
        status[r] = reduce_max(odd, 0);
    }

    let mut chosen = select(allowed == 0, -1, first);
    let temperature = temperature[r];
    if allowed > 1 && temperature > 0.0 {
        let mut threshold = 0u32;
        if let Some(top_k) = top_k {
            let k = top_k[r].max(0).to::<U32>();
            if k > 0 && k < allowed {
                threshold = kth_key(row, k);
            }
        }
        let kept = Kept {
            threshold: threshold,
            top: top,
            inverse: recip(temperature),
            min_p: if let Some(min_p) = min_p { min_p[r] } else { lit(0.0f32) },
        };
        let share = if let Some(top_p) = top_p { top_p[r] } else { lit(1.0f32) };
        let (seed, position) = (seeds[r], positions[r]);

        // All that stays before top-p, in units of the largest probability.
        let mut total = 0.0f32;
        if share < 1.0 {
            let sums = frag::<F32, 1>([threads]);
            zero(sums);
            for c in 0..steps {
                for i in parallel([threads]) {
                    let mut sum = sums[i];
                    for l in unroll(0..WORDS) {
                        sum += kept.weight(row.at(c * chunk + i * WORDS + l));
                    }
                    sums[i] = sum;
                }
            }
            total = reduce_sum(sums, 0);
        }

        // Only what ranks before this one is tried.
        let mut limit = INF;
        let mut limit_at = 0i32;
        loop {
            let (limit_now, limit_at_now) = (limit, limit_at);
            let score = frag::<F32, 1>([threads]);
            fill(score, NEG_INF);
            fill(at, -1);
            for c in 0..steps {
                for i in parallel([threads]) {
                    let t0 = c * chunk + i * WORDS;
                    let mut live = host!(Vec::new());
                    let mut any = host!(lit::<Bool, _>(false));
                    for l in unroll(0..WORDS) {
                        let x = row.at(t0 + l);
                        let inside = limit_now == INF || before(x, (t0 + l).value(), limit_now, limit_at_now);
                        let near = (top - x) * kept.inverse <= REACH;
                        let this = inside && near && kept.has(x);
                        any = host!(any | this);
                        live.push((x, this));
                    }
                    if any {
                        let mut best = score[i];
                        let mut token = at[i];
                        let words = philox::words(seed, position, (t0 / WORDS).to::<U32>());
                        for (l, (x, this)) in unroll(live.into_iter().enumerate()) {
                            let s = x * kept.inverse + philox::gumbel(words[l]);
                            let better = this && s > best;
                            best = select(better, s, best);
                            token = select(better, (t0 + l).value(), token);
                        }
                        score[i] = best;
                        at[i] = token;
                    }
                }
            }
            let (_, found) = winner(score, at);
            chosen = found;
            if share >= 1.0 {
                break;
            }
            let x = row.at(found.clamp_index(0, n - 1));
            let sums = frag::<F32, 1>([threads]);
            zero(sums);
            for c in 0..steps {
                for i in parallel([threads]) {
                    let mut sum = sums[i];
                    for l in unroll(0..WORDS) {
                        let t = c * chunk + i * WORDS + l;
                        let other = row.at(t);
                        sum += select(before(other, t.value(), x, found), kept.weight(other), 0.0);
                    }
                    sums[i] = sum;
                }
            }
            let better = reduce_sum(sums, 0);
            if better == 0.0 || better < share * total {
                break;
            }
            limit = x;
            limit_at = found;
        }
    }
    ids[r] = chosen;
}

/// The generator's numbers.
#[kernel(deterministic, batch_invariant(b))]
pub fn philox_uniform(cfg: &UniformConfig, seeds: In![I64; b], positions: In![I64; b], u: Out![F32; b, n]) {
    let (r, c) = grid((b, n.div_ceil(cfg.block)));
    for i in parallel([cfg.block / WORDS]) {
        let t0 = c * cfg.block + i * WORDS;
        let words = philox::words(seeds[r], positions[r], (t0 / WORDS).to::<U32>());
        for (l, word) in unroll(words.into_iter().enumerate()) {
            u[(r, t0 + l)] = philox::uniform(word);
        }
    }
}

/// Settings of a row.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// 0 for greedy.
    pub temperature: f64,
    /// 0 for off.
    pub top_k: usize,
    /// 1 for off.
    pub top_p: f64,
    /// 0 for off.
    pub min_p: f64,
    /// Seed and position.
    pub seed: (i64, i64),
}

/// The token of a row, filter by filter, with sorting; -1 if none is allowed.
pub fn reference(logits: &[f64], allowed: &dyn Fn(usize) -> bool, s: Settings) -> i64 {
    // Infinity is the largest number.
    let logits: Vec<f64> = logits.iter().map(|x| if *x == f64::INFINITY { f64::from(f32::MAX) } else { *x }).collect();
    let mut order: Vec<usize> =
        (0..logits.len()).filter(|&t| allowed(t) && !logits[t].is_nan() && logits[t] > f64::NEG_INFINITY).collect();
    // Stable: equal logits stay in the order of tokens.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let Some(&first) = order.first() else { return -1 };
    if s.temperature <= 0.0 {
        return first as i64;
    }
    if s.top_k > 0 && s.top_k < order.len() {
        let smallest = logits[order[s.top_k - 1]];
        order.retain(|&t| logits[t] >= smallest);
    }
    let weight = |t: usize| ((logits[t] - logits[first]) / s.temperature).exp();
    order.retain(|&t| weight(t) >= s.min_p);
    if s.top_p < 1.0 {
        let total: f64 = order.iter().map(|&t| weight(t)).sum();
        let mut sum = 0.0;
        let kept = order.iter().take_while(|&&t| {
            let stays = sum == 0.0 || sum < s.top_p * total;
            sum += weight(t);
            stays
        });
        order = kept.copied().collect();
    }
    let score = |t: usize| logits[t] / s.temperature - (-philox::uniform_of(s.seed.0, s.seed.1, t).ln()).ln();
    order.sort_unstable();
    let best = order.iter().copied().reduce(|a, b| if score(b) > score(a) { b } else { a });
    best.map_or(-1, |t| t as i64)
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Sampling;

const OP: &str = "sampling";
const TYPES: [Data; 2] = [Data::F32, Data::Bf16];

fn kernel_for(logits: Data) -> Arc<dyn KernelDef> {
    if logits == Data::Bf16 { sampling::kernel::<Bf16>() } else { sampling::kernel::<F32>() }
}

/// What a problem asks for: numbers of a vocabulary, or tokens.
enum Ask {
    Uniform { rows: usize, vocab: usize },
    Tokens { rows: usize, vocab: usize, dtype: Data, status: bool },
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Ask, OpError> {
    let seeds = p::input(OP, specs, "seeds", &[Data::I64], 1)?;
    let rows = seeds.shape[0];
    let of_row = |name: &str, dtype| -> Result<bool, OpError> {
        let t = p::optional_input(OP, specs, name, &[dtype], 1)?;
        t.map(|t| p::shaped(OP, t, &[rows], "one entry a row")).transpose().map(|t| t.is_some())
    };
    if !of_row("positions", Data::I64)? {
        return Err(p::refuse(OP, "needs the input `positions`, one a row"));
    }
    let Some(logits) = p::optional_input(OP, specs, "logits", &TYPES, 2)? else {
        return Ok(Ask::Uniform { rows, vocab: p::count(OP, params, "vocab", None)? });
    };
    let vocab = logits.shape[1];
    p::shaped(OP, logits, &[rows, vocab], "a row a seed")?;
    if vocab >= i32::MAX as usize {
        return Err(p::refuse(OP, format!("a vocabulary of {vocab}; expected below 2^31")));
    }
    if !of_row("temperature", Data::F32)? {
        return Err(p::refuse(OP, "needs the input `temperature`, one a row"));
    }
    of_row("top_k", Data::I32)?;
    of_row("top_p", Data::F32)?;
    of_row("min_p", Data::F32)?;
    if let Some(bits) = p::optional_input(OP, specs, "bitmask", &[Data::I32], 2)? {
        p::shaped(OP, bits, &[rows, vocab.div_ceil(32)], "a bit a token")?;
    }
    Ok(Ask::Tokens { rows, vocab, dtype: logits.dtype, status: p::flag(OP, params, "status", false)? })
}

impl OpSpec for Sampling {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("sampling"),
            family: "sampling",
            formula: "argmax of logits/T + Gumbel noise over top-k, min-p and top-p",
            source: "Gumbel, 1954; Salmon et al., 2011",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into_iter().chain([philox_uniform::kernel()]).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(match shape_of(specs, params)? {
            Ask::Uniform { rows, vocab } => vec![p::spec("u", Data::F32, &[rows, vocab])],
            Ask::Tokens { rows, status, .. } => {
                let mut outputs = vec![p::spec("token_ids", Data::I32, &[rows])];
                outputs.extend(status.then(|| p::spec("status", Data::I32, &[rows])));
                outputs
            }
        })
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let arg = |name: &str| p::arg(OP, problem, name);
        match shape_of(&p::checked(self, problem)?, &problem.params)? {
            Ask::Uniform { rows, vocab } => {
                let kernel = philox_uniform::kernel();
                let config = p::choose(configs, &kernel, &[("b", rows), ("n", vocab)]);
                Ok(p::single(kernel, config, vec![arg("seeds")?, arg("positions")?, arg("u")?]))
            }
            Ask::Tokens { rows, vocab, dtype, status } => {
                let kernel = kernel_for(dtype);
                let mut config = p::choose(configs, &kernel, &[("b", rows), ("n", vocab)]);
                // No more threads than groups of tokens: a short row is soon met by all.
                p::at_most(&mut config, "warps", vocab.div_ceil(32 * WORDS).next_power_of_two());
                let mut args = vec![arg("logits")?, arg("temperature")?];
                args.extend(["top_k", "top_p", "min_p", "bitmask"].map(|name| p::optional_arg(problem, name)));
                args.extend([arg("seeds")?, arg("positions")?, arg("token_ids")?]);
                args.push(if status { arg("status")? } else { Arg::Absent });
                Ok(p::single(kernel, config, args))
            }
        }
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let whole = |name: &str| -> Result<Vec<i64>, OpError> {
            let t = problem.tensors.get(name).ok_or_else(|| p::refuse(OP, format!("needs the tensor `{name}`")))?;
            Ok((0..t.num_elements()).map(|i| t.bits(i) as i64).collect())
        };
        let ask = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (seeds, positions) = (whole("seeds")?, whole("positions")?);
        match ask {
            Ask::Uniform { rows, vocab } => {
                let of_row = |r: usize| (0..vocab).map(move |t| (r, t));
                let u: Vec<f64> =
                    (0..rows).flat_map(of_row).map(|(r, t)| philox::uniform_of(seeds[r], positions[r], t)).collect();
                Ok([("u".into(), f32_tensor(&[rows, vocab], &u))].into())
            }
            Ask::Tokens { rows, vocab, status, .. } => {
                let logits = p::numbers(OP, problem, "logits")?;
                let column = |name: &str, default: f64| {
                    problem.tensors.get(name).map_or_else(|| vec![default; rows], HostTensor::to_f64)
                };
                let (temperature, top_k) = (column("temperature", 1.0), column("top_k", 0.0));
                let (top_p, min_p) = (column("top_p", 1.0), column("min_p", 0.0));
                let bits = problem.tensors.contains_key("bitmask").then(|| whole("bitmask")).transpose()?;
                let (mut ids, mut odd) = (vec![], vec![]);
                for r in 0..rows {
                    let line = &logits[r * vocab..][..vocab];
                    let words = vocab.div_ceil(32);
                    let allowed = |t: usize| bits.as_ref().is_none_or(|b| b[r * words + t / 32] >> (t % 32) & 1 == 1);
                    let settings = Settings {
                        temperature: temperature[r],
                        top_k: top_k[r].max(0.0) as usize,
                        top_p: top_p[r],
                        min_p: min_p[r],
                        seed: (seeds[r], positions[r]),
                    };
                    ids.push(reference(line, &allowed, settings) as i32);
                    odd.push(i32::from(line.iter().any(|x| x.is_nan())));
                }
                let mut outputs: BTreeMap<String, HostTensor> =
                    [("token_ids".into(), i32_tensor(&[rows], &ids))].into();
                if status {
                    outputs.insert("status".into(), i32_tensor(&[rows], &odd));
                }
                Ok(outputs)
            }
        }
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let rows = match shape_of(specs, params) {
            Ok(Ask::Uniform { rows, .. } | Ask::Tokens { rows, .. }) => rows,
            Err(_) => return vec![],
        };
        let cut = [
            "logits",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "bitmask",
            "seeds",
            "positions",
            "token_ids",
            "status",
            "u",
        ];
        vec![p::split("rows", rows, 1, &cut.map(|name| (name, 0, 1)))]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        // Quarters of logits far apart in steps, so that no score of an f32 evaluation can overtake another.
        let column = |name: &str, dtype, x: &[f64]| p::filled(name, dtype, &[x.len()], Fill::Values(x.to_vec()));
        let seeds = |rows: usize| -> Vec<f64> { (0..rows).map(|r| (r * r * 7 + 3) as f64).collect() };
        let make = |id: &str, dtype, vocab: usize, logits: Fill, rows: &[[f64; 4]], params: &[(&str, ParamValue)]| {
            let of = |at: usize| -> Vec<f64> { rows.iter().map(|row| row[at]).collect() };
            let inputs = vec![
                p::filled("logits", dtype, &[rows.len(), vocab], logits),
                column("temperature", Data::F32, &of(0)),
                column("top_k", Data::I32, &of(1)),
                column("top_p", Data::F32, &of(2)),
                column("min_p", Data::F32, &of(3)),
                column("seeds", Data::I64, &seeds(rows.len())),
                column("positions", Data::I64, &seeds(rows.len()).iter().map(|s| s * 5.0 + 1.0).collect::<Vec<_>>()),
            ];
            p::case(id, inputs, params)
        };
        let masked = |mut case: Case, vocab: usize, fill: Fill| {
            let rows = case.inputs[1].tensor.shape[0];
            case.inputs.push(p::filled("bitmask", Data::I32, &[rows, vocab.div_ceil(32)], fill));
            case
        };
        let status = [("status", ParamValue::Bool(true))];
        let odd: Vec<f64> = (0..3 * 70)
            .map(|i| match (i / 70, i % 5) {
                (0, _) => f64::NAN,
                (1, 0) => f64::NAN,
                (1, 1) => f64::INFINITY,
                (2, _) => f64::NEG_INFINITY,
                (_, x) => x as f64,
            })
            .collect();
        let (f32, bf16) = (Data::F32, Data::Bf16);
        let plain = [1.0, 0.0, 1.0, 0.0];
        vec![
            make("no_rows", f32, 100, Fill::Normal(1.0), &[], &[]),
            make("one_token", f32, 1, Fill::Normal(1.0), &[plain, [0.0, 5.0, 0.5, 0.5]], &[]),
            make("greedy_ties", f32, 9000, Fill::Constant(-0.0), &[[0.0, 0.0, 1.0, 0.0]], &[]),
            make(
                "ties_top_k_keeps_all",
                f32,
                300,
                Fill::Constant(2.0),
                &[[0.7, 3.0, 1.0, 0.0], [0.7, 3.0, 0.01, 0.0]],
                &[],
            ),
            make("plain_v5000_bf16", bf16, 5000, Fill::Normal(2.0), &[plain, [0.5, 0.0, 1.0, 0.0]], &[]),
            make(
                "filters_v5003",
                f32,
                5003,
                Fill::Normal(3.0),
                &[
                    [1.0, 50.0, 1.0, 0.0],
                    [1.0, 0.0, 0.8, 0.0],
                    [0.7, 0.0, 0.95, 0.05],
                    [1.3, 200.0, 0.5, 0.01],
                    [1.0, 1.0, 0.1, 0.0],
                ],
                &[],
            ),
            make("strange_logits", f32, 70, Fill::Values(odd), &[[1.0, 0.0, 0.9, 0.0], plain, plain], &status),
            masked(
                make(
                    "mask_v333",
                    f32,
                    333,
                    Fill::Normal(1.0),
                    &[plain, [1.0, 20.0, 0.9, 0.0], [0.0, 0.0, 1.0, 0.0]],
                    &status,
                ),
                333,
                Fill::Bits,
            ),
            masked(
                make("all_masked", f32, 64, Fill::Normal(1.0), &[plain, [0.0, 1.0, 0.5, 0.0]], &[]),
                64,
                Fill::Constant(0.0),
            ),
            p::case(
                "uniform",
                vec![column("seeds", Data::I64, &[0.0, 9e15, -1.0]), column("positions", Data::I64, &[0.0, -1.0, 8e9])],
                &[("vocab", ParamValue::Int(1030))],
            ),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["rows", "vocab", "topk", "topp_percent"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 4]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[64, 129_280, 0, 100], [64, 129_280, 50, 100], [64, 129_280, 0, 90], [256, 129_280, 0, 100]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [rows, vocab, k, percent] = p::bench_sizes(OP, shape, ["rows", "vocab", "topk", "topp_percent"])?;
        let inputs = vec![
            p::filled("logits", Data::F32, &[rows, vocab], Fill::Normal(3.0)),
            p::filled("temperature", Data::F32, &[rows], Fill::Constant(1.0)),
            p::filled("top_k", Data::I32, &[rows], Fill::Constant(k as f64)),
            p::filled("top_p", Data::F32, &[rows], Fill::Constant(percent as f64 / 100.0)),
            p::filled("seeds", Data::I64, &[rows], Fill::Uniform(0.0, 1e9)),
            p::filled("positions", Data::I64, &[rows], Fill::Uniform(0.0, 1e5)),
        ];
        Ok(p::case(format!("rows{rows}_vocab{vocab}_topk{k}_topp{percent}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
