//! Matrix products and gathered views in the VM against plain loops, bit for bit.

mod vm_support;

use kiln_codegen::abi::Arg;
use kiln_codegen::formats;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::*;
use kiln_codegen::vm::Options;
use vm_support::*;

const SANITIZE: Options = Options { sanitize: true, threads: None, order: kiln_codegen::vm::BlockOrder::Forward };

/// Numbers of mixed sign and size.
fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let unit = (s >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
            unit * [0.25, 1.0, 3.0, 6.0][(s >> 37) as usize % 4]
        })
        .collect()
}

/// What a tensor of this type holds of the numbers.
fn held(dtype: DType, x: &[f64]) -> Vec<f32> {
    x.iter().map(|&v| formats::decode_f32(dtype, formats::encode_f64(dtype, v))).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn floats(a: &Arg) -> Vec<f32> {
    values(a).iter().map(|&v| v as f32).collect()
}

/// The contract, word for word: one chain an element, on `from`.
fn chain(a: &[f32], b: &[f32], [m, n, k]: [usize; 3], from: &[f32]) -> Vec<f32> {
    (0..m * n).map(|e| (0..k).fold(from[e], |acc, p| a[e / n * k + p].mul_add(b[p * n + e % n], acc))).collect()
}

/// How a kernel under test lays its operands out.
#[derive(Clone, Copy, Debug)]
struct Form {
    types: [DType; 2],
    transposed: [bool; 2],
    /// Tiles are this much larger than the operands on each axis, which are windows of them.
    margin: usize,
    set: bool,
    scaled: bool,
}

/// `y = a b (+ c)`: operands through tiles.
fn product([m, n, k]: [usize; 3], f: Form) -> Kit {
    let mut kit = Kit::new("product");
    let z = kit.b.ix_const(0);
    let shapes = [[m, k], [k, n]];
    let mut views = vec![];
    for (side, shape) in shapes.iter().enumerate() {
        let stored = if f.transposed[side] { [shape[1], shape[0]] } else { *shape };
        let ext = stored.map(|e| kit.b.ix_const(e as i64));
        let x = kit.input(["a", "b"][side], f.types[side], &ext);
        let (_, t) = kit.tile("t", f.types[side], &stored.map(|e| e + f.margin), Space::Shared);
        let at = kit.b.ix_const(f.margin as i64);
        kit.copy(x, &[z, z], t, &[at, at], &stored);
        let w = kit.window(t, [at, at], stored);
        views.push(if f.transposed[side] { kit.t(w) } else { w });
    }
    let ext = [m, n].map(|e| kit.b.ix_const(e as i64));
    let c = kit.input("c", DType::F32, &ext);
    let factors = [kit.input("r", DType::F32, &ext[..1]), kit.input("s", DType::E8m0, &ext[1..])];
    let y = kit.output("y", DType::F32, &ext);
    let one = kit.b.ix_const(1);
    kit.grid1(one);
    let (acc, av) = kit.tile("acc", DType::F32, &[m, n], Space::Frag);
    if !f.set {
        kit.copy(c, &[z, z], av, &[z, z], &[m, n]);
    }
    if f.scaled {
        kit.gemm_scaled(views[0], views[1], acc, f.set, factors);
    } else {
        kit.gemm(views[0], views[1], acc, f.set);
    }
    kit.copy(av, &[z, z], y, &[z, z], &[m, n]);
    kit
}

fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|e| x[e % rows * cols + e / rows]).collect()
}

