//! The steps of a random program: what each op needs around it, drawn from the dice. The frame is in `build`, scalars are in
//! `expr`.

use super::{Gen, Tile};
use crate::expr::Place;
use kiln_codegen::ir::*;

impl Gen<'_> {
    pub(super) fn step(&mut self) {
        match self.below(27) {
            0..=3 => self.load_tile(),
            4..=8 => self.map(),
            9 => self.in_place(&Place::default()),
            10 | 11 => self.reduce(),
            12 | 13 => self.region(),
            14 | 15 => self.scan(),
            16 => self.window(),
            17 => self.atomics(),
            18 => self.put(),
            19 | 20 => self.block_loop(),
            21 => self.block_if(),
            22 => self.gemm(),
            23 => self.find(),
            24 => self.spread(),
            25 => self.claim(),
            _ => self.gathered(),
        }
    }

    /// Copies a part of an input, which may reach outside.
    pub(super) fn load_tile(&mut self) {
        let (extents, d) = (self.extents(), self.dtype());
        let view = self.input(d, extents.len());
        let dtype = if self.chance(70) { self.b.kernel.view(view).dtype } else { self.dtype() };
        // A number becomes a truth value by comparison only.
        let dtype = if dtype == DType::Bool { self.b.kernel.view(view).dtype } else { dtype };
        let shift = [0, 0, 0, 1, -1, 3][self.below(6)];
        let (row, zero) = (self.at, self.b.ix_const(0));
        let shift = self.b.ix_const(shift);
        let mut start = vec![self.b.ix_add(row, shift)];
        if extents.len() == 2 {
            let c = [0, 0, 1, 2][self.below(4)];
            start.push(self.b.ix_const(c));
        }
        if extents.len() == 2 && self.chance(20) {
            let t = self.transposed(view);
            start.reverse();
            let tile = self.tile(dtype, &[extents[1], extents[0]]);
            self.copy(t, &start, tile.view, &[zero, zero], &tile.extents);
            self.tiles.push(tile);
            return;
        }
        let tile = self.tile(dtype, &extents);
        self.copy(view, &start, tile.view, &[zero, zero][..extents.len()], &extents);
        self.tiles.push(tile);
    }

    /// A new tile by elements.
    fn map(&mut self) {
        let like = self.tiles.clone();
        let extents = match self.pick(&like) {
            Some(t) if self.chance(70) => t.extents,
            Some(_) | None => self.extents(),
        };
        let dtype = self.dtype();
        self.computed(dtype, &extents);
    }
    fn computed(&mut self, dtype: DType, extents: &[usize]) -> Tile {
        let tile = self.tile(dtype, extents);
        if self.chance(8) {
            let c = self.literal(dtype);
            let value = self.b.constant(c);
            self.b.push(Op::Fill { dst: tile.view, value });
        } else {
            self.parallel(extents, |g, at| {
                let depth = 1 + g.below(3);
                let v = g.expr(dtype, depth, at);
                g.store(tile.view, &at.ix, v, false);
            });
        }
        self.tiles.push(tile.clone());
        tile
    }

    /// Changes a tile element by element.
    fn in_place(&mut self, around: &Place) {
        let all = self.tiles.clone();
        let Some(t) = self.pick(&all) else { return };
        self.parallel(&t.extents, |g, at| {
            at.written = Some(t.buffer);
            at.loops = around.loops.clone();
            at.values = around.values.clone();
            let depth = 1 + g.below(2);
            let dtype = g.b.kernel.buffer(t.buffer).dtype;
            let v = g.expr(dtype, depth, at);
            let old = g.load(t.view, &at.ix);
            let cond = g.condition(0, at);
            let v = g.b.push_value(dtype, |result| Op::Select { result, cond, a: v, b: old });
            g.store(t.view, &at.ix, v, false);
        });
    }

    fn reduce_op(&mut self, dtype: DType) -> ReduceOp {
        use ReduceOp::{AbsMax, And, Max, Min, Or, Sum};
        match dtype {
            DType::Bool => [Max, Min, And, Or][self.below(4)],
            DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1 => [Max, Min, AbsMax][self.below(3)],
            DType::F32 | DType::F16 | DType::Bf16 => [Sum, Sum, Sum, Max, Min, AbsMax][self.below(6)],
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => {
                [Sum, Sum, Max, Min, AbsMax, And, Or][self.below(7)]
            }
        }
    }

    /// Along an axis of a tile.
    fn reduce(&mut self) {
        let all: Vec<_> = self.tiles.iter().filter(|t| t.extents.len() == 2).cloned().collect();
        let Some(t) = self.pick(&all) else { return };
        let dtype = self.b.kernel.buffer(t.buffer).dtype;
        let axis = self.below(2);
        let dst = self.tile_in(dtype, &[t.extents[1 - axis]], Space::Frag);
        let op = self.reduce_op(dtype);
        self.b.push(Op::Reduce { op, src: t.view, dst: dst.buffer, axis, order: None });
        self.tiles.push(dst);
    }

    /// Over a box, to one number.
    fn region(&mut self) {
        let like = self.tiles.clone();
        let Some(t) = self.pick(&like) else { return };
        let (vars, at) = self.elements(&t.extents);
        let dtype = self.dtype();
        let body = self.b.open();
        let depth = 1 + self.below(2);
        let value = self.expr(dtype, depth, &at);
        self.b.close();
        let op = self.reduce_op(dtype);
        let extents = t.extents;
        let v =
            self.b.push_value(dtype, |result| Op::ReduceRegion { op, vars, extents, body, value, result, order: None });
        self.scalar(v);
    }

    /// A new scalar, which every block also stores.
    fn scalar(&mut self, v: ValueId) {
        self.scalars.push(v);
        let dtype = self.b.kernel.value(v).dtype;
        let out = self.shaped(dtype, Access::Out, 1, 0);
        let at = self.at;
        self.store(out, &[at], v, false);
    }

    fn scan(&mut self) {
        let all: Vec<_> = (self.tiles.iter())
            .filter(|t| matches!(self.b.kernel.buffer(t.buffer).dtype, DType::I32 | DType::U32 | DType::I64))
            .cloned()
            .collect();
        let t = match self.pick(&all) {
            Some(t) => t,
            None => {
                let (dtype, extents) = ([DType::I32, DType::U32, DType::I64][self.below(3)], self.extents());
                self.computed(dtype, &extents)
            }
        };
        let dtype = self.b.kernel.buffer(t.buffer).dtype;
        let dst = self.tile_in(dtype, &t.extents, Space::Frag);
        let op = [ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][self.below(4)];
        use ScanKind::{PrefixExclusive, PrefixInclusive, SuffixExclusive, SuffixInclusive};
        let kind = [PrefixExclusive, PrefixInclusive, SuffixExclusive, SuffixInclusive][self.below(4)];
        let axis = self.below(t.extents.len());
        let total = if t.extents.len() == 1 && self.chance(50) { Some(self.b.free_value(dtype)) } else { None };
        let id = self.b.push(Op::Scan { op, kind, src: t.view, dst: dst.buffer, axis, total });
        self.tiles.push(dst);
        if let Some(v) = total {
            self.b.kernel.values[v.0 as usize].def = Some(id);
            self.scalar(v);
        }
    }

    /// A window of a tile, or the transposed tile, as a new one.
    fn window(&mut self) {
        let all = self.tiles.clone();
        let Some(t) = self.pick(&all) else { return };
        let mut view = t.view;
        let mut extents = t.extents.clone();
        let dtype = self.b.kernel.buffer(t.buffer).dtype;
        if extents.len() == 2 && self.chance(50) {
            view = self.transposed(view);
            extents.reverse();
        }
        let mut start = vec![];
        for e in &mut extents {
            let from = self.below(*e);
            *e = 1 + self.below(*e - from + 2);
            start.push(self.b.ix_const(from as i64));
        }
        let to = vec![self.b.ix_const(0); extents.len()];
        let new = self.tile(dtype, &extents);
        self.copy(view, &start, new.view, &to, &extents);
        self.tiles.push(new);
    }

    /// Counters in global or shared memory.
    fn atomics(&mut self) {
        let like = self.tiles.clone();
        let Some(t) = self.pick(&like) else { return };
        let dtype = [DType::I32, DType::U32][self.below(2)];
        let count = 1 + self.below(40);
        let op = [AtomicOp::Add, AtomicOp::Add, AtomicOp::Max, AtomicOp::Min, AtomicOp::Or][self.below(5)];
        let (shared, by_data) = (self.chance(40), self.chance(40));
        let (view, tile) = if shared {
            let tile = self.tile_in(dtype, &[count], Space::Shared);
            let c = self.literal(dtype);
            let value = self.b.constant(c);
            self.b.push(Op::Fill { dst: tile.view, value });
            (tile.view, Some(tile))
        } else {
            let extent = self.constant_extent(count);
            (self.tensor(dtype, Access::InOut, vec![extent]), None)
        };
        self.parallel(&t.extents, |g, at| {
            let value = g.expr(dtype, 1, at);
            let index = if by_data {
                let x = g.expr(DType::I32, 1, at);
                g.b.ix_data(x)
            } else {
                g.clamped(count, at)
            };
            g.b.push(Op::Atomic { result: None, op, view, index: vec![index], value });
        });
        self.tiles.extend(tile);
    }

    /// A permutation of the block's rows by data, into an output.
    fn put(&mut self) {
        let size = self.block.next_power_of_two();
        if size != self.block {
            return;
        }
        let dtype = self.dtype();
        let out = self.shaped(dtype, Access::InOut, 1, 0);
        let (odd, add) = (1 + 2 * self.below(8) as i32, self.below(64) as i32);
        self.parallel(&[size], |g, at| {
            let v = g.expr(dtype, 2, at);
            let index = at.ix[0];
            let i = g.b.push_value(DType::I32, |result| Op::IndexValue { result, index });
            let constants = [odd, add, size as i32 - 1].map(|c| g.b.constant(Literal::i32(c)));
            let mut x = i;
            for (op, b) in [BinaryOp::Mul, BinaryOp::Add, BinaryOp::And].into_iter().zip(constants) {
                x = g.b.push_value(DType::I32, |result| Op::Binary { result, op, a: x, b });
            }
            let x = g.b.ix_data(x);
            let to = g.b.ix_add(g.at, x);
            g.store(out, &[to], v, true);
        });
    }

    /// A loop whose trip count is a constant or comes from data, with updates and a copy that may run ahead.
    fn block_loop(&mut self) {
        let lo = self.b.ix_const(0);
        let (constant, count) = (self.chance(50), self.below(4));
        let hi = if constant { self.b.ix_const(count as i64) } else { self.clamped(4, &Place::default()) };
        let width = 1 + self.below(8);
        let dtype = self.dtype();
        let columns = 4 * width - self.below(2);
        let source = self.shaped(dtype, Access::In, 2, columns);
        let sum = self.chance(70).then(|| self.computed(DType::F32, &[self.block, width]));
        let stages = 1 + self.below(3);
        let var = self.b.new_ix_var("j", IxVarKind::Loop, Some(lo), None);
        let body = self.b.open();
        let j = self.b.ix_var(var);
        let around = Place { loops: vec![j], ..Place::default() };
        let (tiles, scalars) = (self.tiles.len(), self.scalars.len());
        if let Some(sum) = sum {
            let chunk = self.tile(dtype, &sum.extents);
            let (w, zero) = (self.b.ix_const(width as i64), self.b.ix_const(0));
            let (row, column) = (self.at, self.b.ix_mul(j, w));
            self.copy(source, &[row, column], chunk.view, &[zero, zero], &sum.extents);
            self.parallel(&sum.extents, |g, at| {
                let x = g.load(chunk.view, &at.ix);
                let x = g.convert(x, DType::F32);
                let old = g.load(sum.view, &at.ix);
                let v = g.b.push_value(DType::F32, |result| Op::Binary { result, op: BinaryOp::Add, a: old, b: x });
                g.store(sum.view, &at.ix, v, false);
            });
        }
        for _ in 0..self.below(3) {
            self.in_place(&around);
        }
        if self.chance(20) {
            let cond = self.condition(1, &around);
            let then = self.b.open();
            self.b.push(Op::Break);
            self.b.close();
            let els = self.b.open();
            self.b.close();
            self.b.push(Op::If { cond, then, els, results: vec![] });
        }
        self.tiles.truncate(tiles);
        self.scalars.truncate(scalars);
        self.b.close();
        self.b.push(Op::For { var, lo, hi, body, stages });
    }

    fn block_if(&mut self) {
        let cond = self.condition(1, &Place::default());
        let dtype = self.dtype();
        let arm = |g: &mut Self| {
            let block = g.b.open();
            for _ in 0..g.below(3) {
                g.in_place(&Place::default());
            }
            let v = g.expr(dtype, 1, &Place::default());
            g.b.close();
            (block, v)
        };
        let ((then, a), (els, b)) = (arm(self), arm(self));
        let result = self.b.free_value(dtype);
        let results = vec![IfResult::Value { result, then: a, els: b }];
        let id = self.b.push(Op::If { cond, then, els, results });
        self.b.kernel.values[result.0 as usize].def = Some(id);
        self.scalar(result);
    }

    fn gemm(&mut self) {
        if self.exact {
            return;
        }
        const SIDES: [usize; 7] = [8, 16, 16, 32, 24, 5, 13];
        let [m, n, k] = [0; 3].map(|_| SIDES[self.below(7)]);
        let pairs = [
            (DType::Bf16, DType::Bf16),
            (DType::F16, DType::F16),
            (DType::F32, DType::F32),
            (DType::I8, DType::I8),
            (DType::E4m3, DType::E4m3),
            (DType::E5m2, DType::E4m3),
        ];
        let (da, db) = pairs[self.below(6)];
        let operand = |g: &mut Self, dtype, rows: usize, columns: usize| {
            let turned = g.chance(50);
            let extents = if turned { [columns, rows] } else { [rows, columns] };
            let t = g.tile(dtype, &extents);
            g.parallel(&extents, |g, at| {
                let v = g.expr(dtype, 1, at);
                g.store(t.view, &at.ix, v, false);
            });
            if turned { g.transposed(t.view) } else { t.view }
        };
        let (a, b) = (operand(self, da, m, k), operand(self, db, k, n));
        let acc = self.tile_in(DType::F32, &[m, n], Space::Frag);
        // A matrix unit fills the depth up with zeros, and -0 plus +0 is +0: an accumulator of -0 whose products are all
        // -0 shows it. Sums that start at +0 never are -0, so products of ragged depth start there.
        let set = self.chance(50) || k % 32 != 0;
        if !set {
            self.parallel(&[m, n], |g, at| {
                let v = g.expr(DType::F32, 1, at);
                g.store(acc.view, &at.ix, v, false);
            });
        }
        self.b.push(Op::Gemm { a, b, acc: acc.buffer, set, scales: None });
        if self.chance(30) {
            self.b.push(Op::Gemm { a, b, acc: acc.buffer, set: false, scales: None });
        }
        self.tiles.push(acc);
    }

    fn find(&mut self) {
        let extent = self.block;
        let (vars, at) = self.elements(&[extent]);
        let body = self.b.open();
        let cond = self.condition(1, &at);
        self.b.close();
        let result = self.b.new_ix_var("found", IxVarKind::Data, None, None);
        self.b.push(Op::FindFirst { var: vars[0], extent, body, cond, result });
        let index = self.b.ix_var(result);
        let v = self.b.push_value(DType::I32, |result| Op::IndexValue { result, index });
        self.scalar(v);
    }

    /// A range known at run time, without tiles.
    fn spread(&mut self) {
        let size = self.b.ix_const(self.block as i64);
        let lo = self.at;
        let end = self.b.ix_add(lo, size);
        let hi = self.b.ix_min(end, self.n);
        let dtype = self.dtype();
        let out = self.shaped(dtype, Access::Out, 1, 0);
        let var = self.b.new_ix_var("s", IxVarKind::Element, Some(lo), None);
        let body = self.b.open();
        let i = self.b.ix_var(var);
        let local = self.b.ix_sub(i, lo);
        let tiles = std::mem::take(&mut self.tiles);
        let at = Place { ix: vec![local], extents: vec![self.block], ..Place::default() };
        let depth = 1 + self.below(3);
        let v = self.expr(dtype, depth, &at);
        self.store(out, &[i], v, false);
        self.tiles = tiles;
        self.b.close();
        self.b.push(Op::Spread { var, lo, hi, body });
    }

    /// Numbers those elements of a range for which something holds, and collects them without gaps.
    fn claim(&mut self) {
        let size = self.b.ix_const(self.block as i64);
        let lo = self.at;
        let end = self.b.ix_add(lo, size);
        let hi = self.b.ix_min(end, self.n);
        let dtype = self.dtype();
        let numbers = self.shaped(DType::U32, Access::Out, 1, 0);
        let tile = self.tile_in(dtype, &[self.block], Space::Shared);
        let rest = self.literal(dtype);
        let rest = self.b.constant(rest);
        self.b.push(Op::Fill { dst: tile.view, value: rest });
        let start = self.b.constant(Literal { dtype: DType::U32, bits: 0 });
        let counter = self.b.new_buffer("count", DType::U32, &[], Space::Var, false);
        self.b.push(Op::VarNew { var: counter, init: start });
        let var = self.b.new_ix_var("s", IxVarKind::Element, Some(lo), None);
        let tiles = std::mem::take(&mut self.tiles);
        let body = self.b.open();
        let i = self.b.ix_var(var);
        let local = self.b.ix_sub(i, lo);
        let at = Place { ix: vec![local], extents: vec![self.block], ..Place::default() };
        let cond = self.condition(0, &at);
        let number = self.b.push_value(DType::U32, |result| Op::Claim { result, var: counter, cond });
        self.store(numbers, &[i], number, false);
        let then = self.b.open();
        let v = self.expr(dtype, 1, &at);
        let to = self.b.ix_data(number);
        self.store(tile.view, &[to], v, true);
        self.b.close();
        let els = self.b.open();
        self.b.close();
        self.b.push(Op::If { cond, then, els, results: vec![] });
        self.b.close();
        self.b.push(Op::Spread { var, lo, hi, body });
        self.tiles = tiles;
        self.tiles.push(tile);
        let all = self.b.push_value(DType::U32, |result| Op::VarGet { result, var: counter });
        self.scalar(all);
    }

    /// Rows of an input by number.
    fn gathered(&mut self) {
        let rows = self.shaped(DType::I32, Access::In, 1, 0);
        let d = self.dtype();
        let base = self.input(d, 2);
        let v = self.b.kernel.view(base).clone();
        let gather = Some(Gather::Rows { rows, count: v.extents[0] });
        let view = self.b.view(View { extents: vec![self.n, v.extents[1]], gather, ..v.clone() });
        let tile = self.tile(v.dtype, &[self.block, self.columns]);
        let (row, zero) = (self.at, self.b.ix_const(0));
        self.copy(view, &[row, zero], tile.view, &[zero, zero], &tile.extents);
        self.tiles.push(tile);
    }
}
