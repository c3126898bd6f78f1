//! `Ix`: symbolic indices, and what can be one.
//!
//! Index arithmetic folds in the IR; facts about ranges live there too. Data becomes an index only in `scalar.rs`.

use crate::dtype::{I32, IndexInt};
use crate::scalar::V;
use crate::session::with;
use kiln_codegen::ir::{IxId, Op};
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Rem, Sub};

/// An index expression over dimensions, block, loop and element indices, and clamped data.
#[derive(Clone, Copy, Debug)]
pub struct Ix {
    pub(crate) id: IxId,
    /// Handles belong to the thread that builds the kernel.
    local: PhantomData<*const ()>,
}

impl Ix {
    pub(crate) fn of(id: IxId) -> Self {
        Ix { id, local: PhantomData }
    }
}

/// What can stand where an index is expected.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index",
    label = "expected `usize`, a dimension or an index expression",
    note = "data becomes an index by `x.clamp_index(lo, hi)`, or use `t.get_or(..)` / `t.put(..)`",
    note = "an index becomes data by `i.value()` or `i.to::<I32>()`"
)]
pub trait IntoIx: Copy {
    /// As an index.
    #[track_caller]
    fn ix(self) -> Ix;
}
impl IntoIx for Ix {
    fn ix(self) -> Ix {
        self
    }
}
impl IntoIx for usize {
    #[track_caller]
    fn ix(self) -> Ix {
        with(|s| Ix::of(s.b.ix_const(self as i64)))
    }
}

/// What can index a tensor or tile of rank `N`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not index a tensor of rank {N}",
    label = "wrong number of axes, or a data value used as an index",
    note = "write `t[i]` for rank 1, `t[(i, j)]` for rank 2, `t[(i, j, k)]` for rank 3",
    note = "data becomes an index by `x.clamp_index(lo, hi)`, or use `t.get_or(..)` / `t.put(..)`"
)]
pub trait Idx<const N: usize>: Copy {
    /// One index an axis.
    #[track_caller]
    fn axes(self) -> [Ix; N];
}
impl<A: IntoIx> Idx<1> for A {
    #[track_caller]
    fn axes(self) -> [Ix; 1] {
        [self.ix()]
    }
}

/// What can index a checked access: indices, and integer data of any value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of a checked access",
    label = "expected an index or an integer value"
)]
pub trait IntoAnyIx: Copy {
    /// As an index.
    #[track_caller]
    fn any_ix(self) -> Ix;
}
impl IntoAnyIx for Ix {
    fn any_ix(self) -> Ix {
        self
    }
}
impl IntoAnyIx for usize {
    #[track_caller]
    fn any_ix(self) -> Ix {
        self.ix()
    }
}
impl<T: IndexInt> IntoAnyIx for V<T> {
    #[track_caller]
    fn any_ix(self) -> Ix {
        with(|s| Ix::of(s.b.ix_data(self.id)))
    }
}

/// What can index a checked access of rank `N`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not index a tensor of rank {N}",
    label = "wrong number of axes",
    note = "write `i` for rank 1, `(i, j)` for rank 2, `(i, j, k)` for rank 3; each an index or an I32, U32 or I64 value"
)]
pub trait AnyIdx<const N: usize>: Copy {
    /// One index an axis.
    #[track_caller]
    fn any_axes(self) -> [Ix; N];
}
impl<A: IntoAnyIx> AnyIdx<1> for A {
    #[track_caller]
    fn any_axes(self) -> [Ix; 1] {
        [self.any_ix()]
    }
}

macro_rules! tuples {
    ($($n:literal: $($t:ident $x:tt),*;)*) => { $(
        impl<$($t: IntoIx),*> Idx<$n> for ($($t,)*) {
            #[track_caller]
            fn axes(self) -> [Ix; $n] { [$(self.$x.ix()),*] }
        }
        impl<$($t: IntoAnyIx),*> AnyIdx<$n> for ($($t,)*) {
            #[track_caller]
            fn any_axes(self) -> [Ix; $n] { [$(self.$x.any_ix()),*] }
        }
    )* };
}
tuples! {
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
}

pub(crate) fn ids<const N: usize>(axes: [Ix; N]) -> Vec<IxId> {
    axes.iter().map(|i| i.id).collect()
}

macro_rules! arithmetic {
    ($($tr:ident $f:ident $ix:ident),*) => { $(
        impl<R: IntoIx> $tr<R> for Ix {
            type Output = Ix;
            #[track_caller]
            fn $f(self, r: R) -> Ix {
                let r = r.ix();
                with(|s| Ix::of(s.b.$ix(self.id, r.id)))
            }
        }
        impl $tr<Ix> for usize {
            type Output = Ix;
            #[track_caller]
            fn $f(self, r: Ix) -> Ix { $tr::$f(self.ix(), r) }
        }
    )* };
}
arithmetic!(Add add ix_add, Sub sub ix_sub, Mul mul ix_mul);

macro_rules! division {
    ($($tr:ident $f:ident $ix:ident),*) => { $(
        impl<R: IntoIx> $tr<R> for Ix {
            type Output = Ix;
            #[track_caller]
            fn $f(self, r: R) -> Ix {
                let r = positive(r.ix());
                with(|s| Ix::of(s.b.$ix(self.id, r.id)))
            }
        }
        impl $tr<Ix> for usize {
            type Output = Ix;
            #[track_caller]
            fn $f(self, r: Ix) -> Ix { $tr::$f(self.ix(), r) }
        }
    )* };
}
division!(Div div ix_div, Rem rem ix_mod);

/// Refuses a constant divisor that is not positive.
#[track_caller]
fn positive(r: Ix) -> Ix {
    with(|s| match s.b.kernel.ix_const(r.id) {
        Some(c) if c <= 0 => {
            s.error("B0206", format!("division of an index by {c}")).help = Some("divisors are positive".into());
            Ix::of(s.b.ix_const(1))
        }
        _ => r,
    })
}

impl Ix {
    /// Quotient rounded up.
    #[track_caller]
    pub fn div_ceil<R: IntoIx>(self, r: R) -> Ix {
        let r = positive(r.ix());
        with(|s| Ix::of(s.b.ix_div_ceil(self.id, r.id)))
    }
    /// Smaller of both.
    #[track_caller]
    pub fn min<R: IntoIx>(self, r: R) -> Ix {
        let r = r.ix();
        with(|s| Ix::of(s.b.ix_min(self.id, r.id)))
    }
    /// Larger of both.
    #[track_caller]
    pub fn max<R: IntoIx>(self, r: R) -> Ix {
        let r = r.ix();
        with(|s| Ix::of(s.b.ix_max(self.id, r.id)))
    }
    /// `min(max(self, lo), hi)`, both ends included: what [`V::clamp_index`] is for data.
    #[track_caller]
    pub fn clamp_index<A: IntoIx, B: IntoIx>(self, lo: A, hi: B) -> Ix {
        self.max(lo).min(hi)
    }
    /// Difference, but at least 0.
    #[track_caller]
    pub fn saturating_sub<R: IntoIx>(self, r: R) -> Ix {
        let r = r.ix();
        with(|s| {
            let (d, zero) = (s.b.ix_sub(self.id, r.id), s.b.ix_const(0));
            Ix::of(s.b.ix_max(d, zero))
        })
    }
    /// The index as data.
    #[track_caller]
    pub fn to<T: IndexInt>(self) -> V<T> {
        with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::IndexValue { result, index: self.id })))
    }
    /// The index as I32 data.
    #[track_caller]
    pub fn value(self) -> V<I32> {
        self.to()
    }
}
