//! Plans shared memory: scratch of collectives, row padding against bank conflicts, offsets, and the capacity check.
//!
//! Every tile has its own bytes for the whole kernel, unless that does not fit: then tiles that are never needed at the same
//! time share memory, which costs barriers. Scratch is an `Alloc` of a tile named `partials` right before the
//! op that uses it.

use super::access::{Lanes, inner_axis};
use super::distribute::{element_access, order_of};
use super::liveness;
use super::matrix::{element_bytes, operands, pitch};
use super::pipeline::{Ahead, ahead, version_bytes};
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::ir::effects::{self, walk};
use crate::ir::{Base, Block, Buffer, BufferId, DType, Kernel, MemoryLayout, Op, OpId, OpNode, Space, SpanId};
use crate::target::Caps;
use std::collections::{BTreeSet, HashSet};

/// Name of scratch tiles; no user tile has it before a collective.
pub const SCRATCH: &str = "partials";

/// See the file's head.
pub fn run(mut kernel: Kernel, caps: &Caps) -> Result<Kernel, Vec<Diagnostic>> {
    add_scratch(&mut kernel);
    let operands = operands(&kernel);
    let mut padded = transposed(&kernel);
    padded.extend(operands.iter().copied().filter(|&b| {
        let t = kernel.buffer(b);
        t.space == Space::Shared && t.extents.len() >= 2 && paddable(&kernel, b) && !collective(&kernel, b)
    }));
    let mut sizes = vec![];
    for i in 0..kernel.buffers.len() {
        let b = &kernel.buffers[i];
        if b.space != Space::Shared {
            continue;
        }
        let mut strides = crate::ir::build::row_major(&b.extents);
        let rank = b.extents.len();
        let mut elements: usize = b.extents.iter().product();
        if padded.contains(&BufferId(i as u32)) {
            // One 4-byte word more a row: a column then walks through all banks. Rows of operands are read 16 bytes at
            // a time, eight rows at once.
            let row = b.extents[rank - 1];
            let operand = operands.contains(&BufferId(i as u32));
            let pitch = if operand { pitch(b.dtype, row) } else { row + 32 / b.dtype.bits().max(1) };
            strides.iter_mut().take(rank - 1).for_each(|s| *s = *s / row * pitch);
            elements = elements / row * pitch;
        }
        let bytes = elements * element_bytes(b.dtype);
        kernel.buffers[i].memory = Some(MemoryLayout { strides, swizzle: None, panel: None, offset_bytes: 0 });
        sizes.push((i, bytes));
    }
    let mut pipelines = pipelines(&mut kernel);
    let (used, table) = loop {
        let mut used = 0usize;
        let mut table = vec![];
        for &(i, bytes) in &sizes {
            let versions = pipelines.iter().find(|p| p.1.tiles.contains(&BufferId(i as u32))).map_or(1, |p| p.2);
            let bytes = if versions > 1 { versions * version_bytes(&kernel.buffers[i]) } else { bytes };
            let offset_bytes = used.next_multiple_of(16);
            used = offset_bytes + bytes;
            table.push((i, bytes));
            if let Some(m) = &mut kernel.buffers[i].memory {
                m.offset_bytes = offset_bytes;
            }
        }
        if used > caps.shared_bytes {
            let sizes: Vec<_> = table.iter().map(|&(i, bytes)| (BufferId(i as u32), bytes)).collect();
            let tiles = pipelines.iter().flat_map(|p| p.1.tiles.iter().copied()).collect();
            let (at, shared) = liveness::offsets(&liveness::needed(&kernel, &tiles), &sizes);
            if shared <= caps.shared_bytes {
                for (b, offset_bytes) in at {
                    if let Some(m) = &mut kernel.buffers[b.0 as usize].memory {
                        m.offset_bytes = offset_bytes;
                    }
                }
                break (shared, table);
            }
        }
        // Fewer stages are slower, but the kernel runs.
        match pipelines.iter_mut().filter(|p| p.2 > 1).max_by_key(|p| p.2) {
            Some(p) if used > caps.shared_bytes => p.2 -= 1,
            Some(_) | None => break (used, table),
        }
    };
    for (id, _, count) in &pipelines {
        if let Op::For { stages, .. } = &mut kernel.ops[id.0 as usize].op {
            *stages = *count;
        }
    }
    kernel.shared_bytes = used;
    if used > caps.shared_bytes {
        return Err(vec![too_large(&kernel, caps, &table)]);
    }
    Ok(kernel)
}

