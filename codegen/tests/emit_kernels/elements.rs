//! Kernels of element loops, reductions and control flow.

use super::builder::{D, K};
use kiln_codegen::ir::*;

/// `z = x + y` over blocks of 2048 elements, with a tail.
pub fn vector_add(n: D) -> Kernel {
    let mut k = K::new("vector_add", 4);
    let x = k.tensor("x", DType::F32, Access::In, &[n]);
    let y = k.tensor("y", DType::F32, Access::In, &[n]);
    let z = k.tensor("z", DType::F32, Access::Out, &[n]);
    let dim = k.dim(n);
    let start = k.grid1(dim, 2048);
    k.parallel(&["i"], &[2048], |k, i| {
        let at = k.add(start, i[0]);
        let (a, b) = (k.load(x, &[at]), k.load(y, &[at]));
        let s = k.bin(BinaryOp::Add, a, b);
        k.store(z, &[at], s);
    });
    k.done()
}

/// Rows of 90 codes of half a byte: lanes of a thread end with the row in pairs, not as a whole.
pub fn pairs() -> Kernel {
    let mut k = K::new("pairs", 4);
    let (t, n) = (D::S("num_tokens", 1), D::C(90));
    let x = k.tensor("x", DType::F32, Access::In, &[t, n]);
    let q = k.tensor("q", DType::E2m1, Access::Out, &[t, n]);
    let rows = k.dim(t);
    let row = k.grid1(rows, 1);
    k.next();
    k.parallel(&["j"], &[96], |k, i| {
        let v = k.load(x, &[row, i[0]]);
        let code = k.cast(DType::E2m1, v);
        k.store(q, &[row, i[0]], code);
    });
    k.done()
}

/// A row written to two rows of one tensor: both stores are wide, in their order.
pub fn streams() -> Kernel {
    let mut k = K::new("streams", 4);
    let (t, h) = (D::S("num_tokens", 1), D::C(1024));
    let x = k.tensor("x", DType::Bf16, Access::In, &[t, h]);
    let y = k.tensor("y", DType::Bf16, Access::Out, &[t, D::C(2), h]);
    let rows = k.dim(t);
    let row = k.grid1(rows, 1);
    let (first, second) = (k.c(0), k.c(1));
    k.next();
    k.parallel(&["c"], &[1024], |k, i| {
        let v = k.load(x, &[row, i[0]]);
        k.store(y, &[row, first, i[0]], v);
        k.store(y, &[row, second, i[0]], v);
    });
    k.done()
}

/// `y = x * rsqrt(mean(x^2) + eps) * w` in bf16.
pub fn rmsnorm(rows: usize, h: usize, warps: usize) -> Kernel {
    let mut k = K::new("rmsnorm", warps);
    k.b.kernel.dtypes = vec![("T".into(), DType::Bf16)];
    k.b.kernel.fixed_dims = vec![("h".into(), h)];
    let (t, hd) = (D::S("num_tokens", 1), D::C(h as i64));
    let x = k.tensor("x", DType::Bf16, Access::In, &[t, hd]);
    let w = k.tensor("w", DType::Bf16, Access::In, &[hd]);
    let y = k.tensor("y", DType::Bf16, Access::Out, &[t, hd]);
    let eps = k.scalar("eps", DType::F32);
    let dim = k.dim(t);
    let r0 = k.grid1(dim, rows as i64);
    let zero = k.c(0);
    let (_, xf) = k.frag("xf", DType::F32, &[rows, h]);
    k.copy(x, &[r0, zero], xf, &[zero, zero], &[rows, h]);
    let (_, sq) = k.frag("sq", DType::F32, &[rows, h]);
    k.parallel(&["i", "j"], &[rows, h], |k, i| {
        let v = k.load(xf, i);
        let v2 = k.bin(BinaryOp::Mul, v, v);
        k.store(sq, i, v2);
    });
    let ss = k.reduce(ReduceOp::Sum, "ss", sq, 1);
    k.parallel(&["i", "j"], &[rows, h], |k, i| {
        let s = k.load(ss, &i[..1]);
        let c = k.f32(1.0 / h as f32);
        let mean = k.bin(BinaryOp::Mul, s, c);
        let sum = k.bin(BinaryOp::Add, mean, eps);
        let inv = k.un(UnaryOp::Rsqrt, sum);
        let v = k.load(xf, i);
        let a = k.bin(BinaryOp::Mul, v, inv);
        let wv = k.load(w, &i[1..]);
        let wv = k.cast(DType::F32, wv);
        let b = k.bin(BinaryOp::Mul, a, wv);
        let o = k.cast(DType::Bf16, b);
        let row = k.add(r0, i[0]);
        k.store(y, &[row, i[1]], o);
    });
    k.done()
}

