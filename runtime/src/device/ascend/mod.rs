//! Ascend NPUs through ACL, which is loaded at run time: machines without CANN get an error that lists the places tried.
//!
//! `acl` holds the vendor's objects behind safe values, `compile` makes device code; here a device binds launches as every
//! device does. Nothing of this has run on a chip: tests run it against a library of their own that executes launches on the
//! model of an AI core.
#![allow(unsafe_code, reason = "calls of the vendor's runtime; each block says why it is sound")]

mod acl;
mod compile;
#[cfg(test)]
mod tests;

use super::null::no_graphs;
use super::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::launch::{BuildKey, Builds, Ready};
use acl::{Buffer, Context, Kernel, Stream};
use ascendc_sys::{self as sys, Acl};
use compile::Compiler;
use kiln_codegen::abi::{Arg, LaunchError, LaunchErrorKind, Memory, SigArg};
use kiln_codegen::bind;
use kiln_codegen::compile::{self as lower, Lowered};
use kiln_codegen::emit::{NpuCores, NpuLaunch};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::target::Target;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A chip.
#[derive(Debug)]
struct Npu {
    info: DeviceInfo,
    context: Arc<Context>,
    cube_cores: usize,
    vector_cores: usize,
    folders: Vec<PathBuf>,
    scratch: PathBuf,
    compiler: Mutex<Option<Arc<Compiler>>>,
    builds: Builds,
    loaded: Mutex<HashMap<BuildKey, Arc<Loaded>>>,
    sync: bool,
}

/// A compiled kernel on the chip.
#[derive(Debug)]
struct Loaded {
    lowered: Lowered,
    launch: NpuLaunch,
    kernel: Kernel,
}

/// The chip a name stands for, by the instruction set it has.
fn target_of(chip: &str) -> Option<Target> {
    // 910B and 910C: `Ascend910B3`, `Ascend910_9391`. The first 910 has another instruction set, `Ascend910A`.
    if chip.starts_with("Ascend910B") || chip.starts_with("Ascend910_93") {
        Some(Target::Ascend910b)
    } else if chip.starts_with("Ascend950") {
        Some(Target::Ascend950)
    } else {
        None
    }
}

fn error(device: &str, what: &str, e: sys::Error) -> Error {
    match e {
        sys::Error::NotInstalled { library, tried } => {
            Error::NoAscend { device: device.into(), library: library.into(), tried: tried.join("\n  ") }
        }
        e @ (sys::Error::MissingSymbol { .. } | sys::Error::Acl { .. }) => {
            Error::Driver { device: device.into(), call: what.into(), cause: e.to_string() }
        }
    }
}

/// Opens `ascend:N`.
///
/// # Errors
/// CANN is missing, has no such device, or the chip is not one kernels are made for.
pub(super) fn open(ordinal: usize, settings: &Settings) -> Result<Arc<dyn Backend>> {
    let name = format!("ascend:{ordinal}");
    let acl = Acl::open_in(&settings.ascend_homes).map_err(|e| error(&name, "loading the runtime", e))?;
    let failed = |what: &'static str| {
        let name = name.clone();
        move |e| error(&name, what, e)
    };
    acl::initialise(&acl).map_err(failed("starting the runtime"))?;
    let count = acl::count(&acl).map_err(failed("counting devices"))? as usize;
    if ordinal >= count {
        let cause = format!("the runtime counts {count} devices");
        return Err(Error::Driver { device: name, call: "opening the device".into(), cause });
    }
    let context = Context::new(Arc::new(acl), ordinal as i32).map_err(failed("opening the device"))?;
    let chip = context.chip().map_err(failed("asking for the chip"))?;
    let Some(target) = target_of(&chip) else {
        return Err(Error::Unsupported {
            what: format!("{name}: the chip `{chip}`"),
            expected: "Ascend 910B, 910C or 950".into(),
            got: "another one".into(),
        });
    };
    let caps = target.npu();
    // A runtime that does not know the attribute has the smallest chip of the kind.
    let ask = |which: i32, least: usize| context.attribute(which).ok().map_or(least, |n| n.max(1) as usize);
    let least = caps.map_or(1, |c| c.cube_cores);
    let cube_cores = ask(sys::ACL_DEV_ATTR_CUBE_CORE_NUM, least);
    let vector_cores = ask(sys::ACL_DEV_ATTR_VECTOR_CORE_NUM, 2 * least);
    let memory_bytes = context.memory().map_or(0, |m| m.1);
    let info = DeviceInfo {
        name,
        model: chip,
        target,
        arch: caps.map_or_else(String::new, |c| format!("dav-{}", c.arch)),
        capability: None,
        units: cube_cores,
        memory_bytes,
        driver: String::new(),
    };
    Ok(Arc::new(Shared(Arc::new(Npu {
        info,
        context,
        cube_cores,
        vector_cores,
        folders: settings.ascend_homes.clone(),
        scratch: settings.dir.join("ascend"),
        compiler: Mutex::default(),
        builds: Builds::default(),
        loaded: Mutex::default(),
        sync: settings.sync,
    }))))
}

