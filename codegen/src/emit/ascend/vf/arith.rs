//! Arithmetic of lanes: operations with two registers or a register and a scalar, comparisons, choices, conversions.

use super::{Level, Opd, Vf, level_of, negative, ty_reg};
use crate::emit::ascend::lower::Res;
use crate::emit::ascend::scalar;
use crate::emit::cuda::expr::Text;
use crate::ir::{BinaryOp, CmpOp, DType, OpId, UnaryOp};

impl Vf<'_, '_> {
    pub(super) fn result(&mut self, ty: &'static str, level: Level, f: impl FnOnce(&str, &str) -> String) -> Opd {
        let r = self.reg(ty, "t");
        let m = self.mask(level);
        let line = f(&r, m);
        self.emit(level, line);
        Opd::Reg(r, level)
    }

    /// `a op b`.
    pub(super) fn binary(&mut self, id: OpId, d: DType, op: BinaryOp, a: Opd, b: Opd) -> Res<Opd> {
        if let (Opd::Scalar(x), Opd::Scalar(y)) = (&a, &b) {
            return match scalar::binary(d, op, x, y) {
                Some(t) => Ok(Opd::Scalar(t)),
                None => self.refuse(id, format!("the scalar unit has no `{}` of {d}", op.name())),
            };
        }
        if d == DType::Bool {
            let (x, l1) = self.as_mask(&a);
            let (y, l2) = self.as_mask(&b);
            let level = l1.max(l2);
            let f = match op {
                BinaryOp::And => "And",
                BinaryOp::Or => "Or",
                BinaryOp::Xor => "Xor",
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Mul
                | BinaryOp::Div
                | BinaryOp::Rem
                | BinaryOp::Min
                | BinaryOp::Max
                | BinaryOp::Shl
                | BinaryOp::Shr => return self.refuse(id, format!("`{}` of truth values", op.name())),
            };
            let m = self.reg("mask", "m");
            let mask = self.mask(level);
            self.emit(level, format!("Reg::{f}({m}, {x}, {y}, {mask});"));
            return Ok(Opd::Mask(m, level));
        }
        if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
            return self.refuse(id, format!("vector registers have no `{}` of {d}", op.name()));
        }
        let ty = ty_reg(d);
        // Forms with a scalar operand.
        if let (Opd::Reg(x, l), Opd::Scalar(s)) = (&a, &b) {
            let (x, l, s) = (x.clone(), *l, s.clone());
            let short = match op {
                BinaryOp::Add => Some(("Adds", s.s.clone())),
                BinaryOp::Sub if d == DType::F32 => Some(("Adds", negative(&s))),
                BinaryOp::Mul => Some(("Muls", s.s.clone())),
                BinaryOp::Max => Some(("Maxs", s.s.clone())),
                BinaryOp::Min => Some(("Mins", s.s.clone())),
                BinaryOp::Shl => Some(("ShiftLefts", format!("static_cast<int16_t>({})", s.s))),
                BinaryOp::Shr => Some(("ShiftRights", format!("static_cast<int16_t>({})", s.s))),
                BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => None,
            };
            if let Some((f, s)) = short {
                return Ok(self.result(ty, l, |r, m| format!("Reg::{f}({r}, {x}, {s}, {m});")));
            }
        }
        if let (Opd::Scalar(s), Opd::Reg(x, l)) = (&a, &b) {
            let (x, l, s) = (x.clone(), *l, s.clone());
            let short = match op {
                BinaryOp::Add => Some("Adds"),
                BinaryOp::Mul => Some("Muls"),
                BinaryOp::Max => Some("Maxs"),
                BinaryOp::Min => Some("Mins"),
                BinaryOp::Sub
                | BinaryOp::Div
                | BinaryOp::Rem
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor
                | BinaryOp::Shl
                | BinaryOp::Shr => None,
            };
            if let Some(f) = short {
                return Ok(self.result(ty, l, |r, m| format!("Reg::{f}({r}, {x}, {}, {m});", s.s)));
            }
        }
        let (x, l1) = self.as_reg(d, &a);
        let (y, l2) = self.as_reg(d, &b);
        let level = l1.max(l2);
        let f = match op {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div => "Div",
            BinaryOp::Min => "Min",
            BinaryOp::Max => "Max",
            BinaryOp::And => "And",
            BinaryOp::Or => "Or",
            BinaryOp::Xor => "Xor",
            BinaryOp::Shl => "ShiftLeft",
            BinaryOp::Shr => "ShiftRight",
            BinaryOp::Rem => return self.refuse(id, "vector registers have no remainder"),
        };
        if matches!(op, BinaryOp::Shl | BinaryOp::Shr) {
            return Ok(
                self.result(ty, level, |r, m| format!("Reg::{f}({r}, {x}, (Reg::RegTensor<int32_t>&){y}, {m});"))
            );
        }
        Ok(self.result(ty, level, |r, m| format!("Reg::{f}({r}, {x}, {y}, {m});")))
    }

    pub(super) fn muls(&mut self, x: &str, l: Level, by: &str) -> Opd {
        self.result("float", l, |r, m| format!("Reg::Muls({r}, {x}, {by}, {m});"))
    }

    pub(super) fn unary(&mut self, id: OpId, d: DType, op: UnaryOp, x: Opd) -> Res<Opd> {
        if let Opd::Scalar(t) = &x
            && let Some(t) = scalar::unary(d, op, t)
        {
            return Ok(Opd::Scalar(t));
        }
        if d == DType::Bool {
            let (m, l) = self.as_mask(&x);
            let n = self.reg("mask", "m");
            let mask = self.mask(l);
            self.emit(l, format!("Reg::Not({n}, {m}, {mask});"));
            return Ok(Opd::Mask(n, l));
        }
        let (r, l) = self.as_reg(d, &x);
        let ty = ty_reg(d);
        let simple = |f: &'static str| move |o: &str, m: &str| format!("Reg::{f}({o}, {r}, {m});");
        if d == DType::F32 {
            let (r, _) = self.as_reg(d, &x);
            return Ok(match op {
                UnaryOp::Neg => self.muls(&r, l, "-1.0f"),
                UnaryOp::Abs => self.result(ty, l, |o, m| format!("Reg::Abs({o}, {r}, {m});")),
                UnaryOp::Sqrt => self.result(ty, l, |o, m| format!("Reg::Sqrt({o}, {r}, {m});")),
                UnaryOp::Exp2 => {
                    let t = self.muls(&r, l, "0.6931471805599453f");
                    let (t, _) = self.as_reg(d, &t);
                    self.result(ty, l, |o, m| format!("Reg::Exp({o}, {t}, {m});"))
                }
                UnaryOp::Log2 => {
                    let t = self.result(ty, l, |o, m| format!("Reg::Ln({o}, {r}, {m});"));
                    let (t, _) = self.as_reg(d, &t);
                    self.muls(&t, l, "1.4426950408889634f")
                }
                UnaryOp::Rsqrt | UnaryOp::Recip => {
                    let one = self.as_reg(d, &Opd::Scalar(Text::name("1.0f"))).0;
                    let root = if op == UnaryOp::Rsqrt {
                        let t = self.result(ty, l, |o, m| format!("Reg::Sqrt({o}, {r}, {m});"));
                        self.as_reg(d, &t).0
                    } else {
                        r
                    };
                    self.result(ty, l, |o, m| format!("Reg::Div({o}, {one}, {root}, {m});"))
                }
                UnaryOp::Not | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Floor | UnaryOp::Ceil => {
                    return self.refuse(id, format!("vector registers have no `{}`", op.name()));
                }
            });
        }
        if !matches!(d, DType::I32 | DType::U32) {
            return self.refuse(id, format!("vector registers have no `{}` of {d}", op.name()));
        }
        Ok(match op {
            UnaryOp::Not => self.result(ty, l, simple("Not")),
            UnaryOp::Abs if d == DType::I32 => self.result(ty, l, simple("Abs")),
            UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil => x,
            UnaryOp::Neg => {
                let zero = Opd::Scalar(Text::name("0"));
                self.binary(id, d, BinaryOp::Sub, zero, x)?
            }
            UnaryOp::Exp2
            | UnaryOp::Log2
            | UnaryOp::Rsqrt
            | UnaryOp::Sqrt
            | UnaryOp::Recip
            | UnaryOp::Sin
            | UnaryOp::Cos => {
                return self.refuse(id, format!("vector registers have no `{}` of integers", op.name()));
            }
        })
    }

    pub(super) fn compare(&mut self, id: OpId, d: DType, op: CmpOp, a: Opd, b: Opd) -> Res<Opd> {
        if let (Opd::Scalar(x), Opd::Scalar(y)) = (&a, &b) {
            return Ok(Opd::Scalar(scalar::compare(op, x, y)));
        }
        let d = match d {
            DType::F32 | DType::I32 | DType::U32 => d,
            DType::U8 => DType::U32,
            DType::Bf16 | DType::F16 => {
                let (x, y) = (self.cast(id, d, DType::F32, a)?, self.cast(id, d, DType::F32, b)?);
                return self.compare(id, DType::F32, op, x, y);
            }
            DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 | DType::I8 | DType::I64 | DType::Bool => {
                return self.refuse(id, format!("vector registers have no comparison of {d}"));
            }
        };
        let mode = |op: CmpOp| match op {
            CmpOp::Lt => "LT",
            CmpOp::Le => "LE",
            CmpOp::Gt => "GT",
            CmpOp::Ge => "GE",
            CmpOp::Eq => "EQ",
            CmpOp::Ne => "NE",
        };
        let ty = ty_reg(d);
        let swapped = match op {
            CmpOp::Lt => CmpOp::Gt,
            CmpOp::Le => CmpOp::Ge,
            CmpOp::Gt => CmpOp::Lt,
            CmpOp::Ge => CmpOp::Le,
            CmpOp::Eq | CmpOp::Ne => op,
        };
        let n = self.reg("mask", "m");
        if let (Opd::Reg(x, l), Opd::Scalar(s)) = (&a, &b) {
            let mask = self.mask(*l);
            let s = if d == DType::F32 { s.s.clone() } else { format!("static_cast<{ty}>({})", s.s) };
            self.emit(*l, format!("Reg::Compares<{ty}, CMPMODE::{}>({n}, {x}, {s}, {mask});", mode(op)));
            return Ok(Opd::Mask(n, *l));
        }
        if let (Opd::Scalar(s), Opd::Reg(x, l)) = (&a, &b) {
            let mask = self.mask(*l);
            let s = if d == DType::F32 { s.s.clone() } else { format!("static_cast<{ty}>({})", s.s) };
            self.emit(*l, format!("Reg::Compares<{ty}, CMPMODE::{}>({n}, {x}, {s}, {mask});", mode(swapped)));
            return Ok(Opd::Mask(n, *l));
        }
        let (x, l1) = self.as_reg(d, &a);
        let (y, l2) = self.as_reg(d, &b);
        let level = l1.max(l2);
        let mask = self.mask(level);
        self.emit(level, format!("Reg::Compare<{ty}, CMPMODE::{}>({n}, {x}, {y}, {mask});", mode(op)));
        Ok(Opd::Mask(n, level))
    }

    pub(super) fn select(&mut self, d: DType, c: Opd, a: Opd, b: Opd) -> Opd {
        if let (Opd::Scalar(c), Opd::Scalar(x), Opd::Scalar(y)) = (&c, &a, &b) {
            return Opd::Scalar(Text::choose(c, x, y));
        }
        let (m, l0) = self.as_mask(&c);
        if d == DType::Bool {
            let (x, l1) = self.as_mask(&a);
            let (y, l2) = self.as_mask(&b);
            let level = l0.max(l1).max(l2);
            let n = self.reg("mask", "m");
            self.emit(level, format!("Reg::Select({n}, {x}, {y}, {m});"));
            return Opd::Mask(n, level);
        }
        let (x, l1) = self.as_reg(d, &a);
        let (y, l2) = self.as_reg(d, &b);
        let level = l0.max(l1).max(l2);
        self.result(ty_reg(d), level, |r, _| format!("Reg::Select({r}, {x}, {y}, {m});"))
    }

    pub(super) fn cast(&mut self, id: OpId, from: DType, to: DType, x: Opd) -> Res<Opd> {
        if from == to {
            return Ok(x);
        }
        if let Opd::Scalar(t) = &x
            && let Some(t) = scalar::cast(from, to, t)
        {
            return Ok(Opd::Scalar(t));
        }
        let narrow = |d: DType| matches!(d, DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2);
        let integer = |d: DType| matches!(d, DType::I32 | DType::U32 | DType::U8 | DType::I8 | DType::Bool);
        if from == DType::Bool {
            let (r, _) = self.as_reg(from, &x);
            let u = Opd::Reg(r, level_of(&x));
            return if to == DType::F32 {
                self.cast(id, DType::I32, DType::F32, u)
            } else {
                self.cast(id, DType::U32, to, u)
            };
        }
        let (r, l) = self.as_reg(from, &x);
        if narrow(from) && to == DType::F32 {
            let ty = ty_reg(from);
            let t = self.lo.trait_of(from, to);
            return Ok(self.result("float", l, |o, m| format!("Reg::Cast<float, {ty}, {t}>({o}, {r}, {m});")));
        }
        if narrow(from) {
            let f = self.cast(id, from, DType::F32, x)?;
            return self.cast(id, DType::F32, to, f);
        }
        if from == DType::F32 && narrow(to) {
            let ty = ty_reg(to);
            let t = self.lo.trait_of(from, to);
            return Ok(self.result(ty, l, |o, m| format!("Reg::Cast<{ty}, float, {t}>({o}, {r}, {m});")));
        }
        if from == DType::E8m0 && to == DType::F32 {
            // The byte is the exponent; 0 stands for 2^-127, which is subnormal, and 255 for NaN.
            let s = self.binary(id, DType::U32, BinaryOp::Shl, x.clone(), Opd::Scalar(Text::name("23")))?;
            let low = self.compare(id, DType::U32, CmpOp::Eq, x.clone(), Opd::Scalar(Text::name("0u")))?;
            let s = self.select(DType::U32, low, Opd::Scalar(Text::name("0x400000u")), s);
            let nan = self.compare(id, DType::U32, CmpOp::Eq, x, Opd::Scalar(Text::name("255u")))?;
            let s = self.select(DType::U32, nan, Opd::Scalar(Text::name("0x7fc00000u")), s);
            return Ok(self.view(s, "float"));
        }
        if from == DType::F32 && to == DType::E8m0 {
            let u = self.view(x, "uint32_t");
            let s = self.binary(id, DType::U32, BinaryOp::Shr, u, Opd::Scalar(Text::name("23")))?;
            return self.binary(id, DType::U32, BinaryOp::And, s, Opd::Scalar(Text::name("255u")));
        }
        if from == DType::F32 && to == DType::I32 {
            let t = self.lo.trait_of(from, to);
            return Ok(self.result("int32_t", l, |o, m| format!("Reg::Cast<int32_t, float, {t}>({o}, {r}, {m});")));
        }
        if matches!(from, DType::I32 | DType::U8) && to == DType::F32 {
            let t = self.lo.trait_of(DType::I32, to);
            let r = if from == DType::U8 { format!("(Reg::RegTensor<int32_t>&){r}") } else { r };
            return Ok(self.result("float", l, |o, m| format!("Reg::Cast<float, int32_t, {t}>({o}, {r}, {m});")));
        }
        if from == DType::I32 && narrow(to) {
            let f = self.cast(id, from, DType::F32, x)?;
            return self.cast(id, DType::F32, to, f);
        }
        if integer(from) && to == DType::Bool {
            let (m, l) = self.nonzero(&format!("(Reg::RegTensor<uint32_t>&){r}"), l);
            return Ok(Opd::Mask(m, l));
        }
        if integer(from) && matches!(to, DType::I32 | DType::U32) && from != DType::I8 {
            return Ok(self.view(x, ty_reg(to)));
        }
        if integer(from) && to == DType::U8 {
            let u = self.view(x, "uint32_t");
            return self.binary(id, DType::U32, BinaryOp::And, u, Opd::Scalar(Text::name("255u")));
        }
        self.refuse(id, format!("vector registers have no conversion from {from} to {to}"))
    }

    /// The same register as another type.
    pub(super) fn view(&mut self, x: Opd, ty: &'static str) -> Opd {
        match x {
            Opd::Reg(r, l) => {
                let bare = r.rsplit(')').next().unwrap_or(&r).trim_start_matches("&").to_string();
                Opd::Reg(format!("(Reg::RegTensor<{ty}>&){bare}"), l)
            }
            Opd::Scalar(_) | Opd::Mask(..) => x,
        }
    }
}
