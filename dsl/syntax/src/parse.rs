//! Attribute and signature of a kernel as data. Bodies stay `syn` trees.

use crate::error::Errors;
use proc_macro2::{Ident, Span, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, BinOp, Block, Expr, FnArg, GenericArgument, Generics, ItemFn, Lit, Pat, PathArguments};
use syn::{ReturnType, Token, Type, Visibility, parenthesized};

/// A kernel function.
#[derive(Debug)]
pub struct KernelItem {
    /// Attributes, documentation included.
    pub attrs: Vec<Attribute>,
    /// Visibility.
    pub vis: Visibility,
    /// Name.
    pub ident: Ident,
    /// Type and const parameters with bounds.
    pub generics: Generics,
    /// Name and type of the config parameter.
    pub config: Option<(Ident, Type)>,
    /// The other parameters.
    pub params: Vec<Param>,
    /// What the attribute says.
    pub header: Header,
    /// Body.
    pub body: Block,
}

/// Arguments of `#[kernel(..)]`.
#[derive(Debug, Default)]
pub struct Header {
    /// `dims(n: fixed)`.
    pub fixed: Vec<Ident>,
    /// `dims(n: dynamic)`, which is the default.
    pub dynamic: Vec<Ident>,
    /// `require(..)`.
    pub require: Vec<Expr>,
    /// `deterministic`.
    pub deterministic: bool,
    /// `batch_invariant(..)`.
    pub batch_invariant: Vec<Ident>,
    /// `cooperative`.
    pub cooperative: bool,
    /// `pdl`.
    pub dependent: bool,
}

/// A parameter.
#[derive(Debug)]
pub struct Param {
    /// Name.
    pub ident: Ident,
    /// Documentation.
    pub attrs: Vec<Attribute>,
    /// Declared `Option<..>`.
    pub optional: bool,
    /// What it is.
    pub kind: ParamKind,
}

/// What a parameter is.
#[derive(Debug)]
pub enum ParamKind {
    /// `In![..]`, `Out![..]`, `InOut![..]`.
    Tensor(Tensor),
    /// `Scalar![..]`.
    Scalar(Type),
}

/// Access to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `In!`.
    In,
    /// `Out!`.
    Out,
    /// `InOut!`.
    InOut,
}

/// A tensor parameter.
#[derive(Debug)]
pub struct Tensor {
    /// Access.
    pub access: Access,
    /// Dtype.
    pub dtype: Type,
    /// Extents.
    pub dims: Vec<Dim>,
    /// Strides, if declared.
    pub strides: Option<Vec<Stride>>,
}

/// A declared stride.
#[derive(Debug)]
pub enum Stride {
    /// `_`.
    Any,
    /// An expression.
    Dim(Dim),
}

