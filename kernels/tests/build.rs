//! Every declared case of every operator makes a plan whose launches bind and build, for the default configuration and
//! for each single change of it. No values are computed here; `tests/golden_vm.rs` does that.

use kiln_codegen::abi::{Arg, Launch, TensorView};
use kiln_codegen::bind;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::Kernel;
use kiln_codegen::spec::{Case, Configs, DefaultConfigs, KernelDef, OpSpec, Problem, TensorSpec};
use kiln_codegen::tune::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tensors of a case with undefined content.
fn problem(op: &dyn OpSpec, case: &Case) -> Problem {
    let inputs: BTreeMap<String, TensorSpec> =
        case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
    let outputs = op.outputs(&inputs, &case.params).unwrap_or_else(|e| panic!("{}: {e}", case.id));
    let tensors = inputs.into_values().chain(outputs).map(|t| {
        let memory = Arc::new(HostMemory::zeroed(t.dtype.bytes(t.shape.iter().product())));
        (t.name, TensorView::contiguous(t.dtype, &t.shape, memory))
    });
    Problem { tensors: tensors.collect(), params: case.params.clone() }
}

/// The launch with memory in place of workspaces.
fn placed(launch: &Launch, workspaces: &[usize]) -> Launch {
    let args = launch.args.iter().map(|arg| match arg {
        Arg::Workspace { index, dtype, shape, offset_bytes } => {
            let memory = Arc::new(HostMemory::zeroed(workspaces[*index]));
            Arg::Tensor(TensorView { offset_bytes: *offset_bytes, ..TensorView::contiguous(*dtype, shape, memory) })
        }
        other => other.clone(),
    });
    Launch { args: args.collect(), ..launch.clone() }
}

fn build(launch: &Launch) -> Result<Kernel, String> {
    let bound = bind::bind(launch.kernel.as_ref(), &launch.config, &launch.args).map_err(|e| e.to_string())?;
    let kernel = launch
        .kernel
        .build(&bound.request)
        .map_err(|d| d.iter().map(|d| format!("{} {}", d.code, d.message)).collect::<Vec<_>>().join("\n"))?;
    let syms = bind::sym_values(&kernel, &bound.dims, &launch.args);
    bind::grid(&kernel, &syms).ok_or("the grid cannot be computed")?;
    Ok(kernel)
}

/// Changes one field of the default.
#[derive(Debug)]
struct Changed<'a>(&'a str, kiln_codegen::tune::ConfigValue);
impl Configs for Changed<'_> {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let mut config = kernel.space().default_config();
        if config.0.contains_key(self.0) {
            config.0.insert(self.0.into(), self.1.clone());
        }
        config
    }
}

#[test]
fn every_case_builds_with_every_config_value() {
    for op in kiln_kernels::registry() {
        let axes: Vec<_> = op.kernels().iter().flat_map(|k| k.space().axes).collect();
        for case in op.cases() {
            let problem = problem(op.as_ref(), &case);
            let mut plans = vec![op.plan(&problem, &DefaultConfigs)];
            let mut seen = BTreeSet::new();
            for axis in &axes {
                for value in &axis.values {
                    if seen.insert((axis.name.clone(), value.clone())) {
                        plans.push(op.plan(&problem, &Changed(&axis.name, value.clone())));
                    }
                }
            }
            for plan in plans {
                let plan = plan.unwrap_or_else(|e| panic!("{}: {e}", case.id));
                for step in &plan.steps {
                    let built = build(&placed(step, &plan.workspaces));
                    assert!(built.is_ok(), "{} {} [{}]: {}", op.info().name, case.id, step.config, built.unwrap_err());
                }
            }
        }
    }
}

#[test]
fn bench_shapes_make_cases_the_operator_accepts() {
    for op in kiln_kernels::registry() {
        for shape in op.bench_shapes() {
            let keys: Vec<_> = shape.iter().map(|(k, _)| k.as_str()).collect();
            assert_eq!(keys, op.bench_keys(), "{}", op.info().name);
            let case = op.bench_case(&shape).expect("a case for its own shape");
            let inputs = case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
            assert!(op.outputs(&inputs, &case.params).is_ok_and(|o| !o.is_empty()));
            assert!(op.cost(&inputs, &case.params).bytes > 0.0);
        }
        let unknown = op.bench_case(&[("colour".into(), 3)]);
        assert!(unknown.is_err());
    }
}

#[test]
fn wrong_problems_are_refused_with_the_operators_name() {
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        let refused = op.outputs(&BTreeMap::new(), &Default::default()).expect_err("nothing is no problem");
        assert_eq!(refused.op, name);
        let case = op.cases().into_iter().next_back().expect("a case");
        let mut wrong = problem(op.as_ref(), &case);
        let output = op.kernels().len(); // Any number: an output of another shape is refused whatever it is.
        let (first, view) = wrong
            .tensors
            .iter()
            .find(|(n, _)| !case.inputs.iter().any(|i| i.tensor.name == **n))
            .map(|(n, v)| (n.clone(), v.clone()))
            .expect("an output");
        let shape = [view.shape.clone(), vec![output]].concat();
        let strides = vec![0; shape.len()];
        wrong.tensors.insert(first.clone(), TensorView { shape, strides, ..view });
        let refused = op.plan(&wrong, &DefaultConfigs).expect_err("a wrong output");
        assert!(refused.message.contains(&format!("`{first}`")), "{refused}");
    }
}

