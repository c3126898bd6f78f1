//! Hadamard transform of the last axis: `y = H_n · x · n^-½`, in natural (Sylvester) order.
//!
//! *Tensors*: `x`, `y` `[.., n]` bf16 or f32, `n` a power of two; other lengths are padded with zeros by the caller.
//! *Cost*: `n·log2 n` additions a row on `n` elements read and written once, memory bound.
//! *Numerics*: f32 butterflies, one multiplication and one rounding at the store. Its own inverse.
//! *Schedule*: `rows` rows a block in shared memory; one phase a level, each pair touched by one iteration.
//! *Source*: Sylvester 1867; the fast form is Good's factorisation, 1958.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many rows a block transforms.
#[derive(KernelConfig, Clone, Debug)]
pub struct HadamardConfig {
    /// Rows of a block.
    #[tune(4, 1, 8)]
    pub rows: usize,
}

/// Transforms rows.
#[kernel(dims(n: fixed), deterministic, batch_invariant(t))]
pub fn hadamard<T: Float>(cfg: &HadamardConfig, x: In![T; t, n], y: Out![T; t, n]) {
    let rows = cfg.rows;
    let r0 = grid(t.div_ceil(rows)) * rows;
    let scale = host!(1.0 / (n as f32).sqrt());

    let v = shared::<F32, 2>([rows, n]);
    copy_cast(x.at((r0, 0)), v);
    for level in unroll(0..n.ilog2() as usize) {
        let h = 1usize << level;
        let pairs = v.reshape([rows, n / (2 * h), 2, h]);
        for (i, b, k) in parallel([rows, n / (2 * h), h]) {
            let first = pairs[(i, b, 0, k)];
            let second = pairs[(i, b, 1, k)];
            pairs[(i, b, 0, k)] = first + second;
            pairs[(i, b, 1, k)] = first - second;
        }
    }
    for (i, j) in parallel([rows, n]) {
        y[(r0 + i, j)] = (v[(i, j)] * scale).to::<T>();
    }
}

/// The definition: the sign of entry `(i, j)` is the parity of the bits that `i` and `j` share.
pub fn reference(x: &[f64], n: usize) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(n.max(1)) {
        for i in 0..n {
            let sum: f64 = (0..n).map(|j| if (i & j).count_ones() % 2 == 0 { row[j] } else { -row[j] }).sum();
            y.push(sum / (n as f64).sqrt());
        }
    }
    y
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Hadamard;

const OP: &str = "hadamard";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];
/// A row in f32 and nothing else has to fit the shared memory that every target has.
const LARGEST: usize = 8192;

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { hadamard::kernel::<F32>() } else { hadamard::kernel::<Bf16>() }
}

fn input(specs: &p::Specs) -> Result<&TensorSpec, OpError> {
    let x = p::input_of_any_rank(OP, specs, "x", &TYPES, 1)?;
    let n = x.shape[x.shape.len() - 1];
    if !n.is_power_of_two() || n > LARGEST {
        let message = format!("the last axis of `x` has {n} elements; expected a power of two up to {LARGEST}");
        return Err(p::refuse(OP, message));
    }
    Ok(x)
}

impl OpSpec for Hadamard {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "transform",
            formula: "y = H_n · x · n^-½",
            source: "Sylvester, 1867",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = input(specs)?;
        Ok(vec![p::spec("y", x.dtype, &x.shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let kernel = kernel_for(input(&specs)?.dtype);
        let (x, y) = (p::rows(OP, problem, "x")?, p::rows(OP, problem, "y")?);
        let mut config = p::choose(configs, &kernel, &[("t", x.shape[0]), ("n", x.shape[1])]);
        // Long rows fill a block's shared memory by themselves.
        if x.shape[1] > 1024 {
            p::set(&mut config, "rows", kiln_codegen::tune::ConfigValue::Int(1));
        }
        Ok(p::single(kernel, config, vec![Arg::Tensor(x), Arg::Tensor(y)]))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let x = input(&specs)?;
        let y = reference(&p::numbers(OP, problem, "x")?, x.shape[x.shape.len() - 1]);
        Ok([("y".into(), f32_tensor(&x.shape, &y))].into())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 2e-3, rel: 1.01 / 128.0, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |rows: usize, n: usize, dtype, fill: Fill| {
            p::case(format!("t{rows}_n{n}_{dtype}"), vec![p::filled("x", dtype, &[rows, n], fill)], &[])
        };
        vec![
            make(0, 128, DType::Bf16, Fill::Normal(1.0)),
            make(6, 128, DType::Bf16, Fill::Normal(1.0)),
            make(3, 64, DType::F32, Fill::Normal(1.0)),
            make(5, 1, DType::Bf16, Fill::Normal(1.0)),
            make(1, 2, DType::Bf16, Fill::Normal(1.0)),
            make(2, 2048, DType::Bf16, Fill::Normal(1.0)),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        let Ok(x) = input(specs) else { return Cost::default() };
        let levels = f64::from(x.shape[x.shape.len() - 1].checked_ilog2().unwrap_or(0));
        Cost { flops: levels * p::product(&x.shape), bytes: 2.0 * p::bytes(&[x]) }
    }
}
