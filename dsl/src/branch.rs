//! What `if` is rewritten into: one form for statements and expressions, typed by its guard.
//!
//! A host condition keeps one arm, and only that arm is evaluated. A device condition builds both and joins their values.

use crate::dtype::{Bool, DType, F32, I8, I32, I64, U8, U32};
use crate::index::{IntoIx, Ix};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use kiln_codegen::ir::{BlockId, IfResult, IxExpr, IxId, IxVarKind, Op, SpanId, ValueId};
use std::cell::Cell;

/// A branch that was evaluated, or not.
#[derive(Debug)]
pub enum Arm<X> {
    /// Its value.
    Taken(X),
    /// Not evaluated.
    Skipped,
}

/// Conditions of `if`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an `if` condition in a kernel",
    label = "expected a host `bool` or a device `V<Bool>`"
)]
pub trait Cond {
    /// Decides which arms are built and how they are joined.
    type Guard: Guard;
    /// Opens the `if`.
    #[track_caller]
    fn begin(self) -> Self::Guard;
}
/// An `if` on a host value.
#[derive(Debug)]
pub struct HostIf(bool);
/// An `if` on a device value.
#[derive(Debug)]
pub struct DeviceIf {
    cond: ValueId,
    at: SpanId,
    /// First index variable made inside: later ones are not visible after the `if`.
    first_var: u32,
    then: BlockId,
    els: Cell<Option<BlockId>>,
}
impl Cond for bool {
    type Guard = HostIf;
    fn begin(self) -> HostIf {
        HostIf(self)
    }
}
impl Cond for V<Bool> {
    type Guard = DeviceIf;
    #[track_caller]
    fn begin(self) -> DeviceIf {
        with(|s| DeviceIf {
            cond: self.id,
            at: s.b.here(),
            first_var: s.b.kernel.ix_vars.len() as u32,
            then: s.b.open(),
            els: Cell::new(None),
        })
    }
}

/// Open `if`s.
pub trait Guard {
    /// Enters the first arm; false if it is skipped.
    #[track_caller]
    fn enter_then(&self) -> bool;
    /// Enters the second arm; false if it is skipped.
    #[track_caller]
    fn enter_else(&self) -> bool;
}
impl Guard for HostIf {
    fn enter_then(&self) -> bool {
        self.0
    }
    fn enter_else(&self) -> bool {
        !self.0
    }
}
impl Guard for DeviceIf {
    fn enter_then(&self) -> bool {
        true
    }
    #[track_caller]
    fn enter_else(&self) -> bool {
        with(|s| {
            s.b.close();
            self.els.set(Some(s.b.open()));
        });
        true
    }
}

/// `if` begins.
#[track_caller]
pub fn if_begin<C: Cond>(c: C) -> C::Guard {
    c.begin()
}
// Free functions, not methods: a guard's type may still be unknown, as in `k == 0` with an untyped literal.
/// The first arm begins.
pub fn if_then<G: Guard>(g: &G) -> bool {
    g.enter_then()
}
/// The second arm begins.
#[track_caller]
pub fn if_else<G: Guard>(g: &G) -> bool {
    g.enter_else()
}

/// Values of the two arms.
#[diagnostic::on_unimplemented(
    message = "the arms of this `if` have different types, `{A}` and `{B}`",
    label = "the condition is a host `bool`: one arm is kept, so both need one type",
    note = "write `lit(0.0)` to make a device value of a literal; a missing `else`, `;` or `break` gives `()`"
)]
pub trait IfEnd<A, B> {
    /// Value of the whole `if`.
    type Out;
    /// Closes the `if`.
    #[track_caller]
    fn end(self, arms: (Arm<A>, Arm<B>)) -> Self::Out;
}
impl<X> IfEnd<X, X> for HostIf {
    type Out = X;
    fn end(self, arms: (Arm<X>, Arm<X>)) -> X {
        match arms {
            (Arm::Taken(x), _) | (Arm::Skipped, Arm::Taken(x)) => x,
            (Arm::Skipped, Arm::Skipped) => unreachable!("a host `if` takes one of its arms"),
        }
    }
}
impl<A: Join<B>, B> IfEnd<A, B> for DeviceIf {
    type Out = A::Out;
    #[track_caller]
    fn end(self, arms: (Arm<A>, Arm<B>)) -> A::Out {
        with(|s| {
            s.b.close();
        });
        let (Arm::Taken(a), Arm::Taken(b)) = arms else { unreachable!("a device `if` builds both arms") };
        let mut joined = Joined { results: vec![], first_var: self.first_var };
        let out = a.join(b, &mut joined);
        with(|s| {
            let els = match self.els.get() {
                Some(els) => els,
                None => self.then,
            };
            let results = joined.results.clone();
            let op = s.push_at(self.at, Op::If { cond: self.cond, then: self.then, els, results });
            for r in joined.results {
                if let IfResult::Value { result, .. } = r {
                    s.b.kernel.values[result.0 as usize].def = Some(op);
                }
            }
        });
        out
    }
}
/// `if` ends.
#[track_caller]
pub fn if_end<G: IfEnd<A, B>, A, B>(g: G, arms: (Arm<A>, Arm<B>)) -> G::Out {
    g.end(arms)
}

