//! Entry points of the procedural macros. Everything they do is in `kiln-dsl-syntax`.

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream as Tokens, TokenTree};

/// Makes a function a kernel; see the documentation of the language crate.
#[proc_macro_attribute]
pub fn kernel(attr: TokenStream, item: TokenStream) -> TokenStream {
    kiln_dsl_syntax::kernel(attr.into(), item.into(), root()).into()
}

/// Makes a function one that kernels can call: its body follows the rules of kernels, and is inlined.
#[proc_macro_attribute]
pub fn kernel_fn(attr: TokenStream, item: TokenStream) -> TokenStream {
    kiln_dsl_syntax::kernel_fn(attr.into(), item.into(), root()).into()
}

/// Makes a function the schedule of a kernel on a target: `#[schedule(for = kernel, target = Sm90a)]`. Beside it stands a
/// module of its name with `attach`.
#[proc_macro_attribute]
pub fn schedule(attr: TokenStream, item: TokenStream) -> TokenStream {
    kiln_dsl_syntax::schedule(attr.into(), item.into(), root()).into()
}

/// Makes a struct the configuration of kernels, or a fieldless enum the type of a config field.
#[proc_macro_derive(KernelConfig, attributes(tune, numerics, default))]
pub fn kernel_config(item: TokenStream) -> TokenStream {
    kiln_dsl_syntax::kernel_config(item.into(), root()).into()
}

/// Path of the language crate: `::dsl` where a crate depends on it, `::kiln::dsl` where it depends on the facade.
fn root() -> Tokens {
    let names: Vec<String> = match (crate_name("kiln-dsl"), crate_name("kiln")) {
        // Without a rename the name is that of the library, which is `dsl`.
        (Ok(FoundCrate::Name(n)), _) if n != "kiln_dsl" => vec![n],
        (Ok(_), _) => vec!["dsl".into()],
        (Err(_), Ok(FoundCrate::Name(n))) => vec![n, "dsl".into()],
        (Err(_), Ok(FoundCrate::Itself)) => vec!["kiln".into(), "dsl".into()],
        (Err(_), Err(_)) => vec!["dsl".into()],
    };
    let colons = "::".parse::<Tokens>().unwrap_or_default();
    let mut path = Tokens::new();
    for n in names {
        path.extend(colons.clone());
        path.extend([TokenTree::from(Ident::new(&n, Span::call_site()))]);
    }
    path
}
