//! Judgement of accesses to on-chip and global memory, rules that many instructions share, and findings in words.

use super::chip::{PIPES, Pipe, Space};
use super::{Actor, At, Code, Machine, Region, State, Work, stamp};
use crate::machine::shadow::{Access, ConflictKind, Use};

impl Machine {
    /// Notes a finding of the running core.
    pub fn report(&mut self, code: Code, line: u32, message: String) {
        self.report_at(At { core: self.current, pipe: Pipe::S, line }, code, 0, message);
    }

    pub(super) fn report_at(&mut self, at: At, code: Code, other: u32, message: String) {
        let who = self.who(at.core);
        self.findings.report(code, at.line, other, || match at.pipe {
            Pipe::S => format!("{who}: {message}"),
            pipe => format!("{who}, pipe {}: {message}", pipe.name()),
        });
    }

    pub(super) fn who(&self, core: usize) -> String {
        match core {
            0 => format!("block {}, cube core", self.block),
            c => format!("block {}, vector core {}", self.block, c - 1),
        }
    }

    pub(super) fn actor_name(&self, actor: Actor) -> String {
        let (core, pipe) = (actor as usize / PIPES, Pipe::ALL[actor as usize % PIPES]);
        let core = if core == 0 { "the cube core".to_string() } else { format!("vector core {}", core - 1) };
        match pipe {
            Pipe::S => format!("the scalar unit of {core}"),
            pipe => format!("pipe {} of {core}", pipe.name()),
        }
    }

    pub(super) fn deadlock(&mut self) {
        let mut blocked = vec![];
        let mut line = 0;
        for (c, core) in self.cores.iter().enumerate() {
            let mut note = |text: String, at: u32| {
                if line == 0 {
                    line = at;
                }
                blocked.push(format!("{} {text} at line #{at}", self.who(c)));
            };
            match core.state {
                State::Event { from, id, line } => note(format!("waits for event {}_S {id}", from.name()), line),
                State::Cross { id, line, .. } => note(format!("waits for cross-core flag {id}"), line),
                State::All { line } => note("waits for all its pipes".into(), line),
                State::Room { pipe, line } => note(format!("waits for pipe {} to take more", pipe.name()), line),
                State::Ready | State::Running | State::Exited => {}
            }
            for (pipe, unit) in Pipe::ALL.iter().zip(&core.units) {
                match unit.queue.front().map(|q| (&q.work, q.line)) {
                    Some((Work::Wait { from, id }, line)) => {
                        note(format!("pipe {} waits for event {}_{} {id}", pipe.name(), from.name(), pipe.name()), line)
                    }
                    Some((Work::CrossWait { id, .. }, line)) => {
                        note(format!("pipe {} waits for cross-core flag {id}", pipe.name()), line)
                    }
                    Some(_) | None => {}
                }
            }
        }
        let text = blocked.join("; ");
        self.findings.report(Code::Deadlock, line, 0, || format!("nothing can continue: {text}"));
    }

    // --- memory ---

    pub(super) fn memory_of(space: Space, core: usize) -> usize {
        match space {
            Space::L1 => 0,
            Space::L0a => 1,
            Space::L0b => 2,
            Space::L0c => 3,
            Space::Ub => 4 + core.saturating_sub(1),
        }
    }

    /// A tensor the text makes of an on-chip memory: says what is wrong with it.
    pub(super) fn tensor(&mut self, r: Region, line: u32) {
        self.count(line);
        let capacity = self.config.arch.capacity(r.space, self.config.mixed);
        let name = r.space.name();
        if r.offset + r.bytes > capacity {
            let text = format!("a tensor of {} bytes at byte {} of {name}, which has {capacity}", r.bytes, r.offset);
            self.report(Code::LocalRange, line, text);
        }
        if !r.offset.is_multiple_of(r.space.align()) {
            let text =
                format!("a tensor at byte {} of {name}; addresses are multiples of {}", r.offset, r.space.align());
            self.report(Code::Misaligned, line, text);
        }
    }

    /// Judges an access to part of a tensor and gives the memory and the byte, unless it may not happen.
    pub(super) fn touch(&mut self, at: At, what: Use, r: Region, from: usize, bytes: usize) -> Option<(usize, usize)> {
        self.touch_of(at, at.core, what, r, from, bytes)
    }

    /// As [`Machine::touch`], in the memory of another core.
    pub(super) fn touch_of(
        &mut self,
        at: At,
        owner: usize,
        what: Use,
        r: Region,
        from: usize,
        bytes: usize,
    ) -> Option<(usize, usize)> {
        let i = Self::memory_of(r.space, owner);
        let offset = r.offset + from;
        let (name, verb) = (r.space.name(), crate::machine::access::verb(what));
        if from + bytes > r.bytes {
            let text = format!("{verb} bytes {from} to {} of a tensor of {} bytes in {name}", from + bytes, r.bytes);
            self.report_at(at, Code::LocalRange, 0, text);
            return None;
        }
        if offset + bytes > self.memories[i].bytes.len() {
            let text = format!("{verb} {bytes} bytes at byte {offset} of {name}, which this launch does not have");
            self.report_at(at, Code::LocalRange, 0, text);
            return None;
        }
        let clock = &self.cores[at.core].units[at.pipe as usize].clock;
        let now = stamp(clock, self.block, at.line);
        if let Some(c) = self.memories[i].touch(what, offset, bytes, now, clock) {
            let place = format!("byte {} of {name}", c.offset);
            self.conflict(at, what, c.kind, c.earlier, &place);
        }
        Some((i, offset))
    }

