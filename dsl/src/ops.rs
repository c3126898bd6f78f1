//! Block-level ops: grid, copies, fills, maps, reductions, scans, searches. Shapes are checked here, while building.

use crate::dtype::{Arith, Bool, DType, Int, Signed};
use crate::index::{IntoIx, Ix, ids};
use crate::loops::{BoxIndex, Parallel, close_box, open_box, var_indices};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use crate::tensor::{Gm, Region, Wr, load, store};
use crate::tile::{self, Frag, Space, Tile};
use kiln_codegen::ir::{self, IxId, IxVarKind, Op, ReduceOp, ScanKind, ViewId};

// --- grid ---

/// Numbers of blocks: an index or a tuple of two or three.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a grid",
    label = "expected one to three indices",
    note = "write `grid(n)`, `grid((a, b))` or `grid((a, b, c))`"
)]
pub trait Grid {
    /// Block indices.
    type Index;
    /// Declares the grid.
    #[track_caller]
    fn grid(self) -> Self::Index;
}
#[track_caller]
fn declare_grid(extents: &[Ix]) -> Vec<Ix> {
    with(|s| {
        if !s.b.kernel.grid.is_empty() {
            s.error("B0104", "the grid is declared twice").help =
                Some("a kernel has one grid; use `grid((a, b))` for more axes".into());
        }
        if s.b.depth() > 1 {
            s.error("B0105", "`grid` inside a loop or branch").help = Some("declare it first, at the top".into());
        }
        let extents: Vec<IxId> = extents.iter().map(|x| x.id).collect();
        s.b.grid(&extents).into_iter().map(|v| Ix::of(s.b.ix_var(v))).collect()
    })
}
impl<A: IntoIx> Grid for A {
    type Index = Ix;
    #[track_caller]
    fn grid(self) -> Ix {
        declare_grid(&[self.ix()])[0]
    }
}
impl<A: IntoIx, B: IntoIx> Grid for (A, B) {
    type Index = (Ix, Ix);
    #[track_caller]
    fn grid(self) -> (Ix, Ix) {
        let x = declare_grid(&[self.0.ix(), self.1.ix()]);
        (x[0], x[1])
    }
}
impl<A: IntoIx, B: IntoIx, C: IntoIx> Grid for (A, B, C) {
    type Index = (Ix, Ix, Ix);
    #[track_caller]
    fn grid(self) -> (Ix, Ix, Ix) {
        let x = declare_grid(&[self.0.ix(), self.1.ix(), self.2.ix()]);
        (x[0], x[1], x[2])
    }
}

/// Declares the numbers of blocks and gives the index of this block.
#[track_caller]
pub fn grid<G: Grid>(extents: G) -> G::Index {
    extents.grid()
}

/// Warps of 32 threads a block has, where a target has threads. Part of the numerics.
#[track_caller]
pub fn warps(count: usize) {
    with(|s| {
        if !(1..=32).contains(&count) {
            s.error("B0106", format!("a block of {count} warps")).help = Some("1 to 32 warps are possible".into());
            return;
        }
        s.b.kernel.warps = count;
    });
}

/// All blocks of the grid meet: what any of them wrote before, all may read after. At the top level of a kernel declared
/// `#[kernel(cooperative)]`; its grid must fit the device as a whole.
#[track_caller]
pub fn grid_sync() {
    with(|s| {
        s.block_level("grid_sync");
        s.b.push(Op::GridBarrier);
    });
}

// --- fills and copies ---

/// Sets every element to zero.
#[track_caller]
pub fn zero<T: DType, S: Space, const N: usize>(t: Tile<T, S, N>) {
    let x = V::<T>::of(0.0);
    fill_with("zero", t, x);
}

/// Sets every element to `x`.
#[track_caller]
pub fn fill<T: DType, S: Space, const N: usize, E: IntoV<T>>(t: Tile<T, S, N>, x: E) {
    let x = x.v();
    fill_with("fill", t, x);
}

#[track_caller]
fn fill_with<T: DType, S: Space, const N: usize>(what: &str, t: Tile<T, S, N>, x: V<T>) {
    let value = x.id;
    with(|s| {
        s.block_level(what);
        s.b.push(Op::Fill { dst: t.view, value });
    });
}

