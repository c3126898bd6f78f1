//! The dynamic check of batch invariance: launches of a plan again with some of their rows, compared to the bit.
//!
//! Works on launches, not on problems: a kernel names the axes of its dimension, so rows can be taken out of any argument
//! knowing of the operator only how its problems split: an argument padded along another axis goes with its rows. What a
//! row is run with: alone, in another place, among more rows, and a second time.
//! Numbers of rows that the kernel's `require` refuses, as more rows than a padded argument has room for, are left out.

use kiln_codegen::abi::{Arg, Launch, LaunchErrorKind, Launcher, Plan, TensorView};
use kiln_codegen::formats;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::Access;
use kiln_codegen::spec::{DimExpr, KernelInfo, ParamInfoKind, Problem, Split};
use kiln_runtime::Device;
use std::sync::Arc;

/// What a launch showed along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// This many comparisons of rows, all equal.
    Equal(usize),
    /// The first difference, in words.
    Differs(String),
    /// Nothing to compare, and why.
    Nothing(String),
}

/// The axis of a parameter that holds the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    axis: usize,
    /// Its extent is the number of rows, rounded up to a multiple of this.
    multiple: usize,
}

/// The axis of each parameter that is the dimension; `None` for parameters without one.
///
/// # Errors
/// A parameter whose extent is made from the dimension: rows cannot be taken out of it.
fn axes(info: &KernelInfo, dim: &str) -> Result<Vec<Option<Axis>>, String> {
    let axis = |p: &kiln_codegen::spec::ParamInfo| match &p.kind {
        ParamInfoKind::Scalar { .. } => Ok(None),
        ParamInfoKind::Tensor { dims, .. } => {
            if let Some(e) = dims.iter().find(|e| **e != DimExpr::Sym(dim.into()) && names(e, dim)) {
                return Err(format!("an axis of `{}` has the extent {e}", p.name));
            }
            Ok(dims.iter().position(|e| *e == DimExpr::Sym(dim.into())).map(|axis| Axis { axis, multiple: 1 }))
        }
    };
    info.params.iter().map(axis).collect()
}

/// Adds the axes that go with the dimension although they have another name, as padded columns of scales do: the split
/// that cuts the dimension's own axes says which.
///
/// # Errors
/// An argument that goes with the dimension in other steps.
fn companions(
    axes: &mut [Option<Axis>],
    launch: &Launch,
    problem: &Problem,
    splits: &[Split],
    rows: usize,
) -> Result<(), String> {
    let name = |arg: &Arg| match arg {
        Arg::Tensor(v) => problem.tensors.iter().find(|(_, t)| {
            // Not by address: tensors without elements may share one.
            let same = Arc::ptr_eq(&t.memory, &v.memory) && t.offset_bytes == v.offset_bytes;
            same && t.shape.len() == v.shape.len()
        }),
        Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
    };
    let named: Vec<Option<(&String, &TensorView)>> = launch.args.iter().map(name).collect();
    let span = |s: &Split, n: &str| s.tensors.iter().find(|t| t.0 == n).map(|t| (t.1, t.2));
    let step = |s: &Split| {
        let mut own = axes.iter().zip(&named).filter_map(|(a, n)| a.as_ref().zip(n.as_ref()));
        own.find_map(|(a, (n, _))| span(s, n).filter(|x| x.0 == a.axis).map(|x| x.1))
    };
    let Some((split, step)) = splits.iter().find_map(|s| step(s).map(|n| (s, n))) else { return Ok(()) };
    for (a, n) in axes.iter_mut().zip(&named) {
        let (None, Some((n, t))) = (&a, n) else { continue };
        let Some((axis, own)) = span(split, n) else { continue };
        if own != step || t.shape[axis] != rows.next_multiple_of(step) {
            return Err(format!("`{n}` goes with the rows in steps of its own"));
        }
        *a = Some(Axis { axis, multiple: step });
    }
    Ok(())
}

fn names(e: &DimExpr, dim: &str) -> bool {
    match e {
        DimExpr::Sym(n) => n == dim,
        DimExpr::Const(_) => false,
        DimExpr::Add(a, b) | DimExpr::Sub(a, b) | DimExpr::Mul(a, b) | DimExpr::Div(a, b) | DimExpr::Ceil(a, b) => {
            names(a, dim) || names(b, dim)
        }
    }
}

