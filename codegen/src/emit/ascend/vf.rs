//! Element loops as functions on vector registers (arch 3510).
//!
//! A function walks the outer loop variables one by one and the inner ones 64 at a time. Every value takes a 32-bit lane; narrow
//! elements are unpacked when loaded and packed when stored. What does not change along the lanes is computed before the
//! lane loop, in all lanes. Elements that do not follow each other are gathered and scattered as words of 32 bits.
//! Masked operations clear the lanes outside their mask, so sums run over all lanes.

use super::form::{Coef, Form, Forms, Local};
use super::lower::{Lower, Res, Tile, type_of};
use super::scalar;
use super::stage::Ub;
use super::tree::BufId;
use crate::emit::cuda::expr::{ADD, MUL, Text};
use crate::ir::{
    BinaryOp, BufferId, CmpOp, DType, IfResult, IxExpr, IxId, IxVarId, Literal, Op, OpId, ReduceOp, UnaryOp, ValueId,
};
use std::collections::{BTreeMap, HashMap};

/// Lanes of a register of 32-bit elements.
pub const LANES: usize = 64;

/// A value inside a vector function.
#[derive(Clone, Debug)]
pub enum Opd {
    /// The same in all lanes, known to the scalar unit.
    Scalar(Text),
    /// A register.
    Reg(String, Level),
    /// A mask: a truth value a lane.
    Mask(String, Level),
}

/// Where a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Once a function.
    Once,
    /// In the loops over outer variables, the same in all lanes.
    Outer,
    /// In the lane loop.
    Lane,
}

/// Who gives a memory access its address.
pub type Sites = HashMap<OpId, Ub>;

/// A vector function while it is written.
pub struct Vf<'v, 'a> {
    /// The lowering.
    pub lo: &'v mut Lower<'a>,
    local: &'v Local,
    outer: Vec<(IxVarId, usize, String)>,
    lanes: Vec<(IxVarId, usize)>,
    once: Vec<String>,
    rows: Vec<String>,
    steps: Vec<String>,
    after: Vec<String>,
    regs: BTreeMap<&'static str, Vec<String>>,
    args: Vec<(String, String)>,
    values: HashMap<ValueId, Opd>,
    index: HashMap<IxVarId, Opd>,
    variables: HashMap<BufferId, String>,
    constants: HashMap<String, String>,
    counts: HashMap<String, usize>,
    sites: &'v Sites,
    /// Buffers read and written.
    pub touched: (Vec<BufId>, Vec<BufId>),
    /// Mask of the lanes a store may write, inside branches.
    pred: Option<String>,
    nest: usize,
    flat: Option<String>,
}

fn ty_reg(d: DType) -> &'static str {
    match d {
        DType::F32 => "float",
        DType::I32 => "int32_t",
        DType::U32 | DType::U8 | DType::I8 | DType::E8m0 | DType::Bool | DType::E2m1 => "uint32_t",
        DType::Bf16 => "bfloat16_t",
        DType::F16 => "half",
        DType::E4m3 => "fp8_e4m3fn_t",
        DType::E5m2 => "fp8_e5m2_t",
        DType::I64 => "int64_t",
    }
}

impl<'v, 'a> Vf<'v, 'a> {
    /// A function for the loop of `op` over `vars`, outermost first; `lanes` of them, counted from the last, go along lanes.
    pub fn new(
        lo: &'v mut Lower<'a>,
        local: &'v Local,
        vars: &[(IxVarId, usize)],
        lanes: usize,
        sites: &'v Sites,
    ) -> Self {
        let split = vars.len() - lanes;
        let mut counts = HashMap::new();
        let outer = vars[..split].iter().filter(|v| v.1 > 1).map(|&(v, e)| (v, e)).collect::<Vec<_>>();
        let mut named = vec![];
        for (v, e) in outer {
            named.push((v, e, fresh(&mut counts, &lo.k.ix_var(v).name)));
        }
        let lanes = vars[split..].iter().copied().filter(|v| v.1 > 1).collect();
        Vf {
            lo,
            local,
            outer: named,
            lanes,
            once: vec![],
            rows: vec![],
            steps: vec![],
            after: vec![],
            regs: BTreeMap::new(),
            args: vec![],
            values: HashMap::new(),
            index: HashMap::new(),
            variables: HashMap::new(),
            constants: HashMap::new(),
            counts,
            sites,
            touched: (vec![], vec![]),
            pred: None,
            nest: 0,
            flat: None,
        }
    }

