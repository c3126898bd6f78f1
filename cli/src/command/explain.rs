//! `kiln explain`: what the compiler decided for a kernel on a target, and why.
//!
//! Only what the compiled kernel itself says: this file reads the IR and derives nothing that a pass did not record, except
//! from where to where a shared tile is needed.

use crate::catalog::{self, Selection};
use crate::command::emit;
use crate::failure::Failure;
use crate::instance::{self, InstanceArgs, Step};
use crate::machine_code;
use crate::output::{Output, number};
use kiln_codegen::abi::Arg;
use kiln_codegen::analysis::fingerprint::fingerprint;
use kiln_codegen::compile::Lowered;
use kiln_codegen::ir::effects;
use kiln_codegen::ir::{Base, BlockId, BufferId, Distribution, Kernel, Op, OpId, Order, Space, SpanId, Stage};
use kiln_codegen::spec::{Case, OpSpec};
use kiln_codegen::target::{Caps, Target};
use kiln_codegen::valid::Facts;
use std::fmt::Write;
use std::sync::Arc;

/// Options of `kiln explain`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// An operator or a kernel
    pub name: String,
    /// Target
    #[arg(long, value_name = "T")]
    pub target: String,
    /// Which instance
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// Prints the explanation.
///
/// # Errors
/// Unknown names, a kernel that does not build.
pub fn run(ops: &[Arc<dyn OpSpec>], args: &Args, out: Output) -> Result<(), Failure> {
    let selection = catalog::find(ops, &args.name)?;
    let target = catalog::target(&args.target)?;
    let (step, case) = emit::first_step(&selection, &args.instance)?;
    let text = text(&selection, &step, &case, target)?;
    out.document("explain", &[("kernel", &step.title()), ("target", target.name())], &text)
}

/// Appends a line; writing to a string cannot fail.
macro_rules! line {
    ($t:expr, $($arg:tt)*) => {{ let _ = writeln!($t, $($arg)*); }};
}

fn text(selection: &Selection, step: &Step, case: &Case, target: Target) -> Result<String, Failure> {
    let built = emit::build(step)?;
    let mut t = String::new();
    head(&mut t, selection, step, case, &built.kernel, target);
    line!(t, "  numerics   {}", fingerprint(&built.kernel));
    match target.caps() {
        None => {
            kernel(&mut t, &built.kernel, &built.facts);
            t += "\nThe tile VM runs the plain kernel: no placement, no barriers; blocks run in parallel.\n";
        }
        Some(caps) => {
            let lowered = emit::lower(&built, target)?;
            schedule(&mut t, &lowered);
            kernel(&mut t, &lowered.kernel, &lowered.facts);
            resources(&mut t, step, target, caps, &lowered);
        }
    }
    Ok(t)
}

fn head(t: &mut String, selection: &Selection, step: &Step, case: &Case, k: &Kernel, target: Target) {
    let info = selection.op.info();
    line!(t, "{}   operator {}   target {}", step.title(), info.name, target.name());
    line!(t, "  {}", info.formula);
    let config = step.request.config.to_string();
    line!(t, "  config     {}", if config.is_empty() { "none" } else { &config });
    let dims: Vec<String> = step
        .dims
        .iter()
        .map(|(n, v)| {
            let fixed = if step.request.fixed.contains_key(n) { " (fixed)" } else { "" };
            format!("{n} = {v}{fixed}")
        })
        .collect();
    line!(t, "  instance   {}: {}", case.id, dims.join(", "));
    let grid = instance_grid(step, k);
    line!(t, "  launch     {grid}{} threads a block", k.warps * 32);
    line!(t, "  declared   {}", at(k, k.span));
    let cost = selection.op.cost(&instance::input_specs(case), &case.params);
    let intensity = if cost.bytes > 0.0 { cost.flops / cost.bytes } else { 0.0 };
    line!(
        t,
        "  work       {} bytes, {} FLOPs, {} FLOPs a byte",
        number(cost.bytes),
        number(cost.flops),
        number(intensity)
    );
}

