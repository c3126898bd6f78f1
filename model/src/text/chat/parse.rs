//! What an assistant said, taken apart while it arrives: reasoning, answer, calls of tools.
//!
//! ```text
//! reasoning ─</think>─▶ answer ─<DSML─▶ calls ─invoke name="─▶ name ─"─▶ arguments ─</DSML─▶ calls ─</DSML..calls>─▶ end
//!                                                               arguments ─parameter name=─▶ key, kind, value ─</DSML─▶ arguments
//! ```
//!
//! Markers may come in any number of pieces: what could still become one is kept back, so the result never depends on the
//! pieces. Newlines before and after a marker between reasoning, answer and calls belong to it. Arguments are JSON text that
//! grows as the value arrives. What follows the calls is ignored. Not here: texts that stop generation.

use super::request::{Assistant, Conversation, Message, ToolChoice};
use super::token::{DSML, THINK_END};

/// What is known of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: markers are recognised by their letters.
    Text,
    /// Ordinary tokens: the special part of a marker is not among them.
    Plain,
    /// One special token.
    Special,
}

/// A call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Name of the tool.
    pub name: String,
    /// JSON text, which is whole once the call has ended.
    pub arguments: String,
}

/// What was said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Reasoning.
    pub reasoning: String,
    /// Answer.
    pub content: String,
    /// Calls.
    pub calls: Vec<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// `fresh`: newlines at its start are dropped.
    Reasoning {
        fresh: bool,
    },
    Content {
        fresh: bool,
    },
    Calls,
    Name,
    Arguments {
        first: bool,
    },
    Key,
    KindOfValue,
    Value {
        text: bool,
    },
    End,
}

/// A marker, the stage after it, and whether newlines before it belong to it.
struct Rule {
    /// Letters, and whether they are of a special token.
    marker: Vec<(char, bool)>,
    next: Stage,
    takes_newlines: bool,
}

fn rule(parts: &[(&str, bool)], next: Stage, takes_newlines: bool) -> Rule {
    let marker = parts.iter().flat_map(|(s, special)| s.chars().map(move |c| (c, *special))).collect();
    Rule { marker, next, takes_newlines }
}

impl Rule {
    /// Newlines at the end of the text before the marker that belong to it. One that ends a marker begun in vain does not,
    /// as in the vendor's reader.
    fn newlines(&self, before: &[(char, Kind)]) -> usize {
        if !self.takes_newlines {
            return 0;
        }
        let count = before.iter().rev().take_while(|u| u.0 == '\n').count();
        let rest = &before[..before.len() - count];
        let begun = (1..self.marker.len()).any(|n| n <= rest.len() && full(&self.marker[..n], &rest[rest.len() - n..]));
        count.saturating_sub(usize::from(begun))
    }
}

/// A reader of one turn.
#[derive(Clone, Debug)]
pub struct Parser {
    stage: Stage,
    calls_tools: bool,
    /// Not decided yet.
    held: Vec<(char, Kind)>,
    name: String,
    said: Parsed,
}

impl Parser {
    /// A reader for the turn that follows a conversation.
    pub fn new(c: &Conversation) -> Parser {
        let stage = match c.messages.last() {
            _ if c.tool_choice == ToolChoice::Required => Stage::Calls,
            _ if !c.thinking => Stage::Content { fresh: true },
            Some(Message::Assistant(Assistant { prefix: true, content, .. })) if !content.is_empty() => {
                Stage::Content { fresh: false }
            }
            Some(Message::Assistant(Assistant { prefix: true, reasoning: Some(r), .. })) if !r.is_empty() => {
                Stage::Reasoning { fresh: false }
            }
            _ => Stage::Reasoning { fresh: true },
        };
        Parser { stage, calls_tools: !c.tools.is_empty(), held: vec![], name: String::new(), said: Parsed::default() }
    }

    /// What was said up to here, as far as it is decided.
    pub fn said(&self) -> &Parsed {
        &self.said
    }