    fn fresh(&mut self, wish: &str) -> String {
        fresh(&mut self.counts, wish)
    }
    fn reg(&mut self, ty: &'static str, wish: &str) -> String {
        let n = self.fresh(wish);
        self.regs.entry(ty).or_default().push(n.clone());
        n
    }
    fn emit(&mut self, level: Level, line: impl Into<String>) {
        let line = line.into();
        match level {
            Level::Once => self.once.push(line),
            Level::Outer => self.rows.push(line),
            Level::Lane => self.steps.push(line),
        }
    }
    fn mask(&self, level: Level) -> &'static str {
        if level == Level::Lane { "lanes" } else { "all" }
    }
    fn arg(&mut self, wish: &str, ty: &str, text: &str) -> String {
        let head = format!("{ty} ");
        if let Some((decl, _)) = self.args.iter().find(|(d, t)| t == text && d.starts_with(&head)) {
            return decl.rsplit(' ').next().unwrap_or_default().to_string();
        }
        let name = self.fresh(wish);
        self.args.push((format!("{ty} {name}"), text.to_string()));
        name
    }
    fn refuse<T>(&self, id: OpId, what: impl Into<String>) -> Res<T> {
        Err(self.lo.refuse(id, what, "write it with other operations, or choose another target"))
    }
    fn total(&self) -> usize {
        self.lanes.iter().map(|v| v.1).product()
    }

    // --- operands ---

    /// An operand as a register of its dtype.
    pub fn as_reg(&mut self, d: DType, x: &Opd) -> (String, Level) {
        match x {
            Opd::Reg(r, l) => (r.clone(), *l),
            Opd::Scalar(t) => {
                let ty = ty_reg(d);
                let key = format!("{ty} {}", t.s);
                if let Some(r) = self.constants.get(&key) {
                    return (r.clone(), Level::Once);
                }
                let level = if self.outer.iter().any(|(_, _, n)| word(&t.s, n)) { Level::Outer } else { Level::Once };
                let level = if self.nest > 0 { Level::Lane } else { level };
                let r = self.reg(ty, "c");
                let bits = match d {
                    DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2 => {
                        // Bits of a narrow float in the low part of each lane.
                        self.emit(
                            level,
                            format!(
                                "Reg::Duplicate((Reg::RegTensor<uint32_t>&){r}, static_cast<uint32_t>({}), all);",
                                t.s
                            ),
                        );
                        None
                    }
                    DType::F32
                    | DType::I32
                    | DType::U32
                    | DType::U8
                    | DType::I8
                    | DType::E8m0
                    | DType::Bool
                    | DType::E2m1
                    | DType::I64 => {
                        Some(if ty == "float" { t.s.clone() } else { format!("static_cast<{ty}>({})", t.s) })
                    }
                };
                if let Some(v) = bits {
                    self.emit(level, format!("Reg::Duplicate({r}, {v}, all);"));
                }
                if level == Level::Once {
                    self.constants.insert(key, r.clone());
                }
                (r, level)
            }
            Opd::Mask(m, l) => {
                let (m, l) = (m.clone(), *l);
                let one = self.as_reg(DType::U32, &Opd::Scalar(Text::name("1u"))).0;
                let zero = self.as_reg(DType::U32, &Opd::Scalar(Text::name("0u"))).0;
                let r = self.reg("uint32_t", "b");
                self.emit(l, format!("Reg::Select({r}, {one}, {zero}, {m});"));
                (r, l)
            }
        }
    }

    /// A truth value as a mask.
    fn as_mask(&mut self, x: &Opd) -> (String, Level) {
        match x {
            Opd::Mask(m, l) => (m.clone(), *l),
            Opd::Scalar(t) => {
                let (r, l) = self.as_reg(DType::U32, &Opd::Scalar(Text::name(format!("({} ? 1u : 0u)", t.s))));
                self.nonzero(&r, l)
            }
            Opd::Reg(r, l) => {
                let (r, l) = (r.clone(), *l);
                self.nonzero(&r, l)
            }
        }
    }
    fn nonzero(&mut self, r: &str, l: Level) -> (String, Level) {
        let m = self.reg("mask", "m");
        let mask = self.mask(l);
        self.emit(l, format!("Reg::Compares<uint32_t, CMPMODE::NE>({m}, {r}, 0u, {mask});"));
        (m, l)
    }

    /// A value of the IR.
    fn value(&mut self, v: ValueId) -> Opd {
        if let Some(x) = self.values.get(&v) {
            return x.clone();
        }
        if self.lo.k.literal(v).is_some() {
            return Opd::Scalar(self.lo.val(v));
        }
        let t = self.lo.val(v);
        let d = self.lo.dtype(v);
        let (wish, ty) = if d == DType::Bool { (t.s.clone(), "uint32_t") } else { (t.s.clone(), scalar::type_of(d)) };
        let wish = if wish.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') { wish } else { "x".into() };
        let text = if d == DType::Bool { format!("static_cast<uint32_t>({})", t.s) } else { t.s };
        let name = self.arg(&wish, ty, &text);
        Opd::Scalar(if d == DType::Bool {
            Text::of(format!("{name} != 0u"), crate::emit::cuda::expr::EQUAL)
        } else {
            Text::name(name)
        })
    }

    // --- arithmetic ---

    fn result(&mut self, ty: &'static str, level: Level, f: impl FnOnce(&str, &str) -> String) -> Opd {
        let r = self.reg(ty, "t");
        let m = self.mask(level);
        let line = f(&r, m);
        self.emit(level, line);
        Opd::Reg(r, level)
    }

    /// `a op b`.
    fn binary(&mut self, id: OpId, d: DType, op: BinaryOp, a: Opd, b: Opd) -> Res<Opd> {
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

    fn muls(&mut self, x: &str, l: Level, by: &str) -> Opd {
        self.result("float", l, |r, m| format!("Reg::Muls({r}, {x}, {by}, {m});"))
    }

    fn unary(&mut self, id: OpId, d: DType, op: UnaryOp, x: Opd) -> Res<Opd> {
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

    fn compare(&mut self, id: OpId, d: DType, op: CmpOp, a: Opd, b: Opd) -> Res<Opd> {
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

    fn select(&mut self, d: DType, c: Opd, a: Opd, b: Opd) -> Opd {
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

    fn cast(&mut self, id: OpId, from: DType, to: DType, x: Opd) -> Res<Opd> {
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
    fn view(&mut self, x: Opd, ty: &'static str) -> Opd {
        match x {
            Opd::Reg(r, l) => {
                let bare = r.rsplit(')').next().unwrap_or(&r).trim_start_matches("&").to_string();
                Opd::Reg(format!("(Reg::RegTensor<{ty}>&){bare}"), l)
            }
            Opd::Scalar(_) | Opd::Mask(..) => x,
        }
    }

    // --- indices ---

    /// An index as data: a number of the scalar unit, or 32-bit lanes.
    fn lane_ix(&mut self, id: OpId, ix: IxId) -> Res<Opd> {
        let forms = Forms { k: self.lo.k, ranges: self.lo.ranges, local: self.local, split: None };
        if !forms.lanewise(ix) {
            let t = self.lo.ix(ix);
            if t.s.parse::<i64>().is_ok() {
                return Ok(Opd::Scalar(t));
            }
            let name = self.arg("at", "int32_t", &format!("static_cast<int32_t>({})", t.s));
            return Ok(Opd::Scalar(Text::name(name)));
        }
        let k = self.lo.k;
        let int = |s: &mut Self, op, a, b| -> Res<Opd> {
            let (x, y) = (s.lane_ix(id, a)?, s.lane_ix(id, b)?);
            s.binary(id, DType::I32, op, x, y)
        };
        match k.ix_expr(ix) {
            IxExpr::Const(_) | IxExpr::Sym(_) => Ok(Opd::Scalar(self.lo.ix(ix))),
            IxExpr::Var(v) => {
                if let Some(x) = self.index.get(&v) {
                    return Ok(x.clone());
                }
                let x = if let Some((_, _, n)) = self.outer.iter().find(|o| o.0 == v) {
                    Opd::Scalar(Text::call("static_cast<int32_t>", &[&Text::name(n.clone())]))
                } else if let Some(at) = self.lanes.iter().position(|l| l.0 == v) {
                    self.lane_var(id, at)?
                } else {
                    Opd::Scalar(Text::number(0))
                };
                // Elements of the second vector core are numbered after those of the first.
                match self.lo.split_now.filter(|s| s.0 == v) {
                    None => Ok(x),
                    Some((_, half, sub)) => {
                        let t = Text::mul(&self.lo.ix(sub), &Text::number(half));
                        let skip = self.arg("skip", "int32_t", &format!("static_cast<int32_t>({})", t.s));
                        self.binary(id, DType::I32, BinaryOp::Add, x, Opd::Scalar(Text::name(skip)))
                    }
                }
            }
            IxExpr::Data(v) => {
                let d = self.lo.dtype(v);
                let x = self.value(v);
                match d {
                    DType::I32 => Ok(x),
                    DType::U32 => Ok(self.view(x, "int32_t")),
                    DType::F32
                    | DType::F16
                    | DType::Bf16
                    | DType::E4m3
                    | DType::E5m2
                    | DType::E2m1
                    | DType::E8m0
                    | DType::I8
                    | DType::U8
                    | DType::I64
                    | DType::Bool => self.refuse(id, format!("an index of {d} in vector code")),
                }
            }
            IxExpr::Add(a, b) => int(self, BinaryOp::Add, a, b),
            IxExpr::Sub(a, b) => int(self, BinaryOp::Sub, a, b),
            IxExpr::Mul(a, b) => int(self, BinaryOp::Mul, a, b),
            IxExpr::Min(a, b) => int(self, BinaryOp::Min, a, b),
            IxExpr::Max(a, b) => int(self, BinaryOp::Max, a, b),
            IxExpr::Div(a, b) | IxExpr::Mod(a, b) => {
                let division = matches!(k.ix_expr(ix), IxExpr::Div(..));
                if !self.lo.ranges.never_below_zero(a) {
                    return self.refuse(id, "vector code divides only indices that are never negative");
                }
                let (x, y) = (self.lane_ix(id, a)?, self.lane_ix(id, b)?);
                self.divide(id, x, y, division)
            }
        }
    }

    /// Quotient or remainder of indices that are not negative.
    fn divide(&mut self, id: OpId, x: Opd, y: Opd, division: bool) -> Res<Opd> {
        if let (Opd::Scalar(a), Opd::Scalar(b)) = (&x, &y) {
            let op = if division { "/" } else { "%" };
            return Ok(Opd::Scalar(Text::of(format!("{} {op} {}", a.at(MUL), b.at(MUL + 1)), MUL)));
        }
        let power =
            if let Opd::Scalar(t) = &y { t.s.parse::<u32>().ok().filter(|c| c.is_power_of_two()) } else { None };
        if let Some(c) = power {
            return if division {
                if c == 1 {
                    return Ok(x);
                }
                self.binary(id, DType::I32, BinaryOp::Shr, x, Opd::Scalar(Text::number(i64::from(c.trailing_zeros()))))
            } else {
                self.binary(id, DType::I32, BinaryOp::And, x, Opd::Scalar(Text::number(i64::from(c) - 1)))
            };
        }
        let q = self.binary(id, DType::I32, BinaryOp::Div, x.clone(), y.clone())?;
        if division {
            return Ok(q);
        }
        let p = self.binary(id, DType::I32, BinaryOp::Mul, q, y)?;
        self.binary(id, DType::I32, BinaryOp::Sub, x, p)
    }

    /// Lanes with the value of a variable that goes along them.
    fn lane_var(&mut self, id: OpId, at: usize) -> Res<Opd> {
        let flat = match &self.flat {
            Some(r) => r.clone(),
            None => {
                let r = self.reg("int32_t", "lane");
                let base =
                    if self.total() > LANES { format!("static_cast<int32_t>(step * {LANES})") } else { "0".into() };
                // Before anything else of the step: later ops may be in branches.
                self.steps.insert(0, format!("Reg::Arange({r}, {base});"));
                self.flat = Some(r.clone());
                r
            }
        };
        let mut x = Opd::Reg(flat, Level::Lane);
        let below: usize = self.lanes[at + 1..].iter().map(|v| v.1).product();
        if below > 1 {
            x = self.divide(id, x, Opd::Scalar(Text::number(below as i64)), true)?;
        }
        if at > 0 {
            x = self.divide(id, x, Opd::Scalar(Text::number(self.lanes[at].1 as i64)), false)?;
        }
        self.index.insert(self.lanes[at].0, x.clone());
        Ok(x)
    }

    // --- memory ---

    /// Address of an access: text of the part that is the same in all lanes, and lanes of offsets where they do not follow
    /// each other. The flags say that all lanes are one element, and that the address keeps the alignment.
    fn address(&mut self, id: OpId, u: &Ub) -> Res<(String, Option<Opd>, bool, bool)> {
        let coef = |v: IxVarId| u.elem.iter().find(|(x, _)| *x == v).map_or(0, |p| p.1);
        let mut step = 1i64;
        let mut follows = true;
        let mut still = true;
        for &(v, e) in self.lanes.iter().rev() {
            follows &= coef(v) == step;
            still &= coef(v) == 0;
            step *= e as i64;
        }
        let forms = Forms { k: self.lo.k, ranges: self.lo.ranges, local: self.local, split: None };
        let _ = &forms;
        let mut lanes: Option<Opd> = None;
        let mut at = Text::number(0);
        let mut multiple = u.multiple;
        for &(ix, c) in &u.opaque {
            let x = self.lane_ix(id, ix)?;
            match x {
                Opd::Scalar(t) => {
                    at = Text::add(&at, &Text::mul(&t, &Text::number(c)));
                    multiple = gcd(multiple, c);
                }
                x @ (Opd::Reg(..) | Opd::Mask(..)) => {
                    let x = self.binary(id, DType::I32, BinaryOp::Mul, x, Opd::Scalar(Text::number(c)))?;
                    lanes = Some(match lanes {
                        None => x,
                        Some(y) => self.binary(id, DType::I32, BinaryOp::Add, y, x)?,
                    });
                }
            }
        }
        for o in self.outer.clone() {
            let c = coef(o.0);
            if c != 0 {
                at = Text::add(&at, &Text::mul(&Text::name(o.2), &Text::number(c)));
                multiple = gcd(multiple, c);
            }
        }
        if lanes.is_some() || !(follows || still) {
            for i in 0..self.lanes.len() {
                let c = coef(self.lanes[i].0);
                if c == 0 {
                    continue;
                }
                let x = self.lane_var(id, i)?;
                let x = self.binary(id, DType::I32, BinaryOp::Mul, x, Opd::Scalar(Text::number(c)))?;
                lanes = Some(match lanes {
                    None => x,
                    Some(y) => self.binary(id, DType::I32, BinaryOp::Add, y, x)?,
                });
            }
        } else if follows && !still && self.total() > LANES {
            at = Text::add(&at, &Text::name(format!("step * {LANES}")));
        }
        let aligned = (multiple * u.width as i64) % self.lo.caps.align_bytes as i64 == 0;
        if lanes.is_none() && follows && !still && !aligned && self.total() > 1 {
            // Gathered one by one.
            let mut x = self.lane_var(id, self.lanes.len() - 1)?;
            for i in 0..self.lanes.len() - 1 {
                let c = coef(self.lanes[i].0);
                let y = self.lane_var(id, i)?;
                let y = self.binary(id, DType::I32, BinaryOp::Mul, y, Opd::Scalar(Text::number(c)))?;
                x = self.binary(id, DType::I32, BinaryOp::Add, x, y)?;
            }
            let t = at.s.replace(&format!("step * {LANES}"), "0");
            let t = t.trim_end_matches(" + 0").to_string();
            return Ok((t, Some(x), false, false));
        }
        Ok((at.s, lanes, still || self.total() == 1, aligned))
    }

    /// Pointer argument of a buffer at the part of an address that is the same for the whole loop.
    fn pointer(&mut self, u: &Ub, ty: &str) -> String {
        let b = self.lo.tensor(u.buf);
        let own = self.lo.bufs[u.buf.0].ty;
        let size = if u.width == 4 && own != "float" && own != "int32_t" && own != "uint32_t" { 4 } else { 0 };
        let text = if u.base.is_zero() {
            format!("(__ubuf__ {ty}*){b}.GetPhyAddr()")
        } else if size == 4 {
            format!("(__ubuf__ {ty}*){b}.GetPhyAddr() + ({})", u.base.s)
        } else {
            format!("(__ubuf__ {ty}*){b}[{}].GetPhyAddr()", u.base.s)
        };
        self.arg(&b, &format!("__ubuf__ {ty}*"), &text)
    }

    fn load(&mut self, id: OpId, u: &Ub) -> Res<Opd> {
        if !self.touched.0.contains(&u.buf) {
            self.touched.0.push(u.buf);
        }
        let (at, lanes, still, aligned) = self.address(id, u)?;
        let wide = u.width == 4;
        let ty: &'static str = if wide && u.dtype.bits() < 32 { "uint32_t" } else { type_of(u.dtype) };
        let p = self.pointer(u, ty);
        let p = if at == "0" { p } else { format!("{p} + {at}") };
        let level =
            if still && lanes.is_none() && self.nest == 0 && self.total() > 1 { Level::Outer } else { Level::Lane };
        let level = if level == Level::Outer && self.outer.is_empty() { Level::Once } else { level };
        let reg_ty: &'static str = if wide { ty } else { ty_reg(u.dtype) };
        let wish = self.lo.tensor(u.buf);
        if let Some(x) = lanes {
            if !wide {
                self.lo.wish_words(u.buf, id);
                return self
                    .refuse(id, format!("{} elements that do not follow each other cannot be gathered here", u.dtype));
            }
            let (i, _) = self.as_reg(DType::I32, &x);
            let bare = i.rsplit(')').next().unwrap_or(&i).trim_start_matches('&').to_string();
            let r = self.reg(reg_ty, &wish);
            self.emit(Level::Lane, format!("Reg::Gather({r}, {p}, (Reg::RegTensor<uint32_t>&){bare}, lanes);"));
            return self.narrowed(id, u.dtype, Opd::Reg(r, Level::Lane));
        }
        let r = self.reg(reg_ty, &wish);
        let bits = if wide { 32 } else { u.dtype.bits().max(8) };
        let line = if still {
            format!("Reg::LoadAlign<{ty}, Reg::LoadDist::DIST_BRC_B{bits}>({r}, {p});")
        } else {
            debug_assert!(aligned);
            match bits {
                32 => format!("Reg::LoadAlign({r}, {p});"),
                16 => format!("Reg::LoadAlign<{ty}, Reg::LoadDist::DIST_UNPACK_B16>({r}, {p});"),
                _ => {
                    let target = if reg_ty == ty { r.clone() } else { format!("(Reg::RegTensor<{ty}>&){r}") };
                    format!("Reg::LoadAlign<{ty}, Reg::LoadDist::DIST_UNPACK4_B8>({target}, {p});")
                }
            }
        };
        self.emit(level, line);
        self.narrowed(id, u.dtype, Opd::Reg(r, level))
    }

    /// A word as the narrow value in its low part.
    fn narrowed(&mut self, id: OpId, d: DType, x: Opd) -> Res<Opd> {
        match d {
            DType::F32 | DType::I32 | DType::U32 => Ok(x),
            DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2 => Ok(self.view(x, ty_reg(d))),
            DType::U8 | DType::E8m0 => {
                let x = self.view(x, "uint32_t");
                self.binary(id, DType::U32, BinaryOp::And, x, Opd::Scalar(Text::name("255u")))
            }
            DType::I8 | DType::E2m1 | DType::I64 | DType::Bool => {
                self.refuse(id, format!("vector code does not read {d}"))
            }
        }
    }

    fn store(&mut self, id: OpId, u: &Ub, x: Opd, d: DType) -> Res<()> {
        if !self.touched.1.contains(&u.buf) {
            self.touched.1.push(u.buf);
        }
        if matches!(d, DType::I64 | DType::E2m1 | DType::I8) {
            return self.refuse(id, format!("vector code does not write {d}"));
        }
        let (at, lanes, still, aligned) = self.address(id, u)?;
        let wide = u.width == 4;
        let ty: &'static str = if wide && u.dtype.bits() < 32 { "uint32_t" } else { type_of(u.dtype) };
        let (mut r, _) = self.as_reg(d, &x);
        let p = self.pointer(u, ty);
        let p = if at == "0" { p } else { format!("{p} + {at}") };
        let m = self.pred.clone().unwrap_or("lanes".into());
        let bits = if wide { 32 } else { u.dtype.bits().max(8) };
        if ty_reg(d) != ty {
            let bare = r.rsplit(')').next().unwrap_or(&r).trim_start_matches('&').to_string();
            r = format!("(Reg::RegTensor<{ty}>&){bare}");
        }
        let one = still && lanes.is_none();
        if let Some(i) = lanes {
            if !wide {
                self.lo.wish_words(u.buf, id);
                return self.refuse(
                    id,
                    format!("{} elements that do not follow each other cannot be scattered here", u.dtype),
                );
            }
            let (i, _) = self.as_reg(DType::I32, &i);
            let bare = i.rsplit(')').next().unwrap_or(&i).trim_start_matches('&').to_string();
            self.emit(Level::Lane, format!("Reg::Scatter({p}, {r}, (Reg::RegTensor<uint32_t>&){bare}, {m});"));
            return Ok(());
        }
        if one && self.total() == 1 {
            if self.pred.is_some() {
                if aligned && bits == 32 {
                    self.emit(Level::Lane, format!("Reg::StoreAlign({p}, {r}, {m});"));
                    return Ok(());
                }
                if bits == 32 {
                    let z = self.as_reg(DType::U32, &Opd::Scalar(Text::name("0u"))).0;
                    self.emit(Level::Lane, format!("Reg::Scatter({p}, {r}, {z}, {m});"));
                    return Ok(());
                }
                return self.refuse(id, "a narrow element is not stored under a condition of its own");
            }
            self.emit(
                Level::Lane,
                format!("Reg::StoreAlign<{ty}, Reg::StoreDist::DIST_FIRST_ELEMENT_B{bits}>({p}, {r}, {m});"),
            );
            return Ok(());
        }
        if one {
            return self.refuse(id, "all elements of a loop are stored at one place");
        }
        let line = match bits {
            32 => format!("Reg::StoreAlign({p}, {r}, {m});"),
            16 => format!("Reg::StoreAlign<{ty}, Reg::StoreDist::DIST_PACK_B32>({p}, {r}, {m});"),
            _ => format!("Reg::StoreAlign<{ty}, Reg::StoreDist::DIST_PACK4_B32>({p}, {r}, {m});"),
        };
        self.emit(Level::Lane, line);
        Ok(())
    }

    // --- bodies ---

    /// The ops of a body.
    pub fn body(&mut self, block: crate::ir::BlockId) -> Res<()> {
        for &id in &self.lo.k.block(block).ops {
            self.one(id)?;
        }
        Ok(())
    }

    fn one(&mut self, id: OpId) -> Res<()> {
        let k = self.lo.k;
        let done = match &k.op(id).op {
            Op::Const { .. } => return Ok(()),
            Op::IndexValue { result, index } => {
                let d = self.lo.dtype(*result);
                let x = self.lane_ix(id, *index)?;
                let x = if d == DType::U32 { self.view(x, "uint32_t") } else { x };
                if d == DType::I64 && !matches!(x, Opd::Scalar(_)) {
                    return self.refuse(id, "vector code has no 64-bit integers");
                }
                (*result, x)
            }
            Op::Unary { result, op, x } => {
                let a = self.value(*x);
                (*result, self.unary(id, self.lo.dtype(*result), *op, a)?)
            }
            Op::Binary { result, op, a, b } => {
                let (x, y) = (self.value(*a), self.value(*b));
                (*result, self.binary(id, self.lo.dtype(*result), *op, x, y)?)
            }
            Op::Fma { result, a, b, c } => {
                let (x, y, z) = (self.value(*a), self.value(*b), self.value(*c));
                let (x, l1) = self.as_reg(DType::F32, &x);
                let (y, l2) = self.as_reg(DType::F32, &y);
                let (z, l3) = self.as_reg(DType::F32, &z);
                let level = l1.max(l2).max(l3);
                let r = self.reg("float", "t");
                let m = self.mask(level);
                // The sum replaces its addend, so it works on a copy.
                self.emit(level, format!("Reg::Select({r}, {z}, {z}, {m});"));
                self.emit(level, format!("Reg::MulAddDst({r}, {x}, {y}, {m});"));
                (*result, Opd::Reg(r, level))
            }
            Op::Compare { result, op, a, b } => {
                let (x, y) = (self.value(*a), self.value(*b));
                (*result, self.compare(id, self.lo.dtype(*a), *op, x, y)?)
            }
            Op::CompareIndex { result, op, a, b } => {
                let (x, y) = (self.lane_ix(id, *a)?, self.lane_ix(id, *b)?);
                (*result, self.compare(id, DType::I32, *op, x, y)?)
            }
            Op::Select { result, cond, a, b } => {
                let (c, x, y) = (self.value(*cond), self.value(*a), self.value(*b));
                (*result, self.select(self.lo.dtype(*result), c, x, y))
            }
            Op::Cast { result, x } => {
                let a = self.value(*x);
                (*result, self.cast(id, self.lo.dtype(*x), self.lo.dtype(*result), a)?)
            }
            Op::Bits { result, x } => {
                let (from, to) = (self.lo.dtype(*x), self.lo.dtype(*result));
                let a = self.value(*x);
                let r = match a {
                    Opd::Scalar(t) => Opd::Scalar(scalar::bits(from, to, &t)),
                    a @ (Opd::Reg(..) | Opd::Mask(..)) if to == DType::Bool || from == DType::Bool => a,
                    a @ (Opd::Reg(..) | Opd::Mask(..)) => self.view(a, ty_reg(to)),
                };
                (*result, r)
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let d = self.lo.dtype(*value);
                if !matches!(d, DType::I32 | DType::U32) {
                    return self.refuse(id, format!("an index of {d} in vector code"));
                }
                let x = self.value(*value);
                let (a, b) = (self.lane_ix(id, *lo)?, self.lane_ix(id, *hi)?);
                let x = self.binary(id, d, BinaryOp::Max, x, a)?;
                let x = self.binary(id, d, BinaryOp::Min, x, b)?;
                let x = self.view(x, "int32_t");
                self.index.insert(*var, x);
                return Ok(());
            }
            Op::VarNew { var, init } => {
                let d = k.buffer(*var).dtype;
                let x = self.value(*init);
                let (r, _) = self.as_reg(d, &x);
                let v = self.reg(ty_reg(d), &k.buffer(*var).name.clone());
                let level = Level::Lane;
                let zero = self.zero(d);
                self.emit(level, format!("Reg::Select({v}, {r}, {zero}, lanes);"));
                self.variables.insert(*var, v);
                return Ok(());
            }
            Op::VarGet { result, var } => {
                let v = match self.variables.get(var) {
                    Some(v) => v.clone(),
                    None => {
                        let text = self.lo.vars.get(var).cloned().unwrap_or_default();
                        let d = k.buffer(*var).dtype;
                        let n = self.arg(&text, scalar::type_of(d), &text);
                        self.values.insert(*result, Opd::Scalar(Text::name(n)));
                        return Ok(());
                    }
                };
                let d = k.buffer(*var).dtype;
                // A snapshot: the variable may change before it is used.
                let zero = self.zero(d);
                let r = self.result(ty_reg(d), Level::Lane, |r, _| format!("Reg::Select({r}, {v}, {zero}, lanes);"));
                (*result, r)
            }
            Op::VarSet { var, value } => {
                let d = k.buffer(*var).dtype;
                let x = self.value(*value);
                let (r, _) = self.as_reg(d, &x);
                let Some(v) = self.variables.get(var).cloned() else {
                    return self.refuse(id, "an element loop sets a variable from outside");
                };
                let m = self.pred.clone().unwrap_or("lanes".into());
                self.emit(Level::Lane, format!("Reg::Select({v}, {r}, {v}, {m});"));
                return Ok(());
            }
            Op::Load { result, .. } => {
                let Some(u) = self.sites.get(&id).cloned() else { return self.refuse(id, "a read without a place") };
                (*result, self.load(id, &u)?)
            }
            Op::Store { value, .. } => {
                let Some(u) = self.sites.get(&id).cloned() else { return self.refuse(id, "a write without a place") };
                let x = self.value(*value);
                let d = self.lo.dtype(*value);
                return self.store(id, &u, x, d);
            }
            Op::If { cond, then, els, results } => {
                let c = self.value(*cond);
                let (m, l) = self.as_mask(&c);
                let outside = self.pred.clone();
                let inside = |s: &mut Self, block, not: bool| -> Res<()> {
                    let n = s.reg("mask", "m");
                    let base = outside.clone().unwrap_or("lanes".into());
                    if not {
                        s.emit(Level::Lane, format!("Reg::Not({n}, {m}, {base});"));
                    } else {
                        s.emit(Level::Lane, format!("Reg::And({n}, {m}, {base}, lanes);"));
                    }
                    s.pred = Some(n);
                    s.nest += 1;
                    let r = s.body(block);
                    s.nest -= 1;
                    s.pred = outside.clone();
                    r
                };
                inside(self, *then, false)?;
                if !k.block(*els).ops.is_empty() {
                    inside(self, *els, true)?;
                }
                for r in results {
                    match *r {
                        IfResult::Value { result, then, els } => {
                            let (x, y) = (self.value(then), self.value(els));
                            let d = self.lo.dtype(result);
                            let v = self.select(d, Opd::Mask(m.clone(), l), x, y);
                            self.values.insert(result, v);
                        }
                        IfResult::Index { result, then, els } => {
                            let (x, y) = (self.lane_ix(id, then)?, self.lane_ix(id, els)?);
                            let v = self.select(DType::I32, Opd::Mask(m.clone(), l), x, y);
                            self.index.insert(result, v);
                        }
                    }
                }
                return Ok(());
            }
            Op::For { var, lo, hi, body, .. } => {
                let (a, b) = (self.lane_ix(id, *lo)?, self.lane_ix(id, *hi)?);
                let (Opd::Scalar(a), Opd::Scalar(b)) = (a, b) else {
                    return self.refuse(id, "a loop of a length of its own for each element");
                };
                let n = self.fresh(&k.ix_var(*var).name);
                self.emit(Level::Lane, format!("for (int32_t {n} = {}; {n} < {}; ++{n}) {{", a.s, b.at(ADD)));
                self.index.insert(*var, Opd::Scalar(Text::name(n)));
                self.nest += 1;
                let r = self.body(*body);
                self.nest -= 1;
                self.emit(Level::Lane, "}");
                return r;
            }
            op @ (Op::LoadOr { .. }
            | Op::Atomic { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. }
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
            | Op::Loop { .. }
            | Op::Break
            | Op::Continue
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_)) => return self.refuse(id, format!("`{}` has no form on vector registers", op.name())),
        };
        self.values.insert(done.0, done.1);
        Ok(())
    }

    fn zero(&mut self, d: DType) -> String {
        let t = scalar::literal(Literal { dtype: d, bits: 0 });
        self.as_reg(d, &Opd::Scalar(t)).0
    }

    // --- reductions ---

    /// Folds a value of every lane and row into a register, which then goes to the first element of `to`.
    pub fn fold(&mut self, id: OpId, op: ReduceOp, d: DType, x: Opd, inner: bool, to: &Ub) -> Res<()> {
        if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
            return self.refuse(id, format!("no reduction of {d} on vector registers"));
        }
        let ty = ty_reg(d);
        let (f, start) = match (op, d) {
            (ReduceOp::Sum, DType::F32) => ("Add", "0.0f"),
            (ReduceOp::Sum, _) => ("Add", "0"),
            (ReduceOp::AbsMax, DType::F32) => ("Max", "0.0f"),
            (ReduceOp::Max, DType::F32) => ("Max", "NEG_INF"),
            (ReduceOp::Min, DType::F32) => ("Min", "POS_INF"),
            (ReduceOp::Max, DType::I32) => ("Max", "-2147483647 - 1"),
            (ReduceOp::Max, _) => ("Max", "0u"),
            (ReduceOp::Min, DType::I32) => ("Min", "2147483647"),
            (ReduceOp::Min, _) => ("Min", "4294967295u"),
            (ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or, _) => {
                return self.refuse(id, format!("no `{}` of {d} on vector registers", op.name()));
            }
        };
        let (mut x, _) = self.as_reg(d, &x);
        if op == ReduceOp::AbsMax {
            let a = self.reg(ty, "t");
            self.emit(Level::Lane, format!("Reg::Abs({a}, {x}, lanes);"));
            x = a;
        }
        let start = if d == DType::F32 { start.to_string() } else { format!("static_cast<{ty}>({start})") };
        let acc = self.reg(ty, "sum");
        let row = if inner && !self.outer.is_empty() { Level::Outer } else { Level::Once };
        // Whatever else a row computes comes first.
        self.emit(row, format!("Reg::Duplicate({acc}, {start}, all);"));
        let cleared = matches!(op, ReduceOp::Sum | ReduceOp::AbsMax);
        let simple =
            self.steps.last().is_some_and(|l| l.ends_with(", lanes);") && l.contains(&format!("({x}, "))) && cleared;
        let term = if simple {
            // A masked operation has cleared the lanes outside.
            x
        } else {
            let t = self.reg(ty, "t");
            let neutral =
                if cleared { self.zero(d) } else { self.as_reg(d, &Opd::Scalar(Text::name(start.clone()))).0 };
            self.emit(Level::Lane, format!("Reg::Select({t}, {x}, {neutral}, lanes);"));
            t
        };
        self.emit(Level::Lane, format!("Reg::{f}({acc}, {acc}, {term}, all);"));
        let kind = match op {
            ReduceOp::Sum => "SUM",
            ReduceOp::Min => "MIN",
            ReduceOp::Max | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or => "MAX",
        };
        let r = self.reg(ty, "total");
        self.after.push(format!("Reg::Reduce<Reg::ReduceType::{kind}>({r}, {acc}, all);"));
        if !self.touched.1.contains(&to.buf) {
            self.touched.1.push(to.buf);
        }
        let p = self.pointer(to, ty);
        let mut at = Text::number(0);
        for o in self.outer.clone() {
            let c = to.elem.iter().find(|(v, _)| *v == o.0).map_or(0, |p| p.1);
            at = Text::add(&at, &Text::mul(&Text::name(o.2), &Text::number(c)));
        }
        let p = if at.is_zero() { p } else { format!("{p} + {}", at.s) };
        self.after.push(format!("Reg::StoreAlign<{ty}, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>({p}, {r}, all);"));
        Ok(())
    }

    /// Folds along a loop inside the lanes: every lane has its own result.
    pub fn fold_columns(
        &mut self,
        id: OpId,
        op: ReduceOp,
        d: DType,
        from: &Ub,
        axis: (IxVarId, usize),
        to: &Ub,
    ) -> Res<()> {
        let ty = ty_reg(d);
        let f = match (op, d) {
            (ReduceOp::Sum, DType::F32 | DType::I32 | DType::U32) => "Add",
            (ReduceOp::Max | ReduceOp::AbsMax, DType::F32 | DType::I32) | (ReduceOp::Max, DType::U32) => "Max",
            (ReduceOp::Min, DType::F32 | DType::I32 | DType::U32) => "Min",
            (ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min | ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or, _) => {
                return self.refuse(id, format!("no `{}` of {d} on vector registers", op.name()));
            }
        };
        self.nest += 1;
        let acc = self.reg(ty, "sum");
        let zero = self.zero(d);
        self.index.insert(axis.0, Opd::Scalar(Text::number(0)));
        let first = self.load_at(id, from, axis.0, "0")?;
        let (x, _) = self.as_reg(d, &first);
        self.emit(Level::Lane, format!("Reg::Select({acc}, {x}, {zero}, lanes);"));
        if op == ReduceOp::AbsMax {
            self.emit(Level::Lane, format!("Reg::Abs({acc}, {acc}, lanes);"));
        }
        let n = self.fresh(&self.lo.k.ix_var(axis.0).name.clone());
        self.emit(Level::Lane, format!("for (uint16_t {n} = 1; {n} < {}; ++{n}) {{", axis.1));
        let next = self.load_at(id, from, axis.0, &n)?;
        let (x, _) = self.as_reg(d, &next);
        if op == ReduceOp::AbsMax {
            self.emit(Level::Lane, format!("Reg::Abs({x}, {x}, lanes);"));
        }
        self.emit(Level::Lane, format!("Reg::{f}({acc}, {acc}, {x}, lanes);"));
        self.emit(Level::Lane, "}");
        self.nest -= 1;
        self.store(id, to, Opd::Reg(acc, Level::Lane), d)
    }

    /// A load with a loop variable that is not the function's own.
    fn load_at(&mut self, id: OpId, u: &Ub, v: IxVarId, name: &str) -> Res<Opd> {
        self.outer.push((v, 2, name.to_string()));
        let r = self.load(id, u);
        self.outer.pop();
        r
    }

    /// A value defined by the body.
    pub fn result_of(&mut self, v: ValueId) -> Opd {
        self.value(v)
    }
    /// A store outside a body.
    pub fn put(&mut self, id: OpId, u: &Ub, x: Opd, d: DType) -> Res<()> {
        self.store(id, u, x, d)
    }
    /// A load outside a body.
    pub fn load_site(&mut self, id: OpId, u: &Ub) -> Res<Opd> {
        self.load(id, u)
    }
    /// A value for lanes that are numbered: `n - index` where a mask is set, else 0.
    pub fn distance(&mut self, id: OpId, cond: ValueId, n: usize) -> Res<Opd> {
        let at = self.lane_var(id, 0)?;
        let (r, _) = self.as_reg(DType::I32, &Opd::Scalar(Text::number(n as i64)));
        let (a, _) = self.as_reg(DType::I32, &at);
        let d = self.result("int32_t", Level::Lane, |o, m| format!("Reg::Sub({o}, {r}, {a}, {m});"));
        let c = self.value(cond);
        Ok(self.select(DType::I32, c, d, Opd::Scalar(Text::number(0))))
    }

    // --- text ---

    /// Ends the function: its call, and what it touches.
    pub fn finish(self, wish: &str) -> (String, Vec<BufId>, Vec<BufId>) {
        let name = self.lo.name(&capital(wish));
        let total = self.total();
        let mut out = vec![];
        let params: Vec<_> = self.args.iter().map(|a| a.0.clone()).collect();
        out.extend(wrap(&format!("__simd_vf__ inline void {name}("), &params, ")"));
        out.push("{".into());
        let mut body = vec!["Reg::MaskReg all = Reg::CreateMask<uint32_t, Reg::MaskPattern::ALL>();".to_string()];
        let masks = self.regs.get("mask").cloned().unwrap_or_default();
        let lanes = std::iter::once("lanes".to_string()).chain(masks).collect::<Vec<_>>();
        body.extend(declared("Reg::MaskReg", &lanes));
        for (ty, names) in self.regs.iter().filter(|(t, _)| **t != "mask") {
            body.extend(declared(&format!("Reg::RegTensor<{ty}>"), names));
        }
        let looped = total > LANES;
        if !looped {
            body.push(format!("uint32_t left = {total};"));
            body.push("lanes = Reg::UpdateMask<uint32_t>(left);".into());
        }
        body.extend(self.once.iter().cloned());
        for (_, e, n) in &self.outer {
            body.push(format!("for (uint16_t {n} = 0; {n} < {e}; ++{n}) {{"));
        }
        body.extend(self.rows.iter().cloned());
        if looped {
            body.push(format!("uint32_t left = {total};"));
            body.push(format!("for (uint16_t step = 0; step < {}; ++step) {{", total.div_ceil(LANES)));
            body.push("lanes = Reg::UpdateMask<uint32_t>(left);".into());
        }
        body.extend(self.steps.iter().cloned());
        if looped {
            body.push("}".into());
        }
        body.extend(self.after.iter().cloned());
        body.extend(self.outer.iter().map(|_| "}".to_string()));
        out.extend(indent(&body, 1));
        out.push("}".into());
        self.lo.functions.push(out.join("\n"));
        let args: Vec<_> = self.args.iter().map(|a| a.1.clone()).collect();
        let call = wrap(&format!("asc_vf_call<{name}>("), &args, ");").join("\n");
        (call, self.touched.0, self.touched.1)
    }
}

fn level_of(x: &Opd) -> Level {
    match x {
        Opd::Scalar(_) => Level::Once,
        Opd::Reg(_, l) | Opd::Mask(_, l) => *l,
    }
}

fn negative(t: &Text) -> String {
    match t.s.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 'f' || c == 'e') => rest.to_string(),
        _ => format!("-{}", t.at(crate::emit::cuda::expr::PRIMARY)),
    }
}