/// Rows `rows` along the axis, in this order, and zeros as padding.
fn take(t: &HostTensor, a: Axis, rows: &[usize]) -> HostTensor {
    let picked = t.pick(a.axis, 1, rows);
    let mut shape = picked.shape.clone();
    shape[a.axis] = rows.len().next_multiple_of(a.multiple);
    if shape == picked.shape {
        return picked;
    }
    let mut out = HostTensor::zeros(t.dtype, &shape);
    let inner: usize = shape[a.axis + 1..].iter().product();
    let (from, to) = (rows.len() * inner, shape[a.axis] * inner);
    for i in 0..picked.num_elements() {
        formats::store_bits(&mut out.data, t.dtype, i / from * to + i % from, picked.bits(i));
    }
    out
}

/// Outputs with the axis, by parameter.
type Outputs = Vec<(usize, HostTensor)>;

/// What a launch over some rows gave.
enum Compared {
    Equal,
    Differs(String),
    /// The kernel's `require` refuses this number of rows.
    Refused,
}

/// The arguments of one launch on the host.
struct Inputs<'a> {
    device: &'a Device,
    launch: &'a Launch,
    held: Vec<Option<HostTensor>>,
    axes: Vec<Option<Axis>>,
}

impl Inputs<'_> {
    fn access(&self, p: usize) -> Access {
        match &self.launch.kernel.info().params[p].kind {
            ParamInfoKind::Tensor { access, .. } => *access,
            ParamInfoKind::Scalar { .. } => Access::In,
        }
    }

    /// A launch over these rows; `None` if the kernel's `require` refuses it.
    fn run(&self, rows: &[usize]) -> Result<Option<Outputs>, String> {
        let say = |e: kiln_runtime::Error| e.to_string();
        let mut args = vec![];
        for (p, (held, axis)) in self.held.iter().zip(&self.axes).enumerate() {
            args.push(match held {
                None => self.launch.args[p].clone(),
                Some(t) => {
                    let mut t = axis.map_or_else(|| t.clone(), |a| take(t, a, rows));
                    if self.access(p) == Access::Out {
                        t.data.fill(0xa5);
                    }
                    Arg::Tensor(self.device.upload(&t).map_err(say)?)
                }
            });
        }
        let stream = self.device.stream().map_err(say)?;
        let launch = Launch { args, ..self.launch.clone() };
        match stream.launch(&launch).and_then(|()| stream.synchronize()) {
            Ok(()) => {}
            Err(kiln_runtime::Error::Launch(e)) if e.kind == LaunchErrorKind::Require => return Ok(None),
            Err(e) => return Err(say(e)),
        }
        let mut out = vec![];
        for (p, arg) in launch.args.iter().enumerate() {
            if let (Arg::Tensor(v), Some(_), true) = (arg, self.axes[p], self.access(p) != Access::In) {
                out.push((p, self.device.download(v).map_err(say)?));
            }
        }
        Ok(Some(out))
    }

    /// Compares a launch over `rows` with the whole one.
    fn compare(&self, what: &str, whole: &Outputs, rows: &[usize]) -> Result<Compared, String> {
        let Some(got) = self.run(rows)? else { return Ok(Compared::Refused) };
        for ((p, got), (_, all)) in got.iter().zip(whole) {
            let Some(Axis { axis, .. }) = self.axes[*p] else { continue };
            let first: Vec<usize> = (0..rows.len()).collect();
            let (want, got) = (all.pick(axis, 1, rows), got.pick(axis, 1, &first));
            if got.data == want.data {
                continue;
            }
            let at = (0..got.num_elements()).find(|&i| got.bits(i) != want.bits(i)).unwrap_or(0);
            let inner: usize = got.shape[axis + 1..].iter().product();
            let row = rows[at / inner.max(1) % rows.len().max(1)];
            let name = &self.launch.kernel.info().params[*p].name;
            return Ok(Compared::Differs(format!(
                "row {row} of `{name}` {what}: bits {:#x} instead of {:#x}",
                got.bits(at),
                want.bits(at)
            )));
        }
        Ok(Compared::Equal)
    }
}