/// An extent.
#[derive(Debug)]
pub enum Dim {
    /// A name.
    Name(Ident),
    /// A number.
    Number(usize),
    /// `ceil(a, b)`, or an operator: `Add`, `Sub`, `Mul`, `Div`, `Ceil`.
    Op(&'static str, Box<[Dim; 2]>),
}

impl Dim {
    /// Calls `f` with each name, and whether it stands alone.
    pub fn names<'a>(&'a self, f: &mut dyn FnMut(&'a Ident, bool)) {
        self.visit(true, f);
    }
    fn visit<'a>(&'a self, bare: bool, f: &mut dyn FnMut(&'a Ident, bool)) {
        match self {
            Dim::Name(n) => f(n, bare),
            Dim::Number(_) => {}
            Dim::Op(_, args) => args.iter().for_each(|a| a.visit(false, f)),
        }
    }
}

/// Parses a kernel; `None` if it cannot be understood at all.
pub fn kernel(attr: TokenStream, item: TokenStream, errors: &mut Errors) -> Option<KernelItem> {
    let header = syn::parse2::<Header>(attr).map_err(|e| errors.push(e)).unwrap_or_default();
    let f = syn::parse2::<ItemFn>(item).map_err(|e| errors.push(e)).ok()?;
    let (mut config, mut params) = (None, vec![]);
    for input in f.sig.inputs {
        let FnArg::Typed(arg) = input else {
            errors.at(input, "a kernel has no `self`");
            continue;
        };
        let Pat::Ident(name) = &*arg.pat else {
            errors.at(&arg.pat, "a parameter of a kernel is a name");
            continue;
        };
        if let Some(m) = name.mutability {
            errors.at(m, "a parameter of a kernel is not `mut`: write `let mut x = x;` for a device variable");
        }
        let ident = name.ident.clone();
        match (&*arg.ty, param(ident.clone(), arg.attrs, &arg.ty)) {
            (_, Ok(Some(p))) => params.push(p),
            (Type::Reference(r), Ok(None)) if config.is_none() && params.is_empty() => {
                config = Some((ident, (*r.elem).clone()));
            }
            (_, Ok(None)) => errors.at(
                &arg.ty,
                "expected `In![..]`, `Out![..]`, `InOut![..]`, `Scalar![..]`, one of them in `Option<..>`, or first the \
                 config as `&Config`",
            ),
            (_, Err(e)) => errors.push(e),
        }
    }
    if let ReturnType::Type(_, t) = &f.sig.output {
        errors.at(t, "a kernel returns nothing: write to an `Out![..]` tensor");
    }
    if let Some(l) = f.sig.generics.lifetimes().next() {
        errors.at(l, "a kernel has no lifetime parameters");
    }
    Some(KernelItem {
        attrs: f.attrs,
        vis: f.vis,
        ident: f.sig.ident,
        generics: f.sig.generics,
        config,
        params,
        header,
        body: *f.block,
    })
}

/// A tensor or scalar parameter; `None` if the type is neither.
fn param(ident: Ident, attrs: Vec<Attribute>, ty: &Type) -> syn::Result<Option<Param>> {
    let (ty, optional) = match option_of(ty) {
        Some(inner) => (inner, true),
        None => (ty, false),
    };
    let Type::Macro(m) = ty else { return Ok(None) };
    let name = m.mac.path.get_ident().map(ToString::to_string).unwrap_or_default();
    let access = match name.as_str() {
        "In" => Access::In,
        "Out" => Access::Out,
        "InOut" => Access::InOut,
        "Scalar" => {
            let kind = ParamKind::Scalar(m.mac.parse_body()?);
            return Ok(Some(Param { ident, attrs, optional, kind }));
        }
        _ => return Ok(None),
    };
    let TensorBody { dtype, dims, strides } = m.mac.parse_body()?;
    let kind = ParamKind::Tensor(Tensor { access, dtype, dims, strides });
    Ok(Some(Param { ident, attrs, optional, kind }))
}

fn option_of(ty: &Type) -> Option<&Type> {
    let Type::Path(p) = ty else { return None };
    let last = p.path.segments.last().filter(|s| s.ident == "Option")?;
    let PathArguments::AngleBracketed(args) = &last.arguments else { return None };
    match args.args.first() {
        Some(GenericArgument::Type(t)) => Some(t),
        _ => None,
    }
}

/// `Bf16; m, k` or `Bf16; m, k; strides(ld, 1)`.
struct TensorBody {
    dtype: Type,
    dims: Vec<Dim>,
    strides: Option<Vec<Stride>>,
}

impl Parse for TensorBody {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let dtype = input.parse()?;
        input
            .parse::<Token![;]>()
            .map_err(|e| syn::Error::new(e.span(), "expected `; dims`, as in `In![F32; m, k]`"))?;
        let mut dims = vec![];
        while !input.is_empty() && !input.peek(Token![;]) {
            dims.push(dim(&input.parse()?)?);
            if !input.peek(Token![,]) {
                break;
            }
            input.parse::<Token![,]>()?;
        }
        if dims.is_empty() || dims.len() > 5 {
            return Err(input.error("a tensor parameter has one to five dimensions"));
        }
        let mut strides = None;
        if input.peek(Token![;]) {
            input.parse::<Token![;]>()?;
            let word: Ident = input.parse()?;
            if word != "strides" {
                return Err(syn::Error::new(word.span(), "expected `strides(..)`"));
            }
            let list;
            parenthesized!(list in input);
            let list = Punctuated::<Expr, Token![,]>::parse_terminated(&list)?;
            if list.len() != dims.len() {
                let message = format!("{} strides for {} dimensions", list.len(), dims.len());
                return Err(syn::Error::new(word.span(), message));
            }
            strides = Some(list.iter().map(stride).collect::<syn::Result<_>>()?);
        }
        if input.is_empty() { Ok(TensorBody { dtype, dims, strides }) } else { Err(input.error("expected `,` or `;`")) }
    }
}

