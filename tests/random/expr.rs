//! Random scalar expressions, in an element body or at block level.

use super::build::Gen;
use kiln_codegen::formats;
use kiln_codegen::ir::*;

/// Types of data the programs use. Half bytes and scales have no arithmetic of their own.
pub const DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::E4m3,
    DType::E5m2,
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::Bool,
];

/// Where an expression stands.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Element indices of the body; empty at block level.
    pub ix: Vec<IxId>,
    /// Extents of the body.
    pub extents: Vec<usize>,
    /// A tile the body writes: only the element with exactly `ix` may be read.
    pub written: Option<BufferId>,
    /// More scalars that are visible here.
    pub values: Vec<ValueId>,
    /// Indices of loops around.
    pub loops: Vec<IxId>,
}

impl Gen<'_> {
    /// A type, floats and 32-bit integers first.
    pub fn dtype(&mut self) -> DType {
        const COMMON: [DType; 5] = [DType::F32, DType::I32, DType::U32, DType::Bf16, DType::F16];
        if self.chance(60) { COMMON[self.below(5)] } else { DTYPES[self.below(DTYPES.len())] }
    }

    /// A constant that is often a corner of its type.
    pub fn literal(&mut self, dtype: DType) -> Literal {
        let bits = match dtype {
            DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => {
                const CORNERS: [f64; 12] =
                    [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -1.5, 3.25, 1e-40, 65504.0, f64::INFINITY, f64::NAN];
                let x = CORNERS[self.below(CORNERS.len())];
                formats::encode_f64(dtype, x)
            }
            DType::Bool => self.below(2) as u64,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => {
                let bits = dtype.bits() as u32;
                let all = u64::MAX >> (64 - bits);
                let corners = [0, 1, 2, 3, 7, 31, 32, all, all - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1];
                corners[self.below(corners.len())] & all
            }
        };
        Literal { dtype, bits }
    }

    fn dtype_of(&self, v: ValueId) -> DType {
        self.b.kernel.value(v).dtype
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let dtype = self.dtype_of(a);
        self.b.push_value(dtype, |result| Op::Binary { result, op, a, b })
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let dtype = self.dtype_of(x);
        self.b.push_value(dtype, |result| Op::Unary { result, op, x })
    }

    pub fn load(&mut self, view: ViewId, index: &[IxId]) -> ValueId {
        let (dtype, index) = (self.b.kernel.view(view).dtype, index.to_vec());
        self.b.push_value(dtype, |result| Op::Load { result, view, index })
    }

    /// `x` as another type.
    pub fn convert(&mut self, x: ValueId, to: DType) -> ValueId {
        let from = self.dtype_of(x);
        if from == to {
            return x;
        }
        if to == DType::Bool {
            let zero = self.b.constant(Literal { dtype: from, bits: 0 });
            return self.b.push_value(to, |result| Op::Compare { result, op: CmpOp::Ne, a: x, b: zero });
        }
        self.b.push_value(to, |result| Op::Cast { result, x })
    }

    /// A value of this type: an element, a constant, an index, a scalar.
    fn leaf(&mut self, dtype: DType, at: &Place) -> ValueId {
        let found = match self.below(10) {
            0 | 1 => None,
            2 => self.some_index(at),
            3 => {
                let all: Vec<ValueId> = self.scalars.iter().chain(&at.values).copied().collect();
                self.pick(&all)
            }
            4 if !at.ix.is_empty() => self.global(at),
            _ => self.element(dtype, at),
        };
        match found {
            Some(v) => self.convert(v, dtype),
            None => {
                let c = self.literal(dtype);
                self.b.constant(c)
            }
        }
    }

    /// An index as data.
    fn some_index(&mut self, at: &Place) -> Option<ValueId> {
        let mut all = at.ix.clone();
        all.extend(&at.loops);
        all.extend([self.at, self.n]);
        let mut index = self.pick(&all)?;
        if self.chance(30) {
            let c = self.below(7) as i64 + 1;
            let c = self.b.ix_const(c);
            index = match self.below(4) {
                0 => self.b.ix_add(index, c),
                1 => self.b.ix_mul(index, c),
                2 => self.b.ix_div(index, c),
                _ => self.b.ix_mod(index, c),
            };
        }
        let dtype = [DType::I32, DType::U32, DType::I64][self.below(3)];
        Some(self.b.push_value(dtype, |result| Op::IndexValue { result, index }))
    }

    /// An element of an input tensor, by position or by data.
    fn global(&mut self, at: &Place) -> Option<ValueId> {
        let inputs = self.inputs.clone();
        let (view, rank) = self.pick(&inputs)?;
        let row = self.b.ix_add(self.at, at.ix[0]);
        let column = at.ix.get(1).copied().unwrap_or(self.b.ix_const(0));
        let mut index = [row, column][..rank].to_vec();
        if self.chance(50) {
            return Some(self.load(view, &index));
        }
        let number = self.expr(DType::I32, 1, at);
        let axis = self.below(rank);
        index[axis] = self.b.ix_data(number);
        let dtype = self.b.kernel.view(view).dtype;
        let other = self.literal(dtype);
        let other = self.b.constant(other);
        Some(self.b.push_value(dtype, |result| Op::LoadOr { result, view, index, other }))
    }

    /// An element of a tile: the same position, a broadcast, or a clamped position.
    fn element(&mut self, dtype: DType, at: &Place) -> Option<ValueId> {
        if at.ix.is_empty() {
            return None;
        }
        let fits = |extents: &[usize]| extents.iter().zip(&at.extents).all(|(t, b)| t >= b);
        let mut found: Vec<(ViewId, Vec<IxId>)> = vec![];
        for t in &self.tiles {
            if at.written == Some(t.buffer) {
                if t.extents == at.extents {
                    found.push((t.view, at.ix.clone()));
                }
                continue;
            }
            match t.extents.len() {
                n if n == at.ix.len() && fits(&t.extents) => found.push((t.view, at.ix.clone())),
                // A row or a column for all.
                1 if at.ix.len() == 2 => {
                    let axis = (0..2).find(|&a| t.extents[0] == at.extents[a]);
                    found.extend(axis.map(|a| (t.view, vec![at.ix[a]])));
                }
                _ => {}
            }
        }
        // The type that is wanted, if there is a choice.
        let same: Vec<_> = found.iter().filter(|f| self.b.kernel.view(f.0).dtype == dtype).cloned().collect();
        let found = if !same.is_empty() && self.chance(60) { same } else { found };
        if self.chance(10)
            && let others = self.tiles.iter().filter(|t| at.written != Some(t.buffer)).cloned().collect::<Vec<_>>()
            && let Some(t) = self.pick(&others)
        {
            let index = t.extents.iter().map(|&e| self.clamped(e, at)).collect::<Vec<_>>();
            return Some(self.load(t.view, &index));
        }
        let (view, index) = self.pick(&found)?;
        Some(self.load(view, &index))
    }

    /// Data as an index in `0..extent`.
    pub fn clamped(&mut self, extent: usize, at: &Place) -> IxId {
        let dtype = [DType::I32, DType::U32, DType::I64][self.below(3)];
        let value = self.expr(dtype, 1, at);
        let (lo, hi) = (self.b.ix_const(0), self.b.ix_const(extent as i64 - 1));
        let var = self.b.new_ix_var("c", IxVarKind::Data, Some(lo), Some(hi));
        self.b.push(Op::ClampIndex { var, value, lo, hi });
        self.b.ix_var(var)
    }

    /// A comparison.
    pub fn condition(&mut self, depth: usize, at: &Place) -> ValueId {
        const CMP: [CmpOp; 6] = [CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge, CmpOp::Eq, CmpOp::Ne];
        let op = CMP[self.below(6)];
        if self.chance(20)
            && let Some(&a) = at.ix.first()
        {
            let b = self.below(20) as i64;
            let b = self.b.ix_const(b);
            return self.b.push_value(DType::Bool, |result| Op::CompareIndex { result, op, a, b });
        }
        let d = self.dtype();
        let (a, b) = (self.expr(d, depth, at), self.expr(d, depth, at));
        self.b.push_value(DType::Bool, |result| Op::Compare { result, op, a, b })
    }

    /// An expression of this type with at most `depth` levels.
    pub fn expr(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        if depth == 0 || self.chance(15) {
            return self.leaf(dtype, at);
        }
        let d = depth - 1;
        match self.below(20) {
            0 | 1 => {
                let cond = self.condition(d, at);
                let (a, b) = (self.expr(dtype, d, at), self.expr(dtype, d, at));
                self.b.push_value(dtype, |result| Op::Select { result, cond, a, b })
            }
            2..=4 => {
                let from = self.dtype();
                let x = self.expr(from, d, at);
                self.convert(x, dtype)
            }
            5 if depth > 1 => self.branch(dtype, d, at),
            6 if depth > 1 && !at.ix.is_empty() => self.element_loop(dtype, d, at),
            7 => self.bits(dtype, d, at),
            8 | 9 if dtype == DType::F32 => {
                let (a, b, c) = (self.expr(dtype, d, at), self.expr(dtype, d, at), self.expr(dtype, d, at));
                self.b.push_value(dtype, |result| Op::Fma { result, a, b, c })
            }
            _ if dtype == DType::Bool => self.logic(d, at),
            _ if dtype.is_float() => self.float(dtype, d, at),
            _ => self.integer(dtype, d, at),
        }
    }

    fn logic(&mut self, depth: usize, at: &Place) -> ValueId {
        match self.below(6) {
            0 => {
                let x = self.expr(DType::Bool, depth, at);
                self.unary(UnaryOp::Not, x)
            }
            1 | 2 => {
                let (a, b) = (self.expr(DType::Bool, depth, at), self.expr(DType::Bool, depth, at));
                let op = [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor][self.below(3)];
                self.binary(op, a, b)
            }
            _ => self.condition(depth, at),
        }
    }

    fn float(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
        if self.chance(20) {
            const UNARY: [UnaryOp; 11] = [
                UnaryOp::Neg,
                UnaryOp::Abs,
                UnaryOp::Floor,
                UnaryOp::Ceil,
                UnaryOp::Sqrt,
                UnaryOp::Recip,
                // Approximate on devices from here on.
                UnaryOp::Exp2,
                UnaryOp::Log2,
                UnaryOp::Rsqrt,
                UnaryOp::Sin,
                UnaryOp::Cos,
            ];
            let x = self.expr(dtype, depth, at);
            let op = UNARY[self.below(if self.exact { 6 } else { UNARY.len() })];
            return self.unary(op, x);
        }
        let (a, b) = (self.expr(dtype, depth, at), self.expr(dtype, depth, at));
        let op = [Add, Add, Sub, Mul, Mul, Min, Max, Div][self.below(8)];
        self.binary(op, a, b)
    }

    fn integer(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        use BinaryOp::{Add, And, Div, Max, Min, Mul, Or, Rem, Shl, Shr, Sub, Xor};
        if self.chance(15) {
            let x = self.expr(dtype, depth, at);
            let op = [UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Not][self.below(3)];
            return self.unary(op, x);
        }
        let (a, b) = (self.expr(dtype, depth, at), self.expr(dtype, depth, at));
        let op = [Add, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr][self.below(12)];
        self.binary(op, a, b)
    }

    /// A bit pattern as a number of the same width. A NaN has many patterns, and devices choose differently, so it is
    /// replaced first.
    fn bits(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        let same: Vec<DType> = DTYPES
            .into_iter()
            .filter(|d| d.bits() == dtype.bits() && *d != dtype && *d != DType::Bool && dtype != DType::Bool)
            .collect();
        let Some(from) = self.pick(&same) else { return self.leaf(dtype, at) };
        let mut x = self.expr(from, depth, at);
        if from.is_float() {
            let cond = self.b.push_value(DType::Bool, |result| Op::Compare { result, op: CmpOp::Eq, a: x, b: x });
            let zero = self.b.constant(Literal { dtype: from, bits: 0 });
            x = self.b.push_value(from, |result| Op::Select { result, cond, a: x, b: zero });
        }
        self.b.push_value(dtype, |result| Op::Bits { result, x })
    }

    fn branch(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        let cond = self.condition(depth.min(1), at);
        let then = self.b.open();
        let a = self.expr(dtype, depth, at);
        self.b.close();
        let els = self.b.open();
        let b = self.expr(dtype, depth, at);
        self.b.close();
        let result = self.b.free_value(dtype);
        let results = vec![IfResult::Value { result, then: a, els: b }];
        let id = self.b.push(Op::If { cond, then, els, results });
        self.b.kernel.values[result.0 as usize].def = Some(id);
        result
    }

    /// A sequential loop of one element with a variable.
    fn element_loop(&mut self, dtype: DType, depth: usize, at: &Place) -> ValueId {
        let init = self.expr(dtype, depth, at);
        let var = self.b.new_buffer("v", dtype, &[], Space::Var, false);
        self.b.push(Op::VarNew { var, init });
        let (lo, count) = (self.below(3) as i64 - 1, self.below(4) as i64);
        let (lo, hi) = (self.b.ix_const(lo), self.b.ix_const(lo + count));
        let index = self.b.new_ix_var("k", IxVarKind::Loop, Some(lo), None);
        let body = self.b.open();
        let mut inner = at.clone();
        inner.loops.push(self.b.ix_var(index));
        let old = self.b.push_value(dtype, |result| Op::VarGet { result, var });
        inner.values.push(old);
        let new = self.expr(dtype, depth, &inner);
        let value = if self.chance(60) && dtype != DType::Bool { self.binary(BinaryOp::Add, old, new) } else { new };
        self.b.push(Op::VarSet { var, value });
        self.b.close();
        self.b.push(Op::For { var: index, lo, hi, body, stages: 1 });
        self.b.push_value(dtype, |result| Op::VarGet { result, var })
    }
}
