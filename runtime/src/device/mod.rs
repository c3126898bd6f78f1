//! Devices and streams: one face for the tile VM, the null device and GPUs.
//!
//! [`Device`] hands out memory and streams; [`Stream`] binds launches and gives them to the backend's queue. What differs
//! between devices is in the private traits `Backend` and `Queue`, with one file or folder an implementation.

mod ascend;
mod cpu;
mod cuda;
pub mod library;
mod null;
pub mod sim;
mod vm;

pub use cpu::free_host_bytes;
pub use kiln_codegen::vm::BlockOrder;
use library::Library;
pub use null::Recorded;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::launch::{Ready, Workspaces, place};
use kiln_codegen::abi::{Launch, LaunchError, LaunchErrorKind, Launcher, Memory, Plan};
use kiln_codegen::bind;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::target::Target;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a kind of device implements.
pub(crate) trait Backend: Debug + Send + Sync {
    fn name(&self) -> &str;
    /// Device its memory says it is on: another one where both are the host's.
    fn memory_device(&self) -> &str {
        self.name()
    }
    fn info(&self) -> DeviceInfo;
    /// Zeroed memory.
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>>;
    fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()>;
    fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()>;
    fn queue(&self, options: &RunOptions) -> Result<Box<dyn Queue>>;
    fn recorded(&self) -> Vec<Recorded> {
        vec![]
    }
    /// What turns IR into something that runs, with its version.
    fn compiler(&self) -> Result<String> {
        Ok(format!("kiln {}", env!("CARGO_PKG_VERSION")))
    }
}

/// In-order execution on one device.
pub(crate) trait Queue: Debug + Send + Sync {
    /// Builds, compiles and loads what the launch needs, without running it.
    fn prepare(&self, ready: &Ready) -> Result<()>;
    /// As `prepare` for many launches, as one compilation where that is cheaper.
    fn prepare_together(&self, all: &[Ready]) -> Result<()> {
        all.iter().try_for_each(|ready| self.prepare(ready))
    }
    fn launch(&self, ready: &Ready) -> Result<()>;
    fn synchronize(&self) -> Result<()>;
    fn record(&self) -> Result<Event>;
    /// Starts recording launches instead of running them; `false` where that does not exist.
    fn begin_capture(&self) -> Result<bool>;
    fn end_capture(&self) -> Result<Graph>;
    fn take_messages(&self) -> Vec<Diagnostic> {
        vec![]
    }
    /// The vendor's library on this queue.
    fn library(&self) -> Result<Library> {
        Err(Error::Unsupported {
            what: "a vendor's library".into(),
            expected: "a device cuda:N, which has cuBLASLt".into(),
            got: "another device".into(),
        })
    }
}

/// How kernels run, where a device has a choice.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// On `cpu`: find races, reads of undefined data and uncovered outputs, and stop at them.
    pub sanitize: bool,
    /// On `cpu`: order of the blocks.
    pub order: BlockOrder,
}

/// What a device is, for lists and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, `cuda:0`.
    pub name: String,
    /// Hardware, `NVIDIA H200`.
    pub model: String,
    /// What kernels are built for.
    pub target: Target,
    /// Architecture the compiler is told (`sm_90a`); empty without a compiler.
    pub arch: String,
    /// Compute capability, if it has one.
    pub capability: Option<(i32, i32)>,
    /// Multiprocessors, or threads of the VM.
    pub units: usize,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: usize,
    /// Driver version, or empty.
    pub driver: String,
}

/// A device. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    backend: Arc<dyn Backend>,
    options: RunOptions,
}

/// Opens a device by name: `best`, `cpu`, `null`, `sim:TARGET`, `vm:TARGET`, `cuda:N` or `ascend:N`.
///
/// # Errors
/// An unknown name, or no driver or GPU behind it.
pub fn open(name: &str) -> Result<Device> {
    open_with(name, &Settings::from_env())
}

