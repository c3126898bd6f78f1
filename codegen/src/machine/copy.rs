//! Copies to shared memory that a thread asks for and waits for in groups (`cp.async`).

use super::{Actor, ActorKind, Code, Machine, POISON, Place, Refusal, Timing, Use, Way};

/// A thread's copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    actor: Option<Actor>,
    /// Groups that are closed.
    closed: u32,
    pending: Vec<AsyncCopy>,
}

/// A copy that has not taken effect.
#[derive(Clone, Copy, Debug)]
struct AsyncCopy {
    group: u32,
    from: (usize, usize),
    to: usize,
    bytes: usize,
    valid: usize,
}

impl Machine {
    /// Copies `valid` bytes from global to shared memory and zeroes the rest of `bytes`, at some later time; until then
    /// the destination is poison.
    pub fn copy_async(&mut self, to: u64, from: u64, bytes: usize, valid: usize, line: u32) {
        self.count(line);
        let what = "an asynchronous copy";
        let (t, rank) = (self.current, self.rank());
        let offset = if self.shared[rank].holds(to) {
            self.shared[rank].locate(to, bytes)
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
        let actor = match self.threads[t].copies.actor {
            Some(actor) => actor,
            None => self.new_actor(ActorKind::Copies(t)),
        };
        self.threads[t].copies.actor = Some(actor);
        let group = self.threads[t].copies.closed + 1;
        let now = self.stamp_async(t, actor, group, line, Way::Generic);
        let _ = self.touch(Use::Write, Place::Shared(rank, offset), bytes, now);
        let copy = AsyncCopy { group, from: source, to: offset, bytes, valid };
        if self.config.timing == Timing::Early {
            self.perform(rank, copy);
        } else {
            self.shared[rank].write(offset, &vec![POISON; bytes]);
            self.threads[t].copies.pending.push(copy);
        }
    }

    /// Closes the running thread's group of asynchronous copies.
    pub fn copy_commit(&mut self, line: u32) {
        self.count(line);
        self.threads[self.current].copies.closed += 1;
    }

    /// Waits until at most `pending` of the running thread's closed groups are incomplete.
    pub fn copy_wait(&mut self, pending: u32, line: u32) {
        self.count(line);
        let t = self.current;
        let done = self.threads[t].copies.closed.saturating_sub(pending);
        self.complete(t, done);
        if let Some(queue) = self.threads[t].copies.actor
            && done > 0
        {
            self.threads[t].clock.learn(queue, done);
        }
    }

    /// Performs what is left of a thread's groups up to `group`.
    pub(super) fn complete(&mut self, thread: usize, group: u32) {
        let copies = std::mem::take(&mut self.threads[thread].copies.pending);
        for copy in copies {
            if copy.group <= group {
                self.perform(self.rank_of(thread), copy);
            } else {
                self.threads[thread].copies.pending.push(copy);
            }
        }
    }

    /// Performs one pending copy of a random thread.
    pub(super) fn complete_one_copy(&mut self) {
        let t = self.dice.below(self.threads.len());
        let n = self.threads[t].copies.pending.len();
        if n > 0 {
            let k = self.dice.below(n);
            let copy = self.threads[t].copies.pending.swap_remove(k);
            self.perform(self.rank_of(t), copy);
        }
    }

    fn perform(&mut self, rank: usize, copy: AsyncCopy) {
        let mut bytes = vec![0; copy.bytes];
        if copy.valid > 0 {
            self.global.read(copy.from, &mut bytes[..copy.valid]);
        }
        self.shared[rank].write(copy.to, &bytes);
    }
}
