//! Running kernels: devices, tensors, streams, compilation, measuring and tuning.
//!
//! Flow: [`open`] gives a [`Device`]; tensors go up and down through it; its [`Stream`] is an
//! [`abi::Launcher`](kiln_codegen::abi::Launcher), which binds a launch, builds (and for a GPU compiles) the kernel once,
//! and enqueues it. [`compile`] needs no device at all. [`measure`] times plans and [`tune`] searches configurations.
//! Everything device-specific stays behind `device`; this crate knows no kernel and no model.
//!
//! `unsafe` lives in `device/cuda/`, `device/ascend/`, `device/sim/` and `compile/nvrtc.rs` only.
#![deny(unsafe_code)]

pub mod compile;
pub mod config;
pub mod device;
pub mod error;
mod launch;
pub mod measure;
pub mod tensor;
pub mod tune;

pub use config::Settings;
pub use device::{Device, DeviceInfo, Event, Graph, Recorded, RunOptions, Stream, list, open, open_with};
pub use error::{Error, Result};
