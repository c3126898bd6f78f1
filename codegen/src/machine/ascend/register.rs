//! The vector unit of 3510: vector functions over registers of 256 bytes and masks of one bit a byte.
//!
//! A function is one instruction of pipe V. Its loads and stores reach UB; within it a load does not see an earlier store
//! unless a barrier stands between. Lanes outside a mask become zero.

use super::chip::{LINE, Pipe, Space};
use super::numeric::{self, Binary, Compare, Elem, Round, Unary, get, put};
use super::space::Fresh;
use super::{At, Code, Machine, Region};
use crate::machine::shadow::Use;

/// Bytes of a register.
const WIDTH: usize = 256;
/// Address of byte 0 of the first on-chip memory, as the text sees it; memories follow each other in steps of [`STEP`].
const BASE: u64 = 1 << 44;
const STEP: u64 = 1 << 32;
/// Number of UB in such addresses.
const UB: u64 = 4;

/// A data register; layout of the host header.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Content.
    pub bytes: [u8; WIDTH],
    /// One bit a byte: something defined it.
    pub defined: [u8; WIDTH / 8],
}

/// A mask register; layout of the host header.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// One bit a byte.
    pub bits: [u8; WIDTH / 8],
    /// 1 if it was given a value.
    pub set: u32,
}

/// The running vector function.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub core: usize,
    line: u32,
    /// Bytes the last squeeze left, and its line, until they are stored.
    squeezed: Option<(usize, u32)>,
    /// Bytes stored so far.
    offset: usize,
    /// Line of an unaligned store that was not ended.
    open: Option<u32>,
    instructions: u64,
}

impl Register {
    fn is_defined(&self, at: usize, bytes: usize) -> bool {
        (at..at + bytes).all(|b| self.defined[b / 8] >> (b % 8) & 1 == 1)
    }
    fn define(&mut self, at: usize, bytes: usize, defined: bool) {
        for b in at..at + bytes {
            let bit = 1 << (b % 8);
            if defined { self.defined[b / 8] |= bit } else { self.defined[b / 8] &= !bit }
        }
    }
    const fn zero() -> Register {
        Register { bytes: [0; WIDTH], defined: [0xff; WIDTH / 8] }
    }
    fn lane(&self, e: Elem, at: usize) -> (u64, bool) {
        (get(&self.bytes, e, at), self.is_defined(at, e.bytes()))
    }
    fn set_lane(&mut self, e: Elem, at: usize, (bits, defined): (u64, bool)) {
        put(&mut self.bytes, e, at, bits);
        self.define(at, e.bytes(), defined);
    }
}

impl Mask {
    /// True if the lane that starts at this byte is selected.
    pub fn has(&self, byte: usize) -> bool {
        self.bits[byte / 8] >> (byte % 8) & 1 == 1
    }
}

/// Operands of a register instruction besides its destination.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// First.
    pub a: &'a Register,
    /// Second.
    pub b: &'a Register,
    /// Mask.
    pub mask: &'a Mask,
    /// Scalar, address or options.
    pub word: u64,
    /// Further options.
    pub more: u64,
}

fn lanes(e: Elem) -> impl Iterator<Item = usize> {
    (0..WIDTH).step_by(e.bytes())
}

impl Machine {
    /// The runner is about to run a queued vector function.
    pub(super) fn begin_function(&mut self, at: At) {
        self.stretch += 1;
        self.current = at.core;
        self.function =
            Some(Function { core: at.core, line: at.line, squeezed: None, offset: 0, open: None, instructions: 0 });
    }

    /// The vector function has ended.
    pub fn end_function(&mut self) {
        let Some(f) = self.function.take() else { return };
        let at = At { core: f.core, pipe: Pipe::V, line: f.open.or(f.squeezed.map(|s| s.1)).unwrap_or(f.line) };
        if f.open.is_some() || f.squeezed.is_some() {
            let text = "the vector function ends with an unaligned store that was not ended".into();
            self.report_at(at, Code::UnalignedStore, 0, text);
        }
        self.stats.pipes[Pipe::V as usize].cycles += f.instructions;
    }

    fn in_function(&mut self, line: u32) -> Option<At> {
        match &mut self.function {
            Some(f) => {
                f.instructions += 1;
                Some(At { core: f.core, pipe: Pipe::V, line })
            }
            None => {
                self.report(Code::Parameter, line, "a `Reg` instruction stands outside of a vector function".into());
                None
            }
        }
    }

    fn mask_is_set(&mut self, at: At, mask: &Mask) {
        if mask.set != 1 {
            self.report_at(at, Code::Undefined, 0, "a mask register is used before it has a value".into());
        }
    }

