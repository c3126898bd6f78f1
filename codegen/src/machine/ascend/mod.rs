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
mod space;
mod sync;
mod vector;

pub use chip::{Arch, Kind, Pipe, Space};
pub use numeric::Elem;
pub use register::{Mask, Operands, Register};

use super::shadow::{Access, ConflictKind, Use, Way};
use super::{Actor, Bundle, Clock, Code, Dice, Findings, Flow, Global, Policy, Timing};
use chip::{FLAGS, PIPES};
use space::Memory;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

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

/// What a pipe did in a launch: counts, and an estimate of its time from published rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeStats {
    /// Instructions.
    pub instructions: u64,
    /// Bytes it read or wrote, whichever is more.
    pub bytes: u64,
    /// Estimated cycles of its core, all blocks one after another.
    pub cycles: u64,
}

/// What a launch did. Figures of a model, not of a chip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By the number of the pipe, all cores together.
    pub pipes: [PipeStats; PIPES],
    /// Products of matrix instructions.
    pub products: u64,
    /// Events and cross-core flags set.
    pub flags: u64,
    /// Barriers.
    pub barriers: u64,
    /// How far a cross-core flag was ahead at most.
    pub flag_depth: usize,
    /// Bytes of each memory up to the last one touched: L1, L0A, L0B, L0C, UB.
    pub high: [usize; 5],
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
    steps: u64,
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
            steps: 0,
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
        let nothing = Rc::new(vec![0; 3 * PIPES]);
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
            self.steps += 1;
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

    // --- reports ---

    /// Notes a finding of the running core.
    pub fn report(&mut self, code: Code, line: u32, message: String) {
        self.report_at(At { core: self.current, pipe: Pipe::S, line }, code, 0, message);
    }

    fn report_at(&mut self, at: At, code: Code, other: u32, message: String) {
        let who = self.who(at.core);
        self.findings.report(code, at.line, other, || match at.pipe {
            Pipe::S => format!("{who}: {message}"),
            pipe => format!("{who}, pipe {}: {message}", pipe.name()),
        });
    }

    fn who(&self, core: usize) -> String {
        match core {
            0 => format!("block {}, cube core", self.block),
            c => format!("block {}, vector core {}", self.block, c - 1),
        }
    }

    fn actor_name(&self, actor: Actor) -> String {
        let (core, pipe) = (actor as usize / PIPES, Pipe::ALL[actor as usize % PIPES]);
        let core = if core == 0 { "the cube core".to_string() } else { format!("vector core {}", core - 1) };
        match pipe {
            Pipe::S => format!("the scalar unit of {core}"),
            pipe => format!("pipe {} of {core}", pipe.name()),
        }
    }

    fn deadlock(&mut self) {
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

    fn memory_of(space: Space, core: usize) -> usize {
        match space {
            Space::L1 => 0,
            Space::L0a => 1,
            Space::L0b => 2,
            Space::L0c => 3,
            Space::Ub => 4 + core.saturating_sub(1),
        }
    }

    /// A tensor the text makes of an on-chip memory: says what is wrong with it.
    fn tensor(&mut self, r: Region, line: u32) {
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
    fn touch(&mut self, at: At, what: Use, r: Region, from: usize, bytes: usize) -> Option<(usize, usize)> {
        self.touch_of(at, at.core, what, r, from, bytes)
    }

    /// As [`Machine::touch`], in the memory of another core.
    fn touch_of(
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

    fn conflict(&mut self, at: At, what: Use, kind: ConflictKind, earlier: Access, place: &str) {
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
    fn read_global(&mut self, at: At, address: u64, bytes: usize) -> (Vec<u8>, Vec<bool>) {
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

    fn write_global(&mut self, at: At, address: u64, bytes: &[u8], defined: &[bool]) {
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
    fn moved(&mut self, at: At, bytes: usize) {
        let rate = self.config.arch.bytes_per_cycle(at.pipe).max(1);
        let s = &mut self.stats.pipes[at.pipe as usize];
        s.bytes += bytes as u64;
        s.cycles += (bytes as u64).div_ceil(rate);
    }

    fn bad_parameter(&mut self, at: At, text: String) {
        self.report_at(at, Code::Parameter, 0, text);
    }

    /// Reports a field that is not within `range`; true if it is.
    fn within(&mut self, at: At, what: &str, value: i64, range: std::ops::RangeInclusive<i64>) -> bool {
        if range.contains(&value) {
            return true;
        }
        self.bad_parameter(at, format!("{what} is {value}; it lies within {} and {}", range.start(), range.end()));
        false
    }

    /// Reports a tensor in another memory than an instruction takes; true if it is the right one.
    fn lies_in(&mut self, at: At, what: &str, r: Region, space: Space) -> bool {
        if r.space == space {
            return true;
        }
        self.bad_parameter(at, format!("{what} lies in {}; this instruction takes {}", r.space.name(), space.name()));
        false
    }

    /// Reports an address that is not aligned; true if it is.
    fn aligned(&mut self, at: At, what: &str, r: Region, align: usize) -> bool {
        if r.offset.is_multiple_of(align) {
            return true;
        }
        let text = format!("{what} at byte {} of {}; it has to be a multiple of {align}", r.offset, r.space.name());
        self.report_at(at, Code::Misaligned, 0, text);
        false
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
