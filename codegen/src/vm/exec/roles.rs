//! Ops of roles, run by the thread that has the turn. While it runs it has its block's shared tiles; it gives them back
//! before anyone else may look.

use super::*;
use crate::ir::{OpId, Space};
use crate::machine::{Policy, Swizzle, Timing, Use};
use crate::vm::chip::{Chip, Job, Range, Row, Stage, SumWait, Wait};
use crate::vm::program::RowCounts;

/// A worker's place among the roles.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'p> {
    stage: &'p Stage<'p>,
    id: usize,
    block: usize,
}

/// A product that goes on.
#[derive(Debug)]
pub(super) struct Held {
    product: Gemm,
    node: Node,
    acc: usize,
    /// It has been computed and only waits for its wait.
    computed: bool,
}

/// Gives the run up if the thread panics, so that no other waits for its turn.
struct Guard<'p>(Agent<'p>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stage.lock().abandoned = true;
            self.0.stage.call(None);
        }
    }
}

/// A swizzle by its span.
pub fn class_swizzle(bytes: usize) -> Swizzle {
    match bytes {
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        128 => Swizzle::B128,
        _ => Swizzle::None,
    }
}

impl<'p> Worker<'p> {
    /// Runs the program of one block of a cluster.
    pub fn role_main(mut self, stage: &'p Stage<'p>, block: usize) {
        let p = self.shared.program;
        let kernel = self.shared.kernel;
        let mut rest = stage.cluster[0];
        for (axis, &at) in p.block_ids.iter().enumerate().rev() {
            let extent = stage.units[axis].max(1);
            self.env[at] = rest % extent;
            rest /= extent;
            if let Some(c) = kernel.cluster.as_ref().filter(|c| c.axis == Some(axis)) {
                self.env[at] = self.env[at] * c.size as i64 + block as i64;
            }
        }
        if let Some(c) = &kernel.cluster {
            self.env[c.rank.0 as usize] = block as i64;
        }
        let mut frame = std::mem::take(&mut self.frame);
        for &(reg, dtype, param) in &p.scalars {
            lanes::fill(&mut frame.regs, 1, reg, dtype, self.shared.scalars[param]);
        }
        self.agent = Some(Agent { stage, id: block, block });
        self.as_role(&mut frame, &p.code);
    }

    /// Waits for the first turn, runs, and hands the turn on for good.
    fn as_role(&mut self, frame: &mut Lanes, code: &[Node]) {
        let Some(agent) = self.agent else { return };
        let _guard = Guard(agent);
        for (n, t) in self.shared.program.tiles.iter().enumerate() {
            if self.shared.kernel.buffer(t.buffer).space == Space::Shared {
                self.tiles[n] = Tile::None;
            }
        }
        let mut chip = agent.stage.turn(agent.stage.lock(), agent.id);
        self.stopped = chip.abandoned;
        self.exchange(&mut chip, agent.block);
        drop(chip);
        self.exec(frame, code, Mask::first(1));
        if !self.held.is_empty() && !self.stopped {
            self.wait_products(frame, 0);
        }
        let mut chip = agent.stage.lock();
        self.exchange(&mut chip, agent.block);
        if self.stopped {
            chip.abandoned = true;
        }
        let next = chip.finish(agent.id);
        drop(chip);
        agent.stage.call(next);
    }

    fn exchange(&mut self, chip: &mut Chip, block: usize) {
        let kernel = self.shared.kernel;
        for (n, t) in self.shared.program.tiles.iter().enumerate() {
            if kernel.buffer(t.buffer).space == Space::Shared {
                std::mem::swap(&mut self.tiles[n], &mut chip.blocks[block].tiles[n]);
            }
        }
    }

    /// Works on the chip, with the block's tiles in it.
    fn with_chip<R>(&mut self, f: impl FnOnce(&mut Chip, usize) -> R) -> Option<R> {
        let agent = self.agent?;
        let mut chip = agent.stage.lock();
        self.exchange(&mut chip, agent.block);
        let out = f(&mut chip, agent.id);
        self.exchange(&mut chip, agent.block);
        Some(out)
    }

    /// Gives the turn away until the wait is over, or for a moment; false if the run was given up.
    fn pause(&mut self, wait: Wait) -> bool {
        let Some(agent) = self.agent else { return true };
        let mut chip = agent.stage.lock();
        self.exchange(&mut chip, agent.block);
        chip.procs[agent.id].wait = wait;
        if chip.policy == Policy::InOrder && !chip.abandoned && chip.runnable(agent.id) {
            chip.procs[agent.id].wait = Wait::Ready;
        } else {
            let next = chip.choose();
            if next != Some(agent.id) {
                agent.stage.call(next);
                chip = agent.stage.turn(chip, agent.id);
            }
        }
        self.exchange(&mut chip, agent.block);
        self.stopped |= chip.abandoned;
        !self.stopped
    }

