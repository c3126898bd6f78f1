//! What there is to place in a plain kernel of the shape `tile { ..; for k { copy tiles; multiply }; store }`.
//!
//! The tile may stand in `if first row < rows of the group { .. }`, which becomes the walk over tiles; the loop may stand
//! in `for part in 0..n { acc = 0; for k ..; total += acc }`, whose parts then run beside each other.
//!
//! Recognition only. A kernel of another shape is refused with the reason, and keeps the portable form.

use crate::analysis::Ranges;
use crate::ir::effects::walk;
use crate::ir::{
    Access, Base, BinaryOp, BufferId, CmpOp, DType, GemmScale, GroupRows, IxExpr, IxId, IxVarId, Kernel, Op, OpId,
    ParamId, ParamKind, Region, Space, ValueId, ViewId,
};

/// Why a schedule does not fit, in words that follow "the automatic schedule does not apply: ".
pub type Reason = String;

/// A copy of the loop.
#[derive(Clone, Debug)]
pub struct CopyPart {
    /// The op.
    pub op: OpId,
    /// Tile it fills.
    pub tile: BufferId,
    /// Source.
    pub src: Region,
    /// Elements.
    pub extents: Vec<usize>,
}

/// A product of the loop.
#[derive(Clone, Debug)]
pub struct ProductPart {
    /// The op.
    pub op: OpId,
    /// Left operand.
    pub a: ViewId,
    /// Right operand.
    pub b: ViewId,
    /// True if the accumulator's content is ignored.
    pub set: bool,
    /// Scales.
    pub scales: Option<[GemmScale; 2]>,
}

/// A loop over parts of the sum around the loop over K.
#[derive(Clone, Debug)]
pub struct SplitPart {
    /// Number of the part.
    pub var: IxVarId,
    /// Parts.
    pub count: usize,
    /// Ops of its body in front of the loop.
    pub before: Vec<OpId>,
    /// The tile that the parts are added to, one after another from +0 on.
    pub total: BufferId,
}

/// The parts.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Ops of the body before the loop.
    pub before: Vec<OpId>,
    /// The loop.
    pub main: OpId,
    /// Its copies.
    pub copies: Vec<CopyPart>,
    /// Its products.
    pub products: Vec<ProductPart>,
    /// Ops of the body behind the loop.
    pub after: Vec<OpId>,
    /// The accumulator.
    pub acc: BufferId,
    /// Its extents.
    pub tile: [usize; 2],
    /// Which tiles have rows, if only the device knows.
    pub rows: Option<GroupRows>,
    /// The loop over parts of the sum, if there is one.
    pub split: Option<SplitPart>,
}

/// The name of an op in schedules.
pub fn name_of(k: &Kernel, op: OpId, touches: &str) -> String {
    k.span_of(k.op(op).span).label.as_ref().map_or_else(|| touches.to_string(), |l| l.to_string())
}

impl Parts {
    /// Finds the parts.
    pub fn find(k: &Kernel) -> Result<Parts, Reason> {
        let (rows, body) = tile_body(k)?;
        let (at, main, split) = main_loop(k, &body)?;
        let Op::For { body: inner, .. } = &k.op(main).op else { return Err("the loop is not a loop".into()) };
        let (mut copies, mut products, mut accs) = (vec![], vec![], vec![]);
        for &id in &k.block(*inner).ops {
            if let Op::Copy { src, dst, extents } = &k.op(id).op {
                copies.push(copy_part(k, id, src, dst, extents)?);
            } else if let Op::Gemm { a, b, acc, set, scales } = &k.op(id).op {
                products.push(ProductPart { op: id, a: *a, b: *b, set: *set, scales: *scales });
                accs.push(*acc);
            } else if !crate::pass::pipeline::scalar(k, &k.op(id).op) {
                return Err(format!("the loop holds `{}`", k.op(id).op.name()));
            }
        }
        accs.dedup();
        let &[acc] = &accs[..] else { return Err(format!("the loop has {} accumulators", accs.len())) };
        let &[m, n] = &k.buffer(acc).extents[..] else { return Err("the accumulator has not two axes".into()) };
        if k.buffer(acc).space != Space::Frag {
            return Err("the accumulator is no `frag`".into());
        }
        let parts = Parts {
            before: body[..at].to_vec(),
            main,
            copies,
            products,
            after: body[at + 1..].to_vec(),
            acc,
            tile: [m, n],
            rows,
            split,
        };
        parts.check(k)?;
        parts.check_split(k, body[at])?;
        Ok(parts)
    }

