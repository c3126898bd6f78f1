//! Copies with which a role fills slots of its rings become copies of the engine, page by page where a table says where
//! the rows are. Of `written` only; a copy that the engine cannot do stays one of the role's threads.

use super::parts::{self, ROW_BYTES};
use crate::analysis::Ranges;
use crate::ir::{
    Base, BlockId, BufferId, DType, Evict, Gather, IxExpr, IxId, Kernel, Literal, MapId, Op, OpId, OpNode, Region,
    RingId, RoleId, SchedOp, SpanId, TensorMap, Value, ValueId, View, ViewId, effects,
};
use std::collections::BTreeSet;

/// See the file's head. `operands` are tiles that products read.
pub fn run(k: &mut Kernel, ranges: &Ranges, role: RoleId, body: BlockId, operands: &BTreeSet<BufferId>) {
    let mut found = vec![];
    effects::walk(k, body, &mut |id, op| {
        if let Op::Copy { src, dst, extents } = op {
            found.push((id, src.clone(), dst.clone(), extents.clone()));
        }
    });
    for (id, src, dst, extents) in found {
        let Some((ring, part)) = slot_of(k, role, &dst, &extents, operands) else { continue };
        let Some((map, at, before)) = source(k, ranges, &src, &extents, k.op(id).span) else { continue };
        k.ops[id.0 as usize].op = Op::Sched(SchedOp::TmaLoad {
            map,
            at,
            src,
            dst,
            extents,
            ring,
            part,
            multicast: false,
            evict: Evict::Normal,
        });
        for block in &mut k.blocks {
            if let Some(n) = block.ops.iter().position(|&o| o == id) {
                block.ops.splice(n..n, before.iter().copied());
            }
        }
    }
}

/// The ring and part whose slot a copy fills as a whole, in boxes of swizzled rows.
fn slot_of(
    k: &Kernel,
    role: RoleId,
    dst: &Region,
    extents: &[usize],
    operands: &BTreeSet<BufferId>,
) -> Option<(RingId, u32)> {
    let Base::Buffer(tile) = k.view(dst.view).base else { return None };
    let b = k.buffer(tile);
    let [_, rows, columns] = b.extents[..] else { return None };
    let whole = extents == [rows, columns] && dst.start.iter().all(|&s| k.ix_const(s) == Some(0));
    let boxes = rows % 8 == 0 && rows <= 256 && (columns * b.dtype.bits() / 8).is_multiple_of(ROW_BYTES);
    if !whole || !boxes || !operands.contains(&tile) {
        return None;
    }
    k.rings.iter().enumerate().filter(|(_, r)| r.producer == role).find_map(|(n, r)| {
        let part = r.parts.iter().position(|p| p.buffers.contains(&tile))?;
        Some((RingId(n as u32), part as u32))
    })
}

/// The map of a copy's source, where it starts, and the ops that look the page up.
fn source(
    k: &mut Kernel,
    ranges: &Ranges,
    src: &Region,
    extents: &[usize],
    span: SpanId,
) -> Option<(MapId, Vec<IxId>, Vec<OpId>)> {
    let v = k.view(src.view).clone();
    let &[rows, columns] = extents else { return None };
    let &[row, column] = &src.start[..] else { return None };
    let mut plain = src.view;
    if let Some(gather) = v.gather {
        let Gather::Paged { page, .. } = gather else { return None };
        // The rows of a copy lie in one page.
        if page % rows != 0 || ranges.multiple_of(row) % rows as i64 != 0 {
            return None;
        }
        let height = k.ix_const_id(page as i64);
        k.views.push(View { gather: None, extents: vec![height, v.extents[1]], ..v.clone() });
        plain = ViewId(k.views.len() as u32 - 1);
    }
    let Base::Param(param) = v.base else { return None };
    if !parts::read_only(k, param) {
        return None;
    }
    let seen = parts::seen(k, ranges, plain, 1).ok()?;
    let (mut sizes, mut strides) = (seen.extents, seen.strides);
    let mut boxes = vec![(ROW_BYTES * 8 / v.dtype.bits()).min(columns), rows];
    let (mut at, mut before) = (vec![column, row], vec![]);
    if let Some(Gather::Paged { table, page, pages, page_stride }) = v.gather {
        if ranges.multiple_of(page_stride) * v.dtype.bits() as i64 % 128 != 0 {
            return None;
        }
        let size = k.ix_const_id(page as i64);
        at[1] = k.ix_mod(row, size);
        let entry = k.ix_div(row, size);
        let number = looked_up(k, table, entry, span, &mut before);
        sizes.insert(2, pages);
        strides.insert(2, page_stride);
        at.push(number);
    }
    at.extend(seen.picked);
    boxes.resize(sizes.len(), 1);
    let map = TensorMap { param, extents: sizes, strides, boxes, swizzle_bytes: ROW_BYTES };
    let number = k.maps.iter().position(|m| *m == map).unwrap_or_else(|| {
        k.maps.push(map);
        k.maps.len() - 1
    });
    Some((MapId(number as u32), at, before))
}

/// A table's entry as an index; behind the table's end a page that does not exist, which the engine fills with zeros.
fn looked_up(k: &mut Kernel, table: ViewId, entry: IxId, span: SpanId, before: &mut Vec<OpId>) -> IxId {
    let dtype: DType = k.view(table).dtype;
    let bits = u64::MAX >> (64 - dtype.bits());
    let mut define = |k: &mut Kernel, make: &dyn Fn(ValueId) -> Op| {
        k.values.push(Value { dtype, def: Some(OpId(k.ops.len() as u32)), span });
        let value = ValueId(k.values.len() as u32 - 1);
        k.ops.push(OpNode { op: make(value), span });
        before.push(OpId(k.ops.len() as u32 - 1));
        value
    };
    let other = define(k, &|result| Op::Const { result, value: Literal { dtype, bits } });
    let found = define(k, &|result| Op::LoadOr { result, view: table, index: vec![entry], other });
    k.intern(IxExpr::Data(found))
}
