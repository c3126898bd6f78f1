//! A file of finished rows that survives being killed: whole lines only, each on the disk before the next is begun.
//!
//! Opened again it says which rows it has, so that no work is lost or done twice; a last line without its end is cut off. One
//! process at a time may have it open. Not here: what rows mean.

use crate::failure::Failure;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// An open file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Ids of the rows in it, as JSON.
    pub done: BTreeSet<String>,
}

impl Journal {
    /// Opens or makes a file.
    ///
    /// # Errors
    /// A place that cannot be written, a file another process has open, lines that are no rows.
    pub fn open(path: &Path) -> Result<Journal, Failure> {
        let fail = |e: std::io::Error| {
            Failure::environment(path.display(), "a file to write to", e, "choose another path or fix its permissions")
        };
        if path.exists() && !path.is_file() {
            let next = "name a file, or leave the option out and read the rows from stdout";
            return Err(Failure::usage(path.display(), "a file, which a run can go on from", "something else", next));
        }
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let next = "wait for that run to end, or choose another file";
                return Err(Failure::usage(
                    path.display(),
                    "a file for this run alone",
                    "one another run has open",
                    next,
                ));
            }
            Err(TryLockError::Error(e)) => return Err(fail(e)),
        }
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).map_err(fail)?;
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let mut done = BTreeSet::new();
        for (n, line) in bytes[..whole].split(|b| *b == b'\n').enumerate().filter(|(_, l)| !l.is_empty()) {
            let row: Option<Value> = serde_json::from_slice(line).ok();
            let Some(id) = row.as_ref().and_then(|r| r.get("id")) else {
                let got = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
                let next = "name a file of an earlier run, or one that does not exist";
                return Err(Failure::usage(format!("{}:{}", path.display(), n + 1), "a row with an `id`", got, next));
            };
            done.insert(id.to_string());
        }
        if whole < bytes.len() {
            file.set_len(whole as u64).map_err(fail)?;
        }
        file.seek(SeekFrom::Start(whole as u64)).map_err(fail)?;
        Ok(Journal { path: path.to_path_buf(), file, done })
    }

    /// Adds a line; it is on the disk when this returns.
    ///
    /// # Errors
    /// A full disk.
    pub fn add(&mut self, line: &str) -> Result<(), Failure> {
        let bytes = [line.as_bytes(), b"\n"].concat();
        self.file.write_all(&bytes).and_then(|()| self.file.sync_data()).map_err(|e| {
            let next = "make room; the same command goes on from here";
            Failure::environment(self.path.display(), "a file to append to", e, next)
        })
    }
}
