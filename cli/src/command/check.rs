//! `kiln check`: compiles every declared instance for every target, without any device.

use crate::catalog::{self, Selection};
use crate::failure::Failure;
use crate::instance::{self, Fixed, InstanceArgs, Step};
use crate::machine_code;
use crate::output::Output;
use clap::ValueEnum;
use kiln_codegen::compile as front;
use kiln_codegen::spec::{Case, Configs, OpSpec};
use kiln_codegen::target::Target;
use kiln_runtime::Error;
use kiln_runtime::compile::{self, Toolchain};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Compilations at the same time; the compiler is bound by memory traffic beyond that.
const THREADS: usize = 2;

/// Options of `kiln check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Operators or kernels; all if none is named
    pub names: Vec<String>,
    /// All operators
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Target, may be repeated; all if none is named
    #[arg(long, value_name = "T")]
    pub target: Vec<String>,
    /// Which configurations
    #[arg(long, value_enum, default_value_t = ConfigSet::Default, conflicts_with = "config")]
    pub configs: ConfigSet,
    /// Which instances
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// Which configurations are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConfigSet {
    /// The default one
    Default,
    /// The whole space of each kernel
    All,
}

/// A build to compile, or a row that is decided already.
#[derive(Clone, Debug)]
struct Job {
    kernel: String,
    instance: String,
    config: String,
    target: Target,
    build: Result<Step, String>,
    /// Status of a build that no target takes: the default must work, another point of the space may be refused.
    refused_as: &'static str,
}

/// Compiles, one row a build.
///
/// # Errors
/// Unknown names; a build that failed; no compiler for a target that was asked for.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let targets = catalog::targets(&args.target)?;
    let selections = args.instance.declaring(catalog::select(ops, &args.names)?)?;
    let mut jobs = vec![];
    for s in &selections {
        collect(s, args, &targets, &mut jobs)?;
    }
    let toolchain = if targets.iter().any(|t| t.caps().is_some()) {
        machine_code::toolchain()?
    } else {
        Err("no target asked for needs it".into())
    };
    let columns = &[
        "kernel",
        "instance",
        "config",
        "target",
        "status",
        "registers",
        "spill_bytes",
        "shared_bytes",
        "code_bytes",
        "compile_ms",
        "cached",
        "schedule",
        "messages",
    ];
    let mut table = out.table("check", columns);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let start = Instant::now();
    in_order(&jobs, &toolchain, out.json, |i, row| {
        out.progress(&format!("{}/{} {}", i + 1, jobs.len(), row["kernel"].as_str().unwrap_or_default()));
        *counts.entry(row["status"].as_str().unwrap_or_default().into()).or_default() += 1;
        table.row(row)
    })?;
    table.finish()?;
    if let Ok(toolchain) = &toolchain {
        machine_code::warn(toolchain);
    }
    let count = |s: &str| counts.get(s).copied().unwrap_or(0);
    let summary = format!(
        "{} ok, {} refused, {} failed, {} skipped in {:.1} s",
        count("ok"),
        count("refused"),
        count("fail"),
        count("skip"),
        start.elapsed().as_secs_f64()
    );
    if count("fail") > 0 {
        return Err(Failure::Failed(summary));
    }
    if let (Err(why), true) = (&toolchain, count("skip") > 0) {
        if !args.target.is_empty() {
            return Err(Failure::Environment(format!("{summary}\n{why}")));
        }
        out.note(&format!("skipped because: {why}"))?;
    }
    out.note(&summary)
}

/// The builds of one operator: each distinct one once, named after the first case that needs it.
fn collect(s: &Selection, args: &Args, targets: &[Target], jobs: &mut Vec<Job>) -> Result<(), Failure> {
    let overrides = args.instance.configs(s)?;
    let cases = args.instance.cases(s.op.as_ref())?;
    let mut seen = BTreeSet::new();
    match args.configs {
        ConfigSet::Default => {
            for case in &cases {
                add(s, case, &overrides, "fail", targets, &mut seen, jobs);
            }
        }
        ConfigSet::All => {
            let mut spaces = BTreeMap::new();
            for k in s.op.kernels().into_iter().filter(|k| s.has(&k.info().name)) {
                spaces.entry(k.info().name.clone()).or_insert(k.space());
            }
            for (kernel, space) in spaces {
                for (i, config) in space.all().into_iter().enumerate() {
                    let status = if i == 0 { "fail" } else { "refused" };
                    for case in &cases {
                        let fixed = Fixed { kernel: kernel.clone(), config: config.clone() };
                        add(s, case, &fixed, status, targets, &mut seen, jobs);
                    }
                }
            }
        }
    }
    Ok(())
}

fn add(
    s: &Selection,
    case: &Case,
    configs: &dyn Configs,
    refused_as: &'static str,
    targets: &[Target],
    seen: &mut BTreeSet<String>,
    jobs: &mut Vec<Job>,
) {
    let op = s.op.as_ref();
    let steps = instance::plan(op, &instance::input_specs(case), &case.params, configs)
        .map_err(|e| e.to_string())
        .and_then(|plan| instance::steps(&plan, s));
    match steps {
        Err(why) => {
            if seen.insert(format!("{} {why}", case.id)) {
                jobs.extend(targets.iter().map(|&target| Job {
                    kernel: s.kernel.clone().unwrap_or_else(|| op.info().name.into()),
                    instance: case.id.clone(),
                    config: String::new(),
                    target,
                    build: Err(why.clone()),
                    refused_as,
                }));
            }
        }
        Ok(steps) => {
            for step in steps {
                if seen.insert(step.key()) {
                    jobs.extend(targets.iter().map(|&target| Job {
                        kernel: step.title(),
                        instance: case.id.clone(),
                        config: step.request.config.to_string(),
                        target,
                        build: Ok(step.clone()),
                        refused_as,
                    }));
                }
            }
        }
    }
}

