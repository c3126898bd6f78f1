//! A chat request (the fields of OpenAI's chat completions) as a conversation, with every rule of the vendor's checked.
//!
//! Fields that are unknown are left alone, as by the vendor; a field that is known and wrong is refused with its place. What
//! is not expressed in a prompt (temperature, stop texts) is checked here and read where requests are run. Not here: the prompt.
//! Source: behaviour of deepseek-recipe 0.2.0.

use super::token;
use crate::error::Result;
use crate::text::prompt::Prompt;
use crate::text::refuse;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// What a prompt is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// In order.
    pub messages: Vec<Message>,
    /// The assistant reasons before it answers.
    pub thinking: bool,
    /// How much.
    pub effort: Effort,
    /// Tools the assistant may call.
    pub tools: Vec<Tool>,
    /// Whether it has to.
    pub tool_choice: ToolChoice,
    /// Form of the answer.
    pub format: Format,
    /// Images whose places are in the messages.
    pub images: usize,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Of the system.
    System(Prompt),
    /// Of the user.
    User(Prompt),
    /// Of the assistant.
    Assistant(Assistant),
    /// Result of the call with this id.
    Tool {
        /// What came out.
        content: Prompt,
        /// The call.
        id: String,
    },
    /// A reminder.
    Reminder(String),
}

/// A turn of the assistant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assistant {
    /// Answer.
    pub content: String,
    /// What went before it; `None` with thinking off.
    pub reasoning: Option<String>,
    /// Calls of tools.
    pub calls: Vec<ToolCall>,
    /// The turn goes on.
    pub prefix: bool,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does; may be empty.
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

/// How much to reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// `minimal`, `low`.
    Low,
    /// `medium`, `high`, `xhigh`, or nothing said.
    High,
    /// `max`, `ultra`.
    Max,
}

/// Whether tools are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the assistant likes.
    Auto,
    /// Not at all.
    None,
    /// At least one.
    Required,
}

/// Form of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(Value),
}

/// Who answers, as far as requests are read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Images {
    /// A place for each.
    Placed,
    /// A text that says there was one.
    Unsupported,
}

const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "latest_reminder"];

/// A value and the way to it.
#[derive(Clone)]
struct At<'a> {
    place: String,
    value: &'a Value,
}

fn kind(v: &Value) -> String {
    match v {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => v.to_string(),
        Value::String(s) => format!("\"{}\"", s.chars().take(60).collect::<String>()),
        Value::Array(l) => format!("a list of {}", l.len()),
        Value::Object(_) => "an object".into(),
    }
}

impl<'a> At<'a> {
    fn wrong<T>(&self, expected: impl Into<String>, next: &str) -> Result<T> {
        refuse(&self.place, expected, kind(self.value), next)
    }
    /// A field that is there and not null.
    fn get(&self, key: &str) -> Option<At<'a>> {
        let value = self.value.get(key).filter(|v| !v.is_null())?;
        let dot = if self.place.is_empty() { "" } else { "." };
        Some(At { place: format!("{}{dot}{key}", self.place), value })
    }
    fn need(&self, key: &str) -> Result<At<'a>> {
        let dot = if self.place.is_empty() { "" } else { "." };
        self.get(key)
            .map_or_else(|| refuse(format!("{}{dot}{key}", self.place), "a value", "nothing", "add the field"), Ok)
    }
    fn text(&self) -> Result<&'a str> {
        self.value.as_str().map_or_else(|| self.wrong("a text", "write it in quotes"), Ok)
    }
    fn list(&self) -> Result<Vec<At<'a>>> {
        let Some(list) = self.value.as_array() else { return self.wrong("a list", "write it in brackets") };
        Ok(list.iter().enumerate().map(|(i, value)| At { place: format!("{}[{i}]", self.place), value }).collect())
    }
    fn object(&self) -> Result<&'a Map<String, Value>> {
        self.value.as_object().map_or_else(|| self.wrong("an object", "write it in braces"), Ok)
    }
    fn flag(&self) -> Result<bool> {
        self.value.as_bool().map_or_else(|| self.wrong("true or false", "correct the field"), Ok)
    }
    fn word(&self, words: &[&str]) -> Result<&'a str> {
        match self.value.as_str() {
            Some(w) if words.contains(&w) => Ok(w),
            _ => self.wrong(format!("one of {}", words.join(", ")), "correct the field"),
        }
    }
}

