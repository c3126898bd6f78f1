//! Intervals, divisibility and order of index expressions.
//!
//! Every expression is brought into a polynomial over atoms (symbols, variables, quotients, minima, maxima). A symbol
//! with a known divisor `m` is written `m * q`, a remainder `a mod b` is written `a - b * (a / b)`, so that the usual
//! identities cancel by themselves. `a <= b` is proven by replacing the atoms of `b - a`, later ones first, with the
//! bound that makes the difference smallest, until a number is left. The search has a fixed budget, so it ends, and it
//! only ever claims what holds for each assignment that satisfies the bounds of the variables, the symbols' facts, the
//! kernel's `requires`, and a grid that is not empty.

mod build;
mod facts;
mod interval;
mod polynomials;

use super::poly::{Atom, Poly};
use crate::ir::{DType, IfResult, IxExpr, IxId, IxVarId, Kernel, Literal, Op, Relation, Sym, ValueId};
use build::Build;
use interval::{plus, times};
use std::collections::{BTreeMap, HashMap, HashSet};

/// `constant + sum(coefficient * atom)`. Atoms are expressions of the kernel that are not sums and not products with a
/// constant: symbols, variables, data, products of two non-constants, quotients, remainders, minima and maxima.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affine {
    /// Constant part.
    pub constant: i64,
    /// Coefficient of each atom, never zero.
    pub terms: BTreeMap<IxId, i64>,
}

/// Closed interval; `None` is unbounded.
type Interval = (Option<i128>, Option<i128>);
/// Bounds of an atom: as numbers, and as polynomials.
pub(crate) type Bounds<'a> = (Interval, Option<&'a Poly>, Option<&'a Poly>);
const ALL: Interval = (None, None);
/// Bounds beyond this are forgotten, so that interval arithmetic cannot overflow.
const HUGE: i128 = 1 << 100;
/// Steps one proof may take.
const FUEL: u32 = 300;

#[derive(Clone, Debug)]
enum AtomKind {
    /// Only its bounds are known.
    Leaf,
    /// Quotient of two polynomials, rounded down.
    Div(Poly, Poly),
    /// Smaller of two.
    Min(Poly, Poly),
    /// Larger of two.
    Max(Poly, Poly),
}

#[derive(Clone, Debug)]
struct AtomInfo {
    kind: AtomKind,
    range: Interval,
    lo: Option<Poly>,
    hi: Option<Poly>,
    multiple: i128,
}

/// Facts about every index expression of one kernel.
#[derive(Clone, Debug)]
pub struct Ranges {
    index: Vec<IxExpr>,
    polys: Vec<Option<Poly>>,
    intervals: Vec<Interval>,
    affine: Vec<Affine>,
    atoms: Vec<AtomInfo>,
    quotients: HashMap<(Poly, Poly), Atom>,
    extremes: HashMap<(bool, Poly, Poly), Atom>,
    vars: Vec<Option<Atom>>,
    /// Polynomials that are never negative.
    facts: Vec<Poly>,
    /// Atoms of each variable's kind `Element`, `Loop` and so on are found through here.
    var_of_atom: HashMap<Atom, IxVarId>,
    data_of_atom: HashMap<Atom, ValueId>,
    /// Leaves that stand for an expression which did not fit the normal form.
    opaque: HashSet<Atom>,
}

/// What a leaf of the normal form is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// A launch-time number.
    Sym,
    /// An index variable.
    Var(IxVarId),
    /// A scalar.
    Data(ValueId),
    /// Unknown.
    Opaque,
}

impl Ranges {
    /// Analyses all index expressions of a kernel.
    pub fn new(kernel: &Kernel) -> Ranges {
        Build::new(kernel).run()
    }

    /// Smallest and largest value, as far as known.
    pub fn interval(&self, id: IxId) -> (Option<i64>, Option<i64>) {
        let narrow = |x: Option<i128>| x.and_then(|x| i64::try_from(x).ok());
        let (lo, hi) = self.intervals[id.0 as usize];
        (narrow(lo), narrow(hi))
    }

    /// Number of index expressions known; those a pass made since have larger ids.
    pub fn known(&self) -> usize {
        self.index.len()
    }

    /// A number that divides every value of the expression, at least 1; 0 for an expression that is always 0 (so
    /// `multiple_of(x) % width == 0` answers whether `x` is a multiple of `width`).
    pub fn multiple_of(&self, id: IxId) -> i64 {
        let Some(p) = &self.polys[id.0 as usize] else { return 1 };
        let m = p.terms().fold(0, |g, (mono, c)| {
            let atoms = mono.iter().fold(1i128, |m, &a| m.saturating_mul(self.atoms[a as usize].multiple).min(1 << 60));
            gcd(g, c.saturating_mul(atoms))
        });
        i64::try_from(m).unwrap_or(1)
    }

