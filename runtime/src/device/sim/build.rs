//! From emitted text to a loaded library: the host prelude in front, the system's C++ compiler, a cache of objects by
//! content hash.

use kiln_codegen::emit::cuda::prelude::wgmma::Wgmma;
use libloading::Library;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use super::SimError;
use super::fiber::{Attach, Entry};
use crate::config::Settings;

macro_rules! prelude {
    ($side:literal / $file:literal) => {
        include_str!(concat!("../../../../codegen/src/emit/cuda/prelude/", $side, "/", $file))
    };
}

/// What stands before every text.
const PRELUDE: [&str; 3] =
    [prelude!("host" / "machine.h"), prelude!("host" / "builtins.h"), prelude!("host" / "hopper.h")];

/// Snippets of the device prelude that hold inline PTX, and what takes their place. All others run as they are.
const REPLACED: [(&str, &str); 26] = [
    (prelude!("device" / "memory.cuh"), prelude!("host" / "memory.cuh")),
    (prelude!("device" / "global.cuh"), prelude!("host" / "global.cuh")),
    (prelude!("device" / "bf16.cuh"), prelude!("host" / "bf16.cuh")),
    (prelude!("device" / "f16.cuh"), prelude!("host" / "f16.cuh")),
    (prelude!("device" / "fp8.cuh"), prelude!("host" / "fp8.cuh")),
    (prelude!("device" / "matrix.cuh"), prelude!("host" / "matrix.cuh")),
    (prelude!("device" / "check.cuh"), prelude!("host" / "check.cuh")),
    (prelude!("device" / "opaque.cuh"), prelude!("host" / "opaque.cuh")),
    (prelude!("device" / "async_copy.cuh"), prelude!("host" / "async_copy.cuh")),
    (prelude!("device" / "widen.cuh"), prelude!("host" / "widen.cuh")),
    (prelude!("device" / "widen_integer.cuh"), prelude!("host" / "widen.cuh")),
    (prelude!("device" / "shared.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "warp.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "named_barrier.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "cluster.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "mbarrier.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "proxy.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "tensor_map.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "tma_load.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "tma_store.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "wgmma.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "registers.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "grid_order.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "dependent.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "stmatrix.cuh"), prelude!("host" / "hopper.cuh")),
    (prelude!("device" / "global_load.cuh"), prelude!("host" / "hopper.cuh")),
];

/// Contraction is off and overflow wraps, as on the device. The thread sanitizer's instrumentation announces accesses;
/// its library is not linked. Line tables are for reports.
const FLAGS: [&str; 14] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-shared",
    "-w",
    "-fsanitize=thread",
    "-ffp-contract=off",
    // A load is announced where the text has it, not where its value is used.
    "-fno-tree-sink",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
    "-nostdlib",
];

#[derive(Clone, Debug)]
struct Compiler {
    version: String,
    /// It knows the newer options.
    fuel: bool,
}

/// Where and with what to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCompiler {
    /// The C++ compiler.
    pub command: PathBuf,
    /// Folder of compiled objects; safe to share between processes and to delete.
    pub cache: PathBuf,
}

impl HostCompiler {
    /// The compiler of the settings, with this cache.
    pub fn new(settings: &Settings, cache: impl Into<PathBuf>) -> Self {
        HostCompiler { command: settings.cxx.clone(), cache: cache.into() }
    }

    /// Compiles and loads a text whose entry is `entry`, or takes it from the cache.
    ///
    /// # Errors
    /// The compiler is missing or refuses the text, or the cache cannot be written.
    pub fn load(&self, text: &str, entry: &str) -> Result<Arc<Program>, SimError> {
        let full = host_text(text, entry);
        let object = self.object(&full, &FLAGS, None)?;
        Ok(Arc::new(Program::new(&Arc::new(Object::open(&object)?), 0)?))
    }

