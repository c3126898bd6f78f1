//! A plain kernel and a schedule become a scheduled kernel.
//!
//! Here: what of the schedule fits, and what stands around the two programs, which `load` and `math` make.
//!
//! Before: `tile { acc = 0; for k { copy a, b; acc += a . b }; store acc }` on a grid of tiles. After: two roles that each
//! walk over the tiles of their block. The loading one fills a ring with the copies, and with the scales where those can be
//! copied; the multiplying one, once a warp group with that group's rows, takes them, multiplies and stores.

use super::epilogue;
use super::memory;
use super::parts::{Parts, ProductPart, ROW_BYTES, Reason, name_of, unit_depth};
use super::scales::{self, ScaleTiles};
use super::{Schedule, views};
use crate::analysis::Ranges;
use crate::ir::{
    BlockId, BufferId, Cloner, Cluster, IxVar, IxVarId, IxVarKind, Kernel, Op, OpId, Ring, RingId, RingPart, Role,
    RoleId, SchedOp, SpanId, Stage, TensorMap,
};
use crate::target::Caps;

pub(super) const RING: RingId = RingId(0);
pub(super) const LOOP_PART: u32 = 0;
const LOAD: RoleId = RoleId(0);
pub(super) const MATH: RoleId = RoleId(1);
/// Bytes of shared memory left to barriers.
const BARRIER_BYTES: usize = 1024;
/// Registers a block's threads share, and the most one thread can have.
const REGISTERS: usize = 65536;
const MOST: usize = 255;

/// A kernel on its way.
pub(super) struct Apply<'a> {
    pub k: Kernel,
    pub s: &'a Schedule,
    pub parts: Parts,
    /// Warp groups, and how many of them take turns.
    pub instances: usize,
    pub turns: usize,
    /// Rows of a warp group.
    pub rows: usize,
    pub depth: usize,
    pub instance: Option<IxVarId>,
    pub cluster: Option<Cluster>,
    pub scales: ScaleTiles,
    pub maps: Vec<TensorMap>,
    pub staging: Vec<BufferId>,
    pub inbox: Option<BufferId>,
}

/// See the file's head.
///
/// # Errors
/// What of the schedule the kernel or the target cannot have.
pub fn apply(kernel: &Kernel, s: &Schedule, caps: &Caps) -> Result<Kernel, Reason> {
    let parts = Parts::find(kernel)?;
    let [ring] = &s.rings[..] else { return Err(format!("it has {} rings, this form has one", s.rings.len())) };
    let (Some(load), Some(math)) = (s.role_named(&ring.from), s.role_named(&ring.to)) else {
        return Err(format!("the ring `{}` joins roles that do not exist", ring.name));
    };
    if !load.one_thread || load.instances != 1 || s.roles.len() != 2 || math.warps != 4 || math.one_thread {
        return Err("this form has one role that copies from one thread and one of warp groups".into());
    }
    if !s.persistent {
        return Err("blocks of this form walk over the tiles: set `persistent`".into());
    }
    let known: Vec<String> = known_names(kernel, &parts);
    let labels = s.place.keys().chain(s.copies.keys()).chain(s.unroll.keys()).chain(&s.staged);
    if let Some(wrong) = labels.into_iter().find(|l| !known.contains(l)) {
        return Err(format!("no op is called `{wrong}`; there are {}", known.join(", ")));
    }
    let turns = ring.turns.max(1);
    let sharing = math.instances / turns;
    if !ring.depth.is_multiple_of(turns) {
        return Err(format!("{turns} warp groups in turn do not divide the {} slots of `{}`", ring.depth, ring.name));
    }
    let rows = parts.tile[0] / sharing.max(1);
    if rows == 0 || sharing * turns != math.instances || rows * sharing != parts.tile[0] || rows % 64 != 0 {
        return Err(format!(
            "{} warp groups, {turns} of which take turns, do not share {} rows in pieces of 64",
            math.instances, parts.tile[0]
        ));
    }
    sum_parts(kernel, s, &parts, turns)?;
    for p in &parts.products {
        operands(kernel, &parts, p)?;
    }
    let mut a = Apply {
        k: kernel.clone(),
        s,
        instances: math.instances,
        turns,
        rows,
        depth: ring.depth,
        instance: None,
        cluster: None,
        scales: ScaleTiles::new(),
        maps: vec![],
        staging: vec![],
        inbox: None,
        parts,
    };
    a.run(caps, load.warps)
}

