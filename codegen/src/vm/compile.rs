//! From a kernel, plain or with roles, and its dimension values to a [`Program`]: symbols become numbers, index expressions affine forms,
//! values registers. Copies and fills become bodies like any other.
//!
//! Registers are reused within a body: a value dies after the last op of its own block that needs it, itself or inside.
//! Registers of constants and of block scalars live as long as the body, because they are filled once.

mod index;
mod sched;
mod uses;

use super::memory::{Class, class_of};
use super::program::*;
use crate::diag::Diagnostic;
use crate::ir::effects;
use crate::ir::{
    Base, BlockId, BufferId, DType, Gather, GemmScale, IfResult, IxExpr, IxId, IxVarId, IxVarKind, Kernel, Op, OpId,
    Order, ParamKind, Region, Space, SpanId, ValueId, ViewId, build::row_major,
};
use crate::valid::Facts;
use std::collections::{HashMap, HashSet};
use uses::{for_results, uses};

/// Compiles `kernel` for the given symbol values.
///
/// # Errors
/// What this VM cannot run: a symbol without value, more axes than [`MAX_RANK`], a value used before its definition.
pub fn compile(kernel: &Kernel, facts: &Facts, syms: &[i64], sanitize: bool) -> Result<Program, Vec<Diagnostic>> {
    if syms.len() < kernel.syms.len() {
        return Err(vec![Diagnostic::error(
            kernel,
            kernel.span,
            "S0109",
            format!("the launch gives {} of {} dimension values", syms.len(), kernel.syms.len()),
        )]);
    }
    let mut c = Compiler {
        kernel,
        facts,
        syms,
        sanitize,
        block: Frame::default(),
        body: None,
        body_regs: [0; 3],
        errors: vec![],
    };
    let mut scalars = vec![];
    for (p, param) in kernel.params.iter().enumerate() {
        if let ParamKind::Scalar { dtype, value } = &param.kind {
            let reg = c.define(*value);
            scalars.push((reg, *dtype, p));
        }
    }
    let code = c.block(kernel.body, &HashSet::new());
    let mut grid = vec![];
    for &g in &kernel.grid {
        let ix = c.ix(g, kernel.span);
        match ix.constant() {
            Some(n) => grid.push(n),
            None => c.error(kernel.span, "the grid depends on more than dimensions"),
        }
    }
    let tiles = (0..kernel.buffers.len())
        .map(|i| {
            let b = &kernel.buffers[i];
            let reinterpreted =
                kernel.views.iter().any(|v| v.base == Base::Buffer(BufferId(i as u32)) && v.dtype != b.dtype);
            let len = if b.space == Space::Var { 0 } else { b.extents.iter().product() };
            TileInfo { buffer: BufferId(i as u32), dtype: b.dtype, len, bytes: reinterpreted }
        })
        .collect();
    if !c.errors.is_empty() {
        return Err(c.errors);
    }
    Ok(Program {
        code,
        block_regs: c.block.counts,
        body_regs: c.body_regs,
        env: kernel.ix_vars.len() + kernel.buffers.len() + kernel.values.len(),
        tiles,
        grid,
        block_ids: kernel.block_ids.iter().map(|v| v.0 as usize).collect(),
        scalars,
        wide: kernel.syms.iter().any(|s| s.max > i32::MAX as i64),
    })
}

/// Registers while one frame is compiled.
#[derive(Default)]
struct Frame {
    counts: [usize; 3],
    free: [Vec<usize>; 3],
    values: HashMap<ValueId, Reg>,
    vars: HashMap<BufferId, Reg>,
    ix_vars: HashMap<IxVarId, usize>,
    ix_buffers: HashMap<BufferId, usize>,
    elems: HashMap<IxVarId, usize>,
    aliases: HashMap<IxVarId, usize>,
    pinned: HashSet<ValueId>,
    splats: Vec<(Reg, Reg)>,
    constants: Vec<(Reg, DType, u64)>,
    env_data: Vec<(usize, Reg, DType)>,
    var_splats: HashMap<BufferId, Reg>,
}

impl Frame {
    fn fresh(&mut self, class: Class, reuse: bool) -> Reg {
        let k = class as usize;
        if reuse && let Some(slot) = self.free[k].pop() {
            return Reg { class, slot };
        }
        self.counts[k] += 1;
        Reg { class, slot: self.counts[k] - 1 }
    }
}