/// All chips; empty if there is none.
pub(super) fn list(settings: &Settings) -> Vec<DeviceInfo> {
    let Ok(acl) = Acl::open_in(&settings.ascend_homes) else { return vec![] };
    let count = acl::initialise(&acl).and_then(|()| acl::count(&acl)).unwrap_or(0);
    (0..count as usize).filter_map(|i| open(i, settings).ok().map(|d| d.info())).collect()
}

#[derive(Clone, Debug)]
struct Shared(Arc<Npu>);

impl Npu {
    fn failed<'a>(&'a self, what: &'a str) -> impl FnOnce(sys::Error) -> Error + 'a {
        move |e| error(&self.info.name, what, e)
    }

    fn compiler(&self) -> Result<Arc<Compiler>> {
        let mut known = lock(&self.compiler);
        if let Some(c) = &*known {
            return Ok(Arc::clone(c));
        }
        let found = Arc::new(Compiler::open(&self.folders, self.scratch.clone())?);
        *known = Some(Arc::clone(&found));
        Ok(found)
    }

    fn load(&self, ready: &Ready) -> Result<Arc<Loaded>> {
        let key = ready.key();
        if let Some(found) = lock(&self.loaded).get(&key) {
            return Ok(Arc::clone(found));
        }
        let built = self.builds.get(ready)?;
        let target = self.info.target;
        let lowered = lower::source(&built, target).map_err(|diagnostics| Error::Refused {
            kernel: ready.name().into(),
            target: Some(target),
            diagnostics,
        })?;
        let launch = fits(&self.info, &lowered, ready.name())?;
        let image = self.compiler()?.compile(&lowered.source, &launch, ready.name())?;
        let mixed = launch.cores == NpuCores::Mixed;
        let kernel = self
            .context
            .load(&image, &lowered.source.signature.entry, mixed)
            .map_err(self.failed("loading a kernel"))?;
        let loaded = Arc::new(Loaded { lowered, launch, kernel });
        Ok(Arc::clone(lock(&self.loaded).entry(key).or_insert(loaded)))
    }
}

/// The launch of a text that was made for this chip's instruction set: code for another one runs into exceptions, or gives
/// wrong numbers.
fn fits(info: &DeviceInfo, lowered: &Lowered, kernel: &str) -> Result<NpuLaunch> {
    let have = info.target.npu().map(|c| c.arch);
    match &lowered.source.npu {
        Some(launch) if Some(launch.arch) == have => Ok(launch.clone()),
        other => Err(Error::Unsupported {
            what: format!("{}: loading `{kernel}`", info.name),
            expected: format!("code for {}, which {} runs", info.arch, info.model),
            got: other.as_ref().map_or("code for another kind of chip".into(), |l| format!("code for dav-{}", l.arch)),
        }),
    }
}

/// Memory of a chip.
#[derive(Debug)]
struct NpuMemory {
    device: String,
    buffer: Buffer,
}

impl Memory for NpuMemory {
    fn device(&self) -> &str {
        &self.device
    }
    fn len_bytes(&self) -> usize {
        self.buffer.len()
    }
    fn address(&self) -> u64 {
        self.buffer.address()
    }
    fn host(&self) -> Option<&HostMemory> {
        None
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Shared {
    fn own<'a>(&self, memory: &'a dyn Memory) -> Result<&'a Buffer> {
        let found = memory.as_any().downcast_ref::<NpuMemory>().filter(|m| m.device == self.0.info.name);
        found.map(|m| &m.buffer).ok_or_else(|| Error::Tensor {
            what: format!("copy to or from {} memory", self.0.info.name),
            expected: format!("memory on {}", self.0.info.name),
            got: format!("memory on {}", memory.device()),
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
        let device = self.0.info.name.clone();
        match self.0.context.alloc(bytes) {
            Ok(buffer) => Ok(Arc::new(NpuMemory { device, buffer })),
            Err(sys::Error::Acl { code: 200_000 | 207_001, .. }) => {
                let available = self.0.context.memory().map_or(0, |m| m.0);
                Err(Error::OutOfMemory { device, bytes, available })
            }
            Err(e) => Err(error(&device, "allocating memory", e)),
        }
    }
    fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        self.own(memory)?.write(offset, bytes).map_err(self.0.failed("copying to the device"))
    }
    fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        self.own(memory)?.read(offset, out).map_err(self.0.failed("copying from the device"))
    }
    fn queue(&self, _: &RunOptions) -> Result<Box<dyn Queue>> {
        let stream = self.0.context.stream().map_err(self.0.failed("making a stream"))?;
        Ok(Box::new(NpuQueue { npu: Arc::clone(&self.0), stream, workspace: Mutex::default() }))
    }
    fn compiler(&self) -> Result<String> {
        self.0.compiler().map(|c| c.name())
    }
}

