//! `Builder`: the only way IR comes into being. One method an op; index arithmetic folds while it is built.
//!
//! It does not judge shapes or dtypes (the DSL's typed wrappers and `valid` do); it does keep scopes, spans and nesting.

use super::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Builds one kernel.
#[derive(Debug)]
pub struct Builder {
    /// The kernel so far.
    pub kernel: Kernel,
    stack: Vec<BlockId>,
    span_ids: HashMap<Span, SpanId>,
    here: SpanId,
}

impl Builder {
    /// Starts a kernel named `name`, declared at `span`.
    pub fn new(name: &str, span: Span) -> Self {
        let mut b = Builder {
            kernel: Kernel {
                name: name.into(),
                stage: Stage::Plain,
                dtypes: vec![],
                fixed_dims: vec![],
                params: vec![],
                syms: vec![],
                index: vec![],
                index_ids: HashMap::new(),
                ix_vars: vec![],
                values: vec![],
                buffers: vec![],
                views: vec![],
                ops: vec![],
                blocks: vec![Block::default()],
                body: BlockId(0),
                grid: vec![],
                block_ids: vec![],
                raster: None,
                warps: 4,
                requires: vec![],
                properties: Properties::default(),
                spans: vec![],
                span: SpanId(0),
                roles: vec![],
                rings: vec![],
                cluster: None,
                maps: vec![],
                unroll: Default::default(),
                shared_bytes: 0,
            },
            stack: vec![BlockId(0)],
            span_ids: HashMap::new(),
            here: SpanId(0),
        };
        b.at(span);
        b.kernel.span = b.here;
        b
    }

    /// Takes the finished kernel; `Err` with the number of open scopes if nesting is not closed.
    pub fn finish(self) -> Result<Kernel, usize> {
        if self.stack.len() == 1 { Ok(self.kernel) } else { Err(self.stack.len() - 1) }
    }

    /// Sets the position of everything built from now on.
    pub fn at(&mut self, span: Span) -> SpanId {
        let next = SpanId(self.kernel.spans.len() as u32);
        let id = *self.span_ids.entry(span.clone()).or_insert(next);
        if id == next {
            self.kernel.spans.push(span);
        }
        self.here = id;
        id
    }

    /// The current position.
    pub fn here(&self) -> SpanId {
        self.here
    }

    /// Number of open scopes, the kernel's body included.
    pub fn depth(&self) -> usize {
        self.stack.len()
    }

    // --- index expressions ---

    fn intern(&mut self, e: IxExpr) -> IxId {
        self.kernel.intern(e)
    }
    /// A constant index.
    pub fn ix_const(&mut self, c: i64) -> IxId {
        self.intern(IxExpr::Const(c))
    }
    /// A symbol as an index.
    pub fn ix_sym(&mut self, s: SymId) -> IxId {
        self.intern(IxExpr::Sym(s))
    }
    /// A variable as an index.
    pub fn ix_var(&mut self, v: IxVarId) -> IxId {
        self.intern(IxExpr::Var(v))
    }
    /// Data as an index, for checked accesses and comparisons only.
    pub fn ix_data(&mut self, v: ValueId) -> IxId {
        self.intern(IxExpr::Data(v))
    }
    /// `a + b`.
    pub fn ix_add(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_add(a, b)
    }
    /// `a - b`.
    pub fn ix_sub(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_sub(a, b)
    }
    /// `a * b`.
    pub fn ix_mul(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_mul(a, b)
    }
    /// `a / b` rounded down; `b` positive.
    pub fn ix_div(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_div(a, b)
    }
    /// `a mod b` in `0..b`; `b` positive.
    pub fn ix_mod(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_mod(a, b)
    }
    /// `(a + b - 1) / b`.
    pub fn ix_div_ceil(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_div_ceil(a, b)
    }
    /// Smaller of both.
    pub fn ix_min(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_min(a, b)
    }
    /// Larger of both.
    pub fn ix_max(&mut self, a: IxId, b: IxId) -> IxId {
        self.kernel.ix_max(a, b)
    }

    // --- declarations ---

