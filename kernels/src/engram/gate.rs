//! Gate of an n-gram memory: how much of the looked-up value each residual stream takes.
//!
//! For each token and stream, `rx = (mean x² + eps)^-½`, `rk` alike for `k`, `dot = (Σ x · w · k) · rx · rk · h^-½` with
//! `w = weight_hidden · weight_embed`, `gate = σ(sign(dot) · √max(|dot|, clamp))` and `y = x + gate · v`. `sign(0) = 0`, so the
//! gate of a zero row is ½.
//!
//! *Tensors*: `x`, `k` `[t, m, h]` bf16 or f32 for `m` streams; `v` `[t, h]` as `x`; `weight_hidden`, `weight_embed` `[m, h]` bf16,
//! or their product `weight_fused` `[m, h]` f32, which streams of f32 need; `gate` `[t, m]` f32; `y` `[t, m, h]` as `x`.
//! *Cost*: 6 bytes moved per element and stream, and `v` once; memory bound.
//! *Numerics*: f32 inside, sums in the kernel's declared order, one rounding at the store. A product of two bf16 is exact in f32.
//! *Schedule*: a block a token, its streams one after another; a row stays in registers between the sums and the store.
//! *Source*: Cheng et al., Conditional memory via scalable lookup, 2026.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
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
pub struct EngramConfig {
    /// Warps of a block; they share each row's sums.
    #[numerics]
    #[tune(8, 4)]
    pub warps: usize,
}

/// Gates rows.
#[kernel(dims(h: fixed), deterministic, batch_invariant(t))]
pub fn engram_gate<T: Float, W: Float>(
    cfg: &EngramConfig,
    x: In![T; t, m, h],
    key: In![T; t, m, h],
    value: In![T; t, h],
    hidden: In![W; m, h],
    embed: Option<In![Bf16; m, h]>,
    gate: Out![F32; t, m],
    y: Out![T; t, m, h],
    eps: Scalar![F32],
    floor: Scalar![F32],
) {
    let r = grid(t);
    warps(cfg.warps);
    let xf = frag::<F32, 1>([h]);
    let kf = frag::<F32, 1>([h]);
    let inverse = |sum: V<F32>| -> V<F32> { rsqrt(sum * (1.0 / h as f32) + eps) };
    // One stream after another, so that the value is read from memory once.
    for s in 0..m {
        copy_cast(x.pick(r).pick(s), xf);
        copy_cast(key.pick(r).pick(s), kf);
        let xx = tile_sum([h], |j| xf[j] * xf[j]);
        let kk = tile_sum([h], |j| kf[j] * kf[j]);
        let dot = tile_sum([h], |j| {
            let w = hidden[(s, j)].to::<F32>();
            let w = if let Some(embed) = embed { w * embed[(s, j)].to::<F32>() } else { w };
            xf[j] * w * kf[j]
        });
        let dot = dot * inverse(xx) * inverse(kk) * (1.0 / (h as f32).sqrt());
        let size = sqrt(max(abs(dot), floor));
        let signed = select(dot > 0.0, size, select(dot < 0.0, -size, 0.0));
        let g = 1.0 / (1.0 + exp_precise(-signed));
        gate[(r, s)] = g;
        for j in parallel([h]) {
            y[(r, s, j)] = (xf[j] + g * value[(r, j)].to::<F32>()).to::<T>();
        }
    }
}

/// Gate and output row.
pub fn reference(x: &[f64], k: &[f64], v: &[f64], w: &[f64], eps: f64, clamp: f64) -> (f64, Vec<f64>) {
    let h = x.len() as f64;
    let inverse = |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / h + eps).powf(-0.5);
    let raw: f64 = (0..x.len()).map(|j| x[j] * w[j] * k[j]).sum();
    let dot = raw * inverse(x) * inverse(k) / h.sqrt();
    let sign = if dot == 0.0 { 0.0 } else { dot.signum() };
    let gate = 1.0 / (1.0 + (-sign * dot.abs().max(clamp).sqrt()).exp());
    (gate, x.iter().zip(v).map(|(x, v)| x + gate * v).collect())
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct EngramGate;

const OP: &str = "engram_gate";

fn kernel_for(x: Data, fused: bool) -> Arc<dyn KernelDef> {
    match (x == Data::F32, fused) {
        (true, _) => engram_gate::kernel::<F32, F32>(),
        (false, true) => engram_gate::kernel::<Bf16, F32>(),
        (false, false) => engram_gate::kernel::<Bf16, Bf16>(),
    }
}

/// Tokens, streams and hidden size, and whether the weights come fused.
fn shape_of(specs: &p::Specs) -> Result<([usize; 3], bool), OpError> {
    let x = p::input(OP, specs, "x", &[Data::Bf16, Data::F32], 3)?;
    let [t, m, h] = [x.shape[0], x.shape[1], x.shape[2]];
    p::shaped(OP, p::input(OP, specs, "k", &[x.dtype], 3)?, &x.shape, "as `x`")?;
    p::shaped(OP, p::input(OP, specs, "v", &[x.dtype], 2)?, &[t, h], "a row a token")?;
    let fused = specs.contains_key("weight_fused") || x.dtype == Data::F32;
    let weights: &[(&str, Data)] = if fused {
        &[("weight_fused", Data::F32)]
    } else {
        &[("weight_hidden", Data::Bf16), ("weight_embed", Data::Bf16)]
    };
    for (name, dtype) in weights {
        p::shaped(OP, p::input(OP, specs, name, &[*dtype], 2)?, &[m, h], "a row a stream")?;
    }
    Ok(([t, m, h], fused))
}

