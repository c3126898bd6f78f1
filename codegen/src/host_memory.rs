//! Bytes that several threads may read and write without `unsafe` and without undefined behaviour.
//!
//! The VM's global memory: blocks run in parallel, and a wrong kernel may race. Every access is a relaxed atomic on
//! 64-bit words, so a race gives some value, never undefined behaviour. Bulk reads and writes go word by word.

use std::sync::atomic::{AtomicU64, Ordering};

/// A zero-initialised allocation on the host.
#[derive(Debug)]
pub struct HostMemory {
    words: Box<[AtomicU64]>,
    len_bytes: usize,
    /// For memory that is there in parts only: the first word of each part, and where it lies in `words`, in order.
    parts: Vec<(usize, usize)>,
}

impl HostMemory {
    /// Allocates `len_bytes` zero bytes.
    pub fn zeroed(len_bytes: usize) -> Self {
        let words = (0..len_bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        HostMemory { words, len_bytes, parts: vec![] }
    }

    /// An allocation of `len_bytes` of which only some ranges of bytes exist: for addresses that no machine has the memory
    /// for. Ranges are given in order, the first from 0 on, apart from each other by a word or more; an access outside panics.
    pub fn in_parts(len_bytes: usize, ranges: &[std::ops::Range<usize>]) -> Self {
        let (mut parts, mut count) = (vec![], 0);
        for range in ranges {
            parts.push((range.start / 8, count));
            count += range.end.div_ceil(8) - range.start / 8;
        }
        HostMemory { words: (0..count).map(|_| AtomicU64::new(0)).collect(), len_bytes, parts }
    }

    /// Where words from `first` on lie in `words`.
    #[inline(always)]
    fn place(&self, first: usize) -> usize {
        if self.parts.is_empty() { first } else { self.place_in_parts(first) }
    }
    #[cold]
    fn place_in_parts(&self, first: usize) -> usize {
        let at = self.parts.partition_point(|part| part.0 <= first);
        assert!(at > 0, "word {first} of host memory lies in no part");
        let (start, place) = self.parts[at - 1];
        let end = self.parts.get(at).map_or(self.words.len(), |next| next.1);
        assert!(place + (first - start) < end, "word {first} of host memory lies in no part");
        place + (first - start)
    }
    #[inline(always)]
    fn slice(&self, first: usize, count: usize) -> &[AtomicU64] {
        if count == 0 {
            return &[];
        }
        let at = self.place(first);
        assert!(self.parts.is_empty() || self.place(first + count - 1) == at + count - 1, "words of several parts");
        &self.words[at..at + count]
    }

    /// Allocates and fills from `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let m = Self::zeroed(bytes.len());
        m.write(0, bytes);
        m
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Panics
    /// If the range is outside the allocation; callers check bounds first.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.len_bytes, "read outside host memory");
        let (mut at, mut done) = (offset, 0);
        while done < out.len() {
            let (word, byte) = (at / 8, at % 8);
            if byte == 0 && out.len() - done >= 8 {
                // Whole words: the bulk of every long read.
                let (chunks, _) = out[done..].as_chunks_mut::<8>();
                let count = chunks.len();
                for (chunk, cell) in chunks.iter_mut().zip(self.slice(word, count)) {
                    *chunk = cell.load(Ordering::Relaxed).to_le_bytes();
                }
                at += chunks.len() * 8;
                done += chunks.len() * 8;
                continue;
            }
            let take = (8 - byte).min(out.len() - done);
            let bytes = self.words[self.place(word)].load(Ordering::Relaxed).to_le_bytes();
            out[done..done + take].copy_from_slice(&bytes[byte..byte + take]);
            at += take;
            done += take;
        }
    }

