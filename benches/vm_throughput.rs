//! How far is the tile VM from native loops? One row an operator and dtype, both on one thread.
//!
//!     cargo bench -p kiln-benches --bench vm_throughput
//!
//! The native side is the loop one would write by hand, which the compiler vectorises, and for matrix products the packed
//! f32 product of the crate ndarray. The goals are a fifth of the native rate for elementwise work, and half of it for
//! whole matrix operators, with the copies and conversions of their tiles. The best of the runs counts, so that other work
//! on the machine disturbs little. `codegen/tests/vm_speed.rs` looks at single ops.
#![allow(clippy::print_stdout, reason = "a bench prints its result")]

use kiln_benches::{launches, times_ms};
use kiln_codegen::abi::Launch;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{Case, Fill, InputSpec, OpSpec, ParamValue, TensorSpec};
use kiln_codegen::vm::{self, Options};
use kiln_codegen::{bind, compile};
use kiln_kernels::elementwise::vector_add::VectorAdd;
use kiln_kernels::gemm::bf16::GemmBf16;
use kiln_kernels::gemm::fp8::GemmFp8;
use kiln_kernels::norm::rmsnorm::Rmsnorm;
use ndarray::Array2;
use ndarray::linalg::general_mat_mul;
use std::hint::black_box;

const GOAL: f64 = 5.0;
/// Goal of matrix operators.
const PRODUCT_GOAL: f64 = 2.0;
/// Sizes of a product, all three.
const SIDE: usize = 512;
const RUNS: usize = 15;
/// Rows of the width of a model's hidden state.
const ROWS: usize = 256;
const WIDTH: usize = 4096;
const N: usize = ROWS * WIDTH;

fn main() -> Result<(), String> {
    println!("{N} elements, one thread, best of {RUNS} runs; goal {GOAL} times native");
    let (x, y) = (ramp(), ramp());
    let mut z = vec![0f32; N];
    let native = best(|| {
        for ((z, x), y) in z.iter_mut().zip(black_box(&x)).zip(black_box(&y)) {
            *z = x + y;
        }
        black_box(&mut z);
    });
    row("vector_add f32", on_vm(&VectorAdd, &add_case(DType::F32))?, native);

    let (xb, yb): (Vec<u16>, Vec<u16>) = (x.iter().map(|&v| bf16(v)).collect(), y.iter().map(|&v| bf16(v)).collect());
    let mut zb = vec![0u16; N];
    let native = best(|| {
        for ((z, &x), &y) in zb.iter_mut().zip(black_box(&xb)).zip(black_box(&yb)) {
            *z = bf16(f32_of(x) + f32_of(y));
        }
        black_box(&mut zb);
    });
    row("vector_add bf16", on_vm(&VectorAdd, &add_case(DType::Bf16))?, native);

    let native = best(|| {
        for (z, x) in zb.chunks_exact_mut(WIDTH).zip(black_box(&xb).chunks_exact(WIDTH)) {
            // Sixteen partial sums, as a person who wants vector code writes it.
            let mut sums = [0f32; 16];
            for part in x.chunks_exact(16) {
                for (sum, &v) in sums.iter_mut().zip(part) {
                    *sum += f32_of(v) * f32_of(v);
                }
            }
            let inverse = 1.0 / (sums.iter().sum::<f32>() / WIDTH as f32 + 1e-6).sqrt();
            for ((z, &v), &w) in z.iter_mut().zip(x).zip(&yb[..WIDTH]) {
                *z = bf16(f32_of(v) * inverse * f32_of(w));
            }
        }
        black_box(&mut zb);
    });
    row("rmsnorm bf16", on_vm(&Rmsnorm, &norm_case())?, native);
    products()
}

