//! Matrix products, pipelined loops and looked-up rows: whole kernels that build and pass the verifier, and the IR of
//! single constructs.

mod common;

use common::{build, count, request, verified};
use dsl::prelude::*;
use kiln_codegen::compile;
use kiln_codegen::ir::{Gather, Kernel, Op, parse, print};
use kiln_codegen::spec::KernelDef;
use kiln_codegen::target::Target;
use std::sync::Arc;

/// The kernel passes the verifier, and its text reads back as itself.
#[track_caller]
fn accepted(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Kernel {
    let k = verified(def, fixed);
    let text = print::text(&k);
    let again = parse::kernel(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(print::text(&again), text);
    k
}

/// Config of `fp8_gemm`.
#[derive(KernelConfig, Clone, Debug)]
pub struct GemmCfg {
    /// Rows of an output tile.
    #[tune(64, 128)]
    pub bm: usize,
    /// Columns of an output tile.
    #[tune(64, 96, 128)]
    pub bn: usize,
    /// Depth of a step: one scale group.
    #[numerics]
    #[default(128)]
    pub bk: usize,
    /// Steps in flight.
    #[tune(3, 4)]
    pub stages: usize,
    /// Rows of a panel.
    #[tune(1, 8)]
    pub panel: usize,
}

#[kernel(dims(n: fixed, k: fixed), require(k % 128 == 0, cfg.bk == 128), batch_invariant(m))]
fn fp8_gemm<O: Float>(
    cfg: &GemmCfg,
    a: In![E4m3; m, k],
    sa: In![F32; k / 128, m],
    b: In![E4m3; n, k],
    sb: In![F32; ceil(n, 128), k / 128],
    out: Out![O; m, n],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);
    #[label(tiles)]
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(bn)), Raster::panels(cfg.panel)) {
        let a_s = shared::<E4m3, 2>([bm, bk]);
        let b_s = shared::<E4m3, 2>([bn, bk]);
        let sa_s = shared::<F32, 1>([bm]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);
        #[label(k_loop)]
        for ki in pipeline(0..k / bk, cfg.stages) {
            copy(a.at((mi * bm, ki * bk)), a_s);
            copy(b.at((ni * bn, ki * bk)), b_s);
            copy(sa.pick(ki).at(mi * bm), sa_s);
            #[label(mma)]
            gemm_scaled((a_s, |i: Ix| sa_s[i]), (b_s.t(), |j: Ix| sb[((ni * bn + j) / 128, ki)]), acc);
        }
        copy_cast(acc, out.at((mi * bm, ni * bn)));
    }
}

#[test]
fn the_fp8_gemm_builds() {
    let k = accepted(&*fp8_gemm::kernel::<Bf16>(), &[("n", 256), ("k", 512)]);
    assert_eq!((k.raster, k.grid.len(), count(&k, "gemm")), (Some(1), 2, 1));
    let stages = k.ops.iter().find_map(|o| if let Op::For { stages, .. } = o.op { Some(stages) } else { None });
    assert_eq!(stages, Some(3));
    let gemm = k.ops.iter().find(|o| o.op.name() == "gemm").expect("the product");
    let Op::Gemm { a, b, set: false, scales: Some([row, col]), .. } = &gemm.op else { panic!("{:?}", gemm.op) };
    assert_eq!(k.span_of(gemm.span).label.as_deref(), Some("mma"));
    assert_eq!(k.const_extents(*a), Some(vec![64, 128]));
    assert_eq!(k.const_extents(*b), Some(vec![128, 64]));
    assert_eq!((k.ix_var(row.var).name.as_str(), k.ix_var(col.var).name.as_str()), ("i", "j"));
    assert_eq!((k.block(row.body).ops.len(), k.block(col.body).ops.len()), (1, 1));
}

/// Config of the MLA kernels.
#[derive(KernelConfig, Clone, Debug)]
pub struct MlaCfg {
    /// Heads a block.
    #[tune(64, 128)]
    pub bh: usize,
    /// Keys a step.
    #[numerics]
    #[default(64)]
    pub bn: usize,
    /// Tokens a split.
    #[numerics]
    #[default(256)]
    pub split_tokens: usize,
    /// Steps in flight.
    #[tune(2, 1)]
    pub stages: usize,
}

struct OnlineSoftmax {
    m: Tile<F32, Frag, 1>,
    l: Tile<F32, Frag, 1>,
}

#[kernel_fn]
fn softmax_begin(rows: usize) -> OnlineSoftmax {
    let st = OnlineSoftmax { m: frag::<F32, 1>([rows]), l: frag::<F32, 1>([rows]) };
    fill(st.m, -1.0e30);
    zero(st.l);
    st
}

