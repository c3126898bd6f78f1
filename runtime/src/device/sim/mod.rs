//! The device `sim:<target>`: emitted text, compiled by the system's C++ compiler and run on a model of the chip.
//!
//! `device` is the backend, `build` compiles and loads, `fiber` runs threads, `table` is what the text calls; meaning and checks are in
//! `kiln_codegen::machine`. A launch is run several times from the same memory, each time with another schedule; the
//! results must be equal. `unsafe` is confined to this folder: fibers, calls into the loaded object, and its call-backs.
#![allow(unsafe_code, reason = "fibers and calls between Rust and compiled text")]

mod build;
mod device;
mod fiber;
mod table;

pub use build::{HostCompiler, Program};
pub(super) use device::open;

use crate::launch::pack::OpaqueMap;
use kiln_codegen::abi::{TensorMap, TensorView};
use kiln_codegen::ir::Access;
use kiln_codegen::machine::{Code, Config, Findings, Global, Policy, Timing};
use std::collections::HashMap;
use std::path::PathBuf;

/// Why a text could not be run at all; defects of a text that runs are [`Findings`].
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// No C++ compiler.
    #[error(
        "cannot start the C++ compiler `{}`: {cause}; the simulator compiles emitted text with it: install g++ or clang, \
         or set CXX",
        command.display()
    )]
    NoCompiler {
        /// What was started.
        command: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The compiler refused the text.
    #[error("`{}` refused the emitted text:\n{log}", command.display())]
    Refused {
        /// Compiler.
        command: PathBuf,
        /// Its messages.
        log: String,
    },
    /// A file operation failed.
    #[error("cannot write {}: {cause}", path.display())]
    Io {
        /// Path.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The object could not be loaded.
    #[error("cannot load the compiled text {}: {cause}; delete it to have it built again", path.display())]
    Load {
        /// Path.
        path: PathBuf,
        /// What the loader said.
        cause: String,
    },
    /// The arguments do not fit the entry.
    #[error("the emitted entry takes {expected} arguments, {got} were given")]
    Arity {
        /// Of the entry.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// No memory for the stacks of a block.
    #[error("cannot allocate the stacks of a block: {0}")]
    Stacks(std::io::Error),
    /// A tensor lives where the host cannot reach it.
    #[error("tensor `{0}` is not in host memory")]
    Memory(String),
}

/// An argument of an entry.
#[derive(Clone, Debug)]
pub enum SimArg {
    /// A tensor.
    Tensor {
        /// Parameter's name.
        name: String,
        /// How the kernel may use it.
        access: Access,
        /// The tensor.
        view: TensorView,
    },
    /// A map of a tensor. Several maps of one tensor, and the tensor itself, share its name.
    TensorMap {
        /// Parameter's name.
        name: String,
        /// How the kernel may use it.
        access: Access,
        /// The tensor.
        view: TensorView,
        /// The map, with the tensor's own address.
        map: TensorMap,
    },
    /// A scalar's bits, zero extended.
    Word(u64),
}

/// The tensors among arguments, each once, in order of first appearance.
fn tensors(args: &[SimArg]) -> Vec<(&str, Access, &TensorView)> {
    let mut all: Vec<(&str, Access, &TensorView)> = vec![];
    for arg in args {
        match arg {
            SimArg::Tensor { name, access, view } | SimArg::TensorMap { name, access, view, .. } => {
                if all.iter().all(|(known, ..)| known != name) {
                    all.push((name, *access, view));
                }
            }
            SimArg::Word(_) => {}
        }
    }
    all
}

/// One way to explore a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Choice of the next warp.
    pub policy: Policy,
    /// Completion of asynchronous operations.
    pub timing: Timing,
    /// Seed.
    pub seed: u64,
}

impl Schedule {
    /// `count` schedules: in order and early first, then random ones with late and random completion and strict
    /// priorities in turn.
    pub fn set(count: usize) -> Vec<Schedule> {
        let turn = [
            (Policy::InOrder, Timing::Early),
            (Policy::Random, Timing::Late),
            (Policy::Priorities, Timing::Random),
            (Policy::Random, Timing::Random),
        ];
        (0..count.max(1))
            .map(|i| {
                let (policy, timing) = turn[if i == 0 { 0 } else { 1 + (i - 1) % 3 }];
                Schedule { policy, timing, seed: i as u64 }
            })
            .collect()
    }
}

/// How a launch is explored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// Schedules; the outputs are those of the first.
    pub schedules: Vec<Schedule>,
    /// Operations a block may execute before the run is given up as endless.
    pub spin_limit: u64,
}

impl Exploration {
    /// `count` schedules and the default limit.
    pub fn new(count: usize) -> Self {
        Exploration { schedules: Schedule::set(count), spin_limit: Config::SPIN_LIMIT }
    }
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of shared memory of a block.
    pub shared_bytes: usize,
}