fn stride(e: &Expr) -> syn::Result<Stride> {
    if let Expr::Infer(_) = e { Ok(Stride::Any) } else { Ok(Stride::Dim(dim(e)?)) }
}

fn dim(e: &Expr) -> syn::Result<Dim> {
    let two = |op, a: &Expr, b: &Expr| Ok(Dim::Op(op, Box::new([dim(a)?, dim(b)?])));
    match e {
        Expr::Path(p) => match p.path.get_ident() {
            Some(name) => Ok(Dim::Name(name.clone())),
            None => Err(not_a_dim(e.span())),
        },
        Expr::Lit(l) => match &l.lit {
            Lit::Int(n) => Ok(Dim::Number(n.base10_parse()?)),
            _ => Err(not_a_dim(e.span())),
        },
        Expr::Paren(p) => dim(&p.expr),
        Expr::Group(g) => dim(&g.expr),
        Expr::Binary(b) => match b.op {
            BinOp::Add(_) => two("Add", &b.left, &b.right),
            BinOp::Sub(_) => two("Sub", &b.left, &b.right),
            BinOp::Mul(_) => two("Mul", &b.left, &b.right),
            BinOp::Div(_) => two("Div", &b.left, &b.right),
            _ => Err(not_a_dim(b.op.span())),
        },
        Expr::Call(c) => match (&*c.func, c.args.len()) {
            (Expr::Path(p), 2) if p.path.is_ident("ceil") => two("Ceil", &c.args[0], &c.args[1]),
            _ => Err(not_a_dim(e.span())),
        },
        _ => Err(not_a_dim(e.span())),
    }
}

fn not_a_dim(span: Span) -> syn::Error {
    syn::Error::new(span, "a dimension is a name, a number, `+ - * /` of dimensions, or `ceil(a, b)`")
}

impl Parse for Header {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut h = Header::default();
        while !input.is_empty() {
            let word: Ident = input.parse()?;
            let list;
            match word.to_string().as_str() {
                "deterministic" => h.deterministic = true,
                "cooperative" => h.cooperative = true,
                "pdl" => h.dependent = true,
                "dims" => {
                    parenthesized!(list in input);
                    for d in Punctuated::<DimKind, Token![,]>::parse_terminated(&list)? {
                        if d.fixed { h.fixed.push(d.name) } else { h.dynamic.push(d.name) }
                    }
                }
                "require" => {
                    parenthesized!(list in input);
                    h.require.extend(Punctuated::<Expr, Token![,]>::parse_terminated(&list)?);
                }
                "batch_invariant" => {
                    parenthesized!(list in input);
                    h.batch_invariant.extend(Punctuated::<Ident, Token![,]>::parse_terminated(&list)?);
                }
                _ => {
                    let known = "expected `dims(..)`, `require(..)`, `deterministic`, `batch_invariant(..)`, `cooperative` or `pdl`";
                    return Err(syn::Error::new(word.span(), known));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(h)
    }
}

/// `n: fixed` or `n: dynamic`.
struct DimKind {
    name: Ident,
    fixed: bool,
}
impl Parse for DimKind {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![:]>()?;
        let kind: Ident = input.parse()?;
        match kind.to_string().as_str() {
            "fixed" => Ok(DimKind { name, fixed: true }),
            "dynamic" => Ok(DimKind { name, fixed: false }),
            _ => Err(syn::Error::new(kind.span(), "expected `fixed` or `dynamic`")),
        }
    }
}
