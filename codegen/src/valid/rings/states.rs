//! Rings run for a few turns: each role is reduced to the ops that wait or hand over, and all of them run together in
//! orders where one lags as far behind, or leads as far ahead, as the barriers let it.
//!
//! The barriers are those that are printed: a full and an empty one for each part of each slot, with parities. They only
//! count up, so whether all roles can end does not depend on the order; how far one barrier is ahead of a role that waits
//! for it does, and the lag of one role is largest when it goes last.

use super::names::Names;
use super::{Findings, Roles};
use crate::ir::effects::walk;
use crate::ir::{BlockId, Op, OpId, RingId, RoleId, SchedOp};
use std::collections::{BTreeSet, HashMap};

/// Steps of a program that are followed at most.
const LIMIT: usize = 4000;

pub(super) fn check<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    let k = roles.k;
    let depth = k.rings.iter().map(|r| r.depth).max().unwrap_or(1);
    let keys = loop_names(roles);
    let before = out.list.len();
    let mut turns: Vec<usize> = vec![0, 1, depth, depth + 1];
    turns.dedup();
    // Two tiles one after the other; a single one and none besides.
    let mut sizes: Vec<(usize, usize)> = turns.into_iter().map(|n| (2, n)).collect();
    sizes.extend([(1, depth + 1), (0, 1)]);
    let arms: &[bool] = if branches(roles) { &[true, false] } else { &[true] };
    for (waves, n) in sizes {
        for stagger in [false, true] {
            if stagger && keys.len() < 2 {
                continue;
            }
            for &arm in arms {
                let trips = |key: &str| {
                    let at = keys.iter().position(|x| x == key).unwrap_or(0);
                    if stagger { n + at } else { n }
                };
                let setting = Setting { waves, trips: &trips, arm, turns: n };
                Run::new(roles, &setting).explore(&setting, out);
                // One way to fail is enough.
                if out.list.len() > before {
                    return;
                }
            }
        }
    }
}

/// True if a branch of some role decides about rings.
fn branches(roles: &Roles) -> bool {
    let mut found = false;
    for &(_, body) in &roles.programs {
        walk(roles.k, body, &mut |_, op| {
            if let Op::If { then, els, .. } = op {
                for b in [*then, *els] {
                    walk(roles.k, b, &mut |_, op| found |= matches!(op, Op::Sched(_)));
                }
            }
        });
    }
    found
}

struct Setting<'a> {
    waves: usize,
    trips: &'a dyn Fn(&str) -> usize,
    /// Which arm of branches is run.
    arm: bool,
    turns: usize,
}

/// Names of loops whose trip counts are known only at run time.
fn loop_names(roles: &Roles) -> Vec<String> {
    let mut all = BTreeSet::new();
    for &(_, body) in &roles.programs {
        let mut names = Names::new(roles.k);
        collect(roles, &mut names, body, 0, &mut all);
    }
    all.into_iter().collect()
}

fn collect(roles: &Roles, names: &mut Names, block: BlockId, depth: usize, all: &mut BTreeSet<String>) {
    for &id in &roles.k.block(block).ops {
        let op = &roles.k.op(id).op;
        if let Op::For { lo, hi, .. } = op
            && (roles.k.ix_const(*lo).is_none() || roles.k.ix_const(*hi).is_none())
        {
            all.insert(format!("{}..{}", names.index(*lo), names.index(*hi)));
        }
        name_vars(op, names, depth);
        for b in crate::ir::effects::bodies(op) {
            collect(roles, names, b, depth + 1, all);
        }
    }
}

