//! Lesson 3: whole kernels as they should read: a block-scaled product, a norm, paged attention with its combine, indexer
//! logits and an exact top-k.
//!
//! What is not a device value is ordinary Rust that runs while a kernel is built: `cfg.bm`, fixed dimensions, `unroll`
//! loops, `if cfg.flag`, functions, closures. Elements are addressed with a tuple, `t[(i, j)]`. Reads past an edge of a
//! tensor give zero and writes past it are dropped, on every target. `#[label(..)]` names a statement for schedules and
//! diagnostics; `#[numerics]` marks a config field that changes rounding. The operators of the library (`kernels`) cover
//! more cases than these texts; the tests beside the language run them on the VM and print them for each target.
#![allow(missing_docs, reason = "the section heads say what each kernel computes")]

use kiln::prelude::*;

// =================================================================================================
// 1. FP8 GEMM, per-token scales on A (1 x 128), per-block scales on B (128 x 128)
//    out[m, n] = sum_k  a[m, k] * sa[k / 128, m]  *  b[n, k] * sb[n / 128, k / 128]
// =================================================================================================

/// Config of [`fp8_gemm_1d2d`].
#[derive(KernelConfig, Clone, Debug)]
pub struct GemmCfg {
    #[tune(64, 128)]
    pub bm: usize,
    #[tune(64, 96, 128, 160)]
    pub bn: usize,
    /// One scale group per step, so the promotion order is fixed by this field.
    #[numerics]
    #[default(128)]
    pub bk: usize,
    #[tune(3, 4, 5, 6)]
    pub stages: usize,
    #[tune(1, 8, 16)]
    pub panel: usize,
}

#[kernel(
    dims(n: fixed, k: fixed),
    require(k % 128 == 0, cfg.bk == 128),
    batch_invariant(m),
)]
pub fn fp8_gemm_1d2d<O: Float>(
    cfg: &GemmCfg,
    a: In![E4m3; m, k],
    sa: In![F32; k / 128, m],
    b: In![E4m3; n, k],
    sb: In![F32; ceil(n, 128), k / 128],
    out: Out![O; m, n],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);

    // One loop over output tiles. Whether it becomes one block per tile, a persistent loop with a
    // static stride or a dynamic scheduler is decided by the schedule, not by this text.
    #[label(tiles)]
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(bn)), Raster::panels(cfg.panel)) {
        let a_s = shared::<E4m3, 2>([bm, bk]);
        let b_s = shared::<E4m3, 2>([bn, bk]);
        let sa_s = shared::<F32, 1>([bm]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);

        #[label(k_loop)]
        for ki in pipeline(0..k / bk, cfg.stages) {
            #[label(load_a)]
            copy(a.at((mi * bm, ki * bk)), a_s);
            #[label(load_b)]
            copy(b.at((ni * bn, ki * bk)), b_s);
            #[label(load_sa)]
            copy(sa.pick(ki).at(mi * bm), sa_s);
            // Two-level accumulation as one operation: partial product in the matrix unit, scaled
            // and added to `acc` in f32. Block-scaled hardware may use its own scale path when the
            // scales are powers of two; other targets get an explicit promotion step.
            #[label(mma)]
            gemm_scaled((a_s, |i: Ix| sa_s[i]), (b_s.t(), |j: Ix| sb[((ni * bn + j) / 128, ki)]), acc);
        }

        #[label(store)]
        copy_cast(acc, out.at((mi * bm, ni * bn)));
    }
}

// =================================================================================================
// 2. RMSNorm:  y = x * rsqrt(mean(x^2) + eps) * w
// =================================================================================================

