//! What `let mut` is rewritten into: device variables, read and assigned by ops.

use crate::dtype::{Bool, DType, F32, I8, I32, I64, U8, U32};
use crate::index::{IntoIx, Ix};
use crate::scalar::{IntoV, V};
use crate::session::{Session, with};
use kiln_codegen::ir::{BufferId, IxVarKind, Op, Space};
use std::marker::PhantomData;

/// What a device variable holds: `V<T>` or `Ix`.
pub trait Held: Copy {
    /// Declares the variable.
    fn declare(s: &mut Builder<'_>, name: &str, init: Self) -> BufferId;
    /// Reads it.
    fn read(s: &mut Builder<'_>, var: BufferId) -> Self;
    /// Sets it.
    fn write(s: &mut Builder<'_>, var: BufferId, x: Self);
}
/// The session, opaque outside of this crate.
#[derive(Debug)]
pub struct Builder<'a>(&'a mut Session);

impl<T: DType> Held for V<T> {
    fn declare(s: &mut Builder<'_>, name: &str, init: Self) -> BufferId {
        let var = s.0.b.new_buffer(name, T::DTYPE, &[], Space::Var, false);
        s.0.b.push(Op::VarNew { var, init: init.id });
        var
    }
    fn read(s: &mut Builder<'_>, var: BufferId) -> Self {
        V::of_id(s.0.b.push_value(T::DTYPE, |result| Op::VarGet { result, var }))
    }
    fn write(s: &mut Builder<'_>, var: BufferId, x: Self) {
        s.0.b.push(Op::VarSet { var, value: x.id });
    }
}
impl Held for Ix {
    fn declare(s: &mut Builder<'_>, name: &str, init: Self) -> BufferId {
        let var = s.0.b.new_buffer(name, kiln_codegen::ir::DType::I64, &[], Space::Var, true);
        s.0.b.push(Op::IxVarNew { var, init: init.id });
        var
    }
    fn read(s: &mut Builder<'_>, var: BufferId) -> Self {
        let name = s.0.b.kernel.buffer(var).name.clone();
        let result = s.0.b.new_ix_var(&name, IxVarKind::Data, None, None);
        s.0.b.push(Op::IxVarGet { result, var });
        Ix::of(s.0.b.ix_var(result))
    }
    fn write(s: &mut Builder<'_>, var: BufferId, x: Self) {
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
impl<X> Clone for Var<X> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<X> Copy for Var<X> {}

/// Device variables of one name, as many as there are initial values: an array of `let mut`. They are read with `get` and
/// assigned with `set`.
#[track_caller]
pub fn vars<T: DType>(name: &str, init: &[V<T>]) -> Vec<Var<V<T>>> {
    init.iter().map(|&x| declare(name, x)).collect()
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
    with(|s| Var { id: X::declare(&mut Builder(s), name, init), of: PhantomData })
}
/// In the body of a `spread`: the number of this iteration among those whose condition holds, counted on from `count` in
/// ascending order of the index. Afterwards `count` has grown by all of them. Numbers are what a loop in order would give,
/// so elements can be collected without gaps, and without an order that changes from run to run:
///
/// `let at = claim(&mut count, keep); if keep { list.put(at, x); }`
#[track_caller]
pub fn claim(count: &Var<V<U32>>, keep: V<Bool>) -> V<U32> {
    let (var, cond) = (count.id, keep.id);
    with(|s| V::of_id(s.b.push_value(kiln_codegen::ir::DType::U32, |result| Op::Claim { result, var, cond })))
}
impl<X: Held> Var<X> {
    /// A snapshot.
    #[track_caller]
    pub fn get(&self) -> X {
        with(|s| X::read(&mut Builder(s), self.id))
    }
    /// Assigns.
    #[track_caller]
    pub fn set<E: IntoHeld<X>>(&self, x: E) {
        let x = x.held();
        with(|s| X::write(&mut Builder(s), self.id, x));
    }
}
