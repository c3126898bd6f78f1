//! Tensor maps: what a kernel tells the tensor memory accelerator (TMA) about a tensor, as data.
//!
//! [`TensorMapSpec`] is part of a signature and speaks of symbols; `bind::tensor_map` makes a [`TensorMap`] of it, with the
//! numbers of one launch. How a driver encodes one, and how the simulated chip sees it, is the runtime's.
//!
//! Elements outside the tensor read as zero and are not written. Element strides are 1.
//! Source of the rules: CUDA driver API, `cuTensorMapEncodeTiled`.

use crate::ir::{DType, IxId, ParamId};

/// Most axes of a map.
pub const AXES_MAX: usize = 5;
/// Addresses and strides are multiples of this many bytes.
pub const ALIGN_BYTES: u64 = 16;
/// Largest extent of a box on one axis.
pub const BOX_MAX: u32 = 256;
/// Largest extent of an axis.
pub const EXTENT_MAX: u64 = 1 << 32;
/// Strides are below this many bytes.
pub const STRIDE_END: u64 = 1 << 40;

/// A tensor map as a kernel's signature asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMapSpec {
    /// The tensor.
    pub param: ParamId,
    /// Element type the map speaks of; whole bytes. It may differ from the parameter's for views of bytes.
    pub dtype: DType,
    /// First element, in elements of `dtype` from the parameter's first byte; `None` is 0.
    pub offset: Option<IxId>,
    /// One to five axes, innermost first.
    pub axes: Vec<MapAxis>,
    /// How a box lies in shared memory.
    pub swizzle: Swizzle,
    /// How much the second-level cache fetches at a time.
    pub l2_promotion: L2Promotion,
}

/// An axis of a tensor map. Extent and stride are expressions of symbols and constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAxis {
    /// Elements.
    pub extent: IxId,
    /// Distance of neighbours in elements of the map's dtype; 1 on the innermost axis.
    pub stride: IxId,
    /// Elements of a box, 1 to 256.
    pub box_extent: u32,
}

/// Order of 16-byte units within a box in shared memory: bits 4.. of an address are combined by exclusive or with bits 7..
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// As they come.
    #[default]
    None,
    /// Over rows of 32 bytes: one bit.
    B32,
    /// Over rows of 64 bytes: two bits.
    B64,
    /// Over rows of 128 bytes: three bits.
    B128,
}

impl Swizzle {
    /// Longest innermost row of a box in bytes; `None` without a limit.
    pub const fn span_bytes(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }
}

/// Granularity of fetches into the second-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum L2Promotion {
    /// As needed.
    None,
    /// 64 bytes.
    B64,
    /// 128 bytes.
    B128,
    /// 256 bytes.
    #[default]
    B256,
}

/// A tensor map with the numbers of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Element type.
    pub dtype: DType,
    /// Address of the first element.
    pub address: u64,
    /// Elements of each axis, innermost first.
    pub extents: Vec<u64>,
    /// Distance of neighbours in bytes, of each axis but the innermost.
    pub strides_bytes: Vec<u64>,
    /// Elements of a box on each axis.
    pub boxes: Vec<u32>,
    /// Layout in shared memory.
    pub swizzle: Swizzle,
    /// Cache granularity.
    pub l2_promotion: L2Promotion,
}

/// A rule that a map breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFault {
    /// The fault is the kernel's (its boxes), not the tensor's.
    pub of_kernel: bool,
    /// What TMA takes.
    pub expected: String,
    /// What the map has.
    pub got: String,
}

