//! Each defect the sanitizer knows, planted in a small kernel, is found with its code; and clean kernels stay clean.

mod vm_support;

use kiln_codegen::abi::Arg;
use kiln_codegen::ir::*;
use kiln_codegen::vm::Options;
use vm_support::*;

const SANITIZE: Options = Options { sanitize: true, threads: None, order: kiln_codegen::vm::BlockOrder::Forward };

/// Builds a kernel over one block and a dimension `n`, runs it sanitized, and returns codes of findings and messages.
fn codes(n: usize, no_guards: bool, build: impl FnOnce(&mut Kit, ViewId, ViewId)) -> (Vec<&'static str>, Vec<String>) {
    let mut k = Kit::new("defect");
    k.no_guards = no_guards;
    let dim = k.dim("n");
    let (x, y) = (k.input("x", DType::F32, &[dim]), k.output("y", DType::F32, &[dim]));
    let one = k.b.ix_const(1);
    k.grid1(one);
    build(&mut k, x, y);
    let data: Vec<f64> = (0..n).map(|i| i as f64).collect();
    let args = [tensor(DType::F32, &[n], &data), zeros(DType::F32, &[n])];
    let r = run_with(&k, &[n as i64], &args, SANITIZE);
    for d in r.findings.iter().chain(&r.messages) {
        assert!(d.help.is_some(), "{d} gives no advice");
    }
    let text = r.findings.iter().chain(&r.messages).map(|d| d.to_string()).collect();
    (r.findings.iter().chain(&r.messages).map(|d| d.code).collect(), text)
}

fn copy_all(k: &mut Kit, x: ViewId, y: ViewId, n: usize) {
    k.parallel(&[n], |k, i| {
        let v = k.load(x, i);
        k.store(y, i, v);
    });
}

#[test]
fn tails_are_expected_and_unknown_edges_are_not() {
    assert_eq!(codes(100, false, |k, x, y| copy_all(k, x, y, 128)).0, Vec::<&str>::new());
    let (found, text) = codes(100, true, |k, x, y| copy_all(k, x, y, 128));
    assert_eq!(found, ["S0101", "S0101"], "{text:?}");
    assert!(text[0].contains("x[100]") && text[0].contains("iteration (100)"), "{}", text[0]);
    // Below the start is a defect even where a guard is kept.
    let (found, _) = codes(64, false, |k, x, y| {
        k.parallel(&[64], |k, i| {
            let one = k.b.ix_const(1);
            let before = k.b.ix_sub(i[0], one);
            let v = k.load(x, &[before]);
            k.store(y, i, v);
        });
    });
    assert_eq!(found, ["S0101"]);
    // A tile has no tails.
    let (found, _) = codes(64, false, |k, x, y| {
        let (_, t) = k.tile("t", DType::F32, &[63], Space::Shared);
        let zero = k.b.ix_const(0);
        k.copy(x, &[zero], t, &[zero], &[63]);
        copy_all(k, t, y, 64);
    });
    assert_eq!(found, ["S0101"]);
}

#[test]
fn uninitialised_reads() {
    let (found, text) = codes(64, false, |k, _, y| {
        let (_, t) = k.tile("t", DType::F32, &[64], Space::Frag);
        k.parallel(&[60], |k, i| {
            let v = k.b.constant(Literal::f32(1.0));
            k.store(t, i, v);
        });
        copy_all(k, t, y, 64);
    });
    assert_eq!(found, ["S0102"]);
    assert!(text[0].contains("`t`") && text[0].contains("element 60"), "{}", text[0]);
    let (found, _) = codes(64, false, |k, _, y| copy_all(k, y, y, 64));
    assert_eq!(found, ["S0102"]);
    let (found, _) = codes(64, false, |k, _, y| {
        let (_, t) = k.tile("t", DType::F32, &[64], Space::Frag);
        let (r, rv) = k.tile("r", DType::F32, &[], Space::Frag);
        k.b.push(Op::Reduce { op: ReduceOp::Max, src: t, dst: r, axis: 0, order: None });
        let v = k.load(rv, &[]);
        k.parallel(&[64], |k, i| k.store(y, i, v));
    });
    assert_eq!(found, ["S0102"]);
    // A tile that is partly filled and whose rest is dropped by a copy is fine.
    let (found, text) = codes(60, false, |k, x, y| {
        let (_, t) = k.tile("t", DType::F32, &[64], Space::Frag);
        k.parallel(&[60], |k, i| {
            let v = k.load(x, i);
            k.store(t, i, v);
        });
        let zero = k.b.ix_const(0);
        k.copy(t, &[zero], y, &[zero], &[64]);
    });
    assert_eq!(found, Vec::<&str>::new(), "{text:?}");
}

