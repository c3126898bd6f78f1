//! Visibility inside a role: threads, copy engines and matrix units see each other's work only after a fence, a barrier or
//! a wait.
//!
//! One walk over each program; loop bodies are walked twice, so that what one turn leaves is seen by the next. Between
//! roles only rings carry data, which is `protocol`'s matter; here it is judged that nothing else does.

use super::{Findings, Roles};
use crate::ir::effects::{EffectKind, deep_effects, effects, walk};
use crate::ir::{Base, BlockId, BufferId, Op, OpId, RingId, RoleId, SchedOp, Space};
use crate::valid::scopes::leaves;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    let k = roles.k;
    let mut waits = k.properties.launch.dependent;
    walk(k, k.body, &mut |_, op| waits |= matches!(op, Op::Sched(SchedOp::GridWait)));
    let engines = engine_tiles(roles);
    let ready = in_front(roles, &engines, out);
    let before = roles.before.iter().any(|&id| matches!(k.op(id).op, Op::Sched(SchedOp::GridWait)));
    for &(role, body) in &roles.programs {
        if waits {
            let mut waited = before;
            grid_wait(roles, out, role, body, &mut waited);
        }
        let mut w = Walk { roles, out, engines: &engines, alone: roles.role(role).one_thread };
        let end = w.block(body, State::default());
        for s in end.stores.iter().filter(|s| !s.read) {
            let m = format!("role `{}` ends while a store of the engine still reads its tile", roles.role(role).name);
            w.out.op("V0524", s.op, m, "wait for the stores with `tma_store_wait` at the end of the role");
        }
        for p in &end.products {
            let m = format!("role `{}` ends without having waited for a product", roles.role(role).name);
            w.out.op("V0523", p.op, m, "wait for the product");
        }
    }
    between(roles, &ready, out);
}

/// Tiles that engines read: operands of matrix units and sources of stores.
fn engine_tiles(roles: &Roles) -> BTreeSet<BufferId> {
    let k = roles.k;
    let mut all = BTreeSet::new();
    let mut add = |v| {
        if let Base::Buffer(b) = k.view(v).base {
            all.insert(b);
        }
    };
    for &(_, body) in &roles.programs {
        walk(k, body, &mut |_, op| {
            if let Op::Sched(SchedOp::Wgmma { a, b, .. }) = op {
                add(*a);
                add(*b);
            } else if let Op::Sched(SchedOp::TmaStore { src, .. }) = op {
                add(src.view);
            }
        });
    }
    all
}

/// Tiles written in front of the roles: met and, for engines, fenced before the roles start.
fn in_front(roles: &Roles, engines: &BTreeSet<BufferId>, out: &mut Findings) -> BTreeSet<BufferId> {
    let k = roles.k;
    let mut written: BTreeMap<BufferId, (OpId, bool, bool)> = BTreeMap::new();
    for &id in &roles.before {
        let op = &k.op(id).op;
        if matches!(op, Op::Sched(SchedOp::AsyncFence { .. })) {
            written.values_mut().for_each(|w| w.1 = true);
        } else if matches!(op, Op::BlockBarrier { .. } | Op::Sched(SchedOp::RoleBarrier { .. })) {
            written.values_mut().for_each(|w| w.2 = true);
        }
        for e in deep_effects(k, id) {
            if e.kind != EffectKind::Read
                && let Base::Buffer(b) = e.base(k)
                && k.buffer(b).space == Space::Shared
            {
                written.insert(b, (id, false, false));
            }
        }
    }
    for (b, &(id, fenced, met)) in &written {
        let name = &k.buffer(*b).name;
        if !met {
            let m = format!("`{name}` is written in front of the roles, and no barrier of the block stands behind");
            out.op("V0525", id, m, "put a barrier of all threads between the write and the roles");
        }
        if !fenced && engines.contains(b) {
            let m = format!(
                "`{name}` is written by threads in front of the roles and read by an engine in them, without a fence"
            );
            out.op("V0521", id, m, "put `async_fence` behind the write, then the barrier");
        }
    }
    written.into_keys().collect()
}

/// Memory is touched only behind the wait for the kernel before.
fn grid_wait(roles: &Roles, out: &mut Findings, role: RoleId, body: BlockId, waited: &mut bool) {
    let k = roles.k;
    for &id in &k.block(body).ops {
        if *waited {
            return;
        }
        match &k.op(id).op {
            Op::Sched(SchedOp::GridWait) => *waited = true,
            op => {
                for e in effects(k, id) {
                    if let Base::Param(p) = e.base(k) {
                        let m = format!(
                            "role `{}` touches `{}` before it has waited for the kernel that ran before",
                            roles.role(role).name,
                            k.param(p).name
                        );
                        out.op("V0513", id, m, "put `grid_wait` at the start of the role");
                    }
                }
                for b in crate::ir::effects::bodies(op) {
                    // A body may not run at all.
                    let mut inner = false;
                    grid_wait(roles, out, role, b, &mut inner);
                }
            }
        }
    }
}

