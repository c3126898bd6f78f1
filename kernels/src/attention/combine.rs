//! Merging of splits: `o = Σ_s 2^(lse_s − L) · o_s` with `L = log2 Σ_s 2^lse_s`, then the sink.
//!
//! *Tensors*: `o_accum` `[splits, h, d_v]` f32; `lse_accum` `[splits, h]` f32, base 2, infinite for a split without keys;
//! `attn_sink` `[h]` f32, natural, may be left out; `out` `[h, d_v]` bf16 or f32 (parameter `out_dtype`); `lse` `[h]` f32,
//! natural, without the sink. A row without keys gives zeros and `+∞`.
//! *Cost*: 4 bytes read a partial output, memory bound.
//! *Numerics*: f32, splits in order. A split of weight zero is not read, so its memory may hold anything, and padding a
//! row with empty splits keeps its bits.
//! *Schedule*: one block a row; the decode kernels launch the same kernel over requests, heads and queries.
//! *Source*: Dao et al., Flash-Decoding, 2023.

use super::softmax::sink_factor;
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct CombineConfig {
    /// Warps of a block.
    #[tune(4, 2, 1)]
    pub warps: usize,
}

/// Merges the splits of every row.
#[kernel(dims(dv: fixed), deterministic, batch_invariant(b))]
pub fn mla_combine<O: Float>(
    cfg: &CombineConfig,
    parts: In![F32; splits, b, q, h, dv],
    part_lse: In![F32; splits, b, h, q],
    sink: Option<In![F32; h]>,
    out: Out![O; b, q, h, dv; strides(_, _, _, 1)],
    lse: Out![F32; b, h, q; strides(_, _, _)],
) {
    let (bi, qi, hi) = grid((b, q, h));
    warps(cfg.warps);

    let mut top = NEG_INF;
    for s in 0..splits {
        let l = part_lse[(s, bi, hi, qi)];
        top = max(top, select(l < INF, l, NEG_INF));
    }
    let base = select(top > NEG_INF, top, 0.0);

    let mut norm = 0.0f32;
    let acc = frag::<F32, 1>([dv]);
    zero(acc);
    for s in 0..splits {
        let l = part_lse[(s, bi, hi, qi)];
        let weight = select(l < INF, exp2(l - base), 0.0);
        if weight > 0.0 {
            norm += weight;
            for d in parallel([dv]) {
                acc[d] += parts[(s, bi, qi, hi, d)] * weight;
            }
        }
    }

    let total = norm;
    let natural = (base + log2(total)) * std::f32::consts::LN_2;
    let factor = if let Some(sink) = sink { sink_factor(sink[hi], natural) } else { lit(1.0) };
    for d in parallel([dv]) {
        out[(bi, qi, hi, d)] = select(total > 0.0, acc[d] / total * factor, 0.0).to::<O>();
    }
    lse[(bi, hi, qi)] = select(total > 0.0, natural, INF);
}

/// The kernel for an output type.
pub(super) fn kernel_for(out: Data) -> Arc<dyn KernelDef> {
    if out == Data::F32 { mla_combine::kernel::<F32>() } else { mla_combine::kernel::<Bf16>() }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MlaCombine;

const OP: &str = "mla_combine";

/// Splits, heads, width and output type.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<(usize, usize, usize, Data), OpError> {
    let o = p::input(OP, specs, "o_accum", &[Data::F32], 3)?;
    let lse = p::input(OP, specs, "lse_accum", &[Data::F32], 2)?;
    p::shaped(OP, lse, &o.shape[..2], "one entry a row of `o_accum`")?;
    if let Some(sink) = p::optional_input(OP, specs, "attn_sink", &[Data::F32], 1)? {
        p::shaped(OP, sink, &o.shape[1..2], "one entry a head")?;
    }
    let out = p::word(OP, params, "out_dtype", &["bf16", "f32"])?;
    Ok((o.shape[0], o.shape[1], o.shape[2], if out == "f32" { Data::F32 } else { Data::Bf16 }))
}

/// A view with axes of extent 1 inserted: `None` stands for such an axis, `Some(axis)` for one of the view's.
pub(super) fn spread_axes(view: &TensorView, axes: &[Option<usize>]) -> TensorView {
    let of = |values: &[usize]| axes.iter().map(|a| a.map_or(1, |a| values[a])).collect();
    TensorView { shape: of(&view.shape), strides: of(&view.strides), ..view.clone() }
}