struct Compiler<'k> {
    kernel: &'k Kernel,
    facts: &'k Facts,
    syms: &'k [i64],
    sanitize: bool,
    block: Frame,
    body: Option<Frame>,
    body_regs: [usize; 3],
    errors: Vec<Diagnostic>,
}

/// What a view is to an access: its indices, where they may leave it, and who asked.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Plain,
    Checked,
    Copy,
}

impl<'k> Compiler<'k> {
    fn error(&mut self, span: SpanId, what: impl Into<String>) {
        let d = Diagnostic::error(self.kernel, span, "S0110", what.into());
        if !self.errors.contains(&d) {
            self.errors.push(d.help("this is a defect of the kernel's IR; run the verifier on it"));
        }
    }

    fn frame(&mut self) -> &mut Frame {
        self.body.as_mut().unwrap_or(&mut self.block)
    }

    /// Register for the result of an op.
    fn define(&mut self, v: ValueId) -> Reg {
        let class = class_of(self.kernel.value(v).dtype);
        let reuse = self.body.is_some();
        let f = self.frame();
        let reg = f.fresh(class, reuse);
        f.values.insert(v, reg);
        reg
    }

    /// Register of an operand; block scalars and constants are brought into the body.
    fn value(&mut self, v: ValueId, span: SpanId) -> Reg {
        let dtype = self.kernel.value(v).dtype;
        let class = class_of(dtype);
        if let Some(f) = &mut self.body {
            if let Some(&r) = f.values.get(&v) {
                return r;
            }
            if let Some(lit) = self.kernel.literal(v) {
                let r = f.fresh(class, false);
                f.values.insert(v, r);
                f.pinned.insert(v);
                f.constants.push((r, lit.dtype, lit.bits));
                return r;
            }
            if let Some(&outer) = self.block.values.get(&v) {
                let r = f.fresh(class, false);
                f.values.insert(v, r);
                f.pinned.insert(v);
                f.splats.push((r, outer));
                return r;
            }
        } else if let Some(&r) = self.block.values.get(&v) {
            return r;
        }
        self.error(span, format!("value {} is used before it is defined", v.0));
        Reg { class, slot: 0 }
    }

    fn dtype(&self, v: ValueId) -> DType {
        self.kernel.value(v).dtype
    }

    fn block(&mut self, id: BlockId, keep: &HashSet<ValueId>) -> Vec<Node> {
        let kernel = self.kernel;
        let ops = &kernel.block(id).ops;
        let mut last: HashMap<ValueId, usize> = HashMap::new();
        let in_body = self.body.is_some();
        if in_body {
            for (i, &op) in ops.iter().enumerate() {
                uses(kernel, op, &mut |v| {
                    last.insert(v, i);
                });
            }
        }
        let mut code = vec![];
        let mut mine: Vec<ValueId> = vec![];
        for (i, &op) in ops.iter().enumerate() {
            self.op(op, &mut code);
            if in_body {
                for_results(&kernel.op(op).op, &mut |v| mine.push(v));
                let f = self.frame();
                mine.retain(|v| {
                    let dead = last.get(v).is_none_or(|&l| l <= i) && !keep.contains(v) && !f.pinned.contains(v);
                    if dead && let Some(r) = f.values.remove(v) {
                        f.free[r.class as usize].push(r.slot);
                    }
                    !dead
                });
            }
        }
        code
    }

