//! Boxes of which the scalar unit walks some loops: rows that a table names, rows at places computed in the loop, and rows at
//! quotients and remainders of loop variables.
//!
//! One copy moves what one step of the walked loops touches. The scalar unit computes the address of each: it looks pages up,
//! and computes again what the loop's body computes for an index. Everything else about a box is in `stage`.

use super::form::Local;
use super::lower::{Lower, Refused, Res};
use super::stage::{Slab, Walked};
use super::tree::{BufId, Node};
use crate::emit::cuda::expr::{MUL, Text, UNARY};
use crate::ir::{Base, DType, Gather, IxExpr, IxId, IxVarId, Op, OpId, ValueId, ViewId, effects};
use std::collections::HashSet;

/// A loop that the scalar unit walks.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Its variable.
    pub var: IxVarId,
    /// Steps.
    pub extent: usize,
    /// Name in the text.
    pub name: String,
    /// Elements of UB from step to step.
    pub ub: i64,
}

/// What an index depends on that the loop's body computes: ops in an order in which they can run.
#[derive(Default)]
struct Slice {
    ops: Vec<OpId>,
    values: HashSet<ValueId>,
    vars: HashSet<IxVarId>,
}

impl Lower<'_> {
    /// The box of an access whose rows have no common distance. `why` is the reason why it is no simple one.
    pub fn walked_slab(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[IxId],
        vars: &[(IxVarId, usize)],
        local: &Local,
        why: Refused,
    ) -> Res<Slab> {
        let v = self.k.view(view).clone();
        let gathered = v.gather.is_some();
        let mut slice = Slice::default();
        for &i in index.iter().chain([&v.offset]).chain(v.guards.iter().map(|(i, _)| i)) {
            if !self.slice_of(i, local, &mut slice) {
                return Err(why);
            }
        }
        // Loops that some index depends on in another way than a sum.
        let odd = |l: &Self, i: IxId| {
            let forms = l.forms(local);
            forms.lanewise(i) && forms.index(i).is_none_or(|f| !f.opaque.is_empty())
        };
        let last = index.len().saturating_sub(1);
        let sliced = self.slice_loops(&slice, local);
        let strict: Vec<bool> =
            index.iter().enumerate().map(|(axis, &i)| odd(self, i) || gathered && axis == 0).collect();
        let mut tries: Vec<Vec<IxVarId>> = vec![];
        // At first only what a table or the body gives, then quotients and remainders, then all rows.
        for (quotients, all) in [(false, false), (true, false), (true, true)] {
            let mut list: Vec<IxVarId> = vec![];
            for &(x, e) in vars.iter().filter(|v| v.1 > 1) {
                let named = index.iter().enumerate().any(|(axis, &i)| {
                    (strict[axis] && (quotients || gathered && axis == 0) || all && axis < last)
                        && self.ranges.mentions(i, x)
                }) || sliced.contains(&x)
                    || v.guards.iter().any(|&(i, _)| self.ranges.mentions(i, x));
                if named && e > 1 {
                    list.push(x);
                }
            }
            if !tries.contains(&list) {
                tries.push(list);
            }
        }
        tries.push(vars.iter().filter(|v| v.1 > 1).map(|v| v.0).collect());
        for walk in tries {
            if walk.is_empty() && !gathered && slice.ops.is_empty() {
                continue;
            }
            let before = self.save();
            match self.with_walk(id, view, index, vars, local, &walk, &slice) {
                Ok(s) => return Ok(s),
                Err(_) => self.restore(before),
            }
        }
        Err(why)
    }

    #[allow(clippy::too_many_arguments, reason = "an access, its loops and how they are walked")]
    fn with_walk(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[IxId],
        vars: &[(IxVarId, usize)],
        local: &Local,
        walk: &[IxVarId],
        slice: &Slice,
    ) -> Res<Slab> {
        let mut walks = vec![];
        for &(var, extent) in vars.iter().filter(|v| walk.contains(&v.0)) {
            let name = self.name(&self.k.ix_var(var).name.clone());
            let number = Text::name(name.clone());
            let text = match self.split_now.filter(|s| s.0 == var) {
                Some((_, half, sub)) => Text::add(&number, &Text::mul(&self.ix(sub), &Text::number(half))),
                None => number,
            };
            self.index.insert(var, text);
            walks.push(Walk { var, extent, name, ub: 0 });
        }
        let mut decls = vec![];
        let mut reads = vec![];
        for &op in &slice.ops {
            let (lines, touched) = self.scalar_lines(op)?;
            decls.extend(lines);
            reads.extend(touched);
        }
        let mut local = local.without(walk, &slice.values);
        local.vars.retain(|v| !slice.vars.contains(v));
        let rest: Vec<(IxVarId, usize)> = vars.iter().copied().filter(|v| !walk.contains(&v.0)).collect();
        let row = match self.k.view(view).gather {
            Some(g) => {
                if self.forms(&local).lanewise(index[0]) {
                    return Err(self.no_scalar(id));
                }
                Some(self.lookup(id, view, index[0], g, &mut decls, &mut reads)?)
            }
            None => None,
        };
        let (offset, cond) = row.unzip();
        let w = Walked { walks, decls, reads, offset, cond };
        self.flat_slab(id, view, index, &rest, &local, Some(w))
    }

    /// Where a row lies and whether it exists.
    fn lookup(
        &mut self,
        id: OpId,
        view: ViewId,
        at: IxId,
        gather: Gather,
        decls: &mut Vec<String>,
        reads: &mut Vec<BufId>,
    ) -> Res<(Text, Text)> {
        let v = self.k.view(view).clone();
        let t = self.k.view(gather.table()).clone();
        let i = self.ix(at);
        let (entry, count, page) = match gather {
            Gather::Paged { page, pages, .. } => {
                let d = Text::number(page as i64);
                (Text::of(format!("{} / {}", i.at(MUL), d.at(UNARY)), MUL), pages, page as i64)
            }
            Gather::Rows { count, .. } => (i.clone(), count, 1),
        };
        let mut cond = Text::both(
            &Text::of(format!("0 <= {}", i.at(crate::emit::cuda::expr::ADD)), crate::emit::cuda::expr::COMPARE),
            &Text::less(&i, &self.ix(v.extents[0])),
        );
        cond = Text::both(&cond, &Text::less(&entry, &self.ix(t.extents[0])));
        for &(i, e) in &t.guards {
            if let Some(c) = self.inside(i, e) {
                cond = Text::both(&cond, &c);
            }
        }
        let slot = Text::add(&self.ix(t.offset), &Text::mul(&entry, &self.ix(t.strides[0])));
        let get = match t.base {
            Base::Param(p) => Text::call(&format!("{}.GetValue", self.scalar_global(p, t.dtype)), &[&slot]),
            Base::Buffer(b) => {
                let tile = self.tile(b);
                if tile.wide || tile.pitch != tile.row || !matches!(t.dtype, DType::I32 | DType::U32) {
                    return Err(self.no_scalar(id));
                }
                reads.push(tile.buf);
                Text::call(&format!("{}.GetValue", self.tensor(tile.buf)), &[&slot])
            }
        };
        let name = self.name(if page > 1 { "page" } else { "row" });
        let row = Text::choose(&cond, &Text::cast("int64_t", &get), &Text::name("-1".to_string()));
        decls.push(format!("const int64_t {name} = {};", row.s));
        let row = Text::name(name);
        let exists = Text::both(
            &Text::of(format!("{} >= 0", row.s), crate::emit::cuda::expr::COMPARE),
            &Text::less(&row, &self.ix(count)),
        );
        let stride = self.ix(v.strides[0]);
        let offset = match gather {
            Gather::Paged { page_stride, .. } => {
                let within = Text::of(format!("{} % {page}", i.at(MUL)), MUL);
                Text::add(&Text::mul(&row, &self.ix(page_stride)), &Text::mul(&within, &stride))
            }
            Gather::Rows { .. } => Text::mul(&row, &stride),
        };
        Ok((offset, exists))
    }

    /// Lines of a scalar op, and the tiles it reads.
    fn scalar_lines(&mut self, op: OpId) -> Res<(Vec<String>, Vec<BufId>)> {
        if matches!(self.k.op(op).op, Op::Load { .. } | Op::LoadOr { .. }) {
            return self.serial_read(op);
        }
        let list = self.inner(|l| l.scalar_op(op))?;
        let mut lines = vec![];
        for n in list {
            match n {
                Node::Say(_, line) => lines.push(line),
                Node::Inst(_)
                | Node::At(..)
                | Node::Loop { .. }
                | Node::If { .. }
                | Node::Group(_)
                | Node::Leave(_) => {
                    return Err(self.no_scalar(op));
                }
            }
        }
        Ok((lines, vec![]))
    }

    /// Adds what an index needs; false where it needs something that only vector code has.
    fn slice_of(&self, i: IxId, local: &Local, s: &mut Slice) -> bool {
        match self.k.ix_expr(i) {
            IxExpr::Const(_) | IxExpr::Sym(_) => true,
            IxExpr::Var(v) => {
                if !local.vars.contains(&v) || local.own.contains_key(&v) || local.inner.contains_key(&v) {
                    return true;
                }
                if s.vars.contains(&v) {
                    return true;
                }
                let made = |u: &effects::Uses| u.defines_ix.contains(&v);
                self.slice_op(&made, local, s)
            }
            IxExpr::Data(v) => self.slice_value(v, local, s),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.slice_of(a, local, s) && self.slice_of(b, local, s),
        }
    }

    fn slice_value(&self, v: ValueId, local: &Local, s: &mut Slice) -> bool {
        if !local.values.contains(&v) || s.values.contains(&v) || self.k.literal(v).is_some() {
            return true;
        }
        self.slice_op(&|u| u.defines.contains(&v), local, s)
    }

    fn slice_op(&self, makes: &dyn Fn(&effects::Uses) -> bool, local: &Local, s: &mut Slice) -> bool {
        let Some(n) = self.k.ops.iter().position(|o| makes(&effects::uses(&o.op))) else { return false };
        let id = OpId(n as u32);
        let op = &self.k.op(id).op;
        let u = effects::uses(op);
        if !u.blocks.is_empty() || matches!(op, Op::VarGet { .. } | Op::IxVarGet { .. } | Op::Atomic { .. }) {
            return false;
        }
        let views = u.views.iter().flat_map(|&v| {
            let v = self.k.view(v);
            v.guards.iter().map(|(i, _)| *i).chain([v.offset]).collect::<Vec<_>>()
        });
        let indices: Vec<IxId> = u.indices.iter().copied().chain(views).collect();
        if !indices.into_iter().all(|i| self.slice_of(i, local, s))
            || !u.values.iter().all(|&v| self.slice_value(v, local, s))
        {
            return false;
        }
        if !s.ops.contains(&id) {
            s.ops.push(id);
        }
        s.values.extend(u.defines);
        s.vars.extend(u.defines_ix);
        true
    }

    /// The loop's own variables that the ops of a slice name.
    fn slice_loops(&self, s: &Slice, local: &Local) -> HashSet<IxVarId> {
        let mut out = HashSet::new();
        for &id in &s.ops {
            for i in effects::uses(&self.k.op(id).op).indices {
                out.extend(local.own.keys().copied().filter(|&v| self.ranges.mentions(i, v)));
            }
        }
        out
    }
}