/// Per-token fp8 quantisation in groups of 128, one token a block.
pub fn group_quantise(h: usize, warps: usize) -> Kernel {
    let mut k = K::new("group_quantise", warps);
    let groups = h / 128;
    let t = D::S("num_tokens", 1);
    let x = k.tensor("x", DType::Bf16, Access::In, &[t, D::C(h as i64)]);
    let q = k.tensor("q", DType::E4m3, Access::Out, &[t, D::C(h as i64)]);
    let sf = k.tensor("sf", DType::F32, Access::Out, &[t, D::C(groups as i64)]);
    let dim = k.dim(t);
    let r0 = k.grid1(dim, 1);
    let zero = k.c(0);
    let (_, xf) = k.frag("xf", DType::F32, &[1, h]);
    k.copy(x, &[r0, zero], xf, &[zero, zero], &[1, h]);
    let grouped = k.reshape(xf, &[1, groups, 128]);
    let amax = k.reduce(ReduceOp::AbsMax, "amax", grouped, 2);
    let (_, inv) = k.frag("inv", DType::F32, &[1, groups]);
    k.parallel(&["i", "g"], &[1, groups], |k, i| {
        let a = k.load(amax, i);
        let least = k.f32(1e-4);
        let a = k.bin(BinaryOp::Max, a, least);
        let max = k.f32(448.0);
        let s = k.bin(BinaryOp::Div, a, max);
        let row = k.add(r0, i[0]);
        k.store(sf, &[row, i[1]], s);
        let r = k.un(UnaryOp::Recip, s);
        k.store(inv, i, r);
    });
    k.parallel(&["i", "j"], &[1, h], |k, i| {
        let g = k.div(i[1], 128);
        let v = k.load(xf, i);
        let s = k.load(inv, &[i[0], g]);
        let p = k.bin(BinaryOp::Mul, v, s);
        let o = k.cast(DType::E4m3, p);
        let row = k.add(r0, i[0]);
        k.store(q, &[row, i[1]], o);
    });
    k.done()
}

/// `y[j, i] = x[i, j]` through a shared tile of 64 x 64.
pub fn transpose() -> Kernel {
    let mut k = K::new("transpose", 8);
    let (m, n) = (D::S("m", 8), D::S("n", 8));
    let x = k.tensor("x", DType::Bf16, Access::In, &[m, n]);
    let y = k.tensor("y", DType::Bf16, Access::Out, &[n, m]);
    let (dm, dn, tile) = (k.dim(m), k.dim(n), k.c(64));
    let (gm, gn) = (k.b.ix_div_ceil(dm, tile), k.b.ix_div_ceil(dn, tile));
    let g = k.b.grid(&[gn, gm]);
    let (bx, by) = (k.b.ix_var(g[0]), k.b.ix_var(g[1]));
    let (c0, r0) = (k.mul(bx, 64), k.mul(by, 64));
    let zero = k.c(0);
    let (_, t) = k.tile("tile", DType::Bf16, &[64, 64], Space::Shared);
    k.copy(x, &[r0, c0], t, &[zero, zero], &[64, 64]);
    k.parallel(&["j", "i"], &[64, 64], |k, v| {
        let e = k.load(t, &[v[1], v[0]]);
        let (row, col) = (k.add(c0, v[0]), k.add(r0, v[1]));
        k.store(y, &[row, col], e);
    });
    k.done()
}

/// Columns in reverse, through two tiles that no target has room for at the same time, in a loop.
pub fn turns() -> Kernel {
    let mut k = K::new("turns", 8);
    let m = D::S("m", 1);
    let x = k.tensor("x", DType::F32, Access::In, &[m, D::C(160)]);
    let y = k.tensor("y", DType::F32, Access::Out, &[m, D::C(160)]);
    let z = k.tensor("z", DType::F32, Access::Out, &[m, D::C(160)]);
    let dim = k.dim(m);
    let r0 = k.grid1(dim, 192);
    let (zero, two) = (k.c(0), k.c(2));
    k.for_loop("c", zero, two, |k, _| {
        for (name, out) in [("first", y), ("second", z)] {
            let (_, t) = k.tile(name, DType::F32, &[192, 160], Space::Shared);
            k.copy(x, &[r0, zero], t, &[zero, zero], &[192, 160]);
            k.parallel(&["i", "j"], &[192, 160], |k, v| {
                let last = k.c(159);
                let from = k.b.ix_sub(last, v[1]);
                let e = k.load(t, &[v[0], from]);
                let row = k.add(r0, v[0]);
                k.store(out, &[row, v[1]], e);
            });
        }
    });
    k.done()
}

