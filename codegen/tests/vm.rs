//! The VM against plain loops: kernels are built by hand with the IR builder, so these tests need no language.

mod vm_support;

use kiln_codegen::abi::Arg;
use kiln_codegen::formats;
use kiln_codegen::ir::*;
use kiln_codegen::vm::{BlockOrder, Options};
use vm_support::*;

#[test]
fn vector_add_with_tails() {
    for n in [1usize, 7, 255, 256, 257, 1000, 4099] {
        let mut k = Kit::new("add");
        let dim = k.dim("n");
        let (a, b, c) =
            (k.input("a", DType::F32, &[dim]), k.input("b", DType::Bf16, &[dim]), k.output("c", DType::F32, &[dim]));
        let at = k.blocks_of(dim, 96);
        k.parallel(&[96], |k, i| {
            let x = k.b.ix_add(at, i[0]);
            let va = k.load(a, &[x]);
            let vb = k.load(b, &[x]);
            let vb = k.cast(vb, DType::F32);
            let s = k.binary(BinaryOp::Add, va, vb);
            k.store(c, &[x], s);
        });
        let av: Vec<f64> = (0..n).map(|i| i as f64 * 0.25 - 3.0).collect();
        let bv: Vec<f64> = (0..n).map(|i| (i % 100) as f64).collect();
        let args = [tensor(DType::F32, &[n], &av), tensor(DType::Bf16, &[n], &bv), zeros(DType::F32, &[n])];
        for order in [BlockOrder::Forward, BlockOrder::Reversed, BlockOrder::Seeded(3)] {
            run_with(&k, &[n as i64], &args, Options { order, ..Options::default() });
            let want: Vec<f64> = av.iter().zip(&bv).map(|(x, y)| x + y).collect();
            assert_eq!(values(&args[2]), want, "n = {n}");
        }
    }
}

/// Copies a row in, sums squares over it, scales: `order` is part of the bits.
fn rms_like(h: usize, order: Order) -> Kit {
    let mut k = Kit::new("rms");
    let rows = k.dim("rows");
    let hx = k.b.ix_const(h as i64);
    let (x, y) = (k.input("x", DType::Bf16, &[rows, hx]), k.output("y", DType::F32, &[rows, hx]));
    let row = k.grid1(rows);
    let zero = k.b.ix_const(0);
    let (f, fv) = k.tile("f", DType::F32, &[h], Space::Frag);
    let _ = f;
    // A row of the input as a view of rank 1 with a guard.
    let off = k.b.ix_mul(row, hx);
    let one = k.b.ix_const(1);
    let row_view = k.view_of(x, &[hx], &[one], off, vec![(row, rows)]);
    k.copy(row_view, &[zero], fv, &[zero], &[h]);
    let (_, sq) = k.tile("sq", DType::F32, &[h], Space::Frag);
    k.parallel(&[h], |k, i| {
        let v = k.load(fv, &[i[0]]);
        let v = k.binary(BinaryOp::Mul, v, v);
        k.store(sq, &[i[0]], v);
    });
    let (s, sv) = k.tile_no_alloc("s", DType::F32, &[]);
    k.alloc(s);
    k.b.push(Op::Reduce { op: ReduceOp::Sum, src: sq, dst: s, axis: 0, order: Some(order) });
    let sum = k.load(sv, &[]);
    k.parallel(&[h], |k, i| {
        let v = k.load(fv, &[i[0]]);
        let v = k.binary(BinaryOp::Mul, v, sum);
        k.store(y, &[row, i[0]], v);
    });
    k
}

