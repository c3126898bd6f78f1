//! Element loops on the scalar unit: one element after the other, for bodies that vector code has no form for (updates at
//! computed places, chains of dependent elements). Slow, and exact for integers; functions only the vector unit has are
//! refused.

use super::lower::{Lower, Res};
use super::scalar::{self, type_of};
use super::tree::{BufId, Core, Pipe, Place};
use crate::emit::cuda::expr::{ADD, Text};
use crate::ir::{
    AtomicOp, Base, BinaryOp, BlockId, DType, IfResult, IxId, IxVarId, Op, OpId, ReduceOp, ScanKind, Space, SpanId,
    ValueId, ViewId,
};
use std::collections::BTreeMap;

/// Lines being written, and the buffers they touch.
struct Serial {
    lines: Vec<String>,
    reads: Vec<BufId>,
    writes: Vec<BufId>,
    /// Slot through which single elements of a tensor are written.
    slots: BTreeMap<(u32, &'static str), BufId>,
    span: SpanId,
}

impl Serial {
    fn read(&mut self, b: BufId) {
        if !self.reads.contains(&b) {
            self.reads.push(b);
        }
    }
    fn write(&mut self, b: BufId) {
        if !self.writes.contains(&b) {
            self.writes.push(b);
        }
    }
}

impl Lower<'_> {
    fn serial(&self, id: OpId) -> Serial {
        Serial { lines: vec![], reads: vec![], writes: vec![], slots: BTreeMap::new(), span: self.k.op(id).span }
    }

    fn serial_end(&mut self, s: Serial) {
        let lines = super::vf::indent(&s.lines, 0);
        // What reads tensors only is the same on every core.
        let same = s.reads.is_empty() && s.writes.is_empty();
        self.inst(if same { Core::Both } else { Core::Vector }, Pipe::S, lines, &s.reads, &s.writes);
    }

    /// `parallel` one element after the other.
    pub fn serial_loop(&mut self, id: OpId, vars: &[(IxVarId, usize)], body: BlockId) -> Res<()> {
        if self.split_now.is_some() {
            return Err(self.no_scalar(id));
        }
        let mut s = self.serial(id);
        for &(v, e) in vars {
            let n = self.name(&self.k.ix_var(v).name.clone());
            s.lines.push(format!("for (int64_t {n} = 0; {n} < {e}; ++{n}) {{"));
            self.index.insert(v, Text::name(n));
        }
        self.serial_block(&mut s, body)?;
        s.lines.extend(vars.iter().map(|_| "}".to_string()));
        self.serial_end(s);
        Ok(())
    }

    /// `spread`.
    pub fn spread(&mut self, id: OpId) -> Res<()> {
        let Op::Spread { var, lo, hi, body } = &self.k.op(id).op else { return Ok(()) };
        let (var, lo, hi, body) = (*var, *lo, *hi, *body);
        self.at(id, "elements, one after the other");
        let mut s = self.serial(id);
        let n = self.name(&self.k.ix_var(var).name.clone());
        let (a, b) = (self.ix(lo), self.ix(hi));
        s.lines.push(format!("for (int64_t {n} = {}; {n} < {}; ++{n}) {{", a.s, b.at(ADD)));
        self.index.insert(var, Text::name(n));
        self.serial_block(&mut s, body)?;
        s.lines.push("}".into());
        self.serial_end(s);
        Ok(())
    }