/// Hadamard transform of rows of `n` by halving strides, in place, through reshapes.
pub fn hadamard(n: usize) -> Kernel {
    let mut k = K::new("hadamard", 1);
    let t = D::S("num_tokens", 1);
    let x = k.tensor("x", DType::F32, Access::InOut, &[t, D::C(n as i64)]);
    let dim = k.dim(t);
    let r0 = k.grid1(dim, 1);
    let zero = k.c(0);
    let (_, f) = k.frag("f", DType::F32, &[1, n]);
    k.copy(x, &[r0, zero], f, &[zero, zero], &[1, n]);
    let mut half = n / 2;
    while half >= 64 {
        let v = k.reshape(f, &[n / (2 * half), 2, half]);
        k.parallel(&["b", "e"], &[n / (2 * half), half], |k, i| {
            let (lo, hi) = (k.c(0), k.c(1));
            let a = k.load(v, &[i[0], lo, i[1]]);
            let b = k.load(v, &[i[0], hi, i[1]]);
            let s = k.bin(BinaryOp::Add, a, b);
            let d = k.bin(BinaryOp::Sub, a, b);
            k.store(v, &[i[0], lo, i[1]], s);
            k.store(v, &[i[0], hi, i[1]], d);
        });
        half /= 2;
    }
    k.copy(f, &[zero, zero], x, &[r0, zero], &[1, n]);
    k.done()
}

/// Exclusive prefix sum of one row of counts, and its total.
pub fn scan() -> Kernel {
    let mut k = K::new("scan", 4);
    let n = 1000usize;
    let x = k.tensor("x", DType::I32, Access::In, &[D::C(n as i64)]);
    let y = k.tensor("y", DType::I32, Access::Out, &[D::C(n as i64)]);
    let sum = k.tensor("sum", DType::I32, Access::Out, &[D::C(1)]);
    let one = k.c(1);
    k.b.grid(&[one]);
    let zero = k.c(0);
    let (_, a) = k.frag("a", DType::I32, &[n]);
    k.copy(x, &[zero], a, &[zero], &[n]);
    k.next();
    let (dst, d) = k.frag("d", DType::I32, &[n]);
    let total = k.b.free_value(DType::I32);
    let id = k.b.push(Op::Scan {
        op: ReduceOp::Sum,
        kind: ScanKind::PrefixExclusive,
        src: a,
        dst,
        axis: 0,
        total: Some(total),
    });
    k.b.kernel.values[total.0 as usize].def = Some(id);
    k.copy(d, &[zero], y, &[zero], &[n]);
    k.next();
    k.store(sum, &[zero], total);
    k.done()
}

/// Counts of bytes in a row of run-time length, then the first value whose count reaches a limit.
pub fn histogram() -> Kernel {
    let mut k = K::new("histogram", 8);
    let n = D::S("n", 1);
    let x = k.tensor("x", DType::I32, Access::In, &[n]);
    let counts = k.tensor("counts", DType::U32, Access::Out, &[D::C(256)]);
    let first = k.tensor("first", DType::I32, Access::Out, &[D::C(1)]);
    let limit = k.scalar("limit", DType::U32);
    let one = k.c(1);
    k.b.grid(&[one]);
    let zero = k.c(0);
    let (_, hist) = k.tile("hist", DType::U32, &[256], Space::Shared);
    let none = k.b.constant(Literal::u32(0));
    k.fill(hist, none);
    k.next();
    let (dim, last) = (k.dim(n), k.c(255));
    let hi = k.b.ix_sub(dim, one);
    let var = k.b.new_ix_var("i", IxVarKind::Element, Some(zero), Some(hi));
    let i = k.b.ix_var(var);
    let body = k.b.open();
    let v = k.load(x, &[i]);
    let bin = k.b.new_ix_var("bin", IxVarKind::Data, Some(zero), Some(last));
    k.b.push(Op::ClampIndex { var: bin, value: v, lo: zero, hi: last });
    let at = k.b.ix_var(bin);
    let up = k.b.constant(Literal::u32(1));
    k.b.push(Op::Atomic { result: None, op: AtomicOp::Add, view: hist, index: vec![at], value: up });
    k.b.close();
    k.b.push(Op::Spread { var, lo: zero, hi: dim, body });
    k.copy(hist, &[zero], counts, &[zero], &[256]);
    k.next();
    let (vars, ids) = k.element_vars(&["b"], &[256]);
    let body = k.b.open();
    let c = k.load(hist, &[ids[0]]);
    let cond = k.cmp(CmpOp::Ge, c, limit);
    k.b.close();
    let last = k.c(256);
    let found = k.b.new_ix_var("found", IxVarKind::Data, Some(zero), Some(last));
    k.b.push(Op::FindFirst { var: vars[0], extent: 256, body, cond, result: found });
    k.next();
    let f = k.b.ix_var(found);
    let f = k.b.push_value(DType::I32, |result| Op::IndexValue { result, index: f });
    k.store(first, &[zero], f);
    k.done()
}

