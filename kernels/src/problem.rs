//! Reading a problem: tensors and parameters by name, with errors that name the operator, what it needs and what came.
//!
//! Every operator states its inputs with these; none checks shapes in its own words.

use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::bind;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, InputSpec, KernelDef, OpError, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec,
};
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tensors of a problem by name.
pub(crate) type Specs = BTreeMap<String, TensorSpec>;

/// A refusal.
pub(crate) fn refuse(op: &str, message: impl Into<String>) -> OpError {
    OpError { op: op.into(), message: message.into() }
}

/// An input that must be there, with one of the dtypes and this rank.
pub(crate) fn input<'a>(
    op: &str,
    specs: &'a Specs,
    name: &str,
    dtypes: &[DType],
    rank: usize,
) -> Result<&'a TensorSpec, OpError> {
    optional_input(op, specs, name, dtypes, rank)?.ok_or_else(|| {
        let have: Vec<_> = specs.keys().map(String::as_str).collect();
        refuse(op, format!("needs the input `{name}`; got {}", have.join(", ")))
    })
}

/// An input that may be left out.
pub(crate) fn optional_input<'a>(
    op: &str,
    specs: &'a Specs,
    name: &str,
    dtypes: &[DType],
    rank: usize,
) -> Result<Option<&'a TensorSpec>, OpError> {
    let Some(spec) = specs.get(name) else { return Ok(None) };
    if !dtypes.contains(&spec.dtype) {
        let names: Vec<_> = dtypes.iter().map(|d| d.name()).collect();
        return Err(refuse(op, format!("input `{name}` is {}; expected {}", spec.dtype, names.join(" or "))));
    }
    if spec.shape.len() != rank {
        return Err(refuse(op, format!("input `{name}` has shape {:?}; expected {rank} axes", spec.shape)));
    }
    Ok(Some(spec))
}

/// Requires an exact shape.
pub(crate) fn shaped(op: &str, spec: &TensorSpec, shape: &[usize], why: &str) -> Result<(), OpError> {
    if spec.shape == shape {
        return Ok(());
    }
    Err(refuse(op, format!("input `{}` has shape {:?}; expected {shape:?}, {why}", spec.name, spec.shape)))
}

/// A number; `default` if it is left out or null.
pub(crate) fn number(op: &str, params: &Params, name: &str, default: Option<f64>) -> Result<f64, OpError> {
    match params.get(name) {
        Some(ParamValue::Int(x)) => Ok(*x as f64),
        Some(ParamValue::Float(x)) => Ok(*x),
        None | Some(ParamValue::Null) => {
            default.ok_or_else(|| refuse(op, format!("needs the parameter `{name}`, a number")))
        }
        Some(other) => Err(refuse(op, format!("parameter `{name}` is {other:?}; expected a number"))),
    }
}

/// A count, at least 1; `default` if it is left out.
pub(crate) fn count(op: &str, params: &Params, name: &str, default: Option<usize>) -> Result<usize, OpError> {
    let x = number(op, params, name, default.map(|d| d as f64))?;
    if x >= 1.0 && x.fract() == 0.0 && x <= i32::MAX as f64 {
        return Ok(x as usize);
    }
    Err(refuse(op, format!("parameter `{name}` is {x}; expected a whole number of at least 1")))
}

/// A number that may be 0; `default` if it is left out.
pub(crate) fn natural(op: &str, params: &Params, name: &str, default: usize) -> Result<usize, OpError> {
    let x = number(op, params, name, Some(default as f64))?;
    if x >= 0.0 && x.fract() == 0.0 && x <= i32::MAX as f64 {
        return Ok(x as usize);
    }
    Err(refuse(op, format!("parameter `{name}` is {x}; expected a whole number of at least 0")))
}

/// Integers of a host tensor, if it is there.
pub(crate) fn integers(problem: &HostProblem, name: &str) -> Option<Vec<i64>> {
    problem.tensors.get(name).map(|t| t.to_f64().iter().map(|&x| x as i64).collect())
}

/// Rows and columns of a block, `[rows, columns]`, each at least 1; `default` if it is left out.
pub(crate) fn pair(op: &str, params: &Params, name: &str, default: [usize; 2]) -> Result<[usize; 2], OpError> {
    let given = match params.get(name) {
        None | Some(ParamValue::Null) => return Ok(default),
        Some(ParamValue::List(list)) => list.as_slice(),
        Some(_) => &[],
    };
    match given {
        [ParamValue::Int(a), ParamValue::Int(b)] if (1..1 << 31).contains(a) && (1..1 << 31).contains(b) => {
            Ok([*a as usize, *b as usize])
        }
        _ => Err(refuse(op, format!("parameter `{name}` is {:?}; expected [rows, columns]", params.get(name)))),
    }
}

/// A truth value; `default` if it is left out.
pub(crate) fn flag(op: &str, params: &Params, name: &str, default: bool) -> Result<bool, OpError> {
    match params.get(name) {
        Some(ParamValue::Bool(x)) => Ok(*x),
        None | Some(ParamValue::Null) => Ok(default),
        Some(other) => Err(refuse(op, format!("parameter `{name}` is {other:?}; expected true or false"))),
    }
}

