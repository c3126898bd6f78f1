//! The vector unit of 2201: instructions whose operands are UB tensors.
//!
//! An operand is walked element by element, or in repeats of eight blocks of one line with strides between them.

use super::chip::{LINE, Pipe, Space};
use super::numeric::{self, Binary, Elem, Round, Unary, get, put};
use super::space::Fresh;
use super::{At, Code, Machine, Region};
use crate::machine::shadow::Use;

/// Bytes of one repeat.
const REPEAT: usize = 256;

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub op: Action,
    pub elem: Elem,
    pub scalar: u64,
    pub shape: Shape,
    pub to: Operand,
    pub from: Vec<Operand>,
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Binary(Binary),
    /// With a scalar.
    Scalar(Binary),
    Unary(Unary),
    Cast {
        from: Elem,
        round: Round,
    },
    Duplicate,
    /// Each element to a line of its own.
    Broadcast,
    /// One value a repeat.
    Sum,
    Max,
    Min,
}

/// Part of UB and the lines between blocks and repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub region: Region,
    pub block: i64,
    pub repeat: i64,
}

/// How operands are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// So many elements in a row.
    Count(i64),
    /// The first `mask` elements of each repeat.
    Repeat { mask: i64, repeat: i64 },
}

impl Shape {
    /// Bytes from the operand's start to each element of `size` bytes.
    fn places(self, x: &Operand, size: usize) -> Vec<usize> {
        match self {
            Shape::Count(n) => (0..n as usize).map(|i| i * size).collect(),
            Shape::Repeat { mask, repeat } => {
                let lane = LINE / size;
                let place =
                    |r: usize, e: usize| (r * x.repeat as usize + e / lane * x.block as usize) * LINE + e % lane * size;
                (0..repeat as usize).flat_map(|r| (0..mask as usize).map(move |e| place(r, e))).collect()
            }
        }
    }
}

/// Runs of bytes that places cover.
fn spans(places: &[usize], size: usize) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = vec![];
    for &p in places {
        match out.last_mut() {
            Some((from, bytes)) if *from + *bytes == p => *bytes += size,
            Some((from, _)) if *from == p => {}
            _ => out.push((p, size)),
        }
    }
    out
}

/// Element and whether it is defined.
type Value = (u64, bool);

impl Machine {
    pub(super) fn vector(&mut self, at: At, x: &Instruction) {
        let read = match x.op {
            Action::Cast { from, .. } => from,
            _ => x.elem,
        };
        let size = read.bytes().max(x.elem.bytes());
        let in_range = match x.shape {
            Shape::Count(n) => self.within(at, "the count", n, 1..=i64::from(i32::MAX)),
            Shape::Repeat { mask, repeat } => {
                self.within(at, "the mask", mask, 1..=(REPEAT / size) as i64)
                    & self.within(at, "the number of repeats", repeat, 1..=255)
            }
        };
        if !in_range {
            return;
        }
        for o in std::iter::once(&x.to).chain(&x.from) {
            if !(self.lies_in(at, "an operand", o.region, Space::Ub)
                & self.aligned(at, "an operand", o.region, LINE)
                & self.within(at, "a block stride", o.block, 0..=255)
                & self.within(at, "a repeat stride", o.repeat, 0..=255))
            {
                return;
            }
        }
        let to_places = match x.op {
            Action::Sum | Action::Max | Action::Min => {
                let Shape::Repeat { repeat, .. } = x.shape else { return };
                (0..repeat as usize).map(|r| r * x.to.repeat as usize * x.elem.bytes()).collect()
            }
            Action::Broadcast => {
                let Shape::Repeat { repeat, .. } = x.shape else { return };
                let line = |r: usize, b: usize| (r * x.to.repeat as usize + b * x.to.block as usize) * LINE;
                let lines: Vec<usize> = (0..repeat as usize).flat_map(|r| (0..8).map(move |b| line(r, b))).collect();
                let step = x.elem.bytes();
                lines.iter().flat_map(|&l| (0..LINE / step).map(move |i| l + i * step)).collect()
            }
            _ => x.shape.places(&x.to, x.elem.bytes()),
        };
        let mut inputs = vec![];
        for o in &x.from {
            let places = match (x.op, x.shape) {
                (Action::Broadcast, Shape::Repeat { repeat, .. }) => {
                    (0..8 * repeat as usize).map(|i| i * read.bytes()).collect()
                }
                _ => x.shape.places(o, read.bytes()),
            };
            if self.overlap(at, x, o, &to_places, &places, read) {
                return;
            }
            let Some(values) = self.read_vector(at, o.region, &places, read) else { return };
            inputs.push(values);
        }
        let Some(results) = compute(x, &inputs, to_places.len()) else {
            let text = format!(
                "this instruction does not exist for {:?}{}",
                x.elem,
                match x.op {
                    Action::Cast { from, round } => format!(" from {from:?} rounding {round:?}"),
                    _ => String::new(),
                }
            );
            return self.bad_parameter(at, text);
        };
        self.write_vector(at, x.to.region, &to_places, x.elem, &results);
        let elements = inputs.first().map_or(results.len(), Vec::len).max(results.len());
        self.moved(at, elements * size);
    }

