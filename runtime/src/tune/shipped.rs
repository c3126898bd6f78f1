//! Records that come with Kiln, in the form `kiln tune export --best` writes: of every key the fastest config, measured on
//! the device the file is named after. They are asked when the user's own folder has nothing for a key, and as strictly:
//! a kernel, compiler or device that differs in any field has no shipped record.

use super::records::{Key, Loaded, parse};
use crate::error::Result;
use serde_json::Value;
use std::path::Path;

const FILES: [(&str, &str); 1] = [("shipped/nvidia-h200.jsonl", include_str!("shipped/nvidia-h200.jsonl"))];

/// The shipped record of a key, if there is one.
///
/// # Errors
/// A record that does not belong to the key its name stands for, or that cannot be read.
pub fn load(key: &Key) -> Result<Option<Loaded>> {
    for (name, text) in FILES {
        if let Some(loaded) = find(name, text, key)? {
            return Ok(Some(loaded));
        }
    }
    Ok(None)
}

fn find(name: &str, text: &str, key: &Key) -> Result<Option<Loaded>> {
    let file = key.file_name();
    for line in text.lines() {
        let Ok(json) = serde_json::from_str::<Value>(line) else { continue };
        if json["file"] == file.as_str() {
            let lines: Vec<_> = json["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            return parse(Path::new(name), &lines.join("\n"), key).map(Some);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::records::{Record, Records, name_of, tests::key, tests::records};
    use serde_json::json;

    #[test]
    fn a_record_is_found_by_its_whole_key() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = Records::new(dir.path()).store(&key(), "580.1", &records()).expect("stores");
        let stored = std::fs::read_to_string(&path).expect("reads");
        let line = json!({"v": 1, "file": key().file_name(), "lines": stored.lines().collect::<Vec<_>>()}).to_string();
        let loaded = find("x", &line, &key()).expect("fits").expect("is there");
        assert_eq!(loaded.best().and_then(Record::median_us), Some(3.0));
        let other = Key { units: 78, ..key() };
        assert_eq!(find("x", &line, &other).expect("no error"), None);
        let renamed = line.replace(&key().file_name(), &other.file_name());
        assert!(find("x", &renamed, &other).is_err(), "a file under a wrong name");
    }

    #[test]
    fn every_shipped_line_can_be_read() {
        for (name, text) in FILES {
            for (i, line) in text.lines().enumerate() {
                let json: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{name}:{}: {e}", i + 1));
                let header = json["lines"][0].as_str().expect("a header");
                let header: Value = serde_json::from_str(header).expect("JSON");
                assert_eq!(json["file"], name_of(&header["key"]).as_str(), "{name}:{}", i + 1);
                let best = json["lines"][1].as_str().expect("a record");
                assert!(
                    serde_json::from_str::<Value>(best).expect("JSON")["median_us"].is_number(),
                    "{name}:{}",
                    i + 1
                );
            }
        }
    }
}
