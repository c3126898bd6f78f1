//! Strict reader of `.safetensors` files.
//!
//! The format: 8 bytes little-endian header length, a JSON object `{name: {dtype, shape, data_offsets}}`, then the data.
//! Strict: every byte of the data belongs to exactly one tensor, sizes agree with dtype and shape, nothing is read past
//! the end. The whole header is checked when the file is opened, so a later read fails only if the file changes.
//! Not here: memory maps, sharded checkpoints. Source: the safetensors format description (huggingface.co/docs/safetensors).

use super::CheckpointError;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Largest header that is believed; the largest published checkpoints need a few megabytes.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Dtype as the file spells it (`BF16`).
    pub dtype_name: String,
    /// Our dtype; `None` for one that no kernel can use (`F64`, `U64`, ..).
    pub dtype: Option<DType>,
    /// Shape.
    pub shape: Vec<usize>,
    /// First byte, counted from the end of the header.
    pub begin: u64,
    /// One past the last byte, counted from the end of the header.
    pub end: u64,
}

/// An opened file: its header, checked. Data is read tensor by tensor.
#[derive(Clone, Debug)]
pub struct SafeTensors {
    /// The file.
    pub path: PathBuf,
    /// Tensors by name.
    pub entries: BTreeMap<String, Entry>,
    /// The free-form `__metadata__` of the file.
    pub metadata: BTreeMap<String, String>,
    /// Where the data begins in the file.
    pub data_start: u64,
}

/// Bits of one element of a dtype of the format, and our dtype if there is one.
fn dtype_of(name: &str) -> Option<(u64, Option<DType>)> {
    Some(match name {
        "F64" | "U64" => (64, None),
        "I64" => (64, Some(DType::I64)),
        "F32" => (32, Some(DType::F32)),
        "I32" => (32, Some(DType::I32)),
        "U32" => (32, Some(DType::U32)),
        "BF16" => (16, Some(DType::Bf16)),
        "F16" => (16, Some(DType::F16)),
        "I16" | "U16" => (16, None),
        "F8_E4M3" => (8, Some(DType::E4m3)),
        "F8_E5M2" => (8, Some(DType::E5m2)),
        "F8_E8M0" => (8, Some(DType::E8m0)),
        "I8" => (8, Some(DType::I8)),
        "U8" => (8, Some(DType::U8)),
        "BOOL" => (8, Some(DType::Bool)),
        "F4" => (4, Some(DType::E2m1)),
        _ => return None,
    })
}

/// The name the format gives to a dtype of ours.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::E4m3 => "F8_E4M3",
        DType::E5m2 => "F8_E5M2",
        DType::E2m1 => "F4",
        DType::E8m0 => "F8_E8M0",
        DType::I8 => "I8",
        DType::U8 => "U8",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::I64 => "I64",
        DType::Bool => "BOOL",
    }
}

/// The dtype of ours that the format calls `name`.
pub fn parse_dtype(name: &str) -> Option<DType> {
    dtype_of(name).and_then(|(_, d)| d)
}

impl SafeTensors {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// A file that cannot be read, is truncated, or whose header is malformed.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let fail = |message: String| CheckpointError { path: path.to_path_buf(), tensor: None, message };
        let mut file = File::open(path).map_err(|e| fail(format!("cannot open: {e}")))?;
        let file_len = file.metadata().map_err(|e| fail(format!("cannot read its size: {e}")))?.len();
        if file_len < 8 {
            return Err(fail(format!("truncated: a safetensors file has at least 8 bytes, this one has {file_len}")));
        }
        let mut length = [0u8; 8];
        file.read_exact(&mut length).map_err(|e| fail(format!("cannot read the header length: {e}")))?;
        let header_len = u64::from_le_bytes(length);
        if header_len > MAX_HEADER_BYTES || header_len > file_len - 8 {
            return Err(fail(format!(
                "truncated or no safetensors file: its header should take {header_len} bytes, but only {} follow",
                file_len - 8
            )));
        }
        let mut header = vec![0u8; header_len as usize];
        file.read_exact(&mut header).map_err(|e| fail(format!("cannot read the header: {e}")))?;
        let (entries, metadata) = parse_header(&header, file_len - 8 - header_len)
            .map_err(|(tensor, message)| CheckpointError { path: path.to_path_buf(), tensor, message })?;
        Ok(SafeTensors { path: path.to_path_buf(), entries, metadata, data_start: 8 + header_len })
    }

    /// Reads one tensor.
    ///
    /// # Errors
    /// A name that is not in the file, a dtype no kernel can use, a failing read.
    pub fn tensor(&self, name: &str) -> Result<HostTensor, CheckpointError> {
        let fail = |message: String| CheckpointError { path: self.path.clone(), tensor: Some(name.into()), message };
        let Some(entry) = self.entries.get(name) else {
            let names: Vec<_> = self.entries.keys().map(String::as_str).take(20).collect();
            return Err(fail(format!("not in the file; it has: {}", names.join(", "))));
        };
        let Some(dtype) = entry.dtype else {
            return Err(fail(format!("dtype {} is not supported by any kernel", entry.dtype_name)));
        };
        let mut file = File::open(&self.path).map_err(|e| fail(format!("cannot open: {e}")))?;
        let mut data = vec![0u8; (entry.end - entry.begin) as usize];
        file.seek(SeekFrom::Start(self.data_start + entry.begin))
            .and_then(|_| file.read_exact(&mut data))
            .map_err(|e| fail(format!("cannot read {} bytes of data: {e}", data.len())))?;
        Ok(HostTensor { dtype, shape: entry.shape.clone(), data })
    }
}

