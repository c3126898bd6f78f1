//! Scalars of a block: C++ of the scalar unit, and the single elements it reads and writes.

use super::lower::{Lower, Res};
use super::tree::{Core, Pipe, Place};
use crate::emit::cuda::expr::{ADD, AND, BIT, COMPARE, EQUAL, MUL, OR, PRIMARY, SHIFT, Text, UNARY};
use crate::ir::{Base, BinaryOp, CmpOp, DType, IxId, Literal, Op, OpId, UnaryOp, ViewId};

/// Type of a scalar.
pub fn type_of(d: DType) -> &'static str {
    match d {
        DType::Bool => "bool",
        DType::Bf16 | DType::F16 => "uint16_t",
        DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1 => "uint8_t",
        DType::F32 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => super::lower::type_of(d),
    }
}

/// A constant.
pub fn literal(l: Literal) -> Text {
    match l.dtype {
        DType::F32 => {
            let x = f32::from_bits(l.bits as u32);
            if x.is_finite() {
                Text::of(format!("{x:?}f"), if x.is_sign_negative() { UNARY } else { PRIMARY })
            } else if x.is_nan() {
                Text::name("NOT_A_NUMBER")
            } else {
                Text::name(if x > 0.0 { "POS_INF" } else { "NEG_INF" })
            }
        }
        DType::I32 => match l.bits as u32 as i32 {
            i32::MIN => Text::of("-2147483647 - 1".into(), ADD),
            n => Text::of(n.to_string(), if n < 0 { UNARY } else { PRIMARY }),
        },
        DType::U32 => Text::name(format!("{}u", l.bits as u32)),
        DType::I64 => Text::cast("int64_t", &Text::number(l.bits as i64)),
        DType::Bool => Text::name(if l.bits != 0 { "true" } else { "false" }),
        DType::I8 => Text::cast("int8_t", &Text::number(i64::from(l.bits as u8 as i8))),
        DType::U8 | DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1 => {
            Text::cast("uint8_t", &Text::number(l.bits as i64))
        }
        DType::F16 | DType::Bf16 => Text::cast("uint16_t", &Text::name(format!("{:#x}", l.bits))),
    }
}

/// A comparison.
pub fn compare(op: CmpOp, a: &Text, b: &Text) -> Text {
    let (s, p) = match op {
        CmpOp::Lt => ("<", COMPARE),
        CmpOp::Le => ("<=", COMPARE),
        CmpOp::Gt => (">", COMPARE),
        CmpOp::Ge => (">=", COMPARE),
        CmpOp::Eq => ("==", EQUAL),
        CmpOp::Ne => ("!=", EQUAL),
    };
    Text::binary(a, s, b, p)
}

/// `op(x)` where the scalar unit can do it.
pub fn unary(d: DType, op: UnaryOp, x: &Text) -> Option<Text> {
    Some(match op {
        UnaryOp::Neg if d == DType::I32 => {
            Text::call("static_cast<int32_t>", &[&Text::of(format!("0u - static_cast<uint32_t>({})", x.s), ADD)])
        }
        UnaryOp::Neg => Text::of(format!("-{}", x.at(PRIMARY)), UNARY),
        UnaryOp::Not if d == DType::Bool => Text::of(format!("!{}", x.at(UNARY)), UNARY),
        UnaryOp::Not => Text::of(format!("~{}", x.at(UNARY)), UNARY),
        UnaryOp::Abs if matches!(d, DType::F32 | DType::I32 | DType::I64) => {
            let zero = Text::name(if d == DType::F32 { "0.0f" } else { "0" });
            Text::choose(&Text::less(x, &zero), &Text::of(format!("-{}", x.at(PRIMARY)), UNARY), x)
        }
        UnaryOp::Abs => x.clone(),
        UnaryOp::Recip => Text::of(format!("1.0f / {}", x.at(UNARY)), MUL),
        UnaryOp::Exp2
        | UnaryOp::Log2
        | UnaryOp::Rsqrt
        | UnaryOp::Sqrt
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Floor
        | UnaryOp::Ceil => return None,
    })
}

