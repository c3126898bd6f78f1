//! bf16 product: `d[m, n] = Σ_k a[m, k]·b[n, k] + c[m, n]`.
//!
//! *Tensors*: `a` `[m, k]`, `b` `[n, k]` bf16; `c`, `d` `[m, n]` bf16 or f32, `c` may be left out or be `d`.
//! *Cost*: `2mnk` operations, `2(mk + nk)` bytes and the output; compute bound for many rows, bound by `b` for few.
//! *Numerics*: products and sums in f32 in ascending K where the target's matrix unit keeps that order; `c` is added in
//! f32 before the one rounding. K = 0 gives `c` or 0.
//! *Schedule*: a tile of the output a block, tiles in panels; operands of a step in shared memory, copied ahead.
//! *Source*: elementary.

use crate::gemm::addend;
use crate::gemm::fp8::{out_dtype, reference};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel};
use kiln_codegen::schedule::{Options, Reason, Schedule, attach, automatic};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tile of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct GemmBf16Config {
    /// Rows of a tile.
    #[tune(64, 128, 256)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 128, 192)]
    pub bn: usize,
    /// K of a step; it does not change the sums.
    #[tune(64, 32)]
    pub bk: usize,
    /// Stages of the copies.
    #[tune(3, 4, 6)]
    pub stages: usize,
    /// Rows of tiles in a panel.
    #[tune(8, 1)]
    pub panel: usize,
    /// Blocks of a cluster, where the target has clusters: neighbours bring one operand for each other.
    #[tune(1, 2)]
    pub cluster: usize,
    /// Neighbours share rows of `a`, else rows of `b`.
    #[tune(true, false)]
    pub share_a: bool,
    /// Steps of K printed in a row.
    #[tune(4, 8)]
    pub unroll: usize,
    /// Add what `d` holds.
    #[default(false)]
    pub in_place: bool,
}

/// Multiplies.
#[kernel(deterministic, batch_invariant(m))]
pub fn gemm_bf16<O: Float>(
    cfg: &GemmBf16Config,
    a: In![Bf16; m, k; strides(lda, 1)],
    b: In![Bf16; n, k; strides(ldb, 1)],
    c: Option<In![O; m, n; strides(ldc, 1)]>,
    d: InOut![O; m, n; strides(ldd, 1)],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);

    #[label(tiles)]
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(bn)), Raster::panels(cfg.panel)) {
        let a_s = shared::<Bf16, 2>([bm, bk]);
        let b_s = shared::<Bf16, 2>([bn, bk]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);

        #[label(k_loop)]
        for ki in pipeline(0..k.div_ceil(bk), cfg.stages) {
            #[label(load_a)]
            copy(a.at((mi * bm, ki * bk)), a_s);
            #[label(load_b)]
            copy(b.at((ni * bn, ki * bk)), b_s);
            #[label(mma)]
            gemm(a_s, b_s.t(), acc);
        }

        #[label(store)]
        for (i, j) in parallel([bm, bn]) {
            let (row, column) = (mi * bm + i, ni * bn + j);
            let x = acc[(i, j)];
            let x = if let Some(c) = c {
                x + c[(row, column)].to::<F32>()
            } else if cfg.in_place {
                x + d[(row, column)].to::<F32>()
            } else {
                x
            };
            d[(row, column)] = x.to::<O>();
        }
    }
}

