//! Attention of packed sequences to packed keys: sequence `s` has the queries `cu_seqlens_q[s]..cu_seqlens_q[s+1]` and the keys
//! `cu_seqlens_k[s]..cu_seqlens_k[s+1]`; heads share keys in groups.
//!
//! With the parameter `causal: "bottom-right"` query `i` of a sequence of `n` queries and `m` keys sees key `j` iff
//! `j ≤ i + m − n`. A query that sees nothing gives zeros and `lse = +∞`.
//!
//! *Tensors*: `q` `[t, h, d_qk]`, `k` `[t', h_k, d_qk]`, `v` `[t', h_k, d_v]` bf16; `cu_seqlens_q`, `cu_seqlens_k` `[b+1]` i32, not
//! falling; `out` `[t, h, d_v]` bf16; `lse` `[t, h]` f32, natural.
//! *Cost*: `2·h·(d_qk + d_v)` operations a pair of query and key, half of it if causal.
//! *Numerics*: `softmax.rs`, with weights of 16 bits in two bf16 products: rounded to 8 bits, weights of a dozen keys move an
//! output near zero by 2e-3, twice what the golden cases allow. Tiles of queries and of keys start with their sequence, so a sequence's bits do not depend on
//! what it is packed with. Keys of other sequences are never read.
//! *Schedule*: a tile of queries of one head a block; blocks find their sequence by counting tiles, so that the grid depends
//! on numbers the host knows. A sequence may leave one block without queries.
//! *Source*: Dao, FlashAttention-2, 2023: packed sequences and the corner of the causal mask.

use super::softmax::{self, attend_values, attention_begin};
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
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct PrefillConfig {
    /// Queries of a block.
    #[tune(64, 128, 32)]
    pub rows: usize,
    /// Keys of a step.
    #[numerics]
    #[tune(64, 32)]
    pub keys: usize,
    /// Steps loaded ahead, and the current one.
    #[tune(1, 2)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
    /// A query sees keys up to its own position, both counted from the end.
    #[default(false)]
    pub causal: bool,
}

/// A tile of queries of one head.
#[kernel(dims(h: fixed, hk: fixed, dk: fixed, dv: fixed), require(hk > 0, h % hk == 0), deterministic)]
pub fn mha_prefill_dense(
    cfg: &PrefillConfig,
    q: In![Bf16; h, t, dk; strides(_, _, 1)],
    k: In![Bf16; hk, tk, dk; strides(_, _, 1)],
    v: In![Bf16; hk, tk, dv; strides(_, _, 1)],
    cu_q: In![I32; ends],
    cu_k: In![I32; ends],
    out: Out![Bf16; h, t, dv; strides(_, _, 1)],
    lse: Out![F32; h, t; strides(_, _)],
    scale_log2: Scalar![F32],
) {
    let (rows, keys, b) = (cfg.rows, cfg.keys, ends.saturating_sub(1));
    let (tile, head) = grid((t / rows + b, h));
    warps(cfg.warps);

    // Sequence s owns the tiles from cu_q[s]/rows + s on: as many as it needs, or one more.
    let mut begun: V<I32> = 0;
    for s in 0..b {
        let first = cu_q[s] / rows as i32 + s.value();
        begun = begun + select(first <= tile.value(), 1, 0);
    }
    let s = (begun - 1).clamp_index(0, b.saturating_sub(1));
    let (q0, q1) = (cu_q[s].clamp_index(0, t), cu_q[s + 1].clamp_index(0, t));
    let (k0, k1) = (cu_k[s].clamp_index(0, tk), cu_k[s + 1].clamp_index(0, tk));
    let r0 = q0 + tile.saturating_sub(q0 / rows + s) * rows;
    let (queries, count) = (q1.saturating_sub(q0), k1.saturating_sub(k0));
    // Keys that the query in row `r` of the packed queries sees.
    let seen =
        |r: Ix| -> Ix { if cfg.causal { (r + 1 - q0 + count).saturating_sub(queries).min(count) } else { count } };

    if r0 < q1 {
        let a = attention_begin::<Bf16>(rows, keys, dk, dv);
        let values = shared::<Bf16, 2>([keys, dv]);
        let rest = shared::<Bf16, 2>([rows, keys]);
        let group = head / (h / hk);
        // Rows end with their sequence: what lies behind reads as zero and is not written.
        let (own_k, own_v) = (k.pick(group).first_rows(k1), v.pick(group).first_rows(k1));
        copy(q.pick(head).at((r0, 0)), a.q);
        let last = (r0 + rows).min(q1) - 1;
        #[label(key_loop)]
        for step in pipeline(0..seen(last).div_ceil(keys), cfg.stages) {
            let pos = step * keys;
            copy(own_k.at((k0 + pos, 0)), a.k);
            copy(own_v.at((k0 + pos, 0)), values);
            attend_values(&a, values, Some(rest), scale_log2, |i: Ix, j: Ix| pos + j < seen(r0 + i));
        }
        let (to, to_lse) = (out.pick(head).first_rows(q1), lse.pick(head).first_rows(q1));
        let (acc, sum, top) = (a.acc, a.softmax.sum, a.softmax.max);
        for i in parallel([rows]) {
            let natural = (top[i] * scale_log2 + log2(sum[i])) * std::f32::consts::LN_2;
            to_lse[r0 + i] = select(sum[i] > 0.0, natural, INF);
        }
        for (i, d) in parallel([rows, dv]) {
            to[(r0 + i, d)] = select(sum[i] > 0.0, acc[(i, d)] / sum[i], 0.0).to::<Bf16>();
        }
    }
}

