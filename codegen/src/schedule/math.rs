//! The program of the multiplying role: for each tile it takes the ring's items, multiplies, adds up the parts of the sum
//! where several warp groups or blocks share a tile, and stores.

use super::apply::{Apply, LOOP_PART, MATH, RING};
use super::epilogue;
use super::parts::{Parts, Reason, name_of};
use super::scales::{Place, factor};
use super::store::Epilogue;
use super::views::{self, new_value, operand, slot_var};
use crate::analysis::Ranges;
use crate::ir::{
    Base, BinaryOp, BlockId, Buffer, BufferId, Cloner, CmpOp, DType, Distribution, Fragment, IxId, IxVar, IxVarId,
    IxVarKind, MemoryLayout, Op, OpId, SchedOp, Space, ValueId, View, ViewId,
};
use std::collections::BTreeMap;

impl Apply<'_> {
    pub(super) fn math_program(&mut self, ranges: &Ranges) -> Result<BlockId, Reason> {
        let (parts, cluster, depth, rows) = (self.parts.clone(), self.cluster.clone(), self.depth, self.rows);
        let (instance, instances, turns) = (self.instance, self.instances, self.turns);
        let unroll = self.s.unroll.get(&name_of(&self.k, parts.main, "loop")).copied();
        let Some((var, lo, hi)) = parts.loop_of(&self.k) else { return Err("the loop is not a loop".into()) };
        let [_, n] = parts.tile;
        let spread = Distribution {
            split_axis: 0,
            vec: 2,
            lanes: 32,
            threads: 128,
            fragment: Some(Fragment::warp_group(rows, n)),
        };
        let scale_tiles: BTreeMap<(OpId, usize), BufferId> = self.scales.iter().map(|(at, s)| (*at, s.tile)).collect();
        let mut maps = std::mem::take(&mut self.maps);
        let mut staging = vec![];
        let staged = self.s.staged.clone();
        let (rank, inbox) = (self.sharing_rank(), self.inbox);
        let mut c = Cloner::new(&mut self.k);
        let vars = Apply::tile_vars(&mut c, &cluster);
        let zero = c.k.ix_const_id(0);
        // Instances are numbered with those that take turns side by side.
        let of_turns = c.k.ix_const_id(turns as i64);
        let chain = instance.filter(|_| turns > 1).map(|v| {
            let v = c.var(v);
            if instances == turns { v } else { c.k.ix_mod(v, of_turns) }
        });
        // First row of the group in the tile.
        let first_row = match instance.filter(|_| instances > turns) {
            Some(v) => {
                let (v, r) = (c.var(v), c.k.ix_const_id(rows as i64));
                let group = c.k.ix_div(v, of_turns);
                c.k.ix_mul(group, r)
            }
            None => zero,
        };
        split_accumulator(&mut c, &parts, rows, &spread)?;
        let mut tile_body = vec![];
        if let Some(split) = &parts.split {
            let part = views::part_of(&mut c, rank, chain, turns);
            c.ix.insert(split.var, part);
        }
        let acc = c.buffers[&parts.acc];
        let mut declared = false;
        let outer: Vec<OpId> = parts.outer().collect();
        for id in outer {
            match &c.k.op(id).op {
                Op::Alloc { buffer } if parts.copies.iter().any(|cp| cp.tile == *buffer) => {}
                Op::Alloc { buffer } if *buffer == parts.acc || *buffer == parts.sum() => {
                    if !std::mem::replace(&mut declared, true) {
                        tile_body.push(c.push(Op::Alloc { buffer: acc }, id));
                    }
                }
                &Op::Fill { dst, value } if c.k.view(dst).base == Base::Buffer(parts.acc) => {
                    let (dst, value) = (c.view(dst), c.value(value));
                    tile_body.push(fill_loop(&mut c, id, dst, value, [rows, n], &spread));
                }
                // The total starts where the parts are added up.
                Op::Fill { dst, .. } if c.k.view(*dst).base == Base::Buffer(parts.sum()) => {}
                op if crate::pass::pipeline::scalar(c.k, op) => {
                    let new = c.op(id);
                    tile_body.push(new);
                }
                op => return Err(format!("`{}` stands before the loop", op.name())),
            }
        }
        let (lo, hi) = (c.index(lo), c.index(hi));
        let turn = c.define_ix(var);
        if let Some(n) = unroll {
            c.k.unroll.insert(turn, n);
        }
        let mut inner = vec![];
        let main_ops: Vec<OpId> = parts.steps(c.k);
        for id in main_ops {
            let op = c.k.op(id).op.clone();
            if crate::pass::pipeline::scalar(c.k, &op) {
                let new = c.op(id);
                inner.push(new);
            }
        }
        let slot = slot_var(&mut c, depth, parts.main);
        let mut multiply = vec![];
        for (at, p) in parts.products.iter().enumerate() {
            let last = at + 1 == parts.products.len();
            let scales = p.scales.map(|both| {
                let place = |side: usize| Place {
                    ranges,
                    slot,
                    tile: scale_tiles.get(&(p.op, side)).copied(),
                    count: [rows, n][side],
                    whole: parts.tile[side],
                    first: [first_row, zero][side],
                };
                [0, 1].map(|side| factor(&mut c, &both[side], &place(side), &mut inner, p.op))
            });
            let (a, b) = (
                operand(&mut c, &parts, p.a, slot, 0, Some((rows, first_row))),
                operand(&mut c, &parts, p.b, slot, 1, None),
            );
            let release = if last { vec![(RING, LOOP_PART)] } else { vec![] };
            let op = SchedOp::Wgmma { a, b, acc, set: p.set, scales, release, hold: false };
            multiply.push(c.push(Op::Sched(op), p.op));
        }
        inner.push(c.push(Op::Sched(SchedOp::Take { ring: RING, part: LOOP_PART, slot }), parts.main));
        inner.extend(multiply);
        inner.push(c.push(Op::Sched(SchedOp::Advance { ring: RING, by: turns }), parts.main));
        let body = c.new_block(inner);
        tile_body.push(c.push(Op::For { var: turn, lo, hi, body, stages: 1 }, parts.main));

        let mut stored = false;
        let mut behind = vec![];
        for &id in &parts.after {
            let stores = epilogue::stores(c.k, &parts, id);
            match c.k.op(id).op.clone() {
                Op::Parallel { vars, extents, body, .. } if extents[..] == parts.tile[..] => {
                    let part = stores.into_iter().find(|st| {
                        staged.contains(&name_of(c.k, id, &st.name))
                            && epilogue::stageable(c.k, ranges, &parts, st).is_ok()
                    });
                    let e =
                        Epilogue { id, vars: &vars, body, rows, n, first_row, instance, instances, spread: &spread };
                    stored |= part.is_some();
                    e.emit(&mut c, &parts, ranges, part, &mut maps, &mut staging, &mut behind)?;
                }
                op if crate::pass::pipeline::scalar(c.k, &op) => {
                    let new = c.op(id);
                    behind.push(new);
                }
                op => return Err(format!("`{}` stands behind the loop", op.name())),
            }
        }
        match inbox {
            None => tile_body.extend(behind),
            Some(inbox) => {
                tile_body.push(c.push(Op::Sched(SchedOp::Combine { acc, inbox, turns }), parts.main));
                let owners: Vec<IxId> = [rank.map(|r| c.var(r)), chain].into_iter().flatten().collect();
                let cond = all_zero(&mut c, &owners, &mut tile_body, parts.main);
                let (then, els) = (c.new_block(behind), c.new_block(vec![]));
                tile_body.push(c.push(Op::If { cond, then, els, results: vec![] }, parts.main));
            }
        }
        let body = c.new_block(tile_body);
        let mut program = vec![];
        if self.s.dependent {
            // Scales and addends are read without the ring.
            program.push(c.push(Op::Sched(SchedOp::GridWait), parts.main));
        }
        program.push(c.push(Op::Sched(SchedOp::Tiles { vars, rows: parts.rows, body }), parts.main));
        if stored {
            program.push(c.push(Op::Sched(SchedOp::TmaStoreWait { pending: 0, written: false }), parts.main));
        }
        let program = c.new_block(program);
        self.maps = maps;
        self.staging = staging;
        Ok(program)
    }

    /// Where parts of the sum are handed over: all but the first, each with the accumulators of its warp groups.
    pub(super) fn new_inbox(&mut self) -> BufferId {
        let ranks = self.cluster.as_ref().filter(|c| c.axis.is_none()).map_or(1, |c| c.size);
        let count = (ranks * self.turns - 1) * (self.instances / self.turns);
        let elements = self.rows * self.parts.tile[1];
        let span = self.k.op(self.parts.main).span;
        self.k.buffers.push(Buffer {
            name: "parts".into(),
            dtype: DType::F32,
            index: false,
            extents: vec![count, elements],
            space: Space::Shared,
            distribution: None,
            memory: Some(MemoryLayout { strides: vec![elements, 1], swizzle: None, panel: None, offset_bytes: 0 }),
            role: None,
            span,
        });
        BufferId(self.k.buffers.len() as u32 - 1)
    }
}

