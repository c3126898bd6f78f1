//! Resources and time of a kernel by calculation: what a tuner may drop without compiling, and what it tries first.
//!
//! Resources are those of a lowered kernel against the limits of its target. Time is a roofline: bytes that must move, bytes
//! that pass the second-level cache, matrix and scalar operations, each against what a chip of the target does, with the
//! unevenness of the last round of blocks and the loads in flight. It ranks configs of one kernel; it predicts nothing to
//! better than a factor, and where a measurement exists it is not asked.

use crate::emit::Source;
use crate::ir::effects::{Place, effects, uses};
use crate::ir::{
    Base, BlockId, BufferId, DType, IxExpr, IxId, Kernel, Op, OpId, ParamKind, SchedOp, Space, UnaryOp, ViewId,
};
use crate::target::{Caps, Target};
use std::collections::HashMap;

/// Registers of a thread for addresses, indices and what the compiler keeps at hand, on top of tiles.
const BASE_REGISTERS: usize = 24;
/// Estimates this far above the largest number are refused: tiles whose elements pass through a loop one by one never
/// exist as a whole, so the estimate may be too high, but not by that much.
const REGISTER_SLACK: f64 = 1.5;

/// What a block of a lowered kernel takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of shared memory of a block.
    pub shared_bytes: usize,
    /// Registers of a thread that tiles take at the fullest point, with what else a thread needs. An estimate.
    pub registers: usize,
    /// Blocks of a cluster.
    pub cluster_blocks: usize,
    /// Blocks that are resident on a multiprocessor; 0 if none fits.
    pub resident_blocks: usize,
}

impl Resources {
    /// Resources of a lowered kernel with its text.
    pub fn of(kernel: &Kernel, source: &Source, caps: &Caps) -> Resources {
        let registers = BASE_REGISTERS + Pressure::of(kernel);
        let threads = source.threads.max(1);
        // What does not fit is spilled, so a block never holds more than the largest number.
        let held = registers.min(caps.registers_per_thread).min(caps.registers / threads).max(1);
        let resident_blocks = if threads > caps.threads || source.shared_bytes > caps.shared_bytes {
            0
        } else {
            let by_shared = caps.shared_bytes_per_sm.checked_div(source.shared_bytes).unwrap_or(usize::MAX);
            (caps.resident_threads / threads).min(caps.registers / (held * threads)).min(by_shared).min(32)
        };
        Resources {
            threads,
            shared_bytes: source.shared_bytes,
            registers,
            cluster_blocks: source.cluster_blocks(),
            resident_blocks,
        }
    }

    /// Why this cannot run on a target, or only with most of its tiles in local memory; empty if nothing speaks against it.
    pub fn refusals(&self, caps: &Caps) -> Vec<String> {
        let mut out = vec![];
        if self.threads > caps.threads {
            out.push(format!("{} threads a block, at most {} exist", self.threads, caps.threads));
        }
        if self.shared_bytes > caps.shared_bytes {
            let (have, most) = (self.shared_bytes, caps.shared_bytes);
            out.push(format!("{have} bytes of shared memory a block, at most {most} exist"));
        }
        if self.cluster_blocks > caps.cluster_blocks {
            out.push(format!("{} blocks a cluster, at most {} exist", self.cluster_blocks, caps.cluster_blocks));
        }
        let most = caps.registers_per_thread.min(caps.registers / self.threads.max(1));
        if self.registers as f64 > most as f64 * REGISTER_SLACK {
            out.push(format!("about {} registers a thread, at most {most} exist", self.registers));
        }
        out
    }
}

/// Where register tiles are touched first and last, in program order.
#[derive(Default)]
struct Pressure {
    at: usize,
    life: HashMap<BufferId, (usize, usize)>,
    /// The largest number in a role's program; roles run side by side on threads of their own.
    roles: usize,
}

impl Pressure {
    /// Registers of a thread that tiles take at the fullest point.
    fn of(kernel: &Kernel) -> usize {
        let mut p = Pressure::default();
        p.block(kernel, kernel.body);
        p.peak(kernel).max(p.roles)
    }

    fn block(&mut self, k: &Kernel, block: BlockId) {
        for &id in &k.block(block).ops {
            self.op(k, id);
        }
    }