    /// Reports operands that overlap without being the same.
    fn overlap(
        &mut self,
        at: At,
        x: &Instruction,
        from: &Operand,
        to_places: &[usize],
        places: &[usize],
        read: Elem,
    ) -> bool {
        let same = x.to.region.offset == from.region.offset && to_places == places && read.bytes() == x.elem.bytes();
        if same {
            return false;
        }
        let absolute = |r: Region, places: &[usize], size: usize| {
            let mut all: Vec<(usize, usize)> =
                spans(places, size).into_iter().map(|(p, n)| (r.offset + p, r.offset + p + n)).collect();
            all.sort_unstable();
            all
        };
        let a = absolute(x.to.region, to_places, x.elem.bytes());
        let b = absolute(from.region, places, read.bytes());
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if a[i].0 < b[j].1 && b[j].0 < a[i].1 {
                let text = format!("source and destination overlap at byte {} of UB", a[i].0.max(b[j].0));
                self.report_at(at, Code::OperandOverlap, 0, text);
                return true;
            }
            if a[i].1 <= b[j].1 { i += 1 } else { j += 1 }
        }
        false
    }

    /// Reports that the vector unit meets its own result too early.
    fn meets_own(&mut self, at: At, what: &str, offset: usize, bytes: usize, memory: usize) {
        let settled = self.cores[at.core].units[Pipe::V as usize].settled;
        let instruction = self.instruction;
        let found = self.memories[memory]
            .fresh(offset, bytes)
            .iter()
            .find(|f| f.time > settled && f.instruction != instruction)
            .copied();
        if let Some(f) = found {
            let text = format!(
                "{what} byte {offset} of UB, which the vector instruction at line #{} writes, without `PipeBarrier` between",
                f.line
            );
            self.report_at(at, Code::PipeBarrier, f.line, text);
        }
    }

    fn read_vector(&mut self, at: At, r: Region, places: &[usize], elem: Elem) -> Option<Vec<Value>> {
        let mut base = None;
        for (from, bytes) in spans(places, elem.bytes()) {
            let (m, offset) = self.touch(at, Use::Read, r, from, bytes)?;
            self.meets_own(at, "reads", offset, bytes, m);
            base = Some(m);
        }
        let memory = &self.memories[base?];
        let value = |&p: &usize| {
            let from = r.offset + p;
            (get(&memory.bytes, elem, from), memory.defined[from..from + elem.bytes()].iter().all(|&d| d))
        };
        Some(places.iter().map(value).collect())
    }

    fn write_vector(&mut self, at: At, r: Region, places: &[usize], elem: Elem, values: &[Value]) {
        let time = self.cores[at.core].units[Pipe::V as usize].clock.now();
        for (from, bytes) in spans(places, elem.bytes()) {
            let m = Self::memory_of(r.space, at.core);
            if r.offset + from + bytes <= self.memories[m].bytes.len() {
                self.meets_own(at, "writes", r.offset + from, bytes, m);
            }
            let Some((m, offset)) = self.touch(at, Use::Write, r, from, bytes) else { return };
            let by = Fresh { time, instruction: self.instruction, line: at.line };
            self.memories[m].set_fresh(offset, bytes, by);
        }
        let m = Self::memory_of(r.space, at.core);
        let mut bytes = [0; 8];
        for (&p, &(bits, defined)) in places.iter().zip(values) {
            put(&mut bytes, elem, 0, bits);
            self.memories[m].write(r.offset + p, &bytes[..elem.bytes()], &[defined; 8][..elem.bytes()]);
        }
    }
}

/// The elements of the result in the order of its places.
fn compute(x: &Instruction, inputs: &[Vec<Value>], count: usize) -> Option<Vec<Value>> {
    let e = x.elem;
    match x.op {
        Action::Duplicate => Some(vec![(x.scalar, true); count]),
        Action::Binary(op) => {
            let pairs = inputs.first()?.iter().zip(inputs.get(1)?);
            pairs.map(|(a, b)| Some((numeric::binary(e, op, a.0, b.0)?, a.1 && b.1))).collect()
        }
        Action::Scalar(op) => {
            inputs.first()?.iter().map(|a| Some((numeric::binary(e, op, a.0, x.scalar)?, a.1))).collect()
        }
        Action::Unary(op) => inputs.first()?.iter().map(|a| Some((numeric::unary(e, op, a.0)?, a.1))).collect(),
        Action::Cast { from, round } => {
            inputs.first()?.iter().map(|a| Some((numeric::cast(from, e, round, true, a.0)?, a.1))).collect()
        }
        Action::Broadcast => {
            let each = LINE / e.bytes();
            Some(inputs.first()?.iter().flat_map(|&v| std::iter::repeat_n(v, each)).collect())
        }
        Action::Sum | Action::Max | Action::Min => {
            let Shape::Repeat { mask, .. } = x.shape else { return None };
            if !matches!(e, Elem::F32 | Elem::F16) {
                return None;
            }
            let reduce = |lanes: &[Value]| {
                let numbers = lanes.iter().map(|v| e.number(v.0));
                let value = match x.op {
                    Action::Sum => {
                        let mut all: Vec<f32> = numbers.collect();
                        all.resize(REPEAT / e.bytes(), 0.0);
                        numeric::tree(all)
                    }
                    Action::Min => {
                        numbers.fold(f32::INFINITY, |a, b| if b.is_nan() || a.is_nan() { f32::NAN } else { a.min(b) })
                    }
                    _ => numbers
                        .fold(f32::NEG_INFINITY, |a, b| if b.is_nan() || a.is_nan() { f32::NAN } else { a.max(b) }),
                };
                (e.bits(value), lanes.iter().all(|v| v.1))
            };
            Some(inputs.first()?.chunks(mask as usize).map(reduce).collect())
        }
    }
}