    /// True if `a < b` holds always.
    pub fn prove_lt(&self, a: IxId, b: IxId) -> bool {
        self.prove_gap(a, b, 1)
    }

    /// True if `a <= b` holds always.
    pub fn prove_le(&self, a: IxId, b: IxId) -> bool {
        self.prove_gap(a, b, 0)
    }

    /// True if `a == b` holds always.
    pub fn prove_eq(&self, a: IxId, b: IxId) -> bool {
        a == b || (self.prove_le(a, b) && self.prove_le(b, a))
    }

    /// True if the expression is never negative.
    pub fn never_below_zero(&self, id: IxId) -> bool {
        self.intervals[id.0 as usize].0.is_some_and(|x| x >= 0)
            || self.polys[id.0 as usize].as_ref().is_some_and(|p| self.never_negative(p))
    }

    /// True if `a + gap <= b` holds always.
    pub fn prove_gap(&self, a: IxId, b: IxId, gap: i64) -> bool {
        if let ((_, Some(x)), (Some(y), _)) = (self.intervals[a.0 as usize], self.intervals[b.0 as usize])
            && x + gap as i128 <= y
        {
            return true;
        }
        let (Some(x), Some(y)) = (&self.polys[a.0 as usize], &self.polys[b.0 as usize]) else { return false };
        y.sub(x).and_then(|d| d.add(&Poly::constant(-(gap as i128)))).is_some_and(|d| self.never_negative(&d))
    }

    /// Affine normal form over the kernel's own expressions.
    pub fn affine(&self, id: IxId) -> Affine {
        self.affine[id.0 as usize].clone()
    }

    /// True if the value of the expression changes with `var`, directly or through a variable whose bounds or whose
    /// defining expressions use it is *not* counted: only occurrences in the expression itself.
    pub fn mentions(&self, id: IxId, var: IxVarId) -> bool {
        match self.index[id.0 as usize] {
            IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Data(_) => false,
            IxExpr::Var(v) => v == var,
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.mentions(a, var) || self.mentions(b, var),
        }
    }

    pub(crate) fn poly(&self, id: IxId) -> Option<&Poly> {
        self.polys[id.0 as usize].as_ref()
    }

    pub(crate) fn var_atom(&self, var: IxVarId) -> Option<Atom> {
        self.vars[var.0 as usize]
    }

    /// All leaves the polynomial is computed from, with the atoms themselves.
    pub(crate) fn leaves(&self, p: &Poly, out: &mut Vec<(Atom, Leaf)>) {
        for a in p.atoms() {
            match &self.atoms[a as usize].kind {
                AtomKind::Leaf => {
                    let leaf = match (self.var_of_atom.get(&a), self.data_of_atom.get(&a)) {
                        (Some(&v), _) => Leaf::Var(v),
                        (None, Some(&v)) => Leaf::Data(v),
                        (None, None) if self.opaque.contains(&a) => Leaf::Opaque,
                        (None, None) => Leaf::Sym,
                    };
                    if !out.contains(&(a, leaf)) {
                        out.push((a, leaf));
                    }
                }
                AtomKind::Div(x, y) | AtomKind::Min(x, y) | AtomKind::Max(x, y) => {
                    self.leaves(x, out);
                    self.leaves(y, out);
                }
            }
        }
    }

