//! Tuning records on disk: one file of JSON lines a key, every candidate with its outcome.
//!
//! The first line holds the key and the driver's version, the others one candidate each. Loading compares every field of
//! the key and each chosen record's kernel hash, and refuses what differs; a different driver is a warning. Files are
//! replaced whole, under a lock; while a search runs, after each candidate, so that what was measured survives its end.

use super::model::Modelled;
use super::shipped;
use crate::compile::{hash, write_atomically};
use crate::device::{Device, DeviceInfo, lock};
use crate::error::{Error, Result};
use crate::measure::Measurement;
use kiln_codegen::ir::hash::canonical_hex;
use kiln_codegen::spec::{BuildRequest, Configs, KernelDef, ParamFacts};
use kiln_codegen::tune::{Config, ConfigValue};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Everything a tuning result depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Kernel.
    pub kernel: String,
    /// Hash of its IR with the default config and these fixed dimensions.
    pub kernel_hash: String,
    /// Dtypes of its type parameters.
    pub dtypes: BTreeMap<String, String>,
    /// Fixed dimensions.
    pub fixed: BTreeMap<String, usize>,
    /// Dynamic dimensions, rounded up to powers of two and one and a half times those.
    pub bucket: BTreeMap<String, usize>,
    /// Target.
    pub target: String,
    /// Hardware.
    pub device: String,
    /// Compute capability, `9.0`, or empty.
    pub capability: String,
    /// Multiprocessors, or threads of the VM.
    pub units: usize,
    /// Compiler and version.
    pub compiler: String,
}

impl Key {
    /// The key of a kernel's problem on a device. `dims` are what its operator asks a config for.
    pub fn new(kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>, device: &DeviceInfo, compiler: &str) -> Self {
        let info = kernel.info();
        let fixed: Vec<&str> = info.dims.iter().filter(|d| d.fixed).map(|d| d.name.as_str()).collect();
        let value = |name: &str| dims.get(name).copied().unwrap_or(0);
        let dynamic = dims.iter().filter(|(n, _)| !fixed.contains(&n.as_str()));
        Key {
            kernel: info.name.clone(),
            kernel_hash: config_hash(kernel, dims, &kernel.space().default_config()),
            dtypes: info.dtypes.iter().map(|(n, d)| (n.clone(), d.to_string())).collect(),
            fixed: fixed.iter().map(|n| (n.to_string(), value(n))).collect(),
            bucket: dynamic.map(|(n, &x)| (n.clone(), bucket(x))).collect(),
            target: device.target.name().into(),
            device: device.model.clone(),
            capability: device.capability.map_or(String::new(), |(major, minor)| format!("{major}.{minor}")),
            units: device.units,
            compiler: compiler.into(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "kernel": self.kernel, "kernel_hash": self.kernel_hash, "dtypes": self.dtypes, "fixed": self.fixed,
            "bucket": self.bucket, "target": self.target, "device": self.device, "capability": self.capability,
            "units": self.units, "compiler": self.compiler,
        })
    }

    /// Name of the key's file.
    pub(super) fn file_name(&self) -> String {
        name_of(&self.to_json())
    }
}

/// The power of two, or one and a half times one, that a size is rounded up to.
fn bucket(x: usize) -> usize {
    let power = x.next_power_of_two();
    if x > 1 && x <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// Name of the file of a key in JSON.
pub(super) fn name_of(key: &Value) -> String {
    let hash = hash(&[key.to_string().as_bytes()]);
    format!("{}-{}.jsonl", key["kernel"].as_str().unwrap_or_default(), &hash[..16])
}

/// Hash of a kernel's IR for a config: the build every launch of these dimensions starts from, without launch facts. A
/// kernel that does not build this way is known by its declaration.
pub fn config_hash(kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>, config: &Config) -> String {
    let info = kernel.info();
    let fact = ParamFacts { present: true, align_bytes: 16, contiguous: true, tma: false, stride_multiples: vec![] };
    let request = BuildRequest {
        config: config.clone(),
        fixed: info
            .dims
            .iter()
            .filter(|d| d.fixed)
            .map(|d| (d.name.clone(), dims.get(&d.name).copied().unwrap_or(0)))
            .collect(),
        multiples: BTreeMap::new(),
        facts: vec![fact; info.params.len()],
        wide_index: false,
    };
    match kernel.build(&request) {
        Ok(ir) => canonical_hex(&ir),
        Err(_) => hash(&[format!("{info:?} {config}").as_bytes()]),
    }
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Right and measured.
    Ok(Measurement),
    /// The kernel, the compiler's bounds or the device do not take this config.
    Refused(String),
    /// It ran and gave a wrong result, or broke.
    Failed(String),
}

/// A candidate with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Configuration.
    pub config: Config,
    /// Hash of the IR it was measured with.
    pub hash: String,
    /// Outcome.
    pub status: Status,
}

