//! Reductions and scans of whole tiles.

use super::*;

impl Worker<'_> {
    /// A tile view in row-major order, without copying where it lies so already.
    pub(super) fn whole<T: Lane>(
        &mut self,
        fr: &Lanes,
        node: &Node,
        src: &Access,
        shape: &[usize],
        strides: &[i64],
    ) -> Vec<T> {
        let n: usize = shape.iter().product();
        let base = self.scalar(fr, &src.address);
        let mut out = vec![T::default(); n];
        if n == 0 {
            return out;
        }
        let reach: i64 = shape.iter().zip(strides).map(|(&e, &s)| (e as i64 - 1) * s.max(0)).sum();
        let low: i64 = shape.iter().zip(strides).map(|(&e, &s)| (e as i64 - 1) * s.min(0)).sum();
        if !self.holds(src, base + low, base + reach) {
            self.leaves_allocation(node, src, base + reach);
            return out;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let inner = shape.last().copied().unwrap_or(1);
        let step = strides.last().copied().unwrap_or(1);
        if crate::vm::compile::dense(shape, strides) {
            simd::read(&self.side(src.place), src.dtype, base, 1, &mut out, &mut bytes);
        } else {
            for (row, part) in out.chunks_mut(inner).enumerate() {
                let at = row_offset(row, shape, strides);
                simd::read(&self.side(src.place), src.dtype, base + at, step, part, &mut bytes);
            }
        }
        self.bytes = bytes;
        if self.shadow.is_some() {
            self.touch_whole(node, src, base, shape, strides, Kind::Read);
        }
        if self.agent.is_some() {
            for row in 0..n / inner.max(1) {
                let at = base + row_offset(row, shape, strides);
                self.noted(node, src, at, step, inner, crate::machine::Use::Read);
            }
        }
        out
    }

    /// Touches every element of a tile view.
    pub(super) fn touch_whole(
        &mut self,
        node: &Node,
        src: &Access,
        base: i64,
        shape: &[usize],
        strides: &[i64],
        kind: Kind,
    ) {
        let inner = shape.last().copied().unwrap_or(1);
        let step = strides.last().copied().unwrap_or(1);
        let n: usize = shape.iter().product();
        for first in (0..n).step_by(WIDTH) {
            let count = WIDTH.min(n - first);
            let strip = Lanes { n: count, ..Lanes::default() };
            let address = (first..first + count)
                .map(|i| base + row_offset(i / inner, shape, strides) + (i % inner) as i64 * step)
                .collect();
            let valid = Mask::first(count);
            self.touch(&strip, node, src, &Resolved { address, valid }, valid, kind);
        }
    }

    pub(super) fn put_tile<T: Lane>(&mut self, node: &Node, dst: usize, x: &[T]) {
        let info = &self.shared.program.tiles[dst];
        if !memory::tile_holds(&self.tiles[dst], info.dtype, 0, x.len() as i64 - 1) {
            self.fault(
                node,
                "S0110",
                "the result of a reduction does not fit its tile".into(),
                "this is a defect of the kernel's IR; run the verifier on it",
            );
            return;
        }
        simd::write_tile(&mut self.tiles[dst], info.dtype, 0, 1, x);
        if let Some(s) = &mut self.shadow {
            for i in 0..x.len() {
                s.touch(Place::Tile(dst), i, Kind::Write, None, node.op);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the op's operands")]
    pub(super) fn reduce<T: Combine>(
        &mut self,
        fr: &Lanes,
        node: &Node,
        info: &ReduceInfo,
        src: &Access,
        shape: &[usize],
        strides: &[i64],
        axis: usize,
        dst: usize,
    ) {
        let x = self.whole::<T>(fr, node, src, shape, strides);
        let n = shape.get(axis).copied().unwrap_or(1);
        let inner: usize = shape.iter().skip(axis + 1).product();
        let mut out = vec![T::default(); x.len().checked_div(n).unwrap_or(0)];
        reduce::axis(info.op, info.dtype, info.order, &x, n, inner, &mut out);
        self.put_tile(node, dst, &out);
    }

    #[expect(clippy::too_many_arguments, reason = "the op's operands")]
    pub(super) fn scan<T: Combine>(
        &mut self,
        fr: &mut Lanes,
        node: &Node,
        info: &ReduceInfo,
        kind: ScanKind,
        src: &Access,
        shape: &[usize],
        strides: &[i64],
        axis: usize,
        dst: usize,
        total: Option<Reg>,
    ) {
        let x = self.whole::<T>(fr, node, src, shape, strides);
        let n = shape.get(axis).copied().unwrap_or(1);
        let inner: usize = shape.iter().skip(axis + 1).product();
        let mut out = vec![T::default(); x.len()];
        let sum = reduce::scan(info.op, info.dtype, kind, &x, n, inner, &mut out);
        self.put_tile(node, dst, &out);
        if let Some(t) = total {
            T::regs_mut(&mut fr.regs)[t.slot][0] = sum;
        }
    }
}

fn row_offset(row: usize, shape: &[usize], strides: &[i64]) -> i64 {
    let mut rest = row;
    let mut at = 0;
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        at += (rest % shape[axis]) as i64 * strides[axis];
        rest /= shape[axis].max(1);
    }
    at
}
