//! The device `vm:<target>`: kernels as their schedule for a target places them, in the tile VM, which no compiler and no
//! emitter stand between.
//!
//! A launch runs the plain kernel, then the scheduled one with its roles and engines in several orders, and compares the
//! bits. Findings and differences are its error. A kernel without a schedule runs as on `cpu`; a message says why.

use super::null::no_graphs;
use super::{Backend, DeviceInfo, Event, EventKind, Graph, Queue, RunOptions, lock};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::launch::{Builds, Ready};
use kiln_codegen::abi::Memory;
use kiln_codegen::bind;
use kiln_codegen::compile;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::target::Target;
use kiln_codegen::vm::{self, roles};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub(super) struct Vm {
    name: String,
    target: Target,
    schedules: usize,
    builds: Arc<Builds>,
}

/// Opens `vm:<target>`; `None` if the target has no threads to schedule on.
pub(super) fn open(target: &str, settings: &Settings) -> Option<Vm> {
    let target = Target::parse(target).filter(|t| t.caps().is_some())?;
    let name = format!("vm:{}", target.name());
    Some(Vm { name, target, schedules: settings.sim_schedules, builds: Arc::default() })
}

impl Vm {
    fn host<'a>(&self, memory: &'a dyn Memory) -> Result<&'a HostMemory> {
        memory.host().ok_or_else(|| Error::Tensor {
            what: format!("copy to or from {} memory", self.name),
            expected: "host memory".into(),
            got: format!("memory on {}", memory.device()),
        })
    }
}

impl Backend for Vm {
    fn name(&self) -> &str {
        &self.name
    }
    fn memory_device(&self) -> &str {
        "cpu"
    }
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            model: "tile VM, scheduled".into(),
            target: self.target,
            arch: self.target.name().into(),
            capability: None,
            units: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 0,
            driver: String::new(),
        }
    }
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(HostMemory::zeroed(bytes)))
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
        Ok(Box::new(VmQueue { vm: self.clone(), messages: Mutex::default() }))
    }
}

#[derive(Debug)]
struct VmQueue {
    vm: Vm,
    messages: Mutex<Vec<Diagnostic>>,
}

impl Queue for VmQueue {
    fn prepare(&self, ready: &Ready) -> Result<()> {
        self.vm.builds.get(ready).map(drop)
    }
    fn launch(&self, ready: &Ready) -> Result<()> {
        let built = self.vm.builds.get(ready)?;
        let built = built.on(self.vm.target);
        let k = &built.kernel;
        let syms = bind::sym_values(k, &ready.bound.dims, &ready.args);
        if ready.grid(k, &syms)?.contains(&0) {
            return Ok(());
        }
        let target = self.vm.target;
        let refused = |diagnostics| Error::Refused { kernel: ready.name().into(), target: Some(target), diagnostics };
        let report = match compile::scheduled(built, target) {
            Ok((_, scheduled, facts)) => {
                let forms = [(k, &built.facts), (&scheduled, &facts)];
                let schedules = roles::Schedule::series(self.vm.schedules);
                roles::run_checked(forms, &syms, &ready.args, &schedules).map_err(refused)?
            }
            Err(reason) => {
                let m = format!("the plain kernel was run, it has no schedule for {}: {reason}", target.name());
                let note = Diagnostic::error(k, k.span, "V0550", m).warning();
                lock(&self.messages).push(note);
                vm::run(k, &built.facts, &syms, &ready.args, &vm::Options::default()).map_err(refused)?
            }
        };
        lock(&self.messages).extend(report.messages);
        if report.findings.is_empty() {
            return Ok(());
        }
        Err(Error::Sanitizer { kernel: ready.name().into(), findings: report.findings })
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
        Err(no_graphs(&self.vm.name))
    }
    fn take_messages(&self) -> Vec<Diagnostic> {
        std::mem::take(&mut *lock(&self.messages))
    }
}
