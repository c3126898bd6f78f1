//! Inserts a barrier between two phases exactly where one reads or writes what another thread may have written or read.
//!
//! Only shared tiles and writable global tensors can conflict; register tiles are private. Collectives meet inside
//! themselves, which counts. The walk runs loops twice, so conflicts with the previous iteration are found too.

use super::liveness;
use super::place::SCRATCH;
use crate::diag::Diagnostic;
use crate::ir::effects::{self, EffectKind};
use crate::ir::{Access, Base, Block, BlockId, BufferId, Kernel, Op, OpId, OpNode, ParamId, ParamKind, SchedOp, Space};
use crate::target::Caps;
use std::collections::{BTreeMap, BTreeSet};

/// Memory that threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Tile(u32),
    Tensor(u32),
}

/// Kind of an access. Atomics commute with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Write,
    /// Written by the first thread, as block-level stores are.
    First,
    Atomic,
}

/// Accesses since the last barrier, with the op of each.
type Pending = BTreeMap<(Place, Kind), OpId>;

/// What a phase does before and after its own barrier, if it has one.
#[derive(Default)]
struct Effect {
    before: BTreeSet<(Place, Kind)>,
    meets: bool,
    after: BTreeSet<(Place, Kind)>,
}

/// See the file's head.
pub fn run(mut kernel: Kernel, _: &Caps) -> Result<Kernel, Vec<Diagnostic>> {
    let sharing = liveness::sharing(&kernel);
    let mut sync = Sync { kernel: &kernel, sharing, barriers: BTreeMap::new(), exits: vec![], scratch: None };
    // One warp needs no barrier to agree on order, but memory between its lanes still has to be made visible.
    sync.block(kernel.body, Pending::new());
    let barriers = sync.barriers;
    for block in 0..kernel.blocks.len() {
        let ops = std::mem::take(&mut kernel.blocks[block].ops);
        let mut out = Vec::with_capacity(ops.len());
        for id in ops {
            if let Some(reason) = barriers.get(&id) {
                let span = kernel.op(id).span;
                kernel.ops.push(OpNode { op: Op::BlockBarrier { reason: reason.clone() }, span });
                out.push(OpId(kernel.ops.len() as u32 - 1));
            }
            out.push(id);
        }
        kernel.blocks[block] = Block { ops: out };
    }
    Ok(kernel)
}

struct Sync<'a> {
    kernel: &'a Kernel,
    /// Tiles that share bytes: what waits for one waits for the other.
    sharing: BTreeSet<(BufferId, BufferId)>,
    /// Reason of the barrier before an op.
    barriers: BTreeMap<OpId, String>,
    /// What is pending where the innermost loop is left or continued.
    exits: Vec<Pending>,
    scratch: Option<BufferId>,
}