    /// Notes an ordinary access to a shared tile.
    #[inline(always)]
    pub(super) fn noted(&self, node: &Node, access: &Access, at: i64, stride: i64, count: usize, what: Use) {
        if self.agent.is_some() {
            self.note(node, access, Range { at, stride, count, bits: access.dtype.bits() }, what);
        }
    }

    #[cold]
    fn note(&self, node: &Node, access: &Access, range: Range, what: Use) {
        let (Some(agent), Place::Tile(t)) = (self.agent, access.place) else { return };
        if self.shared.kernel.buffer(self.shared.program.tiles[t].buffer).space == Space::Shared {
            agent.stage.lock().touch(agent.id, what, t, range, node.op);
        }
    }

    /// Runs an op of roles.
    pub(super) fn role(&mut self, fr: &mut Lanes, node: &Node, op: &RoleInstr) {
        if self.agent.is_none() {
            let help = "run it with `vm::roles`";
            self.fault(node, "S0110", "an op of roles in a kernel that is run as a plain one".into(), help);
            return;
        }
        match op {
            RoleInstr::Roles { programs } => self.start_roles(fr, node, programs),
            RoleInstr::Tiles { targets, rows, code } => self.tiles_of_block(fr, node, targets, rows.as_ref(), code),
            &RoleInstr::Acquire { ring, part, target } => {
                let at = self.with_chip(|c, id| c.acquire_at(id, ring, part));
                self.pass(node, at, target);
            }
            &RoleInstr::Take { ring, part, target } => {
                let at = self.with_chip(|c, id| c.take_at(id, ring, part));
                self.pass(node, at, target);
            }
            &RoleInstr::Publish { ring, part } => {
                self.with_chip(|c, id| {
                    let key = c.reached(id, ring, part, false, false)[0];
                    c.arrive(id, key, node.op);
                });
            }
            &RoleInstr::Release { ring, part } => self.release_part(node, ring, part),
            &RoleInstr::Advance { ring, by } => {
                self.with_chip(|c, id| c.procs[id].items[ring] += by);
            }
            RoleInstr::Load { copy, ring, part, multicast } => {
                self.engine_load(fr, node, copy, (*ring, *part), *multicast)
            }
            RoleInstr::Store { copy } => {
                let rows = self.engine_rows(fr, copy, None);
                let job = self.job(copy, rows, vec![], 0, node.op);
                self.with_chip(|c, id| {
                    c.at(id, node.op);
                    c.store(Job { by: id, ..job }, class_swizzle(copy.swizzle));
                });
            }
            &RoleInstr::StoreWait { pending } => {
                self.with_chip(|c, id| c.wait_stores(id, pending));
            }
            RoleInstr::Product { product, release, hold } => {
                self.product(fr, node, product, *hold);
                for &(ring, part) in release {
                    self.release_part(node, ring, part);
                }
            }
            &RoleInstr::ProductWait { pending } => self.wait_products(fr, pending),
            &RoleInstr::Combine { acc, inbox, turns } => self.combine(node, acc, inbox, turns.max(1)),
            RoleInstr::Meet => {
                self.with_chip(|c, id| c.meet_role(id));
            }
            RoleInstr::Fence => {
                self.with_chip(|c, id| c.fence(id));
            }
            RoleInstr::Cluster => {
                let round = self.with_chip(|c, id| c.meet_cluster(id)).unwrap_or(0);
                if self.pause(Wait::Cluster(round, node.op)) {
                    self.with_chip(|c, id| c.met_cluster(id));
                }
                return;
            }
            RoleInstr::Grid => {}
        }
        if !self.stopped && self.agent.is_some_and(|a| a.stage.lock().policy != Policy::InOrder) {
            self.pause(Wait::Ready);
        }
    }

    fn pass(&mut self, node: &Node, at: Option<(crate::vm::chip::Key, usize)>, target: usize) {
        let Some((key, phases)) = at else { return };
        if self.pause(Wait::Phase(key, phases, node.op)) {
            let slot = self.with_chip(|c, id| c.passed(id, key, phases, node.op));
            self.env[target] = slot.unwrap_or(0);
        }
    }

