//! `kiln tune`: searches the config spaces of an operator's kernels on a device, and keeps records of every candidate.
//!
//! Searching and records are `runtime::tune`'s; this file makes problems, rows, and moves record files.

use crate::catalog::{self, Selection};
use crate::device::{self, DeviceArgs};
use crate::duration;
use crate::failure::Failure;
use crate::files;
use crate::instance;
use crate::output::{Output, Table, json_number, left};
use crate::runner;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Case, DefaultConfigs, KernelDef, OpSpec};
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use kiln_kernels::numeric::{self, Comparison};
use kiln_runtime::measure;
use kiln_runtime::tune::Screened;
use kiln_runtime::tune::model::Modelled;
use kiln_runtime::tune::records::{Record, Records, Status, config_hash, config_json};
use kiln_runtime::tune::search::{Progress, SearchOptions, Task, search};
use kiln_runtime::{Device, Settings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Words that are actions on records instead of names.
const ACTIONS: [&str; 4] = ["list", "export", "import", "verify"];

/// Options of `kiln tune`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Operators or kernels; all if none is named. Or an action on records: list, export FILE, import FILE, verify
    pub names: Vec<String>,
    /// Device
    #[command(flatten)]
    pub device: DeviceArgs,
    /// A shape to tune for, as in `tokens=4096,hidden=7168`; may be repeated
    #[arg(long, value_name = "K=V,..")]
    pub shape: Vec<String>,
    /// Start no further candidate after this time: 30s, 10m, 1h
    #[arg(long, value_name = "TIME")]
    pub budget: Option<String>,
    /// Take over what an earlier search has measured
    #[arg(long)]
    pub resume: bool,
    /// Leave fields that change rounding at their defaults
    #[arg(long)]
    pub reproducible: bool,
    /// Of `export`: of each record the fastest config only
    #[arg(long)]
    pub best: bool,
    /// Measure nothing: rank configs for a target by a model of its chip (sm_80, sm_90a, sm_100a)
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["device", "budget", "resume"])]
    pub estimate: Option<String>,
}

/// Searches, or works on records.
///
/// # Errors
/// Unknown names or keys, a missing device, a default config that does not work.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let records = Records::new(Settings::from_env().tune_dir);
    if let Some(action) = args.names.first().filter(|n| ACTIONS.contains(&n.as_str())) {
        return match (action.as_str(), args.names.get(1)) {
            ("export", Some(file)) => export(&records, Path::new(file), args.best, out),
            ("import", Some(file)) => import(Path::new(file), out),
            ("export" | "import", None) => {
                Err(Failure::usage(format!("tune {action}"), "a file", "none", &format!("kiln tune {action} FILE")))
            }
            ("verify", _) => verify(ops, &records, out),
            _ => list(&records, out),
        };
    }
    if let Some(target) = &args.estimate {
        return estimate(ops, args, target, out);
    }
    let options = SearchOptions {
        budget: args.budget.as_deref().map(|t| duration::parse("--budget", t)).transpose()?,
        reproducible: args.reproducible,
        resume: args.resume,
        ..SearchOptions::default()
    };
    let selections = catalog::select(ops, &args.names)?;
    let device = device::open(&args.device, false)?;
    let mut table = out.table("tune", &["kernel", "shape", "config", "status", "median_us", "reason"]);
    let mut notes = vec![];
    for s in &selections {
        for case in problems(s, args, device.target())? {
            for kernel in kernels(s, &case)? {
                let note = tune(s, &case, &kernel, &device, &options, &records, out, &mut table)?;
                notes.extend(note);
            }
        }
    }
    table.finish()?;
    notes.iter().try_for_each(|n| out.note(n))
}

/// Ranks configs for a target without running anything.
fn estimate(ops: &[Arc<dyn OpSpec>], args: &Args, target: &str, out: Output) -> Result<(), Failure> {
    let known = Target::parse(target).ok_or_else(|| {
        Failure::usage("--estimate", "sm_80, sm_90a or sm_100a", format!("`{target}`"), "write --estimate sm_90a")
    })?;
    let model = Modelled::new(known)?;
    let mut table = out.table("tune", &["kernel", "shape", "config", "status", "median_us", "bound", "reason"]);
    for s in &catalog::select(ops, &args.names)? {
        for case in problems(s, args, known)? {
            let plan = instance::plan(s.op.as_ref(), &instance::input_specs(&case), &case.params, &DefaultConfigs)
                .map_err(|e| Failure::Failed(e.to_string()))?;
            let mut seen: Vec<String> = vec![];
            for step in plan.steps {
                let name = step.kernel.info().name.clone();
                if !s.has(&name) || seen.contains(&name) {
                    continue;
                }
                let dims = kiln_codegen::bind::bind(step.kernel.as_ref(), &step.config, &step.args)
                    .map_err(|e| Failure::Failed(e.to_string()))?
                    .dims;
                for (config, screened) in model.rank(step.kernel.as_ref(), &dims) {
                    table.row(estimate_row(&name, &case, &config, &screened))?;
                }
                seen.push(name);
            }
        }
    }
    table.finish()?;
    out.note("times are calculated, not measured: they rank the configs of one kernel and shape, best first")
}