fn word(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|w| w == name)
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn fresh(counts: &mut HashMap<String, usize>, wish: &str) -> String {
    let base = match wish {
        "all" | "lanes" | "left" | "step" | "" => format!("{wish}_"),
        w => w.to_string(),
    };
    let n = counts.entry(base.clone()).or_insert(0);
    *n += 1;
    if *n == 1 {
        return base;
    }
    let dash = if base.ends_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
    let name = format!("{base}{dash}{n}");
    counts.insert(name.clone(), 1);
    name
}

/// First letter large.
pub fn capital(s: &str) -> String {
    let mut c = s.chars();
    c.next().map(|h| h.to_ascii_uppercase().to_string()).unwrap_or_default() + c.as_str()
}

fn declared(ty: &str, names: &[String]) -> Vec<String> {
    let mut lines = vec![];
    let mut line = format!("{ty} ");
    for (i, n) in names.iter().enumerate() {
        let end = if i + 1 == names.len() { ";" } else { "," };
        if line.len() + n.len() > 100 {
            lines.push(line.trim_end().to_string());
            line = "    ".into();
        }
        line += &format!("{n}{end} ");
    }
    lines.push(line.trim_end().to_string());
    lines
}

/// A head, a list and an end, on one line or on two and more.
pub fn wrap(head: &str, list: &[String], end: &str) -> Vec<String> {
    let one = format!("{head}{}{end}", list.join(", "));
    if one.len() <= 110 {
        return vec![one];
    }
    let mut lines = vec![head.to_string()];
    let mut line = "    ".to_string();
    for (i, x) in list.iter().enumerate() {
        let sep = if i + 1 == list.len() { end } else { "," };
        if line.len() > 4 && line.len() + x.len() > 106 {
            lines.push(line.trim_end().to_string());
            line = "    ".into();
        }
        line += &format!("{x}{sep} ");
    }
    lines.push(line.trim_end().to_string());
    lines
}

