//! Definite initialisation: nothing is read that no path has written.
//!
//! A tile counts as written after any write to it, whatever part: which elements a body covers is the sanitizer's
//! question. A loop that may run zero times writes nothing; of an `If` only what both arms write counts. Variables are
//! born with a value, so scopes cover them.

use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::ir::effects::{EffectKind, deep_effects, effects, walk};
use crate::ir::{Access, Base, BlockId, IxExpr, Kernel, Op, OpId, ParamKind, Space};
use std::collections::{HashMap, HashSet};

/// All ops below a block, in program order.
pub(super) fn ops_below(k: &Kernel, block: BlockId, out: &mut Vec<OpId>) {
    walk(k, block, &mut |id, _| out.push(id));
}

type State = HashSet<Base>;

pub(super) fn check(k: &Kernel, r: &Ranges, found: &mut Vec<Diagnostic>) {
    let mut start: State = k
        .params
        .iter()
        .enumerate()
        .filter(|(_, p)| !matches!(p.kind, ParamKind::Tensor { access: Access::Out, .. }))
        .map(|(n, _)| Base::Param(crate::ir::ParamId(n as u32)))
        .collect();
    // Roles run beside each other and hand tiles over through rings; what one writes the others may read.
    if !k.roles.is_empty() {
        start.extend((0..k.buffers.len()).map(|b| Base::Buffer(crate::ir::BufferId(b as u32))));
    }
    let mut w = Walk { k, r, found, reported: HashSet::new(), breaks: vec![], skipped: HashMap::new() };
    w.block(k.body, start);
}

struct Walk<'a> {
    k: &'a Kernel,
    r: &'a Ranges,
    found: &'a mut Vec<Diagnostic>,
    reported: HashSet<Base>,
    /// States at the breaks of the innermost loop.
    breaks: Vec<State>,
    /// Writes that happen on some paths only, with the op that makes them conditional.
    skipped: HashMap<Base, OpId>,
}

impl Walk<'_> {
    /// State at the end; `None` if the end is not reached.
    fn block(&mut self, id: BlockId, mut state: State) -> Option<State> {
        for &op in &self.k.block(id).ops {
            state = self.op(op, state)?;
        }
        Some(state)
    }

    fn op(&mut self, id: OpId, mut state: State) -> Option<State> {
        match &self.k.op(id).op {
            Op::If { then, els, .. } => {
                let a = self.block(*then, state.clone());
                let b = self.block(*els, state);
                match (a, b) {
                    (Some(a), Some(b)) => {
                        for &x in a.symmetric_difference(&b) {
                            self.skipped.insert(x, id);
                        }
                        Some(a.intersection(&b).copied().collect())
                    }
                    (x, None) | (None, x) => x,
                }
            }
            Op::For { lo, hi, body, .. } => {
                let outer = std::mem::take(&mut self.breaks);
                let end = self.block(*body, state.clone());
                let breaks = std::mem::replace(&mut self.breaks, outer);
                let mut after: Option<State> = end;
                for b in breaks {
                    after = Some(match after {
                        Some(a) => a.intersection(&b).copied().collect(),
                        None => b,
                    });
                }
                let after = after.unwrap_or_else(|| state.clone());
                if self.r.prove_lt(*lo, *hi) {
                    return Some(after);
                }
                for &x in after.difference(&state) {
                    self.skipped.insert(x, id);
                }
                Some(state)
            }
            Op::Loop { body } => {
                let outer = std::mem::take(&mut self.breaks);
                self.block(*body, state.clone());
                let breaks = std::mem::replace(&mut self.breaks, outer);
                breaks.into_iter().reduce(|a, b| a.intersection(&b).copied().collect())
            }
            Op::Break => {
                self.breaks.push(state);
                None
            }
            Op::Continue => None,
            Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::ReduceRegion { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. } => {
                // Element bodies are one phase: in the order of the text, every write counts.
                for e in deep_effects(self.k, id) {
                    self.effect(e.op, e.kind, e.base(self.k), &mut state);
                }
                Some(state)
            }
            Op::Const { .. }
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
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. }
            | Op::Load { .. }
            | Op::LoadOr { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::Claim { .. }
            | Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Copy { .. }
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_) => {
                // With roles, every tile counts as written from the start.
                for e in effects(self.k, id) {
                    self.effect(e.op, e.kind, e.base(self.k), &mut state);
                }
                Some(state)
            }
        }
    }

    fn effect(&mut self, op: OpId, kind: EffectKind, base: Base, state: &mut State) {
        let is_var = matches!(base, Base::Buffer(b) if self.k.buffer(b).space == Space::Var);
        if kind != EffectKind::Write && !is_var && !state.contains(&base) && self.reported.insert(base) {
            self.report(op, base);
        }
        state.insert(base);
    }

    fn report(&mut self, op: OpId, base: Base) {
        let k = self.k;
        let node = k.op(op);
        let mut d = match base {
            Base::Buffer(b) => {
                let b = k.buffer(b);
                let sure = if self.skipped.contains_key(&base) { "may be read" } else { "is read" };
                Diagnostic::error(k, node.span, "V0403", format!("tile `{}` {sure} before it is written", b.name))
                    .note(format!("`{}` is allocated", b.name), Some(k.span_of(b.span).clone()))
                    .help("fill it first")
            }
            Base::Param(p) => {
                let p = k.param(p);
                Diagnostic::error(k, node.span, "V0402", format!("output `{}` is read before it is written", p.name))
                    .note(format!("`{}` is declared `Out`", p.name), Some(k.span_of(p.span).clone()))
                    .help("declare it `InOut`")
            }
        };
        if let Some(&by) = self.skipped.get(&base) {
            let n = k.op(by);
            let text = if let Op::For { hi, .. } = &n.op {
                if let IxExpr::Sym(s) = k.ix_expr(*hi) {
                    format!("the loop that writes it does not run if `{}` is 0", k.syms[s.0 as usize].name)
                } else {
                    "the loop that writes it may not run".into()
                }
            } else {
                "only one arm writes it".into()
            };
            d = d.note(text, Some(k.span_of(n.span).clone()));
        }
        self.found.push(d);
    }
}
