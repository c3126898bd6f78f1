//! Index scores over e4m3 keys (or f32 ones, for exact comparisons): `logits[i, j] = sf[j] · Σ_h max(q[i, h]·kv[j], 0) · weights[i, h]`, keys contiguous or paged.
//!
//! *Tensors, contiguous*: `q` `[t, heads, d]`, `kv` `[s, d]` e4m3, or both f32; `kv_sf` `[s]`, `weights` `[t, heads]` f32;
//! `cu_seq_len_k_start`, `cu_seq_len_k_end` `[t]` i32, the keys a query sees, cut to `[0, s)`; `logits` `[t, s]`.
//! *Tensors, paged*: `q` `[b, next_n, heads, d]`; `kv_cache` `[pages, page·(d+4)]` bytes, a page's keys and then their f32
//! scales; `block_table` `[b, entries]` i32; `weights` `[b·next_n, heads]`; `context_lens` `[b, next_n]` i32, or `[b]`,
//! where query `t` of request `r` then sees `context_lens[r] − next_n + t + 1` keys; `logits` `[b·next_n,
//! max_context_len]`. `logits` is f32 or bf16. Scales of queries and of the softmax belong in `weights`.
//! *Cost*: `2·heads·d` operations a pair; compute bound until the scores themselves are the traffic.
//! *Numerics*: f32 throughout, the sum over heads in the kernel's declared order. Minus infinity where a query sees no key
//! (with `clean_logits: false` only in tiles that hold a visible key). Memory that no query sees may hold anything.
//! *Schedule*: some queries with all their heads against a span of keys a block; keys are copied ahead.
//! *Source*: DeepSeek-V3.2 technical report, lightning indexer.

use crate::gemm::fp8::out_dtype;
use crate::index::score::{Range, head_sums, logits, ranges, scores};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct IndexConfig {
    /// Queries of a block.
    #[tune(2, 1)]
    pub bq: usize,
    /// Keys of a step.
    #[tune(64, 128)]
    pub bn: usize,
    /// Steps of a block.
    #[tune(8, 2)]
    pub steps: usize,
    /// Stages of the copies.
    #[tune(2, 3)]
    pub stages: usize,
    /// Write minus infinity to tiles without visible keys.
    #[default(true)]
    pub clean: bool,
}

/// Work of a block, and the layout of the cache.
#[derive(KernelConfig, Clone, Debug)]
pub struct PagedIndexConfig {
    /// Queries of a block, of one request.
    #[tune(2, 1)]
    pub bq: usize,
    /// Keys of a step.
    #[tune(64, 128)]
    pub bn: usize,
    /// Steps of a block.
    #[tune(8, 2)]
    pub steps: usize,
    /// Stages of the copies.
    #[tune(2, 3)]
    pub stages: usize,
    /// Write minus infinity to tiles without visible keys.
    #[default(true)]
    pub clean: bool,
    /// Keys of a page.
    #[default(64)]
    pub page: usize,
    /// One length a request, that of its last query; otherwise one a query.
    #[default(false)]
    pub shared_length: bool,
}

/// Minus infinity in tiles `from..to` of `bn` columns, rows `r0..r0 + rows`.
#[kernel_fn]
pub fn clear_tiles<O: Float>(logits: Gm<O, 2, Wr>, r0: Ix, rows: usize, from: Ix, to: Ix, bn: usize) {
    for jb in from..to {
        for (i, n) in parallel([rows, bn]) {
            logits[(r0 + i, jb * bn + n)] = V::<O>::of(f64::NEG_INFINITY);
        }
    }
}

