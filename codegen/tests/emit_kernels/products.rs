//! Kernels with matrix products, attention, and tensors whose rows a table names.

use super::builder::{D, K};
use kiln_codegen::ir::*;

/// `c = a b^T` in bf16, tiles of `bm x bn`, `bk` of k at a time.
pub fn gemm_bf16(bm: usize, bn: usize, bk: usize, warps: usize, stages: usize) -> Kernel {
    let mut k = K::new("gemm_bf16", warps);
    let (m, n, depth) = (D::S("m", 1), D::S("n", 8), D::S("k", 8));
    let a = k.tensor("a", DType::Bf16, Access::In, &[m, depth]);
    let b = k.tensor("b", DType::Bf16, Access::In, &[n, depth]);
    let c = k.tensor("c", DType::Bf16, Access::Out, &[m, n]);
    let (r0, c0) = k.grid2(m, n, bm, bn);
    let zero = k.c(0);
    let (acc, accv) = k.frag("acc", DType::F32, &[bm, bn]);
    let (_, at) = k.tile("at", DType::Bf16, &[bm, bk], Space::Shared);
    let (_, bt) = k.tile("bt", DType::Bf16, &[bn, bk], Space::Shared);
    let none = k.f32(0.0);
    k.fill(accv, none);
    let (dim, step) = (k.dim(depth), k.c(bk as i64));
    let turns = k.b.ix_div_ceil(dim, step);
    let right = k.t(bt);
    k.pipeline("kb", zero, turns, stages, |k, kb| {
        let k0 = k.mul(kb, bk as i64);
        k.copy(a, &[r0, k0], at, &[zero, zero], &[bm, bk]);
        k.copy(b, &[c0, k0], bt, &[zero, zero], &[bn, bk]);
        k.gemm(at, right, acc, false);
    });
    k.copy(accv, &[zero, zero], c, &[r0, c0], &[bm, bn]);
    k.done()
}

/// `c = a b^T` in e4m3 with a scale for 128 values of k of each row of `a`, and of 128 rows of `b`.
pub fn gemm_fp8(bm: usize, bn: usize, warps: usize) -> Kernel {
    let mut k = K::new("gemm_fp8", warps);
    let (m, n, blocks) = (D::S("m", 1), D::C(256), D::S("kb", 1));
    let (dm, dn, db) = (k.dim(m), k.dim(n), k.dim(blocks));
    let (depth, nb) = (k.mul(db, 128), k.div(dn, 128));
    let a = k.tensor_of("a", DType::E4m3, Access::In, &[dm, depth]);
    let b = k.tensor_of("b", DType::E4m3, Access::In, &[dn, depth]);
    let sa = k.tensor_of("sfa", DType::F32, Access::In, &[dm, db]);
    let sb = k.tensor_of("sfb", DType::F32, Access::In, &[nb, db]);
    let c = k.tensor("c", DType::Bf16, Access::Out, &[m, n]);
    let (r0, c0) = k.grid2(m, n, bm, bn);
    let zero = k.c(0);
    let (acc, accv) = k.frag("acc", DType::F32, &[bm, bn]);
    let (_, at) = k.tile("at", DType::E4m3, &[bm, 128], Space::Shared);
    let (_, bt) = k.tile("bt", DType::E4m3, &[bn, 128], Space::Shared);
    let none = k.f32(0.0);
    k.fill(accv, none);
    let right = k.t(bt);
    k.for_loop("step", zero, db, |k, s| {
        let k0 = k.mul(s, 128);
        k.copy(a, &[r0, k0], at, &[zero, zero], &[bm, 128]);
        k.copy(b, &[c0, k0], bt, &[zero, zero], &[bn, 128]);
        let row = |k: &mut K, i: IxId| {
            let r = k.add(r0, i);
            k.load(sa, &[r, s])
        };
        let column = |k: &mut K, j: IxId| {
            let c = k.add(c0, j);
            let c = k.div(c, 128);
            k.load(sb, &[c, s])
        };
        k.gemm_scaled(at, right, acc, row, column);
    });
    k.copy(accv, &[zero, zero], c, &[r0, c0], &[bm, bn]);
    k.done()
}

