//! The symbolic protocol: each role's program is walked once, with the state of every part of its current items.
//!
//! A loop's body leaves the state as it found it, arms of a branch leave the same state; so what holds for one turn holds
//! for all. How many items a role walks over is a name made of the loops around its `advance`s, which must be equal in
//! all roles of a ring.

use super::items::{Count, Phase, State, shares, total};
use super::names::Names;
use super::{Findings, Roles};
use crate::ir::effects::{EffectKind, deep_effects};
use crate::ir::{
    Base, BlockId, IfResult, IxExpr, IxId, IxVarId, Kernel, MapId, Op, OpId, Region, RingId, RoleId, SchedOp, ViewId,
};
use crate::valid::scopes::leaves;
use std::collections::{HashMap, HashSet};

/// Items of a loop of known length that are written out in the name of a count, where instances take turns.
const MOST_ITEMS: usize = 64;

pub(super) fn check<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    let mut items: HashMap<(RingId, RoleId), (String, OpId)> = HashMap::new();
    let mut bytes = HashMap::new();
    for &(role, body) in &roles.programs {
        let mut w = Walk {
            roles,
            out,
            role,
            names: Names::new(roles.k),
            depth: 0,
            slots: HashMap::new(),
            kept: HashMap::new(),
            bytes: &mut bytes,
            breaks: vec![],
            used: HashMap::new(),
        };
        let (end, count) = w.block(body, State::default());
        if let Some(end) = end {
            for (&(ring, part), phase) in &end.0 {
                w.left_open(RingId(ring), part, phase);
            }
        }
        for (ring, text) in count {
            items.insert((RingId(ring), role), (total(&text), w.used.get(&ring).copied().unwrap_or(roles.op)));
        }
    }
    let empty = (String::new(), roles.op);
    for (r, ring) in roles.k.rings.iter().enumerate() {
        let id = RingId(r as u32);
        let filled = items.get(&(id, ring.producer)).unwrap_or(&empty);
        for &c in &ring.consumers {
            let read = items.get(&(id, c)).unwrap_or(&empty);
            if filled.0 != read.0 {
                let (from, to) = (&roles.role(ring.producer).name, &roles.role(c).name);
                let shown = |s: &str| if s.is_empty() { "no items".to_string() } else { format!("`{s}`") };
                out.pair(
                    "V0506",
                    read.1,
                    format!(
                        "ring `{}` carries {} items from role `{from}` and {} to role `{to}`",
                        ring.name,
                        shown(&filled.0),
                        shown(&read.0)
                    ),
                    ("it is filled", filled.1),
                    "walk over the same items in both roles: the same loops with the same bounds around `advance`",
                );
            }
        }
        for part in 0..ring.parts.len() as u32 {
            shares(roles, out, id, part);
        }
    }
}

struct Walk<'a, 'k> {
    roles: &'a Roles<'k>,
    out: &'a mut Findings<'k>,
    role: RoleId,
    names: Names<'k>,
    depth: usize,
    /// Slots of current items.
    slots: HashMap<IxVarId, (RingId, u32)>,
    /// Slots a producer has published and may still read until it acquires the next.
    kept: HashMap<IxVarId, (RingId, u32)>,
    bytes: &'a mut HashMap<(RingId, u32), (usize, OpId)>,
    /// For each loop around: its state at the start, and at each `break`.
    breaks: Vec<(State, Vec<State>)>,
    /// First op on each ring.
    used: HashMap<u32, OpId>,
}

