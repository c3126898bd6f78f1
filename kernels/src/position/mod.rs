//! Position encodings.

pub mod rope_partial;