/// Lines indented by their braces.
pub fn indent(lines: &[String], depth: usize) -> Vec<String> {
    let mut d = depth;
    lines
        .iter()
        .map(|l| {
            if l.starts_with('}') {
                d -= 1;
            }
            let text = format!("{}{l}", "    ".repeat(d));
            if l.ends_with('{') {
                d += 1;
            }
            text
        })
        .collect()
}

/// Adds the function that clears words.
pub fn clear_function(lo: &mut Lower<'_>) {
    let text = "\
__simd_vf__ inline void Clear(__ubuf__ uint32_t* to, uint32_t left, uint16_t steps)
{
    Reg::MaskReg all = Reg::CreateMask<uint32_t, Reg::MaskPattern::ALL>();
    Reg::RegTensor<uint32_t> zero;
    Reg::Duplicate(zero, 0u, all);
    for (uint16_t i = 0; i < steps; ++i) {
        Reg::MaskReg lanes = Reg::UpdateMask<uint32_t>(left);
        Reg::StoreAlign(to + i * 64, zero, lanes);
    }
}";
    once(lo, text);
}

/// Adds the function that fills elements with a scalar.
pub fn fill_function(lo: &mut Lower<'_>) {
    let text = "\
template <typename T>
__simd_vf__ inline void Fill(__ubuf__ T* to, T value, uint16_t steps)
{
    Reg::MaskReg all = Reg::CreateMask<T, Reg::MaskPattern::ALL>();
    Reg::RegTensor<T> x;
    Reg::Duplicate(x, value, all);
    for (uint16_t i = 0; i < steps; ++i) {
        Reg::StoreAlign(to + i * 64, x, all);
    }
}";
    once(lo, text);
}

