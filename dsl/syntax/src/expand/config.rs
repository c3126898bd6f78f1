//! `#[derive(KernelConfig)]`: structs become spaces, fieldless enums become values of their fields.

use crate::error::Errors;
use crate::path::Paths;
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Expr, ExprLit, Field, Fields, Lit, Meta, Token, Type};

/// Expands the derive.
pub fn derive(x: &DeriveInput, paths: &Paths, errors: &mut Errors) -> TokenStream {
    match &x.data {
        Data::Struct(s) => match &s.fields {
            Fields::Named(fields) => structure(x, fields.named.iter().collect(), paths, errors),
            Fields::Unit => structure(x, vec![], paths, errors),
            Fields::Unnamed(_) => {
                errors.at(&x.ident, "a config is a struct with named fields");
                TokenStream::new()
            }
        },
        Data::Enum(e) => {
            for v in e.variants.iter().filter(|v| !matches!(v.fields, Fields::Unit)) {
                errors.at(v, "a config enum has no fields in its variants");
            }
            let (ident, word) = (&x.ident, paths.of("ConfigWord"));
            let (variants, names): (Vec<_>, Vec<_>) =
                e.variants.iter().map(|v| (&v.ident, v.ident.to_string())).unzip();
            quote! {
                impl #word for #ident {
                    const WORDS: &'static [(&'static str, Self)] = &[#((#names, #ident::#variants)),*];
                    fn word(&self) -> &'static str {
                        match self { #(#ident::#variants => #names),* }
                    }
                }
            }
        }
        Data::Union(_) => {
            errors.at(&x.ident, "a config is a struct or a fieldless enum");
            TokenStream::new()
        }
    }
}

fn structure(x: &DeriveInput, fields: Vec<&Field>, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let p = |name| paths.of(name);
    let (trait_, space, config, error) = (p("KernelConfig"), p("Space"), p("Config"), p("ConfigError"));
    let (only, map) = (p("only"), p("BTreeMap"));
    let (ident, name) = (&x.ident, x.ident.to_string());
    let axes: Vec<_> = fields.iter().map(|f| axis(f, paths, errors)).collect();
    let (idents, names): (Vec<_>, Vec<_>) =
        fields.iter().filter_map(|f| f.ident.as_ref()).map(|i| (i, i.to_string())).unzip();
    // Errors about a field's type belong to it.
    let at = |f: &Field, name| paths.at(f.ty.span(), name);
    let reads = fields.iter().zip(&names).map(|(f, name)| {
        let (read, ty) = (at(f, "field"), &f.ty);
        quote_spanned!(ty.span()=> #read::<#ty>(config, #name)?)
    });
    let writes = fields.iter().zip(&idents).map(|(f, ident)| {
        let (field, ty) = (at(f, "ConfigField"), &f.ty);
        quote_spanned!(ty.span()=> <#ty as #field>::to_value(&self.#ident))
    });
    quote! {
        impl #trait_ for #ident {
            fn space() -> #space {
                #space { name: #name.into(), axes: ::std::vec![#(#axes),*] }
            }
            fn to_config(&self) -> #config {
                #[allow(unused_mut, reason = "a config may have no fields")]
                let mut fields = #map::new();
                #(fields.insert(#names.into(), #writes);)*
                #config(fields)
            }
            fn from_config(config: &#config) -> ::core::result::Result<Self, #error> {
                #only(config, &[#(#names),*])?;
                ::core::result::Result::Ok(#ident { #(#idents: #reads),* })
            }
        }
        impl ::core::default::Default for #ident {
            /// The default of the space.
            fn default() -> Self {
                let default = <#ident as #trait_>::space().default_config();
                <#ident as #trait_>::from_config(&default).expect("a space holds values of its fields' types")
            }
        }
    }
}

fn axis(f: &Field, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let (mut tune, mut default, mut numerics, mut doc) = (vec![], None, false, String::new());
    for a in &f.attrs {
        match a.path().get_ident().map(ToString::to_string).as_deref() {
            Some("tune") => match a.parse_args_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
                Ok(values) => tune.extend(values),
                Err(e) => errors.push(e),
            },
            Some("default") => match a.parse_args::<Expr>() {
                Ok(value) => default = Some(value),
                Err(e) => errors.push(e),
            },
            Some("numerics") => numerics = true,
            Some("doc") => {
                if let Meta::NameValue(m) = &a.meta
                    && let Expr::Lit(ExprLit { lit: Lit::Str(s), .. }) = &m.value
                {
                    doc += &s.value();
                }
            }
            _ => {}
        }
    }
    let name = f.ident.as_ref().map(ToString::to_string).unwrap_or_default();
    let is_bool = matches!(&f.ty, Type::Path(p) if p.path.is_ident("bool"));
    if tune.is_empty() && default.is_none() {
        if !is_bool {
            errors.span(f.ident.span(), format!("config field `{name}` needs `#[tune(..)]` or `#[default(..)]`"));
        }
        default = Some(syn::parse_quote!(false));
    }
    let (axis, ty) = (paths.at(f.ty.span(), "axis"), &f.ty);
    let default = match default {
        Some(d) => quote!(::core::option::Option::Some(#d)),
        None => quote!(::core::option::Option::None),
    };
    quote!(#axis::<#ty>(#name, &[#(#tune),*], #default, #numerics, #doc))
}
