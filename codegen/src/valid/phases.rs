//! Conflicts inside a phase: two iterations of one element body on one element.
//!
//! For each pair of accesses of a body to one tile or tensor, of which one changes it, either a proof shows that equal
//! elements mean equal iterations, or the iterations are enumerated. The proof solves one axis after the other: an axis
//! whose index is a mixed-radix number of the loop variables fixes them. Enumeration gives the example a message needs;
//! what neither decides is a warning, since data may well be free of duplicates.

use super::scopes::view_indices;
use crate::analysis::Ranges;
use crate::analysis::poly::{Atom, Poly};
use crate::analysis::ranges::{Leaf, gcd};
use crate::diag::Diagnostic;
use crate::ir::effects::{Effect, EffectKind, Place, deep_effects, effects, table_of, uses};
use crate::ir::{
    Base, BlockId, CmpOp, IxExpr, IxId, IxVarId, IxVarKind, Kernel, Op, OpId, ParamKind, Space, ValueId, View, ViewId,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Iterations an enumeration goes through at most.
const MAX_ITERATIONS: i128 = 1 << 14;

pub(super) fn check(k: &Kernel, r: &Ranges, guards: &HashMap<OpId, Vec<bool>>, found: &mut Vec<Diagnostic>) {
    let mut ops = vec![];
    super::initial::ops_below(k, k.body, &mut ops);
    for &id in &ops {
        if let Op::Parallel { vars, body, .. } = &k.op(id).op {
            Phase::new(k, r, guards, vars.clone(), *body).check(found);
        } else if let Op::Spread { var, body, .. } = &k.op(id).op {
            Phase::new(k, r, guards, vec![*var], *body).check(found);
        } else if matches!(&k.op(id).op, Op::Gemm { .. } | Op::Copy { .. }) {
            whole_tiles(k, id, found);
        }
    }
    blocks(k, &ops, found);
}

/// Ops that are one phase of their own: what they write, neither their bodies nor their tables may read. An operand that
/// is the accumulator too is refused with the op's types.
fn whole_tiles(k: &Kernel, id: OpId, found: &mut Vec<Diagnostic>) {
    let op = &k.op(id).op;
    let (written, reads): (Base, Vec<Effect>) = if let Op::Gemm { acc, .. } = op {
        let inner = deep_effects(k, id).into_iter().filter(|e| e.op != id);
        (Base::Buffer(*acc), inner.collect())
    } else if let Op::Copy { src, dst, .. } = op {
        let tables: Vec<ViewId> = [src.view, dst.view].into_iter().filter_map(|v| table_of(k, v)).collect();
        let looked_up = |e: &Effect| e.kind == EffectKind::Read && e.view().is_some_and(|v| tables.contains(&v));
        (k.view(dst.view).base, effects(k, id).into_iter().filter(looked_up).collect())
    } else {
        return;
    };
    let Some(e) = reads.into_iter().find(|e| e.base(k) == written) else { return };
    let name = match written {
        Base::Buffer(b) => &k.buffer(b).name,
        Base::Param(p) => &k.param(p).name,
    };
    let m = format!("`{name}` is read and written by one `{}`", op.name());
    let mut d = Diagnostic::error(k, k.op(id).span, "V0413", m);
    if e.op != id {
        d = d.note("the body reads it", Some(k.span_of(k.op(e.op).span).clone()));
    } else {
        d = d.note("rows are looked up in it", None);
    }
    found.push(d.help("read from a second tile"));
}

/// Stores that every block of the grid makes to the same place.
fn blocks(k: &Kernel, ops: &[OpId], found: &mut Vec<Diagnostic>) {
    if k.grid.iter().all(|&e| k.ix_const(e) == Some(1)) {
        return;
    }
    for &id in ops {
        let (view, mut indices) = if let Op::Store { view, index, .. } = &k.op(id).op {
            (*view, index.clone())
        } else if let Op::Copy { dst, .. } = &k.op(id).op {
            (dst.view, dst.start.clone())
        } else {
            continue;
        };
        let Base::Param(p) = k.view(view).base else { continue };
        // Rows that a table names are data.
        if k.view(view).gather.is_some() {
            continue;
        }
        indices.extend(view_indices(k, view));
        if indices.iter().any(|&i| varies_between_blocks(k, i, 0)) || under_condition(k, ops, id) {
            continue;
        }
        let name = &k.param(p).name;
        found.push(
            Diagnostic::error(
                k,
                k.op(id).span,
                "V0421",
                format!("every block of the grid writes the same elements of `{name}`"),
            )
            .warning()
            .note("the index does not depend on a block index", None)
            .help("add the block index, or launch one block"),
        );
    }
}

fn under_condition(k: &Kernel, ops: &[OpId], id: OpId) -> bool {
    ops.iter().any(|&o| {
        let Op::If { then, els, .. } = &k.op(o).op else { return false };
        let mut below = vec![];
        super::initial::ops_below(k, *then, &mut below);
        super::initial::ops_below(k, *els, &mut below);
        below.contains(&id)
    })
}

/// True if the expression uses a block index, or anything that may have been computed from one.
fn varies_between_blocks(k: &Kernel, i: IxId, depth: u32) -> bool {
    let (vars, data) = super::scopes::leaves(k, i);
    depth > 8
        || !data.is_empty()
        || vars.iter().any(|&v| {
            let var = k.ix_var(v);
            matches!(var.kind, IxVarKind::Block(_) | IxVarKind::Data)
                || var.lo.into_iter().chain(var.hi).any(|b| varies_between_blocks(k, b, depth + 1))
        })
}

/// One access of a body.
#[derive(Clone)]
struct Access {
    op: OpId,
    kind: EffectKind,
    base: Base,
    view: ViewId,
    index: Vec<IxId>,
    /// Comparisons of indices that hold where the access runs.
    conditions: Vec<(CmpOp, IxId, IxId, bool)>,
    /// It also runs under a condition on data that differs between iterations.
    maybe: bool,
    /// Every iteration stores the same value.
    same_value: bool,
}

/// A variable that takes several values in a phase.
#[derive(Clone, Debug)]
struct Mover {
    atom: Atom,
    var: IxVarId,
    /// Bounds that are the same for all iterations.
    lo: Option<Poly>,
    hi: Option<Poly>,
    numbers: Option<(i128, i128)>,
}

struct Phase<'a> {
    k: &'a Kernel,
    r: &'a Ranges,
    guards: &'a HashMap<OpId, Vec<bool>>,
    elements: Vec<IxVarId>,
    locals: Vec<IxVarId>,
    /// Values and data indices defined in the body.
    inner_values: HashSet<ValueId>,
    inner_data: HashSet<IxVarId>,
    accesses: Vec<Access>,
    /// Tables that accesses look rows up in.
    tables: Vec<(OpId, Base)>,
    movers: Vec<Mover>,
}

