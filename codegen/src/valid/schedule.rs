//! Scheduled kernels: distributions fit their block, layouts fit shared memory, and a barrier stands between phases that
//! touch the same shared memory.
//!
//! The barrier check is a witness for the pass that inserts barriers and shares nothing with it but the ops' effects. It
//! asks for a barrier only where two different phases touch one shared tile or one writable tensor and at least one
//! writes; collectives count as meeting points, since they exchange partial results themselves.

use crate::diag::Diagnostic;
use crate::ir::effects::{EffectKind, deep_effects};
use crate::ir::{Access, Base, BlockId, Distribution, Kernel, Op, OpId, ParamKind, Space, SpanId, Stage};
use std::collections::BTreeMap;

pub(super) fn check(k: &Kernel, found: &mut Vec<Diagnostic>) {
    if k.stage == Stage::Plain {
        for b in &k.buffers {
            if b.distribution.is_some() || b.memory.is_some() || b.role.is_some() {
                let m = format!("tile `{}` is placed in a plain kernel", b.name);
                found.push(Diagnostic::error(k, b.span, "V0107", m));
            }
        }
        return;
    }
    for b in &k.buffers {
        if let Some(d) = &b.distribution {
            distribution(k, found, b.span, &b.name, d, b.extents.len());
        }
        if let Some(m) = &b.memory {
            if m.strides.len() != b.extents.len() {
                let text = format!("tile `{}` has {} strides for {} axes", b.name, m.strides.len(), b.extents.len());
                found.push(Diagnostic::error(k, b.span, "V0433", text));
                continue;
            }
            let last: usize = b.extents.iter().zip(&m.strides).map(|(e, s)| (e.max(&1) - 1) * s).sum();
            let end = m.offset_bytes + b.dtype.bytes(last + 1);
            if b.space == Space::Shared && k.shared_bytes > 0 && end > k.shared_bytes {
                let text = format!("tile `{}` ends at byte {end} of {} shared bytes", b.name, k.shared_bytes);
                found.push(Diagnostic::error(k, b.span, "V0433", text));
            }
        }
    }
    for node in &k.ops {
        if let Op::Parallel { distribution: Some(d), extents, .. } = &node.op {
            distribution(k, found, node.span, "the loop", d, extents.len());
        }
    }
    // With roles, tiles change hands through rings, which this check does not follow.
    if k.roles.is_empty() {
        let mut w = Walk { k, found, exits: vec![], reported: vec![], over: overlaps(k) };
        w.block(k.body, Pending::new());
    }
}

fn distribution(k: &Kernel, found: &mut Vec<Diagnostic>, span: SpanId, what: &str, d: &Distribution, rank: usize) {
    let threads = k.warps * 32;
    let why = if d.threads != threads && k.roles.is_empty() {
        format!("{} threads in a block of {threads}", d.threads)
    } else if d.lanes == 0 || d.vec == 0 || !d.threads.is_multiple_of(d.lanes) {
        format!("{} lanes of {} elements do not divide {} threads", d.lanes, d.vec, d.threads)
    } else if d.split_axis > rank {
        format!("split at axis {} of rank {rank}", d.split_axis)
    } else {
        return;
    };
    found.push(Diagnostic::error(k, span, "V0431", format!("the distribution of {what} does not fit: {why}")));
}

/// Accesses since the last barrier: read (0), written (1), atomically updated (2) or written by one thread (3), by which
/// phase.
type Pending = BTreeMap<(u8, u32, u8), OpId>;

struct Walk<'a> {
    k: &'a Kernel,
    found: &'a mut Vec<Diagnostic>,
    exits: Vec<Pending>,
    reported: Vec<(OpId, u32)>,
    /// Of each tile, those that have some of its bytes.
    over: Vec<Vec<u32>>,
}

/// Of each tile, the others that share bytes with it. Versions of pipelined tiles but the first are not seen.
fn overlaps(k: &Kernel) -> Vec<Vec<u32>> {
    let bytes = |b: &crate::ir::Buffer| {
        let m = b.memory.as_ref().filter(|m| b.space == Space::Shared && m.strides.len() == b.extents.len())?;
        let last: usize = b.extents.iter().zip(&m.strides).map(|(e, s)| (e.max(&1) - 1) * s).sum();
        Some((m.offset_bytes, m.offset_bytes + b.dtype.bytes(last + 1)))
    };
    let all: Vec<_> = k.buffers.iter().map(bytes).collect();
    let others = |n: usize| {
        let own = all[n];
        let meets = move |o: &Option<(usize, usize)>| own.zip(*o).is_some_and(|(a, b)| a.0 < b.1 && b.0 < a.1);
        (0..all.len()).filter(|&o| o != n && meets(&all[o])).map(|o| o as u32).collect()
    };
    (0..all.len()).map(others).collect()
}