impl OpSpec for MlaCombine {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "attention",
            formula: "o = Σ_s 2^(lse_s − L) · o_s · 1/(1 + exp(sink − lse))",
            source: "Dao et al., Flash-Decoding, 2023",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kernel_for(Data::Bf16), kernel_for(Data::F32)]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (_, heads, width, out) = shape_of(specs, params)?;
        Ok(vec![p::spec("out", out, &[heads, width]), p::spec("lse", Data::F32, &[heads])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (splits, heads, width, out) = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(out);
        let dims = [("splits", splits), ("b", 1), ("q", 1), ("h", heads), ("dv", width)];
        let config = p::choose(configs, &kernel, &dims);
        let tensor =
            |name: &str, axes: &[Option<usize>]| p::view(OP, problem, name).map(|v| Arg::Tensor(spread_axes(&v, axes)));
        let args = vec![
            tensor("o_accum", &[Some(0), None, None, Some(1), Some(2)])?,
            tensor("lse_accum", &[Some(0), None, Some(1), None])?,
            p::optional_arg(problem, "attn_sink"),
            tensor("out", &[None, None, Some(0), Some(1)])?,
            tensor("lse", &[None, Some(0), None])?,
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let (splits, heads, width, _) = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (o, l) = (p::numbers(OP, problem, "o_accum")?, p::numbers(OP, problem, "lse_accum")?);
        let sink = problem.tensors.get("attn_sink").map(HostTensor::to_f64);
        let (mut out, mut lse) = (vec![0.0; heads * width], vec![f64::INFINITY; heads]);
        for h in 0..heads {
            let live = || (0..splits).filter(|s| l[s * heads + h].is_finite());
            let Some(top) = live().map(|s| l[s * heads + h]).reduce(f64::max) else { continue };
            let norm: f64 = live().map(|s| (l[s * heads + h] - top).exp2()).sum();
            lse[h] = (top + norm.log2()) * std::f64::consts::LN_2;
            let kept = sink.as_ref().map_or(1.0, |t| 1.0 / (1.0 + (t[h] - lse[h]).exp()));
            for s in live() {
                let weight = (l[s * heads + h] - top).exp2() / norm * kept;
                for d in 0..width {
                    out[h * width + d] += weight * o[(s * heads + h) * width + d];
                }
            }
        }
        Ok([("out".into(), f32_tensor(&[heads, width], &out)), ("lse".into(), f32_tensor(&[heads], &lse))].into())
    }
    fn tolerance(&self, output: &str, params: &Params) -> Tolerance {
        match output {
            "lse" => Tolerance::AllCloseOr { abs: 1e-5, rel: 8.01 / 65536.0, cos_diff: None },
            _ if params.get("out_dtype") == Some(&ParamValue::Text("f32".into())) => {
                Tolerance::AllCloseOr { abs: 1e-5, rel: 1e-5, cos_diff: None }
            }
            _ => Tolerance::AllCloseOr { abs: 1e-5, rel: 2.01 / 128.0, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [splits, heads, width]: [usize; 3], sink: Option<&[f64]>, out: &str| {
            let mut inputs = vec![
                p::filled("o_accum", Data::F32, &[splits, heads, width], Fill::Normal(1.0)),
                p::filled("lse_accum", Data::F32, &[splits, heads], Fill::Normal(6.0)),
            ];
            inputs.extend(sink.map(|s| p::filled("attn_sink", Data::F32, &[s.len()], Fill::Values(s.to_vec()))));
            p::case(id, inputs, &[("out_dtype", ParamValue::Text(out.into()))])
        };
        let empty = |mut case: Case, lse: &[f64]| {
            case.inputs[1].fill = Fill::Values(lse.to_vec());
            case.inputs[0].fill = Fill::Bits;
            case
        };
        let inf = f64::INFINITY;
        vec![
            make("no_rows", [3, 0, 64], None, "bf16"),
            make("s4_h3_d512", [4, 3, 512], None, "bf16"),
            make("s7_h5_d40_sink_f32", [7, 5, 40], Some(&[0.0, 3.0, inf, -inf, -2.0]), "f32"),
            empty(make("nothing_visible", [2, 2, 64], Some(&[0.0, 1.0]), "bf16"), &[-inf, inf, inf, -inf]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let flops = specs.get("o_accum").map_or(0.0, |o| 2.0 * p::product(&o.shape));
        Cost { flops, bytes: p::bytes(&outputs.iter().chain(specs.values()).collect::<Vec<_>>()) }
    }
}
