//! Those who share a tile: parts of a sum that are added up, by whom the tile is stored, and walks over rows of groups.
//!
//! A sum has an order inside that no other op shows. Inside a block all instances of a group meet before the parts are
//! written and before they are read; over blocks the first one counts the bytes that come and tells the senders when it has
//! read them (`states` runs both). Here it is judged that everyone comes by equally often, that nobody else has the memory
//! in between, and that only the owner of the whole sum stores it.

use super::{Findings, Roles};
use crate::ir::effects::{EffectKind, bodies, effects, walk};
use crate::ir::{
    Access, Base, BinaryOp, BlockId, BufferId, CmpOp, DType, GroupRows, IxExpr, IxId, IxVarId, Kernel, Op, OpId,
    ParamKind, RoleId, SchedOp, Space, ValueId,
};

/// Registers that are handed over at once.
const QUAD: usize = 4;

pub(super) fn check<'k>(roles: &Roles<'k>, out: &mut Findings<'k>) {
    let k = roles.k;
    let all = sums(roles);
    if let [first, rest @ ..] = &all[..] {
        for other in rest {
            let help = "add up the parts of all sums at one place: their barriers and their memory are one";
            let m = "parts of sums are added up at two places".to_string();
            out.pair("V0543", other.op, m, ("the first is", first.op), help);
        }
        shape(roles, out, first);
        memory(roles, out, first);
        if roles.sharing() > 1 && !roles.ends_together() {
            let m = "blocks send parts of a sum to each other and may end while others still do".to_string();
            out.op("V0512", first.op, m, "end the kernel with a barrier of the cluster behind the roles");
        }
    }
    let mut walks = false;
    for &(role, body) in &roles.programs {
        place(roles, out, body, Around::Program);
        walk(k, body, &mut |id, op| {
            if let Op::Sched(SchedOp::Tiles { rows, .. }) = op {
                walks = true;
                if let Some(r) = rows {
                    groups_of_rows(roles, out, id, *r);
                }
            }
        });
        let turns = k.rings.iter().filter(|r| r.consumers.contains(&role)).map(|r| r.turns).max().unwrap_or(1);
        let mut owners: Vec<Owner> = vec![];
        if roles.sharing() > 1
            && let Some(c) = &k.cluster
        {
            owners.push(Owner { var: c.rank, turns: c.size, all: c.size, words: "blocks of the cluster" });
        }
        let r = roles.role(role);
        if turns > 1
            && let Some(v) = r.instance
        {
            owners.push(Owner { var: v, turns, all: r.instances, words: "instances that take turns" });
        }
        if !owners.is_empty() {
            stores(roles, out, body, &owners);
        }
    }
    if roles.sharing() > 1 && !walks {
        let m = format!("a cluster of {} blocks without an axis, and no walk over tiles", roles.sharing());
        out.kernel("V0535", m, "blocks that share tiles walk over them: use `tiles`, or give the cluster an axis");
    }
}

/// Instances that add up a sum, or hand over a part of it, together: none if the kernel has no sums.
pub fn groups(roles: &Roles) -> usize {
    sums(roles).first().map_or(0, |s| roles.role(s.role).instances / s.turns.max(1))
}

/// A place where a sum is added up.
struct Sum {
    op: OpId,
    role: RoleId,
    acc: BufferId,
    inbox: BufferId,
    turns: usize,
}

fn sums(roles: &Roles) -> Vec<Sum> {
    let mut all = vec![];
    for &(role, body) in &roles.programs {
        walk(roles.k, body, &mut |op, what| {
            if let Op::Sched(SchedOp::Combine { acc, inbox, turns }) = what {
                all.push(Sum { op, role, acc: *acc, inbox: *inbox, turns: *turns });
            }
        });
    }
    all
}

