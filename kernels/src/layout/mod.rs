//! Operators that only move elements.

pub mod transpose;