#[test]
fn conflicts_inside_a_phase() {
    let (found, text) = codes(64, false, |k, x, y| {
        k.parallel(&[64], |k, i| {
            let v = k.load(x, i);
            let two = k.b.ix_const(2);
            let half = k.b.ix_div(i[0], two);
            k.store(y, &[half], v);
        });
        copy_all(k, x, y, 64);
    });
    assert!(found.contains(&"S0103"), "{text:?}");
    assert!(text[0].contains("iteration 0 writes") && text[0].contains("iteration 1 writes"), "{}", text[0]);
    // A neighbour's element is read while it may be written.
    let (found, text) = codes(64, false, |k, x, y| {
        let (_, t) = k.tile("t", DType::F32, &[65], Space::Shared);
        let zero = k.b.constant(Literal::f32(0.0));
        k.b.push(Op::Fill { dst: t, value: zero });
        k.parallel(&[64], |k, i| {
            let one = k.b.ix_const(1);
            let next = k.b.ix_add(i[0], one);
            let v = k.load(t, &[next]);
            let w = k.load(x, i);
            let v = k.binary(BinaryOp::Add, v, w);
            k.store(t, i, v);
        });
        copy_all(k, t, y, 64);
    });
    assert!(found.contains(&"S0103"), "{text:?}");
    // In two phases it is fine.
    let (found, text) = codes(64, false, |k, x, y| {
        let (_, t) = k.tile("t", DType::F32, &[64], Space::Shared);
        copy_all(k, x, t, 64);
        k.parallel(&[64], |k, i| {
            let last = k.b.ix_const(63);
            let back = k.b.ix_sub(last, i[0]);
            let v = k.load(t, &[back]);
            k.store(y, i, v);
        });
    });
    assert_eq!(found, Vec::<&str>::new(), "{text:?}");
}

#[test]
fn uncovered_outputs() {
    let (found, text) = codes(64, false, |k, x, y| copy_all(k, x, y, 50));
    assert_eq!(found, ["S0104"]);
    assert!(text[0].contains("14 of 64") && text[0].contains("y[50]"), "{}", text[0]);
}

#[test]
fn order_dependence_of_blocks_and_atomics() {
    // Each element's place is the old value of a counter.
    let mut k = Kit::new("positions");
    let n = k.b.ix_const(64);
    let y = k.output("y", DType::I32, &[n]);
    let one = k.b.ix_const(1);
    k.grid1(one);
    let (_, c) = k.tile("c", DType::I32, &[1], Space::Shared);
    let zero = k.b.constant(Literal::i32(0));
    k.b.push(Op::Fill { dst: c, value: zero });
    k.parallel(&[64], |k, i| {
        let z = k.b.ix_const(0);
        let one = k.b.constant(Literal::i32(1));
        let v = k.b.push_value(DType::I32, |r| Op::Atomic {
            result: Some(r),
            op: AtomicOp::Add,
            view: c,
            index: vec![z],
            value: one,
        });
        k.store(y, i, v);
    });
    let r = run_with(&k, &[], &[zeros(DType::I32, &[64])], SANITIZE);
    assert_eq!(r.findings.iter().map(|d| d.code).collect::<Vec<_>>(), ["S0105"]);
    // All blocks write the same element with their own number.
    let mut k = Kit::new("blocks");
    let one = k.b.ix_const(1);
    let y = k.output("y", DType::I32, &[one]);
    let five = k.b.ix_const(5);
    let b = k.grid1(five);
    let v = k.index_value(b, DType::I32);
    let z = k.b.ix_const(0);
    k.store(y, &[z], v);
    let args = [zeros(DType::I32, &[1])];
    let r = run_with(&k, &[], &args, SANITIZE);
    assert_eq!(r.findings.iter().map(|d| d.code).collect::<Vec<_>>(), ["S0105"]);
    assert_eq!(values(&args[0]), [4.0], "the forward run's result stays");
}

