//! Runs an operator's plan in the tile VM: the shortest way from a problem on the host to outputs on the host.

use kiln_codegen::abi::{Arg, Memory, TensorView};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{BuildRequest, Case, Configs, Fill, OpSpec, Params, Problem, TensorSpec};
use kiln_codegen::vm::{self, Options};
use kiln_codegen::{bind, compile, diag};
use kiln_kernels::numeric::Tensors;
use std::collections::BTreeMap;
use std::sync::Arc;

fn text(diagnostics: &[diag::Diagnostic]) -> String {
    let line = |d: &diag::Diagnostic| {
        let notes: Vec<_> = d.notes.iter().map(|n| n.0.as_str()).collect();
        format!("{} {} ({}:{}) {} {}", d.code, d.message, d.span.file, d.span.line, d.label, notes.join("; "))
    };
    diagnostics.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The plan of a declared case, over tensors of zero bytes.
#[allow(dead_code, reason = "not every test that shares this file asks for plans")]
pub fn plan(op: &dyn OpSpec, case: &Case, configs: &dyn Configs) -> Result<kiln_codegen::abi::Plan, String> {
    let inputs: BTreeMap<String, TensorSpec> =
        case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
    let mut problem = Problem { tensors: BTreeMap::new(), params: case.params.clone() };
    let outputs = op.outputs(&inputs, &case.params).map_err(|e| e.to_string())?;
    for t in inputs.values().chain(&outputs) {
        let memory = Arc::new(HostMemory::zeroed(t.dtype.bytes(t.shape.iter().product())));
        problem.tensors.insert(t.name.clone(), TensorView::contiguous(t.dtype, &t.shape, memory));
    }
    op.plan(&problem, configs).map_err(|e| e.to_string())
}

/// Outputs by name, or what went wrong; findings of the sanitizer count as wrong.
pub fn run(
    op: &dyn OpSpec,
    inputs: &Tensors,
    params: &Params,
    configs: &dyn Configs,
    options: &Options,
) -> Result<Tensors, String> {
    run_strided(op, inputs, &BTreeMap::new(), params, configs, options)
}

/// Memory of which only parts exist, at an address where no allocation lies.
#[derive(Debug)]
struct Far(HostMemory);

impl Memory for Far {
    fn device(&self) -> &str {
        "cpu"
    }
    fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }
    fn address(&self) -> u64 {
        1 << 60
    }
    fn host(&self) -> Option<&HostMemory> {
        Some(&self.0)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The tensor in memory, with `pad` elements of ones (NaN, for floats) behind each piece of its first axis. Of large gaps only
/// the words beside the pieces exist.
fn placed_input(t: &HostTensor, pad: usize) -> TensorView {
    let rows = t.shape.first().copied().unwrap_or(1).max(1);
    let (row, gap) = (t.data.len() / rows, t.dtype.bytes(pad));
    let whole = if row == 0 { 0 } else { rows * (row + gap) };
    let ranges: Vec<_> =
        (0..if row == 0 { 0 } else { rows }).map(|r| r * (row + gap)..(r * (row + gap) + row + 64.min(gap))).collect();
    let far = gap > 1 << 20;
    let memory = if far { HostMemory::in_parts(whole, &ranges) } else { HostMemory::zeroed(whole) };
    for (range, bytes) in ranges.iter().zip(t.data.chunks(row.max(1))) {
        memory.write(range.start, &[bytes, &vec![0xff; range.len() - row]].concat());
    }
    let memory: Arc<dyn Memory> = if far { Arc::new(Far(memory)) } else { Arc::new(memory) };
    let mut view = TensorView::contiguous(t.dtype, &t.shape, memory);
    view.strides[0] += pad;
    view
}

/// [`run`], with gaps between the pieces of the first axis of some inputs, in elements.
pub fn run_strided(
    op: &dyn OpSpec,
    inputs: &Tensors,
    gaps: &BTreeMap<String, usize>,
    params: &Params,
    configs: &dyn Configs,
    options: &Options,
) -> Result<Tensors, String> {
    let spec = |(n, t): (&String, &HostTensor)| {
        (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() })
    };
    let specs: BTreeMap<_, _> = inputs.iter().map(spec).collect();
    let outputs = op.outputs(&specs, params).map_err(|e| e.to_string())?;
    let mut problem = Problem { tensors: BTreeMap::new(), params: params.clone() };
    for (name, t) in inputs {
        let view = match gaps.get(name) {
            Some(&gap) => placed_input(t, gap),
            None => TensorView::contiguous(t.dtype, &t.shape, Arc::new(HostMemory::from_bytes(&t.data))),
        };
        problem.tensors.insert(name.clone(), view);
    }
    for t in &outputs {
        // Filled with ones so that an element nobody writes shows.
        let bytes = vec![0xff; t.dtype.bytes(t.shape.iter().product())];
        let memory = Arc::new(HostMemory::from_bytes(&bytes));
        problem.tensors.insert(t.name.clone(), TensorView::contiguous(t.dtype, &t.shape, memory));
    }
    let plan = op.plan(&problem, configs).map_err(|e| e.to_string())?;
    // Filled with ones as well: a merge may not use what no launch wrote.
    let scratch = |&bytes: &usize| Arc::new(HostMemory::from_bytes(&vec![0xff; bytes]));
    let workspaces: Vec<Arc<HostMemory>> = plan.workspaces.iter().map(scratch).collect();
    for step in &plan.steps {
        let args: Vec<Arg> = step.args.iter().map(|a| placed(a, &workspaces)).collect();
        launch(step.kernel.as_ref(), &step.config, &args, options)?;
    }
    let read = |t: &TensorSpec| {
        let bytes = problem.tensors[&t.name].memory.host().map(HostMemory::to_bytes).unwrap_or_default();
        (t.name.clone(), HostTensor { dtype: t.dtype, shape: t.shape.clone(), data: bytes })
    };
    Ok(outputs.iter().map(read).collect())
}

/// The argument, with a part of a workspace as the tensor it is.
fn placed(arg: &Arg, workspaces: &[Arc<HostMemory>]) -> Arg {
    let Arg::Workspace { index, dtype, shape, offset_bytes } = arg else { return arg.clone() };
    let view = TensorView::contiguous(*dtype, shape, workspaces[*index].clone());
    Arg::Tensor(TensorView { offset_bytes: *offset_bytes, ..view })
}

fn launch(
    def: &dyn kiln_codegen::spec::KernelDef,
    config: &kiln_codegen::tune::Config,
    args: &[Arg],
    options: &Options,
) -> Result<(), String> {
    let bound = bind::bind(def, config, args).map_err(|e| e.to_string())?;
    let request: &BuildRequest = &bound.request;
    let built = compile::build(def, request).map_err(|d| text(&d))?;
    let syms = bind::sym_values(&built.kernel, &bound.dims, args);
    let report = vm::run(&built.kernel, &built.facts, &syms, args, options).map_err(|d| text(&d))?;
    if report.findings.is_empty() { Ok(()) } else { Err(text(&report.findings)) }
}

/// Inputs of a declared case, filled from a fixed seed.
pub fn fill(case: &Case) -> Tensors {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ (state >> 31)
    };
    let mut inputs = Tensors::new();
    for input in &case.inputs {
        let (dtype, shape) = (input.tensor.dtype, &input.tensor.shape);
        let n: usize = shape.iter().product();
        let mut uniform = || (next() >> 11) as f64 / (1u64 << 53) as f64;
        let values: Vec<f64> = match &input.fill {
            Fill::Normal(s) => (0..n)
                .map(|_| {
                    let (u, v) = (1.0 - uniform(), uniform());
                    s * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
                })
                .collect(),
            Fill::Uniform(lo, hi) => (0..n).map(|_| lo + uniform() * (hi - lo)).collect(),
            Fill::Constant(x) => vec![*x; n],
            Fill::Values(v) => v.clone(),
            Fill::Bits => vec![],
        };
        let mut tensor = HostTensor::from_f64(dtype, shape, &values);
        if input.fill == Fill::Bits {
            tensor.data.iter_mut().for_each(|b| *b = next() as u8);
            if dtype == DType::Bool {
                tensor.data.iter_mut().for_each(|b| *b &= 1);
            }
        }
        inputs.insert(input.tensor.name.clone(), tensor);
    }
    inputs
}
