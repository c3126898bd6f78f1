//! Manifold-constrained hyper-connections: four residual streams, and what a site reads of and gives back to them.
//!
//! ```text
//! m = (fn · f) / sqrt(mean f² + eps)      f: the streams of a token one after another
//! pre = σ(m·scale₀ + base) + hc_eps       post = 2σ(m·scale₁ + base)      C = sinkhorn(softmax(m·scale₂ + base))
//! x = Σ_j pre_j h_j                       h'_k = post_k · y + Σ_j C[j, k] h_j
//! ```
//!
//! At the end `x = Σ_j pre_j h_j` with weights of its own. V4.1 collapses with the `pre` of the site before, `(1, 0, ..)` at first
//! and the last `pre` at the end. Source: DeepSeek-V4 report; Zhu et al., Hyper-Connections, 2024.

use crate::config::{Config, Hyper};
use crate::error::Result;
use crate::operators::{Expansion, Mixing, Operators, reshaped};
use crate::weights::Source;
use kiln_codegen::abi::TensorView;

/// Weights of a site (`attn` or `ffn`) of a layer, its norm among them.
#[derive(Debug)]
pub struct Site {
    fn_: TensorView,
    base: TensorView,
    scale: TensorView,
    norm: TensorView,
    hyper: Hyper,
    eps: f64,
}

impl Site {
    /// The weights of a site under a layer's prefix.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config, hyper: Hyper, layer: &str, site: &str) -> Result<Self> {
        let part = |name: &str| source.tensor(&format!("{layer}.hc_{site}_{name}"));
        Ok(Site {
            fn_: part("fn")?,
            base: part("base")?,
            scale: part("scale")?,
            norm: source.tensor(&format!("{layer}.{site}_norm.weight"))?,
            hyper,
            eps: config.rms_norm_eps,
        })
    }

    /// The normalised input of the site, and how its result returns.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn collapse(&self, ops: &Operators, h: &TensorView) -> Result<(TensorView, Expansion)> {
        let mixing = Mixing {
            fn_: &self.fn_,
            base: &self.base,
            scale: &self.scale,
            iters: self.hyper.hc_sinkhorn_iters,
            rms_eps: self.eps,
            hc_eps: self.hyper.hc_eps,
        };
        let (x, back) = ops.collapse(h, &mixing)?;
        Ok((ops.rmsnorm(&x, Some(&self.norm), self.eps)?, back))
    }

    /// The single-pass form: the normalised input by weights that the site before computed, and how this site's result
    /// returns, with the weights for the next site in it.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn collapse_by(&self, ops: &Operators, h: &TensorView, pre: &TensorView) -> Result<(TensorView, Expansion)> {
        let (_, back) = self.collapse(ops, h)?;
        let x = ops.weighted_streams(pre, h)?;
        Ok((ops.rmsnorm(&x, Some(&self.norm), self.eps)?, back))
    }
}

/// Weights of the end of the network.
#[derive(Debug)]
pub struct HeadCollapse {
    fn_: TensorView,
    base: TensorView,
    scale: TensorView,
    hc_eps: f64,
    eps: f64,
}

impl HeadCollapse {
    /// The weights under a prefix, which is empty or ends with a dot.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config, hyper: Hyper, prefix: &str) -> Result<Self> {
        let part = |name: &str| source.tensor(&format!("{prefix}hc_head_{name}"));
        let (hc_eps, eps) = (hyper.hc_eps, config.rms_norm_eps);
        Ok(HeadCollapse { fn_: part("fn")?, base: part("base")?, scale: part("scale")?, hc_eps, eps })
    }

    /// One stream of the streams `h [t, n, d]`.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(&self, ops: &Operators, h: &TensorView) -> Result<TensorView> {
        let &[tokens, n, d] = h.shape.as_slice() else { return Ok(h.clone()) };
        let flat = reshaped(h, &[tokens, n * d]);
        let m = ops.linear(&ops.rmsnorm(&flat, None, self.eps)?, &self.fn_)?;
        let pre = ops.head_mix(&m, &self.scale, &self.base, self.hc_eps)?;
        ops.weighted_streams(&pre, h)
    }
}
