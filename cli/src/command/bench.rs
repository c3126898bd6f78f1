//! `kiln bench`: the time of an operator on a device, beside the time its bytes would take at the copy rate.
//!
//! Method: `runtime::measure` (rotating inputs, one captured graph, median of replays). Correctness comes first: the
//! output of the measured problem is judged before it is timed, whole or a sample of it (`crate::sample`).

use crate::device::{self, DeviceArgs};
use crate::duration;
use crate::failure::Failure;
use crate::files;
use crate::instance::{self, Chosen, Overrides};
use crate::output::{Output, json_number};
use crate::peers;
use crate::roofline;
use crate::runner;
use crate::sample;
use crate::shapes::{self, Wanted};
use clap::ValueEnum;
use kiln_codegen::spec::{Case, Configs, OpSpec};
use kiln_runtime::Device;
use kiln_runtime::measure::{self, MeasureOptions, Measurement, Mode};
use kiln_runtime::tune::records::Tuned;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// On the CPU only shapes up to this many bytes run unless a shape is named: the others are for GPUs.
const CPU_BYTES: f64 = (64 << 20) as f64;

/// Name of the operator whose rate is the ceiling of memory-bound work.
const CEILING: &str = "copy_kernel";

/// Options of `kiln bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Operators; all with a bench if none is named
    pub names: Vec<String>,
    /// Device
    #[command(flatten)]
    pub device: DeviceArgs,
    /// A shape, as in `tokens=4096,hidden=7168`; may be repeated
    #[arg(long, value_name = "K=V,..")]
    pub shape: Vec<String>,
    /// File of shapes: one `OP K=V,..` or one JSON object with op and shape a line
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    pub shapes: Option<PathBuf>,
    /// Config fields other than the default
    #[arg(long, value_name = "K=V,..")]
    pub config: Option<String>,
    /// Ignore tuning records: every kernel runs its default config
    #[arg(long)]
    pub untuned: bool,
    /// Clock rate to see: before the power limit lowers it, or after
    #[arg(long, value_enum, default_value_t = ModeArg::Burst)]
    pub mode: ModeArg,
    /// Time the plain reference of a shape may take; what it does not reach in that time is not judged: 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub judge: String,
    /// Append the rows as JSON lines, with date and command
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Beside each shape, products of the vendor's library measured in the same run (cuda:N), and what other libraries
    /// reached elsewhere, marked recorded
    #[arg(long)]
    pub peers: bool,
    /// Draw the results under the copy rate: operations a second over operations a byte
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// Which clock rate a measurement sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Short graphs after a pause
    Burst,
    /// Long graphs without one
    Sustained,
}

/// Measures, one row a shape.
///
/// # Errors
/// Unknown names, keys or files; a missing device; a wrong result.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let wanted = match &args.shapes {
        Some(file) => shapes::read(ops, file)?,
        None => shapes::choose(ops, &args.names, &args.shape)?,
    };
    if let Some(path) = &args.record {
        // A measurement takes a while; a file that cannot be written should be known before.
        files::append(path, "")?;
    }
    if let Some(path) = &args.plot {
        files::write_atomic(path, roofline::svg(&[], None, "").as_bytes())?;
    }
    let judging = duration::parse("--judge", &args.judge)?;
    let device = device::open(&args.device, false)?;
    let mode = match args.mode {
        ModeArg::Burst => Mode::Burst,
        ModeArg::Sustained => Mode::Sustained,
    };
    let options = MeasureOptions { mode, ..MeasureOptions::default() };
    let how = How { ceiling: ceiling(ops, &device, &options), judging, options };
    let tuned = instance::tuned(&device, args.untuned);
    let columns = &[
        "op",
        "shape",
        "peer",
        "status",
        "median_us",
        "min_us",
        "p95_us",
        "gbps",
        "tflops",
        "floor_us",
        "of_floor",
        "rel_err",
        "judged",
        "record",
        "reason",
    ];
    let mut table = out.table("bench", columns);
    let (mut failed, mut drawn) = (0, vec![]);
    let explicit = !args.shape.is_empty() || args.shapes.is_some();
    for (i, w) in wanted.iter().enumerate() {
        out.progress(&format!("{}/{} {} {}", i + 1, wanted.len(), w.op, instance::shape_text(&w.shape)));
        let mut all = vec![measured(w, args, &device, &how, tuned.as_ref(), explicit)?];
        failed += usize::from(all[0]["status"] == "fail");
        if args.peers {
            all.extend(yardsticks(w, &all[0], &device, &how, out));
        }
        for row in all {
            // What was recorded elsewhere is no measurement of this machine.
            if let Some(path) = args.record.as_ref().filter(|_| row["status"] != "recorded") {
                record(path, &row, &device)?;
            }
            table.row(row.clone())?;
            drawn.push(row);
        }
    }
    table.finish()?;
    if let Some(path) = &args.plot {
        let info = device.info();
        let title = format!("{} ({}), {}, {}", info.name, info.model, how.options.mode.name(), today());
        files::write_atomic(path, roofline::svg(&drawn, how.ceiling, &title).as_bytes())?;
        out.note(&format!("drawn: {}", path.display()))?;
    }
    let info = device.info();
    out.note(&format!("device: {} ({})", info.name, info.model))?;
    match how.ceiling {
        Some(rate) => {
            out.note(&format!("copy ceiling: {rate:.0} GB/s; floor_us is the operator's bytes at that rate"))?
        }
        None => out.note("no copy ceiling: this build has no operator with the bench name copy_kernel")?,
    }
    if let Some(text) = instance::tuning_notes(tuned.as_ref()) {
        out.note(&text)?;
    }
    if failed > 0 {
        return Err(Failure::Failed(format!("{failed} of {} shapes failed", wanted.len())));
    }
    Ok(())
}