impl TensorMap {
    /// Checks what the hardware and its driver demand. An extent of 0 is allowed here: nothing of such a tensor exists.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), MapFault> {
        let rank = self.extents.len();
        let kernel = |expected: String, got: String| Err(MapFault { of_kernel: true, expected, got });
        let tensor = |expected: String, got: String| Err(MapFault { of_kernel: false, expected, got });
        if !(1..=AXES_MAX).contains(&rank) || self.strides_bytes.len() + 1 != rank || self.boxes.len() != rank {
            let got = format!("{rank} extents, {} strides, {} box extents", self.strides_bytes.len(), self.boxes.len());
            return kernel(format!("a tensor map of 1 to {AXES_MAX} axes"), got);
        }
        if self.dtype.bits() < 8 {
            return kernel("a tensor map of elements of whole bytes".into(), self.dtype.to_string());
        }
        for (axis, &n) in self.boxes.iter().enumerate() {
            if !(1..=BOX_MAX).contains(&n) {
                return kernel(
                    format!("a box of 1 to {BOX_MAX} elements on axis {axis}, innermost first"),
                    n.to_string(),
                );
            }
        }
        let row = self.box_row_bytes();
        if !row.is_multiple_of(ALIGN_BYTES) {
            return kernel(format!("rows of a box that are a multiple of {ALIGN_BYTES} bytes"), format!("{row} bytes"));
        }
        if let Some(span) = self.swizzle.span_bytes().filter(|&span| row > span) {
            return kernel(
                format!("rows of a box within the {span} bytes it is swizzled over"),
                format!("{row} bytes"),
            );
        }
        if !self.address.is_multiple_of(ALIGN_BYTES) {
            return tensor(
                format!("an address that is a multiple of {ALIGN_BYTES} bytes"),
                format!("{:#x}", self.address),
            );
        }
        for (axis, &n) in self.extents.iter().enumerate() {
            if n > EXTENT_MAX {
                return tensor(format!("at most {EXTENT_MAX} elements on axis {axis}, innermost first"), n.to_string());
            }
        }
        for (axis, &s) in self.strides_bytes.iter().enumerate() {
            if s == 0 || !s.is_multiple_of(ALIGN_BYTES) || s >= STRIDE_END {
                let axis = axis + 1;
                let rule = format!("a positive multiple of {ALIGN_BYTES} below {STRIDE_END}");
                return tensor(
                    format!("a stride in bytes on axis {axis}, innermost first, that is {rule}"),
                    s.to_string(),
                );
            }
        }
        Ok(())
    }

    /// Bytes of the innermost axis of a box.
    pub fn box_row_bytes(&self) -> u64 {
        u64::from(self.boxes.first().copied().unwrap_or(0)) * (self.dtype.bits() as u64 / 8)
    }

    /// True if no element exists.
    pub fn is_empty(&self) -> bool {
        self.extents.contains(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> TensorMap {
        TensorMap {
            dtype: DType::Bf16,
            address: 0x1000,
            extents: vec![100, 7, 3],
            strides_bytes: vec![208, 1456],
            boxes: vec![64, 4, 1],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::B256,
        }
    }

    fn refused(change: impl FnOnce(&mut TensorMap)) -> String {
        let mut map = good();
        change(&mut map);
        let f = map.check().expect_err("a rule is broken");
        format!("{}: {}, got {}", if f.of_kernel { "kernel" } else { "tensor" }, f.expected, f.got)
    }

    #[test]
    fn every_rule() {
        assert_eq!(good().check(), Ok(()));
        assert_eq!(TensorMap { extents: vec![0, EXTENT_MAX, 1], ..good() }.check(), Ok(()));
        for (change, text) in [
            (|m: &mut TensorMap| m.address += 8, "tensor: an address that is a multiple of 16 bytes, got 0x1008"),
            (
                |m| m.strides_bytes[0] = 200,
                "tensor: a stride in bytes on axis 1, innermost first, that is a positive multiple \
                                            of 16 below 1099511627776, got 200",
            ),
            (
                |m| m.strides_bytes[1] = 0,
                "tensor: a stride in bytes on axis 2, innermost first, that is a positive multiple \
                                          of 16 below 1099511627776, got 0",
            ),
            (
                |m| m.strides_bytes[1] = STRIDE_END,
                "tensor: a stride in bytes on axis 2, innermost first, that is a positive \
                                                   multiple of 16 below 1099511627776, got 1099511627776",
            ),
            (
                |m| m.extents[2] = EXTENT_MAX + 1,
                "tensor: at most 4294967296 elements on axis 2, innermost first, got \
                                                 4294967297",
            ),
            (|m| m.boxes[1] = 257, "kernel: a box of 1 to 256 elements on axis 1, innermost first, got 257"),
            (|m| m.boxes[2] = 0, "kernel: a box of 1 to 256 elements on axis 2, innermost first, got 0"),
            (|m| m.boxes[0] = 60, "kernel: rows of a box that are a multiple of 16 bytes, got 120 bytes"),
            (|m| m.boxes[0] = 72, "kernel: rows of a box within the 128 bytes it is swizzled over, got 144 bytes"),
            (|m| m.dtype = DType::E2m1, "kernel: a tensor map of elements of whole bytes, got e2m1"),
            (|m| m.extents.clear(), "kernel: a tensor map of 1 to 5 axes, got 0 extents, 2 strides, 3 box extents"),
        ] as [(fn(&mut TensorMap), &str); 11]
        {
            assert_eq!(refused(change), text);
        }
    }
}
