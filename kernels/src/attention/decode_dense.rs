//! Decoding with multi-head latent attention over a paged cache of bf16 keys; values are the keys' first `d_v` columns.
//!
//! `o = softmax(scale · q·Kᵀ) · V` over the first `cache_seqlens[b]` keys of a request. With `causal`, query `i` of `s_q` sees
//! key `j` iff `j ≤ i + (len − s_q)`. A query that sees nothing gives zeros and `lse = +∞`.
//!
//! *Tensors*: `q` `[b, s_q, h_q, d_qk]` bf16; `k_cache` `[pages, page, h_kv, d_qk]` bf16; `block_table` `[b, max_pages]` i32,
//! anything beyond a request's length; `cache_seqlens` `[b]` i32; `out` `[b, s_q, h_q, d_v]` bf16; `lse` `[b, h_q, s_q]` f32,
//! natural.
//! *Cost*: `2·s_q·h_q·(d_qk + d_v)` operations and `2·d_qk` bytes a key; both bounds meet near 128 rows.
//! *Numerics*: `softmax.rs`. A request is cut every `split_tokens` keys whatever it is batched with, so it keeps its bits.
//! *Schedule*: a block takes some rows (queries times heads of one key head) and one split, key tiles are loaded ahead. Row
//! tiles that fit one split are written at once, others are merged by `mla_combine`. On `sm_90a`: `decode_dense_roles.rs`.
//! *Source*: DeepSeek-V2, 2024; Dao et al., Flash-Decoding, 2023.

use super::combine::{kernel_for as combine_for, spread_axes};
use super::decode_dense_roles::mla_decode_dense_roles;
use super::softmax::{self, Destination, attend, attention_begin, attention_end};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
use kiln_codegen::formats;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::schedule::attach_form;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and which attention is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct DenseConfig {
    /// Rows of a block.
    #[tune(64, 128, 32)]
    pub rows: usize,
    /// Keys of a step.
    #[numerics]
    #[tune(64, 32)]
    pub keys: usize,
    /// Keys of a split.
    #[numerics]
    #[tune(2048, 256, 1024, 4096, 8192)]
    pub split_tokens: usize,
    /// Steps loaded ahead, and the current one.
    #[tune(1, 2)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(8, 4)]
    pub warps: usize,
    /// Later keys are hidden from earlier queries.
    #[default(false)]
    pub causal: bool,
    /// No merge follows.
    #[default(true)]
    pub last: bool,
}

