//! Golden expansions: input and output side by side in `expand/`. `BLESS=1 cargo test` rewrites the outputs.

use proc_macro2::TokenStream;
use quote::quote;
use std::path::Path;

/// Expands the only item of a file.
fn expand(source: &str) -> TokenStream {
    let file = syn::parse_file(source).expect("an input is Rust");
    let root = quote!(::dsl);
    match file.items.into_iter().next().expect("an input has an item") {
        syn::Item::Fn(mut f) => {
            let attr = f.attrs.remove(0);
            let args = match &attr.meta {
                syn::Meta::List(l) => l.tokens.clone(),
                _ => TokenStream::new(),
            };
            if attr.path().is_ident("kernel") {
                kiln_dsl_syntax::kernel(args, quote!(#f), root)
            } else {
                kiln_dsl_syntax::kernel_fn(args, quote!(#f), root)
            }
        }
        syn::Item::Struct(s) => kiln_dsl_syntax::kernel_config(quote!(#s), root),
        other => panic!("no expansion for {other:?}"),
    }
}

#[track_caller]
fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expand");
    let source = std::fs::read_to_string(folder.join(format!("{name}.rs"))).expect("the input is there");
    let file = syn::parse2(expand(&source)).expect("an expansion is Rust");
    let got = format!("//! Expansion of `{name}.rs`.\n\n{}", prettyplease::unparse(&file));
    let path = folder.join(format!("{name}.expanded.rs"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, got).expect("the folder can be written");
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == want, "the expansion of {name} changed; `BLESS=1 cargo test` rewrites it. Now:\n{got}");
}

#[test]
fn kernel() {
    check("scale_rows");
}
#[test]
fn parameters() {
    check("parameters");
}
#[test]
fn control() {
    check("control");
}
#[test]
fn config() {
    check("config");
}
