//! Passes: each takes a kernel and returns a changed one; the order per target is data in this file.
//!
//! A pass assumes a kernel that `valid::check` accepted and leaves one that it accepts again.

pub mod access;
pub mod distribute;
pub mod expand;
pub mod matrix;
pub mod numerics;
pub mod pipeline;
pub mod place;
pub mod residency;
pub mod sync;

use crate::diag::Diagnostic;
use crate::ir::{Block, Kernel, Op, OpId, Stage};
use crate::target::{Caps, Target};
use crate::valid::Facts;

/// One step of a lowering.
type Pass = fn(Kernel, &Caps) -> Result<Kernel, Vec<Diagnostic>>;

/// Lowering for targets with threads, in order.
const CUDA: [(&str, Pass); 4] = [
    ("expand", expand::run),         // copies and fills become element loops
    ("distribute", distribute::run), // which thread does what, and which tiles live in registers
    ("place", place::run),           // offsets in shared memory, capacity
    ("sync", sync::run),             // barriers between phases that conflict
];

/// Lowers a plain kernel for a target; the result is scheduled. The VM runs plain kernels, so they pass unchanged.
///
/// # Errors
/// What the target cannot do or hold.
pub fn lower(kernel: Kernel, facts: &Facts, target: Target) -> Result<Kernel, Vec<Diagnostic>> {
    // The kernel was checked: a kernel with facts is one the passes may trust.
    let _ = facts;
    let Some(caps) = target.caps() else { return Ok(kernel) };
    let mut kernel = CUDA.iter().try_fold(kernel, |k, (_, pass)| pass(k, &caps))?;
    kernel.stage = Stage::Scheduled;
    Ok(kernel)
}

/// Names of the passes of a target, in order, for `emit --stage`.
pub fn names(target: Target) -> Vec<&'static str> {
    if target.caps().is_some() { CUDA.iter().map(|(n, _)| *n).collect() } else { vec![] }
}

/// Calls `f` for each op of a block and of the blocks nested in it, in program order.
pub(crate) fn walk(kernel: &Kernel, block: &Block, f: &mut dyn FnMut(OpId, &Op)) {
    for &id in &block.ops {
        let op = &kernel.op(id).op;
        f(id, op);
        for b in nested(op) {
            walk(kernel, kernel.block(b), f);
        }
    }
}

/// Blocks directly inside an op.
pub(crate) fn nested(op: &Op) -> Vec<crate::ir::BlockId> {
    match op {
        Op::Parallel { body, .. }
        | Op::Spread { body, .. }
        | Op::ReduceRegion { body, .. }
        | Op::FindFirst { body, .. }
        | Op::For { body, .. }
        | Op::Loop { body } => vec![*body],
        Op::If { then, els, .. } => vec![*then, *els],
        Op::Gemm { scales, .. } => scales.iter().flatten().map(|s| s.body).collect(),
        Op::Const { .. }
        | Op::IndexValue { .. }
        | Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Fma { .. }
        | Op::Compare { .. }
        | Op::CompareIndex { .. }
        | Op::Select { .. }
        | Op::Cast { .. }
        | Op::Bits { .. }
        | Op::ClampIndex { .. }
        | Op::VarNew { .. }
        | Op::VarGet { .. }
        | Op::VarSet { .. }
        | Op::IxVarNew { .. }
        | Op::IxVarGet { .. }
        | Op::IxVarSet { .. }
        | Op::Load { .. }
        | Op::LoadOr { .. }
        | Op::Store { .. }
        | Op::Atomic { .. }
        | Op::Alloc { .. }
        | Op::Fill { .. }
        | Op::Copy { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Break
        | Op::Continue
        | Op::BlockBarrier { .. } => vec![],
        Op::Sched(_) => crate::ir::effects::uses(op).blocks,
    }
}
