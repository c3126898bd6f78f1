//! NVIDIA GPUs through the driver API, which is loaded at run time: machines without a driver get an error, no panic.
//!
//! Here: finding devices, memory, errors. Tensor maps and launch attributes are in `maps`, streams, launches, events and graphs in `queue`. Ordering is ours: streams do
//! not synchronise with anything by themselves, copies wait for the whole device, and so does freeing memory.
#![allow(unsafe_code, reason = "driver calls; each block says why it is sound")]

mod cublaslt;
mod maps;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use queue::{CapturedGraph, Timestamp};

use super::{Backend, DeviceInfo, Queue, RunOptions, lock};
use crate::compile::{self, Compiled, Toolchain};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::launch::pack::OpaqueMap;
use crate::launch::{BuildKey, Ready};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, DriverError, result};
use kiln_codegen::abi::{Memory, TensorMap};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::target::Target;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A GPU.
#[derive(Debug)]
struct Gpu {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    settings: Settings,
    toolchain: Mutex<Option<Arc<Toolchain>>>,
    loaded: Mutex<HashMap<BuildKey, Arc<Loaded>>>,
    /// Tensor maps as the driver encodes them.
    maps: Mutex<HashMap<TensorMap, OpaqueMap>>,
    /// 16 bytes of zeros for loads of tensors without elements, and 16 for their stores.
    blank: Mutex<Option<sys::CUdeviceptr>>,
    /// Kernels launched since the last synchronisation, for the text of a fault.
    recent: Mutex<Vec<String>>,
    /// The first fault: kernels and cause.
    fault: Mutex<Option<(String, String)>>,
    /// Captures in progress; nothing may be freed meanwhile.
    capturing: AtomicUsize,
    /// Addresses to free when no capture is in progress.
    unfreed: Mutex<Vec<sys::CUdeviceptr>>,
}

/// A compiled kernel on the device.
#[derive(Debug)]
struct Loaded {
    compiled: Arc<Compiled>,
    function: CudaFunction,
    /// Clusters the device holds at a time, where that matters.
    resident: usize,
}

/// The driver is there.
fn driver_present() -> bool {
    // SAFETY: opens the driver library by name, which runs its initialisers and nothing else.
    unsafe { sys::is_culib_present() }
}

fn text(e: DriverError) -> String {
    let name = e.error_name().map(|s| s.to_string_lossy().into_owned()).unwrap_or_else(|_| format!("{:?}", e.0));
    match e.error_string() {
        Ok(s) => format!("{name}: {}", s.to_string_lossy()),
        Err(_) => name,
    }
}

/// Oldest driver that loads what the reference compiler makes.
const DRIVER_MIN: i32 = 13000;

fn driver_version() -> std::result::Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one integer to the address of a live one.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// Number of GPUs.
///
/// # Errors
/// No driver, or a driver without a usable GPU.
pub(super) fn count() -> Result<usize> {
    count_for("cuda:0")
}

fn count_for(device: &str) -> Result<usize> {
    if !driver_present() {
        return Err(Error::NoDriver { device: device.into() });
    }
    let no_gpu = |cause: String| Error::NoGpu { device: device.into(), cause };
    result::init().map_err(|e| no_gpu(text(e)))?;
    let version = driver_version().map_err(|e| no_gpu(text(e)))?;
    // Machine code of a release loads on drivers of that release or newer, and older drivers miss functions whose absence
    // would be a panic in the binding.
    if version < DRIVER_MIN {
        let release = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        let (have, want) = (release(version), release(DRIVER_MIN));
        return Err(no_gpu(format!("the driver is for CUDA {have}; {want} (driver 580) or newer is needed")));
    }
    match result::device::get_count() {
        Ok(n) if n > 0 => Ok(n as usize),
        Ok(_) => Err(no_gpu("the driver counts 0 devices".into())),
        Err(e) => Err(no_gpu(text(e))),
    }
}

/// All GPUs; empty if there is none.
pub(super) fn list() -> Vec<DeviceInfo> {
    let n = count().unwrap_or(0);
    (0..n).filter_map(|i| CudaContext::new(i).ok().and_then(|c| describe(i, &c).ok())).collect()
}

fn describe(ordinal: usize, context: &CudaContext) -> std::result::Result<DeviceInfo, DriverError> {
    let capability = context.compute_capability()?;
    let units = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let (target, arch) = match capability {
        (9, 0) => (Target::Sm90a, "sm_90a".to_string()),
        (10, 0) => (Target::Sm100a, "sm_100a".to_string()),
        // The text for sm_80 means the same on everything newer, but machine code serves one generation only.
        (major, minor) => (Target::Sm80, format!("sm_{major}{minor}")),
    };
    let version = driver_version()?;
    Ok(DeviceInfo {
        name: format!("cuda:{ordinal}"),
        model: context.name()?,
        target,
        arch,
        capability: Some(capability),
        units: units as usize,
        memory_bytes: context.total_mem()?,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
    })
}

