//! Chooses which thread does which iteration, and which `Frag` tiles live in registers.
//!
//! Loops, reductions and tiles that touch each other at equal positions form a class with one [`Map`]. A reduction fixes
//! the map of its source's class (its order is part of the result); a tile with one element per row of a class gets a
//! map derived from it, with a copy in every thread of the row. A class without a reduction takes the widest accesses.
//! A tile that fits no single map, or is used in any other way, moves to shared memory: correct everywhere, just slower.

use super::access::{Form, Lanes, inner_axis, memory_bits};
use super::numerics;
use super::residency::Map;
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::ir::effects::{bodies, walk};
use crate::ir::{
    Base, BlockId, BufferId, Distribution, IxExpr, IxId, IxVarId, Kernel, Op, OpId, SchedOp, Space, ViewId,
};
use crate::target::Caps;
use std::collections::{BTreeMap, BTreeSet};

/// Registers that tiles may take in each thread before the largest one moves to shared memory.
const MAX_TILE_REGISTERS: usize = 200;

/// How a tile's element relates to the iteration that touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// Element `e` in iteration `e`.
    Same,
    /// Element `e / k` in iteration `e`.
    Ratio(usize),
}

/// A loop or reduction.
#[derive(Debug)]
struct Node {
    op: OpId,
    extents: Vec<usize>,
    /// Fixed map, for reductions.
    anchor: Option<Map>,
    /// Tiles it touches.
    tiles: Vec<(BufferId, Relation)>,
    /// Length of the innermost axis, which `vec` must divide so that lanes share the outer indices.
    row: Option<usize>,
}

/// See the file's head.
pub fn run(mut kernel: Kernel, caps: &Caps) -> Result<Kernel, Vec<Diagnostic>> {
    let threads = kernel.warps * 32;
    if threads > caps.threads {
        let d =
            Diagnostic::error(&kernel, kernel.span, "C0101", format!("a block of {} warps is too large", kernel.warps));
        return Err(vec![d.label(format!("the target allows {}", caps.threads / 32)).help("lower `warps(..)`")]);
    }
    kernel.ix_const_id(0);
    let ranges = Ranges::new(&kernel);
    let (mut shared, mut uniform) = (BTreeSet::new(), BTreeSet::new());
    let nodes = collect(&kernel, threads, &mut shared, &mut uniform);
    let solution = loop {
        match solve(&kernel, &ranges, &nodes, &shared, &uniform, threads) {
            Ok(s) => break s,
            Err(tile) => {
                shared.insert(tile);
            }
        }
    };
    for (node, distribution) in nodes.iter().zip(solution.loops) {
        if let Op::Parallel { distribution: d, .. } = &mut kernel.ops[node.op.0 as usize].op {
            *d = Some(distribution);
        }
    }
    for b in 0..kernel.buffers.len() {
        if kernel.buffers[b].space == Space::Frag {
            match solution.tiles.get(&BufferId(b as u32)) {
                Some(d) => kernel.buffers[b].distribution = Some(d.clone()),
                None => kernel.buffers[b].space = Space::Shared,
            }
        }
    }
    Ok(kernel)
}

/// Chosen distributions.
struct Solution {
    loops: Vec<Distribution>,
    tiles: BTreeMap<BufferId, Distribution>,
}