/// What a problem asks for.
struct Product {
    sizes: [usize; 3],
    out: DType,
    accumulate: bool,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmBf16;

const OP: &str = "gemm_bf16";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

/// Warp groups that multiply and one thread that copies, on targets that have both.
fn schedule(k: &Kernel, config: &Config) -> Result<Schedule, Reason> {
    let c = GemmBf16Config::from_config(config).map_err(|e| e.to_string())?;
    let caps = Target::Sm90a.caps().ok_or("no limits are known")?;
    let options =
        Options { stages: c.stages, cluster: c.cluster, share_left: c.share_a, unroll: c.unroll, ..Options::default() };
    automatic(k, &caps, &options)
}

fn kernel_for(out: DType) -> Arc<dyn KernelDef> {
    let plain: Arc<dyn KernelDef> =
        if out == DType::F32 { gemm_bf16::kernel::<F32>() } else { gemm_bf16::kernel::<Bf16>() };
    attach(plain, Target::Sm90a, schedule)
}

/// Reads a problem's inputs and parameters.
fn product_of(specs: &p::Specs, params: &Params) -> Result<Product, OpError> {
    let a = p::input(OP, specs, "a", &[DType::Bf16], 2)?;
    let b = p::input(OP, specs, "b", &[DType::Bf16], 2)?;
    let (m, n, k) = (a.shape[0], b.shape[0], a.shape[1]);
    p::shaped(OP, b, &[n, k], "the K of `a`")?;
    p::word(OP, params, "layout", &["NT"])?;
    let out = out_dtype(OP, params, DType::Bf16)?;
    let c = p::optional_input(OP, specs, "c", &[out], 2)?;
    let accumulate = p::flag(OP, params, "accumulate", c.is_some())?;
    if accumulate {
        p::shaped(OP, p::input(OP, specs, "c", &[out], 2)?, &[m, n], "the shape of `d`")?;
    }
    Ok(Product { sizes: [m, n, k], out, accumulate })
}

impl OpSpec for GemmBf16 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some(OP),
            family: "gemm",
            formula: "d[m, n] = Σ_k a[m, k]·b[n, k] + c[m, n]",
            source: "elementary",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = product_of(specs, params)?;
        Ok(vec![p::spec("d", x.out, &x.sizes[..2])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = product_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(x.out);
        let (c, in_place) = addend(OP, problem, x.accumulate)?;
        let args = vec![p::arg(OP, problem, "a")?, p::arg(OP, problem, "b")?, c, p::arg(OP, problem, "d")?];
        let mut config = p::choose_for(OP, configs, &kernel, &args)?;
        p::set(&mut config, "in_place", ConfigValue::Bool(in_place));
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = product_of(&p::host_specs(self, problem)?, &problem.params)?;
        let mut d = reference(&p::numbers(OP, problem, "a")?, &p::numbers(OP, problem, "b")?, x.sizes);
        if x.accumulate {
            d.iter_mut().zip(p::numbers(OP, problem, "c")?).for_each(|(d, c)| *d += c);
        }
        Ok([("d".into(), f32_tensor(&x.sizes[..2], &d))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = product_of(specs, params) else { return vec![] };
        let [m, n, _] = x.sizes;
        vec![
            p::split("m", m, 4, &[("a", 0, 4), ("c", 0, 4), ("d", 0, 4)]),
            p::split("n", n, 16, &[("b", 0, 16), ("c", 1, 16), ("d", 1, 16)]),
        ]
    }
    fn tolerance(&self, _: &str, params: &Params) -> Tolerance {
        let f32 = out_dtype(OP, params, DType::Bf16).is_ok_and(|d| d == DType::F32);
        Tolerance::CalcDiff { max: if f32 { 1e-6 } else { 1e-5 } }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [m, n, k]: [usize; 3], accumulate: bool, out: &str| {
            let dtype = if out == "f32" { DType::F32 } else { DType::Bf16 };
            let mut inputs = vec![
                p::filled("a", DType::Bf16, &[m, k], Fill::Normal(1.0)),
                p::filled("b", DType::Bf16, &[n, k], Fill::Normal(1.0)),
            ];
            if accumulate {
                inputs.push(p::filled("c", dtype, &[m, n], Fill::Normal(16.0)));
            }
            p::case(id, inputs, &[("out_dtype", ParamValue::Text(out.into()))])
        };
        vec![
            make("no_rows", [0, 64, 64], false, "bf16"),
            make("no_k", [3, 8, 0], true, "f32"),
            make("m70_n136_k192", [70, 136, 192], false, "bf16"),
            make("m5_n13_k77_odd", [5, 13, 77], true, "bf16"),
            make("m33_n24_k100_f32", [33, 24, 100], true, "f32"),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["m", "n", "k"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |(m, n, k)| [("m", m), ("n", n), ("k", k)].map(|(name, x)| (String::from(name), x)).to_vec();
        [(64, 2112, 7168), (4096, 2112, 7168), (4096, 7168, 2048), (8192, 8192, 8192)].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [m, n, k] = p::bench_sizes(OP, shape, ["m", "n", "k"])?;
        let inputs = vec![
            p::filled("a", DType::Bf16, &[m, k], Fill::Normal(1.0)),
            p::filled("b", DType::Bf16, &[n, k], Fill::Normal(1.0)),
        ];
        Ok(p::case(format!("m{m}_n{n}_k{k}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = product_of(specs, params) else { return Cost::default() };
        let [m, n, k] = x.sizes;
        let d = p::spec("d", x.out, &[m, n]);
        let read = specs.values().filter(|s| s.name != "d" && (s.name != "c" || x.accumulate));
        let tensors: Vec<_> = read.chain([&d]).collect();
        Cost { flops: 2.0 * p::product(&[m, n, k]), bytes: p::bytes(&tensors) }
    }
}
