//! Errors collected while expanding, so that all of them are reported at once.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// Errors so far.
#[derive(Debug, Default)]
pub struct Errors(Vec<syn::Error>);

impl Errors {
    /// Adds one.
    pub fn push(&mut self, e: syn::Error) {
        self.0.push(e);
    }
    /// Adds one at a position.
    pub fn span(&mut self, span: Span, message: impl std::fmt::Display) {
        self.0.push(syn::Error::new(span, message));
    }
    /// Adds one over some tokens.
    pub fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.0.push(syn::Error::new_spanned(tokens, message));
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// As `compile_error!` items.
    pub fn tokens(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }
}