#[test]
fn reductions_obey_their_order() {
    for h in [64usize, 520, 1000] {
        for order in [
            Order::SEQUENTIAL,
            Order { lanes: 32, per_lane: 8, tree: Tree::AdjacentPairs },
            Order { lanes: 128, per_lane: 8, tree: Tree::AdjacentPairs },
        ] {
            let rows = 3usize;
            let k = rms_like(h, order);
            let data: Vec<f64> = (0..rows * h).map(|i| ((i * 37 % 101) as f64 - 50.0) / 16.0).collect();
            let args = [tensor(DType::Bf16, &[rows, h], &data), zeros(DType::F32, &[rows, h])];
            run(&k, &[rows as i64], &args);
            let got = values(&args[1]);
            let x: Vec<f32> = data
                .iter()
                .map(|&v| formats::decode_f32(DType::Bf16, formats::encode_f32(DType::Bf16, v as f32)))
                .collect();
            for r in 0..rows {
                let row = &x[r * h..(r + 1) * h];
                let squares: Vec<f32> = row.iter().map(|v| v * v).collect();
                let sum = ordered_sum(order, &squares);
                for c in 0..h {
                    assert_eq!(got[r * h + c] as f32, row[c] * sum, "h {h} {order:?} row {r} column {c}");
                }
            }
        }
    }
}

#[test]
fn reduce_over_each_axis_and_region() {
    let shape = [5usize, 6, 40];
    for axis in 0..3 {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::AbsMax] {
            let mut k = Kit::new("axis");
            let ext: Vec<IxId> = shape.iter().map(|&e| k.b.ix_const(e as i64)).collect();
            let x = k.input("x", DType::F32, &ext);
            let left: Vec<usize> = (0..3).filter(|&a| a != axis).map(|a| shape[a]).collect();
            let lext: Vec<IxId> = left.iter().map(|&e| k.b.ix_const(e as i64)).collect();
            let y = k.output("y", DType::F32, &lext);
            let total = k.output("t", DType::F32, &[]);
            let one = k.b.ix_const(1);
            k.grid1(one);
            let z = k.b.ix_const(0);
            let (_, t) = k.tile("t", DType::F32, &shape, Space::Shared);
            k.copy(x, &[z; 3], t, &[z; 3], &shape);
            let (r, rv) = k.tile("r", DType::F32, &left, Space::Frag);
            k.b.push(Op::Reduce { op, src: t, dst: r, axis, order: Some(Order::SEQUENTIAL) });
            k.copy(rv, &[z; 2], y, &[z; 2], &left);
            let order = Order { lanes: 32, per_lane: 8, tree: Tree::AdjacentPairs };
            let all = k.reduce_region(op, &shape, order, |k, i| k.load(t, i));
            k.store(total, &[], all);
            let data: Vec<f64> = (0..1200).map(|i| ((i * 7919 % 997) as f64 - 498.0) / 8.0).collect();
            let args = [tensor(DType::F32, &shape, &data), zeros(DType::F32, &left), zeros(DType::F32, &[])];
            run_clean(&k, &[], &args);
            let f = |a: f32, b: f32| match op {
                ReduceOp::Sum => a + b,
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
                _ => a.abs().max(b.abs()),
            };
            let got = values(&args[1]);
            let at = |i: usize, j: usize, l: usize| data[(i * 6 + j) * 40 + l] as f32;
            for p in 0..left[0] {
                for q in 0..left[1] {
                    let line: Vec<f32> = (0..shape[axis])
                        .map(|e| match axis {
                            0 => at(e, p, q),
                            1 => at(p, e, q),
                            _ => at(p, q, e),
                        })
                        .collect();
                    let mut want = line.iter().copied().reduce(f).unwrap();
                    if op == ReduceOp::AbsMax {
                        want = want.abs();
                    }
                    assert_eq!(got[p * left[1] + q] as f32, want, "{op:?} axis {axis} at {p} {q}");
                }
            }
            let flat: Vec<f32> = data.iter().map(|&v| v as f32).collect();
            let want =
                if op == ReduceOp::Sum { ordered_sum(order, &flat) } else { flat.into_iter().reduce(f).unwrap().abs() };
            let got = values(&args[2])[0] as f32;
            assert_eq!(if op == ReduceOp::Sum { got } else { got.abs() }, want, "{op:?} region");
        }
    }
}

