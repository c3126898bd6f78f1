//! Hyper-connections: a layer reads a mixture of several residual streams and writes back to all of them.
//!
//! `expand` makes the streams, `pre` mixes them before a layer and makes the weights that `post` mixes with after it,
//! `head_mix` weighs them at the end. Source of all: DeepSeek-V4's manifold-constrained hyper-connections (mHC, 2025), after
//! Zhu et al., Hyper-Connections, 2024.

pub mod expand;
pub mod head_mix;
pub mod mixes;
pub mod post;
pub mod pre;
pub mod sinkhorn;