    /// Takes in the next piece.
    pub fn push(&mut self, text: &str, kind: Kind) {
        self.held.extend(text.chars().map(|c| (c, kind)));
        loop {
            self.drop_newlines();
            let rules = self.rules();
            let found = (0..self.held.len())
                .find_map(|at| rules.iter().find(|r| full(&r.marker, &self.held[at..])).map(|r| (at, r)));
            let Some((at, rule)) = found else {
                let keep = self.keep_from(&rules);
                let decided: Vec<_> = self.held.drain(..keep).collect();
                self.take(&decided);
                return;
            };
            let newlines = rule.newlines(&self.held[..at]);
            let decided: Vec<_> = self.held.drain(..at + rule.marker.len()).collect();
            self.take(&decided[..at - newlines]);
            self.pass(rule.next);
        }
    }

    /// All that was said: what was kept back is text after all.
    pub fn finish(mut self) -> Parsed {
        let held = std::mem::take(&mut self.held);
        self.take(&held);
        self.said
    }

    fn rules(&self) -> Vec<Rule> {
        let begin = rule(&[("<", false), (DSML, true)], Stage::Calls, true);
        let close = |next| rule(&[("</", false), (DSML, true)], next, false);
        let closed = |name| rule(&[("</", false), (DSML, true), (name, false)], Stage::End, false);
        let mut rules = match self.stage {
            Stage::Reasoning { .. } => vec![rule(&[(THINK_END, true)], Stage::Content { fresh: true }, true)],
            // One too many.
            Stage::Content { .. } => vec![rule(&[(THINK_END, true)], Stage::Content { fresh: false }, false)],
            Stage::Calls => {
                let begin = rule(&[("invoke name=\"", false)], Stage::Name, false);
                vec![begin, closed("tool_calls>"), closed(" calls>")]
            }
            Stage::Name => vec![rule(&[("\"", false)], Stage::Arguments { first: true }, false)],
            Stage::Arguments { .. } => {
                vec![rule(&[("parameter name=", false)], Stage::Key, false), close(Stage::Calls)]
            }
            Stage::Key => vec![rule(&[(" ", false)], Stage::KindOfValue, false)],
            Stage::KindOfValue => vec![
                rule(&[("true\">", false)], Stage::Value { text: true }, false),
                rule(&[("false\">", false)], Stage::Value { text: false }, false),
            ],
            Stage::Value { .. } => vec![close(Stage::Arguments { first: false })],
            Stage::End => vec![],
        };
        if self.calls_tools && matches!(self.stage, Stage::Reasoning { .. } | Stage::Content { .. }) {
            rules.push(begin);
        }
        rules
    }

    /// Where what may still become a marker begins.
    fn keep_from(&self, rules: &[Rule]) -> usize {
        let held = &self.held;
        let begun = |at: usize, r: &Rule| {
            let rest = &held[at..];
            rest.len() < r.marker.len() && rest.iter().zip(&r.marker).all(|(u, m)| fits(*u, *m))
        };
        // The empty rest at the end may begin any marker.
        let from = |r: &Rule| {
            let at = (0..=held.len()).find(|&at| begun(at, r)).unwrap_or(held.len());
            at - r.newlines(&held[..at])
        };
        rules.iter().map(from).min().unwrap_or(held.len())
    }

    fn drop_newlines(&mut self) {
        if matches!(self.stage, Stage::Reasoning { fresh: true } | Stage::Content { fresh: true }) {
            let n = self.held.iter().take_while(|u| u.0 == '\n').count();
            self.held.drain(..n);
        }
    }

