//! Loops that leave room to a schedule: `tile_loop` over output tiles and `pipeline`.
//!
//! Both mean the plain loop. What becomes of them (blocks or persistent blocks, copies that run ahead) is placement.

use crate::branch::{Arm, DeviceIf, if_begin, if_else, if_end, if_then};
use crate::compare;
use crate::dtype::{F32, I32};
use crate::index::{IntoIx, Ix};
use crate::loops::{DeviceLoop, Rng, Sequential, parallel};
use crate::ops::{Grid, copy, grid};
use crate::session::with;
use crate::tensor::{Gm, load};
use crate::tile::{Frag, Tile, frag};
use kiln_dsl_macros::kernel_fn;

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

/// Groups of rows of one output, as data says: which tiles there are is known on the device only.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    table: Gm<I32, 1>,
    /// Rows each group has room for, if groups have room of their own.
    room: Option<Ix>,
    groups: Ix,
}
impl Groups {
    /// Rows of all groups follow each other: row `r` belongs to group `group_of_row[r]`, one of `groups`; a negative
    /// entry is padding. All rows of a tile belong to the group of its first row, so groups start at multiples of the
    /// tile's rows.
    pub fn contiguous<G: IntoIx>(group_of_row: Gm<I32, 1>, groups: G) -> Groups {
        Groups { table: group_of_row, room: None, groups: groups.ix() }
    }
    /// Each group has room for `room` rows, of which the first `rows_of_group[g]` exist.
    pub fn masked<R: IntoIx>(rows_of_group: Gm<I32, 1>, room: R) -> Groups {
        Groups { table: rows_of_group, room: Some(room.ix()), groups: rows_of_group.extent(0) }
    }
}

/// The tiles of an output whose rows stand in groups, one a block.
#[derive(Clone, Copy, Debug)]
pub struct GroupedTiles {
    groups: Groups,
    rows: usize,
    columns: Ix,
    raster: Raster,
}
/// A loop over tiles of `rows` rows of [`Groups`] and `columns` tiles along the other axis: gives the group, the rows
/// and the column of a tile. Rows of masked groups are counted from the start of their group, and there are at most
/// `rows`: `x.pick(g).first_rows(m.end()).at((m.start(), 0))` is the part of a tensor that belongs to the tile. Tiles
/// without rows do not run the body, so nothing of the output is written for them. The kernel ends with the loop.
pub fn tile_loop_grouped<C: IntoIx>(groups: Groups, rows: usize, columns: C, raster: Raster) -> GroupedTiles {
    GroupedTiles { groups, rows, columns: columns.ix(), raster }
}

/// An open loop over tiles of groups.
#[derive(Debug)]
#[must_use]
pub struct OpenGroups {
    inside: DeviceIf,
    tiles: OpenTiles,
}

impl DeviceLoop for GroupedTiles {
    type Index = (Ix, Rng, Ix);
    type Guard = OpenGroups;
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (OpenGroups, (Ix, Rng, Ix)) {
        let rows = self.rows.max(1);
        if self.rows == 0 {
            with(|s| s.error("B0109", "tiles of 0 rows").help = Some("a tile has at least one row".into()));
        }
        let Groups { table, room, groups } = self.groups;
        match room {
            None => {
                let all = table.extent(0);
                let (tiles, (m, n)) = tile_loop((all.div_ceil(rows), self.columns), self.raster).begin(names);
                let start = m * rows;
                let group = load::<I32>(table.view, vec![start.id]);
                let inside = if_begin(compare::ge(group, 0));
                let group = group.clamp_index(0, groups.saturating_sub(1));
                let rows = Rng { lo: start, hi: (start + rows).min(all) };
                (OpenGroups { inside, tiles }, (group, rows, n))
            }
            Some(room) => {
                let extents = (room.div_ceil(rows), self.columns, groups);
                let (tiles, (m, n, group)) = tile_loop(extents, self.raster).begin(names);
                let start = m * rows;
                let count = load::<I32>(table.view, vec![group.id]).clamp_index(0, room);
                let inside = if_begin(compare::lt(start, count));
                let rows = Rng { lo: start, hi: (start + rows).min(count) };
                (OpenGroups { inside, tiles }, (group, rows, n))
            }
        }
    }
}

impl OpenGroups {
    /// The loop ends, and with it the kernel.
    #[track_caller]
    pub fn end(self) {
        let then = if if_then(&self.inside) { Arm::Taken(()) } else { Arm::Skipped };
        let els = if if_else(&self.inside) { Arm::Taken(()) } else { Arm::Skipped };
        if_end(self.inside, (then, els));
        self.tiles.end();
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

/// Part `at` of `count` equal parts of a range, for a split along the reduced axis: each part is cut at a multiple of
/// `step`, the last may be shorter or empty. `count` is a `#[numerics]` field, since it says where sums are cut; the
/// parts' results are combined in ascending order ([`sum_parts`]).
#[track_caller]
pub fn split_k<I: IntoIx>(range: Rng, count: usize, step: usize, at: I) -> Rng {
    let (at, count, step) = (at.ix(), count.max(1), step.max(1));
    let each = (range.hi.saturating_sub(range.lo)).div_ceil(count * step) * step;
    let lo = (range.lo + at * each).min(range.hi);
    Rng { lo, hi: (lo + each).min(range.hi) }
}

/// `acc = parts[0] + parts[1] + ..` in ascending order, where `parts` is `[count, m, n]` and a tile of it starts at
/// `start`: the ordered reduction of a split along the reduced axis.
#[kernel_fn]
pub fn sum_parts<A>(parts: Gm<F32, 3, A>, count: usize, start: (Ix, Ix), acc: Tile<F32, Frag, 2>) {
    let part = frag::<F32, 2>(acc.extents());
    copy(parts.pick(0).at(start), acc);
    for p in 1..count {
        copy(parts.pick(p).at(start), part);
        for (i, j) in parallel([acc.extent(0), acc.extent(1)]) {
            acc[(i, j)] += part[(i, j)];
        }
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