/// Reads a request.
pub(super) fn read(request: &Value, images: Images) -> Result<Conversation> {
    let r = At { place: String::new(), value: request };
    if !request.is_object() {
        return refuse("request", "an object with `messages`", kind(request), "as {\"messages\": [..]}");
    }
    let (thinking, effort) = thinking(&r)?;
    let declared = tools(&r)?;
    let choice = r.get("tool_choice");
    let mut reader = Reader { images, thinking, places: 0 };
    let messages = reader.messages(&r.need("messages")?)?;
    let prefix = prefixed(&messages)?;
    let format = format(&r)?;
    if format == Format::JsonObject && !messages.iter().any(says_json) {
        let want = "the word json in a message, since `response_format` is json_object";
        return refuse("messages", want, "none", "ask for json in the prompt");
    }
    let uses_tools = messages.iter().any(|m| match m {
        Message::Assistant(a) => !a.calls.is_empty(),
        Message::Tool { .. } => true,
        Message::System(_) | Message::User(_) | Message::Reminder(_) => false,
    });
    if prefix && (format == Format::JsonObject || uses_tools || !declared.is_empty()) {
        let want = "no tools and no json_object beside a message with `prefix`";
        return refuse("messages", want, "both", "leave one out");
    }
    let (tools, tool_choice) = chosen(declared, choice.as_ref(), thinking)?;
    numbers(&r)?;
    Ok(Conversation { messages, thinking, effort, tools, tool_choice, format, images: reader.places })
}

fn thinking(r: &At<'_>) -> Result<(bool, Effort)> {
    let switch = r.get("thinking").map(|t| t.need("type")?.word(&["enabled", "adaptive", "disabled"])).transpose()?;
    let words = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];
    let effort = r.get("reasoning_effort").map(|e| e.word(&words)).transpose()?;
    // The switch overrides the effort, and thinking is the default.
    let thinking = switch.map_or(effort != Some("none"), |s| s != "disabled");
    let effort = match effort {
        Some("minimal" | "low") => Effort::Low,
        Some("max" | "ultra") => Effort::Max,
        _ => Effort::High,
    };
    Ok((thinking, effort))
}

struct Reader {
    images: Images,
    thinking: bool,
    /// Images so far.
    places: usize,
}

impl Reader {
    fn messages(&mut self, at: &At<'_>) -> Result<Vec<Message>> {
        let list = at.list()?;
        if list.is_empty() {
            return at.wrong("at least one message", "as [{\"role\": \"user\", \"content\": \"Hello\"}]");
        }
        let mut out = vec![];
        // Ids of calls whose results have to come next.
        let mut open: Vec<&str> = vec![];
        for m in &list {
            let role = m.need("role")?.word(&ROLES)?;
            if !open.is_empty() && role != "tool" {
                let want = format!("a message of role tool for each call: {} has none", open.join(", "));
                return refuse(format!("{}.role", m.place), want, role, "add the results right after the calls");
            }
            out.push(match role {
                "system" => {
                    let content = self.content(&m.need("content")?)?;
                    if content.is_empty() {
                        continue;
                    }
                    Message::System(content)
                }
                "user" => Message::User(self.content(&m.need("content")?)?),
                "latest_reminder" => Message::Reminder(m.need("content")?.text()?.to_string()),
                "tool" => {
                    let id = m.need("tool_call_id")?;
                    let Some(known) = open.iter().position(|o| Some(*o) == id.value.as_str()) else {
                        let want = if open.is_empty() {
                            "a result right after the assistant's message with its call".to_string()
                        } else {
                            format!("the id of a call without a result: {}", open.join(", "))
                        };
                        return id.wrong(want, "put each call's result after the calls, once");
                    };
                    open.remove(known);
                    Message::Tool { content: self.content(&m.need("content")?)?, id: id.text()?.to_string() }
                }
                _ => {
                    let turn = self.assistant(m)?;
                    open = m.get("tool_calls").map_or(Ok(vec![]), |c| c.list())?.iter().map(id_of).collect();
                    Message::Assistant(turn)
                }
            });
        }
        match open.first() {
            None => Ok(out),
            Some(id) => {
                let want = format!("a message of role tool with the result of call {id}");
                refuse(&at.place, want, "the end", "add the results right after the calls")
            }
        }
    }

    fn assistant(&mut self, m: &At<'_>) -> Result<Assistant> {
        let (content, calls) = (m.get("content"), m.get("tool_calls"));
        if content.is_none() && calls.is_none() {
            return refuse(&m.place, "`content` or `tool_calls`", "neither", "add one of them");
        }
        let before = self.places;
        let text = content.as_ref().map(|c| self.content(c)).transpose()?.unwrap_or_default();
        if self.places > before {
            return refuse(&m.place, "an assistant's message without images", "an image", "leave it out");
        }
        let mut list: Vec<ToolCall> = vec![];
        for call in calls.as_ref().map_or(Ok(vec![]), At::list)? {
            call.need("type")?.word(&["function"])?;
            let f = call.need("function")?;
            let id = call.need("id")?;
            if list.iter().any(|c| c.id == id.value.as_str().unwrap_or_default()) {
                return id.wrong("an id that no call before has", "give each call an id of its own");
            }
            list.push(ToolCall {
                id: id.text()?.into(),
                name: f.need("name")?.text()?.into(),
                arguments: f.need("arguments")?.text()?.into(),
            });
        }
        if let (Some(calls), true) = (&calls, list.is_empty()) {
            return calls.wrong("at least one call", "leave `tool_calls` out");
        }
        let said = m.get("reasoning_content").map(|t| t.text().map(str::to_string)).transpose()?;
        let reasoning = self.thinking.then(|| said.unwrap_or_default());
        let prefix = m.get("prefix").map_or(Ok(false), |p| p.flag())?;
        Ok(Assistant { content: text.text, reasoning, calls: list, prefix })
    }

