//! Products that add to their own output give the bits of those that add another tensor.

use kiln_codegen::abi::{Launch, TensorView};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{DefaultConfigs, OpSpec, Params, Problem};
use kiln_codegen::{bind, compile, vm};
use std::collections::BTreeMap;
use std::sync::Arc;

fn tensor(dtype: DType, shape: &[usize]) -> HostTensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (i * 37 % 29) as f64 - 14.0).collect();
    HostTensor::from_f64(dtype, shape, &values)
}

fn launch(step: &Launch) {
    let bound = bind::bind(step.kernel.as_ref(), &step.config, &step.args).expect("the arguments fit");
    let built = compile::build(step.kernel.as_ref(), &bound.request).expect("the kernel builds");
    let syms = bind::sym_values(&built.kernel, &bound.dims, &step.args);
    let options = vm::Options { sanitize: true, ..Default::default() };
    let report = vm::run(&built.kernel, &built.facts, &syms, &step.args, &options).expect("the kernel runs");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Bytes of `d`, which holds `c` before the launch if `in_place`.
fn run(op: &dyn OpSpec, inputs: &BTreeMap<&str, HostTensor>, in_place: bool) -> Vec<u8> {
    let view = |t: &HostTensor| TensorView::contiguous(t.dtype, &t.shape, Arc::new(HostMemory::from_bytes(&t.data)));
    let mut problem = Problem { tensors: BTreeMap::new(), params: Params::new() };
    problem.tensors.extend(inputs.iter().map(|(name, t)| (name.to_string(), view(t))));
    let d = if in_place { problem.tensors["c"].clone() } else { view(&HostTensor::zeros(DType::F32, &[5, 9])) };
    problem.tensors.insert("d".into(), d.clone());
    problem.params.insert("out_dtype".into(), kiln_codegen::spec::ParamValue::Text("f32".into()));
    op.plan(&problem, &DefaultConfigs).expect("a plan").steps.iter().for_each(launch);
    d.memory.host().expect("host memory").to_bytes()
}

#[test]
fn adding_in_place_gives_the_same_bits() {
    let c = ("c", tensor(DType::F32, &[5, 9]));
    let (e4m3, bf16) = (DType::E4m3, DType::Bf16);
    let scales = [("sfa", tensor(DType::F32, &[5, 2])), ("sfb", tensor(DType::F32, &[1, 2]))];
    let fp8 = [("a", tensor(e4m3, &[5, 200])), ("b", tensor(e4m3, &[9, 200])), c.clone()];
    let dense = [("a", tensor(bf16, &[5, 70])), ("b", tensor(bf16, &[9, 70])), c.clone()];
    let sum = [("a", tensor(bf16, &[3, 5, 70])), ("b", tensor(bf16, &[3, 9, 70])), c];
    let problems: [(&dyn OpSpec, BTreeMap<&str, HostTensor>); 3] = [
        (&kiln_kernels::gemm::fp8::GemmFp8, fp8.into_iter().chain(scales).collect()),
        (&kiln_kernels::gemm::bf16::GemmBf16, dense.into()),
        (&kiln_kernels::gemm::einsum::EinsumOp, sum.into()),
    ];
    for (op, inputs) in &problems {
        let apart = run(*op, inputs, false);
        assert!(apart.iter().any(|b| *b != 0), "{}", op.info().name);
        assert_eq!(apart, run(*op, inputs, true), "{}", op.info().name);
    }
}
