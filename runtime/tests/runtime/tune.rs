//! The search with a clock of our own: what is recorded, what an interruption leaves, what a budget buys; and the model that
//! ranks configs without a device.

use crate::scale::Scale;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel, Literal};
use kiln_codegen::spec::{
    BuildRequest, Case, Configs, Cost, HostProblem, KernelDef, KernelInfo, OpError, OpInfo, OpSpec, Params, Problem,
    TensorSpec, Tolerance,
};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Axis, Config, ConfigValue, Space};
use kiln_runtime::measure::{MeasureOptions, Measurement};
use kiln_runtime::tune::records::{Records, Status};
use kiln_runtime::tune::search::{Outcome, Progress, SearchOptions, Task, search};
use kiln_runtime::tune::{Modelled, Screened};
use kiln_runtime::{Device, Error};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// `y = 2 x` with configs that are refused, that are wrong, and that change rounding (in name only).
#[derive(Debug)]
struct Wide(KernelInfo);

impl Wide {
    fn kernel() -> Arc<dyn KernelDef> {
        Arc::new(Wide(KernelInfo { name: "wide".into(), ..Scale::kernel().info().clone() }))
    }
}

fn int(config: &Config, field: &str) -> usize {
    match config.0.get(field) {
        Some(ConfigValue::Int(x)) => *x,
        other => panic!("{field} is {other:?}"),
    }
}

impl KernelDef for Wide {
    fn info(&self) -> &KernelInfo {
        &self.0
    }
    fn space(&self) -> Space {
        let axis = |name: &str, values: &[usize], numerics| Axis {
            name: name.into(),
            values: values.iter().copied().map(ConfigValue::Int).collect(),
            default: 0,
            numerics,
            doc: String::new(),
        };
        let axes = vec![
            axis("block", &[256, 64, 128, 512], false),
            axis("step", &[1, 2], false),
            axis("round", &[0, 1], true),
        ];
        Space { name: "WideCfg".into(), axes }
    }
    fn require(&self, _: &BTreeMap<String, usize>, config: &Config) -> Result<(), Vec<String>> {
        if int(config, "block") == 512 { Err(vec!["block < 512".into()]) } else { Ok(()) }
    }
    fn build(&self, request: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        let block = ConfigValue::Int(int(&request.config, "block"));
        let config = Config(BTreeMap::from([("block".to_string(), block)]));
        Scale::with_step(int(&request.config, "step") as i64).build(&BuildRequest { config, ..request.clone() })
    }
}

#[derive(Debug)]
struct WideOp;

impl OpSpec for WideOp {
    fn info(&self) -> OpInfo {
        OpInfo { name: "wide", bench_name: None, family: "test", formula: "y = 2 x", source: "none" }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![Wide::kernel()]
    }
    fn outputs(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(vec![TensorSpec { name: "y".into(), ..inputs["x"].clone() }])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (x, y) = (problem.tensors["x"].clone(), problem.tensors["y"].clone());
        let dims = BTreeMap::from([("n".to_string(), x.shape[0])]);
        let kernel = Wide::kernel();
        let config = configs.choose(&*kernel, &dims);
        let args = vec![Arg::Tensor(x), Arg::Tensor(y), Arg::Scalar(Literal::f32(2.0))];
        Ok(Plan { steps: vec![Launch { kernel, config, args }], workspaces: vec![] })
    }
    fn reference(&self, _: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        Ok(BTreeMap::new())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        vec![]
    }
    fn cost(&self, _: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        Cost::default()
    }
}

