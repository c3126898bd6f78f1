//! Sets of lanes, as bits.

use crate::vm::program::WIDTH;

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask([u64; WIDTH / 64]);

// Without branches: comparing arrays of this size would be a library call.
impl PartialEq for Mask {
    fn eq(&self, o: &Mask) -> bool {
        self.0.iter().zip(&o.0).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl Mask {
    /// Lanes `0..n`.
    pub fn first(n: usize) -> Mask {
        let mut m = Mask::default();
        for (k, w) in m.0.iter_mut().enumerate() {
            let left = n.saturating_sub(64 * k);
            *w = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        }
        m
    }
    pub(super) fn none(self) -> bool {
        self.0.iter().fold(0, |all, w| all | w) == 0
    }
    pub(super) fn has(self, lane: usize) -> bool {
        self.0[lane / 64] >> (lane % 64) & 1 == 1
    }
    pub(super) fn set(&mut self, lane: usize, on: bool) {
        let bit = 1 << (lane % 64);
        if on { self.0[lane / 64] |= bit } else { self.0[lane / 64] &= !bit }
    }
    pub(super) fn and(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] & o.0[k]))
    }
    pub(super) fn or(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] | o.0[k]))
    }
    pub(super) fn without(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] & !o.0[k]))
    }
    pub(super) fn of(bools: &[i32]) -> Mask {
        let mut m = Mask::default();
        for (w, chunk) in m.0.iter_mut().zip(bools.chunks(64)) {
            for (k, &b) in chunk.iter().enumerate() {
                *w |= ((b != 0) as u64) << k;
            }
        }
        m
    }
    /// Calls `f` with each run of set lanes within `lo..hi`.
    pub(super) fn runs(self, lo: usize, hi: usize, mut f: impl FnMut(usize, usize)) {
        let mut at = lo;
        while at < hi {
            let ones = |from: usize| -> usize {
                let mut p = from;
                while p < hi {
                    let run = (!(self.0[p / 64] >> (p % 64))).trailing_zeros() as usize;
                    let left = 64 - p % 64;
                    p += run.min(left);
                    if run < left {
                        break;
                    }
                }
                p.min(hi)
            };
            if self.has(at) {
                let end = ones(at);
                f(at, end);
                at = end;
            } else {
                let skip = (self.0[at / 64] >> (at % 64)).trailing_zeros() as usize;
                at += skip.clamp(1, 64 - at % 64);
            }
        }
    }
}