/// One of some words; the first if it is left out.
pub(crate) fn word<'a>(op: &str, params: &Params, name: &str, words: &[&'a str]) -> Result<&'a str, OpError> {
    let given = match params.get(name) {
        None | Some(ParamValue::Null) => return Ok(words.first().copied().unwrap_or_default()),
        Some(ParamValue::Text(t)) => t.as_str(),
        Some(other) => return Err(refuse(op, format!("parameter `{name}` is {other:?}; expected a word"))),
    };
    let found = words.iter().find(|w| **w == given).copied();
    found.ok_or_else(|| refuse(op, format!("parameter `{name}` is `{given}`; expected {}", words.join(" or "))))
}

/// An output or input description.
pub(crate) fn spec(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.to_vec() }
}

/// Checks a device problem against the operator's own statement of inputs and outputs; returns all descriptions.
pub(crate) fn checked(op: &dyn OpSpec, problem: &Problem) -> Result<Specs, OpError> {
    let specs: Specs = problem
        .tensors
        .iter()
        .map(|(n, v)| (n.clone(), TensorSpec { name: n.clone(), dtype: v.dtype, shape: v.shape.clone() }))
        .collect();
    let name = op.info().name;
    for want in op.outputs(&specs, &problem.params)? {
        match specs.get(&want.name) {
            None => return Err(refuse(name, format!("needs the output tensor `{}`", want.name))),
            Some(have) if *have != want => {
                return Err(refuse(
                    name,
                    format!(
                        "output `{}` is {} {:?}; expected {} {:?}",
                        want.name, have.dtype, have.shape, want.dtype, want.shape
                    ),
                ));
            }
            Some(_) => {}
        }
    }
    Ok(specs)
}

/// Checks the inputs of a host problem; returns their descriptions.
pub(crate) fn host_specs(op: &dyn OpSpec, problem: &HostProblem) -> Result<Specs, OpError> {
    let specs: Specs = problem
        .tensors
        .iter()
        .map(|(n, t)| (n.clone(), TensorSpec { name: n.clone(), dtype: t.dtype, shape: t.shape.clone() }))
        .collect();
    op.outputs(&specs, &problem.params)?;
    Ok(specs)
}

/// A tensor that [`checked`] has seen.
pub(crate) fn view(op: &str, problem: &Problem, name: &str) -> Result<TensorView, OpError> {
    problem.tensors.get(name).cloned().ok_or_else(|| refuse(op, format!("needs the tensor `{name}`")))
}

/// A tensor argument.
pub(crate) fn arg(op: &str, problem: &Problem, name: &str) -> Result<Arg, OpError> {
    view(op, problem, name).map(Arg::Tensor)
}

/// A tensor argument that may be left out.
pub(crate) fn optional_arg(problem: &Problem, name: &str) -> Arg {
    problem.tensors.get(name).cloned().map_or(Arg::Absent, Arg::Tensor)
}

/// Numbers of a host tensor that [`host_specs`] has seen.
pub(crate) fn numbers(op: &str, problem: &HostProblem, name: &str) -> Result<Vec<f64>, OpError> {
    let t: Option<&HostTensor> = problem.tensors.get(name);
    t.map(HostTensor::to_f64).ok_or_else(|| refuse(op, format!("needs the tensor `{name}`")))
}

/// The configuration for dims given by name.
pub(crate) fn choose(configs: &dyn Configs, kernel: &Arc<dyn KernelDef>, dims: &[(&str, usize)]) -> Config {
    configs.choose(kernel.as_ref(), &dims.iter().map(|(n, x)| (n.to_string(), *x)).collect())
}

/// The configuration for all dimensions that a kernel's arguments give, which do not depend on it.
pub(crate) fn choose_for(
    op: &str,
    configs: &dyn Configs,
    kernel: &Arc<dyn KernelDef>,
    args: &[Arg],
) -> Result<Config, OpError> {
    Ok(configs.choose(kernel.as_ref(), &dims(op, kernel, args)?))
}

/// The dimensions that arguments give a kernel.
pub(crate) fn dims(op: &str, kernel: &Arc<dyn KernelDef>, args: &[Arg]) -> Result<BTreeMap<String, usize>, OpError> {
    bind::dims(kernel.as_ref(), args).map_err(|e| refuse(op, e.to_string()))
}

/// Sets a config field that the problem decides, not the tuner.
pub(crate) fn set(config: &mut Config, name: &str, value: ConfigValue) {
    config.0.insert(name.into(), value);
}

/// A plan of one launch.
pub(crate) fn single(kernel: Arc<dyn KernelDef>, config: Config, args: Vec<Arg>) -> Plan {
    Plan { steps: vec![kiln_codegen::abi::Launch { kernel, config, args }], workspaces: vec![] }
}

/// An input of a case.
pub(crate) fn filled(name: &str, dtype: DType, shape: &[usize], fill: Fill) -> InputSpec {
    InputSpec { tensor: spec(name, dtype, shape), fill }
}

