//! Maps: which thread and register holds an element of a tile, independent of the tile's shape.
//!
//! `Distribution` describes one op or tile by its own extents. Two of them may mean the same map (a row of 1024 elements
//! over 128 threads, or 8 rows of 128 over 16 lanes each); a [`Map`] is what they have in common, so that reshapes and
//! reductions need no data movement.

use crate::ir::{Distribution, Fragment};

/// Placement of `count` elements in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// Elements of a row; rows go round the groups of lanes. The whole count if there is one row.
    pub inner: usize,
    /// Consecutive elements of a thread.
    pub vec: usize,
    /// Threads that share a row.
    pub lanes: usize,
    /// Threads of the block.
    pub threads: usize,
    /// Rows are single elements, and every lane of the group holds a copy.
    pub replicated: bool,
    /// The accumulator of a matrix product, with its extents; the fields above then say nothing.
    pub fragment: Option<(Fragment, [usize; 2])>,
}

impl Map {
    /// Elements one after another over the whole block.
    pub fn flat(count: usize, vec: usize, threads: usize) -> Map {
        Map { inner: count, vec, lanes: threads, threads, replicated: false, fragment: None }
    }

    /// The accumulator of a matrix product.
    pub fn fragment(m: usize, n: usize, threads: usize) -> Map {
        let fragment = Some((Fragment::of(m, n, threads / 32), [m, n]));
        Map { inner: n, vec: 2, lanes: 32, threads, replicated: false, fragment }
    }

    /// The accumulator of a warp group's product.
    pub fn warp_group(m: usize, n: usize, threads: usize) -> Map {
        let fragment = Some((Fragment::warp_group(m, n), [m, n]));
        Map { inner: n, vec: 2, lanes: 32, threads, replicated: false, fragment }
    }

    /// One element for each row of a warp group's accumulator, in every thread that holds a part of the row.
    fn rows_of_warp_group(m: usize, threads: usize) -> Map {
        let f = Fragment { atoms: [m.div_ceil(64), 1], ..Fragment::warp_group(m, 8) };
        Map { inner: 1, vec: 1, lanes: 4, threads, replicated: true, fragment: Some((f, [m, 1])) }
    }

    /// True if the position of an element depends on its flat number only: no row is padded.
    fn is_flat(&self, count: usize) -> bool {
        let whole =
            self.lanes == self.threads && (self.inner == count || self.inner.is_multiple_of(self.vec * self.threads));
        !self.replicated && (whole || self.inner == self.vec * self.lanes)
    }

    /// True if both place `count` elements alike.
    pub fn same(&self, other: &Map, count: usize) -> bool {
        self == other
            || self.fragment.is_none()
                && other.fragment.is_none()
                && (self.vec == other.vec
                    && self.threads == other.threads
                    && self.is_flat(count)
                    && other.is_flat(count))
    }

    /// The same map written for `extents`; `None` if these extents cannot express it.
    pub fn distribution(&self, extents: &[usize]) -> Option<Distribution> {
        let (rank, count) = (extents.len(), extents.iter().product::<usize>());
        let make = |split_axis, lanes| {
            let fragment = self.fragment.map(|(f, _)| f);
            Distribution { split_axis, vec: self.vec, lanes, threads: self.threads, fragment }
        };
        if let Some((_, [m, _])) = self.fragment
            && self.replicated
        {
            return (extents == [m]).then(|| make(1, self.lanes));
        }
        if let Some((_, own)) = self.fragment {
            return (extents == own).then(|| make(0, self.lanes));
        }
        if self.replicated {
            return Some(make(rank, self.lanes));
        }
        let inner = |s: usize| extents[s..].iter().product::<usize>();
        if let Some(s) = (0..rank).rev().find(|&s| inner(s) == self.inner && (s == 0 || inner(s) > 1)) {
            return Some(make(s, self.lanes));
        }
        if !self.is_flat(count) || rank == 0 {
            return None;
        }
        // Whole rows over the block keep the row index uniform, which is the cheapest to compute.
        let block = self.vec * self.threads;
        if let Some(s) = (0..rank).rev().find(|&s| inner(s).is_multiple_of(block)) {
            return Some(make(s, self.threads));
        }
        let group = |n: usize| n.is_multiple_of(self.vec) && self.threads.is_multiple_of(n / self.vec);
        match (0..rank).rev().find(|&s| inner(s) > self.vec && group(inner(s))) {
            Some(s) => Some(make(s, inner(s) / self.vec)),
            None => Some(make(0, self.threads)),
        }
    }

