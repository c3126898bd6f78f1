//! The state that roles share: who has the turn, the blocks' shared tiles, barriers of rings, engines at work, findings.
//!
//! No program runs here: `exec::roles` calls these from the thread that has the turn, `vm::roles` sets it up.

mod barrier;
mod engine;
mod sum;

pub use barrier::Key;
pub use engine::{Job, Row};
pub use sum::{SumKey, SumWait};

use super::exec::class_swizzle;
use super::memory::{Class, Global, Tile, class_of};
use super::program::Program;
use super::roles::Schedule;
use crate::diag::Diagnostic;
use crate::ir::{Kernel, OpId, Space};
use crate::machine::{
    Access, Actor, Bundle, Clock, Code, Conflict, ConflictKind, Dice, Policy, Shadow, Swizzle, Timing, Use, Way,
};
use barrier::Phase;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Ready,
    /// A phase of a barrier.
    Phase(Key, usize, OpId),
    /// The next opening of the cluster's barrier after this one.
    Cluster(usize, OpId),
    /// Parts of a sum: so many rounds must have been handed over, or read.
    Sum(SumKey, SumWait, usize, OpId),
    /// The roles it started.
    Children(OpId),
    /// To be started.
    Absent,
    /// It has ended.
    Done,
}

/// An instance of a role, or the program of a block around its roles.
#[derive(Debug)]
pub struct Process {
    /// Block of the cluster.
    pub block: usize,
    /// Role; none for a block's own program.
    pub role: Option<usize>,
    /// State.
    pub wait: Wait,
    /// What the thread that issues copies knows.
    pub leader: Clock,
    /// What its other threads know.
    pub rest: Clock,
    /// One thread does everything.
    pub alone: bool,
    /// Item on each ring.
    pub items: Vec<usize>,
    /// Stores asked for, and those known to have read.
    pub stores: [u32; 2],
    /// Products asked for.
    pub products: u32,
    /// Sums it came to.
    pub sums: usize,
    priority: u64,
    line: OpId,
}

/// Shared memory of a block.
#[derive(Debug)]
pub struct Block {
    /// Shared tiles, while no process of the block runs; else what that process left in exchange.
    pub tiles: Vec<Tile>,
    shadow: Shadow,
}

/// All that processes share.
#[derive(Debug)]
pub struct Chip<'p> {
    kernel: &'p Kernel,
    program: &'p Program,
    globals: &'p [Option<Global<'p>>],
    /// Processes: the blocks' own, then each block's roles.
    pub procs: Vec<Process>,
    /// Who has the turn.
    pub current: usize,
    /// Blocks of the cluster.
    pub blocks: Vec<Block>,
    /// The run is given up.
    pub abandoned: bool,
    /// Who runs next.
    pub policy: Policy,
    /// When engines finish.
    pub timing: Timing,
    phases: HashMap<Key, Phase>,
    actors: Vec<Key>,
    meeting: Meeting,
    sums: HashMap<SumKey, sum::Rounds>,
    jobs: Vec<Job>,
    dice: Dice,
    cluster: u32,
    per_block: usize,
    /// Where each shared tile lies; tiles that nothing has placed yet follow each other behind the others.
    offsets: Vec<Option<usize>>,
    findings: Vec<Diagnostic>,
    seen: HashSet<(&'static str, OpId)>,
}

#[derive(Debug, Default)]
struct Meeting {
    arrived: usize,
    round: usize,
    now: Bundle,
    done: Bundle,
}

/// The chip with what wakes its threads.
#[derive(Debug)]
pub struct Stage<'p> {
    chip: Mutex<Chip<'p>>,
    wake: Vec<Condvar>,
    /// Number of the cluster, and how many there are.
    pub cluster: [i64; 2],
    /// Tiles, or clusters of tiles, along each grid axis.
    pub units: Vec<i64>,
}