/// One side of a copy: a tile, a region of a tensor, or a whole tensor.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a side of a copy of dtype `{T}` and rank {N}",
    label = "a tile or a region of a tensor is expected",
    note = "dtypes and ranks of both sides must agree (`copy_cast` converts); a region is written `x.at((i, j))`"
)]
pub trait Place<T, const N: usize>: Copy {
    /// View, first element, and extents if it is a tile.
    #[track_caller]
    fn place(self) -> Side<N>;
}
/// One side of a copy, as data.
#[derive(Debug)]
pub struct Side<const N: usize> {
    view: ViewId,
    start: Vec<IxId>,
    tile: Option<[usize; N]>,
}
#[track_caller]
fn whole<const N: usize>(view: ViewId, tile: Option<[usize; N]>) -> Side<N> {
    with(|s| Side { view, start: vec![s.b.ix_const(0); N], tile })
}
impl<T: DType, S: Space, const N: usize> Place<T, N> for Tile<T, S, N> {
    #[track_caller]
    fn place(self) -> Side<N> {
        whole(self.view, Some(self.extents))
    }
}
impl<T: DType, const N: usize, A> Place<T, N> for Gm<T, N, A> {
    #[track_caller]
    fn place(self) -> Side<N> {
        whole(self.view, None)
    }
}
impl<T: DType, const N: usize, A> Place<T, N> for Region<T, N, A> {
    fn place(self) -> Side<N> {
        Side { view: self.view, start: ids(self.start), tile: None }
    }
}

/// Destinations of copies.
#[diagnostic::on_unimplemented(
    message = "this is not a destination for a copy of dtype `{T}` and rank {N}",
    label = "a tile or a region of an `Out`/`InOut` tensor is expected",
    note = "an `In![..]` tensor is read-only; dtypes and ranks of both sides must agree (`copy_cast` converts)"
)]
pub trait Dest<T, const N: usize>: Place<T, N> {}
impl<T: DType, S: Space, const N: usize> Dest<T, N> for Tile<T, S, N> {}
impl<T: DType, const N: usize> Dest<T, N> for Gm<T, N, Wr> {}
impl<T: DType, const N: usize> Dest<T, N> for Region<T, N, Wr> {}

#[track_caller]
fn copy_sides<const N: usize>(src: Side<N>, dst: Side<N>) {
    with(|s| {
        s.block_level("copy");
        let extents = match (src.tile, dst.tile) {
            (Some(a), Some(b)) => {
                if a != b {
                    s.error("B0201", format!("copy of a {a:?} tile to a {b:?} tile")).help =
                        Some("give both the same shape, or reshape one of them".into());
                }
                b
            }
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => {
                s.error("B0204", "a copy between two global tensors").help =
                    Some("copy through a tile; its extents say how much is copied".into());
                return;
            }
        };
        let region = |side: Side<N>| ir::Region { view: side.view, start: side.start };
        s.b.push(Op::Copy { src: region(src), dst: region(dst), extents: extents.to_vec() });
    });
}

/// Copies between a tile and a tensor, or two tiles, of one dtype. Elements outside read as zero and are not written.
#[track_caller]
pub fn copy<T: DType, const N: usize, A: Place<T, N>, B: Dest<T, N>>(src: A, dst: B) {
    copy_sides(src.place(), dst.place());
}

/// Copies and converts: nearest even, saturating to fp8 and fp4.
#[track_caller]
pub fn copy_cast<T: DType, U: DType, const N: usize, A: Place<T, N>, B: Dest<U, N>>(src: A, dst: B) {
    copy_sides(src.place(), dst.place());
}

// --- element functions over tiles ---

