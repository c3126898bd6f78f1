//! What `for`, `while`, `loop`, `break` and `continue` are rewritten into.
//!
//! Every construct is *begin, body, end* calls around the user's statements, never a closure, so `let` bindings and
//! borrowed host data keep working inside.

use crate::dtype::Bool;
use crate::index::{IntoIx, Ix};
use crate::scalar::V;
use crate::session::{Session, with};
use crate::tile::NOTHING;
use kiln_codegen::ir::{BlockId, IxId, IxVarId, IxVarKind, Op, SpanId, UnaryOp};

/// A device range `a..b`.
#[derive(Clone, Copy, Debug)]
pub struct Rng {
    pub(crate) lo: Ix,
    pub(crate) hi: Ix,
}
impl Rng {
    /// First index.
    pub fn start(self) -> Ix {
        self.lo
    }
    /// End, exclusive.
    pub fn end(self) -> Ix {
        self.hi
    }
}
/// The device range `a..b`; kernels write it as a Rust range.
#[track_caller]
pub fn range<A: IntoIx, B: IntoIx>(a: A, b: B) -> Rng {
    Rng { lo: a.ix(), hi: b.ix() }
}

/// Iterations over `lo..hi`, spread over the block.
#[derive(Clone, Copy, Debug)]
pub struct Spread(Rng);
/// Independent iterations over a range whose length is known only at run time.
pub fn spread(range: Rng) -> Spread {
    Spread(range)
}

/// Iterations over a box, spread over the block.
#[derive(Clone, Copy, Debug)]
pub struct Parallel<const N: usize>([usize; N]);
/// Independent iterations over a box, one to four axes.
pub fn parallel<const N: usize>(extents: [usize; N]) -> Parallel<N> {
    Parallel(extents)
}

/// What a `for` of a kernel iterates over.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a device loop",
    label = "a host iterator needs `unroll(..)`",
    note = "write `for x in unroll(iterator)` to repeat the body at build time; device loops are `a..b`, `pipeline(..)`, `parallel(..)`, `spread(..)`, `tile_loop(..)` and `tile_loop_grouped(..)`"
)]
pub trait DeviceLoop {
    /// Loop index or tuple of indices.
    type Index;
    /// Closes the loop.
    type Guard;
    /// Opens the loop; `names` are those of the pattern.
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (Self::Guard, Self::Index);
}

/// `for` begins.
#[track_caller]
pub fn for_begin<L: DeviceLoop>(what: L, names: &[&'static str]) -> (L::Guard, L::Index) {
    what.begin(names)
}

/// An open sequential loop.
#[derive(Debug)]
#[must_use]
pub struct Sequential {
    kind: SequentialKind,
    body: BlockId,
    at: SpanId,
}
#[derive(Debug)]
enum SequentialKind {
    For { var: IxVarId, lo: IxId, hi: IxId, stages: usize },
    Loop,
}

fn name(names: &[&'static str], axis: usize, default: &'static str) -> &'static str {
    names.get(axis).copied().filter(|n| *n != "_").unwrap_or(default)
}

impl DeviceLoop for Rng {
    type Index = Ix;
    type Guard = Sequential;
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (Sequential, Ix) {
        let (lo, hi) = (self.lo.id, self.hi.id);
        with(|s| {
            let one = s.b.ix_const(1);
            let last = s.b.ix_sub(hi, one);
            let var = s.b.new_ix_var(name(names, 0, "i"), IxVarKind::Loop, Some(lo), Some(last));
            let at = s.b.here();
            let body = s.b.open();
            (Sequential { kind: SequentialKind::For { var, lo, hi, stages: 1 }, body, at }, Ix::of(s.b.ix_var(var)))
        })
    }
}

/// `while` or `loop` begins.
#[track_caller]
pub fn while_begin() -> Sequential {
    with(|s| {
        let at = s.b.here();
        let body = s.b.open();
        Sequential { kind: SequentialKind::Loop, body, at }
    })
}

/// Conditions of `while`.
#[diagnostic::on_unimplemented(
    message = "a `while` condition must be a device value, found `{Self}`",
    label = "a host value cannot change while the loop runs",
    note = "use `loop {{ .. break .. }}`, a `for` loop, or `unroll(..)`"
)]
pub trait WhileCond {
    /// The condition.
    fn cond(self) -> V<Bool>;
}
impl WhileCond for V<Bool> {
    fn cond(self) -> V<Bool> {
        self
    }
}

/// Leaves the loop unless the condition holds.
#[track_caller]
pub fn while_test<C: WhileCond>(_: &Sequential, c: C) {
    let stop = c.cond().unary(UnaryOp::Not);
    with(|s| {
        let then = s.b.open();
        s.b.push(Op::Break);
        s.b.close();
        let els = s.b.open();
        s.b.close();
        s.b.push(Op::If { cond: stop.id, then, els, results: vec![] });
    });
}

impl Sequential {
    /// The same loop with stages of a software pipeline.
    pub(crate) fn staged(mut self, n: usize) -> Self {
        match &mut self.kind {
            SequentialKind::For { stages, .. } => *stages = n,
            SequentialKind::Loop => {}
        }
        self
    }
    /// The loop ends.
    #[track_caller]
    pub fn end(self) {
        with(|s| {
            s.b.close();
            let op = match self.kind {
                SequentialKind::For { var, lo, hi, stages } => Op::For { var, lo, hi, body: self.body, stages },
                SequentialKind::Loop => Op::Loop { body: self.body },
            };
            s.push_at(self.at, op);
        });
    }
}