/// `a op b`. Signed integers wrap.
pub fn binary(d: DType, op: BinaryOp, a: &Text, b: &Text) -> Option<Text> {
    let float = d == DType::F32;
    if d.is_float() && !float {
        return None;
    }
    let wrap = |s: &str, p: u8| {
        let u = if d == DType::I64 { "uint64_t" } else { "uint32_t" };
        let t = type_of(d);
        let cast = |x: &Text| Text::call(&format!("static_cast<{u}>"), &[x]);
        Text::call(&format!("static_cast<{t}>"), &[&Text::binary(&cast(a), s, &cast(b), p)])
    };
    let signed = matches!(d, DType::I32 | DType::I64 | DType::I8);
    let bits = d.bits();
    Some(match op {
        BinaryOp::Add if signed => wrap("+", ADD),
        BinaryOp::Sub if signed => wrap("-", ADD),
        BinaryOp::Mul if signed => wrap("*", MUL),
        BinaryOp::Add => Text::binary(a, "+", b, ADD),
        BinaryOp::Sub => Text::binary(a, "-", b, ADD),
        BinaryOp::Mul => Text::binary(a, "*", b, MUL),
        BinaryOp::Div if float => Text::binary(a, "/", b, MUL),
        BinaryOp::Div => Text::call("DivOrZero", &[a, b]),
        BinaryOp::Rem => Text::call("RemOrZero", &[a, b]),
        BinaryOp::Min => Text::choose(&Text::binary(a, "<", b, COMPARE), a, b),
        BinaryOp::Max => Text::choose(&Text::binary(a, ">", b, COMPARE), a, b),
        BinaryOp::And if d == DType::Bool => Text::binary(a, "&&", b, AND),
        BinaryOp::Or if d == DType::Bool => Text::binary(a, "||", b, OR),
        BinaryOp::Xor if d == DType::Bool => Text::binary(a, "!=", b, EQUAL),
        BinaryOp::And => Text::of(format!("{} & {}", a.at(SHIFT), b.at(SHIFT)), BIT + 1),
        BinaryOp::Or => Text::of(format!("{} | {}", a.at(SHIFT), b.at(SHIFT)), BIT - 1),
        BinaryOp::Xor => Text::of(format!("{} ^ {}", a.at(SHIFT), b.at(SHIFT)), BIT),
        BinaryOp::Shl => Text::call("ShiftLeftBy", &[a, b]),
        BinaryOp::Shr if bits <= 64 => Text::call("ShiftRightBy", &[a, b]),
        BinaryOp::Shr => return None,
    })
}

/// A conversion; `None` where it takes the vector unit.
pub fn cast(from: DType, to: DType, x: &Text) -> Option<Text> {
    let f = match from {
        DType::Bf16 => {
            Text::call("FloatOf", &[&Text::binary(&Text::cast("uint32_t", x), "<<", &Text::name("16"), SHIFT)])
        }
        DType::F32 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => x.clone(),
        DType::E8m0 => Text::call("PowerOf", &[x]),
        DType::F16 | DType::E4m3 | DType::E5m2 | DType::E2m1 => return if from == to { Some(x.clone()) } else { None },
    };
    if from == to {
        return Some(x.clone());
    }
    Some(match to {
        DType::F32 if from.is_float() => f,
        DType::F32 => Text::call("static_cast<float>", &[&f]),
        DType::Bool if from.is_float() => Text::binary(&f, "!=", &Text::name("0.0f"), EQUAL),
        DType::Bool => Text::binary(&f, "!=", &Text::name("0"), EQUAL),
        DType::I32 if from.is_float() => Text::call("IntOf", &[&f]),
        DType::Bf16 => {
            let f = if from.is_float() { f } else { Text::call("static_cast<float>", &[&f]) };
            Text::call("Bf16Of", &[&f])
        }
        DType::I32 | DType::U32 | DType::I64 | DType::I8 | DType::U8 if !from.is_float() => {
            Text::call(&format!("static_cast<{}>", type_of(to)), &[&f])
        }
        DType::I32 | DType::U32 | DType::I64 | DType::I8 | DType::U8 => return None,
        DType::F16 | DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1 => return None,
    })
}