    /// Ops in front of the loop, at all levels.
    pub fn outer(&self) -> impl Iterator<Item = OpId> + '_ {
        self.before.iter().chain(self.split.iter().flat_map(|s| &s.before)).copied()
    }

    /// The tile that holds the result: the accumulator, or what its parts are added to.
    pub fn sum(&self) -> BufferId {
        self.split.as_ref().map_or(self.acc, |s| s.total)
    }

    /// The loop's variable and bounds.
    pub fn loop_of(&self, k: &Kernel) -> Option<(IxVarId, IxId, IxId)> {
        let Op::For { var, lo, hi, .. } = &k.op(self.main).op else { return None };
        Some((*var, *lo, *hi))
    }

    /// Ops of the loop's body.
    pub fn steps(&self, k: &Kernel) -> Vec<OpId> {
        let Op::For { body, .. } = &k.op(self.main).op else { return vec![] };
        k.block(*body).ops.clone()
    }

    /// The copy that fills the tile a view looks at.
    pub fn copy_of(&self, k: &Kernel, view: ViewId) -> Option<&CopyPart> {
        let Base::Buffer(b) = k.view(view).base else { return None };
        self.copies.iter().find(|c| c.tile == b)
    }

    /// Checks that a loop over parts starts each at +0 and adds it to a total that starts at +0.
    fn check_split(&self, k: &Kernel, around: OpId) -> Result<(), Reason> {
        let Some(s) = &self.split else { return Ok(()) };
        let zeroed = |ops: &[OpId], tile: BufferId| {
            ops.iter().any(|&id| {
                matches!(k.op(id).op, Op::Fill { dst, value } if k.view(dst).base == Base::Buffer(tile) && is_zero(k, value))
            })
        };
        if !zeroed(&self.before, s.total) || !zeroed(&s.before, self.acc) {
            return Err("the parts of the sum, or their total, do not start at zero".into());
        }
        let Op::For { body, .. } = &k.op(around).op else { return Err("the parts are not a loop".into()) };
        let last = k.block(*body).ops.last().copied();
        if k.buffer(s.total).extents != self.tile || !last.is_some_and(|id| adds(k, id, self.acc, s.total)) {
            return Err("a part of the sum is not added to the total, element by element".into());
        }
        // Nobody else looks at a part or changes the total in between.
        let mut others = 0;
        walk(k, *body, &mut |_, op| {
            let touches = |v: &ViewId| [s.total, self.acc].iter().any(|&t| k.view(*v).base == Base::Buffer(t));
            others += usize::from(crate::ir::effects::uses(op).views.iter().any(touches));
        });
        // The fill of the part, and the two loads and the store of the addition; a product names its accumulator as a tile.
        if others != 4 {
            return Err("the parts of the sum are read or written elsewhere".into());
        }
        Ok(())
    }

    fn check(&self, k: &Kernel) -> Result<(), Reason> {
        for p in &self.products {
            for v in [p.a, p.b] {
                if self.copy_of(k, v).is_none() {
                    return Err("an operand is not copied from memory in the loop".into());
                }
            }
        }
        // Nobody else may touch the tiles that move into the ring.
        let inside: Vec<OpId> = self.copies.iter().map(|c| c.op).chain(self.products.iter().map(|p| p.op)).collect();
        let mut stranger = None;
        walk(k, k.body, &mut |id, op| {
            let used = crate::ir::effects::uses(op);
            let touches = used.views.iter().any(|v| self.copy_of(k, *v).is_some());
            if touches && !inside.contains(&id) {
                stranger = Some(op.name());
            }
        });
        match stranger {
            Some(name) => Err(format!("`{name}` reads a tile of the ring")),
            None => Ok(()),
        }
    }
}

/// True for the constant +0.
fn is_zero(k: &Kernel, v: ValueId) -> bool {
    let def = k.value(v).def.map(|d| &k.op(d).op);
    matches!(def, Some(Op::Const { value, .. }) if value.bits == 0)
}

/// True for `total[i, j] = total[i, j] + part[i, j]` over whole tiles.
fn adds(k: &Kernel, id: OpId, part: BufferId, total: BufferId) -> bool {
    let Op::Parallel { vars, extents, body, .. } = &k.op(id).op else { return false };
    let &[x, y, sum, store] = &k.block(*body).ops[..] else { return false };
    let own = |index: &[IxId]| {
        index.len() == 2 && index.iter().zip(vars).all(|(&i, &v)| matches!(k.ix_expr(i), IxExpr::Var(w) if w == v))
    };
    let whole = |v: ViewId, of: BufferId| {
        k.view(v).base == Base::Buffer(of)
            && k.const_extents(v).as_deref() == Some(&extents[..])
            && k.ix_const(k.view(v).offset) == Some(0)
    };
    let read = |op: &Op| {
        let Op::Load { result, view, index } = op else { return None };
        own(index).then_some((*result, *view))
    };
    let (Some(x), Some(y)) = (read(&k.op(x).op), read(&k.op(y).op)) else { return false };
    let Op::Binary { result, op: BinaryOp::Add, a, b } = k.op(sum).op else { return false };
    let Op::Store { view, index, value, checked: false } = &k.op(store).op else { return false };
    // A sum of two has one value in either order.
    let (of_total, of_part) = if whole(x.1, total) { (x, y) } else { (y, x) };
    let both = [a, b].contains(&of_total.0) && [a, b].contains(&of_part.0) && a != b;
    both && whole(of_total.1, total) && whole(of_part.1, part) && whole(*view, total) && own(index) && *value == result
}

