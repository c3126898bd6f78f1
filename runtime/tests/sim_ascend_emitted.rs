//! Kernels of the emitter's tests on the modelled AI cores: without findings, and the tile VM's results.
//!
//! To the bit where only copies, integers and single roundings occur; within a bound where a sum has another order than the
//! VM's, a function is approximate, or the cube multiplies.

#[path = "../../codegen/tests/emit_kernels/mod.rs"]
#[allow(dead_code, reason = "the emitter's own test uses the rest")]
mod emit_kernels;

use kiln_codegen::abi::{Arg, SigArg, TensorView};
use kiln_codegen::compile::{self, Built};
use kiln_codegen::emit::{NpuCores, Source};
use kiln_codegen::formats;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::*;
use kiln_codegen::machine::ascend::Arch;
use kiln_codegen::machine::{Dice, Lines};
use kiln_codegen::target::Target;
use kiln_codegen::{bind, vm};
use kiln_runtime::config::Settings;
use kiln_runtime::device::sim::ascend::{Argument, run};
use kiln_runtime::device::sim::{Exploration, HostCompiler};
use std::sync::Arc;

fn eval(k: &Kernel, syms: &[i64], id: IxId) -> i64 {
    let leaf = |e: IxExpr| if let IxExpr::Sym(s) = e { Some(syms[s.0 as usize]) } else { None };
    k.eval_ix(id, &leaf).expect("an extent depends on the launch only")
}

/// Small floats, small integers, all codes of narrow floats that are finite.
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

/// Runs a text; findings as text.
fn simulate(source: &Source, built: &Built, syms: &[i64], args: &[Arg]) -> Vec<String> {
    let npu = source.npu.as_ref().expect("text for cube and vector cores");
    let compiler =
        HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"));
    let arch = if npu.arch == 2201 { Arch::A2201 } else { Arch::A3510 };
    let program = match compiler.load_ascend(&source.text, &source.signature.entry, arch) {
        Ok(p) => p,
        Err(e) => return vec![e.to_string()],
    };
    assert_eq!(program.mixed, npu.cores == NpuCores::Mixed);
    let k = &built.kernel;
    let extents = bind::grid(k, syms).expect("a grid");
    if extents.contains(&0) {
        return vec![];
    }
    let blocks = source.launch_blocks(&extents, 3)[0] as u32;
    let words: Vec<Argument> = source
        .signature
        .args
        .iter()
        .map(|a| match a {
            SigArg::Pointer(p) => match (&args[p.0 as usize], &k.param(*p).kind) {
                (Arg::Tensor(view), ParamKind::Tensor { access, .. }) => {
                    Argument::Tensor { name: k.param(*p).name.clone(), access: *access, view: view.clone() }
                }
                _ => Argument::Word(0),
            },
            SigArg::Workspace => Argument::Workspace { bytes: npu.workspace_bytes * blocks as usize },
            SigArg::Sym { sym, .. } => Argument::Word(syms[sym.0 as usize] as u64),
            SigArg::Scalar(p) => match &args[p.0 as usize] {
                Arg::Scalar(x) => Argument::Word(x.bits),
                _ => Argument::Word(0),
            },
            SigArg::GridArrivals | SigArg::TensorMap(_) => panic!("no text for this target takes this"),
        })
        .collect();
    let lines = Lines::of(&source.text);
    let report = run(&program, blocks, &words, &Exploration::new(3)).unwrap_or_else(|e| panic!("{e}"));
    report.findings.list().iter().map(|f| lines.diagnostic(f).to_string()).collect()
}

/// Share of a bound on the difference that a kernel's outputs may use, as a part of 1 plus the magnitude; 0 asks for equal
/// bits. Sums of a row differ in their order (n·2^-24 of the terms' sum), functions of the model are the host's, and bf16
/// outputs may round to the other neighbour (2^-8).
fn bound(name: &str) -> f64 {
    match name {
        "rmsnorm" | "rmsnorm_rows" | "rmsnorm_odd" => 1.0 / 128.0,
        "softmax_rows" | "moments" | "columns" | "region" | "scalar_of_tile" => 1e-5,
        "gemm_bf16" | "gemm_pipelined" | "gemm_fp8" => 1.0 / 128.0,
        // Probabilities are rounded to bf16 once more, before the second product.
        "attention" => 1.0 / 64.0,
        _ => 0.0,
    }
}

