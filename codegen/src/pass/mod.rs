//! Passes: each takes a kernel and returns a changed one; the order per target is data in this file.
//!
//! A pass assumes a kernel that `valid::check` accepted and leaves one that it accepts again.

pub mod access;
pub mod distribute;
pub mod expand;
pub mod liveness;
pub mod matrix;
pub mod numerics;
pub mod pipeline;
pub mod place;
pub mod residency;
pub mod sync;

use crate::diag::Diagnostic;
use crate::ir::{Kernel, Stage};
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
///
/// The facts are a permit: only `valid::check` makes them, so a kernel that comes with some is one the passes may trust.
pub fn lower(kernel: Kernel, _: &Facts, target: Target) -> Result<Kernel, Vec<Diagnostic>> {
    let Some(caps) = target.caps() else { return Ok(kernel) };
    let mut kernel = CUDA.iter().try_fold(kernel, |k, (_, pass)| pass(k, &caps))?;
    kernel.stage = Stage::Scheduled;
    Ok(kernel)
}

/// Names of the passes of a target, in order, for `emit --stage`.
pub fn names(target: Target) -> Vec<&'static str> {
    if target.caps().is_some() { CUDA.iter().map(|(n, _)| *n).collect() } else { vec![] }
}
