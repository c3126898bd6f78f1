//! Finding the CUDA compiler, and fetching it: pinned packages from the Python index, checked by hash, unpacked into the
//! project's output folder. Nothing else in this crate uses the network.

use super::cache::Cache;
use super::nvrtc::Nvrtc;
use super::{Compiled, MemoryKey};
use crate::config::{NVRTC_VERSION, Settings};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Pinned packages: name, version, SHA-256 of the x86-64 Linux wheel.
const PACKAGES: [(&str, &str, &str); 3] = [
    ("nvidia-cuda-nvrtc", NVRTC_VERSION, "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"),
    ("nvidia-cuda-cuobjdump", "13.5.37", "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58"),
    ("nvidia-cuda-nvdisasm", "13.5.37", "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca"),
];

/// Where the packages put libraries and programs.
const LIB: &str = "nvidia/cu13/lib";
const BIN: &str = "nvidia/cu13/bin";

/// The compiler with its caches.
#[derive(Debug)]
pub struct Toolchain {
    pub(super) nvrtc: Nvrtc,
    pub(super) cache: Cache,
    pub(super) nvdisasm: Option<PathBuf>,
    pub(super) memory: Mutex<HashMap<MemoryKey, Arc<Compiled>>>,
}

/// A place the compiler was looked for, and what was wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Folder or library name, with why it was tried.
    pub place: String,
    /// What was found or missing.
    pub outcome: String,
}

impl Toolchain {
    /// Finds the compiler: `KILN_NVRTC_DIR` (then nothing else), the fetched packages, the active Python environment,
    /// `CUDA_HOME`, the packages of `python3`, the loader's path.
    ///
    /// # Errors
    /// All places tried.
    pub fn open(settings: &Settings) -> Result<Toolchain> {
        let (found, tried) = find(settings);
        let Some(nvrtc) = found else {
            let mut list = String::new();
            for t in &tried {
                // Writing to a string cannot fail.
                let _ = writeln!(list, "  {}: {}", t.place, t.outcome);
            }
            let next = format!(
                "let `kiln doctor --fetch` fetch it, or `python3 -m pip install nvidia-cuda-nvrtc=={NVRTC_VERSION}`, or \
                 set KILN_NVRTC_DIR"
            );
            return Err(Error::NoCompiler { tried: list, next });
        };
        let nvdisasm = find_program(settings, &nvrtc, "nvdisasm");
        Ok(Toolchain { nvrtc, cache: Cache::open(&settings.cache_dirs), nvdisasm, memory: Mutex::default() })
    }

    /// Release, `NVRTC 13.0`.
    pub fn version(&self) -> String {
        let (major, minor) = self.nvrtc.version();
        format!("NVRTC {major}.{minor}")
    }
    /// Where the compiler came from.
    pub fn path(&self) -> &Path {
        self.nvrtc.path()
    }
    /// The disassembler, if there is one.
    pub fn nvdisasm(&self) -> Option<&Path> {
        self.nvdisasm.as_deref()
    }
    /// The cache folder in use.
    pub fn cache_dir(&self) -> Option<&Path> {
        self.cache.dir()
    }
    /// Warnings since the last call, for whoever prints.
    pub fn take_warnings(&self) -> Vec<String> {
        self.cache.take_warnings()
    }
}

