//! Multi-head latent attention (V3), and the token selection of V3.2.
//!
//! ```text
//! q = q_b · rmsnorm(q_a · x)       per head: q_nope, q_rope         c = rmsnorm(kv_a · x)   k_r = rotate(k_rope · x)
//! absorbed: q_c = W_kᵀ q_nope      s_j = (q_c · c_j + rotate(q_rope) · k_r,j) · scale       o = W_v · Σ_j softmax(s)_j c_j
//! scale = (nope + rope)^-½ · m²    m = 0.1 · mscale_all_dim · ln(factor) + 1                y = o_proj · o
//! ```
//!
//! Cached are `c ‖ k_r`, one row a token. V3.2 keeps the `index_topk` tokens with the largest
//! `Σ_h w_h · heads^-½ · relu(q_h · k · d^-½)`, `k = layernorm(wk · x)`, rotated on the first channels in halves: here those
//! channels stand last, in queries and keys alike, since operators rotate the last ones. The layer norm is an RMS norm of
//! centred numbers, and centring is folded into `wk`. Source: DeepSeek-V2 report, 2.1; DeepSeek-V3.2 report.

use super::{Rows, lists, rotary};
use crate::config::{Config, Indexer, V3};
use crate::error::Result;
use crate::operators::{Attend, Operators, Pairs, columns_of, reshaped};
use crate::weights::{Matrix, Source};
use kiln_codegen::abi::TensorView;

/// Weights of a layer's attention.
#[derive(Debug)]
pub struct Latent {
    q_a_proj: TensorView,
    q_a_layernorm: TensorView,
    /// Rows of `q_b_proj` that are not rotated, `[heads, nope, rank]`.
    q_nope: TensorView,
    /// Rows that are, `[heads, rope, rank]`.
    q_rope: TensorView,
    /// Rows of `kv_a_proj_with_mqa` of the latent.
    kv_a: TensorView,
    /// Its rows of the rotated key.
    k_rope: TensorView,
    kv_a_layernorm: TensorView,
    /// Rows of `kv_b_proj` that make keys, `[heads, nope, rank]`.
    w_k: TensorView,
    /// Rows that make values, `[heads, v, rank]`.
    w_v: TensorView,
    o_proj: TensorView,
    indexer: Option<Index>,
    d: Dims,
}

/// Weights of the indexer.
#[derive(Debug)]
struct Index {
    wq_b: TensorView,
    wk: TensorView,
    k_norm: TensorView,
    k_norm_bias: Vec<f32>,
    weights_proj: TensorView,
    sizes: Indexer,
}

/// Sizes and constants.
#[derive(Clone, Debug)]
struct Dims {
    heads: usize,
    nope: usize,
    rope: usize,
    values: usize,
    latent: usize,
    eps: f64,
    scale: f64,
    frequencies: Vec<f32>,
    magnitude: f32,
}

/// What a layer remembers of a sequence.
#[derive(Clone, Debug)]
pub struct LatentState {
    keys: Rows,
    index_keys: Rows,
}

/// Epsilon of the indexer's layer norm, which no key of the configuration holds.
const K_NORM_EPS: f64 = 1e-6;

