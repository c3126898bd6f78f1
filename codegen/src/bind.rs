//! Binding: from the arguments of a launch to dimension values, launch facts and the build request; every refused launch
//! of the language is found here, before any device is touched.
//!
//! Not here: limits that need a compiled kernel except through [`check_limits`], and the comparison of the arguments'
//! device with the stream's, which only the launcher knows.

mod launch;

pub use launch::{GRID_MAX, check_limits, check_panels, grid, sym_values, tensor_map};

use crate::abi::{Arg, LaunchError, LaunchErrorKind, TensorView};
use crate::ir::{Access, DType};
use crate::spec::{BuildRequest, DimExpr, KernelDef, KernelInfo, ParamFacts, ParamInfoKind, StrideInfo};
use crate::tensor_map;
use crate::tune::{Config, ConfigValue};
use std::collections::{BTreeMap, BTreeSet};

/// Largest power of two that launch facts speak about; 16 bytes are the widest access of a thread.
const FACT_MAX: usize = 16;

/// A launch whose arguments fit its kernel.
#[derive(Clone, Debug)]
pub struct Bound {
    /// What to build.
    pub request: BuildRequest,
    /// Value of every dimension, dynamic and fixed; 0 for one bound only by absent parameters.
    pub dims: BTreeMap<String, usize>,
}

/// A tensor argument as the checks see it: a view, or a part of a workspace that has no address yet.
struct Seen<'a> {
    dtype: DType,
    shape: &'a [usize],
    strides: Vec<usize>,
    offset_bytes: usize,
    /// The view, unless it is a workspace.
    view: Option<&'a TensorView>,
    /// Index of the workspace, if it is one.
    workspace: Option<usize>,
}

