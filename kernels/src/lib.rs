//! The kernel library of Kiln: operators as pure descriptions, one file a kernel.
//!
//! | operator | formula | file |
//! | --- | --- | --- |
//! | `vector_add` | `z = x + y` | [`elementwise::vector_add`] |
//! | `copy` | `y = x`, the bandwidth ceiling | [`elementwise::copy`] |
//! | `rmsnorm` | `y = x · (mean(x²) + eps)^-½ · weight` | [`norm::rmsnorm`] |
//! | `rope_partial` | rotation of channel pairs by the token's angles | [`position::rope_partial`] |
//! | `quant_per_token_fp8` | rows to e4m3, a scale for each group | [`quant::per_token_fp8`] |
//! | `quant_per_token_fp4` | rows to e2m1, a power of two for each group | [`quant::per_token_fp4`] |
//! | `quant_per_block_fp8` | a matrix to e4m3, a scale for each block | [`quant::per_block_fp8`] |
//! | `quant_per_channel_fp8` | columns to e4m3, a scale for each group of rows | [`quant::per_channel_fp8`] |
//! | `quant_e5m6` | rows to 12 bits an element, a scale for each row | [`quant::e5m6`] |
//! | `quant_lossless_fp4_to_fp8` | e2m1 with fine scales to e4m3 with coarse ones | [`quant::lossless`] |
//! | `swiglu_quant` | `g·σ(g)·u·w`, then the cast above | [`quant::swiglu_quant`] |
//! | `hadamard` | `y = H_n · x · n^-½` | [`transform::hadamard`] |
//! | `transpose` | `xt[b, n, m] = x[b, m, n]` | [`layout::transpose`] |
//! | `sf_layout` | scales as columns of f32 or of packed exponents | [`layout::sf_layout`] |
//! | `mhc_expand` | `y[t, j] = x[t]`, the first residual streams | [`hyper::expand`] |
//! | `mhc_pre` | what a layer reads of the streams, and the weights of its result | [`hyper::pre`] |
//! | `mhc_sinkhorn` | small matrices made nearly doubly stochastic | [`hyper::sinkhorn`] |
//! | `mhc_post` | `y[t, j] = post · x + Σ_i comb[i, j] · residual[t, i]` | [`hyper::post`] |
//! | `mhc_head_mix` | `y = σ(mix · scale + base) + pre_eps` | [`hyper::head_mix`] |
//! | `gemm_fp8` | `d = a · bᵀ + c` of fp8 (or fp4) with block scales | [`gemm::fp8`] |
//! | `gemm_bf16` | `d = a · bᵀ + c` of bf16 | [`gemm::bf16`] |
//! | `einsum` | products summed over, or one for each value of, one more index | [`gemm::einsum`] |
//! | `gemm_m_grouped_contiguous` | `d[m] = a[m] · b[g(m)]ᵀ`, groups of rows in one tensor | [`gemm::m_grouped_contiguous`] |
//! | `gemm_m_grouped_masked` | `d[g, ..masked_m[g]] = a[g] · b[g]ᵀ` | [`gemm::m_grouped_masked`] |
//! | `gemm_k_grouped` | `d[g] = c[g] + Σ_{k in g} a[k]ᵀ · b[k]` | [`gemm::k_grouped`] |
//! | `gemm_tf32_hc_prenorm` | `d = a · bᵀ` of bf16 and f32, and sums of squares of rows | [`gemm::hc_prenorm`] |
//! | `indexer_logits_fp8` | `sf · Σ_h max(q·k, 0) · weights` over fp8 keys | [`index::logits_fp8`] |
//! | `indexer_logits_fp4` | the same over fp4 keys | [`index::logits_fp4`] |
//! | `mla_decode_dense` | attention over a paged cache | [`attention::decode_dense`] |
//! | `mla_decode_sparse` | attention over chosen tokens of quantised caches | [`attention::decode_sparse`] |
//! | `mla_combine` | merging of splits | [`attention::combine`] |
//! | `attention_sliding_window` | attention to the last keys | [`attention::sliding_window`] |
//! | `mha_prefill_dense` | attention of packed sequences to packed keys | [`attention::prefill_dense`] |
//! | `mla_prefill_sparse` | attention of packed queries to chosen tokens | [`attention::prefill_sparse`] |
//! | `kv_cache_pack` | pages of a quantised key cache from their tokens | [`attention::kv_cache_pack`] |
//! | `kv_cache_write` | tokens to the slots of a quantised key cache | [`attention::kv_cache_write`] |
//! | `kv_compressor` | one key for every chunk of positions | [`attention::compressor`] |
//! | `mla_sched_meta` | greedy fill of keys into parts | [`attention::sched_meta`] |
//! | `topk_select` | indices of the `k` largest of a row | [`index::topk_select`] |
//! | `moe_gate` | the experts of a token and their weights | [`moe::gate`] |
//! | `moe_topk` | the largest of short rows, best first | [`moe::topk`] |
//! | `moe_group_topk` | groups with the largest sums of two | [`moe::group_topk`] |
//! | `moe_fused_mapping` | positions of routed slots, ordered by expert | [`moe::fused_mapping`] |
//! | `moe_expand_reduce` | rows to their positions, and weighted sums back | [`moe::expand_reduce`] |
//! | `moe_misc` | counts, local ids, unique groups, normalised weights | [`moe::misc`] |
//! | `ep_dispatch_layout` | ranks of each token, tokens of each rank | [`moe::layout`] |
//! | `sampling` | a token from logits, by filters and a counter-based generator | [`sampling::sample`] |
//! | `engram_gate` | `y = x + σ(±√|norm(x)·w·norm(k)|) · v` | [`engram::gate`] |
//! | `engram_hash` | rows of n-gram tables | [`engram::hash`] |
//!
//! Which target takes which is the table in README.md. A file holds the formula, the kernel in the language of `dsl`, the reference in plain
//! loops, the configuration space, the cases and the bench shapes; `registry` lists them and [`numeric`] judges results.
//! No device is touched here: an operator turns a problem into a `Plan`, which the runtime executes.
#![forbid(unsafe_code)]

pub mod attention;
pub mod elementwise;
pub mod engram;
pub mod gemm;
pub mod hyper;
pub mod index;
pub mod layout;
pub mod moe;
pub mod norm;
pub mod numeric;
pub mod position;
mod problem;
pub mod quant;
mod registry;
pub mod sampling;
pub mod transform;

pub use registry::registry;
