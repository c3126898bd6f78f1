//! Products of NVIDIA's cuBLASLt, which is loaded at run time: yardsticks that Kiln's own products are compared with.
//!
//! Kiln never calls it to compute a result of its own. Not here: what is multiplied and how it is judged.

use super::Gpu;
use crate::device::library::{Kind, Product, Products};
use crate::device::lock;
use crate::error::{Error, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t as Desc, cublasLtMatmulMatrixScale_t as Scale,
    cudaDataType_t as Type,
};
use cudarc::driver::CudaStream;
use kiln_codegen::abi::{Memory, TensorView};
use kiln_codegen::ir::DType;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Workspace of all products of a library object: what the vendor recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`, which the bindings leave out.
const PLAIN: i32 = 0;
const TRANSPOSED: i32 = 1;

/// First version with scales a block.
const BLOCK_SCALES: usize = 120_900;

/// The library on one stream, with the products prepared so far.
#[derive(Debug)]
pub(super) struct CublasLt {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    handle: sys::cublasLtHandle_t,
    workspace: Arc<dyn Memory>,
    products: Mutex<Vec<Prepared>>,
}

/// A product with everything the call needs; the views keep its tensors alive.
#[derive(Debug)]
struct Prepared {
    desc: sys::cublasLtMatmulDesc_t,
    /// Layouts of `b`, `a`, `d`.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: cublasLtMatmulAlgo_t,
    product: Product,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: made by the matching calls, destroyed once; a product that was launched has copied what it needs.
        unsafe {
            let _ = result::destroy_matmul_desc(self.desc);
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        lock(&self.products).clear();
        let _ = self.gpu.context.bind_to_thread();
        let _ = self.stream.synchronize();
        // SAFETY: made by `create_handle`, destroyed once, with nothing of it in flight.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn element(dtype: DType) -> Option<Type> {
    match dtype {
        DType::Bf16 => Some(Type::CUDA_R_16BF),
        DType::E4m3 => Some(Type::CUDA_R_8F_E4M3),
        DType::F32 => Some(Type::CUDA_R_32F),
        DType::F16
        | DType::E5m2
        | DType::E2m1
        | DType::E8m0
        | DType::I8
        | DType::U8
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::Bool => None,
    }
}

fn address(v: &TensorView) -> u64 {
    v.memory.address() + v.offset_bytes as u64
}

impl CublasLt {
    pub(super) fn new(gpu: Arc<Gpu>, stream: Arc<CudaStream>, workspace: Arc<dyn Memory>) -> Result<Self> {
        // SAFETY: opens the library by name, which runs its initialisers and nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Unsupported {
                what: "cuBLASLt".into(),
                expected: "libcublasLt.so of CUDA 13 where the loader finds it (LD_LIBRARY_PATH)".into(),
                got: "no such library".into(),
            });
        }
        gpu.context.bind_to_thread().map_err(|e| gpu.error("selecting the device", e))?;
        let handle = result::create_handle().map_err(|e| refused("creating a handle", e))?;
        Ok(CublasLt { gpu, stream, handle, workspace, products: Mutex::default() })
    }

    fn version(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Sets an attribute of a descriptor.
    fn set<T>(&self, p: &Prepared, attribute: Desc, value: &T) -> Result<()> {
        // SAFETY: a live descriptor; the library copies the bytes of a live value of the size it has.
        unsafe {
            result::set_matmul_desc_attribute(p.desc, attribute, (value as *const T).cast::<c_void>(), size_of::<T>())
        }
        .map_err(|e| refused(&format!("setting {attribute:?}"), e))
    }
}

fn refused(call: &str, e: CublasError) -> Error {
    Error::Unsupported {
        what: format!("cuBLASLt, {call}"),
        expected: "a product it supports on this device".into(),
        got: e.to_string(),
    }
}

/// A mistake in a product's tensors.
fn tensors(expected: &str, product: &Product) -> Error {
    let shape = |v: &TensorView| format!("{} {:?}", v.dtype, v.shape);
    Error::Tensor {
        what: "a library's product".into(),
        expected: expected.into(),
        got: format!("a {}, b {}, d {}", shape(&product.a), shape(&product.b), shape(&product.d)),
    }
}

impl Products for CublasLt {
    fn name(&self) -> String {
        let v = self.version();
        format!("cuBLASLt {}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    fn prepare(&self, product: &Product) -> Result<usize> {
        let gpu = &self.gpu;
        gpu.check()?;
        gpu.context.bind_to_thread().map_err(|e| gpu.error("selecting the device", e))?;
        let (&[m, k], &[n, kb], &[md, nd]) = (&product.a.shape[..], &product.b.shape[..], &product.d.shape[..]) else {
            return Err(tensors("three matrices", product));
        };
        let views = [&product.b, &product.a, &product.d];
        let dense = views.iter().all(|v| v.is_contiguous() && v.memory.device() == gpu.info.name);
        if !dense || k != kb || (m, n) != (md, nd) || m * n * k == 0 {
            return Err(tensors("contiguous a [m, k], b [n, k], d [m, n] on this device, none empty", product));
        }
        let groups = k.div_ceil(128);
        let (scales, scale_shapes) = match &product.kind {
            Kind::Plain => (None, [0, 0]),
            Kind::Tensor { a, b, .. } => (Some([b, a]), [1, 1]),
            Kind::Block { a, b } => (Some([b, a]), [n.div_ceil(128) * groups.next_multiple_of(4), m * groups]),
        };
        for (scale, least) in scales.iter().flatten().zip(scale_shapes) {
            let own = scale.memory.device() == gpu.info.name && scale.is_contiguous();
            if !own || scale.dtype != DType::F32 || scale.num_elements() < least {
                return Err(tensors(&format!("contiguous f32 scales of at least {least} elements"), product));
            }
        }
        if matches!(product.kind, Kind::Block { .. }) && self.version() < BLOCK_SCALES {
            return Err(Error::Unsupported {
                what: "scales a block".into(),
                expected: "cuBLASLt 12.9 or newer".into(),
                got: self.name(),
            });
        }
        let null = std::ptr::null_mut();
        let desc = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F)
            .map_err(|e| refused("creating a description", e))?;
        // From here on dropping it destroys what was made.
        let mut p = Prepared {
            desc,
            layouts: [null; 3],
            algo: cublasLtMatmulAlgo_t { data: [0; 8] },
            product: product.clone(),
        };
        // The library counts columns first: its `d` of n rows and m columns is ours, from `b` transposed and `a`.
        let sizes = [(k, n), (k, m), (n, m)];
        for ((layout, view), (rows, columns)) in p.layouts.iter_mut().zip(views).zip(sizes) {
            let element = element(view.dtype).ok_or_else(|| tensors("bf16, f32 or e4m3 elements", product))?;
            *layout = result::create_matrix_layout(element, rows as u64, columns as u64, rows as i64)
                .map_err(|e| refused("creating a layout", e))?;
        }
        self.set(&p, Desc::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        self.set(&p, Desc::CUBLASLT_MATMUL_DESC_TRANSB, &PLAIN)?;
        if let Some([first, second]) = scales {
            self.set(&p, Desc::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &address(first))?;
            self.set(&p, Desc::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &address(second))?;
        }
        match &product.kind {
            Kind::Plain => {}
            Kind::Tensor { fast, .. } => self.set(&p, Desc::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(*fast))?,
            Kind::Block { .. } => {
                let [blocks, rows] = [
                    Scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                    Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                ];
                self.set(&p, Desc::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &blocks)?;
                self.set(&p, Desc::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows)?;
            }
        }
        let preference = result::create_matmul_pref().map_err(|e| refused("creating a preference", e))?;
        let [b, a, d] = p.layouts;
        // SAFETY: live objects of this library; the size is copied.
        let found = unsafe {
            let bytes = WORKSPACE_BYTES;
            let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let value = (&raw const bytes).cast::<c_void>();
            let found = result::set_matmul_pref_attribute(preference, attribute, value, size_of::<usize>())
                .and_then(|()| result::get_matmul_algo_heuristic(self.handle, p.desc, b, a, d, d, preference));
            let _ = result::destroy_matmul_pref(preference);
            found
        };
        p.algo = found.map_err(|e| refused("choosing an algorithm", e))?.algo;
        let mut products = lock(&self.products);
        products.push(p);
        Ok(products.len() - 1)
    }

    fn run(&self, index: usize) -> Result<()> {
        let gpu = &self.gpu;
        gpu.check()?;
        gpu.context.bind_to_thread().map_err(|e| gpu.error("selecting the device", e))?;
        let products = lock(&self.products);
        let Some(p) = products.get(index) else {
            return Err(Error::Unsupported {
                what: "a library's product".into(),
                expected: format!("one of {} prepared ones", products.len()),
                got: format!("number {index}"),
            });
        };
        super::queue::remember(gpu, "cuBLASLt");
        let (one, zero) = (1f32, 0f32);
        let scalar = |x: &f32| (x as *const f32).cast::<c_void>();
        let pointer = |v: &TensorView| address(v) as *mut c_void;
        let (a, b, d) = (pointer(&p.product.a), pointer(&p.product.b), pointer(&p.product.d));
        let [lb, la, ld] = p.layouts;
        // SAFETY: layouts were made from these tensors' shapes, which are contiguous and on this device; `self.products`
        // keeps them, and `self` the workspace, until the stream is idle. The two scalars are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                p.desc,
                scalar(&one),
                scalar(&zero),
                b,
                lb,
                a,
                la,
                d,
                ld,
                d,
                ld,
                &raw const p.algo,
                self.workspace.address() as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(|e| refused("multiplying", e))
    }
}
