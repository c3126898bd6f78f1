//! A folder of compiled kernels, addressed by content. Safe for threads and processes at once, and safe to delete.
//!
//! The key is the hash of everything the result depends on, so entries never go stale. An entry is written aside, synced
//! and renamed; it carries its own hash, so a damaged one is found, removed and built again. A folder that cannot be
//! written gives one warning and no caching.

use crate::device::lock;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// First line of every entry; a new format gets a new one.
const MAGIC: &[u8] = b"kiln cache 1\n";

/// An entry: a text about the content, and the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What is known about the content (the compiler's log).
    pub note: String,
    /// The content.
    pub data: Vec<u8>,
}

/// A cache folder.
#[derive(Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    warnings: Mutex<Vec<String>>,
}

/// SHA-256 in hex of parts, each with its length, so that no two lists of parts collide by joining.
pub fn hash(parts: &[&[u8]]) -> String {
    let mut h = Sha256::new();
    for p in parts {
        h.update((p.len() as u64).to_le_bytes());
        h.update(p);
    }
    hex(&h.finalize())
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Cache {
    /// Opens the first folder that can be created and written.
    pub fn open(dirs: &[PathBuf]) -> Self {
        let mut refused = vec![];
        for dir in dirs {
            match probe(dir) {
                Ok(()) => return Cache { dir: Some(dir.clone()), warnings: Mutex::default() },
                Err(e) => refused.push(format!("{}: {e}", dir.display())),
            }
        }
        let text = format!(
            "compiled kernels are not cached, no folder is writable ({}); set KILN_CACHE_DIR to one that is",
            refused.join("; ")
        );
        Cache { dir: None, warnings: Mutex::new(vec![text]) }
    }

    /// The folder in use.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Warnings since the last call; each is given once.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.warnings))
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.dir.as_ref().map(|d| d.join(format!("{key}.kiln")))
    }

    /// The entry of a key. A damaged one is removed and counts as absent.
    pub fn load(&self, key: &str) -> Option<Entry> {
        let path = self.path(key)?;
        let bytes = fs::read(&path).ok()?;
        let entry = decode(key, &bytes);
        if entry.is_none() {
            // Another process may have replaced it meanwhile; then a good entry is built once more, which is harmless.
            let _ = fs::remove_file(&path);
        }
        entry
    }

    /// Stores an entry; failing is a warning, since the result is at hand anyway.
    pub fn store(&self, key: &str, entry: &Entry) {
        let (Some(dir), Some(path)) = (&self.dir, self.path(key)) else { return };
        if let Err(e) = write_atomically(dir, &path, &encode(key, entry)) {
            let mut warnings = lock(&self.warnings);
            if warnings.is_empty() {
                warnings.push(format!("cannot write to the cache {}: {e}", dir.display()));
            }
        }
    }
}

fn probe(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let path = dir.join(unique("probe"));
    fs::write(&path, b"")?;
    fs::remove_file(path)
}

/// A name no other thread or process uses at the same time.
fn unique(stem: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".{stem}.{}.{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Writes a file so that readers see the old content or the new one, never a part.
pub(crate) fn write_atomically(dir: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let aside = dir.join(unique("write"));
    let written = fs::File::create(&aside).and_then(|mut f| {
        f.write_all(bytes)?;
        f.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&aside, path));
    if done.is_err() {
        let _ = fs::remove_file(&aside);
    }
    done
}

fn encode(key: &str, entry: &Entry) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(format!("{}\n{}\n", checksum(key, entry), entry.note.len()).bytes());
    out.extend(entry.note.bytes());
    out.extend(&entry.data);
    out
}

fn checksum(key: &str, entry: &Entry) -> String {
    hash(&[key.as_bytes(), entry.note.as_bytes(), &entry.data])
}

fn decode(key: &str, bytes: &[u8]) -> Option<Entry> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, rest) = line(rest)?;
    let (len, rest) = line(rest)?;
    let (note, data) = rest.split_at_checked(len.parse().ok()?)?;
    let entry = Entry { note: String::from_utf8(note.to_vec()).ok()?, data: data.to_vec() };
    (checksum(key, &entry) == sum).then_some(entry)
}

fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&b| b == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u8) -> Entry {
        Entry { note: "log\nof two lines".into(), data: vec![n; 1000] }
    }

    #[test]
    fn round_trip_and_damage() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::open(&[dir.path().join("a/b")]);
        let key = hash(&[b"x"]);
        assert_eq!(cache.load(&key), None);
        cache.store(&key, &entry(7));
        assert_eq!(cache.load(&key), Some(entry(7)));
        let path = cache.path(&key).expect("a writable folder");
        let good = fs::read(&path).expect("stored");
        for damage in [good[..good.len() - 1].to_vec(), [&good[..], b"x"].concat(), vec![], {
            let mut flipped = good.clone();
            flipped[500] ^= 1;
            flipped
        }] {
            fs::write(&path, damage).expect("writable");
            assert_eq!(cache.load(&key), None);
            assert!(!path.exists(), "a damaged entry is removed");
        }
        fs::write(cache.path("other").expect("a folder"), &good).expect("writable");
        assert_eq!(cache.load("other"), None, "an entry under another key is not believed");
        assert!(cache.take_warnings().is_empty());
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }

    #[test]
    fn threads_share_a_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let path = dir.path().to_path_buf();
                s.spawn(move || {
                    let cache = Cache::open(&[path]);
                    for i in 0..50u8 {
                        let key = format!("k{}", i % 5);
                        if let Some(e) = cache.load(&key) {
                            assert_eq!(e, entry(i % 5), "thread {t}");
                        }
                        cache.store(&key, &entry(i % 5));
                    }
                });
            }
        });
        let left: Vec<_> = fs::read_dir(dir.path()).expect("readable").filter_map(|e| e.ok()).collect();
        assert_eq!(left.len(), 5, "nothing is left aside: {left:?}");
    }

    #[test]
    fn no_writable_folder_is_one_warning() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("file");
        fs::write(&file, b"").expect("writable");
        // A folder below a file can be created by nobody, not even by root, for whom permissions do not count.
        let cache = Cache::open(&[file.join("cache")]);
        cache.store("k", &entry(1));
        assert_eq!(cache.load("k"), None);
        let warnings = cache.take_warnings();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("KILN_CACHE_DIR"), "{}", warnings[0]);
        assert!(cache.take_warnings().is_empty());
    }
}
