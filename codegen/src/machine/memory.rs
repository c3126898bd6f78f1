//! Memories of the machine: a block's shared memory, and the tensors of a launch as the only global memory there is.
//!
//! A program accesses its memory itself, at real addresses; the machine is told before and judges. So that a wrong
//! access does no harm, each tensor is a private copy with a margin on both sides, and what a launch wrote is taken from
//! the copies at its end. Only asynchronous engines move bytes here.

use super::shadow::{Access, Conflict, Shadow, Use};
use super::{Clock, Code};
use crate::abi::TensorView;
use crate::host_memory::HostMemory;
use crate::ir::Access as Usage;

/// What unwritten memory holds: NaN in every float format, -1 in signed integers.
pub const POISON: u8 = 0xff;
/// Bytes around a tensor that may be touched without harm.
const MARGIN: usize = 4096;
const PAGE: usize = 4096;

/// Bytes of a block's shared memory, owned by whoever runs the program.
pub trait SharedBytes: std::fmt::Debug {
    /// Address of the first byte.
    fn address(&self) -> u64;
    /// Bytes that may be touched without harm, at least the block's shared memory.
    fn capacity(&self) -> usize;
    /// Copies bytes out.
    fn read(&self, offset: usize, out: &mut [u8]);
    /// Copies bytes in.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Block of the cluster, byte of its shared memory.
    Shared(usize, usize),
    /// Byte of a tensor.
    Tensor(usize, usize),
}

/// An access that may not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// What and where, after "reads" or "writes".
    pub text: String,
    /// It would touch memory that is not the launch's.
    pub wild: bool,
}

/// Shared memory of the running block.
#[derive(Debug)]
pub struct Shared {
    bytes: Box<dyn SharedBytes>,
    size: usize,
    shadow: Shadow,
}

impl Shared {
    /// Shared memory of `size` bytes.
    pub fn new(bytes: Box<dyn SharedBytes>, size: usize) -> Self {
        Shared { bytes, size, shadow: Shadow::new(0, false) }
    }

    /// Poisons everything, also the margin.
    pub fn reset(&mut self) {
        self.shadow = Shadow::new(self.size, false);
        let poison = vec![POISON; (self.size + MARGIN).min(self.bytes.capacity())];
        self.bytes.write(0, &poison);
    }

    /// True if an address is meant to be in shared memory.
    pub fn holds(&self, address: u64) -> bool {
        (self.bytes.address()..self.bytes.address() + self.bytes.capacity() as u64).contains(&address)
    }

    /// Why an access shortly before the first byte may not happen.
    pub fn before(&self, address: u64, bytes: usize) -> Option<Refusal> {
        let distance = self.bytes.address().checked_sub(address).filter(|&d| d <= 1 << 16)?;
        let text = format!("{bytes} bytes at byte -{distance} of shared memory");
        Some(Refusal { code: Code::SharedRange, text, wild: true })
    }

    /// Offset of an access, or why it may not happen.
    pub fn locate(&self, address: u64, bytes: usize) -> Result<usize, Refusal> {
        let offset = (address - self.bytes.address()) as usize;
        let refuse = |code, text| Err(Refusal { code, text, wild: offset + bytes > self.bytes.capacity() });
        if offset + bytes > self.size {
            return refuse(
                Code::SharedRange,
                format!("{bytes} bytes at byte {offset} of {} bytes of shared memory", self.size),
            );
        }
        if !offset.is_multiple_of(bytes) {
            return refuse(Code::Misaligned, format!("{bytes} bytes at byte {offset} of shared memory"));
        }
        Ok(offset)
    }

    /// Records an access.
    pub fn touch(&mut self, what: Use, offset: usize, bytes: usize, now: Access, clock: &Clock) -> Option<Conflict> {
        self.shadow.access(what, offset, bytes, now, clock)
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.bytes.read(offset, out);
    }

    /// Copies bytes in.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes.write(offset, bytes);
    }
}

/// A tensor of a launch.
#[derive(Debug)]
pub struct Tensor {
    /// Parameter's name.
    pub name: String,
    usage: Usage,
    /// Address of the first element.
    base: u64,
    span: usize,
    /// The margin, the span, the margin.
    own: HostMemory,
    /// Byte of `own` where the span starts.
    start: usize,
    gaps: Option<Vec<bool>>,
    element_bits: usize,
    shadow: Vec<Option<Box<Shadow>>>,
}

/// The tensors of a launch, which are all the global memory there is.
#[derive(Debug, Default)]
pub struct Global {
    tensors: Vec<Tensor>,
}

impl Global {
    /// Adds a tensor and gives the address of its first element, which is aligned as the real one is; `None` if the host
    /// cannot reach the memory.
    pub fn add(&mut self, name: &str, usage: Usage, view: &TensorView) -> Option<u64> {
        let memory = view.memory.host()?;
        let span = view.span_bytes();
        let own = HostMemory::zeroed(span + 2 * MARGIN + 512);
        let first = crate::abi::Memory::address(&own);
        let real = view.memory.address() + view.offset_bytes as u64;
        let start = MARGIN + (real.wrapping_sub(first + MARGIN as u64) % 512) as usize;
        own.write(0, &vec![POISON; own.len_bytes()]);
        if usage != Usage::Out {
            let mut bytes = vec![0; span];
            memory.read(view.offset_bytes, &mut bytes);
            own.write(start, &bytes);
        }
        let base = first + start as u64;
        self.tensors.push(Tensor {
            name: name.to_string(),
            usage,
            base,
            span,
            own,
            start,
            gaps: gaps(view),
            element_bits: view.dtype.bits(),
            shadow: vec![None; span.div_ceil(PAGE)],
        });
        Some(base)
    }

