//! Facts about the symbols of a kernel, for `ranges`: read off its requires and its grid.

use super::build::Build;
use super::*;

impl Build<'_> {
    pub(super) fn refine(&mut self, left: IxId, relation: Relation, right: IxId) {
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

    pub(super) fn latest_sym(&self, id: IxId) -> Option<u32> {
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
    pub(super) fn divides(&mut self, a: IxId, m: IxId) {
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

    pub(super) fn at_least(&mut self, id: IxId, k: i64) {
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

    pub(super) fn at_most(&mut self, id: IxId, k: i64) {
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
    pub(super) fn plainly_positive(&self, id: IxId) -> bool {
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
}
