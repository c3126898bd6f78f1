//! Iterations gone through one by one, for the example that a message needs.

use super::*;

impl Phase<'_> {
    /// The part of a polynomial that differs between iterations, with all numbers, and the symbolic part that does not.
    pub(super) fn moving(&self, p: &Poly) -> Option<(Poly, Poly)> {
        let (mut moving, mut still) = (Poly::default(), Poly::default());
        for (m, c) in p.terms() {
            let mut term = Poly::constant(c);
            for &a in m {
                term = term.mul(&Poly::atom(a))?;
            }
            if !m.is_empty() && self.uniform(&term) { still = still.add(&term)? } else { moving = moving.add(&term)? }
        }
        let mut leaves = vec![];
        self.r.leaves(&moving, &mut leaves);
        leaves.iter().all(|l| self.mover(l.0).is_some()).then_some((moving, still))
    }

    pub(super) fn enumerate(&self, w: &Access, x: &Access) -> Answer {
        let (Some(pw), Some(px)) = (self.address(w), self.address(x)) else { return Answer::Unknown };
        let (Some((pw, sw)), Some((px, sx))) = (self.moving(&pw), self.moving(&px)) else { return Answer::Unknown };
        if sw != sx {
            return Answer::Unknown;
        }
        let mut complete = true;
        let mut ranges = vec![];
        for m in &self.movers {
            let Some((lo, hi)) = m.numbers else { return self.few(w, x, &pw, &px) };
            ranges.push((lo, hi));
        }
        if total(&ranges).is_none_or(|t| t > MAX_ITERATIONS) {
            complete = false;
            for r in &mut ranges {
                r.1 = r.1.min(r.0 + 8);
            }
        }
        match self.search(w, x, &pw, &px, &ranges) {
            // What could not be evaluated was taken to happen, so nothing was left out.
            Answer::Unknown if complete => Answer::Apart,
            other => other,
        }
    }

    /// Some ranges are unknown: a few iterations may still show a conflict.
    pub(super) fn few(&self, w: &Access, x: &Access, pw: &Poly, px: &Poly) -> Answer {
        let mut ranges = vec![];
        for m in &self.movers {
            let (numbers, ..) = self.r.bounds_of(m.atom);
            match numbers {
                (Some(lo), hi) => ranges.push((lo, hi.unwrap_or(lo + 8).min(lo + 8))),
                _ => return Answer::Unknown,
            }
        }
        match self.search(w, x, pw, px, &ranges) {
            // A range whose end is unknown may be shorter than the example needs.
            Answer::Meet(..) | Answer::Unknown => Answer::Unknown,
            Answer::Apart => Answer::Apart,
        }
    }

    pub(super) fn search(&self, w: &Access, x: &Access, pw: &Poly, px: &Poly, ranges: &[(i128, i128)]) -> Answer {
        let Some(count) = total(ranges).filter(|&t| t <= 1 << 16) else { return Answer::Unknown };
        let mut seen: HashMap<i128, Vec<i128>> = HashMap::new();
        let mut at: Vec<i128> = ranges.iter().map(|r| r.0).collect();
        let elements = self.movers.iter().filter(|m| self.elements.contains(&m.var)).count();
        let movers: Vec<(IxVarId, bool)> =
            self.movers.iter().map(|m| (m.var, self.elements.contains(&m.var))).collect();
        let key = |at: &[i128]| -> Vec<(IxVarId, i128)> {
            movers.iter().zip(at).filter(|(m, _)| m.1).map(|(m, &n)| (m.0, n)).collect()
        };
        if count <= 0 || elements == 0 {
            return Answer::Unknown;
        }
        for round in 0..2 {
            at.clear();
            at.extend(ranges.iter().map(|r| r.0));
            loop {
                let (a, p) = if round == 0 { (w, pw) } else { (x, px) };
                let leaf = |atom: Atom| self.movers.iter().position(|m| m.atom == atom).map(|n| at[n]);
                if self.runs(a, &leaf)
                    && let Some(place) = self.r.eval_poly(p, &leaf)
                {
                    match seen.get(&place) {
                        Some(other) if key(other) != key(&at) => {
                            return Answer::Meet(key(other), key(&at), self.element(a, &leaf), self.decided(w, x));
                        }
                        Some(_) => {}
                        None if round == 0 => drop(seen.insert(place, at.clone())),
                        None => {}
                    }
                }
                let mut n = at.len();
                loop {
                    if n == 0 {
                        break;
                    }
                    n -= 1;
                    at[n] += 1;
                    if at[n] <= ranges[n].1 {
                        break;
                    }
                    at[n] = ranges[n].0;
                    if n == 0 {
                        n = usize::MAX;
                        break;
                    }
                }
                if n == usize::MAX {
                    break;
                }
            }
            if w.op == x.op {
                break;
            }
        }
        Answer::Unknown
    }

    /// The access happens in this iteration, as far as numbers tell.
    pub(super) fn runs(&self, a: &Access, leaf: &dyn Fn(Atom) -> Option<i128>) -> bool {
        let value = |i: IxId| self.poly(i).and_then(|p| self.r.eval_poly(&p, leaf));
        for &(op, l, r, holds) in &a.conditions {
            if let (Some(l), Some(r)) = (value(l), value(r)) {
                let is = match op {
                    CmpOp::Lt => l < r,
                    CmpOp::Le => l <= r,
                    CmpOp::Gt => l > r,
                    CmpOp::Ge => l >= r,
                    CmpOp::Eq => l == r,
                    CmpOp::Ne => l != r,
                };
                if is != holds {
                    return false;
                }
            }
        }
        let v = self.k.view(a.view);
        let kept = |n: usize| self.guards.get(&a.op).and_then(|g| g.get(n)).copied().unwrap_or(true);
        let limits = a.index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied());
        limits.enumerate().filter(|(n, _)| kept(*n)).all(|(_, (i, e))| match (value(i), value(e)) {
            (Some(i), Some(e)) => i >= 0 && i < e,
            _ => true,
        })
    }

    /// All conditions compare numbers that are known in each iteration.
    pub(super) fn decided(&self, w: &Access, x: &Access) -> bool {
        w.conditions.iter().chain(&x.conditions).all(|&(_, l, r, _)| {
            [l, r].into_iter().all(|i| {
                let mut leaves = vec![];
                self.poly(i).is_some_and(|p| {
                    self.r.leaves(&p, &mut leaves);
                    leaves.iter().all(|l| self.mover(l.0).is_some())
                })
            })
        })
    }

    pub(super) fn element(&self, a: &Access, leaf: &dyn Fn(Atom) -> Option<i128>) -> Option<Vec<i128>> {
        a.index.iter().map(|&i| self.poly(i).and_then(|p| self.r.eval_poly(&p, leaf))).collect()
    }
}

fn total(ranges: &[(i128, i128)]) -> Option<i128> {
    ranges.iter().try_fold(1i128, |t, r| t.checked_mul((r.1 - r.0 + 1).max(0)))
}