/// The schedule the kernel follows, or why it follows none.
fn schedule(t: &mut String, lowered: &Lowered) {
    let mut rows: Vec<String> = match &lowered.schedule {
        Ok(s) => s.to_string().lines().map(ToString::to_string).collect(),
        Err(reason) => vec![format!("none, the kernel has the portable form: {reason}")],
    };
    let rejected = lowered.facts.warnings.iter().filter(|w| w.code == "V0550");
    rows.extend(rejected.map(crate::diagnostics::headline));
    section(t, "schedule", &rows, "none");
}

/// `N blocks of `, if the grid is known for this instance.
fn instance_grid(step: &Step, k: &Kernel) -> String {
    let args: Vec<Arg> = step.launch.args.clone();
    let syms = kiln_codegen::bind::sym_values(k, &step.dims, &args);
    match kiln_codegen::bind::grid(k, &syms) {
        Some(grid) => {
            let parts: Vec<String> = grid.iter().map(ToString::to_string).collect();
            format!("{} blocks of ", parts.join(" x "))
        }
        None => String::new(),
    }
}

fn at(k: &Kernel, span: SpanId) -> String {
    let s = k.span_of(span);
    format!("{}:{}:{}", s.file, s.line, s.column)
}

fn kernel(t: &mut String, k: &Kernel, facts: &Facts) {
    tiles(t, k);
    loops(t, k);
    reductions(t, k);
    if k.stage == Stage::Scheduled {
        memory_map(t, k);
        pipelines(t, k);
        barriers(t, k);
    }
    guards(t, k, facts);
}

fn section(t: &mut String, title: &str, rows: &[String], none: &str) {
    line!(t, "\n{title}");
    if rows.is_empty() {
        line!(t, "  {none}");
    }
    for r in rows {
        line!(t, "  {r}");
    }
}

fn spread(d: &Distribution, extents: &[usize]) -> String {
    format!(
        "{} threads a row, {} at a time, {} rows at once, {} steps, {} rounds",
        d.lanes,
        d.vec,
        d.groups(),
        d.steps(extents),
        d.rounds(extents)
    )
}

fn tiles(t: &mut String, k: &Kernel) {
    let rows: Vec<String> = k
        .buffers
        .iter()
        .filter(|b| b.space != Space::Var)
        .map(|b| {
            let bytes = b.dtype.bytes(b.extents.iter().product());
            let place = match (&b.distribution, &b.memory) {
                (Some(d), _) => {
                    format!("registers, {} a thread: {}", d.registers(&b.extents), spread(d, &b.extents))
                }
                (None, Some(m)) => format!("shared memory, bytes {}..{}", m.offset_bytes, m.offset_bytes + bytes),
                (None, None) => match b.space {
                    Space::Shared => "scratch memory of a block".into(),
                    Space::Frag
                    | Space::Var
                    | Space::Tmem
                    | Space::L1
                    | Space::L0a
                    | Space::L0b
                    | Space::L0c
                    | Space::Ub
                    | Space::Workspace => "register tile, not placed yet".to_string(),
                },
            };
            format!("{} {} {:?}  {place}  ({})", b.name, b.dtype, b.extents, at(k, b.span))
        })
        .collect();
    section(t, "tiles", &rows, "none: values stay in scalars");
    if k.stage == Stage::Scheduled {
        line!(t, "  shared memory in all: {} bytes", k.shared_bytes);
    }
}

fn loops(t: &mut String, k: &Kernel) {
    let rows: Vec<String> = ops(k)
        .filter_map(|(_, op, span)| {
            if let Op::Parallel { extents, distribution: Some(d), .. } = op {
                Some(format!("parallel {extents:?}  {}  ({})", spread(d, extents), at(k, span)))
            } else {
                None
            }
        })
        .collect();
    if k.stage == Stage::Scheduled {
        section(t, "element loops", &rows, "none");
    }
}