/// What a problem asks for.
struct Shape {
    t: usize,
    tk: usize,
    heads: usize,
    kv_heads: usize,
    dk: usize,
    dv: usize,
    sequences: usize,
    causal: bool,
    scale: f64,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MhaPrefillDense;

const OP: &str = "mha_prefill_dense";

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let q = p::input(OP, specs, "q", &[Data::Bf16], 3)?;
    let (k, v) = (p::input(OP, specs, "k", &[Data::Bf16], 3)?, p::input(OP, specs, "v", &[Data::Bf16], 3)?);
    let (&[t, heads, dk], &[tk, kv_heads, dv]) = (q.shape.as_slice(), v.shape.as_slice()) else {
        return Err(p::refuse(OP, "`q` and `v` have three axes"));
    };
    p::shaped(OP, k, &[tk, kv_heads, dk], "rows of `v`, columns of `q`")?;
    let starts = p::input(OP, specs, "cu_seqlens_q", &[Data::I32], 1)?;
    p::shaped(OP, p::input(OP, specs, "cu_seqlens_k", &[Data::I32], 1)?, &starts.shape, "as `cu_seqlens_q`")?;
    if starts.shape[0] == 0 || kv_heads == 0 || heads % kv_heads != 0 || heads == 0 || dk == 0 || dv == 0 {
        let message = format!("{heads} heads on {kv_heads}, widths {dk} and {dv}, {} starts", starts.shape[0]);
        return Err(p::refuse(OP, format!("{message}; expected whole groups of heads, and a start beside the end")));
    }
    let causal = match params.get("causal") {
        None | Some(ParamValue::Null) => false,
        Some(ParamValue::Text(t)) if t == "bottom-right" => true,
        Some(other) => {
            return Err(p::refuse(OP, format!("parameter `causal` is {other:?}; expected bottom-right or null")));
        }
    };
    let scale = p::number(OP, params, "softmax_scale", Some((dk as f64).powf(-0.5)))?;
    Ok(Shape { t, tk, heads, kv_heads, dk, dv, sequences: starts.shape[0] - 1, causal, scale })
}