    /// As [`Self::load`] for several texts with their entries, compiled as one and without optimisation: for small kernels
    /// that run once, most of the time is the compiler's (40 random kernels: 4.0 s so, 7.3 s optimised, 30 s one by one).
    /// The result has one program a text.
    ///
    /// # Errors
    /// As [`Self::load`], for all of them if one is refused.
    pub fn load_together(&self, texts: &[(&str, &str)]) -> Result<Vec<Arc<Program>>, SimError> {
        let object = Arc::new(Object::open(&self.object(&host_texts(texts), &FLAGS, Some("-O0"))?)?);
        (0..texts.len()).map(|i| Program::new(&object, i).map(Arc::new)).collect()
    }

    /// Path of the compiled object; `level` overrides the flags.
    pub(super) fn object(&self, full: &str, flags: &[&str], level: Option<&str>) -> Result<PathBuf, SimError> {
        let compiler = self.identify()?;
        let mut hash = Sha256::new();
        for part in flags.iter().copied().chain(level).chain([compiler.version.as_str(), full]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        let object = self.cache.join(format!("{name}.so"));
        if !object.is_file() {
            self.compile(full, flags, level, &name, &object, compiler.fuel)?;
        }
        Ok(object)
    }

    /// What the compiler says it is, and whether it can count basic blocks: GCC before 12 cannot leave functions out.
    fn identify(&self) -> Result<Compiler, SimError> {
        static KNOWN: Mutex<BTreeMap<PathBuf, Compiler>> = Mutex::new(BTreeMap::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&self.command) {
            return Ok(found.clone());
        }
        let ask = |option: &str| {
            Command::new(&self.command)
                .arg(option)
                .output()
                .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
                .map_err(|cause| SimError::NoCompiler { command: self.command.clone(), cause })
        };
        let version = ask("--version")?;
        let major = ask("-dumpversion")?.split('.').next().and_then(|m| m.trim().parse::<u32>().ok());
        let fuel = version.contains("clang") || major.is_some_and(|m| m >= 12);
        let found = Compiler { version, fuel };
        known().insert(self.command.clone(), found.clone());
        Ok(found)
    }

    fn compile(
        &self,
        full: &str,
        flags: &[&str],
        level: Option<&str>,
        name: &str,
        object: &Path,
        fuel: bool,
    ) -> Result<(), SimError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |cause| SimError::Io { path, cause }
        };
        std::fs::create_dir_all(&self.cache).map_err(io(&self.cache))?;
        // Two processes may compile the same text: each has its own files, and the last rename wins with equal content.
        let own = format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
        let source = self.cache.join(format!("{own}.cpp"));
        let partial = self.cache.join(format!("{own}.partial"));
        std::fs::write(&source, full).map_err(io(&source))?;
        // Compilers that can: count basic blocks, and give locals a pattern where the text forgets to set them.
        let fuel: &[&str] = match fuel {
            true => &["-fsanitize-coverage=trace-pc", "-DKILN_FUEL", "-ftrivial-auto-var-init=pattern"],
            false => &[],
        };
        let mut command = Command::new(&self.command);
        command.args(flags).args(level).args(fuel).arg("-o").arg(&partial).arg(&source).arg("-lm");
        let output = command.output();
        let result = match output {
            Err(cause) => Err(SimError::NoCompiler { command: self.command.clone(), cause }),
            Ok(o) if !o.status.success() => Err(SimError::Refused {
                command: self.command.clone(),
                log: String::from_utf8_lossy(&o.stderr).chars().take(8000).collect(),
            }),
            Ok(_) => std::fs::rename(&partial, object).map_err(io(object)),
        };
        // Left-over files cost space, not correctness.
        let _ = std::fs::remove_file(&source);
        let _ = std::fs::remove_file(&partial);
        result
    }
}

/// What the compiler sees; the text's own lines keep their numbers.
fn host_text(text: &str, entry: &str) -> String {
    let mut out = PRELUDE.concat();
    push_text(&mut out, text);
    push_entry(&mut out, 0, &format!("&{entry}"));
    out
}

