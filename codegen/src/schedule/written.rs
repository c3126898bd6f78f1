//! Roles written in a kernel, placed on a target: what `apply` does for a schedule, for programs that are there already.
//!
//! Each program is spread over its role's threads by the passes that spread a whole block, as if it were a kernel of its
//! own; tiles that products read get the matrix unit's layout, and copies that fill slots with them go through the copy
//! engine (`filled`). Accumulators that are reduced in an order the unit's four lanes of a row cannot follow move through
//! shared memory.

use super::parts::{ROW_BYTES, Reason};
use super::{filled, memory};
use crate::analysis::Ranges;
use crate::ir::effects::walk;
use crate::ir::{
    Base, Block, BlockId, BufferId, IxVar, IxVarId, IxVarKind, Kernel, MemoryLayout, Op, OpId, OpNode, RoleId, SchedOp,
    Space, Stage, Value, ValueId, View, ViewId, build::row_major,
};
use crate::pass::{distribute, expand, numerics, sync};
use crate::target::Caps;
use crate::valid::threads_fill;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of shared memory left to barriers.
const BARRIER_BYTES: usize = 1024;

/// Places a kernel with roles.
///
/// # Errors
/// What of it the target or this form cannot have.
pub fn written(kernel: &Kernel, caps: &Caps) -> Result<Kernel, Reason> {
    if !caps.warp_group_matrix {
        return Err("the target has no matrix unit for warp groups".into());
    }
    let first = |d: Vec<crate::diag::Diagnostic>| d.first().map_or_else(String::new, |d| d.message.clone());
    let mut k = kernel.clone();
    let (at, programs) = roles_of(&k)?;
    let operands = operands(&mut k, &programs)?;
    // Barriers are placed before the other tiles are; these must not seem to share memory until then.
    memory::place(&mut k, &operands);
    let (ranges, tiles) = (Ranges::new(&k), operands.iter().copied().collect());
    for &(role, body) in &programs {
        filled::run(&mut k, &ranges, role, body, &tiles);
    }
    k = expand::run(k, caps).map_err(first)?;
    for &(role, body) in &programs {
        if k.roles[role.0 as usize].one_thread || k.roles[role.0 as usize].instances > 1 {
            return Err("a role with instances, or of one thread".into());
        }
        split_reduced(&mut k, role, body)?;
    }
    let all = k.warps;
    let body = k.body;
    let before: Vec<OpId> = k.block(body).ops[..at].to_vec();
    k.blocks.push(Block { ops: before.clone() });
    let front = BlockId(k.blocks.len() as u32 - 1);
    let parts: Vec<(BlockId, usize)> =
        std::iter::once((front, all)).chain(programs.iter().map(|&(r, b)| (b, k.roles[r.0 as usize].warps))).collect();
    for (n, &(block, warps)) in parts.iter().enumerate() {
        let own = allocated(&k, block);
        let tiles = k.buffers.clone();
        (k.body, k.warps) = (block, warps);
        k = distribute::run(k, caps).map_err(first)?;
        for (b, old) in tiles.into_iter().enumerate() {
            if !own.contains(&BufferId(b as u32)) {
                k.buffers[b] = old;
            }
        }
        collectives(&k, block, warps)?;
        k = sync::run(k, caps).map_err(first)?;
        if n > 0 {
            barriers_of_roles(&mut k, block);
            light_publish(&mut k, block, &operands);
        }
    }
    (k.body, k.warps) = (body, all);
    let rest: Vec<OpId> = k.block(body).ops[at..].to_vec();
    let mut ops = k.block(front).ops.clone();
    ops.extend(rest);
    k.blocks[body.0 as usize] = Block { ops };
    k.blocks[front.0 as usize] = Block::default();
    place(&mut k, &operands, caps)?;
    k.stage = Stage::Scheduled;
    Ok(k)
}

fn roles_of(k: &Kernel) -> Result<(usize, Vec<(RoleId, BlockId)>), Reason> {
    for (n, &id) in k.block(k.body).ops.iter().enumerate() {
        if let Op::Sched(SchedOp::Roles { programs }) = &k.op(id).op {
            return Ok((n, programs.clone()));
        }
    }
    Err("the kernel starts no roles".into())
}

/// Tiles that a block allocates, at any depth.
fn allocated(k: &Kernel, block: BlockId) -> BTreeSet<BufferId> {
    let mut all = BTreeSet::new();
    walk(k, block, &mut |_, op| {
        if let Op::Alloc { buffer } = op {
            all.insert(*buffer);
        }
    });
    all
}

