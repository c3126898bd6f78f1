//! Every operator on the simulated chip: golden cases, judged as everywhere.
//!
//! Products in the form of warp groups run on `sim:sm_90a` and on `vm:sm_90a` beside that and give the bits of the tile VM.
//!
//! By default the smallest case of every operator, and further ones until every kernel of the golden cases has run; all
//! cases with `SLOW=1`, or with `KILN_ORACLE`.

#![allow(clippy::print_stdout, reason = "what ran, and what it cost, is named in the test's output")]

#[path = "golden/cases.rs"]
mod cases;
#[path = "golden/device.rs"]
mod device;
#[path = "golden/random.rs"]
mod random;
#[path = "../examples/03_kernels/kernels.rs"]
#[allow(dead_code, unused_imports, reason = "one kernel of the lesson runs here")]
mod texts;
#[path = "golden/vm.rs"]
mod tile_vm;

use cases::Golden;
use device::{bound, outputs, place, run, simulator};
use kiln_codegen::abi::{Launcher, Plan, SigArg};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Configs, DefaultConfigs, Fill, HostProblem, KernelDef, OpSpec, Params, Problem, TensorSpec};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use kiln_codegen::{compile, vm};
use kiln_kernels::numeric::{Comparison, Tensors, judge};
use kiln_runtime::{Device, Settings, open_with};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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
        let placed = place(device, op.as_ref(), &c.inputs, &c.params, &DefaultConfigs);
        let names = placed.map(|p| kernels(&p.plan)).unwrap_or_default();
        // Not `any`: every name has to be noted.
        let new = names.into_iter().filter(|n| reached.insert(n.clone())).count() > 0;
        ops.insert(c.op.clone()) || new
    });
    cases
}

/// Runs cases on a simulated chip and judges them; the operators they are of.
fn pass(device: &Device, cases: &[Golden]) -> BTreeSet<String> {
    let registry = kiln_kernels::registry();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let start = Instant::now();
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let op = registry.iter().find(|op| op.info().name == case.op).expect("cases are of operators");
            let from = Instant::now();
            let result = run(device, op.as_ref(), case);
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
    cases.iter().map(|c| c.op.clone()).collect()
}

fn all_cases() -> bool {
    std::env::var("SLOW").is_ok_and(|v| v == "1") || std::env::var_os("KILN_ORACLE").is_some()
}

#[test]
fn golden_cases_pass_on_the_simulated_chip() {
    let Some(device) = simulator("sim:sm_80") else { return };
    let ops = pass(&device, &chosen(&device, &kiln_kernels::registry(), all_cases()));
    assert!(ops.len() >= 32, "only {} operators have golden cases", ops.len());
}

/// The text for the chip with warp groups: every case of a product, and of the other operators with `SLOW=1`.
#[test]
fn golden_cases_pass_on_the_chip_with_warp_groups() {
    let Some(device) = simulator("sim:sm_90a") else { return };
    let mut cases = chosen(&device, &kiln_kernels::registry(), true);
    cases.retain(|c| all_cases() || c.op.starts_with("gemm_") || c.op == "einsum");
    let ops = pass(&device, &cases);
    assert!(ops.len() >= 7, "only {ops:?} have golden cases");
}

/// Random grouped products on a GPU, each judged and none stuck: 1,000 of them with `KILN_DEVICE=cuda:0`, 10,000 with `SLOW=1`.
#[test]
fn random_grouped_products_on_a_gpu() {
    let name = std::env::var("KILN_DEVICE").unwrap_or_default();
    if !name.starts_with("cuda:") {
        println!("skipped: needs a GPU; KILN_DEVICE=cuda:0 names one");
        return;
    }
    let count = if std::env::var("SLOW").is_ok_and(|v| v == "1") { 10_000 } else { 1_000 };
    let device = open_with(&name, &Settings::from_env()).unwrap_or_else(|e| panic!("{e}"));
    let registry = kiln_kernels::registry();
    let grouped = ["gemm_m_grouped_contiguous", "gemm_m_grouped_masked", "gemm_k_grouped"];
    let start = Instant::now();
    for seed in 0..count {
        let name = grouped[seed as usize % grouped.len()];
        let op = registry.iter().find(|op| op.info().name == name).expect("an operator");
        random_problem(&device, op.as_ref(), seed);
    }
    println!("{count} products in {:.1} s", start.elapsed().as_secs_f64());
}

