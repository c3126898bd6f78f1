//! What the benches share: launches of the registered operators as data, and a stopwatch.
//!
//! The speed of kernels on devices is not measured here but by `kiln bench`, which users have too; `peers.py` times
//! other libraries by the same method, and `records` keeps what was measured.
#![forbid(unsafe_code)]

use kiln_codegen::abi::{Launch, TensorView};
use kiln_codegen::bind;
use kiln_codegen::compile::{self, Lowered};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::spec::{BuildRequest, Case, DefaultConfigs, KernelDef, OpSpec, Problem, TensorSpec};
use kiln_codegen::target::Target;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A kernel and all its build depends on.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Operator and kernel, `quant_per_token_fp8/per_token_fp8`.
    pub name: String,
    /// The kernel.
    pub kernel: Arc<dyn KernelDef>,
    /// Config, fixed dimensions, launch facts.
    pub request: BuildRequest,
}

/// The declared case of an operator with the most elements: the widest rows and the longest loops.
pub fn largest_case(op: &dyn OpSpec) -> Option<Case> {
    let elements = |c: &Case| c.inputs.iter().map(|i| i.tensor.shape.iter().product::<usize>()).sum::<usize>();
    op.cases().into_iter().max_by_key(elements)
}

/// Inputs and outputs of a case, in this order.
///
/// # Errors
/// A case its own operator refuses.
pub fn tensors(op: &dyn OpSpec, case: &Case) -> Result<Vec<TensorSpec>, String> {
    let inputs: BTreeMap<_, _> = case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
    let outputs = op.outputs(&inputs, &case.params).map_err(|e| format!("{}: {e}", case.id))?;
    Ok(inputs.into_values().chain(outputs).collect())
}

/// Launches of a case on zeroed host memory, with default configs.
///
/// # Errors
/// A case its own operator refuses.
pub fn launches(op: &dyn OpSpec, case: &Case) -> Result<Vec<Launch>, String> {
    let on_host = |t: TensorSpec| {
        let memory = Arc::new(HostMemory::zeroed(t.dtype.bytes(t.shape.iter().product())));
        (t.name, TensorView::contiguous(t.dtype, &t.shape, memory))
    };
    let tensors = tensors(op, case)?.into_iter().map(on_host).collect();
    let problem = Problem { tensors, params: case.params.clone() };
    Ok(op.plan(&problem, &DefaultConfigs).map_err(|e| format!("{}: {e}", case.id))?.steps)
}

/// Every kernel that the operators launch for their largest declared case.
///
/// # Errors
/// A case its own operator refuses, or a launch its kernel refuses.
pub fn instances() -> Result<Vec<Instance>, String> {
    let mut out: Vec<Instance> = vec![];
    for op in kiln_kernels::registry() {
        let Some(case) = largest_case(op.as_ref()) else { continue };
        for launch in launches(op.as_ref(), &case)? {
            let bound = bind::bind(launch.kernel.as_ref(), &launch.config, &launch.args).map_err(|e| e.to_string())?;
            let name = format!("{}/{}", op.info().name, launch.kernel.info().name);
            if !out.iter().any(|i| i.name == name && i.request == bound.request) {
                out.push(Instance { name, kernel: launch.kernel, request: bound.request });
            }
        }
    }
    Ok(out)
}

/// From the kernel function to text for a target: build, verify, lower, verify, emit.
///
/// # Errors
/// Everything the compiler finds.
pub fn to_text(instance: &Instance, target: Target) -> Result<Lowered, Vec<Diagnostic>> {
    compile::source(&compile::build(instance.kernel.as_ref(), &instance.request)?, target)
}

/// Milliseconds of each of `runs` calls, in ascending order.
pub fn times_ms(runs: usize, mut call: impl FnMut()) -> Vec<f64> {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}