/// One tile of e2m1 by e2m1 with scales of 32 values of k in e8m0.
pub fn gemm_fp4() -> Kernel {
    let mut k = K::new("gemm_fp4", 2);
    let (m, n) = (D::C(24), D::C(32));
    let a = k.tensor("a", DType::E2m1, Access::In, &[m, D::C(64)]);
    let b = k.tensor("b", DType::E2m1, Access::In, &[n, D::C(64)]);
    let sa = k.tensor("sfa", DType::E8m0, Access::In, &[m, D::C(2)]);
    let c = k.tensor("c", DType::F32, Access::Out, &[m, n]);
    let copy = k.tensor("copy", DType::E2m1, Access::Out, &[n, D::C(64)]);
    let dim = k.dim(m);
    let r0 = k.grid1(dim, 32);
    let zero = k.c(0);
    let (acc, accv) = k.frag("acc", DType::F32, &[32, 32]);
    let (_, at) = k.tile("at", DType::E2m1, &[32, 32], Space::Shared);
    let (_, bt) = k.tile("bt", DType::E2m1, &[32, 32], Space::Shared);
    let none = k.f32(0.0);
    k.fill(accv, none);
    let right = k.t(bt);
    let two = k.c(2);
    k.for_loop("s", zero, two, |k, s| {
        let k0 = k.mul(s, 32);
        k.copy(a, &[r0, k0], at, &[zero, zero], &[32, 32]);
        k.copy(b, &[zero, k0], bt, &[zero, zero], &[32, 32]);
        let row = |k: &mut K, i: IxId| {
            let r = k.add(r0, i);
            let x = k.load(sa, &[r, s]);
            k.cast(DType::F32, x)
        };
        k.gemm_scaled(at, right, acc, row, |k, _| k.f32(0.5));
        k.copy(bt, &[zero, zero], copy, &[zero, k0], &[32, 32]);
    });
    k.copy(accv, &[zero, zero], c, &[r0, zero], &[32, 32]);
    k.done()
}

/// Sizes that fit no instruction, operands in f16 (both ways round) and in f32.
pub fn gemm_odd() -> Kernel {
    let mut k = K::new("gemm_odd", 2);
    let a = k.tensor("a", DType::F16, Access::In, &[D::C(20), D::C(24)]);
    let b = k.tensor("b", DType::F16, Access::In, &[D::C(24), D::C(40)]);
    let d = k.tensor("d", DType::F16, Access::In, &[D::C(32), D::C(24)]);
    let f = k.tensor("f", DType::F32, Access::In, &[D::C(20), D::C(24)]);
    let out = k.tensor("out", DType::F32, Access::Out, &[D::C(2), D::C(24), D::C(40)]);
    let one = k.c(1);
    k.b.grid(&[one]);
    let zero = k.c(0);
    let (_, at) = k.tile("at", DType::F16, &[20, 24], Space::Shared);
    let (_, bt) = k.tile("bt", DType::F16, &[24, 40], Space::Shared);
    let (_, dt) = k.tile("dt", DType::F16, &[32, 24], Space::Shared);
    let (_, ft) = k.tile("ft", DType::F32, &[20, 24], Space::Shared);
    let (s, sv) = k.frag("s", DType::F32, &[20, 40]);
    let (g, gv) = k.frag("g", DType::F32, &[20, 24]);
    let none = k.f32(1.0);
    k.copy(a, &[zero, zero], at, &[zero, zero], &[20, 24]);
    k.copy(b, &[zero, zero], bt, &[zero, zero], &[24, 40]);
    k.copy(d, &[zero, zero], dt, &[zero, zero], &[32, 24]);
    k.copy(f, &[zero, zero], ft, &[zero, zero], &[20, 24]);
    k.gemm(at, bt, s, true);
    let turned = k.t(dt);
    // The same bytes with rows of another length, which are not aligned.
    let mut v = k.b.kernel.view(bt).clone();
    v.extents = vec![k.c(32), k.c(30)];
    v.strides = vec![k.c(30), k.c(1)];
    let flat = k.b.view(v);
    let (w, wv) = k.frag("w", DType::F32, &[24, 30]);
    k.fill(wv, none);
    k.gemm(turned, flat, w, false);
    let (_, half) = k.tile("half", DType::F32, &[24, 24], Space::Shared);
    k.parallel(&["i", "j"], &[24, 24], |k, i| {
        let x = k.load(wv, i);
        k.store(half, i, x);
    });
    k.gemm(ft, half, g, true);
    let pages: Vec<ViewId> = (0..2)
        .map(|p| {
            let p = k.c(p);
            k.row(out, p)
        })
        .collect();
    k.copy(sv, &[zero, zero], pages[0], &[zero, zero], &[20, 40]);
    k.parallel(&["i", "j"], &[20, 24], |k, i| {
        let x = k.load(gv, i);
        k.store(pages[1], i, x);
    });
    k.done()
}

