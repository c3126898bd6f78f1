//! The prompt format of V4.1: a token for system messages, which keep their places, and a number for how hard to think.

use super::dsml::Tags;
use super::request::{self, Assistant, Conversation, Effort, Format, Images, Message};
use super::v4::{id, next_turn, results, schema_text};
use super::{ChatEncoding, paragraph, push_assistant, token};
use crate::error::Result;
use crate::text::prompt::Prompt;
use serde_json::{Value, json};

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct V41;

/// Names with a space before them: as tokens they are then words.
const TAGS: Tags =
    Tags { calls: " calls", invoke: " invoke", parameter: " parameter", empty_line: true, python_numbers: true };

impl ChatEncoding for V41 {
    fn name(&self) -> &'static str {
        "v41"
    }

    fn read(&self, request: &Value) -> Result<Conversation> {
        request::read(request, Images::Placed)
    }

    fn render(&self, c: &Conversation) -> Prompt {
        let messages = turns(c);
        let mut p = Prompt::default();
        p.special(token::BOS);
        if c.thinking && !messages.is_empty() {
            let effort = match c.effort {
                Effort::Low => 50,
                Effort::High => 75,
                Effort::Max => 100,
            };
            p.special(token::SYSTEM).plain(&format!(
                "Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
            ));
        }
        for (i, m) in messages.iter().enumerate() {
            let within_turn = i > 0 && matches!(messages[i - 1], Message::User(_) | Message::Tool { .. });
            match m {
                Message::System(text) => {
                    // The first one shares its token with the effort.
                    if i > 0 || !c.thinking {
                        p.special(token::SYSTEM);
                    }
                    p.append(text);
                }
                Message::User(text) if within_turn => paragraph(&mut p, text),
                Message::User(text) => {
                    p.special(token::USER).append(text);
                }
                Message::Tool { content, .. } => {
                    if within_turn {
                        p.plain("\n\n");
                    } else {
                        p.special(token::USER);
                    }
                    p.plain("<tool_result>").append(content).plain("</tool_result>");
                }
                Message::Reminder(text) => {
                    p.special(token::REMINDER).plain(text);
                }
                Message::Assistant(a) => {
                    let shown = c.thinking && i > 0 && (a.prefix || !c.tools.is_empty());
                    assistant(&mut p, a, shown);
                }
            }
        }
        next_turn(&mut p, c, &TAGS, messages.last());
        p
    }
}

fn assistant(p: &mut Prompt, a: &Assistant, reasoning_shown: bool) {
    p.special(token::ASSISTANT);
    if reasoning_shown {
        p.special(token::THINK);
        push_assistant(p, a.reasoning.as_deref().unwrap_or_default());
    }
    // A prefix without an answer goes on thinking.
    if !(reasoning_shown && a.prefix && a.content.is_empty() && a.calls.is_empty()) {
        p.special(token::THINK_END);
    }
    push_assistant(p, &a.content);
    if !a.calls.is_empty() {
        TAGS.calls(p, &a.calls);
    }
    if !a.prefix {
        p.special(token::EOS);
    }
}

/// Messages as they are shown: neighbouring ones of the user as one, one reminder of several, results in the order of their
/// calls, tools and the form of the answer in the first message, which is the system's.
fn turns(c: &Conversation) -> Vec<Message> {
    let mut out: Vec<Message> = vec![];
    for m in &c.messages {
        match (out.last_mut(), m) {
            (Some(Message::User(first)), Message::User(more)) => paragraph(first, more),
            (Some(Message::Reminder(_)), Message::Reminder(_)) => {}
            (_, m) => out.push(m.clone()),
        }
    }
    for i in 0..out.len() {
        let Message::Assistant(a) = &out[i] else { continue };
        let order: Vec<String> = a.calls.iter().map(|call| call.id.clone()).collect();
        results(&mut out[i + 1..]).sort_by_key(|m| order.iter().position(|o| o == id(m)));
    }
    let tools = (!c.tools.is_empty()).then(|| TAGS.instructions(&c.tools));
    let format = match &c.format {
        Format::Text => None,
        Format::JsonObject => Some(json!({"type": "json_object"})),
        Format::JsonSchema(schema) => Some(schema.clone()),
    };
    let format = format.map(|schema| Prompt::of(&schema_text(&TAGS, &schema)));
    if tools.is_some() || format.is_some() {
        if !matches!(out.first(), Some(Message::System(_))) {
            out.insert(0, Message::System(Prompt::default()));
        }
        if let Some(Message::System(text)) = out.first_mut() {
            tools.iter().chain(&format).for_each(|more| paragraph(text, more));
        }
    }
    out
}