enum Answer {
    /// Different iterations never meet.
    Apart,
    /// These two do, at this element; surely, unless a condition could not be decided.
    Meet(Vec<(IxVarId, i128)>, Vec<(IxVarId, i128)>, Option<Vec<i128>>, bool),
    Unknown,
}

impl<'a> Phase<'a> {
    fn new(
        k: &'a Kernel,
        r: &'a Ranges,
        guards: &'a HashMap<OpId, Vec<bool>>,
        elements: Vec<IxVarId>,
        body: BlockId,
    ) -> Self {
        let mut p = Phase {
            k,
            r,
            guards,
            elements,
            locals: vec![],
            inner_values: HashSet::new(),
            inner_data: HashSet::new(),
            accesses: vec![],
            tables: vec![],
            movers: vec![],
        };
        p.defined(body);
        p.collect(body, &mut vec![], false);
        let all: Vec<IxVarId> = p.elements.iter().chain(&p.locals).copied().collect();
        for v in all {
            let Some(atom) = r.var_atom(v) else { continue };
            let (range, lo, hi) = r.bounds_of(atom);
            let fixed = |b: Option<&Poly>| b.filter(|b| p.uniform(b)).cloned();
            p.movers.push(Mover { atom, var: v, lo: fixed(lo), hi: fixed(hi), numbers: range.0.zip(range.1) });
        }
        p
    }

    fn defined(&mut self, block: BlockId) {
        for &id in &self.k.block(block).ops {
            let u = uses(&self.k.op(id).op);
            self.inner_values.extend(u.defines);
            self.inner_data.extend(u.defines_ix);
            self.locals.extend(u.body_ix);
            for b in u.blocks {
                self.defined(b);
            }
        }
    }

