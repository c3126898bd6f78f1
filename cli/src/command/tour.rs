//! `kiln` without arguments: every operator on the default device against its reference, and the generated sources of
//! every target in a folder to look at, and text from the bundled model.

use crate::catalog::Selection;
use crate::command::emit;
use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::files;
use crate::instance::{InstanceArgs, Overrides, Step, shape_text};
use crate::output::{Output, escaped, json_number, number};
use crate::runner;
use kiln_codegen::compile;
use kiln_codegen::spec::OpSpec;
use kiln_codegen::target::Target;
use kiln_model::batch::{self, Reader};
use kiln_model::forward::Model;
use kiln_model::generate::Sampling;
use kiln_model::tiny;
use kiln_runtime::{Device, Settings};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs the tour.
///
/// # Errors
/// A case that failed.
pub fn run(ops: &[Arc<dyn OpSpec>], out: Output) -> Result<(), Failure> {
    let device = device::open(&DeviceArgs::default(), false)?;
    let folder = Settings::from_env().dir.join("sources");
    let mut table =
        out.table("tour", &["op", "cases", "status", "value", "limit", "ms", "sources", "formula", "reason"]);
    let mut failed = 0;
    let (mut unwritten, mut unlaunched, mut launched) = (None, vec![], vec![]);
    for (i, op) in ops.iter().enumerate() {
        out.progress(&format!("{}/{} {}", i + 1, ops.len(), op.info().name));
        let mut row = row(&device, op);
        failed += usize::from(row["status"] != "ok");
        match sources(op, &folder) {
            Ok(written) => {
                row["sources"] = written.files.into();
                launched.extend(written.launched);
                unlaunched.extend(written.unlaunched);
            }
            Err(e) => unwritten = e.message().map(String::from),
        }
        table.row(row)?;
    }
    table.finish()?;
    let info = device.info();
    out.note(&format!("\ndevice: {} ({})", info.name, info.model))?;
    match unwritten {
        None => out.note(&format!("sources: {}", folder.display()))?,
        Some(why) => out.note(&format!("sources: not all written: {why}"))?,
    }
    // Another operator may launch the same kernel.
    unlaunched.retain(|kernel| !launched.contains(kernel));
    if !unlaunched.is_empty() {
        out.note(&format!("no source, since no declared case or bench shape launches it: {}", unlaunched.join(", ")))?;
    }
    speak(&device, &Settings::from_env().dir.join("tiny-v4"), out)?;
    let kernel = ops.iter().flat_map(|op| crate::catalog::kernel_names(op.as_ref())).next();
    let explain = kernel.map_or(String::new(), |k| format!("kiln explain {k} --target sm_90a, "));
    out.note(&format!("next: kiln list, {explain}kiln run --sanitize, kiln doctor, kiln new NAME"))?;
    if failed > 0 {
        return Err(Failure::Failed(format!("{failed} of {} operators failed on {}", ops.len(), info.name)));
    }
    Ok(())
}

/// What the bundled model is asked to continue, and how far.
const PROMPT: &str = "The potter";
const TOKENS: usize = 32;

/// Text from the bundled model, which is written to a folder to be looked at and asked more.
fn speak(device: &Device, folder: &Path, out: Output) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|e| {
        Failure::environment(folder.display(), "a folder that can be made", e, "set KILN_DIR to a place to write to")
    })?;
    for (name, bytes) in tiny::BUNDLED_FILES {
        files::write_atomic(&folder.join(name), bytes)?;
    }
    out.progress("text from the bundled model");
    let (model, tokenizer) = Model::load_with_tokenizer(folder, device)?;
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let reader =
        Reader { config: &model.config, tokenizer: tokenizer.as_ref(), max_tokens: TOKENS, sampling, stop: &[] };
    let job = reader.line(&json!({"prompt": PROMPT}).to_string(), json!(0))?;
    let start = Instant::now();
    let (row, tokens) = batch::run(&model, tokenizer.as_ref(), &job)?;
    let rate = tokens as f64 / start.elapsed().as_secs_f64().max(1e-9);
    let mut table = out.table("generate", &[]);
    if out.json {
        return table.row(row);
    }
    out.progress_end();
    out.note(&format!("\nmodel: {} (V4 in small, random weights: what it says means nothing)", folder.display()))?;
    out.note(&format!("  {PROMPT}{}", escaped(row["text"].as_str().unwrap_or_default())))?;
    out.note(&format!("  {tokens} tokens, {} a second on {}\n", number(rate), device.name()))
}

