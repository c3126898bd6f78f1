//! The names a kernel file needs, nothing else.

pub use crate::dtype::{
    Arith, AtomicInt, Bf16, Bits, Bitwise, Bool, DType, E2m1, E4m3, E5m2, E8m0, F16, F32, Float, I8, I32, I64,
    IndexInt, Int, Signed, U8, U32,
};
pub use crate::gather::Table;
pub use crate::host;
pub use crate::index::{AnyIdx, Idx, IntoAnyIx, IntoIx, Ix};
pub use crate::launch::{View, ViewMut};
pub use crate::loops::{Rng, parallel, range, spread, unroll};
pub use crate::math::{
    INF, NEG_INF, abs, ceil, clamp, cos, exp, exp2, floor, fma, log, log2, max, min, recip, rsqrt, select, sin, sqrt,
};
pub use crate::matrix::{Mma, ScaledMma, gemm, gemm_scaled, gemm_set};
pub use crate::ops::{
    copy, copy_cast, fill, find_first, grid, grid_sync, map, prefix_sum_exclusive, prefix_sum_inclusive, reduce_absmax,
    reduce_max, reduce_min, reduce_sum, suffix_sum_exclusive, suffix_sum_inclusive, tile_absmax, tile_all, tile_any,
    tile_max, tile_min, tile_sum, warps, zero,
};
pub use crate::packed::{e2m1_code, e2m1_value, e5m6_code, e5m6_pack, e5m6_unpack, e5m6_value, e8m0_pack, e8m0_unpack};
pub use crate::precise::{exp_precise, log_of_parts, log_parts, log_precise, log1p_precise, softplus};
pub use crate::roles::{Mailbox, Pending, Ring, Slot, Taken, gemm_async, mailbox, ring, roles};
pub use crate::scalar::{IntoV, V, lit};
pub use crate::select::topk_small;
pub use crate::tensor::{Gm, HostIndex, Rd, Region, Wr, Writable};
pub use crate::tile::{Frag, Shared, Space, Tile, frag, shared};
pub use crate::tiles::{Groups, Raster, part, pipeline, split_k, sum_parts, tile_loop, tile_loop_grouped};
pub use crate::var::{Var, claim, vars};
pub use kiln_codegen::tune::KernelConfig;
pub use kiln_dsl_macros::{KernelConfig, kernel, kernel_fn, schedule};
