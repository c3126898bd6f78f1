//! `#[kernel_fn]`: the same rewriting of the body, no launch code; inlined by being called.

use super::{Loop, Rewriter};
use crate::error::Errors;
use crate::path::Paths;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{FnArg, ItemFn, Pat, ReturnType, Type};

/// Expands an inlined function. It records its call site as a frame; its body is a closure, which does not inherit the
/// caller's position, so that ops keep their own lines.
pub fn function(mut f: ItemFn, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let mut rewriter = Rewriter::new(paths, errors);
    for input in &f.sig.inputs {
        if let FnArg::Typed(t) = input {
            if let Pat::Ident(p) = &*t.pat
                && let Some(m) = p.mutability
            {
                let message =
                    "a parameter of a `#[kernel_fn]` is not `mut`: write `let mut x = x;` for a device variable";
                rewriter.errors.span(m.span, message);
                rewriter.bind(p.ident.to_string(), super::Name::Plain);
                continue;
            }
            rewriter.bind_pat(&t.pat);
        }
    }
    rewriter.loops.push(Loop::Closure);
    rewriter.block(&mut f.block);
    let (name, statements, attrs, vis, sig) = (f.sig.ident.to_string(), &f.block.stmts, &f.attrs, &f.vis, &f.sig);
    let result = match &sig.output {
        ReturnType::Default => quote!(-> ()),
        ReturnType::Type(_, t) if matches!(**t, Type::ImplTrait(_)) => quote!(),
        ReturnType::Type(_, t) => quote!(-> #t),
    };
    let body = if result.is_empty() {
        quote!((move || { #(#statements)* })())
    } else {
        quote!((move || #result { #(#statements)* })())
    };
    let frame = paths.of("frame");
    quote! {
        #(#attrs)*
        #[allow(
            unused_parens, unused_braces, unreachable_code, clippy::all,
            reason = "expansion of #[kernel_fn]"
        )]
        #[track_caller]
        #vis #sig {
            let __frame = #frame(#name);
            #body
        }
    }
}