/// Opens a GPU.
pub(super) fn open(ordinal: usize, settings: &Settings) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Shared(open_gpu(ordinal, settings)?)))
}

fn open_gpu(ordinal: usize, settings: &Settings) -> Result<Arc<Gpu>> {
    let name = format!("cuda:{ordinal}");
    let n = count_for(&name)?;
    if ordinal >= n {
        let known: Vec<_> = super::list(settings).into_iter().map(|d| d.name).collect();
        return Err(Error::UnknownDevice { name, known: known.join(", ") });
    }
    let driver = |call: &str, e| Error::Driver { device: name.clone(), call: call.into(), cause: text(e) };
    let context = CudaContext::new(ordinal).map_err(|e| driver("opening the device", e))?;
    // SAFETY: tracking only concerns cudarc's own slices, which are not used here.
    unsafe { context.disable_event_tracking() };
    let info = describe(ordinal, &context).map_err(|e| driver("reading device attributes", e))?;
    if info.capability.is_some_and(|(major, _)| major < 8) {
        return Err(Error::NoGpu {
            device: name,
            cause: format!("{} is older than compute capability 8.0", info.model),
        });
    }
    Ok(Arc::new(Gpu {
        info,
        context,
        settings: settings.clone(),
        toolchain: Mutex::default(),
        loaded: Mutex::default(),
        maps: Mutex::default(),
        blank: Mutex::default(),
        recent: Mutex::default(),
        fault: Mutex::default(),
        capturing: AtomicUsize::new(0),
        unfreed: Mutex::default(),
    }))
}

/// Errors after which the context accepts no more work.
fn is_fault(e: CUresult) -> bool {
    matches!(
        e,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

impl Gpu {
    /// An error of ours from one of the driver's; a fault is remembered with the kernels that may have caused it.
    fn error(&self, call: &str, e: DriverError) -> Error {
        let device = self.info.name.clone();
        if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let available = self.context.mem_get_info().map_or(0, |m| m.0);
            return Error::OutOfMemory { device, bytes: 0, available };
        }
        if !is_fault(e.0) {
            return Error::Driver { device, call: call.into(), cause: text(e) };
        }
        let mut fault = lock(&self.fault);
        let (kernel, cause) = fault.get_or_insert_with(|| {
            let recent = lock(&self.recent);
            let kernel = match recent.as_slice() {
                [] => "something outside Kiln's launches".to_string(),
                [one] => format!("kernel `{one}`"),
                all => format!("one of the kernels `{}`", all.join("`, `")),
            };
            (kernel, text(e))
        });
        Error::Fault { device, kernel: kernel.clone(), cause: cause.clone() }
    }

    /// The fault that ended this device, if one did.
    fn check(&self) -> Result<()> {
        match &*lock(&self.fault) {
            Some((kernel, cause)) => {
                Err(Error::Fault { device: self.info.name.clone(), kernel: kernel.clone(), cause: cause.clone() })
            }
            None => Ok(()),
        }
    }

    fn wait(&self) -> Result<()> {
        self.context.synchronize().map_err(|e| self.error("waiting for the device", e))?;
        lock(&self.recent).clear();
        Ok(())
    }

    fn toolchain(&self) -> Result<Arc<Toolchain>> {
        let mut slot = lock(&self.toolchain);
        if let Some(t) = &*slot {
            return Ok(Arc::clone(t));
        }
        let t = Arc::new(Toolchain::open(&self.settings)?);
        *slot = Some(Arc::clone(&t));
        Ok(t)
    }

    /// Compiles and loads what a launch needs, once a request.
    fn load(&self, ready: &Ready) -> Result<Arc<Loaded>> {
        let key = ready.key();
        if let Some(l) = lock(&self.loaded).get(&key) {
            return Ok(Arc::clone(l));
        }
        self.context.bind_to_thread().map_err(|e| self.error("selecting the device", e))?;
        let toolchain = self.toolchain()?;
        let request = &ready.bound.request;
        let compiled =
            compile::compile_for(&*ready.launch.kernel, request, self.info.target, &self.info.arch, &toolchain)?;
        let loaded = Arc::new(self.place(ready.name(), compiled)?);
        Ok(Arc::clone(lock(&self.loaded).entry(key).or_insert(loaded)))
    }

    /// Loads compiled code and asks for what its launches need.
    fn place(&self, kernel: &str, compiled: Arc<Compiled>) -> Result<Loaded> {
        let image = cudarc::nvrtc::Ptx::from_binary(compiled.image.clone());
        let module = self.context.load_module(image).map_err(|e| self.error("loading a compiled kernel", e))?;
        let entry = &compiled.source.signature.entry;
        let function = module.load_function(entry).map_err(|e| self.error("finding a kernel's entry", e))?;
        let shared = compiled.source.shared_bytes;
        // Up to 48 KiB need no permission.
        if shared > 48 * 1024 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function
                .set_attribute(attribute, shared as i32)
                .map_err(|e| self.error("asking for dynamic shared memory", e))?;
        }
        let source = &compiled.source;
        let resident = match source.is_persistent() || source.cluster_blocks() > 1 {
            true => self.resident(kernel, &function, source)?,
            false => 0,
        };
        Ok(Loaded { compiled, function, resident })
    }

    fn free(&self, address: sys::CUdeviceptr) {
        lock(&self.unfreed).push(address);
        self.free_pending();
    }

    /// Frees what was dropped, unless a capture is in progress. Errors are dropped: after a fault nothing can be freed,
    /// and the process's end frees everything.
    fn free_pending(&self) {
        if self.capturing.load(Ordering::SeqCst) > 0 {
            return;
        }
        let all = std::mem::take(&mut *lock(&self.unfreed));
        if all.is_empty() || self.context.synchronize().is_err() {
            return;
        }
        for address in all {
            // SAFETY: the address came from `malloc_sync`, is freed once since it was moved out of the list, and the
            // device is idle.
            let _ = unsafe { result::free_sync(address) };
        }
    }
}

