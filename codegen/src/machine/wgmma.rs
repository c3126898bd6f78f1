//! Matrix instructions of four warps: operands through descriptors of shared memory, accumulators in registers that are
//! undefined from the instruction to the wait.
//!
//! Each warp has its own 16 rows. Its operands are judged when it asks, and read when the product happens, at the latest at
//! the wait; so a slot that is given back too early is a race and gives wrong numbers. Every element is one chain of fused
//! multiply-adds in ascending k, from the accumulator, as in the tile VM.

use super::engine::{Action, Queue};
use super::shadow::Swizzle;
use super::warp::OPERANDS;
use super::{Actor, ActorKind, Code, Flow, Machine, Place, Use, WarpOp, Way, site};
use crate::formats;
use crate::ir::DType;
use std::collections::VecDeque;
use std::sync::OnceLock;

/// Where the left operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// In shared memory, named by a descriptor.
    Shared,
    /// In registers, as fragments of `mma`.
    Registers,
}

/// A product of 64 rows by `n` columns over 32 bytes of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Columns.
    pub n: usize,
    /// Type of both operands.
    pub dtype: DType,
    /// Where the left one is.
    pub a: OperandA,
    /// K runs across the rows of the right one.
    pub across: bool,
}

impl Product {
    fn k(self) -> usize {
        if self.dtype == DType::E4m3 { 32 } else { 16 }
    }
}

/// What accumulators hold until they are waited for: a NaN.
pub const IN_FLIGHT: u32 = 0x7fc0_dead;

/// Matrix instructions of a warp.
#[derive(Debug, Default)]
pub(super) struct Unit {
    actor: Option<Actor>,
    /// Groups that are closed, and those that were waited for.
    closed: u32,
    done: u32,
    fences: u32,
    /// Instructions so far.
    issued: u32,
    tiles: Vec<Tile>,
    /// Registers that lanes brought to the instruction under way: where they are, what they hold.
    staged: Vec<Option<(u64, Vec<u32>)>>,
}

/// An accumulator.
#[derive(Debug)]
struct Tile {
    /// Where each lane keeps its part.
    keys: Vec<u64>,
    values: Vec<f32>,
    /// Lanes that have not got their part back.
    away: u32,
    /// Group of the last product.
    group: u32,
    /// Fences when it was given back.
    fences: u32,
    line: u32,
}

/// Instructions that not all warps of a warpgroup have reached.
#[derive(Debug, Default)]
pub(super) struct Log {
    first: u32,
    entries: VecDeque<(Product, [u32; 5], u32)>,
}

/// An operand in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Matrix {
    address: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

impl Matrix {
    fn decode(words: &[u32]) -> Matrix {
        let d = u64::from(words[0]) | u64::from(words[1]) << 32;
        let field = |at: u32| ((d >> at & 0x3fff) << 4) as u32;
        let swizzle = match d >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        Matrix { address: field(0), leading: field(16), stride: field(32), swizzle }
    }

    /// Address of piece `c` of 16 bytes of row `r`, k in the rows.
    fn piece(self, r: u32, c: u32) -> u32 {
        let at = self.address + r / 8 * self.stride;
        match self.swizzle {
            Swizzle::None => at + c * self.leading + r % 8 * 16,
            s => s.apply((at + r % 8 * s.span() as u32 + c * 16) as usize) as u32,
        }
    }

    /// Address of the 16 bytes that hold columns `n` and the next seven of row `k`, k across the rows.
    fn piece_across(self, k: u32, n: u32) -> u32 {
        let span = self.swizzle.span() as u32;
        let at = self.address + n / (span / 2) * self.leading + k / 8 * self.stride + k % 8 * span + n % (span / 2) * 2;
        self.swizzle.apply(at as usize) as u32
    }

    /// All pieces of rows or columns `rows`, in the order (row, piece) or (k, column).
    fn pieces(self, rows: std::ops::Range<u32>, across: bool) -> Vec<u32> {
        if across {
            (0..16).flat_map(|k| rows.clone().step_by(8).map(move |n| self.piece_across(k, n))).collect()
        } else {
            rows.flat_map(|r| (0..2).map(move |c| self.piece(r, c))).collect()
        }
    }
}

/// A product that has not taken effect.
#[derive(Clone, Debug)]
pub(super) struct Multiply {
    warp: usize,
    key: u64,
    group: u32,
    product: Product,
    a: Vec<usize>,
    fragments: Vec<[u32; 4]>,
    b: Vec<usize>,
    add: bool,
}

