//! Reads what only scheduled kernels have; the counterpart of `print::sched`.

use super::{Parsed, Parser, Tok};
use crate::ir::{
    BlockId, Cluster, Evict, GroupRows, IxVarId, IxVarKind, MapId, Op, Region, Ring, RingId, RingPart, Role, RoleId,
    SchedOp, SpanId, TensorMap,
};

impl Parser {
    /// A line of the tables; its first word has been looked at.
    pub(super) fn table_line(&mut self, word: &str) -> Parsed<()> {
        self.take();
        match word {
            "cluster" => {
                let size = self.count()?;
                self.word("axis")?;
                let axis = if self.eat_word("none") { None } else { Some(self.count()?) };
                self.word("rank")?;
                let rank = self.bounded(IxVarKind::Data, size)?;
                self.k.cluster = Some(Cluster { size, axis, rank });
            }
            "map" => {
                self.count()?;
                let name = self.name("a parameter")?;
                let Some(&param) = self.params.get(&name) else {
                    return self.fail(format!("no parameter is named `{name}`"));
                };
                let extents = self.indices()?;
                self.word("strides")?;
                let strides = self.indices()?;
                self.word("box")?;
                let boxes = self.counts()?;
                self.word("swizzle")?;
                let swizzle_bytes = self.count()?;
                self.k.maps.push(TensorMap { param, extents, strides, boxes, swizzle_bytes });
            }
            "role" => {
                let name = self.name("a role's name")?;
                self.word("warps")?;
                let (first_warp, warps) = (self.count()?, self.count()?);
                let instances = if self.eat_word("instances") { self.count()? } else { 1 };
                let instance = if self.eat_word("as") { Some(self.bounded(IxVarKind::Data, instances)?) } else { None };
                let registers = if self.eat_word("registers") { Some(self.count()?) } else { None };
                let one_thread = self.eat_word("one_thread");
                self.k.roles.push(Role { name, first_warp, warps, instances, instance, registers, one_thread });
            }
            _ => {
                let name = self.name("a ring's name")?;
                self.word("depth")?;
                let depth = self.count()?;
                self.word("producer")?;
                let producer = RoleId(self.count()? as u32);
                self.word("consumers")?;
                let consumers = self.counts()?.into_iter().map(|c| RoleId(c as u32)).collect();
                self.word("parts")?;
                self.sign("[")?;
                let mut parts = vec![];
                while !self.eat("]") {
                    let name = self.name("a part's name")?;
                    self.sign("(")?;
                    let mut buffers = vec![];
                    while !self.eat(")") {
                        buffers.push(self.buffer()?);
                        if !self.is(")") {
                            self.sign(",")?;
                        }
                    }
                    let reuses = if self.eat_word("reuses") { Some(self.count()? as u32) } else { None };
                    parts.push(RingPart { name, buffers, reuses });
                    if !self.is("]") {
                        self.sign(",")?;
                    }
                }
                let multicast = self.eat_word("multicast");
                let turns = if self.eat_word("turns") { self.count()? } else { 1 };
                self.k.rings.push(Ring { name, depth, producer, consumers, parts, multicast, turns });
            }
        }
        Ok(())
    }

    /// A new index variable in `0..n`.
    fn bounded(&mut self, kind: IxVarKind, n: usize) -> Parsed<IxVarId> {
        let def = self.var_name()?;
        let (zero, n) = (self.k.ix_const_id(0), self.k.ix_const_id(n as i64));
        self.new_var(def, kind, Some(zero), Some((n, -1)))
    }

    fn region(&mut self) -> Parsed<Region> {
        let (view, start) = self.place()?;
        Ok(Region { view, start })
    }

    fn ring_part(&mut self) -> Parsed<(RingId, u32)> {
        let ring = RingId(self.count()? as u32);
        self.word("part")?;
        Ok((ring, self.count()? as u32))
    }

    fn map_at(&mut self) -> Parsed<(MapId, Vec<crate::ir::IxId>)> {
        self.word("map")?;
        let map = MapId(self.count()? as u32);
        self.word("at")?;
        Ok((map, self.indices()?))
    }

