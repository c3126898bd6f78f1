//! Reads ops and their bodies; those of roles are `sched`'s.

use super::{Parsed, Parser, Tok, scalar_buffer};
use crate::ir::*;

impl Parser {
    // --- ops ---

    pub(super) fn new_block(&mut self) -> BlockId {
        self.k.blocks.push(Block::default());
        BlockId(self.k.blocks.len() as u32 - 1)
    }

    pub(super) fn braces(&mut self, block: BlockId) -> Parsed<()> {
        self.sign("{")?;
        self.stack.push(block);
        while !self.eat("}") {
            match self.peek() {
                Tok::Word(w) if w == "view" => self.view_line()?,
                Tok::Word(w) if w == "buffer" => self.buffer_line()?,
                _ => self.op()?,
            }
        }
        self.stack.pop();
        Ok(())
    }

    pub(super) fn body(&mut self) -> Parsed<BlockId> {
        let b = self.new_block();
        self.braces(b)?;
        Ok(b)
    }

    /// Appends an op, making it the definition of the values it defines.
    pub(super) fn push(&mut self, op: Op, span: SpanId) {
        let id = OpId(self.k.ops.len() as u32);
        for v in effects::uses(&op).defines {
            self.k.values[v.0 as usize].def = Some(id);
        }
        self.k.ops.push(OpNode { op, span });
        let block = self.stack[self.stack.len() - 1];
        self.k.blocks[block.0 as usize].ops.push(id);
    }

    pub(super) fn place(&mut self) -> Parsed<(ViewId, Vec<IxId>)> {
        Ok((self.view()?, self.indices()?))
    }

    pub(super) fn boxed(&mut self) -> Parsed<(Vec<IxVarId>, Vec<usize>)> {
        let zero = self.k.ix_const_id(0);
        self.sign("(")?;
        let (mut vars, mut extents) = (vec![], vec![]);
        while !self.eat(")") {
            let def = self.var_name()?;
            self.word("in")?;
            let n = self.count()?;
            let e = self.k.ix_const_id(n as i64);
            vars.push(self.new_var(def, IxVarKind::Element, Some(zero), Some((e, -1)))?);
            extents.push(n);
            if !self.is(")") {
                self.sign(",")?;
            }
        }
        Ok((vars, extents))
    }

    pub(super) fn range_loop(&mut self, kind: IxVarKind) -> Parsed<(IxVarId, IxId, IxId)> {
        let def = self.var_name()?;
        self.word("in")?;
        let lo = self.index()?;
        self.sign("..")?;
        let hi = self.index()?;
        let var = self.new_var(def, kind, Some(lo), Some((hi, -1)))?;
        Ok((var, lo, hi))
    }

