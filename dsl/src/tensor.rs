//! `Gm`: global tensors and their views; `Region`: where a copy reads or writes.

use crate::dtype::{AtomicInt, DType, U8};
use crate::index::{AnyIdx, Idx, IntoIx, Ix, ids};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use crate::tile::{Space, Tile};
use kiln_codegen::ir::{AtomicOp, IxExpr, IxId, Kernel, Op, View, ViewId};
use std::marker::PhantomData;

/// Access of an `In!` tensor.
#[derive(Clone, Copy, Debug)]
pub enum Rd {}
/// Access of an `Out!` or `InOut!` tensor.
#[derive(Clone, Copy, Debug)]
pub enum Wr {}

/// Accesses that allow writing.
#[diagnostic::on_unimplemented(
    message = "this tensor is an input and cannot be written",
    label = "declared `In![..]`",
    note = "declare it `Out![..]` or `InOut![..]`"
)]
pub trait Writable {}
impl Writable for Wr {}

/// A tensor in global memory, or a view of one, of dtype `T` and rank `N`.
pub struct Gm<T, const N: usize, A = Rd> {
    pub(crate) view: ViewId,
    of: PhantomData<(T, A, *const ())>,
}
impl<T, const N: usize, A> Clone for Gm<T, N, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const N: usize, A> Copy for Gm<T, N, A> {}
impl<T: DType, const N: usize, A> std::fmt::Debug for Gm<T, N, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gm<{}, {N}>(view {})", T::NAME, self.view.0)
    }
}

/// A place in a tensor where a copy starts. The tile on the other side says how much is copied.
pub struct Region<T, const N: usize, A = Rd> {
    pub(crate) view: ViewId,
    pub(crate) start: [Ix; N],
    of: PhantomData<(T, A)>,
}
impl<T, const N: usize, A> Clone for Region<T, N, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const N: usize, A> Copy for Region<T, N, A> {}
impl<T: DType, const N: usize, A> std::fmt::Debug for Region<T, N, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region<{}, {N}>(view {})", T::NAME, self.view.0)
    }
}

/// Reads element `index` of `view`.
#[track_caller]
pub(crate) fn load<T: DType>(view: ViewId, index: Vec<IxId>) -> V<T> {
    with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::Load { result, view, index })))
}
#[track_caller]
pub(crate) fn load_or<T: DType>(view: ViewId, index: Vec<IxId>, other: V<T>) -> V<T> {
    let other = other.id;
    with(|s| V::of_id(s.b.push_value(T::DTYPE, |result| Op::LoadOr { result, view, index, other })))
}
#[track_caller]
pub(crate) fn store<T: DType>(view: ViewId, index: Vec<IxId>, value: V<T>, checked: bool) {
    with(|s| s.b.push(Op::Store { view, index, value: value.id, checked }));
}
#[track_caller]
pub(crate) fn atomic<T: AtomicInt>(op: AtomicOp, view: ViewId, index: Vec<IxId>, value: V<T>) {
    with(|s| s.b.push(Op::Atomic { result: None, op, view, index, value: value.id }));
}

