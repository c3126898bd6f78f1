//! What the host header calls: a number and words, decoded into instructions.

use super::chip::{Pipe, Space};
use super::copy::{In, Load, LoadShape, NdToNz, Out, Pad, ToL1};
use super::cube::{Fixpipe, Product, Target};
use super::numeric::Elem;
use super::register::{BINARY, ROUND, UNARY};
use super::vector::{Action, Instruction, Operand, Shape};
use super::{At, Code, Flow, Machine, Region, Work};
use crate::machine::shadow::Use;

/// Reads words one by one; missing ones are 0.
struct Words<'a>(std::slice::Iter<'a, u64>);

impl Words<'_> {
    fn word(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }
    fn signed(&mut self) -> i64 {
        self.word() as i64
    }
    /// Number of the memory and the byte in one word, the length in the next.
    fn region(&mut self) -> Region {
        let (place, bytes) = (self.word(), self.word() as usize);
        let space = Space::ALL.get((place >> 32) as usize).copied().unwrap_or(Space::Ub);
        Region { space, offset: place as u32 as usize, bytes }
    }
    fn elem(&mut self) -> Option<Elem> {
        Elem::from_number(self.word())
    }
    fn pipe(&mut self) -> Option<Pipe> {
        Pipe::from_number(self.word())
    }
}

impl Machine {
    /// An instruction of the running core, by its number in the host header. When the core may go on, its value is in
    /// [`Machine::result`].
    pub fn call(&mut self, code: u32, words: &[u64], line: u32) -> Flow {
        self.result = 0;
        match self.decode(code, &mut Words(words.iter()), line) {
            Some(flow) => flow,
            None => {
                let text = format!("instruction {code} with {words:?} is not modelled");
                self.report(Code::Unsupported, line, text);
                Flow::Go
            }
        }
    }

    fn decode(&mut self, code: u32, w: &mut Words<'_>, line: u32) -> Option<Flow> {
        Some(match code {
            1 => {
                self.cores[self.current].ready_to_run = true;
                Flow::Go
            }
            2 => {
                let r = w.region();
                self.tensor(r, line);
                Flow::Go
            }
            3 => {
                let (from, to) = (w.pipe()?, w.pipe()?);
                self.set_flag(from, to, w.word(), line)
            }
            4 => {
                let (from, to) = (w.pipe()?, w.pipe()?);
                self.wait_flag(from, to, w.word(), line)
            }
            5 => {
                let pipe = w.pipe();
                self.pipe_barrier(pipe, line)
            }
            6 | 7 => {
                let (mode, pipe, id) = (w.word() as u8, w.pipe()?, w.word());
                if code == 6 { self.cross_set(mode, pipe, id, line) } else { self.cross_wait(mode, pipe, id, line) }
            }
            8 => {
                let (address, bytes) = (w.word(), (w.word() as usize).min(8));
                self.scalar_global(address, bytes, line);
                Flow::Go
            }
            9 => {
                let (r, from, bytes) = (w.region(), w.word() as usize, (w.word() as usize).min(8));
                self.scalar_local(r, from, bytes, line);
                Flow::Go
            }
            10 => {
                let (to, from, element) = (w.region(), w.word(), w.word() as usize);
                let (count, length, from_gap, to_gap) = (w.signed(), w.signed(), w.signed(), w.signed());
                let is_pad = w.word() != 0;
                let pad = Pad { left: w.signed(), right: w.signed(), value: w.word() };
                let x = In { to, from, element, count, length, from_gap, to_gap, pad: is_pad.then_some(pad) };
                self.issue(Pipe::Mte2, line, Work::CopyIn(x))
            }
            11 => {
                let (to, from) = (w.word(), w.region());
                let (count, length, from_gap, to_gap) = (w.signed(), w.signed(), w.signed(), w.signed());
                self.issue(Pipe::Mte3, line, Work::CopyOut(Out { to, from, count, length, from_gap, to_gap }))
            }
            12 => {
                let (to, from) = (w.region(), w.region());
                let (count, length, from_gap, to_gap) = (w.signed(), w.signed(), w.signed(), w.signed());
                self.issue(Pipe::Mte3, line, Work::ToL1(ToL1 { to, from, count, length, from_gap, to_gap }))
            }
            13 => {
                let (to, from, element) = (w.region(), w.word(), w.word() as usize);
                let (matrices, rows, columns) = (w.signed(), w.signed(), w.signed());
                let (from_stride, block_stride, row_stride) = (w.signed(), w.signed(), w.signed());
                let x = NdToNz { to, from, element, matrices, rows, columns, from_stride, block_stride, row_stride };
                if self.cores[self.current].kind != super::Kind::Cube {
                    let text = "a copy from rows to column blocks on a vector core".into();
                    self.report(Code::CoreKind, line, text);
                    return Some(Flow::Go);
                }
                self.issue(Pipe::Mte2, line, Work::NdToNz(x))
            }
            14 | 15 => {
                let (to, from, element, transpose) = (w.region(), w.region(), w.word() as usize, w.word() != 0);
                let shape = if code == 14 {
                    let (start, repeat, from_stride) = (w.signed(), w.signed(), w.signed());
                    LoadShape::Repeat { start, repeat, from_stride, to_gap: w.signed() }
                } else {
                    let (m_start, k_start, m, k) = (w.signed(), w.signed(), w.signed(), w.signed());
                    LoadShape::Steps { m_start, k_start, m, k, from_stride: w.signed(), to_stride: w.signed() }
                };
                self.issue(Pipe::Mte1, line, Work::Load(Load { to, from, element, transpose, shape }))
            }
            16 => {
                let (c, a, b, elem) = (w.region(), w.region(), w.region(), w.elem()?);
                let (m, n, k, fresh) = (w.signed(), w.signed(), w.signed(), w.word() != 0);
                let (unit_flag, source) = (w.word(), w.word() != 0);
                let x = Product { c, a, b, elem, m, n, k, fresh, unit_flag, source };
                self.issue(Pipe::M, line, Work::Product(x))
            }
            17 | 18 => {
                let to = if code == 17 {
                    Target::Global(w.word())
                } else {
                    Target::Ub { region: w.region(), split: w.word(), core: w.word() }
                };
                let (from, m, n) = (w.region(), w.signed(), w.signed());
                let (from_stride, to_stride, matrices) = (w.signed(), w.signed(), w.signed());
                let x = Fixpipe { to, from, m, n, from_stride, to_stride, matrices };
                self.issue(Pipe::Fix, line, Work::Fixpipe(x))
            }
            19 => {
                let x = instruction(w)?;
                self.issue(Pipe::V, line, Work::Vector(Box::new(x)))
            }
            20 => self.spin(),
            21 => {
                let (r, from, bytes, value) = (w.region(), w.word() as usize, (w.word() as usize).min(8), w.word());
                self.scalar_store(r, from, &value.to_le_bytes()[..bytes], line);
                Flow::Go
            }
            _ => return None,
        })
    }

