//! Build, check, lower, emit: from a kernel definition to text for a target, in one call.
//!
//! No caching and no I/O: `runtime::compile` adds both.

use crate::diag::Diagnostic;
use crate::emit::{Source, cuda};
use crate::ir::Kernel;
use crate::pass;
use crate::spec::{BuildRequest, KernelDef};
use crate::target::Target;
use crate::valid::{self, Facts};

/// A plain kernel that was checked.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel, with reduction orders.
    pub kernel: Kernel,
    /// What was proven about it.
    pub facts: Facts,
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
}

/// Runs the builder, fixes reduction orders and checks the result.
///
/// # Errors
/// Everything the builder or the verifier finds.
pub fn build(def: &dyn KernelDef, request: &BuildRequest) -> Result<Built, Vec<Diagnostic>> {
    check(def.build(request)?)
}

/// Fixes reduction orders of a plain kernel and checks it.
///
/// # Errors
/// Everything the verifier finds.
pub fn check(kernel: Kernel) -> Result<Built, Vec<Diagnostic>> {
    let kernel = pass::numerics::plan(kernel);
    let facts = valid::check(&kernel)?;
    Ok(Built { kernel, facts })
}

/// Lowers a checked kernel for a target and prints it.
///
/// # Errors
/// What the target cannot do or hold.
pub fn source(built: &Built, target: Target) -> Result<Lowered, Vec<Diagnostic>> {
    let kernel = pass::lower(built.kernel.clone(), &built.facts, target)?;
    let facts = valid::check(&kernel)?;
    let source = cuda::emit(&kernel, &facts, target)?;
    Ok(Lowered { kernel, facts, source })
}