/// Config of [`rmsnorm`].
#[derive(KernelConfig, Clone, Debug)]
pub struct RmsCfg {
    #[tune(1, 2, 4)]
    pub rows: usize,
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

#[kernel(dims(h: fixed), require(h % 8 == 0), batch_invariant(t))]
pub fn rmsnorm<T: Float>(cfg: &RmsCfg, x: In![T; t, h], w: In![T; h], y: Out![T; t, h], eps: Scalar![F32]) {
    let rows = cfg.rows;
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(cfg.warps);

    let xf = frag::<F32, 2>([rows, h]);
    copy_cast(x.at((r0, 0)), xf);
    let sq = map(xf, |v| v * v);
    let ss = reduce_sum(sq, 1);

    for (i, j) in parallel([rows, h]) {
        let inv = rsqrt(ss[i] * (1.0 / h as f32) + eps);
        y[(r0 + i, j)] = (xf[(i, j)] * inv * w[j].to::<F32>()).to::<T>();
    }
}

// =================================================================================================
// 3. MLA decode: paged latent KV cache, split over tokens, then combined
//    q: [batch, heads, dk]   cache page: [page, dk]   values are the first dv columns of the keys
// =================================================================================================

/// Config of [`mla_decode_split`] and [`mla_combine`].
#[derive(KernelConfig, Clone, Debug)]
pub struct MlaCfg {
    #[tune(64, 128)]
    pub bh: usize,
    #[numerics]
    #[default(16)]
    pub bn: usize,
    /// Tokens per split. The number of splits follows from a row's own length, never from the
    /// batch, so a row keeps its bits whatever it is batched with.
    #[numerics]
    #[default(32)]
    pub split_tokens: usize,
    #[tune(1, 2)]
    pub stages: usize,
}

/// Running maximum (of unscaled scores) and sum of an online softmax: plain Rust data holding tiles.
pub struct OnlineSoftmax {
    pub m: Tile<F32, Frag, 1>,
    pub l: Tile<F32, Frag, 1>,
}

#[kernel_fn]
pub fn softmax_begin(rows: usize) -> OnlineSoftmax {
    let st = OnlineSoftmax { m: frag::<F32, 1>([rows]), l: frag::<F32, 1>([rows]) };
    fill(st.m, -1.0e30); // finite: a fully masked first tile must not give inf - inf
    zero(st.l);
    st
}

/// Turns the score tile `s` into probabilities `exp2((s - m) * scale_log2)`; returns the factor by which older sums
/// must decay. Scaling after the subtraction keeps large scores exact.
#[kernel_fn]
pub fn softmax_weights(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, scale_log2: V<F32>) -> Tile<F32, Frag, 1> {
    let (rows, cols) = (s.extent(0), s.extent(1));
    let alpha = frag::<F32, 1>([rows]);
    let top = reduce_max(s, 1);
    for i in parallel([rows]) {
        let m_new = max(st.m[i], top[i]);
        alpha[i] = exp2((st.m[i] - m_new) * scale_log2);
        st.m[i] = m_new;
    }
    for (i, j) in parallel([rows, cols]) {
        s[(i, j)] = exp2((s[(i, j)] - st.m[i]) * scale_log2);
    }
    let part = reduce_sum(s, 1);
    for i in parallel([rows]) {
        st.l[i] = st.l[i] * alpha[i] + part[i];
    }
    alpha
}

#[kernel_fn]
pub fn scale_rows<S: Space>(acc: Tile<F32, Frag, 2>, by: Tile<F32, S, 1>) {
    for (i, d) in parallel([acc.extent(0), acc.extent(1)]) {
        acc[(i, d)] *= by[i];
    }
}

/// Divides each row by its sum; rows without any token become zero.
#[kernel_fn]
pub fn normalise_rows<S: Space>(acc: Tile<F32, Frag, 2>, sum: Tile<F32, S, 1>) {
    for (i, d) in parallel([acc.extent(0), acc.extent(1)]) {
        acc[(i, d)] = select(sum[i] > 0.0, acc[(i, d)] / sum[i], 0.0);
    }
}

#[kernel(
    dims(dk: fixed, dv: fixed, page: fixed),
    require(dv <= dk, page % cfg.bn == 0, cfg.split_tokens % cfg.bn == 0),
    batch_invariant(b),
)]
pub fn mla_decode_split(
    cfg: &MlaCfg,
    q: In![Bf16; b, hq, dk],
    kv: In![Bf16; pages, page, dk],
    table: In![I32; b, max_pages],
    lens: In![I32; b],
    o_part: Out![F32; b, splits, hq, dv],
    lse: Out![F32; b, splits, hq],
    scale_log2: Scalar![F32], // softmax scale times log2(e)
) {
    let (bh, bn) = (cfg.bh, cfg.bn);
    let (bi, hb, sp) = grid((b, hq.div_ceil(bh), splits));

    // Data becomes an index only through an explicit range, which then is a fact the verifier uses.
    let len = lens[bi].clamp_index(0, max_pages * page);
    let lo = sp * cfg.split_tokens;
    let hi = (lo + cfg.split_tokens).min(len);

    // A logical [tokens, dk] view; page arithmetic lives in one place, page ids are range-checked.
    let cache = kv.paged(table.pick(bi), page);

    let q_s = shared::<Bf16, 2>([bh, dk]);
    let k_s = shared::<Bf16, 2>([bn, dk]);
    let p_s = shared::<Bf16, 2>([bh, bn]);
    let s = frag::<F32, 2>([bh, bn]);
    let acc = frag::<F32, 2>([bh, dv]);
    let st = softmax_begin(bh);
    zero(acc);
    copy(q.pick(bi).at((hb * bh, 0)), q_s);

    #[label(kv_loop)]
    for jb in pipeline(0..hi.saturating_sub(lo).div_ceil(bn), cfg.stages) {
        let pos = lo + jb * bn;
        #[label(load_kv)]
        copy(cache.at((pos, 0)), k_s);
        #[label(qk)]
        gemm_set(q_s, k_s.t(), s);
        for (i, j) in parallel([bh, bn]) {
            s[(i, j)] = select(pos + j < hi, s[(i, j)], NEG_INF);
        }
        #[label(softmax)]
        let alpha = softmax_weights(&st, s, scale_log2);
        scale_rows(acc, alpha);
        copy_cast(s, p_s);
        #[label(pv)]
        gemm(p_s, k_s.cols(0, dv), acc);
    }

    normalise_rows(acc, st.l);
    copy(acc, o_part.pick(bi).pick(sp).at((hb * bh, 0)));
    for i in parallel([bh]) {
        lse[(bi, sp, hb * bh + i)] = st.m[i] * scale_log2 + log2(st.l[i]); // base 2 between split and combine
    }
}

