//! Attention of every query to the last `window` keys up to its own position; all heads share the keys, which are the
//! values as well.
//!
//! Query `i` sees key `j` iff `i − window < j ≤ i`; `o` is scaled by `1/(1 + exp(sink − lse))` if there are sinks.
//!
//! *Tensors*: `q` `[n, h, d]` bf16; `kv` `[n, d]` bf16; `attn_sink` `[h]` f32, may be left out; `out` `[n, h, d]` bf16; `lse`
//! `[n, h]` f32, natural, without the sink.
//! *Cost*: `4·n·h·window·d` operations.
//! *Numerics*: `softmax.rs`; key tiles start at multiples of `keys`, so a query's bits do not depend on its neighbours.
//! *Schedule*: a block takes rows of (query, head) pairs in order and walks the keys that any of them sees.
//! *Source*: Beltagy et al., Longformer, 2020.

use super::combine::spread_axes;
use super::softmax::{self, Destination, attend, attention_begin, attention_end};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct WindowConfig {
    /// Rows of a block.
    #[tune(64, 128, 32)]
    pub rows: usize,
    /// Keys of a step.
    #[numerics]
    #[tune(64, 32, 16)]
    pub keys: usize,
    /// Steps loaded ahead, and the current one.
    #[tune(1, 2)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

/// Some rows of queries.
#[kernel(dims(h: fixed, d: fixed), deterministic)]
pub fn attention_sliding_window(
    cfg: &WindowConfig,
    q: In![Bf16; n, h, d],
    kv: In![Bf16; n, d],
    sink: Option<In![F32; h]>,
    out: Out![Bf16; 1, 1, n, h, d],
    lse: Out![F32; 1, 1, h, n; strides(_, _, _, _)],
    window: Scalar![I32],
    scale_log2: Scalar![F32],
) {
    let (rows, keys) = (cfg.rows, cfg.keys);
    let r0 = grid((n * h).div_ceil(rows)) * rows;
    warps(cfg.warps);
    let reach = window.clamp_index(0, n);
    // Keys that some query of the block sees.
    let (first, last) = (r0 / h, ((r0 + (rows - 1)) / h).min(n - 1));
    let lo = (first + 1).saturating_sub(reach);

    let a = attention_begin::<Bf16>(rows, keys, d, d);
    copy(q.merge_leading().at((r0, 0)), a.q);
    #[label(key_loop)]
    for step in pipeline(lo / keys..(last + 1).div_ceil(keys), cfg.stages) {
        let pos = step * keys;
        copy(kv.at((pos, 0)), a.k);
        attend(&a, scale_log2, |i: Ix, j: Ix| {
            let (query, key) = ((r0 + i) / h, pos + j);
            key <= query && key + reach > query
        });
    }
    let to = Destination { out, lse, sink, last: true };
    let zero = host!(r0 * 0);
    attention_end(&a, &to, scale_log2, zero, zero, |i: Ix| ((r0 + i) / h, (r0 + i) % h));
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow;

const OP: &str = "attention_sliding_window";

/// What a problem asks for.
struct Shape {
    n: usize,
    heads: usize,
    width: usize,
    window: usize,
    scale: f64,
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let q = p::input(OP, specs, "q", &[Data::Bf16], 3)?;
    let kv = p::input(OP, specs, "kv", &[Data::Bf16], 2)?;
    let &[n, heads, width] = q.shape.as_slice() else { return Err(p::refuse(OP, "`q` has three axes")) };
    p::shaped(OP, kv, &[n, width], "one key a query, as wide as it")?;
    if let Some(sink) = p::optional_input(OP, specs, "attn_sink", &[Data::F32], 1)? {
        p::shaped(OP, sink, &[heads], "one entry a head")?;
    }
    if heads == 0 || width == 0 {
        return Err(p::refuse(OP, format!("`q` has {heads} heads of {width} columns; expected at least one of each")));
    }
    if !p::flag(OP, params, "causal", true)? {
        return Err(p::refuse(OP, "parameter `causal` is false; a window ends at the query's own position"));
    }
    let scale = p::number(OP, params, "softmax_scale", Some((width as f64).powf(-0.5)))?;
    Ok(Shape { n, heads, width, window: p::count(OP, params, "window", None)?, scale })
}

impl OpSpec for SlidingWindow {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "attention",
            formula: "o_i = softmax(scale · q_i·K[i−window+1..i]ᵀ) · K",
            source: "Beltagy et al., 2020",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![attention_sliding_window::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        Ok(vec![p::spec("out", Data::Bf16, &[s.n, s.heads, s.width]), p::spec("lse", Data::F32, &[s.n, s.heads])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = attention_sliding_window::kernel();
        let mut config = p::choose(configs, &kernel, &[("n", s.n), ("h", s.heads), ("d", s.width)]);
        p::at_most(&mut config, "rows", (s.n * s.heads).next_power_of_two().max(16));
        let (out, lse) = (p::view(OP, problem, "out")?, p::view(OP, problem, "lse")?);
        let args = vec![
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "kv")?,
            p::optional_arg(problem, "attn_sink"),
            Arg::Tensor(spread_axes(&out, &[None, None, Some(0), Some(1), Some(2)])),
            Arg::Tensor(spread_axes(&lse, &[None, None, Some(1), Some(0)])),
            Arg::Scalar(Literal { dtype: Data::I32, bits: s.window as u64 }),
            Arg::Scalar(Literal::f32((s.scale * std::f64::consts::LOG2_E) as f32)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (q, kv) = (p::numbers(OP, problem, "q")?, p::numbers(OP, problem, "kv")?);
        let sink = problem.tensors.get("attn_sink").map(HostTensor::to_f64);
        let (mut out, mut lse) = (vec![], vec![]);
        for i in 0..s.n {
            let keys: Vec<&[f64]> =
                ((i + 1).saturating_sub(s.window)..=i).map(|j| &kv[j * s.width..][..s.width]).collect();
            for h in 0..s.heads {
                let q = &q[(i * s.heads + h) * s.width..][..s.width];
                let (o, l) = softmax::reference(q, &keys, s.width, s.scale, sink.as_ref().map(|t| t[h]));
                out.extend(o);
                lse.push(l);
            }
        }
        Ok([
            ("out".into(), f32_tensor(&[s.n, s.heads, s.width], &out)),
            ("lse".into(), f32_tensor(&[s.n, s.heads], &lse)),
        ]
        .into())
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "lse" => Tolerance::AllCloseOr { abs: 1e-5, rel: 8.01 / 65536.0, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 8e-4, rel: 2.01 / 128.0, cos_diff: Some(5e-6) },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [n, h, d, window]: [usize; 4], sink: Option<&[f64]>| {
            let mut inputs = vec![
                p::filled("q", Data::Bf16, &[n, h, d], Fill::Normal(0.4)),
                p::filled("kv", Data::Bf16, &[n, d], Fill::Normal(0.4)),
            ];
            inputs.extend(sink.map(|s| p::filled("attn_sink", Data::F32, &[s.len()], Fill::Values(s.to_vec()))));
            p::case(id, inputs, &[("window", ParamValue::Int(window as i64))])
        };
        vec![
            make("no_queries", [0, 4, 64, 8], None),
            make("n1", [1, 1, 64, 128], None),
            make("n150_w33", [150, 3, 64, 33], Some(&[0.0, f64::INFINITY, f64::NEG_INFINITY])),
            make("window_beyond_all", [40, 2, 48, 1000], None),
            make("window_1", [70, 5, 16, 1], None),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let flops = 4.0 * p::product(&[s.n, s.heads, s.window.min(s.n.max(1)), s.width]);
        Cost { flops, bytes: p::bytes(&outputs.iter().chain(specs.values()).collect::<Vec<_>>()) }
    }
}
