//! The matrix unit and the way out of its accumulators.

use super::chip::{Arch, FRACTAL, LINE, Pipe, Space};
use super::numeric::{Elem, get};
use super::{At, Code, Machine, Region};
use crate::machine::shadow::Use;

/// Rows of a fractal, and columns of one of accumulators.
const SIDE: usize = 16;

/// `Mmad`.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub c: Region,
    pub a: Region,
    pub b: Region,
    pub elem: Elem,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub fresh: bool,
    pub unit_flag: u64,
    pub source: bool,
}

/// `Fixpipe`.
#[derive(Clone, Debug)]
pub(super) struct Fixpipe {
    pub to: Target,
    pub from: Region,
    pub m: i64,
    pub n: i64,
    pub from_stride: i64,
    pub to_stride: i64,
    pub matrices: i64,
}

/// Where accumulators go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Global(u64),
    /// To one vector core, or split over both by rows (1) or columns (2).
    Ub {
        region: Region,
        split: u64,
        core: u64,
    },
}

/// The last product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    offset: usize,
    fractals: usize,
    time: u32,
    line: u32,
}

/// An operand as numbers, with flags of its rows (along m or n) that are not all defined.
struct Operand {
    values: Vec<f32>,
    holes: Vec<bool>,
}

impl Machine {
    pub(super) fn product(&mut self, at: At, x: &Product) {
        let size = 1..=4095;
        if !(self.lies_in(at, "C", x.c, Space::L0c)
            & self.lies_in(at, "A", x.a, Space::L0a)
            & self.lies_in(at, "B", x.b, Space::L0b)
            & self.aligned(at, "C", x.c, 64)
            & self.aligned(at, "A", x.a, FRACTAL)
            & self.aligned(at, "B", x.b, FRACTAL)
            & self.within(at, "m", x.m, size.clone())
            & self.within(at, "n", x.n, size.clone())
            & self.within(at, "k", x.k, size)
            & self.within(at, "unitFlag", x.unit_flag as i64, 0..=0))
        {
            return;
        }
        if x.m == 1 {
            return self.bad_parameter(at, "m is 1, which makes the unit read A in another layout".into());
        }
        if x.source {
            return self.bad_parameter(at, "cmatrixSource is not modelled".into());
        }
        let (m, n, k) = (x.m as usize, x.n as usize, x.k as usize);
        let (m1, n1) = (m.div_ceil(SIDE), n.div_ceil(SIDE));
        let unit = &self.cores[at.core].units[Pipe::M as usize];
        let (time, settled) = (unit.clock.now(), unit.settled);
        if let Some(last) = self.last_product
            && !x.fresh
            && last.offset == x.c.offset
            && last.fractals < 10
            && last.time > settled
        {
            let text = format!(
                "adds to the accumulators of the product at line #{}, which has {} fractals and may still be under way",
                last.line, last.fractals
            );
            self.report_at(at, Code::PipeBarrier, last.line, text);
        }
        let a_by_rows = self.config.arch == Arch::A2201;
        let Some(a) = self.operand(at, x.a, x.elem, m, k, a_by_rows) else { return };
        let Some(b) = self.operand(at, x.b, x.elem, n, k, false) else { return };
        let bytes = m1 * n1 * SIDE * SIDE * 4;
        if !x.fresh && self.touch(at, Use::Read, x.c, 0, bytes).is_none() {
            return;
        }
        let Some((mem, base)) = self.touch(at, Use::Write, x.c, 0, bytes) else { return };
        let mut row = vec![0f32; n];
        for i in 0..m {
            let place = |j: usize| base + ((j / SIDE * m1 + i / SIDE) * SIDE * SIDE + i % SIDE * SIDE + j % SIDE) * 4;
            for (j, c) in row.iter_mut().enumerate() {
                let old = get(&self.memories[mem].bytes, Elem::F32, place(j)) as u32;
                *c = if x.fresh { 0.0 } else { f32::from_bits(old) };
            }
            // The product of two such numbers is exact in f32, so this is one fused multiply-add.
            for z in 0..k {
                let left = a.values[z * m + i];
                let right = &b.values[z * n..(z + 1) * n];
                row.iter_mut().zip(right).for_each(|(c, r)| *c += left * r);
            }
            for (j, c) in row.iter().enumerate() {
                let to = place(j);
                let memory = &mut self.memories[mem];
                let known = !a.holes[i] && !b.holes[j] && (x.fresh || memory.defined[to]);
                memory.write(to, &c.to_le_bytes(), &[known; 4]);
            }
        }
        self.last_product = Some(Last { offset: x.c.offset, fractals: m1 * n1, time, line: at.line });
        self.stats.products += (m * n * k) as u64;
        let whole = (m1 * SIDE * n1 * SIDE * k) as u64;
        let rate = Arch::products_per_cycle(x.elem.bytes());
        self.stats.pipes[Pipe::M as usize].cycles += whole.div_ceil(rate);
    }

