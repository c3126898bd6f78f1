//! Kernels of the emitter's tests on the simulator: without findings, and the tile VM's results to the bit.
//!
//! Both sides were built independently from one plain kernel, so an equal result checks passes, emitter, VM and machine
//! against each other.

#[path = "../../codegen/tests/emit_kernels/mod.rs"]
#[allow(dead_code, reason = "the emitter's own test uses the rest")]
mod emit_kernels;

use kiln_codegen::abi::{Arg, SigArg, TensorView};
use kiln_codegen::compile::{self, Built};
use kiln_codegen::formats;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::*;
use kiln_codegen::machine::{Dice, Findings, Lines};
use kiln_codegen::target::Target;
use kiln_codegen::{bind, vm};
use kiln_runtime::config::Settings;
use kiln_runtime::device::sim::{Exploration, HostCompiler, Shape, SimArg, run};
use std::sync::Arc;

fn eval(k: &Kernel, syms: &[i64], id: IxId) -> i64 {
    let e = |id| eval(k, syms, id);
    match k.ix_expr(id) {
        IxExpr::Const(c) => c,
        IxExpr::Sym(s) => syms[s.0 as usize],
        IxExpr::Add(a, b) => e(a) + e(b),
        IxExpr::Sub(a, b) => e(a) - e(b),
        IxExpr::Mul(a, b) => e(a) * e(b),
        IxExpr::Div(a, b) => e(a).div_euclid(e(b)),
        IxExpr::Mod(a, b) => e(a).rem_euclid(e(b)),
        IxExpr::Min(a, b) => e(a).min(e(b)),
        IxExpr::Max(a, b) => e(a).max(e(b)),
        IxExpr::Var(_) | IxExpr::Data(_) => panic!("an extent depends on the launch only"),
    }
}

/// Values that reach every branch without overflowing sums: small floats, small integers, all codes of narrow floats
/// that are finite.
fn random(dtype: DType, dice: &mut Dice) -> u64 {
    let unit = dice.below(1 << 20) as f64 / f64::from(1 << 20);
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 => {
            formats::encode_f64(dtype, (unit - 0.5) * 8.0)
        }
        DType::E8m0 => 120 + dice.below(16) as u64,
        DType::I8 | DType::U8 => dice.below(256) as u64,
        DType::I32 | DType::U32 | DType::I64 => dice.below(50) as u64,
        DType::Bool => dice.below(2) as u64,
    }
}

/// Arguments of a launch with these symbol values.
fn arguments(k: &Kernel, syms: &[i64], seed: u64) -> Vec<Arg> {
    let mut dice = Dice::new(seed);
    k.params
        .iter()
        .map(|p| match &p.kind {
            ParamKind::Tensor { dtype, extents, access, .. } => {
                let shape: Vec<usize> = extents.iter().map(|&e| eval(k, syms, e) as usize).collect();
                let mut t = HostTensor::zeros(*dtype, &shape);
                for i in 0..t.num_elements() {
                    if *access != Access::Out {
                        formats::store_bits(&mut t.data, *dtype, i, random(*dtype, &mut dice));
                    }
                }
                Arg::Tensor(TensorView::contiguous(*dtype, &shape, Arc::new(HostMemory::from_bytes(&t.data))))
            }
            ParamKind::Scalar { dtype, .. } => Arg::Scalar(Literal { dtype: *dtype, bits: random(*dtype, &mut dice) }),
            ParamKind::Absent => Arg::Absent,
        })
        .collect()
}

fn simulate(text: &str, built: &Built, syms: &[i64], args: &[Arg]) -> Findings {
    let source = compile::source(built, Target::Sm80).unwrap_or_else(|e| panic!("{e:?}")).source;
    let compiler =
        HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"));
    let program = compiler.load(text, &source.signature.entry).unwrap_or_else(|e| panic!("{e}"));
    let k = &built.kernel;
    let sim_args: Vec<SimArg> = source
        .signature
        .args
        .iter()
        .map(|a| match a {
            SigArg::Pointer(p) => match (&args[p.0 as usize], &k.param(*p).kind) {
                (Arg::Tensor(view), ParamKind::Tensor { access, .. }) => {
                    SimArg::Tensor { name: k.param(*p).name.clone(), access: *access, view: view.clone() }
                }
                _ => SimArg::Word(0),
            },
            SigArg::GridArrivals | SigArg::Workspace => SimArg::Word(0),
            SigArg::Sym { sym, .. } => SimArg::Word(syms[sym.0 as usize] as u64),
            SigArg::Scalar(p) => match &args[p.0 as usize] {
                Arg::Scalar(x) => SimArg::Word(x.bits),
                _ => SimArg::Word(0),
            },
            SigArg::TensorMap(_) => panic!("no text for this target takes a tensor map"),
        })
        .collect();
    let mut grid = [1; 3];
    for (g, e) in grid.iter_mut().zip(bind::grid(k, syms).expect("a grid")) {
        *g = e as u32;
    }
    if grid.contains(&0) {
        return Findings::default();
    }
    let shape = Shape { grid, cluster: [1; 3], threads: source.threads, shared_bytes: source.shared_bytes };
    run(&program, shape, &sim_args, &Exploration::new(3)).unwrap_or_else(|e| panic!("{e}"))
}

