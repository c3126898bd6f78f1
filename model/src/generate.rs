//! One sequence continued token by token: feed, sample, until a stop token, a stop text, or enough of them.
//!
//! Sampling is the library's operator: the largest logit at temperature 0, otherwise a draw from what top-k, min-p and top-p
//! leave, which depends on the row, the seed and the position alone. So a request gives the same tokens whatever else is
//! asked of the model. Text comes out in whole characters, and never a part of what may become a stop text. Sequences run one
//! at a time. Not here: prompts (`text`), files of requests (`batch`), drafts.

use crate::error::{Error, Result};
use crate::forward::Model;
use crate::operators::rows_of;
use crate::text::refuse;
use crate::text::stream::TextStream;
use crate::text::tokenizer::Tokenizer;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 for the largest logit.
    pub temperature: f64,
    /// Tokens that stay, and those as large as the last of them; 0 for all.
    pub top_k: usize,
    /// Share of probability that stays; 1 for all.
    pub top_p: f64,
    /// Least probability that stays, as a share of the largest; 0 for all.
    pub min_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Numbers in their ranges.
    ///
    /// # Errors
    /// The first one that is not, by the name of its option.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, x: f64, ok: bool, want: &str, next: &str| {
            if ok { Ok(()) } else { refuse(name, want, x.to_string(), next) }
        };
        let (t, p, m) = (self.temperature, self.top_p, self.min_p);
        let (none, most) = ("1 keeps all tokens", "0 keeps all tokens");
        // The operator divides by the temperature in f32.
        let divides = t == 0.0 || (t.is_finite() && t >= f64::from(f32::MIN_POSITIVE));
        within("--temperature", t, divides, "a number of 0 or more", "0 takes the best token, 1 samples as trained")?;
        within("--top-p", p, p > 0.0 && p <= 1.0, "a number above 0 and at most 1", none)?;
        within("--min-p", m, (0.0..=1.0).contains(&m), "a number from 0 to 1", most)?;
        let whole = i32::try_from(self.top_k).is_ok();
        within("--top-k", self.top_k as f64, whole, "a number below 2^31", most)
    }
}

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt.
    pub ids: Vec<usize>,
    /// Tokens at most.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end it; they need a tokenizer.
    pub stop: Vec<String>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token of `eos_token_id`, which is not among the ids, or a stop text, which is not in the text.
    Stop,
    /// `max_tokens` or the model's last position.
    Length,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// New tokens. With a stop text, those up to the one that ended it.
    pub ids: Vec<usize>,
    /// Their text up to a stop text, if there is a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: Finish,
}

/// Continues a prompt. `each` gets every token with the text that is certain with it; the last call has no token.
///
/// # Errors
/// A prompt the model cannot take, numbers out of range, stop texts without a tokenizer; what `each` fails with; an operator's or the device's
/// errors.
pub fn generate(
    model: &Model,
    tokenizer: Option<&Tokenizer>,
    request: &Request,
    each: &mut dyn FnMut(Option<usize>, &str),
) -> Result<Generated> {
    request.sampling.check()?;
    if tokenizer.is_none() && !request.stop.is_empty() {
        return refuse(
            "stop",
            "a tokenizer, to find a text",
            "none",
            "put the checkpoint's tokenizer.json into its folder",
        );
    }
    let most = model.config.max_position_embeddings;
    let mut state = model.start();
    let mut logits = model.step(&request.ids, &mut state)?.logits;
    let (mut ids, mut finish) = (vec![], Finish::Length);
    let (mut stream, mut stops, mut text) = (TextStream::default(), Stops::new(&request.stop), String::new());
    while ids.len() < request.max_tokens {
        let last = rows_of(&logits, logits.shape[0] - 1, 1);
        let id = model.ops.sample(&last, &request.sampling, state.position)?;
        if model.config.eos_token_ids.contains(&id) {
            finish = Finish::Stop;
            break;
        }
        ids.push(id);
        let bytes = tokenizer.and_then(|t| t.token(id)).map_or(&[][..], |t| &t.bytes);
        let certain = stops.push(&stream.push(bytes));
        each(Some(id), &certain);
        text.push_str(&certain);
        if stops.found {
            finish = Finish::Stop;
            break;
        }
        if ids.len() == request.max_tokens || state.position == most {
            break;
        }
        logits = model.step(&[id], &mut state)?.logits;
    }
    let rest = stops.finish(&stream.finish());
    each(None, &rest);
    text.push_str(&rest);
    Ok(Generated { ids, text: tokenizer.is_some().then_some(text), finish })
}