    fn release_part(&mut self, node: &Node, ring: usize, part: usize) {
        let shared = self.shared.kernel.rings[ring].multicast;
        self.with_chip(|c, id| {
            for key in c.reached(id, ring, part, true, shared) {
                c.arrive(id, key, node.op);
            }
        });
    }

    fn start_roles(&mut self, fr: &Lanes, node: &Node, programs: &[(usize, Vec<Node>)]) {
        let Some(agent) = self.agent else { return };
        let (shared, stage) = (self.shared, agent.stage);
        let mut list = vec![];
        {
            let mut chip = stage.lock();
            for (role, code) in programs {
                for instance in 0..shared.kernel.roles[*role].instances {
                    let id = chip.child(agent.block, *role, instance);
                    chip.start(agent.id, id);
                    list.push((id, *role, instance, code));
                }
            }
        }
        let (env, regs) = (&self.env, &fr.regs);
        let inputs: Vec<(Vec<i64>, Regs)> = list.iter().map(|_| (env.clone(), regs.clone())).collect();
        std::thread::scope(|s| {
            for ((id, role, instance, code), (env, regs)) in list.into_iter().zip(inputs) {
                s.spawn(move || {
                    let mut w = Worker::new(shared, None);
                    w.env = env;
                    if let Some(v) = shared.kernel.roles[role].instance {
                        w.env[v.0 as usize] = instance as i64;
                    }
                    w.agent = Some(Agent { stage, id, block: agent.block });
                    let mut frame = Lanes::block(shared.program.block_regs);
                    frame.regs = regs;
                    w.as_role(&mut frame, code);
                });
            }
            self.pause(Wait::Children(node.op));
        });
    }

    /// Runs the body for each tile of this block.
    fn tiles_of_block(
        &mut self,
        fr: &mut Lanes,
        node: &Node,
        targets: &[usize],
        rows: Option<&RowCounts>,
        code: &[Node],
    ) {
        let Some(agent) = self.agent else { return };
        let units = &agent.stage.units;
        let [first, step] = agent.stage.cluster;
        let all: i64 = units.iter().product();
        // Tiles that have rows are dealt out, one after another.
        let mut turn = 0;
        for unit in 0..all {
            if self.stopped {
                return;
            }
            let mut rest = unit;
            for (axis, &at) in targets.iter().enumerate().rev() {
                self.env[at] = rest % units[axis].max(1);
                rest /= units[axis].max(1);
                if let Some(c) = self.shared.kernel.cluster.as_ref().filter(|c| c.axis == Some(axis)) {
                    self.env[at] = self.env[at] * c.size as i64 + agent.block as i64;
                }
            }
            if let Some(r) = rows
                && !self.has_rows(fr, node, r, targets)
            {
                continue;
            }
            if turn % step.max(1) == first {
                self.exec(fr, code, Mask::first(1));
            }
            turn += 1;
        }
    }

    /// Whether the tile at the walk's variables has rows.
    fn has_rows(&mut self, fr: &Lanes, node: &Node, r: &RowCounts, targets: &[usize]) -> bool {
        let &[tile, .., group] = targets else { return true };
        let at = self.scalar(fr, &r.first.address) + self.env[group] * self.scalar(fr, &r.stride);
        if !self.holds(&r.first, at, at) {
            self.leaves_allocation(node, &r.first, at);
            self.stopped = true;
            return false;
        }
        self.env[tile] * r.tile < self.integer(r.first.place, r.first.dtype, at)
    }

    /// Hands a part of a sum over, or adds up all parts, in their order.
    fn combine(&mut self, node: &Node, acc: usize, inbox: usize, turns: usize) {
        let Some(agent) = self.agent else { return };
        let kernel = self.shared.kernel;
        let Some(sum) = agent.stage.lock().sum_of(agent.id, turns) else { return };
        let len = self.shared.program.tiles[acc].len;
        let range = |part: usize| Range {
            at: (((part - 1) * sum.groups + sum.key.group) * len) as i64,
            stride: 1,
            count: len,
            bits: 32,
        };
        let fits = sum.parts > 1
            && kernel.buffer(self.shared.program.tiles[inbox].buffer).space == Space::Shared
            && self.shared.program.tiles[inbox].len >= (sum.parts - 1) * sum.groups * len;
        let Tile::F(mut mine) = std::mem::replace(&mut self.tiles[acc], Tile::None) else { return };
        if !fits {
            let m = "parts of a sum do not fit the tile they are handed over in".to_string();
            self.fault(node, "S0110", m, "give it room for all parts but the first");
            return;
        }
        let round = agent.stage.lock().round(agent.id);
        if sum.part > 0 {
            // The parts of the last tile have been read.
            if self.pause(Wait::Sum(sum.key, SumWait::Read, round, node.op)) {
                self.with_chip(|c, id| c.hand_over(id, &sum, inbox, range(sum.part), &mine, node.op));
            }
            let mut gone = Tile::F(mine);
            gone.poison(DType::F32);
            self.tiles[acc] = gone;
            return;
        }
        if self.pause(Wait::Sum(sum.key, SumWait::Handed, round + 1, node.op)) {
            mine.iter_mut().for_each(|x| *x += 0.0);
            self.with_chip(|c, id| {
                for part in 1..sum.parts {
                    let other = c.read_part(id, &sum, inbox, range(part), node.op);
                    mine.iter_mut().zip(other).for_each(|(x, y)| *x += y);
                }
                c.end_round(id, &sum);
            });
        }
        self.tiles[acc] = Tile::F(mine);
    }