/// A new tile `f(x)` of every element `x`.
#[track_caller]
pub fn map<T: DType, U: DType, S: Space, const N: usize, F: FnOnce(V<T>) -> V<U>>(
    t: Tile<T, S, N>,
    f: F,
) -> Tile<U, Frag, N> {
    let out: Tile<U, Frag, N> = tile::alloc("map", t.extents);
    let (vars, body, index) = with(|s| {
        let (vars, body) = open_box(s, "map", &[], &t.extents);
        let index: Vec<IxId> = var_indices(s, &vars).iter().map(|i| i.id).collect();
        (vars, body, index)
    });
    let x = load::<T>(t.view, index.clone());
    let y = f(x);
    store(out.view, index, y, false);
    with(|s| {
        close_box(s);
        s.b.push(Op::Parallel { vars, extents: t.extents.to_vec(), body, distribution: None });
    });
    out
}

// --- reductions ---

/// Tiles that can be reduced along an axis.
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be reduced", label = "a tile of rank 1 to 4 is expected")]
pub trait Reduce: Copy {
    /// A tile with one axis less; a scalar for rank 1.
    type Out;
    /// Reduces.
    #[track_caller]
    fn reduce(self, op: ReduceOp, axis: usize) -> Self::Out;
}
impl<T: Arith, S: Space> Reduce for Tile<T, S, 1> {
    type Out = V<T>;
    #[track_caller]
    fn reduce(self, op: ReduceOp, axis: usize) -> V<T> {
        with(|s| check_axis(s, axis, 1));
        reduce_region(op, self.extents, |i: Ix| load(self.view, vec![i.id]))
    }
}
fn check_axis(s: &mut Session, axis: usize, rank: usize) -> usize {
    if axis >= rank {
        s.error("B0208", format!("reduction along axis {axis} of a tile of rank {rank}"));
    }
    axis.min(rank - 1)
}
macro_rules! reduce_ranks {
    ($($n:literal $less:literal;)*) => { $(
        impl<T: Arith, S: Space> Reduce for Tile<T, S, $n> {
            type Out = Tile<T, Frag, $less>;
            #[track_caller]
            fn reduce(self, op: ReduceOp, axis: usize) -> Self::Out {
                with(|s| {
                    s.block_level("reduce");
                    let axis = check_axis(s, axis, $n);
                    let mut extents = [0; $less];
                    let kept = self.extents.iter().enumerate().filter(|(i, _)| *i != axis);
                    for (out, (_, e)) in extents.iter_mut().zip(kept) {
                        *out = *e;
                    }
                    let (dst, out) = tile::new(s, "reduced", extents);
                    s.b.push(Op::Alloc { buffer: dst });
                    s.b.push(Op::Reduce { op, src: self.view, dst, axis, order: None });
                    out
                })
            }
        }
    )* };
}
reduce_ranks! { 2 1; 3 2; 4 3; }

/// Sums along `axis`, in the order of the kernel's numerics plan.
#[track_caller]
pub fn reduce_sum<X: Reduce>(x: X, axis: usize) -> X::Out {
    x.reduce(ReduceOp::Sum, axis)
}
/// Largest element along `axis`.
#[track_caller]
pub fn reduce_max<X: Reduce>(x: X, axis: usize) -> X::Out {
    x.reduce(ReduceOp::Max, axis)
}
/// Smallest element along `axis`.
#[track_caller]
pub fn reduce_min<X: Reduce>(x: X, axis: usize) -> X::Out {
    x.reduce(ReduceOp::Min, axis)
}
/// Largest absolute value along `axis`.
#[track_caller]
pub fn reduce_absmax<X: Reduce>(x: X, axis: usize) -> X::Out {
    x.reduce(ReduceOp::AbsMax, axis)
}

#[track_caller]
fn reduce_region<T: DType, const N: usize, F>(op: ReduceOp, extents: [usize; N], f: F) -> V<T>
where
    Parallel<N>: BoxIndex,
    F: FnOnce(<Parallel<N> as BoxIndex>::Index) -> V<T>,
{
    let (vars, body, index) = with(|s| {
        let (vars, body) = open_box(s, "reduction", &[], &extents);
        let index = var_indices(s, &vars);
        (vars, body, index)
    });
    let value = f(<Parallel<N> as BoxIndex>::index(&index)).id;
    with(|s| {
        close_box(s);
        let extents = extents.to_vec();
        let op = |result| Op::ReduceRegion { op, vars, extents, body, value, result, order: None };
        V::of_id(s.b.push_value(T::DTYPE, op))
    })
}