    /// A text, or blocks of text and images with blank lines between.
    fn content(&mut self, at: &At<'_>) -> Result<Prompt> {
        if let Value::String(s) = at.value {
            return Ok(Prompt::of(s));
        }
        if !at.value.is_array() {
            return at.wrong("a text or a list of blocks", "write it in quotes");
        }
        let mut out = Prompt::default();
        for (i, block) in at.list()?.iter().enumerate() {
            out.plain(if i == 0 { "" } else { "\n\n" });
            match block.need("type")?.word(&["text", "image_url", "file"])? {
                "text" => {
                    out.plain(block.need("text")?.text()?);
                }
                _ if self.images == Images::Unsupported => {
                    out.plain("[Unsupported Image]");
                }
                form => {
                    image(block, form)?;
                    out.special(token::IMAGE);
                    self.places += 1;
                }
            }
        }
        Ok(out)
    }
}

fn id_of<'a>(call: &At<'a>) -> &'a str {
    call.value.get("id").and_then(Value::as_str).unwrap_or_default()
}

/// The longest address of an image.
const MOST_OF_URL: usize = 10 * 1024;

/// An image's address, or its bytes in base64.
fn image(block: &At<'_>, form: &str) -> Result<()> {
    let at = if form == "image_url" { block.need("image_url")?.need("url")? } else { block.need("file_data")? };
    if form == "file"
        && let Some(id) = block.get("file_id")
    {
        return id.wrong("no file by id", "put the file into `file_data`");
    }
    let url = at.text()?;
    if form == "image_url" && url.starts_with("http") {
        if url.len() > MOST_OF_URL {
            return refuse(
                &at.place,
                "a shorter address",
                format!("{} bytes", url.len()),
                "put the image into the url",
            );
        }
        return Ok(());
    }
    if url.contains("base64,") { Ok(()) } else { at.wrong("an address, or data with `base64,`", "correct the url") }
}

fn prefixed(messages: &[Message]) -> Result<bool> {
    let open = |m: &Message| matches!(m, Message::Assistant(Assistant { prefix: true, .. }));
    match messages.iter().position(open) {
        None => Ok(false),
        Some(i) if i + 1 == messages.len() => Ok(true),
        Some(i) => refuse(
            format!("messages[{i}].prefix"),
            "`prefix` on the last message only",
            "a message after it",
            "leave `prefix` out, or what follows",
        ),
    }
}

fn says_json(m: &Message) -> bool {
    let text = match m {
        Message::System(p) | Message::User(p) | Message::Tool { content: p, .. } => &p.text,
        Message::Assistant(a) => &a.content,
        Message::Reminder(t) => t,
    };
    text.as_bytes().windows(4).any(|w| w.eq_ignore_ascii_case(b"json"))
}

fn format(r: &At<'_>) -> Result<Format> {
    let Some(f) = r.get("response_format") else { return Ok(Format::Text) };
    match f.need("type")?.word(&["text", "json_object", "json_schema", "regex"])? {
        "json_object" => Ok(Format::JsonObject),
        "json_schema" => {
            let body = f.need("json_schema")?;
            not_strict(&body)?;
            let schema = body.need("schema")?;
            schema.object()?;
            Ok(Format::JsonSchema(schema.value.clone()))
        }
        // A constraint on the output, not a text in the prompt.
        "regex" => f.need("regex")?.text().map(|_| Format::Text),
        _ => Ok(Format::Text),
    }
}

/// Strict schemas are rewritten by the vendor before they are shown; that is not here.
fn not_strict(at: &At<'_>) -> Result<()> {
    match at.get("strict") {
        Some(s) if s.flag()? => s.wrong("false: strict schemas are not enforced here", "leave `strict` out"),
        _ => Ok(()),
    }
}

const NAME: usize = 128;

