//! Containers of narrow values that have no dtype of their own in memory: e5m6 codes in words, bytes in words, e2m1 codes
//! in bytes of something else.
//!
//! E2m1 and E8m0 are dtypes; tensors hold them as they are. What stands here are the packed forms of interfaces: eight
//! e5m6 codes (1 sign, 5 exponent with bias 15, 6 mantissa bits) in three words, four bytes (UE8M0 scales) in one, and
//! the four bits of an e2m1 number where they lie within a record of bytes.

use crate::dtype::{Bool, E8m0, F32, U8, U32};
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

/// The e2m1 code of `x`, 4 bits: nearest even, saturating at 6, the sign of zero kept; NaN becomes zero.
#[kernel_fn]
pub fn e2m1_code(x: V<F32>) -> V<U32> {
    let sign = (x.bits() >> 31) << 3;
    let size = abs(x);
    // One step up at each middle between neighbours; a middle itself goes to the even code.
    let step = |up: V<Bool>| -> V<U32> { up.to::<U32>() };
    let low = step(size > 0.25) + step(size >= 0.75) + step(size > 1.25) + step(size >= 1.75);
    sign | (low + step(size > 2.5) + step(size >= 3.5) + step(size > 5.0))
}

/// The number an e2m1 code stands for: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives.
#[kernel_fn]
pub fn e2m1_value(code: V<U32>) -> V<F32> {
    let (exponent, half, sign) = ((code >> 1) & 3, (code & 1) << 22, (code >> 3) << 31);
    let small = select((code & 1) == 1, 0.5, 0.0).bits();
    let normal = ((exponent + 126) << 23) | half;
    V::<F32>::from_bits(select(exponent == 0, small, normal) | sign)
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
