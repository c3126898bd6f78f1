//! Scores of an index over cached keys: which tokens attention should read.

pub mod logits_fp4;
pub mod logits_fp8;
mod score;