fn name_vars(op: &Op, names: &mut Names, depth: usize) {
    if let Op::For { var, .. } = op {
        names.name(*var, format!("i{depth}"));
    } else if let Op::Sched(SchedOp::Tiles { vars, .. }) = op {
        for (n, &v) in vars.iter().enumerate() {
            names.name(v, format!("t{n}"));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire(RingId, u32),
    Load(RingId, u32, bool),
    Publish(RingId, u32),
    Take(RingId, u32),
    Release(RingId, u32),
    Advance(RingId, usize),
    Cluster,
    /// Comes to the sum of a tile with this many instances in turn: may hand over its part.
    Hand(usize),
    /// Has the other parts, if it adds them up.
    Sum(usize),
}

/// Stands for a ring in the barriers of a sum over blocks: full where all parts have come, empty where they have been read.
const SUM: u32 = u32::MAX;

/// One instance of a role in one block.
#[derive(Debug)]
struct Process<'e> {
    block: usize,
    role: RoleId,
    instance: usize,
    events: &'e [(Event, OpId)],
    at: usize,
    /// Item on each ring.
    items: Vec<usize>,
    /// Releases of each part of each ring.
    released: HashMap<(u32, u32), usize>,
    /// Barriers of the cluster this process came to.
    meetings: usize,
    /// Steps of sums this process has taken: two each.
    sums: usize,
}

/// A barrier in shared memory.
#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    done: usize,
    arrived: usize,
    /// Shares of copies that are expected less those that came.
    bytes: i64,
}

struct Run<'a, 'k> {
    roles: &'a Roles<'k>,
    blocks: usize,
    programs: Vec<(RoleId, Vec<(Event, OpId)>)>,
    /// Parts that copies fill, and those that copies of other blocks reach.
    copied: BTreeSet<(u32, u32)>,
    /// Those of them whose items threads may fill instead.
    either: BTreeSet<(u32, u32)>,
    shared: BTreeSet<(u32, u32)>,
}

impl<'a, 'k> Run<'a, 'k> {
    fn new(roles: &'a Roles<'k>, setting: &Setting) -> Self {
        let mut programs = vec![];
        for &(role, body) in &roles.programs {
            let mut names = Names::new(roles.k);
            let mut events = vec![];
            flatten(roles, &mut names, body, setting, 0, &mut events);
            for &id in &roles.after {
                if matches!(roles.k.op(id).op, Op::Sched(SchedOp::ClusterBarrier { .. })) {
                    events.push((Event::Cluster, id));
                }
            }
            programs.push((role, events));
        }
        let (mut copied, mut shared) = (BTreeSet::new(), BTreeSet::new());
        for &(_, body) in &roles.programs {
            walk(roles.k, body, &mut |_, op| {
                if let Op::Sched(SchedOp::TmaLoad { ring, part, multicast, .. }) = op {
                    copied.insert((ring.0, *part));
                    if *multicast && roles.cluster() > 1 {
                        shared.insert((ring.0, *part));
                    }
                }
            });
        }
        let either = copied.iter().copied().filter(|&(r, p)| roles.either(RingId(r), p)).collect();
        Run { roles, blocks: roles.cluster(), programs, copied, either, shared }
    }

    fn explore(&self, setting: &Setting, out: &mut Findings<'k>) {
        let count: usize = self.programs.iter().map(|p| self.roles.role(p.0).instances).sum::<usize>() * self.blocks;
        let before = out.list.len();
        // One instance of each role last, then first, and all in turn: instances and blocks do the same.
        let mut special = 0;
        for (role, _) in &self.programs {
            for first in [false, true] {
                let order = |n: usize, _: usize| match (n == special, first) {
                    (true, true) => 0,
                    (true, false) => 2,
                    (false, _) => 1,
                };
                self.run(&order, setting, out);
                if out.list.len() > before {
                    return;
                }
            }
            special += self.roles.role(*role).instances;
        }
        self.run(&|n, step| (n + count - step % count) % count, setting, out);
    }

