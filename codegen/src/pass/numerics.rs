//! Fixes the order of every floating-point reduction, as a function of the kernel alone.
//!
//! The order is part of a kernel's result bits, so it is chosen before any target is known and every target obeys it.
//! It is not a layout: `pass::distribute` later picks one that can produce this order cheaply.

use crate::ir::{Base, BufferId, DType, Kernel, Op, Order, ReduceOp, SchedOp, Tree, ViewId};
use std::collections::BTreeSet;

/// Fills `order` of every `Reduce` and `ReduceRegion`.
///
/// A float sum over the last axis (or over a whole region) is spread over lanes, so that threads can do it without
/// moving data; where the source is the accumulator of a warp group's product, over the four lanes that hold a row of it.
/// Everything else is sequential. Orders of integer sums and of `Max`, `Min`, `AbsMax`, `And`, `Or` do not
/// influence the result; they are filled all the same.
pub fn plan(mut kernel: Kernel) -> Kernel {
    let held = accumulators(&kernel);
    for i in 0..kernel.ops.len() {
        let order = if let Op::Reduce { op, src, axis, .. } = &kernel.ops[i].op {
            let view = kernel.view(*src);
            let n = kernel.const_extents(*src).and_then(|e| e.get(*axis).copied()).unwrap_or(1);
            let last = *axis + 1 == view.extents.len();
            match ordered(*op, view.dtype) && last {
                true if accumulated(&kernel, &held, *src) => ROW_OF_FRAGMENT,
                true => lanes_of(&[n], kernel.warps),
                false => Order::SEQUENTIAL,
            }
        } else if let Op::ReduceRegion { op, extents, value, .. } = &kernel.ops[i].op {
            if ordered(*op, kernel.value(*value).dtype) { lanes_of(extents, kernel.warps) } else { Order::SEQUENTIAL }
        } else {
            continue;
        };
        if let Op::Reduce { order: o, .. } | Op::ReduceRegion { order: o, .. } = &mut kernel.ops[i].op {
            *o = Some(order);
        }
    }
    kernel
}

/// How the lanes of a warp group hold a row of an accumulator.
pub const ROW_OF_FRAGMENT: Order = Order { lanes: 4, per_lane: 2, tree: Tree::AdjacentPairs };

/// Accumulators of products of warp groups.
pub fn accumulators(k: &Kernel) -> BTreeSet<BufferId> {
    let of = |op: &Op| if let Op::Sched(SchedOp::Wgmma { acc, .. }) = op { Some(*acc) } else { None };
    k.ops.iter().filter_map(|n| of(&n.op)).collect()
}

/// True if a view is such an accumulator as a whole, in whole pieces of the unit.
pub fn accumulated(k: &Kernel, held: &BTreeSet<BufferId>, view: ViewId) -> bool {
    let v = k.view(view);
    let Base::Buffer(b) = v.base else { return false };
    let extents = &k.buffer(b).extents;
    let &[m, n] = &extents[..] else { return false };
    let strides: Vec<Option<i64>> = v.strides.iter().map(|&s| k.ix_const(s)).collect();
    held.contains(&b)
        && m % 64 == 0
        && n % 8 == 0
        && k.const_extents(view).as_ref() == Some(extents)
        && strides == [Some(n as i64), Some(1)]
        && k.ix_const(v.offset) == Some(0)
}

/// True if the order of combination shows in the result.
pub fn ordered(op: ReduceOp, dtype: DType) -> bool {
    op == ReduceOp::Sum && dtype.is_float()
}

/// Lanes for the elements of a box in row-major order: as many consecutive elements a lane as vector accesses like, but
/// within one row, since a lane finds the indices of all of them from the first one's; one warp or less if that covers the
/// box, else the whole block.
pub fn lanes_of(extents: &[usize], warps: usize) -> Order {
    let n: usize = extents.iter().product();
    let row = extents.iter().rev().copied().find(|&e| e != 1).unwrap_or(1);
    let per_lane = [8, 4, 2].into_iter().find(|&p| n > 0 && row.is_multiple_of(p)).unwrap_or(1);
    let units = n.div_ceil(per_lane).max(1);
    let lanes = if units <= 32 { units.next_power_of_two() } else { warps * 32 };
    Order { lanes, per_lane, tree: Tree::AdjacentPairs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_use_one_warp_or_the_block() {
        let lanes = |n| {
            let o = lanes_of(&[n], 4);
            (o.lanes, o.per_lane)
        };
        assert_eq!(lanes(7168), (128, 8));
        assert_eq!(lanes(128), (16, 8));
        assert_eq!(lanes(96), (16, 8));
        assert_eq!(lanes(7), (8, 1));
        assert_eq!(lanes(36), (16, 4));
        assert_eq!(lanes(1), (1, 1));
        assert_eq!(lanes(33), (128, 1));
        let of_box = |extents: &[usize]| lanes_of(extents, 4).per_lane;
        assert_eq!([of_box(&[8, 5]), of_box(&[48, 2]), of_box(&[3, 16]), of_box(&[8, 1])], [1, 2, 8, 8]);
    }
}