/// Texts that end generation, looked for while text arrives.
#[derive(Clone, Debug)]
pub struct Stops {
    texts: Vec<String>,
    /// The end of the text, as long as it may become one of them.
    held: String,
    /// One was found; nothing comes after.
    pub found: bool,
}

impl Stops {
    /// Looks for these.
    pub fn new(texts: &[String]) -> Stops {
        Stops { texts: texts.to_vec(), held: String::new(), found: false }
    }

    /// What is certain not to belong to a stop text.
    pub fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held.push_str(text);
        // The one that ends first, and of those the longest, is found whatever the pieces.
        let ends = |t: &String| self.held.find(t.as_str()).map(|at| (at + t.len(), at));
        if let Some((_, at)) = self.texts.iter().filter_map(ends).min() {
            self.found = true;
            let out = self.held[..at].to_string();
            self.held.clear();
            return out;
        }
        let begins = |at: &usize| self.texts.iter().any(|t| t.starts_with(&self.held[*at..]));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let keep = starts.into_iter().find(begins).unwrap_or(self.held.len());
        self.held.drain(..keep).collect()
    }

    /// The rest, after this text at the end.
    pub fn finish(&mut self, text: &str) -> String {
        let certain = self.push(text);
        certain + &std::mem::take(&mut self.held)
    }
}

/// A row of logits has no token to give.
pub(crate) fn no_token(op: &str) -> Error {
    let message = "found no token in a row of logits: all are NaN or minus infinity".into();
    Error::Operator(kiln_codegen::spec::OpError { op: op.into(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(stop: &[&str], text: &str, size: usize) -> (String, bool) {
        let texts: Vec<String> = stop.iter().map(|s| s.to_string()).collect();
        let chars: Vec<char> = text.chars().collect();
        let mut s = Stops::new(&texts);
        let mut out: String = chars.chunks(size).map(|c| s.push(&c.iter().collect::<String>())).collect();
        out.push_str(&s.finish(""));
        (out, s.found)
    }

    #[test]
    fn stop_texts_are_found_in_any_pieces() {
        for size in 1..9 {
            for (stop, text, want, found) in [
                (&["END"][..], "an END of it", "an ", true),
                (&["END"], "ENENDD", "EN", true),
                (&["aab"], "aaab", "a", true),
                (&["abcd", "bc"], "xabcd", "xa", true),
                (&["字x", "é"], "ab字é", "ab字", true),
                (&["END"], "no EN", "no EN", false),
                (&[], "text", "text", false),
            ] {
                assert_eq!(pieces(stop, text, size), (want.to_string(), found), "{stop:?} {text} by {size}");
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let s = Sampling::default();
        assert!(
            s.check().is_ok()
                && Sampling { temperature: 1.5, top_k: 40, top_p: 0.9, min_p: 0.1, seed: 1 }.check().is_ok()
        );
        for (bad, name) in [
            (Sampling { temperature: -1.0, ..s }, "--temperature"),
            (Sampling { temperature: f64::NAN, ..s }, "--temperature"),
            (Sampling { temperature: 1e-300, ..s }, "--temperature"),
            (Sampling { top_p: 0.0, ..s }, "--top-p"),
            (Sampling { top_p: f64::NAN, ..s }, "--top-p"),
            (Sampling { min_p: 1.5, ..s }, "--min-p"),
            (Sampling { top_k: 1 << 31, ..s }, "--top-k"),
        ] {
            let said = bad.check().expect_err(name).to_string();
            assert!(said.starts_with(name) && said.contains("next: "), "{said}");
        }
    }
}