/// Runs a random problem on a device and judges what it gives.
fn random_problem(device: &Device, op: &dyn OpSpec, seed: u64) {
    let name = op.info().name;
    let p = random::problem(name, seed).expect("a known operator");
    let placed = place(device, op, &p.inputs, &p.params, &DefaultConfigs);
    let placed = placed.unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    let got = outputs(device, &placed).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    let problem = HostProblem { tensors: p.inputs.clone(), params: p.params.clone() };
    let mut all = p.inputs.clone();
    all.extend(op.reference(&problem).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}")));
    for output in got.keys() {
        let metric = op.tolerance(output, &p.params).into();
        let v = judge(output, &metric, &Comparison { case: &all, got: &got, params: &p.params });
        assert!(v.ok, "{name}, seed {seed}, {output}: {} {:.3e}: {}", v.metric, v.value, v.reason);
    }
}

/// Selection among numbers nobody likes, in rows whose sample misleads: some on two simulated chips, 1,000 on a GPU
/// (`KILN_DEVICE=cuda:0`).
#[test]
fn random_selections_on_the_simulated_chips_or_a_gpu() {
    let registry = kiln_kernels::registry();
    let op = registry.iter().find(|op| op.info().name == "topk_select").expect("an operator");
    let name = std::env::var("KILN_DEVICE").unwrap_or_default();
    if name.starts_with("cuda:") {
        let device = open_with(&name, &Settings::from_env()).unwrap_or_else(|e| panic!("{e}"));
        (1..=1000).for_each(|seed| random_problem(&device, op.as_ref(), seed));
        return;
    }
    let slow = all_cases();
    if !slow {
        println!("skipped: all but three selections; SLOW=1 runs twelve");
    }
    for (chip, seeds) in
        [("sim:sm_80", if slow { 1..=8 } else { 2..=3 }), ("sim:sm_90a", if slow { 1..=4 } else { 6..=6 })]
    {
        let Some(device) = simulator(chip) else { continue };
        for seed in seeds {
            let from = Instant::now();
            random_problem(&device, op.as_ref(), seed);
            println!("{:>6} ms {chip}, seed {seed}", from.elapsed().as_millis());
        }
    }
}

/// Rows so far apart that their offsets need 64 bits, on a GPU: `KILN_DEVICE=cuda:0`, with 16 GiB of memory free.
/// `golden_vm.rs` has the same on the tile VM, where only the rows themselves exist.
#[test]
fn rows_past_two_to_the_31_on_a_gpu() {
    let name = std::env::var("KILN_DEVICE").unwrap_or_default();
    if !name.starts_with("cuda:") {
        println!("skipped: needs a GPU; KILN_DEVICE=cuda:0 names one");
        return;
    }
    let device = open_with(&name, &Settings::from_env()).unwrap_or_else(|e| panic!("{e}"));
    let mut run = vec![];
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        let find = |seed| random::problem(name, seed).filter(|p| p.gaps.keys().any(|n| p.inputs[n].shape[0] > 2));
        let Some(p) = (100..112).find_map(find) else { continue };
        let mut problem = Problem { tensors: BTreeMap::new(), params: p.params.clone() };
        for (name, t) in &p.inputs {
            // One tensor far apart at a time is enough: the largest gaps that three rows need.
            let far = p.gaps.contains_key(name) && t.shape[0] > 2;
            let gap = if far { ((1usize << 31) / (t.shape[0] - 1)).next_multiple_of(16) } else { 0 };
            problem.tensors.insert(name.clone(), device.upload_apart(t, gap).unwrap_or_else(|e| panic!("{name}: {e}")));
        }
        let specs = p
            .inputs
            .iter()
            .map(|(n, t)| (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() }));
        let outputs = op.outputs(&specs.collect(), &p.params).unwrap_or_else(|e| panic!("{e}"));
        for t in &outputs {
            problem.tensors.insert(t.name.clone(), device.zeros(t.dtype, &t.shape).unwrap_or_else(|e| panic!("{e}")));
        }
        let plan = op.plan(&problem, &DefaultConfigs).unwrap_or_else(|e| panic!("{name}: {e}"));
        let stream = device.stream().unwrap_or_else(|e| panic!("{e}"));
        stream.run(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        stream.synchronize().unwrap_or_else(|e| panic!("{name}: {e}"));
        let host = kiln_codegen::spec::HostProblem { tensors: p.inputs.clone(), params: p.params.clone() };
        let mut all = p.inputs.clone();
        all.extend(op.reference(&host).unwrap_or_else(|e| panic!("{e}")));
        let got: Tensors = outputs
            .iter()
            .map(|t| (t.name.clone(), device.download(&problem.tensors[&t.name]).unwrap_or_else(|e| panic!("{e}"))))
            .collect();
        for output in got.keys() {
            let metric = op.tolerance(output, &p.params).into();
            let v = judge(output, &metric, &Comparison { case: &all, got: &got, params: &p.params });
            assert!(v.ok, "{name}, {output}: {}", v.reason);
        }
        run.push(name);
    }
    println!("{run:?}");
    assert!(run.len() >= 10, "{run:?}");
}

