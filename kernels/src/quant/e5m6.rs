//! Cast of rows to e5m6 (12 bits: a sign, 5 exponent bits of bias 15, 6 mantissa bits) with one scale a row.
//!
//! `amax = max(max|x|, 1e-4)` over a row, `sf = amax/65024` (with `ue8m0` the next power of two), `code = e5m6(x · inv)` with
//! `inv = 1/sf` for powers of two and `65024/amax` otherwise. Eight codes fill three 32-bit words from the most significant
//! bit of the first one on; `dequant = code · sf`.
//!
//! *Tensors*: `x` `[m, n]` bf16 or f32, `n` a multiple of 8; `packed` `[m, 12·n/8]` u8, the words in little-endian order;
//! `sf` `[m, 1]` f32; `dequant` `[m, n]` f32, left out with the parameter `dequant: false`.
//! *Cost*: 3.5 bytes moved per bf16 element without `dequant`, memory bound.
//! *Numerics*: f32; one rounding to the nearest code, ties to even, subnormals on the grid of 2^-20, saturating at 65024.
//! *Schedule*: a row a block; codes meet in shared memory, from where each thread gathers the bits of a word.
//! *Source*: a float with one bit of the exponent of f16 kept and four of its mantissa cut; elementary.

use crate::numeric::round::{e5m6_code as reference_code, e5m6_value as reference_value};
use crate::numeric::round::{f32_tensor, power_of_two_at_least, u8_tensor};
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

/// Work of a block, and which cast is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct E5m6Config {
    /// Warps of a block.
    #[tune(8, 4)]
    pub warps: usize,
    /// Scales are powers of two.
    #[default(false)]
    pub ue8m0: bool,
}

/// Largest e5m6 value.
const MAX: f32 = 65024.0;
/// Smallest maximum of a row.
const FLOOR: f32 = 1e-4;

/// Casts a row.
#[kernel(dims(n: fixed), require(n % 8 == 0), deterministic, batch_invariant(m))]
pub fn per_token_cast_e5m6<T: Float>(
    cfg: &E5m6Config,
    x: In![T; m, n; strides(_, 1)],
    packed: Out![U32; m, words],
    sf: Out![F32; m, 1],
    dequant: Option<Out![F32; m, n]>,
) {
    let row = grid(m);
    warps(cfg.warps);

    let xf = frag::<F32, 1>([n]);
    for j in parallel([n]) {
        xf[j] = x[(row, j)].to::<F32>();
    }
    let amax = max(tile_absmax([n], |j| xf[j]), FLOOR);
    let quotient = amax / MAX;
    let (scale, by) = if cfg.ue8m0 {
        let power = E8m0::ceil_from(quotient);
        (power.to::<F32>(), power.recip())
    } else {
        (quotient, MAX / amax)
    };
    sf[(row, 0)] = scale;

    let codes = shared::<U32, 1>([n]);
    for j in parallel([n]) {
        let code = e5m6_code(xf[j] * by);
        codes[j] = code;
        if let Some(dequant) = dequant {
            dequant[(row, j)] = e5m6_value(code) * scale;
        }
    }
    for w in parallel([n / 8 * 3]) {
        // A word takes 32 bits from bit 0, 8 or 4 of its first code on: from codes 0, 2 or 5 of the eight.
        let part = w % 3;
        let first = w / 3 * 8 + part * 5 / 2;
        let skip = (part * 8 % 12).to::<U32>();
        let (a, b, c, d) = (codes[first], codes[first + 1], codes[first + 2], codes.get_or(first + 3, 0u32));
        packed[(row, w)] = (a << (20 + skip)) | (b << (8 + skip)) | ((c << skip) >> 4) | (d >> (16 - skip));
    }
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    ue8m0: bool,
    dequant: bool,
    dtype: DType,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct E5m6;

const OP: &str = "quant_e5m6";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { per_token_cast_e5m6::kernel::<F32>() } else { per_token_cast_e5m6::kernel::<Bf16>() }
}

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    let (m, n) = (x.shape[0], x.shape[1]);
    if n % 8 != 0 || n == 0 {
        return Err(p::refuse(
            OP,
            format!("rows of {n}; expected a multiple of 8, because eight codes fill three words"),
        ));
    }
    let group = p::count(OP, params, "num_per_channels", Some(n))?;
    let largest = p::number(OP, params, "max_value", Some(MAX as f64))?;
    if group != n || largest != MAX as f64 {
        return Err(p::refuse(OP, format!("a scale for {group} of {n} columns and {largest}; expected {n} and {MAX}")));
    }
    let (ue8m0, dequant) = (p::flag(OP, params, "ue8m0", false)?, p::flag(OP, params, "dequant", true)?);
    Ok(Cast { m, n, ue8m0, dequant, dtype: x.dtype })
}

