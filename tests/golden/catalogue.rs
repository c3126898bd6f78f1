//! `docs/kernels.md`: what every operator is, from its own description, the head of its file, and the bench records.
//!
//! Nothing is written by hand there, so nothing can be forgotten there; `BLESS=1` rewrites it.

use kiln_codegen::spec::{KernelDef, OpSpec, TensorSpec};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The paragraphs of a file's head that start with `*Word*`, as `word: text`, in order.
fn paragraphs(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let head = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).collect::<Vec<_>>().join(" ");
    let mut found = vec![];
    for part in head.split(" *").skip(1) {
        if let Some((word, rest)) = part.split_once("*:") {
            found.push((word.to_string(), rest.trim().to_string()));
        } else if let Some(last) = found.last_mut() {
            // A star within a paragraph.
            let (_, text): &mut (String, String) = last;
            *text += &format!(" *{part}");
        }
    }
    found
}

/// A number with a unit of thousands.
fn scaled(x: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    let step = (0..prefixes.len() - 1).find(|&i| x < 1000f64.powi(i as i32 + 1)).unwrap_or(prefixes.len() - 1);
    let x = x / 1000f64.powi(step as i32);
    let digits = if x >= 100.0 || step == 0 {
        0
    } else if x >= 10.0 {
        1
    } else {
        2
    };
    format!("{x:.digits$} {}{unit}", prefixes[step]).trim_end().to_string()
}

/// A record's line of our own, by operator and shape; of several, the fastest.
fn records() -> BTreeMap<(String, String), Value> {
    let mut best: BTreeMap<(String, String), Value> = BTreeMap::new();
    let folder = root().join("benches/records");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("bench records").map(|e| e.expect("a file").path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "jsonl")) {
        for line in std::fs::read_to_string(file).expect("a readable record").lines() {
            let row: Value = serde_json::from_str(line).expect("a record is JSON lines");
            let time = |r: &Value| r["median_us"].as_f64().unwrap_or(f64::INFINITY);
            if row["peer"] != "kiln" || row["status"] != "ok" || !time(&row).is_finite() {
                continue;
            }
            let shape = row["shape"].as_object().expect("a shape");
            let shape: BTreeMap<_, _> = shape.iter().map(|(k, v)| (k.clone(), v.to_string())).collect();
            let key = (row["op"].as_str().unwrap_or_default().to_string(), format!("{shape:?}"));
            if best.get(&key).is_none_or(|old| time(&row) < time(old)) {
                best.insert(key, row);
            }
        }
    }
    best
}

fn names(kernel: &dyn KernelDef) -> String {
    let info = kernel.info();
    let dtypes: Vec<_> = info.dtypes.iter().map(|(_, d)| d.name()).collect();
    if dtypes.is_empty() { String::new() } else { dtypes.join(", ") }
}

/// One row a kernel: the dtypes it is built for, and what is promised of it.
fn kernels(op: &dyn OpSpec) -> String {
    let mut rows: Vec<(String, BTreeSet<String>, String, String)> = vec![];
    for kernel in op.kernels() {
        let info = kernel.info();
        match rows.iter_mut().find(|r| r.0 == info.name) {
            Some(row) => drop(row.1.insert(names(kernel.as_ref()))),
            None => {
                let mut promises: Vec<String> = vec![];
                promises.extend(info.deterministic.then(|| "deterministic".into()));
                promises.extend(info.batch_invariant.iter().map(|d| format!("batch invariant in `{d}`")));
                let tuned = kernel.space().axes.iter().filter(|a| a.values.len() > 1).count();
                let row = (info.name.clone(), [names(kernel.as_ref())].into(), promises.join(", "), tuned.to_string());
                rows.push(row);
            }
        }
    }
    let mut text = String::from("| kernel | dtypes | properties | tuned fields |\n| --- | --- | --- | --- |\n");
    for (name, dtypes, promises, tuned) in rows {
        let dtypes: Vec<_> = dtypes.into_iter().filter(|d| !d.is_empty()).collect();
        let _ = writeln!(text, "| `{name}` | {} | {promises} | {tuned} |", dtypes.join("; "));
    }
    text
}

/// One row a bench shape: useful work, and what was measured.
fn shapes(op: &dyn OpSpec, records: &BTreeMap<(String, String), Value>) -> String {
    let Some(bench) = op.info().bench_name else { return String::new() };
    let mut text = format!("| `{bench}` | bytes | operations | measured |\n| --- | --- | --- | --- |\n");
    for shape in op.bench_shapes() {
        let case = op.bench_case(&shape).unwrap_or_else(|e| panic!("{e}"));
        let specs: BTreeMap<String, TensorSpec> =
            case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
        let cost = op.cost(&specs, &case.params);
        let sorted: BTreeMap<_, _> = shape.iter().map(|(k, v)| (k.clone(), v.to_string())).collect();
        let measured = records.get(&(bench.to_string(), format!("{sorted:?}"))).map(|r| {
            let number = |name: &str| r[name].as_f64().unwrap_or(f64::NAN);
            // A copy of its bytes is no floor for what computes.
            let speed = if number("tflops") >= 100.0 {
                format!("{:.0} TFLOP/s", number("tflops"))
            } else {
                format!("{:.0} GB/s, {:.0} % of the copy floor", number("gbps"), 100.0 * number("of_floor"))
            };
            let device = r["model"].as_str().unwrap_or_default();
            format!("{:.1} µs, {speed} ({device})", number("median_us"))
        });
        let words: Vec<_> = shape.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            words.join(", "),
            scaled(cost.bytes, "B"),
            scaled(cost.flops, ""),
            measured.unwrap_or_default()
        );
    }
    text + "\n"
}

/// The page.
pub fn page(registry: &[Arc<dyn OpSpec>]) -> String {
    let records = records();
    let mut text = String::from(
        "# Kernels\n\n\
         Every operator of the library, from its own description: made by `BLESS=1 cargo test -p kiln-tests --test golden`.\n\
         Every one has text for `sm_80`, `sm_90a` and `sm_100a` and runs on the CPU. Bytes count every tensor once, operations\n\
         are useful ones; *measured* is the fastest record in `benches/records` (`kiln bench`), and its share of the copy floor\n\
         says how near it is to a plain copy of as many bytes. Shapes without a record were not measured, or not since they exist.\n",
    );
    let mut families: Vec<&str> = vec![];
    for op in registry {
        if !families.contains(&op.info().family) {
            families.push(op.info().family);
        }
    }
    for family in families {
        let _ = write!(text, "\n## {family}\n");
        for op in registry.iter().filter(|op| op.info().family == family) {
            let info = op.info();
            let file = op.kernels().first().map(|k| k.info().file.clone()).expect("an operator has a kernel");
            let _ = write!(text, "\n### `{}`\n\n`{}`\n\n", info.name, info.formula);
            for (word, paragraph) in paragraphs(&root().join(&file)) {
                let _ = writeln!(text, "- *{word}*: {paragraph}");
            }
            let _ = write!(text, "\n{}\n{}`{file}`\n", kernels(op.as_ref()), shapes(op.as_ref(), &records));
        }
    }
    text
}

/// Compares the page with the committed one.
pub fn check(registry: &[Arc<dyn OpSpec>]) {
    let (path, want) = (root().join("docs/kernels.md"), page(registry));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &want).expect("docs can be written");
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    let line = have.lines().zip(want.lines()).position(|(a, b)| a != b).map(|l| l + 1);
    assert!(
        have == want,
        "docs/kernels.md is old from line {line:?} on; BLESS=1 cargo test -p kiln-tests --test golden"
    );
}