fn bytes(args: &[Arg]) -> Vec<Vec<u8>> {
    args.iter()
        .filter_map(|a| match a {
            Arg::Tensor(v) => v.memory.host().map(HostMemory::to_bytes),
            Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
        })
        .collect()
}

#[test]
fn emitted_kernels_equal_the_vm() {
    let only = std::env::var("ONLY").ok();
    let mut wrong = vec![];
    for (name, kernel) in emit_kernels::all() {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        // What the verifier refuses is the emitter's own test's concern.
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let source = compile::source(&built, Target::Sm80).unwrap_or_else(|e| panic!("{name}: {e:?}")).source;
        let lines = Lines::of(&source.text);
        for (round, size) in [3i64, 37].into_iter().enumerate() {
            let syms: Vec<i64> = built.kernel.syms.iter().map(|s| s.multiple_of * size).collect();
            let args = arguments(&built.kernel, &syms, 7 + round as u64);
            let expected = arguments(&built.kernel, &syms, 7 + round as u64);
            let report = vm::run(&built.kernel, &built.facts, &syms, &expected, &vm::Options::default())
                .unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(report.findings.is_empty(), "{name}: {:?}", report.findings);
            let found = simulate(&source.text, &built, &syms, &args);
            for f in found.list() {
                wrong.push(format!("{name} size {size}: {}", lines.diagnostic(f)));
            }
            for (i, (a, b)) in bytes(&args).iter().zip(bytes(&expected)).enumerate() {
                if a != &b {
                    let at = a.iter().zip(&b).position(|(x, y)| x != y).unwrap_or(0);
                    let count = a.iter().zip(&b).filter(|(x, y)| x != y).count();
                    wrong.push(format!(
                        "{name} size {size}: tensor {i} differs in {count} of {} bytes, first {at}",
                        b.len()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a mutated text; says how it was noticed.
fn noticed(name: &str, text: &str, built: &Built) -> Vec<&'static str> {
    // Two blocks where one takes 2048 elements, and always a tail.
    noticed_at(name, text, built, if name.starts_with("vector_add") { 2500 } else { 37 })
}

/// The same with every dimension at least `size`.
fn noticed_at(name: &str, text: &str, built: &Built, size: i64) -> Vec<&'static str> {
    let syms: Vec<i64> = built.kernel.syms.iter().map(|s| s.multiple_of * size).collect();
    let args = arguments(&built.kernel, &syms, 7);
    let expected = arguments(&built.kernel, &syms, 7);
    vm::run(&built.kernel, &built.facts, &syms, &expected, &vm::Options::default())
        .unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let found = simulate(text, built, &syms, &args);
    let mut how: Vec<_> = found.list().iter().map(|f| f.code.name()).collect();
    if found.is_empty() && bytes(&args) != bytes(&expected) {
        how.push("wrong result");
    }
    how
}

#[test]
fn every_barrier_is_needed() {
    let (mut tried, mut missed) = (0, vec![]);
    for (name, kernel) in emit_kernels::all() {
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let text = compile::source(&built, Target::Sm80).unwrap_or_else(|e| panic!("{name}: {e:?}")).source.text;
        for (at, barrier) in text.match_indices("__syncthreads();") {
            let mutant = format!("{}{}", &text[..at], &text[at + barrier.len()..]);
            tried += 1;
            // Barriers a cleverer pass could leave out. Hadamard: with one warp, stages whose strides are multiples of 32
            // stay within a thread. Paged: a thread stores the elements it copied itself. Odd product: the phases that
            // follow write `out` and read nothing of it.
            const NEEDLESS: [(&str, &str); 3] = [("hadamard", ":3:5"), ("paged", ":2:5"), ("gemm_odd", "// out:")];
            let line = text[at..].lines().next().unwrap_or("");
            let needless = NEEDLESS.iter().any(|(kernel, place)| *kernel == name && line.contains(place));
            // A second size goes round loops over tiles more than once.
            let quiet = noticed(name, &mutant, &built).is_empty()
                && (needless || noticed_at(name, &mutant, &built, 150).is_empty());
            if quiet != needless {
                let line = text[..at].matches('\n').count() + 1;
                missed.push(format!("{name} line {line}: {}", text.lines().nth(line - 1).unwrap_or("")));
            }
        }
    }
    assert!(tried >= 15, "only {tried} barriers");
    assert!(missed.is_empty(), "unexpected outcome without:\n{}", missed.join("\n"));
}

#[test]
fn mutations_of_emitted_text_are_noticed() {
    /// Kernel, text, its replacement, and how it must be noticed: a code, or `wrong result` for what is ordered,
    /// initialised and in range but not what was meant.
    const MUTATIONS: &[(&str, &str, &str, &str)] = &[
        ("vector_add", "if (bx * 2048 + i < n) z_at", "if (bx * 2048 + i <= n) z_at", "GLOBAL_RANGE"),
        ("vector_add", "bx * 2048 + i < n ? x_at[i] : 0.0f", "x_at[i]", "GLOBAL_RANGE"),
        ("vector_add", "y + bx * 2048", "y - 1 + bx * 2048", "GLOBAL_RANGE"),
        ("vector_add", "z + bx * 2048", "z", "BLOCK_RACE"),
        ("vector_add", "x_i + y_i", "x_i - y_i", "wrong result"),
        ("vector_add_aligned", "z_at + i", "z_at + i + 1", "MISALIGNED"),
        ("transpose", "by * 64 + i < m && bx * 64 + j < n", "by * 64 + i < m", "GLOBAL_RANGE"),
        ("transpose", "tile + i * 66 + j", "tile + i * 64 + j", "UNINIT_SHARED"),
        ("transpose", "tile[(i + v) * 66 + j]", "tile[(i + v) * 66 + j + 2]", "UNINIT_SHARED"),
        ("transpose", "y + bx * 64 * m + by * 64", "y + bx * 64 * m + by * 63", "MISALIGNED"),
        ("transpose", "x + by * 64 * n + bx * 64", "x + bx * 64 * n + by * 64", "GLOBAL_RANGE"),
        ("histogram", "atomicAdd(&hist[bin], 1u)", "hist[bin] += 1u", "RACE_READ"),
        (
            "histogram",
            "if (ok) st<16>(hist + i, hist_v);",
            "if (ok && i > 8) st<16>(hist + i, hist_v);",
            "UNINIT_SHARED",
        ),
        ("histogram", "max_of<int>(x_i, 0), 255)", "max_of<int>(x_i, 0) - 20, 255)", "SHARED_RANGE"),
        ("histogram", "if (lane == 0) partials[warp]", "partials[warp]", "RACE_WRITE"),
        ("histogram", "if (tid == 0) first[0]", "first[tid]", "GLOBAL_RANGE"),
        ("hadamard", "f[e + 128] = f_i - f_i2", "f[e + 129] = f_i - f_i2", "SHARED_RANGE"),
        ("hadamard", "x + bx * 256", "x", "BLOCK_RACE"),
        ("scan", "p < 1000 ? a[p] : 0", "a[p]", "UNINIT_SHARED"),
        ("scan", "if (lane == 31) partials[warp]", "if (lane == 30) partials[warp]", "wrong result"),
        ("rmsnorm", "if (lane == 0) partials[warp]", "if (tid == 0) partials[warp]", "UNINIT_SHARED"),
        ("rmsnorm", "reduce_lanes<Sum, 32>", "reduce_lanes<Sum, 16>", "wrong result"),
        ("rmsnorm", "(float*)shared", "(float*)(shared + 4)", "SHARED_RANGE"),
        ("rmsnorm", "x + bx * 7168", "x + (bx + 1) * 7168", "GLOBAL_RANGE"),
        ("rmsnorm", "st<16>(y_at + j, y_n)", "st<16>(y_at + j + 4, y_n)", "MISALIGNED"),
        ("rmsnorm", "__syncthreads();", "if (warp != 1) __syncthreads();", "DIVERGENT_BARRIER"),
        ("rmsnorm", "float acc = -0.0f;", "float acc;", "wrong result"),
        ("softmax_rows", "if (lane == 0)", "if (lane == 0 && warp != 2)", "UNINIT_SHARED"),
    ];
    let mut wrong = vec![];
    for (name, from, to, how) in MUTATIONS {
        let kernel = emit_kernels::all().into_iter().find(|k| k.0 == *name).expect("a kernel of this name").1;
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let text = compile::source(&built, Target::Sm80).unwrap_or_else(|e| panic!("{name}: {e:?}")).source.text;
        let body = text.find("extern \"C\" __global__").expect("a kernel");
        // The kernel's own lines first: the prelude is shared with all others.
        let at = text[body..].find(from).map(|i| body + i).or_else(|| text.find(from));
        let Some(at) = at else {
            wrong.push(format!("{name}: `{from}` is not in the text"));
            continue;
        };
        let mutant = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
        let got = noticed(name, &mutant, &built);
        if !got.contains(how) {
            wrong.push(format!("{name}: `{from}` -> `{to}`: expected {how}, noticed as {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
