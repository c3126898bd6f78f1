//! Rotary position encoding of the last `2·half` channels; the others are copied bit for bit.
//!
//! Pair `p` of a head at token `t` turns by the token's angle: `(a, b) → (a·cos − b·sin, b·cos + a·sin)`. Interleaved
//! pairs are channels `(2p, 2p+1)` of the rotated part, otherwise `(p, p+half)`. The inverse turns the other way.
//!
//! *Tensors*: `x`, `y` `[tokens, heads, d]` (or `[tokens, d]`) bf16 or f32; `cos`, `sin` `[tokens, half]` f32, one row a
//! token, made from f64 angles by the caller. `positions` may accompany them and is not read.
//! *Cost*: every element read and written once, memory bound.  *Numerics*: f32 products and sum, one rounding.
//! *Schedule*: some heads of one token a block; the rotated part goes through shared memory so that partners meet.
//! *Source*: Su et al., RoFormer, 2021; the half-split pairing is GPT-NeoX's.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and which of the conventions is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct RopeConfig {
    /// Heads of a block.
    #[tune(8, 4, 16)]
    pub heads: usize,
    /// Pairs are neighbours; otherwise the halves of the rotated part.
    #[default(true)]
    pub interleaved: bool,
    /// Turn by the negative angle.
    #[default(false)]
    pub inverse: bool,
}

/// Rotates the last channels of every head.
#[kernel(dims(d: fixed, half: fixed), require(2 * half <= d), deterministic, batch_invariant(t))]
pub fn rope_partial<T: Float>(
    cfg: &RopeConfig,
    x: In![T; t, heads, d],
    cos: In![F32; t, half],
    sin: In![F32; t, half],
    y: Out![T; t, heads, d],
) {
    let (turned, kept) = (2 * half, d - 2 * half);
    let (token, block) = grid((t, heads.div_ceil(cfg.heads)));
    let h0 = block * cfg.heads;
    let (from, to) = (x.pick(token), y.pick(token));

    if kept > 0 {
        for (i, j) in parallel([cfg.heads, kept]) {
            to[(h0 + i, j)] = from[(h0 + i, j)];
        }
    }

    let part = shared::<T, 2>([cfg.heads, turned]);
    copy(from.at((h0, kept)), part);
    for (i, j) in parallel([cfg.heads, turned]) {
        let pair = if cfg.interleaved { j / 2 } else { j % half };
        let partner = if cfg.interleaved { j + 1 - (j % 2) * 2 } else { (j + half) % turned };
        let first = if cfg.interleaved { j % 2 == 0 } else { j < half };
        let s = sin[(token, pair)];
        // First of a pair: a·cos − b·sin. Second: b·cos + a·sin. The inverse swaps the signs.
        let s = if cfg.inverse { select(first, s, -s) } else { select(first, -s, s) };
        let own = part[(i, j)].to::<F32>() * cos[(token, pair)];
        to[(h0 + i, kept + j)] = (own + part[(i, partner)].to::<F32>() * s).to::<T>();
    }
}

/// The plain loops, before rounding to the output's type. `x` is `[tokens, heads, d]`, the tables `[tokens, half]`.
pub fn reference(x: &[f64], cos: &[f64], sin: &[f64], shape: [usize; 3], half: usize, kind: (bool, bool)) -> Vec<f64> {
    let [_, heads, d] = shape;
    let (interleaved, inverse) = kind;
    let mut y = x.to_vec();
    for (row, channels) in y.chunks_mut(d.max(1)).enumerate() {
        let token = row / heads.max(1);
        for pair in 0..half {
            let (c, s) = (cos[token * half + pair], sin[token * half + pair]);
            let s = if inverse { -s } else { s };
            let first = d - 2 * half + if interleaved { 2 * pair } else { pair };
            let second = first + if interleaved { 1 } else { half };
            let (a, b) = (channels[first], channels[second]);
            channels[first] = a * c - b * s;
            channels[second] = b * c + a * s;
        }
    }
    y
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct RopePartial;

const OP: &str = "rope_partial";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { rope_partial::kernel::<F32>() } else { rope_partial::kernel::<Bf16>() }
}