fn record(path: &Path, row: &Value, device: &Device) -> Result<(), Failure> {
    let info = device.info();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut line = row.as_object().cloned().unwrap_or_default();
    line.insert("date".into(), today().into());
    line.insert("model".into(), info.model.into());
    line.insert("driver".into(), info.driver.into());
    line.insert("command".into(), format!("kiln {}", command.join(" ")).into());
    files::append(path, &(crate::output::json_line("bench", &line) + "\n"))
}

/// Today in UTC, `2026-01-31`.
fn today() -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date((seconds / 86400) as i64)
}

/// Date of a day counted from 1970-01-01, Gregorian, by eras of 400 years that begin in March.
fn date(day: i64) -> String {
    let z = day + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (d, m) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let y = yoe + era * 400 + i64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}")
}

/// Rate of the copy operator on this device in GB/s, if there is one.
fn ceiling(ops: &[Arc<dyn OpSpec>], device: &Device, options: &MeasureOptions) -> Option<f64> {
    let op = ops.iter().find(|o| o.info().bench_name == Some(CEILING))?;
    let mib = if device.target().caps().is_some() { 1024 } else { 32 };
    let shape: Vec<(String, usize)> = op.bench_keys().iter().map(|k| (k.to_string(), mib)).collect();
    let case = instance::bench_case(op.as_ref(), &shape).ok()?;
    let time = time(op.as_ref(), &case, &Overrides::default(), device, options).ok()?;
    let cost = op.cost(&instance::input_specs(&case), &case.params);
    Some(cost.bytes / time.median_us * 1e-3)
}

/// How shapes are measured, and what they are compared with.
struct How {
    options: MeasureOptions,
    /// Time of the reference of a shape.
    judging: Duration,
    /// Copy rate of the device in GB/s, if it is known.
    ceiling: Option<f64>,
}

/// Rows of the peers of a shape: the vendor's library, then what others reached elsewhere.
fn yardsticks(w: &Wanted, own: &Value, device: &Device, how: &How, out: Output) -> Vec<Value> {
    let mut rows = vec![];
    // A shape that does not fit this machine, or this build, is measured with nothing.
    let runs = own["status"] != "skip";
    for y in peers::yardsticks(&w.op).into_iter().filter(|_| runs) {
        out.progress(&format!("{} {} {}", y.peer, y.op, instance::shape_text(&w.shape)));
        let mut row = blank(w, y.op, y.peer, device, &how.options);
        let Some(op) = w.selection.as_ref().map(|s| s.op.as_ref()) else { continue };
        let result = instance::bench_case(op, &w.shape)
            .map_err(|e| e.message().unwrap_or_default().to_string())
            .and_then(|case| Ok((peers::measure(&y, op, &case, device, &how.options, how.judging)?, case)));
        match result {
            Ok(((time, verdict, library), case)) => {
                numbers(&mut row, op, &case, &time, how.ceiling);
                row["rel_err"] = json_number(verdict.rel_err);
                row["judged"] = verdict.judged.into();
                row["reason"] = library.into();
            }
            Err(reason) => {
                row["status"] = if reason.starts_with("wrong result") { "fail" } else { "skip" }.into();
                row["reason"] = reason.into();
            }
        }
        rows.push(row);
    }
    for r in peers::recorded(w) {
        let text = |name: &str| r.line[name].as_str().unwrap_or_default().to_string();
        let mut row = blank(w, &text("op"), &text("peer"), device, &how.options);
        for name in ["shape", "median_us", "tflops", "gbps", "rel_err"] {
            row[name] = r.line[name].clone();
        }
        row["device"] = "".into();
        row["status"] = "recorded".into();
        row["reason"] = r.source.into();
        rows.push(row);
    }
    rows
}

/// A row of a shape before anything was measured.
fn blank(w: &Wanted, op: &str, peer: &str, device: &Device, options: &MeasureOptions) -> Value {
    let shape: Map<String, Value> = w.shape.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    json!({
        "op": op, "shape": shape, "peer": peer, "device": device.name(), "status": "ok", "config": {},
        "median_us": null, "min_us": null, "p95_us": null, "tflops": null, "gbps": null, "floor_us": null,
        "of_floor": null, "rel_err": null, "judged": "", "record": "", "calls": null, "sets": null, "timer": null,
        "mode": options.mode.name(), "reason": "",
    })
}