/// Loops with stages, what runs ahead in them, and how many stages they get. A loop in which nothing can run ahead loses
/// its stages.
fn pipelines(k: &mut Kernel) -> Vec<(OpId, Ahead, usize)> {
    let mut found = vec![];
    for i in 0..k.ops.len() {
        let Op::For { body, stages, .. } = &k.ops[i].op else { continue };
        if *stages < 2 {
            continue;
        }
        match ahead(k, *body) {
            Some(a) => found.push((OpId(i as u32), a, *stages)),
            None => {
                if let Op::For { stages, .. } = &mut k.ops[i].op {
                    *stages = 1;
                }
            }
        }
    }
    found
}

fn too_large(kernel: &Kernel, caps: &Caps, table: &[(usize, usize)]) -> Diagnostic {
    let message = format!("the tiles need {} bytes of shared memory", kernel.shared_bytes);
    let mut rows: Vec<_> = table.to_vec();
    rows.sort_by_key(|&(i, bytes)| (std::cmp::Reverse(bytes), i));
    let largest = rows.first().map_or(kernel.span, |&(i, _)| kernel.buffers[i].span);
    let mut d = Diagnostic::error(kernel, largest, "C0201", message)
        .label(format!("the target has {} bytes for a block", caps.shared_bytes));
    for (i, bytes) in rows {
        let b = &kernel.buffers[i];
        let shape: Vec<_> = b.extents.iter().map(ToString::to_string).collect();
        let text = format!("{bytes:>8} bytes  {} {}[{}]", b.name, b.dtype, shape.join(", "));
        d = d.note(text, Some(kernel.span_of(b.span).clone()));
    }
    d.help("make tiles smaller, or let their uses agree so that they stay in registers")
}

/// Tiles that some loop walks along another axis than their last: consecutive threads would hit few banks.
fn transposed(k: &Kernel) -> BTreeSet<BufferId> {
    let ranges = Ranges::new(k);
    let mut found = BTreeSet::new();
    walk(k, k.body, &mut |_, op| {
        let Op::Parallel { vars, extents, body, .. } = op else { return };
        if inner_axis(extents).is_none() {
            return;
        }
        let lanes = Lanes::new(k, &ranges, vars, extents, *body, 1);
        walk(k, *body, &mut |_, op| {
            let Some((view, index)) = element_access(op) else { return };
            let v = k.view(view);
            let Base::Buffer(b) = v.base else { return };
            let t = k.buffer(b);
            if t.space != Space::Shared || t.extents.len() < 2 {
                return;
            }
            let row = t.extents[t.extents.len() - 1] as i64;
            let column = index.iter().zip(&v.strides).any(|(&i, &s)| {
                lanes.step(i).is_some_and(|d| d != 0) && k.ix_const(s).is_some_and(|c| c % row == 0 && row > 1)
            });
            if column {
                found.insert(b);
            }
        });
    });
    // Padding changes strides, so every view must be rows and columns of the tile as it is declared.
    let plain: HashSet<BufferId> = (0..k.buffers.len() as u32).map(BufferId).filter(|&b| paddable(k, b)).collect();
    found.retain(|b| plain.contains(b) && 32 % k.buffer(*b).dtype.bits() == 0 && !collective(k, *b));
    found
}

fn paddable(k: &Kernel, b: BufferId) -> bool {
    let row = k.buffer(b).extents.last().copied().unwrap_or(1) as i64;
    k.views.iter().filter(|v| v.base == Base::Buffer(b)).all(|v| {
        v.dtype == k.buffer(b).dtype
            && k.ix_const(v.offset).is_some_and(|o| (0..row).contains(&o) || o % row == 0)
            && v.strides.iter().zip(&v.extents).all(|(&s, &e)| match (k.ix_const(s), k.ix_const(e)) {
                (Some(s), Some(e)) => s % row == 0 || s * e <= row,
                (Some(_), None) | (None, _) => false,
            })
    })
}

