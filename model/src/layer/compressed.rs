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
use crate::config::{Compressed, Config, Indexer};
use crate::error::Result;
use crate::operators::{Attend, Compress, Operators, Pairs, reshaped};
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

#[derive(Clone, Debug)]
struct Dims {
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

/// The ratio whose groups overlap and whose entries are selected.
const OVERLAPPING: usize = 4;

impl Compressor {
    fn load(source: Source<'_>, prefix: &str, ratio: usize, width: usize) -> Result<Self> {
        let part = |name: &str| source.tensor(&format!("{prefix}.{name}"));
        Ok(Compressor {
            ape: part("ape")?,
            wkv: part("wkv.weight")?,
            wgate: part("wgate.weight")?,
            norm: part("norm.weight")?,
            ratio,
            width,
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
        let made = ops.compress(&Compress {
            kv: &pool.kv.upload_first(ops, whole * r)?,
            score: &pool.score.upload_first(ops, whole * r)?,
            ape: &self.ape,
            norm: &self.norm,
            table: &rotary::table(ops, &d.frequencies, &positions, 1.0)?,
            ratio: r,
            overlap,
            eps: d.eps,
        })?;
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
    pub fn load(source: Source<'_>, config: &Config, f: &Compressed, prefix: &str, ratio: usize) -> Result<Self> {
        let a = format!("{prefix}.attn");
        let part = |name: &str| source.tensor(&format!("{a}.{name}"));
        let rd = config.rope.qk_rope_head_dim;
        let frequencies = if ratio == 0 {
            rotary::frequencies(rd, config.rope.rope_theta, None)
        } else {
            rotary::frequencies(rd, f.compress_rope_theta, config.rope.rope_scaling.as_ref())
        };
        let compressor = |p: &str, width: usize| Compressor::load(source, &format!("{a}.{p}"), ratio, width);
        let index = || -> Result<Index> {
            let x = f.indexer;
            let mut weights_proj = source.matrix(&format!("{a}.indexer.weights_proj.weight"))?;
            let scale = ((x.index_n_heads * x.index_head_dim) as f64).powf(-0.5);
            weights_proj.values.iter_mut().for_each(|w| *w = (f64::from(*w) * scale) as f32);
            Ok(Index {
                compressor: compressor("indexer.compressor", x.index_head_dim)?,
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
            compressor: (ratio > 0).then(|| compressor("compressor", f.head_dim)).transpose()?,
            indexer: (ratio == OVERLAPPING).then(index).transpose()?,
            d: Dims {
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
        let (d, tokens) = (&self.d, x.shape[0]);
        let positions: Vec<usize> = (first..first + tokens).collect();
        let table = rotary::table(ops, &d.frequencies, &positions, 1.0)?;

        let qr = ops.rmsnorm(&ops.linear(x, &self.wq_a)?, Some(&self.q_norm), d.eps)?;
        let q = reshaped(&ops.linear(&qr, &self.wq_b)?, &[tokens, d.heads, d.head_dim]);
        let q = ops.rope(&ops.rmsnorm(&q, None, d.eps)?, &table, Pairs::Neighbours, false)?;
        let kv = ops.rmsnorm(&ops.linear(x, &self.wkv)?, Some(&self.kv_norm), d.eps)?;
        state.window.extend(&ops.download(&ops.rope(&kv, &table, Pairs::Neighbours, false)?)?);

        if let Some(c) = &self.compressor {
            c.push(ops, x, d, &mut state.entries)?;
        }
        let picks = match (&self.compressor, &self.indexer) {
            (None, _) => vec![vec![]; tokens],
            (Some(c), None) => positions.iter().map(|p| (0..(p + 1) / c.ratio).collect()).collect(),
            (Some(_), Some(index)) => index.select(ops, x, &qr, &positions, d, &mut state.index)?,
        };

        // Keys: the window's rows, of which the last is that of the last token, then the entries.
        let oldest = first + tokens - state.window.len();
        let seen: Vec<Vec<usize>> = positions
            .iter()
            .zip(&picks)
            .map(|(&p, picks)| {
                let window = (p + 1).saturating_sub(d.window)..=p;
                let entries = picks.iter().map(|w| state.window.len() + w);
                window.map(|at| at - oldest).chain(entries).collect()
            })
            .collect();
        let mut keys = state.window.clone();
        keys.extend(&state.entries.entries.values);
        let attend = Attend { values: d.head_dim, scale: (d.head_dim as f64).powf(-0.5), sink: Some(&self.attn_sink) };
        let o = ops.attend(&q, &keys.upload(ops)?, &lists(ops, &seen)?, &attend)?;
        state.window.drop_first(state.window.len().saturating_sub(d.window));

        // Values carried the rotation of their key.
        let o = ops.rope(&o, &table, Pairs::Neighbours, true)?;
        let o = reshaped(&o, &[tokens, d.groups, d.heads * d.head_dim / d.groups]);
        let low = ops.empty(&[tokens, d.groups, d.o_rank])?;
        ops.by_head_into(&o, &self.wo_a, &low)?;
        ops.linear(&reshaped(&low, &[tokens, d.groups * d.o_rank]), &self.wo_b)
    }
}

impl Index {
    /// The entries each query sees.
    fn select(
        &self,
        ops: &Operators,
        x: &TensorView,
        qr: &TensorView,
        positions: &[usize],
        d: &Dims,
        pool: &mut Pool,
    ) -> Result<Vec<Vec<usize>>> {
        let (tokens, sizes) = (positions.len(), self.sizes);
        self.compressor.push(ops, x, d, pool)?;
        if pool.entries.is_empty() {
            return Ok(vec![vec![]; tokens]);
        }
        let table = rotary::table(ops, &d.frequencies, positions, 1.0)?;
        let q = reshaped(&ops.linear(qr, &self.wq_b)?, &[tokens, sizes.index_n_heads, sizes.index_head_dim]);
        let q = ops.rope(&q, &table, Pairs::Neighbours, false)?;
        let u = ops.linear(x, &self.weights_proj)?;
        let ends: Vec<i32> = positions.iter().map(|&p| ((p + 1) / self.compressor.ratio) as i32).collect();
        let scores = ops.index_scores(&q, &pool.entries.upload(ops)?, &u, &ends)?;
        Ok(picked(&ops.topk(&scores, sizes.index_topk, &ends)?, sizes.index_topk))
    }
}