    fn collect(&mut self, block: BlockId, conditions: &mut Vec<(CmpOp, IxId, IxId, bool)>, maybe: bool) {
        let mut maybe = maybe;
        for &id in &self.k.block(block).ops.clone() {
            let op = &self.k.op(id).op;
            if let Op::If { cond, then, els, .. } = op {
                let def = self.k.value(*cond).def.map(|d| &self.k.op(d).op);
                let inner = self.inner_values.contains(cond);
                match def {
                    Some(&Op::CompareIndex { op, a, b, .. }) => {
                        for (arm, holds) in [(*then, true), (*els, false)] {
                            conditions.push((op, a, b, holds));
                            self.collect(arm, conditions, maybe);
                            conditions.pop();
                        }
                    }
                    _ => {
                        self.collect(*then, conditions, maybe || inner);
                        self.collect(*els, conditions, maybe || inner);
                    }
                }
                continue;
            }
            // What follows a conditional break may not run.
            maybe |= matches!(op, Op::Loop { .. });
            for e in effects(self.k, id) {
                if let Place::View(table) = e.place {
                    self.tables.push((id, self.k.view(table).base));
                }
                let Place::Element { view, index } = &e.place else { continue };
                let same_value = matches!(op, Op::Store { value, .. }
                    if !self.inner_values.contains(value) || self.k.literal(*value).is_some());
                self.accesses.push(Access {
                    op: id,
                    kind: e.kind,
                    base: self.k.view(*view).base,
                    view: *view,
                    index: index.clone(),
                    conditions: conditions.clone(),
                    maybe,
                    same_value,
                });
            }
            for b in uses(op).blocks {
                self.collect(b, conditions, maybe);
            }
        }
    }

    // --- what differs ---

    fn moving_leaf(&self, leaf: Leaf) -> bool {
        match leaf {
            Leaf::Sym => false,
            Leaf::Var(v) => self.elements.contains(&v) || self.locals.contains(&v) || self.inner_data.contains(&v),
            Leaf::Data(v) => self.inner_values.contains(&v),
            Leaf::Opaque => true,
        }
    }
    fn uniform(&self, p: &Poly) -> bool {
        let mut leaves = vec![];
        self.r.leaves(p, &mut leaves);
        !leaves.iter().any(|l| self.moving_leaf(l.1))
    }

    /// `rest + sum(coefficient * mover)` with uniform parts.
    fn linear(&self, p: &Poly) -> Option<(BTreeMap<Atom, Poly>, Poly)> {
        let mut rest = p.clone();
        let mut terms = BTreeMap::new();
        for m in &self.movers {
            if rest.mentions(m.atom) {
                let (c, r) = rest.split(m.atom)?;
                if !self.uniform(&c) {
                    return None;
                }
                terms.insert(m.atom, c);
                rest = r;
            }
        }
        self.uniform(&rest).then_some((terms, rest))
    }

    fn poly(&self, i: IxId) -> Option<Poly> {
        self.r.poly(i).cloned()
    }

    /// Bit address of an access relative to its base.
    fn address(&self, a: &Access) -> Option<Poly> {
        let v = self.k.view(a.view);
        if v.gather.is_some() {
            return None;
        }
        let mut sum = self.poly(v.offset)?;
        for (&i, &s) in a.index.iter().zip(&v.strides) {
            sum = sum.add(&self.poly(i)?.mul(&self.poly(s)?)?)?;
        }
        sum.scale(v.dtype.bits() as i128)
    }

    // --- pairs ---

