//! Element loops and reductions: which loops go along the lanes, which tensors are staged, and which need no vector code.

use super::form::{Coef, Form, Local};
use super::lower::{Lower, Res};
use super::mem;
use super::stage::{Slab, Ub};
use super::tree::{BufId, Core, Pipe, Place};
use super::vf::{self, Sites, Vf};
use crate::emit::cuda::expr::Text;
use crate::ir::{Base, BlockId, DType, IxId, IxVarId, Op, OpId, ParamKind, ReduceOp, Space, ViewId, effects};

/// An access of a body.
struct Access {
    id: OpId,
    view: ViewId,
    index: Vec<IxId>,
    store: bool,
    /// Inside a branch: not every element is touched.
    branch: bool,
}

/// A box to copy out after a loop.
struct Leaving {
    slab: Slab,
    /// Where its elements are.
    buf: BufId,
    /// Where the loop puts them, if in words.
    words: Option<BufId>,
}

/// Names of loops' results: what is written, for the function's name.
fn wish(accesses: &[Access], l: &Lower<'_>) -> String {
    let target = accesses.iter().find(|a| a.store).or(accesses.first());
    let name = target.map_or("step".into(), |a| match l.k.view(a.view).base {
        Base::Param(p) => l.k.param(p).name.clone(),
        Base::Buffer(b) => l.k.buffer(b).name.clone(),
    });
    name.split('_').map(vf::capital).collect()
}