/// Adds the function that takes a product's result into a tile.
pub fn take_function(lo: &mut Lower<'_>, scaled: bool) {
    let text = if scaled {
        "\
// to = to + part * (row * col), or only the product
template <bool SET>
__simd_vf__ inline void TakeScaled(
    __ubuf__ float* to, __ubuf__ float* part, __ubuf__ float* row, __ubuf__ float* col, uint16_t rows, uint32_t columns,
    uint32_t toPitch, uint32_t partPitch)
{
    Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();
    Reg::RegTensor<float> r, c, p, t;
    for (uint16_t i = 0; i < rows; ++i) {
        Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(r, row + i);
        uint32_t left = columns;
        for (uint16_t j = 0; j < static_cast<uint16_t>((columns + 63) / 64); ++j) {
            Reg::MaskReg lanes = Reg::UpdateMask<float>(left);
            Reg::LoadAlign(c, col + j * 64);
            Reg::LoadAlign(p, part + i * partPitch + j * 64);
            Reg::Mul(c, c, r, all);
            if constexpr (SET) {
                Reg::Mul(t, c, p, all);
            } else {
                Reg::LoadAlign(t, to + i * toPitch + j * 64);
                Reg::MulAddDst(t, c, p, all);
            }
            Reg::StoreAlign(to + i * toPitch + j * 64, t, lanes);
        }
    }
}"
    } else {
        "\
// to = to + part, or only part
template <bool SET>
__simd_vf__ inline void Take(
    __ubuf__ float* to, __ubuf__ float* part, uint16_t rows, uint32_t columns, uint32_t toPitch, uint32_t partPitch)
{
    Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();
    Reg::RegTensor<float> p, t;
    for (uint16_t i = 0; i < rows; ++i) {
        uint32_t left = columns;
        for (uint16_t j = 0; j < static_cast<uint16_t>((columns + 63) / 64); ++j) {
            Reg::MaskReg lanes = Reg::UpdateMask<float>(left);
            Reg::LoadAlign(p, part + i * partPitch + j * 64);
            if constexpr (!SET) {
                Reg::LoadAlign(t, to + i * toPitch + j * 64);
                Reg::Add(p, p, t, all);
            }
            Reg::StoreAlign(to + i * toPitch + j * 64, p, lanes);
        }
    }
}"
    };
    once(lo, text);
}

