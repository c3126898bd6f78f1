//! `V<T>`: device scalars, conversions, and what can become one.
//!
//! Operators are in `arith.rs`, comparisons in `compare.rs`, functions such as `exp2` in `math.rs`.

use crate::dtype::{Arith, Bits, Bool, DType, E8m0, F32, I8, I32, I64, IndexInt, U8, U32, rounded};
use crate::index::{IntoIx, Ix};
use crate::session::with;
use kiln_codegen::ir::{BinaryOp, IxVarKind, Literal, Op, ValueId};
use std::marker::PhantomData;

/// A device scalar of dtype `T`: uniform in a block at block level, per element inside element bodies.
pub struct V<T> {
    pub(crate) id: ValueId,
    of: PhantomData<(T, *const ())>,
}
impl<T> Clone for V<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for V<T> {}
impl<T: DType> std::fmt::Debug for V<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "V<{}>(%{})", T::NAME, self.id.0)
    }
}

impl<T> V<T> {
    pub(crate) fn of_id(id: ValueId) -> Self {
        V { id, of: PhantomData }
    }
}

/// Builds a constant.
#[track_caller]
pub(crate) fn constant<T: DType>(value: Literal) -> V<T> {
    with(|s| V::of_id(s.b.constant(value)))
}

/// What can stand where a device scalar of dtype `T` is expected.
#[diagnostic::on_unimplemented(
    message = "expected a value of dtype `{T}`, found `{Self}`",
    label = "wrong dtype",
    note = "convert with `.to::<{T}>()`; whole tiles with `copy_cast`",
    note = "a constant of a small format is written `V::<{T}>::of(0.5)`"
)]
pub trait IntoV<T> {
    /// As a device scalar.
    #[track_caller]
    fn v(self) -> V<T>;
}
impl<T: DType> IntoV<T> for V<T> {
    fn v(self) -> V<T> {
        self
    }
}
macro_rules! literals {
    ($($host:ident $t:ident),*) => { $(
        impl IntoV<$t> for $host {
            #[track_caller]
            fn v(self) -> V<$t> { constant($t::literal(self)) }
        }
    )* };
}
literals!(f32 F32, i32 I32, u32 U32, i64 I64, i8 I8, u8 U8, bool Bool);

/// A literal where a device value is needed and no other operand says so: `lit(0.0)`.
#[track_caller]
pub fn lit<T: DType, E: IntoV<T>>(e: E) -> V<T> {
    e.v()
}

impl<T: DType> V<T> {
    /// A host number rounded to `T`: `V::<Bf16>::of(0.5)`.
    #[track_caller]
    pub fn of(x: f64) -> V<T> {
        constant(rounded::<T>(x))
    }
    /// Converts: to floats nearest even (saturating to E4m3, E5m2, E2m1), to integers towards zero.
    #[track_caller]
    pub fn to<U: DType>(self) -> V<U> {
        if T::DTYPE == U::DTYPE {
            return V::of_id(self.id);
        }
        with(|s| V::of_id(s.b.push_value(U::DTYPE, |result| Op::Cast { result, x: self.id })))
    }
    /// The bit pattern as an integer.
    #[track_caller]
    pub fn bits(self) -> V<T::Int>
    where
        T: Bits,
    {
        self.reinterpret()
    }
    /// The value with this bit pattern.
    #[track_caller]
    pub fn from_bits(bits: V<T::Int>) -> V<T>
    where
        T: Bits,
    {
        bits.reinterpret()
    }
    #[track_caller]
    fn reinterpret<U: DType>(self) -> V<U> {
        if T::DTYPE == U::DTYPE {
            return V::of_id(self.id);
        }
        with(|s| V::of_id(s.b.push_value(U::DTYPE, |result| Op::Bits { result, x: self.id })))
    }
    #[track_caller]
    pub(crate) fn binary(self, op: BinaryOp, r: V<T>) -> V<T> {
        with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::Binary { result, op, a: self.id, b: r.id })))
    }
}

impl<T: Arith> V<T> {
    /// Smaller of both; of a number and NaN, the number.
    #[track_caller]
    pub fn min<E: IntoV<T>>(self, r: E) -> V<T> {
        self.binary(BinaryOp::Min, r.v())
    }
    /// Larger of both; of a number and NaN, the number.
    #[track_caller]
    pub fn max<E: IntoV<T>>(self, r: E) -> V<T> {
        self.binary(BinaryOp::Max, r.v())
    }
    /// Limited to `lo..=hi`.
    #[track_caller]
    pub fn clamp<A: IntoV<T>, B: IntoV<T>>(self, lo: A, hi: B) -> V<T> {
        self.max(lo).min(hi)
    }
}

impl<T: IndexInt> V<T> {
    /// Data becomes an index: `min(max(self, lo), hi)`, both ends included.
    #[track_caller]
    pub fn clamp_index<A: IntoIx, B: IntoIx>(self, lo: A, hi: B) -> Ix {
        let (lo, hi) = (lo.ix().id, hi.ix().id);
        with(|s| {
            let name = s.take_name("at");
            let var = s.b.new_ix_var(name, IxVarKind::Data, Some(lo), Some(hi));
            s.b.push(Op::ClampIndex { var, value: self.id, lo, hi });
            Ix::of(s.b.ix_var(var))
        })
    }
}

impl E8m0 {
    /// The smallest power of two that is at least `x`, for positive finite `x`; 0 gives 2^-127.
    #[track_caller]
    pub fn ceil_from(x: V<F32>) -> V<E8m0> {
        let exponent = ((x.bits() + 0x7f_ffff) >> 23) & 0xff;
        V::<E8m0>::from_bits(exponent.to::<U8>())
    }
}

impl V<E8m0> {
    /// `1 / self`, exact: the exponent is negated.
    #[track_caller]
    pub fn recip(self) -> V<F32> {
        V::<F32>::from_bits((254 - self.bits().to::<U32>()) << 23)
    }
}
