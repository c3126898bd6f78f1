//! The device `sim:<target>`: binds launches as every device does, emits text for its target and runs it on the machine.
//! A launch runs to its end before it returns; findings are its error.

use super::{Exploration, HostCompiler, Program, Shape, SimArg, SimError, run};
use crate::config::Settings;
use crate::device::null::no_graphs;
use crate::device::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::error::{Error, Result};
use crate::launch::{BuildKey, Builds, Ready};
use kiln_codegen::abi::{Arg, Memory, SigArg};
use kiln_codegen::bind;
use kiln_codegen::compile::{self, Lowered};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::ParamKind;
use kiln_codegen::machine::Lines;
use kiln_codegen::target::Target;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Clusters (or blocks, without clusters) a simulated device holds at a time: few, so that a persistent kernel of a small
/// problem makes several rounds, and an odd number, so that they end unevenly.
const RESIDENT: usize = 3;

/// A simulated device; all its streams share what it has compiled.
#[derive(Clone, Debug)]
pub(in crate::device) struct Sim {
    name: String,
    target: Target,
    compiler: HostCompiler,
    exploration: Exploration,
    builds: Arc<Builds>,
    texts: Arc<Mutex<HashMap<BuildKey, Arc<Text>>>>,
}

#[derive(Debug)]
struct Text {
    lowered: Lowered,
    program: Arc<Program>,
}

/// Memory of a simulated device.
#[derive(Debug)]
struct SimMemory {
    device: String,
    bytes: HostMemory,
}

impl Memory for SimMemory {
    fn device(&self) -> &str {
        &self.device
    }
    fn len_bytes(&self) -> usize {
        self.bytes.len_bytes()
    }
    fn address(&self) -> u64 {
        Memory::address(&self.bytes)
    }
    fn host(&self) -> Option<&HostMemory> {
        Some(&self.bytes)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Opens `sim:<target>`; `None` if the target cannot be simulated.
pub(in crate::device) fn open(target: &str, settings: &Settings) -> Option<Sim> {
    // Newer targets follow with the instructions their text uses.
    let target = Target::parse(target).filter(|&t| t == Target::Sm80)?;
    let cache = settings.cache_dirs.iter().find(|d| std::fs::create_dir_all(d).is_ok());
    let cache = cache.cloned().unwrap_or_else(std::env::temp_dir).join("sim");
    Some(Sim {
        name: format!("sim:{}", target.name()),
        target,
        compiler: HostCompiler::new(cache),
        exploration: Exploration::new(settings.sim_schedules),
        builds: Arc::default(),
        texts: Arc::default(),
    })
}

impl Sim {
    fn host<'a>(&self, memory: &'a dyn Memory) -> Result<&'a HostMemory> {
        memory.host().ok_or_else(|| Error::Tensor {
            what: format!("copy to or from {} memory", self.name),
            expected: format!("memory on {}", self.name),
            got: format!("memory on {}", memory.device()),
        })
    }

    fn error(&self, kernel: &str, e: SimError) -> Error {
        match e {
            SimError::Refused { command, log } => Error::Compiler {
                compiler: command.display().to_string(),
                kernel: kernel.into(),
                target: self.target.name().into(),
                log,
            },
            SimError::Io { path, cause } => Error::Io { action: "write", path, cause },
            SimError::NoCompiler { .. }
            | SimError::Load { .. }
            | SimError::Arity { .. }
            | SimError::Stacks(_)
            | SimError::Memory(_) => {
                Error::Driver { device: self.name.clone(), call: format!("running `{kernel}`"), cause: e.to_string() }
            }
        }
    }

    fn text(&self, ready: &Ready) -> Result<Arc<Text>> {
        let key = ready.key();
        if let Some(text) = lock(&self.texts).get(&key) {
            return Ok(Arc::clone(text));
        }
        let built = self.builds.get(ready)?;
        let lowered = compile::source(&built, self.target).map_err(|diagnostics| Error::Refused {
            kernel: ready.name().into(),
            target: Some(self.target),
            diagnostics,
        })?;
        let program = self
            .compiler
            .load(&lowered.source.text, &lowered.source.signature.entry)
            .map_err(|e| self.error(ready.name(), e))?;
        let text = Arc::new(Text { lowered, program });
        Ok(Arc::clone(lock(&self.texts).entry(key).or_insert(text)))
    }
}