/// Compares the rows of one launch along `dim`.
///
/// # Errors
/// A launch that is refused or faults.
fn launch(device: &Device, launch: &Launch, dim: &str, problem: &Problem, splits: &[Split]) -> Result<Shown, String> {
    let mut axes = match axes(launch.kernel.info(), dim) {
        Ok(axes) => axes,
        Err(why) => return Ok(Shown::Nothing(why)),
    };
    let mut held = vec![];
    for arg in &launch.args {
        held.push(match arg {
            Arg::Tensor(v) => Some(device.download(v).map_err(|e| e.to_string())?),
            Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
        });
    }
    let sizes: Vec<usize> =
        held.iter().zip(&axes).filter_map(|(t, a)| t.as_ref().zip(*a).map(|(t, a)| t.shape[a.axis])).collect();
    let Some(&rows) = sizes.first().filter(|&&n| n > 1) else {
        return Ok(Shown::Nothing(format!("`{dim}` is 1 or less in every case")));
    };
    if let Err(why) = companions(&mut axes, launch, problem, splits, rows) {
        return Ok(Shown::Nothing(why));
    }
    let inputs = Inputs { device, launch, held, axes };
    let all: Vec<usize> = (0..rows).collect();
    let Some(whole) = inputs.run(&all)? else {
        return Ok(Shown::Nothing("the kernel refuses the case".into()));
    };
    if whole.is_empty() {
        return Ok(Shown::Nothing(format!("no output has an axis `{dim}`")));
    }
    // The edges and the middle of the batch; reversed, so that rows change places in every tile; more rows than tiles
    // hold, so that the grid and the last tile change, or as many as arguments with padding have room for.
    let reversed: Vec<usize> = all.iter().rev().copied().collect();
    let padded =
        |more: usize| -> Vec<usize> { all.iter().copied().chain((0..more).map(|i| (i * 7 + 1) % rows)).collect() };
    let among: Vec<_> = [rows + 3, 3, 2, 1].map(padded).into();
    let mut alone = vec![0, rows / 2, rows - 1];
    alone.dedup();
    let alone = alone.into_iter().map(|r| ("alone", vec![vec![r]]));
    let mut tries =
        vec![("in a second run", vec![all.clone()]), ("in another place", vec![reversed]), ("among more rows", among)];
    tries.extend(alone);
    let mut count = 0;
    for (what, choices) in tries {
        // The first number of rows that is not refused.
        for rows in choices {
            match inputs.compare(what, &whole, &rows)? {
                Compared::Refused => continue,
                Compared::Differs(text) => return Ok(Shown::Differs(text)),
                Compared::Equal => count += 1,
            }
            break;
        }
    }
    Ok(Shown::Equal(count))
}

/// Runs a plan step by step; `dims` gives the dimensions to look at for a kernel. One result for each step and dimension.
/// `splits` are the operator's for this problem.
///
/// # Errors
/// A launch that is refused or faults.
pub fn plan(
    device: &Device,
    plan: &Plan,
    (problem, splits): (&Problem, &[Split]),
    dims: &dyn Fn(&KernelInfo) -> Vec<String>,
) -> Result<Vec<(String, String, Shown)>, String> {
    let say = |e: kiln_runtime::Error| e.to_string();
    let stream = device.stream().map_err(say)?;
    let mut memories = vec![];
    for &bytes in &plan.workspaces {
        memories.push(device.zeros(kiln_codegen::ir::DType::U8, &[bytes]).map_err(say)?.memory);
    }
    let mut out = vec![];
    for step in &plan.steps {
        let mut step = step.clone();
        for arg in &mut step.args {
            if let Arg::Workspace { index, dtype, shape, offset_bytes } = arg {
                let mut view = TensorView::contiguous(*dtype, shape, memories[*index].clone());
                view.offset_bytes = *offset_bytes;
                *arg = Arg::Tensor(view);
            }
        }
        let info = step.kernel.info();
        for dim in dims(info) {
            out.push((info.name.clone(), dim.clone(), launch(device, &step, &dim, problem, splits)?));
        }
        stream.launch(&step).and_then(|()| stream.synchronize()).map_err(say)?;
    }
    Ok(out)
}
