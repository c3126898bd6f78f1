//! A model of a chip on which emitted text (and later scheduled IR) runs without the chip.
//!
//! The machine holds everything but the program: threads as bookkeeping, memories with shadow state, barriers, warp-wide
//! operations, asynchronous copies, the choice of who runs next. Whoever runs programs (fibers in `runtime::device::sim`)
//! asks [`Machine::choose_next`] which thread to continue, and the running thread calls the operations. An operation that has to
//! wait says so with [`Flow::Wait`]; when the thread is chosen again it has happened, and [`Machine::result`] has its
//! outcome. Blocks run one after the other.
//!
//! Ordering is judged by vector clocks, not by what the chosen schedule happened to do, so a missing barrier is found
//! on any path that runs. Values do follow the schedule: a wrong program also computes something wrong.
//!
//! What it does not model: time, bank conflicts, occupancy, register limits, memory-model scopes.

mod clock;
mod memory;
mod report;
mod schedule;
mod shadow;
mod warp;

pub use clock::{Actor, Clock};
pub use memory::{Global, POISON, Place, Refusal, Shared, SharedBytes, Tensor};
pub use report::{Code, Finding, Findings, Lines};
pub use schedule::{Dice, Policy, Timing};
pub use shadow::{Access, Conflict, ConflictKind, Shadow, Use};
pub use warp::{Shuffle, Vote, WarpOp};

use std::rc::Rc;
use warp::Gather;

/// What a chip is and how a run explores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Threads that execute warp-wide operations together; at most 32.
    pub warp: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of shared memory of a block.
    pub shared_bytes: usize,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Choice of the next warp.
    pub policy: Policy,
    /// Completion of asynchronous operations.
    pub timing: Timing,
    /// Seed of all choices.
    pub seed: u64,
    /// Operations all threads of a block may execute together before the run is given up.
    pub spin_limit: u64,
}

impl Config {
    /// Default of [`Config::spin_limit`]: some seconds.
    pub const SPIN_LIMIT: u64 = 40_000_000;

    /// An NVIDIA block of this shape, run in order with early completion.
    pub fn nvidia(threads: usize, shared_bytes: usize, grid: [u32; 3]) -> Self {
        Config {
            warp: 32,
            threads,
            shared_bytes,
            grid,
            policy: Policy::InOrder,
            timing: Timing::Early,
            seed: 0,
            spin_limit: Self::SPIN_LIMIT,
        }
    }
}

/// What the running thread has to do after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Go on.
    Go,
    /// Give way; the operation is complete when the thread is chosen again.
    Wait,
}

/// Judgement of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Correct.
    Fine,
    /// A finding; performing it does no harm.
    Reported,
    /// A finding, and performing it would touch memory that is not the launch's: the thread must not continue.
    Wild,
}

/// What happens next in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This thread continues.
    Run(usize),
    /// All threads are done.
    BlockDone,
    /// The run is over: deadlock or spin limit. Threads that are left must not continue.
    Abandon,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    Barrier { id: usize, line: u32 },
    Warp { line: u32 },
    Exited,
}

#[derive(Debug)]
struct Thread {
    state: State,
    clock: Clock,
    result: [u32; 4],
    /// Number of the open group of asynchronous copies.
    group: u32,
    copies: Vec<AsyncCopy>,
}

/// An asynchronous copy that has not taken effect.
#[derive(Clone, Copy, Debug)]
struct AsyncCopy {
    group: u32,
    from: (usize, usize),
    to: usize,
    bytes: usize,
    valid: usize,
}

#[derive(Debug, Default)]
struct Barrier {
    arrived: usize,
    count: usize,
    line: u32,
    vote: Option<Vote>,
    value: u32,
    waiting: Vec<usize>,
}

#[derive(Debug)]
struct Warp {
    ready: u32,
    priority: u64,
    gathers: Vec<Gather>,
}

/// Named barriers of a block.
const BARRIERS: usize = 16;

/// The machine. One launch at a time.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    global: Global,
    shared: Shared,
    threads: Vec<Thread>,
    warps: Vec<Warp>,
    barriers: Vec<Barrier>,
    findings: Findings,
    dice: Dice,
    block: u32,
    current: usize,
    abandoned: bool,
    steps: u64,
    /// Of the running block.
    operations: u64,
}

