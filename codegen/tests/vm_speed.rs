//! How fast the VM runs elementwise kernels. Prints only with `KILN_VM_SPEED=1` and never fails on a number: machines
//! differ. Run it with `--release -- --nocapture` for figures to write down.

pub mod vm_support;

use kiln_codegen::ir::*;
use kiln_codegen::vm::Options;
use std::time::Instant;
use vm_support::*;

const OPS: usize = 10;

/// Ten multiplications and additions between a load and a store.
pub fn chain(from: DType, to: DType, rows: usize, h: usize, exp: bool) -> Kit {
    let mut k = Kit::new("chain");
    let (r, c) = (k.b.ix_const(rows as i64), k.b.ix_const(h as i64));
    let (x, y) = (k.input("x", from, &[r, c]), k.output("y", to, &[r, c]));
    let row = k.grid1(r);
    k.parallel(&[h], |k, i| {
        let mut v = k.load(x, &[row, i[0]]);
        v = k.cast(v, DType::F32);
        let a = k.b.constant(Literal::f32(1.0001));
        let b = k.b.constant(Literal::f32(-0.003));
        for n in 0..OPS {
            v = match n % 2 {
                _ if exp => k.unary(UnaryOp::Exp2, v),
                0 => k.binary(BinaryOp::Mul, v, a),
                _ => k.binary(BinaryOp::Add, v, b),
            };
        }
        v = k.cast(v, to);
        k.store(y, &[row, i[0]], v);
    });
    k
}

/// Least time of some runs: of the processor where the system tells it (other work does not disturb it), else elapsed.
fn best(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let now = || {
        let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
        let spent = spent.and_then(|s| s.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()));
        spent.map_or(start.elapsed().as_secs_f64(), |ns| ns * 1e-9)
    };
    (0..7)
        .map(|_| {
            let t = now();
            f();
            now() - t
        })
        .fold(f64::INFINITY, f64::min)
}

#[test]
#[allow(clippy::print_stdout, reason = "the test exists to print")]
fn elementwise_throughput() {
    let speak = std::env::var_os("KILN_VM_SPEED").is_some();
    let (rows, h) = if speak { (2048, 4096) } else { (4, 512) };
    let one = Options { threads: Some(1), ..Options::default() };
    let n = (rows * h) as f64;
    let data: Vec<f64> = (0..rows * h).map(|i| (i % 251) as f64 / 251.0).collect();
    for (name, from, to, exp) in [
        ("f32 -> f32, mul/add", DType::F32, DType::F32, false),
        ("bf16 -> bf16, mul/add", DType::Bf16, DType::Bf16, false),
        ("f32 -> e4m3, mul/add", DType::F32, DType::E4m3, false),
        ("e4m3 -> f32, mul/add", DType::E4m3, DType::F32, false),
        ("f32 -> f32, exp2", DType::F32, DType::F32, true),
    ] {
        let k = chain(from, to, rows, h, exp);
        let args = [tensor(from, &[rows, h], &data), zeros(to, &[rows, h])];
        let s = best(|| {
            run_with(&k, &[], &args, one);
        });
        if speak {
            println!("{name}: {:.3} ns an element, {:.3} ns an element and op", s * 1e9 / n, s * 1e9 / n / OPS as f64);
        }
    }
    let x: Vec<f32> = data.iter().map(|&v| v as f32).collect();
    let mut y = vec![0f32; x.len()];
    let native = best(|| {
        for (o, &v) in y.iter_mut().zip(&x) {
            let mut v = v;
            for _ in 0..OPS / 2 {
                v = v * 1.0001 - 0.003;
            }
            *o = v;
        }
        std::hint::black_box(&mut y);
    });
    // A copy kernel and a row reduction, the other two shapes of memory-bound work.
    let mut k = Kit::new("sum");
    let (r, c) = (k.b.ix_const(rows as i64), k.b.ix_const(h as i64));
    let (xi, yo) = (k.input("x", DType::Bf16, &[r, c]), k.output("y", DType::F32, &[r]));
    let row = k.grid1(r);
    let z = k.b.ix_const(0);
    let (_, t) = k.tile("t", DType::Bf16, &[1, h], Space::Shared);
    k.copy(xi, &[row, z], t, &[z, z], &[1, h]);
    let order = Order { lanes: 128, per_lane: 8, tree: Tree::AdjacentPairs };
    let s = k.reduce_region(ReduceOp::Sum, &[h], order, |k, i| {
        let v = k.load(t, &[z, i[0]]);
        k.cast(v, DType::F32)
    });
    k.store(yo, &[row], s);
    let args = [tensor(DType::Bf16, &[rows, h], &data), zeros(DType::F32, &[rows])];
    let sum = best(|| {
        run_with(&k, &[], &args, one);
    });
    // Short rows: a transposing body over [64, 16] tiles.
    let k = {
        let mut k = Kit::new("short");
        let (r, c) = (k.b.ix_const((rows * h / 1024) as i64), k.b.ix_const(16));
        let s = k.b.ix_const(64);
        let (x, y) = (k.input("x", DType::F32, &[r, s, c]), k.output("y", DType::F32, &[r, s, c]));
        let row = k.grid1(r);
        k.parallel(&[64, 16], |k, i| {
            let v = k.load(x, &[row, i[0], i[1]]);
            let v = k.binary(BinaryOp::Add, v, v);
            k.store(y, &[row, i[0], i[1]], v);
        });
        k
    };
    let shape = [rows * h / 1024, 64, 16];
    let args = [tensor(DType::F32, &shape, &data), zeros(DType::F32, &shape)];
    let short = best(|| {
        run_with(&k, &[], &args, one);
    });
    if speak {
        println!("native f32 chain: {:.3} ns an element", native * 1e9 / n);
        println!("bf16 copy to a tile and ordered sum: {:.3} ns an element", sum * 1e9 / n);
        println!("rows of 16: {:.3} ns an element", short * 1e9 / n);
    }
}

