//! A plain kernel and a schedule become a scheduled kernel.
//!
//! Before: `tile { acc = 0; for k { copy a, b; acc += a . b }; store acc }` on a grid of tiles. After: two roles that each
//! walk over the tiles of their block. The loading one fills a ring with the copies, and with the row scales where those
//! can be copied; the multiplying one, once a warp group with that group's rows, takes them, multiplies and stores.

use super::epilogue::{self, StorePart, mentions, without};
use super::memory;
use super::parts::{CopyPart, Parts, ProductPart, ROW_BYTES, Reason, Seen, name_of, seen, unit_depth};
use super::{CopySpec, Schedule};
use crate::analysis::Ranges;
use crate::analysis::ranges::gcd;
use crate::ir::{
    Base, BlockId, Buffer, BufferId, Cloner, Cluster, CmpOp, DType, Distribution, Evict, Fragment, GemmScale, IxExpr,
    IxId, IxVar, IxVarId, IxVarKind, Kernel, MapId, Op, OpId, Region, Ring, RingId, RingPart, Role, RoleId, SchedOp,
    Space, SpanId, Stage, TensorMap, Value, ValueId, View, ViewId,
};
use crate::target::Caps;
use std::collections::BTreeMap;

const RING: RingId = RingId(0);
const PART: u32 = 0;
const LOAD: RoleId = RoleId(0);
const MATH: RoleId = RoleId(1);
/// Bytes of shared memory left to barriers.
const BARRIER_BYTES: usize = 1024;

/// Row scales of a product that the loading role copies.
struct ScaleTile {
    tile: BufferId,
    view: ViewId,
    seen: Seen,
    /// Row of the tile's first scale, and the group of K.
    at: [IxId; 2],
}

struct Apply<'a> {
    k: Kernel,
    s: &'a Schedule,
    parts: Parts,
    instances: usize,
    rows: usize,
    depth: usize,
    instance: Option<IxVarId>,
    cluster: Option<Cluster>,
    /// By product.
    row_scales: BTreeMap<OpId, ScaleTile>,
    maps: Vec<TensorMap>,
    staging: Vec<BufferId>,
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
    let rows = parts.tile[0] / math.instances.max(1);
    if rows == 0 || rows * math.instances != parts.tile[0] || rows % 64 != 0 {
        return Err(format!("{} warp groups do not share {} rows in pieces of 64", math.instances, parts.tile[0]));
    }
    for p in &parts.products {
        operands(kernel, &parts, p)?;
    }
    registers(s, &parts, rows)?;
    let mut a = Apply {
        k: kernel.clone(),
        s,
        instances: math.instances,
        rows,
        depth: ring.depth,
        instance: None,
        cluster: None,
        row_scales: BTreeMap::new(),
        maps: vec![],
        staging: vec![],
        parts,
    };
    a.run(caps, load.warps)
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

/// Checks the register budgets: what the pool of a block gives, and what the accumulators need.
fn registers(s: &Schedule, parts: &Parts, rows: usize) -> Result<(), Reason> {
    let groups: usize = s.roles.iter().map(|r| r.warps * r.instances).sum::<usize>() / 4;
    let budget: usize = s.roles.iter().map(|r| r.registers.unwrap_or(0) * r.instances * r.warps / 4).sum();
    // A block of this many threads gets as many registers a thread as leave one block resident, in steps of 8.
    let pool = 65536 / (groups * 128) / 8 * 8 * groups;
    if s.roles.iter().all(|r| r.registers.is_some()) && budget > pool {
        return Err(format!("the roles ask for {budget} registers a thread of each group together, there are {pool}"));
    }
    let scaled = parts.products.iter().any(|p| p.scales.is_some());
    let held = rows / 64 * parts.tile[1] / 2 + if scaled { parts.tile[1] / 2 } else { 0 };
    let math = s.roles.iter().filter(|r| !r.one_thread).filter_map(|r| r.registers).min().unwrap_or(168);
    // Addresses, scales and loop state take 24 more: 128 accumulators compile without spills in a budget of 152.
    if held + 24 > math {
        return Err(format!("a thread holds {held} accumulators and needs 24 registers more, its budget is {math}"));
    }
    Ok(())
}

