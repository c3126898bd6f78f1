//! Mutations of real kernels: each defect is caught by the verifier, the sanitizer, the simulator or the values, in this
//! order, and by which one is written down in `docs/mutations.md`.
//!
//! The report is generated (`BLESS=1`) and compared, so a check that stops noticing shows. What nothing notices needs a
//! reason in `mutations/table.rs`. Mutants of emitted text are compiled together, one object a kernel: an object takes
//! about as long as the prelude it begins with.

#![allow(clippy::print_stdout, reason = "times are named in the test's output")]

#[path = "golden/vm.rs"]
#[allow(dead_code, reason = "the golden tests use the rest")]
mod device;
#[path = "mutations/table.rs"]
mod table;

use kiln_codegen::abi::{Arg, Launch, SigArg, TensorView};
use kiln_codegen::compile::{self, Built};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{ParamKind, parse, print};
use kiln_codegen::machine::Findings;
use kiln_codegen::spec::{DefaultConfigs, OpSpec, Problem, TensorSpec};
use kiln_codegen::target::Target;
use kiln_codegen::{bind, vm};
use kiln_runtime::config::Settings;
use kiln_runtime::device::sim::{Exploration, HostCompiler, Program, Shape, SimArg, SimError, run};
use std::collections::BTreeMap;
use std::sync::Arc;
use table::{Layer, Mutation};

/// A launch of a real kernel with its data.
struct Subject {
    built: Built,
    launch: Launch,
    syms: Vec<i64>,
}

/// The first launch of a declared case.
fn subject(op: &str, case: &str) -> Subject {
    let registry = kiln_kernels::registry();
    let op: &Arc<dyn OpSpec> = registry.iter().find(|o| o.info().name == op).expect("an operator of this name");
    let case = op.cases().into_iter().find(|c| c.id == case).expect("a case of this name");
    let inputs = device::fill(&case);
    let spec = |n: &str, t: &kiln_codegen::host_tensor::HostTensor| TensorSpec {
        name: n.into(),
        dtype: t.dtype,
        shape: t.shape.clone(),
    };
    let specs: BTreeMap<_, _> = inputs.iter().map(|(n, t)| (n.clone(), spec(n, t))).collect();
    let mut problem = Problem { tensors: BTreeMap::new(), params: case.params.clone() };
    for (n, t) in &inputs {
        let memory = Arc::new(HostMemory::from_bytes(&t.data));
        problem.tensors.insert(n.clone(), TensorView::contiguous(t.dtype, &t.shape, memory));
    }
    for t in op.outputs(&specs, &case.params).expect("outputs") {
        let memory = Arc::new(HostMemory::from_bytes(&vec![0; t.dtype.bytes(t.shape.iter().product())]));
        problem.tensors.insert(t.name.clone(), TensorView::contiguous(t.dtype, &t.shape, memory));
    }
    let launch = op.plan(&problem, &DefaultConfigs).expect("a plan").steps.remove(0);
    let bound = bind::bind(launch.kernel.as_ref(), &launch.config, &launch.args).unwrap_or_else(|e| panic!("{e}"));
    let built = compile::build(launch.kernel.as_ref(), &bound.request).unwrap_or_else(|e| panic!("{e:?}"));
    let syms = bind::sym_values(&built.kernel, &bound.dims, &launch.args);
    Subject { built, launch, syms }
}

impl Subject {
    /// The arguments with memory of their own.
    fn args(&self) -> Vec<Arg> {
        let own = |a: &Arg| match a {
            Arg::Tensor(v) => {
                let bytes = v.memory.host().map(HostMemory::to_bytes).unwrap_or_default();
                Arg::Tensor(TensorView { memory: Arc::new(HostMemory::from_bytes(&bytes)), ..v.clone() })
            }
            Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => a.clone(),
        };
        self.launch.args.iter().map(own).collect()
    }

    /// What the kernel gives when nothing is broken.
    fn expected(&self) -> Vec<Vec<u8>> {
        let args = self.args();
        vm::run(&self.built.kernel, &self.built.facts, &self.syms, &args, &vm::Options::default())
            .unwrap_or_else(|e| panic!("{e:?}"));
        bytes(&args)
    }

