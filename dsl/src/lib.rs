//! The kernel language: `#[kernel]` functions, and the typed values their bodies are written with.
//!
//! A kernel function is rewritten into a *builder*: host code that runs once per dtypes, config and fixed dimensions,
//! and leaves IR (`kiln_codegen::ir`) behind. Everything that is not a device value is ordinary Rust that runs while the
//! kernel is built. Nothing here runs a kernel or checks more than shapes: `kiln_codegen::valid` judges the IR, the VM
//! and the devices run it.
//!
//! | file | holds |
//! | --- | --- |
//! | `dtype` `scalar` `index` `arith` `compare` `math` | number formats, `V<T>`, `Ix`, operators, functions |
//! | `tile` `tensor` `ops` | `Tile`, `Gm`, `Region`, and one function an op |
//! | `loops` `branch` `var` | what `for` and `while`, `if`, `let mut` are rewritten into |
//! | `kernel` `config` `launch` `plumbing` | what generated code calls |
//! | `session` | the builder state of this thread |
#![forbid(unsafe_code)]

extern crate self as dsl;

mod arith;
mod branch;
mod compare;
mod config;
mod dtype;
mod index;
mod kernel;
mod launch;
mod loops;
mod math;
mod ops;
#[doc(hidden)]
pub mod plumbing;
pub mod prelude;
mod scalar;
mod session;
mod tensor;
mod tile;
mod var;

pub use branch::{Arm, Cond, DeviceIf, Guard, HostGuard, HostIf, IfEnd, Join, Joined};
pub use compare::{Compare, Decides, HostNumber, Logic};
pub use config::{ConfigField, ConfigWord};
pub use dtype::*;
pub use index::{AnyIdx, Idx, IntoAnyIx, IntoIx, Ix};
pub use kiln_codegen::spec::KernelDef;
pub use kiln_codegen::tune::KernelConfig;
pub use kiln_dsl_macros::{KernelConfig, kernel, kernel_fn};
pub use launch::{View, ViewMut};
pub use loops::{BoxIndex, DeviceLoop, ElementBody, Jumps, Parallel, Rng, Sequential, Spread, WhileCond};
pub use ops::{Dest, Grid, Place, Reduce, Side};
pub use scalar::{IntoV, V};
pub use tensor::{Bytes, Gm, HostIndex, Rd, Region, Wr, Writable};
pub use tile::{Frag, Shared, Space, Tile};
pub use var::{Held, IntoHeld, Var, VarInit};

/// Host code inside a kernel, left as it is: `let mut tiles = host!(Vec::new());`.
#[macro_export]
macro_rules! host {
    ($($t:tt)*) => { { $($t)* } };
}
