//! Attention of V4: a window of recent tokens, and behind it entries that stand for groups of tokens.
//!
//! ```text
//! qr = rmsnorm(wq_a x)     q = rotate(rms(wq_b qr))     kv = rotate(rmsnorm(wkv x))      keys are values too
//! entry_w = rotate(rmsnorm(Σ_t softmax_t(wgate x_t + ape) ⊙ wkv_c x_t), w·r)             t in group w of r tokens
//! ratio 4: two halves, the group before counts with the first; and an indexer picks the entries
//! o = Σ_j p_j k_j,  p = exp(s) / (Σ exp(s) + exp(sink))       y = wo_b · concat_g(wo_a_g · rotate⁻¹(o)_g)
//! ```
//!
//! Query `t` sees positions `t−W+1 ..= t` and, of the entries below `(t+1) div r`, all (HCA) or the `index_topk` with the best
//! `Σ_h u_h relu(q_h · k_w)` (CSA). State: the last W keys, the rows of the unfinished group, with overlap those of the group
//! before, and all entries. Source: DeepSeek-V4 report.

use super::latent::picked;
use super::{Rows, lists, rotary};
use crate::config::{Compressed, Config, Indexer, OVERLAPPING};
use crate::error::Result;
use crate::operators::{Attend, Compress, Operators, Pairs, RopeTable, reshaped};
use crate::weights::Source;
use kiln_codegen::abi::TensorView;

/// Weights of a layer's attention.
#[derive(Debug)]
pub struct Windowed {
    wq_a: TensorView,
    q_norm: TensorView,
    wq_b: TensorView,
    wkv: TensorView,
    kv_norm: TensorView,
    attn_sink: TensorView,
    /// `[groups, o_lora_rank, heads of a group · head_dim]`.
    wo_a: TensorView,
    wo_b: TensorView,
    compressor: Option<Compressor>,
    indexer: Option<Index>,
    d: Dims,
}

/// What is read besides the weights every layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// V4: heads of queries are normalised; the layer's ratio says whether it has a compressor and an indexer.
    V4,
    /// V4.1: heads are not normalised; entries come from `csa2`.
    V41,
}

/// Sizes and constants.
#[derive(Clone, Debug)]
struct Dims {
    form: Form,
    heads: usize,
    head_dim: usize,
    window: usize,
    groups: usize,
    o_rank: usize,
    eps: f64,
    frequencies: Vec<f32>,
}

/// Weights of one compressor.
#[derive(Debug)]
struct Compressor {
    ape: TensorView,
    wkv: TensorView,
    wgate: TensorView,
    norm: TensorView,
    ratio: usize,
    width: usize,
    kind: Kind,
}

/// What entries are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Keys and values of attention.
    Keys,
    /// Keys of the indexer.
    Index,
}

/// Weights of an indexer.
#[derive(Debug)]
struct Index {
    compressor: Compressor,
    wq_b: TensorView,
    /// With the factors `head_dim^-½ · heads^-½` in it.
    weights_proj: TensorView,
    sizes: Indexer,
}

/// What a layer remembers of a sequence.
#[derive(Clone, Debug)]
pub struct WindowedState {
    /// Keys of the last positions.
    window: Rows,
    entries: Pool,
    index: Pool,
}

/// State of one compressor.
#[derive(Clone, Debug)]
struct Pool {
    /// Rows of the group before (if `before`) and of the unfinished one.
    kv: Rows,
    score: Rows,
    before: bool,
    entries: Rows,
}

/// Frequencies of a layer: those of compressed layers are another base, stretched.
pub(super) fn frequencies(config: &Config, f: &Compressed, ratio: usize) -> Vec<f32> {
    let rd = config.rope.qk_rope_head_dim;
    if ratio == 0 {
        rotary::frequencies(rd, config.rope.rope_theta, None)
    } else {
        rotary::frequencies(rd, f.compress_rope_theta, config.rope.rope_scaling.as_ref())
    }
}