    pub(super) fn conflict(&mut self, at: At, what: Use, kind: ConflictKind, earlier: Access, place: &str) {
        let verb = crate::machine::access::verb(what);
        let block = earlier.block != self.block && earlier.time > 0;
        let other = if block { format!("block {}", earlier.block) } else { self.actor_name(earlier.actor) };
        let (code, text) = match kind {
            ConflictKind::Uninitialised => {
                (Code::UninitGlobal, format!("{verb} {place}, which nothing has written in this launch"))
            }
            ConflictKind::ReadAfterWrite => (
                if block { Code::BlockRace } else { Code::RaceRead },
                format!("{verb} {place}, which {other} wrote at line #{}; nothing orders the two", earlier.line),
            ),
            ConflictKind::WriteAfterWrite => (
                if block { Code::BlockRace } else { Code::RaceWrite },
                format!("{verb} {place}, which {other} wrote at line #{}; nothing orders the two", earlier.line),
            ),
            ConflictKind::WriteAfterRead => (
                if block { Code::BlockRace } else { Code::OverwriteBeforeConsumed },
                format!("{verb} {place}, which {other} read at line #{}; nothing orders the two", earlier.line),
            ),
            // Of other chips.
            ConflictKind::Unfenced | ConflictKind::Swizzle => return,
        };
        self.report_at(at, code, earlier.line, text);
    }

    /// Reads global memory; what may not be read stays poison. The flags say which bytes are defined.
    pub(super) fn read_global(&mut self, at: At, address: u64, bytes: usize) -> (Vec<u8>, Vec<bool>) {
        let mut out = vec![crate::machine::POISON; bytes];
        if bytes == 0 {
            return (out, vec![]);
        }
        let place = match self.global.locate_run(address, bytes, Use::Read) {
            Ok(place) => place,
            Err(r) => {
                self.report_at(at, r.code, 0, format!("reads {}", r.text));
                return (out, vec![true; bytes]);
            }
        };
        let mut defined = vec![true; bytes];
        if self.workspaces.contains(&place.0) {
            for (i, d) in defined.iter_mut().enumerate() {
                let at = (place.0, place.1 + i);
                // Looking at a byte makes it count as written.
                if !self.global.is_written(at) {
                    self.holes.insert(at);
                }
                *d = !self.holes.contains(&at);
            }
        }
        let clock = &self.cores[at.core].units[at.pipe as usize].clock;
        let now = stamp(clock, self.block, at.line);
        if let Some(c) = self.global.touch(Use::Read, place, bytes, now, clock)
            && !(c.kind == ConflictKind::Uninitialised && self.workspaces.contains(&place.0))
        {
            let text = format!("byte {} of tensor `{}`", c.offset, self.global.tensors()[place.0].name);
            self.conflict(at, Use::Read, c.kind, c.earlier, &text);
        }
        self.global.read(place, &mut out);
        (out, defined)
    }

    pub(super) fn write_global(&mut self, at: At, address: u64, bytes: &[u8], defined: &[bool]) {
        if bytes.is_empty() {
            return;
        }
        let place = match self.global.locate_run(address, bytes.len(), Use::Write) {
            Ok(place) => place,
            Err(r) => return self.report_at(at, r.code, 0, format!("writes {}", r.text)),
        };
        let name = |m: &Self| m.global.tensors()[place.0].name.clone();
        if self.workspaces.contains(&place.0) {
            for (i, &d) in defined.iter().enumerate() {
                let at = (place.0, place.1 + i);
                if d {
                    self.holes.remove(&at)
                } else {
                    self.holes.insert(at)
                };
            }
        } else if let Some(i) = defined.iter().position(|d| !d) {
            let text = format!("writes byte {} of tensor `{}` with what nothing has defined", place.1 + i, name(self));
            self.report_at(at, Code::Undefined, 0, text);
        }
        let clock = &self.cores[at.core].units[at.pipe as usize].clock;
        let now = stamp(clock, self.block, at.line);
        if let Some(c) = self.global.touch(Use::Write, place, bytes.len(), now, clock) {
            let text = format!("byte {} of tensor `{}`", c.offset, name(self));
            self.conflict(at, Use::Write, c.kind, c.earlier, &text);
        }
        self.global.write(place, bytes);
    }

    /// Adds to a pipe's counts.
    pub(super) fn moved(&mut self, at: At, bytes: usize) {
        let rate = self.config.arch.bytes_per_cycle(at.pipe).max(1);
        let s = &mut self.stats.pipes[at.pipe as usize];
        s.bytes += bytes as u64;
        s.cycles += (bytes as u64).div_ceil(rate);
    }

    pub(super) fn bad_parameter(&mut self, at: At, text: String) {
        self.report_at(at, Code::Parameter, 0, text);
    }

    /// Reports a field that is not within `range`; true if it is.
    pub(super) fn within(&mut self, at: At, what: &str, value: i64, range: std::ops::RangeInclusive<i64>) -> bool {
        if range.contains(&value) {
            return true;
        }
        self.bad_parameter(at, format!("{what} is {value}; it lies within {} and {}", range.start(), range.end()));
        false
    }

    /// Reports a tensor in another memory than an instruction takes; true if it is the right one.
    pub(super) fn lies_in(&mut self, at: At, what: &str, r: Region, space: Space) -> bool {
        if r.space == space {
            return true;
        }
        self.bad_parameter(at, format!("{what} lies in {}; this instruction takes {}", r.space.name(), space.name()));
        false
    }

    /// Reports an address that is not aligned; true if it is.
    pub(super) fn aligned(&mut self, at: At, what: &str, r: Region, align: usize) -> bool {
        if r.offset.is_multiple_of(align) {
            return true;
        }
        let text = format!("{what} at byte {} of {}; it has to be a multiple of {align}", r.offset, r.space.name());
        self.report_at(at, Code::Misaligned, 0, text);
        false
    }
}
