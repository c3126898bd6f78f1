//! Expressions: index arithmetic, scalar operations and literals as C++ with as few parentheses as possible.

use super::Emitter;
use super::prelude::Snippet;
use crate::ir::effects::uses;
use crate::ir::{BinaryOp, CmpOp, DType, IxExpr, IxId, IxVarKind, Literal, UnaryOp, ValueId};

/// An expression and how tightly its outermost operator binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The text.
    pub s: String,
    prec: u8,
}

pub(in crate::emit) const PRIMARY: u8 = 15;
pub(in crate::emit) const UNARY: u8 = 14;
pub(in crate::emit) const MUL: u8 = 13;
pub(in crate::emit) const ADD: u8 = 12;
pub(in crate::emit) const SHIFT: u8 = 11;
pub(in crate::emit) const COMPARE: u8 = 10;
pub(in crate::emit) const EQUAL: u8 = 9;
pub(in crate::emit) const BIT: u8 = 7;
pub(in crate::emit) const AND: u8 = 5;
pub(in crate::emit) const OR: u8 = 4;
pub(in crate::emit) const CHOICE: u8 = 3;

impl Text {
    pub fn name(s: impl Into<String>) -> Text {
        Text { s: s.into(), prec: PRIMARY }
    }
    pub fn number(n: i64) -> Text {
        let s = if i32::try_from(n).is_ok() { n.to_string() } else { format!("{n}ll") };
        Text { s, prec: if n < 0 { UNARY } else { PRIMARY } }
    }
    pub fn of(s: String, prec: u8) -> Text {
        Text { s, prec }
    }
    pub fn at(&self, prec: u8) -> String {
        if self.prec < prec { format!("({})", self.s) } else { self.s.clone() }
    }
    /// As the right side of a sum, which keeps its own order.
    pub fn addend(&self) -> String {
        self.at(ADD + 1)
    }
    pub fn is_zero(&self) -> bool {
        self.s == "0"
    }
    pub fn add(a: &Text, b: &Text) -> Text {
        if a.is_zero() {
            return b.clone();
        }
        if b.is_zero() {
            return a.clone();
        }
        if let Some(rest) = b.s.strip_prefix('-')
            && b.prec == UNARY
            && rest.chars().all(|c| c.is_ascii_digit())
        {
            return Text::of(format!("{} - {rest}", a.at(ADD)), ADD);
        }
        Text::of(format!("{} + {}", a.at(ADD), b.at(ADD)), ADD)
    }
    pub fn sub(a: &Text, b: &Text) -> Text {
        if b.is_zero() { a.clone() } else { Text::of(format!("{} - {}", a.at(ADD), b.at(MUL)), ADD) }
    }
    pub fn mul(a: &Text, b: &Text) -> Text {
        if a.is_zero() || b.is_zero() {
            return Text::number(0);
        }
        if a.s == "1" {
            return b.clone();
        }
        if b.s == "1" {
            return a.clone();
        }
        Text::of(format!("{} * {}", a.at(MUL), b.at(UNARY)), MUL)
    }
    /// Quotient of something that is never negative.
    pub fn over(a: &Text, by: usize) -> Text {
        if by == 1 { a.clone() } else { Text::of(format!("{} / {by}", a.at(MUL)), MUL) }
    }
    pub fn binary(a: &Text, op: &str, b: &Text, prec: u8) -> Text {
        Text::of(format!("{} {op} {}", a.at(prec), b.at(prec + 1)), prec)
    }
    pub fn less(a: &Text, b: &Text) -> Text {
        Text::binary(a, "<", b, COMPARE)
    }
    pub fn call(f: &str, args: &[&Text]) -> Text {
        let list: Vec<_> = args.iter().map(|t| t.s.as_str()).collect();
        Text::name(format!("{f}({})", list.join(", ")))
    }
    pub fn cast(ty: &str, x: &Text) -> Text {
        Text::of(format!("({ty}){}", x.at(UNARY)), UNARY)
    }
    pub fn choose(c: &Text, a: &Text, b: &Text) -> Text {
        Text::of(format!("{} ? {} : {}", c.at(OR), a.at(OR), b.at(CHOICE)), CHOICE)
    }
    pub fn both(a: &Text, b: &Text) -> Text {
        Text::of(format!("{} && {}", a.at(AND), b.at(AND)), AND)
    }
    pub fn element(base: &str, index: &Text) -> Text {
        Text::name(format!("{base}[{}]", index.s))
    }
    pub fn offset(base: &str, index: &Text) -> String {
        if index.is_zero() { base.to_string() } else { format!("{base} + {}", index.at(ADD)) }
    }
}

