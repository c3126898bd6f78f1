//! Compression of keys: every `ratio` positions become one, a weighted mean of a window, normalised and rotated.
//!
//! With `s[p] = score[p] + ape[p mod ratio]`, chunk `r` gives for every channel `c` the mean of `kv[p, c]` over its window with
//! weights `softmax(s[p, c])`. Without overlap the window is the chunk. With it, the chunk before comes first with the first
//! `d` columns of `kv` and `score`, and the chunk itself counts with the last `d`; the first chunk has none before it. The
//! mean is RMS-normalised, multiplied by a weight, and its last `rope_dim` channels are rotated in neighbouring pairs by the
//! angle of the chunk's first position. Positions after the last whole chunk give nothing.
//!
//! *Tensors*: `kv`, `score` `[n, c·d]` f32, `c` 2 with overlap and 1 without; `ape` `[ratio, c·d]`, `norm_weight` `[d]` f32;
//! `cos`, `sin` `[n/ratio, rope_dim/2]` f32; `pooled`, `normed_rope` `[n/ratio, d]` f32.
//! *Cost*: `kv` and `score` read once (twice with overlap), memory bound.
//! *Numerics*: f32; the mean is taken in one pass, with sums that shrink when a larger score comes.
//! *Schedule*: a chunk a block, a channel a thread.
//! *Source*: DeepSeek-V4, 2026: compressed attention.

use crate::numeric::round::f32_tensor;
use crate::position::rope_partial;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and the window.
#[derive(KernelConfig, Clone, Debug)]
pub struct CompressorConfig {
    /// Warps of a block.
    #[numerics]
    #[tune(4, 8, 2)]
    pub warps: usize,
    /// Positions that become one.
    #[default(4)]
    pub ratio: usize,
    /// The chunk before counts too.
    #[default(true)]
    pub overlap: bool,
}

/// Compresses one chunk.
#[kernel(dims(wide: fixed, d: fixed, half: fixed), require(2 * half <= d), deterministic)]
pub fn kv_compressor(
    cfg: &CompressorConfig,
    kv: In![F32; n, wide; strides(_, 1)],
    score: In![F32; n, wide; strides(_, 1)],
    ape: In![F32; ratio, wide],
    weight: In![F32; d],
    cos: In![F32; rows, half],
    sin: In![F32; rows, half],
    pooled: Out![F32; rows, d],
    normed: Out![F32; rows, d],
    eps: Scalar![F32],
) {
    let row = grid(rows);
    warps(cfg.warps);
    let (chunk, own, kept) = host!((cfg.ratio, wide - d, d - 2 * half));
    let first = row * chunk;

    let mean = frag::<F32, 1>([d]);
    for c in parallel([d]) {
        let mut top = -1.0e30;
        let mut sum = 0.0;
        let mut total = 0.0;
        if cfg.overlap {
            for j in first.saturating_sub(chunk)..first {
                let s = score[(j, c)] + ape[(j % chunk, c)];
                let larger = max(top, s);
                let (shrink, w) = (exp(top - larger), exp(s - larger));
                sum = sum * shrink + w;
                total = total * shrink + w * kv[(j, c)];
                top = larger;
            }
        }
        for j in first..first + chunk {
            let s = score[(j, c + own)] + ape[(j % chunk, c + own)];
            let larger = max(top, s);
            let (shrink, w) = (exp(top - larger), exp(s - larger));
            sum = sum * shrink + w;
            total = total * shrink + w * kv[(j, c + own)];
            top = larger;
        }
        let x = total / sum;
        mean[c] = x;
        pooled[(row, c)] = x;
    }
    let squares = tile_sum([d], |c| mean[c] * mean[c]);
    let inverse = rsqrt(squares * (1.0 / d as f32) + eps);
    let y = shared::<F32, 1>([d]);
    for c in parallel([d]) {
        y[c] = mean[c] * inverse * weight[c];
    }
    if kept > 0 {
        for c in parallel([kept]) {
            normed[(row, c)] = y[c];
        }
    }
    if half > 0 {
        for j in parallel([2 * half]) {
            let (pair, partner) = (j / 2, kept + j + 1 - (j % 2) * 2);
            let s = select(j % 2 == 0, -sin[(row, pair)], sin[(row, pair)]);
            normed[(row, kept + j)] = y[kept + j] * cos[(row, pair)] + y[partner] * s;
        }
    }
}

