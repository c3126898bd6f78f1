//! What `#[kernel]`, `#[kernel_fn]`, `#[schedule]` and `#[derive(KernelConfig)]` expand into: an ordinary, testable library.
//!
//! Flow: [`parse`] reads attribute and signature into data, [`check`] refuses what the language forbids, [`expand`]
//! rewrites the body, one file a construct. Meaning is not here: every construct becomes a call of `dsl::plumbing`, with
//! the span of the user's token it stands for. The proc-macro crate only forwards to these functions.
#![forbid(unsafe_code)]

pub mod check;
pub mod error;
pub mod expand;
pub mod parse;
pub mod path;

use error::Errors;
use path::Paths;
use proc_macro2::TokenStream;
use quote::quote;

/// `#[kernel(attr)] item`, with the path of the language crate.
pub fn kernel(attr: TokenStream, item: TokenStream, root: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let Some(item) = parse::kernel(attr, item, &mut errors) else { return errors.tokens() };
    check::kernel(&item, &mut errors);
    // Mistakes of the header would be followed by misleading ones of the body.
    if !errors.is_empty() {
        return errors.tokens();
    }
    let out = expand::launch::module(&item, &Paths::new(root), &mut errors);
    let errors = errors.tokens();
    quote!(#errors #out)
}

/// `#[kernel_fn] item`.
pub fn kernel_fn(attr: TokenStream, item: TokenStream, root: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    if !attr.is_empty() {
        errors.at(&attr, "`#[kernel_fn]` takes no arguments");
    }
    let out = match syn::parse2::<syn::ItemFn>(item) {
        Ok(f) => expand::inline::function(f, &Paths::new(root), &mut errors),
        Err(e) => {
            errors.push(e);
            TokenStream::new()
        }
    };
    let errors = errors.tokens();
    quote!(#errors #out)
}

/// `#[schedule(for = .., target = ..)] item`.
pub fn schedule(attr: TokenStream, item: TokenStream, root: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let out = match (syn::parse2(attr), syn::parse2::<syn::ItemFn>(item)) {
        (Ok(header), Ok(f)) => expand::schedule::function(&header, &f, &Paths::new(root), &mut errors),
        (header, f) => {
            header.err().into_iter().chain(f.err()).for_each(|e| errors.push(e));
            TokenStream::new()
        }
    };
    let errors = errors.tokens();
    quote!(#errors #out)
}

/// `#[derive(KernelConfig)] item`.
pub fn kernel_config(item: TokenStream, root: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let out = match syn::parse2::<syn::DeriveInput>(item) {
        Ok(x) => expand::config::derive(&x, &Paths::new(root), &mut errors),
        Err(e) => {
            errors.push(e);
            TokenStream::new()
        }
    };
    if errors.is_empty() { out } else { errors.tokens() }
}