type Header = (BTreeMap<String, Entry>, BTreeMap<String, String>);

/// Checks a header against the number of data bytes behind it. Pure, so tests feed it any bytes.
///
/// # Errors
/// The tensor at fault, if one is, and the message.
pub fn parse_header(bytes: &[u8], data_len: u64) -> Result<Header, (Option<String>, String)> {
    let whole = |m: String| (None, m);
    if bytes.first() != Some(&b'{') {
        return Err(whole("the header does not begin with `{`; this is no safetensors file".into()));
    }
    let json: Value = serde_json::from_slice(bytes).map_err(|e| whole(format!("the header is not valid JSON: {e}")))?;
    let Value::Object(object) = json else {
        return Err(whole("the header is not a JSON object".into()));
    };
    let mut entries = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for (name, value) in object {
        if name == "__metadata__" {
            let Value::Object(map) = value else {
                return Err(whole("`__metadata__` is not an object of strings".into()));
            };
            for (k, v) in map {
                let Value::String(text) = v else {
                    return Err(whole(format!("`__metadata__.{k}` is not a string")));
                };
                metadata.insert(k, text);
            }
            continue;
        }
        let entry = parse_entry(&value, data_len).map_err(|m| (Some(name.clone()), m))?;
        entries.insert(name, entry);
    }
    // In order of their place, tensors must follow each other from the first data byte to the last. A name that occurs
    // twice hides one of the two ranges, so it shows here as well.
    let mut order: Vec<_> = entries.iter().collect();
    order.sort_by_key(|(_, e)| (e.begin, e.end));
    let mut at = 0u64;
    let mut before = "the start of the data";
    for (name, e) in order {
        if e.begin < at {
            return Err((
                Some(name.clone()),
                format!("overlaps `{before}`: begins at byte {}, that one ends at {at}", e.begin),
            ));
        }
        if e.begin > at {
            return Err((
                Some(name.clone()),
                format!("{} bytes between `{before}` and this tensor belong to none", e.begin - at),
            ));
        }
        at = e.end;
        before = name;
    }
    if at != data_len {
        return Err(whole(format!("the tensors take {at} bytes of data, but the file has {data_len}")));
    }
    Ok((entries, metadata))
}

fn parse_entry(value: &Value, data_len: u64) -> Result<Entry, String> {
    let Value::Object(map) = value else {
        return Err("its header entry is not an object".into());
    };
    for key in map.keys() {
        if !matches!(key.as_str(), "dtype" | "shape" | "data_offsets") {
            return Err(format!("unknown header key `{key}`; expected dtype, shape, data_offsets"));
        }
    }
    let dtype_name = map.get("dtype").and_then(Value::as_str).ok_or("`dtype` is missing or not a string")?;
    let (bits, dtype) = dtype_of(dtype_name).ok_or_else(|| format!("unknown dtype `{dtype_name}`"))?;
    let numbers = |key: &str| -> Result<Vec<u64>, String> {
        let list = map.get(key).and_then(Value::as_array).ok_or(format!("`{key}` is missing or not a list"))?;
        list.iter()
            .map(|x| x.as_u64().ok_or(format!("`{key}` holds {x}; expected whole numbers of 0 or more")))
            .collect()
    };
    let shape = numbers("shape")?;
    let offsets = numbers("data_offsets")?;
    let [begin, end] = offsets[..] else {
        return Err(format!("`data_offsets` has {} numbers; expected begin and end", offsets.len()));
    };
    if begin > end {
        return Err(format!("`data_offsets` begin at {begin} and end at {end}"));
    }
    if end > data_len {
        return Err(format!("truncated: its data ends at byte {end}, but the file has {data_len} bytes of data"));
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |n, &e| n.checked_mul(e))
        .ok_or_else(|| format!("shape {shape:?} has more elements than 64 bits can count"))?;
    let size = elements.checked_mul(bits).ok_or_else(|| format!("shape {shape:?} overflows"))?;
    if size % 8 != 0 {
        return Err(format!("shape {shape:?} of dtype {dtype_name} does not fill whole bytes"));
    }
    if size / 8 != end - begin {
        return Err(format!(
            "shape {shape:?} of dtype {dtype_name} takes {} bytes, but `data_offsets` give it {}",
            size / 8,
            end - begin
        ));
    }
    Ok(Entry {
        dtype_name: dtype_name.into(),
        dtype,
        shape: shape.into_iter().map(|e| e as usize).collect(),
        begin,
        end,
    })
}

