//! What a layer reads of the streams, and the weights for what it gives back.
//!
//! With `r` the streams of a token one after another: `mixes = (r · (fn∘w)ᵀ) · (mean(r²) + rms_eps)^-½`, `z = mixes · s + base`
//! where `s` is `scale[0]` for the first `m` columns, `scale[1]` for the next `m`, `scale[2]` for the last `m²`;
//! `pre = σ(z) + pre_eps`, `post = σ(z) · post_mult`, `comb = sinkhorn(z as an m by m matrix)`, and
//! `layer_input = Σ_i pre_i · residual_i`.
//!
//! *Tensors*: `residual` `[t, m, h]` bf16 or f32; `fn` `[m(m+2), m·h]` f32; `scale` `[3]`, `base` `[m(m+2)]` f32; `norm_weight` `[m·h]`
//! f32, may be left out; `mixes` `[t, m(m+2)]`, `pre_mix`, `post_mix` `[t, m]`, `comb_mix` `[t, m, m]` f32; `layer_input` `[t, h]`
//! as `residual`.
//! *Cost*: the streams are read twice, `4·t·m·h` bytes: first for their weights, then to be mixed by them.
//! *Numerics*: the streams are bf16 as they are, and `fn∘w` is cut into a bf16 number and the bf16 number nearest to what is
//! left, so two bf16 products with f32 sums give about 16 bits of each factor. Streams of f32 are multiplied without any
//! rounding: nothing is left for the second product. Sums along `m·h` are cut into `splits` parts
//! at fixed places and added in ascending order.
//! *Schedule*: two launches. The first is a thin product, split along its sum, with the squares beside it; the second makes
//! the weights of one token a block, mixes with them, and lets one thread end with the `m` by `m` matrix.
//! *Source*: DeepSeek-V4's mHC.

