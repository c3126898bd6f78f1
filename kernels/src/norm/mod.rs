//! Normalisations.

pub mod rmsnorm;
