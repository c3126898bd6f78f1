//! `kiln bench`: the time of an operator on a device, beside the time its bytes would take at the copy rate.
//!
//! Method: `runtime::measure` (rotating inputs, one captured graph, median of replays). Correctness comes first: the
//! output of the measured problem is judged before it is timed.

use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::files;
use crate::instance::{self, Overrides};
use crate::judge;
use crate::output::{Output, json_number};
use crate::runner;
use crate::shapes::{self, Wanted};
use clap::ValueEnum;
use kiln_codegen::spec::{Case, OpSpec};
use kiln_runtime::Device;
use kiln_runtime::measure::{self, MeasureOptions, Measurement, Mode};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Above this many input elements the plain reference would take minutes; the result is then not judged.
const JUDGED_ELEMENTS: usize = 1 << 27;

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
    /// Clock rate to see: before the power limit lowers it, or after
    #[arg(long, value_enum, default_value_t = ModeArg::Burst)]
    pub mode: ModeArg,
    /// Append the rows as JSON lines, with date and command
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Measure other libraries too (not available yet)
    #[arg(long)]
    pub peers: bool,
    /// Draw the results (not available yet)
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
    for (given, option, instead) in [
        (args.peers, "--peers", "the scripts in `benches` measure other libraries in the same format"),
        (args.plot.is_some(), "--plot", "use --record and any plotting tool that reads JSON lines"),
    ] {
        if given {
            return Err(Failure::usage(option, "an option that is available", "one that is not yet", instead));
        }
    }
    let wanted = match &args.shapes {
        Some(file) => shapes::read(ops, file)?,
        None => shapes::choose(ops, &args.names, &args.shape)?,
    };
    if let Some(path) = &args.record {
        // A measurement takes a while; a file that cannot be written should be known before.
        files::append(path, "")?;
    }
    let device = device::open(&args.device, false)?;
    let mode = match args.mode {
        ModeArg::Burst => Mode::Burst,
        ModeArg::Sustained => Mode::Sustained,
    };
    let options = MeasureOptions { mode, ..MeasureOptions::default() };
    let ceiling = ceiling(ops, &device, &options);
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
        "reason",
    ];
    let mut table = out.table("bench", columns);
    let mut failed = 0;
    let explicit = !args.shape.is_empty() || args.shapes.is_some();
    for (i, w) in wanted.iter().enumerate() {
        out.progress(&format!("{}/{} {} {}", i + 1, wanted.len(), w.op, instance::shape_text(&w.shape)));
        let row = measured(w, args, &device, &options, ceiling, explicit)?;
        failed += usize::from(row["status"] == "fail");
        if let Some(path) = &args.record {
            record(path, &row, &device)?;
        }
        table.row(row)?;
    }
    table.finish()?;
    let info = device.info();
    out.note(&format!("device: {} ({})", info.name, info.model))?;
    match ceiling {
        Some(rate) => {
            out.note(&format!("copy ceiling: {rate:.0} GB/s; floor_us is the operator's bytes at that rate"))?
        }
        None => out.note("no copy ceiling: this build has no operator with the bench name copy_kernel")?,
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

/// One row.
fn measured(
    w: &Wanted,
    args: &Args,
    device: &Device,
    options: &MeasureOptions,
    ceiling: Option<f64>,
    explicit: bool,
) -> Result<Value, Failure> {
    let shape: Map<String, Value> = w.shape.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    let mut row = json!({
        "op": w.op, "shape": shape, "peer": "kiln", "device": device.name(), "status": "ok", "config": {},
        "median_us": null, "min_us": null, "p95_us": null, "tflops": null, "gbps": null, "floor_us": null,
        "of_floor": null, "rel_err": null, "calls": null, "sets": null, "timer": null, "mode": options.mode.name(),
        "reason": "",
    });
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
    let configs = instance_args.configs(selection)?;
    let case = instance::bench_case(op, &w.shape)?;
    let cost = op.cost(&instance::input_specs(&case), &case.params);
    let on_cpu = device.target().caps().is_none();
    if on_cpu && !explicit && cost.bytes > CPU_BYTES {
        return Ok(end("skip", "a shape for GPUs; name it with --shape to run it here".into()));
    }
    let rel_err = match judged(op, &case, &configs, device) {
        Ok(x) => x,
        Err(reason) => return Ok(end("fail", reason)),
    };
    let m = match time(op, &case, &configs, device, options) {
        Ok(m) => m,
        Err(reason) => return Ok(end("fail", reason)),
    };
    let config = instance::plan(op, &instance::input_specs(&case), &case.params, &configs);
    if let Some(step) = config.ok().and_then(|p| p.steps.into_iter().next()) {
        let fields = step.config.0.iter().map(|(k, v)| (k.clone(), Value::from(v.to_string())));
        row["config"] = Value::Object(fields.collect());
    }
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
    row["rel_err"] = rel_err.map_or(Value::Null, json_number);
    if rel_err.is_none() {
        row["reason"] = "timed, not judged: too large for the plain reference".into();
    }
    row["calls"] = m.calls.into();
    row["sets"] = m.sets.into();
    row["timer"] = m.timer.into();
    Ok(row)
}

/// Runs once and compares with the reference: the relative error over all outputs, `None` if the problem is too large.
fn judged(op: &dyn OpSpec, case: &Case, configs: &Overrides, device: &Device) -> Result<Option<f64>, String> {
    let elements: usize = case.inputs.iter().map(|i| i.tensor.shape.iter().product::<usize>()).sum();
    if elements > JUDGED_ELEMENTS {
        return Ok(None);
    }
    let ready = runner::declared(op, case)?;
    let (outcome, worst) = ready.run(device, op, configs)?;
    if let Some(judge::Judged { output, verdict }) = worst
        && !verdict.ok
    {
        return Err(format!("wrong result: {output}: {}", verdict.reason));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (name, got) in &outcome.outputs {
        let Some(want) = ready.known.get(name) else {
            continue;
        };
        for (g, w) in got.to_f64().iter().zip(want.to_f64()).filter(|(_, w)| w.is_finite()) {
            error += (g - w) * (g - w);
            norm += w * w;
        }
    }
    Ok(Some(if norm > 0.0 { (error / norm).sqrt() } else { error.sqrt() }))
}

/// Times a problem over independent input sets.
fn time(
    op: &dyn OpSpec,
    case: &Case,
    configs: &Overrides,
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
