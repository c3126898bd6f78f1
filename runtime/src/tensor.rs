//! Tensors up and down: host tensors to views on a device and back, strided views included.

use crate::device::Device;
use crate::error::{Error, Result};
use kiln_codegen::abi::TensorView;
use kiln_codegen::formats;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;

impl Device {
    /// Copies a host tensor to memory of its own.
    ///
    /// # Errors
    /// Data whose length does not fit the shape; not enough memory.
    pub fn upload(&self, tensor: &HostTensor) -> Result<TensorView> {
        let want = tensor.dtype.bytes(tensor.num_elements());
        if tensor.data.len() != want {
            return Err(Error::Tensor {
                what: format!("upload of {} {:?}", tensor.dtype, tensor.shape),
                expected: format!("{want} bytes"),
                got: format!("{} bytes", tensor.data.len()),
            });
        }
        let memory = self.alloc(want)?;
        self.write(&*memory, 0, &tensor.data)?;
        Ok(TensorView::contiguous(tensor.dtype, &tensor.shape, memory))
    }

    /// As [`Device::upload`], with `gap` elements of zero bytes behind each piece of the first axis.
    ///
    /// # Errors
    /// As there, and elements of half a byte that would end within one.
    pub fn upload_apart(&self, tensor: &HostTensor, gap: usize) -> Result<TensorView> {
        let rows = tensor.shape.first().copied().unwrap_or(1);
        let row = tensor.num_elements() / rows.max(1);
        let (piece, step) = (tensor.dtype.bytes(row), tensor.dtype.bytes(row + gap));
        if piece * rows != tensor.data.len() || step * 8 != (row + gap) * tensor.dtype.bits() {
            return Err(Error::Tensor {
                what: format!("upload of {} {:?} with gaps of {gap}", tensor.dtype, tensor.shape),
                expected: "pieces of whole bytes".into(),
                got: format!("{} bytes", tensor.data.len()),
            });
        }
        let memory = self.alloc(rows * step)?;
        for (i, bytes) in tensor.data.chunks(piece.max(1)).enumerate() {
            self.write(&*memory, i * step, bytes)?;
        }
        let mut view = TensorView::contiguous(tensor.dtype, &tensor.shape, memory);
        if let Some(stride) = view.strides.first_mut() {
            *stride = row + gap;
        }
        Ok(view)
    }

    /// A contiguous tensor of zero bytes.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<TensorView> {
        let memory = self.alloc(dtype.bytes(shape.iter().product()))?;
        Ok(TensorView::contiguous(dtype, shape, memory))
    }

    /// Copies a view to the host, after everything enqueued on the device has run.
    ///
    /// # Errors
    /// A view of another device or one that leaves its memory; a fault of a kernel that ran.
    pub fn download(&self, view: &TensorView) -> Result<HostTensor> {
        let what = || format!("download of {} {:?}", view.dtype, view.shape);
        if view.memory.device() != self.memory_device() {
            return Err(Error::Tensor {
                what: what(),
                expected: format!("memory on {}", self.memory_device()),
                got: format!("memory on {}", view.memory.device()),
            });
        }
        let span = view.span_bytes();
        let have = view.memory.len_bytes();
        if view.offset_bytes.checked_add(span).is_none_or(|end| end > have) {
            return Err(Error::Tensor {
                what: what(),
                expected: format!("a view inside {have} bytes"),
                got: format!("{span} bytes at offset {}", view.offset_bytes),
            });
        }
        let mut bytes = vec![0; span];
        self.read(&*view.memory, view.offset_bytes, &mut bytes)?;
        if view.is_contiguous() {
            return Ok(HostTensor { dtype: view.dtype, shape: view.shape.clone(), data: bytes });
        }
        let mut out = HostTensor::zeros(view.dtype, &view.shape);
        let mut index = vec![0; view.shape.len()];
        for i in 0..view.num_elements() {
            let at = index.iter().zip(&view.strides).map(|(i, s)| i * s).sum();
            formats::store_bits(&mut out.data, view.dtype, i, formats::load_bits(&bytes, view.dtype, at));
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                if index[axis] < view.shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_strided_download() {
        let cpu = crate::open("cpu").expect("always there");
        let t = HostTensor::from_f64(DType::Bf16, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut view = cpu.upload(&t).expect("fits");
        assert_eq!(cpu.download(&view).expect("same device"), t);
        view.shape = vec![3, 2];
        view.strides = vec![1, 3];
        assert_eq!(cpu.download(&view).expect("transposed").to_f64(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        view.offset_bytes = 4;
        let e = cpu.download(&view).expect_err("leaves its memory");
        assert_eq!(e.to_string(), "download of bf16 [3, 2]: expected a view inside 12 bytes, got 12 bytes at offset 4");
        let short = HostTensor { data: vec![0; 3], ..t };
        assert_eq!(
            cpu.upload(&short).expect_err("short").to_string(),
            "upload of bf16 [2, 3]: expected 12 bytes, got 3 bytes"
        );
    }
}
