//! One sequence continued token by token: feed, sample, until a stop token or enough of them.
//!
//! Sampling is the library's operator: the largest logit at temperature 0, otherwise a draw that depends on the row, the seed
//! and the position alone, so a seed repeats its tokens. Not here: text, batches, drafts.

use crate::error::{Error, Result};
use crate::forward::Model;

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt.
    pub ids: Vec<usize>,
    /// Tokens at most.
    pub max_tokens: usize,
    /// 0 for the largest logit.
    pub temperature: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token of `eos_token_id`, which is not among the ids.
    Stop,
    /// `max_tokens` or the model's last position.
    Length,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// New tokens.
    pub ids: Vec<usize>,
    /// Why it ended.
    pub finish: Finish,
}

/// Continues a prompt.
///
/// # Errors
/// A prompt the model cannot take, a temperature below 0; an operator's or the device's errors.
pub fn generate(model: &Model, request: &Request) -> Result<Generated> {
    if !(request.temperature >= 0.0 && request.temperature.is_finite()) {
        return Err(Error::Input {
            place: "--temperature".into(),
            expected: "a number of 0 or more".into(),
            got: request.temperature.to_string(),
            next: "0 takes the best token, 1 samples as trained".into(),
        });
    }
    let most = model.config.max_position_embeddings;
    let mut state = model.start();
    let mut logits = model.step(&request.ids, &mut state)?.logits;
    let mut out = Generated { ids: vec![], finish: Finish::Length };
    while out.ids.len() < request.max_tokens {
        let last = crate::operators::rows_of(&logits, logits.shape[0] - 1, 1);
        let id = model.ops.sample(&last, request.temperature, request.seed, state.position)?;
        if model.config.eos_token_ids.contains(&id) {
            out.finish = Finish::Stop;
            break;
        }
        out.ids.push(id);
        if out.ids.len() == request.max_tokens || state.position == most {
            break;
        }
        logits = model.step(&[id], &mut state)?.logits;
    }
    Ok(out)
}