    /// `reduce_region` one element after the other.
    pub fn serial_fold(
        &mut self,
        id: OpId,
        vars: &[(IxVarId, usize)],
        body: BlockId,
        value: ValueId,
        op: ReduceOp,
        result: ValueId,
    ) -> Res<()> {
        let d = self.dtype(result);
        if d == DType::F32 && op == ReduceOp::Sum || !matches!(d, DType::F32 | DType::I32 | DType::U32 | DType::I64) {
            return Err(self.no_scalar(id));
        }
        let mut s = self.serial(id);
        let acc = self.name("v");
        let first = self.name("first");
        s.lines.push(format!("{} {acc}{{}};", type_of(d)));
        s.lines.push(format!("bool {first} = true;"));
        for &(v, e) in vars {
            let n = self.name(&self.k.ix_var(v).name.clone());
            s.lines.push(format!("for (int64_t {n} = 0; {n} < {e}; ++{n}) {{"));
            self.index.insert(v, Text::name(n));
        }
        self.serial_block(&mut s, body)?;
        let x = self.val(value);
        let next = self.combine(id, op, d, &Text::name(acc.clone()), &x)?;
        s.lines.push(format!("{acc} = {first} ? {} : {};", x.s, next.s));
        s.lines.push(format!("{first} = false;"));
        s.lines.extend(vars.iter().map(|_| "}".to_string()));
        if !s.reads.is_empty() {
            self.vector_scalars.push((acc.clone(), id));
        }
        self.serial_end(s);
        self.values.insert(result, Text::name(acc));
        Ok(())
    }

    fn combine(&self, id: OpId, op: ReduceOp, d: DType, a: &Text, b: &Text) -> Res<Text> {
        let by = match op {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::And => BinaryOp::And,
            ReduceOp::Or => BinaryOp::Or,
            ReduceOp::AbsMax => return Err(self.no_scalar(id)),
        };
        scalar::binary(d, by, a, b).ok_or_else(|| self.no_scalar(id))
    }

    /// `find_first` one element after the other.
    pub fn serial_find(
        &mut self,
        id: OpId,
        var: IxVarId,
        extent: usize,
        body: BlockId,
        cond: ValueId,
        result: IxVarId,
    ) -> Res<()> {
        let mut s = self.serial(id);
        let found = self.name(&self.k.ix_var(result).name.clone());
        let n = self.name(&self.k.ix_var(var).name.clone());
        s.lines.push(format!("int64_t {found} = {extent};"));
        s.lines.push(format!("for (int64_t {n} = 0; {n} < {extent} && {found} == {extent}; ++{n}) {{"));
        self.index.insert(var, Text::name(n.clone()));
        self.serial_block(&mut s, body)?;
        let c = self.val(cond);
        s.lines.push(format!("if ({}) {{", c.s));
        s.lines.push(format!("{found} = {n};"));
        s.lines.push("}".into());
        s.lines.push("}".into());
        if !s.reads.is_empty() {
            self.vector_scalars.push((found.clone(), id));
        }
        self.serial_end(s);
        self.index.insert(result, Text::name(found));
        Ok(())
    }

    /// `scan`, one element after the other.
    pub fn scan(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::Scan { op, kind, src, dst, axis, total } = &k.op(id).op else { return Ok(()) };
        let v = k.view(*src).clone();
        let d = v.dtype;
        let extents = k.const_extents(*src).unwrap_or_default();
        let (Base::Buffer(from), true) = (v.base, matches!(d, DType::I32 | DType::U32 | DType::F32)) else {
            return Err(self.no_scalar(id));
        };
        if extents.len() != 1 || *axis != 0 {
            return Err(self.refuse(
                id,
                "a scan of a tile with more than one axis has no Ascend form yet",
                "scan rows one by one",
            ));
        }
        self.at(id, &format!("scan of {}", k.buffer(from).name));
        let n = extents[0];
        let (a, b) = (self.tile(from), self.tile(*dst));
        if a.wide || b.wide || k.ix_const(v.strides[0]) != Some(1) || k.ix_const(v.offset) != Some(0) {
            return Err(self.refuse(id, "a scan of a part of a tile has no Ascend form yet", "scan a whole tile"));
        }
        let mut s = self.serial(id);
        s.read(a.buf);
        s.write(b.buf);
        let start = match op {
            ReduceOp::Sum => "0",
            ReduceOp::Max | ReduceOp::Min | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or => {
                return Err(self.no_scalar(id));
            }
        };
        let acc = self.name("sum");
        let i = self.name("i");
        let ty = type_of(d);
        s.lines.push(format!("{ty} {acc} = {start};"));
        let (from, to) = (self.tensor(a.buf), self.tensor(b.buf));
        let backwards = matches!(kind, ScanKind::SuffixExclusive | ScanKind::SuffixInclusive);
        let inclusive = matches!(kind, ScanKind::PrefixInclusive | ScanKind::SuffixInclusive);
        let x = self.name("x");
        if backwards {
            s.lines.push(format!("for (int64_t {i} = {}; {i} >= 0; --{i}) {{", n as i64 - 1));
        } else {
            s.lines.push(format!("for (int64_t {i} = 0; {i} < {n}; ++{i}) {{"));
        }
        s.lines.push(format!("const {ty} {x} = {from}.GetValue({i});"));
        let next = self.combine(id, *op, d, &Text::name(acc.clone()), &Text::name(x))?;
        if inclusive {
            s.lines.push(format!("{acc} = {};", next.s));
            s.lines.push(format!("{to}.SetValue({i}, {acc});"));
        } else {
            s.lines.push(format!("{to}.SetValue({i}, {acc});"));
            s.lines.push(format!("{acc} = {};", next.s));
        }
        s.lines.push("}".into());
        self.serial_end(s);
        self.vector_scalars.push((acc.clone(), id));
        if let Some(t) = total {
            self.values.insert(*t, Text::name(acc));
        }
        Ok(())
    }