/// True where all of some indices are 0.
fn all_zero(c: &mut Cloner<'_>, list: &[IxId], out: &mut Vec<OpId>, like: OpId) -> ValueId {
    let zero = c.k.ix_const_id(0);
    let mut all: Option<ValueId> = None;
    for &i in list {
        let own = new_value(c, DType::Bool, like);
        out.push(c.push(Op::CompareIndex { result: own, op: CmpOp::Eq, a: i, b: zero }, like));
        all = Some(match all {
            None => own,
            Some(a) => {
                let both = new_value(c, DType::Bool, like);
                out.push(c.push(Op::Binary { result: both, op: BinaryOp::And, a, b: own }, like));
                both
            }
        });
    }
    all.unwrap_or_else(|| {
        let own = new_value(c, DType::Bool, like);
        out.push(c.push(Op::CompareIndex { result: own, op: CmpOp::Eq, a: zero, b: zero }, like));
        own
    })
}

/// Replaces the accumulator and its views by those of a group's rows.
fn split_accumulator(c: &mut Cloner<'_>, parts: &Parts, rows: usize, spread: &Distribution) -> Result<(), Reason> {
    let [m, n] = parts.tile;
    let seen_as = |b: Base| b == Base::Buffer(parts.acc) || b == Base::Buffer(parts.sum());
    let old = c.k.buffer(parts.acc).clone();
    c.k.buffers.push(Buffer { extents: vec![rows, n], distribution: Some(spread.clone()), role: Some(MATH), ..old });
    let new = BufferId(c.k.buffers.len() as u32 - 1);
    c.buffers.insert(parts.acc, new);
    // The total of parts is what the first part's accumulator holds in the end.
    c.buffers.insert(parts.sum(), new);
    for id in 0..c.k.views.len() {
        let v = c.k.views[id].clone();
        if !seen_as(v.base) {
            continue;
        }
        let id = ViewId(id as u32);
        let whole = c.k.const_extents(id).is_some_and(|e| e == [m, n])
            && c.k.ix_const(v.strides[0]) == Some(n as i64)
            && c.k.ix_const(v.strides[1]) == Some(1)
            && c.k.ix_const(v.offset) == Some(0);
        if !whole {
            return Err("the accumulator is also seen in another shape".into());
        }
        let extents = vec![c.k.ix_const_id(rows as i64), c.k.ix_const_id(n as i64)];
        let view = c.new_view(View { base: Base::Buffer(new), extents, ..v });
        c.views.insert(id, view);
    }
    Ok(())
}

/// A fill of the accumulator as a loop over its registers.
fn fill_loop(
    c: &mut Cloner<'_>,
    like: OpId,
    dst: ViewId,
    value: ValueId,
    extents: [usize; 2],
    spread: &Distribution,
) -> OpId {
    let span = c.k.op(like).span;
    let vars: Vec<IxVarId> = extents
        .iter()
        .zip(["i", "j"])
        .map(|(&e, name)| {
            let (lo, hi) = (c.k.ix_const_id(0), c.k.ix_const_id(e as i64 - 1));
            c.new_ix_var(IxVar { name: name.into(), kind: IxVarKind::Element, lo: Some(lo), hi: Some(hi), span })
        })
        .collect();
    let index = vars.iter().map(|&v| c.var(v)).collect();
    let store = c.push(Op::Store { view: dst, index, value, checked: false }, like);
    let body = c.new_block(vec![store]);
    c.push(Op::Parallel { vars, extents: extents.to_vec(), body, distribution: Some(spread.clone()) }, like)
}
