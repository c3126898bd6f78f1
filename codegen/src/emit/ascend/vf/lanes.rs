//! Places of lanes: indices as lanes, addresses, loads and stores, gathers and scatters.

use super::{LANES, Level, Opd, Vf, gcd, ty_reg};
use crate::emit::ascend::form::Forms;
use crate::emit::ascend::lower::{Res, type_of};
use crate::emit::ascend::scalar;
use crate::emit::ascend::stage::Ub;
use crate::emit::cuda::expr::{MUL, Text};
use crate::ir::{BinaryOp, CmpOp, DType, IxExpr, IxId, IxVarId, OpId};

impl Vf<'_, '_> {
    /// An index as data: a number of the scalar unit, or 32-bit lanes.
    pub(super) fn lane_ix(&mut self, id: OpId, ix: IxId) -> Res<Opd> {
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
            IxExpr::Var(v) if !self.local.own.contains_key(&v) => match self.index.get(&v) {
                Some(x) => Ok(x.clone()),
                None => self.refuse(id, format!("`{}` is not known in vector code", k.ix_var(v).name)),
            },
            IxExpr::Var(v) => {
                let x = if let Some((_, _, n)) = self.outer.iter().find(|o| o.0 == v) {
                    Opd::Scalar(Text::call("static_cast<int32_t>", &[&Text::name(n.clone())]))
                } else if let Some(at) = self.lanes.iter().position(|l| l.0 == v) {
                    self.lane_var(id, at)?
                } else {
                    // A loop of one step.
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
    pub(super) fn divide(&mut self, id: OpId, x: Opd, y: Opd, division: bool) -> Res<Opd> {
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
    pub(super) fn lane_var(&mut self, id: OpId, at: usize) -> Res<Opd> {
        let v = self.lanes[at].0;
        if let Some(x) = self.numbers.get(&v) {
            return Ok(x.clone());
        }
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
        // What a branch or an inner loop computes is not there after it.
        if self.nest == 0 {
            self.numbers.insert(v, x.clone());
        }
        Ok(x)
    }

    /// Where all of these indices are inside their extents; `None` if that is everywhere.
    pub(super) fn exists(&mut self, id: OpId, guards: &[(IxId, IxId)]) -> Res<Option<Opd>> {
        let mut all: Option<Opd> = None;
        for &(i, e) in guards {
            let x = self.lane_ix(id, i)?;
            let mut both = vec![];
            if !self.lo.ranges.never_below_zero(i) {
                both.push((CmpOp::Ge, Opd::Scalar(Text::number(0))));
            }
            both.push((CmpOp::Lt, self.lane_ix(id, e)?));
            for (op, y) in both {
                let c = self.compare(id, DType::I32, op, x.clone(), y)?;
                all = Some(match all {
                    None => c,
                    Some(a) => self.binary(id, DType::Bool, BinaryOp::And, a, c)?,
                });
            }
        }
        Ok(all)
    }

    // --- memory ---

    /// Address of an access: text of the part that is the same in all lanes, and lanes of offsets where they do not follow
    /// each other. The flags say that all lanes are one element, and that the address keeps the alignment.
    pub(super) fn address(&mut self, id: OpId, u: &Ub) -> Res<(String, Option<Opd>, bool, bool)> {
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

    /// An address that counts from the buffer's start where its lanes might count downwards: offsets of gathers have no
    /// sign. Gives the memory and the part that is the same in all lanes anew.
    fn based(&mut self, id: OpId, u: &Ub, at: String, lanes: &mut Option<Opd>) -> Res<(Ub, String)> {
        let down = !u.opaque.is_empty() || u.elem.iter().any(|e| e.1 < 0);
        let Some(x) = lanes.take_if(|_| down) else { return Ok((u.clone(), at)) };
        let mut u = u.clone();
        let base = std::mem::replace(&mut u.base, Text::number(0));
        let mut sum = Text::number(0);
        if at != "0" {
            sum = Text::cast("int32_t", &Text::of(at, crate::emit::cuda::expr::ADD));
        }
        if !base.is_zero() {
            let from = if base.s.parse::<i64>().is_ok() {
                base
            } else {
                Text::name(self.arg("from", "int32_t", &format!("static_cast<int32_t>({})", base.s)))
            };
            sum = Text::add(&sum, &from);
        }
        let x = if sum.is_zero() { x } else { self.binary(id, DType::I32, BinaryOp::Add, x, Opd::Scalar(sum))? };
        *lanes = Some(x);
        Ok((u, "0".into()))
    }

    /// Pointer argument of a buffer at the part of an address that is the same for the whole loop.
    pub(super) fn pointer(&mut self, u: &Ub, ty: &str) -> String {
        let b = self.lo.tensor(u.buf);
        let own = self.lo.bufs[u.buf.0].ty;
        let size = if u.width == 4 && own != "float" && own != "int32_t" && own != "uint32_t" { 4 } else { 0 };
        let text = if u.base.is_zero() {
            format!("(__ubuf__ {ty}*){b}.GetPhyAddr()")
        } else if size == 4 || !u.opaque.is_empty() {
            // Before the first element, where offsets of lanes start higher.
            format!("(__ubuf__ {ty}*){b}.GetPhyAddr() + ({})", u.base.s)
        } else {
            format!("(__ubuf__ {ty}*){b}[{}].GetPhyAddr()", u.base.s)
        };
        self.arg(&b, &format!("__ubuf__ {ty}*"), &text)
    }

    pub(super) fn load(&mut self, id: OpId, u: &Ub) -> Res<Opd> {
        if !self.touched.0.contains(&u.buf) {
            self.touched.0.push(u.buf);
        }
        let (at, mut lanes, still, aligned) = self.address(id, u)?;
        let (u, at) = self.based(id, u, at, &mut lanes)?;
        let u = &u;
        // Elements that do not exist are read from the tile's first place, and are zero then.
        let exists = self.exists(id, &u.guards.clone())?;
        if let Some(m) = &exists {
            let Some(x) = lanes else {
                return self.refuse(id, "elements of a tile that may not exist have no form on vector registers here");
            };
            // The first place of what the loops outside reach; they name only rows that exist.
            let outside =
                at != "0" && u.guards.iter().any(|&(i, _)| self.outer.iter().any(|o| self.lo.ranges.mentions(i, o.0)));
            if outside {
                return self.refuse(id, "elements of a part of a tile that may not exist have no vector form");
            }
            lanes = Some(self.select(DType::I32, m.clone(), x, Opd::Scalar(Text::number(0))));
        }
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
            let x = self.narrowed(id, u.dtype, Opd::Reg(r, Level::Lane))?;
            let Some(m) = exists else { return Ok(x) };
            let zero = scalar::literal(crate::ir::Literal { dtype: u.dtype, bits: 0 });
            return Ok(self.select(u.dtype, m, x, Opd::Scalar(zero)));
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
    pub(super) fn narrowed(&mut self, id: OpId, d: DType, x: Opd) -> Res<Opd> {
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

    pub(super) fn store(&mut self, id: OpId, u: &Ub, x: Opd, d: DType) -> Res<()> {
        if !self.touched.1.contains(&u.buf) {
            self.touched.1.push(u.buf);
        }
        if matches!(d, DType::I64 | DType::E2m1 | DType::I8) {
            return self.refuse(id, format!("vector code does not write {d}"));
        }
        let (at, mut lanes, still, aligned) = self.address(id, u)?;
        let (u, at) = self.based(id, u, at, &mut lanes)?;
        let u = &u;
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
}
