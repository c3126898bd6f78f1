//! Number formats as types, and the traits that say what each can do.
//!
//! The types are never constructed: they are parameters of `V`, `Tile` and `Gm`. Formats as data are
//! `kiln_codegen::ir::DType`.

use kiln_codegen::formats;
use kiln_codegen::ir::{DType as Data, Literal};
use std::fmt::Debug;

/// A number format.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dtype of the kernel language",
    label = "not a dtype",
    note = "dtypes are F32, F16, Bf16, E4m3, E5m2, E2m1, E8m0, I8, U8, I32, U32, I64 and Bool; a generic kernel writes `T: Float` or `T: DType`"
)]
pub trait DType: Copy + Debug + Send + Sync + 'static {
    /// The format as data.
    const DTYPE: Data;
    /// What the host uses for one value: the Rust number, or the bit pattern of the small float formats.
    type Host: Copy + Debug + Send + Sync + 'static;
    /// A host value as a constant.
    fn literal(x: Self::Host) -> Literal;
    /// Compute type of reductions and arithmetic hints; the name in messages.
    const NAME: &'static str = Self::DTYPE.name();
}

/// A floating-point format.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a floating-point dtype", label = "a float dtype is expected")]
pub trait Float: DType {
    /// Largest finite value.
    const MAX: f32 = Self::DTYPE.max_finite() as f32;
}

/// A format with arithmetic.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no arithmetic",
    label = "this dtype is for storage",
    note = "convert with `.to::<F32>()` first and back with `.to::<{Self}>()`"
)]
pub trait Arith: DType {}

/// A signed format with arithmetic.
#[diagnostic::on_unimplemented(message = "`{Self}` has no sign", label = "a signed dtype is expected")]
pub trait Signed: Arith {}

/// An integer format.
#[diagnostic::on_unimplemented(message = "`{Self}` is not an integer dtype", label = "an integer dtype is expected")]
pub trait Int: Arith {}

/// Integers an index can become.
#[diagnostic::on_unimplemented(
    message = "an index cannot become `{Self}` directly",
    label = "indices become I32, U32 or I64",
    note = "write `.to::<I32>().to::<{Self}>()`"
)]
pub trait IndexInt: Int {}

/// Formats with bitwise operations: integers and `Bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no bitwise operations",
    label = "an integer or Bool is expected"
)]
pub trait Bitwise: DType {}

/// Formats with atomic operations.
#[diagnostic::on_unimplemented(
    message = "there are no atomic operations on `{Self}`",
    label = "atomics exist for I32 and U32",
    note = "floating-point atomics would make results depend on timing; use `reduce_sum` or a second kernel"
)]
pub trait AtomicInt: Int {}

/// Formats whose bit pattern is an integer of the same width.
#[diagnostic::on_unimplemented(
    message = "there is no integer dtype with the width of `{Self}`",
    label = "no bit pattern"
)]
pub trait Bits: DType {
    /// That integer.
    type Int: DType;
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $t:ident $host:ty = |$x:ident| $bits:expr, $($tr:ident)*;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $t {}
        impl DType for $t {
            const DTYPE: Data = Data::$t;
            type Host = $host;
            fn literal($x: $host) -> Literal { Literal { dtype: Data::$t, bits: $bits } }
        }
        $(impl $tr for $t {})*
    )* };
}
dtypes! {
    /// IEEE binary32: the compute type.
    F32 f32 = |x| x.to_bits() as u64, Float Arith Signed;
    /// IEEE binary16.
    F16 half::f16 = |x| x.to_bits() as u64, Float Arith Signed;
    /// bfloat16.
    Bf16 half::bf16 = |x| x.to_bits() as u64, Float Arith Signed;
    /// fp8 with 4 exponent bits, without infinity.
    E4m3 u8 = |x| x as u64, Float;
    /// fp8 with 5 exponent bits.
    E5m2 u8 = |x| x as u64, Float;
    /// fp4, two a byte.
    E2m1 u8 = |x| (x & 0xf) as u64, Float;
    /// Power-of-two scale.
    E8m0 u8 = |x| x as u64, Float;
    /// Signed 8-bit integer.
    I8 i8 = |x| x as u8 as u64, Arith Signed Int Bitwise;
    /// Unsigned 8-bit integer, also raw bytes.
    U8 u8 = |x| x as u64, Arith Int Bitwise;
    /// Signed 32-bit integer.
    I32 i32 = |x| x as u32 as u64, Arith Signed Int Bitwise IndexInt AtomicInt;
    /// Unsigned 32-bit integer.
    U32 u32 = |x| x as u64, Arith Int Bitwise IndexInt AtomicInt;
    /// Signed 64-bit integer.
    I64 i64 = |x| x as u64, Arith Signed Int Bitwise IndexInt;
    /// Truth value.
    Bool bool = |x| x as u64, Bitwise;
}

macro_rules! bits {
    ($($t:ident $int:ident),*) => { $(impl Bits for $t { type Int = $int; })* };
}
bits!(F32 U32, I32 U32, U32 U32, E4m3 U8, E5m2 U8, E8m0 U8, I8 U8, U8 U8);

/// A number rounded to `T`, as a constant.
pub(crate) fn rounded<T: DType>(x: f64) -> Literal {
    Literal { dtype: T::DTYPE, bits: formats::encode_f64(T::DTYPE, x) }
}