/// `[tokens, heads, d]` and `half`.
fn sizes(specs: &p::Specs, params: &Params) -> Result<([usize; 3], usize), OpError> {
    let x = p::input_of_any_rank(OP, specs, "x", &TYPES, 2)?;
    let shape = match *x.shape.as_slice() {
        [tokens, d] => [tokens, 1, d],
        [tokens, heads, d] => [tokens, heads, d],
        _ => return Err(p::refuse(OP, format!("input `x` has shape {:?}; expected two or three axes", x.shape))),
    };
    let cos = p::input(OP, specs, "cos", &[DType::F32], 2)?;
    let half = cos.shape[1];
    p::shaped(OP, cos, &[shape[0], half], "one row a token of `x`")?;
    p::shaped(OP, p::input(OP, specs, "sin", &[DType::F32], 2)?, &cos.shape, "as `cos`")?;
    let rope_dim = p::count(OP, params, "rope_dim", Some(2 * half))?;
    if rope_dim != 2 * half || rope_dim > shape[2] {
        let message = format!("rotates {rope_dim} of {} channels with tables of {half} pairs", shape[2]);
        return Err(p::refuse(OP, format!("{message}; expected two channels a pair, at most all of them")));
    }
    Ok((shape, half))
}

/// Interleaved, inverse.
fn kind(params: &Params) -> Result<(bool, bool), OpError> {
    Ok((p::flag(OP, params, "interleaved", true)?, p::flag(OP, params, "inverse", false)?))
}

/// A view with a heads axis.
fn with_heads(view: TensorView) -> TensorView {
    match (view.shape.as_slice(), view.strides.as_slice()) {
        (&[tokens, d], &[row, channel]) => {
            TensorView { shape: vec![tokens, 1, d], strides: vec![row, d, channel], ..view }
        }
        _ => view,
    }
}

impl OpSpec for RopePartial {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "position",
            formula: "(a, b) → (a·cos − b·sin, b·cos + a·sin) on the last channels",
            source: "Su et al., RoFormer, 2021",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        sizes(specs, params)?;
        kind(params)?;
        Ok(vec![p::spec("y", specs["x"].dtype, &specs["x"].shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let ([t, heads, d], half) = sizes(&specs, &problem.params)?;
        let kernel = kernel_for(specs["x"].dtype);
        let mut config = p::choose(configs, &kernel, &[("t", t), ("heads", heads), ("d", d), ("half", half)]);
        let (interleaved, inverse) = kind(&problem.params)?;
        p::set(&mut config, "interleaved", ConfigValue::Bool(interleaved));
        p::set(&mut config, "inverse", ConfigValue::Bool(inverse));
        let args = vec![
            Arg::Tensor(with_heads(p::view(OP, problem, "x")?)),
            p::arg(OP, problem, "cos")?,
            p::arg(OP, problem, "sin")?,
            Arg::Tensor(with_heads(p::view(OP, problem, "y")?)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let (shape, half) = sizes(&specs, &problem.params)?;
        let read = |name| p::numbers(OP, problem, name);
        let y = reference(&read("x")?, &read("cos")?, &read("sin")?, shape, half, kind(&problem.params)?);
        Ok([("y".into(), f32_tensor(&specs["x"].shape, &y))].into())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::AllCloseOr { abs: 1e-6, rel: 1.01 / 128.0, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: &[usize], half: usize, dtype, interleaved: bool, inverse: bool| {
            let table = [shape[0], half];
            // The rotation is exact algebra in cos and sin: any numbers test it, not only points of the unit circle.
            let inputs = vec![
                p::filled("x", dtype, shape, Fill::Normal(1.0)),
                p::filled("cos", DType::F32, &table, Fill::Uniform(-1.0, 1.0)),
                p::filled("sin", DType::F32, &table, Fill::Uniform(-1.0, 1.0)),
            ];
            let flags = [("interleaved", interleaved), ("inverse", inverse)];
            let mut params: Vec<_> = flags.map(|(n, v)| (n, ParamValue::Bool(v))).into();
            params.push(("rope_dim", ParamValue::Int(2 * half as i64)));
            p::case(id, inputs, &params)
        };
        vec![
            make("no_tokens", &[0, 2, 192], 32, DType::Bf16, true, false),
            make("t5_h3_d192", &[5, 3, 192], 32, DType::Bf16, true, false),
            make("t2_h17_d512_neox", &[2, 17, 512], 32, DType::Bf16, false, false),
            make("t3_h1_d64_all_inverse", &[3, 1, 64], 32, DType::Bf16, true, true),
            make("t4_d40_two_axes", &[4, 40], 6, DType::Bf16, false, true),
            make("t3_h2_d18_f32", &[3, 2, 18], 4, DType::F32, true, false),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(([t, heads, _], half)) = sizes(specs, params) else { return Cost::default() };
        let (x, cos) = (&specs["x"], &specs["cos"]);
        Cost { flops: 6.0 * p::product(&[t, heads, half]), bytes: 2.0 * p::bytes(&[x, cos]) }
    }
}
