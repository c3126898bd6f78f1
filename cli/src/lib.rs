//! The command line of Kiln, as a library: a user's project calls [`main`] with its own operators and gets the same
//! commands for them.
//!
//! One file a command under `command`. Commands read options, call `codegen` and `runtime`, and hand rows to `output`;
//! they hold no knowledge about kernels. Names, JSON fields and exit codes are a contract scripts depend on.
#![forbid(unsafe_code)]

mod cases;
mod catalog;
mod diagnostics;
mod failure;
mod files;
mod fill;
mod instance;
mod judge;
mod output;
mod suggest;

fn main() {}