impl Compressor {
    fn load(source: Source<'_>, prefix: &str, ratio: usize, width: usize, kind: Kind) -> Result<Self> {
        let part = |name: &str| source.tensor(&format!("{prefix}.{name}"));
        Ok(Compressor {
            ape: part("ape")?,
            wkv: part("wkv.weight")?,
            wgate: part("wgate.weight")?,
            norm: part("norm.weight")?,
            ratio,
            width,
            kind,
        })
    }

    fn start(&self) -> Pool {
        let wide = self.ape.shape[1];
        Pool { kv: Rows::new(wide), score: Rows::new(wide), before: false, entries: Rows::new(self.width) }
    }

    /// Takes in the rows of new tokens; whole groups become entries.
    fn push(&self, ops: &Operators, x: &TensorView, d: &Dims, pool: &mut Pool) -> Result<()> {
        let r = self.ratio;
        pool.kv.extend(&ops.download(&ops.linear(x, &self.wkv)?)?);
        pool.score.extend(&ops.download(&ops.linear(x, &self.wgate)?)?);
        let (whole, old) = (pool.kv.len() / r, usize::from(pool.before));
        if whole <= old {
            return Ok(());
        }
        // The group before is in the rows, so its entry is made again and not kept.
        let first = pool.entries.len() - old;
        let positions: Vec<usize> = (first..first + whole).map(|w| w * r).collect();
        let overlap = r == OVERLAPPING;
        let [_, made] = ops.compress(&Compress {
            kv: &pool.kv.upload_first(ops, whole * r)?,
            score: &pool.score.upload_first(ops, whole * r)?,
            ape: &self.ape,
            norm: &self.norm,
            table: &rotary::table(ops, &d.frequencies, &positions, 1.0)?,
            ratio: r,
            overlap,
            eps: d.eps,
        })?;
        let made = match self.kind {
            Kind::Keys => ops.entry(&made, 2 * d.frequencies.len())?,
            Kind::Index => ops.index_operand(&made)?,
        };
        pool.entries.extend(&ops.download(&made)?[old * self.width..]);
        let kept = usize::from(overlap);
        pool.kv.drop_first((whole - kept) * r);
        pool.score.drop_first((whole - kept) * r);
        pool.before = overlap;
        Ok(())
    }
}