    fn job(&self, copy: &EngineCopy, rows: Vec<Row>, to: Vec<crate::vm::chip::Key>, bytes: i64, op: OpId) -> Job {
        Job { by: 0, tile: copy.tile, param: copy.param, dtype: copy.dtype, rows, to, bytes, op }
    }

    fn engine_load(&mut self, fr: &Lanes, node: &Node, copy: &EngineCopy, (ring, part): (usize, usize), shared: bool) {
        let Some(agent) = self.agent else { return };
        let size = self.shared.kernel.cluster.as_ref().map_or(1, |c| c.size.max(1));
        let share = (shared && size > 1).then_some((agent.block, size));
        let rows = self.engine_rows(fr, copy, share);
        let bits = copy.dtype.bits() as i64;
        let expected = copy.extents.iter().product::<usize>() as i64 * bits / 8;
        // Whole boxes are counted, whatever of them exists.
        let boxes: i64 = copy
            .axes
            .iter()
            .zip(&copy.boxes)
            .map(|(axis, &b)| {
                let extent = match (axis, share) {
                    (Some(0), Some((_, size))) => copy.extents[0] / size,
                    (Some(a), _) => copy.extents[*a],
                    (None, _) => 1,
                };
                (extent.div_ceil(b.max(1)) * b) as i64
            })
            .product();
        let job = self.job(copy, rows, vec![], boxes * bits / 8, node.op);
        self.with_chip(|c, id| {
            let own = c.reached(id, ring, part, false, false)[0];
            let to = c.reached(id, ring, part, false, share.is_some());
            c.load(Job { by: id, to, ..job }, expected, own, class_swizzle(copy.swizzle));
        });
    }

    /// Rows of a copy; with a share only those of one block.
    fn engine_rows(&mut self, fr: &Lanes, c: &EngineCopy, share: Option<(usize, usize)>) -> Vec<Row> {
        let base = self.scalar(fr, &c.address);
        let values = |w: &Self, list: &[Ix]| -> Vec<i64> { list.iter().map(|ix| w.scalar(fr, ix)).collect() };
        let (at, extents, strides) = (values(self, &c.at), values(self, &c.map_extents), values(self, &c.map_strides));
        let rank = c.extents.len();
        let last = rank.wrapping_sub(1);
        let (first, end) = match share {
            Some((n, size)) => (n * (c.extents[0] / size), (n + 1) * (c.extents[0] / size)),
            None => (0, c.extents.first().copied().unwrap_or(1)),
        };
        let mut rows = vec![];
        let count: usize = c.extents[..last].iter().product();
        for row in 0..count {
            let mut x = vec![0i64; rank];
            let mut rest = row;
            for axis in (0..last).rev() {
                x[axis] = (rest % c.extents[axis]) as i64;
                rest /= c.extents[axis];
            }
            if rank > 1 && !(first as i64..end as i64).contains(&x[0]) {
                continue;
            }
            let tile = x.iter().zip(&c.strides).fold(base, |v, (x, s)| v + x * s);
            let (mut lo, mut hi) = (0i64, c.extents[last] as i64);
            let (mut from, mut step) = (0i64, 0i64);
            for (n, axis) in c.axes.iter().enumerate() {
                let place = at[n] + axis.map_or(0, |a| x[a]);
                from += place * strides[n];
                if *axis == Some(last) {
                    step = strides[n];
                    lo = lo.max(-place);
                    hi = hi.min(extents[n] - place);
                } else if !(0..extents[n]).contains(&place) {
                    hi = 0;
                }
            }
            let hi = hi.max(lo);
            rows.push(Row {
                tile: [tile, c.strides[last]],
                len: c.extents[last],
                lo: lo.clamp(0, c.extents[last] as i64) as usize,
                hi: hi.clamp(0, c.extents[last] as i64) as usize,
                tensor: [from + lo * step, step],
            });
        }
        rows
    }