/// Type of an element in memory.
pub fn memory_type(d: DType) -> &'static str {
    if d == DType::Bool { "u8" } else { register_type(d) }
}

/// Type of a value in a register.
pub fn register_type(d: DType) -> &'static str {
    match d {
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::E4m3 => "e4m3",
        DType::E5m2 => "e5m2",
        DType::E8m0 => "e8m0",
        DType::E2m1 | DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I32 => "int",
        DType::U32 => "u32",
        DType::I64 => "i64",
        DType::Bool => "bool",
    }
}

/// A constant.
pub fn literal(l: Literal) -> Text {
    match l.dtype {
        DType::F32 => {
            let x = f32::from_bits(l.bits as u32);
            if x.is_finite() {
                Text::of(format!("{x:?}f"), if x.is_sign_negative() { UNARY } else { PRIMARY })
            } else {
                Text::name(format!("__uint_as_float({:#x}u)", l.bits as u32))
            }
        }
        DType::I32 => match l.bits as u32 as i32 {
            i32::MIN => Text::of("-2147483647 - 1".into(), ADD),
            n => Text::number(n as i64),
        },
        DType::U32 => Text::name(format!("{}u", l.bits as u32)),
        DType::I64 => match l.bits as i64 {
            i64::MIN => Text::of("-9223372036854775807ll - 1".into(), ADD),
            n => Text::of(format!("{n}ll"), if n < 0 { UNARY } else { PRIMARY }),
        },
        DType::Bool => Text::name(if l.bits != 0 { "true" } else { "false" }),
        DType::I8 => Text::of(format!("(i8){}", l.bits as u8 as i8), UNARY),
        DType::U8 => Text::of(format!("(u8){}", l.bits as u8), UNARY),
        DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1 => {
            Text::of(format!("({}){:#x}", register_type(l.dtype), l.bits), UNARY)
        }
    }
}