impl Record {
    /// Median time, if it was measured.
    pub fn median_us(&self) -> Option<f64> {
        match &self.status {
            Status::Ok(m) => Some(m.median_us),
            Status::Refused(_) | Status::Failed(_) => None,
        }
    }

    fn to_json(&self) -> Value {
        let mut line = Map::new();
        line.insert("config".into(), config_json(&self.config));
        line.insert("hash".into(), json!(self.hash));
        let rest = match &self.status {
            Status::Ok(m) => json!({
                "status": "ok", "median_us": m.median_us, "min_us": m.min_us, "p95_us": m.p95_us, "calls": m.calls,
                "sets": m.sets, "timer": m.timer, "mode": m.mode,
            }),
            Status::Refused(reason) => json!({ "status": "refused", "reason": reason }),
            Status::Failed(reason) => json!({ "status": "failed", "reason": reason }),
        };
        if let Value::Object(rest) = rest {
            line.extend(rest);
        }
        Value::Object(line)
    }

    fn from_json(v: &Value) -> Option<Record> {
        let number = |n: &str| v[n].as_f64();
        let count = |n: &str| v[n].as_u64().map(|x| x as usize);
        let reason = || v["reason"].as_str().map(str::to_owned);
        let status = match v["status"].as_str()? {
            "ok" => Status::Ok(Measurement {
                median_us: number("median_us")?,
                min_us: number("min_us")?,
                p95_us: number("p95_us")?,
                calls: count("calls")?,
                sets: count("sets")?,
                timer: ["graph", "wall"].into_iter().find(|t| v["timer"] == **t)?,
                mode: ["burst", "sustained"].into_iter().find(|m| v["mode"] == **m)?,
            }),
            "refused" => Status::Refused(reason()?),
            "failed" => Status::Failed(reason()?),
            _ => return None,
        };
        Some(Record { config: config_from_json(&v["config"])?, hash: v["hash"].as_str()?.into(), status })
    }
}

/// A config as a JSON object.
pub fn config_json(config: &Config) -> Value {
    let value = |v: &ConfigValue| match v {
        ConfigValue::Int(x) => json!(x),
        ConfigValue::Bool(x) => json!(x),
        ConfigValue::Word(x) => json!(x),
    };
    Value::Object(config.0.iter().map(|(k, v)| (k.clone(), value(v))).collect())
}

