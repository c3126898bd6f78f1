//! The one error of this crate. Every variant says where, what was expected, what came, and what to do next.
//!
//! [`Error::exit_code`] maps it to the command line's contract: 1 a check failed, 2 usage, 3 environment missing.

use kiln_codegen::abi::LaunchError;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::target::Target;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Anything that can go wrong while compiling, running, measuring or tuning.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A launch was refused before it reached the device.
    #[error(transparent)]
    Launch(#[from] LaunchError),

    /// The builder, the verifier or a target's checks refused the kernel.
    #[error("kernel `{kernel}` is refused{}:\n{}", for_target(*target), diagnostics_text(diagnostics))]
    Refused {
        /// Kernel.
        kernel: String,
        /// Target; `None` if it was refused before one mattered.
        target: Option<Target>,
        /// All findings.
        diagnostics: Vec<Diagnostic>,
    },

    /// The sanitizer found mistakes while a kernel ran.
    #[error("the sanitizer stopped `{kernel}`:\n{}", diagnostics_text(findings))]
    Sanitizer {
        /// Kernel.
        kernel: String,
        /// All findings.
        findings: Vec<Diagnostic>,
    },

    /// No device has this name.
    #[error(
        "no device is called `{name}`; expected best, cpu, null, sim:sm_80, sim:sm_90a, sim:ascend910b, sim:ascend950, \
         cuda:N or ascend:N (found here: {known})"
    )]
    UnknownDevice {
        /// Name that was asked for.
        name: String,
        /// Devices of this machine.
        known: String,
    },

    /// The CUDA driver library is missing.
    #[error(
        "{device}: no NVIDIA driver on this machine (libcuda.so.1 could not be loaded); kernels can be compiled but not \
         run there; use the device `cpu`, or install the driver"
    )]
    NoDriver {
        /// Device that was asked for.
        device: String,
    },

    /// The driver is there, a usable GPU is not.
    #[error(
        "{device}: the NVIDIA driver is installed but no usable GPU was found ({cause}); use the device `cpu`, or check \
         `nvidia-smi`"
    )]
    NoGpu {
        /// Device that was asked for.
        device: String,
        /// What the driver said.
        cause: String,
    },

    /// The Ascend runtime is missing.
    #[error(
        "{device}: no Ascend runtime on this machine ({library} could not be loaded); places tried:\n  {tried}\nnext step: \
         install CANN and set ASCEND_HOME_PATH to its folder, or use the device sim:ascend950 or sim:ascend910b"
    )]
    NoAscend {
        /// Device that was asked for.
        device: String,
        /// File name.
        library: String,
        /// One line a place, with what the loader said.
        tried: String,
    },

    /// A driver call failed.
    #[error("{device}: {call} failed: {cause}; the device may be in use, out of resources or misconfigured")]
    Driver {
        /// Device.
        device: String,
        /// What was attempted.
        call: String,
        /// What the driver said.
        cause: String,
    },

    /// A kernel broke the device's context; nothing runs on it any more in this process.
    #[error(
        "{device}: {kernel} caused a device fault ({cause}); the device cannot be used again in this process; run the \
         same case on `cpu` with the sanitizer to find the access, or set KILN_SYNC=1 to name one kernel"
    )]
    Fault {
        /// Device.
        device: String,
        /// The kernel, or all kernels since the last synchronisation.
        kernel: String,
        /// What the driver said.
        cause: String,
    },

    /// An allocation does not fit.
    #[error(
        "{device}: cannot allocate {bytes} bytes ({available} bytes are free); use a smaller problem or drop tensors"
    )]
    OutOfMemory {
        /// Device.
        device: String,
        /// Wanted.
        bytes: usize,
        /// Free.
        available: usize,
    },

    /// A tensor that cannot be what it says, or lives elsewhere.
    #[error("{what}: expected {expected}, got {got}")]
    Tensor {
        /// Which operation on which tensor.
        what: String,
        /// Needed.
        expected: String,
        /// Given.
        got: String,
    },

    /// A plan that contradicts itself.
    #[error("plan step {step} (`{kernel}`): expected {expected}, got {got}; the operator's `plan` has to declare it")]
    Plan {
        /// Index of the step.
        step: usize,
        /// Kernel of the step.
        kernel: String,
        /// Needed.
        expected: String,
        /// Given.
        got: String,
    },

    /// The CUDA compiler was not found.
    #[error("no CUDA compiler (NVRTC) was found; places tried:\n{tried}next step: {next}")]
    NoCompiler {
        /// One line a place, with what was wrong there.
        tried: String,
        /// What to do.
        next: String,
    },

    /// No compiler of AscendC was found.
    #[error("no AscendC compiler was found; places tried:\n{tried}next step: {next}")]
    NoAscendCompiler {
        /// One line a place, with what was wrong there.
        tried: String,
        /// What to do.
        next: String,
    },

    /// The compiler packages could not be fetched.
    #[error("fetching the CUDA compiler packages: {step} failed: {cause}; next step: {next}")]
    Fetch {
        /// What was attempted.
        step: String,
        /// What happened.
        cause: String,
        /// What to do.
        next: String,
    },

    /// The vendor's compiler refused generated source: a mistake of ours, not of the kernel's author.
    #[error(
        "{compiler} refused the generated source of `{kernel}` for {target}:\n{log}\nthis is a bug in the emitter; please \
         report it with the output of `emit {kernel} --target {target}`"
    )]
    Compiler {
        /// Compiler and version.
        compiler: String,
        /// Kernel.
        kernel: String,
        /// Target.
        target: String,
        /// Its log.
        log: String,
    },

    /// The compiled code misses a bound that every kernel must keep.
    #[error("`{kernel}` for {target} compiles but misses its bounds: {}; use a config with smaller tiles", reasons.join("; "))]
    Gate {
        /// Kernel.
        kernel: String,
        /// Target.
        target: String,
        /// Bounds that are missed.
        reasons: Vec<String>,
    },

    /// Target and request do not fit.
    #[error("{what}: expected {expected}, got {got}")]
    Unsupported {
        /// Operation.
        what: String,
        /// Supported.
        expected: String,
        /// Asked for.
        got: String,
    },

    /// A file operation failed.
    #[error("cannot {action} {}: {cause}; check that the path exists and is permitted", path.display())]
    Io {
        /// `read`, `write`, `create` ..
        action: &'static str,
        /// Path.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },

    /// A tuning record that does not fit what it is loaded for.
    #[error("tuning record {}: expected {field} {expected}, got {got}; tune again on this machine", path.display())]
    Record {
        /// File.
        path: PathBuf,
        /// Field that differs.
        field: String,
        /// What this machine and kernel have.
        expected: String,
        /// What the record has.
        got: String,
    },

    /// An operator refused a problem.
    #[error("{op}: {message}")]
    Operator {
        /// Operator.
        op: String,
        /// Its reason.
        message: String,
    },

    /// An environment variable or option with a value that means nothing.
    #[error("{name}={value}: expected {expected}")]
    Setting {
        /// Variable or option.
        name: String,
        /// Value.
        value: String,
        /// Allowed.
        expected: String,
    },
}