#[kernel_fn]
fn softmax_weights(st: &OnlineSoftmax, s: Tile<F32, Frag, 2>, scale_log2: V<F32>) -> Tile<F32, Frag, 1> {
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
fn scale_rows<S: Space>(acc: Tile<F32, Frag, 2>, by: Tile<F32, S, 1>) {
    for (i, d) in parallel([acc.extent(0), acc.extent(1)]) {
        acc[(i, d)] *= by[i];
    }
}

#[kernel_fn]
fn normalise_rows<S: Space>(acc: Tile<F32, Frag, 2>, sum: Tile<F32, S, 1>) {
    for (i, d) in parallel([acc.extent(0), acc.extent(1)]) {
        acc[(i, d)] = select(sum[i] > 0.0, acc[(i, d)] / sum[i], 0.0);
    }
}

#[kernel(
    dims(dk: fixed, dv: fixed, page: fixed),
    require(dv <= dk, page % cfg.bn == 0, cfg.split_tokens % cfg.bn == 0),
    batch_invariant(b)
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters are its interface")]
fn mla_decode_split(
    cfg: &MlaCfg,
    q: In![Bf16; b, hq, dk],
    kv: In![Bf16; pages, page, dk],
    table: In![I32; b, max_pages],
    lens: In![I32; b],
    o_part: Out![F32; b, splits, hq, dv],
    lse: Out![F32; b, splits, hq],
    scale_log2: Scalar![F32],
) {
    let (bh, bn) = (cfg.bh, cfg.bn);
    let (bi, hb, sp) = grid((b, hq.div_ceil(bh), splits));
    let len = lens[bi].clamp_index(0, max_pages * page);
    let lo = sp * cfg.split_tokens;
    let hi = (lo + cfg.split_tokens).min(len);
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
        copy(cache.at((pos, 0)), k_s);
        gemm_set(q_s, k_s.t(), s);
        for (i, j) in parallel([bh, bn]) {
            s[(i, j)] = select(pos + j < hi, s[(i, j)], NEG_INF);
        }
        let alpha = softmax_weights(&st, s, scale_log2);
        scale_rows(acc, alpha);
        copy_cast(s, p_s);
        gemm(p_s, k_s.cols(0, dv), acc);
    }

    normalise_rows(acc, st.l);
    copy(acc, o_part.pick(bi).pick(sp).at((hb * bh, 0)));
    for i in parallel([bh]) {
        lse[(bi, sp, hb * bh + i)] = st.m[i] * scale_log2 + log2(st.l[i]);
    }
}

#[test]
fn the_split_decode_builds() {
    let k = accepted(&*mla_decode_split::kernel(), &[("dk", 576), ("dv", 512), ("page", 64)]);
    let sets: Vec<_> =
        k.ops.iter().filter_map(|o| if let Op::Gemm { set, .. } = o.op { Some(set) } else { None }).collect();
    assert_eq!(sets, [true, false]);
    let cache = k.views.iter().find(|v| v.gather.is_some()).expect("the paged view");
    let Some(Gather::Paged { table, page, .. }) = cache.gather else { panic!("{cache:?}") };
    assert_eq!((page, k.view(table).guards.len(), cache.extents.len()), (64, 1, 2));
    let facts = kiln_codegen::valid::check(&k).expect("accepted");
    let copy = k.ops.iter().position(|o| matches!(&o.op, Op::Copy { src, .. } if k.view(src.view).gather.is_some()));
    let copy = kiln_codegen::ir::OpId(copy.expect("the copy of keys") as u32);
    assert!(facts.guards[&copy][0], "a looked-up row keeps its check");
}