/// What the compiler sees of several texts: each in a namespace of its own, its entry renamed, since functions with C
/// linkage share one space of names.
fn host_texts(texts: &[(&str, &str)]) -> String {
    let mut out = PRELUDE.concat();
    for (i, (text, entry)) in texts.iter().enumerate() {
        out += &format!("\nnamespace kiln_text_{i} {{\n#define {entry} kiln_{i}_{entry}\n");
        push_text(&mut out, text);
        out += &format!("\n#undef {entry}\n}}\n");
        push_entry(&mut out, i, &format!("&kiln_text_{i}::kiln_{i}_{entry}"));
    }
    out
}

/// Appends a text with the host's snippets in place of those that hold PTX.
fn push_text(out: &mut String, text: &str) {
    let mut swaps: Vec<(usize, usize, String)> = REPLACED
        .iter()
        .filter_map(|(device, host)| text.find(device).map(|at| (at, at + device.len(), host.to_string())))
        .collect();
    // Matrix instructions, one function a shape.
    for (at, _) in text.match_indices("DEV void wgmma_m64n") {
        let name = text[at..].split('(').next().and_then(|head| head.split_whitespace().last());
        if let Some(w) = name.and_then(Wgmma::parse)
            && let device = w.device()
            && text[at..].starts_with(&device)
        {
            swaps.push((at, at + device.len(), w.host()));
        }
    }
    // Each block has its own shared memory, so its name is not that of an array.
    for (at, head) in text.match_indices("extern __shared__ ") {
        if let Some(end) = text[at..].find(';')
            && let Some(name) = text[at..at + end].trim_end().strip_suffix("[]")
            && let Some((before, name)) = name.rsplit_once(' ')
        {
            let ty = before[head.len()..].rsplit(')').next().unwrap_or_default().trim();
            swaps.push((at, at + end + 1, format!("#define {name} (({ty}*)kiln_shared())")));
        }
    }
    swaps.sort_unstable();
    *out += "\n#line 1 \"kernel\"\n";
    let mut done = 0;
    for (from, to, host) in swaps {
        let line = text[..to].matches('\n').count() + 1;
        *out += &format!("{}\n#line 1 \"host prelude\"\n{host}\n#line {line} \"kernel\"\n", &text[done..from]);
        done = to;
    }
    *out += &text[done..];
}

/// Appends what the runner calls to run the kernel whose address is `function`.
fn push_entry(out: &mut String, index: usize, function: &str) {
    let visible = "extern \"C\" __attribute__((visibility(\"default\"), KILN_PLAIN))";
    *out += &format!(
        "\n#line 1 \"entry\"\n{visible} void kiln_entry_{index}(const u64* words) {{ kiln_call({function}, words); }}\n\
         {visible} u32 kiln_arity_{index}() {{ return kiln_arity({function}); }}\n"
    );
}

/// A compiled object in this process.
#[derive(Debug)]
pub(super) struct Object {
    library: Library,
    path: PathBuf,
}

impl Object {
    pub(super) fn open(path: &Path) -> Result<Self, SimError> {
        // SAFETY: the object was compiled from the host prelude and emitted text, which have no initialisers.
        let library = unsafe { Library::new(path) }
            .map_err(|e| SimError::Load { path: path.to_path_buf(), cause: e.to_string() })?;
        Ok(Object { library, path: path.to_path_buf() })
    }

    /// A symbol of the object.
    ///
    /// # Safety
    /// `T` is a function pointer of the symbol's type, and is not used after the object is dropped.
    pub(super) unsafe fn symbol<T: Copy>(&self, name: &str) -> Result<T, SimError> {
        // SAFETY: the caller vouches for the type; a pointer is copied out.
        let found = unsafe { self.library.get::<T>(name.as_bytes()) };
        found.map(|f| *f).map_err(|e| SimError::Load { path: self.path.clone(), cause: e.to_string() })
    }
}

/// A kernel of a compiled object.
#[derive(Debug)]
pub struct Program {
    object: Arc<Object>,
    /// Which of the object's entries.
    index: usize,
    /// Arguments of its entry.
    pub arity: usize,
}

