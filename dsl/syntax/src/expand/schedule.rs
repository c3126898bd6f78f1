//! `#[schedule(for = kernel, target = Target)]`: the function stays as it is; beside it stands a module of its name whose
//! `attach` gives a kernel the schedule.

use crate::error::Errors;
use crate::path::Paths;
use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{FnArg, Ident, ItemFn, Path, Token, Type};

/// Arguments of the attribute.
#[derive(Debug)]
pub struct Header {
    kernel: Path,
    target: Ident,
}

impl Parse for Header {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.parse::<Token![for]>()?;
        input.parse::<Token![=]>()?;
        let kernel = input.parse()?;
        input.parse::<Token![,]>()?;
        let word: Ident = input.parse()?;
        if word != "target" {
            return Err(syn::Error::new(word.span(), "expected `target = ..`"));
        }
        input.parse::<Token![=]>()?;
        let target = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(Header { kernel, target })
    }
}

/// Expands a schedule function.
pub fn function(header: &Header, f: &ItemFn, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let config = f.sig.inputs.iter().nth(1).and_then(|a| match a {
        FnArg::Typed(t) => match &*t.ty {
            Type::Reference(r) if r.mutability.is_none() => Some(&*r.elem),
            _ => None,
        },
        FnArg::Receiver(_) => None,
    });
    let (Some(config), 2, true) = (config, f.sig.inputs.len(), f.sig.generics.params.is_empty()) else {
        errors.at(&f.sig, "a schedule is `fn name(s: &mut Sched, cfg: &Config)`, without generics");
        return TokenStream::new();
    };
    let p = |name| paths.of(name);
    let (arc, def, attach, written, target_type) =
        (p("Arc"), p("KernelDef"), p("attach_schedule"), p("written_schedule"), p("Target"));
    let (vis, name, target) = (&f.vis, &f.sig.ident, &header.target);
    let of = header.kernel.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
    let doc = format!("The schedule of `{of}` for `{target}`.");
    quote! {
        #f
        #[doc = #doc]
        #vis mod #name {
            #[allow(unused_imports, reason = "the config may be a path of its own")]
            use super::*;
            /// The kernel with this schedule.
            pub fn attach(kernel: #arc<dyn #def>) -> #arc<dyn #def> {
                #attach(kernel, #target_type::#target, |kernel, config| {
                    #written::<#config>(#of, kernel, config, super::#name)
                })
            }
        }
    }
}
