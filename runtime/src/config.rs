//! Every environment variable this crate reads, with default and meaning, and the folders that follow from them.
//!
//! Code takes a [`Settings`] value; only [`Settings::from_env`] looks at the environment, so tests inject their own.

use std::path::{Path, PathBuf};

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// All variables, for `doctor` and the documentation.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "KILN_DEVICE",
        default: "best",
        meaning: "device that is used when none is named: best, cpu, null, sim:TARGET, cuda:N or ascend:N",
    },
    Variable {
        name: "KILN_DIR",
        default: "target/kiln of the workspace, else kiln in the user's cache folder",
        meaning: "folder for fetched compilers, caches, tuning records and emitted sources",
    },
    Variable {
        name: "KILN_CACHE_DIR",
        default: "cache in KILN_DIR if writable, else kiln in the user's cache folder",
        meaning: "folder of compiled kernels; safe to share and to delete",
    },
    Variable { name: "KILN_TUNE_DIR", default: "tune in KILN_DIR", meaning: "folder of tuning records" },
    Variable {
        name: "KILN_NVRTC_DIR",
        default: "unset: fetched packages, the Python environment, CUDA_HOME, the loader's path",
        meaning: "folder that holds libnvrtc.so.13 and its builtins; nothing else is tried",
    },
    Variable { name: "KILN_OFFLINE", default: "0", meaning: "1: never fetch compiler packages" },
    Variable {
        name: "KILN_SYNC",
        default: "0",
        meaning: "1: wait for every launch, so that a device fault names its kernel",
    },
    Variable {
        name: "KILN_SIM_SCHEDULES",
        default: "2",
        meaning: "schedules a simulated device tries for every launch; the first one is in order",
    },
    Variable { name: "CXX", default: "c++", meaning: "C++ compiler of simulated devices: g++ or clang" },
    Variable {
        name: "KILN_BATCH_INVARIANT",
        default: "0",
        meaning: "1 (or DEEPINFER_BATCH_INVARIANT=1): a request's tokens may not depend on other requests; holds without it \
                  too, since requests run one at a time on kernels whose rows do not know each other",
    },
    Variable { name: "KILN_THREADS", default: "all cores", meaning: "threads of the tile VM" },
];

/// Version of the reference CUDA compiler.
pub const NVRTC_VERSION: &str = "13.0.88";

/// What the environment says, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `KILN_DEVICE`.
    pub device: String,
    /// `KILN_DIR`.
    pub dir: PathBuf,
    /// `KILN_CACHE_DIR`; the second one is used if the first is not writable.
    pub cache_dirs: Vec<PathBuf>,
    /// `KILN_TUNE_DIR`.
    pub tune_dir: PathBuf,
    /// `KILN_NVRTC_DIR`.
    pub nvrtc_dir: Option<PathBuf>,
    /// `KILN_OFFLINE`.
    pub offline: bool,
    /// `KILN_SYNC`.
    pub sync: bool,
    /// `KILN_THREADS`.
    pub threads: Option<usize>,
    /// `KILN_SIM_SCHEDULES`.
    pub sim_schedules: usize,
    /// `KILN_BATCH_INVARIANT`, or `DEEPINFER_BATCH_INVARIANT`.
    pub batch_invariant: bool,
    /// `CXX`: compiles emitted text for simulated devices.
    pub cxx: PathBuf,
    /// `CI` is `true` or `1`: a missing compiler is a failure, not a skip.
    pub ci: bool,
    /// Active Python environments (`VIRTUAL_ENV`, `CONDA_PREFIX`).
    pub python_envs: Vec<PathBuf>,
    /// `CUDA_HOME` and `CUDA_PATH`.
    pub cuda_homes: Vec<PathBuf>,
    /// `ASCEND_HOME_PATH` and `ASCEND_TOOLKIT_HOME`: folders of CANN.
    pub ascend_homes: Vec<PathBuf>,
}