fn find(settings: &Settings) -> (Option<Nvrtc>, Vec<Tried>) {
    let mut tried = vec![];
    let attempt = |tried: &mut Vec<Tried>, place: String, open: &dyn Fn() -> std::result::Result<Nvrtc, String>| {
        open().map_err(|outcome| tried.push(Tried { place, outcome })).ok()
    };
    if let Some(dir) = &settings.nvrtc_dir {
        let place = format!("{} (KILN_NVRTC_DIR)", dir.display());
        return (attempt(&mut tried, place, &|| Nvrtc::open_dir(dir)), tried);
    }
    let mut dirs = vec![(settings.compiler_dir().join(LIB), "fetched packages")];
    for env in &settings.python_envs {
        dirs.extend(site_packages(env).into_iter().map(|d| (d.join(LIB), "active Python environment")));
    }
    for home in &settings.cuda_homes {
        for lib in ["lib64", "lib", "targets/x86_64-linux/lib"] {
            dirs.push((home.join(lib), "CUDA_HOME"));
        }
    }
    for (dir, why) in dirs {
        let place = format!("{} ({why})", dir.display());
        if let Some(n) = attempt(&mut tried, place, &|| Nvrtc::open_dir(&dir)) {
            return (Some(n), tried);
        }
    }
    // Asking takes some milliseconds, so it comes after the folders that are known by name.
    let asked = python_path();
    for dir in asked.iter().map(|d| d.join(LIB)).filter(|d| d.is_dir()) {
        let place = format!("{} (packages of python3)", dir.display());
        if let Some(n) = attempt(&mut tried, place, &|| Nvrtc::open_dir(&dir)) {
            return (Some(n), tried);
        }
    }
    if !tried.iter().any(|t| t.place.contains("(packages of python3)")) {
        let outcome = if asked.is_empty() { "python3 does not run" } else { "no nvidia/cu13/lib among them" };
        tried.push(Tried { place: "packages of python3".into(), outcome: outcome.into() });
    }
    let name = "libnvrtc.so.13";
    let found = attempt(&mut tried, format!("{name} (the loader's path)"), &|| Nvrtc::open_name(name));
    (found, tried)
}

/// Folders that the `python3` on the path imports from; empty if it does not run.
fn python_path() -> Vec<PathBuf> {
    let out = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    let Ok(out) = out else { return vec![] };
    String::from_utf8_lossy(&out.stdout).lines().filter(|l| !l.is_empty()).map(PathBuf::from).collect()
}

/// Folders of installed packages in a Python environment.
fn site_packages(env: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(env.join("lib"))
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok())
        .filter(|e| e.file_name().to_string_lossy().starts_with("python3"))
        .map(|e| e.path().join("site-packages"))
        .collect();
    all.sort();
    all
}

