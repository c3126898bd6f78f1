//! What the index kernels share: the sum over heads, and the plain loops. Not a kernel.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::OpError;

/// `out[n, i] = Σ_h max(dots[n, i·heads + h], 0) · weights[i, h]`, the score of key `n` for query `i` without key scale.
#[kernel_fn]
pub fn head_sums(dots: Tile<F32, Frag, 2>, weights: Tile<F32, Frag, 2>) -> Tile<F32, Frag, 2> {
    let (keys, queries, heads) = host!((dots.extent(0), weights.extent(0), weights.extent(1)));
    let per_head = dots.reshape([keys, queries, heads]);
    let parts = frag::<F32, 3>([keys, queries, heads]);
    for (n, i, h) in parallel([keys, queries, heads]) {
        parts[(n, i, h)] = max(per_head[(n, i, h)], 0.0) * weights[(i, h)];
    }
    reduce_sum(parts, 2)
}

/// Keys a query may see.
pub(super) struct Range {
    pub first: usize,
    pub last: usize,
}

/// The plain loops for one query: `q` `[heads, d]` and `weights` `[heads]`, with `key(j)` giving key `j` as numbers; minus
/// infinity outside `range`, `columns` scores in all.
pub(super) fn scores(
    q: &[f64],
    weights: &[f64],
    range: Range,
    columns: usize,
    key: &dyn Fn(usize) -> Vec<f64>,
) -> Vec<f64> {
    let d = q.len() / weights.len().max(1);
    let score = |j: usize| {
        if j < range.first || j >= range.last {
            return f64::NEG_INFINITY;
        }
        let key = key(j);
        let dot = |h: usize| (0..d).map(|l| q[h * d + l] * key[l]).sum::<f64>();
        (0..weights.len()).map(|h| dot(h).max(0.0) * weights[h]).sum()
    };
    (0..columns).map(score).collect()
}

/// Ranges of the keys of contiguous queries, from both tensors of bounds.
pub(super) fn ranges(op: &str, problem: &kiln_codegen::spec::HostProblem) -> Result<Vec<Range>, OpError> {
    let first = p::numbers(op, problem, "cu_seq_len_k_start")?;
    let last = p::numbers(op, problem, "cu_seq_len_k_end")?;
    let range = |(a, b): (f64, f64)| Range { first: a.max(0.0) as usize, last: b.max(0.0) as usize };
    Ok(first.into_iter().zip(last).map(range).collect())
}

/// The output of a reference.
pub(super) fn logits(shape: &[usize], rows: Vec<f64>) -> [(String, HostTensor); 1] {
    [("logits".into(), f32_tensor(shape, &rows))]
}
