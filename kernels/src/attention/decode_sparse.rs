//! Decoding with multi-head latent attention over chosen tokens of a quantised cache, and of a second cache if there is one.
//!
//! `o = softmax(scale · q·Kᵀ) · V · 1/(1 + exp(sink − lse))`, where K holds the tokens that `indices` names, each a
//! position `page · P + offset` in the cache: duplicates count twice, an index outside the cache counts not at all, and
//! with `topk_length` only that many of the first entries count. Tokens of the extra cache join the same softmax. A query
//! that sees nothing gives zeros and `lse = +∞`; `lse` does not include the sink.
//!
//! *Tensors*: `q` `[b, s_q, h_q, d_qk]` bf16; `k_cache` `[pages, bytes]` u8 in a layout of `cache.rs`; `indices`
//! `[b, s_q, topk]` i32; `attn_sink` `[h_q]` f32 and `topk_length` `[b]` i32, may be left out; `extra_k_cache`,
//! `extra_indices` and `extra_topk_length` likewise; `out` `[b, s_q, h_q, d_v]` bf16; `lse` `[b, h_q, s_q]` f32, natural.
//! *Cost*: `2·h_q·(d_qk + d_v)` operations and one record a token; decoding costs more than the products.
//! *Numerics*: `softmax.rs`. The list is cut every `split_tokens` entries whatever it is batched with.
//! *Schedule*: a block takes some heads of one query and one split; it decodes a tile of tokens, then multiplies.
//! *Source*: DeepSeek-V3.2, 2025.

use super::cache::{self, Layout, decode_tokens};
use super::combine::kernel_for as combine_for;
use super::decode_dense::{field, with_merge};
use super::softmax::{self, Destination, attend, attention_begin, attention_end};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and what the caches hold.
#[derive(KernelConfig, Clone, Debug)]
pub struct SparseConfig {
    /// Heads of a block.
    #[tune(64, 32, 128)]
    pub rows: usize,
    /// Tokens of a step.
    #[numerics]
    #[tune(64, 32)]
    pub keys: usize,
    /// Entries of a split.
    #[numerics]
    #[tune(2048, 64, 512, 1024)]
    pub split_tokens: usize,
    /// Steps decoded ahead, and the current one.
    #[tune(1, 2)]
    pub stages: usize,
    /// Warps of a block.
    #[numerics]
    #[tune(8, 4)]
    pub warps: usize,
    /// Layout of the cache.
    #[default(Layout::V32)]
    pub layout: Layout,
    /// Tokens of its page.
    #[default(64)]
    pub page: usize,
    /// Layout of the extra cache.
    #[default(Layout::V32)]
    pub extra_layout: Layout,
    /// Tokens of its page.
    #[default(64)]
    pub extra_page: usize,
    /// No merge follows.
    #[default(true)]
    pub last: bool,
}

/// A tile of row numbers: entries `pos..` of a query's list, −1 where there is none or it names no token.
#[kernel_fn]
pub fn choose_rows(rows: Tile<I32, Shared, 1>, list: Gm<I32, 1>, pos: Ix, count: Ix, tokens: Ix) {
    for j in parallel(rows.extents()) {
        let row = list[pos + j];
        let named = pos + j < count && row >= 0 && row.to::<I64>() < tokens.to::<I64>();
        rows[j] = select(named, row, -1);
    }
}

