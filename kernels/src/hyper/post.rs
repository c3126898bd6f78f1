//! What a layer gives back to the streams: `y[t, j, c] = post[t, j] · x[t, c] + Σ_i comb[t, i, j] · residual[t, i, c]`.
//!
//! *Tensors*: `x` `[t, h]` bf16 or f32; `residual`, `y` `[t, m, h]` as `x`; `post_mix` `[t, m]` f32; `comb_mix` `[t, m, m]` f32, its
//! first index the stream that is read.
//! *Cost*: `2·t·h·(2m + 1)` bytes moved, memory bound.
//! *Numerics*: f32, the layer's term first, then the streams in ascending order; one rounding.
//! *Schedule*: a piece of a row a block; a thread reads its columns of all streams and writes them to all streams.
//! *Source*: DeepSeek-V4's mHC.

use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, Split, TensorSpec,
    Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct PostConfig {
    /// Columns of a block.
    #[tune(2048, 1024, 4096)]
    pub columns: usize,
    /// Warps of a block.
    #[tune(8, 4)]
    pub warps: usize,
}

/// Mixes a piece of a row.
#[kernel(dims(m: fixed, h: fixed), deterministic, batch_invariant(t))]
pub fn mhc_post<T: Float>(
    cfg: &PostConfig,
    x: In![T; t, h; strides(_, 1)],
    residual: In![T; t, m, h; strides(_, _, 1)],
    post: In![F32; t, m],
    comb: In![F32; t, m, m],
    y: Out![T; t, m, h],
) {
    let (row, ci) = grid((t, h.div_ceil(cfg.columns)));
    let c0 = ci * cfg.columns;
    warps(cfg.warps);
    let mut own = host!(Vec::new());
    let mut mixed = host!(Vec::new());
    for j in unroll(0..m) {
        own.push(post[(row, j)]);
        for i in unroll(0..m) {
            mixed.push(comb[(row, i, j)]);
        }
    }
    for c in parallel([cfg.columns]) {
        let layer = x[(row, c0 + c)].to::<F32>();
        let mut streams = host!(Vec::new());
        for i in unroll(0..m) {
            streams.push(residual[(row, i, c0 + c)].to::<F32>());
        }
        for j in unroll(0..m) {
            let sum = host!((0..m).fold(own[j] * layer, |sum, i| sum + mixed[j * m + i] * streams[i]));
            y[(row, j, c0 + c)] = sum.to::<T>();
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhcPost;

const OP: &str = "mhc_post";
/// Streams at most: the weights of a token stay in registers.
pub(crate) const STREAMS: usize = 8;

fn kernel_for(x: DType) -> Arc<dyn KernelDef> {
    if x == DType::F32 { mhc_post::kernel::<F32>() } else { mhc_post::kernel::<Bf16>() }
}

/// `[t, m, h]`.
fn sizes(specs: &p::Specs) -> Result<[usize; 3], OpError> {
    let residual = p::input(OP, specs, "residual", &[DType::Bf16, DType::F32], 3)?;
    let &[t, m, h] = residual.shape.as_slice() else { return Err(p::refuse(OP, "`residual` has three axes")) };
    if !(1..=STREAMS).contains(&m) || h == 0 {
        return Err(p::refuse(OP, format!("{m} streams of {h} columns; expected 1 to {STREAMS} streams with columns")));
    }
    p::shaped(OP, p::input(OP, specs, "x", &[residual.dtype], 2)?, &[t, h], "one stream of `residual`")?;
    p::shaped(OP, p::input(OP, specs, "post_mix", &[DType::F32], 2)?, &[t, m], "one weight a stream")?;
    p::shaped(OP, p::input(OP, specs, "comb_mix", &[DType::F32], 3)?, &[t, m, m], "one weight a pair of streams")?;
    Ok([t, m, h])
}

impl OpSpec for MhcPost {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mhc_post"),
            family: "hyper",
            formula: "y[t, j] = post[t, j] · x[t] + Σ_i comb[t, i, j] · residual[t, i]",
            source: "DeepSeek-V4's mHC",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [DType::Bf16, DType::F32].map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let shape = sizes(specs)?;
        Ok(vec![p::spec("y", specs["residual"].dtype, &shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let [t, m, h] = sizes(&specs)?;
        let kernel = kernel_for(specs["residual"].dtype);
        let mut config = p::choose(configs, &kernel, &[("t", t), ("m", m), ("h", h)]);
        p::at_most(&mut config, "columns", h.next_multiple_of(8));
        let names = ["x", "residual", "post_mix", "comb_mix", "y"];
        let args = names.map(|name| p::arg(OP, problem, name)).into_iter().collect::<Result<_, _>>()?;
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let [t, m, h] = sizes(&p::host_specs(self, problem)?)?;
        let [x, residual, post, comb] =
            ["x", "residual", "post_mix", "comb_mix"].map(|name| p::numbers(OP, problem, name));
        let (x, residual, post, comb) = (x?, residual?, post?, comb?);
        let mut y = vec![0.0; t * m * h];
        for row in 0..t {
            for j in 0..m {
                for c in 0..h {
                    let streams = (0..m).map(|i| comb[(row * m + i) * m + j] * residual[(row * m + i) * h + c]);
                    y[(row * m + j) * h + c] = post[row * m + j] * x[row * h + c] + streams.sum::<f64>();
                }
            }
        }
        Ok([("y".into(), f32_tensor(&[t, m, h], &y))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Vec<Split> {
        let Ok([t, ..]) = sizes(specs) else { return vec![] };
        let tensors = ["x", "residual", "post_mix", "comb_mix", "y"].map(|name| (name, 0, 1));
        vec![p::split("tokens", t, 1, &tensors)]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        // One bf16 rounding is 2^-8; where terms cancel, f32 sums of numbers near 1 leave about 1e-6.
        Tolerance::AllCloseOr { abs: 1e-5, rel: 1.01 / 128.0, cos_diff: None }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, m, h]: [usize; 3], fill: Fill| {
            let inputs = vec![
                p::filled("x", DType::Bf16, &[t, h], fill.clone()),
                p::filled("residual", DType::Bf16, &[t, m, h], fill),
                p::filled("post_mix", DType::F32, &[t, m], Fill::Uniform(0.0, 2.0)),
                p::filled("comb_mix", DType::F32, &[t, m, m], Fill::Uniform(0.0, 0.5)),
            ];
            p::case(id, inputs, &[])
        };
        vec![
            make("no_tokens", [0, 4, 128], Fill::Normal(1.0)),
            make("t3_h2560", [3, 4, 2560], Fill::Normal(1.0)),
            make("t5_m3_h77_odd", [5, 3, 77], Fill::Normal(1.0)),
            make("t2_m1_h8", [2, 1, 8], Fill::Normal(1.0)),
            make("zeros", [2, 4, 64], Fill::Constant(0.0)),
            make("huge", [2, 4, 64], Fill::Normal(1e30)),
            {
                let mut case = make("t3_m4_h40_f32", [3, 4, 40], Fill::Normal(1.0));
                for input in case.inputs.iter_mut().take(2) {
                    input.tensor.dtype = DType::F32;
                }
                case
            },
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        p::token_shapes()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, h] = p::bench_sizes(OP, shape, ["tokens", "hidden"])?;
        let inputs = vec![
            p::filled("x", DType::Bf16, &[t, h], Fill::Normal(1.0)),
            p::filled("residual", DType::Bf16, &[t, 4, h], Fill::Normal(1.0)),
            p::filled("post_mix", DType::F32, &[t, 4], Fill::Uniform(0.0, 2.0)),
            p::filled("comb_mix", DType::F32, &[t, 4, 4], Fill::Uniform(0.0, 0.5)),
        ];
        Ok(p::case(format!("tokens{t}_hidden{h}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok([_, m, _]) = sizes(specs) else { return Cost::default() };
        p::moved(self, specs, params, (2 * m * (m + 1)) as f64)
    }
}