impl Program {
    fn new(object: &Arc<Object>, index: usize) -> Result<Self, SimError> {
        // SAFETY: `push_entry` declares this symbol with this type; the object is alive.
        let arity: unsafe extern "C" fn() -> u32 = unsafe { object.symbol(&format!("kiln_arity_{index}"))? };
        // SAFETY: it returns a constant.
        let arity = unsafe { arity() } as usize;
        Ok(Program { object: Arc::clone(object), index, arity })
    }

    /// Lines of the emitted text for places in the object, as far as they can be found: `addr2line` comes with the
    /// compiler's linker.
    pub(super) fn lines(&self, places: &[u32]) -> HashMap<u32, u32> {
        if places.is_empty() {
            return HashMap::new();
        }
        for tool in ["addr2line", "llvm-addr2line"] {
            let mut command = Command::new(tool);
            command.args(["-a", "-i", "-e"]).arg(&self.object.path).args(places.iter().map(|p| format!("{p:#x}")));
            if let Ok(output) = command.output()
                && output.status.success()
            {
                return parse_lines(&String::from_utf8_lossy(&output.stdout));
            }
        }
        HashMap::new()
    }

    /// `kiln_attach` and the entry, valid as long as the program lives.
    pub(super) fn functions(&self) -> Result<(Attach, Entry), SimError> {
        // SAFETY: `machine.h` and `push_entry` declare these symbols with these types; the program keeps the object.
        unsafe { Ok((self.object.symbol("kiln_attach")?, self.object.symbol(&format!("kiln_entry_{}", self.index))?)) }
    }
}

/// Reads what `addr2line -a -i` prints: an address, then `file:line` of the innermost inlined call outwards. The
/// outermost line in the text is the kernel's own.
fn parse_lines(text: &str) -> HashMap<u32, u32> {
    let (mut lines, mut place) = (HashMap::new(), 0);
    for line in text.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            place = u32::from_str_radix(hex.trim(), 16).unwrap_or(0);
        } else if let Some((file, rest)) = line.rsplit_once(':')
            && file.rsplit('/').next() == Some("kernel")
            && let Some(number) = rest.split_whitespace().next().and_then(|n| n.parse().ok())
        {
            lines.insert(place, number);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the functions a snippet declares for kernels; those with a number of registers in their names are its own,
    /// and so are the two that widen a pair.
    fn functions(snippet: &str) -> Vec<&str> {
        let name = |head: &'static str| {
            snippet.lines().filter_map(move |l| l.split_once(head)?.1.split('(').next()?.split_whitespace().last())
        };
        let own =
            |n: &&str| !n.starts_with("ld_global_v") && !n.ends_with("_x2") && !["two", "times_f16x2"].contains(n);
        let mut all: Vec<&str> = name("DEV ").chain(name("__forceinline__ ")).filter(own).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn snippets_with_assembly_are_replaced() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/src/emit/cuda/prelude/device");
        let files = std::fs::read_dir(folder).expect("it is in the repository");
        let texts = files.map(|f| std::fs::read_to_string(f.expect("readable").path()).expect("readable"));
        let left: Vec<String> = texts.filter(|t| t.contains("asm") && !REPLACED.iter().any(|r| r.0 == *t)).collect();
        assert!(left.is_empty(), "a host compiler cannot read {left:?}");
    }

    #[test]
    fn replaced_snippets_declare_the_same_functions() {
        // What the header of built-ins offers to every text need not be repeated in a snippet.
        let everywhere = |name: &str| PRELUDE.iter().any(|text| text.contains(&format!(" {name}(")));
        for (device, host) in REPLACED {
            let own = functions(host);
            let missing: Vec<&str> =
                functions(device).into_iter().filter(|f| !own.contains(f) && !everywhere(f)).collect();
            assert!(missing.is_empty(), "{missing:?} are not in the host prelude");
        }
    }
}