/// Gives products whose accumulator is also reduced an accumulator of their own, which is copied to shared memory.
fn split_reduced(k: &mut Kernel, role: RoleId, body: BlockId) -> Result<(), Reason> {
    let mut reduced = BTreeSet::new();
    let held = numerics::accumulators(k);
    walk(k, body, &mut |_, op| {
        if let Op::Reduce { src, .. } | Op::Scan { src, .. } = op
            && !distribute::in_fragment(k, &held, op)
            && let Base::Buffer(b) = k.view(*src).base
        {
            reduced.insert(b);
        }
    });
    let mut twins: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    let mut products = vec![];
    walk(k, body, &mut |id, op| {
        if let Op::Sched(SchedOp::Wgmma { acc, set, hold, .. }) = op
            && reduced.contains(acc)
        {
            products.push((id, *acc, *set, *hold));
        }
    });
    for &(_, acc, set, hold) in &products {
        if !set || hold {
            return Err(format!("`{}` is reduced and accumulated, or goes on", k.buffer(acc).name));
        }
        if let std::collections::btree_map::Entry::Vacant(twin) = twins.entry(acc) {
            let mut own = k.buffer(acc).clone();
            own.name = format!("{}_product", own.name);
            own.role = Some(role);
            k.buffers.push(own);
            twin.insert(BufferId(k.buffers.len() as u32 - 1));
            k.buffers[acc.0 as usize].space = Space::Shared;
        }
    }
    for n in 0..k.blocks.len() {
        let old = k.blocks[n].ops.clone();
        let mut ops = vec![];
        for id in old {
            ops.push(id);
            if let Op::Alloc { buffer } = k.op(id).op
                && let Some(&twin) = twins.get(&buffer)
            {
                let span = k.op(id).span;
                ops.push(push(k, Op::Alloc { buffer: twin }, span));
            }
            if let Some(&(_, acc, ..)) = products.iter().find(|p| p.0 == id) {
                let twin = twins[&acc];
                if let Op::Sched(SchedOp::Wgmma { acc, .. }) = &mut k.ops[id.0 as usize].op {
                    *acc = twin;
                }
                ops.push(copy_tile(k, id, twin, acc));
            }
        }
        k.blocks[n].ops = ops;
    }
    Ok(())
}

fn push(k: &mut Kernel, op: Op, span: crate::ir::SpanId) -> OpId {
    k.ops.push(OpNode { op, span });
    OpId(k.ops.len() as u32 - 1)
}

fn whole_view(k: &mut Kernel, tile: BufferId) -> ViewId {
    let b = k.buffer(tile).clone();
    let view = View {
        base: Base::Buffer(tile),
        dtype: b.dtype,
        extents: b.extents.iter().map(|&e| k.ix_const_id(e as i64)).collect(),
        strides: row_major(&b.extents).into_iter().map(|e| k.ix_const_id(e as i64)).collect(),
        offset: k.ix_const_id(0),
        guards: vec![],
        gather: None,
        span: b.span,
    };
    k.views.push(view);
    ViewId(k.views.len() as u32 - 1)
}

/// A loop that copies one tile to another of the same shape.
fn copy_tile(k: &mut Kernel, like: OpId, from: BufferId, to: BufferId) -> OpId {
    let span = k.op(like).span;
    let (src, dst) = (whole_view(k, from), whole_view(k, to));
    let extents = k.buffer(from).extents.clone();
    let mut vars = vec![];
    for (&e, name) in extents.iter().zip(["i", "j", "k", "l"]) {
        let (lo, hi) = (k.ix_const_id(0), k.ix_const_id(e as i64 - 1));
        k.ix_vars.push(IxVar { name: name.into(), kind: IxVarKind::Element, lo: Some(lo), hi: Some(hi), span });
        vars.push(IxVarId(k.ix_vars.len() as u32 - 1));
    }
    let index: Vec<_> = vars.iter().map(|&v| k.intern(crate::ir::IxExpr::Var(v))).collect();
    let dtype = k.buffer(from).dtype;
    k.values.push(Value { dtype, def: None, span });
    let result = ValueId(k.values.len() as u32 - 1);
    let load = push(k, Op::Load { result, view: src, index: index.clone() }, span);
    k.values[result.0 as usize].def = Some(load);
    let store = push(k, Op::Store { view: dst, index, value: result, checked: false }, span);
    k.blocks.push(Block { ops: vec![load, store] });
    let body = BlockId(k.blocks.len() as u32 - 1);
    push(k, Op::Parallel { vars, extents, body, distribution: None }, span)
}