/// The columns of numbers above a limit, without gaps and in order, and how many there are.
pub fn claim() -> Kernel {
    let mut k = K::new("claim", 4);
    let (t, n) = (D::S("t", 1), D::S("n", 1));
    let x = k.tensor("x", DType::F32, Access::In, &[t, n]);
    let columns = k.tensor("columns", DType::U32, Access::InOut, &[t, n]);
    let count = k.tensor("count", DType::U32, Access::Out, &[t]);
    let limit = k.scalar("limit", DType::F32);
    let (rows, hi, zero) = (k.dim(t), k.dim(n), k.c(0));
    let row = k.grid1(rows, 1);
    let none = k.b.constant(Literal::u32(0));
    let counter = k.b.new_buffer("found", DType::U32, &[], Space::Var, false);
    k.b.push(Op::VarNew { var: counter, init: none });
    k.next();
    let one = k.c(1);
    let last = k.b.ix_sub(hi, one);
    let var = k.b.new_ix_var("i", IxVarKind::Element, Some(zero), Some(last));
    let i = k.b.ix_var(var);
    let body = k.b.open();
    let v = k.load(x, &[row, i]);
    let cond = k.cmp(CmpOp::Gt, v, limit);
    let number = k.b.push_value(DType::U32, |result| Op::Claim { result, var: counter, cond });
    k.next();
    let then = k.b.open();
    let to = k.b.ix_data(number);
    let column = k.b.push_value(DType::U32, |result| Op::IndexValue { result, index: i });
    k.b.push(Op::Store { view: columns, index: vec![row, to], value: column, checked: true });
    k.b.close();
    let els = k.b.open();
    k.b.close();
    k.b.push(Op::If { cond, then, els, results: vec![] });
    k.b.close();
    k.b.push(Op::Spread { var, lo: zero, hi, body });
    k.next();
    let found = k.b.push_value(DType::U32, |result| Op::VarGet { result, var: counter });
    k.store(count, &[row], found);
    k.done()
}