    /// A launch-time symbol.
    pub fn sym(&mut self, sym: Sym) -> SymId {
        self.kernel.syms.push(sym);
        SymId(self.kernel.syms.len() as u32 - 1)
    }
    /// A parameter, in declaration order.
    pub fn param(&mut self, name: &str, kind: ParamKind) -> ParamId {
        self.kernel.params.push(Param { name: name.into(), kind, span: self.here });
        ParamId(self.kernel.params.len() as u32 - 1)
    }
    /// A new value that no op defines (a scalar parameter).
    pub fn free_value(&mut self, dtype: DType) -> ValueId {
        self.kernel.values.push(Value { dtype, def: None, span: self.here });
        ValueId(self.kernel.values.len() as u32 - 1)
    }
    /// An index variable.
    pub fn new_ix_var(&mut self, name: &str, kind: IxVarKind, lo: Option<IxId>, hi: Option<IxId>) -> IxVarId {
        self.kernel.ix_vars.push(IxVar { name: name.into(), kind, lo, hi, span: self.here });
        IxVarId(self.kernel.ix_vars.len() as u32 - 1)
    }
    /// A buffer, without an `Alloc` op.
    pub fn new_buffer(&mut self, name: &str, dtype: DType, extents: &[usize], space: Space, index: bool) -> BufferId {
        self.kernel.buffers.push(Buffer {
            name: name.into(),
            dtype,
            index,
            extents: extents.to_vec(),
            space,
            distribution: None,
            memory: None,
            role: None,
            span: self.here,
        });
        BufferId(self.kernel.buffers.len() as u32 - 1)
    }
    /// A view.
    pub fn view(&mut self, view: View) -> ViewId {
        self.kernel.views.push(view);
        ViewId(self.kernel.views.len() as u32 - 1)
    }
    /// The whole of a tensor parameter as a view.
    pub fn param_view(&mut self, param: ParamId) -> ViewId {
        let (dtype, extents, strides) = match &self.kernel.param(param).kind {
            ParamKind::Tensor { dtype, extents, strides, .. } => (*dtype, extents.clone(), strides.clone()),
            ParamKind::Scalar { dtype, .. } => (*dtype, vec![], vec![]),
            ParamKind::Absent => (DType::U8, vec![], vec![]),
        };
        let offset = self.ix_const(0);
        self.view(View {
            base: Base::Param(param),
            dtype,
            extents,
            strides,
            offset,
            guards: vec![],
            gather: None,
            span: self.here,
        })
    }
    /// The whole of a tile as a row-major view.
    pub fn buffer_view(&mut self, buffer: BufferId) -> ViewId {
        let (dtype, shape) = (self.kernel.buffer(buffer).dtype, self.kernel.buffer(buffer).extents.clone());
        let extents = shape.iter().map(|&e| self.ix_const(e as i64)).collect();
        let strides = row_major(&shape).into_iter().map(|s| self.ix_const(s as i64)).collect();
        let offset = self.ix_const(0);
        self.view(View {
            base: Base::Buffer(buffer),
            dtype,
            extents,
            strides,
            offset,
            guards: vec![],
            gather: None,
            span: self.here,
        })
    }
    /// Declares the grid and returns its block indices.
    pub fn grid(&mut self, extents: &[IxId]) -> Vec<IxVarId> {
        let zero = self.ix_const(0);
        let one = self.ix_const(1);
        self.kernel.grid = extents.to_vec();
        let names = ["bx", "by", "bz"];
        let ids: Vec<_> = extents
            .iter()
            .enumerate()
            .map(|(axis, &e)| {
                let hi = self.ix_sub(e, one);
                self.new_ix_var(names[axis.min(2)], IxVarKind::Block(axis as u8), Some(zero), Some(hi))
            })
            .collect();
        self.kernel.block_ids = ids.clone();
        ids
    }

    // --- ops ---

    /// Appends an op to the innermost open block.
    pub fn push(&mut self, op: Op) -> OpId {
        let id = OpId(self.kernel.ops.len() as u32);
        self.kernel.ops.push(OpNode { op, span: self.here });
        let block = self.stack[self.stack.len() - 1];
        self.kernel.blocks[block.0 as usize].ops.push(id);
        id
    }
    /// Appends an op that defines one scalar of type `dtype`.
    pub fn push_value(&mut self, dtype: DType, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let v = self.free_value(dtype);
        let id = self.push(op(v));
        self.kernel.values[v.0 as usize].def = Some(id);
        v
    }
    /// A constant.
    pub fn constant(&mut self, value: Literal) -> ValueId {
        self.push_value(value.dtype, |result| Op::Const { result, value })
    }
    /// Opens a nested block; ops go there until [`Builder::close`].
    pub fn open(&mut self) -> BlockId {
        self.kernel.blocks.push(Block::default());
        let id = BlockId(self.kernel.blocks.len() as u32 - 1);
        self.stack.push(id);
        id
    }
    /// Closes the innermost nested block.
    pub fn close(&mut self) -> Option<BlockId> {
        if self.stack.len() > 1 { self.stack.pop() } else { None }
    }
}

/// Row-major strides of a shape.
pub fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * shape[i + 1];
    }
    strides
}

