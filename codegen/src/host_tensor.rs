//! A tensor in plain host bytes, for references, golden cases and comparisons. Contiguous, row-major, little endian.

use crate::formats;
use crate::ir::DType;

/// Contiguous tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Bytes, `dtype.bytes(num_elements)` of them.
    pub data: Vec<u8>,
}

impl HostTensor {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
    /// All zero bytes.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Self {
        let n: usize = shape.iter().product();
        HostTensor { dtype, shape: shape.to_vec(), data: vec![0; dtype.bytes(n)] }
    }
    /// Encodes numbers, rounding as `Cast` does from f64 through f32 for float formats.
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        let mut t = HostTensor::zeros(dtype, shape);
        for (i, &x) in values.iter().enumerate() {
            formats::store_bits(&mut t.data, dtype, i, formats::encode_f64(dtype, x));
        }
        t
    }
    /// Decodes every element; integers exactly up to 2^53.
    pub fn to_f64(&self) -> Vec<f64> {
        // Large tensors of these formats are common, and one element at a time is slow.
        if self.dtype.bits() == 8 {
            let table: Vec<f64> = (0..256).map(|code| formats::decode_f64(self.dtype, code)).collect();
            return self.data.iter().map(|&code| table[code as usize]).collect();
        }
        if self.dtype == DType::Bf16 {
            let (pairs, _) = self.data.as_chunks::<2>();
            return pairs.iter().map(|&b| formats::decode_f64(DType::Bf16, u16::from_le_bytes(b).into())).collect();
        }
        if self.dtype == DType::F32 {
            let (words, _) = self.data.as_chunks::<4>();
            return words.iter().map(|&b| formats::decode_f64(DType::F32, u32::from_le_bytes(b).into())).collect();
        }
        (0..self.num_elements()).map(|i| formats::decode_f64(self.dtype, self.bits(i))).collect()
    }
    /// The pieces `pieces` of an axis, each of `span` elements or up to the end of the axis.
    ///
    /// # Panics
    /// If the axis does not exist, `span` is zero, or a piece begins behind the axis's end.
    pub fn pick(&self, axis: usize, span: usize, pieces: &[usize]) -> HostTensor {
        let extent = self.shape[axis];
        let inner: usize = self.shape[axis + 1..].iter().product();
        let outer: usize = self.shape[..axis].iter().product();
        let ranges: Vec<_> = pieces.iter().map(|&p| p * span..(p * span + span).min(extent)).collect();
        let mut shape = self.shape.clone();
        shape[axis] = ranges.iter().map(ExactSizeIterator::len).sum();
        let mut out = HostTensor::zeros(self.dtype, &shape);
        let mut at = 0;
        for o in 0..outer {
            for range in &ranges {
                let (first, count) = ((o * extent + range.start) * inner, range.len() * inner);
                if self.dtype.bits() >= 8 {
                    let (from, n) = (self.dtype.bytes(first), self.dtype.bytes(count));
                    out.data[self.dtype.bytes(at)..][..n].copy_from_slice(&self.data[from..from + n]);
                } else {
                    for i in 0..count {
                        formats::store_bits(&mut out.data, self.dtype, at + i, self.bits(first + i));
                    }
                }
                at += count;
            }
        }
        out
    }
    /// Bit pattern of element `i`.
    pub fn bits(&self, i: usize) -> u64 {
        formats::load_bits(&self.data, self.dtype, i)
    }
}