fn compare(k: &Kernel, name: &str, args: &[Arg], expected: &[Arg], wrong: &mut Vec<String>) {
    let bound = bound(name);
    for (i, (a, b)) in args.iter().zip(expected).enumerate() {
        let (Arg::Tensor(x), Arg::Tensor(y)) = (a, b) else { continue };
        let (p, q) = (x.memory.host().expect("host").to_bytes(), y.memory.host().expect("host").to_bytes());
        let mut count = 0;
        let mut first = None;
        for e in 0..x.num_elements() {
            let (u, v) = (formats::load_bits(&p, x.dtype, e), formats::load_bits(&q, x.dtype, e));
            let equal = u == v
                || bound > 0.0 && x.dtype.is_float() && {
                    let (u, v) = (formats::decode_f64(x.dtype, u), formats::decode_f64(x.dtype, v));
                    (u - v).abs() <= bound * (1.0 + v.abs()) || u.is_nan() && v.is_nan()
                };
            if !equal {
                count += 1;
                first.get_or_insert((e, u, v));
            }
        }
        if let Some((e, u, v)) = first {
            let n = x.num_elements();
            let name = &k.params[i].name;
            wrong.push(format!("  `{name}`: {count} of {n} differ, first {e}: {u:#x}, expected {v:#x}"));
        }
    }
}

/// What a target refuses, by name: 4-bit floats, f32 operands, conversions to i8; on arch 2201 also elements at computed
/// places, conversions to or products of e4m3, folds of a region, tiles that vector code hands to the cube.
const REFUSED: &[(Target, &[&str])] = &[
    (Target::Ascend950, &["casts", "gemm_fp4", "gemm_odd", "pairs"]),
    (
        Target::Ascend910b,
        &["attention", "casts", "gemm_fp4", "gemm_fp8", "gemm_odd", "group_quantise", "pairs", "region"],
    ),
];

#[test]
fn emitted_kernels_equal_the_vm() {
    let only = std::env::var("ONLY").ok();
    let mut wrong = vec![];
    for &(target, refused) in REFUSED {
        for (name, kernel) in emit_kernels::all() {
            if only.as_ref().is_some_and(|o| !o.split(',').any(|o| o == name || o == target.name())) {
                continue;
            }
            let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let lowered = match compile::source(&built, target) {
                Ok(_) if refused.contains(&name) => {
                    wrong.push(format!("{name} {}: listed as refused, but it has text", target.name()));
                    continue;
                }
                Ok(l) => l,
                Err(e) if refused.contains(&name) => {
                    assert!(e[0].code.starts_with('C'), "{name}: {}", e[0]);
                    continue;
                }
                Err(e) => {
                    wrong.push(format!("{name} {}: refused: {}", target.name(), e[0]));
                    continue;
                }
            };
            for (round, size) in [3i64, 37].into_iter().enumerate() {
                let syms: Vec<i64> = built.kernel.syms.iter().map(|s| s.multiple_of * size).collect();
                let args = arguments(&built.kernel, &syms, 7 + round as u64);
                let expected = arguments(&built.kernel, &syms, 7 + round as u64);
                vm::run(&built.kernel, &built.facts, &syms, &expected, &vm::Options::default())
                    .unwrap_or_else(|e| panic!("{name}: {e:?}"));
                let found = simulate(&lowered.source, &built, &syms, &args);
                let mut mine: Vec<String> = found.into_iter().take(2).collect();
                if mine.is_empty() {
                    compare(&built.kernel, name, &args, &expected, &mut mine);
                }
                if !mine.is_empty() {
                    wrong.push(format!("{name} {} size {size}:\n{}", target.name(), mine.join("\n")));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
