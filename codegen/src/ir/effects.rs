//! What each op touches: memory it reads and writes, and the ids it uses and defines.
//!
//! One exhaustive match each, so that an op cannot be added without saying what it does. Passes and `valid` take all
//! their knowledge of memory from here; nothing here decides whether two accesses conflict.

use super::{BlockId, BufferId, IfResult, IxId, IxVarId, Kernel, Op, OpId, SchedOp, ValueId, ViewId};

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EffectKind {
    /// Content is read.
    Read,
    /// Content is replaced.
    Write,
    /// Content is read and replaced as one indivisible step.
    Atomic,
}

/// The part of memory an effect touches.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// One element of a view; nothing if the index is outside.
    Element {
        /// View.
        view: ViewId,
        /// One index an axis.
        index: Vec<IxId>,
    },
    /// A box of a view, less what lies outside the view.
    Region {
        /// View.
        view: ViewId,
        /// First element along each axis.
        start: Vec<IxId>,
        /// Elements along each axis.
        extents: Vec<usize>,
    },
    /// All elements of a view.
    View(ViewId),
    /// All of a buffer (a `Var`, or a reduction's destination).
    Buffer(BufferId),
}

/// When an effect is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// When the op ends.
    Sync,
    /// Later; a wait says when.
    Async,
}

/// One effect of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// The op that has it.
    pub op: OpId,
    /// What is done.
    pub kind: EffectKind,
    /// To which memory.
    pub place: Place,
    /// When it is complete.
    pub completion: Completion,
}

impl Effect {
    /// The view that is touched, unless a whole buffer is.
    pub fn view(&self) -> Option<ViewId> {
        match &self.place {
            Place::Element { view, .. } | Place::Region { view, .. } | Place::View(view) => Some(*view),
            Place::Buffer(_) => None,
        }
    }
    /// Parameter or buffer that is touched.
    pub fn base(&self, kernel: &Kernel) -> super::Base {
        match &self.place {
            Place::Element { view, .. } | Place::Region { view, .. } | Place::View(view) => kernel.view(*view).base,
            Place::Buffer(b) => super::Base::Buffer(*b),
        }
    }
}

/// The view a gathered view looks its rows up in.
pub fn table_of(kernel: &Kernel, view: ViewId) -> Option<ViewId> {
    kernel.view(view).gather.map(|g| g.table())
}

