//! Copies: global memory to UB and back, UB to L1, global memory to L1 with the change of layout, L1 to L0.

use super::chip::{Arch, FRACTAL, LINE, Space};
use super::{At, Machine, Region};
use crate::machine::shadow::Use;

/// `DataCopyPad` from global memory to UB. Lengths and global gaps in bytes, UB gaps in lines.
#[derive(Clone, Debug)]
pub(super) struct In {
    pub to: Region,
    pub from: u64,
    pub element: usize,
    pub count: i64,
    pub length: i64,
    pub from_gap: i64,
    pub to_gap: i64,
    pub pad: Option<Pad>,
}

/// What fills the line after a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pad {
    pub left: i64,
    pub right: i64,
    pub value: u64,
}

/// `DataCopyPad` from UB to global memory.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub to: u64,
    pub from: Region,
    pub count: i64,
    pub length: i64,
    pub from_gap: i64,
    pub to_gap: i64,
}

/// `DataCopy` from UB to L1, in lines.
#[derive(Clone, Debug)]
pub(super) struct ToL1 {
    pub to: Region,
    pub from: Region,
    pub count: i64,
    pub length: i64,
    pub from_gap: i64,
    pub to_gap: i64,
}

/// `DataCopy` from global memory to L1 that turns rows into column blocks of one line.
#[derive(Clone, Debug)]
pub(super) struct NdToNz {
    pub to: Region,
    pub from: u64,
    pub element: usize,
    pub matrices: i64,
    pub rows: i64,
    pub columns: i64,
    /// Elements from row to row.
    pub from_stride: i64,
    /// Lines from column block to column block, and from row to row.
    pub block_stride: i64,
    pub row_stride: i64,
}

/// `LoadData` from L1 to L0.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub to: Region,
    pub from: Region,
    pub element: usize,
    pub transpose: bool,
    pub shape: LoadShape,
}

/// Which fractals are copied.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoadShape {
    /// Of 2201.
    Repeat { start: i64, repeat: i64, from_stride: i64, to_gap: i64 },
    /// Of 3510.
    Steps { m_start: i64, k_start: i64, m: i64, k: i64, from_stride: i64, to_stride: i64 },
}

const LENGTH: std::ops::RangeInclusive<i64> = 1..=(1 << 21) - 1;
const COUNT: std::ops::RangeInclusive<i64> = 1..=4095;

impl Machine {
    /// A checked address of global memory; negative distances wrap and are found there.
    fn advance(from: u64, by: i64) -> u64 {
        from.wrapping_add_signed(by)
    }

    pub(super) fn copy_in(&mut self, at: At, x: &In) {
        let gap = 0..=i64::from(u32::MAX);
        if !(self.lies_in(at, "the destination", x.to, Space::Ub)
            & self.aligned(at, "the destination", x.to, LINE)
            & self.within(at, "blockCount", x.count, COUNT)
            & self.within(at, "blockLen", x.length, LENGTH)
            & self.within(at, "srcStride", x.from_gap, gap.clone())
            & self.within(at, "dstStride", x.to_gap, 0..=65535))
        {
            return;
        }
        let length = x.length as usize;
        let padded = length.next_multiple_of(LINE);
        if let Some(p) = x.pad {
            let room = ((padded - length) / x.element.max(1)) as i64;
            if !(self.within(at, "leftPadding", p.left, 0..=0) & self.within(at, "rightPadding", p.right, 0..=room)) {
                return;
            }
        }
        for i in 0..x.count {
            let (bytes, flags) = self.read_global(at, Self::advance(x.from, i * (x.length + x.from_gap)), length);
            let (mut block, mut defined) = (vec![crate::machine::POISON; padded], vec![false; padded]);
            block[..length].copy_from_slice(&bytes);
            defined[..length].copy_from_slice(&flags);
            if let Some(p) = x.pad {
                let filled = if p.right == 0 { padded } else { length + p.right as usize * x.element };
                let value = if p.right == 0 { 0 } else { p.value };
                for (j, b) in block[length..filled].iter_mut().enumerate() {
                    *b = value.to_le_bytes()[j % x.element.max(1)];
                }
                defined[length..filled].fill(true);
            }
            let to = i as usize * (padded + x.to_gap as usize * LINE);
            let Some((m, offset)) = self.touch(at, Use::Write, x.to, to, padded) else { return };
            self.memories[m].write(offset, &block, &defined);
            self.moved(at, length);
        }
    }

