//! Index scores over e2m1 keys: `logits[i, j] = Σ_h max(Σ_κ sfq[i, h, κ]·sfk[j, κ]·(q·k over group κ), 0) · weights[i, h]`.
//!
//! *Tensors*: `q` `[t, heads, d/2]`, `kv` `[s, d/2]` bytes of two e2m1 codes; `q_sf` `[t, heads]`, `kv_sf` `[s]` i32, four
//! exponents for four groups of 32, the first in the low byte; `weights` `[t, heads]` f32; `cu_seq_len_k_start`,
//! `cu_seq_len_k_end` `[t]` i32, the keys a query sees, cut to `[0, s)`; `logits` `[t, s]` f32 or bf16.
//! *Cost*: `2·heads·d` operations a pair; half the key bytes of the e4m3 form.
//! *Numerics*: codes are exact in e4m3; each group of 32 is one sum in the matrix unit, scaled and added in f32. Minus
//! infinity where a query sees no key.
//! *Schedule*: as `logits_fp8`.
//! *Source*: DeepSeek-V3.2 technical report, lightning indexer; OCP Microscaling Formats 1.0.

use crate::gemm::fp8::{as_e2m1, e2m1_numbers, exponent_value, out_dtype};
use crate::gemm::scales::packed_scale;
use crate::index::logits_fp8::clear_tiles;
use crate::index::score::{head_sums, logits, ranges, scores};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct IndexFp4Config {
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
}