/// Reads [`config_json`].
pub fn config_from_json(v: &Value) -> Option<Config> {
    let value = |v: &Value| match v {
        Value::Number(n) => n.as_u64().map(|x| ConfigValue::Int(x as usize)),
        Value::Bool(b) => Some(ConfigValue::Bool(*b)),
        Value::String(s) => Some(ConfigValue::Word(s.clone())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    v.as_object()?.iter().map(|(k, v)| Some((k.clone(), value(v)?))).collect::<Option<_>>().map(Config)
}

/// Records of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Driver they were measured with.
    pub driver: String,
    /// All candidates.
    pub records: Vec<Record>,
    /// The search came to its end: every candidate is here, and the fastest were measured in turns.
    pub complete: bool,
}

impl Loaded {
    /// The fastest right candidate.
    pub fn best(&self) -> Option<&Record> {
        self.records
            .iter()
            .filter(|r| r.median_us().is_some())
            .min_by(|a, b| a.median_us().unwrap_or(f64::MAX).total_cmp(&b.median_us().unwrap_or(f64::MAX)))
    }
}

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Records in a folder, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Records { dir: dir.into() }
    }

    /// File of a key.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(key.file_name())
    }

    /// Replaces the records of a key by those of a whole search.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn store(&self, key: &Key, driver: &str, records: &[Record]) -> Result<PathBuf> {
        self.put(key, driver, records, true)
    }

    /// Replaces the records of a key by those of a search that goes on.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn store_unfinished(&self, key: &Key, driver: &str, records: &[Record]) -> Result<PathBuf> {
        self.put(key, driver, records, false)
    }

    fn put(&self, key: &Key, driver: &str, records: &[Record], complete: bool) -> Result<PathBuf> {
        fs::create_dir_all(&self.dir).map_err(Error::io("create", &self.dir))?;
        let lock_path = self.dir.join("lock");
        let file = fs::File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
        // Held until the file is closed at the end of this function.
        file.lock().map_err(Error::io("lock", &lock_path))?;
        let mut text = format!("{}\n", json!({ "v": 1, "key": key.to_json(), "driver": driver, "complete": complete }));
        for r in records {
            text += &format!("{}\n", r.to_json());
        }
        let path = self.path(key);
        write_atomically(&self.dir, &path, text.as_bytes()).map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// Records of a key; `None` if there are none.
    ///
    /// # Errors
    /// A file of another key, or one that cannot be read.
    pub fn load(&self, key: &Key) -> Result<Option<Loaded>> {
        let path = self.path(key);
        if path.is_file() { read(&path, key).map(Some) } else { Ok(None) }
    }

    /// What an earlier search of a key has left, for one that goes on from there: whatever can be read, and what could not.
    /// A file that does not belong to the key counts as none.
    pub fn salvage(&self, key: &Key) -> (Option<Loaded>, Vec<String>) {
        let path = self.path(key);
        let Ok(text) = fs::read_to_string(&path) else { return (None, vec![]) };
        let lost = |what: String| format!("{}: {what}", path.display());
        let mut lines = text.lines();
        let header: Option<Value> = lines.next().and_then(|l| serde_json::from_str(l).ok());
        let Some(header) = header.filter(|h| h["v"] == 1 && differences(&key.to_json(), &h["key"]).is_empty()) else {
            return (None, vec![lost("its first line is damaged; the search starts anew".into())]);
        };
        let all: Vec<Option<Record>> =
            lines.map(|l| serde_json::from_str(l).ok().as_ref().and_then(Record::from_json)).collect();
        let damaged = all.iter().filter(|r| r.is_none()).count();
        let notes =
            (damaged > 0).then(|| lost(format!("{damaged} damaged lines; their candidates are measured again")));
        let loaded = Loaded {
            driver: header["driver"].as_str().unwrap_or_default().into(),
            records: all.into_iter().flatten().collect(),
            complete: header["complete"] == true,
        };
        (Some(loaded), notes.into_iter().collect())
    }

    /// All files with their keys as JSON, sorted by name; files that are no records are left out.
    pub fn list(&self) -> Vec<(PathBuf, Value)> {
        let mut all: Vec<_> = fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .filter_map(|e| e.ok())
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
            .filter_map(|p| {
                let text = fs::read_to_string(&p).ok()?;
                let header: Value = serde_json::from_str(text.lines().next()?).ok()?;
                Some((p, header.get("key")?.clone()))
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Why a kernel's records do not serve a key: the first field of the nearest record that differs.
    pub fn why_not(&self, key: &Key) -> Option<String> {
        let want = key.to_json();
        self.list()
            .into_iter()
            .filter(|(_, have)| have["kernel"] == key.kernel)
            .map(|(_, have)| differences(&want, &have))
            .min_by_key(Vec::len)
            .and_then(|d| d.into_iter().next())
            .map(|(field, want, have)| format!("the nearest record has {field} {have}, not {want}"))
    }
}

/// Fields of a key that differ: name, wanted, found.
fn differences(want: &Value, have: &Value) -> Vec<(String, String, String)> {
    let fields = want.as_object().into_iter().flatten();
    fields
        .filter(|(name, w)| have.get(name.as_str()) != Some(w))
        .map(|(name, w)| (name.clone(), w.to_string(), have.get(name).unwrap_or(&Value::Null).to_string()))
        .collect()
}

/// Reads a file and verifies that it belongs to a key.
///
/// # Errors
/// The first field that differs; a line that is no record.
pub fn read(path: &Path, key: &Key) -> Result<Loaded> {
    parse(path, &fs::read_to_string(path).map_err(Error::io("read", path))?, key)
}

/// [`read`], of a text.
pub(super) fn parse(path: &Path, text: &str, key: &Key) -> Result<Loaded> {
    let broken = |line: usize| Error::Record {
        path: path.to_path_buf(),
        field: format!("line {}", line + 1),
        expected: "to be a record".into(),
        got: "something else".into(),
    };
    let mut lines = text.lines().enumerate();
    let header: Value = lines.next().and_then(|(_, l)| serde_json::from_str(l).ok()).ok_or_else(|| broken(0))?;
    if header["v"] != 1 {
        return Err(broken(0));
    }
    if let Some((field, expected, got)) = differences(&key.to_json(), &header["key"]).into_iter().next() {
        return Err(Error::Record { path: path.to_path_buf(), field, expected, got });
    }
    let records = lines
        .map(|(i, l)| {
            let v: Option<Value> = serde_json::from_str(l).ok();
            v.as_ref().and_then(Record::from_json).ok_or_else(|| broken(i))
        })
        .collect::<Result<_>>()?;
    // Files of before there was this field were only written by whole searches.
    let complete = header["complete"] != false;
    Ok(Loaded { driver: header["driver"].as_str().unwrap_or_default().into(), records, complete })
}

/// Chooses the fastest recorded config, of this machine's records and then of the shipped ones. Where there is none it
/// calculates one for a GPU, and takes the default elsewhere; with a note.
#[derive(Debug)]
pub struct Tuned {
    records: Records,
    device: DeviceInfo,
    compiler: String,
    /// For GPUs of a kind that has a model.
    modelled: Option<Modelled>,
    notes: Mutex<Vec<String>>,
    used: Mutex<Vec<String>>,
}

impl Tuned {
    /// Records in a folder for a device.
    ///
    /// # Errors
    /// A GPU without a compiler on this machine.
    pub fn new(records: Records, device: &Device) -> Result<Self> {
        let info = device.info();
        Ok(Tuned {
            records,
            modelled: info.capability.and_then(|_| Modelled::new(info.target).ok()),
            device: info,
            compiler: device.compiler()?,
            notes: Mutex::default(),
            used: Mutex::default(),
        })
    }

    /// Why configs without a record were chosen, and driver changes, since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notes))
    }

    /// File names of the records that chose a config since the last call, each once.
    pub fn take_used(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.used))
    }

    fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }
}