/// `blocks` blocks of `[m, n]` that each accumulate `steps` products over `k`; with `copies`, of tiles copied from bf16.
pub fn products([m, n, k]: [usize; 3], blocks: usize, steps: usize, copies: bool) -> Kit {
    let mut kit = Kit::new("products");
    let z = kit.b.ix_const(0);
    let [rows, cols, depth] = [m * blocks, n, k * steps].map(|e| kit.b.ix_const(e as i64));
    let (a, b) = (kit.input("a", DType::Bf16, &[rows, depth]), kit.input("b", DType::Bf16, &[cols, depth]));
    let y = kit.output("y", DType::F32, &[rows, cols]);
    let size = m as i64;
    let at = kit.blocks_of(rows, size);
    let (_, ta) = kit.tile("ta", DType::Bf16, &[m, k], Space::Shared);
    let (_, tb) = kit.tile("tb", DType::Bf16, &[n, k], Space::Shared);
    let (acc, av) = kit.tile("acc", DType::F32, &[m, n], Space::Frag);
    let zero = kit.b.constant(Literal::f32(0.0));
    kit.b.push(Op::Fill { dst: av, value: zero });
    if !copies {
        kit.copy(a, &[at, z], ta, &[z, z], &[m, k]);
        kit.copy(b, &[z, z], tb, &[z, z], &[n, k]);
    }
    let tbt = kit.t(tb);
    let count = kit.b.ix_const(steps as i64);
    kit.for_loop(z, count, |kit, j| {
        let width = kit.b.ix_const(k as i64);
        let from = kit.b.ix_mul(j, width);
        if copies {
            kit.copy(a, &[at, from], ta, &[z, z], &[m, k]);
            kit.copy(b, &[z, from], tb, &[z, z], &[n, k]);
        }
        kit.gemm(ta, tbt, acc, false);
    });
    kit.copy(av, &[z, z], y, &[at, z], &[m, n]);
    kit
}

#[test]
#[allow(clippy::print_stdout, reason = "the test exists to print")]
fn product_throughput() {
    use kiln_codegen::vm::simd::{Matrix, gemm, level};
    let speak = std::env::var_os("KILN_VM_SPEED").is_some();
    let one = Options { threads: Some(1), ..Options::default() };
    for shape in [[64, 64, 64], [64, 64, 128], [128, 128, 64], [128, 128, 128]] {
        let [m, n, k] = shape;
        let (blocks, steps) = if speak { (8, 64) } else { (1, 2) };
        let flops = 2.0 * (m * n * k * blocks * steps) as f64;
        let data: Vec<f64> = (0..m * blocks * k * steps).map(|i| (i % 251) as f64 / 251.0).collect();
        let args = [
            tensor(DType::Bf16, &[m * blocks, k * steps], &data),
            tensor(DType::Bf16, &[n, k * steps], &data[..n * k * steps]),
            zeros(DType::F32, &[m * blocks, n]),
        ];
        let [only, whole] = [false, true].map(|copies| {
            let kit = products(shape, blocks, steps, copies);
            best(|| {
                run_with(&kit, &[], &args, one);
            })
        });
        let x: Vec<f32> = data[..m * k].iter().map(|&v| v as f32).collect();
        let y: Vec<f32> = data[..k * n].iter().map(|&v| v as f32).collect();
        let mut c = vec![0f32; m * n];
        let mut panel = vec![];
        let packed = best(|| {
            for _ in 0..blocks * steps {
                let a = Matrix { data: &x, row: k, col: 1 };
                let b = Matrix { data: &y, row: n, col: 1 };
                gemm(level(), shape, a, b, &mut c, false, &mut panel);
            }
            std::hint::black_box(&mut c);
        });
        // What a plain loop over rows does, with the instructions every host has.
        let plain = best(|| {
            for _ in 0..blocks * steps {
                for (row, line) in x.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
                    for (&v, other) in row.iter().zip(y.chunks_exact(n)) {
                        line.iter_mut().zip(other).for_each(|(o, &w)| *o += v * w);
                    }
                }
            }
            std::hint::black_box(&mut c);
        });
        if speak {
            let rate = |s: f64| flops / s * 1e-9;
            println!(
                "{m}x{n}x{k}: {:.1} GFLOP/s, {:.1} with the copies of its tiles; kernel alone {:.1}, plain loop {:.1}",
                rate(only),
                rate(whole),
                rate(packed),
                rate(plain)
            );
        }
    }
}