/// Steps until 1 is reached: a loop at block level with variables and a break.
pub fn collatz() -> Kernel {
    let mut k = K::new("collatz", 1);
    let n = D::S("n", 1);
    let x = k.tensor("x", DType::U32, Access::In, &[n]);
    let y = k.tensor("y", DType::I32, Access::Out, &[n]);
    let dim = k.dim(n);
    let at = k.grid1(dim, 1);
    let start = k.load(x, &[at]);
    let value = k.b.new_buffer("value", DType::U32, &[], Space::Var, false);
    let steps = k.b.new_buffer("steps", DType::I32, &[], Space::Var, false);
    k.b.push(Op::VarNew { var: value, init: start });
    let zero = k.i32(0);
    k.b.push(Op::VarNew { var: steps, init: zero });
    k.next();
    let body = k.b.open();
    let v = k.b.push_value(DType::U32, |result| Op::VarGet { result, var: value });
    let one = k.b.constant(Literal::u32(1));
    let end = k.cmp(CmpOp::Le, v, one);
    let then = k.b.open();
    k.b.push(Op::Break);
    k.b.close();
    let els = k.b.open();
    k.b.close();
    k.b.push(Op::If { cond: end, then, els, results: vec![] });
    let odd = k.bin(BinaryOp::And, v, one);
    let is_odd = k.cmp(CmpOp::Eq, odd, one);
    let then = k.b.open();
    let three = k.b.constant(Literal::u32(3));
    let up = k.bin(BinaryOp::Mul, v, three);
    let up = k.bin(BinaryOp::Add, up, one);
    k.b.close();
    let els = k.b.open();
    let down = k.bin(BinaryOp::Shr, v, one);
    k.b.close();
    let next = k.b.free_value(DType::U32);
    let id = k.b.push(Op::If {
        cond: is_odd,
        then,
        els,
        results: vec![IfResult::Value { result: next, then: up, els: down }],
    });
    k.b.kernel.values[next.0 as usize].def = Some(id);
    k.b.push(Op::VarSet { var: value, value: next });
    let s = k.b.push_value(DType::I32, |result| Op::VarGet { result, var: steps });
    let inc = k.i32(1);
    let s = k.bin(BinaryOp::Add, s, inc);
    k.b.push(Op::VarSet { var: steps, value: s });
    k.b.close();
    k.b.push(Op::Loop { body });
    k.next();
    let s = k.b.push_value(DType::I32, |result| Op::VarGet { result, var: steps });
    k.store(y, &[at], s);
    k.done()
}

/// A branch per element, a loop per element, and masked reads through data.
pub fn branches() -> Kernel {
    let mut k = K::new("branches", 2);
    let (n, m) = (D::S("n", 1), D::S("m", 1));
    let pick = k.tensor("pick", DType::I32, Access::In, &[n]);
    let table = k.tensor("table", DType::F32, Access::In, &[m]);
    let y = k.tensor("y", DType::F32, Access::InOut, &[n]);
    let dim = k.dim(n);
    let start = k.grid1(dim, 256);
    k.parallel(&["i"], &[256], |k, i| {
        let at = k.add(start, i[0]);
        let p = k.load(pick, &[at]);
        let p_ix = k.b.ix_data(p);
        let other = k.f32(-1.0);
        let v = k.b.push_value(DType::F32, |result| Op::LoadOr { result, view: table, index: vec![p_ix], other });
        let zero = k.f32(0.0);
        let negative = k.cmp(CmpOp::Lt, v, zero);
        let then = k.b.open();
        let old = k.load(y, &[at]);
        k.b.close();
        let els = k.b.open();
        let sum = k.b.new_buffer("sum", DType::F32, &[], Space::Var, false);
        k.b.push(Op::VarNew { var: sum, init: zero });
        let (lo, hi) = (k.c(0), k.c(3));
        k.for_loop("e", lo, hi, |k, _| {
            let s = k.b.push_value(DType::F32, |result| Op::VarGet { result, var: sum });
            let s = k.bin(BinaryOp::Add, s, v);
            k.b.push(Op::VarSet { var: sum, value: s });
        });
        let s = k.b.push_value(DType::F32, |result| Op::VarGet { result, var: sum });
        k.b.close();
        let out = k.b.free_value(DType::F32);
        let results = vec![IfResult::Value { result: out, then: old, els: s }];
        let id = k.b.push(Op::If { cond: negative, then, els, results });
        k.b.kernel.values[out.0 as usize].def = Some(id);
        k.store(y, &[at], out);
    });
    k.done()
}

/// Softmax of rows whose length is no multiple of anything nice.
pub fn softmax(rows: usize, n: usize, warps: usize) -> Kernel {
    let mut k = K::new("softmax_rows", warps);
    let t = D::S("num_rows", 1);
    let x = k.tensor("x", DType::F32, Access::In, &[t, D::C(n as i64)]);
    let y = k.tensor("y", DType::Bf16, Access::Out, &[t, D::C(n as i64)]);
    let dim = k.dim(t);
    let r0 = k.grid1(dim, rows as i64);
    let zero = k.c(0);
    let (_, s) = k.frag("s", DType::F32, &[rows, n]);
    k.copy(x, &[r0, zero], s, &[zero, zero], &[rows, n]);
    let top = k.reduce(ReduceOp::Max, "top", s, 1);
    k.parallel(&["i", "j"], &[rows, n], |k, i| {
        let v = k.load(s, i);
        let m = k.load(top, &i[..1]);
        let d = k.bin(BinaryOp::Sub, v, m);
        let log2e = k.f32(std::f32::consts::LOG2_E);
        let d = k.bin(BinaryOp::Mul, d, log2e);
        let e = k.un(UnaryOp::Exp2, d);
        k.store(s, i, e);
    });
    let total = k.reduce(ReduceOp::Sum, "total", s, 1);
    let (_, inv) = k.frag("inv", DType::F32, &[rows]);
    k.parallel(&["i"], &[rows], |k, i| {
        let v = k.load(total, i);
        let r = k.un(UnaryOp::Recip, v);
        k.store(inv, i, r);
    });
    k.parallel(&["i", "j"], &[rows, n], |k, i| {
        let v = k.load(s, i);
        let r = k.load(inv, &i[..1]);
        let p = k.bin(BinaryOp::Mul, v, r);
        let p = k.cast(DType::Bf16, p);
        let row = k.add(r0, i[0]);
        k.store(y, &[row, i[1]], p);
    });
    k.done()
}