    pub(super) fn copy_out(&mut self, at: At, x: &Out) {
        let gap = 0..=i64::from(u32::MAX);
        if !(self.lies_in(at, "the source", x.from, Space::Ub)
            & self.aligned(at, "the source", x.from, LINE)
            & self.within(at, "blockCount", x.count, COUNT)
            & self.within(at, "blockLen", x.length, LENGTH)
            & self.within(at, "srcStride", x.from_gap, 0..=65535)
            & self.within(at, "dstStride", x.to_gap, gap))
        {
            return;
        }
        let length = x.length as usize;
        let padded = length.next_multiple_of(LINE);
        for i in 0..x.count {
            let from = i as usize * (padded + x.from_gap as usize * LINE);
            let Some((m, offset)) = self.touch(at, Use::Read, x.from, from, length) else { return };
            let bytes = self.memories[m].bytes[offset..offset + length].to_vec();
            let defined = self.memories[m].defined[offset..offset + length].to_vec();
            self.write_global(at, Self::advance(x.to, i * (x.length + x.to_gap)), &bytes, &defined);
            self.moved(at, length);
        }
    }

    pub(super) fn copy_to_l1(&mut self, at: At, x: &ToL1) {
        let word = 0..=65535;
        if !(self.lies_in(at, "the destination", x.to, Space::L1)
            & self.lies_in(at, "the source", x.from, Space::Ub)
            & self.aligned(at, "the destination", x.to, LINE)
            & self.aligned(at, "the source", x.from, LINE)
            & self.within(at, "blockCount", x.count, COUNT)
            & self.within(at, "blockLen", x.length, 1..=65535)
            & self.within(at, "srcGap", x.from_gap, word.clone())
            & self.within(at, "dstGap", x.to_gap, word))
        {
            return;
        }
        let length = x.length as usize * LINE;
        for i in 0..x.count as usize {
            let (from, to) = (i * (length + x.from_gap as usize * LINE), i * (length + x.to_gap as usize * LINE));
            self.copy_local(at, x.to, to, x.from, from, length);
        }
    }

    /// Copies bytes between on-chip memories.
    fn copy_local(&mut self, at: At, to: Region, to_byte: usize, from: Region, from_byte: usize, length: usize) {
        let Some((a, i)) = self.touch(at, Use::Read, from, from_byte, length) else { return };
        let bytes = self.memories[a].bytes[i..i + length].to_vec();
        let defined = self.memories[a].defined[i..i + length].to_vec();
        let Some((b, j)) = self.touch(at, Use::Write, to, to_byte, length) else { return };
        self.memories[b].write(j, &bytes, &defined);
        self.moved(at, length);
    }

    pub(super) fn nd_to_nz(&mut self, at: At, x: &NdToNz) {
        let columns = if self.config.arch == Arch::A2201 { 65535 } else { i64::from(u32::MAX) };
        if !(self.lies_in(at, "the destination", x.to, Space::L1)
            & self.aligned(at, "the destination", x.to, LINE)
            & self.within(at, "ndNum", x.matrices, 1..=1)
            & self.within(at, "nValue", x.rows, 1..=16384)
            & self.within(at, "dValue", x.columns, 1..=columns)
            & self.within(at, "srcDValue", x.from_stride, 1..=columns)
            & self.within(at, "dstNzC0Stride", x.block_stride, 1..=16384)
            & self.within(at, "dstNzNStride", x.row_stride, 1..=16384))
        {
            return;
        }
        let row_bytes = x.columns as usize * x.element;
        for r in 0..x.rows {
            let from = Self::advance(x.from, r * x.from_stride * x.element as i64);
            let (bytes, flags) = self.read_global(at, from, row_bytes);
            for (b, (line, flags)) in bytes.chunks(LINE).zip(flags.chunks(LINE)).enumerate() {
                let (mut whole, mut defined) = ([0u8; LINE], [true; LINE]);
                whole[..line.len()].copy_from_slice(line);
                defined[..line.len()].copy_from_slice(flags);
                let to = (b as i64 * x.block_stride + r * x.row_stride) as usize * LINE;
                let Some((m, offset)) = self.touch(at, Use::Write, x.to, to, LINE) else { return };
                self.memories[m].write(offset, &whole, &defined);
            }
            self.moved(at, row_bytes);
        }
    }

