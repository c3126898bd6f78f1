//! Barriers in shared memory: phases that end when all arrivals and all expected bytes are in.
//!
//! An arrival hands over what its thread knows, a wait takes over what all finished phases were handed. Bytes are counted by
//! copies; who waits for the phase is ordered after them, since a copy's accesses carry the barrier and its phase.

use super::{Access, Actor, ActorKind, Bundle, Code, Flow, Machine, Place, State, Use, site};

/// Arrivals a phase may need.
const MOST: u32 = (1 << 20) - 1;

#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Arrivals of a phase, and those of this one that are missing.
    count: u32,
    pending: u32,
    /// Bytes this phase still expects; negative if more have come.
    bytes: i64,
    /// Phases that are over.
    phase: u32,
    actor: Actor,
    set_up: Access,
    /// Its set-up is known to copies and other blocks.
    fenced: bool,
    now: Bundle,
    done: Bundle,
    waiting: Vec<(usize, u32)>,
    woken: Vec<usize>,
}

impl Mbarrier {
    /// Where it was set up.
    pub(super) fn set_up_at(&self) -> u32 {
        self.set_up.line
    }
    /// Its actor, and the phase that is under way as a time of it.
    pub(super) fn under_way(&self) -> (Actor, u32) {
        (self.actor, self.phase + 1)
    }
}

impl Machine {
    fn mbarrier(&mut self, rank: usize, offset: usize) -> Option<&mut Mbarrier> {
        self.blocks[rank].mbarriers.get_mut(&offset)
    }

    /// Sets up an mbarrier whose phases need `arrivals` arrivals.
    pub fn mbar_init(&mut self, address: u32, arrivals: u32, line: u32) {
        self.count(line);
        let Some((rank, offset)) = self.locate_own(address, 8, 8, "an mbarrier", line) else { return };
        if arrivals == 0 || arrivals > MOST {
            self.report(Code::MbarrierInit, line, format!("{arrivals} arrivals: a phase needs 1 to {MOST}"));
            return;
        }
        if let Some(old) = self.mbarrier(rank, offset).map(|b| b.set_up.line) {
            let who = self.who(self.current);
            self.findings
                .report(Code::MbarrierInit, line, old, || format!("{who} sets up the mbarrier of {} again", site(old)));
            return;
        }
        let now = self.stamp(line, false);
        let _ = self.touch(Use::Write, Place::Shared(rank, offset), 8, now);
        let actor = self.new_actor(ActorKind::Mbarrier { rank, offset });
        let new = Mbarrier {
            count: arrivals,
            pending: arrivals,
            bytes: 0,
            phase: 0,
            actor,
            set_up: now.access,
            fenced: false,
            now: Bundle::default(),
            done: Bundle::default(),
            waiting: vec![],
            woken: vec![],
        };
        self.blocks[rank].mbarriers.insert(offset, new);
    }

    /// Makes the set-up of the block's mbarriers, as far as the running thread knows of it, known to copies and other blocks.
    pub fn mbar_init_fence(&mut self, line: u32) {
        self.count(line);
        self.fence_set_up();
        let mut known = Bundle::default();
        self.threads[self.current].clock.release(&mut known);
        self.threads[self.current].init_fence.get_or_insert_default().join(&known);
    }

    /// Makes what the running thread knows of visible to copies and matrix instructions.
    pub fn proxy_fence(&mut self, line: u32) {
        self.count(line);
        self.fence_set_up();
        self.threads[self.current].clock.fence();
    }

    fn fence_set_up(&mut self) {
        let clock = &self.threads[self.current].clock;
        let rank = self.current / self.config.threads;
        for b in self.blocks[rank].mbarriers.values_mut() {
            b.fenced |= clock.knows(b.set_up.actor, b.set_up.time);
        }
    }

    /// The mbarrier at an address that the running thread may use. `strange`: from another block or by a copy.
    pub(super) fn usable(&mut self, address: u32, strange: bool, line: u32) -> Option<(usize, usize)> {
        let (rank, offset) = self.locate(address, 8, 8, "an mbarrier", line)?;
        self.usable_at(rank, offset, strange, line)
    }

    pub(super) fn usable_at(&mut self, rank: usize, offset: usize, strange: bool, line: u32) -> Option<(usize, usize)> {
        let strange = strange || rank != self.rank();
        let Some(b) = self.blocks[rank].mbarriers.get(&offset) else {
            let text = format!("the mbarrier at byte {offset} of shared memory was never set up");
            self.report(Code::MbarrierInit, line, text);
            return None;
        };
        let (set_up, fenced) = (b.set_up, b.fenced);
        let who = self.who(self.current);
        if !self.threads[self.current].clock.knows(set_up.actor, set_up.time) {
            self.findings.report(Code::MbarrierInit, line, set_up.line, || {
                format!("{who} uses the mbarrier of {} before its set-up is known to be over", site(set_up.line))
            });
        } else if strange && !fenced {
            self.findings.report(Code::MbarrierInit, line, set_up.line, || {
                let of = site(set_up.line);
                format!("{who} gives the mbarrier of {of} to a copy or another block; its set-up has no fence after it")
            });
        }
        Some((rank, offset))
    }

