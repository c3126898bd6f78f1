//! Copies of ops with fresh names, and with index variables, values, tiles and views replaced on the way.
//!
//! What roles are made of: each gets its own copy of the part of the plain program it does. Not a pass; it knows no
//! target. Everything a copied op defines (values, index variables, tiles it allocates) is new in the copy; what is
//! defined outside of what is copied stays as it is, unless the caller mapped it.

use super::{
    Base, Block, BlockId, BufferId, Gather, GemmScale, GroupRows, IfResult, IxExpr, IxId, IxVar, IxVarId, Kernel, Op,
    OpId, OpNode, Region, SchedOp, Value, ValueId, View, ViewId,
};
use std::collections::HashMap;

/// Maps of one copy.
#[derive(Debug)]
pub struct Cloner<'k> {
    /// The kernel copied in.
    pub k: &'k mut Kernel,
    /// Index variables to expressions.
    pub ix: HashMap<IxVarId, IxId>,
    /// Values to values.
    pub values: HashMap<ValueId, ValueId>,
    /// Tiles to tiles.
    pub buffers: HashMap<BufferId, BufferId>,
    /// Views to views, before anything else is asked.
    pub views: HashMap<ViewId, ViewId>,
}

impl<'k> Cloner<'k> {
    /// An empty map.
    pub fn new(k: &'k mut Kernel) -> Self {
        Cloner { k, ix: HashMap::new(), values: HashMap::new(), buffers: HashMap::new(), views: HashMap::new() }
    }

