//! On-chip memories: bytes, which of them are defined, and who touched them last.

use super::chip::Space;
use crate::machine::shadow::{Access, Conflict, Shadow, Use};
use crate::machine::{Clock, POISON};

const PAGE: usize = 4096;

/// One memory of one core.
#[derive(Debug)]
pub(super) struct Memory {
    pub space: Space,
    pub bytes: Vec<u8>,
    /// Of each byte: something defined it.
    pub defined: Vec<bool>,
    shadow: Vec<Option<Box<Shadow>>>,
    /// Of each word: the last write of the vector unit.
    fresh: Vec<Fresh>,
    /// End of what was touched.
    pub high: usize,
}

/// A write of the vector unit that a later instruction of it may not see yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fresh {
    /// Time of the unit, or number of a stretch of a vector function; 0 if there is none.
    pub time: u32,
    pub instruction: u32,
    pub line: u32,
}

impl Memory {
    pub fn new(space: Space, bytes: usize) -> Self {
        let words = if space == Space::Ub { bytes / 4 } else { 0 };
        Memory {
            space,
            bytes: vec![POISON; bytes],
            defined: vec![false; bytes],
            shadow: vec![None; bytes.div_ceil(PAGE)],
            fresh: vec![Fresh::default(); words],
            high: 0,
        }
    }

    /// Poison everywhere, touched by nobody.
    pub fn reset(&mut self) {
        self.bytes.fill(POISON);
        self.defined.fill(false);
        self.shadow.fill(None);
        self.fresh.fill(Fresh::default());
    }

    /// Records an access within the memory and gives the first conflict.
    pub fn touch(&mut self, what: Use, offset: usize, bytes: usize, now: Access, clock: &Clock) -> Option<Conflict> {
        let (mut found, mut from, end) = (None, offset, offset + bytes);
        self.high = self.high.max(end);
        while from < end {
            let page = from / PAGE;
            let stop = ((page + 1) * PAGE).min(end);
            // Reading what nothing defined is judged by what becomes of it, not here.
            let shadow = self.shadow[page].get_or_insert_with(|| Box::new(Shadow::new(PAGE, true)));
            let c = shadow.access(what, from - page * PAGE, stop - from, now, clock);
            found = found.or(c.map(|c| Conflict { offset: c.offset + page * PAGE, ..c }));
            from = stop;
        }
        if what == Use::Write && !self.fresh.is_empty() {
            self.fresh[offset / 4..end.div_ceil(4)].fill(Fresh::default());
        }
        found
    }

    /// Last writes of the vector unit to the words of a range.
    pub fn fresh(&self, offset: usize, bytes: usize) -> &[Fresh] {
        &self.fresh[offset / 4..(offset + bytes).div_ceil(4)]
    }

    /// Notes a write of the vector unit.
    pub fn set_fresh(&mut self, offset: usize, bytes: usize, by: Fresh) {
        self.fresh[offset / 4..(offset + bytes).div_ceil(4)].fill(by);
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8], defined: &[bool]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.defined[offset..offset + bytes.len()].copy_from_slice(defined);
    }
}
