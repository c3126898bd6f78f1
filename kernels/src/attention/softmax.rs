//! Online softmax over tiles of keys, shared by the attention kernels: state, step, and writing of finished rows; and the
//! same attention in plain loops.
//!
//! Scores are kept unscaled; a weight is `exp2((score − maximum) · scale_log2)`, which stays exact for large scores. The
//! running maximum starts finite, so that a tile without visible keys makes no NaN. Weights are rounded to the type of the
//! values for the product with them and summed unrounded. Not a kernel.

use dsl::prelude::*;

/// Running maximum of unscaled scores and running sum of weights, a row each.
#[derive(Debug)]
pub struct OnlineSoftmax {
    /// Maximum.
    pub max: Tile<F32, Frag, 1>,
    /// Sum.
    pub sum: Tile<F32, Frag, 1>,
}

/// State before the first key.
#[kernel_fn]
pub fn softmax_begin(rows: usize) -> OnlineSoftmax {
    let max = frag::<F32, 1>([rows]);
    let sum = frag::<F32, 1>([rows]);
    fill(max, -1.0e30);
    zero(sum);
    OnlineSoftmax { max, sum }
}

/// Turns scores into weights; returns the factor by which older sums shrink.
#[kernel_fn]
pub fn softmax_weights(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, scale_log2: V<F32>) -> Tile<F32, Frag, 1> {
    let shrink = softmax_raise(st, s, scale_log2, 0.0);
    softmax_exponentials(st, s, scale_log2);
    softmax_add(st, s, shrink);
    shrink
}

/// Raises maxima to those of the scores, and returns the factor by which older sums shrink. With `slack` a maximum stays as
/// long as weights pass it by no more than two to that power: then older sums nearly always stay too.
#[kernel_fn]
pub fn softmax_raise(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, scale_log2: V<F32>, slack: f32) -> Tile<F32, Frag, 1> {
    let rows = s.extent(0);
    let shrink = frag::<F32, 1>([rows]);
    let top = reduce_max(s, 1);
    for i in parallel([rows]) {
        let top = max(st.max[i], top[i]);
        let larger = if slack > 0.0 { select((top - st.max[i]) * scale_log2 > slack, top, st.max[i]) } else { top };
        shrink[i] = exp2((st.max[i] - larger) * scale_log2);
        st.max[i] = larger;
    }
    shrink
}

/// Turns scores into weights.
#[kernel_fn]
pub fn softmax_exponentials(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, scale_log2: V<F32>) {
    for (i, j) in parallel([s.extent(0), s.extent(1)]) {
        s[(i, j)] = exp2((s[(i, j)] - st.max[i]) * scale_log2);
    }
}

/// Adds weights to the sums.
#[kernel_fn]
pub fn softmax_add(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, shrink: Tile<F32, Frag, 1>) {
    let part = reduce_sum(s, 1);
    for i in parallel([s.extent(0)]) {
        st.sum[i] = st.sum[i] * shrink[i] + part[i];
    }
}

/// Tiles of a block that works on `rows` queries and `keys` keys of type `T` at a time.
#[derive(Debug)]
pub struct Attention<T: Float> {
    /// Queries.
    pub q: Tile<T, Shared, 2>,
    /// Keys; their first columns are the values.
    pub k: Tile<T, Shared, 2>,
    /// Rounded weights.
    pub p: Tile<T, Shared, 2>,
    /// Scores.
    pub s: Tile<F32, Frag, 2>,
    /// Weighted sum of values.
    pub acc: Tile<F32, Frag, 2>,
    /// Softmax state.
    pub softmax: OnlineSoftmax,
}

/// Empty state.
#[kernel_fn]
pub fn attention_begin<T: Float>(rows: usize, keys: usize, dk: usize, dv: usize) -> Attention<T> {
    let q = shared::<T, 2>([rows, dk]);
    let k = shared::<T, 2>([keys, dk]);
    let p = shared::<T, 2>([rows, keys]);
    let s = frag::<F32, 2>([rows, keys]);
    let acc = frag::<F32, 2>([rows, dv]);
    zero(acc);
    Attention { q, k, p, s, acc, softmax: softmax_begin(rows) }
}

/// Takes in the keys in `a.k`, which are the values as well; `visible(i, j)` says whether query `i` sees key `j`. Invisible
/// keys must be finite.
#[kernel_fn]
pub fn attend<T: Float, F: Fn(Ix, Ix) -> V<Bool>>(a: &Attention<T>, scale_log2: V<F32>, visible: F)
where
    (T, T, F32): Mma,
{
    attend_values(a, a.k.cols(0, a.acc.extent(1)), None, scale_log2, visible);
}