impl Seen<'_> {
    fn empty(&self) -> bool {
        self.shape.contains(&0)
    }
    fn contiguous(&self) -> bool {
        let want = crate::ir::build::row_major(self.shape);
        self.empty() || (0..self.shape.len()).all(|i| self.shape[i] == 1 || self.strides[i] == want[i])
    }
    /// Elements from the first to the end of the last one; `None` if that number does not fit.
    fn span_elements(&self) -> Option<usize> {
        if self.empty() {
            return Some(0);
        }
        let mut last = 0usize;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((extent - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }
    fn span_bytes(&self) -> Option<usize> {
        Some(self.span_elements()?.checked_mul(self.dtype.bits())?.div_ceil(8))
    }
    /// Workspaces are aligned to more than any fact speaks about.
    fn address(&self) -> u64 {
        self.view.map_or(0, |v| v.memory.address()).wrapping_add(self.offset_bytes as u64)
    }
    /// A tensor map can describe it: rows follow each other at multiples of 16 bytes from an address that is one. A tensor
    /// without elements always qualifies, as its facts are those of the best one.
    fn mappable(&self) -> bool {
        let fits = |axis: usize| {
            let stride = self.strides[axis] as u64 * self.dtype.bits() as u64;
            stride > 0 && stride.is_multiple_of(8 * tensor_map::ALIGN_BYTES) && stride / 8 < tensor_map::STRIDE_END
        };
        let rank = self.shape.len();
        let inner = rank.saturating_sub(1);
        self.empty()
            || self.dtype.bits() >= 8
                && rank > 0
                && self.address().is_multiple_of(tensor_map::ALIGN_BYTES)
                && self.shape.iter().all(|&e| e as u64 <= tensor_map::EXTENT_MAX)
                && (self.idle_axis(inner) || self.strides[inner] == 1)
                && (0..inner).all(|axis| self.idle_axis(axis) || fits(axis))
    }
    /// The stride decides nothing: the axis has at most one element, or there are none at all.
    fn idle_axis(&self, axis: usize) -> bool {
        self.shape[axis] <= 1 || self.empty()
    }
}

/// Checks the arguments of a launch against its kernel, in the order of [`LaunchErrorKind`], and derives what to build.
///
/// A workspace argument is taken as a contiguous, aligned tensor of its own.
///
/// # Errors
/// The first mistake: which parameter, what was expected, what came, what to do.
pub fn bind(kernel: &dyn KernelDef, config: &Config, args: &[Arg]) -> Result<Bound, LaunchError> {
    let info = kernel.info();
    let seen = arguments(info, args)?;
    dtypes(info, args, &seen)?;
    ranks(info, &seen)?;
    let dims = dimensions(info, &seen)?;
    config_fits(kernel, config)?;
    kernel.require(&dims, config).map_err(|failed| {
        let given: Vec<_> = dims.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        let config = if config.0.is_empty() { String::new() } else { format!(" with config {config}") };
        LaunchError {
            kernel: info.name.clone(),
            parameter: None,
            kind: LaunchErrorKind::Require,
            expected: failed.join(" and "),
            got: format!("{}{config}", given.join(", ")),
            help: "pass tensors whose shapes satisfy the kernel's `require`, or another config".into(),
        }
    })?;
    strides(info, &seen, &dims)?;
    memory(info, &seen)?;
    devices(info, &seen)?;
    overlaps(info, &seen)?;
    Ok(Bound { request: request(info, config, args, &seen, &dims), dims })
}

/// The dimensions that arguments give a kernel, by name: what a config can be chosen by before there is one.
///
/// # Errors
/// Arguments that do not fit the kernel's parameters.
pub fn dims(kernel: &dyn KernelDef, args: &[Arg]) -> Result<BTreeMap<String, usize>, LaunchError> {
    let info = kernel.info();
    let seen = arguments(info, args)?;
    ranks(info, &seen)?;
    dimensions(info, &seen)
}

fn error(info: &KernelInfo, param: usize, kind: LaunchErrorKind) -> LaunchError {
    let parameter = info.params.get(param).map(|p| p.name.clone());
    let (expected, got, help) = (String::new(), String::new(), String::new());
    LaunchError { kernel: info.name.clone(), parameter, kind, expected, got, help }
}

/// Number and kind of the arguments. The result has one entry a parameter, `Some` for tensors that are present.
fn arguments<'a>(info: &KernelInfo, args: &'a [Arg]) -> Result<Vec<Option<Seen<'a>>>, LaunchError> {
    if args.len() != info.params.len() {
        let names: Vec<_> = info.params.iter().map(|p| p.name.as_str()).collect();
        return Err(LaunchError {
            parameter: None,
            expected: format!("{} arguments ({})", names.len(), names.join(", ")),
            got: format!("{}", args.len()),
            help: "pass one argument a parameter, `Arg::Absent` for an optional one that is left out".into(),
            ..error(info, 0, LaunchErrorKind::Arguments)
        });
    }
    let mut seen = Vec::with_capacity(args.len());
    for (i, (param, arg)) in info.params.iter().zip(args).enumerate() {
        let wrong = |expected: &str, got: &str, help: &str| LaunchError {
            expected: expected.into(),
            got: got.into(),
            help: help.into(),
            ..error(info, i, LaunchErrorKind::Arguments)
        };
        let expected = match param.kind {
            ParamInfoKind::Tensor { .. } => "a tensor",
            ParamInfoKind::Scalar { .. } => "a scalar",
        };
        let tensor = matches!(param.kind, ParamInfoKind::Tensor { .. });
        seen.push(match arg {
            Arg::Tensor(v) if tensor => {
                if v.strides.len() != v.shape.len() {
                    let got = format!("{} strides for {} axes", v.strides.len(), v.shape.len());
                    return Err(wrong("one stride an axis", &got, "build the view with `TensorView::contiguous`"));
                }
                let (strides, offset_bytes) = (v.strides.clone(), v.offset_bytes);
                Some(Seen { dtype: v.dtype, shape: &v.shape, strides, offset_bytes, view: Some(v), workspace: None })
            }
            Arg::Workspace { index, dtype, shape, offset_bytes } if tensor => Some(Seen {
                dtype: *dtype,
                shape,
                strides: crate::ir::build::row_major(shape),
                offset_bytes: *offset_bytes,
                view: None,
                workspace: Some(*index),
            }),
            Arg::Scalar(_) if !tensor => None,
            Arg::Absent if param.optional => None,
            Arg::Absent => {
                return Err(wrong(expected, "nothing", "only parameters declared `Option<..>` may be absent"));
            }
            Arg::Tensor(_) | Arg::Workspace { .. } => {
                return Err(wrong(expected, "a tensor", "pass the number itself, not a tensor that holds it"));
            }
            Arg::Scalar(_) => return Err(wrong(expected, "a scalar", "pass a tensor view")),
        });
    }
    Ok(seen)
}