    fn serial_block(&mut self, s: &mut Serial, b: BlockId) -> Res<()> {
        for &id in &self.k.block(b).ops {
            self.serial_op(s, id)?;
        }
        Ok(())
    }

    /// A scalar op inside: the block-level text, kept in the loop's lines.
    fn serial_scalar(&mut self, s: &mut Serial, id: OpId) -> Res<()> {
        let list = self.inner(|l| l.scalar_op(id))?;
        for n in list {
            match n {
                super::tree::Node::Say(_, line) => s.lines.push(line),
                super::tree::Node::Inst(_)
                | super::tree::Node::At(..)
                | super::tree::Node::Loop { .. }
                | super::tree::Node::If { .. }
                | super::tree::Node::Group(_)
                | super::tree::Node::Leave(_) => return Err(self.no_scalar(id)),
            }
        }
        Ok(())
    }

    /// A tile for the scalar unit, which sees narrow floats as their bits.
    fn bits_of_tile(&self, b: BufId, d: DType) -> String {
        let name = self.tensor(b);
        let ty = type_of(d);
        if self.bufs[b.0].ty == ty || d == DType::Bool { name } else { format!("{name}.ReinterpretCast<{ty}>()") }
    }

    fn tile_element(&mut self, id: OpId, view: ViewId, at: &Text) -> Res<(super::lower::Tile, String)> {
        let k = self.k;
        let Base::Buffer(b) = k.view(view).base else { return Err(self.no_scalar(id)) };
        let d = k.view(view).dtype;
        if k.buffer(b).space == Space::Var || d != k.buffer(b).dtype {
            return Err(self.no_scalar(id));
        }
        let t = self.tile(b);
        if t.wide || d == DType::E2m1 {
            return Err(self.no_scalar(id));
        }
        let at = if t.pitch == t.row {
            at.s.clone()
        } else {
            format!("({0}) / {1} * {2} + ({0}) % {1}", at.s, t.row, t.pitch)
        };
        Ok((t, at))
    }