impl Apply<'_> {
    fn run(&mut self, caps: &Caps, load_warps: usize) -> Result<Kernel, Reason> {
        let span = self.k.span;
        if self.instances > 1 {
            self.instance = Some(self.new_var("group", IxVarKind::Data, self.instances, span));
        }
        if let Some(c) = self.s.cluster {
            if c.axis >= self.k.grid.len() || c.size < 2 || c.size > 8 {
                return Err(format!("a cluster of {} along axis {} does not exist", c.size, c.axis));
            }
            let rank = self.new_var("rank", IxVarKind::Data, c.size, span);
            self.cluster = Some(Cluster { size: c.size, axis: c.axis, rank });
        }
        let ranges = Ranges::new(&self.k);
        self.stage_scales(&ranges);
        let copies = self.parts.copies.clone();
        let mut tiles: Vec<BufferId> = vec![];
        for c in &copies {
            let depth = self.depth;
            let b = &mut self.k.buffers[c.tile.0 as usize];
            b.extents.insert(0, depth);
            b.memory = Some(memory::operand_layout(b));
            tiles.push(c.tile);
        }
        tiles.extend(self.row_scales.values().map(|s| s.tile));
        let load = self.load_program(&ranges, &copies)?;
        let math = self.math_program(&ranges)?;
        // The staging tiles follow the operands, which need the stricter alignment first.
        let order: Vec<BufferId> = copies
            .iter()
            .map(|c| c.tile)
            .chain(self.staging.iter().copied())
            .chain(self.row_scales.values().map(|s| s.tile))
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
        let multicast = self.s.copies.values().any(|c| c.multicast) && self.cluster.is_some();
        let ring = Ring {
            name: self.s.rings[0].name.clone(),
            depth: self.depth,
            producer: LOAD,
            consumers: vec![MATH],
            parts: vec![RingPart { name: "all".into(), buffers: tiles, reuses: None }],
            multicast,
        };
        let like = self.parts.main;
        let mut k = self.k.clone();
        let mut c = Cloner::new(&mut k);
        let mut body: Vec<OpId> = self.staging.iter().map(|&buffer| c.push(Op::Alloc { buffer }, like)).collect();
        if self.s.dependent {
            body.push(c.push(Op::Sched(SchedOp::GridAllow), like));
        }
        body.push(c.push(Op::Sched(SchedOp::Roles { programs: vec![(LOAD, load), (MATH, math)] }), like));
        if multicast {
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

    fn copy_spec(&self, c: &CopyPart) -> CopySpec {
        let name = name_of(&self.k, c.op, &self.k.buffer(c.tile).name);
        self.s.copies.get(&name).copied().unwrap_or_default()
    }

    // --- row scales ---

    /// Finds row scales that can be copied with the operands: one f32 a row and step, consecutive in memory.
    fn stage_scales(&mut self, ranges: &Ranges) {
        for p in self.parts.products.clone() {
            let Some([row, _]) = p.scales else { continue };
            let ops = &self.k.block(row.body).ops;
            let &[id] = &ops[..] else { continue };
            let Op::Load { result, view, index } = self.k.op(id).op.clone() else { continue };
            let [at, group] = index[..] else { continue };
            if result != row.value || self.k.view(view).dtype != DType::F32 || mentions(&self.k, group, row.var) {
                continue;
            }
            let (Ok(seen), Some(first)) = (seen(&self.k, ranges, view, 0), without(&mut self.k, at, row.var)) else {
                continue;
            };
            if mentions(&self.k, first, row.var) || !super::parts::read_only(&self.k, seen.param) {
                continue;
            }
            let rows = self.parts.tile[0];
            let span = self.k.op(id).span;
            self.k.buffers.push(Buffer {
                name: "row_scales".into(),
                dtype: DType::F32,
                index: false,
                extents: vec![self.depth, rows],
                space: Space::Shared,
                distribution: None,
                memory: Some(crate::ir::MemoryLayout {
                    strides: vec![rows, 1],
                    swizzle: None,
                    panel: None,
                    offset_bytes: 0,
                }),
                role: None,
                span,
            });
            let tile = BufferId(self.k.buffers.len() as u32 - 1);
            self.row_scales.insert(p.op, ScaleTile { tile, view, seen, at: [first, group] });
        }
    }

    // --- the loading role ---

    /// Opens a program that walks over tiles: maps block indices to the walk's variables.
    fn tile_vars(c: &mut Cloner<'_>, cluster: &Option<Cluster>) -> Vec<IxVarId> {
        let (grid, blocks) = (c.k.grid.clone(), c.k.block_ids.clone());
        let mut vars = vec![];
        for (axis, (&extent, &block)) in grid.iter().zip(&blocks).enumerate() {
            let old = c.k.ix_var(block).clone();
            let zero = c.k.ix_const_id(0);
            // Blocks of a cluster start together, so the last ones may have tiles past the edge.
            let count = match cluster {
                Some(cl) if cl.axis == axis => {
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

    fn load_program(&mut self, ranges: &Ranges, copies: &[CopyPart]) -> Result<BlockId, Reason> {
        let (parts, cluster, depth) = (self.parts.clone(), self.cluster.clone(), self.depth);
        let specs: Vec<CopySpec> = copies.iter().map(|c| self.copy_spec(c)).collect();
        let mut sees = vec![];
        for c in copies {
            sees.push(seen(&self.k, ranges, c.src.view, self.k.view(c.src.view).extents.len() - 1)?);
        }
        let scales = std::mem::take(&mut self.row_scales);
        let Some((var, lo, hi)) = parts.loop_of(&self.k) else { return Err("the loop is not a loop".into()) };
        let mut maps = vec![];
        let mut c = Cloner::new(&mut self.k);
        let vars = Self::tile_vars(&mut c, &cluster);
        let mut inner = vec![];
        // Scalars the copies' indices need, from both levels.
        let needed = needed(c.k, &parts, copies);
        let outer: Vec<OpId> = parts.before.iter().copied().filter(|id| needed.contains(id)).collect();
        let mut tile_body: Vec<OpId> = outer.into_iter().map(|id| c.op(id)).collect();
        let (lo, hi) = (c.index(lo), c.index(hi));
        let turn = c.define_ix(var);
        let main_ops: Vec<OpId> = parts.steps(c.k);
        for id in main_ops.into_iter().filter(|id| needed.contains(id)) {
            let new = c.op(id);
            inner.push(new);
        }
        let slot = slot_var(&mut c, depth, parts.main);
        inner.push(c.push(Op::Sched(SchedOp::Acquire { ring: RING, part: PART, slot }), parts.main));
        for ((copy, seen), spec) in copies.iter().zip(&sees).zip(&specs) {
            let multicast = spec.multicast && cluster.is_some();
            let share = if multicast { cluster.as_ref().map_or(1, |cl| cl.size) } else { 1 };
            let [rows, columns] = copy.extents[..] else { return Err("a copied tile has not two axes".into()) };
            if rows % (8 * share) != 0 || rows / share > 256 {
                return Err(format!("{rows} rows do not divide over {share} blocks in boxes of 8 to 256 rows"));
            }
            let panel = ROW_BYTES * 8 / c.k.buffer(copy.tile).dtype.bits();
            let dst = slot_view(&mut c, copy.tile, slot, &[rows, columns], &[columns, 1], 0);
            let src =
                Region { view: c.view(copy.src.view), start: copy.src.start.iter().map(|&i| c.index(i)).collect() };
            let at = coordinates(&mut c, seen, &src.start, src.start.len() - 1);
            let map = new_map(&mut maps, seen, &[panel.min(columns), rows / share], ROW_BYTES);
            let zero = c.k.ix_const_id(0);
            let op = SchedOp::TmaLoad {
                map,
                at,
                src,
                dst: Region { view: dst, start: vec![zero, zero] },
                extents: vec![rows, columns],
                ring: RING,
                part: PART,
                multicast,
                evict: spec.evict,
            };
            inner.push(c.push(Op::Sched(op), copy.op));
        }
        for (&product, s) in &scales {
            let rows = parts.tile[0];
            let dst = slot_view(&mut c, s.tile, slot, &[rows, 1], &[1, 1], 0);
            let src = Region { view: c.view(s.view), start: s.at.iter().map(|&i| c.index(i)).collect() };
            let at = coordinates(&mut c, &s.seen, &src.start, 0);
            let map = new_map(&mut maps, &s.seen, &[rows, 1], 0);
            let zero = c.k.ix_const_id(0);
            let op = SchedOp::TmaLoad {
                map,
                at,
                src,
                dst: Region { view: dst, start: vec![zero, zero] },
                extents: vec![rows, 1],
                ring: RING,
                part: PART,
                multicast: false,
                evict: Evict::Normal,
            };
            inner.push(c.push(Op::Sched(op), product));
        }
        inner.push(c.push(Op::Sched(SchedOp::Publish { ring: RING, part: PART }), parts.main));
        inner.push(c.push(Op::Sched(SchedOp::Advance { ring: RING, by: 1 }), parts.main));
        let body = c.new_block(inner);
        tile_body.push(c.push(Op::For { var: turn, lo, hi, body, stages: 1 }, parts.main));
        let body = c.new_block(tile_body);
        let mut program = vec![];
        if self.s.dependent {
            program.push(c.push(Op::Sched(SchedOp::GridWait), parts.main));
        }
        program.push(c.push(Op::Sched(SchedOp::Tiles { vars, body }), parts.main));
        let program = c.new_block(program);
        self.maps = maps;
        self.row_scales = scales;
        Ok(program)
    }

    // --- the multiplying role ---

    fn math_program(&mut self, ranges: &Ranges) -> Result<BlockId, Reason> {
        let (parts, cluster, depth, rows) = (self.parts.clone(), self.cluster.clone(), self.depth, self.rows);
        let (instance, instances) = (self.instance, self.instances);
        let unroll = self.s.unroll.get(&name_of(&self.k, parts.main, "loop")).copied();
        let Some((var, lo, hi)) = parts.loop_of(&self.k) else { return Err("the loop is not a loop".into()) };
        let [_, n] = parts.tile;
        let spread = Distribution {
            split_axis: 0,
            vec: 2,
            lanes: 32,
            threads: 128,
            fragment: Some(Fragment::warp_group(rows, n)),
        };
        let scale_tiles: BTreeMap<OpId, BufferId> = self.row_scales.iter().map(|(op, s)| (*op, s.tile)).collect();
        let mut maps = std::mem::take(&mut self.maps);
        let mut staging = vec![];
        let staged = self.s.staged.clone();
        let mut c = Cloner::new(&mut self.k);
        let vars = Self::tile_vars(&mut c, &cluster);
        // First row of the group in the tile.
        let first_row = match instance {
            Some(v) => {
                let (v, r) = (c.var(v), c.k.ix_const_id(rows as i64));
                c.k.ix_mul(v, r)
            }
            None => c.k.ix_const_id(0),
        };
        split_accumulator(&mut c, &parts, rows, &spread)?;
        let mut tile_body = vec![];
        for &id in &parts.before {
            match &c.k.op(id).op {
                Op::Alloc { buffer } if parts.copies.iter().any(|cp| cp.tile == *buffer) => {}
                Op::Alloc { buffer } if *buffer == parts.acc => {
                    let buffer = c.buffers[buffer];
                    tile_body.push(c.push(Op::Alloc { buffer }, id));
                }
                &Op::Fill { dst, value } if c.k.view(dst).base == Base::Buffer(parts.acc) => {
                    let (dst, value) = (c.view(dst), c.value(value));
                    tile_body.push(fill_loop(&mut c, id, dst, value, [rows, n], &spread));
                }
                op if crate::pass::pipeline::scalar(c.k, op) => {
                    let new = c.op(id);
                    tile_body.push(new);
                }
                op => return Err(format!("`{}` stands before the loop", op.name())),
            }
        }
        let (lo, hi) = (c.index(lo), c.index(hi));
        let turn = c.define_ix(var);
        if let Some(n) = unroll {
            c.k.unroll.insert(turn, n);
        }
        let mut inner = vec![];
        let main_ops: Vec<OpId> = parts.steps(c.k);
        for id in main_ops {
            let op = c.k.op(id).op.clone();
            if crate::pass::pipeline::scalar(c.k, &op) {
                let new = c.op(id);
                inner.push(new);
            }
        }
        let slot = slot_var(&mut c, depth, parts.main);
        let mut multiply = vec![];
        for (turn, p) in parts.products.iter().enumerate() {
            let last = turn + 1 == parts.products.len();
            let scales = match p.scales {
                None => None,
                Some([row, column]) => {
                    let row =
                        row_scale(&mut c, &row, scale_tiles.get(&p.op).copied(), slot, rows, first_row, parts.tile[0]);
                    let column = column_scale(&mut c, ranges, &column, n, &mut inner, p.op);
                    Some([row, column])
                }
            };
            let (a, b) = (
                operand(&mut c, &parts, p.a, slot, 0, Some((rows, first_row))),
                operand(&mut c, &parts, p.b, slot, 1, None),
            );
            let acc = c.buffers[&parts.acc];
            let release = if last { vec![(RING, PART)] } else { vec![] };
            let op = SchedOp::Wgmma { a, b, acc, set: p.set, scales, release, hold: false };
            multiply.push(c.push(Op::Sched(op), p.op));
        }
        inner.push(c.push(Op::Sched(SchedOp::Take { ring: RING, part: PART, slot }), parts.main));
        inner.extend(multiply);
        inner.push(c.push(Op::Sched(SchedOp::Advance { ring: RING, by: 1 }), parts.main));
        let body = c.new_block(inner);
        tile_body.push(c.push(Op::For { var: turn, lo, hi, body, stages: 1 }, parts.main));

        let mut stored = false;
        for &id in &parts.after {
            let stores = epilogue::stores(c.k, &parts, id);
            match c.k.op(id).op.clone() {
                Op::Parallel { vars, extents, body, .. } if extents[..] == parts.tile[..] => {
                    let part = stores.into_iter().find(|st| {
                        staged.contains(&name_of(c.k, id, &st.name))
                            && epilogue::stageable(c.k, ranges, &parts, st).is_ok()
                    });
                    let e =
                        Epilogue { id, vars: &vars, body, rows, n, first_row, instance, instances, spread: &spread };
                    stored |= part.is_some();
                    e.emit(&mut c, &parts, ranges, part, &mut maps, &mut staging, &mut tile_body)?;
                }
                op if crate::pass::pipeline::scalar(c.k, &op) => {
                    let new = c.op(id);
                    tile_body.push(new);
                }
                op => return Err(format!("`{}` stands behind the loop", op.name())),
            }
        }
        let body = c.new_block(tile_body);
        let mut program = vec![];
        if self.s.dependent {
            // Scales and addends are read without the ring.
            program.push(c.push(Op::Sched(SchedOp::GridWait), parts.main));
        }
        program.push(c.push(Op::Sched(SchedOp::Tiles { vars, body }), parts.main));
        if stored {
            program.push(c.push(Op::Sched(SchedOp::TmaStoreWait { pending: 0, written: false }), parts.main));
        }
        let program = c.new_block(program);
        self.maps = maps;
        self.staging = staging;
        Ok(program)
    }
}

/// Ops whose values the copies' indices need.
fn needed(k: &Kernel, parts: &Parts, copies: &[CopyPart]) -> Vec<OpId> {
    let mut defs: BTreeMap<IxVarId, OpId> = BTreeMap::new();
    let all: Vec<OpId> = parts.before.iter().copied().chain(parts.steps(k)).collect();
    for &id in &all {
        for v in crate::ir::effects::uses(&k.op(id).op).defines_ix {
            defs.insert(v, id);
        }
    }
    let mut found = vec![];
    let mut todo: Vec<OpId> = copies.iter().map(|c| c.op).chain([parts.main]).collect();
    while let Some(id) = todo.pop() {
        let u = crate::ir::effects::uses(&k.op(id).op);
        let mut indices = u.indices.clone();
        for &v in &u.views {
            let view = k.view(v);
            indices.extend(view.extents.iter().chain(&view.strides).copied().chain([view.offset]));
            indices.extend(view.guards.iter().flat_map(|g| [g.0, g.1]));
        }
        let mut ops: Vec<OpId> = u.values.iter().filter_map(|&v| k.value(v).def).collect();
        for i in indices {
            leaves(k, i, &mut |e| match e {
                IxExpr::Data(v) => ops.extend(k.value(v).def),
                IxExpr::Var(v) => ops.extend(defs.get(&v)),
                _ => {}
            });
        }
        for op in ops {
            if all.contains(&op) && !found.contains(&op) {
                found.push(op);
                todo.push(op);
            }
        }
    }
    found
}

fn leaves(k: &Kernel, e: IxId, f: &mut dyn FnMut(IxExpr)) {
    match k.ix_expr(e) {
        leaf @ (IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) | IxExpr::Data(_)) => f(leaf),
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => {
            leaves(k, a, f);
            leaves(k, b, f);
        }
    }
}

fn slot_var(c: &mut Cloner<'_>, depth: usize, like: OpId) -> IxVarId {
    let span = c.k.op(like).span;
    let (lo, hi) = (c.k.ix_const_id(0), c.k.ix_const_id(depth as i64 - 1));
    c.new_ix_var(IxVar { name: "slot".into(), kind: IxVarKind::Data, lo: Some(lo), hi: Some(hi), span })
}

/// A view of a ring tile's slot: `offset` elements behind its start.
fn slot_view(
    c: &mut Cloner<'_>,
    tile: BufferId,
    slot: IxVarId,
    extents: &[usize],
    strides: &[usize],
    offset: i64,
) -> ViewId {
    let b = c.k.buffer(tile).clone();
    let size: usize = b.extents[1..].iter().product();
    let (s, size, o) = (c.var(slot), c.k.ix_const_id(size as i64), c.k.ix_const_id(offset));
    let start = c.k.ix_mul(s, size);
    let offset = c.k.ix_add(start, o);
    let view = View {
        base: Base::Buffer(tile),
        dtype: b.dtype,
        extents: extents.iter().map(|&e| c.k.ix_const_id(e as i64)).collect(),
        strides: strides.iter().map(|&e| c.k.ix_const_id(e as i64)).collect(),
        offset,
        guards: vec![],
        gather: None,
        span: b.span,
    };
    c.new_view(view)
}

/// A product's operand in its slot, with a group's rows only if `split` says so.
fn operand(
    c: &mut Cloner<'_>,
    parts: &Parts,
    view: ViewId,
    slot: IxVarId,
    row_axis: usize,
    split: Option<(usize, IxId)>,
) -> ViewId {
    let old = c.k.view(view).clone();
    let width = parts.copy_of(c.k, view).map_or(0, |cp| cp.extents[1]);
    let Base::Buffer(tile) = old.base else { return view };
    let size: usize = c.k.buffer(tile).extents[1..].iter().product();
    let (s, size) = (c.var(slot), c.k.ix_const_id(size as i64));
    let start = c.k.ix_mul(s, size);
    let mut offset = c.k.ix_add(start, old.offset);
    let mut extents = old.extents.clone();
    if let Some((rows, first)) = split {
        extents[row_axis] = c.k.ix_const_id(rows as i64);
        let skip = times(c, first, width as i64);
        offset = c.k.ix_add(offset, skip);
    }
    c.new_view(View { extents, offset, ..old })
}

/// Coordinates of a copy: the map's own axes in its order, then the picked ones.
fn coordinates(c: &mut Cloner<'_>, seen: &Seen, start: &[IxId], inner: usize) -> Vec<IxId> {
    let order = std::iter::once(inner).chain((0..start.len()).rev().filter(|&a| a != inner));
    let mut at: Vec<IxId> = order.map(|a| start[a]).collect();
    let picked: Vec<IxId> = seen.picked.iter().map(|&p| c.index(p)).collect();
    at.extend(picked);
    at
}

fn new_map(maps: &mut Vec<TensorMap>, seen: &Seen, boxes: &[usize], swizzle_bytes: usize) -> MapId {
    let mut boxes = boxes.to_vec();
    boxes.resize(seen.extents.len(), 1);
    let map = TensorMap {
        param: seen.param,
        extents: seen.extents.clone(),
        strides: seen.strides.clone(),
        boxes,
        swizzle_bytes,
    };
    if let Some(n) = maps.iter().position(|m| *m == map) {
        return MapId(n as u32);
    }
    maps.push(map);
    MapId(maps.len() as u32 - 1)
}

/// Replaces the accumulator and its views by those of a group's rows.
fn split_accumulator(c: &mut Cloner<'_>, parts: &Parts, rows: usize, spread: &Distribution) -> Result<(), Reason> {
    let [m, n] = parts.tile;
    let old = c.k.buffer(parts.acc).clone();
    c.k.buffers.push(Buffer { extents: vec![rows, n], distribution: Some(spread.clone()), role: Some(MATH), ..old });
    let new = BufferId(c.k.buffers.len() as u32 - 1);
    c.buffers.insert(parts.acc, new);
    for id in 0..c.k.views.len() {
        let v = c.k.views[id].clone();
        if v.base != Base::Buffer(parts.acc) {
            continue;
        }
        let id = ViewId(id as u32);
        let whole = c.k.const_extents(id).is_some_and(|e| e == [m, n])
            && c.k.ix_const(v.strides[0]) == Some(n as i64)
            && c.k.ix_const(v.strides[1]) == Some(1)
            && c.k.ix_const(v.offset) == Some(0);
        if !whole {
            return Err("the accumulator is also seen in another shape".into());
        }
        let extents = vec![c.k.ix_const_id(rows as i64), c.k.ix_const_id(n as i64)];
        let view = c.new_view(View { base: Base::Buffer(new), extents, ..v });
        c.views.insert(id, view);
    }
    Ok(())
}

/// A fill of the accumulator as a loop over its registers.
fn fill_loop(
    c: &mut Cloner<'_>,
    like: OpId,
    dst: ViewId,
    value: ValueId,
    extents: [usize; 2],
    spread: &Distribution,
) -> OpId {
    let span = c.k.op(like).span;
    let vars: Vec<IxVarId> = extents
        .iter()
        .zip(["i", "j"])
        .map(|(&e, name)| {
            let (lo, hi) = (c.k.ix_const_id(0), c.k.ix_const_id(e as i64 - 1));
            c.new_ix_var(IxVar { name: name.into(), kind: IxVarKind::Element, lo: Some(lo), hi: Some(hi), span })
        })
        .collect();
    let index = vars.iter().map(|&v| c.var(v)).collect();
    let store = c.push(Op::Store { view: dst, index, value, checked: false }, like);
    let body = c.new_block(vec![store]);
    c.push(Op::Parallel { vars, extents: extents.to_vec(), body, distribution: Some(spread.clone()) }, like)
}

/// The factor of a group's rows: from the ring if it was copied, else as it was.
fn row_scale(
    c: &mut Cloner<'_>,
    row: &GemmScale,
    tile: Option<BufferId>,
    slot: IxVarId,
    rows: usize,
    first_row: IxId,
    tile_rows: usize,
) -> GemmScale {
    let old = c.k.ix_var(row.var).clone();
    let hi = c.k.ix_const_id(rows as i64 - 1);
    let var = c.new_ix_var(IxVar { hi: Some(hi), ..old });
    let i = c.var(var);
    if let Some(tile) = tile {
        let view = slot_view(c, tile, slot, &[tile_rows], &[1], 0);
        let mut v = c.k.view(view).clone();
        v.offset = c.k.ix_add(v.offset, first_row);
        v.extents = vec![c.k.ix_const_id(rows as i64)];
        let view = c.new_view(v);
        let like = c.k.block(row.body).ops[0];
        let result = new_value(c, DType::F32, like);
        let load = c.push(Op::Load { result, view, index: vec![i] }, like);
        return GemmScale { var, body: c.new_block(vec![load]), value: result };
    }
    let at = c.k.ix_add(i, first_row);
    c.ix.insert(row.var, at);
    let body = c.block(row.body);
    GemmScale { var, body, value: c.value(row.value) }
}

fn new_value(c: &mut Cloner<'_>, dtype: DType, like: OpId) -> ValueId {
    let span = c.k.op(like).span;
    c.k.values.push(Value { dtype, def: None, span });
    ValueId(c.k.values.len() as u32 - 1)
}

/// The factor of columns. Where one load gives the same scale to runs of columns, `load s[(x + j) / c, ..]`, the one to
/// three scales of the tile are loaded before the operands are waited for, and a column chooses among them.
fn column_scale(
    c: &mut Cloner<'_>,
    ranges: &Ranges,
    column: &GemmScale,
    n: usize,
    before: &mut Vec<OpId>,
    like: OpId,
) -> GemmScale {
    if let Some(found) = run_scale(c, ranges, column, n, before, like) {
        return found;
    }
    c.scale(column)
}

fn run_scale(
    c: &mut Cloner<'_>,
    ranges: &Ranges,
    column: &GemmScale,
    n: usize,
    before: &mut Vec<OpId>,
    like: OpId,
) -> Option<GemmScale> {
    let &[id] = &c.k.block(column.body).ops.clone()[..] else { return None };
    let Op::Load { result, view, index } = c.k.op(id).op.clone() else { return None };
    if result != column.value || index.iter().filter(|&&i| mentions(c.k, i, column.var)).count() != 1 {
        return None;
    }
    let axis = index.iter().position(|&i| mentions(c.k, i, column.var))?;
    let IxExpr::Div(sum, run) = c.k.ix_expr(index[axis]) else { return None };
    let run_length = c.k.ix_const(run).filter(|&r| r >= 8 && r % 8 == 0)? as usize;
    let first = without(c.k, sum, column.var)?;
    // Ids made since are unknown to the ranges; the first column is a multiple of the tile's width.
    let step = multiple_of(c.k, ranges, first).unwrap_or(1) as usize;
    let common = gcd(step.max(1) as i128, run_length as i128) as usize;
    let count = (run_length - common.min(run_length) + n).div_ceil(run_length);
    if common < 8 || count > 3 {
        return None;
    }
    let var = c.define_ix(column.var);
    let first = c.index(first);
    let block = match c.k.ix_expr(first) {
        IxExpr::Mul(a, b) if c.k.ix_const(b) == Some(run_length as i64) => a,
        _ => c.k.ix_div(first, run),
    };
    let from = c.view(view);
    let mut values = vec![];
    for s in 0..count {
        let s = c.k.ix_const_id(s as i64);
        let mut at: Vec<IxId> = index.iter().map(|&i| c.index(i)).collect();
        at[axis] = c.k.ix_add(block, s);
        let result = new_value(c, DType::F32, like);
        before.push(c.push(Op::Load { result, view: from, index: at }, id));
        values.push(result);
    }
    let mut body = vec![];
    let mut value = values[0];
    let inside = c.k.ix_mod(first, run);
    let j = c.var(var);
    let at = c.k.ix_add(inside, j);
    for (s, &next) in values.iter().enumerate().skip(1) {
        let edge = c.k.ix_const_id((s * run_length) as i64);
        let cond = new_value(c, DType::Bool, like);
        body.push(c.push(Op::CompareIndex { result: cond, op: CmpOp::Lt, a: at, b: edge }, id));
        let result = new_value(c, DType::F32, like);
        body.push(c.push(Op::Select { result, cond, a: value, b: next }, id));
        value = result;
    }
    let body = c.new_block(body);
    Some(GemmScale { var, body, value })
}

/// A number that divides an index: from the analysis, or from the last factor of a product made since.
fn multiple_of(k: &Kernel, ranges: &Ranges, e: IxId) -> Option<i64> {
    if (e.0 as usize) < ranges.known() {
        return Some(match ranges.multiple_of(e) {
            0 => 1 << 20,
            m => m,
        });
    }
    match k.ix_expr(e) {
        IxExpr::Mul(_, b) => k.ix_const(b),
        IxExpr::Const(c) => Some(if c == 0 { 1 << 20 } else { c }),
        _ => None,
    }
}

/// `e * n`, with one factor where `e` is a product already.
fn times(c: &mut Cloner<'_>, e: IxId, n: i64) -> IxId {
    if let IxExpr::Mul(a, b) = c.k.ix_expr(e)
        && let Some(b) = c.k.ix_const(b)
    {
        let n = c.k.ix_const_id(b * n);
        return c.k.ix_mul(a, n);
    }
    let n = c.k.ix_const_id(n);
    c.k.ix_mul(e, n)
}

/// A loop over the tile behind the multiplications, for a group's rows.
struct Epilogue<'a> {
    id: OpId,
    vars: &'a [IxVarId],
    body: BlockId,
    rows: usize,
    n: usize,
    first_row: IxId,
    instance: Option<IxVarId>,
    instances: usize,
    spread: &'a Distribution,
}

impl Epilogue<'_> {
    #[allow(clippy::too_many_arguments, reason = "the tables being filled")]
    fn emit(
        &self,
        c: &mut Cloner<'_>,
        parts: &Parts,
        ranges: &Ranges,
        store: Option<StorePart>,
        maps: &mut Vec<TensorMap>,
        staging: &mut Vec<BufferId>,
        out: &mut Vec<OpId>,
    ) -> Result<(), Reason> {
        let old_row = c.var(self.vars[0]);
        for &id in &c.k.block(self.body).ops {
            if let Some((view, index)) = crate::pass::distribute::element_access(&c.k.op(id).op)
                && c.k.view(view).base == Base::Buffer(parts.acc)
                && index[0] != old_row
            {
                return Err("the accumulator is read at other rows than its own".into());
            }
        }
        let old = c.k.ix_var(self.vars[0]).clone();
        let hi = c.k.ix_const_id(self.rows as i64 - 1);
        let i = c.new_ix_var(IxVar { hi: Some(hi), ..old });
        let own = c.var(i);
        let row = c.k.ix_add(own, self.first_row);
        c.ix.insert(self.vars[0], row);
        let j = c.define_ix(self.vars[1]);
        let acc = c.buffers[&parts.acc];
        let old_ops = c.k.block(self.body).ops.clone();
        let mut ops = vec![];
        let mut target = None;
        for id in old_ops {
            let new = c.op(id);
            own_rows(c, new, acc, own);
            if let Some(part) = store.as_ref().filter(|p| p.op == id) {
                target = Some(self.stage(c, ranges, part, new, staging, [i, j])?);
            }
            ops.push(new);
        }
        let body = c.new_block(ops);
        let reason = |s: &str| s.to_string();
        if target.is_some() {
            out.push(c.push(Op::Sched(SchedOp::TmaStoreWait { pending: 0, written: false }), self.id));
            let reason = reason("the copy engine has read the last tile's staging");
            out.push(c.push(Op::Sched(SchedOp::RoleBarrier { reason }), self.id));
        }
        let op = Op::Parallel {
            vars: vec![i, j],
            extents: vec![self.rows, self.n],
            body,
            distribution: Some(self.spread.clone()),
        };
        out.push(c.push(op, self.id));
        let (Some((tile, src, seen)), Some(part)) = (target, store) else { return Ok(()) };
        let fence = reason("staging is written by threads and read by the copy engine");
        out.push(c.push(Op::Sched(SchedOp::AsyncFence { reason: fence }), self.id));
        let reason = reason("staging is complete");
        out.push(c.push(Op::Sched(SchedOp::RoleBarrier { reason }), self.id));
        let mut start: Vec<IxId> = part.start.iter().map(|&e| c.index(e)).collect();
        let rank = start.len();
        start[rank - 2] = c.k.ix_add(start[rank - 2], self.first_row);
        let at = coordinates(c, &seen, &start, rank - 1);
        let bits = c.k.buffer(tile).dtype.bits();
        let panel = memory::staging_panel(self.n, bits);
        let swizzle = memory::swizzle_of(panel * bits / 8).map_or(0, |_| panel * bits / 8);
        let map = new_map(maps, &seen, &[panel, self.rows], swizzle);
        let zero = c.k.ix_const_id(0);
        let dst = Region { view: c.view(part.view), start };
        let mut extents = vec![1; rank];
        (extents[rank - 2], extents[rank - 1]) = (self.rows, self.n);
        let op = SchedOp::TmaStore { map, at, src: Region { view: src, start: vec![zero, zero] }, dst, extents };
        out.push(c.push(Op::Sched(op), self.id));
        Ok(())
    }

    /// Turns a copied store into one to a staging tile; gives the tile, its view and how the engine sees the tensor.
    #[allow(clippy::too_many_arguments, reason = "the tables being filled")]
    fn stage(
        &self,
        c: &mut Cloner<'_>,
        ranges: &Ranges,
        part: &StorePart,
        op: OpId,
        staging: &mut Vec<BufferId>,
        at: [IxVarId; 2],
    ) -> Result<(BufferId, ViewId, Seen), Reason> {
        let tensor = c.k.view(part.view).clone();
        let seen = seen(c.k, ranges, part.view, tensor.extents.len() - 1)?;
        let span = c.k.op(part.op).span;
        let mut buffer = Buffer {
            name: format!("{}_tile", part.name),
            dtype: tensor.dtype,
            index: false,
            extents: vec![self.instances, self.rows, self.n],
            space: Space::Shared,
            distribution: None,
            memory: None,
            role: None,
            span,
        };
        buffer.memory = Some(memory::staging_layout(&buffer));
        c.k.buffers.push(buffer);
        let tile = BufferId(c.k.buffers.len() as u32 - 1);
        staging.push(tile);
        let offset = match self.instance {
            Some(v) => {
                let (v, size) = (c.var(v), c.k.ix_const_id((self.rows * self.n) as i64));
                c.k.ix_mul(v, size)
            }
            None => c.k.ix_const_id(0),
        };
        let view = View {
            base: Base::Buffer(tile),
            dtype: tensor.dtype,
            extents: vec![c.k.ix_const_id(self.rows as i64), c.k.ix_const_id(self.n as i64)],
            strides: vec![c.k.ix_const_id(self.n as i64), c.k.ix_const_id(1)],
            offset,
            guards: vec![],
            gather: None,
            span,
        };
        let view = c.new_view(view);
        let element = at.map(|v| c.var(v));
        if let Op::Store { view: v, index, .. } = &mut c.k.ops[op.0 as usize].op {
            *v = view;
            *index = element.to_vec();
        }
        Ok((tile, view, seen))
    }
}

/// Lets accesses of a group's accumulator use the group's own row.
fn own_rows(c: &mut Cloner<'_>, op: OpId, acc: BufferId, own: IxId) {
    let views: Vec<bool> = c.k.views.iter().map(|v| v.base == Base::Buffer(acc)).collect();
    if let Op::Load { view, index, .. } | Op::Store { view, index, .. } = &mut c.k.ops[op.0 as usize].op
        && views[view.0 as usize]
    {
        index[0] = own;
    }
}