/// Bytes of a file with these tensors, in the given order. For tests and small exports.
pub fn write(tensors: &[(String, HostTensor)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = vec![];
    for (name, t) in tensors {
        let begin = data.len();
        data.extend_from_slice(&t.data);
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": dtype_name(t.dtype), "shape": t.shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let mut text = Value::Object(header).to_string();
    // The format asks for data aligned to 8 bytes and allows trailing spaces in the header.
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(&data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes bytes to a file of this test and opens it.
    fn open(name: &str, bytes: &[u8]) -> Result<SafeTensors, CheckpointError> {
        let path = std::env::temp_dir().join(format!("kiln-safetensors-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let r = SafeTensors::open(&path);
        let loaded = r.and_then(|s| s.entries.keys().try_for_each(|n| s.tensor(n).map(drop)).map(|()| s));
        std::fs::remove_file(&path).unwrap();
        loaded
    }

    fn check(header: &str, data_len: u64, tensor: Option<&str>, want: &str) {
        let (t, m) = parse_header(header.as_bytes(), data_len).unwrap_err();
        assert_eq!(t.as_deref(), tensor, "{m}");
        assert!(m.contains(want), "expected `{want}` in: {m}");
    }

    #[test]
    fn what_is_written_reads_back() {
        let tensors: Vec<_> = DType::ALL
            .into_iter()
            .map(|d| {
                let mut t = HostTensor::zeros(d, &[3, 4]);
                t.data.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
                (d.name().to_string(), t)
            })
            .chain([("empty".to_string(), HostTensor::zeros(DType::F32, &[0, 7]))])
            .collect();
        let bytes = write(&tensors);
        let path = std::env::temp_dir().join(format!("kiln-safetensors-{}-roundtrip", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        for (name, t) in &tensors {
            assert_eq!(&file.tensor(name).unwrap(), t);
        }
        let missing = file.tensor("nope").unwrap_err().to_string();
        assert!(missing.contains("tensor `nope`: not in the file; it has: bf16"), "{missing}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn malformed_headers_name_the_tensor_and_the_reason() {
        let entry = |s: &str| format!("{{\"a\":{s}}}");
        check("[]", 0, None, "does not begin with `{`");
        check("{\"a\":", 0, None, "not valid JSON");
        check(&entry("3"), 0, Some("a"), "not an object");
        check(&entry(r#"{"dtype":"F33","shape":[],"data_offsets":[0,4]}"#), 4, Some("a"), "unknown dtype `F33`");
        check(&entry(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#), 4, Some("a"), "holds -1");
        check(&entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#), 4, Some("a"), "has 1 numbers");
        check(&entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#), 4, Some("a"), "begin at 4");
        check(&entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#), 4, Some("a"), "takes 8 bytes");
        check(&entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), 4, Some("a"), "truncated");
        check(&entry(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#), 2, Some("a"), "whole bytes");
        check(&entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}"#), 4, Some("a"), "unknown header key");
        let huge = r#"{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4]}"#;
        check(&entry(huge), 4, Some("a"), "more elements than 64 bits");
        check(&entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#), 8, None, "take 4 bytes of data");
        check(&entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#), 8, Some("a"), "belong to none");
        let overlap = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        check(overlap, 8, Some("b"), "overlaps `a`");
        // The same name twice hides the first range.
        let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        check(twice, 8, Some("a"), "belong to none");
    }

    #[test]
    fn every_truncation_of_a_file_is_refused() {
        let t = HostTensor::from_f64(DType::Bf16, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let bytes = write(&[("x".into(), t)]);
        assert!(open("whole", &bytes).is_ok());
        for cut in 0..bytes.len() {
            let e = open("cut", &bytes[..cut]).unwrap_err().to_string();
            assert!(e.contains("kiln-safetensors"), "{cut}: the message names the file: {e}");
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(open("long", &long).is_err());
        assert!(SafeTensors::open(Path::new("/nonexistent/x.safetensors")).is_err());
    }

    #[test]
    fn unsupported_dtypes_are_listed_and_refused_when_read() {
        let header = r#"{"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let e = open("f64", &bytes).unwrap_err().to_string();
        assert!(e.contains("tensor `d`: dtype F64 is not supported"), "{e}");
    }
}
