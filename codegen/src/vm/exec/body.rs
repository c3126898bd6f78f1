//! Element bodies: the loop box cut into strips.

use super::*;

impl Worker<'_> {
    pub(super) fn run_body(&mut self, block: &mut Lanes, body: &Body) {
        let mut extents = [1usize; MAX_RANK];
        let (rank, origin) = match &body.extents {
            Extents::Fixed(e) => {
                extents[..e.len()].copy_from_slice(e);
                (e.len(), 0)
            }
            Extents::Range(lo, hi) => {
                let (lo, hi) = (self.scalar(block, lo), self.scalar(block, hi));
                extents[0] = hi.saturating_sub(lo).max(0) as usize;
                (1, lo)
            }
        };
        let total: usize = extents[..rank].iter().product();
        if let Some(s) = &mut self.shadow {
            s.enter();
        }
        for &(at, reg, dtype) in &body.env_data {
            self.env[at] = data_lane(&block.regs, reg, dtype, 0);
        }
        self.merge(block, body, &mut extents[..rank]);
        let mut fr = std::mem::take(&mut self.body);
        let width = WIDTH.min(total);
        for &(dst, src) in &body.splats {
            match dst.class {
                Class::F => fr.regs.f[dst.slot][..width].fill(block.regs.f[src.slot][0]),
                Class::I => fr.regs.i[dst.slot][..width].fill(block.regs.i[src.slot][0]),
                Class::L => fr.regs.l[dst.slot][..width].fill(block.regs.l[src.slot][0]),
            }
        }
        for &(dst, dtype, bits) in &body.constants {
            lanes::fill(&mut fr.regs, width, dst, dtype, bits);
        }
        fr.rank = rank;
        match &body.collect {
            Collect::None if self.copy_rows(&fr, body, &extents[..rank]) => {}
            Collect::None => self.strips(&mut fr, &extents, rank, total, origin, &body.code, |_, _, _| true),
            Collect::Reduce { info, value, result } => match value.class {
                Class::F => {
                    let v = self.collect::<f32>(&mut fr, &extents, rank, total, &body.code, info, *value);
                    block.regs.f[result.slot][0] = v;
                }
                Class::I => {
                    let v = self.collect::<i32>(&mut fr, &extents, rank, total, &body.code, info, *value);
                    block.regs.i[result.slot][0] = v;
                }
                Class::L => {
                    let v = self.collect::<i64>(&mut fr, &extents, rank, total, &body.code, info, *value);
                    block.regs.l[result.slot][0] = v;
                }
            },
            Collect::Count { counter } => {
                self.claimed = block.regs.i[counter.slot][0];
                self.in_order = true;
                self.strips(&mut fr, &extents, rank, total, origin, &body.code, |_, _, _| true);
                self.in_order = false;
                block.regs.i[counter.slot][0] = self.claimed;
            }
            Collect::Keep { value, side } => {
                let mut all = std::mem::take(&mut self.factors[*side]);
                all.resize(total, 0.0);
                self.strips(&mut fr, &extents, rank, total, origin, &body.code, |fr, first, n| {
                    all[first..first + n].copy_from_slice(&fr.regs.f[value.slot][..n]);
                    true
                });
                self.factors[*side] = all;
            }
            Collect::First { cond, result } => {
                let mut found = total;
                let forward = matches!(self.shared.order, crate::vm::BlockOrder::Forward);
                self.strips(&mut fr, &extents, rank, total, origin, &body.code, |fr, first, n| {
                    if let Some(k) = fr.regs.i[cond.slot][..n].iter().position(|&c| c != 0) {
                        found = found.min(first + k);
                    }
                    found == total || !forward
                });
                self.env[*result] = found as i64;
            }
        }
        self.body = fr;
        self.merged = false;
    }

    /// Joins short innermost axes to one where every access runs through memory evenly and exists for the whole box.
    pub(super) fn merge(&mut self, block: &Lanes, body: &Body, extents: &mut [usize]) {
        let rank = extents.len();
        let Some(accesses) = &body.mergeable else { return };
        if rank < 2 || extents[rank - 1] >= WIDTH / 2 || self.shadow.is_some() || extents.contains(&0) {
            return;
        }
        for access in accesses {
            for check in &access.checks {
                let (mut lo, extent) = (self.scalar(block, &check.index), self.scalar(block, &check.extent));
                let mut hi = lo;
                for (&k, &e) in check.index.elem.iter().zip(extents.iter()) {
                    let reach = k.wrapping_mul(e as i64 - 1);
                    lo = lo.wrapping_add(reach.min(0));
                    hi = hi.wrapping_add(reach.max(0));
                }
                if lo < 0 || hi >= extent {
                    return;
                }
            }
        }
        let mut inner = extents[rank - 1];
        let mut first = rank - 1;
        while first > 0
            && inner < 4 * WIDTH
            && accesses.iter().all(|a| a.address.coef(first - 1) == a.address.coef(rank - 1).wrapping_mul(inner as i64))
        {
            first -= 1;
            inner *= extents[first];
        }
        if first < rank - 1 {
            extents[first..rank - 1].fill(1);
            extents[rank - 1] = inner;
            self.merged = true;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one reduction")]
    pub(super) fn collect<T: Combine>(
        &mut self,
        fr: &mut Lanes,
        extents: &[usize; MAX_RANK],
        rank: usize,
        total: usize,
        code: &[Node],
        info: &ReduceInfo,
        value: Reg,
    ) -> T {
        let mut all = vec![T::default(); total];
        self.strips(fr, extents, rank, total, 0, code, |fr, first, n| {
            all[first..first + n].copy_from_slice(&T::regs(&fr.regs)[value.slot][..n]);
            true
        });
        reduce::line(info.op, info.dtype, info.order, &all, &mut vec![])
    }

    /// Runs `code` on every strip of a box; `after(frame, first iteration, lanes)` says whether to go on.
    #[expect(clippy::too_many_arguments, reason = "the pieces of one loop box")]
    pub(super) fn strips(
        &mut self,
        fr: &mut Lanes,
        extents: &[usize; MAX_RANK],
        rank: usize,
        total: usize,
        origin: i64,
        code: &[Node],
        mut after: impl FnMut(&Lanes, usize, usize) -> bool,
    ) {
        if total == 0 {
            return;
        }
        let inner = if rank == 0 { 1 } else { extents[rank - 1] };
        let rows = total / inner;
        // Long rows are cut into strips of nearly equal length, short rows are put together.
        let cuts = inner.div_ceil(WIDTH);
        let cut = inner.div_ceil(cuts).next_multiple_of(16).min(inner.max(1));
        let cuts = inner.div_ceil(cut);
        let rows_each = if cuts > 1 { 1 } else { (WIDTH / inner).max(1) };
        let count = if cuts > 1 { rows * cuts } else { rows.div_ceil(rows_each) };
        let order = if self.in_order { crate::vm::BlockOrder::Forward } else { self.shared.order };
        let order = Permutation::new(order, count);
        let mut x = [0i64; MAX_RANK];
        let mut all = Mask::default();
        fr.n = 0;
        for k in 0..count {
            let strip = order.at(k);
            let (row, start, take_rows) = if cuts > 1 {
                (strip / cuts, strip % cuts * cut, 1)
            } else {
                (strip * rows_each, 0, rows_each.min(rows - strip * rows_each))
            };
            let len = if cuts > 1 { cut.min(inner - start) } else { inner };
            // Written piece by piece in place: a struct that is stored in pieces and then copied whole stalls.
            fr.segs.resize(take_rows, Seg { lane: 0, len: 0, x: [0; MAX_RANK] });
            let mut rest = row;
            for axis in (0..rank.saturating_sub(1)).rev() {
                x[axis] = (rest % extents[axis]) as i64;
                rest /= extents[axis];
            }
            for (r, seg) in fr.segs.iter_mut().enumerate() {
                (seg.lane, seg.len) = (r * len, len);
                for (to, &at) in seg.x.iter_mut().zip(&x[..rank.saturating_sub(1)]) {
                    *to = at;
                }
                if rank > 0 {
                    seg.x[rank - 1] = start as i64 + origin;
                }
                for axis in (0..rank.saturating_sub(1)).rev() {
                    x[axis] += 1;
                    if (x[axis] as usize) < extents[axis] {
                        break;
                    }
                    x[axis] = 0;
                }
            }
            if fr.n != take_rows * len {
                fr.n = take_rows * len;
                all = Mask::first(fr.n);
            }
            let first = row * inner + start;
            fr.first = Some(first);
            self.exec(fr, code, all);
            if self.stopped || !after(fr, first, fr.n) {
                return;
            }
        }
    }
}
