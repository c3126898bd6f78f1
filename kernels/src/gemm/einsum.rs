//! Products with one more index: summed over it, or one product for each value of it.
//!
//! | expression | operands | result |
//! | --- | --- | --- |
//! | `bmk,bnk->mn` | `a` `[b, m, k]`, `b` `[b, n, k]` bf16, `c` `[m, n]` f32, none or `d` | `d` `[m, n]` f32 or bf16 |
//! | `bmk,bnk->mn`, f32 | `a` `[b, m, k]`, `b` `[b, n, k]` f32, `c` `[m, n]` f32, none or `d` | `d` `[m, n]` f32 |
//! | `bhr,hdr->bhd` | `x` `[b, h, r]`, `y` `[h, d, r]` bf16 or f32 | `z` `[b, h, d]` as `x` |
//! | `bhd,hdr->bhr` | `x` `[b, h, d]`, `y` `[h, d, r]` bf16 or f32 | `z` `[b, h, r]` as `x` |
//! | `bhr,hdr->bhd`, fp8 | `x`, `w` e4m3, `x_sf` `[b, h, ⌈r/128⌉]`, `w_sf` `[h, ⌈d/128⌉, ⌈r/128⌉]` f32 | `z` `[b, h, d]` bf16 |
//!
//! *Cost*: two operations a product; compute bound for large `b`.
//! *Numerics*: as `gemm_bf16` and `gemm_fp8`. The sum over `b` runs in ascending order inside a block, so results repeat
//! bit for bit; `c` is added in f32 before the one rounding. Scales are multiplied, whatever numbers they are. Operands of
//! f32 keep all their bits: no matrix unit does that, so they are one multiply-add after the other, for exact comparisons.
//! *Schedule*: a tile of the result a block; for products by head, heads are the slowest axis of the grid.
//! *Source*: the absorbed projections of multi-head latent attention, DeepSeek-V2 technical report, 2.1.

use crate::gemm::addend;
use crate::gemm::fp8::{out_dtype, reference};
use crate::gemm::scales::{Scaled, Scales, promoted_step};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tile of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct EinsumConfig {
    /// Rows of a tile.
    #[tune(64, 128)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 128)]
    pub bn: usize,
    /// K of a step; it does not change the sums.
    #[tune(64, 32)]
    pub bk: usize,
    /// Stages of the copies.
    #[tune(3, 4)]
    pub stages: usize,
    /// The right operand is `[.., columns, k]`; otherwise `[.., k, columns]`.
    #[default(true)]
    pub k_inner: bool,
    /// Add what `d` holds.
    #[default(false)]
    pub in_place: bool,
}

/// Tile of a block of the fp8 product.
#[derive(KernelConfig, Clone, Debug)]
pub struct EinsumFp8Config {
    /// Rows of a tile.
    #[tune(64, 128)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 128)]
    pub bn: usize,
    /// Stages of the copies.
    #[tune(3, 4)]
    pub stages: usize,
}

/// `d = Σ_s a[s] · b[s]ᵀ + c`.
#[kernel(deterministic, batch_invariant(m))]
pub fn product_sum<T: Float, O: Float>(
    cfg: &EinsumConfig,
    a: In![T; s, m, k; strides(_, _, 1)],
    b: In![T; s, n, k; strides(_, _, 1)],
    c: Option<In![O; m, n; strides(ldc, 1)]>,
    d: InOut![O; m, n; strides(ldd, 1)],
) where
    (T, T, F32): Mma,
{
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);
    let (mi, ni) = grid((m.div_ceil(bm), n.div_ceil(bn)));
    let a_s = shared::<T, 2>([bm, bk]);
    let b_s = shared::<T, 2>([bn, bk]);
    let acc = frag::<F32, 2>([bm, bn]);
    zero(acc);

    // One loop over all steps of all terms, so that copies run ahead across the border of two terms.
    let steps = k.div_ceil(bk);
    for step in pipeline(0..s * steps, cfg.stages) {
        let (term, ki) = (step / steps.max(1), step % steps.max(1));
        copy(a.pick(term).at((mi * bm, ki * bk)), a_s);
        copy(b.pick(term).at((ni * bn, ki * bk)), b_s);
        gemm(a_s, b_s.t(), acc);
    }
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

