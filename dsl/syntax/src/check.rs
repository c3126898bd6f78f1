//! What a kernel's header must satisfy: names, dimensions, labels. Bodies are checked while they are rewritten.

use crate::error::Errors;
use crate::parse::{Dim, KernelItem, Param, ParamKind, Stride};
use proc_macro2::Ident;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;

/// Dimensions and declared strides of a parameter.
pub fn dims_of(p: &Param) -> impl Iterator<Item = &Dim> {
    let (dims, strides) = match &p.kind {
        ParamKind::Tensor(t) => (t.dims.as_slice(), t.strides.as_deref().unwrap_or_default()),
        ParamKind::Scalar(_) => (Default::default(), Default::default()),
    };
    let strides = strides.iter().filter_map(|s| if let Stride::Dim(d) = s { Some(d) } else { None });
    dims.iter().chain(strides)
}

/// Names bound by parameters, in order of first appearance.
pub fn bound(item: &KernelItem) -> Vec<&Ident> {
    let mut out: Vec<&Ident> = vec![];
    for d in item.params.iter().flat_map(dims_of) {
        d.names(&mut |n, bare| {
            if bare && !out.contains(&n) {
                out.push(n);
            }
        });
    }
    out
}

/// Checks the header.
pub fn kernel(item: &KernelItem, errors: &mut Errors) {
    let bound: BTreeSet<String> = bound(item).iter().map(ToString::to_string).collect();
    let mut reported = BTreeSet::new();
    for d in item.params.iter().flat_map(dims_of) {
        d.names(&mut |n, bare| {
            if !bare && !bound.contains(&n.to_string()) && reported.insert(n.to_string()) {
                errors.span(n.span(), format!("`{n}` appears only inside an expression; no parameter binds it"));
            }
        });
    }
    let h = &item.header;
    for n in h.fixed.iter().chain(&h.dynamic).chain(&h.batch_invariant) {
        if !bound.contains(&n.to_string()) {
            errors.span(n.span(), format!("no parameter binds a dimension `{n}`"));
        }
    }
    let names = item.params.iter().map(|p| &p.ident).chain(item.config.iter().map(|(n, _)| n));
    for n in names.filter(|n| bound.contains(&n.to_string())) {
        errors.span(n.span(), format!("`{n}` names a parameter and a dimension"));
    }
    if !item.params.iter().any(|p| matches!(p.kind, ParamKind::Tensor(_))) {
        errors.span(item.ident.span(), "a kernel needs a tensor parameter");
    }
    let clauses = item.generics.where_clause.iter().flat_map(|w| &w.predicates);
    let bounded: BTreeSet<String> = clauses.filter_map(subject).collect();
    for t in item.generics.type_params() {
        if t.bounds.is_empty() && !bounded.contains(&t.ident.to_string()) {
            let message =
                format!("the dtype `{0}` needs a bound: `{0}: Float`, `{0}: Int`, or `{0}: DType` for any", t.ident);
            errors.span(t.ident.span(), message);
        }
    }
    let mut labels = Labels { seen: BTreeMap::new(), errors };
    labels.visit_block(&item.body);
}

/// The type parameter a `where` clause is about.
fn subject(p: &syn::WherePredicate) -> Option<String> {
    let syn::WherePredicate::Type(t) = p else { return None };
    let syn::Type::Path(p) = &t.bounded_ty else { return None };
    p.path.get_ident().map(ToString::to_string)
}

/// Labels of a kernel are unique: schedules and diagnostics refer to statements by them.
struct Labels<'e> {
    seen: BTreeMap<String, ()>,
    errors: &'e mut Errors,
}
impl<'a> Visit<'a> for Labels<'_> {
    fn visit_attribute(&mut self, a: &'a syn::Attribute) {
        if !a.path().is_ident("label") {
            return;
        }
        match a.parse_args::<Ident>() {
            Ok(name) => {
                if self.seen.insert(name.to_string(), ()).is_some() {
                    self.errors.span(name.span(), format!("the label `{name}` is used twice"));
                }
            }
            Err(_) => self.errors.at(a, "a label is a name: `#[label(load_a)]`"),
        }
    }
}
