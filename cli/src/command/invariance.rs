//! `kiln invariance`: batch invariance of kernels, proven from their IR (`audit`) or tested on a device (`check`).
//!
//! One row for each kernel, target and declared dimension; a kernel that declares none has one row with status `none`.

use crate::catalog::{self, Selection};
use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::instance::{self, Overrides};
use crate::invariance::{self as dynamic, Shown};
use crate::output::Output;
use crate::runner;
use kiln_codegen::analysis::Ranges;
use kiln_codegen::analysis::invariance::{self, Path};
use kiln_codegen::compile;
use kiln_codegen::ir::Kernel;
use kiln_codegen::spec::{Case, Configs, KernelDef, KernelInfo, OpSpec};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use kiln_runtime::Device;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Cases larger than this are left out of `check`: rows are run many times.
const MAX_BYTES: usize = 8 << 20;

/// Options of `kiln invariance`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Read the kernels: which are proven, for every target
    Audit(Names),
    /// Run the kernels: rows alone, in other places, among more rows, and twice, compared to the bit
    Check(CheckArgs),
}

#[derive(clap::Args, Debug)]
struct Names {
    /// Operators or kernels; all if none is named
    names: Vec<String>,
    /// All operators
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

#[derive(clap::Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Audits or checks.
///
/// # Errors
/// Unknown names, a missing device; a kernel that violates what it declares.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    match &args.what {
        What::Audit(names) => audit(&catalog::select(ops, &names.names)?, out),
        What::Check(a) => check(&catalog::select(ops, &a.names.names)?, &device::open(&a.device, false)?, out),
    }
}

/// Status of a kernel along a dimension, the worst one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    Proven,
    Tested,
    None,
    Violated,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Proven => "proven",
            Status::Tested => "tested",
            Status::None => "none",
            Status::Violated => "violated",
        }
    }
}

const COLUMNS: &[&str] = &["kernel", "target", "dim", "status", "where"];

fn place(k: &Kernel, p: &Path) -> String {
    let span = k.span_of(k.op(p.at).span);
    format!("{} ({}:{}:{})", p.what, span.file, span.line, span.column)
}

/// What the IR of one kernel says about its declared dimensions.
fn judge(k: &Kernel) -> Vec<(String, Status, String)> {
    let ranges = Ranges::new(k);
    let of = |dim: &String| {
        let (status, why) = match invariance::batch(k, &ranges, dim) {
            None => (Status::None, format!("`{dim}` is baked into the code")),
            Some(v) => match (v.violations.first(), v.unproven.first()) {
                (Some(p), _) => (Status::Violated, place(k, p)),
                (None, Some(p)) => (Status::None, format!("not proven: {}", place(k, p))),
                (None, None) => (Status::Proven, String::new()),
            },
        };
        (dim.clone(), status, why)
    };
    k.properties.batch_invariant.iter().map(of).collect()
}

type Found = BTreeMap<(String, String), (Status, String)>;

fn note(found: &mut Found, kernel: &str, dim: &str, status: Status, why: String) {
    let slot = found.entry((kernel.into(), dim.into())).or_insert((status, why.clone()));
    if status > slot.0 {
        *slot = (status, why);
    }
}

/// Kernels that declare nothing.
fn undeclared(s: &Selection, found: &mut Found) {
    for k in s.op.kernels() {
        let info = k.info();
        if s.has(&info.name) && info.batch_invariant.is_empty() {
            note(found, &info.name, "", Status::None, "declares no batch-invariant dimension".into());
        }
    }
}

fn audit(selections: &[Selection], out: Output) -> Result<(), Failure> {
    let mut table = out.table("invariance", COLUMNS);
    let mut violated = 0;
    for s in selections {
        let (mut found, mut seen) = (Found::new(), BTreeSet::new());
        undeclared(s, &mut found);
        for case in s.op.cases() {
            let op = s.op.as_ref();
            let Ok(plan) = instance::plan(op, &instance::input_specs(&case), &case.params, &Overrides::default())
            else {
                continue;
            };
            for step in instance::steps(&plan, s).unwrap_or_default() {
                if !seen.insert(step.key()) {
                    continue;
                }
                let name = step.kernel.info().name.clone();
                match compile::build(step.kernel.as_ref(), &step.request) {
                    Ok(built) => {
                        for (dim, status, why) in judge(&built.kernel) {
                            let why = if why.is_empty() { why } else { format!("{}: {why}", case.id) };
                            note(&mut found, &name, &dim, status, why);
                        }
                    }
                    Err(list) => {
                        let why = list.first().map(crate::diagnostics::headline).unwrap_or_default();
                        for dim in &step.kernel.info().batch_invariant {
                            note(&mut found, &name, dim, Status::Violated, format!("{}: {why}", case.id));
                        }
                    }
                }
            }
        }
        for ((kernel, dim), (status, why)) in &found {
            violated += usize::from(*status == Status::Violated);
            for target in Target::ALL {
                table.row(json!({
                    "kernel": kernel, "target": target.name(), "dim": dim, "status": status.name(), "where": why,
                }))?;
            }
        }
    }
    table.finish()?;
    if violated > 0 {
        return Err(Failure::Failed(format!("{violated} declared properties are violated")));
    }
    out.note(
        "proven: rows of matrix instructions are taken not to influence each other, which `kiln invariance check` tests",
    )
}

