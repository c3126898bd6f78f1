//! Warp-wide operations: a rendezvous of the lanes named by a mask, then one result a lane.

use super::{Clock, Code, Flow, Machine, Place, Product, State, Use, site};
use crate::formats;
use crate::ir::DType;

/// Combination of one truth value a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// True if any is.
    Any,
    /// True if all are.
    All,
    /// How many are, at a barrier; which lanes are, in a warp.
    Count,
}

impl Vote {
    pub(super) fn start(self) -> u32 {
        (self == Vote::All) as u32
    }
    pub(super) fn combine(self, so_far: u32, value: u32) -> u32 {
        let v = (value != 0) as u32;
        match self {
            Vote::Any => so_far | v,
            Vote::All => so_far & v,
            Vote::Count => so_far + v,
        }
    }
}

/// Operations of a warp. Operands and results are words; a 64-bit value is two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarpOp {
    /// Lanes meet.
    Sync,
    /// Every lane's words come from the lane its last operand names, within segments of `width` lanes.
    Shuffle {
        /// How the source lane is found.
        kind: Shuffle,
        /// Lanes of a segment, a power of two.
        width: u32,
    },
    /// One truth value a lane.
    Vote(Vote),
    /// `ldmatrix` after the rows were read: lane `8 m + r` brings row `r` of the 8 x 8 matrix `m` of 16-bit elements,
    /// and lane `l` gets of each matrix row `l / 4`, elements `2 (l % 4)` and the next; transposed: column `l / 4`.
    Matrix {
        /// Transposed.
        transposed: bool,
    },
    /// `mma` of a 16 x 16 by a 16 x 8 matrix of this 16-bit format, with fragments as PTX lays them out: each element is
    /// one chain of fused multiply-adds in ascending k, from the accumulator. Four words of A, two of B, four of C.
    Multiply(DType),
    /// True in one lane.
    Elect,
    /// `stmatrix` of so many 8 x 8 matrices of 16-bit elements: lane `8 m + r` brings the address of row `r` of matrix `m`, and
    /// each lane what `ldmatrix` would give it.
    StoreMatrix(u32),
    /// Orders registers and the matrix instructions of the warpgroup that follow.
    WgmmaBegin,
    /// A matrix instruction of the warpgroup; see [`Machine::wgmma`].
    Product(Product),
    /// Closes a group of those.
    WgmmaCommit,
    /// Waits until at most so many groups are under way; [`Machine::wgmma_results`] gives accumulators back.
    WgmmaWait(u32),
    /// Asks for this number of registers; [`Machine::registers_take`] waits for them.
    Registers {
        /// How many a thread.
        count: u32,
        /// To take some, not to give some back.
        grow: bool,
    },
}

/// How a shuffle finds its source lane from its last operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// The lane with this number in the segment.
    Index,
    /// So many lanes below.
    Up,
    /// So many lanes above.
    Down,
    /// The lane whose number differs in these bits.
    Xor,
}

/// Words a lane brings at most.
pub(super) const OPERANDS: usize = 12;

/// A rendezvous that has begun.
#[derive(Debug)]
pub(super) struct Gather {
    op: WarpOp,
    mask: u32,
    arrived: u32,
    line: u32,
    operands: Box<[[u32; OPERANDS]; 32]>,
}

