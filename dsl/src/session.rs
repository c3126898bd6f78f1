//! The kernel under construction: a scoped thread-local that operators and ops write to.
//!
//! It holds the IR builder, the inlined calls and labels around the current position, and every mistake found so far.
//! Not public: kernels see typed values only, generated code goes through `plumbing`.

use kiln_codegen::diag::Diagnostic;
use kiln_codegen::ir::{Builder, Frame, Kernel, Op, OpId, RoleId, Span, SpanId};
use kiln_codegen::spec::KernelInfo;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Once};

thread_local! {
    static CURRENT: RefCell<Option<Session>> = const { RefCell::new(None) };
    /// Where the last panic of a quiet section happened; `Some` while such a section runs.
    static QUIET: Cell<Option<Panic>> = const { Cell::new(None) };
}

/// One kernel being built on this thread.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) b: Builder,
    frames: Vec<Frame>,
    labels: Vec<Arc<str>>,
    errors: Vec<Diagnostic>,
    /// File names as spans keep them.
    files: HashMap<&'static str, Arc<str>>,
    /// Nesting of element bodies; tile ops are refused inside.
    pub(crate) bodies: usize,
    /// Role whose program is being built.
    pub(crate) role: Option<RoleId>,
    /// Where `roles` stands.
    pub(crate) roles_at: Option<SpanId>,
    /// Where the loop over output tiles ended: position, and ops of the kernel's body by then.
    tiles: Option<(SpanId, usize)>,
    /// Name for the next buffer or index variable, and the call depth it was given at.
    pending: Option<(&'static str, usize)>,
}