/// Results of a device `if` while it is closed.
#[derive(Debug)]
pub struct Joined {
    results: Vec<IfResult>,
    first_var: u32,
}
impl Joined {
    #[track_caller]
    fn value<T: DType>(&mut self, then: V<T>, els: V<T>) -> V<T> {
        let result = with(|s| s.b.free_value(T::DTYPE));
        self.results.push(IfResult::Value { result, then: then.id, els: els.id });
        V::of_id(result)
    }
    #[track_caller]
    fn index(&mut self, then: Ix, els: Ix) -> Ix {
        with(|s| {
            let outer = visible(s, then.id, self.first_var) && visible(s, els.id, self.first_var);
            let bounds = outer.then(|| (s.b.ix_min(then.id, els.id), s.b.ix_max(then.id, els.id)));
            let name = s.take_name("joined");
            let result = s.b.new_ix_var(name, IxVarKind::Data, bounds.map(|b| b.0), bounds.map(|b| b.1));
            self.results.push(IfResult::Index { result, then: then.id, els: els.id });
            Ix::of(s.b.ix_var(result))
        })
    }
}

/// True if an index refers to nothing made after `first_var`.
fn visible(s: &Session, ix: IxId, first_var: u32) -> bool {
    match s.b.kernel.ix_expr(ix) {
        IxExpr::Const(_) | IxExpr::Sym(_) => true,
        IxExpr::Var(v) => v.0 < first_var,
        IxExpr::Data(_) => false,
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => visible(s, a, first_var) && visible(s, b, first_var),
    }
}

/// Joins the values of the two arms of a device `if`.
#[diagnostic::on_unimplemented(
    message = "the arms of this device `if` give `{Self}` and `{B}`, which cannot be joined",
    label = "both arms run on the device: they must give scalars or indices of one type, or nothing",
    note = "an arm that ends in `break` or `;` gives `()`; a tile cannot be chosen by a device condition"
)]
pub trait Join<B> {
    /// Joined value.
    type Out;
    /// Joins.
    #[track_caller]
    fn join(self, b: B, joined: &mut Joined) -> Self::Out;
}
/// Never made: a second implementation keeps rustc from guessing the type of the second arm.
#[derive(Debug)]
pub enum Other {}
impl Join<Other> for () {
    type Out = ();
    fn join(self, other: Other, _: &mut Joined) {
        match other {}
    }
}
impl Join<()> for () {
    type Out = ();
    fn join(self, (): (), _: &mut Joined) {}
}
impl<T: DType> Join<V<T>> for V<T> {
    type Out = V<T>;
    #[track_caller]
    fn join(self, b: V<T>, joined: &mut Joined) -> V<T> {
        joined.value(self, b)
    }
}
impl<B: IntoIx> Join<B> for Ix {
    type Out = Ix;
    #[track_caller]
    fn join(self, b: B, joined: &mut Joined) -> Ix {
        let b = b.ix();
        joined.index(self, b)
    }
}
impl Join<Ix> for usize {
    type Out = Ix;
    #[track_caller]
    fn join(self, b: Ix, joined: &mut Joined) -> Ix {
        let a = self.ix();
        joined.index(a, b)
    }
}
impl Join<usize> for usize {
    type Out = Ix;
    #[track_caller]
    fn join(self, b: usize, joined: &mut Joined) -> Ix {
        let (a, b) = (self.ix(), b.ix());
        joined.index(a, b)
    }
}
macro_rules! literals {
    ($($host:ident $t:ident)*) => { $(
        impl Join<$host> for V<$t> {
            type Out = V<$t>;
            #[track_caller]
            fn join(self, b: $host, joined: &mut Joined) -> V<$t> {
                let b = IntoV::<$t>::v(b);
                joined.value(self, b)
            }
        }
        impl Join<V<$t>> for $host {
            type Out = V<$t>;
            #[track_caller]
            fn join(self, b: V<$t>, joined: &mut Joined) -> V<$t> {
                let a = IntoV::<$t>::v(self);
                joined.value(a, b)
            }
        }
        impl Join<$host> for $host {
            type Out = V<$t>;
            #[track_caller]
            fn join(self, b: $host, joined: &mut Joined) -> V<$t> {
                let (a, b) = (IntoV::<$t>::v(self), IntoV::<$t>::v(b));
                joined.value(a, b)
            }
        }
    )* };
}
literals!(f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool);
macro_rules! tuples {
    ($($($a:ident $b:ident $x:tt),*;)*) => { $(
        impl<$($a: Join<$b>, $b),*> Join<($($b,)*)> for ($($a,)*) {
            type Out = ($($a::Out,)*);
            #[track_caller]
            fn join(self, o: ($($b,)*), joined: &mut Joined) -> Self::Out { ($(self.$x.join(o.$x, joined),)*) }
        }
    )* };
}
tuples! {
    A0 B0 0, A1 B1 1;
    A0 B0 0, A1 B1 1, A2 B2 2;
    A0 B0 0, A1 B1 1, A2 B2 2, A3 B3 3;
}

/// Guards that `break` of an `unroll` loop may cross.
#[diagnostic::on_unimplemented(
    message = "`break`/`continue` of an `unroll` loop stands under a device condition",
    label = "the loop is unrolled before the condition is known",
    note = "use a device loop `for i in a..b`, or guard the rest of the body with `if`"
)]
pub trait HostGuard {}
impl HostGuard for HostIf {}
/// `break` or `continue` of an `unroll` loop crosses an `if`.
pub fn host_jump<G: HostGuard>(_: &G) {}
