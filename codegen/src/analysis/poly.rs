//! Integer polynomials over atoms: the normal form in which index expressions are compared.
//!
//! Not public: callers outside the analysis see `Affine`. An atom is a number the form does not look into (a symbol, a
//! variable, a quotient, a minimum). Every operation is exact; `None` means that a coefficient left i128 or that the
//! form grew beyond a size worth keeping.

use std::collections::BTreeMap;

/// Number of an atom; atoms only depend on atoms with smaller numbers.
pub(crate) type Atom = u32;
/// Product of atoms, sorted; empty for the constant.
pub(crate) type Mono = Vec<Atom>;

/// More terms than this are not kept: index expressions of real kernels have a handful.
const MAX_TERMS: usize = 48;

/// A sum of products.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Poly(BTreeMap<Mono, i128>);

impl Poly {
    pub(crate) fn constant(c: i128) -> Self {
        let mut p = Poly::default();
        if c != 0 {
            p.0.insert(Vec::new(), c);
        }
        p
    }
    pub(crate) fn atom(a: Atom) -> Self {
        Poly(BTreeMap::from([(vec![a], 1)]))
    }
    /// The value, if there is no atom in it.
    pub(crate) fn as_constant(&self) -> Option<i128> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&Vec::new() as &Mono).copied(),
            _ => None,
        }
    }
    pub(crate) fn terms(&self) -> impl Iterator<Item = (&Mono, i128)> {
        self.0.iter().map(|(m, &c)| (m, c))
    }
    /// All atoms that occur, ascending.
    pub(crate) fn atoms(&self) -> Vec<Atom> {
        let mut all: Vec<Atom> = self.0.keys().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    pub(crate) fn mentions(&self, a: Atom) -> bool {
        self.0.keys().any(|m| m.contains(&a))
    }
    fn accumulate(&mut self, m: &Mono, c: i128) -> Option<()> {
        match self.0.get_mut(m) {
            Some(x) => {
                *x = x.checked_add(c)?;
                if *x == 0 {
                    self.0.remove(m);
                }
            }
            None if c != 0 => {
                self.0.insert(m.clone(), c);
            }
            None => {}
        }
        (self.0.len() <= MAX_TERMS).then_some(())
    }
    pub(crate) fn add(&self, other: &Poly) -> Option<Poly> {
        let mut out = self.clone();
        for (m, &c) in &other.0 {
            out.accumulate(m, c)?;
        }
        Some(out)
    }
    pub(crate) fn scale(&self, k: i128) -> Option<Poly> {
        if k == 0 {
            return Some(Poly::default());
        }
        self.0
            .iter()
            .map(|(m, &c)| Some((m.clone(), c.checked_mul(k).filter(|x| x.unsigned_abs() < 1 << 120)?)))
            .collect::<Option<BTreeMap<_, _>>>()
            .map(Poly)
    }
    pub(crate) fn sub(&self, other: &Poly) -> Option<Poly> {
        self.add(&other.scale(-1)?)
    }
    pub(crate) fn mul(&self, other: &Poly) -> Option<Poly> {
        let mut out = Poly::default();
        for (m, &c) in &self.0 {
            for (n, &d) in &other.0 {
                let mut mono: Mono = m.iter().chain(n).copied().collect();
                mono.sort_unstable();
                if mono.len() > 6 {
                    return None;
                }
                out.accumulate(&mono, c.checked_mul(d).filter(|x| x.unsigned_abs() < 1 << 120)?)?;
            }
        }
        Some(out)
    }
    /// `self = factor * a + rest` with neither part mentioning `a`; `None` if `a` occurs squared.
    pub(crate) fn split(&self, a: Atom) -> Option<(Poly, Poly)> {
        let (mut factor, mut rest) = (Poly::default(), Poly::default());
        for (m, &c) in &self.0 {
            match m.iter().filter(|&&x| x == a).count() {
                0 => drop(rest.0.insert(m.clone(), c)),
                1 => drop(factor.0.insert(m.iter().copied().filter(|&x| x != a).collect(), c)),
                _ => return None,
            }
        }
        Some((factor, rest))
    }
    /// `self / divisor` if the division is exact term by term; the divisor is a single term.
    pub(crate) fn exact_div(&self, divisor: &Poly) -> Option<Poly> {
        if divisor.0.len() != 1 {
            return if self == divisor { Some(Poly::constant(1)) } else { None };
        }
        let (dm, &dc) = divisor.0.iter().next()?;
        let mut out = Poly::default();
        for (m, &c) in &self.0 {
            if c % dc != 0 {
                return None;
            }
            let mut left = m.clone();
            for a in dm {
                left.remove(left.iter().position(|x| x == a)?);
            }
            out.accumulate(&left, c / dc)?;
        }
        Some(out)
    }
    /// Splits into the terms that `divisor` (a single term) divides, already divided, and the others.
    pub(crate) fn partial_div(&self, divisor: &Poly) -> (Poly, Poly) {
        let (mut quotient, mut rest) = (Poly::default(), Poly::default());
        for (m, &c) in &self.0 {
            let term = Poly(BTreeMap::from([(m.clone(), c)]));
            match term.exact_div(divisor).and_then(|q| quotient.add(&q)) {
                Some(sum) => quotient = sum,
                None => drop(rest.0.insert(m.clone(), c)),
            }
        }
        (quotient, rest)
    }
    /// Replaces atom `a` by a polynomial.
    pub(crate) fn replace(&self, a: Atom, by: &Poly) -> Option<Poly> {
        let mut out = Poly::default();
        for (m, &c) in &self.0 {
            let mut term = Poly(BTreeMap::from([(m.iter().copied().filter(|&x| x != a).collect::<Mono>(), c)]));
            for _ in 0..m.iter().filter(|&&x| x == a).count() {
                term = term.mul(by)?;
            }
            out = out.add(&term)?;
        }
        Some(out)
    }
}
