//! Facts computed from the IR on demand: ranges and divisibility of indices, order dependence, batch invariance, the
//! numerics fingerprint.
//!
//! Nothing here changes a kernel or judges it; `valid` asks these questions to judge, passes and emitters to choose.

pub(crate) mod carried;
pub mod determinism;
pub mod fingerprint;
pub mod invariance;
pub(crate) mod poly;
pub mod ranges;

pub use ranges::{Affine, Ranges};