/// Scores of contiguous keys.
#[kernel(dims(heads: fixed, d: fixed), require(d % 32 == 0, d <= 128), deterministic, batch_invariant(t))]
pub fn indexer_logits_fp4<O: Float>(
    cfg: &IndexFp4Config,
    q: In![E2m1; t, heads, d],
    q_scale: In![I32; t, heads],
    k: In![E2m1; s, d],
    k_scale: In![I32; s],
    weights: In![F32; t, heads],
    first: In![I32; t],
    last: In![I32; t],
    logits: Out![O; t, s; strides(ldl, 1)],
) {
    let (bq, bn, span) = (cfg.bq, cfg.bn, cfg.bn * cfg.steps);
    let (qi, si) = grid((t.div_ceil(bq), s.div_ceil(span)));
    let (t0, s0) = (qi * bq, si * span);
    let s1 = (s0 + span).min(s);

    // Keys that some query of the block sees, cut to the block's span. Queries past the end see none.
    let lo = tile_min([bq], |i: Ix| first.get_or(t0 + i, i32::MAX)).clamp_index(0, s).max(s0).min(s1);
    let hi = tile_max([bq], |i: Ix| last.get_or(t0 + i, 0)).clamp_index(0, s).min(s1);
    let from = lo / bn;
    let to = hi.div_ceil(bn).max(from);

    // Every e2m1 value is an e4m3 value.
    let q_s = shared::<E4m3, 2>([bq * heads, d]);
    let k_s = shared::<E4m3, 2>([bn, d]);
    let qs_s = shared::<I32, 1>([bq * heads]);
    let ks_s = shared::<I32, 1>([bn]);
    let w_f = frag::<F32, 2>([bq, heads]);
    let dots = frag::<F32, 2>([bn, bq * heads]);
    copy_cast(q.merge_leading().at((t0 * heads, 0)), q_s);
    copy(q_scale.merge_leading().at(t0 * heads), qs_s);
    copy(weights.at((t0, 0)), w_f);

    clear_tiles(logits, t0, bq, s0 / bn, from, bn);
    clear_tiles(logits, t0, bq, to, s1.div_ceil(bn), bn);
    #[label(key_loop)]
    for jb in pipeline(from..to, cfg.stages) {
        #[label(load_k)]
        copy_cast(k.at((jb * bn, 0)), k_s);
        copy(k_scale.at(jb * bn), ks_s);
        zero(dots);
        for part in unroll(0..d / 32) {
            let (a, b, byte) = host!((32 * part, 32 * part + 32, part as i32));
            gemm_scaled(
                (k_s.cols(a, b), |n: Ix| packed_scale(ks_s[n], lit(byte))),
                (q_s.cols(a, b).t(), |r: Ix| packed_scale(qs_s[r], lit(byte))),
                dots,
            );
        }
        let sums = head_sums(dots, w_f);
        for (i, n) in parallel([bq, bn]) {
            let (row, key) = (t0 + i, jb * bn + n);
            let seen = key.value() >= first[row] && key.value() < last[row];
            logits[(row, key)] = select(seen, sums[(n, i)], NEG_INF).to::<O>();
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct IndexerLogitsFp4;

const OP: &str = "indexer_logits_fp4";
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];

fn kernel_for(out: DType) -> Arc<dyn KernelDef> {
    if out == DType::F32 { indexer_logits_fp4::kernel::<F32>() } else { indexer_logits_fp4::kernel::<Bf16>() }
}

/// Queries, heads, head size, keys; and the output's dtype.
fn sizes(specs: &p::Specs, params: &Params) -> Result<([usize; 4], DType), OpError> {
    let q = p::input(OP, specs, "q", &[DType::U8], 3)?;
    let (t, heads, d) = (q.shape[0], q.shape[1], 2 * q.shape[2]);
    let kv = p::input(OP, specs, "kv", &[DType::U8], 2)?;
    let s = kv.shape[0];
    p::shaped(OP, kv, &[s, d / 2], "the head size of `q`")?;
    if p::count(OP, params, "gran_k", Some(32))? != 32 || d % 32 != 0 || d > 128 {
        return Err(p::refuse(OP, format!("head size {d}; expected one, two or four groups of 32 that share a scale")));
    }
    p::shaped(OP, p::input(OP, specs, "q_sf", &[DType::I32], 2)?, &[t, heads], "four exponents a query and head")?;
    p::shaped(OP, p::input(OP, specs, "kv_sf", &[DType::I32], 1)?, &[s], "four exponents a key")?;
    p::shaped(OP, p::input(OP, specs, "weights", &[DType::F32], 2)?, &[t, heads], "one weight a query and head")?;
    for name in ["cu_seq_len_k_start", "cu_seq_len_k_end"] {
        p::shaped(OP, p::input(OP, specs, name, &[DType::I32], 1)?, &[t], "one bound a query")?;
    }
    Ok(([t, heads, d, s], out_dtype(OP, params, DType::F32)?))
}

/// Numbers of rows of packed codes with their scales applied.
fn rows(problem: &HostProblem, name: &str, d: usize) -> Result<Vec<f64>, OpError> {
    let codes = problem.tensors.get(name).map_or(&[][..], |t| &t.data);
    let words = p::numbers(OP, problem, &format!("{name}_sf"))?;
    let scaled = |(i, v): (usize, f64)| v * exponent_value(words[i / d] as i32, i % d / 32);
    Ok(e2m1_numbers(codes).into_iter().enumerate().map(scaled).collect())
}

impl OpSpec for IndexerLogitsFp4 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "indexer",
            formula: "logits[i, j] = Σ_h max(Σ_κ sfq·sfk·(q·k)_κ, 0) · weights[i, h]",
            source: "DeepSeek-V3.2 technical report",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let ([t, _, _, s], out) = sizes(specs, params)?;
        Ok(vec![p::spec("logits", out, &[t, s])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let ([t, heads, d, s], out) = sizes(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(out);
        let mut config = p::choose(configs, &kernel, &[("t", t), ("heads", heads), ("d", d), ("s", s)]);
        p::at_most(&mut config, "bq", t);
        let codes = |name: &str| Ok(Arg::Tensor(as_e2m1(p::view(OP, problem, name)?)));
        let arg = |name: &str| p::arg(OP, problem, name);
        let args = vec![
            codes("q")?,
            arg("q_sf")?,
            codes("kv")?,
            arg("kv_sf")?,
            arg("weights")?,
            arg("cu_seq_len_k_start")?,
            arg("cu_seq_len_k_end")?,
            arg("logits")?,
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let ([t, heads, d, s], _) = sizes(&p::host_specs(self, problem)?, &problem.params)?;
        let (q, kv) = (rows(problem, "q", d)?, rows(problem, "kv", d)?);
        let weights = p::numbers(OP, problem, "weights")?;
        let key = |j: usize| kv[j * d..][..d].to_vec();
        let mut out = vec![];
        for (row, range) in ranges(OP, problem)?.into_iter().enumerate() {
            out.extend(scores(&q[row * heads * d..][..heads * d], &weights[row * heads..][..heads], range, s, &key));
        }
        Ok(logits(&[t, s], out).into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(([t, ..], _)) = sizes(specs, params) else { return vec![] };
        let cut = ["q", "q_sf", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end", "logits"].map(|name| (name, 0, 1));
        vec![p::split("s_q", t, 1, &cut)]
    }
    fn tolerance(&self, _: &str, params: &Params) -> Tolerance {
        let f32 = out_dtype(OP, params, DType::F32).is_ok_and(|d| d == DType::F32);
        Tolerance::CalcDiff { max: if f32 { 5e-6 } else { 3e-5 } }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [heads, d, s]: [usize; 3], bounds: &[[i32; 2]], out: &str| {
            let t = bounds.len();
            let bound = |side: usize| Fill::Values(bounds.iter().map(|b| f64::from(b[side])).collect());
            // Exponents between 2^-7 and 2^5, every byte another one.
            let word = |i: usize| (0..4).map(|b| (120 + (i * 5 + b * 3) % 13) << (8 * b)).sum::<usize>() as f64;
            let words = |n: usize| Fill::Values((0..n).map(word).collect());
            let inputs = vec![
                p::filled("q", DType::U8, &[t, heads, d / 2], Fill::Bits),
                p::filled("q_sf", DType::I32, &[t, heads], words(t * heads)),
                p::filled("kv", DType::U8, &[s, d / 2], Fill::Bits),
                p::filled("kv_sf", DType::I32, &[s], words(s)),
                p::filled("weights", DType::F32, &[t, heads], Fill::Normal(1.0)),
                p::filled("cu_seq_len_k_start", DType::I32, &[t], bound(0)),
                p::filled("cu_seq_len_k_end", DType::I32, &[t], bound(1)),
            ];
            p::case(id, inputs, &[("out_dtype", ParamValue::Text(out.into()))])
        };
        vec![
            make("h8_d64", [8, 64, 150], &[[0, 150], [140, 999], [9, 4]], "f32"),
            make("h64_d128_bf16", [64, 128, 40], &[[0, 17], [3, 40]], "bf16"),
            make("no_queries", [8, 32, 20], &[], "f32"),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(([t, heads, d, s], out)) = sizes(specs, params) else { return Cost::default() };
        let logits = p::spec("logits", out, &[t, s]);
        let tensors: Vec<_> = specs.values().filter(|x| x.name != "logits").chain([&logits]).collect();
        Cost { flops: 2.0 * p::product(&[t, s, heads, d]), bytes: p::bytes(&tensors) }
    }
}
