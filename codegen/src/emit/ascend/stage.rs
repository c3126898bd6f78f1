//! Ways between global memory and UB: which box of a tensor an element loop touches, where it lies in UB, and the copies.
//!
//! A box has one dimension for each loop variable (neighbours that walk one axis together become one) and for each index that
//! is no sum of loop variables, such as `j / 2`, one over all the values it takes. Copies move what exists; where a box reaches
//! past the tensor it is cleared before.

use super::form::{Coef, Form, Local};
use super::lower::{Lower, Res, type_of};
use super::tree::{BufId, Core, Pipe, Place};
use super::walk::Walk;
use crate::emit::cuda::expr::{ADD, Text, UNARY};
use crate::ir::{DType, IxExpr, IxId, IxVarId, Op, OpId, ParamId, SpanId, ViewId};

/// Memory of UB as an element loop sees it.
#[derive(Clone, Debug)]
pub struct Ub {
    /// Buffer.
    pub buf: BufId,
    /// What an element is.
    pub dtype: DType,
    /// Bytes from element to element: that of `dtype`, or 4 where narrow elements lie in words of 32 bits.
    pub width: usize,
    /// First element, the same for all iterations.
    pub base: Text,
    /// The part of it that is a constant is in `base` too; both together are a multiple of this.
    pub multiple: i64,
    /// Elements from step to step of each loop variable.
    pub elem: Vec<(IxVarId, i64)>,
    /// The same for other indices.
    pub opaque: Vec<(IxId, i64)>,
    /// Indices with their extents: an element outside does not exist. Only for tiles; copies leave zeros in boxes.
    pub guards: Vec<(IxId, IxId)>,
}

/// One dimension of a box.
#[derive(Clone, Debug)]
struct Dim {
    extent: usize,
    /// Elements of global memory from step to step.
    stride: Coef,
    /// How many exist; `None` for all.
    valid: Option<Text>,
    /// Elements of UB from step to step.
    ub: i64,
}

/// A box of a tensor.
#[derive(Clone, Debug)]
pub struct Slab {
    param: ParamId,
    dtype: DType,
    dims: Vec<Dim>,
    /// First element in global memory.
    start: Text,
    /// Nothing exists unless this holds.
    cond: Option<Text>,
    /// Loop variables of each dimension, outermost first, with the UB step of each in units of the dimension's.
    vars: Vec<Vec<(IxVarId, i64)>>,
    /// Indices that are dimensions of their own, with the dimension and the value it starts at.
    ranged: Vec<(IxId, usize, Text)>,
    /// Loops around the box, outermost first.
    walks: Vec<Walk>,
    /// Statements of a step of those loops.
    decls: Vec<String>,
    /// Tiles that those statements read.
    pub reads: Vec<BufId>,
}

/// How the scalar unit walks some loops of a box.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The loops.
    pub walks: Vec<Walk>,
    /// Statements of a step.
    pub decls: Vec<String>,
    /// Tiles that they read.
    pub reads: Vec<BufId>,
    /// Where the row of a gathered view lies.
    pub offset: Option<Text>,
    /// Whether it exists.
    pub cond: Option<Text>,
}