#[test]
fn scans_in_both_directions() {
    for kind in ScanKind::ALL.iter().copied() {
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            let n = 70;
            let mut k = Kit::new("scan");
            let e = k.b.ix_const(n as i64);
            let (x, y, t) =
                (k.input("x", DType::I32, &[e]), k.output("y", DType::I32, &[e]), k.output("t", DType::I32, &[]));
            let one = k.b.ix_const(1);
            k.grid1(one);
            let z = k.b.ix_const(0);
            let (_, src) = k.tile("src", DType::I32, &[n], Space::Shared);
            k.copy(x, &[z], src, &[z], &[n]);
            let (d, dv) = k.tile("d", DType::I32, &[n], Space::Frag);
            let total = k.b.push_value(DType::I32, |v| Op::Scan { op, kind, src, dst: d, axis: 0, total: Some(v) });
            k.copy(dv, &[z], y, &[z], &[n]);
            k.store(t, &[], total);
            let data: Vec<f64> = (0..n).map(|i| (i * 31 % 17) as f64 - 8.0).collect();
            let args = [tensor(DType::I32, &[n], &data), zeros(DType::I32, &[n]), zeros(DType::I32, &[])];
            run_clean(&k, &[], &args);
            let xs: Vec<i64> = data.iter().map(|&v| v as i64).collect();
            let fold = |r: &[i64]| {
                let init = if op == ReduceOp::Sum { 0 } else { i32::MIN as i64 };
                r.iter().fold(init, |a, &b| if op == ReduceOp::Sum { a + b } else { a.max(b) })
            };
            for i in 0..n {
                let want = match kind {
                    ScanKind::PrefixExclusive => fold(&xs[..i]),
                    ScanKind::PrefixInclusive => fold(&xs[..=i]),
                    ScanKind::SuffixExclusive => fold(&xs[i + 1..]),
                    ScanKind::SuffixInclusive => fold(&xs[i..]),
                };
                assert_eq!(values(&args[1])[i] as i64, want, "{op:?} {kind:?} at {i}");
            }
            assert_eq!(values(&args[2])[0] as i64, fold(&xs));
        }
    }
}

/// Counts values into 256 bins of shared memory, then adds them to the output.
fn histogram() -> Kit {
    let mut k = Kit::new("histogram");
    let n = k.dim("n");
    let bins = k.b.ix_const(256);
    let (x, y) = (k.input("x", DType::I32, &[n]), k.inout("y", DType::U32, &[bins]));
    let block = k.blocks_of(n, 1000);
    let z = k.b.ix_const(0);
    let (_, h) = k.tile("h", DType::U32, &[256], Space::Shared);
    let zero = k.b.constant(Literal::u32(0));
    k.b.push(Op::Fill { dst: h, value: zero });
    let thousand = k.b.ix_const(1000);
    let end = k.b.ix_add(block, thousand);
    let end = k.b.ix_min(end, n);
    k.spread(block, end, |k, i| {
        let v = k.load(x, &[i]);
        let top = k.b.ix_const(255);
        let at = k.clamp(v, z, top);
        let one = k.b.constant(Literal::u32(1));
        k.b.push(Op::Atomic { result: None, op: AtomicOp::Add, view: h, index: vec![at], value: one });
    });
    k.parallel(&[256], |k, i| {
        let v = k.load(h, &[i[0]]);
        k.b.push(Op::Atomic { result: None, op: AtomicOp::Add, view: y, index: vec![i[0]], value: v });
    });
    k
}

#[test]
fn histogram_with_atomics_on_any_number_of_threads() {
    let n = 12_345;
    let k = histogram();
    let data: Vec<f64> = (0..n).map(|i| (i * 7919 % 300) as f64 - 10.0).collect();
    let mut want = vec![0f64; 256];
    data.iter().for_each(|&v| want[v.clamp(0.0, 255.0) as usize] += 1.0);
    for threads in [1, 2, 5] {
        let args = [tensor(DType::I32, &[n], &data), zeros(DType::U32, &[256])];
        run_with(&k, &[n as i64], &args, Options { threads: Some(threads), ..Options::default() });
        assert_eq!(values(&args[1]), want);
    }
    let args = [tensor(DType::I32, &[n], &data), zeros(DType::U32, &[256])];
    run_clean(&k, &[n as i64], &args);
    assert_eq!(values(&args[1]), want);
}