impl<T: DType, const N: usize, A> Gm<T, N, A> {
    pub(crate) fn of_view(view: ViewId) -> Self {
        Gm { view, of: PhantomData }
    }
    /// What `t[index]` is rewritten into: the element, zero outside.
    #[track_caller]
    pub fn load_<I: Idx<N>>(self, index: I) -> V<T> {
        load(self.view, ids(index.axes()))
    }
    /// What `t[index] = x` is rewritten into; dropped outside.
    #[track_caller]
    pub fn store_<I: Idx<N>, E: IntoV<T>>(self, index: I, x: E)
    where
        A: Writable,
    {
        let (index, x) = (ids(index.axes()), x.v());
        store(self.view, index, x, false);
    }
    /// The element, or `other` outside. Indices may be data.
    #[track_caller]
    pub fn get_or<I: AnyIdx<N>, E: IntoV<T>>(self, index: I, other: E) -> V<T> {
        let (index, other) = (ids(index.any_axes()), other.v());
        load_or(self.view, index, other)
    }
    /// Writes if `index` is inside. Indices may be data.
    #[track_caller]
    pub fn put<I: AnyIdx<N>, E: IntoV<T>>(self, index: I, x: E)
    where
        A: Writable,
    {
        let (index, x) = (ids(index.any_axes()), x.v());
        store(self.view, index, x, true);
    }
    /// The part that starts at `index`, for copies.
    #[track_caller]
    pub fn at<I: Idx<N>>(self, index: I) -> Region<T, N, A> {
        Region { view: self.view, start: index.axes(), of: PhantomData }
    }
    /// The first `n` rows, or all if there are fewer: rows from `n` on read as zero and are not written. `n` may come
    /// from data, as the number of rows a group has.
    #[track_caller]
    pub fn first_rows<I: IntoIx>(self, n: I) -> Gm<T, N, A> {
        let n = n.ix().id;
        with(|s| {
            let mut v = s.b.kernel.view(self.view).clone();
            v.extents[0] = s.b.ix_min(n, v.extents[0]);
            v.span = s.b.here();
            Gm::of_view(s.b.view(v))
        })
    }
    /// Extent of an axis.
    ///
    /// # Panics
    /// If there is no such axis; inside a kernel this becomes a diagnostic.
    #[track_caller]
    pub fn extent(self, axis: usize) -> Ix {
        assert!(axis < N, "axis {axis} of a tensor of rank {N}");
        with(|s| Ix::of(s.b.kernel.view(self.view).extents[axis]))
    }
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $f:ident $op:ident;)*) => {
        impl<T: DType, const N: usize> Gm<T, N, Wr> { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $f<I: AnyIdx<N>, E: IntoV<T>>(self, index: I, x: E)
            where
                T: AtomicInt,
            {
                let (index, x) = (ids(index.any_axes()), x.v());
                atomic(AtomicOp::$op, self.view, index, x);
            }
        )* }
        impl<T: DType, S: Space, const N: usize> Tile<T, S, N> { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $f<I: AnyIdx<N>, E: IntoV<T>>(self, index: I, x: E)
            where
                T: AtomicInt,
            {
                let (index, x) = (ids(index.any_axes()), x.v());
                atomic(AtomicOp::$op, self.view, index, x);
            }
        )* }
    };
}
atomics! {
    /// Adds `x` to an element indivisibly; no effect outside.
    atomic_add Add;
    /// Raises an element to at least `x`.
    atomic_max Max;
    /// Lowers an element to at most `x`.
    atomic_min Min;
    /// Sets the bits of `x` in an element.
    atomic_or Or;
}

/// Fixes the first axis of a view at `index`.
pub(crate) fn picked(s: &mut Session, view: ViewId, index: IxId) -> ViewId {
    crate::gather::not_gathered(s, view, "pick");
    let mut v = s.b.kernel.view(view).clone();
    let (extent, stride) = (v.extents.remove(0), v.strides.remove(0));
    let step = s.b.ix_mul(index, stride);
    v.offset = s.b.ix_add(v.offset, step);
    // Always kept: the verifier drops the guards it can prove.
    v.guards.push((index, extent));
    v.span = s.b.here();
    s.b.view(v)
}

/// Joins the first two axes of a view.
fn merged(s: &mut Session, view: ViewId) -> ViewId {
    crate::gather::not_gathered(s, view, "merge_leading");
    let mut v = s.b.kernel.view(view).clone();
    let inner = s.b.ix_mul(v.strides[1], v.extents[1]);
    if inner != v.strides[0] && s.b.kernel.ix_const(v.extents[0]) != Some(1) {
        s.error("B0205", "the two leading axes do not follow each other in memory, so they cannot be merged").help =
            Some("`merge_leading` needs a tensor declared without strides on these axes".into());
    }
    let extent = s.b.ix_mul(v.extents[0], v.extents[1]);
    v.extents.splice(0..2, [extent]);
    v.strides.remove(0);
    v.span = s.b.here();
    s.b.view(v)
}

macro_rules! ranks {
    ($($n:literal $less:literal;)*) => { $(
        impl<T: DType, A> Gm<T, $n, A> {
            /// The slice at `index` of the first axis.
            #[track_caller]
            pub fn pick<I: IntoIx>(self, index: I) -> Gm<T, $less, A> {
                let index = index.ix().id;
                with(|s| Gm::of_view(picked(s, self.view, index)))
            }
            /// The first two axes as one; they must follow each other in memory.
            #[track_caller]
            pub fn merge_leading(self) -> Gm<T, $less, A> {
                with(|s| Gm::of_view(merged(s, self.view)))
            }
        }
    )* };
}
ranks! { 2 1; 3 2; 4 3; 5 4; }

