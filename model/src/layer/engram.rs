//! Engram: a memory of n-grams that layers of V4.1 look up before their attention.
//!
//! ```text
//! x_0 = id_i · m_0     x_k = x_{k−1} ⊕ id_{i−k} · m_k     row = x_k mod prime + offset      ids: compressed, pad before the start
//! keys ‖ value = wkv · rows        h_j += σ(±√|dot_j|) · value       dot_j = norm(h_j) · (q ∘ k)_j · norm(key_j) / √d
//! ```
//!
//! Bucket sizes are primes: walking layers, then lengths of n-grams, then heads, each takes the next prime above the one before
//! that no other has, from `engram_vocab_size` on for every length. The map of token ids to compressed ones comes from a
//! tokenizer and the multipliers from a generator of random numbers; both are given. Image tokens are not handled. Source:
//! Cheng et al., Conditional memory via scalable lookup, 2026.

use crate::config::{Config, Engram, V41};
use crate::error::{Error, Result};
use crate::operators::{Hashing, Operators, reshaped};
use crate::weights::{Matrix, Source};
use kiln_codegen::abi::TensorView;
use std::collections::BTreeSet;

/// What a configuration does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Compressed id of every token id.
    pub token_map: Vec<i32>,
    /// Multipliers of each layer of `engram_layer_ids`, one an id of the longest n-gram.
    pub multipliers: Vec<Vec<i64>>,
}

/// A layer's memory.
#[derive(Debug)]
pub struct Memory {
    /// Rows of all tables.
    embed: Matrix,
    w_keys: TensorView,
    w_value: TensorView,
    /// `q_weight ∘ k_weight`, `[streams, d]`.
    weight: TensorView,
    multipliers: TensorView,
    sizes: TensorView,
    offsets: TensorView,
    token_map: Vec<i32>,
    pad: i32,
    longest: usize,
    eps: f64,
}

/// Bucket sizes of each layer, by length of n-gram and then by head.
pub fn bucket_sizes(e: &Engram) -> Vec<Vec<usize>> {
    let prime = |n: usize| n > 1 && (2..).take_while(|k| k * k <= n).all(|k| !n.is_multiple_of(k));
    let mut used = BTreeSet::new();
    let mut of_layer = || {
        let mut sizes = vec![];
        for _ in 1..e.max_ngram_size {
            let mut at = e.vocab_size - 1;
            for _ in 0..e.n_heads {
                at = (at + 1..).find(|&n| prime(n) && !used.contains(&n)).unwrap_or(at);
                used.insert(at);
                sizes.push(at);
            }
        }
        sizes
    };
    e.layer_ids.iter().map(|_| of_layer()).collect()
}

impl Memory {
    /// The memory of layer `layer`, the one at place `at` among those that have one.
    ///
    /// # Errors
    /// Tables that do not fit the configuration; a tensor that cannot be read.
    pub fn load(
        source: Source<'_>,
        config: &Config,
        f: &V41,
        tables: &Tables,
        at: usize,
        layer: usize,
    ) -> Result<Self> {
        let e = &f.engram;
        let refuse = |expected: String, got: String| {
            let next = "give the tokenizer's map and the multipliers of the checkpoint".into();
            Err(Error::Input { place: config.file.clone(), expected, got, next })
        };
        let known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < e.compressed_vocab_size);
        if tables.token_map.len() != config.vocab_size || !tables.token_map.iter().all(known) {
            let want = format!("a map of {} ids to {} compressed ones", config.vocab_size, e.compressed_vocab_size);
            return refuse(want, format!("a map of {} ids", tables.token_map.len()));
        }
        let multipliers = match tables.multipliers.get(at) {
            Some(m) if m.len() == e.max_ngram_size => m,
            other => {
                let want = format!("{} multipliers for layer {layer}", e.max_ngram_size);
                return refuse(want, format!("{}", other.map_or(0, Vec::len)));
            }
        };
        let sizes = bucket_sizes(e)[at].clone();
        let offsets: Vec<usize> = sizes
            .iter()
            .scan(0, |sum, n| {
                *sum += n;
                Some(*sum - n)
            })
            .collect();
        let rows: usize = sizes.iter().sum();
        if e.num_embeddings.get(at) != Some(&rows) {
            let want = format!("{rows} rows in `engram_num_embeddings`, the sum of the bucket sizes");
            return refuse(want, format!("{:?}", e.num_embeddings.get(at)));
        }
        let name = |part: &str| format!("layers.{layer}.engram.{part}");
        let wkv = source.matrix(&name("wkv.weight"))?;
        let (streams, d) = (f.attention.hyper.hc_mult, config.hidden_size);
        let (q, k) = (source.matrix(&name("q_weight"))?, source.matrix(&name("k_weight"))?);
        let fused: Vec<f32> = q.values.iter().zip(&k.values).map(|(q, k)| q * k).collect();
        let i32s = |list: &[usize]| list.iter().map(|&x| x as i32).collect::<Vec<_>>();
        let ops = source.ops;
        Ok(Memory {
            embed: source.matrix(&name("embed.weight"))?,
            w_keys: source.upload(&wkv.pick(0..streams * d))?,
            w_value: source.upload(&wkv.pick(streams * d..(streams + 1) * d))?,
            weight: ops.upload(&[streams, d], &fused)?,
            multipliers: ops.upload_i64(&[1, e.max_ngram_size], multipliers)?,
            sizes: ops.upload_i32(&[1, e.max_ngram_size - 1, e.n_heads], &i32s(&sizes))?,
            offsets: ops.upload_i32(&[1, sizes.len()], &i32s(&offsets))?,
            pad: tables.token_map[e.pad_token_id.min(config.vocab_size - 1)],
            token_map: tables.token_map.clone(),
            longest: e.max_ngram_size,
            eps: config.rms_norm_eps,
        })
    }

    /// Rows of the tables for positions from `first` on; `history` holds every token up to the last of them.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn rows(&self, ops: &Operators, history: &[usize], first: usize) -> Result<Vec<i64>> {
        let id = |at: Option<usize>| at.map_or(self.pad, |at| self.token_map[history[at]]);
        let tokens = history.len() - first;
        let ids: Vec<i32> =
            (first..history.len()).flat_map(|at| (0..self.longest).map(move |k| at.checked_sub(k))).map(id).collect();
        let hashing = Hashing { multipliers: &self.multipliers, sizes: &self.sizes, offsets: &self.offsets };
        ops.ngram_rows(&ops.upload_i32(&[tokens, self.longest], &ids)?, &hashing)
    }

    /// The streams `h [t, n, d]` with what they take.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(&self, ops: &Operators, h: &TensorView, history: &[usize], first: usize) -> Result<TensorView> {
        let tokens = h.shape[0];
        let rows = self.rows(ops, history, first)?;
        let read = self.embed.pick(rows.iter().map(|&r| r as usize));
        let read = ops.upload(&[tokens, read.values.len() / tokens], &read.values)?;
        let read = ops.narrow_input(&read)?;
        let keys = reshaped(&ops.linear(&read, &self.w_keys)?, &h.shape);
        ops.remember(h, &keys, &ops.linear(&read, &self.w_value)?, &self.weight, self.eps)
    }
}