/// Scores of contiguous keys.
#[kernel(dims(heads: fixed, d: fixed), deterministic, batch_invariant(t))]
pub fn indexer_logits<T: Float, O: Float>(
    cfg: &IndexConfig,
    q: In![T; t, heads, d],
    k: In![T; s, d; strides(ldk, 1)],
    k_scale: In![F32; s],
    weights: In![F32; t, heads],
    first: In![I32; t],
    last: In![I32; t],
    logits: Out![O; t, s; strides(ldl, 1)],
) where
    (T, T, F32): Mma,
{
    let (bq, bn, span) = (cfg.bq, cfg.bn, cfg.bn * cfg.steps);
    let (qi, si) = grid((t.div_ceil(bq), s.div_ceil(span)));
    let (t0, s0) = (qi * bq, si * span);
    let s1 = (s0 + span).min(s);

    // Keys that some query of the block sees, cut to the block's span. Queries past the end see none.
    let lo = tile_min([bq], |i: Ix| first.get_or(t0 + i, i32::MAX)).clamp_index(0, s).max(s0).min(s1);
    let hi = tile_max([bq], |i: Ix| last.get_or(t0 + i, 0)).clamp_index(0, s).min(s1);
    let from = lo / bn;
    let to = hi.div_ceil(bn).max(from);

    let q_s = shared::<T, 2>([bq * heads, d]);
    let k_s = shared::<T, 2>([bn, d]);
    let ks_s = shared::<F32, 1>([bn]);
    let w_f = frag::<F32, 2>([bq, heads]);
    let dots = frag::<F32, 2>([bn, bq * heads]);
    copy(q.merge_leading().at((t0 * heads, 0)), q_s);
    copy(weights.at((t0, 0)), w_f);

    if cfg.clean {
        clear_tiles(logits, t0, bq, s0 / bn, from, bn);
        clear_tiles(logits, t0, bq, to, s1.div_ceil(bn), bn);
    }
    #[label(key_loop)]
    for jb in pipeline(from..to, cfg.stages) {
        #[label(load_k)]
        copy(k.at((jb * bn, 0)), k_s);
        copy(k_scale.at(jb * bn), ks_s);
        #[label(qk)]
        gemm_set(k_s, q_s.t(), dots);
        let sums = head_sums(dots, w_f);
        for (i, n) in parallel([bq, bn]) {
            let (row, key) = (t0 + i, jb * bn + n);
            let seen = key.value() >= first[row] && key.value() < last[row];
            logits[(row, key)] = select(seen, sums[(n, i)] * ks_s[n], NEG_INF).to::<O>();
        }
    }
}

/// Scores of paged keys.
#[kernel(
    dims(heads: fixed, d: fixed, bytes: fixed),
    require(bytes == cfg.page * (d + 4), bytes % 4 == 0, d % 4 == 0),
    deterministic,
    batch_invariant(b),
)]
pub fn indexer_logits_paged<O: Float>(
    cfg: &PagedIndexConfig,
    q: In![E4m3; b, next, heads, d],
    cache: In![U8; pages, bytes],
    table: In![I32; b, entries],
    lens: In![I32; b, lengths],
    weights: In![F32; b, next, heads],
    logits: Out![O; b, next, context],
) {
    let (bq, bn, span, page) = (cfg.bq, cfg.bn, cfg.bn * cfg.steps, cfg.page);
    let (bi, qi, si) = grid((b, next.div_ceil(bq), context.div_ceil(span)));
    let (t0, s0) = (qi * bq, si * span);
    let s1 = (s0 + span).min(context);
    let (queries, out, lens_r) = (q.pick(bi), logits.pick(bi), lens.pick(bi));

    let keys = cache.view_as::<E4m3, 3>(0, (pages, page, d), (bytes, d, 1)).paged(table.pick(bi), page);
    let scales = cache.view_as::<F32, 2>(page * d, (pages, page), (bytes, 4)).paged(table.pick(bi), page);

    // How many keys each query of the block sees.
    let seen = shared::<I32, 1>([bq]);
    for i in parallel([bq]) {
        seen[i] = if cfg.shared_length { lens_r[0] - (next - 1 - t0 - i).value() } else { lens_r[t0 + i] };
    }
    let hi = tile_max([bq], |i: Ix| select(t0 + i < next, seen[i], 0)).clamp_index(0, context).min(s1);
    let from = s0 / bn;
    let to = hi.div_ceil(bn).max(from);

    let q_s = shared::<E4m3, 2>([bq * heads, d]);
    let k_s = shared::<E4m3, 2>([bn, d]);
    let ks_s = shared::<F32, 1>([bn]);
    let w_f = frag::<F32, 2>([bq, heads]);
    let dots = frag::<F32, 2>([bn, bq * heads]);
    copy(queries.merge_leading().at((t0 * heads, 0)), q_s);
    copy(weights.pick(bi).at((t0, 0)), w_f);

    if cfg.clean {
        clear_tiles(out, t0, bq, to, s1.div_ceil(bn), bn);
    }
    #[label(key_loop)]
    for jb in pipeline(from..to, cfg.stages) {
        #[label(load_k)]
        copy(keys.at((jb * bn, 0)), k_s);
        copy(scales.at(jb * bn), ks_s);
        #[label(qk)]
        gemm_set(k_s, q_s.t(), dots);
        let sums = head_sums(dots, w_f);
        for (i, n) in parallel([bq, bn]) {
            let key = jb * bn + n;
            out[(t0 + i, key)] = select(key.value() < seen[i], sums[(n, i)] * ks_s[n], NEG_INF).to::<O>();
        }
    }
}

