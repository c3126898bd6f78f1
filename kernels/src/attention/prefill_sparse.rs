//! Multi-head latent attention of packed queries to chosen tokens.
//!
//! `o = softmax(scale · q·Kᵀ) · K[.., ..d_v] · 1/(1 + exp(sink − lse))`, where K holds the tokens that the query's list names:
//! duplicates count twice, an index outside of `kv` counts not at all, and with `topk_length` only that many of the first
//! entries count. A query that sees nothing gives zeros, `lse = +∞` and `max_logits = −∞`; neither includes the sink.
//!
//! *Tensors*: `q` `[s_q, h, d_qk]` bf16 or f32; `kv` `[s_kv, 1, d_qk]` as `q`; `indices` `[s_q, 1, topk]` i32; `attn_sink` `[h]`
//! f32 and `topk_length` `[s_q]` i32, may be left out; `out` `[s_q, h, d_v]` as `q`; `max_logits`, `lse` `[s_q, h]` f32, natural.
//! *Cost*: `2·h·topk·(d_qk + d_v)` operations a query; compute bound for many heads.
//! *Numerics*: `softmax.rs`; the list is walked in its order, `keys` entries a step. f32 is for exact comparisons: nothing is
//! rounded, and no matrix unit helps.
//! *Schedule*: some heads of one query a block. Rows that a list does not name are not read; they stand as zeros.
//! *Source*: DeepSeek-V3.2, 2025.

use super::combine::spread_axes;
use super::softmax::{self, Destination, attend, attention_begin, attention_end};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct SparsePrefillConfig {
    /// Heads of a block.
    #[tune(64, 32, 128)]
    pub rows: usize,
    /// Entries of a step.
    #[numerics]
    #[tune(64, 32)]
    pub keys: usize,
    /// Steps loaded ahead, and the current one.
    #[tune(1, 2)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(8, 4)]
    pub warps: usize,
}

/// Some heads of a query.
#[kernel(
    dims(h: fixed, dk: fixed, dv: fixed),
    require(dv <= dk),
    deterministic,
    batch_invariant(sq),
)]
pub fn mla_prefill_sparse<T: Float>(
    cfg: &SparsePrefillConfig,
    q: In![T; sq, h, dk; strides(_, _, 1)],
    kv: In![T; skv, dk; strides(_, 1)],
    indices: In![I32; sq, topk; strides(_, 1)],
    length: Option<In![I32; sq]>,
    sink: Option<In![F32; h]>,
    out: Out![T; 1, 1, sq, h, dv; strides(_, _, _, _, 1)],
    max_logits: Out![F32; sq, h],
    lse: Out![F32; 1, 1, h, sq; strides(_, _, _, _)],
    scale: Scalar![F32],
    scale_log2: Scalar![F32],
) where
    (T, T, F32): Mma,
{
    let (rows, keys) = (cfg.rows, cfg.keys);
    let (qi, block) = grid((sq, h.div_ceil(rows)));
    let h0 = block * rows;
    warps(cfg.warps);

    let a = attention_begin::<T>(rows, keys, dk, dv);
    let named = shared::<I32, 1>([keys]);
    copy(q.pick(qi).at((h0, 0)), a.q);
    let count = if let Some(length) = length { length[qi].clamp_index(0, topk) } else { topk };
    let list = indices.pick(qi).first_rows(count);
    let chosen = kv.rows(list);
    #[label(key_loop)]
    for step in pipeline(0..count.div_ceil(keys), cfg.stages) {
        let pos = step * keys;
        copy(chosen.at((pos, 0)), a.k);
        for j in parallel([keys]) {
            named[j] = select(chosen.has_row(pos + j), 1, 0);
        }
        attend(&a, scale_log2, |_i: Ix, j: Ix| named[j] > 0);
    }
    let (sum, top) = (a.softmax.sum, a.softmax.max);
    for i in parallel([rows]) {
        max_logits[(qi, h0 + i)] = select(sum[i] > 0.0, top[i] * scale, NEG_INF);
    }
    let zero = host!(qi * 0);
    let to = Destination { out, lse, sink, last: true };
    attention_end(&a, &to, scale_log2, zero, zero, |i: Ix| (qi, h0 + i));
}

fn kernel_for(dtype: Data) -> Arc<dyn KernelDef> {
    if dtype == Data::F32 { mla_prefill_sparse::kernel::<F32>() } else { mla_prefill_sparse::kernel::<Bf16>() }
}

