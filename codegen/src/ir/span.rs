//! Source positions: every op, buffer, index variable and parameter keeps the place in the user's file it came from.
//!
//! Not a diagnostic; `crate::diag` renders these.

use std::sync::Arc;

/// Index into [`crate::ir::Kernel::spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(pub u32);

/// A position in the user's source with the inlined `#[kernel_fn]` calls around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Path as the compiler saw it, relative to the crate's workspace.
    pub file: Arc<str>,
    /// 1-based line.
    pub line: u32,
    /// 1-based column.
    pub column: u32,
    /// Calls of `#[kernel_fn]` this op was inlined through, innermost first.
    pub frames: Vec<Frame>,
    /// The statement's `#[label(..)]`, if any.
    pub label: Option<Arc<str>>,
}

/// One inlined call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Name of the function that was inlined.
    pub function: Arc<str>,
    /// File of the call.
    pub file: Arc<str>,
    /// Line of the call.
    pub line: u32,
    /// Column of the call.
    pub column: u32,
}

impl Span {
    /// A position for generated or hand-built IR.
    pub fn unknown() -> Self {
        Span { file: "<built>".into(), line: 0, column: 0, frames: Vec::new(), label: None }
    }

    /// `file:line:column` with the last path component only, as generated code prints it.
    pub fn short(&self) -> String {
        let name = self.file.rsplit('/').next().unwrap_or(&self.file);
        format!("{name}:{}:{}", self.line, self.column)
    }
}
