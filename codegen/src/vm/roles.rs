//! Scheduled kernels in the VM: roles side by side, rings between them, engines that finish when they like.
//!
//! Every instance of a role is a thread that runs while it has the turn and gives it away at ops of roles; a seed says who
//! is next and when copies take effect. Who may see what is judged by the vector clocks and shadow memory of
//! [`machine`](crate::machine), with its codes, at the ops' own positions; rings are the barriers that are printed for
//! them, a full and an empty one for each part of each slot. Values go through the engines: what is read too early is
//! poison, what is overwritten too early is wrong.
//!
//! What it does not model: threads within an instance, but for the one that issues copies and the others that do not; the
//! swizzled place of an element, of which only the agreement of both sides is judged; time.

use super::chip::{Chip, Stage};
use super::exec::{Shared, Worker};
use super::memory::Global;
use super::{BlockOrder, Report, arguments, compile, program::Program};
use crate::abi::Arg;
use crate::diag::Diagnostic;
use crate::host_memory::HostMemory;
use crate::ir::effects::walk;
use crate::ir::{Access, Kernel, Op, ParamKind, SchedOp};
use crate::machine::{Code, Policy, Timing};
use crate::valid::Facts;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// One way to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Who is next.
    pub policy: Policy,
    /// When engines finish.
    pub timing: Timing,
    /// Seed of both.
    pub seed: u64,
}

impl Schedule {
    /// The first `count` of a series that begins with the extremes.
    pub fn series(count: usize) -> Vec<Schedule> {
        let first = [
            (Policy::Priorities, Timing::Late),
            (Policy::Random, Timing::Random),
            (Policy::InOrder, Timing::Early),
            (Policy::Random, Timing::Late),
            (Policy::Priorities, Timing::Early),
            (Policy::Priorities, Timing::Random),
        ];
        (0..count)
            .map(|n| {
                let (policy, timing) = first[n % first.len()];
                Schedule { policy, timing, seed: n as u64 }
            })
            .collect()
    }
}

/// Clusters that a persistent kernel runs with: few, so that each walks over several tiles, and an odd number.
const RESIDENT: i64 = 3;

/// Runs a scheduled kernel with roles once for each schedule, on the same arguments; outputs are those of the last run.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(
    kernel: &Kernel,
    facts: &Facts,
    syms: &[i64],
    args: &[Arg],
    schedules: &[Schedule],
) -> Result<Report, Vec<Diagnostic>> {
    let program = compile::compile(kernel, facts, syms, false)?;
    let (tensors, scalars) = arguments(kernel, args)?;
    let globals: Vec<Option<Global>> = tensors
        .iter()
        .map(|t| t.and_then(|v| v.memory.host().map(|memory| Global { memory, offset: v.offset_bytes })))
        .collect();
    let outputs: Vec<&Global> = kernel
        .params
        .iter()
        .zip(&globals)
        .filter(|(p, _)| matches!(p.kind, ParamKind::Tensor { access: Access::Out | Access::InOut, .. }))
        .filter_map(|(_, g)| g.as_ref())
        .collect();
    let before: Vec<Vec<u8>> = outputs.iter().map(|g| g.memory.to_bytes()).collect();
    let mut first: Option<Vec<Vec<u8>>> = None;
    let mut report = Report::default();
    for (n, schedule) in schedules.iter().enumerate() {
        if n > 0 {
            outputs.iter().zip(&before).for_each(|(g, b)| g.memory.write(0, b));
        }
        report.findings = once(kernel, &program, &globals, &scalars, schedule)?;
        if !report.findings.is_empty() {
            return Ok(report);
        }
        let after: Vec<Vec<u8>> = outputs.iter().map(|g| g.memory.to_bytes()).collect();
        match &first {
            None => first = Some(after),
            Some(f) if *f != after => {
                let m = format!("two schedules give different results, the second is {schedule:?}");
                let d = Diagnostic::error(kernel, kernel.span, Code::ScheduleDependent.id(), m);
                report.findings.push(d.help("some role reads what another has not handed over, or writes what it has"));
                return Ok(report);
            }
            Some(_) => {}
        }
    }
    Ok(report)
}

/// Runs a plain kernel, then its scheduled form under each schedule, on the same arguments, and compares the bits of all
/// outputs, which the scheduled form leaves. Finding `S0112`: they differ.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run_checked(
    [plain, scheduled]: [(&Kernel, &Facts); 2],
    syms: &[i64],
    args: &[Arg],
    schedules: &[Schedule],
) -> Result<Report, Vec<Diagnostic>> {
    let (tensors, _) = arguments(plain.0, args)?;
    let written =
        |p: &crate::ir::Param| matches!(p.kind, ParamKind::Tensor { access: Access::Out | Access::InOut, .. });
    let outputs: Vec<(usize, &HostMemory)> = tensors
        .iter()
        .enumerate()
        .filter(|(p, _)| written(&plain.0.params[*p]))
        .filter_map(|(p, t)| Some((p, (*t)?.memory.host()?)))
        .collect();
    let before: Vec<Vec<u8>> = outputs.iter().map(|o| o.1.to_bytes()).collect();
    super::run(plain.0, plain.1, syms, args, &super::Options::default())?;
    let want: Vec<Vec<u8>> = outputs.iter().map(|o| o.1.to_bytes()).collect();
    outputs.iter().zip(&before).for_each(|(o, b)| o.1.write(0, b));
    let mut report = run(scheduled.0, scheduled.1, syms, args, schedules)?;
    for ((p, memory), want) in outputs.iter().zip(&want) {
        let got = memory.to_bytes();
        let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) else { continue };
        if report.findings.is_empty() {
            let param = &plain.0.params[*p];
            let m = format!("the scheduled kernel gives other bits than the plain one: `{}` at byte {at}", param.name);
            let d = Diagnostic::error(plain.0, param.span, "S0112", m);
            report.findings.push(d.help("a schedule only places; look at what moves this output's elements"));
        }
    }
    Ok(report)
}

fn once(
    kernel: &Kernel,
    program: &Program,
    globals: &[Option<Global>],
    scalars: &[u64],
    schedule: &Schedule,
) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let size = kernel.cluster.as_ref().map_or(1, |c| c.size.max(1));
    let axis = kernel.cluster.as_ref().and_then(|c| c.axis);
    let units: Vec<i64> = program
        .grid
        .iter()
        .enumerate()
        .map(|(n, &g)| if axis == Some(n) { (g.max(0) + size as i64 - 1) / size as i64 } else { g.max(0) })
        .collect();
    let all: i64 = units.iter().product();
    let mut persistent = false;
    walk(kernel, kernel.body, &mut |_, op| persistent |= matches!(op, Op::Sched(SchedOp::Tiles { .. })));
    let clusters = if persistent { all.min(RESIDENT) } else { all };
    let (faults, stop) = (Mutex::new(vec![]), AtomicBool::new(false));
    for cluster in 0..clusters {
        let shared =
            Shared { kernel, program, globals, scalars, order: BlockOrder::Forward, faults: &faults, stop: &stop };
        let chip = Chip::new(kernel, program, globals, size, schedule, cluster);
        let stage = Stage::new(chip, [cluster, clusters], units.clone());
        std::thread::scope(|s| {
            for block in 0..size {
                let (shared, stage) = (&shared, &stage);
                s.spawn(move || Worker::new(shared, None).role_main(stage, block));
            }
        });
        let found = stage.end();
        if !found.is_empty() {
            return Ok(found);
        }
        if let Ok(all) = faults.lock()
            && !all.is_empty()
        {
            return Err(all.clone());
        }
    }
    Ok(vec![])
}
