//! Reading one JSON object key by key: every mistake is kept with key, expectation, finding and next step, and a key that
//! nobody asked for is a mistake too.
//!
//! Not here: what the keys mean. A value that is wrong stands in as the smallest one that later arithmetic survives, so that
//! one reading finds all mistakes.

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

/// One mistake in a file of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Key, with dots between levels; empty for the whole file.
    pub key: String,
    /// What is allowed.
    pub expected: String,
    /// What was found.
    pub got: String,
    /// What to do.
    pub next: String,
}

/// All mistakes of a `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.problems.iter().enumerate() {
            let (line, colon) = (if i == 0 { "" } else { "\n" }, if p.key.is_empty() { "" } else { ": " });
            let key = if p.key.is_empty() { String::new() } else { format!("`{}`", p.key) };
            write!(f, "{line}{}: {key}{colon}expected {}, got {}", self.file.display(), p.expected, p.got)?;
            write!(f, "\n  next: {}", p.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// One level of the file while it is read.
#[derive(Debug)]
pub struct Reader<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
    asked: BTreeSet<String>,
    /// Mistakes so far.
    pub problems: Vec<Problem>,
}

/// A value as a message shows it: whole if it is short.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).collect::<String>() + "..." }
}

impl<'a> Reader<'a> {
    /// Starts on an object; `prefix` is its own key with a dot, or empty.
    pub fn new(map: &'a Map<String, Value>, prefix: &str) -> Self {
        Reader { map, prefix: prefix.into(), asked: BTreeSet::new(), problems: vec![] }
    }

    /// The value of a key, which is known from now on. `null` counts as left out.
    pub fn get(&mut self, key: &str) -> Option<&'a Value> {
        self.asked.insert(key.into());
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Notes a mistake.
    pub fn wrong(&mut self, key: &str, expected: impl Into<String>, got: impl Into<String>, next: impl Into<String>) {
        let key = format!("{}{key}", self.prefix);
        self.problems.push(Problem { key, expected: expected.into(), got: got.into(), next: next.into() });
    }

    fn missing(&mut self, key: &str, expected: &str) {
        self.wrong(key, expected, "nothing", "add the key as the published checkpoint has it");
    }

    /// A whole number of at least `least` that must be there.
    pub fn count(&mut self, key: &str, least: usize) -> usize {
        if self.get(key).is_none() {
            self.missing(key, &format!("a whole number of at least {least}"));
            return least;
        }
        self.count_or(key, least, least)
    }

    /// A whole number of at least `least`, or `default` if it is left out.
    pub fn count_or(&mut self, key: &str, least: usize, default: usize) -> usize {
        let Some(value) = self.get(key) else { return default };
        // Sizes beyond this have no checkpoint, and products of two of them still fit.
        match value.as_u64().filter(|&x| x < 1 << 31) {
            Some(x) if x as usize >= least => x as usize,
            _ => {
                let next = "compare with the config.json of the published checkpoint";
                self.wrong(key, format!("a whole number of at least {least}"), shown(value), next);
                least
            }
        }
    }

    /// A finite number that must be there.
    pub fn number(&mut self, key: &str, positive: bool) -> f64 {
        if self.get(key).is_none() {
            self.missing(key, "a number");
            return 1.0;
        }
        self.number_or(key, positive, 1.0)
    }

    /// A finite number, or `default` if it is left out.
    pub fn number_or(&mut self, key: &str, positive: bool, default: f64) -> f64 {
        let Some(value) = self.get(key) else { return default };
        match value.as_f64().filter(|x| x.is_finite() && (!positive || *x > 0.0)) {
            Some(x) => x,
            None => {
                let what = if positive { "a number above 0" } else { "a number" };
                self.wrong(key, what, shown(value), "compare with the config.json of the published checkpoint");
                1.0
            }
        }
    }

    /// One of some words that must be there.
    pub fn word(&mut self, key: &str, words: &[&str]) -> String {
        let expected = words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(" or ");
        let first = words.first().copied().unwrap_or_default().to_string();
        let Some(value) = self.get(key) else {
            self.missing(key, &expected);
            return first;
        };
        match value.as_str().filter(|t| words.contains(t)) {
            Some(t) => t.into(),
            None => {
                self.wrong(key, expected, shown(value), "no other value is implemented; use another checkpoint");
                first
            }
        }
    }

    /// As [`Reader::word`], but it may be left out.
    pub fn word_or(&mut self, key: &str, words: &[&str], default: &str) -> String {
        if self.get(key).is_none() { default.into() } else { self.word(key, words) }
    }

    /// A value that only this one is implemented for; it may be left out.
    pub fn only(&mut self, key: &str, want: Value) {
        if let Some(value) = self.get(key)
            && *value != want
            && (value.as_f64().is_none() || value.as_f64() != want.as_f64())
        {
            let next = "no other value is implemented; use another checkpoint";
            self.wrong(key, want.to_string(), shown(value), next);
        }
    }

    /// A list of whole numbers that must be there.
    pub fn counts(&mut self, key: &str) -> Vec<usize> {
        let expected = "a list of whole numbers of 0 or more";
        let Some(value) = self.get(key) else {
            self.missing(key, expected);
            return vec![];
        };
        let list = value.as_array().and_then(|l| {
            l.iter().map(|x| x.as_u64().filter(|&x| x < 1 << 40).map(|x| x as usize)).collect::<Option<Vec<_>>>()
        });
        list.unwrap_or_else(|| {
            self.wrong(key, expected, shown(value), "compare with the config.json of the published checkpoint");
            vec![]
        })
    }

    /// One token id or a list of them; empty if it is left out.
    pub fn token_ids(&mut self, key: &str) -> Vec<usize> {
        match self.get(key) {
            None => vec![],
            Some(Value::Array(_)) => self.counts(key),
            Some(_) => vec![self.count_or(key, 0, 0)],
        }
    }

    /// An inner object.
    pub fn object(&mut self, key: &str) -> Option<Reader<'a>> {
        let value = self.get(key)?;
        let Value::Object(map) = value else {
            self.wrong(key, "an object", shown(value), "compare with the config.json of the published checkpoint");
            return None;
        };
        Some(Reader::new(map, &format!("{}{key}.", self.prefix)))
    }

    /// Ends an inner object that [`Reader::object`] began.
    pub fn close(&mut self, inner: Reader<'_>) {
        self.problems.extend(inner.finish());
    }

    /// Keys that mean nothing for the numbers and may hold anything.
    pub fn ignore(&mut self, keys: &[&str]) {
        self.asked.extend(keys.iter().map(|k| k.to_string()));
    }

    /// All mistakes, unknown keys among them.
    pub fn finish(self) -> Vec<Problem> {
        let mut problems = self.problems;
        for (key, value) in self.map.iter().filter(|(k, _)| !self.asked.contains(*k)) {
            let near = self.asked.iter().filter(|k| distance(k, key) <= 2).min_by_key(|k| distance(k, key));
            let next = match near {
                Some(k) => format!("if `{k}` is meant, rename it; otherwise remove it"),
                None => "remove it if it changes nothing; if it changes the network, this version cannot run it".into(),
            };
            problems.push(Problem {
                key: format!("{}{key}", self.prefix),
                expected: "only keys this family knows".into(),
                got: format!("an unknown key with the value {}", shown(value)),
                next,
            });
        }
        problems
    }
}

/// Letters to insert, remove or change to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
