//! A checkpoint's tensor files as one: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
//!
//! Opening checks every header, and the list against what the shards hold. Reading decodes to f32: bf16 as it is, e4m3 with a
//! scale for each block, e2m1 pairs with a scale for 32 columns. Not here: which tensors a model needs (`names`). Sources:
//! the safetensors description; OCP Microscaling Formats 1.0.

use super::CheckpointError;
use super::safetensors::{Entry, SafeTensors};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Columns of packed e2m1 that share a scale.
pub const FP4_GROUP: usize = 32;

/// All tensors of a folder.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder.
    pub dir: PathBuf,
    /// The files, headers checked.
    pub files: Vec<SafeTensors>,
    place: BTreeMap<String, usize>,
    block: [usize; 2],
}

impl Checkpoint {
    /// Opens the files of a folder; `block` are the rows and columns of e4m3 weights that share a scale.
    ///
    /// # Errors
    /// No file, a broken one, or a list that does not agree with the shards.
    pub fn open(dir: &Path, block: [usize; 2]) -> Result<Self, CheckpointError> {
        let index = dir.join("model.safetensors.index.json");
        let single = dir.join("model.safetensors");
        let files = match (index.is_file(), single.is_file()) {
            (true, _) => open_listed(dir, &index)?,
            (false, true) => vec![SafeTensors::open(&single)?],
            (false, false) => {
                let message = "expected model.safetensors or model.safetensors.index.json, found neither\n  \
                               next: name the folder of a checkpoint";
                return Err(CheckpointError { path: dir.to_path_buf(), tensor: None, message: message.into() });
            }
        };
        let mut place = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.entries.keys() {
                if let Some(before) = place.insert(name.clone(), i) {
                    let other = file_name(&files[before].path);
                    return Err(fault(&file.path, name, format!("is in {other} as well\n  next: fetch both again")));
                }
            }
        }
        Ok(Checkpoint { dir: dir.to_path_buf(), files, place, block })
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.place.keys().map(String::as_str)
    }

    /// A tensor's file and header entry.
    pub fn entry(&self, name: &str) -> Option<(&SafeTensors, &Entry)> {
        let file = &self.files[*self.place.get(name)?];
        file.entries.get(name).map(|e| (file, e))
    }

    /// A tensor as it is stored.
    ///
    /// # Errors
    /// One that is not there; a failing read.
    pub fn stored(&self, name: &str) -> Result<HostTensor, CheckpointError> {
        match self.place.get(name) {
            Some(&i) => self.files[i].tensor(name),
            None => Err(fault(&self.dir, name, "missing\n  next: fetch the checkpoint again".into())),
        }
    }

    /// A tensor's numbers, scales applied: shape and values in row-major order.
    ///
    /// # Errors
    /// As [`Checkpoint::stored`]; scales that are missing or do not fit.
    pub fn decoded(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let t = self.stored(name)?;
        let path = self.entry(name).map_or(&self.dir, |(f, _)| &f.path);
        let scales = |shape: [usize; 2]| -> Result<Vec<f32>, CheckpointError> {
            let scale = scale_names(name).into_iter().find(|s| self.place.contains_key(s));
            let Some(scale) = scale else {
                return Err(fault(path, name, format!("{} without scales\n  next: fetch it again", t.dtype)));
            };
            let s = self.stored(&scale)?;
            if s.shape != shape {
                return Err(fault(path, &scale, format!("expected shape {shape:?}, got {:?}", s.shape)));
            }
            Ok(numbers(&s))
        };
        let [rows, columns] = match t.shape[..] {
            [rows, columns] => [rows, columns],
            _ => [t.num_elements(), 1],
        };
        match t.dtype {
            DType::I8 | DType::U8 => {
                let wide = columns * 2;
                let s = scales([rows, wide.div_ceil(FP4_GROUP)])?;
                let groups = wide.div_ceil(FP4_GROUP);
                let code = |at: usize| if at.is_multiple_of(2) { t.data[at / 2] & 15 } else { t.data[at / 2] >> 4 };
                let value = |at: usize| e2m1(code(at)) * s[at / wide * groups + at % wide / FP4_GROUP];
                Ok((vec![rows, wide], (0..rows * wide).map(value).collect()))
            }
            DType::E4m3 if t.shape.len() == 2 => {
                // A table has a scale for 32 columns of a row, whatever the block of products (`names::Storage::Table`).
                let by_row = [rows, columns.div_ceil(FP4_GROUP)];
                let held = scale_names(name).into_iter().find_map(|s| self.entry(&s).map(|(_, e)| e.shape.clone()));
                let [block_rows, block_columns] =
                    if held.as_deref() == Some(&by_row[..]) { [1, FP4_GROUP] } else { self.block };
                let across = columns.div_ceil(block_columns);
                let s = scales([rows.div_ceil(block_rows), across])?;
                let mut x = numbers(&t);
                for (at, x) in x.iter_mut().enumerate() {
                    *x *= s[at / columns / block_rows * across + at % columns / block_columns];
                }
                Ok((t.shape.clone(), x))
            }
            _ => Ok((t.shape.clone(), numbers(&t))),
        }
    }
}