    fn serial_op(&mut self, s: &mut Serial, id: OpId) -> Res<()> {
        let k = self.k;
        match &k.op(id).op {
            Op::Const { .. } => Ok(()),
            Op::IndexValue { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::CompareIndex { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. } => self.serial_scalar(s, id),
            Op::Load { result, view, index } => self.serial_load(s, id, *result, *view, index, None),
            Op::LoadOr { result, view, index, other } => self.serial_load(s, id, *result, *view, index, Some(*other)),
            Op::Store { view, index, value, .. } => {
                let (at, cond) = self.element(id, *view, index)?;
                let x = self.val(*value);
                let cond = match k.view(*view).base {
                    // Both vector cores of a group come here.
                    Base::Param(_) if self.matrix.on => {
                        let one = Text::of("sub == 0".into(), crate::emit::cuda::expr::EQUAL);
                        Some(cond.map_or(one.clone(), |c| Text::both(&one, &c)))
                    }
                    Base::Param(_) | Base::Buffer(_) => cond,
                };
                if let Some(c) = &cond {
                    s.lines.push(format!("if ({}) {{", c.s));
                }
                match k.view(*view).base {
                    Base::Buffer(_) => {
                        let (t, at) = self.tile_element(id, *view, &at)?;
                        s.write(t.buf);
                        let name = self.bits_of_tile(t.buf, k.view(*view).dtype);
                        let ty =
                            if k.view(*view).dtype == DType::Bool { "uint8_t" } else { type_of(k.view(*view).dtype) };
                        s.lines.push(format!("{name}.SetValue({at}, static_cast<{ty}>({}));", x.s));
                    }
                    Base::Param(p) => {
                        let d = k.view(*view).dtype;
                        let ty = if d == DType::Bool { "uint8_t" } else { type_of(d) };
                        let slot = match s.slots.get(&(p.0, ty)) {
                            Some(&b) => b,
                            None => {
                                let wish = format!("{}One", self.params[p.0 as usize]);
                                let b = self.buffer(&wish, ty, d.bytes(1), 32 / d.bytes(1), Place::Ub, s.span);
                                s.slots.insert((p.0, ty), b);
                                b
                            }
                        };
                        s.write(slot);
                        let name = self.tensor(slot);
                        let g = self.scalar_global(p, d);
                        s.lines.push(format!("PutOne({g}[{}], {name}, static_cast<{ty}>({}));", at.s, x.s));
                    }
                }
                if cond.is_some() {
                    s.lines.push("}".into());
                }
                Ok(())
            }
            Op::Atomic { result, op, view, index, value } => {
                if result.is_some() {
                    return Err(self.no_scalar(id));
                }
                let (at, cond) = self.element(id, *view, index)?;
                let (t, at) = self.tile_element(id, *view, &at)?;
                let d = k.view(*view).dtype;
                let x = self.val(*value);
                s.read(t.buf);
                s.write(t.buf);
                if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
                    return Err(self.no_scalar(id));
                }
                let name = self.tensor(t.buf);
                let old = Text::name(format!("{name}.GetValue({at})"));
                let by = match op {
                    AtomicOp::Add => BinaryOp::Add,
                    AtomicOp::Max => BinaryOp::Max,
                    AtomicOp::Min => BinaryOp::Min,
                    AtomicOp::Or => BinaryOp::Or,
                };
                let next = scalar::binary(d, by, &old, &x).ok_or_else(|| self.no_scalar(id))?;
                let line = format!("{name}.SetValue({at}, {});", next.s);
                match cond {
                    Some(c) => {
                        s.lines.push(format!("if ({}) {{", c.s));
                        s.lines.push(line);
                        s.lines.push("}".into());
                    }
                    None => s.lines.push(line),
                }
                Ok(())
            }
            Op::Claim { result, var, cond } => {
                let n = self.name("n");
                let counter = self.vars.get(var).cloned().unwrap_or_default();
                s.lines.push(format!("const uint32_t {n} = {counter};"));
                let c = self.val(*cond).s;
                s.lines.push(format!("{counter} = {n} + (({c}) ? 1u : 0u);"));
                self.values.insert(*result, Text::name(n));
                Ok(())
            }
            Op::If { cond, then, els, results } => {
                for r in results {
                    match *r {
                        IfResult::Value { result, .. } => {
                            let n = self.name("r");
                            s.lines.push(format!("{} {n}{{}};", type_of(self.dtype(result))));
                            self.values.insert(result, Text::name(n));
                        }
                        IfResult::Index { result, .. } => {
                            let n = self.name(&k.ix_var(result).name.clone());
                            s.lines.push(format!("int64_t {n} = 0;"));
                            self.index.insert(result, Text::name(n));
                        }
                    }
                }
                let c = self.val(*cond).s;
                s.lines.push(format!("if ({c}) {{"));
                for (block, first) in [(*then, true), (*els, false)] {
                    self.serial_block(s, block)?;
                    for r in results {
                        match *r {
                            IfResult::Value { result, then, els } => {
                                let line =
                                    format!("{} = {};", self.val(result).s, self.val(if first { then } else { els }).s);
                                s.lines.push(line);
                            }
                            IfResult::Index { result, then, els } => {
                                let to = self.index.get(&result).map(|t| t.s.clone()).unwrap_or_default();
                                let line = format!("{to} = {};", self.ix(if first { then } else { els }).s);
                                s.lines.push(line);
                            }
                        }
                    }
                    s.lines.push("}".into());
                    if first {
                        s.lines.push("{".into());
                        if let Some(l) = s.lines.last_mut() {
                            *l = "else {".into();
                        }
                    }
                }
                if s.lines.len() > 1 && s.lines[s.lines.len() - 2] == "else {" {
                    s.lines.truncate(s.lines.len() - 2);
                }
                Ok(())
            }
            Op::For { var, lo, hi, body, .. } => {
                let n = self.name(&k.ix_var(*var).name.clone());
                let (a, b) = (self.ix(*lo), self.ix(*hi));
                s.lines.push(format!("for (int64_t {n} = {}; {n} < {}; ++{n}) {{", a.s, b.at(ADD)));
                self.index.insert(*var, Text::name(n));
                self.serial_block(s, *body)?;
                s.lines.push("}".into());
                Ok(())
            }
            Op::Loop { body } => {
                s.lines.push("for (;;) {".into());
                self.serial_block(s, *body)?;
                s.lines.push("}".into());
                Ok(())
            }
            Op::Break => {
                s.lines.push("break;".into());
                Ok(())
            }
            Op::Continue => {
                s.lines.push("continue;".into());
                Ok(())
            }
            Op::Check { cond, .. } => {
                let c = self.val(*cond).s;
                s.lines.extend([format!("if (!({c})) {{"), "Trap();".into(), "}".into()]);
                Ok(())
            }
            Op::Fma { .. }
            | Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Copy { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::Reduce { .. }
            | Op::ReduceRegion { .. }
            | Op::Scan { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_) => Err(self.no_scalar(id)),
        }
    }

    /// A store of one element, through a line of UB.
    pub fn serial_store(&mut self, id: OpId) -> Res<()> {
        let mut s = self.serial(id);
        self.serial_op(&mut s, id)?;
        self.serial_end(s);
        Ok(())
    }

    /// The lines that read one element, and the tiles they read.
    pub fn serial_read(&mut self, id: OpId) -> Res<(Vec<String>, Vec<BufId>)> {
        let mut s = self.serial(id);
        self.serial_op(&mut s, id)?;
        Ok((s.lines, s.reads))
    }

    fn serial_load(
        &mut self,
        s: &mut Serial,
        id: OpId,
        result: ValueId,
        view: ViewId,
        index: &[IxId],
        other: Option<ValueId>,
    ) -> Res<()> {
        let k = self.k;
        let (at, cond) = self.element(id, view, index)?;
        let d = self.dtype(result);
        let ty = type_of(d);
        let get = match k.view(view).base {
            Base::Buffer(_) => {
                let (t, at) = self.tile_element(id, view, &at)?;
                s.read(t.buf);
                Text::name(format!("{}.GetValue({at})", self.bits_of_tile(t.buf, d)))
            }
            Base::Param(p) => Text::name(format!("{}.GetValue({})", self.scalar_global(p, d), at.s)),
        };
        let zero = other.map_or_else(|| scalar::literal(crate::ir::Literal { dtype: d, bits: 0 }), |v| self.val(v));
        let text = cond.map_or(get.clone(), |c| Text::choose(&c, &get, &zero));
        let n = self.name("v");
        s.lines.push(format!("const {ty} {n} = {};", text.s));
        self.values.insert(result, Text::name(n));
        Ok(())
    }
}
