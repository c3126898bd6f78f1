//! Matrix products: dense, batched, grouped, with and without scales. Indexer scores are in `index`.

pub mod bf16;
pub mod einsum;
pub mod fp8;
pub mod fp8_few;
pub mod grouped;
pub mod hc_prenorm;
pub mod k_grouped;
pub mod m_grouped_contiguous;
pub mod m_grouped_masked;
pub mod scales;

use crate::problem as p;
use kiln_codegen::abi::Arg;
use kiln_codegen::spec::{OpError, Problem};
use std::sync::Arc;

/// The argument `c` of a product that adds it, and whether it is `d` itself: the kernel then reads `d`, because a tensor
/// that is written may be named once only.
pub(crate) fn addend(op: &str, problem: &Problem, accumulate: bool) -> Result<(Arg, bool), OpError> {
    if !accumulate {
        return Ok((Arg::Absent, false));
    }
    let (c, d) = (p::view(op, problem, "c")?, p::view(op, problem, "d")?);
    let same = Arc::ptr_eq(&c.memory, &d.memory) && c.offset_bytes == d.offset_bytes && c.strides == d.strides;
    Ok(if same { (Arg::Absent, true) } else { (Arg::Tensor(c), false) })
}
