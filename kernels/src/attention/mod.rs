//! Multi-head latent attention: decoding over paged and gathered caches, merging of splits, sliding windows.

pub mod cache;
pub mod combine;
pub mod decode_dense;
pub mod decode_sparse;
pub mod sched_meta;
pub mod sliding_window;
pub mod softmax;