    pub(super) fn load(&mut self, at: At, x: &Load) {
        if !matches!(x.to.space, Space::L0a | Space::L0b) {
            return self.bad_parameter(at, format!("the destination lies in {}, not L0A or L0B", x.to.space.name()));
        }
        if !(self.lies_in(at, "the source", x.from, Space::L1)
            & self.aligned(at, "the destination", x.to, FRACTAL)
            & self.aligned(at, "the source", x.from, LINE))
        {
            return;
        }
        if x.transpose && x.element != 2 {
            return self.bad_parameter(at, "ifTranspose is for elements of 16 bits".into());
        }
        let word = 0..=65535;
        match x.shape {
            LoadShape::Repeat { start, repeat, from_stride, to_gap } => {
                if !(self.within(at, "startIndex", start, word.clone())
                    & self.within(at, "repeatTimes", repeat, 1..=255)
                    & self.within(at, "srcStride", from_stride, word.clone())
                    & self.within(at, "dstGap", to_gap, word))
                {
                    return;
                }
                for i in 0..repeat {
                    self.copy_fractal(at, x, start + i * from_stride, i * (1 + to_gap));
                }
            }
            LoadShape::Steps { m_start, k_start, m, k, from_stride, to_stride } => {
                if !(self.within(at, "mStartPosition", m_start, word.clone())
                    & self.within(at, "kStartPosition", k_start, word.clone())
                    & self.within(at, "mStep", m, 1..=255)
                    & self.within(at, "kStep", k, 1..=255)
                    & self.within(at, "srcStride", from_stride, 1..=65535)
                    & self.within(at, "dstStride", to_stride, 1..=65535))
                {
                    return;
                }
                for (i, j) in (0..k).flat_map(|i| (0..m).map(move |j| (i, j))) {
                    let to = if x.transpose { j * to_stride + i } else { i * to_stride + j };
                    self.copy_fractal(at, x, (k_start + i) * from_stride + m_start + j, to);
                }
            }
        }
    }

    fn copy_fractal(&mut self, at: At, x: &Load, from: i64, to: i64) {
        let (from, to) = (from as usize * FRACTAL, to as usize * FRACTAL);
        let Some((a, i)) = self.touch(at, Use::Read, x.from, from, FRACTAL) else { return };
        let bytes = self.memories[a].bytes[i..i + FRACTAL].to_vec();
        let defined = self.memories[a].defined[i..i + FRACTAL].to_vec();
        let Some((b, j)) = self.touch(at, Use::Write, x.to, to, FRACTAL) else { return };
        if x.transpose {
            let (mut turned, mut flags) = (vec![0; FRACTAL], vec![false; FRACTAL]);
            for (r, c) in (0..16).flat_map(|r| (0..16).map(move |c| (r, c))) {
                for byte in 0..2 {
                    turned[(c * 16 + r) * 2 + byte] = bytes[(r * 16 + c) * 2 + byte];
                    flags[(c * 16 + r) * 2 + byte] = defined[(r * 16 + c) * 2 + byte];
                }
            }
            self.memories[b].write(j, &turned, &flags);
        } else {
            self.memories[b].write(j, &bytes, &defined);
        }
        self.moved(at, FRACTAL);
    }
}