fn estimate_row(kernel: &str, case: &Case, config: &Config, screened: &Screened) -> Value {
    let (status, us, bound, reason) = match screened {
        Screened::Refused(why) => ("refused", Value::Null, Value::Null, why.as_str()),
        Screened::Fits(None) => ("refused", Value::Null, Value::Null, "no block of it is resident"),
        Screened::Fits(Some(e)) => ("estimated", json_number(e.us), Value::from(e.bound), ""),
    };
    json!({
        "kernel": kernel, "shape": { "case": case.id }, "config": config_json(config), "median_us": us, "status": status,
        "bound": bound, "reason": reason,
    })
}

/// What is tuned for: the shapes given; on a GPU the bench shapes; else the largest declared case.
fn problems(s: &Selection, args: &Args, target: Target) -> Result<Vec<Case>, Failure> {
    let op = s.op.as_ref();
    if !args.shape.is_empty() {
        return args.shape.iter().map(|t| instance::bench_case(op, &catalog::shape(op, t)?)).collect();
    }
    let shapes = op.bench_shapes();
    if target.caps().is_some() && !shapes.is_empty() {
        return shapes.iter().map(|shape| instance::bench_case(op, shape)).collect();
    }
    let size = |c: &Case| c.inputs.iter().map(|i| i.tensor.shape.iter().product::<usize>()).sum::<usize>();
    Ok(op.cases().into_iter().max_by_key(size).into_iter().collect())
}

/// The selected kernels that the operator launches for a case, each once.
fn kernels(s: &Selection, case: &Case) -> Result<Vec<Arc<dyn KernelDef>>, Failure> {
    let plan = instance::plan(s.op.as_ref(), &instance::input_specs(case), &case.params, &DefaultConfigs)
        .map_err(|e| Failure::Failed(e.to_string()))?;
    let mut out: Vec<Arc<dyn KernelDef>> = vec![];
    for step in plan.steps {
        let seen = out.iter().any(|k| k.info() == step.kernel.info());
        if !seen && s.has(&step.kernel.info().name) {
            out.push(step.kernel);
        }
    }
    Ok(out)
}

/// One search; returns notes for people.
#[allow(clippy::too_many_arguments, reason = "one call from one place; a struct would only rename them")]
fn tune(
    s: &Selection,
    case: &Case,
    kernel: &Arc<dyn KernelDef>,
    device: &Device,
    options: &SearchOptions,
    records: &Records,
    out: Output,
    table: &mut Table,
) -> Result<Vec<String>, Failure> {
    let op = s.op.as_ref();
    let info = op.info();
    let name = kernel.info().name.clone();
    let bytes = op.cost(&instance::input_specs(case), &case.params).bytes;
    let sets = if device.target().caps().is_some() { measure::sets_for(bytes as usize) } else { 1 };
    let mut problems = vec![];
    let (mut outputs, mut first) = (vec![], BTreeMap::new());
    for set in 0..sets {
        let inputs = runner::filled(op, &format!("{}/{set}", info.name), case).map_err(Failure::Failed)?;
        let (problem, names) = runner::place(device, op, &inputs, &case.params).map_err(Failure::Failed)?;
        problems.push(problem);
        outputs = names;
        if set == 0 {
            first = inputs;
        }
    }
    let mut specified = BTreeMap::new();
    for output in op.outputs(&instance::input_specs(case), &case.params).map_err(|e| Failure::Failed(e.to_string()))? {
        let metric = op.tolerance(&output.name, &case.params).into();
        let comparison = Comparison { case: &first, got: &BTreeMap::new(), params: &case.params };
        if let Some(rows) = numeric::specified_rows(&metric, &output.shape, &comparison).map_err(Failure::Failed)? {
            specified.insert(output.name, rows);
        }
    }
    let compare = |output: &str, want: &HostTensor, got: &HostTensor| -> Result<(), String> {
        let one = |t: &HostTensor| BTreeMap::from([(output.to_string(), t.clone())]);
        let (case_tensors, got) = (first.clone().into_iter().chain(one(want)).collect(), one(got));
        let comparison = Comparison { case: &case_tensors, got: &got, params: &case.params };
        let verdict = numeric::judge(output, &op.tolerance(output, &case.params).into(), &comparison);
        if verdict.ok { Ok(()) } else { Err(verdict.reason) }
    };
    let task = Task {
        op: s.op.clone(),
        kernel: kernel.clone(),
        problems,
        outputs,
        specified,
        compare: &compare,
        timer: &measure::time,
    };
    let shape = json!({ "case": case.id });
    let mut failure = None;
    let outcome = search(device, &task, options, records, &mut |p: Progress| {
        out.progress(&progress_line(&name, &p));
        if failure.is_none() {
            failure = table.row(row(&name, &shape, p.record)).err();
        }
    })?;
    if let Some(e) = failure {
        return Err(e);
    }
    table.row(json!({
        "kernel": name, "shape": shape, "config": config_json(&outcome.best), "median_us": json_number(outcome.best_us),
        "status": "best", "reason": format!("of {} candidates", outcome.records.len()), "device": device.name(),
    }))?;
    let skipped = outcome.skipped;
    let unreached = format!("{skipped} candidates were not reached; --resume goes on from here");
    let notes = outcome.notes.into_iter().chain((skipped > 0).then_some(unreached));
    Ok(notes.map(|n| format!("{name}: {n}")).collect())
}