    /// Runs with the process of the lowest rank that can go on.
    fn run(&self, rank: &dyn Fn(usize, usize) -> usize, setting: &Setting, out: &mut Findings<'k>) {
        let k = self.roles.k;
        let mut all: Vec<Process<'_>> = vec![];
        for block in 0..self.blocks {
            for (role, events) in &self.programs {
                for instance in 0..self.roles.role(*role).instances {
                    let first = |r: usize| instance % self.roles.step(RingId(r as u32), *role).max(1);
                    let (items, released) = ((0..k.rings.len()).map(first).collect(), HashMap::new());
                    all.push(Process {
                        block,
                        role: *role,
                        instance,
                        events,
                        at: 0,
                        items,
                        released,
                        meetings: 0,
                        sums: 0,
                    });
                }
            }
        }
        let mut barriers: HashMap<Key, Barrier> = HashMap::new();
        let mut step = 0;
        let before = out.list.len();
        loop {
            step += 1;
            let next = (0..all.len())
                .filter(|&n| all[n].at < all[n].events.len() && self.ready(&all, n, &barriers))
                .min_by_key(|&n| rank(n, step));
            let Some(n) = next else {
                if all.iter().any(|p| p.at < p.events.len()) {
                    self.stuck(&all, &barriers, setting, out);
                }
                return;
            };
            self.go(&mut all, n, &mut barriers, setting, out);
            if out.list.len() > before {
                return;
            }
        }
    }

    /// The barrier a process waits at, the phase that must be over, and how many must have come to a cluster's barrier.
    fn wait(&self, p: &Process) -> Option<(Key, usize)> {
        let key = |ring: RingId, part: u32, empty: bool| {
            let r = &self.roles.k.rings[ring.0 as usize];
            let item = p.items[ring.0 as usize];
            (Key { block: p.block, ring: ring.0, part, slot: item % r.depth, empty }, item / r.depth)
        };
        match p.events[p.at].0 {
            Event::Acquire(ring, part) => {
                let parts = &self.roles.k.rings[ring.0 as usize].parts;
                match parts[part as usize].reuses {
                    Some(q) => {
                        let (key, turn) = key(ring, q, true);
                        Some((key, turn + 1))
                    }
                    None => {
                        let mut last = part;
                        while let Some(next) = parts.iter().position(|x| x.reuses == Some(last)) {
                            last = next as u32;
                        }
                        Some(key(ring, last, true))
                    }
                }
            }
            Event::Take(ring, part) => {
                let (key, turn) = key(ring, part, false);
                Some((key, turn + 1))
            }
            // Over blocks by barriers, inside a block all of a group meet.
            Event::Hand(turns) if self.across() && !first_part(p, turns) => Some((sum_key(p.block, true), p.sums / 2)),
            Event::Sum(turns) if self.across() && first_part(p, turns) => {
                Some((sum_key(p.block, false), p.sums / 2 + 1))
            }
            Event::Hand(_)
            | Event::Sum(_)
            | Event::Load(..)
            | Event::Publish(..)
            | Event::Release(..)
            | Event::Advance(..)
            | Event::Cluster => None,
        }
    }

    /// True if blocks share tiles.
    fn across(&self) -> bool {
        self.roles.sharing() > 1
    }

    fn ready(&self, all: &[Process], n: usize, barriers: &HashMap<Key, Barrier>) -> bool {
        let p = &all[n];
        if let Event::Cluster = p.events[p.at].0 {
            return all.iter().all(|q| q.meetings > p.meetings || q.meetings == p.meetings && at_cluster(q));
        }
        if let Event::Hand(turns) | Event::Sum(turns) = p.events[p.at].0
            && !self.across()
        {
            let own = |q: &&Process| (q.block, q.role, q.instance / turns) == (p.block, p.role, p.instance / turns);
            return all.iter().filter(own).all(|q| q.sums > p.sums || q.sums == p.sums && at_sum(q));
        }
        // The parity of the phase under way tells that the one before is over.
        self.wait(p).is_none_or(|(key, phases)| barriers.get(&key).map_or(0, |b| b.done) % 2 == phases % 2)
    }

