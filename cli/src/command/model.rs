//! `kiln model`: what a checkpoint is (`inspect`), whether its network gives the expected numbers (`verify`), and random tiny
//! ones (`tiny`).
//!
//! Rows and exit codes only; reading and computing are `kiln_model`'s.

use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::files::write_atomic;
use crate::output::{Output, json_number, number};
use kiln_model::Error;
use kiln_model::checkpoint::names::FaultKind;
use kiln_model::inspect::{Report, inspect};
use kiln_model::tiny;
use kiln_model::verify;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options of `kiln model`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Layers, bytes, cache, and tensors that are missing, unknown or wrong
    Inspect {
        /// Folder with config.json and *.safetensors
        dir: PathBuf,
    },
    /// Write a random tiny checkpoint of a family
    Tiny {
        /// Family: v3, v32, v4 or v41
        #[arg(long, value_name = "ARCH", value_parser = tiny::ARCHITECTURES)]
        arch: String,
        /// Seed of the weights
        #[arg(long, value_name = "S", default_value_t = 1)]
        seed: u64,
        /// Folder to make
        dir: PathBuf,
    },
    /// Run cases on a device and compare with the numbers expected of them
    Verify {
        /// Folders with config.json, model.safetensors, case.json and expected.safetensors
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Device
        #[command(flatten)]
        device: DeviceArgs,
    },
}

/// Runs an action.
///
/// # Errors
/// Folders that are no checkpoints; a missing device; faults or a check that failed.
pub fn run(args: &Args, out: Output) -> Result<(), Failure> {
    match &args.action {
        Action::Inspect { dir } => show(dir, out),
        Action::Tiny { arch, seed, dir } => write_tiny(arch, *seed, dir, out),
        Action::Verify { dirs, device } => compare(dirs, device, out),
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e {
            Error::Device(e) => e.into(),
            Error::Operator(_) => Failure::Failed(e.to_string()),
            Error::Config(_) | Error::Checkpoint(_) | Error::Tensors(_) | Error::Input { .. } => {
                Failure::Usage(e.to_string())
            }
        }
    }
}

fn show(dir: &Path, out: Output) -> Result<(), Failure> {
    let report = inspect(dir)?;
    if out.json {
        let mut table = out.table("model inspect", &[]);
        table.row(row(dir, &report))?;
        table.finish()?;
    } else {
        out.text(&text(&report))?;
    }
    match report.faults.len() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} tensors are not as {} needs them", report.config.file.display()))),
    }
}

fn kind(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Missing => "missing",
        FaultKind::Extra => "extra",
        FaultKind::Wrong => "wrong",
    }
}

fn row(dir: &Path, r: &Report) -> Value {
    let layers: Vec<Value> = r
        .layers
        .iter()
        .map(|l| json!({"first": l.first, "count": l.count, "attention": l.attention, "feed_forward": l.feed_forward}))
        .collect();
    let faults: Vec<Value> = r
        .faults
        .iter()
        .map(|f| {
            json!({
                "kind": kind(f.kind), "tensor": f.tensor, "file": f.file.display().to_string(), "expected": f.expected,
                "got": f.got,
            })
        })
        .collect();
    json!({
        "dir": dir.display().to_string(), "architecture": r.config.architecture(), "files": r.files, "tensors": r.tensors,
        "bytes": r.bytes, "bytes_by_dtype": r.bytes_by_dtype, "layers": layers,
        "cache_bytes_per_token": json_number(r.cache.per_token), "cache_bytes_constant": r.cache.constant,
        "faults": faults,
    })
}

fn text(r: &Report) -> String {
    let c = &r.config;
    let mut s = format!("architecture   {}\n", c.architecture());
    s += &format!("tensors        {} in {} files, {} bytes\n", r.tensors, r.files, r.bytes);
    for (dtype, bytes) in &r.bytes_by_dtype {
        s += &format!("  {dtype:<12} {bytes} bytes\n");
    }
    s += &format!("cache          {} bytes a token, {} bytes besides\n", number(r.cache.per_token), r.cache.constant);
    s += &format!("layers         {}\n", c.num_hidden_layers);
    for l in &r.layers {
        let range = if l.count == 1 { l.first.to_string() } else { format!("{}-{}", l.first, l.first + l.count - 1) };
        s += &format!("  {range:<12} {}; {}\n", l.attention, l.feed_forward);
    }
    for f in &r.faults {
        s += &format!(
            "{:<8} {}: `{}`: expected {}, got {}\n",
            kind(f.kind),
            f.file.display(),
            f.tensor,
            f.expected,
            f.got
        );
    }
    s
}

fn write_tiny(arch: &str, seed: u64, dir: &Path, out: Output) -> Result<(), Failure> {
    let Some(files) = tiny::files(arch, seed)? else {
        return Err(Failure::usage("--arch", tiny::ARCHITECTURES.join(", "), arch, "choose one of them"));
    };
    if dir.join("config.json").exists() {
        let next = "choose another folder, or remove that one";
        return Err(Failure::usage(dir.display(), "a folder without a checkpoint", "one with a config.json", next));
    }
    std::fs::create_dir_all(dir).map_err(|e| {
        Failure::environment(
            dir.display(),
            "a folder that can be made",
            e,
            "choose another path or fix its permissions",
        )
    })?;
    for (name, bytes) in &files {
        write_atomic(&dir.join(name), bytes)?;
    }
    let report = inspect(dir)?;
    let mut table = out.table("model tiny", &["dir", "architecture", "tensors", "bytes"]);
    table.row(json!({
        "dir": dir.display().to_string(), "architecture": arch, "tensors": report.tensors, "bytes": report.bytes,
    }))?;
    table.finish()
}

fn compare(dirs: &[PathBuf], device: &DeviceArgs, out: Output) -> Result<(), Failure> {
    let device = device::open(device, false)?;
    let mut table = out.table("model verify", &["case", "check", "status", "value", "limit", "device", "reason"]);
    let mut counts = [0usize; 3];
    for dir in dirs {
        // `DIR/.` and `DIR/` name the folder too.
        let name = dir.components().next_back().map_or_else(String::new, |c| c.as_os_str().to_string_lossy().into());
        out.progress(&format!("{name} on {}", device.name()));
        let checks = verify::run(dir, &device).inspect_err(|_| out.progress_end())?;
        for check in checks {
            let (status, count) = match check.ok {
                Some(true) => ("ok", 0),
                Some(false) => ("fail", 1),
                None => ("skip", 2),
            };
            counts[count] += 1;
            let figure = |x: f64| if check.ok.is_some() { json_number(x) } else { Value::Null };
            table.row(json!({
                "case": name, "check": check.name, "status": status, "value": figure(check.value),
                "limit": figure(check.limit), "device": device.name(), "reason": check.reason,
            }))?;
        }
    }
    table.finish()?;
    let [ok, failed, skipped] = counts;
    let summary = format!("{ok} ok, {failed} failed, {skipped} skipped on {}", device.name());
    if failed > 0 {
        return Err(Failure::Failed(summary));
    }
    out.note(&summary)
}
