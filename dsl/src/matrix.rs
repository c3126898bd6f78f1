//! Matrix products of tiles: `gemm`, `gemm_set`, `gemm_scaled`, and which dtypes they take.
//!
//! Sizes are checked here, while building; how a product is computed is `kiln_codegen::ir::Op::Gemm`'s contract.

use crate::dtype::{Bf16, DType, E2m1, E4m3, E5m2, F16, F32, I8};
use crate::index::Ix;
use crate::loops::{close_box, open_box, var_indices};
use crate::scalar::IntoV;
use crate::session::{Session, with};
use crate::tile::{Frag, Space, Tile};
use kiln_codegen::ir::{Base, BufferId, GemmScale, Op, SchedOp, Span, ViewId, build};

/// Dtypes `(A, B, C)` of a product: `C += A * B`.
#[diagnostic::on_unimplemented(
    message = "no matrix instruction multiplies `{Self}`",
    label = "operands and accumulator of these dtypes do not go together",
    note = "supported: `(T, T, F32)` for `T` in F32, F16, Bf16, E4m3, E5m2, E2m1, I8, and `(E4m3, E5m2, F32)` either way; cast one operand first",
    note = "an 8-bit float meets E2m1 in `gemm_scaled` only"
)]
pub trait Mma {}
/// Dtypes `(A, B, C)` of a product with scales: those of [`Mma`], and an 8-bit float with `E2m1`.
#[diagnostic::on_unimplemented(
    message = "no scaled matrix instruction multiplies `{Self}`",
    label = "operands and accumulator of these dtypes do not go together",
    note = "supported: `(T, T, F32)` for `T` in F32, F16, Bf16, E4m3, E5m2, E2m1, I8, and any two of E4m3, E5m2, E2m1 with F32; cast one operand first"
)]
pub trait ScaledMma {}
/// No dtype: it keeps rustc from concluding an operand's dtype from the other's, so that a wrong pair is reported as one.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Unset {}
macro_rules! products {
    ($($a:ident: $($b:ident)*, $($scaled:ident)*;)*) => { $(
        $(
            impl Mma for ($a, $b, F32) {}
            impl ScaledMma for ($a, $b, F32) {}
            #[diagnostic::do_not_recommend]
            impl Mma for ($a, $b, Unset) {}
            #[diagnostic::do_not_recommend]
            impl ScaledMma for ($a, $b, Unset) {}
        )*
        $(impl ScaledMma for ($a, $scaled, F32) {})*
        #[diagnostic::do_not_recommend]
        impl Mma for ($a, Unset, F32) {}
        #[diagnostic::do_not_recommend]
        impl ScaledMma for ($a, Unset, F32) {}
    )* };
}
products! {
    F32: F32,;
    F16: F16,;
    Bf16: Bf16,;
    I8: I8,;
    E4m3: E4m3 E5m2, E2m1;
    E5m2: E4m3 E5m2, E2m1;
    E2m1: E2m1, E4m3 E5m2;
}

/// Where the tile behind a view is allocated, for a note.
fn allocation(s: &Session, view: ViewId) -> Option<(String, Option<Span>)> {
    let Base::Buffer(b) = s.b.kernel.view(view).base else { return None };
    let b = s.b.kernel.buffer(b);
    Some((format!("`{}` is allocated", b.name), Some(s.b.kernel.span_of(b.span).clone())))
}

/// Checks the sizes `a [m, k]`, `b [k, n]`, `acc [m, n]`; gives the accumulator if it is a whole tile.
fn check<A, B, C, SA, SB>(
    s: &mut Session,
    a: Tile<A, SA, 2>,
    b: Tile<B, SB, 2>,
    acc: Tile<C, Frag, 2>,
) -> Option<BufferId> {
    s.block_level("gemm");
    let ([m, k], [k2, n]) = (a.extents, b.extents);
    if k != k2 {
        let notes: Vec<_> = [a.view, b.view].into_iter().filter_map(|v| allocation(s, v)).collect();
        let d = s.error("B0209", format!("inner sizes differ: A is {m}x{k}, B is {k2}x{n}"));
        d.notes.extend(notes);
        d.help = Some("transpose an operand with `.t()`, or take some of its columns with `.cols(..)`".into());
    } else if acc.extents != [m, n] {
        let note = allocation(s, acc.view);
        let [rows, cols] = acc.extents;
        s.error("B0209", format!("the product is {m}x{n}, the accumulator {rows}x{cols}")).notes.extend(note);
    }
    let v = s.b.kernel.view(acc.view).clone();
    let Base::Buffer(buffer) = v.base else { return None };
    let extents = s.b.kernel.buffer(buffer).extents.clone();
    let strides: Vec<_> = build::row_major(&extents).into_iter().map(|x| s.b.ix_const(x as i64)).collect();
    if extents != acc.extents || v.strides != strides || s.b.kernel.ix_const(v.offset) != Some(0) {
        s.error("B0210", "the accumulator is a part or another form of a tile").help =
            Some("accumulate into a `frag` of its own".into());
        return None;
    }
    Some(buffer)
}

