//! Scales of matrix operands: read from whichever form a problem has them in, and multiplied in by the promoted step that
//! all fp8 products share. Not a kernel; `layout::sf_layout` makes the packed form.

use dsl::prelude::*;

/// Where the scales of one operand come from, and which elements share one.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// `[rows, groups]`, any strides.
    pub plain: Option<Gm<F32, 2>>,
    /// `[⌈groups/4⌉, rows]`, exponents of four groups a word, the first in the low byte.
    pub packed: Option<Gm<I32, 2>>,
    /// Rows that share a scale.
    pub rows: usize,
    /// Elements along K that share a scale.
    pub depth: usize,
}

/// The power of two whose exponent is byte `byte` of `word`.
#[kernel_fn]
pub fn packed_scale(word: V<I32>, byte: V<I32>) -> V<F32> {
    let exponent = (word >> (byte * 8)) & 255;
    V::<E8m0>::from_bits(exponent.to::<U8>()).to::<F32>()
}

/// The scale of `row` at position `k`; zero outside, 1 if there are none.
#[kernel_fn]
pub fn scale_at(s: Scales, row: Ix, k: Ix) -> V<F32> {
    let (row, group) = (row / s.rows, k / s.depth);
    if let Some(words) = s.packed {
        packed_scale(words[(group / 4, row)], (group % 4).value())
    } else if let Some(scales) = s.plain {
        scales[(row, group)]
    } else {
        V::<F32>::of(1.0)
    }
}

/// A tile of an operand and where its scales are: rows `row..` of the operand, K from `k`.
#[derive(Clone, Copy, Debug)]
pub struct Scaled {
    /// Rows by K.
    pub tile: Tile<E4m3, Shared, 2>,
    /// Scales of the whole operand.
    pub scales: Scales,
    /// First row of the tile in the operand.
    pub row: Ix,
}

/// `acc += Σ_κ row scale · column scale · (a · bᵀ over group κ)` for K from `k`: each group of K is one chain, then added
/// to `acc` with one rounding.
#[kernel_fn]
pub fn promoted_step(a: Scaled, b: Scaled, k: Ix, acc: Tile<F32, Frag, 2>) {
    let bk = host!(a.tile.extent(1));
    let chunk = host!(a.scales.depth.min(b.scales.depth).min(bk));
    for part in unroll(0..bk / chunk) {
        let (from, to) = host!((part * chunk, (part + 1) * chunk));
        gemm_scaled(
            (a.tile.cols(from, to), |i: Ix| scale_at(a.scales, a.row + i, k + from)),
            (b.tile.cols(from, to).t(), |j: Ix| scale_at(b.scales, b.row + j, k + from)),
            acc,
        );
    }
}