/// One split of some rows.
#[kernel(
    dims(h: fixed, dk: fixed, dv: fixed, page: fixed),
    require(dv <= dk, cfg.split_tokens % cfg.keys == 0),
    deterministic,
    batch_invariant(b),
)]
pub fn mla_decode_dense<O: Float>(
    cfg: &DenseConfig,
    q: In![Bf16; b, sq, h, dk; strides(_, _, _, 1)],
    kv: In![Bf16; pages, page, dk; strides(_, _, 1)],
    table: In![I32; b, max_pages],
    lens: In![I32; b],
    out: Out![O; splits, b, sq, h, dv; strides(_, _, _, _, 1)],
    lse: Out![F32; splits, b, h, sq; strides(_, _, _, _)],
    scale_log2: Scalar![F32],
) {
    let (rows, keys) = (cfg.rows, cfg.keys);
    // Blocks that read the same keys are neighbours.
    let (ri, bi, split) = grid(((sq * h).div_ceil(rows), b, splits));
    warps(cfg.warps);
    let r0 = ri * rows;
    let len = lens[bi].clamp_index(0, max_pages * page);
    let lo = split * cfg.split_tokens;
    let hi = (lo + cfg.split_tokens).min(len);
    let cache = kv.paged(table.pick(bi), page);

    let a = attention_begin::<Bf16>(rows, keys, dk, dv);
    let (q_s, k_s) = (a.q, a.k);
    for (i, d) in parallel([rows, dk]) {
        let r = r0 + i;
        q_s[(i, d)] = q[(bi, r / h, r % h, d)];
    }

    #[label(key_loop)]
    for step in pipeline(0..hi.saturating_sub(lo).div_ceil(keys), cfg.stages) {
        let pos = lo + step * keys;
        copy(cache.at((pos, 0)), k_s);
        // The page of the last key goes on with memory that nobody wrote: never multiplied, so that NaN stays there.
        if pos + keys > hi {
            for (j, d) in parallel([keys, dk]) {
                if pos + j >= hi {
                    k_s[(j, d)] = V::<Bf16>::of(0.0);
                }
            }
        }
        attend(&a, scale_log2, |i: Ix, j: Ix| {
            let key = pos + j;
            if cfg.causal { key < hi && key + sq <= len + (r0 + i) / h } else { key < hi }
        });
    }

    let to = Destination { out, lse, sink: None, last: cfg.last };
    attention_end(&a, &to, scale_log2, split, bi, |i: Ix| ((r0 + i) / h, (r0 + i) % h));
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MlaDecodeDense;

const OP: &str = "mla_decode_dense";

/// What a problem asks for.
struct Shape {
    batch: usize,
    queries: usize,
    heads: usize,
    key_heads: usize,
    dk: usize,
    dv: usize,
    pages: usize,
    page: usize,
    max_pages: usize,
    causal: bool,
    scale: f64,
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let q = p::input(OP, specs, "q", &[Data::Bf16], 4)?;
    let cache = p::input(OP, specs, "k_cache", &[Data::Bf16], 4)?;
    let table = p::input(OP, specs, "block_table", &[Data::I32], 2)?;
    let lens = p::input(OP, specs, "cache_seqlens", &[Data::I32], 1)?;
    let &[batch, queries, heads, dk] = q.shape.as_slice() else { return Err(p::refuse(OP, "`q` has four axes")) };
    let &[pages, page, key_heads, _] = cache.shape.as_slice() else {
        return Err(p::refuse(OP, "`k_cache` has four axes"));
    };
    p::shaped(OP, cache, &[pages, page, key_heads, dk], "with the width of `q`")?;
    p::shaped(OP, table, &[batch, table.shape[1]], "one row a request")?;
    p::shaped(OP, lens, &[batch], "one entry a request")?;
    let dv = p::count(OP, params, "d_v", Some(dk.min(512)))?;
    if dv > dk || page == 0 || heads == 0 || key_heads == 0 || heads % key_heads != 0 {
        let message = format!("{heads} heads over {key_heads} key heads, {dv} of {dk} columns, pages of {page} keys");
        return Err(p::refuse(OP, format!("{message}; expected whole groups of heads, d_v <= d_qk and pages of keys")));
    }
    Ok(Shape {
        batch,
        queries,
        heads,
        key_heads,
        dk,
        dv,
        pages,
        page,
        max_pages: table.shape[1],
        causal: p::flag(OP, params, "causal", false)?,
        scale: p::number(OP, params, "softmax_scale", Some((dk as f64).powf(-0.5)))?,
    })
}

fn kernel_for(out: Data) -> Arc<dyn KernelDef> {
    let (plain, roles): (Arc<dyn KernelDef>, Arc<dyn KernelDef>) = match out {
        Data::F32 => (mla_decode_dense::kernel::<F32>(), mla_decode_dense_roles::kernel::<F32>()),
        _ => (mla_decode_dense::kernel::<Bf16>(), mla_decode_dense_roles::kernel::<Bf16>()),
    };
    attach_form(plain, Target::Sm90a, roles)
}

/// The part of a view with `count` indices of `axis` from `first` on.
pub(super) fn slice(view: &TensorView, axis: usize, first: usize, count: usize) -> TensorView {
    let mut part = view.clone();
    part.shape[axis] = count;
    // A view without elements has no place: it may not point past an allocation of no bytes.
    if part.num_elements() > 0 {
        part.offset_bytes += view.dtype.bytes(first * view.strides[axis]);
    }
    part
}

/// A whole-number field of a configuration.
pub(super) fn field(config: &Config, name: &str) -> usize {
    if let Some(ConfigValue::Int(x)) = config.0.get(name) { *x } else { 1 }
}

/// The steps that write `out` and `lse`: one launch if there is one split, otherwise a launch into workspace 0 (partial
/// outputs) and 1 (their log-sum-exp) and a merge. `launch` makes the first from its outputs.
pub(super) fn with_merge(
    configs: &dyn Configs,
    splits: usize,
    [batch, queries, heads, dv]: [usize; 4],
    (out, lse, sink): (&TensorView, &TensorView, Arg),
    launch: impl Fn(Arg, Arg, Arg) -> Launch,
) -> (Vec<Launch>, [usize; 2]) {
    let out5 = spread_axes(out, &[None, Some(0), Some(1), Some(2), Some(3)]);
    let lse4 = spread_axes(lse, &[None, Some(0), Some(1), Some(2)]);
    if splits <= 1 {
        return (vec![launch(Arg::Tensor(out5), Arg::Tensor(lse4), sink)], [0, 0]);
    }
    let part = |index: usize, shape: &[usize]| Arg::Workspace {
        index,
        dtype: Data::F32,
        shape: shape.to_vec(),
        offset_bytes: 0,
    };
    let parts = part(0, &[splits, batch, queries, heads, dv]);
    let part_lse = part(1, &[splits, batch, heads, queries]);
    let kernel = combine_for(out.dtype);
    let dims = [("splits", splits), ("b", batch), ("q", queries), ("h", heads), ("dv", dv)];
    let config = p::choose(configs, &kernel, &dims);
    let args = vec![parts.clone(), part_lse.clone(), sink, Arg::Tensor(out.clone()), Arg::Tensor(lse.clone())];
    let rows = splits * batch * queries * heads;
    (vec![launch(parts, part_lse, Arg::Absent), Launch { kernel, config, args }], [rows * dv * 4, rows * 4])
}

impl OpSpec for MlaDecodeDense {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mla_dense_decode"),
            family: "attention",
            formula: "o = softmax(scale · q·Kᵀ) · K[.., ..d_v] over a paged cache",
            source: "DeepSeek-V2, 2024",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kernel_for(Data::Bf16), kernel_for(Data::F32), combine_for(Data::Bf16)]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        Ok(vec![
            p::spec("out", Data::Bf16, &[s.batch, s.queries, s.heads, s.dv]),
            p::spec("lse", Data::F32, &[s.batch, s.heads, s.queries]),
        ])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let group = s.heads / s.key_heads;
        let dims = [("b", s.batch), ("sq", s.queries), ("h", group), ("dk", s.dk), ("dv", s.dv), ("page", s.page)];
        let mut config = p::choose(configs, &kernel_for(Data::Bf16), &dims);
        p::at_most(&mut config, "rows", (s.queries * group).next_power_of_two().max(16));
        p::set(&mut config, "causal", ConfigValue::Bool(s.causal));
        let splits = (s.max_pages * s.page).div_ceil(field(&config, "split_tokens")).max(1);
        p::set(&mut config, "last", ConfigValue::Bool(splits == 1));
        let kernel = kernel_for(if splits == 1 { Data::Bf16 } else { Data::F32 });
        let scale = Literal::f32((s.scale * std::f64::consts::LOG2_E) as f32);

        let view = |name: &str| p::view(OP, problem, name);
        let (q, cache, out, lse) = (view("q")?, view("k_cache")?, view("out")?, view("lse")?);
        let (table, lens) = (p::arg(OP, problem, "block_table")?, p::arg(OP, problem, "cache_seqlens")?);
        let mut plan = Plan::default();
        // Heads that share keys are rows of one launch; launches run one after another, so they share workspaces.
        for head in 0..s.key_heads {
            let q = slice(&q, 2, head * group, group);
            let keys = slice(&cache, 2, head, 1);
            let keys = TensorView {
                shape: vec![s.pages, s.page, s.dk],
                strides: vec![keys.strides[0], keys.strides[1], keys.strides[3]],
                ..keys
            };
            let (out, lse) = (slice(&out, 2, head * group, group), slice(&lse, 1, head * group, group));
            let (steps, bytes) = with_merge(
                configs,
                splits,
                [s.batch, s.queries, group, s.dv],
                (&out, &lse, Arg::Absent),
                |out, lse, _| Launch {
                    kernel: kernel.clone(),
                    config: config.clone(),
                    args: vec![
                        Arg::Tensor(q.clone()),
                        Arg::Tensor(keys.clone()),
                        table.clone(),
                        lens.clone(),
                        out,
                        lse,
                        Arg::Scalar(scale),
                    ],
                },
            );
            plan.steps.extend(steps);
            if splits > 1 {
                plan.workspaces = bytes.to_vec();
            }
        }
        Ok(plan)
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let numbers = |name: &str| p::numbers(OP, problem, name);
        let q = numbers("q")?;
        let cache = problem.tensors.get("k_cache").ok_or_else(|| p::refuse(OP, "needs the tensor `k_cache`"))?;
        let (table, lens) = (numbers("block_table")?, numbers("cache_seqlens")?);
        let mut out = vec![0.0; s.batch * s.queries * s.heads * s.dv];
        let mut lse = vec![0.0; s.batch * s.heads * s.queries];
        let key = |b: usize, j: usize, head: usize| {
            let page = table[b * s.max_pages + j / s.page];
            let exists = page >= 0.0 && page < s.pages as f64;
            let at = ((page as usize * s.page + j % s.page) * s.key_heads + head) * s.dk;
            let number = |i: usize| formats::decode_f64(cache.dtype, cache.bits(i));
            if exists { (at..at + s.dk).map(number).collect() } else { vec![0.0; s.dk] }
        };
        for b in 0..s.batch {
            let len = lens[b].clamp(0.0, (s.max_pages * s.page) as f64) as usize;
            // A cache may be far larger than what the requests name of it.
            let cached: Vec<Vec<Vec<f64>>> =
                (0..s.key_heads).map(|head| (0..len).map(|j| key(b, j, head)).collect()).collect();
            for i in 0..s.queries {
                let visible = if s.causal { (len + i + 1).saturating_sub(s.queries).min(len) } else { len };
                for h in 0..s.heads {
                    let named = &cached[h / (s.heads / s.key_heads)][..visible];
                    let keys: Vec<&[f64]> = named.iter().map(Vec::as_slice).collect();
                    let row = (b * s.queries + i) * s.heads + h;
                    let (o, l) = softmax::reference(&q[row * s.dk..][..s.dk], &keys, s.dv, s.scale, None);
                    out[row * s.dv..][..s.dv].copy_from_slice(&o);
                    lse[(b * s.heads + h) * s.queries + i] = l;
                }
            }
        }
        Ok([
            ("out".into(), f32_tensor(&[s.batch, s.queries, s.heads, s.dv], &out)),
            ("lse".into(), f32_tensor(&[s.batch, s.heads, s.queries], &lse)),
        ]
        .into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let requests = ["q", "block_table", "cache_seqlens", "out", "lse"].map(|name| (name, 0, 1));
        let mut splits = vec![p::split("b", s.batch, 1, &requests)];
        if s.key_heads == 1 {
            splits.push(p::split("h_q", s.heads, 1, &[("q", 2, 1), ("out", 2, 1), ("lse", 1, 1)]));
        }
        splits
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "lse" => Tolerance::AllCloseOr { abs: 1e-5, rel: 8.01 / 65536.0, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 8e-4, rel: 2.01 / 128.0, cos_diff: Some(5e-6) },
        }
    }
    fn cases(&self) -> Vec<Case> {
        // `[h_q, h_kv, d_qk, d_v, page]`; every request has its own pages, in falling order.
        let make = |id: &str, lens: &[usize], queries: usize, [h, hk, dk, dv, page]: [usize; 5], causal: bool| {
            let max_pages = lens.iter().map(|l| l.div_ceil(page)).max().unwrap_or(0).max(1);
            let pages = lens.len() * max_pages;
            let table: Vec<f64> = (0..pages).rev().map(|x| x as f64).collect();
            let inputs = vec![
                p::filled("q", Data::Bf16, &[lens.len(), queries, h, dk], Fill::Normal(0.5)),
                p::filled("k_cache", Data::Bf16, &[pages, page, hk, dk], Fill::Normal(0.3)),
                p::filled("block_table", Data::I32, &[lens.len(), max_pages], Fill::Values(table)),
                p::filled(
                    "cache_seqlens",
                    Data::I32,
                    &[lens.len()],
                    Fill::Values(lens.iter().map(|&l| l as f64).collect()),
                ),
            ];
            p::case(id, inputs, &[("d_v", ParamValue::Int(dv as i64)), ("causal", ParamValue::Bool(causal))])
        };
        vec![
            make("no_requests", &[], 1, [4, 1, 72, 64, 16], false),
            make("split_boundaries", &[255, 256, 257, 600], 1, [3, 1, 24, 16, 64], false),
            make("two_key_heads", &[33, 70], 2, [4, 2, 40, 32, 16], true),
            make("split_two_key_heads", &[300, 7], 2, [4, 2, 24, 16, 16], true),
            make("odd_page", &[70], 1, [2, 1, 40, 40, 61], false),
            make("whole_pieces", &[70, 64], 2, [24, 1, 192, 128, 64], true),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["b", "s_q", "s_k", "h_q", "d", "dv", "page"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |(b, s_q, s_k)| {
            let sizes = [b, s_q, s_k, 128, 576, 512, 64];
            self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect()
        };
        [(32, 1, 4096), (64, 1, 4096), (128, 1, 4096), (128, 1, 8192), (128, 2, 4096)].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let keys = ["b", "s_q", "s_k", "h_q", "d", "dv", "page"];
        let [b, s_q, s_k, h, d, dv, page] = p::bench_sizes(OP, shape, keys)?;
        if page == 0 {
            return Err(p::refuse(OP, "shape key `page` is 0; expected the keys of a page"));
        }
        let max_pages = s_k.div_ceil(page);
        let table = (0..b * max_pages).map(|x| x as f64).collect();
        let inputs = vec![
            p::filled("q", Data::Bf16, &[b, s_q, h, d], Fill::Normal(0.5)),
            p::filled("k_cache", Data::Bf16, &[b * max_pages, page, 1, d], Fill::Normal(0.3)),
            p::filled("block_table", Data::I32, &[b, max_pages], Fill::Values(table)),
            p::filled("cache_seqlens", Data::I32, &[b], Fill::Constant(s_k as f64)),
        ];
        let params = [("d_v", ParamValue::Int(dv as i64)), ("causal", ParamValue::Bool(s_q > 1))];
        Ok(p::case(format!("b{b}_sq{s_q}_sk{s_k}_h{h}_d{d}_dv{dv}_page{page}"), inputs, &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        // Lengths are data: the whole table counts.
        let keys = p::product(&[s.batch, s.max_pages, s.page]);
        let flops = keys * 2.0 * p::product(&[s.queries, s.heads, s.dk + s.dv]);
        let moved = p::bytes(&outputs.iter().chain(specs.get("q")).collect::<Vec<_>>());
        Cost { flops, bytes: keys * 2.0 * p::product(&[s.key_heads, s.dk]) + moved }
    }
}