impl Machine {
    /// A machine for one launch; call [`Machine::begin_block`] before anything runs.
    ///
    /// # Panics
    /// If the warp size is not within `1..=32`.
    pub fn new(config: Config, global: Global, shared: Box<dyn SharedBytes>) -> Self {
        assert!((1..=32).contains(&config.warp), "a warp is a word of lanes");
        let dice = Dice::new(config.seed);
        Machine {
            shared: Shared::new(shared, config.shared_bytes),
            config,
            global,
            threads: vec![],
            warps: vec![],
            barriers: vec![],
            findings: Findings::default(),
            dice,
            block: 0,
            current: 0,
            abandoned: false,
            steps: 0,
            operations: 0,
        }
    }

    /// Starts a block: all threads are ready, shared memory is poison.
    pub fn begin_block(&mut self, block: u32) {
        let nothing = Rc::new(vec![0; self.config.threads]);
        self.block = block;
        self.operations = 0;
        self.shared.reset();
        self.threads = (0..self.config.threads)
            .map(|t| Thread {
                state: State::Ready,
                clock: Clock::new(t as Actor, &nothing),
                result: [0; 4],
                group: 1,
                copies: vec![],
            })
            .collect();
        self.warps = (0..self.config.threads.div_ceil(self.config.warp))
            .map(|w| {
                let lanes = (self.config.threads - w * self.config.warp).min(self.config.warp);
                Warp { ready: u32::MAX >> (32 - lanes), priority: self.dice.roll(), gathers: vec![] }
            })
            .collect();
        self.barriers = (0..BARRIERS).map(|_| Barrier::default()).collect();
    }

    /// The launch's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Index of the running block along each axis.
    pub fn block_index(&self) -> [u32; 3] {
        let [x, y, _] = self.config.grid.map(|g| g.max(1));
        [self.block % x, self.block / x % y, self.block / x / y]
    }

    /// Scheduling steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Gives the run up, after an access that cannot be performed.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// True if the run was given up; the running thread must not continue.
    pub fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// Ends the launch: what was found, and the memory.
    pub fn finish(self) -> (Findings, Global) {
        (self.findings, self.global)
    }

    /// Notes a finding from outside, with the running thread's place.
    pub fn report(&mut self, code: Code, line: u32, message: String) {
        let who = self.who(self.current);
        self.findings.report(code, line, 0, || format!("{who}: {message}"));
    }

    // --- scheduling ---

    /// Chooses the next thread and makes it the running one.
    pub fn choose_next(&mut self) -> Next {
        self.steps += 1;
        loop {
            if self.abandoned {
                return Next::Abandon;
            }
            if self.config.timing == Timing::Random {
                self.complete_some();
            }
            if let Some(t) = self.choose() {
                let w = t / self.config.warp;
                self.warps[w].ready &= !(1 << (t % self.config.warp));
                self.threads[t].state = State::Running;
                self.current = t;
                return Next::Run(t);
            }
            if self.threads.iter().all(|t| t.state == State::Exited) {
                return Next::BlockDone;
            }
            if !self.release_diverged() {
                self.deadlock();
                self.abandoned = true;
            }
        }
    }

    fn choose(&mut self) -> Option<usize> {
        let ready = |w: &(usize, &Warp)| w.1.ready != 0;
        let count = self.warps.iter().filter(|w| w.ready != 0).count();
        if count == 0 {
            return None;
        }
        let (w, ready_lanes) = match self.config.policy {
            Policy::InOrder => self.warps.iter().enumerate().find(ready),
            Policy::Random => {
                let k = self.dice.below(count);
                self.warps.iter().enumerate().filter(ready).nth(k)
            }
            Policy::Priorities => self.warps.iter().enumerate().filter(ready).max_by_key(|w| w.1.priority),
        }
        .map(|(w, x)| (w, x.ready))?;
        let lane = match self.config.policy {
            Policy::InOrder => ready_lanes.trailing_zeros(),
            Policy::Priorities => 31 - ready_lanes.leading_zeros(),
            Policy::Random => {
                // Rotating by a random amount and taking the first lane is uniform enough and needs no loop.
                let by = (self.dice.roll() % 32) as u32;
                (ready_lanes.rotate_right(by).trailing_zeros() + by) % 32
            }
        };
        Some(w * self.config.warp + lane as usize)
    }

    fn make_ready(&mut self, thread: usize) {
        self.threads[thread].state = State::Ready;
        self.warps[thread / self.config.warp].ready |= 1 << (thread % self.config.warp);
    }

    /// Whether the running thread is to give way between two operations; it stays runnable.
    pub fn preempt(&mut self) -> Flow {
        if self.config.policy == Policy::Random && self.dice.roll().is_multiple_of(16) {
            self.make_ready(self.current);
            return Flow::Wait;
        }
        if self.abandoned { Flow::Wait } else { Flow::Go }
    }

