//! Expressions: operators that Rust cannot overload, elements, assignments, variables.

use super::{Loop, Name, Rewriter, ident_of};
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, BinOp, Block, Expr, ExprAssign, ExprBinary, FieldValue, Pat, RangeLimits, parse_quote, parse_quote_spanned,
};

const IMMUTABLE: &str = "this name is immutable: declare it `let mut x = ..` (device variable) or `let mut x = host!(..)` \
                         (host variable)";

/// Comparison and logic operators, which Rust does not let return device values.
fn call_of(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Lt(_) => "lt",
        BinOp::Le(_) => "le",
        BinOp::Gt(_) => "gt",
        BinOp::Ge(_) => "ge",
        BinOp::Eq(_) => "eq",
        BinOp::Ne(_) => "ne",
        BinOp::And(_) => "and",
        BinOp::Or(_) => "or",
        _ => return None,
    })
}

/// The operator of a compound assignment, with the span of the user's token: it is the position of the op.
fn operator_of(op: &BinOp) -> Option<TokenStream> {
    let tokens = match op {
        BinOp::AddAssign(_) => quote!(+),
        BinOp::SubAssign(_) => quote!(-),
        BinOp::MulAssign(_) => quote!(*),
        BinOp::DivAssign(_) => quote!(/),
        BinOp::RemAssign(_) => quote!(%),
        BinOp::BitAndAssign(_) => quote!(&),
        BinOp::BitOrAssign(_) => quote!(|),
        BinOp::BitXorAssign(_) => quote!(^),
        BinOp::ShlAssign(_) => quote!(<<),
        BinOp::ShrAssign(_) => quote!(>>),
        _ => return None,
    };
    let spanned = tokens.into_iter().map(|mut t| {
        t.set_span(op.span());
        t
    });
    Some(spanned.collect())
}