/// Tiles outside of rings: one instance of one role writes each, or all read what was written in front of them.
fn between(roles: &Roles, ready: &BTreeSet<BufferId>, out: &mut Findings) {
    let k = roles.k;
    let mut users: BTreeMap<BufferId, Vec<(RoleId, bool, OpId)>> = BTreeMap::new();
    for &(role, body) in &roles.programs {
        let instance = roles.role(role).instance;
        walk(k, body, &mut |id, op| {
            // It has its own order inside: see `sums`.
            if matches!(op, Op::Sched(SchedOp::Combine { .. })) {
                return;
            }
            for e in effects(k, id) {
                let Base::Buffer(b) = e.base(k) else { continue };
                if k.buffer(b).space != Space::Shared || roles.tiles.contains_key(&b) {
                    continue;
                }
                let writes = e.kind != EffectKind::Read;
                users.entry(b).or_default().push((role, writes, id));
                let named = |v| leaves(k, k.view(v).offset).0;
                let own = e.view().is_some_and(|v| instance.is_some_and(|i| named(v).contains(&i)));
                if writes && roles.role(role).instances > 1 && !own {
                    let m = format!(
                        "the {} instances of role `{}` write the same elements of `{}`",
                        roles.role(role).instances,
                        roles.role(role).name,
                        k.buffer(b).name
                    );
                    out.op("V0525", id, m, "give each instance a part of the tile of its own");
                }
            }
        });
    }
    for (b, list) in users {
        let name = &k.buffer(b).name;
        let Some(&(writer, _, at)) = list.iter().find(|u| u.1) else {
            if !ready.contains(&b)
                && let Some(u) = list.first()
            {
                let m = format!("`{name}` is read in a role and written nowhere before");
                out.op("V0525", u.2, m, "write it in front of the roles, or hand it over through a ring");
            }
            continue;
        };
        if let Some(other) = list.iter().find(|u| u.0 != writer) {
            let m = format!(
                "`{name}` is shared by roles `{}` and `{}` without a ring",
                roles.role(writer).name,
                roles.role(other.0).name
            );
            out.pair("V0525", other.2, m, ("it is written", at), "hand the tile over through a ring");
        } else if ready.contains(&b) {
            let m =
                format!("`{name}` is written in front of the roles and again in role `{}`", roles.role(writer).name);
            out.op("V0525", at, m, "tiles written in front of the roles are only read in them");
        }
    }
}

/// A tile as threads of the role have left it.
#[derive(Clone, Debug, Default)]
struct Tile {
    /// Last ordinary write, whether it was fenced, and whether the threads have met since.
    write: Option<(OpId, bool, bool)>,
    /// Last ordinary read, and whether the threads have met since.
    read: Option<(OpId, bool)>,
}

/// A store of the engine.
#[derive(Clone, Debug)]
struct Store {
    op: OpId,
    tile: BufferId,
    /// Its threads know that the tile was read.
    read: bool,
}

/// A product that goes on.
#[derive(Clone, Debug)]
struct Product {
    op: OpId,
    acc: BufferId,
    operands: [BufferId; 2],
}

#[derive(Clone, Debug, Default)]
struct State {
    tiles: BTreeMap<BufferId, Tile>,
    stores: Vec<Store>,
    products: Vec<Product>,
}

impl State {
    /// The worse of both paths.
    fn join(mut self, other: State) -> State {
        for (b, t) in other.tiles {
            let mine = self.tiles.entry(b).or_default();
            mine.write = match (mine.write, t.write) {
                (Some(a), Some(b)) => Some((a.0, a.1 && b.1, a.2 && b.2)),
                (a, b) => a.or(b),
            };
            mine.read = match (mine.read, t.read) {
                (Some(a), Some(b)) => Some((a.0, a.1 && b.1)),
                (a, b) => a.or(b),
            };
        }
        for s in other.stores {
            match self.stores.iter_mut().find(|x| x.op == s.op) {
                Some(x) => x.read &= s.read,
                None => self.stores.push(s),
            }
        }
        for p in other.products {
            if !self.products.iter().any(|x| x.op == p.op) {
                self.products.push(p);
            }
        }
        self
    }
}

