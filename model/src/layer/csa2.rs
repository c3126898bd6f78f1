//! Attention of V4.1: a window, and entries that few layers make and the others share.
//!
//! ```text
//! source:   lat_w = rmsnorm(Σ_t softmax_t(wgate x_t) ⊙ wkv_c x_t)   entry_w = rotate(lat_w, w·r)     no overlap, no offset
//!           key_w = rotate(rmsnorm(wk · lat_w), w·r)
//! picks:    the index_topk best Σ_h u_h relu(q_h · key_w) of the newest source, by the layers that are index sources
//! ```
//!
//! At `candidate_source_layer_id` the blocks of `candidate_block_size` entries with the best entry are kept, the newest block
//! always; later index sources choose inside them. Layers that are no source reuse entries and picks. The window, the
//! projections and the softmax are those of `compressed`. Source: DeepSeek-V4.1 report, as described by its ports.

use super::compressed::{Form, Queries, Windowed, WindowedState, frequencies};
use super::{Rows, rotary};
use crate::config::{Config, Indexer, V41};
use crate::error::Result;
use crate::operators::{Compress, Operators, Pairs, reshaped};
use crate::weights::Source;
use kiln_codegen::abi::TensorView;
use std::collections::BTreeSet;

/// Weights of a layer's attention.
#[derive(Debug)]
pub struct Csa2 {
    window: Windowed,
    ratio: usize,
    width: usize,
    source: Option<Entries>,
    index: Option<Index>,
}

/// Weights that make entries.
#[derive(Debug)]
struct Entries {
    /// Place among the sources.
    at: usize,
    wkv: TensorView,
    wgate: Option<TensorView>,
    norm: TensorView,
    wk: TensorView,
    k_norm: TensorView,
    /// No offsets by place in the group.
    ape: TensorView,
    frequencies: Vec<f32>,
    ratio: usize,
    eps: f64,
}

/// Weights that pick.
#[derive(Debug)]
struct Index {
    wq_b: TensorView,
    weights_proj: TensorView,
    sizes: Indexer,
    candidates: Candidates,
    block: usize,
    blocks: usize,
}

/// A layer's part in the two-level selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidates {
    /// Before the source: all entries.
    None,
    /// Keeps blocks for later layers.
    Source,
    /// Chooses inside the blocks.
    Inside,
}

/// What layers share within a sequence.
#[derive(Clone, Debug)]
pub struct Shared {
    sources: Vec<Published>,
    /// The newest source.
    owner: usize,
    /// Entries each query of the current step sees.
    pub picks: Vec<Vec<usize>>,
    /// Blocks each query of the current step chose.
    blocks: Vec<BTreeSet<usize>>,
}

/// Entries of one source, and the rows of its unfinished group.
#[derive(Clone, Debug)]
struct Published {
    entries: Rows,
    keys: Rows,
    kv: Rows,
    score: Rows,
}

impl Shared {
    /// A sequence without tokens.
    pub fn new(f: &V41) -> Self {
        let width = f.attention.head_dim;
        let empty = |_: &usize| Published {
            entries: Rows::new(width),
            keys: Rows::new(f.attention.indexer.index_head_dim),
            kv: Rows::new(width),
            score: Rows::new(width),
        };
        Shared { sources: f.kv_source_layer_ids.iter().map(empty).collect(), owner: 0, picks: vec![], blocks: vec![] }
    }
}