    /// Tensor and byte of an access, or why it may not happen.
    pub fn locate(&self, address: u64, bytes: usize, what: Use) -> Result<(usize, usize), Refusal> {
        let near = |t: &Tensor| {
            let low = t.base - t.start as u64;
            (low..low + t.own.len_bytes() as u64).contains(&address)
        };
        let Some(i) = self.tensors.iter().position(near) else {
            let text = format!("{bytes} bytes at address {address:#x}, which is in no tensor");
            return Err(Refusal { code: Code::GlobalRange, text, wild: true });
        };
        let t = &self.tensors[i];
        let offset = address as i64 - t.base as i64;
        let refuse = |code, text| {
            Err(Refusal { code, text, wild: (offset + t.start as i64) as usize + bytes > t.own.len_bytes() })
        };
        if offset < 0 || offset as usize + bytes > t.span {
            let text = format!("{bytes} bytes at byte {offset} of tensor `{}`, which has {} bytes", t.name, t.span);
            return refuse(Code::GlobalRange, text);
        }
        if !address.is_multiple_of(bytes as u64) {
            return refuse(Code::Misaligned, format!("{bytes} bytes at byte {offset} of tensor `{}`", t.name));
        }
        let offset = offset as usize;
        if let Some(gaps) = &t.gaps {
            let (first, last) = (offset * 8 / t.element_bits, ((offset + bytes) * 8 - 1) / t.element_bits);
            if gaps[first..=last].contains(&true) {
                let text = format!("{bytes} bytes at byte {offset} of tensor `{}`, between its elements", t.name);
                return refuse(Code::GlobalRange, text);
            }
        }
        if t.usage == Usage::In && what != Use::Read {
            return refuse(Code::GlobalReadonly, format!("tensor `{}`, which is an input", t.name));
        }
        Ok((i, offset))
    }

    /// Tensor and byte of a run of whole elements that a bulk copy moves, or why it may not.
    pub fn locate_run(&self, address: u64, bytes: usize, what: Use) -> Result<(usize, usize), Refusal> {
        let first = self.locate(address, 1, what)?;
        let (tensor, last) = self.locate(address + bytes as u64 - 1, 1, what)?;
        if tensor == first.0 && last == first.1 + bytes - 1 {
            return Ok(first);
        }
        let text = format!("{bytes} bytes at address {address:#x}, which are not in one tensor");
        Err(Refusal { code: Code::GlobalRange, text, wild: false })
    }

    /// Copies bytes in.
    pub fn write(&mut self, (tensor, offset): (usize, usize), bytes: &[u8]) {
        let t = &mut self.tensors[tensor];
        t.own.write(t.start + offset, bytes);
    }

    /// Records an access.
    pub fn touch(
        &mut self,
        what: Use,
        (tensor, offset): (usize, usize),
        bytes: usize,
        now: Access,
        clock: &Clock,
    ) -> Option<Conflict> {
        let t = &mut self.tensors[tensor];
        if t.usage == Usage::In {
            return None;
        }
        let (mut found, mut from) = (None, offset);
        let end = offset + bytes;
        while from < end {
            let page = from / PAGE;
            let stop = ((page + 1) * PAGE).min(end);
            let shadow = t.shadow[page].get_or_insert_with(|| Box::new(Shadow::new(PAGE, t.usage == Usage::InOut)));
            let c = shadow.access(what, from - page * PAGE, stop - from, now, clock);
            found = found.or(c.map(|c| Conflict { offset: c.offset + page * PAGE, ..c }));
            from = stop;
        }
        found
    }

    /// True if this launch wrote the byte, or it had a content before.
    pub fn is_written(&self, (tensor, offset): (usize, usize)) -> bool {
        let t = &self.tensors[tensor];
        t.usage != Usage::Out || t.shadow[offset / PAGE].as_ref().is_some_and(|s| s.is_written(offset % PAGE))
    }

    /// Copies bytes out.
    pub fn read(&self, (tensor, offset): (usize, usize), out: &mut [u8]) {
        let t = &self.tensors[tensor];
        t.own.read(t.start + offset, out);
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

impl Tensor {
    /// The bytes of a tensor this launch may have written, with a flag for each that it did write (for an `InOut`
    /// tensor, that it was touched); `None` for an input.
    pub fn result(&self) -> Option<(Vec<u8>, Vec<bool>)> {
        if self.usage == Usage::In {
            return None;
        }
        let mut bytes = vec![0; self.span];
        self.own.read(self.start, &mut bytes);
        let written =
            (0..self.span).map(|i| self.shadow[i / PAGE].as_ref().is_some_and(|s| s.is_written(i % PAGE))).collect();
        Some((bytes, written))
    }
}

/// For a strided view, which elements of its span are not elements of it.
fn gaps(view: &TensorView) -> Option<Vec<bool>> {
    if view.is_contiguous() || view.num_elements() == 0 {
        return None;
    }
    let mut gaps = vec![true; view.span_bytes() * 8 / view.dtype.bits()];
    let mut index = vec![0usize; view.shape.len()];
    for _ in 0..view.num_elements() {
        let at: usize = index.iter().zip(&view.strides).map(|(i, s)| i * s).sum();
        gaps[at] = false;
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < view.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Some(gaps)
}
