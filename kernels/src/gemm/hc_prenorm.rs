//! Product of bf16 rows with f32 weights, and the sums of the rows' squares: `d[m, n] = Σ_k a[m, k]·b[n, k]`,
//! `sqr_sum[m] = Σ_k a[m, k]²`, whole or as parts along K that add up to it.
//!
//! *Tensors*: `a` `[m, k]` bf16, `b` `[n, k]` f32, n at most 128; `d` `[m, n]`, `sqr_sum` `[m]` f32. With the parameter
//! `num_splits`, a number s: `d` `[s, m, n]`, `sqr_sum` `[s, m]`, part i over a run of K of whole blocks of 64, the runs
//! in order. With a list of numbers: the sums of the parts, in order, of the largest of them.
//! *Cost*: `2mk` bytes and more; memory bound.
//! *Numerics*: `b` is the sum of two bf16 numbers with a relative error of 2^-17, where a matrix unit that takes f32 as TF32
//! leaves 2^-11; products with both are summed in f32.
//! *Schedule*: a launch takes `b` apart; then a tile of rows and a part of K a block, with two products for each step.
//! *Source*: the residual mixing of manifold-constrained hyper-connections, DeepSeek, 2025.

use super::fp8::reference;
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
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
pub struct PrenormConfig {
    /// Rows of a tile.
    #[tune(64, 32)]
    pub bm: usize,
    /// Stages of the copies.
    #[tune(4, 3)]
    pub stages: usize,
    /// Columns, rounded up to what a matrix unit takes.
    #[default(24)]
    pub columns: usize,
    /// Parts along K.
    #[numerics]
    #[default(1)]
    pub k_splits: usize,
}

/// Elements a block takes apart.
#[derive(KernelConfig, Clone, Debug)]
pub struct PartsConfig {
    /// Elements.
    #[default(1024)]
    pub block: usize,
}

/// Columns and K a step covers.
const STEP: usize = 64;

/// `b = parts[0] + parts[1]` up to 2^-17, each a bf16 number.
#[kernel(deterministic)]
pub fn two_parts(cfg: &PartsConfig, b: In![F32; n, k; strides(_, 1)], parts: Out![Bf16; two, n, k]) {
    let (row, ci) = grid((n, k.div_ceil(cfg.block)));
    for i in parallel([cfg.block]) {
        let at = ci * cfg.block + i;
        let x = b[(row, at)];
        let high = x.to::<Bf16>();
        let rest = x - high.to::<F32>();
        // An infinity leaves no rest.
        let rest = select(abs(high.to::<F32>()) <= 3.4e38f32, rest, 0.0);
        parts[(0, row, at)] = high;
        parts[(1, row, at)] = rest.to::<Bf16>();
    }
}

/// One part along K of some rows.
#[kernel(require(n <= cfg.columns, splits == cfg.k_splits), deterministic, batch_invariant(m))]
pub fn hc_prenorm_part(
    cfg: &PrenormConfig,
    a: In![Bf16; m, k; strides(lda, 1)],
    parts: In![Bf16; two, n, k],
    d: Out![F32; splits, m, n],
    squares: Out![F32; splits, m],
) {
    let (bm, bn) = (cfg.bm, cfg.columns);
    let (mi, split) = grid((m.div_ceil(bm), splits));
    let (high, low) = (parts.pick(0), parts.pick(1));
    let a_s = shared::<Bf16, 2>([bm, STEP]);
    let high_s = shared::<Bf16, 2>([bn, STEP]);
    let low_s = shared::<Bf16, 2>([bn, STEP]);
    let acc = frag::<F32, 2>([bm, bn]);
    let sum = frag::<F32, 1>([bm]);
    zero(acc);
    zero(sum);

    let run = split_k(range(0, k), cfg.k_splits, STEP, split);
    let first = run.start() / STEP;
    for step in pipeline(0..run.end().saturating_sub(run.start()).div_ceil(STEP), cfg.stages) {
        let k0 = (first + step) * STEP;
        copy(a.at((mi * bm, k0)), a_s);
        copy(high.at((0, k0)), high_s);
        copy(low.at((0, k0)), low_s);
        gemm(a_s, high_s.t(), acc);
        gemm(a_s, low_s.t(), acc);
        let square = map(a_s, |x: V<Bf16>| x.to::<F32>() * x.to::<F32>());
        let row = reduce_sum(square, 1);
        for i in parallel([bm]) {
            sum[i] += row[i];
        }
    }
    copy(acc, d.pick(split).at((mi * bm, 0)));
    copy(sum, squares.pick(split).at(mi * bm));
}

