//! Rewriting a kernel body: host code stays as it is, device constructs become calls of `plumbing`.
//!
//! The rewriter knows names, not types: which names are device variables (`let mut`), which are host variables
//! (`host!`), and which loop a `break` belongs to. Everything else is decided by traits when rustc checks the result.

pub mod config;
mod control;
mod expr;
pub mod inline;
pub mod launch;
pub mod schedule;
mod signature;
mod stmt;

use crate::error::Errors;
use crate::path::Paths;
use proc_macro2::{Ident, Span, TokenStream};
use std::collections::HashMap;
use syn::visit::{self, Visit};
use syn::{Expr, Pat, PatIdent};

/// What a name means inside a body. Names that are absent are plain Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// A device variable.
    Device,
    /// A host variable that may be assigned.
    HostMut,
    /// Anything else.
    Plain,
}

/// The innermost loop, to which `break` and `continue` belong.
#[derive(Debug)]
enum Loop {
    /// A device loop with the name of its guard.
    Device(Ident),
    /// An `unroll` loop, with the guards of the `if`s open inside it.
    Host { guards: Vec<Ident> },
    /// A closure body, where loops outside cannot be left.
    Closure,
}

/// State of one rewrite.
#[derive(Debug)]
struct Rewriter<'a> {
    paths: &'a Paths,
    errors: &'a mut Errors,
    scopes: Vec<HashMap<String, Name>>,
    loops: Vec<Loop>,
    fresh: usize,
}

impl<'a> Rewriter<'a> {
    fn new(paths: &'a Paths, errors: &'a mut Errors) -> Self {
        Rewriter { paths, errors, scopes: vec![HashMap::new()], loops: vec![], fresh: 0 }
    }
    /// Path of a `plumbing` item at a span.
    fn path(&self, span: Span, name: &str) -> TokenStream {
        self.paths.at(span, name)
    }
    /// A new name. It carries the span of a user token, or errors about it would point at the attribute.
    fn fresh(&mut self, prefix: &str, span: Span) -> Ident {
        self.fresh += 1;
        Ident::new(&format!("__{prefix}{}", self.fresh), span)
    }
    fn name(&self, e: &Expr) -> Name {
        let Some(name) = ident_of(e) else { return Name::Plain };
        self.scopes.iter().rev().find_map(|s| s.get(&name)).copied().unwrap_or(Name::Plain)
    }
    fn bind(&mut self, name: String, kind: Name) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, kind);
        }
    }
    /// Binds the names of a pattern as plain Rust names; `mut` inside is refused.
    fn bind_pat(&mut self, p: &Pat) {
        let mut names = PatNames(vec![]);
        names.visit_pat(p);
        for (name, mutable) in names.0 {
            if let Some(span) = mutable {
                self.errors.span(span, "`mut` inside a pattern: bind the value first, then write `let mut x = value;`");
            }
            self.bind(name, Name::Plain);
        }
    }
    fn scoped<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        self.scopes.push(HashMap::new());
        let r = f(self);
        self.scopes.pop();
        r
    }
}

struct PatNames(Vec<(String, Option<Span>)>);
impl<'a> Visit<'a> for PatNames {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push((p.ident.to_string(), p.mutability.map(|m| m.span)));
        visit::visit_pat_ident(self, p);
    }
}

fn ident_of(e: &Expr) -> Option<String> {
    if let Expr::Path(p) = e { p.path.get_ident().map(ToString::to_string) } else { None }
}

fn is_host_macro(e: &Expr) -> bool {
    matches!(e, Expr::Macro(m) if m.mac.path.is_ident("host"))
}

/// The names a pattern gives to loop indices, `_` where it gives none.
fn index_names(p: &Pat) -> Vec<String> {
    let one = |p: &Pat| if let Pat::Ident(i) = p { i.ident.to_string() } else { "_".into() };
    match p {
        Pat::Tuple(t) => t.elems.iter().map(one).collect(),
        p => vec![one(p)],
    }
}
