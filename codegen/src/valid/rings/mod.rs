//! Kernels with roles: the protocol of their rings, what engines may see, what a multiprocessor has.
//!
//! Runs after scopes and types, on kernels with roles: scheduled ones, and those whose roles are written by hand, of which
//! nothing is placed yet. Changes nothing. Four judges:
//! * `protocol`: along every path of every role each part of each item is acquired and published, taken and released,
//!   with the same bytes each time; tiles of a ring are touched by whom they belong to at that moment (symbolic);
//! * `states`: the roles' ring ops alone, run for a few trip counts in orders that let each role lag or lead: no deadlock,
//!   no slot that is filled before it was released, no wait that a barrier passes by (small state);
//! * `visible`: what threads wrote is fenced and met before an engine reads it, engines have read before it is written
//!   again, memory of the kernel before is read after the wait for it;
//! * `resources`: registers, shared memory, barriers, clusters, shapes of roles and layouts; with `sums`, which judges who adds
//!   up parts of a sum, who stores it, and walks over rows of groups.
//!
//! `names` gives loops and conditions the same name in all roles, so that their trip counts can be compared.

mod items;
mod names;
mod protocol;
mod resources;
mod states;
mod sums;
mod visible;

use crate::diag::Diagnostic;
use crate::ir::effects::walk;
use crate::ir::{BlockId, BufferId, Kernel, Op, OpId, RingId, RoleId, SchedOp, Stage};
use std::collections::{BTreeMap, HashSet};

pub(super) fn check(k: &Kernel, found: &mut Vec<Diagnostic>) {
    if k.roles.is_empty() {
        return;
    }
    let mut out = Findings { k, list: vec![], seen: HashSet::new() };
    let Some(roles) = Roles::find(k, &mut out) else {
        found.append(&mut out.list);
        return;
    };
    protocol::check(&roles, &mut out);
    visible::check(&roles, &mut out);
    if k.stage == Stage::Scheduled {
        placed(&roles, &mut out);
    }
    // A broken protocol would only be found a second time, at a worse place.
    if !out.list.iter().any(|d| d.code < "V0521") {
        states::check(&roles, &mut out);
    }
    found.append(&mut out.list);
}

/// What each judge finds when it is asked alone: `protocol`, `states`, `visible` and `resources`. The verifier does not ask
/// `states` where the protocol is broken already; a report of who notices what does.
pub fn each_judge(k: &Kernel) -> [Vec<Diagnostic>; 4] {
    let alone = |judge: for<'a, 'b> fn(&'a Roles<'b>, &'a mut Findings<'b>)| {
        let mut out = Findings { k, list: vec![], seen: HashSet::new() };
        if let Some(roles) = Roles::find(k, &mut out) {
            judge(&roles, &mut out);
        }
        out.list
    };
    [alone(protocol::check), alone(states::check), alone(visible::check), alone(placed)]
}

/// What is judged once a kernel is placed.
fn placed<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    resources::check(roles, out);
    sums::check(roles, out);
}

/// Findings, one a code and op.
struct Findings<'k> {
    k: &'k Kernel,
    list: Vec<Diagnostic>,
    seen: HashSet<(&'static str, OpId)>,
}

impl Findings<'_> {
    fn op(&mut self, code: &'static str, id: OpId, message: String, help: &str) {
        if self.seen.insert((code, id)) {
            self.list.push(Diagnostic::error(self.k, self.k.op(id).span, code, message).help(help));
        }
    }
    /// With the place of another op.
    fn pair(&mut self, code: &'static str, id: OpId, message: String, (note, other): (&str, OpId), help: &str) {
        if self.seen.insert((code, id)) {
            let there = self.k.span_of(self.k.op(other).span).clone();
            let d = Diagnostic::error(self.k, self.k.op(id).span, code, message);
            self.list.push(d.note(note, Some(there)).help(help));
        }
    }
    fn kernel(&mut self, code: &'static str, message: String, help: &str) {
        let d = Diagnostic::error(self.k, self.k.span, code, message).help(help);
        if !self.list.contains(&d) {
            self.list.push(d);
        }
    }
}

/// What all judges look up.
struct Roles<'k> {
    k: &'k Kernel,
    /// The op that starts the roles.
    op: OpId,
    programs: Vec<(RoleId, BlockId)>,
    /// Ring and part of each tile that belongs to one.
    tiles: BTreeMap<BufferId, (RingId, u32)>,
    /// Ops of the body behind the roles.
    after: Vec<OpId>,
    /// Ops of the body in front of the roles.
    before: Vec<OpId>,
}

