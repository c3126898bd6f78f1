//! Judgement of accesses: where an address lies, whether it may be touched, and whether it is ordered after earlier accesses.

use super::{Access, ActorKind, Code, Conflict, ConflictKind, Machine, Place, Refusal, Use, Verdict, Way, site};

/// Address of the first byte of shared memory in 32-bit addresses; what is below is never valid.
const WINDOW: u32 = 1024;
/// Bits of a 32-bit address below the block's number.
const WINDOW_BITS: u32 = 24;

/// Who an operation acts for, and how its accesses are remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The thread whose clock judges.
    pub thread: usize,
    pub access: Access,
}

impl Machine {
    /// Stamp of an ordinary access of the running thread.
    pub(super) fn stamp(&self, line: u32, atomic: bool) -> Stamp {
        self.stamp_of(self.current, line, atomic)
    }

    pub(super) fn stamp_of(&self, thread: usize, line: u32, atomic: bool) -> Stamp {
        let clock = &self.threads[thread].clock;
        let (actor, time) = (clock.actor(), clock.now());
        Stamp { thread, access: Access { actor, time, block: self.cluster, line, atomic, way: Way::Generic } }
    }

    /// Stamp of what an asynchronous actor does for a thread, complete at that actor's `time`.
    pub(super) fn stamp_async(&self, thread: usize, actor: u16, time: u32, line: u32, way: Way) -> Stamp {
        Stamp { thread, access: Access { actor, time, block: self.cluster, line, atomic: false, way } }
    }

    /// Judges an access of the running thread, which performs it itself afterwards if that is harmless.
    pub fn access(&mut self, what: Use, address: u64, bytes: usize, line: u32) -> Verdict {
        self.count(line);
        let rank = self.rank();
        let place = if self.shared[rank].holds(address) {
            self.shared[rank].locate(address, bytes).map(|at| Place::Shared(rank, at))
        } else {
            match self.global.locate(address, bytes, what) {
                Ok((t, at)) => Ok(Place::Tensor(t, at)),
                Err(r) => Err(if r.wild { self.shared[rank].before(address, bytes).unwrap_or(r) } else { r }),
            }
        };
        match place {
            Ok(place) => {
                let now = self.stamp(line, what == Use::Atomic);
                self.touch(what, place, bytes, now)
            }
            Err(r) => {
                self.report(r.code, line, format!("{} {}", verb(what), r.text));
                if r.wild { Verdict::Wild } else { Verdict::Reported }
            }
        }
    }

    // --- 32-bit addresses of shared memory ---

    /// The 32-bit address of a byte of the running block's shared memory.
    pub fn shared_address(&mut self, address: u64, line: u32) -> u32 {
        let shared = &self.shared[self.rank()];
        if shared.holds(address) {
            return WINDOW + (address - shared.address()) as u32;
        }
        let text = format!("the address {address:#x} is not in shared memory");
        self.report(Code::SharedRange, line, text);
        0
    }

    /// The same place in the block with this rank.
    pub fn cluster_address(&mut self, address: u32, rank: u32, line: u32) -> u32 {
        if rank as usize >= self.shared.len() {
            let text = format!("rank {rank} of a cluster of {} blocks", self.shared.len());
            self.report(Code::ClusterRank, line, text);
            return 0;
        }
        address & ((1 << WINDOW_BITS) - 1) | (rank + 1) << WINDOW_BITS
    }

    /// Block and byte of `bytes` bytes at a 32-bit address, aligned to `align`; says what is wrong otherwise.
    pub(super) fn locate(
        &mut self,
        address: u32,
        bytes: usize,
        align: usize,
        what: &str,
        line: u32,
    ) -> Option<(usize, usize)> {
        let rank = match address >> WINDOW_BITS {
            0 => self.rank(),
            r => r as usize - 1,
        };
        let at = i64::from(address & ((1 << WINDOW_BITS) - 1)) - i64::from(WINDOW);
        let size = self.config.shared_bytes;
        if rank >= self.shared.len() || at < 0 || at as usize + bytes > size {
            let text = format!("{what} needs {bytes} bytes at byte {at} of {size} bytes of shared memory");
            self.report(Code::SharedRange, line, text);
            return None;
        }
        if !(at as usize).is_multiple_of(align) {
            let text = format!("{what} needs an address that is a multiple of {align}, got byte {at} of shared memory");
            self.report(Code::Misaligned, line, text);
            return None;
        }
        Some((rank, at as usize))
    }