macro_rules! regions {
    ($($(#[$doc:meta])* $f:ident $op:ident $bound:ident;)*) => { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $f<T: $bound, const N: usize, F>(extents: [usize; N], f: F) -> V<T>
        where
            Parallel<N>: BoxIndex,
            F: FnOnce(<Parallel<N> as BoxIndex>::Index) -> V<T>,
        {
            reduce_region(ReduceOp::$op, extents, f)
        }
    )* };
}
regions! {
    /// Sum of `f(index)` over a box.
    tile_sum Sum Arith;
    /// Largest `f(index)` over a box.
    tile_max Max Arith;
    /// Smallest `f(index)` over a box.
    tile_min Min Arith;
    /// Largest absolute value of `f(index)` over a box.
    tile_absmax AbsMax Signed;
}

/// True if `f(index)` holds somewhere in a box.
#[track_caller]
pub fn tile_any<const N: usize, F>(extents: [usize; N], f: F) -> V<Bool>
where
    Parallel<N>: BoxIndex,
    F: FnOnce(<Parallel<N> as BoxIndex>::Index) -> V<Bool>,
{
    reduce_region(ReduceOp::Or, extents, f)
}
/// True if `f(index)` holds everywhere in a box.
#[track_caller]
pub fn tile_all<const N: usize, F>(extents: [usize; N], f: F) -> V<Bool>
where
    Parallel<N>: BoxIndex,
    F: FnOnce(<Parallel<N> as BoxIndex>::Index) -> V<Bool>,
{
    reduce_region(ReduceOp::And, extents, f)
}

// --- scans and searches ---

#[track_caller]
fn scan<T: Int, S: Space>(kind: ScanKind, t: Tile<T, S, 1>) -> (Tile<T, Frag, 1>, V<T>) {
    with(|s| {
        s.block_level("scan");
        let (dst, out) = tile::new(s, "scanned", t.extents);
        s.b.push(Op::Alloc { buffer: dst });
        let op = |total| Op::Scan { op: ReduceOp::Sum, kind, src: t.view, dst, axis: 0, total: Some(total) };
        (out, V::of_id(s.b.push_value(T::DTYPE, op)))
    })
}

/// For each element the sum of those before it, and the total.
#[track_caller]
pub fn prefix_sum_exclusive<T: Int, S: Space>(t: Tile<T, S, 1>) -> (Tile<T, Frag, 1>, V<T>) {
    scan(ScanKind::PrefixExclusive, t)
}
/// For each element the sum of those up to and with it, and the total.
#[track_caller]
pub fn prefix_sum_inclusive<T: Int, S: Space>(t: Tile<T, S, 1>) -> (Tile<T, Frag, 1>, V<T>) {
    scan(ScanKind::PrefixInclusive, t)
}
/// For each element the sum of those after it.
#[track_caller]
pub fn suffix_sum_exclusive<T: Int, S: Space>(t: Tile<T, S, 1>) -> Tile<T, Frag, 1> {
    scan(ScanKind::SuffixExclusive, t).0
}
/// For each element the sum of it and those after it.
#[track_caller]
pub fn suffix_sum_inclusive<T: Int, S: Space>(t: Tile<T, S, 1>) -> Tile<T, Frag, 1> {
    scan(ScanKind::SuffixInclusive, t).0
}

/// Smallest `i` for which `f(i)` holds, else the extent.
#[track_caller]
pub fn find_first<F: FnOnce(Ix) -> V<Bool>>(extent: [usize; 1], f: F) -> Ix {
    let (var, body, i) = with(|s| {
        let (vars, body) = open_box(s, "find_first", &[], &extent);
        let i = var_indices(s, &vars)[0];
        (vars[0], body, i)
    });
    let cond = f(i).id;
    with(|s| {
        close_box(s);
        let (zero, end) = (s.b.ix_const(0), s.b.ix_const(extent[0] as i64));
        let name = s.take_name("found");
        let result = s.b.new_ix_var(name, IxVarKind::Data, Some(zero), Some(end));
        s.b.push(Op::FindFirst { var, extent: extent[0], body, cond, result });
        Ix::of(s.b.ix_var(result))
    })
}