impl<'p> Stage<'p> {
    /// A stage for one cluster.
    pub fn new(chip: Chip<'p>, cluster: [i64; 2], units: Vec<i64>) -> Self {
        let wake = (0..chip.procs.len()).map(|_| Condvar::new()).collect();
        Stage { chip: Mutex::new(chip), wake, cluster, units }
    }
    /// The chip.
    pub fn lock(&self) -> MutexGuard<'_, Chip<'p>> {
        self.chip.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits until a process has the turn or the run is given up.
    pub fn turn<'a>(&'a self, mut chip: MutexGuard<'a, Chip<'p>>, id: usize) -> MutexGuard<'a, Chip<'p>> {
        while !chip.abandoned && chip.current != id {
            chip = self.wake[id].wait(chip).unwrap_or_else(PoisonError::into_inner);
        }
        chip
    }
    /// Wakes a process, or all if there is none to have the turn.
    pub fn call(&self, next: Option<usize>) {
        match next {
            Some(n) => self.wake[n].notify_all(),
            None => self.wake.iter().for_each(Condvar::notify_all),
        }
    }
    /// What was found.
    pub fn end(&self) -> Vec<Diagnostic> {
        let mut chip = self.lock();
        chip.drain();
        std::mem::take(&mut chip.findings)
    }
}

