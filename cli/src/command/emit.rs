//! `kiln emit`: the text of a kernel at any stage, for people and for comparison.

use crate::catalog::{self, Selection};
use crate::diagnostics;
use crate::failure::Failure;
use crate::files;
use crate::instance::{self, InstanceArgs, Step};
use crate::output::Output;
use clap::ValueEnum;
use kiln_codegen::compile::{self, Built, Lowered};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::ir::print;
use kiln_codegen::spec::{Case, OpSpec};
use kiln_codegen::target::Target;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of `kiln emit`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// An operator or a kernel
    pub name: String,
    /// Target to compile for (sm_80, sm_90a, sm_100a, ascend910b, ascend950; vm has no text of its own)
    #[arg(long, value_name = "T")]
    pub target: String,
    /// Which text
    #[arg(long, value_enum, default_value_t = Stage::Source)]
    pub stage: Stage,
    /// Write to a file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which instance
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// A stage of compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// The IR as the kernel function builds it
    Plain,
    /// The IR placed for the target
    Scheduled,
    /// The schedule the kernel follows, as the calls that make it
    Schedule,
    /// The generated source text
    Source,
    /// The machine code, disassembled
    Sass,
}

/// Prints or writes the text.
///
/// # Errors
/// Unknown names, a stage the target does not have, a kernel that does not build, a file that cannot be written.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let selection = catalog::find(ops, &args.name)?;
    let target = catalog::target(&args.target)?;
    let (step, _) = first_step(&selection, &args.instance)?;
    let text = stage_text(&step, target, args.stage)?;
    match &args.output {
        Some(path) => files::write_atomic(path, text.as_bytes()),
        None => out.document(
            "emit",
            &[("kernel", &step.title()), ("target", target.name()), ("stage", &stage_name(args.stage))],
            &text,
        ),
    }
}

fn stage_name(stage: Stage) -> String {
    stage.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
}

/// The build of the first instance the options choose, with its case.
///
/// # Errors
/// As for [`InstanceArgs::cases`]; an instance the operator refuses.
pub fn first_step(selection: &Selection, args: &InstanceArgs) -> Result<(Step, Case), Failure> {
    let op = selection.op.as_ref();
    let name = op.info().name;
    let configs = args.configs(selection)?;
    let mut cases = args.cases(op)?;
    // One with work to do says more than an empty one.
    cases.sort_by_key(|c| c.inputs.iter().any(|i| i.tensor.shape.contains(&0)));
    let mut refused = None;
    for case in &cases {
        let plan = match instance::plan(op, &instance::input_specs(case), &case.params, &configs) {
            Ok(plan) => plan,
            Err(e) => {
                refused.get_or_insert(e.message);
                continue;
            }
        };
        let steps = instance::steps(&plan, selection)
            .map_err(|e| Failure::usage(format!("{name}, case {}", case.id), "an instance that can launch", e, ""))?;
        if let Some(step) = steps.into_iter().next() {
            return Ok((step, case.clone()));
        }
    }
    Err(Failure::usage(
        name,
        "an instance that launches the kernel",
        refused.unwrap_or_else(|| format!("{} cases, none of which does", cases.len())),
        "choose another --case, --shape or --config",
    ))
}

/// The kernel of a step, built and verified.
///
/// # Errors
/// All findings, as text.
pub fn build(step: &Step) -> Result<Built, Failure> {
    compile::build(step.kernel.as_ref(), &step.request).map_err(|d| refused(&d))
}

/// The kernel of a step, lowered for a target.
///
/// # Errors
/// All findings, as text.
pub fn lower(built: &Built, target: Target) -> Result<Lowered, Failure> {
    compile::source(built, target).map_err(|d| refused(&d))
}

fn refused(list: &[Diagnostic]) -> Failure {
    Failure::Failed(format!("the kernel is refused\n{}", diagnostics::render(list)))
}

fn stage_text(step: &Step, target: Target, stage: Stage) -> Result<String, Failure> {
    let built = build(step)?;
    if stage == Stage::Plain {
        return Ok(print::text(&built.kernel));
    }
    if stage == Stage::Schedule {
        return compile::scheduled(&built, target).map(|s| s.0.to_string()).map_err(|reason| {
            Failure::usage(
                "--stage schedule",
                "a kernel that a schedule fits",
                reason,
                "the portable form is used: see --stage scheduled or source",
            )
        });
    }
    if target == Target::Vm {
        return Err(Failure::usage(
            "--target vm",
            "--stage plain, which is what the tile VM runs",
            "a stage only targets with threads have",
            "add --stage plain, or choose --target sm_80, sm_90a, sm_100a, ascend910b or ascend950",
        ));
    }
    let lowered = lower(&built, target)?;
    match stage {
        Stage::Scheduled => Ok(print::text(&lowered.kernel)),
        Stage::Sass => crate::machine_code::disassemble(step, target),
        Stage::Source | Stage::Plain | Stage::Schedule => Ok(lowered.source.text),
    }
}