    fn op(&mut self, id: OpId, code: &mut Vec<Node>) {
        let kernel = self.kernel;
        let node = kernel.op(id);
        let span = node.span;
        let instr = match &node.op {
            Op::Const { result, value } => {
                if self.body.is_some() {
                    // Filled once, before the first strip.
                    let _ = self.value(*result, span);
                    return;
                }
                Instr::Const { dst: self.define(*result), dtype: value.dtype, bits: value.bits }
            }
            Op::IndexValue { result, index } => {
                let ix = self.ix(*index, span);
                Instr::Index { dst: self.define(*result), dtype: self.dtype(*result), ix }
            }
            Op::Unary { result, op, x } => {
                let x = self.value(*x, span);
                Instr::Unary { op: *op, dtype: self.dtype(*result), dst: self.define(*result), x }
            }
            Op::Binary { result, op, a, b } => {
                let (a, b) = (self.value(*a, span), self.value(*b, span));
                Instr::Binary { op: *op, dtype: self.dtype(*result), dst: self.define(*result), a, b }
            }
            Op::Fma { result, a, b, c } => {
                let (a, b, c) = (self.value(*a, span), self.value(*b, span), self.value(*c, span));
                Instr::Fma { dst: self.define(*result), a, b, c }
            }
            Op::Compare { result, op, a, b } => {
                let dtype = self.dtype(*a);
                let (a, b) = (self.value(*a, span), self.value(*b, span));
                Instr::Compare { op: *op, dtype, dst: self.define(*result), a, b }
            }
            Op::CompareIndex { result, op, a, b } => {
                let (a, b) = (self.ix(*a, span), self.ix(*b, span));
                Instr::CompareIndex { op: *op, dst: self.define(*result), a, b }
            }
            Op::Select { result, cond, a, b } => {
                let cond = self.value(*cond, span);
                let (a, b) = (self.value(*a, span), self.value(*b, span));
                Instr::Select { dst: self.define(*result), cond, a, b }
            }
            Op::Cast { result, x } => {
                let from = self.dtype(*x);
                let source = *x;
                let x = self.value(source, span);
                if from == self.dtype(*result)
                    && let Some(f) = &mut self.body
                {
                    // Nothing happens: both names share a register, which then lives as long as the body.
                    f.values.insert(*result, x);
                    f.pinned.extend([source, *result]);
                    return;
                }
                Instr::Cast { from, to: self.dtype(*result), dst: self.define(*result), x }
            }
            Op::Bits { result, x } => {
                let from = self.dtype(*x);
                let x = self.value(*x, span);
                Instr::Bits { from, to: self.dtype(*result), dst: self.define(*result), x }
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let dtype = self.dtype(*value);
                let x = self.value(*value, span);
                let (lo, hi) = (self.ix(*lo, span), self.ix(*hi, span));
                Instr::Clamp { target: self.define_ix(*var), dtype, x, lo, hi }
            }
            Op::VarNew { var, init } => {
                let src = self.value(*init, span);
                let class = class_of(kernel.buffer(*var).dtype);
                let f = self.frame();
                let dst = match f.vars.get(var) {
                    Some(&r) => r,
                    None => f.fresh(class, false),
                };
                f.vars.insert(*var, dst);
                Instr::Move { dst, src }
            }
            Op::VarGet { result, var } => {
                if let Some(f) = &mut self.body
                    && !f.vars.contains_key(var)
                {
                    // A block variable does not change while a body runs.
                    let Some(&outer) = self.block.vars.get(var) else {
                        self.error(span, "a variable is read before it is declared");
                        return;
                    };
                    let r = match f.var_splats.get(var) {
                        Some(&r) => r,
                        None => {
                            let r = f.fresh(outer.class, false);
                            f.splats.push((r, outer));
                            f.var_splats.insert(*var, r);
                            r
                        }
                    };
                    f.values.insert(*result, r);
                    f.pinned.insert(*result);
                    return;
                }
                let Some(&src) = self.frame().vars.get(var) else {
                    self.error(span, "a variable is read before it is declared");
                    return;
                };
                Instr::Move { dst: self.define(*result), src }
            }
            Op::Claim { result, var: _, cond } => {
                let cond = self.value(*cond, span);
                Instr::Claim { dst: self.define(*result), cond }
            }
            Op::VarSet { var, value } => {
                let src = self.value(*value, span);
                let Some(&dst) = self.frame().vars.get(var) else {
                    self.error(span, "a variable is set outside the body that declares it");
                    return;
                };
                Instr::Move { dst, src }
            }
            Op::IxVarNew { var, init } => {
                let ix = self.ix(*init, span);
                let target = match &mut self.body {
                    None => IxTarget::Env(self.env_of_buffer(*var)),
                    Some(f) => {
                        let slot = match f.ix_buffers.get(var) {
                            Some(&s) => s,
                            None => f.fresh(Class::L, false).slot,
                        };
                        f.ix_buffers.insert(*var, slot);
                        IxTarget::Lane(slot)
                    }
                };
                Instr::MoveIndex { target, ix }
            }
            Op::IxVarGet { result, var } => {
                let at = self.env_of_buffer(*var);
                if let Some(f) = &mut self.body
                    && !f.ix_buffers.contains_key(var)
                {
                    // A block index does not change while a body runs.
                    f.aliases.insert(*result, at);
                    return;
                }
                let ix = match self.body.as_ref().and_then(|f| f.ix_buffers.get(var)) {
                    Some(&slot) => self.atom(Atom::Lane(slot), false),
                    None => self.atom(Atom::Env(self.env_of_buffer(*var)), true),
                };
                Instr::MoveIndex { target: self.define_ix(*result), ix }
            }
            Op::IxVarSet { var, index } => {
                let ix = self.ix(*index, span);
                let target = match &self.body {
                    None => IxTarget::Env(self.env_of_buffer(*var)),
                    Some(f) => match f.ix_buffers.get(var) {
                        Some(&slot) => IxTarget::Lane(slot),
                        None => {
                            self.error(span, "an index variable is set outside the body that declares it");
                            return;
                        }
                    },
                };
                Instr::MoveIndex { target, ix }
            }
            Op::Load { result, view, index } => {
                let access = Box::new(self.access(*view, index, id, span, Manner::Plain));
                Instr::Load { dst: self.define(*result), access, other: None }
            }
            Op::LoadOr { result, view, index, other } => {
                let access = Box::new(self.access(*view, index, id, span, Manner::Checked));
                let other = Some(self.value(*other, span));
                Instr::Load { dst: self.define(*result), access, other }
            }
            Op::Store { view, index, value, checked } => {
                let manner = if *checked { Manner::Checked } else { Manner::Plain };
                let access = Box::new(self.access(*view, index, id, span, manner));
                Instr::Store { access, src: self.value(*value, span) }
            }
            Op::Atomic { result, op, view, index, value } => {
                let access = Box::new(self.access(*view, index, id, span, Manner::Plain));
                let src = self.value(*value, span);
                Instr::Atomic { op: *op, access, dst: result.map(|r| self.define(r)), src }
            }
            Op::Alloc { buffer } => Instr::Alloc { tile: buffer.0 as usize },
            Op::Fill { dst, value } => {
                let view = kernel.view(*dst);
                let extents: Option<Vec<usize>> = view
                    .extents
                    .clone()
                    .into_iter()
                    .map(|e| self.ix(e, span).constant().map(|c| c.max(0) as usize))
                    .collect();
                let Some(extents) = extents else {
                    self.error(span, "a fill needs constant extents");
                    return;
                };
                self.enter_body(&[], extents.len(), span);
                let src = self.value(*value, span);
                let index = self.identity(extents.len());
                let access = Box::new(self.access_at(*dst, index, id, span, Manner::Copy));
                let body = vec![Node { instr: Instr::Store { access, src }, span, op: id }];
                self.leave_body(Extents::Fixed(extents), body, Collect::None)
            }
            Op::Copy { src, dst, extents } => {
                self.enter_body(&[], extents.len(), span);
                let from = self.region(src, extents.len(), id, span);
                let to = self.region(dst, extents.len(), id, span);
                let f = self.frame();
                let loaded = f.fresh(class_of(from.dtype), false);
                let mut code = vec![Node {
                    instr: Instr::Load { dst: loaded, access: Box::new(from.clone()), other: None },
                    span,
                    op: id,
                }];
                let mut value = loaded;
                if from.dtype != to.dtype {
                    value = self.frame().fresh(class_of(to.dtype), false);
                    let cast = Instr::Cast { from: from.dtype, to: to.dtype, dst: value, x: loaded };
                    code.push(Node { instr: cast, span, op: id });
                }
                code.push(Node { instr: Instr::Store { access: Box::new(to.clone()), src: value }, span, op: id });
                if self.sanitize {
                    // Elements that are dropped need not be initialised.
                    code = vec![Node { instr: Instr::Inside { access: Box::new(to.clone()), code }, span, op: id }];
                }
                let class = class_of(from.dtype);
                let rounds = from.dtype == to.dtype || class == Class::F && class_of(to.dtype) == Class::F;
                let copy = rounds.then(|| Box::new(CopyBody { from, to }));
                let mut instr = self.leave_body(Extents::Fixed(extents.clone()), code, Collect::None);
                if let Instr::Body(b) = &mut instr {
                    b.copy = copy;
                }
                instr
            }
            Op::Parallel { vars, extents, body, distribution: _ } => {
                self.enter_body(vars, extents.len(), span);
                let code = self.block(*body, &HashSet::new());
                self.leave_body(Extents::Fixed(extents.clone()), code, Collect::None)
            }
            Op::Spread { var, lo, hi, body } => {
                let (lo, hi) = (self.ix(*lo, span), self.ix(*hi, span));
                self.enter_body(&[*var], 1, span);
                let code = self.block(*body, &HashSet::new());
                let counter = effects::counter(kernel, *body);
                let collect = match counter.map(|var| self.block.vars.get(&var).copied()) {
                    None => Collect::None,
                    Some(Some(counter)) => Collect::Count { counter },
                    Some(None) => return self.error(span, "a counter is used before it is declared"),
                };
                self.leave_body(Extents::Range(lo, hi), code, collect)
            }
            Op::ReduceRegion { op, vars, extents, body, value, result, order } => {
                self.enter_body(vars, extents.len(), span);
                let code = self.block(*body, &HashSet::from([*value]));
                let value_reg = self.value(*value, span);
                let dtype = self.dtype(*value);
                let info = ReduceInfo { op: *op, dtype, order: order.unwrap_or(Order::SEQUENTIAL) };
                let body = self.body.take();
                let result = self.define(*result);
                self.body = body;
                self.leave_body(
                    Extents::Fixed(extents.clone()),
                    code,
                    Collect::Reduce { info, value: value_reg, result },
                )
            }
            Op::FindFirst { var, extent, body, cond, result } => {
                self.enter_body(&[*var], 1, span);
                let code = self.block(*body, &HashSet::from([*cond]));
                let cond = self.value(*cond, span);
                let result = result.0 as usize;
                self.leave_body(Extents::Fixed(vec![*extent]), code, Collect::First { cond, result })
            }
            Op::Reduce { op, src, dst, axis, order } => {
                let Some((access, shape, strides)) = self.whole(*src, id, span) else { return };
                let dtype = kernel.view(*src).dtype;
                let info = ReduceInfo { op: *op, dtype, order: order.unwrap_or(Order::SEQUENTIAL) };
                Instr::Reduce { info, src: Box::new(access), shape, strides, axis: *axis, dst: dst.0 as usize }
            }
            Op::Scan { op, kind, src, dst, axis, total } => {
                let Some((access, shape, strides)) = self.whole(*src, id, span) else { return };
                let dtype = kernel.view(*src).dtype;
                let info = ReduceInfo { op: *op, dtype, order: Order::SEQUENTIAL };
                let total = total.map(|t| self.define(t));
                Instr::Scan {
                    info,
                    kind: *kind,
                    src: Box::new(access),
                    shape,
                    strides,
                    axis: *axis,
                    dst: dst.0 as usize,
                    total,
                }
            }
            Op::Gemm { a, b, acc, set, scales } => {
                let Some(g) = self.product([*a, *b], *acc, *set, scales, id, code) else { return };
                Instr::Gemm(Box::new(g))
            }
            // Stages say how copies may run ahead; here nothing runs ahead.
            Op::For { var, lo, hi, body, stages: _ } => {
                let (lo, hi) = (self.ix(*lo, span), self.ix(*hi, span));
                let target = if lo.is_uniform() { IxTarget::Env(var.0 as usize) } else { self.define_ix(*var) };
                debug_assert!(kernel.ix_var(*var).kind != IxVarKind::Element);
                Instr::For { target, lo, hi, code: self.block(*body, &HashSet::new()) }
            }
            Op::Loop { body } => Instr::Loop { code: self.block(*body, &HashSet::new()) },
            Op::Break => Instr::Break,
            Op::Continue => Instr::Continue,
            Op::If { cond, then, els, results } => {
                let cond = self.value(*cond, span);
                let mut yields = [HashSet::new(), HashSet::new()];
                for r in results {
                    if let IfResult::Value { then, els, .. } = r {
                        yields[0].insert(*then);
                        yields[1].insert(*els);
                    }
                }
                // Joined results exist before the arms, so that neither arm's registers are theirs.
                let mut joins = vec![];
                for r in results {
                    match r {
                        IfResult::Value { result, .. } => {
                            let reg = self.define(*result);
                            joins.push((Some(reg), None));
                        }
                        IfResult::Index { result, .. } => {
                            let target = self.define_ix(*result);
                            joins.push((None, Some(target)));
                        }
                    }
                }
                let mut arms = [*then, *els].into_iter().zip(yields).enumerate().map(|(side, (block, keep))| {
                    let mut code = self.block(block, &keep);
                    for (r, join) in results.iter().zip(&joins) {
                        let instr = match (r, join) {
                            (IfResult::Value { then, els, .. }, (Some(dst), _)) => {
                                let v = if side == 0 { *then } else { *els };
                                Instr::Move { dst: *dst, src: self.value(v, span) }
                            }
                            (IfResult::Index { then, els, .. }, (_, Some(target))) => {
                                let ix = self.ix(if side == 0 { *then } else { *els }, span);
                                Instr::MoveIndex { target: *target, ix }
                            }
                            (IfResult::Value { .. } | IfResult::Index { .. }, _) => continue,
                        };
                        code.push(Node { instr, span, op: id });
                    }
                    code
                });
                let then = arms.next().unwrap_or_default();
                let els = arms.next().unwrap_or_default();
                drop(arms);
                Instr::If { cond, then, els }
            }
            Op::Check { cond, message } => Instr::Check { cond: self.value(*cond, span), message: message.clone() },
            Op::GridBarrier => Instr::GridBarrier,
            Op::BlockBarrier { reason: _ } if !kernel.roles.is_empty() => Instr::Role(Box::new(RoleInstr::Meet)),
            Op::BlockBarrier { reason: _ } => Instr::Nothing,
            Op::Sched(op) => match self.sched(op, id, code) {
                Some(op) => Instr::Role(Box::new(op)),
                None => return,
            },
        };
        code.push(Node { instr, span, op: id });
    }

