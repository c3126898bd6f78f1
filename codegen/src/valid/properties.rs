//! Declared properties: `deterministic` and a first check of `batch_invariant`.
//!
//! Deterministic: blocks and threads update counters in any order, so the old value an atomic returns must not be used;
//! float atomics do not exist. Batch invariant in `b`: no sum of floats may run over a number of steps that depends on
//! the extent of `b`. The second check follows extents through the bounds of `for` loops: index arithmetic, scalars and
//! variables, but no memory; the dynamic check covers the rest.

use super::initial::ops_below;
use super::scopes::leaves;
use crate::diag::Diagnostic;
use crate::ir::effects::{EffectKind, Place, deep_effects, effects, uses};
use crate::ir::{Base, BufferId, IxExpr, IxId, IxVarKind, Kernel, Op, OpId, Space, ValueId};
use std::collections::HashSet;

pub(super) fn check(k: &Kernel, found: &mut Vec<Diagnostic>) {
    let mut ops = vec![];
    for b in [k.body] {
        ops_below(k, b, &mut ops);
    }
    if k.properties.deterministic {
        deterministic(k, &ops, found);
    }
    for dim in &k.properties.batch_invariant {
        let known = k.syms.iter().any(|s| s.name == *dim) || k.fixed_dims.iter().any(|d| d.0 == *dim);
        if !known {
            let m = format!("`batch_invariant({dim})` names a dimension the kernel does not have");
            found.push(Diagnostic::error(k, k.span, "V0612", m).help("name one of the kernel's dimensions"));
        }
        for &id in &ops {
            invariant(k, dim, id, &ops, found);
        }
    }
}

fn deterministic(k: &Kernel, ops: &[OpId], found: &mut Vec<Diagnostic>) {
    for &id in ops {
        let Op::Atomic { result: Some(r), .. } = k.op(id).op else { continue };
        let Some(user) = ops.iter().copied().find(|&o| uses_value(k, o, r)) else { continue };
        found.push(
            Diagnostic::error(k, k.op(id).span, "V0601", "a deterministic kernel uses the result of an atomic")
                .label("the old value depends on the order of threads")
                .note(format!("it is used by `{}`", k.op(user).op.name()), Some(k.span_of(k.op(user).span).clone()))
                .help("derive positions from a scan, or drop `deterministic`"),
        );
    }
}

fn uses_value(k: &Kernel, op: OpId, v: ValueId) -> bool {
    let u = uses(&k.op(op).op);
    u.values.contains(&v)
        || u.yields.iter().any(|y| y.1 == v)
        || u.indices.iter().chain(u.index_yields.iter().map(|y| &y.1)).any(|&i| leaves(k, i).1.contains(&v))
}

/// Loops whose trip count follows the extent of `dim` and that add up floats.
fn invariant(k: &Kernel, dim: &str, id: OpId, ops: &[OpId], found: &mut Vec<Diagnostic>) {
    let Op::For { lo, hi, body, .. } = &k.op(id).op else { return };
    let mut follow = Follow { k, dim, ops, seen: HashSet::new() };
    if !follow.index(*lo) && !follow.index(*hi) {
        return;
    }
    let mut inside = vec![];
    ops_below(k, *body, &mut inside);
    let made_inside = |b: crate::ir::BufferId| {
        inside.iter().any(|&o| {
            matches!(&k.op(o).op, Op::Alloc { buffer } | Op::VarNew { var: buffer, .. } | Op::IxVarNew { var: buffer, .. }
                if *buffer == b)
        })
    };
    let effects = deep_effects(k, id);
    let touched = |b: Base, kind: EffectKind| effects.iter().find(|e| e.kind == kind && e.base(k) == b).map(|e| e.op);
    for e in &effects {
        let Base::Buffer(b) = e.base(k) else { continue };
        let buffer = k.buffer(b);
        let carried = matches!(buffer.space, Space::Var | Space::Frag | Space::Shared)
            && buffer.dtype.is_float()
            && e.kind == EffectKind::Read
            && !made_inside(b);
        // Carried from one iteration to the next: read before this iteration wrote it.
        let first_write = touched(Base::Buffer(b), EffectKind::Write);
        let Some(write) = first_write.filter(|w| carried && position(ops, e.op) <= position(ops, *w)) else { continue };
        found.push(
            Diagnostic::error(
                k,
                k.op(id).span,
                "V0611",
                format!("the number of steps that add to `{}` depends on the extent of `{dim}`", buffer.name),
            )
            .note(format!("`{}` is carried from step to step", buffer.name), Some(k.span_of(k.op(write).span).clone()))
            .help("derive the loop's bounds from the row's own data or from the config"),
        );
        return;
    }
}

fn position(ops: &[OpId], id: OpId) -> usize {
    ops.iter().position(|&o| o == id).unwrap_or(usize::MAX)
}

/// Finds out whether a value follows the extent of `dim`, through index arithmetic, scalars and variables. A block's own
/// position and what is loaded do not count: they are the row's own.
struct Follow<'a> {
    k: &'a Kernel,
    dim: &'a str,
    ops: &'a [OpId],
    seen: HashSet<Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Seen {
    Index(IxId),
    Value(ValueId),
    Buffer(BufferId),
}

impl Follow<'_> {
    fn index(&mut self, i: IxId) -> bool {
        if !self.seen.insert(Seen::Index(i)) {
            return false;
        }
        match self.k.ix_expr(i) {
            IxExpr::Const(_) => false,
            IxExpr::Data(v) => self.value(v),
            IxExpr::Sym(s) => self.k.syms[s.0 as usize].name == self.dim,
            IxExpr::Var(v) => {
                let var = self.k.ix_var(v);
                match var.kind {
                    IxVarKind::Block(_) => false,
                    IxVarKind::Data => {
                        let k = self.k;
                        let def = self.ops.iter().copied().find(|&o| uses(&k.op(o).op).defines_ix.contains(&v));
                        def.is_some_and(|o| self.op(o))
                    }
                    IxVarKind::Loop | IxVarKind::Element => var.lo.into_iter().chain(var.hi).any(|b| self.index(b)),
                }
            }
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.index(a) || self.index(b),
        }
    }

    fn value(&mut self, v: ValueId) -> bool {
        self.seen.insert(Seen::Value(v)) && self.k.value(v).def.is_some_and(|o| self.op(o))
    }

    /// A variable follows what any op gives it.
    fn variable(&mut self, b: BufferId) -> bool {
        if !self.seen.insert(Seen::Buffer(b)) {
            return false;
        }
        let k = self.k;
        let sets = |&o: &OpId| effects(k, o).iter().any(|e| e.kind == EffectKind::Write && e.place == Place::Buffer(b));
        self.ops.iter().copied().filter(sets).any(|o| self.op(o))
    }

    /// What an op gives follows what it is given, unless it reads tiles or tensors.
    fn op(&mut self, id: OpId) -> bool {
        let k = self.k;
        let u = uses(&k.op(id).op);
        if !u.views.is_empty() || !u.blocks.is_empty() && u.yields.is_empty() && u.index_yields.is_empty() {
            return false;
        }
        let reads = effects(k, id);
        u.values.iter().chain(u.yields.iter().map(|y| &y.1)).any(|&v| self.value(v))
            || u.indices.iter().chain(u.index_yields.iter().map(|y| &y.1)).any(|&i| self.index(i))
            || reads.iter().filter(|e| e.kind == EffectKind::Read).any(|e| match e.place {
                Place::Buffer(b) => k.buffer(b).space == Space::Var && self.variable(b),
                Place::Element { .. } | Place::Region { .. } | Place::View(_) => false,
            })
    }
}
