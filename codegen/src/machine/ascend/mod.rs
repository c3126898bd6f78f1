//! The machine as an Ascend AI core: a cube core and two vector cores that run the same program text, or one vector core.
//!
//! Each core has a scalar unit, which runs the text, and pipes, which are asynchronous queues of instructions that it fills.
//! Instructions of one pipe happen in order; between pipes only events order them, between cores only cross-core flags. A
//! pipe waits for an event when it comes to the wait, the scalar unit does not (but for its own). How far pipes lag behind
//! is chosen by [`Timing`]: not at all, arbitrarily, or as far as possible. Ordering is judged by vector clocks over
//! (core, pipe), so a missing event is found whatever the schedule did; values follow the schedule as well.
//!
//! A runner (fibers in `runtime::device::sim`) runs the text of each core and the vector functions, which the vector pipe
//! comes to later: see [`Next`]. Blocks run one after the other. Memories, numbers and parameter rules are in the files of
//! this folder; what the text calls is decoded in `call`.
//!
//! What it does not model: time (there are estimates from bytes), bank conflicts, register pressure, caches.

mod call;
mod chip;
mod copy;
mod cube;
mod numeric;
mod register;
mod report;
mod space;
mod stats;
mod sync;
mod vector;

pub use chip::{Arch, Kind, Pipe, Space};
pub use numeric::Elem;
pub use register::{Mask, Operands, Register};
pub use stats::{PipeStats, Stats};

use super::shadow::{Access, Way};
use super::{Actor, Bundle, Clock, Code, Dice, Findings, Flow, Global, Policy, Timing};
use chip::{FLAGS, PIPES};
use space::Memory;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Instructions a pipe holds before the scalar unit has to wait.
const QUEUE: usize = 256;

/// What a launch is and how a run explores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Chip.
    pub arch: Arch,
    /// Blocks.
    pub blocks: u32,
    /// A block is a cube core with two vector cores; otherwise one vector core.
    pub mixed: bool,
    /// Choice of the next core.
    pub policy: Policy,
    /// How far pipes lag behind.
    pub timing: Timing,
    /// Seed of all choices.
    pub seed: u64,
    /// Instructions a block may execute before the run is given up.
    pub spin_limit: u64,
}

/// What the runner does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Continue the text of this core: 0 is the cube core, 1 and 2 are vector cores.
    Run(usize),
    /// Run the vector function that was queued with this number, to its end, then call [`Machine::end_function`].
    Function(u64),
    /// The block is done.
    BlockDone,
    /// The run is over. Cores that are left must not continue.
    Abandon,
}

/// Part of an on-chip memory, as a tensor of the text names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    space: Space,
    offset: usize,
    bytes: usize,
}

/// Who does something.
#[derive(Clone, Copy, Debug)]
struct At {
    core: usize,
    pipe: Pipe,
    line: u32,
}

/// An instruction in a queue.
#[derive(Clone, Debug)]
enum Work {
    Set { to: Pipe, id: usize },
    Wait { from: Pipe, id: usize },
    CrossSet { mode: u8, id: usize },
    CrossWait { mode: u8, id: usize },
    Barrier,
    CopyIn(copy::In),
    CopyOut(copy::Out),
    ToL1(copy::ToL1),
    NdToNz(copy::NdToNz),
    Load(copy::Load),
    Product(cube::Product),
    Fixpipe(cube::Fixpipe),
    Vector(Box<vector::Instruction>),
    Function(u64),
}

#[derive(Debug)]
struct Queued {
    work: Work,
    /// What the scalar unit knew when it issued this.
    issued: Bundle,
    line: u32,
}

#[derive(Debug)]
struct Unit {
    clock: Clock,
    queue: VecDeque<Queued>,
    /// Own time up to which this pipe's results are known to be there.
    settled: u32,
}

/// What the text of a core waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    Event { from: Pipe, id: usize, line: u32 },
    Cross { mode: u8, id: usize, pipe: Pipe, line: u32 },
    All { line: u32 },
    Room { pipe: Pipe, line: u32 },
    Exited,
}

#[derive(Debug)]
struct Core {
    kind: Kind,
    state: State,
    units: Vec<Unit>,
    events: Vec<sync::Event>,
    ready_to_run: bool,
    priority: u64,
    /// Line of the last call.
    line: u32,
}

