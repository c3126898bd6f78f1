//! DSpark: a block of drafts from the features of the last committed position.
//!
//! ```text
//! main_x = rmsnorm(main_proj · concat_targets(mean of the streams))            features of every processed position
//! stage keys: a window of keys of main_x, and those of the block itself        ids [a, noise, noise, ..] at p+1 ..
//! U_k = head · rmsnorm(x_k)          logits_k = U_k + markov_w2 · markov_w1[prev]         c_k = proj · (x_k ‖ markov_w1[prev])
//! ```
//!
//! Inside the block there is no causal mask. In V4 the features are the streams after the target layers, in V4.1 those that enter
//! them, and streams collapse by the weights of the site before. Not here: how many drafts to verify, acceptance by chance.
//! Source: DSpark report; DeepSeek-V4 and V4.1 reports.

use crate::config::{Compressed, Config, Dspark, Family, Moe};
use crate::error::Result;
use crate::layer::compressed::{Form, Windowed, WindowedState};
use crate::layer::experts::Experts;
use crate::layer::streams::{HeadCollapse, Site};
use crate::operators::Operators;
use crate::weights::{Matrix, Source};
use kiln_codegen::abi::TensorView;

/// The drafter's weights, without embedding and head, which it shares with the model.
#[derive(Debug)]
pub struct Drafter {
    main_proj: TensorView,
    main_norm: TensorView,
    stages: Vec<Stage>,
    norm: TensorView,
    /// V4's end of the network; V4.1 collapses by the last site's weights.
    collapse: Option<HeadCollapse>,
    markov_w1: Matrix,
    markov_w2: TensorView,
    confidence: TensorView,
    /// Sizes and ids.
    pub settings: Dspark,
    hc_mult: usize,
    window: usize,
    eps: f64,
}

#[derive(Debug)]
struct Stage {
    hc_attn: Site,
    attn: Windowed,
    hc_ffn: Site,
    ffn: Experts,
}

/// What the drafter remembers of a sequence.
#[derive(Clone, Debug)]
pub struct DraftState {
    /// Positions whose features it has.
    pub position: usize,
    windows: Vec<WindowedState>,
}

/// A block of drafts.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The tokens, each the best after the one before.
    pub ids: Vec<usize>,
    /// Corrected logits, a row a draft.
    pub logits: Vec<f32>,
    /// Logits of the probability that a draft survives if the ones before it did.
    pub confidence: Vec<f32>,
}