    /// One arrival at an mbarrier of this or another block, after adding `bytes` to what the phase expects.
    pub fn mbar_arrive(&mut self, address: u32, bytes: u32, line: u32) {
        self.count(line);
        let Some((rank, offset)) = self.usable(address, false, line) else { return };
        if rank != self.rank() {
            self.visit(rank, None, line);
        }
        let t = self.current;
        let Some(b) = self.blocks[rank].mbarriers.get_mut(&offset) else { return };
        b.bytes += i64::from(bytes);
        if b.pending == 0 {
            let (count, set_up) = (b.count, b.set_up.line);
            let who = self.who(t);
            self.findings.report(Code::MbarrierArrivals, line, set_up, || {
                format!("{who} arrives at the mbarrier of {}, whose {count} arrivals are all in", site(set_up))
            });
            return;
        }
        b.pending -= 1;
        self.threads[t].clock.release(&mut b.now);
        self.settle(rank, offset, line);
    }

    /// Adds to the bytes that the phase under way expects.
    pub fn mbar_expect(&mut self, address: u32, bytes: u32, line: u32) {
        self.count(line);
        let Some((rank, offset)) = self.usable(address, false, line) else { return };
        if let Some(b) = self.mbarrier(rank, offset) {
            b.bytes += i64::from(bytes);
        }
    }

    /// Waits until the phase with this parity is over.
    pub fn mbar_wait(&mut self, address: u32, parity: u32, line: u32) -> Flow {
        self.count(line);
        let Some((rank, offset)) = self.locate_own(address, 8, 8, "the wait at an mbarrier", line) else {
            return Flow::Go;
        };
        if self.usable_at(rank, offset, false, line).is_none() {
            return Flow::Go;
        }
        let t = self.current;
        let Some(b) = self.blocks[rank].mbarriers.get_mut(&offset) else { return Flow::Go };
        if b.phase & 1 != parity & 1 {
            self.threads[t].clock.acquire(&mut b.done);
            return Flow::Go;
        }
        b.waiting.push((t, line));
        self.threads[t].state = State::Mbarrier { rank, offset, parity: parity & 1, line };
        Flow::Wait
    }

    /// Counts bytes that came for the phase that followed `phase` others.
    pub(super) fn count_bytes(&mut self, (rank, offset): (usize, usize), bytes: usize, phase: u32, line: u32) {
        let Some(b) = self.blocks[rank].mbarriers.get_mut(&offset) else { return };
        b.bytes -= bytes as i64;
        if b.phase != phase {
            let set_up = b.set_up.line;
            self.findings.report(Code::TxBytes, line, set_up, || {
                format!(
                    "{bytes} bytes come after the phase of the mbarrier of {} that they belong to: it expected too few",
                    site(set_up)
                )
            });
        }
        self.settle(rank, offset, line);
    }

    /// Phases of an mbarrier that are over.
    pub(super) fn phase(&self, rank: usize, offset: usize) -> u32 {
        self.blocks[rank].mbarriers.get(&offset).map_or(0, |b| b.phase)
    }

    /// Ends the phase if nothing is missing.
    fn settle(&mut self, rank: usize, offset: usize, line: u32) {
        let Some(b) = self.blocks[rank].mbarriers.get_mut(&offset) else { return };
        if b.pending > 0 || b.bytes != 0 {
            return;
        }
        b.phase += 1;
        b.pending = b.count;
        let now = std::mem::take(&mut b.now);
        b.done.join(&now);
        b.done.learn(b.actor, b.phase);
        let mut done = std::mem::take(&mut b.done);
        let (waiting, woken) = (std::mem::take(&mut b.waiting), std::mem::take(&mut b.woken));
        let set_up = b.set_up.line;
        if let Some(&t) = woken.iter().find(|&&t| self.threads[t].woken == Some((rank, offset))) {
            let who = self.who(t);
            self.findings.report(Code::MbarrierLapped, line, set_up, || {
                format!(
                    "the mbarrier of {} ends a phase while {who} waits for the one before: it may never see that it ended",
                    site(set_up)
                )
            });
        }
        for &(t, _) in &waiting {
            self.threads[t].clock.acquire(&mut done);
            self.threads[t].woken = Some((rank, offset));
            self.make_ready(t);
        }
        if let Some(b) = self.mbarrier(rank, offset) {
            b.done = done;
            b.woken = waiting.into_iter().map(|(t, _)| t).collect();
        }
    }

    /// An mbarrier in the report of a deadlock.
    pub(super) fn mbarrier_state(&self, rank: usize, offset: usize) -> String {
        let Some(b) = self.blocks[rank].mbarriers.get(&offset) else { return String::new() };
        format!(
            "mbarrier of {} at byte {offset}: phase {}, {} of {} arrivals missing, {} bytes outstanding",
            site(b.set_up.line),
            b.phase,
            b.pending,
            b.count,
            b.bytes
        )
    }

    /// What is wrong with the mbarriers when all threads have left.
    pub(super) fn check_mbarriers(&mut self) {
        for b in self.blocks.iter().flat_map(|b| b.mbarriers.values()) {
            if b.bytes != 0 {
                let (bytes, at) = (b.bytes, b.set_up.line);
                self.findings.report(Code::TxBytes, at, 0, || {
                    format!("the mbarrier of {} ends with {bytes} bytes outstanding", site(at))
                });
            }
        }
    }
}