#[test]
fn loops_breaks_and_joins_at_block_level() {
    // Collatz steps of each block's start, counted by a loop with a break, an `if` that joins and a variable.
    let mut k = Kit::new("collatz");
    let n = k.dim("n");
    let y = k.output("y", DType::I32, &[n]);
    let row = k.grid1(n);
    let one = k.b.constant(Literal::i32(1));
    let start = k.index_value(row, DType::I32);
    let start = k.binary(BinaryOp::Add, start, one);
    let zero = k.b.constant(Literal::i32(0));
    let (x, steps) = (k.var(start), k.var(zero));
    k.looped(|k| {
        let v = k.get(x);
        let done = k.compare(CmpOp::Le, v, one);
        k.when(done, |k| {
            k.b.push(Op::Break);
        });
        let odd = k.binary(BinaryOp::And, v, one);
        let odd = k.cast(odd, DType::Bool);
        let next = k.if_join(
            odd,
            |k| {
                let three = k.b.constant(Literal::i32(3));
                let t = k.binary(BinaryOp::Mul, v, three);
                k.binary(BinaryOp::Add, t, one)
            },
            |k| k.binary(BinaryOp::Shr, v, one),
        );
        k.set(x, next);
        let s = k.get(steps);
        let s = k.binary(BinaryOp::Add, s, one);
        k.set(steps, s);
    });
    let s = k.get(steps);
    k.store(y, &[row], s);
    let args = [zeros(DType::I32, &[40])];
    run_clean(&k, &[40], &args);
    check_collatz(&values(&args[0]));
}

fn check_collatz(got: &[f64]) {
    for (i, &g) in got.iter().enumerate() {
        let (mut x, mut s) = (i + 1, 0);
        while x > 1 {
            x = if x % 2 == 1 { 3 * x + 1 } else { x / 2 };
            s += 1;
        }
        assert_eq!(g, s as f64, "steps of {}", i + 1);
    }
}

#[test]
fn loops_breaks_and_joins_per_element() {
    let mut k = Kit::new("collatz");
    let n = k.dim("n");
    let y = k.output("y", DType::I32, &[n]);
    let base = k.blocks_of(n, 300);
    k.parallel(&[300], |k, i| {
        let at = k.b.ix_add(base, i[0]);
        let one = k.b.constant(Literal::i32(1));
        let start = k.index_value(at, DType::I32);
        let start = k.binary(BinaryOp::Add, start, one);
        let zero = k.b.constant(Literal::i32(0));
        let (x, steps) = (k.var(start), k.var(zero));
        k.looped(|k| {
            let v = k.get(x);
            let done = k.compare(CmpOp::Le, v, one);
            k.when(done, |k| {
                k.b.push(Op::Break);
            });
            let s = k.get(steps);
            let s = k.binary(BinaryOp::Add, s, one);
            k.set(steps, s);
            let odd = k.binary(BinaryOp::And, v, one);
            let odd = k.cast(odd, DType::Bool);
            k.when(odd, |k| {
                let three = k.b.constant(Literal::i32(3));
                let t = k.binary(BinaryOp::Mul, v, three);
                let t = k.binary(BinaryOp::Add, t, one);
                k.set(x, t);
                k.b.push(Op::Continue);
            });
            let half = k.binary(BinaryOp::Shr, v, one);
            k.set(x, half);
        });
        let s = k.get(steps);
        k.put(y, &[at], s);
    });
    let args = [zeros(DType::I32, &[777])];
    run_clean(&k, &[777], &args);
    check_collatz(&values(&args[0]));
}

