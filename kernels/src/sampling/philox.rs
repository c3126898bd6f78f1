//! Philox4x32-10: random bits as a function of a counter and a key, and numbers made of them.
//!
//! A block of four tokens has the counter `(token / 4, position low, position high, 0)` and the key `(seed low, seed high)`; the
//! word of a token is `token mod 4`. Of a word `x`, `u = (⌊x/256⌋ + ½)·2^-24` lies strictly between 0 and 1.
//!
//! *Numerics*: integers; `-ln u` and the Gumbel variable `-ln(-ln u)` keep f32's relative precision on both ends, also where
//! `u` itself would round to 1.
//! *Source*: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011.

use dsl::prelude::*;

/// Multipliers of a round.
const MULTIPLY: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// What a round adds to the key.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// Rounds.
const ROUNDS: usize = 10;

/// High and low half of a product.
#[kernel_fn]
fn product(a: V<U32>, b: u32) -> [V<U32>; 2] {
    // The product wraps into the sign, which the low half of the shifted number does not see.
    let wide = a.to::<I64>() * i64::from(b);
    [(wide >> 32i64).to::<U32>(), wide.to::<U32>()]
}

/// Four random words.
#[kernel_fn]
pub fn philox(counter: [V<U32>; 4], key: [V<U32>; 2]) -> [V<U32>; 4] {
    let mut c = host!(counter);
    let mut k = host!(key);
    for _round in unroll(0..ROUNDS) {
        let [h0, l0] = product(c[0], MULTIPLY[0]);
        let [h1, l1] = product(c[2], MULTIPLY[1]);
        c = host!([h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0]);
        k = host!([k[0] + WEYL[0], k[1] + WEYL[1]]);
    }
    c
}

/// The words of the four tokens `4·block ..`.
#[kernel_fn]
pub fn words(seed: V<I64>, position: V<I64>, block: V<U32>) -> [V<U32>; 4] {
    let halves = |x: V<I64>| -> [V<U32>; 2] { [x.to::<U32>(), (x >> 32i64).to::<U32>()] };
    let [low, high] = halves(position);
    philox([block, low, high, lit(0u32)], halves(seed))
}

/// `u` of a word, rounded to f32.
#[kernel_fn]
pub fn uniform(word: V<U32>) -> V<F32> {
    ((word >> 8).to::<F32>() + 0.5) * (1.0 / 16_777_216.0)
}

/// `-ln(-ln u)` of a word.
#[kernel_fn]
pub fn gumbel(word: V<U32>) -> V<F32> {
    let n = word >> 8;
    let upper = n >= 0x0080_0000;
    // Past 1/2 the distance to 1 is exact in f32, and `u` is not.
    let rest = ((0x0100_0000 - n).to::<F32>() - 0.5) * (1.0 / 16_777_216.0);
    let (f, exponent) = log_parts(uniform(word));
    let log = log_of_parts(select(upper, -rest, f), select(upper, 0.0, exponent));
    -log_precise(-log)
}

/// The words of a block of tokens, with wide products.
pub fn reference(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..ROUNDS {
        let wide = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let (p, q) = (wide(c[0], 0xd251_1f53), wide(c[2], 0xcd9e_8d57));
        c = [(q >> 32) as u32 ^ c[1] ^ k[0], q as u32, (p >> 32) as u32 ^ c[3] ^ k[1], p as u32];
        k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

/// `u` of a token.
pub fn uniform_of(seed: i64, position: i64, token: usize) -> f64 {
    let words = reference(
        [(token / 4) as u32, position as u32, (position >> 32) as u32, 0],
        [seed as u32, (seed >> 32) as u32],
    );
    (f64::from(words[token % 4] >> 8) + 0.5) / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their library: zeros, ones, digits of pi.
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(reference([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(reference([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let (counter, key) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(reference(counter, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