/// The machine. One launch at a time.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    global: Global,
    /// Tensors that are scratch memory of the launch: reading what nobody wrote is legal.
    workspaces: HashSet<usize>,
    /// Bytes of them that hold nothing defined although written.
    holes: HashSet<(usize, usize)>,
    memories: Vec<Memory>,
    cores: Vec<Core>,
    flags: Vec<sync::Flag>,
    last_product: Option<cube::Last>,
    function: Option<register::Function>,
    findings: Findings,
    dice: Dice,
    block: u32,
    current: usize,
    result: u64,
    abandoned: bool,
    instructions: u64,
    instruction: u32,
    stretch: u32,
    stats: Stats,
}

impl Machine {
    /// A machine for one launch; call [`Machine::begin_block`] before anything runs. `workspaces` are indices of tensors.
    pub fn new(config: Config, global: Global, workspaces: impl IntoIterator<Item = usize>) -> Self {
        let size = |space| config.arch.capacity(space, config.mixed);
        let mut memories: Vec<Memory> = Vec::new();
        for space in [Space::L1, Space::L0a, Space::L0b, Space::L0c, Space::Ub, Space::Ub] {
            let here = config.mixed || space == Space::Ub && memories.len() == 4;
            memories.push(Memory::new(space, if here { size(space) } else { 0 }));
        }
        Machine {
            dice: Dice::new(config.seed),
            config,
            global,
            workspaces: workspaces.into_iter().collect(),
            holes: HashSet::new(),
            memories,
            cores: vec![],
            flags: vec![],
            last_product: None,
            function: None,
            findings: Findings::default(),
            block: 0,
            current: 0,
            result: 0,
            abandoned: false,
            instructions: 0,
            instruction: 0,
            stretch: 0,
            stats: Stats::default(),
        }
    }

    /// The launch's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Numbers of the cores of a block.
    pub fn cores(&self) -> std::ops::Range<usize> {
        if self.config.mixed { 0..3 } else { 1..2 }
    }

    /// Starts a block: its cores are ready, its memories poison.
    pub fn begin_block(&mut self, block: u32) {
        (self.block, self.instructions) = (block, 0);
        self.memories.iter_mut().for_each(Memory::reset);
        self.flags = (0..FLAGS).map(|_| sync::Flag::default()).collect();
        (self.last_product, self.function) = (None, None);
        let nothing = Arc::new(vec![0; 3 * PIPES]);
        let here = self.cores();
        self.cores = (0..3)
            .map(|c| Core {
                kind: if c == 0 { Kind::Cube } else { Kind::Vector },
                state: if here.contains(&c) { State::Ready } else { State::Exited },
                units: (0..PIPES)
                    .map(|p| Unit {
                        clock: Clock::new((c * PIPES + p) as Actor, &nothing),
                        queue: VecDeque::new(),
                        settled: 0,
                    })
                    .collect(),
                events: sync::Event::all(),
                ready_to_run: false,
                priority: self.dice.roll(),
                line: 0,
            })
            .collect();
    }

    /// Gives the run up.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// True if the run was given up; the running core must not continue.
    pub fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// What the last call of the running core returned, once it may go on.
    pub fn result(&self) -> u64 {
        self.result
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.clone();
        for m in &self.memories {
            let at = &mut stats.high[m.space as usize];
            *at = (*at).max(m.high);
        }
        stats
    }

    /// Ends the launch: what was found, the memory, and what was done.
    pub fn finish(self) -> (Findings, Global, Stats) {
        let stats = self.stats();
        (self.findings, self.global, stats)
    }

    // --- scheduling ---

    /// Chooses what happens next.
    pub fn choose_next(&mut self) -> Next {
        loop {
            if self.abandoned {
                return Next::Abandon;
            }
            match self.config.timing {
                Timing::Early => {
                    if let Some(token) = self.pump_all() {
                        return Next::Function(token);
                    }
                }
                Timing::Random => {
                    if self.dice.roll().is_multiple_of(2)
                        && let Some(Pumped::Function(token)) = self.pump_any()
                    {
                        return Next::Function(token);
                    }
                }
                Timing::Late => {}
            }
            if let Some(core) = self.choose() {
                self.resume(core);
                self.current = core;
                return Next::Run(core);
            }
            match self.pump_any() {
                Some(Pumped::Function(token)) => return Next::Function(token),
                Some(Pumped::Done | Pumped::Blocked) => continue,
                None => {}
            }
            if self.cores.iter().all(|c| c.state == State::Exited && c.units.iter().all(|u| u.queue.is_empty())) {
                self.end_block();
                return Next::BlockDone;
            }
            self.deadlock();
            self.abandoned = true;
        }
    }