/// An open element body.
#[derive(Debug)]
#[must_use]
pub struct ElementBody {
    kind: ElementKind,
    body: BlockId,
    at: SpanId,
}
#[derive(Debug)]
enum ElementKind {
    Parallel { vars: Vec<IxVarId>, extents: Vec<usize> },
    Spread { var: IxVarId, lo: IxId, hi: IxId },
}

/// Opens a block whose code runs per element, over a box.
pub(crate) fn open_box(
    s: &mut Session,
    what: &str,
    names: &[&'static str],
    extents: &[usize],
) -> (Vec<IxVarId>, BlockId) {
    s.block_level(what);
    if extents.contains(&0) {
        s.error("B0202", format!("`{what}` over {extents:?} has no iterations")).help = Some(NOTHING.into());
    }
    let zero = s.b.ix_const(0);
    let defaults = ["i", "j", "k", "l", "m"];
    let vars = extents.iter().enumerate().map(|(axis, &n)| {
        let last = s.b.ix_const(n as i64 - 1);
        s.b.new_ix_var(name(names, axis, defaults[axis.min(4)]), IxVarKind::Element, Some(zero), Some(last))
    });
    let vars = vars.collect();
    s.bodies += 1;
    (vars, s.b.open())
}

pub(crate) fn close_box(s: &mut Session) {
    s.bodies -= 1;
    s.b.close();
}

impl DeviceLoop for Spread {
    type Index = Ix;
    type Guard = ElementBody;
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (ElementBody, Ix) {
        let (lo, hi) = (self.0.lo.id, self.0.hi.id);
        with(|s| {
            s.block_level("spread");
            let one = s.b.ix_const(1);
            let last = s.b.ix_sub(hi, one);
            let var = s.b.new_ix_var(name(names, 0, "i"), IxVarKind::Element, Some(lo), Some(last));
            let at = s.b.here();
            s.bodies += 1;
            let body = s.b.open();
            (ElementBody { kind: ElementKind::Spread { var, lo, hi }, body, at }, Ix::of(s.b.ix_var(var)))
        })
    }
}

/// Numbers of axes a box can have, and the index they give: `Ix` or a tuple.
#[diagnostic::on_unimplemented(message = "a box of this rank is not supported", label = "one to four axes")]
pub trait BoxIndex {
    /// `Ix`, `(Ix, Ix)`, ..
    type Index;
    /// Makes it.
    fn index(axes: &[Ix]) -> Self::Index;
}
macro_rules! boxes {
    ($($n:literal: $out:ty = |$x:ident| $e:expr;)*) => { $(
        impl BoxIndex for Parallel<$n> {
            type Index = $out;
            fn index($x: &[Ix]) -> $out { $e }
        }
    )* };
}
boxes! {
    1: Ix = |x| x[0];
    2: (Ix, Ix) = |x| (x[0], x[1]);
    3: (Ix, Ix, Ix) = |x| (x[0], x[1], x[2]);
    4: (Ix, Ix, Ix, Ix) = |x| (x[0], x[1], x[2], x[3]);
}
pub(crate) fn var_indices(s: &mut Session, vars: &[IxVarId]) -> Vec<Ix> {
    vars.iter().map(|&v| Ix::of(s.b.ix_var(v))).collect()
}

impl<const N: usize> DeviceLoop for Parallel<N>
where
    Parallel<N>: BoxIndex,
{
    type Index = <Parallel<N> as BoxIndex>::Index;
    type Guard = ElementBody;
    #[track_caller]
    fn begin(self, names: &[&'static str]) -> (ElementBody, Self::Index) {
        with(|s| {
            let at = s.b.here();
            let (vars, body) = open_box(s, "parallel", names, &self.0);
            let index = var_indices(s, &vars);
            let guard = ElementBody { kind: ElementKind::Parallel { vars, extents: self.0.to_vec() }, body, at };
            (guard, Self::index(&index))
        })
    }
}

impl ElementBody {
    /// The body ends.
    #[track_caller]
    pub fn end(self) {
        with(|s| {
            close_box(s);
            let body = self.body;
            let op = match self.kind {
                ElementKind::Parallel { vars, extents } => Op::Parallel { vars, extents, body, distribution: None },
                ElementKind::Spread { var, lo, hi } => Op::Spread { var, lo, hi, body },
            };
            s.push_at(self.at, op);
        });
    }
}

/// Loops that `break` and `continue` may leave.
#[diagnostic::on_unimplemented(
    message = "`break` and `continue` do not exist in an element body",
    label = "iterations of `parallel`/`spread` are independent",
    note = "guard the rest of the body with `if`"
)]
pub trait Jumps {}
impl Jumps for Sequential {}

#[track_caller]
fn jump(op: Op, what: &str) {
    with(|s| {
        if s.bodies > 0 {
            s.error("B0303", format!("`{what}` inside an element body")).help =
                Some("guard the rest of the loop with `if`".into());
        }
        s.b.push(op);
    });
}
/// `break` of a device loop.
#[track_caller]
pub fn break_<L: Jumps>(_: &L) {
    jump(Op::Break, "break");
}
/// `continue` of a device loop.
#[track_caller]
pub fn continue_<L: Jumps>(_: &L) {
    jump(Op::Continue, "continue");
}

/// Repeats a loop body at build time, once an element of a host iterator.
pub fn unroll<I: IntoIterator>(items: I) -> I::IntoIter {
    items.into_iter()
}
/// Makes the range of an `unroll` one of `usize`, the one host integer type of kernels.
pub fn unroll_range(range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    range
}
