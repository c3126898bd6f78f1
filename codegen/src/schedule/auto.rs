//! Schedules made from what a kernel looks like: one role that copies, one that multiplies, a ring between them.

use super::parts::{Parts, Reason, name_of, read_only, seen, unit_depth};
use super::{ClusterSpec, CopySpec, Schedule};
use crate::analysis::Ranges;
use crate::ir::{Base, Evict, Kernel, Op};
use crate::target::Caps;

/// What a kernel's author or the tuner may decide without writing a schedule. Nothing here changes results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Warp groups that multiply, each with its share of the rows; 0 chooses by the tile.
    pub groups: usize,
    /// Slots of the ring at most; 0 takes the loop's stages.
    pub stages: usize,
    /// Warp groups that take steps of K in turn, each with a part of the sum, for kernels whose sum has parts; blocks of a
    /// cluster then share a tile with the rest of the parts, and `cluster` and `share_left` have no say.
    pub turns: usize,
    /// The left operand is read once and need not stay in the cache.
    pub left_once: bool,
    /// Blocks of a cluster.
    pub cluster: usize,
    /// Neighbours share the left operand (they are neighbours along the columns), else the right one.
    pub share_left: bool,
    /// Iterations of the loop printed in a row.
    pub unroll: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { groups: 0, stages: 0, turns: 1, left_once: false, cluster: 1, share_left: true, unroll: 4 }
    }
}

/// Warp groups for a tile of this many rows: 64 or 128 each, two where that divides.
fn groups_for(rows: usize) -> Option<usize> {
    match rows {
        64 => Some(1),
        128 | 256 => Some(2),
        192 => Some(3),
        _ => None,
    }
}

/// The automatic schedule.
///
/// # Errors
/// Why the kernel keeps the portable form.
pub fn automatic(k: &Kernel, caps: &Caps, o: &Options) -> Result<Schedule, Reason> {
    if !caps.warp_group_matrix {
        return Err("the target has no matrix unit for warp groups".into());
    }
    let parts = Parts::find(k)?;
    let ranges = Ranges::new(k);
    let [m, n] = parts.tile;
    let groups = match o.groups {
        0 => groups_for(m).ok_or_else(|| format!("a tile of {m} rows is not 64, 128, 192 or 256"))?,
        g if m % (64 * g) == 0 => g,
        g => return Err(format!("{g} warp groups do not share {m} rows in pieces of 64")),
    };
    if n % 8 != 0 || n > 256 {
        return Err(format!("a tile of {n} columns is not a multiple of 8 up to 256"));
    }
    let count = parts.split.as_ref().map_or(1, |p| p.count);
    let turns = o.turns.max(1);
    if count % turns != 0 {
        return Err(format!("{turns} warp groups in turn do not divide the {count} parts of the sum"));
    }
    let (shared, neighbours) = (count / turns, if count > 1 { 1 } else { o.cluster });
    let dependent = k.properties.launch.dependent && caps.dependent_launch;
    let mut s = Schedule { persistent: true, dependent, ..Schedule::default() };
    if groups * turns <= 3 {
        let (load_registers, math_registers) = if groups * turns == 3 { (56, 152) } else { (40, 232) };
        s.role("load", 4).registers(load_registers).issue_from_one_thread();
        s.role("math", 4).instances(groups * turns).registers(math_registers);
    } else {
        // So many warps leave too few registers to give away.
        s.role("load", 1).issue_from_one_thread();
        s.role("math", 4).instances(groups * turns);
    }
    let mut names = vec![];
    for c in &parts.copies {
        let tile = k.buffer(c.tile).name.clone();
        let source = seen(k, &ranges, c.src.view, k.view(c.src.view).extents.len() - 1)?;
        if !read_only(k, source.param) {
            return Err(format!("`{}` may be written while the kernel runs", k.param(source.param).name));
        }
        if unit_depth(k.buffer(c.tile).dtype).is_none() {
            return Err(format!("the matrix unit does not multiply {}", k.buffer(c.tile).dtype));
        }
        let name = name_of(k, c.op, &tile);
        let left = parts.products.iter().any(|p| k.view(p.a).base == Base::Buffer(c.tile));
        let multicast = neighbours > 1 && left == o.share_left;
        let evict = if left && o.left_once && !multicast { Evict::First } else { Evict::Normal };
        s.copy(&name, CopySpec { evict, multicast });
        s.place("load", &[&name]);
        names.push(tile);
    }
    if neighbours > 1 {
        if k.grid.len() < 2 {
            return Err("a cluster needs a grid of rows and columns of tiles".into());
        }
        s.cluster = Some(ClusterSpec { size: neighbours, axis: Some(if o.share_left { 1 } else { 0 }) });
    }
    if shared > 1 {
        s.cluster = Some(ClusterSpec { size: shared, axis: None });
    }
    let stages = match (&k.op(parts.main).op, o.stages) {
        (Op::For { stages, .. }, 0) => (*stages / turns).max(1) * turns,
        (_, n) => n,
    };
    let tiles: Vec<&str> = names.iter().map(String::as_str).collect();
    s.ring("operands", &tiles, stages.max(turns), "load", "math");
    s.take_turns("operands", turns);
    let acc = k.buffer(parts.acc).name.clone();
    for p in &parts.products {
        s.place("math", &[&name_of(k, p.op, &acc)]);
    }
    for &id in &parts.after {
        for store in super::epilogue::stores(k, &parts, id) {
            let name = name_of(k, id, &store.name);
            s.place("math", &[&name]);
            if super::epilogue::stageable(k, &ranges, &parts, &store).is_ok() {
                s.staged.push(name);
            }
        }
    }
    if o.unroll > 1 {
        let main = name_of(k, parts.main, "loop");
        s.unroll.insert(main, o.unroll);
    }
    Ok(s)
}