/// One split of some heads of a query.
#[kernel(
    dims(h: fixed, dk: fixed, dv: fixed, bytes: fixed, extra_bytes: fixed),
    require(dv <= dk, cfg.split_tokens % cfg.keys == 0),
    deterministic,
    batch_invariant(b),
)]
pub fn mla_decode_sparse<O: Float>(
    cfg: &SparseConfig,
    q: In![Bf16; b, sq, h, dk],
    cache: In![U8; pages, bytes],
    indices: In![I32; b, sq, topk],
    length: Option<In![I32; b]>,
    extra: Option<In![U8; extra_pages, extra_bytes]>,
    extra_indices: Option<In![I32; b, sq, extra_topk]>,
    extra_length: Option<In![I32; b]>,
    sink: Option<In![F32; h]>,
    out: Out![O; splits, b, sq, h, dv; strides(_, _, _, _, 1)],
    lse: Out![F32; splits, b, h, sq; strides(_, _, _, _)],
    scale_log2: Scalar![F32],
) {
    let (rows, keys) = (cfg.rows, cfg.keys);
    let blocks = host!(h.div_ceil(rows));
    let (bi, qh, split) = grid((b, sq * blocks, splits));
    warps(cfg.warps);
    let (qi, h0) = (qh / blocks, qh % blocks * rows);

    let a = attention_begin::<Bf16>(rows, keys, dk, dv);
    copy(q.pick(bi).pick(qi).at((h0, 0)), a.q);
    let chosen = shared::<I32, 1>([keys]);

    // A split covers some steps of the list, and the steps of the extra list follow.
    let (lo, hi) = host!((split * (cfg.split_tokens / keys), (split + 1) * (cfg.split_tokens / keys)));
    let count = if let Some(length) = length { length[bi].clamp_index(0, topk) } else { topk };
    let list = indices.pick(bi).pick(qi);
    #[label(key_loop)]
    for step in pipeline(lo..hi.min(count.div_ceil(keys)), cfg.stages) {
        let pos = step * keys;
        choose_rows(chosen, list, pos, count, pages * cfg.page);
        decode_tokens(cfg.layout, cfg.page, cache, chosen, a.k);
        attend(&a, scale_log2, |_i: Ix, j: Ix| chosen[j] >= 0);
    }
    if let Some(extra) = extra
        && let Some(extra_indices) = extra_indices
    {
        let first = topk.div_ceil(keys);
        let count = if let Some(length) = extra_length { length[bi].clamp_index(0, extra_topk) } else { extra_topk };
        let list = extra_indices.pick(bi).pick(qi);
        #[label(extra_loop)]
        for step in pipeline(lo.saturating_sub(first)..hi.saturating_sub(first).min(count.div_ceil(keys)), cfg.stages) {
            let pos = step * keys;
            choose_rows(chosen, list, pos, count, extra_pages * cfg.extra_page);
            decode_tokens(cfg.extra_layout, cfg.extra_page, extra, chosen, a.k);
            attend(&a, scale_log2, |_i: Ix, j: Ix| chosen[j] >= 0);
        }
    }

    let to = Destination { out, lse, sink, last: cfg.last };
    attention_end(&a, &to, scale_log2, split, bi, |i: Ix| (qi, h0 + i));
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MlaDecodeSparse;

const OP: &str = "mla_decode_sparse";

/// A cache and its list.
struct Scope {
    layout: Layout,
    page: usize,
    pages: usize,
    bytes: usize,
    topk: usize,
}

/// What a problem asks for.
struct Shape {
    batch: usize,
    queries: usize,
    heads: usize,
    dk: usize,
    dv: usize,
    scale: f64,
    main: Scope,
    extra: Option<Scope>,
}

/// Reads one cache: names of its tensors, and of its parameters before the dot.
fn scope(
    specs: &p::Specs,
    params: &Params,
    [cache, indices, length]: [&str; 3],
    prefix: &str,
    [batch, queries, dk]: [usize; 3],
) -> Result<Scope, OpError> {
    let cache_spec = p::input(OP, specs, cache, &[Data::U8], 2)?;
    let list = p::input(OP, specs, indices, &[Data::I32], 3)?;
    p::shaped(OP, list, &[batch, queries, list.shape[2]], "one list a query")?;
    if let Some(length) = p::optional_input(OP, specs, length, &[Data::I32], 1)? {
        p::shaped(OP, length, &[batch], "one entry a request")?;
    }
    let name = format!("{prefix}layout");
    let words = ["v32_656", "v32_656_f32scale", "model1_584", "v41_528", "v41fp4_288"];
    let layout = Layout::named(p::word(OP, params, &name, &words)?).unwrap_or(Layout::V32);
    let page = p::count(OP, params, &format!("{prefix}page_block_size"), Some(64))?;
    let (pages, bytes) = (cache_spec.shape[0], cache_spec.shape[1]);
    if layout.width() != dk {
        return Err(p::refuse(OP, format!("tokens of `{cache}` have {} columns, `q` has {dk}", layout.width())));
    }
    if bytes < page * layout.token_bytes() {
        let message =
            format!("pages of `{cache}` have {bytes} bytes; {page} tokens need {}", page * layout.token_bytes());
        return Err(p::refuse(OP, message));
    }
    Ok(Scope { layout, page, pages, bytes, topk: list.shape[2] })
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let q = p::input(OP, specs, "q", &[Data::Bf16], 4)?;
    let &[batch, queries, heads, dk] = q.shape.as_slice() else { return Err(p::refuse(OP, "`q` has four axes")) };
    let sizes = [batch, queries, dk];
    let main = scope(specs, params, ["k_cache", "indices", "topk_length"], "", sizes)?;
    let extra = if specs.contains_key("extra_k_cache") {
        Some(scope(specs, params, ["extra_k_cache", "extra_indices", "extra_topk_length"], "extra.", sizes)?)
    } else {
        None
    };
    if let Some(sink) = p::optional_input(OP, specs, "attn_sink", &[Data::F32], 1)? {
        p::shaped(OP, sink, &[heads], "one entry a head")?;
    }
    let dv = p::count(OP, params, "d_v", Some(512))?;
    if dv > dk || heads == 0 {
        return Err(p::refuse(OP, format!("{heads} heads, values of {dv} of {dk} columns; expected d_v <= d_qk")));
    }
    let scale = p::number(OP, params, "softmax_scale", Some((dk as f64).powf(-0.5)))?;
    Ok(Shape { batch, queries, heads, dk, dv, scale, main, extra })
}

fn kernel_for(out: Data) -> Arc<dyn KernelDef> {
    if out == Data::F32 { mla_decode_sparse::kernel::<F32>() } else { mla_decode_sparse::kernel::<Bf16>() }
}

/// The tokens a query sees in one cache.
fn visible(
    problem: &HostProblem,
    s: &Shape,
    scope: &Scope,
    [cache, indices, length]: [&str; 3],
    (b, i): (usize, usize),
) -> Result<Vec<Vec<f64>>, OpError> {
    let list = p::numbers(OP, problem, indices)?;
    let list = &list[(b * s.queries + i) * scope.topk..][..scope.topk];
    let length = problem.tensors.get(length).map(|t| t.to_f64()[b].max(0.0) as usize);
    let bytes = &problem.tensors.get(cache).ok_or_else(|| p::refuse(OP, format!("needs `{cache}`")))?.data;
    let tokens = (scope.pages * scope.page) as f64;
    let named = list.iter().take(length.unwrap_or(usize::MAX)).filter(|row| **row >= 0.0 && **row < tokens);
    Ok(named
        .map(|row| {
            let (page, t) = (*row as usize / scope.page, *row as usize % scope.page);
            cache::reference(scope.layout, &bytes[page * scope.bytes..][..scope.bytes], scope.page, t)
        })
        .collect())
}

impl OpSpec for MlaDecodeSparse {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("mla_sparse_decode_fp8"),
            family: "attention",
            formula: "o = softmax(scale · q·Kᵀ) · K[.., ..d_v] over chosen tokens of quantised caches",
            source: "DeepSeek-V3.2, 2025",
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
        let dims = [
            ("b", s.batch),
            ("sq", s.queries),
            ("h", s.heads),
            ("topk", s.main.topk),
            ("extra_topk", s.extra.as_ref().map_or(0, |e| e.topk)),
        ];
        let mut config = p::choose(configs, &kernel_for(Data::Bf16), &dims);
        p::at_most(&mut config, "rows", s.heads.next_power_of_two().max(16));
        p::set(&mut config, "layout", ConfigValue::Word(format!("{:?}", s.main.layout)));
        p::set(&mut config, "page", ConfigValue::Int(s.main.page));
        if let Some(extra) = &s.extra {
            p::set(&mut config, "extra_layout", ConfigValue::Word(format!("{:?}", extra.layout)));
            p::set(&mut config, "extra_page", ConfigValue::Int(extra.page));
        }
        let keys = field(&config, "keys");
        let steps = s.main.topk.div_ceil(keys) + s.extra.as_ref().map_or(0, |e| e.topk.div_ceil(keys));
        let splits = steps.div_ceil((field(&config, "split_tokens") / keys).max(1)).max(1);
        p::set(&mut config, "last", ConfigValue::Bool(splits == 1));
        let kernel = kernel_for(if splits == 1 { Data::Bf16 } else { Data::F32 });
        let scale = Literal::f32((s.scale * std::f64::consts::LOG2_E) as f32);
        let inputs = [
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "k_cache")?,
            p::arg(OP, problem, "indices")?,
            p::optional_arg(problem, "topk_length"),
            p::optional_arg(problem, "extra_k_cache"),
            p::optional_arg(problem, "extra_indices"),
            p::optional_arg(problem, "extra_topk_length"),
        ];
        let (out, lse) = (p::view(OP, problem, "out")?, p::view(OP, problem, "lse")?);
        let sink = p::optional_arg(problem, "attn_sink");
        let sizes = [s.batch, s.queries, s.heads, s.dv];
        let (steps, bytes) = with_merge(configs, splits, sizes, (&out, &lse, sink), |out, lse, sink| {
            let tail = [sink, out, lse, kiln_codegen::abi::Arg::Scalar(scale)];
            let args = inputs.iter().cloned().chain(tail).collect();
            Launch { kernel: kernel.clone(), config: config.clone(), args }
        });
        Ok(Plan { steps, workspaces: if splits > 1 { bytes.to_vec() } else { vec![] } })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let q = p::numbers(OP, problem, "q")?;
        let sink = problem.tensors.get("attn_sink").map(HostTensor::to_f64);
        let mut out = vec![0.0; s.batch * s.queries * s.heads * s.dv];
        let mut lse = vec![0.0; s.batch * s.heads * s.queries];
        for b in 0..s.batch {
            for i in 0..s.queries {
                let mut tokens = visible(problem, &s, &s.main, ["k_cache", "indices", "topk_length"], (b, i))?;
                if let Some(extra) = &s.extra {
                    let names = ["extra_k_cache", "extra_indices", "extra_topk_length"];
                    tokens.extend(visible(problem, &s, extra, names, (b, i))?);
                }
                let keys: Vec<&[f64]> = tokens.iter().map(Vec::as_slice).collect();
                for h in 0..s.heads {
                    let row = (b * s.queries + i) * s.heads + h;
                    let sink = sink.as_ref().map(|t| t[h]);
                    let (o, l) = softmax::reference(&q[row * s.dk..][..s.dk], &keys, s.dv, s.scale, sink);
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
        let requests = ["q", "indices", "topk_length", "extra_indices", "extra_topk_length", "out", "lse"];
        vec![
            p::split("b", s.batch, 1, &requests.map(|name| (name, 0, 1))),
            p::split("h_q", s.heads, 1, &[("q", 2, 1), ("attn_sink", 0, 1), ("out", 2, 1), ("lse", 1, 1)]),
        ]
    }
    fn tolerance(&self, output: &str, _: &Params) -> Tolerance {
        match output {
            "lse" => Tolerance::AllCloseOr { abs: 1e-5, rel: 8.01 / 65536.0, cos_diff: None },
            _ => Tolerance::AllCloseOr { abs: 1e-3, rel: 2.01 / 128.0, cos_diff: Some(5e-6) },
        }
    }
    fn cases(&self) -> Vec<Case> {
        // Bytes that make positive numbers as codes and as scales: outputs without cancellation, whose rounding the bounds
        // are for. The golden cases hold real caches.
        let make = |id: &str, layout: &str, page: usize, [b, heads, topk]: [usize; 3], fill: Fill| {
            let kind = Layout::named(layout).unwrap_or(Layout::V32);
            let bytes = (page * kind.token_bytes()).next_multiple_of(576);
            let inputs = vec![
                p::filled("q", Data::Bf16, &[b, 1, heads, kind.width()], Fill::Normal(0.1)),
                p::filled("k_cache", Data::U8, &[3, bytes], fill),
                p::filled("indices", Data::I32, &[b, 1, topk], Fill::Uniform(-3.0, 4.0 * page as f64)),
            ];
            let params =
                [("layout", ParamValue::Text(layout.into())), ("page_block_size", ParamValue::Int(page as i64))];
            p::case(id, inputs, &params)
        };
        vec![
            make("no_requests", "v41_528", 64, [0, 4, 64], Fill::Constant(0.0)),
            make("v32_page_61_split", "v32_656", 61, [1, 3, 150], Fill::Uniform(56.0, 63.0)),
            make("model1_page_2", "model1_584", 2, [2, 5, 70], Fill::Uniform(56.0, 63.0)),
            make("v41fp4_page_69", "v41fp4_288", 69, [1, 2, 32], Fill::Uniform(33.0, 38.0)),
            make("no_cache_tokens_named", "v41_528", 16, [1, 2, 0], Fill::Constant(0.0)),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["b", "s_q", "h_q", "d", "s_k", "topk", "extra_topk", "page"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 8]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [
            [128, 1, 128, 576, 32_768, 2048, 0, 64],
            [128, 1, 64, 512, 32_768, 128, 512, 64],
            [128, 1, 128, 512, 32_768, 128, 1024, 64],
        ]
        .map(shape)
        .into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let keys = ["b", "s_q", "h_q", "d", "s_k", "topk", "extra_topk", "page"];
        let [b, s_q, h, d, s_k, topk, extra_topk, page] = p::bench_sizes(OP, shape, keys)?;
        let (layout, kind) = if d == 576 { ("v32_656", Layout::V32) } else { ("model1_584", Layout::Model1) };
        if page == 0 {
            return Err(p::refuse(OP, "shape key `page` is 0; expected the tokens of a page"));
        }
        let (pages, bytes) = (s_k.div_ceil(page) * b, (page * kind.token_bytes()).next_multiple_of(576));
        let list = Fill::Uniform(0.0, (pages * page) as f64);
        let mut inputs = vec![
            p::filled("q", Data::Bf16, &[b, s_q, h, d], Fill::Normal(0.1)),
            p::filled("k_cache", Data::U8, &[pages, bytes], Fill::Uniform(56.0, 63.0)),
            p::filled("indices", Data::I32, &[b, s_q, topk], list.clone()),
        ];
        let mut params =
            vec![("layout", ParamValue::Text(layout.into())), ("page_block_size", ParamValue::Int(page as i64))];
        if extra_topk > 0 {
            inputs.push(p::filled("extra_k_cache", Data::U8, &[pages, bytes], Fill::Uniform(56.0, 63.0)));
            inputs.push(p::filled("extra_indices", Data::I32, &[b, s_q, extra_topk], list));
            params.push(("extra.layout", ParamValue::Text(layout.into())));
            params.push(("extra.page_block_size", ParamValue::Int(page as i64)));
        }
        Ok(p::case(format!("b{b}_sq{s_q}_h{h}_d{d}_sk{s_k}_topk{topk}_{extra_topk}_page{page}"), inputs, &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(s), Ok(outputs)) = (shape_of(specs, params), self.outputs(specs, params)) else {
            return Cost::default();
        };
        let rows = p::product(&[s.batch, s.queries]);
        let scopes = || s.extra.iter().chain([&s.main]);
        let tokens: usize = scopes().map(|c| c.topk).sum();
        let records: f64 = scopes().map(|c| p::product(&[c.topk, c.layout.token_bytes() + 4])).sum();
        let flops = rows * 2.0 * p::product(&[s.heads, tokens, s.dk + s.dv]);
        let moved = p::bytes(&outputs.iter().chain(specs.get("q")).collect::<Vec<_>>());
        Cost { flops, bytes: rows * records + moved }
    }
}