impl Rewriter<'_> {
    /// An element `t[i]` as tile and index, both rewritten; `None` if it belongs to a host variable.
    fn element(&mut self, e: &Expr) -> Option<(Expr, Expr)> {
        let Expr::Index(ix) = e else { return None };
        if self.name(&ix.expr) == Name::HostMut {
            return None;
        }
        let (mut tile, mut index) = ((*ix.expr).clone(), (*ix.index).clone());
        self.visit_expr_mut(&mut tile);
        self.visit_expr_mut(&mut index);
        Some((tile, index))
    }

    fn is_host_place(&self, e: &Expr) -> bool {
        match e {
            Expr::Index(ix) => self.name(&ix.expr) == Name::HostMut,
            e => self.name(e) == Name::HostMut,
        }
    }

    fn assign(&mut self, a: &ExprAssign) -> Expr {
        let mut right = (*a.right).clone();
        self.visit_expr_mut(&mut right);
        let span = a.eq_token.span;
        if self.is_host_place(&a.left) {
            return Expr::Assign(ExprAssign { right: Box::new(right), ..a.clone() });
        }
        if let Some((tile, index)) = self.element(&a.left) {
            return Expr::Verbatim(quote_spanned!(span=> #tile.store_(#index, #right)));
        }
        match (&*a.left, self.name(&a.left)) {
            (left, Name::Device) => Expr::Verbatim(quote_spanned!(span=> #left.set(#right))),
            (Expr::Path(_), _) => {
                self.errors.span(a.left.span(), IMMUTABLE);
                parse_quote!(())
            }
            _ => {
                let message = "only a `let mut` variable or an element `t[(i, j)]` can be assigned";
                self.errors.span(a.left.span(), message);
                parse_quote!(())
            }
        }
    }

    fn compound(&mut self, b: &ExprBinary, operator: &TokenStream) -> Expr {
        let mut right = (*b.right).clone();
        self.visit_expr_mut(&mut right);
        let span = b.op.span();
        if self.is_host_place(&b.left) {
            return Expr::Binary(ExprBinary { right: Box::new(right), ..b.clone() });
        }
        if let Some((tile, index)) = self.element(&b.left) {
            // Tile and index are evaluated once.
            return Expr::Verbatim(quote_spanned!(span=> {
                let (__tile, __index) = (#tile, #index);
                __tile.store_(__index, __tile.load_(__index) #operator (#right))
            }));
        }
        if self.name(&b.left) == Name::Device {
            let left = &b.left;
            return Expr::Verbatim(quote_spanned!(span=> #left.set(#left.get() #operator (#right))));
        }
        self.errors.span(b.left.span(), IMMUTABLE);
        parse_quote!(())
    }

    fn binary(&mut self, b: &ExprBinary) -> Expr {
        if let Some(operator) = operator_of(&b.op) {
            return self.compound(b, &operator);
        }
        let (mut left, mut right, span) = ((*b.left).clone(), (*b.right).clone(), b.op.span());
        self.visit_expr_mut(&mut left);
        self.visit_expr_mut(&mut right);
        let Some(name) = call_of(&b.op) else {
            let op = &b.op;
            return Expr::Verbatim(quote_spanned!(span=> ((#left) #op (#right))));
        };
        let call = self.path(span, name);
        if !matches!(b.op, BinOp::And(_) | BinOp::Or(_)) {
            return Expr::Verbatim(quote_spanned!(span=> #call(#left, #right)));
        }
        // The right side is not evaluated when a host value on the left decides, as in Rust.
        let (short, arm) = (self.path(span, &format!("short_{name}")), self.path(span, "Arm"));
        Expr::Verbatim(quote_spanned!(span=> {
            let __left = #left;
            let __right = if #short(&__left) { #arm::Skipped } else { #arm::Taken(#right) };
            #call(__left, __right)
        }))
    }
}

impl VisitMut for Rewriter<'_> {
    fn visit_block_mut(&mut self, b: &mut Block) {
        self.block(b);
    }

    fn visit_field_value_mut(&mut self, f: &mut FieldValue) {
        // `S { v }` becomes `S { v: v.get() }` for a device variable.
        if f.colon_token.is_none() && self.name(&f.expr) == Name::Device {
            f.colon_token = Some(Default::default());
        }
        self.visit_expr_mut(&mut f.expr);
    }

    fn visit_arm_mut(&mut self, a: &mut Arm) {
        self.scoped(|s| {
            if let Pat::Guard(g) = &mut a.pat {
                s.bind_pat(&g.pat);
                s.visit_expr_mut(&mut g.guard);
            } else {
                s.bind_pat(&a.pat);
            }
            s.visit_expr_mut(&mut a.body);
        });
        a.comma = Some(Default::default());
    }

    fn visit_expr_mut(&mut self, e: &mut Expr) {
        let span = e.span();
        match e {
            Expr::If(x) => *e = self.if_(&x.clone()),
            Expr::ForLoop(x) => *e = self.for_(&x.clone()),
            Expr::While(x) => {
                let x = x.clone();
                *e = self.loop_(x.while_token.span, x.label.as_ref(), Some(&x.cond), &x.body);
            }
            Expr::Loop(x) => {
                let x = x.clone();
                *e = self.loop_(x.loop_token.span, x.label.as_ref(), None, &x.body);
            }
            Expr::Break(b) => {
                if b.expr.is_some() || b.label.is_some() {
                    self.errors.span(span, "`break` takes no value and no label in a kernel");
                }
                *e = self.jump(span, &e.clone(), "break");
            }
            Expr::Continue(c) => {
                if c.label.is_some() {
                    self.errors.span(span, "`continue` takes no label in a kernel");
                }
                *e = self.jump(span, &e.clone(), "continue");
            }
            Expr::Closure(c) => {
                self.loops.push(Loop::Closure);
                self.scoped(|s| {
                    for p in &c.inputs {
                        s.bind_pat(p);
                    }
                    s.visit_expr_mut(&mut c.body);
                });
                self.loops.pop();
            }
            Expr::Range(r) => match (&mut r.start, &mut r.end, &r.limits) {
                (Some(a), Some(b), RangeLimits::HalfOpen(_)) => {
                    self.visit_expr_mut(a);
                    self.visit_expr_mut(b);
                    let range = self.path(span, "range");
                    *e = Expr::Verbatim(quote_spanned!(span=> #range(#a, #b)));
                }
                _ => {
                    let message = "a kernel range has two ends, `a..b`; wrap a host slice index in `host!(..)`";
                    self.errors.span(span, message);
                    let range = self.path(span, "range");
                    *e = parse_quote_spanned!(span=> #range(0usize, 0usize));
                }
            },
            Expr::Assign(a) => *e = self.assign(&a.clone()),
            Expr::Binary(b) => *e = self.binary(&b.clone()),
            Expr::Index(_) => {
                // Elements of host slices go the same way: `load_` on a slice is a host read.
                let Expr::Index(ix) = &*e else { return };
                let (mut tile, mut index) = ((*ix.expr).clone(), (*ix.index).clone());
                self.visit_expr_mut(&mut tile);
                self.visit_expr_mut(&mut index);
                let at = index.span();
                let index = quote_spanned!(at=> #index);
                *e = Expr::Verbatim(quote_spanned!(span=> #tile.load_(#index)));
            }
            Expr::Cast(c) if !matches!(&*c.expr, Expr::Lit(_)) => {
                self.visit_expr_mut(&mut c.expr);
                let (x, ty, at) = (&c.expr, &c.ty, c.as_token.span);
                let host = self.path(at, "host_number");
                *e = Expr::Verbatim(quote_spanned!(at=> (#host(#x) as #ty)));
            }
            // The variable itself, for what counts in it.
            Expr::Reference(r) if r.mutability.is_some() && self.name(&r.expr) == Name::Device => {
                let var = &r.expr;
                *e = Expr::Verbatim(quote_spanned!(span=> &#var));
            }
            Expr::Path(_) => {
                if self.name(e) == Name::Device {
                    let var = e.clone();
                    *e = Expr::Verbatim(quote_spanned!(span=> #var.get()));
                }
            }
            Expr::Call(c) => {
                // The name of a function is no variable, except for closures, which are plain names.
                if ident_of(&c.func).is_none() {
                    self.visit_expr_mut(&mut c.func);
                }
                for a in &mut c.args {
                    self.visit_expr_mut(a);
                }
            }
            Expr::Return(_) => {
                self.errors.span(span, "`return` is not allowed in a kernel; use `if` around the rest");
                *e = parse_quote!(());
            }
            Expr::Unsafe(_) | Expr::Async(_) | Expr::Await(_) => {
                self.errors.span(span, "`unsafe`, `async` and `await` are not allowed in a kernel");
                // What is inside would only give further errors. A block, because it may stand without `;`.
                *e = parse_quote!({});
            }
            Expr::Macro(_) => {}
            _ => visit_mut::visit_expr_mut(self, e),
        }
    }
}
