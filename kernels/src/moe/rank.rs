//! Repeated choice of the largest: several rows at once, each by a few lanes, all in registers.
//!
//! The routines behind gates and group choices. Numbers are compared as unsigned keys that order like them (`sort_key`), so
//! equal values, both zeros and NaN fall the same way on every target.

use crate::index::largest::sort_key;
use dsl::prelude::*;

/// Rows a block of `warps` warps handles at once: lanes take eight elements of a row each where they can.
pub(super) fn rows_at_once(columns: usize, warps: usize) -> usize {
    let per_lane = [8, 4, 2].into_iter().find(|p| columns.is_multiple_of(*p)).unwrap_or(1);
    let lanes = columns.div_ceil(per_lane).max(1).next_power_of_two().min(32);
    warps * 32 / lanes
}

/// Warps of a block that fit the row: rows longer than a warp covers are done by one warp, since a whole block would have
/// to meet for every choice.
pub(super) fn warps_for(columns: usize, warps: usize) -> usize {
    if columns > 256 { 1 } else { warps }
}

/// A key that orders like `x`, NaN below everything; never 0, which marks what is out.
#[kernel_fn]
pub(super) fn live_key(x: V<F32>) -> V<U32> {
    sort_key(x).max(1u32)
}

/// Column of the largest key of each row, the first of equal ones, for the best `k`; each is out (0) afterwards.
#[kernel_fn]
pub(super) fn best_columns(keys: Tile<U32, Frag, 2>, k: usize) -> Vec<Tile<I32, Frag, 1>> {
    let [rows, columns] = keys.extents();
    let mut best = host!(Vec::new());
    for _round in unroll(0..k) {
        let top = reduce_max(keys, 1);
        let places = frag::<I32, 2>([rows, columns]);
        for (i, j) in parallel([rows, columns]) {
            places[(i, j)] = select(keys[(i, j)] == top[i], j.value(), i32::MAX);
        }
        let at = reduce_min(places, 1);
        for (i, j) in parallel([rows, columns]) {
            keys[(i, j)] = select(j.value() == at[i], 0u32, keys[(i, j)]);
        }
        best.push(at);
    }
    best
}

/// Sum of the two largest (or the largest, if `two` is false) of each group: `[rows, groups, n]` to `[rows, groups]`.
#[kernel_fn]
pub(super) fn group_scores(scores: Tile<F32, Frag, 3>, two: bool) -> Tile<F32, Frag, 2> {
    let [rows, groups, n] = scores.extents();
    let first = reduce_max(scores, 2);
    if host!(!two || n < 2) {
        first
    } else {
        let places = frag::<I32, 3>([rows, groups, n]);
        for (i, g, j) in parallel([rows, groups, n]) {
            places[(i, g, j)] = select(scores[(i, g, j)] == first[(i, g)], j.value(), i32::MAX);
        }
        let at = reduce_min(places, 2);
        let rest = frag::<F32, 3>([rows, groups, n]);
        for (i, g, j) in parallel([rows, groups, n]) {
            rest[(i, g, j)] = select(j.value() == at[(i, g)], NEG_INF, scores[(i, g, j)]);
        }
        let second = reduce_max(rest, 2);
        let sum = frag::<F32, 2>([rows, groups]);
        for (i, g) in parallel([rows, groups]) {
            sum[(i, g)] = first[(i, g)] + second[(i, g)];
        }
        sum
    }
}
