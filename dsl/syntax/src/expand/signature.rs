//! Parameters and dimensions: as declarations in the body, as fields of `Args`, as static description.

use crate::check;
use crate::parse::{Access, Dim, KernelItem, Param, ParamKind, Stride};
use crate::path::Paths;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::visit::{self, Visit};
use syn::{GenericParam, Generics, WherePredicate};

/// `let t = cx.dynamic("t");` for each dimension, `let x = cx.tensor::<..>(0);` for each parameter.
pub(super) fn declarations(item: &KernelItem, paths: &Paths) -> TokenStream {
    let dims = check::bound(item).into_iter().map(|d| {
        let (name, span) = (d.to_string(), d.span());
        let kind = if is_fixed(item, d) { format_ident!("fixed") } else { format_ident!("dynamic") };
        quote_spanned!(span=> #[allow(unused_variables, reason = "not every kernel uses every dimension")] let #d = __cx.#kind(#name);)
    });
    let params = item.params.iter().enumerate().map(|(at, p)| {
        let (ident, span) = (&p.ident, p.ident.span());
        let optional = if p.optional { "optional_" } else { "" };
        match &p.kind {
            ParamKind::Tensor(t) => {
                let (method, dtype, rank) = (Ident::new(&format!("{optional}tensor"), span), &t.dtype, t.dims.len());
                let access = paths.at(span, if t.access == Access::In { "Rd" } else { "Wr" });
                quote_spanned!(span=> let #ident = __cx.#method::<#dtype, #rank, #access>(#at);)
            }
            ParamKind::Scalar(dtype) => {
                let method = Ident::new(&format!("{optional}scalar"), span);
                quote_spanned!(span=> let #ident = __cx.#method::<#dtype>(#at);)
            }
        }
    });
    quote!(#(#dims)* #(#params)*)
}

/// True for dimensions declared `fixed`.
pub(super) fn is_fixed(item: &KernelItem, dim: &Ident) -> bool {
    item.header.fixed.iter().any(|f| f == dim)
}

/// Type of a field of `Args`, and the argument made of it.
pub(super) fn field(p: &Param, paths: &Paths) -> (TokenStream, TokenStream) {
    let ident = &p.ident;
    let (ty, arg) = match &p.kind {
        ParamKind::Tensor(t) => {
            let view = paths.of(if t.access == Access::In { "View" } else { "ViewMut" });
            let (dtype, rank) = (&t.dtype, t.dims.len());
            (quote!(#view<'a, #dtype, #rank>), quote!(::core::convert::Into::into))
        }
        ParamKind::Scalar(dtype) => {
            let (trait_, scalar) = (paths.of("DType"), paths.of("scalar"));
            (quote!(<#dtype as #trait_>::Host), quote!(#scalar::<#dtype>))
        }
    };
    if p.optional {
        let optional = paths.of("optional");
        (quote!(::core::option::Option<#ty>), quote!(#optional(self.#ident.map(#arg))))
    } else {
        (ty, quote!(#arg(self.#ident)))
    }
}

/// `ParamInfo { .. }`.
pub(super) fn info(p: &Param, paths: &Paths) -> TokenStream {
    let (param_info, kind_path, dtype_of) = (paths.of("ParamInfo"), paths.of("ParamInfoKind"), paths.of("dtype"));
    let (name, optional) = (p.ident.to_string(), p.optional);
    let kind = match &p.kind {
        ParamKind::Scalar(dtype) => quote!(#kind_path::Scalar { dtype: #dtype_of::<#dtype>() }),
        ParamKind::Tensor(t) => {
            let (dtype, access_path) = (&t.dtype, paths.of("Access"));
            let access = match t.access {
                Access::In => quote!(In),
                Access::Out => quote!(Out),
                Access::InOut => quote!(InOut),
            };
            let dims = t.dims.iter().map(|d| dim(d, paths));
            let strides = match &t.strides {
                None => quote!(::core::option::Option::None),
                Some(strides) => {
                    let info = paths.of("StrideInfo");
                    let strides = strides.iter().map(|s| match s {
                        Stride::Any => quote!(#info::Any),
                        Stride::Dim(d) => {
                            let d = dim(d, paths);
                            quote!(#info::Expr(#d))
                        }
                    });
                    quote!(::core::option::Option::Some(::std::vec![#(#strides),*]))
                }
            };
            quote!(#kind_path::Tensor {
                dtype: #dtype_of::<#dtype>(),
                access: #access_path::#access,
                dims: ::std::vec![#(#dims),*],
                strides: #strides,
            })
        }
    };
    quote!(#param_info { name: #name.into(), kind: #kind, optional: #optional })
}

fn dim(d: &Dim, paths: &Paths) -> TokenStream {
    let expr = paths.of("DimExpr");
    match d {
        Dim::Name(n) => {
            let n = n.to_string();
            quote!(#expr::Sym(#n.into()))
        }
        Dim::Number(n) => quote!(#expr::Const(#n)),
        Dim::Op(op, args) => {
            let (op, a, b) = (format_ident!("{op}"), dim(&args[0], paths), dim(&args[1], paths));
            quote!(#expr::#op(::std::boxed::Box::new(#a), ::std::boxed::Box::new(#b)))
        }
    }
}

/// The generic parameters that appear in parameters: `Args` must not have others, which nothing would fix.
pub(super) fn args_generics(item: &KernelItem) -> Generics {
    struct Names(Vec<Ident>);
    impl<'a> Visit<'a> for Names {
        fn visit_ident(&mut self, i: &'a Ident) {
            self.0.push(i.clone());
        }
        fn visit_macro(&mut self, m: &'a syn::Macro) {
            visit::visit_macro(self, m);
        }
    }
    let mut used = Names(vec![]);
    for p in &item.params {
        match &p.kind {
            ParamKind::Tensor(t) => used.visit_type(&t.dtype),
            ParamKind::Scalar(t) => used.visit_type(t),
        }
    }
    let name_of = |p: &GenericParam| match p {
        GenericParam::Type(t) => Some(t.ident.clone()),
        GenericParam::Const(c) => Some(c.ident.clone()),
        GenericParam::Lifetime(_) => None,
    };
    let mut g = item.generics.clone();
    let dropped: Vec<Ident> = g.params.iter().filter_map(name_of).filter(|n| !used.0.contains(n)).collect();
    g.params = g.params.into_iter().filter(|p| name_of(p).is_some_and(|n| !dropped.contains(&n))).collect();
    if let Some(w) = &mut g.where_clause {
        let mentions = |p: &WherePredicate| {
            let mut names = Names(vec![]);
            names.visit_where_predicate(p);
            names.0.iter().any(|n| dropped.contains(n))
        };
        w.predicates = std::mem::take(&mut w.predicates).into_iter().filter(|p| !mentions(p)).collect();
    }
    g
}
