//! Runs one problem of an operator on a device and judges its outputs.
//!
//! Data comes from golden files or from `fill`; the expectation from the file or from the operator's reference.

use crate::cases::{self, GoldenCase, Role};
use crate::fill;
use crate::instance;
use crate::judge::{self, Judged};
use kiln_codegen::abi::Launcher;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Case, Configs, HostProblem, OpSpec, ParamValue, Params, Problem, TensorSpec};
use kiln_kernels::numeric::Metric;
use kiln_runtime::Device;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Tensors by name.
pub type Tensors = BTreeMap<String, HostTensor>;

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Outputs.
    pub outputs: Tensors,
    /// Numeric surprises the sanitizer noted.
    pub messages: Vec<String>,
    /// Time of building, compiling and running, without the transfers.
    pub ms: f64,
}

/// Shapes of tensors.
pub fn specs(tensors: &Tensors) -> BTreeMap<String, TensorSpec> {
    let spec = |(n, t): (&String, &HostTensor)| {
        (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() })
    };
    tensors.iter().map(spec).collect()
}

/// The problem with inputs and outputs on a device. Outputs begin as a pattern no kernel computes, so that an element
/// that is never written shows as a wrong one.
///
/// # Errors
/// A refused problem, not enough memory.
pub fn place(
    device: &Device,
    op: &dyn OpSpec,
    inputs: &Tensors,
    params: &Params,
) -> Result<(Problem, Vec<String>), String> {
    let outputs = op.outputs(&specs(inputs), params).map_err(|e| e.to_string())?;
    let mut problem = Problem { tensors: BTreeMap::new(), params: params.clone() };
    for (name, t) in inputs {
        problem.tensors.insert(name.clone(), device.upload(t).map_err(|e| e.to_string())?);
    }
    for spec in &outputs {
        let mut t = HostTensor::zeros(spec.dtype, &spec.shape);
        t.data.fill(0xa5);
        problem.tensors.insert(spec.name.clone(), device.upload(&t).map_err(|e| e.to_string())?);
    }
    Ok((problem, outputs.into_iter().map(|s| s.name).collect()))
}

/// Why a problem has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Something is wrong; what.
    Failed(String),
    /// The chip has no form of a kernel, as `check` and the support matrix say too; why.
    NoForm(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop::Failed(why)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Failed(why) | Stop::NoForm(why) => f.write_str(why),
        }
    }
}

/// An error of a launch. Every kernel has a form on GPUs, so that only other chips may lack one.
fn stopped(e: &kiln_runtime::Error) -> Stop {
    match e {
        kiln_runtime::Error::Refused { target: Some(t), .. } if t.npu().is_some() => Stop::NoForm(e.to_string()),
        _ => Stop::Failed(e.to_string()),
    }
}

/// Runs a problem once.
///
/// # Errors
/// A refused problem or launch, a device fault, findings of the sanitizer.
pub fn execute(
    device: &Device,
    op: &dyn OpSpec,
    inputs: &Tensors,
    params: &Params,
    configs: &dyn Configs,
) -> Result<Outcome, Stop> {
    let (problem, names) = place(device, op, inputs, params)?;
    let plan = op.plan(&problem, configs).map_err(|e| e.to_string())?;
    let stream = device.stream().map_err(|e| e.to_string())?;
    let start = Instant::now();
    stream.run(&plan).and_then(|()| stream.synchronize()).map_err(|e| stopped(&e))?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let mut outputs = Tensors::new();
    for name in names {
        let t = device.download(&problem.tensors[&name]).map_err(|e| e.to_string())?;
        outputs.insert(name, t);
    }
    let messages = stream.take_messages().iter().map(crate::diagnostics::headline).collect();
    Ok(Outcome { outputs, messages, ms })
}

/// A case ready to run: data, expectation and metrics.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Inputs.
    pub inputs: Tensors,
    /// Parameters.
    pub params: Params,
    /// Everything known of the case, expected outputs included.
    pub known: Tensors,
    /// How each output is judged.
    pub metrics: Vec<(String, Metric)>,
}

