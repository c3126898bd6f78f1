//! Operations that go on while threads do: bulk copies and matrix instructions, from when they are asked for to when they
//! take effect.

use super::{Machine, Policy, Timing, tma, wgmma};

/// What waits to take effect.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub queue: Queue,
    pub action: Action,
}

/// What happens in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// With nothing else.
    Free,
    /// With the bulk stores of a thread.
    Stores(usize),
    /// With the matrix instructions of a warp.
    Products(usize),
}

/// Kinds of effects.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Load(tma::Load),
    Store(tma::Store),
    Send(tma::Send),
    Multiply(wgmma::Multiply),
}

impl Machine {
    /// Takes an operation on; with early completion it happens at once.
    pub(super) fn begin(&mut self, queue: Queue, action: Action) {
        if self.config.timing == Timing::Early {
            self.finish_action(action);
        } else {
            self.jobs.push(Job { queue, action });
        }
    }

    fn finish_action(&mut self, action: Action) {
        match action {
            Action::Load(x) => self.finish_load(&x),
            Action::Store(x) => self.finish_store(&x),
            Action::Send(x) => self.finish_send(&x),
            Action::Multiply(x) => self.finish_product(&x),
        }
    }

    /// Finishes the operations of a queue that `due` names, oldest first.
    pub(super) fn finish_queue(&mut self, queue: Queue, due: impl Fn(&Action) -> bool) {
        while let Some(i) = self.jobs.iter().position(|j| j.queue == queue) {
            if !due(&self.jobs[i].action) {
                return;
            }
            let job = self.jobs.remove(i);
            self.finish_action(job.action);
        }
    }

    /// Finishes the oldest operation of the queue of a chosen one.
    fn finish_chosen(&mut self, chosen: usize) {
        let queue = self.jobs[chosen].queue;
        let i = match queue {
            Queue::Free => chosen,
            Queue::Stores(_) | Queue::Products(_) => self.jobs.iter().position(|j| j.queue == queue).unwrap_or(chosen),
        };
        let job = self.jobs.remove(i);
        self.finish_action(job.action);
    }

    /// Finishes some operation now and then, while threads could run.
    pub(super) fn complete_some(&mut self) {
        self.complete_one_copy();
        if !self.jobs.is_empty() && self.dice.roll().is_multiple_of(8) {
            let i = self.dice.below(self.jobs.len());
            self.finish_chosen(i);
        }
    }

    /// Finishes an operation when no thread can run; false if there is none. Old ones starve: half of the choices are the
    /// newest.
    pub(super) fn perform_late(&mut self) -> bool {
        if self.jobs.is_empty() {
            return false;
        }
        let newest = self.config.policy != Policy::InOrder && self.dice.roll().is_multiple_of(2);
        let i = if newest { self.jobs.len() - 1 } else { self.dice.below(self.jobs.len()) };
        self.finish_chosen(i);
        true
    }
}
