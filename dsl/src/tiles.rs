//! Loops that leave room to a schedule: `tile_loop` over output tiles and `pipeline`.
//!
//! Both mean the plain loop. What becomes of them (blocks or persistent blocks, copies that run ahead) is placement.

use crate::index::{IntoIx, Ix};
use crate::loops::{DeviceLoop, Rng, Sequential};
use crate::ops::{Grid, grid};
use crate::session::with;

/// Order in which output tiles should start, so that neighbours share operands in cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raster {
    panel: usize,
}
impl Raster {
    /// Panels of `rows` rows of tiles, each walked column by column.
    pub fn panels(rows: usize) -> Raster {
        Raster { panel: rows }
    }
    /// Row by row.
    pub fn rows() -> Raster {
        Raster { panel: 1 }
    }
}

/// The tiles of an output, one a block.
#[derive(Clone, Copy, Debug)]
pub struct TileLoop<G> {
    extents: G,
    raster: Raster,
}
/// A loop over output tiles: declares the grid and gives the indices of a tile. The kernel ends with it.
pub fn tile_loop<G: Grid>(extents: G, raster: Raster) -> TileLoop<G> {
    TileLoop { extents, raster }
}

/// An open loop over tiles.
#[derive(Debug)]
#[must_use]
pub struct OpenTiles(());

impl<G: Grid> DeviceLoop for TileLoop<G> {
    type Index = G::Index;
    type Guard = OpenTiles;
    #[track_caller]
    fn begin(self, _: &[&'static str]) -> (OpenTiles, G::Index) {
        let panel = self.raster.panel;
        with(|s| {
            if panel == 0 {
                s.error("B0107", "panels of 0 rows").help = Some("`Raster::rows()` is a panel of one row".into());
            }
            s.b.kernel.raster = Some(panel.max(1));
        });
        (OpenTiles(()), grid(self.extents))
    }
}

impl OpenTiles {
    /// The loop ends, and with it the kernel.
    #[track_caller]
    pub fn end(self) {
        with(|s| s.end_tiles());
    }
}

/// A loop whose copies may run ahead.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    range: Rng,
    stages: usize,
}
/// The loop `range`, in which copies into tiles may run ahead by `stages - 1` iterations.
pub fn pipeline(range: Rng, stages: usize) -> Pipeline {
    Pipeline { range, stages }
}

impl DeviceLoop for Pipeline {
    type Index = Ix;
    type Guard = Sequential;
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (Sequential, Ix) {
        let stages = self.stages;
        with(|s| {
            if stages == 0 {
                s.error("B0211", "a pipeline of 0 stages").help = Some("1 stage means no pipeline".into());
            }
        });
        let (guard, i) = self.range.begin(names);
        (guard.staged(stages.max(1)), i)
    }
}

/// Part `at` of a range cut every `size` steps: `lo + at * size ..`, at most `size` of them.
///
/// Work is split by a length, a `#[numerics]` field, never by a number of splits: what a row adds up, and in which order,
/// then depends on its own length only, whatever it is batched with.
#[track_caller]
pub fn part<I: IntoIx>(range: Rng, size: usize, at: I) -> Rng {
    let at = at.ix();
    with(|s| {
        if size == 0 {
            s.error("B0212", "parts of 0 steps");
        }
    });
    let lo = range.lo + at * size;
    Rng { lo, hi: (lo + size).min(range.hi) }
}