    /// A register instruction, by its number in the host header; `d` is its destination.
    pub fn register(&mut self, code: u32, elem: u32, d: &mut Register, x: Operands<'_>, line: u32) {
        let (Some(at), Some(e)) = (self.in_function(line), Elem::from_number(u64::from(elem))) else { return };
        let needs_mask = !matches!(code, 54..=57 | 61 | 62 | 80..=85 | 93..=95 | 97 | 98);
        if needs_mask {
            self.mask_is_set(at, x.mask);
        }
        let mask = |b: usize| x.mask.has(b);
        let old = *d;
        let lane_wise = |f: &dyn Fn(usize) -> Option<(u64, bool)>| -> Option<Register> {
            let mut out = Register::zero();
            for b in lanes(e).filter(|&b| mask(b)) {
                out.set_lane(e, b, f(b)?);
            }
            Some(out)
        };
        let done = match code {
            0..=10 => {
                let op = BINARY[code as usize];
                lane_wise(&|b| {
                    let (p, q) = (x.a.lane(e, b), x.b.lane(e, b));
                    Some((numeric::binary(e, op, p.0, q.0)?, p.1 && q.1))
                })
            }
            16..=26 => {
                let op = BINARY[code as usize - 16];
                lane_wise(&|b| {
                    let p = x.a.lane(e, b);
                    Some((numeric::binary(e, op, p.0, x.word)?, p.1))
                })
            }
            32..=40 => {
                let op = UNARY[code as usize - 32];
                lane_wise(&|b| {
                    let p = x.a.lane(e, b);
                    Some((numeric::unary(e, op, p.0)?, p.1))
                })
            }
            48 if e == Elem::F32 => lane_wise(&|b| {
                let (p, q, r) = (x.a.lane(e, b), x.b.lane(e, b), old.lane(e, b));
                let z = e.number(p.0).mul_add(e.number(q.0), e.number(r.0));
                Some((e.bits(z), p.1 && q.1 && r.1))
            }),
            49 => lane_wise(&|_| Some((x.word, true))),
            50 => {
                let first = x.a.lane(e, 0);
                lane_wise(&|_| Some(first))
            }
            51..=53 => reduce(e, code, x.a, x.mask),
            54 => {
                let mut out = Register::zero();
                for b in lanes(Elem::U32) {
                    out.set_lane(Elem::U16, b / 2, x.a.lane(Elem::U16, b));
                }
                Some(out)
            }
            55 | 56 => {
                let mut out = Register::zero();
                let from = if code == 56 { WIDTH / 2 } else { 0 };
                for b in lanes(Elem::U32) {
                    let low = x.a.lane(Elem::U16, from + b / 2);
                    out.set_lane(Elem::U32, b, low);
                }
                Some(out)
            }
            57 => {
                let mut out = Register::zero();
                for b in lanes(e) {
                    let i = (b / e.bytes()) as i64;
                    let v = match e.float() {
                        Some(_) => e.bits(e.number(x.word) + i as f32),
                        None => e.wrapped(e.integer(x.word).wrapping_add(i)),
                    };
                    out.set_lane(e, b, (v, true));
                }
                Some(out)
            }
            58 => self.squeeze(at, e, x.a, x.mask),
            59 | 60 => self.histogram(at, old, x.a, x.mask, code == 60),
            61 => {
                if let Some(f) = &mut self.function {
                    (f.offset, f.squeezed) = (0, None);
                }
                return;
            }
            62 => {
                self.stretch += 1;
                return;
            }
            64 => convert(e, x),
            72 => {
                let mut out = Register::zero();
                for b in lanes(e) {
                    out.set_lane(e, b, if mask(b) { x.a.lane(e, b) } else { x.b.lane(e, b) });
                }
                Some(out)
            }
            80..=85 => self.load_register(at, code, e, x.word),
            86 if e.bytes() == 4 => Some(self.gather(at, e, x)),
            99 if e.bytes() == 4 => return self.scatter(at, e, x),
            90..=98 => return self.store_register(at, code, e, x),
            _ => None,
        };
        match done {
            Some(r) => *d = r,
            None => self.bad_parameter(at, format!("register instruction {code} does not exist for {e:?}")),
        }
    }