    fn product(&mut self, fr: &mut Lanes, node: &Node, g: &Gemm, hold: bool) {
        if !hold {
            self.wait_products(fr, 0);
        }
        let bare = Node { instr: Instr::Nothing, span: node.span, op: node.op };
        let mut fixed = g.clone();
        for o in [&mut fixed.a, &mut fixed.b] {
            let at = self.scalar(fr, &o.access.address);
            o.access.address = Ix { c: at, uniform: vec![], elem: vec![], lanes: vec![] };
        }
        let [m, n, k] = g.shape;
        self.operand_read(&bare, &fixed.a, [m, k]);
        self.operand_read(&bare, &fixed.b, [k, n]);
        if !hold {
            self.gemm(fr, &bare, &fixed);
            self.with_chip(|c, id| {
                let [_, products] = c.own_engines(id);
                c.procs[id].products += 1;
                let p = &mut c.procs[id];
                p.leader.learn(products, p.products);
                p.rest.learn(products, p.products);
            });
            return;
        }
        self.with_chip(|c, id| c.procs[id].products += 1);
        let Place::Tile(acc) = g.acc.place else { return };
        if !self.aside.iter().any(|a| a.0 == acc) {
            let mut empty = match &self.tiles[acc] {
                Tile::F(v) => Tile::F(vec![0.0; v.len()]),
                Tile::None | Tile::I(_) | Tile::L(_) | Tile::Bytes(_) => Tile::None,
            };
            empty.poison(DType::F32);
            let real = std::mem::replace(&mut self.tiles[acc], empty);
            self.aside.push((acc, real));
        }
        self.held.push(Held { product: fixed, node: bare, acc, computed: false });
        let early = self.agent.is_some_and(|a| a.stage.lock().timing == Timing::Early);
        if early {
            let last = self.held.len() - 1;
            self.compute_held(fr, last);
        }
    }

    fn compute_held(&mut self, fr: &Lanes, n: usize) {
        if self.held[n].computed {
            return;
        }
        let (product, acc) = (self.held[n].product.clone(), self.held[n].acc);
        let node = self.held[n].node.clone();
        let Some(at) = self.aside.iter().position(|a| a.0 == acc) else { return };
        // What the program did to the accumulator meanwhile is lost.
        std::mem::swap(&mut self.tiles[acc], &mut self.aside[at].1);
        self.gemm(fr, &node, &product);
        std::mem::swap(&mut self.tiles[acc], &mut self.aside[at].1);
        self.held[n].computed = true;
    }

    /// Waits for all products but the last `pending`.
    fn wait_products(&mut self, fr: &Lanes, pending: usize) {
        let done = self.held.len().saturating_sub(pending);
        for n in 0..done {
            self.compute_held(fr, n);
        }
        let over: Vec<Held> = self.held.drain(..done).collect();
        for h in over {
            if self.held.iter().any(|x| x.acc == h.acc) {
                continue;
            }
            if let Some(at) = self.aside.iter().position(|a| a.0 == h.acc) {
                let (_, real) = self.aside.remove(at);
                self.tiles[h.acc] = real;
            }
        }
        let pending = self.held.len() as u32;
        self.with_chip(|c, id| {
            let [_, products] = c.own_engines(id);
            let p = &mut c.procs[id];
            let time = p.products.saturating_sub(pending);
            p.leader.learn(products, time);
            p.rest.learn(products, time);
        });
    }

    /// Judges the read of an operand by the matrix unit.
    fn operand_read(&mut self, node: &Node, o: &Operand, [rows, columns]: [usize; 2]) {
        let Place::Tile(t) = o.access.place else { return };
        if self.shared.kernel.buffer(self.shared.program.tiles[t].buffer).space != Space::Shared {
            return;
        }
        let (base, bits) = (o.access.address.c, o.access.dtype.bits());
        let [down, along] = o.strides;
        let (lines, len, [line, step]) =
            if along == 1 { (rows, columns, [down, 1]) } else { (columns, rows, [along, down]) };
        self.with_chip(|c, id| {
            let [_, products] = c.own_engines(id);
            let (swizzle, block) = (c.swizzle(t), c.procs[id].block);
            let time = c.procs[id].products + 1;
            for i in 0..lines {
                let range = Range { at: base + i as i64 * line, stride: step, count: len, bits };
                c.touch_async(id, block, Use::Read, t, range, (products, time), swizzle, node.op);
            }
        });
    }
}
