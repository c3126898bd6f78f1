//! The program of the loading role: it walks over tiles and fills the ring with the copies of the loop, and with the
//! scales that can be copied.

use super::apply::{Apply, LOOP_PART, RING};
use super::parts::{CopyPart, ROW_BYTES, Reason, seen};
use super::scales::ScaleTile;
use super::views::{coordinates, needed, new_map, slot_var, slot_view};
use super::{CopySpec, views};
use crate::analysis::Ranges;
use crate::ir::{BlockId, Cloner, Evict, IxVar, IxVarId, IxVarKind, Op, OpId, Region, SchedOp, TensorMap};

impl Apply<'_> {
    fn copy_spec(&self, c: &CopyPart) -> CopySpec {
        let name = super::parts::name_of(&self.k, c.op, &self.k.buffer(c.tile).name);
        self.s.copies.get(&name).copied().unwrap_or_default()
    }

    pub(super) fn load_program(&mut self, ranges: &Ranges, copies: &[CopyPart]) -> Result<BlockId, Reason> {
        let (parts, cluster, depth, turns) = (self.parts.clone(), self.cluster.clone(), self.depth, self.turns);
        let specs: Vec<CopySpec> = copies.iter().map(|c| self.copy_spec(c)).collect();
        let mut sees = vec![];
        for c in copies {
            sees.push(seen(&self.k, ranges, c.src.view, self.k.view(c.src.view).extents.len() - 1)?);
        }
        let scales = std::mem::take(&mut self.scales);
        let Some((var, lo, hi)) = parts.loop_of(&self.k) else { return Err("the loop is not a loop".into()) };
        let mut maps = vec![];
        let rank = self.sharing_rank();
        let mut c = Cloner::new(&mut self.k);
        let vars = Apply::tile_vars(&mut c, &cluster);
        // Scalars the copies' indices need, from all levels.
        let loads: Vec<OpId> = scales.values().map(|s| s.load).collect();
        let needed = needed(c.k, &parts, copies, &loads);
        // The role brings the items of all instances that take turns, in the order in which they take them.
        let turn_var = (turns > 1).then(|| {
            let (zero, last) = (c.k.ix_const_id(0), c.k.ix_const_id(turns as i64 - 1));
            let span = c.k.op(parts.main).span;
            let var = IxVar { name: "turn".into(), kind: IxVarKind::Loop, lo: Some(zero), hi: Some(last), span };
            c.new_ix_var(var)
        });
        let outer: Vec<OpId> = parts.before.iter().copied().filter(|id| needed.contains(id)).collect();
        let mut tile_body: Vec<OpId> = outer.into_iter().map(|id| c.op(id)).collect();
        let mut inner = vec![];
        if let Some(split) = &parts.split {
            let turn = turn_var.map(|v| c.var(v));
            let part = views::part_of(&mut c, rank, turn, turns);
            c.ix.insert(split.var, part);
            let own: Vec<OpId> = split.before.iter().copied().filter(|id| needed.contains(id)).collect();
            // Where instances take turns, all of them have as many steps, so that the loop around them has one length.
            let list = if turns > 1 { &mut inner } else { &mut tile_body };
            for id in own {
                let new = c.op(id);
                list.push(new);
            }
        }
        let (lo, hi) = (c.index(lo), c.index(hi));
        let turn = c.define_ix(var);
        let main_ops: Vec<OpId> = parts.steps(c.k);
        for id in main_ops.into_iter().filter(|id| needed.contains(id)) {
            let new = c.op(id);
            inner.push(new);
        }
        let slot = slot_var(&mut c, depth, parts.main);
        inner.push(c.push(Op::Sched(SchedOp::Acquire { ring: RING, part: LOOP_PART, slot }), parts.main));
        for ((copy, seen), spec) in copies.iter().zip(&sees).zip(&specs) {
            let multicast = spec.multicast && cluster.as_ref().is_some_and(|cl| cl.axis.is_some());
            let share = if multicast { cluster.as_ref().map_or(1, |cl| cl.size) } else { 1 };
            let [rows, columns] = copy.extents[..] else { return Err("a copied tile has not two axes".into()) };
            if rows % (8 * share) != 0 || rows / share > 256 {
                return Err(format!("{rows} rows do not divide over {share} blocks in boxes of 8 to 256 rows"));
            }
            let panel = ROW_BYTES * 8 / c.k.buffer(copy.tile).dtype.bits();
            let dst = slot_view(&mut c, copy.tile, slot, &[rows, columns], &[columns, 1], 0);
            let src =
                Region { view: c.view(copy.src.view), start: copy.src.start.iter().map(|&i| c.index(i)).collect() };
            let at = coordinates(&mut c, seen, &src.start, src.start.len() - 1);
            let map = new_map(&mut maps, seen, &[panel.min(columns), rows / share], ROW_BYTES);
            let zero = c.k.ix_const_id(0);
            let op = SchedOp::TmaLoad {
                map,
                at,
                src,
                dst: Region { view: dst, start: vec![zero, zero] },
                extents: vec![rows, columns],
                ring: RING,
                part: LOOP_PART,
                multicast,
                evict: spec.evict,
            };
            inner.push(c.push(Op::Sched(op), copy.op));
        }
        for (&(product, side), s) in &scales {
            let op = scale_copy(&mut c, s, slot, parts.tile[side], &mut maps);
            inner.push(c.push(Op::Sched(op), product));
        }
        inner.push(c.push(Op::Sched(SchedOp::Publish { ring: RING, part: LOOP_PART }), parts.main));
        inner.push(c.push(Op::Sched(SchedOp::Advance { ring: RING, by: 1 }), parts.main));
        if let Some(v) = turn_var {
            let (zero, end) = (c.k.ix_const_id(0), c.k.ix_const_id(turns as i64));
            let body = c.new_block(inner);
            inner = vec![c.push(Op::For { var: v, lo: zero, hi: end, body, stages: 1 }, parts.main)];
        }
        let body = c.new_block(inner);
        tile_body.push(c.push(Op::For { var: turn, lo, hi, body, stages: 1 }, parts.main));
        let body = c.new_block(tile_body);
        let mut program = vec![];
        if self.s.dependent {
            program.push(c.push(Op::Sched(SchedOp::GridWait), parts.main));
        }
        program.push(c.push(Op::Sched(SchedOp::Tiles { vars, rows: parts.rows, body }), parts.main));
        let program = c.new_block(program);
        self.maps = maps;
        self.scales = scales;
        Ok(program)
    }
}

/// The copy of a step's scales.
fn scale_copy(c: &mut Cloner<'_>, s: &ScaleTile, slot: IxVarId, count: usize, maps: &mut Vec<TensorMap>) -> SchedOp {
    let dst = slot_view(c, s.tile, slot, &[count, 1], &[1, 1], 0);
    let src = Region { view: c.view(s.view), start: s.at.iter().map(|&i| c.index(i)).collect() };
    let at = coordinates(c, &s.seen, &src.start, 0);
    let map = new_map(maps, &s.seen, &[count, 1], 0);
    let zero = c.k.ix_const_id(0);
    SchedOp::TmaLoad {
        map,
        at,
        src,
        dst: Region { view: dst, start: vec![zero, zero] },
        extents: vec![count, 1],
        ring: RING,
        part: LOOP_PART,
        multicast: false,
        evict: Evict::Normal,
    }
}
