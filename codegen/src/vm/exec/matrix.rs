//! Matrix products of tiles. The arithmetic is `simd`'s; here operands become strided matrices of f32.

use super::*;
use crate::vm::simd::Matrix;

/// Where an operand's numbers are.
enum Source {
    /// In its tile, from an address on.
    Tile(usize, Matrix<'static>),
    /// Decoded in scratch, dense.
    Scratch,
}

impl Worker<'_> {
    pub(super) fn gemm(&mut self, fr: &Lanes, node: &Node, g: &Gemm) {
        let [m, n, k] = g.shape;
        let Place::Tile(acc) = g.acc.place else { return };
        let mut scratch = std::mem::take(&mut self.matrices);
        let [ma, mb, chain, panel] = &mut scratch;
        let a = self.operand(fr, node, &g.a, [m, k], ma);
        let b = self.operand(fr, node, &g.b, [k, n], mb);
        let dense = [n as i64, 1];
        if self.shadow.is_some() && !g.set {
            self.touch_whole(node, &g.acc, 0, &[m, n], &dense, Kind::Read);
        }
        // The accumulator is no operand: the verifier and `compile` see to that.
        let mut tile = std::mem::replace(&mut self.tiles[acc], Tile::None);
        let mut copy = vec![];
        let c = match &mut tile {
            Tile::F(v) => &mut v[..],
            Tile::None | Tile::I(_) | Tile::L(_) | Tile::Bytes(_) => {
                copy.resize(m * n, 0.0);
                simd::read(&Side::Tile(&tile), DType::F32, 0, 1, &mut copy, &mut vec![]);
                &mut copy[..]
            }
        };
        let fresh = self.shadow.is_some() && (g.set || c.iter().all(|v| v.is_finite()));
        let a = self.matrix(&a, &g.a, k, ma);
        let b = self.matrix(&b, &g.b, n, mb);
        let level = simd::level();
        if g.scaled {
            chain.resize(m * n, 0.0);
            simd::gemm(level, g.shape, a, b, chain, true, panel);
            simd::scale(level, &self.factors[0], &self.factors[1], chain, c, g.set);
        } else {
            simd::gemm(level, g.shape, a, b, c, g.set, panel);
        }
        let fresh = fresh && all_finite(a, m, k) && all_finite(b, k, n);
        let strange = if fresh { c.iter().position(|v| !v.is_finite()) } else { None };
        let what = strange.map(|at| (at, if c[at].is_nan() { "NaN" } else { "infinity" }));
        if !copy.is_empty() {
            simd::write_tile(&mut tile, DType::F32, 0, 1, &copy);
        }
        self.tiles[acc] = tile;
        self.matrices = scratch;
        if self.shadow.is_some() {
            self.touch_whole(node, &g.acc, 0, &[m, n], &dense, Kind::Write);
        }
        if let Some((at, what)) = what {
            self.strange_product(node, what, [at / n.max(1), at % n.max(1)]);
        }
    }

    /// Finds an operand's numbers; decodes them into `out` unless the tile holds them as they are needed.
    fn operand(&mut self, fr: &Lanes, node: &Node, o: &Operand, shape: [usize; 2], out: &mut Vec<f32>) -> Source {
        let [rows, cols] = shape;
        let base = self.scalar(fr, &o.access.address);
        out.clear();
        let guards = &o.access.checks[2.min(o.access.checks.len())..];
        let absent = guards.iter().any(|c| !(0..self.scalar(fr, &c.extent)).contains(&self.scalar(fr, &c.index)));
        if absent || rows == 0 || cols == 0 {
            if absent {
                self.absent_operand(node, &o.access);
            }
            out.resize(rows * cols, 0.0);
            return Source::Scratch;
        }
        let reach = |limit: fn(i64, i64) -> i64| {
            let ends = shape.iter().zip(&o.strides).map(|(&e, &s)| limit((e as i64 - 1) * s, 0));
            ends.fold(base, |v, e| v + e)
        };
        let (low, high) = (reach(i64::min), reach(i64::max));
        if !self.holds(&o.access, low, high) {
            self.leaves_allocation(node, &o.access, if low < 0 { low } else { high });
            out.resize(rows * cols, 0.0);
            return Source::Scratch;
        }
        if self.shadow.is_some() {
            self.touch_whole(node, &o.access, base, &shape, &o.strides, Kind::Read);
        }
        let [row, col] = o.strides;
        if let Place::Tile(t) = o.access.place
            && let Tile::F(_) = &self.tiles[t]
            && row >= 0
            && col >= 0
        {
            return Source::Tile(base as usize, Matrix { data: &[], row: row as usize, col: col as usize });
        }
        out.resize(rows * cols, 0.0);
        let mut bytes = std::mem::take(&mut self.bytes);
        let (mut integers, o_dtype) = (vec![], o.access.dtype);
        for (i, line) in out.chunks_exact_mut(cols).enumerate() {
            let at = base + i as i64 * row;
            let side = self.side(o.access.place);
            if class_of(o.access.dtype) == Class::F {
                simd::read(&side, o.access.dtype, at, col, line, &mut bytes);
            } else {
                integers.resize(cols, 0);
                simd::read(&side, o.access.dtype, at, col, &mut integers, &mut bytes);
                line.iter_mut().zip(&integers).for_each(|(o, &v)| *o = lanes::int_value(o_dtype, v) as f32);
            }
        }
        self.bytes = bytes;
        Source::Scratch
    }

    fn matrix<'m>(&'m self, source: &Source, o: &Operand, cols: usize, scratch: &'m [f32]) -> Matrix<'m> {
        match (source, o.access.place) {
            (&Source::Tile(at, m), Place::Tile(t)) => match &self.tiles[t] {
                Tile::F(v) => Matrix { data: &v[at..], ..m },
                Tile::None | Tile::I(_) | Tile::L(_) | Tile::Bytes(_) => Matrix { data: &[], ..m },
            },
            (Source::Tile(..), Place::Param(_)) | (Source::Scratch, _) => Matrix { data: scratch, row: cols, col: 1 },
        }
    }
}

fn all_finite(x: Matrix, rows: usize, cols: usize) -> bool {
    (0..rows).all(|i| (0..cols).all(|j| x.data[i * x.row + j * x.col].is_finite()))
}
