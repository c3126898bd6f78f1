//! Every operator on the simulated chip: golden cases, judged as everywhere.
//!
//! By default the smallest case of every operator, and further ones until every kernel of the golden cases has run; all
//! cases with `SLOW=1`, or with `KILN_ORACLE`.

#![allow(clippy::print_stdout, reason = "what ran, and what it cost, is named in the test's output")]

#[path = "golden/cases.rs"]
mod cases;

use cases::Golden;
use kiln_codegen::abi::{Launcher, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{DefaultConfigs, OpSpec, Problem, TensorSpec};
use kiln_kernels::numeric::{Comparison, Tensors, judge};
use kiln_runtime::{Device, Settings, open_with};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A problem on the device.
struct Placed {
    outputs: BTreeMap<String, TensorView>,
    plan: Plan,
}

fn place(device: &Device, op: &dyn OpSpec, case: &Golden) -> Result<Placed, String> {
    let spec = |(n, t): (&String, &HostTensor)| {
        (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() })
    };
    let specs: BTreeMap<_, _> = case.inputs.iter().map(spec).collect();
    let mut problem = Problem { tensors: BTreeMap::new(), params: case.params.clone() };
    for (name, t) in &case.inputs {
        problem.tensors.insert(name.clone(), device.upload(t).map_err(|e| e.to_string())?);
    }
    let mut outputs = BTreeMap::new();
    for t in op.outputs(&specs, &case.params).map_err(|e| e.to_string())? {
        // Filled with ones so that an element nobody writes shows.
        let mut host = HostTensor::zeros(t.dtype, &t.shape);
        host.data.fill(0xff);
        let view = device.upload(&host).map_err(|e| e.to_string())?;
        outputs.insert(t.name.clone(), view.clone());
        problem.tensors.insert(t.name, view);
    }
    let plan = op.plan(&problem, &DefaultConfigs).map_err(|e| e.to_string())?;
    Ok(Placed { outputs, plan })
}

/// Names of the kernels a plan launches.
fn kernels(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|s| s.kernel.info().name.clone()).collect()
}

fn size(case: &Golden) -> usize {
    case.all.values().map(|t| t.data.len()).sum()
}

/// The cases to run: all, or few that reach every kernel.
fn chosen(device: &Device, registry: &[std::sync::Arc<dyn OpSpec>], all: bool) -> Vec<Golden> {
    let mut cases = cases::load();
    cases.retain(|c| registry.iter().any(|op| op.info().name == c.op));
    if all {
        return cases;
    }
    // A case without elements runs nothing.
    cases.retain(|c| c.outputs.iter().all(|(name, _)| c.all[name].num_elements() > 0));
    cases.sort_by_key(size);
    let (mut ops, mut reached) = (BTreeSet::new(), BTreeSet::new());
    cases.retain(|c| {
        let op = registry.iter().find(|op| op.info().name == c.op).expect("just checked");
        let names = place(device, op.as_ref(), c).map(|p| kernels(&p.plan)).unwrap_or_default();
        // Not `any`: every name has to be noted.
        let new = names.into_iter().filter(|n| reached.insert(n.clone())).count() > 0;
        ops.insert(c.op.clone()) || new
    });
    cases
}

/// What is wrong with a case.
fn run(device: &Device, op: &dyn OpSpec, case: &Golden) -> Result<(), String> {
    let placed = place(device, op, case)?;
    let stream = device.stream().map_err(|e| e.to_string())?;
    stream.run(&placed.plan).map_err(|e| e.to_string())?;
    stream.synchronize().map_err(|e| e.to_string())?;
    let mut got = Tensors::new();
    for (name, view) in &placed.outputs {
        got.insert(name.clone(), device.download(view).map_err(|e| e.to_string())?);
    }
    let mut wrong = vec![];
    for (name, metric) in &case.outputs {
        let v = judge(name, metric, &Comparison { case: &case.all, got: &got, params: &case.params });
        if !v.ok {
            wrong.push(format!("{name}: {} {:.3e}: {}", v.metric, v.value, v.reason));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[test]
fn golden_cases_pass_on_the_simulated_chip() {
    let settings = Settings::from_env();
    if let Err(e) = std::process::Command::new(&settings.cxx).arg("--version").output() {
        let text = format!("no C++ compiler `{}` for the simulator: {e}", settings.cxx.display());
        assert!(!settings.ci, "{text}");
        println!("skipped: {text}");
        return;
    }
    let device = open_with("sim:sm_80", &settings).expect("the simulator is everywhere");
    let registry = kiln_kernels::registry();
    let all = std::env::var("SLOW").is_ok_and(|v| v == "1") || std::env::var_os("KILN_ORACLE").is_some();
    let cases = chosen(&device, &registry, all);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let start = Instant::now();
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let op = registry.iter().find(|op| op.info().name == case.op).expect("cases are of operators");
            let from = Instant::now();
            let result = run(&device, op.as_ref(), case);
            println!("{:>6} ms {}", from.elapsed().as_millis(), case.id);
            if let Err(e) = result {
                failures.lock().expect("no panic").push(format!("{}: {e}", case.id));
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| (0..workers).for_each(|_| drop(s.spawn(work))));
    println!("{} cases in {:.1} s", cases.len(), start.elapsed().as_secs_f64());
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let ops: BTreeSet<_> = cases.iter().map(|c| c.op.as_str()).collect();
    assert!(ops.len() >= 18, "only {} operators have golden cases", ops.len());
}
