//! `kiln list`: every operator and kernel with formula, targets, properties and config space.

use crate::catalog::{self, Selection};
use crate::failure::Failure;
use crate::output::Output;
use kiln_codegen::spec::{KernelInfo, OpSpec};
use kiln_codegen::target::Target;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Options of `kiln list`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Operators or kernels; all if none is named
    pub names: Vec<String>,
}

/// Prints one row a kernel.
///
/// # Errors
/// An unknown name.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let mut table = out.table("list", &["op", "kernel", "family", "properties", "config", "formula"]);
    for selection in catalog::select(ops, &args.names)? {
        for name in catalog::kernel_names(selection.op.as_ref()).iter().filter(|n| selection.has(n)) {
            table.row(row(&selection, name))?;
        }
    }
    table.finish()?;
    out.note(&format!("targets: {}", Target::ALL.map(Target::name).join(", ")))
}

fn row(selection: &Selection, kernel: &str) -> Value {
    let info = selection.op.info();
    let variants: Vec<_> = selection.op.kernels().into_iter().filter(|k| k.info().name == kernel).collect();
    let mut config = Map::new();
    for axis in variants.iter().flat_map(|k| k.space().axes) {
        let values: Vec<Value> = axis.values.iter().map(|v| v.to_string().into()).collect();
        config.insert(axis.name, Value::Array(values));
    }
    let dtypes: Vec<String> = variants
        .iter()
        .filter(|k| !k.info().dtypes.is_empty())
        .map(|k| k.info().dtypes.iter().map(|(p, d)| format!("{p}={d}")).collect::<Vec<_>>().join(","))
        .collect();
    let first = variants.first().map(|k| k.info().clone());
    json!({
        "op": info.name,
        "kernel": kernel,
        "family": info.family,
        "formula": info.formula,
        "targets": Target::ALL.map(Target::name),
        "properties": first.as_ref().map(properties).unwrap_or_default(),
        "config": config,
        "bench": info.bench_name,
        "shape_keys": selection.op.bench_keys(),
        "dtypes": dtypes,
        "cases": selection.op.cases().iter().map(|c| c.id.clone()).collect::<Vec<_>>(),
        "file": first.as_ref().map(|f| f.file.clone()),
        "line": first.as_ref().map(|f| f.line),
        "source": info.source,
    })
}

fn properties(info: &KernelInfo) -> Vec<String> {
    let mut out = vec![];
    if info.deterministic {
        out.push("deterministic".to_string());
    }
    if !info.batch_invariant.is_empty() {
        out.push(format!("batch_invariant({})", info.batch_invariant.join(", ")));
    }
    out
}
