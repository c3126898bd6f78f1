//! Hashes of n-grams: rows of an embedding table for the last two, three, .. tokens.
//!
//! With the multipliers of a layer, `h_1 = id_0·m_0 ⊕ id_1·m_1` and `h_i = h_{i−1} ⊕ id_i·m_i` in 64 bits that wrap; column
//! `(i−1)·tables + c` is `h_i mod vocab[i−1, c]`, never negative, plus the column's offset.
//!
//! *Tensors*: `ngram_token_ids` `[t, g]` i32; `multipliers` `[layers, g]` i64; `vocab_sizes` `[layers, g − 1, tables]` i32;
//! `offsets` `[layers, (g − 1)·tables]` i32; `indices` `[layers, t, (g − 1)·tables]` i32.
//! *Cost*: a 64-bit remainder an index.  *Numerics*: integers; a vocabulary of 0 gives the offset.
//! *Schedule*: an index a thread.
//! *Source*: Cheng et al., Conditional memory via scalable lookup, 2026.

use crate::numeric::round::i32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, Split, TensorSpec,
    Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How indices are spread.
#[derive(KernelConfig, Clone, Debug)]
pub struct HashConfig {
    /// Tokens of a block.
    #[tune(32, 64, 16)]
    pub tokens: usize,
}

/// Hashes n-grams.
#[kernel(dims(g: fixed, tables: fixed), deterministic, batch_invariant(t))]
pub fn engram_hash(
    cfg: &HashConfig,
    ids: In![I32; t, g],
    multipliers: In![I64; layers, g],
    vocab: In![I32; layers, g - 1, tables],
    offsets: In![I32; layers, (g - 1) * tables],
    indices: Out![I32; layers, t, (g - 1) * tables],
) {
    let (ti, layer) = grid((t.div_ceil(cfg.tokens), layers));
    let t0 = ti * cfg.tokens;
    for (i, c) in parallel([cfg.tokens, tables]) {
        let mut hash = host!(V::<I64>::of(0.0));
        for n in unroll(0..g) {
            hash = host!(hash ^ (ids.load_((t0 + i, n)).to::<I64>() * multipliers.load_((layer, n))));
            if n > 0 {
                let size = vocab[(layer, n - 1, c)].to::<I64>();
                let rest = hash % size;
                let rest = select(rest < 0, rest + size, rest);
                let column = c + (n - 1) * tables;
                indices[(layer, t0 + i, column)] = rest.to::<I32>() + offsets[(layer, column)];
            }
        }
    }
}

/// Indices of a token of a layer.
pub fn reference(ids: &[i64], multipliers: &[i64], vocab: &[i64], offsets: &[i64]) -> Vec<i32> {
    let tables = vocab.len() / (ids.len() - 1).max(1);
    let mut hash = 0i64;
    let mut out = vec![];
    for (n, (id, m)) in ids.iter().zip(multipliers).enumerate() {
        hash ^= id.wrapping_mul(*m);
        for c in 0..if n == 0 { 0 } else { tables } {
            let at = (n - 1) * tables + c;
            let rest = if vocab[at] == 0 { 0 } else { hash.wrapping_rem_euclid(vocab[at]) };
            out.push((rest + offsets[at]) as i32);
        }
    }
    out
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct EngramHash;

const OP: &str = "engram_hash";

/// Tokens, ids of an n-gram, layers, tables.
fn shape_of(specs: &p::Specs) -> Result<[usize; 4], OpError> {
    let ids = p::input(OP, specs, "ngram_token_ids", &[Data::I32], 2)?;
    let vocab = p::input(OP, specs, "vocab_sizes", &[Data::I32], 3)?;
    let [t, g] = [ids.shape[0], ids.shape[1]];
    let [layers, tables] = [vocab.shape[0], vocab.shape[2]];
    if g < 2 || tables == 0 {
        return Err(p::refuse(OP, format!("n-grams of {g} ids and {tables} tables; expected at least 2 and 1")));
    }
    p::shaped(OP, vocab, &[layers, g - 1, tables], "a size for each length of n-gram and table")?;
    p::shaped(OP, p::input(OP, specs, "multipliers", &[Data::I64], 2)?, &[layers, g], "a multiplier an id")?;
    p::shaped(OP, p::input(OP, specs, "offsets", &[Data::I32], 2)?, &[layers, (g - 1) * tables], "an offset a column")?;
    Ok([t, g, layers, tables])
}

impl OpSpec for EngramHash {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "engram",
            formula: "(⊕ id·multiplier) mod vocab + offset",
            source: "Cheng et al., 2026",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![engram_hash::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let [t, g, layers, tables] = shape_of(specs)?;
        Ok(vec![p::spec("indices", Data::I32, &[layers, t, (g - 1) * tables])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let [t, _, layers, _] = shape_of(&p::checked(self, problem)?)?;
        let kernel = engram_hash::kernel();
        let config = p::choose(configs, &kernel, &[("t", t), ("layers", layers)]);
        let mut args = vec![];
        for name in ["ngram_token_ids", "multipliers", "vocab_sizes", "offsets", "indices"] {
            args.push(p::arg(OP, problem, name)?);
        }
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let [t, g, layers, tables] = shape_of(&p::host_specs(self, problem)?)?;
        // Multipliers may have more bits than an f64 holds.
        let whole = |name: &str| -> Vec<i64> {
            let t = &problem.tensors[name];
            let wide = t.dtype == Data::I64;
            let one = |i| if wide { t.bits(i) as i64 } else { i64::from(t.bits(i) as u32 as i32) };
            (0..t.num_elements()).map(one).collect()
        };
        let [ids, multipliers, vocab, offsets] =
            ["ngram_token_ids", "multipliers", "vocab_sizes", "offsets"].map(whole);
        let columns = (g - 1) * tables;
        let mut out = vec![];
        for l in 0..layers {
            for row in ids.chunks(g) {
                let of_layer = |x: &'_ [i64]| x[l * columns..][..columns].to_vec();
                out.extend(reference(row, &multipliers[l * g..][..g], &of_layer(&vocab), &of_layer(&offsets)));
            }
        }
        Ok([("indices".into(), i32_tensor(&[layers, t, columns], &out))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Vec<Split> {
        let Ok([t, ..]) = shape_of(specs) else { return vec![] };
        vec![p::split("tokens", t, 1, &[("ngram_token_ids", 0, 1), ("indices", 1, 1)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, [t, g, layers, tables]: [usize; 4], multipliers: Fill, ids: Fill| {
            let inputs = vec![
                p::filled("ngram_token_ids", Data::I32, &[t, g], ids),
                p::filled("multipliers", Data::I64, &[layers, g], multipliers),
                p::filled("vocab_sizes", Data::I32, &[layers, g - 1, tables], Fill::Uniform(1.0, 1e6)),
                p::filled("offsets", Data::I32, &[layers, (g - 1) * tables], Fill::Uniform(0.0, 1e6)),
            ];
            p::case(id, inputs, &[])
        };
        let ids = || Fill::Uniform(0.0, 1e5);
        vec![
            make("no_tokens", [0, 3, 2, 4], Fill::Bits, ids()),
            make("t70_g3_l2", [70, 3, 2, 4], Fill::Uniform(0.0, 1e12), ids()),
            make("products_wrap", [33, 4, 3, 5], Fill::Bits, ids()),
            make("negative_ids", [9, 2, 1, 1], Fill::Bits, Fill::Bits),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