/// Adds parts in ascending order: `[parts, m, n]` to `[m, n]`.
#[kernel(require(splits == cfg.k_splits), deterministic, batch_invariant(m))]
pub fn add_parts(
    cfg: &PrenormConfig,
    d: In![F32; splits, m, n],
    squares: In![F32; splits, m],
    d_sum: Out![F32; m, n],
    squares_sum: Out![F32; m],
) {
    let bm = cfg.bm;
    let mi = grid(m.div_ceil(bm));
    let acc = frag::<F32, 2>([bm, cfg.columns]);
    sum_parts(d, cfg.k_splits, (mi * bm, range(0, 0).start()), acc);
    copy(acc, d_sum.at((mi * bm, 0)));
    for i in parallel([bm]) {
        let mut x = 0f32;
        for s in unroll(0..cfg.k_splits) {
            x += squares[(s, mi * bm + i)];
        }
        squares_sum[mi * bm + i] = x;
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmTf32HcPrenorm;

const OP: &str = "gemm_tf32_hc_prenorm";

/// What a problem asks for.
struct Prenorm {
    m: usize,
    n: usize,
    k: usize,
    splits: usize,
    /// Outputs have an axis of parts.
    apart: bool,
}

fn prenorm_of(specs: &p::Specs, params: &Params) -> Result<Prenorm, OpError> {
    let a = p::input(OP, specs, "a", &[DType::Bf16], 2)?;
    let b = p::input(OP, specs, "b", &[DType::F32], 2)?;
    let (m, k, n) = (a.shape[0], a.shape[1], b.shape[0]);
    p::shaped(OP, b, &[n, k], "the K of `a`")?;
    if n > 128 {
        return Err(p::refuse(OP, format!("`b` has {n} rows; expected at most 128")));
    }
    let (splits, apart) = match params.get("num_splits") {
        Some(ParamValue::List(list)) => {
            let mut most = 1;
            for x in list {
                let one = Params::from([("num_splits".to_string(), x.clone())]);
                most = most.max(p::count(OP, &one, "num_splits", None)?);
            }
            (most, false)
        }
        None | Some(ParamValue::Null) => (1, false),
        Some(_) => (p::count(OP, params, "num_splits", None)?, true),
    };
    if splits > 256 {
        return Err(p::refuse(OP, format!("parameter `num_splits` is {splits}; expected at most 256")));
    }
    Ok(Prenorm { m, n, k, splits, apart })
}

impl Prenorm {
    fn outputs(&self) -> [TensorSpec; 2] {
        let lead: &[usize] = if self.apart { &[self.splits] } else { &[] };
        [
            p::spec("d", DType::F32, &[lead, &[self.m, self.n]].concat()),
            p::spec("sqr_sum", DType::F32, &[lead, &[self.m]].concat()),
        ]
    }
}

/// A tensor with one more leading axis, of extent 1.
fn lead(v: TensorView) -> TensorView {
    let stride = v.shape.first().copied().unwrap_or(1) * v.strides.first().copied().unwrap_or(1);
    let (shape, strides) = ([&[1], &v.shape[..]].concat(), [&[stride], &v.strides[..]].concat());
    TensorView { shape, strides, ..v }
}

impl OpSpec for GemmTf32HcPrenorm {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some(OP),
            family: "gemm",
            formula: "d = a · bᵀ, sqr_sum[m] = Σ_k a[m, k]²",
            source: "manifold-constrained hyper-connections, DeepSeek, 2025",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![hc_prenorm_part::kernel(), two_parts::kernel(), add_parts::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(prenorm_of(specs, params)?.outputs().into())
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = prenorm_of(&p::checked(self, problem)?, &problem.params)?;
        let (kernel, apart) = (hc_prenorm_part::kernel(), two_parts::kernel());
        let mut config = p::choose(configs, &kernel, &[("m", x.m), ("n", x.n), ("k", x.k)]);
        p::set(&mut config, "columns", ConfigValue::Int(x.n.next_multiple_of(8).max(8)));
        p::set(&mut config, "k_splits", ConfigValue::Int(x.splits));
        let space =
            |index, dtype, shape: &[usize]| Arg::Workspace { index, dtype, shape: shape.into(), offset_bytes: 0 };
        let halves = space(0, DType::Bf16, &[2, x.n, x.k]);
        let (d, squares) = (p::view(OP, problem, "d")?, p::view(OP, problem, "sqr_sum")?);
        let sum = !x.apart && x.splits > 1;
        let (parts, part_squares) = match (x.apart, sum) {
            (true, _) => (Arg::Tensor(d.clone()), Arg::Tensor(squares.clone())),
            (false, false) => (Arg::Tensor(lead(d.clone())), Arg::Tensor(lead(squares.clone()))),
            (false, true) => (space(1, DType::F32, &[x.splits, x.m, x.n]), space(2, DType::F32, &[x.splits, x.m])),
        };
        let apart_config = p::choose(configs, &apart, &[("n", x.n), ("k", x.k)]);
        let take =
            Launch { kernel: apart, config: apart_config, args: vec![p::arg(OP, problem, "b")?, halves.clone()] };
        let args = vec![p::arg(OP, problem, "a")?, halves, parts.clone(), part_squares.clone()];
        let mut steps = vec![take, Launch { kernel, config: config.clone(), args }];
        let mut workspaces = vec![4 * x.n * x.k];
        if sum {
            let args = vec![parts, part_squares, Arg::Tensor(d), Arg::Tensor(squares)];
            steps.push(Launch { kernel: add_parts::kernel(), config, args });
            workspaces.extend([4 * x.splits * x.m * x.n, 4 * x.splits * x.m]);
        }
        Ok(Plan { steps, workspaces })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = prenorm_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (a, b) = (p::numbers(OP, problem, "a")?, p::numbers(OP, problem, "b")?);
        let parts = if x.apart { x.splits } else { 1 };
        // Parts are whole blocks, as equal as they can be; the last ones may be shorter or empty.
        let each = x.k.div_ceil(parts * STEP) * STEP;
        let (mut d, mut squares) = (vec![], vec![]);
        for s in 0..parts {
            let (from, to) = ((s * each).min(x.k), ((s + 1) * each).min(x.k));
            let cut = |v: &[f64]| v.chunks(x.k.max(1)).flat_map(|row| row[from..to].to_vec()).collect::<Vec<f64>>();
            let rows = cut(&a);
            d.extend(reference(&rows, &cut(&b), [x.m, x.n, to - from]));
            squares.extend((0..x.m).map(|i| rows[i * (to - from)..][..to - from].iter().map(|v| v * v).sum::<f64>()));
        }
        let [d_spec, s_spec] = x.outputs();
        Ok([("d".into(), f32_tensor(&d_spec.shape, &d)), ("sqr_sum".into(), f32_tensor(&s_spec.shape, &squares))]
            .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = prenorm_of(specs, params) else { return vec![] };
        let axis = usize::from(x.apart);
        vec![p::split("m", x.m, 1, &[("a", 0, 1), ("d", axis, 1), ("sqr_sum", axis, 1)])]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        // Parts of `b` leave 2^-17 of each element: a thousandth of the bound for TF32.
        Tolerance::CalcDiff { max: if output == "d" { 1e-9 } else { 1e-10 } }
    }
    fn cases(&self) -> Vec<Case> {
        let case = |id: &str, [m, n, k]: [usize; 3], splits: ParamValue| {
            let inputs = vec![
                p::filled("a", DType::Bf16, &[m, k], Fill::Normal(1.0)),
                p::filled("b", DType::F32, &[n, k], Fill::Normal(1.0)),
            ];
            p::case(id, inputs, &[("num_splits", splits)])
        };
        let list = ParamValue::List(vec![ParamValue::Int(1), ParamValue::Int(3)]);
        vec![
            case("no_rows", [0, 24, 128], ParamValue::Null),
            case("no_k", [3, 24, 0], ParamValue::Int(2)),
            case("m70_n24_k640", [70, 24, 640], ParamValue::Null),
            case("m13_n24_k200_apart", [13, 24, 200], ParamValue::Int(4)),
            case("m5_n13_k77_summed", [5, 13, 77], list),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["m", "n", "k", "num_splits"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |[m, k, s]: [usize; 3]| {
            [("m", m), ("n", 24), ("k", k), ("num_splits", s)].map(|(name, x)| (name.to_string(), x)).to_vec()
        };
        [[13, 7168, 16], [137, 28672, 16], [4096, 7680, 1], [8192, 28672, 1]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [m, n, k, s] = p::bench_sizes(OP, shape, ["m", "n", "k", "num_splits"])?;
        let inputs = vec![
            p::filled("a", DType::Bf16, &[m, k], Fill::Normal(1.0)),
            p::filled("b", DType::F32, &[n, k], Fill::Normal(1.0)),
        ];
        let splits = if s > 1 { ParamValue::Int(s as i64) } else { ParamValue::Null };
        Ok(p::case(format!("m{m}_n{n}_k{k}_s{s}"), inputs, &[("num_splits", splits)]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = prenorm_of(specs, params) else { return Cost::default() };
        let outputs = x.outputs();
        let tensors: Vec<_> = ["a", "b"].into_iter().filter_map(|n| specs.get(n)).chain(&outputs).collect();
        Cost { flops: 2.0 * p::product(&[x.m, x.n + 1, x.k]), bytes: p::bytes(&tensors) }
    }
}