/// The ops of a tile, and which tiles have rows: those of the branch that a tile with rows takes, if the kernel is one.
fn tile_body(k: &Kernel) -> Result<(Option<GroupRows>, Vec<OpId>), Reason> {
    let ops = k.block(k.body).ops.clone();
    let Some((&last, head)) = ops.split_last() else { return Ok((None, ops)) };
    let Op::If { cond, then, els, results } = &k.op(last).op else { return Ok((None, ops)) };
    if !results.is_empty() || !k.block(*els).ops.is_empty() {
        return Err("the tile stands in a branch with two ways".into());
    }
    let (rows, test) = group_rows(k, head, *cond).ok_or("the tile stands in a branch that is not about its rows")?;
    let body = head.iter().filter(|&&id| id != test).chain(&k.block(*then).ops).copied().collect();
    Ok((Some(rows), body))
}

/// The rows of groups in `first row < min(max(counts[group], 0), room)`, and the comparison.
fn group_rows(k: &Kernel, head: &[OpId], cond: ValueId) -> Option<(GroupRows, OpId)> {
    let test = k.value(cond).def.filter(|id| head.contains(id))?;
    let Op::CompareIndex { op: CmpOp::Lt, a: start, b: count, .. } = k.op(test).op else { return None };
    let &[tiles, _, _] = &k.block_ids[..] else { return None };
    let &[extent, _, groups] = &k.grid[..] else { return None };
    let IxExpr::Mul(x, y) = k.ix_expr(start) else { return None };
    let (place, tile) = match (k.ix_const(x), k.ix_const(y)) {
        (_, Some(c)) => (x, c),
        (Some(c), _) => (y, c),
        _ => return None,
    };
    let IxExpr::Var(counted) = k.ix_expr(count) else { return None };
    let clamp = head.iter().find_map(|&id| {
        let Op::ClampIndex { var, value, lo, hi } = k.op(id).op else { return None };
        (var == counted).then_some((value, lo, hi))
    });
    let (value, lo, room) = clamp?;
    let Op::Load { view, index, .. } = &k.op(k.value(value).def?).op else { return None };
    let &[at] = &index[..] else { return None };
    let Base::Param(p) = k.view(*view).base else { return None };
    // The walk covers the tiles that the room has, no more and no fewer.
    let mut scratch = k.clone();
    let size = scratch.ix_const_id(tile);
    let same = scratch.ix_div_ceil(room, size) == extent;
    let fits = same
        && tile > 0
        && k.ix_const(lo) == Some(0)
        && matches!(k.ix_expr(place), IxExpr::Var(v) if v == tiles)
        && matches!(k.ix_expr(at), IxExpr::Var(v) if v == k.block_ids[2])
        && k.view(*view).extents == [groups]
        && read_only(k, p);
    fits.then_some((GroupRows { counts: *view, tile: tile as usize }, test))
}