/// `kernel [#####-----] 12/24, 1 min 20 s left, rows=4`.
fn progress_line(kernel: &str, p: &Progress) -> String {
    const WIDTH: usize = 20;
    let filled = (p.done * WIDTH).checked_div(p.total).unwrap_or(WIDTH).min(WIDTH);
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(WIDTH - filled));
    let left = p.remaining.map_or(String::new(), |t| format!(", {}", left(t.as_secs())));
    format!("{kernel} [{bar}] {}/{}{left}, {}", p.done, p.total, p.record.config)
}

fn row(kernel: &str, shape: &Value, r: &Record) -> Value {
    let (status, median, reason) = match &r.status {
        Status::Ok(m) => ("ok", json_number(m.median_us), ""),
        Status::Refused(why) => ("refused", Value::Null, why.as_str()),
        Status::Failed(why) => ("fail", Value::Null, why.as_str()),
    };
    json!({
        "kernel": kernel, "shape": shape, "config": config_json(&r.config), "median_us": median, "status": status,
        "reason": reason,
    })
}

/// Fields of a record's key as sizes.
fn sizes(key: &Value) -> BTreeMap<String, usize> {
    let of = |field: &str| key[field].as_object().cloned().unwrap_or_default();
    let all: Map<String, Value> = of("fixed").into_iter().chain(of("bucket")).collect();
    all.into_iter().filter_map(|(k, v)| Some((k, v.as_u64()? as usize))).collect()
}

fn record_row(path: &Path, key: &Value, status: &str, reason: &str) -> Value {
    json!({
        "kernel": key["kernel"], "shape": sizes(key), "status": status, "target": key["target"],
        "device": key["device"], "compiler": key["compiler"], "reason": reason,
        "file": path.file_name().map(|n| n.to_string_lossy().into_owned()),
    })
}

const RECORD_COLUMNS: &[&str] = &["kernel", "shape", "status", "device", "compiler", "reason", "file"];

fn list(records: &Records, out: Output) -> Result<(), Failure> {
    let mut table = out.table("tune", RECORD_COLUMNS);
    let all = records.list();
    for (path, key) in &all {
        table.row(record_row(path, key, "ok", ""))?;
    }
    table.finish()?;
    out.note(&format!("{} records", all.len()))
}

