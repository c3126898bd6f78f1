//! Shadow memory: for each byte who wrote it last and who has read it since, and whether an access is ordered after
//! those by happens-before.
//!
//! Four bytes share one cell until an access touches only some of them; then each byte has its own until the whole word
//! is written again. Whether two accesses race is decided by clocks, so it does not depend on the schedule that ran.

use super::clock::{Actor, Clock};

/// One access, as a later one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who.
    pub actor: Actor,
    /// When, in the actor's time; 0 means no access.
    pub time: u32,
    /// Cluster of blocks it ran in; times of different clusters cannot be compared.
    pub block: u32,
    /// Line of the emitted text.
    pub line: u32,
    /// Part of an indivisible operation.
    pub atomic: bool,
    /// How memory is reached.
    pub way: Way,
}

/// How an access reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As loads and stores do.
    Generic,
    /// Through the async proxy: bulk copies and operands of matrix instructions, with a swizzle if they have one.
    Async(Option<Swizzle>),
}

/// Permutation of the 16-byte pieces within a span: bits 4 and up of the address are changed by bits 7 and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// None.
    None,
    /// Over 32 bytes.
    B32,
    /// Over 64 bytes.
    B64,
    /// Over 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of the span; 16 without a swizzle.
    pub fn span(self) -> usize {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }
    /// Where the byte that would lie at `address` lies.
    pub fn apply(self, address: usize) -> usize {
        address ^ ((address >> 7) & (self.span() / 16 - 1)) << 4
    }
}

impl std::fmt::Display for Swizzle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Swizzle::None => f.write_str("no swizzle"),
            Swizzle::B32 | Swizzle::B64 | Swizzle::B128 => write!(f, "a {}-byte swizzle", self.span()),
        }
    }
}

impl Access {
    const NONE: Access = Access { actor: 0, time: 0, block: 0, line: 0, atomic: false, way: Way::Generic };
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes indivisibly.
    Atomic,
}

/// Conflict of an access with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Kind.
    pub kind: ConflictKind,
    /// First byte concerned, from the start of the shadow.
    pub offset: usize,
    /// The earlier access.
    pub earlier: Access,
}

/// Kinds of conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Read of a byte nobody wrote.
    Uninitialised,
    /// Read, unordered after a write.
    ReadAfterWrite,
    /// Write, unordered after a write.
    WriteAfterWrite,
    /// Write, unordered after a read.
    WriteAfterRead,
    /// Through the async proxy, ordered after an ordinary write that is not visible to it.
    Unfenced,
    /// Read with another swizzle than it was written with.
    Swizzle,
}

#[derive(Clone, Debug)]
struct Cell {
    write: Access,
    read: Access,
    /// Further readers since the last write, and atomic writers before the last one.
    #[allow(clippy::box_collection, reason = "nearly always absent, and there is a cell for every word of memory")]
    more: Option<Box<Vec<Access>>>,
    written: bool,
}

impl Cell {
    const NEW: Cell = Cell { write: Access::NONE, read: Access::NONE, more: None, written: false };

