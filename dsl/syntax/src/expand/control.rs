//! `if`, `for`, `while`, `loop`, `break`, `continue`.

use super::{Loop, Rewriter, index_names};
use proc_macro2::{Ident, Span};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Block, Expr, ExprForLoop, ExprIf, Label, parse_quote, parse_quote_spanned};

const LABELS: &str = "loop labels are not supported; `break` leaves the innermost loop";

fn is_call_to(e: &Expr, name: &str) -> bool {
    let Expr::Call(c) = e else { return false };
    matches!(&*c.func, Expr::Path(p) if p.path.segments.last().is_some_and(|s| s.ident == name))
}

fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) => matches!(b.op, BinOp::And(_)) && (has_let(&b.left) || has_let(&b.right)),
        _ => false,
    }
}

/// Where the value of a block comes from, for errors about its type.
fn tail_span(b: &Block) -> Span {
    b.stmts.last().map_or_else(|| b.span(), Spanned::span)
}

impl Rewriter<'_> {
    /// One form for statements and expressions, host and device conditions: the guard's type decides.
    pub(super) fn if_(&mut self, x: &ExprIf) -> Expr {
        let span = x.if_token.span;
        if has_let(&x.cond) {
            return self.if_let(x.clone());
        }
        let (mut cond, mut then) = ((*x.cond).clone(), x.then_branch.clone());
        self.visit_expr_mut(&mut cond);
        let guard = self.fresh("if", span);
        let then_tail = tail_span(&x.then_branch);
        let else_tail = match &x.else_branch {
            Some((_, e)) => match &**e {
                Expr::Block(b) => tail_span(&b.block),
                e => e.span(),
            },
            None => span,
        };
        self.cross(|guards| guards.push(guard.clone()));
        self.visit_block_mut(&mut then);
        let els = match &x.else_branch {
            Some((_, e)) => {
                let mut e = (**e).clone();
                self.visit_expr_mut(&mut e);
                quote!(#e)
            }
            None => quote_spanned!(span=> {}),
        };
        self.cross(|guards| {
            guards.pop();
        });
        let begin = self.path(cond.span(), "if_begin");
        let begin = quote_spanned!(cond.span()=> #begin(#cond));
        let (arm, enter_then) = (self.path(span, "Arm"), self.path(span, "if_then"));
        let (enter_else, end) = (self.path(span, "if_else"), self.path(span, "if_end"));
        // Errors about the type of an arm belong to its last expression.
        let (then_value, else_value) = (Ident::new("__then", then_tail), Ident::new("__else", else_tail));
        // Both arms in one argument: otherwise rustc infers the second from the first and reports its own mismatch.
        let end = quote_spanned!(span=> #end(#guard, (#then_value, #else_value)));
        Expr::Verbatim(quote_spanned!(span=> {
            let #guard = #begin;
            let __then = if #enter_then(&#guard) { #arm::Taken(#then) } else { #arm::Skipped };
            let __else = if #enter_else(&#guard) { #arm::Taken(#els) } else { #arm::Skipped };
            #end
        }))
    }

    /// A condition with `let` chooses at build time and stays Rust's.
    fn if_let(&mut self, mut x: ExprIf) -> Expr {
        self.scoped(|s| {
            s.let_chain(&mut x.cond);
            s.visit_block_mut(&mut x.then_branch);
        });
        if let Some((_, e)) = &mut x.else_branch {
            self.visit_expr_mut(e);
            // Rust wants a block or an `if` after `else`; a rewritten `else if` is neither.
            if let Expr::Verbatim(_) = &**e {
                let inner = &**e;
                **e = parse_quote!({ #inner });
            }
        }
        Expr::If(x)
    }

    fn let_chain(&mut self, e: &mut Expr) {
        match e {
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
                self.let_chain(&mut b.left);
                self.let_chain(&mut b.right);
            }
            Expr::Let(l) => {
                self.visit_expr_mut(&mut l.expr);
                self.bind_pat(&l.pat);
            }
            e => self.visit_expr_mut(e),
        }
    }

    /// The `if`s that a `break` of the innermost loop would cross, if that is an `unroll` loop.
    fn cross(&mut self, f: impl FnOnce(&mut Vec<Ident>)) {
        if let Some(Loop::Host { guards }) = self.loops.last_mut() {
            f(guards);
        }
    }

    pub(super) fn for_(&mut self, x: &ExprForLoop) -> Expr {
        let span = x.for_token.span;
        if let Some(l) = &x.label {
            self.errors.span(l.span(), LABELS);
        }
        let (pat, mut items, mut body) = (&x.pat, (*x.expr).clone(), x.body.clone());
        let host = is_call_to(&items, "unroll");
        if !host {
            self.visit_expr_mut(&mut items);
        }
        let guard = self.fresh("loop", span);
        self.loops.push(if host { Loop::Host { guards: vec![] } } else { Loop::Device(guard.clone()) });
        self.scoped(|s| {
            s.bind_pat(pat);
            s.visit_block_mut(&mut body);
        });
        self.loops.pop();
        if host {
            // A plain range gives `usize`, the one host integer type.
            if let Expr::Call(c) = &mut items
                && let (1, Some(Expr::Range(r))) = (c.args.len(), c.args.first())
            {
                let (r, at) = (r.clone(), r.span());
                let range = self.path(at, "unroll_range");
                items = parse_quote_spanned!(at=> #range(#r));
            }
            return Expr::Verbatim(quote_spanned!(span=> for #pat in #items #body));
        }
        let begin = self.path(items.span(), "for_begin");
        let names = index_names(pat);
        let begin = quote_spanned!(items.span()=> #begin(#items, &[#(#names),*]));
        Expr::Verbatim(quote_spanned!(span=> {
            let (#guard, #pat) = #begin;
            #body
            #guard.end();
        }))
    }

    /// `while cond` and `loop`.
    pub(super) fn loop_(&mut self, span: Span, label: Option<&Label>, cond: Option<&Expr>, body: &Block) -> Expr {
        if let Some(l) = label {
            self.errors.span(l.span(), LABELS);
        }
        if let Some(c) = cond.filter(|c| has_let(c)) {
            self.errors.span(c.span(), "`while let` is not a device loop; use `unroll(..)` for host data");
            return parse_quote!({});
        }
        let (guard, mut body) = (self.fresh("loop", span), body.clone());
        let test = cond.map(|c| {
            let mut c = c.clone();
            self.visit_expr_mut(&mut c);
            let test = self.path(c.span(), "while_test");
            quote_spanned!(c.span()=> #test(&#guard, #c);)
        });
        self.loops.push(Loop::Device(guard.clone()));
        self.visit_block_mut(&mut body);
        self.loops.pop();
        let begin = self.path(span, "while_begin");
        Expr::Verbatim(quote_spanned!(span=> {
            let #guard = #begin();
            #test
            #body
            #guard.end();
        }))
    }

    pub(super) fn jump(&mut self, span: Span, e: &Expr, word: &str) -> Expr {
        match self.loops.last() {
            Some(Loop::Device(guard)) => {
                let (f, guard) = (self.path(span, &format!("{word}_")), Ident::new(&guard.to_string(), span));
                Expr::Verbatim(quote_spanned!(span=> #f(&#guard)))
            }
            Some(Loop::Host { guards }) => {
                let f = self.path(span, "host_jump");
                let guards = guards.iter().map(|g| Ident::new(&g.to_string(), span));
                Expr::Verbatim(quote_spanned!(span=> { #(#f(&#guards);)* #e }))
            }
            Some(Loop::Closure) | None => {
                self.errors.span(span, format!("`{word}` outside of a loop"));
                parse_quote!(())
            }
        }
    }
}