    fn simulate(&self, program: &Program, built: &Built, more: &[SimArg], args: &[Arg]) -> Result<Findings, SimError> {
        let source = compile::source(built, Target::Sm80).unwrap_or_else(|e| panic!("{e:?}")).source;
        let k = &built.kernel;
        let mut words: Vec<SimArg> = source.signature.args.iter().map(|a| self.word(a, args)).collect();
        words.extend(more.iter().cloned());
        let mut grid = [1; 3];
        for (g, e) in grid.iter_mut().zip(bind::grid(k, &self.syms).expect("a grid")) {
            *g = e as u32;
        }
        let shape = Shape { grid, cluster: [1; 3], threads: source.threads, shared_bytes: source.shared_bytes };
        let by = Exploration { spin_limit: 20_000_000, ..Exploration::new(3) };
        run(program, shape, &words, &by)
    }

    fn word(&self, arg: &SigArg, args: &[Arg]) -> SimArg {
        let k = &self.built.kernel;
        match arg {
            SigArg::Pointer(p) => match (&args[p.0 as usize], &k.param(*p).kind) {
                (Arg::Tensor(view), ParamKind::Tensor { access, .. }) => {
                    SimArg::Tensor { name: k.param(*p).name.clone(), access: *access, view: view.clone() }
                }
                _ => SimArg::Word(0),
            },
            SigArg::Sym { sym, .. } => SimArg::Word(self.syms[sym.0 as usize] as u64),
            // No kernel here is cooperative, and texts for sm_80 have no tensor maps.
            SigArg::GridArrivals | SigArg::Workspace | SigArg::TensorMap(_) => SimArg::Word(0),
            SigArg::Scalar(p) => match &args[p.0 as usize] {
                Arg::Scalar(x) => SimArg::Word(x.bits),
                Arg::Tensor(_) | Arg::Absent | Arg::Workspace { .. } => SimArg::Word(0),
            },
        }
    }
}

fn bytes(args: &[Arg]) -> Vec<Vec<u8>> {
    args.iter()
        .filter_map(|a| match a {
            Arg::Tensor(v) => v.memory.host().map(HostMemory::to_bytes),
            Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
        })
        .collect()
}

/// The mutated text.
fn mutate(text: &str, m: &Mutation) -> Result<String, String> {
    let start = text.find(m.after).ok_or_else(|| format!("{}: `{}` is not in the text", m.op, m.after))?;
    let at = text[start..].find(m.from).ok_or_else(|| format!("{}: `{}` is not in the text", m.op, m.from))? + start;
    Ok(format!("{}{}{}", &text[..at], m.to, &text[at + m.from.len()..]))
}

fn compiler() -> HostCompiler {
    HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations"))
}

/// Who notices a mutant of the plain kernel.
fn plain(s: &Subject, m: &Mutation, expected: &[Vec<u8>]) -> Result<String, String> {
    let text = mutate(&print::text(&s.built.kernel), m)?;
    let kernel = match parse::kernel(&text) {
        Ok(k) => k,
        Err(e) => return Ok(format!("verifier: the text is refused ({})", e.to_string().lines().next().unwrap_or(""))),
    };
    // The numerics plan has run: orders that are there stay.
    let facts = match kiln_codegen::valid::check(&kernel) {
        Ok(facts) => facts,
        Err(found) => return Ok(format!("verifier {}", codes(found.iter().map(|d| d.code)))),
    };
    if facts.warnings.len() > s.built.facts.warnings.len() {
        return Ok(format!("verifier {} (warning)", codes(facts.warnings.iter().map(|d| d.code))));
    }
    let args = s.args();
    let options = vm::Options { sanitize: true, ..vm::Options::default() };
    match vm::run(&kernel, &facts, &s.syms, &args, &options) {
        Err(found) => return Ok(format!("sanitizer {}", codes(found.iter().map(|d| d.code)))),
        Ok(report) if !report.findings.is_empty() => {
            return Ok(format!("sanitizer {}", codes(report.findings.iter().map(|d| d.code))));
        }
        Ok(_) => {}
    }
    let differs = bytes(&args) != expected;
    // A plain kernel the sanitizer passes is lowered as any other: its text has hazards only if a pass errs, which is
    // what the tests of the simulator ask of every kernel. Here only on request.
    if std::env::var("SLOW").is_ok_and(|v| v == "1") {
        let built = Built { kernel, facts, schedules: BTreeMap::new(), forms: BTreeMap::new() };
        let source = compile::source(&built, Target::Sm80).map_err(|e| format!("{e:?}"))?.source;
        let program = compiler().load(&source.text, &source.signature.entry).map_err(|e| e.to_string())?;
        let args = s.args();
        let found = s.simulate(&program, &built, &[], &args).map_err(|e| e.to_string())?;
        if !found.is_empty() {
            return Ok(format!("simulator {}", simulated(&found)));
        }
    }
    Ok(if differs { "values".into() } else { "nothing".into() })
}