impl Machine {
    /// A product of the running thread's warp. `key` names where the lane keeps its accumulator, which holds `registers`; it is
    /// undefined from now on. `operands`: whether to add, the descriptor of B, the descriptor or the fragment of A.
    pub fn wgmma(&mut self, product: Product, key: u64, registers: &[u32], operands: &[u32], line: u32) -> Flow {
        let (w, lane) = (self.warp_of(self.current), self.lane_of(self.current));
        let staged = &mut self.warps[w].wgmma.staged;
        staged.resize(self.config.warp, None);
        staged[lane] = Some((key, registers.to_vec()));
        self.warp(WarpOp::Product(product), u32::MAX, operands, line)
    }

    /// Says that the running thread's accumulator at `key` is used by ordinary code here, or not before.
    pub fn wgmma_pin(&mut self, key: u64, line: u32) {
        let t = self.current;
        self.check_pin(t);
        let (w, lane) = (self.warp_of(t), self.lane_of(t));
        let away = |x: &Tile| x.away >> lane & 1 != 0 && x.keys.get(lane) == Some(&key);
        self.threads[t].pinned = self.warps[w].wgmma.tiles.iter().any(away).then_some((key, line));
    }

    /// A pin of registers in flight is harmless only right before the next product on them.
    fn check_pin(&mut self, t: usize) {
        if let Some((key, line)) = self.threads[t].pinned.take() {
            let (w, lane) = (self.warp_of(t), self.lane_of(t));
            let of = self.warps[w].wgmma.tiles.iter().find(|x| x.keys.get(lane) == Some(&key)).map_or(0, |x| x.line);
            let who = self.who(t);
            self.findings.report(Code::AccumulatorInFlight, line, of, || {
                format!("{who} uses the accumulator of the product of {}, which was not waited for", site(of))
            });
        }
    }

    pub(super) fn wgmma_begin(&mut self, w: usize) {
        self.warps[w].wgmma.fences += 1;
        for t in self.lanes(w) {
            self.threads[t].pinned = None;
        }
    }

    pub(super) fn wgmma_commit(&mut self, w: usize) {
        self.warps[w].wgmma.closed += 1;
    }

    pub(super) fn wgmma_wait(&mut self, w: usize, pending: u32) {
        let unit = &mut self.warps[w].wgmma;
        let done = unit.closed.saturating_sub(pending);
        unit.done = unit.done.max(done);
        let actor = unit.actor;
        self.finish_queue(Queue::Products(w), |action| matches!(action, Action::Multiply(m) if m.group <= done));
        for t in self.lanes(w) {
            self.check_pin(t);
            if let Some(actor) = actor {
                self.threads[t].clock.learn(actor, done);
            }
        }
    }

    /// Accumulators that the running thread gets back after a wait: where they are, what they hold.
    pub fn wgmma_results(&mut self) -> Vec<(u64, Vec<u32>)> {
        let (w, lane) = (self.warp_of(self.current), self.lane_of(self.current));
        let unit = &mut self.warps[w].wgmma;
        let (done, fences) = (unit.done, unit.fences);
        let mut out = vec![];
        for tile in &mut unit.tiles {
            if tile.group > done || tile.away >> lane & 1 == 0 {
                continue;
            }
            tile.away &= !(1 << lane);
            tile.fences = fences;
            let count = tile.values.len() / tile.keys.len();
            let part = tile.values[lane * count..(lane + 1) * count].iter().map(|v| v.to_bits()).collect();
            out.push((tile.keys[lane], part));
        }
        out
    }