/// What a problem asks for.
struct Shape {
    dtype: Data,
    queries: usize,
    tokens: usize,
    heads: usize,
    topk: usize,
    dk: usize,
    dv: usize,
    scale: f64,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MlaPrefillSparse;

const OP: &str = "mla_prefill_sparse";

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let q = p::input(OP, specs, "q", &[Data::Bf16, Data::F32], 3)?;
    let &[queries, heads, dk] = q.shape.as_slice() else { return Err(p::refuse(OP, "`q` has three axes")) };
    let kv = p::input(OP, specs, "kv", &[q.dtype], 3)?;
    p::shaped(OP, kv, &[kv.shape[0], 1, dk], "one key head as wide as `q`")?;
    let indices = p::input(OP, specs, "indices", &[Data::I32], 3)?;
    p::shaped(OP, indices, &[queries, 1, indices.shape[2]], "one list a query")?;
    if let Some(length) = p::optional_input(OP, specs, "topk_length", &[Data::I32], 1)? {
        p::shaped(OP, length, &[queries], "one entry a query")?;
    }
    if let Some(sink) = p::optional_input(OP, specs, "attn_sink", &[Data::F32], 1)? {
        p::shaped(OP, sink, &[heads], "one entry a head")?;
    }
    let dv = p::count(OP, params, "d_v", Some(512))?;
    if dv > dk || heads == 0 {
        return Err(p::refuse(OP, format!("{heads} heads, values of {dv} of {dk} columns; expected d_v <= d_qk")));
    }
    let scale = p::number(OP, params, "sm_scale", Some((dk as f64).powf(-0.5)))?;
    Ok(Shape { dtype: q.dtype, queries, tokens: kv.shape[0], heads, topk: indices.shape[2], dk, dv, scale })
}

/// The middle axis of extent 1 taken out.
fn without_head(mut v: TensorView) -> Arg {
    v.shape.remove(1);
    v.strides.remove(1);
    Arg::Tensor(v)
}

