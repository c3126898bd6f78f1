//! Indices of element loops as sums: what does not change from element to element, and a coefficient for each loop variable.
//!
//! `ranges` brings an index into a sum of atoms; here the atoms are sorted by who changes them. Addresses are such sums too,
//! weighted with strides, which may be launch-time numbers.

use crate::analysis::Ranges;
use crate::ir::{IxExpr, IxId, IxVarId, Kernel, Op, ValueId, View, effects};
use std::collections::{HashMap, HashSet};

/// `c`, or `c` times a number that is the same for all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coef {
    /// Constant factor.
    pub c: i64,
    /// The other factor.
    pub by: Option<IxId>,
}

impl Coef {
    /// A constant.
    pub fn new(c: i64) -> Coef {
        Coef { c, by: None }
    }
    /// The constant, if it is one.
    pub fn constant(self) -> Option<i64> {
        if self.by.is_none() || self.c == 0 { Some(self.c) } else { None }
    }
    fn times(self, other: Coef) -> Option<Coef> {
        let by = match (self.by, other.by) {
            (Some(_), Some(_)) => return None,
            (a, b) => a.or(b),
        };
        Some(Coef { c: self.c.checked_mul(other.c)?, by })
    }
}

/// An index or an address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Form {
    /// Parts that are the same for all elements; `None` stands for 1.
    pub uniform: Vec<(Option<IxId>, Coef)>,
    /// Loop variables.
    pub elem: Vec<(IxVarId, Coef)>,
    /// Anything else that changes from element to element.
    pub opaque: Vec<(IxId, Coef)>,
}

impl Form {
    /// Adds `other * by`.
    pub fn add(&mut self, other: &Form, by: Coef) -> Option<()> {
        for &(x, c) in &other.uniform {
            let c = c.times(by)?;
            match self.uniform.iter_mut().find(|(y, d)| *y == x && d.by == c.by) {
                Some((_, d)) => d.c += c.c,
                None => self.uniform.push((x, c)),
            }
        }
        for &(x, c) in &other.elem {
            let c = c.times(by)?;
            match self.elem.iter_mut().find(|(y, d)| *y == x && d.by == c.by) {
                Some((_, d)) => d.c += c.c,
                None => self.elem.push((x, c)),
            }
        }
        for &(x, c) in &other.opaque {
            self.opaque.push((x, c.times(by)?));
        }
        self.uniform.retain(|(_, c)| c.c != 0);
        self.elem.retain(|(_, c)| c.c != 0);
        Some(())
    }
    /// Coefficient of a variable: 0 if it does not occur, `None` if it occurs with more than one factor.
    pub fn coef(&self, v: IxVarId) -> Option<Coef> {
        let mut found = self.elem.iter().filter(|(x, _)| *x == v);
        match (found.next(), found.next()) {
            (None, _) => Some(Coef::new(0)),
            (Some((_, c)), None) => Some(*c),
            (Some(_), Some(_)) => None,
        }
    }
}

/// A loop inside an element loop.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// First value.
    pub lo: IxId,
    /// Most steps it takes.
    pub steps: usize,
    /// It always takes as many.
    pub exact: bool,
}

impl Inner {
    fn of(k: &Kernel, ranges: &Ranges, lo: IxId, hi: IxId) -> Option<Inner> {
        let apart = |from: IxId| {
            let (a, b) = (ranges.affine(from), ranges.affine(hi));
            (a.terms == b.terms).then(|| (b.constant - a.constant).max(0) as usize)
        };
        if let Some(steps) = apart(lo) {
            return Some(Inner { lo, steps, exact: true });
        }
        let IxExpr::Max(a, b) = k.ix_expr(lo) else { return None };
        let steps = apart(a).or_else(|| apart(b))?;
        Some(Inner { lo, steps, exact: false })
    }
}

/// What an element body defines: everything that may differ between elements.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Index variables.
    pub vars: HashSet<IxVarId>,
    /// Values.
    pub values: HashSet<ValueId>,
    /// The loop's own variables with their extents: sums are made of them, all others differ in their own way.
    pub own: HashMap<IxVarId, usize>,
    /// Loops inside whose number of steps has a bound.
    pub inner: HashMap<IxVarId, Inner>,
}