/// Checks that the parts of a sum are as many as run beside each other, and that those in turns are as long.
fn sum_parts(k: &Kernel, s: &Schedule, parts: &Parts, turns: usize) -> Result<(), Reason> {
    let blocks = s.cluster.filter(|c| c.axis.is_none()).map_or(1, |c| c.size);
    let count = parts.split.as_ref().map_or(1, |p| p.count);
    if blocks * turns != count {
        return Err(format!("{blocks} blocks of {turns} turns do not make the {count} parts of the sum"));
    }
    let (Some(split), Some((_, lo, hi))) = (&parts.split, parts.loop_of(k)) else { return Ok(()) };
    if turns > 1 && [lo, hi].iter().any(|&e| views::depends(k, e, split.var, &split.before)) {
        return Err("parts of the sum that take turns are not all as long".into());
    }
    Ok(())
}

/// Names a schedule may use for this kernel.
fn known_names(k: &Kernel, parts: &Parts) -> Vec<String> {
    let mut names: Vec<String> = parts.copies.iter().map(|c| name_of(k, c.op, &k.buffer(c.tile).name)).collect();
    names.extend(parts.products.iter().map(|p| name_of(k, p.op, &k.buffer(parts.acc).name)));
    names.push(name_of(k, parts.main, "loop"));
    for &id in &parts.after {
        names.extend(epilogue::stores(k, parts, id).iter().map(|st| name_of(k, id, &st.name)));
    }
    names.dedup();
    names
}

/// Checks that the matrix unit takes the operands as the copy engine leaves them.
fn operands(k: &Kernel, parts: &Parts, p: &ProductPart) -> Result<(), Reason> {
    let (a, b) = (k.view(p.a), k.view(p.b));
    if a.dtype != b.dtype {
        return Err(format!("the matrix unit does not multiply {} by {}", a.dtype, b.dtype));
    }
    let Some(step) = unit_depth(a.dtype) else { return Err(format!("the matrix unit does not multiply {}", a.dtype)) };
    for (v, row, column) in [(p.a, 0, 1), (p.b, 1, 0)] {
        let view = k.view(v);
        let Some(copy) = parts.copy_of(k, v) else { return Err("an operand is not copied in the loop".into()) };
        let width = copy.extents[1];
        let es = view.dtype.bits() / 8;
        if !(width * es).is_multiple_of(ROW_BYTES) {
            return Err(format!(
                "a row of `{}` has {} bytes, not a multiple of 128",
                k.buffer(copy.tile).name,
                width * es
            ));
        }
        if k.ix_const(view.strides[row]) != Some(width as i64) || k.ix_const(view.strides[column]) != Some(1) {
            return Err(format!("the rows of `{}` are not along K", k.buffer(copy.tile).name));
        }
        let Some(offset) = k.ix_const(view.offset) else { return Err("an operand's part is not known".into()) };
        let depth = k.ix_const(view.extents[column]).unwrap_or(0);
        if offset < 0 || offset >= width as i64 || offset % step as i64 != 0 || depth % step as i64 != 0 || depth == 0 {
            return Err(format!("the part of K of `{}` is not in steps of {step}", k.buffer(copy.tile).name));
        }
    }
    Ok(())
}