impl OpSpec for MlaPrefillSparse {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mla_sparse_prefill"),
            family: "attention",
            formula: "o = softmax(scale · q·Kᵀ) · K[.., ..d_v] over chosen tokens",
            source: "DeepSeek-V3.2, 2025",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [Data::Bf16, Data::F32].map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let rows = [s.queries, s.heads];
        let out = p::spec("out", s.dtype, &[s.queries, s.heads, s.dv]);
        Ok(vec![out, p::spec("max_logits", Data::F32, &rows), p::spec("lse", Data::F32, &rows)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(s.dtype);
        let dims = [("sq", s.queries), ("skv", s.tokens), ("h", s.heads), ("topk", s.topk), ("dk", s.dk), ("dv", s.dv)];
        let mut config = p::choose(configs, &kernel, &dims);
        p::at_most(&mut config, "rows", s.heads.next_power_of_two().max(16));
        let (out, lse) = (p::view(OP, problem, "out")?, p::view(OP, problem, "lse")?);
        let args = vec![
            p::arg(OP, problem, "q")?,
            without_head(p::view(OP, problem, "kv")?),
            without_head(p::view(OP, problem, "indices")?),
            p::optional_arg(problem, "topk_length"),
            p::optional_arg(problem, "attn_sink"),
            Arg::Tensor(spread_axes(&out, &[None, None, Some(0), Some(1), Some(2)])),
            p::arg(OP, problem, "max_logits")?,
            Arg::Tensor(spread_axes(&lse, &[None, None, Some(1), Some(0)])),
            Arg::Scalar(Literal::f32(s.scale as f32)),
            Arg::Scalar(Literal::f32((s.scale * std::f64::consts::LOG2_E) as f32)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [q, kv, indices] = ["q", "kv", "indices"].map(|name| p::numbers(OP, problem, name));
        let (q, kv, indices) = (q?, kv?, indices?);
        let sink = problem.tensors.get("attn_sink").map(HostTensor::to_f64);
        let length = problem.tensors.get("topk_length").map(HostTensor::to_f64);
        let (mut out, mut top, mut lse) = (vec![], vec![], vec![]);
        for i in 0..s.queries {
            let count = length.as_ref().map_or(s.topk, |l| (l[i].max(0.0) as usize).min(s.topk));
            let list = &indices[i * s.topk..][..count];
            let named = list.iter().filter(|row| **row >= 0.0 && **row < s.tokens as f64);
            let keys: Vec<&[f64]> = named.map(|&row| &kv[row as usize * s.dk..][..s.dk]).collect();
            for h in 0..s.heads {
                let query = &q[(i * s.heads + h) * s.dk..][..s.dk];
                let (o, l) = softmax::reference(query, &keys, s.dv, s.scale, sink.as_ref().map(|t| t[h]));
                let dot = |k: &&[f64]| query.iter().zip(*k).map(|(a, b)| a * b).sum::<f64>() * s.scale;
                out.extend(o);
                top.push(keys.iter().map(dot).fold(f64::NEG_INFINITY, f64::max));
                lse.push(l);
            }
        }
        let rows = [s.queries, s.heads];
        Ok([
            ("out".into(), f32_tensor(&[s.queries, s.heads, s.dv], &out)),
            ("max_logits".into(), f32_tensor(&rows, &top)),
            ("lse".into(), f32_tensor(&rows, &lse)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let queries = ["q", "indices", "topk_length", "out", "max_logits", "lse"].map(|name| (name, 0, 1));
        let heads = [("q", 1, 1), ("attn_sink", 0, 1), ("out", 1, 1), ("max_logits", 1, 1), ("lse", 1, 1)];
        vec![p::split("s_q", s.queries, 1, &queries), p::split("h", s.heads, 1, &heads)]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "out" => Tolerance::AllCloseOr { abs: 8e-4, rel: 3.01 / 128.0, cos_diff: Some(7e-6) },
            _ => Tolerance::AllCloseOr { abs: 1e-5, rel: 2.01 / 65536.0, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [sq, skv, h, dk, dv, topk]: [usize; 6], lengths: Option<&[f64]>, sink: Option<&[f64]>| {
            let mut inputs = vec![
                p::filled("q", Data::Bf16, &[sq, h, dk], Fill::Normal(0.2)),
                // Keys of one sign are values of one sign: outputs without cancellation, which the bounds are for.
                p::filled("kv", Data::Bf16, &[skv, 1, dk], Fill::Uniform(0.2, 1.0)),
                p::filled("indices", Data::I32, &[sq, 1, topk], Fill::Uniform(-5.0, skv as f64 * 1.3 + 1.0)),
            ];
            inputs.extend(lengths.map(|l| p::filled("topk_length", Data::I32, &[l.len()], Fill::Values(l.to_vec()))));
            inputs.extend(sink.map(|t| p::filled("attn_sink", Data::F32, &[t.len()], Fill::Values(t.to_vec()))));
            p::case(id, inputs, &[("d_v", ParamValue::Int(dv as i64)), ("sm_scale", ParamValue::Float(0.1))])
        };
        let sinks = [0.5, f64::INFINITY, f64::NEG_INFINITY];
        vec![
            make("no_queries", [0, 10, 2, 64, 32, 8], None, None),
            make("d576", [2, 90, 9, 576, 512, 96], None, None),
            make("lengths_and_sinks", [5, 40, 3, 64, 64, 70], Some(&[70.0, 0.0, 33.0, -4.0, 1000.0]), Some(&sinks)),
            make("nothing_chosen", [2, 10, 2, 64, 48, 0], None, None),
            make("no_tokens", [2, 0, 2, 64, 32, 20], None, None),
            {
                let mut case = make("f32", [3, 30, 3, 48, 32, 40], Some(&[40.0, 7.0, 0.0]), Some(&sinks));
                for input in case.inputs.iter_mut().take(2) {
                    input.tensor.dtype = Data::F32;
                }
                case
            },
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["s_q", "s_k", "h_q", "d", "topk"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 5]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 8192, 128, 576, 2048], [4096, 8192, 64, 512, 512], [4096, 8192, 128, 512, 1024]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [sq, sk, h, d, topk] = p::bench_sizes(OP, shape, ["s_q", "s_k", "h_q", "d", "topk"])?;
        let inputs = vec![
            p::filled("q", Data::Bf16, &[sq, h, d], Fill::Normal(0.1)),
            p::filled("kv", Data::Bf16, &[sk, 1, d], Fill::Normal(0.1)),
            p::filled("indices", Data::I32, &[sq, 1, topk], Fill::Uniform(0.0, sk as f64)),
        ];
        let dv = ParamValue::Int(d.min(512) as i64);
        Ok(p::case(format!("sq{sq}_sk{sk}_h{h}_d{d}_topk{topk}"), inputs, &[("d_v", dv)]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
        let flops = 2.0 * p::product(&[s.queries, s.heads, s.topk, s.dk + s.dv]);
        Cost { flops, bytes: p::bytes(&tensors) }
    }
}
