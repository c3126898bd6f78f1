//! fp8 products over runs of K: `d[g] = c[g] + Σ_{k in group g} a[k]ᵀ · b[k]`, the gradient of each group's weights.
//!
//! *Tensors*: `a` `[K, m]`, `b` `[K, n]` e4m3, K being that of all groups one after another; scales `sfa` `[K/128, m]`, `sfb`
//! `[K/128, n]` f32; `ks` `[g]` i32, each a multiple of 128; `c` `[g, m, n]` f32, may be left out or be `d`; `d` `[g, m, n]`
//! f32.
//! *Cost*: `2mnK` operations; `K(m + n)` bytes, and `d` twice.
//! *Numerics*: as `gemm_fp8` with a scale a column and 128 of K. A group without K keeps `c` bit for bit. Lengths that are
//! no multiples of 128, or reach past K, end the run.
//! *Schedule*: a tile of one group's output a block.
//! *Source*: weight gradients of mixture-of-experts layers, DeepSeek-V3 technical report, 3.3.

use super::addend;
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tile of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct KGroupedConfig {
    /// Rows of a tile.
    #[tune(64, 128)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 128)]
    pub bn: usize,
    /// Stages of the copies.
    #[tune(3, 4)]
    pub stages: usize,
    /// Add what `d` holds.
    #[default(false)]
    pub in_place: bool,
}

