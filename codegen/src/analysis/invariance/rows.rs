//! Which row an element belongs to: the arithmetic under the taint analysis.
//!
//! A *row* is a slice along the dimension asked about. Elements of a tensor with such an axis belong to the row that
//! their offset names; elements of a tile belong to the row whose data was put there, which a [`TileRows`] remembers.
//! Nothing here knows ops. What does not fit these forms is `None`, never a guess.

use crate::analysis::Ranges;
use crate::analysis::poly::{Atom, Poly};
use crate::ir::{Base, IxExpr, IxId, IxVarId, IxVarKind, Kernel, ParamKind, SymId, View};
use std::collections::{HashMap, HashSet};

/// Atoms from here on are made by this analysis: coordinates of tiles, and quotients.
const FRESH: Atom = 1 << 30;

/// Which rows a tile holds: element at linear offset `o` belongs to row `base + (o / unit) % count`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TileRows {
    pub base: Poly,
    pub unit: i128,
    pub count: i128,
}

/// The row of an access to a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TensorRow {
    /// The tensor has no axis of the dimension.
    None,
    /// One row.
    At(Poly),
    /// Not followed.
    Unclear,
}

pub(super) struct Rows<'a> {
    pub k: &'a Kernel,
    pub ranges: &'a Ranges,
    pub sym: SymId,
    /// The extent as a polynomial.
    extent: Option<Poly>,
    /// Extents of coordinates, in order of their atoms.
    extents: Vec<Option<i128>>,
    coordinates: HashMap<(u32, u8), Atom>,
    quotients: HashMap<(Poly, Poly), Atom>,
    divided: HashMap<Atom, Poly>,
    /// Atoms that tell rows apart.
    pub positions: HashSet<Atom>,
}

impl<'a> Rows<'a> {
    pub fn new(k: &'a Kernel, ranges: &'a Ranges, sym: SymId) -> Self {
        let id = (0..k.index.len() as u32).map(IxId).find(|&i| k.ix_expr(i) == IxExpr::Sym(sym));
        let extent = id.and_then(|i| ranges.poly(i).cloned());
        Rows {
            k,
            ranges,
            sym,
            extent,
            extents: vec![],
            coordinates: HashMap::new(),
            quotients: HashMap::new(),
            divided: HashMap::new(),
            positions: HashSet::new(),
        }
    }

    /// An index as a polynomial; what has one value only (the index of an axis of extent 1) is that number, so that
    /// equal rows look equal.
    pub fn poly(&self, i: IxId) -> Option<Poly> {
        let mut p = self.ranges.poly(i)?.clone();
        for a in p.atoms() {
            if let (Some(lo), Some(hi)) = self.ranges.bounds_of(a).0
                && lo == hi
            {
                p = p.replace(a, &Poly::constant(lo))?;
            }
        }
        Some(p)
    }

    pub fn is_extent(&self, i: IxId) -> bool {
        self.extent.is_some() && self.poly(i) == self.extent
    }

    /// True if an index expression names the dimension.
    pub fn names_dimension(&self, i: IxId) -> bool {
        match self.k.ix_expr(i) {
            IxExpr::Sym(s) => s == self.sym,
            IxExpr::Const(_) | IxExpr::Data(_) | IxExpr::Var(_) => false,
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.names_dimension(a) || self.names_dimension(b),
        }
    }

    fn fresh(&mut self, extent: Option<i128>) -> Atom {
        self.extents.push(extent);
        FRESH + (self.extents.len() - 1) as Atom
    }

    /// Coordinate `axis` of the tiles an op works on; the same atom each time it is asked for.
    pub fn coordinate(&mut self, op: u32, axis: u8, extent: Option<usize>) -> Atom {
        if let Some(&a) = self.coordinates.get(&(op, axis)) {
            return a;
        }
        let a = self.fresh(extent.map(|e| e as i128));
        self.coordinates.insert((op, axis), a);
        a
    }

    fn atom_interval(&self, a: Atom) -> (Option<i128>, Option<i128>) {
        match a.checked_sub(FRESH) {
            Some(n) => (Some(0), self.extents[n as usize].map(|e| e - 1)),
            None => self.ranges.bounds_of(a).0,
        }
    }

    /// True if the polynomial lies in `0..end`; products of atoms are not followed.
    fn inside(&self, p: &Poly, end: i128) -> bool {
        let mut range = Some((0i128, 0i128));
        for (m, c) in p.terms() {
            let term = match m.as_slice() {
                [] => Some((c, c)),
                [a] => match self.atom_interval(*a) {
                    (Some(lo), Some(hi)) if c >= 0 => lo.checked_mul(c).zip(hi.checked_mul(c)),
                    (Some(lo), Some(hi)) => hi.checked_mul(c).zip(lo.checked_mul(c)),
                    _ => None,
                },
                _ => None,
            };
            range = range.zip(term).and_then(|((a, b), (x, y))| a.checked_add(x).zip(b.checked_add(y)));
        }
        range.is_some_and(|(lo, hi)| lo >= 0 && hi < end)
    }