    pub(super) fn op(&mut self) -> Parsed<()> {
        let span = self.span();
        if let Tok::Value(n) = *self.peek() {
            self.take();
            self.sign(":")?;
            let dtype = self.dtype()?;
            self.sign("=")?;
            return self.value_op(n, dtype, span);
        }
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op") };
        self.take();
        let op = match word.as_str() {
            "index" => return self.index_op(span),
            "var" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a variable") };
                let here = self.span();
                self.take();
                let var = if self.eat(":") {
                    let dtype = self.dtype()?;
                    let b = scalar_buffer(&name, dtype, false, here);
                    self.new_buffer(name, b)
                } else {
                    self.at -= 1;
                    self.buffer()?
                };
                self.sign("=")?;
                Op::VarNew { var, init: self.value()? }
            }
            "set" => {
                let var = self.buffer()?;
                self.sign("=")?;
                Op::VarSet { var, value: self.value()? }
            }
            "index_var" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a variable") };
                let here = self.span();
                self.take();
                let var = match self.buffers.get(&name) {
                    Some(&b) => b,
                    None => self.new_buffer(name.clone(), scalar_buffer(&name, DType::I64, true, here)),
                };
                self.sign("=")?;
                Op::IxVarNew { var, init: self.index()? }
            }
            "index_set" => {
                let var = self.buffer()?;
                self.sign("=")?;
                Op::IxVarSet { var, index: self.index()? }
            }
            "store" | "put" => {
                let (view, index) = self.place()?;
                self.sign("=")?;
                Op::Store { view, index, value: self.value()?, checked: word == "put" }
            }
            "atomic" => self.atomic(None)?,
            "alloc" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a buffer") };
                let here = self.span();
                self.take();
                let buffer = if self.eat(":") {
                    let b = self.buffer_type(&name, here)?;
                    self.new_buffer(name, b)
                } else {
                    self.at -= 1;
                    self.buffer()?
                };
                Op::Alloc { buffer }
            }
            "fill" => {
                let dst = self.view()?;
                self.sign("=")?;
                Op::Fill { dst, value: self.value()? }
            }
            "copy" => {
                let (view, start) = self.place()?;
                let src = Region { view, start };
                self.sign("->")?;
                let (view, start) = self.place()?;
                let dst = Region { view, start };
                self.word("extents")?;
                Op::Copy { src, dst, extents: self.counts()? }
            }
            "parallel" => {
                let (vars, extents) = self.boxed()?;
                let distribution = self.distribution()?;
                Op::Parallel { vars, extents, body: self.body()?, distribution }
            }
            "spread" => {
                let (var, lo, hi) = self.range_loop(IxVarKind::Element)?;
                Op::Spread { var, lo, hi, body: self.body()? }
            }
            "reduce" => {
                let op = self.one_of("a reduction", ReduceOp::parse)?;
                let src = self.view()?;
                self.word("axis")?;
                let axis = self.count()?;
                self.sign("->")?;
                let dst = self.buffer()?;
                Op::Reduce { op, src, dst, axis, order: self.order()? }
            }
            "scan" => self.scan(None)?,
            "for" => {
                let (var, lo, hi) = self.range_loop(IxVarKind::Loop)?;
                let stages = if self.eat_word("stages") { self.count()? } else { 1 };
                if self.eat_word("unroll") {
                    let n = self.count()?;
                    self.k.unroll.insert(var, n);
                }
                Op::For { var, lo, hi, body: self.body()?, stages }
            }
            "gemm" | "gemm.set" => {
                let a = self.view()?;
                self.sign(",")?;
                let b = self.view()?;
                self.sign("->")?;
                let acc = self.buffer()?;
                let scales = self.gemm_scales()?;
                Op::Gemm { a, b, acc, set: word == "gemm.set", scales }
            }
            "loop" => Op::Loop { body: self.body()? },
            "break" => Op::Break,
            "continue" => Op::Continue,
            "if" => {
                let cond = self.value()?;
                let then = self.body()?;
                let els = if self.eat_word("else") { self.body()? } else { self.new_block() };
                let mut results = vec![];
                if self.eat_word("yield") {
                    self.sign("(")?;
                    while !self.eat(")") {
                        results.push(self.if_result()?);
                        if !self.is(")") {
                            self.sign(",")?;
                        }
                    }
                }
                Op::If { cond, then, els, results }
            }
            "check" => Op::Check { cond: self.value()?, message: self.text()? },
            "grid_barrier" => Op::GridBarrier,
            "barrier" => Op::BlockBarrier { reason: self.text()? },
            _ => {
                self.at -= 1;
                match self.sched_op(span)? {
                    Some(op) => op,
                    None => return self.expected("an op"),
                }
            }
        };
        self.push(op, span);
        Ok(())
    }

    /// The scales of a product, if it has any.
    pub(super) fn gemm_scales(&mut self) -> Parsed<Option<[GemmScale; 2]>> {
        if !self.eat_word("rows") {
            return Ok(None);
        }
        let row = self.gemm_scale()?;
        self.word("cols")?;
        Ok(Some([row, self.gemm_scale()?]))
    }

    pub(super) fn gemm_scale(&mut self) -> Parsed<GemmScale> {
        let (vars, _) = self.boxed()?;
        let [var] = vars[..] else { return self.expected("one index variable") };
        let body = self.body()?;
        self.word("yield")?;
        Ok(GemmScale { var, body, value: self.value()? })
    }

    pub(super) fn one_of<T>(&mut self, what: &str, parse: impl Fn(&str) -> Option<T>) -> Parsed<T> {
        if let Tok::Word(w) = self.peek()
            && let Some(x) = parse(w)
        {
            self.take();
            return Ok(x);
        }
        self.expected(what)
    }

    pub(super) fn if_result(&mut self) -> Parsed<IfResult> {
        let span = self.span();
        if self.eat_word("index") {
            let def = self.var_name()?;
            self.sign("=")?;
            let then = self.index()?;
            self.sign("|")?;
            let els = self.index()?;
            let result = self.new_var(def, IxVarKind::Data, None, None)?;
            return Ok(IfResult::Index { result, then, els });
        }
        let Tok::Value(n) = *self.peek() else { return self.expected("`index` or a value") };
        self.take();
        self.sign(":")?;
        let dtype = self.dtype()?;
        self.sign("=")?;
        let then = self.value()?;
        self.sign("|")?;
        let els = self.value()?;
        Ok(IfResult::Value { result: self.make_value(n, dtype, span), then, els })
    }

    pub(super) fn atomic(&mut self, result: Option<ValueId>) -> Parsed<Op> {
        let op = self.one_of("an atomic operation", AtomicOp::parse)?;
        let (view, index) = self.place()?;
        self.sign(",")?;
        Ok(Op::Atomic { result, op, view, index, value: self.value()? })
    }

    pub(super) fn scan(&mut self, total: Option<ValueId>) -> Parsed<Op> {
        let op = self.one_of("a combining operation", ReduceOp::parse)?;
        let kind = self.one_of("a kind of scan", ScanKind::parse)?;
        let src = self.view()?;
        self.word("axis")?;
        let axis = self.count()?;
        self.sign("->")?;
        Ok(Op::Scan { op, kind, src, dst: self.buffer()?, axis, total })
    }

    pub(super) fn index_op(&mut self, span: SpanId) -> Parsed<()> {
        let def = self.var_name()?;
        self.sign("=")?;
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op that gives an index") };
        let op = match word.as_str() {
            "clamp_index" => {
                self.take();
                let value = self.value()?;
                self.sign(",")?;
                let lo = self.index()?;
                self.sign(",")?;
                let hi = self.index()?;
                let var = self.new_var(def, IxVarKind::Data, Some(lo), Some((hi, 0)))?;
                Op::ClampIndex { var, value, lo, hi }
            }
            "index_get" => {
                self.take();
                let var = self.buffer()?;
                Op::IxVarGet { result: self.new_var(def, IxVarKind::Data, None, None)?, var }
            }
            "find_first" => {
                self.take();
                // The result is visible after the op only, but its name comes first in the text.
                let (vars, extents) = self.boxed()?;
                let ([var], [extent]) = (&vars[..], &extents[..]) else { return self.expected("one index variable") };
                let (var, extent) = (*var, *extent);
                let body = self.body()?;
                self.word("yield")?;
                let cond = self.value()?;
                let (zero, n) = (self.k.ix_const_id(0), self.k.ix_const_id(extent as i64));
                let result = self.new_var(def, IxVarKind::Data, Some(zero), Some((n, 0)))?;
                Op::FindFirst { var, extent, body, cond, result }
            }
            _ => return self.expected("an op that gives an index"),
        };
        self.push(op, span);
        Ok(())
    }

    pub(super) fn value_op(&mut self, n: u32, dtype: DType, span: SpanId) -> Parsed<()> {
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op that gives a value") };
        self.take();
        // Operands are read before the result exists: a value cannot use itself.
        let op = match word.as_str() {
            "const" => {
                let value = self.literal()?;
                Op::Const { result: self.make_value(n, dtype, span), value }
            }
            "index_value" => {
                let index = self.index()?;
                Op::IndexValue { result: self.make_value(n, dtype, span), index }
            }
            "fma" | "select" => {
                let a = self.value()?;
                self.sign(",")?;
                let b = self.value()?;
                self.sign(",")?;
                let c = self.value()?;
                let result = self.make_value(n, dtype, span);
                if word == "fma" { Op::Fma { result, a, b, c } } else { Op::Select { result, cond: a, a: b, b: c } }
            }
            "compare" => {
                let op = self.one_of("a comparison", CmpOp::parse)?;
                let a = self.value()?;
                self.sign(",")?;
                let b = self.value()?;
                Op::Compare { result: self.make_value(n, dtype, span), op, a, b }
            }
            "compare_index" => {
                let op = self.one_of("a comparison", CmpOp::parse)?;
                let a = self.index()?;
                self.sign(",")?;
                let b = self.index()?;
                Op::CompareIndex { result: self.make_value(n, dtype, span), op, a, b }
            }
            "cast" => {
                let x = self.value()?;
                Op::Cast { result: self.make_value(n, dtype, span), x }
            }
            "bits" => {
                let x = self.value()?;
                Op::Bits { result: self.make_value(n, dtype, span), x }
            }
            "get" => {
                let var = self.buffer()?;
                Op::VarGet { result: self.make_value(n, dtype, span), var }
            }
            "load" => {
                let (view, index) = self.place()?;
                Op::Load { result: self.make_value(n, dtype, span), view, index }
            }
            "load_or" => {
                let (view, index) = self.place()?;
                self.word("else")?;
                let other = self.value()?;
                Op::LoadOr { result: self.make_value(n, dtype, span), view, index, other }
            }
            "atomic" => {
                let op = self.atomic(None)?;
                let r = self.make_value(n, dtype, span);
                match op {
                    Op::Atomic { op, view, index, value, .. } => Op::Atomic { result: Some(r), op, view, index, value },
                    other => other,
                }
            }
            "claim" => {
                let var = self.buffer()?;
                self.sign(",")?;
                let cond = self.value()?;
                Op::Claim { result: self.make_value(n, dtype, span), var, cond }
            }
            "scan" => {
                let op = self.scan(None)?;
                let t = self.make_value(n, dtype, span);
                match op {
                    Op::Scan { op, kind, src, dst, axis, .. } => Op::Scan { op, kind, src, dst, axis, total: Some(t) },
                    other => other,
                }
            }
            "reduce_region" => {
                let op = self.one_of("a reduction", ReduceOp::parse)?;
                let (vars, extents) = self.boxed()?;
                let order = self.order()?;
                let body = self.body()?;
                self.word("yield")?;
                let value = self.value()?;
                Op::ReduceRegion { op, vars, extents, body, value, result: self.make_value(n, dtype, span), order }
            }
            _ => {
                if let Some(op) = UnaryOp::parse(&word) {
                    let x = self.value()?;
                    Op::Unary { result: self.make_value(n, dtype, span), op, x }
                } else if let Some(op) = BinaryOp::parse(&word) {
                    let a = self.value()?;
                    self.sign(",")?;
                    let b = self.value()?;
                    Op::Binary { result: self.make_value(n, dtype, span), op, a, b }
                } else {
                    self.at -= 1;
                    return self.expected("an op that gives a value");
                }
            }
        };
        self.push(op, span);
        Ok(())
    }

    pub(super) fn literal(&mut self) -> Parsed<Literal> {
        let dtype = self.dtype()?;
        if dtype == DType::Bool {
            let yes = self.eat_word("true");
            if !yes {
                self.word("false")?;
            }
            return Ok(Literal::bool(yes));
        }
        let minus = if self.eat("-") { "-" } else { "" };
        let Tok::Number(n) = self.peek().clone() else { return self.expected("a number") };
        let mask = if dtype.bits() == 64 { u64::MAX } else { (1 << dtype.bits()) - 1 };
        let bits = match n.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if dtype == DType::F32 => format!("{minus}{n}").parse::<f32>().ok().map(|x| x.to_bits() as u64),
            None if dtype.is_int() => format!("{minus}{n}").parse::<i64>().ok().map(|x| x as u64 & mask),
            None => None,
        };
        match bits.filter(|b| b & !mask == 0) {
            Some(bits) => {
                self.take();
                Ok(Literal { dtype, bits })
            }
            None => self.expected(&format!("a constant of type {dtype} (`0x..` for bits)")),
        }
    }
}