/// Tiles that products read get the layout of the matrix unit.
fn operands(k: &mut Kernel, programs: &[(RoleId, BlockId)]) -> Result<Vec<BufferId>, Reason> {
    let mut found = BTreeSet::new();
    for &(_, body) in programs {
        walk(k, body, &mut |_, op| {
            if let Op::Sched(SchedOp::Wgmma { a, b, .. }) = op {
                for v in [*a, *b] {
                    if let Base::Buffer(t) = k.view(v).base {
                        found.insert(t);
                    }
                }
            }
        });
    }
    for &t in &found {
        let b = &mut k.buffers[t.0 as usize];
        if b.space != Space::Shared {
            return Err(format!("the operand `{}` is in registers", b.name));
        }
        if b.extents.len() == 2 {
            b.extents.insert(0, 1);
        }
        let [_, rows, columns] = b.extents[..] else {
            return Err(format!("the operand `{}` has not two axes", b.name));
        };
        if !(columns * b.dtype.bits() / 8).is_multiple_of(ROW_BYTES) || rows % 8 != 0 {
            return Err(format!(
                "`{}`: {rows} rows of {} bytes, the matrix unit takes multiples of 8 rows and of 128 bytes",
                b.name,
                columns * b.dtype.bits() / 8
            ));
        }
        b.memory = Some(memory::operand_layout(b));
    }
    Ok(found.into_iter().collect())
}

/// Refuses collectives that need all threads of a block.
fn collectives(k: &Kernel, block: BlockId, warps: usize) -> Result<(), Reason> {
    let mut wrong = None;
    walk(k, block, &mut |_, op| {
        if let Op::Reduce { op: what, src, axis, order, .. } = op {
            let extents = k.const_extents(*src).unwrap_or_default();
            let lanes = distribute::order_of(*order, *what, k.view(*src).dtype, &[extents[*axis]], warps).lanes;
            if lanes > 32 {
                wrong = Some(format!("a reduction over {} elements takes several warps", extents[*axis]));
            }
        } else if matches!(op, Op::ReduceRegion { .. } | Op::Scan { .. } | Op::FindFirst { .. } | Op::Claim { .. }) {
            wrong = Some(format!("`{}` needs all threads of a block", op.name()));
        }
    });
    wrong.map_or(Ok(()), Err)
}

/// Barriers that were placed in a role's program are those of its threads.
fn barriers_of_roles(k: &mut Kernel, block: BlockId) {
    let mut all = vec![];
    walk(k, block, &mut |id, op| {
        if let Op::BlockBarrier { reason } = op {
            all.push((id, reason.clone()));
        }
    });
    for (id, reason) in all {
        k.ops[id.0 as usize].op = Op::Sched(SchedOp::RoleBarrier { reason });
    }
}

/// Takes what publishing a slot does not need: each warp arrives for what it wrote, so that the threads need not meet, and
/// only engines need a fence. Where one thread arrives for all of them, both stay.
fn light_publish(k: &mut Kernel, block: BlockId, operands: &[BufferId]) {
    let mut spare = BTreeSet::new();
    walk(k, block, &mut |_, op| {
        for inner in crate::ir::effects::bodies(op).into_iter().chain([block]) {
            let ops = &k.block(inner).ops;
            for w in ops.windows(3) {
                let [fence, meet, publish] = [w[0], w[1], w[2]].map(|id| &k.op(id).op);
                let Op::Sched(SchedOp::Publish { ring, part }) = publish else { continue };
                let tiles = &k.rings[ring.0 as usize].parts[*part as usize].buffers;
                let copied = |o: &OpNode| matches!(&o.op, Op::Sched(SchedOp::TmaLoad { ring: r, part: p, .. }) if (r, p) == (ring, part));
                let (copied, threads) = (k.ops.iter().any(copied), threads_fill(k, *ring, *part));
                if copied && threads {
                    continue;
                }
                if matches!(meet, Op::Sched(SchedOp::RoleBarrier { .. })) {
                    spare.insert(w[1]);
                }
                let read = threads && tiles.iter().any(|t| operands.contains(t));
                if !read && matches!(fence, Op::Sched(SchedOp::AsyncFence { .. })) {
                    spare.insert(w[0]);
                }
            }
        }
    });
    for b in &mut k.blocks {
        b.ops.retain(|id| !spare.contains(id));
    }
}

fn place(k: &mut Kernel, operands: &[BufferId], caps: &Caps) -> Result<(), Reason> {
    let mut order = operands.to_vec();
    for b in 0..k.buffers.len() {
        let id = BufferId(b as u32);
        let t = &mut k.buffers[b];
        if t.space == Space::Shared && !operands.contains(&id) {
            let strides = row_major(&t.extents);
            t.memory = Some(MemoryLayout { strides, swizzle: None, panel: None, offset_bytes: 0 });
            order.push(id);
        }
    }
    let used = memory::place(k, &order);
    if used + BARRIER_BYTES > caps.shared_bytes {
        return Err(format!(
            "{used} bytes of tiles and {BARRIER_BYTES} for barriers do not fit {} bytes of shared memory",
            caps.shared_bytes
        ));
    }
    Ok(())
}
