//! Passes: each takes a kernel and returns a changed one; the order per target is data in this file.

pub mod numerics;
