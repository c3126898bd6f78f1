//! Chat requests and what becomes of them: the prompt format of V4 and of V4.1, and the reading of their output.
//!
//! [`ChatEncoding`] is the seam: a request in, a [`Prompt`] out, and a [`Parser`] for what the model says. Both published formats
//! are written here from their description, since the vendor's crate (deepseek-recipe-encoding 0.2.0) brings an HTTP client, TLS and a
//! C library with it; `tests/data/encoding.json` holds what that crate gives, to the character. There is no format for V3 here: its published
//! checkpoints come with a template of their own. Not here: HTTP, images beyond their placeholder.

mod dsml;
mod parse;
mod request;
mod v4;
mod v41;

pub use parse::{Call, Kind, Parsed, Parser};
pub(crate) use request::stops;
pub use request::{Assistant, Conversation, Effort, Format, Message, Tool, ToolCall, ToolChoice};
pub use v4::V4;
pub use v41::V41;

use crate::config::{Config, Family};
use crate::error::Result;
use crate::text::prompt::Prompt;
use serde_json::Value;
use std::fmt::Debug;

/// Special tokens of the formats.
pub mod token {
    /// Start of the prompt.
    pub const BOS: &str = "<｜begin▁of▁sentence｜>";
    /// End of an assistant's turn.
    pub const EOS: &str = "<｜end▁of▁sentence｜>";
    /// Start of a system message; V4.1 only.
    pub const SYSTEM: &str = "<｜System｜>";
    /// Start of a user's turn.
    pub const USER: &str = "<｜User｜>";
    /// Start of an assistant's turn.
    pub const ASSISTANT: &str = "<｜Assistant｜>";
    /// Start of reasoning.
    pub const THINK: &str = "<think>";
    /// End of reasoning.
    pub const THINK_END: &str = "</think>";
    /// Start of a reminder.
    pub const REMINDER: &str = "<｜latest_reminder｜>";
    /// Inside the tags of tool calls.
    pub const DSML: &str = "｜DSML｜";
    /// Place of an image.
    pub const IMAGE: &str = "<｜image｜>";
    /// What an assistant may say of places in an image.
    pub const GROUNDING: [&str; 8] = [
        "<｜ref｜>",
        "<｜/ref｜>",
        "<｜box｜>",
        "<｜/box｜>",
        "<｜point｜>",
        "<｜/point｜>",
        "<｜polygon｜>",
        "<｜/polygon｜>",
    ];
}

/// A prompt format.
pub trait ChatEncoding: Debug + Send + Sync {
    /// `v4`, `v41`.
    fn name(&self) -> &'static str;
    /// A request (the fields of OpenAI's chat completions) as a conversation.
    ///
    /// # Errors
    /// A request that says nothing this format can express, with the place in it.
    fn read(&self, request: &Value) -> Result<Conversation>;
    /// The prompt of a conversation, up to where the assistant speaks next.
    fn render(&self, conversation: &Conversation) -> Prompt;
    /// A reader of what the assistant then says.
    fn parser(&self, conversation: &Conversation) -> Parser {
        Parser::new(conversation)
    }
}

/// The format of a model's family, if it has one here.
pub fn encoding_of(config: &Config) -> Option<&'static dyn ChatEncoding> {
    match config.family {
        Family::V3(_) => None,
        Family::V4(_) => Some(&V4),
        Family::V41(_) => Some(&V41),
    }
}

/// Says what an assistant said: places in images are special tokens, all else is characters.
fn push_assistant(prompt: &mut Prompt, text: &str) {
    let (mut rest, mut plain) = (text, 0);
    while let Some(at) = rest[plain..].find('<').map(|i| i + plain) {
        match token::GROUNDING.into_iter().find(|t| rest[at..].starts_with(t)) {
            Some(t) => {
                prompt.plain(&rest[..at]).special(t);
                (rest, plain) = (&rest[at + t.len()..], 0);
            }
            None => plain = at + 1,
        }
    }
    prompt.plain(rest);
}

/// Adds text before the rest of a message after a blank line.
fn paragraph(to: &mut Prompt, text: &Prompt) {
    to.plain("\n\n").append(text);
}