/// Adds the function that puts narrow elements into words.
pub fn widen_function(lo: &mut Lower<'_>, d: DType) {
    let (load, name) = match d.bits() {
        16 => ("Reg::LoadAlign<T, Reg::LoadDist::DIST_UNPACK_B16>(x, from + i * 64);", "Widen"),
        _ => ("Reg::LoadAlign<T, Reg::LoadDist::DIST_UNPACK4_B8>(x, from + i * 64);", "Widen"),
    };
    let text = format!(
        "template <typename T>\n__simd_vf__ inline void {name}(__ubuf__ uint32_t* to, __ubuf__ T* from, uint32_t left, uint16_t steps)\n{{\n    \
         Reg::RegTensor<T> x;\n    for (uint16_t i = 0; i < steps; ++i) {{\n        \
         Reg::MaskReg lanes = Reg::UpdateMask<uint32_t>(left);\n        {load}\n        \
         Reg::StoreAlign(to + i * 64, (Reg::RegTensor<uint32_t>&)x, lanes);\n    }}\n}}"
    );
    once(lo, &text);
}

/// Adds the function that applies a unary op to a scalar.
pub fn scalar_function(lo: &mut Lower<'_>, op: UnaryOp, name: &str) {
    let steps = match op {
        UnaryOp::Exp2 => "    Reg::Muls(x, x, 0.6931471805599453f, all);\n    Reg::Exp(x, x, all);\n",
        UnaryOp::Log2 => "    Reg::Ln(x, x, all);\n    Reg::Muls(x, x, 1.4426950408889634f, all);\n",
        UnaryOp::Sqrt => "    Reg::Sqrt(x, x, all);\n",
        UnaryOp::Rsqrt => {
            "    Reg::Sqrt(x, x, all);\n    Reg::RegTensor<float> one;\n    Reg::Duplicate(one, 1.0f, all);\n    Reg::Div(x, one, x, all);\n"
        }
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Recip
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Floor
        | UnaryOp::Ceil => "",
    };
    let text = format!(
        "__simd_vf__ inline void {name}(__ubuf__ float* to, float value)\n{{\n    \
         Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();\n    \
         Reg::RegTensor<float> x;\n    Reg::Duplicate(x, value, all);\n{steps}    Reg::StoreAlign(to, x, all);\n}}"
    );
    once(lo, &text);
}