    /// A comparison: 70 with a register, 71 with a scalar. The result has a bit for each selected lane that holds.
    pub fn register_compare(&mut self, code: u32, elem: u32, d: &mut Mask, x: Operands<'_>, line: u32) {
        let (Some(at), Some(e)) = (self.in_function(line), Elem::from_number(u64::from(elem))) else { return };
        self.mask_is_set(at, x.mask);
        let Some(&mode) = COMPARE.get(x.more as usize) else {
            return self.bad_parameter(at, format!("comparison {}", x.more));
        };
        let mut out = Mask { bits: [0; WIDTH / 8], set: 1 };
        for b in lanes(e).filter(|&b| x.mask.has(b)) {
            let right = if code == 70 { x.b.lane(e, b).0 } else { x.word };
            if numeric::compare(e, mode, x.a.lane(e, b).0, right) == Some(true) {
                out.bits[b / 8] |= 1 << (b % 8);
            }
        }
        *d = out;
    }

    fn squeeze(&mut self, at: At, e: Elem, a: &Register, mask: &Mask) -> Option<Register> {
        let mut out = Register::zero();
        let mut to = 0;
        for b in lanes(e).filter(|&b| mask.has(b)) {
            out.set_lane(e, to, a.lane(e, b));
            to += e.bytes();
        }
        let before = self.function.as_mut().and_then(|f| f.squeezed.replace((to, at.line)));
        if let Some((_, line)) = before {
            let text = format!("a second squeeze; what the one of line #{line} left was not stored");
            self.report_at(at, Code::UnalignedStore, line, text);
        }
        Some(out)
    }

    fn histogram(&mut self, at: At, acc: Register, data: &Register, mask: &Mask, upper: bool) -> Option<Register> {
        let mut out = acc;
        let mut defined = true;
        for b in (0..WIDTH).filter(|&b| mask.has(b)) {
            let (v, known) = data.lane(Elem::U8, b);
            defined &= known;
            if (v >= 128) != upper {
                continue;
            }
            let bin = (v % 128) as usize * 2;
            let (count, known) = out.lane(Elem::U16, bin);
            if count == u64::from(u16::MAX) {
                self.bad_parameter(at, "a counter of the histogram overflows".into());
            }
            out.set_lane(Elem::U16, bin, (count + 1, known));
        }
        if !defined {
            out.define(0, WIDTH, false);
        }
        Some(out)
    }

    /// Byte of UB of an address, if an access may happen.
    fn ub_byte(&mut self, at: At, what: Use, address: u64, bytes: usize, align: usize) -> Option<usize> {
        let offset = address.wrapping_sub(BASE + UB * STEP);
        let size = self.config.arch.capacity(Space::Ub, self.config.mixed);
        let verb = crate::machine::access::verb(what);
        if offset >= size as u64 || offset as usize + bytes > size {
            let text = match (offset as i64).abs() < 1 << 30 {
                true => format!("{verb} {bytes} bytes at byte {} of UB, which has {size}", offset as i64),
                false => format!("{verb} {bytes} bytes at address {address:#x}, which is not in UB"),
            };
            self.report_at(at, Code::LocalRange, 0, text);
            return None;
        }
        if !offset.is_multiple_of(align as u64) {
            let text = format!("{verb} at byte {offset} of UB; this access takes multiples of {align}");
            self.report_at(at, Code::Misaligned, 0, text);
            return None;
        }
        Some(offset as usize)
    }

    fn ub() -> Region {
        Region { space: Space::Ub, offset: 0, bytes: usize::MAX / 2 }
    }

    fn load_register(&mut self, at: At, code: u32, e: Elem, address: u64) -> Option<Register> {
        // Whole; one 32-bit element to all lanes; 16-bit elements to the low halves of wider lanes; one 16-bit element; bytes
        // to the low quarters of wider lanes; one byte.
        let (bytes, align) = match code {
            80 => (WIDTH, LINE),
            81 => (4, 4),
            82 => (WIDTH / 2, LINE),
            83 => (2, 2),
            84 => (WIDTH / 4, LINE),
            _ => (1, 1),
        };
        let mut out = Register { bytes: [crate::machine::POISON; WIDTH], defined: [0; WIDTH / 8] };
        let Some(offset) = self.ub_byte(at, Use::Read, address, bytes, align) else { return Some(out) };
        let Some(m) = self.load_touch(at, offset, bytes) else { return Some(out) };
        let memory = &self.memories[m];
        let element = |b: usize, n: usize| {
            let known = memory.defined[offset + b..offset + b + n].iter().all(|&d| d);
            (&memory.bytes[offset + b..offset + b + n], known)
        };
        let (step, from): (usize, &dyn Fn(usize) -> usize) = match code {
            80 => (e.bytes(), &|b| b),
            81 => (4, &|_| 0),
            82 => (4, &|b| b / 2),
            83 => (2, &|_| 0),
            84 => (4, &|b| b / 4),
            _ => (1, &|_| 0),
        };
        let taken = match code {
            80 => e.bytes(),
            81 => 4,
            82 | 83 => 2,
            _ => 1,
        };
        for b in (0..WIDTH).step_by(step) {
            let (bytes, known) = element(from(b), taken);
            out.bytes[b..b + step].fill(0);
            out.bytes[b..b + taken].copy_from_slice(bytes);
            out.define(b, step, known);
        }
        self.moved_in_function(bytes);
        Some(out)
    }