/// A golden case from its file.
///
/// # Errors
/// A file that is missing, damaged or differs from the manifest; an unknown metric.
pub fn golden(folder: &Path, case: &GoldenCase) -> Result<Ready, String> {
    let known = cases::load(folder, case)?;
    let mut metrics = vec![];
    let mut inputs = Tensors::new();
    for (name, t) in &case.tensors {
        match t.role {
            Role::Input => {
                inputs.insert(name.clone(), known[name].clone());
            }
            Role::Output => {
                let tolerance = t.tolerance.clone().unwrap_or_default();
                metrics.push((name.clone(), judge::metric(&tolerance)?));
            }
            Role::Aux => {}
        }
    }
    Ok(Ready { inputs, params: case.params.clone(), known, metrics })
}

/// The inputs of a case, filled. `seed` tells one set of inputs from another.
///
/// # Errors
/// A case that does not fit into this machine's memory, or that the operator refuses.
pub fn filled(op: &dyn OpSpec, seed: &str, case: &Case) -> Result<Tensors, String> {
    let inputs = instance::input_specs(case);
    let free = kiln_runtime::device::free_host_bytes();
    let too_large = |needed: Option<usize>| {
        let needed = needed.map_or("more bytes than 64 bits can count".into(), |n| format!("{n} bytes"));
        format!("its tensors take {needed}, and {free} are free on this machine; choose smaller sizes")
    };
    let fits = |needed: Option<usize>| needed.filter(|&n| n <= free).ok_or_else(|| too_large(needed));
    // The inputs first: sizes that overflow are not for the operator to see.
    let own = fits(instance::bytes(inputs.values()))?;
    let outputs = op.outputs(&inputs, &case.params).map_err(|e| e.to_string())?;
    fits(instance::bytes(outputs.iter()).and_then(|n| n.checked_add(own)))?;
    Ok(fill::inputs(seed, case))
}

/// A declared case, filled, with the outputs of its reference.
///
/// # Errors
/// A case that does not fit into memory, or that the operator refuses.
pub fn declared(op: &dyn OpSpec, case: &Case) -> Result<Ready, String> {
    let inputs = filled(op, op.info().name, case)?;
    let problem = HostProblem { tensors: inputs, params: case.params.clone() };
    let expected = op.reference(&problem).map_err(|e| e.to_string())?;
    let metrics = expected.keys().map(|n| (n.clone(), op.tolerance(n, &case.params).into())).collect();
    let inputs = problem.tensors;
    let known = inputs.clone().into_iter().chain(expected).collect();
    Ok(Ready { inputs, params: case.params.clone(), known, metrics })
}

impl Ready {
    /// The parameters, with outputs that the case does not expect switched off: an output that may be left out is so by a
    /// parameter of its name.
    fn wanted(&self, op: &dyn OpSpec) -> Result<Params, String> {
        let outputs = op.outputs(&specs(&self.inputs), &self.params).map_err(|e| e.to_string())?;
        let mut params = self.params.clone();
        for t in outputs.into_iter().filter(|t| !self.metrics.iter().any(|(name, _)| *name == t.name)) {
            params.insert(t.name, ParamValue::Bool(false));
        }
        Ok(params)
    }

    /// Runs and judges.
    ///
    /// # Errors
    /// As for [`execute`].
    pub fn run(
        &self,
        device: &Device,
        op: &dyn OpSpec,
        configs: &dyn Configs,
    ) -> Result<(Outcome, Option<Judged>), Stop> {
        let params = self.wanted(op)?;
        let outcome = execute(device, op, &self.inputs, &params, configs)?;
        if let Some(name) = outcome.outputs.keys().find(|n| !self.metrics.iter().any(|(m, _)| m == *n)) {
            return Err(Stop::Failed(format!("the operator computes `{name}`, which the case does not expect")));
        }
        let judged = judge::worst(&self.metrics, &self.known, &outcome.outputs, &self.params);
        Ok((outcome, judged))
    }
}