#[kernel(dims(dv: fixed), batch_invariant(b))]
pub fn mla_combine(
    cfg: &MlaCfg,
    o_part: In![F32; b, splits, hq, dv],
    lse: In![F32; b, splits, hq],
    lens: In![I32; b],
    out: Out![Bf16; b, hq, dv],
) {
    let (bi, h) = grid((b, hq));
    // Only the splits this row really has; padding splits of longer rows are never touched.
    let own = lens[bi].clamp_index(0, splits * cfg.split_tokens).div_ceil(cfg.split_tokens);

    let mut top = NEG_INF;
    for s in 0..own {
        top = max(top, lse[(bi, s, h)]);
    }
    let mut norm = 0.0f32;
    let acc = frag::<F32, 1>([dv]);
    zero(acc);
    for s in 0..own {
        let wgt = exp2(lse[(bi, s, h)] - top);
        norm += wgt;
        for d in parallel([dv]) {
            acc[d] += o_part[(bi, s, h, d)] * wgt;
        }
    }
    for d in parallel([dv]) {
        acc[d] = select(norm > 0.0, acc[d] / norm, 0.0);
    }
    copy_cast(acc, out.pick(bi).pick(h).at(0));
}

// =================================================================================================
// 4. Lightning indexer: logits[t, s] = k_scale[s] * sum_h relu(q[t, h, :] . k[s, :]) * w[t, h]
// =================================================================================================

/// Config of [`indexer_logits`].
#[derive(KernelConfig, Clone, Debug)]
pub struct IndexerCfg {
    #[tune(1, 2, 4)]
    pub bq: usize,
    #[tune(64, 128, 256)]
    pub bn: usize,
    #[tune(2, 3, 4)]
    pub stages: usize,
}

