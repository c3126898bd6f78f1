//! Reductions and scans over lanes in memory order. The order of a reduction is part of its bits; see `ir::Order`.

use super::convert::round_one;
use super::lanes::{max_f, min_f};
use super::memory::Lane;
use crate::ir::{DType, Order, ReduceOp, ScanKind};

/// Lanes that can be combined.
pub trait Combine: Lane {
    /// The value before anything is combined, for empty reductions and exclusive scans.
    fn identity(op: ReduceOp, dtype: DType) -> Self;
    /// An element as the reduction sees it.
    fn element(op: ReduceOp, dtype: DType, x: Self) -> Self;
    /// `a op b`.
    fn combine(op: ReduceOp, dtype: DType, a: Self, b: Self) -> Self;
}

/// Infinities saturate in every operation on `e5m2`; here once an element instead of once a step.
fn saturated(dtype: DType, x: f32) -> f32 {
    const LARGEST: f32 = 57344.0;
    if dtype == DType::E5m2 { x.clamp(-LARGEST, LARGEST) } else { x }
}

impl Combine for f32 {
    fn identity(op: ReduceOp, dtype: DType) -> f32 {
        match op {
            ReduceOp::Sum | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or => 0.0,
            ReduceOp::Max => saturated(dtype, f32::NEG_INFINITY),
            ReduceOp::Min => saturated(dtype, f32::INFINITY),
        }
    }
    #[inline(always)]
    fn element(op: ReduceOp, dtype: DType, x: f32) -> f32 {
        match op {
            ReduceOp::AbsMax => saturated(dtype, x.abs()),
            ReduceOp::Max | ReduceOp::Min => saturated(dtype, x),
            ReduceOp::Sum | ReduceOp::And | ReduceOp::Or => x,
        }
    }
    #[inline(always)]
    fn combine(op: ReduceOp, dtype: DType, a: f32, b: f32) -> f32 {
        match op {
            ReduceOp::Sum if dtype == DType::F32 => a + b,
            ReduceOp::Sum => round_one(dtype, a + b),
            ReduceOp::Max | ReduceOp::AbsMax => max_f(a, b),
            ReduceOp::Min => min_f(a, b),
            ReduceOp::And | ReduceOp::Or => a,
        }
    }
}

impl Combine for i32 {
    fn identity(op: ReduceOp, dtype: DType) -> i32 {
        let (lo, hi) = match dtype {
            DType::I8 => (i8::MIN as i32, i8::MAX as i32),
            DType::U8 => (0, 255),
            DType::Bool => (0, 1),
            DType::U32 => (0, -1),
            DType::I32
            | DType::I64
            | DType::F32
            | DType::F16
            | DType::Bf16
            | DType::E4m3
            | DType::E5m2
            | DType::E2m1
            | DType::E8m0 => (i32::MIN, i32::MAX),
        };
        match op {
            ReduceOp::Sum | ReduceOp::AbsMax | ReduceOp::Or => 0,
            ReduceOp::Max => lo,
            ReduceOp::Min => hi,
            ReduceOp::And if dtype == DType::Bool => 1,
            ReduceOp::And => super::convert::wrap(dtype, -1),
        }
    }
    #[inline(always)]
    fn element(op: ReduceOp, dtype: DType, x: i32) -> i32 {
        match op {
            // A sign bit of U32 means no sign; the smallest I8 is its own absolute value, as with `UnaryOp::Abs`.
            ReduceOp::AbsMax if dtype != DType::U32 => super::convert::wrap(dtype, x.wrapping_abs()),
            ReduceOp::AbsMax | ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or => x,
        }
    }
    #[inline(always)]
    fn combine(op: ReduceOp, dtype: DType, a: i32, b: i32) -> i32 {
        let unsigned = dtype == DType::U32;
        match op {
            ReduceOp::Sum => super::convert::wrap(dtype, a.wrapping_add(b)),
            ReduceOp::Max | ReduceOp::AbsMax if unsigned => (a as u32).max(b as u32) as i32,
            ReduceOp::Max | ReduceOp::AbsMax => a.max(b),
            ReduceOp::Min if unsigned => (a as u32).min(b as u32) as i32,
            ReduceOp::Min => a.min(b),
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
        }
    }
}