    fn access(&mut self, what: Use, now: Access, clock: &Clock) -> Option<(ConflictKind, Access)> {
        let ordered = |a: &Access| {
            a.time == 0 || (a.block == now.block && clock.knows(a.actor, a.time)) || (a.atomic && now.atomic)
        };
        let mut found = None;
        let mut note = |kind, a: Access| found = found.or(Some((kind, a)));
        if what != Use::Write && !self.written {
            note(ConflictKind::Uninitialised, Access::NONE);
            // One report a byte is enough.
            self.written = true;
        } else if !ordered(&self.write) {
            let kind = if what == Use::Read { ConflictKind::ReadAfterWrite } else { ConflictKind::WriteAfterWrite };
            note(kind, self.write);
        } else if let Way::Async(swizzle) = now.way {
            match self.write.way {
                Way::Generic if self.write.time > 0 && !clock.fenced(self.write.actor, self.write.time) => {
                    note(ConflictKind::Unfenced, self.write);
                }
                Way::Async(Some(written)) if what == Use::Read && swizzle.is_some_and(|s| s != written) => {
                    note(ConflictKind::Swizzle, self.write);
                }
                Way::Generic | Way::Async(_) => {}
            }
        }
        match what {
            Use::Read => {
                for a in self.more.iter().flat_map(|m| m.iter()) {
                    if a.atomic && !ordered(a) {
                        note(ConflictKind::ReadAfterWrite, *a);
                    }
                }
                if self.read.time == 0 || self.read.actor == now.actor || ordered(&self.read) {
                    self.read = now;
                } else {
                    let more = self.more.get_or_insert_default();
                    match more.iter_mut().find(|a| !a.atomic && (a.actor == now.actor || ordered(a))) {
                        Some(a) => *a = now,
                        None => more.push(now),
                    }
                }
            }
            Use::Write | Use::Atomic => {
                for a in std::iter::once(&self.read).chain(self.more.iter().flat_map(|m| m.iter())) {
                    if !ordered(a) {
                        let kind = if a.atomic { ConflictKind::WriteAfterWrite } else { ConflictKind::WriteAfterRead };
                        note(kind, *a);
                    }
                }
                if what == Use::Atomic && self.write.atomic && self.write.actor != now.actor {
                    let earlier = self.write;
                    let more = self.more.get_or_insert_default();
                    more.retain(|a| a.atomic && a.actor != earlier.actor && a.actor != now.actor);
                    more.push(earlier);
                } else {
                    self.more = None;
                }
                self.read = Access::NONE;
                self.write = now;
                self.written = true;
            }
        }
        found
    }
}

#[derive(Clone, Debug)]
enum Word {
    Whole(Cell),
    Bytes(Box<[Cell; 4]>),
}

/// Shadow of a range of memory.
#[derive(Clone, Debug)]
pub struct Shadow {
    words: Vec<Word>,
}

impl Shadow {
    /// Shadow of `bytes` bytes that nobody has touched. `written` says whether they have a defined content.
    pub fn new(bytes: usize, written: bool) -> Self {
        Shadow { words: vec![Word::Whole(Cell { written, ..Cell::NEW }); bytes.div_ceil(4)] }
    }