    /// An op of roles and rings; `None` if the next word names none.
    pub(super) fn sched_op(&mut self, _: SpanId) -> Parsed<Option<Op>> {
        let Tok::Word(word) = self.peek().clone() else { return Ok(None) };
        self.take();
        let op = match word.as_str() {
            "roles" => {
                self.sign("{")?;
                let mut programs: Vec<(RoleId, BlockId)> = vec![];
                while !self.eat("}") {
                    self.word("program")?;
                    let role = RoleId(self.count()? as u32);
                    programs.push((role, self.body()?));
                }
                SchedOp::Roles { programs }
            }
            "tiles" => {
                self.sign("(")?;
                let mut vars = vec![];
                while !self.eat(")") {
                    let def = self.var_name()?;
                    vars.push(self.new_var(def, IxVarKind::Loop, None, None)?);
                    if !self.is(")") {
                        self.sign(",")?;
                    }
                }
                let rows = if self.eat_word("rows") {
                    let counts = self.view()?;
                    self.word("by")?;
                    Some(GroupRows { counts, tile: self.count()? })
                } else {
                    None
                };
                SchedOp::Tiles { vars, rows, body: self.body()? }
            }
            "acquire" | "take" => {
                let (ring, part) = self.ring_part()?;
                self.word("slot")?;
                let depth = self.k.rings.get(ring.0 as usize).map_or(0, |r| r.depth);
                let slot = self.bounded(IxVarKind::Data, depth)?;
                match word.as_str() {
                    "acquire" => SchedOp::Acquire { ring, part, slot },
                    _ => SchedOp::Take { ring, part, slot },
                }
            }
            "publish" | "release" => {
                let (ring, part) = self.ring_part()?;
                if word == "publish" { SchedOp::Publish { ring, part } } else { SchedOp::Release { ring, part } }
            }
            "advance" => {
                let ring = RingId(self.count()? as u32);
                self.word("by")?;
                SchedOp::Advance { ring, by: self.count()? }
            }
            "tma_load" => {
                let (map, at) = self.map_at()?;
                let src = self.region()?;
                self.sign("->")?;
                let dst = self.region()?;
                self.word("extents")?;
                let extents = self.counts()?;
                self.word("ring")?;
                let (ring, part) = self.ring_part()?;
                let multicast = self.eat_word("multicast");
                self.word("evict")?;
                let evict = self.one_of("a cache hint", |w| Evict::ALL.iter().find(|e| e.1 == w).map(|e| e.0))?;
                SchedOp::TmaLoad { map, at, src, dst, extents, ring, part, multicast, evict }
            }
            "tma_store" => {
                let (map, at) = self.map_at()?;
                let src = self.region()?;
                self.sign("->")?;
                let dst = self.region()?;
                self.word("extents")?;
                SchedOp::TmaStore { map, at, src, dst, extents: self.counts()? }
            }
            "tma_store_wait" => SchedOp::TmaStoreWait { pending: self.count()?, written: self.eat_word("written") },
            "wgmma_wait" => SchedOp::WgmmaWait { pending: self.count()? },
            "role_barrier" => SchedOp::RoleBarrier { reason: self.text()? },
            "async_fence" => SchedOp::AsyncFence { reason: self.text()? },
            "cluster_barrier" => SchedOp::ClusterBarrier { reason: self.text()? },
            "combine" => {
                let acc = self.buffer()?;
                self.word("inbox")?;
                let inbox = self.buffer()?;
                self.word("turns")?;
                SchedOp::Combine { acc, inbox, turns: self.count()? }
            }
            "grid_wait" => SchedOp::GridWait,
            "grid_allow" => SchedOp::GridAllow,
            "wgmma" | "wgmma.set" => {
                let a = self.view()?;
                self.sign(",")?;
                let b = self.view()?;
                self.sign("->")?;
                let acc = self.buffer()?;
                self.word("release")?;
                self.sign("[")?;
                let mut release = vec![];
                while !self.eat("]") {
                    release.push((RingId(self.count()? as u32), self.count()? as u32));
                    if !self.is("]") {
                        self.sign(",")?;
                    }
                }
                let hold = self.eat_word("hold");
                let scales = self.gemm_scales()?;
                SchedOp::Wgmma { a, b, acc, set: word == "wgmma.set", scales, release, hold }
            }
            _ => {
                self.at -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Op::Sched(op)))
    }
}