impl Machine {
    /// A warp-wide operation of the lanes in `mask`. The results are in [`Machine::result`] afterwards.
    pub fn warp(&mut self, op: WarpOp, mask: u32, operands: &[u32], line: u32) -> Flow {
        self.count(line);
        let t = self.current;
        let (w, lane) = (self.warp_of(t), self.lane_of(t));
        let lanes = self.lanes(w).len();
        let present = u32::MAX >> (32 - lanes);
        // Lanes beyond the block do not exist; naming them is how a full mask is written.
        let mask = mask & present;
        if mask & (1 << lane) == 0 {
            self.report(Code::DivergentWarp, line, format!("the mask {mask:#x} does not name the lane itself"));
            return Flow::Go;
        }
        let mut words = [0; OPERANDS];
        let n = operands.len().min(OPERANDS);
        words[..n].copy_from_slice(&operands[..n]);
        let gathers = &mut self.warps[w].gathers;
        let at = match gathers.iter().position(|g| g.mask & mask != 0) {
            Some(at) => at,
            None => {
                let operands = Box::new([[0; OPERANDS]; 32]);
                gathers.push(Gather { op, mask, arrived: 0, line, operands });
                gathers.len() - 1
            }
        };
        let g = &mut gathers[at];
        g.arrived |= 1 << lane;
        g.operands[lane] = words;
        let (first_line, complete) = (g.line, g.arrived & g.mask == g.mask);
        let differs = g.op != op || g.mask != mask;
        if differs {
            let text = format!("another operation or mask than the other lanes of the warp at {}", site(first_line));
            self.report(Code::DivergentWarp, line, text);
        } else if first_line != line {
            let who = self.who(t);
            self.findings.report(Code::DivergentWarp, line, first_line, || {
                format!("{who} is at a warp-wide operation while others are at the one of {}", site(first_line))
            });
        }
        self.threads[t].state = State::Warp { line };
        if !complete {
            return Flow::Wait;
        }
        let gather = self.warps[w].gathers.swap_remove(at);
        self.close(w, gather);
        self.resume_current()
    }

    /// All lanes have arrived: they meet, get their results and become ready.
    fn close(&mut self, w: usize, g: Gather) {
        let first = self.lanes(w).start;
        let members = |i: usize| g.arrived & (1 << i) != 0;
        let lanes = self.lanes(w).len();
        Clock::meet(
            self.threads[first..first + lanes]
                .iter_mut()
                .enumerate()
                .filter(|(i, _)| members(*i))
                .map(|(_, t)| &mut t.clock),
        );
        match g.op {
            WarpOp::StoreMatrix(matrices) => self.store_matrices(first, &g, matrices),
            WarpOp::WgmmaBegin => self.wgmma_begin(w),
            WarpOp::Product(product) => self.product(w, product, &g.operands, g.line),
            WarpOp::WgmmaCommit => self.wgmma_commit(w),
            WarpOp::WgmmaWait(pending) => self.wgmma_wait(w, pending),
            WarpOp::Registers { count, grow } => self.registers_asked(w, count, grow, g.line),
            WarpOp::Sync
            | WarpOp::Shuffle { .. }
            | WarpOp::Vote(_)
            | WarpOp::Matrix { .. }
            | WarpOp::Multiply(_)
            | WarpOp::Elect => {}
        }
        let ballot = (0..lanes).filter(|&i| members(i) && g.operands[i][0] != 0).fold(0u32, |b, i| b | 1 << i);
        for lane in (0..lanes).filter(|&i| members(i)) {
            let words = g.operands[lane];
            let result = match g.op {
                WarpOp::Sync
                | WarpOp::StoreMatrix(_)
                | WarpOp::WgmmaBegin
                | WarpOp::Product(_)
                | WarpOp::WgmmaCommit
                | WarpOp::WgmmaWait(_)
                | WarpOp::Registers { .. } => [0; 4],
                WarpOp::Elect => [(lane == self.warps[w].leader) as u32, 0, 0, 0],
                WarpOp::Matrix { transposed } => matrix(&g.operands, lane, transposed),
                WarpOp::Multiply(format) => multiply(&g.operands, lane, format),
                WarpOp::Vote(Vote::Any) => [(ballot != 0) as u32, 0, 0, 0],
                WarpOp::Vote(Vote::All) => [(ballot == g.arrived) as u32, 0, 0, 0],
                WarpOp::Vote(Vote::Count) => [ballot, 0, 0, 0],
                WarpOp::Shuffle { kind, width } => {
                    let source = source_lane(kind, lane as u32, words[2], width);
                    if members(source) {
                        [g.operands[source][0], g.operands[source][1], 0, 0]
                    } else {
                        let who = self.who(first + lane);
                        self.findings.report(Code::ShuffleSource, g.line, 0, || {
                            format!("{who} reads from lane {source}, which takes no part")
                        });
                        [u32::MAX; 4]
                    }
                }
            };
            self.threads[first + lane].result = result;
            self.make_ready(first + lane);
        }
    }

