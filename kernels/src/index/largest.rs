//! The largest elements of a range, found by one block: what the kernels of `topk_select` share.
//!
//! Not a kernel. A threshold is guessed from a sample, one read collects what reaches it, and histograms of ever narrower bins
//! find the smallest chosen key among that. Integers that order like the values are compared, and the chosen ones are
//! numbered in order, so that no place depends on timing.

use dsl::prelude::*;
use kiln_codegen::ir::DType as Data;

/// How a row is read.
#[derive(KernelConfig, Clone, Debug)]
pub struct TopkConfig {
    /// Bits of a digit; a histogram has `2^digit` counters.
    #[tune(11, 10)]
    pub digit: usize,
    /// Warps of a block; 0 lets the problem decide.
    #[tune(0, 8, 16, 32)]
    pub warps: usize,
    /// Elements of a row that are looked at to guess a threshold.
    #[default(2048)]
    pub sample: usize,
    /// Slices of a row that blocks of their own choose in.
    #[default(1)]
    pub parts: usize,
    /// Candidates there is room for.
    #[default(4096)]
    pub room: usize,
    /// The whole row is its candidates: it has no more columns than there is room.
    #[default(false)]
    pub direct: bool,
    /// Descending value instead of ascending index.
    #[default(false)]
    pub sorted: bool,
}

/// Bits of a sort key: bf16 values differ in the upper half of theirs only.
fn key_bits(dtype: Data) -> usize {
    if dtype == Data::Bf16 { 16 } else { 32 }
}

/// An unsigned integer that orders as the values do: NaN is the smallest, both zeros are equal.
#[kernel_fn]
pub fn sort_key<T: Float>(x: V<T>) -> V<U32> {
    let v = x.to::<F32>();
    let u = select(v == 0.0, 0u32, v.bits());
    let key = select((u >> 31) == 1, !u, u | 0x8000_0000);
    let key = select(v == v, key, 0u32);
    if host!(key_bits(T::DTYPE) == 16) { key >> 16 } else { key }
}

/// The number whose key is `key`: that of a finite number or an infinity.
#[kernel_fn]
fn number<T: Float>(key: V<U32>) -> V<F32> {
    let wide = if host!(key_bits(T::DTYPE) == 16) { key << 16 } else { key };
    // Keys of negative numbers are complements; what a narrow key lacks is zero in the number.
    let mask = host!(if key_bits(T::DTYPE) == 16 { 0xffff_0000u32 } else { u32::MAX });
    V::<F32>::from_bits(select((wide >> 31) == 1, wide & 0x7fff_ffff, !wide & mask))
}

/// A key such that `rank` or more keys are not smaller, `excess` more than that, `excess` at most `slack` unless all of
/// them are equal to it; and how many of its histogram's bin are needed. All keys that count lie in `low..=top`.
/// `tally(base, reach, shift)` adds one to counter `(key - base) >> shift` for each key with `key - base <= reach`.
#[kernel_fn]
fn search<F: Fn(V<U32>, V<U32>, V<U32>)>(
    counts: Tile<U32, Shared, 1>,
    [low, top]: [V<U32>; 2],
    rank: V<U32>,
    slack: V<U32>,
    tally: F,
) -> [V<U32>; 3] {
    let [bins] = counts.extents();
    let bits = host!(bins.ilog2());
    let range = top - low;
    // Bits of the range: the exponent of the float, which may have been rounded up.
    let width = select(range == 0, 0u32, (range.to::<F32>().bits() >> 23) - 126);
    let mut shift = max(width, bits) - bits;
    let mut base = low;
    let mut reach = range;
    let mut need = rank;
    let mut excess = 0u32;
    loop {
        zero(counts);
        tally(base, reach, shift);
        let above = suffix_sum_exclusive(counts);
        let found = find_first([bins], |b| above[b] < need && above[b] + counts[b] >= need);
        let bin = found.min(bins - 1);
        need = need - above[bin];
        excess = counts[bin] - need;
        base = base + (bin.to::<U32>() << shift);
        if excess <= slack || shift == 0 {
            break;
        }
        reach = (lit::<U32, _>(1u32) << shift) - 1;
        shift = max(shift, bits) - bits;
    }
    [base, need, excess]
}

/// Calls `place(i, key, number)` for the `want` largest keys of `lo..hi`, smaller `i` first among equals; numbers ascend
/// with `i`.
#[kernel_fn]
pub(super) fn choose<K: Fn(Ix) -> V<U32>, P: Fn(Ix, V<U32>, V<U32>)>(
    counts: Tile<U32, Shared, 1>,
    span: [V<U32>; 2],
    want: V<U32>,
    [lo, hi]: [Ix; 2],
    key_of: K,
    place: P,
) {
    let [bins] = counts.extents();
    let [base, need, excess] = search(counts, span, want, lit(0u32), |base, reach, shift| {
        for i in spread(lo..hi) {
            let over = key_of(i) - base;
            if over <= reach {
                counts.atomic_add((over >> shift).clamp_index(0, bins - 1), 1);
            }
        }
    });
    // The last element equal to the smallest key that is chosen, if there are more of them than needed.
    let last = shared::<U32, 1>([1]);
    zero(last);
    let mut end = u32::MAX;
    if excess > 0 {
        let mut equal = 0u32;
        for i in spread(lo..hi) {
            let tie = key_of(i) == base;
            let n = claim(&mut equal, tie);
            if tie && n + 1 == need {
                last.atomic_max(0, i.to::<U32>());
            }
        }
        end = last[0];
    }
    let mut placed = 0u32;
    for i in spread(lo..hi) {
        let key = key_of(i);
        let pick = key > base || (key == base && i.to::<U32>() <= end);
        let to = claim(&mut placed, pick);
        if pick {
            place(i, key, to);
        }
    }
}