fn check(selections: &[Selection], device: &Device, out: Output) -> Result<(), Failure> {
    let mut table = out.table("invariance", COLUMNS);
    // One for all operators: a kernel may get several rows only in the plan of another operator.
    let mut found = Found::new();
    let wanted = |info: &KernelInfo| selections.iter().any(|s| s.has(&info.name));
    for s in selections {
        undeclared(s, &mut found);
        for case in s.op.cases() {
            out.progress(&format!("{} {}", s.op.info().name, case.id));
            match tested(s, device, &case, &wanted) {
                Ok(shown) => {
                    for (kernel, dim, shown) in shown {
                        match shown {
                            Shown::Equal(_) => {
                                // One case that compares something is a test; that others have nothing to compare is not a
                                // reason against it.
                                let slot = found.entry((kernel, dim)).or_insert((Status::Tested, String::new()));
                                if slot.0 == Status::None {
                                    *slot = (Status::Tested, String::new());
                                }
                            }
                            Shown::Differs(why) => {
                                note(&mut found, &kernel, &dim, Status::Violated, format!("{}: {why}", case.id));
                            }
                            Shown::Nothing(why) => {
                                found.entry((kernel, dim)).or_insert((Status::None, why));
                            }
                        }
                    }
                }
                Err(why) => {
                    let info = s.op.info();
                    note(&mut found, info.name, "", Status::Violated, format!("{}: {why}", case.id));
                }
            }
        }
    }
    let mut violated = 0;
    for ((kernel, dim), (status, why)) in &found {
        violated += usize::from(*status == Status::Violated);
        table.row(json!({
            "kernel": kernel, "target": device.target().name(), "dim": dim, "status": status.name(), "where": why,
        }))?;
    }
    table.finish()?;
    if violated > 0 {
        return Err(Failure::Failed(format!("{violated} rows of kernels depend on others on {}", device.name())));
    }
    out.note(&format!("no row depended on others on {}", device.name()))
}

type Steps = Vec<(String, String, Shown)>;

/// The smallest value of every number: more blocks, splits and borders than the default gives a small case.
#[derive(Debug)]
struct Smallest;

impl Configs for Smallest {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let space = kernel.space();
        let mut config = space.default_config();
        for axis in &space.axes {
            let number = |v: &ConfigValue| if let ConfigValue::Int(n) = v { Some(*n) } else { None };
            if let Some(n) = axis.values.iter().filter_map(number).min() {
                config.0.insert(axis.name.clone(), ConfigValue::Int(n));
            }
        }
        config
    }
}

/// Runs one case in two configurations; nothing if it is too large.
fn tested(s: &Selection, device: &Device, case: &Case, wanted: &dyn Fn(&KernelInfo) -> bool) -> Result<Steps, String> {
    let op = s.op.as_ref();
    let inputs = runner::filled(op, op.info().name, case)?;
    let mut all = vec![];
    if inputs.values().map(|t| t.data.len()).sum::<usize>() > MAX_BYTES {
        return Ok(all);
    }
    let dims = |info: &KernelInfo| if wanted(info) { info.batch_invariant.clone() } else { vec![] };
    let splits = op.splits(&runner::specs(&inputs), &case.params);
    for configs in [&Overrides::default() as &dyn Configs, &Smallest] {
        let (problem, _) = runner::place(device, op, &inputs, &case.params)?;
        let plan = op.plan(&problem, configs).map_err(|e| e.to_string())?;
        all.extend(dynamic::plan(device, &plan, (&problem, &splits), &dims)?);
    }
    Ok(all)
}