    /// Reads an operand of `rows` x `k` numbers as `[k][rows]`.
    fn operand(&mut self, at: At, r: Region, elem: Elem, rows: usize, k: usize, by_rows: bool) -> Option<Operand> {
        let lane = LINE / elem.bytes();
        let (r1, k1) = (rows.div_ceil(SIDE), k.div_ceil(lane));
        let (mem, base) = self.touch(at, Use::Read, r, 0, r1 * k1 * FRACTAL)?;
        let memory = &self.memories[mem];
        let mut out = Operand { values: vec![0.0; k * rows], holes: vec![false; rows] };
        for (i, z) in (0..rows).flat_map(|i| (0..k).map(move |z| (i, z))) {
            let fractal = if by_rows { i / SIDE * k1 + z / lane } else { z / lane * r1 + i / SIDE };
            let from = base + fractal * FRACTAL + (i % SIDE * lane + z % lane) * elem.bytes();
            out.values[z * rows + i] = elem.number(get(&memory.bytes, elem, from));
            out.holes[i] |= !memory.defined[from];
        }
        Some(out)
    }

    pub(super) fn fixpipe(&mut self, at: At, x: &Fixpipe) {
        if !(self.lies_in(at, "the source", x.from, Space::L0c)
            & self.aligned(at, "the source", x.from, 64)
            & self.within(at, "nSize", x.n, 1..=4095)
            & self.within(at, "mSize", x.m, 1..=8192)
            & self.within(at, "srcStride", x.from_stride, 1..=65535)
            & self.within(at, "dstStride", x.to_stride, 1..=i64::from(u32::MAX))
            & self.within(at, "ndNum", x.matrices, 1..=1))
        {
            return;
        }
        let (m, n) = (x.m as usize, x.n as usize);
        let mut lines = Vec::with_capacity(m * n.div_ceil(SIDE));
        for i in 0..m {
            for block in 0..n.div_ceil(SIDE) {
                let wide = (n - block * SIDE).min(SIDE) * 4;
                let from = (block * x.from_stride as usize + i) * SIDE * 4;
                let Some((mem, offset)) = self.touch(at, Use::Read, x.from, from, wide) else { return };
                let memory = &self.memories[mem];
                let bytes = memory.bytes[offset..offset + wide].to_vec();
                let defined = memory.defined[offset..offset + wide].to_vec();
                lines.push((i, block * SIDE, bytes, defined));
            }
        }
        self.moved(at, m * n * 4);
        match x.to {
            Target::Global(address) => {
                // Row by row, as the copy does it.
                let per_row = n.div_ceil(SIDE);
                for row in lines.chunks(per_row) {
                    let bytes: Vec<u8> = row.iter().flat_map(|l| l.2.iter().copied()).collect();
                    let defined: Vec<bool> = row.iter().flat_map(|l| l.3.iter().copied()).collect();
                    let to = address.wrapping_add(row[0].0 as u64 * x.to_stride as u64 * 4);
                    self.write_global(at, to, &bytes, &defined);
                }
            }
            Target::Ub { region, split, core } => {
                if !(self.lies_in(at, "the destination", region, Space::Ub)
                    & self.aligned(at, "the destination", region, LINE)
                    & self.within(at, "dualDstCtl", split as i64, 0..=2)
                    & self.within(at, "subBlockId", core as i64, 0..=1))
                {
                    return;
                }
                let rule = match split {
                    _ if !n.is_multiple_of(SIDE) => Some(format!("nSize is {n}; to UB it is a multiple of 16")),
                    _ if x.to_stride * 4 % LINE as i64 != 0 => {
                        Some(format!("dstStride is {}; a row of UB is a whole number of lines", x.to_stride))
                    }
                    1 if !m.is_multiple_of(2) => Some(format!("mSize is {m}; two halves need an even number")),
                    2 if !n.is_multiple_of(32) => Some(format!("nSize is {n}; two halves need a multiple of 32")),
                    _ => None,
                };
                if let Some(text) = rule {
                    return self.bad_parameter(at, text);
                }
                for (i, j, bytes, defined) in lines {
                    let (owner, i, j) = match split {
                        1 => (1 + i / (m / 2), i % (m / 2), j),
                        2 => (1 + j / (n / 2), i, j % (n / 2)),
                        _ => (1 + core as usize, i, j),
                    };
                    let to = (i * x.to_stride as usize + j) * 4;
                    let Some((mem, offset)) = self.touch_of(at, owner, Use::Write, region, to, bytes.len()) else {
                        return;
                    };
                    self.memories[mem].write(offset, &bytes, &defined);
                }
            }
        }
    }
}
