//! Checkpoints and, later, the networks that use them.
//!
//! Today: reading tensor files. Not here: kernels, devices, the command line. Flow: `checkpoint` turns files into host
//! tensors; `cli` (and the network to come) hand those to `runtime` and `kernels`.
#![forbid(unsafe_code)]

pub mod checkpoint;