/// The means of whole chunks, in f64. `kv` and `score` are `[n, wide]`, `ape` is `[ratio, wide]`.
pub fn reference(kv: &[f64], score: &[f64], ape: &[f64], [n, wide, d]: [usize; 3], ratio: usize) -> Vec<f64> {
    let mut means = vec![];
    for row in 0..n / ratio {
        for c in 0..d {
            // Positions of the window with the column each counts with.
            let before = if wide > d { (row * ratio).saturating_sub(ratio)..row * ratio } else { 0..0 };
            let window: Vec<(usize, usize)> =
                before.map(|p| (p, c)).chain((row * ratio..(row + 1) * ratio).map(|p| (p, c + wide - d))).collect();
            let scores = || window.iter().map(|&(p, c)| score[p * wide + c] + ape[p % ratio * wide + c]);
            let top = scores().fold(f64::NEG_INFINITY, f64::max);
            let norm: f64 = scores().map(|s| (s - top).exp()).sum();
            means.push(window.iter().zip(scores()).map(|(&(p, c), s)| (s - top).exp() / norm * kv[p * wide + c]).sum());
        }
    }
    means
}

/// What a problem asks for.
struct Shape {
    n: usize,
    wide: usize,
    d: usize,
    half: usize,
    ratio: usize,
    eps: f64,
}