/// Works on the jobs with a few threads and hands over the rows in the order of the jobs.
fn in_order(
    jobs: &[Job],
    toolchain: &Result<Arc<Toolchain>, String>,
    count: bool,
    mut each: impl FnMut(usize, Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let send = send.clone();
            let next = &next;
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    // The receiver goes away when the output is closed; nothing is left to do then.
                    if i >= jobs.len() || send.send((i, row(&jobs[i], toolchain, count))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut waiting = BTreeMap::new();
        let mut at = 0;
        for (i, row) in receive {
            waiting.insert(i, row);
            while let Some(row) = waiting.remove(&at) {
                if let Err(e) = each(at, row) {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return Err(e);
                }
                at += 1;
            }
        }
        Ok(())
    })
}

/// The row of a build; `count` also counts instructions, which takes as long as compiling and which no table shows.
fn row(job: &Job, toolchain: &Result<Arc<Toolchain>, String>, count: bool) -> Value {
    let mut row = json!({
        "kernel": job.kernel, "instance": job.instance, "config": job.config, "target": job.target.name(),
        "status": "ok", "registers": null, "spill_bytes": null, "stack_bytes": null, "shared_bytes": null,
        "compile_ms": null, "code_bytes": null, "instructions": {}, "cached": null, "schedule": null, "messages": [],
    });
    let mut end = |status: &str, messages: Vec<String>| {
        row["status"] = status.into();
        row["messages"] = messages.into();
        row.clone()
    };
    let step = match &job.build {
        Ok(step) => step,
        Err(why) => return end(job.refused_as, vec![why.clone()]),
    };
    let start = Instant::now();
    if job.target.npu().is_some() {
        // The vendor's compiler is not looked for: the text is made, which is where a kernel that does not fit is refused.
        let built = match front::build(step.kernel.as_ref(), &step.request) {
            Ok(built) => built,
            Err(list) => return end(job.refused_as, vec![crate::diagnostics::render(&list)]),
        };
        return match front::source(&built, job.target) {
            Ok(_) => {
                row["compile_ms"] = json!((start.elapsed().as_secs_f64() * 1e4).round() / 10.0);
                row
            }
            Err(list) => end("refused", vec![crate::diagnostics::render(&list)]),
        };
    }
    if job.target.caps().is_none() {
        let built = front::build(step.kernel.as_ref(), &step.request);
        return match built {
            Ok(built) => {
                let warnings = built.facts.warnings.iter().map(crate::diagnostics::headline).collect();
                row["compile_ms"] = json!((start.elapsed().as_secs_f64() * 1e4).round() / 10.0);
                row["messages"] = Value::Array(Vec::into_iter(warnings).map(|w: String| w.into()).collect());
                row
            }
            Err(list) => end(job.refused_as, vec![crate::diagnostics::render(&list)]),
        };
    }
    // The front end's part takes milliseconds, and says what a compiled kernel no longer does.
    let mut warnings = vec![];
    if let Ok(lowered) =
        front::build(step.kernel.as_ref(), &step.request).and_then(|built| front::source(&built, job.target))
    {
        let rejected = lowered.facts.warnings.iter().filter(|w| w.code == "V0550");
        warnings = rejected.map(crate::diagnostics::headline).collect();
        let text = match &lowered.schedule {
            Ok(s) => s.roles.iter().map(|r| r.name.as_str()).collect::<Vec<_>>().join(" + "),
            Err(reason) => format!("portable: {reason}"),
        };
        row["schedule"] = text.into();
        row["messages"] = json!(warnings);
    }
    let end = |mut row: Value, status: &str, messages: Vec<String>| {
        row["status"] = status.into();
        row["messages"] = warnings.iter().cloned().chain(messages).collect::<Vec<_>>().into();
        row
    };
    let toolchain = match toolchain {
        Ok(t) => t,
        Err(_) => return end(row, "skip", vec!["no CUDA compiler".into()]),
    };
    match compile::compile(step.kernel.as_ref(), &step.request, job.target, toolchain) {
        Err(e) => {
            let status = match &e {
                Error::Refused { target: None, .. } => job.refused_as,
                e if e.is_refusal() => "refused",
                _ => "fail",
            };
            end(row, status, vec![e.to_string()])
        }
        Ok(compiled) => {
            let r = &compiled.report;
            let missed = r.missed();
            // Counts need the disassembler; without it the field stays empty.
            let instructions = if count { toolchain.instructions(&compiled.image).ok().flatten() } else { None };
            row["registers"] = r.registers.into();
            row["spill_bytes"] = r.spill_bytes.into();
            row["stack_bytes"] = r.stack_bytes.into();
            row["shared_bytes"] = r.shared_bytes.into();
            row["compile_ms"] = json!((r.compile_ms * 10.0).round() / 10.0);
            row["code_bytes"] = r.code_bytes.into();
            row["cached"] = r.cached.into();
            row["instructions"] = json!(instructions.unwrap_or_default());
            if !missed.is_empty() {
                return end(row, "fail", missed.iter().map(ToString::to_string).collect());
            }
            row
        }
    }
}
