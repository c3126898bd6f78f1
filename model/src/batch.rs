//! One line of a file of requests: what it asks, and the row that answers it.
//!
//! A line has `ids`, a `prompt` or `messages` (a chat request), an `id` if it likes, and numbers of its own for what the command
//! line says for all. Pure: lines in, rows out; whoever asked reads and writes files. Lines run one after another, each alone
//! with the model, so none changes the tokens of another.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::forward::Model;
use crate::generate::{Finish, Generated, Request, Sampling, generate};
use crate::text::chat::{self, ChatEncoding, Conversation, Kind};
use crate::text::refuse;
use crate::text::stream::TextStream;
use crate::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// What lines are read with.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The model's configuration.
    pub config: &'a Config,
    /// Its tokenizer.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Tokens at most, where a line says nothing.
    pub max_tokens: usize,
    /// How tokens are chosen, where a line says nothing.
    pub sampling: Sampling,
    /// Texts that end generation, where a line says nothing.
    pub stop: &'a [String],
}

/// A line read.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id.
    pub id: Value,
    /// What to generate.
    pub request: Request,
    /// Of a chat request.
    pub conversation: Option<Chat>,
}

/// A conversation and the format it is written in.
pub type Chat = (&'static dyn ChatEncoding, Conversation);

/// Fields of a line that is no chat request.
const FIELDS: [&str; 10] =
    ["id", "ids", "prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"];

impl<'a> Reader<'a> {
    /// A line's text. `id` is for a line that has none.
    ///
    /// # Errors
    /// What is wrong with it, by its field.
    pub fn line(&self, text: &str, id: Value) -> Result<Job> {
        let example = "as {\"id\": \"a\", \"prompt\": \"Hello\"}";
        match serde_json::from_str(text) {
            Ok(Value::Object(line)) => self.job(&line, id),
            Ok(other) => refuse("line", "a JSON object", other.to_string(), example),
            Err(e) => refuse("line", "JSON", e.to_string(), example),
        }
    }

    /// A request as an object.
    ///
    /// # Errors
    /// As for [`Reader::line`].
    pub fn job(&self, line: &Map<String, Value>, id: Value) -> Result<Job> {
        let id = match line.get("id") {
            None | Some(Value::Null) => id,
            Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
            Some(other) => return refuse("id", "a text or a number", other.to_string(), "correct or leave it out"),
        };
        let given: Vec<&str> = ["ids", "prompt", "messages"].into_iter().filter(|f| line.contains_key(*f)).collect();
        let &[form] = given.as_slice() else {
            let got = if given.is_empty() { "none of them".to_string() } else { given.join(" and ") };
            return refuse("line", "one of `ids`, `prompt` and `messages`", got, "say once what to continue");
        };
        let (ids, conversation) = match form {
            "ids" => (ids_of(&line["ids"])?, None),
            "prompt" => match &line["prompt"] {
                Value::String(text) => (self.tokenizer()?.encode(text)?, None),
                other => return refuse("prompt", "a text", other.to_string(), "write it in quotes"),
            },
            _ => {
                let (ids, chat) = self.chat(&Value::Object(line.clone()))?;
                (ids, Some(chat))
            }
        };
        // A chat request may have fields that other software reads.
        if let (None, Some(field)) = (&conversation, line.keys().find(|k| !FIELDS.contains(&k.as_str()))) {
            return refuse(
                field.as_str(),
                FIELDS.join(", "),
                "a field of another name",
                "correct the name or leave it out",
            );
        }
        let number = |field: &str, default: f64| match line.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(x) => x.as_f64().map_or_else(|| refuse(field, "a number", x.to_string(), "correct it"), Ok),
        };
        let count = |field: &str, default: u64| match line.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(x) => {
                x.as_u64().map_or_else(|| refuse(field, "a whole number of 0 or more", x.to_string(), "correct it"), Ok)
            }
        };
        let s = self.sampling;
        let sampling = Sampling {
            temperature: number("temperature", s.temperature)?,
            top_k: count("top_k", s.top_k as u64)? as usize,
            top_p: number("top_p", s.top_p)?,
            min_p: number("min_p", s.min_p)?,
            seed: count("seed", s.seed)?,
        };
        sampling.check()?;
        let max_tokens = count("max_tokens", self.max_tokens as u64)? as usize;
        let stop =
            if line.contains_key("stop") { chat::stops(&Value::Object(line.clone()))? } else { self.stop.to_vec() };
        let request = Request { ids, max_tokens, sampling, stop };
        self.fits(&request, form)?;
        Ok(Job { id, request, conversation })
    }

    /// What can be known before the model runs.
    fn fits(&self, r: &Request, form: &str) -> Result<()> {
        let (vocab, most) = (self.config.vocab_size, self.config.max_position_embeddings);
        if r.ids.is_empty() {
            return refuse(form, "at least one token", "none", "say something to continue");
        }
        if let Some(id) = r.ids.iter().find(|&&id| id >= vocab) {
            let next = "take ids of this model's tokenizer";
            return refuse(form, format!("token ids below `vocab_size` {vocab}"), id.to_string(), next);
        }
        if r.ids.len() > most {
            let want = format!("at most `max_position_embeddings` {most} tokens");
            return refuse(form, want, r.ids.len().to_string(), "shorten the prompt");
        }
        if !r.stop.is_empty() {
            self.tokenizer()?;
        }
        Ok(())
    }

    fn tokenizer(&self) -> Result<&'a Tokenizer> {
        let file = self.config.file.with_file_name(crate::text::tokenizer::FILE);
        let next = "put the checkpoint's tokenizer.json there, or give `ids` (--ids)";
        self.tokenizer.map_or_else(|| refuse(file, "a tokenizer, since the request has text", "no such file", next), Ok)
    }

    fn chat(&self, line: &Value) -> Result<(Vec<usize>, Chat)> {
        let Some(encoding) = chat::encoding_of(self.config) else {
            let got = self.config.architecture();
            return refuse("messages", "a model with a chat format here: v4, v41", got, "give a `prompt` or `ids`");
        };
        let conversation = encoding.read(line)?;
        if conversation.images > 0 {
            return refuse("messages", "text", "an image", "leave it out: images are not computed here");
        }
        let ids = self.tokenizer()?.encode_prompt(&encoding.render(&conversation))?;
        Ok((ids, (encoding, conversation)))
    }
}