impl Lower<'_> {
    /// `parallel`.
    pub fn parallel(&mut self, id: OpId) -> Res<()> {
        let Op::Parallel { vars, extents, body, .. } = &self.k.op(id).op else { return Ok(()) };
        let mut vars: Vec<(IxVarId, usize)> = vars.iter().copied().zip(extents.iter().copied()).collect();
        if self.matrix_loop(id, &vars, *body)? {
            return Ok(());
        }
        let body = *body;
        if !self.matrix.on {
            return self.own_loop(id, &vars, body);
        }
        let (core, split) = (self.core, self.split_now);
        self.core = Core::Vector;
        if let (Some(v), Some(sub)) = (self.matrix.split_var(self.k, id), self.matrix.sub)
            && let Some(x) = vars.iter_mut().find(|x| x.0 == v)
        {
            x.1 /= 2;
            self.split_now = Some((v, x.1 as i64, sub));
        }
        let r = self.own_loop(id, &vars, body);
        self.split_now = split;
        self.core = core;
        r
    }

    /// An element loop on vector cores.
    fn own_loop(&mut self, id: OpId, vars: &[(IxVarId, usize)], body: BlockId) -> Res<()> {
        let local = Local::of(self.k, self.ranges, id).within(vars);
        self.single_steps(vars);
        let accesses = self.accesses(body);
        let what = self.what(&accesses);
        self.at(id, &what);
        if self.plain_copy(body, &accesses, vars, &local)? {
            return Ok(());
        }
        let before = self.save();
        match self.vector_loop(id, vars, body, &local, &accesses) {
            Ok(()) => Ok(()),
            Err(e) if self.wishes() => Err(e),
            Err(e) => {
                self.restore(before);
                let before = self.save();
                match self.serial_loop(id, vars, body) {
                    Ok(()) => Ok(()),
                    Err(_) => {
                        self.restore(before);
                        Err(e)
                    }
                }
            }
        }
    }

    /// Variables of loops of one step have a value, which texts of bounds may name.
    pub fn single_steps(&mut self, vars: &[(IxVarId, usize)]) {
        for &(v, _) in vars.iter().filter(|v| v.1 == 1) {
            let text = match self.split_now.filter(|s| s.0 == v) {
                Some((_, half, sub)) => Text::mul(&self.ix(sub), &Text::number(half)),
                None => Text::number(0),
            };
            self.index.insert(v, text);
        }
    }

    fn what(&self, accesses: &[Access]) -> String {
        let mut names: Vec<&str> = vec![];
        for a in accesses.iter().filter(|a| a.store) {
            let n = match self.k.view(a.view).base {
                Base::Param(p) => self.k.param(p).name.as_str(),
                Base::Buffer(b) => self.k.buffer(b).name.as_str(),
            };
            if !names.contains(&n) {
                names.push(n);
            }
        }
        if names.is_empty() { "elements".into() } else { names.join(", ") }
    }

    fn accesses(&self, body: BlockId) -> Vec<Access> {
        fn go(l: &Lower<'_>, b: BlockId, branch: bool, out: &mut Vec<Access>) {
            for &id in &l.k.block(b).ops {
                let op = &l.k.op(id).op;
                if let Op::Load { view, index, .. } | Op::LoadOr { view, index, .. } = op {
                    out.push(Access { id, view: *view, index: index.clone(), store: false, branch });
                } else if let Op::Store { view, index, .. } = op {
                    out.push(Access { id, view: *view, index: index.clone(), store: true, branch });
                }
                let inner = branch || matches!(op, Op::If { .. });
                for b in effects::bodies(op) {
                    go(l, b, inner, out);
                }
            }
        }
        let mut out = vec![];
        go(self, body, false, &mut out);
        out
    }

    /// A loop that moves elements and nothing else between global memory and a tile.
    fn plain_copy(
        &mut self,
        body: BlockId,
        accesses: &[Access],
        vars: &[(IxVarId, usize)],
        local: &Local,
    ) -> Res<bool> {
        let ops = &self.k.block(body).ops;
        let [a, b] = ops.as_slice() else { return Ok(false) };
        let (Op::Load { result, .. }, Op::Store { value, .. }) = (&self.k.op(*a).op, &self.k.op(*b).op) else {
            return Ok(false);
        };
        if result != value || accesses.len() != 2 {
            return Ok(false);
        }
        let (from, to) = (&accesses[0], &accesses[1]);
        let (tile, tensor) = match (self.k.view(from.view).base, self.k.view(to.view).base) {
            (Base::Param(_), Base::Buffer(_)) => (to, from),
            (Base::Buffer(_), Base::Param(_)) => (from, to),
            (Base::Param(_), Base::Param(_)) => return self.through(accesses, vars, local),
            (Base::Buffer(_), Base::Buffer(_)) => return Ok(false),
        };
        let before = self.save();
        let Some(ub) = self.tile_site(tile.id, tile.view, &tile.index, local)?.filter(|u| u.guards.is_empty()) else {
            return Ok(false);
        };
        let Ok(mut slab) = self.slab(tensor.id, tensor.view, &tensor.index, vars, local) else {
            self.restore(before);
            return Ok(false);
        };
        if !self.fits_tile(&mut slab, &ub) {
            self.restore(before);
            return Ok(false);
        }
        let base = ub.base.clone();
        if tensor.store {
            self.copy_out(&slab, ub.buf, &base);
        } else {
            self.copy_in(&slab, ub.buf, &base);
        }
        Ok(true)
    }

    /// A loop that moves elements from one tensor to another: through one buffer, if both sides agree on its shape.
    fn through(&mut self, accesses: &[Access], vars: &[(IxVarId, usize)], local: &Local) -> Res<bool> {
        let before = self.save();
        let span = self.k.op(accesses[1].id).span;
        let pair = (|| {
            let from = self.slab(accesses[0].id, accesses[0].view, &accesses[0].index, vars, local).ok()?;
            let to = self.slab(accesses[1].id, accesses[1].view, &accesses[1].index, vars, local).ok()?;
            Some((from, to))
        })();
        if let Some((mut from, mut to)) = pair {
            let ub = self.stage(&mut from, "part", span);
            if self.fits_tile(&mut to, &ub) {
                self.copy_in(&from, ub.buf, &Text::number(0));
                self.copy_out(&to, ub.buf, &Text::number(0));
                return Ok(true);
            }
        }
        self.restore(before);
        Ok(false)
    }

    /// Memory of a tile's access, if its form is one of constants.
    pub fn tile_site(&mut self, id: OpId, view: ViewId, index: &[IxId], local: &Local) -> Res<Option<Ub>> {
        let v = self.k.view(view).clone();
        let Base::Buffer(b) = v.base else { return Ok(None) };
        if v.gather.is_some() || v.dtype != self.k.buffer(b).dtype {
            return Ok(None);
        }
        if self.k.buffer(b).space == Space::Var {
            return Ok(None);
        }
        let needs = self.needs(id, view);
        if needs.iter().any(|&n| n) && (self.k.op(id).op.name() == "store" || !self.caps.register_vectors) {
            return Ok(None);
        }
        let pairs = index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied());
        let guards: Vec<(IxId, IxId)> = pairs.zip(&needs).filter(|(_, n)| **n).map(|(p, _)| p).collect();
        let own = self.matrix.split.contains(&b);
        let f = {
            let mut forms = self.forms(local);
            if own {
                forms.split = None;
            }
            forms.address(&v, index)
        };
        let Some(f) = f else { return Ok(None) };
        let t = self.tile(b);
        Ok(vf::tile_ub(self, t, v.dtype, &f).map(|u| Ub { guards, ..u }))
    }

    /// Places of all accesses of a body: tiles where they are, tensors staged. Returns what has to be copied out after.
    fn sites(
        &mut self,
        id: OpId,
        accesses: &[Access],
        vars: &[(IxVarId, usize)],
        local: &Local,
    ) -> Res<(Sites, Vec<Leaving>)> {
        let mut sites = Sites::new();
        let mut out = vec![];
        let mut reads: Vec<BufId> = vec![];
        let mut staged: Vec<(ViewId, Vec<IxId>, bool, Ub)> = vec![];
        for a in accesses {
            let same = staged.iter().find(|(v, i, s, _)| *v == a.view && *i == a.index && *s == a.store);
            if let Some((_, _, _, ub)) = same {
                let ub = ub.clone();
                sites.insert(a.id, ub);
                continue;
            }
            match self.k.view(a.view).base {
                Base::Buffer(_) => match self.tile_site(a.id, a.view, &a.index, local)? {
                    Some(ub) => {
                        sites.insert(a.id, ub);
                    }
                    None => {
                        return Err(self.refuse(
                            a.id,
                            "this element of a tile has no vector form",
                            "make the index a sum of loop variables",
                        ));
                    }
                },
                Base::Param(p) => {
                    let access =
                        if let ParamKind::Tensor { access, .. } = self.k.param(p).kind { Some(access) } else { None };
                    if a.store && a.branch && access == Some(crate::ir::Access::Out) {
                        // A box would have to be read first, and an output has no content yet.
                        return Err(self.refuse(
                            a.id,
                            "elements of an output that a branch may leave out have no vector form",
                            "write all of them, each with the value that a branch chooses",
                        ));
                    }
                    let mut slab = self.slab(a.id, a.view, &a.index, vars, local)?;
                    reads.extend(slab.reads.iter().copied());
                    let name = self.k.param(p).name.clone();
                    let span = self.k.op(a.id).span;
                    let mut ub = self.stage(&mut slab, &name, span);
                    if a.store {
                        if a.branch {
                            self.copy_in(&slab, ub.buf, &Text::number(0));
                        }
                        let buf = ub.buf;
                        let mut words = None;
                        if self.wide_stages.contains(&a.id) && ub.width < 4 {
                            if a.branch {
                                ub = self.widened(&ub, span);
                            } else {
                                let n = self.real_elements(buf);
                                let name = format!("{}Words", self.tensor(buf));
                                let wide = self.buffer(&name, "uint32_t", 4, n, Place::Ub, span);
                                ub = Ub { buf: wide, width: 4, ..ub };
                            }
                            words = Some(ub.buf);
                        }
                        out.push(Leaving { slab, buf, words });
                    } else {
                        self.copy_in(&slab, ub.buf, &Text::number(0));
                        if self.wide_stages.contains(&a.id) {
                            ub = self.widened(&ub, span);
                        }
                    }
                    staged.push((a.view, a.index.clone(), a.store, ub.clone()));
                    sites.insert(a.id, ub);
                }
            }
        }
        let _ = id;
        // Addresses are made from tiles as they are before the loop.
        for a in accesses.iter().filter(|a| a.store) {
            let written = sites.get(&a.id).map(|u| u.buf);
            if written.is_some_and(|b| reads.contains(&b)) {
                return Err(self.refuse(a.id, "an index depends on a tile that the same loop writes", "use two loops"));
            }
        }
        Ok((sites, out))
    }

    /// Copies out what a loop has stored.
    fn leave(&mut self, out: Vec<Leaving>) {
        for Leaving { slab, buf, words } in out {
            if let Some(wide) = words {
                self.narrow(wide, buf, slab.dtype());
            }
            self.copy_out(&slab, buf, &Text::number(0));
        }
    }

    /// Narrow elements out of the words they lie in.
    pub fn narrow(&mut self, from: BufId, to: BufId, d: DType) {
        let n = self.real_elements(from).min(self.real_elements(to));
        vf::narrow_function(self, d);
        let (ty, a, b) = (super::lower::type_of(d), self.tensor(from), self.tensor(to));
        let line = format!(
            "asc_vf_call<Narrow<{ty}>>((__ubuf__ {ty}*){b}.GetPhyAddr(), (__ubuf__ uint32_t*){a}.GetPhyAddr(), {n}u, static_cast<uint16_t>({}));",
            n.div_ceil(vf::LANES)
        );
        self.inst(Core::Vector, Pipe::V, vec![line], &[from], &[to]);
    }

    /// Places of the accesses of a body that only reads.
    pub fn sites_of(&mut self, body: BlockId, vars: &[(IxVarId, usize)], local: &Local) -> Res<Sites> {
        let accesses = self.accesses(body);
        let id = accesses.first().map_or(OpId(0), |a| a.id);
        self.sites(id, &accesses, vars, local).map(|s| s.0)
    }

    /// A copy of a stage with narrow elements in words.
    fn widened(&mut self, ub: &Ub, span: crate::ir::SpanId) -> Ub {
        let n = self.real_elements(ub.buf);
        let name = format!("{}Words", self.tensor(ub.buf));
        let wide = self.buffer(&name, "uint32_t", 4, n, Place::Ub, span);
        let (from, to) = (self.tensor(ub.buf), self.tensor(wide));
        let line = if self.caps.register_vectors {
            vf::widen_function(self, ub.dtype);
            let ty = super::lower::type_of(ub.dtype);
            format!(
                "asc_vf_call<Widen<{ty}>>((__ubuf__ uint32_t*){to}.GetPhyAddr(), (__ubuf__ {ty}*){from}.GetPhyAddr(), {n}u, static_cast<uint16_t>({}));",
                n.div_ceil(vf::LANES)
            )
        } else {
            String::new()
        };
        self.inst(Core::Vector, Pipe::V, vec![line], &[ub.buf], &[wide]);
        Ub { buf: wide, width: 4, ..ub.clone() }
    }

    /// Variables that go along the lanes, counted from the last: as few as fill half a register.
    fn lanes(vars: &[(IxVarId, usize)]) -> usize {
        let mut n = 0;
        let mut total = 1;
        for v in vars.iter().rev() {
            if n > 0 && total >= vf::LANES / 2 {
                break;
            }
            n += 1;
            total *= v.1;
        }
        n
    }

    fn vector_loop(
        &mut self,
        id: OpId,
        vars: &[(IxVarId, usize)],
        body: BlockId,
        local: &Local,
        accesses: &[Access],
    ) -> Res<()> {
        let name = wish(accesses, self);
        let (sites, out) = self.sites(id, accesses, vars, local)?;
        if !self.caps.register_vectors {
            mem::element_loop(self, id, vars, body, &sites)?;
            self.leave(out);
            return Ok(());
        }
        let mut f = Vf::new(self, local, vars, Self::lanes(vars), &sites);
        f.body(body)?;
        let (call, reads, writes) = f.finish(&name);
        self.inst(Core::Vector, Pipe::V, vec![call], &reads, &writes);
        self.test_failed();
        self.leave(out);
        Ok(())
    }

    /// `reduce`.
    pub fn reduce(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::Reduce { op, src, dst, axis, .. } = &k.op(id).op else { return Ok(()) };
        let (op, src, dst, axis) = (*op, *src, *dst, *axis);
        let vars = self.axes.get(&id).cloned().unwrap_or_default();
        let extents = k.const_extents(src).unwrap_or_default();
        let mut all: Vec<(IxVarId, usize)> = vars.into_iter().zip(extents).collect();
        if self.half_of(dst).is_some() && axis > 0 {
            all[0].1 /= 2;
        }
        let local = Local::loops(&all);
        let what = format!("{} of {}", op.name(), k.buffer(dst).name);
        self.at(id, &what);
        let d = k.view(src).dtype;
        let v = k.view(src).clone();
        let place = |l: &mut Self, f: Form, b| -> Option<Ub> {
            let t = l.tile(b);
            vf::tile_ub(l, t, d, &f)
        };
        let (Base::Buffer(from), to) = (v.base, dst) else {
            return Err(self.refuse(id, "a reduction of a tensor", "copy it to a tile"));
        };
        let mut f = Form::default();
        for (x, &s) in all.iter().zip(&v.strides) {
            let c = k.ix_const(s).unwrap_or(0);
            f.elem.push((x.0, Coef::new(c)));
        }
        let offset = self.forms(&local).index(v.offset);
        if let Some(o) = offset {
            let _ = f.add(&o, Coef::new(1));
        }
        let mut g = Form::default();
        let kept: Vec<_> = all.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, v)| *v).collect();
        let mut step = 1;
        for x in kept.iter().rev() {
            g.elem.insert(0, (x.0, Coef::new(step)));
            step *= x.1 as i64;
        }
        let odd = |l: &Self| l.refuse(id, "this tile has no form that a reduction can walk", "reduce a whole tile");
        let from = place(self, f, from).ok_or_else(|| odd(self))?;
        let to = place(self, g, to).ok_or_else(|| odd(self))?;
        if !self.caps.register_vectors {
            return mem::reduce(self, id, op, &from, &to, &all, axis);
        }
        let name = vf::capital(&k.buffer(dst).name);
        let sites = Sites::new();
        let last = axis + 1 == all.len();
        let (call, reads, writes) = if last {
            let mut order = kept.clone();
            order.push(all[axis]);
            let mut f = Vf::new(self, &local, &order, 1, &sites);
            let x = f.load_site(id, &from)?;
            f.fold(id, op, d, x, true, &to)?;
            f.finish(&name)
        } else {
            let n = Self::lanes(&kept).min(kept.len());
            let mut f = Vf::new(self, &local, &kept, n, &sites);
            f.fold_columns(id, op, d, &from, all[axis], &to)?;
            f.finish(&name)
        };
        self.inst(Core::Vector, Pipe::V, vec![call], &reads, &writes);
        self.test_failed();
        Ok(())
    }

    /// `reduce_region`: a scalar.
    pub fn reduce_region(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::ReduceRegion { op, vars, extents, body, value, result, .. } = &k.op(id).op else { return Ok(()) };
        let vars: Vec<(IxVarId, usize)> = vars.iter().copied().zip(extents.iter().copied()).collect();
        self.at(id, &format!("{} of a region", op.name()));
        self.single_steps(&vars);
        let (body, value, result, op) = (*body, *value, *result, *op);
        let before = self.save();
        if self.matrix.on && self.tiles_touched(id).is_empty() {
            // The cube core may need it too.
            if self.serial_fold(id, &vars, body, value, op, result).is_ok() {
                return Ok(());
            }
            self.restore(before);
        }
        let before = self.save();
        match self.vector_fold(id, &vars, body, |f, id, to| {
            let x = f.result_of(value);
            let d = f.lo.dtype(value);
            f.fold(id, op, d, x, false, to)
        }) {
            Ok(b) => {
                let name = self.name("v");
                let d = self.dtype(result);
                let t = self.tensor(b);
                let line = format!("const {} {name} = {t}.GetValue(0);", super::scalar::type_of(d));
                self.inst(Core::Vector, Pipe::S, vec![line], &[b], &[]);
                self.vector_scalars.push((name.clone(), id));
                self.values.insert(result, Text::name(name));
                Ok(())
            }
            Err(e) if self.wishes() => Err(e),
            Err(e) => {
                self.restore(before);
                self.serial_fold(id, &vars, body, value, op, result).map_err(|_| e)
            }
        }
    }

    /// A body folded into lane 0 of a buffer.
    fn vector_fold(
        &mut self,
        id: OpId,
        vars: &[(IxVarId, usize)],
        body: BlockId,
        end: impl FnOnce(&mut Vf<'_, '_>, OpId, &Ub) -> Res<()>,
    ) -> Res<BufId> {
        if !self.caps.register_vectors {
            return Err(self.refuse(id, "a scalar reduction has no form on memory vectors yet", "reduce a tile"));
        }
        let local = Local::of(self.k, self.ranges, id);
        let accesses = self.accesses(body);
        let (sites, _) = self.sites(id, &accesses, vars, &local)?;
        let op = &self.k.op(id).op;
        let d = if let Op::ReduceRegion { value, .. } = op { self.dtype(*value) } else { DType::I32 };
        let ty = match d {
            DType::F32 | DType::I32 | DType::U32 => super::lower::type_of(d),
            DType::F16
            | DType::Bf16
            | DType::E4m3
            | DType::E5m2
            | DType::E2m1
            | DType::E8m0
            | DType::I8
            | DType::U8
            | DType::I64
            | DType::Bool => {
                return Err(self.refuse(id, format!("no reduction of {d} on vector registers"), "reduce f32 or i32"));
            }
        };
        let b = self.buffer("total", ty, 4, vf::LANES, Place::Ub, self.k.op(id).span);
        let to = Ub {
            buf: b,
            dtype: d,
            width: 4,
            base: Text::number(0),
            multiple: 0,
            elem: vec![],
            opaque: vec![],
            guards: vec![],
        };
        let mut f = Vf::new(self, &local, vars, Self::lanes(vars), &sites);
        f.body(body)?;
        end(&mut f, id, &to)?;
        let (call, reads, writes) = f.finish("Total");
        self.inst(Core::Vector, Pipe::V, vec![call], &reads, &writes);
        self.test_failed();
        Ok(b)
    }

    /// `find_first`: an index.
    pub fn find_first(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::FindFirst { var, extent, body, cond, result } = &k.op(id).op else { return Ok(()) };
        let (var, extent, body, cond, result) = (*var, *extent, *body, *cond, *result);
        self.at(id, "first of a kind");
        let before = self.save();
        if self.matrix.on && self.tiles_touched(id).is_empty() {
            if self.serial_find(id, var, extent, body, cond, result).is_ok() {
                return Ok(());
            }
            self.restore(before);
        }
        let before = self.save();
        match self.vector_fold(id, &[(var, extent)], body, |f, id, to| {
            // The first has the largest distance from the end.
            let x = f.distance(id, cond, extent)?;
            f.fold(id, ReduceOp::Max, DType::I32, x, false, to)
        }) {
            Ok(b) => {
                let name = self.name(&k.ix_var(result).name);
                let t = self.tensor(b);
                let line = format!("const int64_t {name} = {extent} - MaxOf({t}.GetValue(0), 0);");
                self.inst(Core::Vector, Pipe::S, vec![line], &[b], &[]);
                self.vector_scalars.push((name.clone(), id));
                self.index.insert(result, Text::name(name));
                Ok(())
            }
            Err(e) if self.wishes() => Err(e),
            Err(e) => {
                self.restore(before);
                self.serial_find(id, var, extent, body, cond, result).map_err(|_| e)
            }
        }
    }

    // --- trying things ---

    /// State to come back to.
    pub fn save(&self) -> Saved {
        Saved {
            bufs: self.bufs.len(),
            functions: self.functions.len(),
            nodes: self.nodes.last().map_or(0, Vec::len),
            insts: self.insts,
            names: self.names.clone(),
            tiles: self.tiles.clone(),
            depth: self.nodes.len(),
        }
    }
    /// Goes back.
    pub fn restore(&mut self, s: Saved) {
        self.bufs.truncate(s.bufs);
        self.functions.truncate(s.functions);
        self.nodes.truncate(s.depth);
        if let Some(n) = self.nodes.last_mut() {
            n.truncate(s.nodes);
        }
        self.insts = s.insts;
        self.names = s.names;
        self.tiles = s.tiles;
    }
    /// True if a part asked for something that the next attempt will have.
    pub fn wishes(&self) -> bool {
        !self.wish_wide.is_subset(&self.wide) || !self.wish_stages.is_subset(&self.wide_stages)
    }
    /// Asks for narrow elements of a buffer to lie in words: of a tile, or of the stage of an access.
    pub fn wish_words(&mut self, buf: BufId, access: OpId) {
        let tile = self.tiles.iter().find(|(_, t)| t.buf == buf).map(|(&b, _)| b);
        match tile {
            Some(b) => {
                self.wish_wide.insert(b);
            }
            None => {
                self.wish_stages.insert(access);
            }
        }
    }
}

/// What [`Lower::restore`] needs.
pub struct Saved {
    bufs: usize,
    functions: usize,
    nodes: usize,
    insts: usize,
    names: std::collections::HashSet<String>,
    tiles: std::collections::HashMap<crate::ir::BufferId, super::lower::Tile>,
    depth: usize,
}
