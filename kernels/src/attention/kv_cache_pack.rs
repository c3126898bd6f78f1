//! Whole pages of a quantised key cache from their tokens, and what a reader will decode of them.
//!
//! *Tensors*: `x` `[pages, P, d]` bf16; `cache` `[pages, bytes]` u8, records of `record.rs` by the parameter `layout`;
//! `dequant` `[pages, P, d]` bf16, for the records of attention, left out with the parameter `dequant: false`.
//! *Cost*: every token read once and its record written once, memory bound.
//! *Numerics*: `record.rs`. Bytes of a page that belong to no token are 0.
//! *Schedule*: a token a block.
//! *Source*: DeepSeek-V3.2, 2025, and its successors: layouts of their key caches.

use super::record::{self, NAMES, Record, encode_token};
use crate::numeric::round::u8_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and what is written.
#[derive(KernelConfig, Clone, Debug)]
pub struct CacheConfig {
    /// Warps of a block.
    #[tune(2, 1, 4)]
    pub warps: usize,
    /// What a token becomes.
    #[default(Record::V32)]
    pub record: Record,
    /// Tokens of a page.
    #[default(64)]
    pub page: usize,
}

/// Writes a token, and the bytes behind the last token of a page.
#[kernel(dims(d: fixed, bytes: fixed), deterministic)]
pub fn kv_cache_pack(
    cfg: &CacheConfig,
    x: In![Bf16; n, d],
    cache: Out![U8; pages, bytes],
    dequant: Option<Out![Bf16; n, d]>,
) {
    let i = grid(n);
    warps(cfg.warps);
    let (page, slack) = host!((cfg.page, cfg.record.slack(cfg.page, d)));
    let (at, t) = (i / page, i % page);
    let back = host!(dequant.map(|back| back.pick(i)));
    encode_token(cfg.record, page, x.pick(i), d, cache, at, t, back);
    if host!(slack > 0) {
        if t + 1 == page {
            for j in parallel([slack]) {
                cache[(at, bytes - slack + j)] = 0u8;
            }
        }
    }
}

/// Sizes of a problem on caches.
pub(super) struct Sizes {
    pub record: Record,
    pub page: usize,
    pub width: usize,
}

