//! Stores of a tile through a staging tile and the copy engine.

use super::parts::{Parts, Reason, seen};
use crate::analysis::Ranges;
use crate::ir::{Base, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ViewId};

/// A store of a loop over the whole tile.
#[derive(Clone, Debug)]
pub struct StorePart {
    /// The store.
    pub op: OpId,
    /// Name of the tensor.
    pub name: String,
    /// View of the tensor.
    pub view: ViewId,
    /// Index of the tile's first element along the view's last two axes, and what other axes have.
    pub start: Vec<IxId>,
}

/// `e` without the variable, if it is a sum in which the variable occurs once as itself.
pub fn without(k: &mut Kernel, e: IxId, var: IxVarId) -> Option<IxId> {
    match k.ix_expr(e) {
        IxExpr::Var(v) if v == var => Some(k.ix_const_id(0)),
        IxExpr::Add(a, b) => match (mentions(k, a, var), mentions(k, b, var)) {
            (true, false) => {
                let a = without(k, a, var)?;
                Some(k.ix_add(a, b))
            }
            (false, true) => {
                let b = without(k, b, var)?;
                Some(k.ix_add(a, b))
            }
            (true, true) | (false, false) => None,
        },
        IxExpr::Const(_)
        | IxExpr::Sym(_)
        | IxExpr::Var(_)
        | IxExpr::Data(_)
        | IxExpr::Sub(..)
        | IxExpr::Mul(..)
        | IxExpr::Div(..)
        | IxExpr::Mod(..)
        | IxExpr::Min(..)
        | IxExpr::Max(..) => None,
    }
}

/// True if an index names a variable.
pub fn mentions(k: &Kernel, e: IxId, var: IxVarId) -> bool {
    match k.ix_expr(e) {
        IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Data(_) => false,
        IxExpr::Var(v) => v == var,
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => mentions(k, a, var) || mentions(k, b, var),
    }
}

/// Stores to tensors in a loop over the whole tile, outside of branches.
pub fn stores(k: &Kernel, parts: &Parts, op: OpId) -> Vec<StorePart> {
    let Op::Parallel { vars, extents, body, .. } = &k.op(op).op else { return vec![] };
    if extents[..] != parts.tile[..] {
        return vec![];
    }
    let mut out = vec![];
    let mut scratch = k.clone();
    for &id in &k.block(*body).ops {
        if let Op::Store { view, index, checked: false, .. } = &k.op(id).op
            && let Base::Param(p) = k.view(*view).base
            && let [first @ .., i, j] = &index[..]
            && let (Some(i), Some(j)) = (without(&mut scratch, *i, vars[0]), without(&mut scratch, *j, vars[1]))
            && first.iter().all(|&e| vars.iter().all(|&v| !mentions(k, e, v)))
            && [i, j].iter().all(|&e| vars.iter().all(|&v| !mentions(&scratch, e, v)))
        {
            let start = first.iter().copied().chain([i, j]).collect();
            out.push(StorePart { op: id, name: k.param(p).name.clone(), view: *view, start });
        }
    }
    out
}

/// Whether a store may go through the copy engine.
pub fn stageable(k: &Kernel, ranges: &Ranges, parts: &Parts, s: &StorePart) -> Result<(), Reason> {
    let v = k.view(s.view);
    if !matches!(v.dtype.bits(), 16 | 32) {
        return Err(format!("`{}` has elements of {} bits", s.name, v.dtype.bits()));
    }
    if !(parts.tile[1] * v.dtype.bits()).is_multiple_of(128) {
        return Err(format!("a row of the tile of `{}` is not a multiple of 16 bytes", s.name));
    }
    seen(k, ranges, s.view, v.extents.len() - 1).map(drop)
}
