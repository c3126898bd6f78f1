//! Bulk copies: boxes of tensors to and from shared memory, and words sent between blocks.
//!
//! Asking for a copy judges all its accesses; the bytes move later. Until then a destination in shared memory is poison, and
//! a source is read when the copy happens, so what was overwritten too early is copied wrongly too.

use super::engine::{Action, Queue};
use super::{Actor, ActorKind, Code, Machine, POISON, Place, Swizzle, Use, Way, site};

/// A box of a tensor as the copy engine sees it, in the machine's own copy of the tensor. Axes count from the innermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element.
    pub address: u64,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Elements along each axis.
    pub extents: Vec<u64>,
    /// Bytes between neighbours along each axis but the innermost, where they are adjacent.
    pub strides: Vec<u64>,
    /// Elements of the box along each axis.
    pub box_extents: Vec<u32>,
    /// How the rows of the box lie in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMap {
    /// What the driver would refuse, or is not modelled.
    fn refusal(&self) -> Option<String> {
        let rank = self.extents.len();
        let row = self.row_bytes();
        if !(1..=5).contains(&rank) || self.strides.len() + 1 != rank || self.box_extents.len() != rank {
            return Some(format!(
                "{rank} extents, {} strides and {} box extents",
                self.strides.len(),
                self.box_extents.len()
            ));
        }
        if !self.address.is_multiple_of(16) || self.strides.iter().any(|s| !s.is_multiple_of(16)) {
            return Some("the address and the strides must be multiples of 16 bytes".into());
        }
        // A tensor without elements is allowed: everything lies outside of it, and launches describe it by a stand-in.
        if self.box_extents.iter().any(|e| !(1..=256).contains(e)) {
            return Some("box extents are 1 to 256".into());
        }
        if !row.is_multiple_of(16) {
            return Some(format!("rows of the box have {row} bytes, which must be a multiple of 16"));
        }
        if self.swizzle != Swizzle::None && row != self.swizzle.span() {
            let span = self.swizzle.span();
            return Some(format!(
                "rows of the box have {row} bytes, the swizzle is over {span}; only equal ones are modelled"
            ));
        }
        None
    }

    fn row_bytes(&self) -> usize {
        self.box_extents.first().map_or(0, |&e| e as usize * self.element_bytes)
    }

    /// Rows of the box and its bytes.
    fn size(&self) -> (usize, usize) {
        let rows = self.box_extents.iter().skip(1).map(|&e| e as usize).product();
        (rows, rows * self.row_bytes())
    }

    /// What of a row of the box at `at` lies in the tensor: its first byte in the row, its address, its bytes.
    fn row(&self, at: [i32; 5], row: usize) -> Option<(usize, u64, usize)> {
        let mut address = self.address as i64;
        let mut rest = row;
        for (axis, &extent) in self.extents.iter().enumerate().skip(1) {
            let size = self.box_extents[axis] as usize;
            let x = i64::from(at[axis]) + (rest % size) as i64;
            rest /= size;
            if x < 0 || x >= extent as i64 {
                return None;
            }
            address += x * self.strides[axis - 1] as i64;
        }
        let (first, width) = (i64::from(at[0]), i64::from(self.box_extents[0]));
        let from = first.max(0);
        let to = (first + width).min(self.extents[0] as i64);
        if from >= to {
            return None;
        }
        let size = self.element_bytes as i64;
        Some((((from - first) * size) as usize, (address + from * size) as u64, ((to - from) * size) as usize))
    }
}

/// A thread's bulk stores.
#[derive(Debug, Default)]
pub(super) struct Stores {
    /// Reading the sources, writing the tensors.
    actors: Option<(Actor, Actor)>,
    /// Groups that are closed, and those whose sources are known to be read.
    closed: u32,
    read: u32,
    /// A store is in no group yet.
    open: bool,
    /// Place of the last one.
    line: u32,
}

/// A load that has not taken effect in one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    map: usize,
    at: [i32; 5],
    to: (usize, usize),
    barrier: (usize, usize),
    phase: u32,
    line: u32,
}

/// A store that has not taken effect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    map: usize,
    at: [i32; 5],
    from: (usize, usize),
    group: u32,
}

