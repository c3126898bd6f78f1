//! Copies row by row, between tiles and tensors directly. Strips do the same through registers, and do it for the
//! sanitizer and for every order of iterations but the first.

use super::access::{Even, Run};
use super::*;

impl Worker<'_> {
    /// Runs a body that only copies; false if it has to go by strips.
    pub(super) fn copy_rows(&mut self, fr: &Lanes, body: &Body, extents: &[usize]) -> bool {
        let (Some(c), Some(node)) = (&body.copy, body.code.first()) else { return false };
        let forward = matches!(self.shared.order, crate::vm::BlockOrder::Forward);
        let apart = |a: &Access| a.lookup.as_ref().is_none_or(|l| l.table.place != c.to.place);
        let even = [&c.from, &c.to].iter().all(|a| Self::straight(extents.len(), a) && apart(a));
        if self.shadow.is_some() || self.agent.is_some() || !forward || c.from.place == c.to.place || !even {
            return false;
        }
        match class_of(c.to.dtype) {
            Class::F => self.rows::<f32>(fr, node, c, extents),
            Class::I => self.rows::<i32>(fr, node, c, extents),
            Class::L => self.rows::<i64>(fr, node, c, extents),
        }
        true
    }

    fn rows<T: Lane>(&mut self, fr: &Lanes, node: &Node, c: &CopyBody, extents: &[usize]) {
        let rank = extents.len();
        let inner = rank.wrapping_sub(1);
        let len = extents.last().copied().unwrap_or(1);
        let count: usize = extents[..rank.saturating_sub(1)].iter().product();
        if len == 0 {
            return;
        }
        let (from, to) = (self.even(fr, &c.from), self.even(fr, &c.to));
        if self.all_exist(&c.from, &from, extents) && self.all_exist(&c.to, &to, extents) {
            self.whole_rows::<T>(c, [from.base, to.base], extents, len);
            self.uneven(from);
            self.uneven(to);
            return;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut line: Vec<T> = vec![];
        let mut x = [0i64; MAX_RANK];
        for _ in 0..count {
            if let Some(d) = self.run(node, &c.to, &to, inner, &x, len) {
                let s = self.run(node, &c.from, &from, inner, &x, len);
                // The destination leaves its place for a moment; it is not the source.
                let mut tile = match c.to.place {
                    Place::Tile(t) => std::mem::replace(&mut self.tiles[t], Tile::None),
                    Place::Param(_) => Tile::None,
                };
                let at = d.at as usize;
                if let (1, Some(out)) = (d.stride, T::tile_mut(&mut tile)) {
                    self.read_row(c, &d, s, &mut out[at..at + d.hi - d.lo], &mut bytes);
                } else {
                    line.resize(d.hi - d.lo, T::default());
                    self.read_row(c, &d, s, &mut line, &mut bytes);
                    match c.to.place {
                        Place::Tile(_) => simd::write_tile(&mut tile, c.to.dtype, d.at, d.stride, &line),
                        Place::Param(p) => {
                            if let Some(g) = self.shared.globals[p] {
                                simd::write_global(&g, c.to.dtype, d.at, d.stride, &line, &mut bytes);
                            }
                        }
                    }
                }
                if let Place::Tile(t) = c.to.place {
                    self.tiles[t] = tile;
                }
            }
            if self.stopped {
                break;
            }
            for axis in (0..rank.saturating_sub(1)).rev() {
                x[axis] += 1;
                if (x[axis] as usize) < extents[axis] {
                    break;
                }
                x[axis] = 0;
            }
        }
        self.bytes = bytes;
        self.uneven(from);
        self.uneven(to);
    }

    /// Whether every element of an access exists for the whole box: then rows need no checks of their own, as inside of a
    /// matrix, where most tiles lie.
    fn all_exist(&self, a: &Access, e: &Even, extents: &[usize]) -> bool {
        if a.lookup.is_some() || extents.contains(&0) {
            return false;
        }
        let range = |base: i64, elem: &[i64]| {
            elem.iter().zip(extents).fold((base, base), |(lo, hi), (&k, &n)| {
                let reach = k.saturating_mul(n as i64 - 1);
                (lo.saturating_add(reach.min(0)), hi.saturating_add(reach.max(0)))
            })
        };
        let inside = |(check, &(index, extent)): (&Check, &(i64, i64))| {
            let (lo, hi) = range(index, &check.index.elem);
            lo >= 0 && hi < extent
        };
        let (lo, hi) = range(e.base, &a.address.elem);
        (self.merged || a.checks.iter().zip(&e.checks).all(inside)) && self.holds(a, lo, hi)
    }

    /// Copies rows that exist whole, from and to these addresses on.
    fn whole_rows<T: Lane>(&mut self, c: &CopyBody, [mut from, mut to]: [i64; 2], extents: &[usize], len: usize) {
        let inner = extents.len().wrapping_sub(1);
        let outer = &extents[..extents.len().saturating_sub(1)];
        let strides = [&c.from, &c.to].map(|a| a.address.coef(inner));
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut line: Vec<T> = vec![];
        // The destination leaves its place; it is not the source.
        let mut tile = match c.to.place {
            Place::Tile(t) => std::mem::replace(&mut self.tiles[t], Tile::None),
            Place::Param(_) => Tile::None,
        };
        let side = self.side(c.from.place);
        let mut x = [0usize; MAX_RANK];
        for _ in 0..outer.iter().product() {
            let read = |out: &mut [T], bytes: &mut Vec<u8>| {
                simd::read(&side, c.from.dtype, from, strides[0], out, bytes);
                if c.from.dtype != c.to.dtype {
                    simd::round(c.to.dtype, out);
                }
            };
            if let (1, Some(out)) = (strides[1], T::tile_mut(&mut tile)) {
                read(&mut out[to as usize..to as usize + len], &mut bytes);
            } else {
                line.resize(len, T::default());
                read(&mut line, &mut bytes);
                match c.to.place {
                    Place::Tile(_) => simd::write_tile(&mut tile, c.to.dtype, to, strides[1], &line),
                    Place::Param(p) => {
                        if let Some(g) = self.shared.globals[p] {
                            simd::write_global(&g, c.to.dtype, to, strides[1], &line, &mut bytes);
                        }
                    }
                }
            }
            for axis in (0..outer.len()).rev() {
                x[axis] += 1;
                from += c.from.address.coef(axis);
                to += c.to.address.coef(axis);
                if x[axis] < outer[axis] {
                    break;
                }
                x[axis] = 0;
                from -= c.from.address.coef(axis) * outer[axis] as i64;
                to -= c.to.address.coef(axis) * outer[axis] as i64;
            }
        }
        if let Place::Tile(t) = c.to.place {
            self.tiles[t] = tile;
        }
        self.bytes = bytes;
    }

    /// Elements `d.lo..d.hi` of a row, zero where the source has none.
    #[inline]
    fn read_row<T: Lane>(&self, c: &CopyBody, d: &Run, s: Option<Run>, out: &mut [T], bytes: &mut Vec<u8>) {
        let part = s.map(|s| (s.lo.max(d.lo), s.hi.min(d.hi), s));
        let Some((lo, hi, s)) = part.filter(|(lo, hi, _)| lo < hi) else {
            out.fill(T::default());
            return;
        };
        out[..lo - d.lo].fill(T::default());
        out[hi - d.lo..].fill(T::default());
        let out = &mut out[lo - d.lo..hi - d.lo];
        simd::read(&self.side(c.from.place), c.from.dtype, s.at + (lo - s.lo) as i64 * s.stride, s.stride, out, bytes);
        if c.from.dtype != c.to.dtype {
            simd::round(c.to.dtype, out);
        }
    }
}
