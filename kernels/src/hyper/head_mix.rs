//! Weights of the streams at the end of a network: `y = σ(mix · scale + base) + pre_eps`.
//!
//! *Tensors*: `mix`, `y` `[t, m]` f32; `scale` `[1]` f32; `base` `[m]` f32.
//! *Cost*: 8 bytes moved an element; small.  *Numerics*: f32.
//! *Schedule*: some tokens a block.
//! *Source*: DeepSeek-V4's mHC.

use super::mixes::{gate, reference_gate};
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

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct HeadMixConfig {
    /// Tokens of a block.
    #[tune(256, 64)]
    pub tokens: usize,
}

/// Weighs the streams of some tokens.
#[kernel(dims(m: fixed), deterministic, batch_invariant(t))]
pub fn mhc_head_mix(
    cfg: &HeadMixConfig,
    mix: In![F32; t, m; strides(_, 1)],
    scale: In![F32; 1],
    base: In![F32; m],
    y: Out![F32; t, m],
    pre_eps: Scalar![F32],
) {
    let t0 = grid(t.div_ceil(cfg.tokens)) * cfg.tokens;
    let factor = scale[0];
    for (i, j) in parallel([cfg.tokens, m]) {
        y[(t0 + i, j)] = gate(mix[(t0 + i, j)] * factor + base[j]) + pre_eps;
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhcHeadMix;

const OP: &str = "mhc_head_mix";

/// Tokens and streams.
fn sizes(specs: &p::Specs, params: &Params) -> Result<[usize; 2], OpError> {
    let mix = p::input(OP, specs, "mix", &[DType::F32], 2)?;
    p::shaped(OP, p::input(OP, specs, "scale", &[DType::F32], 1)?, &[1], "one factor")?;
    p::shaped(OP, p::input(OP, specs, "base", &[DType::F32], 1)?, &mix.shape[1..], "one entry a stream")?;
    p::number(OP, params, "pre_eps", Some(1e-6))?;
    if mix.shape[1] == 0 {
        return Err(p::refuse(OP, "`mix` has no streams; expected at least one"));
    }
    Ok([mix.shape[0], mix.shape[1]])
}

impl OpSpec for MhcHeadMix {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "hyper",
            formula: "y = σ(mix · scale + base) + pre_eps",
            source: "DeepSeek-V4's mHC",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![mhc_head_mix::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(vec![p::spec("y", DType::F32, &sizes(specs, params)?)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let [t, m] = sizes(&p::checked(self, problem)?, &problem.params)?;
        let kernel = mhc_head_mix::kernel();
        let config = p::choose(configs, &kernel, &[("t", t), ("m", m)]);
        let eps = p::number(OP, &problem.params, "pre_eps", Some(1e-6))?;
        let mut args = ["mix", "scale", "base", "y"]
            .map(|name| p::arg(OP, problem, name))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        args.push(Arg::Scalar(Literal::f32(eps as f32)));
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let [t, m] = sizes(&p::host_specs(self, problem)?, &problem.params)?;
        let eps = p::number(OP, &problem.params, "pre_eps", Some(1e-6))?;
        let (mix, base) = (p::numbers(OP, problem, "mix")?, p::numbers(OP, problem, "base")?);
        let scale = p::numbers(OP, problem, "scale")?[0];
        let y: Vec<f64> = mix.iter().enumerate().map(|(i, x)| reference_gate(x * scale + base[i % m]) + eps).collect();
        Ok([("y".into(), f32_tensor(&[t, m], &y))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok([t, _]) = sizes(specs, params) else { return vec![] };
        vec![p::split("tokens", t, 1, &[("mix", 0, 1), ("y", 0, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-5, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, m]: [usize; 2], fill: Fill| {
            let inputs = vec![
                p::filled("mix", DType::F32, &[t, m], fill),
                p::filled("scale", DType::F32, &[1], Fill::Constant(0.7)),
                p::filled("base", DType::F32, &[m], Fill::Normal(1.0)),
            ];
            p::case(id, inputs, &[("pre_eps", ParamValue::Float(1e-6))])
        };
        vec![
            make("no_tokens", [0, 4], Fill::Normal(1.0)),
            make("t300_m4", [300, 4], Fill::Normal(1.0)),
            make("t7_m3", [7, 3], Fill::Normal(3.0)),
            make("saturated", [5, 4], Fill::Uniform(-1e4, 1e4)),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(size) = sizes(specs, params) else { return Cost::default() };
        Cost { flops: 4.0 * p::product(&size), bytes: 8.0 * p::product(&size) }
    }
}
