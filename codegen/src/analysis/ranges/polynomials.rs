//! Expressions as polynomials over atoms, and the bounds of those atoms.

use super::build::{Build, DataBounds};
use super::interval::*;
use super::*;

impl Build<'_> {
    pub(super) fn leaf(&mut self, range: Interval, lo: Option<Poly>, hi: Option<Poly>) -> Atom {
        self.push(AtomInfo { kind: AtomKind::Leaf, range, lo, hi, multiple: 1 })
    }

    pub(super) fn push(&mut self, info: AtomInfo) -> Atom {
        self.out.atoms.push(info);
        self.out.atoms.len() as Atom - 1
    }

    pub(super) fn visit(&mut self, id: IxId) {
        let i = id.0 as usize;
        if self.done[i] || self.busy[i] {
            return;
        }
        self.busy[i] = true;
        let e = self.kernel.ix_expr(id);
        if let IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) = e
        {
            self.visit(a);
            self.visit(b);
        }
        let by_tree = self.tree_interval(e);
        let poly = match self.form(e) {
            Some(p) => p,
            None => {
                let a = self.leaf(by_tree, None, None);
                self.out.opaque.insert(a);
                Poly::atom(a)
            }
        };
        self.out.intervals[i] = meet(by_tree, self.out.poly_interval(&poly));
        self.out.polys[i] = Some(poly);
        self.done[i] = true;
        self.busy[i] = false;
    }

    pub(super) fn of(&mut self, id: IxId) -> Option<Poly> {
        self.visit(id);
        self.out.polys[id.0 as usize].clone()
    }

    pub(super) fn form(&mut self, e: IxExpr) -> Option<Poly> {
        match e {
            IxExpr::Const(c) => Some(Poly::constant(c as i128)),
            IxExpr::Sym(s) => self.sym(s.0),
            IxExpr::Var(v) => Some(Poly::atom(self.var(v))),
            IxExpr::Data(v) => Some(self.data(v)),
            IxExpr::Add(a, b) => self.of(a)?.add(&self.of(b)?),
            IxExpr::Sub(a, b) => self.of(a)?.sub(&self.of(b)?),
            IxExpr::Mul(a, b) => self.of(a)?.mul(&self.of(b)?),
            IxExpr::Div(a, b) => {
                let (a, b) = (self.of(a)?, self.of(b)?);
                self.div(a, b)
            }
            IxExpr::Mod(a, b) => {
                let (a, b) = (self.of(a)?, self.of(b)?);
                let q = self.div(a.clone(), b.clone())?;
                a.sub(&q.mul(&b)?)
            }
            IxExpr::Min(a, b) => {
                let (a, b) = (self.of(a)?, self.of(b)?);
                self.extreme(true, a, b)
            }
            IxExpr::Max(a, b) => {
                let (a, b) = (self.of(a)?, self.of(b)?);
                self.extreme(false, a, b)
            }
        }
    }

    pub(super) fn sym(&mut self, s: u32) -> Option<Poly> {
        if let Some(p) = &self.sym_polys[s as usize] {
            return Some(p.clone());
        }
        if let Some(&e) = self.sym_equals.get(&s) {
            let p = self.of(e)?;
            self.sym_polys[s as usize] = Some(p.clone());
            return Some(p);
        }
        let sym = &self.syms[s as usize];
        let (min, max, m) = (sym.min as i128, sym.max as i128, (sym.multiple_of as i128).max(1));
        let p = match self.sym_factors.get(&s).copied() {
            Some(f) if m == 1 => {
                let f = self.of(f)?;
                let q = Poly::atom(self.leaf(
                    if min >= 0 { ((min > 0).then_some(1).or(Some(0)), Some(max)) } else { ALL },
                    None,
                    None,
                ));
                q.mul(&f)?
            }
            _ => {
                let range = (Some(-(-min).div_euclid(m)), Some(max.div_euclid(m)));
                Poly::atom(self.leaf(range, None, None)).scale(m)?
            }
        };
        self.sym_polys[s as usize] = Some(p.clone());
        Some(p)
    }

    pub(super) fn var(&mut self, v: IxVarId) -> Atom {
        if let Some(a) = self.out.vars[v.0 as usize] {
            return a;
        }
        let var = self.kernel.ix_var(v);
        let (mut lo, mut hi) = (var.lo, var.hi);
        let mut range = ALL;
        match self.data_bounds.get(&v) {
            Some(DataBounds::Between(a, b)) => {
                lo = lo.or(Some(*a));
                hi = hi.or(Some(*b));
            }
            Some(DataBounds::UpTo(n)) => range = (Some(0), Some(*n as i128)),
            Some(&DataBounds::Either(a, b)) => {
                self.visit(a);
                self.visit(b);
                range = hull(self.out.intervals[a.0 as usize], self.out.intervals[b.0 as usize]);
            }
            None => {}
        }
        let lo_poly = lo.and_then(|x| self.of(x));
        let hi_poly = hi.and_then(|x| self.of(x));
        if let Some(x) = lo {
            range = meet(range, (self.out.intervals[x.0 as usize].0, None));
        }
        if let Some(x) = hi {
            range = meet(range, (None, self.out.intervals[x.0 as usize].1));
        }
        // The bounds may have named the variable itself in a broken kernel; the first atom made then stays.
        if let Some(a) = self.out.vars[v.0 as usize] {
            return a;
        }
        let a = self.leaf(range, lo_poly, hi_poly);
        self.out.vars[v.0 as usize] = Some(a);
        self.out.var_of_atom.insert(a, v);
        a
    }

    pub(super) fn data(&mut self, v: ValueId) -> Poly {
        if let Some(c) = self.kernel.literal(v).and_then(int_value) {
            return Poly::constant(c);
        }
        if let Some(def) = self.kernel.value(v).def
            && let Op::IndexValue { index, .. } = self.kernel.op(def).op
            && let Some(p) = self.of(index)
            && inside(self.out.poly_interval(&p), dtype_range(self.kernel.value(v).dtype))
        {
            return p;
        }
        if let Some(&a) = self.data_atoms.get(&v) {
            return Poly::atom(a);
        }
        let range = dtype_range(self.kernel.value(v).dtype);
        let a = self.leaf(range, None, None);
        self.data_atoms.insert(v, a);
        self.out.data_of_atom.insert(a, v);
        Poly::atom(a)
    }

    /// `a / b`, simplified: whole multiples of `b` come out, a rest between 0 and `b - 1` disappears.
    pub(super) fn div(&mut self, a: Poly, b: Poly) -> Option<Poly> {
        if b.as_constant().is_some_and(|c| c <= 0) {
            return None;
        }
        if b.as_constant() == Some(1) {
            return Some(a);
        }
        let single = b.terms().count() == 1;
        let (mut out, mut rest) = if single { a.partial_div(&b) } else { (Poly::default(), a) };
        // Split a constant so that what stays is in 0..b.
        let constant = rest.terms().find(|(m, _)| m.is_empty()).map(|(_, c)| c);
        if let (Some(d), Some(c)) = (b.as_constant(), constant) {
            let whole = c.div_euclid(d);
            out = out.add(&Poly::constant(whole))?;
            rest = rest.add(&Poly::constant(-whole * d))?;
        }
        // (x / c) / d is x / (c * d).
        if let Some(d) = b.as_constant()
            && let [atom] = rest.atoms()[..]
            && rest == Poly::atom(atom)
            && let AtomKind::Div(x, c) = self.out.atoms[atom as usize].kind.clone()
            && let Some(c) = c.as_constant()
        {
            let inner = self.div(x, Poly::constant(c.checked_mul(d)?))?;
            return out.add(&inner);
        }
        // A common factor of everything cancels.
        if let Some(d) = b.as_constant() {
            let g = rest.terms().fold(d, |g, (_, c)| gcd(g, c));
            if g > 1 {
                let inner = self.div(rest.exact_div(&Poly::constant(g))?, Poly::constant(d / g))?;
                return out.add(&inner);
            }
            // x = g*y + r with 0 <= r < g, g | d: the rest r does not change x / d.
            let mut divisors: Vec<i128> = rest.terms().map(|(_, c)| gcd(d, c)).filter(|&g| g > 1).collect();
            divisors.sort_unstable();
            divisors.dedup();
            for g in divisors.into_iter().rev() {
                let (y, r) = rest.partial_div(&Poly::constant(g));
                if inside(self.out.poly_interval(&r), (Some(0), Some(g - 1))) && r != Poly::default() {
                    let inner = self.div(y, Poly::constant(d / g))?;
                    return out.add(&inner);
                }
            }
        }
        let top = b.sub(&rest)?.sub(&Poly::constant(1))?;
        if self.out.never_negative(&rest) && self.out.never_negative(&top) {
            return Some(out);
        }
        let atom = match self.out.quotients.get(&(rest.clone(), b.clone())) {
            Some(&atom) => atom,
            None => {
                let range = div_interval(self.out.poly_interval(&rest), self.out.poly_interval(&b));
                // Rounding down is monotonic, so bounds of the variables inside give bounds of the quotient.
                let (lo, hi) = if b.as_constant().is_some() {
                    let mut edge = |up| {
                        let e = self.extreme_of(&rest, up).filter(|e| *e != rest)?;
                        self.div(e, b.clone())
                    };
                    (edge(false), edge(true))
                } else {
                    (None, None)
                };
                let kind = AtomKind::Div(rest.clone(), b.clone());
                let atom = self.push(AtomInfo { kind, range, lo, hi, multiple: 1 });
                self.out.quotients.insert((rest, b), atom);
                atom
            }
        };
        out.add(&Poly::atom(atom))
    }

    /// The polynomial with each variable at the bound that makes it largest (`up`) or smallest.
    pub(super) fn extreme_of(&self, p: &Poly, up: bool) -> Option<Poly> {
        let mut p = p.clone();
        for _ in 0..8 {
            let next = p.atoms().into_iter().rev().find(|&a| {
                let info = &self.out.atoms[a as usize];
                matches!(info.kind, AtomKind::Leaf) && (info.lo.is_some() || info.hi.is_some())
            });
            let Some(a) = next else { return Some(p) };
            let (factor, _) = p.split(a)?;
            let positive = match factor.as_constant() {
                Some(c) => c > 0,
                None if self.out.poly_interval(&factor).0.is_some_and(|x| x >= 0) => true,
                None if self.out.poly_interval(&factor).1.is_some_and(|x| x <= 0) => false,
                None => return None,
            };
            let info = &self.out.atoms[a as usize];
            let bound = if positive == up { info.hi.as_ref()? } else { info.lo.as_ref()? };
            p = p.replace(a, bound)?;
        }
        None
    }

    pub(super) fn extreme(&mut self, is_min: bool, a: Poly, b: Poly) -> Option<Poly> {
        let gap = b.sub(&a)?;
        if self.out.never_negative(&gap) {
            return Some(if is_min { a } else { b });
        }
        if self.out.never_negative(&gap.scale(-1)?) {
            return Some(if is_min { b } else { a });
        }
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        if let Some(&atom) = self.out.extremes.get(&(is_min, a.clone(), b.clone())) {
            return Some(Poly::atom(atom));
        }
        let (x, y) = (self.out.poly_interval(&a), self.out.poly_interval(&b));
        let range = if is_min { min_interval(x, y) } else { max_interval(x, y) };
        let content = |p: &Poly| p.terms().fold(0, |g, (_, c)| gcd(g, c));
        let multiple = gcd(content(&a), content(&b)).max(1);
        let key = (is_min, a.clone(), b.clone());
        let kind = if is_min { AtomKind::Min(a, b) } else { AtomKind::Max(a, b) };
        let atom = self.push(AtomInfo { kind, range, lo: None, hi: None, multiple });
        self.out.extremes.insert(key, atom);
        Some(Poly::atom(atom))
    }

    pub(super) fn tree_interval(&mut self, e: IxExpr) -> Interval {
        let at = |s: &Self, x: IxId| s.out.intervals[x.0 as usize];
        match e {
            IxExpr::Const(c) => (Some(c as i128), Some(c as i128)),
            IxExpr::Sym(s) => {
                let s = &self.syms[s.0 as usize];
                (Some(s.min as i128), Some(s.max as i128))
            }
            IxExpr::Var(v) => {
                let a = self.var(v);
                self.out.atoms[a as usize].range
            }
            IxExpr::Data(v) => dtype_range(self.kernel.value(v).dtype),
            IxExpr::Add(a, b) => plus(at(self, a), at(self, b)),
            IxExpr::Sub(a, b) => plus(at(self, a), times((Some(-1), Some(-1)), at(self, b))),
            IxExpr::Mul(a, b) => times(at(self, a), at(self, b)),
            IxExpr::Div(a, b) => div_interval(at(self, a), at(self, b)),
            IxExpr::Mod(a, b) => {
                let (x, y) = (at(self, a), at(self, b));
                let top = y.1.map(|y| y - 1);
                match x {
                    (Some(lo), hi) if lo >= 0 => (Some(0), least(top, hi)),
                    _ => (Some(0), top),
                }
            }
            IxExpr::Min(a, b) => min_interval(at(self, a), at(self, b)),
            IxExpr::Max(a, b) => max_interval(at(self, a), at(self, b)),
        }
    }

    pub(super) fn affine(&self, id: IxId) -> Affine {
        let atom = || Affine { constant: 0, terms: BTreeMap::from([(id, 1)]) };
        let made = match self.kernel.ix_expr(id) {
            IxExpr::Const(c) => Some(Affine { constant: c, terms: BTreeMap::new() }),
            IxExpr::Add(a, b) => combine(&self.affine(a), &self.affine(b), 1),
            IxExpr::Sub(a, b) => combine(&self.affine(a), &self.affine(b), -1),
            IxExpr::Mul(a, b) => {
                let (x, y) = (self.affine(a), self.affine(b));
                match (x.terms.is_empty(), y.terms.is_empty()) {
                    (_, true) => combine(&Affine::default(), &x, y.constant),
                    (true, false) => combine(&Affine::default(), &y, x.constant),
                    (false, false) => None,
                }
            }
            IxExpr::Sym(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Div(..)
            | IxExpr::Mod(..)
            | IxExpr::Min(..)
            | IxExpr::Max(..) => None,
        };
        made.unwrap_or_else(atom)
    }
}

/// `a + k * b`, `None` on overflow.
fn combine(a: &Affine, b: &Affine, k: i64) -> Option<Affine> {
    let mut out = a.clone();
    out.constant = out.constant.checked_add(b.constant.checked_mul(k)?)?;
    for (&id, &c) in &b.terms {
        let sum = out.terms.get(&id).copied().unwrap_or(0).checked_add(c.checked_mul(k)?)?;
        if sum == 0 {
            out.terms.remove(&id);
        } else {
            out.terms.insert(id, sum);
        }
    }
    Some(out)
}