/// Key of positive infinity, the largest.
fn largest_key(dtype: Data) -> u32 {
    0xff80_0000 >> (32 - key_bits(dtype))
}

/// Calls `place(column, key, number)` for the `want` best of the columns `lo..hi`, at least one; numbers ascend with columns.
#[kernel_fn]
pub(super) fn pick<T: Float, R: Fn(Ix) -> V<T>, P: Fn(V<U32>, V<U32>, V<U32>)>(
    cfg: &TopkConfig,
    [lo, hi]: [Ix; 2],
    want: V<U32>,
    read: R,
    place: P,
) {
    let len = hi - lo;
    let room = cfg.room;
    let bins = host!(1usize << cfg.digit);
    let counts = shared::<U32, 1>([bins]);
    let keys = shared::<U32, 1>([room]);
    let columns = shared::<U32, 1>([if cfg.direct { 1 } else { room }]);
    // Candidates: keys and columns of all elements not smaller than `low`, in ascending order of columns.
    let mut found = 0u32;
    let mut low = 0u32;
    let all = || {
        for i in parallel([room]) {
            if cfg.direct || i < len {
                keys[i] = sort_key(read(lo + i));
                if !cfg.direct {
                    columns[i] = (lo + i).to::<U32>();
                }
            }
        }
    };
    if cfg.direct {
        all();
        found = len.to::<U32>();
    } else if len <= room {
        all();
        found = len.to::<U32>();
    } else {
        // As many as one sector of memory holds lie side by side.
        let side = host!(256 / T::DTYPE.bits());
        let sample = host!(cfg.sample.max(side));
        let stride = len / sample * side;
        let drawn = frag::<U32, 1>([sample]);
        for s in parallel([sample]) {
            drawn[s] = sort_key(read(lo + (s / side * stride + s % side)));
        }
        let top = tile_max([sample], |s| drawn[s]);
        // With this rank in the sample, fewer than wanted lie above for one row in thirty thousand.
        let mean = want.to::<F32>() * host!(sample as f32) / len.value().to::<F32>();
        // Half of the exponent: no less than the root, and six in a hundred more at most. Every target gives these bits.
        let root = V::<F32>::from_bits((mean.bits() >> 1) + 0x1fc0_0000);
        let rank = min((mean + root * 4.0 + 4.0).to::<I32>().to::<U32>(), host!(sample as u32));
        let [guess, _, _] = search(counts, [lit(0u32), top], rank, rank >> 3, |base, reach, shift| {
            for s in parallel([sample]) {
                let over = drawn[s] - base;
                if over <= reach {
                    counts.atomic_add((over >> shift).clamp_index(0, bins - 1), 1);
                }
            }
        });
        low = guess;
        let least = number::<T>(guess);
        for i in spread(lo..hi) {
            let v = read(i);
            let keep = v.to::<F32>() >= least;
            let to = claim(&mut found, keep);
            if keep {
                keys.put(to, sort_key(v));
                columns.put(to, i.to::<U32>());
            }
        }
    }

    let among = || {
        let count = found.clamp_index(0, room);
        let top = tile_max([room], |c| if c < count { keys[c] } else { lit(0u32) });
        choose(
            counts,
            [low, top],
            want,
            [count * 0, count],
            |c| keys[c],
            |c, key, to| place(if cfg.direct { (lo + c).to::<U32>() } else { columns[c] }, key, to),
        );
    };
    if cfg.direct {
        among();
    } else if found >= want && found <= host!(room as u32) {
        among();
    } else {
        // The guess was too high, or too many elements are alike: all of them instead of candidates.
        let span = [lit(0u32), lit(host!(largest_key(T::DTYPE)))];
        choose(counts, span, want, [lo, hi], |i| sort_key(read(i)), |i, key, to| place(i.to::<U32>(), key, to));
    }
}

/// Writes the chosen ones, given in ascending order of columns, by descending key.
#[kernel_fn]
pub(super) fn write_sorted<W: Fn(V<U32>, V<U32>)>(best: [Tile<U32, Shared, 1>; 2], chosen: Ix, write: W) {
    let [best_key, best_at] = best;
    let [topk] = best_key.extents();
    for j in parallel([topk]) {
        if j < chosen {
            // The place of each is the number of better ones; equal ones stand in index order already.
            let key = best_key[j];
            let mut better = 0u32;
            for o in 0..chosen {
                let other = best_key[o];
                better += select(other > key || (other == key && o < j), 1, 0);
            }
            write(best_at[j], better + 0);
        }
    }
}
