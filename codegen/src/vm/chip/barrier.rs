//! Barriers of rings: phases that end when all arrivals and all bytes have come, waits by parity, and what is known behind
//! them.

use super::{Chip, Process};
use crate::ir::{OpId, RingId, RoleId};
use crate::machine::{Actor, Bundle, Code};

/// A barrier of a part of a slot in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Block of the cluster.
    pub block: usize,
    /// Ring.
    pub ring: usize,
    /// Part.
    pub part: usize,
    /// Slot.
    pub slot: usize,
    /// The barrier of releases, else that of filling.
    pub empty: bool,
}

#[derive(Debug, Default)]
pub(super) struct Phase {
    done: usize,
    arrived: usize,
    /// Bytes expected less bytes that came.
    bytes: i64,
    now: Bundle,
    over: Bundle,
    actor: Option<Actor>,
}

impl Chip<'_> {
    /// The barrier a producer waits at before it fills a part, and how many of its phases must be over.
    pub fn acquire_at(&self, id: usize, ring: usize, part: usize) -> (Key, usize) {
        let r = &self.kernel.rings[ring];
        let item = self.procs[id].items[ring];
        let key = |part| Key { block: self.procs[id].block, ring, part, slot: item % r.depth, empty: true };
        match r.parts[part].reuses {
            Some(q) => (key(q as usize), item / r.depth + 1),
            None => {
                let mut last = part;
                while let Some(next) = r.parts.iter().position(|x| x.reuses == Some(last as u32)) {
                    last = next;
                }
                (key(last), item / r.depth)
            }
        }
    }

    /// The barrier a consumer waits at.
    pub fn take_at(&self, id: usize, ring: usize, part: usize) -> (Key, usize) {
        let depth = self.kernel.rings[ring].depth;
        let item = self.procs[id].items[ring];
        (Key { block: self.procs[id].block, ring, part, slot: item % depth, empty: false }, item / depth + 1)
    }

    /// Whether the parity of the phase under way lets a wait pass.
    pub(super) fn passes(&self, key: Key, phases: usize) -> bool {
        self.phases.get(&key).map_or(0, |p| p.done) % 2 == phases % 2
    }

    /// A wait has passed: the process knows what came before. Gives the slot.
    pub fn passed(&mut self, id: usize, key: Key, phases: usize, op: OpId) -> i64 {
        let p = self.phases.entry(key).or_default();
        let done = p.done;
        let me = &mut self.procs[id];
        me.leader.acquire(&mut p.over);
        me.rest.acquire(&mut p.over);
        if done != phases {
            let m = format!(
                "{} waits for phase {phases} of {} and is let through at phase {done}",
                self.who(id),
                self.part(key)
            );
            self.report(Code::MbarrierLapped, op, m, None);
        }
        key.slot as i64
    }

    fn part(&self, key: Key) -> String {
        let r = &self.kernel.rings[key.ring];
        let end = if key.empty { "released" } else { "full" };
        format!("slot {} of `{}.{}` to be {end}", key.slot, r.name, r.parts[key.part].name)
    }

    pub(super) fn state(&self, key: Key, phases: usize) -> String {
        let (done, arrived, bytes) = self.phases.get(&key).map_or((0, 0, 0), |p| (p.done, p.arrived, p.bytes));
        let bytes = if bytes == 0 { String::new() } else { format!(", {bytes} bytes are missing") };
        format!(
            "phase {phases} of {}: {done} are over, {arrived} of {} have arrived{bytes}",
            self.part(key),
            self.needed(key)
        )
    }

    /// A process arrives with what it knows.
    pub fn arrive(&mut self, id: usize, key: Key, op: OpId) {
        let needed = self.needed(key);
        let p = self.phases.entry(key).or_default();
        let me = &mut self.procs[id];
        me.leader.release(&mut p.now);
        me.rest.release(&mut p.now);
        p.arrived += 1;
        if p.arrived > needed {
            let m = format!("{} arrives where only {needed} are expected: {}", self.who(id), self.part(key));
            self.report(Code::MbarrierArrivals, op, m, None);
        }
        self.end_phase(key);
    }

    /// Bytes are expected (positive) or have come (negative).
    pub(super) fn count(&mut self, key: Key, bytes: i64) {
        let (actor, time) = self.engine_of(key);
        let p = self.phases.entry(key).or_default();
        p.bytes += bytes;
        if bytes < 0 {
            p.now.learn(actor, time);
        }
        self.end_phase(key);
    }

    fn end_phase(&mut self, key: Key) {
        let needed = self.needed(key);
        if let Some(p) = self.phases.get_mut(&key)
            && p.arrived >= needed
            && p.bytes == 0
        {
            p.arrived -= needed;
            p.done += 1;
            p.over = std::mem::take(&mut p.now);
        }
    }

    /// Actor of the copies that a full barrier counts, and the time of those of the phase under way.
    pub fn engine_of(&mut self, key: Key) -> (Actor, u32) {
        let next = self.first_engine() + self.actors.len() as Actor;
        let p = self.phases.entry(key).or_default();
        let actor = *p.actor.get_or_insert_with(|| {
            self.actors.push(key);
            next
        });
        (actor, p.done as u32 + 1)
    }

    /// Engines have numbers behind the two of each process, its stores and its products.
    fn first_engine(&self) -> Actor {
        4 * self.procs.len() as Actor
    }

    /// Actor of a process's stores and of its products.
    pub fn own_engines(&self, id: usize) -> [Actor; 2] {
        let n = self.procs.len();
        [(2 * n + id) as Actor, (3 * n + id) as Actor]
    }

    fn needed(&self, key: Key) -> usize {
        let r = &self.kernel.rings[key.ring];
        let of = |role: RoleId| self.kernel.roles[role.0 as usize].instances;
        match (key.empty, self.copied(RingId(key.ring as u32), key.part as u32)) {
            (false, true) => 1,
            (false, false) => of(r.producer),
            (true, _) => {
                let blocks = if r.multicast { self.blocks.len() } else { 1 };
                r.consumers.iter().map(|&c| of(c)).sum::<usize>() * blocks / r.turns.max(1)
            }
        }
    }

    fn copied(&self, ring: RingId, part: u32) -> bool {
        use crate::ir::{Op, SchedOp};
        self.kernel
            .ops
            .iter()
            .any(|n| matches!(&n.op, Op::Sched(SchedOp::TmaLoad { ring: r, part: p, .. }) if (*r, *p) == (ring, part)))
    }

    /// Barriers of blocks that a release or a shared copy reaches.
    pub fn reached(&self, id: usize, ring: usize, part: usize, empty: bool, shared: bool) -> Vec<Key> {
        let p: &Process = &self.procs[id];
        let slot = p.items[ring] % self.kernel.rings[ring].depth;
        let blocks: Vec<usize> = if shared { (0..self.blocks.len()).collect() } else { vec![p.block] };
        blocks.into_iter().map(|block| Key { block, ring, part, slot, empty }).collect()
    }
}