    /// Judges a load; gives the memory.
    fn load_touch(&mut self, at: At, offset: usize, bytes: usize) -> Option<usize> {
        let (m, _) = self.touch(at, Use::Read, Self::ub(), offset, bytes)?;
        let stretch = self.stretch;
        let hidden = self.memories[m].fresh(offset, bytes).iter().find(|f| f.time == stretch).copied();
        if let Some(f) = hidden {
            let text = format!(
                "loads byte {offset} of UB, which line #{} stores in the same vector function, without `LocalMemBar` between",
                f.line
            );
            self.report_at(at, Code::PipeBarrier, f.line, text);
        }
        Some(m)
    }

    /// Elements at distances that `b` holds.
    fn gather(&mut self, at: At, e: Elem, x: Operands<'_>) -> Register {
        let mut out = Register::zero();
        for b in lanes(e).filter(|&b| x.mask.has(b)) {
            let index = x.b.lane(Elem::U32, b);
            let address = x.word.wrapping_add(index.0 * e.bytes() as u64);
            let Some(offset) = self.ub_byte(at, Use::Read, address, e.bytes(), e.bytes()) else { return out };
            let Some(m) = self.load_touch(at, offset, e.bytes()) else { return out };
            let memory = &self.memories[m];
            let known = index.1 && memory.defined[offset..offset + e.bytes()].iter().all(|&d| d);
            out.set_lane(e, b, (get(&memory.bytes, e, offset), known));
        }
        self.moved_in_function(WIDTH);
        out
    }

    /// Elements to distances that `b` holds; of two to one place the later lane stays, as far as the chip says.
    fn scatter(&mut self, at: At, e: Elem, x: Operands<'_>) {
        for b in lanes(e).filter(|&b| x.mask.has(b)) {
            let address = x.word.wrapping_add(x.b.lane(Elem::U32, b).0 * e.bytes() as u64);
            self.store_lanes(at, address, e.bytes(), x.a, e.bytes(), std::iter::once((b, 0)));
        }
    }

    fn moved_in_function(&mut self, bytes: usize) {
        self.stats.pipes[Pipe::V as usize].bytes += bytes as u64;
    }

    fn store_register(&mut self, at: At, code: u32, e: Elem, x: Operands<'_>) {
        let (a, address) = (x.a, x.word);
        match code {
            90 => {
                let selected = lanes(e).filter(|&b| x.mask.has(b)).map(|b| (b, b));
                self.store_lanes(at, address, LINE, a, e.bytes(), selected);
            }
            91 | 92 => {
                let narrow = if code == 91 { 2 } else { 1 };
                let selected = (0..WIDTH).step_by(4).filter(|&b| x.mask.has(b)).map(|b| (b, b / 4 * narrow));
                self.store_lanes(at, address, LINE, a, narrow, selected);
            }
            93..=95 => {
                let bytes = [1, 4, 2][code as usize - 93];
                self.store_lanes(at, address, bytes, a, bytes, std::iter::once((0, 0)));
            }
            96 => {
                let stride = x.more as usize * LINE;
                let any = |j: usize| (0..LINE).any(|b| x.mask.has(j * LINE + b));
                let selected = (0..WIDTH / LINE).filter(|&j| any(j)).map(|j| (j * LINE, j * stride));
                self.store_lanes(at, address, LINE, a, LINE, selected);
            }
            97 => {
                let Some(f) = &mut self.function else { return };
                let (taken, offset) = (f.squeezed.take(), f.offset);
                let Some((bytes, _)) = taken else {
                    let text = "an unaligned store without a squeeze before it".into();
                    return self.report_at(at, Code::UnalignedStore, 0, text);
                };
                f.offset += bytes;
                f.open = Some(at.line);
                let selected = (0..bytes).step_by(e.bytes()).map(|b| (b, b));
                self.store_lanes(at, address + offset as u64, e.bytes(), a, e.bytes(), selected);
            }
            _ => {
                if let Some(f) = &mut self.function {
                    (f.open, f.offset) = (None, 0);
                }
            }
        }
    }

