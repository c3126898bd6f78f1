//! The machine: one worker runs blocks of a [`Program`].
//!
//! Block-level code runs in a frame of one lane; element bodies run in a frame of up to [`WIDTH`] lanes, strip by strip.
//! A strip is a run of consecutive iterations in row-major order, cut into segments of one row each, so an affine access
//! is a few bulk moves whose valid part is known in advance. Anything else goes lane by lane through `resolve`, and so
//! does everything under the sanitizer.

use super::lanes;
use super::memory::{self, Class, Global, Lane, Regs, Side, Tile, class_of};
use super::program::*;
use super::reduce::{self, Combine};
use super::shadow::{Hit, Kind, Shadow};
use crate::diag::Diagnostic;
use crate::ir::{AtomicOp, BinaryOp, CmpOp, DType, Kernel, ScanKind};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A set of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mask([u64; WIDTH / 64]);

impl Mask {
    /// Lanes `0..n`.
    pub fn first(n: usize) -> Mask {
        let mut m = Mask::default();
        for (k, w) in m.0.iter_mut().enumerate() {
            let left = n.saturating_sub(64 * k);
            *w = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        }
        m
    }
    fn none(self) -> bool {
        self.0 == [0; WIDTH / 64]
    }
    fn has(self, lane: usize) -> bool {
        self.0[lane / 64] >> (lane % 64) & 1 == 1
    }
    fn set(&mut self, lane: usize, on: bool) {
        let bit = 1 << (lane % 64);
        if on { self.0[lane / 64] |= bit } else { self.0[lane / 64] &= !bit }
    }
    fn and(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] & o.0[k]))
    }
    fn or(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] | o.0[k]))
    }
    fn without(self, o: Mask) -> Mask {
        Mask(std::array::from_fn(|k| self.0[k] & !o.0[k]))
    }
    fn of(bools: &[i32]) -> Mask {
        let mut m = Mask::default();
        for (w, chunk) in m.0.iter_mut().zip(bools.chunks(64)) {
            for (k, &b) in chunk.iter().enumerate() {
                *w |= ((b != 0) as u64) << k;
            }
        }
        m
    }
    /// Calls `f` with each run of set lanes within `lo..hi`.
    fn runs(self, lo: usize, hi: usize, mut f: impl FnMut(usize, usize)) {
        let mut at = lo;
        while at < hi {
            let ones = |from: usize| -> usize {
                let mut p = from;
                while p < hi {
                    let run = (!(self.0[p / 64] >> (p % 64))).trailing_zeros() as usize;
                    let left = 64 - p % 64;
                    p += run.min(left);
                    if run < left {
                        break;
                    }
                }
                p.min(hi)
            };
            if self.has(at) {
                let end = ones(at);
                f(at, end);
                at = end;
            } else {
                let skip = (self.0[at / 64] >> (at % 64)).trailing_zeros() as usize;
                at += skip.clamp(1, 64 - at % 64);
            }
        }
    }
}

/// Lanes that are consecutive along the innermost axis.
#[derive(Clone, Copy, Debug)]
struct Seg {
    lane: usize,
    len: usize,
    /// Element indices of the first lane.
    x: [i64; MAX_RANK],
}

/// A frame: registers and where its lanes stand in the loop box.
#[derive(Debug, Default)]
pub struct Lanes {
    regs: Regs,
    n: usize,
    rank: usize,
    segs: Vec<Seg>,
    /// Iteration of lane 0; `None` at block level.
    first: Option<usize>,
}

impl Lanes {
    /// A block frame: one lane.
    pub fn block(counts: [usize; 3]) -> Lanes {
        let seg = Seg { lane: 0, len: 1, x: [0; MAX_RANK] };
        Lanes { regs: Regs::new(counts, 1), n: 1, rank: 0, segs: vec![seg], first: None }
    }
    /// A body frame.
    pub fn body(counts: [usize; 3]) -> Lanes {
        Lanes { regs: Regs::new(counts, WIDTH), ..Lanes::default() }
    }
}

/// Order of iterations and blocks.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: usize,
    multiplier: usize,
    offset: usize,
    backwards: bool,
}

impl Permutation {
    /// The order `order` of `count` items.
    pub fn new(order: super::BlockOrder, count: usize) -> Permutation {
        let p = Permutation { count, multiplier: 1, offset: 0, backwards: false };
        match order {
            super::BlockOrder::Forward => p,
            super::BlockOrder::Reversed => Permutation { backwards: true, ..p },
            super::BlockOrder::Seeded(seed) => {
                let mix = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let gcd = |mut a: usize, mut b: usize| {
                    while b != 0 {
                        (a, b) = (b, a % b);
                    }
                    a
                };
                let mut multiplier = (mix >> 33) as usize % count.max(1) + 1;
                while gcd(multiplier, count.max(1)) != 1 {
                    multiplier += 1;
                }
                Permutation { multiplier, offset: (mix >> 13) as usize % count.max(1), ..p }
            }
        }
    }
    /// Item at place `i`.
    pub fn at(&self, i: usize) -> usize {
        if self.backwards {
            self.count - 1 - i
        } else {
            ((i as u128 * self.multiplier as u128 + self.offset as u128) % self.count as u128) as usize
        }
    }
}

/// What all workers of a run share.
pub struct Shared<'p> {
    /// The kernel, for positions and names.
    pub kernel: &'p Kernel,
    /// The program.
    pub program: &'p Program,
    /// Tensors, by parameter.
    pub globals: &'p [Option<Global<'p>>],
    /// Scalars, by parameter: bit patterns.
    pub scalars: &'p [u64],
    /// Order of strips.
    pub order: super::BlockOrder,
    /// Faults, which end a run.
    pub faults: &'p Mutex<Vec<Diagnostic>>,
    /// Set with the first fault.
    pub stop: &'p AtomicBool,
}

