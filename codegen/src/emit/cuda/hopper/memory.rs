//! Where elements of shared tiles lie: panels, swizzle, and addresses of the shared window.

use super::super::Emitter;
use super::super::access::Place;
use super::super::expr::Text;
use crate::ir::{Base, BufferId, IxExpr, IxId, MemoryLayout, ViewId};
use crate::pass::access::{Stride, strides};

/// A sum of texts with constant factors.
#[derive(Clone, Debug, Default)]
pub struct Linear {
    /// Constant part.
    pub number: i64,
    terms: Vec<(i64, Text)>,
}

impl Linear {
    pub fn constant(number: i64) -> Linear {
        Linear { number, terms: vec![] }
    }
    pub fn of(text: Text) -> Linear {
        let mut l = Linear::default();
        l.add(1, text);
        l
    }
    pub fn add(&mut self, factor: i64, text: Text) {
        if factor == 0 || text.is_zero() {
            return;
        }
        match text.s.parse::<i64>() {
            Ok(n) => self.number += n * factor,
            Err(_) => match self.terms.iter_mut().find(|t| t.1 == text) {
                Some(t) => t.0 += factor,
                None => self.terms.push((factor, text)),
            },
        }
    }
    pub fn plus(mut self, other: &Linear) -> Linear {
        self.number += other.number;
        for (f, t) in &other.terms {
            self.add(*f, t.clone());
        }
        self
    }
    pub fn times(mut self, factor: i64) -> Linear {
        self.number *= factor;
        self.terms.iter_mut().for_each(|t| t.0 *= factor);
        self
    }
    /// The sum divided by `by`, if every part is a multiple.
    pub fn over(mut self, by: i64) -> Option<Linear> {
        let whole = self.number % by == 0 && self.terms.iter().all(|t| t.0 % by == 0);
        self.number /= by;
        self.terms.iter_mut().for_each(|t| t.0 /= by);
        whole.then_some(self)
    }
    /// Greatest power of two that divides every part, as far as factors tell.
    pub fn alignment(&self) -> i64 {
        self.terms.iter().fold(self.number, |g, t| crate::pass::access::gcd(g, t.0))
    }
    pub fn is_constant(&self) -> bool {
        self.terms.is_empty()
    }
    /// Variable part.
    pub fn moving(&self) -> Linear {
        Linear { number: 0, terms: self.terms.clone() }
    }
    pub fn text(&self) -> Text {
        let sum = self.terms.iter().fold(Text::number(0), |s, (f, t)| {
            let term = Text::mul(t, &Text::number(f.abs()));
            if *f < 0 { Text::sub(&s, &term) } else { Text::add(&s, &term) }
        });
        Text::add(&sum, &Text::number(self.number))
    }
}

/// An element of a panelled tile: elements before its tile of the last two axes, its row, its column.
pub struct Spot {
    pub tile: Linear,
    pub row: Linear,
    pub column: Linear,
}

/// Shape of the panels of a tile.
#[derive(Clone, Copy)]
pub struct Panels {
    /// Rows of a panel.
    pub rows: i64,
    /// Columns of a row of all panels.
    pub columns: i64,
    /// Columns of a panel.
    pub width: i64,
}

