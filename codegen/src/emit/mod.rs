//! Emitters: scheduled IR to source text. Straight printing, no analysis, no I/O; same input, same bytes.

pub mod cuda;

use crate::abi::Signature;

/// Generated source of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The text.
    pub text: String,
    /// Entry point and its arguments.
    pub signature: Signature,
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
}