/// A bench: a device, a folder, and a clock that notes what it timed.
struct Bench {
    cpu: Device,
    records: Records,
    timed: Mutex<Vec<String>>,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        Bench {
            cpu: kiln_runtime::open("cpu").expect("always there"),
            records: Records::new(dir.path().join("tune")),
            timed: Mutex::default(),
            _dir: dir,
        }
    }

    /// Larger blocks are faster, the other rounding too; blocks of 64 break the clock.
    fn time(&self, plans: &[Plan]) -> Result<Measurement, Error> {
        let config = &plans[0].steps[0].config;
        self.timed.lock().expect("no panic in here").push(config.to_string());
        if int(config, "block") == 64 {
            return Err(Error::Driver {
                device: "cpu".into(),
                call: "timing".into(),
                cause: "the clock is broken".into(),
            });
        }
        let median_us = 1e4 / (int(config, "block") + int(config, "round")) as f64;
        let (min_us, p95_us) = (median_us, median_us);
        Ok(Measurement { median_us, min_us, p95_us, calls: 1, sets: 1, timer: "wall", mode: "burst" })
    }

    fn search(&self, options: &SearchOptions, progress: &mut dyn FnMut(Progress)) -> Result<Outcome, Error> {
        let mut problem = Problem::default();
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i) / 8.0).collect();
        let x = HostTensor::from_f64(DType::F32, &[1000], &values);
        problem.tensors.insert("x".into(), self.cpu.upload(&x).expect("fits"));
        problem.tensors.insert("y".into(), self.cpu.zeros(DType::F32, &[1000]).expect("fits"));
        let task = Task {
            op: Arc::new(WideOp),
            kernel: Wide::kernel(),
            problems: vec![problem],
            outputs: vec!["y".into()],
            specified: BTreeMap::new(),
            compare: &|_, want, got| if want == got { Ok(()) } else { Err("too far away".into()) },
            timer: &|_: &Device, plans: &[Plan], _: &MeasureOptions| self.time(plans),
        };
        search(&self.cpu, &task, options, &self.records, progress)
    }

    fn timed(&self) -> Vec<String> {
        std::mem::take(&mut *self.timed.lock().expect("no panic in here"))
    }

    /// The journal's text.
    fn journal(&self) -> String {
        let all = self.records.list();
        assert_eq!(all.len(), 1, "one key");
        std::fs::read_to_string(&all[0].0).expect("readable")
    }

    /// Searches until `n` candidates are done, as far as Ctrl-C allows.
    fn interrupt(&self, options: &SearchOptions, n: usize) {
        let mut seen = 0;
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            self.search(options, &mut |_| {
                seen += 1;
                assert!(seen < n, "interrupted here");
            })
        }));
        assert!(stopped.is_err(), "the search ended before it was interrupted");
    }
}

fn resume() -> SearchOptions {
    SearchOptions { resume: true, ..SearchOptions::default() }
}