/// Index arithmetic, also for passes.
impl Kernel {
    /// Interns an expression as it is.
    pub fn intern(&mut self, e: IxExpr) -> IxId {
        let next = IxId(self.index.len() as u32);
        let id = *self.index_ids.entry(e).or_insert(next);
        if id == next {
            self.index.push(e);
        }
        id
    }
    /// A constant.
    pub fn ix_const_id(&mut self, c: i64) -> IxId {
        self.intern(IxExpr::Const(c))
    }
    /// `a + b`, folded; constants move to the right.
    pub fn ix_add(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) => self.ix_const_id(x + y),
            (Some(0), None) => b,
            (None, Some(0)) => a,
            (Some(_), None) => self.ix_add(b, a),
            (None, Some(c)) => match self.ix_expr(a) {
                IxExpr::Add(x, y) if self.ix_const(y).is_some() => {
                    let s = self.ix_const(y).unwrap_or(0) + c;
                    let s = self.ix_const_id(s);
                    self.ix_add(x, s)
                }
                _ => self.intern(IxExpr::Add(a, b)),
            },
            (None, None) => self.intern(IxExpr::Add(a, b)),
        }
    }
    /// `a - b`, folded.
    pub fn ix_sub(&mut self, a: IxId, b: IxId) -> IxId {
        if a == b {
            return self.ix_const_id(0);
        }
        match self.ix_const(b) {
            Some(c) => {
                let n = self.ix_const_id(-c);
                self.ix_add(a, n)
            }
            None => self.intern(IxExpr::Sub(a, b)),
        }
    }
    /// `a * b`, folded; constants move to the right.
    pub fn ix_mul(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) => self.ix_const_id(x * y),
            (Some(_), None) => self.ix_mul(b, a),
            (None, Some(0)) => b,
            (None, Some(1)) => a,
            (None, Some(_)) | (None, None) => self.intern(IxExpr::Mul(a, b)),
        }
    }
    /// `a / b` rounded down, folded.
    pub fn ix_div(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) if y > 0 => self.ix_const_id(x.div_euclid(y)),
            (_, Some(1)) => a,
            _ => self.intern(IxExpr::Div(a, b)),
        }
    }
    /// `a mod b`, folded.
    pub fn ix_mod(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) if y > 0 => self.ix_const_id(x.rem_euclid(y)),
            (_, Some(1)) => self.ix_const_id(0),
            _ => self.intern(IxExpr::Mod(a, b)),
        }
    }
    /// `(a + b - 1) / b`, folded.
    pub fn ix_div_ceil(&mut self, a: IxId, b: IxId) -> IxId {
        if self.ix_const(b) == Some(1) {
            return a;
        }
        let one = self.ix_const_id(1);
        let up = self.ix_sub(b, one);
        let sum = self.ix_add(a, up);
        self.ix_div(sum, b)
    }
    /// Smaller of both, folded.
    pub fn ix_min(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) => self.ix_const_id(x.min(y)),
            _ if a == b => a,
            _ => self.intern(IxExpr::Min(a, b)),
        }
    }
    /// Larger of both, folded.
    pub fn ix_max(&mut self, a: IxId, b: IxId) -> IxId {
        match (self.ix_const(a), self.ix_const(b)) {
            (Some(x), Some(y)) => self.ix_const_id(x.max(y)),
            _ if a == b => a,
            _ => self.intern(IxExpr::Max(a, b)),
        }
    }
    /// Value of an index, given values of symbols and variables; `None` if one is missing, a division by a number that
    /// is not positive occurs, or i64 overflows.
    pub fn eval_ix(&self, id: IxId, leaf: &dyn Fn(IxExpr) -> Option<i64>) -> Option<i64> {
        let go = |x| self.eval_ix(x, leaf);
        match self.ix_expr(id) {
            IxExpr::Const(c) => Some(c),
            e @ (IxExpr::Sym(_) | IxExpr::Var(_) | IxExpr::Data(_)) => leaf(e),
            IxExpr::Add(a, b) => go(a)?.checked_add(go(b)?),
            IxExpr::Sub(a, b) => go(a)?.checked_sub(go(b)?),
            IxExpr::Mul(a, b) => go(a)?.checked_mul(go(b)?),
            IxExpr::Div(a, b) => go(b).filter(|&d| d > 0).and_then(|d| Some(go(a)?.div_euclid(d))),
            IxExpr::Mod(a, b) => go(b).filter(|&d| d > 0).and_then(|d| Some(go(a)?.rem_euclid(d))),
            IxExpr::Min(a, b) => Some(go(a)?.min(go(b)?)),
            IxExpr::Max(a, b) => Some(go(a)?.max(go(b)?)),
        }
    }
}

/// A shared string for span files.
pub fn file_name(s: &str) -> Arc<str> {
    s.into()
}