    fn check(&self, found: &mut Vec<Diagnostic>) {
        let changes = |a: &&Access| a.kind != EffectKind::Read;
        for &(op, table) in &self.tables {
            let Some(w) = self.accesses.iter().filter(changes).find(|a| a.base == table) else { continue };
            let name = match table {
                Base::Buffer(b) => &self.k.buffer(b).name,
                Base::Param(p) => &self.k.param(p).name,
            };
            let m = format!("rows are looked up in `{name}`, which the same phase writes");
            found.push(
                Diagnostic::error(self.k, self.k.op(w.op).span, "V0413", m)
                    .note("the look-up is", Some(self.k.span_of(self.k.op(op).span).clone()))
                    .help("split the body into two phases"),
            );
        }
        for (n, a) in self.accesses.iter().enumerate() {
            for b in &self.accesses[n..] {
                let var = matches!(a.base, Base::Buffer(b) if self.k.buffer(b).space == Space::Var);
                if a.base != b.base || var {
                    continue;
                }
                let (w, x) = if a.kind == EffectKind::Read { (b, a) } else { (a, b) };
                let both_atomic = w.kind == EffectKind::Atomic && x.kind == EffectKind::Atomic;
                if w.kind == EffectKind::Read || both_atomic {
                    continue;
                }
                let mut answer = if self.apart(w, x) { Answer::Apart } else { self.enumerate(w, x) };
                if let (Answer::Unknown, true) = (&answer, self.never_moves(w) && self.never_moves(x))
                    && w.op == x.op
                {
                    // The same element each time, whatever it is.
                    let at = |n| self.movers.iter().take(1).map(|m| (m.var, n)).collect();
                    answer = Answer::Meet(at(0), at(1), None, true);
                }
                self.report(w, x, answer, found);
            }
        }
    }

    fn never_moves(&self, a: &Access) -> bool {
        let v = self.k.view(a.view);
        let several =
            self.movers.iter().any(|m| self.elements.contains(&m.var) && m.numbers.is_some_and(|(lo, hi)| hi > lo));
        several
            && a.conditions.is_empty()
            && a.index.iter().chain([&v.offset]).all(|&i| self.poly(i).is_some_and(|p| self.uniform(&p)))
    }