    /// Copies `bytes` to `offset`. Neighbouring bytes of a partly covered word keep their value even under races.
    ///
    /// # Panics
    /// If the range is outside the allocation; callers check bounds first.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len_bytes, "write outside host memory");
        let (mut at, mut done) = (offset, 0);
        while done < bytes.len() {
            let (word, byte) = (at / 8, at % 8);
            let take = (8 - byte).min(bytes.len() - done);
            if take == 8 {
                let (chunks, _) = bytes[done..].as_chunks::<8>();
                for (chunk, cell) in chunks.iter().zip(self.slice(word, chunks.len())) {
                    cell.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
                }
                at += chunks.len() * 8;
                done += chunks.len() * 8;
                continue;
            } else {
                let mut w = [0u8; 8];
                w[byte..byte + take].copy_from_slice(&bytes[done..done + take]);
                let value = u64::from_le_bytes(w);
                let mask = ((1u64 << (take * 8)) - 1) << (byte * 8);
                let cell = &self.words[self.place(word)];
                let mut old = cell.load(Ordering::Relaxed);
                while let Err(now) =
                    cell.compare_exchange_weak(old, (old & !mask) | value, Ordering::Relaxed, Ordering::Relaxed)
                {
                    old = now;
                }
            }
            at += take;
            done += take;
        }
    }

    /// The 64-bit word that holds byte `8 * index`, for atomic operations on aligned elements.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[self.place(index)]
    }

    /// `count` 64-bit words from word `first` on.
    pub fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        self.slice(first, count)
    }

    /// Calls `f(i, word)` for `count` 64-bit words from word `first` on, without a copy in between.
    #[inline(always)]
    pub fn each_word(&self, first: usize, count: usize, mut f: impl FnMut(usize, u64)) {
        // Four at a time: a loop over atomics is not unrolled by itself.
        let (fours, rest) = self.slice(first, count).as_chunks::<4>();
        for (i, cells) in fours.iter().enumerate() {
            for (k, cell) in cells.iter().enumerate() {
                f(4 * i + k, cell.load(Ordering::Relaxed));
            }
        }
        for (k, cell) in rest.iter().enumerate() {
            f(4 * fours.len() + k, cell.load(Ordering::Relaxed));
        }
    }

    /// Sets `count` 64-bit words from word `first` on to `f(i)`.
    #[inline(always)]
    pub fn set_words(&self, first: usize, count: usize, f: impl Fn(usize) -> u64) {
        let (fours, rest) = self.slice(first, count).as_chunks::<4>();
        for (i, cells) in fours.iter().enumerate() {
            for (k, cell) in cells.iter().enumerate() {
                cell.store(f(4 * i + k), Ordering::Relaxed);
            }
        }
        for (k, cell) in rest.iter().enumerate() {
            cell.store(f(4 * fours.len() + k), Ordering::Relaxed);
        }
    }

    /// `bits` bits from bit `at` on; they lie in one 64-bit word.
    pub fn load_bits(&self, at: usize, bits: usize) -> u64 {
        let word = self.words[self.place(at / 64)].load(Ordering::Relaxed) >> (at % 64);
        if bits == 64 { word } else { word & ((1 << bits) - 1) }
    }

    /// Stores `bits` bits from bit `at` on; they lie in one 64-bit word, whose other bits keep their value under races.
    pub fn store_bits(&self, at: usize, bits: usize, value: u64) {
        self.update_bits(at, bits, |_| value);
    }

    /// Replaces `bits` bits from bit `at` on by `f` of them, indivisibly, and returns the old ones.
    pub fn update_bits(&self, at: usize, bits: usize, f: impl Fn(u64) -> u64) -> u64 {
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let (cell, shift) = (&self.words[self.place(at / 64)], at % 64);
        let mut old = cell.load(Ordering::Relaxed);
        loop {
            let part = (old >> shift) & mask;
            let new = (old & !(mask << shift)) | ((f(part) & mask) << shift);
            match cell.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return part,
                Err(now) => old = now,
            }
        }
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut v = vec![0; self.len_bytes];
        self.read(0, &mut v);
        v
    }
}
