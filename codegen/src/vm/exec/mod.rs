//! The machine: one worker runs blocks of a [`Program`].
//!
//! Block-level code runs in a frame of one lane; element bodies run in a frame of up to [`WIDTH`] lanes, strip by strip.
//! A strip is a run of consecutive iterations in row-major order, cut into segments of one row each, so an affine access
//! is a few bulk moves whose valid part is known in advance. Anything else goes lane by lane through `resolve`, and so
//! does everything under the sanitizer.

mod access;
mod body;
mod copy;
mod index;
mod mask;
mod matrix;
mod notice;
mod roles;
mod tile;

use index::{along, data_lane};
use mask::Mask;
use notice::where_text;
pub use roles::{Agent, class_swizzle};

use super::lanes;
use super::memory::{self, Class, Global, Lane, Regs, Side, Tile, class_of};
use super::program::*;
use super::reduce::{self, Combine};
use super::shadow::{Hit, Kind, Shadow};
use super::simd;
use crate::diag::Diagnostic;
use crate::ir::{AtomicOp, BinaryOp, CmpOp, DType, Kernel, ScanKind};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

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
    pub fn new(order: crate::vm::BlockOrder, count: usize) -> Permutation {
        let p = Permutation { count, multiplier: 1, offset: 0, backwards: false };
        match order {
            crate::vm::BlockOrder::Forward => p,
            crate::vm::BlockOrder::Reversed => Permutation { backwards: true, ..p },
            crate::vm::BlockOrder::Seeded(seed) => {
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
    pub order: crate::vm::BlockOrder,
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
    uniforms: Vec<Vec<(i64, i64)>>,
    bytes: Vec<u8>,
    bad_division: Cell<bool>,
    active: Mask,
    exits: Vec<(Mask, Mask)>,
    stopped: bool,
    /// The current body's rows run together, and its accesses are known to exist.
    merged: bool,
    shadow: Option<Shadow>,
    /// Factors of rows and columns for the next matrix product.
    factors: [Vec<f32>; 2],
    /// Scratch of matrix products: decoded operands, the chain of a scaled one, a panel.
    matrices: [Vec<f32>; 4],
    /// The counter of the body that runs, if it numbers iterations; its strips then run in order.
    claimed: i32,
    in_order: bool,
    /// Its place among roles, in a kernel that has some.
    agent: Option<Agent<'p>>,
    /// Products that go on, and the accumulators they have.
    held: Vec<roles::Held>,
    aside: Vec<(usize, Tile)>,
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
            factors: Default::default(),
            claimed: 0,
            in_order: false,
            matrices: Default::default(),
            agent: None,
            held: vec![],
            aside: vec![],
        }
    }

    /// Ends the worker and gives back the shadow state.
    pub fn into_shadow(self) -> Option<Shadow> {
        self.shadow
    }

    /// Takes the shadow state away, for another worker.
    pub fn take_shadow(&mut self) -> Option<Shadow> {
        self.shadow.take()
    }

    /// Gives the worker shadow state.
    pub fn give_shadow(&mut self, shadow: Option<Shadow>) {
        self.shadow = shadow;
    }

    /// Runs one block.
    pub fn block(&mut self, linear: usize) {
        self.part(linear, 0..self.shared.program.code.len());
    }

    /// Runs a part of one block; a worker that runs parts one by one belongs to that block until the last.
    pub fn part(&mut self, linear: usize, part: std::ops::Range<usize>) {
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
        self.exec(&mut frame, &p.code[part], Mask::first(1));
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
                simd::unary(&mut fr.regs, n, *op, *dtype, *dst, *x);
                self.numeric(fr, node, mask, *dst, &[*x]);
            }
            Instr::Binary { op, dtype, dst, a, b } => {
                simd::binary(&mut fr.regs, n, *op, *dtype, *dst, [*a, *b]);
                self.numeric(fr, node, mask, *dst, &[*a, *b]);
                if self.shadow.is_some() && matches!(op, BinaryOp::Div | BinaryOp::Rem) {
                    self.division(fr, node, mask, *b);
                }
            }
            Instr::Fma { dst, a, b, c } => {
                simd::fma_lanes(&mut fr.regs, n, *dst, [*a, *b, *c]);
                self.numeric(fr, node, mask, *dst, &[*a, *b, *c]);
            }
            Instr::Compare { op, dtype, dst, a, b } => simd::compare(&mut fr.regs, n, *op, *dtype, *dst, [*a, *b]),
            Instr::CompareIndex { op, dst, a, b } => self.compare_index(fr, *op, *dst, a, b),
            Instr::Select { dst, cond, a, b } => simd::select(&mut fr.regs, n, *dst, *cond, [*a, *b]),
            Instr::Cast { from, to, dst, x } => {
                simd::cast(&mut fr.regs, n, *from, *to, *dst, *x);
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
            Instr::Claim { dst, cond } => {
                for lane in 0..n {
                    let next = self.claimed;
                    let keeps = mask.has(lane) && fr.regs.i[cond.slot][lane] != 0;
                    fr.regs.i[dst.slot][lane] = next;
                    self.claimed = next.wrapping_add(i32::from(keeps));
                }
            }
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
            Instr::Gemm(g) => self.gemm(fr, node, g),
            Instr::Role(op) => self.role(fr, node, op),
            Instr::Check { cond, message } => {
                let holds = Mask::of(&fr.regs.i[cond.slot][..n]);
                if !mask.without(holds).none() {
                    let help = "the kernel states this with `check!(..)`; look at what it is given";
                    self.fault(node, "S0111", format!("a check does not hold: {message}"), help);
                }
            }
            // The runner stops here.
            Instr::GridBarrier | Instr::Nothing => {}
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