#[test]
fn every_outcome_is_recorded() {
    let bench = Bench::new();
    let mut lines = vec![];
    let outcome = bench
        .search(&SearchOptions::default(), &mut |p| {
            assert!(!p.known && p.total == 16);
            lines.push((p.done, p.remaining.is_some()));
        })
        .expect("the default works");
    assert_eq!(lines.iter().map(|l| l.0).collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
    assert!(lines.iter().all(|l| l.1), "after the default there is something to go by");
    assert_eq!(outcome.best.to_string(), "block=256,round=1,step=1");
    assert!((outcome.best_us - 1e4 / 257.0).abs() < 1e-9);
    let of = |config: &str| {
        let r = outcome.records.iter().find(|r| r.config.to_string() == config);
        r.unwrap_or_else(|| panic!("no record of {config}")).status.clone()
    };
    let reason = |config: &str| match of(config) {
        Status::Failed(why) => format!("failed: {why}"),
        Status::Refused(why) => format!("refused: {why}"),
        Status::Ok(m) => format!("{m:?}"),
    };
    assert!(matches!(of("block=128,round=0,step=1"), Status::Ok(_)));
    assert!(reason("block=512,round=0,step=1").starts_with("refused: cannot launch `wide`: expected block < 512"));
    assert!(reason("block=64,round=0,step=1").contains("the clock is broken"));
    assert_eq!(
        reason("block=128,round=0,step=2"),
        "failed: `y` differs from the default config's at element 1 although no field that changes rounding does"
    );
    assert_eq!(reason("block=128,round=1,step=2"), "failed: `y`: too far away");
    assert!(!bench.timed().iter().any(|c| c.ends_with("step=2")), "what is wrong is not timed");
    assert!(bench.journal().contains("\"complete\":true"), "{}", bench.journal());
}

#[test]
fn reproducible_keeps_the_rounding() {
    let bench = Bench::new();
    let options = SearchOptions { reproducible: true, ..SearchOptions::default() };
    let outcome = bench.search(&options, &mut |_| {}).expect("searches");
    assert_eq!(outcome.records.len(), 8);
    assert_eq!(outcome.best.to_string(), "block=256,round=0,step=1");
}

#[test]
fn an_interrupted_search_goes_on_where_it_was() {
    let bench = Bench::new();
    bench.interrupt(&resume(), 5);
    let before = bench.journal();
    assert_eq!(before.lines().count(), 1 + 5, "every finished candidate is there:\n{before}");
    assert!(before.contains("\"complete\":false"), "{before}");
    let first = bench.timed();

    // Interrupted again while it repeats what is known: nothing is lost.
    bench.interrupt(&resume(), 1);
    assert_eq!(bench.journal().lines().count(), 1 + 5);
    assert_eq!(bench.timed(), [""; 0]);

    let mut known = 0;
    let outcome = bench.search(&resume(), &mut |p| known += usize::from(p.known)).expect("goes on");
    assert_eq!((known, outcome.records.len()), (5, 16));
    // Six can be timed at all. What the first search timed is timed again only by the turns of the fastest at the end.
    let second = bench.timed();
    let rest: Vec<&String> = second.iter().take(6 - first.len()).collect();
    assert!(rest.iter().all(|c| !first.contains(c)), "{first:?} {second:?}");
    assert_eq!(outcome.best.to_string(), "block=256,round=1,step=1");
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
}

#[test]
fn a_damaged_journal_costs_what_is_damaged() {
    let bench = Bench::new();
    bench.interrupt(&resume(), 5);
    let path = bench.records.list()[0].0.clone();
    let text = bench.journal();
    std::fs::write(&path, &text[..text.len() - 30]).expect("writable");
    let mut known = 0;
    let outcome = bench.search(&resume(), &mut |p| known += usize::from(p.known)).expect("goes on");
    assert_eq!((known, outcome.records.len()), (4, 16));
    assert!(outcome.notes[0].contains("1 damaged lines"), "{:?}", outcome.notes);

    std::fs::write(&path, "nonsense\n").expect("writable");
    let outcome = bench.search(&resume(), &mut |p| assert!(!p.known)).expect("starts anew");
    assert_eq!(outcome.records.len(), 16);
    assert!(outcome.notes[0].contains("starts anew"), "{:?}", outcome.notes);
    // Without `resume` nobody asks what is there.
    std::fs::write(&path, "nonsense\n").expect("writable");
    let outcome = bench.search(&SearchOptions::default(), &mut |_| {}).expect("searches");
    assert!(outcome.notes.is_empty());
}

#[test]
fn a_budget_buys_the_default_and_what_follows_is_left() {
    let bench = Bench::new();
    let none = SearchOptions { budget: Some(Duration::ZERO), ..resume() };
    let outcome = bench.search(&none, &mut |_| {}).expect("the default is always measured");
    assert_eq!((outcome.records.len(), outcome.skipped), (1, 15));
    assert_eq!(outcome.best.to_string(), "block=256,round=0,step=1");
    assert!(bench.journal().contains("\"complete\":false"));
    let outcome = bench.search(&resume(), &mut |_| {}).expect("goes on");
    assert_eq!((outcome.records.len(), outcome.skipped), (16, 0));
}

#[test]
fn the_model_ranks_without_a_device() {
    let kernel = Wide::kernel();
    let dims = BTreeMap::from([("n".to_string(), 1 << 24)]);
    let model = Modelled::new(Target::Sm90a).expect("a chip");
    let ranked = model.rank(&*kernel, &dims);
    assert_eq!(ranked.len(), 12, "those with blocks of 512 are not valid");
    let times: Vec<f64> = ranked.iter().map(|(_, s)| s.us()).collect();
    assert!(times.is_sorted() && times.iter().all(|t| t.is_finite()), "{ranked:#?}");
    let Screened::Fits(Some(e)) = &ranked[0].1 else { panic!("{:?}", ranked[0]) };
    assert_eq!((e.bound, e.memory_bytes), ("memory", 8.0 * f64::from(1 << 24)));
    // All move the same bytes: no reason to leave the default.
    assert_eq!(model.choose(&*kernel, &dims), kernel.space().default_config());
    let e = Modelled::new(Target::Vm).expect_err("no chip");
    assert_eq!(e.exit_code(), 2);
}

#[test]
fn what_cannot_run_is_not_compiled() {
    let x = |n: usize| {
        let cpu = kiln_runtime::open("cpu").expect("always there");
        let view: TensorView = cpu.zeros(DType::F32, &[n]).expect("fits");
        view
    };
    let kernel = Wide::kernel();
    let config = kernel.space().default_config();
    let screen = |y: usize| {
        let args = [Arg::Tensor(x(64)), Arg::Tensor(x(y)), Arg::Scalar(Literal::f32(1.0))];
        kiln_runtime::tune::model::screen(&*kernel, &config, &args, Target::Sm80)
    };
    assert!(matches!(screen(64), Screened::Fits(Some(_))));
    let Screened::Refused(why) = screen(65) else { panic!("extents differ") };
    assert!(why.contains("expected axis 0 of extent `n` = 64, got 65"), "{why}");
}
