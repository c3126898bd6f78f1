//! Writing files whole or not at all, with the path in every error.

use crate::failure::Failure;
use std::path::Path;

/// Writes beside the file and renames, so that a reader sees the old content or the new one.
///
/// # Errors
/// A folder that does not exist or cannot be written.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |e: std::io::Error| {
        Failure::environment(path.display(), "a place to write to", e, "choose another path or fix its permissions")
    };
    let name = path.file_name().ok_or_else(|| {
        Failure::usage(path.display(), "a file name", "a path without one", "name a file, as in `-o kernel.cu`")
    })?;
    let aside = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let done = std::fs::write(&aside, bytes).and_then(|()| std::fs::rename(&aside, path));
    if done.is_err() {
        // The half-written file, if any; the error below is the one worth telling.
        let _ = std::fs::remove_file(&aside);
    }
    done.map_err(fail)
}

/// Adds lines to a file in one write.
///
/// # Errors
/// A folder that does not exist or cannot be written.
pub fn append(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let open = std::fs::OpenOptions::new().append(true).create(true).open(path);
    open.and_then(|mut f| f.write_all(text.as_bytes())).map_err(|e| {
        Failure::environment(path.display(), "a file to append to", e, "choose another path or fix its permissions")
    })
}