/// The effects of an op itself, without those of the ops in its bodies.
pub fn effects(kernel: &Kernel, id: OpId) -> Vec<Effect> {
    let make = |kind, place| Effect { op: id, kind, place, completion: Completion::Sync };
    let read = |place| make(EffectKind::Read, place);
    let write = |place| make(EffectKind::Write, place);
    // A gathered view reads its table whenever an element of it is touched.
    let with_tables = |views: &[ViewId], own: Vec<Effect>| -> Vec<Effect> {
        let mut all: Vec<Effect> =
            views.iter().filter_map(|&v| table_of(kernel, v)).map(|t| read(Place::View(t))).collect();
        all.extend(own);
        all
    };
    match &kernel.op(id).op {
        Op::VarNew { var, .. } | Op::VarSet { var, .. } | Op::IxVarNew { var, .. } | Op::IxVarSet { var, .. } => {
            vec![write(Place::Buffer(*var))]
        }
        Op::VarGet { var, .. } | Op::IxVarGet { var, .. } => vec![read(Place::Buffer(*var))],
        Op::Load { view, index, .. } | Op::LoadOr { view, index, .. } => {
            with_tables(&[*view], vec![read(Place::Element { view: *view, index: index.clone() })])
        }
        Op::Store { view, index, .. } => {
            with_tables(&[*view], vec![write(Place::Element { view: *view, index: index.clone() })])
        }
        Op::Atomic { view, index, .. } => {
            with_tables(&[*view], vec![make(EffectKind::Atomic, Place::Element { view: *view, index: index.clone() })])
        }
        Op::Claim { var, .. } => vec![read(Place::Buffer(*var)), write(Place::Buffer(*var))],
        Op::Fill { dst, .. } => with_tables(&[*dst], vec![write(Place::View(*dst))]),
        Op::Copy { src, dst, extents } => {
            let place =
                |r: &super::Region| Place::Region { view: r.view, start: r.start.clone(), extents: extents.clone() };
            with_tables(&[src.view, dst.view], vec![read(place(src)), write(place(dst))])
        }
        Op::Gemm { a, b, acc, set, .. } => {
            let mut all = vec![read(Place::View(*a)), read(Place::View(*b))];
            if !set {
                all.push(read(Place::Buffer(*acc)));
            }
            all.push(write(Place::Buffer(*acc)));
            all
        }
        Op::Reduce { src, dst, .. } | Op::Scan { src, dst, .. } => {
            vec![read(Place::View(*src)), write(Place::Buffer(*dst))]
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
        | Op::Alloc { .. }
        | Op::Parallel { .. }
        | Op::Spread { .. }
        | Op::ReduceRegion { .. }
        | Op::FindFirst { .. }
        | Op::For { .. }
        | Op::Loop { .. }
        | Op::Break
        | Op::Continue
        | Op::If { .. }
        | Op::Check { .. }
        | Op::GridBarrier
        | Op::BlockBarrier { .. } => vec![],
        Op::Sched(op) => sched_effects(id, op),
    }
}

/// The effects of an op of roles and rings. Copies of the engine complete later; what a ring's ops do to visibility is
/// not an effect on memory.
fn sched_effects(id: OpId, op: &SchedOp) -> Vec<Effect> {
    let make = |kind, place, completion| Effect { op: id, kind, place, completion };
    let region = |r: &super::Region, extents: &[usize]| Place::Region {
        view: r.view,
        start: r.start.clone(),
        extents: extents.to_vec(),
    };
    match op {
        SchedOp::TmaLoad { src, dst, extents, .. } | SchedOp::TmaStore { src, dst, extents, .. } => vec![
            make(EffectKind::Read, region(src, extents), Completion::Async),
            make(EffectKind::Write, region(dst, extents), Completion::Async),
        ],
        SchedOp::Wgmma { a, b, acc, set, hold, .. } => {
            let when = if *hold { Completion::Async } else { Completion::Sync };
            let mut all =
                vec![make(EffectKind::Read, Place::View(*a), when), make(EffectKind::Read, Place::View(*b), when)];
            if !set {
                all.push(make(EffectKind::Read, Place::Buffer(*acc), when));
            }
            all.push(make(EffectKind::Write, Place::Buffer(*acc), when));
            all
        }
        SchedOp::Combine { acc, inbox, .. } => vec![
            make(EffectKind::Read, Place::Buffer(*acc), Completion::Sync),
            make(EffectKind::Write, Place::Buffer(*inbox), Completion::Sync),
            make(EffectKind::Read, Place::Buffer(*inbox), Completion::Sync),
            make(EffectKind::Write, Place::Buffer(*acc), Completion::Sync),
        ],
        SchedOp::Tiles { rows, .. } => {
            rows.iter().map(|r| make(EffectKind::Read, Place::View(r.counts), Completion::Sync)).collect()
        }
        SchedOp::Roles { .. }
        | SchedOp::Acquire { .. }
        | SchedOp::Publish { .. }
        | SchedOp::Take { .. }
        | SchedOp::Release { .. }
        | SchedOp::Advance { .. }
        | SchedOp::TmaStoreWait { .. }
        | SchedOp::WgmmaWait { .. }
        | SchedOp::RoleBarrier { .. }
        | SchedOp::AsyncFence { .. }
        | SchedOp::ClusterBarrier { .. }
        | SchedOp::GridWait
        | SchedOp::GridAllow => vec![],
    }
}

/// The effects of an op and of everything in its bodies, in program order.
pub fn deep_effects(kernel: &Kernel, id: OpId) -> Vec<Effect> {
    let mut out = effects(kernel, id);
    for block in bodies(&kernel.op(id).op) {
        walk(kernel, block, &mut |inner, _| out.extend(effects(kernel, inner)));
    }
    out
}

/// Calls `f` for each op of a block and of the blocks nested in it, in program order: the one way to visit them all.
pub fn walk<'k>(kernel: &'k Kernel, block: BlockId, f: &mut dyn FnMut(OpId, &'k Op)) {
    for &id in &kernel.block(block).ops {
        let op = &kernel.op(id).op;
        f(id, op);
        for b in bodies(op) {
            walk(kernel, b, f);
        }
    }
}

/// Blocks directly inside an op, in order.
pub fn bodies(op: &Op) -> Vec<BlockId> {
    uses(op).blocks
}

/// Every id an op names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uses {
    /// Values read before the op's bodies run.
    pub values: Vec<ValueId>,
    /// Values read at the end of a body, with that body.
    pub yields: Vec<(BlockId, ValueId)>,
    /// Index expressions evaluated before the op's bodies run.
    pub indices: Vec<IxId>,
    /// Index expressions evaluated at the end of a body.
    pub index_yields: Vec<(BlockId, IxId)>,
    /// Views named directly; the tables of gathered views belong to those views.
    pub views: Vec<ViewId>,
    /// Buffers named directly.
    pub buffers: Vec<BufferId>,
    /// Bodies in order.
    pub blocks: Vec<BlockId>,
    /// Values defined after the op.
    pub defines: Vec<ValueId>,
    /// Index variables defined after the op.
    pub defines_ix: Vec<IxVarId>,
    /// Index variables that exist in the bodies only.
    pub body_ix: Vec<IxVarId>,
}

