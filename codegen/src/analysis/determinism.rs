//! Determinism: does a result depend on the order in which threads and blocks run?
//!
//! Sums of integers, maxima and the like may be collected with atomics in any order. What may not happen is that the
//! order shows: through the old value an atomic returns, or through a plain read of a tensor that other blocks update at
//! the same time. Atomics on floats do not exist (V0207), nor do clocks and flags between blocks.

use crate::ir::effects::{EffectKind, effects, uses, walk};
use crate::ir::{Base, BufferId, IxExpr, IxId, IxVarId, Kernel, Op, OpId, Space, ValueId};
use std::collections::{HashMap, HashSet};

/// A way on which the order shows: the ops from the atomic (or the update) to where it reaches data, an address or the
/// choice of what is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderPath {
    /// The atomic.
    pub atomic: OpId,
    /// Ops on the way, the last one is where it ends.
    pub through: Vec<OpId>,
    /// What it ends in.
    pub ends: End,
}

/// Where the order shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Data that is stored.
    Data,
    /// The place of an access.
    Address,
    /// The choice of what is done: a condition, a bound of a loop, a check that may end the run.
    Choice,
    /// A plain read of memory that other blocks update.
    Read,
}

/// Every way on which the order shows in a plain kernel, one for each atomic at most.
pub fn order_paths(k: &Kernel) -> Vec<OrderPath> {
    let mut ops = vec![];
    walk(k, k.body, &mut |id, _| ops.push(id));
    let together = between_meetings(k);
    let mut found = vec![];
    for &atomic in &ops {
        let Op::Atomic { result, view, .. } = &k.op(atomic).op else { continue };
        let way = result.and_then(|r| follow(k, &ops, atomic, r));
        found.extend(way.or_else(|| {
            let Base::Param(_) = k.view(*view).base else { return None };
            let base = k.view(*view).base;
            let reads = |o: OpId| effects(k, o).iter().any(|e| e.kind == EffectKind::Read && e.base(k) == base);
            // Behind a meeting of the grid all updates are there.
            let read = ops.iter().copied().find(|&o| together[&o] == together[&atomic] && reads(o))?;
            Some(OrderPath { atomic, through: vec![read], ends: End::Read })
        }));
    }
    found
}

/// How many times the blocks of the grid have met before each op. They meet at the top level only.
fn between_meetings(k: &Kernel) -> HashMap<OpId, usize> {
    let (mut out, mut met) = (HashMap::new(), 0);
    walk(k, k.body, &mut |id, op| {
        met += usize::from(*op == Op::GridBarrier);
        out.insert(id, met);
    });
    out
}

/// Something that carries the old value on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Carrier {
    Value(ValueId),
    Index(IxVarId),
    Variable(BufferId),
}

/// Breadth first, so that the shortest way is named.
fn follow(k: &Kernel, ops: &[OpId], atomic: OpId, result: ValueId) -> Option<OrderPath> {
    let mut seen = HashSet::from([Carrier::Value(result)]);
    let mut front = vec![(Carrier::Value(result), vec![])];
    while !front.is_empty() {
        let mut next = vec![];
        for (carrier, way) in &front {
            for &id in ops.iter().filter(|&&o| o != atomic) {
                let Some(step) = meets(k, id, *carrier) else { continue };
                let mut through: Vec<OpId> = way.clone();
                through.push(id);
                match step {
                    Step::Ends(ends) => return Some(OrderPath { atomic, through, ends }),
                    Step::Goes(to) => {
                        next.extend(to.into_iter().filter(|c| seen.insert(*c)).map(|c| (c, through.clone())));
                    }
                }
            }
        }
        front = next;
    }
    None
}

enum Step {
    Ends(End),
    Goes(Vec<Carrier>),
}

fn in_index(k: &Kernel, i: IxId, c: Carrier) -> bool {
    match k.ix_expr(i) {
        IxExpr::Const(_) | IxExpr::Sym(_) => false,
        IxExpr::Data(v) => c == Carrier::Value(v),
        IxExpr::Var(v) => c == Carrier::Index(v),
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => in_index(k, a, c) || in_index(k, b, c),
    }
}

/// What an op does with a carrier; `None` if it does not touch it.
fn meets(k: &Kernel, id: OpId, c: Carrier) -> Option<Step> {
    let op = &k.op(id).op;
    let u = uses(op);
    let as_value = |v: &ValueId| c == Carrier::Value(*v);
    let in_indices = u.indices.iter().any(|&i| in_index(k, i, c));
    let in_yields = u.yields.iter().any(|y| as_value(&y.1)) || u.index_yields.iter().any(|y| in_index(k, y.1, c));
    let in_views = u.views.iter().any(|&v| {
        let v = k.view(v);
        in_index(k, v.offset, c) || v.guards.iter().any(|g| in_index(k, g.0, c))
    });
    let read = effects(k, id)
        .iter()
        .any(|e| e.kind == EffectKind::Read && matches!(e.base(k), Base::Buffer(b) if c == Carrier::Variable(b)));
    if !(u.values.iter().any(as_value) || in_indices || in_yields || in_views || read) {
        return None;
    }
    Some(match op {
        Op::Store { value, view, .. } | Op::Atomic { value, view, .. } | Op::Fill { value, dst: view } => {
            match k.view(*view).base {
                _ if in_indices || in_views => Step::Ends(End::Address),
                Base::Buffer(b) if as_value(value) && k.buffer(b).space == Space::Var => {
                    Step::Goes(vec![Carrier::Variable(b)])
                }
                Base::Buffer(_) | Base::Param(_) => Step::Ends(End::Data),
            }
        }
        Op::VarNew { var, .. } | Op::VarSet { var, .. } | Op::IxVarNew { var, .. } | Op::IxVarSet { var, .. } => {
            Step::Goes(vec![Carrier::Variable(*var)])
        }
        Op::Claim { result, var, .. } => Step::Goes(vec![Carrier::Value(*result), Carrier::Variable(*var)]),
        Op::For { .. } | Op::Spread { .. } | Op::FindFirst { .. } | Op::Check { .. } => Step::Ends(End::Choice),
        Op::If { cond, .. } if as_value(cond) => Step::Ends(End::Choice),
        Op::Load { .. } | Op::LoadOr { .. } | Op::Copy { .. } if in_indices || in_views => Step::Ends(End::Address),
        Op::Load { .. }
        | Op::LoadOr { .. }
        | Op::Copy { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Gemm { .. }
        | Op::ReduceRegion { .. }
        | Op::If { .. }
        | Op::Const { .. }
        | Op::IndexValue { .. }
        | Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Fma { .. }
        | Op::Compare { .. }
        | Op::CompareIndex { .. }
        | Op::Select { .. }
        | Op::Cast { .. }
        | Op::Bits { .. }
        | Op::ClampIndex { .. }
        | Op::VarGet { .. }
        | Op::IxVarGet { .. }
        | Op::Alloc { .. }
        | Op::Parallel { .. }
        | Op::Loop { .. }
        | Op::Break
        | Op::Continue
        | Op::GridBarrier
        | Op::BlockBarrier { .. }
        | Op::Sched(_) => {
            let values = u.defines.iter().map(|&v| Carrier::Value(v));
            Step::Goes(values.chain(u.defines_ix.iter().map(|&v| Carrier::Index(v))).collect())
        }
    })
}