fn agree(shape: [usize; 3], f: Form) {
    let [m, n, k] = shape;
    let kit = product(shape, f);
    let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
    let r = numbers(m, 4);
    let s: Vec<f64> = (0..n).map(|j| 2f64.powi(j as i32 % 7 - 3)).collect();
    let (sa, sb) = ([m, k], [k, n]);
    let put = |side: usize, x: &[f64], s: [usize; 2]| {
        if f.transposed[side] {
            tensor(f.types[side], &[s[1], s[0]], &transposed(x, s[0], s[1]))
        } else {
            tensor(f.types[side], &s, x)
        }
    };
    let args = [
        put(0, &a, sa),
        put(1, &b, sb),
        tensor(DType::F32, &[m, n], &c),
        tensor(DType::F32, &[m], &r),
        tensor(DType::E8m0, &[n], &s),
        zeros(DType::F32, &[m, n]),
    ];
    run_clean(&kit, &[], &args);
    let (a, b, c) = (held(f.types[0], &a), held(f.types[1], &b), held(DType::F32, &c));
    let zero = vec![0f32; m * n];
    let from = if f.set { &zero } else { &c };
    let want = if f.scaled {
        let inner = chain(&a, &b, shape, &zero);
        let (r, s) = (held(DType::F32, &r), held(DType::E8m0, &s));
        (0..m * n).map(|e| (r[e / n] * s[e % n]).mul_add(inner[e], from[e])).collect()
    } else {
        chain(&a, &b, shape, from)
    };
    assert_eq!(bits(&floats(&args[5])), bits(&want), "{shape:?} {f:?}");
}

#[test]
fn products_are_one_chain_an_element() {
    let plain = Form { types: [DType::F32; 2], transposed: [false; 2], margin: 0, set: false, scaled: false };
    for shape in
        [[1, 1, 1], [3, 5, 7], [16, 16, 16], [8, 32, 9], [13, 37, 40], [64, 64, 64], [9, 33, 300], [6, 17, 513]]
    {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            agree(shape, Form { transposed, ..plain });
        }
        for (margin, set, scaled) in [(3, false, false), (0, true, false), (5, false, true), (1, true, true)] {
            agree(shape, Form { margin, set, scaled, transposed: [false, true], ..plain });
        }
    }
}

