//! What a role does with the items of a ring, as the symbolic protocol follows it: in which state a part is, how many items
//! there are, and in which ways a part may be filled. The walk over the programs is `protocol`'s.

use super::{Findings, Roles};
use crate::ir::effects::{EffectKind, effects, walk};
use crate::ir::{Base, Op, OpId, RingId, SchedOp};
use std::collections::BTreeMap;

/// A part that copies of a cluster fill is not also written by threads, and shared copies need a ring that counts all
/// blocks. That an item is filled in one way only is judged where it is filled.
pub(super) fn shares(roles: &Roles, out: &mut Findings, ring: RingId, part: u32) {
    let k = roles.k;
    let (mut copy, mut write) = (None, None);
    for &(_, body) in &roles.programs {
        walk(k, body, &mut |id, op| {
            if let Op::Sched(SchedOp::TmaLoad { ring: r, part: p, multicast, .. }) = op {
                if (*r, *p) == (ring, part) {
                    copy = Some(id);
                }
                if *multicast && *r == ring && (!k.rings[ring.0 as usize].multicast || roles.cluster() < 2) {
                    let m = format!(
                        "a copy into ring `{}` is shared with the cluster, the ring is not",
                        k.rings[ring.0 as usize].name
                    );
                    let help = "declare the ring `multicast` in a cluster of two or more, so that a slot is free when all blocks have released it";
                    out.op("V0508", id, m, help);
                }
                return;
            }
            for e in effects(k, id) {
                if e.kind != EffectKind::Read
                    && let Base::Buffer(b) = e.base(k)
                    && roles.tiles.get(&b) == Some(&(ring, part))
                {
                    write = Some(id);
                }
            }
        });
    }
    if let (Some(copy), Some(write)) = (copy, write)
        && k.rings[ring.0 as usize].multicast
    {
        let m = format!("{} is filled by copies and by threads", roles.part(ring, part));
        out.pair("V0507", write, m, ("it is copied", copy), "give what threads write a part of its own");
    }
    let ring = &k.rings[ring.0 as usize];
    if ring.multicast && roles.cluster() > 1 && !roles.ends_together() {
        let m = format!("blocks share ring `{}` and may end while others still arrive on it", ring.name);
        out.op("V0512", roles.op, m, "end the kernel with a barrier of the cluster behind the roles");
    }
}

/// State of a part of the current item, for the role that is walked. Absent: not touched yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Acquired or taken, with the bytes that copies bring, and what last wrote it instead.
    Open { bytes: usize, wrote: Option<OpId>, by: OpId },
    /// Published or released.
    Done,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State(pub(super) BTreeMap<(u32, u32), Phase>);

impl State {
    /// Joins two arms: an item that one fills by copies and the other by threads has the bytes of the copies.
    pub(super) fn fill(&mut self, other: &mut State) {
        for (key, phase) in &mut self.0 {
            let Some(Phase::Open { bytes: b, wrote: w, .. }) = other.0.get_mut(key) else { continue };
            let Phase::Open { bytes, wrote, .. } = phase else { continue };
            if (*bytes == 0 && wrote.is_some()) || (*b == 0 && w.is_some()) {
                *bytes = (*bytes).max(*b);
                *wrote = wrote.or(*w);
                (*b, *w) = (*bytes, *wrote);
            }
        }
    }

    /// The same but for where parts were opened.
    pub(super) fn same(&self, other: &State) -> bool {
        let key = |s: &State| -> Vec<((u32, u32), Option<usize>)> {
            s.0.iter().map(|(k, p)| (*k, if let Phase::Open { bytes, .. } = p { Some(*bytes) } else { None })).collect()
        };
        key(self) == key(other)
    }
}

/// Items of each ring, as a name: terms of a sum, whose order does not matter for how many there are. What order they
/// come in is for `states` to try.
pub(super) type Count = BTreeMap<u32, Vec<String>>;

pub(super) fn total(terms: &[String]) -> String {
    let mut terms = terms.to_vec();
    terms.sort();
    terms.concat()
}