impl OpSpec for EngramGate {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("engram_gate"),
            family: "engram",
            formula: "y = x + σ(±√|norm(x)·w·norm(k)|) · v",
            source: "Cheng et al., 2026",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [(Data::Bf16, false), (Data::Bf16, true), (Data::F32, true)].map(|(x, fused)| kernel_for(x, fused)).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let ([t, m, h], _) = shape_of(specs)?;
        p::number(OP, params, "eps", Some(1e-20))?;
        p::number(OP, params, "clamp_value", Some(1e-6))?;
        Ok(vec![p::spec("gate", Data::F32, &[t, m]), p::spec("y", specs["x"].dtype, &[t, m, h])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let ([t, m, h], fused) = shape_of(&specs)?;
        let kernel = kernel_for(specs["x"].dtype, fused);
        let config = p::choose(configs, &kernel, &[("t", t), ("m", m), ("h", h)]);
        let number = |name: &str, default| -> Result<Arg, OpError> {
            Ok(Arg::Scalar(Literal::f32(p::number(OP, &problem.params, name, Some(default))? as f32)))
        };
        let mut args = vec![p::arg(OP, problem, "x")?, p::arg(OP, problem, "k")?, p::arg(OP, problem, "v")?];
        args.push(p::arg(OP, problem, if fused { "weight_fused" } else { "weight_hidden" })?);
        args.push(if fused { Arg::Absent } else { p::arg(OP, problem, "weight_embed")? });
        args.extend([p::arg(OP, problem, "gate")?, p::arg(OP, problem, "y")?]);
        args.extend([number("eps", 1e-20)?, number("clamp_value", 1e-6)?]);
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let ([t, m, h], fused) = shape_of(&p::host_specs(self, problem)?)?;
        let tensor = |name: &str| p::numbers(OP, problem, name);
        let (x, k, v) = (tensor("x")?, tensor("k")?, tensor("v")?);
        let w: Vec<f64> = if fused {
            tensor("weight_fused")?
        } else {
            tensor("weight_hidden")?.iter().zip(tensor("weight_embed")?).map(|(a, b)| a * b).collect()
        };
        let eps = p::number(OP, &problem.params, "eps", Some(1e-20))?;
        let clamp = p::number(OP, &problem.params, "clamp_value", Some(1e-6))?;
        let (mut gates, mut y) = (vec![], vec![]);
        for r in 0..t {
            for s in 0..m {
                let row = |x: &[f64], at: usize| x[at * h..][..h].to_vec();
                let at = r * m + s;
                let (g, out) = reference(&row(&x, at), &row(&k, at), &row(&v, r), &row(&w, s), eps, clamp);
                gates.push(g);
                y.extend(out);
            }
        }
        Ok([("gate".into(), f32_tensor(&[t, m], &gates)), ("y".into(), f32_tensor(&[t, m, h], &y))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Vec<Split> {
        let Ok(([t, ..], _)) = shape_of(specs) else { return vec![] };
        vec![p::split("tokens", t, 1, &["x", "k", "v", "gate", "y"].map(|name| (name, 0, 1)))]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "gate" => Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-4, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 1e-3, rel: 1.01 / 128.0, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, m, h]: [usize; 3], fused: bool, x: Fill, k: Fill| {
            let mut inputs = vec![
                p::filled("x", Data::Bf16, &[t, m, h], x),
                p::filled("k", Data::Bf16, &[t, m, h], k),
                p::filled("v", Data::Bf16, &[t, h], Fill::Normal(1.0)),
            ];
            if fused {
                inputs.push(p::filled("weight_fused", Data::F32, &[m, h], Fill::Normal(1.0)));
            } else {
                inputs.push(p::filled("weight_hidden", Data::Bf16, &[m, h], Fill::Normal(1.0)));
                inputs.push(p::filled("weight_embed", Data::Bf16, &[m, h], Fill::Normal(1.0)));
            }
            p::case(id, inputs, &[("eps", ParamValue::Float(1e-20)), ("clamp_value", ParamValue::Float(1e-6))])
        };
        let normal = || Fill::Normal(1.0);
        vec![
            make("no_tokens", [0, 4, 128], false, normal(), normal()),
            make("t3_m4_h4096", [3, 4, 4096], false, normal(), normal()),
            make("t5_m1_h77_odd", [5, 1, 77], true, normal(), normal()),
            make("fused", [2, 4, 512], true, normal(), normal()),
            {
                let mut case = make("t3_m2_h96_f32", [3, 2, 96], true, normal(), normal());
                for input in case.inputs.iter_mut().take(3) {
                    input.tensor.dtype = Data::F32;
                }
                case
            },
            make("zero_rows", [3, 2, 64], false, Fill::Constant(0.0), normal()),
            make("tiny_and_huge", [3, 2, 256], false, Fill::Normal(1e-12), Fill::Normal(1e12)),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "streams", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 3]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 4, 4096], [16384, 4, 4096], [16384, 4, 7168]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, m, h] = p::bench_sizes(OP, shape, ["tokens", "streams", "hidden"])?;
        let inputs = vec![
            p::filled("x", Data::Bf16, &[t, m, h], Fill::Normal(1.0)),
            p::filled("k", Data::Bf16, &[t, m, h], Fill::Normal(1.0)),
            p::filled("v", Data::Bf16, &[t, h], Fill::Normal(1.0)),
            p::filled("weight_hidden", Data::Bf16, &[m, h], Fill::Normal(1.0)),
            p::filled("weight_embed", Data::Bf16, &[m, h], Fill::Normal(1.0)),
        ];
        Ok(p::case(format!("tokens{t}_streams{m}_hidden{h}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
