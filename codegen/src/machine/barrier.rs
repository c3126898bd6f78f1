//! Barriers of a block, and what can be said when nobody can continue.

use super::{Bundle, Clock, Code, Flow, Machine, Policy, State, Vote, site};

/// Barriers of a block.
pub(super) const BARRIERS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Barrier {
    arrived: usize,
    count: usize,
    line: u32,
    vote: Option<Vote>,
    value: u32,
    waiting: Vec<usize>,
    /// What those handed over who do not wait.
    left: Option<Bundle>,
}

impl Machine {
    /// Barrier `id` for `count` threads (0: all of the block), with an optional vote over `value`.
    pub fn barrier(&mut self, id: u32, count: u32, vote: Option<Vote>, value: u32, line: u32) -> Flow {
        self.count(line);
        let all = self.config.threads;
        let count = if count == 0 { all } else { count as usize };
        if id as usize >= BARRIERS || count > all || (count != all && !count.is_multiple_of(self.config.warp)) {
            self.report(Code::BarrierCount, line, format!("barrier {id} for {count} of {all} threads does not exist"));
            return Flow::Go;
        }
        let id = self.rank() * BARRIERS + id as usize;
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
                format!("barrier {} for {count} threads, {} says {first_count}", id % BARRIERS, site(first_line)),
            );
        } else if first_line != line && id.is_multiple_of(BARRIERS) {
            // Warps may come to a named barrier from different places.
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

    /// Counts the running thread as present at a barrier without waiting there.
    pub fn barrier_arrive(&mut self, id: u32, count: u32, line: u32) {
        self.count(line);
        let all = self.config.threads;
        if id as usize >= BARRIERS || count as usize > all || !(count as usize).is_multiple_of(self.config.warp) {
            self.report(Code::BarrierCount, line, format!("barrier {id} for {count} of {all} threads does not exist"));
            return;
        }
        let (t, id) = (self.current, self.rank() * BARRIERS + id as usize);
        let b = &mut self.barriers[id];
        if b.arrived == 0 {
            (b.count, b.line, b.vote, b.value) = (count as usize, line, None, 0);
        }
        let (first_count, first_line) = (b.count, b.line);
        b.arrived += 1;
        self.threads[t].clock.release(b.left.get_or_insert_default());
        if first_count != count as usize {
            let text =
                format!("barrier {} for {count} threads, {} says {first_count}", id % BARRIERS, site(first_line));
            self.report(Code::BarrierCount, line, text);
        }
        if self.barriers[id].arrived >= self.barriers[id].count {
            self.open(id);
        }
    }

    /// All participants of a barrier meet and become ready.
    pub(super) fn open(&mut self, id: usize) {
        let b = std::mem::take(&mut self.barriers[id]);
        let mut joins = vec![false; self.threads.len()];
        for &t in &b.waiting {
            joins[t] = true;
        }
        if let Some(&t) = b.waiting.first()
            && let Some(mut left) = b.left
        {
            self.threads[t].clock.acquire(&mut left);
        }
        Clock::meet(self.threads.iter_mut().zip(&joins).filter(|(_, j)| **j).map(|(t, _)| &mut t.clock));
        for t in b.waiting {
            self.threads[t].result[0] = b.value;
            self.make_ready(t);
        }
    }

    /// The running thread was the last to arrive: it goes on unless the policy wants another one to run first.
    pub(super) fn resume_current(&mut self) -> Flow {
        if self.config.policy == Policy::Random && self.dice.roll().is_multiple_of(2) {
            return Flow::Wait;
        }
        let t = self.current;
        let (w, lane) = (self.warp_of(t), self.lane_of(t));
        self.threads[t].state = State::Running;
        self.warps[w].ready &= !(1 << lane);
        Flow::Go
    }

    /// Nobody can run: if that is because some threads left, say so and let the others go on, as hardware would.
    pub(super) fn release_diverged(&mut self) -> bool {
        let all = self.config.threads;
        for id in 0..self.barriers.len() {
            let rank = id / BARRIERS;
            let exited = all - self.blocks[rank].alive;
            let b = &self.barriers[id];
            if exited > 0 && b.arrived > 0 && b.count == all && b.arrived + exited == all {
                let (line, arrived) = (b.line, b.arrived);
                let block = rank * all..(rank + 1) * all;
                let gone = block.clone().find(|&t| self.threads[t].state == State::Exited).unwrap_or(block.start);
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

    pub(super) fn deadlock(&mut self) {
        let mut waits: Vec<(String, usize, u32)> = vec![];
        for (i, t) in self.threads.iter().enumerate() {
            let (text, line) = match t.state {
                State::Barrier { id, line } => {
                    let b = &self.barriers[id];
                    let id = id % BARRIERS;
                    (format!("barrier {id} of {}, {} of {} arrived", site(line), b.arrived, b.count), line)
                }
                State::Warp { line } => (format!("warp-wide operation of {}", site(line)), line),
                State::Mbarrier { rank, offset, parity, line } => {
                    (format!("parity {parity} at {}; {}", site(line), self.mbarrier_state(rank, offset)), line)
                }
                State::Cluster { line } => {
                    let (arrived, all) = (self.cluster_barrier.arrived(), self.cluster_threads());
                    (format!("the cluster at {}, {arrived} of {all} arrived", site(line)), line)
                }
                State::Registers { count, line } => {
                    let pool = self.blocks[self.rank_of(i)].pool / self.config.warp as i64;
                    (format!("{count} registers at {}, {pool} are free for a warp", site(line)), line)
                }
                State::Exited => ("left the kernel".to_string(), 0),
                State::Ready | State::Running => continue,
            };
            let who = self.who(i);
            let text = format!("{}: {text}", who.rsplit_once(" lane").map_or(who.as_str(), |(w, _)| w));
            match waits.iter_mut().find(|(x, ..)| *x == text) {
                Some(x) => x.1 += 1,
                None => waits.push((text, 1, line)),
            }
        }
        let line = waits.iter().map(|w| w.2).find(|&l| l > 0).unwrap_or(0);
        let left = waits.len().saturating_sub(Self::WAITS);
        let mut list: Vec<String> =
            waits.iter().take(Self::WAITS).map(|(text, n, _)| format!("{n} lanes of {text}")).collect();
        if left > 0 {
            list.push(format!("{left} more"));
        }
        let what = match self.shared.len() {
            1 => format!("block {}", self.cluster),
            _ => format!("cluster {}", self.cluster),
        };
        self.findings
            .report(Code::Deadlock, line, 0, || format!("no thread of {what} can continue: {}", list.join("; ")));
    }

    /// Waits that a report of a deadlock names.
    const WAITS: usize = 24;
}