impl<'k> Roles<'k> {
    fn find(k: &'k Kernel, out: &mut Findings<'k>) -> Option<Self> {
        let start = out.list.len();
        let mut at = vec![];
        let mut all = 0;
        for (n, &id) in k.block(k.body).ops.iter().enumerate() {
            if let Op::Sched(SchedOp::Roles { programs }) = &k.op(id).op {
                at.push((n, id, programs.clone()));
            }
        }
        walk(k, k.body, &mut |_, op| all += usize::from(matches!(op, Op::Sched(SchedOp::Roles { .. }))));
        let [(n, op, programs)] = &at[..] else {
            let help = "start all roles once, at the top level of the kernel";
            out.kernel("V0536", format!("the kernel has roles and starts them {all} times"), help);
            return None;
        };
        let mut count = vec![0; k.roles.len()];
        for (role, _) in programs {
            match count.get_mut(role.0 as usize) {
                Some(c) => *c += 1,
                None => out.op("V0101", *op, format!("role {} does not exist", role.0), "name a role of the kernel"),
            }
        }
        for (r, c) in k.roles.iter().zip(&count) {
            if *c != 1 {
                let m = format!("role `{}` has {c} programs, expected one", r.name);
                out.op("V0536", *op, m, "give each role one program");
            }
        }
        let mut tiles = BTreeMap::new();
        for (r, ring) in k.rings.iter().enumerate() {
            let known = |id: RoleId| (id.0 as usize) < k.roles.len();
            if !known(ring.producer) || ring.consumers.iter().any(|&c| !known(c)) {
                out.kernel("V0101", format!("ring `{}` names a role that does not exist", ring.name), "name its roles");
            }
            if ring.depth == 0 || ring.parts.is_empty() || ring.consumers.is_empty() {
                let m = format!("ring `{}` has no slots, parts or consumers", ring.name);
                out.kernel("V0536", m, "a ring has at least one of each");
            }
            let shared = |c: &&RoleId| known(**c) && !k.roles[c.0 as usize].instances.is_multiple_of(ring.turns.max(1));
            // A slot whose fills different instances wait for: one may wait for the second fill while the first is still on its
            // way, and a parity that cannot tell the two lets it pass.
            let mixed = ring.turns == 0 || !ring.depth.is_multiple_of(ring.turns);
            if mixed || ring.consumers.iter().any(|c| shared(&c)) {
                let m = format!(
                    "instances take turns of {} at ring `{}` of {} slots; slots or instances are not a multiple of that",
                    ring.turns, ring.name, ring.depth
                );
                let help = "give the ring and its consumer a multiple of as many slots and instances as take turns";
                out.kernel("V0536", m, help);
            }
            for (p, part) in ring.parts.iter().enumerate() {
                if part.reuses.is_some_and(|q| q as usize >= p) {
                    let m =
                        format!("part `{}` of ring `{}` takes over a part that is not before it", part.name, ring.name);
                    out.kernel("V0536", m, "a part takes over the memory of an earlier one");
                }
                for &b in &part.buffers {
                    let Some(buffer) = k.buffers.get(b.0 as usize) else {
                        out.kernel("V0101", format!("ring `{}` holds a tile that does not exist", ring.name), "");
                        continue;
                    };
                    if buffer.extents.first() != Some(&ring.depth) {
                        let m = format!(
                            "tile `{}` has {} slots, ring `{}` {}",
                            buffer.name,
                            buffer.extents.first().unwrap_or(&0),
                            ring.name,
                            ring.depth
                        );
                        out.kernel("V0536", m, "the first axis of a ring's tile is the slot");
                    }
                    if tiles.insert(b, (RingId(r as u32), p as u32)).is_some() {
                        let m = format!("tile `{}` belongs to two parts of rings", buffer.name);
                        out.kernel("V0536", m, "give each part tiles of its own");
                    }
                }
            }
        }
        walk(k, k.body, &mut |id, op| {
            if let Op::Sched(op) = op
                && let Some(m) = missing(k, op)
            {
                out.op("V0101", id, m, "name what the kernel declares");
            }
        });
        if out.list.len() > start {
            return None;
        }
        let body = &k.block(k.body).ops;
        let (before, after) = (body[..*n].to_vec(), body[n + 1..].to_vec());
        Some(Roles { k, op: *op, programs: programs.clone(), tiles, after, before })
    }

