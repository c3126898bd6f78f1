//! The device `sim:<target>`: binds launches as every device does, emits text for its target and runs it on the machine.
//! A launch runs to its end before it returns; findings are its error.

use super::{Exploration, HostCompiler, Program, Shape, SimArg, SimError, ascend, run};
use crate::config::Settings;
use crate::device::null::no_graphs;
use crate::device::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::error::{Error, Result};
use crate::launch::{BuildKey, Builds, Ready};
use kiln_codegen::abi::{self, Arg, Memory, SigArg};
use kiln_codegen::bind;
use kiln_codegen::compile::{self, Lowered};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::ParamKind;
use kiln_codegen::machine::ascend::Arch;
use kiln_codegen::machine::{self, Lines};
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
    program: Loaded,
}

/// Compiled text, for one of the two models.
#[derive(Clone, Debug)]
enum Loaded {
    Threads(Arc<Program>),
    Cores(Arc<ascend::Program>),
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
    let simulated = |t: &Target| match t {
        Target::Sm80 | Target::Sm90a | Target::Ascend910b | Target::Ascend950 => true,
        Target::Vm | Target::Sm100a => false,
    };
    let target = Target::parse(target).filter(simulated)?;
    let cache = settings.cache_dirs.iter().find(|d| std::fs::create_dir_all(d).is_ok());
    let cache = cache.cloned().unwrap_or_else(std::env::temp_dir).join("sim");
    Some(Sim {
        name: format!("sim:{}", target.name()),
        target,
        compiler: HostCompiler::new(settings, cache),
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
            | SimError::Panicked(_)
            | SimError::Grid(_)
            | SimError::Memory(_) => {
                Error::Driver { device: self.name.clone(), call: format!("running `{kernel}`"), cause: e.to_string() }
            }
        }
    }

    fn lowered(&self, ready: &Ready) -> Result<Lowered> {
        let built = self.builds.get(ready)?;
        compile::source(&built, self.target).map_err(|diagnostics| Error::Refused {
            kernel: ready.name().into(),
            target: Some(self.target),
            diagnostics,
        })
    }

    fn load(&self, lowered: &Lowered) -> std::result::Result<Loaded, SimError> {
        let (text, entry) = (&lowered.source.text, &lowered.source.signature.entry);
        match lowered.source.npu.as_ref().map(|n| n.arch) {
            None => self.compiler.load(text, entry).map(Loaded::Threads),
            Some(2201) => self.compiler.load_ascend(text, entry, Arch::A2201).map(Loaded::Cores),
            Some(_) => self.compiler.load_ascend(text, entry, Arch::A3510).map(Loaded::Cores),
        }
    }