impl Sync<'_> {
    fn block(&mut self, block: BlockId, mut pending: Pending) -> Pending {
        for &id in &self.kernel.block(block).ops.clone() {
            pending = self.op(id, pending);
        }
        pending
    }

    fn op(&mut self, id: OpId, pending: Pending) -> Pending {
        match &self.kernel.op(id).op {
            Op::For { body, .. } | Op::Loop { body } => {
                let body = *body;
                let mut entry = pending.clone();
                let outer = std::mem::take(&mut self.exits);
                loop {
                    let before = self.barriers.len();
                    self.exits.clear();
                    let end = self.block(body, entry.clone());
                    let known = entry.len();
                    entry.extend(end);
                    for e in std::mem::take(&mut self.exits) {
                        entry.extend(e);
                    }
                    if entry.len() == known && self.barriers.len() == before {
                        break;
                    }
                }
                self.exits = outer;
                entry
            }
            Op::If { then, els, .. } => {
                let (then, els) = (*then, *els);
                let mut a = self.block(then, pending.clone());
                a.extend(self.block(els, pending));
                a
            }
            Op::Break | Op::Continue => {
                self.exits.push(pending.clone());
                pending
            }
            // Threads of a block meet there as well.
            Op::GridBarrier => Pending::new(),
            Op::Alloc { buffer } => {
                if self.kernel.buffer(*buffer).name == SCRATCH {
                    self.scratch = Some(*buffer);
                }
                pending
            }
            // What came before on the slot's memory is over: rings wait for all threads on both sides.
            Op::Sched(SchedOp::Acquire { ring, part, .. } | SchedOp::Take { ring, part, .. }) => {
                let tiles = &self.kernel.rings[ring.0 as usize].parts[*part as usize].buffers;
                let mut pending = pending;
                pending.retain(|(place, _), _| !matches!(place, Place::Tile(b) if tiles.contains(&BufferId(*b))));
                pending
            }
            op => {
                let effect = self.effect(id, op);
                self.phase(id, effect, pending)
            }
        }
    }

    fn phase(&mut self, id: OpId, effect: Effect, mut pending: Pending) -> Pending {
        if self.barriers.contains_key(&id) {
            pending.clear();
        } else if let Some(reason) = self.conflict(&effect.before, &pending, id) {
            self.barriers.insert(id, reason);
            pending.clear();
        }
        if effect.meets {
            pending.clear();
        } else {
            pending.extend(effect.before.into_iter().map(|a| (a, id)));
        }
        pending.extend(effect.after.into_iter().map(|a| (a, id)));
        pending
    }

    fn conflict(&self, now: &BTreeSet<(Place, Kind)>, pending: &Pending, id: OpId) -> Option<String> {
        for &(place, kind) in now {
            for (&(p, earlier), &by) in pending {
                let shares = match (p, place) {
                    (Place::Tile(a), Place::Tile(b)) => self.sharing.contains(&(BufferId(a), BufferId(b))),
                    (Place::Tile(_) | Place::Tensor(_), Place::Tensor(_)) | (Place::Tensor(_), Place::Tile(_)) => false,
                };
                // Of one place, reads, updates and stores of the first thread agree with their like; of two that share
                // bytes only reads do.
                let agree = kind == earlier && if shares { kind == Kind::Read } else { kind != Kind::Write };
                if p != place && !shares || agree {
                    continue;
                }
                let verb = |k| match k {
                    Kind::Read => "read",
                    Kind::Write | Kind::First => "written",
                    Kind::Atomic => "updated",
                };
                let at = |op: OpId| self.kernel.span_of(self.kernel.op(op).span).short();
                let name = |p: Place| match p {
                    Place::Tile(b) => &self.kernel.buffers[b as usize].name,
                    Place::Tensor(p) => &self.kernel.params[p as usize].name,
                };
                if shares {
                    let (new, old) = (name(place), name(p));
                    return Some(format!("{new} takes the memory of {old}: {} at {}", verb(earlier), at(by)));
                }
                let name = name(place);
                let again = if by == id { " by the previous iteration" } else { "" };
                return Some(format!("{name}: {} at {}{again}, {} next", verb(earlier), at(by), verb(kind)));
            }
        }
        None
    }

    fn tile(&self, b: BufferId) -> Option<Place> {
        (self.kernel.buffer(b).space == Space::Shared).then_some(Place::Tile(b.0))
    }

    fn tensor(&self, p: ParamId) -> Option<Place> {
        match &self.kernel.param(p).kind {
            ParamKind::Tensor { access: Access::Out | Access::InOut, .. } => Some(Place::Tensor(p.0)),
            ParamKind::Tensor { access: Access::In, .. } | ParamKind::Scalar { .. } | ParamKind::Absent => None,
        }
    }

    fn effect(&self, id: OpId, op: &Op) -> Effect {
        let k = self.kernel;
        let mut e = Effect::default();
        let meets = self.uses_scratch(id);
        // Its threads meet between its steps, so what it touches is touched before and after; without steps they do not meet.
        let steps = super::place::claims(k, op);
        let place = |x: &effects::Effect| match x.base(k) {
            Base::Buffer(b) => self.tile(b),
            Base::Param(p) => self.tensor(p),
        };
        for x in effects::effects(k, id) {
            let kind = match x.kind {
                EffectKind::Read => Kind::Read,
                EffectKind::Write if matches!(op, Op::Store { .. }) => Kind::First,
                EffectKind::Write => Kind::Write,
                EffectKind::Atomic => Kind::Atomic,
            };
            // A collective writes its result after its threads have met.
            let late = meets && !steps && kind == Kind::Write;
            let side = if late { &mut e.after } else { &mut e.before };
            side.extend(place(&x).map(|p| (p, kind)));
        }
        for b in effects::bodies(op) {
            effects::walk(k, b, &mut |inner, _| {
                for x in effects::effects(k, inner) {
                    let kind = match x.kind {
                        EffectKind::Read => Kind::Read,
                        EffectKind::Write => Kind::Write,
                        EffectKind::Atomic => Kind::Atomic,
                    };
                    e.before.extend(place(&x).map(|p| (p, kind)));
                }
            });
        }
        if let (true, Some(s)) = (meets, self.scratch.and_then(|b| self.tile(b))) {
            e.before.insert((s, Kind::Write));
            e.meets = !steps;
            e.after.insert((s, Kind::Read));
        }
        e
    }

    /// True if `place` gave this op scratch: it is the op right after the `Alloc`.
    fn uses_scratch(&self, id: OpId) -> bool {
        self.kernel.blocks.iter().any(|b| {
            b.ops.windows(2).any(|w| {
                w[1] == id
                    && matches!(&self.kernel.op(w[0]).op, Op::Alloc { buffer } if self.kernel.buffer(*buffer).name == SCRATCH)
            })
        })
    }
}