struct Walk<'a, 'k> {
    roles: &'a Roles<'k>,
    out: &'a mut Findings<'k>,
    engines: &'a BTreeSet<BufferId>,
    /// One thread runs the role: it needs no barrier to know what it did.
    alone: bool,
}

impl<'k> Walk<'_, 'k> {
    fn block(&mut self, id: BlockId, mut s: State) -> State {
        for &op in &self.roles.k.block(id).ops {
            s = self.op(op, s);
        }
        s
    }

    fn op(&mut self, id: OpId, mut s: State) -> State {
        let k = self.roles.k;
        match &k.op(id).op {
            Op::For { body, .. } | Op::Loop { body } | Op::Sched(SchedOp::Tiles { body, .. }) => {
                let once = self.block(*body, s.clone());
                let twice = self.block(*body, once.clone().join(s.clone()));
                s.join(once).join(twice)
            }
            Op::If { then, els, .. } => {
                let a = self.block(*then, s.clone());
                a.join(self.block(*els, s))
            }
            Op::Sched(SchedOp::AsyncFence { .. }) => {
                s.tiles.values_mut().filter_map(|t| t.write.as_mut()).for_each(|w| w.1 = true);
                s
            }
            Op::Sched(SchedOp::RoleBarrier { .. }) => {
                for t in s.tiles.values_mut() {
                    t.write.iter_mut().for_each(|w| w.2 = true);
                    t.read.iter_mut().for_each(|r| r.1 = true);
                }
                s.stores.retain(|x| !x.read);
                s
            }
            Op::Sched(SchedOp::TmaStoreWait { pending, .. }) => {
                let n = s.stores.len();
                s.stores.iter_mut().take(n.saturating_sub(*pending)).for_each(|x| x.read = true);
                if self.alone {
                    s.stores.retain(|x| !x.read);
                }
                s
            }
            Op::Sched(SchedOp::WgmmaWait { pending }) => {
                let n = s.products.len().saturating_sub(*pending);
                s.products.drain(..n);
                s
            }
            Op::Sched(SchedOp::Acquire { ring, part, .. } | SchedOp::Take { ring, part, .. }) => {
                for b in self.tiles_of(*ring, *part) {
                    s.tiles.remove(&b);
                }
                s
            }
            Op::Sched(SchedOp::Publish { ring, part }) => {
                for b in self.tiles_of(*ring, *part) {
                    if let Some(Tile { write: Some((by, false, _)), .. }) = s.tiles.get(&b)
                        && self.engines.contains(&b)
                    {
                        let m = format!(
                            "`{}` is written by threads and published to a role whose engines read it, without a fence",
                            k.buffer(b).name
                        );
                        self.out.pair(
                            "V0521",
                            id,
                            m,
                            ("it is written", *by),
                            "put `async_fence` between the write and `publish`",
                        );
                    }
                }
                s
            }
            Op::Sched(SchedOp::Release { ring, part }) => {
                self.free(id, *ring, *part, &s);
                s
            }
            Op::Sched(SchedOp::Wgmma { a, b, acc, set, release, hold, .. }) => {
                self.reads(id, &mut s);
                for v in [*a, *b] {
                    if let Base::Buffer(t) = k.view(v).base {
                        self.engine_reads(id, t, "a product", &s);
                    }
                }
                // One product may follow another into an accumulator that goes on.
                if *set || !*hold {
                    self.held(id, *acc, &s);
                }
                if *hold {
                    let operands = [*a, *b].map(|v| match k.view(v).base {
                        Base::Buffer(t) => t,
                        Base::Param(_) => *acc,
                    });
                    s.products.retain(|p| p.op != id);
                    s.products.push(Product { op: id, acc: *acc, operands });
                } else {
                    // It waits for all that went before.
                    s.products.clear();
                }
                for &(ring, part) in release {
                    self.free(id, ring, part, &s);
                }
                s
            }
            Op::Sched(SchedOp::Combine { acc, .. }) => {
                self.held(id, *acc, &s);
                s
            }
            Op::Sched(SchedOp::TmaStore { src, .. }) => {
                if let Base::Buffer(t) = k.view(src.view).base {
                    self.engine_reads(id, t, "a store of the engine", &s);
                    s.stores.retain(|x| x.op != id);
                    s.stores.push(Store { op: id, tile: t, read: false });
                }
                s
            }
            Op::Sched(
                SchedOp::TmaLoad { .. }
                | SchedOp::Roles { .. }
                | SchedOp::Advance { .. }
                | SchedOp::ClusterBarrier { .. }
                | SchedOp::GridWait
                | SchedOp::GridAllow,
            ) => s,
            Op::Const { .. }
            | Op::IndexValue { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Fma { .. }
            | Op::Compare { .. }
            | Op::CompareIndex { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. }
            | Op::Load { .. }
            | Op::LoadOr { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::Claim { .. }
            | Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Copy { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::Reduce { .. }
            | Op::ReduceRegion { .. }
            | Op::Scan { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. }
            | Op::Break
            | Op::Continue
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. } => {
                self.reads(id, &mut s);
                self.writes(id, &mut s);
                s
            }
        }
    }

    fn tiles_of(&self, ring: RingId, part: u32) -> Vec<BufferId> {
        self.roles.k.rings[ring.0 as usize].parts[part as usize].buffers.clone()
    }

    /// Ordinary reads of an op, its element bodies included.
    fn reads(&mut self, id: OpId, s: &mut State) {
        let k = self.roles.k;
        for e in deep_effects(k, id) {
            let Base::Buffer(b) = e.base(k) else { continue };
            if matches!(k.op(e.op).op, Op::Sched(_)) {
                continue;
            }
            if k.buffer(b).space == Space::Frag {
                self.held(e.op, b, s);
            }
            if e.kind != EffectKind::Read || k.buffer(b).space != Space::Shared {
                continue;
            }
            let t = s.tiles.entry(b).or_default();
            if let Some((by, _, false)) = t.write
                && !self.alone
                && by != id
            {
                let m = format!("`{}` is read by other threads than wrote it, without a barrier", k.buffer(b).name);
                self.out.pair("V0525", id, m, ("it is written", by), "put `role_barrier` between");
            }
            t.read = Some((id, false));
        }
    }

    fn writes(&mut self, id: OpId, s: &mut State) {
        let k = self.roles.k;
        for e in deep_effects(k, id) {
            let Base::Buffer(b) = e.base(k) else { continue };
            if e.kind == EffectKind::Read || k.buffer(b).space != Space::Shared {
                continue;
            }
            let name = &k.buffer(b).name;
            if let Some(x) = s.stores.iter().find(|x| x.tile == b) {
                let how = if x.read {
                    "one thread knows that the store has read it, the others do not"
                } else {
                    "a store of the engine may still read it"
                };
                let m = format!("`{name}` is written again while {how}");
                let help = "wait with `tma_store_wait`, then `role_barrier`, before the tile is written again";
                self.out.pair("V0522", id, m, ("the store is", x.op), help);
            }
            if let Some(p) = s.products.iter().find(|p| p.operands.contains(&b)) {
                let m = format!("`{name}` is written while a product may still read it");
                self.out.pair("V0523", id, m, ("the product is", p.op), "wait for the product first");
            }
            let t = s.tiles.entry(b).or_default();
            if let Some((by, false)) = t.read
                && by != id
                && !self.alone
            {
                let m = format!("`{name}` is written while other threads may still read it");
                self.out.pair("V0525", id, m, ("it is read", by), "put `role_barrier` between");
            }
            t.write = Some((id, false, false));
        }
    }

    /// An engine reads a tile: what threads of the role wrote must be fenced and met.
    fn engine_reads(&mut self, id: OpId, b: BufferId, who: &str, s: &State) {
        let Some(Tile { write: Some((by, fenced, met)), .. }) = s.tiles.get(&b) else { return };
        let name = &self.roles.k.buffer(b).name;
        if !fenced {
            let m = format!("{who} reads `{name}`, which threads wrote, without a fence");
            self.out.pair(
                "V0521",
                id,
                m,
                ("it is written", *by),
                "put `async_fence` behind the write, then `role_barrier`",
            );
        } else if !met && !self.alone {
            let m = format!("{who} reads `{name}` before all threads have written and fenced it");
            self.out.pair("V0521", id, m, ("it is written", *by), "put `role_barrier` behind `async_fence`");
        }
    }

    /// An accumulator is used while a product has it.
    fn held(&mut self, id: OpId, b: BufferId, s: &State) {
        if let Some(p) = s.products.iter().find(|p| p.acc == b) {
            let m =
                format!("the accumulator `{}` is used before its product was waited for", self.roles.k.buffer(b).name);
            self.out.pair("V0523", id, m, ("the product is", p.op), "call `wait` on the product first");
        }
    }

    /// A part is released: no product that goes on reads it.
    fn free(&mut self, id: OpId, ring: RingId, part: u32, s: &State) {
        let tiles = self.tiles_of(ring, part);
        if let Some(p) = s.products.iter().find(|p| p.operands.iter().any(|t| tiles.contains(t)) && p.op != id) {
            let m = format!("{} is released while a product may still read it", self.roles.part(ring, part));
            self.out.pair("V0523", id, m, ("the product is", p.op), "call `wait` on the product first");
        }
    }
}