fn order(o: Option<Order>) -> String {
    match o {
        None => "any order gives the same bits".into(),
        Some(o) if o == Order::SEQUENTIAL => "left to right".into(),
        Some(o) => format!("{} lanes, {} elements at a time, then pairs of neighbours", o.lanes, o.per_lane),
    }
}

fn reductions(t: &mut String, k: &Kernel) {
    let rows: Vec<String> = ops(k)
        .filter_map(|(_, op, span)| {
            if let Op::Reduce { op: what, axis, order: o, .. } = op {
                Some(format!("{} along axis {axis}: {}  ({})", what.name(), order(*o), at(k, span)))
            } else if let Op::ReduceRegion { op: what, extents, order: o, .. } = op {
                Some(format!("{} over {extents:?}: {}  ({})", what.name(), order(*o), at(k, span)))
            } else {
                None
            }
        })
        .collect();
    section(t, "reductions, in the order every target obeys", &rows, "none");
}

/// Where shared tiles lie, and from which line to which each holds something that is still needed.
fn memory_map(t: &mut String, k: &Kernel) {
    let list: Vec<(OpId, &Op, SpanId)> = ops(k).collect();
    let line_of = |at: usize| k.span_of(list[at].2).line;
    let mut rows = vec![];
    let mut spans = vec![];
    for (i, b) in k.buffers.iter().enumerate() {
        let (Space::Shared, Some(m)) = (b.space, &b.memory) else { continue };
        let base = Base::Buffer(BufferId(i as u32));
        let mut touched: Vec<usize> = vec![];
        let mut made = 0;
        for (at, (id, op, _)) in list.iter().enumerate() {
            if matches!(op, Op::Alloc { buffer } if Base::Buffer(*buffer) == base) {
                made = at;
            }
            if effects::effects(k, *id).iter().any(|e| e.base(k) == base) {
                touched.push(at);
            }
        }
        // The scratch of a collective is no operand of it: it is used by the op that follows.
        let (mut first, mut last) = match (touched.first(), touched.last()) {
            (Some(&a), Some(&b)) => (a, b),
            (Some(_) | None, _) => (made, (made + 1).min(list.len().saturating_sub(1))),
        };
        // What a loop uses and does not make, it needs from its first iteration to its last.
        for (at, (_, op, _)) in list.iter().enumerate() {
            if !matches!(op, Op::For { .. } | Op::Loop { .. }) {
                continue;
            }
            let inside: usize = effects::bodies(op).iter().map(|&b| below(k, b)).sum();
            let (from, to) = (at + 1, at + inside);
            let within = |x: usize| from <= x && x <= to;
            if !within(made) && (within(first) || within(last)) {
                (first, last) = (first.min(from), last.max(to));
            }
        }
        let rank_bytes = match m.strides.first() {
            Some(&s) => b.dtype.bytes(s * b.extents.first().copied().unwrap_or(1)),
            None => b.dtype.bytes(1),
        };
        spans.push((first, last, rank_bytes));
        rows.push((
            m.offset_bytes,
            format!(
                "{:>6}..{:<6} {}  live from line {} to {}",
                m.offset_bytes,
                m.offset_bytes + rank_bytes,
                b.name,
                line_of(first),
                line_of(last)
            ),
        ));
    }
    rows.sort();
    let rows: Vec<String> = rows.into_iter().map(|r| r.1).collect();
    section(t, "shared memory map (one version of each tile)", &rows, "none");
    let peak =
        (0..list.len()).map(|at| spans.iter().filter(|s| s.0 <= at && at <= s.1).map(|s| s.2).sum::<usize>()).max();
    if let Some(peak) = peak.filter(|&p| p > 0) {
        line!(t, "  at most {peak} bytes of them hold something that is still needed at one time");
    }
}

/// Number of ops in a block and the blocks below it.
fn below(k: &Kernel, block: BlockId) -> usize {
    let mut n = 0;
    effects::walk(k, block, &mut |_, _| n += 1);
    n
}