fn tools(r: &At<'_>) -> Result<Vec<(Tool, String)>> {
    let mut names = BTreeSet::new();
    let mut out = vec![];
    for tool in r.get("tools").map_or(Ok(vec![]), |t| t.list())? {
        tool.need("type")?.word(&["function"])?;
        let f = tool.need("function")?;
        let name = f.need("name")?;
        let text = name.text()?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !(1..=NAME).contains(&text.len()) || !text.bytes().all(plain) {
            return name.wrong(format!("1 to {NAME} letters, digits, _ or -"), "rename the tool");
        }
        if !names.insert(text.to_string()) {
            return name.wrong("a name that no tool before has", "rename one of them");
        }
        not_strict(&f)?;
        let parameters = f.get("parameters");
        if let Some(p) = &parameters
            && p.object()?.get("type") != Some(&json!("object"))
        {
            return p.wrong("a schema with `type` \"object\"", "correct the schema");
        }
        let description = f.get("description").map_or(Ok(""), |d| d.text())?.to_string();
        let parameters = parameters.map_or(json!({}), |p| p.value.clone());
        out.push((Tool { name: text.into(), description, parameters }, name.place));
    }
    Ok(out)
}

/// The tools a prompt has, and whether one must be called.
fn chosen(tools: Vec<(Tool, String)>, choice: Option<&At<'_>>, thinking: bool) -> Result<(Vec<Tool>, ToolChoice)> {
    let mut tools: Vec<Tool> = tools.into_iter().map(|(t, _)| t).collect();
    let Some(at) = choice else { return Ok((tools, ToolChoice::Auto)) };
    let required = match at.value {
        Value::Object(_) => {
            at.need("type")?.word(&["function"])?;
            let name = at.need("function")?.need("name")?;
            let text = name.text()?;
            if !tools.is_empty() {
                tools.retain(|t| t.name == text);
                if tools.is_empty() {
                    return name.wrong("the name of a tool in `tools`", "declare the tool or choose another");
                }
            }
            true
        }
        _ => match at.word(&["none", "auto", "required"])? {
            "none" => return Ok((vec![], ToolChoice::None)),
            word => word == "required",
        },
    };
    if tools.is_empty() || !required {
        return Ok((tools, ToolChoice::Auto));
    }
    if thinking {
        return at.wrong("none or auto, since thinking is on", "set `thinking` to {\"type\": \"disabled\"}");
    }
    Ok((tools, ToolChoice::Required))
}

/// Most texts that may end an answer.
const STOPS: usize = 16;
/// Most new tokens.
const MOST_TOKENS: f64 = 393_216.0;

/// Fields that do not show in the prompt.
fn numbers(r: &At<'_>) -> Result<()> {
    let range = |key: &str, low: f64, high: f64| -> Result<()> {
        let Some(at) = r.get(key) else { return Ok(()) };
        match at.value.as_f64() {
            Some(x) if (low..=high).contains(&x) => Ok(()),
            _ => at.wrong(format!("a number from {low} to {high}"), "correct the field"),
        }
    };
    range("n", 1.0, 1.0)?;
    range("presence_penalty", -2.0, 2.0)?;
    range("frequency_penalty", -2.0, 2.0)?;
    range("temperature", 0.0, 2.0)?;
    range("top_p", f64::from(f32::MIN_POSITIVE), 1.0)?;
    range("max_tokens", 1.0, MOST_TOKENS)?;
    range("top_logprobs", 0.0, 20.0)?;
    let logprobs = r.get("logprobs").map_or(Ok(false), |l| l.flag())?;
    if let (Some(top), false) = (r.get("top_logprobs"), logprobs) {
        return top.wrong("`logprobs` true beside it", "add `logprobs`, or leave this out");
    }
    if let Some(seed) = r.get("seed")
        && seed.value.as_u64().is_none_or(|s| s >= 1 << 63)
    {
        return seed.wrong("a whole number below 2^63", "correct the field");
    }
    let stream = r.get("stream").map_or(Ok(false), |s| s.flag())?;
    if let (Some(options), false) = (r.get("stream_options"), stream) {
        return options.wrong("`stream` true beside it", "add `stream`, or leave this out");
    }
    stops(r.value).map(|_| ())
}

/// Texts that end an answer: `stop`, one or a list.
///
/// # Errors
/// Something else, an empty text, too many.
pub(crate) fn stops(request: &Value) -> Result<Vec<String>> {
    let r = At { place: String::new(), value: request };
    let Some(stop) = r.get("stop") else { return Ok(vec![]) };
    let list = if stop.value.is_string() { vec![stop.clone()] } else { stop.list()? };
    if list.len() > STOPS {
        return stop.wrong(format!("at most {STOPS} texts"), "leave some out");
    }
    let text = |s: &At<'_>| match s.text()? {
        "" => s.wrong("a text that is not empty", "leave it out"),
        text => Ok(text.to_string()),
    };
    list.iter().map(text).collect()
}