/// A case.
pub(crate) fn case(id: impl Into<String>, inputs: Vec<InputSpec>, params: &[(&str, ParamValue)]) -> Case {
    Case { id: id.into(), inputs, params: params.iter().map(|(n, v)| (n.to_string(), v.clone())).collect() }
}

/// The values of a bench shape's keys, in the order of `keys`.
pub(crate) fn bench_sizes<const N: usize>(
    op: &str,
    shape: &[(String, usize)],
    keys: [&str; N],
) -> Result<[usize; N], OpError> {
    if let Some((unknown, _)) = shape.iter().find(|(k, _)| !keys.contains(&k.as_str())) {
        return Err(refuse(op, format!("shape key `{unknown}` is not known; keys: {}", keys.join(", "))));
    }
    let mut sizes = [0; N];
    for (size, key) in sizes.iter_mut().zip(keys) {
        let given = shape.iter().find(|(k, _)| k == key).map(|(_, x)| *x);
        *size = given.ok_or_else(|| refuse(op, format!("shape key `{key}` is missing; keys: {}", keys.join(", "))))?;
    }
    Ok(sizes)
}

/// Product of sizes as a number that cannot overflow: shapes in questions about cost need not fit any memory.
pub(crate) fn product(sizes: &[usize]) -> f64 {
    sizes.iter().map(|&n| n as f64).product()
}

/// An axis of `extent` elements cut every `span` of them; `tensors` as in [`Split`].
pub(crate) fn split(name: &'static str, extent: usize, span: usize, tensors: &[(&'static str, usize, usize)]) -> Split {
    Split { name, pieces: extent.div_ceil(span.max(1)), tensors: tensors.to_vec() }
}

/// Bytes of all tensors, each counted once.
pub(crate) fn bytes(specs: &[&TensorSpec]) -> f64 {
    specs.iter().map(|s| (product(&s.shape) * s.dtype.bits() as f64 / 8.0).ceil()).sum()
}

/// The cost of an operator whose tensors are each moved once, with `flops` operations an element of `x`.
pub(crate) fn moved(op: &dyn OpSpec, specs: &Specs, params: &Params, flops: f64) -> Cost {
    let Ok(outputs) = op.outputs(specs, params) else { return Cost::default() };
    // Specs may hold outputs too, if they come from a problem.
    let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
    Cost { flops: flops * specs.get("x").map_or(0.0, |x| product(&x.shape)), bytes: bytes(&tensors) }
}

/// An input with at least `rank` axes.
pub(crate) fn input_of_any_rank<'a>(
    op: &str,
    specs: &'a Specs,
    name: &str,
    dtypes: &[DType],
    rank: usize,
) -> Result<&'a TensorSpec, OpError> {
    let axes = specs.get(name).map_or(rank, |s| s.shape.len());
    if axes < rank {
        return Err(refuse(op, format!("input `{name}` has {axes} axes; expected at least {rank}")));
    }
    input(op, specs, name, dtypes, axes)
}

/// A tensor seen as rows: the last axis, and all others merged. Several leading axes must follow each other in memory.
pub(crate) fn rows(op: &str, problem: &Problem, name: &str) -> Result<TensorView, OpError> {
    let mut v = view(op, problem, name)?;
    let axes = v.shape.len();
    if axes == 1 {
        v.strides.insert(0, v.shape[0]);
        v.shape.insert(0, 1);
    }
    if axes > 2 {
        for axis in 0..axes - 2 {
            let skips = v.shape[axis] > 1 && v.strides[axis] != v.shape[axis + 1] * v.strides[axis + 1];
            if skips && v.num_elements() > 0 {
                let message = format!("`{name}` has strides {:?} for shape {:?}", v.strides, v.shape);
                return Err(refuse(op, format!("{message}; its leading axes must follow each other in memory")));
            }
        }
        let count = v.shape[..axes - 1].iter().product();
        v.shape = vec![count, v.shape[axes - 1]];
        v.strides = vec![v.strides[axes - 2], v.strides[axes - 1]];
    }
    Ok(v)
}

/// A contiguous tensor seen as one axis.
pub(crate) fn flat(op: &str, name: &str, v: TensorView) -> Result<TensorView, OpError> {
    if !v.is_contiguous() {
        return Err(refuse(op, format!("`{name}` has strides {:?}; expected a contiguous tensor", v.strides)));
    }
    Ok(TensorView { shape: vec![v.num_elements()], strides: vec![1], ..v })
}

/// Lowers a whole-number field to what the problem can use.
pub(crate) fn at_most(config: &mut Config, name: &str, limit: usize) {
    if let Some(ConfigValue::Int(x)) = config.0.get_mut(name) {
        *x = (*x).min(limit.max(1));
    }
}

/// The default bench shapes of operators on token rows.
pub(crate) fn token_shapes() -> Vec<Vec<(String, usize)>> {
    let shape = |(tokens, hidden)| vec![("tokens".to_string(), tokens), ("hidden".to_string(), hidden)];
    [(4096, 4096), (4096, 7168), (16384, 7168), (65536, 7168)].map(shape).into()
}