/// What a problem asks for.
struct Index {
    /// Requests, queries of each, heads, head size. A contiguous problem is one request.
    sizes: [usize; 4],
    /// Keys, or columns of the output.
    keys: usize,
    /// Keys of a page, and if lengths are one a request; `None` for contiguous keys.
    paged: Option<(usize, bool)>,
    /// Queries and keys are f32.
    wide: bool,
    out: DType,
    clean: bool,
}

impl Index {
    fn rows(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct IndexerLogitsFp8;

const OP: &str = "indexer_logits_fp8";
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];

fn kernel_for(paged: bool, wide: bool, out: DType) -> Arc<dyn KernelDef> {
    match (paged, out == DType::F32) {
        (false, true) if wide => indexer_logits::kernel::<F32, F32>(),
        (false, false) if wide => indexer_logits::kernel::<F32, Bf16>(),
        (false, true) => indexer_logits::kernel::<E4m3, F32>(),
        (false, false) => indexer_logits::kernel::<E4m3, Bf16>(),
        (true, true) => indexer_logits_paged::kernel::<F32>(),
        (true, false) => indexer_logits_paged::kernel::<Bf16>(),
    }
}

/// Reads a problem's inputs and parameters.
fn index_of(specs: &p::Specs, params: &Params) -> Result<Index, OpError> {
    let out = out_dtype(OP, params, DType::F32)?;
    let clean = p::flag(OP, params, "clean_logits", true)?;
    if !specs.contains_key("kv_cache") {
        let q = p::input(OP, specs, "q", &[DType::E4m3, DType::F32], 3)?;
        let (t, heads, d) = (q.shape[0], q.shape[1], q.shape[2]);
        let kv = p::input(OP, specs, "kv", &[q.dtype], 2)?;
        let keys = kv.shape[0];
        p::shaped(OP, kv, &[keys, d], "the head size of `q`")?;
        p::shaped(OP, p::input(OP, specs, "kv_sf", &[DType::F32], 1)?, &[keys], "one scale a key")?;
        p::shaped(OP, p::input(OP, specs, "weights", &[DType::F32], 2)?, &[t, heads], "one weight a query and head")?;
        for name in ["cu_seq_len_k_start", "cu_seq_len_k_end"] {
            p::shaped(OP, p::input(OP, specs, name, &[DType::I32], 1)?, &[t], "one bound a query")?;
        }
        let wide = q.dtype == DType::F32;
        return Ok(Index { sizes: [1, t, heads, d], keys, paged: None, wide, out, clean });
    }
    let q = p::input(OP, specs, "q", &[DType::E4m3], 4)?;
    let (b, next, heads, d) = (q.shape[0], q.shape[1], q.shape[2], q.shape[3]);
    let page = p::count(OP, params, "block_kv", Some(64))?;
    let keys = p::count(OP, params, "max_context_len", None)?;
    let cache = p::input(OP, specs, "kv_cache", &[DType::U8], 2)?;
    p::shaped(OP, cache, &[cache.shape[0], page * (d + 4)], "a page's keys and then their scales")?;
    let table = p::input(OP, specs, "block_table", &[DType::I32], 2)?;
    p::shaped(OP, table, &[b, table.shape[1]], "one row a request")?;
    let weights = p::input(OP, specs, "weights", &[DType::F32], 2)?;
    p::shaped(OP, weights, &[b * next, heads], "one weight a query and head")?;
    let lens = p::input_of_any_rank(OP, specs, "context_lens", &[DType::I32], 1)?;
    let shared = lens.shape.len() == 1;
    p::shaped(OP, lens, if shared { &q.shape[..1] } else { &q.shape[..2] }, "one length a request, or a query of it")?;
    Ok(Index { sizes: [b, next, heads, d], keys, paged: Some((page, shared)), wide: false, out, clean })
}

/// A view with its first axis cut in two, or with a last axis of one element.
fn split(v: TensorView, outer: usize, inner: usize) -> Arg {
    let (mut shape, mut strides) = (v.shape.clone(), v.strides.clone());
    if shape.len() == 1 {
        shape.push(1);
        strides.push(1);
    } else if shape[0] == outer * inner {
        shape.splice(0..1, [outer, inner]);
        let step = strides[0];
        strides.splice(0..1, [step * inner, step]);
    }
    Arg::Tensor(TensorView { shape, strides, ..v })
}

impl OpSpec for IndexerLogitsFp8 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("indexer_logits"),
            family: "indexer",
            formula: "logits[i, j] = sf[j] · Σ_h max(q[i, h]·kv[j], 0) · weights[i, h]",
            source: "DeepSeek-V3.2 technical report",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        let forms = [(false, false), (false, true), (true, false)];
        forms.into_iter().flat_map(|(paged, wide)| TYPES.map(|out| kernel_for(paged, wide, out))).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = index_of(specs, params)?;
        Ok(vec![p::spec("logits", x.out, &[x.rows(), x.keys])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = index_of(&p::checked(self, problem)?, &problem.params)?;
        let [b, next, heads, d] = x.sizes;
        let kernel = kernel_for(x.paged.is_some(), x.wide, x.out);
        let (queries, keys) = if x.paged.is_some() { ("next", "context") } else { ("t", "s") };
        let dims = [("b", b), (queries, next), ("heads", heads), ("d", d), (keys, x.keys)];
        let mut config = p::choose(configs, &kernel, &dims);
        p::set(&mut config, "clean", ConfigValue::Bool(x.clean));
        p::at_most(&mut config, "bq", next);
        let arg = |name: &str| p::arg(OP, problem, name);
        let args = match x.paged {
            None => {
                let names = ["q", "kv", "kv_sf", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end", "logits"];
                names.into_iter().map(arg).collect::<Result<_, _>>()?
            }
            Some((page, shared)) => {
                p::set(&mut config, "page", ConfigValue::Int(page));
                p::set(&mut config, "shared_length", ConfigValue::Bool(shared));
                let apart = |name: &str| Ok(split(p::view(OP, problem, name)?, b, next));
                let lens = p::view(OP, problem, "context_lens")?;
                let lens = if shared { split(lens, b, 1) } else { Arg::Tensor(lens) };
                vec![arg("q")?, arg("kv_cache")?, arg("block_table")?, lens, apart("weights")?, apart("logits")?]
            }
        };
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = index_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [_, next, heads, d] = x.sizes;
        let (q, weights) = (p::numbers(OP, problem, "q")?, p::numbers(OP, problem, "weights")?);
        let query = |row: usize| (&q[row * heads * d..][..heads * d], &weights[row * heads..][..heads]);
        let mut out = vec![];
        if let Some((page, shared)) = x.paged {
            let lens = p::numbers(OP, problem, "context_lens")?;
            let table = p::numbers(OP, problem, "block_table")?;
            let entries = table.len() / x.sizes[0].max(1);
            let cache = problem.tensors.get("kv_cache").map_or(&[][..], |t| &t.data);
            for row in 0..x.rows() {
                let (r, t) = (row / next, row % next);
                let seen = if shared { lens[r] - (next - 1 - t) as f64 } else { lens[row] };
                let key = |j: usize| {
                    let base = table[r * entries + j / page] as usize * page * (d + 4);
                    let codes = &cache[base + j % page * d..][..d];
                    let at = base + page * d + j % page * 4;
                    let scale = f32::from_le_bytes([cache[at], cache[at + 1], cache[at + 2], cache[at + 3]]);
                    codes.iter().map(|c| crate::numeric::round::e4m3_value(*c) * f64::from(scale)).collect()
                };
                let range = Range { first: 0, last: seen.max(0.0) as usize };
                let (q, w) = query(row);
                out.extend(scores(q, w, range, x.keys, &key));
            }
        } else {
            let (kv, sf) = (p::numbers(OP, problem, "kv")?, p::numbers(OP, problem, "kv_sf")?);
            let key = |j: usize| kv[j * d..][..d].iter().map(|v| v * sf[j]).collect();
            for (row, range) in ranges(OP, problem)?.into_iter().enumerate() {
                let (q, w) = query(row);
                out.extend(scores(q, w, range, x.keys, &key));
            }
        }
        Ok(logits(&[x.rows(), x.keys], out).into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = index_of(specs, params) else { return vec![] };
        let [requests, next, ..] = x.sizes;
        if x.paged.is_none() {
            let cut = ["q", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end", "logits"].map(|name| (name, 0, 1));
            return vec![p::split("s_q", next, 1, &cut)];
        }
        let cut =
            [("q", 0, 1), ("weights", 0, next), ("context_lens", 0, 1), ("block_table", 0, 1), ("logits", 0, next)];
        if next == 0 { vec![] } else { vec![p::split("b", requests, 1, &cut)] }
    }
    fn tolerance(&self, _: &str, params: &Params) -> Tolerance {
        let f32 = out_dtype(OP, params, DType::F32).is_ok_and(|d| d == DType::F32);
        Tolerance::CalcDiff { max: if f32 { 5e-6 } else { 3e-5 } }
    }
    fn cases(&self) -> Vec<Case> {
        let numbers = |v: &[i32]| Fill::Values(v.iter().map(|&x| f64::from(x)).collect());
        let contiguous = |id: &str, [heads, d, s]: [usize; 3], first: &[i32], last: &[i32], out: &str| {
            let t = first.len();
            let inputs = vec![
                p::filled("q", DType::E4m3, &[t, heads, d], Fill::Normal(1.0)),
                p::filled("kv", DType::E4m3, &[s, d], Fill::Normal(8.0)),
                p::filled("kv_sf", DType::F32, &[s], Fill::Uniform(0.01, 0.1)),
                p::filled("weights", DType::F32, &[t, heads], Fill::Normal(1.0)),
                p::filled("cu_seq_len_k_start", DType::I32, &[t], numbers(first)),
                p::filled("cu_seq_len_k_end", DType::I32, &[t], numbers(last)),
            ];
            p::case(id, inputs, &[("out_dtype", ParamValue::Text(out.into()))])
        };
        let paged = |id: &str, lens: (&[usize], &[i32]), table: (&[usize], &[i32]), context: i64| {
            let (b, next, heads, d, page) = (lens.0[0], 2, 8, 32, 8);
            let pages = table.1.iter().max().map_or(0, |x| *x as usize + 1);
            // Keys of any finite code, then scales of 2^-4; the codes of NaN are left out.
            let byte = |i: usize| match i % (page * (d + 4)) {
                at if at < page * d => (i * 151 % 125) as f64 + if i.is_multiple_of(3) { 128.0 } else { 0.0 },
                at => [0.0, 0.0, 128.0, 61.0][at % 4],
            };
            let cache = Fill::Values((0..pages * page * (d + 4)).map(byte).collect());
            let inputs = vec![
                p::filled("q", DType::E4m3, &[b, next, heads, d], Fill::Normal(1.0)),
                p::filled("kv_cache", DType::U8, &[pages, page * (d + 4)], cache),
                p::filled("weights", DType::F32, &[b * next, heads], Fill::Normal(1.0)),
                p::filled("context_lens", DType::I32, lens.0, numbers(lens.1)),
                p::filled("block_table", DType::I32, table.0, numbers(table.1)),
            ];
            let params = [("block_kv", ParamValue::Int(page as i64)), ("max_context_len", ParamValue::Int(context))];
            p::case(id, inputs, &params)
        };
        vec![
            contiguous("h8_d32_ranges", [8, 32, 150], &[0, 140, 9, 70], &[1, 999, 4, 130], "f32"),
            contiguous("h64_d128_bf16", [64, 128, 70], &[0, 0, 3], &[70, 30, 69], "bf16"),
            contiguous("no_queries", [8, 32, 20], &[], &[], "f32"),
            {
                let mut case = contiguous("h6_d24_f32", [6, 24, 90], &[0, 3, 80], &[1, 70, 90], "f32");
                for input in case.inputs.iter_mut().take(2) {
                    input.tensor.dtype = DType::F32;
                }
                case
            },
            paged(
                "paged_b3_next2",
                (&[3, 2], &[0, 1, 16, 17, 29, 30]),
                (&[3, 4], &[5, 0, 0, 0, 2, 7, 1, 0, 3, 4, 6, 8]),
                33,
            ),
            paged("paged_one_length", (&[2], &[9, 1]), (&[2, 2], &[1, 2, 0, 0]), 16),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["s_q", "s_k", "h", "d"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |(s_q, s_k)| {
            [("s_q", s_q), ("s_k", s_k), ("h", 64), ("d", 128)].map(|(name, x)| (String::from(name), x)).to_vec()
        };
        [(2048, 8192), (2048, 65536), (8192, 65536)].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [t, s, heads, d] = p::bench_sizes(OP, shape, ["s_q", "s_k", "h", "d"])?;
        let inputs = vec![
            p::filled("q", DType::E4m3, &[t, heads, d], Fill::Normal(1.0)),
            p::filled("kv", DType::E4m3, &[s, d], Fill::Normal(1.0)),
            p::filled("kv_sf", DType::F32, &[s], Fill::Uniform(0.5, 1.5)),
            p::filled("weights", DType::F32, &[t, heads], Fill::Normal(1.0)),
            p::filled("cu_seq_len_k_start", DType::I32, &[t], Fill::Constant(0.0)),
            p::filled("cu_seq_len_k_end", DType::I32, &[t], Fill::Constant(s as f64)),
        ];
        Ok(p::case(format!("s_q{t}_s_k{s}_h{heads}_d{d}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = index_of(specs, params) else { return Cost::default() };
        let logits = p::spec("logits", x.out, &[x.rows(), x.keys]);
        let tensors: Vec<_> = specs.values().filter(|s| s.name != "logits").chain([&logits]).collect();
        // Ranges are data, so every pair counts.
        let pairs = p::product(&[x.rows(), x.keys]);
        Cost { flops: 2.0 * pairs * p::product(&[x.sizes[2], x.sizes[3]]), bytes: p::bytes(&tensors) }
    }
}