/// Finds all nodes. Tiles used in ways no register can serve go to `shared`; those read at a constant index, by everyone
/// at once, to `uniform`.
fn collect(k: &Kernel, threads: usize, shared: &mut BTreeSet<BufferId>, uniform: &mut BTreeSet<BufferId>) -> Vec<Node> {
    let mut nodes = vec![];
    let mut inside = BTreeSet::new();
    let held = numerics::accumulators(k);
    walk(k, k.body, &mut |id, op| {
        if let Op::Parallel { vars, extents, body, .. } = op {
            let mut node = loop_node(id, extents, None);
            loop_tiles(k, &mut node, vars, *body, shared, uniform, &mut inside);
            nodes.push(node);
        } else if let Op::ReduceRegion { vars, extents, body, value, order, op, .. } = op {
            let n = extents.iter().product();
            let map = row_map(order_of(*order, *op, k.value(*value).dtype, extents, k.warps), n, threads);
            let mut node = loop_node(id, extents, Some(map));
            loop_tiles(k, &mut node, vars, *body, shared, uniform, &mut inside);
            // Fewer lanes than threads: every group does the same work, so tiles must be readable by all.
            if map.lanes != threads {
                shared.extend(node.tiles.drain(..).map(|(t, _)| t));
            }
            nodes.push(node);
        } else if let reduction @ Op::Reduce { op, src, dst, axis, order } = op {
            let extents = k.const_extents(*src).unwrap_or_default();
            let tile = frag_of(k, *src);
            if *axis + 1 != extents.len() {
                shared.extend(tile);
                shared.insert(*dst);
                return;
            }
            let n = extents[*axis];
            if in_fragment(k, &held, reduction)
                && let Some(t) = tile
            {
                let tiles = vec![(t, Relation::Same), (*dst, Relation::Ratio(n))];
                nodes.push(Node { op: id, row: None, extents, anchor: None, tiles });
                return;
            }
            let map = row_map(order_of(*order, *op, k.view(*src).dtype, &[n], k.warps), n, threads);
            let mut node = Node { op: id, row: None, extents, anchor: Some(map), tiles: vec![] };
            if let Some(t) = tile {
                if whole(k, *src, t) {
                    node.tiles.push((t, Relation::Same));
                } else {
                    shared.insert(t);
                }
            }
            node.tiles.push((*dst, Relation::Ratio(n)));
            nodes.push(node);
        } else if let Op::Scan { src, dst, .. } = op {
            shared.extend(frag_of(k, *src));
            shared.insert(*dst);
        } else if let Op::Gemm { a, b, acc, .. } = op {
            // Matrix units take operands from shared memory; the accumulator stays where they leave it, if it can.
            shared.extend([*a, *b].into_iter().filter_map(|v| frag_of(k, v)));
            let extents = k.buffer(*acc).extents.clone();
            let [m, n] = extents[..] else { return };
            let tiles = vec![(*acc, Relation::Same)];
            nodes.push(Node { op: id, row: None, extents, anchor: Some(Map::fragment(m, n, threads)), tiles });
        } else if let Op::Sched(SchedOp::Wgmma { acc, .. }) = op {
            let extents = k.buffer(*acc).extents.clone();
            let [m, n] = extents[..] else { return };
            let tiles = vec![(*acc, Relation::Same)];
            nodes.push(Node { op: id, row: None, extents, anchor: Some(Map::warp_group(m, n, threads)), tiles });
        }
    });
    // Rows are looked up by whoever needs them.
    for v in &k.views {
        if let Some(g) = v.gather {
            shared.extend(frag_of(k, g.table()));
        }
    }
    // What is left are accesses outside of loops with a distribution.
    walk(k, k.body, &mut |id, op| {
        if let Some((view, index)) = element_access(op)
            && !inside.contains(&id)
        {
            let everyone = matches!(op, Op::Load { .. }) && constant_index(k, view, index).is_some();
            (if everyone { &mut *uniform } else { &mut *shared }).extend(frag_of(k, view));
        }
    });
    nodes
}

/// True if a reduction goes along the rows of a warp group's accumulator in an order in which its lanes can do it where
/// the unit left them.
pub(crate) fn in_fragment(k: &Kernel, held: &BTreeSet<BufferId>, op: &Op) -> bool {
    let Op::Reduce { op, src, axis, order, .. } = op else { return false };
    let free = !numerics::ordered(*op, k.view(*src).dtype);
    *axis == 1 && (free || *order == Some(numerics::ROW_OF_FRAGMENT)) && numerics::accumulated(k, held, *src)
}

fn loop_node(op: OpId, extents: &[usize], anchor: Option<Map>) -> Node {
    let row = inner_axis(extents).map(|a| extents[a]);
    Node { op, extents: extents.to_vec(), anchor, tiles: vec![], row }
}

