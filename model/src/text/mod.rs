//! Text in and out of a model: messages to prompts, prompts to token ids, ids to text, and what a chat model's output means.
//!
//! Flow: `chat` reads a request and renders the prompt, `tokenizer` turns it into ids; on the way back `stream` turns ids into text
//! that never splits a character, and `chat` takes that apart into reasoning, answer and calls of tools. `compress` makes the
//! classes of tokens that V4.1's n-gram memory counts in. Not here: which token comes next (`generate`), files of requests.

pub mod chat;
pub mod compress;
pub mod prompt;
pub mod stream;
pub mod tokenizer;

use crate::error::{Error, Result};

/// A refusal in four parts.
pub(crate) fn refuse<T>(
    place: impl Into<std::path::PathBuf>,
    expected: impl Into<String>,
    got: impl Into<String>,
    next: impl Into<String>,
) -> Result<T> {
    Err(Error::Input { place: place.into(), expected: expected.into(), got: got.into(), next: next.into() })
}
