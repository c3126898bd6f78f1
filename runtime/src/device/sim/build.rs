//! From emitted text to a loaded library: the host prelude in front, the system's C++ compiler, a cache of objects by
//! content hash.

use libloading::Library;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use super::SimError;
use super::fiber::{Attach, Entry};

macro_rules! prelude {
    ($side:literal / $file:literal) => {
        include_str!(concat!("../../../../codegen/src/emit/cuda/prelude/", $side, "/", $file))
    };
}

/// What stands before every text.
const PRELUDE: [&str; 2] = [prelude!("host" / "machine.h"), prelude!("host" / "builtins.h")];

/// Snippets of the device prelude that hold inline PTX, and what takes their place. All others run as they are.
const REPLACED: [(&str, &str); 10] = [
    (prelude!("device" / "memory.cuh"), prelude!("host" / "memory.cuh")),
    (prelude!("device" / "global.cuh"), prelude!("host" / "global.cuh")),
    (prelude!("device" / "bf16.cuh"), prelude!("host" / "bf16.cuh")),
    (prelude!("device" / "f16.cuh"), prelude!("host" / "f16.cuh")),
    (prelude!("device" / "fp8.cuh"), prelude!("host" / "fp8.cuh")),
    (prelude!("device" / "matrix.cuh"), prelude!("host" / "matrix.cuh")),
    (prelude!("device" / "check.cuh"), prelude!("host" / "check.cuh")),
    (prelude!("device" / "async_copy.cuh"), prelude!("host" / "async_copy.cuh")),
    (prelude!("device" / "widen.cuh"), prelude!("host" / "widen.cuh")),
    (prelude!("device" / "widen_integer.cuh"), prelude!("host" / "widen.cuh")),
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
    /// `$CXX` or `c++`, with this cache.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        let command = std::env::var_os("CXX").filter(|c| !c.is_empty()).map_or_else(|| "c++".into(), PathBuf::from);
        HostCompiler { command, cache: cache.into() }
    }

    /// Compiles and loads a text whose entry is `entry`, or takes it from the cache.
    ///
    /// # Errors
    /// The compiler is missing or refuses the text, or the cache cannot be written.
    pub fn load(&self, text: &str, entry: &str) -> Result<Arc<Program>, SimError> {
        let full = host_text(text, entry);
        let compiler = self.identify()?;
        let mut hash = Sha256::new();
        for part in FLAGS.iter().chain([&compiler.version.as_str(), &full.as_str()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        let object = self.cache.join(format!("{name}.so"));
        if !object.is_file() {
            self.compile(&full, &name, &object, compiler.fuel)?;
        }
        Program::open(&object)
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

    fn compile(&self, full: &str, name: &str, object: &Path, fuel: bool) -> Result<(), SimError> {
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
        let output =
            Command::new(&self.command).args(FLAGS).args(fuel).arg("-o").arg(&partial).arg(&source).arg("-lm").output();
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
    let mut swaps: Vec<(usize, usize, &str)> = REPLACED
        .iter()
        .filter_map(|(device, host)| text.find(device).map(|at| (at, at + device.len(), *host)))
        .collect();
    swaps.sort_unstable();
    let mut out = PRELUDE.concat();
    out += "\n#line 1 \"kernel\"\n";
    let mut done = 0;
    for (from, to, host) in swaps {
        let line = text[..to].matches('\n').count() + 1;
        out += &format!("{}\n#line 1 \"host prelude\"\n{host}\n#line {line} \"kernel\"\n", &text[done..from]);
        done = to;
    }
    out += &text[done..];
    let visible = "extern \"C\" __attribute__((visibility(\"default\"), KILN_PLAIN))";
    out += &format!(
        "\n#line 1 \"entry\"\n{visible} void kiln_entry(const u64* words) {{ kiln_call(&{entry}, words); }}\n\
         {visible} u32 kiln_entry_arity() {{ return kiln_arity(&{entry}); }}\n"
    );
    out
}

/// A compiled text in this process.
#[derive(Debug)]
pub struct Program {
    library: Library,
    path: PathBuf,
    /// Arguments of its entry.
    pub arity: usize,
}

impl Program {
    fn open(path: &Path) -> Result<Arc<Self>, SimError> {
        let fail = |e: libloading::Error| SimError::Load { path: path.to_path_buf(), cause: e.to_string() };
        // SAFETY: the object was compiled from the host prelude and emitted text, which have no initialisers.
        let library = unsafe { Library::new(path) }.map_err(fail)?;
        // SAFETY: `host_text` declares this symbol with this type.
        let arity = unsafe { library.get::<unsafe extern "C" fn() -> u32>(b"kiln_entry_arity\0").map_err(fail)?() };
        Ok(Arc::new(Program { library, path: path.to_path_buf(), arity: arity as usize }))
    }

    /// Lines of the emitted text for places in the object, as far as they can be found: `addr2line` comes with the
    /// compiler's linker.
    pub(super) fn lines(&self, places: &[u32]) -> HashMap<u32, u32> {
        if places.is_empty() {
            return HashMap::new();
        }
        for tool in ["addr2line", "llvm-addr2line"] {
            let mut command = Command::new(tool);
            command.args(["-a", "-i", "-e"]).arg(&self.path).args(places.iter().map(|p| format!("{p:#x}")));
            if let Ok(output) = command.output()
                && output.status.success()
            {
                return parse_lines(&String::from_utf8_lossy(&output.stdout));
            }
        }
        HashMap::new()
    }

    /// `kiln_attach` and `kiln_entry`, valid as long as the program lives.
    pub(super) fn functions(&self) -> Result<(Attach, Entry), SimError> {
        let fail = |e: libloading::Error| SimError::Load { path: PathBuf::new(), cause: e.to_string() };
        // SAFETY: `machine.h` and `host_text` declare these symbols with these types.
        unsafe {
            let attach = *self.library.get::<Attach>(b"kiln_attach\0").map_err(fail)?;
            let entry = *self.library.get::<Entry>(b"kiln_entry\0").map_err(fail)?;
            Ok((attach, entry))
        }
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
