//! Hand-written kernels in the emitters' form on the simulator: they run without findings and give the right numbers,
//! and each mutation of them is caught with its code.

use kiln_codegen::abi::TensorView;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{Access, DType};
use kiln_codegen::machine::{Code, Findings, Lines};
use kiln_runtime::config::Settings;
use kiln_runtime::device::sim::{Exploration, HostCompiler, Shape, SimArg, run};
use std::sync::Arc;

/// Sums of rows: a loop over the row, shuffles within a warp, shared memory between warps.
const ROW_SUM: &str = r#"
extern "C" __global__ void __launch_bounds__(64) row_sum(const float* __restrict__ x, float* __restrict__ y, int n) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    float* const partials = (float*)shared;
    float sum = 0.0f;

    // sum.rs:4:13: parallel [n]
    for (int i = tid; i < n; i += 64) {
        sum += x[blockIdx.x * n + i];
    }

    // sum.rs:5:9: reduce_sum
    for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (tid % 32 == 0) partials[tid / 32] = sum;
    __syncthreads();
    sum = partials[0] + partials[1];  // sum.rs:6:9
    if (tid == 0) y[blockIdx.x] = sum;
}
"#;

/// Transposes 32 x 32 tiles through shared memory, twice, so that the tile is reused.
const TRANSPOSE: &str = r#"
extern "C" __global__ void __launch_bounds__(128) transpose(const float* __restrict__ x, float* __restrict__ y) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    float* const tile = (float*)shared;
    for (int half = 0; half < 2; half++) {
        // t.rs:7:9: parallel [32, 32]
        for (int i = tid; i < 1024; i += 128) {
            tile[i / 32 * 33 + i % 32] = x[half * 1024 + i];
        }
        __syncthreads();  // tile is read after
        // t.rs:9:9: parallel [32, 32]
        for (int i = tid; i < 1024; i += 128) {
            y[half * 1024 + i] = tile[i % 32 * 33 + i / 32];
        }
        __syncthreads();  // tile is written after
    }
}
"#;

/// A two-stage pipeline of asynchronous copies; every thread reads what another one copied.
const PIPELINE: &str = r#"
extern "C" __global__ void __launch_bounds__(64) pipeline(const float* __restrict__ x, float* __restrict__ y, int steps) {
    extern __shared__ __align__(16) u8 shared[];
    float* const tile = (float*)shared;
    const int t = threadIdx.x;
    float sum[4] = {0, 0, 0, 0};
    cp_async16(tile + t * 4, x + t * 4);
    cp_async_commit();
    for (int k = 0; k < steps; k++) {
        if (k + 1 < steps) cp_async16(tile + (k + 1) % 2 * 256 + t * 4, x + (k + 1) * 256 + t * 4);  // p.rs:5:5
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();  // full
        for (int i = 0; i < 4; i++) sum[i] += tile[k % 2 * 256 + (63 - t) * 4 + i];
        __syncthreads();  // empty
    }
    for (int i = 0; i < 4; i++) y[t * 4 + i] = sum[i];
}
"#;

fn tensor(values: &[f32]) -> TensorView {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    TensorView::contiguous(DType::F32, &[values.len()], Arc::new(HostMemory::from_bytes(&bytes)))
}

