//! The kernel language: `#[kernel]` functions, and the typed values their bodies are written with.
//!
//! A kernel function is rewritten into a *builder*: host code that runs once per dtypes, config and fixed dimensions,
//! and leaves IR (`kiln_codegen::ir`) behind. Everything that is not a device value is ordinary Rust that runs while the
//! kernel is built. Nothing here runs a kernel or checks more than shapes: `kiln_codegen::valid` judges the IR, the VM
//! and the devices run it.
//!
//! ```
//! use dsl::prelude::*;
//!
//! /// Host values the kernel is built with; `tune` lists what the tuner may try, the first is the default.
//! #[derive(KernelConfig, Clone, Debug)]
//! pub struct Config {
//!     #[tune(2, 4)]
//!     pub rows: usize,
//! }
//!
//! /// `y[t, j] = x[t, j] / max_j |x[t, :]|`
//! #[kernel(dims(h: fixed), require(h % 8 == 0), batch_invariant(t))]
//! pub fn normalise<T: Float>(cfg: &Config, x: In![T; t, h], y: Out![F32; t, h]) {
//!     let first = grid(t.div_ceil(cfg.rows)) * cfg.rows;
//!     let rows = frag::<F32, 2>([cfg.rows, h]);
//!     copy_cast(x.at((first, 0)), rows);
//!     let top = reduce_absmax(rows, 1);
//!     for (i, j) in parallel([cfg.rows, h]) {
//!         y[(first + i, j)] = if top[i] > 0.0 { rows[(i, j)] / top[i] } else { 0.0 };
//!     }
//! }
//!
//! fn main() {
//!     let request = kiln_codegen::spec::BuildRequest {
//!         config: Config { rows: 4 }.to_config(),
//!         fixed: [("h".to_string(), 64)].into(),
//!         ..Default::default()
//!     };
//!     let ir = normalise::kernel::<Bf16>().build(&request).expect("the kernel builds");
//!     assert_eq!(ir.buffers[0].name, "rows");
//! }
//! ```
//!
//! What a statement means:
//!
//! * `let x = ..` names a value; `let mut x = ..` of a scalar or index is a device variable; `let mut x = host!(..)` is a
//!   host variable. Scalars are `V<T>`, indices `Ix`, host integers `usize`; none becomes another silently.
//! * `t[(i, j)]` reads zero outside and `t[(i, j)] = x` is dropped outside. `get_or` and `put` also take data as indices;
//!   elsewhere data becomes an index by `clamp_index(lo, hi)`.
//! * `for i in a..b`, `while`, `loop` are device loops. `for (i, j) in parallel([..])` and `for i in spread(a..b)` are
//!   phases of independent iterations, whose bodies hold scalar code only. `for x in unroll(..)` repeats at build time.
//! * `for i in pipeline(a..b, stages)` is `for i in a..b` whose copies may run ahead; `for (i, j) in tile_loop((m, n),
//!   Raster::rows())` declares the grid of output tiles and is the rest of the kernel. `part(a..b, size, at)` is part `at` of
//!   a range cut every `size` steps.
//! * `gemm(a, b, acc)`, `gemm_set`, `gemm_scaled((a, |i| row), (b, |j| col), acc)` multiply tiles `[m, k]` and `[k, n]`,
//!   which may be views (`t()`, `cols(..)`). `kv.paged(table, page)` and `kv.rows(ids)` are tensors whose rows are looked
//!   up; a row the table does not name reads as zero, and `has_row(i)` tells.
//! * `if` on a host `bool` keeps one arm; on a device value it builds both and joins scalars and indices. `if let`,
//!   `let .. else` and `match` on optional parameters choose at build time.
//! * `roles(|r| { r.group("load", 1).run(|| ..); .. })` runs programs side by side, joined by `ring(extents, depth)` and
//!   `mailbox(extents)`: `acquire`, `fill`, `publish`; `take`, `tile`, `release`; `send`, `recv`. `gemm_async(a, b, acc)` goes on
//!   until `wait()`.
//! * `#[kernel_fn]` makes a function with such a body callable from kernels; it is inlined. `#[label(x)]` names a
//!   statement for diagnostics and schedules.
//!
//! A kernel becomes a module of its name: `kernel::<T..>()` gives the definition, `Args` the typed arguments, `launch`
//! a checked launch. It sees the items of the module around it, not those of a function body.
//!
//! Mistakes of a build are diagnostics, all at once: `B01..` whole kernel (panic, open scope, grid, warps), `B02..`
//! shapes and sizes, `B03..` code that an element body cannot hold, `B04..` dimensions, config and requirements, `B05..`
//! views of bytes and of looked-up rows, `B06..` roles and rings.
//!
//! | file | holds |
//! | --- | --- |
//! | `dtype` `scalar` `index` `arith` `compare` `math` | number formats, `V<T>`, `Ix`, operators, functions |
//! | `tile` `tensor` `ops` | `Tile`, `Gm`, `Region`, and one function an op |
//! | `matrix` `gather` `select` `precise` | matrix products, looked-up rows, top-k, exponentials and logarithms to the last places |
//! | `roles` `schedule` | roles written by hand, rings and mailboxes between them; schedules written beside a kernel |
//! | `loops` `tiles` `branch` `var` | what `for` and `while`, `if`, `let mut` are rewritten into |
//! | `kernel` `config` `launch` `plumbing` | what generated code calls |
//! | `session` | the builder state of this thread |
#![forbid(unsafe_code)]

extern crate self as dsl;

mod arith;
mod branch;
mod check;
mod compare;
mod config;
mod dtype;
mod gather;
mod index;
mod kernel;
mod launch;
mod loops;
mod math;
mod matrix;
mod ops;
#[doc(hidden)]
mod packed;
pub mod plumbing;
mod precise;
pub mod prelude;
mod roles;
mod scalar;
pub mod schedule;
mod select;
mod session;
mod tensor;
mod tile;
mod tiles;
mod var;

pub use branch::{Arm, Cond, DeviceIf, Guard, HostGuard, HostIf, IfEnd, Join, Joined};
pub use check::Checked;
pub use compare::{Compare, Decides, HostNumber, Logic};
pub use config::{ConfigField, ConfigWord};
pub use dtype::*;
pub use gather::Table;
pub use index::{AnyIdx, Idx, IntoAnyIx, IntoIx, Ix};
pub use kiln_codegen::spec::KernelDef;
pub use kiln_codegen::tune::KernelConfig;
pub use kiln_dsl_macros::{KernelConfig, kernel, kernel_fn, schedule};
pub use launch::{View, ViewMut};
pub use loops::{BoxIndex, DeviceLoop, ElementBody, Jumps, Parallel, Rng, Sequential, Spread, WhileCond};
pub use matrix::{Mma, ScaledMma, Unset};
pub use ops::{Dest, Grid, Place, Reduce, Side};
pub use roles::{Group, Mailbox, Pending, Ring, Roles, Slot, Taken};
pub use scalar::{IntoV, V};
pub use tensor::{Bytes, Gm, HostIndex, Rd, Region, Wr, Writable};
pub use tile::{Frag, Shared, Space, Tile};
pub use tiles::{GroupedTiles, Groups, OpenGroups, OpenTiles, Pipeline, Raster, TileLoop};
pub use var::{Held, IntoHeld, Var, VarInit};

/// Host code inside a kernel, left as it is: `let mut tiles = host!(Vec::new());`.
#[macro_export]
macro_rules! host {
    ($($t:tt)*) => { { $($t)* } };
}
