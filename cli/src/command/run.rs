//! `kiln run`: cases on a device, compared with golden outputs or with the operator's reference.

use crate::cases;
use crate::catalog::{self, Selection};
use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::instance::{self, Chosen, InstanceArgs, Overrides};
use crate::output::{Output, json_number};
use crate::runner::{self, Ready, Stop};
use kiln_codegen::spec::OpSpec;
use kiln_runtime::Device;
use kiln_runtime::tune::records::Tuned;
use regex::Regex;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `kiln run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Operators or kernels; all if none is named
    pub names: Vec<String>,
    /// All operators
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Device
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Folder of golden cases (manifest.json); without it the declared cases run against their references
    #[arg(long, value_name = "DIR")]
    pub cases: Option<PathBuf>,
    /// Only cases whose id matches
    #[arg(long, value_name = "REGEX")]
    pub only: Option<String>,
    /// Fail on races, out-of-bounds accesses, uninitialised reads and uncovered outputs (device cpu)
    #[arg(long)]
    pub sanitize: bool,
    /// Ignore tuning records: every kernel runs its default config
    #[arg(long)]
    pub untuned: bool,
    /// Which instances
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// A case to run, or why it is not.
struct Todo {
    op_name: String,
    id: String,
    op: Option<Arc<dyn OpSpec>>,
    configs: Overrides,
    load: Box<dyn Fn() -> Result<Ready, String>>,
}

/// Runs the cases, one row each.
///
/// # Errors
/// Unknown names, a malformed folder, a missing device; a case that failed.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let only = only(args.only.as_deref())?;
    let selections = catalog::select(ops, &args.names)?;
    let todo = match &args.cases {
        Some(folder) => golden(folder, &selections, args)?,
        None => declared(&args.instance.declaring(selections)?, args)?,
    };
    let todo: Vec<Todo> = todo.into_iter().filter(|t| only.as_ref().is_none_or(|r| r.is_match(&t.id))).collect();
    if todo.is_empty() {
        let (place, next) = match &args.cases {
            Some(folder) => {
                let place = folder.join("manifest.json").display().to_string();
                (place, "check NAME, --only and --case against the ids in the manifest")
            }
            None => ("run".to_string(), "see `kiln list --json` for cases"),
        };
        return Err(Failure::usage(place, "at least one case", "none that matches", next));
    }
    let device = device::open(&args.device, args.sanitize)?;
    let tuned = instance::tuned(&device, args.untuned);
    let columns = &["op", "case", "status", "output", "metric", "value", "limit", "ms", "record", "reason"];
    let mut table = out.table("run", columns);
    let mut counts = [0usize; 3];
    for (i, t) in todo.iter().enumerate() {
        out.progress(&format!("{}/{} {}", i + 1, todo.len(), t.id));
        let row = row(&device, t, tuned.as_ref());
        counts[match row["status"].as_str() {
            Some("ok") => 0,
            Some("fail") => 1,
            _ => 2,
        }] += 1;
        table.row(row)?;
    }
    table.finish()?;
    if let Some(text) = instance::tuning_notes(tuned.as_ref()) {
        out.note(&text)?;
    }
    let [ok, failed, skipped] = counts;
    let summary = format!("{ok} ok, {failed} failed, {skipped} skipped on {}", device.name());
    if failed > 0 {
        return Err(Failure::Failed(summary));
    }
    out.note(&summary)
}

fn only(pattern: Option<&str>) -> Result<Option<Regex>, Failure> {
    let Some(text) = pattern else {
        return Ok(None);
    };
    let compiled = Regex::new(text).map_err(|e| {
        let reason = e.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
        Failure::usage("--only", "a regular expression", format!("`{text}` ({reason})"), "quote it for the shell")
    });
    compiled.map(Some)
}

/// Every case of a folder whose operator is selected; with no names also those nobody claims, as skips.
fn golden(folder: &Path, selections: &[Selection], args: &Args) -> Result<Vec<Todo>, Failure> {
    if args.instance.shape.is_some() || !args.instance.dtype.is_empty() {
        return Err(Failure::usage(
            "--cases",
            "cases whose shapes and dtypes the folder gives",
            "--shape or --dtype with it",
            "leave them out, or leave --cases out",
        ));
    }
    let found = cases::open(folder)?;
    let mut out = vec![];
    for case in found.cases {
        let wanted = args.instance.case.as_deref();
        if wanted.is_some_and(|id| case.id != id) {
            continue;
        }
        let selection = selections.iter().find(|s| s.op.info().name == case.op);
        if selection.is_none() && !args.names.is_empty() {
            continue;
        }
        let configs = selection.map(|s| args.instance.configs(s)).transpose()?.unwrap_or_default();
        let folder = found.path.clone();
        out.push(Todo {
            op_name: case.op.clone(),
            id: case.id.clone(),
            op: selection.map(|s| s.op.clone()),
            configs,
            load: Box::new(move || runner::golden(&folder, &case)),
        });
    }
    Ok(out)
}

/// The declared cases of the selected operators.
fn declared(selections: &[Selection], args: &Args) -> Result<Vec<Todo>, Failure> {
    let mut out = vec![];
    for s in selections {
        let configs = args.instance.configs(s)?;
        for case in args.instance.cases(s.op.as_ref())? {
            let op = s.op.clone();
            let name = s.op.info().name;
            out.push(Todo {
                op_name: name.into(),
                id: format!("{name}.{}", case.id),
                op: Some(s.op.clone()),
                configs: configs.clone(),
                load: Box::new(move || runner::declared(op.as_ref(), &case)),
            });
        }
    }
    Ok(out)
}

fn row(device: &Device, t: &Todo, tuned: Option<&Tuned>) -> Value {
    let configs = Chosen { overrides: &t.configs, tuned };
    let base = |status: &str, reason: &str| {
        json!({
            "op": t.op_name, "case": t.id, "device": device.name(), "status": status, "output": null, "metric": null,
            "value": null, "limit": null, "reason": reason, "ms": null, "messages": [], "record": "",
        })
    };
    let Some(op) = &t.op else {
        return base("skip", &format!("no operator `{}` in this build", t.op_name));
    };
    let ran = (t.load)().map_err(Stop::Failed).and_then(|ready| ready.run(device, op.as_ref(), &configs));
    let (outcome, judged) = match ran {
        Ok(x) => x,
        Err(Stop::Failed(reason)) => return base("fail", &reason),
        Err(Stop::NoForm(reason)) => return base("skip", &reason),
    };
    if device.name() == "null" {
        return base("skip", "the launch checks pass; the device `null` computes nothing");
    }
    let Some(judged) = judged else {
        return base("fail", "the case expects no output");
    };
    let v = &judged.verdict;
    let mut row = base(if v.ok { "ok" } else { "fail" }, &v.reason);
    row["output"] = judged.output.into();
    row["metric"] = v.metric.into();
    row["value"] = json_number(v.value);
    row["limit"] = json_number(v.limit);
    row["ms"] = json_number((outcome.ms * 1e3).round() / 1e3);
    row["record"] = configs.record().into();
    row["messages"] = outcome.messages.into();
    row
}
