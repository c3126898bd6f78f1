//! What a checkpoint is, from its configuration and headers alone: kinds of layers, bytes, cache, tensors that do not fit.

use crate::checkpoint::names::{Fault, audit};
use crate::checkpoint::shard::Checkpoint;
use crate::config::{self, Config, Family, OVERLAPPING};
use crate::error::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// A checkpoint described.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its configuration.
    pub config: Config,
    /// Number of tensor files.
    pub files: usize,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes by dtype as the files spell it.
    pub bytes_by_dtype: BTreeMap<String, u64>,
    /// Layers in runs of one kind.
    pub layers: Vec<LayerRun>,
    /// Bytes of cache.
    pub cache: CacheBytes,
    /// Tensors that are missing, unknown or wrong.
    pub faults: Vec<Fault>,
}

/// Neighbouring layers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRun {
    /// First layer.
    pub first: usize,
    /// Number of layers.
    pub count: usize,
    /// Attention: `latent`, `latent, indexed`, `window`, `csa 4`, `hca 128`, ..
    pub attention: String,
    /// Feed-forward: `dense`, `experts`, `experts by token`.
    pub feed_forward: String,
}

/// Cache of a sequence, in bf16 unless quantised by the family's own format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheBytes {
    /// Grows with every token.
    pub per_token: f64,
    /// Does not grow: windows.
    pub constant: usize,
}

/// Reads a folder.
///
/// # Errors
/// A configuration with mistakes, a broken file.
pub fn inspect(dir: &Path) -> Result<Report> {
    let config = config::read(dir)?;
    let checkpoint = Checkpoint::open(dir, config.weight_block())?;
    let mut bytes_by_dtype: BTreeMap<String, u64> = BTreeMap::new();
    let mut tensors = 0;
    for e in checkpoint.files.iter().flat_map(|f| f.entries.values()) {
        *bytes_by_dtype.entry(e.dtype_name.clone()).or_default() += e.end - e.begin;
        tensors += 1;
    }
    let faults = audit(&config, &checkpoint);
    Ok(Report {
        files: checkpoint.files.len(),
        tensors,
        bytes: bytes_by_dtype.values().sum(),
        bytes_by_dtype,
        layers: layers(&config),
        cache: cache(&config),
        faults,
        config,
    })
}

/// Kinds of the layers.
pub fn layers(c: &Config) -> Vec<LayerRun> {
    let kind = |i: usize| -> (String, String) {
        match &c.family {
            Family::V3(f) => {
                let attention = if f.indexer.is_some() { "latent, indexed" } else { "latent" };
                (attention.into(), if i < f.first_k_dense_replace { "dense" } else { "experts" }.into())
            }
            Family::V4(f) => {
                let attention = match f.attention.compress_ratios.get(i) {
                    None | Some(0) => "window".to_string(),
                    Some(r @ &OVERLAPPING) => format!("csa {r}"),
                    Some(r) => format!("hca {r}"),
                };
                (attention, if i < f.num_hash_layers { "experts by token" } else { "experts" }.into())
            }
            Family::V41(f) => {
                let ratio = f.attention.compress_ratios.get(i).copied().unwrap_or(0);
                let source = |list: &[usize]| list.contains(&i);
                let role = match (source(&f.kv_source_layer_ids), source(&f.index_source_layer_ids)) {
                    (true, _) => "full",
                    (false, true) => "reindex",
                    (false, false) => "reuse",
                };
                let attention = if ratio == 0 { "window".into() } else { format!("csa2 {ratio} {role}") };
                let engram = if f.engram.layer_ids.contains(&i) { ", engram" } else { "" };
                (format!("{attention}{engram}"), "experts".into())
            }
        }
    };
    let mut runs: Vec<LayerRun> = vec![];
    for i in 0..c.num_hidden_layers {
        let (attention, feed_forward) = kind(i);
        match runs.last_mut() {
            Some(r) if r.attention == attention && r.feed_forward == feed_forward => r.count += 1,
            _ => runs.push(LayerRun { first: i, count: 1, attention, feed_forward }),
        }
    }
    runs
}

/// Bytes of a bf16 number.
const BF16: usize = 2;

/// Cache of a sequence in the formats the published code keeps: latents and index keys of V3 in bf16; an entry of V4 as e4m3 with
/// a scale for 64 channels, padded to 8 bytes, and rotated channels in bf16; its index key as e2m1 with a scale for 32; an entry
/// of V4.1 as e2m1 with a scale for 16 channels, its index key as in V4. Windows are counted like entries.
pub fn cache(c: &Config) -> CacheBytes {
    let rope = c.rope.qk_rope_head_dim;
    let index_key = |width: usize| width.div_ceil(2) + width.div_ceil(32);
    let eight = |width: usize| {
        let flat = width - rope.min(width);
        flat + flat.div_ceil(64).next_multiple_of(8) + rope * BF16
    };
    match &c.family {
        Family::V3(f) => {
            let row = (f.kv_lora_rank + rope) * BF16 + f.indexer.map_or(0, |x| x.index_head_dim * BF16);
            CacheBytes { per_token: (row * c.num_hidden_layers) as f64, constant: 0 }
        }
        Family::V4(f) => {
            let a = &f.attention;
            let entry = eight(a.head_dim);
            let of = |ratio: usize| match ratio {
                0 => 0.0,
                OVERLAPPING => (entry + index_key(a.indexer.index_head_dim)) as f64 / OVERLAPPING as f64,
                r => entry as f64 / r as f64,
            };
            let ratios = a.compress_ratios.iter().take(c.num_hidden_layers);
            let constant = c.num_hidden_layers * a.sliding_window * entry;
            CacheBytes { per_token: ratios.map(|&r| of(r)).sum(), constant }
        }
        Family::V41(f) => {
            let a = &f.attention;
            let row = a.head_dim.div_ceil(2) + a.head_dim.div_ceil(16) + index_key(a.indexer.index_head_dim);
            let ratio = |l: &usize| a.compress_ratios.get(*l).copied().unwrap_or(1).max(1);
            let per_token = f.kv_source_layer_ids.iter().map(|l| row as f64 / ratio(l) as f64).sum();
            CacheBytes { per_token, constant: c.num_hidden_layers * a.sliding_window * a.head_dim * BF16 }
        }
    }
}
