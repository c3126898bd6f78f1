//! Arithmetic of intervals; `None` is unbounded, and so is what leaves `HUGE`.

use super::{ALL, HUGE, Interval};
use crate::ir::DType;

pub(super) fn dtype_range(d: DType) -> Interval {
    match d {
        DType::I8 => (Some(-128), Some(127)),
        DType::U8 => (Some(0), Some(255)),
        DType::I32 => (Some(i32::MIN as i128), Some(i32::MAX as i128)),
        DType::U32 => (Some(0), Some(u32::MAX as i128)),
        DType::I64 => (Some(i64::MIN as i128), Some(i64::MAX as i128)),
        DType::Bool => (Some(0), Some(1)),
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => ALL,
    }
}

pub(super) fn clip(x: i128) -> Option<i128> {
    (x.abs() < HUGE).then_some(x)
}
pub(super) fn least(a: Option<i128>, b: Option<i128>) -> Option<i128> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (x, None) | (None, x) => x,
    }
}
pub(super) fn greatest(a: Option<i128>, b: Option<i128>) -> Option<i128> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (x, None) | (None, x) => x,
    }
}
pub(super) fn meet(a: Interval, b: Interval) -> Interval {
    (greatest(a.0, b.0), least(a.1, b.1))
}
pub(super) fn hull(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).map(|(x, y)| x.min(y)), a.1.zip(b.1).map(|(x, y)| x.max(y)))
}
pub(super) fn min_interval(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).map(|(x, y)| x.min(y)), least(a.1, b.1))
}
pub(super) fn max_interval(a: Interval, b: Interval) -> Interval {
    (greatest(a.0, b.0), a.1.zip(b.1).map(|(x, y)| x.max(y)))
}
pub(super) fn inside(a: Interval, b: Interval) -> bool {
    b.0.is_none_or(|b| a.0.is_some_and(|a| a >= b)) && b.1.is_none_or(|b| a.1.is_some_and(|a| a <= b))
}
pub(super) fn plus(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).and_then(|(x, y)| clip(x + y)), a.1.zip(b.1).and_then(|(x, y)| clip(x + y)))
}
pub(super) fn times(a: Interval, b: Interval) -> Interval {
    // Each end is a number or an infinity; zero times infinity is zero because the ends are limits of finite values.
    #[derive(Clone, Copy)]
    enum End {
        Low,
        At(i128),
        High,
    }
    fn product(x: End, y: End) -> End {
        let sign = |e: End| match e {
            End::Low => -1,
            End::At(v) => v.signum(),
            End::High => 1,
        };
        match (x, y) {
            (End::At(a), End::At(b)) => match a.checked_mul(b).and_then(clip) {
                Some(v) => End::At(v),
                None if (a > 0) == (b > 0) => End::High,
                None => End::Low,
            },
            _ => match sign(x) * sign(y) {
                0 => End::At(0),
                1 => End::High,
                _ => End::Low,
            },
        }
    }
    let ends = |i: Interval| [i.0.map_or(End::Low, End::At), i.1.map_or(End::High, End::At)];
    let (mut lo, mut hi) = (Some(i128::MAX), Some(i128::MIN));
    for x in ends(a) {
        for y in ends(b) {
            match product(x, y) {
                End::Low => lo = None,
                End::High => hi = None,
                End::At(v) => {
                    lo = lo.map(|l| l.min(v));
                    hi = hi.map(|h| h.max(v));
                }
            }
        }
    }
    // An end that was only ever infinite on the other side says nothing.
    (lo.filter(|&v| v != i128::MAX), hi.filter(|&v| v != i128::MIN))
}
/// Quotients rounded down, for divisors of at least 1.
pub(super) fn div_interval(a: Interval, b: Interval) -> Interval {
    let small = b.0.unwrap_or(1).max(1);
    let large = b.1;
    let lo = match a.0 {
        Some(x) if x >= 0 => Some(large.map_or(0, |l| x.div_euclid(l.max(1)))),
        Some(x) => Some(x.div_euclid(small)),
        None => None,
    };
    let hi = match a.1 {
        Some(x) if x >= 0 => Some(x.div_euclid(small)),
        Some(x) => Some(large.map_or(-1, |l| x.div_euclid(l.max(1)))),
        None => None,
    };
    (lo, hi)
}
