//! What a multiprocessor has: warps, registers, shared memory, barriers, clusters; and the shapes engines take.

use super::{Findings, Roles};
use crate::ir::effects::{bodies, walk};
use crate::ir::{Base, BlockId, BufferId, Op, SchedOp, Space, TensorMap, ViewId};

/// Registers of a multiprocessor, which a block's threads share.
const REGISTERS: usize = 65536;
/// Shared memory a block may have, with the barriers of its rings.
const SHARED_BYTES: usize = 232_448;
/// Barriers of a block; the first is that of all threads.
const BARRIERS: usize = 16;
/// Blocks of a cluster that every device takes.
const CLUSTER: usize = 8;
/// Registers a thread needs besides accumulators: addresses, factors, loop state.
const OTHERS: usize = 24;

pub(super) fn check<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    warps(roles, out);
    registers(roles, out);
    memory(roles, out);
    let k = roles.k;
    let named: usize = k.roles.iter().filter(|r| !r.one_thread && r.warps > 1).map(|r| r.instances).sum();
    // Those who add up sums inside a block meet at barriers of their own.
    let named = named + if roles.sharing() == 1 { super::sums::groups(roles) } else { 0 };
    if named + 1 > BARRIERS {
        let m = format!(
            "the roles need {named} barriers of their own, a block has {} besides that of all threads",
            BARRIERS - 1
        );
        out.op("V0534", roles.op, m, "use fewer instances or roles");
    }
    if let Some(c) = &k.cluster
        && (c.size == 0 || c.size > CLUSTER || c.axis.is_some_and(|a| a >= k.grid.len()))
    {
        let axis = c.axis.map_or("no axis".to_string(), |a| format!("axis {a}"));
        let m = format!("a cluster of {} blocks along {axis} of a grid of {} axes", c.size, k.grid.len());
        out.kernel("V0535", m, "a cluster has 1 to 8 blocks along an axis of the grid");
    }
    for m in &k.maps {
        let inner = m.boxes.first().copied().unwrap_or(0);
        let bytes = match &k.param(m.param).kind {
            crate::ir::ParamKind::Tensor { dtype, .. } => inner * dtype.bits() / 8,
            crate::ir::ParamKind::Scalar { .. } | crate::ir::ParamKind::Absent => 0,
        };
        let sizes = m.boxes.iter().all(|&b| (1..=256).contains(&b)) && m.boxes.len() == m.extents.len();
        let fits = m.swizzle_bytes == 0 || matches!(m.swizzle_bytes, 32 | 64 | 128) && bytes <= m.swizzle_bytes;
        if !sizes || !fits || !bytes.is_multiple_of(16) || m.boxes.len() > 5 {
            let name = &k.param(m.param).name;
            let text = format!(
                "a map of `{name}` has boxes of {:?} elements ({bytes} bytes a row) with a swizzle of {}",
                m.boxes, m.swizzle_bytes
            );
            out.kernel(
                "V0542",
                text,
                "boxes have 1 to 256 elements an axis and rows of 16-byte pieces that fit the swizzle",
            );
        }
    }
    for &(role, body) in &roles.programs {
        let r = roles.role(role);
        walk(k, body, &mut |id, op| {
            if let Op::Sched(SchedOp::Wgmma { a, b, hold, scales, release, .. }) = op {
                if r.warps != 4 || r.one_thread || !r.first_warp.is_multiple_of(4) {
                    let m = format!(
                        "a product of a warp group in role `{}` of {} warps from warp {}",
                        r.name, r.warps, r.first_warp
                    );
                    out.op("V0541", id, m, "give the role instances of four warps that start at a multiple of four");
                }
                if *hold && (scales.is_some() || !release.is_empty()) {
                    let m = "a product that goes on has no factors and releases nothing".to_string();
                    out.op("V0541", id, m, "wait for it first");
                }
                for v in [*a, *b] {
                    operand(roles, out, id, v);
                }
            } else if let Op::Sched(
                SchedOp::TmaLoad { map, dst: tile, .. } | SchedOp::TmaStore { map, src: tile, .. },
            ) = op
            {
                engine(roles, out, id, tile.view, &k.maps[map.0 as usize]);
            }
        });
        uniform(roles, out, body, false);
    }
}