/// Words on their way to another block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send {
    to: (usize, usize),
    bytes: [u8; 16],
    barrier: (usize, usize),
    phase: u32,
    line: u32,
}

/// Alignment of boxes in shared memory.
const ALIGN: usize = 128;

impl Machine {
    /// Adds a tensor map and gives its number.
    pub fn add_map(&mut self, map: TensorMap) -> usize {
        if let Some(why) = map.refusal() {
            let n = self.maps.len();
            self.findings.report(Code::TensorMap, 0, 0, || format!("tensor map {n} cannot be made: {why}"));
        }
        self.maps.push(map);
        self.maps.len() - 1
    }

    /// The map with this number if it fits boxes at `axes` coordinates.
    fn map(&mut self, map: u64, axes: usize, line: u32) -> Option<(usize, TensorMap)> {
        let found = self.maps.get(map as usize).filter(|m| m.refusal().is_none()).cloned();
        match found {
            Some(m) if m.extents.len() == axes => Some((map as usize, m)),
            Some(m) => {
                let text = format!("{axes} coordinates for a tensor map of {} axes", m.extents.len());
                self.report(Code::TensorMap, line, text);
                None
            }
            None => {
                self.report(Code::TensorMap, line, "what is passed as a tensor map is none".into());
                None
            }
        }
    }

    /// Copies the box at `at` to the same place of the blocks in `ranks` (`None`: the running one), and counts its bytes on the
    /// mbarrier at the same place of each.
    pub fn tma_load(&mut self, to: u32, map: u64, full: u32, at: &[i32], ranks: Option<u32>, line: u32) {
        self.count(line);
        let Some((index, map)) = self.map(map, at.len(), line) else { return };
        let (rows, bytes) = map.size();
        let Some((own, to)) = self.locate_own(to, bytes, ALIGN, "a bulk copy", line) else { return };
        let Some((_, full)) = self.locate_own(full, 8, 8, "an mbarrier", line) else { return };
        let ranks = ranks.unwrap_or(1 << own);
        if ranks == 0 || u64::from(ranks) >= 1 << self.shared.len() {
            let text = format!("a copy to the blocks {ranks:#b} of a cluster of {}", self.shared.len());
            self.report(Code::ClusterRank, line, text);
            return;
        }
        let mut place = [0; 5];
        place[..at.len()].copy_from_slice(at);
        for rank in (0..self.shared.len()).filter(|r| ranks >> r & 1 != 0) {
            if self.usable_at(rank, full, true, line).is_none() {
                continue;
            }
            let Some((actor, time)) = self.blocks[rank].mbarriers.get(&full).map(|b| b.under_way()) else { continue };
            if rank != own {
                self.visit(rank, Some((actor, time)), line);
                if self.blocks[rank].alive == 0 {
                    continue;
                }
            }
            let way = Way::Async(Some(map.swizzle));
            let now = self.stamp_async(self.current, actor, time, line, way);
            let _ = self.touch(Use::Write, Place::Shared(rank, to), bytes, now);
            for row in 0..rows {
                let Some((_, address, length)) = map.row(place, row) else { continue };
                match self.global.locate_run(address, length, Use::Read) {
                    Ok((tensor, offset)) => {
                        let now = self.stamp_async(self.current, actor, time, line, Way::Async(None));
                        let _ = self.touch(Use::Read, Place::Tensor(tensor, offset), length, now);
                    }
                    Err(r) => {
                        self.refuse(r, "a bulk copy reads", line);
                        return;
                    }
                }
            }
            self.shared[rank].write(to, &vec![POISON; bytes]);
            let phase = self.phase(rank, full);
            let load = Load { map: index, at: place, to: (rank, to), barrier: (rank, full), phase, line };
            self.begin(Queue::Free, Action::Load(load));
        }
    }

