//! Build, check, lower, emit: from a kernel definition to text for a target, in one call.
//!
//! No caching and no I/O: `runtime::compile` adds both.

use crate::diag::{Diagnostic, Severity};
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
    /// Other kernels that do the same on a target, or why they cannot there.
    pub forms: BTreeMap<Target, Result<Box<Built>, Reason>>,
}

impl Built {
    /// What runs on a target: the form of its own if there is one.
    pub fn on(&self, target: Target) -> &Built {
        match self.forms.get(&target) {
            Some(Ok(form)) => form,
            Some(Err(_)) | None => self,
        }
    }
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
    /// The schedule it follows, or why it has the portable form; if that is worth a warning, `facts` has it.
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
        if let Some(form) = def.form(target) {
            // What it does not take is no news: the kernel itself is there for that.
            if form.require(&request.fixed, &request.config).is_ok() {
                built.forms.insert(target, form_of(&built.kernel, &*form, request, target).map(Box::new));
            }
        }
    }
    Ok(built)
}

/// A form of a kernel, if it can be placed on its target and takes the kernel's place.
fn form_of(k: &Kernel, form: &dyn KernelDef, request: &BuildRequest, target: Target) -> Result<Built, Reason> {
    let built = build(form, request).map_err(|d| refusal(&d))?;
    let params = |k: &Kernel| k.params.iter().map(|p| (p.name.clone(), p.kind.clone())).collect::<Vec<_>>();
    if params(k) != params(&built.kernel) || k.grid.len() != built.kernel.grid.len() {
        return Err(format!("`{}` has other parameters or another grid than `{}`", built.kernel.name, k.name));
    }
    scheduled(&built, target)?;
    Ok(built)
}

/// Fixes reduction orders of a plain kernel and checks it.
///
/// # Errors
/// Everything the verifier finds.
pub fn check(kernel: Kernel) -> Result<Built, Vec<Diagnostic>> {
    let kernel = pass::numerics::plan(kernel);
    let facts = valid::check(&kernel)?;
    Ok(Built { kernel, facts, schedules: BTreeMap::new(), forms: BTreeMap::new() })
}

/// The schedule a kernel has on a target: the written one, else the automatic one.
///
/// # Errors
/// Why it keeps the portable form.
pub fn schedule(built: &Built, target: Target) -> Result<Schedule, Reason> {
    let built = built.on(target);
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
    let built = built.on(target);
    let Some(caps) = target.caps() else { return Err(format!("`{}` has no threads to schedule", target.name())) };
    // Roles that are written in the kernel leave a schedule nothing to place.
    let (s, kernel) = if built.kernel.roles.is_empty() {
        let s = schedule(built, target)?;
        let kernel = schedule::apply(&built.kernel, &s, &caps)?;
        (s, kernel)
    } else {
        (of_roles(&built.kernel), schedule::written(&built.kernel, &caps)?)
    };
    let facts = valid::check(&kernel).map_err(|d| refusal(&d))?;
    Ok((s, kernel, facts))
}

/// The roles and rings of a kernel as a schedule shows them.
fn of_roles(k: &Kernel) -> Schedule {
    let mut s = Schedule::default();
    for r in &k.roles {
        s.role(&r.name, r.warps).registers = r.registers;
    }
    let name = |id: crate::ir::RoleId| k.roles.get(id.0 as usize).map_or("", |r| r.name.as_str());
    for r in &k.rings {
        let tiles: Vec<&str> = r.parts.iter().flat_map(|p| &p.buffers).map(|&b| k.buffer(b).name.as_str()).collect();
        s.ring(&r.name, &tiles, r.depth, name(r.producer), r.consumers.first().map_or("", |&c| name(c)));
        s.take_turns(&r.name, r.turns);
    }
    s
}

/// What is wrong with a scheduled kernel, in one line.
fn refusal(list: &[Diagnostic]) -> Reason {
    let Some(d) = list.iter().find(|d| d.severity == Severity::Error) else { return WRONG.into() };
    let more = if list.len() > 1 { format!(" (and {} more)", list.len() - 1) } else { String::new() };
    let help = d.help.as_deref().map_or(String::new(), |h| format!("; {h}"));
    format!("{WRONG}: {} at {}:{}: {}{more}{help}", d.code, d.span.file, d.span.line, d.message)
}

/// How the reason begins where the verifier refused what a schedule made.
const WRONG: &str = "the scheduled kernel is wrong";

/// The warning for a schedule that is not followed although someone wrote it, or that made a wrong kernel; that an
/// automatic one does not fit is no news.
fn rejected(built: &Built, target: Target, reason: &Reason) -> Option<Diagnostic> {
    let written = built.schedules.contains_key(&target);
    if !written && !reason.starts_with(WRONG) {
        return None;
    }
    let whose = if written { "written" } else { "automatic" };
    let k = &built.kernel;
    let m =
        format!("the {whose} schedule for {} is rejected, the kernel has the portable form: {reason}", target.name());
    let help = "change the schedule as the reason says; `kiln emit NAME --stage schedule` prints the automatic one to start from";
    Some(Diagnostic::error(k, k.span, "V0550", m).warning().help(help))
}

/// The warning for a form of its own that a kernel cannot have.
fn no_form(k: &Kernel, target: Target, reason: &Reason) -> Diagnostic {
    let m = format!(
        "the form of `{}` for {} is rejected, the kernel has the portable form: {reason}",
        k.name,
        target.name()
    );
    let help = "change the form as the reason says, or what it requires";
    Diagnostic::error(k, k.span, "V0550", m).warning().help(help)
}

/// Lowers a checked kernel for a target and prints it: by its schedule where it has one, else in the portable form.
///
/// # Errors
/// What the target cannot do or hold.
pub fn source(built: &Built, target: Target) -> Result<Lowered, Vec<Diagnostic>> {
    let refused = built.forms.get(&target).and_then(|f| f.as_ref().err());
    let built = built.on(target);
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
    if !built.kernel.roles.is_empty() {
        let k = &built.kernel;
        let m = format!("the roles of `{}` have no form on {} yet: {reason}", k.name, target.name());
        let help = "run it on `cpu` or `vm:sm_90a`, which interpret roles; use the kernel without roles on this target";
        return Err(vec![Diagnostic::error(k, k.span, "C0302", m).help(help)]);
    }
    let kernel = pass::lower(built.kernel.clone(), &built.facts, target)?;
    let mut facts = valid::check(&kernel)?;
    facts.warnings.extend(rejected(built, target, &reason));
    facts.warnings.extend(refused.map(|r| no_form(&built.kernel, target, r)));
    let source = cuda::emit(&kernel, &facts, target)?;
    Ok(Lowered { kernel, facts, source, schedule: Err(reason) })
}