/// The same problems, built only: wherever a tensor's offsets need 64 bits, the text counts in 64 bits.
#[test]
fn rows_past_two_to_the_31_are_counted_in_64_bits() {
    let device = open_with("null", &Settings::from_env()).unwrap_or_else(|e| panic!("{e}"));
    let mut built = vec![];
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        let far = |p: &random::Random, n: &String| p.gaps.contains_key(n) && p.inputs[n].shape[0] > 2;
        let find = |seed| random::problem(name, seed).filter(|p| p.inputs.keys().any(|n| far(p, n)));
        let Some(p) = (100..112).find_map(find) else { continue };
        let mut problem = Problem { tensors: BTreeMap::new(), params: p.params.clone() };
        for (name, t) in &p.inputs {
            let gap = if far(&p, name) { ((1usize << 31) / (t.shape[0] - 1)).next_multiple_of(16) } else { 0 };
            let row = t.shape.iter().skip(1).product::<usize>() + gap;
            let rows = t.shape.first().map_or(1, |&r| r.max(1));
            let mut view = device.zeros(t.dtype, &[rows * row]).unwrap_or_else(|e| panic!("{e}"));
            view.strides = (0..t.shape.len()).map(|a| t.shape[a + 1..].iter().product()).collect();
            view.strides.iter_mut().take(1).for_each(|s| *s += gap);
            view.shape.clone_from(&t.shape);
            problem.tensors.insert(name.clone(), view);
        }
        let spec = |n: &String, t: &HostTensor| TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() };
        let specs = p.inputs.iter().map(|(n, t)| (n.clone(), spec(n, t))).collect();
        for t in op.outputs(&specs, &p.params).unwrap_or_else(|e| panic!("{name}: {e}")) {
            let view = device.zeros(t.dtype, &t.shape).unwrap_or_else(|e| panic!("{e}"));
            problem.tensors.insert(t.name, view);
        }
        let plan = op.plan(&problem, &DefaultConfigs).unwrap_or_else(|e| panic!("{name}: {e}"));
        for step in &plan.steps {
            let bound = bound(&device, step).unwrap_or_else(|e| panic!("{name}: {e}"));
            if !bound.request.wide_index {
                continue;
            }
            for target in [Target::Sm80, Target::Sm90a, Target::Sm100a] {
                let (kernel, title) = (step.kernel.as_ref(), &step.kernel.info().name);
                let all = compile::build(kernel, &bound.request).unwrap_or_else(|e| panic!("{title}: {e:?}"));
                let lowered = compile::source(&all, target).unwrap_or_else(|e| panic!("{title}: {e:?}"));
                let narrow = |a: &SigArg| matches!(a, SigArg::Sym { wide: false, .. });
                assert!(!lowered.source.signature.args.iter().any(narrow), "{title}\n{}", lowered.source.text);
                built.push(title.clone());
            }
        }
    }
    built.dedup();
    println!("{built:?}");
    assert!(built.len() >= 15, "{built:?}");
}