    /// The copy of an index expression, folded again.
    pub fn index(&mut self, id: IxId) -> IxId {
        match self.k.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) => id,
            IxExpr::Var(v) => self.ix.get(&v).copied().unwrap_or(id),
            IxExpr::Data(v) => match self.values.get(&v) {
                Some(&w) => self.k.intern(IxExpr::Data(w)),
                None => id,
            },
            IxExpr::Add(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_add(a, b)
            }
            IxExpr::Sub(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_sub(a, b)
            }
            IxExpr::Mul(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_mul(a, b)
            }
            IxExpr::Div(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_div(a, b)
            }
            IxExpr::Mod(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_mod(a, b)
            }
            IxExpr::Min(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_min(a, b)
            }
            IxExpr::Max(a, b) => {
                let (a, b) = (self.index(a), self.index(b));
                self.k.ix_max(a, b)
            }
        }
    }

    fn indices(&mut self, ids: &[IxId]) -> Vec<IxId> {
        ids.iter().map(|&i| self.index(i)).collect()
    }

    /// A value that is used.
    pub fn value(&self, v: ValueId) -> ValueId {
        self.values.get(&v).copied().unwrap_or(v)
    }

    fn buffer(&self, b: BufferId) -> BufferId {
        self.buffers.get(&b).copied().unwrap_or(b)
    }

    /// The copy of a view: the mapped one, or one with copied indices on the mapped tile.
    pub fn view(&mut self, id: ViewId) -> ViewId {
        if let Some(&v) = self.views.get(&id) {
            return v;
        }
        let old = self.k.view(id).clone();
        let new = View {
            base: match old.base {
                Base::Param(p) => Base::Param(p),
                Base::Buffer(b) => Base::Buffer(self.buffer(b)),
            },
            dtype: old.dtype,
            extents: self.indices(&old.extents),
            strides: self.indices(&old.strides),
            offset: self.index(old.offset),
            guards: old.guards.iter().map(|&(i, e)| (self.index(i), self.index(e))).collect(),
            gather: old.gather.map(|g| match g {
                Gather::Paged { table, page, pages, page_stride } => Gather::Paged {
                    table: self.view(table),
                    page,
                    pages: self.index(pages),
                    page_stride: self.index(page_stride),
                },
                Gather::Rows { rows, count } => Gather::Rows { rows: self.view(rows), count: self.index(count) },
            }),
            span: old.span,
        };
        if new == old {
            return id;
        }
        self.new_view(new)
    }

    /// Adds a view, or finds an equal one.
    pub fn new_view(&mut self, view: View) -> ViewId {
        if let Some(n) = self.k.views.iter().position(|v| *v == view) {
            return ViewId(n as u32);
        }
        self.k.views.push(view);
        ViewId(self.k.views.len() as u32 - 1)
    }

    fn region(&mut self, r: &Region) -> Region {
        Region { view: self.view(r.view), start: self.indices(&r.start) }
    }

    /// A new value in place of one that is defined.
    pub fn define(&mut self, v: ValueId) -> ValueId {
        let old = self.k.value(v).clone();
        self.k.values.push(Value { def: None, ..old });
        let new = ValueId(self.k.values.len() as u32 - 1);
        self.values.insert(v, new);
        new
    }

    /// A new index variable in place of one that is defined, with copied bounds.
    pub fn define_ix(&mut self, v: IxVarId) -> IxVarId {
        let old = self.k.ix_var(v).clone();
        let (lo, hi) = (old.lo.map(|x| self.index(x)), old.hi.map(|x| self.index(x)));
        let new = self.new_ix_var(IxVar { lo, hi, ..old });
        let e = self.k.intern(IxExpr::Var(new));
        self.ix.insert(v, e);
        new
    }

    /// Adds an index variable.
    pub fn new_ix_var(&mut self, var: IxVar) -> IxVarId {
        self.k.ix_vars.push(var);
        IxVarId(self.k.ix_vars.len() as u32 - 1)
    }

    /// The index that is this variable.
    pub fn var(&mut self, v: IxVarId) -> IxId {
        self.k.intern(IxExpr::Var(v))
    }

    fn define_buffer(&mut self, b: BufferId) -> BufferId {
        if let Some(&n) = self.buffers.get(&b) {
            return n;
        }
        let old = self.k.buffer(b).clone();
        self.k.buffers.push(old);
        let new = BufferId(self.k.buffers.len() as u32 - 1);
        self.buffers.insert(b, new);
        new
    }

    /// Adds an op at the position of `like`, as the definition of the values it defines.
    pub fn push(&mut self, op: Op, like: OpId) -> OpId {
        let span = self.k.op(like).span;
        let id = OpId(self.k.ops.len() as u32);
        for v in super::effects::uses(&op).defines {
            self.k.values[v.0 as usize].def = Some(id);
        }
        self.k.ops.push(OpNode { op, span });
        id
    }

    /// Adds a block.
    pub fn new_block(&mut self, ops: Vec<OpId>) -> BlockId {
        self.k.blocks.push(Block { ops });
        BlockId(self.k.blocks.len() as u32 - 1)
    }

    /// The copy of a block.
    pub fn block(&mut self, b: BlockId) -> BlockId {
        let ops: Vec<OpId> = self.k.block(b).ops.clone().into_iter().map(|id| self.op(id)).collect();
        self.new_block(ops)
    }

    /// The copy of one factor.
    pub fn scale(&mut self, s: &GemmScale) -> GemmScale {
        let var = self.define_ix(s.var);
        let body = self.block(s.body);
        GemmScale { var, body, value: self.value(s.value) }
    }

    fn scales(&mut self, scales: &Option<[GemmScale; 2]>) -> Option<[GemmScale; 2]> {
        scales.map(|[row, column]| [self.scale(&row), self.scale(&column)])
    }

    /// The copy of an op and its bodies.
    pub fn op(&mut self, id: OpId) -> OpId {
        let op = self.k.op(id).op.clone();
        let new = match op {
            Op::Const { result, value } => Op::Const { result: self.define(result), value },
            Op::IndexValue { result, index } => {
                let index = self.index(index);
                Op::IndexValue { result: self.define(result), index }
            }
            Op::Unary { result, op, x } => {
                let x = self.value(x);
                Op::Unary { result: self.define(result), op, x }
            }
            Op::Binary { result, op, a, b } => {
                let (a, b) = (self.value(a), self.value(b));
                Op::Binary { result: self.define(result), op, a, b }
            }
            Op::Fma { result, a, b, c } => {
                let (a, b, c) = (self.value(a), self.value(b), self.value(c));
                Op::Fma { result: self.define(result), a, b, c }
            }
            Op::Compare { result, op, a, b } => {
                let (a, b) = (self.value(a), self.value(b));
                Op::Compare { result: self.define(result), op, a, b }
            }
            Op::CompareIndex { result, op, a, b } => {
                let (a, b) = (self.index(a), self.index(b));
                Op::CompareIndex { result: self.define(result), op, a, b }
            }
            Op::Select { result, cond, a, b } => {
                let (cond, a, b) = (self.value(cond), self.value(a), self.value(b));
                Op::Select { result: self.define(result), cond, a, b }
            }
            Op::Cast { result, x } => {
                let x = self.value(x);
                Op::Cast { result: self.define(result), x }
            }
            Op::Bits { result, x } => {
                let x = self.value(x);
                Op::Bits { result: self.define(result), x }
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let (value, lo, hi) = (self.value(value), self.index(lo), self.index(hi));
                Op::ClampIndex { var: self.define_ix(var), value, lo, hi }
            }
            Op::VarNew { var, init } => {
                let init = self.value(init);
                Op::VarNew { var: self.define_buffer(var), init }
            }
            Op::VarGet { result, var } => {
                let var = self.buffer(var);
                Op::VarGet { result: self.define(result), var }
            }
            Op::VarSet { var, value } => Op::VarSet { var: self.buffer(var), value: self.value(value) },
            Op::IxVarNew { var, init } => {
                let init = self.index(init);
                Op::IxVarNew { var: self.define_buffer(var), init }
            }
            Op::IxVarGet { result, var } => {
                let var = self.buffer(var);
                Op::IxVarGet { result: self.define_ix(result), var }
            }
            Op::IxVarSet { var, index } => Op::IxVarSet { var: self.buffer(var), index: self.index(index) },
            Op::Load { result, view, index } => {
                let (view, index) = (self.view(view), self.indices(&index));
                Op::Load { result: self.define(result), view, index }
            }
            Op::LoadOr { result, view, index, other } => {
                let (view, index, other) = (self.view(view), self.indices(&index), self.value(other));
                Op::LoadOr { result: self.define(result), view, index, other }
            }
            Op::Store { view, index, value, checked } => {
                Op::Store { view: self.view(view), index: self.indices(&index), value: self.value(value), checked }
            }
            Op::Atomic { result, op, view, index, value } => {
                let (view, index, value) = (self.view(view), self.indices(&index), self.value(value));
                Op::Atomic { result: result.map(|r| self.define(r)), op, view, index, value }
            }
            Op::Claim { result, var, cond } => {
                let (var, cond) = (self.buffer(var), self.value(cond));
                Op::Claim { result: self.define(result), var, cond }
            }
            Op::Alloc { buffer } => Op::Alloc { buffer: self.define_buffer(buffer) },
            Op::Fill { dst, value } => Op::Fill { dst: self.view(dst), value: self.value(value) },
            Op::Copy { src, dst, extents } => Op::Copy { src: self.region(&src), dst: self.region(&dst), extents },
            Op::Parallel { vars, extents, body, distribution } => {
                let vars = vars.into_iter().map(|v| self.define_ix(v)).collect();
                Op::Parallel { vars, extents, body: self.block(body), distribution }
            }
            Op::Spread { var, lo, hi, body } => {
                let (lo, hi) = (self.index(lo), self.index(hi));
                let var = self.define_ix(var);
                Op::Spread { var, lo, hi, body: self.block(body) }
            }
            Op::Reduce { op, src, dst, axis, order } => {
                Op::Reduce { op, src: self.view(src), dst: self.buffer(dst), axis, order }
            }
            Op::ReduceRegion { op, vars, extents, body, value, result, order } => {
                let vars = vars.into_iter().map(|v| self.define_ix(v)).collect();
                let body = self.block(body);
                let value = self.value(value);
                Op::ReduceRegion { op, vars, extents, body, value, result: self.define(result), order }
            }
            Op::Scan { op, kind, src, dst, axis, total } => {
                let (src, dst) = (self.view(src), self.buffer(dst));
                Op::Scan { op, kind, src, dst, axis, total: total.map(|t| self.define(t)) }
            }
            Op::FindFirst { var, extent, body, cond, result } => {
                let var = self.define_ix(var);
                let body = self.block(body);
                let cond = self.value(cond);
                Op::FindFirst { var, extent, body, cond, result: self.define_ix(result) }
            }
            Op::Gemm { a, b, acc, set, scales } => {
                Op::Gemm { a: self.view(a), b: self.view(b), acc: self.buffer(acc), set, scales: self.scales(&scales) }
            }
            Op::For { var, lo, hi, body, stages } => {
                let (lo, hi) = (self.index(lo), self.index(hi));
                let new = self.define_ix(var);
                if let Some(&n) = self.k.unroll.get(&var) {
                    self.k.unroll.insert(new, n);
                }
                Op::For { var: new, lo, hi, body: self.block(body), stages }
            }
            Op::Loop { body } => Op::Loop { body: self.block(body) },
            Op::Break => Op::Break,
            Op::Continue => Op::Continue,
            Op::If { cond, then, els, results } => {
                let cond = self.value(cond);
                let (then, els) = (self.block(then), self.block(els));
                let results = results
                    .into_iter()
                    .map(|r| match r {
                        IfResult::Value { result, then, els } => {
                            let (then, els) = (self.value(then), self.value(els));
                            IfResult::Value { result: self.define(result), then, els }
                        }
                        IfResult::Index { result, then, els } => {
                            let (then, els) = (self.index(then), self.index(els));
                            IfResult::Index { result: self.define_ix(result), then, els }
                        }
                    })
                    .collect();
                Op::If { cond, then, els, results }
            }
            Op::Check { cond, message } => Op::Check { cond: self.value(cond), message },
            Op::GridBarrier => Op::GridBarrier,
            Op::BlockBarrier { reason } => Op::BlockBarrier { reason },
            Op::Sched(op) => Op::Sched(self.sched(op)),
        };
        self.push(new, id)
    }

    fn sched(&mut self, op: SchedOp) -> SchedOp {
        match op {
            SchedOp::Roles { programs } => {
                SchedOp::Roles { programs: programs.into_iter().map(|(r, b)| (r, self.block(b))).collect() }
            }
            SchedOp::Tiles { vars, rows, body } => {
                let vars = vars.into_iter().map(|v| self.define_ix(v)).collect();
                let rows = rows.map(|r| GroupRows { counts: self.view(r.counts), tile: r.tile });
                SchedOp::Tiles { vars, rows, body: self.block(body) }
            }
            SchedOp::Acquire { ring, part, slot } => SchedOp::Acquire { ring, part, slot: self.define_ix(slot) },
            SchedOp::Take { ring, part, slot } => SchedOp::Take { ring, part, slot: self.define_ix(slot) },
            SchedOp::TmaLoad { map, at, src, dst, extents, ring, part, multicast, evict } => SchedOp::TmaLoad {
                map,
                at: self.indices(&at),
                src: self.region(&src),
                dst: self.region(&dst),
                extents,
                ring,
                part,
                multicast,
                evict,
            },
            SchedOp::TmaStore { map, at, src, dst, extents } => SchedOp::TmaStore {
                map,
                at: self.indices(&at),
                src: self.region(&src),
                dst: self.region(&dst),
                extents,
            },
            SchedOp::Wgmma { a, b, acc, set, scales, release, hold } => SchedOp::Wgmma {
                a: self.view(a),
                b: self.view(b),
                acc: self.buffer(acc),
                set,
                scales: self.scales(&scales),
                release,
                hold,
            },
            SchedOp::Combine { acc, inbox, turns } => {
                SchedOp::Combine { acc: self.buffer(acc), inbox: self.buffer(inbox), turns }
            }
            SchedOp::Publish { .. }
            | SchedOp::Release { .. }
            | SchedOp::Advance { .. }
            | SchedOp::TmaStoreWait { .. }
            | SchedOp::WgmmaWait { .. }
            | SchedOp::RoleBarrier { .. }
            | SchedOp::AsyncFence { .. }
            | SchedOp::ClusterBarrier { .. }
            | SchedOp::GridWait
            | SchedOp::GridAllow => op,
        }
    }
}