    /// All lanes of a warp have asked for a product.
    pub(super) fn product(&mut self, w: usize, p: Product, operands: &[[u32; OPERANDS]; 32], line: u32) {
        let lanes = self.lanes(w);
        let rank = self.rank_of(lanes.start);
        let in_block = w - rank * self.config.threads.div_ceil(self.config.warp);
        if lanes.len() != 32 || (in_block / 4 + 1) * 128 > self.config.threads {
            self.report(Code::Warpgroup, line, "the warp is not one of four of a warpgroup".into());
            return;
        }
        let uniform = if p.a == OperandA::Shared { 5 } else { 3 };
        if operands.iter().any(|o| o[..uniform] != operands[0][..uniform]) {
            self.report(Code::DivergentWarp, line, "lanes bring different operands to one product".into());
        }
        let first = operands[0];
        let mut entry = [0; 5];
        entry[..uniform].copy_from_slice(&first[..uniform]);
        self.log_product(rank, in_block, w, (p, entry, line));
        if self.warps[w].wgmma.actor.is_none() {
            self.warps[w].wgmma.actor = Some(self.new_actor(ActorKind::Products(w)));
        }
        let Some(key) = self.take_accumulator(w, p, line) else { return };
        let unit = &self.warps[w].wgmma;
        let (group, actor) = (unit.closed + 1, unit.actor.unwrap_or(0));
        let b = self.operand(w, Matrix::decode(&first[1..3]), 0..p.n as u32, p.across, actor, line);
        let own = (in_block % 4 * 16) as u32;
        let a = match p.a {
            OperandA::Shared => self.operand(w, Matrix::decode(&first[3..5]), own..own + 16, false, actor, line),
            OperandA::Registers => Some(vec![]),
        };
        let (Some(a), Some(b)) = (a, b) else { return };
        let fragments = match p.a {
            OperandA::Shared => vec![],
            OperandA::Registers => operands.iter().map(|o| [o[3], o[4], o[5], o[6]]).collect(),
        };
        let job = Multiply { warp: w, key, group, product: p, a, fragments, b, add: first[0] != 0 };
        self.begin(Queue::Products(w), Action::Multiply(job));
    }

    /// The warps of a warpgroup must issue the same instructions.
    fn log_product(&mut self, rank: usize, in_block: usize, w: usize, entry: (Product, [u32; 5], u32)) {
        let group = in_block / 4;
        let logs = &mut self.blocks[rank].products;
        if logs.len() <= group {
            logs.resize_with(group + 1, Log::default);
        }
        let at = self.warps[w].wgmma.issued;
        self.warps[w].wgmma.issued += 1;
        let log = &mut logs[group];
        match log.entries.get((at - log.first) as usize) {
            Some(&(p, operands, line)) if p != entry.0 || operands != entry.1 => {
                let who = self.who(self.current);
                self.findings.report(Code::Warpgroup, entry.2, line, || {
                    format!("{who} brings another product than the other warps of its warpgroup at {}", site(line))
                });
            }
            Some(_) => {}
            None => log.entries.push_back(entry),
        }
        let start = w - in_block % 4;
        let all = (start..start + 4).map(|x| self.warps[x].wgmma.issued).min().unwrap_or(0);
        let log = &mut self.blocks[rank].products[group];
        while log.first < all {
            log.entries.pop_front();
            log.first += 1;
        }
    }

    /// Takes the registers that the lanes brought as an accumulator; gives the key of the first lane's.
    fn take_accumulator(&mut self, w: usize, p: Product, line: u32) -> Option<u64> {
        let unit = &mut self.warps[w].wgmma;
        let staged: Vec<(u64, Vec<u32>)> = unit.staged.iter_mut().map(|s| s.take().unwrap_or_default()).collect();
        let key = staged[0].0;
        let count = p.n / 2;
        if staged.iter().any(|s| s.1.len() != count) {
            self.report(Code::DivergentWarp, line, "lanes bring accumulators of different sizes to one product".into());
            return None;
        }
        let at = unit.tiles.iter().position(|t| t.keys[0] == key);
        let (group, fences) = (unit.closed + 1, unit.fences);
        let mut found = None;
        let flying = at.is_some_and(|i| unit.tiles[i].away != 0);
        if let (true, Some(i)) = (flying, at) {
            let changed = staged.iter().any(|s| s.1.iter().any(|&v| v != IN_FLIGHT));
            if changed || unit.tiles[i].values.len() != count * 32 {
                found = Some((Code::AccumulatorInFlight, unit.tiles[i].line, "were changed while"));
            }
        } else {
            let given = at.map_or(0, |i| unit.tiles[i].fences);
            if given == fences {
                let of = at.map_or(0, |i| unit.tiles[i].line);
                found = Some((Code::WgmmaFence, of, "are used without a fence after"));
            }
            let values = staged.iter().flat_map(|s| s.1.iter().map(|&v| f32::from_bits(v))).collect();
            let keys = staged.iter().map(|s| s.0).collect();
            let tile = Tile { keys, values, away: 0, group, fences, line };
            match at {
                Some(i) => unit.tiles[i] = tile,
                None => unit.tiles.push(tile),
            }
        }
        let tile = unit.tiles.iter_mut().find(|t| t.keys[0] == key)?;
        (tile.away, tile.group, tile.line) = (u32::MAX, group, line);
        let size = tile.values.len();
        if let Some((code, of, text)) = found {
            let who = self.who(self.lanes(w).start);
            self.findings.report(code, line, of, || match (code, of) {
                (Code::WgmmaFence, 0) => format!("{who} begins products without a fence (`wgmma_begin`)"),
                (Code::WgmmaFence, _) => format!("the accumulator registers of {who} {text} ordinary code had them"),
                _ => format!("the accumulator registers of {who} {text} the product of {} uses them", site(of)),
            });
        }
        (size == count * 32).then_some(key)
    }