/// A program beside the compiler, among the fetched packages, or on `PATH`.
fn find_program(settings: &Settings, nvrtc: &Nvrtc, name: &str) -> Option<PathBuf> {
    let beside = nvrtc.path().parent().and_then(Path::parent).map(|d| d.join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    [beside, Some(settings.compiler_dir().join(BIN))]
        .into_iter()
        .flatten()
        .chain(std::env::split_paths(&path))
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

/// A compiler, or why there is none.
#[derive(Debug)]
pub enum Availability {
    /// Ready to use.
    Ready(Arc<Toolchain>),
    /// Not here; the text says why and what would help.
    Skip(String),
}

/// Finds the compiler, and fetches it if it is missing and fetching is allowed. For tests and `check`: where the
/// environment says `CI=true`, not having one is an error, elsewhere a reason to print.
///
/// # Errors
/// In CI, why there is no compiler.
pub fn ensure(settings: &Settings) -> Result<Availability> {
    let missing = match Toolchain::open(settings) {
        Ok(t) => return Ok(Availability::Ready(Arc::new(t))),
        Err(e) => e,
    };
    let error = if settings.offline || settings.nvrtc_dir.is_some() {
        missing
    } else {
        match fetch(settings).and_then(|_| Toolchain::open(settings)) {
            Ok(t) => return Ok(Availability::Ready(Arc::new(t))),
            Err(e) => e,
        }
    };
    if settings.ci { Err(error) } else { Ok(Availability::Skip(error.to_string())) }
}

/// Installs the pinned packages unless they are there: under a lock, aside, then renamed whole.
///
/// # Errors
/// No Python, no network, a package with another hash, a folder that cannot be written.
pub fn fetch(settings: &Settings) -> Result<PathBuf> {
    let target = settings.compiler_dir();
    let fail = |step: &str, cause: String, next: &str| Error::Fetch { step: step.into(), cause, next: next.into() };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let cause = "packages are pinned for x86-64 Linux".to_string();
        return Err(fail("choosing packages", cause, "install CUDA 13 and set KILN_NVRTC_DIR"));
    }
    fs::create_dir_all(&settings.dir).map_err(Error::io("create", &settings.dir))?;
    let lock_path = settings.dir.join("fetch.lock");
    let lock = fs::File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
    // Released when the file is closed, also if this process dies.
    lock.lock().map_err(Error::io("lock", &lock_path))?;
    if target.join(LIB).is_dir() {
        return Ok(target);
    }
    let aside = settings.dir.join(format!(".cuda.{}.tmp", std::process::id()));
    let result = install(&aside).and_then(|()| fs::rename(&aside, &target).map_err(Error::io("create", &target)));
    if result.is_err() {
        let _ = fs::remove_dir_all(&aside);
    }
    result.map(|()| target)
}

fn install(aside: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(aside);
    fs::create_dir_all(aside).map_err(Error::io("create", aside))?;
    let list = aside.join("packages.txt");
    let text: String =
        PACKAGES.iter().map(|(name, version, sha)| format!("{name}=={version} --hash=sha256:{sha}\n")).collect();
    fs::write(&list, text).map_err(Error::io("write", &list))?;
    let next = "check the network and that `python3 -m pip --version` works, or install CUDA 13 and set KILN_NVRTC_DIR";
    let fail = |cause: String| Error::Fetch { step: "python3 -m pip install".into(), cause, next: next.into() };
    let out = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"])
        .args(["--no-compile", "--disable-pip-version-check", "--no-input"])
        .arg("--target")
        .arg(aside)
        .arg("--requirement")
        .arg(&list)
        .output()
        .map_err(|e| fail(e.to_string()))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        // The last lines say what failed; the rest is progress.
        let lines: Vec<_> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        return Err(fail(lines[lines.len().saturating_sub(4)..].join(" / ")));
    }
    // Half of the download is alternative copies that nothing here opens.
    let lib = aside.join(LIB);
    for entry in fs::read_dir(&lib).map_err(Error::io("read", &lib))?.filter_map(|e| e.ok()) {
        if entry.file_name().to_string_lossy().contains(".alt.so") {
            fs::remove_file(entry.path()).map_err(Error::io("remove", entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_is_the_only_place() {
        let mut settings = Settings::from(&|_| None);
        settings.nvrtc_dir = Some("/nonexistent/nvrtc".into());
        let e = Toolchain::open(&settings).expect_err("nothing there");
        assert_eq!(e.exit_code(), 3);
        let text = e.to_string();
        assert!(text.contains("  /nonexistent/nvrtc (KILN_NVRTC_DIR): no such folder\n"), "{text}");
        assert!(!text.contains("loader"), "{text}");
    }

    #[test]
    fn every_place_is_reported() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut settings = Settings::from(&|_| None);
        settings.dir = dir.path().to_path_buf();
        settings.cuda_homes = vec!["/nonexistent/cuda".into()];
        let (_, tried) = find(&settings);
        assert!(tried[0].place.ends_with("cuda-13.0.88/nvidia/cu13/lib (fetched packages)"), "{tried:?}");
        assert_eq!(tried.iter().filter(|t| t.place.contains("CUDA_HOME")).count(), 3);
    }

    #[test]
    fn missing_in_ci_is_an_error_and_a_skip_elsewhere() {
        let mut settings = Settings::from(&|_| None);
        settings.nvrtc_dir = Some("/nonexistent/nvrtc".into());
        assert!(matches!(ensure(&settings), Ok(Availability::Skip(_))));
        settings.ci = true;
        assert!(ensure(&settings).is_err());
    }
}