#[test]
fn loops_of_different_length_per_element() {
    // y[i] = sum of x[j] for j in lo(i)..hi(i), with lo = i / 3 and hi = i.
    let mut k = Kit::new("triangle");
    let n = k.dim("n");
    let (x, y) = (k.input("x", DType::F32, &[n]), k.output("y", DType::F32, &[n]));
    let base = k.blocks_of(n, 128);
    k.parallel(&[128], |k, i| {
        let at = k.b.ix_add(base, i[0]);
        let zero = k.b.constant(Literal::f32(0.0));
        let acc = k.var(zero);
        let three = k.b.ix_const(3);
        let lo = k.b.ix_div(at, three);
        k.for_loop(lo, at, |k, j| {
            let v = k.load_or(x, &[j], zero);
            let a = k.get(acc);
            let a = k.binary(BinaryOp::Add, a, v);
            k.set(acc, a);
        });
        let a = k.get(acc);
        k.put(y, &[at], a);
    });
    let data: Vec<f64> = (0..300).map(|i| i as f64).collect();
    let args = [tensor(DType::F32, &[300], &data), zeros(DType::F32, &[300])];
    run_clean(&k, &[300], &args);
    for (i, &g) in values(&args[1]).iter().enumerate() {
        assert_eq!(g, (i / 3..i).map(|j| j as f64).sum::<f64>(), "at {i}");
    }
}

#[test]
fn views_with_guards_strides_and_gathers() {
    // Column `c` of a matrix picked by data; a transposed tile; a reversed read.
    let mut k = Kit::new("views");
    let (r, c) = (k.b.ix_const(20), k.b.ix_const(30));
    let (x, idx) = (k.input("x", DType::E4m3, &[r, c]), k.input("idx", DType::I32, &[r]));
    let y = k.output("y", DType::F32, &[c, r]);
    let g = k.output("g", DType::F32, &[r]);
    let one = k.b.ix_const(1);
    k.grid1(one);
    let z = k.b.ix_const(0);
    let (_, t) = k.tile("t", DType::E4m3, &[20, 30], Space::Shared);
    k.copy(x, &[z, z], t, &[z, z], &[20, 30]);
    let transposed = k.view_of(t, &[c, r], &[one, c], z, vec![]);
    k.parallel(&[30, 20], |k, i| {
        let v = k.load(transposed, &[i[0], i[1]]);
        let v = k.cast(v, DType::F32);
        k.store(y, &[i[0], i[1]], v);
    });
    k.parallel(&[20], |k, i| {
        let at = k.load(idx, &[i[0]]);
        let at = k.b.ix_data(at);
        let nineteen = k.b.ix_const(19);
        let back = k.b.ix_sub(nineteen, i[0]);
        let other = k.b.constant(Literal { dtype: DType::E4m3, bits: 0x38 });
        let v = k.load_or(x, &[back, at], other);
        let v = k.cast(v, DType::F32);
        k.store(g, &[i[0]], v);
    });
    let data: Vec<f64> = (0..600).map(|i| (i % 15) as f64).collect();
    let picks: Vec<f64> = (0..20).map(|i| i as f64 * 3.0 - 9.0).collect();
    let args = [
        tensor(DType::E4m3, &[20, 30], &data),
        tensor(DType::I32, &[20], &picks),
        zeros(DType::F32, &[30, 20]),
        zeros(DType::F32, &[20]),
    ];
    run_clean(&k, &[], &args);
    for i in 0..30 {
        for j in 0..20 {
            assert_eq!(values(&args[2])[i * 20 + j], data[j * 30 + i]);
        }
    }
    for i in 0..20usize {
        let p = picks[i];
        let want = if (0.0..30.0).contains(&p) { data[(19 - i) * 30 + p as usize] } else { 1.0 };
        assert_eq!(values(&args[3])[i], want, "gather {i}");
    }
}

