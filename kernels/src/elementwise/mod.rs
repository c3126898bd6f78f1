//! Elementwise operators that belong to no other family.

pub mod vector_add;
