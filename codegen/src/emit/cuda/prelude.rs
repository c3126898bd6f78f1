//! The device prelude: one snippet a topic, included as text by what uses it.

use crate::target::Caps;
use std::collections::BTreeSet;

/// A topic, in the order of inclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Snippet {
    /// Type names.
    Types,
    /// Wide accesses.
    Memory,
    /// Read-only global loads.
    Global,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// fp8.
    Fp8,
    /// e8m0.
    E8m0,
    /// Total integer operations.
    Integer,
    /// Float to integer.
    Cast,
    /// Floor division.
    Index,
    /// Integer min and max.
    MinMax,
    /// Combining threads.
    Reduce,
    /// Sums of narrow floats.
    ReduceNarrow,
    /// Block scans.
    Scan,
    /// Copies from global to shared memory that nobody waits for at once.
    AsyncCopy,
    /// e2m1.
    E2m1,
    /// Matrix units.
    Matrix,
    /// Bytes to f16.
    Widen,
    /// Fragments of bytes.
    Fragments,
    /// Checks of the kernel.
    Check,
    /// Blocks of a grid meet.
    Grid,
    /// Kernels that follow each other closely.
    Dependent,
}

/// Text of the snippets and of what they need.
pub fn text(used: &BTreeSet<Snippet>, caps: &Caps) -> String {
    let mut all = used.clone();
    all.insert(Snippet::Types);
    if all.contains(&Snippet::ReduceNarrow) {
        all.extend([Snippet::Bf16, Snippet::F16, Snippet::Reduce]);
    }
    if all.contains(&Snippet::Scan) {
        all.insert(Snippet::Reduce);
    }
    if all.contains(&Snippet::Fragments) {
        all.insert(Snippet::Widen);
    }
    let parts: Vec<&str> = all.iter().map(|s| source(*s, caps)).collect();
    parts.join("\n")
}

fn source(s: Snippet, caps: &Caps) -> &'static str {
    match s {
        Snippet::Types => include_str!("prelude/device/types.cuh"),
        Snippet::Memory => include_str!("prelude/device/memory.cuh"),
        Snippet::Global => include_str!("prelude/device/global.cuh"),
        Snippet::Bf16 => include_str!("prelude/device/bf16.cuh"),
        Snippet::F16 => include_str!("prelude/device/f16.cuh"),
        Snippet::Fp8 if caps.fp8_conversion => include_str!("prelude/device/fp8.cuh"),
        Snippet::Fp8 => include_str!("prelude/device/fp8_integer.cuh"),
        Snippet::E8m0 => include_str!("prelude/device/e8m0.cuh"),
        Snippet::Integer => include_str!("prelude/device/integer.cuh"),
        Snippet::Cast => include_str!("prelude/device/cast.cuh"),
        Snippet::Index => include_str!("prelude/device/index.cuh"),
        Snippet::MinMax => include_str!("prelude/device/minmax.cuh"),
        Snippet::Reduce => include_str!("prelude/device/reduce.cuh"),
        Snippet::ReduceNarrow => include_str!("prelude/device/reduce_narrow.cuh"),
        Snippet::Scan => include_str!("prelude/device/scan.cuh"),
        Snippet::AsyncCopy => include_str!("prelude/device/async_copy.cuh"),
        Snippet::E2m1 => include_str!("prelude/device/e2m1.cuh"),
        Snippet::Matrix => include_str!("prelude/device/matrix.cuh"),
        Snippet::Widen if caps.fp8_conversion => include_str!("prelude/device/widen.cuh"),
        Snippet::Widen => include_str!("prelude/device/widen_integer.cuh"),
        Snippet::Fragments => include_str!("prelude/device/fragments.cuh"),
        Snippet::Check => include_str!("prelude/device/check.cuh"),
        Snippet::Grid => include_str!("prelude/device/grid.cuh"),
        Snippet::Dependent => include_str!("prelude/device/dependent.cuh"),
    }
}