    fn go(
        &self,
        all: &mut [Process],
        n: usize,
        barriers: &mut HashMap<Key, Barrier>,
        setting: &Setting,
        out: &mut Findings<'k>,
    ) {
        let (event, id) = all[n].events[all[n].at];
        let k = self.roles.k;
        if let Some((key, phases)) = self.wait(&all[n]) {
            let done = barriers.get(&key).map_or(0, |b| b.done);
            if done != phases {
                let m = format!(
                    "role `{}` waits for phase {phases} of {} and is let through at phase {done}, in {}",
                    self.roles.role(all[n].role).name,
                    self.name(key),
                    describe(setting)
                );
                out.op(
                    "V0511",
                    id,
                    m,
                    "a role's position moves by one for each item, and all arrivals of a phase are counted",
                );
                return;
            }
        }
        let block = all[n].block;
        let slot = |p: &Process, ring: RingId| p.items[ring.0 as usize] % k.rings[ring.0 as usize].depth;
        match event {
            Event::Acquire(ring, part) => {
                self.overwrites(all, n, ring, part, setting, out);
                let (copies, shares) = (self.copied.contains(&(ring.0, part)), self.coming(&all[n], ring, part));
                if copies {
                    let key = Key { block, ring: ring.0, part, slot: slot(&all[n], ring), empty: false };
                    // Where threads may fill the item, the arrival is theirs, behind all they wrote.
                    self.arrive(barriers, key, usize::from(!self.either.contains(&(ring.0, part))), shares);
                }
            }
            Event::Load(ring, part, shared) => {
                let s = slot(&all[n], ring);
                let to: Vec<usize> = if shared { (0..self.blocks).collect() } else { vec![block] };
                let each = if shared { 1 } else { self.blocks as i64 };
                for b in to {
                    self.arrive(barriers, Key { block: b, ring: ring.0, part, slot: s, empty: false }, 0, -each);
                }
            }
            Event::Publish(ring, part) => {
                if !self.copied.contains(&(ring.0, part)) || self.either.contains(&(ring.0, part)) {
                    let key = Key { block, ring: ring.0, part, slot: slot(&all[n], ring), empty: false };
                    self.arrive(barriers, key, 1, 0);
                }
            }
            Event::Release(ring, part) => {
                *all[n].released.entry((ring.0, part)).or_default() += 1;
                let s = slot(&all[n], ring);
                let shared = k.rings[ring.0 as usize].multicast;
                let to: Vec<usize> = if shared { (0..self.blocks).collect() } else { vec![block] };
                for b in to {
                    self.arrive(barriers, Key { block: b, ring: ring.0, part, slot: s, empty: true }, 1, 0);
                }
            }
            Event::Advance(ring, by) => all[n].items[ring.0 as usize] += by,
            Event::Cluster => all[n].meetings += 1,
            Event::Hand(turns) => {
                let groups = self.roles.role(all[n].role).instances / turns;
                if self.across() {
                    // The first group of the first part expects all, the others send.
                    if !first_part(&all[n], turns) {
                        self.arrive(barriers, sum_key(0, false), 0, -1);
                    } else if all[n].instance == 0 {
                        let parts = self.blocks * turns;
                        self.arrive(barriers, sum_key(0, false), 1, ((parts - 1) * groups) as i64);
                    }
                }
                all[n].sums += 1;
            }
            Event::Sum(turns) => {
                if self.across() && first_part(&all[n], turns) {
                    for b in 0..self.blocks {
                        self.arrive(barriers, sum_key(b, true), 1, 0);
                    }
                }
                all[n].sums += 1;
            }
            Event::Take(..) => {}
        }
        all[n].at += 1;
    }

    /// Shares of copies that fill a part between its acquire, where the process stands, and its publish.
    fn coming(&self, p: &Process, ring: RingId, part: u32) -> i64 {
        p.events[p.at..]
            .iter()
            .take_while(|(e, _)| !matches!(e, Event::Publish(r, q) if (*r, *q) == (ring, part)))
            .filter(|(e, _)| matches!(e, Event::Load(r, q, _) if (*r, *q) == (ring, part)))
            .count() as i64
            * self.blocks as i64
    }

    fn arrive(&self, barriers: &mut HashMap<Key, Barrier>, key: Key, arrivals: usize, bytes: i64) {
        let need = self.needed(key);
        let b = barriers.entry(key).or_default();
        b.arrived += arrivals;
        b.bytes += bytes;
        if b.arrived >= need && b.bytes == 0 {
            b.arrived -= need;
            b.done += 1;
        }
    }

