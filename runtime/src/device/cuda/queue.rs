//! Streams of a GPU: launches, timestamps, graphs.
//!
//! A launch does not wait. Tensors a launch uses may be dropped right after it: freeing waits for the device. A captured
//! graph keeps its tensors and kernels alive itself, since it may replay at any time.

use super::cublaslt::{CublasLt, WORKSPACE_BYTES};
use super::{Gpu, Loaded, Shared, maps};
use crate::device::library::Library;
use crate::device::{Backend, Event, EventKind, Graph, Queue, lock};
use crate::error::{Error, Result};
use crate::launch::Ready;
use crate::launch::pack::Packed;
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, sys};
use kiln_codegen::abi::{Arg, Memory, SigArg, TensorMap};
use kiln_codegen::bind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Most names a fault message lists.
const RECENT_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct CudaQueue {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    capture: Mutex<Option<Kept>>,
    /// Where blocks of cooperative grids count their arrivals; made by the first launch that needs it.
    arrivals: Mutex<Option<Arc<dyn Memory>>>,
}

/// What a graph under capture refers to.
#[derive(Debug, Default)]
struct Kept {
    memory: Vec<Arc<dyn Memory>>,
    kernels: Vec<Arc<Loaded>>,
}

impl CudaQueue {
    pub(super) fn new(gpu: Arc<Gpu>, stream: Arc<CudaStream>) -> Self {
        CudaQueue { gpu, stream, capture: Mutex::default(), arrivals: Mutex::default() }
    }
}

impl CudaQueue {
    /// Address of the word in which blocks of cooperative grids count. Launches of one stream follow each other, so they
    /// share it.
    fn arrivals(&self) -> Result<u64> {
        let mut word = lock(&self.arrivals);
        if word.is_none() {
            *word = Some(Shared(Arc::clone(&self.gpu)).alloc(4)?);
        }
        Ok(word.as_ref().map_or(0, |w| w.address()))
    }
}

/// Notes a kernel for the text of a fault.
pub(super) fn remember(gpu: &Gpu, kernel: &str) {
    let mut recent = lock(&gpu.recent);
    if recent.len() < RECENT_MAX && !recent.iter().any(|r| r == kernel) {
        recent.push(kernel.to_string());
    }
}

