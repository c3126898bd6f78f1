//! From a kernel definition to machine code: build, lower and emit (in `kiln-codegen`), then NVRTC, with caches.
//!
//! No device is needed. [`compile`] is the whole way; [`Toolchain`] holds the compiler with a cache in memory, by build
//! request, and one on disk, by content. Loading machine code is `device`'s.

pub(crate) mod cache;
mod elf;
mod nvrtc;
mod report;
mod sass;
pub mod toolchain;

pub(crate) use cache::{hash, write_atomically};
pub use toolchain::{Availability, Toolchain, Tried};

use crate::device::lock;
use crate::error::{Error, Result};
use crate::launch::BuildKey;
use cache::Entry;
use kiln_codegen::compile as codegen;
use kiln_codegen::emit::Source;
use kiln_codegen::ir::Kernel;
use kiln_codegen::spec::{BuildRequest, KernelDef};
use kiln_codegen::target::Target;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Key of the cache in memory: build, target, architecture.
pub(super) type MemoryKey = (BuildKey, Target, String);

/// A compiled kernel with every stage it went through.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// As built.
    pub plain: Kernel,
    /// Placed for the target.
    pub scheduled: Kernel,
    /// Generated text with its entry.
    pub source: Source,
    /// Machine code (a cubin).
    pub image: Vec<u8>,
    /// What the compiler says about it.
    pub report: CompileReport,
    pub(crate) target: String,
}

/// Size and resources of compiled code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompileReport {
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes spilled to local memory, stores and loads.
    pub spill_bytes: usize,
    /// Bytes of stack frame.
    pub stack_bytes: usize,
    /// Bytes of shared memory of a block, static and dynamic.
    pub shared_bytes: usize,
    /// Milliseconds for build, passes and text.
    pub build_ms: f64,
    /// Milliseconds for the vendor's compiler, or for reading the cache.
    pub compile_ms: f64,
    /// Bytes of the entry's instructions.
    pub code_bytes: usize,
    /// The machine code came from the cache on disk.
    pub cached: bool,
    /// Instructions by full name (`LDG.E.128`); empty unless asked for with [`Toolchain::instructions`].
    pub instructions: BTreeMap<String, usize>,
    /// The assembler's performance notes (C75xx).
    pub notes: Vec<String>,
    /// The assembler has reported on the entry; without that the numbers above are not zero but unknown.
    pub assembled: bool,
}

impl CompileReport {
    /// Bounds of every kernel that this one misses: no stack frame, no spills, no performance notes, and a report that
    /// says so.
    pub fn missed(&self) -> Vec<String> {
        if !self.assembled {
            return vec!["the assembler reported neither registers nor stack, also when asked again".into()];
        }
        let mut out = vec![];
        if self.stack_bytes > 0 {
            out.push(format!("a stack frame of {} bytes", self.stack_bytes));
        }
        if self.spill_bytes > 0 {
            out.push(format!("{} bytes of registers spill to local memory", self.spill_bytes));
        }
        out.extend(self.notes.iter().map(|n| format!("the assembler notes: {n}")));
        out
    }
}

impl Compiled {
    /// Refuses code that misses its bounds. Running it is correct, only slow, so launches do not ask.
    ///
    /// # Errors
    /// All bounds that are missed.
    pub fn gate(&self) -> Result<()> {
        match self.report.missed() {
            reasons if reasons.is_empty() => Ok(()),
            reasons => Err(Error::Gate { kernel: self.plain.name.clone(), target: self.target.clone(), reasons }),
        }
    }
}

/// Builds, lowers, emits and compiles a kernel for a target.
///
/// # Errors
/// A refused kernel, source the vendor's compiler does not take, or a target without a compiler.
pub fn compile(
    kernel: &dyn KernelDef,
    request: &BuildRequest,
    target: Target,
    toolchain: &Toolchain,
) -> Result<Arc<Compiled>> {
    compile_for(kernel, request, target, target.name(), toolchain)
}

