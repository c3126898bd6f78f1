//! Matrix products: dense, batched, with and without scales. Indexer scores are in `index`.

pub mod bf16;
pub mod einsum;
pub mod fp8;
pub mod scales;
