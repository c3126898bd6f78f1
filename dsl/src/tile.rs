//! `Tile`: block-level arrays, and views of them.

use crate::dtype::DType;
use crate::index::{AnyIdx, Idx, IntoIx, ids};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use crate::tensor::{load, load_or, picked, store};
use kiln_codegen::ir::{self, BufferId, Op, ViewId, build};
use std::fmt::Debug;
use std::marker::PhantomData;

/// A memory space of tiles.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a memory space of tiles", label = "`Shared` or `Frag`")]
pub trait Space: Copy + Debug + 'static {
    /// The space as data.
    const SPACE: ir::Space;
}
/// Scratch memory of the block.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}
/// Registers, spread over the block.
#[derive(Clone, Copy, Debug)]
pub enum Frag {}
impl Space for Shared {
    const SPACE: ir::Space = ir::Space::Shared;
}
impl Space for Frag {
    const SPACE: ir::Space = ir::Space::Frag;
}

/// An array of a block: dtype `T`, space `S`, rank `N`. A handle; copying it copies no elements.
pub struct Tile<T, S, const N: usize> {
    pub(crate) view: ViewId,
    pub(crate) extents: [usize; N],
    of: PhantomData<(T, S, *const ())>,
}
impl<T, S, const N: usize> Clone for Tile<T, S, N> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, S, const N: usize> Copy for Tile<T, S, N> {}
impl<T: DType, S: Space, const N: usize> Debug for Tile<T, S, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tile<{}, {:?}, {:?}>(view {})", T::NAME, S::SPACE, self.extents, self.view.0)
    }
}

/// What to do about extents of 0.
pub(crate) const NOTHING: &str = "a dimension or config field it is made of is 0; give it a positive one (launches whose \
                                  outputs are empty do nothing and need no build)";

/// Makes a buffer and its whole view; no op.
pub(crate) fn new<T: DType, S: Space, const N: usize>(
    s: &mut Session,
    default: &'static str,
    extents: [usize; N],
) -> (BufferId, Tile<T, S, N>) {
    if extents.contains(&0) {
        s.error("B0202", format!("a tile of shape {extents:?} has no elements")).help = Some(NOTHING.into());
    }
    let name = s.take_name(default);
    let buffer = s.b.new_buffer(name, T::DTYPE, &extents, S::SPACE, false);
    (buffer, Tile { view: s.b.buffer_view(buffer), extents, of: PhantomData })
}

/// A tile that is a view somebody else made.
pub(crate) fn of_view<T, S, const N: usize>(view: ViewId, extents: [usize; N]) -> Tile<T, S, N> {
    Tile { view, extents, of: PhantomData }
}

/// Makes a tile that exists from here on.
#[track_caller]
pub(crate) fn alloc<T: DType, S: Space, const N: usize>(what: &'static str, extents: [usize; N]) -> Tile<T, S, N> {
    with(|s| {
        s.block_level(what);
        let (buffer, tile) = new(s, what, extents);
        s.b.push(Op::Alloc { buffer });
        tile
    })
}

/// A tile in shared memory; content undefined.
#[track_caller]
pub fn shared<T: DType, const N: usize>(extents: [usize; N]) -> Tile<T, Shared, N> {
    alloc("shared", extents)
}

/// A tile spread over the block's registers; content undefined.
#[track_caller]
pub fn frag<T: DType, const N: usize>(extents: [usize; N]) -> Tile<T, Frag, N> {
    alloc("frag", extents)
}

impl<T: DType, S: Space, const N: usize> Tile<T, S, N> {
    /// What `t[index]` is rewritten into: the element, zero outside.
    #[track_caller]
    pub fn load_<I: Idx<N>>(self, index: I) -> V<T> {
        load(self.view, ids(index.axes()))
    }
    /// What `t[index] = x` is rewritten into; dropped outside.
    #[track_caller]
    pub fn store_<I: Idx<N>, E: IntoV<T>>(self, index: I, x: E) {
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
    pub fn put<I: AnyIdx<N>, E: IntoV<T>>(self, index: I, x: E) {
        let (index, x) = (ids(index.any_axes()), x.v());
        store(self.view, index, x, true);
    }
    /// Extent of an axis.
    ///
    /// # Panics
    /// If there is no such axis; inside a kernel this becomes a diagnostic.
    #[track_caller]
    pub fn extent(self, axis: usize) -> usize {
        assert!(axis < N, "axis {axis} of a tile of rank {N}");
        self.extents[axis]
    }
    /// All extents.
    pub fn extents(self) -> [usize; N] {
        self.extents
    }
    /// The same elements in row-major order with other extents.
    #[track_caller]
    pub fn reshape<const M: usize>(self, extents: [usize; M]) -> Tile<T, S, M> {
        let (have, want): (usize, usize) = (self.extents.iter().product(), extents.iter().product());
        with(|s| {
            if have != want {
                s.error("B0203", format!("a tile of {have} elements {:?} cannot become {extents:?}", self.extents));
            }
            let strides: Vec<_> = build::row_major(&self.extents).into_iter().map(|x| s.b.ix_const(x as i64)).collect();
            if s.b.kernel.view(self.view).strides != strides {
                s.error("B0203", "only a tile whose rows follow each other can be reshaped").help =
                    Some("reshape before `t()` or `cols(..)`".into());
            }
            let mut v = s.b.kernel.view(self.view).clone();
            v.extents = extents.iter().map(|&x| s.b.ix_const(x as i64)).collect();
            v.strides = build::row_major(&extents).into_iter().map(|x| s.b.ix_const(x as i64)).collect();
            v.span = s.b.here();
            Tile { view: s.b.view(v), extents, of: PhantomData }
        })
    }
}

impl<T: DType, S: Space> Tile<T, S, 2> {
    /// Transposed view.
    #[track_caller]
    pub fn t(self) -> Tile<T, S, 2> {
        with(|s| {
            let mut v = s.b.kernel.view(self.view).clone();
            v.extents.reverse();
            v.strides.reverse();
            v.span = s.b.here();
            Tile { view: s.b.view(v), extents: [self.extents[1], self.extents[0]], of: PhantomData }
        })
    }
    /// Columns `a..b`.
    #[track_caller]
    pub fn cols(self, a: usize, b: usize) -> Tile<T, S, 2> {
        with(|s| {
            let [rows, cols] = self.extents;
            let (from, to) = (a.min(cols), b.min(cols));
            if a >= b || b > cols {
                s.error("B0207", format!("columns {a}..{b} of a tile with {cols} columns"));
            }
            let width = to.saturating_sub(from).max(1);
            let mut v = s.b.kernel.view(self.view).clone();
            let start = s.b.ix_const(from as i64);
            let step = s.b.ix_mul(start, v.strides[1]);
            v.offset = s.b.ix_add(v.offset, step);
            v.extents[1] = s.b.ix_const(width as i64);
            v.span = s.b.here();
            Tile { view: s.b.view(v), extents: [rows, width], of: PhantomData }
        })
    }
}

macro_rules! ranks {
    ($($n:literal $less:literal: $($axis:literal)*;)*) => { $(
        impl<T: DType, S: Space> Tile<T, S, $n> {
            /// The slice at `index` of the first axis.
            #[track_caller]
            pub fn pick<I: IntoIx>(self, index: I) -> Tile<T, S, $less> {
                let index = index.ix().id;
                let extents = [$(self.extents[$axis]),*];
                with(|s| Tile { view: picked(s, self.view, index), extents, of: PhantomData })
            }
        }
    )* };
}
ranks! { 2 1: 1; 3 2: 1 2; 4 3: 1 2 3; }