impl Sizes {
    /// Reads the parameters `layout` and `block_size`; `width` is the tokens'.
    pub fn read(op: &str, params: &Params, width: usize) -> Result<Sizes, OpError> {
        let name = p::word(op, params, "layout", &NAMES.map(|(name, _)| name))?;
        let record = NAMES.iter().find(|(n, _)| *n == name).map_or(Record::V32, |(_, record)| *record);
        let page = p::count(op, params, "block_size", Some(64))?;
        let want = record.width(p::count(op, params, "head_dim", Some(width.max(1)))?);
        if want != width || !width.is_multiple_of(8) {
            let message = format!("tokens of {width} columns; the layout `{name}` has {want}, a multiple of 8");
            return Err(p::refuse(op, message));
        }
        Ok(Sizes { record, page, width })
    }
    pub fn bytes(&self) -> usize {
        self.record.page_bytes(self.page, self.width)
    }
    /// Writes the fields of [`CacheConfig`] that the problem decides.
    pub fn set(&self, config: &mut Config) {
        p::set(config, "record", ConfigValue::Word(format!("{:?}", self.record)));
        p::set(config, "page", ConfigValue::Int(self.page));
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct KvCachePack;

const OP: &str = "kv_cache_pack";

/// Pages, sizes, and whether the decoded tokens are wanted.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<(usize, Sizes, bool), OpError> {
    let x = p::input(OP, specs, "x", &[Data::Bf16], 3)?;
    let s = Sizes::read(OP, params, x.shape[2])?;
    if x.shape[1] != s.page {
        return Err(p::refuse(OP, format!("`x` has pages of {} tokens; expected {}", x.shape[1], s.page)));
    }
    let back = s.record.decodes() && p::flag(OP, params, "dequant", true)?;
    Ok((x.shape[0], s, back))
}

/// `[pages, P, d]` as `[pages · P, d]`.
fn tokens(view: TensorView, name: &str) -> Result<Arg, OpError> {
    let &[pages, page, d] = view.shape.as_slice() else {
        return Err(p::refuse(OP, format!("`{name}` has three axes")));
    };
    let flat = p::flat(OP, name, view)?;
    Ok(Arg::Tensor(TensorView { shape: vec![pages * page, d], strides: vec![d, 1], ..flat }))
}

impl OpSpec for KvCachePack {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("kv_cache_pack"),
            family: "attention",
            formula: "pages of codes and scales: code = cast(x/sf), sf of each group of a token's columns",
            source: "DeepSeek-V3.2, 2025",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kv_cache_pack::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let (pages, s, back) = shape_of(specs, params)?;
        let mut outputs = vec![p::spec("cache", Data::U8, &[pages, s.bytes()])];
        outputs.extend(back.then(|| p::spec("dequant", Data::Bf16, &[pages, s.page, s.width])));
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (pages, s, back) = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kv_cache_pack::kernel();
        let mut config = p::choose(configs, &kernel, &[("n", pages * s.page), ("d", s.width)]);
        s.set(&mut config);
        let args = vec![
            tokens(p::view(OP, problem, "x")?, "x")?,
            p::arg(OP, problem, "cache")?,
            if back { tokens(p::view(OP, problem, "dequant")?, "dequant")? } else { Arg::Absent },
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let (pages, s, back) = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let (mut cache, mut dequant) = (vec![], vec![]);
        for tokens in x.chunks(s.page * s.width) {
            let mut bytes = vec![0; s.bytes()];
            for (t, token) in tokens.chunks(s.width).enumerate() {
                dequant.extend(record::reference(s.record, &mut bytes, s.page, t, token));
            }
            cache.extend(bytes);
        }
        let mut outputs: BTreeMap<_, _> = [("cache".into(), u8_tensor(&[pages, s.bytes()], cache))].into();
        if back {
            let shape = [pages, s.page, s.width];
            outputs.insert("dequant".into(), HostTensor::from_f64(Data::Bf16, &shape, &dequant));
        }
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok((pages, ..)) = shape_of(specs, params) else { return vec![] };
        vec![p::split("pages", pages, 1, &["x", "cache", "dequant"].map(|name| (name, 0, 1)))]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, layout: &str, [pages, page, d]: [usize; 3], fill: Fill| {
            let params = [("layout", ParamValue::Text(layout.into())), ("block_size", ParamValue::Int(page as i64))];
            p::case(id, vec![p::filled("x", Data::Bf16, &[pages, page, d], fill)], &params)
        };
        let normal = || Fill::Normal(1.0);
        vec![
            make("no_pages", "v32_656", [0, 4, 576], normal()),
            make("v32_page_3", "v32_656", [2, 3, 576], normal()),
            make("v32_f32_scales_huge", "v32_656_f32scale", [1, 2, 576], Fill::Uniform(-3e38, 3e38)),
            make("model1_page_2", "model1_584", [2, 2, 512], normal()),
            make("model1_page_72_without_slack", "model1_584", [1, 72, 512], Fill::Normal(30.0)),
            make("v41_tiny", "v41_528", [1, 5, 512], Fill::Normal(1e-6)),
            make("v41fp4", "v41fp4_288", [2, 3, 512], normal()),
            make("v41fp4_saturates", "v41fp4_288", [1, 2, 512], Fill::Uniform(-1e4, 1e4)),
            make("indexer_d64_page_32", "indexer_fp8", [2, 32, 64], normal()),
            make("zeros", "v41fp4_288", [1, 2, 512], Fill::Constant(0.0)),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "bytes"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        [656, 584, 528, 288].map(|bytes| vec![("tokens".into(), 16384), ("bytes".into(), bytes)]).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [tokens, bytes] = p::bench_sizes(OP, shape, ["tokens", "bytes"])?;
        let (layout, d) = match bytes {
            656 => ("v32_656", 576),
            584 => ("model1_584", 512),
            528 => ("v41_528", 512),
            288 => ("v41fp4_288", 512),
            other => return Err(p::refuse(OP, format!("shape key `bytes` is {other}; expected 656, 584, 528 or 288"))),
        };
        let x = p::filled("x", Data::Bf16, &[tokens.div_ceil(64), 64, d], Fill::Normal(1.0));
        let params = [("layout", ParamValue::Text(layout.into())), ("dequant", ParamValue::Bool(false))];
        Ok(p::case(format!("tokens{tokens}_bytes{bytes}"), vec![x], &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        p::moved(self, specs, params, 2.0)
    }
}