impl Latent {
    /// The attention weights of layer `i`.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config, f: &V3, i: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{i}.self_attn.{part}.weight");
        let (heads, nope, rope, v) =
            (config.num_attention_heads, f.qk_nope_head_dim, config.rope.qk_rope_head_dim, f.v_head_dim);
        let q_b = source.matrix(&name("q_b_proj"))?;
        let kv_a = source.matrix(&name("kv_a_proj_with_mqa"))?;
        let kv_b = source.matrix(&name("kv_b_proj"))?;
        // Rows `from..to` of every head.
        let of_heads = |m: &Matrix, each: usize, from: usize, to: usize| {
            m.pick((0..heads).flat_map(|h| (from..to).map(move |r| h * each + r)))
        };
        let yarn = config.rope.rope_scaling.as_ref();
        let m = yarn.map_or(1.0, |y| rotary::magnitude(y, y.mscale_all_dim));
        let magnitude = yarn.map_or(1.0, |y| rotary::magnitude(y, y.mscale) / m);
        Ok(Latent {
            q_a_proj: source.tensor(&name("q_a_proj"))?,
            q_a_layernorm: source.tensor(&name("q_a_layernorm"))?,
            q_nope: source.upload_blocks(&of_heads(&q_b, nope + rope, 0, nope), nope)?,
            q_rope: source.upload_blocks(&of_heads(&q_b, nope + rope, nope, nope + rope), rope)?,
            kv_a: source.upload(&kv_a.pick(0..f.kv_lora_rank))?,
            k_rope: source.upload(&kv_a.pick(f.kv_lora_rank..f.kv_lora_rank + rope))?,
            kv_a_layernorm: source.tensor(&name("kv_a_layernorm"))?,
            w_k: source.upload_blocks(&of_heads(&kv_b, nope + v, 0, nope), nope)?,
            w_v: source.upload_blocks(&of_heads(&kv_b, nope + v, nope, nope + v), v)?,
            o_proj: source.tensor(&name("o_proj"))?,
            indexer: f.indexer.map(|x| Index::load(source, x, rope, i)).transpose()?,
            d: Dims {
                heads,
                nope,
                rope,
                values: v,
                latent: f.kv_lora_rank,
                eps: config.rms_norm_eps,
                scale: ((nope + rope) as f64).powf(-0.5) * m * m,
                frequencies: rotary::frequencies(rope, config.rope.rope_theta, yarn),
                magnitude: magnitude as f32,
            },
        })
    }

    /// A sequence without tokens.
    pub fn start(&self) -> LatentState {
        LatentState {
            keys: Rows::new(self.d.latent + self.d.rope),
            index_keys: Rows::new(self.indexer.as_ref().map_or(0, |x| x.sizes.index_head_dim)),
        }
    }

    /// What the layer's attention adds for the normalised `x [t, d]` at positions from `first` on.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(
        &self,
        ops: &Operators,
        x: &TensorView,
        first: usize,
        state: &mut LatentState,
    ) -> Result<TensorView> {
        let (d, tokens) = (&self.d, x.shape[0]);
        let positions: Vec<usize> = (first..first + tokens).collect();
        let table = rotary::table(ops, &d.frequencies, &positions, d.magnitude)?;

        // q_c ‖ q_rope: both products write their columns of one tensor.
        let qr = ops.rmsnorm(&ops.linear(x, &self.q_a_proj)?, Some(&self.q_a_layernorm), d.eps)?;
        let q_nope = ops.empty(&[tokens, d.heads, d.nope])?;
        ops.by_head_into(&for_heads(&qr, d.heads), &self.q_nope, &q_nope)?;
        let q = ops.empty(&[tokens, d.heads, d.latent + d.rope])?;
        ops.by_head_transposed_into(&q_nope, &self.w_k, &columns_of(&q, 0, d.latent))?;
        ops.by_head_into(&for_heads(&qr, d.heads), &self.q_rope, &columns_of(&q, d.latent, d.rope))?;
        let q = ops.rope(&q, &table, Pairs::Neighbours, false)?;

        // c ‖ k_r of the new tokens.
        let c = ops.rmsnorm(&ops.linear(x, &self.kv_a)?, Some(&self.kv_a_layernorm), d.eps)?;
        let k_r = ops.rope(&ops.linear(x, &self.k_rope)?, &table, Pairs::Neighbours, false)?;
        let (c, k_r) = (ops.download(&c)?, ops.download(&k_r)?);
        for (c, k_r) in c.chunks(d.latent).zip(k_r.chunks(d.rope)) {
            state.keys.extend(c);
            state.keys.extend(k_r);
        }

        // Every earlier token, or the ones the indexer picks.
        let seen = match &self.indexer {
            None => positions.iter().map(|&p| (0..=p).collect()).collect(),
            Some(index) => index.select(ops, x, &qr, &positions, d, &mut state.index_keys)?,
        };
        let keys = state.keys.upload(ops)?;
        let attend = Attend { values: d.latent, scale: d.scale, sink: None };
        let o = ops.attend(&q, &keys, &lists(ops, &seen)?, &attend)?;
        let values = ops.empty(&[tokens, d.heads, d.values])?;
        ops.by_head_into(&o, &self.w_v, &values)?;
        ops.linear(&reshaped(&values, &[tokens, d.heads * d.values]), &self.o_proj)
    }
}