/// `z[h] = x[h] · y[h]ᵀ`, or `x[h] · y[h]` with the columns of `y` inner.
#[kernel(deterministic, batch_invariant(m))]
pub fn product_by_head<T: Float>(
    cfg: &EinsumConfig,
    x: In![T; h, m, k; strides(_, _, 1)],
    y: In![T; h, p, q; strides(_, _, 1)],
    z: Out![T; h, m, n; strides(_, _, 1)],
) where
    (T, T, F32): Mma,
{
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);
    let (mi, ni, hi) = grid((m.div_ceil(bm), n.div_ceil(bn), h));
    let (left, right, out) = (x.pick(hi), y.pick(hi), z.pick(hi));
    let x_s = shared::<T, 2>([bm, bk]);
    let y_s = shared::<T, 2>(if cfg.k_inner { [bn, bk] } else { [bk, bn] });
    let acc = frag::<F32, 2>([bm, bn]);
    zero(acc);

    for ki in pipeline(0..k.div_ceil(bk), cfg.stages) {
        copy(left.at((mi * bm, ki * bk)), x_s);
        if cfg.k_inner {
            copy(right.at((ni * bn, ki * bk)), y_s);
            gemm(x_s, y_s.t(), acc);
        } else {
            copy(right.at((ki * bk, ni * bn)), y_s);
            gemm(x_s, y_s, acc);
        }
    }
    copy_cast(acc, out.at((mi * bm, ni * bn)));
}

/// `z[h] = x[h] · w[h]ᵀ` with a scale for each row and 128 of K of `x`, and for each 128 by 128 of `w`.
#[kernel(deterministic, batch_invariant(m))]
pub fn product_by_head_fp8(
    cfg: &EinsumFp8Config,
    x: In![E4m3; h, m, k; strides(_, _, 1)],
    x_sf: In![F32; h, m, ceil(k, 128); strides(_, _, 1)],
    w: In![E4m3; h, n, k; strides(_, _, 1)],
    w_sf: In![F32; h, ceil(n, 128), ceil(k, 128)],
    z: Out![Bf16; h, m, n; strides(_, _, 1)],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, 128);
    let (mi, ni, hi) = grid((m.div_ceil(bm), n.div_ceil(bn), h));
    let (left, right, out) = (x.pick(hi), w.pick(hi), z.pick(hi));
    let rows = host!(Scales { plain: Some(x_sf.pick(hi)), packed: None, rows: 1, depth: 128 });
    let columns = host!(Scales { plain: Some(w_sf.pick(hi)), packed: None, rows: 128, depth: 128 });
    let x_s = shared::<E4m3, 2>([bm, bk]);
    let w_s = shared::<E4m3, 2>([bn, bk]);
    let acc = frag::<F32, 2>([bm, bn]);
    zero(acc);

    for ki in pipeline(0..k.div_ceil(bk), cfg.stages) {
        copy(left.at((mi * bm, ki * bk)), x_s);
        copy(right.at((ni * bn, ki * bk)), w_s);
        promoted_step(
            Scaled { tile: x_s, scales: rows, row: mi * bm },
            Scaled { tile: w_s, scales: columns, row: ni * bn },
            ki * bk,
            acc,
        );
    }
    copy_cast(acc, out.at((mi * bm, ni * bn)));
}

/// The expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `bmk,bnk->mn`.
    Sum,
    /// `bhr,hdr->bhd`.
    Inner,
    /// `bhd,hdr->bhr`.
    Outer,
    /// `bhr,hdr->bhd` of e4m3.
    Fp8,
}

/// What a problem asks for.
struct Einsum {
    form: Form,
    /// Terms or heads, rows, columns, K.
    sizes: [usize; 4],
    /// Operands are f32.
    wide: bool,
    out: DType,
    accumulate: bool,
}

