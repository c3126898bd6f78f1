//! Functions of device scalars. Transcendental ones exist for F32, the compute type.

use crate::dtype::{Arith, Bool, DType, F32, Signed};
use crate::scalar::{IntoV, V};
use crate::session::with;
use kiln_codegen::ir::{Op, UnaryOp};

/// Minus infinity.
pub const NEG_INF: f32 = f32::NEG_INFINITY;
/// Plus infinity.
pub const INF: f32 = f32::INFINITY;

macro_rules! unary {
    ($($(#[$doc:meta])* $f:ident $op:ident;)*) => { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $f<E: IntoV<F32>>(x: E) -> V<F32> { x.v().unary(UnaryOp::$op) }
    )* };
}
unary! {
    /// `2^x`, approximate on devices.
    exp2 Exp2;
    /// Base-2 logarithm, approximate on devices.
    log2 Log2;
    /// `1 / sqrt(x)`, approximate on devices.
    rsqrt Rsqrt;
    /// Square root, correctly rounded.
    sqrt Sqrt;
    /// `1 / x`, correctly rounded.
    recip Recip;
    /// Sine, approximate on devices.
    sin Sin;
    /// Cosine, approximate on devices.
    cos Cos;
    /// Largest integer not above `x`.
    floor Floor;
    /// Smallest integer not below `x`.
    ceil Ceil;
}

/// `e^x` as `exp2(x * log2 e)`. For large scores scale before subtracting a maximum would round: use `exp2` there.
#[track_caller]
pub fn exp<E: IntoV<F32>>(x: E) -> V<F32> {
    (x.v() * std::f32::consts::LOG2_E).unary(UnaryOp::Exp2)
}

/// Natural logarithm as `log2(x) * ln 2`.
#[track_caller]
pub fn log<E: IntoV<F32>>(x: E) -> V<F32> {
    x.v().unary(UnaryOp::Log2) * std::f32::consts::LN_2
}

/// Absolute value.
#[track_caller]
pub fn abs<T: Signed>(x: V<T>) -> V<T> {
    x.unary(UnaryOp::Abs)
}

/// Larger of both; of a number and NaN, the number.
#[track_caller]
pub fn max<T: Arith, A: IntoV<T>, B: IntoV<T>>(a: A, b: B) -> V<T> {
    a.v().max(b)
}

/// Smaller of both; of a number and NaN, the number.
#[track_caller]
pub fn min<T: Arith, A: IntoV<T>, B: IntoV<T>>(a: A, b: B) -> V<T> {
    a.v().min(b)
}

/// `x` limited to `lo..=hi`.
#[track_caller]
pub fn clamp<T: Arith, A: IntoV<T>, B: IntoV<T>, C: IntoV<T>>(x: A, lo: B, hi: C) -> V<T> {
    x.v().clamp(lo, hi)
}

/// `a * b + c` with one rounding.
#[track_caller]
pub fn fma<A: IntoV<F32>, B: IntoV<F32>, C: IntoV<F32>>(a: A, b: B, c: C) -> V<F32> {
    let (a, b, c) = (a.v().id, b.v().id, c.v().id);
    with(|s| V::of_id(s.b.push_value(F32::DTYPE, |result| Op::Fma { result, a, b, c })))
}

/// `cond ? a : b`; both sides are evaluated.
#[track_caller]
pub fn select<T: DType, C: IntoV<Bool>, A: IntoV<T>, B: IntoV<T>>(cond: C, a: A, b: B) -> V<T> {
    let (cond, a, b) = (cond.v().id, a.v().id, b.v().id);
    with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::Select { result, cond, a, b })))
}
