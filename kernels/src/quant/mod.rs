//! Quantising casts: small floats with one scale a block of elements.

pub mod per_token_fp8;
pub mod scale;
pub mod swiglu_quant;
