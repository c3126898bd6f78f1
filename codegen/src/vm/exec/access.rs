//! Loads, stores and atomics: affine ones in bulk, the rest lane by lane.

use super::*;

impl Worker<'_> {
    pub(super) fn holds(&self, access: &Access, first: i64, last: i64) -> bool {
        match access.place {
            Place::Param(p) => self.shared.globals[p].is_some_and(|g| g.holds(access.dtype, first, last)),
            Place::Tile(t) => memory::tile_holds(&self.tiles[t], access.dtype, first, last),
        }
    }

    pub(super) fn name(&self, place: Place) -> &str {
        match place {
            Place::Param(p) => &self.shared.kernel.params[p].name,
            Place::Tile(t) => &self.shared.kernel.buffers[t].name,
        }
    }

    pub(super) fn leaves_allocation(&mut self, node: &Node, access: &Access, at: i64) {
        let name = self.name(access.place).to_string();
        self.fault(
            node,
            "S0108",
            format!("a view of `{name}` reaches element {at}, which is outside its allocation"),
            "the extents, strides or offset of the view do not fit what it looks at; check `view_as`, strides and page tables",
        );
    }

    /// The integer at an address that has been checked.
    pub(super) fn integer(&self, place: Place, dtype: DType, at: i64) -> i64 {
        match place {
            Place::Param(p) => {
                self.shared.globals[p].map_or(-1, |g| lanes::int_from_bits(dtype, g.get(dtype, at as usize)))
            }
            Place::Tile(t) => match &self.tiles[t] {
                Tile::None | Tile::F(_) => -1,
                Tile::I(v) => lanes::int_value(dtype, v[at as usize]),
                Tile::L(v) => v[at as usize],
                Tile::Bytes(v) => lanes::int_from_bits(dtype, crate::formats::load_bits(v, dtype, at as usize)),
            },
        }
    }

    /// Whether every segment of a strip lies in one row, so that one lookup serves it.
    pub(super) fn straight(rank: usize, access: &Access) -> bool {
        access.affine && access.lookup.as_ref().is_none_or(|l| l.row.coef(rank.wrapping_sub(1)) == 0)
    }

    /// Where row `row` lies, relative to the access's address; `None` if it does not exist.
    fn row(&mut self, node: &Node, l: &Lookup, row: i64, u: &RowParts) -> Option<i64> {
        let i = row.div_euclid(l.page);
        if !u.exists || i < 0 || i >= u.entries {
            return None;
        }
        let at = u.table.wrapping_add(i.wrapping_mul(u.stride));
        if !self.holds(&l.table, at, at) {
            self.leaves_allocation(node, &l.table, at);
            return None;
        }
        let entry = self.integer(l.table.place, l.table.dtype, at);
        let shift = entry.wrapping_mul(u.step).wrapping_add(row.rem_euclid(l.page).wrapping_mul(u.within));
        (0..u.count).contains(&entry).then_some(shift)
    }

    fn row_parts(&self, fr: &Lanes, l: &Lookup) -> RowParts {
        RowParts {
            exists: l.table.checks.iter().all(|c| (0..self.scalar(fr, &c.extent)).contains(&self.scalar(fr, &c.index))),
            table: self.scalar(fr, &l.table.address),
            stride: self.scalar(fr, &l.stride),
            entries: self.scalar(fr, &l.entries),
            row: self.scalar(fr, &l.row),
            count: self.scalar(fr, &l.count),
            step: self.scalar(fr, &l.step),
            within: self.scalar(fr, &l.within),
        }
    }

    /// Adds to each valid lane's address where its row lies; lanes whose row does not exist are no longer valid.
    fn look_up(&mut self, fr: &Lanes, node: &Node, l: &Lookup, mask: Mask, valid: &mut Mask, address: &mut [i64]) {
        let n = fr.n;
        let column = |w: &mut Self, ix: &Ix| {
            let mut v = w.temp();
            w.lanes_of(fr, ix, &mut v);
            v
        };
        let mut found = *valid;
        for c in &l.table.checks {
            let (index, extent) = (column(self, &c.index), column(self, &c.extent));
            for lane in 0..n {
                if !(0..extent[lane]).contains(&index[lane]) {
                    found.set(lane, false);
                }
            }
            self.temps.extend([index, extent]);
        }
        let [row, mut table, stride, entries, count, step, within] =
            [&l.row, &l.table.address, &l.stride, &l.entries, &l.count, &l.step, &l.within].map(|ix| column(self, ix));
        for lane in 0..n {
            if !found.has(lane) {
                continue;
            }
            let i = row[lane].div_euclid(l.page);
            table[lane] = table[lane].wrapping_add(i.wrapping_mul(stride[lane]));
            if i < 0 || i >= entries[lane] {
                found.set(lane, false);
            } else if !self.holds(&l.table, table[lane], table[lane]) {
                self.leaves_allocation(node, &l.table, table[lane]);
                found.set(lane, false);
            }
        }
        let r = Resolved { address: table, valid: found };
        self.touch(fr, node, &l.table, &r, mask, Kind::Read);
        for lane in 0..n {
            if !found.has(lane) {
                continue;
            }
            let entry = self.integer(l.table.place, l.table.dtype, r.address[lane]);
            if (0..count[lane]).contains(&entry) {
                let inner = row[lane].rem_euclid(l.page).wrapping_mul(within[lane]);
                address[lane] = address[lane].wrapping_add(entry.wrapping_mul(step[lane])).wrapping_add(inner);
            } else {
                found.set(lane, false);
            }
        }
        *valid = found;
        self.temps.extend([row, r.address, stride, entries, count, step, within]);
    }

    /// Prepares the affine form of an access: uniform parts of the address, of each check and of the lookup.
    pub(super) fn even(&mut self, fr: &Lanes, access: &Access) -> Even {
        let mut checks = self.uniforms.pop().unwrap_or_default();
        checks.clear();
        checks.extend(access.checks.iter().map(|c| (self.scalar(fr, &c.index), self.scalar(fr, &c.extent))));
        let row = access.lookup.as_deref().map(|l| self.row_parts(fr, l));
        Even { base: self.scalar(fr, &access.address), checks, row }
    }

    pub(super) fn uneven(&mut self, e: Even) {
        self.uniforms.push(e.checks);
    }

    /// The elements that exist among `len` consecutive ones along axis `inner` from `x` on.
    #[inline]
    pub(super) fn run(
        &mut self,
        node: &Node,
        access: &Access,
        e: &Even,
        inner: usize,
        x: &[i64; MAX_RANK],
        len: usize,
    ) -> Option<Run> {
        let (mut lo, mut hi) = (0i64, len as i64);
        if !self.merged {
            for (check, &(index, extent)) in access.checks.iter().zip(&e.checks) {
                let i0 = along(index, &check.index.elem, x);
                let k = check.index.coef(inner);
                if k == 0 {
                    if i0 < 0 || i0 >= extent {
                        return None;
                    }
                } else if k == 1 {
                    lo = lo.max(i0.saturating_neg());
                    hi = hi.min(extent.saturating_sub(i0));
                } else if k > 0 {
                    lo = lo.max(ceil_div(i0.saturating_neg(), k));
                    hi = hi.min(ceil_div(extent.saturating_sub(i0), k));
                } else {
                    let m = k.saturating_neg();
                    lo = lo.max(ceil_div(i0.saturating_sub(extent).saturating_add(1), m));
                    hi = hi.min(i0.div_euclid(m).saturating_add(1));
                }
            }
        }
        let (lo, hi) = (lo.clamp(0, len as i64) as usize, hi.clamp(0, len as i64) as usize);
        if lo >= hi {
            return None;
        }
        let mut base = e.base;
        if let (Some(l), Some(parts)) = (access.lookup.as_deref(), &e.row) {
            base = base.wrapping_add(self.row(node, l, along(parts.row, &l.row.elem, x), parts)?);
        }
        let stride = access.address.coef(inner);
        let at = along(base, &access.address.elem, x).wrapping_add(stride.wrapping_mul(lo as i64));
        let last = at.wrapping_add(stride.wrapping_mul((hi - lo) as i64 - 1));
        if !self.holds(access, at.min(last), at.max(last)) {
            self.leaves_allocation(node, access, if at < 0 || last < 0 { at.min(last) } else { at.max(last) });
            return None;
        }
        Some(Run { lo, hi, at, stride })
    }

    /// Calls `f` with each part of the strip, those that exist and those that do not.
    pub(super) fn affine_parts(
        &mut self,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        mut f: impl FnMut(&mut Self, Part),
    ) {
        let even = self.even(fr, access);
        let inner = fr.rank.wrapping_sub(1);
        for s in &fr.segs {
            let Some(Run { lo, hi, at, stride }) = self.run(node, access, &even, inner, &s.x, s.len) else {
                f(self, Part::Outside { lo: s.lane, hi: s.lane + s.len });
                continue;
            };
            if hi - lo < s.len {
                f(self, Part::Outside { lo: s.lane, hi: s.lane + lo });
                f(self, Part::Outside { lo: s.lane + hi, hi: s.lane + s.len });
            }
            f(self, Part::Inside { lane: s.lane + lo, count: hi - lo, at, stride });
        }
        self.uneven(even);
    }

    /// Addresses lane by lane, with everything the sanitizer checks about them.
    pub(super) fn resolve(&mut self, fr: &Lanes, node: &Node, access: &Access, mask: Mask) -> Resolved {
        let n = fr.n;
        let mut valid = mask.and(Mask::first(n));
        let sanitize = self.shadow.is_some();
        let mut indices: Vec<Vec<i64>> = vec![];
        let mut overflow: Option<(usize, usize)> = None;
        let mut outside: Option<(usize, usize)> = None;
        for (axis, check) in access.checks.iter().enumerate() {
            let mut index = self.temp();
            self.lanes_of(fr, &check.index, &mut index);
            let mut extents = self.temp();
            self.lanes_of(fr, &check.extent, &mut extents);
            for lane in 0..n {
                let (i, e) = (index[lane], extents[lane]);
                if i < 0 || i >= e {
                    let defect = match check.outside {
                        Outside::Expected => false,
                        Outside::Tail => i < 0,
                        Outside::Defect => true,
                    };
                    if sanitize && defect && mask.has(lane) && outside.is_none() {
                        outside = Some((lane, axis));
                    }
                    valid.set(lane, false);
                }
            }
            self.temps.push(extents);
            if sanitize && !self.shared.program.wide && !uses_data(&check.index) {
                let far = (0..n).find(|&l| mask.has(l) && i32::try_from(index[l]).is_err());
                overflow = overflow.or(far.map(|lane| (lane, axis)));
            }
            if sanitize { indices.push(index) } else { self.temps.push(index) }
        }
        let mut address = self.temp();
        self.lanes_of(fr, &access.address, &mut address);
        if let Some(l) = &access.lookup {
            self.look_up(fr, node, l, mask, &mut valid, &mut address);
        }
        for (lane, &at) in address[..n].iter().enumerate() {
            if valid.has(lane) && !self.holds(access, at, at) {
                self.leaves_allocation(node, access, at);
                valid.set(lane, false);
            }
        }
        if sanitize {
            self.check_indices(fr, node, access, mask.and(valid), &indices, &address, outside);
            if let Some((lane, axis)) = overflow {
                let name = self.name(access.place).to_string();
                let i = indices[axis][lane];
                let d = Diagnostic::error(
                    self.shared.kernel,
                    node.span,
                    "S0106",
                    format!("index overflow: {i} on axis {axis} of `{name}` does not fit 32 bits"),
                )
                .label(format!("computed{}", where_text(self.iteration(fr, lane))))
                .help("build the kernel with wide indices");
                self.find("S0106", node, node, d);
            }
            self.temps.append(&mut indices);
        }
        Resolved { address, valid }
    }

    fn noted_lanes(
        &self,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        r: &Resolved,
        mask: Mask,
        what: crate::machine::Use,
    ) {
        if self.agent.is_some() {
            for lane in (0..fr.n).filter(|&l| mask.has(l) && r.valid.has(l)) {
                self.noted(node, access, r.address[lane], 1, 1, what);
            }
        }
    }

    pub(super) fn done(&mut self, r: Resolved) {
        self.temps.push(r.address);
    }

    pub(super) fn load<T: Lane>(
        &mut self,
        fr: &mut Lanes,
        node: &Node,
        access: &Access,
        dst: Reg,
        other: Option<Reg>,
        mask: Mask,
    ) {
        let mut out = std::mem::take(&mut T::regs_mut(&mut fr.regs)[dst.slot]);
        let n = fr.n;
        if Self::straight(fr.rank, access) && self.shadow.is_none() {
            let others = other.map(|r| &T::regs(&fr.regs)[r.slot]);
            let mut bytes = std::mem::take(&mut self.bytes);
            self.affine_parts(fr, node, access, |w, part| match part {
                Part::Outside { lo, hi } => match others {
                    Some(o) => out[lo..hi].copy_from_slice(&o[lo..hi]),
                    None => out[lo..hi].fill(T::default()),
                },
                Part::Inside { lane, count, at, stride } => {
                    w.noted(node, access, at, stride, count, crate::machine::Use::Read);
                    let side = w.side(access.place);
                    simd::read(&side, access.dtype, at, stride, &mut out[lane..lane + count], &mut bytes);
                }
            });
            self.bytes = bytes;
        } else {
            let r = self.resolve(fr, node, access, mask);
            self.touch(fr, node, access, &r, mask, Kind::Read);
            self.noted_lanes(fr, node, access, &r, mask, crate::machine::Use::Read);
            let side = self.side(access.place);
            let others = other.map(|r| &T::regs(&fr.regs)[r.slot]);
            match (&side, access.dtype) {
                (Side::Tile(t), _) if T::tile(t).is_some() => {
                    let v = T::tile(t).unwrap_or(&[]);
                    for lane in 0..n {
                        out[lane] = if r.valid.has(lane) {
                            v[r.address[lane] as usize]
                        } else {
                            others.map_or(T::default(), |o| o[lane])
                        };
                    }
                }
                _ => {
                    let mut bytes = vec![];
                    for lane in 0..n {
                        if r.valid.has(lane) {
                            memory::read(&side, access.dtype, r.address[lane], 0, &mut out[lane..lane + 1], &mut bytes);
                        } else {
                            out[lane] = others.map_or(T::default(), |o| o[lane]);
                        }
                    }
                }
            }
            self.done(r);
        }
        T::regs_mut(&mut fr.regs)[dst.slot] = out;
    }

    pub(super) fn side(&self, place: Place) -> Side<'_> {
        match place {
            Place::Param(p) => match self.shared.globals[p] {
                Some(g) => Side::Global(g),
                None => Side::Tile(&Tile::None),
            },
            Place::Tile(t) => Side::Tile(&self.tiles[t]),
        }
    }

    pub(super) fn write<T: Lane>(&mut self, access: &Access, at: i64, stride: i64, x: &[T]) {
        match access.place {
            Place::Param(p) => {
                if let Some(g) = self.shared.globals[p] {
                    simd::write_global(&g, access.dtype, at, stride, x, &mut self.bytes);
                }
            }
            Place::Tile(t) => simd::write_tile(&mut self.tiles[t], access.dtype, at, stride, x),
        }
    }

    pub(super) fn store<T: Lane>(&mut self, fr: &Lanes, node: &Node, access: &Access, src: Reg, mask: Mask) {
        let x = &T::regs(&fr.regs)[src.slot];
        let backwards = !matches!(self.shared.order, crate::vm::BlockOrder::Forward);
        if Self::straight(fr.rank, access) && self.shadow.is_none() {
            let full = mask == Mask::first(fr.n);
            self.affine_parts(fr, node, access, |w, part| {
                let Part::Inside { lane, count, at, stride } = part else { return };
                let mut part = |lo: usize, hi: usize| {
                    let first = at + stride * (lo - lane) as i64;
                    w.noted(node, access, first, stride, hi - lo, crate::machine::Use::Write);
                    if stride == 0 && backwards {
                        // The last of the lanes in the order asked for is the first one.
                        w.write(access, first, 0, &x[lo..lo + 1]);
                    } else {
                        w.write(access, first, stride, &x[lo..hi]);
                    }
                };
                if full { part(lane, lane + count) } else { mask.runs(lane, lane + count, part) }
            });
            return;
        }
        let r = self.resolve(fr, node, access, mask);
        self.touch(fr, node, access, &r, mask, Kind::Write);
        self.noted_lanes(fr, node, access, &r, mask, crate::machine::Use::Write);
        for k in 0..fr.n {
            let lane = if backwards { fr.n - 1 - k } else { k };
            if mask.has(lane) && r.valid.has(lane) {
                self.write(access, r.address[lane], 0, &x[lane..lane + 1]);
            }
        }
        self.done(r);
    }

    #[expect(clippy::too_many_arguments, reason = "the op's operands")]
    pub(super) fn atomic(
        &mut self,
        fr: &mut Lanes,
        node: &Node,
        op: AtomicOp,
        access: &Access,
        dst: Option<Reg>,
        src: Reg,
        mask: Mask,
    ) {
        let r = self.resolve(fr, node, access, mask);
        self.touch(fr, node, access, &r, mask, Kind::Atomic);
        self.noted_lanes(fr, node, access, &r, mask, crate::machine::Use::Atomic);
        let n = fr.n;
        let backwards = !matches!(self.shared.order, crate::vm::BlockOrder::Forward);
        let unsigned = access.dtype == DType::U32;
        let apply = move |old: i32, v: i32| match op {
            AtomicOp::Add => old.wrapping_add(v),
            AtomicOp::Max if unsigned => (old as u32).max(v as u32) as i32,
            AtomicOp::Max => old.max(v),
            AtomicOp::Min if unsigned => (old as u32).min(v as u32) as i32,
            AtomicOp::Min => old.min(v),
            AtomicOp::Or => old | v,
        };
        let mut old = dst.map(|d| (d.slot, std::mem::take(&mut fr.regs.i[d.slot])));
        if src.class == Class::I && access.dtype.bits() == 32 {
            let x = &fr.regs.i[src.slot];
            for k in 0..n {
                let lane = if backwards { n - 1 - k } else { k };
                let mut before = 0;
                if mask.has(lane) && r.valid.has(lane) {
                    let at = r.address[lane] as usize;
                    before = match access.place {
                        Place::Param(p) => match self.shared.globals[p] {
                            Some(g) if (g.offset * 8 + at * 32) % 64 <= 32 => {
                                g.memory
                                    .update_bits(g.offset * 8 + at * 32, 32, |o| apply(o as i32, x[lane]) as u32 as u64)
                                    as i32
                            }
                            _ => {
                                let what = "an atomic update of an element that is not aligned to its size".to_string();
                                self.fault(node, "S0108", what, "align the view to 4 bytes");
                                0
                            }
                        },
                        Place::Tile(t) => {
                            let mut b = [0i32];
                            memory::read(&Side::Tile(&self.tiles[t]), access.dtype, at as i64, 0, &mut b, &mut vec![]);
                            memory::write_tile(&mut self.tiles[t], access.dtype, at as i64, 0, &[apply(b[0], x[lane])]);
                            b[0]
                        }
                    };
                }
                if let Some((_, o)) = &mut old {
                    o[lane] = before;
                }
            }
        }
        if let Some((slot, o)) = old {
            fr.regs.i[slot] = o;
        }
        self.done(r);
    }
}

/// The affine form of an access, its uniform parts evaluated.
pub(super) struct Even {
    pub(super) base: i64,
    /// Index and extent of each check.
    pub(super) checks: Vec<(i64, i64)>,
    row: Option<RowParts>,
}

/// Elements `lo..hi` of a row, at addresses `at`, `at + stride`, ..
pub(super) struct Run {
    pub(super) lo: usize,
    pub(super) hi: usize,
    pub(super) at: i64,
    pub(super) stride: i64,
}

/// The uniform parts of a lookup.
struct RowParts {
    exists: bool,
    table: i64,
    stride: i64,
    entries: i64,
    row: i64,
    count: i64,
    step: i64,
    within: i64,
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + (a.rem_euclid(b) != 0) as i64
}

/// Whether an index comes from data, which may be any number in a checked access.
fn uses_data(ix: &Ix) -> bool {
    ix.uniform.iter().chain(&ix.lanes).any(|(_, a)| match a {
        Atom::Data(..) => true,
        Atom::Env(_) | Atom::Elem(_) | Atom::Lane(_) => false,
        Atom::Mul(p) | Atom::Div(p) | Atom::Mod(p) | Atom::Min(p) | Atom::Max(p) => uses_data(&p.0) || uses_data(&p.1),
    })
}
