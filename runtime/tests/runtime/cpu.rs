//! The CPU device end to end: results, the sanitizer, measuring and tuning on the tile VM.

use crate::scale::{Scale, ScaleOp};
use kiln_codegen::abi::{Arg, Launch, Launcher, Plan};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel};
use kiln_codegen::spec::{BuildRequest, Configs, KernelDef, KernelInfo, Problem};
use kiln_codegen::tune::{Config, ConfigValue, Space};
use kiln_runtime::measure::{MeasureOptions, Mode, time};
use kiln_runtime::tune::{Records, SearchOptions, Status, Task, Tuned, search};
use kiln_runtime::{Device, Error, RunOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

fn cpu() -> Device {
    kiln_runtime::open("cpu").expect("always there")
}

fn numbers(n: usize) -> HostTensor {
    let values: Vec<f64> = (0..n).map(|i| i as f64 / 4.0).collect();
    HostTensor::from_f64(DType::F32, &[n], &values)
}

#[test]
fn computes_through_a_workspace() {
    let cpu = cpu();
    let stream = cpu.stream().expect("opens");
    let x = cpu.upload(&numbers(1000)).expect("fits");
    let y = cpu.zeros(DType::F32, &[1000]).expect("fits");
    let scratch = || Arg::Workspace { index: 0, dtype: DType::F32, shape: vec![1000], offset_bytes: 0 };
    let mut first = Scale::launch(x, y.clone(), 2.0);
    first.args[1] = scratch();
    let mut second = Scale::launch(y.clone(), y.clone(), 3.0);
    second.args[0] = scratch();
    stream.run(&Plan { steps: vec![first, second], workspaces: vec![4000] }).expect("runs");
    let want: Vec<f64> = (0..1000).map(|i| i as f64 / 4.0 * 6.0).collect();
    assert_eq!(cpu.download(&y).expect("comes back").to_f64(), want);
}

#[test]
fn the_sanitizer_accepts_and_stops() {
    let cpu = cpu().with_run_options(RunOptions { sanitize: true, ..RunOptions::default() });
    let stream = cpu.stream().expect("opens");
    let tensor = |n| cpu.upload(&numbers(n)).expect("fits");
    stream.launch(&Scale::launch(tensor(1024), tensor(1024), 2.0)).expect("a clean kernel");
    let e = stream.launch(&Scale::broken(tensor(1024), tensor(1024))).expect_err("elements are left out");
    assert!(matches!(e, Error::Sanitizer { .. }), "{e}");
    assert!(e.to_string().contains("S0104"), "{e}");
    assert_eq!(e.exit_code(), 1);
}

#[test]
fn measures_by_the_wall_clock() {
    let cpu = cpu();
    let tensor = || cpu.upload(&numbers(4096)).expect("fits");
    let plan = || Plan { steps: vec![Scale::launch(tensor(), tensor(), 2.0)], workspaces: vec![] };
    let options = MeasureOptions { mode: Mode::Burst, replays: 3, calls_max: 4 };
    let m = time(&cpu, &[plan(), plan()], &options).expect("measures");
    assert_eq!((m.timer, m.mode, m.sets), ("wall", "burst", 2));
    assert!(m.min_us > 0.0 && m.min_us <= m.median_us && m.median_us <= m.p95_us, "{m:?}");
}

fn problem(cpu: &Device) -> Problem {
    let mut p = Problem::default();
    p.tensors.insert("x".into(), cpu.upload(&numbers(1000)).expect("fits"));
    p.tensors.insert("y".into(), cpu.zeros(DType::F32, &[1000]).expect("fits"));
    p
}

#[test]
fn tunes_records_and_chooses() {
    let cpu = cpu();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let records = Records::new(dir.path());
    let task = Task {
        op: Arc::new(ScaleOp),
        kernel: Scale::kernel(),
        problems: vec![problem(&cpu), problem(&cpu)],
        outputs: vec!["y".into()],
        specified: BTreeMap::new(),
        compare: &|_, _, _| Err("no field changes rounding".into()),
        timer: &time,
    };
    let quick = MeasureOptions { replays: 1, calls_max: 2, ..MeasureOptions::default() };
    let mut options = SearchOptions { measure: quick, ..SearchOptions::default() };
    let mut seen = vec![];
    let outcome =
        search(&cpu, &task, &options, &records, &mut |p| seen.push(p.record.config.to_string())).expect("searches");
    assert_eq!(seen, ["block=256", "block=128", "block=512"], "the default first");
    assert!(matches!(outcome.records[0].status, Status::Ok(_)) && matches!(outcome.records[1].status, Status::Ok(_)));
    let Status::Refused(why) = &outcome.records[2].status else { panic!("{:?}", outcome.records[2]) };
    assert!(why.contains("block <= n / 2"), "{why}");

    let tuned = Tuned::new(records.clone(), &cpu).expect("the VM has a version");
    let dims = |n| BTreeMap::from([("n".to_string(), n)]);
    assert_eq!(tuned.choose(&*task.kernel, &dims(1000)), outcome.best);
    assert_eq!(tuned.choose(&*task.kernel, &dims(800)), outcome.best, "the same bucket");
    assert!(tuned.take_notes().is_empty());
    assert_eq!(tuned.choose(&*task.kernel, &dims(5000)).0["block"], ConfigValue::Int(256));
    assert_eq!(
        tuned.take_notes(),
        ["`scale` runs its default config: the nearest record has bucket {\"n\":1024}, not {\"n\":6144}"]
    );

    options.resume = true;
    let again = search(&cpu, &task, &options, &records, &mut |_| {}).expect("resumes");
    let status = |r: &kiln_runtime::tune::Record| std::mem::discriminant(&r.status);
    assert!(again.records.iter().map(status).eq(outcome.records.iter().map(status)));
}

#[test]
fn too_much_memory_is_an_error() {
    let e = cpu().alloc(1 << 60).expect_err("no machine has that");
    assert!(matches!(e, Error::OutOfMemory { .. }), "{e}");
    assert_eq!(e.exit_code(), 3);
}

/// A kernel that cannot be built.
#[derive(Debug)]
struct Unbuildable(Arc<dyn KernelDef>);

impl KernelDef for Unbuildable {
    fn info(&self) -> &KernelInfo {
        self.0.info()
    }
    fn space(&self) -> Space {
        self.0.space()
    }
    fn require(&self, dims: &BTreeMap<String, usize>, config: &Config) -> std::result::Result<(), Vec<String>> {
        self.0.require(dims, config)
    }
    fn build(&self, _: &BuildRequest) -> std::result::Result<Kernel, Vec<Diagnostic>> {
        Err(vec![])
    }
}

#[test]
fn a_launch_with_empty_outputs_succeeds_without_a_build() {
    let device = cpu();
    let stream = device.stream().expect("opens");
    let launch = |n: usize| {
        let tensor = || device.zeros(DType::F32, &[n]).expect("fits");
        let scale = Scale::launch(tensor(), tensor(), 2.0);
        stream.launch(&Launch { kernel: Arc::new(Unbuildable(scale.kernel.clone())), ..scale })
    };
    launch(0).expect("there is nothing to write");
    launch(4).expect_err("there is, and the kernel cannot be built");
}
