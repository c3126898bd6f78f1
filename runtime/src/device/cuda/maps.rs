//! Tensor maps for the driver, and what a launch tells it besides its arguments.

use super::{Gpu, lock, text};
use crate::error::{Error, Result};
use crate::launch::pack::OpaqueMap;
use cudarc::driver::{CudaFunction, sys};
use kiln_codegen::abi::{L2Promotion, LaunchError, LaunchErrorKind, Swizzle, TensorMap};
use kiln_codegen::emit::Source;
use kiln_codegen::ir::{Access, DType};
use std::ptr;

/// Encoded maps that are remembered; a step of a network has a few hundred.
const REMEMBERED: usize = 4096;

/// Blocks of a cluster that every device of a generation runs. More need a permission of the function's own.
const PORTABLE_CLUSTER: usize = 8;

impl Gpu {
    /// The driver's form of a map, from the cache if it was encoded before.
    pub(super) fn tensor_map(&self, kernel: &str, map: &TensorMap, access: Access) -> Result<OpaqueMap> {
        if let Some(&found) = lock(&self.maps).get(map) {
            return Ok(found);
        }
        let encoded = match map.is_empty() {
            false => self.encode(kernel, map)?,
            true => self.encode(kernel, &self.blank(map, access)?)?,
        };
        let mut maps = lock(&self.maps);
        // Addresses come and go with allocations: now and then everything is forgotten.
        if maps.len() >= REMEMBERED {
            maps.clear();
        }
        Ok(*maps.entry(map.clone()).or_insert(encoded))
    }

    /// A map of one zero, for a tensor without elements, which the driver refuses. Loads are zero, as they should be; a
    /// store goes where nothing reads.
    fn blank(&self, map: &TensorMap, access: Access) -> Result<TensorMap> {
        let mut blank = lock(&self.blank);
        let address = match *blank {
            Some(address) => address,
            None => {
                let failed = |e| self.error("allocating", e);
                // SAFETY: the context is current (`launch` selects it); the memory lives until the context ends.
                let address = unsafe { cudarc::driver::result::malloc_sync(32) }.map_err(failed)?;
                // SAFETY: fresh memory of that size.
                unsafe { cudarc::driver::result::memset_d8_sync(address, 0, 32) }.map_err(failed)?;
                *blank.insert(address)
            }
        };
        let address = if access == Access::In { address } else { address + 16 };
        Ok(TensorMap { address, extents: vec![1; map.extents.len()], ..map.clone() })
    }

    fn encode(&self, kernel: &str, map: &TensorMap) -> Result<OpaqueMap> {
        let mut out = sys::CUtensorMap { opaque: [0; 16] };
        let element_strides = vec![1u32; map.boxes.len()];
        // SAFETY: the arrays hold one entry an axis, and one less for strides, as `TensorMap::check` has made sure; the
        // driver writes 128 bytes to `out`, which has its alignment, and keeps no address of ours.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut out,
                data_type(map.dtype),
                map.extents.len() as u32,
                map.address as *mut std::ffi::c_void,
                map.extents.as_ptr(),
                map.strides_bytes.as_ptr(),
                map.boxes.as_ptr(),
                element_strides.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                match map.swizzle {
                    Swizzle::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                    Swizzle::B32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
                    Swizzle::B64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
                    Swizzle::B128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                },
                match map.l2_promotion {
                    L2Promotion::None => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
                    L2Promotion::B64 => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
                    L2Promotion::B128 => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                    L2Promotion::B256 => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                },
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        status.result().map_err(|e| {
            Error::Launch(LaunchError {
                kernel: kernel.into(),
                parameter: None,
                kind: LaunchErrorKind::Limits,
                expected: "a tensor map the driver accepts".into(),
                got: format!("{}: {map:?}", text(e)),
                help: "please report it: every rule the driver documents was checked before".into(),
            })
        })?;
        Ok(OpaqueMap(out.opaque))
    }

    /// Clusters (blocks, without clusters) of a kernel that the device holds at a time.
    ///
    /// # Errors
    /// None fits, or the driver's.
    pub(super) fn resident(&self, kernel: &str, function: &CudaFunction, source: &Source) -> Result<usize> {
        let cluster = source.cluster_blocks();
        let (threads, shared) = (source.threads, source.shared_bytes);
        let held = if cluster == 1 {
            let blocks = function
                .occupancy_max_active_blocks_per_multiprocessor(threads as u32, shared, None)
                .map_err(|e| self.error("asking how many blocks fit", e))?;
            blocks as usize * self.info.units
        } else {
            if cluster > PORTABLE_CLUSTER {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
                function.set_attribute(attribute, 1).map_err(|e| self.error("asking for large clusters", e))?;
            }
            let mut attributes = attributes(source);
            let [x, y, z] = source.cluster;
            let blocks = [x * self.info.units as u32, y, z];
            let config = config(source, blocks, ptr::null_mut(), &mut attributes);
            let mut clusters = 0;
            // SAFETY: the configuration and its attributes live across the call, which writes one integer.
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, function.cu_function(), &config) }
                .result()
                .map_err(|e| self.error("asking how many clusters fit", e))?;
            usize::try_from(clusters).unwrap_or(0)
        };
        if held > 0 {
            return Ok(held);
        }
        let [x, y, z] = source.cluster;
        Err(Error::Launch(LaunchError {
            kernel: kernel.into(),
            parameter: None,
            kind: LaunchErrorKind::Limits,
            expected: format!("a cluster of blocks that fits on {}", self.info.model),
            got: format!("[{x}, {y}, {z}] blocks of {threads} threads and {shared} bytes of shared memory each"),
            help: "use a config with a smaller cluster or smaller tiles".into(),
        }))
    }
}

/// What a launch asks for besides its extents.
pub(super) fn attributes(source: &Source) -> Vec<sys::CUlaunchAttribute> {
    let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let mut all = vec![];
    if source.cluster_blocks() > 1 {
        let [x, y, z] = source.cluster;
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        all.push(attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value));
    }
    if source.cooperative {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.cooperative = 1;
        all.push(attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value));
    }
    if source.dependent_launch {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        all.push(attribute(id, value));
    }
    all
}

/// A launch of `blocks`. The result refers to `attributes`.
pub(super) fn config(
    source: &Source,
    blocks: [u32; 3],
    stream: sys::CUstream,
    attributes: &mut [sys::CUlaunchAttribute],
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: blocks[0],
        gridDimY: blocks[1],
        gridDimZ: blocks[2],
        blockDimX: source.threads as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: source.shared_bytes as u32,
        hStream: stream,
        attrs: if attributes.is_empty() { ptr::null_mut() } else { attributes.as_mut_ptr() },
        numAttrs: attributes.len() as u32,
    }
}

/// How the driver calls an element type; formats it has no name for go by their size.
fn data_type(dtype: DType) -> sys::CUtensorMapDataType {
    match dtype {
        DType::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::I32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        DType::U32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        DType::I64 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
        // `TensorMap::check` has refused elements of less than a byte.
        DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 | DType::I8 | DType::U8 | DType::Bool => {
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8
        }
    }
}