    /// `x / c`, and what of `x` has no part in it.
    fn quotient(&mut self, x: &Poly, c: &Poly) -> Option<(Poly, Poly)> {
        let (q, r) = x.partial_div(c);
        if r == Poly::default() || c.as_constant().is_some_and(|end| self.inside(&r, end)) {
            return Some((q, r));
        }
        let end = c.as_constant().and_then(|c| match r.atoms().as_slice() {
            [a] if r == Poly::atom(*a) => self.atom_interval(*a).1.map(|hi| hi / c + 1),
            _ => None,
        });
        let key = (r.clone(), c.clone());
        let atom = match self.quotients.get(&key) {
            Some(&a) => a,
            None => {
                let a = self.fresh(end);
                self.quotients.insert(key, a);
                self.divided.insert(a, r);
                a
            }
        };
        Some((q.add(&Poly::atom(atom))?, Poly::default()))
    }

    /// The row of an element of a tensor, and for each axis of the view whether it is what names the row.
    pub fn tensor(&mut self, v: &View, index: &[Option<Poly>]) -> (TensorRow, Vec<bool>) {
        let own = vec![false; index.len()];
        let Base::Param(p) = v.base else { return (TensorRow::Unclear, own) };
        let ParamKind::Tensor { dtype, extents, strides, .. } = &self.k.param(p).kind else {
            return (TensorRow::Unclear, own);
        };
        let axes: Vec<usize> = (0..extents.len()).filter(|&a| self.is_extent(extents[a])).collect();
        if axes.is_empty() {
            // An extent that is made from the dimension may hold its rows in another form.
            let unclear = extents.iter().any(|&e| self.names_dimension(e));
            return (if unclear { TensorRow::Unclear } else { TensorRow::None }, own);
        }
        if axes.len() > 1 || *dtype != v.dtype || v.gather.is_some() {
            return (TensorRow::Unclear, own);
        }
        // Steps along the tensor's other axes stay within a row, whatever their strides are.
        let others: Vec<IxId> = (0..strides.len()).filter(|&a| a != axes[0]).map(|a| strides[a]).collect();
        let found = self.tensor_row(v, strides[axes[0]], &others, index);
        found.map_or((TensorRow::Unclear, own), |(row, own)| (TensorRow::At(row), own))
    }

    fn tensor_row(
        &mut self,
        v: &View,
        stride: IxId,
        others: &[IxId],
        index: &[Option<Poly>],
    ) -> Option<(Poly, Vec<bool>)> {
        let (step, extent) = (self.poly(stride)?, self.extent.clone()?);
        // Whole multiples of the extent belong to axes outside of it.
        let inner = |q: Poly| q.partial_div(&extent).1;
        let mut row = inner(self.poly(v.offset)?.partial_div(&step).0);
        let mut own = vec![];
        for (k, x) in index.iter().enumerate() {
            own.push(false);
            if self.k.ix_const(v.extents[k]) == Some(1) {
                continue;
            }
            let along = v.strides[k] != stride && others.contains(&v.strides[k]);
            if along && !self.names_dimension(v.extents[k]) {
                continue;
            }
            let s = self.poly(v.strides[k])?;
            if s == Poly::default() {
                continue;
            }
            if let Some(c) = s.exact_div(&step) {
                if inner(c.clone()) != Poly::default() {
                    row = row.add(&c.mul(x.as_ref()?)?)?;
                    own[k] = true;
                }
            } else if let Some(c) = step.exact_div(&s)
                && self.names_dimension(v.extents[k])
            {
                row = row.add(&self.quotient(x.as_ref()?, &c)?.0)?;
                own[k] = true;
            }
        }
        Some((row, own))
    }

    /// The row of an element of a tile, and for each axis whether it takes part in naming it.
    pub fn tile(&mut self, v: &View, rows: &TileRows, index: &[Option<Poly>]) -> Option<(Poly, Vec<bool>)> {
        let mut own = vec![false; index.len()];
        if rows.count == 1 {
            return Some((rows.base.clone(), own));
        }
        let mut row = rows.base.clone();
        let offset = self.poly(v.offset)?;
        let (q, r) = offset.partial_div(&Poly::constant(rows.unit));
        if !self.inside(&r, rows.unit) || !self.inside(&q, rows.count) {
            return None;
        }
        row = row.add(&q)?;
        for (k, x) in index.iter().enumerate() {
            let (s, e) = (self.k.ix_const(v.strides[k])? as i128, self.k.ix_const(v.extents[k])? as i128);
            if e == 1 || s == 0 || s % (rows.unit * rows.count) == 0 {
                continue;
            }
            if s % rows.unit == 0 {
                let c = s / rows.unit;
                if (e - 1) * c >= rows.count {
                    return None;
                }
                row = row.add(&x.as_ref()?.scale(c)?)?;
                own[k] = true;
            } else if rows.unit % s == 0 {
                if e * s <= rows.unit {
                    continue;
                }
                if e * s > rows.unit * rows.count {
                    return None;
                }
                row = row.add(&self.quotient(x.as_ref()?, &Poly::constant(rows.unit / s))?.0)?;
                own[k] = true;
            } else {
                return None;
            }
        }
        Some((row, own))
    }

