//! A model of a chip on which emitted text (and later scheduled IR) runs without the chip.
//!
//! The machine holds everything but the program: threads as bookkeeping, memories with shadow state, barriers, warp-wide
//! operations, asynchronous copies, the choice of who runs next. Whoever runs programs (fibers in `runtime::device::sim`)
//! asks [`Machine::choose_next`] which thread to continue, and the running thread calls the operations. An operation that has to
//! wait says so with [`Flow::Wait`]; when the thread is chosen again it has happened, and [`Machine::result`] has its
//! outcome. The blocks of a cluster run together, clusters one after the other.
//!
//! Ordering is judged by vector clocks, not by what the chosen schedule happened to do, so a missing barrier is found
//! on any path that runs. Values do follow the schedule: a wrong program also computes something wrong.
//!
//! What it does not model: time, bank conflicts, occupancy, register limits, memory-model scopes.

mod access;
pub mod ascend;
mod barrier;
mod clock;
mod cluster;
mod copy;
mod engine;
mod mbarrier;
mod memory;
mod registers;
mod report;
mod schedule;
mod shadow;
mod tma;
mod warp;
mod wgmma;

pub use clock::{Actor, Bundle, Clock};
pub use memory::{Global, POISON, Place, Refusal, Shared, SharedBytes, Tensor};
pub use report::{Code, Finding, Findings, Lines};
pub use schedule::{Dice, Policy, Timing};
pub use shadow::{Access, Conflict, ConflictKind, Shadow, Swizzle, Use, Way};
pub use tma::TensorMap;
pub use warp::{Shuffle, Vote, WarpOp};
pub use wgmma::{IN_FLIGHT, OperandA, Product};

use std::collections::BTreeMap;
use std::sync::Arc;
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
    /// Blocks of a cluster along each axis; they divide the grid.
    pub cluster: [u32; 3],
    /// Registers of a thread when the kernel starts, for those that move between warpgroups.
    pub registers: u32,
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

    /// An NVIDIA block of this shape, run in order with early completion, without clusters.
    ///
    /// Registers are what a block that has the multiprocessor to itself gets: 65536 over its threads, counted in whole
    /// warpgroups.
    pub fn nvidia(threads: usize, shared_bytes: usize, grid: [u32; 3]) -> Self {
        Config {
            warp: 32,
            threads,
            shared_bytes,
            grid,
            cluster: [1; 3],
            registers: (65536 / threads.next_multiple_of(128).max(128) / 8 * 8).min(256) as u32,
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
    Mbarrier { rank: usize, offset: usize, parity: u32, line: u32 },
    Cluster { line: u32 },
    Registers { count: u32, line: u32 },
    Exited,
}

#[derive(Debug)]
struct Thread {
    state: State,
    clock: Clock,
    result: [u32; 4],
    copies: copy::Copies,
    stores: tma::Stores,
    cluster: cluster::Membership,
    /// What was known when this thread last fenced the set-up of its mbarriers.
    init_fence: Option<Bundle>,
    /// Mbarrier whose phase let this thread go on, until it does.
    woken: Option<(usize, usize)>,
    /// Accumulators of this thread that are not its own again.
    pinned: Option<(u64, u32)>,
}

#[derive(Debug)]
struct Warp {
    ready: u32,
    priority: u64,
    gathers: Vec<Gather>,
    /// Lane that `elect` chooses.
    leader: usize,
    registers: u32,
    wgmma: wgmma::Unit,
}

/// A block of the running cluster.
#[derive(Debug, Default)]
struct Block {
    /// Threads that have not left the kernel.
    alive: usize,
    mbarriers: BTreeMap<usize, mbarrier::Mbarrier>,
    /// Registers that no warp has.
    pool: i64,
    /// Matrix instructions of each warpgroup.
    products: Vec<wgmma::Log>,
    /// What other blocks did here.
    visits: BTreeMap<(Actor, u32), cluster::Visit>,
}

/// Who has a clock, or events in those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActorKind {
    Thread(usize),
    /// Asynchronous copies of a thread.
    Copies(usize),
    /// Bulk copies of a thread from shared memory: reading the source, writing the tensor.
    StoreReads(usize),
    StoreWrites(usize),
    /// Matrix instructions of a warp.
    Products(usize),
    /// Phases of an mbarrier.
    Mbarrier {
        rank: usize,
        offset: usize,
    },
}

