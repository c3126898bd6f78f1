//! RMS norm over the last axis: `y[t,h] = x[t,h] · (mean_h x[t,:]² + eps)^-½ · weight[h]`.
//!
//! *Tensors*: `x`, `y` `[.., hidden]` bf16 or f32; `weight` `[hidden]` f32 or bf16, may be left out.
//! *Cost*: 4 bytes moved per bf16 element, memory bound.
//! *Numerics*: f32 inside, sum of squares in the kernel's declared order, one rounding at the store. A zero row gives
//! zeros. Squares overflow f32 for rows beyond about 1e19 divided by the root of their length.
//! *Schedule*: `rows` rows a block; a row stays in registers between the sum and the store.
//! *Source*: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How rows are spread over blocks and warps.
#[derive(KernelConfig, Clone, Debug)]
pub struct RmsnormConfig {
    /// Rows of a block.
    #[tune(1, 2, 4)]
    pub rows: usize,
    /// Warps of a block; they share each row's sum.
    #[numerics]
    #[tune(8, 4, 7)]
    pub warps: usize,
}

/// Normalises rows.
#[kernel(dims(h: fixed), deterministic, batch_invariant(t))]
pub fn rmsnorm<T: Float, W: Float>(
    cfg: &RmsnormConfig,
    x: In![T; t, h],
    weight: Option<In![W; h]>,
    y: Out![T; t, h],
    eps: Scalar![F32],
) {
    let rows = cfg.rows;
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(cfg.warps);

    let xf = frag::<F32, 2>([rows, h]);
    copy_cast(x.at((r0, 0)), xf);
    let squares = map(xf, |v| v * v);
    let sum = reduce_sum(squares, 1);

    for (i, j) in parallel([rows, h]) {
        let inverse = rsqrt(sum[i] * (1.0 / h as f32) + eps);
        let v = xf[(i, j)] * inverse;
        let v = if let Some(w) = weight { v * w[j].to::<F32>() } else { v };
        y[(r0 + i, j)] = v.to::<T>();
    }
}

/// The plain loops, before rounding to the output's type.
pub fn reference(x: &[f64], weight: Option<&[f64]>, hidden: usize, eps: f64) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(hidden.max(1)) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / hidden as f64;
        for (j, v) in row.iter().enumerate() {
            y.push(v / (mean + eps).sqrt() * weight.map_or(1.0, |w| w[j]));
        }
    }
    y
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Rmsnorm;

const OP: &str = "rmsnorm";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(x: DType, weight: DType) -> Arc<dyn KernelDef> {
    match (x == DType::F32, weight == DType::F32) {
        (false, false) => rmsnorm::kernel::<Bf16, Bf16>(),
        (false, true) => rmsnorm::kernel::<Bf16, F32>(),
        (true, false) => rmsnorm::kernel::<F32, Bf16>(),
        (true, true) => rmsnorm::kernel::<F32, F32>(),
    }
}

/// `x`, which has any number of leading axes, and `weight`.
fn inputs(specs: &p::Specs) -> Result<(&TensorSpec, Option<&TensorSpec>), OpError> {
    let x = p::input_of_any_rank(OP, specs, "x", &TYPES, 2)?;
    let weight = p::optional_input(OP, specs, "weight", &TYPES, 1)?;
    if let Some(w) = weight {
        p::shaped(OP, w, &x.shape[x.shape.len() - 1..], "the last axis of `x`")?;
    }
    Ok((x, weight))
}

