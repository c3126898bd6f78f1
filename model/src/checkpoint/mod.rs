//! Reading checkpoints: files to named host tensors, every mistake named with its file and tensor.
//!
//! `safetensors` reads one file, `shard` a folder of them, `names` says which tensors a configuration needs. Not here: the
//! network.

pub mod names;
pub mod safetensors;
pub mod shard;

use std::fmt;
use std::path::PathBuf;

/// A file that could not be read as a checkpoint.
#[derive(Debug)]
pub struct CheckpointError {
    /// The file.
    pub path: PathBuf,
    /// The tensor at fault, if one is.
    pub tensor: Option<String>,
    /// What was expected and what was found.
    pub message: String,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(t) = &self.tensor {
            write!(f, ": tensor `{t}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for CheckpointError {}
