//! Indices as affine forms of registers, and the accesses made of them.

use super::*;

impl Compiler<'_> {
    pub(super) fn konst(c: i64) -> Ix {
        Ix { c, uniform: vec![], elem: vec![], lanes: vec![] }
    }

    pub(super) fn atom(&self, a: Atom, uniform: bool) -> Ix {
        let mut ix = Self::konst(0);
        match a {
            Atom::Elem(axis) => {
                ix.elem = vec![0; axis + 1];
                ix.elem[axis] = 1;
            }
            a if uniform || self.body.is_none() => ix.uniform.push((1, a)),
            a => ix.lanes.push((1, a)),
        }
        ix
    }

    pub(super) fn add(a: Ix, b: &Ix, k: i64) -> Ix {
        let mut r = a;
        r.c = r.c.wrapping_add(b.c.wrapping_mul(k));
        for (dst, src) in [(&mut r.uniform, &b.uniform), (&mut r.lanes, &b.lanes)] {
            for (c, atom) in src {
                let c = c.wrapping_mul(k);
                let same = |x: &Atom| match (x, atom) {
                    (Atom::Env(p), Atom::Env(q)) | (Atom::Lane(p), Atom::Lane(q)) => p == q,
                    _ => false,
                };
                match dst.iter_mut().find(|(_, x)| same(x)) {
                    Some(t) => t.0 = t.0.wrapping_add(c),
                    None => dst.push((c, atom.clone())),
                }
            }
            dst.retain(|t| t.0 != 0);
        }
        if r.elem.len() < b.elem.len() {
            r.elem.resize(b.elem.len(), 0);
        }
        for (x, y) in r.elem.iter_mut().zip(&b.elem) {
            *x = x.wrapping_add(y.wrapping_mul(k));
        }
        r
    }

    pub(super) fn mul(&self, a: Ix, b: Ix) -> Ix {
        if let Some(k) = b.constant() {
            return Self::add(Self::konst(0), &a, k);
        }
        if let Some(k) = a.constant() {
            return Self::add(Self::konst(0), &b, k);
        }
        let uniform = a.is_uniform() && b.is_uniform();
        self.atom(Atom::Mul(Box::new((a, b))), uniform)
    }

    pub(super) fn ix(&mut self, id: IxId, span: SpanId) -> Ix {
        match self.kernel.ix_expr(id) {
            IxExpr::Const(c) => Self::konst(c),
            IxExpr::Sym(s) => Self::konst(self.syms[s.0 as usize]),
            IxExpr::Var(v) => self.ix_var(v),
            IxExpr::Data(v) => self.ix_data(v, span),
            IxExpr::Add(a, b) => {
                let (a, b) = (self.ix(a, span), self.ix(b, span));
                Self::add(a, &b, 1)
            }
            IxExpr::Sub(a, b) => {
                let (a, b) = (self.ix(a, span), self.ix(b, span));
                Self::add(a, &b, -1)
            }
            IxExpr::Mul(a, b) => {
                let (a, b) = (self.ix(a, span), self.ix(b, span));
                self.mul(a, b)
            }
            IxExpr::Div(a, b) => self.pair(a, b, span, |a, b| (b > 0).then(|| a.div_euclid(b)), Atom::Div),
            IxExpr::Mod(a, b) => self.pair(a, b, span, |a, b| (b > 0).then(|| a.rem_euclid(b)), Atom::Mod),
            IxExpr::Min(a, b) => self.pair(a, b, span, |a, b| Some(a.min(b)), Atom::Min),
            IxExpr::Max(a, b) => self.pair(a, b, span, |a, b| Some(a.max(b)), Atom::Max),
        }
    }

    pub(super) fn pair(
        &mut self,
        a: IxId,
        b: IxId,
        span: SpanId,
        fold: fn(i64, i64) -> Option<i64>,
        atom: fn(Box<(Ix, Ix)>) -> Atom,
    ) -> Ix {
        let (a, b) = (self.ix(a, span), self.ix(b, span));
        if let (Some(x), Some(y)) = (a.constant(), b.constant())
            && let Some(c) = fold(x, y)
        {
            return Self::konst(c);
        }
        let uniform = a.is_uniform() && b.is_uniform();
        self.atom(atom(Box::new((a, b))), uniform)
    }

    pub(super) fn ix_var(&mut self, v: IxVarId) -> Ix {
        if let Some(f) = &self.body {
            if let Some(&axis) = f.elems.get(&v) {
                return self.atom(Atom::Elem(axis), false);
            }
            if let Some(&slot) = f.ix_vars.get(&v) {
                return self.atom(Atom::Lane(slot), false);
            }
            if let Some(&at) = f.aliases.get(&v) {
                return self.atom(Atom::Env(at), true);
            }
        }
        self.atom(Atom::Env(v.0 as usize), true)
    }

    pub(super) fn ix_data(&mut self, v: ValueId, span: SpanId) -> Ix {
        let dtype = self.dtype(v);
        if let Some(lit) = self.kernel.literal(v) {
            return Self::konst(crate::vm::lanes::int_from_bits(lit.dtype, lit.bits));
        }
        if let Some(f) = &mut self.body
            && !f.values.contains_key(&v)
            && let Some(&outer) = self.block.values.get(&v)
        {
            let at = self.kernel.ix_vars.len() + self.kernel.buffers.len() + v.0 as usize;
            if !f.env_data.iter().any(|e| e.0 == at) {
                f.env_data.push((at, outer, dtype));
            }
            return self.atom(Atom::Env(at), true);
        }
        let reg = self.value(v, span);
        self.atom(Atom::Data(reg, dtype), false)
    }

    pub(super) fn env_of_buffer(&self, b: BufferId) -> usize {
        self.kernel.ix_vars.len() + b.0 as usize
    }

    /// Where a new data index of the current frame lives.
    pub(super) fn define_ix(&mut self, v: IxVarId) -> IxTarget {
        match &mut self.body {
            None => IxTarget::Env(v.0 as usize),
            Some(f) => {
                let slot = match f.ix_vars.get(&v) {
                    Some(&s) => s,
                    None => f.fresh(Class::L, false).slot,
                };
                f.ix_vars.insert(v, slot);
                IxTarget::Lane(slot)
            }
        }
    }

    // --- accesses ---

    pub(super) fn access(&mut self, view: ViewId, index: &[IxId], op: OpId, span: SpanId, manner: Manner) -> Access {
        let indices: Vec<Ix> = index.iter().map(|&i| self.ix(i, span)).collect();
        self.access_at(view, indices, op, span, manner)
    }

    pub(super) fn access_at(
        &mut self,
        view: ViewId,
        indices: Vec<Ix>,
        op: OpId,
        span: SpanId,
        manner: Manner,
    ) -> Access {
        let v = self.kernel.view(view).clone();
        if indices.len() != v.extents.len() {
            self.error(
                span,
                format!("an access gives {} indices to a view of {} axes", indices.len(), v.extents.len()),
            );
        }
        let place = match v.base {
            Base::Param(p) => Place::Param(p.0 as usize),
            Base::Buffer(b) => Place::Tile(b.0 as usize),
        };
        let mut address = self.ix(v.offset, span);
        let kept = self.facts.guards.get(&op);
        let lookup = v.gather.and_then(|g| self.lookup(g, &v.strides, indices.first()?.clone(), span));
        let mut checks = vec![];
        let outside = |axis: usize| match (manner, place) {
            (Manner::Checked, _) | (Manner::Copy, Place::Param(_)) => Outside::Expected,
            (Manner::Copy, Place::Tile(_)) => Outside::Defect,
            (Manner::Plain, Place::Param(_)) if kept.and_then(|g| g.get(axis)).copied().unwrap_or(false) => {
                Outside::Tail
            }
            (Manner::Plain, Place::Param(_) | Place::Tile(_)) => Outside::Defect,
        };
        for (axis, index) in indices.into_iter().enumerate().take(v.extents.len()) {
            let stride = self.ix(v.strides[axis], span);
            if axis > 0 || lookup.is_none() {
                let step = self.mul(index.clone(), stride);
                address = Self::add(address, &step, 1);
            }
            let extent = self.ix(v.extents[axis], span);
            checks.push(Check { index, extent, outside: outside(axis) });
        }
        let rank = v.extents.len();
        for (g, &(index, extent)) in v.guards.iter().enumerate() {
            let (index, extent) = (self.ix(index, span), self.ix(extent, span));
            checks.push(Check { index, extent, outside: outside(rank + g) });
        }
        let affine = address.lanes.is_empty()
            && checks.iter().all(|c| c.index.lanes.is_empty() && c.extent.is_uniform())
            && lookup.as_ref().is_none_or(|l| {
                let fixed = [&l.table.address, &l.stride, &l.entries, &l.count, &l.step, &l.within];
                let guards = l.table.checks.iter().flat_map(|c| [&c.index, &c.extent]);
                l.row.lanes.is_empty() && fixed.into_iter().chain(guards).all(Ix::is_uniform)
            });
        Access { place, dtype: v.dtype, address, checks, affine, lookup: lookup.map(Box::new) }
    }

    pub(super) fn lookup(&mut self, gather: Gather, strides: &[IxId], row: Ix, span: SpanId) -> Option<Lookup> {
        let row_stride = self.ix(*strides.first()?, span);
        let (table, page, count, step, within) = match gather {
            Gather::Paged { table, page, pages, page_stride } => {
                (table, page as i64, self.ix(pages, span), self.ix(page_stride, span), row_stride)
            }
            Gather::Rows { rows, count } => (rows, 1, self.ix(count, span), row_stride, Self::konst(0)),
        };
        let t = self.kernel.view(table).clone();
        let ([extent], [stride], None, true) = (&t.extents[..], &t.strides[..], t.gather, page > 0) else {
            self.error(span, "a table is a view of rank 1 that is not gathered, and pages have rows");
            return None;
        };
        let (entries, stride) = (self.ix(*extent, span), self.ix(*stride, span));
        let place = match t.base {
            Base::Param(p) => Place::Param(p.0 as usize),
            Base::Buffer(b) => Place::Tile(b.0 as usize),
        };
        let address = self.ix(t.offset, span);
        let mut checks = vec![];
        for &(index, extent) in &t.guards {
            let (index, extent) = (self.ix(index, span), self.ix(extent, span));
            checks.push(Check { index, extent, outside: Outside::Expected });
        }
        let table = Access { place, dtype: t.dtype, address, checks, affine: false, lookup: None };
        Some(Lookup { table, stride, entries, row, page, count, step, within })
    }
}