/// As [`open`] with given settings.
///
/// # Errors
/// As [`open`].
pub fn open_with(name: &str, settings: &Settings) -> Result<Device> {
    let backend: Arc<dyn Backend> = match name {
        "cpu" => Arc::new(cpu::Cpu::new(settings)),
        "null" => Arc::new(null::Null::default()),
        "best" => match cuda::open(0, settings) {
            Ok(gpu) => gpu,
            // A driver without a GPU is usual on build machines; the chosen device is printed by whoever asked.
            Err(Error::NoDriver { .. } | Error::NoGpu { .. }) => Arc::new(cpu::Cpu::new(settings)),
            Err(e) => return Err(e),
        },
        _ if name.strip_prefix("ascend:").is_some_and(|n| n.parse::<usize>().is_ok()) => {
            let ordinal = name["ascend:".len()..].parse().unwrap_or(0);
            ascend::open(ordinal, settings)?
        }
        _ => match name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
            Some(ordinal) => cuda::open(ordinal, settings)?,
            None if name.starts_with("vm:") => match vm::open(&name["vm:".len()..], settings) {
                Some(vm) => Arc::new(vm),
                None => {
                    return Err(Error::Unsupported {
                        what: format!("device `{name}`"),
                        expected: "vm:sm_80, vm:sm_90a or vm:sm_100a".into(),
                        got: "a target without schedules".into(),
                    });
                }
            },
            None if name.starts_with("sim:") => match sim::open(&name["sim:".len()..], settings) {
                Some(sim) => Arc::new(sim),
                None => {
                    return Err(Error::Unsupported {
                        what: format!("device `{name}`"),
                        expected: "sim:sm_80, sim:sm_90a, sim:ascend910b or sim:ascend950".into(),
                        got: "a target that is not simulated yet".into(),
                    });
                }
            },
            None => {
                let known: Vec<_> = list(settings).into_iter().map(|d| d.name).collect();
                return Err(Error::UnknownDevice { name: name.into(), known: known.join(", ") });
            }
        },
    };
    Ok(Device { backend, options: RunOptions::default() })
}

/// Devices of this machine, best first, without the null device.
pub fn list(settings: &Settings) -> Vec<DeviceInfo> {
    let mut all = cuda::list();
    all.extend(ascend::list(settings));
    all.push(cpu::Cpu::new(settings).info());
    all
}

/// Why there is no GPU here, for `doctor`; `None` if there is one.
pub fn why_no_gpu() -> Option<Error> {
    cuda::count().err()
}

/// Why there is no Ascend NPU here, for `doctor`; `None` if there is one.
pub fn why_no_npu(settings: &Settings) -> Option<Error> {
    ascend::open(0, settings).err()
}

impl Device {
    /// Name, `cuda:0`.
    pub fn name(&self) -> &str {
        self.backend.name()
    }
    /// What its memory says it is on: `cpu` where it is the host's, otherwise its name.
    pub(crate) fn memory_device(&self) -> &str {
        self.backend.memory_device()
    }
    /// What kernels are built for.
    pub fn target(&self) -> Target {
        self.info().target
    }
    /// Hardware, target, driver.
    pub fn info(&self) -> DeviceInfo {
        self.backend.info()
    }
    /// The same device with other run options; streams opened from the result use them.
    pub fn with_run_options(&self, options: RunOptions) -> Device {
        Device { backend: Arc::clone(&self.backend), options }
    }
    /// Run options of streams opened from this.
    pub fn run_options(&self) -> &RunOptions {
        &self.options
    }
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.backend.alloc(bytes)
    }
    /// Opens a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream {
            device: self.clone(),
            queue: self.backend.queue(&self.options)?,
            workspaces: Mutex::new(Workspaces::default()),
        })
    }
    /// What turns IR into something that runs here, with its version; part of every tuning record's key.
    ///
    /// # Errors
    /// A GPU without a compiler on this machine.
    pub fn compiler(&self) -> Result<String> {
        self.backend.compiler()
    }
    /// Launches the null device has seen so far, oldest first; empty for other devices.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.backend.recorded()
    }
    pub(crate) fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        self.backend.write(memory, offset, bytes)
    }
    pub(crate) fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        self.backend.read(memory, offset, out)
    }
}

/// A queue of launches on one device, in order.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    queue: Box<dyn Queue>,
    workspaces: Mutex<Workspaces>,
}