impl Combine for i64 {
    fn identity(op: ReduceOp, _dtype: DType) -> i64 {
        match op {
            ReduceOp::Sum | ReduceOp::AbsMax | ReduceOp::Or => 0,
            ReduceOp::Max => i64::MIN,
            ReduceOp::Min => i64::MAX,
            ReduceOp::And => -1,
        }
    }
    #[inline(always)]
    fn element(op: ReduceOp, _dtype: DType, x: i64) -> i64 {
        if op == ReduceOp::AbsMax { x.wrapping_abs() } else { x }
    }
    #[inline(always)]
    fn combine(op: ReduceOp, _dtype: DType, a: i64, b: i64) -> i64 {
        match op {
            ReduceOp::Sum => a.wrapping_add(b),
            ReduceOp::Max | ReduceOp::AbsMax => a.max(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
        }
    }
}

/// Combines the elements of `x` in `order`; the identity if there are none.
pub fn line<T: Combine>(op: ReduceOp, dtype: DType, order: Order, x: &[T], partial: &mut Vec<T>) -> T {
    // The operation is a constant inside each arm, so that the loops hold no switch.
    macro_rules! with {
        ($($op:ident),*) => { match (op, dtype) {
            $((ReduceOp::$op, DType::F32) => line_of(ReduceOp::$op, DType::F32, order, x, partial),
              (ReduceOp::$op, DType::I32) => line_of(ReduceOp::$op, DType::I32, order, x, partial),
              (ReduceOp::$op, d) => line_of(ReduceOp::$op, d, order, x, partial),)*
        } };
    }
    with!(Sum, Max, Min, AbsMax, And, Or)
}

#[inline(always)]
fn line_of<T: Combine>(op: ReduceOp, dtype: DType, order: Order, x: &[T], partial: &mut Vec<T>) -> T {
    let abs = |v: T| T::element(op, dtype, v);
    let Some((&first, rest)) = x.split_first() else { return T::identity(op, dtype) };
    let per = order.per_lane.max(1);
    let lanes = order.lanes.max(1).min(x.len().div_ceil(per));
    if lanes == 1 {
        return rest.iter().fold(abs(first), |acc, &v| T::combine(op, dtype, acc, abs(v)));
    }
    // First chunk of each lane: starts from its first element.
    partial.clear();
    let row = lanes * per;
    for chunk in x[..row.min(x.len())].chunks(per) {
        partial.push(chunk[1..].iter().fold(abs(chunk[0]), |acc, &v| T::combine(op, dtype, acc, abs(v))));
    }
    for round in x[row.min(x.len())..].chunks(order.lanes.max(1) * per) {
        // Each lane's chain is independent of the others, so the processor overlaps them.
        for (p, chunk) in partial.iter_mut().zip(round.chunks(per)) {
            *p = chunk.iter().fold(*p, |acc, &v| T::combine(op, dtype, acc, abs(v)));
        }
    }
    let mut live = partial.len();
    while live > 1 {
        for i in 0..live / 2 {
            partial[i] = T::combine(op, dtype, partial[2 * i], partial[2 * i + 1]);
        }
        if live % 2 == 1 {
            partial[live / 2] = partial[live - 1];
        }
        live = live.div_ceil(2);
    }
    partial[0]
}

/// Reduces the middle axis of `x` seen as `[outer, n, inner]` into `out`.
pub fn axis<T: Combine>(op: ReduceOp, dtype: DType, order: Order, x: &[T], n: usize, inner: usize, out: &mut [T]) {
    let mut partial = vec![];
    if inner == 1 {
        for (o, row) in out.iter_mut().zip(x.chunks_exact(n.max(1))) {
            *o = line(op, dtype, order, row, &mut partial);
        }
        return;
    }
    let sequential = order.lanes <= 1 || !dtype.is_float() || op != ReduceOp::Sum;
    let mut column = vec![];
    for (plane, row) in x.chunks_exact((n * inner).max(1)).zip(out.chunks_exact_mut(inner.max(1))) {
        if sequential {
            macro_rules! with {
                ($($op:ident),*) => { match op { $(ReduceOp::$op => {
                    let abs = |v: T| T::element(ReduceOp::$op, dtype, v);
                    row.iter_mut().zip(plane).for_each(|(o, &v)| *o = abs(v));
                    for line in plane.chunks_exact(inner).skip(1) {
                        if dtype == DType::F32 {
                            row.iter_mut().zip(line).for_each(|(o, &v)| *o = T::combine(ReduceOp::$op, DType::F32, *o, abs(v)));
                        } else {
                            row.iter_mut().zip(line).for_each(|(o, &v)| *o = T::combine(ReduceOp::$op, dtype, *o, abs(v)));
                        }
                    }
                })* } };
            }
            with!(Sum, Max, Min, AbsMax, And, Or);
        } else {
            for (j, o) in row.iter_mut().enumerate() {
                column.clear();
                column.extend(plane.iter().skip(j).step_by(inner));
                *o = line(op, dtype, order, &column, &mut partial);
            }
        }
    }
}

/// Scans the middle axis of `x` seen as `[outer, n, inner]` into `out`; returns the last line's total.
pub fn scan<T: Combine>(
    op: ReduceOp,
    dtype: DType,
    kind: ScanKind,
    x: &[T],
    n: usize,
    inner: usize,
    out: &mut [T],
) -> T {
    let mut total = T::identity(op, dtype);
    let suffix = matches!(kind, ScanKind::SuffixExclusive | ScanKind::SuffixInclusive);
    let inclusive = matches!(kind, ScanKind::PrefixInclusive | ScanKind::SuffixInclusive);
    for base in (0..x.len()).step_by((n * inner).max(1)) {
        for j in 0..inner {
            let mut acc = T::identity(op, dtype);
            for k in 0..n {
                let at = base + j + inner * if suffix { n - 1 - k } else { k };
                let e = T::element(op, dtype, x[at]);
                let next = if k == 0 { e } else { T::combine(op, dtype, acc, e) };
                out[at] = if inclusive { next } else { acc };
                acc = next;
            }
            total = acc;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Tree;

    /// The definition, word for word.
    fn slow(order: Order, x: &[f32]) -> f32 {
        let mut lanes: Vec<Option<f32>> = vec![None; order.lanes];
        for (e, &v) in x.iter().enumerate() {
            let l = (e / order.per_lane) % order.lanes;
            lanes[l] = Some(lanes[l].map_or(v, |a| a + v));
        }
        let mut level: Vec<f32> = lanes.into_iter().flatten().collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|c| if c.len() == 2 { c[0] + c[1] } else { c[0] }).collect();
        }
        level[0]
    }

    #[test]
    fn the_order_is_obeyed_bit_for_bit() {
        let x: Vec<f32> =
            (0..5000).map(|i| ((i * 7919 % 1000) as f32 - 450.0) * 1.37e-3 * (1 + i % 13) as f32).collect();
        for lanes in [1, 2, 3, 5, 8, 32, 128, 256] {
            for per_lane in [1, 2, 3, 4, 8] {
                for n in [1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 96, 255, 256, 257, 1000, 1023, 1024, 1025, 5000] {
                    let order = Order { lanes, per_lane, tree: Tree::AdjacentPairs };
                    let got = line(ReduceOp::Sum, DType::F32, order, &x[..n], &mut vec![]);
                    assert_eq!(got.to_bits(), slow(order, &x[..n]).to_bits(), "lanes {lanes} per {per_lane} n {n}");
                }
            }
        }
    }
}