impl Windowed {
    /// The attention weights under `PREFIX.attn`.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(
        source: Source<'_>,
        config: &Config,
        f: &Compressed,
        prefix: &str,
        ratio: usize,
        form: Form,
    ) -> Result<Self> {
        let a = format!("{prefix}.attn");
        let part = |name: &str| source.tensor(&format!("{a}.{name}"));
        let frequencies = frequencies(config, f, ratio);
        let own = if form == Form::V4 { ratio } else { 0 };
        let compressor = |p: &str, width, kind| Compressor::load(source, &format!("{a}.{p}"), ratio, width, kind);
        let index = || -> Result<Index> {
            let x = f.indexer;
            let mut weights_proj = source.matrix(&format!("{a}.indexer.weights_proj.weight"))?;
            let scale = ((x.index_n_heads * x.index_head_dim) as f64).powf(-0.5);
            weights_proj.values.iter_mut().for_each(|w| *w = (f64::from(*w) * scale) as f32);
            Ok(Index {
                compressor: compressor("indexer.compressor", x.index_head_dim, Kind::Index)?,
                wq_b: part("indexer.wq_b.weight")?,
                weights_proj: source.upload(&weights_proj)?,
                sizes: x,
            })
        };
        let wo_a = source.matrix(&format!("{a}.wo_a.weight"))?;
        Ok(Windowed {
            wq_a: part("wq_a.weight")?,
            q_norm: part("q_norm.weight")?,
            wq_b: part("wq_b.weight")?,
            wkv: part("wkv.weight")?,
            kv_norm: part("kv_norm.weight")?,
            attn_sink: part("attn_sink")?,
            wo_a: source.upload_blocks(&wo_a, f.o_lora_rank)?,
            wo_b: part("wo_b.weight")?,
            compressor: (own > 0).then(|| compressor("compressor", f.head_dim, Kind::Keys)).transpose()?,
            indexer: (own == OVERLAPPING).then(index).transpose()?,
            d: Dims {
                form,
                heads: config.num_attention_heads,
                head_dim: f.head_dim,
                window: f.sliding_window,
                groups: f.o_groups,
                o_rank: f.o_lora_rank,
                eps: config.rms_norm_eps,
                frequencies,
            },
        })
    }

    /// A sequence without tokens.
    pub fn start(&self) -> WindowedState {
        let empty =
            || Pool { kv: Rows::new(0), score: Rows::new(0), before: false, entries: Rows::new(self.d.head_dim) };
        WindowedState {
            window: Rows::new(self.d.head_dim),
            entries: self.compressor.as_ref().map_or_else(empty, Compressor::start),
            index: self.indexer.as_ref().map_or_else(empty, |x| x.compressor.start()),
        }
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
    ) -> Result<TensorView> {
        let new = self.queries(ops, x, first)?;
        self.remember(ops, x, first, state)?;
        if let Some(c) = &self.compressor {
            c.push(ops, x, &self.d, &mut state.entries)?;
        }
        let picks = match (&self.compressor, &self.indexer) {
            (None, _) => vec![vec![]; new.positions.len()],
            (Some(c), None) => new.positions.iter().map(|p| (0..(p + 1) / c.ratio).collect()).collect(),
            (Some(_), Some(index)) => index.select(ops, x, &new, &self.d, &mut state.index)?,
        };
        let y = self.attend(ops, &new, &picks, &state.window, &state.entries.entries)?;
        state.forget(self.d.window);
        Ok(y)
    }

    /// Queries of new tokens.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub(super) fn queries(&self, ops: &Operators, x: &TensorView, first: usize) -> Result<Queries> {
        let (d, tokens) = (&self.d, x.shape[0]);
        let positions: Vec<usize> = (first..first + tokens).collect();
        let table = rotary::table(ops, &d.frequencies, &positions, 1.0)?;
        let low = ops.rmsnorm(&ops.narrow(x, &self.wq_a)?, Some(&self.q_norm), d.eps)?;
        let q = reshaped(&ops.narrow(&low, &self.wq_b)?, &[tokens, d.heads, d.head_dim]);
        let q = match d.form {
            Form::V4 => ops.rmsnorm(&q, None, d.eps)?,
            Form::V41 => q,
        };
        let q = ops.rope(&q, &table, Pairs::Neighbours, false)?;
        Ok(Queries { q, low, positions, table })
    }

    /// Keys of tokens at positions from `first` on.
    fn keys(&self, ops: &Operators, x: &TensorView, first: usize) -> Result<Vec<f32>> {
        let positions: Vec<usize> = (first..first + x.shape[0]).collect();
        let table = rotary::table(ops, &self.d.frequencies, &positions, 1.0)?;
        let kv = ops.rmsnorm(&ops.narrow(x, &self.wkv)?, Some(&self.kv_norm), self.d.eps)?;
        let kv = ops.rope(&kv, &table, Pairs::Neighbours, false)?;
        ops.download(&ops.key(&kv, 2 * self.d.frequencies.len())?)
    }

    /// Adds keys to the window. The old ones stay until [`WindowedState::forget`]: early queries of the same step see them.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn remember(&self, ops: &Operators, x: &TensorView, first: usize, state: &mut WindowedState) -> Result<()> {
        state.window.extend(&self.keys(ops, x, first)?);
        Ok(())
    }

    /// Attention to the window and the picked entries, and the way out. The last row of the window is that of the last query.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub(super) fn attend(
        &self,
        ops: &Operators,
        new: &Queries,
        picks: &[Vec<usize>],
        window: &Rows,
        entries: &Rows,
    ) -> Result<TensorView> {
        let end = new.positions.last().map_or(0, |p| p + 1);
        let oldest = end - window.len();
        let seen: Vec<Vec<usize>> = new
            .positions
            .iter()
            .zip(picks)
            .map(|(&p, picks)| {
                let recent = (p + 1).saturating_sub(self.d.window)..=p;
                recent.map(|at| at - oldest).chain(picks.iter().map(|w| window.len() + w)).collect()
            })
            .collect();
        let mut keys = window.clone();
        keys.extend(&entries.values);
        self.out(ops, new, &keys, &seen)
    }

    /// A block of drafts: its queries see the window and every key of the block itself.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn draft(&self, ops: &Operators, x: &TensorView, first: usize, state: &WindowedState) -> Result<TensorView> {
        let new = self.queries(ops, x, first)?;
        let mut keys = state.window.clone();
        keys.extend(&self.keys(ops, x, first)?);
        let seen = vec![(0..keys.len()).collect(); x.shape[0]];
        self.out(ops, &new, &keys, &seen)
    }

    /// Scores, softmax and values, back-rotation, and the grouped projection.
    fn out(&self, ops: &Operators, new: &Queries, keys: &Rows, seen: &[Vec<usize>]) -> Result<TensorView> {
        let (d, tokens) = (&self.d, new.positions.len());
        let attend = Attend { values: d.head_dim, scale: (d.head_dim as f64).powf(-0.5), sink: Some(&self.attn_sink) };
        let o = ops.attend(&new.q, &keys.upload(ops)?, &lists(ops, seen)?, &attend)?;
        // Values carried the rotation of their key.
        let o = ops.rope(&o, &new.table, Pairs::Neighbours, true)?;
        let o = reshaped(&o, &[tokens, d.groups, d.heads * d.head_dim / d.groups]);
        let low = ops.empty(&[tokens, d.groups, d.o_rank])?;
        ops.by_head_into(&o, &self.wo_a, &low)?;
        ops.narrow(&reshaped(&low, &[tokens, d.groups * d.o_rank]), &self.wo_b)
    }
}

