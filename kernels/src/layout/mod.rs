//! Operators that only move elements.

pub mod sf_layout;
pub mod transpose;
