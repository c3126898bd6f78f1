//! Views of ring slots, coordinates of copies, and which scalars copies need: the small pieces both programs are made of.

use super::parts::{CopyPart, Parts, Seen};
use crate::ir::{
    Base, BufferId, Cloner, DType, IxExpr, IxId, IxVar, IxVarId, IxVarKind, Kernel, MapId, OpId, TensorMap, Value,
    ValueId, View, ViewId,
};
use std::collections::BTreeMap;

/// Ops whose values the indices of copies, and of loads that become copies, need.
pub fn needed(k: &Kernel, parts: &Parts, copies: &[CopyPart], loads: &[OpId]) -> Vec<OpId> {
    let mut defs: BTreeMap<IxVarId, OpId> = BTreeMap::new();
    let all: Vec<OpId> = parts.outer().chain(parts.steps(k)).collect();
    for &id in &all {
        for v in crate::ir::effects::uses(&k.op(id).op).defines_ix {
            defs.insert(v, id);
        }
    }
    let mut found = vec![];
    let mut todo: Vec<OpId> = copies.iter().map(|c| c.op).chain([parts.main]).chain(loads.iter().copied()).collect();
    while let Some(id) = todo.pop() {
        let u = crate::ir::effects::uses(&k.op(id).op);
        let mut indices = u.indices.clone();
        for &v in &u.views {
            let view = k.view(v);
            indices.extend(view.extents.iter().chain(&view.strides).copied().chain([view.offset]));
            indices.extend(view.guards.iter().flat_map(|g| [g.0, g.1]));
        }
        let mut ops: Vec<OpId> = u.values.iter().filter_map(|&v| k.value(v).def).collect();
        for i in indices {
            leaves(k, i, &mut |e| match e {
                IxExpr::Data(v) => ops.extend(k.value(v).def),
                IxExpr::Var(v) => ops.extend(defs.get(&v)),
                _ => {}
            });
        }
        for op in ops {
            if all.contains(&op) && !found.contains(&op) {
                found.push(op);
                todo.push(op);
            }
        }
    }
    found
}

fn leaves(k: &Kernel, e: IxId, f: &mut dyn FnMut(IxExpr)) {
    match k.ix_expr(e) {
        leaf @ (IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) | IxExpr::Data(_)) => f(leaf),
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => {
            leaves(k, a, f);
            leaves(k, b, f);
        }
    }
}
pub fn slot_var(c: &mut Cloner<'_>, depth: usize, like: OpId) -> IxVarId {
    let span = c.k.op(like).span;
    let (lo, hi) = (c.k.ix_const_id(0), c.k.ix_const_id(depth as i64 - 1));
    c.new_ix_var(IxVar { name: "slot".into(), kind: IxVarKind::Data, lo: Some(lo), hi: Some(hi), span })
}

/// A view of a ring tile's slot: `offset` elements behind its start.
pub fn slot_view(
    c: &mut Cloner<'_>,
    tile: BufferId,
    slot: IxVarId,
    extents: &[usize],
    strides: &[usize],
    offset: i64,
) -> ViewId {
    let b = c.k.buffer(tile).clone();
    let size: usize = b.extents[1..].iter().product();
    let (s, size, o) = (c.var(slot), c.k.ix_const_id(size as i64), c.k.ix_const_id(offset));
    let start = c.k.ix_mul(s, size);
    let offset = c.k.ix_add(start, o);
    let view = View {
        base: Base::Buffer(tile),
        dtype: b.dtype,
        extents: extents.iter().map(|&e| c.k.ix_const_id(e as i64)).collect(),
        strides: strides.iter().map(|&e| c.k.ix_const_id(e as i64)).collect(),
        offset,
        guards: vec![],
        gather: None,
        span: b.span,
    };
    c.new_view(view)
}