#[test]
fn operands_of_every_type_are_exact() {
    use DType::*;
    let pairs =
        [(Bf16, Bf16), (F16, F16), (E4m3, E4m3), (E4m3, E5m2), (E2m1, E2m1), (E4m3, E2m1), (E2m1, E5m2), (I8, I8)];
    for (x, y) in pairs {
        for (transposed, scaled) in [([false, true], true), ([true, false], false)] {
            let f = Form { types: [x, y], transposed, margin: 2, set: false, scaled };
            agree([20, 24, 36], f);
            agree([33, 18, 64], f);
        }
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    use kiln_codegen::vm::simd::{Level, Matrix, gemm, level, scale};
    for [m, n, k] in [[1, 1, 1], [7, 15, 5], [8, 32, 64], [13, 49, 261], [5, 16, 0], [70, 31, 17]] {
        let mut a = held(DType::F32, &numbers(m * k, 5));
        let mut b = held(DType::F32, &numbers(n * k, 6));
        // Extremes: overflow, cancellation to subnormals, NaN.
        for (i, v) in a.iter_mut().enumerate() {
            *v *= [1.0, 1e-30, 1e30, 1e-38, f32::INFINITY][if i % 11 == 0 { i / 11 % 5 } else { 0 }];
        }
        for (i, v) in b.iter_mut().enumerate().filter(|(i, _)| i % 13 == 0) {
            *v *= [1e-20, 1e30, f32::NAN][i / 13 % 3];
        }
        let c = held(DType::F32, &numbers(m * n, 7));
        for wide in [false, true] {
            let x = Matrix { data: &a, row: k, col: 1 };
            let y = if wide { Matrix { data: &b, row: n, col: 1 } } else { Matrix { data: &b, row: 1, col: k } };
            let run = |l: Level| {
                let mut out = c.clone();
                gemm(l, [m, n, k], x, y, &mut out, false, &mut vec![]);
                let mut scaled = c.clone();
                scale(l, &c[..m], &c[..n], &out, &mut scaled, false);
                (bits(&out), bits(&scaled))
            };
            let want = run(Level::Base);
            for l in [Level::Avx2, Level::Avx512].into_iter().filter(|&l| l <= level()) {
                assert!(run(l) == want, "{l:?} differs at {m} {n} {k}");
            }
        }
    }
}

#[test]
fn a_loop_over_k_accumulates_through_slices() {
    let ([m, n, k], step) = ([24usize, 40usize, 100usize], 32usize);
    let mut kit = Kit::new("tiled");
    let ext = [m, n, k].map(|e| kit.b.ix_const(e as i64));
    let (a, b) = (kit.input("a", DType::Bf16, &[ext[0], ext[2]]), kit.input("b", DType::Bf16, &[ext[1], ext[2]]));
    let y = kit.output("y", DType::F32, &[ext[0], ext[1]]);
    let one = kit.b.ix_const(1);
    kit.grid1(one);
    let z = kit.b.ix_const(0);
    let (acc, av) = kit.tile("acc", DType::F32, &[m, n], Space::Frag);
    let zero = kit.b.constant(Literal::f32(0.0));
    kit.b.push(Op::Fill { dst: av, value: zero });
    let steps = kit.b.ix_const(k.div_ceil(step) as i64);
    kit.for_loop(z, steps, |kit, j| {
        let width = kit.b.ix_const(step as i64);
        let at = kit.b.ix_mul(j, width);
        // The tail of K is copied as zeros, which leave a chain as it is.
        let (_, ta) = kit.tile("ta", DType::Bf16, &[m, step], Space::Shared);
        let (_, tb) = kit.tile("tb", DType::Bf16, &[n, step], Space::Shared);
        kit.copy(a, &[z, at], ta, &[z, z], &[m, step]);
        kit.copy(b, &[z, at], tb, &[z, z], &[n, step]);
        let half = kit.b.ix_const(step as i64 / 2);
        for s in [z, half] {
            let (wa, wb) = (kit.window(ta, [z, s], [m, step / 2]), kit.window(tb, [z, s], [n, step / 2]));
            let wb = kit.t(wb);
            kit.gemm(wa, wb, acc, false);
        }
    });
    kit.copy(av, &[z, z], y, &[z, z], &[m, n]);
    let (av, bv) = (numbers(m * k, 8), numbers(n * k, 9));
    let args = [tensor(DType::Bf16, &[m, k], &av), tensor(DType::Bf16, &[n, k], &bv), zeros(DType::F32, &[m, n])];
    run_clean(&kit, &[], &args);
    let (av, bt) = (held(DType::Bf16, &av), held(DType::Bf16, &transposed(&bv, n, k)));
    assert_eq!(bits(&floats(&args[2])), bits(&chain(&av, &bt, [m, n, k], &vec![0.0; m * n])));
}

#[test]
fn bytes_read_as_numbers_multiply() {
    let (m, n, k) = (8, 16, 32);
    let mut kit = Kit::new("bytes");
    let [em, en, ek] = [m, n, k].map(|e| kit.b.ix_const(e as i64));
    let (a, b) = (kit.input("a", DType::U8, &[em, ek]), kit.input("b", DType::E4m3, &[en, ek]));
    let y = kit.output("y", DType::F32, &[em, en]);
    let one = kit.b.ix_const(1);
    kit.grid1(one);
    let z = kit.b.ix_const(0);
    let (_, ta) = kit.tile("ta", DType::U8, &[m, k], Space::Shared);
    let (_, tb) = kit.tile("tb", DType::E4m3, &[n, k], Space::Shared);
    kit.copy(a, &[z, z], ta, &[z, z], &[m, k]);
    kit.copy(b, &[z, z], tb, &[z, z], &[n, k]);
    let ta = kit.retype(ta, DType::E4m3, &[em, ek], &[ek, one], z);
    let tb = kit.t(tb);
    let (acc, av) = kit.tile("acc", DType::F32, &[m, n], Space::Frag);
    kit.gemm(ta, tb, acc, true);
    kit.copy(av, &[z, z], y, &[z, z], &[m, n]);
    let (x, w) = (numbers(m * k, 10), numbers(n * k, 11));
    let codes: Vec<f64> = x.iter().map(|&v| formats::encode_f64(DType::E4m3, v) as f64).collect();
    let args = [tensor(DType::U8, &[m, k], &codes), tensor(DType::E4m3, &[n, k], &w), zeros(DType::F32, &[m, n])];
    run_clean(&kit, &[], &args);
    let (x, w) = (held(DType::E4m3, &x), held(DType::E4m3, &transposed(&w, n, k)));
    assert_eq!(bits(&floats(&args[2])), bits(&chain(&x, &w, [m, n, k], &vec![0.0; m * n])));
}

#[test]
fn the_sanitizer_watches_operands_and_accumulators() {
    let find = |missing: usize, set: bool| {
        let mut kit = Kit::new("undefined");
        let e = kit.b.ix_const(8);
        let (x, y) = (kit.input("x", DType::F32, &[e, e]), kit.output("y", DType::F32, &[e, e]));
        let one = kit.b.ix_const(1);
        kit.grid1(one);
        let z = kit.b.ix_const(0);
        let tiles: Vec<(BufferId, ViewId)> = (0..3).map(|_| kit.tile("t", DType::F32, &[8, 8], Space::Frag)).collect();
        for (i, t) in tiles.iter().enumerate() {
            // The one that is missing lacks its last row.
            kit.copy(x, &[z, z], t.1, &[z, z], &[if i == missing { 7 } else { 8 }, 8]);
        }
        kit.gemm(tiles[0].1, tiles[1].1, tiles[2].0, set);
        kit.copy(tiles[2].1, &[z, z], y, &[z, z], &[8, 8]);
        let args = [tensor(DType::F32, &[8, 8], &numbers(64, 12)), zeros(DType::F32, &[8, 8])];
        let r = run_with(&kit, &[], &args, SANITIZE);
        r.findings.iter().map(|d| d.code).collect::<Vec<_>>()
    };
    assert_eq!(find(0, false), ["S0102"]);
    assert_eq!(find(1, true), ["S0102"]);
    assert_eq!(find(2, false), ["S0102"]);
    assert_eq!(find(2, true), Vec::<&str>::new());
    assert_eq!(find(3, false), Vec::<&str>::new());
}

/// A paged or row-wise gather: copied to a tile, added to what a plain body loads, scattered back.
#[test]
fn paged_rows_are_looked_up() {
    let (pages, page, d) = (5usize, 4usize, 300usize);
    for (dtype, name) in [(DType::I32, "i32"), (DType::I64, "i64")] {
        let mut kit = Kit::new("paged");
        let batch = kit.dim("batch");
        let [ep, er, ed, entries] = [pages, page, d, 3].map(|e| kit.b.ix_const(e as i64));
        let x = kit.input("x", DType::Bf16, &[ep, er, ed]);
        let table = kit.input("table", dtype, &[batch, entries]);
        let rows = kit.b.ix_const(3 * page as i64);
        let y = kit.output("y", DType::F32, &[batch, rows, ed]);
        let block = kit.grid1(batch);
        let one = kit.b.ix_const(1);
        let off = kit.b.ix_mul(block, entries);
        let line = kit.view_of(table, &[entries], &[one], off, vec![(block, batch)]);
        let g = kit.paged(x, line, page);
        let z = kit.b.ix_const(0);
        let (_, t) = kit.tile("t", DType::Bf16, &[8, d], Space::Shared);
        // Rows 6..14 of 12 logical ones: the last two lie past the view.
        let six = kit.b.ix_const(6);
        kit.copy(g, &[six, z], t, &[z, z], &[8, d]);
        kit.parallel(&[3 * page, d], |k, i| {
            let a = k.load(g, i);
            let a = k.cast(a, DType::F32);
            let eight = k.b.ix_const(7);
            let r = k.b.ix_min(i[0], eight);
            let b = k.load(t, &[r, i[1]]);
            let b = k.cast(b, DType::F32);
            let nine = k.b.constant(Literal::f32(1024.0));
            let b = k.binary(BinaryOp::Mul, b, nine);
            let s = k.binary(BinaryOp::Add, a, b);
            k.store(y, &[block, i[0], i[1]], s);
        });
        let data: Vec<f64> = (0..pages * page * d).map(|i| (i * 7 % 120) as f64).collect();
        // Entries outside the pages: their rows are zero.
        let tables: Vec<f64> = vec![3.0, 0.0, 4.0, -1.0, 2.0, 5.0, 1.0, 1.0, -2147483648.0];
        let args = [
            tensor(DType::Bf16, &[pages, page, d], &data),
            tensor(dtype, &[3, 3], &tables),
            zeros(DType::F32, &[3, 3 * page, d]),
        ];
        run_clean(&kit, &[3], &args);
        let got = values(&args[2]);
        let row = |b: usize, r: usize, c: usize| {
            let e = if r / page < 3 { tables[b * 3 + r / page] } else { -1.0 };
            if e < 0.0 || e >= pages as f64 { 0.0 } else { data[(e as usize * page + r % page) * d + c] }
        };
        for b in 0..3 {
            for r in 0..3 * page {
                for c in 0..d {
                    let want = row(b, r, c) + 1024.0 * row(b, 6 + r.min(7), c);
                    assert_eq!(got[(b * 3 * page + r) * d + c], want, "{name} batch {b} row {r} column {c}");
                }
            }
        }
    }
}

#[test]
fn rows_by_number_load_or_store_and_drop() {
    let (n, d) = (10usize, 24usize);
    let mut kit = Kit::new("rows");
    let [en, ed, es] = [n, d, 6].map(|e| kit.b.ix_const(e as i64));
    let x = kit.input("x", DType::F16, &[en, ed]);
    let pick = kit.input("pick", DType::I32, &[es]);
    let (y, w) = (kit.output("y", DType::F16, &[es, ed]), kit.inout("w", DType::F16, &[en, ed]));
    let column = kit.output("column", DType::F16, &[es]);
    let one = kit.b.ix_const(1);
    kit.grid1(one);
    let z = kit.b.ix_const(0);
    let (_, ids) = kit.tile("ids", DType::I32, &[6], Space::Shared);
    kit.copy(pick, &[z], ids, &[z], &[6]);
    let (from, to) = (kit.rows(x, ids), kit.rows(w, ids));
    let minus = kit.b.constant(Literal { dtype: DType::F16, bits: 0xc500 });
    kit.parallel(&[6, d], |k, i| {
        let v = k.load_or(from, i, minus);
        k.store(y, i, v);
    });
    // Across rows: every lane has a row of its own.
    kit.parallel(&[6], |k, i| {
        let c = k.b.ix_const(5);
        let v = k.load(from, &[i[0], c]);
        k.store(column, i, v);
    });
    let (_, t) = kit.tile("t", DType::F16, &[6, d], Space::Shared);
    kit.copy(from, &[z, z], t, &[z, z], &[6, d]);
    kit.copy(t, &[z, z], to, &[z, z], &[6, d]);
    let data: Vec<f64> = (0..n * d).map(|i| i as f64).collect();
    let picks = [7i32, -1, 0, 10, 3, 9];
    let args = [
        tensor(DType::F16, &[n, d], &data),
        tensor(DType::I32, &[6], &picks.map(f64::from)),
        zeros(DType::F16, &[6, d]),
        tensor(DType::F16, &[n, d], &vec![1.0; n * d]),
        zeros(DType::F16, &[6]),
    ];
    run_clean(&kit, &[], &args);
    let (y, w, column) = (values(&args[2]), values(&args[3]), values(&args[4]));
    let row = |i: usize| usize::try_from(picks[i]).ok().filter(|&r| r < n);
    for i in 0..6 {
        for c in 0..d {
            assert_eq!(y[i * d + c], row(i).map_or(-5.0, |r| data[r * d + c]));
        }
        assert_eq!(column[i], row(i).map_or(0.0, |r| data[r * d + 5]));
    }
    for r in 0..n {
        let written = picks.contains(&(r as i32));
        for c in 0..d {
            assert_eq!(w[r * d + c], if written { data[r * d + c] } else { 1.0 }, "row {r}");
        }
    }
}

#[test]
fn gathered_views_under_the_sanitizer() {
    let find = |fill: usize, twice: bool| {
        let mut kit = Kit::new("defects");
        let [n, d, s] = [8, 4, 4].map(|e| kit.b.ix_const(e));
        let (x, w) = (kit.input("x", DType::F32, &[n, d]), kit.inout("w", DType::F32, &[n, d]));
        let pick = kit.input("pick", DType::I32, &[s]);
        let one = kit.b.ix_const(1);
        kit.grid1(one);
        let z = kit.b.ix_const(0);
        let (_, ids) = kit.tile("ids", DType::I32, &[4], Space::Shared);
        kit.copy(pick, &[z], ids, &[z], &[fill]);
        let (from, to) = (kit.rows(x, ids), kit.rows(w, ids));
        let (_, t) = kit.tile("t", DType::F32, &[4, 4], Space::Shared);
        kit.copy(from, &[z, z], t, &[z, z], &[4, 4]);
        kit.copy(t, &[z, z], to, &[z, z], &[4, 4]);
        let picks = if twice { [3.0, 1.0, 3.0, 9.0] } else { [3.0, 1.0, -7.0, 9.0] };
        let args = [
            tensor(DType::F32, &[8, 4], &numbers(32, 13)),
            tensor(DType::F32, &[8, 4], &numbers(32, 14)),
            tensor(DType::I32, &[4], &picks),
        ];
        let r = run_with(&kit, &[], &args, SANITIZE);
        r.findings.iter().map(|d| d.code).collect::<Vec<_>>()
    };
    assert_eq!(find(4, false), Vec::<&str>::new());
    // An entry nobody wrote; two iterations that store to one row.
    assert!(find(3, false).contains(&"S0102"));
    assert!(find(4, true).contains(&"S0103"));
}

#[test]
fn poison_does_not_leak_into_products_of_missing_rows() {
    // Sparse attention in small: scores of gathered keys, half of them missing, then a product with the values.
    let (h, d, keys) = (4usize, 16usize, 8usize);
    let mut kit = Kit::new("sparse");
    let [eh, ed, en, es] = [h, d, 20, keys].map(|e| kit.b.ix_const(e as i64));
    let (q, kv) = (kit.input("q", DType::Bf16, &[eh, ed]), kit.input("kv", DType::Bf16, &[en, ed]));
    let (pick, y) = (kit.input("pick", DType::I32, &[es]), kit.output("y", DType::F32, &[eh, ed]));
    let one = kit.b.ix_const(1);
    kit.grid1(one);
    let z = kit.b.ix_const(0);
    let g = kit.rows(kv, pick);
    let (_, tq) = kit.tile("q", DType::Bf16, &[h, d], Space::Shared);
    let (_, tk) = kit.tile("k", DType::Bf16, &[keys, d], Space::Shared);
    kit.copy(q, &[z, z], tq, &[z, z], &[h, d]);
    kit.copy(g, &[z, z], tk, &[z, z], &[keys, d]);
    let (s, sv) = kit.tile("s", DType::F32, &[h, keys], Space::Frag);
    let tkt = kit.t(tk);
    kit.gemm(tq, tkt, s, true);
    let (_, p) = kit.tile("p", DType::Bf16, &[h, keys], Space::Shared);
    kit.copy(sv, &[z, z], p, &[z, z], &[h, keys]);
    let (o, ov) = kit.tile("o", DType::F32, &[h, d], Space::Frag);
    kit.gemm(p, tk, o, true);
    kit.copy(ov, &[z, z], y, &[z, z], &[h, d]);
    let (qv, kvv) = (numbers(h * d, 15), numbers(20 * d, 16));
    let picks = [3i32, -1, 19, 20, 0, -1, 7, 99];
    let args = [
        tensor(DType::Bf16, &[h, d], &qv),
        tensor(DType::Bf16, &[20, d], &kvv),
        tensor(DType::I32, &[keys], &picks.map(f64::from)),
        zeros(DType::F32, &[h, d]),
    ];
    let r = run_clean(&kit, &[], &args);
    assert!(r.messages.is_empty());
    let (qv, kvv) = (held(DType::Bf16, &qv), held(DType::Bf16, &kvv));
    let row = |i: usize, c: usize| usize::try_from(picks[i]).ok().filter(|&r| r < 20).map_or(0.0, |r| kvv[r * d + c]);
    let keys_t: Vec<f32> = (0..d * keys).map(|e| row(e % keys, e / keys)).collect();
    let keys_r: Vec<f32> = (0..keys * d).map(|e| row(e / d, e % d)).collect();
    let scores = chain(&qv, &keys_t, [h, keys, d], &vec![0.0; h * keys]);
    let scores = held(DType::Bf16, &scores.iter().map(|&v| v as f64).collect::<Vec<_>>());
    assert_eq!(bits(&floats(&args[3])), bits(&chain(&scores, &keys_r, [h, d, keys], &vec![0.0; h * d])));
}

#[test]
fn nibbles_keep_their_neighbours() {
    // Blocks of an odd number of elements share bytes.
    for (n, size) in [(1001usize, 7i64), (4096, 33), (515, 256), (64, 64)] {
        let mut kit = Kit::new("nibbles");
        let dim = kit.dim("n");
        let (x, y) = (kit.input("x", DType::E2m1, &[dim]), kit.output("y", DType::E2m1, &[dim]));
        let spread = kit.output("spread", DType::F32, &[dim]);
        let at = kit.blocks_of(dim, size);
        let z = kit.b.ix_const(0);
        let (_, t) = kit.tile("t", DType::E2m1, &[size as usize], Space::Shared);
        kit.copy(x, &[at], t, &[z], &[size as usize]);
        kit.parallel(&[size as usize], |k, i| {
            let to = k.b.ix_add(at, i[0]);
            let v = k.load(t, i);
            let v = k.unary(UnaryOp::Neg, v);
            k.store(y, &[to], v);
            let direct = k.load(x, &[to]);
            let wide = k.cast(direct, DType::F32);
            k.store(spread, &[to], wide);
        });
        let codes: Vec<u8> = (0..n.div_ceil(2)).map(|i| (i * 37 + i / 5) as u8).collect();
        let data = HostTensor { dtype: DType::E2m1, shape: vec![n], data: codes };
        let numbers = data.to_f64();
        let args = [tensor(DType::E2m1, &[n], &numbers), zeros(DType::E2m1, &[n]), zeros(DType::F32, &[n])];
        run_clean(&kit, &[n as i64], &args);
        for _ in 0..5 {
            run_with(&kit, &[n as i64], &args, Options { threads: Some(4), ..Options::default() });
            let got = if let Arg::Tensor(v) = &args[1] { host(v) } else { panic!("not a tensor") };
            for i in 0..n {
                assert_eq!(got.bits(i), data.bits(i) ^ 8, "element {i} of {n}");
            }
            assert_eq!(values(&args[2]), numbers);
        }
    }
}
