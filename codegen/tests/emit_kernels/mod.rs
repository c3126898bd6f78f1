//! Kernels for the emitter's tests, as the language's front end would build them.

mod builder;
mod elements;
mod products;

pub use builder::D;
pub use elements::*;
use kiln_codegen::ir::Kernel;
pub use products::*;

/// Every kernel with its name.
pub fn all() -> Vec<(&'static str, Kernel)> {
    vec![
        ("vector_add", vector_add(D::S("n", 1))),
        ("vector_add_aligned", vector_add(D::S("n", 16))),
        ("rmsnorm", rmsnorm(1, 7168, 4)),
        ("rmsnorm_rows", rmsnorm(4, 512, 8)),
        ("rmsnorm_odd", rmsnorm(2, 100, 4)),
        ("group_quantise", group_quantise(7168, 4)),
        ("transpose", transpose()),
        ("turns", turns()),
        ("hadamard", hadamard(256)),
        ("scan", scan()),
        ("histogram", histogram()),
        ("claim", claim()),
        ("collatz", collatz()),
        ("branches", branches()),
        ("softmax_rows", softmax(4, 1000, 4)),
        ("columns", columns()),
        ("casts", casts()),
        ("region", region()),
        ("scalar_of_tile", scalar_of_tile()),
        ("moments", moments()),
        ("gemm_bf16", gemm_bf16(128, 128, 64, 8, 1)),
        ("gemm_pipelined", gemm_bf16(128, 128, 64, 8, 3)),
        ("gemm_fp8", gemm_fp8(128, 128, 8)),
        ("gemm_fp4", gemm_fp4()),
        ("gemm_odd", gemm_odd()),
        ("pairs", pairs()),
        ("streams", streams()),
        ("attention", attention(64, 64, 64, 4)),
        ("paged", paged()),
    ]
}