/// Takes in the keys in `a.k` with their `values`, as [`attend`]. With a tile for the `rest`, what weights lose when they
/// are rounded to bf16 is multiplied as well: 16 bits of a weight instead of 8.
#[kernel_fn]
pub fn attend_values<T: Float, F: Fn(Ix, Ix) -> V<Bool>>(
    a: &Attention<T>,
    values: Tile<T, Shared, 2>,
    rest: Option<Tile<T, Shared, 2>>,
    scale_log2: V<F32>,
    visible: F,
) where
    (T, T, F32): Mma,
{
    let (s, acc) = (a.s, a.acc);
    gemm_set(a.q, a.k.t(), s);
    for (i, j) in parallel(s.extents()) {
        s[(i, j)] = select(visible(i, j), s[(i, j)], NEG_INF);
    }
    let shrink = softmax_weights(&a.softmax, s, scale_log2);
    for (i, d) in parallel(acc.extents()) {
        acc[(i, d)] *= shrink[i];
    }
    if let Some(rest) = rest {
        for (i, j) in parallel(s.extents()) {
            let near = s[(i, j)].to::<T>();
            a.p[(i, j)] = near;
            rest[(i, j)] = (s[(i, j)] - near.to::<F32>()).to::<T>();
        }
    } else {
        copy_cast(s, a.p);
    }
    gemm(a.p, values, acc);
    if let Some(rest) = rest {
        gemm(rest, values, acc);
    }
}

/// Where a block's rows go.
#[derive(Debug)]
pub struct Destination<O: Float> {
    /// `[splits, requests, queries, heads, dv]`.
    pub out: Gm<O, 5, Wr>,
    /// `[splits, requests, heads, queries]`: base 2 between splits and the merge, natural at the end.
    pub lse: Gm<F32, 4, Wr>,
    /// Logit of a key without value, a head each.
    pub sink: Option<Gm<F32, 1>>,
    /// No merge follows.
    pub last: bool,
}

/// Factor of the output for a sink of logit `sink` beside keys of natural log-sum-exp `lse`.
#[kernel_fn]
pub fn sink_factor(sink: V<F32>, lse: V<F32>) -> V<F32> {
    1.0 / (1.0 + exp(sink - lse))
}

/// Divides by the sums and writes; `place(i)` is the query and head of row `i`. A row that saw no key gives zeros.
#[kernel_fn]
pub fn attention_end<T: Float, O: Float, F: Fn(Ix) -> (Ix, Ix)>(
    a: &Attention<T>,
    to: &Destination<O>,
    scale_log2: V<F32>,
    split: Ix,
    request: Ix,
    place: F,
) {
    let [rows, dv] = a.acc.extents();
    let (acc, sum, top) = (a.acc, a.softmax.sum, a.softmax.max);
    let (out, lse) = (to.out, to.lse);
    let factor = frag::<F32, 1>([rows]);
    for i in parallel([rows]) {
        let (query, head) = place(i);
        let log = top[i] * scale_log2 + log2(sum[i]);
        if to.last {
            let natural = log * std::f32::consts::LN_2;
            factor[i] = if let Some(sink) = to.sink { sink_factor(sink[head], natural) } else { lit(1.0) };
            lse[(split, request, head, query)] = select(sum[i] > 0.0, natural, INF);
        } else {
            factor[i] = 1.0;
            lse[(split, request, head, query)] = log;
        }
    }
    for (i, d) in parallel([rows, dv]) {
        let (query, head) = place(i);
        let x = select(sum[i] > 0.0, acc[(i, d)] / sum[i] * factor[i], 0.0);
        out[(split, request, query, head, d)] = x.to::<O>();
    }
}

/// Attention of one query over the visible `keys`: output of `dv` numbers, and natural log-sum-exp without the sink.
pub fn reference(q: &[f64], keys: &[&[f64]], dv: usize, scale: f64, sink: Option<f64>) -> (Vec<f64>, f64) {
    if keys.is_empty() {
        return (vec![0.0; dv], f64::INFINITY);
    }
    let dot = |k: &[f64]| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * scale;
    let scores: Vec<f64> = keys.iter().map(|k| dot(k)).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
    let lse = top + sum.ln();
    let kept = sink.map_or(1.0, |t| 1.0 / (1.0 + (t - lse).exp()));
    let mut out = vec![0.0; dv];
    for (k, s) in keys.iter().zip(&scores) {
        let weight = (s - top).exp() / sum * kept;
        for (o, v) in out.iter_mut().zip(*k) {
            *o += weight * v;
        }
    }
    (out, lse)
}