/// Sums along the first axis of tiles, in a loop over chunks with an accumulator that stays.
pub fn columns() -> Kernel {
    let mut k = K::new("columns", 4);
    let m = D::S("m", 1);
    let x = k.tensor("x", DType::F32, Access::In, &[m, D::C(128)]);
    let y = k.tensor("y", DType::F32, Access::Out, &[D::C(128)]);
    let one = k.c(1);
    k.b.grid(&[one]);
    let zero = k.c(0);
    let (_, acc) = k.frag("acc", DType::F32, &[128]);
    let z = k.f32(0.0);
    k.fill(acc, z);
    let (dim, tile) = (k.dim(m), k.c(32));
    let chunks = k.b.ix_div_ceil(dim, tile);
    k.for_loop("b", zero, chunks, |k, b| {
        let (_, t) = k.frag("t", DType::F32, &[32, 128]);
        let r0 = k.mul(b, 32);
        k.copy(x, &[r0, zero], t, &[zero, zero], &[32, 128]);
        let part = k.reduce(ReduceOp::Sum, "part", t, 0);
        k.parallel(&["j"], &[128], |k, j| {
            let (a, p) = (k.load(acc, j), k.load(part, j));
            let s = k.bin(BinaryOp::Add, a, p);
            k.store(acc, j, s);
        });
    });
    k.copy(acc, &[zero], y, &[zero], &[128]);
    k.done()
}

/// All conversions between the number formats.
pub fn casts() -> Kernel {
    let mut k = K::new("casts", 1);
    let from = [DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2, DType::E8m0, DType::I32, DType::U8];
    let to = [DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2, DType::E8m0, DType::I32, DType::I8];
    let one = k.c(1);
    let mut pairs = vec![];
    for f in from {
        let x = k.tensor(&format!("x_{f}"), f, Access::In, &[D::C(64)]);
        for t in to {
            pairs.push((x, k.tensor(&format!("y_{f}_{t}"), t, Access::Out, &[D::C(64)])));
        }
    }
    k.b.grid(&[one]);
    for (x, y) in pairs {
        k.parallel(&["i"], &[64], |k, i| {
            let v = k.load(x, i);
            let d = k.b.kernel.view(y).dtype;
            let c = k.cast(d, v);
            k.store(y, i, c);
        });
    }
    k.done()
}

/// A scalar over a box at block level, used as a loop bound.
pub fn region() -> Kernel {
    let mut k = K::new("region", 4);
    let n = D::S("n", 1);
    let x = k.tensor("x", DType::F32, Access::In, &[n]);
    let y = k.tensor("y", DType::F32, Access::Out, &[D::C(2)]);
    let one = k.c(1);
    k.b.grid(&[one]);
    for (slot, extent, op) in [(0, 1000usize, ReduceOp::Sum), (1, 48, ReduceOp::Max)] {
        k.next();
        let (vars, ids) = k.element_vars(&["i"], &[extent]);
        let body = k.b.open();
        let v = k.load(x, &ids);
        let v = k.un(UnaryOp::Abs, v);
        k.b.close();
        let result = k.b.free_value(DType::F32);
        let id = k.b.push(Op::ReduceRegion { op, vars, extents: vec![extent], body, value: v, result, order: None });
        k.b.kernel.values[result.0 as usize].def = Some(id);
        let at = k.c(slot);
        k.store(y, &[at], result);
    }
    k.done()
}

