//! The list of operators, in the order of the index table in the crate's documentation.
//!
//! Explicit on purpose: what tests, benches and the command line iterate over can be read here.

use kiln_codegen::spec::OpSpec;
use std::sync::Arc;

/// Every operator.
pub fn registry() -> Vec<Arc<dyn OpSpec>> {
    vec![
        Arc::new(crate::elementwise::vector_add::VectorAdd),
        Arc::new(crate::elementwise::copy::Copy),
        Arc::new(crate::norm::rmsnorm::Rmsnorm),
        Arc::new(crate::position::rope_partial::RopePartial),
        Arc::new(crate::quant::per_token_fp8::PerTokenFp8),
        Arc::new(crate::quant::per_token_fp4::PerTokenFp4),
        Arc::new(crate::quant::per_block_fp8::PerBlockFp8),
        Arc::new(crate::quant::per_channel_fp8::PerChannelFp8),
        Arc::new(crate::quant::e5m6::E5m6),
        Arc::new(crate::quant::lossless::Lossless),
        Arc::new(crate::quant::swiglu_quant::SwigluQuant),
        Arc::new(crate::transform::hadamard::Hadamard),
        Arc::new(crate::layout::transpose::Transpose),
        Arc::new(crate::layout::sf_layout::SfLayout),
        Arc::new(crate::hyper::expand::MhcExpand),
        Arc::new(crate::hyper::pre::MhcPre),
        Arc::new(crate::hyper::sinkhorn::MhcSinkhorn),
        Arc::new(crate::hyper::post::MhcPost),
        Arc::new(crate::hyper::head_mix::MhcHeadMix),
        Arc::new(crate::gemm::fp8::GemmFp8),
        Arc::new(crate::gemm::bf16::GemmBf16),
        Arc::new(crate::gemm::einsum::EinsumOp),
        Arc::new(crate::gemm::m_grouped_contiguous::GemmMGroupedContiguous),
        Arc::new(crate::gemm::m_grouped_masked::GemmMGroupedMasked),
        Arc::new(crate::gemm::k_grouped::GemmKGrouped),
        Arc::new(crate::gemm::hc_prenorm::GemmTf32HcPrenorm),
        Arc::new(crate::index::logits_fp8::IndexerLogitsFp8),
        Arc::new(crate::index::logits_fp4::IndexerLogitsFp4),
        Arc::new(crate::attention::decode_dense::MlaDecodeDense),
        Arc::new(crate::attention::decode_sparse::MlaDecodeSparse),
        Arc::new(crate::attention::combine::MlaCombine),
        Arc::new(crate::attention::sliding_window::SlidingWindow),
        Arc::new(crate::attention::prefill_dense::MhaPrefillDense),
        Arc::new(crate::attention::prefill_sparse::MlaPrefillSparse),
        Arc::new(crate::attention::kv_cache_pack::KvCachePack),
        Arc::new(crate::attention::kv_cache_write::KvCacheWrite),
        Arc::new(crate::attention::compressor::KvCompressor),
        Arc::new(crate::attention::sched_meta::MlaSchedMeta),
        Arc::new(crate::index::topk_select::TopkSelect),
        Arc::new(crate::moe::gate::MoeGate),
        Arc::new(crate::moe::topk::MoeTopk),
        Arc::new(crate::moe::group_topk::MoeGroupTopk),
        Arc::new(crate::moe::fused_mapping::MoeFusedMapping),
        Arc::new(crate::moe::expand_reduce::MoeExpandReduce),
        Arc::new(crate::moe::misc::MoeMisc),
        Arc::new(crate::moe::layout::EpDispatchLayout),
        Arc::new(crate::sampling::sample::Sampling),
        Arc::new(crate::engram::gate::EngramGate),
        Arc::new(crate::engram::hash::EngramHash),
    ]
}
