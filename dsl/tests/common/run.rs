//! Runs kernels on the VM, plainly and sanitized, and prints them for every target with threads.

use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::KernelDef;
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use kiln_codegen::{bind, compile, vm};
use std::sync::Arc;

/// An argument of a test.
#[derive(Clone, Debug)]
pub enum Given {
    /// A tensor.
    Tensor(HostTensor),
    /// An F32 scalar.
    F32(f32),
}
impl From<HostTensor> for Given {
    fn from(t: HostTensor) -> Given {
        Given::Tensor(t)
    }
}
impl From<&HostTensor> for Given {
    fn from(t: &HostTensor) -> Given {
        Given::Tensor(t.clone())
    }
}
impl From<f32> for Given {
    fn from(x: f32) -> Given {
        Given::F32(x)
    }
}

/// Arguments in fresh memory.
pub fn place(args: &[Given]) -> Vec<Arg> {
    args.iter()
        .map(|g| match g {
            Given::Tensor(t) => {
                let memory = Arc::new(HostMemory::from_bytes(&t.data));
                Arg::Tensor(TensorView::contiguous(t.dtype, &t.shape, memory))
            }
            Given::F32(x) => Arg::Scalar(Literal { dtype: DType::F32, bits: u64::from(x.to_bits()) }),
        })
        .collect()
}

fn text(all: &[Diagnostic]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Launches a kernel; gives the values of its tensors afterwards, in order. The sanitized run must find nothing and give
/// the same bits, and the kernel must print for every target with threads.
#[track_caller]
pub fn run(def: &dyn KernelDef, config: &Config, args: &[Given]) -> Vec<Vec<f64>> {
    let all: Vec<Target> = Target::ALL.into_iter().filter(|t| t.caps().is_some()).collect();
    run_for(def, config, args, &all)
}

/// The same, printed for these targets only.
#[track_caller]
pub fn run_for(def: &dyn KernelDef, config: &Config, args: &[Given], targets: &[Target]) -> Vec<Vec<f64>> {
    let mut result: Option<Vec<Vec<f64>>> = None;
    for sanitize in [false, true] {
        let given = place(args);
        let bound = bind::bind(def, config, &given).unwrap_or_else(|e| panic!("{e}"));
        let built = compile::build(def, &bound.request).unwrap_or_else(|all| panic!("{}", text(&all)));
        if !sanitize {
            for &target in targets {
                let source = compile::source(&built, target).unwrap_or_else(|all| panic!("{target:?}: {}", text(&all)));
                assert!(source.source.text.contains("__global__"));
            }
        }
        let syms = bind::sym_values(&built.kernel, &bound.dims, &given);
        let options = vm::Options { sanitize, ..vm::Options::default() };
        let report = vm::run(&built.kernel, &built.facts, &syms, &given, &options);
        let report = report.unwrap_or_else(|all| panic!("{}", text(&all)));
        assert!(report.findings.is_empty(), "{}", text(&report.findings));
        let values: Vec<Vec<f64>> = given
            .iter()
            .filter_map(|a| match a {
                Arg::Tensor(v) => {
                    let data = v.memory.host().expect("host memory").to_bytes();
                    Some(HostTensor { dtype: v.dtype, shape: v.shape.clone(), data }.to_f64())
                }
                Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
            })
            .collect();
        if let Some(first) = &result {
            let bits = |all: &[Vec<f64>]| -> Vec<u64> { all.iter().flatten().map(|x| x.to_bits()).collect() };
            assert_eq!(bits(first), bits(&values), "the sanitized run gives other bits");
        }
        result = Some(values);
    }
    result.expect("two runs")
}

/// The text for a target of a kernel that takes these arguments.
#[track_caller]
pub fn emitted(def: &dyn KernelDef, config: &Config, args: &[Given], target: Target) -> String {
    let given = place(args);
    let bound = bind::bind(def, config, &given).unwrap_or_else(|e| panic!("{e}"));
    let built = compile::build(def, &bound.request).unwrap_or_else(|all| panic!("{}", text(&all)));
    compile::source(&built, target).unwrap_or_else(|all| panic!("{}", text(&all))).source.text
}

/// Numbers that look random, in `-2..2`, rounded to `dtype`.
pub fn noise(dtype: DType, shape: &[usize], seed: u64) -> HostTensor {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f64 / (1u64 << 22) as f64 - 2.0
        })
        .collect();
    HostTensor::from_f64(dtype, shape, &values)
}

/// An I32 tensor.
pub fn ints(shape: &[usize], values: &[i32]) -> HostTensor {
    let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    HostTensor::from_f64(DType::I32, shape, &values)
}

/// One chain of fused multiply-adds in ascending `k`.
pub fn chain(from: f32, k: std::ops::Range<usize>, a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64) -> f32 {
    k.fold(from, |acc, p| (a(p) as f32).mul_add(b(p) as f32, acc))
}

/// Runs a kernel on the VM once; gives the last tensor, or what went wrong.
pub fn failure(def: &dyn KernelDef, args: &[Given]) -> Result<Vec<f64>, String> {
    let given = place(args);
    let bound = bind::bind(def, &Config::default(), &given).map_err(|e| e.to_string())?;
    let built = compile::build(def, &bound.request).map_err(|all| text(&all))?;
    let syms = bind::sym_values(&built.kernel, &bound.dims, &given);
    vm::run(&built.kernel, &built.facts, &syms, &given, &vm::Options::default()).map_err(|all| text(&all))?;
    match given.last() {
        Some(Arg::Tensor(v)) => {
            let data = v.memory.host().expect("host memory").to_bytes();
            Ok(HostTensor { dtype: v.dtype, shape: v.shape.clone(), data }.to_f64())
        }
        Some(Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. }) | None => Ok(vec![]),
    }
}