    /// The running thread has returned from the kernel.
    pub fn exit(&mut self) {
        let t = self.current;
        self.complete(t, u32::MAX);
        self.threads[t].state = State::Exited;
    }

    /// Outcome of the running thread's last warp-wide operation or barrier vote.
    pub fn result(&self) -> [u32; 4] {
        self.threads[self.current].result
    }

    /// The running thread went through some ten thousand instructions without any other operation.
    pub fn spin(&mut self, line: u32) {
        self.operations += 4000;
        self.count(line);
    }

    fn count(&mut self, line: u32) {
        self.operations += 1;
        if self.operations > self.config.spin_limit && !self.abandoned {
            self.abandoned = true;
            let limit = self.config.spin_limit;
            self.report(Code::SpinLimit, line, format!("more than {limit} operations in one block"));
        }
    }

    fn who(&self, thread: usize) -> String {
        let [x, y, z] = self.block_index();
        let block = match self.config.grid {
            [_, 0 | 1, 0 | 1] => format!("{x}"),
            [_, _, 0 | 1] => format!("({x}, {y})"),
            _ => format!("({x}, {y}, {z})"),
        };
        format!("block {block} warp {} lane {}", thread / self.config.warp, thread % self.config.warp)
    }

    // --- memory ---

    fn stamp(&self, line: u32, atomic: bool) -> Access {
        let clock = &self.threads[self.current].clock;
        Access { actor: clock.actor(), time: clock.now(), block: self.block, line, atomic }
    }

