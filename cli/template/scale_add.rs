//! `y[i] = a · x[i] + b`.
//!
//! *Tensors*: `x`, `y` `[n]` f32; `a`, `b` numbers.  *Cost*: 8 bytes moved an element, memory bound.
//! *Numerics*: one rounding for the product, one for the sum.

use kiln::op::{
    Arg, Case, Configs, Cost, Fill, HostProblem, HostTensor, InputSpec, KernelDef, Launch, Literal, OpError, OpInfo,
    OpSpec, ParamValue, Params, Plan, Problem, TensorSpec, Tolerance,
};
use kiln::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the tuner may change; the first value of each field is the default.
#[derive(KernelConfig, Clone, Debug)]
pub struct ScaleAddConfig {
    /// Elements of a block.
    #[tune(1024, 2048, 4096)]
    pub block: usize,
    /// Warps of a block.
    #[tune(4, 8)]
    pub warps: usize,
}

/// The kernel: each block takes `block` elements. Writes past the end of `y` are dropped.
#[kernel(deterministic)]
pub fn scale_add(cfg: &ScaleAddConfig, x: In![F32; n], y: Out![F32; n], a: Scalar![F32], b: Scalar![F32]) {
    let first = grid(n.div_ceil(cfg.block)) * cfg.block;
    warps(cfg.warps);
    for i in parallel([cfg.block]) {
        y[first + i] = a * x[first + i] + b;
    }
}

/// The operator: how the kernel is launched, what it should compute, on which cases.
#[derive(Debug)]
pub struct ScaleAdd;

fn refuse(message: &str) -> OpError {
    OpError { op: "scale_add".into(), message: message.into() }
}

fn number(params: &Params, name: &str) -> Result<f64, OpError> {
    match params.get(name) {
        Some(ParamValue::Float(x)) => Ok(*x),
        Some(ParamValue::Int(x)) => Ok(*x as f64),
        _ => Err(refuse("needs the numbers `a` and `b`")),
    }
}

impl OpSpec for ScaleAdd {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: "scale_add",
            bench_name: Some("scale_add"),
            family: "elementwise",
            formula: "y[i] = a · x[i] + b",
            source: "an example to start from",
        }
    }

    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![scale_add::kernel()]
    }

    fn outputs(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = inputs.get("x").ok_or_else(|| refuse("needs the input `x`"))?;
        if x.dtype != F32::DTYPE || x.shape.len() != 1 {
            return Err(refuse("`x` must be f32 with one axis"));
        }
        Ok(vec![TensorSpec { name: "y".into(), ..x.clone() }])
    }

    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let tensor = |name: &str| {
            let view = problem.tensors.get(name).cloned();
            view.ok_or_else(|| refuse("needs the tensors `x` and `y`"))
        };
        let scalar = |name: &str| number(&problem.params, name).map(|v| Arg::Scalar(Literal::f32(v as f32)));
        let (x, kernel) = (tensor("x")?, scale_add::kernel());
        let dims = BTreeMap::from([("n".to_string(), x.num_elements())]);
        let config = configs.choose(kernel.as_ref(), &dims);
        let args = vec![Arg::Tensor(x), Arg::Tensor(tensor("y")?), scalar("a")?, scalar("b")?];
        Ok(Plan { steps: vec![Launch { kernel, config, args }], workspaces: vec![] })
    }

    /// The plain loop that could not be simpler.
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = problem.tensors.get("x").ok_or_else(|| refuse("needs the input `x`"))?;
        let (a, b) = (number(&problem.params, "a")?, number(&problem.params, "b")?);
        let y: Vec<f64> = x.to_f64().iter().map(|x| a * x + b).collect();
        Ok(BTreeMap::from([("y".to_string(), HostTensor::from_f64(x.dtype, &x.shape, &y))]))
    }

    /// Two f32 roundings.
    fn tolerance(&self, _output: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-6, cos_diff: None }
    }

    /// Sizes that a tile does not divide, and none at all.
    fn cases(&self) -> Vec<Case> {
        [0, 1, 1000, 4096].into_iter().map(case).collect()
    }

    fn bench_keys(&self) -> &'static [&'static str] {
        &["n"]
    }

    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        vec![vec![("n".into(), 1 << 20)]]
    }

    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let n = shape.iter().find(|(k, _)| k == "n").ok_or_else(|| refuse("needs the size `n`"))?;
        Ok(case(n.1))
    }

    fn cost(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        let n = inputs.get("x").map_or(0, |x| x.shape.iter().product());
        Cost { flops: 2.0 * n as f64, bytes: 8.0 * n as f64 }
    }
}

fn case(n: usize) -> Case {
    let tensor = TensorSpec { name: "x".into(), dtype: F32::DTYPE, shape: vec![n] };
    let params = [("a", 2.5), ("b", -1.0)];
    Case {
        id: format!("n{n}"),
        inputs: vec![InputSpec { tensor, fill: Fill::Normal(1.0) }],
        params: params.into_iter().map(|(k, v)| (k.to_string(), ParamValue::Float(v))).collect(),
    }
}
