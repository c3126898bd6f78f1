//! What a loop carries from step to step. Program order only: a write counts as replacing all of a tile.

use crate::ir::effects::{EffectKind, deep_effects, walk};
use crate::ir::{Base, BlockId, BufferId, Kernel, Op, OpId, Space};
use std::collections::{BTreeMap, HashMap};

/// Tiles and variables from outside that a step of loop `id` reads before it writes them, each with an op that writes.
pub(crate) fn carried(k: &Kernel, id: OpId, body: BlockId) -> Vec<(BufferId, OpId)> {
    let mut made = vec![];
    walk(k, body, &mut |_, op| {
        if let Op::Alloc { buffer } | Op::VarNew { var: buffer, .. } | Op::IxVarNew { var: buffer, .. } = op {
            made.push(*buffer);
        }
    });
    let (mut first_read, mut first_write) = (HashMap::new(), BTreeMap::new());
    for (at, e) in deep_effects(k, id).iter().enumerate() {
        let Base::Buffer(b) = e.base(k) else { continue };
        if made.contains(&b) || !matches!(k.buffer(b).space, Space::Var | Space::Frag | Space::Shared) {
            continue;
        }
        if e.kind != EffectKind::Write {
            first_read.entry(b).or_insert(at);
        }
        if e.kind != EffectKind::Read {
            first_write.entry(b).or_insert((at, e.op));
        }
    }
    let both = first_write.into_iter().filter(|(b, (at, _))| first_read.get(b).is_some_and(|r| r <= at));
    both.map(|(b, (_, op))| (b, op)).collect()
}