fn dtypes(info: &KernelInfo, args: &[Arg], seen: &[Option<Seen>]) -> Result<(), LaunchError> {
    for (i, param) in info.params.iter().enumerate() {
        let (want, got) = match (&param.kind, &seen[i], &args[i]) {
            (ParamInfoKind::Tensor { dtype, .. }, Some(t), _) => (*dtype, t.dtype),
            (ParamInfoKind::Scalar { dtype }, _, Arg::Scalar(x)) => (*dtype, x.dtype),
            _ => continue,
        };
        if want != got {
            return Err(LaunchError {
                expected: want.to_string(),
                got: got.to_string(),
                help: "convert the argument, or instantiate the kernel for this dtype".into(),
                ..error(info, i, LaunchErrorKind::DType)
            });
        }
    }
    Ok(())
}

fn shape_text(shape: &[usize]) -> String {
    let parts: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", parts.join(", "))
}

fn ranks(info: &KernelInfo, seen: &[Option<Seen>]) -> Result<(), LaunchError> {
    for (i, t, dims, _) in tensors(info, seen) {
        if t.shape.len() != dims.len() {
            let declared: Vec<_> = dims.iter().map(ToString::to_string).collect();
            return Err(LaunchError {
                expected: format!("rank {} [{}]", dims.len(), declared.join(", ")),
                got: format!("rank {} {}", t.shape.len(), shape_text(t.shape)),
                help: "reshape the tensor to the declared axes".into(),
                ..error(info, i, LaunchErrorKind::Rank)
            });
        }
    }
    Ok(())
}

/// Present tensor parameters: position, argument, declared extents, declared strides.
fn tensors<'a>(
    info: &'a KernelInfo,
    seen: &'a [Option<Seen<'a>>],
) -> impl Iterator<Item = (usize, &'a Seen<'a>, &'a [DimExpr], Option<&'a [StrideInfo]>)> {
    info.params.iter().zip(seen).enumerate().filter_map(|(i, (p, t))| match (&p.kind, t) {
        (ParamInfoKind::Tensor { dims, strides, .. }, Some(t)) => Some((i, t, dims.as_slice(), strides.as_deref())),
        _ => None,
    })
}

/// Where a dimension got its value; text is made only for errors.
struct Origin {
    param: usize,
    axis: usize,
    stride: bool,
}

impl Origin {
    fn text(&self, info: &KernelInfo) -> String {
        let what = if self.stride { "the stride of axis" } else { "axis" };
        format!("{what} {} of `{}`", self.axis, info.params[self.param].name)
    }
}

/// Binds names from axes and named strides, then compares every declared extent with the given one.
fn dimensions(info: &KernelInfo, seen: &[Option<Seen>]) -> Result<BTreeMap<String, usize>, LaunchError> {
    let mut bound: BTreeMap<&str, (usize, Origin)> = BTreeMap::new();
    for (i, t, dims, _) in tensors(info, seen) {
        for (axis, dim) in dims.iter().enumerate() {
            if let DimExpr::Sym(name) = dim {
                bound.entry(name).or_insert((t.shape[axis], Origin { param: i, axis, stride: false }));
            }
        }
    }
    // A stride of an axis with one element says nothing, so it names a value only if nothing else does.
    for idle in [false, true] {
        for (i, t, _, strides) in tensors(info, seen) {
            for (axis, stride) in strides.unwrap_or_default().iter().enumerate() {
                if let (StrideInfo::Expr(DimExpr::Sym(name)), true) = (stride, t.idle_axis(axis) == idle) {
                    bound.entry(name).or_insert((t.strides[axis], Origin { param: i, axis, stride: true }));
                }
            }
        }
    }
    let mut values: BTreeMap<String, usize> = bound.iter().map(|(n, (v, _))| (n.to_string(), *v)).collect();
    for dim in &info.dims {
        values.entry(dim.name.clone()).or_insert(0);
    }
    for (i, t, dims, _) in tensors(info, seen) {
        for (axis, dim) in dims.iter().enumerate() {
            let want = dim.eval(&values);
            if want == Some(t.shape[axis]) {
                continue;
            }
            let mut names = BTreeSet::new();
            all_names(dim, &mut names);
            let origin: Vec<_> = names
                .iter()
                .filter_map(|n| bound.get(n.as_str()).map(|(v, from)| format!("`{n}` is {v} from {}", from.text(info))))
                .collect();
            let want = want.map_or("no value".into(), |w| w.to_string());
            return Err(LaunchError {
                expected: match dim {
                    DimExpr::Const(c) => format!("axis {axis} of extent {c}"),
                    _ => format!("axis {axis} of extent `{}` = {want}", plain(dim)),
                },
                got: format!("{} (shape {})", t.shape[axis], shape_text(t.shape)),
                help: if origin.is_empty() { "change the shape".into() } else { origin.join(", ") },
                ..error(info, i, LaunchErrorKind::Dimension)
            });
        }
    }
    Ok(values)
}