/// The machine. One launch at a time.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    global: Global,
    maps: Vec<TensorMap>,
    /// Of each block of the cluster, as all that follows.
    shared: Vec<Shared>,
    blocks: Vec<Block>,
    threads: Vec<Thread>,
    warps: Vec<Warp>,
    barriers: Vec<barrier::Barrier>,
    actors: Vec<ActorKind>,
    cluster_barrier: cluster::Barrier,
    jobs: Vec<engine::Job>,
    findings: Findings,
    dice: Dice,
    cluster: u32,
    current: usize,
    abandoned: bool,
    steps: u64,
    /// Of the running cluster.
    operations: u64,
}

impl Machine {
    /// A machine for one launch, with the shared memory of each block of a cluster; call [`Machine::begin_cluster`] before
    /// anything runs.
    ///
    /// # Panics
    /// If the warp size is not within `1..=32`, a cluster has no block or shared memory is missing, or the blocks of a cluster
    /// do not consist of whole warps.
    pub fn new(config: Config, global: Global, shared: Vec<Box<dyn SharedBytes>>) -> Self {
        let size: u32 = config.cluster.iter().product();
        assert!((1..=32).contains(&config.warp), "a warp is a word of lanes");
        assert!(size > 0 && shared.len() == size as usize, "each block of a cluster has shared memory");
        assert!(size == 1 || config.threads.is_multiple_of(config.warp), "blocks of a cluster have whole warps");
        let dice = Dice::new(config.seed);
        Machine {
            shared: shared.into_iter().map(|s| Shared::new(s, config.shared_bytes)).collect(),
            config,
            global,
            maps: vec![],
            blocks: vec![],
            threads: vec![],
            warps: vec![],
            barriers: vec![],
            actors: vec![],
            cluster_barrier: cluster::Barrier::default(),
            jobs: vec![],
            findings: Findings::default(),
            dice,
            cluster: 0,
            current: 0,
            abandoned: false,
            steps: 0,
            operations: 0,
        }
    }

    /// Number of clusters of the launch; the grid is divided by the cluster.
    pub fn clusters(&self) -> u64 {
        (0..3).map(|i| u64::from(self.config.grid[i] / self.config.cluster[i])).product()
    }

    /// Threads of a cluster.
    pub fn cluster_threads(&self) -> usize {
        self.shared.len() * self.config.threads
    }

    /// Starts a cluster: all threads are ready, shared memory is poison.
    pub fn begin_cluster(&mut self, cluster: u32) {
        let (size, all) = (self.shared.len(), self.cluster_threads());
        let nothing = Arc::new(vec![0; all]);
        (self.cluster, self.operations) = (cluster, 0);
        self.shared.iter_mut().for_each(Shared::reset);
        self.actors = (0..all).map(ActorKind::Thread).collect();
        self.threads = (0..all)
            .map(|t| Thread {
                state: State::Ready,
                clock: Clock::new(t as Actor, &nothing),
                result: [0; 4],
                copies: copy::Copies::default(),
                stores: tma::Stores::default(),
                cluster: cluster::Membership::default(),
                init_fence: None,
                woken: None,
                pinned: None,
            })
            .collect();
        let per_block = self.config.threads.div_ceil(self.config.warp);
        self.warps = (0..size * per_block)
            .map(|w| {
                let lanes = (self.config.threads - w % per_block * self.config.warp).min(self.config.warp);
                let priority = self.dice.roll();
                let leader = match self.config.policy {
                    Policy::InOrder => 0,
                    Policy::Random | Policy::Priorities => self.dice.below(lanes),
                };
                let ready = u32::MAX >> (32 - lanes);
                let (registers, wgmma) = (self.config.registers, wgmma::Unit::default());
                Warp { ready, priority, gathers: vec![], leader, registers, wgmma }
            })
            .collect();
        self.blocks = (0..size).map(|_| Block { alive: self.config.threads, ..Block::default() }).collect();
        self.barriers = (0..size * barrier::BARRIERS).map(|_| barrier::Barrier::default()).collect();
        self.cluster_barrier = cluster::Barrier::default();
        self.jobs.clear();
    }