/// All declared cases of an operator in one row: the worst one's numbers.
fn row(device: &Device, op: &Arc<dyn OpSpec>) -> Value {
    let info = op.info();
    let cases = op.cases();
    let (mut ok, mut ms, mut worst) = (0, 0.0, (f64::NEG_INFINITY, 0.0, 0.0));
    let mut reason = String::new();
    for case in &cases {
        let ran = runner::declared(op.as_ref(), case)
            .and_then(|r| r.run(device, op.as_ref(), &Overrides::default()).map_err(|e| e.to_string()));
        match ran {
            Ok((outcome, Some(judged))) => {
                let v = &judged.verdict;
                let share = if v.limit > 0.0 { v.value / v.limit } else { v.value };
                if share > worst.0 {
                    worst = (share, v.value, v.limit);
                }
                ms += outcome.ms;
                if v.ok {
                    ok += 1;
                } else {
                    reason = format!("{}: {}: {}", case.id, judged.output, v.reason);
                }
            }
            Ok((_, None)) => reason = format!("{}: no output", case.id),
            Err(e) => reason = format!("{}: {e}", case.id),
        }
    }
    json!({
        "op": info.name, "device": device.name(), "cases": format!("{ok}/{}", cases.len()),
        "status": if ok == cases.len() { "ok" } else { "fail" },
        "value": json_number(worst.1), "limit": json_number(worst.2), "ms": json_number((ms * 10.0).round() / 10.0),
        "sources": 0, "formula": info.formula, "reason": reason,
    })
}

/// What was written for an operator.
#[derive(Default)]
struct Written {
    files: usize,
    /// Kernels with a source.
    launched: Vec<String>,
    /// Kernels that neither a declared case nor a bench shape launches: there is no instance to emit.
    unlaunched: Vec<String>,
}

/// Writes the source of each kernel for each target with a source.
fn sources(op: &Arc<dyn OpSpec>, folder: &Path) -> Result<Written, Failure> {
    let mut written = Written::default();
    for kernel in crate::catalog::kernel_names(op.as_ref()) {
        let selection = Selection { op: op.clone(), kernel: Some(kernel.clone()) };
        let Some(step) = instance_of(&selection) else {
            written.unlaunched.push(kernel);
            continue;
        };
        let built = emit::build(&step)?;
        for target in Target::ALL.into_iter().filter(|t| t.caps().is_some()) {
            let lowered = compile::source(&built, target)
                .map_err(|d| Failure::Failed(format!("{kernel}: {}", crate::diagnostics::render(&d))))?;
            let place = folder.join(target.name());
            std::fs::create_dir_all(&place)
                .map_err(|e| Failure::environment(place.display(), "a folder to write to", e, "set KILN_DIR"))?;
            files::write_atomic(&place.join(format!("{kernel}.cu")), lowered.source.text.as_bytes())?;
            written.files += 1;
        }
        written.launched.push(kernel);
    }
    Ok(written)
}

/// The first declared case that launches a kernel, or the first bench shape.
fn instance_of(selection: &Selection) -> Option<Step> {
    let first = |args: &InstanceArgs| emit::first_step(selection, args).ok().map(|(step, _)| step);
    first(&InstanceArgs::default()).or_else(|| {
        let shapes = selection.op.bench_shapes().into_iter();
        shapes.map(|s| InstanceArgs { shape: Some(shape_text(&s)), ..Default::default() }).find_map(|a| first(&a))
    })
}