/// The backend: a shared GPU.
#[derive(Clone, Debug)]
struct Shared(Arc<Gpu>);

/// Device memory.
#[derive(Debug)]
struct CudaMemory {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.gpu.free(self.address);
    }
}

impl Memory for CudaMemory {
    fn device(&self) -> &str {
        &self.gpu.info.name
    }
    fn len_bytes(&self) -> usize {
        self.bytes
    }
    fn address(&self) -> u64 {
        self.address
    }
    fn host(&self) -> Option<&HostMemory> {
        None
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Shared {
    /// The memory as this device's own, with the range checked.
    fn own<'a>(&self, memory: &'a dyn Memory, offset: usize, len: usize) -> Result<&'a CudaMemory> {
        let own = memory.as_any().downcast_ref::<CudaMemory>().filter(|m| Arc::ptr_eq(&m.gpu, &self.0));
        let fits = |m: &&CudaMemory| offset.checked_add(len).is_some_and(|end| end <= m.bytes);
        own.filter(fits).ok_or_else(|| Error::Tensor {
            what: format!("copy of {len} bytes at offset {offset}"),
            expected: format!("memory of this {} that holds them", self.0.info.name),
            got: format!("{} bytes on {}", memory.len_bytes(), memory.device()),
        })
    }
}

impl Backend for Shared {
    fn name(&self) -> &str {
        &self.0.info.name
    }
    fn info(&self) -> DeviceInfo {
        self.0.info.clone()
    }
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        let gpu = &self.0;
        gpu.check()?;
        gpu.context.bind_to_thread().map_err(|e| gpu.error("selecting the device", e))?;
        // Whole vectors, so that the widest access at the end stays inside; a size of 0 would be refused.
        let size = bytes.max(1).next_multiple_of(16);
        // SAFETY: the context is current; the result is owned by the `CudaMemory` below.
        let address = unsafe { result::malloc_sync(size) }.map_err(|e| match gpu.error("allocating", e) {
            Error::OutOfMemory { device, available, .. } => Error::OutOfMemory { device, bytes, available },
            other => other,
        })?;
        let memory = CudaMemory { gpu: Arc::clone(gpu), address, bytes };
        // SAFETY: fresh memory of `size` bytes; the wait below ends the fill before anyone else sees the address.
        unsafe { result::memset_d8_sync(address, 0, size) }.map_err(|e| gpu.error("clearing memory", e))?;
        gpu.wait()?;
        Ok(Arc::new(memory))
    }
    fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.own(memory, offset, bytes.len())?.address + offset as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        self.0.wait()?;
        // SAFETY: the range is inside a live allocation, and the device is idle before and after.
        unsafe { result::memcpy_htod_sync(at, bytes) }.map_err(|e| self.0.error("copying to the device", e))?;
        self.0.wait()
    }
    fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        let at = self.own(memory, offset, out.len())?.address + offset as u64;
        if out.is_empty() {
            return Ok(());
        }
        self.0.wait()?;
        // SAFETY: the range is inside a live allocation, the device is idle, and the call returns after the copy.
        unsafe { result::memcpy_dtoh_sync(out, at) }.map_err(|e| self.0.error("copying from the device", e))
    }
    fn compiler(&self) -> Result<String> {
        Ok(format!("kiln {}, {}", env!("CARGO_PKG_VERSION"), self.0.toolchain()?.version()))
    }
    fn queue(&self, _: &RunOptions) -> Result<Box<dyn Queue>> {
        let stream = self.0.context.new_stream().map_err(|e| self.0.error("opening a stream", e))?;
        Ok(Box::new(queue::CudaQueue::new(Arc::clone(&self.0), stream)))
    }
}