impl Queue for CudaQueue {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.gpu.check()?;
        self.gpu.load(ready).map(drop)
    }

    fn launch(&self, ready: &Ready) -> Result<()> {
        let gpu = &self.gpu;
        gpu.check()?;
        let loaded = gpu.load(ready)?;
        let (kernel, source) = (&loaded.compiled.scheduled, &loaded.compiled.source);
        let syms = bind::sym_values(kernel, &ready.bound.dims, &ready.args);
        let grid = ready.grid(kernel, &syms)?;
        let blocks = source.launch_blocks(&grid, loaded.resident);
        if let Some(caps) = gpu.info.target.caps() {
            bind::check_limits(ready.name(), &blocks, source, &caps)?;
        }
        bind::check_panels(kernel, &grid)?;
        if grid.contains(&0) {
            return Ok(());
        }
        gpu.context.bind_to_thread().map_err(|e| gpu.error("selecting the device", e))?;
        let arrivals = if source.signature.args.contains(&SigArg::GridArrivals) { self.arrivals()? } else { 0 };
        let encode = |map: &TensorMap, access| gpu.tensor_map(ready.name(), map, access);
        let mut packed = Packed::new(&source.signature, kernel, &syms, ready, arrivals, encode)?;
        let mut pointers = packed.pointers();
        // `check_limits` has bounded every extent by 2^31 - 1.
        let blocks = blocks.map(|n| n as u32);
        let mut attributes = maps::attributes(source);
        let config = maps::config(source, blocks, self.stream.cu_stream(), &mut attributes);
        remember(gpu, ready.name());
        // SAFETY: `pointers` has one live slot an argument of the entry, in the order and with at least the size of the
        // signature the source was emitted with; the driver copies the values before it returns. Tensors were bound,
        // so every address is inside a live allocation of this device, which outlives the launch because freeing
        // waits for the device. `config` refers to `attributes`, which live across the call.
        unsafe {
            sys::cuLaunchKernelEx(&config, loaded.function.cu_function(), pointers.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(|e| gpu.error(&format!("launching `{}`", ready.name()), e))?;
        let mut capture = lock(&self.capture);
        match &mut *capture {
            Some(kept) => {
                kept.kernels.push(loaded);
                kept.memory.extend(ready.args.iter().filter_map(|a| match a {
                    Arg::Tensor(v) => Some(Arc::clone(&v.memory)),
                    Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
                }));
                Ok(())
            }
            None if gpu.settings.sync => {
                drop(capture);
                self.synchronize()
            }
            None => Ok(()),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.check()?;
        self.stream.synchronize().map_err(|e| self.gpu.error("waiting for a stream", e))?;
        lock(&self.gpu.recent).clear();
        Ok(())
    }

    fn record(&self) -> Result<Event> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = self.stream.record_event(Some(flags)).map_err(|e| self.gpu.error("recording an event", e))?;
        Ok(Event(EventKind::Cuda(Timestamp { gpu: Arc::clone(&self.gpu), event })))
    }

    fn library(&self) -> Result<Library> {
        let workspace = Shared(Arc::clone(&self.gpu)).alloc(WORKSPACE_BYTES)?;
        let library = CublasLt::new(Arc::clone(&self.gpu), Arc::clone(&self.stream), workspace)?;
        Ok(Library(Box::new(library)))
    }

    fn begin_capture(&self) -> Result<bool> {
        self.gpu.check()?;
        let mut capture = lock(&self.capture);
        if capture.is_some() {
            return Err(Error::Unsupported {
                what: format!("{}: capturing a graph", self.gpu.info.name),
                expected: "one capture at a time on a stream".into(),
                got: "a second one".into(),
            });
        }
        self.gpu.capturing.fetch_add(1, Ordering::SeqCst);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        if let Err(e) = self.stream.begin_capture(mode) {
            self.gpu.capturing.fetch_sub(1, Ordering::SeqCst);
            return Err(self.gpu.error("starting a capture", e));
        }
        *capture = Some(Kept::default());
        Ok(true)
    }

    fn end_capture(&self) -> Result<Graph> {
        let kept = lock(&self.capture).take().unwrap_or_default();
        let ended = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        self.gpu.capturing.fetch_sub(1, Ordering::SeqCst);
        self.gpu.free_pending();
        match ended.map_err(|e| self.gpu.error("ending a capture", e))? {
            Some(graph) => Ok(Graph(CapturedGraph { graph, gpu: Arc::clone(&self.gpu), kept })),
            None => Err(Error::Driver {
                device: self.gpu.info.name.clone(),
                call: "ending a capture".into(),
                cause: "the capture was invalidated".into(),
            }),
        }
    }
}

/// A recorded event with its device.
#[derive(Debug)]
pub(crate) struct Timestamp {
    gpu: Arc<Gpu>,
    event: CudaEvent,
}

impl Timestamp {
    pub(crate) fn elapsed_us(&self, end: &Timestamp) -> Result<f64> {
        let ms = self.event.elapsed_ms(&end.event).map_err(|e| self.gpu.error("reading a timer", e))?;
        Ok(f64::from(ms) * 1e3)
    }
}

/// An instantiated graph with what it refers to; the graph is dropped first.
pub(crate) struct CapturedGraph {
    graph: CudaGraph,
    gpu: Arc<Gpu>,
    kept: Kept,
}

impl std::fmt::Debug for CapturedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedGraph").field("device", &self.gpu.info.name).finish_non_exhaustive()
    }
}

impl CapturedGraph {
    pub(crate) fn launch(&self) -> Result<()> {
        self.gpu.check()?;
        for kernel in &self.kept.kernels {
            remember(&self.gpu, &kernel.compiled.plain.name);
        }
        self.graph.launch().map_err(|e| self.gpu.error("launching a graph", e))
    }
}
