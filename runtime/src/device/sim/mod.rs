//! The device `sim:<target>`: emitted text, compiled by the system's C++ compiler and run on a model of the chip.
//!
//! `device` is the backend, `build` compiles and loads, `fiber` runs threads, `table` and `hopper` are what the text calls;
//! meaning and checks are in `kiln_codegen::machine`. A launch is run several times from the same memory, each time with another schedule; the
//! results must be equal. `unsafe` is confined to this folder: fibers, calls into the loaded object, and its call-backs.
#![allow(unsafe_code, reason = "fibers and calls between Rust and compiled text")]

pub mod ascend;
mod build;
mod device;
mod fiber;
mod hopper;
mod table;

pub use build::{HostCompiler, Program};
pub(super) use device::open;

use hopper::MapWords;
use kiln_codegen::abi::TensorView;
use kiln_codegen::ir::Access;
use kiln_codegen::machine::{Code, Config, Findings, Global, Policy, TensorMap, Timing};
use std::collections::{HashMap, HashSet};
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
    /// The machine itself panicked.
    #[error("the simulator panicked, which is a defect of Kiln: {0}")]
    Panicked(String),
    /// The grid has more blocks than the simulator can number.
    #[error("a grid of {0:?} blocks; the simulator runs at most 2^32 - 1")]
    Grid([i64; 3]),
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
    /// A scalar's bits, zero extended.
    Word(u64),
    /// A tensor map. Arguments with the same name are about the same tensor.
    TensorMap {
        /// Parameter's name.
        name: String,
        /// How the kernel may use it.
        access: Access,
        /// The tensor.
        view: TensorView,
        /// Its boxes; the address is that of the first element relative to the tensor's first.
        map: TensorMap,
    },
}

impl SimArg {
    fn tensor(&self) -> Option<(&str, Access, &TensorView)> {
        match self {
            SimArg::Tensor { name, access, view } | SimArg::TensorMap { name, access, view, .. } => {
                Some((name, *access, view))
            }
            SimArg::Word(_) => None,
        }
    }
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
    /// Blocks of a cluster along each axis.
    pub cluster: [u32; 3],
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
    if program.arity != args.len() {
        return Err(SimError::Arity { expected: program.arity, got: args.len() });
    }
    let one = |schedule| run_once(program, shape, args, schedule, by.spin_limit);
    let (mut findings, first) = explore(&by.schedules, |_| false, |global: &Global| global, one)?;
    let mut seen = HashSet::new();
    store(args.iter().filter_map(SimArg::tensor).filter(|t| seen.insert(t.0)).map(|t| t.2), &first);
    let lines = program.lines(&findings.places());
    findings.resolve(&|place| lines.get(&place).copied().unwrap_or(0));
    Ok(findings)
}

/// Runs every schedule, and compares what they wrote but for tensors that are `scratch`: what was found, and the results of
/// the first one.
fn explore<T: Send>(
    schedules: &[Schedule],
    scratch: impl Fn(usize) -> bool,
    global: impl Fn(&T) -> &Global,
    one: impl Fn(Schedule) -> Result<(Findings, T), SimError> + Sync,
) -> Result<(Findings, Vec<Written>), SimError> {
    // Schedules are independent: they run in parallel, as many as there are cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs: Vec<Result<(Findings, T), SimError>> = Vec::new();
    let one = &one;
    for batch in schedules.chunks(cores) {
        let results: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = batch.iter().map(|&schedule| scope.spawn(move || one(schedule))).collect();
            handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| Err(panicked(&*panic)))).collect()
        });
        runs.extend(results);
    }
    let mut findings = Findings::default();
    let mut first: Option<Vec<Written>> = None;
    for (run, schedule) in runs.into_iter().zip(schedules) {
        let (found, done) = run?;
        let clean = found.is_empty();
        findings.merge(found);
        let tensors = global(&done).tensors();
        let results: Vec<_> = tensors.iter().map(|t| t.result()).collect();
        match &first {
            None => first = Some(results),
            // After a finding the results are arbitrary, and the finding says more.
            Some(first) if clean && findings.is_empty() => {
                for (i, (tensor, (a, b))) in tensors.iter().zip(first.iter().zip(&results)).enumerate() {
                    if a != b && !scratch(i) {
                        findings.report(Code::ScheduleDependent, 0, 0, || {
                            format!("tensor `{}` differs between two schedules ({schedule:?})", tensor.name)
                        });
                    }
                }
            }
            Some(_) => {}
        }
    }
    Ok((findings, first.unwrap_or_default()))
}

/// What a panic said.
fn panicked(panic: &(dyn std::any::Any + Send)) -> SimError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    SimError::Panicked(text.unwrap_or("without a message").into())
}

fn run_once(
    program: &Program,
    shape: Shape,
    args: &[SimArg],
    by: Schedule,
    spin_limit: u64,
) -> Result<(Findings, Global), SimError> {
    let mut global = Global::default();
    let mut tensors: HashMap<&str, u64> = HashMap::new();
    let mut maps: Vec<TensorMap> = vec![];
    let mut map_words: Vec<Box<MapWords>> = vec![];
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        let base = match arg.tensor() {
            None => 0,
            Some((name, access, view)) => match tensors.get(name) {
                Some(&base) => base,
                None => {
                    let base = global.add(name, access, view).ok_or_else(|| SimError::Memory(name.into()))?;
                    tensors.insert(name, base);
                    base
                }
            },
        };
        words.push(match arg {
            SimArg::Word(w) => *w,
            SimArg::Tensor { .. } => base,
            SimArg::TensorMap { map, .. } => {
                let mut words = Box::new(MapWords([0; 16]));
                (words.0[0], words.0[1]) = (hopper::MAP, maps.len() as u64);
                // A tensor without elements has no place; nothing of it is ever touched.
                let address = if map.extents.contains(&0) { 0 } else { base + map.address };
                maps.push(TensorMap { address, ..map.clone() });
                let address = std::ptr::from_ref(&*words) as u64;
                map_words.push(words);
                address
            }
        });
    }
    let mut config = Config::nvidia(shape.threads, shape.shared_bytes, shape.grid);
    config.cluster = shape.cluster;
    (config.policy, config.timing, config.seed, config.spin_limit) = (by.policy, by.timing, by.seed, spin_limit);
    let (attach, entry) = program.functions()?;
    // SAFETY: the functions come from a program of this build's prelude, and the arity was checked; words that are addresses
    // of tensor maps point into `map_words`, which lives on.
    let machine = unsafe { fiber::launch(config, global, maps, attach, entry, &words) };
    drop(map_words);
    Ok(machine.map_err(SimError::Stacks)?.finish())
}

/// Writes what a run wrote to the real tensors.
fn store<'a>(tensors: impl Iterator<Item = &'a TensorView>, results: &[Written]) {
    for (view, result) in tensors.zip(results) {
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