/// An expression without the outer parentheses of its text form.
fn plain(dim: &DimExpr) -> String {
    let s = dim.to_string();
    match s.strip_prefix('(').and_then(|s| s.strip_suffix(')')) {
        Some(inner) => inner.to_string(),
        None => s,
    }
}

fn all_names(dim: &DimExpr, out: &mut BTreeSet<String>) {
    match dim {
        DimExpr::Sym(n) => {
            out.insert(n.clone());
        }
        DimExpr::Const(_) => {}
        DimExpr::Add(a, b) | DimExpr::Sub(a, b) | DimExpr::Mul(a, b) | DimExpr::Div(a, b) | DimExpr::Ceil(a, b) => {
            all_names(a, out);
            all_names(b, out);
        }
    }
}

/// Every field is there and of the kind its axis has; values outside the space are allowed in code.
fn config_fits(kernel: &dyn KernelDef, config: &Config) -> Result<(), LaunchError> {
    let space = kernel.space();
    let refuse = |expected: String, got: String| LaunchError {
        parameter: None,
        expected,
        got,
        help: format!("start from the default config: {}", space.default_config()),
        ..error(kernel.info(), 0, LaunchErrorKind::Config)
    };
    let kind = |v: &ConfigValue| match v {
        ConfigValue::Int(_) => "a number",
        ConfigValue::Bool(_) => "true or false",
        ConfigValue::Word(_) => "a word",
    };
    for axis in &space.axes {
        let Some(value) = config.0.get(&axis.name) else {
            return Err(refuse(format!("config field `{}`", axis.name), format!("config `{config}` without it")));
        };
        if let Some(like) = axis.values.first().filter(|like| kind(like) != kind(value)) {
            return Err(refuse(format!("config field `{}` to be {}", axis.name, kind(like)), value.to_string()));
        }
    }
    if let Some(name) = config.0.keys().find(|n| !space.axes.iter().any(|a| a.name == **n)) {
        let fields: Vec<_> = space.axes.iter().map(|a| a.name.as_str()).collect();
        let fields = if fields.is_empty() { "none".into() } else { fields.join(", ") };
        return Err(refuse(format!("config fields of {} ({fields})", space.name), format!("field `{name}`")));
    }
    Ok(())
}

fn strides(info: &KernelInfo, seen: &[Option<Seen>], dims: &BTreeMap<String, usize>) -> Result<(), LaunchError> {
    for (i, t, _, declared) in tensors(info, seen) {
        let Some(declared) = declared else {
            if !t.contiguous() {
                let want = crate::ir::build::row_major(t.shape);
                return Err(LaunchError {
                    expected: format!("a contiguous tensor, strides {}", shape_text(&want)),
                    got: format!("strides {} (shape {})", shape_text(&t.strides), shape_text(t.shape)),
                    help: "copy it into a contiguous tensor, or declare `strides(..)` on the parameter".into(),
                    ..error(info, i, LaunchErrorKind::Strides)
                });
            }
            continue;
        };
        for (axis, stride) in declared.iter().enumerate() {
            let StrideInfo::Expr(e) = stride else { continue };
            let want = e.eval(dims);
            if t.idle_axis(axis) || want == Some(t.strides[axis]) {
                continue;
            }
            let value = want.map_or("no value".into(), |w| w.to_string());
            return Err(LaunchError {
                expected: match e {
                    DimExpr::Const(c) => format!("stride {c} on axis {axis}"),
                    _ => format!("stride `{}` = {value} on axis {axis}", plain(e)),
                },
                got: format!("{} (strides {})", t.strides[axis], shape_text(&t.strides)),
                help: "pass a view with the declared strides, or copy it into one".into(),
                ..error(info, i, LaunchErrorKind::Strides)
            });
        }
    }
    Ok(())
}

