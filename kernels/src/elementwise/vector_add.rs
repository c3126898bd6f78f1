//! Vector addition: `z[i] = x[i] + y[i]`.
//!
//! *Tensors*: `x`, `y`, `z` `[n]`, f32 or bf16.
//! *Cost*: three elements moved for one addition, memory bound.  *Numerics*: f32 sum, one rounding at the store.
//! *Schedule*: each block takes `block` consecutive elements; nothing is shared.  *Source*: the first lesson of every book.

use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the elements are cut into blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct VectorAddConfig {
    /// Elements a block adds.
    #[tune(2048, 1024, 4096)]
    pub block: usize,
}

/// Adds two vectors.
#[kernel(deterministic)]
pub fn vector_add<T: Float>(cfg: &VectorAddConfig, x: In![T; n], y: In![T; n], z: Out![T; n]) {
    let i0 = grid(n.div_ceil(cfg.block)) * cfg.block;
    for i in parallel([cfg.block]) {
        z[i0 + i] = (x[i0 + i].to::<F32>() + y[i0 + i].to::<F32>()).to::<T>();
    }
}

/// The plain loop, before rounding to the output's type.
pub fn reference(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(a, b)| a + b).collect()
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct VectorAdd;

const OP: &str = "vector_add";
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::Bf16 { vector_add::kernel::<Bf16>() } else { vector_add::kernel::<F32>() }
}

impl OpSpec for VectorAdd {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "elementwise",
            formula: "z[i] = x[i] + y[i]",
            source: "elementary",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = p::input(OP, inputs, "x", &TYPES, 1)?;
        p::shaped(OP, p::input(OP, inputs, "y", &[x.dtype], 1)?, &x.shape, "as `x`")?;
        Ok(vec![p::spec("z", x.dtype, &x.shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let kernel = kernel_for(specs["x"].dtype);
        let config = p::choose(configs, &kernel, &[("n", specs["x"].shape[0])]);
        let args = ["x", "y", "z"].map(|name| p::arg(OP, problem, name));
        Ok(p::single(kernel, config, args.into_iter().collect::<Result<_, _>>()?))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let z = reference(&p::numbers(OP, problem, "x")?, &p::numbers(OP, problem, "y")?);
        Ok([("z".into(), crate::numeric::round::f32_tensor(&specs["x"].shape, &z))].into())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        // One rounding to bf16; f32 sums are far inside.
        Tolerance::AllCloseOr { abs: 1e-30, rel: 1.01 / 256.0, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |n: usize, dtype| {
            let inputs = ["x", "y"].map(|name| p::filled(name, dtype, &[n], Fill::Normal(1.0)));
            p::case(format!("n{n}_{dtype}"), inputs.into(), &[])
        };
        let sizes = [0, 1, 1000, 4096].into_iter();
        sizes.flat_map(|n| TYPES.map(|dtype| make(n, dtype))).collect()
    }
    fn cost(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        let Some(x) = inputs.get("x") else { return Cost::default() };
        Cost { flops: p::product(&x.shape), bytes: 3.0 * p::bytes(&[x]) }
    }
}