    fn choose(&mut self) -> Option<usize> {
        let ready: Vec<usize> = (0..self.cores.len()).filter(|&c| self.may_run(c)).collect();
        match self.config.policy {
            Policy::InOrder => ready.first().copied(),
            Policy::Random => (!ready.is_empty()).then(|| ready[self.dice.below(ready.len())]),
            Policy::Priorities => ready.into_iter().max_by_key(|&c| self.cores[c].priority),
        }
    }

    fn may_run(&self, core: usize) -> bool {
        let c = &self.cores[core];
        match c.state {
            State::Ready => true,
            State::Running | State::Exited => false,
            State::Event { from, id, .. } => c.events[sync::index(from, Pipe::S, id)].is_set(),
            State::Cross { mode, id, .. } => self.flag_set(core, mode, id),
            State::All { .. } => c.units.iter().all(|u| u.queue.is_empty()),
            State::Room { pipe, .. } => c.units[pipe as usize].queue.len() < QUEUE,
        }
    }

    /// Completes what a core waited for.
    fn resume(&mut self, core: usize) {
        let at = |line| At { core, pipe: Pipe::S, line };
        match self.cores[core].state {
            State::Event { from, id, line } => self.take_event(at(line), from, id),
            State::Cross { mode, id, line, .. } => self.take_flag(at(line), mode, id),
            State::All { line } => self.meet(at(line)),
            State::Ready | State::Running | State::Room { .. } | State::Exited => {}
        }
        self.cores[core].state = State::Running;
    }

    /// Executes everything that can be; a vector function is left to the runner.
    fn pump_all(&mut self) -> Option<u64> {
        loop {
            let mut progress = false;
            for core in 0..self.cores.len() {
                for pipe in Pipe::ALL {
                    loop {
                        match self.pump(core, pipe) {
                            Pumped::Blocked => break,
                            Pumped::Done => progress = true,
                            Pumped::Function(token) => return Some(token),
                        }
                    }
                }
            }
            if !progress || self.abandoned {
                return None;
            }
        }
    }

    /// Executes one instruction of some pipe; `None` if none can be.
    fn pump_any(&mut self) -> Option<Pumped> {
        let open: Vec<(usize, Pipe)> = (0..self.cores.len())
            .flat_map(|c| Pipe::ALL.map(|p| (c, p)))
            .filter(|&(c, p)| self.head_may_go(c, p))
            .collect();
        if open.is_empty() {
            return None;
        }
        let (core, pipe) = open[self.dice.below(open.len())];
        Some(self.pump(core, pipe))
    }

    fn head_may_go(&self, core: usize, pipe: Pipe) -> bool {
        let c = &self.cores[core];
        match c.units[pipe as usize].queue.front().map(|q| &q.work) {
            None => false,
            Some(Work::Wait { from, id }) => c.events[sync::index(*from, pipe, *id)].is_set(),
            Some(Work::CrossWait { mode, id }) => self.flag_set(core, *mode, *id),
            Some(_) => true,
        }
    }

    fn pump(&mut self, core: usize, pipe: Pipe) -> Pumped {
        if self.function.is_some() || !self.head_may_go(core, pipe) {
            return Pumped::Blocked;
        }
        let unit = &mut self.cores[core].units[pipe as usize];
        let Some(mut queued) = unit.queue.pop_front() else { return Pumped::Blocked };
        unit.acquire(&mut queued.issued);
        let at = At { core, pipe, line: queued.line };
        self.instruction += 1;
        self.stats.pipes[pipe as usize].instructions += 1;
        match queued.work {
            Work::Set { to, id } => self.give_event(at, to, id),
            Work::Wait { from, id } => self.take_event(at, from, id),
            Work::CrossSet { mode, id } => self.give_flag(at, mode, id),
            Work::CrossWait { mode, id } => self.take_flag(at, mode, id),
            Work::Barrier => self.cores[core].units[pipe as usize].settle(),
            Work::CopyIn(x) => self.copy_in(at, &x),
            Work::CopyOut(x) => self.copy_out(at, &x),
            Work::ToL1(x) => self.copy_to_l1(at, &x),
            Work::NdToNz(x) => self.nd_to_nz(at, &x),
            Work::Load(x) => self.load(at, &x),
            Work::Product(x) => self.product(at, &x),
            Work::Fixpipe(x) => self.fixpipe(at, &x),
            Work::Vector(x) => self.vector(at, &x),
            Work::Function(token) => {
                self.begin_function(at);
                return Pumped::Function(token);
            }
        }
        Pumped::Done
    }

