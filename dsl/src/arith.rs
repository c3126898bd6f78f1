//! Operators on device scalars: arithmetic, bits, shifts. Both sides have one dtype; a Rust literal may stand on
//! either side.

use crate::dtype::{Arith, Bitwise, Bool, F32, I8, I32, I64, Int, Signed, U8, U32};
use crate::scalar::{IntoV, V};
use crate::session::with;
use kiln_codegen::ir::{BinaryOp, Op, UnaryOp};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

macro_rules! operators {
    ($($tr:ident $f:ident $op:ident $bound:ident: $($host:ident $t:ident)*;)*) => { $(
        impl<T: $bound> $tr for V<T> {
            type Output = V<T>;
            #[track_caller]
            fn $f(self, r: V<T>) -> V<T> { self.binary(BinaryOp::$op, r) }
        }
        $(
            impl $tr<$host> for V<$t> {
                type Output = V<$t>;
                #[track_caller]
                fn $f(self, r: $host) -> V<$t> { self.binary(BinaryOp::$op, r.v()) }
            }
            impl $tr<V<$t>> for $host {
                type Output = V<$t>;
                #[track_caller]
                fn $f(self, r: V<$t>) -> V<$t> { IntoV::<$t>::v(self).binary(BinaryOp::$op, r) }
            }
        )*
    )* };
}
operators! {
    Add add Add Arith: f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    Sub sub Sub Arith: f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    Mul mul Mul Arith: f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    Div div Div Arith: f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    Rem rem Rem Int: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    BitAnd bitand And Bitwise: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool;
    BitOr bitor Or Bitwise: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool;
    BitXor bitxor Xor Bitwise: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool;
    Shl shl Shl Int: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
    Shr shr Shr Int: i32 I32 u32 U32 i64 I64 i8 I8 u8 U8;
}

impl<T: Bitwise> Not for V<T> {
    type Output = V<T>;
    #[track_caller]
    fn not(self) -> V<T> {
        self.unary(UnaryOp::Not)
    }
}
impl<T: Signed> Neg for V<T> {
    type Output = V<T>;
    #[track_caller]
    fn neg(self) -> V<T> {
        self.unary(UnaryOp::Neg)
    }
}

impl<T: crate::dtype::DType> V<T> {
    #[track_caller]
    pub(crate) fn unary(self, op: UnaryOp) -> V<T> {
        with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::Unary { result, op, x: self.id })))
    }
}