use super::mixes::{gate, reference_gate, reference_sinkhorn, sinkhorn, sum};
use super::post::STREAMS;
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block of the product.
#[derive(KernelConfig, Clone, Debug)]
pub struct ProductConfig {
    /// Tokens of a block.
    #[tune(64, 32, 128)]
    pub rows: usize,
    /// Columns of the streams in a step.
    #[numerics]
    #[tune(64, 128)]
    pub bk: usize,
    /// Parts of the sum.
    #[numerics]
    #[tune(4, 1, 2, 8, 16)]
    pub splits: usize,
    /// Steps loaded ahead, and the current one.
    #[tune(2, 1, 3)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

/// Parts of `residual · (f∘weight)ᵀ` and of the sums of squares.
#[kernel(dims(n: fixed), deterministic, batch_invariant(t))]
pub fn mhc_mix_product<T: Float>(
    cfg: &ProductConfig,
    residual: In![T; t, k; strides(_, 1)],
    f: In![F32; n, k],
    weight: Option<In![F32; k]>,
    parts: Out![F32; splits, t, n],
    squares: Out![F32; splits, t],
) where
    (T, T, F32): Mma,
{
    let (rows, bk) = (cfg.rows, cfg.bk);
    let columns = host!(n.next_multiple_of(8));
    let (ti, si) = grid((t.div_ceil(rows), splits));
    let t0 = ti * rows;
    warps(cfg.warps);

    let r_s = shared::<T, 2>([rows, bk]);
    let f_s = shared::<F32, 2>([columns, bk]);
    let near = shared::<T, 2>([columns, bk]);
    let rest = shared::<T, 2>([columns, bk]);
    let acc = frag::<F32, 2>([rows, columns]);
    let square = frag::<F32, 1>([rows]);
    zero(acc);
    zero(square);
    for ki in pipeline(split_k(0..k.div_ceil(bk), cfg.splits, 1, si), cfg.stages) {
        copy(residual.at((t0, ki * bk)), r_s);
        copy(f.at((0, ki * bk)), f_s);
        for (i, j) in parallel([columns, bk]) {
            let x = f_s[(i, j)];
            let x = if let Some(w) = weight { x * w[ki * bk + j] } else { x };
            let head = x.to::<T>();
            near[(i, j)] = head;
            rest[(i, j)] = (x - head.to::<F32>()).to::<T>();
        }
        gemm(r_s, near.t(), acc);
        gemm(r_s, rest.t(), acc);
        let products = frag::<F32, 2>([rows, bk]);
        for (i, j) in parallel([rows, bk]) {
            let x = r_s[(i, j)].to::<F32>();
            products[(i, j)] = x * x;
        }
        let part = reduce_sum(products, 1);
        for i in parallel([rows]) {
            square[i] = square[i] + part[i];
        }
    }
    for (i, j) in parallel([rows, columns]) {
        parts[(si, t0 + i, j)] = acc[(i, j)];
    }
    for i in parallel([rows]) {
        squares[(si, t0 + i)] = square[i];
    }
}

/// Work of a block of the mixture.
#[derive(KernelConfig, Clone, Debug)]
pub struct MixConfig {
    /// Warps of a block.
    #[tune(8, 4)]
    pub mix_warps: usize,
    /// Times the columns of `comb` are divided.
    #[default(10)]
    pub iters: usize,
}

/// The weights of one token, and the mixture of its streams.
#[kernel(dims(m: fixed, h: fixed, n: fixed), deterministic, batch_invariant(t))]
pub fn mhc_mix_streams<T: Float>(
    cfg: &MixConfig,
    residual: In![T; t, m, h; strides(_, _, 1)],
    parts: In![F32; splits, t, n],
    squares: In![F32; splits, t],
    scale: In![F32; 3],
    base: In![F32; n],
    mixes: Out![F32; t, n],
    pre: Out![F32; t, m],
    post: Out![F32; t, m],
    comb: Out![F32; t, m * m],
    layer_input: Out![T; t, h],
    rms_eps: Scalar![F32],
    pre_eps: Scalar![F32],
    post_mult: Scalar![F32],
    sinkhorn_eps: Scalar![F32],
) {
    let row = grid(t);
    warps(cfg.mix_warps);

    let z = shared::<F32, 1>([n]);
    for j in parallel([n]) {
        let mut dot = 0.0;
        let mut square = 0.0;
        for s in 0..splits {
            dot += parts[(s, row, j)];
            square += squares[(s, row)];
        }
        let mix = dot * rsqrt(square * (1.0 / (m * h) as f32) + rms_eps);
        mixes[(row, j)] = mix;
        let factor = select(j < m, scale[0], select(j < 2 * m, scale[1], scale[2]));
        let logit = mix * factor + base[j];
        let open = gate(logit);
        z[j] = select(j < m, open + pre_eps, select(j < 2 * m, open * post_mult, logit));
    }
    for j in parallel([m]) {
        pre[(row, j)] = z[j];
        post[(row, j)] = z[m + j];
    }
    let mut weights = host!(Vec::new());
    for i in unroll(0..m) {
        weights.push(z[i]);
    }
    for c in parallel([h]) {
        let mut terms = host!(Vec::new());
        for i in unroll(0..m) {
            terms.push(weights[i] * residual[(row, i, c)].to::<F32>());
        }
        layer_input[(row, c)] = sum(&terms).to::<T>();
    }
    // Last, so that all other threads are through.
    for one in parallel([1]) {
        let mut logits = host!(Vec::new());
        for j in unroll(2 * m..n) {
            logits.push(z[one + j]);
        }
        let result = sinkhorn(&logits, m, cfg.iters, sinkhorn_eps);
        for (j, &value) in unroll(result.iter().enumerate()) {
            comb[(row, one + j)] = value;
        }
    }
}

fn kernels_for(residual: DType) -> [Arc<dyn KernelDef>; 2] {
    if residual == DType::F32 {
        [mhc_mix_product::kernel::<F32>(), mhc_mix_streams::kernel::<F32>()]
    } else {
        [mhc_mix_product::kernel::<Bf16>(), mhc_mix_streams::kernel::<Bf16>()]
    }
}

/// What a problem asks for.
struct Shape {
    dtype: DType,
    t: usize,
    m: usize,
    h: usize,
    iters: usize,
    rms_eps: f64,
    pre_eps: f64,
    post_mult: f64,
    sinkhorn_eps: f64,
}

impl Shape {
    /// Columns of the mixes.
    fn n(&self) -> usize {
        self.m * (self.m + 2)
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhcPre;

const OP: &str = "mhc_pre";

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let residual = p::input(OP, specs, "residual", &[DType::Bf16, DType::F32], 3)?;
    let &[t, m, h] = residual.shape.as_slice() else { return Err(p::refuse(OP, "`residual` has three axes")) };
    if !(1..=STREAMS).contains(&m) || h == 0 {
        return Err(p::refuse(OP, format!("{m} streams of {h} columns; expected 1 to {STREAMS} streams with columns")));
    }
    let n = m * (m + 2);
    p::shaped(OP, p::input(OP, specs, "fn", &[DType::F32], 2)?, &[n, m * h], "m(m+2) rows over all streams")?;
    p::shaped(OP, p::input(OP, specs, "scale", &[DType::F32], 1)?, &[3], "one factor for each of pre, post and comb")?;
    p::shaped(OP, p::input(OP, specs, "base", &[DType::F32], 1)?, &[n], "one entry a mix")?;
    if let Some(w) = p::optional_input(OP, specs, "norm_weight", &[DType::F32], 1)? {
        p::shaped(OP, w, &[m * h], "one entry a column of all streams")?;
    }
    let number = |name: &str, default: f64| p::number(OP, params, name, Some(default));
    Ok(Shape {
        dtype: residual.dtype,
        t,
        m,
        h,
        iters: p::count(OP, params, "sinkhorn_iters", Some(10))?,
        rms_eps: number("rms_eps", 1e-6)?,
        pre_eps: number("pre_eps", 1e-6)?,
        post_mult: number("post_mult", 1.0)?,
        sinkhorn_eps: number("sinkhorn_eps", 1e-6)?,
    })
}

impl OpSpec for MhcPre {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mhc_pre"),
            family: "hyper",
            formula: "pre, post, comb = gates and sinkhorn of rmsnorm(r)·(fn∘w)ᵀ·scale + base; layer_input = Σ_i pre_i · r_i",
            source: "DeepSeek-V4's mHC",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [DType::Bf16, DType::F32].into_iter().flat_map(kernels_for).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        Ok(vec![
            p::spec("mixes", DType::F32, &[s.t, s.n()]),
            p::spec("pre_mix", DType::F32, &[s.t, s.m]),
            p::spec("post_mix", DType::F32, &[s.t, s.m]),
            p::spec("comb_mix", DType::F32, &[s.t, s.m, s.m]),
            p::spec("layer_input", s.dtype, &[s.t, s.h]),
        ])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let [product, mix] = kernels_for(s.dtype);
        let dims = [("t", s.t), ("m", s.m), ("h", s.h), ("k", s.m * s.h), ("n", s.n())];
        let product_config = p::choose(configs, &product, &dims);
        let mut mix_config = p::choose(configs, &mix, &dims);
        p::set(&mut mix_config, "iters", ConfigValue::Int(s.iters));
        let splits = match product_config.0.get("splits") {
            Some(ConfigValue::Int(splits)) => *splits,
            _ => 1,
        };
        let residual = p::view(OP, problem, "residual")?;
        // The streams of a token one after another, as long as they follow each other in memory.
        if s.t > 0 && (residual.strides[1] != s.h && s.m > 1 || residual.strides[2] != 1 && s.h > 1) {
            let message = format!("`residual` has strides {:?}; the streams of a token must follow", residual.strides);
            return Err(p::refuse(OP, format!("{message} each other in memory")));
        }
        let joined =
            TensorView { shape: vec![s.t, s.m * s.h], strides: vec![residual.strides[0], 1], ..residual.clone() };
        let comb = p::flat(OP, "comb_mix", p::view(OP, problem, "comb_mix")?)?;
        let comb = TensorView { shape: vec![s.t, s.m * s.m], strides: vec![s.m * s.m, 1], ..comb };
        let squares_at = (splits * s.t * s.n() * 4).next_multiple_of(16);
        let place =
            |shape: Vec<usize>, offset_bytes| Arg::Workspace { index: 0, dtype: DType::F32, shape, offset_bytes };
        let (parts, squares) = (place(vec![splits, s.t, s.n()], 0), place(vec![splits, s.t], squares_at));
        let numbers = [s.rms_eps, s.pre_eps, s.post_mult, s.sinkhorn_eps];
        let first = vec![
            Arg::Tensor(joined),
            p::arg(OP, problem, "fn")?,
            p::optional_arg(problem, "norm_weight"),
            parts.clone(),
            squares.clone(),
        ];
        let mut second = vec![Arg::Tensor(residual), parts, squares];
        for name in ["scale", "base", "mixes", "pre_mix", "post_mix"] {
            second.push(p::arg(OP, problem, name)?);
        }
        second.extend([Arg::Tensor(comb), p::arg(OP, problem, "layer_input")?]);
        second.extend(numbers.map(|x| Arg::Scalar(Literal::f32(x as f32))));
        let steps = vec![
            Launch { kernel: product, config: product_config, args: first },
            Launch { kernel: mix, config: mix_config, args: second },
        ];
        Ok(Plan { steps, workspaces: vec![squares_at + splits * s.t * 4] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (n, k) = (s.n(), s.m * s.h);
        let (residual, f) = (p::numbers(OP, problem, "residual")?, p::numbers(OP, problem, "fn")?);
        let (scale, base) = (p::numbers(OP, problem, "scale")?, p::numbers(OP, problem, "base")?);
        let weight = match problem.tensors.get("norm_weight") {
            Some(w) => w.to_f64(),
            None => vec![1.0; k],
        };
        let (mut mixes, mut pre, mut post, mut comb, mut input) = (vec![], vec![], vec![], vec![], vec![]);
        for row in residual.chunks(k) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / k as f64;
            let dot = |j: usize| (0..k).map(|c| row[c] * f[j * k + c] * weight[c]).sum::<f64>();
            let mix: Vec<f64> = (0..n).map(|j| dot(j) / (mean + s.rms_eps).sqrt()).collect();
            let z: Vec<f64> =
                (0..n).map(|j| mix[j] * scale[(j >= s.m) as usize + (j >= 2 * s.m) as usize] + base[j]).collect();
            let gates: Vec<f64> = z[..s.m].iter().map(|&x| reference_gate(x) + s.pre_eps).collect();
            input.extend((0..s.h).map(|c| (0..s.m).map(|i| gates[i] * row[i * s.h + c]).sum::<f64>()));
            pre.extend(gates);
            post.extend(z[s.m..2 * s.m].iter().map(|&x| reference_gate(x) * s.post_mult));
            comb.extend(reference_sinkhorn(&z[2 * s.m..], s.m, s.iters, s.sinkhorn_eps));
            mixes.extend(mix);
        }
        Ok([
            ("mixes".into(), f32_tensor(&[s.t, n], &mixes)),
            ("pre_mix".into(), f32_tensor(&[s.t, s.m], &pre)),
            ("post_mix".into(), f32_tensor(&[s.t, s.m], &post)),
            ("comb_mix".into(), f32_tensor(&[s.t, s.m, s.m], &comb)),
            ("layer_input".into(), f32_tensor(&[s.t, s.h], &input)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let tensors = ["residual", "mixes", "pre_mix", "post_mix", "comb_mix", "layer_input"].map(|name| (name, 0, 1));
        vec![p::split("tokens", s.t, 1, &tensors)]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            // 16 bits of every factor: 2^-17 of the sum of absolute products, which is below 8 in the declared cases.
            "mixes" => Tolerance::AllCloseOr { abs: 1e-4, rel: 1e-4, cos_diff: None },
            "layer_input" => Tolerance::AllCloseOr { abs: 1e-3, rel: 1.01 / 128.0, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 1e-5, rel: 1e-3, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, m, h]: [usize; 3], fill: Fill, weighted: bool, post_mult: f64, iters: i64| {
            let n = m * (m + 2);
            let mut inputs = vec![
                p::filled("residual", DType::Bf16, &[t, m, h], fill),
                p::filled("fn", DType::F32, &[n, m * h], Fill::Normal(0.02)),
                p::filled("scale", DType::F32, &[3], Fill::Values(vec![0.5, -0.3, 0.7])),
                p::filled("base", DType::F32, &[n], Fill::Normal(0.3)),
            ];
            if weighted {
                inputs.push(p::filled("norm_weight", DType::F32, &[m * h], Fill::Uniform(0.8, 1.2)));
            }
            let params = [("post_mult", ParamValue::Float(post_mult)), ("sinkhorn_iters", ParamValue::Int(iters))];
            p::case(id, inputs, &params)
        };
        vec![
            make("no_tokens", [0, 4, 64], Fill::Normal(1.0), true, 2.0, 20),
            make("t3_h1280", [3, 4, 1280], Fill::Normal(1.0), true, 2.0, 20),
            make("t70_h24", [70, 4, 24], Fill::Normal(1.0), false, 1.0, 10),
            make("t5_m2_h50_odd", [5, 2, 50], Fill::Normal(1.0), true, 1.0, 3),
            make("t2_m1_h8", [2, 1, 8], Fill::Normal(1.0), false, 1.0, 1),
            make("zeros", [2, 4, 64], Fill::Constant(0.0), true, 2.0, 20),
            make("huge", [2, 4, 64], Fill::Normal(1e16), true, 2.0, 20),
            {
                let mut case = make("t3_m4_h40_f32", [3, 4, 40], Fill::Normal(1.0), false, 2.0, 20);
                case.inputs[0].tensor.dtype = DType::F32;
                case
            },
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |(tokens, hidden)| vec![("tokens".to_string(), tokens), ("hidden".to_string(), hidden)];
        [(4096, 4096), (4096, 7168), (16384, 7168)].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, h] = p::bench_sizes(OP, shape, ["tokens", "hidden"])?;
        let inputs = vec![
            p::filled("residual", DType::Bf16, &[t, 4, h], Fill::Normal(1.0)),
            p::filled("fn", DType::F32, &[24, 4 * h], Fill::Normal(0.02)),
            p::filled("scale", DType::F32, &[3], Fill::Values(vec![0.5, -0.3, 0.7])),
            p::filled("base", DType::F32, &[24], Fill::Normal(0.3)),
        ];
        Ok(p::case(format!("tokens{t}_hidden{h}"), inputs, &[("sinkhorn_iters", ParamValue::Int(20))]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
        Cost { flops: p::product(&[2, s.t, s.m, s.h, s.n() + 2]), bytes: p::bytes(&tensors) }
    }
}
