//! Whole kernels of the families the language is for: norm, online softmax, combine, exact top-k. They build, and their
//! IR has the shape the text says.

mod common;

use common::{count, position, verified as build};
use dsl::prelude::*;
use kiln_codegen::ir::{Access, AtomicOp, Base, IxVarKind, Op, ParamKind, ReduceOp};

/// Config of `rmsnorm`.
#[derive(KernelConfig, Clone, Debug)]
pub struct RmsCfg {
    /// Rows a block.
    #[tune(1, 2, 4)]
    pub rows: usize,
    /// Warps a block.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

#[kernel(dims(h: fixed), require(h % 8 == 0), batch_invariant(t))]
fn rmsnorm<T: Float>(cfg: &RmsCfg, x: In![T; t, h], w: In![T; h], y: Out![T; t, h], eps: Scalar![F32]) {
    let rows = cfg.rows;
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(cfg.warps);

    let xf = frag::<F32, 2>([rows, h]);
    #[label(load)]
    copy_cast(x.at((r0, 0)), xf);
    let sq = map(xf, |v| v * v);
    let ss = reduce_sum(sq, 1);

    #[label(store)]
    for (i, j) in parallel([rows, h]) {
        let inv = rsqrt(ss[i] * (1.0 / h as f32) + eps);
        y[(r0 + i, j)] = (xf[(i, j)] * inv * w[j].to::<F32>()).to::<T>();
    }
}

#[test]
fn rmsnorm_has_the_ops_of_its_text() {
    let def = rmsnorm::kernel::<Bf16>();
    let k = build(&*def, &[("h", 64)]);
    let names: Vec<_> = k.block(k.body).ops.iter().map(|&o| k.op(o).op.name()).collect();
    assert_eq!(names, ["alloc", "copy", "alloc", "parallel", "alloc", "reduce", "parallel"]);
    assert_eq!(k.buffers.iter().map(|b| b.name.as_str()).collect::<Vec<_>>(), ["xf", "sq", "ss"]);
    assert_eq!(k.warps, 4);
    assert_eq!(k.fixed_dims, [("h".to_string(), 64)]);
    assert_eq!(k.properties.batch_invariant, ["t"]);
    assert!(matches!(k.params[3].kind, ParamKind::Scalar { .. }));
    assert!(matches!(k.params[2].kind, ParamKind::Tensor { access: Access::Out, .. }));
    let load = k.ops.iter().find(|o| o.op.name() == "copy").expect("the copy");
    assert_eq!(k.span_of(load.span).label.as_deref(), Some("load"));
    // The position of the op is the user's `copy_cast`.
    let (line, column) = position(&k, "copy");
    let source: Vec<_> = include_str!("examples.rs").lines().collect();
    assert!(source[line as usize - 1][column as usize - 1..].starts_with("copy_cast"));
    let (line, column) = position(&k, "rsqrt");
    assert!(source[line as usize - 1][column as usize - 1..].starts_with("rsqrt"));
    let indices: Vec<_> = k.ix_vars.iter().filter(|v| v.kind == IxVarKind::Element).map(|v| v.name.as_str()).collect();
    assert_eq!(indices[2..], ["i", "j"]);
}

#[test]
fn the_definition_describes_the_kernel() {
    let def = rmsnorm::kernel::<F16>();
    let info = def.info();
    assert_eq!(info.name, "rmsnorm");
    assert!(info.file.ends_with("examples.rs"));
    assert_eq!(info.dims.iter().map(|d| (d.name.as_str(), d.fixed)).collect::<Vec<_>>(), [("t", false), ("h", true)]);
    let space = def.space();
    assert_eq!(space.all().len(), 6);
    assert!(space.axes[1].numerics);
    assert_eq!(space.axes[0].doc, "Rows a block.");
    let dims = [("t".to_string(), 3), ("h".to_string(), 60)].into();
    assert_eq!(def.require(&dims, &space.default_config()), Err(vec!["h % 8 == 0".to_string()]));
}

/// Running maximum and sum of an online softmax: plain Rust data holding tiles.
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

#[kernel(dims(d: fixed), batch_invariant(b))]
fn online(scores: In![F32; b, n, d], out: Out![F32; b, d], scale_log2: Scalar![F32]) {
    let bi = grid(b);
    let s = frag::<F32, 2>([16, d]);
    let acc = frag::<F32, 2>([16, d]);
    let st = softmax_begin(16);
    zero(acc);
    for c in 0..n.div_ceil(16) {
        copy(scores.pick(bi).at((c * 16, 0)), s);
        for (i, j) in parallel([16, d]) {
            s[(i, j)] = select(c * 16 + i < n, s[(i, j)], NEG_INF);
        }
        let alpha = softmax_weights(&st, s, scale_log2);
        scale_rows(acc, alpha);
        for (i, j) in parallel([16, d]) {
            acc[(i, j)] += s[(i, j)];
        }
    }
    let sum = reduce_sum(acc, 0);
    copy(sum, out.pick(bi));
}

#[test]
fn online_softmax_inlines_its_functions() {
    let k = build(&*online::kernel(), &[("d", 32)]);
    let reduces: Vec<_> = k
        .ops
        .iter()
        .filter_map(|o| if let Op::Reduce { op, axis, .. } = o.op { Some((op, axis)) } else { None })
        .collect();
    assert_eq!(reduces, [(ReduceOp::Max, 1), (ReduceOp::Sum, 1), (ReduceOp::Sum, 0)]);
    let exp = k.ops.iter().find(|o| o.op.name() == "exp2").expect("an exponential");
    assert_eq!(&*k.span_of(exp.span).frames[0].function, "softmax_weights");
    let picked = k.views.iter().find(|v| !v.guards.is_empty()).expect("a picked view");
    assert!(matches!(picked.base, Base::Param(p) if p.0 == 0));
    assert_eq!(picked.extents.len(), 2);
}

#[kernel(dims(dv: fixed), batch_invariant(b))]
fn combine(
    cfg: &RmsCfg,
    o_part: In![F32; b, splits, hq, dv],
    lse: In![F32; b, splits, hq],
    lens: In![I32; b],
    out: Out![Bf16; b, hq, dv],
) {
    let (bi, h) = grid((b, hq));
    let own = lens[bi].clamp_index(0, splits * cfg.rows).div_ceil(cfg.rows);

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
fn combine_builds() {
    let k = build(&*combine::kernel(), &[("dv", 64)]);
    assert_eq!((count(&k, "for"), count(&k, "clamp_index"), k.grid.len()), (2, 1, 2));
    assert!(k.ix_vars.iter().any(|v| v.name == "s" && v.kind == IxVarKind::Loop));
}

/// Config of `radix_topk`.
#[derive(KernelConfig, Clone, Debug)]
pub struct TopkCfg {
    /// Candidates a step.
    #[tune(64, 128)]
    pub chunk: usize,
    /// Warps a block.
    #[default(8)]
    pub warps: usize,
}

#[kernel_fn]
fn sort_key(x: V<F32>) -> V<U32> {
    let u = x.bits();
    select((u >> 31) == 1, !u, u | 0x8000_0000)
}

#[kernel(dims(topk: fixed), deterministic, batch_invariant(rows))]
fn radix_topk(
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
    let mut prefix = 0u32;
    let mut need = want;

    if want > 0 {
        for pass in unroll(0..4) {
            let shift = 24 - 8 * pass as u32;
            let known = if pass == 0 { 0u32 } else { u32::MAX << (shift + 8) };
            zero(hist);
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

#[test]
fn topk_uses_scans_and_integer_atomics_only() {
    let k = build(&*radix_topk::kernel(), &[("topk", 32)]);
    assert!(k.properties.deterministic);
    assert_eq!((count(&k, "spread"), count(&k, "scan"), count(&k, "find_first"), count(&k, "put")), (4, 4 + 2, 4, 2));
    for o in &k.ops {
        if let Op::Atomic { op, result, .. } = &o.op {
            assert_eq!((*op, *result), (AtomicOp::Add, None));
        }
    }
    assert_eq!(k.warps, 8);
}

/// Config of `quant`.
#[derive(KernelConfig, Clone, Debug)]
pub struct QuantCfg {
    /// Rows a block.
    #[tune(2)]
    pub rows: usize,
}

#[kernel(dims(h: fixed), require(h % 128 == 0))]
fn quant(cfg: &QuantCfg, x: In![Bf16; t, h], q: Out![E4m3; t, h], sf: Out![E8m0; t, h / 128]) {
    let (rows, groups) = (cfg.rows, h / 128);
    let r0 = grid(t.div_ceil(rows)) * rows;
    let xf = frag::<F32, 2>([rows, h]);
    copy_cast(x.at((r0, 0)), xf);
    let amax = reduce_absmax(xf.reshape([rows, groups, 128]), 2);
    let inv = frag::<F32, 2>([rows, groups]);
    for (i, g) in parallel([rows, groups]) {
        let e = E8m0::ceil_from(max(amax[(i, g)], 1e-4) * (1.0 / E4m3::MAX));
        sf[(r0 + i, g)] = e;
        inv[(i, g)] = e.recip();
    }
    for (i, j) in parallel([rows, h]) {
        let v = clamp(xf[(i, j)] * inv[(i, j / 128)], -E4m3::MAX, E4m3::MAX);
        q[(r0 + i, j)] = fma(v, 1.0, abs(v) * 0.0).to::<E4m3>();
    }
}

#[test]
fn quantisation_builds() {
    let k = build(&*quant::kernel(), &[("h", 256)]);
    assert_eq!((count(&k, "reduce"), count(&k, "fma"), count(&k, "bits")), (1, 1, 4));
}
