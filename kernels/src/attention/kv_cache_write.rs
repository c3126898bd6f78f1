//! Tokens written into the pages of a quantised key cache, each where its slot says.
//!
//! Token `i` becomes record `slot % P` of page `slot / P`, where `slot = slot_mapping[i]`; a slot that is negative or outside
//! of the cache writes nothing. Two tokens with one slot are a mistake of the caller. No other byte changes.
//!
//! *Tensors*: `x` `[n, d]` bf16; `slot_mapping` `[n]` i64; `cache_before`, `cache` `[pages, bytes]` u8, records of `record.rs` by
//! the parameter `layout`. A cache that is both of them is written in place; otherwise it is copied first.
//! *Cost*: in place, every token read once and its record written once, memory bound.
//! *Numerics*: `record.rs`.
//! *Schedule*: a token a block.
//! *Source*: Kwon et al., PagedAttention, 2023, for slots; DeepSeek-V3.2, 2025, and its successors for records.

use super::kv_cache_pack::{CacheConfig, Sizes};
use super::record::{self, encode_token};
use crate::elementwise::copy::copy_words;
use crate::numeric::round::u8_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes a token.
#[kernel(dims(d: fixed, bytes: fixed), deterministic)]
pub fn kv_cache_write(
    cfg: &CacheConfig,
    x: In![Bf16; n, d; strides(_, 1)],
    slots: In![I64; n],
    cache: InOut![U8; pages, bytes],
) {
    let i = grid(n);
    warps(cfg.warps);
    let page = cfg.page;
    let slot = slots[i];
    let at = slot.clamp_index(0, (pages * page).saturating_sub(1));
    // An index that was clamped is no slot of the cache.
    if slot == at.to::<I64>() {
        encode_token(cfg.record, page, x.pick(i), d, cache, at / page, at % page, host!(None));
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct KvCacheWrite;

const OP: &str = "kv_cache_write";

/// Tokens, pages and sizes.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<(usize, usize, Sizes), OpError> {
    let x = p::input(OP, specs, "x", &[Data::Bf16], 2)?;
    let (n, width) = (x.shape[0], x.shape[1]);
    p::shaped(OP, p::input(OP, specs, "slot_mapping", &[Data::I64], 1)?, &[n], "one slot a token")?;
    let cache = p::input(OP, specs, "cache_before", &[Data::U8], 2)?;
    let s = Sizes::read(OP, params, width)?;
    p::shaped(OP, cache, &[cache.shape[0], s.bytes()], "the bytes of a page")?;
    if s.bytes() % 4 != 0 || cache.shape[0] == 0 {
        return Err(p::refuse(
            OP,
            format!("{} pages of {} bytes; expected some, of whole words", cache.shape[0], s.bytes()),
        ));
    }
    Ok((n, cache.shape[0], s))
}

/// Bytes as words.
fn words(name: &str, view: TensorView) -> Result<Arg, OpError> {
    let flat = p::flat(OP, name, view)?;
    Ok(Arg::Tensor(TensorView { dtype: Data::U32, shape: vec![flat.shape[0] / 4], ..flat }))
}

impl OpSpec for KvCacheWrite {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "attention",
            formula: "cache[slot_mapping[i]] = record of x[i]",
            source: "Kwon et al., 2023; DeepSeek-V3.2, 2025",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kv_cache_write::kernel(), copy_words::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (_, pages, s) = shape_of(specs, params)?;
        Ok(vec![p::spec("cache", Data::U8, &[pages, s.bytes()])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (n, pages, s) = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let (write, copy) = (kv_cache_write::kernel(), copy_words::kernel());
        let (before, after) = (p::view(OP, problem, "cache_before")?, p::view(OP, problem, "cache")?);
        let mut steps = vec![];
        if !(Arc::ptr_eq(&before.memory, &after.memory) && before.offset_bytes == after.offset_bytes) {
            let config = p::choose(configs, &copy, &[("n", pages * s.bytes() / 4)]);
            let args = vec![words("cache_before", before)?, words("cache", after.clone())?];
            steps.push(Launch { kernel: copy, config, args });
        }
        let mut config = p::choose(configs, &write, &[("n", n), ("d", s.width)]);
        s.set(&mut config);
        let args = vec![p::arg(OP, problem, "x")?, p::arg(OP, problem, "slot_mapping")?, Arg::Tensor(after)];
        steps.push(Launch { kernel: write, config, args });
        Ok(Plan { steps, workspaces: vec![] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let (_, pages, s) = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let mut cache = problem.tensors["cache_before"].data.clone();
        // Bytes, because a number of double precision does not hold every 64-bit slot.
        let slots = problem.tensors["slot_mapping"].data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        for (token, slot) in x.chunks(s.width).zip(slots) {
            if let Ok(slot) = usize::try_from(slot)
                && slot < pages * s.page
            {
                let page = &mut cache[slot / s.page * s.bytes()..][..s.bytes()];
                record::reference(s.record, page, s.page, slot % s.page, token);
            }
        }
        Ok([("cache".into(), u8_tensor(&[pages, s.bytes()], cache))].into())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, layout: &str, [pages, page, d]: [usize; 3], slots: &[f64]| {
            let params = [("layout", ParamValue::Text(layout.into())), ("block_size", ParamValue::Int(page as i64))];
            let bytes = Sizes::read(OP, &params.iter().cloned().map(|(n, v)| (n.to_string(), v)).collect(), d);
            let inputs = vec![
                p::filled("x", Data::Bf16, &[slots.len(), d], Fill::Normal(1.0)),
                p::filled("slot_mapping", Data::I64, &[slots.len()], Fill::Values(slots.to_vec())),
                p::filled("cache_before", Data::U8, &[pages, bytes.map_or(0, |s| s.bytes())], Fill::Bits),
            ];
            p::case(id, inputs, &params)
        };
        // 2^32 + 1 is slot 1 to whoever forgets the upper half.
        let outside = [-1.0, 12.0, 4_294_967_297.0, -9e15, 9e15];
        vec![
            make("no_tokens", "v32_656", [2, 4, 576], &[]),
            make("v32", "v32_656", [3, 5, 576], &[14.0, -1.0, 0.0, 6.0, -7.0, 5.0]),
            make("slots_outside", "v41_528", [3, 4, 512], &[&outside[..], &[11.0]].concat()),
            make("model1", "model1_584", [2, 7, 512], &[13.0, 3.0, 0.0]),
            make("v41fp4", "v41fp4_288", [2, 3, 512], &[1.0, 5.0]),
            make("indexer", "indexer_fp8", [2, 4, 128], &[7.0, 2.0]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok((n, _, s)) = shape_of(specs, params) else { return Cost::default() };
        let token = s.width * 2 + 8 + s.bytes() / s.page;
        Cost { flops: 2.0 * p::product(&[n, s.width]), bytes: p::product(&[n, token]) }
    }
}
