//! Copies between tensors and shared tiles, from when they are asked for to when they take effect.

use super::super::memory::{self, Class, Lane, Side, Tile, class_of};
use super::{Chip, Key, Range};
use crate::ir::{DType, OpId};
use crate::machine::{Timing, Use};

/// A row of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// First element in the tile, and the distance to the next.
    pub tile: [i64; 2],
    /// Elements.
    pub len: usize,
    /// Elements `lo..hi` exist in the tensor; the first of them is at `tensor[0]`, the next at `tensor[1]` further.
    pub lo: usize,
    /// See `lo`.
    pub hi: usize,
    /// See `lo`.
    pub tensor: [i64; 2],
}

/// A copy that has not taken effect.
#[derive(Clone, Debug)]
pub struct Job {
    /// Who asked.
    pub by: usize,
    /// Tile.
    pub tile: usize,
    /// Tensor.
    pub param: usize,
    /// Type of the elements.
    pub dtype: DType,
    /// Rows.
    pub rows: Vec<Row>,
    /// Blocks whose tile is filled, with the barriers the bytes are counted on; none for a store.
    pub to: Vec<Key>,
    /// Bytes it counts.
    pub bytes: i64,
    /// The op.
    pub op: OpId,
}

impl Chip<'_> {
    /// Takes a load on: it is judged now and happens when the timing says.
    pub fn load(&mut self, job: Job, expected: i64, own: Key, swizzle: crate::machine::Swizzle) {
        self.count(own, expected);
        for &key in &job.to {
            let engine = self.engine_of(key);
            for r in &job.rows {
                let range = self.range(r, job.dtype);
                self.touch_async(job.by, key.block, Use::Write, job.tile, range, engine, Some(swizzle), job.op);
                self.poison(key.block, job.tile, r, job.dtype);
            }
        }
        self.begin(job);
    }

    /// Takes a store on.
    pub fn store(&mut self, job: Job, swizzle: crate::machine::Swizzle) {
        let block = self.procs[job.by].block;
        let [stores, _] = self.own_engines(job.by);
        self.procs[job.by].stores[0] += 1;
        let time = self.procs[job.by].stores[0];
        for r in &job.rows {
            let range = self.range(r, job.dtype);
            self.touch_async(job.by, block, Use::Read, job.tile, range, (stores, time), Some(swizzle), job.op);
        }
        self.begin(job);
    }

    fn range(&self, r: &Row, dtype: DType) -> Range {
        Range { at: r.tile[0], stride: r.tile[1], count: r.len, bits: dtype.bits() }
    }

    fn begin(&mut self, job: Job) {
        if self.timing == Timing::Early { self.take_effect(&job) } else { self.jobs.push(job) }
    }

    /// Waits until all but the last `pending` stores of a process are done.
    pub fn wait_stores(&mut self, id: usize, pending: usize) {
        let [asked, read] = self.procs[id].stores;
        let done = read.max(asked.saturating_sub(pending as u32));
        while self.jobs.iter().filter(|j| j.by == id && j.to.is_empty()).count() > pending {
            let Some(at) = self.jobs.iter().position(|j| j.by == id && j.to.is_empty()) else { break };
            let job = self.jobs.remove(at);
            self.take_effect(&job);
        }
        let [stores, _] = self.own_engines(id);
        let p = &mut self.procs[id];
        p.stores[1] = done;
        p.leader.learn(stores, done);
    }

    /// Finishes some job now and then.
    pub(super) fn finish_some(&mut self) {
        if !self.jobs.is_empty() && self.dice.roll().is_multiple_of(3) {
            let n = self.dice.below(self.jobs.len());
            self.finish_job(n);
        }
    }

    /// Finishes a job when nobody can go on; half of the time the newest, so that old ones starve.
    pub(super) fn finish_late(&mut self) -> bool {
        if self.jobs.is_empty() {
            return false;
        }
        let newest = self.dice.roll().is_multiple_of(2);
        let n = if newest { self.jobs.len() - 1 } else { self.dice.below(self.jobs.len()) };
        self.finish_job(n);
        true
    }

    /// Stores of one process happen in order.
    fn finish_job(&mut self, n: usize) {
        let by = self.jobs[n].by;
        let n = match self.jobs[n].to.is_empty() {
            true => self.jobs.iter().position(|j| j.by == by && j.to.is_empty()).unwrap_or(n),
            false => n,
        };
        let job = self.jobs.remove(n);
        self.take_effect(&job);
    }

    /// Finishes what is left at the end.
    pub(super) fn drain(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.take_effect(&job);
        }
    }

    fn take_effect(&mut self, job: &Job) {
        match class_of(job.dtype) {
            Class::F => self.move_rows::<f32>(job),
            Class::I => self.move_rows::<i32>(job),
            Class::L => self.move_rows::<i64>(job),
        }
        for &key in &job.to {
            self.count(key, -job.bytes);
        }
    }

    fn move_rows<T: Lane>(&mut self, job: &Job) {
        let Some(global) = self.globals[job.param] else { return };
        let mut bytes = vec![];
        let mut line: Vec<T> = vec![];
        for r in &job.rows {
            let n = r.hi.saturating_sub(r.lo);
            if job.to.is_empty() {
                if n == 0 {
                    continue;
                }
                line.resize(n, T::default());
                let tile = &self.blocks[self.procs[job.by].block].tiles[job.tile];
                let from = r.tile[0] + r.lo as i64 * r.tile[1];
                if memory::tile_holds(tile, job.dtype, from, from + (n as i64 - 1) * r.tile[1]) {
                    memory::read(&Side::Tile(tile), job.dtype, from, r.tile[1], &mut line, &mut bytes);
                    memory::write_global(&global, job.dtype, r.tensor[0], r.tensor[1], &line, &mut bytes);
                }
                continue;
            }
            line.clear();
            line.resize(r.len, T::default());
            if n > 0 {
                let out = &mut line[r.lo..r.hi];
                memory::read(&Side::Global(global), job.dtype, r.tensor[0], r.tensor[1], out, &mut bytes);
            }
            for key in &job.to {
                put(&mut self.blocks[key.block].tiles[job.tile], job.dtype, r, &line);
            }
        }
    }

    /// What is under way is nothing yet.
    fn poison(&mut self, block: usize, tile: usize, r: &Row, dtype: DType) {
        let tile = &mut self.blocks[block].tiles[tile];
        match class_of(dtype) {
            Class::F => put(tile, dtype, r, &vec![f32::from_bits(0x7fc0_dead); r.len]),
            Class::I => put(tile, dtype, r, &vec![0x5a; r.len]),
            Class::L => put(tile, dtype, r, &vec![0x5a5a; r.len]),
        }
    }
}

fn put<T: Lane>(tile: &mut Tile, dtype: DType, r: &Row, line: &[T]) {
    if memory::tile_holds(tile, dtype, r.tile[0], r.tile[0] + (r.len as i64 - 1) * r.tile[1]) {
        memory::write_tile(tile, dtype, r.tile[0], r.tile[1], line);
    }
}
