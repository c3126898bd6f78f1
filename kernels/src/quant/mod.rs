//! Quantising casts: small floats with one scale a block of elements.

pub mod e5m6;
pub mod lossless;
pub mod per_block_fp8;
pub mod per_channel_fp8;
pub mod per_token_fp4;
pub mod per_token_fp8;
pub mod scale;
pub mod swiglu_quant;
