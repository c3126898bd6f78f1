//! Typed arguments of a launch: views whose dtype and rank were checked once.
//!
//! Shapes, strides, devices and overlaps are checked when the launch is executed, by `codegen::bind`.

use crate::dtype::DType;
use kiln_codegen::abi::{Arg, LaunchError, LaunchErrorKind, TensorView};
use std::marker::PhantomData;

/// A tensor of dtype `T` and rank `N` that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T, const N: usize> {
    tensor: &'a TensorView,
    of: PhantomData<fn() -> T>,
}
/// A tensor of dtype `T` and rank `N` that a kernel writes.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut<'a, T, const N: usize> {
    tensor: &'a TensorView,
    of: PhantomData<fn() -> T>,
}

fn check<T: DType, const N: usize>(t: &TensorView) -> Result<(), LaunchError> {
    let error = |kind, expected: String, got: String| {
        let help = "check the tensor before it is made an argument".into();
        Err(LaunchError { kernel: "view".into(), parameter: None, kind, expected, got, help })
    };
    if t.dtype != T::DTYPE {
        return error(LaunchErrorKind::DType, format!("dtype {}", T::NAME), format!("{}", t.dtype));
    }
    if t.shape.len() != N {
        return error(LaunchErrorKind::Rank, format!("rank {N}"), format!("shape {:?}", t.shape));
    }
    Ok(())
}

macro_rules! views {
    ($($view:ident)*) => { $(
        impl<'a, T: DType, const N: usize> $view<'a, T, N> {
            /// Checks dtype and rank.
            ///
            /// # Errors
            /// If one differs.
            pub fn new(tensor: &'a TensorView) -> Result<Self, LaunchError> {
                check::<T, N>(tensor)?;
                Ok($view { tensor, of: PhantomData })
            }
            /// The tensor.
            pub fn tensor(&self) -> &'a TensorView {
                self.tensor
            }
        }
        impl<T, const N: usize> From<$view<'_, T, N>> for Arg {
            fn from(v: $view<'_, T, N>) -> Arg {
                Arg::Tensor(v.tensor.clone())
            }
        }
    )* };
}
views!(View ViewMut);

/// A scalar argument.
pub fn scalar<T: DType>(x: T::Host) -> Arg {
    Arg::Scalar(T::literal(x))
}
/// An optional argument.
pub fn optional(arg: Option<Arg>) -> Arg {
    arg.unwrap_or(Arg::Absent)
}
