//! A binding to NVRTC, NVIDIA's run-time compiler: open a library, compile text to machine code. No policy.
//!
//! The library is opened by absolute path, its builtins library first: release 13.0 has no search path of its own, so the
//! builtins must already be in the process. Copies named `.alt.` are ignored.
#![allow(unsafe_code, reason = "foreign calls; each block says why it is sound")]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

type Handle = *mut std::ffi::c_void;

/// The functions used, with the types of `nvrtc.h`.
#[derive(Clone, Copy)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
}

/// An opened compiler.
pub struct Nvrtc {
    functions: Functions,
    /// Where it came from: a path, or the bare name the loader resolved.
    path: PathBuf,
    version: (i32, i32),
    // Never closed: the functions above point into them, and unloading a compiler that may have started threads or
    // registered exit handlers gains nothing.
    _library: ManuallyDrop<Library>,
    _builtins: ManuallyDrop<Option<Library>>,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

/// What a compilation gave.
#[derive(Clone, Debug)]
pub struct Output {
    /// Machine code, or the error's name.
    pub image: Result<Vec<u8>, String>,
    /// The compiler's log, with the assembler's report if it was asked for.
    pub log: String,
}

/// The file in `dir` whose name starts with `prefix` and has a version, alternative copies excluded.
fn find(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .ok()?
        .filter_map(|e| e.ok())
        .filter(|e| {
            let name = e.file_name();
            let name = name.to_string_lossy();
            name.starts_with(prefix) && !name.contains(".alt.")
        })
        .map(|e| e.path())
        .collect();
    // The newest release, if a folder has several: longer versions of one file are links to each other.
    all.sort();
    all.pop()
}

impl Nvrtc {
    /// Opens the compiler in a folder.
    ///
    /// # Errors
    /// What is missing or does not load.
    pub fn open_dir(dir: &Path) -> Result<Self, String> {
        if !dir.is_dir() {
            return Err("no such folder".into());
        }
        let main = find(dir, "libnvrtc.so").ok_or("no libnvrtc.so there")?;
        let dir = main.parent().map(Path::to_path_buf).unwrap_or_default();
        let builtins = find(&dir, "libnvrtc-builtins.so").map(|p| open_library(&p)).transpose()?;
        Self::from_library(open_library(&main)?, builtins, main)
    }

    /// Opens whatever the loader finds by name.
    ///
    /// # Errors
    /// What the loader says.
    pub fn open_name(name: &str) -> Result<Self, String> {
        Self::from_library(open_library(Path::new(name))?, None, PathBuf::from(name))
    }

    fn from_library(library: Library, builtins: Option<Library>, path: PathBuf) -> Result<Self, String> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the declared type is the one of `nvrtc.h`, unchanged since release 11.2, and the library stays
                // open as long as the pointer is used.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|e| format!("{}: {e}", $name))?
            };
        }
        let functions = Functions {
            version: symbol!("nvrtcVersion"),
            error_string: symbol!("nvrtcGetErrorString"),
            create: symbol!("nvrtcCreateProgram"),
            compile: symbol!("nvrtcCompileProgram"),
            destroy: symbol!("nvrtcDestroyProgram"),
            log_size: symbol!("nvrtcGetProgramLogSize"),
            log: symbol!("nvrtcGetProgramLog"),
            cubin_size: symbol!("nvrtcGetCUBINSize"),
            cubin: symbol!("nvrtcGetCUBIN"),
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers to live addresses.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != 0 {
            return Err(format!("nvrtcVersion failed with {status}"));
        }
        if major < 13 {
            return Err(format!("release {major}.{minor} is too old; 13.0 or newer is needed"));
        }
        let (_library, _builtins) = (ManuallyDrop::new(library), ManuallyDrop::new(builtins));
        Ok(Nvrtc { functions, path, version: (major, minor), _library, _builtins })
    }

    /// Where it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Release, `(13, 0)`.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles `text`, called `name` in messages, to machine code. Callable from several threads at once.
    pub fn compile(&self, text: &str, name: &str, options: &[String]) -> Output {
        let failed = |why: String| Output { image: Err(why), log: String::new() };
        let c = |s: &str| CString::new(s).map_err(|_| "a NUL byte in the source or an option".to_string());
        let (text, name) = match (c(text), c(name)) {
            (Ok(t), Ok(n)) => (t, n),
            (Err(e), _) | (_, Err(e)) => return failed(e),
        };
        let options: Vec<CString> = match options.iter().map(|o| c(o)).collect() {
            Ok(o) => o,
            Err(e) => return failed(e),
        };
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let f = &self.functions;
        let mut program: Handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both strings end with NUL and outlive the call; no headers are passed.
        let status = unsafe { (f.create)(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none) };
        if status != 0 {
            return failed(self.error(status));
        }
        // SAFETY: `program` was just created; `pointers` has that many strings, alive during the call.
        let status = unsafe { (f.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.bytes(program, f.log_size, f.log).map(|b| {
            let end = b.iter().position(|&c| c == 0).unwrap_or(b.len());
            String::from_utf8_lossy(&b[..end]).into_owned()
        });
        let image = if status == 0 { self.bytes(program, f.cubin_size, f.cubin) } else { Err(self.error(status)) };
        // SAFETY: `program` is live and not used after this.
        unsafe { (f.destroy)(&mut program) };
        Output { image, log: log.unwrap_or_default() }
    }

    /// Reads a result that comes as size and bytes.
    fn bytes(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut n = 0usize;
        // SAFETY: `program` is live; writes one size.
        let status = unsafe { size(program, &mut n) };
        if status != 0 {
            return Err(self.error(status));
        }
        let mut out = vec![0u8; n];
        // SAFETY: the buffer has the size the library just asked for.
        let status = unsafe { get(program, out.as_mut_ptr().cast()) };
        if status != 0 { Err(self.error(status)) } else { Ok(out) }
    }

    fn error(&self, status: c_int) -> String {
        // SAFETY: returns a static string for any number.
        let text = unsafe { (self.functions.error_string)(status) };
        if text.is_null() {
            return format!("NVRTC error {status}");
        }
        // SAFETY: a non-null result is a static string that ends with NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn open_library(path: &Path) -> Result<Library, String> {
    // SAFETY: runs the library's initialisers; NVRTC's and its builtins' have no preconditions.
    unsafe { Library::new(path) }.map_err(|e| e.to_string())
}
