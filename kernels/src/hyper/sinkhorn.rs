//! Small matrices made nearly doubly stochastic: softmax of the rows plus `eps`, then columns and rows divided by their sums
//! plus `eps` in turn, `iters` times by columns, which come last.
//!
//! *Tensors*: `x`, `y` `[.., m, m]` f32.
//! *Cost*: about `4·m²·iters` operations a matrix; bound by latency for few matrices, memory for many.
//! *Numerics*: f32; quotients are products with a correctly rounded inverse.
//! *Schedule*: a thread a matrix, all iterations in registers; matrices pass through shared memory, so that both sides of
//! global memory see whole rows.
//! *Source*: Sinkhorn and Knopp, 1967; DeepSeek-V4's mHC.

use super::mixes::{reference_sinkhorn, sinkhorn};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct SinkhornConfig {
    /// Matrices of a block.
    #[tune(32, 64, 128)]
    pub matrices: usize,
    /// Warps of a block.
    #[tune(1, 2, 4)]
    pub warps: usize,
    /// Rows and columns of a matrix.
    #[default(4)]
    pub size: usize,
    /// Times columns are divided.
    #[default(10)]
    pub iters: usize,
}

/// Normalises some matrices.
#[kernel(dims(e: fixed), require(cfg.size * cfg.size == e), deterministic, batch_invariant(t))]
pub fn mhc_sinkhorn(cfg: &SinkhornConfig, x: In![F32; t, e], y: Out![F32; t, e], eps: Scalar![F32]) {
    let rows = cfg.matrices;
    let t0 = grid(t.div_ceil(rows)) * rows;
    warps(cfg.warps);

    let from = shared::<F32, 2>([rows, e + 1]);
    let to = shared::<F32, 2>([rows, e + 1]);
    for (i, j) in parallel([rows, e]) {
        from[(i, j)] = x[(t0 + i, j)];
    }
    for i in parallel([rows]) {
        let mut matrix = host!(Vec::new());
        for j in unroll(0..e) {
            matrix.push(from[(i, j)]);
        }
        let result = sinkhorn(&matrix, cfg.size, cfg.iters, eps);
        for (j, &value) in unroll(result.iter().enumerate()) {
            to[(i, j)] = value;
        }
    }
    for (i, j) in parallel([rows, e]) {
        y[(t0 + i, j)] = to[(i, j)];
    }
}

/// What a problem asks for.
struct Shape {
    matrices: usize,
    size: usize,
    iters: usize,
    eps: f64,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhcSinkhorn;

const OP: &str = "mhc_sinkhorn";
/// Rows of a matrix at most: it lives in the registers of a thread.
pub(crate) const LARGEST: usize = 8;

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let x = p::input_of_any_rank(OP, specs, "x", &[DType::F32], 2)?;
    let axes = x.shape.len();
    let size = x.shape[axes - 1];
    if x.shape[axes - 2] != size || !(1..=LARGEST).contains(&size) {
        let message = format!("input `x` has shape {:?}; expected square matrices of at most {LARGEST} rows", x.shape);
        return Err(p::refuse(OP, message));
    }
    let (iters, eps) = (p::count(OP, params, "iters", Some(10))?, p::number(OP, params, "eps", Some(1e-6))?);
    Ok(Shape { matrices: x.shape[..axes - 2].iter().product(), size, iters, eps })
}

impl OpSpec for MhcSinkhorn {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mhc_sinkhorn"),
            family: "hyper",
            formula: "softmax of rows + eps, then x ← x/(column sums + eps), x ← x/(row sums + eps) in turn",
            source: "Sinkhorn and Knopp, 1967",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![mhc_sinkhorn::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        shape_of(specs, params)?;
        Ok(vec![p::spec("y", DType::F32, &specs["x"].shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = mhc_sinkhorn::kernel();
        let mut config = p::choose(configs, &kernel, &[("t", s.matrices)]);
        p::set(&mut config, "size", ConfigValue::Int(s.size));
        p::set(&mut config, "iters", ConfigValue::Int(s.iters));
        let matrices = |name: &str| -> Result<Arg, OpError> {
            let flat = p::flat(OP, name, p::view(OP, problem, name)?)?;
            let e = s.size * s.size;
            Ok(Arg::Tensor(TensorView { shape: vec![s.matrices, e], strides: vec![e, 1], ..flat }))
        };
        let args = vec![matrices("x")?, matrices("y")?, Arg::Scalar(Literal::f32(s.eps as f32))];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let s = shape_of(&specs, &problem.params)?;
        let x = p::numbers(OP, problem, "x")?;
        let y: Vec<f64> =
            x.chunks(s.size * s.size).flat_map(|m| reference_sinkhorn(m, s.size, s.iters, s.eps)).collect();
        Ok([("y".into(), f32_tensor(&specs["x"].shape, &y))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        if shape_of(specs, params).is_err() {
            return vec![];
        }
        vec![p::split("tokens", specs["x"].shape[0], 1, &[("x", 0, 1), ("y", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 1e-5, rel: 1e-5, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: &[usize], fill: Fill, iters: i64| {
            let x = p::filled("x", DType::F32, shape, fill);
            p::case(id, vec![x], &[("iters", ParamValue::Int(iters)), ("eps", ParamValue::Float(1e-6))])
        };
        let identity: Vec<f64> = (0..16).map(|i| if i % 5 == 0 { 1e4 } else { -1e4 }).collect();
        let one_row = (0..16).map(|i| if i < 4 { -1e30 } else { 0.0 }).collect();
        vec![
            make("no_matrices", &[0, 4, 4], Fill::Normal(1.0), 10),
            make("t65", &[65, 4, 4], Fill::Normal(1.0), 20),
            make("t3_b2_once", &[3, 2, 4, 4], Fill::Normal(30.0), 1),
            make("m2", &[9, 2, 2], Fill::Normal(2.0), 10),
            make("m1", &[2, 1, 1], Fill::Normal(2.0), 2),
            make("m8", &[5, 8, 8], Fill::Normal(2.0), 10),
            make("zeros", &[3, 4, 4], Fill::Constant(0.0), 10),
            make("far_from_each_other", &[1, 4, 4], Fill::Values(identity), 10),
            make("huge_row", &[1, 4, 4], Fill::Values(one_row), 10),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        [4096, 16384].map(|tokens| vec![("tokens".into(), tokens)]).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [tokens] = p::bench_sizes(OP, shape, ["tokens"])?;
        let x = p::filled("x", DType::F32, &[tokens, 4, 4], Fill::Normal(1.0));
        Ok(p::case(format!("tokens{tokens}"), vec![x], &[("iters", ParamValue::Int(20))]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let iters = p::count(OP, params, "iters", Some(10)).unwrap_or(0);
        p::moved(self, specs, params, 4.0 * iters as f64)
    }
}