/// A product's operand in its slot, with a group's rows only if `split` says so.
pub fn operand(
    c: &mut Cloner<'_>,
    parts: &Parts,
    view: ViewId,
    slot: IxVarId,
    row_axis: usize,
    split: Option<(usize, IxId)>,
) -> ViewId {
    let old = c.k.view(view).clone();
    let width = parts.copy_of(c.k, view).map_or(0, |cp| cp.extents[1]);
    let Base::Buffer(tile) = old.base else { return view };
    let size: usize = c.k.buffer(tile).extents[1..].iter().product();
    let (s, size) = (c.var(slot), c.k.ix_const_id(size as i64));
    let start = c.k.ix_mul(s, size);
    let mut offset = c.k.ix_add(start, old.offset);
    let mut extents = old.extents.clone();
    if let Some((rows, first)) = split {
        extents[row_axis] = c.k.ix_const_id(rows as i64);
        let skip = times(c, first, width as i64);
        offset = c.k.ix_add(offset, skip);
    }
    c.new_view(View { extents, offset, ..old })
}

/// Coordinates of a copy: the map's own axes in its order, then the picked ones.
pub fn coordinates(c: &mut Cloner<'_>, seen: &Seen, start: &[IxId], inner: usize) -> Vec<IxId> {
    let order = std::iter::once(inner).chain((0..start.len()).rev().filter(|&a| a != inner));
    let mut at: Vec<IxId> = order.map(|a| start[a]).collect();
    let picked: Vec<IxId> = seen.picked.iter().map(|&p| c.index(p)).collect();
    at.extend(picked);
    at
}

pub fn new_map(maps: &mut Vec<TensorMap>, seen: &Seen, boxes: &[usize], swizzle_bytes: usize) -> MapId {
    let mut boxes = boxes.to_vec();
    boxes.resize(seen.extents.len(), 1);
    let map = TensorMap {
        param: seen.param,
        extents: seen.extents.clone(),
        strides: seen.strides.clone(),
        boxes,
        swizzle_bytes,
    };
    if let Some(n) = maps.iter().position(|m| *m == map) {
        return MapId(n as u32);
    }
    maps.push(map);
    MapId(maps.len() as u32 - 1)
}
/// `e * n`, with one factor where `e` is a product already.
pub fn times(c: &mut Cloner<'_>, e: IxId, n: i64) -> IxId {
    if let IxExpr::Mul(a, b) = c.k.ix_expr(e)
        && let Some(b) = c.k.ix_const(b)
    {
        let n = c.k.ix_const_id(b * n);
        return c.k.ix_mul(a, n);
    }
    let n = c.k.ix_const_id(n);
    c.k.ix_mul(e, n)
}
/// A new value without a definition yet.
pub fn new_value(c: &mut Cloner<'_>, dtype: DType, like: OpId) -> ValueId {
    let span = c.k.op(like).span;
    c.k.values.push(Value { dtype, def: None, span });
    ValueId(c.k.values.len() as u32 - 1)
}

/// Number of a part of the sum: `rank * turns + turn`, whatever of both there is.
pub fn part_of(c: &mut Cloner<'_>, rank: Option<IxVarId>, turn: Option<IxId>, turns: usize) -> IxId {
    let first = match rank {
        Some(r) => {
            let (r, n) = (c.var(r), c.k.ix_const_id(turns as i64));
            c.k.ix_mul(r, n)
        }
        None => c.k.ix_const_id(0),
    };
    match turn {
        Some(t) => c.k.ix_add(first, t),
        None => first,
    }
}

/// True if an index depends on a variable, or on what some ops define.
pub fn depends(k: &Kernel, e: IxId, var: IxVarId, ops: &[OpId]) -> bool {
    let defined: Vec<IxVarId> = ops.iter().flat_map(|&id| crate::ir::effects::uses(&k.op(id).op).defines_ix).collect();
    let mut found = false;
    leaves(k, e, &mut |leaf| {
        found |= match leaf {
            IxExpr::Var(v) => v == var || defined.contains(&v),
            IxExpr::Data(v) => k.value(v).def.is_some_and(|d| ops.contains(&d)),
            _ => false,
        }
    });
    found
}