impl OpSpec for Rmsnorm {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("rmsnorm_bf16"),
            family: "norm",
            formula: "y = x · (mean(x²) + eps)^-½ · weight",
            source: "Zhang and Sennrich, 2019",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.into_iter().flat_map(|x| TYPES.map(|w| kernel_for(x, w))).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (x, _) = inputs(specs)?;
        p::number(OP, params, "eps", Some(1e-6))?;
        Ok(vec![p::spec("y", x.dtype, &x.shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let (x, weight) = inputs(&specs)?;
        let kernel = kernel_for(x.dtype, weight.map_or(DType::F32, |w| w.dtype));
        let (x, y) = (p::rows(OP, problem, "x")?, p::rows(OP, problem, "y")?);
        let config = p::choose(configs, &kernel, &[("t", x.shape[0]), ("h", x.shape[1])]);
        let eps = p::number(OP, &problem.params, "eps", Some(1e-6))? as f32;
        let args =
            vec![Arg::Tensor(x), p::optional_arg(problem, "weight"), Arg::Tensor(y), Arg::Scalar(Literal::f32(eps))];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let (x, weight) = inputs(&specs)?;
        let eps = p::number(OP, &problem.params, "eps", Some(1e-6))?;
        let w = weight.map(|_| p::numbers(OP, problem, "weight")).transpose()?;
        let hidden = x.shape[x.shape.len() - 1];
        let y = reference(&p::numbers(OP, problem, "x")?, w.as_deref(), hidden, eps);
        Ok([("y".into(), f32_tensor(&x.shape, &y))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Vec<Split> {
        // A single axis is one row.
        let rows = inputs(specs).ok().filter(|(x, _)| x.shape.len() > 1).map(|(x, _)| x.shape[0]);
        rows.map(|rows| p::split("tokens", rows, 1, &[("x", 0, 1), ("y", 0, 1)])).into_iter().collect()
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 1e-6, rel: 1.01 / 128.0, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let with_eps = |eps: f64, id: &str, rows: usize, hidden: usize, x, w: Option<DType>, fill: Fill| {
            let mut inputs = vec![p::filled("x", x, &[rows, hidden], fill)];
            inputs.extend(w.map(|w| p::filled("weight", w, &[hidden], Fill::Normal(1.0))));
            p::case(id, inputs, &[("eps", ParamValue::Float(eps))])
        };
        let make = |id: &str, rows, hidden, x, w, fill: Fill| with_eps(1e-6, id, rows, hidden, x, w, fill);
        let (bf16, f32) = (DType::Bf16, DType::F32);
        vec![
            make("no_rows", 0, 512, bf16, Some(f32), Fill::Normal(1.0)),
            make("t5_h7168", 5, 7168, bf16, Some(bf16), Fill::Normal(3.0)),
            make("t3_h513_odd", 3, 513, bf16, Some(f32), Fill::Normal(1.0)),
            make("t2_h1", 2, 1, bf16, Some(f32), Fill::Normal(1.0)),
            make("t9_h128_f32", 9, 128, f32, Some(f32), Fill::Normal(1.0)),
            make("t3_h96_f32_bf16_weight", 3, 96, f32, Some(bf16), Fill::Normal(1.0)),
            make("t7_h448_no_weight", 7, 448, bf16, None, Fill::Normal(1.0)),
            make("zero_rows", 3, 256, bf16, Some(f32), Fill::Constant(0.0)),
            make("huge_rows", 3, 128, bf16, Some(f32), Fill::Normal(1e18)),
            // A usual `eps` would make the result vanish, and with it what the case could find.
            with_eps(1e-37, "tiny_rows", 3, 128, bf16, Some(f32), Fill::Normal(1e-18)),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        p::token_shapes()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [tokens, hidden] = p::bench_sizes(OP, shape, ["tokens", "hidden"])?;
        let x = p::filled("x", DType::Bf16, &[tokens, hidden], Fill::Normal(1.0));
        let weight = p::filled("weight", DType::Bf16, &[hidden], Fill::Normal(1.0));
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), vec![x, weight], &[("eps", ParamValue::Float(1e-6))]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        let Ok((x, weight)) = inputs(specs) else { return Cost::default() };
        let elements = p::product(&x.shape);
        Cost { flops: 4.0 * elements, bytes: 2.0 * p::bytes(&[x]) + weight.map_or(0.0, |w| p::bytes(&[w])) }
    }
}
