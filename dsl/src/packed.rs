//! Containers of narrow values that have no dtype of their own in memory: e5m6 codes in words, bytes in words.
//!
//! E2m1 and E8m0 are dtypes; tensors hold them as they are. What stands here are the packed forms of interfaces: eight
//! e5m6 codes (1 sign, 5 exponent with bias 15, 6 mantissa bits) in three words, four bytes (UE8M0 scales) in one.

use crate::dtype::{E8m0, F32, U8, U32};
use crate::math::{abs, select};
use crate::scalar::V;
use kiln_dsl_macros::kernel_fn;

/// Largest e5m6 value: exponent 31 is not used.
const E5M6_MAX: f32 = 65024.0;

/// The e5m6 code of `x`, 12 bits: nearest even, subnormals on the grid of 2^-20, saturating at 65024 (NaN too).
#[kernel_fn]
pub fn e5m6_code(x: V<F32>) -> V<U32> {
    let sign = (x.bits() >> 31) << 11;
    let size = abs(x).min(E5M6_MAX);
    let u = size.bits();
    // 17 mantissa bits go; a carry out of the others raises the exponent, whose bias becomes 15.
    let normal = ((u + 0xffff + ((u >> 17) & 1)) >> 17) - (112 << 6);
    // Adding 2^23 rounds to whole steps; 64 of them are the smallest normal number.
    let subnormal = (size * 1_048_576.0 + 8_388_608.0).bits() & 0x7f;
    sign | select(size < 6.103_515_6e-5, subnormal, normal)
}

/// The value of an e5m6 code.
#[kernel_fn]
pub fn e5m6_value(code: V<U32>) -> V<F32> {
    let sign = (code >> 11) << 31;
    let rest = code & 0x7ff;
    let normal = (rest + (112 << 6)) << 17;
    let subnormal = (rest.to::<F32>() * 9.536_743e-7).bits();
    V::<F32>::from_bits(sign | select(rest < 64, subnormal, normal))
}

/// Eight 12-bit codes as three words: the first code stands in the most significant bits of the first word.
#[kernel_fn]
pub fn e5m6_pack(codes: [V<U32>; 8]) -> [V<U32>; 3] {
    let [a, b, c, d, e, f, g, h] = codes;
    [(a << 20) | (b << 8) | (c >> 4), (c << 28) | (d << 16) | (e << 4) | (f >> 8), (f << 24) | (g << 12) | h]
}

/// The codes of three words: see [`e5m6_pack`].
#[kernel_fn]
pub fn e5m6_unpack(words: [V<U32>; 3]) -> [V<U32>; 8] {
    let [x, y, z] = words;
    let m = 0xfff;
    [
        x >> 20,
        (x >> 8) & m,
        ((x << 4) | (y >> 28)) & m,
        (y >> 16) & m,
        (y >> 4) & m,
        ((y << 8) | (z >> 24)) & m,
        (z >> 12) & m,
        z & m,
    ]
}

/// Four UE8M0 scales in a word, the first in the lowest byte.
#[kernel_fn]
pub fn e8m0_pack(scales: [V<E8m0>; 4]) -> V<U32> {
    let [a, b, c, d] = scales;
    let byte = |x: V<E8m0>| -> V<U32> { x.bits().to::<U32>() };
    byte(a) | (byte(b) << 8) | (byte(c) << 16) | (byte(d) << 24)
}

/// Scale `at` of a word: see [`e8m0_pack`].
#[kernel_fn]
pub fn e8m0_unpack(word: V<U32>, at: u32) -> V<E8m0> {
    let byte: V<U8> = ((word >> (8 * at)) & 0xff).to::<U8>();
    V::<E8m0>::from_bits(byte)
}