/// Runs blocks one at a time with its own tiles and registers.
pub struct Worker<'p> {
    shared: &'p Shared<'p>,
    env: Vec<i64>,
    tiles: Vec<Tile>,
    frame: Lanes,
    body: Lanes,
    temps: Vec<Vec<i64>>,
    uniforms: Vec<(i64, i64)>,
    bytes: Vec<u8>,
    bad_division: Cell<bool>,
    active: Mask,
    exits: Vec<(Mask, Mask)>,
    stopped: bool,
    /// The current body's rows run together, and its accesses are known to exist.
    merged: bool,
    shadow: Option<Shadow>,
}

/// A part of a strip along the innermost axis.
enum Part {
    /// Lanes whose element does not exist.
    Outside { lo: usize, hi: usize },
    /// `count` lanes from `lane` on, at addresses `at`, `at + stride`, ..
    Inside { lane: usize, count: usize, at: i64, stride: i64 },
}

/// Lanes in question, their addresses, and which of them exist.
struct Resolved {
    address: Vec<i64>,
    valid: Mask,
}

impl<'p> Worker<'p> {
    /// A worker; with `shadow` it sanitizes.
    pub fn new(shared: &'p Shared<'p>, shadow: Option<Shadow>) -> Worker<'p> {
        let p = shared.program;
        let tiles = p
            .tiles
            .iter()
            .map(|t| match (t.len, t.bytes, class_of(t.dtype)) {
                (0, ..) => Tile::None,
                (n, true, _) => Tile::Bytes(vec![0; t.dtype.bytes(n)]),
                (n, false, Class::F) => Tile::F(vec![0.0; n]),
                (n, false, Class::I) => Tile::I(vec![0; n]),
                (n, false, Class::L) => Tile::L(vec![0; n]),
            })
            .collect();
        Worker {
            shared,
            env: vec![0; p.env],
            tiles,
            frame: Lanes::block(p.block_regs),
            body: Lanes::body(p.body_regs),
            temps: vec![],
            uniforms: vec![],
            bytes: vec![],
            bad_division: Cell::new(false),
            active: Mask::first(1),
            exits: vec![],
            stopped: false,
            merged: false,
            shadow,
        }
    }

    /// Ends the worker and gives back the shadow state.
    pub fn into_shadow(self) -> Option<Shadow> {
        self.shadow
    }

    /// Runs one block.
    pub fn block(&mut self, linear: usize) {
        let p = self.shared.program;
        let mut rest = linear as i64;
        for (axis, &at) in p.block_ids.iter().enumerate().rev() {
            let extent = p.grid[axis].max(1);
            self.env[at] = rest % extent;
            rest /= extent;
        }
        let mut frame = std::mem::take(&mut self.frame);
        for &(reg, dtype, param) in &p.scalars {
            lanes::fill(&mut frame.regs, 1, reg, dtype, self.shared.scalars[param]);
        }
        self.exits.clear();
        self.exec(&mut frame, &p.code, Mask::first(1));
        self.frame = frame;
    }

    fn fault(&mut self, node: &Node, code: &'static str, message: String, help: &str) {
        let d = Diagnostic::error(self.shared.kernel, node.span, code, message).help(help);
        if let Some(s) = &mut self.shadow {
            if s.first(code, node.op, node.op) {
                s.findings.push(d);
            }
            return;
        }
        self.stopped = true;
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Ok(mut all) = self.shared.faults.lock()
            && !all.contains(&d)
        {
            all.push(d);
        }
    }

    // --- indices ---

    fn scalar(&self, fr: &Lanes, ix: &Ix) -> i64 {
        ix.uniform.iter().fold(ix.c, |s, (k, a)| s.wrapping_add(k.wrapping_mul(self.scalar_atom(fr, a))))
    }

    fn scalar_atom(&self, fr: &Lanes, a: &Atom) -> i64 {
        let pair = |p: &(Ix, Ix)| (self.scalar(fr, &p.0), self.scalar(fr, &p.1));
        match a {
            Atom::Env(at) => self.env[*at],
            // Element indices and lane registers are never part of a uniform form.
            Atom::Elem(_) | Atom::Lane(_) => 0,
            Atom::Data(reg, dtype) => data_lane(&fr.regs, *reg, *dtype, 0),
            Atom::Mul(p) => {
                let (a, b) = pair(p);
                a.wrapping_mul(b)
            }
            Atom::Div(p) => {
                let (a, b) = pair(p);
                self.divide(a, b, i64::div_euclid)
            }
            Atom::Mod(p) => {
                let (a, b) = pair(p);
                self.divide(a, b, i64::rem_euclid)
            }
            Atom::Min(p) => {
                let (a, b) = pair(p);
                a.min(b)
            }
            Atom::Max(p) => {
                let (a, b) = pair(p);
                a.max(b)
            }
        }
    }

    fn divide(&self, a: i64, b: i64, f: fn(i64, i64) -> i64) -> i64 {
        if b > 0 {
            f(a, b)
        } else {
            self.bad_division.set(true);
            0
        }
    }

    fn temp(&mut self) -> Vec<i64> {
        self.temps.pop().unwrap_or_else(|| vec![0; WIDTH])
    }

    /// Values of an index on all lanes.
    fn lanes_of(&mut self, fr: &Lanes, ix: &Ix, out: &mut [i64]) {
        let base = self.scalar(fr, ix);
        let n = fr.n;
        if ix.elem.is_empty() {
            out[..n].fill(base);
        } else {
            let slope = if fr.rank == 0 { 0 } else { ix.coef(fr.rank - 1) };
            for s in &fr.segs {
                let first = ix.elem.iter().zip(&s.x).fold(base, |v, (k, x)| v.wrapping_add(k.wrapping_mul(*x)));
                let mut v = first;
                for o in &mut out[s.lane..s.lane + s.len] {
                    *o = v;
                    v = v.wrapping_add(slope);
                }
            }
        }
        for (k, a) in &ix.lanes {
            let mut t = self.temp();
            self.lanes_of_atom(fr, a, &mut t);
            for (o, v) in out[..n].iter_mut().zip(&t) {
                *o = o.wrapping_add(k.wrapping_mul(*v));
            }
            self.temps.push(t);
        }
    }

    fn lanes_of_atom(&mut self, fr: &Lanes, a: &Atom, out: &mut [i64]) {
        let n = fr.n;
        let p = match a {
            Atom::Env(_) | Atom::Elem(_) => {
                let v = self.scalar_atom(fr, a);
                out[..n].fill(v);
                return;
            }
            Atom::Lane(slot) => {
                out[..n].copy_from_slice(&fr.regs.l[*slot][..n]);
                return;
            }
            Atom::Data(reg, dtype) => {
                match reg.class {
                    Class::I if *dtype == DType::U32 => {
                        out.iter_mut().zip(&fr.regs.i[reg.slot][..n]).for_each(|(o, v)| *o = *v as u32 as i64);
                    }
                    Class::I => out.iter_mut().zip(&fr.regs.i[reg.slot][..n]).for_each(|(o, v)| *o = *v as i64),
                    Class::L => out[..n].copy_from_slice(&fr.regs.l[reg.slot][..n]),
                    Class::F => out[..n].fill(0),
                }
                return;
            }
            Atom::Mul(p) | Atom::Div(p) | Atom::Mod(p) | Atom::Min(p) | Atom::Max(p) => p,
        };
        self.lanes_of(fr, &p.0, out);
        // Division by the same power of two on all lanes is the common case.
        let fixed = p.1.constant();
        match (a, fixed) {
            (Atom::Div(_), Some(d)) if d > 0 && d & (d - 1) == 0 => {
                let shift = d.trailing_zeros();
                out[..n].iter_mut().for_each(|v| *v >>= shift);
                return;
            }
            (Atom::Mod(_), Some(d)) if d > 0 && d & (d - 1) == 0 => {
                out[..n].iter_mut().for_each(|v| *v &= d - 1);
                return;
            }
            (Atom::Div(_), Some(d)) if d > 0 && d <= u32::MAX as i64 => {
                for v in &mut out[..n] {
                    *v = if *v >= 0 && *v <= u32::MAX as i64 { (*v as u32 / d as u32) as i64 } else { v.div_euclid(d) };
                }
                return;
            }
            (Atom::Mod(_), Some(d)) if d > 0 && d <= u32::MAX as i64 => {
                for v in &mut out[..n] {
                    *v = if *v >= 0 && *v <= u32::MAX as i64 { (*v as u32 % d as u32) as i64 } else { v.rem_euclid(d) };
                }
                return;
            }
            _ => {}
        }
        let mut t = self.temp();
        self.lanes_of(fr, &p.1, &mut t);
        let active = self.active;
        for (lane, (o, &b)) in out[..n].iter_mut().zip(&t).enumerate() {
            *o = match a {
                Atom::Mul(_) => o.wrapping_mul(b),
                Atom::Min(_) => (*o).min(b),
                Atom::Max(_) => (*o).max(b),
                Atom::Div(_) | Atom::Mod(_) if b <= 0 => {
                    // Lanes that are switched off may hold anything.
                    if active.has(lane) {
                        self.bad_division.set(true);
                    }
                    0
                }
                Atom::Div(_) => o.div_euclid(b),
                Atom::Mod(_) => o.rem_euclid(b),
                Atom::Env(_) | Atom::Elem(_) | Atom::Lane(_) | Atom::Data(..) => 0,
            };
        }
        self.temps.push(t);
    }

    // --- accesses ---

    fn holds(&self, access: &Access, first: i64, last: i64) -> bool {
        match access.place {
            Place::Param(p) => self.shared.globals[p].is_some_and(|g| g.holds(access.dtype, first, last)),
            Place::Tile(t) => memory::tile_holds(&self.tiles[t], access.dtype, first, last),
        }
    }

    fn name(&self, place: Place) -> &str {
        match place {
            Place::Param(p) => &self.shared.kernel.params[p].name,
            Place::Tile(t) => &self.shared.kernel.buffers[t].name,
        }
    }

    fn leaves_allocation(&mut self, node: &Node, access: &Access, at: i64) {
        let name = self.name(access.place).to_string();
        self.fault(
            node,
            "S0108",
            format!("a view of `{name}` reaches element {at}, which is outside its allocation"),
            "the extents, strides or offset of the view do not fit what it looks at; check `view_as`, strides and page tables",
        );
    }

    /// Prepares the affine form of an access: uniform parts of the address and of each check.
    fn uniform_parts(&mut self, fr: &Lanes, access: &Access) -> (i64, Vec<(i64, i64)>) {
        let mut u = std::mem::take(&mut self.uniforms);
        u.clear();
        u.extend(access.checks.iter().map(|c| (self.scalar(fr, &c.index), self.scalar(fr, &c.extent))));
        (self.scalar(fr, &access.address), u)
    }

    /// Calls `f` with each part of the strip, those that exist and those that do not.
    fn affine_parts(&mut self, fr: &Lanes, node: &Node, access: &Access, mut f: impl FnMut(&mut Self, Part)) {
        let (base, checks) = self.uniform_parts(fr, access);
        let inner = fr.rank.wrapping_sub(1);
        for s in &fr.segs {
            let (mut lo, mut hi) = (0i64, s.len as i64);
            for (check, &(index, extent)) in access.checks.iter().zip(&checks) {
                if self.merged {
                    break;
                }
                let i0 = along(index, &check.index.elem, &s.x);
                let k = check.index.coef(inner);
                if k == 0 {
                    if i0 < 0 || i0 >= extent {
                        hi = lo;
                        break;
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
            let (lo, hi) = (lo.clamp(0, s.len as i64) as usize, hi.clamp(0, s.len as i64) as usize);
            if lo >= hi {
                f(self, Part::Outside { lo: s.lane, hi: s.lane + s.len });
                continue;
            }
            let stride = access.address.coef(inner);
            let at = along(base, &access.address.elem, &s.x).wrapping_add(stride.wrapping_mul(lo as i64));
            let last = at.wrapping_add(stride.wrapping_mul((hi - lo) as i64 - 1));
            if !self.holds(access, at.min(last), at.max(last)) {
                self.leaves_allocation(node, access, if at < 0 || last < 0 { at.min(last) } else { at.max(last) });
                f(self, Part::Outside { lo: s.lane, hi: s.lane + s.len });
                continue;
            }
            if hi - lo < s.len {
                f(self, Part::Outside { lo: s.lane, hi: s.lane + lo });
                f(self, Part::Outside { lo: s.lane + hi, hi: s.lane + s.len });
            }
            f(self, Part::Inside { lane: s.lane + lo, count: hi - lo, at, stride });
        }
        self.uniforms = checks;
    }

    /// Addresses lane by lane, with everything the sanitizer checks about them.
    fn resolve(&mut self, fr: &Lanes, node: &Node, access: &Access, mask: Mask) -> Resolved {
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
        for lane in 0..n {
            if valid.has(lane) && !self.holds(access, address[lane], address[lane]) {
                self.leaves_allocation(node, access, address[lane]);
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

    fn done(&mut self, r: Resolved) {
        self.temps.push(r.address);
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one access")]
    fn check_indices(
        &mut self,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        valid: Mask,
        indices: &[Vec<i64>],
        address: &[i64],
        outside: Option<(usize, usize)>,
    ) {
        let at = |lane: usize| {
            let rank = access.checks.len();
            let all: Vec<String> = indices.iter().take(rank).map(|v| v[lane].to_string()).collect();
            format!("[{}]", all.join(", "))
        };
        if let Some((lane, axis)) = outside {
            let (i, e) = (indices[axis][lane], self.scalar(fr, &access.checks[axis].extent));
            let place = at(lane);
            let name = self.name(access.place).to_string();
            let d = Diagnostic::error(
                self.shared.kernel,
                node.span,
                "S0101",
                format!("index outside `{name}`: {name}{place}, but axis {axis} has {e} elements"),
            )
            .label(format!("index {i} on axis {axis}{}", where_text(self.iteration(fr, lane))))
            .note(self.block_text(), None)
            .help("use `get_or` for reads and `put` for writes that may fall outside, or bound the loop");
            self.find("S0101", node, node, d);
        }
        if !self.shared.program.wide {
            let bytes = access.dtype.bits().div_ceil(8) as i64;
            for lane in 0..fr.n {
                if valid.has(lane) && address[lane].saturating_mul(bytes) > i32::MAX as i64 {
                    let name = self.name(access.place).to_string();
                    let d = Diagnostic::error(
                        self.shared.kernel,
                        node.span,
                        "S0106",
                        format!("index overflow: {name}{} lies past 2^31 bytes, but offsets have 32 bits", at(lane)),
                    )
                    .help("build the kernel with wide indices");
                    self.find("S0106", node, node, d);
                    break;
                }
            }
        }
    }

    fn iteration(&self, fr: &Lanes, lane: usize) -> Option<Vec<i64>> {
        fr.first?;
        let s = fr.segs.iter().rev().find(|s| s.lane <= lane)?;
        let mut x: Vec<i64> = s.x[..fr.rank].to_vec();
        if let Some(last) = x.last_mut() {
            *last += (lane - s.lane) as i64;
        }
        Some(x)
    }

    fn block_text(&self) -> String {
        let p = self.shared.program;
        let ids: Vec<String> = p.block_ids.iter().map(|&at| self.env[at].to_string()).collect();
        format!("in block ({})", ids.join(", "))
    }

    fn find(&mut self, code: &'static str, a: &Node, b: &Node, d: Diagnostic) {
        if let Some(s) = &mut self.shadow
            && s.first(code, a.op, b.op)
        {
            s.findings.push(d);
        }
    }

    /// Records touches of elements and reports what they reveal.
    fn touch(&mut self, fr: &Lanes, node: &Node, access: &Access, r: &Resolved, mask: Mask, kind: Kind) {
        let Some(mut shadow) = self.shadow.take() else { return };
        let base = match access.place {
            Place::Param(p) => self.param_bits(p),
            Place::Tile(t) => self.shared.program.tiles[t].dtype.bits(),
        };
        let bits = access.dtype.bits();
        for lane in 0..fr.n {
            if !(mask.has(lane) && r.valid.has(lane)) {
                continue;
            }
            let bit = r.address[lane] as usize * bits;
            let iteration = fr.first.map(|f| (f + lane) as u32);
            for cell in bit / base..=(bit + bits - 1) / base {
                let Some(hit) = shadow.touch(access.place, cell, kind, iteration, node.op) else { continue };
                self.report(&mut shadow, fr, node, access, lane, cell, kind, hit);
                break;
            }
        }
        self.shadow = Some(shadow);
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one finding")]
    fn report(
        &self,
        shadow: &mut Shadow,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        lane: usize,
        cell: usize,
        kind: Kind,
        hit: Hit,
    ) {
        let kernel = self.shared.kernel;
        let name = self.name(access.place);
        let whose = where_text(self.iteration(fr, lane));
        match hit {
            Hit::Uninitialised => {
                if shadow.first("S0102", node.op, node.op) {
                    let made = match access.place {
                        Place::Param(p) => kernel.params[p].span,
                        Place::Tile(t) => kernel.buffers[t].span,
                    };
                    let d = Diagnostic::error(
                        kernel,
                        node.span,
                        "S0102",
                        format!("`{name}` is read before it is written: element {cell}"),
                    )
                    .label(format!("reads element {cell}{whose}"))
                    .note(format!("`{name}` is declared"), Some(kernel.span_of(made).clone()))
                    .note(self.block_text(), None)
                    .help("fill the tile first, or read only what was written; an output holds nothing before the kernel writes it");
                    shadow.findings.push(d);
                }
            }
            Hit::Conflict { op, iteration, kind: other } => {
                if shadow.first("S0103", node.op, op) {
                    let verb = |k: Kind| match k {
                        Kind::Read => "reads",
                        Kind::Write => "writes",
                        Kind::Atomic => "updates",
                    };
                    let there = kernel.span_of(kernel.op(op).span).clone();
                    let me = fr.first.map_or(0, |f| f + lane);
                    let d = Diagnostic::error(
                        kernel,
                        node.span,
                        "S0103",
                        format!("two iterations of one body touch element {cell} of `{name}`"),
                    )
                    .label(format!("iteration {me} {} it{whose}", verb(kind)))
                    .note(format!("iteration {iteration} {} it", verb(other)), Some(there))
                    .note(self.block_text(), None)
                    .help("iterations of one body are unordered: give each its own element, use an atomic, or split the body in two");
                    shadow.findings.push(d);
                }
            }
        }
    }

    fn param_bits(&self, p: usize) -> usize {
        match &self.shared.kernel.params[p].kind {
            crate::ir::ParamKind::Tensor { dtype, .. } => dtype.bits(),
            crate::ir::ParamKind::Scalar { .. } | crate::ir::ParamKind::Absent => 8,
        }
    }

    fn load<T: Lane>(
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
        if access.affine && self.shadow.is_none() {
            let others = other.map(|r| &T::regs(&fr.regs)[r.slot]);
            let mut bytes = std::mem::take(&mut self.bytes);
            self.affine_parts(fr, node, access, |w, part| match part {
                Part::Outside { lo, hi } => match others {
                    Some(o) => out[lo..hi].copy_from_slice(&o[lo..hi]),
                    None => out[lo..hi].fill(T::default()),
                },
                Part::Inside { lane, count, at, stride } => {
                    let side = w.side(access.place);
                    memory::read(&side, access.dtype, at, stride, &mut out[lane..lane + count], &mut bytes);
                }
            });
            self.bytes = bytes;
        } else {
            let r = self.resolve(fr, node, access, mask);
            self.touch(fr, node, access, &r, mask, Kind::Read);
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

    fn side(&self, place: Place) -> Side<'_> {
        match place {
            Place::Param(p) => match self.shared.globals[p] {
                Some(g) => Side::Global(g),
                None => Side::Tile(&Tile::None),
            },
            Place::Tile(t) => Side::Tile(&self.tiles[t]),
        }
    }

    fn write<T: Lane>(&mut self, access: &Access, at: i64, stride: i64, x: &[T]) {
        match access.place {
            Place::Param(p) => {
                if let Some(g) = self.shared.globals[p] {
                    memory::write_global(&g, access.dtype, at, stride, x, &mut self.bytes);
                }
            }
            Place::Tile(t) => memory::write_tile(&mut self.tiles[t], access.dtype, at, stride, x),
        }
    }

    fn store<T: Lane>(&mut self, fr: &Lanes, node: &Node, access: &Access, src: Reg, mask: Mask) {
        let x = &T::regs(&fr.regs)[src.slot];
        let backwards = !matches!(self.shared.order, super::BlockOrder::Forward);
        if access.affine && self.shadow.is_none() {
            let full = mask == Mask::first(fr.n);
            self.affine_parts(fr, node, access, |w, part| {
                let Part::Inside { lane, count, at, stride } = part else { return };
                let mut part = |lo: usize, hi: usize| {
                    let first = at + stride * (lo - lane) as i64;
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
        for k in 0..fr.n {
            let lane = if backwards { fr.n - 1 - k } else { k };
            if mask.has(lane) && r.valid.has(lane) {
                self.write(access, r.address[lane], 0, &x[lane..lane + 1]);
            }
        }
        self.done(r);
    }

    fn atomic(
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
        let n = fr.n;
        let backwards = !matches!(self.shared.order, super::BlockOrder::Forward);
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

    // --- code ---

    /// Runs code for the lanes of `mask`; returns those that reached its end.
    fn exec(&mut self, fr: &mut Lanes, code: &[Node], mut mask: Mask) -> Mask {
        if mask.none() {
            return mask;
        }
        self.active = mask;
        for node in code {
            // Masks are looked at only where they may have changed: loading one just after it was stored is slow.
            if let Some(left) = self.step(fr, node, &mask) {
                mask = left;
                self.active = mask;
                if mask.none() {
                    return mask;
                }
            }
            if self.bad_division.replace(false) {
                self.fault(
                    node,
                    "S0107",
                    "an index is divided by a number that is not positive".into(),
                    "index divisors are dimensions and constants; one of them is zero here",
                );
            }
            if self.stopped {
                return Mask::default();
            }
        }
        mask
    }

    /// Runs one instruction; the lanes left after control flow, `None` if all are.
    fn step(&mut self, fr: &mut Lanes, node: &Node, mask: &Mask) -> Option<Mask> {
        let n = fr.n;
        match &node.instr {
            Instr::Const { dst, dtype, bits } => lanes::fill(&mut fr.regs, n, *dst, *dtype, *bits),
            Instr::Index { dst, dtype, ix } => self.index_value(fr, *dst, *dtype, ix),
            Instr::Unary { op, dtype, dst, x } => {
                lanes::unary(&mut fr.regs, n, *op, *dtype, *dst, *x);
                self.numeric(fr, node, mask, *dst, &[*x]);
            }
            Instr::Binary { op, dtype, dst, a, b } => {
                lanes::binary(&mut fr.regs, n, *op, *dtype, *dst, *a, *b);
                self.numeric(fr, node, mask, *dst, &[*a, *b]);
                if self.shadow.is_some() && matches!(op, BinaryOp::Div | BinaryOp::Rem) {
                    self.division(fr, node, mask, *b);
                }
            }
            Instr::Fma { dst, a, b, c } => {
                lanes::fma(&mut fr.regs, n, *dst, *a, *b, *c);
                self.numeric(fr, node, mask, *dst, &[*a, *b, *c]);
            }
            Instr::Compare { op, dtype, dst, a, b } => lanes::compare(&mut fr.regs, n, *op, *dtype, *dst, *a, *b),
            Instr::CompareIndex { op, dst, a, b } => self.compare_index(fr, *op, *dst, a, b),
            Instr::Select { dst, cond, a, b } => lanes::select(&mut fr.regs, n, *dst, *cond, *a, *b),
            Instr::Cast { from, to, dst, x } => {
                lanes::cast(&mut fr.regs, n, *from, *to, *dst, *x);
                self.numeric(fr, node, mask, *dst, &[*x]);
                self.saturation(fr, node, mask, *to, *x);
            }
            Instr::Bits { from, to, dst, x } => lanes::bits(&mut fr.regs, n, *from, *to, *dst, *x),
            Instr::Clamp { target, dtype, x, lo, hi } => {
                let (mut l, mut h, mut v) = (self.temp(), self.temp(), self.temp());
                self.lanes_of(fr, lo, &mut l);
                self.lanes_of(fr, hi, &mut h);
                for lane in 0..n {
                    v[lane] = data_lane(&fr.regs, *x, *dtype, lane).max(l[lane]).min(h[lane]);
                }
                self.set_index(fr, *target, &v, *mask);
                self.temps.extend([l, h, v]);
            }
            Instr::Move { dst, src } => {
                match dst.class {
                    Class::F => move_lanes::<f32>(fr, *dst, *src, *mask),
                    Class::I => move_lanes::<i32>(fr, *dst, *src, *mask),
                    Class::L => move_lanes::<i64>(fr, *dst, *src, *mask),
                };
            }
            Instr::MoveIndex { target, ix } => {
                let mut v = self.temp();
                self.lanes_of(fr, ix, &mut v);
                self.set_index(fr, *target, &v, *mask);
                self.temps.push(v);
            }
            Instr::Load { dst, access, other } => match dst.class {
                Class::F => self.load::<f32>(fr, node, access, *dst, *other, *mask),
                Class::I => self.load::<i32>(fr, node, access, *dst, *other, *mask),
                Class::L => self.load::<i64>(fr, node, access, *dst, *other, *mask),
            },
            Instr::Store { access, src } => match src.class {
                Class::F => self.store::<f32>(fr, node, access, *src, *mask),
                Class::I => self.store::<i32>(fr, node, access, *src, *mask),
                Class::L => self.store::<i64>(fr, node, access, *src, *mask),
            },
            Instr::Atomic { op, access, dst, src } => self.atomic(fr, node, *op, access, *dst, *src, *mask),
            Instr::Inside { access, code } => {
                let r = self.resolve(fr, node, access, *mask);
                let inside = r.valid;
                self.done(r);
                self.exec(fr, code, inside);
                return Some(*mask);
            }
            Instr::If { cond, then, els } => {
                let c = Mask::of(&fr.regs.i[cond.slot][..n]);
                let (yes, no) = (mask.and(c), mask.without(c));
                let a = if yes.none() || then.is_empty() { yes } else { self.exec(fr, then, yes) };
                let b = if no.none() || els.is_empty() { no } else { self.exec(fr, els, no) };
                return Some(a.or(b));
            }
            Instr::For { target, lo, hi, code } => return Some(self.for_loop(fr, *target, lo, hi, code, *mask)),
            Instr::Loop { code } => {
                let mut live = *mask;
                while !live.none() && !self.stopped {
                    self.exits.push(Default::default());
                    let end = self.exec(fr, code, live);
                    let (_, again) = self.exits.pop().unwrap_or_default();
                    // Lanes that broke out are in neither set.
                    live = end.or(again);
                }
                return Some(*mask);
            }
            Instr::Break => {
                if let Some(e) = self.exits.last_mut() {
                    e.0 = e.0.or(*mask);
                }
                return Some(Mask::default());
            }
            Instr::Continue => {
                if let Some(e) = self.exits.last_mut() {
                    e.1 = e.1.or(*mask);
                }
                return Some(Mask::default());
            }
            Instr::Alloc { tile } => {
                self.tiles[*tile].poison(self.shared.program.tiles[*tile].dtype);
                if let Some(s) = &mut self.shadow {
                    s.alloc(*tile);
                }
            }
            Instr::Body(body) => {
                self.run_body(fr, body);
                return Some(*mask);
            }
            Instr::Reduce { info, src, shape, strides, axis, dst } => match class_of(info.dtype) {
                Class::F => self.reduce::<f32>(fr, node, info, src, shape, strides, *axis, *dst),
                Class::I => self.reduce::<i32>(fr, node, info, src, shape, strides, *axis, *dst),
                Class::L => self.reduce::<i64>(fr, node, info, src, shape, strides, *axis, *dst),
            },
            Instr::Scan { info, kind, src, shape, strides, axis, dst, total } => match class_of(info.dtype) {
                Class::F => self.scan::<f32>(fr, node, info, *kind, src, shape, strides, *axis, *dst, *total),
                Class::I => self.scan::<i32>(fr, node, info, *kind, src, shape, strides, *axis, *dst, *total),
                Class::L => self.scan::<i64>(fr, node, info, *kind, src, shape, strides, *axis, *dst, *total),
            },
            Instr::Nothing => {}
        }
        None
    }

    fn for_loop(&mut self, fr: &mut Lanes, target: IxTarget, lo: &Ix, hi: &Ix, code: &[Node], mask: Mask) -> Mask {
        let n = fr.n;
        let (mut l, mut h) = (self.temp(), self.temp());
        self.lanes_of(fr, lo, &mut l);
        self.lanes_of(fr, hi, &mut h);
        let mut live = mask;
        let mut step = 0i64;
        while !self.stopped {
            if fr.first.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                self.stopped = true;
                break;
            }
            for lane in 0..n {
                if live.has(lane) && l[lane] + step >= h[lane] {
                    live.set(lane, false);
                }
            }
            if live.none() {
                break;
            }
            match target {
                // The start is the same for all lanes.
                IxTarget::Env(at) => self.env[at] = l[0] + step,
                IxTarget::Lane(slot) => {
                    for (o, s) in fr.regs.l[slot][..n].iter_mut().zip(&l) {
                        *o = s + step;
                    }
                }
            }
            self.exits.push(Default::default());
            self.exec(fr, code, live);
            let (broke, _) = self.exits.pop().unwrap_or_default();
            live = live.without(broke);
            step += 1;
        }
        self.temps.extend([l, h]);
        mask
    }

    fn set_index(&mut self, fr: &mut Lanes, target: IxTarget, v: &[i64], mask: Mask) {
        match target {
            IxTarget::Env(at) => self.env[at] = v[0],
            IxTarget::Lane(slot) => {
                let out = &mut fr.regs.l[slot];
                mask.runs(0, fr.n, |a, b| out[a..b].copy_from_slice(&v[a..b]));
            }
        }
    }

    fn index_value(&mut self, fr: &mut Lanes, dst: Reg, dtype: DType, ix: &Ix) {
        let n = fr.n;
        if ix.lanes.is_empty() && dst.class == Class::I {
            // Affine: count in 32 bits, which wraps as the conversion does.
            let base = self.scalar(fr, ix);
            let slope = if fr.rank == 0 { 0 } else { ix.coef(fr.rank - 1) } as i32;
            for s in &fr.segs {
                let first = along(base, &ix.elem, &s.x) as i32;
                for (k, o) in fr.regs.i[dst.slot][s.lane..s.lane + s.len].iter_mut().enumerate() {
                    *o = first.wrapping_add(slope.wrapping_mul(k as i32));
                }
            }
            return;
        }
        let mut v = self.temp();
        self.lanes_of(fr, ix, &mut v);
        match dst.class {
            Class::I => {
                let o = &mut fr.regs.i[dst.slot][..n];
                o.iter_mut().zip(&v).for_each(|(o, v)| *o = super::convert::wrap(dtype, *v as i32));
            }
            Class::L => fr.regs.l[dst.slot][..n].copy_from_slice(&v[..n]),
            Class::F => {}
        }
        self.temps.push(v);
    }

    fn compare_index(&mut self, fr: &mut Lanes, op: CmpOp, dst: Reg, a: &Ix, b: &Ix) {
        let (mut x, mut y) = (self.temp(), self.temp());
        self.lanes_of(fr, a, &mut x);
        self.lanes_of(fr, b, &mut y);
        lanes::compare_indices(&mut fr.regs.i[dst.slot][..fr.n], op, &x[..fr.n], &y[..fr.n]);
        self.temps.extend([x, y]);
    }

    // --- bodies ---

    fn run_body(&mut self, block: &mut Lanes, body: &Body) {
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
            Collect::First { cond, result } => {
                let mut found = total;
                let forward = matches!(self.shared.order, super::BlockOrder::Forward);
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
    fn merge(&mut self, block: &Lanes, body: &Body, extents: &mut [usize]) {
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
    fn collect<T: Combine>(
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
    fn strips(
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
        let order = Permutation::new(self.shared.order, count);
        for k in 0..count {
            let strip = order.at(k);
            let (row, start, take_rows) = if cuts > 1 {
                (strip / cuts, strip % cuts * cut, 1)
            } else {
                (strip * rows_each, 0, rows_each.min(rows - strip * rows_each))
            };
            let len = if cuts > 1 { cut.min(inner - start) } else { inner };
            fr.segs.clear();
            let mut x = [0i64; MAX_RANK];
            if rank > 0 {
                let mut rest = row;
                for axis in (0..rank - 1).rev() {
                    x[axis] = (rest % extents[axis]) as i64;
                    rest /= extents[axis];
                }
                x[rank - 1] = start as i64 + origin;
            }
            for r in 0..take_rows {
                fr.segs.push(Seg { lane: r * len, len, x });
                for axis in (0..rank.saturating_sub(1)).rev() {
                    x[axis] += 1;
                    if (x[axis] as usize) < extents[axis] {
                        break;
                    }
                    x[axis] = 0;
                }
            }
            fr.n = take_rows * len;
            let first = row * inner + start;
            fr.first = Some(first);
            self.exec(fr, code, Mask::first(fr.n));
            if self.stopped || !after(fr, first, fr.n) {
                return;
            }
        }
    }

    // --- whole tiles ---

    /// A tile view in row-major order, without copying where it lies so already.
    fn whole<T: Lane>(&mut self, fr: &Lanes, node: &Node, src: &Access, shape: &[usize], strides: &[i64]) -> Vec<T> {
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
        if super::compile::dense(shape, strides) {
            memory::read(&self.side(src.place), src.dtype, base, 1, &mut out, &mut bytes);
        } else {
            for (row, part) in out.chunks_mut(inner).enumerate() {
                let at = row_offset(row, shape, strides);
                memory::read(&self.side(src.place), src.dtype, base + at, step, part, &mut bytes);
            }
        }
        self.bytes = bytes;
        if self.shadow.is_some() {
            self.touch_whole(node, src, base, shape, strides);
        }
        out
    }

    fn touch_whole(&mut self, node: &Node, src: &Access, base: i64, shape: &[usize], strides: &[i64]) {
        let inner = shape.last().copied().unwrap_or(1);
        let step = strides.last().copied().unwrap_or(1);
        let n: usize = shape.iter().product();
        for i in 0..n {
            let at = base + row_offset(i / inner, shape, strides) + (i % inner) as i64 * step;
            let mut one = Lanes { n: 1, ..Lanes::default() };
            one.segs.push(Seg { lane: 0, len: 1, x: [0; MAX_RANK] });
            let mut valid = Mask::default();
            valid.set(0, true);
            let r = Resolved { address: vec![at], valid };
            self.touch(&one, node, src, &r, valid, Kind::Read);
        }
    }

    fn put_tile<T: Lane>(&mut self, node: &Node, dst: usize, x: &[T]) {
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
        memory::write_tile(&mut self.tiles[dst], info.dtype, 0, 1, x);
        if let Some(s) = &mut self.shadow {
            for i in 0..x.len() {
                s.touch(Place::Tile(dst), i, Kind::Write, None, node.op);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the op's operands")]
    fn reduce<T: Combine>(
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
        let mut out = vec![T::default(); if n == 0 { 0 } else { x.len() / n }];
        reduce::axis(info.op, info.dtype, info.order, &x, n, inner, &mut out);
        self.put_tile(node, dst, &out);
    }

    #[expect(clippy::too_many_arguments, reason = "the op's operands")]
    fn scan<T: Combine>(
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

    // --- numeric surprises ---

    fn numeric(&mut self, fr: &Lanes, node: &Node, mask: &Mask, dst: Reg, operands: &[Reg]) {
        let Some(mut shadow) = self.shadow.take() else { return };
        if dst.class == Class::F {
            for lane in 0..fr.n {
                let v = fr.regs.f[dst.slot][lane];
                if v.is_finite() || !mask.has(lane) {
                    continue;
                }
                let fresh = operands.iter().all(|o| o.class != Class::F || fr.regs.f[o.slot][lane].is_finite());
                if fresh && shadow.first("S0151", node.op, node.op) {
                    let what = if v.is_nan() { "NaN" } else { "infinity" };
                    let values: Vec<String> = operands
                        .iter()
                        .filter(|o| o.class == Class::F)
                        .map(|o| format!("{:e}", fr.regs.f[o.slot][lane]))
                        .collect();
                    let name = self.shared.kernel.op(node.op).op.name();
                    let d = Diagnostic::error(
                        self.shared.kernel,
                        node.span,
                        "S0151",
                        format!("{what} appears first at `{name}` of {}", values.join(" and ")),
                    )
                    .warning()
                    .label(format!("{what}{}", where_text(self.iteration(fr, lane))))
                    .note(self.block_text(), None)
                    .help("expected for masked scores; otherwise check ranges before this operation");
                    shadow.messages.push(d);
                    break;
                }
            }
        }
        self.shadow = Some(shadow);
    }

    fn saturation(&mut self, fr: &Lanes, node: &Node, mask: &Mask, to: DType, x: Reg) {
        let Some(shadow) = &mut self.shadow else { return };
        if !matches!(to, DType::E4m3 | DType::E5m2 | DType::E2m1) || x.class != Class::F {
            return;
        }
        let limit = to.max_finite() as f32;
        let over = (0..fr.n).filter(|&l| mask.has(l) && fr.regs.f[x.slot][l].abs() > limit).count();
        let all = (0..fr.n).filter(|&l| mask.has(l)).count();
        let count = shadow.saturated.entry(node.op).or_default();
        count.0 += over as u64;
        count.1 += all as u64;
    }

    fn division(&mut self, fr: &Lanes, node: &Node, mask: &Mask, b: Reg) {
        let zero = |lane: usize| match b.class {
            Class::F => false,
            Class::I => fr.regs.i[b.slot][lane] == 0,
            Class::L => fr.regs.l[b.slot][lane] == 0,
        };
        if let Some(lane) = (0..fr.n).find(|&l| mask.has(l) && zero(l)) {
            let d = Diagnostic::error(self.shared.kernel, node.span, "S0107", "an integer is divided by zero")
                .label(format!("the divisor is 0{}", where_text(self.iteration(fr, lane))))
                .note(self.block_text(), None)
                .help("the result is 0 on every target; test the divisor first if that is not meant");
            self.find("S0107", node, node, d);
        }
    }
}

fn along(base: i64, coefs: &[i64], x: &[i64; MAX_RANK]) -> i64 {
    coefs.iter().zip(x).fold(base, |v, (k, x)| v.wrapping_add(k.wrapping_mul(*x)))
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

fn data_lane(r: &Regs, reg: Reg, dtype: DType, lane: usize) -> i64 {
    match reg.class {
        Class::I => lanes::int_value(dtype, r.i[reg.slot][lane]),
        Class::L => r.l[reg.slot][lane],
        Class::F => 0,
    }
}

fn move_lanes<T: Lane>(fr: &mut Lanes, dst: Reg, src: Reg, mask: Mask) {
    if dst.slot == src.slot {
        return;
    }
    let n = fr.n;
    let regs = T::regs_mut(&mut fr.regs);
    let mut out = std::mem::take(&mut regs[dst.slot]);
    let x = &regs[src.slot];
    mask.runs(0, n, |a, b| out[a..b].copy_from_slice(&x[a..b]));
    regs[dst.slot] = out;
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

fn where_text(x: Option<Vec<i64>>) -> String {
    match x {
        None => String::new(),
        Some(x) => {
            let all: Vec<String> = x.iter().map(i64::to_string).collect();
            format!(" in iteration ({})", all.join(", "))
        }
    }
}