/// Every id an op names.
pub fn uses(op: &Op) -> Uses {
    let mut u = Uses::default();
    match op {
        Op::Const { result, .. } => u.defines.push(*result),
        Op::IndexValue { result, index } => {
            u.indices.push(*index);
            u.defines.push(*result);
        }
        Op::Unary { result, x, .. } | Op::Cast { result, x } | Op::Bits { result, x } => {
            u.values.push(*x);
            u.defines.push(*result);
        }
        Op::Binary { result, a, b, .. } | Op::Compare { result, a, b, .. } => {
            u.values.extend([*a, *b]);
            u.defines.push(*result);
        }
        Op::Fma { result, a, b, c } | Op::Select { result, cond: a, a: b, b: c } => {
            u.values.extend([*a, *b, *c]);
            u.defines.push(*result);
        }
        Op::CompareIndex { result, a, b, .. } => {
            u.indices.extend([*a, *b]);
            u.defines.push(*result);
        }
        Op::ClampIndex { var, value, lo, hi } => {
            u.values.push(*value);
            u.indices.extend([*lo, *hi]);
            u.defines_ix.push(*var);
        }
        Op::VarNew { var, init } => {
            u.values.push(*init);
            u.buffers.push(*var);
        }
        Op::VarGet { result, var } => {
            u.buffers.push(*var);
            u.defines.push(*result);
        }
        Op::VarSet { var, value } => {
            u.values.push(*value);
            u.buffers.push(*var);
        }
        Op::IxVarNew { var, init } => {
            u.indices.push(*init);
            u.buffers.push(*var);
        }
        Op::IxVarGet { result, var } => {
            u.buffers.push(*var);
            u.defines_ix.push(*result);
        }
        Op::IxVarSet { var, index } => {
            u.indices.push(*index);
            u.buffers.push(*var);
        }
        Op::Load { result, view, index } => {
            u.views.push(*view);
            u.indices.extend(index);
            u.defines.push(*result);
        }
        Op::LoadOr { result, view, index, other } => {
            u.views.push(*view);
            u.indices.extend(index);
            u.values.push(*other);
            u.defines.push(*result);
        }
        Op::Store { view, index, value, .. } => {
            u.views.push(*view);
            u.indices.extend(index);
            u.values.push(*value);
        }
        Op::Atomic { result, view, index, value, .. } => {
            u.views.push(*view);
            u.indices.extend(index);
            u.values.push(*value);
            u.defines.extend(*result);
        }
        Op::Claim { result, var, cond } => {
            u.values.push(*cond);
            u.buffers.push(*var);
            u.defines.push(*result);
        }
        Op::Alloc { buffer } => u.buffers.push(*buffer),
        Op::Fill { dst, value } => {
            u.views.push(*dst);
            u.values.push(*value);
        }
        Op::Copy { src, dst, .. } => {
            u.views.extend([src.view, dst.view]);
            u.indices.extend(src.start.iter().chain(&dst.start));
        }
        Op::Parallel { vars, body, .. } => {
            u.body_ix.extend(vars);
            u.blocks.push(*body);
        }
        Op::Spread { var, lo, hi, body } | Op::For { var, lo, hi, body, .. } => {
            u.indices.extend([*lo, *hi]);
            u.body_ix.push(*var);
            u.blocks.push(*body);
        }
        Op::Reduce { src, dst, .. } => {
            u.views.push(*src);
            u.buffers.push(*dst);
        }
        Op::ReduceRegion { vars, body, value, result, .. } => {
            u.body_ix.extend(vars);
            u.blocks.push(*body);
            u.yields.push((*body, *value));
            u.defines.push(*result);
        }
        Op::Scan { src, dst, total, .. } => {
            u.views.push(*src);
            u.buffers.push(*dst);
            u.defines.extend(*total);
        }
        Op::FindFirst { var, body, cond, result, .. } => {
            u.body_ix.push(*var);
            u.blocks.push(*body);
            u.yields.push((*body, *cond));
            u.defines_ix.push(*result);
        }
        Op::Gemm { a, b, acc, set: _, scales } => {
            u.views.extend([*a, *b]);
            u.buffers.push(*acc);
            for s in scales.iter().flatten() {
                u.body_ix.push(s.var);
                u.blocks.push(s.body);
                u.yields.push((s.body, s.value));
            }
        }
        Op::Loop { body } => u.blocks.push(*body),
        Op::If { cond, then, els, results } => {
            u.values.push(*cond);
            u.blocks.extend([*then, *els]);
            for r in results {
                match *r {
                    IfResult::Value { result, then: a, els: b } => {
                        u.yields.extend([(*then, a), (*els, b)]);
                        u.defines.push(result);
                    }
                    IfResult::Index { result, then: a, els: b } => {
                        u.index_yields.extend([(*then, a), (*els, b)]);
                        u.defines_ix.push(result);
                    }
                }
            }
        }
        Op::Sched(op) => sched_uses(op, &mut u),
        Op::Check { cond, .. } => u.values.push(*cond),
        Op::Break | Op::Continue | Op::GridBarrier | Op::BlockBarrier { .. } => {}
    }
    u
}