impl Session {
    /// The span of a user position, with the calls and the label around it.
    pub(crate) fn span(&mut self, at: &'static Location<'static>) -> Span {
        let file = self.files.entry(at.file()).or_insert_with(|| at.file().into());
        Span {
            file: file.clone(),
            line: at.line(),
            column: at.column(),
            frames: self.frames.iter().rev().cloned().collect(),
            label: self.labels.last().cloned(),
        }
    }
    /// Notes a mistake at the current position; building goes on, so that others are found too.
    pub(crate) fn error(&mut self, code: &'static str, message: impl Into<String>) -> &mut Diagnostic {
        let d = Diagnostic::error(&self.b.kernel, self.b.here(), code, message);
        self.errors.push(d);
        let last = self.errors.len() - 1;
        &mut self.errors[last]
    }
    /// Notes a mistake at an earlier position.
    pub(crate) fn error_at(&mut self, at: SpanId, code: &'static str, message: &str, help: &str) {
        self.errors.push(Diagnostic::error(&self.b.kernel, at, code, message).help(help));
    }
    /// Refuses a tile op inside an element body.
    pub(crate) fn block_level(&mut self, what: &str) {
        if self.bodies > 0 {
            let d = self.error("B0301", format!("`{what}` inside an element body; only scalar code is allowed there"));
            d.help = Some("move it before or after the `parallel`, `spread` or `map`".into());
        }
    }
    /// Pushes an op that belongs to a construct opened earlier, at that construct's position.
    pub(crate) fn push_at(&mut self, at: SpanId, op: Op) -> OpId {
        let span = self.b.kernel.span_of(at).clone();
        self.b.at(span);
        self.b.push(op)
    }
    /// A loop over output tiles ends here.
    pub(crate) fn end_tiles(&mut self) {
        self.tiles = Some((self.b.here(), self.body_length()));
    }
    fn body_length(&self) -> usize {
        self.b.kernel.block(self.b.kernel.body).ops.len()
    }
    /// Refuses what stands behind a loop over output tiles.
    fn check_tiles(&mut self) {
        let Some((end, length)) = self.tiles else { return };
        let body = &self.b.kernel.block(self.b.kernel.body).ops;
        let Some(&op) = body.get(length) else { return };
        let k = &self.b.kernel;
        let d = Diagnostic::error(k, k.op(op).span, "B0108", "a statement behind the `tile_loop`")
            .note("the loop ends", Some(k.span_of(end).clone()))
            .help("a tile is finished by its own block: move the statement into the loop");
        self.errors.push(d);
    }
    /// Name for a new buffer or variable: the `let` it is bound by, else `default`.
    pub(crate) fn take_name(&mut self, default: &'static str) -> &'static str {
        match self.pending {
            Some((name, depth)) if depth == self.frames.len() => {
                self.pending = None;
                name
            }
            _ => default,
        }
    }
}

/// Runs `f` on the kernel under construction, with the caller's position as the position of what it builds.
#[track_caller]
pub(crate) fn with<R>(f: impl FnOnce(&mut Session) -> R) -> R {
    let at = Location::caller();
    CURRENT.with(|c| {
        let mut c = c.borrow_mut();
        let s = c.as_mut().expect("device values exist only while a `#[kernel]` is being built");
        let span = s.span(at);
        s.b.at(span);
        f(s)
    })
}

/// Like [`with`], without a kernel being built as a valid case.
pub(crate) fn with_current<R>(f: impl FnOnce(&mut Session) -> R) -> Option<R> {
    CURRENT.with(|c| c.borrow_mut().as_mut().map(f))
}

/// A `#[kernel_fn]` call, until dropped.
#[derive(Debug)]
#[must_use]
pub struct InlineFrame(());

/// Enters an inlined function; the caller's position is the call.
#[track_caller]
pub fn frame(function: &'static str) -> InlineFrame {
    let at = Location::caller();
    with_current(|s| {
        let frame = Frame { function: function.into(), file: at.file().into(), line: at.line(), column: at.column() };
        s.frames.push(frame);
    });
    InlineFrame(())
}

impl Drop for InlineFrame {
    fn drop(&mut self) {
        with_current(|s| s.frames.pop());
    }
}

/// A labelled statement, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Labelled(());

/// Labels everything built until the result is dropped.
pub fn label(name: &'static str) -> Labelled {
    with_current(|s| s.labels.push(name.into()));
    Labelled(())
}

impl Drop for Labelled {
    fn drop(&mut self) {
        with_current(|s| s.labels.pop());
    }
}

/// Tells the name of the `let` whose value is built next.
pub fn name(name: &'static str) {
    with_current(|s| s.pending = Some((name, s.frames.len())));
}

/// Builds one kernel: runs `f` with a fresh session and collects every mistake, panics included.
pub(crate) fn build(info: &KernelInfo, at: &Location<'_>, f: impl FnOnce()) -> Result<Kernel, Vec<Diagnostic>> {
    let span = Span { file: at.file().into(), line: at.line(), column: at.column(), frames: vec![], label: None };
    let session = Session {
        b: Builder::new(&info.name, span.clone()),
        frames: vec![],
        labels: vec![],
        errors: vec![],
        files: HashMap::new(),
        bodies: 0,
        role: None,
        roles_at: None,
        tiles: None,
        pending: None,
    };
    let outer = CURRENT.replace(Some(session));
    let outcome = quietly(f);
    let session = CURRENT.replace(outer);
    let Some(mut session) = session else {
        return Err(vec![Diagnostic::error_at(span, "B0101", "the builder lost its state")]);
    };
    session.check_tiles();
    let mut errors = session.errors;
    if let Err(panic) = outcome {
        let span =
            panic.at.map_or_else(|| span.clone(), |(file, line, column)| Span { file, line, column, ..span.clone() });
        errors.push(
            Diagnostic::error_at(span, "B0101", format!("the kernel's host code panicked: {}", panic.message))
                .help("a configuration or size the kernel cannot take belongs into `require(..)`"),
        );
        return Err(errors);
    }
    if session.b.kernel.grid.is_empty() {
        errors.push(
            Diagnostic::error_at(span.clone(), "B0103", "the kernel has no grid")
                .help("call `grid(..)` once at the top: its arguments are the numbers of blocks"),
        );
    }
    match session.b.finish() {
        Ok(kernel) if errors.is_empty() => Ok(kernel),
        Ok(_) => Err(errors),
        Err(open) => {
            errors.push(Diagnostic::error_at(span, "B0102", format!("{open} loops or branches were left open")));
            Err(errors)
        }
    }
}

/// What a panic said and where.
#[derive(Debug, Default)]
pub(crate) struct Panic {
    pub(crate) message: String,
    pub(crate) at: Option<(Arc<str>, u32, u32)>,
}

/// Runs host code of a user; a panic becomes a value and prints nothing.
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !note_quietly(info) {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(Some(Panic::default()));
    let result = catch_unwind(AssertUnwindSafe(f));
    let noted = QUIET.replace(outer);
    result.map_err(|payload| Panic { message: text(payload.as_ref()), at: noted.and_then(|p| p.at) })
}

/// Keeps the position of a panic if a quiet section is running on this thread.
fn note_quietly(info: &PanicHookInfo<'_>) -> bool {
    let Some(mut panic) = QUIET.take() else { return false };
    panic.at = info.location().map(|l| (l.file().into(), l.line(), l.column()));
    QUIET.set(Some(panic));
    true
}

fn text(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(s), _) => (*s).into(),
        (None, Some(s)) => s.clone(),
        (None, None) => "no message".into(),
    }
}