/// Attention of one head with an online softmax: two products and a relayout between them.
pub fn attention(bm: usize, bn: usize, d: usize, warps: usize) -> Kernel {
    let mut k = K::new("attention", warps);
    let (m, n, dd) = (D::S("m", 1), D::S("n", 1), D::C(d as i64));
    let q = k.tensor("q", DType::Bf16, Access::In, &[m, dd]);
    let kv = k.tensor("kv", DType::Bf16, Access::In, &[n, dd]);
    let out = k.tensor("out", DType::Bf16, Access::Out, &[m, dd]);
    let dim = k.dim(m);
    let r0 = k.grid1(dim, bm as i64);
    let zero = k.c(0);
    let (_, qt) = k.tile("qt", DType::Bf16, &[bm, d], Space::Shared);
    let (_, kt) = k.tile("kt", DType::Bf16, &[bn, d], Space::Shared);
    let (s, sv) = k.frag("s", DType::F32, &[bm, bn]);
    let (_, p) = k.frag("p", DType::F32, &[bm, bn]);
    let (_, pt) = k.frag("pt", DType::Bf16, &[bm, bn]);
    let (o, ov) = k.frag("o", DType::F32, &[bm, d]);
    let (_, mx) = k.frag("mx", DType::F32, &[bm]);
    let (_, l) = k.frag("l", DType::F32, &[bm]);
    let (_, alpha) = k.frag("alpha", DType::F32, &[bm]);
    let (none, least) = (k.f32(0.0), k.f32(-1e30));
    k.fill(ov, none);
    k.fill(l, none);
    k.fill(mx, least);
    k.copy(q, &[r0, zero], qt, &[zero, zero], &[bm, d]);
    let (dn, step) = (k.dim(n), k.c(bn as i64));
    let turns = k.b.ix_div_ceil(dn, step);
    let keys = k.t(kt);
    k.for_loop("b", zero, turns, |k, b| {
        let n0 = k.mul(b, bn as i64);
        k.copy(kv, &[n0, zero], kt, &[zero, zero], &[bn, d]);
        k.gemm(qt, keys, s, true);
        let (_, masked) = k.frag("masked", DType::F32, &[bm, bn]);
        k.parallel(&["i", "j"], &[bm, bn], |k, i| {
            let at = k.add(n0, i[1]);
            let inside = k.b.push_value(DType::Bool, |result| Op::CompareIndex { result, op: CmpOp::Lt, a: at, b: dn });
            let scale = k.f32(0.125);
            let x = k.load(sv, i);
            let x = k.bin(BinaryOp::Mul, x, scale);
            let low = k.f32(-1e30);
            let x = k.b.push_value(DType::F32, |result| Op::Select { result, cond: inside, a: x, b: low });
            k.store(masked, i, x);
        });
        let top = k.reduce(ReduceOp::Max, "top", masked, 1);
        k.parallel(&["i"], &[bm], |k, i| {
            let (old, new) = (k.load(mx, i), k.load(top, i));
            let m = k.bin(BinaryOp::Max, old, new);
            let d = k.bin(BinaryOp::Sub, old, m);
            let a = k.un(UnaryOp::Exp2, d);
            k.store(alpha, i, a);
            k.store(mx, i, m);
        });
        k.parallel(&["i", "j"], &[bm, bn], |k, i| {
            let (x, m) = (k.load(masked, i), k.load(mx, &i[..1]));
            let d = k.bin(BinaryOp::Sub, x, m);
            let e = k.un(UnaryOp::Exp2, d);
            k.store(p, i, e);
            let e = k.cast(DType::Bf16, e);
            k.store(pt, i, e);
        });
        let sum = k.reduce(ReduceOp::Sum, "sum", p, 1);
        k.parallel(&["i"], &[bm], |k, i| {
            let (old, a, new) = (k.load(l, i), k.load(alpha, i), k.load(sum, i));
            let x = k.bin(BinaryOp::Mul, old, a);
            let x = k.bin(BinaryOp::Add, x, new);
            k.store(l, i, x);
        });
        k.parallel(&["i", "j"], &[bm, d], |k, i| {
            let (x, a) = (k.load(ov, i), k.load(alpha, &i[..1]));
            let x = k.bin(BinaryOp::Mul, x, a);
            k.store(ov, i, x);
        });
        k.gemm(pt, kt, o, false);
    });
    k.parallel(&["i", "j"], &[bm, d], |k, i| {
        let (x, s) = (k.load(ov, i), k.load(l, &i[..1]));
        let x = k.bin(BinaryOp::Div, x, s);
        let x = k.cast(DType::Bf16, x);
        let r = k.add(r0, i[0]);
        k.store(out, &[r, i[1]], x);
    });
    k.done()
}