fn pipelines(t: &mut String, k: &Kernel) {
    let rows: Vec<String> = ops(k)
        .filter_map(|(_, op, span)| {
            let Op::For { stages, var, .. } = op else { return None };
            (*stages > 1).then(|| {
                format!(
                    "loop over {}: {stages} stages, copies run {} iterations ahead, an iteration waits until at most {} groups \
                     of copies are under way  ({})",
                    k.ix_var(*var).name,
                    stages - 1,
                    stages - 2,
                    at(k, span)
                )
            })
        })
        .collect();
    section(t, "pipelines", &rows, "none: no copy runs ahead");
}

fn barriers(t: &mut String, k: &Kernel) {
    let rows: Vec<String> = ops(k)
        .filter_map(|(_, op, span)| {
            if let Op::BlockBarrier { reason } = op { Some(format!("{reason}  ({})", at(k, span))) } else { None }
        })
        .collect();
    section(t, "barriers and why", &rows, "none between phases: none touches what another one wrote in shared memory");
    if ops(k).any(|(_, op, _)| lanes(op) > 32) {
        line!(t, "  a reduction over more than one warp has barriers of its own");
    }
}

/// Lanes of a reduction; 0 for other ops.
fn lanes(op: &Op) -> usize {
    if let Op::Reduce { order: Some(o), .. } | Op::ReduceRegion { order: Some(o), .. } = op { o.lanes } else { 0 }
}

fn guards(t: &mut String, k: &Kernel, facts: &Facts) {
    let rows: Vec<String> = ops(k)
        .filter_map(|(id, op, span)| {
            let kept = facts.guards.get(&id)?;
            let axes: Vec<String> = kept.iter().enumerate().filter(|(_, g)| **g).map(|(i, _)| i.to_string()).collect();
            if axes.is_empty() {
                return None;
            }
            let axis = if axes.len() == 1 { "axis" } else { "axes" };
            Some(format!(
                "{} on {axis} {}: the index is not proven to be inside  ({})",
                op.name(),
                axes.join(", "),
                at(k, span)
            ))
        })
        .collect();
    let all: usize = facts.guards.values().map(Vec::len).sum();
    let kept: usize = facts.guards.values().flatten().filter(|g| **g).count();
    section(t, "guards kept", &rows, "none: every access is proven to be inside");
    line!(t, "  {} of {all} checks were proven away", all - kept);
}

/// Every op that is reachable from the body, in program order.
fn ops(k: &Kernel) -> impl Iterator<Item = (OpId, &Op, SpanId)> {
    let mut list = vec![];
    effects::walk(k, k.body, &mut |id, op| list.push((id, op, k.op(id).span)));
    list.into_iter()
}

fn resources(t: &mut String, step: &Step, target: Target, caps: Caps, lowered: &Lowered) {
    let source = &lowered.source;
    let report = match machine_code::compile(step, target) {
        Ok(compiled) => compiled.report.clone(),
        Err(why) => {
            line!(t, "\nmachine code\n  not compiled: {}", why.message().unwrap_or_default());
            return;
        }
    };
    line!(t, "\nmachine code");
    line!(
        t,
        "  {} registers, {} bytes spilled, {} bytes of stack",
        report.registers,
        report.spill_bytes,
        report.stack_bytes
    );
    line!(t, "  {} bytes of shared memory, {} bytes of code", source.shared_bytes, report.code_bytes);
    let limits = [
        ("threads", caps.resident_threads / source.threads.max(1)),
        ("registers", caps.registers / (report.registers.max(1) * source.threads.max(1))),
        ("shared memory", caps.shared_bytes_per_sm.checked_div(source.shared_bytes).unwrap_or(usize::MAX)),
    ];
    if let Some((what, blocks)) = limits.into_iter().min_by_key(|(_, n)| *n) {
        let blocks = blocks.min(32);
        let percent = 100.0 * (blocks * source.threads) as f64 / caps.resident_threads as f64;
        line!(t, "  occupancy: {blocks} blocks a multiprocessor, {percent:.0} % of its threads, limited by {what}");
    }
}