    /// Arrivals that end a phase.
    fn needed(&self, key: Key) -> usize {
        if key.ring == SUM {
            return if key.empty { super::sums::groups(self.roles) } else { 1 };
        }
        let r = &self.roles.k.rings[key.ring as usize];
        let of = |role: RoleId| self.roles.role(role).instances;
        match (key.empty, self.copied.contains(&(key.ring, key.part))) {
            (false, true) => 1,
            (false, false) => of(r.producer),
            (true, _) => {
                let all = r.consumers.iter().map(|&c| of(c)).sum::<usize>() * if r.multicast { self.blocks } else { 1 };
                all / r.turns
            }
        }
    }

    /// What a barrier guards.
    fn name(&self, key: Key) -> String {
        match key.ring {
            SUM => "the parts of a sum".into(),
            ring => self.roles.part(RingId(ring), key.part),
        }
    }

    /// A slot is filled again: all who read it have released it, in all blocks that the copies reach.
    fn overwrites(
        &self,
        all: &[Process],
        n: usize,
        ring: RingId,
        part: u32,
        setting: &Setting,
        out: &mut Findings<'k>,
    ) {
        let k = self.roles.k;
        let r = &k.rings[ring.0 as usize];
        let item = all[n].items[ring.0 as usize];
        // This item of the part whose memory is taken over, or the item that had the slot before.
        let (freed, need) = match r.parts[part as usize].reuses {
            Some(q) => (q, item + 1),
            None => (part, (item + 1).saturating_sub(r.depth)),
        };
        let reach = self.shared.contains(&(ring.0, part));
        for q in all.iter().filter(|q| r.consumers.contains(&q.role) && (reach || q.block == all[n].block)) {
            let released = q.released.get(&(ring.0, freed)).copied().unwrap_or(0);
            // Of the items before, those that are its turn.
            let need = (need + r.turns - 1 - q.instance % r.turns) / r.turns;
            if released < need {
                let m = format!(
                    "item {item} of {} is filled while role `{}` has released {released} of {need}, in {}",
                    self.roles.part(ring, part),
                    self.roles.role(q.role).name,
                    describe(setting)
                );
                let id = all[n].events[all[n].at].1;
                let help = "count the releases of every role, instance and block that reads the slot";
                out.op("V0511", id, m, help);
                return;
            }
        }
    }

