//! Contracts of the ops: dtypes, ranks, extents and spaces, as `ir::op` states them.

use super::scopes::{if_values, leaves};
use crate::diag::Diagnostic;
use crate::ir::op::INDEX_VALUE_DTYPES;
use crate::ir::{
    Access, Base, BinaryOp, BufferId, DType, Gather, GemmScale, IxExpr, IxId, Kernel, Op, OpId, ParamKind, ReduceOp,
    Region, ScanKind, Space, Span, Stage, UnaryOp, ValueId, View, ViewId, multiplies,
};

pub(super) fn check(k: &Kernel) -> Vec<Diagnostic> {
    let mut c = Check { k, found: vec![], op: OpId(0) };
    c.divisors();
    let mut reached = vec![];
    super::initial::ops_below(k, k.body, &mut reached);
    for id in reached {
        c.op = id;
        c.op(&k.op(id).op);
    }
    c.found
}

struct Check<'a> {
    k: &'a Kernel,
    found: Vec<Diagnostic>,
    op: OpId,
}

impl Check<'_> {
    fn error(&mut self, code: &'static str, message: String) -> &mut Diagnostic {
        self.found.push(Diagnostic::error(self.k, self.k.op(self.op).span, code, message));
        let last = self.found.len() - 1;
        &mut self.found[last]
    }
    fn name(&self) -> &'static str {
        self.k.op(self.op).op.name()
    }
    fn dt(&self, v: ValueId) -> DType {
        self.k.value(v).dtype
    }
    fn divisors(&mut self) {
        for &e in &self.k.index {
            if let IxExpr::Div(_, b) | IxExpr::Mod(_, b) = e
                && self.k.ix_const(b).is_some_and(|c| c <= 0)
            {
                let c = self.k.ix_const(b).unwrap_or(0);
                self.found.push(
                    Diagnostic::error(self.k, self.k.span, "V0206", format!("an index divides by {c}"))
                        .help("divide by a positive number"),
                );
            }
        }
    }

    fn want(&mut self, what: &str, v: ValueId, expected: DType) {
        let got = self.dt(v);
        if got != expected {
            let name = self.name();
            self.error("V0201", format!("{what} of `{name}` is {got}, expected {expected}")).help =
                Some("convert with `.to::<T>()`".into());
        }
    }
    fn one_of(&mut self, what: &str, v: ValueId, ok: bool, expected: &str) {
        if !ok {
            let (name, got) = (self.name(), self.dt(v));
            self.error("V0201", format!("{what} of `{name}` is {got}, expected {expected}"));
        }
    }

    /// Rank, readability and the rule about data in indices.
    fn access(&mut self, view: ViewId, index: &[IxId], checked: bool) {
        let rank = self.k.view(view).extents.len();
        let name = self.name();
        if index.len() != rank {
            self.error("V0202", format!("`{name}` gives {} indices to a view of rank {rank}", index.len()));
        }
        if !checked && index.iter().any(|&i| !leaves(self.k, i).1.is_empty()) {
            self.error("V0208", format!("`{name}` uses data without bounds as an index")).help =
                Some("bound it with `clamp_index`, or use `get_or` or `put`".into());
        }
        self.view(view);
    }

    fn written(&mut self, view: ViewId) {
        if let Base::Param(p) = self.k.view(view).base
            && let ParamKind::Tensor { access: Access::In, .. } = self.k.param(p).kind
        {
            let param = self.k.param(p);
            let (n, at) = (param.name.clone(), self.k.span_of(param.span).clone());
            let d = self.error("V0401", format!("`{n}` is an input and cannot be written"));
            d.notes.push((format!("`{n}` is declared `In`"), Some(at)));
            d.help = Some("declare it `Out` or `InOut`".into());
        }
    }

    /// The table of a gathered view.
    fn gather(&mut self, v: &View) {
        let Some(g) = v.gather else { return };
        if let Gather::Paged { page: 0, .. } = g {
            self.error("V0203", "pages of 0 rows".into());
        }
        if v.extents.is_empty() {
            self.error("V0202", "a gathered view of rank 0".into());
        }
        let table = self.k.view(g.table()).clone();
        if table.extents.len() != 1 {
            self.error("V0202", format!("a table of rank {}, expected 1", table.extents.len()));
        }
        if !table.dtype.is_int() {
            self.error("V0201", format!("a table of {}, expected integers", table.dtype));
        }
        if table.gather.is_some() {
            self.error("V0205", "a table that is itself gathered".into()).help =
                Some("copy the entries into a tile first".into());
        }
        if table.base == v.base {
            self.error("V0205", "a view that looks its rows up in itself".into());
        }
        self.view(g.table());
    }

    fn view(&mut self, id: ViewId) {
        let v = self.k.view(id).clone();
        self.gather(&v);
        let base_dtype = match v.base {
            Base::Param(p) => match &self.k.param(p).kind {
                ParamKind::Tensor { dtype, .. } => *dtype,
                ParamKind::Scalar { .. } | ParamKind::Absent => {
                    let n = self.k.param(p).name.clone();
                    self.error("V0205", format!("`{n}` is not a tensor"));
                    return;
                }
            },
            Base::Buffer(b) => self.k.buffer(b).dtype,
        };
        if v.dtype != base_dtype && base_dtype != DType::U8 {
            let m = format!("a view of {base_dtype} elements as {}", v.dtype);
            self.error("V0201", m).help = Some("only bytes (U8) can be viewed as another dtype".into());
        }
        if let Base::Buffer(b) = v.base {
            let buffer = self.k.buffer(b);
            if buffer.space == Space::Var {
                let n = buffer.name.clone();
                self.error("V0205", format!("`{n}` is a variable, not a tile"));
                return;
            }
            let size: usize = buffer.extents.iter().product::<usize>() * buffer.dtype.bits() / v.dtype.bits();
            let number = |i: &IxId| self.k.ix_const(*i);
            let all: Option<Vec<(i64, i64)>> =
                v.extents.iter().zip(&v.strides).map(|(e, s)| Some((number(e)?, number(s)?))).collect();
            if let (Some(axes), Some(offset)) = (all, number(&v.offset))
                && axes.iter().all(|a| a.0 > 0)
            {
                let last: i64 = offset + axes.iter().map(|(e, s)| (e - 1) * s.max(&0)).sum::<i64>();
                let first: i64 = offset + axes.iter().map(|(e, s)| (e - 1) * s.min(&0)).sum::<i64>();
                if first < 0 || last >= size as i64 {
                    let n = self.k.buffer(b).name.clone();
                    let m = format!("a view reaches elements {first}..={last} of `{n}`, which has {size}");
                    self.error("V0203", m);
                }
            }
        }
    }

    /// A tile view with constant extents.
    fn tile(&mut self, v: ViewId) -> Option<Vec<usize>> {
        self.view(v);
        let name = self.name();
        if self.k.view(v).gather.is_some() {
            self.error("V0205", format!("`{name}` works on whole tiles, not on gathered rows")).help =
                Some("copy the rows into a tile first".into());
            return None;
        }
        match self.k.view(v).base {
            Base::Buffer(_) => {}
            Base::Param(_) => {
                self.error("V0205", format!("`{name}` works on tiles, not on tensors")).help =
                    Some("copy the part that is needed into a tile first".into());
                return None;
            }
        }
        let extents = self.k.const_extents(v);
        if extents.is_none() {
            self.error("V0203", format!("`{name}` needs a tile whose extents are numbers"));
        }
        extents
    }

    fn variable(&mut self, b: BufferId, index: bool) -> DType {
        let buffer = self.k.buffer(b);
        let (n, dtype) = (buffer.name.clone(), buffer.dtype);
        if buffer.space != Space::Var {
            self.error("V0205", format!("`{n}` is a tile, not a variable"));
        } else if buffer.index != index {
            let what = if index { "holds data, not an index" } else { "holds an index, not data" };
            self.error("V0205", format!("`{n}` {what}"));
        }
        dtype
    }

    fn boxed(&mut self, vars: usize, extents: &[usize]) {
        let name = self.name();
        if vars != extents.len() || extents.is_empty() {
            self.error("V0202", format!("`{name}` has {vars} indices for {} axes", extents.len()));
        }
        if extents.contains(&0) {
            self.error("V0203", format!("`{name}` over an empty box {extents:?}"));
        }
    }

    fn reducible(&mut self, op: ReduceOp, dtype: DType) {
        let ok = match op {
            ReduceOp::Sum | ReduceOp::AbsMax => dtype != DType::Bool,
            ReduceOp::Max | ReduceOp::Min => true,
            ReduceOp::And | ReduceOp::Or => dtype.is_int() || dtype == DType::Bool,
        };
        if !ok {
            self.error("V0201", format!("`{}` does not exist for {dtype}", op.name()));
        }
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Const { result, value } => self.want("the constant", *result, value.dtype),
            Op::IndexValue { result, .. } => {
                let ok = INDEX_VALUE_DTYPES.contains(&self.dt(*result));
                self.one_of("the result", *result, ok, "i32, u32 or i64");
            }
            Op::Unary { result, op, x } => {
                self.want("the operand", *x, self.dt(*result));
                let d = self.dt(*x);
                let (ok, expected) = match op {
                    UnaryOp::Neg | UnaryOp::Abs => (d != DType::Bool, "a number"),
                    UnaryOp::Not => (!d.is_float(), "an integer or bool"),
                    UnaryOp::Exp2
                    | UnaryOp::Log2
                    | UnaryOp::Rsqrt
                    | UnaryOp::Sqrt
                    | UnaryOp::Recip
                    | UnaryOp::Sin
                    | UnaryOp::Cos
                    | UnaryOp::Floor
                    | UnaryOp::Ceil => (d.is_float(), "a float"),
                };
                self.one_of("the operand", *x, ok, expected);
            }
            Op::Binary { result, op, a, b } => {
                let d = self.dt(*result);
                self.want("the left operand", *a, d);
                self.want("the right operand", *b, d);
                let (ok, expected) = match op {
                    BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div => (d != DType::Bool, "a number"),
                    BinaryOp::Min | BinaryOp::Max => (true, ""),
                    BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr => (d.is_int(), "an integer"),
                    BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => (!d.is_float(), "an integer or bool"),
                };
                self.one_of("the result", *result, ok, expected);
            }
            Op::Fma { result, a, b, c } => {
                for v in [*a, *b, *c, *result] {
                    self.want("an operand", v, DType::F32);
                }
            }
            Op::Compare { result, a, b, .. } => {
                self.want("the result", *result, DType::Bool);
                self.want("the right operand", *b, self.dt(*a));
            }
            Op::CompareIndex { result, .. } => self.want("the result", *result, DType::Bool),
            Op::Select { result, cond, a, b } => {
                self.want("the condition", *cond, DType::Bool);
                self.want("the first choice", *a, self.dt(*result));
                self.want("the second choice", *b, self.dt(*result));
            }
            Op::Cast { .. } => {}
            Op::Bits { result, x } => {
                let (a, b) = (self.dt(*result), self.dt(*x));
                self.one_of("the operand", *x, a.bits() == b.bits(), &format!("{} bits for {a}", a.bits()));
            }
            Op::ClampIndex { value, .. } => {
                let ok = self.dt(*value).is_int();
                self.one_of("the value", *value, ok, "an integer");
            }
            Op::VarNew { var, init: value } | Op::VarSet { var, value } => {
                let d = self.variable(*var, false);
                self.want("the value", *value, d);
            }
            Op::VarGet { result, var } => {
                let d = self.variable(*var, false);
                self.want("the result", *result, d);
            }
            Op::IxVarNew { var, .. } | Op::IxVarGet { var, .. } | Op::IxVarSet { var, .. } => {
                self.variable(*var, true);
            }
            Op::Load { result, view, index } => {
                self.access(*view, index, false);
                self.want("the result", *result, self.k.view(*view).dtype);
            }
            Op::LoadOr { result, view, index, other } => {
                self.access(*view, index, true);
                self.want("the result", *result, self.k.view(*view).dtype);
                self.want("the value outside", *other, self.k.view(*view).dtype);
            }
            Op::Store { view, index, value, checked } => {
                self.access(*view, index, *checked);
                self.written(*view);
                self.want("the value", *value, self.k.view(*view).dtype);
            }
            Op::Atomic { result, view, index, value, op } => {
                self.access(*view, index, true);
                self.written(*view);
                let d = self.k.view(*view).dtype;
                if !matches!(d, DType::I32 | DType::U32) {
                    self.error("V0207", format!("`atomic {}` on {d}", op.name())).help =
                        Some("atomics exist for I32 and U32; sums of floats use `tile_sum`".into());
                }
                self.want("the value", *value, d);
                if let Some(r) = result {
                    self.want("the result", *r, d);
                }
            }
            Op::Alloc { buffer } => {
                let b = self.k.buffer(*buffer);
                let (n, e) = (b.name.clone(), b.extents.clone());
                let ok = match b.space {
                    Space::Shared | Space::Frag => true,
                    Space::Var => false,
                    Space::Tmem | Space::L1 | Space::L0a | Space::L0b | Space::L0c | Space::Ub | Space::Workspace => {
                        self.k.stage == Stage::Scheduled
                    }
                };
                if !ok {
                    self.error("V0205", format!("`{n}` cannot be allocated in this memory space"));
                }
                if e.is_empty() || e.contains(&0) {
                    self.error("V0203", format!("tile `{n}` has extents {e:?}"));
                }
            }
            Op::Fill { dst, value } => {
                self.tile(*dst);
                self.want("the value", *value, self.k.view(*dst).dtype);
            }
            Op::Copy { src, dst, extents } => self.copy(src, dst, extents),
            Op::Parallel { vars, extents, .. } => self.boxed(vars.len(), extents),
            Op::Spread { .. } => {}
            Op::Reduce { op, src, dst, axis, .. } => {
                let Some(mut e) = self.tile(*src) else { return };
                let d = self.k.view(*src).dtype;
                self.reducible(*op, d);
                let dst = self.k.buffer(*dst).clone();
                if *axis >= e.len() {
                    self.error("V0204", format!("`reduce` along axis {axis} of a tile of rank {}", e.len()));
                    return;
                }
                e.remove(*axis);
                if dst.extents != e {
                    let m =
                        format!("`reduce` along axis {axis} gives extents {e:?}, `{}` has {:?}", dst.name, dst.extents);
                    self.error("V0203", m);
                }
                if dst.dtype != d {
                    self.error("V0201", format!("`reduce` gives {d}, `{}` holds {}", dst.name, dst.dtype));
                }
            }
            Op::ReduceRegion { op, vars, extents, value, result, .. } => {
                self.boxed(vars.len(), extents);
                self.want("the result", *result, self.dt(*value));
                self.reducible(*op, self.dt(*value));
            }
            Op::Scan {
                op,
                kind:
                    ScanKind::PrefixExclusive
                    | ScanKind::PrefixInclusive
                    | ScanKind::SuffixExclusive
                    | ScanKind::SuffixInclusive,
                src,
                dst,
                axis,
                total,
            } => {
                let Some(e) = self.tile(*src) else { return };
                let d = self.k.view(*src).dtype;
                let ok = match op {
                    ReduceOp::Sum => d.is_int(),
                    ReduceOp::Max | ReduceOp::Min => true,
                    ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or => false,
                };
                if !ok {
                    self.error("V0201", format!("`scan {}` does not exist for {d}", op.name()));
                }
                let dst = self.k.buffer(*dst).clone();
                if *axis >= e.len() {
                    self.error("V0204", format!("`scan` along axis {axis} of a tile of rank {}", e.len()));
                }
                if dst.extents != e || dst.dtype != d {
                    let m = format!("`scan` gives {d}{e:?}, `{}` is {}{:?}", dst.name, dst.dtype, dst.extents);
                    self.error("V0203", m);
                }
                if let Some(t) = total {
                    self.want("the total", *t, d);
                    if e.len() != 1 {
                        self.error("V0202", format!("the total of a `scan` exists for rank 1, not {}", e.len()));
                    }
                }
            }
            Op::Claim { result, var, cond } => {
                self.want("the condition", *cond, DType::Bool);
                self.want("the number", *result, DType::U32);
                let b = self.k.buffer(*var).clone();
                if b.space != Space::Var || b.index || b.dtype != DType::U32 {
                    self.error("V0201", format!("`{}` is no counter", b.name)).help =
                        Some("a counter is a variable of u32: `let mut count = 0u32;`".into());
                }
            }
            Op::FindFirst { extent, cond, .. } => {
                self.boxed(1, &[*extent]);
                self.want("the condition", *cond, DType::Bool);
            }
            Op::If { cond, results, .. } => {
                self.want("the condition", *cond, DType::Bool);
                for (result, a, b) in if_values(results) {
                    self.want("the first arm's value", a, self.dt(result));
                    self.want("the second arm's value", b, self.dt(result));
                }
            }
            Op::Gemm { a, b, acc, set: _, scales } => self.gemm(*a, *b, *acc, scales),
            Op::For { stages, .. } => {
                if *stages == 0 {
                    self.error("V0203", "a loop with a pipeline of 0 stages".into()).help =
                        Some("1 stage means no pipeline".into());
                }
            }
            // Ops of roles and rings are not judged here: the simulated chip runs what is printed of them.
            Op::Check { cond, .. } => self.want("the condition", *cond, DType::Bool),
            Op::Loop { .. } | Op::Break | Op::Continue | Op::GridBarrier | Op::BlockBarrier { .. } | Op::Sched(_) => {}
        }
    }

    fn gemm(&mut self, a: ViewId, b: ViewId, acc: BufferId, scales: &Option<[GemmScale; 2]>) {
        let (sa, sb) = (self.tile(a), self.tile(b));
        let (da, db) = (self.k.view(a).dtype, self.k.view(b).dtype);
        if !multiplies(da, db, scales.is_some()) {
            let why = if multiplies(da, db, true) { " without scales" } else { "" };
            self.error("V0211", format!("no matrix instruction multiplies {da} by {db}{why}")).help =
                Some("cast one operand first".into());
        }
        for s in scales.iter().flatten() {
            self.want("the scale", s.value, DType::F32);
        }
        let buffer = self.k.buffer(acc).clone();
        let is_tile = match buffer.space {
            Space::Frag => true,
            Space::Var => false,
            Space::Shared
            | Space::Tmem
            | Space::L1
            | Space::L0a
            | Space::L0b
            | Space::L0c
            | Space::Ub
            | Space::Workspace => self.k.stage == Stage::Scheduled,
        };
        if !is_tile {
            let m = format!("the accumulator `{}` is not a register tile", buffer.name);
            self.error("V0205", m).help = Some("accumulate into a `frag` and copy it".into());
        }
        if buffer.dtype != DType::F32 {
            let m = format!("the accumulator `{}` is {}, expected f32", buffer.name, buffer.dtype);
            self.error("V0201", m);
        }
        let (Some(sa), Some(sb)) = (sa, sb) else { return };
        if sa.len() != 2 || sb.len() != 2 || buffer.extents.len() != 2 {
            let ranks = format!("{}, {} and {}", sa.len(), sb.len(), buffer.extents.len());
            self.error("V0202", format!("`gemm` takes tiles of rank 2, found ranks {ranks}"));
            return;
        }
        if sa[1] != sb[0] {
            let m = format!("inner sizes differ: A is {}x{}, B is {}x{}", sa[0], sa[1], sb[0], sb[1]);
            let notes = [a, b].map(|v| self.allocation(v));
            let d = self.error("V0203", m);
            d.notes.extend(notes.into_iter().flatten());
            d.help = Some("transpose one operand with `.t()`, or take some of its columns with `.cols(..)`".into());
        } else if buffer.extents != [sa[0], sb[1]] {
            let got = &buffer.extents;
            let m = format!("the product is {}x{}, `{}` is {}x{}", sa[0], sb[1], buffer.name, got[0], got[1]);
            let note = ("the accumulator is allocated".to_string(), Some(self.k.span_of(buffer.span).clone()));
            self.error("V0203", m).notes.push(note);
        }
        for v in [a, b] {
            if self.k.view(v).base == Base::Buffer(acc) {
                self.error("V0413", format!("`{}` is an operand and the accumulator of one `gemm`", buffer.name));
                break;
            }
        }
    }

    /// Where the tile behind a view is allocated.
    fn allocation(&self, v: ViewId) -> Option<(String, Option<Span>)> {
        let Base::Buffer(b) = self.k.view(v).base else { return None };
        let b = self.k.buffer(b);
        Some((format!("`{}` is allocated", b.name), Some(self.k.span_of(b.span).clone())))
    }

    fn copy(&mut self, src: &Region, dst: &Region, extents: &[usize]) {
        for r in [src, dst] {
            self.access(r.view, &r.start, false);
            if r.start.len() != extents.len() {
                self.error("V0202", format!("`copy` of {} axes at a view of rank {}", extents.len(), r.start.len()));
            }
        }
        self.written(dst.view);
        let tensor = |r: &Region| matches!(self.k.view(r.view).base, Base::Param(_));
        if tensor(src) && tensor(dst) {
            self.error("V0205", "`copy` between two tensors".into()).help =
                Some("copy through a tile; its extents say how much is copied".into());
        }
        if extents.contains(&0) {
            self.error("V0203", format!("`copy` of {extents:?} elements"));
        }
    }
}