/// A stream.
#[derive(Debug)]
struct NpuQueue {
    npu: Arc<Npu>,
    stream: Stream,
    /// Scratch of the launches of this stream, which follow each other; it grows.
    workspace: Mutex<Option<Buffer>>,
}

impl NpuQueue {
    /// Address of at least so many bytes of scratch.
    fn scratch(&self, bytes: usize) -> Result<u64> {
        let mut held = lock(&self.workspace);
        if held.as_ref().is_none_or(|b| b.len() < bytes) {
            // The smaller one goes after the launches that use it.
            *held = None;
            *held = Some(self.npu.context.alloc(bytes).map_err(self.npu.failed("allocating scratch memory"))?);
        }
        Ok(held.as_ref().map_or(0, Buffer::address))
    }
}

impl Queue for NpuQueue {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.npu.load(ready).map(drop)
    }

    fn launch(&self, ready: &Ready) -> Result<()> {
        let npu = &self.npu;
        let loaded = npu.load(ready)?;
        let (kernel, source) = (&loaded.lowered.kernel, &loaded.lowered.source);
        let syms = bind::sym_values(kernel, &ready.bound.dims, &ready.args);
        let grid = ready.grid(kernel, &syms)?;
        if grid.contains(&0) {
            return Ok(());
        }
        let resident = match loaded.launch.cores {
            NpuCores::Mixed => npu.cube_cores,
            NpuCores::Vector => npu.vector_cores,
        };
        let blocks = source.launch_blocks(&grid, resident).iter().product::<i64>();
        let limit = |expected: &str, got: i64| {
            Error::Launch(LaunchError {
                kernel: ready.name().into(),
                parameter: None,
                kind: LaunchErrorKind::Limits,
                expected: expected.into(),
                got: got.to_string(),
                help: "split the problem".into(),
            })
        };
        let blocks = u32::try_from(blocks).map_err(|_| limit("a number of blocks that fits 32 bits", blocks))?;
        let mut words = vec![];
        for arg in &source.signature.args {
            words.push(match arg {
                SigArg::Pointer(p) => match ready.args.get(p.0 as usize) {
                    Some(Arg::Tensor(v)) => v.memory.address() + v.offset_bytes as u64,
                    Some(Arg::Absent | Arg::Scalar(_) | Arg::Workspace { .. }) | None => 0,
                },
                SigArg::Sym { sym, wide } => {
                    let value = syms.get(sym.0 as usize).copied().unwrap_or(0);
                    if !wide && i32::try_from(value).is_err() {
                        return Err(limit("dimensions and strides that fit 32 bits", value));
                    }
                    value as u64
                }
                SigArg::Scalar(p) => match ready.args.get(p.0 as usize) {
                    Some(Arg::Scalar(x)) => x.bits,
                    Some(Arg::Absent | Arg::Tensor(_) | Arg::Workspace { .. }) | None => 0,
                },
                SigArg::Workspace => self.scratch(loaded.launch.workspace_bytes * blocks as usize)?,
                SigArg::GridArrivals | SigArg::TensorMap(_) => {
                    return Err(Error::Unsupported {
                        what: format!("{}: `{}`", npu.info.name, ready.name()),
                        expected: "arguments that cube and vector cores know".into(),
                        got: "a tensor map or a word of a cooperative grid".into(),
                    });
                }
            });
        }
        let what = format!("launching `{}`", ready.name());
        self.stream.launch(&loaded.kernel, blocks, &mut words).map_err(npu.failed(&what))?;
        if npu.sync { self.stream.synchronize().map_err(npu.failed(&what)) } else { Ok(()) }
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(self.npu.failed("waiting for a stream"))
    }

    fn record(&self) -> Result<Event> {
        let event = self.stream.record().map_err(self.npu.failed("recording an event"))?;
        Ok(Event(EventKind::Ascend(Timestamp { device: self.npu.info.name.clone(), event })))
    }

    fn begin_capture(&self) -> Result<bool> {
        Ok(false)
    }

    fn end_capture(&self) -> Result<Graph> {
        Err(no_graphs(&self.npu.info.name))
    }
}

/// A recorded event with its device.
#[derive(Debug)]
pub(crate) struct Timestamp {
    device: String,
    event: acl::Event,
}

impl Timestamp {
    pub(crate) fn elapsed_us(&self, end: &Timestamp) -> Result<f64> {
        self.event.elapsed_us(&end.event).map_err(|e| error(&self.device, "reading a timer", e))
    }
}
