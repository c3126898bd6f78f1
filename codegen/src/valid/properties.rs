//! Declared properties: `deterministic` and `batch_invariant`, as `crate::analysis` follows them.
//!
//! Only ways from a source to a sink that certainly exist refuse a kernel. What the analysis cannot follow is no finding
//! here: `kiln invariance audit` names it, and `kiln invariance check` tests it.

use crate::analysis::Ranges;
use crate::analysis::determinism::{End, OrderPath, order_paths};
use crate::analysis::invariance::{self, Path, Sink, Source};
use crate::diag::Diagnostic;
use crate::ir::{Kernel, OpId, Stage};

pub(super) fn check(k: &Kernel, ranges: &Ranges, found: &mut Vec<Diagnostic>) {
    // What passes make of a kernel may not change its results, so the plain form is what is judged.
    if k.stage != Stage::Plain {
        return;
    }
    if k.properties.deterministic {
        found.extend(order_paths(k).iter().map(|p| order_shows(k, p)));
    }
    for dim in &k.properties.batch_invariant {
        match invariance::batch(k, ranges, dim) {
            Some(verdict) => found.extend(verdict.violations.iter().map(|p| varies(k, dim, p))),
            None if k.fixed_dims.iter().any(|d| d.0 == *dim) => {}
            None => {
                let m = format!("`batch_invariant({dim})` names a dimension the kernel does not have");
                found.push(Diagnostic::error(k, k.span, "V0612", m).help("name one of the kernel's dimensions"));
            }
        }
    }
}

/// Notes for the ops of a way that stand on lines of their own.
fn way(k: &Kernel, mut d: Diagnostic, ops: &[OpId]) -> Diagnostic {
    let mut last = (d.span.file.clone(), d.span.line);
    for &id in ops {
        let span = k.span_of(k.op(id).span);
        if (span.file.clone(), span.line) != last {
            last = (span.file.clone(), span.line);
            d = d.note(format!("it goes through `{}`", k.op(id).op.name()), Some(span.clone()));
        }
    }
    d
}

fn order_shows(k: &Kernel, p: &OrderPath) -> Diagnostic {
    let span = k.op(p.atomic).span;
    if p.ends == End::Read {
        let read = p.through.first().map(|&o| k.span_of(k.op(o).span).clone());
        return Diagnostic::error(k, span, "V0602", "a deterministic kernel reads a tensor that its blocks update")
            .label("other blocks may have run before or may not")
            .note("it is read plainly", read)
            .help("read it in a kernel that runs after this one, or drop `deterministic`");
    }
    let (ends, last) = match p.ends {
        End::Data => ("it is stored by", p.through.last()),
        End::Address => ("it becomes an address in", p.through.last()),
        End::Choice | End::Read => ("it decides what is done in", p.through.last()),
    };
    let d = Diagnostic::error(k, span, "V0601", "a deterministic kernel uses the result of an atomic")
        .label("the old value depends on the order of threads");
    let way_there = &p.through[..p.through.len().saturating_sub(1)];
    let d = way(k, d, way_there);
    let d = match last {
        Some(&o) => d.note(format!("{ends} `{}`", k.op(o).op.name()), Some(k.span_of(k.op(o).span).clone())),
        None => d,
    };
    d.help("derive positions from a scan, or drop `deterministic`")
}

/// The source in words: `the extent of `t``.
fn source(dim: &str, s: Source) -> String {
    match s {
        Source::Extent => format!("the extent of `{dim}`"),
        Source::Position => format!("where a row stands along `{dim}`"),
        Source::OtherRows => format!("other rows along `{dim}`"),
        Source::Unclear => "something that is not followed".into(),
    }
}

fn varies(k: &Kernel, dim: &str, p: &Path) -> Diagnostic {
    let from = source(dim, p.source);
    let span = k.op(p.at).span;
    match &p.sink {
        Sink::Steps { carried, write } => {
            let m = format!("the number of steps that add to `{carried}` depends on {from}");
            let d = Diagnostic::error(k, span, "V0611", m)
                .note(format!("`{carried}` is carried from step to step"), Some(k.span_of(k.op(*write).span).clone()));
            let before: Vec<OpId> = p.through.iter().copied().filter(|&o| o != p.at).collect();
            way(k, d, &before).help("derive the loop's bounds from the row's own data or from the config")
        }
        Sink::Output(name) => {
            let m = format!("a row of `{name}` depends on {from}");
            let d = Diagnostic::error(k, span, "V0613", m).note(p.what.clone(), first(k, p));
            way(k, d, p.through.get(1..).unwrap_or_default())
                .help(format!("compute a row from its own data and the config, or drop `batch_invariant({dim})`"))
        }
    }
}

fn first(k: &Kernel, p: &Path) -> Option<crate::ir::Span> {
    p.through.first().map(|&o| k.span_of(k.op(o).span).clone())
}