/// Threads, instances and parts.
fn shape(roles: &Roles, out: &mut Findings, s: &Sum) {
    let k = roles.k;
    let r = roles.role(s.role);
    if r.warps != 4 || r.one_thread {
        let m = format!("a sum of accumulators in role `{}` of {} warps", r.name, r.warps);
        out.op("V0541", s.op, m, "add up where warp groups have the accumulators: four warps an instance");
    }
    if s.turns == 0 || !r.instances.is_multiple_of(s.turns) || roles.sharing() * s.turns < 2 {
        let m = format!(
            "a sum of {} parts by {} instances of role `{}` in {} blocks",
            roles.sharing() * s.turns,
            r.instances,
            r.name,
            roles.sharing()
        );
        let help = "two or more parts: instances that take turns, times blocks of a cluster without an axis";
        out.op("V0543", s.op, m, help);
    }
    let own = || k.rings.iter().filter(|x| x.consumers.contains(&s.role));
    let most = own().map(|x| x.turns).max().unwrap_or(1);
    if most != s.turns {
        let m = format!("{most} instances of role `{}` take turns at its rings, {} add up", r.name, s.turns);
        out.op("V0543", s.op, m, "let as many add up as take turns");
    }
    let b = k.buffer(s.acc);
    let registers = b.distribution.as_ref().map_or(0, |d| d.registers(&b.extents));
    if b.space != Space::Frag || b.dtype != DType::F32 || registers == 0 || !registers.is_multiple_of(QUAD) {
        let m = format!("the sum `{}` is {} in {registers} registers a thread", b.name, b.dtype);
        out.op("V0543", s.op, m, "add up an F32 `frag` of a multiple of four registers");
    }
}

/// The memory that parts are handed over in.
fn memory(roles: &Roles, out: &mut Findings, s: &Sum) {
    let k = roles.k;
    let (acc, inbox) = (k.buffer(s.acc), k.buffer(s.inbox));
    let parts = (roles.sharing() * s.turns).saturating_sub(1);
    let need = parts * groups(roles) * acc.extents.iter().product::<usize>();
    let has: usize = inbox.extents.iter().product();
    let plain = inbox.memory.as_ref().is_some_and(|m| m.swizzle.is_none() && m.offset_bytes.is_multiple_of(16));
    if inbox.space != Space::Shared || inbox.dtype != DType::F32 || !plain || has != need {
        let m = format!(
            "parts of a sum are handed over in `{}`, {} elements of {}; they have {need} of F32",
            inbox.name, has, inbox.dtype
        );
        let help =
            "a shared F32 tile from a multiple of 16 bytes on: the other parts times their instances times the sum";
        out.op("V0543", s.op, m, help);
    }
    if roles.tiles.contains_key(&s.inbox) {
        let m = format!("parts of a sum are handed over in `{}`, which is a ring's", inbox.name);
        out.op("V0543", s.op, m, "give the parts a tile of their own");
    }
    walk(k, k.body, &mut |id, op| {
        if matches!(op, Op::Sched(SchedOp::Combine { .. })) {
            return;
        }
        if effects(k, id).iter().any(|e| e.base(k) == Base::Buffer(s.inbox)) {
            let m = format!("`{}` is used between the sums whose parts it hands over", inbox.name);
            out.pair("V0543", id, m, ("the sum is", s.op), "give the parts a tile of their own");
        }
    });
}

/// What is around an op of a role.
#[derive(Clone, Copy, PartialEq)]
enum Around {
    Program,
    Tile,
    Other,
}

/// Sums are added up where all instances come by equally often: once a tile.
fn place(roles: &Roles, out: &mut Findings, block: BlockId, around: Around) {
    for &id in &roles.k.block(block).ops {
        let op = &roles.k.op(id).op;
        if matches!(op, Op::Sched(SchedOp::Combine { .. })) && around != Around::Tile {
            let m = "a sum is added up under a condition, in a loop, or outside of the walk over tiles".to_string();
            out.op("V0541", id, m, "put it where all instances of the role come by once for each tile");
        }
        let walks = matches!(op, Op::Sched(SchedOp::Tiles { .. }));
        let inner = if walks && around == Around::Program { Around::Tile } else { Around::Other };
        for b in bodies(op) {
            place(roles, out, b, inner);
        }
    }
}

