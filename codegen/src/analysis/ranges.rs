//! Intervals, divisibility and order of index expressions.
//!
//! Every expression is brought into a polynomial over atoms (symbols, variables, quotients, minima, maxima). A symbol
//! with a known divisor `m` is written `m * q`, a remainder `a mod b` is written `a - b * (a / b)`, so that the usual
//! identities cancel by themselves. `a <= b` is proven by replacing the atoms of `b - a`, later ones first, with the
//! bound that makes the difference smallest, until a number is left. The search has a fixed budget, so it ends, and it
//! only ever claims what holds for each assignment that satisfies the bounds of the variables, the symbols' facts, the
//! kernel's `requires`, and a grid that is not empty.

use super::poly::{Atom, Poly};
use crate::ir::{DType, IfResult, IxExpr, IxId, IxVarId, Kernel, Literal, Op, Relation, Sym, ValueId};
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

/// The state while the table of atoms grows.
struct Build<'a> {
    kernel: &'a Kernel,
    syms: Vec<Sym>,
    out: Ranges,
    sym_polys: Vec<Option<Poly>>,
    /// `sym == divisor * something`, from requires with a divisor that is not a number.
    sym_factors: HashMap<u32, IxId>,
    sym_equals: HashMap<u32, IxId>,
    done: Vec<bool>,
    busy: Vec<bool>,
    /// Bounds of data indices, from the ops that define them.
    data_bounds: HashMap<IxVarId, DataBounds>,
    data_atoms: HashMap<ValueId, Atom>,
}

enum DataBounds {
    Between(IxId, IxId),
    UpTo(usize),
    Either(IxId, IxId),
}

