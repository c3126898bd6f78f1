//! Dense decoding with latent attention by four roles, for chips whose warp groups have matrix units: the form that
//! `decode_dense` has on them where rows, keys and widths are whole pieces of those units.
//!
//! One group loads pages of keys into a ring, one multiplies queries with keys and makes weights, two multiply weights with
//! one half of the values each: the scores of a tile are computed once, and those of the next run beside the products of
//! this. A tile that ends behind the last key is filled by threads, with zeros there: memory that nobody wrote is never
//! multiplied, so that NaN stays in it.
//!
//! *Numerics*: as `decode_dense`, with maxima that are raised late, sums of weights over the four lanes that hold a row, and
//! outputs multiplied by the reciprocal of the sum.
//! *Source*: as `decode_dense`; roles for copies, scores and outputs: Shah et al., FlashAttention-3, 2024.

use super::decode_dense::DenseConfig;
use super::softmax::{softmax_add, softmax_begin, softmax_exponentials, softmax_raise};
use dsl::prelude::*;

/// Weights may pass the maximum of their row by two to this power before it is raised: they keep their eight bits, and sums
/// of a million of them their range.
const SLACK: f32 = 8.0;
/// Rows and keys of a tile, and columns of which a half of the values is a multiple.
const PIECE: usize = 64;

/// What the groups that make the output share.
struct Halves<O: Float> {
    keys: Ring<Bf16, 2>,
    weights: Mailbox<Bf16, 2>,
    shrinks: Mailbox<F32, 1>,
    factors: Mailbox<F32, 1>,
    out: Gm<O, 5, Wr>,
}

/// One split of some rows.
#[kernel(
    dims(h: fixed, dk: fixed, dv: fixed, page: fixed),
    require(
        dv <= dk,
        dk <= 576,
        cfg.rows == PIECE,
        cfg.keys == PIECE,
        dk % PIECE == 0,
        dv % (2 * PIECE) == 0,
        page % PIECE == 0,
        cfg.split_tokens % PIECE == 0,
    ),
    deterministic,
    batch_invariant(b),
)]
pub fn mla_decode_dense_roles<O: Float>(
    cfg: &DenseConfig,
    q: In![Bf16; b, sq, h, dk; strides(_, _, _, 1)],
    kv: In![Bf16; pages, page, dk; strides(_, _, 1)],
    table: In![I32; b, max_pages],
    lens: In![I32; b],
    out: Out![O; splits, b, sq, h, dv; strides(_, _, _, _, 1)],
    lse: Out![F32; splits, b, h, sq; strides(_, _, _, _)],
    scale_log2: Scalar![F32],
) {
    let (rows, tile) = (cfg.rows, cfg.keys);
    let (ri, bi, split) = grid(((sq * h).div_ceil(rows), b, splits));
    let r0 = ri * rows;
    let len = lens[bi].clamp_index(0, max_pages * page);
    let lo = split * cfg.split_tokens;
    let hi = (lo + cfg.split_tokens).min(len);
    let steps = hi.saturating_sub(lo).div_ceil(tile);
    let cache = kv.paged(table.pick(bi), page);

    let queries = shared::<Bf16, 2>([rows, dk]);
    for (i, d) in parallel([rows, dk]) {
        let r = r0 + i;
        queries[(i, d)] = q[(bi, r / h, r % h, d)];
    }

    let keys = ring::<Bf16, 2>([tile, dk], 2);
    let weights = mailbox::<Bf16, 2>([rows, tile]);
    let shrinks = mailbox::<F32, 1>([rows]);
    let factors = mailbox::<F32, 1>([rows]);
    let halves = Halves { keys, weights, shrinks, factors, out };

    roles(|r| {
        r.group("score", 1).registers(128).run(|| {
            let s = frag::<F32, 2>([rows, tile]);
            let state = softmax_begin(rows);
            for step in 0..steps {
                let pos = lo + step * tile;
                let k = keys.take();
                gemm_set(queries, k.tile().t(), s);
                k.release();
                // Only the last tiles hold keys that some row does not see.
                let hidden = if cfg.causal { pos + tile + sq > len + 1 } else { pos + tile > hi };
                if hidden {
                    for (i, j) in parallel([rows, tile]) {
                        let key = pos + j;
                        let seen = if cfg.causal { key < hi && key + sq <= len + (r0 + i) / h } else { key < hi };
                        s[(i, j)] = select(seen, s[(i, j)], NEG_INF);
                    }
                }
                let shrink = softmax_raise(&state, s, scale_log2, SLACK);
                shrinks.send(shrink);
                softmax_exponentials(&state, s, scale_log2);
                weights.send_cast(s);
                softmax_add(&state, s, shrink);
            }
            let factor = frag::<F32, 1>([rows]);
            for i in parallel([rows]) {
                let (query, head) = ((r0 + i) / h, (r0 + i) % h);
                let sum = state.sum[i];
                factor[i] = select(sum > 0.0, 1.0 / sum, 0.0);
                let log = state.max[i] * scale_log2 + log2(sum);
                if cfg.last {
                    lse[(split, bi, head, query)] = select(sum > 0.0, log * std::f32::consts::LN_2, INF);
                } else {
                    lse[(split, bi, head, query)] = log;
                }
            }
            factors.send(factor);
        });

        r.group("left", 1).registers(160).run(|| {
            half_of_output(&halves, [rows, dv / 2], 0, steps, |i: Ix| [split, bi, (r0 + i) / h, (r0 + i) % h]);
        });
        r.group("right", 1).registers(160).run(|| {
            half_of_output(&halves, [rows, dv / 2], dv / 2, steps, |i: Ix| [split, bi, (r0 + i) / h, (r0 + i) % h]);
        });

        r.group("load", 1).registers(64).run(|| {
            for step in 0..steps {
                let pos = lo + step * tile;
                let slot = keys.acquire();
                let k = slot.tile();
                if pos + tile <= hi {
                    copy(cache.at((pos, 0)), k);
                } else {
                    for (j, d) in parallel([tile, dk]) {
                        k[(j, d)] = select(pos + j < hi, cache[(pos + j, d)], V::<Bf16>::of(0.0));
                    }
                }
                slot.publish();
            }
        });
    });
}

/// A group's part of the output: the columns from `first` on.
#[kernel_fn]
fn half_of_output<O: Float, F: Fn(Ix) -> [Ix; 4]>(
    x: &Halves<O>,
    [rows, width]: [usize; 2],
    first: usize,
    steps: Ix,
    place: F,
) {
    let acc = frag::<F32, 2>([rows, width]);
    zero(acc);
    for _step in 0..steps {
        let k = x.keys.take();
        let shrink = x.shrinks.recv();
        let by = shrink.tile();
        for (i, d) in parallel([rows, width]) {
            acc[(i, d)] *= by[i];
        }
        shrink.release();
        let p = x.weights.recv();
        gemm(p.tile(), k.tile().cols(first, first + width), acc);
        p.release();
        k.release();
    }
    let factor = x.factors.recv();
    let by = factor.tile();
    let out = x.out;
    for (i, d) in parallel([rows, width]) {
        let [split, request, query, head] = place(i);
        out[(split, request, query, head, first + d)] = (acc[(i, d)] * by[i]).to::<O>();
    }
    factor.release();
}