    /// Byte of the running block's shared memory at the address of a matrix descriptor.
    pub(super) fn descriptor_offset(address: u32) -> i64 {
        i64::from(address) - i64::from(WINDOW)
    }

    /// Reads up to 16 bytes of the running block's shared memory.
    pub fn shared_load(&mut self, address: u32, bytes: usize, line: u32) -> [u32; 4] {
        self.count(line);
        let mut out = [0xff; 16];
        if let Some((rank, at)) = self.locate_own(address, bytes, bytes, "a load", line) {
            let now = self.stamp(line, false);
            let _ = self.touch(Use::Read, Place::Shared(rank, at), bytes, now);
            self.shared[rank].read(at, &mut out[..bytes]);
        }
        std::array::from_fn(|i| u32::from_le_bytes([out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]]))
    }

    /// Writes whole words to the running block's shared memory.
    pub fn shared_store(&mut self, address: u32, words: &[u32], line: u32) {
        self.count(line);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if let Some((rank, at)) = self.locate_own(address, bytes.len(), bytes.len(), "a store", line) {
            let now = self.stamp(line, false);
            let _ = self.touch(Use::Write, Place::Shared(rank, at), bytes.len(), now);
            self.shared[rank].write(at, &bytes);
        }
    }

    /// As [`Machine::locate`], for what reaches the running block only.
    pub(super) fn locate_own(
        &mut self,
        address: u32,
        bytes: usize,
        align: usize,
        what: &str,
        line: u32,
    ) -> Option<(usize, usize)> {
        if address >> WINDOW_BITS != 0 {
            let text = format!("{what} takes an address of the block itself, not one of the cluster");
            self.report(Code::ClusterRank, line, text);
            return None;
        }
        self.locate(address, bytes, align, what, line)
    }

    // --- order ---

    pub(super) fn touch(&mut self, what: Use, place: Place, bytes: usize, now: Stamp) -> Verdict {
        let clock = &self.threads[now.thread].clock;
        let (found, barrier) = match place {
            Place::Shared(rank, offset) => {
                let near = self.blocks[rank].mbarriers.range(offset.saturating_sub(7)..offset + bytes).next();
                let barrier = near.map(|(_, b)| b.set_up_at());
                (self.shared[rank].touch(what, offset, bytes, now.access, clock), barrier)
            }
            Place::Tensor(t, offset) => (self.global.touch(what, (t, offset), bytes, now.access, clock), None),
        };
        if let Some(set_up) = barrier {
            let (who, line) = (self.who(now.thread), now.access.line);
            self.findings.report(Code::MbarrierTouched, line, set_up, || {
                format!("{who} {} the memory of the mbarrier of {} as data", verb(what), site(set_up))
            });
            return Verdict::Reported;
        }
        let Some(c) = found else { return Verdict::Fine };
        self.conflict(what, place, c, now);
        Verdict::Reported
    }

    fn conflict(&mut self, what: Use, place: Place, c: Conflict, now: Stamp) {
        let (who, e, line) = (self.who(now.thread), c.earlier, now.access.line);
        let other_cluster = e.block != self.cluster;
        let shared = matches!(place, Place::Shared(..));
        let earlier = if other_cluster { None } else { self.actors.get(e.actor as usize).copied() };
        let by_copy = matches!(earlier, Some(k) if !matches!(k, ActorKind::Thread(_)));
        let other_block = !shared && earlier.is_some_and(|k| self.rank_of_actor(k) != self.rank_of(now.thread));
        let code = match c.kind {
            ConflictKind::Unfenced => Code::ProxyFence,
            ConflictKind::Swizzle => Code::Swizzle,
            ConflictKind::Uninitialised if shared => Code::UninitShared,
            ConflictKind::Uninitialised => Code::UninitGlobal,
            ConflictKind::ReadAfterWrite | ConflictKind::WriteAfterWrite | ConflictKind::WriteAfterRead
                if other_cluster || other_block =>
            {
                Code::BlockRace
            }
            ConflictKind::ReadAfterWrite if by_copy => Code::ReadBeforeComplete,
            ConflictKind::ReadAfterWrite => Code::RaceRead,
            ConflictKind::WriteAfterWrite => Code::RaceWrite,
            ConflictKind::WriteAfterRead => Code::OverwriteBeforeConsumed,
        };
        let other = match earlier {
            None if self.shared.len() > 1 => format!("a thread of cluster {}", e.block),
            None => format!("a thread of block {}", e.block),
            Some(kind) => self.actor_name(kind),
        };
        let place = match place {
            Place::Shared(..) => format!("byte {} of shared memory", c.offset),
            Place::Tensor(t, _) => format!("byte {} of tensor `{}`", c.offset, self.global.tensors()[t].name),
        };
        let (verb, then, way) = (verb(what), site(e.line), now.access.way);
        self.findings.report(code, line, e.line, || match c.kind {
            ConflictKind::Uninitialised => format!("{who} reads {place}, which nothing has written"),
            ConflictKind::ReadAfterWrite | ConflictKind::WriteAfterWrite => {
                format!("{who} {verb} {place}, which {other} wrote at {then}; nothing orders the two")
            }
            ConflictKind::WriteAfterRead => {
                format!("{who} {verb} {place}, which {other} read at {then}; nothing orders the two")
            }
            ConflictKind::Unfenced => format!(
                "{who} {verb} {place} through the async proxy; the ordinary write of {other} at {then} has no proxy fence \
                 after it"
            ),
            ConflictKind::Swizzle => {
                let name = |way| match way {
                    Way::Async(Some(s)) => format!("{s}"),
                    Way::Async(None) | Way::Generic => "no swizzle".to_string(),
                };
                format!("{who} {verb} {place} with {}; {other} wrote it with {} at {then}", name(way), name(e.way))
            }
        });
    }

    /// Block an actor belongs to.
    fn rank_of_actor(&self, kind: ActorKind) -> usize {
        match kind {
            ActorKind::Thread(t) | ActorKind::Copies(t) | ActorKind::StoreReads(t) | ActorKind::StoreWrites(t) => {
                self.rank_of(t)
            }
            ActorKind::Products(w) => self.rank_of(self.lanes(w).start),
            ActorKind::Mbarrier { rank, .. } => rank,
        }
    }

    /// An actor in a message.
    pub(super) fn actor_name(&self, kind: ActorKind) -> String {
        match kind {
            ActorKind::Thread(t) => self.who(t),
            ActorKind::Copies(t) => format!("the asynchronous copy of {}", self.who(t)),
            ActorKind::StoreReads(t) | ActorKind::StoreWrites(t) => format!("the bulk store of {}", self.who(t)),
            ActorKind::Products(w) => {
                let who = self.who(self.lanes(w).start);
                format!("the matrix instruction of {}", who.rsplit_once(" lane").map_or(who.as_str(), |(w, _)| w))
            }
            ActorKind::Mbarrier { rank, offset } => {
                match self.blocks.get(rank).and_then(|b| b.mbarriers.get(&offset)) {
                    Some(b) => format!("the copy counted on the mbarrier of {}", site(b.set_up_at())),
                    None => "a copy".to_string(),
                }
            }
        }
    }
}

/// An access that may not happen, for what moves memory itself.
impl Machine {
    pub(super) fn refuse(&mut self, r: Refusal, what: &str, line: u32) {
        self.report(r.code, line, format!("{what} {}", r.text));
    }
}

pub(super) const fn verb(what: Use) -> &'static str {
    match what {
        Use::Read => "reads",
        Use::Write => "writes",
        Use::Atomic => "updates",
    }
}
