//! A loop over the tile behind the multiplications, for a group's rows; its stores go through a staging tile and the copy
//! engine where the schedule says so.

use super::epilogue::StorePart;
use super::memory;
use super::parts::{Parts, Reason, Seen, seen};
use super::views::{coordinates, new_map};
use crate::analysis::Ranges;
use crate::ir::{
    Base, BlockId, Buffer, BufferId, Cloner, Distribution, IxId, IxVar, IxVarId, Op, OpId, Region, SchedOp, Space,
    TensorMap, View, ViewId,
};

/// A loop over the tile behind the multiplications, for a group's rows.
pub struct Epilogue<'a> {
    pub id: OpId,
    pub vars: &'a [IxVarId],
    pub body: BlockId,
    pub rows: usize,
    pub n: usize,
    pub first_row: IxId,
    pub instance: Option<IxVarId>,
    pub instances: usize,
    pub spread: &'a Distribution,
}

impl Epilogue<'_> {
    #[allow(clippy::too_many_arguments, reason = "the tables being filled")]
    pub fn emit(
        &self,
        c: &mut Cloner<'_>,
        parts: &Parts,
        ranges: &Ranges,
        store: Option<StorePart>,
        maps: &mut Vec<TensorMap>,
        staging: &mut Vec<BufferId>,
        out: &mut Vec<OpId>,
    ) -> Result<(), Reason> {
        let old_row = c.var(self.vars[0]);
        for &id in &c.k.block(self.body).ops {
            if let Some((view, index)) = crate::pass::distribute::element_access(&c.k.op(id).op)
                && c.k.view(view).base == Base::Buffer(parts.sum())
                && index[0] != old_row
            {
                return Err("the accumulator is read at other rows than its own".into());
            }
        }
        let old = c.k.ix_var(self.vars[0]).clone();
        let hi = c.k.ix_const_id(self.rows as i64 - 1);
        let i = c.new_ix_var(IxVar { hi: Some(hi), ..old });
        let own = c.var(i);
        let row = c.k.ix_add(own, self.first_row);
        c.ix.insert(self.vars[0], row);
        let j = c.define_ix(self.vars[1]);
        let acc = c.buffers[&parts.sum()];
        let old_ops = c.k.block(self.body).ops.clone();
        let mut ops = vec![];
        let mut target = None;
        for id in old_ops {
            let new = c.op(id);
            own_rows(c, new, acc, own);
            if let Some(part) = store.as_ref().filter(|p| p.op == id) {
                target = Some(self.stage(c, ranges, part, new, staging, [i, j])?);
            }
            ops.push(new);
        }
        let body = c.new_block(ops);
        let reason = |s: &str| s.to_string();
        if target.is_some() {
            out.push(c.push(Op::Sched(SchedOp::TmaStoreWait { pending: 0, written: false }), self.id));
            let reason = reason("the copy engine has read the last tile's staging");
            out.push(c.push(Op::Sched(SchedOp::RoleBarrier { reason }), self.id));
        }
        let op = Op::Parallel {
            vars: vec![i, j],
            extents: vec![self.rows, self.n],
            body,
            distribution: Some(self.spread.clone()),
        };
        out.push(c.push(op, self.id));
        let (Some((tile, src, seen)), Some(part)) = (target, store) else { return Ok(()) };
        let fence = reason("staging is written by threads and read by the copy engine");
        out.push(c.push(Op::Sched(SchedOp::AsyncFence { reason: fence }), self.id));
        let reason = reason("staging is complete");
        out.push(c.push(Op::Sched(SchedOp::RoleBarrier { reason }), self.id));
        let mut start: Vec<IxId> = part.start.iter().map(|&e| c.index(e)).collect();
        let rank = start.len();
        start[rank - 2] = c.k.ix_add(start[rank - 2], self.first_row);
        let at = coordinates(c, &seen, &start, rank - 1);
        let bits = c.k.buffer(tile).dtype.bits();
        let panel = memory::staging_panel(self.n, bits);
        let swizzle = memory::swizzle_of(panel * bits / 8).map_or(0, |_| panel * bits / 8);
        let map = new_map(maps, &seen, &[panel, self.rows], swizzle);
        let zero = c.k.ix_const_id(0);
        let dst = Region { view: c.view(part.view), start };
        let mut extents = vec![1; rank];
        (extents[rank - 2], extents[rank - 1]) = (self.rows, self.n);
        let op = SchedOp::TmaStore { map, at, src: Region { view: src, start: vec![zero, zero] }, dst, extents };
        out.push(c.push(Op::Sched(op), self.id));
        Ok(())
    }

    /// Turns a copied store into one to a staging tile; gives the tile, its view and how the engine sees the tensor.
    #[allow(clippy::too_many_arguments, reason = "the tables being filled")]
    fn stage(
        &self,
        c: &mut Cloner<'_>,
        ranges: &Ranges,
        part: &StorePart,
        op: OpId,
        staging: &mut Vec<BufferId>,
        at: [IxVarId; 2],
    ) -> Result<(BufferId, ViewId, Seen), Reason> {
        let tensor = c.k.view(part.view).clone();
        let seen = seen(c.k, ranges, part.view, tensor.extents.len() - 1)?;
        let span = c.k.op(part.op).span;
        let mut buffer = Buffer {
            name: format!("{}_tile", part.name),
            dtype: tensor.dtype,
            index: false,
            extents: vec![self.instances, self.rows, self.n],
            space: Space::Shared,
            distribution: None,
            memory: None,
            role: None,
            span,
        };
        buffer.memory = Some(memory::staging_layout(&buffer));
        c.k.buffers.push(buffer);
        let tile = BufferId(c.k.buffers.len() as u32 - 1);
        staging.push(tile);
        let offset = match self.instance {
            Some(v) => {
                let (v, size) = (c.var(v), c.k.ix_const_id((self.rows * self.n) as i64));
                c.k.ix_mul(v, size)
            }
            None => c.k.ix_const_id(0),
        };
        let view = View {
            base: Base::Buffer(tile),
            dtype: tensor.dtype,
            extents: vec![c.k.ix_const_id(self.rows as i64), c.k.ix_const_id(self.n as i64)],
            strides: vec![c.k.ix_const_id(self.n as i64), c.k.ix_const_id(1)],
            offset,
            guards: vec![],
            gather: None,
            span,
        };
        let view = c.new_view(view);
        let element = at.map(|v| c.var(v));
        if let Op::Store { view: v, index, .. } = &mut c.k.ops[op.0 as usize].op {
            *v = view;
            *index = element.to_vec();
        }
        Ok((tile, view, seen))
    }
}

/// Lets accesses of a group's accumulator use the group's own row.
fn own_rows(c: &mut Cloner<'_>, op: OpId, acc: BufferId, own: IxId) {
    let views: Vec<bool> = c.k.views.iter().map(|v| v.base == Base::Buffer(acc)).collect();
    if let Op::Load { view, index, .. } | Op::Store { view, index, .. } = &mut c.k.ops[op.0 as usize].op
        && views[view.0 as usize]
    {
        index[0] = own;
    }
}