#[test]
fn guards_hide_whole_views() {
    // Block 2 of 3 picks row 2 of a matrix with 2 rows: all its reads are zero, its writes are dropped.
    let mut k = Kit::new("guard");
    let h = k.b.ix_const(50);
    let rows = k.dim("rows");
    let (x, y) = (k.input("x", DType::F32, &[rows, h]), k.inout("y", DType::F32, &[h]));
    let three = k.b.ix_const(3);
    let row = k.grid1(three);
    let off = k.b.ix_mul(row, h);
    let one = k.b.ix_const(1);
    let picked = k.view_of(x, &[h], &[one], off, vec![(row, rows)]);
    let two = k.b.ix_const(2);
    let cond = k.b.push_value(DType::Bool, |result| Op::CompareIndex { result, op: CmpOp::Eq, a: row, b: two });
    k.when(cond, |k| {
        k.parallel(&[50], |k, i| {
            let v = k.load(picked, &[i[0]]);
            let one = k.b.constant(Literal::f32(7.0));
            let v = k.binary(BinaryOp::Add, v, one);
            k.store(y, &[i[0]], v);
            k.store(picked, &[i[0]], v);
        });
    });
    let args = [tensor(DType::F32, &[2, 50], &vec![1.0; 100]), zeros(DType::F32, &[50])];
    run(&k, &[2], &args);
    assert!(values(&args[1]).iter().all(|&v| v == 7.0));
    assert!(values(&args[0]).iter().all(|&v| v == 1.0));
}

#[test]
fn find_first_and_index_variables() {
    let mut k = Kit::new("find");
    let n = k.dim("n");
    let e = k.b.ix_const(600);
    let (x, y) = (k.input("x", DType::F32, &[n, e]), k.output("y", DType::I32, &[n]));
    let row = k.grid1(n);
    let zero = k.b.ix_const(0);
    let place = k.ix_var(zero);
    let found = k.find_first(600, |k, i| {
        let v = k.load(x, &[row, i]);
        let limit = k.b.constant(Literal::f32(0.5));
        k.compare(CmpOp::Gt, v, limit)
    });
    let one = k.b.ix_const(1);
    let next = k.b.ix_add(found, one);
    k.ix_set(place, next);
    let at = k.ix_get(place);
    let v = k.index_value(at, DType::I32);
    k.store(y, &[row], v);
    let mut data = vec![0.0; 3 * 600];
    data[1] = 1.0;
    data[5] = 1.0;
    data[600 + 599] = 1.0;
    let args = [tensor(DType::F32, &[3, 600], &data), zeros(DType::I32, &[3])];
    run_clean(&k, &[3], &args);
    assert_eq!(values(&args[1]), [2.0, 600.0, 601.0]);
}

/// Positive numbers of rows of 700 to the front, in order, and how many there are; counting starts at 3.
fn claims(always: bool) -> Kit {
    let mut k = Kit::new("claims");
    let n = k.dim("n");
    let e = k.b.ix_const(700);
    let (x, y) = (k.input("x", DType::F32, &[n, e]), k.inout("y", DType::F32, &[n, e]));
    let (numbers, count) = (k.output("numbers", DType::U32, &[n, e]), k.output("count", DType::U32, &[n]));
    let row = k.grid1(n);
    let three = k.b.constant(Literal::u32(3));
    let counter = k.var(three);
    let zero = k.b.ix_const(0);
    k.spread(zero, e, |k, i| {
        let v = k.load(x, &[row, i]);
        let cond = if always {
            k.b.constant(Literal { dtype: DType::Bool, bits: 1 })
        } else {
            let limit = k.b.constant(Literal::f32(0.0));
            k.compare(CmpOp::Gt, v, limit)
        };
        let number = k.b.push_value(DType::U32, |result| Op::Claim { result, var: counter, cond });
        k.store(numbers, &[row, i], number);
        k.when(cond, |k| {
            let to = k.b.ix_data(number);
            k.put(y, &[row, to], v);
        });
    });
    let all = k.b.push_value(DType::U32, |result| Op::VarGet { result, var: counter });
    k.store(count, &[row], all);
    k
}