/// Checks the register budgets: what the pool of a block gives, and what the accumulators need. Gives what is left.
fn registers(s: &Schedule, parts: &Parts, rows: usize) -> Result<usize, Reason> {
    let warps: usize = s.roles.iter().map(|r| r.warps * r.instances).sum();
    let groups = warps / 4;
    let budget: usize = s.roles.iter().map(|r| r.registers.unwrap_or(0) * r.instances * r.warps / 4).sum();
    // A block of this many threads gets as many registers a thread as leave one block resident, in steps of 8.
    let pool = REGISTERS / (groups * 128).max(1) / 8 * 8 * groups;
    if s.roles.iter().all(|r| r.registers.is_some()) && budget > pool {
        return Err(format!("the roles ask for {budget} registers a thread of each group together, there are {pool}"));
    }
    let scaled = parts.products.iter().any(|p| p.scales.is_some());
    let held = rows / 64 * parts.tile[1] / 2 + if scaled { parts.tile[1] / 2 } else { 0 };
    let even = (REGISTERS / (warps.next_multiple_of(4) * 32) / 8 * 8).min(MOST);
    let math = s.roles.iter().filter(|r| !r.one_thread).filter_map(|r| r.registers).min().unwrap_or(even);
    // Addresses, scales and loop state take 24 more: 128 accumulators compile without spills in a budget of 152.
    if held + 24 > math {
        return Err(format!("a thread holds {held} accumulators and needs 24 registers more, its budget is {math}"));
    }
    Ok(math - held - 24)
}