    /// True for an atom that differs between the elements of one op.
    fn is_element(&self, a: Atom) -> bool {
        a >= FRESH || self.variable(a).is_some_and(|v| self.k.ix_var(v).kind == IxVarKind::Element)
    }

    fn variable(&self, a: Atom) -> Option<IxVarId> {
        let mut leaves = vec![];
        self.ranges.leaves(&Poly::atom(a), &mut leaves);
        match leaves.as_slice() {
            [(_, crate::analysis::ranges::Leaf::Var(v))] => Some(*v),
            _ => None,
        }
    }

    /// What a tile holds whose element at `index` of `v` gets data of row `p`.
    pub fn put(&self, v: &View, index: &[Option<Poly>], p: &Poly) -> Option<TileRows> {
        let elements: Vec<Atom> = p.atoms().into_iter().filter(|&a| self.is_element(a)).collect();
        let whole = TileRows { base: p.clone(), unit: 1, count: 1 };
        let &[e] = elements.as_slice() else { return elements.is_empty().then_some(whole) };
        let (factor, base) = p.split(e)?;
        if factor.as_constant() != Some(1) {
            return None;
        }
        let mut offset = self.poly(v.offset)?;
        for (k, x) in index.iter().enumerate() {
            offset = offset.add(&x.as_ref()?.scale(self.k.ix_const(v.strides[k])? as i128)?)?;
        }
        // The atom itself stands in the offset, or what it is a quotient of.
        let (atom, by) = match self.divided.get(&e) {
            None => (e, 1),
            Some(r) => {
                let &[a] = r.atoms().as_slice() else { return None };
                (a, self.quotient_of(e, a)?)
            }
        };
        let extent = self.atom_interval(atom).1? + 1;
        let (s, rest) = offset.split(atom)?;
        let s = s.as_constant().filter(|&s| s > 0)?;
        let (unit, count) = (s * by, (extent + by - 1) / by);
        let below = rest.partial_div(&Poly::constant(unit * count)).1;
        let room = if by == 1 { unit } else { s };
        self.inside(&below, room).then_some(TileRows { base, unit, count })
    }

    /// Notes that the variables of `p` tell rows apart.
    pub fn positions_of(&mut self, p: &Poly) {
        for a in p.atoms() {
            if let Some(r) = self.divided.get(&a).cloned() {
                self.positions_of(&r);
            } else if a >= FRESH {
                self.positions.insert(a);
            } else {
                let mut leaves = vec![];
                self.ranges.leaves(&Poly::atom(a), &mut leaves);
                for (a, leaf) in leaves {
                    if let crate::analysis::ranges::Leaf::Var(v) = leaf
                        && self.k.ix_var(v).kind != IxVarKind::Data
                    {
                        self.positions.insert(a);
                    }
                }
            }
        }
    }

    /// True if the polynomial changes with `a`, also inside quotients.
    pub fn depends(&self, p: &Poly, a: Atom) -> bool {
        p.atoms().into_iter().any(|x| {
            x == a
                || self.divided.get(&x).is_some_and(|r| self.depends(r, a))
                || x < FRESH && a < FRESH && {
                    let mut leaves = vec![];
                    self.ranges.leaves(&Poly::atom(x), &mut leaves);
                    leaves.iter().any(|l| l.0 == a)
                }
        })
    }

    /// The divisor, if `q` is the quotient of `a` itself.
    pub fn quotient_of(&self, q: Atom, a: Atom) -> Option<i128> {
        let (_, c) = self.quotients.iter().find(|x| *x.1 == q)?.0;
        if self.divided.get(&q)? == &Poly::atom(a) { c.as_constant() } else { None }
    }

    /// True if two rows certainly differ for some elements: their difference is a number, or changes with indices that
    /// run independently.
    pub fn differ(&self, p: &Poly, q: &Poly) -> bool {
        let Some(d) = p.sub(q) else { return false };
        d != Poly::default()
            && d.atoms().into_iter().all(|a| {
                a >= FRESH && !self.divided.contains_key(&a)
                    || self.variable(a).is_some_and(|v| self.k.ix_var(v).kind != IxVarKind::Data)
            })
    }
}