    fn text(&self, ready: &Ready) -> Result<Arc<Text>> {
        let key = ready.key();
        if let Some(text) = lock(&self.texts).get(&key) {
            return Ok(Arc::clone(text));
        }
        let lowered = self.lowered(ready)?;
        let program = self.load(&lowered).map_err(|e| self.error(ready.name(), e))?;
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
    fn prepare_together(&self, all: &[Ready]) -> Result<()> {
        if self.target.npu().is_some() {
            return all.iter().try_for_each(|ready| self.prepare(ready));
        }
        let mut new: Vec<(BuildKey, &str, Lowered)> = vec![];
        for ready in all {
            let key = ready.key();
            if !lock(&self.texts).contains_key(&key) && !new.iter().any(|n| n.0 == key) {
                new.push((key, ready.name(), self.lowered(ready)?));
            }
        }
        let texts: Vec<_> =
            new.iter().map(|(.., l)| (l.source.text.as_str(), l.source.signature.entry.as_str())).collect();
        let names: Vec<_> = new.iter().map(|n| n.1).collect();
        let programs = match texts.is_empty() {
            true => vec![],
            false => self.compiler.load_together(&texts).map_err(|e| self.error(&names.join("`, `"), e))?,
        };
        let mut known = lock(&self.texts);
        for ((key, _, lowered), program) in new.into_iter().zip(programs) {
            known.entry(key).or_insert_with(|| Arc::new(Text { lowered, program: Loaded::Threads(program) }));
        }
        Ok(())
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
        let grid = grid_of(&source.launch_blocks(&extents, RESIDENT)).map_err(|e| self.error(ready.name(), e))?;
        let args = source.signature.args.iter().map(|arg| {
            Ok(match arg {
                SigArg::Pointer(p) => match (&kernel.param(*p).kind, ready.args.get(p.0 as usize)) {
                    (ParamKind::Tensor { access, .. }, Some(Arg::Tensor(view))) => {
                        SimArg::Tensor { name: kernel.param(*p).name.clone(), access: *access, view: view.clone() }
                    }
                    _ => SimArg::Word(0),
                },
                SigArg::Sym { sym, .. } => SimArg::Word(syms.get(sym.0 as usize).copied().unwrap_or(0) as u64),
                // Refused above, and not taken by text for targets with threads.
                SigArg::GridArrivals | SigArg::Workspace => SimArg::Word(0),
                SigArg::Scalar(p) => match ready.args.get(p.0 as usize) {
                    Some(Arg::Scalar(x)) => SimArg::Word(x.bits),
                    Some(Arg::Absent | Arg::Tensor(_) | Arg::Workspace { .. }) | None => SimArg::Word(0),
                },
                SigArg::TensorMap(spec) => {
                    let map = bind::tensor_map(kernel, spec, &syms, &ready.args)?;
                    match (&kernel.param(spec.param).kind, ready.args.get(spec.param.0 as usize)) {
                        (ParamKind::Tensor { access, .. }, Some(Arg::Tensor(view))) => {
                            let name = kernel.param(spec.param).name.clone();
                            let own = view.memory.address().wrapping_add(view.offset_bytes as u64);
                            let map = machine_map(&map, own);
                            SimArg::TensorMap { name, access: *access, view: view.clone(), map }
                        }
                        _ => SimArg::Word(0),
                    }
                }
            })
        });
        let args = args.collect::<Result<Vec<SimArg>>>()?;
        let (cluster, shared_bytes) = (source.cluster, source.shared_bytes);
        let shape = Shape { grid, cluster, threads: source.threads, shared_bytes };
        let found = match &text.program {
            Loaded::Threads(program) => run(program, shape, &args, &self.exploration),
            Loaded::Cores(program) => {
                let bytes = source.npu.as_ref().map_or(0, |n| n.workspace_bytes) * grid[0] as usize;
                let args: Vec<ascend::Argument> = source
                    .signature
                    .args
                    .iter()
                    .zip(args)
                    .map(|(sig, arg)| match (sig, arg) {
                        (SigArg::Workspace, _) => ascend::Argument::Workspace { bytes },
                        (_, SimArg::Tensor { name, access, view }) => ascend::Argument::Tensor { name, access, view },
                        (_, SimArg::Word(w)) => ascend::Argument::Word(w),
                        (_, SimArg::TensorMap { .. }) => ascend::Argument::Word(0),
                    })
                    .collect();
                ascend::run(program, grid[0], &args, &self.exploration).map(|r| r.findings)
            }
        };
        let found = found.map_err(|e| self.error(ready.name(), e))?;
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

/// A map for the machine, which counts addresses from the tensor's first element.
fn machine_map(map: &abi::TensorMap, own: u64) -> machine::TensorMap {
    machine::TensorMap {
        // A tensor without elements has no place of its own.
        address: if map.is_empty() { 0 } else { map.address.wrapping_sub(own) },
        element_bytes: map.dtype.bits() / 8,
        extents: map.extents.clone(),
        strides: map.strides_bytes.clone(),
        box_extents: map.boxes.clone(),
        swizzle: match map.swizzle {
            abi::Swizzle::None => machine::Swizzle::None,
            abi::Swizzle::B32 => machine::Swizzle::B32,
            abi::Swizzle::B64 => machine::Swizzle::B64,
            abi::Swizzle::B128 => machine::Swizzle::B128,
        },
    }
}

/// The grid as the machine counts it: blocks have numbers of 32 bits.
fn grid_of(extents: &[i64]) -> std::result::Result<[u32; 3], SimError> {
    let mut wide = [1i64; 3];
    wide.iter_mut().zip(extents).for_each(|(g, &e)| *g = e);
    let blocks = wide.iter().try_fold(1i64, |n, &e| n.checked_mul(e));
    match blocks.map(u32::try_from) {
        Some(Ok(_)) => Ok(wide.map(|e| e as u32)),
        Some(Err(_)) | None => Err(SimError::Grid(wide)),
    }
}

#[cfg(test)]
mod tests {
    use super::grid_of;

    #[test]
    fn grids_beyond_the_machine_are_refused() {
        assert_eq!(grid_of(&[3, 4]).ok(), Some([3, 4, 1]));
        assert_eq!(grid_of(&[i64::from(u32::MAX)]).ok(), Some([u32::MAX, 1, 1]));
        for wrong in [&[i64::from(u32::MAX) + 1][..], &[1 << 16, 1 << 16], &[1 << 40, 1 << 40]] {
            let e = grid_of(wrong).map_err(|e| e.to_string());
            assert!(e.as_ref().is_err_and(|e| e.contains("2^32 - 1")), "{e:?}");
        }
    }
}
