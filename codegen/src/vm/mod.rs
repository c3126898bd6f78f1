//! The tile VM: runs plain IR on the CPU, and scheduled kernels with roles in [`roles`]. It is the meaning of the language and
//! the witness of every emitter, so it shares no code with them.
//!
//! Flow: [`compile`] turns a kernel and its dimension values into a flat [`program::Program`]; [`exec`] runs it block by
//! block, element bodies as a register program over strips of lanes ([`lanes`]), tiles and tensors through [`memory`],
//! reductions through [`mod@reduce`], matrix products through [`simd`]. Blocks run in parallel under rayon, each worker with
//! its own tiles.
//!
//! Fixed choices where the IR leaves room: a reduction without an order is sequential; tiles hold a NaN (integers a
//! pattern) when they come into being; integer division by zero gives 0.
//!
//! The sanitizer ([`Options::sanitize`]) runs blocks one after another with [`shadow`] state, then runs the kernel twice
//! more, backwards and in a seeded order, and compares the bits. Findings:
//! * `S0101` an index outside its view. Expected and not reported: `get_or`, `put`, the tensor side of copies, and
//!   indices past the end of an axis for which the verifier kept a guard (`Facts::guards`), the tails of ordinary loops.
//!   Reported: anything below zero in a plain access, and any index outside an axis the verifier called proven or does
//!   not know, or outside a tile.
//! * `S0102` a read of an element of a tile or output that nothing wrote.
//! * `S0103` two iterations of one body touch one element, at least one with a plain write (or an atomic and a read).
//! * `S0104` elements of an output that no block wrote.
//! * `S0105` results that depend on the order of blocks or iterations.
//! * `S0106` an offset past 31 bits in a kernel built without wide indices.
//! * `S0111` a `check!` of the kernel that does not hold.
//! * `S0112` a scheduled kernel that gives other bits than the plain one.
//! * `S0107` division by zero, of integers or of indices (the latter also ends a run that is not sanitized).
//! * `S0108` a view that reaches outside its allocation (always an error; the access is not made).
//! * `S0109` arguments that are not the kernel's; `S0110` IR that the verifier would refuse.
//! * `S0151`, `S0152` as messages: the first NaN or infinity of an op, and saturated conversions.

pub mod chip;
pub mod compile;
pub mod convert;
pub mod exec;
pub mod lanes;
pub mod math;
pub mod memory;
pub mod program;
pub mod reduce;
pub mod roles;
pub mod shadow;
pub mod simd;

use crate::abi::{Arg, TensorView};
use crate::diag::Diagnostic;
use crate::ir::{Access, Kernel, ParamKind};
use crate::valid::Facts;
use exec::{Permutation, Shared, Worker};
use memory::Global;
use program::Program;
use shadow::Shadow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Order of blocks and of the iterations of element bodies. The results of a correct kernel do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockOrder {
    /// First to last.
    #[default]
    Forward,
    /// Last to first.
    Reversed,
    /// A permutation drawn from the seed.
    Seeded(u64),
}

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Look for defects; slow, and blocks run one after another.
    pub sanitize: bool,
    /// Workers; `None` takes as many as rayon has threads.
    pub threads: Option<usize>,
    /// Order of blocks and iterations.
    pub order: BlockOrder,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Defects of the kernel.
    pub findings: Vec<Diagnostic>,
    /// Numeric surprises, which may be meant.
    pub messages: Vec<Diagnostic>,
}

/// Runs a plain kernel on host memory. `syms` has a value for each of the kernel's symbols, `args` one argument a
/// parameter; `bind` has checked that they fit.
///
/// # Errors
/// Arguments that are not the kernel's, IR the VM cannot run, and accesses that leave an allocation. Outputs are then
/// undefined.
pub fn run(
    kernel: &Kernel,
    facts: &Facts,
    syms: &[i64],
    args: &[Arg],
    options: &Options,
) -> Result<Report, Vec<Diagnostic>> {
    if !kernel.roles.is_empty() {
        let schedules = roles::Schedule::series(if options.sanitize { 4 } else { 1 });
        return roles::run(kernel, facts, syms, args, &schedules);
    }
    let program = compile::compile(kernel, facts, syms, options.sanitize)?;
    run_program(kernel, &program, args, options)
}

/// As [`run`] for a plain kernel that was compiled before, for these dimensions and with or without the sanitizer as the
/// options say.
///
/// # Errors
/// As for [`run`].
pub fn run_program(
    kernel: &Kernel,
    program: &Program,
    args: &[Arg],
    options: &Options,
) -> Result<Report, Vec<Diagnostic>> {
    let (tensors, scalars) = arguments(kernel, args)?;
    let blocks = program.grid.iter().try_fold(1usize, |n, &g| n.checked_mul(g.max(0) as usize)).unwrap_or(0);
    if blocks == 0 {
        return Ok(Report::default());
    }
    let globals: Vec<Option<Global>> = tensors
        .iter()
        .map(|t| t.and_then(|v| v.memory.host().map(|memory| Global { memory, offset: v.offset_bytes })))
        .collect();
    if options.sanitize {
        return sanitized(kernel, program, &tensors, &globals, &scalars, blocks);
    }
    plain(kernel, program, &globals, &scalars, blocks, options.order, options.threads)?;
    Ok(Report::default())
}