    pub(super) fn finish_load(&mut self, load: &Load) {
        let map = self.maps[load.map].clone();
        let (rows, bytes) = map.size();
        let row_bytes = map.row_bytes();
        let (rank, to) = load.to;
        // The pattern of the swizzle is one of addresses.
        let base = 1024 + to;
        let mut buffer = vec![0; row_bytes];
        for row in 0..rows {
            buffer.fill(0);
            if let Some((skip, address, length)) = map.row(load.at, row)
                && let Ok(from) = self.global.locate_run(address, length, Use::Read)
            {
                self.global.read(from, &mut buffer[skip..skip + length]);
            }
            for (i, piece) in buffer.chunks(16).enumerate() {
                self.shared[rank].write(map.swizzle.apply(base + row * row_bytes + i * 16) - 1024, piece);
            }
        }
        self.count_bytes(load.barrier, bytes, load.phase, load.line);
    }

    /// Copies a box of shared memory to the tensor, without what lies outside of it.
    pub fn tma_store(&mut self, map: u64, from: u32, at: &[i32], line: u32) {
        self.count(line);
        let Some((index, map)) = self.map(map, at.len(), line) else { return };
        let (rows, bytes) = map.size();
        let Some((rank, from)) = self.locate_own(from, bytes, ALIGN, "a bulk store", line) else { return };
        let t = self.current;
        let (reads, writes) = match self.threads[t].stores.actors {
            Some(actors) => actors,
            None => (self.new_actor(ActorKind::StoreReads(t)), self.new_actor(ActorKind::StoreWrites(t))),
        };
        let stores = &mut self.threads[t].stores;
        stores.actors = Some((reads, writes));
        (stores.open, stores.line) = (true, line);
        let group = stores.closed + 1;
        let mut place = [0; 5];
        place[..at.len()].copy_from_slice(at);
        let now = self.stamp_async(t, reads, group, line, Way::Async(None));
        let _ = self.touch(Use::Read, Place::Shared(rank, from), bytes, now);
        for row in 0..rows {
            let Some((_, address, length)) = map.row(place, row) else { continue };
            match self.global.locate_run(address, length, Use::Write) {
                Ok((tensor, offset)) => {
                    let now = self.stamp_async(t, writes, group, line, Way::Async(None));
                    let _ = self.touch(Use::Write, Place::Tensor(tensor, offset), length, now);
                }
                Err(r) => {
                    self.refuse(r, "a bulk store writes", line);
                    return;
                }
            }
        }
        let store = Store { map: index, at: place, from: (rank, from), group };
        self.begin(Queue::Stores(t), Action::Store(store));
    }

    pub(super) fn finish_store(&mut self, store: &Store) {
        let map = self.maps[store.map].clone();
        let row_bytes = map.row_bytes();
        let (rank, from) = store.from;
        let mut buffer = vec![0; row_bytes];
        for row in 0..map.size().0 {
            let Some((skip, address, length)) = map.row(store.at, row) else { continue };
            for (i, piece) in buffer.chunks_mut(16).enumerate() {
                let at = map.swizzle.apply(1024 + from + row * row_bytes + i * 16) - 1024;
                self.shared[rank].read(at, piece);
            }
            if let Ok(to) = self.global.locate_run(address, length, Use::Write) {
                self.global.write(to, &buffer[skip..skip + length]);
            }
        }
    }

    /// Closes the running thread's group of bulk stores.
    pub fn tma_store_commit(&mut self, line: u32) {
        self.count(line);
        let stores = &mut self.threads[self.current].stores;
        stores.closed += 1;
        stores.open = false;
    }

    /// Waits until at most `pending` of the running thread's closed groups have not read their sources, or, unless `read_only`,
    /// have not written their tensors.
    pub fn tma_store_wait(&mut self, pending: u32, read_only: bool, line: u32) {
        self.count(line);
        let t = self.current;
        let done = self.threads[t].stores.closed.saturating_sub(pending);
        self.finish_queue(Queue::Stores(t), |action| matches!(action, Action::Store(s) if s.group <= done));
        let thread = &mut self.threads[t];
        let Some((reads, writes)) = thread.stores.actors else { return };
        thread.stores.read = thread.stores.read.max(done);
        thread.clock.learn(reads, done);
        if !read_only {
            thread.clock.learn(writes, done);
        }
    }

