//! Feed-forward blocks: one SwiGLU, or a router with experts and a shared one.
//!
//! ```text
//! expert(x) = w2 · (silu(g) · u)         g = min(w1 x, limit)   u = clamp(w3 x, ±limit)    (no limit in V3)
//! s = sigmoid(gate · x)  or  sqrt(softplus(gate · x))
//! chosen: the k largest of s + bias (V3: among the best groups), or tid2eid[token] in hash layers
//! y = Σ_chosen w2_e · (w_e · (silu(g) · u)_e)  +  shared(x)       w_e = factor · s_e / Σ_chosen s
//! ```
//!
//! Rows go to their experts' order, one product an expert, and back. Source: DeepSeek-V3 report, 2.1.2; DeepSeek-V4 report.

use crate::config::{Config, Family, Moe};
use crate::error::Result;
use crate::operators::{Gate, Operators, rows_of};
use crate::weights::Source;
use kiln_codegen::abi::TensorView;

/// One SwiGLU.
#[derive(Debug)]
pub struct Mlp {
    /// `w1` above `w3`, `[2·inner, d]`.
    gate_up: TensorView,
    /// `w2`, `[d, inner]`.
    down: TensorView,
}

impl Mlp {
    /// The weights under a prefix; `names` are those of gate, up and down.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, prefix: &str, names: [&str; 3]) -> Result<Self> {
        let [gate, up, down] = names.map(|n| format!("{prefix}.{n}.weight"));
        let both = source.matrix(&gate)?.above(source.matrix(&up)?);
        Ok(Mlp { gate_up: source.upload(&both)?, down: source.tensor(&down)? })
    }

    /// The block of `x [t, d]`.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(&self, ops: &Operators, x: &TensorView, limit: Option<f64>) -> Result<TensorView> {
        ops.narrow(&ops.swiglu(&ops.narrow(x, &self.gate_up)?, limit)?, &self.down)
    }
}

/// Router and experts.
#[derive(Debug)]
pub struct Experts {
    gate: TensorView,
    bias: TensorView,
    /// Experts of every token id, in hash layers.
    tid2eid: Option<TensorView>,
    experts: Vec<Mlp>,
    shared: Mlp,
    moe: Moe,
    scoring: &'static str,
    groups: [usize; 2],
}

impl Experts {
    /// The experts `moe` counts under `model.layers.i.mlp` (V3) or `PREFIX.ffn` (V4); `hash` layers have a table instead of a
    /// bias.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config, moe: &Moe, prefix: &str, hash: bool) -> Result<Self> {
        let (names, bias, scoring, groups) = match &config.family {
            Family::V3(f) => {
                (["gate_proj", "up_proj", "down_proj"], "e_score_correction_bias", "sigmoid", [f.n_group, f.topk_group])
            }
            Family::V4(_) | Family::V41(_) => (["w1", "w3", "w2"], "bias", "sqrtsoftplus", [0, 0]),
        };
        let moe = moe.clone();
        let bias = if hash {
            source.ops.empty(&[moe.n_routed_experts])?
        } else {
            source.tensor(&format!("{prefix}.gate.{bias}"))?
        };
        let tid2eid = if hash {
            let table = source.checkpoint.stored(&format!("{prefix}.gate.tid2eid"))?;
            let ids: Vec<i32> = crate::operators::integers(&table).into_iter().map(|x| x as i32).collect();
            Some(source.ops.upload_i32(&table.shape, &ids)?)
        } else {
            None
        };
        let expert = |e: usize| Mlp::load(source, &format!("{prefix}.experts.{e}"), names);
        Ok(Experts {
            gate: source.tensor(&format!("{prefix}.gate.weight"))?,
            bias,
            tid2eid,
            experts: (0..moe.n_routed_experts).map(expert).collect::<Result<_>>()?,
            shared: Mlp::load(source, &format!("{prefix}.shared_experts"), names)?,
            moe,
            scoring,
            groups,
        })
    }

    /// The block of `x [t, d]`, whose tokens are `ids`.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn forward(&self, ops: &Operators, x: &TensorView, ids: &[usize]) -> Result<TensorView> {
        let (moe, limit) = (&self.moe, self.moe.swiglu_limit);
        let ids: Vec<i64> = ids.iter().map(|&id| id as i64).collect();
        let tokens = ops.upload_i64(&[ids.len()], &ids)?;
        let gate = Gate {
            topk: moe.num_experts_per_tok,
            groups: self.groups[0],
            topk_groups: self.groups[1],
            scoring: self.scoring,
            scale: moe.routed_scaling_factor,
            hash: self.tid2eid.as_ref().map(|table| (&tokens, table)),
        };
        let routing = ops.gate(&ops.linear(x, &self.gate)?, &self.bias, &gate)?;
        let sent = ops.dispatch(&ops.narrow_input(x)?, &routing, moe.n_routed_experts)?;

        let used = || self.experts.iter().zip(&sent.of_expert).filter(|(_, rows)| !rows.is_empty());
        let slots = sent.rows.shape[0];
        let inner = ops.empty(&[slots, 2 * moe.moe_intermediate_size])?;
        for (expert, rows) in used() {
            let part = |t: &TensorView| rows_of(t, rows.start, rows.len());
            ops.linear_into(&part(&sent.rows), &expert.gate_up, &part(&inner))?;
        }
        let act = ops.narrow_input(&ops.weighted_swiglu(&inner, limit, &routing, &sent)?)?;
        let out = ops.empty(&[slots, x.shape[1]])?;
        for (expert, rows) in used() {
            let part = |t: &TensorView| rows_of(t, rows.start, rows.len());
            ops.linear_into(&part(&act), &expert.down, &part(&out))?;
        }
        ops.add(&ops.combine(&out, &sent)?, &self.shared.forward(ops, x, limit)?)
    }
}
