//! `kiln doctor`: devices, compilers, caches and versions of this machine; what is skipped and why.

use crate::failure::Failure;
use crate::output::Output;
use kiln_codegen::target::Target;
use kiln_runtime::compile::{Toolchain, toolchain};
use kiln_runtime::config::{NVRTC_VERSION, VARIABLES};
use kiln_runtime::{Settings, device};
use serde_json::{Value, json};
use std::path::Path;

/// Options of `kiln doctor`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Fetch the pinned CUDA compiler packages if they are missing
    #[arg(long)]
    pub fetch: bool,
}

/// Prints one row a finding.
///
/// # Errors
/// Packages that were to be fetched and could not be.
pub fn run(args: &Args, out: Output) -> Result<(), Failure> {
    let settings = Settings::from_env();
    if args.fetch {
        out.progress("fetching the CUDA compiler packages");
        let folder = toolchain::fetch(&settings);
        out.progress_end();
        out.note(&format!("fetched: {}", folder?.display()))?;
    }
    let mut table = out.table("doctor", &["what", "name", "status", "detail"]);
    for row in devices(&settings).into_iter().chain(compilers(&settings)).chain(folders(&settings)) {
        table.row(row)?;
    }
    for v in VARIABLES {
        let set = std::env::var(v.name).ok();
        let status = if set.is_some() { "set" } else { "unset" };
        let detail = format!("{} (default: {})", set.as_deref().unwrap_or(v.meaning), v.default);
        table.row(finding("variable", v.name, status, &detail))?;
    }
    table.row(finding("version", "kiln", "ok", env!("CARGO_PKG_VERSION")))?;
    table.finish()
}

fn finding(what: &str, name: &str, status: &str, detail: &str) -> Value {
    json!({"what": what, "name": name, "status": status, "detail": detail})
}

fn devices(settings: &Settings) -> Vec<Value> {
    let mut rows: Vec<Value> = device::list(settings)
        .into_iter()
        .map(|d| {
            let mut detail = format!("{}, target {}, {} units", d.model, d.target.name(), d.units);
            if !d.driver.is_empty() {
                detail += &format!(", driver {}", d.driver);
            }
            finding("device", &d.name, "ok", &detail)
        })
        .collect();
    rows.push(finding("device", "null", "ok", "checks and records launches, runs nothing"));
    if let Some(why) = device::why_no_gpu() {
        rows.push(finding("device", "cuda:0", "skip", &format!("runs on a GPU are skipped: {why}")));
    }
    if let Some(why) = device::why_no_npu(settings) {
        rows.push(finding("device", "ascend:0", "skip", &format!("runs on an NPU are skipped: {why}")));
    }
    rows
}

fn compilers(settings: &Settings) -> Vec<Value> {
    let mut rows = vec![];
    let needs = Target::ALL.iter().filter(|t| t.caps().is_some()).map(|t| t.name()).collect::<Vec<_>>().join(", ");
    match Toolchain::open(settings) {
        Ok(t) => {
            let detail = format!("{} for {needs}, {}", t.version(), t.path().display());
            rows.push(finding("compiler", "nvrtc", "ok", &detail));
            rows.push(match t.nvdisasm() {
                Some(p) => finding("compiler", "nvdisasm", "ok", &p.display().to_string()),
                None => finding(
                    "compiler",
                    "nvdisasm",
                    "skip",
                    "emit --stage sass and instruction counts need it; `kiln doctor --fetch` fetches it",
                ),
            });
        }
        Err(e) => {
            let why = e.to_string().replace('\n', " ");
            let detail = format!("compiling for {needs} is skipped until {NVRTC_VERSION} is fetched: {why}");
            rows.push(finding("compiler", "nvrtc", "skip", &detail));
        }
    }
    let missing = "not part of this version: no Ascend target yet";
    rows.push(finding("compiler", "bisheng", "skip", missing));
    rows
}

fn folders(settings: &Settings) -> Vec<Value> {
    let mut rows = vec![folder("kiln", &settings.dir)];
    for dir in &settings.cache_dirs {
        rows.push(folder("cache", dir));
    }
    rows.push(folder("tuning records", &settings.tune_dir));
    rows
}

/// A folder: present and writable, to be made, or not usable.
fn folder(name: &str, path: &Path) -> Value {
    let existing = path.ancestors().find(|p| p.exists());
    let probe = existing.map(|p| p.join(format!(".kiln-doctor-{}", std::process::id())));
    let writable = probe.as_ref().is_some_and(|p| std::fs::write(p, b"").is_ok());
    if let Some(p) = probe {
        // Made above, or never there.
        let _ = std::fs::remove_file(p);
    }
    let status = if writable { "ok" } else { "skip" };
    let detail = match (path.exists(), writable) {
        (true, true) => path.display().to_string(),
        (false, true) => format!("{} (made when it is needed)", path.display()),
        (_, false) => format!("{} cannot be written; what belongs there is made again each time", path.display()),
    };
    finding("folder", name, status, &detail)
}
