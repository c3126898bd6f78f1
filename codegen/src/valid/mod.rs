//! The verifier: `check` gives facts or all diagnostics.
//!
//! Not a pass: it changes nothing. Every pass's result goes through it again. What it guarantees, family by family:
//! * `scopes`: ids exist, every name is defined before its use and visible there, blocks nest, tile ops stand at block
//!   level, `break` inside loops, a grid is declared;
//! * `types`: each op's contract about dtypes, ranks, extents and spaces;
//! * `initial`: tiles and outputs are written before they are read, on every path;
//! * `phases`: two iterations of one body never touch one element unless both only read it or both update it atomically;
//! * `bounds`: which accesses need a check at run time (facts, never errors);
//! * `schedule`: distributions fit their block, and barriers stand between conflicting phases (scheduled stage);
//! * `rings`: roles hand tiles over through rings as these are meant, in every order, and fit a multiprocessor;
//! * `properties`: `deterministic` and `batch_invariant` hold as far as data flow shows.
//!
//! Uniformity follows from scopes: values that differ between elements exist only inside element bodies. The later
//! families run only on kernels that pass the first two, so they may index without care.

mod bounds;
mod codes;
mod initial;
mod phases;
mod properties;
mod rings;
mod schedule;
mod scopes;
mod types;

pub use codes::{CODES, Code};
pub use rings::each_judge;
pub(crate) use rings::threads_fill;

use crate::analysis::Ranges;
use crate::diag::{Diagnostic, Severity};
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
    let mut found = scopes::check(kernel);
    if found.is_empty() {
        found = types::check(kernel);
    }
    let mut guards = HashMap::new();
    if found.is_empty() {
        let ranges = Ranges::new(kernel);
        guards = bounds::guards(kernel, &ranges);
        initial::check(kernel, &ranges, &mut found);
        phases::check(kernel, &ranges, &guards, &mut found);
        schedule::check(kernel, &mut found);
        rings::check(kernel, &mut found);
        properties::check(kernel, &ranges, &mut found);
    }
    found.sort_by_key(|d| (d.span.file.clone(), d.span.line, d.span.column, d.code));
    found.dedup();
    if found.iter().any(|d| d.severity == Severity::Error) {
        return Err(found);
    }
    Ok(Facts { guards, warnings: found })
}

#[cfg(test)]
mod tests;