impl Configs for Tuned {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let name = &kernel.info().name;
        let unmeasured = |why: String| {
            let default = kernel.space().default_config();
            let config = self.modelled.as_ref().map_or_else(|| default.clone(), |m| m.choose(kernel, dims));
            let which = if config == default { "its default config" } else { "a calculated config" };
            self.note(format!("`{name}` runs {which}: {why}"));
            config
        };
        let key = Key::new(kernel, dims, &self.device, &self.compiler);
        let loaded =
            match self.records.load(&key).and_then(|own| own.map_or_else(|| shipped::load(&key), |l| Ok(Some(l)))) {
                Ok(Some(l)) => l,
                Ok(None) => {
                    let why = self.records.why_not(&key).unwrap_or_else(|| "it was never tuned here".into());
                    return unmeasured(why);
                }
                Err(e) => return unmeasured(e.to_string()),
            };
        if loaded.driver != self.device.driver {
            let (then, now) = (&loaded.driver, &self.device.driver);
            self.note(format!("`{name}` was tuned with driver {then}, this is {now}; consider tuning again"));
        }
        let Some(best) = loaded.best() else { return unmeasured("no config of its record could be measured".into()) };
        if best.hash != config_hash(kernel, dims, &best.config) {
            return unmeasured(format!("the kernel changed since {} was tuned", best.config));
        }
        if let Err(failed) = kernel.require(dims, &best.config) {
            return unmeasured(format!("the recorded {} is for other sizes: {}", best.config, failed.join("; ")));
        }
        let mut used = lock(&self.used);
        let file = key.file_name();
        if !used.contains(&file) {
            used.push(file);
        }
        best.config.clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn buckets_have_two_steps_an_octave() {
        assert_eq!([0, 1, 2, 3, 4, 5, 7, 2112, 3073, 4096].map(bucket), [1, 1, 2, 3, 4, 6, 8, 3072, 4096, 4096]);
    }

