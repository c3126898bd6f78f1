//! Blocks that run together: their barrier, and that none leaves while another may still reach it.

use super::{Actor, Bundle, Code, Flow, Machine, State, site};

/// The barrier of all threads of a cluster.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    arrived: usize,
    /// Times it opened.
    round: u32,
    now: Bundle,
    done: Bundle,
    waiting: Vec<usize>,
}

impl Barrier {
    pub(super) fn arrived(&self) -> usize {
        self.arrived
    }
}

/// A thread and the barrier of its cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Membership {
    /// Arrivals, and waits that are over.
    arrivals: u32,
    waits: u32,
}

/// Something that another block, or a copy it asked for, did to a block, which must still be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    /// When it is over, in the time of the actor that it is kept under.
    time: u32,
    /// Arrivals of its thread at the cluster's barrier before it; `None` for a copy, which an arrival does not wait for.
    arrivals: Option<u32>,
}

impl Machine {
    /// Arrives at the cluster's barrier; `release`: what the thread did before is visible after it.
    pub fn cluster_arrive(&mut self, release: bool, line: u32) {
        self.count(line);
        let t = self.current;
        let m = self.threads[t].cluster;
        if m.arrivals > m.waits {
            self.report(Code::ClusterBarrier, line, "arrives again without having waited".into());
            return;
        }
        self.threads[t].cluster.arrivals += 1;
        if release {
            self.threads[t].clock.release(&mut self.cluster_barrier.now);
        } else if let Some(known) = &self.threads[t].init_fence {
            self.cluster_barrier.now.join(known);
        }
        self.cluster_barrier.arrived += 1;
        self.open_cluster_barrier();
    }

    /// Waits for all threads of the cluster.
    pub fn cluster_wait(&mut self, line: u32) -> Flow {
        self.count(line);
        let t = self.current;
        let m = self.threads[t].cluster;
        if m.arrivals == m.waits {
            self.report(Code::ClusterBarrier, line, "waits without having arrived".into());
            return Flow::Go;
        }
        if self.cluster_barrier.round >= m.arrivals {
            self.threads[t].cluster.waits += 1;
            self.threads[t].clock.acquire(&mut self.cluster_barrier.done);
            return Flow::Go;
        }
        self.cluster_barrier.waiting.push(t);
        self.threads[t].state = State::Cluster { line };
        Flow::Wait
    }

    /// Opens the barrier if all threads that are still there have arrived.
    fn open_cluster_barrier(&mut self) {
        let alive: usize = self.blocks.iter().map(|b| b.alive).sum();
        let b = &mut self.cluster_barrier;
        if b.arrived == 0 || b.arrived < alive {
            return;
        }
        (b.arrived, b.round) = (0, b.round + 1);
        b.done = std::mem::take(&mut b.now);
        let mut done = std::mem::take(&mut b.done);
        for t in std::mem::take(&mut b.waiting) {
            self.threads[t].cluster.waits += 1;
            self.threads[t].clock.acquire(&mut done);
            self.make_ready(t);
        }
        self.cluster_barrier.done = done;
    }

    /// Notes that the running thread reaches another block, or a copy it asks for, which is over at an actor's time.
    pub(super) fn visit(&mut self, rank: usize, copy: Option<(Actor, u32)>, line: u32) {
        if self.blocks[rank].alive == 0 {
            let text = format!("reaches the block with rank {rank} of the cluster, which has ended");
            self.report(Code::ExitedBlock, line, text);
            return;
        }
        let thread = &self.threads[self.current];
        let (actor, visit) = match copy {
            Some((actor, time)) => (actor, Visit { time, arrivals: None }),
            None => {
                let visit = Visit { time: thread.clock.now(), arrivals: Some(thread.cluster.arrivals) };
                (thread.clock.actor(), visit)
            }
        };
        self.blocks[rank].visits.insert((actor, line), visit);
    }

    /// A thread has left the kernel: its block may end, and the barrier no longer waits for it.
    pub(super) fn leave_cluster(&mut self, thread: usize) {
        let rank = self.rank_of(thread);
        self.blocks[rank].alive -= 1;
        if self.shared.len() == 1 {
            return;
        }
        if self.blocks[rank].alive == 0 {
            self.check_visits(rank);
        }
        let m = self.threads[thread].cluster;
        if m.arrivals > self.cluster_barrier.round {
            // It arrived and left: it no longer counts as one that is there.
            self.cluster_barrier.arrived -= 1;
        }
        self.open_cluster_barrier();
    }

    /// A block ends: whatever other blocks did to it must be known to be over by one of its threads.
    fn check_visits(&mut self, rank: usize) {
        let threads = rank * self.config.threads..(rank + 1) * self.config.threads;
        let waits = self.threads[threads.clone()].iter().map(|t| t.cluster.waits).max().unwrap_or(0);
        for ((actor, line), visit) in std::mem::take(&mut self.blocks[rank].visits) {
            // The cluster's barrier opened after the visitor came to it later.
            let opened = visit.arrivals.is_some_and(|a| waits > a);
            if opened || self.threads[threads.clone()].iter().any(|t| t.clock.knows(actor, visit.time)) {
                continue;
            }
            let what = self.actors.get(actor as usize).map_or_else(String::new, |&k| self.actor_name(k));
            self.findings.report(Code::ExitedBlock, line, 0, || {
                format!(
                    "the block with rank {rank} ends, and nothing says that {what} is done with it at {}",
                    site(line)
                )
            });
        }
    }
}
