//! Registers that move between the warps of a block.

use super::{Code, Flow, Machine, State};

impl Machine {
    /// Checks a count that warp `w` asks for, and gives registers back at once; called when all lanes have arrived.
    pub(super) fn registers_asked(&mut self, w: usize, count: u32, grow: bool, line: u32) {
        let now = self.warps[w].registers;
        if !count.is_multiple_of(8) || !(24..=256).contains(&count) {
            self.report(Code::Registers, line, format!("{count} registers: a multiple of 8 from 24 to 256 is needed"));
            return;
        }
        if grow && count < now && now == self.config.registers {
            // The compiler starts a kernel with no more registers than its largest role takes.
            self.warps[w].registers = count;
        } else if grow && count < now || !grow && count > now {
            let verb = if grow { "grows" } else { "shrinks" };
            self.report(Code::Registers, line, format!("a warp with {now} registers {verb} to {count}"));
        } else if !grow {
            let rank = self.rank_of(self.lanes(w).start);
            self.blocks[rank].pool += i64::from(now - count) * self.config.warp as i64;
            self.warps[w].registers = count;
            self.hand_out(rank);
        }
    }

    /// The running thread's warp takes registers, or waits for them.
    pub fn registers_take(&mut self, count: u32, line: u32) -> Flow {
        let t = self.current;
        let (w, rank) = (self.warp_of(t), self.rank());
        if self.warps[w].registers >= count || !count.is_multiple_of(8) || count > 256 || self.take(w, rank, count) {
            return Flow::Go;
        }
        self.threads[t].state = State::Registers { count, line };
        Flow::Wait
    }

    fn take(&mut self, w: usize, rank: usize, count: u32) -> bool {
        let need = i64::from(count.saturating_sub(self.warps[w].registers)) * self.config.warp as i64;
        if need > self.blocks[rank].pool {
            return false;
        }
        self.blocks[rank].pool -= need;
        self.warps[w].registers = count;
        true
    }

    /// Gives what is in the pool to warps that wait.
    fn hand_out(&mut self, rank: usize) {
        let threads = rank * self.config.threads..(rank + 1) * self.config.threads;
        for t in threads {
            if let State::Registers { count, .. } = self.threads[t].state {
                let w = self.warp_of(t);
                if self.warps[w].registers >= count || self.take(w, rank, count) {
                    self.make_ready(t);
                }
            }
        }
    }
}