impl Slab {
    /// What an element is.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The tensor.
    pub fn param(&self) -> ParamId {
        self.param
    }
    /// How much of a dimension exists, if not all of it.
    pub fn valid(&self, d: usize) -> Option<Text> {
        if d < self.dims.len() { self.dims[d].valid.clone() } else { None }
    }
    /// The dimensions that are rows and columns of a tile with this form and row length; the columns follow each other in
    /// global memory.
    pub fn matrix(&self, tile: &Form, cols: i64) -> Option<[usize; 2]> {
        let walked = !self.walks.is_empty() || !self.decls.is_empty();
        if walked || !self.ranged.is_empty() || !tile.opaque.is_empty() || self.dims.len() > 2 {
            return None;
        }
        let step = |d: usize| {
            let &(v, _) = self.vars[d].last()?;
            tile.coef(v)?.constant()
        };
        let col = (0..self.dims.len()).find(|&d| step(d) == Some(1) && self.dims[d].stride == Coef::new(1))?;
        let row = (0..self.dims.len()).find(|&d| d != col && step(d) == Some(cols))?;
        (self.vars[row].len() == 1).then_some([row, col])
    }
    /// First element, distance of the elements of a dimension, and the condition under which anything exists.
    pub fn source(&self, l: &Lower<'_>, d: usize) -> (Text, Text, Option<Text>) {
        (self.start.clone(), l.coef(self.dims[d].stride), self.cond.clone())
    }
    /// True if copies may leave a part of the box as it was.
    fn partial(&self) -> bool {
        self.cond.is_some() || self.dims.iter().any(|d| d.valid.is_some())
    }
}

