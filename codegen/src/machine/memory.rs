//! Memories of the machine: a block's shared memory, and the tensors of a launch as the only global memory there is.
//!
//! Addresses are made up. Each tensor lives in a slot of its own, far from every other, so an access past its end can
//! never land in a neighbour; the low bits equal those of the real address, so alignment means the same.

use super::shadow::{Access, Conflict, Shadow, Use};
use super::{Clock, Code};
use crate::abi::TensorView;
use crate::host_memory::HostMemory;
use crate::ir::Access as Usage;

/// What unwritten memory holds: NaN in every float format, -1 in signed integers.
pub const POISON: u8 = 0xff;
/// First address of a block's shared memory; address 0 is never valid.
pub const SHARED_BASE: u32 = 0x400;
const SLOT_BITS: u32 = 40;
const PAGE: usize = 4096;

/// Shared memory of the running block.
#[derive(Debug)]
pub struct Shared {
    bytes: Vec<u8>,
    shadow: Shadow,
}

impl Shared {
    /// Poisoned memory of this size.
    pub fn new(bytes: usize) -> Self {
        Shared { bytes: vec![POISON; bytes], shadow: Shadow::new(bytes, false) }
    }

    /// Offset of an access, or why it may not happen.
    pub fn locate(&self, address: u32, bytes: usize, align: usize) -> Result<usize, (Code, String)> {
        let size = self.bytes.len();
        let offset = (address as usize).wrapping_sub(SHARED_BASE as usize);
        if (address as usize) < SHARED_BASE as usize || offset + bytes > size {
            let at = address as i64 - SHARED_BASE as i64;
            return Err((Code::SharedRange, format!("{bytes} bytes at offset {at} of {size} bytes of shared memory")));
        }
        if !offset.is_multiple_of(align) {
            return Err((Code::Misaligned, format!("{bytes} bytes at offset {offset} of shared memory")));
        }
        Ok(offset)
    }

    /// Records an access.
    pub fn touch(&mut self, what: Use, offset: usize, bytes: usize, now: Access, clock: &Clock) -> Option<Conflict> {
        self.shadow.access(what, offset, bytes, now, clock)
    }

    /// The bytes.
    pub fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[offset..offset + len]
    }
}

/// A tensor of a launch.
#[derive(Debug)]
pub struct Tensor {
    /// Parameter's name.
    pub name: String,
    usage: Usage,
    base: u64,
    span: usize,
    view: TensorView,
    /// Private bytes of a writable tensor.
    own: Option<HostMemory>,
    gaps: Option<Vec<bool>>,
    element_bits: usize,
    shadow: Vec<Option<Box<Shadow>>>,
}

/// The tensors of a launch, which are all the global memory there is.
#[derive(Debug, Default)]
pub struct Global {
    tensors: Vec<Tensor>,
}

/// A place in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the tensor.
    pub tensor: usize,
    /// Byte from its first element.
    pub offset: usize,
}

impl Global {
    /// Adds a tensor and gives the address of its first element. A writable tensor gets a private copy of its bytes, so
    /// that several runs of one launch start from the same memory; `None` if the host cannot reach the memory.
    pub fn add(&mut self, name: &str, usage: Usage, view: &TensorView) -> Option<u64> {
        let memory = view.memory.host()?;
        let (span, start) = (view.span_bytes(), view.offset_bytes);
        let own = (usage != Usage::In).then(|| {
            let mut bytes = vec![0; span];
            memory.read(start, &mut bytes);
            HostMemory::from_bytes(&bytes)
        });
        let slot = (self.tensors.len() as u64 + 1) << SLOT_BITS;
        let low = (view.memory.address() + start as u64) % 4096;
        let base = slot + (1 << (SLOT_BITS - 1)) + low;
        self.tensors.push(Tensor {
            name: name.to_string(),
            usage,
            base,
            span,
            view: view.clone(),
            own,
            gaps: gaps(view),
            element_bits: view.dtype.bits(),
            shadow: vec![None; span.div_ceil(PAGE)],
        });
        Some(base)
    }

    /// Place of an access, or why it may not happen.
    pub fn locate(&self, address: u64, bytes: usize, what: Use) -> Result<Place, (Code, String)> {
        let slot = (address >> SLOT_BITS) as usize;
        let Some(t) = slot.checked_sub(1).and_then(|i| self.tensors.get(i)) else {
            return Err((Code::GlobalRange, format!("{bytes} bytes at address {address:#x}, which is in no tensor")));
        };
        let offset = address as i64 - t.base as i64;
        if offset < 0 || offset as usize + bytes > t.span {
            return Err((
                Code::GlobalRange,
                format!("{bytes} bytes at byte {offset} of tensor `{}`, which has {} bytes", t.name, t.span),
            ));
        }
        let place = Place { tensor: slot - 1, offset: offset as usize };
        if !address.is_multiple_of(bytes as u64) {
            return Err((Code::Misaligned, format!("{bytes} bytes at byte {offset} of tensor `{}`", t.name)));
        }
        if let Some(gaps) = &t.gaps {
            let (first, last) = (place.offset * 8 / t.element_bits, ((place.offset + bytes) * 8 - 1) / t.element_bits);
            if gaps[first..=last].contains(&true) {
                let text = format!("{bytes} bytes at byte {offset} of tensor `{}`, between its elements", t.name);
                return Err((Code::GlobalRange, text));
            }
        }
        if t.usage == Usage::In && what != Use::Read {
            return Err((Code::GlobalReadonly, format!("tensor `{}` is an input", t.name)));
        }
        Ok(place)
    }

    /// Records an access.
    pub fn touch(&mut self, what: Use, at: Place, bytes: usize, now: Access, clock: &Clock) -> Option<Conflict> {
        let t = &mut self.tensors[at.tensor];
        if t.usage == Usage::In {
            return None;
        }
        let (mut found, mut from) = (None, at.offset);
        let end = at.offset + bytes;
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

    /// Copies bytes out.
    pub fn read(&self, at: Place, out: &mut [u8]) {
        let t = &self.tensors[at.tensor];
        match (&t.own, t.view.memory.host()) {
            (Some(own), _) => own.read(at.offset, out),
            (None, Some(memory)) => memory.read(t.view.offset_bytes + at.offset, out),
            (None, None) => out.fill(POISON),
        }
    }

    /// Copies bytes in.
    pub fn write(&self, at: Place, bytes: &[u8]) {
        if let Some(own) = &self.tensors[at.tensor].own {
            own.write(at.offset, bytes);
        }
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

impl Tensor {
    /// The bytes of a tensor this launch may have written, with a flag for each that it did write (for an `InOut`
    /// tensor, that it has a value); `None` for an input.
    pub fn result(&self) -> Option<(Vec<u8>, Vec<bool>)> {
        let own = self.own.as_ref()?;
        let written =
            (0..self.span).map(|i| self.shadow[i / PAGE].as_ref().map_or(false, |s| s.is_written(i % PAGE))).collect();
        Some((own.to_bytes(), written))
    }
}

/// For a strided view, which elements of its span are not elements of it.
fn gaps(view: &TensorView) -> Option<Vec<bool>> {
    if view.is_contiguous() || view.num_elements() == 0 {
        return None;
    }
    let len = view.span_bytes() * 8 / view.dtype.bits();
    let mut gaps = vec![true; len];
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
