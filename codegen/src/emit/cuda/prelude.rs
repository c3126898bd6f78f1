//! The device prelude: one snippet a topic, included as text by what uses it.

pub mod wgmma;

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
    /// Integers on their way to narrow floats.
    RoundOnce,
    /// Constants no compiler sees.
    Opaque,
    /// Combining threads.
    Reduce,
    /// Sums of narrow floats.
    ReduceNarrow,
    /// Block scans.
    Scan,
    /// Numbers of chosen elements.
    Claim,
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
    /// One lane for a warp.
    Warp,
    /// Shared memory by address.
    Shared,
    /// Barriers of some warps.
    NamedBarrier,
    /// Blocks that run together.
    Cluster,
    /// Barriers in shared memory.
    Mbarrier,
    /// Shared memory as bulk copies and matrix instructions see it.
    Proxy,
    /// Tensor maps.
    TensorMap,
    /// Bulk copies to shared memory.
    TmaLoad,
    /// Bulk copies from shared memory.
    TmaStore,
    /// Products of a warpgroup.
    Wgmma,
    /// Registers that move between warpgroups.
    Registers,
    /// Launches that overlap.
    GridOrder,
    /// Fragments to shared memory.
    Stmatrix,
    /// Single read-only global loads.
    GlobalLoad,
    /// Checks of the kernel.
    Check,
    /// Blocks of a grid meet.
    Grid,
    /// Kernels that follow each other closely.
    Dependent,
}

impl Snippet {
    /// What stands before this one.
    fn needs(self) -> &'static [Snippet] {
        match self {
            Snippet::ReduceNarrow => &[Snippet::Bf16, Snippet::F16, Snippet::MinMax, Snippet::Reduce],
            Snippet::Reduce => &[Snippet::MinMax],
            Snippet::Claim => &[Snippet::Memory, Snippet::Global, Snippet::MinMax, Snippet::Reduce],
            Snippet::Scan => &[Snippet::MinMax, Snippet::Reduce],
            Snippet::Fragments => &[Snippet::Widen],
            Snippet::TmaLoad | Snippet::TmaStore => &[Snippet::Shared, Snippet::TensorMap],
            Snippet::Cluster | Snippet::Mbarrier | Snippet::Wgmma | Snippet::Stmatrix => &[Snippet::Shared],
            Snippet::Types
            | Snippet::Memory
            | Snippet::Global
            | Snippet::Bf16
            | Snippet::F16
            | Snippet::Fp8
            | Snippet::E8m0
            | Snippet::Integer
            | Snippet::Cast
            | Snippet::RoundOnce
            | Snippet::Index
            | Snippet::MinMax
            | Snippet::Opaque
            | Snippet::AsyncCopy
            | Snippet::E2m1
            | Snippet::Matrix
            | Snippet::Widen
            | Snippet::Warp
            | Snippet::Shared
            | Snippet::NamedBarrier
            | Snippet::Proxy
            | Snippet::TensorMap
            | Snippet::Registers
            | Snippet::GridOrder
            | Snippet::GlobalLoad
            | Snippet::Check
            | Snippet::Grid
            | Snippet::Dependent => &[],
        }
    }
}

/// Text of the snippets and of what they need.
pub fn text(used: &BTreeSet<Snippet>, caps: &Caps) -> String {
    let mut all = used.clone();
    all.insert(Snippet::Types);
    all.extend(used.iter().flat_map(|s| s.needs()));
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
        Snippet::RoundOnce => include_str!("prelude/device/round_once.cuh"),
        Snippet::Index => include_str!("prelude/device/index.cuh"),
        Snippet::MinMax if caps.fused_min_max => include_str!("prelude/device/minmax_unsigned.cuh"),
        Snippet::MinMax => include_str!("prelude/device/minmax.cuh"),
        Snippet::Opaque => include_str!("prelude/device/opaque.cuh"),
        Snippet::Reduce => include_str!("prelude/device/reduce.cuh"),
        Snippet::ReduceNarrow => include_str!("prelude/device/reduce_narrow.cuh"),
        Snippet::Scan => include_str!("prelude/device/scan.cuh"),
        Snippet::Claim => include_str!("prelude/device/claim.cuh"),
        Snippet::AsyncCopy => include_str!("prelude/device/async_copy.cuh"),
        Snippet::E2m1 => include_str!("prelude/device/e2m1.cuh"),
        Snippet::Matrix => include_str!("prelude/device/matrix.cuh"),
        Snippet::Widen if caps.fp8_conversion => include_str!("prelude/device/widen.cuh"),
        Snippet::Widen => include_str!("prelude/device/widen_integer.cuh"),
        Snippet::Fragments => include_str!("prelude/device/fragments.cuh"),
        Snippet::Warp => include_str!("prelude/device/warp.cuh"),
        Snippet::Shared => include_str!("prelude/device/shared.cuh"),
        Snippet::NamedBarrier => include_str!("prelude/device/named_barrier.cuh"),
        Snippet::Cluster => include_str!("prelude/device/cluster.cuh"),
        Snippet::Mbarrier => include_str!("prelude/device/mbarrier.cuh"),
        Snippet::Proxy => include_str!("prelude/device/proxy.cuh"),
        Snippet::TensorMap => include_str!("prelude/device/tensor_map.cuh"),
        Snippet::TmaLoad => include_str!("prelude/device/tma_load.cuh"),
        Snippet::TmaStore => include_str!("prelude/device/tma_store.cuh"),
        Snippet::Wgmma => include_str!("prelude/device/wgmma.cuh"),
        Snippet::Registers => include_str!("prelude/device/registers.cuh"),
        Snippet::GridOrder => include_str!("prelude/device/grid_order.cuh"),
        Snippet::Stmatrix => include_str!("prelude/device/stmatrix.cuh"),
        Snippet::GlobalLoad => include_str!("prelude/device/global_load.cuh"),
        Snippet::Check => include_str!("prelude/device/check.cuh"),
        Snippet::Grid => include_str!("prelude/device/grid.cuh"),
        Snippet::Dependent => include_str!("prelude/device/dependent.cuh"),
    }
}