/// Roles written in a kernel, placed and printed for warp groups: on the simulated chip they find nothing wrong and give
/// what the interpreter gives, up to the rounding of approximate functions.
#[test]
fn written_roles_run_on_the_simulated_chip() {
    use kiln::prelude::KernelConfig as _;
    use kiln_codegen::abi::{Arg, Launch};
    use kiln_codegen::ir::{DType, Literal};
    let settings = Settings::from_env();
    if simulator("sim:sm_90a").is_none() {
        return;
    }
    let (batch, heads, dk, dv, page, pages, most) = (2, 3, 192, 128, 64, 6, 3);
    let cfg = texts::MlaCfg { bh: 64, bn: 64, split_tokens: 192, stages: 2 };
    let numbers = |n: usize, scale: f64, seed: usize| -> Vec<f64> {
        (0..n).map(|i| (((i * 7919 + seed * 31) % 101) as f64 - 50.0) * scale).collect()
    };
    let q = HostTensor::from_f64(DType::Bf16, &[batch, heads, dk], &numbers(batch * heads * dk, 0.02, 1));
    let kv = HostTensor::from_f64(DType::Bf16, &[pages, page, dk], &numbers(pages * page * dk, 0.02, 2));
    let table = HostTensor::from_f64(DType::I32, &[batch, most], &[4.0, 1.0, 0.0, 5.0, 2.0, 3.0]);
    let lens = HostTensor::from_f64(DType::I32, &[batch], &[150.0, 40.0]);
    let mut results: Vec<[Vec<f64>; 2]> = vec![];
    for name in ["cpu", "sim:sm_90a"] {
        let device = open_with(name, &settings).unwrap_or_else(|e| panic!("{e}"));
        let up = |t: &HostTensor| device.upload(t).unwrap_or_else(|e| panic!("{e}"));
        let out = up(&HostTensor::zeros(DType::F32, &[batch, 1, heads, dv]));
        let lse = up(&HostTensor::zeros(DType::F32, &[batch, 1, heads]));
        let scale = Literal { dtype: DType::F32, bits: u64::from(0.1f32.to_bits()) };
        let tensors = [&q, &kv, &table, &lens].map(|t| Arg::Tensor(up(t)));
        let args = tensors.into_iter().chain([Arg::Tensor(out.clone()), Arg::Tensor(lse.clone()), Arg::Scalar(scale)]);
        let kernel = texts::mla_decode_split_sm90::kernel();
        let launch = Launch { kernel, config: cfg.to_config(), args: args.collect() };
        let stream = device.stream().unwrap_or_else(|e| panic!("{e}"));
        let start = Instant::now();
        stream.run(&Plan { steps: vec![launch], ..Plan::default() }).unwrap_or_else(|e| panic!("{name}: {e}"));
        stream.synchronize().unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {} ms", start.elapsed().as_millis());
        results.push([out, lse].map(|v| device.download(&v).unwrap_or_else(|e| panic!("{e}")).to_f64()));
    }
    for (want, got) in results[0].iter().zip(&results[1]) {
        for (i, (w, g)) in want.iter().zip(got).enumerate() {
            // `exp2` and `log2` are approximate on devices, some units in the last place of f32; probabilities are rounded
            // to bf16 behind them, where a boundary moves by 2^-9 of a value below 1.
            assert!((w - g).abs() <= 4e-3, "element {i}: {g} instead of {w}");
        }
    }
}