impl<'k> Walk<'_, 'k> {
    fn k(&self) -> &'k Kernel {
        self.roles.k
    }

    fn produces(&self, ring: RingId) -> bool {
        self.k().rings[ring.0 as usize].producer == self.role
    }

    fn me(&self) -> &'k str {
        &self.roles.role(self.role).name
    }

    fn left_open(&mut self, ring: RingId, part: u32, phase: &Phase) {
        let name = self.roles.part(ring, part);
        let (verb, close) = if self.produces(ring) { ("acquired", "publish") } else { ("taken", "release") };
        match phase {
            Phase::Open { by, .. } => self.out.op(
                if self.produces(ring) { "V0502" } else { "V0503" },
                *by,
                format!("{name} is {verb} and not {close}d on every path of role `{}`", self.me()),
                "publish what is acquired and release what is taken, once a turn",
            ),
            Phase::Done => {
                let at = self.used.get(&ring.0).copied().unwrap_or(self.roles.op);
                let m = format!("role `{}` ends without having advanced on {name}", self.me());
                self.out.op("V0504", at, m, "advance behind the last use of an item");
            }
        }
    }

    fn block(&mut self, id: BlockId, mut state: State) -> (Option<State>, Count) {
        let mut count = Count::new();
        for &op in &self.k().block(id).ops {
            match self.op(op, state, &mut count) {
                Some(next) => state = next,
                None => return (None, count),
            }
        }
        (Some(state), count)
    }

    fn op(&mut self, id: OpId, state: State, count: &mut Count) -> Option<State> {
        let k = self.k();
        match &k.op(id).op {
            Op::For { var, lo, hi, body, .. } => {
                let (var, lo, hi, body) = (*var, *lo, *hi, *body);
                let name = format!("{}..{}", self.names.index(lo), self.names.index(hi));
                self.names.name(var, format!("i{}", self.depth));
                let turns = match (k.ix_const(lo), k.ix_const(hi)) {
                    (Some(a), Some(b)) => Some((b - a).max(0) as usize),
                    _ => None,
                };
                Some(self.looped(id, body, state, count, &name, turns))
            }
            Op::Sched(SchedOp::Tiles { vars, rows, body }) => {
                for (n, &v) in vars.iter().enumerate() {
                    self.names.name(v, format!("t{n}"));
                }
                let name = match rows {
                    Some(r) => format!("tiles with rows of {} by {}", self.names.view(r.counts), r.tile),
                    None => "tiles".to_string(),
                };
                Some(self.looped(id, *body, state, count, &name, None))
            }
            Op::Loop { body } => Some(self.looped(id, *body, state, count, "loop", None)),
            Op::Break => {
                if let Some(b) = self.breaks.last_mut() {
                    b.1.push(state);
                }
                None
            }
            Op::Continue => {
                if let Some(b) = self.breaks.last() {
                    let start = b.0.clone();
                    self.unequal(id, &start, &state, "at `continue`");
                }
                None
            }
            Op::If { cond, then, els, results } => {
                let joins = results.iter().any(|r| matches!(r, IfResult::Index { .. }));
                let name = if joins { format!("#{}", id.0) } else { self.names.value(*cond) };
                let (a, ca) = self.block(*then, state.clone());
                let (b, cb) = self.block(*els, state);
                let rings: HashSet<u32> = ca.keys().chain(cb.keys()).copied().collect();
                for r in rings {
                    let (x, y) = (ca.get(&r).cloned().unwrap_or_default(), cb.get(&r).cloned().unwrap_or_default());
                    let own = count.entry(r).or_default();
                    match total(&x) == total(&y) {
                        true => own.extend(x),
                        false => own.push(format!("if {name} ({}) else ({}) ", total(&x), total(&y))),
                    }
                }
                match (a, b) {
                    (Some(mut a), Some(mut b)) => {
                        a.fill(&mut b);
                        self.unequal(id, &a, &b, "in the arms of a branch");
                        Some(a)
                    }
                    (a, b) => a.or(b),
                }
            }
            Op::Sched(op) => Some(self.sched(id, op, state, count)),
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
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. } => {
                let mut state = state;
                self.touches(id, &mut state);
                Some(state)
            }
        }
    }

    fn looped(
        &mut self,
        id: OpId,
        body: BlockId,
        start: State,
        count: &mut Count,
        name: &str,
        turns: Option<usize>,
    ) -> State {
        self.depth += 1;
        self.breaks.push((start.clone(), vec![]));
        let (end, inner) = self.block(body, start.clone());
        let (_, breaks) = self.breaks.pop().unwrap_or_default();
        self.depth -= 1;
        for (ring, text) in inner {
            // Where instances take turns, one turn of theirs is several items of the producer, in a loop or one by one.
            let few = turns.filter(|&n| {
                let items = n * text.len();
                self.k().rings[ring as usize].turns > 1 && items <= MOST_ITEMS && text.iter().all(|c| c == ".")
            });
            let text = few
                .map_or_else(|| vec![format!("for {name} ({}) ", total(&text))], |n| vec![".".into(); n * text.len()]);
            count.entry(ring).or_default().extend(text);
        }
        let mut after = start.clone();
        if let Some(mut end) = end {
            // Copies of a loop add up in the part that was acquired around it.
            for (key, phase) in &mut after.0 {
                if let (Phase::Open { bytes, .. }, Some(Phase::Open { bytes: more, .. })) = (phase, end.0.get_mut(key))
                    && *more > *bytes
                {
                    let each = *more - *bytes;
                    match turns {
                        Some(n) => {
                            *bytes += n * each;
                            *more = *bytes;
                        }
                        None => {
                            let name = self.roles.part(RingId(key.0), key.1);
                            let m = format!(
                                "the bytes copied into {name} depend on a trip count that is known only at run time"
                            );
                            self.out.op(
                                "V0507",
                                id,
                                m,
                                "acquire and publish inside the loop, or copy the same boxes each time",
                            );
                            *more = *bytes;
                        }
                    }
                }
            }
            self.unequal(id, &after, &end, "behind a turn of a loop");
        }
        for b in breaks {
            self.unequal(id, &start, &b, "at `break`");
        }
        after
    }

    fn unequal(&mut self, id: OpId, a: &State, b: &State, place: &str) {
        if a.same(b) {
            return;
        }
        let keys: HashSet<(u32, u32)> = a.0.keys().chain(b.0.keys()).copied().collect();
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort();
        let Some(&(ring, part)) = keys.iter().find(|k| {
            let one = State(a.0.get(k).map(|p| (**k, p.clone())).into_iter().collect());
            !one.same(&State(b.0.get(k).map(|p| (**k, p.clone())).into_iter().collect()))
        }) else {
            return;
        };
        let fills = self.produces(RingId(ring));
        let word = |p: Option<&Phase>| match (p, fills) {
            (None, _) => "untouched".to_string(),
            (Some(Phase::Open { bytes: 0, .. }), true) => "acquired".into(),
            (Some(Phase::Open { bytes, .. }), true) => format!("acquired with {bytes} bytes under way"),
            (Some(Phase::Open { .. }), false) => "taken".into(),
            (Some(Phase::Done), true) => "published, not advanced".into(),
            (Some(Phase::Done), false) => "released, not advanced".into(),
        };
        let open = [b, a].into_iter().find_map(|s| match s.0.get(&(ring, part)) {
            Some(Phase::Open { by, .. }) => Some(*by),
            Some(Phase::Done) | None => None,
        });
        let m = format!(
            "paths of role `{}` disagree {place}: {} is {} on one and {} on another",
            self.me(),
            self.roles.part(RingId(ring), part),
            word(a.0.get(&(ring, part))),
            word(b.0.get(&(ring, part)))
        );
        let help = "give every path the same acquire, publish, take, release and advance of every part";
        match open {
            Some(by) => self.out.pair("V0505", id, m, ("it was opened", by), help),
            None => self.out.op("V0505", id, m, help),
        }
    }

    fn sched(&mut self, id: OpId, op: &'k SchedOp, mut s: State, count: &mut Count) -> State {
        match op {
            SchedOp::Acquire { ring, part, slot } | SchedOp::Take { ring, part, slot } => {
                let takes = matches!(op, SchedOp::Take { .. });
                self.used.entry(ring.0).or_insert(id);
                if !self.belongs(id, *ring, takes) {
                    return s;
                }
                let name = self.roles.part(*ring, *part);
                let (code, verb) = if takes { ("V0503", "taken") } else { ("V0502", "acquired") };
                if let Some(old) = s.0.get(&(ring.0, *part)) {
                    let by = if let Phase::Open { by, .. } = old { *by } else { id };
                    let m = format!("{name} is {verb} twice for one item in role `{}`", self.me());
                    self.out.pair(code, id, m, ("first", by), "advance to the next item in between");
                }
                if !takes {
                    self.kept.retain(|_, at| at.0 != *ring);
                }
                self.slots.insert(*slot, (*ring, *part));
                s.0.insert((ring.0, *part), Phase::Open { bytes: 0, wrote: None, by: id });
            }
            SchedOp::Publish { ring, part } => {
                self.used.entry(ring.0).or_insert(id);
                if !self.belongs(id, *ring, false) {
                    return s;
                }
                let name = self.roles.part(*ring, *part);
                let Some(&Phase::Open { bytes, wrote, .. }) = s.0.get(&(ring.0, *part)) else {
                    let m = format!("{name} is published without being acquired in role `{}`", self.me());
                    self.out.op("V0502", id, m, "acquire the part first, and publish it once");
                    return s;
                };
                if self.roles.copied(*ring, *part) && (bytes > 0 || wrote.is_none()) {
                    match self.bytes.get(&(*ring, *part)) {
                        Some(&(first, at)) if first != bytes => {
                            let m = format!("copies bring {bytes} bytes into {name} here and {first} elsewhere");
                            self.out.pair(
                                "V0507",
                                id,
                                m,
                                ("the other time is", at),
                                "copy the same boxes into the part each time",
                            );
                        }
                        Some(_) => {}
                        None => {
                            self.bytes.insert((*ring, *part), (bytes, id));
                        }
                    }
                }
                s.0.insert((ring.0, *part), Phase::Done);
            }
            SchedOp::Release { ring, part } => self.release(id, *ring, *part, &mut s),
            SchedOp::Advance { ring, by } => {
                self.used.entry(ring.0).or_insert(id);
                let r = &self.k().rings[ring.0 as usize];
                if !self.produces(*ring) && !r.consumers.contains(&self.role) {
                    self.belongs(id, *ring, true);
                    return s;
                }
                let step = self.roles.step(*ring, self.role);
                if *by != step {
                    let m = format!(
                        "role `{}` goes {by} items on along ring `{}`, its next item is {step} further",
                        self.me(),
                        r.name
                    );
                    let help = "every role of a ring handles each of its items, or each that is its turn: advance by 1, or by \
                                the number of instances that take turns";
                    self.out.op("V0504", id, m, help);
                }
                for part in 0..r.parts.len() as u32 {
                    let done = s.0.remove(&(ring.0, part));
                    if done == Some(Phase::Done) {
                        continue;
                    }
                    let verb = if self.produces(*ring) { "published" } else { "released" };
                    let m = format!("role `{}` goes on before {} is {verb}", self.me(), self.roles.part(*ring, part));
                    let help = "all parts of an item are handed over before the role advances";
                    match done {
                        Some(Phase::Open { by, .. }) => self.out.pair("V0504", id, m, ("it was opened", by), help),
                        Some(Phase::Done) | None => self.out.op("V0504", id, m, help),
                    }
                }
                let gone: Vec<IxVarId> = self.slots.iter().filter(|(_, at)| at.0 == *ring).map(|(v, _)| *v).collect();
                for v in gone {
                    if let Some(at) = self.slots.remove(&v)
                        && self.produces(*ring)
                    {
                        self.kept.insert(v, at);
                    }
                }
                count.entry(ring.0).or_default().extend(vec![".".to_string(); step]);
            }
            SchedOp::TmaLoad { map, src, dst, extents, ring, part, multicast, .. } => {
                self.touches(id, &mut s);
                if !self.belongs(id, *ring, false) {
                    return s;
                }
                let share = if *multicast { self.roles.cluster() } else { 1 };
                let size = self.k().view(dst.view).dtype.bits();
                let want = extents.iter().product::<usize>() * size / 8;
                self.boxes(id, *map, src, (dst, extents), share);
                if self.tile(dst.view) != Some((*ring, *part)) {
                    let m = format!("a copy counts on {} and goes elsewhere", self.roles.part(*ring, *part));
                    self.out.op("V0509", id, m, "copy into a tile of the part it is counted on");
                }
                match s.0.get_mut(&(ring.0, *part)) {
                    Some(Phase::Open { bytes, wrote, .. }) => {
                        *bytes += want;
                        let wrote = *wrote;
                        self.one_way(id, *ring, *part, (want > 0).then_some(id).zip(wrote));
                    }
                    Some(Phase::Done) | None => {
                        let m = format!("a copy goes into {}, which is not acquired", self.roles.part(*ring, *part));
                        self.out.op("V0502", id, m, "acquire the part before, publish it behind the copy");
                    }
                }
            }
            SchedOp::Wgmma { release, .. } => {
                self.touches(id, &mut s);
                for &(ring, part) in release {
                    self.release(id, ring, part, &mut s);
                }
            }
            SchedOp::TmaStore { map, src, dst, extents, .. } => {
                self.touches(id, &mut s);
                self.boxes(id, *map, dst, (src, extents), 1);
            }
            SchedOp::Combine { .. } => self.touches(id, &mut s),
            SchedOp::Roles { .. }
            | SchedOp::Tiles { .. }
            | SchedOp::TmaStoreWait { .. }
            | SchedOp::WgmmaWait { .. }
            | SchedOp::RoleBarrier { .. }
            | SchedOp::AsyncFence { .. }
            | SchedOp::ClusterBarrier { .. }
            | SchedOp::GridWait
            | SchedOp::GridAllow => {}
        }
        s
    }

    fn release(&mut self, id: OpId, ring: RingId, part: u32, s: &mut State) {
        self.used.entry(ring.0).or_insert(id);
        if !self.belongs(id, ring, true) {
            return;
        }
        if !matches!(s.0.get(&(ring.0, part)), Some(Phase::Open { .. })) {
            let twice = s.0.contains_key(&(ring.0, part));
            let how = if twice { "released twice" } else { "released without being taken" };
            let m = format!("{} is {how} in role `{}`", self.roles.part(ring, part), self.me());
            self.out.op("V0503", id, m, "take the part first, and release it once");
        }
        s.0.insert((ring.0, part), Phase::Done);
    }

    /// Whether the role may do this on the ring.
    fn belongs(&mut self, id: OpId, ring: RingId, consumes: bool) -> bool {
        let r = &self.k().rings[ring.0 as usize];
        let ok = if consumes { r.consumers.contains(&self.role) } else { r.producer == self.role };
        if !ok {
            let what = if consumes { "consumer" } else { "producer" };
            let m = format!(
                "`{}` on ring `{}` in role `{}`, which is not its {what}",
                self.k().op(id).op.name(),
                r.name,
                self.me()
            );
            self.out.op("V0501", id, m, "name the role among the ring's producer and consumers, or use another ring");
        }
        ok
    }

    /// An item is filled by copies or by threads.
    fn one_way(&mut self, id: OpId, ring: RingId, part: u32, both: Option<(OpId, OpId)>) {
        let Some((_, other)) = both else { return };
        let m = format!("an item of {} is filled by copies and by threads", self.roles.part(ring, part));
        let help = "fill an item in one way on each path, or give what threads write a part of its own";
        self.out.pair("V0507", id, m, ("the other way is", other), help);
    }

    fn tile(&self, view: ViewId) -> Option<(RingId, u32)> {
        match self.k().view(view).base {
            Base::Buffer(b) => self.roles.tiles.get(&b).copied(),
            Base::Param(_) => None,
        }
    }

    /// Accesses of rings' tiles: by whom they belong to, in the slot of the current item.
    fn touches(&mut self, id: OpId, s: &mut State) {
        let k = self.k();
        for e in deep_effects(k, id) {
            let Base::Buffer(b) = e.base(k) else { continue };
            let Some(&(ring, part)) = self.roles.tiles.get(&b) else { continue };
            let tile = &k.buffer(b).name;
            let r = &k.rings[ring.0 as usize];
            let fills = r.producer == self.role;
            let open = matches!(s.0.get(&(ring.0, part)), Some(Phase::Open { .. }));
            let verb = if e.kind == EffectKind::Read { "read" } else { "written" };
            let mine = match e.kind {
                EffectKind::Read => open || fills,
                EffectKind::Write | EffectKind::Atomic => open && fills,
            };
            if !mine {
                let turn = if fills { "acquired" } else { "taken" };
                let why = match (fills || r.consumers.contains(&self.role), e.kind) {
                    (false, _) => format!("ring `{}` does not lead there", r.name),
                    (true, EffectKind::Write | EffectKind::Atomic) if !fills => "only its producer writes it".into(),
                    (true, _) => format!("{} is not {turn} at that point", self.roles.part(ring, part)),
                };
                let m = format!("`{tile}` is {verb} in role `{}`, but {why}", self.me());
                self.out.op("V0509", id, m, "take the part before it is read and release it behind the last read");
                continue;
            }
            // The copy itself is counted where its part is named.
            if e.kind != EffectKind::Read
                && !matches!(k.op(e.op).op, Op::Sched(_))
                && let Some(Phase::Open { bytes, wrote, by }) = s.0.get_mut(&(ring.0, part))
            {
                let (copied, by) = (*bytes > 0, *by);
                *wrote = Some(e.op);
                self.one_way(e.op, ring, part, copied.then_some((e.op, by)));
            }
            let Some(view) = e.view() else { continue };
            self.slot(id, view, b, ring, r.depth);
        }
    }

    /// The slot in a view of a ring's tile.
    fn slot(&mut self, id: OpId, view: ViewId, b: crate::ir::BufferId, ring: RingId, depth: usize) {
        let k = self.k();
        let offset = k.view(view).offset;
        let vars = leaves(k, offset).0;
        let current = |w: &Self, v: &IxVarId| w.slots.get(v).or_else(|| w.kept.get(v)).copied();
        let slot = vars.iter().find_map(|v| current(self, v).filter(|at| at.0 == ring).map(|_| *v));
        let size: usize = k.buffer(b).extents[1..].iter().product();
        let (tile, name) = (&k.buffer(b).name, &k.rings[ring.0 as usize].name);
        let Some(slot) = slot else {
            if depth > 1 || vars.iter().any(|v| current(self, v).is_some()) {
                let m = format!("`{tile}` is accessed in a slot that is not the current one of ring `{name}`");
                self.out.op("V0509", id, m, "use the slot that `acquire` or `take` of this ring gave for this item");
            }
            return;
        };
        let at = |x: i64| eval(k, offset, &|v| if v == slot { x } else { 0 });
        if let (Some(a), Some(b)) = (at(0), at(1))
            && b - a != size as i64
        {
            let m = format!("slots of `{tile}` are {size} elements apart, this access takes {}", b - a);
            self.out.op("V0509", id, m, "multiply the slot by the size of one");
        }
    }

    /// Boxes of a copy cover its region exactly.
    fn boxes(&mut self, id: OpId, map: MapId, tensor: &Region, (tile, extents): (&Region, &[usize]), share: usize) {
        let k = self.k();
        let (m, v) = (&k.maps[map.0 as usize], k.view(tensor.view));
        let mut fail = |text: String, help: &str| self.out.op("V0507", id, text, help);
        let (a, b) = (k.view(tensor.view).dtype, k.view(tile.view).dtype);
        if a != b {
            fail(format!("a copy of the engine does not convert {a} and {b}"), "copy the same type");
            return;
        }
        if v.base != Base::Param(m.param) {
            fail(
                format!("the map sees `{}`, the copy another tensor", k.param(m.param).name),
                "use the map of the tensor",
            );
            return;
        }
        let mut free: Vec<usize> = (0..v.strides.len().min(extents.len())).collect();
        let mut boxed = 1usize;
        let mut covered = 1usize;
        for (n, stride) in m.strides.iter().enumerate() {
            let found = free.iter().copied().filter(|&a| v.strides[a] == *stride).max_by_key(|&a| extents[a]);
            let Some(axis) = found else {
                boxed *= m.boxes[n];
                continue;
            };
            free.retain(|&f| f != axis);
            let extent = if axis == 0 { extents[0] / share.max(1) } else { extents[axis] };
            covered *= extents[axis];
            if m.boxes[n] == 0 || !extent.is_multiple_of(m.boxes[n]) || (axis == 0 && !extents[0].is_multiple_of(share))
            {
                let text = format!("boxes of {:?} do not fill {extents:?} elements{}", m.boxes, shared(share));
                fail(text, "choose boxes that divide the tile, so that the bytes expected are those that come");
                return;
            }
        }
        if boxed > 1 || covered != extents.iter().product::<usize>() {
            let text = format!("boxes of {:?} bring other bytes than the {extents:?} elements of the copy", m.boxes);
            fail(text, "give the map the axes of the tensor's view, with boxes that divide the tile");
            return;
        }
        let (Some(shape), Some(start)) =
            (k.const_extents(tile.view), tile.start.iter().map(|&s| k.ix_const(s)).collect::<Option<Vec<i64>>>())
        else {
            return;
        };
        let inside = shape.len() == extents.len()
            && start.len() == extents.len()
            && shape.iter().zip(&start).zip(extents).all(|((&s, &at), &e)| at >= 0 && at as usize + e <= s);
        if !inside {
            fail(format!("a copy of {extents:?} elements leaves its tile of {shape:?}"), "copy what the tile holds");
        }
    }
}