#[kernel(dims(heads: fixed, d: fixed), batch_invariant(t))]
pub fn indexer_logits(
    cfg: &IndexerCfg,
    q: In![E4m3; t, heads, d],
    k: In![E4m3; s, d],
    k_scale: In![F32; s],
    w: In![F32; t, heads],
    first: In![I32; t],
    last: In![I32; t],
    logits: Out![F32; t, s],
) {
    let (bq, bn) = (cfg.bq, cfg.bn);
    let t0 = grid(t.div_ceil(bq)) * bq;

    // Key range needed by any query of this block. Rows past the end contribute neutral values.
    let lo = tile_min([bq], |i| first.get_or(t0 + i, i32::MAX)).clamp_index(0, s);
    let hi = tile_max([bq], |i| last.get_or(t0 + i, 0)).clamp_index(0, s);

    let q_s = shared::<E4m3, 2>([bq * heads, d]);
    let k_s = shared::<E4m3, 2>([bn, d]);
    let ks_s = shared::<F32, 1>([bn]);
    let w_f = frag::<F32, 2>([bq, heads]);
    let dots = frag::<F32, 2>([bn, bq * heads]);
    copy(q.merge_leading().at((t0 * heads, 0)), q_s);
    copy(w.at((t0, 0)), w_f);

    #[label(key_loop)]
    for jb in pipeline(lo / bn..hi.div_ceil(bn), cfg.stages) {
        copy(k.at((jb * bn, 0)), k_s);
        copy(k_scale.at(jb * bn), ks_s);
        gemm_set(k_s, q_s.t(), dots);

        let per_head = dots.reshape([bn, bq, heads]);
        for (n, i, h) in parallel([bn, bq, heads]) {
            per_head[(n, i, h)] = max(per_head[(n, i, h)], 0.0) * w_f[(i, h)];
        }
        let sum = reduce_sum(per_head, 2);

        for (i, n) in parallel([bq, bn]) {
            let pos = jb * bn + n;
            let row = t0 + i;
            let inside = pos.value() >= first.get_or(row, 0) && pos.value() < last.get_or(row, 0);
            logits[(row, pos)] = select(inside, sum[(n, i)] * ks_s[n], NEG_INF);
        }
    }
}

// =================================================================================================
// 5. Exact top-k by radix selection. Deterministic: equal scores keep the smaller index, and the
//    output lists larger-than-threshold entries first, both groups in index order. No assumption
//    about how many candidates share a radix bucket.
// =================================================================================================

/// Config of [`radix_topk`].
#[derive(KernelConfig, Clone, Debug)]
pub struct TopkCfg {
    #[tune(1024, 2048, 4096)]
    pub chunk: usize,
    #[tune(8, 16, 32)]
    pub warps: usize,
}

/// Maps a float to an unsigned integer with the same order (NaN sorts by its bit pattern).
#[kernel_fn]
pub fn sort_key(x: V<F32>) -> V<U32> {
    let u = x.bits();
    select((u >> 31) == 1, !u, u | 0x8000_0000)
}

#[kernel(dims(topk: fixed), deterministic, batch_invariant(rows))]
pub fn radix_topk(
    cfg: &TopkCfg,
    scores: In![F32; rows, n],
    first: In![I32; rows],
    last: In![I32; rows],
    idx: Out![I32; rows, topk],
) {
    let chunk = cfg.chunk;
    let row = grid(rows);
    warps(cfg.warps);
    let beg = first[row].clamp_index(0, n);
    let end = last[row].clamp_index(0, n);
    let total = end.saturating_sub(beg);
    let want = total.min(topk).to::<U32>();

    for j in parallel([topk]) {
        idx[(row, j)] = -1;
    }

    let hist = shared::<U32, 1>([256]);
    let mut prefix = 0u32; // bits of the threshold key found so far
    let mut need = want; // how many entries the current bucket still has to supply

    if want > 0 {
        for pass in unroll(0..4) {
            let shift = 24 - 8 * pass as u32;
            let known = if pass == 0 { 0u32 } else { u32::MAX << (shift + 8) }; // host `if`: one arm is evaluated
            zero(hist);
            // One bulk-synchronous phase: iterations are spread over the block's threads and all
            // of its effects are visible to the next statement. Integer adds commute.
            for i in spread(beg..end) {
                let key = sort_key(scores[(row, i)]);
                if (key & known) == (prefix & known) {
                    hist.atomic_add(((key >> shift) & 255).clamp_index(0, 255), 1);
                }
            }
            let above = suffix_sum_exclusive(hist);
            let bin = find_first([256], |b| above[b] < need && above[b] + hist[b] >= need);
            need = need - above[bin];
            prefix = prefix | (bin.to::<U32>() << shift);
        }

        let larger = want - need;
        let mut at_gt = 0u32;
        let mut at_eq = 0u32;
        let is_gt = frag::<U32, 1>([chunk]);
        let is_eq = frag::<U32, 1>([chunk]);
        for c in 0..total.div_ceil(chunk) {
            let p0 = beg + c * chunk;
            for i in parallel([chunk]) {
                let key = sort_key(scores.get_or((row, p0 + i), NEG_INF));
                let live = p0 + i < end;
                is_gt[i] = select(live && key > prefix, 1, 0);
                is_eq[i] = select(live && key == prefix, 1, 0);
            }
            let (gt_pos, gt_n) = prefix_sum_exclusive(is_gt);
            let (eq_pos, eq_n) = prefix_sum_exclusive(is_eq);
            for i in parallel([chunk]) {
                if is_gt[i] == 1 {
                    idx.put((row, at_gt + gt_pos[i]), (p0 + i).to::<I32>());
                }
                if is_eq[i] == 1 && at_eq + eq_pos[i] < need {
                    idx.put((row, larger + at_eq + eq_pos[i]), (p0 + i).to::<I32>());
                }
            }
            at_gt += gt_n;
            at_eq += eq_n;
        }
    }
}

