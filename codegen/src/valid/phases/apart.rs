//! The proof that two accesses of a phase keep apart: one axis after the other.

use super::*;

impl Phase<'_> {
    pub(super) fn apart(&self, w: &Access, x: &Access) -> bool {
        let mut pairs = self.axes(w, x).unwrap_or_default();
        pairs.extend(self.split_pairs(w, x));
        pairs.extend(self.address(w).zip(self.address(x)));
        let mut known: HashSet<Atom> =
            self.movers.iter().filter(|m| m.numbers.is_some_and(|(lo, hi)| lo == hi)).map(|m| m.atom).collect();
        loop {
            let before = known.len();
            for (p, q) in &pairs {
                let (Some((mut a, ra)), Some((mut b, rb))) = (self.linear(p), self.linear(q)) else { continue };
                let Some(gap) = ra.sub(&rb) else { continue };
                for v in &known {
                    if a.get(v) == b.get(v) {
                        a.remove(v);
                        b.remove(v);
                    }
                }
                if self.disjoint(&a, &b, &gap) {
                    return true;
                }
                if a == b && gap.as_constant() == Some(0) && self.mixed_radix(&a) {
                    known.extend(a.keys());
                }
            }
            let all = self.movers.iter().filter(|m| self.elements.contains(&m.var)).all(|m| known.contains(&m.atom));
            if all {
                return true;
            }
            if known.len() == before {
                return false;
            }
        }
    }

    pub(super) fn mover(&self, a: Atom) -> Option<&Mover> {
        self.movers.iter().find(|m| m.atom == a)
    }

    /// `sum(c * v) + gap - sum(d * v')` is never zero.
    pub(super) fn disjoint(&self, a: &BTreeMap<Atom, Poly>, b: &BTreeMap<Atom, Poly>, gap: &Poly) -> bool {
        let divisor = a.values().chain(b.values()).try_fold(0, |g, c| Some(gcd(g, c.as_constant()?)));
        if let (Some(g), Some(c)) = (divisor, gap.as_constant())
            && g > 0
            && c % g != 0
        {
            return true;
        }
        let bound = |up: bool| -> Option<Poly> {
            let mut sum = gap.clone();
            for (terms, sign) in [(a, 1), (b, -1)] {
                for (&v, c) in terms {
                    let c = c.scale(sign)?;
                    let positive = if self.r.never_negative(&c) {
                        true
                    } else if self.r.never_negative(&c.scale(-1)?) {
                        false
                    } else {
                        return None;
                    };
                    let m = self.mover(v)?;
                    let number = |n: i128| Some(Poly::constant(n));
                    let end = if positive == up {
                        m.hi.clone().or_else(|| number(m.numbers?.1))?
                    } else {
                        m.lo.clone().or_else(|| number(m.numbers?.0))?
                    };
                    sum = sum.add(&c.mul(&end)?)?;
                }
            }
            Some(sum)
        };
        let one = Poly::constant(1);
        bound(false).and_then(|l| l.sub(&one)).is_some_and(|l| self.r.never_negative(&l))
            || bound(true).and_then(|h| h.scale(-1)?.sub(&one)).is_some_and(|h| self.r.never_negative(&h))
    }

    /// Each value of the sum comes from one assignment: some order of the terms has every coefficient larger than what
    /// all before it can add up to.
    pub(super) fn mixed_radix(&self, terms: &BTreeMap<Atom, Poly>) -> bool {
        let mut left: Vec<(Poly, Option<Poly>)> = vec![];
        for (&v, c) in terms {
            let Some(m) = self.mover(v) else { return false };
            let one = Poly::constant(1);
            let size =
                if c.sub(&one).is_some_and(|c| self.r.never_negative(&c)) { Some(c.clone()) } else { c.scale(-1) };
            let Some(size) = size else { return false };
            if !size.sub(&one).is_some_and(|c| self.r.never_negative(&c)) {
                return false;
            }
            let span = match (&m.lo, &m.hi, m.numbers) {
                (_, _, Some((lo, hi))) => Some(Poly::constant(hi - lo)),
                (Some(lo), Some(hi), None) => hi.sub(lo),
                _ => None,
            };
            left.push((size, span));
        }
        if left.len() > 4 {
            left.sort_by_key(|t| t.0.as_constant().unwrap_or(i128::MAX));
        }
        self.stack(&left, &Poly::default())
    }

    pub(super) fn stack(&self, left: &[(Poly, Option<Poly>)], below: &Poly) -> bool {
        let tries = if left.len() > 4 { 1 } else { left.len() };
        left.is_empty()
            || (0..tries).any(|n| {
                let (size, span) = &left[n];
                let above = size.sub(below).and_then(|d| d.sub(&Poly::constant(1)));
                if !above.is_some_and(|d| self.r.never_negative(&d)) {
                    return false;
                }
                let rest: Vec<_> = left.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, t)| t.clone()).collect();
                if rest.is_empty() {
                    return true;
                }
                let next = span.as_ref().and_then(|s| size.mul(s)?.add(below));
                next.is_some_and(|next| self.stack(&rest, &next))
            })
    }

    /// Index pairs along axes that select different elements whenever they differ.
    pub(super) fn axes(&self, w: &Access, x: &Access) -> Option<Vec<(Poly, Poly)>> {
        let (v, u) = (self.k.view(w.view), self.k.view(x.view));
        let same = v.dtype == u.dtype
            && v.extents == u.extents
            && v.strides == u.strides
            && v.gather == u.gather
            && v.guards.len() == u.guards.len()
            && v.guards.iter().zip(&u.guards).all(|(a, b)| a.1 == b.1);
        if !same || !self.no_overlap(v) {
            return None;
        }
        let offsets = self.origin(v)?.sub(&self.origin(u)?)?;
        if offsets.as_constant() != Some(0) {
            return None;
        }
        let picks = v.guards.iter().zip(&u.guards).map(|(a, b)| (a.0, b.0));
        // Two entries of a table may name one row, so different places in it are no different elements.
        let looked_up = v.gather.is_some() as usize;
        let axes = w.index.iter().zip(&x.index).skip(looked_up).map(|(&a, &b)| (a, b));
        picks.chain(axes).map(|(a, b)| Some((self.poly(a)?, self.poly(b)?))).collect()
    }

    /// A quotient and a remainder of one number by one divisor, on two axes, are that number: `t[(r / h, r % h)]` names
    /// different elements for different `r`.
    pub(super) fn split_pairs(&self, w: &Access, x: &Access) -> Vec<(Poly, Poly)> {
        if w.index != x.index || self.axes(w, x).is_none() {
            return vec![];
        }
        let mut out = vec![];
        let (mut quotients, mut remainders) = (vec![], vec![]);
        let looked_up = self.k.view(w.view).gather.is_some() as usize;
        for &i in w.index.iter().skip(looked_up) {
            self.split_terms(i, &mut quotients, &mut remainders);
        }
        for &(a, h) in &quotients {
            let uniform = self.poly(h).is_some_and(|h| self.uniform(&h));
            if uniform && remainders.contains(&(a, h)) {
                out.extend(self.poly(a).map(|a| (a.clone(), a)));
            }
        }
        out
    }

    /// Quotients and remainders that an index is, but for a part that is the same for all iterations.
    pub(super) fn split_terms(&self, i: IxId, quotients: &mut Vec<(IxId, IxId)>, remainders: &mut Vec<(IxId, IxId)>) {
        match self.k.ix_expr(i) {
            IxExpr::Div(a, h) => quotients.push((a, h)),
            IxExpr::Mod(a, h) => remainders.push((a, h)),
            IxExpr::Add(a, b) | IxExpr::Sub(a, b) => {
                let same = |e| self.poly(e).is_some_and(|p| self.uniform(&p));
                match (same(a), same(b)) {
                    (true, false) => self.split_terms(b, quotients, remainders),
                    (false, true) => self.split_terms(a, quotients, remainders),
                    (true, true) | (false, false) => {}
                }
            }
            IxExpr::Const(_)
            | IxExpr::Sym(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Mul(..)
            | IxExpr::Min(..)
            | IxExpr::Max(..) => {}
        }
    }

    /// The part of a view's offset that its picked axes do not explain; `None` if it differs between iterations.
    pub(super) fn origin(&self, v: &View) -> Option<Poly> {
        let strides: Vec<Poly> = match v.base {
            Base::Param(p) => match &self.k.param(p).kind {
                ParamKind::Tensor { strides, .. } => strides.iter().filter_map(|&s| self.poly(s)).collect(),
                ParamKind::Scalar { .. } | ParamKind::Absent => vec![],
            },
            Base::Buffer(b) => crate::ir::build::row_major(&self.k.buffer(b).extents)
                .into_iter()
                .map(|s| Poly::constant(s as i128))
                .collect(),
        };
        let offset = self.poly(v.offset)?;
        let mut tries = vec![offset];
        for (i, _) in &v.guards {
            let i = self.poly(*i)?;
            let more: Vec<Poly> = tries
                .iter()
                .flat_map(|t| strides.iter().filter_map(|s| t.sub(&i.mul(s)?)).collect::<Vec<_>>())
                .collect();
            tries.extend(more);
            tries.truncate(64);
        }
        tries.into_iter().rev().find(|t| self.uniform(t))
    }

    /// Different indices inside the view are different elements.
    pub(super) fn no_overlap(&self, v: &View) -> bool {
        if let Base::Param(p) = v.base
            && let ParamKind::Tensor { strides, extents, .. } = &self.k.param(p).kind
        {
            // Axes of the tensor itself; launches refuse outputs whose own axes overlap.
            let mut pool: Vec<(IxId, IxId)> = strides.iter().copied().zip(extents.iter().copied()).collect();
            let own = v.strides.iter().zip(&v.extents).all(|(s, e)| {
                match pool.iter().position(|x| x.0 == *s && (x.1 == *e || self.r.prove_le(*e, x.1))) {
                    Some(n) => {
                        pool.remove(n);
                        true
                    }
                    None => false,
                }
            });
            if own {
                return true;
            }
        }
        // Otherwise the strides must nest: each axis steps over all that the smaller ones reach.
        let terms: Option<Vec<(Poly, Option<Poly>)>> = v
            .strides
            .iter()
            .zip(&v.extents)
            .filter(|(_, e)| self.k.ix_const(**e) != Some(1))
            .map(|(&s, &e)| {
                let (s, e) = (self.poly(s)?, self.poly(e)?);
                Some((s, e.sub(&Poly::constant(1))))
            })
            .collect();
        terms.is_some_and(|mut t| {
            t.sort_by_key(|t| t.0.as_constant().unwrap_or(i128::MAX));
            if t.len() > 4 && t.iter().any(|t| t.0.as_constant().is_none()) {
                return false;
            }
            self.stack(&t, &Poly::default())
        })
    }
}