/// A product; in a role by the matrix unit of its warp group, which may go on.
fn push(s: &mut Session, [a, b]: [ViewId; 2], acc: BufferId, [set, hold]: [bool; 2]) {
    s.b.push(match s.role {
        Some(_) => Op::Sched(SchedOp::Wgmma { a, b, acc, set, scales: None, release: vec![], hold }),
        None => Op::Gemm { a, b, acc, set, scales: None },
    });
}

/// `acc += a * b` that goes on.
pub(crate) fn held_product<A, B, SA, SB>(
    s: &mut Session,
    a: Tile<A, SA, 2>,
    b: Tile<B, SB, 2>,
    acc: Tile<F32, Frag, 2>,
) {
    if let Some(buffer) = check(s, a, b, acc) {
        push(s, [a.view, b.view], buffer, [false, true]);
    }
}

#[track_caller]
fn product<A, B, C, SA, SB>(a: Tile<A, SA, 2>, b: Tile<B, SB, 2>, acc: Tile<C, Frag, 2>, set: bool) {
    with(|s| {
        if let Some(buffer) = check(s, a, b, acc) {
            push(s, [a.view, b.view], buffer, [set, false]);
        }
    });
}

/// `acc += a * b` for `a [m, k]`, `b [k, n]`, `acc [m, n]`: each element is one chain of fused multiply-adds in ascending
/// `k`. Operands are tiles or views of tiles: `t()`, `cols(..)`, `reshape(..)`, `pick(..)`.
#[track_caller]
pub fn gemm<A: DType, B: DType, C: DType, SA: Space, SB: Space>(
    a: Tile<A, SA, 2>,
    b: Tile<B, SB, 2>,
    acc: Tile<C, Frag, 2>,
) where
    (A, B, C): Mma,
{
    product(a, b, acc, false);
}

/// `acc = a * b`: as [`gemm`], whatever `acc` held.
#[track_caller]
pub fn gemm_set<A: DType, B: DType, C: DType, SA: Space, SB: Space>(
    a: Tile<A, SA, 2>,
    b: Tile<B, SB, 2>,
    acc: Tile<C, Frag, 2>,
) where
    (A, B, C): Mma,
{
    product(a, b, acc, true);
}

/// `acc[i, j] += row(i) * col(j) * (a * b)[i, j]`: block-scaled operands with the factors of their rows and columns. The
/// product is formed from +0 and then added with one rounding, `fma(row(i) * col(j), product, acc)`.
#[track_caller]
pub fn gemm_scaled<A: DType, B: DType, C: DType, SA: Space, SB: Space, R, L>(
    (a, row): (Tile<A, SA, 2>, impl FnOnce(Ix) -> R),
    (b, col): (Tile<B, SB, 2>, impl FnOnce(Ix) -> L),
    acc: Tile<C, Frag, 2>,
) where
    (A, B, C): ScaledMma,
    R: IntoV<F32>,
    L: IntoV<F32>,
{
    let buffer = with(|s| check(s, a, b, acc));
    let rows = scale(acc.extents[0], "i", row);
    let cols = scale(acc.extents[1], "j", col);
    with(|s| {
        if let Some(acc) = buffer {
            s.b.push(Op::Gemm { a: a.view, b: b.view, acc, set: false, scales: Some([rows, cols]) });
        }
    });
}

/// Builds the body of a scale.
#[track_caller]
fn scale<R: IntoV<F32>>(extent: usize, name: &'static str, f: impl FnOnce(Ix) -> R) -> GemmScale {
    let (var, body, i) = with(|s| {
        let (vars, body) = open_box(s, "gemm_scaled", &[name], &[extent]);
        let i = var_indices(s, &vars)[0];
        (vars[0], body, i)
    });
    let value = f(i).v().id;
    with(close_box);
    GemmScale { var, body, value }
}