    /// Bounds of a leaf as numbers and as polynomials.
    pub(crate) fn bounds_of(&self, a: Atom) -> Bounds<'_> {
        let info = &self.atoms[a as usize];
        (info.range, info.lo.as_ref(), info.hi.as_ref())
    }

    /// Value of an atom's definition with `leaf` giving the leaves; used for enumeration.
    pub(crate) fn eval_atom(&self, atom: Atom, leaf: &dyn Fn(Atom) -> Option<i128>) -> Option<i128> {
        match &self.atoms[atom as usize].kind {
            AtomKind::Leaf => leaf(atom),
            AtomKind::Div(a, b) => {
                let (a, b) = (self.eval_poly(a, leaf)?, self.eval_poly(b, leaf)?);
                if b > 0 { Some(a.div_euclid(b)) } else { None }
            }
            AtomKind::Min(a, b) => Some(self.eval_poly(a, leaf)?.min(self.eval_poly(b, leaf)?)),
            AtomKind::Max(a, b) => Some(self.eval_poly(a, leaf)?.max(self.eval_poly(b, leaf)?)),
        }
    }

    pub(crate) fn eval_poly(&self, p: &Poly, leaf: &dyn Fn(Atom) -> Option<i128>) -> Option<i128> {
        let mut sum = 0i128;
        for (m, c) in p.terms() {
            let mut x = c;
            for &a in m {
                x = x.checked_mul(self.eval_atom(a, leaf)?)?;
            }
            sum = sum.checked_add(x)?;
        }
        Some(sum)
    }

    /// True if the polynomial is never negative.
    pub(crate) fn never_negative(&self, p: &Poly) -> bool {
        let mut fuel = FUEL;
        if self.search(p, &mut fuel) {
            return true;
        }
        for f in &self.facts {
            let related = f.atoms().iter().any(|&a| p.mentions(a));
            let mut fuel = FUEL / 4;
            if related && p.sub(f).is_some_and(|rest| self.search(&rest, &mut fuel)) {
                return true;
            }
        }
        false
    }

    fn poly_interval(&self, p: &Poly) -> Interval {
        p.terms().fold((Some(0), Some(0)), |sum, (m, c)| {
            let mut product: Interval = (Some(c), Some(c));
            let mut k = 0;
            while k < m.len() {
                // An even power is never negative, which a product of intervals would not see.
                let range = self.atoms[m[k] as usize].range;
                product = if k + 1 < m.len() && m[k + 1] == m[k] {
                    k += 1;
                    let (lo, hi) = times(range, range);
                    times(product, (lo.map(|x| x.max(0)).or(Some(0)), hi))
                } else {
                    times(product, range)
                };
                k += 1;
            }
            plus(sum, product)
        })
    }

    fn search(&self, p: &Poly, fuel: &mut u32) -> bool {
        if let Some(c) = p.as_constant() {
            return c >= 0;
        }
        let (lo, hi) = self.poly_interval(p);
        if lo.is_some_and(|x| x >= 0) {
            return true;
        }
        if hi.is_some_and(|x| x < 0) || *fuel == 0 {
            return false;
        }
        *fuel -= 1;
        for &atom in p.atoms().iter().rev() {
            let Some((factor, rest)) = p.split(atom) else { continue };
            let positive = match factor.as_constant() {
                Some(c) => Some(c > 0),
                None if self.search(&factor, fuel) => Some(true),
                None if factor.scale(-1).is_some_and(|f| self.search(&f, fuel)) => Some(false),
                None => None,
            };
            let Some(positive) = positive else { continue };
            return self.eliminate(atom, &factor, &rest, positive, fuel);
        }
        false
    }

    /// Shows `factor * atom + rest >= 0` from bounds of the atom, with the factor's sign known.
    fn eliminate(&self, atom: Atom, factor: &Poly, rest: &Poly, positive: bool, fuel: &mut u32) -> bool {
        let info = &self.atoms[atom as usize];
        let with = |bound: &Poly| factor.mul(bound).and_then(|x| x.add(rest));
        // The symbolic bound first: it keeps terms that cancel later.
        let bound = if positive { &info.lo } else { &info.hi };
        if let Some(q) = bound.as_ref().and_then(with)
            && self.search(&q, fuel)
        {
            return true;
        }
        match &info.kind {
            AtomKind::Leaf => {}
            AtomKind::Div(a, b) => {
                // b * (a / b) lies in a - b + 1 ..= a.
                let edge = if positive { a.sub(b).and_then(|x| x.add(&Poly::constant(1))) } else { Some(a.clone()) };
                let exact = factor.exact_div(b).zip(edge.clone()).and_then(|(k, e)| k.mul(&e)?.add(rest));
                if exact.is_some_and(|q| self.search(&q, fuel)) {
                    return true;
                }
                let scaled =
                    edge.and_then(|e| factor.mul(&e)?.add(&rest.mul(b)?)).filter(|_| b.as_constant().is_some());
                if scaled.is_some_and(|q| self.search(&q, fuel)) {
                    return true;
                }
            }
            AtomKind::Min(a, b) | AtomKind::Max(a, b) => {
                let is_min = matches!(info.kind, AtomKind::Min(..));
                let mut one = |x: &Poly| with(x).is_some_and(|q| self.search(&q, fuel));
                // A minimum is at most either side, and is one of them.
                if if positive == is_min { one(a) && one(b) } else { one(a) || one(b) } {
                    return true;
                }
            }
        }
        let number = if positive { info.range.0 } else { info.range.1 };
        number.and_then(|c| with(&Poly::constant(c))).is_some_and(|q| self.search(&q, fuel))
    }
}

pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The integer a literal stands for.
pub(crate) fn int_value(l: Literal) -> Option<i128> {
    match l.dtype {
        DType::I8 => Some(l.bits as u8 as i8 as i128),
        DType::U8 => Some(l.bits as u8 as i128),
        DType::I32 => Some(l.bits as u32 as i32 as i128),
        DType::U32 => Some(l.bits as u32 as i128),
        DType::I64 => Some(l.bits as i64 as i128),
        DType::Bool => Some((l.bits & 1) as i128),
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => None,
    }
}

#[cfg(test)]
mod tests;
