//! Batch invariance: does a row's slice of the output depend on that row's slice of the input alone?
//!
//! `batch` follows every value of a plain kernel from where it comes from to where it goes. Sources: the extent of the
//! dimension, the position of a row, data of other rows. Sinks: the number of steps of loops that carry floats, and what
//! is written to rows of outputs. Allowed: anything that only decides where and when work is done (grids, loops that carry
//! nothing, tests that a row exists), and the place of a row inside a matrix product.
//!
//! Two kinds of answer. A *violation* is a path from a source to a sink. A row is *unproven* where the analysis cannot
//! follow: a tensor that keeps rows under another name, a tile whose rows it cannot name, a store that happens or not as
//! other rows decide. A kernel without either is proven. Three things are taken on trust: a write to a tile replaces all
//! that is read of it later (what `valid` calls initialised), every element of an output is written (the sanitizer's
//! S0104), and rows of a matrix instruction do not influence each other on a device.

mod flow;
mod rows;

use super::Ranges;
use crate::ir::{Kernel, OpId, SymKind};

/// Where something comes from that a row must not depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The extent of the dimension.
    Extent,
    /// Where the row stands.
    Position,
    /// Data of other rows.
    OtherRows,
    /// The analysis lost track.
    Unclear,
}

/// Where it must not go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The number of steps of a loop that adds to the tile or variable of this name, which the op writes.
    Steps {
        /// Name.
        carried: String,
        /// An op that writes it.
        write: OpId,
    },
    /// Content of the output of this name.
    Output(String),
}

/// A way from a source to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source.
    pub source: Source,
    /// Sink.
    pub sink: Sink,
    /// The op at the sink.
    pub at: OpId,
    /// Ops on the way, from the source on.
    pub through: Vec<OpId>,
    /// What the source is, in words.
    pub what: String,
}

/// What was found about one dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Ways that refuse the kernel.
    pub violations: Vec<Path>,
    /// Why the property is not proven, if nothing refuses it.
    pub unproven: Vec<Path>,
}

impl Verdict {
    /// True if the property is proven.
    pub fn proven(&self) -> bool {
        self.violations.is_empty() && self.unproven.is_empty()
    }
}

/// Follows dimension `dim` of a plain kernel that passed the other checks. `None` if it is not a dimension of launches:
/// a kernel has none of this name, or its extent is baked into the code.
pub fn batch(kernel: &Kernel, ranges: &Ranges, dim: &str) -> Option<Verdict> {
    let sym = kernel.syms.iter().position(|s| s.name == dim && s.kind == SymKind::Dim)?;
    Some(flow::follow(kernel, ranges, crate::ir::SymId(sym as u32)))
}