impl Einsum {
    fn output(&self) -> TensorSpec {
        let [batch, m, n, _] = self.sizes;
        match self.form {
            Form::Sum => p::spec("d", self.out, &[m, n]),
            Form::Inner | Form::Outer | Form::Fp8 => p::spec("z", self.out, &[m, batch, n]),
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct EinsumOp;

const OP: &str = "einsum";
const EXPRESSIONS: [&str; 3] = ["bmk,bnk->mn", "bhr,hdr->bhd", "bhd,hdr->bhr"];

/// Reads a problem's inputs and parameters.
fn einsum_of(specs: &p::Specs, params: &Params) -> Result<Einsum, OpError> {
    let expr = p::word(OP, params, "expr", &EXPRESSIONS)?;
    if expr == EXPRESSIONS[0] {
        let a = p::input(OP, specs, "a", &[DType::Bf16, DType::F32], 3)?;
        let b = p::input(OP, specs, "b", &[a.dtype], 3)?;
        let wide = a.dtype == DType::F32;
        let (terms, m, n, k) = (a.shape[0], a.shape[1], b.shape[1], a.shape[2]);
        p::shaped(OP, b, &[terms, n, k], "the terms and the K of `a`")?;
        let out = out_dtype(OP, params, DType::F32)?;
        if wide && out != DType::F32 {
            return Err(p::refuse(OP, format!("operands of f32 and `out_dtype` {out}; expected f32")));
        }
        let c = p::optional_input(OP, specs, "c", &[out], 2)?;
        let accumulate = p::flag(OP, params, "accumulate", c.is_some())?;
        if accumulate {
            p::shaped(OP, p::input(OP, specs, "c", &[out], 2)?, &[m, n], "the shape of `d`")?;
        }
        return Ok(Einsum { form: Form::Sum, sizes: [terms, m, n, k], wide, out, accumulate });
    }
    let x = p::input(OP, specs, "x", &[DType::Bf16, DType::F32, DType::E4m3], 3)?;
    let (m, heads, k) = (x.shape[0], x.shape[1], x.shape[2]);
    let form = match (x.dtype == DType::E4m3, expr == EXPRESSIONS[2]) {
        (false, false) => Form::Inner,
        (false, true) => Form::Outer,
        (true, false) => Form::Fp8,
        (true, true) => return Err(p::refuse(OP, format!("`{expr}` has no form for e4m3"))),
    };
    let right = p::input(OP, specs, if form == Form::Fp8 { "w" } else { "y" }, &[x.dtype], 3)?;
    let n = if form == Form::Outer { right.shape[2] } else { right.shape[1] };
    let shape = if form == Form::Outer { [heads, k, n] } else { [heads, n, k] };
    p::shaped(OP, right, &shape, "the heads and the K of `x`")?;
    if form == Form::Fp8 {
        let groups = k.div_ceil(128);
        let sf = p::input(OP, specs, "x_sf", &[DType::F32], 3)?;
        p::shaped(OP, sf, &[m, heads, groups], "one scale a row and 128 of K")?;
        let sf = p::input(OP, specs, "w_sf", &[DType::F32], 3)?;
        p::shaped(OP, sf, &[heads, n.div_ceil(128), groups], "one scale for 128 by 128")?;
    }
    let wide = x.dtype == DType::F32;
    let out = if wide { DType::F32 } else { DType::Bf16 };
    p::word(OP, params, "out_dtype", &[out.name()])?;
    Ok(Einsum { form, sizes: [heads, m, n, k], wide, out, accumulate: false })
}

/// A tensor with its first two axes exchanged.
fn heads_first(v: TensorView) -> Arg {
    let (mut shape, mut strides) = (v.shape.clone(), v.strides.clone());
    shape.swap(0, 1);
    strides.swap(0, 1);
    Arg::Tensor(TensorView { shape, strides, ..v })
}

/// Numbers `[m, heads, k]` of one head, `[m, k]`.
fn head(x: &[f64], at: usize, heads: usize, k: usize) -> Vec<f64> {
    x.chunks(k.max(1)).skip(at).step_by(heads.max(1)).flatten().copied().collect()
}

impl OpSpec for EinsumOp {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "gemm",
            formula: "bmk,bnk->mn; bhr,hdr->bhd; bhd,hdr->bhr",
            source: "DeepSeek-V2 technical report, 2.1",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![
            product_sum::kernel::<Bf16, F32>(),
            product_sum::kernel::<Bf16, Bf16>(),
            product_sum::kernel::<F32, F32>(),
            product_by_head::kernel::<Bf16>(),
            product_by_head::kernel::<F32>(),
            product_by_head_fp8::kernel(),
        ]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(vec![einsum_of(specs, params)?.output()])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = einsum_of(&p::checked(self, problem)?, &problem.params)?;
        let [batch, m, n, k] = x.sizes;
        let dims = [("m", m), ("n", n), ("k", k)];
        let view = |name: &str| p::view(OP, problem, name);
        let (c, in_place) = addend(OP, problem, x.accumulate)?;
        let (kernel, args) = match x.form {
            Form::Sum => {
                let kernel = match (x.wide, x.out == DType::F32) {
                    (true, _) => product_sum::kernel::<F32, F32>(),
                    (false, true) => product_sum::kernel::<Bf16, F32>(),
                    (false, false) => product_sum::kernel::<Bf16, Bf16>(),
                };
                let args = [p::arg(OP, problem, "a")?, p::arg(OP, problem, "b")?, c, p::arg(OP, problem, "d")?];
                (kernel, args.into())
            }
            Form::Inner | Form::Outer => {
                let args = vec![heads_first(view("x")?), p::arg(OP, problem, "y")?, heads_first(view("z")?)];
                let kernel = if x.wide { product_by_head::kernel::<F32>() } else { product_by_head::kernel::<Bf16>() };
                (kernel, args)
            }
            Form::Fp8 => {
                let args = vec![
                    heads_first(view("x")?),
                    heads_first(view("x_sf")?),
                    p::arg(OP, problem, "w")?,
                    p::arg(OP, problem, "w_sf")?,
                    heads_first(view("z")?),
                ];
                (product_by_head_fp8::kernel(), args)
            }
        };
        let terms = if x.form == Form::Sum { ("s", batch) } else { ("h", batch) };
        let mut config = p::choose(configs, &kernel, &[&dims[..], &[terms]].concat());
        if x.wide {
            // A thread computes what a matrix unit would: rows that are not there cost as much as others.
            p::at_most(&mut config, "bm", m.next_power_of_two().max(16));
        }
        if x.form != Form::Fp8 {
            p::set(&mut config, "k_inner", ConfigValue::Bool(x.form != Form::Outer));
            p::set(&mut config, "in_place", ConfigValue::Bool(in_place));
        }
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let e = einsum_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [batch, m, n, k] = e.sizes;
        let mut out = vec![0.0; e.output().shape.iter().product()];
        if e.form == Form::Sum {
            let (a, b) = (p::numbers(OP, problem, "a")?, p::numbers(OP, problem, "b")?);
            if e.accumulate {
                out = p::numbers(OP, problem, "c")?;
            }
            for s in 0..batch {
                let term = reference(&a[s * m * k..][..m * k], &b[s * n * k..][..n * k], [m, n, k]);
                out.iter_mut().zip(term).for_each(|(d, t)| *d += t);
            }
        } else {
            let x = p::numbers(OP, problem, "x")?;
            let right = p::numbers(OP, problem, if e.form == Form::Fp8 { "w" } else { "y" })?;
            let scales = match e.form {
                Form::Fp8 => Some((p::numbers(OP, problem, "x_sf")?, p::numbers(OP, problem, "w_sf")?)),
                Form::Sum | Form::Inner | Form::Outer => None,
            };
            let groups = k.div_ceil(128);
            for h in 0..batch {
                let mut left = head(&x, h, batch, k);
                let mut weights = right[h * n * k..][..n * k].to_vec();
                if e.form == Form::Outer {
                    weights = (0..n * k).map(|i| right[h * n * k + i % k * n + i / k]).collect();
                }
                if let Some((x_sf, w_sf)) = &scales {
                    let rows = head(x_sf, h, batch, groups);
                    let blocks = &w_sf[h * n.div_ceil(128) * groups..];
                    left.iter_mut().enumerate().for_each(|(i, v)| *v *= rows[i / k * groups + i % k / 128]);
                    weights.iter_mut().enumerate().for_each(|(i, v)| *v *= blocks[i / k / 128 * groups + i % k / 128]);
                }
                for (i, v) in reference(&left, &weights, [m, n, k]).into_iter().enumerate() {
                    out[(i / n * batch + h) * n + i % n] = v;
                }
            }
        }
        let spec = e.output();
        Ok([(spec.name, f32_tensor(&spec.shape, &out))].into())
    }
    fn tolerance(&self, output: &str, params: &Params) -> Tolerance {
        // `z` of f32 is judged as strictly as `z` of bf16, whose type the parameters do not name.
        let f32 = output == "d" && out_dtype(OP, params, DType::F32).is_ok_and(|d| d == DType::F32);
        Tolerance::CalcDiff { max: if f32 { 1e-6 } else { 1e-5 } }
    }
    fn cases(&self) -> Vec<Case> {
        let text = |s: &str| ParamValue::Text(s.into());
        let sum = |id: &str, [s, m, n, k]: [usize; 4], accumulate: bool, out: &str| {
            let mut inputs = vec![
                p::filled("a", DType::Bf16, &[s, m, k], Fill::Normal(1.0)),
                p::filled("b", DType::Bf16, &[s, n, k], Fill::Normal(1.0)),
            ];
            if accumulate {
                inputs.push(p::filled("c", DType::F32, &[m, n], Fill::Normal(8.0)));
            }
            p::case(id, inputs, &[("expr", text(EXPRESSIONS[0])), ("out_dtype", text(out))])
        };
        let heads_of = |dtype: DType, id: &str, expr: usize, [b, h, k, n]: [usize; 4]| {
            let shape = if expr == 2 { [h, k, n] } else { [h, n, k] };
            let inputs = vec![
                p::filled("x", dtype, &[b, h, k], Fill::Normal(1.0)),
                p::filled("y", dtype, &shape, Fill::Normal(1.0)),
            ];
            p::case(id, inputs, &[("expr", text(EXPRESSIONS[expr]))])
        };
        let heads = |id: &str, expr, sizes| heads_of(DType::Bf16, id, expr, sizes);
        let wide = {
            let mut case = sum("sum_s2_m5_n20_k70_f32_operands", [2, 5, 20, 70], true, "f32");
            for input in case.inputs.iter_mut().take(2) {
                input.tensor.dtype = DType::F32;
            }
            case
        };
        let fp8 = |id: &str, [b, h, k, n]: [usize; 4]| {
            let groups = k.div_ceil(128);
            let inputs = vec![
                p::filled("x", DType::E4m3, &[b, h, k], Fill::Normal(8.0)),
                p::filled("x_sf", DType::F32, &[b, h, groups], Fill::Uniform(0.5, 2.0)),
                p::filled("w", DType::E4m3, &[h, n, k], Fill::Normal(8.0)),
                p::filled("w_sf", DType::F32, &[h, n.div_ceil(128), groups], Fill::Uniform(0.5, 2.0)),
            ];
            p::case(id, inputs, &[("expr", text(EXPRESSIONS[1]))])
        };
        vec![
            sum("sum_s3_m40_n72_k100", [3, 40, 72, 100], true, "f32"),
            sum("sum_s2_m5_n9_k33_bf16", [2, 5, 9, 33], false, "bf16"),
            sum("sum_no_terms", [0, 8, 8, 16], true, "f32"),
            heads("inner_b5_h3_r77_d40", 1, [5, 3, 77, 40]),
            heads("outer_b5_h3_d40_r77", 2, [5, 3, 40, 77]),
            heads("outer_no_rows", 2, [0, 3, 40, 64]),
            wide,
            heads_of(DType::F32, "inner_b3_h2_r33_d20_f32", 1, [3, 2, 33, 20]),
            heads_of(DType::F32, "outer_b3_h2_d20_r33_f32", 2, [3, 2, 20, 33]),
            fp8("fp8_b9_h2_r200_d136", [9, 2, 200, 136]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(e) = einsum_of(specs, params) else { return Cost::default() };
        let d = e.output();
        let read = specs.values().filter(|s| s.name != d.name && (s.name != "c" || e.accumulate));
        let tensors: Vec<_> = read.chain([&d]).collect();
        Cost { flops: 2.0 * p::product(&e.sizes), bytes: p::bytes(&tensors) }
    }
}