    fn op(&mut self, k: &Kernel, id: OpId) {
        self.at += 1;
        let op = &k.op(id).op;
        let used = uses(op);
        let of_view = |&v: &ViewId| match k.view(v).base {
            Base::Buffer(b) => Some(b),
            Base::Param(_) => None,
        };
        for b in used.buffers.iter().copied().chain(used.views.iter().filter_map(of_view)) {
            let at = self.at;
            self.life.entry(b).and_modify(|l| l.1 = at).or_insert((at, at));
        }
        if let Op::Sched(SchedOp::Roles { programs }) = op {
            for (_, body) in programs {
                let mut own = Pressure::default();
                own.block(k, *body);
                self.roles = self.roles.max(own.peak(k));
            }
            return;
        }
        let start = self.at;
        for body in used.blocks {
            self.block(k, body);
        }
        let again = matches!(op, Op::For { .. } | Op::Loop { .. } | Op::Sched(SchedOp::Tiles { .. }));
        if again {
            // What was there before the loop and is touched in it is needed again in the next iteration.
            for l in self.life.values_mut().filter(|l| l.0 <= start && l.1 > start) {
                l.1 = self.at;
            }
        }
    }

    fn peak(&self, k: &Kernel) -> usize {
        let tiles: Vec<(usize, usize, usize)> = self
            .life
            .iter()
            .filter_map(|(&b, &(first, last))| {
                let b = k.buffer(b);
                let d = b.distribution.as_ref().filter(|_| b.space == Space::Frag)?;
                Some((first, last, (d.registers(&b.extents) * b.dtype.bits()).div_ceil(32)))
            })
            .collect();
        let at = |t: usize| tiles.iter().filter(|(a, b, _)| (*a..=*b).contains(&t)).map(|x| x.2).sum::<usize>();
        tiles.iter().map(|&(first, ..)| at(first)).max().unwrap_or(0)
    }
}

/// What a chip does in a second, for estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Which chip these are the numbers of.
    pub name: &'static str,
    /// Multiprocessors.
    pub units: usize,
    /// Clock under load in Hz.
    pub clock: f64,
    /// Bytes a second from memory.
    pub memory: f64,
    /// Bytes a clock from the second-level cache.
    pub cache: f64,
    /// Dense operations a second on 16-bit floats in matrix units.
    pub matrix16: f64,
    /// The same on 8-bit floats.
    pub matrix8: f64,
    /// f32 lanes of a multiprocessor.
    pub lanes: f64,
}

impl Chip {
    /// The chip a target's estimates are for; `None` for the VM and for targets
    /// without threads.
    ///
    /// Sources: NVIDIA data sheets of A100 80GB SXM, H200 SXM and B200 (dense rates), and the A100 whitepaper for the width of
    /// the second-level cache, which is taken for all.
    pub const fn of(target: Target) -> Option<Chip> {
        match target {
            Target::Vm | Target::Ascend910b | Target::Ascend950 => None,
            Target::Sm80 => Some(Chip {
                name: "A100",
                units: 108,
                clock: 1.41e9,
                memory: 2.04e12,
                cache: 5120.0,
                matrix16: 312e12,
                matrix8: 312e12,
                lanes: 64.0,
            }),
            Target::Sm90a => Some(Chip {
                name: "H200",
                units: 132,
                clock: 1.75e9,
                memory: 4.8e12,
                cache: 5120.0,
                matrix16: 989e12,
                matrix8: 1979e12,
                lanes: 128.0,
            }),
            Target::Sm100a => Some(Chip {
                name: "B200",
                units: 148,
                clock: 1.8e9,
                memory: 8e12,
                cache: 5120.0,
                matrix16: 2250e12,
                matrix8: 4500e12,
                lanes: 128.0,
            }),
        }
    }
}

/// An estimate of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Microseconds.
    pub us: f64,
    /// Bytes that must move between memory and chip: every tensor once, or less if less is touched.
    pub memory_bytes: f64,
    /// Bytes all blocks together ask for.
    pub asked_bytes: f64,
    /// Operations of matrix units.
    pub matrix_flops: f64,
    /// Scalar operations.
    pub scalar_ops: f64,
    /// Blocks over all multiprocessors, before rounding.
    pub waves: f64,
    /// Threads of a multiprocessor in use, of those it holds.
    pub occupancy: f64,
    /// What takes longest: `memory`, `cache`, `matrix` or `scalar`.
    pub bound: &'static str,
}