impl Backend for Sim {
    fn name(&self) -> &str {
        &self.name
    }
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            model: "chip simulator".into(),
            target: self.target,
            arch: self.target.name().into(),
            capability: None,
            units: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 0,
            driver: String::new(),
        }
    }
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(SimMemory { device: self.name.clone(), bytes: HostMemory::zeroed(bytes) }))
    }
    fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        self.host(memory)?.write(offset, bytes);
        Ok(())
    }
    fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        self.host(memory)?.read(offset, out);
        Ok(())
    }
    fn queue(&self, _: &RunOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(self.clone()))
    }
}

impl Queue for Sim {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.text(ready).map(drop)
    }
    fn launch(&self, ready: &Ready) -> Result<()> {
        let text = self.text(ready)?;
        let (kernel, source) = (&text.lowered.kernel, &text.lowered.source);
        let syms = bind::sym_values(kernel, &ready.bound.dims, &ready.args);
        let extents = ready.grid(kernel, &syms)?;
        if extents.contains(&0) {
            return Ok(());
        }
        if source.signature.args.contains(&SigArg::GridArrivals) {
            return Err(Error::Unsupported {
                what: format!("{}: `{}`, whose blocks wait for each other", self.name, ready.name()),
                expected: "a kernel without `grid_sync`, or the device `cpu`".into(),
                got: "a grid that must run as a whole; the model of the chip runs one block after another".into(),
            });
        }
        if source.cluster_blocks() > 1 {
            return Err(Error::Unsupported {
                what: format!("{}: `{}`", self.name, ready.name()),
                expected: "blocks without clusters".into(),
                got: format!("clusters of {} blocks", source.cluster_blocks()),
            });
        }
        let grid = source.launch_blocks(&extents, RESIDENT).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let args = source.signature.args.iter().map(|arg| {
            Ok(match arg {
                SigArg::Pointer(p) => match (&kernel.param(*p).kind, ready.args.get(p.0 as usize)) {
                    (ParamKind::Tensor { access, .. }, Some(Arg::Tensor(view))) => {
                        SimArg::Tensor { name: kernel.param(*p).name.clone(), access: *access, view: view.clone() }
                    }
                    _ => SimArg::Word(0),
                },
                SigArg::Sym { sym, .. } => SimArg::Word(syms.get(sym.0 as usize).copied().unwrap_or(0) as u64),
                // Refused above.
                SigArg::GridArrivals => SimArg::Word(0),
                SigArg::Scalar(p) => match ready.args.get(p.0 as usize) {
                    Some(Arg::Scalar(x)) => SimArg::Word(x.bits),
                    Some(Arg::Absent | Arg::Tensor(_) | Arg::Workspace { .. }) | None => SimArg::Word(0),
                },
                SigArg::TensorMap(spec) => {
                    let map = bind::tensor_map(kernel, spec, &syms, &ready.args)?;
                    match (&kernel.param(spec.param).kind, ready.args.get(spec.param.0 as usize)) {
                        (ParamKind::Tensor { access, .. }, Some(Arg::Tensor(view))) => {
                            let name = kernel.param(spec.param).name.clone();
                            SimArg::TensorMap { name, access: *access, view: view.clone(), map }
                        }
                        _ => SimArg::Word(0),
                    }
                }
            })
        });
        let args = args.collect::<Result<Vec<SimArg>>>()?;
        let shape = Shape { grid, threads: source.threads, shared_bytes: source.shared_bytes };
        let found = run(&text.program, shape, &args, &self.exploration).map_err(|e| self.error(ready.name(), e))?;
        if found.is_empty() {
            return Ok(());
        }
        let lines = Lines::of(&source.text);
        let findings = found.list().iter().map(|f| lines.diagnostic(f)).collect();
        Err(Error::Sanitizer { kernel: ready.name().into(), findings })
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
        Err(no_graphs(&self.name))
    }
}