/// The two spellings of a weight's scales: `X.scale`, and `X.weight_scale_inv` of V3.
pub fn scale_names(weight: &str) -> [String; 2] {
    let stem = weight.strip_suffix("weight").unwrap_or(weight);
    [format!("{stem}scale"), format!("{stem}weight_scale_inv")]
}

fn fault(path: &Path, tensor: &str, message: String) -> CheckpointError {
    CheckpointError { path: path.to_path_buf(), tensor: Some(tensor.into()), message }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn numbers(t: &HostTensor) -> Vec<f32> {
    // Exact: no dtype of a weight is wider than f32.
    t.to_f64().into_iter().map(|x| x as f32).collect()
}

/// Value of a code of e2m1.
pub fn e2m1(code: u8) -> f32 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// The shards of a list, each with exactly the tensors it is said to have.
fn open_listed(dir: &Path, index: &Path) -> Result<Vec<SafeTensors>, CheckpointError> {
    let whole = |message: String| CheckpointError { path: index.to_path_buf(), tensor: None, message };
    let text = std::fs::read_to_string(index).map_err(|e| whole(format!("cannot read: {e}")))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| whole(format!("not valid JSON: {e}")))?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(whole("expected an object `weight_map` of tensor names and files".into()));
    };
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, file) in map {
        // A path of several parts could lead out of the folder.
        let plain = |f: &&str| !f.is_empty() && !f.contains(['/', '\\']) && *f != "." && *f != "..";
        let Some(file) = file.as_str().filter(plain) else {
            return Err(fault(index, name, format!("expected the name of a file in the folder, got {file}")));
        };
        by_file.entry(file).or_default().push(name);
    }
    let mut files = vec![];
    for (file, names) in by_file {
        let shard = SafeTensors::open(&dir.join(file))?;
        if let Some(lost) = names.iter().find(|n| !shard.entries.contains_key(**n)) {
            let message = format!("missing, though {} says it is here\n  next: fetch both again", file_name(index));
            return Err(fault(&shard.path, lost, message));
        }
        if let Some(extra) = shard.entries.keys().find(|n| map.get(*n).and_then(Value::as_str) != Some(file)) {
            return Err(fault(&shard.path, extra, format!("not listed in {}", file_name(index))));
        }
        files.push(shard);
    }
    let total: u64 = files.iter().flat_map(|f| f.entries.values()).map(|e| e.end - e.begin).sum();
    if let Some(said) = json.get("metadata").and_then(|m| m.get("total_size")).and_then(Value::as_u64)
        && said != total
    {
        return Err(whole(format!("`metadata.total_size` is {said}, but the shards hold {total} bytes of tensors")));
    }
    Ok(files)
}
