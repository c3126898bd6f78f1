//! Orthogonal transforms.

pub mod hadamard;