    /// The map of a tile with one element for each `k` consecutive ones of this map's `count`, held by every thread
    /// that holds one of the `k`; `None` if they lie in more than one group.
    pub fn reduced(&self, count: usize, k: usize) -> Option<Map> {
        let copy =
            |lanes| Some(Map { inner: 1, vec: 1, lanes, threads: self.threads, replicated: true, fragment: None });
        if let Some((f, [m, n])) = self.fragment {
            let whole = f.interleaved && !f.overhangs(0, m) && !f.overhangs(1, n);
            return (whole && !self.replicated && k == n).then(|| Map::rows_of_warp_group(m, self.threads));
        }
        if self.replicated {
            return if self.lanes == self.threads { copy(self.lanes) } else { None };
        }
        if self.inner == k {
            return copy(self.lanes);
        }
        if self.is_flat(count) {
            if k.is_multiple_of(self.vec * self.threads) {
                return copy(self.threads);
            }
            if k.is_multiple_of(self.vec) && self.threads.is_multiple_of(k / self.vec) {
                return copy(k / self.vec);
            }
            return None;
        }
        if self.lanes == self.threads && k.is_multiple_of(self.inner) { copy(self.threads) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_accumulators_of_different_widths_agree() {
        let narrow = Map::warp_group(128, 64, 128).reduced(128 * 64, 64);
        assert_eq!(narrow, Map::warp_group(128, 256, 128).reduced(128 * 256, 256));
        let d = narrow.and_then(|m| m.distribution(&[128])).expect("a distribution");
        assert_eq!((d.registers(&[128]), d.lanes, d.rows_of().is_some()), (4, 4, true));
        assert_eq!(Map::warp_group(64, 60, 128).reduced(64 * 60, 60), None, "half a piece is missing");
        assert_eq!(Map::fragment(64, 64, 128).reduced(64 * 64, 64), None, "rows go round the warps in another way");
    }

    #[test]
    fn rows_and_reshapes_agree() {
        let row = Map { inner: 7168, vec: 8, lanes: 128, threads: 128, replicated: false, fragment: None };
        let groups = Map { inner: 128, vec: 8, lanes: 16, threads: 128, replicated: false, fragment: None };
        assert!(row.same(&groups, 7168));
        assert_eq!(row.distribution(&[1, 7168]).map(|d| (d.split_axis, d.lanes)), Some((1, 128)));
        assert_eq!(groups.distribution(&[1, 7168]).map(|d| (d.split_axis, d.lanes)), Some((1, 128)));
        assert_eq!(row.distribution(&[1, 56, 128]).map(|d| (d.split_axis, d.lanes)), Some((1, 128)));
        assert_eq!(groups.distribution(&[1, 56, 128]).map(|d| (d.split_axis, d.lanes)), Some((2, 16)));
        assert_eq!(groups.reduced(7168, 128).map(|m| m.lanes), Some(16));
        assert_eq!(row.reduced(7168, 128).map(|m| m.lanes), Some(16));
        assert_eq!(row.reduced(7168, 7168).map(|m| m.lanes), Some(128));
        let padded = Map { inner: 96, vec: 8, lanes: 16, threads: 128, replicated: false, fragment: None };
        assert_eq!(padded.distribution(&[192]), None);
        assert_eq!(padded.reduced(192, 96).map(|m| m.lanes), Some(16));
    }
}