impl<'p> Chip<'p> {
    /// A chip for a cluster of `size` blocks.
    pub fn new(
        kernel: &'p Kernel,
        program: &'p Program,
        globals: &'p [Option<Global<'p>>],
        size: usize,
        schedule: &Schedule,
        cluster: i64,
    ) -> Self {
        let per_block: usize = kernel.roles.iter().map(|r| r.instances).sum();
        let count = size * (1 + per_block);
        let mut dice = Dice::new(schedule.seed.wrapping_mul(0x9e37).wrapping_add(cluster as u64));
        let nothing = Arc::new(vec![0; 2 * count]);
        let mut procs = vec![];
        for id in 0..count {
            let (block, role) = if id < size {
                (id, None)
            } else {
                let mut n = (id - size) % per_block.max(1);
                let mut role = 0;
                while n >= kernel.roles[role].instances {
                    n -= kernel.roles[role].instances;
                    role += 1;
                }
                ((id - size) / per_block.max(1), Some((role, n)))
            };
            let first = kernel.rings.iter().map(|r| match role {
                Some((role, instance)) if r.producer.0 as usize != role => instance % r.turns.max(1),
                Some(_) | None => 0,
            });
            let (first, role) = (first.collect(), role.map(|r: (usize, usize)| r.0));
            procs.push(Process {
                block,
                role,
                wait: if role.is_none() { Wait::Ready } else { Wait::Absent },
                leader: Clock::new(2 * id as Actor, &nothing),
                rest: Clock::new(2 * id as Actor + 1, &nothing),
                alone: role.is_some_and(|r| kernel.roles[r].one_thread),
                items: first,
                stores: [0; 2],
                products: 0,
                sums: 0,
                priority: dice.roll(),
                line: OpId(0),
            });
        }
        let tiles = || -> Vec<Tile> {
            program
                .tiles
                .iter()
                .map(|t| {
                    let shared = kernel.buffer(t.buffer).space == Space::Shared;
                    let mut tile = match (t.len * usize::from(shared), t.bytes, class_of(t.dtype)) {
                        (0, ..) => Tile::None,
                        (n, true, _) => Tile::Bytes(vec![0; t.dtype.bytes(n)]),
                        (n, false, Class::F) => Tile::F(vec![0.0; n]),
                        (n, false, Class::I) => Tile::I(vec![0; n]),
                        (n, false, Class::L) => Tile::L(vec![0; n]),
                    };
                    tile.poison(t.dtype);
                    tile
                })
                .collect()
        };
        let mut bytes = kernel.shared_bytes;
        let mut offsets: Vec<Option<usize>> = vec![];
        for t in &program.tiles {
            let b = kernel.buffer(t.buffer);
            let at = b.memory.as_ref().map(|m| m.offset_bytes);
            bytes = bytes.max(at.map_or(0, |at| at + t.dtype.bytes(t.len)));
            offsets.push(at);
        }
        for (at, t) in offsets.iter_mut().zip(&program.tiles) {
            if at.is_none() && kernel.buffer(t.buffer).space == Space::Shared {
                *at = Some(bytes.next_multiple_of(128));
                bytes = bytes.next_multiple_of(128) + t.dtype.bytes(t.len);
            }
        }
        let blocks = (0..size).map(|_| Block { tiles: tiles(), shadow: Shadow::new(bytes, false) }).collect();
        Chip {
            kernel,
            program,
            globals,
            procs,
            current: 0,
            blocks,
            abandoned: false,
            policy: schedule.policy,
            timing: schedule.timing,
            phases: HashMap::new(),
            actors: vec![],
            meeting: Meeting::default(),
            sums: HashMap::new(),
            jobs: vec![],
            dice,
            cluster: cluster as u32,
            per_block,
            offsets,
            findings: vec![],
            seen: HashSet::new(),
        }
    }

    /// Number of a role's instance in a block.
    pub fn child(&self, block: usize, role: usize, instance: usize) -> usize {
        let before: usize = self.kernel.roles[..role].iter().map(|r| r.instances).sum();
        self.blocks.len() + block * self.per_block + before + instance
    }

    /// Starts a role's instance with what its block knows.
    pub fn start(&mut self, parent: usize, child: usize) {
        let mut known = Bundle::default();
        let p = &mut self.procs[parent];
        p.rest.release(&mut known);
        p.leader.release(&mut known);
        let c = &mut self.procs[child];
        c.leader.acquire(&mut known);
        c.rest.acquire(&mut known);
        c.wait = Wait::Ready;
        c.priority = self.dice.roll();
    }

    /// A process ends; returns who is next.
    pub fn finish(&mut self, id: usize) -> Option<usize> {
        let [asked, read] = self.procs[id].stores;
        if asked > read && !self.abandoned {
            let who = self.who(id);
            let m = format!("{who} ends while a store of the engine may still read its tile");
            self.report(Code::LeftRunning, self.procs[id].line, m, None);
        }
        self.procs[id].wait = Wait::Done;
        if self.procs[id].role.is_some() {
            // Its block goes on with what it knows.
            let parent = self.procs[id].block;
            let mut known = Bundle::default();
            self.procs[id].leader.release(&mut known);
            self.procs[id].rest.release(&mut known);
            let p = &mut self.procs[parent];
            p.leader.acquire(&mut known);
            p.rest.acquire(&mut known);
        }
        self.open_meeting();
        self.choose()
    }

    /// Whether a process can go on.
    pub fn runnable(&self, id: usize) -> bool {
        match self.procs[id].wait {
            Wait::Ready => true,
            Wait::Phase(key, phases, _) => self.passes(key, phases),
            Wait::Cluster(round, _) => self.meeting.round > round,
            Wait::Sum(key, what, rounds, _) => self.sum_done(key, what) >= rounds,
            Wait::Children(_) => {
                let block = self.procs[id].block;
                self.procs.iter().all(|p| p.block != block || p.role.is_none() || p.wait == Wait::Done)
            }
            Wait::Absent | Wait::Done => false,
        }
    }

    /// Chooses who has the next turn; nobody if all have ended or none can go on, which is reported.
    pub fn choose(&mut self) -> Option<usize> {
        loop {
            if self.abandoned {
                return None;
            }
            if self.timing == Timing::Random {
                self.finish_some();
            }
            let ready: Vec<usize> = (0..self.procs.len()).filter(|&n| self.runnable(n)).collect();
            if !ready.is_empty() {
                let next = match self.policy {
                    Policy::InOrder => ready[0],
                    Policy::Random => ready[self.dice.below(ready.len())],
                    Policy::Priorities => {
                        ready.iter().copied().max_by_key(|&n| self.procs[n].priority).unwrap_or(ready[0])
                    }
                };
                self.procs[next].wait = Wait::Ready;
                self.current = next;
                return Some(next);
            }
            if self.finish_late() {
                continue;
            }
            if self.procs.iter().any(|p| p.wait != Wait::Done) {
                self.deadlock();
            }
            self.abandoned = true;
        }
    }

    /// Arrives at the cluster's barrier; gives the round to wait behind.
    pub fn meet_cluster(&mut self, id: usize) -> usize {
        let p = &mut self.procs[id];
        p.leader.release(&mut self.meeting.now);
        p.rest.release(&mut self.meeting.now);
        let round = self.meeting.round;
        self.meeting.arrived += 1;
        self.open_meeting();
        round
    }

    fn open_meeting(&mut self) {
        let outside = |p: &Process| matches!(p.wait, Wait::Done | Wait::Absent | Wait::Children(_));
        let present = self.procs.iter().filter(|p| !outside(p)).count();
        let m = &mut self.meeting;
        if m.arrived > 0 && m.arrived >= present {
            m.arrived = 0;
            m.round += 1;
            m.done = std::mem::take(&mut m.now);
        }
    }

    /// Behind the cluster's barrier.
    pub fn met_cluster(&mut self, id: usize) {
        let p = &mut self.procs[id];
        p.leader.acquire(&mut self.meeting.done);
        p.rest.acquire(&mut self.meeting.done);
    }

    /// All threads of an instance meet.
    pub fn meet_role(&mut self, id: usize) {
        let p = &mut self.procs[id];
        if !p.alone {
            Clock::meet([&mut p.leader, &mut p.rest]);
        }
    }

    /// Ordinary writes become visible to engines.
    pub fn fence(&mut self, id: usize) {
        self.procs[id].leader.fence();
        self.procs[id].rest.fence();
    }

    /// An ordinary access of a process to elements of a shared tile.
    pub fn touch(&mut self, id: usize, what: Use, tile: usize, range: Range, op: OpId) {
        self.touch_in(id, self.procs[id].block, what, tile, range, op);
    }

    fn touch_in(&mut self, id: usize, block: usize, what: Use, tile: usize, range: Range, op: OpId) {
        let alone = self.procs[id].alone;
        let clock = if alone { &self.procs[id].leader } else { &self.procs[id].rest };
        let now = Access {
            actor: clock.actor(),
            time: clock.now(),
            block: self.cluster,
            line: op.0 + 1,
            atomic: what == Use::Atomic,
            way: Way::Generic,
        };
        let by = if alone { By::Leader } else { By::Rest };
        self.judge(id, by, block, what, tile, range, now, op);
    }

    /// An access of an engine that the process asks for.
    #[expect(clippy::too_many_arguments, reason = "the pieces of one access")]
    pub fn touch_async(
        &mut self,
        id: usize,
        block: usize,
        what: Use,
        tile: usize,
        range: Range,
        (actor, time): (Actor, u32),
        swizzle: Option<Swizzle>,
        op: OpId,
    ) {
        let way = Way::Async(swizzle);
        let now = Access { actor, time, block: self.cluster, line: op.0 + 1, atomic: false, way };
        self.judge(id, By::Leader, block, what, tile, range, now, op);
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one access")]
    fn judge(&mut self, id: usize, by: By, block: usize, what: Use, tile: usize, r: Range, now: Access, op: OpId) {
        let kernel = self.kernel;
        let buffer = kernel.buffer(self.program.tiles[tile].buffer);
        let Some(base) = self.offsets[tile] else { return };
        let clock = match by {
            By::Leader => &self.procs[id].leader,
            By::Rest => &self.procs[id].rest,
        };
        let shadow = &mut self.blocks[block].shadow;
        let size = r.bits.div_ceil(8);
        let mut found: Option<Conflict> = None;
        let at = |n: usize| base + (r.at + r.stride * n as i64).max(0) as usize * r.bits / 8;
        if r.stride == 1 {
            found = shadow.access(what, at(0), (r.count * r.bits).div_ceil(8), now, clock);
        } else {
            for n in 0..r.count {
                found = found.or(shadow.access(what, at(n), size, now, clock));
            }
        }
        if let Some(c) = found {
            self.conflict(id, &c, &buffer.name, what, op);
        }
    }

    fn conflict(&mut self, id: usize, c: &Conflict, name: &str, what: Use, op: OpId) {
        let late = matches!(c.earlier.way, Way::Async(_));
        let code = match c.kind {
            ConflictKind::Uninitialised => Code::UninitShared,
            ConflictKind::ReadAfterWrite if late => Code::ReadBeforeComplete,
            ConflictKind::ReadAfterWrite => Code::RaceRead,
            ConflictKind::WriteAfterWrite => Code::RaceWrite,
            ConflictKind::WriteAfterRead => Code::OverwriteBeforeConsumed,
            ConflictKind::Unfenced => Code::ProxyFence,
            ConflictKind::Swizzle => Code::Swizzle,
        };
        let verb = if what == Use::Read { "reads" } else { "writes" };
        let m = format!("{} {verb} `{name}` at byte {}: {}", self.who(id), c.offset, code.meaning());
        let other = (c.earlier.line > 0).then(|| OpId(c.earlier.line - 1));
        self.report(code, op, m, other);
    }

    /// `role math, instance 1, of block 0`.
    pub fn who(&self, id: usize) -> String {
        let p = &self.procs[id];
        let block = if self.blocks.len() > 1 { format!(" in block {} of the cluster", p.block) } else { String::new() };
        match p.role {
            None => format!("the block's own program{block}"),
            Some(r) => {
                let role = &self.kernel.roles[r];
                let first = self.child(p.block, r, 0);
                let instance = if role.instances > 1 { format!(", instance {}", id - first) } else { String::new() };
                format!("role `{}`{instance}{block}", role.name)
            }
        }
    }

    /// Notes a finding once for each code and op.
    pub fn report(&mut self, code: Code, op: OpId, message: String, other: Option<OpId>) {
        if !self.seen.insert((code.id(), op)) || self.findings.len() >= 20 {
            return;
        }
        let k = self.kernel;
        let mut d = Diagnostic::error(k, k.op(op).span, code.id(), format!("{code}: {message}"));
        if let Some(o) = other {
            d = d.note(format!("the other access is `{}`", k.op(o).op.name()), Some(k.span_of(k.op(o).span).clone()));
        }
        if let Some(help) = code.help() {
            d = d.help(help);
        }
        self.findings.push(d);
    }

    fn deadlock(&mut self) {
        let mut texts: Vec<String> = vec![];
        let mut first = OpId(0);
        for id in 0..self.procs.len() {
            let (text, op) = match self.procs[id].wait {
                Wait::Phase(key, phases, op) => (self.state(key, phases), op),
                Wait::Sum(key, what, rounds, op) => (self.sum_state(key, what, rounds), op),
                Wait::Cluster(_, op) => (format!("the cluster, {} have come", self.meeting.arrived), op),
                Wait::Ready | Wait::Children(_) | Wait::Absent | Wait::Done => continue,
            };
            if texts.is_empty() {
                first = op;
            }
            texts.push(format!("{} waits for {text}", self.who(id)));
        }
        let more = texts.len().saturating_sub(8);
        texts.truncate(8);
        if more > 0 {
            texts.push(format!("{more} more wait"));
        }
        self.report(Code::Deadlock, first, format!("no role can go on: {}", texts.join("; ")), None);
    }

    /// Swizzle of a shared tile.
    pub fn swizzle(&self, tile: usize) -> Option<Swizzle> {
        let m = self.kernel.buffer(self.program.tiles[tile].buffer).memory.as_ref()?;
        Some(class_swizzle(m.swizzle.map_or(0, |(bits, ..)| 16 << bits)))
    }

    /// Remembers where a process is, for what is found at its end.
    pub fn at(&mut self, id: usize, op: OpId) {
        self.procs[id].line = op;
    }
}

#[derive(Clone, Copy, Debug)]
enum By {
    Leader,
    Rest,
}

/// Elements of a tile: from `at` on, `stride` apart.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First.
    pub at: i64,
    /// Distance.
    pub stride: i64,
    /// How many.
    pub count: usize,
    /// Bits of one.
    pub bits: usize,
}