/// Rows of pages and of a list of rows, copied out.
pub fn paged() -> Kernel {
    let mut k = K::new("paged", 4);
    let (n, pages) = (D::S("n", 1), D::S("pages", 1));
    let cache = k.tensor("cache", DType::Bf16, Access::In, &[pages, D::C(16), D::C(128)]);
    let table = k.tensor("table", DType::I32, Access::In, &[n]);
    let y = k.tensor("y", DType::Bf16, Access::Out, &[n, D::C(128)]);
    let z = k.tensor("z", DType::Bf16, Access::Out, &[n, D::C(128)]);
    let dim = k.dim(n);
    let r0 = k.grid1(dim, 32);
    let zero = k.c(0);
    let logical = k.mul(dim, 16);
    let mut v = k.b.kernel.view(cache).clone();
    let (count, stride) = (v.extents.remove(0), v.strides.remove(0));
    v.extents[0] = logical;
    v.gather = Some(Gather::Paged { table, page: 16, pages: count, page_stride: stride });
    let by_page = k.b.view(v.clone());
    let (_, t) = k.tile("t", DType::Bf16, &[32, 128], Space::Shared);
    k.copy(by_page, &[r0, zero], t, &[zero, zero], &[32, 128]);
    k.copy(t, &[zero, zero], y, &[r0, zero], &[32, 128]);
    let (_, list) = k.frag("list", DType::I32, &[32]);
    k.copy(table, &[r0], list, &[zero], &[32]);
    v.gather = None;
    let rows = k.mul(count, 16);
    v.extents[0] = k.c(32);
    v.gather = Some(Gather::Rows { rows: list, count: rows });
    let by_row = k.b.view(v);
    k.parallel(&["i", "j"], &[32, 128], |k, i| {
        let x = k.load(by_row, i);
        let r = k.add(r0, i[0]);
        k.store(z, &[r, i[1]], x);
    });
    k.done()
}