impl Local {
    /// Loops without a body.
    pub fn loops(vars: &[(IxVarId, usize)]) -> Local {
        Local { vars: vars.iter().map(|v| v.0).collect(), own: vars.iter().copied().collect(), ..Local::default() }
    }
    /// The same with the extents that one core has.
    pub fn within(mut self, vars: &[(IxVarId, usize)]) -> Local {
        self.own.extend(vars.iter().copied());
        self
    }
    /// The same without loops that the scalar unit walks, and without what it computes for them.
    pub fn without(&self, vars: &[IxVarId], values: &HashSet<ValueId>) -> Local {
        let mut l = self.clone();
        l.vars.retain(|v| !vars.contains(v));
        l.own.retain(|v, _| !vars.contains(v));
        l.values.retain(|v| !values.contains(v));
        l
    }
    /// What op `id` and the ops in its bodies define.
    pub fn of(k: &Kernel, ranges: &Ranges, id: crate::ir::OpId) -> Local {
        let mut l = Local::default();
        let u = effects::uses(&k.op(id).op);
        let extents: Vec<usize> = if let Op::Parallel { extents, .. } | Op::ReduceRegion { extents, .. } = &k.op(id).op
        {
            extents.clone()
        } else if let Op::FindFirst { extent, .. } = &k.op(id).op {
            vec![*extent]
        } else {
            vec![]
        };
        l.own.extend(u.body_ix.iter().copied().zip(extents.into_iter().chain(std::iter::repeat(usize::MAX))));
        l.vars.extend(u.body_ix);
        for b in u.blocks {
            effects::walk(k, b, &mut |_, op: &Op| {
                if let Op::For { var, lo, hi, .. } = op
                    && let Some(inner) = Inner::of(k, ranges, *lo, *hi)
                {
                    l.inner.insert(*var, inner);
                }
                let u = effects::uses(op);
                l.vars.extend(u.body_ix.iter().chain(&u.defines_ix));
                l.values.extend(u.defines);
            });
        }
        l
    }
}

/// Makes forms.
pub struct Forms<'a> {
    /// The kernel.
    pub k: &'a Kernel,
    /// Its indices.
    pub ranges: &'a Ranges,
    /// What differs between elements.
    pub local: &'a Local,
    /// A variable that counts the elements of one vector core: its own number starts after those of the first core.
    pub split: Option<(IxVarId, i64, IxId)>,
}

impl Forms<'_> {
    /// True if an index differs between elements.
    pub fn lanewise(&self, id: IxId) -> bool {
        match self.k.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) => false,
            IxExpr::Var(v) => self.local.vars.contains(&v),
            IxExpr::Data(v) => self.local.values.contains(&v),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.lanewise(a) || self.lanewise(b),
        }
    }

    /// The form of an index.
    pub fn index(&self, id: IxId) -> Option<Form> {
        let mut f = Form::default();
        if !self.lanewise(id) {
            match self.k.ix_expr(id) {
                IxExpr::Const(0) => {}
                IxExpr::Const(c) => f.uniform.push((None, Coef::new(c))),
                IxExpr::Sym(_)
                | IxExpr::Var(_)
                | IxExpr::Data(_)
                | IxExpr::Add(..)
                | IxExpr::Sub(..)
                | IxExpr::Mul(..)
                | IxExpr::Div(..)
                | IxExpr::Mod(..)
                | IxExpr::Min(..)
                | IxExpr::Max(..) => f.uniform.push((Some(id), Coef::new(1))),
            }
            return Some(f);
        }
        let a = self.ranges.affine(id);
        if a.constant != 0 {
            f.uniform.push((None, Coef::new(a.constant)));
        }
        for (&atom, &c) in &a.terms {
            let c = Coef::new(c);
            if !self.lanewise(atom) {
                f.uniform.push((Some(atom), c));
                continue;
            }
            let e = self.k.ix_expr(atom);
            if let IxExpr::Var(v) = e
                && self.local.own.contains_key(&v)
            {
                f.elem.push((v, c));
                if let Some((_, half, sub)) = self.split.filter(|s| s.0 == v) {
                    f.uniform.push((Some(sub), Coef::new(c.c * half)));
                }
            } else if let IxExpr::Mul(x, y) = e
                && self.lanewise(x) != self.lanewise(y)
            {
                let (by, inner) = if self.lanewise(x) { (y, x) } else { (x, y) };
                f.add(&self.index(inner)?, Coef { c: c.c, by: Some(by) })?;
            } else {
                f.opaque.push((atom, c));
            }
        }
        Some(f)
    }

    /// The address of an element of a view, in elements of its dtype; tables of gathered views are not looked at.
    pub fn address(&self, view: &View, index: &[IxId]) -> Option<Form> {
        let mut f = Form::default();
        f.add(&self.index(view.offset)?, Coef::new(1))?;
        for (&i, &s) in index.iter().zip(&view.strides) {
            let by = match self.k.ix_const(s) {
                Some(c) => Coef::new(c),
                None => Coef { c: 1, by: Some(s) },
            };
            f.add(&self.index(i)?, by)?;
        }
        Some(f)
    }
}
