//! Which shared tiles are needed at the same time, and offsets for them that use memory again.
//!
//! A tile is needed from the first op that touches it to the last, in the order of the text; a loop that touches a tile made
//! outside of it needs the tile from its first op to its last. Tiles that copies run ahead into are needed to the end of the
//! kernel: what a loop that ended early has started may still land in them. Barriers where one tile follows another are
//! `sync`'s.

use super::pipeline::{ahead, version_bytes};
use crate::ir::effects::{bodies, effects};
use crate::ir::{Base, BlockId, BufferId, Kernel, Op, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Positions of ops at which a tile is needed, the last one included.
pub type Needed = BTreeMap<BufferId, (usize, usize)>;

/// When each shared tile that some op touches is needed; `ahead` are tiles that copies run ahead into.
pub fn needed(k: &Kernel, ahead: &BTreeSet<BufferId>) -> Needed {
    let mut w = Walk { k, at: 0, loops: vec![], made: BTreeMap::new(), uses: vec![], spans: vec![] };
    w.block(k.body);
    let end = w.at;
    let mut out = Needed::new();
    for (b, at, loops) in &w.uses {
        let (mut first, mut last) = (*at, *at);
        let made = w.made.get(b).map_or(&[][..], |loops| loops);
        // Loops around the use that are not around the tile's `alloc`.
        for &l in loops.iter().filter(|l| !made.contains(l)) {
            first = first.min(w.spans[l].0);
            last = last.max(w.spans[l].1);
        }
        let range = out.entry(*b).or_insert((first, last));
        *range = (range.0.min(first), range.1.max(last));
    }
    for (_, range) in out.iter_mut().filter(|(b, _)| ahead.contains(b)) {
        range.1 = end;
    }
    out
}

struct Walk<'k> {
    k: &'k Kernel,
    at: usize,
    /// Loops around the current op.
    loops: Vec<usize>,
    /// Loops around each tile's `alloc`.
    made: BTreeMap<BufferId, Vec<usize>>,
    uses: Vec<(BufferId, usize, Vec<usize>)>,
    /// First and last position of each loop.
    spans: Vec<(usize, usize)>,
}

impl Walk<'_> {
    fn block(&mut self, block: BlockId) {
        for &id in &self.k.block(block).ops {
            self.at += 1;
            let op = &self.k.op(id).op;
            if let Op::Alloc { buffer } = op {
                self.made.insert(*buffer, self.loops.clone());
            }
            for e in effects(self.k, id) {
                if let Base::Buffer(b) = e.base(self.k)
                    && self.k.buffer(b).space == Space::Shared
                {
                    self.uses.push((b, self.at, self.loops.clone()));
                }
            }
            let looped = matches!(op, Op::For { .. } | Op::Loop { .. });
            let number = self.spans.len();
            if looped {
                self.spans.push((self.at, self.at));
                self.loops.push(number);
            }
            bodies(op).into_iter().for_each(|b| self.block(b));
            if looped {
                self.loops.pop();
                self.at += 1;
                self.spans[number].1 = self.at;
            }
        }
    }
}

/// Offsets for tiles of these sizes, the largest first, each at the lowest place that nothing needed at the same time has;
/// and the bytes used. Tiles that nothing touches get offset 0.
pub fn offsets(needed: &Needed, sizes: &[(BufferId, usize)]) -> (BTreeMap<BufferId, usize>, usize) {
    let mut order: Vec<_> = sizes.to_vec();
    order.sort_by_key(|&(b, bytes)| (std::cmp::Reverse(bytes), b));
    let (mut placed, mut used): (Vec<(BufferId, Range<usize>)>, usize) = (vec![], 0);
    for (b, bytes) in order {
        let Some(&(first, last)) = needed.get(&b) else {
            placed.push((b, 0..0));
            continue;
        };
        let meets = |o: &BufferId| needed.get(o).is_some_and(|&(f, l)| f <= last && first <= l);
        let mut taken: Vec<_> = placed.iter().filter(|(o, _)| meets(o)).map(|(_, r)| r.clone()).collect();
        taken.sort_by_key(|r| r.start);
        let mut at = 0;
        for r in taken {
            if at + bytes <= r.start {
                break;
            }
            at = at.max(r.end.next_multiple_of(16));
        }
        used = used.max(at + bytes);
        placed.push((b, at..at + bytes));
    }
    (placed.into_iter().map(|(b, r)| (b, r.start)).collect(), used)
}

/// Pairs of tiles that share bytes.
pub fn sharing(k: &Kernel) -> BTreeSet<(BufferId, BufferId)> {
    let mut versions = BTreeMap::new();
    for node in &k.ops {
        if let Op::For { body, stages, .. } = &node.op
            && *stages > 1
            && let Some(a) = ahead(k, *body)
        {
            versions.extend(a.tiles.into_iter().map(|t| (t, *stages)));
        }
    }
    let mut ranges = vec![];
    for (i, b) in k.buffers.iter().enumerate() {
        let (Space::Shared, Some(m)) = (b.space, &b.memory) else { continue };
        let last: usize = b.extents.iter().zip(&m.strides).map(|(e, s)| (e.max(&1) - 1) * s).sum();
        let id = BufferId(i as u32);
        let bytes = versions.get(&id).map_or(b.dtype.bytes(last + 1), |n| n * version_bytes(b));
        ranges.push((id, m.offset_bytes..m.offset_bytes + bytes));
    }
    let mut out = BTreeSet::new();
    for (a, x) in &ranges {
        for (b, y) in ranges.iter().filter(|(b, _)| b != a) {
            if x.start < y.end && y.start < x.end {
                out.insert((*a, *b));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_that_do_not_meet_share_and_others_do_not() {
        let b = BufferId;
        let needed: Needed = [(b(0), (1, 4)), (b(1), (5, 9)), (b(2), (3, 7)), (b(3), (8, 9))].into();
        let sizes = [(b(0), 100), (b(1), 60), (b(2), 40), (b(3), 30), (b(4), 500)];
        let (at, used) = offsets(&needed, &sizes);
        // 0 and 1 take turns; 2 meets both; 3 meets 1 and follows 2.
        assert_eq!((at[&b(0)], at[&b(1)], at[&b(2)], at[&b(3)], at[&b(4)]), (0, 0, 112, 64, 0));
        assert_eq!(used, 152);
        for (x, &(f, l)) in &needed {
            for (y, &(g, m)) in needed.iter().filter(|(y, _)| *y != x) {
                let size = |b: &BufferId| sizes.iter().find(|s| s.0 == *b).map_or(0, |s| s.1);
                let apart = at[x] + size(x) <= at[y] || at[y] + size(y) <= at[x];
                assert!(apart || l < g || m < f, "{x:?} {y:?}");
            }
        }
    }
}