fn loop_tiles(
    k: &Kernel,
    node: &mut Node,
    vars: &[IxVarId],
    body: BlockId,
    shared: &mut BTreeSet<BufferId>,
    uniform: &mut BTreeSet<BufferId>,
    inside: &mut BTreeSet<OpId>,
) {
    walk(k, body, &mut |id, op| {
        let Some((view, index)) = element_access(op) else { return };
        inside.insert(id);
        let Some(tile) = frag_of(k, view) else { return };
        if matches!(op, Op::Load { .. }) && constant_index(k, view, index).is_some() {
            uniform.insert(tile);
            return;
        }
        let writes = matches!(op, Op::Store { .. });
        let atomic = matches!(op, Op::Atomic { .. });
        match relation(k, vars, &node.extents, view, index, tile) {
            Some(r) if !atomic && (!writes || r == Relation::Same) => node.tiles.push((tile, r)),
            Some(_) | None => drop(shared.insert(tile)),
        }
    });
}

/// View and index of an element access.
pub(crate) fn element_access(op: &Op) -> Option<(ViewId, &[IxId])> {
    if let Op::Load { view, index, .. }
    | Op::LoadOr { view, index, .. }
    | Op::Store { view, index, .. }
    | Op::Atomic { view, index, .. } = op
    {
        Some((*view, index))
    } else {
        None
    }
}

/// The `Frag` a view looks at.
fn frag_of(k: &Kernel, view: ViewId) -> Option<BufferId> {
    match k.view(view).base {
        Base::Buffer(b) if k.buffer(b).space == Space::Frag => Some(b),
        Base::Buffer(_) | Base::Param(_) => None,
    }
}

/// Flat number of the tile element an access means, if it is a constant.
pub(crate) fn constant_index(k: &Kernel, view: ViewId, index: &[IxId]) -> Option<i64> {
    let v = k.view(view);
    index
        .iter()
        .zip(&v.strides)
        .try_fold(k.ix_const(v.offset)?, |sum, (&i, &s)| Some(sum + k.ix_const(i)? * k.ix_const(s)?))
}

/// True if a view covers a tile in row-major order, possibly with other extents.
fn whole(k: &Kernel, view: ViewId, tile: BufferId) -> bool {
    let (v, Some(extents)) = (k.view(view), k.const_extents(view)) else { return false };
    let count: usize = k.buffer(tile).extents.iter().product();
    let strides = crate::ir::build::row_major(&extents);
    k.ix_const(v.offset) == Some(0)
        && v.dtype == k.buffer(tile).dtype
        && extents.iter().product::<usize>() == count
        && (0..extents.len()).all(|a| extents[a] == 1 || k.ix_const(v.strides[a]) == Some(strides[a] as i64))
}

/// Relation between iterations and tile elements, by evaluating the index for every iteration.
fn relation(
    k: &Kernel,
    vars: &[IxVarId],
    extents: &[usize],
    view: ViewId,
    index: &[IxId],
    tile: BufferId,
) -> Option<Relation> {
    let (v, t) = (k.view(view), k.buffer(tile));
    let (count, elements) = (extents.iter().product::<usize>(), t.extents.iter().product::<usize>());
    if v.dtype != t.dtype || elements == 0 || count % elements != 0 {
        return None;
    }
    let ratio = count / elements;
    let mut at = vec![0i64; extents.len()];
    for e in 0..count {
        let mut rest = e;
        for a in (0..extents.len()).rev() {
            at[a] = (rest % extents[a]) as i64;
            rest /= extents[a];
        }
        let leaf = |x: IxExpr| match x {
            IxExpr::Var(v) => vars.iter().position(|&w| w == v).map(|p| at[p]),
            IxExpr::Const(c) => Some(c),
            _ => None,
        };
        let mut flat = k.eval_ix(v.offset, &leaf)?;
        for (&i, &s) in index.iter().zip(&v.strides) {
            flat += k.eval_ix(i, &leaf)? * k.eval_ix(s, &leaf)?;
        }
        if flat != (e / ratio) as i64 {
            return None;
        }
    }
    Some(if ratio == 1 { Relation::Same } else { Relation::Ratio(ratio) })
}

/// The order of a reduction: the planned one where it matters, else the one that suits threads.
pub(crate) fn order_of(
    order: Option<crate::ir::Order>,
    op: crate::ir::ReduceOp,
    dtype: crate::ir::DType,
    extents: &[usize],
    warps: usize,
) -> crate::ir::Order {
    match order {
        Some(o) if numerics::ordered(op, dtype) => o,
        Some(_) | None => numerics::lanes_of(extents, warps),
    }
}