impl OpSpec for E5m6 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_e5m6"),
            family: "quant",
            formula: "sf = max(max|x|, 1e-4)/65024 over rows; code = e5m6(x/sf)",
            source: "elementary",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        let all = [
            p::spec("packed", DType::U8, &[c.m, c.n / 8 * 12]),
            p::spec("sf", DType::F32, &[c.m, 1]),
            p::spec("dequant", DType::F32, &[c.m, c.n]),
        ];
        Ok(all.into_iter().filter(|t| c.dequant || t.name != "dequant").collect())
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(c.dtype);
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n)]);
        p::set(&mut config, "ue8m0", ConfigValue::Bool(c.ue8m0));
        let bytes = p::view(OP, problem, "packed")?;
        if bytes.strides[0] % 4 != 0 || bytes.strides[1] != 1 || bytes.offset_bytes % 4 != 0 {
            let message = format!("`packed` has strides {:?}; expected rows of whole 32-bit words", bytes.strides);
            return Err(p::refuse(OP, message));
        }
        let (shape, strides) = (vec![c.m, c.n / 8 * 3], vec![bytes.strides[0] / 4, 1]);
        let args = vec![
            p::arg(OP, problem, "x")?,
            Arg::Tensor(TensorView { dtype: DType::U32, shape, strides, ..bytes }),
            p::arg(OP, problem, "sf")?,
            if c.dequant { p::arg(OP, problem, "dequant")? } else { Arg::Absent },
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let c = cast_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let (mut packed, mut scales, mut back) = (vec![], vec![], vec![]);
        for row in x.chunks(c.n) {
            let amax = row.iter().fold(FLOOR, |m, v| m.max(v.abs()));
            let scale = if c.ue8m0 { power_of_two_at_least(amax / MAX) } else { amax / MAX };
            let by = if c.ue8m0 { 1.0 / scale } else { MAX / amax };
            let codes: Vec<u16> = row.iter().map(|v| reference_code((v * by) as f64)).collect();
            back.extend(codes.iter().map(|&code| (reference_value(code) as f32 * scale) as f64));
            scales.push(scale as f64);
            // The codes as one string of bits, cut into words.
            let bits: Vec<u32> =
                codes.iter().flat_map(|code| (0..12).rev().map(move |b| (code >> b & 1) as u32)).collect();
            let words = bits.chunks(32).map(|word| word.iter().fold(0u32, |w, b| w << 1 | b));
            packed.extend(words.flat_map(u32::to_le_bytes));
        }
        let mut outputs: BTreeMap<String, HostTensor> =
            [("packed".into(), u8_tensor(&[c.m, c.n / 8 * 12], packed)), ("sf".into(), f32_tensor(&[c.m, 1], &scales))]
                .into();
        if c.dequant {
            outputs.insert("dequant".into(), f32_tensor(&[c.m, c.n], &back));
        }
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        vec![p::split("tokens", c.m, 1, &["x", "packed", "sf", "dequant"].map(|name| (name, 0, 1)))]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, ue8m0: bool, dequant: bool| {
            let params = [("ue8m0", ParamValue::Bool(ue8m0)), ("dequant", ParamValue::Bool(dequant))];
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &params)
        };
        let normal = || Fill::Normal(2.0);
        // Subnormals and their middles, carries into the exponent, and the largest number, which makes the scale 1.
        let special: Vec<f64> = [0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 62.5, 63.0, 63.5, 64.0, 64.5, 127.5, 128.0, 129.0]
            .into_iter()
            .flat_map(|v: f64| [v, -v].map(|v| v * 2f64.powi(-20)))
            .chain([1.0078125, 1.0234375, 1.9921875, 1.99609375, 32767.0, 64768.0, 65000.0, 65024.0])
            .chain([0.0, -0.0, 1e-30, -1e-30])
            .collect();
        vec![
            make("no_rows", [0, 64], DType::Bf16, normal(), true, true),
            make("m5_n7168", [5, 7168], DType::Bf16, normal(), true, false),
            make("m3_n200", [3, 200], DType::Bf16, normal(), false, true),
            make("m2_n8_f32", [2, 8], DType::F32, normal(), false, true),
            make("special", [1, special.len()], DType::F32, Fill::Values(special.clone()), true, true),
            make("zeros", [2, 96], DType::Bf16, Fill::Constant(0.0), true, true),
            make("tiny", [2, 64], DType::F32, Fill::Normal(1e-30), true, true),
            make("huge", [2, 64], DType::Bf16, Fill::Uniform(-3e38, 3e38), false, false),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "hidden"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        p::token_shapes()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [tokens, hidden] = p::bench_sizes(OP, shape, ["tokens", "hidden"])?;
        let x = p::filled("x", DType::Bf16, &[tokens, hidden], Fill::Normal(1.0));
        let params = [("ue8m0", ParamValue::Bool(true)), ("dequant", ParamValue::Bool(false))];
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), vec![x], &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        p::moved(self, specs, params, 2.0)
    }
}
