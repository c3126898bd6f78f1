//! Rings: positions, and the barriers that hand slots over.
//!
//! Each part of each slot has a full and an empty barrier. A role's position on a ring is a slot and the parity of its turn;
//! both start at 0 and are never reset. A fresh barrier counts as past the phase of parity 1, so the producer's first turn
//! needs no special case. Barriers have block scope also where other blocks arrive on them: what they guard moves through
//! the async proxy.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::prelude::Snippet;
use crate::ir::{BlockId, IxVarId, Op, OpId, RingId, RoleId, SchedOp};

impl Emitter<'_> {
    /// Declares a role's positions.
    pub fn ring_positions(&mut self, role: RoleId) {
        let uses = |ring: usize| {
            let r = &self.k.rings[ring];
            r.producer == role || r.consumers.contains(&role)
        };
        let used: Vec<usize> = (0..self.k.rings.len()).filter(|&r| uses(r)).collect();
        for r in used {
            let names = self.frame.rings[r].clone();
            let turns = self.k.rings[r].turns;
            let instance = self.k.roles[role.0 as usize].instance.and_then(|v| self.index.get(&v).cloned());
            let first = match instance.filter(|_| turns > 1 && self.k.rings[r].producer != role) {
                Some(i) if self.k.roles[role.0 as usize].instances == turns => i.s,
                Some(i) => format!("{} % {turns}", i.s),
                None => "0".into(),
            };
            self.line(format!("u32 {} = {first}, {} = 0;", names.slot, names.parity));
        }
        if let (Some(names), Some((adds, _))) = (self.frame.inbox.clone(), self.shared_sum())
            && adds == role
        {
            self.line(format!("u32 {} = 0;", names.parity));
        }
    }

    fn barrier(&self, ring: RingId, part: u32, empty: bool) -> String {
        self.frame.rings[ring.0 as usize].parts[part as usize][usize::from(empty)].clone()
    }

    /// Declares the slot of the current item.
    fn declare_slot(&mut self, ring: RingId, slot: IxVarId) {
        let names = self.frame.rings[ring.0 as usize].clone();
        let name = self.names.declare(&self.k.ix_var(slot).name.clone());
        self.line(format!("const {} {name} = {};", self.index_type(), names.slot));
        self.index.insert(slot, Text::name(name));
    }

    /// Part that uses the memory of another one, and the other way round.
    fn sharer(&self, ring: RingId, part: u32) -> (Option<u32>, Option<u32>) {
        let parts = &self.k.rings[ring.0 as usize].parts;
        let after = parts.iter().position(|p| p.reuses == Some(part)).map(|p| p as u32);
        (parts[part as usize].reuses, after)
    }

    pub fn acquire(&mut self, id: OpId, ring: RingId, part: u32, slot: IxVarId) {
        self.need(Snippet::Mbarrier);
        let names = self.frame.rings[ring.0 as usize].clone();
        self.declare_slot(ring, slot);
        let (before, mut after) = self.sharer(ring, part);
        let mut last = part;
        while let Some(p) = after {
            last = p;
            after = self.sharer(ring, p).1;
        }
        match before {
            // The memory is free once the part that had it before was read this turn.
            Some(p) => {
                let empty = self.barrier(ring, p, true);
                self.line(format!("mbar_wait({empty} + 8 * {}, {});", names.slot, names.parity));
            }
            None => {
                let empty = self.barrier(ring, last, true);
                self.line(format!("mbar_wait({empty} + 8 * {}, {} ^ 1);", names.slot, names.parity));
            }
        }
        if !self.copied(ring, part) || self.either(ring, part) {
            return;
        }
        let Some(bytes) = self.expected(ring, part) else {
            self.refuse(id, "a part whose copies are not the same each time".into());
            return;
        };
        let full = self.barrier(ring, part, false);
        self.by_one(&format!("mbar_arrive_expect_tx({full} + 8 * {}, {bytes});", names.slot));
    }

    /// Prints statements for one thread of the role.
    pub fn by_one(&mut self, line: &str) {
        if self.role.is_some_and(|r| r.one_thread) {
            self.line(line);
        } else {
            self.used_warp = true;
            self.line(format!("if (warp == 0 && elect_one()) {line}"));
        }
    }

    /// Bytes that the copies into a part of one item bring; `None` if that differs.
    fn expected(&self, ring: RingId, part: u32) -> Option<usize> {
        let program = self.program(self.k.rings[ring.0 as usize].producer)?;
        let mut found = vec![];
        self.sums(program, ring, part, &mut found)?;
        let first = *found.first()?;
        found.iter().all(|&f| f == first).then_some(first)
    }

    /// Adds the bytes between each acquire and publish of a part in a block; returns those outside of such a pair.
    fn sums(&self, block: BlockId, ring: RingId, part: u32, found: &mut Vec<usize>) -> Option<usize> {
        let mut open = 0;
        for &id in &self.k.block(block).ops {
            match &self.k.op(id).op {
                Op::Sched(SchedOp::TmaLoad { dst, extents, ring: r, part: p, .. }) if (*r, *p) == (ring, part) => {
                    let elements: usize = extents.iter().product();
                    open += elements * self.k.view(dst.view).dtype.bits() / 8;
                }
                Op::Sched(SchedOp::Publish { ring: r, part: p }) if (*r, *p) == (ring, part) => {
                    found.push(std::mem::take(&mut open));
                }
                Op::For { lo, hi, body, .. } => {
                    let inner = self.sums(*body, ring, part, found)?;
                    if inner > 0 {
                        let turns = self.k.ix_const(*hi)? - self.k.ix_const(*lo)?;
                        open += inner * turns.max(0) as usize;
                    }
                }
                Op::If { then, els, .. } => {
                    let (a, b) = (self.sums(*then, ring, part, found)?, self.sums(*els, ring, part, found)?);
                    if a != b {
                        return None;
                    }
                    open += a;
                }
                op => {
                    for b in crate::ir::effects::bodies(op) {
                        open += self.sums(b, ring, part, found)?;
                    }
                }
            }
        }
        Some(open)
    }

    /// True if copies fill some items of a part and threads others: each copy then says what it brings, and one thread
    /// arrives for all where the item is published.
    pub fn either(&self, ring: RingId, part: u32) -> bool {
        self.copied(ring, part) && crate::valid::threads_fill(self.k, ring, part)
    }

    /// Copies make a part full by themselves; what threads wrote needs their arrivals.
    pub fn publish(&mut self, ring: RingId, part: u32) {
        let names = self.frame.rings[ring.0 as usize].clone();
        let full = self.barrier(ring, part, false);
        if self.either(ring, part) {
            self.by_one(&format!("mbar_arrive({full} + 8 * {});", names.slot));
            return;
        }
        if self.copied(ring, part) {
            return;
        }
        if self.role.is_some_and(|r| r.one_thread) {
            self.line(format!("mbar_arrive({full} + 8 * {});", names.slot));
        } else {
            self.used_warp = true;
            self.line("__syncwarp();");
            self.line(format!("if (lane == 0) mbar_arrive({full} + 8 * {});", names.slot));
        }
    }

    pub fn take(&mut self, ring: RingId, part: u32, slot: IxVarId) {
        self.need(Snippet::Mbarrier);
        let names = self.frame.rings[ring.0 as usize].clone();
        self.declare_slot(ring, slot);
        let full = self.barrier(ring, part, false);
        self.line(format!("mbar_wait({full} + 8 * {}, {});", names.slot, names.parity));
    }

    /// One arrival a warp; with copies shared in the cluster, at each block's barrier. `gather`: lanes may still be reading.
    pub fn release(&mut self, ring: RingId, part: u32, gather: bool) {
        let names = self.frame.rings[ring.0 as usize].clone();
        let empty = format!("{} + 8 * {}", self.barrier(ring, part, true), names.slot);
        let size = self.cluster_size();
        let shared = self.k.rings[ring.0 as usize].multicast && size > 1;
        if shared {
            self.need(Snippet::Cluster);
        }
        match (self.role.is_some_and(|r| r.one_thread), shared) {
            (true, false) => self.line(format!("mbar_arrive({empty});")),
            (true, true) => self.line(format!("for (int r = 0; r < {size}; ++r) mbar_arrive_cluster({empty}, r);")),
            (false, _) => {
                self.used_warp = true;
                if gather {
                    self.line("__syncwarp();");
                }
                self.line(match shared {
                    true => format!("if (lane < {size}) mbar_arrive_cluster({empty}, lane);"),
                    false => format!("if (lane == 0) mbar_arrive({empty});"),
                });
            }
        }
    }

    pub fn advance(&mut self, ring: RingId, by: usize) {
        let n = self.frame.rings[ring.0 as usize].clone();
        let depth = self.k.rings[ring.0 as usize].depth;
        let (turns, by) = (by / depth, by % depth);
        if turns % 2 == 1 {
            self.line(format!("{} ^= 1;", n.parity));
        }
        let wrap = format!("{} ^= 1; }}", n.parity);
        match by {
            0 => {}
            1 => self.line(format!("if (++{0} == {depth}) {{ {0} = 0; {wrap}", n.slot)),
            _ => self.line(format!("if (({0} += {by}) >= {depth}) {{ {0} -= {depth}; {wrap}", n.slot)),
        }
    }
}