    pub fn key() -> Key {
        Key {
            kernel: "k".into(),
            kernel_hash: "aa".into(),
            dtypes: BTreeMap::from([("T".into(), "bf16".into())]),
            fixed: BTreeMap::from([("h".into(), 7168)]),
            bucket: BTreeMap::from([("t".into(), 4096)]),
            target: "sm_90a".into(),
            device: "NVIDIA H200".into(),
            capability: "9.0".into(),
            units: 132,
            compiler: "kiln 0.1.0, NVRTC 13.0".into(),
        }
    }

    pub fn records() -> Vec<Record> {
        let config = |rows, word: &str| {
            Config(BTreeMap::from([
                ("rows".into(), ConfigValue::Int(rows)),
                ("wide".into(), ConfigValue::Bool(true)),
                ("raster".into(), ConfigValue::Word(word.into())),
            ]))
        };
        let time = |median_us| Measurement {
            median_us,
            min_us: 1.0,
            p95_us: 9.5,
            calls: 100,
            sets: 4,
            timer: "graph",
            mode: "burst",
        };
        let record = |rows, status| Record { config: config(rows, "Panels"), hash: format!("h{rows}"), status };
        vec![
            record(1, Status::Ok(time(5.0))),
            record(2, Status::Ok(time(3.0))),
            record(4, Status::Refused("h % 4 == 0".into())),
            record(8, Status::Failed("wrong \"result\"".into())),
        ]
    }

    #[test]
    fn round_trip() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let r = Records::new(dir.path().join("tune"));
        assert_eq!(r.load(&key()).expect("no file is no error"), None);
        r.store(&key(), "580.0", &records()).expect("writable");
        let loaded = r.load(&key()).expect("readable").expect("stored");
        assert_eq!((loaded.driver.as_str(), &loaded.records), ("580.0", &records()));
        assert_eq!(loaded.best().map(|b| b.hash.as_str()), Some("h2"));
        assert_eq!(r.list().len(), 1);
        assert!(loaded.complete);
        r.store_unfinished(&key(), "580.0", &records()[..1]).expect("writable");
        assert!(!r.load(&key()).expect("readable").expect("stored").complete);
    }

    #[test]
    fn what_is_not_damaged_is_salvaged() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let r = Records::new(dir.path());
        assert_eq!(r.salvage(&key()), (None, vec![]));
        let path = r.store_unfinished(&key(), "580.0", &records()).expect("writable");
        let (whole, notes) = r.salvage(&key());
        assert_eq!((whole.map(|l| l.records), notes), (Some(records()), vec![]));

        // A line cut short, as when a disk is full.
        let text = fs::read_to_string(&path).expect("readable");
        fs::write(&path, &text[..text.len() - 20]).expect("writable");
        assert!(r.load(&key()).is_err(), "what is chosen from is whole");
        let (rest, notes) = r.salvage(&key());
        let rest = rest.expect("the other lines are fine");
        assert_eq!((rest.records.as_slice(), rest.complete), (&records()[..3], false));
        assert_eq!(notes.len(), 1);
        assert!(notes[0].ends_with("1 damaged lines; their candidates are measured again"), "{notes:?}");

        fs::write(&path, text.replacen("sm_90a", "sm_80", 1)).expect("writable");
        let (none, notes) = r.salvage(&key());
        assert_eq!(none, None);
        assert!(notes[0].ends_with("its first line is damaged; the search starts anew"), "{notes:?}");
        fs::write(&path, [0xff, 0xfe, 0]).expect("writable");
        assert_eq!(r.salvage(&key()).0, None, "no text at all");
    }

    #[test]
    fn stale_records_are_refused_by_field() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let r = Records::new(dir.path());
        let path = r.store(&key(), "", &records()).expect("writable");
        let other = Key { units: 114, ..key() };
        assert_eq!(r.load(&other).expect("no file"), None);
        assert_eq!(r.why_not(&other).as_deref(), Some("the nearest record has units 132, not 114"));
        let e = read(&path, &other).expect_err("another device");
        assert!(e.to_string().contains("expected units 114, got 132; tune again on this machine"), "{e}");
        assert_eq!(e.exit_code(), 1);
        fs::write(&path, "{}\n").expect("writable");
        assert!(r.load(&key()).expect_err("no header").to_string().contains("line 1"));
    }
}