    /// Nobody can go on: who waits for what.
    fn stuck(&self, all: &[Process], barriers: &HashMap<Key, Barrier>, setting: &Setting, out: &mut Findings<'k>) {
        let mut texts: Vec<String> = vec![];
        let mut first = None;
        for p in all.iter().filter(|p| p.at < p.events.len()) {
            let (event, id) = p.events[p.at];
            first.get_or_insert(id);
            let name = &self.roles.role(p.role).name;
            let text = match self.wait(p) {
                Some((key, phases)) => {
                    let b = barriers.get(&key).copied().unwrap_or_default();
                    let what = if key.empty { "be released" } else { "be full" };
                    let lead = if b.done > phases { ", which is past" } else { "" };
                    let item = p.items.get(key.ring as usize).map_or(String::new(), |i| format!("in item {i} "));
                    format!(
                        "`{name}` waits {item}for {} to {what} (phase {phases}{lead}; {} over, {} of {} arrived)",
                        self.name(key),
                        b.done,
                        b.arrived,
                        self.needed(key)
                    )
                }
                None if matches!(event, Event::Cluster) => format!("`{name}` waits for the cluster"),
                None if at_sum(p) => format!("`{name}` waits for the others of a sum"),
                None => continue,
            };
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let m = format!("no role can go on, in {}: {}", describe(setting), texts.join("; "));
        let at = first.unwrap_or(self.roles.op);
        out.op(
            "V0510",
            at,
            m,
            "let every part that is waited for be published or released by a role that can get there",
        );
    }
}

fn at_cluster(p: &Process) -> bool {
    p.events.get(p.at).is_some_and(|e| matches!(e.0, Event::Cluster))
}

fn at_sum(p: &Process) -> bool {
    p.events.get(p.at).is_some_and(|e| matches!(e.0, Event::Hand(_) | Event::Sum(_)))
}

/// True if a process has the first part of a sum, which the others are added to.
fn first_part(p: &Process, turns: usize) -> bool {
    p.block == 0 && p.instance.is_multiple_of(turns)
}

fn sum_key(block: usize, empty: bool) -> Key {
    Key { block, ring: SUM, part: 0, slot: 0, empty }
}

fn describe(s: &Setting) -> String {
    format!("loops of {} turns over {} tiles", s.turns, s.waves)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    block: usize,
    ring: u32,
    part: u32,
    slot: usize,
    empty: bool,
}

/// The events of a block for given trip counts; true if it ends in `break`.
fn flatten(
    roles: &Roles,
    names: &mut Names,
    block: BlockId,
    s: &Setting,
    depth: usize,
    out: &mut Vec<(Event, OpId)>,
) -> bool {
    for &id in &roles.k.block(block).ops {
        if out.len() > LIMIT {
            return true;
        }
        let op = &roles.k.op(id).op;
        if let Op::For { lo, hi, body, .. } = op {
            let turns = match (roles.k.ix_const(*lo), roles.k.ix_const(*hi)) {
                (Some(a), Some(b)) => (b - a).max(0) as usize,
                _ => (s.trips)(&format!("{}..{}", names.index(*lo), names.index(*hi))),
            };
            name_vars(op, names, depth);
            for _ in 0..turns {
                if flatten(roles, names, *body, s, depth + 1, out) {
                    break;
                }
            }
        } else if let Op::Loop { body } = op {
            for _ in 0..s.turns {
                if flatten(roles, names, *body, s, depth + 1, out) {
                    break;
                }
            }
        } else if let Op::If { then, els, .. } = op {
            let leaves = |b: BlockId| {
                let mut found = false;
                walk(roles.k, b, &mut |_, op| found |= matches!(op, Op::Break | Op::Continue));
                found
            };
            // Loops run their turns out.
            let first = if leaves(*then) { false } else { leaves(*els) || s.arm };
            if flatten(roles, names, if first { *then } else { *els }, s, depth + 1, out) {
                return true;
            }
        } else if matches!(op, Op::Break) {
            return true;
        } else if matches!(op, Op::Continue) {
            return false;
        } else if let Op::Sched(op) = op {
            sched_events(roles, names, (id, op), s, depth, out);
        }
    }
    false
}

fn sched_events(
    roles: &Roles,
    names: &mut Names,
    (id, op): (OpId, &SchedOp),
    s: &Setting,
    depth: usize,
    out: &mut Vec<(Event, OpId)>,
) {
    let event = match op {
        SchedOp::Acquire { ring, part, .. } => Event::Acquire(*ring, *part),
        SchedOp::TmaLoad { ring, part, multicast, .. } => Event::Load(*ring, *part, *multicast),
        SchedOp::Publish { ring, part } => Event::Publish(*ring, *part),
        SchedOp::Take { ring, part, .. } => Event::Take(*ring, *part),
        SchedOp::Release { ring, part } => Event::Release(*ring, *part),
        SchedOp::Advance { ring, by } => Event::Advance(*ring, *by),
        SchedOp::ClusterBarrier { .. } => Event::Cluster,
        SchedOp::Combine { turns, .. } => {
            let turns = (*turns).max(1);
            out.extend([(Event::Hand(turns), id), (Event::Sum(turns), id)]);
            return;
        }
        SchedOp::Wgmma { release, .. } => {
            out.extend(release.iter().map(|&(r, p)| (Event::Release(r, p), id)));
            return;
        }
        // Which tiles have rows changes how many there are, for all roles alike.
        SchedOp::Tiles { vars, rows: _, body } => {
            for (n, &v) in vars.iter().enumerate() {
                names.name(v, format!("t{n}"));
            }
            for _ in 0..s.waves {
                flatten(roles, names, *body, s, depth + 1, out);
            }
            return;
        }
        SchedOp::Roles { .. }
        | SchedOp::TmaStore { .. }
        | SchedOp::TmaStoreWait { .. }
        | SchedOp::WgmmaWait { .. }
        | SchedOp::RoleBarrier { .. }
        | SchedOp::AsyncFence { .. }
        | SchedOp::GridWait
        | SchedOp::GridAllow => return,
    };
    out.push((event, id));
}