    fn product(
        &mut self,
        [a, b]: [ViewId; 2],
        acc: BufferId,
        set: bool,
        scales: &Option<[GemmScale; 2]>,
        id: OpId,
        code: &mut Vec<Node>,
    ) -> Option<Gemm> {
        let kernel = self.kernel;
        let span = kernel.op(id).span;
        let ((a, sa, ta), (b, sb, tb)) = (self.whole(a, id, span)?, self.whole(b, id, span)?);
        let held = kernel.buffer(acc);
        let place = Place::Tile(acc.0 as usize);
        let (&[m, k], &[k2, n], &[a0, a1], &[b0, b1]) = (&sa[..], &sb[..], &ta[..], &tb[..]) else {
            self.error(span, "a matrix product of tiles that have not two axes");
            return None;
        };
        let fits = k == k2 && held.extents == [m, n] && held.dtype == DType::F32;
        if !fits || [&a, &b].iter().any(|x| x.place == place || class_of(x.dtype) == Class::L) {
            self.error(span, "a matrix product of tiles that do not fit each other");
            return None;
        }
        for (side, s) in scales.iter().flatten().enumerate() {
            self.enter_body(&[s.var], 1, span);
            let body = self.block(s.body, &HashSet::from([s.value]));
            let value = self.value(s.value, span);
            let extent = if side == 0 { m } else { n };
            let instr = self.leave_body(Extents::Fixed(vec![extent]), body, Collect::Keep { value, side });
            code.push(Node { instr, span, op: id });
        }
        let zero = Self::konst(0);
        let acc = Access { place, dtype: DType::F32, address: zero, checks: vec![], affine: true, lookup: None };
        let (a, b) = (Operand { access: a, strides: [a0, a1] }, Operand { access: b, strides: [b0, b1] });
        Some(Gemm { shape: [m, n, k], a, b, acc, set, scaled: scales.is_some() })
    }

