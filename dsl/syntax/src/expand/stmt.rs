//! Blocks and statements: scopes, `let`, labels.

use super::{Name, Rewriter, is_host_macro};
use proc_macro2::Ident;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Attribute, Block, Expr, Local, Pat, Stmt, parse_quote};

impl Rewriter<'_> {
    /// Rewrites the statements of a block in their own scope.
    pub(super) fn block(&mut self, b: &mut Block) {
        self.scoped(|s| {
            let mut dead: Option<&str> = None;
            let mut out = vec![];
            for mut statement in std::mem::take(&mut b.stmts) {
                if let Some(jump) = dead.take() {
                    s.errors.span(statement.span(), format!("statement after `{jump}` is never reached"));
                }
                dead = match &statement {
                    Stmt::Expr(Expr::Break(_), _) => Some("break"),
                    Stmt::Expr(Expr::Continue(_), _) => Some("continue"),
                    Stmt::Expr(..) | Stmt::Local(_) | Stmt::Item(_) | Stmt::Macro(_) => None,
                };
                let label = take_label(&mut statement);
                s.statement(statement, label, &mut out);
            }
            b.stmts = out;
        });
    }

    /// `check!(condition, "text")`, whose condition is kernel code.
    fn check(&mut self, m: &syn::Macro) -> Stmt {
        type Parts = syn::punctuated::Punctuated<Expr, syn::Token![,]>;
        let span = m.path.span();
        let parts = match m.parse_body_with(Parts::parse_terminated) {
            Ok(p) => p,
            Err(e) => {
                self.errors.push(e);
                return parse_quote!((););
            }
        };
        let mut parts = parts.into_iter();
        let (Some(condition), text, None) = (parts.next(), parts.next(), parts.next()) else {
            self.errors.span(span, "`check!` takes a condition and a text: `check!(i < n, \"what holds\")`");
            return parse_quote!((););
        };
        let text = text.unwrap_or_else(|| {
            let words = condition.to_token_stream().to_string();
            parse_quote!(#words)
        });
        let path = self.path(span, "check");
        Stmt::Expr(syn::parse_quote_spanned!(span=> #path(#condition, #text)), Some(parse_quote!(;)))
    }

    fn statement(&mut self, mut statement: Stmt, label: Option<Ident>, out: &mut Vec<Stmt>) {
        let label = label.map(|l| {
            let (path, text) = (self.path(l.span(), "label"), l.to_string());
            let guard = self.fresh("label", l.span());
            let begin: Stmt = parse_quote!(let #guard = #path(#text););
            (begin, guard)
        });
        if let Stmt::Macro(m) = &statement
            && m.mac.path.is_ident("check")
        {
            statement = self.check(&m.mac);
        }
        match &mut statement {
            Stmt::Local(l) => {
                let name = self.tile_name(l);
                self.local(l);
                let end = label.map(|(begin, guard)| {
                    out.push(begin);
                    parse_quote!(::core::mem::drop(#guard);)
                });
                out.extend(name);
                out.push(statement);
                out.extend(end);
            }
            Stmt::Item(_) => out.push(statement),
            Stmt::Expr(..) | Stmt::Macro(_) => {
                self.visit_stmt_mut(&mut statement);
                match label {
                    None => out.push(statement),
                    Some((begin, _)) => out.push(Stmt::Expr(Expr::Verbatim(quote!({ #begin #statement })), None)),
                }
            }
        }
    }

    /// `let acc = frag(..)`: tells the builder the name of what comes next.
    fn tile_name(&self, l: &Local) -> Option<Stmt> {
        let init = l.init.as_ref()?;
        if !matches!(&*init.expr, Expr::Call(_) | Expr::MethodCall(_)) {
            return None;
        }
        let first = match &l.pat {
            Pat::Tuple(t) => t.elems.first()?,
            Pat::Type(t) => &t.pat,
            p => p,
        };
        let Pat::Ident(p) = first else { return None };
        if p.mutability.is_some() {
            return None;
        }
        let (path, text) = (self.path(p.ident.span(), "name"), p.ident.to_string());
        Some(parse_quote!(#path(#text);))
    }

    fn local(&mut self, l: &mut Local) {
        if let Some(init) = &mut l.init {
            if !is_host_macro(&init.expr) {
                self.visit_expr_mut(&mut init.expr);
            }
            if let Some((_, diverge)) = &mut init.diverge {
                self.visit_expr_mut(diverge);
            }
        }
        let (pat, ty) = match &l.pat {
            Pat::Type(t) => ((*t.pat).clone(), Some((*t.ty).clone())),
            p => (p.clone(), None),
        };
        let Pat::Ident(p) = &pat else { return self.bind_pat(&pat) };
        let name = p.ident.to_string();
        if p.mutability.is_none() {
            return self.bind(name, Name::Plain);
        }
        let Some(init) = &mut l.init else {
            return self.errors.span(p.ident.span(), "a device variable needs an initial value");
        };
        if is_host_macro(&init.expr) {
            return self.bind(name, Name::HostMut);
        }
        let (e, span, ident) = (&init.expr, init.expr.span(), &p.ident);
        *init.expr = Expr::Verbatim(match ty {
            None => {
                let var = self.path(span, "var");
                quote_spanned!(span=> #var(#name, #e))
            }
            Some(t) => {
                let var = self.path(span, "var_as");
                quote_spanned!(span=> #var::<#t, _>(#name, #e))
            }
        });
        l.pat = parse_quote!(#ident);
        self.bind(name, Name::Device);
    }
}

/// Removes `#[label(x)]` from a statement. On `a[i] = b` and `a + b`, syn hangs attributes on the leftmost operand.
fn take_label(s: &mut Stmt) -> Option<Ident> {
    fn of_expr(e: &mut Expr) -> Option<Ident> {
        match e {
            Expr::Assign(a) => take(&mut a.attrs).or_else(|| of_expr(&mut a.left)),
            Expr::Binary(b) => take(&mut b.attrs).or_else(|| of_expr(&mut b.left)),
            Expr::Cast(c) => take(&mut c.attrs).or_else(|| of_expr(&mut c.expr)),
            Expr::Call(c) => take(&mut c.attrs),
            Expr::MethodCall(c) => take(&mut c.attrs),
            Expr::Index(c) => take(&mut c.attrs),
            Expr::ForLoop(c) => take(&mut c.attrs),
            Expr::While(c) => take(&mut c.attrs),
            Expr::Loop(c) => take(&mut c.attrs),
            Expr::If(c) => take(&mut c.attrs),
            Expr::Match(c) => take(&mut c.attrs),
            Expr::Block(c) => take(&mut c.attrs),
            Expr::Path(c) => take(&mut c.attrs),
            _ => None,
        }
    }
    match s {
        Stmt::Local(l) => take(&mut l.attrs),
        Stmt::Macro(m) => take(&mut m.attrs),
        Stmt::Expr(e, _) => of_expr(e),
        Stmt::Item(_) => None,
    }
}

fn take(attrs: &mut Vec<Attribute>) -> Option<Ident> {
    let at = attrs.iter().position(|a| a.path().is_ident("label"))?;
    attrs.remove(at).parse_args().ok()
}