/// Matrix operators against a packed f32 product of the same sizes.
fn products() -> Result<(), String> {
    println!("products of {SIDE} x {SIDE} x {SIDE}, one thread, best of {RUNS} runs; goal {PRODUCT_GOAL} times native");
    let matrix = |seed: usize| Array2::from_shape_fn((SIDE, SIDE), |(i, j)| ((i * 7 + j * seed) % 13) as f32 - 6.0);
    let (a, b) = (matrix(3), matrix(5));
    let mut c = Array2::<f32>::zeros((SIDE, SIDE));
    let native = best(|| general_mat_mul(1.0, black_box(&a), &black_box(&b).t(), 0.0, black_box(&mut c)));
    let rate = |ms: f64| 2.0 * (SIDE * SIDE * SIDE) as f64 / ms * 1e-6;
    println!("{:<18} native {:6.1} GFLOP/s", "packed f32", rate(native));
    let sizes: Vec<(String, usize)> = ["m", "n", "k"].map(|k| (k.to_string(), SIDE)).into();
    for op in [&GemmBf16 as &dyn OpSpec, &GemmFp8] {
        let case = op.bench_case(&sizes).map_err(|e| e.to_string())?;
        let ms = on_vm(op, &case)?;
        let over = if ms / native > PRODUCT_GOAL { "  over the goal" } else { "" };
        println!("{:<18} vm {:10.1} GFLOP/s  ratio {:5.2}{over}", op.info().name, rate(ms), ms / native);
    }
    Ok(())
}

fn row(name: &str, vm_ms: f64, native_ms: f64) {
    let per = |ms: f64| ms * 1e6 / N as f64;
    let ratio = vm_ms / native_ms;
    let over = if ratio > GOAL { "  over the goal" } else { "" };
    println!(
        "{name:<18} vm {:6.3} ns  native {:6.3} ns an element  ratio {ratio:5.1}{over}",
        per(vm_ms),
        per(native_ms)
    );
}

fn best(call: impl FnMut()) -> f64 {
    times_ms(RUNS, call)[0]
}

/// Milliseconds of an operator's launches in the VM, without their compilation to IR.
fn on_vm(op: &dyn OpSpec, case: &Case) -> Result<f64, String> {
    let options = Options { threads: Some(1), ..Options::default() };
    let mut ready = vec![];
    for launch in launches(op, case)? {
        let Launch { kernel, config, args } = &launch;
        let bound = bind::bind(kernel.as_ref(), config, args).map_err(|e| e.to_string())?;
        let built = compile::build(kernel.as_ref(), &bound.request).map_err(|d| format!("{d:?}"))?;
        let syms = bind::sym_values(&built.kernel, &bound.dims, args);
        ready.push((built, syms, launch));
    }
    let mut failed = None;
    let ms = best(|| {
        for (built, syms, launch) in &ready {
            failed = vm::run(&built.kernel, &built.facts, syms, &launch.args, &options).err().or(failed.take());
        }
    });
    failed.map_or(Ok(ms), |d| Err(format!("{}: {d:?}", op.info().name)))
}

fn add_case(dtype: DType) -> Case {
    case(vec![("x", dtype, vec![N]), ("y", dtype, vec![N])], None)
}

fn norm_case() -> Case {
    case(vec![("x", DType::Bf16, vec![ROWS, WIDTH]), ("weight", DType::Bf16, vec![WIDTH])], Some(("eps", 1e-6)))
}

fn case(inputs: Vec<(&str, DType, Vec<usize>)>, param: Option<(&str, f64)>) -> Case {
    let input = |(name, dtype, shape): (&str, DType, Vec<usize>)| InputSpec {
        tensor: TensorSpec { name: name.into(), dtype, shape },
        fill: Fill::Constant(0.0),
    };
    let params = param.into_iter().map(|(n, v)| (n.to_string(), ParamValue::Float(v))).collect();
    Case { id: "throughput".into(), inputs: inputs.into_iter().map(input).collect(), params }
}

fn ramp() -> Vec<f32> {
    (0..N).map(|i| (i % 251) as f32 / 251.0).collect()
}

/// Nearest even; the inputs hold no NaN.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn f32_of(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}