/// Reductions and scans address tiles by flat number.
fn collective(k: &Kernel, b: BufferId) -> bool {
    k.ops.iter().any(|n| {
        let (Op::Reduce { src, dst, .. } | Op::Scan { src, dst, .. }) = &n.op else { return false };
        k.view(*src).base == Base::Buffer(b) || *dst == b
    })
}

/// Puts an `Alloc` of scratch before each op that combines values of several warps.
fn add_scratch(k: &mut Kernel) {
    let warps = k.warps;
    for block in 0..k.blocks.len() {
        let ops = k.blocks[block].ops.clone();
        let mut out = Vec::with_capacity(ops.len());
        for id in ops {
            if let Some((dtype, count)) = scratch(k, id, warps) {
                out.push(alloc(k, dtype, count, k.op(id).span));
            }
            out.push(id);
        }
        k.blocks[block] = Block { ops: out };
    }
}

/// Type and number of partial results an op exchanges through shared memory.
fn scratch(k: &Kernel, id: OpId, warps: usize) -> Option<(DType, usize)> {
    let own = &k.op(id).op;
    if let Op::Reduce { op, src, axis, order, .. } = own {
        let extents = k.const_extents(*src)?;
        let dtype = k.view(*src).dtype;
        let wide = order_of(*order, *op, dtype, &[extents[*axis]], warps).lanes > 32;
        let rows = extents.iter().product::<usize>() / extents[*axis];
        return (wide && *axis + 1 == extents.len() && warps > 1).then_some((accumulator(dtype), rows * warps));
    }
    if let Op::ReduceRegion { op, extents, value, order, .. } = own {
        let dtype = k.value(*value).dtype;
        let wide = order_of(*order, *op, dtype, extents, warps).lanes > 32;
        return (wide && warps > 1).then_some((accumulator(dtype), warps));
    }
    if let Op::Scan { src, axis, .. } = own {
        let last = *axis + 1 == k.view(*src).extents.len();
        return (last && warps > 1).then_some((k.view(*src).dtype, warps));
    }
    if matches!(own, Op::FindFirst { .. }) {
        return (warps > 1).then_some((DType::I32, warps));
    }
    // Two sets of counts, used in turn.
    if claims(k, own) {
        return (warps > 1).then_some((DType::U32, 2 * warps));
    }
    if let Op::Atomic { result: Some(_), view, .. } = own {
        return at_block_level(k, id).then_some((k.view(*view).dtype, 1));
    }
    None
}

/// True if an op numbers its iterations.
pub fn claims(k: &Kernel, op: &Op) -> bool {
    let Op::Spread { body, .. } = op else { return false };
    effects::counter(k, *body).is_some()
}

/// Type in which partial results travel: small floats as f32, everything else as it is.
pub fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { dtype }
}

/// True if an op is not inside an element body.
pub fn at_block_level(k: &Kernel, id: OpId) -> bool {
    let mut inside = false;
    walk(k, k.body, &mut |_, op| {
        if let Op::Parallel { body, .. }
        | Op::Spread { body, .. }
        | Op::ReduceRegion { body, .. }
        | Op::FindFirst { body, .. } = op
        {
            walk(k, *body, &mut |inner, _| inside |= inner == id);
        }
    });
    !inside
}

fn alloc(k: &mut Kernel, dtype: DType, count: usize, span: SpanId) -> OpId {
    k.buffers.push(Buffer {
        name: SCRATCH.into(),
        dtype,
        index: false,
        extents: vec![count],
        space: Space::Shared,
        distribution: None,
        memory: None,
        role: None,
        span,
    });
    let buffer = BufferId(k.buffers.len() as u32 - 1);
    k.ops.push(OpNode { op: Op::Alloc { buffer }, span });
    OpId(k.ops.len() as u32 - 1)
}