    /// `GetValue` of global memory.
    fn scalar_global(&mut self, address: u64, bytes: usize, line: u32) {
        self.count(line);
        let at = At { core: self.current, pipe: Pipe::S, line };
        let (value, defined) = self.read_global(at, address, bytes);
        self.scalar(at, &value, &defined);
        self.moved(at, bytes);
    }

    /// `GetValue` of UB.
    fn scalar_local(&mut self, r: Region, from: usize, bytes: usize, line: u32) {
        self.count(line);
        let at = At { core: self.current, pipe: Pipe::S, line };
        if !self.lies_in(at, "the tensor", r, Space::Ub) {
            return;
        }
        if let Some((m, offset)) = self.touch(at, Use::Read, r, from, bytes) {
            let value = self.memories[m].bytes[offset..offset + bytes].to_vec();
            let defined = self.memories[m].defined[offset..offset + bytes].to_vec();
            self.scalar(at, &value, &defined);
        }
    }

    /// `SetValue` of UB.
    fn scalar_store(&mut self, r: Region, from: usize, value: &[u8], line: u32) {
        self.count(line);
        let at = At { core: self.current, pipe: Pipe::S, line };
        if self.lies_in(at, "the tensor", r, Space::Ub)
            && let Some((m, offset)) = self.touch(at, Use::Write, r, from, value.len())
        {
            self.memories[m].write(offset, value, &[true; 8][..value.len()]);
        }
    }

    fn scalar(&mut self, at: At, value: &[u8], defined: &[bool]) {
        if defined.contains(&false) {
            self.report_at(at, Code::Undefined, 0, "the scalar unit reads what nothing has defined".into());
        }
        let mut word = [0; 8];
        word[..value.len()].copy_from_slice(value);
        self.result = u64::from_le_bytes(word);
    }
}

/// A vector instruction: kind, number within the kind, types, scalar, shape, operands.
fn instruction(w: &mut Words<'_>) -> Option<Instruction> {
    let (kind, number, elem, other, scalar) = (w.word(), w.word() as usize, w.elem()?, w.elem()?, w.word());
    let (is_repeat, count, repeat) = (w.word() != 0, w.signed(), w.signed());
    let op = match kind {
        0 => Action::Binary(*BINARY.get(number)?),
        1 => Action::Scalar(*BINARY.get(number)?),
        2 => Action::Unary(*UNARY.get(number)?),
        3 => Action::Cast { from: other, round: *ROUND.get(number)? },
        4 => Action::Duplicate,
        5 => Action::Broadcast,
        6 => *[Action::Sum, Action::Max, Action::Min].get(number)?,
        _ => return None,
    };
    let operands = w.word();
    let mut operand = || Operand { region: w.region(), block: w.signed(), repeat: w.signed() };
    let to = operand();
    let from = (0..operands.min(4)).map(|_| operand()).collect();
    let shape = if is_repeat { Shape::Repeat { mask: count, repeat } } else { Shape::Count(count) };
    Some(Instruction { op, elem, scalar, shape, to, from })
}