/// A reduced tile read at block level: the sum of a row decides how the row is scaled.
pub fn scalar_of_tile() -> Kernel {
    let mut k = K::new("scalar_of_tile", 4);
    let t = D::S("num_tokens", 1);
    let x = k.tensor("x", DType::F32, Access::In, &[t, D::C(2048)]);
    let y = k.tensor("y", DType::F32, Access::Out, &[t, D::C(2048)]);
    let dim = k.dim(t);
    let r0 = k.grid1(dim, 1);
    let zero = k.c(0);
    let (_, f) = k.frag("f", DType::F32, &[2048]);
    let row = k.row(x, r0);
    k.copy(row, &[zero], f, &[zero], &[2048]);
    let one_row = k.reshape(f, &[1, 2048]);
    let sum = k.reduce(ReduceOp::Sum, "sum", one_row, 1);
    k.next();
    let s = k.load(sum, &[zero]);
    let none = k.f32(0.0);
    let positive = k.cmp(CmpOp::Gt, s, none);
    let then = k.b.open();
    let a = k.un(UnaryOp::Recip, s);
    k.b.close();
    let els = k.b.open();
    let b = k.un(UnaryOp::Neg, s);
    k.b.close();
    let scale = k.b.free_value(DType::F32);
    let results = vec![IfResult::Value { result: scale, then: a, els: b }];
    let id = k.b.push(Op::If { cond: positive, then, els, results });
    k.b.kernel.values[scale.0 as usize].def = Some(id);
    k.parallel(&["i"], &[2048], |k, i| {
        let v = k.load(f, i);
        let p = k.bin(BinaryOp::Mul, v, scale);
        k.store(y, &[r0, i[0]], p);
    });
    k.done()
}

/// Two sums over one tile in a loop over chunks, carried in reduced tiles: nothing leaves the registers but partials.
pub fn moments() -> Kernel {
    let mut k = K::new("moments", 2);
    let n = D::S("n", 8);
    let x = k.tensor("x", DType::F16, Access::In, &[D::C(64), n]);
    let y = k.tensor("y", DType::F32, Access::Out, &[D::C(64), D::C(2)]);
    let rows = k.c(16);
    let b = k.b.grid(&[rows])[0];
    let b = k.b.ix_var(b);
    let r0 = k.mul(b, 4);
    let zero = k.c(0);
    let (_, first) = k.frag("first", DType::F32, &[4]);
    let (_, second) = k.frag("second", DType::F32, &[4]);
    let z = k.f32(0.0);
    k.fill(first, z);
    k.fill(second, z);
    let (dim, tile) = (k.dim(n), k.c(256));
    let chunks = k.b.ix_div_ceil(dim, tile);
    k.for_loop("c", zero, chunks, |k, c| {
        let (_, t) = k.frag("t", DType::F32, &[4, 256]);
        let at = k.mul(c, 256);
        k.copy(x, &[r0, at], t, &[zero, zero], &[4, 256]);
        let a = k.reduce(ReduceOp::Sum, "a", t, 1);
        let (_, sq) = k.frag("sq", DType::F32, &[4, 256]);
        k.parallel(&["i", "j"], &[4, 256], |k, i| {
            let v = k.load(t, i);
            let v = k.bin(BinaryOp::Mul, v, v);
            k.store(sq, i, v);
        });
        let q = k.reduce(ReduceOp::Sum, "q", sq, 1);
        k.parallel(&["i"], &[4], |k, i| {
            for (total, part) in [(first, a), (second, q)] {
                let (s, p) = (k.load(total, i), k.load(part, i));
                let s = k.bin(BinaryOp::Add, s, p);
                k.store(total, i, s);
            }
        });
    });
    k.parallel(&["i"], &[4], |k, i| {
        let row = k.add(r0, i[0]);
        let (a, b) = (k.load(first, i), k.load(second, i));
        let (c0, c1) = (k.c(0), k.c(1));
        k.store(y, &[row, c0], a);
        k.store(y, &[row, c1], b);
    });
    k.done()
}

/// A tile that fits no target's shared memory.
pub fn greedy() -> Kernel {
    let mut k = K::new("greedy", 4);
    let x = k.tensor("x", DType::F32, Access::In, &[D::C(256), D::C(256)]);
    let one = k.c(1);
    k.b.grid(&[one]);
    let zero = k.c(0);
    let (_, big) = k.tile("big", DType::F32, &[256, 256], Space::Shared);
    k.copy(x, &[zero, zero], big, &[zero, zero], &[256, 256]);
    k.done()
}