#[kernel(dims(dv: fixed), batch_invariant(b))]
fn mla_combine(
    cfg: &MlaCfg,
    o_part: In![F32; b, splits, hq, dv],
    lse: In![F32; b, splits, hq],
    lens: In![I32; b],
    out: Out![Bf16; b, hq, dv],
) {
    let (bi, h) = grid((b, hq));
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

#[test]
fn the_combine_builds() {
    accepted(&*mla_combine::kernel(), &[("dv", 512)]);
}

/// Config of `indexer`.
#[derive(KernelConfig, Clone, Debug)]
pub struct IndexerCfg {
    /// Queries a block.
    #[tune(1, 2)]
    pub bq: usize,
    /// Keys a step.
    #[tune(64, 128)]
    pub bn: usize,
    /// Steps in flight.
    #[tune(2, 3)]
    pub stages: usize,
}

#[kernel(dims(heads: fixed, d: fixed), batch_invariant(t))]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters are its interface")]
fn indexer<T: Float>(
    cfg: &IndexerCfg,
    q: In![T; t, heads, d],
    k: In![T; s, d],
    k_scale: In![F32; s],
    w: In![F32; t, heads],
    first: In![I32; t],
    last: In![I32; t],
    logits: Out![F32; t, s],
) where
    (T, T, F32): Mma,
{
    let (bq, bn) = (cfg.bq, cfg.bn);
    let t0 = grid(t.div_ceil(bq)) * bq;
    let lo = tile_min([bq], |i| first.get_or(t0 + i, i32::MAX)).clamp_index(0, s);
    let hi = tile_max([bq], |i| last.get_or(t0 + i, 0)).clamp_index(0, s);
    let q_s = shared::<T, 2>([bq * heads, d]);
    let k_s = shared::<T, 2>([bn, d]);
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

#[test]
fn the_indexer_builds_for_two_formats() {
    let k = accepted(&*indexer::kernel::<E4m3>(), &[("heads", 32), ("d", 128)]);
    assert_eq!((count(&k, "gemm"), count(&k, "reduce")), (1, 1));
    accepted(&*indexer::kernel::<E2m1>(), &[("heads", 64), ("d", 128)]);
}

#[kernel(dims(d: fixed, topk: fixed))]
fn sparse(kv: In![Bf16; n, d], idx: In![I32; t, topk], q: In![Bf16; t, 16, d], out: Out![F32; t, 16, topk]) {
    let ti = grid(t);
    let rows = shared::<I32, 1>([64]);
    let k_s = shared::<Bf16, 2>([64, d]);
    let q_s = shared::<Bf16, 2>([16, d]);
    let s = frag::<F32, 2>([16, 64]);
    copy(q.pick(ti), q_s);
    for jb in pipeline(0..topk / 64, 2) {
        copy(idx.pick(ti).at(jb * 64), rows);
        copy(kv.rows(rows), k_s);
        gemm_set(q_s, k_s.t(), s);
        for (i, j) in parallel([16, 64]) {
            out[(ti, i, jb * 64 + j)] = select(kv.has_row(rows[j]), s[(i, j)], NEG_INF);
        }
    }
}

#[test]
fn rows_are_looked_up_in_a_tile() {
    let k = accepted(&*sparse::kernel(), &[("d", 64), ("topk", 128)]);
    let view = k.views.iter().find(|v| v.gather.is_some()).expect("the gathered view");
    let Some(Gather::Rows { rows, count }) = view.gather else { panic!("{view:?}") };
    assert_eq!(k.const_extents(rows), Some(vec![64]));
    assert_eq!(k.view(kiln_codegen::ir::ViewId(0)).extents[0], count);
}

#[kernel(dims(page: fixed))]
fn paged_mask(kv: In![F32; pages, page, 8], table: In![I32; slots], out: Out![I32; n]) {
    let b = grid(n.div_ceil(32)) * 32;
    let cache = kv.paged(table, page);
    for i in parallel([32]) {
        out[b + i] = select(cache.has_row(b + i), 1, 0);
    }
}

#[test]
fn rows_of_pages_are_looked_up_with_a_bound() {
    let k = accepted(&*paged_mask::kernel(), &[("page", 16)]);
    assert_eq!((count(&k, "load_or"), count(&k, "compare_index"), count(&k, "and")), (1, 4, 3));
}

#[kernel(dims(n: fixed))]
fn gate(x: In![F32; t, n], values: Out![F32; t, 8], places: Out![I32; t, 8]) {
    let ti = grid(t);
    let row = frag::<F32, 1>([n]);
    copy(x.pick(ti), row);
    let (v, p) = topk_small(row, 8);
    copy(v, values.pick(ti));
    copy(p, places.pick(ti));
}

#[test]
fn the_small_topk_is_a_composition() {
    let k = accepted(&*gate::kernel(), &[("n", 256)]);
    assert_eq!((count(&k, "find_first"), count(&k, "reduce_region"), count(&k, "for")), (1, 1, 1));
    let search = k.ops.iter().find(|o| o.op.name() == "find_first").expect("a search");
    assert_eq!(&*k.span_of(search.span).frames[0].function, "topk_small");
}

#[kernel]
fn views(x: In![F16; 64, 64], y: Out![F32; 32, 32]) {
    let b = grid(1);
    let xs = shared::<F16, 2>([64, 64]);
    let wide = frag::<F32, 2>([32, 32]);
    copy(x.at((b, 0)), xs);
    let slabs = xs.reshape([2, 32, 64]);
    gemm_set(slabs.pick(0), slabs.pick(1).t(), wide);
    gemm(slabs.pick(0).cols(0, 16), xs.cols(32, 48).t().cols(16, 48), wide);
    copy(wide, y);
}

#[test]
fn operands_are_views_of_tiles() {
    let k = accepted(&*views::kernel(), &[]);
    assert_eq!((count(&k, "gemm"), k.raster), (2, None));
}

#[test]
fn the_kernels_have_text_for_devices() {
    type Built = (Arc<dyn KernelDef>, Vec<(&'static str, usize)>);
    let all: [Built; 6] = [
        (fp8_gemm::kernel::<Bf16>(), vec![("n", 256), ("k", 512)]),
        (mla_combine::kernel(), vec![("dv", 512)]),
        (indexer::kernel::<E2m1>(), vec![("heads", 64), ("d", 128)]),
        (sparse::kernel(), vec![("d", 64), ("topk", 128)]),
        (gate::kernel(), vec![("n", 256)]),
        (views::kernel(), vec![]),
    ];
    for (def, fixed) in &all {
        let built = common::built(compile::build(&**def, &request(&**def, fixed)));
        for target in [Target::Sm80, Target::Sm90a] {
            if let Err(errors) = compile::source(&built, target) {
                panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
            }
        }
    }
}

// --- mistakes ---

/// `CODE message` of each error of a build.
fn errors(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Vec<String> {
    let errors = def.build(&request(def, fixed)).err().unwrap_or_default();
    errors.iter().map(|d| format!("{} {}", d.code, d.message)).collect()
}

#[kernel]
fn wrong_sizes(x: In![Bf16; 64, 32], y: Out![F32; 64, 64]) {
    let b = grid(1);
    let xs = shared::<Bf16, 2>([64, 32]);
    let acc = frag::<F32, 2>([64, 64]);
    copy(x.at((b, 0)), xs);
    zero(acc);
    gemm(xs, xs, acc);
    gemm(xs, xs.t().cols(0, 16), acc);
    gemm(xs.reshape([32, 64]), xs, acc.cols(0, 32).reshape([32, 64]).cols(0, 32));
    for _ in pipeline(0..4, 0) {
        gemm(xs, xs.t(), acc);
    }
    copy(acc, y);
}

#[test]
fn sizes_of_products_are_checked() {
    let found = errors(&*wrong_sizes::kernel(), &[]);
    assert_eq!(found[0], "B0209 inner sizes differ: A is 64x32, B is 64x32");
    assert_eq!(found[1], "B0209 the product is 64x16, the accumulator 64x64");
    assert!(found.iter().any(|e| e == "B0210 the accumulator is a part or another form of a tile"), "{found:?}");
    assert!(found.iter().any(|e| e == "B0211 a pipeline of 0 stages"), "{found:?}");
}

#[kernel]
fn behind_the_tiles(x: InOut![F32; n, m]) {
    let t = frag::<F32, 2>([8, 8]);
    for (i, j) in tile_loop((n.div_ceil(8), m.div_ceil(8)), Raster::rows()) {
        copy(x.at((i * 8, j * 8)), t);
        copy(t, x.at((i * 8, j * 8)));
    }
    zero(t);
}

#[kernel]
fn tiles_in_a_loop(x: InOut![F32; n, m]) {
    let t = frag::<F32, 2>([8, 8]);
    for _ in 0..4 {
        for (i, j) in tile_loop((n.div_ceil(8), m.div_ceil(8)), Raster::panels(0)) {
            copy(x.at((i * 8, j * 8)), t);
            copy(t, x.at((i * 8, j * 8)));
        }
    }
}

#[test]
fn the_kernel_ends_with_its_tile_loop() {
    assert_eq!(errors(&*behind_the_tiles::kernel(), &[]), ["B0108 a statement behind the `tile_loop`"]);
    let found = errors(&*tiles_in_a_loop::kernel(), &[]);
    assert!(found[0].starts_with("B0107") && found[1].starts_with("B0105"), "{found:?}");
}

#[kernel(dims(page: fixed))]
fn wrong_pages(kv: In![F32; pages, page, 8], table: In![I32; slots], out: Out![F32; n, 8]) {
    let b = grid(n.div_ceil(32)) * 32;
    let t = frag::<F32, 2>([32, 8]);
    copy(kv.paged(table, 32).at((b, 0)), t);
    let twice = kv.paged(table, page).rows(table);
    copy(twice.at((b, 0)), t);
    let row = frag::<F32, 1>([8]);
    copy(kv.paged(table, page).pick(b), row);
    copy(t, out.at((b, 0)));
}

#[test]
fn looked_up_rows_are_not_looked_up_again() {
    let found = errors(&*wrong_pages::kernel(), &[("page", 16)]);
    assert_eq!(found[0], "B0506 a page of 32 rows in a tensor whose pages have 16");
    assert_eq!(found[1], "B0507 `rows` of a view whose rows are looked up in a table");
    assert_eq!(found[2], "B0507 `pick` of a view whose rows are looked up in a table");
    assert_eq!(build(&*paged_mask::kernel(), &[("page", 16)]).raster, None);
}