fn memory(info: &KernelInfo, seen: &[Option<Seen>]) -> Result<(), LaunchError> {
    for (i, t, _, _) in tensors(info, seen) {
        let element = t.dtype.bytes(1);
        if !t.empty() && !t.address().is_multiple_of(element as u64) {
            return Err(LaunchError {
                expected: format!("an address that is a multiple of {element} bytes for {}", t.dtype),
                got: format!("address {:#x}", t.address()),
                help: "move the view's byte offset to a whole element".into(),
                ..error(info, i, LaunchErrorKind::Alignment)
            });
        }
        let Some(view) = t.view else { continue };
        let end = t.span_bytes().and_then(|s| s.checked_add(t.offset_bytes));
        let have = view.memory.len_bytes();
        if end.is_none_or(|end| end > have) {
            let end = end.map_or("more than 64 bits can count".into(), |e| format!("{e}"));
            return Err(LaunchError {
                expected: format!("a view inside its allocation of {have} bytes"),
                got: format!(
                    "one that ends at byte {end} (shape {}, strides {}, offset {})",
                    shape_text(t.shape),
                    shape_text(&t.strides),
                    t.offset_bytes
                ),
                help: "shrink the view or allocate more".into(),
                ..error(info, i, LaunchErrorKind::OutOfMemoryRange)
            });
        }
    }
    Ok(())
}