impl Emitter<'_> {
    /// Layout of a shared tile.
    pub fn layout(&self, view: ViewId) -> Option<(BufferId, &MemoryLayout)> {
        match self.k.view(view).base {
            Base::Buffer(b) => self.k.buffer(b).memory.as_ref().map(|m| (b, m)),
            Base::Param(_) => None,
        }
    }

    /// Panels of a tile of at least two axes; a tile without panels is one.
    pub fn panels(&self, buffer: BufferId) -> Option<Panels> {
        let b = self.k.buffer(buffer);
        let m = b.memory.as_ref()?;
        let [.., rows, columns] = b.extents[..] else { return None };
        let width = m.panel.unwrap_or(columns);
        Some(Panels { rows: rows as i64, columns: columns as i64, width: width as i64 })
    }

    /// The factor an index has in front of what cannot be split, and the rest.
    fn factor(&mut self, id: IxId) -> (i64, Text) {
        if let IxExpr::Mul(a, b) = self.k.ix_expr(id) {
            if let Some(c) = self.k.ix_const(b) {
                return (c, self.ix(a));
            }
            if let Some(c) = self.k.ix_const(a) {
                return (c, self.ix(b));
            }
        }
        match self.k.ix_const(id) {
            Some(c) => (c, Text::number(1)),
            None => (1, self.ix(id)),
        }
    }

    /// Splits the place of an element of a tile with panels; `None` if a part cannot be told to be rows or columns.
    pub fn spot(&mut self, view: ViewId, index: &[IxId]) -> Option<Spot> {
        let (buffer, _) = self.layout(view)?;
        let p = self.panels(buffer)?;
        let v = self.k.view(view);
        let mut spot = Spot { tile: Linear::default(), row: Linear::default(), column: Linear::default() };
        let mut parts = vec![];
        self.terms(v.offset, false, None, &mut parts);
        for (&i, &s) in index.iter().zip(&strides(self.k, view)) {
            self.terms(i, false, Some(s), &mut parts);
        }
        for (negative, id, stride) in parts {
            let stride = match stride {
                None => 1,
                Some(Stride::Const(c)) => c,
                Some(Stride::Index(s)) => self.k.ix_const(s)?,
            };
            let (factor, text) = self.factor(id);
            let factor = if negative { -factor * stride } else { factor * stride };
            if text.s == "1" {
                let c = factor;
                let tile = p.rows * p.columns;
                spot.tile.number += c.div_euclid(tile) * tile;
                spot.row.number += c.rem_euclid(tile) / p.columns;
                spot.column.number += c.rem_euclid(p.columns);
            } else if factor % (p.rows * p.columns) == 0 {
                spot.tile.add(factor, text);
            } else if factor % p.columns == 0 {
                spot.row.add(factor / p.columns, text);
            } else if stride < p.columns {
                spot.column.add(factor, text);
            } else {
                return None;
            }
        }
        Some(spot)
    }

    /// Number of an element from the start of its tile's memory, before the swizzle.
    fn element_of(&mut self, view: ViewId, index: &[IxId]) -> Option<Linear> {
        let (buffer, m) = self.layout(view)?;
        if m.panel.is_none() {
            let mut sum = Linear::default();
            let mut parts = vec![];
            self.terms(self.k.view(view).offset, false, None, &mut parts);
            for (&i, &s) in index.iter().zip(&strides(self.k, view)) {
                self.terms(i, false, Some(s), &mut parts);
            }
            for (negative, id, stride) in parts {
                let sign = if negative { -1 } else { 1 };
                let (factor, text) = self.factor(id);
                match stride {
                    None => sum.add(sign * factor, text),
                    Some(Stride::Const(c)) => sum.add(sign * factor * c, text),
                    Some(Stride::Index(s)) => match self.k.ix_const(s) {
                        Some(c) => sum.add(sign * factor * c, text),
                        None => {
                            let step = self.ix(s);
                            sum.add(sign * factor, Text::mul(&text, &step));
                        }
                    },
                }
            }
            return Some(sum);
        }
        let p = self.panels(buffer)?;
        let s = self.spot(view, index)?;
        let sum = s.tile.plus(&s.row.times(p.width));
        if s.column.is_constant() {
            let c = s.column.number;
            return Some(sum.plus(&Linear::constant(c / p.width * p.rows * p.width + c % p.width)));
        }
        let text = s.column.text();
        let column = match text.s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            true => text.s,
            false => {
                let column = self.names.declare("column");
                let ty = self.index_type();
                self.line(format!("const {ty} {column} = {};", text.s));
                column
            }
        };
        let mut sum = sum;
        sum.add(p.rows * p.width, Text::over(&Text::name(column.clone()), p.width as usize));
        sum.add(1, Text::name(format!("({column} % {})", p.width)));
        Some(sum)
    }

    /// Bytes from the start of shared memory to an element that starts a row of 128 swizzled bytes, a box of a copy or
    /// an operand.
    pub fn shared_bytes_to(&mut self, view: ViewId, index: &[IxId]) -> Option<Linear> {
        let (_, m) = self.layout(view)?;
        let (offset, size) = (m.offset_bytes as i64, (self.k.view(view).dtype.bits() / 8) as i64);
        Some(self.element_of(view, index)?.times(size).plus(&Linear::constant(offset)))
    }

    /// Address in the shared window.
    pub fn shared_address(&mut self, bytes: &Linear) -> Text {
        self.frame.used_base = true;
        let base = self.frame.base.clone();
        Text::add(&Text::name(base), &bytes.text())
    }

    /// The element of an access to a tile with panels or a swizzle.
    pub fn swizzled_place(&mut self, view: ViewId, index: &[IxId], name: &str) -> Option<Place> {
        let (_, m) = self.layout(view)?;
        if m.panel.is_none() && m.swizzle.is_none() {
            return None;
        }
        let swizzle = m.swizzle;
        let sum = self.element_of(view, index)?;
        let Some((bits, base, shift)) = swizzle else {
            return Some(Place { base: name.to_string(), index: sum.text() });
        };
        let size = (self.k.view(view).dtype.bits() / 8).trailing_zeros();
        let at = self.names.declare("at");
        let ty = self.index_type();
        self.line(format!("const {ty} {at} = {};", sum.text().s));
        let (from, to, mask) = (base + shift - size, base - size, (1u32 << bits) - 1);
        Some(Place { base: name.to_string(), index: Text::name(format!("({at} ^ ({at} >> {from} & {mask}) << {to})")) })
    }
}
