//! What there is to place in a plain kernel of the shape `tile { ..; for k { copy tiles; multiply }; store }`.
//!
//! Recognition only. A kernel of another shape is refused with the reason, and keeps the portable form.

use crate::analysis::Ranges;
use crate::ir::effects::walk;
use crate::ir::{
    Access, Base, BufferId, DType, GemmScale, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ParamId, ParamKind, Region,
    Space, ViewId,
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
}

/// The name of an op in schedules.
pub fn name_of(k: &Kernel, op: OpId, touches: &str) -> String {
    k.span_of(k.op(op).span).label.as_ref().map_or_else(|| touches.to_string(), |l| l.to_string())
}

impl Parts {
    /// Finds the parts.
    pub fn find(k: &Kernel) -> Result<Parts, Reason> {
        let body = &k.block(k.body).ops;
        let loops: Vec<usize> =
            (0..body.len()).filter(|&n| matches!(k.op(body[n]).op, Op::For { stages, .. } if stages > 1)).collect();
        let &[at] = &loops[..] else {
            return Err(format!("it needs one pipelined loop at the top of the kernel, there are {}", loops.len()));
        };
        let Op::For { body: inner, .. } = &k.op(body[at]).op else { return Err("the loop is not a loop".into()) };
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
            main: body[at],
            copies,
            products,
            after: body[at + 1..].to_vec(),
            acc,
            tile: [m, n],
        };
        parts.check(k)?;
        Ok(parts)
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