    /// Sends 16 bytes to a block of the cluster and counts them on an mbarrier there.
    pub fn cluster_send(&mut self, to: u32, full: u32, words: [u32; 4], line: u32) {
        self.count(line);
        let Some((rank, to)) = self.locate(to, 16, 16, "a store to another block", line) else { return };
        let Some((barrier_rank, full)) = self.usable(full, true, line) else { return };
        if rank != barrier_rank {
            let text = format!("data for rank {rank} is counted on an mbarrier of rank {barrier_rank}");
            self.report(Code::ClusterRank, line, text);
            return;
        }
        let Some((actor, time)) = self.blocks[rank].mbarriers.get(&full).map(|b| b.under_way()) else { return };
        if rank != self.rank() {
            self.visit(rank, Some((actor, time)), line);
            if self.blocks[rank].alive == 0 {
                return;
            }
        }
        let now = self.stamp_async(self.current, actor, time, line, Way::Generic);
        let _ = self.touch(Use::Write, Place::Shared(rank, to), 16, now);
        self.shared[rank].write(to, &[POISON; 16]);
        let mut bytes = [0; 16];
        for (piece, word) in bytes.chunks_mut(4).zip(words) {
            piece.copy_from_slice(&word.to_le_bytes());
        }
        let phase = self.phase(rank, full);
        let send = Send { to: (rank, to), bytes, barrier: (rank, full), phase, line };
        self.begin(Queue::Free, Action::Send(send));
    }

    pub(super) fn finish_send(&mut self, send: &Send) {
        self.shared[send.to.0].write(send.to.1, &send.bytes);
        self.count_bytes(send.barrier, 16, send.phase, send.line);
    }

    /// A thread leaves: its stores must have read their sources, which go with the block.
    pub(super) fn check_stores(&mut self, t: usize) {
        let stores = &self.threads[t].stores;
        let line = stores.line;
        if stores.open || stores.actors.is_some() && stores.read < stores.closed {
            let who = self.who(t);
            self.findings.report(Code::LeftRunning, line, 0, || {
                format!("{who} leaves without having waited for its bulk store of {} to read shared memory", site(line))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            address: 4096,
            element_bytes: 2,
            extents: vec![100, 7, 3],
            strides: vec![256, 2048],
            box_extents: vec![64, 4, 2],
            swizzle: Swizzle::B128,
        }
    }

    #[test]
    fn boxes_are_clipped_at_the_tensor() {
        let m = map();
        assert_eq!((m.refusal(), m.size(), m.row_bytes()), (None, (8, 1024), 128));
        // Rows count along the second axis first.
        assert_eq!(m.row([0, 0, 0, 0, 0], 0), Some((0, 4096, 128)));
        assert_eq!(m.row([0, 2, 1, 0, 0], 5), Some((0, 4096 + 3 * 256 + 2 * 2048, 128)));
        // Past the end and before the start of the innermost axis.
        assert_eq!(m.row([64, 0, 0, 0, 0], 0), Some((0, 4096 + 128, 72)));
        assert_eq!(m.row([-8, 0, 0, 0, 0], 1), Some((16, 4096 + 256, 112)));
        assert_eq!(m.row([100, 0, 0, 0, 0], 0), None);
        // Outside along the others.
        assert_eq!(
            (m.row([0, 4, 0, 0, 0], 3), m.row([0, -1, 0, 0, 0], 0), m.row([0, 0, 2, 0, 0], 4)),
            (None, None, None)
        );
    }

    #[test]
    fn maps_that_the_driver_refuses() {
        let bad = |change: &dyn Fn(&mut TensorMap)| {
            let mut m = map();
            change(&mut m);
            m.refusal().is_some()
        };
        assert!(bad(&|m| m.address += 8));
        assert!(bad(&|m| m.strides[0] = 200));
        assert!(bad(&|m| m.box_extents[1] = 257));
        assert!(bad(&|m| m.box_extents[0] = 60));
        assert!(bad(&|m| m.box_extents[0] = 128));
        assert!(bad(&|m| m.swizzle = Swizzle::B64));
        assert!(bad(&|m| m.extents.truncate(2)));
        assert!(!bad(&|m| m.swizzle = Swizzle::None));
    }
}