fn shared(share: usize) -> String {
    if share > 1 { format!(" shared by {share} blocks") } else { String::new() }
}

/// Value of an index where all but variables is 0.
fn eval(k: &Kernel, e: IxId, var: &dyn Fn(IxVarId) -> i64) -> Option<i64> {
    let two = |a, b| Some((eval(k, a, var)?, eval(k, b, var)?));
    Some(match k.ix_expr(e) {
        IxExpr::Const(c) => c,
        IxExpr::Var(v) => var(v),
        IxExpr::Sym(_) | IxExpr::Data(_) => 0,
        IxExpr::Add(a, b) => two(a, b).map(|(a, b)| a + b)?,
        IxExpr::Sub(a, b) => two(a, b).map(|(a, b)| a - b)?,
        IxExpr::Mul(a, b) => two(a, b).map(|(a, b)| a * b)?,
        IxExpr::Div(a, b) => two(a, b).filter(|x| x.1 > 0).map(|(a, b)| a.div_euclid(b))?,
        IxExpr::Mod(a, b) => two(a, b).filter(|x| x.1 > 0).map(|(a, b)| a.rem_euclid(b))?,
        IxExpr::Min(a, b) => two(a, b).map(|(a, b)| a.min(b))?,
        IxExpr::Max(a, b) => two(a, b).map(|(a, b)| a.max(b))?,
    })
}
