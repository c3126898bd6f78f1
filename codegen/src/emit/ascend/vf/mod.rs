//! Element loops as functions on vector registers (arch 3510).
//!
//! A function walks the outer loop variables one by one and the inner ones 64 at a time. Every value takes a 32-bit lane; narrow
//! elements are unpacked when loaded and packed when stored. What does not change along the lanes is computed before the
//! lane loop, in all lanes. Elements that do not follow each other are gathered and scattered as words of 32 bits.
//! Masked operations clear the lanes outside their mask, so sums run over all lanes.

mod arith;
mod fold;
mod lanes;
mod text;

use text::declared;
pub use text::{
    capital, clear_function, fill_function, fma_function, indent, narrow_function, scalar_function, take_function,
    widen_function, wrap,
};

pub(super) use crate::pass::access::gcd;

use super::form::{Coef, Form, Local};
use super::lower::{Lower, Res, Tile};
use super::scalar;
use super::stage::Ub;
use super::tree::{BufId, Place};
use crate::emit::cuda::expr::{ADD, Text};
use crate::ir::{BinaryOp, BufferId, DType, IfResult, IxVarId, Literal, Op, OpId, ValueId};
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
    /// Register that is not zero in lanes where a check has failed.
    failed: Option<String>,
    regs: BTreeMap<&'static str, Vec<String>>,
    args: Vec<(String, String)>,
    values: HashMap<ValueId, Opd>,
    index: HashMap<IxVarId, Opd>,
    /// Numbers of lanes along each variable that goes along them.
    numbers: HashMap<IxVarId, Opd>,
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
            failed: None,
            regs: BTreeMap::new(),
            args: vec![],
            values: HashMap::new(),
            index: HashMap::new(),
            numbers: HashMap::new(),
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
            Op::LoadOr { result, view, index, other } => {
                let Some(u) = self.sites.get(&id).cloned() else { return self.refuse(id, "a read without a place") };
                let v = k.view(*view);
                if v.gather.is_some() {
                    return self.refuse(id, "a row of a gathered view that may not exist has no vector form");
                }
                let pairs = index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied());
                let needs = self.lo.needs(id, *view);
                let guards: Vec<_> = pairs.zip(needs).filter(|(_, n)| *n).map(|(p, _)| p).collect();
                let x = self.load(id, &u)?;
                let y = self.value(*other);
                let x = match self.exists(id, &guards)? {
                    None => x,
                    Some(m) => self.select(self.lo.dtype(*result), m, x, y),
                };
                (*result, x)
            }
            Op::Check { cond, .. } => {
                let c = self.value(*cond);
                self.check(&c);
                return Ok(());
            }
            op @ (Op::Atomic { .. }
            | Op::Claim { .. }
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
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_)) => return self.refuse(id, format!("`{}` has no form on vector registers", op.name())),
        };
        self.values.insert(done.0, done.1);
        Ok(())
    }

    /// Notes lanes in which a condition does not hold.
    fn check(&mut self, c: &Opd) {
        let (m, l) = self.as_mask(c);
        let bad = match self.failed.clone() {
            Some(r) => r,
            None => {
                let r = self.reg("uint32_t", "failed");
                self.emit(Level::Once, format!("Reg::Duplicate({r}, 0u, all);"));
                self.failed = Some(r.clone());
                r
            }
        };
        let n = self.reg("mask", "m");
        let lanes = self.pred.clone().unwrap_or("lanes".into());
        let one = self.as_reg(DType::U32, &Opd::Scalar(Text::name("1u"))).0;
        let _ = l;
        self.emit(Level::Lane, format!("Reg::Not({n}, {m}, {lanes});"));
        self.emit(Level::Lane, format!("Reg::Select({bad}, {one}, {bad}, {n});"));
    }

    fn zero(&mut self, d: DType) -> String {
        let t = scalar::literal(Literal { dtype: d, bits: 0 });
        self.as_reg(d, &Opd::Scalar(t)).0
    }

    // --- text ---

    /// Ends the function: its call, and what it touches.
    pub fn finish(mut self, wish: &str) -> (String, Vec<BufId>, Vec<BufId>) {
        let flag = self.failed.take().map(|r| {
            let span = self.lo.k.span;
            let b = self.lo.buffer("failed", "uint32_t", 4, LANES, Place::Ub, span);
            self.lo.failed = Some(b);
            self.touched.1.push(b);
            let t = self.lo.tensor(b);
            let text = format!("(__ubuf__ uint32_t*){t}.GetPhyAddr()");
            (r, self.arg(&t, "__ubuf__ uint32_t*", &text))
        });
        let name = self.lo.name(&capital(wish));
        let total = self.total();
        let mut out = vec![];
        let params: Vec<_> = self.args.iter().map(|a| a.0.clone()).collect();
        out.extend(wrap(&format!("__simd_vf__ inline void {name}("), &params, ")"));
        out.push("{".into());
        let mut body = vec![];
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
            if overtakes(&self.steps) {
                body.push("Reg::LocalMemBar<Reg::MemType::VEC_STORE, Reg::MemType::VEC_LOAD>();".into());
            }
        }
        body.extend(self.steps.iter().cloned());
        if looped {
            body.push("}".into());
        }
        body.extend(self.after.iter().cloned());
        body.extend(self.outer.iter().map(|_| "}".to_string()));
        if let Some((r, p)) = flag {
            body.push(format!("Reg::Reduce<Reg::ReduceType::MAX>({r}, {r}, all);"));
            body.push(format!("Reg::StoreAlign<uint32_t, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>({p}, {r}, all);"));
        }
        if body.iter().any(|l| word(l, "all")) {
            body.insert(0, "Reg::MaskReg all = Reg::CreateMask<uint32_t, Reg::MaskPattern::ALL>();".to_string());
        }
        out.extend(indent(&body, 1));
        out.push("}".into());
        self.lo.functions.push(out.join("\n"));
        let args: Vec<_> = self.args.iter().map(|a| a.1.clone()).collect();
        let call = wrap(&format!("asc_vf_call<{name}>("), &args, ");").join("\n");
        (call, self.touched.0, self.touched.1)
    }
}

/// Whether a step goes over rows of a tile that it both loads and stores: the lanes that its last loads bring too many are
/// of the next row, which an earlier step has stored.
fn overtakes(step: &[String]) -> bool {
    let pointer = |line: &str, what: &str, skipped: usize| -> Option<String> {
        let args = line.trim_start().strip_prefix(what)?.split_once('(')?.1;
        let place = args.split(", ").nth(skipped)?;
        place.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(String::from)
    };
    let loaded: Vec<String> = step.iter().filter_map(|l| pointer(l, "Reg::LoadAlign", 1)).collect();
    let stored = |l: &String| pointer(l, "Reg::StoreAlign", 0).is_some_and(|p| loaded.contains(&p));
    step.iter().any(|l| l.trim_start().starts_with("for (")) && step.iter().any(stored)
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
    Some(Ub { buf: t.buf, dtype: d, width: size, base: lo.uniform(&base), multiple, elem, opaque, guards: vec![] })
}
