//! Conflicts inside a phase: two iterations of one element body on one element.
//!
//! For each pair of accesses of a body to one tile or tensor, of which one changes it, either a proof shows that equal
//! elements mean equal iterations, or the iterations are enumerated. The proof solves one axis after the other: an axis
//! whose index is a mixed-radix number of the loop variables fixes them. Enumeration gives the example a message needs;
//! what neither decides is a warning, since data may well be free of duplicates.

mod apart;
mod enumerate;

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
    /// An axis whose index is a number that only this iteration has: one claimed under a condition that holds here.
    claimed: Option<(usize, ValueId)>,
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
        p.collect(body, &mut vec![], &mut vec![], false);
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

    fn collect(
        &mut self,
        block: BlockId,
        conditions: &mut Vec<(CmpOp, IxId, IxId, bool)>,
        holds: &mut Vec<ValueId>,
        maybe: bool,
    ) {
        let mut maybe = maybe;
        for &id in &self.k.block(block).ops.clone() {
            let op = &self.k.op(id).op;
            if let Op::If { cond, then, els, .. } = op {
                let def = self.k.value(*cond).def.map(|d| &self.k.op(d).op);
                let inner = self.inner_values.contains(cond);
                match def {
                    Some(&Op::CompareIndex { op, a, b, .. }) => {
                        for (arm, is) in [(*then, true), (*els, false)] {
                            conditions.push((op, a, b, is));
                            self.collect(arm, conditions, holds, maybe);
                            conditions.pop();
                        }
                    }
                    _ => {
                        holds.push(*cond);
                        self.collect(*then, conditions, holds, maybe || inner);
                        holds.pop();
                        self.collect(*els, conditions, holds, maybe || inner);
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
                    claimed: index.iter().enumerate().find_map(|(axis, &i)| {
                        let IxExpr::Data(v) = self.k.ix_expr(i) else { return None };
                        let def = self.k.value(v).def.map(|d| &self.k.op(d).op);
                        matches!(def, Some(Op::Claim { cond, .. }) if holds.contains(cond)).then_some((axis, v))
                    }),
                });
            }
            for b in uses(op).blocks {
                self.collect(b, conditions, holds, maybe);
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
                if w.claimed.is_some()
                    && w.claimed == x.claimed
                    && w.view == x.view
                    && self.no_overlap(self.k.view(w.view))
                {
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
}