    /// The launch's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Index of a thread's block along each axis.
    pub fn block_index(&self, thread: usize) -> [u32; 3] {
        let [gx, gy, _] = [0, 1, 2].map(|i| (self.config.grid[i] / self.config.cluster[i]).max(1));
        let [cx, cy, cz] = self.config.cluster;
        let (c, r) = (self.cluster, self.rank_of(thread) as u32);
        [c % gx * cx + r % cx, c / gx % gy * cy + r / cx % cy, c / gx / gy * cz + r / cx / cy]
    }

    /// Rank of a thread's block within its cluster.
    pub fn rank_of(&self, thread: usize) -> usize {
        thread / self.config.threads.max(1)
    }

    fn rank(&self) -> usize {
        self.rank_of(self.current)
    }

    fn warp_of(&self, thread: usize) -> usize {
        let per_block = self.config.threads.div_ceil(self.config.warp);
        self.rank_of(thread) * per_block + thread % self.config.threads / self.config.warp
    }

    fn lane_of(&self, thread: usize) -> usize {
        thread % self.config.threads % self.config.warp
    }

    /// Threads of a warp.
    fn lanes(&self, warp: usize) -> std::ops::Range<usize> {
        let per_block = self.config.threads.div_ceil(self.config.warp);
        let first = warp / per_block * self.config.threads + warp % per_block * self.config.warp;
        first..(first + self.config.warp).min((warp / per_block + 1) * self.config.threads)
    }

    fn new_actor(&mut self, kind: ActorKind) -> Actor {
        self.actors.push(kind);
        (self.actors.len() - 1) as Actor
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
                let (w, lane) = (self.warp_of(t), self.lane_of(t));
                self.warps[w].ready &= !(1 << lane);
                self.threads[t].state = State::Running;
                self.threads[t].woken = None;
                self.current = t;
                return Next::Run(t);
            }
            if self.perform_late() {
                continue;
            }
            if self.threads.iter().all(|t| t.state == State::Exited) {
                self.end_cluster();
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
        Some(self.lanes(w).start + lane as usize)
    }

    fn make_ready(&mut self, thread: usize) {
        let (w, lane) = (self.warp_of(thread), self.lane_of(thread));
        self.threads[thread].state = State::Ready;
        self.warps[w].ready |= 1 << lane;
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
        self.check_stores(t);
        self.check_products(t);
        self.threads[t].state = State::Exited;
        self.leave_cluster(t);
    }

    /// All threads have left, and nothing is under way any more.
    fn end_cluster(&mut self) {
        self.check_mbarriers();
        self.check_warpgroups();
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
            self.report(Code::SpinLimit, line, format!("more than {limit} operations in one block or cluster"));
        }
    }

    fn who(&self, thread: usize) -> String {
        let [x, y, z] = self.block_index(thread);
        let block = match self.config.grid {
            [_, 0 | 1, 0 | 1] => format!("{x}"),
            [_, _, 0 | 1] => format!("({x}, {y})"),
            _ => format!("({x}, {y}, {z})"),
        };
        let warp = thread % self.config.threads / self.config.warp;
        format!("block {block} warp {warp} lane {}", self.lane_of(thread))
    }
}

/// A place in the program as a message names it until [`Findings::resolve`] knows its line.
fn site(site: u32) -> String {
    format!("line #{site}")
}