/// Bytes of a writable tensor after a run, and which of them the run wrote.
type Written = Option<(Vec<u8>, Vec<bool>)>;

/// Runs a launch under every schedule, writes the outputs of the first one, and says what was found.
///
/// # Errors
/// See [`SimError`].
pub fn run(program: &Program, shape: Shape, args: &[SimArg], by: &Exploration) -> Result<Findings, SimError> {
    let schedules = &by.schedules;
    if program.arity != args.len() {
        return Err(SimError::Arity { expected: program.arity, got: args.len() });
    }
    // Schedules are independent: they run in parallel, as many as there are cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs: Vec<Result<(Findings, Global), SimError>> = Vec::new();
    for batch in schedules.chunks(cores) {
        let results: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = batch
                .iter()
                .map(|&schedule| scope.spawn(move || Some(run_once(program, shape, args, schedule, by.spin_limit))))
                .collect();
            handles.into_iter().map(|h| h.join().ok().flatten()).collect()
        });
        for r in results {
            runs.push(r.unwrap_or_else(|| Err(SimError::Stacks(std::io::Error::other("a simulator thread panicked")))));
        }
    }
    let mut findings = Findings::default();
    let mut first: Option<Vec<Written>> = None;
    for (run, schedule) in runs.into_iter().zip(schedules) {
        let (found, global) = run?;
        let clean = found.is_empty();
        findings.merge(found);
        let results: Vec<_> = global.tensors().iter().map(|t| t.result()).collect();
        match &first {
            None => {
                store(args, &results);
                first = Some(results);
            }
            // After a finding the results are arbitrary, and the finding says more.
            Some(first) if clean && findings.is_empty() => {
                for (tensor, (a, b)) in global.tensors().iter().zip(first.iter().zip(&results)) {
                    if a != b {
                        findings.report(Code::ScheduleDependent, 0, 0, || {
                            format!("tensor `{}` differs between two schedules ({schedule:?})", tensor.name)
                        });
                    }
                }
            }
            Some(_) => {}
        }
    }
    let lines = program.lines(&findings.places());
    findings.resolve(&|place| lines.get(&place).copied().unwrap_or(0));
    Ok(findings)
}

fn run_once(
    program: &Program,
    shape: Shape,
    args: &[SimArg],
    by: Schedule,
    spin_limit: u64,
) -> Result<(Findings, Global), SimError> {
    let mut global = Global::default();
    let mut bases = HashMap::new();
    for (name, access, view) in tensors(args) {
        let base = global.add(name, access, view).ok_or_else(|| SimError::Memory(name.into()))?;
        bases.insert(name, base);
    }
    let base = |name: &String| bases.get(name.as_str()).copied().unwrap_or(0);
    // The text takes a map from the address it is given, so the maps have to stay where they are.
    let maps: Vec<OpaqueMap> = args
        .iter()
        .filter_map(|arg| match arg {
            SimArg::TensorMap { name, view, map, .. } => {
                let own = view.memory.address().wrapping_add(view.offset_bytes as u64);
                let address = map.address.wrapping_sub(own).wrapping_add(base(name));
                Some(OpaqueMap(TensorMap { address, ..map.clone() }.words()))
            }
            SimArg::Tensor { .. } | SimArg::Word(_) => None,
        })
        .collect();
    let mut next_map = maps.iter();
    let words: Vec<u64> = args
        .iter()
        .map(|arg| match arg {
            SimArg::Word(w) => *w,
            SimArg::Tensor { name, .. } => base(name),
            SimArg::TensorMap { .. } => next_map.next().map_or(0, |m| std::ptr::from_ref(m) as u64),
        })
        .collect();
    let mut config = Config::nvidia(shape.threads, shape.shared_bytes, shape.grid);
    (config.policy, config.timing, config.seed, config.spin_limit) = (by.policy, by.timing, by.seed, spin_limit);
    let (attach, entry) = program.functions()?;
    // SAFETY: the functions come from a program of this build's prelude, and the arity was checked.
    let machine = unsafe { fiber::launch(config, global, attach, entry, &words) };
    Ok(machine.map_err(SimError::Stacks)?.finish())
}

/// Writes what a run wrote to the real tensors.
fn store(args: &[SimArg], results: &[Written]) {
    for ((_, _, view), result) in tensors(args).into_iter().zip(results) {
        let (Some((bytes, written)), Some(memory)) = (result, view.memory.host()) else { continue };
        let mut at = 0;
        while at < bytes.len() {
            let run = written[at..].iter().take_while(|&&w| w == written[at]).count();
            if written[at] {
                memory.write(view.offset_bytes + at, &bytes[at..at + run]);
            }
            at += run;
        }
    }
}