    fn identity(&mut self, rank: usize) -> Vec<Ix> {
        (0..rank).map(|axis| self.atom(Atom::Elem(axis), false)).collect()
    }

    fn region(&mut self, r: &Region, rank: usize, id: OpId, span: SpanId) -> Access {
        let mut index = self.identity(rank);
        for (i, &s) in index.iter_mut().zip(&r.start) {
            let start = self.ix(s, span);
            *i = Self::add(i.clone(), &start, 1);
        }
        self.access_at(r.view, index, id, span, Manner::Copy)
    }

    /// A whole tile view with constant shape and strides; the access carries its offset.
    fn whole(&mut self, view: ViewId, id: OpId, span: SpanId) -> Option<(Access, Vec<usize>, Vec<i64>)> {
        let v = self.kernel.view(view).clone();
        let shape: Option<Vec<usize>> =
            v.extents.iter().map(|&e| self.ix(e, span).constant().map(|c| c.max(0) as usize)).collect();
        let strides: Option<Vec<i64>> = v.strides.iter().map(|&e| self.ix(e, span).constant()).collect();
        let (Some(shape), Some(strides)) = (shape, strides) else {
            self.error(span, "a whole tile must have a constant shape");
            return None;
        };
        if v.gather.is_some() {
            self.error(span, "rows that are looked up are no whole tile");
            return None;
        }
        let zero = vec![Self::konst(0); shape.len()];
        let access = self.access_at(view, zero, id, span, Manner::Copy);
        Some((access, shape, strides))
    }