impl Settings {
    /// Reads the process environment; values that mean nothing count as unset.
    pub fn from_env() -> Self {
        Self::from(&|name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from))
    }

    /// The same with the environment given as a function.
    pub fn from(get: &dyn Fn(&str) -> Option<PathBuf>) -> Self {
        let text = |name: &str| get(name).and_then(|p| p.to_str().map(str::to_owned));
        let flag = |name: &str| text(name).is_some_and(|v| v == "1" || v.eq_ignore_ascii_case("true"));
        let user = get("XDG_CACHE_HOME")
            .or_else(|| get("HOME").map(|h| h.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("kiln");
        let project = get("CARGO_TARGET_DIR")
            .or_else(|| std::env::current_dir().ok().and_then(|d| project_root(&d)).map(|r| r.join("target")))
            .map(|t| t.join("kiln"));
        let dir = get("KILN_DIR").or(project).unwrap_or_else(|| user.clone());
        let cache_dirs = match get("KILN_CACHE_DIR") {
            Some(d) => vec![d],
            None if dir == user => vec![user.join("cache")],
            None => vec![dir.join("cache"), user.join("cache")],
        };
        Settings {
            device: text("KILN_DEVICE").unwrap_or_else(|| "best".into()),
            cache_dirs,
            tune_dir: get("KILN_TUNE_DIR").unwrap_or_else(|| dir.join("tune")),
            nvrtc_dir: get("KILN_NVRTC_DIR"),
            offline: flag("KILN_OFFLINE"),
            sync: flag("KILN_SYNC"),
            threads: text("KILN_THREADS").and_then(|t| t.parse().ok()).filter(|&t| t > 0),
            sim_schedules: text("KILN_SIM_SCHEDULES").and_then(|t| t.parse().ok()).filter(|&t| t > 0).unwrap_or(2),
            batch_invariant: flag("KILN_BATCH_INVARIANT") || flag("DEEPINFER_BATCH_INVARIANT"),
            cxx: get("CXX").unwrap_or_else(|| "c++".into()),
            ci: flag("CI"),
            python_envs: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(get).collect(),
            cuda_homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(get).collect(),
            ascend_homes: ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"].into_iter().filter_map(get).collect(),
            dir,
        }
    }

    /// Where fetched compiler packages are unpacked.
    pub fn compiler_dir(&self) -> PathBuf {
        self.dir.join(format!("cuda-{NVRTC_VERSION}"))
    }
}

/// The folder of the nearest `Cargo.lock` at or above `from`, else of the nearest `Cargo.toml`: members of a workspace
/// share one output folder.
fn project_root(from: &Path) -> Option<PathBuf> {
    ["Cargo.lock", "Cargo.toml"]
        .iter()
        .find_map(|file| from.ancestors().find(|d| d.join(file).is_file()))
        .map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_overrides() {
        let s = Settings::from(&|n| (n == "HOME").then(|| "/someone".into()));
        assert_eq!(s.device, "best");
        assert!(!s.ci && !s.sync && s.threads.is_none());
        assert_eq!(s.cxx, Path::new("c++"));
        assert_eq!(s.cache_dirs[1], Path::new("/someone/.cache/kiln/cache"));
        let s = Settings::from(&|n| match n {
            "KILN_DIR" => Some("/out".into()),
            "KILN_CACHE_DIR" => Some("/cache".into()),
            "KILN_THREADS" => Some("3".into()),
            "CXX" => Some("clang++".into()),
            "CI" => Some("true".into()),
            _ => None,
        });
        assert_eq!((s.cache_dirs.len(), s.threads, s.ci), (1, Some(3), true));
        assert_eq!(s.cxx, Path::new("clang++"));
        assert_eq!(s.compiler_dir(), Path::new("/out/cuda-13.0.88"));
        assert_eq!(s.tune_dir, Path::new("/out/tune"));
    }

    #[test]
    fn every_variable_is_named_once() {
        let mut names: Vec<_> = VARIABLES.iter().map(|v| v.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
    }
}