/// The codes of the simulator. What lies past the end of a tensor is chance, and so is what else an access there causes.
fn simulated(found: &Findings) -> String {
    let all: Vec<&str> = found.list().iter().map(|f| f.code.name()).collect();
    if all.contains(&"GLOBAL_RANGE") { "GLOBAL_RANGE".into() } else { codes(all.into_iter()) }
}

fn codes<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut list: Vec<&str> = all.collect();
    list.sort_unstable();
    list.dedup();
    list.join(" ")
}

/// All mutants of one kernel's text in one text: each has a name of its own, and the entry takes the number of one.
fn together(text: &str, entry: &str, mutants: &[String]) -> String {
    let head = text.find("extern \"C\" __global__").expect("a kernel");
    let body = |t: &str| t[t.find("extern \"C\" __global__").expect("a kernel")..].to_string();
    let kernel = body(text);
    let open = kernel.find(&format!("{entry}(")).expect("an entry") + entry.len() + 1;
    let close = open + kernel[open..].find(") {").expect("parameters");
    let parameters = &kernel[open..close];
    let names: Vec<&str> = parameters
        .split(',')
        .filter_map(|p| p.split(|c: char| !c.is_alphanumeric() && c != '_').rfind(|w| !w.is_empty()))
        .collect();
    let mut out = text[..head].to_string();
    let mut calls = String::new();
    for (i, m) in mutants.iter().enumerate() {
        let own = format!("{entry}_{i}");
        out += &body(m).replacen(&format!("{entry}("), &format!("{own}("), 1);
        out += "\n";
        calls += &format!("    if (mutant == {i}) {own}({});\n", names.join(", "));
    }
    out + &format!("extern \"C\" __global__ void {entry}({parameters}, int mutant) {{\n{calls}}}\n")
}

/// Who notices each mutant of one kernel's text.
fn sources(s: &Subject, list: &[&Mutation], expected: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let source = compile::source(&s.built, Target::Sm80).map_err(|e| format!("{e:?}"))?.source;
    // The text as it is comes first: what is noticed there would be no merit of a mutation.
    let mut texts = vec![source.text.clone()];
    for m in list {
        let head = source.text.find("extern \"C\" __global__").unwrap_or(0);
        texts.push(format!("{}{}", &source.text[..head], mutate(&source.text[head..], m)?));
    }
    let entry = &source.signature.entry;
    let program = compiler().load(&together(&source.text, entry, &texts), entry).map_err(|e| e.to_string())?;
    let mut out = vec![];
    for i in 0..texts.len() {
        let args = s.args();
        let found = s.simulate(&program, &s.built, &[SimArg::Word(i as u64)], &args).map_err(|e| e.to_string())?;
        out.push(if !found.is_empty() {
            format!("simulator {}", simulated(&found))
        } else if bytes(&args) != expected {
            "values".into()
        } else {
            "nothing".into()
        });
    }
    if out[0] != "nothing" {
        return Err(format!("{}: the unchanged text is noticed by {}", s.built.kernel.name, out[0]));
    }
    out.remove(0);
    Ok(out)
}

