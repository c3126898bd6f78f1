//! The module a kernel becomes: `Kernel` (a `KernelDef`), `kernel()`, `Args` and `launch`.

use super::{Rewriter, signature};
use crate::check;
use crate::error::Errors;
use crate::parse::KernelItem;
use crate::path::Paths;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{BinOp, Expr, GenericParam, Lit, Member, parse_quote};

/// Expands a checked kernel.
pub fn module(item: &KernelItem, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let definition = definition(item, paths, errors);
    let args = args(item, paths);
    let (attrs, vis, ident) = (&item.attrs, &item.vis, &item.ident);
    quote! {
        #(#attrs)*
        #[allow(
            dead_code, unused_imports, unused_parens, unused_braces, unreachable_code, private_interfaces, private_bounds,
            clippy::all,
            reason = "expansion of #[kernel]"
        )]
        #vis mod #ident {
            use super::*;
            #definition
            #args
        }
    }
}

/// `Kernel` and `kernel()`.
fn definition(item: &KernelItem, paths: &Paths, errors: &mut Errors) -> TokenStream {
    let p = |name| paths.of(name);
    let (arc, def, info, space, dim_info) = (p("Arc"), p("KernelDef"), p("KernelInfo"), p("Space"), p("DimInfo"));
    let (marker, map, config_data, config_trait) = (p("PhantomData"), p("BTreeMap"), p("Config"), p("KernelConfig"));
    let (request, diagnostic, built, location) = (p("BuildRequest"), p("Diagnostic"), p("Kernel"), p("Location"));
    let (build, require, dtype) = (p("build"), p("require"), p("dtype"));

    let (name, span) = (item.ident.to_string(), item.ident.span());
    let (impl_generics, type_generics, where_clause) = item.generics.split_for_impl();
    let turbofish = type_generics.as_turbofish();
    let types: Vec<_> = item.generics.type_params().map(|t| &t.ident).collect();
    let type_names = types.iter().map(ToString::to_string);
    let consts: Vec<_> = item.generics.const_params().map(|c| &c.ident).collect();
    // Kernels that differ in a const parameter are different kernels to every cache, so it belongs to the name.
    let full_name = if consts.is_empty() {
        quote!(#name.into())
    } else {
        quote!([::std::string::String::from(#name), #(::std::format!("{}", #consts)),*].join("_"))
    };
    let config = config_type(item);
    let config_name = item.config.as_ref().map_or_else(|| quote!(_), |(n, _)| quote!(#n));
    // Clauses need not use the config.
    let config_used = item.config.as_ref().map(|(n, _)| quote!(let _ = #n;));

    let params = item.params.iter().map(|p| signature::info(p, paths));
    let bound = check::bound(item);
    let dims = bound.iter().map(|d| {
        let (fixed, d) = (signature::is_fixed(item, d), d.to_string());
        quote!(#dim_info { name: #d.into(), fixed: #fixed })
    });
    let deterministic = item.header.deterministic;
    let (cooperative, dependent) = (item.header.cooperative, item.header.dependent);
    let mode = paths.of("LaunchMode");
    let invariant = item.header.batch_invariant.iter().map(ToString::to_string);

    let dim_values = bound.iter().map(|d| {
        let name = d.to_string();
        quote_spanned!(d.span()=> #[allow(unused_variables, reason = "not every clause uses every dimension")] let #d: usize = __dim(#name);)
    });
    let clauses = item.header.require.iter().map(|c| {
        let text = text(c);
        quote!(__check(#text, &|| #c);)
    });
    let facts: Vec<_> = item.header.require.iter().filter_map(|c| fact(item, c, paths)).collect();

    let declarations = signature::declarations(item, paths);
    let mut body = item.body.clone();
    let mut rewriter = Rewriter::new(paths, errors);
    for p in &item.params {
        rewriter.bind(p.ident.to_string(), super::Name::Plain);
    }
    rewriter.block(&mut body);
    let statements = &body.stmts;

    quote! {
        /// Definition of this kernel for chosen dtypes.
        #[derive(::core::fmt::Debug)]
        pub struct Kernel #impl_generics #where_clause {
            info: #info,
            dtypes: #marker<fn() -> (#(#types,)*)>,
        }

        /// The kernel for chosen dtypes.
        pub fn kernel #impl_generics () -> #arc<dyn #def> #where_clause {
            #arc::new(Kernel #turbofish {
                info: #info {
                    name: #full_name,
                    file: here().file().into(),
                    line: here().line(),
                    dtypes: ::std::vec![#((#type_names.into(), #dtype::<#types>())),*],
                    params: ::std::vec![#(#params),*],
                    dims: ::std::vec![#(#dims),*],
                    deterministic: #deterministic,
                    batch_invariant: ::std::vec![#(#invariant.into()),*],
                    launch: #mode { cooperative: #cooperative, dependent: #dependent },
                },
                dtypes: #marker,
            })
        }

        impl #impl_generics #def for Kernel #type_generics #where_clause {
            fn info(&self) -> &#info {
                &self.info
            }
            fn space(&self) -> #space {
                <#config as #config_trait>::space()
            }
            fn require(
                &self,
                dims: &#map<::std::string::String, usize>,
                config: &#config_data,
            ) -> ::core::result::Result<(), ::std::vec::Vec<::std::string::String>> {
                #require::<#config>(dims, config, |__dim, #config_name, __check| {
                    #config_used
                    #(#dim_values)*
                    #(#clauses)*
                })
            }
            fn build(&self, request: &#request) -> ::core::result::Result<#built, ::std::vec::Vec<#diagnostic>> {
                #build::<#config>(&self.info, here(), request, |__cx, #config_name| {
                    #declarations
                    #(#facts)*
                    #(#statements)*
                })
            }
        }
    }
    .into_iter()
    .chain({
        let at_name = paths.at(span, "Location");
        let here = quote_spanned!(span=> #at_name::caller());
        quote! {
            /// Where the kernel is declared.
            fn here() -> &'static #location<'static> {
                #here
            }
        }
    })
    .collect()
}

fn config_type(item: &KernelItem) -> TokenStream {
    item.config.as_ref().map_or_else(|| quote!(()), |(_, t)| quote!(#t))
}

/// `Args` and `launch`.
fn args(item: &KernelItem, paths: &Paths) -> TokenStream {
    let (arg, launcher, launch, arc_kernel) =
        (paths.of("Arg"), paths.of("Launcher"), paths.of("Launch"), quote!(kernel));
    let config_trait = paths.of("KernelConfig");
    let (fields, values): (Vec<_>, Vec<_>) = item
        .params
        .iter()
        .map(|p| {
            let ((ty, value), ident) = (signature::field(p, paths), &p.ident);
            let docs = p.attrs.iter().filter(|a| a.path().is_ident("doc"));
            let doc = format!("Parameter `{ident}`.");
            (quote!(#[doc = #doc] #(#docs)* pub #ident: #ty), value)
        })
        .unzip();
    let generics = signature::args_generics(item);
    let mut with_lifetime = generics.clone();
    let views = item.params.iter().any(|p| matches!(p.kind, crate::parse::ParamKind::Tensor(_)));
    if views {
        with_lifetime.params.insert(0, parse_quote!('a));
    }
    let (impl_generics, type_generics, where_clause) = with_lifetime.split_for_impl();

    let config = config_type(item);
    let mut launch_generics = item.generics.clone();
    launch_generics.params.push(parse_quote!(__L: #launcher));
    let (launch_impl, _, launch_where) = launch_generics.split_for_impl();
    let (_, kernel_types, _) = item.generics.split_for_impl();
    let turbofish = kernel_types.as_turbofish();
    let names = generics.params.iter().map(|p| match p {
        GenericParam::Type(t) => t.ident.to_token_stream(),
        GenericParam::Const(c) => c.ident.to_token_stream(),
        GenericParam::Lifetime(l) => l.to_token_stream(),
    });
    quote! {
        /// Arguments of a launch, in the order of the parameters.
        #[derive(Clone, Copy, ::core::fmt::Debug)]
        pub struct Args #impl_generics #where_clause {
            #(#fields,)*
        }
        impl #impl_generics Args #type_generics #where_clause {
            /// As data for a launch.
            pub fn into_args(self) -> ::std::vec::Vec<#arg> {
                ::std::vec![#(#values),*]
            }
        }

        /// Checks and enqueues one launch.
        ///
        /// # Errors
        /// What the launcher refuses, or fails at.
        pub fn launch #launch_impl (
            on: &__L,
            config: &#config,
            args: Args<'_, #(#names),*>,
        ) -> ::core::result::Result<(), <__L as #launcher>::Error> #launch_where {
            on.launch(&#launch {
                kernel: #arc_kernel #turbofish (),
                config: #config_trait::to_config(config),
                args: args.into_args(),
            })
        }
    }
}

/// A clause as the user wrote it, spaces normalised.
fn text(clause: &Expr) -> String {
    let mut text = clause.to_token_stream().to_string();
    for (from, to) in [(" . ", "."), (" (", "("), ("( ", "("), (" )", ")"), (" ,", ","), (" :: ", "::")] {
        text = text.replace(from, to);
    }
    text
}

/// `cx.fact(..)` for a clause the compiler can use: a comparison of integers over dimensions and config fields.
fn fact(item: &KernelItem, clause: &Expr, paths: &Paths) -> Option<TokenStream> {
    let Expr::Binary(b) = clause else { return None };
    let (relation, left, right) = match b.op {
        BinOp::Eq(_) => ("Eq", &b.left, &b.right),
        BinOp::Le(_) => ("Le", &b.left, &b.right),
        BinOp::Lt(_) => ("Lt", &b.left, &b.right),
        BinOp::Ge(_) => ("Le", &b.right, &b.left),
        BinOp::Gt(_) => ("Lt", &b.right, &b.left),
        _ => return None,
    };
    let mut dims = 0;
    if !is_index(item, left, &mut dims) || !is_index(item, right, &mut dims) || dims == 0 {
        return None;
    }
    let (relation_path, text) = (paths.of("Relation"), text(clause));
    let relation = proc_macro2::Ident::new(relation, proc_macro2::Span::call_site());
    let span = syn::spanned::Spanned::span(&b.op);
    Some(quote_spanned!(span=> __cx.fact(#text, #left, #relation_path::#relation, #right);))
}

/// True for expressions that mean the same on numbers and on index expressions; counts the dimensions in it.
fn is_index(item: &KernelItem, e: &Expr, dims: &mut usize) -> bool {
    match e {
        Expr::Lit(l) => matches!(l.lit, Lit::Int(_)),
        Expr::Paren(p) => is_index(item, &p.expr, dims),
        Expr::Path(p) => {
            let bound = p.path.get_ident().is_some_and(|i| check::bound(item).contains(&i));
            *dims += usize::from(bound);
            bound
        }
        Expr::Field(f) => {
            let base = if let Expr::Path(p) = &*f.base { p.path.get_ident() } else { None };
            let config = item.config.as_ref().map(|(n, _)| n);
            matches!(f.member, Member::Named(_)) && base.is_some() && base == config
        }
        Expr::Binary(b) => {
            matches!(b.op, BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_) | BinOp::Rem(_))
                && is_index(item, &b.left, dims)
                && is_index(item, &b.right, dims)
        }
        Expr::MethodCall(m) => {
            let known = ["div_ceil", "min", "max"].iter().any(|n| m.method == n);
            known && m.args.len() == 1 && is_index(item, &m.receiver, dims) && is_index(item, &m.args[0], dims)
        }
        _ => false,
    }
}
