//! The compiler of Kiln: tile IR, verifier, passes, emitters and the tile VM.
//!
//! Flow: a kernel function builds a plain [`ir::Kernel`]; [`valid::check`] proves or reports; `pass` lowers it for a
//! target; `emit` prints it, or `vm` runs it. This crate touches no device, no environment and no file.
//! Neighbours: `dsl` builds the IR, `kernels` describes operators with [`spec`] and [`abi`], `runtime` executes launches.
// `forbid` could not be lifted for the one module that holds the VM's vector dispatch, `vm::simd`.
#![deny(unsafe_code)]

pub mod abi;
pub mod analysis;
pub mod bind;
pub mod compile;
pub mod diag;
pub mod emit;
pub mod formats;
pub mod host_memory;
pub mod host_tensor;
pub mod ir;
pub mod machine;
pub mod model;
pub mod pass;
pub mod spec;
pub mod target;
pub mod tensor_map;
pub mod tune;
pub mod valid;
pub mod vm;