fn devices(info: &KernelInfo, seen: &[Option<Seen>]) -> Result<(), LaunchError> {
    let mut first: Option<(usize, &str)> = None;
    for (i, t, _, _) in tensors(info, seen) {
        let Some(view) = t.view else { continue };
        let device = view.memory.device();
        match first {
            None => first = Some((i, device)),
            Some((other, want)) if want != device => {
                return Err(LaunchError {
                    expected: format!("device {want}, where `{}` lives", info.params[other].name),
                    got: format!("device {device}"),
                    help: "download it and upload it to the device of the others".into(),
                    ..error(info, i, LaunchErrorKind::Device)
                });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// No output shares memory with another argument or with itself: kernels may read and write in any order.
fn overlaps(info: &KernelInfo, seen: &[Option<Seen>]) -> Result<(), LaunchError> {
    let access = |i: usize| match info.params[i].kind {
        ParamInfoKind::Tensor { access, .. } => access,
        ParamInfoKind::Scalar { .. } => Access::In,
    };
    let all: Vec<_> = tensors(info, seen).collect();
    for (n, &(i, t, _, _)) in all.iter().enumerate() {
        if access(i) == Access::In {
            continue;
        }
        if meets_itself(t) {
            return Err(LaunchError {
                expected: "an output whose elements are all different places".into(),
                got: format!("shape {} with strides {}", shape_text(t.shape), shape_text(&t.strides)),
                help: "write to a tensor of its own and copy".into(),
                ..error(info, i, LaunchErrorKind::Overlap)
            });
        }
        for (m, &(j, other, _, _)) in all.iter().enumerate() {
            // Two outputs are compared once.
            if m == n || (m < n && access(j) != Access::In) || !overlap(t, other) {
                continue;
            }
            return Err(LaunchError {
                expected: "an output that shares no memory with other arguments".into(),
                got: format!("memory that `{}` uses too", info.params[j].name),
                help: "give the output a tensor of its own".into(),
                ..error(info, i, LaunchErrorKind::Overlap)
            });
        }
    }
    Ok(())
}

/// True unless sorting the axes by stride shows that no two indices meet. Layouts where axes interleave without
/// meeting are refused too; no framework makes them.
fn meets_itself(t: &Seen) -> bool {
    if t.empty() {
        return false;
    }
    let mut axes: Vec<_> = t.shape.iter().zip(&t.strides).filter(|(e, _)| **e > 1).map(|(&e, &s)| (s, e)).collect();
    axes.sort_unstable();
    let mut reach = 0usize;
    for (stride, extent) in axes {
        if stride <= reach {
            return true;
        }
        reach = reach.saturating_add((extent - 1).saturating_mul(stride));
    }
    false
}

/// True unless the two are known to be disjoint: in different allocations, in different ranges, or in different columns
/// of rows of the same length (a column slice of an output beside the slice that is read).
fn overlap(a: &Seen, b: &Seen) -> bool {
    let (Some(la), Some(lb)) = (a.span_bytes(), b.span_bytes()) else { return true };
    if la == 0 || lb == 0 || a.workspace != b.workspace {
        return false;
    }
    let (sa, sb) = (a.address(), b.address());
    if sa + la as u64 <= sb || sb + lb as u64 <= sa {
        return false;
    }
    let rows = |t: &Seen| -> Vec<u64> {
        let axes = t.shape.iter().zip(&t.strides).filter(|(e, _)| **e > 1);
        axes.map(|(_, &s)| (s * t.dtype.bits() / 8) as u64).collect()
    };
    let start = sa.min(sb);
    !rows(a).into_iter().any(|row| {
        let (Some(ca), Some(cb)) = (columns(a, sa - start, row), columns(b, sb - start, row)) else { return false };
        ca.1 <= cb.0 || cb.1 <= ca.0
    })
}

/// Bytes `[lo, hi)` within rows of `row` bytes that hold all elements, if every larger stride is whole rows and no
/// element crosses a row's end.
fn columns(t: &Seen, offset: u64, row: u64) -> Option<(u64, u64)> {
    if row == 0 || t.dtype.bits() < 8 {
        return None;
    }
    let size = t.dtype.bytes(1) as u64;
    let mut last = 0u64;
    for (&extent, &stride) in t.shape.iter().zip(&t.strides).filter(|(e, _)| **e > 1) {
        let stride = stride as u64 * size;
        if stride < row {
            last += (extent as u64 - 1) * stride;
        } else if !stride.is_multiple_of(row) {
            return None;
        }
    }
    let lo = offset % row;
    let hi = lo + last + size;
    (hi <= row).then_some((lo, hi))
}

/// Largest power of two up to [`FACT_MAX`] that divides `x`; zero is divisible by all.
fn power_of_two(x: usize) -> usize {
    if x == 0 { FACT_MAX } else { (1 << x.trailing_zeros().min(usize::BITS - 1)).min(FACT_MAX) }
}

fn request(
    info: &KernelInfo,
    config: &Config,
    args: &[Arg],
    seen: &[Option<Seen>],
    dims: &BTreeMap<String, usize>,
) -> BuildRequest {
    let fixed: BTreeMap<_, _> = info
        .dims
        .iter()
        .filter(|d| d.fixed)
        .map(|d| (d.name.clone(), dims.get(&d.name).copied().unwrap_or(0)))
        .collect();
    let mut strided = BTreeSet::new();
    for (_, _, extents, strides) in tensors(info, seen) {
        extents.iter().skip(1).for_each(|e| factors(e, &mut strided));
        for s in strides.unwrap_or_default() {
            if let StrideInfo::Expr(e) = s {
                factors(e, &mut strided);
            }
        }
    }
    let multiples = strided
        .into_iter()
        .filter(|n| !fixed.contains_key(n))
        .filter_map(|n| dims.get(&n).map(|&v| (n, power_of_two(v))))
        .collect();
    let limit = i32::MAX as usize;
    let mut wide_index = dims.values().any(|&v| v > limit);
    let facts = seen
        .iter()
        .zip(args)
        .map(|(t, arg)| {
            let Some(t) = t else {
                return ParamFacts { present: !matches!(arg, Arg::Absent), ..ParamFacts::default() };
            };
            // Offsets are formed in elements and, for small dtypes, in fewer bytes than elements: both must fit.
            let (elements, bytes) = (t.span_elements(), t.span_bytes());
            let fits = |n: Option<usize>| n.is_some_and(|n| n <= limit);
            let contiguous = t.contiguous();
            wide_index |= !fits(elements) || !fits(bytes) || (!contiguous && t.strides.iter().any(|&s| s > limit));
            let align_bytes = if t.empty() { FACT_MAX } else { power_of_two((t.address() % FACT_MAX as u64) as usize) };
            ParamFacts {
                present: true,
                align_bytes,
                contiguous,
                tma: t.mappable(),
                stride_multiples: if contiguous { vec![] } else { stride_facts(t) },
            }
        })
        .collect();
    BuildRequest { config: config.clone(), fixed, multiples, facts, wide_index }
}

/// An idle axis gets the fact that makes builds equal: 1 for the innermost one, else any multiple.
fn stride_facts(t: &Seen) -> Vec<usize> {
    let rank = t.shape.len();
    (0..rank)
        .map(|axis| match (t.idle_axis(axis), t.strides[axis]) {
            (true, _) if axis + 1 == rank => 0,
            (true, _) => FACT_MAX,
            (false, 1) => 0,
            (false, s) => power_of_two(s),
        })
        .collect()
}

/// Names whose divisibility carries over to the expression; a quotient's does not.
fn factors(dim: &DimExpr, out: &mut BTreeSet<String>) {
    match dim {
        DimExpr::Sym(n) => {
            out.insert(n.clone());
        }
        DimExpr::Add(a, b) | DimExpr::Sub(a, b) | DimExpr::Mul(a, b) => {
            factors(a, out);
            factors(b, out);
        }
        DimExpr::Const(_) | DimExpr::Div(..) | DimExpr::Ceil(..) => {}
    }
}

#[cfg(test)]
mod tests;