/// Microseconds a launch takes if it does nothing.
const LAUNCH_US: f64 = 2.0;
/// Seconds from asking memory to having the answer.
const LATENCY: f64 = 8e-7;
/// Bytes a thread has in flight where copies do not run ahead through shared memory.
const THREAD_FLIGHT: f64 = 32.0;
/// Share of its peak a matrix unit reaches that warps feed from registers on chips whose unit wants warp groups.
const WARP_MATRIX: f64 = 0.6;

/// Estimates a launch of a lowered kernel. `syms` are its dimensions, as [`bind::sym_values`](crate::bind::sym_values) gives
/// them. `None` if nothing of it is resident or the grid is not known.
pub fn estimate(kernel: &Kernel, source: &Source, syms: &[i64], caps: &Caps, chip: &Chip) -> Option<Estimate> {
    let resources = Resources::of(kernel, source, caps);
    if resources.resident_blocks == 0 {
        return None;
    }
    let grid = crate::bind::grid(kernel, syms)?;
    let blocks: f64 = grid.iter().map(|&e| e as f64).product();
    let mut w = Work { k: kernel, syms, grid: &grid, bytes: 0.0, flops: [0.0; 2], scalar: 0.0, warp_matrix: false };
    w.block(kernel.body, 1.0);
    let tensors: f64 = kernel.params.iter().map(|p| w.param_bytes(&p.kind)).sum();
    let asked = w.bytes * blocks;
    let memory_bytes = asked.min(tensors);
    let units = chip.units as f64;
    // Rates count for all multiprocessors; the last round leaves some of them idle.
    let rounds = (blocks / units).ceil().max(1.0);
    let even = (blocks / (rounds * units)).max(1e-9);
    let at_once = (resources.resident_blocks as f64).min((blocks / units).max(1.0 / units));
    let threads = at_once * resources.threads as f64;
    let staged = at_once * resources.shared_bytes as f64 / 2.0;
    let in_flight = (threads * THREAD_FLIGHT).max(staged);
    let wanted = chip.memory * LATENCY / units;
    let memory = memory_bytes / (chip.memory * (in_flight / wanted).min(1.0)).max(1.0);
    let cache = asked / (chip.cache * chip.clock * even);
    let feed = if w.warp_matrix && chip.matrix16 > 500e12 { WARP_MATRIX } else { 1.0 };
    let matrix = blocks * (w.flops[0] / chip.matrix16 + w.flops[1] / chip.matrix8) / (even * feed);
    let scalar = blocks * w.scalar / (units * chip.lanes * chip.clock * even);
    let parts = [("memory", memory), ("cache", cache), ("matrix", matrix), ("scalar", scalar)];
    let (bound, longest) = parts.into_iter().fold(("memory", 0.0), |a, b| if b.1 > a.1 { b } else { a });
    // The others overlap with the longest, but never fully.
    let rest: f64 = parts.iter().map(|p| p.1).sum::<f64>() - longest;
    Some(Estimate {
        us: LAUNCH_US + (longest + 0.1 * rest) * 1e6,
        memory_bytes,
        asked_bytes: asked,
        matrix_flops: blocks * (w.flops[0] + w.flops[1]),
        scalar_ops: blocks * w.scalar,
        waves: blocks / (units * resources.resident_blocks as f64),
        occupancy: (resources.resident_blocks * resources.threads) as f64 / caps.resident_threads as f64,
        bound,
    })
}

/// Work of one block in the middle of the grid.
struct Work<'a> {
    k: &'a Kernel,
    syms: &'a [i64],
    grid: &'a [i64],
    bytes: f64,
    /// Matrix operations on 16-bit (and wider) and on narrower elements.
    flops: [f64; 2],
    scalar: f64,
    warp_matrix: bool,
}