/// Whether each record still belongs to a kernel of this build.
fn verify(ops: &[Arc<dyn OpSpec>], records: &Records, out: Output) -> Result<(), Failure> {
    let mut table = out.table("tune", RECORD_COLUMNS);
    let mut stale = 0;
    for (path, key) in records.list() {
        let dtypes = |k: &Arc<dyn KernelDef>| -> Value {
            k.info().dtypes.iter().map(|(n, d)| (n.clone(), Value::from(d.name()))).collect::<Map<_, _>>().into()
        };
        let named = |k: &Arc<dyn KernelDef>| key["kernel"] == k.info().name.as_str() && key["dtypes"] == dtypes(k);
        let kernel = ops.iter().flat_map(|o| o.kernels()).find(named);
        let (status, reason) = match kernel {
            None => ("fail", "no kernel of this name and these dtypes in this build"),
            Some(k) => {
                let default: Config = k.space().default_config();
                if key["kernel_hash"] == config_hash(k.as_ref(), &sizes(&key), &default).as_str() {
                    ("ok", "")
                } else {
                    ("fail", "the kernel has changed since; tune again")
                }
            }
        };
        stale += usize::from(status == "fail");
        table.row(record_row(&path, &key, status, reason))?;
    }
    table.finish()?;
    if stale > 0 {
        return Err(Failure::Failed(format!("{stale} records do not fit this build")));
    }
    out.note("all records fit this build")
}

/// All record files as JSON lines in one file.
fn export(records: &Records, file: &Path, best: bool, out: Output) -> Result<(), Failure> {
    let mut text = String::new();
    let all = records.list();
    for (path, _) in &all {
        let content = std::fs::read_to_string(path)
            .map_err(|e| Failure::environment(path.display(), "a readable record", e, "check its permissions"))?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut lines: Vec<&str> = content.lines().collect();
        if best {
            let median = |line: &&str| serde_json::from_str::<Value>(line).ok().and_then(|r| r["median_us"].as_f64());
            let fastest = lines.iter().skip(1).filter(|l| median(l).is_some());
            let fastest =
                fastest.min_by(|a, b| median(a).unwrap_or(f64::MAX).total_cmp(&median(b).unwrap_or(f64::MAX)));
            let Some(&fastest) = fastest else { continue };
            lines = vec![lines[0], fastest];
        }
        text += &format!("{}\n", json!({"v": 1, "file": name, "lines": lines}));
    }
    files::write_atomic(file, text.as_bytes())?;
    out.note(&format!("wrote {} records to {}", text.lines().count(), file.display()))
}

/// Puts the records of an exported file into this machine's folder. They are used only where their whole key fits.
fn import(file: &Path, out: Output) -> Result<(), Failure> {
    let wrong = |line: usize, got: String| {
        Failure::usage(
            format!("{}:{line}", file.display()),
            "a line that `kiln tune export` wrote",
            got,
            "export again; nothing was imported",
        )
    };
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::usage(file.display(), "a readable file", e, "give the file `kiln tune export` wrote"))?;
    let mut found: Vec<(String, String)> = vec![];
    for (i, line) in text.lines().enumerate() {
        let json: Value = serde_json::from_str(line).map_err(|e| wrong(i + 1, e.to_string()))?;
        let name = json["file"].as_str().unwrap_or_default();
        let plain = name.ends_with(".jsonl") && Path::new(name).components().count() == 1;
        let lines: Option<Vec<&str>> = json["lines"].as_array().and_then(|l| l.iter().map(Value::as_str).collect());
        let header = |l: &Vec<&str>| {
            l.first()
                .is_some_and(|h| serde_json::from_str::<Value>(h).is_ok_and(|h| h["v"] == 1 && h["key"].is_object()))
        };
        match lines.filter(|l| plain && header(l)) {
            Some(lines) => found.push((name.into(), lines.join("\n") + "\n")),
            None => return Err(wrong(i + 1, line.chars().take(60).collect())),
        }
    }
    let dir = Settings::from_env().tune_dir;
    std::fs::create_dir_all(&dir)
        .map_err(|e| Failure::environment(dir.display(), "a folder for records", e, "set KILN_TUNE_DIR"))?;
    for (name, text) in &found {
        files::write_atomic(&dir.join(name), text.as_bytes())?;
    }
    out.note(&format!("imported {} records to {}", found.len(), dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn progress_has_a_bar_and_the_time_left() {
        let record = Record { config: Config::default(), hash: String::new(), status: Status::Refused(String::new()) };
        let line = |done, seconds: Option<u64>| {
            let remaining = seconds.map(Duration::from_secs);
            progress_line("k", &Progress { record: &record, known: false, done, total: 4, remaining })
        };
        assert_eq!(line(0, None), "k [--------------------] 0/4, ");
        assert_eq!(line(1, Some(9)), "k [#####---------------] 1/4, 9 s left, ");
        assert_eq!(line(4, Some(130)), "k [####################] 4/4, 3 min left, ");
        assert!(line(2, Some(9000)).contains("2.5 h left"));
    }
}