/// One of several who share a tile: the one whose number, modulo `turns`, is 0 owns it.
struct Owner {
    var: IxVarId,
    turns: usize,
    all: usize,
    words: &'static str,
}

/// Memory is written by the owner of a tile only.
fn stores(roles: &Roles, out: &mut Findings, block: BlockId, left: &[Owner]) {
    let k = roles.k;
    for &id in &k.block(block).ops {
        let op = &k.op(id).op;
        if let Op::If { cond, then, els, .. } = op {
            let inner: Vec<Owner> = left
                .iter()
                .filter(|o| !asks(k, *cond, o))
                .map(|o| Owner { var: o.var, turns: o.turns, all: o.all, words: o.words })
                .collect();
            stores(roles, out, *then, &inner);
            stores(roles, out, *els, left);
            continue;
        }
        for e in effects(k, id) {
            if e.kind != EffectKind::Read
                && let Base::Param(p) = e.base(k)
                && let Some(o) = left.first()
            {
                let m = format!("all {} write the same tile of `{}`", o.words, k.param(p).name);
                let help = "store under the condition that the number of the block, and the turn of the instance, is 0";
                out.op("V0514", id, m, help);
            }
        }
        for b in bodies(op) {
            stores(roles, out, b, left);
        }
    }
}

/// True if a condition only holds for the owner.
fn asks(k: &Kernel, cond: ValueId, o: &Owner) -> bool {
    let Some(def) = k.value(cond).def else { return false };
    let own = |e: IxId| match k.ix_expr(e) {
        IxExpr::Var(v) => v == o.var,
        IxExpr::Mod(a, b) => {
            matches!(k.ix_expr(a), IxExpr::Var(v) if v == o.var)
                && k.ix_const(b).is_some_and(|b| b == o.turns as i64 || b == o.all as i64)
        }
        IxExpr::Const(_)
        | IxExpr::Sym(_)
        | IxExpr::Data(_)
        | IxExpr::Add(..)
        | IxExpr::Sub(..)
        | IxExpr::Mul(..)
        | IxExpr::Div(..)
        | IxExpr::Min(..)
        | IxExpr::Max(..) => false,
    };
    if let Op::CompareIndex { op: CmpOp::Eq, a, b, .. } = &k.op(def).op {
        return own(*a) && k.ix_const(*b) == Some(0) || own(*b) && k.ix_const(*a) == Some(0);
    }
    if let Op::Binary { op: BinaryOp::And, a, b, .. } = &k.op(def).op {
        return asks(k, *a, o) || asks(k, *b, o);
    }
    false
}

/// The rows of groups that a walk goes by.
fn groups_of_rows(roles: &Roles, out: &mut Findings, id: OpId, rows: GroupRows) {
    let k = roles.k;
    let v = k.view(rows.counts);
    let read = match v.base {
        Base::Param(p) => matches!(k.param(p).kind, ParamKind::Tensor { access: Access::In, .. }),
        Base::Buffer(_) => false,
    };
    let counted = k.grid.len() == 3 && v.extents[..] == k.grid[2..];
    let plain = v.guards.is_empty()
        && v.gather.is_none()
        && k.ix_const(v.offset) == Some(0)
        && v.strides.first().is_some_and(|&s| k.ix_const(s) == Some(1));
    if !read || !counted || !plain || v.dtype != DType::I32 || rows.tile == 0 {
        let m = format!(
            "a walk by the rows of groups, tiles of {} rows, that are not counts of the grid's groups",
            rows.tile
        );
        let help = "give it a dense I32 input of rank 1 with an element for each of the last of three grid axes";
        out.op("V0543", id, m, help);
    }
    if k.cluster.as_ref().is_some_and(|c| c.axis == Some(0)) {
        let m = "a walk by the rows of groups, in clusters of neighbours along them".to_string();
        out.op("V0543", id, m, "let neighbours share columns: some of them would do tiles without rows");
    }
}