impl Shape {
    fn rows(&self) -> usize {
        self.n / self.ratio
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct KvCompressor;

const OP: &str = "kv_compressor";

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let kv = p::input(OP, specs, "kv", &[Data::F32], 2)?;
    p::shaped(OP, p::input(OP, specs, "score", &[Data::F32], 2)?, &kv.shape, "as `kv`")?;
    let (n, wide) = (kv.shape[0], kv.shape[1]);
    let overlap = p::flag(OP, params, "overlap", false)?;
    let d = if overlap { wide / 2 } else { wide };
    if p::count(OP, params, "head_dim", Some(d.max(1)))? != d || overlap && wide % 2 != 0 {
        let message = format!("rows of {wide}; expected the parameter `head_dim`, or twice as many with overlap");
        return Err(p::refuse(OP, message));
    }
    let ratio = p::count(OP, params, "ratio", None)?;
    p::shaped(OP, p::input(OP, specs, "ape", &[Data::F32], 2)?, &[ratio, wide], "one row a position of a chunk")?;
    p::shaped(OP, p::input(OP, specs, "norm_weight", &[Data::F32], 1)?, &[d], "one entry a channel")?;
    let cos = p::input(OP, specs, "cos", &[Data::F32], 2)?;
    let half = cos.shape[1];
    p::shaped(OP, cos, &[n / ratio, half], "one row a whole chunk")?;
    p::shaped(OP, p::input(OP, specs, "sin", &[Data::F32], 2)?, &cos.shape, "as `cos`")?;
    p::word(OP, params, "rope_position", &["first position of the current chunk"])?;
    if p::number(OP, params, "rope_dim", Some(2.0 * half as f64))? != 2.0 * half as f64 || 2 * half > d {
        return Err(p::refuse(
            OP,
            format!("tables of {half} pairs; expected half of `rope_dim`, of {d} channels at most"),
        ));
    }
    if p::number(OP, params, "start_pos", Some(0.0))? != 0.0 {
        return Err(p::refuse(OP, "parameter `start_pos` is not 0; expected all positions from the first on"));
    }
    Ok(Shape { n, wide, d, half, ratio, eps: p::number(OP, params, "eps", Some(1e-6))? })
}

impl OpSpec for KvCompressor {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("kv_compressor"),
            family: "attention",
            formula: "rope(rmsnorm(Σ_j softmax_j(score + ape) · kv)) over the window of every chunk of positions",
            source: "DeepSeek-V4, 2026",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kv_compressor::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        Ok(["pooled", "normed_rope"].map(|name| p::spec(name, Data::F32, &[s.rows(), s.d])).into())
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kv_compressor::kernel();
        let mut config = p::choose(configs, &kernel, &[("n", s.n), ("d", s.d), ("ratio", s.ratio)]);
        p::set(&mut config, "ratio", ConfigValue::Int(s.ratio));
        p::set(&mut config, "overlap", ConfigValue::Bool(s.wide > s.d));
        let names = ["kv", "score", "ape", "norm_weight", "cos", "sin", "pooled", "normed_rope"];
        let mut args = names.map(|name| p::arg(OP, problem, name)).into_iter().collect::<Result<Vec<_>, _>>()?;
        args.push(Arg::Scalar(Literal::f32(s.eps as f32)));
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [kv, score, ape, weight, cos, sin] =
            ["kv", "score", "ape", "norm_weight", "cos", "sin"].map(|name| p::numbers(OP, problem, name));
        let pooled = reference(&kv?, &score?, &ape?, [s.n, s.wide, s.d], s.ratio);
        let normed = crate::norm::rmsnorm::reference(&pooled, Some(&weight?), s.d, s.eps);
        let turned = rope_partial::reference(&normed, &cos?, &sin?, [s.rows(), 1, s.d], s.half, (true, false));
        let shape = [s.rows(), s.d];
        Ok([("pooled".into(), f32_tensor(&shape, &pooled)), ("normed_rope".into(), f32_tensor(&shape, &turned))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        // With overlap a chunk reads the one before it.
        let Some(s) = shape_of(specs, params).ok().filter(|s| s.wide == s.d) else { return vec![] };
        let tensors = [("kv", s.ratio), ("score", s.ratio), ("cos", 1), ("sin", 1), ("pooled", 1), ("normed_rope", 1)];
        vec![p::split("chunks", s.rows(), 1, &tensors.map(|(name, span)| (name, 0, span)))]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "pooled" => Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-5, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 1e-5, rel: 1e-4, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [n, d, ratio, rope]: [usize; 4], overlap: bool, spread: f64| {
            let wide = if overlap { 2 * d } else { d };
            let f32 = |name: &str, shape: &[usize], fill: Fill| p::filled(name, Data::F32, shape, fill);
            let inputs = vec![
                // Means of numbers of one sign: where terms cancel, a relative bound says nothing.
                f32("kv", &[n, wide], Fill::Uniform(0.5, 2.0)),
                f32("score", &[n, wide], Fill::Normal(spread)),
                f32("ape", &[ratio, wide], Fill::Normal(0.5)),
                f32("norm_weight", &[d], Fill::Uniform(0.5, 1.5)),
                f32("cos", &[n / ratio, rope / 2], Fill::Uniform(0.5, 1.0)),
                f32("sin", &[n / ratio, rope / 2], Fill::Uniform(0.1, 0.4)),
            ];
            let params = [("ratio", ParamValue::Int(ratio as i64)), ("overlap", ParamValue::Bool(overlap))];
            p::case(id, inputs, &params)
        };
        vec![
            make("no_positions", [0, 64, 4, 16], true, 1.0),
            make("less_than_a_chunk", [3, 64, 4, 16], true, 1.0),
            make("n39_d512_r4_overlap", [39, 512, 4, 64], true, 1.0),
            make("n260_d128_r128", [260, 128, 128, 64], false, 1.0),
            make("n11_d40_r3_all_rotated", [11, 40, 3, 40], true, 1.0),
            make("n5_d8_r1_none_rotated", [5, 8, 1, 0], false, 1.0),
            make("scores_far_apart", [16, 64, 4, 16], true, 1e4),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "d", "ratio"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 3]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[16384, 512, 4], [16384, 512, 128], [16384, 128, 4]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [n, d, ratio] = p::bench_sizes(OP, shape, ["tokens", "d", "ratio"])?;
        if ratio == 0 || d < 64 {
            return Err(p::refuse(OP, format!("a ratio of {ratio} and {d} channels; expected at least 1 and 64")));
        }
        let wide = if ratio == 4 { 2 * d } else { d };
        let f32 = |name: &str, shape: &[usize]| p::filled(name, Data::F32, shape, Fill::Uniform(0.5, 1.0));
        let table = [n / ratio, 32];
        let inputs = vec![
            f32("kv", &[n, wide]),
            f32("score", &[n, wide]),
            f32("ape", &[ratio, wide]),
            f32("norm_weight", &[d]),
            f32("cos", &table),
            f32("sin", &table),
        ];
        let params = [("ratio", ParamValue::Int(ratio as i64)), ("overlap", ParamValue::Bool(ratio == 4))];
        Ok(p::case(format!("tokens{n}_d{d}_ratio{ratio}"), inputs, &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
        Cost { flops: 8.0 * p::product(&[s.n, s.wide]), bytes: p::bytes(&tensors) }
    }
}