pub(crate) fn row_map(order: crate::ir::Order, n: usize, threads: usize) -> Map {
    Map { inner: n, vec: order.per_lane, lanes: order.lanes, threads, replicated: false, fragment: None }
}

/// Assigns maps; `Err` names a tile that has to leave the registers.
fn solve(
    k: &Kernel,
    ranges: &Ranges,
    nodes: &[Node],
    shared: &BTreeSet<BufferId>,
    uniform: &BTreeSet<BufferId>,
    threads: usize,
) -> Result<Solution, BufferId> {
    // Classes: node i is element i, tile b is element nodes.len() + b.
    let mut parent: Vec<usize> = (0..nodes.len() + k.buffers.len()).collect();
    fn find(parent: &mut [usize], mut x: usize) -> usize {
        while parent[x] != x {
            parent[x] = parent[parent[x]];
            x = parent[x];
        }
        x
    }
    let tile_at = |b: BufferId| nodes.len() + b.0 as usize;
    let used = |b: &BufferId| !shared.contains(b);
    for (i, n) in nodes.iter().enumerate() {
        for (b, r) in n.tiles.iter().filter(|(b, _)| used(b)) {
            if *r == Relation::Same {
                let (x, y) = (find(&mut parent, i), find(&mut parent, tile_at(*b)));
                parent[y.max(x)] = x.min(y);
            }
        }
    }
    let class: Vec<usize> = (0..parent.len()).map(|x| find(&mut parent, x)).collect();
    let count = |n: &Node| n.extents.iter().product::<usize>();

    // Anchors.
    let mut maps: BTreeMap<usize, Map> = BTreeMap::new();
    for (i, n) in nodes.iter().enumerate() {
        let Some(anchor) = n.anchor else { continue };
        match maps.get(&class[i]) {
            Some(m) if !m.same(&anchor, count(n)) => {
                let tile = n.tiles.iter().find(|(b, r)| used(b) && *r == Relation::Same);
                if let Some((b, _)) = tile {
                    return Err(*b);
                }
            }
            Some(_) => {}
            None => drop(maps.insert(class[i], anchor)),
        }
    }
    // Derived classes, parents first. Every class is visited once all edges into it come from finished ones.
    let edges: Vec<(usize, BufferId, usize, usize)> = nodes
        .iter()
        .enumerate()
        .flat_map(|(i, n)| {
            n.tiles.iter().filter(|(b, _)| used(b)).filter_map(move |(b, r)| match r {
                Relation::Ratio(q) => Some((i, *b, *q, n.extents.iter().product::<usize>())),
                Relation::Same => None,
            })
        })
        .collect();
    let all: BTreeSet<usize> = (0..nodes.len()).map(|i| class[i]).collect();
    let mut done: BTreeSet<usize> = BTreeSet::new();
    while done.len() < all.len() {
        let ready = all.iter().copied().find(|c| {
            !done.contains(c) && edges.iter().all(|(i, b, _, _)| class[tile_at(*b)] != *c || done.contains(&class[*i]))
        });
        let Some(c) = ready else {
            // A cycle of reductions and broadcasts over differently sized classes: cut it at any edge.
            return Err(edges.iter().find(|(i, _, _, _)| !done.contains(&class[*i])).map_or(BufferId(0), |e| e.1));
        };
        for (i, b, q, n) in edges.iter().filter(|(_, b, _, _)| class[tile_at(*b)] == c) {
            let derived = maps.get(&class[*i]).and_then(|m| m.reduced(*n, *q));
            match (derived, maps.get(&c)) {
                (Some(d), None) => drop(maps.insert(c, d)),
                (Some(d), Some(m)) if *m == d => {}
                (Some(_), Some(_)) | (None, _) => return Err(*b),
            }
        }
        maps.entry(c).or_insert_with(|| {
            let members: Vec<&Node> =
                nodes.iter().enumerate().filter(|(i, _)| class[*i] == c).map(|(_, n)| n).collect();
            let vec = choose_vec(k, ranges, &members);
            Map::flat(count(members[0]), vec, threads)
        });
        done.insert(c);
    }
    // Tiles that only reductions write and nothing reads at equal positions: derived, but in no loop's class.
    for (i, b, q, n) in &edges {
        let derived = maps.get(&class[*i]).and_then(|m| m.reduced(*n, *q)).ok_or(*b)?;
        let c = class[tile_at(*b)];
        if maps.get(&c).is_some_and(|m| *m != derived) {
            return Err(*b);
        }
        maps.insert(c, derived);
    }

    // Distributions.
    let mut loops = vec![];
    for (i, n) in nodes.iter().enumerate() {
        let m = maps[&class[i]];
        let bad_row = n.row.is_some_and(|r| r % m.vec != 0);
        match m.distribution(&n.extents) {
            Some(d) if !bad_row => loops.push(d),
            Some(_) | None => match n.tiles.iter().find(|(b, _)| used(b)) {
                Some((b, _)) => return Err(*b),
                None => loops.push(Distribution { split_axis: 0, vec: 1, lanes: threads, threads, fragment: None }),
            },
        }
    }
    for (i, n) in nodes.iter().enumerate() {
        let copies = maps[&class[i]].replicated && maps[&class[i]].lanes > 1;
        if copies
            && updates_memory(k, n, shared)
            && let Some((b, _)) = n.tiles.iter().find(|(b, _)| used(b))
        {
            return Err(*b);
        }
    }
    let mut tiles = BTreeMap::new();
    for (b, buffer) in k.buffers.iter().enumerate() {
        let id = BufferId(b as u32);
        if buffer.space != Space::Frag || !used(&id) {
            continue;
        }
        // A tile nobody touches in a loop has no class; it needs no memory either, but keeps one.
        let m = maps.get(&class[tile_at(id)]).ok_or(id)?;
        if uniform.contains(&id) && !(m.replicated && m.lanes == threads) {
            return Err(id);
        }
        tiles.insert(id, m.distribution(&buffer.extents).ok_or(id)?);
    }
    let size =
        |d: &Distribution, b: &BufferId| d.registers(&k.buffer(*b).extents) * k.buffer(*b).dtype.bits().div_ceil(32);
    let total: usize = tiles.iter().map(|(b, d)| size(d, b)).sum();
    if total > MAX_TILE_REGISTERS
        && let Some((b, _)) = tiles.iter().max_by_key(|(b, d)| size(d, b))
    {
        return Err(*b);
    }
    Ok(Solution { loops, tiles })
}

