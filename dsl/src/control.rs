//! What `for`, `while`, `loop`, `if`, `break` and `let mut` are rewritten into.
//!
//! Every construct is *begin, body, end* calls around the user's statements, never a closure, so `let` bindings and
//! borrowed host data keep working inside.

use crate::dtype::{Bool, DType, F32, I8, I32, I64, U8, U32};
use crate::index::{IntoIx, Ix};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use kiln_codegen::ir::{
    BlockId, BufferId, IfResult, IxExpr, IxId, IxVarId, IxVarKind, Op, Space, SpanId, UnaryOp, ValueId,
};
use std::cell::Cell;
use std::marker::PhantomData;

// --- loops ---

/// A device range `a..b`.
#[derive(Clone, Copy, Debug)]
pub struct Rng {
    lo: Ix,
    hi: Ix,
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
    note = "write `for x in unroll(iterator)` to repeat the body at build time; device loops are `a..b`, `parallel(..)` and `spread(..)`"
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
    For { var: IxVarId, lo: IxId, hi: IxId },
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
            (Sequential { kind: SequentialKind::For { var, lo, hi }, body, at }, Ix::of(s.b.ix_var(var)))
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

/// Pushes an op that belongs to a construct opened earlier, at that construct's position.
fn push_at(s: &mut Session, at: SpanId, op: Op) {
    let span = s.b.kernel.span_of(at).clone();
    s.b.at(span);
    s.b.push(op);
}

impl Sequential {
    /// The loop ends.
    #[track_caller]
    pub fn end(self) {
        with(|s| {
            s.b.close();
            let op = match self.kind {
                SequentialKind::For { var, lo, hi } => Op::For { var, lo, hi, body: self.body },
                SequentialKind::Loop => Op::Loop { body: self.body },
            };
            push_at(s, self.at, op);
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
        s.error("B0202", format!("`{what}` over {extents:?} has no iterations"));
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
            push_at(s, self.at, op);
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

// --- if ---

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
            push_at(s, self.at, Op::If { cond: self.cond, then: self.then, els, results });
            let op = kiln_codegen::ir::OpId(s.b.kernel.ops.len() as u32 - 1);
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

// --- let mut ---

/// What a device variable holds: `V<T>` or `Ix`.
pub trait Held: Copy {
    /// Declares the variable.
    fn declare(s: &mut Session_<'_>, name: &str, init: Self) -> BufferId;
    /// Reads it.
    fn read(s: &mut Session_<'_>, var: BufferId) -> Self;
    /// Sets it.
    fn write(s: &mut Session_<'_>, var: BufferId, x: Self);
}
/// The session, opaque outside of this crate.
#[derive(Debug)]
pub struct Session_<'a>(&'a mut Session);

impl<T: DType> Held for V<T> {
    fn declare(s: &mut Session_<'_>, name: &str, init: Self) -> BufferId {
        let var = s.0.b.new_buffer(name, T::DTYPE, &[], Space::Var, false);
        s.0.b.push(Op::VarNew { var, init: init.id });
        var
    }
    fn read(s: &mut Session_<'_>, var: BufferId) -> Self {
        V::of_id(s.0.b.push_value(T::DTYPE, |result| Op::VarGet { result, var }))
    }
    fn write(s: &mut Session_<'_>, var: BufferId, x: Self) {
        s.0.b.push(Op::VarSet { var, value: x.id });
    }
}
impl Held for Ix {
    fn declare(s: &mut Session_<'_>, name: &str, init: Self) -> BufferId {
        let var = s.0.b.new_buffer(name, kiln_codegen::ir::DType::I64, &[], Space::Var, true);
        s.0.b.push(Op::IxVarNew { var, init: init.id });
        var
    }
    fn read(s: &mut Session_<'_>, var: BufferId) -> Self {
        let name = s.0.b.kernel.buffer(var).name.clone();
        let result = s.0.b.new_ix_var(&name, IxVarKind::Data, None, None);
        s.0.b.push(Op::IxVarGet { result, var });
        Ix::of(s.0.b.ix_var(result))
    }
    fn write(s: &mut Session_<'_>, var: BufferId, x: Self) {
        s.0.b.push(Op::IxVarSet { var, index: x.id });
    }
}

/// What can be assigned to a device variable holding `X`.
#[diagnostic::on_unimplemented(
    message = "expected `{X}`, found `{Self}`",
    label = "wrong type for this variable",
    note = "convert with `.to::<T>()`, `.value()` or `.clamp_index(lo, hi)`"
)]
pub trait IntoHeld<X> {
    /// As what the variable holds.
    #[track_caller]
    fn held(self) -> X;
}
impl<T: DType, E: IntoV<T>> IntoHeld<V<T>> for E {
    #[track_caller]
    fn held(self) -> V<T> {
        self.v()
    }
}
impl<E: IntoIx> IntoHeld<Ix> for E {
    #[track_caller]
    fn held(self) -> Ix {
        self.ix()
    }
}

/// First values of device variables.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a device variable",
    label = "`let mut` makes a device variable, which holds a scalar or an index",
    note = "a host value that changes while the kernel is built is written `let mut x = host!(..);`"
)]
pub trait VarInit {
    /// What the variable holds.
    type Held: Held;
    /// As that.
    #[track_caller]
    fn init(self) -> Self::Held;
}
impl<T: DType> VarInit for V<T> {
    type Held = V<T>;
    fn init(self) -> V<T> {
        self
    }
}
impl VarInit for Ix {
    type Held = Ix;
    fn init(self) -> Ix {
        self
    }
}
impl VarInit for usize {
    type Held = Ix;
    #[track_caller]
    fn init(self) -> Ix {
        self.ix()
    }
}
macro_rules! var_literals {
    ($($host:ident $t:ident)*) => { $(
        impl VarInit for $host {
            type Held = V<$t>;
            #[track_caller]
            fn init(self) -> V<$t> { IntoV::<$t>::v(self) }
        }
    )* };
}
var_literals!(f32 F32 i32 I32 u32 U32 i64 I64 i8 I8 u8 U8 bool Bool);

/// A device variable, made by `let mut`. Reading it is an op: a snapshot.
#[derive(Debug)]
pub struct Var<X> {
    id: BufferId,
    of: PhantomData<(X, *const ())>,
}
/// `let mut name = init;`
#[track_caller]
pub fn var<E: VarInit>(name: &str, init: E) -> Var<E::Held> {
    declare(name, init.init())
}
/// `let mut name: X = init;`
#[track_caller]
pub fn var_as<X: Held, E: IntoHeld<X>>(name: &str, init: E) -> Var<X> {
    declare(name, init.held())
}
#[track_caller]
fn declare<X: Held>(name: &str, init: X) -> Var<X> {
    with(|s| Var { id: X::declare(&mut Session_(s), name, init), of: PhantomData })
}
impl<X: Held> Var<X> {
    /// A snapshot.
    #[track_caller]
    pub fn get(&self) -> X {
        with(|s| X::read(&mut Session_(s), self.id))
    }
    /// Assigns.
    #[track_caller]
    pub fn set<E: IntoHeld<X>>(&self, x: E) {
        let x = x.held();
        with(|s| X::write(&mut Session_(s), self.id, x));
    }
}
