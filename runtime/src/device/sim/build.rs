//! From emitted text to a loaded library: the host prelude in front, the system's C++ compiler, a cache of objects by
//! content hash.

use libloading::Library;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::SimError;
use super::fiber::{Attach, Entry};

/// Parts of the host prelude, in order.
const PRELUDE: [&str; 2] = [
    include_str!("../../../../codegen/src/emit/cuda/prelude/host/machine.h"),
    include_str!("../../../../codegen/src/emit/cuda/prelude/host/ops.h"),
];

/// Contraction is off and overflow wraps, as on the device; `-O1` compiles a kernel in about half a second.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
];

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
        let mut hash = Sha256::new();
        hash.update(self.command.as_os_str().as_encoded_bytes());
        for part in FLAGS.iter().chain([&full.as_str()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        let object = self.cache.join(format!("{name}.so"));
        if !object.is_file() {
            self.compile(&full, &name, &object)?;
        }
        Program::open(&object)
    }

    fn compile(&self, full: &str, name: &str, object: &Path) -> Result<(), SimError> {
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
        let output = Command::new(&self.command).args(FLAGS).arg("-o").arg(&partial).arg(&source).output();
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
    let prelude = PRELUDE.concat();
    format!(
        "{prelude}\n#line 1 \"kernel\"\n{text}\n#line 1 \"entry\"\n\
         extern \"C\" __attribute__((visibility(\"default\"))) void kiln_entry(const u64* words) {{ kiln_call(&{entry}, words); }}\n\
         extern \"C\" __attribute__((visibility(\"default\"))) u32 kiln_entry_arity() {{ return kiln_arity(&{entry}); }}\n"
    )
}

/// A compiled text in this process.
#[derive(Debug)]
pub struct Program {
    library: Library,
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
        Ok(Arc::new(Program { library, arity: arity as usize }))
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
