//! AscendC text on the model of an AI core: what `sim:ascend950` and `sim:ascend910b` run.
//!
//! `build` compiles a text with the host prelude in place of the vendor's header, `fiber` runs the cores of a block and
//! holds the table the text calls; meaning and checks are in `kiln_codegen::machine::ascend`. As on the other simulated
//! devices a launch is run under several schedules from the same memory, and the results must be equal.

mod build;
mod fiber;

pub use build::Program;

use super::{Exploration, Schedule, SimError, explore, store};
use kiln_codegen::abi::TensorView;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{Access, DType};
use kiln_codegen::machine::ascend::{Config, Machine, Stats};
use kiln_codegen::machine::{Findings, Global};
use std::sync::Arc;

/// An argument of an entry.
#[derive(Clone, Debug)]
pub enum Argument {
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
    /// Scratch memory of the launch, with no content before it.
    Workspace {
        /// Bytes of all blocks together.
        bytes: usize,
    },
}

/// What a run found and did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Defects.
    pub findings: Findings,
    /// Counts of the first schedule, with times estimated from published rates: of a model, not of a chip.
    pub stats: Stats,
}

/// Runs `blocks` blocks under every schedule, writes the outputs of the first one, and says what was found.
///
/// # Errors
/// See [`SimError`].
pub fn run(program: &Program, blocks: u32, args: &[Argument], by: &Exploration) -> Result<Report, SimError> {
    if program.arity != args.len() {
        return Err(SimError::Arity { expected: program.arity, got: args.len() });
    }
    // Tensors in the order of the arguments; scratch memory is one as well.
    let views: Vec<(String, Access, TensorView, bool)> = args
        .iter()
        .filter_map(|arg| match arg {
            Argument::Tensor { name, access, view } => Some((name.clone(), *access, view.clone(), false)),
            Argument::Workspace { bytes } => {
                let memory = Arc::new(HostMemory::zeroed(*bytes));
                let view = TensorView::contiguous(DType::U8, &[*bytes], memory);
                Some(("workspace".into(), Access::Out, view, true))
            }
            Argument::Word(_) => None,
        })
        .collect();
    let stats = std::sync::Mutex::new(None);
    let one = |schedule: Schedule| -> Result<(Findings, Global), SimError> {
        let machine = run_once(program, blocks, args, &views, schedule, by.spin_limit)?;
        let (findings, global, counts) = machine.finish();
        if by.schedules.first() == Some(&schedule) {
            *super::super::lock(&stats) = Some(counts);
        }
        Ok((findings, global))
    };
    let scratch = |i: usize| views.get(i).is_some_and(|v| v.3);
    let (mut findings, first) = explore(&by.schedules, scratch, |global: &Global| global, one)?;
    store(views.iter().map(|v| &v.2), &first);
    // Places are lines already.
    findings.resolve(&|line| line);
    let stats = super::super::lock(&stats).take().unwrap_or_default();
    Ok(Report { findings, stats })
}

fn run_once(
    program: &Program,
    blocks: u32,
    args: &[Argument],
    views: &[(String, Access, TensorView, bool)],
    by: Schedule,
    spin_limit: u64,
) -> Result<Machine, SimError> {
    let mut global = Global::default();
    let mut bases = vec![];
    for (name, access, view, _) in views {
        bases.push(global.add(name, *access, view).ok_or_else(|| SimError::Memory(name.clone()))?);
    }
    let mut bases = bases.into_iter();
    let words: Vec<u64> = args
        .iter()
        .map(|arg| match arg {
            Argument::Word(w) => *w,
            Argument::Tensor { .. } | Argument::Workspace { .. } => bases.next().unwrap_or(0),
        })
        .collect();
    let config = Config {
        arch: program.arch,
        blocks,
        mixed: program.mixed,
        policy: by.policy,
        timing: by.timing,
        seed: by.seed,
        spin_limit,
    };
    let scratch = views.iter().enumerate().filter(|v| v.1.3).map(|v| v.0);
    let machine = Machine::new(config, global, scratch);
    let (attach, entry) = program.functions()?;
    // SAFETY: the functions come from a program of this build's prelude, and the arity was checked.
    unsafe { fiber::launch(machine, attach, entry, &words) }.map_err(SimError::Stacks)
}
