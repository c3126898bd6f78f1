//! The id of an expert on a tensor-parallel rank, in the kernel language and by the formula. Not an operator: `moe_gate` and
//! `moe_misc` use it.

use dsl::prelude::*;

/// The local id of an expert on this rank, or -1: see `moe_misc`.
#[kernel_fn]
pub(super) fn local_id(id: V<I32>, per_rank: V<I32>, tp_rank: V<I32>, tp_ranks: V<I32>) -> V<I32> {
    let span = per_rank * tp_ranks;
    let mine = id >= 0 && (id / per_rank) % tp_ranks == tp_rank;
    let v = id - tp_rank * per_rank;
    // The quotient of a negative number would be rounded up, but those are not kept.
    let v = v - (v / span) * (span - per_rank);
    select(mine && v >= 0, v, -1)
}

/// The local id of an expert, by the formula.
pub(super) fn local(id: i64, per_rank: i64, tp_rank: i64, tp_ranks: i64) -> i64 {
    let span = per_rank * tp_ranks;
    if id < 0 || id.div_euclid(per_rank).rem_euclid(tp_ranks) != tp_rank {
        return -1;
    }
    let v = id - tp_rank * per_rank;
    let v = v - v.div_euclid(span) * (span - per_rank);
    if v < 0 { -1 } else { v }
}