impl Work<'_> {
    /// Mean value of an index: symbols as they are, variables in the middle of their range.
    fn mean(&self, id: IxId, depth: usize) -> f64 {
        if depth > 64 {
            return 0.0;
        }
        let go = |x| self.mean(x, depth + 1);
        match self.k.ix_expr(id) {
            IxExpr::Const(c) => c as f64,
            IxExpr::Sym(s) => self.syms.get(s.0 as usize).copied().unwrap_or(0) as f64,
            IxExpr::Var(v) => {
                if let Some(axis) = self.k.block_ids.iter().position(|&b| b == v) {
                    return (self.grid.get(axis).copied().unwrap_or(1) as f64 - 1.0).max(0.0) / 2.0;
                }
                let var = self.k.ix_var(v);
                match (var.lo, var.hi) {
                    (Some(lo), Some(hi)) => (go(lo) + go(hi)) / 2.0,
                    (Some(x), None) | (None, Some(x)) => go(x),
                    (None, None) => 0.0,
                }
            }
            IxExpr::Data(_) => 0.0,
            IxExpr::Add(a, b) => go(a) + go(b),
            IxExpr::Sub(a, b) => go(a) - go(b),
            IxExpr::Mul(a, b) => go(a) * go(b),
            IxExpr::Div(a, b) => (go(a) / go(b).max(1.0)).floor(),
            IxExpr::Mod(a, b) => go(a).rem_euclid(go(b).max(1.0)),
            IxExpr::Min(a, b) => go(a).min(go(b)),
            IxExpr::Max(a, b) => go(a).max(go(b)),
        }
    }

    fn param_bytes(&self, kind: &ParamKind) -> f64 {
        match kind {
            ParamKind::Tensor { dtype, extents, .. } => {
                extents.iter().map(|&e| self.mean(e, 0).max(0.0)).product::<f64>() * dtype.bits() as f64 / 8.0
            }
            ParamKind::Scalar { .. } | ParamKind::Absent => 0.0,
        }
    }

    fn block(&mut self, block: BlockId, times: f64) {
        for &id in &self.k.block(block).ops {
            self.op(id, times);
        }
    }

    fn op(&mut self, id: OpId, times: f64) {
        let k = self.k;
        for effect in effects(k, id) {
            if let Base::Param(_) = effect.base(k)
                && let Some(view) = effect.view()
            {
                let elements = match &effect.place {
                    Place::Element { .. } => 1.0,
                    Place::Region { extents, .. } => extents.iter().product::<usize>() as f64,
                    // A table that is looked up in: one entry at a time.
                    Place::View(_) | Place::Buffer(_) => 1.0,
                };
                self.bytes += times * elements * k.view(view).dtype.bits() as f64 / 8.0;
            }
        }
        let op = &k.op(id).op;
        let used = uses(op);
        if used.blocks.is_empty() && !used.defines.is_empty() {
            self.scalar += times * weight(op);
        }
        let times = times * self.iterations(op);
        if let Op::Gemm { a, b, .. } | Op::Sched(SchedOp::Wgmma { a, b, .. }) = op {
            self.warp_matrix |= matches!(op, Op::Gemm { .. });
            self.product(*a, *b, times);
        } else if let Op::If { then, els, .. } = op {
            // One of two: half of each; with a single arm it is the usual way.
            let both = [then, els].iter().all(|b| !k.block(**b).ops.is_empty());
            let times = if both { times / 2.0 } else { times };
            self.block(*then, times);
            self.block(*els, times);
            return;
        }
        for body in used.blocks {
            self.block(body, times);
        }
    }

    /// How often an op's bodies run for one run of the op.
    fn iterations(&self, op: &Op) -> f64 {
        if let Op::For { lo, hi, .. } | Op::Spread { lo, hi, .. } = op {
            return (self.mean(*hi, 0) - self.mean(*lo, 0)).max(0.0);
        }
        if let Op::Parallel { extents, .. } | Op::ReduceRegion { extents, .. } = op {
            return extents.iter().product::<usize>() as f64;
        }
        if let Op::FindFirst { extent, .. } = op { *extent as f64 } else { 1.0 }
    }

    fn product(&mut self, a: ViewId, b: ViewId, times: f64) {
        let extent = |v: ViewId, axis: usize| self.k.view(v).extents.get(axis).map_or(1.0, |&e| self.mean(e, 0));
        let flops = 2.0 * extent(a, 0) * extent(a, 1) * extent(b, 1) * times;
        let narrow =
            |v: ViewId| matches!(self.k.view(v).dtype, DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::I8 | DType::U8);
        let class = usize::from(narrow(a) && narrow(b));
        self.flops[class] += flops;
    }
}

/// Scalar instructions of an op that defines a value.
fn weight(op: &Op) -> f64 {
    if let Op::Unary { op, .. } = op {
        return match op {
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::Floor | UnaryOp::Ceil => 1.0,
            // A quarter of the lanes have a unit for these.
            UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Rsqrt | UnaryOp::Sin | UnaryOp::Cos => 4.0,
            UnaryOp::Sqrt | UnaryOp::Recip => 8.0,
        };
    }
    if let Op::Const { .. } = op { 0.0 } else { 1.0 }
}
