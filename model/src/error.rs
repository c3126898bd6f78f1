//! Why a model could not be opened or run. Messages name the file, or the operator and what it needs.

use crate::checkpoint::CheckpointError;
use crate::checkpoint::names::Fault;
use crate::config::ConfigError;
use kiln_codegen::spec::OpError;
use std::fmt;
use std::path::PathBuf;

/// Anything that stops a model.
#[derive(Debug)]
pub enum Error {
    /// `config.json`.
    Config(ConfigError),
    /// A tensor file.
    Checkpoint(CheckpointError),
    /// Tensors that are not as the configuration needs them.
    Tensors(Vec<Fault>),
    /// An operator refused a problem.
    Operator(OpError),
    /// The device.
    Device(kiln_runtime::Error),
    /// Another file, or a request the model cannot serve: place, expected, got, next step.
    Input {
        /// File or option.
        place: PathBuf,
        /// What is allowed.
        expected: String,
        /// What was found.
        got: String,
        /// What to do.
        next: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(e) => e.fmt(f),
            Error::Checkpoint(e) => e.fmt(f),
            Error::Operator(e) => e.fmt(f),
            Error::Device(e) => e.fmt(f),
            Error::Input { place, expected, got, next } => {
                write!(f, "{}: expected {expected}, got {got}\n  next: {next}", place.display())
            }
            Error::Tensors(faults) => {
                const SHOWN: usize = 10;
                for (i, x) in faults.iter().take(SHOWN).enumerate() {
                    let line = if i == 0 { "" } else { "\n" };
                    write!(
                        f,
                        "{line}{}: tensor `{}`: expected {}, got {}",
                        x.file.display(),
                        x.tensor,
                        x.expected,
                        x.got
                    )?;
                }
                if faults.len() > SHOWN {
                    write!(f, "\nand {} more", faults.len() - SHOWN)?;
                }
                write!(
                    f,
                    "\n  next: see all with `kiln model inspect DIR`; fetch the checkpoint again if it is incomplete"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Self {
        Error::Config(e)
    }
}
impl From<CheckpointError> for Error {
    fn from(e: CheckpointError) -> Self {
        Error::Checkpoint(e)
    }
}
impl From<OpError> for Error {
    fn from(e: OpError) -> Self {
        Error::Operator(e)
    }
}
impl From<kiln_runtime::Error> for Error {
    fn from(e: kiln_runtime::Error) -> Self {
        Error::Device(e)
    }
}