impl Emitter<'_> {
    // --- indices ---

    /// An index expression.
    pub fn ix(&mut self, id: IxId) -> Text {
        match self.k.ix_expr(id) {
            IxExpr::Const(c) => Text::number(c),
            IxExpr::Sym(s) => {
                self.used_syms.insert(s);
                Text::name(self.syms[s.0 as usize].clone())
            }
            IxExpr::Var(v) => {
                if let IxVarKind::Block(axis) = self.k.ix_var(v).kind {
                    self.used_blocks.insert(axis);
                }
                self.index.get(&v).cloned().unwrap_or_else(|| Text::name(self.k.ix_var(v).name.clone()))
            }
            // Data may be anything, so sums with it are formed in 64 bits.
            IxExpr::Data(v) => Text::cast("i64", &self.val(v)),
            IxExpr::Add(a, b) => Text::add(&self.ix(a), &self.ix(b)),
            IxExpr::Sub(a, b) => Text::sub(&self.ix(a), &self.ix(b)),
            IxExpr::Mul(a, b) => Text::mul(&self.ix(a), &self.ix(b)),
            IxExpr::Div(a, b) => self.divide(a, b, "/", "floor_div"),
            IxExpr::Mod(a, b) => self.divide(a, b, "%", "floor_mod"),
            IxExpr::Min(a, b) => self.extreme(a, b, "min_of"),
            IxExpr::Max(a, b) => self.extreme(a, b, "max_of"),
        }
    }

    fn divide(&mut self, a: IxId, b: IxId, op: &str, function: &str) -> Text {
        let natural = matches!(self.ranges.interval(a), (Some(lo), _) if lo >= 0);
        let (x, y) = (self.ix(a), self.ix(b));
        if x.is_zero() {
            return x;
        }
        if natural {
            return Text::of(format!("{} {op} {}", x.at(MUL), y.at(UNARY)), MUL);
        }
        self.need(Snippet::Index);
        let t = if self.has_data(a) || self.has_data(b) { "i64" } else { self.index_type() };
        Text::call(&format!("{function}<{t}>"), &[&x, &y])
    }

    /// Quotient or remainder of an index that was printed, by a constant.
    pub fn quotient(&mut self, a: IxId, x: &Text, by: usize, op: &str) -> Text {
        let natural = matches!(self.ranges.interval(a), (Some(lo), _) if lo >= 0);
        let y = Text::number(by as i64);
        if x.is_zero() {
            return x.clone();
        }
        if natural {
            return Text::of(format!("{} {op} {by}", x.at(MUL)), MUL);
        }
        self.need(Snippet::Index);
        let t = if self.has_data(a) { "i64" } else { self.index_type() };
        Text::call(&format!("{}<{t}>", if op == "/" { "floor_div" } else { "floor_mod" }), &[x, &y])
    }

    fn extreme(&mut self, a: IxId, b: IxId, function: &str) -> Text {
        self.need(Snippet::MinMax);
        let t = if self.has_data(a) || self.has_data(b) { "i64" } else { self.index_type() };
        let (x, y) = (self.ix(a), self.ix(b));
        Text::call(&format!("{function}<{t}>"), &[&x, &y])
    }

    /// True if an index has a part without a known range.
    pub fn has_data(&self, id: IxId) -> bool {
        match self.k.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) => false,
            IxExpr::Data(_) => true,
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.has_data(a) || self.has_data(b),
        }
    }

    /// `0 <= index < extent`.
    pub fn inside(&mut self, index: IxId, extent: IxId) -> Text {
        let natural = matches!(self.ranges.interval(index), (Some(lo), _) if lo >= 0);
        let data = self.has_data(index);
        // Data of 32 bits on its own needs no wider comparison.
        if let IxExpr::Data(v) = self.k.ix_expr(index)
            && matches!(self.value_type(v), DType::I32 | DType::U32)
            && !self.wide
            && !self.has_data(extent)
        {
            let (x, e) = (self.val(v), self.ix(extent));
            let x = if self.value_type(v) == DType::U32 { x } else { Text::cast("u32", &x) };
            return Text::less(&x, &Text::cast("u32", &e));
        }
        let (i, e) = (self.ix(index), self.ix(extent));
        if natural && !data {
            return Text::less(&i, &e);
        }
        let t = if data || self.wide { "u64" } else { "u32" };
        Text::less(&Text::cast(t, &i), &Text::cast(t, &e))
    }

    // --- scalars ---

    /// A value.
    pub fn val(&mut self, v: ValueId) -> Text {
        if let Some(l) = self.k.literal(v) {
            return literal(l);
        }
        self.values.get(&v).cloned().unwrap_or_else(|| Text::name(format!("v{}", v.0)))
    }

    /// A value that is one of two. Of constants that are or may become -0, the compiler is not told.
    pub fn choice(&mut self, v: ValueId) -> Text {
        let t = self.val(v);
        let harmless = |l: Literal| l.bits as u32 != (-0.0f32).to_bits();
        if self.value_type(v) != DType::F32 || self.k.literal(v).is_some_and(harmless) || !self.is_constant(v, 8) {
            return t;
        }
        self.need(Snippet::Opaque);
        Text::call("opaque", &[&t])
    }

    /// Whether a value comes from constants alone, by at most `steps` operations after each other.
    fn is_constant(&self, v: ValueId, steps: usize) -> bool {
        if steps == 0 {
            return false;
        }
        let Some(def) = self.k.value(v).def else { return false };
        let u = uses(&self.k.op(def).op);
        let elsewhere = !(u.indices.is_empty() && u.views.is_empty() && u.buffers.is_empty() && u.blocks.is_empty());
        !elsewhere && u.values.iter().all(|&x| self.is_constant(x, steps - 1))
    }

    /// A float of any width as f32.
    pub fn lift_f32(&mut self, d: DType, x: Text) -> Text {
        let (f, s) = match d {
            DType::E2m1 => ("e2m1_to_f32", Snippet::E2m1),
            DType::Bf16 => ("bf16_to_f32", Snippet::Bf16),
            DType::F16 => ("f16_to_f32", Snippet::F16),
            DType::E4m3 => ("e4m3_to_f32", Snippet::Fp8),
            DType::E5m2 => ("e5m2_to_f32", Snippet::Fp8),
            DType::E8m0 => ("e8m0_to_f32", Snippet::E8m0),
            DType::I32 | DType::U32 | DType::I64 | DType::I8 | DType::U8 | DType::Bool => {
                return Text::cast("float", &x);
            }
            DType::F32 => return x,
        };
        self.need(s);
        Text::call(f, &[&x])
    }

    /// A number as an f32 that a narrower float can be rounded from: integers of more than 24 bits are not rounded twice.
    fn lift_odd(&mut self, d: DType, x: Text) -> Text {
        let f = match d {
            DType::I32 => "i32_to_odd",
            DType::U32 => "u32_to_odd",
            DType::I64 => "i64_to_odd",
            DType::I8
            | DType::U8
            | DType::Bool
            | DType::F32
            | DType::Bf16
            | DType::F16
            | DType::E4m3
            | DType::E5m2
            | DType::E8m0
            | DType::E2m1 => return self.lift_f32(d, x),
        };
        self.need(Snippet::RoundOnce);
        Text::call(f, &[&x])
    }

    /// f32 as a float of any width or as an integer.
    pub fn lower_f32(&mut self, d: DType, x: Text) -> Text {
        let (f, s) = match d {
            DType::Bf16 => ("f32_to_bf16", Snippet::Bf16),
            DType::F16 => ("f32_to_f16", Snippet::F16),
            DType::E4m3 => ("f32_to_e4m3", Snippet::Fp8),
            DType::E5m2 => ("f32_to_e5m2", Snippet::Fp8),
            DType::E8m0 => ("f32_to_e8m0", Snippet::E8m0),
            DType::E2m1 => ("f32_to_e2m1", Snippet::E2m1),
            DType::I8 => ("f32_to_i8", Snippet::Cast),
            DType::U8 => ("f32_to_u8", Snippet::Cast),
            DType::I32 => ("f32_to_i32", Snippet::Cast),
            DType::U32 => ("f32_to_u32", Snippet::Cast),
            DType::I64 => ("f32_to_i64", Snippet::Cast),
            DType::Bool => return Text::binary(&x, "!=", &Text::name("0.0f"), EQUAL),
            DType::F32 => return x,
        };
        self.need(s);
        Text::call(f, &[&x])
    }

    /// Conversion as `Cast` means it.
    pub fn convert(&mut self, from: DType, to: DType, x: Text) -> Text {
        if from == to {
            x
        } else if from.is_float() || to.is_float() {
            let f = if to.is_float() && to != DType::F32 { self.lift_odd(from, x) } else { self.lift_f32(from, x) };
            self.lower_f32(to, f)
        } else if to == DType::Bool {
            Text::binary(&x, "!=", &Text::number(0), EQUAL)
        } else {
            Text::cast(register_type(to), &x)
        }
    }

    /// Same bits as another type.
    pub fn reinterpret(&mut self, from: DType, to: DType, x: Text) -> Text {
        match (from, to) {
            (DType::F32, DType::U32) => Text::call("__float_as_uint", &[&x]),
            (DType::F32, _) => Text::call("__float_as_int", &[&x]),
            (DType::U32, DType::F32) => Text::call("__uint_as_float", &[&x]),
            (_, DType::F32) => Text::call("__int_as_float", &[&x]),
            (_, _) => Text::cast(register_type(to), &x),
        }
    }

    /// `op(x)`.
    pub fn unary(&mut self, d: DType, op: UnaryOp, x: Text) -> Text {
        if d.is_float() {
            let f = self.lift_f32(d, x);
            let r = match op {
                UnaryOp::Neg => Text::of(format!("-{}", f.at(PRIMARY)), UNARY),
                UnaryOp::Abs => Text::call("fabsf", &[&f]),
                UnaryOp::Exp2 => Text::call("exp2f", &[&f]),
                UnaryOp::Log2 => Text::call("log2f", &[&f]),
                UnaryOp::Rsqrt => Text::call("rsqrtf", &[&f]),
                UnaryOp::Sqrt => Text::call("__fsqrt_rn", &[&f]),
                UnaryOp::Recip => Text::call("__frcp_rn", &[&f]),
                UnaryOp::Sin => Text::call("sinf", &[&f]),
                UnaryOp::Cos => Text::call("cosf", &[&f]),
                UnaryOp::Floor => Text::call("floorf", &[&f]),
                UnaryOp::Ceil => Text::call("ceilf", &[&f]),
                UnaryOp::Not => f,
            };
            return self.lower_f32(d, r);
        }
        let zero = literal(Literal { dtype: d, bits: 0 });
        match op {
            UnaryOp::Not if d == DType::Bool => Text::of(format!("!{}", x.at(UNARY)), UNARY),
            UnaryOp::Not => self.narrow(d, Text::of(format!("~{}", x.at(UNARY)), UNARY)),
            UnaryOp::Neg => self.binary(d, BinaryOp::Sub, zero, x),
            UnaryOp::Abs if matches!(d, DType::U8 | DType::U32) => x,
            UnaryOp::Abs => {
                let minus = self.binary(d, BinaryOp::Sub, zero.clone(), x.clone());
                Text::choose(&Text::less(&x, &zero), &minus, &x)
            }
            // Rounding an integer leaves it; the rest is for floats.
            UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Exp2
            | UnaryOp::Log2
            | UnaryOp::Rsqrt
            | UnaryOp::Sqrt
            | UnaryOp::Recip
            | UnaryOp::Sin
            | UnaryOp::Cos => x,
        }
    }

    /// Cuts a promoted 8-bit result.
    fn narrow(&mut self, d: DType, x: Text) -> Text {
        if matches!(d, DType::I8 | DType::U8) { Text::cast(register_type(d), &x) } else { x }
    }

    /// `zero - x` of floats. Of a zero it sees, GCC (12 and 13) makes the minus of an integer's float, which is -0 for 0.
    pub fn zero_less(&mut self, d: DType, zero: Text, x: Text) -> Text {
        let (zero, x) = (self.lift_f32(d, zero), self.lift_f32(d, x));
        self.need(Snippet::Opaque);
        let difference = Text::binary(&Text::call("opaque", &[&zero]), "-", &x, ADD);
        self.lower_f32(d, difference)
    }

    /// `a op b`.
    pub fn binary(&mut self, d: DType, op: BinaryOp, a: Text, b: Text) -> Text {
        if d.is_float() {
            let (x, y) = (self.lift_f32(d, a), self.lift_f32(d, b));
            let r = match op {
                BinaryOp::Add => Text::binary(&x, "+", &y, ADD),
                BinaryOp::Sub => Text::binary(&x, "-", &y, ADD),
                BinaryOp::Mul => Text::binary(&x, "*", &y, MUL),
                BinaryOp::Div => Text::call("__fdiv_rn", &[&x, &y]),
                BinaryOp::Min => Text::call("fminf", &[&x, &y]),
                BinaryOp::Max => Text::call("fmaxf", &[&x, &y]),
                BinaryOp::Rem | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => x,
            };
            return self.lower_f32(d, r);
        }
        let signed = matches!(d, DType::I32 | DType::I64);
        let small = matches!(d, DType::I8 | DType::U8);
        let count = |b: &Text| b.s.trim_end_matches(['u', 'l']).parse::<usize>().ok().filter(|&n| n < d.bits());
        match op {
            BinaryOp::And if d == DType::Bool => Text::both(&a, &b),
            BinaryOp::Or if d == DType::Bool => Text::of(format!("{} || {}", a.at(OR), b.at(OR)), OR),
            BinaryOp::Xor if d == DType::Bool => Text::binary(&a, "!=", &b, EQUAL),
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if signed => {
                self.need(Snippet::Integer);
                let f = match op {
                    BinaryOp::Add => "wrap_add",
                    BinaryOp::Sub => "wrap_sub",
                    _ => "wrap_mul",
                };
                Text::call(f, &[&a, &b])
            }
            BinaryOp::Add => self.narrow(d, Text::binary(&a, "+", &b, ADD)),
            BinaryOp::Sub => self.narrow(d, Text::binary(&a, "-", &b, ADD)),
            BinaryOp::Mul => self.narrow(d, Text::binary(&a, "*", &b, MUL)),
            BinaryOp::Div | BinaryOp::Rem => {
                self.need(Snippet::Integer);
                let f = if op == BinaryOp::Div { "div_or_zero" } else { "rem_or_zero" };
                let (x, y) = if small { (Text::cast("int", &a), Text::cast("int", &b)) } else { (a, b) };
                self.narrow(d, Text::call(f, &[&x, &y]))
            }
            BinaryOp::Min | BinaryOp::Max => {
                self.need(Snippet::MinMax);
                let f = if op == BinaryOp::Min { "min_of" } else { "max_of" };
                Text::call(&format!("{f}<{}>", register_type(d)), &[&a, &b])
            }
            BinaryOp::And => self.narrow(d, Text::binary(&a, "&", &b, BIT + 1)),
            BinaryOp::Or => self.narrow(d, Text::binary(&a, "|", &b, BIT - 1)),
            BinaryOp::Xor => self.narrow(d, Text::binary(&a, "^", &b, BIT)),
            BinaryOp::Shl if count(&b).is_some() && !signed => self.narrow(d, Text::binary(&a, "<<", &b, SHIFT)),
            BinaryOp::Shr if count(&b).is_some() => self.narrow(d, Text::binary(&a, ">>", &b, SHIFT)),
            BinaryOp::Shl | BinaryOp::Shr => {
                self.need(Snippet::Integer);
                let f = if op == BinaryOp::Shl { "shift_left" } else { "shift_right" };
                let unsigned = if d == DType::I64 { "u64" } else { "u32" };
                // 8-bit values are shifted as 32-bit ones; what leaves them is cut, and the sign comes in from above.
                let x = if small { Text::cast("int", &a) } else { a };
                let n = Text::cast(unsigned, &b);
                self.narrow(d, Text::call(f, &[&x, &n]))
            }
        }
    }

    /// `a op b` as a truth value.
    pub fn compare(&mut self, d: DType, op: CmpOp, a: Text, b: Text) -> Text {
        let (x, y) = if d.is_float() { (self.lift_f32(d, a), self.lift_f32(d, b)) } else { (a, b) };
        compare_text(op, &x, &y)
    }
}

/// A comparison.
pub fn compare_text(op: CmpOp, x: &Text, y: &Text) -> Text {
    match op {
        CmpOp::Lt => Text::binary(x, "<", y, COMPARE),
        CmpOp::Le => Text::binary(x, "<=", y, COMPARE),
        CmpOp::Gt => Text::binary(x, ">", y, COMPARE),
        CmpOp::Ge => Text::binary(x, ">=", y, COMPARE),
        CmpOp::Eq => Text::binary(x, "==", y, EQUAL),
        CmpOp::Ne => Text::binary(x, "!=", y, EQUAL),
    }
}
