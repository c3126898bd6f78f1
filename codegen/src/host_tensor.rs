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
        (0..self.num_elements()).map(|i| formats::decode_f64(self.dtype, self.bits(i))).collect()
    }
    /// Bit pattern of element `i`.
    pub fn bits(&self, i: usize) -> u64 {
        formats::load_bits(&self.data, self.dtype, i)
    }
}
