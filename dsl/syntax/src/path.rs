//! Every path that generated code mentions: all of them are names of `plumbing`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::quote_spanned;

/// Makes paths below the language crate.
#[derive(Clone, Debug)]
pub struct Paths {
    root: TokenStream,
}

impl Paths {
    /// `root` is `::dsl`, or `::kiln::dsl` for crates that depend on the facade only.
    pub fn new(root: TokenStream) -> Self {
        Paths { root }
    }
    /// `root::plumbing::name`, every token at `span`: errors and positions of the call then point there.
    pub fn at(&self, span: Span, name: &str) -> TokenStream {
        let root: TokenStream = self
            .root
            .clone()
            .into_iter()
            .map(|mut t: TokenTree| {
                t.set_span(span);
                t
            })
            .collect();
        let name = Ident::new(name, span);
        quote_spanned!(span=> #root::plumbing::#name)
    }
    /// The same for code no user token stands for.
    pub fn of(&self, name: &str) -> TokenStream {
        self.at(Span::call_site(), name)
    }
}
