//! The identity of a kernel: the hash of its text without positions.
//!
//! Build caches and numerics fingerprints start from it. Two kernels with equal text have equal hashes however their
//! arenas are numbered; moving a kernel to another line changes nothing.

use super::{Kernel, print};
use sha2::{Digest, Sha256};

/// SHA-256 of the canonical text.
pub fn canonical(kernel: &Kernel) -> [u8; 32] {
    Sha256::digest(print::text(kernel).as_bytes()).into()
}

/// [`canonical`] as 64 lower-case hexadecimal digits.
pub fn canonical_hex(kernel: &Kernel) -> String {
    canonical(kernel).iter().map(|b| format!("{b:02x}")).collect()
}
