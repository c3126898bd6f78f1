//! One op after the other: scalars, variables, control, and the heads of tile ops.

use super::Emitter;
use super::expr::{Text, compare_text, memory_type, register_type};
use super::loops::{Element, ElementLoop};
use super::prelude::Snippet;
use crate::ir::{
    AtomicOp, BlockId, DType, IfResult, IxExpr, IxId, Kernel, Op, OpId, ReduceOp, SchedOp, Space, ValueId, ViewId,
};
use crate::pass::access::defined_inside;
use crate::pass::place::SCRATCH;
use std::collections::HashMap;

/// Expressions longer than this get a name of their own.
const INLINE: usize = 84;

/// Uses of each value: how many, and the block of the last one.
pub fn uses(k: &Kernel) -> HashMap<ValueId, (usize, BlockId)> {
    let mut map: HashMap<ValueId, (usize, BlockId)> = HashMap::new();
    fn index_values(k: &Kernel, id: IxId, out: &mut Vec<ValueId>) {
        match k.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) => {}
            IxExpr::Data(v) => out.push(v),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => {
                index_values(k, a, out);
                index_values(k, b, out);
            }
        }
    }
    for (b, block) in k.blocks.iter().enumerate() {
        for &id in &block.ops {
            let mut used = vec![];
            let mut nested = vec![];
            let ix = |ids: &[IxId], used: &mut Vec<ValueId>| ids.iter().for_each(|&i| index_values(k, i, used));
            match &k.op(id).op {
                Op::Const { .. }
                | Op::VarGet { .. }
                | Op::IxVarGet { .. }
                | Op::Alloc { .. }
                | Op::Copy { .. }
                | Op::Parallel { .. }
                | Op::Reduce { .. }
                | Op::Scan { .. }
                | Op::Loop { .. }
                | Op::Break
                | Op::Continue
                | Op::GridBarrier
                | Op::BlockBarrier { .. } => {}
                Op::Sched(op) => match op {
                    SchedOp::Wgmma { scales, .. } => nested.extend(scales.iter().flatten().map(|s| (s.value, s.body))),
                    SchedOp::TmaLoad { at, src, dst, .. } | SchedOp::TmaStore { at, src, dst, .. } => {
                        for list in [at, &src.start, &dst.start] {
                            ix(list, &mut used);
                        }
                    }
                    SchedOp::Roles { .. }
                    | SchedOp::Tiles { .. }
                    | SchedOp::Acquire { .. }
                    | SchedOp::Publish { .. }
                    | SchedOp::Take { .. }
                    | SchedOp::Release { .. }
                    | SchedOp::Advance { .. }
                    | SchedOp::Combine { .. }
                    | SchedOp::TmaStoreWait { .. }
                    | SchedOp::WgmmaWait { .. }
                    | SchedOp::RoleBarrier { .. }
                    | SchedOp::AsyncFence { .. }
                    | SchedOp::ClusterBarrier { .. }
                    | SchedOp::GridWait
                    | SchedOp::GridAllow => {}
                },
                Op::Check { cond, .. } | Op::Claim { cond, .. } => used.push(*cond),
                Op::IndexValue { index, .. } | Op::IxVarNew { init: index, .. } | Op::IxVarSet { index, .. } => {
                    ix(&[*index], &mut used);
                }
                Op::Unary { x, .. } | Op::Cast { x, .. } | Op::Bits { x, .. } => used.push(*x),
                Op::Binary { a, b, .. } | Op::Compare { a, b, .. } => used.extend([*a, *b]),
                Op::Fma { a, b, c, .. } => used.extend([*a, *b, *c]),
                Op::CompareIndex { a, b, .. } => ix(&[*a, *b], &mut used),
                Op::Select { cond, a, b, .. } => used.extend([*cond, *a, *b]),
                Op::ClampIndex { value, lo, hi, .. } => {
                    used.push(*value);
                    ix(&[*lo, *hi], &mut used);
                }
                Op::VarNew { init: v, .. } | Op::VarSet { value: v, .. } | Op::Fill { value: v, .. } => used.push(*v),
                Op::Load { index, .. } => ix(index, &mut used),
                Op::LoadOr { index, other, .. } => {
                    ix(index, &mut used);
                    used.push(*other);
                }
                Op::Store { index, value, .. } | Op::Atomic { index, value, .. } => {
                    ix(index, &mut used);
                    used.push(*value);
                }
                Op::Spread { lo, hi, .. } | Op::For { lo, hi, .. } => ix(&[*lo, *hi], &mut used),
                Op::ReduceRegion { value, body, .. } => nested.push((*value, *body)),
                Op::Gemm { scales, .. } => nested.extend(scales.iter().flatten().map(|s| (s.value, s.body))),
                Op::FindFirst { cond, body, .. } => nested.push((*cond, *body)),
                Op::If { cond, then, els, results } => {
                    used.push(*cond);
                    for r in results {
                        match r {
                            IfResult::Value { then: t, els: e, .. } => nested.extend([(*t, *then), (*e, *els)]),
                            IfResult::Index { then: t, els: e, .. } => {
                                let mut inner = vec![];
                                ix(&[*t], &mut inner);
                                nested.extend(inner.drain(..).map(|v| (v, *then)));
                                ix(&[*e], &mut inner);
                                nested.extend(inner.into_iter().map(|v| (v, *els)));
                            }
                        }
                    }
                }
            }
            // A view's guards and offset may hold data too; those values always get a name.
            for v in used {
                let e = map.entry(v).or_insert((0, BlockId(b as u32)));
                *e = (e.0 + 1, BlockId(b as u32));
            }
            for (v, block) in nested {
                let e = map.entry(v).or_insert((0, block));
                *e = (e.0 + 1, block);
            }
        }
    }
    let mut views = vec![];
    for v in &k.views {
        for &i in v.extents.iter().chain(&v.strides).chain([&v.offset]) {
            index_values(k, i, &mut views);
        }
        for &(a, b) in &v.guards {
            index_values(k, a, &mut views);
            index_values(k, b, &mut views);
        }
    }
    for v in views {
        map.entry(v).or_insert((2, BlockId(0))).0 += 2;
    }
    map
}

