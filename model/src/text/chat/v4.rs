//! The prompt format of V4: system texts first and without a token of their own, one text for how hard to think.

use super::dsml::Tags;
use super::request::{self, Conversation, Effort, Format, Images, Message, ToolChoice};
use super::{ChatEncoding, paragraph, push_assistant, token};
use crate::error::Result;
use crate::text::prompt::Prompt;
use serde_json::Value;

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct V4;

const TAGS: Tags =
    Tags { calls: "tool_calls", invoke: "invoke", parameter: "parameter", empty_line: false, python_numbers: false };

const HIGH: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

";
const MAX: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

";
const JSON: &str =
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";

impl ChatEncoding for V4 {
    fn name(&self) -> &'static str {
        "v4"
    }

    fn read(&self, request: &Value) -> Result<Conversation> {
        request::read(request, Images::Unsupported)
    }

    fn render(&self, c: &Conversation) -> Prompt {
        let shows_tools = !c.tools.is_empty();
        let mut p = Prompt::default();
        p.special(token::BOS);
        if c.thinking {
            p.plain(match c.effort {
                Effort::Low => "",
                Effort::High => HIGH,
                Effort::Max => MAX,
            });
        }
        system(&mut p, c);
        let messages = turns(&c.messages);
        let mut before = None;
        for (i, m) in messages.iter().enumerate() {
            match m {
                // All of them stand at the start.
                Message::System(_) => {}
                Message::User(text) => match before {
                    Some(Message::User(_) | Message::Tool { .. }) => paragraph(&mut p, text),
                    _ => {
                        p.special(token::USER).append(text);
                    }
                },
                Message::Tool { content, .. } => {
                    match before {
                        Some(Message::Tool { .. }) => p.plain("\n\n"),
                        _ => p.special(token::USER),
                    };
                    p.plain("<tool_result>").append(content).plain("</tool_result>");
                }
                Message::Reminder(text) => {
                    p.special(token::REMINDER).plain(text);
                }
                Message::Assistant(a) => {
                    p.special(token::ASSISTANT);
                    // What was thought earlier matters only between calls of tools.
                    if let Some(reasoning) = a.reasoning.as_ref().filter(|_| a.prefix || shows_tools) {
                        p.special(token::THINK);
                        push_assistant(&mut p, reasoning);
                    }
                    if !c.thinking || !a.prefix || !a.content.is_empty() {
                        p.special(token::THINK_END);
                    }
                    push_assistant(&mut p, &a.content);
                    if !a.calls.is_empty() {
                        TAGS.calls(&mut p, &a.calls);
                    }
                    if i + 1 < messages.len() || !a.prefix {
                        p.special(token::EOS);
                    }
                }
            }
            before = Some(m.clone());
        }
        next_turn(&mut p, c, &TAGS, messages.last());
        p
    }
}

/// The assistant's next turn begins, unless the last one goes on.
pub(super) fn next_turn(p: &mut Prompt, c: &Conversation, tags: &Tags, last: Option<&Message>) {
    if !matches!(last, Some(Message::Assistant(a)) if a.prefix) {
        p.special(token::ASSISTANT).special(if c.thinking { token::THINK } else { token::THINK_END });
    }
    if c.tool_choice == ToolChoice::Required {
        tags.start(p);
    }
}

/// System texts, tools and the form of the answer, with blank lines between; an empty text first if there is none.
fn system(p: &mut Prompt, c: &Conversation) {
    let texts = c.messages.iter().filter_map(|m| match m {
        Message::System(text) => Some(text.clone()),
        Message::User(_) | Message::Assistant(_) | Message::Tool { .. } | Message::Reminder(_) => None,
    });
    let mut texts: Vec<Prompt> = texts.collect();
    let tools = (!c.tools.is_empty()).then(|| TAGS.instructions(&c.tools));
    let format = match &c.format {
        Format::Text => None,
        Format::JsonObject => Some(Prompt::of(JSON)),
        Format::JsonSchema(schema) => Some(Prompt::of(&schema_text(&TAGS, schema))),
    };
    if texts.is_empty() && (tools.is_some() || format.is_some()) {
        texts.push(Prompt::default());
    }
    for (i, text) in texts.into_iter().chain(tools).chain(format).enumerate() {
        p.plain(if i == 0 { "" } else { "\n\n" }).append(&text);
    }
}

/// What both formats say of a schema the answer must follow.
pub(super) fn schema_text(tags: &Tags, schema: &Value) -> String {
    let schema = tags.json(schema);
    format!("## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{schema}")
}

/// Messages without those of the system: neighbouring ones of the user as one, calls and their results by id.
fn turns(messages: &[Message]) -> Vec<Message> {
    let mut out: Vec<Message> = vec![];
    for m in messages {
        match (out.last_mut(), m) {
            (_, Message::System(_)) => {}
            (Some(Message::User(first)), Message::User(more)) => {
                if !first.is_empty() && !more.is_empty() {
                    first.plain("\n\n");
                }
                first.append(more);
            }
            (_, m) => out.push(m.clone()),
        }
    }
    for i in 0..out.len() {
        let Message::Assistant(a) = &mut out[i] else { continue };
        a.calls.sort_by(|x, y| x.id.cmp(&y.id));
        results(&mut out[i + 1..]).sort_by(|x, y| id(x).cmp(id(y)));
    }
    out
}

/// The results at the start of some messages.
pub(super) fn results(messages: &mut [Message]) -> &mut [Message] {
    let n = messages.iter().take_while(|m| matches!(m, Message::Tool { .. })).count();
    &mut messages[..n]
}

/// Id of the call a result is of.
pub(super) fn id(m: &Message) -> &str {
    match m {
        Message::Tool { id, .. } => id,
        Message::System(_) | Message::User(_) | Message::Assistant(_) | Message::Reminder(_) => "",
    }
}