/// As [`compile`], for another architecture than the target's own: text for `sm_80` also compiles for newer chips.
///
/// # Errors
/// As [`compile`].
pub fn compile_for(
    kernel: &dyn KernelDef,
    request: &BuildRequest,
    target: Target,
    arch: &str,
    toolchain: &Toolchain,
) -> Result<Arc<Compiled>> {
    let name = &kernel.info().name;
    if target.caps().is_none() {
        return Err(Error::Unsupported {
            what: format!("compiling `{name}`"),
            expected: "a target with a compiler (sm_80, sm_90a, sm_100a)".into(),
            got: format!("{}, which runs the IR itself", target.name()),
        });
    }
    let key: MemoryKey = (BuildKey::new(kernel, request), target, arch.to_string());
    if let Some(c) = lock(&toolchain.memory).get(&key) {
        return Ok(Arc::clone(c));
    }
    let refused = |target| move |diagnostics| Error::Refused { kernel: name.clone(), target, diagnostics };
    let start = Instant::now();
    let built = codegen::build(kernel, request).map_err(refused(None))?;
    let lowered = codegen::source(&built, target).map_err(refused(Some(target)))?;
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let (image, mut report) = toolchain.compile_source(&lowered.source, name, arch)?;
    report.build_ms = build_ms;
    let compiled = Arc::new(Compiled {
        plain: built.kernel,
        scheduled: lowered.kernel,
        source: lowered.source,
        image,
        report,
        target: target.name().into(),
    });
    Ok(Arc::clone(lock(&toolchain.memory).entry(key).or_insert(compiled)))
}

impl Toolchain {
    /// Compiles generated text for an architecture (`sm_90a`), through the cache on disk.
    ///
    /// # Errors
    /// The compiler's log; an entry that is not in the machine code.
    pub fn compile_source(&self, source: &Source, kernel: &str, arch: &str) -> Result<(Vec<u8>, CompileReport)> {
        let options = [
            format!("--gpu-architecture={arch}"),
            "--std=c++17".into(),
            "--fmad=false".into(),
            "--ptxas-options=-v".into(),
            "--modify-stack-limit=false".into(),
            "-diag-suppress=177".into(),
        ];
        let start = Instant::now();
        let version = self.version();
        let meaning = without_positions(&source.text);
        let mut parts = vec![meaning.as_bytes(), version.as_bytes()];
        parts.extend(options.iter().map(|o| o.as_bytes()));
        let key = hash(&parts);
        let fail = |log: String| Error::Compiler {
            compiler: version.clone(),
            kernel: kernel.into(),
            target: arch.into(),
            log,
        };
        let symbol = &source.signature.entry;
        let compile = || {
            let out = self.nvrtc.compile(&source.text, &format!("{kernel}.cu"), &options);
            let data = out.image.map_err(|e| fail(format!("{e}\n{}", out.log.trim_end())))?;
            Ok(Entry { note: out.log, data })
        };
        let (entry, mut report, cached) = with_report(self.cache.load(&key), symbol, compile)?;
        // Empty source compiles without complaint, so success alone proves nothing.
        let code_bytes = elf::code_bytes(&entry.data, symbol)
            .ok_or_else(|| fail(format!("the machine code has no entry `{symbol}`\n{}", entry.note.trim_end())))?;
        if !cached && report.assembled {
            self.cache.store(&key, &entry);
        }
        report.shared_bytes += source.shared_bytes;
        report.code_bytes = code_bytes;
        report.cached = cached;
        report.compile_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok((entry.data, report))
    }

    /// Counts a kernel's instructions by name with the disassembler; `None` if there is none. Remembered on disk.
    ///
    /// # Errors
    /// The disassembler's.
    pub fn instructions(&self, image: &[u8]) -> Result<Option<BTreeMap<String, usize>>> {
        let Some(program) = self.nvdisasm() else { return Ok(None) };
        let key = hash(&[b"instructions", image]);
        if let Some(entry) = self.cache.load(&key)
            && let Some(counts) = sass::parse_counts(&entry.data)
        {
            return Ok(Some(counts));
        }
        let counts = sass::count(&sass::disassemble(program, image)?);
        self.cache.store(&key, &Entry { note: String::new(), data: sass::print_counts(&counts).into_bytes() });
        Ok(Some(counts))
    }

