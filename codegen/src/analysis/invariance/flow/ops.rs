//! What each op does to the abstract values of the taint analysis.

use super::*;

impl Flow<'_> {
    pub(super) fn block(&mut self, b: BlockId, ctx: &Abs) {
        let k = self.k;
        for &id in &k.block(b).ops {
            self.op(id, ctx);
        }
    }

    pub(super) fn op(&mut self, id: OpId, ctx: &Abs) {
        let k = self.k;
        match &k.op(id).op {
            Op::Const { result, .. } => self.define(*result, Abs::default(), id),
            Op::IndexValue { result, index } => {
                let a = self.ix(*index, id);
                self.define(*result, a, id);
            }
            Op::Unary { result, x, .. } | Op::Cast { result, x } | Op::Bits { result, x } => {
                let a = self.value(*x);
                self.define(*result, a, id);
            }
            Op::Binary { result, a, b, .. } | Op::Compare { result, a, b, .. } => {
                let joined = self.join(&self.value(*a), &self.value(*b), id);
                self.define(*result, joined, id);
            }
            Op::Fma { result, a, b, c } | Op::Select { result, cond: a, a: b, b: c } => {
                let joined = self.join_all(&[self.value(*a), self.value(*b), self.value(*c)], id);
                self.define(*result, joined, id);
            }
            Op::CompareIndex { result, op, a, b } => {
                let joined = if self.tests_row(*op, *a, *b) {
                    Abs::default()
                } else {
                    let (a, b) = (self.ix(*a, id), self.ix(*b, id));
                    self.join(&a, &b, id)
                };
                self.define(*result, joined, id);
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let (lo, hi) = (self.ix(*lo, id), self.ix(*hi, id));
                let joined = self.join_all(&[self.value(*value), lo, hi], id);
                self.define_ix(*var, joined, id);
            }
            Op::VarNew { var, init: value } | Op::VarSet { var, value } => {
                let a = self.join(&self.value(*value), ctx, id);
                self.set_variable(*var, a, id);
            }
            Op::IxVarNew { var, init: index } | Op::IxVarSet { var, index } => {
                let a = self.ix(*index, id);
                let a = self.join(&a, ctx, id);
                self.set_variable(*var, a, id);
            }
            Op::VarGet { result, var } => {
                let a = self.variable(*var);
                self.define(*result, a, id);
            }
            Op::IxVarGet { result, var } => {
                let a = self.variable(*var);
                self.define_ix(*result, a, id);
            }
            Op::Load { result, view, index } => {
                let index: Vec<_> = index.iter().map(|&i| Some(i)).collect();
                let a = self.read(*view, &index, &[], id);
                self.define(*result, a, id);
            }
            Op::LoadOr { result, view, index, other } => {
                let index: Vec<_> = index.iter().map(|&i| Some(i)).collect();
                let a = self.read(*view, &index, &[], id);
                let a = self.join(&a, &self.value(*other), id);
                self.define(*result, a, id);
            }
            Op::Store { view, index, value, .. } => {
                let index: Vec<_> = index.iter().map(|&i| Some(i)).collect();
                let a = self.value(*value);
                self.write(*view, &index, &[], &a, ctx, id);
            }
            Op::Atomic { result, view, index, value, .. } => {
                let index: Vec<_> = index.iter().map(|&i| Some(i)).collect();
                let a = self.value(*value);
                self.write(*view, &index, &[], &a, ctx, id);
                if let Some(r) = result {
                    let old = self.read(*view, &index, &[], id);
                    let a = self.join(&a, &old, id);
                    self.define(*r, a, id);
                }
            }
            Op::Claim { result, var, cond } => {
                // The number counts iterations of the `Spread` around it.
                let mut over = vec![];
                for o in &self.k.ops {
                    if let Op::Spread { var, body, .. } = o.op
                        && self.k.block(body).ops.contains(&id)
                    {
                        over.push(var);
                    }
                }
                let over = self.element_atoms(&over);
                let a = self.gathered(self.value(*cond), &over, id, "numbering runs");
                let a = self.join_all(&[a, self.variable(*var), ctx.clone()], id);
                self.set_variable(*var, a.clone(), id);
                self.define(*result, a, id);
            }
            // A check ends the whole run or does nothing to it; what rows are given does not come from there.
            Op::Check { .. } => {}
            Op::Alloc { .. } | Op::Break | Op::Continue | Op::GridBarrier | Op::BlockBarrier { .. } => {}
            // Plain kernels have none.
            Op::Sched(_) => {}
            Op::Fill { dst, value } => {
                let a = self.join(&self.value(*value), ctx, id);
                match k.view(*dst).base {
                    Base::Buffer(b) => {
                        let rows = Ok(a.row.map(|base| TileRows { base, unit: 1, count: 1 }));
                        self.store(b, rows, a.causes, false, id);
                    }
                    Base::Param(_) => {
                        let extents = self.view_extents(*dst);
                        let at = self.coordinates(id, &extents);
                        self.write(*dst, &vec![None; at.len()], &at, &a, &Abs::default(), id);
                    }
                }
            }
            Op::Copy { src, dst, extents } => self.copy(id, src, dst, extents, ctx),
            Op::Parallel { body, .. } => self.block(*body, ctx),
            Op::Spread { lo, hi, body, .. } => {
                // How many iterations there are decides which elements are touched, as a loop that carries nothing.
                let bounds = self.join_ix(*lo, *hi, id);
                let ctx = self.join(ctx, &Self::placed(&bounds), id);
                self.block(*body, &ctx);
            }
            Op::Reduce { src, dst, axis, .. } => {
                let extents = self.view_extents(*src);
                let at = self.coordinates(id, &extents);
                let a = self.read(*src, &vec![None; at.len()], &at, id);
                let over = at[*axis].atoms();
                let a = self.gathered(a, &over, id, "a reduction runs");
                let kept: Vec<Poly> =
                    at.iter().enumerate().filter(|(i, _)| i != axis).map(|(_, p)| p.clone()).collect();
                self.fill_tile(*dst, &kept, a, ctx, id);
            }
            Op::ReduceRegion { vars, body, value, result, .. } => {
                self.block(*body, ctx);
                let over = self.element_atoms(vars);
                let a = self.gathered(self.value(*value), &over, id, "a reduction runs");
                self.define(*result, self.join(&a, ctx, id), id);
            }
            Op::Scan { src, dst, axis, total, .. } => {
                let extents = self.view_extents(*src);
                let at = self.coordinates(id, &extents);
                let a = self.read(*src, &vec![None; at.len()], &at, id);
                if let Some(t) = total {
                    let all: Vec<Atom> = at.iter().flat_map(Poly::atoms).collect();
                    let sum = self.gathered(a.clone(), &all, id, "a scan runs");
                    self.define(*t, sum, id);
                }
                let over = at[*axis].atoms();
                let a = self.gathered(a, &over, id, "a scan runs");
                self.fill_tile(*dst, &at, a, ctx, id);
            }
            Op::FindFirst { var, body, cond, result, .. } => {
                self.block(*body, ctx);
                let over = self.element_atoms(&[*var]);
                let a = self.gathered(self.value(*cond), &over, id, "a search runs");
                self.define_ix(*result, a, id);
            }
            Op::Gemm { a, b, acc, scales, .. } => self.gemm(id, (*a, *b), *acc, *scales, ctx),
            Op::For { var, lo, hi, body, .. } => {
                let bounds = self.join_ix(*lo, *hi, id);
                self.repeat(id, Some(*var), bounds, *body, ctx);
            }
            Op::Loop { body } => self.repeat(id, None, Abs::default(), *body, ctx),
            Op::If { cond, then, els, results } => {
                let cond = self.value(*cond);
                let inside = self.join(ctx, &Self::implied(&cond), id);
                self.block(*then, &inside);
                self.block(*els, &inside);
                for r in results {
                    match *r {
                        IfResult::Value { result, then, els } => {
                            let a = self.join_all(&[cond.clone(), self.value(then), self.value(els)], id);
                            self.define(result, a, id);
                        }
                        IfResult::Index { result, then, els } => {
                            let (a, b) = (self.ix(then, id), self.ix(els, id));
                            let a = self.join_all(&[cond.clone(), a, b], id);
                            self.define_ix(result, a, id);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn join_ix(&mut self, a: IxId, b: IxId, at: OpId) -> Abs {
        let (a, b) = (self.ix(a, at), self.ix(b, at));
        self.join(&a, &b, at)
    }

    pub(super) fn variable(&self, b: BufferId) -> Abs {
        let s = &self.stored[b.0 as usize];
        Abs { row: s.rows.as_ref().map(|r| r.base.clone()), causes: s.causes.clone() }
    }

    pub(super) fn set_variable(&mut self, b: BufferId, a: Abs, at: OpId) {
        let rows = a.row.map(|base| TileRows { base, unit: 1, count: 1 });
        self.store(b, Ok(rows), a.causes, true, at);
    }

    /// A whole tile gets `a`, which names its row with these coordinates.
    pub(super) fn fill_tile(&mut self, b: BufferId, coordinates: &[Poly], a: Abs, ctx: &Abs, at: OpId) {
        let a = self.join(&a, ctx, at);
        let rows = match &a.row {
            None => Ok(None),
            Some(p) => self.whole_tile(b, coordinates, p).map(Some).ok_or(()),
        };
        self.store(b, rows, a.causes, true, at);
    }

    /// As `Rows::put` for the whole of a tile in row-major order.
    pub(super) fn whole_tile(&self, b: BufferId, coordinates: &[Poly], p: &Poly) -> Option<TileRows> {
        let extents = &self.k.buffer(b).extents;
        let named: Vec<usize> = (0..coordinates.len())
            .filter(|&k| coordinates[k].atoms().iter().any(|&a| self.rows.depends(p, a)))
            .collect();
        match named.as_slice() {
            [] => Some(TileRows { base: p.clone(), unit: 1, count: 1 }),
            &[axis] => {
                let &[a] = coordinates[axis].atoms().as_slice() else { return None };
                let unit: usize = extents[axis + 1..].iter().product();
                let (factor, base) = p.split(a)?;
                if factor.as_constant() == Some(1) && !self.rows.depends(&base, a) {
                    return Some(TileRows { base, unit: unit as i128, count: extents[axis] as i128 });
                }
                // A quotient of the coordinate.
                let &[q] = p
                    .atoms()
                    .iter()
                    .filter(|&&x| self.rows.depends(&Poly::atom(x), a))
                    .copied()
                    .collect::<Vec<_>>()
                    .as_slice()
                else {
                    return None;
                };
                let c = self.rows.quotient_of(q, a)?;
                let (factor, base) = p.split(q)?;
                let extent = extents[axis] as i128;
                (factor.as_constant() == Some(1)).then_some(TileRows {
                    base,
                    unit: unit as i128 * c,
                    count: (extent + c - 1) / c,
                })
            }
            _ => None,
        }
    }

    pub(super) fn copy(&mut self, id: OpId, src: &Region, dst: &Region, extents: &[usize], ctx: &Abs) {
        let sizes: Vec<_> = extents.iter().map(|&e| Some(e)).collect();
        let at = self.coordinates(id, &sizes);
        let from: Vec<_> = src.start.iter().map(|&i| Some(i)).collect();
        let to: Vec<_> = dst.start.iter().map(|&i| Some(i)).collect();
        let a = self.read(src.view, &from, &at, id);
        self.write(dst.view, &to, &at, &a, ctx, id);
    }

    pub(super) fn gemm(
        &mut self,
        id: OpId,
        (a, b): (ViewId, ViewId),
        acc: BufferId,
        scales: Option<[GemmScale; 2]>,
        ctx: &Abs,
    ) {
        let (ea, eb) = (self.view_extents(a), self.view_extents(b));
        let atoms = self.coordinates(id, &[ea[0], eb[1], ea[1]]);
        let (mut row, mut column, depth) = (atoms[0].clone(), atoms[1].clone(), atoms[2].clone());
        let mut parts = vec![];
        if let Some(scales) = scales {
            for (s, at) in scales.iter().zip([&mut row, &mut column]) {
                self.block(s.body, ctx);
                parts.push(self.value(s.value));
                if let Some(v) = self.rows.ranges.var_atom(s.var) {
                    *at = Poly::atom(v);
                }
            }
        }
        let over = depth.atoms();
        for (v, at) in [(a, [row.clone(), depth.clone()]), (b, [depth, column.clone()])] {
            let x = self.read(v, &[None, None], &at, id);
            parts.push(self.gathered(x, &over, id, "a product runs"));
        }
        let all = self.join_all(&parts, id);
        self.fill_tile(acc, &[row, column], all, ctx, id);
    }

    /// What bounds mean for a loop that carries nothing: the iterations are independent work, so it does not matter that
    /// there are more of them for more rows.
    pub(super) fn placed(bounds: &Abs) -> Abs {
        let mut a = Self::implied(bounds);
        a.causes.retain(|key, _| matches!(key.0, Source::OtherRows | Source::Unclear));
        a
    }

    pub(super) fn repeat(&mut self, id: OpId, var: Option<IxVarId>, bounds: Abs, body: BlockId, ctx: &Abs) {
        let mut ends = vec![];
        self.endings(body, &mut ends);
        let ends: Vec<Abs> = ends.into_iter().map(|v| self.value(v)).collect();
        let ends = self.join_all(&ends, id);
        let bounds = Self::step(self.join(&bounds, &ends, id), id);
        let carried = carried(self.k, id, body);
        let inner = if carried.is_empty() { Self::placed(&bounds) } else { Self::implied(&bounds) };
        let inside = self.join(ctx, &inner, id);
        self.block(body, &inside);
        for &(b, write) in &carried {
            // A tile that goes from step to step must not change its rows with the step.
            if let (Some(a), Some(rows)) =
                (var.and_then(|v| self.rows.ranges.var_atom(v)), self.stored[b.0 as usize].rows.clone())
                && self.rows.depends(&rows.base, a)
            {
                let what =
                    format!("`{}` is carried from the rows of one step to those of the next", self.k.buffer(b).name);
                let causes = self.cause(Source::OtherRows, write, what).causes;
                self.store(b, Ok(None), causes, true, id);
            }
        }
        if let Some(&(b, write)) = carried.iter().find(|c| self.k.buffer(c.0).dtype.is_float()) {
            let mut sure = bounds;
            sure.causes.retain(|key, _| key.0 != Source::Unclear && !key.1);
            let carried = self.k.buffer(b).name.clone();
            self.report(&sure, &Sink::Steps { carried, write }, id);
        }
    }

    /// Conditions of the `If`s that leave this loop or cut a step short.
    pub(super) fn endings(&self, b: BlockId, out: &mut Vec<ValueId>) -> bool {
        let mut found = false;
        for &id in &self.k.block(b).ops {
            // Loops inside have endings of their own, and none stands in an element body for a loop outside of it.
            let op = &self.k.op(id).op;
            if matches!(op, Op::Break | Op::Continue) {
                found = true;
            } else if let Op::If { cond, then, els, .. } = op
                && (self.endings(*then, out) | self.endings(*els, out))
            {
                out.push(*cond);
                found = true;
            }
        }
        found
    }
}
