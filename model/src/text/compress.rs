//! Classes of tokens, in which V4.1's n-gram memory counts, and the multipliers of its hash.
//!
//! Tokens that differ in case, accents, width or the white space around them are one class: the text of a token goes through
//! NFKC, NFD, accents off, lower case, runs of blanks to one, blanks around it off unless it is nothing else. A token that is no
//! whole text keeps its spelling. Classes are numbered as they first appear. Multipliers are odd, from numpy's generator,
//! which is written here: SeedSequence, PCG64, bounded integers. Source: Cheng et al., Conditional memory via scalable lookup,
//! 2026; O'Neill, PCG, 2014; Lemire, Fast random integer generation in an interval, 2019.

use super::refuse;
use super::tokenizer::Tokenizer;
use crate::config::Engram;
use crate::error::Result;
use crate::layer::engram::Tables;
use std::collections::HashMap;
use tokenizers::NormalizedString;
use tokenizers::normalizers::StripAccents;
use tokenizers::tokenizer::Normalizer;

/// What the memory needs besides the checkpoint.
///
/// # Errors
/// A tokenizer with another number of classes than the configuration says.
pub fn tables(tokenizer: &Tokenizer, e: &Engram) -> Result<Tables> {
    let token_map = classes(tokenizer)?;
    let count = token_map.iter().max().map_or(0, |m| *m as usize + 1);
    if count != e.compressed_vocab_size {
        let want = format!("`engram_compressed_vocab_size` {} classes of tokens", e.compressed_vocab_size);
        return refuse(&tokenizer.file, want, count.to_string(), "use the tokenizer.json of this checkpoint");
    }
    let of_layer = |l: &usize| multipliers(*l, e.compressed_vocab_size, e.max_ngram_size);
    Ok(Tables { token_map, multipliers: e.layer_ids.iter().map(of_layer).collect() })
}

/// Number of classes.
///
/// # Errors
/// The normalizer's.
pub fn count(tokenizer: &Tokenizer) -> Result<usize> {
    Ok(classes(tokenizer)?.into_iter().max().map_or(0, |m| m as usize + 1))
}

/// Class of every id.
///
/// # Errors
/// The normalizer's.
pub fn classes(tokenizer: &Tokenizer) -> Result<Vec<i32>> {
    let mut numbers: HashMap<String, i32> = HashMap::new();
    let mut map = vec![];
    for id in 0..tokenizer.vocab_size() {
        let text = tokenizer.decode(&[id]);
        let class = if text.contains(char::REPLACEMENT_CHARACTER) {
            tokenizer.spelling(id).to_string()
        } else {
            plain(tokenizer, &text)?
        };
        let next = numbers.len() as i32;
        map.push(*numbers.entry(class).or_insert(next));
    }
    Ok(map)
}

/// A token's text without what does not tell classes apart.
fn plain(tokenizer: &Tokenizer, text: &str) -> Result<String> {
    let mut s = NormalizedString::from(text);
    s.nfkc().nfd();
    if let Err(e) = StripAccents.normalize(&mut s) {
        return refuse(&tokenizer.file, "a text", e.to_string(), "fetch the file again");
    }
    s.lowercase();
    let mut out = String::new();
    for c in s.get().chars() {
        match c {
            ' ' | '\t' | '\r' | '\n' if out.ends_with(' ') => {}
            ' ' | '\t' | '\r' | '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    if out != " " {
        out = out.trim().to_string();
    }
    // A text of accents alone is a class of its own.
    Ok(if out.is_empty() { text.to_string() } else { out })
}

/// Multipliers of a layer: `2r + 1` for `r` below half of the numbers whose product with a class has 63 bits.
pub fn multipliers(layer: usize, classes: usize, count: usize) -> Vec<i64> {
    /// What layers' seeds are apart.
    const SEED: u64 = 10_007;
    let bound = (i64::MAX as u64 / classes.max(1) as u64 / 2).max(1);
    let mut random = Pcg64::new(SEED * layer as u64);
    (0..count).map(|_| 2 * random.below(bound) as i64 + 1).collect()
}

/// numpy's default generator.
struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of a word whose lower half was used.
    half: Option<u32>,
}

const STEP: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl Pcg64 {
    fn new(seed: u64) -> Pcg64 {
        let words = seed_words(seed);
        let wide = |i: usize| u128::from(words[i]) << 64 | u128::from(words[i + 1]);
        let mut p = Pcg64 { state: 0, increment: wide(2) << 1 | 1, half: None };
        p.step();
        p.state = p.state.wrapping_add(wide(0));
        p.step();
        p
    }
    fn step(&mut self) {
        self.state = self.state.wrapping_mul(STEP).wrapping_add(self.increment);
    }
    fn next(&mut self) -> u64 {
        self.step();
        let mixed = (self.state >> 64) as u64 ^ self.state as u64;
        mixed.rotate_right((self.state >> 122) as u32)
    }
    fn next_half(&mut self) -> u32 {
        if let Some(upper) = self.half.take() {
            return upper;
        }
        let word = self.next();
        self.half = Some((word >> 32) as u32);
        word as u32
    }
    /// A number below `bound`, by a wide product whose few uneven remainders are drawn again.
    fn below(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        if bound < 1 << 32 {
            let n = bound as u32;
            loop {
                let m = u64::from(self.next_half()) * u64::from(n);
                if m as u32 >= n.wrapping_neg() % n {
                    return m >> 32;
                }
            }
        }
        loop {
            let m = u128::from(self.next()) * u128::from(bound);
            if m as u64 >= bound.wrapping_neg() % bound {
                return (m >> 64) as u64;
            }
        }
    }
}

/// The words numpy's SeedSequence makes of a seed.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut constant = 0x43b0_d7e5u32;
    let mut hash = |x: u32| {
        let x = x ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let x = x.wrapping_mul(constant);
        x ^ x >> 16
    };
    let mix = |x: u32, y: u32| {
        let r = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        r ^ r >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            pool[to] = mix(pool[to], hash(pool[from]));
        }
    }
    let mut constant = 0x8b51_f9ddu32;
    let words: [u32; 8] = std::array::from_fn(|i| {
        let x = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let x = x.wrapping_mul(constant);
        x ^ x >> 16
    });
    std::array::from_fn(|i| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipliers_of_the_released_model() {
        let want = [76_632_096_046_245, 4_839_876_093_313, 35_959_672_319_349, 73_987_337_458_391];
        assert_eq!(multipliers(1, 99_092, 4), want);
        let want = [67_716_810_739_261, 51_510_806_800_915, 30_921_347_202_721, 82_619_226_485_591];
        assert_eq!(multipliers(14, 99_092, 4), want);
    }
}