/// True if a loop reads and writes one tensor or shared tile. Threads that do the same iteration must not do that: one of
/// them writes while another still reads.
fn updates_memory(k: &Kernel, node: &Node, shared: &BTreeSet<BufferId>) -> bool {
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    for b in bodies(&k.op(node.op).op) {
        walk(k, b, &mut |_, op| {
            let Some((view, _)) = element_access(op) else { return };
            let place = match k.view(view).base {
                Base::Param(p) => (0, p.0),
                Base::Buffer(b) if k.buffer(b).space == Space::Shared || shared.contains(&b) => (1, b.0),
                Base::Buffer(_) => return,
            };
            (if matches!(op, Op::Store { .. }) { &mut written } else { &mut read }).insert(place);
        });
    }
    read.intersection(&written).next().is_some()
}

/// Consecutive elements a thread: as many as fill 16 bytes of the widest type among the accesses that can be wide.
fn choose_vec(k: &Kernel, ranges: &Ranges, members: &[&Node]) -> usize {
    for vec in [16usize, 8, 4, 2] {
        if members.iter().any(|n| n.row.is_none_or(|r| r % vec != 0)) {
            continue;
        }
        let (mut widest, mut full) = (0, false);
        for n in members {
            let Op::Parallel { vars, extents, body, .. } = &k.op(n.op).op else { continue };
            let lanes = Lanes::new(k, ranges, vars, extents, *body, vec);
            for &id in &k.block(*body).ops {
                let Some((view, index)) = element_access(&k.op(id).op) else { continue };
                if frag_of(k, view).is_some() {
                    continue;
                }
                let form = lanes.form(view, index);
                let bits = memory_bits(k, view);
                if let Form::Wide(bytes) = form {
                    widest = widest.max(bits);
                    full |= bytes * 8 == (vec * bits).min(128);
                } else if form == Form::Pairs && matches!(k.op(id).op, Op::Store { .. }) {
                    widest = widest.max(bits);
                    full = true;
                }
            }
        }
        if full && vec * widest <= 128 {
            return vec;
        }
    }
    1
}
