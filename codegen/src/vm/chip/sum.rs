//! Sums of parts that instances of a role and blocks of a cluster have: who has handed over, who has read.

use super::super::memory::{self, Side};
use super::{Chip, Range};
use crate::ir::{DType, OpId};
use crate::machine::{Bundle, Use};

/// Those who add up together: a group of instances in one block, or in all blocks that share tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumKey {
    /// Block that adds up.
    pub block: usize,
    /// Role.
    pub role: usize,
    /// Group of instances with the same elements.
    pub group: usize,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumWait {
    /// All other parts have been handed over.
    Handed,
    /// They have been read.
    Read,
}

/// A process among those who add up.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// With whom.
    pub key: SumKey,
    /// Its part.
    pub part: usize,
    /// How many there are.
    pub parts: usize,
    /// Groups of the role.
    pub groups: usize,
}

#[derive(Debug, Default)]
pub(super) struct Rounds {
    handed: usize,
    arrived: usize,
    read: usize,
    now: Bundle,
    all: Bundle,
    free: Bundle,
}

impl Chip<'_> {
    /// A process's place among those who add up; none for a block's own program.
    pub fn sum_of(&self, id: usize, turns: usize) -> Option<Sum> {
        let p = &self.procs[id];
        let role = p.role?;
        let instances = self.kernel.roles[role].instances;
        let instance = id - self.child(p.block, role, 0);
        // Blocks that are neighbours along an axis have tiles of their own.
        let shares = self.kernel.cluster.as_ref().is_some_and(|c| c.axis.is_none());
        let (block, rank, blocks) = if shares { (0, p.block, self.blocks.len()) } else { (p.block, 0, 1) };
        Some(Sum {
            key: SumKey { block, role, group: instance / turns },
            part: rank * turns + instance % turns,
            parts: blocks * turns,
            groups: instances / turns,
        })
    }

    /// Counts a process's sums from 0 on.
    pub fn round(&mut self, id: usize) -> usize {
        self.procs[id].sums += 1;
        self.procs[id].sums - 1
    }

    pub(super) fn sum_done(&self, key: SumKey, what: SumWait) -> usize {
        self.sums.get(&key).map_or(0, |r| match what {
            SumWait::Handed => r.handed,
            SumWait::Read => r.read,
        })
    }

    pub(super) fn sum_state(&self, key: SumKey, what: SumWait, rounds: usize) -> String {
        let (arrived, done) = (self.sums.get(&key).map_or(0, |r| r.arrived), self.sum_done(key, what));
        let verb = if what == SumWait::Handed { "handed over" } else { "read" };
        format!("the parts of sum {rounds} to be {verb}: those of {done} are, {arrived} parts of the next have come")
    }

    /// Writes a part where the one who adds up finds it.
    pub fn hand_over(&mut self, id: usize, sum: &Sum, inbox: usize, range: Range, part: &[f32], op: OpId) {
        let r = self.sums.entry(sum.key).or_default();
        let me = &mut self.procs[id];
        me.leader.acquire(&mut r.free);
        me.rest.acquire(&mut r.free);
        self.touch_in(id, sum.key.block, Use::Write, inbox, range, op);
        let tile = &mut self.blocks[sum.key.block].tiles[inbox];
        if memory::tile_holds(tile, DType::F32, range.at, range.at + range.count as i64 - 1) {
            memory::write_tile(tile, DType::F32, range.at, 1, part);
        }
        let r = self.sums.entry(sum.key).or_default();
        let me = &mut self.procs[id];
        me.leader.release(&mut r.now);
        me.rest.release(&mut r.now);
        r.arrived += 1;
        if r.arrived + 1 == sum.parts {
            r.arrived = 0;
            r.handed += 1;
            r.all = std::mem::take(&mut r.now);
        }
    }

    /// Reads a part.
    pub fn read_part(&mut self, id: usize, sum: &Sum, inbox: usize, range: Range, op: OpId) -> Vec<f32> {
        if let Some(r) = self.sums.get_mut(&sum.key) {
            let me = &mut self.procs[id];
            me.leader.acquire(&mut r.all);
            me.rest.acquire(&mut r.all);
        }
        self.touch_in(id, sum.key.block, Use::Read, inbox, range, op);
        let mut out = vec![f32::NAN; range.count];
        let tile = &self.blocks[sum.key.block].tiles[inbox];
        if memory::tile_holds(tile, DType::F32, range.at, range.at + range.count as i64 - 1) {
            memory::read(&Side::Tile(tile), DType::F32, range.at, 1, &mut out, &mut vec![]);
        }
        out
    }

    /// All parts have been read.
    pub fn end_round(&mut self, id: usize, sum: &Sum) {
        let r = self.sums.entry(sum.key).or_default();
        let me = &mut self.procs[id];
        me.leader.release(&mut r.free);
        me.rest.release(&mut r.free);
        r.read += 1;
    }
}