/// Multiplies.
#[kernel(deterministic, batch_invariant(m))]
pub fn gemm_k_grouped(
    cfg: &KGroupedConfig,
    a: In![E4m3; kt, m; strides(lda, 1)],
    sa: In![F32; kb, m; strides(_, _)],
    b: In![E4m3; kt, n; strides(ldb, 1)],
    sb: In![F32; kb, n; strides(_, _)],
    ks: In![I32; groups],
    c: Option<In![F32; groups, m, n]>,
    d: InOut![F32; groups, m, n],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, 128);
    let (mi, ni, group) = grid((m.div_ceil(bm), n.div_ceil(bn), groups));
    let (m0, n0) = (mi * bm, ni * bn);

    // The groups before this one, in steps of K.
    let mut before = 0i32;
    for e in 0..group {
        before += ks[e];
    }
    let own = ks[group];
    check!(own >= 0 && own % 128 == 0 && before % 128 == 0, "the K of a group is not a multiple of 128");
    check!(
        before.to::<I64>() + own.to::<I64>() <= kt.to::<I64>(),
        "the K of the groups is more than the operands have"
    );
    let first = (before / 128).clamp_index(0, kt.div_ceil(bk));
    let steps = (own / 128).clamp_index(0, kt.div_ceil(bk));

    let a_s = shared::<E4m3, 2>([bk, bm]);
    let b_s = shared::<E4m3, 2>([bk, bn]);
    let acc = frag::<F32, 2>([bm, bn]);
    zero(acc);
    for step in pipeline(0..steps, cfg.stages) {
        let block = first + step;
        copy(a.at((block * bk, m0)), a_s);
        copy(b.at((block * bk, n0)), b_s);
        gemm_scaled((a_s.t(), |i: Ix| sa[(block, m0 + i)]), (b_s, |j: Ix| sb[(block, n0 + j)]), acc);
    }
    let empty = own == 0;
    for (i, j) in parallel([bm, bn]) {
        let at = (group, m0 + i, n0 + j);
        let x = acc[(i, j)];
        // Adding +0 would turn -0 into +0.
        let x = if let Some(c) = c {
            select(empty, c[at], x + c[at])
        } else if cfg.in_place {
            select(empty, d[at], x + d[at])
        } else {
            x
        };
        d[at] = x;
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmKGrouped;

const OP: &str = "gemm_k_grouped";

/// What a problem asks for.
struct Runs {
    groups: usize,
    m: usize,
    n: usize,
    k: usize,
    accumulate: bool,
}

fn runs_of(specs: &p::Specs, params: &Params) -> Result<Runs, OpError> {
    let a = p::input(OP, specs, "a", &[DType::E4m3], 2)?;
    let b = p::input(OP, specs, "b", &[DType::E4m3], 2)?;
    let (k, m, n) = (a.shape[0], a.shape[1], b.shape[1]);
    p::shaped(OP, b, &[k, n], "the K of `a`")?;
    if let Some(ParamValue::Text(layout)) = params.get("layout")
        && !layout.starts_with("TN")
    {
        return Err(p::refuse(OP, format!("parameter `layout` is `{layout}`; expected TN: a [K, m], b [K, n]")));
    }
    p::word(OP, params, "kind", &["1d1d"])?;
    p::word(OP, params, "out_dtype", &["f32"])?;
    let blocks = k.div_ceil(128);
    p::shaped(OP, p::input(OP, specs, "sfa", &[DType::F32], 2)?, &[blocks, m], "a scale a column and 128 of K")?;
    p::shaped(OP, p::input(OP, specs, "sfb", &[DType::F32], 2)?, &[blocks, n], "a scale a column and 128 of K")?;
    let groups = p::input(OP, specs, "ks", &[DType::I32], 1)?.shape[0];
    if let Some(ParamValue::List(list)) = params.get("ks") {
        let mut sum = 0i64;
        for x in list {
            match x {
                ParamValue::Int(x) if *x >= 0 && x % 128 == 0 => sum = sum.saturating_add(*x),
                other => {
                    return Err(p::refuse(OP, format!("`ks` holds {other:?}; expected multiples of 128 from 0 on")));
                }
            }
        }
        if list.len() != groups || sum > k as i64 {
            let got = format!("`ks` has {} groups of together {sum}", list.len());
            return Err(p::refuse(OP, format!("{got}; expected {groups} groups of together at most {k}")));
        }
    }
    let c = p::optional_input(OP, specs, "c", &[DType::F32], 3)?;
    let accumulate = p::flag(OP, params, "accumulate", c.is_some())?;
    if accumulate {
        p::shaped(OP, p::input(OP, specs, "c", &[DType::F32], 3)?, &[groups, m, n], "the shape of `d`")?;
    }
    Ok(Runs { groups, m, n, k, accumulate })
}

impl OpSpec for GemmKGrouped {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some(OP),
            family: "gemm",
            formula: "d[g] = c[g] + Σ_{k in g} (sfa·a)[k]ᵀ · (sfb·b)[k]",
            source: "DeepSeek-V3 technical report, 3.3",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![gemm_k_grouped::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = runs_of(specs, params)?;
        Ok(vec![p::spec("d", DType::F32, &[x.groups, x.m, x.n])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = runs_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = gemm_k_grouped::kernel();
        let mut config = p::choose(configs, &kernel, &[("m", x.m), ("n", x.n), ("kt", x.k), ("groups", x.groups)]);
        let (c, in_place) = addend(OP, problem, x.accumulate)?;
        p::set(&mut config, "in_place", ConfigValue::Bool(in_place));
        let arg = |name: &str| p::arg(OP, problem, name);
        let args = vec![arg("a")?, arg("sfa")?, arg("b")?, arg("sfb")?, arg("ks")?, c, arg("d")?];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = runs_of(&p::host_specs(self, problem)?, &problem.params)?;
        let numbers = |name: &str| p::numbers(OP, problem, name);
        let scaled = |name: &str, by: &str, width: usize| -> Result<Vec<f64>, OpError> {
            let scales = numbers(by)?;
            let values = numbers(name)?;
            Ok(values.iter().enumerate().map(|(i, v)| v * scales[i / width / 128 * width + i % width]).collect())
        };
        let (a, b) = (scaled("a", "sfa", x.m)?, scaled("b", "sfb", x.n)?);
        let mut d = if x.accumulate { numbers("c")? } else { vec![0.0; x.groups * x.m * x.n] };
        let mut from = 0;
        for (g, k) in numbers("ks")?.into_iter().enumerate() {
            let to = from + k as usize;
            if k < 0.0 || to > x.k {
                return Err(p::refuse(
                    OP,
                    format!("`ks` of group {g} is {k}; expected K {from} and it to be at most {}", x.k),
                ));
            }
            for l in from..to {
                for i in 0..x.m {
                    for j in 0..x.n {
                        d[(g * x.m + i) * x.n + j] += a[l * x.m + i] * b[l * x.n + j];
                    }
                }
            }
            from = to;
        }
        Ok([("d".into(), f32_tensor(&[x.groups, x.m, x.n], &d))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = runs_of(specs, params) else { return vec![] };
        vec![
            p::split("m", x.m, 1, &[("a", 1, 1), ("sfa", 1, 1), ("c", 1, 1), ("d", 1, 1)]),
            p::split("n", x.n, 1, &[("b", 1, 1), ("sfb", 1, 1), ("c", 2, 1), ("d", 2, 1)]),
        ]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::CalcDiff { max: 1e-6 }
    }
    fn cases(&self) -> Vec<Case> {
        let case = |id: &str, ks: &[usize], [m, n]: [usize; 2], accumulate: bool| {
            let (k, groups) = (ks.iter().sum::<usize>(), ks.len());
            let mut inputs = vec![
                p::filled("a", DType::E4m3, &[k, m], Fill::Normal(8.0)),
                p::filled("sfa", DType::F32, &[k / 128, m], Fill::Uniform(0.5, 2.0)),
                p::filled("b", DType::E4m3, &[k, n], Fill::Normal(8.0)),
                p::filled("sfb", DType::F32, &[k / 128, n], Fill::Uniform(0.5, 2.0)),
                p::filled("ks", DType::I32, &[groups], Fill::Values(ks.iter().map(|&k| k as f64).collect())),
            ];
            if accumulate {
                inputs.push(p::filled("c", DType::F32, &[groups, m, n], Fill::Normal(100.0)));
            }
            let list = ParamValue::List(ks.iter().map(|&k| ParamValue::Int(k as i64)).collect());
            p::case(id, inputs, &[("ks", list)])
        };
        vec![
            case("no_k", &[0, 0], [8, 24], true),
            case("no_rows", &[128], [0, 24], true),
            case("m70_n72", &[0, 128, 256, 0], [70, 72], true),
            case("odd_m5_n13_alone", &[256, 128], [5, 13], false),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["groups", "m", "n", "k_per_group"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let keys = ["groups", "m", "n", "k_per_group"];
        let sizes = [[4, 4096, 7168, 8192], [4, 7168, 2048, 8192], [8, 4096, 7168, 4096], [8, 7168, 2048, 4096]];
        sizes.into_iter().map(|s| keys.into_iter().map(String::from).zip(s).collect()).collect()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [groups, m, n, each] = p::bench_sizes(OP, shape, ["groups", "m", "n", "k_per_group"])?;
        if each % 128 != 0 {
            return Err(p::refuse(OP, format!("k_per_group is {each}; expected a multiple of 128")));
        }
        let k = groups * each;
        let inputs = vec![
            p::filled("a", DType::E4m3, &[k, m], Fill::Normal(100.0)),
            p::filled("sfa", DType::F32, &[k / 128, m], Fill::Uniform(0.005, 0.015)),
            p::filled("b", DType::E4m3, &[k, n], Fill::Normal(100.0)),
            p::filled("sfb", DType::F32, &[k / 128, n], Fill::Uniform(0.005, 0.015)),
            p::filled("ks", DType::I32, &[groups], Fill::Values(vec![each as f64; groups])),
            p::filled("c", DType::F32, &[groups, m, n], Fill::Normal(100.0)),
        ];
        Ok(p::case(format!("g{groups}_m{m}_n{n}_k{each}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = runs_of(specs, params) else { return Cost::default() };
        let d = p::spec("d", DType::F32, &[x.groups, x.m, x.n]);
        let read = specs.values().filter(|s| s.name != "d" && (s.name != "c" || x.accumulate));
        let tensors: Vec<_> = read.chain([&d]).collect();
        Cost { flops: 2.0 * p::product(&[x.m, x.n, x.k]), bytes: p::bytes(&tensors) }
    }
}