impl Walk<'_> {
    fn block(&mut self, id: BlockId, mut p: Pending) -> Pending {
        for &op in &self.k.block(id).ops {
            p = self.op(op, p);
        }
        p
    }

    fn op(&mut self, id: OpId, mut p: Pending) -> Pending {
        match &self.k.op(id).op {
            Op::BlockBarrier { .. } | Op::GridBarrier => Pending::new(),
            Op::If { then, els, .. } => {
                let mut a = self.block(*then, p.clone());
                a.extend(self.block(*els, p));
                a
            }
            Op::For { body, .. } | Op::Loop { body } => {
                let outer = std::mem::take(&mut self.exits);
                let mut once = self.block(*body, p.clone());
                for e in std::mem::take(&mut self.exits) {
                    once.extend(e);
                }
                // The second round sees what the first left: conflicts between iterations.
                let mut twice = self.block(*body, once.clone());
                for e in std::mem::replace(&mut self.exits, outer) {
                    twice.extend(e);
                }
                p.extend(once);
                p.extend(twice);
                p
            }
            Op::Break | Op::Continue => {
                self.exits.push(p.clone());
                p
            }
            op => {
                let mut mine = vec![];
                for e in deep_effects(self.k, id) {
                    let place = match e.base(self.k) {
                        Base::Buffer(b) if self.k.buffer(b).space == Space::Shared => (0, b.0),
                        Base::Param(q) if writable(self.k, q) => (1, q.0),
                        Base::Buffer(_) | Base::Param(_) => continue,
                    };
                    let kind = match e.kind {
                        EffectKind::Read => 0,
                        // The first thread does all stores of the block, so one follows the other.
                        EffectKind::Write if matches!(op, Op::Store { .. }) => 3,
                        EffectKind::Write => 1,
                        EffectKind::Atomic => 2,
                    };
                    mine.push((place.0, place.1, kind));
                }
                for &(space, n, kind) in &mine {
                    let over = if space == 0 { self.over[n as usize].clone() } else { vec![] };
                    for (o, other) in over.into_iter().flat_map(|o| (0..4).map(move |other| (o, other))) {
                        if (kind, other) != (0, 0)
                            && let Some(&by) = p.get(&(0, o, other))
                        {
                            self.report(id, by, 0, n, other, kind);
                        }
                    }
                    for other in 0..4 {
                        if kind == other && kind != 1 {
                            continue;
                        }
                        if let Some(&by) = p.get(&(space, n, other)) {
                            self.report(id, by, space, n, other, kind);
                        }
                    }
                }
                if matches!(op, Op::Reduce { .. } | Op::Scan { .. } | Op::ReduceRegion { .. } | Op::FindFirst { .. }) {
                    // What a collective reads is read before its threads meet.
                    p.clear();
                    mine.retain(|m| m.2 != 0);
                }
                p.extend(mine.into_iter().map(|m| (m, id)));
                p
            }
        }
    }

    fn report(&mut self, op: OpId, by: OpId, space: u8, n: u32, before: u8, now: u8) {
        if self.reported.contains(&(op, n)) {
            return;
        }
        self.reported.push((op, n));
        let k = self.k;
        let name = if space == 0 { &k.buffers[n as usize].name } else { &k.params[n as usize].name };
        let verb = |x| ["read", "written", "updated", "written"][x as usize];
        let m = format!(
            "`{name}` is {} here and {} by an earlier phase, without a barrier between",
            verb(now),
            verb(before)
        );
        self.found.push(
            Diagnostic::error(k, k.op(op).span, "V0432", m)
                .note("the earlier phase is", Some(k.span_of(k.op(by).span).clone()))
                .help("this is a defect of the pass that places barriers"),
        );
    }
}

fn writable(k: &Kernel, p: crate::ir::ParamId) -> bool {
    match &k.param(p).kind {
        ParamKind::Tensor { access, .. } => *access != Access::In,
        ParamKind::Scalar { .. } | ParamKind::Absent => false,
    }
}