/// Bits as another type.
pub fn bits(from: DType, to: DType, x: &Text) -> Text {
    match (from, to) {
        (DType::F32, DType::U32) => Text::call("BitsOf", &[x]),
        (DType::F32, _) => Text::cast(type_of(to), &Text::call("BitsOf", &[x])),
        (_, DType::F32) => Text::call("FloatOf", &[&Text::cast("uint32_t", x)]),
        (_, _) => Text::cast(type_of(to), x),
    }
}

impl Lower<'_> {
    /// A scalar op at block level.
    pub fn scalar_op(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        match &k.op(id).op {
            Op::IndexValue { result, index } => {
                let t = Text::call(&format!("static_cast<{}>", type_of(self.dtype(*result))), &[&self.ix(*index)]);
                self.define(*result, t);
            }
            Op::Unary { result, op, x } => {
                let t = self.val(*x);
                match unary(self.dtype(*result), *op, &t) {
                    Some(t) => self.define(*result, t),
                    None => return self.scalar_function(id, *result, *op, t),
                }
            }
            Op::Binary { result, op, a, b } => {
                let (x, y) = (self.val(*a), self.val(*b));
                match binary(self.dtype(*result), *op, &x, &y) {
                    Some(t) => self.define(*result, t),
                    None => return Err(self.no_scalar(id)),
                }
            }
            Op::Fma { result, a, b, c } => {
                let x = [self.val(*a), self.val(*b), self.val(*c)];
                return self.scalar_fma(id, *result, x);
            }
            Op::Compare { result, op, a, b } => {
                let t = compare(*op, &self.val(*a), &self.val(*b));
                self.define(*result, t);
            }
            Op::CompareIndex { result, op, a, b } => {
                let t = compare(*op, &self.ix(*a), &self.ix(*b));
                self.define(*result, t);
            }
            Op::Select { result, cond, a, b } => {
                let t = Text::choose(&self.val(*cond), &self.val(*a), &self.val(*b));
                self.define(*result, t);
            }
            Op::Cast { result, x } => match cast(self.dtype(*x), self.dtype(*result), &self.val(*x)) {
                Some(t) => self.define(*result, t),
                None => return Err(self.no_scalar(id)),
            },
            Op::Bits { result, x } => {
                let t = bits(self.dtype(*x), self.dtype(*result), &self.val(*x));
                self.define(*result, t);
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let name = self.name(&k.ix_var(*var).name);
                let x = Text::call("static_cast<int64_t>", &[&self.val(*value)]);
                let t = Text::call("MinOf", &[&Text::call("MaxOf", &[&x, &self.ix(*lo)]), &self.ix(*hi)]);
                self.say(format!("const int64_t {name} = {};", t.s));
                self.index.insert(*var, Text::name(name));
            }
            Op::VarNew { var, init } => {
                let name = self.name(&k.buffer(*var).name);
                let t = self.val(*init).s;
                self.say(format!("{} {name} = {t};", type_of(k.buffer(*var).dtype)));
                self.vars.insert(*var, name);
            }
            Op::IxVarNew { var, init } => {
                let name = self.name(&k.buffer(*var).name);
                let t = self.ix(*init).s;
                self.say(format!("int64_t {name} = {t};"));
                self.vars.insert(*var, name);
            }
            Op::VarGet { result, var } => {
                let t = Text::name(self.vars.get(var).cloned().unwrap_or_default());
                self.define(*result, t);
            }
            Op::IxVarGet { result, var } => {
                let name = self.name(&k.ix_var(*result).name);
                let from = self.vars.get(var).cloned().unwrap_or_default();
                self.say(format!("const int64_t {name} = {from};"));
                self.index.insert(*result, Text::name(name));
            }
            Op::VarSet { var, value } => {
                let (to, t) = (self.vars.get(var).cloned().unwrap_or_default(), self.val(*value).s);
                self.say(format!("{to} = {t};"));
            }
            Op::IxVarSet { var, index } => {
                let (to, t) = (self.vars.get(var).cloned().unwrap_or_default(), self.ix(*index).s);
                self.say(format!("{to} = {t};"));
            }
            op @ (Op::Const { .. }
            | Op::Load { .. }
            | Op::LoadOr { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::Claim { .. }
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
            | Op::For { .. }
            | Op::Loop { .. }
            | Op::Break
            | Op::Continue
            | Op::If { .. }
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_)) => return Err(self.refuse(id, format!("`{}` is no scalar op", op.name()), "report this")),
        }
        Ok(())
    }

    pub(super) fn no_scalar(&self, id: OpId) -> super::lower::Refused {
        let what = self.k.op(id).op.name();
        self.refuse(
            id,
            format!("the scalar unit has no `{what}` for these types"),
            "compute it in an element loop (`parallel`), where the vector unit does it",
        )
    }

    /// A block-level function that only the vector unit has: through eight lanes of UB.
    fn scalar_function(&mut self, id: OpId, result: crate::ir::ValueId, op: UnaryOp, x: Text) -> Res<()> {
        let (f, after) = match op {
            UnaryOp::Exp2 => ("Exp2Of", ""),
            UnaryOp::Log2 => ("Log2Of", ""),
            UnaryOp::Rsqrt => ("RsqrtOf", ""),
            UnaryOp::Sqrt => ("SqrtOf", ""),
            UnaryOp::Neg
            | UnaryOp::Abs
            | UnaryOp::Not
            | UnaryOp::Recip
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Floor
            | UnaryOp::Ceil => return Err(self.no_scalar(id)),
        };
        let _ = after;
        if self.dtype(result) != DType::F32 {
            return Err(self.no_scalar(id));
        }
        let span = self.k.op(id).span;
        let b = self.buffer("lane", "float", 4, 64, Place::Ub, span);
        let name = self.tensor(b);
        let lines = if self.caps.register_vectors {
            vec![format!("asc_vf_call<{f}>((__ubuf__ float*){name}.GetPhyAddr(), {});", x.s)]
        } else {
            super::mem::scalar_function(op, &name, &x.s)
        };
        if self.caps.register_vectors {
            super::vf::scalar_function(self, op, f);
        }
        self.inst(Core::Vector, Pipe::V, lines, &[], &[b]);
        let r = self.name("v");
        self.inst(Core::Vector, Pipe::S, vec![format!("const float {r} = {name}.GetValue(0);")], &[b], &[]);
        self.vector_scalars.push((r.clone(), id));
        self.values.insert(result, Text::name(r));
        Ok(())
    }

    /// `a * b + c` with one rounding, which only the vector unit has.
    fn scalar_fma(&mut self, id: OpId, result: crate::ir::ValueId, x: [Text; 3]) -> Res<()> {
        if !self.caps.register_vectors || self.dtype(result) != DType::F32 {
            return Err(self.no_scalar(id));
        }
        let b = self.buffer("lane", "float", 4, 64, Place::Ub, self.k.op(id).span);
        let name = self.tensor(b);
        super::vf::fma_function(self);
        let [x, y, z] = x;
        let line = format!("asc_vf_call<FmaOf>((__ubuf__ float*){name}.GetPhyAddr(), {}, {}, {});", x.s, y.s, z.s);
        self.inst(Core::Vector, Pipe::V, vec![line], &[], &[b]);
        let r = self.name("v");
        self.inst(Core::Vector, Pipe::S, vec![format!("const float {r} = {name}.GetValue(0);")], &[b], &[]);
        self.vector_scalars.push((r.clone(), id));
        self.values.insert(result, Text::name(r));
        Ok(())
    }

    /// Text of the address of one element, and of the condition under which it exists.
    pub fn element(&mut self, id: OpId, view: ViewId, index: &[IxId]) -> Res<(Text, Option<Text>)> {
        let v = self.k.view(view).clone();
        if v.gather.is_some() {
            return Err(self.refuse(
                id,
                "a single element of a gathered view has no Ascend form",
                "copy its rows to a tile",
            ));
        }
        let needs = self.needs(id, view);
        let mut cond: Option<Text> = None;
        let pairs = index.iter().zip(&v.extents).chain(v.guards.iter().map(|(i, e)| (i, e)));
        for ((&i, &e), need) in pairs.zip(needs) {
            if need && let Some(c) = self.inside(i, e) {
                cond = Some(cond.map_or(c.clone(), |x| Text::both(&x, &c)));
            }
        }
        let mut at = self.ix(v.offset);
        for (&i, &s) in index.iter().zip(&v.strides) {
            at = Text::add(&at, &Text::mul(&self.ix(i), &self.ix(s)));
        }
        Ok((at, cond))
    }

    /// A single element read at block level.
    pub fn scalar_load(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let (result, view, index, other) = if let Op::Load { result, view, index } = &k.op(id).op {
            (*result, *view, index.clone(), None)
        } else if let Op::LoadOr { result, view, index, other } = &k.op(id).op {
            (*result, *view, index.clone(), Some(*other))
        } else {
            return Ok(());
        };
        let d = self.dtype(result);
        let ty = type_of(d);
        let (at, cond) = self.element(id, view, &index)?;
        let zero = other.map_or_else(|| literal(Literal { dtype: d, bits: 0 }), |v| self.val(v));
        let name = self.name("v");
        match k.view(view).base {
            Base::Param(p) => {
                let get = Text::call(&format!("{}.GetValue", self.scalar_global(p, d)), &[&at]);
                let t = cond.map_or(get.clone(), |c| Text::choose(&c, &get, &zero));
                self.say(format!("const {ty} {name} = {};", t.s));
            }
            Base::Buffer(b) => {
                let t = self.tile(b);
                if t.pitch != t.row || t.wide || ty != self.bufs[t.buf.0].ty && d != DType::Bool {
                    return Err(self.refuse(
                        id,
                        "a single element of this tile has no Ascend form",
                        "use an element loop",
                    ));
                }
                let get = Text::call(&format!("{}.GetValue", self.tensor(t.buf)), &[&at]);
                let text = cond.map_or(get.clone(), |c| Text::choose(&c, &get, &zero));
                self.inst(Core::Vector, Pipe::S, vec![format!("const {ty} {name} = {};", text.s)], &[t.buf], &[]);
                self.vector_scalars.push((name.clone(), id));
            }
        }
        self.values.insert(result, Text::name(name));
        Ok(())
    }

    /// The global tensor through which scalars of a parameter are read: 16-bit floats as their bits.
    pub fn scalar_global(&mut self, p: crate::ir::ParamId, d: DType) -> String {
        let ty = if d == DType::Bool { "uint8_t" } else { type_of(d) };
        self.global_as(p, d, ty)
    }

    /// A single element written at block level.
    pub fn scalar_store(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::Store { view, index, value, .. } = &k.op(id).op else { return Ok(()) };
        let d = k.view(*view).dtype;
        let Base::Param(p) = k.view(*view).base else {
            return Err(self.refuse(
                id,
                "a single element of a tile is not written at block level",
                "use an element loop",
            ));
        };
        if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
            self.at(id, "store one element");
            return self.serial_store(id);
        }
        let (at, cond) = self.element(id, *view, index)?;
        let x = self.val(*value);
        let ty = super::lower::type_of(d);
        let span = k.op(id).span;
        let b = self.buffer(&format!("{}One", self.params[p.0 as usize]), ty, 4, 64, Place::Ub, span);
        let name = self.tensor(b);
        self.at(id, "store one element");
        let fill = if self.caps.register_vectors {
            super::vf::fill_function(self);
            format!(
                "asc_vf_call<Fill<{ty}>>((__ubuf__ {ty}*){name}.GetPhyAddr(), static_cast<{ty}>({}), static_cast<uint16_t>(1));",
                x.s
            )
        } else {
            format!("Duplicate({name}, static_cast<{ty}>({}), 8);", x.s)
        };
        let mut store =
            vec![format!("DataCopyPad({}[{}], {name}, DataCopyExtParams{{1, 4, 0, 0, 0}});", self.global(p), at.s)];
        let cond = if self.matrix.on {
            // Both vector cores of a group come here.
            let one = Text::of("sub == 0".into(), EQUAL);
            Some(cond.map_or(one.clone(), |c| Text::both(&one, &c)))
        } else {
            cond
        };
        if let Some(c) = cond {
            store = vec![format!("if ({}) {{", c.s), format!("    {}", store[0]), "}".into()];
        }
        self.inst(Core::Vector, Pipe::V, vec![fill], &[], &[b]);
        self.inst(Core::Vector, Pipe::Mte3, store, &[b], &[]);
        Ok(())
    }
}