/// The default with some fields set, in kernels that have them.
#[derive(Debug)]
struct With(Vec<(&'static str, usize)>);
impl Configs for With {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let mut config = kernel.space().default_config();
        for (name, x) in &self.0 {
            if let Some(field) = config.0.get_mut(*name) {
                *field = ConfigValue::Int(*x);
            }
        }
        config
    }
}

/// A problem in the form of warp groups: operator, bench shape, rows of groups if they differ, configuration.
type WarpGroups = (&'static str, &'static [(&'static str, usize)], &'static [i64], &'static [(&'static str, usize)]);

const WARP_GROUPS: [WarpGroups; 8] = [
    // Few rows: K over blocks and warp groups, over either, several groups of rows of b, a tail along all axes.
    (
        "gemm_fp8",
        &[("m", 5), ("n", 200), ("k", 1200)],
        &[],
        &[("rows", 8), ("k_splits", 2), ("k_chains", 2), ("slots", 6)],
    ),
    (
        "gemm_fp8",
        &[("m", 20), ("n", 200), ("k", 640)],
        &[],
        &[("columns", 128), ("k_splits", 1), ("k_chains", 2), ("slots", 4)],
    ),
    (
        "gemm_fp8",
        &[("m", 37), ("n", 136), ("k", 400)],
        &[],
        &[("rows", 32), ("k_splits", 3), ("k_chains", 1), ("slots", 2)],
    ),
    // Columns of a tile in two and three blocks of scales.
    ("gemm_fp8", &[("m", 70), ("n", 264), ("k", 400)], &[], &[("few_rows", 0), ("bn", 112), ("stages", 4)]),
    (
        "gemm_fp8",
        &[("m", 140), ("n", 400), ("k", 272)],
        &[],
        &[("few_rows", 0), ("bm", 128), ("bn", 192), ("cluster", 2)],
    ),
    (
        "gemm_m_grouped_contiguous",
        &[("groups", 3), ("m_per_group", 130), ("n", 200), ("k", 272)],
        &[],
        &[("bn", 112), ("cluster", 2), ("stages", 3)],
    ),
    (
        "gemm_m_grouped_masked",
        &[("groups", 5), ("max_m", 200), ("m_per_group", 70), ("n", 200), ("k", 272)],
        &[0, 200, 65, -1, 1],
        &[("bm", 64), ("bn", 96), ("stages", 3)],
    ),
    ("gemm_bf16", &[("m", 140), ("n", 200), ("k", 200)], &[], &[("bm", 128), ("cluster", 2)]),
];

/// Operator, inputs and parameters of a form.
fn warp_groups(n: usize) -> (std::sync::Arc<dyn OpSpec>, Tensors, Params) {
    let (name, shape, counts, _) = WARP_GROUPS[n];
    let op = kiln_kernels::registry().into_iter().find(|op| op.info().name == name).expect("an operator");
    let shape: Vec<(String, usize)> = shape.iter().map(|(k, x)| (k.to_string(), *x)).collect();
    let mut case = op.bench_case(&shape).unwrap_or_else(|e| panic!("{e}"));
    for input in case.inputs.iter_mut().filter(|i| i.tensor.name == "masked_m") {
        input.fill = Fill::Values(counts.iter().map(|&c| c as f64).collect());
    }
    let inputs = tile_vm::fill(&case);
    (op, inputs, case.params)
}

/// The forms in the interpreter of roles, which compares the bits of the scheduled kernel, in several orders of roles and
/// engines, with those of the plain one.
#[test]
fn warp_group_forms_keep_their_bits_in_every_order() {
    let device = open_with("vm:sm_90a", &Settings::from_env()).expect("it is everywhere");
    for (n, (name, _, _, config)) in WARP_GROUPS.into_iter().enumerate() {
        let start = Instant::now();
        let (op, inputs, params) = warp_groups(n);
        let placed =
            place(&device, op.as_ref(), &inputs, &params, &With(config.to_vec())).unwrap_or_else(|e| panic!("{e}"));
        let last = placed.plan.steps.last().expect("a launch");
        scheduled(&device, last).unwrap_or_else(|why| panic!("{name} {config:?} keeps the portable form: {why}"));
        outputs(&device, &placed).unwrap_or_else(|e| panic!("{name} {config:?}: {e}"));
        println!("{:>6} ms {n} {name} {config:?}", start.elapsed().as_millis());
    }
}

#[test]
fn warp_group_forms_give_the_bits_of_the_tile_vm() {
    let Some(device) = simulator("sim:sm_90a") else { return };
    let only = std::env::var("FORM").ok().and_then(|n| n.parse::<usize>().ok());
    for (n, (name, _, _, config)) in WARP_GROUPS.into_iter().enumerate() {
        if only.is_some_and(|o| o != n) {
            continue;
        }
        let start = Instant::now();
        let (op, inputs, params) = warp_groups(n);
        let configs = With(config.to_vec());
        let placed = place(&device, op.as_ref(), &inputs, &params, &configs).unwrap_or_else(|e| panic!("{e}"));
        let last = placed.plan.steps.last().expect("a launch");
        scheduled(&device, last).unwrap_or_else(|why| panic!("{name} {config:?} keeps the portable form: {why}"));
        let got = outputs(&device, &placed).unwrap_or_else(|e| panic!("{name} {config:?}: {e}"));
        let options = vm::Options::default();
        let want = tile_vm::run(op.as_ref(), &inputs, &params, &configs, &options).unwrap_or_else(|e| panic!("{e}"));
        let wrong: Vec<usize> = (0..want["d"].data.len()).filter(|&i| got["d"].data[i] != want["d"].data[i]).collect();
        assert!(wrong.is_empty(), "{name} {config:?}: {} bytes differ, the first at {}", wrong.len(), wrong[0]);
        let problem = HostProblem { tensors: inputs.clone(), params: params.clone() };
        let mut all = inputs.clone();
        all.extend(op.reference(&problem).unwrap_or_else(|e| panic!("{e}")));
        let metric = op.tolerance("d", &params).into();
        let v = judge("d", &metric, &Comparison { case: &all, got: &got, params: &params });
        assert!(v.ok, "{name} {config:?}: {} {:.3e}: {}", v.metric, v.value, v.reason);
        println!("{:>6} ms {n} {name} {config:?}", start.elapsed().as_millis());
    }
}

/// Whether a launch has a schedule on the target with warp groups.
fn scheduled(device: &Device, step: &kiln_codegen::abi::Launch) -> Result<(), String> {
    let bound = bound(device, step)?;
    let built = compile::build(step.kernel.as_ref(), &bound.request).map_err(|d| format!("{d:?}"))?;
    compile::scheduled(&built, Target::Sm90a).map(drop)
}
