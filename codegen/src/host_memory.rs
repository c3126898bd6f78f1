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
}

impl HostMemory {
    /// Allocates `len_bytes` zero bytes.
    pub fn zeroed(len_bytes: usize) -> Self {
        HostMemory { words: (0..len_bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(), len_bytes }
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
            let take = (8 - byte).min(out.len() - done);
            let bytes = self.words[word].load(Ordering::Relaxed).to_le_bytes();
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
                let mut w = [0u8; 8];
                w.copy_from_slice(&bytes[done..done + 8]);
                self.words[word].store(u64::from_le_bytes(w), Ordering::Relaxed);
            } else {
                let mut w = [0u8; 8];
                w[byte..byte + take].copy_from_slice(&bytes[done..done + take]);
                let value = u64::from_le_bytes(w);
                let mask = ((1u64 << (take * 8)) - 1) << (byte * 8);
                let cell = &self.words[word];
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
        &self.words[index]
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut v = vec![0; self.len_bytes];
        self.read(0, &mut v);
        v
    }
}