/// Fills a row's times and rates.
fn numbers(row: &mut Value, op: &dyn OpSpec, case: &Case, m: &Measurement, ceiling: Option<f64>) {
    let cost = op.cost(&instance::input_specs(case), &case.params);
    row["median_us"] = json_number(m.median_us);
    row["min_us"] = json_number(m.min_us);
    row["p95_us"] = json_number(m.p95_us);
    row["tflops"] = json_number(cost.flops / m.median_us * 1e-6);
    row["gbps"] = json_number(cost.bytes / m.median_us * 1e-3);
    if let Some(rate) = ceiling {
        let floor = cost.bytes / rate * 1e-3;
        row["floor_us"] = json_number(floor);
        row["of_floor"] = json_number(floor / m.median_us);
    }
    row["calls"] = m.calls.into();
    row["sets"] = m.sets.into();
    row["timer"] = m.timer.into();
}

/// One row.
fn measured(
    w: &Wanted,
    args: &Args,
    device: &Device,
    how: &How,
    tuned: Option<&Tuned>,
    explicit: bool,
) -> Result<Value, Failure> {
    let mut row = blank(w, &w.op, "kiln", device, &how.options);
    let mut end = |status: &str, reason: String| {
        row["status"] = status.into();
        row["reason"] = reason.into();
        row.clone()
    };
    let Some(selection) = &w.selection else {
        return Ok(end("skip", format!("no operator with the bench name `{}` in this build", w.op)));
    };
    let op = selection.op.as_ref();
    let instance_args = instance::InstanceArgs { config: args.config.clone(), ..Default::default() };
    let overrides = instance_args.configs(selection)?;
    let configs = Chosen { overrides: &overrides, tuned };
    let case = instance::bench_case(op, &w.shape)?;
    let cost = op.cost(&instance::input_specs(&case), &case.params);
    let on_cpu = device.target().caps().is_none();
    if on_cpu && !explicit && cost.bytes > CPU_BYTES {
        return Ok(end("skip", "a shape for GPUs; name it with --shape to run it here".into()));
    }
    let verdict = match judged(op, &case, &configs, device, how.judging) {
        Ok(x) => x,
        Err(reason) => return Ok(end("fail", reason)),
    };
    let m = match time(op, &case, &configs, device, &how.options) {
        Ok(m) => m,
        Err(reason) => return Ok(end("fail", reason)),
    };
    let config = instance::plan(op, &instance::input_specs(&case), &case.params, &configs);
    if let Some(step) = config.ok().and_then(|p| p.steps.into_iter().next()) {
        let fields = step.config.0.iter().map(|(k, v)| (k.clone(), Value::from(v.to_string())));
        row["config"] = Value::Object(fields.collect());
    }
    row["record"] = configs.record().into();
    numbers(&mut row, op, &case, &m, how.ceiling);
    match verdict {
        Some(v) => {
            row["rel_err"] = json_number(v.rel_err);
            row["judged"] = v.judged.into();
        }
        None => {
            row["judged"] = "nothing".into();
            row["reason"] = "too large for its plain reference, and the operator declares no `splits`".into();
        }
    }
    Ok(row)
}

/// Runs once and compares with the reference, or a sample of the result where the whole would take too long; `None` if
/// the operator cannot be cut and is too large.
fn judged(
    op: &dyn OpSpec,
    case: &Case,
    configs: &dyn Configs,
    device: &Device,
    judging: Duration,
) -> Result<Option<sample::Verdict>, String> {
    let inputs = runner::filled(op, op.info().name, case)?;
    let outcome = runner::execute(device, op, &inputs, &case.params, configs).map_err(|e| e.to_string())?;
    let verdict = sample::judge(op, case, &inputs, &outcome.outputs, judging)?;
    match verdict.as_ref().and_then(|v| v.worst.as_ref().map(|w| (w, &v.judged))) {
        Some((w, judged)) if !w.verdict.ok => {
            Err(format!("wrong result: {}: {} (judged: {judged})", w.output, w.verdict.reason))
        }
        _ => Ok(verdict),
    }
}

/// Times a problem over independent input sets.
fn time(
    op: &dyn OpSpec,
    case: &Case,
    configs: &dyn Configs,
    device: &Device,
    options: &MeasureOptions,
) -> Result<Measurement, String> {
    let cost = op.cost(&instance::input_specs(case), &case.params);
    let sets = if device.target().caps().is_some() { measure::sets_for(cost.bytes as usize) } else { 1 };
    let mut plans = vec![];
    for set in 0..sets {
        let inputs = runner::filled(op, &format!("{}/{set}", op.info().name), case)?;
        let (problem, _) = runner::place(device, op, &inputs, &case.params)?;
        plans.push(op.plan(&problem, configs).map_err(|e| e.to_string())?);
    }
    measure::time(device, &plans, options).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(59), "1970-03-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_483), "2026-01-30");
    }
}