    /// Records an access to `offset..offset + bytes` and gives the first conflict. `now` is stamped with the clock's
    /// time by the caller, which may act for another actor.
    pub fn access(&mut self, what: Use, offset: usize, bytes: usize, now: Access, clock: &Clock) -> Option<Conflict> {
        let mut found = None;
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let word = &mut self.words[at / 4];
            let stop = (at / 4 * 4 + 4).min(end);
            let whole = stop - at == 4;
            if let Word::Bytes(cells) = word
                && whole
                && what == Use::Write
            {
                // The bytes grow together again once each of them was checked.
                for (i, cell) in cells.iter_mut().enumerate() {
                    if let Some((kind, earlier)) = cell.access(what, now, clock) {
                        found = found.or(Some(Conflict { kind, offset: at + i, earlier }));
                    }
                }
                *word = Word::Whole(Cell { write: now, written: true, ..Cell::NEW });
                at = stop;
                continue;
            }
            if let (Word::Whole(cell), false) = (&*word, whole) {
                *word = Word::Bytes(Box::new([cell.clone(), cell.clone(), cell.clone(), cell.clone()]));
            }
            match word {
                Word::Whole(cell) => {
                    if let Some((kind, earlier)) = cell.access(what, now, clock) {
                        found = found.or(Some(Conflict { kind, offset: at, earlier }));
                    }
                }
                Word::Bytes(cells) => {
                    for byte in at..stop {
                        if let Some((kind, earlier)) = cells[byte % 4].access(what, now, clock) {
                            found = found.or(Some(Conflict { kind, offset: byte, earlier }));
                        }
                    }
                }
            }
            at = stop;
        }
        found
    }

    /// True if the byte was written or had a content from the start.
    pub fn is_written(&self, offset: usize) -> bool {
        match &self.words[offset / 4] {
            Word::Whole(cell) => cell.written,
            Word::Bytes(cells) => cells[offset % 4].written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn at(c: &Clock, line: u32) -> Access {
        Access { actor: c.actor(), time: c.now(), block: 0, line, atomic: false, way: Way::Generic }
    }

    fn clocks(n: u16) -> Vec<Clock> {
        let nothing = Arc::new(vec![]);
        (0..n).map(|a| Clock::new(a, &nothing)).collect()
    }

    #[test]
    fn the_four_conflicts() {
        let mut c = clocks(3);
        let mut s = Shadow::new(16, false);
        let kind = |x: Option<Conflict>| x.map(|x| x.kind);
        assert_eq!(kind(s.access(Use::Read, 0, 4, at(&c[0], 1), &c[0])), Some(ConflictKind::Uninitialised));
        assert_eq!(kind(s.access(Use::Write, 4, 4, at(&c[0], 1), &c[0])), None);
        assert_eq!(kind(s.access(Use::Read, 4, 4, at(&c[0], 2), &c[0])), None);
        assert_eq!(kind(s.access(Use::Read, 4, 4, at(&c[1], 2), &c[1])), Some(ConflictKind::ReadAfterWrite));
        assert_eq!(kind(s.access(Use::Write, 4, 4, at(&c[2], 3), &c[2])), Some(ConflictKind::WriteAfterWrite));
        Clock::meet(c.iter_mut());
        assert_eq!(kind(s.access(Use::Read, 4, 4, at(&c[0], 4), &c[0])), None);
        assert_eq!(kind(s.access(Use::Read, 4, 4, at(&c[1], 4), &c[1])), None);
        let w = s.access(Use::Write, 4, 4, at(&c[2], 5), &c[2]);
        assert_eq!(kind(w), Some(ConflictKind::WriteAfterRead));
        Clock::meet(c.iter_mut());
        assert_eq!(kind(s.access(Use::Write, 4, 4, at(&c[0], 6), &c[0])), None);
    }

    #[test]
    fn bytes_of_one_word_are_told_apart() {
        let mut c = clocks(2);
        let mut s = Shadow::new(8, false);
        assert_eq!(s.access(Use::Write, 0, 2, at(&c[0], 1), &c[0]), None);
        assert_eq!(s.access(Use::Write, 2, 2, at(&c[1], 1), &c[1]), None);
        assert!(!s.is_written(4) && s.is_written(3));
        let w = s.access(Use::Read, 0, 4, at(&c[0], 2), &c[0]).expect("the upper half is not ordered");
        assert_eq!((w.kind, w.offset), (ConflictKind::ReadAfterWrite, 2));
        Clock::meet(c.iter_mut());
        assert_eq!(s.access(Use::Write, 0, 4, at(&c[0], 3), &c[0]), None);
        assert!(s.access(Use::Read, 3, 1, at(&c[1], 4), &c[1]).is_some());
    }

    #[test]
    fn atomics_do_not_race_with_each_other() {
        let mut c = clocks(3);
        let mut s = Shadow::new(4, true);
        for i in [0, 1, 0, 1] {
            let now = Access { atomic: true, ..at(&c[i], 1) };
            assert_eq!(s.access(Use::Atomic, 0, 4, now, &c[i]), None);
        }
        assert!(s.access(Use::Read, 0, 4, at(&c[2], 2), &c[2]).is_some());
        Clock::meet(c[1..].iter_mut());
        let r = s.access(Use::Read, 0, 4, at(&c[2], 2), &c[2]).expect("thread 0's atomic is not ordered");
        assert_eq!(r.earlier.actor, 0);
    }
}