#[test]
fn claims_number_iterations_in_order_whatever_the_order_of_running() {
    let rows = 3;
    let data: Vec<f64> = (0..rows * 700).map(|i| (i * 7919 % 11) as f64 - 5.0).collect();
    for (always, threads, order) in [
        (false, 1, BlockOrder::Forward),
        (false, 4, BlockOrder::Reversed),
        (false, 2, BlockOrder::Seeded(7)),
        (true, 2, BlockOrder::Reversed),
    ] {
        let k = claims(always);
        let args = [
            tensor(DType::F32, &[rows, 700], &data),
            zeros(DType::F32, &[rows, 700]),
            zeros(DType::U32, &[rows, 700]),
            zeros(DType::U32, &[rows]),
        ];
        let r = run_with(&k, &[rows as i64], &args, Options { sanitize: true, threads: Some(threads), order });
        assert!(r.findings.is_empty(), "{:?}", r.findings);
        let (mut kept, mut numbers, mut counts) = (vec![0.0; rows * 700], vec![], vec![]);
        for row in 0..rows {
            let mut next = 3;
            for i in 0..700 {
                numbers.push(next as f64);
                let v = data[row * 700 + i];
                if always || v > 0.0 {
                    if next < 700 {
                        kept[row * 700 + next] = v;
                    }
                    next += 1;
                }
            }
            counts.push(next as f64);
        }
        assert_eq!(values(&args[1]), kept);
        assert_eq!(values(&args[2]), numbers);
        assert_eq!(values(&args[3]), counts);
    }
}

#[test]
fn every_cast() {
    let inputs: Vec<f64> = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.3,
        2.5,
        3.5,
        -2.5,
        127.0,
        128.0,
        -129.0,
        255.0,
        256.0,
        300.5,
        448.0,
        460.0,
        1e5,
        70000.0,
        -1e9,
        4e9,
        1e12,
        1e-3,
        1e-8,
        3.3e38,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        16777217.0,
        2147483520.0,
    ];
    for from in DType::ALL {
        for to in DType::ALL {
            if matches!(to, DType::Bool) {
                continue;
            }
            let mut k = Kit::new("cast");
            let n = k.b.ix_const(inputs.len() as i64);
            let (x, y) = (k.input("x", from, &[n]), k.output("y", to, &[n]));
            let one = k.b.ix_const(1);
            k.grid1(one);
            k.parallel(&[inputs.len()], |k, i| {
                let v = k.load(x, &[i[0]]);
                let v = k.cast(v, to);
                k.store(y, &[i[0]], v);
            });
            let data: Vec<f64> = if from == DType::Bool {
                inputs.iter().map(|&v| (v > 1.0) as u8 as f64).collect()
            } else {
                inputs.clone()
            };
            let args = [tensor(from, &[inputs.len()], &data), zeros(to, &[inputs.len()])];
            run(&k, &[], &args);
            let (Arg::Tensor(a), Arg::Tensor(b)) = (&args[0], &args[1]) else { unreachable!() };
            let (a, b) = (host(a), host(b));
            for (i, input) in inputs.iter().enumerate() {
                let got = b.bits(i);
                let want = match (from.is_float(), to.is_float()) {
                    (true, _) => formats::encode_f32(to, formats::decode_f32(from, a.bits(i))),
                    (false, true) => {
                        let v = formats::decode_f64(from, a.bits(i));
                        // Through f32 where that is exact; larger integers are tested where they round once.
                        if v as f32 as f64 == v || to == DType::F32 { formats::encode_f32(to, v as f32) } else { got }
                    }
                    (false, false) => {
                        let v = match from {
                            DType::I8 => a.bits(i) as i8 as i64,
                            DType::I32 => a.bits(i) as i32 as i64,
                            _ => a.bits(i) as i64,
                        };
                        v as u64 & (u64::MAX >> (64 - to.bits()))
                    }
                };
                let nan = formats::decode_f64(to, want).is_nan() && formats::decode_f64(to, got).is_nan();
                assert!(got == want || nan, "{from} to {to} of {}: {got:#x} for {want:#x}", input);
            }
        }
    }
}

