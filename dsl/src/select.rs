//! Selection composed of other ops.

use crate::dtype::{F32, I32};
use crate::loops::parallel;
use crate::math::{NEG_INF, select};
use crate::ops::{copy, find_first, tile_max, zero};
use crate::scalar::V;
use crate::tile::{Frag, Space, Tile, frag};
use kiln_dsl_macros::kernel_fn;

/// The `k` largest elements in descending order, and where they stand; of equals the one with the smaller index comes
/// first. Meant for small `k`: one search an element. NaN is never chosen; places without an element hold -inf and -1.
#[kernel_fn]
pub fn topk_small<S: Space>(t: Tile<F32, S, 1>, k: usize) -> (Tile<F32, Frag, 1>, Tile<I32, Frag, 1>) {
    let n = t.extent(0);
    let values = frag::<F32, 1>([k]);
    let places = frag::<I32, 1>([k]);
    let left = frag::<F32, 1>([n]);
    let taken = frag::<I32, 1>([n]);
    copy(t, left);
    zero(taken);
    for r in 0..k {
        let top: V<F32> = tile_max([n], |i| select(taken[i] == 0, left[i], NEG_INF));
        let at = find_first([n], |i| taken[i] == 0 && left[i] == top);
        for j in parallel([k]) {
            if j == r {
                values[j] = select(at < n, top, NEG_INF);
                places[j] = select(at < n, at.value(), -1);
            }
        }
        for i in parallel([n]) {
            if i == at {
                taken[i] = 1;
            }
        }
    }
    (values, places)
}