fn values(view: &TensorView) -> Vec<f32> {
    let bytes = view.memory.host().expect("host memory").to_bytes();
    bytes.chunks(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

fn input(name: &str, view: &TensorView) -> SimArg {
    SimArg::Tensor { name: name.into(), access: Access::In, view: view.clone() }
}

fn output(name: &str, view: &TensorView) -> SimArg {
    SimArg::Tensor { name: name.into(), access: Access::Out, view: view.clone() }
}

fn execute(text: &str, entry: &str, shape: Shape, args: &[SimArg]) -> Findings {
    let compiler =
        HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"));
    let program = compiler.load(text, entry).unwrap_or_else(|e| panic!("{e}"));
    let by = Exploration { spin_limit: 300_000, ..Exploration::new(4) };
    run(&program, shape, args, &by).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs one of the kernels above with `from` replaced by `to`; gives the findings and whether the numbers are right.
fn mutated(kernel: &str, from: &str, to: &str) -> (Findings, bool) {
    assert!(from.is_empty() || kernel.contains(from), "`{from}` is not in the kernel");
    let text = if from.is_empty() { kernel.to_string() } else { kernel.replacen(from, to, 1) };
    let (x, y, want, args, shape, entry);
    if kernel == ROW_SUM {
        let n = 100;
        x = tensor(&(0..3 * n).map(|i| i as f32).collect::<Vec<_>>());
        y = tensor(&[0.0; 3]);
        want = (0..3).map(|r| (0..n).map(|i| (r * n + i) as f32).sum()).collect::<Vec<f32>>();
        args = vec![input("x", &x), output("y", &y), SimArg::Word(n as u64)];
        (shape, entry) = (Shape { grid: [3, 1, 1], cluster: [1; 3], threads: 64, shared_bytes: 8 }, "row_sum");
    } else if kernel == TRANSPOSE {
        x = tensor(&(0..2048).map(|i| i as f32).collect::<Vec<_>>());
        y = tensor(&[0.0; 2048]);
        want = (0..2048).map(|i| (i / 1024 * 1024 + i % 32 * 32 + i % 1024 / 32) as f32).collect();
        args = vec![input("x", &x), output("y", &y)];
        (shape, entry) =
            (Shape { grid: [1, 1, 1], cluster: [1; 3], threads: 128, shared_bytes: 4 * 33 * 32 }, "transpose");
    } else {
        let steps = 5;
        x = tensor(&(0..steps * 256).map(|i| (i % 97) as f32).collect::<Vec<_>>());
        y = tensor(&[0.0; 256]);
        want = (0..256).map(|i| (0..steps).map(|k| ((k * 256 + (63 - i / 4) * 4 + i % 4) % 97) as f32).sum()).collect();
        args = vec![input("x", &x), output("y", &y), SimArg::Word(steps as u64)];
        (shape, entry) = (Shape { grid: [1, 1, 1], cluster: [1; 3], threads: 64, shared_bytes: 2048 }, "pipeline");
    }
    let findings = execute(&text, entry, shape, &args);
    let right = values(&y) == want;
    (findings, right)
}

#[test]
fn correct_kernels_are_right_and_silent() {
    for kernel in [ROW_SUM, TRANSPOSE, PIPELINE] {
        let (findings, right) = mutated(kernel, "", "");
        assert!(findings.is_empty(), "{:#?}", findings.list());
        assert!(right);
    }
}

/// A 16 x 8 product of one warp: both operands come through `ldmatrix`, B transposed.
const PRODUCT: &str = r#"
typedef u16 bf16;
extern "C" __global__ void __launch_bounds__(32) product(const bf16* __restrict__ a, const bf16* __restrict__ b, float* __restrict__ c) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    bf16* const as = (bf16*)shared;
    bf16* const bs = as + 256;
    cp_async16(as + tid * 8, a + tid * 8);
    if (tid < 16) cp_async16(bs + tid * 8, b + tid * 8);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    u32 af[4], bf[4];
    ldmatrix_x4(af, as + tid % 16 * 16 + tid / 16 * 8);
    ldmatrix_x4_trans(bf, bs + tid % 16 * 8);
    float d[4] = {0, 0, 0, 0};
    mma_bf16_16x8x16(d, af, bf[0], bf[1]);
    for (int i = 0; i < 4; i++) c[(tid / 4 + i / 2 * 8) * 8 + tid % 4 * 2 + i % 2] = d[i];
}
"#;

#[test]
fn matrices_multiply() {
    let narrow = |n: usize, f: &dyn Fn(usize) -> f32| {
        let bytes: Vec<u8> = (0..n).flat_map(|i| ((f(i).to_bits() >> 16) as u16).to_le_bytes()).collect();
        TensorView::contiguous(DType::Bf16, &[n], Arc::new(HostMemory::from_bytes(&bytes)))
    };
    let (fa, fb) = (|i: usize| (i % 13) as f32 - 6.0, |i: usize| (i % 7) as f32 - 3.0);
    let (a, b, c) = (narrow(256, &fa), narrow(128, &fb), tensor(&[0.0; 128]));
    let shape = Shape { grid: [1, 1, 1], cluster: [1; 3], threads: 32, shared_bytes: 768 };
    let findings = execute(PRODUCT, "product", shape, &[input("a", &a), input("b", &b), output("c", &c)]);
    assert!(findings.is_empty(), "{:#?}", findings.list());
    let want: Vec<f32> = (0..128).map(|i| (0..16).map(|k| fa(i / 8 * 16 + k) * fb(k * 8 + i % 8)).sum()).collect();
    assert_eq!(values(&c), want);
}

#[test]
fn mutations_are_caught_with_their_code() {
    let cases: &[(&str, &str, &str, &[Code])] = &[
        // Dropped barriers.
        (ROW_SUM, "__syncthreads();", "", &[Code::RaceRead]),
        (TRANSPOSE, "__syncthreads();  // tile is read after", "", &[Code::RaceRead]),
        (TRANSPOSE, "__syncthreads();  // tile is written after", "", &[Code::OverwriteBeforeConsumed]),
        (PIPELINE, "__syncthreads();  // full", "", &[Code::ReadBeforeComplete]),
        (PIPELINE, "__syncthreads();  // empty", "", &[Code::OverwriteBeforeConsumed]),
        // Divergent barriers.
        (ROW_SUM, "__syncthreads();", "if (threadIdx.x < 32) __syncthreads();", &[Code::DivergentBarrier]),
        (
            ROW_SUM,
            "__syncthreads();",
            "if (threadIdx.x < 32) {\n __syncthreads(); } else {\n __syncthreads(); }",
            &[Code::DivergentBarrier],
        ),
        (ROW_SUM, "float sum = 0.0f;", "float sum = 0.0f; if (tid == 40) return;", &[Code::DivergentWarp]),
        // Indices.
        (ROW_SUM, "i < n;", "i <= n;", &[Code::GlobalRange]),
        (ROW_SUM, "x[blockIdx.x * n", "x[-1 + blockIdx.x * n", &[Code::GlobalRange]),
        (ROW_SUM, "y[blockIdx.x] = sum", "y[blockIdx.x + 1] = sum", &[Code::GlobalRange]),
        (ROW_SUM, "partials[1]", "partials[2]", &[Code::SharedRange]),
        (ROW_SUM, "partials[1]", "*(float*)(shared + 2)", &[Code::Misaligned]),
        (TRANSPOSE, "i % 32 * 33 + i / 32", "i % 32 * 33 + i / 32 + 1", &[Code::UninitShared]),
        (PIPELINE, "(k + 1) * 256", "(k + 2) * 256", &[Code::GlobalRange]),
        // Missing initialisation.
        (ROW_SUM, "if (tid % 32 == 0) partials", "if (tid == 0) partials", &[Code::UninitShared]),
        (ROW_SUM, "y[blockIdx.x] = sum", "y[blockIdx.x] += sum", &[Code::UninitGlobal]),
        // Races.
        (ROW_SUM, "if (tid % 32 == 0) partials", "if (tid % 16 == 0) partials", &[Code::RaceWrite]),
        (ROW_SUM, "if (tid == 0) y", "y", &[Code::RaceWrite]),
        (ROW_SUM, "y[blockIdx.x] = sum", "y[blockIdx.x / 2] = sum", &[Code::BlockRace]),
        (ROW_SUM, "y[blockIdx.x] = sum", "((float*)x)[blockIdx.x] = sum", &[Code::GlobalReadonly]),
        // Waits.
        (PIPELINE, "cp_async_wait<1>();", "cp_async_wait<2>();", &[Code::ReadBeforeComplete]),
        (PIPELINE, "cp_async_wait<1>();", "", &[Code::ReadBeforeComplete]),
        (PIPELINE, "(k + 1) % 2 * 256 + t", "k % 2 * 256 + t", &[Code::RaceWrite]),
        // Shuffles.
        (ROW_SUM, "0xffffffffu, sum, m", "0xffffu, sum, m", &[Code::DivergentWarp]),
        (
            ROW_SUM,
            "sum += __shfl_xor_sync(0xffffffffu, sum, m)",
            "if (threadIdx.x % 32 < 16) sum += __shfl_xor_sync(0xffffu, sum, m)",
            &[Code::ShuffleSource],
        ),
        // No end.
        (ROW_SUM, "i += 64", "i += 0", &[Code::SpinLimit]),
        (
            ROW_SUM,
            "__syncthreads();",
            "if (threadIdx.x >= 32) __syncthreads(); else __syncwarp(threadIdx.x == 0 ? 1 : 0xffffffffu);",
            &[Code::DivergentBarrier, Code::Deadlock, Code::DivergentWarp],
        ),
    ];
    for (kernel, from, to, codes) in cases {
        let (findings, _) = mutated(kernel, from, to);
        assert!(
            codes.iter().any(|&c| findings.has(c)),
            "`{from}` -> `{to}`: expected one of {codes:?}, found {:#?}",
            findings.list()
        );
    }
}

#[test]
fn reports_name_the_source_line() {
    let text = ROW_SUM.replacen("__syncthreads();", "", 1);
    let (findings, _) = mutated(ROW_SUM, "__syncthreads();", "");
    let found = findings.list().iter().find(|f| f.code == Code::RaceRead).expect("a race");
    let shown = Lines::of(&text).diagnostic(found).to_string();
    assert!(shown.contains("error[S0801]: RACE_READ"), "{shown}");
    assert!(shown.contains("--> sum.rs:6:9"), "{shown}");
    assert!(shown.contains("`if (tid % 32 == 0) partials[tid / 32] = sum;`"), "{shown}");
}

#[test]
fn refused_text_and_missing_compiler_are_explained() {
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim");
    let mut compiler = HostCompiler::new(&Settings::from_env(), &cache);
    let e = compiler.load("extern \"C\" __global__ void k() { asm_me(); }", "k").expect_err("refused").to_string();
    assert!(e.contains("asm_me") && e.contains("kernel:1"), "{e}");
    compiler.command = "no-such-compiler".into();
    let e = compiler.load("extern \"C\" __global__ void k() {}", "k").expect_err("no compiler").to_string();
    assert!(e.contains("no-such-compiler") && e.contains("CXX"), "{e}");
}

#[test]
fn kernels_compiled_together_keep_to_themselves() {
    // The same names on purpose: entry, helper, and the block's shared memory.
    let text = |times: &str| {
        format!(
            "__device__ __forceinline__ float scaled(float x) {{ return x * {times}; }}\n\
             extern \"C\" __global__ void k(const float* x, float* y) {{\n\
             extern __shared__ __align__(16) u8 shared[];\n\
             float* t = (float*)shared;\n\
             t[threadIdx.x] = scaled(x[threadIdx.x]);\n\
             __syncthreads();\n\
             y[threadIdx.x] = t[31 - threadIdx.x];\n}}\n"
        )
    };
    let texts = [text("2.0f"), text("3.0f")];
    let compiler =
        HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"));
    let programs =
        compiler.load_together(&[(texts[0].as_str(), "k"), (texts[1].as_str(), "k")]).unwrap_or_else(|e| panic!("{e}"));
    let x = tensor(&(0..32).map(|i| i as f32).collect::<Vec<_>>());
    let shape = Shape { grid: [1, 1, 1], cluster: [1, 1, 1], threads: 32, shared_bytes: 128 };
    for (program, times) in programs.iter().zip([2.0, 3.0]) {
        let y = tensor(&[0.0; 32]);
        let args = [input("x", &x), output("y", &y)];
        let found = run(program, shape, &args, &Exploration::new(3)).unwrap_or_else(|e| panic!("{e}"));
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(values(&y), (0..32).map(|i| (31 - i) as f32 * times).collect::<Vec<f32>>());
    }
    // One that is wrong refuses all, with its own words.
    let broken = texts[1].replace("scaled(x", "unknown(x");
    let e = compiler.load_together(&[(texts[0].as_str(), "k"), (broken.as_str(), "k")]).expect_err("refused");
    assert!(e.to_string().contains("unknown"), "{e}");
}