    /// Judges an operand in shared memory; gives the bytes where its pieces lie.
    fn operand(
        &mut self,
        w: usize,
        m: Matrix,
        rows: std::ops::Range<u32>,
        across: bool,
        actor: Actor,
        line: u32,
    ) -> Option<Vec<usize>> {
        let lane = self.lanes(w).start;
        let rank = self.rank_of(lane);
        let span = m.swizzle.span() as u32;
        if across && m.swizzle == Swizzle::None {
            self.report(Code::Unsupported, line, "k across the rows without a swizzle is not modelled".into());
            return None;
        }
        // The pattern repeats every eight rows; operands start at its first row, k within the row.
        let phase = m.address % (8 * span);
        if m.swizzle != Swizzle::None && (phase >= span || across && phase != 0) {
            let text = format!("an operand at address {:#x} does not start at row 0 of {}", m.address, m.swizzle);
            self.report(Code::Descriptor, line, text);
        }
        let time = self.warps[w].wgmma.closed + 1;
        let now = self.stamp_async(lane, actor, time, line, Way::Async(Some(m.swizzle)));
        let mut out = vec![];
        for address in m.pieces(rows, across) {
            let at = Machine::descriptor_offset(address);
            if at < 0 || at as usize + 16 > self.config.shared_bytes {
                let size = self.config.shared_bytes;
                let text = format!("a product reads 16 bytes at byte {at} of {size} bytes of shared memory");
                self.report(Code::SharedRange, line, text);
                return None;
            }
            let _ = self.touch(Use::Read, Place::Shared(rank, at as usize), 16, now);
            out.push(at as usize);
        }
        Some(out)
    }

    pub(super) fn finish_product(&mut self, job: &Multiply) {
        let (p, n, k) = (job.product, job.product.n, job.product.k());
        let rank = self.rank_of(self.lanes(job.warp).start);
        let read = |pieces: &[usize]| {
            let mut bytes = vec![0; pieces.len() * 16];
            for (piece, &at) in bytes.chunks_mut(16).zip(pieces) {
                self.shared[rank].read(at, piece);
            }
            decode(p.dtype, &bytes)
        };
        // A as [row][k], B as [k][column].
        let b = read(&job.b);
        let b: Vec<f32> = match p.across {
            true => b,
            false => (0..k).flat_map(|x| (0..n).map(move |c| (x, c))).map(|(x, c)| b[c * k + x]).collect(),
        };
        let a = match p.a {
            OperandA::Shared => read(&job.a),
            OperandA::Registers => from_fragments(p.dtype, &job.fragments),
        };
        let unit = &mut self.warps[job.warp].wgmma;
        let Some(tile) = unit.tiles.iter_mut().find(|t| t.keys[0] == job.key) else { return };
        let mut sums = vec![0.0; 16 * n];
        let count = n / 2;
        let place = |lane: usize, i: usize| {
            let (row, column) = (lane / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
            row * n + column
        };
        if job.add {
            for (i, &v) in tile.values.iter().enumerate() {
                sums[place(i / count, i % count)] = v;
            }
        }
        multiply(&a, &b, &mut sums, n, k);
        for (i, v) in tile.values.iter_mut().enumerate() {
            *v = sums[place(i / count, i % count)];
        }
    }

    /// A thread leaves: its products must be over.
    pub(super) fn check_products(&mut self, t: usize) {
        self.check_pin(t);
        let (w, lane) = (self.warp_of(t), self.lane_of(t));
        if let Some(tile) = self.warps[w].wgmma.tiles.iter().find(|x| x.away >> lane & 1 != 0) {
            let (of, who) = (tile.line, self.who(t));
            self.findings.report(Code::LeftRunning, of, 0, || {
                format!("{who} leaves the kernel without having waited for its product of {}", site(of))
            });
        }
    }

    /// All threads have left: the warps of a warpgroup must have issued the same, and hold as many registers.
    pub(super) fn check_warpgroups(&mut self) {
        let per_block = self.config.threads.div_ceil(self.config.warp);
        for start in (0..self.warps.len()).filter(|w| (w % per_block).is_multiple_of(4)) {
            let end = (start + 4).min((start / per_block + 1) * per_block);
            let who = self.who(self.lanes(start).start);
            let (first, rest) = (&self.warps[start], &self.warps[start + 1..end]);
            if rest.iter().any(|w| w.wgmma.issued != first.wgmma.issued) {
                let counts: Vec<String> = self.warps[start..end].iter().map(|w| w.wgmma.issued.to_string()).collect();
                self.findings.report(Code::Warpgroup, 0, 0, || {
                    format!("the warpgroup of {who} issued {} products in its warps", counts.join(", "))
                });
            }
            if rest.iter().any(|w| w.registers != first.registers) {
                self.findings.report(Code::Registers, 0, 0, || {
                    format!("the warps of the warpgroup of {who} do not hold the same number of registers")
                });
            }
        }
    }
}

/// Bytes of operands as numbers.
fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    static E4M3: OnceLock<Vec<f32>> = OnceLock::new();
    let halves = || bytes.chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
    match dtype {
        DType::E4m3 => {
            let table = E4M3.get_or_init(|| (0..256).map(|v| formats::decode_f32(DType::E4m3, v)).collect());
            bytes.iter().map(|&b| table[b as usize]).collect()
        }
        DType::Bf16 => halves().map(|h| f32::from_bits(u32::from(h) << 16)).collect(),
        _ => halves().map(|h| formats::decode_f32(dtype, u64::from(h))).collect(),
    }
}

