//! Which values an op reads and makes, in its bodies too; the compiler of the VM frees registers by it.

use super::*;

/// Calls `f` with every value an op reads, nested blocks included.
pub(super) fn uses(kernel: &Kernel, id: OpId, f: &mut dyn FnMut(ValueId)) {
    fn ix(kernel: &Kernel, id: IxId, f: &mut dyn FnMut(ValueId)) {
        match kernel.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) => {}
            IxExpr::Data(v) => f(v),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => {
                ix(kernel, a, f);
                ix(kernel, b, f);
            }
        }
    }
    fn view(kernel: &Kernel, id: ViewId, f: &mut dyn FnMut(ValueId)) {
        let v = kernel.view(id);
        v.extents.iter().chain(&v.strides).chain([&v.offset]).for_each(|&i| ix(kernel, i, f));
        v.guards.iter().for_each(|&(a, b)| {
            ix(kernel, a, f);
            ix(kernel, b, f);
        });
        match v.gather {
            None => {}
            Some(Gather::Paged { table, pages, page_stride, page: _ }) => {
                [pages, page_stride].into_iter().for_each(|i| ix(kernel, i, f));
                view(kernel, table, f);
            }
            Some(Gather::Rows { rows, count }) => {
                ix(kernel, count, f);
                view(kernel, rows, f);
            }
        }
    }
    fn block(kernel: &Kernel, id: BlockId, f: &mut dyn FnMut(ValueId)) {
        kernel.block(id).ops.iter().for_each(|&o| uses(kernel, o, f));
    }
    match &kernel.op(id).op {
        Op::Const { .. } | Op::VarGet { .. } | Op::IxVarGet { .. } | Op::Alloc { .. } => {}
        Op::Break | Op::Continue | Op::GridBarrier | Op::BlockBarrier { .. } | Op::Sched(_) => {}
        Op::Check { cond, .. } | Op::Claim { cond, .. } => f(*cond),
        Op::IndexValue { index, .. } => ix(kernel, *index, f),
        Op::Unary { x, .. } | Op::Cast { x, .. } | Op::Bits { x, .. } => f(*x),
        Op::Binary { a, b, .. } | Op::Compare { a, b, .. } => [*a, *b].into_iter().for_each(f),
        Op::Fma { a, b, c, .. } => [*a, *b, *c].into_iter().for_each(f),
        Op::CompareIndex { a, b, .. } => {
            ix(kernel, *a, f);
            ix(kernel, *b, f);
        }
        Op::Select { cond, a, b, .. } => [*cond, *a, *b].into_iter().for_each(f),
        Op::ClampIndex { value, lo, hi, .. } => {
            f(*value);
            ix(kernel, *lo, f);
            ix(kernel, *hi, f);
        }
        Op::VarNew { init, .. } => f(*init),
        Op::VarSet { value, .. } => f(*value),
        Op::IxVarNew { init, .. } => ix(kernel, *init, f),
        Op::IxVarSet { index, .. } => ix(kernel, *index, f),
        Op::Load { view: v, index, .. } => {
            view(kernel, *v, f);
            index.iter().for_each(|&i| ix(kernel, i, f));
        }
        Op::LoadOr { view: v, index, other, .. } => {
            view(kernel, *v, f);
            index.iter().for_each(|&i| ix(kernel, i, f));
            f(*other);
        }
        Op::Store { view: v, index, value, .. } | Op::Atomic { view: v, index, value, .. } => {
            view(kernel, *v, f);
            index.iter().for_each(|&i| ix(kernel, i, f));
            f(*value);
        }
        Op::Fill { dst, value } => {
            view(kernel, *dst, f);
            f(*value);
        }
        Op::Copy { src, dst, .. } => {
            for r in [src, dst] {
                view(kernel, r.view, f);
                r.start.iter().for_each(|&i| ix(kernel, i, f));
            }
        }
        Op::Parallel { body, .. } => block(kernel, *body, f),
        Op::Spread { lo, hi, body, .. } | Op::For { lo, hi, body, .. } => {
            ix(kernel, *lo, f);
            ix(kernel, *hi, f);
            block(kernel, *body, f);
        }
        Op::Reduce { src, .. } | Op::Scan { src, .. } => view(kernel, *src, f),
        Op::Gemm { a, b, scales, .. } => {
            view(kernel, *a, f);
            view(kernel, *b, f);
            for s in scales.iter().flatten() {
                block(kernel, s.body, f);
                f(s.value);
            }
        }
        Op::ReduceRegion { body, value, .. } => {
            block(kernel, *body, f);
            f(*value);
        }
        Op::FindFirst { body, cond, .. } => {
            block(kernel, *body, f);
            f(*cond);
        }
        Op::Loop { body } => block(kernel, *body, f),
        Op::If { cond, then, els, results } => {
            f(*cond);
            block(kernel, *then, f);
            block(kernel, *els, f);
            for r in results {
                match r {
                    IfResult::Value { then, els, .. } => {
                        f(*then);
                        f(*els);
                    }
                    IfResult::Index { then, els, .. } => {
                        ix(kernel, *then, f);
                        ix(kernel, *els, f);
                    }
                }
            }
        }
    }
}

/// Calls `f` with every scalar an op itself defines in its block.
pub(super) fn for_results(op: &Op, f: &mut dyn FnMut(ValueId)) {
    match op {
        Op::Const { result, .. }
        | Op::IndexValue { result, .. }
        | Op::Unary { result, .. }
        | Op::Binary { result, .. }
        | Op::Fma { result, .. }
        | Op::Compare { result, .. }
        | Op::CompareIndex { result, .. }
        | Op::Select { result, .. }
        | Op::Cast { result, .. }
        | Op::Bits { result, .. }
        | Op::VarGet { result, .. }
        | Op::Load { result, .. }
        | Op::LoadOr { result, .. }
        | Op::Claim { result, .. }
        | Op::ReduceRegion { result, .. } => f(*result),
        Op::Atomic { result, .. } => result.iter().for_each(|&r| f(r)),
        Op::Scan { total, .. } => total.iter().for_each(|&r| f(r)),
        Op::If { results, .. } => {
            for r in results {
                if let IfResult::Value { result, .. } = r {
                    f(*result);
                }
            }
        }
        Op::ClampIndex { .. }
        | Op::VarNew { .. }
        | Op::VarSet { .. }
        | Op::IxVarNew { .. }
        | Op::IxVarGet { .. }
        | Op::IxVarSet { .. }
        | Op::Store { .. }
        | Op::Alloc { .. }
        | Op::Fill { .. }
        | Op::Copy { .. }
        | Op::Parallel { .. }
        | Op::Spread { .. }
        | Op::Reduce { .. }
        | Op::FindFirst { .. }
        | Op::Gemm { .. }
        | Op::For { .. }
        | Op::Loop { .. }
        | Op::Break
        | Op::Continue
        | Op::Check { .. }
        | Op::GridBarrier
        | Op::BlockBarrier { .. }
        | Op::Sched(_) => {}
    }
}
