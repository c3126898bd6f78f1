//! Tests of the runtime from outside: devices without hardware, the compiler without a device, processes that share a
//! cache. Hardware and compilers that are missing are printed as skipped, and are failures where `CI=true`.

#![allow(clippy::print_stdout, reason = "skipped tests and children of tests say why and what")]

mod cpu;
mod gpu;
mod no_gpu;
mod null;
mod nvrtc;
mod scale;
mod sim;
mod tune;