/// Tensors and scalar bit patterns by parameter.
type Arguments<'a> = (Vec<Option<&'a TensorView>>, Vec<u64>);

fn arguments<'a>(kernel: &Kernel, args: &'a [Arg]) -> Result<Arguments<'a>, Vec<Diagnostic>> {
    let mut errors = vec![];
    let mut wrong = |span, what: String| {
        let help = "launch the kernel through a device, which checks its arguments";
        errors.push(Diagnostic::error(kernel, span, "S0109", what).help(help));
    };
    if args.len() != kernel.params.len() {
        wrong(kernel.span, format!("{} arguments for {} parameters", args.len(), kernel.params.len()));
    }
    let (mut tensors, mut scalars) = (vec![], vec![]);
    for (param, arg) in kernel.params.iter().zip(args) {
        let (mut tensor, mut scalar) = (None, 0);
        match (&param.kind, arg) {
            (ParamKind::Tensor { dtype, extents, .. }, Arg::Tensor(v)) => {
                if v.memory.host().is_none() {
                    wrong(param.span, format!("`{}` lives on `{}`, not on the host", param.name, v.memory.device()));
                } else if v.dtype != *dtype || v.shape.len() != extents.len() {
                    let (want, got) = (extents.len(), v.shape.len());
                    let what = format!("`{}` is {dtype} of rank {want}, got {} of rank {got}", param.name, v.dtype);
                    wrong(param.span, what);
                } else {
                    tensor = Some(v);
                }
            }
            (ParamKind::Scalar { dtype, .. }, Arg::Scalar(x)) if x.dtype == *dtype => scalar = x.bits,
            (ParamKind::Absent, Arg::Absent) => {}
            (ParamKind::Tensor { .. } | ParamKind::Scalar { .. } | ParamKind::Absent, _) => {
                wrong(param.span, format!("`{}` has an argument of another kind", param.name));
            }
        }
        tensors.push(tensor);
        scalars.push(scalar);
    }
    if errors.is_empty() { Ok((tensors, scalars)) } else { Err(errors) }
}

/// One run without shadow state.
fn plain(
    kernel: &Kernel,
    program: &Program,
    globals: &[Option<Global>],
    scalars: &[u64],
    blocks: usize,
    order: BlockOrder,
    threads: Option<usize>,
) -> Result<(), Vec<Diagnostic>> {
    let (faults, stop) = (Mutex::new(vec![]), AtomicBool::new(false));
    let shared = Shared { kernel, program, globals, scalars, order, faults: &faults, stop: &stop };
    let permutation = Permutation::new(order, blocks);
    let parts = program.parts();
    if parts.len() > 1 {
        // Blocks meet, so each keeps its own state until the last part.
        let mut workers: Vec<Worker> = (0..blocks).map(|_| Worker::new(&shared, None)).collect();
        for part in parts {
            for i in 0..blocks {
                let block = permutation.at(i);
                if !stop.load(Ordering::Relaxed) {
                    workers[block].part(block, part.clone());
                }
            }
        }
        drop(workers);
        let faults = faults.into_inner().unwrap_or_default();
        return if faults.is_empty() { Ok(()) } else { Err(faults) };
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut worker = Worker::new(&shared, None);
        while !stop.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= blocks {
                break;
            }
            worker.block(permutation.at(i));
        }
    };
    let workers = threads.unwrap_or_else(rayon::current_num_threads).clamp(1, blocks);
    if workers == 1 {
        work();
    } else {
        rayon::scope(|s| (0..workers).for_each(|_| s.spawn(|_| work())));
    }
    let faults = faults.into_inner().unwrap_or_default();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Runs with shadow state, then twice more in other orders, and leaves the first run's results in place.
