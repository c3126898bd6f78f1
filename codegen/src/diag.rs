//! Diagnostics with source positions, and their text form.
//!
//! A diagnostic says what was found, where, what is allowed and what to do. Codes: `M` macro, `B` builder, `V` verifier,
//! `C` target check, `S` sanitizer. Rendering takes a function that gives source lines, so this file does no I/O.

use crate::ir::{Kernel, Span, SpanId};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The kernel is refused.
    Error,
    /// Accepted, worth knowing.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Stable code, `V0412`.
    pub code: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Headline.
    pub message: String,
    /// Main position.
    pub span: Span,
    /// Text under the caret.
    pub label: String,
    /// Further facts, each optionally with a position.
    pub notes: Vec<(String, Option<Span>)>,
    /// What to do.
    pub help: Option<String>,
    /// What was built: `radix_topk<..>  cfg = ..  target = ..`.
    pub context: Option<String>,
}

impl Diagnostic {
    /// An error at a position of a kernel.
    pub fn error(kernel: &Kernel, span: SpanId, code: &'static str, message: impl Into<String>) -> Self {
        Self::error_at(kernel.span_of(span).clone(), code, message)
    }
    /// An error at a span.
    pub fn error_at(span: Span, code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            span,
            label: String::new(),
            notes: vec![],
            help: None,
            context: None,
        }
    }
    /// The same as a warning.
    pub fn warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }
    /// Adds the text under the caret.
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.label = text.into();
        self
    }
    /// Adds a note.
    pub fn note(mut self, text: impl Into<String>, span: Option<Span>) -> Self {
        self.notes.push((text.into(), span));
        self
    }
    /// Adds advice.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
    /// Adds what was built.
    pub fn context(mut self, text: impl Into<String>) -> Self {
        self.context = Some(text.into());
        self
    }

    /// Text form; `source(file, line)` gives a line of source if it can be had.
    pub fn render(&self, source: &dyn Fn(&str, u32) -> Option<String>) -> String {
        let kind = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let s = &self.span;
        let mut out = format!("{kind}[{}]: {}\n  --> {}:{}:{}\n", self.code, self.message, s.file, s.line, s.column);
        let width = s.line.to_string().len();
        if let Some(text) = source(&s.file, s.line) {
            let pad = " ".repeat(s.column.saturating_sub(1) as usize);
            let rest: String = text.chars().skip(s.column.saturating_sub(1) as usize).collect();
            let carets = caret_width(&rest);
            out += &format!("{} | {}\n", s.line, text.trim_end());
            let label = if self.label.is_empty() { String::new() } else { format!(" {}", self.label) };
            out += &format!("{} | {pad}{}{label}\n", " ".repeat(width), "^".repeat(carets));
        } else if !self.label.is_empty() {
            out += &format!("  = {}\n", self.label);
        }
        for frame in &s.frames {
            out +=
                &format!("  note: in `{}`, called at {}:{}:{}\n", frame.function, frame.file, frame.line, frame.column);
        }
        for (text, at) in &self.notes {
            match at {
                Some(a) => out += &format!("  note: {text} at {}:{}:{}\n", a.file, a.line, a.column),
                None => out += &format!("  note: {text}\n"),
            }
        }
        if let Some(h) = &self.help {
            out += &format!("  help: {h}\n");
        }
        if let Some(c) = &self.context {
            out += &format!("  in: {c}\n");
        }
        out
    }
}

/// Length of the token the caret stands under: an identifier with its path and call name, else one character.
fn caret_width(rest: &str) -> usize {
    let n = rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':')).count();
    n.max(1)
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.render(&|_, _| None).trim_end())
    }
}
