//! Writing files whole or not at all, with the path in every error.

use crate::failure::Failure;
use std::path::Path;

/// Writes beside the file and renames, so that a reader sees the old content or the new one. A link stays a link, and a
/// place that is no file, as `/dev/stdout`, is written to and not replaced.
///
/// # Errors
/// A folder that does not exist or cannot be written.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |e: std::io::Error| {
        Failure::environment(path.display(), "a place to write to", e, "choose another path or fix its permissions")
    };
    if path.file_name().is_none() || path.is_dir() {
        let got = if path.is_dir() { "a folder" } else { "a path without a name" };
        return Err(Failure::usage(path.display(), "a file name", got, "name a file, as in `-o kernel.cu`"));
    }
    if path.exists() && !path.is_file() {
        return write_through(path, bytes).map_err(fail);
    }
    // A link that leads nowhere has no canonical form and is replaced.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let done = std::fs::write(&aside, bytes).and_then(|()| std::fs::rename(&aside, path));
    if done.is_err() {
        // The half-written file, if any; the error below is the one worth telling.
        let _ = std::fs::remove_file(&aside);
    }
    done.map_err(fail)
}

/// Writes to a device or a pipe. One that nobody reads any more is no failure.
fn write_through(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let done = std::fs::OpenOptions::new().write(true).open(path).and_then(|mut f| f.write_all(bytes));
    done.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
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