/// The loop over K: its place or that of the loop over parts around it, and that loop.
fn main_loop(k: &Kernel, body: &[OpId]) -> Result<(usize, OpId, Option<SplitPart>), Reason> {
    let pipelined = |ops: &[OpId]| -> Vec<usize> {
        (0..ops.len()).filter(|&n| matches!(k.op(ops[n]).op, Op::For { stages, .. } if stages > 1)).collect()
    };
    let mut found: Vec<(usize, OpId, Option<SplitPart>)> =
        pipelined(body).into_iter().map(|n| (n, body[n], None)).collect();
    for (n, &id) in body.iter().enumerate() {
        let Op::For { var, lo, hi, body: inner, stages: 1 } = &k.op(id).op else { continue };
        let ops = &k.block(*inner).ops;
        for at in pipelined(ops) {
            let (Some(0), Some(count)) = (k.ix_const(*lo), k.ix_const(*hi)) else {
                return Err("the number of parts of the sum is not known".into());
            };
            let &[add] = &ops[at + 1..] else { return Err("a part of the sum does more than being added".into()) };
            let total = added_to(k, add).ok_or("a part of the sum is not added to a tile")?;
            let split = SplitPart { var: *var, count: count.max(0) as usize, before: ops[..at].to_vec(), total };
            found.push((n, ops[at], Some(split)));
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        n => Err(format!("it needs one pipelined loop at the top of the kernel, there are {n}")),
    }
}

/// The tile that a loop stores to.
fn added_to(k: &Kernel, id: OpId) -> Option<BufferId> {
    let Op::Parallel { body, .. } = &k.op(id).op else { return None };
    let Op::Store { view, .. } = &k.op(*k.block(*body).ops.last()?).op else { return None };
    if let Base::Buffer(b) = k.view(*view).base { Some(b) } else { None }
}

fn copy_part(k: &Kernel, op: OpId, src: &Region, dst: &Region, extents: &[usize]) -> Result<CopyPart, Reason> {
    let Base::Buffer(tile) = k.view(dst.view).base else { return Err("the loop copies to memory".into()) };
    let whole = k.view(dst.view).offset;
    if k.ix_const(whole) != Some(0)
        || dst.start.iter().any(|&s| k.ix_const(s) != Some(0))
        || k.buffer(tile).extents != extents
        || k.buffer(tile).space != Space::Shared
    {
        return Err(format!("the copy to `{}` does not fill a whole shared tile", k.buffer(tile).name));
    }
    if k.view(src.view).dtype != k.buffer(tile).dtype {
        return Err(format!("the copy to `{}` converts", k.buffer(tile).name));
    }
    Ok(CopyPart { op, tile, src: src.clone(), extents: extents.to_vec() })
}

/// How the copy engine sees what a view shows: axes innermost first, with the picked ones last.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The tensor.
    pub param: ParamId,
    /// Extent of each axis.
    pub extents: Vec<IxId>,
    /// Stride of each axis in elements.
    pub strides: Vec<IxId>,
    /// Index along picked axes, which follow the view's own.
    pub picked: Vec<IxId>,
}

/// How a copy engine sees a view of a tensor whose fastest axis is `inner`, if it can.
pub fn seen(k: &Kernel, ranges: &Ranges, view: ViewId, inner: usize) -> Result<Seen, Reason> {
    let v = k.view(view);
    let Base::Param(param) = v.base else { return Err("the source is a tile".into()) };
    let name = k.param(param).name.clone();
    let ParamKind::Tensor { dtype, align_bytes, .. } = &k.param(param).kind else {
        return Err(format!("`{name}` is no tensor"));
    };
    if v.gather.is_some() {
        return Err(format!("rows of `{name}` are looked up"));
    }
    if v.dtype != *dtype {
        return Err(format!("`{name}` is seen as another type"));
    }
    if align_bytes % 16 != 0 {
        return Err(format!("`{name}` is aligned to {align_bytes} bytes, the copy engine needs 16"));
    }
    let rank = v.extents.len();
    if k.ix_const(v.strides[inner]) != Some(1) {
        return Err(format!("the fast axis of `{name}` has another stride than 1"));
    }
    let order: Vec<usize> = std::iter::once(inner).chain((0..rank).rev().filter(|&a| a != inner)).collect();
    let (mut extents, mut strides): (Vec<IxId>, Vec<IxId>) =
        order.iter().map(|&a| (v.extents[a], v.strides[a])).unzip();
    let mut picked = vec![];
    match (k.ix_const(v.offset), &v.guards[..]) {
        (Some(0), []) => {}
        (None, &[(index, extent)]) => {
            let IxExpr::Mul(a, b) = k.ix_expr(v.offset) else {
                return Err(format!("the part of `{name}` does not start at a multiple of a stride"));
            };
            let stride = if a == index {
                b
            } else if b == index {
                a
            } else {
                return Err(format!("the part of `{name}` does not start at a multiple of a stride"));
            };
            extents.push(extent);
            strides.push(stride);
            picked.push(index);
        }
        _ => return Err(format!("the copy engine does not see this part of `{name}`")),
    }
    for &s in &strides[1..] {
        if ranges.multiple_of(s) * dtype.bits() as i64 % 128 != 0 {
            return Err(format!("a stride of `{name}` is not known to be a multiple of 16 bytes"));
        }
    }
    Ok(Seen { param, extents, strides, picked })
}

/// True if a tensor parameter may be read by copy engines while the kernel runs.
pub fn read_only(k: &Kernel, param: ParamId) -> bool {
    matches!(k.param(param).kind, ParamKind::Tensor { access: Access::In, .. })
}

/// Bytes of a row of K that the matrix unit of a warp group takes from swizzled tiles.
pub const ROW_BYTES: usize = 128;

/// Elements of K an instruction takes; `None` for a type the unit does not multiply.
pub fn unit_depth(d: DType) -> Option<usize> {
    match d {
        DType::E4m3 | DType::E5m2 => Some(32),
        DType::Bf16 | DType::F16 => Some(16),
        DType::F32
        | DType::E2m1
        | DType::E8m0
        | DType::I8
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U32
        | DType::Bool => None,
    }
}
