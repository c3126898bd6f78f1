//! The kernel library of Kiln: operators as pure descriptions, one file a kernel.
#![forbid(unsafe_code)]

pub mod numeric;