// =================================================================================================
// 6. MLA decode with roles (level 2): one role loads keys, one computes scores and the left half of the output, one the
//    right half. What level 1 cannot say: the scores of a tile are computed once and used by two roles.
// =================================================================================================

#[kernel(
    dims(dk: fixed, dv: fixed, page: fixed),
    require(dv <= dk, dv % 16 == 0, page % cfg.bn == 0, cfg.split_tokens % cfg.bn == 0),
    batch_invariant(b),
)]
pub fn mla_decode_split_sm90(
    cfg: &MlaCfg,
    q: In![Bf16; b, hq, dk],
    kv: In![Bf16; pages, page, dk],
    table: In![I32; b, max_pages],
    lens: In![I32; b],
    o_part: Out![F32; b, splits, hq, dv],
    lse: Out![F32; b, splits, hq],
    scale_log2: Scalar![F32], // softmax scale times log2(e)
) {
    let (bh, bn, half) = (cfg.bh, cfg.bn, dv / 2);
    let (bi, hb, sp) = grid((b, hq.div_ceil(bh), splits));
    let len = lens[bi].clamp_index(0, max_pages * page);
    let lo = sp * cfg.split_tokens;
    let hi = (lo + cfg.split_tokens).min(len);
    let blocks = hi.saturating_sub(lo).div_ceil(bn);
    let cache = kv.paged(table.pick(bi), page);
    let out_rows = o_part.pick(bi).pick(sp);

    let q_s = shared::<Bf16, 2>([bh, dk]);
    copy(q.pick(bi).at((hb * bh, 0)), q_s);

    let keys = ring::<Bf16, 2>([bn, dk], 2);
    let probs = mailbox::<Bf16, 2>([bh, bn]);
    let decay = mailbox::<F32, 1>([bh]);
    let sums = mailbox::<F32, 1>([bh]);

    roles(|r| {
        r.group("load", 1).registers(80).run(|| {
            for jb in 0..blocks {
                let slot = keys.acquire(); // waits until every reader has released this slot
                slot.fill(cache.at((lo + jb * bn, 0)));
                slot.publish();
            }
        });

        r.group("left", 1).registers(240).run(|| {
            let s = frag::<F32, 2>([bh, bn]);
            let acc = frag::<F32, 2>([bh, half]);
            let st = softmax_begin(bh);
            zero(acc);
            for jb in 0..blocks {
                let k = keys.take();
                gemm_set(q_s, k.tile().t(), s);
                for (i, j) in parallel([bh, bn]) {
                    s[(i, j)] = select(lo + jb * bn + j < hi, s[(i, j)], NEG_INF);
                }
                let alpha = softmax_weights(&st, s, scale_log2);
                decay.send(alpha);
                let p = probs.send_cast(s); // the sender may read it until its next send
                scale_rows(acc, alpha);
                let pv = gemm_async(p, k.tile().cols(0, half), acc);
                pv.wait();
                k.release();
            }
            sums.send(st.l);
            normalise_rows(acc, st.l);
            copy(acc, out_rows.at((hb * bh, 0)));
            for i in parallel([bh]) {
                lse[(bi, sp, hb * bh + i)] = st.m[i] * scale_log2 + log2(st.l[i]); // base 2 between split and combine
            }
        });

        r.group("right", 1).registers(168).run(|| {
            let acc = frag::<F32, 2>([bh, half]);
            zero(acc);
            for _jb in 0..blocks {
                let k = keys.take();
                let (a, p) = (decay.recv(), probs.recv());
                scale_rows(acc, a.tile());
                gemm(p.tile(), k.tile().cols(half, dv), acc);
                a.release();
                p.release();
                k.release();
            }
            let l = sums.recv();
            normalise_rows(acc, l.tile());
            l.release();
            copy(acc, out_rows.at((hb * bh, half)));
        });
    });
}