impl Error {
    /// Exit code of the command line: 1 a check failed, 2 usage, 3 environment missing.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Launch(_)
            | Error::Refused { .. }
            | Error::Sanitizer { .. }
            | Error::Fault { .. }
            | Error::Tensor { .. }
            | Error::Plan { .. }
            | Error::Compiler { .. }
            | Error::Gate { .. }
            | Error::Record { .. }
            | Error::Operator { .. } => 1,
            Error::UnknownDevice { .. } | Error::Unsupported { .. } | Error::Setting { .. } => 2,
            Error::NoDriver { .. }
            | Error::NoAscend { .. }
            | Error::NoGpu { .. }
            | Error::Driver { .. }
            | Error::OutOfMemory { .. }
            | Error::NoCompiler { .. }
            | Error::NoAscendCompiler { .. }
            | Error::Fetch { .. }
            | Error::Io { .. } => 3,
        }
    }

    /// The kernel was refused, as opposed to broken: a config or target it does not support.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::Launch(_) | Error::Refused { .. } | Error::Gate { .. } | Error::Unsupported { .. })
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |cause| Error::Io { action, path, cause }
    }
}

fn for_target(target: Option<Target>) -> String {
    target.map_or(String::new(), |t| format!(" for {}", t.name()))
}

fn diagnostics_text(all: &[Diagnostic]) -> String {
    let mut out = String::new();
    for d in all {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{d}");
    }
    out.truncate(out.trim_end().len());
    out
}