impl Apply<'_> {
    fn run(&mut self, caps: &Caps, load_warps: usize) -> Result<Kernel, Reason> {
        let span = self.k.span;
        if self.instances > 1 {
            self.instance = Some(self.new_var("group", IxVarKind::Data, self.instances, span));
        }
        if let Some(c) = self.s.cluster {
            let axes = self.k.grid.len();
            if c.axis.is_some_and(|a| a >= axes) || c.size < 2 || c.size > 8 {
                return Err(format!("a cluster of {} along axis {:?} of {axes} does not exist", c.size, c.axis));
            }
            if self.parts.rows.is_some() && c.axis == Some(0) {
                return Err("neighbours along the rows of groups would do tiles without rows".into());
            }
            let rank = self.new_var("rank", IxVarKind::Data, c.size, span);
            self.cluster = Some(Cluster { size: c.size, axis: c.axis, rank });
        }
        let ranges = Ranges::new(&self.k);
        let spare = registers(self.s, &self.parts, self.rows)?;
        self.scales = scales::stage(&mut self.k, &ranges, &self.parts, self.depth, spare);
        if self.parts.split.is_some() {
            self.inbox = Some(self.new_inbox());
        }
        let copies = self.parts.copies.clone();
        let mut tiles: Vec<BufferId> = vec![];
        for c in &copies {
            let depth = self.depth;
            let b = &mut self.k.buffers[c.tile.0 as usize];
            b.extents.insert(0, depth);
            b.memory = Some(memory::operand_layout(b));
            tiles.push(c.tile);
        }
        tiles.extend(self.scales.values().map(|s| s.tile));
        let load = self.load_program(&ranges, &copies)?;
        let math = self.math_program(&ranges)?;
        // The staging tiles follow the operands, which need the stricter alignment first.
        let order: Vec<BufferId> = copies
            .iter()
            .map(|c| c.tile)
            .chain(self.staging.iter().copied())
            .chain(self.scales.values().map(|s| s.tile))
            .chain(self.inbox)
            .collect();
        let used = memory::place(&mut self.k, &order);
        if used + BARRIER_BYTES > caps.shared_bytes {
            return Err(format!(
                "{used} bytes of tiles and {BARRIER_BYTES} for barriers do not fit {} bytes of shared memory",
                caps.shared_bytes
            ));
        }
        self.finish(load, math, tiles, load_warps)
    }

    fn finish(
        &mut self,
        load: BlockId,
        math: BlockId,
        tiles: Vec<BufferId>,
        load_warps: usize,
    ) -> Result<Kernel, Reason> {
        let math_warps = 4 * self.instances;
        let role = |name: &str| self.s.role_named(name).and_then(|r| r.registers);
        let (from, to) = (self.s.rings[0].from.clone(), self.s.rings[0].to.clone());
        let roles = vec![
            Role {
                name: from.clone(),
                first_warp: math_warps,
                warps: load_warps,
                instances: 1,
                instance: None,
                registers: role(&from),
                one_thread: true,
            },
            Role {
                name: to.clone(),
                first_warp: 0,
                warps: 4,
                instances: self.instances,
                instance: self.instance,
                registers: role(&to),
                one_thread: false,
            },
        ];
        let neighbours = self.cluster.as_ref().is_some_and(|c| c.axis.is_some());
        let multicast = self.s.copies.values().any(|c| c.multicast) && neighbours;
        let ring = Ring {
            name: self.s.rings[0].name.clone(),
            depth: self.depth,
            producer: LOAD,
            consumers: vec![MATH],
            parts: vec![RingPart { name: "all".into(), buffers: tiles, reuses: None }],
            multicast,
            turns: self.turns,
        };
        let like = self.parts.main;
        let mut k = self.k.clone();
        let mut c = Cloner::new(&mut k);
        let own = self.staging.iter().chain(&self.inbox);
        let mut body: Vec<OpId> = own.map(|&buffer| c.push(Op::Alloc { buffer }, like)).collect();
        if self.s.dependent {
            body.push(c.push(Op::Sched(SchedOp::GridAllow), like));
        }
        body.push(c.push(Op::Sched(SchedOp::Roles { programs: vec![(LOAD, load), (MATH, math)] }), like));
        if multicast || !neighbours && self.cluster.is_some() {
            let reason = "a block outlives its neighbours' arrivals and copies into it".to_string();
            body.push(c.push(Op::Sched(SchedOp::ClusterBarrier { reason }), like));
        }
        let body = c.new_block(body);
        k.body = body;
        k.roles = roles;
        k.rings = vec![ring];
        k.cluster = self.cluster.clone();
        k.maps = self.maps.clone();
        k.warps = math_warps + load_warps;
        k.stage = Stage::Scheduled;
        Ok(k)
    }

    fn new_var(&mut self, name: &str, kind: IxVarKind, count: usize, span: SpanId) -> IxVarId {
        let (lo, hi) = (self.k.ix_const_id(0), self.k.ix_const_id(count as i64 - 1));
        self.k.ix_vars.push(IxVar { name: name.into(), kind, lo: Some(lo), hi: Some(hi), span });
        IxVarId(self.k.ix_vars.len() as u32 - 1)
    }

    /// Number of a block among those that share tiles.
    pub(super) fn sharing_rank(&self) -> Option<IxVarId> {
        self.cluster.as_ref().filter(|c| c.axis.is_none()).map(|c| c.rank)
    }

    /// Opens a program that walks over tiles: maps block indices to the walk's variables.
    pub(super) fn tile_vars(c: &mut Cloner<'_>, cluster: &Option<Cluster>) -> Vec<IxVarId> {
        let (grid, blocks) = (c.k.grid.clone(), c.k.block_ids.clone());
        let mut vars = vec![];
        for (axis, (&extent, &block)) in grid.iter().zip(&blocks).enumerate() {
            let old = c.k.ix_var(block).clone();
            let zero = c.k.ix_const_id(0);
            // Blocks of a cluster start together, so the last ones may have tiles past the edge.
            let count = match cluster {
                Some(cl) if cl.axis == Some(axis) => {
                    let size = c.k.ix_const_id(cl.size as i64);
                    let clusters = c.k.ix_div_ceil(extent, size);
                    c.k.ix_mul(clusters, size)
                }
                Some(_) | None => extent,
            };
            let one = c.k.ix_const_id(1);
            let hi = c.k.ix_sub(count, one);
            let name = ["mi", "ni", "li"].get(axis).map_or(old.name.clone(), ToString::to_string);
            let v = c.new_ix_var(IxVar { name, kind: IxVarKind::Loop, lo: Some(zero), hi: Some(hi), span: old.span });
            let e = c.var(v);
            c.ix.insert(block, e);
            vars.push(v);
        }
        vars
    }
}