    /// `ring part` in words.
    fn part(&self, ring: RingId, part: u32) -> String {
        let r = &self.k.rings[ring.0 as usize];
        match &r.parts[..] {
            [_] => format!("ring `{}`", r.name),
            parts => format!("part `{}` of ring `{}`", parts[part as usize].name, r.name),
        }
    }

    fn role(&self, id: RoleId) -> &'k crate::ir::Role {
        &self.k.roles[id.0 as usize]
    }

    /// True if copies of the engine fill a part.
    fn copied(&self, ring: RingId, part: u32) -> bool {
        self.programs.iter().any(|&(_, body)| {
            let mut found = false;
            walk(self.k, body, &mut |_, op| {
                found |= matches!(op, Op::Sched(SchedOp::TmaLoad { ring: r, part: p, .. }) if (*r, *p) == (ring, part));
            });
            found
        })
    }

    /// True if copies fill some items of a part and threads others.
    fn either(&self, ring: RingId, part: u32) -> bool {
        self.copied(ring, part) && threads_fill(self.k, ring, part)
    }

    fn cluster(&self) -> usize {
        self.k.cluster.as_ref().map_or(1, |c| c.size)
    }

    /// Blocks that work on the same tile.
    fn sharing(&self) -> usize {
        self.k.cluster.as_ref().filter(|c| c.axis.is_none()).map_or(1, |c| c.size.max(1))
    }

    /// Items from one to the next that an instance of a role handles.
    fn step(&self, ring: RingId, role: RoleId) -> usize {
        let r = &self.k.rings[ring.0 as usize];
        if r.producer == role { 1 } else { r.turns }
    }

    /// True if the kernel ends with a barrier of the cluster.
    fn ends_together(&self) -> bool {
        self.after.iter().any(|&id| matches!(self.k.op(id).op, Op::Sched(SchedOp::ClusterBarrier { .. })))
    }
}

/// True if threads of the role that fills a ring write a part's tiles themselves.
pub(crate) fn threads_fill(k: &Kernel, ring: RingId, part: u32) -> bool {
    let Some(part) = k.rings.get(ring.0 as usize).and_then(|r| r.parts.get(part as usize)) else { return false };
    let mut found = false;
    walk(k, k.body, &mut |id, op| {
        if !matches!(op, Op::Sched(_)) {
            found |= crate::ir::effects::effects(k, id).iter().any(|e| {
                e.kind != crate::ir::effects::EffectKind::Read
                    && matches!(e.base(k), crate::ir::Base::Buffer(b) if part.buffers.contains(&b))
            });
        }
    });
    found
}

/// An id of a ring, part or map that the kernel does not have.
fn missing(k: &Kernel, op: &SchedOp) -> Option<String> {
    let part = |ring: RingId, part: u32| match k.rings.get(ring.0 as usize) {
        None => Some(format!("ring {} does not exist", ring.0)),
        Some(r) if part as usize >= r.parts.len() => Some(format!("ring `{}` has no part {part}", r.name)),
        Some(_) => None,
    };
    let map = |m: crate::ir::MapId| (m.0 as usize >= k.maps.len()).then(|| format!("map {} does not exist", m.0));
    match op {
        SchedOp::Acquire { ring, part: p, .. }
        | SchedOp::Publish { ring, part: p }
        | SchedOp::Take { ring, part: p, .. }
        | SchedOp::Release { ring, part: p } => part(*ring, *p),
        SchedOp::Advance { ring, .. } => part(*ring, 0),
        SchedOp::TmaLoad { ring, part: p, map: m, .. } => part(*ring, *p).or_else(|| map(*m)),
        SchedOp::TmaStore { map: m, .. } => map(*m),
        SchedOp::Wgmma { release, .. } => release.iter().find_map(|&(r, p)| part(r, p)),
        SchedOp::Roles { .. }
        | SchedOp::Tiles { .. }
        | SchedOp::TmaStoreWait { .. }
        | SchedOp::WgmmaWait { .. }
        | SchedOp::Combine { .. }
        | SchedOp::RoleBarrier { .. }
        | SchedOp::AsyncFence { .. }
        | SchedOp::ClusterBarrier { .. }
        | SchedOp::GridWait
        | SchedOp::GridAllow => None,
    }
}