fn ids_of(value: &Value) -> Result<Vec<usize>> {
    let id = |x: &Value| x.as_u64().and_then(|x| usize::try_from(x).ok());
    let list = value.as_array().and_then(|l| l.iter().map(id).collect::<Option<Vec<_>>>());
    list.map_or_else(|| refuse("ids", "a list of token ids", value.to_string(), "as [5, 17]"), Ok)
}

/// Runs a job: its row, and how many tokens were made.
///
/// # Errors
/// As for [`generate`].
pub fn run(model: &Model, tokenizer: Option<&Tokenizer>, job: &Job) -> Result<(Value, usize)> {
    let made = generate(model, tokenizer, &job.request, &mut |_, _| ())?;
    let mut finish = match made.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    };
    let message = match (&job.conversation, tokenizer) {
        (Some((encoding, conversation)), Some(t)) => Some(message(*encoding, conversation, t, &made)),
        _ => None,
    };
    if made.finish == Finish::Stop && message.as_ref().is_some_and(|m| m.get("tool_calls").is_some()) {
        finish = "tool_calls";
    }
    let usage = json!({"prompt_tokens": job.request.ids.len(), "completion_tokens": made.ids.len()});
    let tokens = made.ids.len();
    let mut row = json!({"id": job.id, "ids": made.ids, "text": made.text, "finish": finish, "usage": usage});
    if let (Some(message), Some(row)) = (message, row.as_object_mut()) {
        row.insert("message".into(), message);
    }
    Ok((row, tokens))
}

/// What the assistant said, as a message of a chat.
fn message(encoding: &dyn ChatEncoding, conversation: &Conversation, t: &Tokenizer, made: &Generated) -> Value {
    let mut parser = encoding.parser(conversation);
    let mut stream = TextStream::default();
    // Text from a stop text on was cut off.
    let mut left = made.text.as_ref().map_or(0, String::len);
    let mut push = |piece: &str, kind| {
        let piece = &piece[..piece.floor_char_boundary(left)];
        left -= piece.len();
        parser.push(piece, kind);
    };
    for token in made.ids.iter().filter_map(|id| t.token(*id)) {
        let kind = if token.special { Kind::Special } else { Kind::Plain };
        push(&stream.push(&token.bytes), kind);
    }
    push(&stream.finish(), Kind::Plain);
    let said = parser.finish();
    let mut out = json!({"role": "assistant", "content": said.content});
    if let Some(fields) = out.as_object_mut() {
        if conversation.thinking {
            fields.insert("reasoning_content".into(), said.reasoning.into());
        }
        let calls = said.calls.iter().enumerate().map(|(i, c)| {
            let function = json!({"name": c.name, "arguments": c.arguments});
            json!({"id": format!("call_{i}"), "type": "function", "function": function})
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            fields.insert("tool_calls".into(), calls.into());
        }
    }
    out
}

/// Whether an error is about one request, so that the others can go on.
pub fn is_of_request(e: &Error) -> bool {
    match e {
        Error::Input { .. } => true,
        Error::Config(_) | Error::Checkpoint(_) | Error::Tensors(_) | Error::Operator(_) | Error::Device(_) => false,
    }
}
