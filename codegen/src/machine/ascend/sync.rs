//! Events between pipes of a core, flags between cores, and what is left over at the end of a block.

use super::chip::{EVENTS, FLAG_DEPTH, FLAGS, Kind, PIPES, Pipe};
use super::{Arch, At, Bundle, Code, Flow, Machine, State, Work, kind_name};
use std::collections::VecDeque;

/// One id of one ordered pair of pipes of a core.
#[derive(Debug, Default)]
pub(super) struct Event {
    /// Sets that have happened and were not waited for, with their lines.
    pending: VecDeque<(Bundle, u32)>,
    /// In the text: sets without a wait, and the line of the last set.
    open: i32,
    set_line: u32,
    /// Time and line of the last wait that happened.
    last_wait: Option<(u32, u32)>,
}

impl Event {
    pub fn all() -> Vec<Event> {
        (0..PIPES * PIPES * EVENTS).map(|_| Event::default()).collect()
    }
    pub fn is_set(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Place of an event in a core's list.
pub(super) fn index(from: Pipe, to: Pipe, id: usize) -> usize {
    (from as usize * PIPES + to as usize) * EVENTS + id
}

/// A cross-core flag: what was set for each vector core, and by each for the cube core.
#[derive(Debug, Default)]
pub(super) struct Flag {
    down: [VecDeque<(Bundle, u32)>; 2],
    up: [VecDeque<(Bundle, u32)>; 2],
}

impl Machine {
    fn event_name(from: Pipe, to: Pipe, id: usize) -> String {
        format!("event {}_{} {id}", from.name(), to.name())
    }

    fn event_exists(&mut self, from: Pipe, to: Pipe, id: u64, line: u32) -> Option<usize> {
        let kind = self.cores[self.current].kind;
        if from == to || !kind.has(from) || !kind.has(to) {
            let text = format!("an event {}_{} on a {} core", from.name(), to.name(), kind_name(kind));
            self.report(Code::EventId, line, text);
            return None;
        }
        let found = usize::try_from(id).ok().filter(|&id| id < EVENTS);
        if found.is_none() {
            let text = format!("event id {}; ids are 0 to {}", id as i64, EVENTS - 1);
            self.report(Code::EventId, line, text);
        }
        found
    }

    /// `SetFlag`.
    pub(super) fn set_flag(&mut self, from: Pipe, to: Pipe, id: u64, line: u32) -> Flow {
        let Some(id) = self.event_exists(from, to, id, line) else { return Flow::Go };
        let core = self.current;
        let e = &mut self.cores[core].events[index(from, to, id)];
        let (open, earlier) = (e.open, e.set_line);
        (e.open, e.set_line) = (e.open + 1, line);
        if open > 0 {
            let text = format!(
                "{} is set again; the set of line #{earlier} has not been waited for",
                Self::event_name(from, to, id)
            );
            self.report_at(At { core, pipe: Pipe::S, line }, Code::EventBalance, earlier, text);
        }
        self.stats.flags += 1;
        if from == Pipe::S {
            self.count(line);
            self.give_event(At { core, pipe: Pipe::S, line }, to, id);
            return Flow::Go;
        }
        self.issue(from, line, Work::Set { to, id })
    }

    /// `WaitFlag`.
    pub(super) fn wait_flag(&mut self, from: Pipe, to: Pipe, id: u64, line: u32) -> Flow {
        let Some(id) = self.event_exists(from, to, id, line) else { return Flow::Go };
        let core = self.current;
        let e = &mut self.cores[core].events[index(from, to, id)];
        if e.open <= 0 {
            let text = format!("waits for {}, which the text has not set", Self::event_name(from, to, id));
            self.report(Code::EventBalance, line, text);
            return Flow::Go;
        }
        e.open -= 1;
        if to == Pipe::S {
            self.count(line);
            if self.cores[core].events[index(from, to, id)].is_set() {
                self.take_event(At { core, pipe: Pipe::S, line }, from, id);
                return Flow::Go;
            }
            return self.wait(core, State::Event { from, id, line });
        }
        self.issue(to, line, Work::Wait { from, id })
    }

    /// A set happens.
    pub(super) fn give_event(&mut self, at: At, to: Pipe, id: usize) {
        let c = &mut self.cores[at.core];
        let e = &mut c.events[index(at.pipe, to, id)];
        let clock = &mut c.units[at.pipe as usize].clock;
        let waiter = super::Actor::try_from(at.core * PIPES + to as usize).unwrap_or(0);
        let ahead = e.last_wait.filter(|w| !clock.knows(waiter, w.0)).map(|w| w.1);
        let mut bundle = Bundle::default();
        clock.release(&mut bundle);
        e.pending.push_back((bundle, at.line));
        if let Some(line) = ahead {
            let text = format!(
                "{} may be set again before the wait of line #{line} has taken the set before; nothing orders the two",
                Self::event_name(at.pipe, to, id)
            );
            self.report_at(at, Code::EventBalance, line, text);
        }
    }

    /// A wait happens; the event is set.
    pub(super) fn take_event(&mut self, at: At, from: Pipe, id: usize) {
        let c = &mut self.cores[at.core];
        let e = &mut c.events[index(from, at.pipe, id)];
        let unit = &mut c.units[at.pipe as usize];
        if let Some((mut bundle, _)) = e.pending.pop_front() {
            e.last_wait = Some((unit.clock.now(), at.line));
            unit.acquire(&mut bundle);
        }
    }

    /// `PipeBarrier` of one pipe, or of all.
    pub(super) fn pipe_barrier(&mut self, pipe: Option<Pipe>, line: u32) -> Flow {
        self.stats.barriers += 1;
        match pipe {
            Some(pipe) => self.issue(pipe, line, Work::Barrier),
            None => {
                self.count(line);
                self.wait(self.current, State::All { line })
            }
        }
    }

    /// All pipes of a core have done what they were given.
    pub(super) fn meet(&mut self, at: At) {
        let mut all = Bundle::default();
        for unit in &mut self.cores[at.core].units {
            unit.clock.release(&mut all);
        }
        for unit in &mut self.cores[at.core].units {
            unit.acquire(&mut all);
        }
    }

    // --- between cores ---

    fn flag_exists(&mut self, mode: u8, pipe: Pipe, id: u64, line: u32) -> Option<usize> {
        let kind = self.cores[self.current].kind;
        let legal = match kind {
            Kind::Cube => matches!(pipe, Pipe::M | Pipe::Mte1 | Pipe::Mte2 | Pipe::Fix),
            Kind::Vector => matches!(pipe, Pipe::V | Pipe::Mte2 | Pipe::Mte3),
        };
        if !legal {
            let text = format!("a cross-core flag on pipe {} of a {} core", pipe.name(), kind_name(kind));
            self.report(Code::EventId, line, text);
            return None;
        }
        if !self.config.mixed {
            self.report(Code::CrossFlag, line, "a cross-core flag in a kernel without a cube core".into());
            return None;
        }
        let limit = match (mode, self.config.arch, kind) {
            (2, ..) => FLAGS,
            (4, Arch::A3510, Kind::Vector) => 11,
            // The second vector core has its own ids, 16 further on.
            (4, Arch::A3510, Kind::Cube) if id >= 16 => 16 + 11,
            (4, Arch::A3510, Kind::Cube) => 11,
            _ => {
                let text = format!("cross-core flags of mode {mode} are not modelled for this chip");
                self.report(Code::Unsupported, line, text);
                return None;
            }
        };
        let found = usize::try_from(id).ok().filter(|&id| id < limit);
        if found.is_none() {
            let text = format!("cross-core flag {id}; ids of mode {mode} are 0 to {}", limit - 1);
            self.report(Code::EventId, line, text);
        }
        found
    }

    /// Vector cores a flag of the cube core is about.
    fn partners(mode: u8, id: usize) -> &'static [usize] {
        match (mode, id) {
            (4, 0..16) => &[0],
            (4, _) => &[1],
            _ => &[0, 1],
        }
    }

    /// `CrossCoreSetFlag`.
    pub(super) fn cross_set(&mut self, mode: u8, pipe: Pipe, id: u64, line: u32) -> Flow {
        let Some(id) = self.flag_exists(mode, pipe, id, line) else { return Flow::Go };
        self.stats.flags += 1;
        self.issue(pipe, line, Work::CrossSet { mode, id })
    }

    /// `CrossCoreWaitFlag`: on 2201 the whole core waits, on 3510 the pipe.
    pub(super) fn cross_wait(&mut self, mode: u8, pipe: Pipe, id: u64, line: u32) -> Flow {
        let Some(id) = self.flag_exists(mode, pipe, id, line) else { return Flow::Go };
        let core = self.current;
        if self.config.arch == Arch::A3510 {
            return self.issue(pipe, line, Work::CrossWait { mode, id });
        }
        self.count(line);
        if self.flag_set(core, mode, id) {
            self.take_flag(At { core, pipe: Pipe::S, line }, mode, id);
            return Flow::Go;
        }
        self.wait(core, State::Cross { mode, id, pipe, line })
    }

    /// True if a core's wait for a flag would end.
    pub(super) fn flag_set(&self, core: usize, mode: u8, id: usize) -> bool {
        let flag = &self.flags[id % FLAGS];
        match core {
            0 => Self::partners(mode, id).iter().all(|&v| !flag.up[v].is_empty()),
            v => !flag.down[v - 1].is_empty(),
        }
    }

    /// A set happens.
    pub(super) fn give_flag(&mut self, at: At, mode: u8, id: usize) {
        let clock = &mut self.cores[at.core].units[at.pipe as usize].clock;
        let mut bundle = Bundle::default();
        clock.release(&mut bundle);
        let flag = &mut self.flags[id % FLAGS];
        let mut depth = 0;
        let mut push = |queue: &mut VecDeque<(Bundle, u32)>| {
            queue.push_back((bundle.clone(), at.line));
            depth = depth.max(queue.len());
        };
        match at.core {
            0 => Self::partners(mode, id).iter().for_each(|&v| push(&mut flag.down[v])),
            v => push(&mut flag.up[v - 1]),
        }
        self.stats.flag_depth = self.stats.flag_depth.max(depth);
        if depth > FLAG_DEPTH {
            let text = format!("cross-core flag {id} is {depth} ahead; the counter ends at {FLAG_DEPTH}");
            self.report_at(at, Code::CrossFlag, 0, text);
        }
    }

    /// A wait happens; the flag is set.
    pub(super) fn take_flag(&mut self, at: At, mode: u8, id: usize) {
        let flag = &mut self.flags[id % FLAGS];
        let taken: Vec<Bundle> = match at.core {
            0 => Self::partners(mode, id).iter().filter_map(|&v| flag.up[v].pop_front()).map(|x| x.0).collect(),
            v => flag.down[v - 1].pop_front().map(|x| x.0).into_iter().collect(),
        };
        for mut bundle in taken {
            self.cores[at.core].units[at.pipe as usize].acquire(&mut bundle);
        }
    }

    /// Everything has happened: events and flags must have come out even.
    pub(super) fn end_block(&mut self) {
        for core in 0..self.cores.len() {
            for (from, to) in Pipe::ALL.into_iter().flat_map(|f| Pipe::ALL.map(|t| (f, t))) {
                for id in 0..EVENTS {
                    let e = &self.cores[core].events[index(from, to, id)];
                    if e.open > 0 || e.is_set() {
                        let at = At { core, pipe: Pipe::S, line: e.set_line };
                        let text = format!("{} is left set at the end", Self::event_name(from, to, id));
                        self.report_at(at, Code::EventBalance, 0, text);
                    }
                }
            }
        }
        for id in 0..FLAGS {
            for v in 0..2 {
                let flag = &self.flags[id];
                let left = |queue: &VecDeque<(Bundle, u32)>| queue.front().map(|x| (x.1, queue.len()));
                let (down, up) = (left(&flag.down[v]), left(&flag.up[v]));
                for (found, core, who) in [(down, 0, "the cube core"), (up, v + 1, "this core")] {
                    if let Some((line, count)) = found {
                        let at = At { core, pipe: Pipe::S, line };
                        let times = if count == 1 { "once".into() } else { format!("{count} times") };
                        let text = format!("cross-core flag {id} of {who} is left set {times} at the end");
                        self.report_at(at, Code::CrossFlag, 0, text);
                    }
                }
            }
        }
    }
}