#[test]
fn bits_and_packed_bytes() {
    // A record of 4 bytes of f32 and 8 e2m1 codes, viewed in a byte tensor and in a byte tile.
    let mut k = Kit::new("packed");
    let bytes = k.b.ix_const(32);
    let (x, y, u) =
        (k.input("x", DType::U8, &[bytes]), k.output("y", DType::F32, &[bytes]), k.output("u", DType::U32, &[bytes]));
    let one = k.b.ix_const(1);
    k.grid1(one);
    let z = k.b.ix_const(0);
    let (_, t) = k.tile("t", DType::U8, &[32], Space::Shared);
    k.copy(x, &[z], t, &[z], &[32]);
    let (four, eight, two) = (k.b.ix_const(4), k.b.ix_const(8), k.b.ix_const(2));
    let scales = k.retype(t, DType::F32, &[four], &[two], z);
    let sixteen = k.b.ix_const(16);
    let codes = k.retype(x, DType::E2m1, &[four, eight], &[sixteen, one], eight);
    k.parallel(&[4, 8], |k, i| {
        let s = k.load(scales, &[i[0]]);
        let c = k.load(codes, &[i[0], i[1]]);
        let c = k.cast(c, DType::F32);
        let v = k.binary(BinaryOp::Mul, s, c);
        let at = k.b.ix_mul(i[0], eight);
        let at = k.b.ix_add(at, i[1]);
        k.store(y, &[at], v);
        let b = k.b.push_value(DType::U32, |result| Op::Bits { result, x: v });
        k.store(u, &[at], b);
    });
    let mut raw = vec![];
    for r in 0..4u8 {
        raw.extend((r as f32 + 1.0).to_le_bytes());
        raw.extend([0x10 | r, 0x32, 0x54, 0x76]);
    }
    let args = [
        tensor(DType::U8, &[32], &raw.iter().map(|&b| b as f64).collect::<Vec<_>>()),
        zeros(DType::F32, &[32]),
        zeros(DType::U32, &[32]),
    ];
    run_clean(&k, &[], &args);
    let table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for r in 0..4 {
        for c in 0..8 {
            let code = if c == 0 { r } else { c };
            let want = table[code] * (r as f64 + 1.0);
            assert_eq!(values(&args[1])[r * 8 + c], want);
            assert_eq!(values(&args[2])[r * 8 + c], (want as f32).to_bits() as f64);
        }
    }
}

#[test]
fn zero_sized_grids_do_nothing() {
    let mut k = Kit::new("none");
    let n = k.dim("n");
    let y = k.output("y", DType::F32, &[n]);
    let row = k.grid1(n);
    let v = k.b.constant(Literal::f32(1.0));
    k.store(y, &[row], v);
    run_clean(&k, &[0], &[zeros(DType::F32, &[0])]);
}

#[test]
fn narrow_floats_round_after_each_operation() {
    let mut k = Kit::new("narrow");
    let n = k.b.ix_const(64);
    let (x, y) = (k.input("x", DType::Bf16, &[n]), k.output("y", DType::Bf16, &[n]));
    let one = k.b.ix_const(1);
    k.grid1(one);
    k.parallel(&[64], |k, i| {
        let v = k.load(x, &[i[0]]);
        let a = k.binary(BinaryOp::Mul, v, v);
        let a = k.binary(BinaryOp::Add, a, v);
        k.store(y, &[i[0]], a);
    });
    let data: Vec<f64> = (0..64).map(|i| i as f64 * 0.37 + 1.0).collect();
    let args = [tensor(DType::Bf16, &[64], &data), zeros(DType::Bf16, &[64])];
    run_clean(&k, &[], &args);
    let r = |v: f32| formats::decode_f32(DType::Bf16, formats::encode_f32(DType::Bf16, v));
    for (i, &x) in data.iter().enumerate() {
        let v = r(x as f32);
        assert_eq!(values(&args[1])[i] as f32, r(r(v * v) + v));
    }
}