/// Rows `[t, r]` that every head reads: `[t, heads, r]` without copies.
fn for_heads(x: &TensorView, heads: usize) -> TensorView {
    let (tokens, columns) = (x.shape[0], x.shape[1]);
    TensorView { shape: vec![tokens, heads, columns], strides: vec![x.strides[0], 0, 1], ..x.clone() }
}

impl Index {
    fn load(source: Source<'_>, x: Indexer, rope: usize, i: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{i}.self_attn.indexer.{part}");
        let width = x.index_head_dim;
        // The rotated channels come last.
        let order: Vec<usize> = (rope..width).chain(0..rope).collect();
        let wq_b = source.matrix(&name("wq_b.weight"))?;
        let wq_b = wq_b.pick((0..x.index_n_heads).flat_map(|h| order.iter().map(move |c| h * width + c)));
        let mut wk = source.matrix(&name("wk.weight"))?.pick(order.iter().copied());
        for column in 0..wk.columns {
            let mean = (0..width).map(|r| f64::from(wk.row(r)[column])).sum::<f64>() / width as f64;
            for r in 0..width {
                let x = &mut wk.values[r * wk.columns + column];
                *x = (f64::from(*x) - mean) as f32;
            }
        }
        let (norm, bias) = (source.matrix(&name("k_norm.weight"))?, source.matrix(&name("k_norm.bias"))?);
        let ordered = |m: &Matrix| order.iter().map(|&c| m.values[c]).collect::<Vec<f32>>();
        let mut weights_proj = source.matrix(&name("weights_proj.weight"))?;
        let scale = ((x.index_n_heads * width) as f64).powf(-0.5);
        weights_proj.values.iter_mut().for_each(|w| *w = (f64::from(*w) * scale) as f32);
        Ok(Index {
            wq_b: source.upload(&wq_b)?,
            wk: source.upload(&wk)?,
            k_norm: source.ops.upload(&[width], &ordered(&norm))?,
            k_norm_bias: ordered(&bias),
            weights_proj: source.upload(&weights_proj)?,
            sizes: x,
        })
    }

    /// The tokens each query sees.
    fn select(
        &self,
        ops: &Operators,
        x: &TensorView,
        qr: &TensorView,
        positions: &[usize],
        d: &Dims,
        keys: &mut Rows,
    ) -> Result<Vec<Vec<usize>>> {
        let (tokens, sizes) = (positions.len(), self.sizes);
        let table = rotary::table(ops, &d.frequencies, positions, d.magnitude)?;
        let q = reshaped(&ops.linear(qr, &self.wq_b)?, &[tokens, sizes.index_n_heads, sizes.index_head_dim]);
        let q = ops.rope(&q, &table, Pairs::Halves, false)?;
        let k = ops.rmsnorm(&ops.linear(x, &self.wk)?, Some(&self.k_norm), K_NORM_EPS)?;
        let bias: Vec<f32> = (0..tokens).flat_map(|_| self.k_norm_bias.iter().copied()).collect();
        let k = ops.add(&k, &ops.upload(&k.shape, &bias)?)?;
        keys.extend(&ops.download(&ops.rope(&k, &table, Pairs::Halves, false)?)?);

        let weights = ops.linear(x, &self.weights_proj)?;
        let ends: Vec<i32> = positions.iter().map(|&p| p as i32 + 1).collect();
        let scores = ops.index_scores(&q, &keys.upload(ops)?, &weights, &ends)?;
        Ok(picked(&ops.topk(&scores, sizes.index_topk, &ends)?, sizes.index_topk))
    }
}

/// Rows of picks without the places that stayed empty.
pub(super) fn picked(picks: &[i64], each: usize) -> Vec<Vec<usize>> {
    picks.chunks(each).map(|row| row.iter().filter_map(|&i| usize::try_from(i).ok()).collect()).collect()
}
