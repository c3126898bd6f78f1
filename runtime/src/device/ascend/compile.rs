//! From AscendC text to device code: CANN's run-time compiler where it is installed, else its `bisheng`.
//!
//! Neither exists where this was written: the options are those of the documentation, and what they do to our texts is not
//! known.

use crate::compile::cache::hash;
use crate::error::{Error, Result};
use ascendc_sys::{self as sys, Rtc};
use kiln_codegen::emit::{NpuLaunch, Source};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::process::Command;

/// A compiler of AscendC.
#[derive(Debug)]
pub(super) enum Compiler {
    /// `libacl_rtc.so`.
    Rtc(Rtc),
    /// `bisheng`, and a folder for its files.
    Bisheng(PathBuf, PathBuf),
}

/// `bisheng` in CANN's folders, else on PATH; and what was looked for, for messages.
fn bisheng(folders: &[PathBuf]) -> (Option<PathBuf>, Vec<String>) {
    let named = folders.iter().flat_map(|f| ["compiler/ccec_compiler/bin", "bin"].map(|b| f.join(b).join("bisheng")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: Vec<PathBuf> = named.chain(std::env::split_paths(&path).map(|d| d.join("bisheng"))).collect();
    let found = all.iter().find(|p| p.is_file()).cloned();
    (found, folders.iter().map(|f| format!("{}/.../bisheng", f.display())).chain(["bisheng on PATH".into()]).collect())
}

impl Compiler {
    /// Finds a compiler in CANN's folders.
    ///
    /// # Errors
    /// All places tried.
    pub fn open(folders: &[PathBuf], scratch: PathBuf) -> Result<Compiler> {
        let missing = match Rtc::open_in(folders) {
            Ok(rtc) => return Ok(Compiler::Rtc(rtc)),
            Err(e) => e.to_string(),
        };
        match bisheng(folders) {
            (Some(path), _) => Ok(Compiler::Bisheng(path, scratch)),
            (None, tried) => Err(Error::NoAscendCompiler {
                tried: format!("  {missing}\n  bisheng: {}\n", tried.join(", ")),
                next: "install CANN and set ASCEND_HOME_PATH; `kiln emit` prints the text without it".into(),
            }),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Compiler::Rtc(rtc) => rtc.path().display().to_string(),
            Compiler::Bisheng(path, _) => path.display().to_string(),
        }
    }

    /// Device code of a text.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &Source, launch: &NpuLaunch, kernel: &str) -> Result<Vec<u8>> {
        let refused = |log: String| Error::Compiler {
            compiler: self.name(),
            kernel: kernel.into(),
            target: format!("dav-{}", launch.arch),
            log,
        };
        match self {
            Compiler::Rtc(rtc) => compile_here(rtc, source, launch).map_err(refused),
            Compiler::Bisheng(path, scratch) => {
                std::fs::create_dir_all(scratch).map_err(Error::io("create", scratch))?;
                let stem = format!("{}.{}", hash(&[source.text.as_bytes()]), std::process::id());
                let (text, object) = (scratch.join(format!("{stem}.asc")), scratch.join(format!("{stem}.o")));
                std::fs::write(&text, &source.text).map_err(Error::io("write", &text))?;
                let output = Command::new(path).args(launch.build_options()).arg("-o").arg(&object).arg(&text).output();
                let result = match output {
                    Err(e) => Err(refused(e.to_string())),
                    Ok(o) if !o.status.success() => Err(refused(String::from_utf8_lossy(&o.stderr).into_owned())),
                    Ok(_) => std::fs::read(&object).map_err(Error::io("read", &object)),
                };
                // Left-over files cost space, not correctness.
                let _ = std::fs::remove_file(&text);
                let _ = std::fs::remove_file(&object);
                result
            }
        }
    }
}

/// Compiles in this process. The error is the compiler's log, or why there is none.
fn compile_here(rtc: &Rtc, source: &Source, launch: &NpuLaunch) -> std::result::Result<Vec<u8>, String> {
    struct Program<'a>(&'a Rtc, sys::Program);
    impl Drop for Program<'_> {
        fn drop(&mut self) {
            // SAFETY: the address of a live handle that `aclrtcCreateProg` made.
            let _ = unsafe { self.0.aclrtcDestroyProg(&mut self.1) };
        }
    }
    let text = CString::new(source.text.as_str()).map_err(|e| e.to_string())?;
    let name = CString::new(format!("{}.asc", source.signature.entry)).map_err(|e| e.to_string())?;
    let options: Vec<CString> = [format!("--npu-arch=dav-{}", launch.arch), "-O2".into(), "--cce-auto-sync=off".into()]
        .into_iter()
        .filter_map(|o| CString::new(o).ok())
        .collect();
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let ok = |call: &str, code: std::result::Result<i32, sys::Error>| match code {
        Ok(sys::ACL_SUCCESS) => Ok(()),
        Ok(code) => Err(format!("{call} gave {code} ({})", sys::code_name(code))),
        Err(e) => Err(e.to_string()),
    };
    let mut program = Program(rtc, sys::Program::NULL);
    let none = std::ptr::null();
    // SAFETY: strings that end with 0 and live across the call, and the address of a live handle.
    let code = unsafe { rtc.aclrtcCreateProg(&mut program.1, text.as_ptr(), name.as_ptr(), 0, none, none) };
    ok("aclrtcCreateProg", code)?;
    // SAFETY: the program exists; the options live across the call.
    let compiled =
        ok("aclrtcCompileProg", unsafe { rtc.aclrtcCompileProg(program.1, pointers.len() as i32, pointers.as_ptr()) });
    if let Err(why) = compiled {
        let mut bytes = 0;
        // SAFETY: the address of a live number.
        let asked = ok("aclrtcGetCompileLogSize", unsafe { rtc.aclrtcGetCompileLogSize(program.1, &mut bytes) });
        let mut log = vec![0u8; bytes + 1];
        let read = asked.and_then(|()| {
            // SAFETY: the room the compiler asked for.
            ok("aclrtcGetCompileLog", unsafe { rtc.aclrtcGetCompileLog(program.1, log.as_mut_ptr().cast()) })
        });
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        return Err(if read.is_ok() && !log.trim().is_empty() { log } else { why });
    }
    let mut bytes = 0;
    // SAFETY: the address of a live number.
    ok("aclrtcGetBinDataSize", unsafe { rtc.aclrtcGetBinDataSize(program.1, &mut bytes) })?;
    let mut image = vec![0u8; bytes];
    // SAFETY: the room the compiler asked for.
    ok("aclrtcGetBinData", unsafe { rtc.aclrtcGetBinData(program.1, image.as_mut_ptr().cast()) })?;
    Ok(image)
}