fn report(rows: &[(&Mutation, String)]) -> String {
    let mut t = String::from(
        "# Mutations\n\nGenerated by `cargo test -p kiln-tests --test mutations` with `BLESS=1`. Each row breaks a real kernel in one place\n\
         and names the first that notices: the verifier, the sanitizer of the tile VM, the simulator of the chip, or the\n\
         values, compared to the bit. Rows of the layer `plain` change the plain kernel, rows of `source` its text for `sm_80`.\n\n",
    );
    for who in ["verifier", "sanitizer", "simulator", "values", "nothing"] {
        let n = rows.iter().filter(|r| r.1.starts_with(who)).count();
        t += &format!("- {who}: {n}\n");
    }
    t += &format!("- in all: {}\n\n| kernel | layer | defect | noticed by |\n|---|---|---|---|\n", rows.len());
    for (m, by) in rows {
        let layer = if m.layer == Layer::Plain { "plain" } else { "source" };
        t += &format!("| {} | {layer} | {} | {by} |\n", m.op, m.what);
    }
    t += "\n## Noticed by nothing\n\n";
    for (m, by) in rows {
        if by == "nothing" {
            t += &format!("- {}, {}: {}\n", m.op, m.what, why(m).unwrap_or("no reason is known"));
        }
    }
    if rows.iter().all(|r| r.1 != "nothing") {
        t += "None of them.\n";
    }
    t
}

fn why(m: &Mutation) -> Option<&'static str> {
    table::HARMLESS.iter().find(|h| h.0 == m.op && h.1 == m.what).map(|h| h.2)
}

#[test]
fn every_mutation_is_noticed_by_whom_the_report_says() {
    let mut kernels: Vec<(&str, &str)> = table::TABLE.iter().map(|m| (m.op, m.case)).collect();
    kernels.dedup();
    kernels.sort_unstable();
    kernels.dedup();
    let mut found: BTreeMap<(Layer, &str, &str), String> = BTreeMap::new();
    let mut errors = vec![];
    for (op, case) in kernels {
        let start = std::time::Instant::now();
        let s = subject(op, case);
        let expected = s.expected();
        let of = |layer| move |m: &&Mutation| (m.op, m.case) == (op, case) && m.layer == layer;
        for m in table::TABLE.iter().filter(of(Layer::Plain)) {
            match plain(&s, m, &expected) {
                Ok(by) => drop(found.insert((m.layer, m.op, m.what), by)),
                Err(e) => errors.push(e),
            }
        }
        println!("{op} {case}: plain in {:.1} s", start.elapsed().as_secs_f64());
        let list: Vec<&Mutation> = table::TABLE.iter().filter(of(Layer::Source)).collect();
        if list.is_empty() {
            continue;
        }
        match sources(&s, &list, &expected) {
            Ok(all) => found.extend(list.iter().zip(all).map(|(m, by)| ((m.layer, m.op, m.what), by))),
            Err(e) => errors.push(e),
        }
        println!("{op} {case}: all in {:.1} s", start.elapsed().as_secs_f64());
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    let rows: Vec<(&Mutation, String)> =
        table::TABLE.iter().map(|m| (m, found[&(m.layer, m.op, m.what)].clone())).collect();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mutations.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    // Scheduled kernels have a report of their own behind this one, which a test of the compiler writes.
    let behind = old.find("## Scheduled kernels\n").map_or(String::new(), |at| format!("\n{}", &old[at..]));
    let text = report(&rows) + &behind;
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("docs can be written");
    }
    let unexplained: Vec<_> = rows
        .iter()
        .filter(|r| r.1 == "nothing" && why(r.0).is_none())
        .map(|r| format!("{}: {}", r.0.op, r.0.what))
        .collect();
    assert!(unexplained.is_empty(), "nothing notices, and no reason is written down:\n{}", unexplained.join("\n"));
    let caught = rows.iter().filter(|r| r.1 != "nothing").count();
    assert!(rows.len() >= 40 && caught * 20 >= rows.len() * 19, "only {caught} of {} are noticed", rows.len());
    let blessed = std::env::var_os("BLESS").is_some();
    assert!(blessed || old == text, "docs/mutations.md is out of date; run with BLESS=1 and read the diff:\n{text}");
}