impl Stream {
    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Waits until everything enqueued has run.
    ///
    /// # Errors
    /// A fault of a kernel that ran.
    pub fn synchronize(&self) -> Result<()> {
        self.queue.synchronize()
    }
    /// A point in the stream's time.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self) -> Result<Event> {
        self.queue.record()
    }
    /// The vendor's library, enqueueing on this stream.
    ///
    /// # Errors
    /// A device without one, or a machine where it is not installed.
    pub fn library(&self) -> Result<Library> {
        self.queue.library()
    }
    /// Numeric surprises (NaN, infinity, saturation) the sanitizer has noted since the last call.
    pub fn take_messages(&self) -> Vec<Diagnostic> {
        self.queue.take_messages()
    }
    /// Builds, compiles and loads everything a plan needs and allocates its workspaces, without running it.
    ///
    /// # Errors
    /// As [`Launcher::run`], but for faults.
    pub fn prepare(&self, plan: &Plan) -> Result<()> {
        self.each_step(plan, |ready| self.queue.prepare(ready))
    }
    /// Builds, compiles and loads what many launches need, without running them: simulated devices compile all of them as
    /// one text, which costs far less than one after another.
    ///
    /// # Errors
    /// As [`Launcher::launch`], but for faults; one refused launch refuses all.
    pub fn prepare_together(&self, launches: &[Launch]) -> Result<()> {
        let ready: Result<Vec<_>> =
            launches.iter().map(|launch| self.bind(launch, place(0, launch, &[], &[])?)).collect();
        self.queue.prepare_together(&ready?)
    }
    /// Records what `work` enqueues as a graph instead of running it. `None` on devices without graphs; `work` is then
    /// not called. Prepare plans first: nothing may be loaded or allocated while capturing.
    ///
    /// # Errors
    /// Those of `work` and the driver's.
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Option<Graph>> {
        if !self.queue.begin_capture()? {
            return Ok(None);
        }
        let done = work(self);
        // The capture has to be ended even if `work` failed; its own error is the one worth telling.
        let graph = self.queue.end_capture();
        done?;
        graph.map(Some)
    }

    fn each_step(&self, plan: &Plan, mut run: impl FnMut(&Ready) -> Result<()>) -> Result<()> {
        // Plans of a stream share workspaces, so one of another thread waits until all steps of this one are queued.
        let mut workspaces = (!plan.workspaces.is_empty()).then(|| lock(&self.workspaces));
        let memory = match &mut workspaces {
            Some(workspaces) => workspaces.get(&self.device, &plan.workspaces)?,
            None => vec![],
        };
        for (step, launch) in plan.steps.iter().enumerate() {
            let args = place(step, launch, &plan.workspaces, &memory)?;
            let ready = self.bind(launch, args)?;
            if !ready.idle() {
                run(&ready)?;
            }
        }
        Ok(())
    }

    fn bind<'a>(&self, launch: &'a Launch, args: Vec<kiln_codegen::abi::Arg>) -> Result<Ready<'a>> {
        let bound = bind::bind(&*launch.kernel, &launch.config, &args)?;
        let here = self.device.memory_device();
        for (param, arg) in launch.kernel.info().params.iter().zip(&args) {
            if let kiln_codegen::abi::Arg::Tensor(v) = arg
                && v.memory.device() != here
            {
                return Err(Error::Launch(LaunchError {
                    kernel: launch.kernel.info().name.clone(),
                    parameter: Some(param.name.clone()),
                    kind: LaunchErrorKind::Device,
                    expected: format!("a tensor on {here}, the stream's device"),
                    got: format!("one on {}", v.memory.device()),
                    help: "upload it to this device, or launch on a stream of the other".into(),
                }));
            }
        }
        Ok(Ready { launch, bound, args })
    }
}

impl Launcher for Stream {
    type Error = Error;
    fn launch(&self, launch: &Launch) -> Result<()> {
        let args = place(0, launch, &[], &[])?;
        let ready = self.bind(launch, args)?;
        if ready.idle() { Ok(()) } else { self.queue.launch(&ready) }
    }
    fn run(&self, plan: &Plan) -> Result<()> {
        self.each_step(plan, |ready| self.queue.launch(ready))
    }
}

/// A point in a stream's time.
#[derive(Debug)]
pub struct Event(pub(crate) EventKind);

#[derive(Debug)]
pub(crate) enum EventKind {
    Wall(std::time::Instant),
    Cuda(cuda::Timestamp),
    Ascend(ascend::Timestamp),
}

impl Event {
    /// Microseconds from this event to `end`; waits for both.
    ///
    /// # Errors
    /// A fault in between, or events of different devices.
    pub fn elapsed_us(&self, end: &Event) -> Result<f64> {
        match (&self.0, &end.0) {
            (EventKind::Wall(a), EventKind::Wall(b)) => Ok(b.duration_since(*a).as_secs_f64() * 1e6),
            (EventKind::Cuda(a), EventKind::Cuda(b)) => a.elapsed_us(b),
            (EventKind::Ascend(a), EventKind::Ascend(b)) => a.elapsed_us(b),
            (EventKind::Wall(_) | EventKind::Cuda(_) | EventKind::Ascend(_), _) => Err(Error::Unsupported {
                what: "time between events".into(),
                expected: "events of one device".into(),
                got: "events of two".into(),
            }),
        }
    }
}

/// Recorded launches that replay as one.
#[derive(Debug)]
pub struct Graph(pub(crate) cuda::CapturedGraph);

impl Graph {
    /// Enqueues everything in the graph on the stream it was captured on.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self) -> Result<()> {
        self.0.launch()
    }
}

/// Locks, and goes on after a panic of another holder: the guarded data are caches and lists that stay valid.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
