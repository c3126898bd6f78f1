//! Checkpoints and the networks that use them: DeepSeek V3, V3.2, V4 and V4.1 on the kernel library, exact in f32.
//!
//! Flow: `config` reads `config.json`, `checkpoint` opens the tensor files and compares them with it, `weights` decodes and
//! uploads, `forward` is the network, written with the blocks of `layer`, which are written with `operators`: one function an
//! operator of the kernel library. `draft` is the block drafter. `inspect` describes a checkpoint, `verify` compares a model with expected numbers.
//! `text` turns messages into ids and ids into text, `generate` samples, `batch` answers lines of requests. Not here:
//! kernels, devices, the command line, an engine that serves.
#![forbid(unsafe_code)]

pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod draft;
pub mod error;
pub mod forward;
pub mod generate;
pub mod inspect;
pub mod layer;
pub mod operators;
pub mod speculate;
pub mod text;
pub mod tiny;
pub mod verify;
pub mod weights;

pub use error::{Error, Result};