fn sanitized(
    kernel: &Kernel,
    program: &Program,
    tensors: &[Option<&TensorView>],
    globals: &[Option<Global>],
    scalars: &[u64],
    blocks: usize,
) -> Result<Report, Vec<Diagnostic>> {
    let access = |p: usize| match &kernel.params[p].kind {
        ParamKind::Tensor { access, .. } => Some(*access),
        ParamKind::Scalar { .. } | ParamKind::Absent => None,
    };
    let sizes: Vec<(usize, bool)> = (0..tensors.len())
        .map(|p| {
            let n = tensors[p].map_or(0, |v| {
                let bytes = v.memory.len_bytes().saturating_sub(v.offset_bytes);
                bytes * 8 / v.dtype.bits()
            });
            (n, access(p) != Some(Access::Out))
        })
        .collect();
    let tiles: Vec<usize> = program.tiles.iter().map(|t| t.len).collect();
    let written: Vec<usize> =
        (0..tensors.len()).filter(|&p| matches!(access(p), Some(Access::Out | Access::InOut))).collect();
    let bytes = |p: usize| globals[p].map_or(vec![], |g| g.memory.to_bytes());
    let restore = |saved: &[Vec<u8>]| {
        for (&p, data) in written.iter().zip(saved) {
            if let Some(g) = globals[p] {
                g.memory.write(0, data);
            }
        }
    };
    let before: Vec<Vec<u8>> = written.iter().map(|&p| bytes(p)).collect();

    let (faults, stop) = (Mutex::new(vec![]), AtomicBool::new(false));
    let order = BlockOrder::Forward;
    let shared = Shared { kernel, program, globals, scalars, order, faults: &faults, stop: &stop };
    let parts = program.parts();
    let mut shadow = Some(Shadow::new(&sizes, &tiles));
    if parts.len() > 1 {
        let mut workers: Vec<Worker> = (0..blocks).map(|_| Worker::new(&shared, None)).collect();
        let mut states = vec![Shadow::fresh_tiles(&tiles); blocks];
        for part in parts {
            for (block, (worker, state)) in workers.iter_mut().zip(&mut states).enumerate() {
                if let Some(s) = &mut shadow {
                    s.exchange_tiles(state);
                }
                worker.give_shadow(shadow.take());
                worker.part(block, part.clone());
                shadow = worker.take_shadow();
                if let Some(s) = &mut shadow {
                    s.exchange_tiles(state);
                }
            }
        }
    } else {
        let mut worker = Worker::new(&shared, shadow.take());
        for b in 0..blocks {
            worker.block(b);
        }
        shadow = worker.into_shadow();
    }
    let Some(mut shadow) = shadow else { return Ok(Report::default()) };
    let after: Vec<Vec<u8>> = written.iter().map(|&p| bytes(p)).collect();

    for &p in written.iter().filter(|&&p| access(p) == Some(Access::Out)) {
        if let Some(v) = tensors[p]
            && let Some(d) = uncovered(kernel, p, v, &shadow)
        {
            shadow.findings.push(d);
        }
    }
    let broken = shadow.findings.iter().any(|d| d.code == "S0108");
    let others = [(BlockOrder::Reversed, "backwards"), (BlockOrder::Seeded(0x6b69_6c6e), "in a permuted order")];
    'orders: for (order, how) in others {
        if broken {
            break;
        }
        restore(&before);
        if let Err(more) = plain(kernel, program, globals, scalars, blocks, order, Some(1)) {
            shadow.findings.extend(more);
            break;
        }
        for (&p, first) in written.iter().zip(&after) {
            if let Some(v) = tensors[p]
                && let Some(d) = difference(kernel, p, v, first, &bytes(p), how)
            {
                shadow.findings.push(d);
                break 'orders;
            }
        }
    }
    restore(&after);
    for (op, (over, all)) in std::mem::take(&mut shadow.saturated) {
        if over > 0 {
            let message = format!("{over} of {all} conversions saturated");
            let d = Diagnostic::error(kernel, kernel.op(op).span, "S0152", message).warning();
            shadow.messages.push(d.help("scale the values into the range of the format if that is not meant"));
        }
    }
    Ok(Report { findings: shadow.findings, messages: shadow.messages })
}

/// Calls `f(index, offset in elements)` for each element of a tensor until it returns false.
fn each_element(v: &TensorView, mut f: impl FnMut(&[usize], usize) -> bool) {
    let mut index = vec![0; v.shape.len()];
    for _ in 0..v.num_elements() {
        let at = index.iter().zip(&v.strides).map(|(i, s)| i * s).sum();
        if !f(&index, at) {
            return;
        }
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < v.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

fn index_text(index: &[usize]) -> String {
    index.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

fn uncovered(kernel: &Kernel, p: usize, v: &TensorView, shadow: &Shadow) -> Option<Diagnostic> {
    let (mut first, mut count) = (None, 0usize);
    each_element(v, |index, at| {
        if !shadow.param_written(p, at) {
            first.get_or_insert_with(|| index_text(index));
            count += 1;
        }
        true
    });
    let first = first?;
    let name = &kernel.params[p].name;
    let all = v.num_elements();
    Some(
        Diagnostic::error(
            kernel,
            kernel.params[p].span,
            "S0104",
            format!("{count} of {all} elements of output `{name}` are never written, the first is {name}[{first}]"),
        )
        .help("cover the whole output, or declare it `InOut!` if its old content is meant to stay"),
    )
}

fn difference(kernel: &Kernel, p: usize, v: &TensorView, a: &[u8], b: &[u8], how: &str) -> Option<Diagnostic> {
    if a == b {
        return None;
    }
    let bits = v.dtype.bits();
    let mut found = None;
    each_element(v, |index, at| {
        let first = v.offset_bytes + at * bits / 8;
        let last = v.offset_bytes + (at * bits + bits - 1) / 8;
        if a[first..=last] != b[first..=last] {
            found = Some(index_text(index));
        }
        found.is_none()
    });
    let name = &kernel.params[p].name;
    let at = found.map_or_else(|| "bytes outside the tensor".to_string(), |i| format!("{name}[{i}]"));
    Some(
        Diagnostic::error(
            kernel,
            kernel.params[p].span,
            "S0105",
            format!("the result depends on the order of blocks or iterations: {at} differs when they run {how}"),
        )
        .help("look for elements that two blocks write, and for values returned by atomics that reach the output"),
    )
}
