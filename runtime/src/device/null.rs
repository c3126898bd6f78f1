//! The null device: builds and checks kernels, records their launches and runs nothing. For testing what stands above
//! devices, and for compiling a launch's exact request without hardware.

use super::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::error::{Error, Result};
use crate::launch::{Builds, Ready};
use kiln_codegen::abi::Memory;
use kiln_codegen::bind;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::spec::BuildRequest;
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A launch the null device has seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Kernel.
    pub kernel: String,
    /// Configuration.
    pub config: Config,
    /// Dimensions.
    pub dims: BTreeMap<String, usize>,
    /// What would be built.
    pub request: BuildRequest,
    /// Extents of the grid.
    pub grid: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Null {
    seen: Arc<Mutex<Vec<Recorded>>>,
    builds: Arc<Builds>,
    next_address: Arc<AtomicU64>,
}

/// Memory that has an address and a size but no bytes.
#[derive(Debug)]
struct NullMemory {
    address: u64,
    bytes: usize,
}

impl Memory for NullMemory {
    fn device(&self) -> &str {
        "null"
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

impl Backend for Null {
    fn name(&self) -> &str {
        "null"
    }
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "null".into(),
            model: "records launches".into(),
            target: Target::Vm,
            arch: String::new(),
            capability: None,
            units: 0,
            memory_bytes: 0,
            driver: String::new(),
        }
    }
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        // Addresses as a GPU gives them: aligned to 256 bytes, never shared, never 0.
        let size = (bytes as u64).div_ceil(256) * 256 + 256;
        let address = self.next_address.fetch_add(size, Ordering::Relaxed) + 256;
        Ok(Arc::new(NullMemory { address, bytes }))
    }
    fn write(&self, _: &dyn Memory, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: &dyn Memory, _: usize, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
    fn queue(&self, _: &RunOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(self.clone()))
    }
    fn recorded(&self) -> Vec<Recorded> {
        lock(&self.seen).clone()
    }
}

impl Queue for Null {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.builds.get(ready).map(drop)
    }
    fn launch(&self, ready: &Ready) -> Result<()> {
        let built = self.builds.get(ready)?;
        let syms = bind::sym_values(&built.kernel, &ready.bound.dims, &ready.args);
        let grid = ready.grid(&built.kernel, &syms)?;
        lock(&self.seen).push(Recorded {
            kernel: ready.name().into(),
            config: ready.launch.config.clone(),
            dims: ready.bound.dims.clone(),
            request: ready.bound.request.clone(),
            grid,
        });
        Ok(())
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    fn record(&self) -> Result<Event> {
        Ok(Event(EventKind::Wall(std::time::Instant::now())))
    }
    fn begin_capture(&self) -> Result<bool> {
        Ok(false)
    }
    fn end_capture(&self) -> Result<Graph> {
        Err(no_graphs("null"))
    }
}

/// The error of devices that run at once.
pub(super) fn no_graphs(device: &str) -> Error {
    Error::Unsupported {
        what: format!("{device}: capturing a graph"),
        expected: "a CUDA device".into(),
        got: device.into(),
    }
}
