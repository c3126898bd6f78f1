//! A golden case on a device: its tensors there, its plan, its outputs and the judgement on them. Shared by the tests that
//! run the cases on simulated chips; not a test itself.

use super::cases::Golden;
use kiln_codegen::abi::{Arg, Launch, Launcher, Plan, TensorView};
use kiln_codegen::bind::{self, Bound};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Configs, DefaultConfigs, OpSpec, Params, Problem, TensorSpec};
use kiln_kernels::numeric::{Comparison, Tensors, judge};
use kiln_runtime::{Device, Settings, open_with};
use std::collections::BTreeMap;

/// A problem on the device.
pub struct Placed {
    /// Its outputs.
    pub outputs: BTreeMap<String, TensorView>,
    /// What it launches.
    pub plan: Plan,
}

/// Puts a problem on the device and plans it.
pub fn place(
    device: &Device,
    op: &dyn OpSpec,
    inputs: &Tensors,
    params: &Params,
    configs: &dyn Configs,
) -> Result<Placed, String> {
    let spec = |(n, t): (&String, &HostTensor)| {
        (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() })
    };
    let specs: BTreeMap<_, _> = inputs.iter().map(spec).collect();
    let mut problem = Problem { tensors: BTreeMap::new(), params: params.clone() };
    for (name, t) in inputs {
        problem.tensors.insert(name.clone(), device.upload(t).map_err(|e| e.to_string())?);
    }
    let mut outputs = BTreeMap::new();
    for t in op.outputs(&specs, params).map_err(|e| e.to_string())? {
        // Filled with ones so that an element nobody writes shows.
        let mut host = HostTensor::zeros(t.dtype, &t.shape);
        host.data.fill(0xff);
        let view = device.upload(&host).map_err(|e| e.to_string())?;
        outputs.insert(t.name.clone(), view.clone());
        problem.tensors.insert(t.name, view);
    }
    let plan = op.plan(&problem, configs).map_err(|e| e.to_string())?;
    Ok(Placed { outputs, plan })
}

/// Runs a plan and reads the outputs.
pub fn outputs(device: &Device, placed: &Placed) -> Result<Tensors, String> {
    let stream = device.stream().map_err(|e| e.to_string())?;
    stream.run(&placed.plan).map_err(|e| e.to_string())?;
    stream.synchronize().map_err(|e| e.to_string())?;
    let mut got = Tensors::new();
    for (name, view) in &placed.outputs {
        got.insert(name.clone(), device.download(view).map_err(|e| e.to_string())?);
    }
    Ok(got)
}

/// What is wrong with a case.
pub fn run(device: &Device, op: &dyn OpSpec, case: &Golden) -> Result<(), String> {
    let placed = place(device, op, &case.inputs, &case.params, &DefaultConfigs)?;
    let got = outputs(device, &placed)?;
    let mut wrong = vec![];
    for (name, metric) in &case.outputs {
        let v = judge(name, metric, &Comparison { case: &case.all, got: &got, params: &case.params });
        if !v.ok {
            wrong.push(format!("{name}: {} {:.3e}: {}", v.metric, v.value, v.reason));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// A simulated chip, where there is a C++ compiler.
pub fn simulator(name: &str) -> Option<Device> {
    let settings = Settings::from_env();
    if let Err(e) = std::process::Command::new(&settings.cxx).arg("--version").output() {
        let text = format!("no C++ compiler `{}` for the simulator: {e}", settings.cxx.display());
        assert!(!settings.ci, "{text}");
        println!("skipped: {text}");
        return None;
    }
    Some(open_with(name, &settings).expect("the simulator is everywhere"))
}

/// A launch as its kernel is built for it, with memory of the device for its scratch tensors.
pub fn bound(device: &Device, step: &Launch) -> Result<Bound, String> {
    let whole = |a: &Arg| match a {
        Arg::Workspace { dtype, shape, .. } => Arg::Tensor(device.zeros(*dtype, shape).expect("a workspace fits")),
        Arg::Tensor(_) | Arg::Scalar(_) | Arg::Absent => a.clone(),
    };
    let args: Vec<Arg> = step.args.iter().map(whole).collect();
    bind::bind(step.kernel.as_ref(), &step.config, &args).map_err(|e| e.to_string())
}