/// A of 16 x 16 from the registers of 32 lanes.
fn from_fragments(dtype: DType, lanes: &[[u32; 4]]) -> Vec<f32> {
    let mut out = vec![0.0; 256];
    for (lane, words) in lanes.iter().enumerate() {
        for (i, word) in words.iter().enumerate() {
            let (row, k) = (lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2 * 8);
            let pair = decode(dtype, &word.to_le_bytes());
            out[row * 16 + k..row * 16 + k + 2].copy_from_slice(&pair);
        }
    }
    out
}

/// `sums += a b`, each element a chain of fused multiply-adds in ascending k. Where all products are exact in f32, which they
/// are for these types within a range of exponents, a rounded product makes no difference, and is faster than a library call.
fn multiply(a: &[f32], b: &[f32], sums: &mut [f32], n: usize, k: usize) {
    let (low, high) = (2f32.powi(-60), 2f32.powi(60));
    let exact = |x: &f32| *x == 0.0 || (low..=high).contains(&x.abs());
    if a.iter().all(exact) && b.iter().all(exact) {
        chains(a, b, sums, n, k, |x, y, sum| x * y + sum);
    } else {
        chains(a, b, sums, n, k, f32::mul_add);
    }
}

fn chains(a: &[f32], b: &[f32], sums: &mut [f32], n: usize, k: usize, step: impl Fn(f32, f32, f32) -> f32) {
    for (row, sums) in sums.chunks_mut(n).enumerate() {
        for (i, b) in b.chunks(n).enumerate() {
            let x = a[row * k + i];
            for (sum, &y) in sums.iter_mut().zip(b) {
                *sum = step(x, y, *sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_swizzle() {
        let m = Matrix { address: 1024, leading: 16, stride: 1024, swizzle: Swizzle::B128 };
        assert_eq!((m.piece(0, 0), m.piece(1, 0), m.piece(7, 1), m.piece(9, 0)), (1024, 1168, 2016, 2192));
        // The second step of k within a row of 128 bytes.
        let next = Matrix { address: 1024 + 32, ..m };
        assert_eq!(next.piece(2, 0), 1024 + 256);
    }

    #[test]
    fn rounded_products_equal_fused_ones_where_they_are_exact() {
        let a: Vec<f32> = (0..16 * 16).map(|i| f32::from_bits(((i * 7919 + 13) % 60000) << 16 & 0x4fff_0000)).collect();
        let b: Vec<f32> = (0..16 * 8).map(|i| (i as f32 - 60.0) * 0.375).collect();
        let (mut fast, mut slow) = (vec![0.1; 128], vec![0.1; 128]);
        multiply(&a, &b, &mut fast, 8, 16);
        chains(&a, &b, &mut slow, 8, 16, f32::mul_add);
        assert_eq!(
            fast.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            slow.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
    }
}