    /// Writes the rows of 8 x 8 matrices.
    fn store_matrices(&mut self, first: usize, g: &Gather, matrices: u32) {
        for lane in 0..8 * matrices as usize {
            if g.arrived >> lane & 1 == 0 {
                continue;
            }
            let Some((rank, at)) = self.locate_own(g.operands[lane][0], 16, 16, "`stmatrix`", g.line) else { continue };
            let now = self.stamp_of(first + lane, g.line, false);
            let _ = self.touch(Use::Write, Place::Shared(rank, at), 16, now);
            let row: Vec<u8> = (0..4).flat_map(|i| g.operands[lane % 8 * 4 + i][1 + lane / 8].to_le_bytes()).collect();
            self.shared[rank].write(at, &row);
        }
    }

    /// A rendezvous that waits for lanes that left the kernel is reported and closed without them.
    pub(super) fn release_diverged_warp(&mut self) -> bool {
        for w in 0..self.warps.len() {
            let first_lane = self.lanes(w).start;
            for at in 0..self.warps[w].gathers.len() {
                let g = &self.warps[w].gathers[at];
                let missing = g.mask & !g.arrived;
                let gone = |lane: usize| {
                    let state = self.threads.get(first_lane + lane).map(|t| t.state);
                    state == Some(State::Exited)
                };
                if (0..32).all(|lane| missing & (1 << lane) == 0 || gone(lane)) {
                    let (line, first) = (g.line, missing.trailing_zeros() as usize);
                    let who = self.who(first_lane + first);
                    self.findings.report(Code::DivergentWarp, line, 0, || {
                        format!("a warp-wide operation waits for {who}, which has left the kernel")
                    });
                    let gather = self.warps[w].gathers.swap_remove(at);
                    self.close(w, gather);
                    return true;
                }
            }
        }
        false
    }
}

/// One lane's part of up to four matrices.
fn matrix(rows: &[[u32; OPERANDS]; 32], lane: usize, transposed: bool) -> [u32; 4] {
    let half = |m: usize, row: usize, column: usize| rows[8 * m + row][column / 2] >> (16 * (column % 2)) & 0xffff;
    let (a, b) = (lane / 4, 2 * (lane % 4));
    std::array::from_fn(|m| match transposed {
        false => half(m, a, b) | half(m, a, b + 1) << 16,
        true => half(m, b, a) | half(m, b + 1, a) << 16,
    })
}

/// One lane's part of a product.
fn multiply(words: &[[u32; OPERANDS]; 32], lane: usize, format: DType) -> [u32; 4] {
    let value = |word: u32, high: usize| formats::decode_f32(format, u64::from(word >> (16 * high) & 0xffff));
    let a = |row: usize, k: usize| value(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
    let b = |k: usize, column: usize| value(words[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
    std::array::from_fn(|i| {
        let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
        let start = f32::from_bits(words[lane][6 + i]);
        (0..16).fold(start, |sum, k| a(row, k).mul_add(b(k, column), sum)).to_bits()
    })
}

/// Lane a shuffle reads; outside the segment it is the lane itself.
fn source_lane(kind: Shuffle, lane: u32, operand: u32, width: u32) -> usize {
    let width = width.clamp(1, 32);
    let start = lane / width * width;
    let at = lane - start;
    let source = match kind {
        Shuffle::Index => Some(operand % width),
        Shuffle::Up => at.checked_sub(operand),
        Shuffle::Down => at.checked_add(operand).filter(|&s| s < width),
        // The hardware clamps only upwards: a lower segment may be read.
        Shuffle::Xor => {
            let s = lane ^ operand;
            return if s < start + width { s as usize } else { lane as usize };
        }
    };
    source.map_or(lane, |s| start + s) as usize
}
