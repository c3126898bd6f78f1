//! Index expressions: as one number where they are uniform, else on all lanes of a strip.

use super::*;

impl Worker<'_> {
    pub(super) fn scalar(&self, fr: &Lanes, ix: &Ix) -> i64 {
        ix.uniform.iter().fold(ix.c, |s, (k, a)| s.wrapping_add(k.wrapping_mul(self.scalar_atom(fr, a))))
    }

    pub(super) fn scalar_atom(&self, fr: &Lanes, a: &Atom) -> i64 {
        let pair = |p: &(Ix, Ix)| (self.scalar(fr, &p.0), self.scalar(fr, &p.1));
        match a {
            Atom::Env(at) => self.env[*at],
            // Element indices and lane registers are never part of a uniform form.
            Atom::Elem(_) | Atom::Lane(_) => 0,
            Atom::Data(reg, dtype) => data_lane(&fr.regs, *reg, *dtype, 0),
            Atom::Mul(p) => {
                let (a, b) = pair(p);
                a.wrapping_mul(b)
            }
            Atom::Div(p) => {
                let (a, b) = pair(p);
                self.divide(a, b, i64::div_euclid)
            }
            Atom::Mod(p) => {
                let (a, b) = pair(p);
                self.divide(a, b, i64::rem_euclid)
            }
            Atom::Min(p) => {
                let (a, b) = pair(p);
                a.min(b)
            }
            Atom::Max(p) => {
                let (a, b) = pair(p);
                a.max(b)
            }
        }
    }

    pub(super) fn divide(&self, a: i64, b: i64, f: fn(i64, i64) -> i64) -> i64 {
        if b > 0 {
            f(a, b)
        } else {
            self.bad_division.set(true);
            0
        }
    }

    pub(super) fn temp(&mut self) -> Vec<i64> {
        self.temps.pop().unwrap_or_else(|| vec![0; WIDTH])
    }

    /// Values of an index on all lanes.
    pub(super) fn lanes_of(&mut self, fr: &Lanes, ix: &Ix, out: &mut [i64]) {
        let base = self.scalar(fr, ix);
        let n = fr.n;
        if ix.elem.is_empty() {
            out[..n].fill(base);
        } else {
            let slope = if fr.rank == 0 { 0 } else { ix.coef(fr.rank - 1) };
            for s in &fr.segs {
                let first = ix.elem.iter().zip(&s.x).fold(base, |v, (k, x)| v.wrapping_add(k.wrapping_mul(*x)));
                let mut v = first;
                for o in &mut out[s.lane..s.lane + s.len] {
                    *o = v;
                    v = v.wrapping_add(slope);
                }
            }
        }
        for (k, a) in &ix.lanes {
            let mut t = self.temp();
            self.lanes_of_atom(fr, a, &mut t);
            for (o, v) in out[..n].iter_mut().zip(&t) {
                *o = o.wrapping_add(k.wrapping_mul(*v));
            }
            self.temps.push(t);
        }
    }

    pub(super) fn lanes_of_atom(&mut self, fr: &Lanes, a: &Atom, out: &mut [i64]) {
        let n = fr.n;
        let p = match a {
            Atom::Env(_) | Atom::Elem(_) => {
                let v = self.scalar_atom(fr, a);
                out[..n].fill(v);
                return;
            }
            Atom::Lane(slot) => {
                out[..n].copy_from_slice(&fr.regs.l[*slot][..n]);
                return;
            }
            Atom::Data(reg, dtype) => {
                match reg.class {
                    Class::I if *dtype == DType::U32 => {
                        out.iter_mut().zip(&fr.regs.i[reg.slot][..n]).for_each(|(o, v)| *o = *v as u32 as i64);
                    }
                    Class::I => out.iter_mut().zip(&fr.regs.i[reg.slot][..n]).for_each(|(o, v)| *o = *v as i64),
                    Class::L => out[..n].copy_from_slice(&fr.regs.l[reg.slot][..n]),
                    Class::F => out[..n].fill(0),
                }
                return;
            }
            Atom::Mul(p) | Atom::Div(p) | Atom::Mod(p) | Atom::Min(p) | Atom::Max(p) => p,
        };
        self.lanes_of(fr, &p.0, out);
        // Division by the same power of two on all lanes is the common case.
        let fixed = p.1.constant();
        match (a, fixed) {
            (Atom::Div(_), Some(d)) if d > 0 && d & (d - 1) == 0 => {
                let shift = d.trailing_zeros();
                out[..n].iter_mut().for_each(|v| *v >>= shift);
                return;
            }
            (Atom::Mod(_), Some(d)) if d > 0 && d & (d - 1) == 0 => {
                out[..n].iter_mut().for_each(|v| *v &= d - 1);
                return;
            }
            (Atom::Div(_), Some(d)) if d > 0 && d <= u32::MAX as i64 => {
                for v in &mut out[..n] {
                    *v = if *v >= 0 && *v <= u32::MAX as i64 { (*v as u32 / d as u32) as i64 } else { v.div_euclid(d) };
                }
                return;
            }
            (Atom::Mod(_), Some(d)) if d > 0 && d <= u32::MAX as i64 => {
                for v in &mut out[..n] {
                    *v = if *v >= 0 && *v <= u32::MAX as i64 { (*v as u32 % d as u32) as i64 } else { v.rem_euclid(d) };
                }
                return;
            }
            _ => {}
        }
        let mut t = self.temp();
        self.lanes_of(fr, &p.1, &mut t);
        let active = self.active;
        for (lane, (o, &b)) in out[..n].iter_mut().zip(&t).enumerate() {
            *o = match a {
                Atom::Mul(_) => o.wrapping_mul(b),
                Atom::Min(_) => (*o).min(b),
                Atom::Max(_) => (*o).max(b),
                Atom::Div(_) | Atom::Mod(_) if b <= 0 => {
                    // Lanes that are switched off may hold anything.
                    if active.has(lane) {
                        self.bad_division.set(true);
                    }
                    0
                }
                Atom::Div(_) => o.div_euclid(b),
                Atom::Mod(_) => o.rem_euclid(b),
                Atom::Env(_) | Atom::Elem(_) | Atom::Lane(_) | Atom::Data(..) => 0,
            };
        }
        self.temps.push(t);
    }

    pub(super) fn set_index(&mut self, fr: &mut Lanes, target: IxTarget, v: &[i64], mask: Mask) {
        match target {
            IxTarget::Env(at) => self.env[at] = v[0],
            IxTarget::Lane(slot) => {
                let out = &mut fr.regs.l[slot];
                mask.runs(0, fr.n, |a, b| out[a..b].copy_from_slice(&v[a..b]));
            }
        }
    }

    pub(super) fn index_value(&mut self, fr: &mut Lanes, dst: Reg, dtype: DType, ix: &Ix) {
        let n = fr.n;
        if ix.lanes.is_empty() && dst.class == Class::I {
            // Affine: count in 32 bits, which wraps as the conversion does.
            let base = self.scalar(fr, ix);
            let slope = if fr.rank == 0 { 0 } else { ix.coef(fr.rank - 1) } as i32;
            for s in &fr.segs {
                let first = along(base, &ix.elem, &s.x) as i32;
                for (k, o) in fr.regs.i[dst.slot][s.lane..s.lane + s.len].iter_mut().enumerate() {
                    *o = first.wrapping_add(slope.wrapping_mul(k as i32));
                }
            }
            return;
        }
        let mut v = self.temp();
        self.lanes_of(fr, ix, &mut v);
        match dst.class {
            Class::I => {
                let o = &mut fr.regs.i[dst.slot][..n];
                o.iter_mut().zip(&v).for_each(|(o, v)| *o = crate::vm::convert::wrap(dtype, *v as i32));
            }
            Class::L => fr.regs.l[dst.slot][..n].copy_from_slice(&v[..n]),
            Class::F => {}
        }
        self.temps.push(v);
    }

    pub(super) fn compare_index(&mut self, fr: &mut Lanes, op: CmpOp, dst: Reg, a: &Ix, b: &Ix) {
        let (mut x, mut y) = (self.temp(), self.temp());
        self.lanes_of(fr, a, &mut x);
        self.lanes_of(fr, b, &mut y);
        simd::compare_indices(&mut fr.regs.i[dst.slot][..fr.n], op, &x[..fr.n], &y[..fr.n]);
        self.temps.extend([x, y]);
    }
}

pub(super) fn along(base: i64, coefs: &[i64], x: &[i64; MAX_RANK]) -> i64 {
    coefs.iter().zip(x).fold(base, |v, (k, x)| v.wrapping_add(k.wrapping_mul(*x)))
}

pub(super) fn data_lane(r: &Regs, reg: Reg, dtype: DType, lane: usize) -> i64 {
    match reg.class {
        Class::I => lanes::int_value(dtype, r.i[reg.slot][lane]),
        Class::L => r.l[reg.slot][lane],
        Class::F => 0,
    }
}