impl Emitter<'_> {
    /// Prints the ops of a block.
    pub fn block(&mut self, block: BlockId) {
        let outer = std::mem::replace(&mut self.block, block);
        for &id in &self.k.block(block).ops.clone() {
            self.op(id);
        }
        self.block = outer;
    }

    /// Makes a pure expression available as `result`: in place if it is used once, nearby, and short.
    fn define(&mut self, result: ValueId, x: Text, repeatable: bool) {
        let Some(&(count, at)) = self.uses.get(&result) else { return };
        let here = count == 1 && at == self.block && x.s.len() <= INLINE;
        if here || (repeatable && x.s.len() <= 24) {
            self.values.insert(result, x);
            return;
        }
        self.declare_value(result, "t", &x);
    }

    fn declare_value(&mut self, result: ValueId, wish: &str, x: &Text) {
        let name = self.names.declare(wish);
        let ty = register_type(self.value_type(result));
        self.line(format!("const {ty} {name} = {};", x.s));
        self.values.insert(result, Text::name(name));
    }

    pub fn op(&mut self, id: OpId) {
        let k = self.k;
        let span = k.op(id).span;
        match &k.op(id).op {
            Op::Const { .. } => {}
            Op::IndexValue { result, index } => {
                let (x, d) = (self.ix(*index), self.value_type(*result));
                let plain = d == DType::I32 && !self.wide && !self.has_data(*index);
                let x = if plain { x } else { Text::cast(register_type(d), &x) };
                self.define(*result, x, false);
            }
            Op::Unary { result, op, x } => {
                let t = self.val(*x);
                let t = self.unary(self.value_type(*result), *op, t);
                self.define(*result, t, false);
            }
            Op::Binary { result, op, a, b } => {
                let (d, x, y) = (self.value_type(*result), self.val(*a), self.val(*b));
                let from_zero =
                    *op == crate::ir::BinaryOp::Sub && d.is_float() && self.k.literal(*a).is_some_and(|l| l.bits == 0);
                let t = if from_zero { self.zero_less(d, x, y) } else { self.binary(d, *op, x, y) };
                self.define(*result, t, false);
            }
            Op::Fma { result, a, b, c } => {
                let (x, y, z) = (self.val(*a), self.val(*b), self.val(*c));
                self.define(*result, Text::call("__fmaf_rn", &[&x, &y, &z]), false);
            }
            Op::Compare { result, op, a, b } => {
                let (x, y) = (self.val(*a), self.val(*b));
                let t = self.compare(self.value_type(*a), *op, x, y);
                self.define(*result, t, false);
            }
            Op::CompareIndex { result, op, a, b } => {
                let (x, y) = (self.ix(*a), self.ix(*b));
                self.define(*result, compare_text(*op, &x, &y), false);
            }
            Op::Select { result, cond, a, b } => {
                let (c, x, y) = (self.val(*cond), self.choice(*a), self.choice(*b));
                self.define(*result, Text::choose(&c, &x, &y), false);
            }
            Op::Cast { result, .. } if self.cast_is_collected(*result) => {}
            Op::Cast { result, x } => {
                let t = self.val(*x);
                let t = self.convert(self.value_type(*x), self.value_type(*result), t);
                self.define(*result, t, false);
            }
            Op::Bits { result, x } => {
                let t = self.val(*x);
                let t = self.reinterpret(self.value_type(*x), self.value_type(*result), t);
                self.define(*result, t, false);
            }
            Op::ClampIndex { var, value, lo, hi } => {
                self.need(Snippet::MinMax);
                let d = self.value_type(*value);
                let ty = self.index_type();
                let by = if matches!(d, DType::U32 | DType::I64) || self.wide { "i64" } else { "int" };
                let (x, l, h) = (self.val(*value), self.ix(*lo), self.ix(*hi));
                // An unsigned number has no smaller one than 0.
                if d == DType::U32
                    && l.is_zero()
                    && !self.wide
                    && self.ranges.never_below_zero(*hi)
                    && !self.has_data(*hi)
                {
                    let t = Text::call("min_of<u32>", &[&x, &Text::cast("u32", &h)]);
                    self.declare_ix(*var, &Text::cast(ty, &t));
                    return;
                }
                let inner = Text::call(&format!("max_of<{by}>"), &[&x, &l]);
                let mut t = Text::call(&format!("min_of<{by}>"), &[&inner, &h]);
                if by != ty {
                    t = Text::cast(ty, &t);
                }
                self.declare_ix(*var, &t);
            }

            Op::VarNew { var, init } => {
                let b = k.buffer(*var);
                let x = self.val(*init);
                let name = self.names.declare(&b.name);
                self.line(format!("{} {name} = {};", register_type(b.dtype), x.s));
                self.buffers.insert(*var, name);
            }
            Op::VarGet { result, var } => {
                if self.uses.contains_key(result) {
                    let name = self.buffer(*var);
                    self.declare_value(*result, &format!("{name}_now"), &Text::name(name.clone()));
                }
            }
            Op::VarSet { var, value } => {
                let (name, x) = (self.buffer(*var), self.val(*value));
                self.line(format!("{name} = {};", x.s));
            }
            Op::IxVarNew { var, init } => {
                let x = self.ix(*init);
                let name = self.names.declare(&k.buffer(*var).name);
                self.line(format!("{} {name} = {};", self.index_type(), x.s));
                self.buffers.insert(*var, name);
            }
            Op::IxVarGet { result, var } => {
                let name = self.buffer(*var);
                self.declare_ix(*result, &Text::name(name));
            }
            Op::IxVarSet { var, index } => {
                let (name, x) = (self.buffer(*var), self.ix(*index));
                self.line(format!("{name} = {};", x.s));
            }

            Op::Load { result, view, index } => {
                if !self.uses.contains_key(result) {
                    return;
                }
                let (x, repeatable) = self.element_load(id, *view, index);
                if repeatable {
                    self.values.insert(*result, x);
                } else {
                    let wish = format!("{}_i", self.base_name(*view));
                    self.declare_value(*result, &wish, &x);
                }
            }
            Op::LoadOr { result, view, index, other } => {
                let x = self.load(id, *view, index, Some(*other));
                let wish = format!("{}_i", self.base_name(*view));
                self.declare_value(*result, &wish, &x);
            }
            Op::Store { view, index, value, .. } => {
                if self.collect(id, *value) {
                    return;
                }
                let narrow = self.register_tile(*view).filter(|t| self.narrow.contains(t));
                let stored = narrow.and_then(|_| super::access::widened(k, *value)).unwrap_or(*value);
                let mut x = self.val(stored);
                if self.register_tile(*view).is_none() && self.value_type(*value) == DType::Bool {
                    x = Text::cast("u8", &x);
                }
                self.store(id, *view, index, &x);
            }
            Op::Atomic { result, op, view, index, value } => self.atomic(id, *result, *op, *view, index, *value),

            Op::Alloc { buffer } => self.alloc(*buffer),
            Op::Fill { dst, value } => match self.register_tile(*dst) {
                Some(tile) => self.fill_registers(tile, *value),
                None => self.unsupported(id, "an unexpanded fill", "run the passes first"),
            },
            Op::Copy { .. } => self.unsupported(id, "an unexpanded copy", "run the passes first"),
            Op::Parallel { vars, extents, body, distribution } => {
                self.comment(span, &format!("parallel {extents:?}"));
                let Some(d) = distribution.clone() else {
                    self.unsupported(id, "a loop without a distribution", "run the passes first");
                    return;
                };
                let l = ElementLoop { vars, extents, body: *body, distribution: d, redundant: false, fold: None };
                self.element_loop(&l);
            }
            Op::Claim { .. } => self.unsupported(id, "a `claim` on its own", "run the passes first"),
            Op::Spread { var, lo, hi, body } if crate::pass::place::claims(k, &k.op(id).op) => {
                self.comment(span, "spread, numbered");
                self.claim(*var, *lo, *hi, *body);
            }
            Op::Spread { var, lo, hi, body } => {
                self.comment(span, "spread");
                let (l, h) = (self.ix(*lo), self.ix(*hi));
                let tid = self.tid();
                let ty = self.index_type();
                let mut e = Element::plain(
                    vec![*var],
                    defined_inside(k, *body),
                    self.out.len(),
                    self.names.depth(),
                    self.depth,
                );
                e.extents = vec![1];
                self.element = Some(e);
                let start = Text::add(&l, &Text::name(tid));
                let threads = self.threads();
                let head = |n: &str| format!("for ({ty} {n} = {}; {n} < {}; {n} += {threads})", start.s, h.s);
                let name = self.open_with(&k.ix_var(*var).name, head);
                self.index.insert(*var, name);
                self.block(*body);
                self.close();
                self.element = None;
            }
            Op::Reduce { op, src, dst, axis, order } => {
                self.comment(span, &format!("reduce_{} along axis {axis}", op.name()));
                self.reduce(id, *op, *src, *dst, *axis, *order);
            }
            Op::ReduceRegion { op, vars, extents, body, value, result, order } => {
                self.comment(span, &format!("{} over {extents:?}", op.name()));
                self.reduce_region(id, *op, vars, extents, *body, *value, *result, *order);
            }
            Op::Scan { op, kind, src, dst, axis, total } => {
                self.comment(span, &format!("scan {} along axis {axis}", kind.name()));
                self.scan(id, *op, *kind, *src, *dst, *axis, *total);
            }
            Op::FindFirst { var, extent, body, cond, result } => {
                self.comment(span, &format!("first of {extent}"));
                self.find_first(*var, *extent, *body, *cond, *result);
            }

            Op::Gemm { a, b, acc, set, scales } => {
                let sizes = [*a, *b].map(|v| k.const_extents(v).unwrap_or_default());
                let verb = if *set { "=" } else { "+=" };
                let unit = crate::pass::matrix::unit(k, &self.ranges, *a, *b);
                let by = format!("{} x {}", k.view(*a).dtype, k.view(*b).dtype);
                self.comment(span, &format!("gemm {verb} {:?} x {:?}, {by}, {}", sizes[0], sizes[1], unit.name()));
                let rearranged =
                    |v: ViewId| self.layout(v).is_some_and(|(_, m)| m.swizzle.is_some() || m.panel.is_some());
                if rearranged(*a) || rearranged(*b) {
                    self.unsupported(id, "a warp's product of swizzled tiles", "let a warp group multiply them");
                    return;
                }
                self.gemm(*a, *b, *acc, *set, *scales);
            }
            Op::For { var, lo, hi, body, stages } => {
                if *stages > 1
                    && self.element.is_none()
                    && let Some(ahead) = crate::pass::pipeline::ahead(k, *body)
                {
                    self.pipelined(span, *var, [*lo, *hi], *body, *stages, &ahead);
                    return;
                }
                if self.element.is_none() {
                    self.comment(span, "loop");
                }
                let (l, h) = (self.ix(*lo), self.ix(*hi));
                let ty = self.index_type();
                let head = |n: &str| format!("for ({ty} {n} = {}; {n} < {}; ++{n})", l.s, h.s);
                if self.role.is_some() && self.element.is_none() {
                    let count = k.unroll.get(var).copied().unwrap_or(1);
                    self.line(format!("#pragma unroll {count}"));
                }
                let name = self.open_with(&k.ix_var(*var).name, head);
                self.index.insert(*var, name);
                self.block(*body);
                self.close();
            }
            Op::Loop { body } => {
                if self.element.is_none() {
                    self.comment(span, "loop");
                }
                self.open("for (;;)");
                self.block(*body);
                self.close();
            }
            Op::Break => self.line("break;"),
            Op::Continue => self.line("continue;"),
            Op::If { cond, then, els, results } => self.branch(*cond, *then, *els, results),
            Op::Check { cond, message } => {
                self.need(Snippet::Check);
                let c = self.val(*cond);
                self.line(format!("if (!({})) check_failed();  // {}", c.s, message.replace(['\n', '\\'], " ")));
            }
            Op::GridBarrier => {
                self.need(Snippet::Grid);
                self.comment(span, "grid barrier");
                self.line("grid_sync(grid_arrivals);");
            }
            Op::BlockBarrier { reason } => self.role_barrier(reason),
            Op::Sched(op) => self.sched(id, op),
        }
    }

    pub fn declare_ix(&mut self, var: crate::ir::IxVarId, x: &Text) {
        let name = self.names.declare(&self.k.ix_var(var).name.clone());
        let ty = self.index_type();
        self.line(format!("const {ty} {name} = {};", x.s));
        self.index.insert(var, Text::name(name));
    }

    fn branch(&mut self, cond: ValueId, then: BlockId, els: BlockId, results: &[IfResult]) {
        let c = self.val(cond);
        let mut names = vec![];
        for r in results {
            let (wish, ty) = match r {
                IfResult::Value { result, .. } => ("t".to_string(), register_type(self.value_type(*result))),
                IfResult::Index { result, .. } => (self.k.ix_var(*result).name.clone(), self.index_type()),
            };
            let name = self.names.declare(&wish);
            self.line(format!("{ty} {name};"));
            names.push(name);
        }
        self.open(&format!("if ({})", c.s));
        self.arm(then, results, &names, true);
        if !self.k.block(els).ops.is_empty() || !results.is_empty() {
            self.names.leave();
            self.depth -= 1;
            self.line("} else {");
            self.depth += 1;
            self.names.enter();
            self.arm(els, results, &names, false);
        }
        self.close();
        for (r, name) in results.iter().zip(names) {
            match r {
                IfResult::Value { result, .. } => drop(self.values.insert(*result, Text::name(name))),
                IfResult::Index { result, .. } => drop(self.index.insert(*result, Text::name(name))),
            }
        }
    }

    fn arm(&mut self, block: BlockId, results: &[IfResult], names: &[String], first: bool) {
        self.block(block);
        for (r, name) in results.iter().zip(names) {
            let x = match r {
                IfResult::Value { then, els, .. } => self.choice(if first { *then } else { *els }),
                IfResult::Index { then, els, .. } => self.ix(if first { *then } else { *els }),
            };
            self.line(format!("{name} = {};", x.s));
        }
    }

    pub fn alloc(&mut self, buffer: crate::ir::BufferId) {
        let b = self.k.buffer(buffer);
        if self.buffers.contains_key(&buffer) {
            return;
        }
        if b.name == SCRATCH {
            self.scratch = Some(buffer);
        }
        let name = self.names.declare(&b.name);
        match (&b.distribution, &b.memory) {
            (Some(d), _) if b.space == Space::Frag => {
                let registers = d.registers(&b.extents).max(1);
                let dtype = if self.narrow.contains(&buffer) { DType::Bf16 } else { b.dtype };
                self.line(format!("{} {name}[{registers}];", register_type(dtype)));
            }
            (_, Some(m)) => {
                let ty = memory_type(b.dtype);
                let at = Text::offset("shared", &Text::number(m.offset_bytes as i64));
                let at = if at == "shared" { at } else { format!("({at})") };
                self.line(format!("{ty}* const {name} = ({ty}*){at};"));
            }
            (_, None) => {}
        }
        self.buffers.insert(buffer, name);
    }

    fn fill_registers(&mut self, tile: crate::ir::BufferId, value: ValueId) {
        self.ensure(tile);
        let (name, x) = (self.buffer(tile), self.val(value));
        let b = self.k.buffer(tile);
        let count = b.distribution.as_ref().map_or(1, |d| d.registers(&b.extents).max(1));
        self.line("#pragma unroll");
        self.line(format!("for (int i = 0; i < {count}; ++i) {name}[i] = {};", x.s));
    }

    /// Declares the destination of a collective if nothing allocated it.
    pub fn ensure(&mut self, buffer: crate::ir::BufferId) {
        if !self.buffers.contains_key(&buffer) {
            self.alloc(buffer);
        }
    }

    fn atomic(
        &mut self,
        id: OpId,
        result: Option<ValueId>,
        op: AtomicOp,
        view: ViewId,
        index: &[IxId],
        value: ValueId,
    ) {
        let f = match op {
            AtomicOp::Add => "atomicAdd",
            AtomicOp::Max => "atomicMax",
            AtomicOp::Min => "atomicMin",
            AtomicOp::Or => "atomicOr",
        };
        let x = self.val(value);
        let place = self.place(view, index);
        let call = format!("{f}(&{}, {})", Text::element(&place.base, &place.index).s, x.s);
        let condition = self.bounds(id, view, index);
        let result = result.filter(|r| self.uses.contains_key(r));
        let Some(r) = result else {
            self.guarded(condition, &format!("{call};"));
            return;
        };
        if self.element.as_ref().is_some_and(|e| e.owner.is_some()) {
            self.unsupported(id, "the old value of an atomic in a loop over reduced elements", "use a separate loop");
            return;
        }
        let ty = register_type(self.value_type(r));
        if let (None, Some(s)) = (&self.element, self.scratch.take()) {
            let partials = self.buffer(s);
            self.guarded(None, &format!("{partials}[0] = 0;"));
            self.guarded(condition, &format!("{partials}[0] = {call};"));
            self.line("__syncthreads();  // the old value goes to all threads");
            self.declare_value(r, "old", &Text::name(format!("{partials}[0]")));
            return;
        }
        let name = self.names.declare("old");
        let text = match condition {
            Some(c) => format!("const {ty} {name} = {} ? {call} : 0;", c.s),
            None => format!("const {ty} {name} = {call};"),
        };
        self.line(text);
        self.values.insert(r, Text::name(name));
    }

    /// `acc op x` in the accumulator's type.
    pub fn fold(&mut self, op: ReduceOp, d: DType, acc: &str, x: &Text) -> String {
        let a = Text::name(acc);
        match op {
            ReduceOp::Sum if d == DType::F32 => format!("{acc} = {acc} + {};", x.addend()),
            ReduceOp::Sum => format!("{acc} = {}::apply({acc}, {});", self.functor(op, d), x.s),
            ReduceOp::AbsMax if d.is_float() => format!("{acc} = fmaxf({acc}, fabsf({}));", x.s),
            ReduceOp::Max if d.is_float() => format!("{acc} = fmaxf({acc}, {});", x.s),
            ReduceOp::Min if d.is_float() => format!("{acc} = fminf({acc}, {});", x.s),
            ReduceOp::AbsMax => {
                let m = self.unary(d, crate::ir::UnaryOp::Abs, x.clone());
                format!("{acc} = {}::apply({acc}, {});", self.functor(op, d), m.s)
            }
            ReduceOp::Max | ReduceOp::Min => format!("{acc} = {}::apply({acc}, {});", self.functor(op, d), x.s),
            ReduceOp::And => {
                let t = self.binary(d, crate::ir::BinaryOp::And, a, x.clone());
                format!("{acc} = {};", t.s)
            }
            ReduceOp::Or => {
                let t = self.binary(d, crate::ir::BinaryOp::Or, a, x.clone());
                format!("{acc} = {};", t.s)
            }
        }
    }

    /// Prelude struct of a combining operation.
    pub fn functor(&mut self, op: ReduceOp, d: DType) -> &'static str {
        self.need(Snippet::Reduce);
        match (op, d) {
            (ReduceOp::Sum, DType::Bf16) => {
                self.need(Snippet::ReduceNarrow);
                "SumBf16"
            }
            (ReduceOp::Sum, DType::F16) => {
                self.need(Snippet::ReduceNarrow);
                "SumF16"
            }
            (ReduceOp::Sum, _) => "Sum",
            (ReduceOp::Max | ReduceOp::AbsMax, _) => "Max",
            (ReduceOp::Min, _) => "Min",
            (ReduceOp::And, _) => "And",
            (ReduceOp::Or, _) => "Or",
        }
    }
}