#[test]
fn divisions_by_zero() {
    let (found, text) = codes(8, false, |k, _, y| {
        k.parallel(&[8], |k, i| {
            let v = k.index_value(i[0], DType::I32);
            let ten = k.b.constant(Literal::i32(10));
            let q = k.binary(BinaryOp::Div, ten, v);
            let q = k.cast(q, DType::F32);
            k.store(y, i, q);
        });
    });
    assert_eq!(found, ["S0107"], "{text:?}");
    // An index divided by a dimension that is zero.
    let mut k = Kit::new("index");
    let (n, m) = (k.dim("n"), k.dim("m"));
    let y = k.output("y", DType::I32, &[n]);
    let row = k.grid1(n);
    let q = k.b.ix_div(row, m);
    let v = k.index_value(q, DType::I32);
    k.store(y, &[row], v);
    let error = try_run(&k, &[4, 0], &[zeros(DType::I32, &[4])], Options::default()).unwrap_err();
    assert_eq!(error[0].code, "S0107");
    let r = run_with(&k, &[4, 0], &[zeros(DType::I32, &[4])], SANITIZE);
    assert!(r.findings.iter().any(|d| d.code == "S0107"));
}

#[test]
fn views_that_leave_their_allocation_are_errors_not_panics() {
    let mut k = Kit::new("wild");
    let n = k.dim("n");
    let (x, y) = (k.input("x", DType::F32, &[n]), k.output("y", DType::F32, &[n]));
    let one = k.b.ix_const(1);
    k.grid1(one);
    let (far, big) = (k.b.ix_const(1 << 40), k.b.ix_const(1 << 50));
    let wild = k.view_of(x, &[big], &[one], far, vec![]);
    let negative = k.b.ix_const(-5);
    let back = k.view_of(y, &[n], &[one], negative, vec![]);
    k.parallel(&[8], |k, i| {
        let v = k.load(wild, i);
        k.store(back, i, v);
    });
    let args = || [zeros(DType::F32, &[8]), zeros(DType::F32, &[8])];
    let errors = try_run(&k, &[8], &args(), Options::default()).unwrap_err();
    assert_eq!(errors[0].code, "S0108");
    let r = run_with(&k, &[8], &args(), SANITIZE);
    assert!(r.findings.iter().filter(|d| d.code == "S0108").count() == 2);
}

#[test]
fn numeric_surprises_are_messages() {
    let (found, text) = codes(8, false, |k, x, y| {
        k.parallel(&[8], |k, i| {
            let v = k.load(x, i);
            let w = k.unary(UnaryOp::Log2, v);
            let big = k.b.constant(Literal::f32(1000.0));
            let s = k.binary(BinaryOp::Mul, v, big);
            let e = k.cast(s, DType::E4m3);
            let e = k.cast(e, DType::F32);
            let w = k.binary(BinaryOp::Add, w, e);
            k.store(y, i, w);
        });
    });
    assert_eq!(found, ["S0151", "S0152"], "{text:?}");
    assert!(text[0].contains("infinity appears first at `log2`"), "{}", text[0]);
    assert!(text[1].contains("7 of 8"), "{}", text[1]);
}

#[test]
fn overflowing_offsets() {
    let mut k = Kit::new("far");
    let n = k.dim("n");
    let x = k.inout("x", DType::U8, &[n]);
    let one = k.b.ix_const(1);
    k.grid1(one);
    let far = k.b.ix_const(1 << 29);
    let zero = k.b.constant(Literal { dtype: DType::U8, bits: 0 });
    k.parallel(&[5], |k, i| {
        let at = k.b.ix_mul(i[0], far);
        k.put(x, &[at], zero);
    });
    let r = run_with(&k, &[8], &[zeros(DType::U8, &[8])], SANITIZE);
    assert_eq!(r.findings.iter().map(|d| d.code).collect::<Vec<_>>(), ["S0106"]);
}

#[test]
fn wrong_arguments_are_refused() {
    let mut k = Kit::new("args");
    let n = k.dim("n");
    let y = k.output("y", DType::F32, &[n]);
    let row = k.grid1(n);
    let v = k.b.constant(Literal::f32(1.0));
    k.store(y, &[row], v);
    for args in [vec![], vec![Arg::Absent], vec![zeros(DType::I32, &[4])], vec![zeros(DType::F32, &[2, 2])]] {
        let e = try_run(&k, &[4], &args, Options::default()).unwrap_err();
        assert_eq!(e[0].code, "S0109");
    }
    assert_eq!(try_run(&k, &[], &[zeros(DType::F32, &[4])], Options::default()).unwrap_err()[0].code, "S0109");
}
