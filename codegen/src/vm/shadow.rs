//! The sanitizer's memory: for every element of every tile and tensor, whether it was written and which iterations of
//! the current body touched it; and what was found so far.
//!
//! One finding a kind and op: a defect in a loop is reported where it first shows. Not thread safe; a sanitized run
//! executes its blocks one after another.

use super::program::Place;
use crate::diag::Diagnostic;
use crate::ir::OpId;
use std::collections::{BTreeMap, HashSet};

/// Most findings one run reports.
const MAX_FINDINGS: usize = 64;

/// A touch of an element in a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Touch {
    phase: u32,
    iteration: u32,
    op: u32,
}

/// State of one element.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    written: bool,
    write: Touch,
    read: Touch,
    many_readers: bool,
    atomic: Touch,
}

/// How an element is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain read.
    Read,
    /// Plain write.
    Write,
    /// Atomic update, which is a read too.
    Atomic,
}

/// What a touch reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// Read before it was written.
    Uninitialised,
    /// Another iteration of the same body touches the same element.
    Conflict {
        /// The other op.
        op: OpId,
        /// The other iteration, counted in row-major order.
        iteration: u32,
        /// What the other one did.
        kind: Kind,
    },
}

/// State of a block's tiles.
#[derive(Clone, Debug, Default)]
pub struct TileState(Vec<Vec<Cell>>);

/// Shadow state of a sanitized run.
#[derive(Debug, Default)]
pub struct Shadow {
    params: Vec<Vec<Cell>>,
    tiles: Vec<Vec<Cell>>,
    phase: u32,
    seen: HashSet<(&'static str, u32, u32)>,
    /// Defects.
    pub findings: Vec<Diagnostic>,
    /// Numeric surprises.
    pub messages: Vec<Diagnostic>,
    /// Saturated conversions an op.
    pub saturated: BTreeMap<OpId, (u64, u64)>,
}

impl Shadow {
    /// State for parameters of the given sizes (and whether they are initialised) and tiles of the given sizes.
    pub fn new(params: &[(usize, bool)], tiles: &[usize]) -> Shadow {
        let cell = |written| Cell { written, ..Cell::default() };
        Shadow {
            params: params.iter().map(|&(n, written)| vec![cell(written); n]).collect(),
            tiles: tiles.iter().map(|&n| vec![cell(false); n]).collect(),
            ..Shadow::default()
        }
    }

    /// Tiles nobody has touched.
    pub fn fresh_tiles(sizes: &[usize]) -> TileState {
        TileState(sizes.iter().map(|&n| vec![Cell::default(); n]).collect())
    }

    /// Goes over to another block: exchanges the state of tiles, that of tensors stays.
    pub fn exchange_tiles(&mut self, other: &mut TileState) {
        std::mem::swap(&mut self.tiles, &mut other.0);
    }

    /// A body starts: a new phase.
    pub fn enter(&mut self) {
        self.phase += 1;
    }

    /// A tile exists anew.
    pub fn alloc(&mut self, tile: usize) {
        self.tiles[tile].fill(Cell::default());
    }

    /// True if element `i` of a parameter was written.
    pub fn param_written(&self, param: usize, i: usize) -> bool {
        self.params[param].get(i).is_none_or(|c| c.written)
    }

    /// Records a touch of an element; `iteration` is `None` outside element bodies.
    pub fn touch(&mut self, place: Place, at: usize, kind: Kind, iteration: Option<u32>, op: OpId) -> Option<Hit> {
        let phase = self.phase;
        let cells = match place {
            Place::Param(p) => &mut self.params[p],
            Place::Tile(t) => &mut self.tiles[t],
        };
        let c = cells.get_mut(at)?;
        let mut hit = None;
        if kind != Kind::Write && !c.written {
            hit = Some(Hit::Uninitialised);
        }
        if let Some(me) = iteration {
            let mut against = |t: Touch, many: bool, other: Kind| {
                if t.phase == phase && (many || t.iteration != me) && hit.is_none() {
                    hit = Some(Hit::Conflict { op: OpId(t.op), iteration: t.iteration, kind: other });
                }
            };
            if kind != Kind::Atomic {
                against(c.atomic, false, Kind::Atomic);
            }
            against(c.write, false, Kind::Write);
            if kind != Kind::Read {
                against(c.read, c.many_readers, Kind::Read);
            }
            let touch = Touch { phase, iteration: me, op: op.0 };
            match kind {
                Kind::Read => {
                    let other = c.read.phase == phase && c.read.iteration != me;
                    c.many_readers = other || c.read.phase == phase && c.many_readers;
                    if !other {
                        c.read = touch;
                    }
                }
                Kind::Write => c.write = touch,
                Kind::Atomic => c.atomic = touch,
            }
        }
        if kind != Kind::Read {
            c.written = true;
        }
        hit
    }

    /// True the first time a finding of this kind and ops is to be reported.
    pub fn first(&mut self, code: &'static str, a: OpId, b: OpId) -> bool {
        self.findings.len() < MAX_FINDINGS && self.seen.insert((code, a.0, b.0))
    }
}
