//! Build, check, lower, emit: from a kernel definition to text for a target, in one call.
//!
//! No caching and no I/O: `runtime::compile` adds both.

use crate::diag::Diagnostic;
use crate::emit::{Source, ascend, cuda};
use crate::ir::Kernel;
use crate::pass;
use crate::schedule::{self, Options, Reason, Schedule};
use crate::spec::{BuildRequest, KernelDef};
use crate::target::Target;
use crate::valid::{self, Facts};
use std::collections::BTreeMap;

/// A plain kernel that was checked.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel, with reduction orders.
    pub kernel: Kernel,
    /// What was proven about it.
    pub facts: Facts,
    /// Schedules written for it, by target, or why they could not be made.
    pub schedules: BTreeMap<Target, Result<Schedule, Reason>>,
}

/// A kernel lowered for a target, with its text.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The scheduled kernel.
    pub kernel: Kernel,
    /// What was proven about it.
    pub facts: Facts,
    /// Its text.
    pub source: Source,
    /// The schedule it follows, or why it has the portable form.
    pub schedule: Result<Schedule, Reason>,
}

/// Runs the builder, fixes reduction orders and checks the result.
///
/// # Errors
/// Everything the builder or the verifier finds.
pub fn build(def: &dyn KernelDef, request: &BuildRequest) -> Result<Built, Vec<Diagnostic>> {
    let mut built = check(def.build(request)?)?;
    for target in Target::ALL {
        if let Some(s) = def.schedule(target, &built.kernel, &request.config) {
            built.schedules.insert(target, s);
        }
    }
    Ok(built)
}

/// Fixes reduction orders of a plain kernel and checks it.
///
/// # Errors
/// Everything the verifier finds.
pub fn check(kernel: Kernel) -> Result<Built, Vec<Diagnostic>> {
    let kernel = pass::numerics::plan(kernel);
    let facts = valid::check(&kernel)?;
    Ok(Built { kernel, facts, schedules: BTreeMap::new() })
}

/// The schedule a kernel has on a target: the written one, else the automatic one.
///
/// # Errors
/// Why it keeps the portable form.
pub fn schedule(built: &Built, target: Target) -> Result<Schedule, Reason> {
    let Some(caps) = target.caps() else { return Err(format!("`{}` has no threads to schedule", target.name())) };
    match built.schedules.get(&target) {
        Some(written) => written.clone(),
        None => schedule::automatic(&built.kernel, &caps, &Options::default()),
    }
}

/// A kernel placed by its schedule, checked.
///
/// # Errors
/// Why it keeps the portable form.
pub fn scheduled(built: &Built, target: Target) -> Result<(Schedule, Kernel, Facts), Reason> {
    let Some(caps) = target.caps() else { return Err(format!("`{}` has no threads to schedule", target.name())) };
    let s = schedule(built, target)?;
    let kernel = schedule::apply(&built.kernel, &s, &caps)?;
    let facts = valid::check(&kernel)
        .map_err(|d| d.first().map_or_else(String::new, |d| format!("the scheduled kernel is wrong: {}", d.message)))?;
    Ok((s, kernel, facts))
}

/// Lowers a checked kernel for a target and prints it: by its schedule where it has one, else in the portable form.
///
/// # Errors
/// What the target cannot do or hold.
pub fn source(built: &Built, target: Target) -> Result<Lowered, Vec<Diagnostic>> {
    if target.npu().is_some() {
        let lowered = ascend::emit(&built.kernel, &built.facts, target, &ascend::Options::default())?;
        let reason = "cube and vector cores are scheduled while the text is made".to_string();
        return Ok(Lowered {
            kernel: lowered.kernel,
            facts: built.facts.clone(),
            source: lowered.source,
            schedule: Err(reason),
        });
    }
    let reason = match scheduled(built, target) {
        Ok((schedule, kernel, facts)) => match cuda::emit(&kernel, &facts, target) {
            Ok(source) => return Ok(Lowered { kernel, facts, source, schedule: Ok(schedule) }),
            Err(d) => d.first().map_or_else(String::new, |d| d.message.clone()),
        },
        Err(reason) => reason,
    };
    let kernel = pass::lower(built.kernel.clone(), &built.facts, target)?;
    let facts = valid::check(&kernel)?;
    let source = cuda::emit(&kernel, &facts, target)?;
    Ok(Lowered { kernel, facts, source, schedule: Err(reason) })
}
