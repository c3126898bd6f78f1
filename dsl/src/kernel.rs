//! From a kernel's static description and a build request to the typed parameters its body sees.
//!
//! Only generated code uses this: one [`Cx`] a build.

use crate::dtype::DType;
use crate::index::{IntoIx, Ix};
use crate::scalar::V;
use crate::session::{self, with};
use crate::tensor::{Gm, gcd};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::ir::{
    DType as Data, IxExpr, IxId, Kernel, ParamKind, Properties, Relation, Require, Span, Sym, SymId, SymKind,
};
use kiln_codegen::spec::{BuildRequest, DimExpr, KernelInfo, ParamFacts, ParamInfo, ParamInfoKind, StrideInfo};
use kiln_codegen::tune::{Config, KernelConfig};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

/// One build: what it is asked for, and the dimensions declared so far.
#[derive(Debug)]
pub struct Cx<'a> {
    info: &'a KernelInfo,
    request: &'a BuildRequest,
    dims: HashMap<String, IxId>,
}

/// Runs a builder.
///
/// # Errors
/// Everything it finds wrong.
pub fn build<C: KernelConfig>(
    info: &KernelInfo,
    at: &'static Location<'static>,
    request: &BuildRequest,
    body: impl FnOnce(&mut Cx<'_>, &C),
) -> Result<Kernel, Vec<Diagnostic>> {
    let span = Span { file: at.file().into(), line: at.line(), column: at.column(), frames: vec![], label: None };
    let mut errors = vec![];
    for d in info.dims.iter().filter(|d| d.fixed && !request.fixed.contains_key(&d.name)) {
        errors.push(Diagnostic::error_at(
            span.clone(),
            "B0401",
            format!("no value for the fixed dimension `{}`", d.name),
        ));
    }
    let config = C::from_config(&request.config)
        .map_err(|e| errors.push(Diagnostic::error_at(span.clone(), "B0402", e.message)))
        .ok();
    let result = match config {
        Some(config) if errors.is_empty() => session::build(info, at, || {
            let mut cx = Cx { info, request, dims: HashMap::new() };
            cx.declare();
            body(&mut cx, &config);
        }),
        Some(_) | None => Err(errors),
    };
    result.map_err(|errors| errors.into_iter().map(|d| d.context(context(info, request))).collect())
}

/// What was built, for the last line of a diagnostic.
fn context(info: &KernelInfo, request: &BuildRequest) -> String {
    let types: Vec<_> = info.dtypes.iter().map(|(_, d)| d.name()).collect();
    let types = if types.is_empty() { String::new() } else { format!("<{}>", types.join(", ")) };
    let fixed: Vec<_> = request.fixed.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{}{types}  config {}  dims {}", info.name, request.config, fixed.join(","))
}

/// Checks the `require` clauses of a kernel for dimension values; `each` calls its argument once a clause.
///
/// # Errors
/// The texts of those that do not hold.
pub fn require<C: KernelConfig>(
    dims: &BTreeMap<String, usize>,
    config: &Config,
    each: impl Fn(&dyn Fn(&str) -> usize, &C, &mut dyn FnMut(&str, &dyn Fn() -> bool)),
) -> Result<(), Vec<String>> {
    let config = C::from_config(config).map_err(|e| vec![e.message])?;
    let mut failed = vec![];
    let dim = |name: &str| dims.get(name).copied().unwrap_or(0);
    each(&dim, &config, &mut |text, holds| {
        // A clause that cannot be computed (a division by zero, a difference below zero) does not hold.
        if !session::quietly(holds).unwrap_or(false) {
            failed.push(text.to_string());
        }
    });
    if failed.is_empty() { Ok(()) } else { Err(failed) }
}

impl Cx<'_> {
    /// Sets what the kernel has before its parameters.
    #[track_caller]
    fn declare(&mut self) {
        with(|s| {
            let k = &mut s.b.kernel;
            k.dtypes = self.info.dtypes.clone();
            let fixed = self.info.dims.iter().filter(|d| d.fixed);
            k.fixed_dims = fixed.map(|d| (d.name.clone(), self.fixed(&d.name))).collect();
            k.properties = Properties {
                deterministic: self.info.deterministic,
                batch_invariant: self.info.batch_invariant.clone(),
                launch: self.info.launch,
            };
            for d in &self.info.dims {
                let id = match self.request.fixed.get(&d.name).filter(|_| d.fixed) {
                    Some(&value) => s.b.ix_const(value as i64),
                    None => {
                        let multiple_of = self.request.multiples.get(&d.name).map_or(1, |&m| m.max(1) as i64);
                        let sym =
                            Sym { name: d.name.clone(), kind: SymKind::Dim, multiple_of, min: 0, max: self.largest() };
                        let sym = s.b.sym(sym);
                        s.b.ix_sym(sym)
                    }
                };
                self.dims.insert(d.name.clone(), id);
            }
        });
    }
    /// A fixed dimension.
    pub fn fixed(&self, name: &str) -> usize {
        self.request.fixed.get(name).copied().unwrap_or(0)
    }
    /// A dimension that the launch gives.
    #[track_caller]
    pub fn dynamic(&self, name: &str) -> Ix {
        match self.dims.get(name) {
            Some(&id) => Ix::of(id),
            None => 0usize.ix(),
        }
    }
    fn facts(&self, at: usize, p: &ParamInfo) -> ParamFacts {
        let bits = match &p.kind {
            ParamInfoKind::Tensor { dtype, .. } | ParamInfoKind::Scalar { dtype } => dtype.bits(),
        };
        // A request without facts describes the plainest launch: everything that must be there, natural alignment.
        let plain = ParamFacts {
            present: !p.optional,
            align_bytes: (bits / 8).max(1),
            contiguous: true,
            tma: false,
            stride_multiples: vec![],
        };
        let mut facts = self.request.facts.get(at).cloned().unwrap_or(plain);
        facts.present |= !p.optional;
        facts
    }
    /// Declares parameter `at`; nothing if it is optional and left out.
    #[track_caller]
    fn param(&mut self, at: usize) -> Option<kiln_codegen::ir::ParamId> {
        let p = &self.info.params[at];
        let facts = self.facts(at, p);
        if !facts.present {
            with(|s| s.b.param(&p.name, ParamKind::Absent));
            return None;
        }
        Some(with(|s| {
            let kind = match &p.kind {
                ParamInfoKind::Scalar { dtype } => ParamKind::Scalar { dtype: *dtype, value: s.b.free_value(*dtype) },
                ParamInfoKind::Tensor { dtype, access, dims, strides } => {
                    let extents: Vec<IxId> = dims.iter().map(|d| self.dim(&mut s.b.kernel, d)).collect();
                    let strides = self.strides(&mut s.b.kernel, at, &extents, strides.as_deref(), &facts);
                    ParamKind::Tensor {
                        dtype: *dtype,
                        access: *access,
                        extents,
                        strides,
                        align_bytes: facts.align_bytes.max(1),
                        tma: facts.tma,
                    }
                }
            };
            s.b.param(&p.name, kind)
        }))
    }
    /// Strides of a tensor: products of extents if it is contiguous, else what is declared or a symbol each.
    fn strides(
        &self,
        k: &mut Kernel,
        at: usize,
        extents: &[IxId],
        declared: Option<&[StrideInfo]>,
        facts: &ParamFacts,
    ) -> Vec<IxId> {
        let mut dense = vec![k.ix_const_id(1); extents.len()];
        for axis in (0..extents.len().saturating_sub(1)).rev() {
            dense[axis] = k.ix_mul(dense[axis + 1], extents[axis + 1]);
        }
        let Some(declared) = declared else { return dense };
        let mut strides = vec![];
        for (axis, d) in declared.iter().enumerate() {
            strides.push(match d {
                StrideInfo::Expr(e) => self.dim(k, e),
                StrideInfo::Any if facts.contiguous => dense[axis],
                StrideInfo::Any => match facts.stride_multiples.get(axis) {
                    Some(0) => k.ix_const_id(1),
                    multiple => {
                        k.syms.push(Sym {
                            name: format!("{}.stride{axis}", self.info.params[at].name),
                            kind: SymKind::Stride { param: at as u32, axis: axis as u32 },
                            multiple_of: multiple.map_or(1, |&m| m as i64),
                            min: 0,
                            max: self.largest(),
                        });
                        let sym = SymId(k.syms.len() as u32 - 1);
                        k.intern(IxExpr::Sym(sym))
                    }
                },
            });
        }
        strides
    }
    /// Upper bound of a symbol. Where an offset needs more than 31 bits, every factor of it may, as far as a build knows.
    fn largest(&self) -> i64 {
        if self.request.wide_index { 1 << 40 } else { i64::from(i32::MAX) }
    }
    /// An extent or stride expression.
    fn dim(&self, k: &mut Kernel, d: &DimExpr) -> IxId {
        match d {
            DimExpr::Sym(n) => match self.dims.get(n) {
                Some(&id) => id,
                None => k.ix_const_id(0),
            },
            DimExpr::Const(c) => k.ix_const_id(*c as i64),
            DimExpr::Add(a, b) => {
                let (a, b) = (self.dim(k, a), self.dim(k, b));
                k.ix_add(a, b)
            }
            DimExpr::Sub(a, b) => {
                let (a, b) = (self.dim(k, a), self.dim(k, b));
                let (d, zero) = (k.ix_sub(a, b), k.ix_const_id(0));
                k.ix_max(d, zero)
            }
            DimExpr::Mul(a, b) => {
                let (a, b) = (self.dim(k, a), self.dim(k, b));
                k.ix_mul(a, b)
            }
            DimExpr::Div(a, b) => {
                let (a, b) = (self.dim(k, a), self.dim(k, b));
                k.ix_div(a, b)
            }
            DimExpr::Ceil(a, b) => {
                let (a, b) = (self.dim(k, a), self.dim(k, b));
                k.ix_div_ceil(a, b)
            }
        }
    }
    /// A tensor parameter.
    #[track_caller]
    pub fn tensor<T: DType, const N: usize, A>(&mut self, at: usize) -> Gm<T, N, A> {
        let id = self.param(at).unwrap_or(kiln_codegen::ir::ParamId(at as u32));
        with(|s| Gm::of_view(s.b.param_view(id)))
    }
    /// An optional tensor parameter.
    #[track_caller]
    pub fn optional_tensor<T: DType, const N: usize, A>(&mut self, at: usize) -> Option<Gm<T, N, A>> {
        let id = self.param(at)?;
        Some(with(|s| Gm::of_view(s.b.param_view(id))))
    }
    /// A scalar parameter.
    #[track_caller]
    pub fn scalar<T: DType>(&mut self, at: usize) -> V<T> {
        match self.optional_scalar(at) {
            Some(v) => v,
            None => V::of(0.0),
        }
    }
    /// An optional scalar parameter.
    #[track_caller]
    pub fn optional_scalar<T: DType>(&mut self, at: usize) -> Option<V<T>> {
        let id = self.param(at)?;
        with(|s| match s.b.kernel.param(id).kind {
            ParamKind::Scalar { value, .. } => Some(V::of_id(value)),
            ParamKind::Tensor { .. } | ParamKind::Absent => None,
        })
    }
    /// A `require` clause of a form the compiler can use as a fact.
    #[track_caller]
    pub fn fact<A: IntoIx, B: IntoIx>(&mut self, text: &str, left: A, relation: Relation, right: B) {
        let (left, right) = (left.ix().id, right.ix().id);
        with(|s| {
            let k = &mut s.b.kernel;
            if let (Some(a), Some(b)) = (k.ix_const(left), k.ix_const(right)) {
                let holds = match relation {
                    Relation::Eq => a == b,
                    Relation::Le => a <= b,
                    Relation::Lt => a < b,
                };
                if !holds {
                    s.error("B0403", format!("the kernel requires `{text}`, which does not hold"));
                }
                return;
            }
            if let (IxExpr::Mod(a, m), Relation::Eq, Some(0)) = (k.ix_expr(left), relation, k.ix_const(right))
                && let (IxExpr::Sym(sym), Some(m)) = (k.ix_expr(a), k.ix_const(m))
                && m > 0
            {
                let have = k.syms[sym.0 as usize].multiple_of;
                k.syms[sym.0 as usize].multiple_of = have / gcd(have, m) * m;
            }
            k.requires.push(Require { text: text.into(), left, relation, right });
        });
    }
}

/// Dtype of a type parameter, for [`KernelInfo`].
pub const fn dtype<T: DType>() -> Data {
    T::DTYPE
}
