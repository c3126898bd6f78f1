//! The numerics fingerprint: a hash of what decides a kernel's bits and of nothing that only places work.
//!
//! In it: the operations on scalars and their types, constants, conversions, the order and length of every reduction, the
//! depth and types of matrix products, and the bounds of loops that carry floats (split sizes are there). Not in it: tile
//! sizes along axes that nothing sums over, stages, grids, the order of tiles, guards. Two configurations of one kernel
//! with equal fingerprints give equal bits; configurations with equal bits may still have different fingerprints, as when
//! rows are unrolled. Configurations are meant to differ in fields that are tuned: a field that changes which element is
//! read makes another problem, and indices are not part of the hash.

use super::carried::carried;
use crate::ir::effects::uses;
use crate::ir::{BlockId, IfResult, IxExpr, IxId, IxVarKind, Kernel, Op, OpId, Order, ValueId, ViewId};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The fingerprint of a plain kernel whose reduction orders are chosen (`pass::numerics::plan`): 16 hexadecimal digits.
pub fn fingerprint(k: &Kernel) -> String {
    let digest = Sha256::digest(structure(k).as_bytes());
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The text that is hashed, one line an op.
pub fn structure(k: &Kernel) -> String {
    let mut p = Printer { k, out: String::new() };
    p.block(k.body);
    p.out
}

struct Printer<'a> {
    k: &'a Kernel,
    out: String,
}

fn order(o: Option<Order>) -> String {
    o.map_or_else(|| "any".into(), |o| format!("{}x{}", o.lanes, o.per_lane))
}

impl Printer<'_> {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{text}");
    }

    fn dtype(&self, v: ValueId) -> &'static str {
        self.k.value(v).dtype.name()
    }

    fn extent(&self, v: ViewId, axis: usize) -> String {
        self.bound(self.k.view(v).extents[axis])
    }

    /// An index without names that mean nothing: variables by their kind.
    fn bound(&self, i: IxId) -> String {
        let two = |name: &str, a: IxId, b: IxId| format!("({name} {} {})", self.bound(a), self.bound(b));
        match self.k.ix_expr(i) {
            IxExpr::Const(c) => c.to_string(),
            IxExpr::Sym(s) => self.k.syms[s.0 as usize].name.clone(),
            IxExpr::Data(_) => "data".into(),
            IxExpr::Var(v) => match self.k.ix_var(v).kind {
                IxVarKind::Block(axis) => format!("block{axis}"),
                IxVarKind::Loop => "step".into(),
                IxVarKind::Element => "element".into(),
                IxVarKind::Data => "data".into(),
            },
            IxExpr::Add(a, b) => two("+", a, b),
            IxExpr::Sub(a, b) => two("-", a, b),
            IxExpr::Mul(a, b) => two("*", a, b),
            IxExpr::Div(a, b) => two("/", a, b),
            IxExpr::Mod(a, b) => two("%", a, b),
            IxExpr::Min(a, b) => two("min", a, b),
            IxExpr::Max(a, b) => two("max", a, b),
        }
    }

    fn carries_floats(&self, id: OpId, body: BlockId) -> bool {
        carried(self.k, id, body).iter().any(|c| self.k.buffer(c.0).dtype.is_float())
    }

    fn block(&mut self, b: BlockId) {
        let k = self.k;
        for &id in &k.block(b).ops {
            self.op(id);
        }
    }

    fn op(&mut self, id: OpId) {
        let k = self.k;
        let op = &k.op(id).op;
        match op {
            Op::Const { result, value } => self.line(format_args!("const {} {}", self.dtype(*result), value.bits)),
            Op::Unary { result, op, .. } => self.line(format_args!("{} {}", op.name(), self.dtype(*result))),
            Op::Binary { result, op, .. } => self.line(format_args!("{} {}", op.name(), self.dtype(*result))),
            Op::Fma { result, .. } | Op::Select { result, .. } | Op::IndexValue { result, .. } => {
                self.line(format_args!("{} {}", op.name(), self.dtype(*result)))
            }
            Op::Compare { op, a, .. } => self.line(format_args!("compare {} {}", op.name(), self.dtype(*a))),
            Op::CompareIndex { op, .. } => self.line(format_args!("compare_index {}", op.name())),
            Op::Cast { result, x } | Op::Bits { result, x } => {
                self.line(format_args!("{} {} {}", op.name(), self.dtype(*x), self.dtype(*result)));
            }
            Op::Copy { src, dst, .. } => {
                let (a, b) = (k.view(src.view).dtype, k.view(dst.view).dtype);
                if a != b {
                    self.line(format_args!("convert {} {}", a.name(), b.name()));
                }
            }
            Op::Reduce { op, src, axis, order: o, .. } => {
                let (dtype, length) = (k.view(*src).dtype.name(), self.extent(*src, *axis));
                self.line(format_args!("reduce {} {dtype} {length} {}", op.name(), order(*o)));
            }
            Op::ReduceRegion { op, extents, body, value, order: o, .. } => {
                let (dtype, o) = (self.dtype(*value), order(*o));
                // Sums of floats depend on how many there are; others do not.
                let lengths = if k.value(*value).dtype.is_float() { format!("{extents:?}") } else { String::new() };
                self.line(format_args!("reduce {} {dtype} {lengths} {o}", op.name()));
                self.block(*body);
            }
            Op::Scan { op, kind, src, .. } => {
                self.line(format_args!("scan {} {} {}", op.name(), kind.name(), k.view(*src).dtype.name()));
            }
            Op::Gemm { a, b, set, scales, .. } => {
                let (x, y) = (k.view(*a).dtype.name(), k.view(*b).dtype.name());
                self.line(format_args!("gemm {x} {y} depth {} set {set}", self.extent(*a, 1)));
                for s in scales.iter().flatten() {
                    self.line(format_args!("scale"));
                    self.block(s.body);
                }
            }
            Op::For { lo, hi, body, .. } => {
                if self.carries_floats(id, *body) {
                    self.line(format_args!("for {} {}", self.bound(*lo), self.bound(*hi)));
                } else {
                    self.line(format_args!("for"));
                }
                self.block(*body);
                self.line(format_args!("end"));
            }
            Op::If { then, els, results, .. } => {
                let values = results.iter().filter(|r| matches!(r, IfResult::Value { .. })).count();
                self.line(format_args!("if {values}"));
                self.block(*then);
                self.line(format_args!("else"));
                self.block(*els);
                self.line(format_args!("end"));
            }
            Op::Atomic { op, value, .. } => self.line(format_args!("atomic {} {}", op.name(), self.dtype(*value))),
            Op::ClampIndex { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. }
            | Op::Load { .. }
            | Op::LoadOr { .. }
            | Op::Store { .. }
            | Op::Claim { .. }
            | Op::Fill { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::FindFirst { .. }
            | Op::Loop { .. }
            | Op::Break
            | Op::Continue => {
                self.line(format_args!("{}", op.name()));
                for b in uses(op).blocks {
                    self.block(b);
                }
            }
            // A check gives no bits; who waits for whom changes none.
            Op::Alloc { .. } | Op::Check { .. } | Op::GridBarrier | Op::BlockBarrier { .. } => {}
            // Plain kernels have none.
            Op::Sched(_) => {}
        }
    }
}
