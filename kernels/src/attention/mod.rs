//! Attention: decoding over paged and gathered caches, merging of splits, prefill, sliding windows, and what fills caches.

pub mod cache;
pub mod combine;
pub mod compressor;
pub mod decode_dense;
pub mod decode_dense_roles;
pub mod decode_sparse;
pub mod kv_cache_pack;
pub mod kv_cache_write;
pub mod prefill_dense;
pub mod prefill_sparse;
pub mod record;
pub mod sched_meta;
pub mod sliding_window;
pub mod softmax;
