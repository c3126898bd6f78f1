//! Reductions: lanes folded into one element, and loops folded in every lane.

use super::{Level, Opd, Vf, ty_reg};
use crate::emit::ascend::lower::Res;
use crate::emit::ascend::stage::Ub;
use crate::emit::cuda::expr::Text;
use crate::ir::{DType, IxVarId, OpId, ReduceOp, ValueId};

impl Vf<'_, '_> {
    /// Folds a value of every lane and row into a register, which then goes to the first element of `to`.
    pub fn fold(&mut self, id: OpId, op: ReduceOp, d: DType, x: Opd, inner: bool, to: &Ub) -> Res<()> {
        if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
            return self.refuse(id, format!("no reduction of {d} on vector registers"));
        }
        let ty = ty_reg(d);
        let (f, start) = match (op, d) {
            (ReduceOp::Sum, DType::F32) => ("Add", "0.0f"),
            (ReduceOp::Sum, _) => ("Add", "0"),
            (ReduceOp::AbsMax, DType::F32) => ("Max", "0.0f"),
            (ReduceOp::Max, DType::F32) => ("Max", "NEG_INF"),
            (ReduceOp::Min, DType::F32) => ("Min", "POS_INF"),
            (ReduceOp::Max, DType::I32) => ("Max", "-2147483647 - 1"),
            (ReduceOp::Max, _) => ("Max", "0u"),
            (ReduceOp::Min, DType::I32) => ("Min", "2147483647"),
            (ReduceOp::Min, _) => ("Min", "4294967295u"),
            (ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or, _) => {
                return self.refuse(id, format!("no `{}` of {d} on vector registers", op.name()));
            }
        };
        let (mut x, _) = self.as_reg(d, &x);
        if op == ReduceOp::AbsMax {
            let a = self.reg(ty, "t");
            self.emit(Level::Lane, format!("Reg::Abs({a}, {x}, lanes);"));
            x = a;
        }
        let start = if d == DType::F32 { start.to_string() } else { format!("static_cast<{ty}>({start})") };
        let acc = self.reg(ty, "sum");
        let row = if inner && !self.outer.is_empty() { Level::Outer } else { Level::Once };
        // Whatever else a row computes comes first.
        self.emit(row, format!("Reg::Duplicate({acc}, {start}, all);"));
        let cleared = matches!(op, ReduceOp::Sum | ReduceOp::AbsMax);
        let simple =
            self.steps.last().is_some_and(|l| l.ends_with(", lanes);") && l.contains(&format!("({x}, "))) && cleared;
        let term = if simple {
            // A masked operation has cleared the lanes outside.
            x
        } else {
            let t = self.reg(ty, "t");
            let neutral =
                if cleared { self.zero(d) } else { self.as_reg(d, &Opd::Scalar(Text::name(start.clone()))).0 };
            self.emit(Level::Lane, format!("Reg::Select({t}, {x}, {neutral}, lanes);"));
            t
        };
        self.emit(Level::Lane, format!("Reg::{f}({acc}, {acc}, {term}, all);"));
        let kind = match op {
            ReduceOp::Sum => "SUM",
            ReduceOp::Min => "MIN",
            ReduceOp::Max | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or => "MAX",
        };
        let r = self.reg(ty, "total");
        self.after.push(format!("Reg::Reduce<Reg::ReduceType::{kind}>({r}, {acc}, all);"));
        if !self.touched.1.contains(&to.buf) {
            self.touched.1.push(to.buf);
        }
        let p = self.pointer(to, ty);
        let mut at = Text::number(0);
        for o in self.outer.clone() {
            let c = to.elem.iter().find(|(v, _)| *v == o.0).map_or(0, |p| p.1);
            at = Text::add(&at, &Text::mul(&Text::name(o.2), &Text::number(c)));
        }
        let p = if at.is_zero() { p } else { format!("{p} + {}", at.s) };
        self.after.push(format!("Reg::StoreAlign<{ty}, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>({p}, {r}, all);"));
        Ok(())
    }

    /// Folds along a loop inside the lanes: every lane has its own result.
    pub fn fold_columns(
        &mut self,
        id: OpId,
        op: ReduceOp,
        d: DType,
        from: &Ub,
        axis: (IxVarId, usize),
        to: &Ub,
    ) -> Res<()> {
        // The largest of narrow floats is one of them, so folding in f32 changes nothing.
        let narrow =
            matches!(d, DType::Bf16 | DType::F16) && matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::AbsMax);
        let (own, d) = (d, if narrow { DType::F32 } else { d });
        let ty = ty_reg(d);
        let f = match (op, d) {
            (ReduceOp::Sum, DType::F32 | DType::I32 | DType::U32) => "Add",
            (ReduceOp::Max | ReduceOp::AbsMax, DType::F32 | DType::I32) | (ReduceOp::Max, DType::U32) => "Max",
            (ReduceOp::Min, DType::F32 | DType::I32 | DType::U32) => "Min",
            (ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or, _) => {
                return self.refuse(id, format!("no `{}` of {d} on vector registers", op.name()));
            }
        };
        self.nest += 1;
        let acc = self.reg(ty, "sum");
        let zero = self.zero(d);
        self.index.insert(axis.0, Opd::Scalar(Text::number(0)));
        let first = self.load_at(id, from, axis.0, "0")?;
        let first = self.cast(id, own, d, first)?;
        let (x, _) = self.as_reg(d, &first);
        self.emit(Level::Lane, format!("Reg::Select({acc}, {x}, {zero}, lanes);"));
        if op == ReduceOp::AbsMax {
            self.emit(Level::Lane, format!("Reg::Abs({acc}, {acc}, lanes);"));
        }
        let n = self.fresh(&self.lo.k.ix_var(axis.0).name.clone());
        self.emit(Level::Lane, format!("for (uint16_t {n} = 1; {n} < {}; ++{n}) {{", axis.1));
        let next = self.load_at(id, from, axis.0, &n)?;
        let next = self.cast(id, own, d, next)?;
        let (x, _) = self.as_reg(d, &next);
        if op == ReduceOp::AbsMax {
            self.emit(Level::Lane, format!("Reg::Abs({x}, {x}, lanes);"));
        }
        self.emit(Level::Lane, format!("Reg::{f}({acc}, {acc}, {x}, lanes);"));
        self.emit(Level::Lane, "}");
        self.nest -= 1;
        let x = self.cast(id, d, own, Opd::Reg(acc, Level::Lane))?;
        self.store(id, to, x, own)
    }

    /// A load with a loop variable that is not the function's own.
    pub(super) fn load_at(&mut self, id: OpId, u: &Ub, v: IxVarId, name: &str) -> Res<Opd> {
        self.outer.push((v, 2, name.to_string()));
        let r = self.load(id, u);
        self.outer.pop();
        r
    }

    /// A value defined by the body.
    pub fn result_of(&mut self, v: ValueId) -> Opd {
        self.value(v)
    }
    /// A store outside a body.
    pub fn put(&mut self, id: OpId, u: &Ub, x: Opd, d: DType) -> Res<()> {
        self.store(id, u, x, d)
    }
    /// A load outside a body.
    pub fn load_site(&mut self, id: OpId, u: &Ub) -> Res<Opd> {
        self.load(id, u)
    }
    /// A value for lanes that are numbered: `n - index` where a mask is set, else 0.
    pub fn distance(&mut self, id: OpId, cond: ValueId, n: usize) -> Res<Opd> {
        let at = self.lane_var(id, 0)?;
        let (r, _) = self.as_reg(DType::I32, &Opd::Scalar(Text::number(n as i64)));
        let (a, _) = self.as_reg(DType::I32, &at);
        let d = self.result("int32_t", Level::Lane, |o, m| format!("Reg::Sub({o}, {r}, {a}, {m});"));
        let c = self.value(cond);
        Ok(self.select(DType::I32, c, d, Opd::Scalar(Text::number(0))))
    }
}