impl Csa2 {
    /// The attention weights of layer `i`.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config, f: &V41, i: usize) -> Result<Self> {
        let a = &f.attention;
        let ratio = a.compress_ratios.get(i).copied().unwrap_or(0);
        let prefix = format!("layers.{i}");
        let part = |name: &str| source.tensor(&format!("{prefix}.attn.{name}"));
        let entries = |at: usize| -> Result<Entries> {
            Ok(Entries {
                at,
                wkv: part("compressor.wkv.weight")?,
                wgate: (ratio > 1).then(|| part("compressor.wgate.weight")).transpose()?,
                norm: part("compressor.norm.weight")?,
                wk: part("indexer.wk.weight")?,
                k_norm: part("indexer.k_norm.weight")?,
                ape: source.ops.empty(&[ratio.max(1), a.head_dim])?,
                frequencies: frequencies(config, a, ratio),
                ratio: ratio.max(1),
                eps: config.rms_norm_eps,
            })
        };
        let index = || -> Result<Index> {
            let x = a.indexer;
            let mut weights_proj = source.matrix(&format!("{prefix}.attn.indexer.weights_proj.weight"))?;
            let scale = ((x.index_n_heads * x.index_head_dim) as f64).powf(-0.5);
            weights_proj.values.iter_mut().for_each(|w| *w = (f64::from(*w) * scale) as f32);
            Ok(Index {
                wq_b: part("indexer.wq_b.weight")?,
                weights_proj: source.upload(&weights_proj)?,
                sizes: x,
                candidates: match i.cmp(&f.candidate_source_layer_id) {
                    std::cmp::Ordering::Less => Candidates::None,
                    std::cmp::Ordering::Equal => Candidates::Source,
                    std::cmp::Ordering::Greater => Candidates::Inside,
                },
                block: f.candidate_block_size,
                blocks: f.candidate_topk_blocks,
            })
        };
        Ok(Csa2 {
            window: Windowed::load(source, config, a, &prefix, ratio, Form::V41)?,
            ratio,
            width: a.sliding_window,
            source: f.kv_source_layer_ids.iter().position(|&l| l == i).map(entries).transpose()?,
            index: f.index_source_layer_ids.contains(&i).then(index).transpose()?,
        })
    }

    /// A sequence without tokens.
    pub fn start(&self) -> WindowedState {
        self.window.start()
    }

    /// What the site gives back for the normalised `x [t, d]` at positions from `first` on.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(
        &self,
        ops: &Operators,
        x: &TensorView,
        first: usize,
        state: &mut WindowedState,
        shared: &mut Shared,
    ) -> Result<TensorView> {
        let new = self.window.queries(ops, x, first)?;
        self.window.remember(ops, x, first, state)?;
        if let Some(source) = &self.source {
            source.push(ops, x, &mut shared.sources[source.at])?;
            shared.owner = source.at;
        }
        if let Some(index) = &self.index {
            index.select(ops, x, &new, self.ratio.max(1), shared)?;
        }
        let (none, empty) = (vec![vec![]; new.positions.len()], Rows::new(0));
        let (picks, entries) =
            if self.ratio == 0 { (&none, &empty) } else { (&shared.picks, &shared.sources[shared.owner].entries) };
        let y = self.window.attend(ops, &new, picks, state.window(), entries)?;
        state.forget(self.width);
        Ok(y)
    }
}

impl Entries {
    /// Takes in the rows of new tokens; whole groups become entries and index keys.
    fn push(&self, ops: &Operators, x: &TensorView, p: &mut Published) -> Result<()> {
        let r = self.ratio;
        let kv = ops.download(&ops.linear(x, &self.wkv)?)?;
        let score = match &self.wgate {
            Some(wgate) => ops.download(&ops.linear(x, wgate)?)?,
            // Groups of one: any score weighs one.
            None => vec![0.0; kv.len()],
        };
        p.kv.extend(&kv);
        p.score.extend(&score);
        let whole = p.kv.len() / r;
        if whole == 0 {
            return Ok(());
        }
        let old = p.entries.len();
        let positions: Vec<usize> = (old..old + whole).map(|w| w * r).collect();
        let table = rotary::table(ops, &self.frequencies, &positions, 1.0)?;
        let [mean, entries] = ops.compress(&Compress {
            kv: &p.kv.upload_first(ops, whole * r)?,
            score: &p.score.upload_first(ops, whole * r)?,
            ape: &self.ape,
            norm: &self.norm,
            table: &table,
            ratio: r,
            overlap: false,
            eps: self.eps,
        })?;
        let lat = ops.rmsnorm(&mean, Some(&self.norm), self.eps)?;
        let key = ops.rmsnorm(&ops.linear(&lat, &self.wk)?, Some(&self.k_norm), self.eps)?;
        p.entries.extend(&ops.download(&ops.entry(&entries, 2 * self.frequencies.len())?)?);
        let key = ops.index_operand(&ops.rope(&key, &table, Pairs::Neighbours, false)?)?;
        p.keys.extend(&ops.download(&key)?);
        p.kv.drop_first(whole * r);
        p.score.drop_first(whole * r);
        Ok(())
    }
}

