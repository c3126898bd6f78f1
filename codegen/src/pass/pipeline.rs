//! Copies that run ahead: which leading copies of a loop with several stages may be issued some iterations early.
//!
//! A loop `for b { copy x -> t; use t }` has one version of `t` for each stage; the copies of iteration `b + stages - 1`
//! are issued before iteration `b` computes. `place` asks this for the tiles to keep in versions, the emitter for the ops
//! to move; both get the same answer because it only depends on the kernel.

use super::matrix::element_bytes;
use crate::ir::effects::{bodies, walk};
use crate::ir::{Access, Base, BlockId, Buffer, BufferId, Kernel, Op, OpId, ParamKind, Space};
use std::collections::BTreeSet;

/// The part of a loop that runs ahead.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// Leading ops of the body: copies, scalars they may use, allocations, barriers.
    pub leading: Vec<OpId>,
    /// Tiles the copies fill, and nothing else does.
    pub tiles: BTreeSet<BufferId>,
}

/// What may run ahead in a loop with this body; `None` if nothing does.
pub fn ahead(k: &Kernel, body: BlockId) -> Option<Ahead> {
    let mut found = Ahead::default();
    // Whether iterations are left early is not known ahead.
    let mut leaves = false;
    walk(k, body, &mut |_, op| leaves |= matches!(op, Op::Break | Op::Continue));
    if leaves {
        return None;
    }
    for &id in &k.block(body).ops {
        match filled(k, id) {
            Some(tile) => drop(found.tiles.insert(tile)),
            None if scalar(k, &k.op(id).op) => {}
            None => break,
        }
        found.leading.push(id);
    }
    // Ops behind the last copy stay where they are.
    while found.leading.last().is_some_and(|&id| filled(k, id).is_none()) {
        found.leading.pop();
    }
    let leading: BTreeSet<OpId> = found.leading.iter().copied().collect();
    let inside: BTreeSet<OpId> = ops_in(k, body);
    let own = found.tiles.iter().all(|&t| {
        let mut fits = true;
        walk(k, k.body, &mut |id, op| {
            let touched = touches(k, op, t);
            let written = matches!(op, Op::Store { view, .. } if k.view(*view).base == Base::Buffer(t));
            let early = leading.iter().any(|&l| l == id || nested_in(k, l, id));
            fits &= !touched || inside.contains(&id) && written == early;
        });
        fits
    });
    (own && !found.tiles.is_empty()).then_some(found)
}

fn ops_in(k: &Kernel, body: BlockId) -> BTreeSet<OpId> {
    let mut all = BTreeSet::new();
    walk(k, body, &mut |id, _| {
        all.insert(id);
    });
    all
}

fn nested_in(k: &Kernel, outer: OpId, id: OpId) -> bool {
    bodies(&k.op(outer).op).iter().any(|&b| k.block(b).ops.contains(&id))
}

/// True if an op names a tile, but for its allocation.
fn touches(k: &Kernel, op: &Op, t: BufferId) -> bool {
    if matches!(op, Op::Alloc { .. }) {
        return false;
    }
    let u = crate::ir::effects::uses(op);
    let table = |v: &crate::ir::ViewId| k.view(*v).gather.map(|g| k.view(g.table()).base);
    u.buffers.contains(&t)
        || u.views.iter().any(|v| k.view(*v).base == Base::Buffer(t) || table(v) == Some(Base::Buffer(t)))
}

/// The shared tile that a loop fills from read-only memory, element by element.
fn filled(k: &Kernel, id: OpId) -> Option<BufferId> {
    let Op::Parallel { body, .. } = &k.op(id).op else { return None };
    let mut tile = None;
    for &inner in &k.block(*body).ops {
        let op = &k.op(inner).op;
        if let Op::Store { view, checked: false, .. } = op
            && tile.is_none()
            && let Base::Buffer(b) = k.view(*view).base
            && k.buffer(b).space == Space::Shared
        {
            tile = Some(b);
        } else if !matches!(op, Op::Cast { .. }) && !matches!(op, Op::Load { view, .. } if read_only(k, *view)) {
            return None;
        }
    }
    tile
}

/// True if a view and its table are of tensors that nobody writes.
fn read_only(k: &Kernel, view: crate::ir::ViewId) -> bool {
    let fixed = |base| match base {
        Base::Param(p) => matches!(k.param(p).kind, ParamKind::Tensor { access: Access::In, .. }),
        Base::Buffer(_) => false,
    };
    let v = k.view(view);
    fixed(v.base) && v.gather.is_none_or(|g| fixed(k.view(g.table()).base))
}

/// True for an op that may be done twice, for the iteration ahead and for its own.
pub fn scalar(k: &Kernel, op: &Op) -> bool {
    if let Op::Load { view, .. } | Op::LoadOr { view, .. } = op {
        return read_only(k, *view);
    }
    matches!(
        op,
        Op::Const { .. }
            | Op::IndexValue { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Fma { .. }
            | Op::Compare { .. }
            | Op::CompareIndex { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }
            | Op::Alloc { .. }
            | Op::BlockBarrier { .. }
    )
}

/// Bytes from one version of a tile to the next.
pub fn version_bytes(b: &Buffer) -> usize {
    let elements = match &b.memory {
        Some(m) => m.strides.first().copied().unwrap_or(1) * b.extents.first().copied().unwrap_or(1),
        None => b.extents.iter().product(),
    };
    (elements * element_bytes(b.dtype)).next_multiple_of(16)
}