/// The swizzle of a map is that of the tile.
fn engine(roles: &Roles, out: &mut Findings, id: crate::ir::OpId, view: ViewId, map: &TensorMap) {
    let Base::Buffer(b) = roles.k.view(view).base else { return };
    let swizzle = map.swizzle_bytes;
    let tile = roles.k.buffer(b);
    let Some(m) = &tile.memory else { return };
    let own = match m.swizzle {
        None => 0,
        Some((bits, ..)) => 16usize << bits,
    };
    if own != swizzle {
        let text = format!("the map swizzles {swizzle} bytes, the tile `{}` {own}", tile.name);
        out.op("V0542", id, text, "give the map and the tile the same swizzle");
    }
    let row = map.boxes.first().map_or(0, |n| n * tile.dtype.bits() / 8);
    if own > 0 && row != own {
        let text = format!("rows of a box have {row} bytes, those of `{}` are swizzled over {own}", tile.name);
        out.op("V0542", id, text, "give the box rows of the swizzle's width");
    }
    let align = if own > 0 { 8 * own } else { 128 };
    if !m.offset_bytes.is_multiple_of(align) {
        let text = format!(
            "`{}` lies at byte {}, a swizzle of {own} bytes needs a multiple of {align}",
            tile.name, m.offset_bytes
        );
        out.op("V0542", id, text, "place the tile at the start of a swizzle pattern");
    }
}

/// An operand of the matrix unit lies in rows of 128 swizzled bytes.
fn operand(roles: &Roles, out: &mut Findings, id: crate::ir::OpId, view: ViewId) {
    let Base::Buffer(b) = roles.k.view(view).base else { return };
    let tile = roles.k.buffer(b);
    if tile.space == Space::Frag {
        return;
    }
    if tile.memory.as_ref().is_none_or(|m| m.swizzle != Some((3, 4, 3)) || !m.offset_bytes.is_multiple_of(1024)) {
        let text = format!(
            "the operand `{}` does not lie in rows of 128 swizzled bytes from a multiple of 1024 on",
            tile.name
        );
        out.op("V0542", id, text, "give the tile the operand layout");
    }
}

/// Barriers of clusters where all threads come by: not under a condition.
fn uniform(roles: &Roles, out: &mut Findings, block: BlockId, conditional: bool) {
    for &id in &roles.k.block(block).ops {
        let op = &roles.k.op(id).op;
        if conditional && matches!(op, Op::Sched(SchedOp::ClusterBarrier { .. })) {
            let m = "a barrier of the cluster under a condition or in a loop of one role".to_string();
            out.op("V0541", id, m, "put it where every thread of the cluster comes by equally often");
        }
        for b in bodies(op) {
            uniform(roles, out, b, true);
        }
    }
}

fn warps(roles: &Roles, out: &mut Findings) {
    let k = roles.k;
    let mut owner: Vec<Option<&str>> = vec![None; k.warps];
    for r in &k.roles {
        if r.warps == 0 || r.instances == 0 || (r.instances > 1) != r.instance.is_some() {
            let m = format!("role `{}` has {} instances of {} warps", r.name, r.instances, r.warps);
            out.op("V0532", roles.op, m, "a role has at least one warp, and a number where it has several instances");
        }
        for w in r.first_warp..r.first_warp + r.warps * r.instances {
            match owner.get_mut(w) {
                None => {
                    let m = format!("role `{}` has warp {w} of a block of {}", r.name, k.warps);
                    out.op("V0532", roles.op, m, "give the block as many warps as its roles have");
                    break;
                }
                Some(Some(other)) => {
                    let m = format!("warp {w} belongs to roles `{other}` and `{}`", r.name);
                    out.op("V0532", roles.op, m, "give each role warps of its own");
                    break;
                }
                Some(free) => *free = Some(&r.name),
            }
        }
    }
}