/// Tensors that `view_as` reads: raw bytes.
#[diagnostic::on_unimplemented(
    message = "`view_as` needs a tensor of bytes, found dtype `{Self}`",
    label = "not bytes",
    note = "declare the parameter `In![U8; ..]`"
)]
pub trait Bytes {}
impl Bytes for U8 {}

impl<T: DType, const N: usize, A> Gm<T, N, A> {
    /// Bytes read as elements of `U`: offset and strides in bytes, each a multiple of the element's size.
    #[track_caller]
    pub fn view_as<U: DType, const M: usize>(
        self,
        byte_offset: impl IntoIx,
        extents: impl Idx<M>,
        byte_strides: impl Idx<M>,
    ) -> Gm<U, M, A>
    where
        T: Bytes,
    {
        let (offset, extents, strides) = (byte_offset.ix().id, ids(extents.axes()), ids(byte_strides.axes()));
        with(|s| {
            crate::gather::not_gathered(s, self.view, "view_as");
            let base = s.b.kernel.view(self.view).clone();
            if !row_major(s, &base) {
                s.error("B0501", "`view_as` needs bytes that follow each other in memory").help =
                    Some("declare the parameter without strides".into());
            }
            if U::DTYPE.bits() < 8 {
                s.error("B0502", format!("`view_as` cannot address elements of {} bits", U::DTYPE.bits())).help =
                    Some("view the bytes as U8 and take the nibbles apart".into());
            }
            let offset = s.b.ix_add(base.offset, offset);
            let offset = elements::<U>(s, offset, "offset");
            let strides = strides.into_iter().map(|x| elements::<U>(s, x, "stride")).collect();
            let span = s.b.here();
            Gm::of_view(s.b.view(View { dtype: U::DTYPE, extents, strides, offset, span, ..base }))
        })
    }
}

fn row_major(s: &mut Session, v: &View) -> bool {
    let mut want = s.b.ix_const(1);
    for axis in (0..v.extents.len()).rev() {
        if v.strides[axis] != want && s.b.kernel.ix_const(v.extents[axis]) != Some(1) {
            return false;
        }
        want = s.b.ix_mul(want, v.extents[axis]);
    }
    true
}

/// A byte count in elements of `U`.
fn elements<U: DType>(s: &mut Session, bytes: IxId, what: &str) -> IxId {
    let size = (U::DTYPE.bits() / 8).max(1) as i64;
    if factor(&s.b.kernel, bytes) % size != 0 {
        s.error("B0503", format!("a byte {what} of this view is not known to be a multiple of {size}")).help =
            Some(format!("state it as a fact of the kernel, as in `require(record % {size} == 0)`"));
    }
    let size = s.b.ix_const(size);
    s.b.ix_div(bytes, size)
}

/// A number that divides an index expression; 0 for zero.
fn factor(k: &Kernel, ix: IxId) -> i64 {
    match k.ix_expr(ix) {
        IxExpr::Const(c) => c.abs(),
        IxExpr::Sym(s) => k.syms[s.0 as usize].multiple_of,
        IxExpr::Mul(a, b) => factor(k, a).saturating_mul(factor(k, b)),
        IxExpr::Add(a, b) | IxExpr::Sub(a, b) | IxExpr::Min(a, b) | IxExpr::Max(a, b) => {
            gcd(factor(k, a), factor(k, b))
        }
        IxExpr::Var(_) | IxExpr::Data(_) | IxExpr::Div(..) | IxExpr::Mod(..) => 1,
    }
}

pub(crate) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `v[i]` on a host slice, array or `Vec` stays a host read.
pub trait HostIndex<T> {
    /// The element, cloned.
    #[track_caller]
    fn load_(&self, i: usize) -> T;
}
impl<T: Clone> HostIndex<T> for [T] {
    #[track_caller]
    fn load_(&self, i: usize) -> T {
        self[i].clone()
    }
}
