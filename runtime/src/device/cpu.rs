//! The CPU device: host memory and the tile VM. A launch runs to its end before it returns.

use super::null::no_graphs;
use super::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::launch::{Builds, Ready};
use kiln_codegen::abi::Memory;
use kiln_codegen::bind;
use kiln_codegen::compile::Built;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::target::Target;
use kiln_codegen::vm::{self, program::Program};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub(super) struct Cpu {
    threads: Option<usize>,
    builds: Arc<Builds>,
    programs: Arc<Programs>,
}

impl Cpu {
    pub(super) fn new(settings: &Settings) -> Self {
        Cpu { threads: settings.threads, builds: Arc::default(), programs: Arc::default() }
    }
}

/// Kernels compiled for the dimensions of their launches. Small networks launch the same ones over and over, and compiling
/// takes longer than running them.
#[derive(Debug, Default)]
struct Programs(Mutex<HashMap<ProgramKey, Compiled>>);

/// Address of a build, and the dimensions.
type ProgramKey = (usize, Vec<i64>);
/// A build and its program.
type Compiled = (Arc<Built>, Arc<Program>);

/// Programs that are kept; one takes some ten kilobytes.
const PROGRAMS: usize = 512;

impl Programs {
    /// The program of a build, which is known by its address: an entry keeps its build alive.
    fn get(&self, built: &Arc<Built>, syms: &[i64]) -> std::result::Result<Arc<Program>, Vec<Diagnostic>> {
        let key = (Arc::as_ptr(built) as usize, syms.to_vec());
        if let Some((_, program)) = lock(&self.0).get(&key) {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(vm::compile::compile(&built.kernel, &built.facts, syms, false)?);
        let mut all = lock(&self.0);
        if all.len() >= PROGRAMS {
            all.clear();
        }
        all.insert(key, (Arc::clone(built), Arc::clone(&program)));
        Ok(program)
    }
}

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }
    fn info(&self) -> DeviceInfo {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        DeviceInfo {
            name: "cpu".into(),
            model: "tile VM".into(),
            target: Target::Vm,
            arch: String::new(),
            capability: None,
            units: self.threads.unwrap_or(cores),
            memory_bytes: memory("MemTotal:").unwrap_or(0),
            driver: String::new(),
        }
    }
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        // Every page is touched at once, so asking for more than there is would end the process, not the call. Reading
        // the report takes longer than a small allocation.
        if bytes >= LARGE_BYTES {
            let available = free_host_bytes();
            if bytes > available {
                return Err(Error::OutOfMemory { device: "cpu".into(), bytes, available });
            }
        }
        Ok(Arc::new(HostMemory::zeroed(bytes)))
    }
    fn write(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        host(memory)?.write(offset, bytes);
        Ok(())
    }
    fn read(&self, memory: &dyn Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        host(memory)?.read(offset, out);
        Ok(())
    }
    fn queue(&self, options: &RunOptions) -> Result<Box<dyn Queue>> {
        let options = vm::Options { sanitize: options.sanitize, threads: self.threads, order: options.order };
        let (builds, programs) = (Arc::clone(&self.builds), Arc::clone(&self.programs));
        Ok(Box::new(CpuQueue { builds, programs, options, messages: Mutex::default() }))
    }
}

/// Allocations from here on are compared with what is free.
const LARGE_BYTES: usize = 64 << 20;

/// Bytes of memory that are free on this machine; without a report, all there can be.
pub fn free_host_bytes() -> usize {
    memory("MemAvailable:").unwrap_or(isize::MAX as usize)
}

/// A line of the kernel's memory report in bytes; `None` where there is no such report.
fn memory(field: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

fn host(memory: &dyn Memory) -> Result<&HostMemory> {
    memory.host().ok_or_else(|| Error::Tensor {
        what: "copy to or from cpu memory".into(),
        expected: "memory on cpu".into(),
        got: format!("memory on {}", memory.device()),
    })
}

#[derive(Debug)]
struct CpuQueue {
    builds: Arc<Builds>,
    programs: Arc<Programs>,
    options: vm::Options,
    messages: Mutex<Vec<Diagnostic>>,
}

impl Queue for CpuQueue {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.builds.get(ready).map(drop)
    }
    fn launch(&self, ready: &Ready) -> Result<()> {
        let built = self.builds.get(ready)?;
        let syms = bind::sym_values(&built.kernel, &ready.bound.dims, &ready.args);
        if ready.grid(&built.kernel, &syms)?.contains(&0) {
            return Ok(());
        }
        let kernel = || ready.name().to_string();
        let report = if self.options.sanitize || !built.kernel.roles.is_empty() {
            vm::run(&built.kernel, &built.facts, &syms, &ready.args, &self.options)
        } else {
            let program = self.programs.get(&built, &syms);
            program.and_then(|program| vm::run_program(&built.kernel, &program, &ready.args, &self.options))
        };
        let report =
            report.map_err(|diagnostics| Error::Refused { kernel: kernel(), target: Some(Target::Vm), diagnostics })?;
        lock(&self.messages).extend(report.messages);
        if report.findings.is_empty() {
            Ok(())
        } else {
            Err(Error::Sanitizer { kernel: kernel(), findings: report.findings })
        }
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
        Err(no_graphs("cpu"))
    }
    fn take_messages(&self) -> Vec<Diagnostic> {
        std::mem::take(&mut *lock(&self.messages))
    }
}
