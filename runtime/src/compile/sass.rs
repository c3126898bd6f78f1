//! Disassembly: runs `nvdisasm` on machine code and counts instructions by name.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A temporary folder, removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("kiln-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The disassembler's text.
pub fn disassemble(program: &Path, image: &[u8]) -> Result<String> {
    // It reads files only, and leaves files of its own beside others' temporary ones: it gets a folder, which goes with
    // everything in it.
    let folder = Folder::new()?;
    let path = folder.0.join("code.cubin");
    std::fs::write(&path, image).map_err(Error::io("write", &path))?;
    let out = Command::new(program).arg("-c").arg(&path).env("TMPDIR", &folder.0).current_dir(&folder.0).output();
    let out = out.map_err(Error::io("run", program))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let cause = std::io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_string());
    Err(Error::Io { action: "run", path: program.to_path_buf(), cause })
}

/// Instructions by full name. Lines look like `/*0010*/  @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;`.
pub fn count(text: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let Some((address, rest)) = line.trim_start().strip_prefix("/*").and_then(|r| r.split_once("*/")) else {
            continue;
        };
        if address.is_empty() || !address.chars().all(|c| c.is_ascii_hexdigit()) {
            continue;
        }
        let mut words = rest.split_whitespace();
        let name = words.find(|w| !w.starts_with('@') && !w.starts_with('{'));
        let Some(name) = name.map(|n| n.trim_end_matches(';')) else { continue };
        if name.starts_with(|c: char| c.is_ascii_uppercase()) {
            *counts.entry(name.to_string()).or_insert(0) += 1;
        }
    }
    counts
}

/// Text form for the cache: one name and number a line.
pub fn print_counts(counts: &BTreeMap<String, usize>) -> String {
    counts.iter().map(|(name, n)| format!("{name} {n}\n")).collect()
}

/// Reads [`print_counts`].
pub fn parse_counts(bytes: &[u8]) -> Option<BTreeMap<String, usize>> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.lines().map(|l| l.split_once(' ').and_then(|(n, c)| Some((n.to_string(), c.parse().ok()?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_full_name() {
        let text = "\t.text.k:\n        /*0000*/                   LDC R1, c[0x0][0x37c] ;\n\
                    \x20       /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;\n\
                    \x20       /*0020*/               @P0 EXIT ;\n        /*0030*/                   EXIT ;\n";
        let counts = count(text);
        assert_eq!(counts, [("EXIT", 2), ("LDC", 1), ("LDG.E.128", 1)].map(|(n, c)| (n.to_string(), c)).into());
        assert_eq!(parse_counts(print_counts(&counts).as_bytes()), Some(counts));
    }
}