/// Queries of new tokens, and what indexers need of them.
#[derive(Clone, Debug)]
pub(super) struct Queries {
    /// `[t, heads, head_dim]`, rotated.
    q: TensorView,
    /// Before the heads, `[t, q_lora_rank]`.
    pub low: TensorView,
    /// Positions.
    pub positions: Vec<usize>,
    /// Their angles.
    pub table: RopeTable,
}

impl WindowedState {
    /// Keys of the window, oldest first.
    pub(super) fn window(&self) -> &Rows {
        &self.window
    }
    /// Drops keys that no later query sees.
    pub fn forget(&mut self, window: usize) {
        self.window.drop_first(self.window.len().saturating_sub(window));
    }
}

impl Index {
    /// The entries each query sees.
    fn select(
        &self,
        ops: &Operators,
        x: &TensorView,
        new: &Queries,
        d: &Dims,
        pool: &mut Pool,
    ) -> Result<Vec<Vec<usize>>> {
        let (tokens, sizes) = (new.positions.len(), self.sizes);
        self.compressor.push(ops, x, d, pool)?;
        if pool.entries.is_empty() {
            return Ok(vec![vec![]; tokens]);
        }
        let q = reshaped(&ops.narrow(&new.low, &self.wq_b)?, &[tokens, sizes.index_n_heads, sizes.index_head_dim]);
        let q = ops.index_operand(&ops.rope(&q, &new.table, Pairs::Neighbours, false)?)?;
        let u = ops.linear(x, &self.weights_proj)?;
        let ends: Vec<i32> = new.positions.iter().map(|&p| ((p + 1) / self.compressor.ratio) as i32).collect();
        let scores = ops.index_scores(&q, &pool.entries.upload(ops)?, &u, &ends)?;
        Ok(picked(&ops.topk(&scores, sizes.index_topk, &ends)?, sizes.index_topk))
    }
}