/// Every part of a workspace lies inside the workspace it names.
#[test]
fn workspaces_hold_the_parts_that_launches_use() {
    for op in kiln_kernels::registry() {
        for case in op.cases() {
            let plan = op.plan(&problem(op.as_ref(), &case), &DefaultConfigs).expect("a plan");
            for arg in plan.steps.iter().flat_map(|s| &s.args) {
                if let Arg::Workspace { index, dtype, shape, offset_bytes } = arg {
                    let end = offset_bytes + dtype.bytes(shape.iter().product());
                    assert!(plan.workspaces.get(*index).is_some_and(|bytes| end <= *bytes), "{}", case.id);
                }
            }
        }
    }
}

/// A tensor's memory with numbers of moderate size.
fn filled(v: &TensorView, seed: usize) -> TensorView {
    use kiln_codegen::host_tensor::HostTensor;
    let bytes = v.memory.len_bytes();
    let count = bytes * 8 / v.dtype.bits();
    let value = |i: usize| (((i * 7 + i / 31 + seed * 5) % 23) as f64 - 11.0) * 0.125;
    let values: Vec<f64> =
        (0..count).map(value).map(|x| if v.dtype.is_float() { x } else { x.abs().floor() }).collect();
    let mut data = HostTensor::from_f64(v.dtype, &[count], &values).data;
    data.resize(bytes, 0);
    TensorView { memory: Arc::new(HostMemory::from_bytes(&data)), ..v.clone() }
}

/// The default configuration, and each that differs from it in one axis, of a kernel that has a schedule on `sm_90a` gives the plain kernel's bits, with roles and engines in
/// two orders: on its smallest case with something to do, on all cases with `SLOW=1`.
#[test]
fn schedules_give_the_bits_of_the_plain_kernel() {
    use kiln_codegen::compile;
    use kiln_codegen::target::Target;
    use kiln_codegen::vm::roles::{Schedule, run_checked};
    let slow = std::env::var("SLOW").is_ok_and(|v| v == "1");
    let mut seen = BTreeSet::new();
    let mut ran = 0;
    for op in kiln_kernels::registry() {
        let axes: Vec<_> = op.kernels().iter().flat_map(|k| k.space().axes).collect();
        let mut cases = op.cases();
        let size = |c: &Case| c.inputs.iter().map(|i| i.tensor.shape.iter().product::<usize>()).sum::<usize>();
        cases.retain(|c| c.inputs.iter().all(|i| !i.tensor.shape.contains(&0)));
        cases.sort_by_key(size);
        for case in &cases {
            let problem = problem(op.as_ref(), case);
            let mut plans = vec![op.plan(&problem, &DefaultConfigs)];
            plans.extend(
                axes.iter().flat_map(|a| a.values.iter().map(|v| op.plan(&problem, &Changed(&a.name, v.clone())))),
            );
            for plan in plans {
                let plan = plan.unwrap_or_else(|e| panic!("{}: {e}", case.id));
                for step in &plan.steps {
                    let mut step = placed(step, &plan.workspaces);
                    let name = format!("{} {:?} [{}]", step.kernel.info().name, step.kernel.info().dtypes, step.config);
                    let key = if slow { format!("{name} {}", case.id) } else { name.clone() };
                    if !seen.insert(key.clone()) {
                        continue;
                    }
                    let bound = bind::bind(step.kernel.as_ref(), &step.config, &step.args).expect("it binds");
                    let built = compile::build(step.kernel.as_ref(), &bound.request).expect("it builds");
                    let built = built.on(Target::Sm90a);
                    let Ok((_, k, facts)) = compile::scheduled(built, Target::Sm90a) else {
                        // Another case's shapes may fit.
                        seen.remove(&key);
                        continue;
                    };
                    for (n, arg) in step.args.iter_mut().enumerate() {
                        if let Arg::Tensor(v) = arg {
                            *v = filled(v, n);
                        }
                    }
                    let syms = bind::sym_values(&built.kernel, &bound.dims, &step.args);
                    let forms = [(&built.kernel, &built.facts), (&k, &facts)];
                    let report = run_checked(forms, &syms, &step.args, &Schedule::series(2));
                    let found = report.unwrap_or_else(|e| panic!("{name}: {e:?}")).findings;
                    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                    assert!(found.is_empty(), "{name}, {}:\n{}", case.id, found.join("\n"));
                    ran += 1;
                }
            }
        }
    }
    assert!(ran >= 4, "only {ran} configurations have a schedule");
}