fn registers(roles: &Roles, out: &mut Findings) {
    let k = roles.k;
    let with = k.roles.iter().filter(|r| r.registers.is_some()).count();
    let threads = k.warps * 32;
    if threads == 0 || threads > 1024 {
        out.kernel("V0532", format!("a block of {threads} threads"), "a block has 32 to 1024 threads");
        return;
    }
    let given = (REGISTERS / threads / 8 * 8).min(255);
    if with > 0 {
        let mut sum = 0;
        for r in &k.roles {
            let Some(n) = r.registers else {
                let m = format!("role `{}` has no register budget, others have", r.name);
                out.op("V0531", roles.op, m, "give every role a budget or none");
                continue;
            };
            if !n.is_multiple_of(8) || !(24..=248).contains(&n) {
                let m = format!(
                    "role `{}` asks for {n} registers a thread, expected a multiple of 8 from 24 to 248",
                    r.name
                );
                out.op("V0531", roles.op, m, "round the budget to a multiple of 8");
            }
            if !r.first_warp.is_multiple_of(4) || !(r.warps * r.instances).is_multiple_of(4) {
                let m = format!(
                    "role `{}` moves registers with {} warps from warp {}",
                    r.name,
                    r.warps * r.instances,
                    r.first_warp
                );
                out.op(
                    "V0531",
                    roles.op,
                    m,
                    "registers move between whole warp groups: four warps from a multiple of four",
                );
            }
            sum += n * r.warps * r.instances * 32;
        }
        if sum > given * threads {
            let m = format!(
                "the roles' budgets take {sum} registers, a block of {threads} threads has {}",
                given * threads
            );
            out.op("V0531", roles.op, m, "lower a role's budget");
        }
    }
    for &(role, body) in &roles.programs {
        let r = roles.role(role);
        let budget = r.registers.unwrap_or(given);
        let (mut held, mut scaled) = (0, 0);
        walk(k, body, &mut |_, op| {
            if let Op::Alloc { buffer } = op
                && k.buffer(*buffer).space == Space::Frag
            {
                let b = k.buffer(*buffer);
                held += b.extents.iter().product::<usize>() * b.dtype.bits().max(32) / 32 / (r.warps * 32);
            } else if let Op::Sched(SchedOp::Wgmma { acc, scales: Some(_), .. }) = op {
                scaled = scaled.max(k.buffer(*acc).extents.get(1).copied().unwrap_or(0) / 2);
            }
        });
        if r.one_thread {
            continue;
        }
        if held + scaled + OTHERS > budget {
            let m = format!(
                "a thread of role `{}` holds {} accumulators and needs {OTHERS} registers more, its budget is {budget}",
                r.name,
                held + scaled
            );
            out.op("V0531", roles.op, m, "give the role more registers, more instances, or a smaller tile");
        }
    }
}

fn memory(roles: &Roles, out: &mut Findings) {
    let k = roles.k;
    let slots: usize = k.rings.iter().map(|r| 2 * r.depth * r.parts.len()).sum();
    // A sum over blocks has a barrier for what comes and one for what was read.
    let slots = slots + if roles.sharing() > 1 && super::sums::groups(roles) > 0 { 2 } else { 0 };
    let all = k.shared_bytes.next_multiple_of(8) + 8 * slots;
    if all > SHARED_BYTES {
        let m = format!("{} bytes of tiles and {} of barriers, a block has {SHARED_BYTES}", k.shared_bytes, 8 * slots);
        out.kernel("V0533", m, "use fewer slots or smaller tiles");
    }
    let placed: Vec<(BufferId, usize, usize)> = (0..k.buffers.len() as u32)
        .map(BufferId)
        .filter_map(|id| {
            let b = k.buffer(id);
            let m = b.memory.as_ref().filter(|_| b.space == Space::Shared)?;
            Some((id, m.offset_bytes, m.offset_bytes + b.dtype.bytes(b.extents.iter().product())))
        })
        .collect();
    // A part may lie where the part it takes over lies.
    let heir = |a: BufferId, b: BufferId| {
        let (Some(&(r, p)), Some(&(q, o))) = (roles.tiles.get(&a), roles.tiles.get(&b)) else { return false };
        let parts = &k.rings[r.0 as usize].parts;
        let mut at = Some(p);
        while let Some(n) = at {
            at = parts[n as usize].reuses;
            if r == q && at == Some(o) {
                return true;
            }
        }
        false
    };
    for (n, a) in placed.iter().enumerate() {
        for b in &placed[n + 1..] {
            if a.1 < b.2 && b.1 < a.2 && !heir(a.0, b.0) && !heir(b.0, a.0) {
                let (x, y) = (&k.buffer(a.0).name, &k.buffer(b.0).name);
                let m = format!("tiles `{x}` ({}..{}) and `{y}` ({}..{}) overlap in shared memory", a.1, a.2, b.1, b.2);
                out.kernel("V0533", m, "place them apart, or let one ring part take over the other's memory");
            }
        }
    }
}