impl Drafter {
    /// The stages `mtp.*`, if the configuration has a drafter.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(source: Source<'_>, config: &Config) -> Result<Option<Self>> {
        let (a, form): (&Compressed, _) = match &config.family {
            Family::V3(_) => return Ok(None),
            Family::V4(f) => (&f.attention, Form::V4),
            Family::V41(f) => (&f.attention, Form::V41),
        };
        let Some(x) = &a.dspark else { return Ok(None) };
        let moe = Moe {
            n_routed_experts: x.n_routed_experts,
            num_experts_per_tok: x.num_experts_per_tok,
            ..config.moe.clone()
        };
        let count = config.draft_stages();
        let stage = |s: usize| -> Result<Stage> {
            let p = format!("mtp.{s}");
            Ok(Stage {
                hc_attn: Site::load(source, config, a.hyper, &p, "attn")?,
                attn: Windowed::load(source, config, a, &p, 0, form)?,
                hc_ffn: Site::load(source, config, a.hyper, &p, "ffn")?,
                ffn: Experts::load(source, config, &moe, &format!("{p}.ffn"), false)?,
            })
        };
        let last = format!("mtp.{}", count - 1);
        let [w1, w2] = match form {
            Form::V4 => ["markov_w1", "markov_w2"],
            Form::V41 => ["embed", "head"],
        };
        Ok(Some(Drafter {
            main_proj: source.tensor("mtp.0.main_proj.weight")?,
            main_norm: source.tensor("mtp.0.main_norm.weight")?,
            stages: (0..count).map(stage).collect::<Result<_>>()?,
            norm: source.tensor(&format!("{last}.norm.weight"))?,
            collapse: (form == Form::V4)
                .then(|| HeadCollapse::load(source, config, a.hyper, &format!("{last}.")))
                .transpose()?,
            markov_w1: source.matrix(&format!("{last}.markov_head.{w1}.weight"))?,
            markov_w2: source.tensor(&format!("{last}.markov_head.{w2}.weight"))?,
            confidence: source.tensor(&format!("{last}.confidence_head.proj.weight"))?,
            settings: x.clone(),
            hc_mult: a.hyper.hc_mult,
            window: a.sliding_window,
            eps: config.rms_norm_eps,
        }))
    }

    /// A sequence without tokens.
    pub fn start(&self) -> DraftState {
        DraftState { position: 0, windows: self.stages.iter().map(|s| s.attn.start()).collect() }
    }

    /// `main_x` of features `[t, targets · d]`.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn main_x(&self, ops: &Operators, features: &TensorView) -> Result<TensorView> {
        ops.rmsnorm(&ops.narrow(features, &self.main_proj)?, Some(&self.main_norm), self.eps)
    }

    /// Takes in the features of committed positions, in order.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn remember(&self, ops: &Operators, features: &TensorView, state: &mut DraftState) -> Result<()> {
        let main_x = self.main_x(ops, features)?;
        for (stage, window) in self.stages.iter().zip(&mut state.windows) {
            stage.attn.remember(ops, &main_x, state.position, window)?;
            window.forget(self.window);
        }
        state.position += features.shape[0];
        Ok(())
    }

    /// Drafts what follows `token`, the one after the last position whose features are known. `embed` gives rows of the
    /// embedding, `head` the model's head.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn draft(
        &self,
        ops: &Operators,
        embed: &Matrix,
        head: &TensorView,
        token: usize,
        state: &DraftState,
    ) -> Result<Draft> {
        let block = self.settings.block_size;
        let ids: Vec<usize> =
            std::iter::once(token).chain(std::iter::repeat_n(self.settings.noise_token_id, block - 1)).collect();
        let x = ops.upload(&[block, embed.columns], &embed.pick(ids.iter().copied()).values)?;
        let mut h = ops.streams(&x, self.hc_mult)?;
        let x = match &self.collapse {
            Some(collapse) => {
                for (stage, window) in self.stages.iter().zip(&state.windows) {
                    let (x, back) = stage.hc_attn.collapse(ops, &h)?;
                    h = ops.expand(&stage.attn.draft(ops, &x, state.position, window)?, &h, &back)?;
                    let (x, back) = stage.hc_ffn.collapse(ops, &h)?;
                    h = ops.expand(&stage.ffn.forward(ops, &x, &ids)?, &h, &back)?;
                }
                collapse.forward(ops, &h)?
            }
            None => {
                let mut pre = first_stream(ops, block, self.hc_mult)?;
                for (stage, window) in self.stages.iter().zip(&state.windows) {
                    let (x, back) = stage.hc_attn.collapse_by(ops, &h, &pre)?;
                    h = ops.expand(&stage.attn.draft(ops, &x, state.position, window)?, &h, &back)?;
                    pre = back.pre;
                    let (x, back) = stage.hc_ffn.collapse_by(ops, &h, &pre)?;
                    h = ops.expand(&stage.ffn.forward(ops, &x, &ids)?, &h, &back)?;
                    pre = back.pre;
                }
                ops.weighted_streams(&pre, &h)?
            }
        };
        let base = ops.linear(&ops.rmsnorm(&x, Some(&self.norm), self.eps)?, head)?;

        // Left to right: a draft's correction depends on the one before.
        let host = ops.download(&x)?;
        let (mut previous, mut out) = (token, Draft { ids: vec![], logits: vec![], confidence: vec![] });
        for k in 0..block {
            let e = self.markov_w1.row(previous);
            let row = ops.linear(&ops.upload(&[1, e.len()], e)?, &self.markov_w2)?;
            let row = ops.add(&crate::operators::rows_of(&base, k, 1), &row)?;
            let both = [&host[k * embed.columns..][..embed.columns], e].concat();
            out.confidence.extend(ops.download(&ops.linear(&ops.upload(&[1, both.len()], &both)?, &self.confidence)?)?);
            out.logits.extend(ops.download(&row)?);
            previous = ops.argmax(&row)?.first().copied().unwrap_or(previous);
            out.ids.push(previous);
        }
        Ok(out)
    }
}

/// `(1, 0, ..)` a row: what V4.1 collapses with before any site has computed weights.
///
/// # Errors
/// Not enough memory.
pub fn first_stream(ops: &Operators, tokens: usize, streams: usize) -> Result<TensorView> {
    let one: Vec<f32> = (0..tokens * streams).map(|i| f32::from(i.is_multiple_of(streams))).collect();
    ops.upload(&[tokens, streams], &one)
}