    fn report(&self, w: &Access, x: &Access, answer: Answer, found: &mut Vec<Diagnostic>) {
        let k = self.k;
        let name = match w.base {
            Base::Buffer(b) => &k.buffer(b).name,
            Base::Param(p) => &k.param(p).name,
        };
        let (code, what) = match (w.kind, x.kind) {
            (EffectKind::Write, EffectKind::Write) => {
                ("V0412", format!("an element of `{name}` is written twice in one phase"))
            }
            (EffectKind::Atomic, _) | (_, EffectKind::Atomic) => {
                ("V0415", format!("an element of `{name}` is updated atomically and accessed plainly in one phase"))
            }
            _ => (
                "V0413",
                format!("an element of `{name}` is read by one iteration and written by another of the same phase"),
            ),
        };
        let verb = |a: &Access| match a.kind {
            EffectKind::Read => "read",
            EffectKind::Write => "write",
            EffectKind::Atomic => "update",
        };
        let at = |d: Diagnostic| {
            if x.op == w.op {
                d
            } else {
                d.note(format!("the other access ({}) is", verb(x)), Some(k.span_of(k.op(x.op).span).clone()))
            }
        };
        let split = "split the body into two phases, or make the index differ between iterations";
        match answer {
            Answer::Apart => {}
            Answer::Meet(one, two, element, decided) => {
                let show = |it: &[(IxVarId, i128)]| {
                    it.iter().map(|(v, n)| format!("{} = {n}", k.ix_var(*v).name)).collect::<Vec<_>>().join(", ")
                };
                let place = match element {
                    Some(e) => format!("{name}[{}]", e.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")),
                    None => format!("one element of {name}"),
                };
                let verbs = if verb(w) == verb(x) { verb(w).into() } else { format!("{} and {}", verb(w), verb(x)) };
                let sure = decided && !w.maybe && !x.maybe;
                let harmless = w.op == x.op && w.same_value;
                let label = format!(
                    "iterations {} and {} {}{verbs} {place}",
                    show(&one),
                    show(&two),
                    if sure { "" } else { "may " }
                );
                let d = Diagnostic::error(k, k.op(w.op).span, code, what).label(label);
                let mut d = at(d).help(split);
                if harmless {
                    d = d.note("both write the same value", None).warning();
                } else if !sure {
                    d = d.note("the access runs under a condition on data", None).warning();
                }
                found.push(d);
            }
            Answer::Unknown => {
                let m = format!("cannot show that iterations of this phase touch different elements of `{name}`");
                let d = Diagnostic::error(k, k.op(w.op).span, "V0414", m).warning();
                found.push(
                    at(d).help("derive the index from the element index, or make sure the data holds no duplicates"),
                );
            }
        }
    }

    // --- proof ---

    fn apart(&self, w: &Access, x: &Access) -> bool {
        let mut pairs = self.axes(w, x).unwrap_or_default();
        pairs.extend(self.split_pairs(w, x));
        pairs.extend(self.address(w).zip(self.address(x)));
        let mut known: HashSet<Atom> =
            self.movers.iter().filter(|m| m.numbers.is_some_and(|(lo, hi)| lo == hi)).map(|m| m.atom).collect();
        loop {
            let before = known.len();
            for (p, q) in &pairs {
                let (Some((mut a, ra)), Some((mut b, rb))) = (self.linear(p), self.linear(q)) else { continue };
                let Some(gap) = ra.sub(&rb) else { continue };
                for v in &known {
                    if a.get(v) == b.get(v) {
                        a.remove(v);
                        b.remove(v);
                    }
                }
                if self.disjoint(&a, &b, &gap) {
                    return true;
                }
                if a == b && gap.as_constant() == Some(0) && self.mixed_radix(&a) {
                    known.extend(a.keys());
                }
            }
            let all = self.movers.iter().filter(|m| self.elements.contains(&m.var)).all(|m| known.contains(&m.atom));
            if all {
                return true;
            }
            if known.len() == before {
                return false;
            }
        }
    }

    fn mover(&self, a: Atom) -> Option<&Mover> {
        self.movers.iter().find(|m| m.atom == a)
    }

    /// `sum(c * v) + gap - sum(d * v')` is never zero.
    fn disjoint(&self, a: &BTreeMap<Atom, Poly>, b: &BTreeMap<Atom, Poly>, gap: &Poly) -> bool {
        let divisor = a.values().chain(b.values()).try_fold(0, |g, c| Some(gcd(g, c.as_constant()?)));
        if let (Some(g), Some(c)) = (divisor, gap.as_constant())
            && g > 0
            && c % g != 0
        {
            return true;
        }
        let bound = |up: bool| -> Option<Poly> {
            let mut sum = gap.clone();
            for (terms, sign) in [(a, 1), (b, -1)] {
                for (&v, c) in terms {
                    let c = c.scale(sign)?;
                    let positive = if self.r.never_negative(&c) {
                        true
                    } else if self.r.never_negative(&c.scale(-1)?) {
                        false
                    } else {
                        return None;
                    };
                    let m = self.mover(v)?;
                    let number = |n: i128| Some(Poly::constant(n));
                    let end = if positive == up {
                        m.hi.clone().or_else(|| number(m.numbers?.1))?
                    } else {
                        m.lo.clone().or_else(|| number(m.numbers?.0))?
                    };
                    sum = sum.add(&c.mul(&end)?)?;
                }
            }
            Some(sum)
        };
        let one = Poly::constant(1);
        bound(false).and_then(|l| l.sub(&one)).is_some_and(|l| self.r.never_negative(&l))
            || bound(true).and_then(|h| h.scale(-1)?.sub(&one)).is_some_and(|h| self.r.never_negative(&h))
    }

    /// Each value of the sum comes from one assignment: some order of the terms has every coefficient larger than what
    /// all before it can add up to.
    fn mixed_radix(&self, terms: &BTreeMap<Atom, Poly>) -> bool {
        let mut left: Vec<(Poly, Option<Poly>)> = vec![];
        for (&v, c) in terms {
            let Some(m) = self.mover(v) else { return false };
            let one = Poly::constant(1);
            let size =
                if c.sub(&one).is_some_and(|c| self.r.never_negative(&c)) { Some(c.clone()) } else { c.scale(-1) };
            let Some(size) = size else { return false };
            if !size.sub(&one).is_some_and(|c| self.r.never_negative(&c)) {
                return false;
            }
            let span = match (&m.lo, &m.hi, m.numbers) {
                (_, _, Some((lo, hi))) => Some(Poly::constant(hi - lo)),
                (Some(lo), Some(hi), None) => hi.sub(lo),
                _ => None,
            };
            left.push((size, span));
        }
        if left.len() > 4 {
            left.sort_by_key(|t| t.0.as_constant().unwrap_or(i128::MAX));
        }
        self.stack(&left, &Poly::default())
    }

    fn stack(&self, left: &[(Poly, Option<Poly>)], below: &Poly) -> bool {
        let tries = if left.len() > 4 { 1 } else { left.len() };
        left.is_empty()
            || (0..tries).any(|n| {
                let (size, span) = &left[n];
                let above = size.sub(below).and_then(|d| d.sub(&Poly::constant(1)));
                if !above.is_some_and(|d| self.r.never_negative(&d)) {
                    return false;
                }
                let rest: Vec<_> = left.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, t)| t.clone()).collect();
                if rest.is_empty() {
                    return true;
                }
                let next = span.as_ref().and_then(|s| size.mul(s)?.add(below));
                next.is_some_and(|next| self.stack(&rest, &next))
            })
    }

    /// Index pairs along axes that select different elements whenever they differ.
    fn axes(&self, w: &Access, x: &Access) -> Option<Vec<(Poly, Poly)>> {
        let (v, u) = (self.k.view(w.view), self.k.view(x.view));
        let same = v.dtype == u.dtype
            && v.extents == u.extents
            && v.strides == u.strides
            && v.gather == u.gather
            && v.guards.len() == u.guards.len()
            && v.guards.iter().zip(&u.guards).all(|(a, b)| a.1 == b.1);
        if !same || !self.no_overlap(v) {
            return None;
        }
        let offsets = self.origin(v)?.sub(&self.origin(u)?)?;
        if offsets.as_constant() != Some(0) {
            return None;
        }
        let picks = v.guards.iter().zip(&u.guards).map(|(a, b)| (a.0, b.0));
        // Two entries of a table may name one row, so different places in it are no different elements.
        let looked_up = v.gather.is_some() as usize;
        let axes = w.index.iter().zip(&x.index).skip(looked_up).map(|(&a, &b)| (a, b));
        picks.chain(axes).map(|(a, b)| Some((self.poly(a)?, self.poly(b)?))).collect()
    }

    /// A quotient and a remainder of one number by one divisor, on two axes, are that number: `t[(r / h, r % h)]` names
    /// different elements for different `r`.
    fn split_pairs(&self, w: &Access, x: &Access) -> Vec<(Poly, Poly)> {
        if w.index != x.index || self.axes(w, x).is_none() {
            return vec![];
        }
        let mut out = vec![];
        let (mut quotients, mut remainders) = (vec![], vec![]);
        let looked_up = self.k.view(w.view).gather.is_some() as usize;
        for &i in w.index.iter().skip(looked_up) {
            self.split_terms(i, &mut quotients, &mut remainders);
        }
        for &(a, h) in &quotients {
            let uniform = self.poly(h).is_some_and(|h| self.uniform(&h));
            if uniform && remainders.contains(&(a, h)) {
                out.extend(self.poly(a).map(|a| (a.clone(), a)));
            }
        }
        out
    }

    /// Quotients and remainders that an index is, but for a part that is the same for all iterations.
    fn split_terms(&self, i: IxId, quotients: &mut Vec<(IxId, IxId)>, remainders: &mut Vec<(IxId, IxId)>) {
        match self.k.ix_expr(i) {
            IxExpr::Div(a, h) => quotients.push((a, h)),
            IxExpr::Mod(a, h) => remainders.push((a, h)),
            IxExpr::Add(a, b) | IxExpr::Sub(a, b) => {
                let same = |e| self.poly(e).is_some_and(|p| self.uniform(&p));
                match (same(a), same(b)) {
                    (true, false) => self.split_terms(b, quotients, remainders),
                    (false, true) => self.split_terms(a, quotients, remainders),
                    (true, true) | (false, false) => {}
                }
            }
            IxExpr::Const(_)
            | IxExpr::Sym(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Mul(..)
            | IxExpr::Min(..)
            | IxExpr::Max(..) => {}
        }
    }

    /// The part of a view's offset that its picked axes do not explain; `None` if it differs between iterations.
    fn origin(&self, v: &View) -> Option<Poly> {
        let strides: Vec<Poly> = match v.base {
            Base::Param(p) => match &self.k.param(p).kind {
                ParamKind::Tensor { strides, .. } => strides.iter().filter_map(|&s| self.poly(s)).collect(),
                ParamKind::Scalar { .. } | ParamKind::Absent => vec![],
            },
            Base::Buffer(b) => crate::ir::build::row_major(&self.k.buffer(b).extents)
                .into_iter()
                .map(|s| Poly::constant(s as i128))
                .collect(),
        };
        let offset = self.poly(v.offset)?;
        let mut tries = vec![offset];
        for (i, _) in &v.guards {
            let i = self.poly(*i)?;
            let more: Vec<Poly> = tries
                .iter()
                .flat_map(|t| strides.iter().filter_map(|s| t.sub(&i.mul(s)?)).collect::<Vec<_>>())
                .collect();
            tries.extend(more);
            tries.truncate(64);
        }
        tries.into_iter().rev().find(|t| self.uniform(t))
    }

    /// Different indices inside the view are different elements.
    fn no_overlap(&self, v: &View) -> bool {
        if let Base::Param(p) = v.base
            && let ParamKind::Tensor { strides, extents, .. } = &self.k.param(p).kind
        {
            // Axes of the tensor itself; launches refuse outputs whose own axes overlap.
            let mut pool: Vec<(IxId, IxId)> = strides.iter().copied().zip(extents.iter().copied()).collect();
            let own = v.strides.iter().zip(&v.extents).all(|(s, e)| {
                match pool.iter().position(|x| x.0 == *s && (x.1 == *e || self.r.prove_le(*e, x.1))) {
                    Some(n) => {
                        pool.remove(n);
                        true
                    }
                    None => false,
                }
            });
            if own {
                return true;
            }
        }
        // Otherwise the strides must nest: each axis steps over all that the smaller ones reach.
        let terms: Option<Vec<(Poly, Option<Poly>)>> = v
            .strides
            .iter()
            .zip(&v.extents)
            .filter(|(_, e)| self.k.ix_const(**e) != Some(1))
            .map(|(&s, &e)| {
                let (s, e) = (self.poly(s)?, self.poly(e)?);
                Some((s, e.sub(&Poly::constant(1))))
            })
            .collect();
        terms.is_some_and(|mut t| {
            t.sort_by_key(|t| t.0.as_constant().unwrap_or(i128::MAX));
            if t.len() > 4 && t.iter().any(|t| t.0.as_constant().is_none()) {
                return false;
            }
            self.stack(&t, &Poly::default())
        })
    }

    // --- enumeration ---

    /// The part of a polynomial that differs between iterations, with all numbers, and the symbolic part that does not.
    fn moving(&self, p: &Poly) -> Option<(Poly, Poly)> {
        let (mut moving, mut still) = (Poly::default(), Poly::default());
        for (m, c) in p.terms() {
            let mut term = Poly::constant(c);
            for &a in m {
                term = term.mul(&Poly::atom(a))?;
            }
            if !m.is_empty() && self.uniform(&term) { still = still.add(&term)? } else { moving = moving.add(&term)? }
        }
        let mut leaves = vec![];
        self.r.leaves(&moving, &mut leaves);
        leaves.iter().all(|l| self.mover(l.0).is_some()).then_some((moving, still))
    }

    fn enumerate(&self, w: &Access, x: &Access) -> Answer {
        let (Some(pw), Some(px)) = (self.address(w), self.address(x)) else { return Answer::Unknown };
        let (Some((pw, sw)), Some((px, sx))) = (self.moving(&pw), self.moving(&px)) else { return Answer::Unknown };
        if sw != sx {
            return Answer::Unknown;
        }
        let mut complete = true;
        let mut ranges = vec![];
        for m in &self.movers {
            let Some((lo, hi)) = m.numbers else { return self.few(w, x, &pw, &px) };
            ranges.push((lo, hi));
        }
        if total(&ranges).is_none_or(|t| t > MAX_ITERATIONS) {
            complete = false;
            for r in &mut ranges {
                r.1 = r.1.min(r.0 + 8);
            }
        }
        match self.search(w, x, &pw, &px, &ranges) {
            // What could not be evaluated was taken to happen, so nothing was left out.
            Answer::Unknown if complete => Answer::Apart,
            other => other,
        }
    }

    /// Some ranges are unknown: a few iterations may still show a conflict.
    fn few(&self, w: &Access, x: &Access, pw: &Poly, px: &Poly) -> Answer {
        let mut ranges = vec![];
        for m in &self.movers {
            let (numbers, ..) = self.r.bounds_of(m.atom);
            match numbers {
                (Some(lo), hi) => ranges.push((lo, hi.unwrap_or(lo + 8).min(lo + 8))),
                _ => return Answer::Unknown,
            }
        }
        match self.search(w, x, pw, px, &ranges) {
            // A range whose end is unknown may be shorter than the example needs.
            Answer::Meet(..) | Answer::Unknown => Answer::Unknown,
            Answer::Apart => Answer::Apart,
        }
    }

    fn search(&self, w: &Access, x: &Access, pw: &Poly, px: &Poly, ranges: &[(i128, i128)]) -> Answer {
        let Some(count) = total(ranges).filter(|&t| t <= 1 << 16) else { return Answer::Unknown };
        let mut seen: HashMap<i128, Vec<i128>> = HashMap::new();
        let mut at: Vec<i128> = ranges.iter().map(|r| r.0).collect();
        let elements = self.movers.iter().filter(|m| self.elements.contains(&m.var)).count();
        let movers: Vec<(IxVarId, bool)> =
            self.movers.iter().map(|m| (m.var, self.elements.contains(&m.var))).collect();
        let key = |at: &[i128]| -> Vec<(IxVarId, i128)> {
            movers.iter().zip(at).filter(|(m, _)| m.1).map(|(m, &n)| (m.0, n)).collect()
        };
        if count <= 0 || elements == 0 {
            return Answer::Unknown;
        }
        for round in 0..2 {
            at.clear();
            at.extend(ranges.iter().map(|r| r.0));
            loop {
                let (a, p) = if round == 0 { (w, pw) } else { (x, px) };
                let leaf = |atom: Atom| self.movers.iter().position(|m| m.atom == atom).map(|n| at[n]);
                if self.runs(a, &leaf)
                    && let Some(place) = self.r.eval_poly(p, &leaf)
                {
                    match seen.get(&place) {
                        Some(other) if key(other) != key(&at) => {
                            return Answer::Meet(key(other), key(&at), self.element(a, &leaf), self.decided(w, x));
                        }
                        Some(_) => {}
                        None if round == 0 => drop(seen.insert(place, at.clone())),
                        None => {}
                    }
                }
                let mut n = at.len();
                loop {
                    if n == 0 {
                        break;
                    }
                    n -= 1;
                    at[n] += 1;
                    if at[n] <= ranges[n].1 {
                        break;
                    }
                    at[n] = ranges[n].0;
                    if n == 0 {
                        n = usize::MAX;
                        break;
                    }
                }
                if n == usize::MAX {
                    break;
                }
            }
            if w.op == x.op {
                break;
            }
        }
        Answer::Unknown
    }

    /// The access happens in this iteration, as far as numbers tell.
    fn runs(&self, a: &Access, leaf: &dyn Fn(Atom) -> Option<i128>) -> bool {
        let value = |i: IxId| self.poly(i).and_then(|p| self.r.eval_poly(&p, leaf));
        for &(op, l, r, holds) in &a.conditions {
            if let (Some(l), Some(r)) = (value(l), value(r)) {
                let is = match op {
                    CmpOp::Lt => l < r,
                    CmpOp::Le => l <= r,
                    CmpOp::Gt => l > r,
                    CmpOp::Ge => l >= r,
                    CmpOp::Eq => l == r,
                    CmpOp::Ne => l != r,
                };
                if is != holds {
                    return false;
                }
            }
        }
        let v = self.k.view(a.view);
        let kept = |n: usize| self.guards.get(&a.op).and_then(|g| g.get(n)).copied().unwrap_or(true);
        let limits = a.index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied());
        limits.enumerate().filter(|(n, _)| kept(*n)).all(|(_, (i, e))| match (value(i), value(e)) {
            (Some(i), Some(e)) => i >= 0 && i < e,
            _ => true,
        })
    }

    /// All conditions compare numbers that are known in each iteration.
    fn decided(&self, w: &Access, x: &Access) -> bool {
        w.conditions.iter().chain(&x.conditions).all(|&(_, l, r, _)| {
            [l, r].into_iter().all(|i| {
                let mut leaves = vec![];
                self.poly(i).is_some_and(|p| {
                    self.r.leaves(&p, &mut leaves);
                    leaves.iter().all(|l| self.mover(l.0).is_some())
                })
            })
        })
    }

    fn element(&self, a: &Access, leaf: &dyn Fn(Atom) -> Option<i128>) -> Option<Vec<i128>> {
        a.index.iter().map(|&i| self.poly(i).and_then(|p| self.r.eval_poly(&p, leaf))).collect()
    }
}

fn total(ranges: &[(i128, i128)]) -> Option<i128> {
    ranges.iter().try_fold(1i128, |t, r| t.checked_mul((r.1 - r.0 + 1).max(0)))
}
