//! Elementwise operators that belong to no other family.

pub mod copy;
pub mod vector_add;
