//! Rows of an accumulator times their factors, left out where all factors of a warp are one: `x * 1` is `x`, and in an
//! online softmax factors nearly always are.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::loops::ElementLoop;
use crate::ir::{Base, BinaryOp, DType, IxExpr, IxId, Op, Space, ViewId};

impl Emitter<'_> {
    /// Opens a branch around a loop `acc[i, j] *= by[i]` over a warp group's accumulator; false for other loops.
    pub fn skips_ones(&mut self, l: &ElementLoop<'_>) -> bool {
        if self.role.is_none() {
            return false;
        }
        let Some(f) = l.distribution.fragment.filter(|f| f.interleaved && l.distribution.rows_of().is_none()) else {
            return false;
        };
        let Some((by, index)) = self.row_factor(l) else { return false };
        let mut ones = vec![];
        for r in 0..2 * f.atoms[0] {
            let row = self.fragment_row(&f, &Text::number(r as i64));
            self.index.insert(l.vars[0], row);
            let place = self.place(by, &index);
            ones.push(format!("{} == 1.0f", Text::element(&place.base, &place.index).s));
        }
        self.open(&format!("if (!__all_sync(0xffffffffu, {}))", ones.join(" && ")));
        true
    }

    /// The factors in shared memory, and the row in them, of a loop that does nothing but multiply with them.
    fn row_factor(&self, l: &ElementLoop<'_>) -> Option<(ViewId, Vec<IxId>)> {
        let k = self.k;
        let &[i, _] = l.vars else { return None };
        let plain = |x: IxId| matches!(k.ix_expr(x), IxExpr::Var(v) if l.vars.contains(&v));
        let [first, second, third, last] = k.block(l.body).ops[..] else { return None };
        let Op::Store { view: to, index: at, value, checked: false } = &k.op(last).op else { return None };
        let Op::Binary { result, op: BinaryOp::Mul, a, b } = &k.op(third).op else { return None };
        if l.fold.is_some() || value != result || self.register_tile(*to).is_none() {
            return None;
        }
        let mut factor = None;
        let mut same = false;
        for id in [first, second] {
            let Op::Load { result, view, index } = &k.op(id).op else { return None };
            if result != a && result != b {
                return None;
            }
            let v = k.view(*view);
            let row = matches!(index[..], [x] if matches!(k.ix_expr(x), IxExpr::Var(v) if v == i));
            let shared = matches!(v.base, Base::Buffer(t) if k.buffer(t).space == Space::Shared);
            if row && shared && v.dtype == DType::F32 && v.guards.is_empty() && v.gather.is_none() {
                factor = Some((*view, index.clone()));
            } else {
                same = v.base == k.view(*to).base && index == at && at.iter().all(|&x| plain(x));
            }
        }
        factor.filter(|_| same)
    }
}