impl<'a> Build<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        let n = kernel.index.len();
        let mut data_bounds = HashMap::new();
        for node in &kernel.ops {
            match &node.op {
                Op::ClampIndex { var, lo, hi, .. } => drop(data_bounds.insert(*var, DataBounds::Between(*lo, *hi))),
                Op::FindFirst { result, extent, .. } => drop(data_bounds.insert(*result, DataBounds::UpTo(*extent))),
                Op::If { results, .. } => {
                    for r in results {
                        match r {
                            IfResult::Index { result, then, els } => {
                                data_bounds.insert(*result, DataBounds::Either(*then, *els));
                            }
                            IfResult::Value { .. } => {}
                        }
                    }
                }
                Op::Const { .. }
                | Op::IndexValue { .. }
                | Op::Unary { .. }
                | Op::Binary { .. }
                | Op::Fma { .. }
                | Op::Compare { .. }
                | Op::CompareIndex { .. }
                | Op::Select { .. }
                | Op::Cast { .. }
                | Op::Bits { .. }
                | Op::VarNew { .. }
                | Op::VarGet { .. }
                | Op::VarSet { .. }
                | Op::IxVarNew { .. }
                | Op::IxVarGet { .. }
                | Op::IxVarSet { .. }
                | Op::Load { .. }
                | Op::LoadOr { .. }
                | Op::Store { .. }
                | Op::Atomic { .. }
                | Op::Alloc { .. }
                | Op::Fill { .. }
                | Op::Copy { .. }
                | Op::Parallel { .. }
                | Op::Spread { .. }
                | Op::Reduce { .. }
                | Op::ReduceRegion { .. }
                | Op::Scan { .. }
                | Op::Gemm { .. }
                | Op::For { .. }
                | Op::Loop { .. }
                | Op::Break
                | Op::Continue
                | Op::Check { .. }
                | Op::GridBarrier
                | Op::BlockBarrier { .. }
                | Op::Sched(_) => {}
            }
        }
        Build {
            kernel,
            syms: kernel.syms.clone(),
            out: Ranges {
                index: kernel.index.clone(),
                polys: vec![None; n],
                intervals: vec![ALL; n],
                affine: vec![Affine::default(); n],
                atoms: vec![],
                quotients: HashMap::new(),
                extremes: HashMap::new(),
                vars: vec![None; kernel.ix_vars.len()],
                facts: vec![],
                var_of_atom: HashMap::new(),
                data_of_atom: HashMap::new(),
                opaque: HashSet::new(),
            },
            sym_polys: vec![None; kernel.syms.len()],
            sym_factors: HashMap::new(),
            sym_equals: HashMap::new(),
            done: vec![false; n],
            busy: vec![false; n],
            data_bounds,
            data_atoms: HashMap::new(),
        }
    }

    fn run(mut self) -> Ranges {
        for &e in &self.kernel.grid {
            self.at_least(e, 1);
        }
        for r in &self.kernel.requires {
            self.refine(r.left, r.relation, r.right);
        }
        for i in 0..self.kernel.index.len() {
            self.visit(IxId(i as u32));
        }
        for v in 0..self.kernel.ix_vars.len() {
            self.var(IxVarId(v as u32));
        }
        let mut facts = vec![];
        let one = Poly::constant(1);
        for &e in &self.kernel.grid {
            facts.extend(self.out.polys[e.0 as usize].as_ref().and_then(|p| p.sub(&one)));
        }
        for r in &self.kernel.requires {
            let (l, h) = (&self.out.polys[r.left.0 as usize], &self.out.polys[r.right.0 as usize]);
            let (Some(l), Some(h)) = (l, h) else { continue };
            match r.relation {
                Relation::Le => facts.extend(h.sub(l)),
                Relation::Lt => facts.extend(h.sub(l).and_then(|d| d.sub(&one))),
                Relation::Eq => {
                    facts.extend(h.sub(l));
                    facts.extend(l.sub(h));
                }
            }
        }
        facts.retain(|f| f.as_constant().is_none());
        self.out.facts = facts;
        for i in 0..self.kernel.index.len() {
            self.out.affine[i] = self.affine(IxId(i as u32));
        }
        self.out
    }

    // --- facts about symbols, read off the requires and the grid ---

    fn refine(&mut self, left: IxId, relation: Relation, right: IxId) {
        let (l, r) = (self.kernel.ix_const(left), self.kernel.ix_const(right));
        match relation {
            Relation::Le => {
                if let Some(c) = l {
                    self.at_least(right, c);
                }
                if let Some(c) = r {
                    self.at_most(left, c);
                }
            }
            Relation::Lt => {
                if let Some(c) = l {
                    self.at_least(right, c.saturating_add(1));
                }
                if let Some(c) = r {
                    self.at_most(left, c.saturating_sub(1));
                }
            }
            Relation::Eq => {
                for (x, other, value) in [(left, right, r), (right, left, l)] {
                    if let Some(c) = value {
                        self.at_least(x, c);
                        self.at_most(x, c);
                    }
                    match self.kernel.ix_expr(x) {
                        IxExpr::Mod(a, m) if value == Some(0) => self.divides(a, m),
                        // Later symbols are written in terms of earlier ones, so that this cannot go in circles.
                        IxExpr::Sym(s) if value.is_none() && self.latest_sym(other).is_none_or(|o| o < s.0) => {
                            self.sym_equals.entry(s.0).or_insert(other);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn latest_sym(&self, id: IxId) -> Option<u32> {
        match self.kernel.ix_expr(id) {
            IxExpr::Const(_) => None,
            IxExpr::Sym(s) => Some(s.0),
            // Variables are not launch facts; treat them as later than every symbol.
            IxExpr::Var(_) | IxExpr::Data(_) => Some(u32::MAX),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.latest_sym(a).max(self.latest_sym(b)),
        }
    }

    /// `a mod m == 0`.
    fn divides(&mut self, a: IxId, m: IxId) {
        match (self.kernel.ix_expr(a), self.kernel.ix_const(m)) {
            (IxExpr::Sym(s), Some(m)) if m > 0 => {
                let known = &mut self.syms[s.0 as usize].multiple_of;
                let lcm = (*known / gcd(*known as i128, m as i128) as i64).checked_mul(m);
                *known = lcm.unwrap_or(*known);
            }
            (IxExpr::Mul(x, c), Some(m)) if m > 0 => {
                if let Some(c) = self.kernel.ix_const(c).filter(|&c| c > 0) {
                    let left = m / gcd(m as i128, c as i128) as i64;
                    if left > 1
                        && let IxExpr::Sym(s) = self.kernel.ix_expr(x)
                    {
                        let known = &mut self.syms[s.0 as usize].multiple_of;
                        let lcm = (*known / gcd(*known as i128, left as i128) as i64).checked_mul(left);
                        *known = lcm.unwrap_or(*known);
                    }
                }
            }
            (IxExpr::Sym(s), None) if self.latest_sym(m).is_some_and(|o| o < s.0) => {
                self.sym_factors.entry(s.0).or_insert(m);
            }
            _ => {}
        }
    }

    fn at_least(&mut self, id: IxId, k: i64) {
        match self.kernel.ix_expr(id) {
            IxExpr::Sym(s) => {
                let s = &mut self.syms[s.0 as usize];
                s.min = s.min.max(k);
            }
            IxExpr::Add(a, c) => {
                if let Some(c) = self.kernel.ix_const(c) {
                    self.at_least(a, k.saturating_sub(c));
                }
            }
            IxExpr::Div(a, d) => {
                if let Some(d) = self.kernel.ix_const(d).filter(|&d| d > 0) {
                    self.at_least(a, k.saturating_mul(d));
                }
            }
            IxExpr::Mul(a, b) => {
                if let Some(c) = self.kernel.ix_const(b).filter(|&c| c > 0) {
                    self.at_least(a, k.div_euclid(c) + (k.rem_euclid(c) > 0) as i64);
                } else if k >= 1 && self.plainly_positive(a) && self.plainly_positive(b) {
                    self.at_least(a, 1);
                    self.at_least(b, 1);
                }
            }
            IxExpr::Min(a, b) => {
                self.at_least(a, k);
                self.at_least(b, k);
            }
            IxExpr::Const(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Sub(..)
            | IxExpr::Mod(..)
            | IxExpr::Max(..) => {}
        }
    }

    fn at_most(&mut self, id: IxId, k: i64) {
        match self.kernel.ix_expr(id) {
            IxExpr::Sym(s) => {
                let s = &mut self.syms[s.0 as usize];
                s.max = s.max.min(k);
            }
            IxExpr::Add(a, c) => {
                if let Some(c) = self.kernel.ix_const(c) {
                    self.at_most(a, k.saturating_sub(c));
                }
            }
            IxExpr::Div(a, d) => {
                if let Some(d) = self.kernel.ix_const(d).filter(|&d| d > 0) {
                    self.at_most(a, k.saturating_mul(d).saturating_add(d - 1));
                }
            }
            IxExpr::Mul(a, b) => {
                if let Some(c) = self.kernel.ix_const(b).filter(|&c| c > 0) {
                    self.at_most(a, k.div_euclid(c));
                }
            }
            IxExpr::Max(a, b) => {
                self.at_most(a, k);
                self.at_most(b, k);
            }
            IxExpr::Const(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Sub(..)
            | IxExpr::Mod(..)
            | IxExpr::Min(..) => {}
        }
    }

    /// Never negative by its form alone: sums, products, quotients of symbols and positive numbers.
    fn plainly_positive(&self, id: IxId) -> bool {
        match self.kernel.ix_expr(id) {
            IxExpr::Const(c) => c >= 0,
            IxExpr::Sym(s) => self.syms[s.0 as usize].min >= 0,
            IxExpr::Add(a, b) | IxExpr::Mul(a, b) | IxExpr::Div(a, b) | IxExpr::Min(a, b) | IxExpr::Max(a, b) => {
                self.plainly_positive(a) && self.plainly_positive(b)
            }
            IxExpr::Mod(..) => true,
            IxExpr::Var(_) | IxExpr::Data(_) | IxExpr::Sub(..) => false,
        }
    }

    // --- polynomials ---

    fn leaf(&mut self, range: Interval, lo: Option<Poly>, hi: Option<Poly>) -> Atom {
        self.push(AtomInfo { kind: AtomKind::Leaf, range, lo, hi, multiple: 1 })
    }

    fn push(&mut self, info: AtomInfo) -> Atom {
        self.out.atoms.push(info);
        self.out.atoms.len() as Atom - 1
    }

    fn visit(&mut self, id: IxId) {
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

    fn of(&mut self, id: IxId) -> Option<Poly> {
        self.visit(id);
        self.out.polys[id.0 as usize].clone()
    }

    fn form(&mut self, e: IxExpr) -> Option<Poly> {
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

    fn sym(&mut self, s: u32) -> Option<Poly> {
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

    fn var(&mut self, v: IxVarId) -> Atom {
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

    fn data(&mut self, v: ValueId) -> Poly {
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
    fn div(&mut self, a: Poly, b: Poly) -> Option<Poly> {
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
    fn extreme_of(&self, p: &Poly, up: bool) -> Option<Poly> {
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

    fn extreme(&mut self, is_min: bool, a: Poly, b: Poly) -> Option<Poly> {
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

    fn tree_interval(&mut self, e: IxExpr) -> Interval {
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

    fn affine(&self, id: IxId) -> Affine {
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

fn dtype_range(d: DType) -> Interval {
    match d {
        DType::I8 => (Some(-128), Some(127)),
        DType::U8 => (Some(0), Some(255)),
        DType::I32 => (Some(i32::MIN as i128), Some(i32::MAX as i128)),
        DType::U32 => (Some(0), Some(u32::MAX as i128)),
        DType::I64 => (Some(i64::MIN as i128), Some(i64::MAX as i128)),
        DType::Bool => (Some(0), Some(1)),
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => ALL,
    }
}

fn clip(x: i128) -> Option<i128> {
    (x.abs() < HUGE).then_some(x)
}
fn least(a: Option<i128>, b: Option<i128>) -> Option<i128> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (x, None) | (None, x) => x,
    }
}
fn greatest(a: Option<i128>, b: Option<i128>) -> Option<i128> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (x, None) | (None, x) => x,
    }
}
fn meet(a: Interval, b: Interval) -> Interval {
    (greatest(a.0, b.0), least(a.1, b.1))
}
fn hull(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).map(|(x, y)| x.min(y)), a.1.zip(b.1).map(|(x, y)| x.max(y)))
}
fn min_interval(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).map(|(x, y)| x.min(y)), least(a.1, b.1))
}
fn max_interval(a: Interval, b: Interval) -> Interval {
    (greatest(a.0, b.0), a.1.zip(b.1).map(|(x, y)| x.max(y)))
}
fn inside(a: Interval, b: Interval) -> bool {
    b.0.is_none_or(|b| a.0.is_some_and(|a| a >= b)) && b.1.is_none_or(|b| a.1.is_some_and(|a| a <= b))
}
fn plus(a: Interval, b: Interval) -> Interval {
    (a.0.zip(b.0).and_then(|(x, y)| clip(x + y)), a.1.zip(b.1).and_then(|(x, y)| clip(x + y)))
}
fn times(a: Interval, b: Interval) -> Interval {
    // Each end is a number or an infinity; zero times infinity is zero because the ends are limits of finite values.
    #[derive(Clone, Copy)]
    enum End {
        Low,
        At(i128),
        High,
    }
    fn product(x: End, y: End) -> End {
        let sign = |e: End| match e {
            End::Low => -1,
            End::At(v) => v.signum(),
            End::High => 1,
        };
        match (x, y) {
            (End::At(a), End::At(b)) => match a.checked_mul(b).and_then(clip) {
                Some(v) => End::At(v),
                None if (a > 0) == (b > 0) => End::High,
                None => End::Low,
            },
            _ => match sign(x) * sign(y) {
                0 => End::At(0),
                1 => End::High,
                _ => End::Low,
            },
        }
    }
    let ends = |i: Interval| [i.0.map_or(End::Low, End::At), i.1.map_or(End::High, End::At)];
    let (mut lo, mut hi) = (Some(i128::MAX), Some(i128::MIN));
    for x in ends(a) {
        for y in ends(b) {
            match product(x, y) {
                End::Low => lo = None,
                End::High => hi = None,
                End::At(v) => {
                    lo = lo.map(|l| l.min(v));
                    hi = hi.map(|h| h.max(v));
                }
            }
        }
    }
    // An end that was only ever infinite on the other side says nothing.
    (lo.filter(|&v| v != i128::MAX), hi.filter(|&v| v != i128::MIN))
}
/// Quotients rounded down, for divisors of at least 1.
fn div_interval(a: Interval, b: Interval) -> Interval {
    let small = b.0.unwrap_or(1).max(1);
    let large = b.1;
    let lo = match a.0 {
        Some(x) if x >= 0 => Some(large.map_or(0, |l| x.div_euclid(l.max(1)))),
        Some(x) => Some(x.div_euclid(small)),
        None => None,
    };
    let hi = match a.1 {
        Some(x) if x >= 0 => Some(x.div_euclid(small)),
        Some(x) => Some(large.map_or(-1, |l| x.div_euclid(l.max(1)))),
        None => None,
    };
    (lo, hi)
}

#[cfg(test)]
mod tests;
