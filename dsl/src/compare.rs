//! What `<`, `==`, `&&`, `||` are rewritten into: host operands stay host, anything else gives `V<Bool>`.

use crate::branch::Arm;
use crate::config::ConfigWord;
use crate::dtype::{Bool, DType, F32, I8, I32, I64, U8, U32};
use crate::index::{IntoIx, Ix};
use crate::scalar::{IntoV, V};
use crate::session::with;
use kiln_codegen::ir::{BinaryOp, CmpOp, Op};

/// Operands a comparison accepts.
#[diagnostic::on_unimplemented(
    message = "cannot compare `{Self}` with `{R}` in a kernel",
    label = "both sides need one type",
    note = "convert data with `.to::<T>()`, an index with `.value()`; wrap comparisons of other host types in `host!(..)`"
)]
pub trait Compare<R> {
    /// `bool` for host values, `V<Bool>` for device values.
    type Out;
    /// Compares.
    #[track_caller]
    fn compare(self, op: CmpOp, r: R) -> Self::Out;
}

fn host<T: PartialOrd>(a: &T, op: CmpOp, b: &T) -> bool {
    match op {
        CmpOp::Lt => a < b,
        CmpOp::Le => a <= b,
        CmpOp::Gt => a > b,
        CmpOp::Ge => a >= b,
        CmpOp::Eq => a == b,
        CmpOp::Ne => a != b,
    }
}

#[track_caller]
fn device<T>(a: V<T>, op: CmpOp, b: V<T>) -> V<Bool> {
    with(|s| V::of_id(s.b.push_value(Bool::DTYPE, |result| Op::Compare { result, op, a: a.id, b: b.id })))
}

macro_rules! host_types {
    ($($t:ty)*) => { $(
        impl Compare<$t> for $t {
            type Out = bool;
            fn compare(self, op: CmpOp, r: $t) -> bool { host(&self, op, &r) }
        }
    )* };
}
host_types!(usize bool u8 u16 u32 u64 i8 i16 i32 i64 isize f32 f64 char &str);

impl<E: ConfigWord> Compare<E> for E {
    type Out = bool;
    fn compare(self, op: CmpOp, r: E) -> bool {
        host(&self.word(), op, &r.word())
    }
}

impl<T: DType> Compare<V<T>> for V<T> {
    type Out = V<Bool>;
    #[track_caller]
    fn compare(self, op: CmpOp, r: V<T>) -> V<Bool> {
        device(self, op, r)
    }
}
macro_rules! literals {
    ($($host:ident $t:ident)*) => { $(
        impl Compare<$host> for V<$t> {
            type Out = V<Bool>;
            #[track_caller]
            fn compare(self, op: CmpOp, r: $host) -> V<Bool> { device(self, op, IntoV::<$t>::v(r)) }
        }
        impl Compare<V<$t>> for $host {
            type Out = V<Bool>;
            #[track_caller]
            fn compare(self, op: CmpOp, r: V<$t>) -> V<Bool> { device(IntoV::<$t>::v(self), op, r) }
        }
    )* };
}
literals!(f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool);

impl<R: IntoIx> Compare<R> for Ix {
    type Out = V<Bool>;
    #[track_caller]
    fn compare(self, op: CmpOp, r: R) -> V<Bool> {
        let r = r.ix();
        with(|s| V::of_id(s.b.push_value(Bool::DTYPE, |result| Op::CompareIndex { result, op, a: self.id, b: r.id })))
    }
}
impl Compare<Ix> for usize {
    type Out = V<Bool>;
    #[track_caller]
    fn compare(self, op: CmpOp, r: Ix) -> V<Bool> {
        self.ix().compare(op, r)
    }
}

macro_rules! functions {
    ($($f:ident $op:ident),*) => { $(
        /// The comparison of this name.
        #[track_caller]
        pub fn $f<A: Compare<B>, B>(a: A, b: B) -> A::Out { a.compare(CmpOp::$op, b) }
    )* };
}
functions!(lt Lt, le Le, gt Gt, ge Ge, eq Eq, ne Ne);

/// Operands of `&&` and `||`. The right side is [`Arm::Skipped`] when a host left side decided.
#[diagnostic::on_unimplemented(
    message = "`&&` and `||` join conditions, not `{Self}` and `{R}`",
    label = "expected a host `bool` or a device `V<Bool>` on both sides"
)]
pub trait Logic<R> {
    /// `bool` if both sides are host values.
    type Out;
    /// Joins; `and` tells which operator.
    #[track_caller]
    fn join_logic(self, and: bool, r: Arm<R>) -> Self::Out;
}
impl Logic<bool> for bool {
    type Out = bool;
    fn join_logic(self, _: bool, r: Arm<bool>) -> bool {
        match r {
            Arm::Taken(r) => r,
            Arm::Skipped => self,
        }
    }
}
impl Logic<V<Bool>> for bool {
    type Out = V<Bool>;
    #[track_caller]
    fn join_logic(self, _: bool, r: Arm<V<Bool>>) -> V<Bool> {
        match r {
            Arm::Taken(r) => r,
            Arm::Skipped => self.v(),
        }
    }
}
impl Logic<bool> for V<Bool> {
    type Out = V<Bool>;
    #[track_caller]
    fn join_logic(self, and: bool, r: Arm<bool>) -> V<Bool> {
        match r {
            Arm::Taken(host) if host != and => host.v(),
            Arm::Taken(_) | Arm::Skipped => self,
        }
    }
}
impl Logic<V<Bool>> for V<Bool> {
    type Out = V<Bool>;
    #[track_caller]
    fn join_logic(self, and: bool, r: Arm<V<Bool>>) -> V<Bool> {
        match r {
            Arm::Taken(r) => self.binary(if and { BinaryOp::And } else { BinaryOp::Or }, r),
            Arm::Skipped => self,
        }
    }
}

/// Whether a left side decides without its right side.
pub trait Decides {
    /// The host value, if it is one.
    fn known(&self) -> Option<bool>;
}
impl Decides for bool {
    fn known(&self) -> Option<bool> {
        Some(*self)
    }
}
impl Decides for V<Bool> {
    fn known(&self) -> Option<bool> {
        None
    }
}

/// True if `a && ..` needs no right side.
pub fn short_and<A: Decides>(a: &A) -> bool {
    a.known() == Some(false)
}
/// True if `a || ..` needs no right side.
pub fn short_or<A: Decides>(a: &A) -> bool {
    a.known() == Some(true)
}
/// `a && b`.
#[track_caller]
pub fn and<A: Logic<B>, B>(a: A, b: Arm<B>) -> A::Out {
    a.join_logic(true, b)
}
/// `a || b`.
#[track_caller]
pub fn or<A: Logic<B>, B>(a: A, b: Arm<B>) -> A::Out {
    a.join_logic(false, b)
}

/// What `as` converts.
#[diagnostic::on_unimplemented(
    message = "`as` converts host numbers only, not `{Self}`",
    label = "device value",
    note = "write `.to::<T>()` for a device scalar or an index; wrap casts of host enums in `host!(..)`"
)]
pub trait HostNumber {
    /// Itself.
    type Out;
    /// Itself.
    fn host_number(self) -> Self::Out;
}
macro_rules! host_numbers {
    ($($t:ty)*) => { $(impl HostNumber for $t { type Out = $t; fn host_number(self) -> $t { self } })* };
}
host_numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool char);
/// The operand of an `as`.
pub fn host_number<T: HostNumber>(x: T) -> T::Out {
    x.host_number()
}