/// Heads first.
fn by_head(view: &TensorView) -> Arg {
    let mut v = view.clone();
    v.shape.swap(0, 1);
    v.strides.swap(0, 1);
    Arg::Tensor(v)
}

impl OpSpec for MhaPrefillDense {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mha_prefill"),
            family: "attention",
            formula: "o_i = softmax(scale · q_i·Kᵀ) · V over the keys of the query's sequence",
            source: "Dao, FlashAttention-2, 2023",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![mha_prefill_dense::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let lse = p::spec("lse", Data::F32, &[s.t, s.heads]);
        Ok(vec![p::spec("out", Data::Bf16, &[s.t, s.heads, s.dv]), lse])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = mha_prefill_dense::kernel();
        let dims = [("t", s.t), ("tk", s.tk), ("h", s.heads), ("dk", s.dk), ("dv", s.dv), ("b", s.sequences)];
        let mut config = p::choose(configs, &kernel, &dims);
        p::at_most(&mut config, "rows", s.t.next_power_of_two().max(16));
        p::set(&mut config, "causal", ConfigValue::Bool(s.causal));
        let tensor = |name: &str| p::view(OP, problem, name).map(|v| by_head(&v));
        let args = vec![
            tensor("q")?,
            tensor("k")?,
            tensor("v")?,
            p::arg(OP, problem, "cu_seqlens_q")?,
            p::arg(OP, problem, "cu_seqlens_k")?,
            tensor("out")?,
            tensor("lse")?,
            Arg::Scalar(Literal::f32((s.scale * std::f64::consts::LOG2_E) as f32)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [q, k, v] = ["q", "k", "v"].map(|name| p::numbers(OP, problem, name));
        let (q, k, v) = (q?, k?, v?);
        let starts = |name: &str| -> Result<Vec<usize>, OpError> {
            let list: Vec<usize> = p::numbers(OP, problem, name)?.into_iter().map(|x| x as usize).collect();
            let rows = if name == "cu_seqlens_q" { s.t } else { s.tk };
            if list.is_sorted() && list.first() == Some(&0) && list.last() == Some(&rows) {
                return Ok(list);
            }
            Err(p::refuse(OP, format!("`{name}` is {list:?}; expected numbers that rise from 0 to {rows}")))
        };
        let (cu_q, cu_k) = (starts("cu_seqlens_q")?, starts("cu_seqlens_k")?);
        let mut out = vec![0.0; s.t * s.heads * s.dv];
        let mut lse = vec![f64::INFINITY; s.t * s.heads];
        for n in 0..s.sequences {
            let (queries, keys) = (cu_q[n + 1] - cu_q[n], cu_k[n + 1] - cu_k[n]);
            for i in 0..queries {
                let seen = if s.causal { (i + 1 + keys).saturating_sub(queries).min(keys) } else { keys };
                for h in 0..s.heads {
                    let group = h / (s.heads / s.kv_heads);
                    let row = (cu_q[n] + i) * s.heads + h;
                    let at = |j: usize| (cu_k[n] + j) * s.kv_heads + group;
                    // A key and its value as one row, so that the plain attention of `softmax.rs` does for both.
                    let both: Vec<Vec<f64>> =
                        (0..seen).map(|j| [&v[at(j) * s.dv..][..s.dv], &k[at(j) * s.dk..][..s.dk]].concat()).collect();
                    let rows: Vec<&[f64]> = both.iter().map(Vec::as_slice).collect();
                    let query = [vec![0.0; s.dv], q[row * s.dk..][..s.dk].to_vec()].concat();
                    let (o, l) = softmax::reference(&query, &rows, s.dv, s.scale, None);
                    out[row * s.dv..][..s.dv].copy_from_slice(&o);
                    lse[row] = l;
                }
            }
        }
        Ok([("out".into(), f32_tensor(&[s.t, s.heads, s.dv], &out)), ("lse".into(), f32_tensor(&[s.t, s.heads], &lse))]
            .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        // By groups of heads: rows know of each other through the starts.
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let group = s.heads / s.kv_heads;
        let tensors = [("q", 1, group), ("k", 1, 1), ("v", 1, 1), ("out", 1, group), ("lse", 1, group)];
        vec![p::split("h_k", s.kv_heads, 1, &tensors)]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "lse" => Tolerance::AllCloseOr { abs: 1e-5, rel: 2.01 / 65536.0, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 1e-3, rel: 8.01 / 128.0, cos_diff: Some(7e-6) },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, q: &[usize], k: &[usize], [h, hk, dk, dv]: [usize; 4], causal: bool| {
            let (t, tk) = (q.iter().sum(), k.iter().sum());
            let starts = |name: &str, lengths: &[usize]| {
                let sums = lengths.iter().scan(0, |sum, n| {
                    *sum += n;
                    Some(*sum as f64)
                });
                let values: Vec<f64> = std::iter::once(0.0).chain(sums).collect();
                p::filled(name, Data::I32, &[values.len()], Fill::Values(values))
            };
            let inputs = vec![
                p::filled("q", Data::Bf16, &[t, h, dk], Fill::Normal(0.4)),
                p::filled("k", Data::Bf16, &[tk, hk, dk], Fill::Normal(0.4)),
                // Values of one sign: outputs without cancellation, whose rounding the bounds are for.
                p::filled("v", Data::Bf16, &[tk, hk, dv], Fill::Uniform(0.5, 2.0)),
                starts("cu_seqlens_q", q),
                starts("cu_seqlens_k", k),
            ];
            let causal = if causal { ParamValue::Text("bottom-right".into()) } else { ParamValue::Null };
            p::case(id, inputs, &[("causal", causal)])
        };
        vec![
            make("no_sequences", &[], &[], [2, 2, 64, 64], true),
            make("no_queries", &[0, 0], &[3, 0], [2, 1, 64, 64], true),
            make("no_keys", &[3, 2], &[0, 0], [2, 1, 64, 64], false),
            make("t70_causal", &[70], &[70], [2, 1, 64, 32], true),
            make("ragged_causal", &[5, 0, 33, 1], &[9, 4, 40, 70], [4, 2, 192, 128], true),
            make("ragged", &[1, 65, 3], &[64, 1, 0], [1, 1, 48, 40], false),
            make("fewer_keys_than_queries", &[40, 7], &[3, 7], [2, 2, 32, 16], true),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["b", "s", "h", "h_k", "causal"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 5]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[2, 4096, 128, 128, 1], [2, 8192, 32, 4, 1]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [b, s, h, hk, causal] = p::bench_sizes(OP, shape, ["b", "s", "h", "h_k", "causal"])?;
        let starts = || Fill::Values((0..=b).map(|i| (i * s) as f64).collect());
        let inputs = vec![
            p::filled("q", Data::Bf16, &[b * s, h, 192], Fill::Normal(0.4)),
            p::filled("k", Data::Bf16, &[b * s, hk, 192], Fill::Normal(0.4)),
            p::filled("v", Data::Bf16, &[b * s, hk, 128], Fill::Normal(0.4)),
            p::filled("cu_seqlens_q", Data::I32, &[b + 1], starts()),
            p::filled("cu_seqlens_k", Data::I32, &[b + 1], starts()),
        ];
        let mask = if causal > 0 { ParamValue::Text("bottom-right".into()) } else { ParamValue::Null };
        Ok(p::case(format!("b{b}_s{s}_h{h}_hk{hk}_causal{causal}"), inputs, &[("causal", mask)]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
        // Lengths are data: as if all sequences were equally long.
        let pairs = p::product(&[s.t, s.tk]) / s.sequences.max(1) as f64;
        let masked = if s.causal { 0.5 } else { 1.0 };
        Cost { flops: 2.0 * pairs * masked * p::product(&[s.heads, s.dk + s.dv]), bytes: p::bytes(&tensors) }
    }
}
