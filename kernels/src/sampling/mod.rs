//! From logits to tokens: a counter-based generator, and sampling that depends on seed, position and token only.

pub mod philox;
pub mod sample;