impl Index {
    /// Publishes the entries each query sees.
    fn select(&self, ops: &Operators, x: &TensorView, new: &Queries, ratio: usize, shared: &mut Shared) -> Result<()> {
        let (tokens, sizes) = (new.positions.len(), self.sizes);
        let keys = &shared.sources[shared.owner].keys;
        let n = keys.len();
        if n == 0 {
            shared.picks = vec![vec![]; tokens];
            shared.blocks = vec![BTreeSet::new(); tokens];
            return Ok(());
        }
        let q = reshaped(&ops.narrow(&new.low, &self.wq_b)?, &[tokens, sizes.index_n_heads, sizes.index_head_dim]);
        let q = ops.index_operand(&ops.rope(&q, &new.table, Pairs::Neighbours, false)?)?;
        let u = ops.linear(x, &self.weights_proj)?;
        let ends: Vec<i32> = new.positions.iter().map(|&p| ((p + 1) / ratio) as i32).collect();
        let mut scores = ops.index_scores(&q, &keys.upload(ops)?, &u, &ends)?;
        match self.candidates {
            Candidates::None => {}
            Candidates::Source => shared.blocks = self.best_blocks(ops, &scores, &ends)?,
            Candidates::Inside => {
                // Entries outside of a query's blocks are out of reach: minus infinity, as for those it does not see.
                let mut values = ops.download(&scores)?;
                for (row, blocks) in values.chunks_mut(n).zip(&shared.blocks) {
                    for (j, score) in row.iter_mut().enumerate() {
                        if !blocks.contains(&(j / self.block)) {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                }
                scores = ops.upload(&[tokens, n], &values)?;
            }
        }
        let picks = ops.topk(&scores, sizes.index_topk, &ends)?;
        let reach =
            |t: usize, j: usize| self.candidates != Candidates::Inside || shared.blocks[t].contains(&(j / self.block));
        shared.picks = picks
            .chunks(sizes.index_topk)
            .enumerate()
            .map(|(t, row)| row.iter().filter_map(|&j| usize::try_from(j).ok()).filter(|&j| reach(t, j)).collect())
            .collect();
        Ok(())
    }

    /// The blocks each query keeps.
    fn best_blocks(&self, ops: &Operators, scores: &TensorView, ends: &[i32]) -> Result<Vec<BTreeSet<usize>>> {
        let (tokens, n) = (scores.shape[0], scores.shape[1]);
        let across = n.div_ceil(self.block);
        // Rows as whole blocks, so that a block is a row of its own.
        let values = ops.download(scores)?;
        let mut padded = vec![f32::NEG_INFINITY; tokens * across * self.block];
        for (to, from) in padded.chunks_mut(across * self.block).zip(values.chunks(n)) {
            to[..n].copy_from_slice(from);
        }
        let mut best = ops.row_maxima(&ops.upload(&[tokens * across, self.block], &padded)?)?;
        let visible: Vec<i32> = ends.iter().map(|&e| (e as usize).div_ceil(self.block) as i32).collect();
        for (row, &blocks) in best.chunks_mut(across).zip(&visible) {
            // The newest block always counts as best.
            if let Some(last) = (blocks as usize).checked_sub(1) {
                row[last] = f32::INFINITY;
            }
        }
        let kept = ops.topk(&ops.upload(&[tokens, across], &best)?, self.blocks, &visible)?;
        let set = |row: &[i64]| row.iter().filter_map(|&b| usize::try_from(b).ok()).collect();
        Ok(kept.chunks(self.blocks).map(set).collect())
    }
}