    /// Text of the stage.
    fn take(&mut self, units: &[(char, Kind)]) {
        if units.is_empty() {
            return;
        }
        let text = units.iter().map(|u| u.0);
        match &mut self.stage {
            Stage::Reasoning { fresh } => {
                *fresh = false;
                self.said.reasoning.extend(text);
            }
            Stage::Content { fresh } => {
                *fresh = false;
                self.said.content.extend(text);
            }
            Stage::Name => self.name.extend(text),
            Stage::Key | Stage::Value { text: false } => self.argue(&text.collect::<String>()),
            Stage::Value { text: true } => {
                let quoted = serde_json::Value::from(text.collect::<String>()).to_string();
                self.argue(&quoted[1..quoted.len() - 1]);
            }
            Stage::Calls | Stage::Arguments { .. } | Stage::KindOfValue | Stage::End => {}
        }
    }

    /// Adds to the arguments of the last call.
    fn argue(&mut self, text: &str) {
        if let Some(call) = self.said.calls.last_mut() {
            call.arguments.push_str(text);
        }
    }

    /// From one stage to the next.
    fn pass(&mut self, next: Stage) {
        match (self.stage, next) {
            (Stage::Name, _) => {
                let name = std::mem::take(&mut self.name);
                self.said.calls.push(Call { name, arguments: String::new() });
            }
            (Stage::Arguments { first }, Stage::Key) => self.argue(if first { "{" } else { ", " }),
            (Stage::Arguments { first }, _) => self.argue(if first { "{}" } else { "}" }),
            (Stage::Key, _) => self.argue(": "),
            (Stage::KindOfValue, Stage::Value { text: true }) | (Stage::Value { text: true }, _) => self.argue("\""),
            _ => {}
        }
        self.stage = next;
    }
}

fn fits((c, kind): (char, Kind), (want, special): (char, bool)) -> bool {
    c == want
        && match kind {
            Kind::Text => true,
            Kind::Plain => !special,
            Kind::Special => special,
        }
}

fn full(marker: &[(char, bool)], units: &[(char, Kind)]) -> bool {
    units.len() >= marker.len() && units.iter().zip(marker).all(|(u, m)| fits(*u, *m))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chat::{ChatEncoding, V4};
    use serde_json::json;

    fn conversation(thinking: bool) -> Conversation {
        let kind = if thinking { "enabled" } else { "disabled" };
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let messages = json!([{"role": "user", "content": "x"}]);
        V4.read(&json!({"messages": messages, "tools": [tool], "thinking": {"type": kind}})).expect("reads")
    }

    fn parsed(thinking: bool, pieces: &[(&str, Kind)]) -> Parsed {
        let mut p = Parser::new(&conversation(thinking));
        pieces.iter().for_each(|(text, kind)| p.push(text, *kind));
        p.finish()
    }

    #[test]
    fn a_marker_needs_its_token_where_tokens_are_known() {
        use Kind::{Plain, Special, Text};
        let spelled = parsed(true, &[("a</think>b", Plain)]);
        assert_eq!((spelled.reasoning.as_str(), spelled.content.as_str()), ("a</think>b", ""));
        let token = parsed(true, &[("a", Plain), ("</think>", Special), ("b", Plain)]);
        assert_eq!((token.reasoning.as_str(), token.content.as_str()), ("a", "b"));
        let text = parsed(true, &[("a</thi", Text), ("nk>b", Text)]);
        assert_eq!(text, token);
    }

    #[test]
    fn what_could_become_a_marker_waits_and_newlines_with_it() {
        let mut p = Parser::new(&conversation(false));
        p.push("\n\na\n", Kind::Text);
        assert_eq!(p.said().content, "a");
        p.push("\nb <｜DS", Kind::Text);
        assert_eq!(p.said().content, "a\n\nb ");
        assert_eq!(p.finish().content, "a\n\nb <｜DS");
    }

    #[test]
    fn calls_that_end_early_keep_what_there_is() {
        let text =
            "\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x\"";
        let p = parsed(false, &[(text, Kind::Text)]);
        assert_eq!(p.calls, [Call { name: "f".into(), arguments: "{\"a\": \"x\\\"".into() }]);
        assert_eq!(p.content, "");
    }
}