    /// Queues an instruction of the running core.
    fn issue(&mut self, pipe: Pipe, line: u32, work: Work) -> Flow {
        let core = self.current;
        if self.function.is_some() {
            self.report(Code::Parameter, line, "only `Reg` instructions may stand in a vector function".into());
            return Flow::Go;
        }
        if !self.cores[core].kind.has(pipe) {
            let kind = kind_name(self.cores[core].kind);
            self.report(Code::CoreKind, line, format!("an instruction of pipe {} on a {kind} core", pipe.name()));
            return Flow::Go;
        }
        if !self.cores[core].ready_to_run {
            self.cores[core].ready_to_run = true;
            self.report(Code::Parameter, line, "`InitSocState` has to come before every other instruction".into());
        }
        let mut issued = Bundle::default();
        let c = &mut self.cores[core];
        // What the scalar unit has waited for; its own accesses to UB and global memory need events as well.
        c.units[Pipe::S as usize].clock.share(&mut issued);
        c.units[pipe as usize].queue.push_back(Queued { work, issued, line });
        if self.config.timing == Timing::Early {
            while self.pump_now(core, pipe) {}
        }
        self.after_issue(core, pipe, line)
    }

    /// Executes the head of a queue unless it is a vector function.
    fn pump_now(&mut self, core: usize, pipe: Pipe) -> bool {
        let head = self.cores[core].units[pipe as usize].queue.front();
        !matches!(head.map(|q| &q.work), Some(Work::Function(_))) && self.pump(core, pipe) == Pumped::Done
    }

    fn after_issue(&mut self, core: usize, pipe: Pipe, line: u32) -> Flow {
        self.count(line);
        if self.cores[core].units[pipe as usize].queue.len() >= QUEUE {
            return self.wait(core, State::Room { pipe, line });
        }
        let interrupt = self.config.policy == Policy::Random && self.dice.roll().is_multiple_of(8);
        if interrupt || self.abandoned { self.wait(core, State::Ready) } else { Flow::Go }
    }

    fn wait(&mut self, core: usize, state: State) -> Flow {
        self.cores[core].state = state;
        Flow::Wait
    }

    /// Queues a vector function of the running core under the runner's number. `true`: run it now, then call
    /// [`Machine::end_function`].
    pub fn issue_function(&mut self, token: u64, line: u32) -> (bool, Flow) {
        let core = self.current;
        let flow = self.issue(Pipe::V, line, Work::Function(token));
        let head = self.cores[core].units[Pipe::V as usize].queue.front();
        let now = self.config.timing == Timing::Early
            && matches!(head.map(|q| &q.work), Some(Work::Function(t)) if *t == token)
            && self.pump(core, Pipe::V) == Pumped::Function(token);
        (now, flow)
    }

    /// The text of a core has ended.
    pub fn exit(&mut self, core: usize) {
        self.cores[core].state = State::Exited;
    }

    fn count(&mut self, line: u32) {
        self.instructions += 1;
        self.cores[self.current].line = line;
        if self.instructions == self.config.spin_limit {
            let text = format!("{} instructions without an end", self.instructions);
            self.report(Code::SpinLimit, line, text);
            self.abandoned = true;
        }
    }

    /// Notes that the running core went through much code without an instruction.
    pub fn spin(&mut self) -> Flow {
        let line = self.cores[self.current].line;
        self.count(line);
        if self.abandoned { self.wait(self.current, State::Ready) } else { Flow::Go }
    }
}

/// Outcome of looking at the head of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pumped {
    Blocked,
    Done,
    Function(u64),
}

impl Unit {
    /// Takes over what was handed to a bundle, and that own results are there if the bundle knows it.
    fn acquire(&mut self, from: &mut Bundle) {
        self.settled = self.settled.max(from.time_of(self.clock.actor()));
        self.clock.acquire(from);
    }

    /// All results so far are there; later ones have a later time.
    fn settle(&mut self) {
        let mut all = Bundle::default();
        self.clock.release(&mut all);
        self.settled = all.time_of(self.clock.actor());
    }
}

fn stamp(clock: &Clock, block: u32, line: u32) -> Access {
    Access { actor: clock.actor(), time: clock.now(), block, line, atomic: false, way: Way::Generic }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Cube => "cube",
        Kind::Vector => "vector",
    }
}