fn sched_uses(op: &SchedOp, u: &mut Uses) {
    match op {
        SchedOp::Roles { programs } => u.blocks.extend(programs.iter().map(|p| p.1)),
        SchedOp::Tiles { vars, rows, body } => {
            u.views.extend(rows.iter().map(|r| r.counts));
            u.body_ix.extend(vars);
            u.blocks.push(*body);
        }
        SchedOp::Acquire { slot, .. } | SchedOp::Take { slot, .. } => u.defines_ix.push(*slot),
        SchedOp::TmaLoad { at, src, dst, .. } | SchedOp::TmaStore { at, src, dst, .. } => {
            u.views.extend([src.view, dst.view]);
            u.indices.extend(at.iter().chain(&src.start).chain(&dst.start));
        }
        SchedOp::Wgmma { a, b, acc, set: _, scales, release: _, hold: _ } => {
            u.views.extend([*a, *b]);
            u.buffers.push(*acc);
            for s in scales.iter().flatten() {
                u.body_ix.push(s.var);
                u.blocks.push(s.body);
                u.yields.push((s.body, s.value));
            }
        }
        SchedOp::Combine { acc, inbox, .. } => u.buffers.extend([*acc, *inbox]),
        SchedOp::Publish { .. }
        | SchedOp::Release { .. }
        | SchedOp::Advance { .. }
        | SchedOp::TmaStoreWait { .. }
        | SchedOp::WgmmaWait { .. }
        | SchedOp::RoleBarrier { .. }
        | SchedOp::AsyncFence { .. }
        | SchedOp::ClusterBarrier { .. }
        | SchedOp::GridWait
        | SchedOp::GridAllow => {}
    }
}

/// The variable in which the body of a `Spread` counts, if it has a `Claim`.
pub fn counter(kernel: &Kernel, body: BlockId) -> Option<BufferId> {
    kernel
        .block(body)
        .ops
        .iter()
        .find_map(|&o| if let Op::Claim { var, .. } = kernel.op(o).op { Some(var) } else { None })
}
