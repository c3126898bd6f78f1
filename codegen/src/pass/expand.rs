//! Copies and fills become `Parallel` loops over their elements, so that one mechanism spreads and vectorises all of them.
//!
//! Before: `copy x.at(r, 0) -> t`. After: `parallel (i, j) { t[i, j] = cast(x[r + i, j]) }`.

use crate::diag::Diagnostic;
use crate::ir::{
    Block, BlockId, IxId, IxVar, IxVarId, IxVarKind, Kernel, Op, OpId, OpNode, Region, SpanId, Value, ValueId, ViewId,
};
use crate::target::Caps;

/// See the file's head.
pub fn run(kernel: Kernel, _: &Caps) -> Result<Kernel, Vec<Diagnostic>> {
    Ok(copies(kernel))
}

/// The same for targets without threads.
pub fn copies(mut kernel: Kernel) -> Kernel {
    for i in 0..kernel.ops.len() {
        let span = kernel.ops[i].span;
        let new = if let Op::Copy { src, dst, extents } = &kernel.ops[i].op {
            let (src, dst, extents) = (src.clone(), dst.clone(), extents.clone());
            copy_loop(&mut kernel, span, &src, &dst, extents)
        } else if let Op::Fill { dst, value } = &kernel.ops[i].op {
            let (dst, value) = (*dst, *value);
            let Some(extents) = kernel.const_extents(dst) else { continue };
            fill_loop(&mut kernel, span, dst, value, extents)
        } else {
            continue;
        };
        kernel.ops[i].op = new;
    }
    kernel
}

fn copy_loop(k: &mut Kernel, span: SpanId, src: &Region, dst: &Region, extents: Vec<usize>) -> Op {
    let vars = element_vars(k, span, &extents);
    let at = |k: &mut Kernel, r: &Region| -> Vec<IxId> {
        let idx: Vec<_> = vars.iter().map(|&v| k.intern(crate::ir::IxExpr::Var(v))).collect();
        r.start.iter().zip(idx).map(|(&s, v)| k.ix_add(s, v)).collect()
    };
    let (from, to) = (k.view(src.view).dtype, k.view(dst.view).dtype);
    let index = at(k, src);
    let loaded = value(k, from, span);
    let load = define(k, span, loaded, Op::Load { result: loaded, view: src.view, index });
    let mut ops = vec![load];
    let mut stored = loaded;
    if from != to {
        stored = value(k, to, span);
        ops.push(define(k, span, stored, Op::Cast { result: stored, x: loaded }));
    }
    let index = at(k, dst);
    ops.push(push(k, span, Op::Store { view: dst.view, index, value: stored, checked: false }));
    Op::Parallel { vars, extents, body: block(k, ops), distribution: None }
}

fn fill_loop(k: &mut Kernel, span: SpanId, dst: ViewId, value: ValueId, extents: Vec<usize>) -> Op {
    let vars = element_vars(k, span, &extents);
    let index = vars.iter().map(|&v| k.intern(crate::ir::IxExpr::Var(v))).collect();
    let store = push(k, span, Op::Store { view: dst, index, value, checked: false });
    Op::Parallel { vars, extents, body: block(k, vec![store]), distribution: None }
}

fn element_vars(k: &mut Kernel, span: SpanId, extents: &[usize]) -> Vec<IxVarId> {
    let names = ["i", "j", "k", "l"];
    let lo = k.ix_const_id(0);
    extents
        .iter()
        .enumerate()
        .map(|(axis, &e)| {
            let hi = k.ix_const_id(e as i64 - 1);
            let name = names[axis.min(3)].to_string();
            k.ix_vars.push(IxVar { name, kind: IxVarKind::Element, lo: Some(lo), hi: Some(hi), span });
            IxVarId(k.ix_vars.len() as u32 - 1)
        })
        .collect()
}

fn value(k: &mut Kernel, dtype: crate::ir::DType, span: SpanId) -> ValueId {
    k.values.push(Value { dtype, def: None, span });
    ValueId(k.values.len() as u32 - 1)
}

fn define(k: &mut Kernel, span: SpanId, v: ValueId, op: Op) -> OpId {
    let id = push(k, span, op);
    k.values[v.0 as usize].def = Some(id);
    id
}

fn push(k: &mut Kernel, span: SpanId, op: Op) -> OpId {
    k.ops.push(OpNode { op, span });
    OpId(k.ops.len() as u32 - 1)
}

fn block(k: &mut Kernel, ops: Vec<OpId>) -> BlockId {
    k.blocks.push(Block { ops });
    BlockId(k.blocks.len() as u32 - 1)
}