    /// Disassembled machine code; `None` without a disassembler.
    ///
    /// # Errors
    /// The disassembler's.
    pub fn sass(&self, image: &[u8]) -> Result<Option<String>> {
        self.nvdisasm().map(|program| sass::disassemble(program, image)).transpose()
    }
}

/// Machine code with the assembler's report: what the cache has, else compiled, and compiled a second time if the report is
/// missing. The flag says that it came from the cache.
fn with_report(
    found: Option<Entry>,
    symbol: &str,
    compile: impl Fn() -> Result<Entry>,
) -> Result<(Entry, CompileReport, bool)> {
    if let Some(entry) = found {
        let report = report::parse(&entry.note, symbol);
        if report.assembled {
            return Ok((entry, report, true));
        }
    }
    let entry = compile()?;
    let report = report::parse(&entry.note, symbol);
    if report.assembled {
        return Ok((entry, report, false));
    }
    let entry = compile()?;
    let report = report::parse(&entry.note, symbol);
    Ok((entry, report, false))
}

/// The text without comments to the end of a line and `#line` directives: where a kernel stands in its file does not
/// change what it compiles to.
fn without_positions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with("#line") {
            continue;
        }
        let (mut in_string, mut escaped, mut slash) = (false, false, false);
        let mut end = line.len();
        for (i, c) in line.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                '/' if slash && !in_string => {
                    end = i - 1;
                    break;
                }
                _ => {}
            }
            slash = c == '/' && !in_string;
        }
        out.push_str(line[..end].trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_not_part_of_the_key() {
        let a = "#line 3 \"a.rs\"\nx = 1; // a.rs:3:4 put\nasm(\"a // b\");\n";
        let b = "x = 1; // a.rs:9:9 put\nasm(\"a // b\");\n";
        assert_eq!(without_positions(a), "x = 1;\nasm(\"a // b\");\n");
        assert_eq!(without_positions(a), without_positions(b));
        assert_ne!(without_positions("asm(\"a // b\");"), without_positions("asm(\"a // c\");"));
        assert_eq!(without_positions("y = a / b;"), "y = a / b;\n");
    }

    #[test]
    fn bounds() {
        let good = CompileReport { assembled: true, ..CompileReport::default() };
        assert!(good.missed().is_empty());
        let report = CompileReport { stack_bytes: 16, spill_bytes: 8, notes: vec!["C7511".into()], ..good };
        assert_eq!(
            report.missed(),
            ["a stack frame of 16 bytes", "8 bytes of registers spill to local memory", "the assembler notes: C7511"]
        );
        assert_eq!(CompileReport::default().missed().len(), 1, "no report is no pass");
    }

    #[test]
    fn a_missing_report_is_asked_for_once_more() {
        let entry = |note: &str| Entry { note: note.into(), data: vec![] };
        let full = "ptxas info : Used 32 registers, used 0 barriers";
        let ask = |found: Option<&str>, answers: &[&str]| {
            let asked = std::cell::Cell::new(0);
            let (_, report, cached) = with_report(found.map(entry), "k", || {
                asked.set(asked.get() + 1);
                Ok(entry(answers[asked.get() - 1]))
            })
            .expect("the compiler works");
            (asked.get(), cached, report.assembled, report.registers)
        };
        assert_eq!(ask(Some(full), &[]), (0, true, true, 32));
        assert_eq!(ask(None, &[full]), (1, false, true, 32));
        assert_eq!(ask(None, &["", full]), (2, false, true, 32));
        assert_eq!(ask(Some("no report"), &[full]), (1, false, true, 32));
        assert_eq!(ask(None, &["", ""]), (2, false, false, 0), "asked twice, and no pass");
    }
}