    /// Judges an access of the running thread, which performs it itself afterwards if that is harmless.
    pub fn access(&mut self, what: Use, address: u64, bytes: usize, line: u32) -> Verdict {
        self.count(line);
        let place = if self.shared.holds(address) {
            self.shared.locate(address, bytes).map(Place::Shared)
        } else {
            match self.global.locate(address, bytes, what) {
                Ok((t, at)) => Ok(Place::Tensor(t, at)),
                Err(r) => Err(if r.wild { self.shared.before(address, bytes).unwrap_or(r) } else { r }),
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

    fn touch(&mut self, what: Use, place: Place, bytes: usize, now: Access) -> Verdict {
        let clock = &self.threads[self.current].clock;
        let found = match place {
            Place::Shared(offset) => self.shared.touch(what, offset, bytes, now, clock),
            Place::Tensor(t, offset) => self.global.touch(what, (t, offset), bytes, now, clock),
        };
        let Some(c) = found else { return Verdict::Fine };
        self.conflict(what, place, c, now.line);
        Verdict::Reported
    }

    fn conflict(&mut self, what: Use, place: Place, c: Conflict, line: u32) {
        let (who, e) = (self.who(self.current), c.earlier);
        let threads = self.threads.len();
        let by_copy = e.actor as usize >= threads;
        let (other_block, shared) = (e.block != self.block, matches!(place, Place::Shared(_)));
        let code = match c.kind {
            ConflictKind::Uninitialised if shared => Code::UninitShared,
            ConflictKind::Uninitialised => Code::UninitGlobal,
            ConflictKind::ReadAfterWrite | ConflictKind::WriteAfterWrite | ConflictKind::WriteAfterRead
                if other_block =>
            {
                Code::BlockRace
            }
            ConflictKind::ReadAfterWrite if by_copy => Code::ReadBeforeComplete,
            ConflictKind::ReadAfterWrite => Code::RaceRead,
            ConflictKind::WriteAfterWrite => Code::RaceWrite,
            ConflictKind::WriteAfterRead => Code::OverwriteBeforeConsumed,
        };
        let other = if other_block {
            format!("a thread of block {}", e.block)
        } else if by_copy {
            format!("the asynchronous copy of {}", self.who(e.actor as usize % threads))
        } else {
            self.who(e.actor as usize)
        };
        let place = match place {
            Place::Shared(_) => format!("byte {} of shared memory", c.offset),
            Place::Tensor(t, _) => format!("byte {} of tensor `{}`", c.offset, self.global.tensors()[t].name),
        };
        let (verb, then) = (verb(what), site(e.line));
        self.findings.report(code, line, e.line, || match c.kind {
            ConflictKind::Uninitialised => format!("{who} reads {place}, which nothing has written"),
            ConflictKind::ReadAfterWrite | ConflictKind::WriteAfterWrite => {
                format!("{who} {verb} {place}, which {other} wrote at {then}; nothing orders the two")
            }
            ConflictKind::WriteAfterRead => {
                format!("{who} {verb} {place}, which {other} read at {then}; nothing orders the two")
            }
        });
    }

    // --- barriers ---

    /// Barrier `id` for `count` threads (0: all of the block), with an optional vote over `value`.
    pub fn barrier(&mut self, id: u32, count: u32, vote: Option<Vote>, value: u32, line: u32) -> Flow {
        self.count(line);
        let all = self.threads.len();
        let count = if count == 0 { all } else { count as usize };
        if id as usize >= BARRIERS || count > all || (count != all && !count.is_multiple_of(self.config.warp)) {
            self.report(Code::BarrierCount, line, format!("barrier {id} for {count} of {all} threads does not exist"));
            return Flow::Go;
        }
        let id = id as usize;
        let b = &mut self.barriers[id];
        if b.arrived == 0 {
            (b.count, b.line, b.vote, b.value) = (count, line, vote, vote.map_or(0, Vote::start));
        }
        let (first_count, first_line, first) = (b.count, b.line, b.waiting.first().copied());
        b.arrived += 1;
        b.value = vote.map_or(0, |v| v.combine(b.value, value));
        b.waiting.push(self.current);
        if first_count != count {
            self.report(
                Code::BarrierCount,
                line,
                format!("barrier {id} for {count} threads, {} says {first_count}", site(first_line)),
            );
        } else if first_line != line {
            let (who, other) = (self.who(self.current), self.who(first.unwrap_or(0)));
            self.findings.report(Code::DivergentBarrier, line, first_line, || {
                format!("{who} is at one barrier while {other} is at the one of {}", site(first_line))
            });
        }
        self.threads[self.current].state = State::Barrier { id, line };
        if self.barriers[id].arrived < self.barriers[id].count {
            return Flow::Wait;
        }
        self.open(id);
        self.resume_current()
    }

    /// All participants of a barrier meet and become ready.
    fn open(&mut self, id: usize) {
        let b = std::mem::take(&mut self.barriers[id]);
        let mut joins = vec![false; self.threads.len()];
        for &t in &b.waiting {
            joins[t] = true;
        }
        Clock::meet(self.threads.iter_mut().zip(&joins).filter(|(_, j)| **j).map(|(t, _)| &mut t.clock));
        for t in b.waiting {
            self.threads[t].result[0] = b.value;
            self.make_ready(t);
        }
    }

    /// The running thread was the last to arrive: it goes on unless the policy wants another one to run first.
    fn resume_current(&mut self) -> Flow {
        if self.config.policy == Policy::Random && self.dice.roll().is_multiple_of(2) {
            return Flow::Wait;
        }
        let t = self.current;
        self.threads[t].state = State::Running;
        self.warps[t / self.config.warp].ready &= !(1 << (t % self.config.warp));
        Flow::Go
    }

    /// Nobody can run: if that is because some threads left, say so and let the others go on, as hardware would.
    fn release_diverged(&mut self) -> bool {
        let exited = self.threads.iter().filter(|t| t.state == State::Exited).count();
        if exited == 0 {
            return false;
        }
        let all = self.threads.len();
        if let Some(id) = (0..BARRIERS).find(|&id| self.barriers[id].arrived > 0) {
            let b = &self.barriers[id];
            if b.count == all && b.arrived + exited == all {
                let (line, arrived) = (b.line, b.arrived);
                let gone = self.threads.iter().position(|t| t.state == State::Exited).unwrap_or(0);
                let gone = self.who(gone);
                self.findings.report(Code::DivergentBarrier, line, 0, || {
                    format!(
                        "{arrived} threads wait at a barrier, but {exited} have left the kernel, the first is {gone}"
                    )
                });
                self.open(id);
                return true;
            }
        }
        self.release_diverged_warp()
    }

    fn deadlock(&mut self) {
        let mut waits: Vec<(String, usize, u32)> = vec![];
        for (i, t) in self.threads.iter().enumerate() {
            let w = i / self.config.warp;
            let (text, line) = match t.state {
                State::Barrier { id, line } => {
                    let b = &self.barriers[id];
                    (format!("warp {w}: barrier {id} of {}, {} of {} arrived", site(line), b.arrived, b.count), line)
                }
                State::Warp { line } => (format!("warp {w}: warp-wide operation of {}", site(line)), line),
                State::Exited => (format!("warp {w}: left the kernel"), 0),
                State::Ready | State::Running => continue,
            };
            match waits.iter_mut().find(|(x, ..)| *x == text) {
                Some(x) => x.1 += 1,
                None => waits.push((text, 1, line)),
            }
        }
        let line = waits.iter().map(|w| w.2).find(|&l| l > 0).unwrap_or(0);
        let list: Vec<String> = waits.iter().map(|(text, n, _)| format!("{n} lanes of {text}")).collect();
        let block = self.block;
        self.findings.report(Code::Deadlock, line, 0, || {
            format!("no thread of block {block} can continue: {}", list.join("; "))
        });
    }

    // --- asynchronous copies ---

    /// Copies `valid` bytes from global to shared memory and zeroes the rest of `bytes`, at some later time; until then
    /// the destination is poison.
    pub fn copy_async(&mut self, to: u64, from: u64, bytes: usize, valid: usize, line: u32) {
        self.count(line);
        let what = "an asynchronous copy";
        let offset = if self.shared.holds(to) {
            self.shared.locate(to, bytes)
        } else {
            let text = format!("{bytes} bytes at address {to:#x}, which is not in shared memory");
            Err(Refusal { code: Code::SharedRange, text, wild: true })
        };
        let offset = match offset {
            Ok(offset) => offset,
            Err(r) => return self.report(r.code, line, format!("{what} writes {}", r.text)),
        };
        let valid = valid.min(bytes);
        let source = if valid == 0 {
            Ok((0, 0))
        } else if !from.is_multiple_of(bytes as u64) {
            let text = format!("{bytes} bytes at address {from:#x}");
            Err(Refusal { code: Code::Misaligned, text, wild: false })
        } else {
            // Only the valid bytes are read; their ends lie in one tensor if both lie in a tensor at all.
            self.global
                .locate(from + valid as u64 - 1, 1, Use::Read)
                .and_then(|_| self.global.locate(from, if valid == bytes { bytes } else { 1 }, Use::Read))
        };
        let source = match source {
            Ok(source) => source,
            Err(r) => return self.report(r.code, line, format!("{what} reads {}", r.text)),
        };
        if valid > 0 {
            let now = self.stamp(line, false);
            let _ = self.touch(Use::Read, Place::Tensor(source.0, source.1), valid, now);
        }
        // The copy is ordered after what its thread did before, but nobody is ordered after the copy until the wait.
        let actor = (self.threads.len() + self.current) as Actor;
        let group = self.threads[self.current].group;
        let now = Access { actor, time: group, block: self.block, line, atomic: false };
        let _ = self.touch(Use::Write, Place::Shared(offset), bytes, now);
        let copy = AsyncCopy { group, from: source, to: offset, bytes, valid };
        if self.config.timing == Timing::Early {
            self.perform(copy);
        } else {
            self.shared.write(offset, &vec![POISON; bytes]);
            self.threads[self.current].copies.push(copy);
        }
    }

    /// Closes the running thread's group of asynchronous copies.
    pub fn copy_commit(&mut self, line: u32) {
        self.count(line);
        self.threads[self.current].group += 1;
    }

    /// Waits until at most `pending` of the running thread's closed groups are incomplete.
    pub fn copy_wait(&mut self, pending: u32, line: u32) {
        self.count(line);
        let t = self.current;
        let done = (self.threads[t].group - 1).saturating_sub(pending);
        self.complete(t, done);
        let queue = (self.threads.len() + t) as Actor;
        if done > 0 {
            self.threads[t].clock.learn(queue, done);
        }
    }

    /// Performs what is left of a thread's groups up to `group`.
    fn complete(&mut self, thread: usize, group: u32) {
        let copies = std::mem::take(&mut self.threads[thread].copies);
        for copy in copies {
            if copy.group <= group {
                self.perform(copy);
            } else {
                self.threads[thread].copies.push(copy);
            }
        }
    }

    /// Performs one pending copy of a random thread, now and then.
    fn complete_some(&mut self) {
        let t = self.dice.below(self.threads.len());
        let n = self.threads[t].copies.len();
        if n > 0 {
            let k = self.dice.below(n);
            let copy = self.threads[t].copies.swap_remove(k);
            self.perform(copy);
        }
    }

    fn perform(&mut self, copy: AsyncCopy) {
        let mut bytes = vec![0; copy.bytes];
        if copy.valid > 0 {
            self.global.read(copy.from, &mut bytes[..copy.valid]);
        }
        self.shared.write(copy.to, &bytes);
    }
}

const fn verb(what: Use) -> &'static str {
    match what {
        Use::Read => "reads",
        Use::Write => "writes",
        Use::Atomic => "updates",
    }
}

/// A place in the program as a message names it until [`Findings::resolve`] knows its line.
fn site(site: u32) -> String {
    format!("line #{site}")
}