impl Lower<'_> {
    /// The box that an access inside an element loop touches. `vars` are the loops' variables, outermost first.
    pub fn slab(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[IxId],
        vars: &[(IxVarId, usize)],
        local: &Local,
    ) -> Res<Slab> {
        let before = self.save();
        match self.flat_slab(id, view, index, vars, local, None) {
            Ok(s) => Ok(s),
            Err(why) => {
                self.restore(before);
                self.walked_slab(id, view, index, vars, local, why)
            }
        }
    }

    /// The box that an access touches in one step of the loops that the scalar unit walks.
    pub fn flat_slab(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[IxId],
        vars: &[(IxVarId, usize)],
        local: &Local,
        walked: Option<Walked>,
    ) -> Res<Slab> {
        let v = self.k.view(view).clone();
        let Some(param) = self.tensor_param(view) else { return Err(self.refuse(id, "no tensor", "report this")) };
        if v.dtype == DType::E2m1 {
            return Err(self.refuse(id, "elements of 4 bits have no Ascend form yet", "unpack them from bytes"));
        }
        let looked_up = v.gather.is_some();
        if looked_up && walked.as_ref().is_none_or(|w| w.offset.is_none()) {
            return Err(self.refuse(id, "this gathered view has no Ascend form", "copy its rows to a tile"));
        }
        let odd = |l: &Self| {
            l.refuse(id, "this index has no Ascend form in an element loop", "make it a sum of loop variables")
        };
        let extent = |x: IxVarId| vars.iter().find(|(y, _)| *y == x).map_or(1, |p| p.1);
        let forms: Vec<Form> = {
            let f = self.forms(local);
            let mut all: Vec<Form> =
                index.iter().map(|&i| f.index(i)).collect::<Option<_>>().ok_or_else(|| odd(self))?;
            // The table gives the place along this axis.
            if looked_up {
                all[0] = Form::default();
            }
            all
        };
        // Neighbours that walk one axis together.
        let mut groups: Vec<Vec<IxVarId>> = vec![];
        for &(x, e) in vars {
            if e > 1 && forms.iter().any(|f| f.opaque.is_empty() && f.elem.iter().any(|(y, _)| *y == x)) {
                groups.push(vec![x]);
            }
        }
        for f in forms.iter().filter(|f| f.opaque.is_empty()) {
            let mut walk: Vec<(IxVarId, i64)> = vec![];
            for &(x, c) in &f.elem {
                if extent(x) > 1 {
                    walk.push((x, c.constant().ok_or_else(|| odd(self))?));
                }
            }
            walk.sort_by_key(|&(x, c)| (-c, x));
            for w in walk.windows(2) {
                if w[0].1 != w[1].1 * extent(w[1].0) as i64 {
                    return Err(odd(self));
                }
                let (a, b) = (
                    groups.iter().position(|g| g.contains(&w[0].0)).ok_or_else(|| odd(self))?,
                    groups.iter().position(|g| g.contains(&w[1].0)).ok_or_else(|| odd(self))?,
                );
                if a != b {
                    let tail = groups.remove(b);
                    let a = if b < a { a - 1 } else { a };
                    groups[a].extend(tail);
                }
            }
        }
        let needs = self.needs(id, view);
        let mut slab = Slab {
            param,
            dtype: v.dtype,
            dims: vec![],
            start: Text::number(0),
            cond: None,
            vars: vec![],
            ranged: vec![],
            walks: vec![],
            decls: vec![],
            reads: vec![],
        };
        let in_walk = walked.is_some();
        let mut looked = None;
        if let Some(w) = walked {
            (slab.walks, slab.decls, slab.reads) = (w.walks, w.decls, w.reads);
            (slab.cond, looked) = (w.cond, w.offset);
        }
        let guard = |s: &mut Slab, c: Option<Text>| {
            if let Some(c) = c {
                s.cond = Some(s.cond.take().map_or(c.clone(), |x| Text::both(&x, &c)));
            }
        };
        let stride_of = |l: &Self, s: IxId| l.k.ix_const(s).map_or(Coef { c: 1, by: Some(s) }, Coef::new);
        let mut start = Form::default();
        {
            let f = self.forms(local);
            let offset = f.index(v.offset).ok_or_else(|| odd(self))?;
            start.add(&offset, Coef::new(1)).ok_or_else(|| odd(self))?;
        }
        let mut extra = Text::number(0);
        for g in &groups {
            let inner = *g.last().unwrap_or(&g[0]);
            let size: usize = g.iter().map(|&x| extent(x)).product();
            let mut step = 1i64;
            let mut members = vec![];
            for &x in g.iter().rev() {
                members.push((x, step));
                step *= extent(x) as i64;
            }
            members.reverse();
            // Address step: from every axis the group walks.
            let mut stride: Option<Coef> = None;
            for (axis, f) in forms.iter().enumerate().filter(|(_, f)| f.opaque.is_empty()) {
                let c = f.coef(inner).and_then(Coef::constant).ok_or_else(|| odd(self))?;
                if c == 0 {
                    continue;
                }
                let s = stride_of(self, v.strides[axis]);
                let s = Coef { c: s.c * c, by: s.by };
                stride = match stride {
                    None => Some(s),
                    Some(t) if t.by == s.by => Some(Coef { c: t.c + s.c, by: t.by }),
                    Some(_) => return Err(odd(self)),
                };
            }
            slab.dims.push(Dim { extent: size, stride: stride.unwrap_or(Coef::new(0)), valid: None, ub: 0 });
            slab.vars.push(members);
        }
        for (axis, f) in forms.iter().enumerate() {
            if looked_up && axis == 0 {
                continue;
            }
            let need = needs.get(axis).copied().unwrap_or(true);
            if !f.opaque.is_empty() {
                let (from, size) = self.range_of(id, index[axis], local)?;
                let e = self.ix(v.extents[axis]);
                let valid = need.then(|| {
                    let left = Text::sub(&e, &from);
                    Text::call("Part", &[&left, &Text::number(size as i64)])
                });
                let s = stride_of(self, v.strides[axis]);
                extra = Text::add(&extra, &Text::mul(&from, &self.coef(s)));
                slab.dims.push(Dim { extent: size, stride: s, valid, ub: 0 });
                slab.vars.push(vec![]);
                slab.ranged.push((index[axis], slab.dims.len() - 1, from));
                continue;
            }
            let uniform = Form { elem: vec![], ..f.clone() };
            let s = stride_of(self, v.strides[axis]);
            start.add(&uniform, s).ok_or_else(|| odd(self))?;
            let walked = groups.iter().position(|g| g.iter().any(|&x| f.elem.iter().any(|(y, _)| *y == x)));
            if !need {
                continue;
            }
            let u = self.uniform(&uniform);
            let e = self.ix(v.extents[axis]);
            match walked {
                None => {
                    let c = self.inside(index[axis], v.extents[axis]).or(Some(Text::less(&u, &e)));
                    guard(&mut slab, c);
                }
                Some(g) => {
                    let inner = *groups[g].last().unwrap_or(&groups[g][0]);
                    let c = f.coef(inner).and_then(Coef::constant).unwrap_or(1);
                    if c < 0 || !self.starts_inside(&uniform) {
                        return Err(odd(self));
                    }
                    let left = Text::sub(&e, &u);
                    let left = if c == 1 {
                        left
                    } else {
                        Text::of(format!("({} + {}) / {c}", left.at(ADD), c - 1), crate::emit::cuda::expr::MUL)
                    };
                    let d = &mut slab.dims[g];
                    let own = Text::call("Part", &[&left, &Text::number(d.extent as i64)]);
                    d.valid = Some(match d.valid.take() {
                        None => own,
                        Some(other) => Text::call("MinOf", &[&other, &own]),
                    });
                }
            }
        }
        for (j, &(i, e)) in v.guards.iter().enumerate() {
            if needs.get(v.extents.len() + j).copied().unwrap_or(true) {
                if !self.same_for_all(i, local) {
                    return Err(odd(self));
                }
                let c = self.inside(i, e);
                guard(&mut slab, c);
            }
        }
        slab.start = Text::add(&self.uniform(&start), &extra);
        if let Some(o) = looked {
            slab.start = Text::add(&slab.start, &o);
        }
        if matches!(self.k.op(id).op, Op::Store { .. }) && !slab.ranged.is_empty() {
            // Copying out a box that the loop does not fill would write what it does not mean to.
            let inner = local.inner.iter().filter(|(v, _)| index.iter().any(|&i| self.ranges.mentions(i, **v)));
            let mut exact = true;
            let inner = inner.map(|(_, n)| {
                exact &= n.exact;
                n.steps
            });
            let steps: usize = vars.iter().map(|v| v.1).chain(inner).product();
            if !exact || steps != slab.dims.iter().map(|d| d.extent).product::<usize>() {
                return Err(odd(self));
            }
        }
        // The count of what exists gets a name, since copies ask for it several times.
        let base = self.params[param.0 as usize].clone();
        for d in 0..slab.dims.len() {
            if let Some(t) = slab.dims[d].valid.take() {
                let name = self.name(&format!("{base}N"));
                let line = format!("const int64_t {name} = {};", t.s);
                if in_walk {
                    slab.decls.push(line);
                } else {
                    self.say(line);
                }
                slab.dims[d].valid = Some(Text::name(name));
            }
        }
        Ok(slab)
    }

    /// True if an index is the same for all elements: it names no loop of more than one step.
    fn same_for_all(&self, i: IxId, local: &Local) -> bool {
        let forms = self.forms(local);
        let one = |v: &IxVarId| local.own.get(v) == Some(&1);
        !forms.lanewise(i) || forms.index(i).is_some_and(|f| f.opaque.is_empty() && f.elem.iter().all(|(v, _)| one(v)))
    }

    /// True if the part of an index that is the same for all elements is never negative.
    fn starts_inside(&self, f: &Form) -> bool {
        f.uniform.iter().all(|&(x, c)| c.c >= 0 && x.is_none_or(|x| self.ranges.never_below_zero(x)))
    }

    /// All values an index takes in an element loop: the first, and how many.
    pub fn range_of(&self, id: OpId, index: IxId, local: &Local) -> Res<(Text, usize)> {
        let odd =
            || self.refuse(id, "this index has no Ascend form in an element loop", "make it a sum of loop variables");
        let forms = self.forms(local);
        if let (Some(lo), Some(hi)) = self.ranges.interval(index)
            && hi.saturating_sub(lo) < 1 << 20
        {
            if lo < 0 {
                return Err(odd());
            }
            return Ok((Text::number(lo), (hi - lo + 1) as usize));
        }
        // (U + e) / c with e from the loop.
        if let IxExpr::Div(a, b) = self.k.ix_expr(index)
            && let Some(c) = self.k.ix_const(b)
        {
            let f = forms.index(a).ok_or_else(odd)?;
            if !f.opaque.is_empty() || !self.starts_inside(&Form { elem: vec![], ..f.clone() }) {
                return Err(odd());
            }
            let mut top = 0i64;
            for &(x, k) in &f.elem {
                let k = k.constant().filter(|&k| k >= 0).ok_or_else(odd)?;
                let steps = local.own.get(&x).filter(|&&n| n < 1 << 20).ok_or_else(odd)?;
                top += k * (*steps as i64 - 1);
            }
            let whole = f.uniform.iter().all(|&(x, k)| {
                let m = x.map_or(1, |x| self.ranges.multiple_of(x));
                (m * k.c) % c == 0
            });
            let size = if whole { top / c + 1 } else { (top + c - 1) / c + 1 };
            let u = self.uniform(&Form { elem: vec![], ..f });
            return Ok((
                Text::of(
                    format!("{} / {}", u.at(crate::emit::cuda::expr::MUL), Text::number(c).at(UNARY)),
                    crate::emit::cuda::expr::MUL,
                ),
                size as usize,
            ));
        }
        // A sum of which all parts that differ have bounds.
        let f = forms.index(index).ok_or_else(odd)?;
        let (mut low, mut high) = (0i64, 0i64);
        let mut first = Text::number(0);
        for &(x, k) in &f.elem {
            let k = k.constant().ok_or_else(odd)?;
            let last = local.own.get(&x).filter(|&&n| n < 1 << 20).map(|&n| n as i64 - 1).ok_or_else(odd)?;
            (low, high) = (low + (k * last).min(0), high + (k * last).max(0));
        }
        for &(x, k) in &f.opaque {
            let k = k.constant().ok_or_else(odd)?;
            let inner = local.inner.iter().find(|(v, _)| self.is_var(x, **v)).map(|(_, i)| *i);
            match (self.ranges.interval(x), inner) {
                ((Some(a), Some(b)), _) if b.saturating_sub(a) < 1 << 20 && a > -(1 << 40) && a < 1 << 40 => {
                    (low, high) = (low + (k * a).min(k * b), high + (k * a).max(k * b))
                }
                // From its first value on, which the launch or the block gives.
                (_, Some(i)) if k > 0 && !forms.lanewise(i.lo) && self.ranges.never_below_zero(i.lo) => {
                    first = Text::add(&first, &Text::mul(&self.ix(i.lo), &Text::number(k)));
                    high += k * (i.steps as i64 - 1).max(0);
                }
                (_, _) => return Err(odd()),
            }
        }
        if !self.starts_inside(&Form { elem: vec![], opaque: vec![], ..f.clone() })
            || high.saturating_sub(low) >= 1 << 20
        {
            return Err(odd());
        }
        let u = self.uniform(&Form { elem: vec![], opaque: vec![], ..f });
        Ok((Text::add(&Text::add(&u, &first), &Text::number(low)), (high - low + 1) as usize))
    }

    fn is_var(&self, x: IxId, v: IxVarId) -> bool {
        matches!(self.k.ix_expr(x), IxExpr::Var(w) if w == v)
    }

    /// A buffer for a box. Elements that follow each other in global memory do so in UB, others lie in lines of their own.
    /// Returns the memory as the loop sees it.
    pub fn stage(&mut self, slab: &mut Slab, wish: &str, span: SpanId) -> Ub {
        let size = slab.dtype.bytes(1);
        let align = self.caps.align_bytes;
        let inner = slab.dims.iter().rposition(|d| d.stride == Coef::new(1));
        let mut pitch = match inner {
            Some(i) => {
                slab.dims[i].ub = 1;
                slab.dims[i].extent.next_multiple_of(align / size)
            }
            None => align / size,
        };
        for d in (0..slab.dims.len()).rev().filter(|&d| Some(d) != inner) {
            slab.dims[d].ub = pitch as i64;
            pitch *= slab.dims[d].extent;
        }
        for w in slab.walks.iter_mut().rev() {
            w.ub = pitch as i64;
            pitch *= w.extent;
        }
        let buf = self.buffer(wish, type_of(slab.dtype), size, pitch, Place::Ub, span);
        // One element a line: the line is a 32-bit word and more, so that words may be gathered.
        let lines = inner.is_none() && !(slab.dims.is_empty() && slab.walks.is_empty()) && size < 4;
        let (width, by) = if lines { (4, size as i64) } else { (size, 4) };
        let scale = |x: i64| if lines { x * by / 4 } else { x };
        let mut elem = vec![];
        for (d, vars) in slab.dims.iter().zip(&slab.vars) {
            elem.extend(vars.iter().map(|&(v, step)| (v, scale(d.ub * step))));
        }
        elem.extend(slab.walks.iter().map(|w| (w.var, scale(w.ub))));
        let mut base = Text::number(0);
        let mut opaque = vec![];
        for (i, d, from) in &slab.ranged {
            let ub = scale(slab.dims[*d].ub);
            opaque.push((*i, ub));
            base = Text::sub(&base, &Text::mul(&from.clone(), &Text::number(ub)));
        }
        if base.s == "0" {
            base = Text::number(0);
        }
        Ub {
            buf,
            dtype: slab.dtype,
            width,
            base,
            multiple: if slab.ranged.is_empty() { 0 } else { 1 },
            elem,
            opaque,
            guards: vec![],
        }
    }

    /// A box in the place of a tile, if copies can put it there.
    pub fn fits_tile(&self, slab: &mut Slab, ub: &Ub) -> bool {
        let size = slab.dtype.bytes(1);
        let align = self.caps.align_bytes as i64;
        if ub.width != size || ub.dtype.bits() != slab.dtype.bits() || !ub.opaque.is_empty() || !slab.ranged.is_empty()
        {
            return false;
        }
        if (ub.multiple * size as i64) % align != 0 {
            return false;
        }
        let coef = |v: IxVarId| ub.elem.iter().find(|(x, _)| *x == v).map_or(0, |p| p.1);
        for d in 0..slab.dims.len() {
            let Some(&(inner, _)) = slab.vars[d].last() else { return false };
            let c = coef(inner);
            if slab.vars[d].iter().any(|&(v, step)| coef(v) != c * step) || c <= 0 {
                return false;
            }
            slab.dims[d].ub = c;
        }
        for w in &mut slab.walks {
            w.ub = coef(w.var);
            if w.ub <= 0 || (w.ub * size as i64) % align != 0 {
                return false;
            }
        }
        let covered =
            |v: IxVarId| slab.vars.iter().flatten().any(|(x, _)| *x == v) || slab.walks.iter().any(|w| w.var == v);
        if ub.elem.iter().any(|&(v, c)| c != 0 && !covered(v)) {
            return false;
        }
        let inner = slab.dims.iter().position(|d| d.stride == Coef::new(1) && d.ub == 1);
        slab.dims.iter().enumerate().all(|(i, d)| Some(i) == inner || (d.ub * size as i64) % align == 0)
    }

    /// Copies a box in.
    pub fn copy_in(&mut self, slab: &Slab, buf: BufId, base: &Text) {
        let name = self.tensor(buf);
        let mut clearing = vec![];
        if slab.partial() {
            let b = &self.bufs[buf.0];
            let (bytes, size) = (b.bytes, b.bytes / b.elements.max(1));
            let mut tests: Vec<String> =
                slab.dims.iter().filter_map(|d| d.valid.as_ref().map(|v| format!("{} < {}", v.s, d.extent))).collect();
            tests.extend(slab.cond.as_ref().map(|c| format!("!({})", c.s)));
            let clear = if self.caps.register_vectors {
                super::vf::clear_function(self);
                format!(
                    "asc_vf_call<Clear>((__ubuf__ uint32_t*){name}.GetPhyAddr(), {}u, static_cast<uint16_t>({}));",
                    bytes / 4,
                    (bytes / 4).div_ceil(64)
                )
            } else {
                super::mem::clear(self, buf, bytes, size)
            };
            // Only at the edge of a tensor, so all pipes may meet there.
            clearing = if slab.decls.is_empty() && slab.walks.is_empty() {
                vec![
                    format!("if ({}) {{", tests.join(" || ")),
                    "    PipeBarrier<PIPE_ALL>();".into(),
                    format!("    {clear}"),
                    "    PipeBarrier<PIPE_ALL>();".into(),
                    "}".into(),
                ]
            } else {
                // Which rows exist is known only row by row.
                vec!["PipeBarrier<PIPE_ALL>();".into(), clear, "PipeBarrier<PIPE_ALL>();".into()]
            };
        }
        self.scalars_ready(slab);
        let mut lines = clearing;
        lines.extend(self.moves(slab, buf, base, true));
        self.inst(Core::Vector, Pipe::Mte2, lines, &slab.reads.clone(), &[buf]);
    }

    /// The scalar unit waits for tiles that a box's addresses are made from.
    fn scalars_ready(&mut self, slab: &Slab) {
        if !slab.reads.is_empty() {
            let reads = slab.reads.clone();
            self.inst(Core::Vector, Pipe::S, vec![], &reads, &[]);
        }
    }

    /// Copies a box out.
    pub fn copy_out(&mut self, slab: &Slab, buf: BufId, base: &Text) {
        self.scalars_ready(slab);
        let mut lines = self.moves(slab, buf, base, false);
        if self.matrix.on && self.split_now.is_none() {
            // Both vector cores have the same.
            lines.insert(0, "if (sub == 0) {".into());
            lines.push("}".into());
            lines = super::vf::indent(&lines.iter().map(|l| l.trim_start().to_string()).collect::<Vec<_>>(), 0);
        }
        let reads: Vec<BufId> = slab.reads.iter().copied().chain([buf]).collect();
        self.inst(Core::Vector, Pipe::Mte3, lines, &reads, &[]);
    }

    /// The copies of a box: one instruction moves a run of elements and repeats it along one dimension, loops do the rest.
    fn moves(&mut self, slab: &Slab, buf: BufId, base: &Text, into: bool) -> Vec<String> {
        let size = slab.dtype.bytes(1) as i64;
        let global = self.global_as(slab.param, slab.dtype, type_of(slab.dtype));
        let tensor = self.tensor(buf);
        let ty = type_of(slab.dtype);
        let inner = slab.dims.iter().rposition(|d| d.stride == Coef::new(1) && d.ub == 1);
        let count = |d: &Dim| d.valid.clone().unwrap_or(Text::number(d.extent as i64));
        let run = inner.map_or(Text::number(1), |i| count(&slab.dims[i]));
        let whole = inner.is_none_or(|i| slab.dims[i].valid.is_none());
        // The longest other dimension that one instruction can repeat over.
        let mut rest: Vec<usize> =
            (0..slab.dims.len()).filter(|&d| Some(d) != inner && slab.dims[d].extent > 1).collect();
        let repeat = rest
            .iter()
            .copied()
            .filter(|&d| slab.dims[d].extent <= 4095 && slab.dims[d].ub > 0 && slab.dims[d].stride.c > 0)
            .max_by_key(|&d| slab.dims[d].extent);
        rest.retain(|&d| Some(d) != repeat);
        let mut conds: Vec<String> = vec![];
        conds.extend(slab.cond.as_ref().map(|c| c.s.clone()));
        let single = (0..slab.dims.len()).filter(|&d| slab.dims[d].extent == 1 && Some(d) != inner);
        for d in inner.iter().copied().chain(repeat).chain(single) {
            conds.extend(slab.dims[d].valid.as_ref().map(|v| format!("{} > 0", v.s)));
        }
        let mut lines = vec![];
        let mut depth = 0;
        let pad = |d: usize| "    ".repeat(d);
        let mut to = base.clone();
        for w in &slab.walks {
            lines.push(format!("{}for (int64_t {1} = 0; {1} < {2}; ++{1}) {{", pad(depth), w.name, w.extent));
            depth += 1;
            to = Text::add(&to, &Text::mul(&Text::name(w.name.clone()), &Text::number(w.ub)));
        }
        if slab.walks.is_empty() && !slab.decls.is_empty() {
            lines.push(format!("{}{{", pad(depth)));
            depth += 1;
        }
        lines.extend(slab.decls.iter().map(|d| format!("{}{d}", pad(depth))));
        if !conds.is_empty() {
            lines.push(format!("{}if ({}) {{", pad(depth), conds.join(" && ")));
            depth += 1;
        }
        let mut from = slab.start.clone();
        for &d in &rest {
            let x = self.name("i");
            lines.push(format!(
                "{}for (int64_t {x} = 0; {x} < {}; ++{x}) {{",
                pad(depth),
                count(&slab.dims[d]).at(ADD)
            ));
            depth += 1;
            let c = self.coef(slab.dims[d].stride);
            from = Text::add(&from, &Text::mul(&Text::name(x.clone()), &c));
            to = Text::add(&to, &Text::mul(&Text::name(x), &Text::number(slab.dims[d].ub)));
        }
        let bytes = Text::mul(&run, &Text::number(size));
        let number = |t: &Text| t.s.parse::<i64>().ok();
        let line = self.caps.align_bytes as i64;
        let (blocks, gap, lines_apart) = match repeat {
            None => (Text::number(1), Text::number(0), Text::number(0)),
            Some(d) => {
                let d = &slab.dims[d];
                let stride = match d.stride.by {
                    None => Text::number(d.stride.c * size),
                    Some(_) => Text::mul(&self.coef(d.stride), &Text::number(size)),
                };
                let gap = match (number(&stride), number(&bytes)) {
                    (Some(a), Some(b)) => Text::number(a - b),
                    _ => Text::sub(&stride, &bytes),
                };
                let apart = d.ub * size / line;
                let own = match number(&bytes) {
                    Some(b) => Text::number(apart - (b + line - 1) / line),
                    None => Text::sub(
                        &Text::number(apart),
                        &Text::of(format!("({} + {}) / {line}", bytes.at(ADD), line - 1), crate::emit::cuda::expr::MUL),
                    ),
                };
                (count(d), gap, own)
            }
        };
        let cast =
            |ty: &str, t: &Text| if number(t).is_some() { t.s.clone() } else { format!("static_cast<{ty}>({})", t.s) };
        let wide = if self.caps.register_vectors { "int64_t" } else { "uint32_t" };
        let (a, b) = if into { (&gap, &lines_apart) } else { (&lines_apart, &gap) };
        let params = format!(
            "DataCopyExtParams{{{}, {}, {}, {}, 0}}",
            cast("uint16_t", &blocks),
            cast("uint32_t", &bytes),
            cast(wide, a),
            cast(wide, b)
        );
        let at = |name: &str, t: &Text| if t.is_zero() { name.to_string() } else { format!("{name}[{}]", t.s) };
        let (g, u) = (at(&global, &from), at(&tensor, &to));
        let _ = whole;
        let text = if into {
            let per_line = line / size;
            let fill = match number(&run) {
                Some(n) if n % per_line == 0 => "false, 0, 0".to_string(),
                Some(n) => format!("true, 0, {}", per_line - n % per_line),
                None => format!("true, 0, PadOf({}, {per_line})", run.s),
            };
            format!("DataCopyPad({u}, {g}, {params}, DataCopyPadExtParams<{ty}>{{{fill}, {ty}()}});")
        } else {
            format!("DataCopyPad({g}, {u}, {params});")
        };
        lines.push(format!("{}{text}", pad(depth)));
        while depth > 0 {
            depth -= 1;
            lines.push(format!("{}}}", pad(depth)));
        }
        lines
    }
}