    fn enter_body(&mut self, vars: &[IxVarId], rank: usize, span: SpanId) {
        if rank > MAX_RANK {
            self.error(span, format!("a loop box of {rank} axes; at most {MAX_RANK} are supported"));
        }
        let mut f = Frame::default();
        for (axis, &v) in vars.iter().enumerate() {
            f.elems.insert(v, axis);
        }
        self.body = Some(f);
    }

    fn leave_body(&mut self, extents: Extents, code: Vec<Node>, collect: Collect) -> Instr {
        let f = self.body.take().unwrap_or_default();
        for (most, n) in self.body_regs.iter_mut().zip(f.counts) {
            *most = (*most).max(n);
        }
        Instr::Body(Box::new(Body {
            extents,
            splats: f.splats,
            constants: f.constants,
            env_data: f.env_data,
            mergeable: mergeable(&code),
            code,
            copy: None,
            collect,
        }))
    }
}

/// The accesses of a body whose element indices occur in affine accesses only and that has no loops.
fn mergeable(code: &[Node]) -> Option<Vec<Access>> {
    let mut all = vec![];
    for node in code {
        match &node.instr {
            Instr::Load { access, .. } | Instr::Store { access, .. } => {
                if !access.affine || access.lookup.is_some() {
                    return None;
                }
                all.push((**access).clone());
            }
            Instr::If { then, els, .. } => {
                all.extend(mergeable(then)?);
                all.extend(mergeable(els)?);
            }
            Instr::Index { ix, .. } | Instr::MoveIndex { ix, .. } => ix.is_uniform().then_some(())?,
            Instr::CompareIndex { a, b, .. } => (a.is_uniform() && b.is_uniform()).then_some(())?,
            Instr::Clamp { lo, hi, .. } => (lo.is_uniform() && hi.is_uniform()).then_some(())?,
            Instr::Atomic { .. }
            | Instr::Claim { .. }
            | Instr::Inside { .. }
            | Instr::For { .. }
            | Instr::Loop { .. }
            | Instr::Break
            | Instr::Continue
            | Instr::Alloc { .. }
            | Instr::Body(_)
            | Instr::Reduce { .. }
            | Instr::Scan { .. }
            | Instr::Check { .. }
            | Instr::GridBarrier
            | Instr::Role(_)
            | Instr::Gemm(_) => return None,
            Instr::Const { .. }
            | Instr::Unary { .. }
            | Instr::Binary { .. }
            | Instr::Fma { .. }
            | Instr::Compare { .. }
            | Instr::Select { .. }
            | Instr::Cast { .. }
            | Instr::Bits { .. }
            | Instr::Move { .. }
            | Instr::Nothing => {}
        }
    }
    Some(all)
}

/// Strides a shape has when it is stored without gaps.
pub fn dense(shape: &[usize], strides: &[i64]) -> bool {
    row_major(shape).iter().zip(strides).zip(shape).all(|((&w, &s), &e)| e <= 1 || w as i64 == s)
}