    /// Stores pieces of a register: from its byte, to the byte after the address.
    fn store_lanes(
        &mut self,
        at: At,
        address: u64,
        align: usize,
        a: &Register,
        piece: usize,
        places: impl Iterator<Item = (usize, usize)>,
    ) {
        let places: Vec<(usize, usize)> = places.collect();
        let Some(last) = places.iter().map(|p| p.1 + piece).max() else { return };
        let Some(base) = self.ub_byte(at, Use::Write, address, last, align) else { return };
        // Neighbouring pieces are one access.
        let mut runs: Vec<(usize, usize)> = vec![];
        for &(_, to) in &places {
            match runs.last_mut() {
                Some((from, bytes)) if *from + *bytes == to => *bytes += piece,
                _ => runs.push((to, piece)),
            }
        }
        let by = Fresh { time: self.stretch, instruction: 0, line: at.line };
        let m = Self::memory_of(Space::Ub, at.core);
        for (to, bytes) in runs {
            if self.touch(at, Use::Write, Self::ub(), base + to, bytes).is_none() {
                return;
            }
            self.memories[m].set_fresh(base + to, bytes, by);
            self.moved_in_function(bytes);
        }
        for (from, to) in places {
            let defined: Vec<bool> = (from..from + piece).map(|b| a.is_defined(b, 1)).collect();
            self.memories[m].write(base + to, &a.bytes[from..from + piece], &defined);
        }
    }
}

fn reduce(e: Elem, code: u32, a: &Register, mask: &Mask) -> Option<Register> {
    let mut out = Register::zero();
    let all: Vec<(usize, (u64, bool))> =
        lanes(e).enumerate().filter(|&(_, b)| mask.has(b)).map(|(i, b)| (i, a.lane(e, b))).collect();
    let defined = all.iter().all(|v| v.1.1);
    if code == 51 {
        let value = match e {
            Elem::F32 | Elem::F16 => {
                let mut numbers = vec![0.0; WIDTH / e.bytes()];
                all.iter().for_each(|v| numbers[v.0] = e.number(v.1.0));
                e.bits(numeric::tree(numbers))
            }
            Elem::I32 | Elem::U32 => e.wrapped(all.iter().map(|v| e.integer(v.1.0)).fold(0, i64::wrapping_add)),
            _ => return None,
        };
        out.set_lane(e, 0, (value, defined));
        return Some(out);
    }
    let better = if code == 52 { Compare::Gt } else { Compare::Lt };
    let mut best: Option<(usize, u64)> = None;
    for &(i, (v, _)) in &all {
        let nan = e.float().is_some() && e.number(v).is_nan();
        let take = match best {
            None => true,
            Some((_, b)) if e.float().is_some() && e.number(b).is_nan() => false,
            Some((_, b)) => nan || numeric::compare(e, better, v, b)?,
        };
        if take {
            best = Some((i, v));
        }
    }
    if let Some((i, v)) = best {
        out.set_lane(e, 0, (v, defined));
        out.set_lane(e, e.bytes(), (i as u64, defined));
    }
    Some(out)
}

/// `word`: number of the source type; `more`: rounding, 256 to saturate, 65536 times the part of the wider lane.
fn convert(to: Elem, x: Operands<'_>) -> Option<Register> {
    let from = Elem::from_number(x.word)?;
    let round = *ROUND.get((x.more & 0xff) as usize)?;
    let saturate = x.more & 256 != 0;
    let part = (x.more >> 16) as usize;
    let wide = from.bytes().max(to.bytes());
    let (a, b) = (part * from.bytes() % wide, part * to.bytes() % wide);
    let mut out = Register::zero();
    for lane in (0..WIDTH).step_by(wide).filter(|&l| x.mask.has(l)) {
        let (bits, known) = x.a.lane(from, lane + a);
        out.set_lane(to, lane + b, (numeric::cast(from, to, round, saturate, bits)?, known));
    }
    Some(out)
}

/// By the numbers of the host header.
pub(super) const BINARY: [Binary; 11] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::Shl,
    Binary::Shr,
];
pub(super) const UNARY: [Unary; 9] = [
    Unary::Abs,
    Unary::Sqrt,
    Unary::Exp,
    Unary::Ln,
    Unary::Not,
    Unary::Neg,
    Unary::Relu,
    Unary::Reciprocal,
    Unary::Rsqrt,
];
pub(super) const ROUND: [Round; 6] = [Round::None, Round::Rint, Round::Floor, Round::Ceil, Round::Away, Round::Trunc];
const COMPARE: [Compare; 6] = [Compare::Lt, Compare::Gt, Compare::Eq, Compare::Le, Compare::Ge, Compare::Ne];
