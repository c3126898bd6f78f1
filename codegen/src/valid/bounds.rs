//! Which accesses need a check at run time: the proof ladder's last two rungs, proven or kept.

use crate::analysis::Ranges;
use crate::ir::{IxId, Kernel, Op, OpId, ViewId};
use std::collections::HashMap;

pub(super) fn guards(k: &Kernel, r: &Ranges) -> HashMap<OpId, Vec<bool>> {
    let mut out = HashMap::new();
    for (n, node) in k.ops.iter().enumerate() {
        let keep = match &node.op {
            Op::Load { view, index, .. }
            | Op::LoadOr { view, index, .. }
            | Op::Store { view, index, .. }
            | Op::Atomic { view, index, .. } => axes(k, r, *view, index, &[]),
            Op::Copy { src, dst, extents } => {
                let mut all = axes(k, r, src.view, &src.start, extents);
                all.extend(axes(k, r, dst.view, &dst.start, extents));
                all
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
            | Op::Claim { .. }
            | Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::Reduce { .. }
            | Op::ReduceRegion { .. }
            | Op::Scan { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. }
            | Op::For { .. }
            | Op::Loop { .. }
            | Op::Break
            | Op::Continue
            | Op::If { .. }
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_) => continue,
        };
        out.insert(OpId(n as u32), keep);
    }
    out
}

/// The view's axes, then its guards; `extents` of a region, or nothing for one element.
fn axes(k: &Kernel, r: &Ranges, view: ViewId, index: &[IxId], extents: &[usize]) -> Vec<bool> {
    let v = k.view(view);
    let size = |axis: usize| extents.get(axis).copied().unwrap_or(1) as i64;
    // What a table holds is data: a looked-up row may not exist whatever its index is.
    let looked_up = |axis: usize| axis == 0 && v.gather.is_some();
    let axes = index
        .iter()
        .zip(&v.extents)
        .enumerate()
        .map(|(axis, (&i, &e))| looked_up(axis) || !inside(r, i, e, size(axis)));
    let guards = v.guards.iter().map(|&(i, e)| !inside(r, i, e, 1));
    axes.chain(guards).collect()
}

/// `0 <= index` and `index + size <= extent`.
fn inside(r: &Ranges, index: IxId, extent: IxId, size: i64) -> bool {
    r.never_below_zero(index) && r.prove_gap(index, extent, size)
}