fn once(lo: &mut Lower<'_>, text: &str) {
    if !lo.functions.iter().any(|f| f == text) {
        lo.functions.push(text.to_string());
    }
}

/// A tile as a loop sees it: `None` if the form has parts that are no constants.
pub fn tile_ub(lo: &Lower<'_>, t: Tile, d: DType, f: &Form) -> Option<Ub> {
    let size = if t.wide { 4 } else { d.bytes(1) };
    let apart = |c: Coef| c.constant().map(|c| Lower::apart(t, c));
    let mut base = Form::default();
    let mut multiple = 0;
    for &(x, c) in &f.uniform {
        let c = apart(c)?;
        base.uniform.push((x, Coef::new(c)));
        multiple = gcd(multiple, c * x.map_or(1, |x| lo.ranges.multiple_of(x)));
    }
    let elem = f.elem.iter().map(|&(v, c)| Some((v, apart(c)?))).collect::<Option<Vec<_>>>()?;
    let opaque = f.opaque.iter().map(|&(i, c)| Some((i, apart(c)?))).collect::<Option<Vec<_>>>()?;
    if t.pitch != t.row && opaque.iter().any(|&(_, c)| c.abs() < t.row as i64 && f.opaque.len() > 1) {
        return None;
    }
    Some(Ub { buf: t.buf, dtype: d, width: size, base: lo.uniform(&base), multiple, elem, opaque })
}

impl Lower<'_> {
    /// Name of the constant that says how registers are converted; it is declared where it is used.
    pub fn trait_of(&mut self, from: DType, to: DType) -> &'static str {
        match (from, to) {
            (DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2, _) => "WIDEN",
            (DType::I32, _) => "FROM_INT",
            (_, DType::Bf16 | DType::F16) => "ROUND",
            (_, DType::I32) => "TRUNCATE",
            (_, _) => "SATURATE",
        }
    }
}
