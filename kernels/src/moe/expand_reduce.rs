//! Rows of tokens into the order of experts, and back: what stands before and after grouped products.
//!
//! *Expand*: `expanded[token_topk_to_pos[t, s]] = x[t]` for every slot with a position; positions whose `pos_to_expert` is
//! negative are zero. With scales `sf` their rows move alike. *Reduce*: `reduced[t] = Σ_s y[pos] · topk_weights[t, s]` over the
//! slots with a position, one fused multiply-add after another in f32, then one rounding; 0 for a token without slots. With
//! `y_sf` an element is `y · y_sf` first; with `reduced_sf` the sum is divided by it before it is rounded.
//!
//! *Tensors*: `token_topk_to_pos` `[t, k]` i32. Expand (if there is `x`): `x` `[t, h]` bf16, f32 or e4m3, `pos_to_expert`
//! `[n]` i32, `sf` `[t, g]` f32 or packed i32, at any strides; `expanded` `[n, h]` as `x`, `expanded_sf` `[n, g]` as `sf`.
//! Reduce (if there is `y`): `y` `[n, h]` bf16, f32 or e4m3, `y_sf` `[n, ⌈h/g⌉]` f32 for groups of `gran_k` columns,
//! `topk_weights` `[t, k]` f32, may be left out (1); `reduced` `[t, h]` of the type the parameter `out` names (`bf16`, `f32`,
//! `e4m3`), `reduced_sf` `[1]` f32. Rows of `x` and `y` at any distance.
//! *Cost*: expand reads a row once and writes it for each slot; reduce reads a row for each slot. Memory bound.
//! *Numerics*: copies; f32 sums in slot order.
//! *Schedule*: a block a token, its row in registers; expand has further blocks that clear padding.
//! *Source*: the published interface of TileKernels.

use crate::numeric::round::{e4m3_code, e4m3_tensor, f32_tensor};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block.
#[derive(KernelConfig, Clone, Debug)]
pub struct RowConfig {
    /// Columns of a block.
    #[tune(8192, 4096, 2048)]
    pub columns: usize,
    /// Warps of a block.
    #[tune(8, 4, 16)]
    pub warps: usize,
    /// Columns that share a scale.
    #[default(128)]
    pub group: usize,
}

/// Positions a block clears.
const CLEARED: usize = 32;

/// Copies rows to their positions.
#[kernel(dims(h: fixed, k: fixed, g: fixed), deterministic)]
pub fn moe_expand<T: DType, S: DType>(
    cfg: &RowConfig,
    x: In![T; t, h; strides(ld, 1)],
    sf: Option<In![S; t, g; strides(_, _)]>,
    slot_to_pos: In![I32; t, k],
    pos_to_expert: In![I32; n],
    out: Out![T; n, h],
    out_sf: Option<Out![S; n, g; strides(_, _)]>,
) {
    warps(cfg.warps);
    let columns = cfg.columns;
    let (b, c) = grid((t + n.div_ceil(CLEARED), h.div_ceil(columns)));
    let c0 = c * columns;
    let row = frag::<T, 1>([columns]);
    if b < t {
        copy(x.pick(b).at(c0), row);
        for s in unroll(0..k) {
            let pos = slot_to_pos[(b, s)];
            if pos >= 0 && pos < n.value() {
                copy(row, out.pick(pos.clamp_index(0, n)).at(c0));
            }
            if let Some(sf) = sf
                && let Some(out_sf) = out_sf
            {
                if c == 0 {
                    for i in parallel([g]) {
                        out_sf.put((pos, i), sf[(b, i)]);
                    }
                }
            }
        }
    } else {
        zero(row);
        let p0 = (b - t) * CLEARED;
        for p in p0..(p0 + CLEARED).min(n) {
            if pos_to_expert[p] < 0 {
                copy(row, out.pick(p).at(c0));
                if let Some(out_sf) = out_sf {
                    if c == 0 {
                        for i in parallel([g]) {
                            out_sf[(p, i)] = V::<S>::of(0.0);
                        }
                    }
                }
            }
        }
    }
}

/// Sums the rows of a token's slots.
#[kernel(dims(h: fixed, k: fixed), deterministic, batch_invariant(t))]
pub fn moe_reduce<T: Float, O: Float>(
    cfg: &RowConfig,
    y: In![T; n, h; strides(ld, 1)],
    sf: Option<In![F32; n, groups; strides(_, _)]>,
    weights: Option<In![F32; t, k]>,
    slot_to_pos: In![I32; t, k],
    out_sf: Option<In![F32; 1]>,
    out: Out![O; t, h],
) {
    warps(cfg.warps);
    let columns = cfg.columns;
    let (b, c) = grid((t, h.div_ceil(columns)));
    let c0 = c * columns;
    let sum = frag::<F32, 1>([columns]);
    zero(sum);
    for s in unroll(0..k) {
        let pos = slot_to_pos[(b, s)];
        if pos >= 0 && pos < n.value() {
            let at = pos.clamp_index(0, n);
            let w = if let Some(weights) = weights { weights[(b, s)] } else { lit(1.0f32) };
            for j in parallel([columns]) {
                let v = y[(at, c0 + j)].to::<F32>();
                let v = if let Some(sf) = sf { v * sf[(at, (c0 + j) / cfg.group)] } else { v };
                sum[j] = fma(v, w, sum[j]);
            }
        }
    }
    for j in parallel([columns]) {
        let v = if let Some(out_sf) = out_sf { sum[j] / out_sf[0] } else { sum[j] };
        out[(b, c0 + j)] = v.to::<O>();
    }
}

/// Rows at their positions, 0 where no slot goes.
pub fn expand(x: &[f64], h: usize, slots: &[i64], k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * h];
    for (flat, &pos) in slots.iter().enumerate() {
        if let Some(row) = usize::try_from(pos).ok().filter(|&p| p < n) {
            out[row * h..][..h].copy_from_slice(&x[flat / k * h..][..h]);
        }
    }
    out
}

/// Weighted sums of the rows of each token, in slot order.
pub fn reduce(y: &[f64], h: usize, slots: &[i64], k: usize, weights: &dyn Fn(usize) -> f64) -> Vec<f64> {
    let mut out = vec![0.0; slots.len() / k * h];
    for (flat, &pos) in slots.iter().enumerate() {
        if let Some(row) = usize::try_from(pos).ok().filter(|&p| p * h < y.len()) {
            for j in 0..h {
                out[flat / k * h + j] += y[row * h + j] * weights(flat);
            }
        }
    }
    out
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct MoeExpandReduce;

const OP: &str = "moe_expand_reduce";
const TYPES: [Data; 3] = [Data::Bf16, Data::F32, Data::E4m3];

fn expand_kernel(x: Data, sf: Data) -> Arc<dyn KernelDef> {
    match (x, sf) {
        (Data::E4m3, Data::I32) => moe_expand::kernel::<E4m3, I32>(),
        (Data::E4m3, _) => moe_expand::kernel::<E4m3, F32>(),
        (Data::F32, Data::I32) => moe_expand::kernel::<F32, I32>(),
        (Data::F32, _) => moe_expand::kernel::<F32, F32>(),
        (_, Data::I32) => moe_expand::kernel::<Bf16, I32>(),
        (_, _) => moe_expand::kernel::<Bf16, F32>(),
    }
}

fn reduce_kernel(y: Data, out: Data) -> Arc<dyn KernelDef> {
    match (y, out) {
        (Data::E4m3, Data::E4m3) => moe_reduce::kernel::<E4m3, E4m3>(),
        (Data::E4m3, Data::F32) => moe_reduce::kernel::<E4m3, F32>(),
        (Data::E4m3, _) => moe_reduce::kernel::<E4m3, Bf16>(),
        (Data::F32, Data::E4m3) => moe_reduce::kernel::<F32, E4m3>(),
        (Data::F32, Data::F32) => moe_reduce::kernel::<F32, F32>(),
        (Data::F32, _) => moe_reduce::kernel::<F32, Bf16>(),
        (_, Data::E4m3) => moe_reduce::kernel::<Bf16, E4m3>(),
        (_, Data::F32) => moe_reduce::kernel::<Bf16, F32>(),
        (_, _) => moe_reduce::kernel::<Bf16, Bf16>(),
    }
}

/// The half that moves rows out.
struct Expand {
    dtype: Data,
    positions: usize,
    hidden: usize,
    sf: Option<(Data, usize)>,
}

/// The half that brings them back.
struct Reduce {
    dtype: Data,
    hidden: usize,
    out: Data,
    group: usize,
}

/// What a problem asks for.
struct Shape {
    tokens: usize,
    k: usize,
    expand: Option<Expand>,
    reduce: Option<Reduce>,
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let slots = p::input(OP, specs, "token_topk_to_pos", &[Data::I32], 2)?;
    let [tokens, k] = [slots.shape[0], slots.shape[1]];
    if k == 0 || k > 64 {
        return Err(p::refuse(OP, format!("input `token_topk_to_pos` has {k} slots a token; expected 1 to 64")));
    }
    let mut s = Shape { tokens, k, expand: None, reduce: None };
    if let Some(x) = p::optional_input(OP, specs, "x", &TYPES, 2)? {
        p::shaped(OP, x, &[tokens, x.shape[1]], "a row a token")?;
        let positions = p::input(OP, specs, "pos_to_expert", &[Data::I32], 1)?.shape[0];
        let sf = p::optional_input(OP, specs, "sf", &[Data::F32, Data::I32], 2)?;
        if let Some(sf) = sf {
            p::shaped(OP, sf, &[tokens, sf.shape[1]], "a row a token")?;
        }
        let sf = sf.map(|t| (t.dtype, t.shape[1]));
        s.expand = Some(Expand { dtype: x.dtype, positions, hidden: x.shape[1], sf });
    }
    if let Some(y) = p::optional_input(OP, specs, "y", &TYPES, 2)? {
        let (hidden, group) = (y.shape[1], p::count(OP, params, "gran_k", Some(128))?);
        if let Some(w) = p::optional_input(OP, specs, "topk_weights", &[Data::F32], 2)? {
            p::shaped(OP, w, &[tokens, k], "one weight a slot")?;
        }
        if let Some(sf) = p::optional_input(OP, specs, "y_sf", &[Data::F32], 2)? {
            p::shaped(OP, sf, &[y.shape[0], hidden.div_ceil(group)], "one scale for `gran_k` columns of `y`")?;
        }
        if let Some(sf) = p::optional_input(OP, specs, "reduced_sf", &[Data::F32], 1)? {
            p::shaped(OP, sf, &[1], "one scale for all")?;
        }
        let out = match p::word(OP, params, "out", &["bf16", "f32", "e4m3"])? {
            "f32" => Data::F32,
            "e4m3" => Data::E4m3,
            _ => Data::Bf16,
        };
        s.reduce = Some(Reduce { dtype: y.dtype, hidden, out, group });
    }
    if s.expand.is_none() && s.reduce.is_none() {
        return Err(p::refuse(OP, "needs the input `x`, `y` or both; got neither"));
    }
    Ok(s)
}

/// Columns of a block: the row in as few equal parts as the configured size allows.
fn columns_of(config: &mut kiln_codegen::tune::Config, hidden: usize) {
    let most = super::fused_mapping::field(config, "columns").max(1);
    let each = hidden.max(1).div_ceil(hidden.max(1).div_ceil(most)).next_multiple_of(8).min(hidden.max(1));
    p::set(config, "columns", ConfigValue::Int(each));
}

impl OpSpec for MoeExpandReduce {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("moe_expand_reduce"),
            family: "moe",
            formula: "rows to their positions; Σ over slots of rows · weights",
            source: "interface of TileKernels",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        let expand = TYPES.into_iter().flat_map(|x| [Data::F32, Data::I32].map(|s| expand_kernel(x, s)));
        expand.chain(TYPES.into_iter().flat_map(|y| TYPES.map(|o| reduce_kernel(y, o)))).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let mut outputs = vec![];
        if let Some(e) = &s.expand {
            outputs.push(p::spec("expanded", e.dtype, &[e.positions, e.hidden]));
            outputs.extend(e.sf.map(|(d, g)| p::spec("expanded_sf", d, &[e.positions, g])));
        }
        if let Some(r) = &s.reduce {
            outputs.push(p::spec("reduced", r.out, &[s.tokens, r.hidden]));
        }
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let mut steps = vec![];
        if let Some(e) = &s.expand {
            let kernel = expand_kernel(e.dtype, e.sf.map_or(Data::F32, |s| s.0));
            let mut config = p::choose(configs, &kernel, &[("t", s.tokens), ("h", e.hidden), ("k", s.k)]);
            columns_of(&mut config, e.hidden);
            let args = vec![
                p::arg(OP, problem, "x")?,
                p::optional_arg(problem, "sf"),
                p::arg(OP, problem, "token_topk_to_pos")?,
                p::arg(OP, problem, "pos_to_expert")?,
                p::arg(OP, problem, "expanded")?,
                if e.sf.is_some() { p::arg(OP, problem, "expanded_sf")? } else { Arg::Absent },
            ];
            steps.push(Launch { kernel, config, args });
        }
        if let Some(r) = &s.reduce {
            let kernel = reduce_kernel(r.dtype, r.out);
            let mut config = p::choose(configs, &kernel, &[("t", s.tokens), ("h", r.hidden), ("k", s.k)]);
            columns_of(&mut config, r.hidden);
            p::set(&mut config, "group", ConfigValue::Int(r.group));
            let args = vec![
                p::arg(OP, problem, "y")?,
                p::optional_arg(problem, "y_sf"),
                p::optional_arg(problem, "topk_weights"),
                p::arg(OP, problem, "token_topk_to_pos")?,
                p::optional_arg(problem, "reduced_sf"),
                p::arg(OP, problem, "reduced")?,
            ];
            steps.push(Launch { kernel, config, args });
        }
        Ok(Plan { steps, workspaces: vec![] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let slots = p::integers(problem, "token_topk_to_pos").unwrap_or_default();
        let mut outputs: BTreeMap<String, HostTensor> = BTreeMap::new();
        if let Some(e) = &s.expand {
            let rows = |name: &str, h: usize| -> Result<Vec<f64>, OpError> {
                Ok(expand(&p::numbers(OP, problem, name)?, h, &slots, s.k, e.positions))
            };
            let shape = [e.positions, e.hidden];
            // Copies are exact in every type.
            outputs.insert("expanded".into(), HostTensor::from_f64(e.dtype, &shape, &rows("x", e.hidden)?));
            if let Some((dtype, g)) = e.sf {
                let shape = [e.positions, g];
                outputs.insert("expanded_sf".into(), HostTensor::from_f64(dtype, &shape, &rows("sf", g)?));
            }
        }
        if let Some(r) = &s.reduce {
            let mut y = p::numbers(OP, problem, "y")?;
            if problem.tensors.contains_key("y_sf") {
                let (sf, blocks) = (p::numbers(OP, problem, "y_sf")?, r.hidden.div_ceil(r.group));
                for (i, v) in y.iter_mut().enumerate() {
                    *v *= sf[i / r.hidden * blocks + i % r.hidden / r.group];
                }
            }
            let w = problem.tensors.get("topk_weights").map(HostTensor::to_f64);
            let by = problem.tensors.get("reduced_sf").map_or(1.0, |t| t.to_f64()[0]);
            let sums = reduce(&y, r.hidden, &slots, s.k, &|flat| w.as_ref().map_or(1.0, |w| w[flat]));
            let sums: Vec<f64> = sums.iter().map(|x| x / by).collect();
            let shape = [s.tokens, r.hidden];
            let reduced = match r.out {
                Data::E4m3 => e4m3_tensor(&shape, sums.iter().map(|&x| e4m3_code(x)).collect()),
                _ => f32_tensor(&shape, &sums),
            };
            outputs.insert("reduced".into(), reduced);
        }
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let mut splits = vec![];
        let hidden = |e: Option<usize>, r: Option<usize>| e.into_iter().chain(r).collect::<Vec<_>>();
        let sizes = hidden(s.expand.as_ref().map(|e| e.hidden), s.reduce.as_ref().map(|r| r.hidden));
        if sizes.iter().all(|&h| h == sizes[0]) {
            // Columns do not know of each other; those that share a scale stay together.
            let span = s.reduce.as_ref().map_or(128, |r| r.group);
            let cut = ["x", "expanded", "y", "reduced"].map(|name| (name, 1, span));
            splits.push(p::split("columns", sizes[0], span, &[&cut[..], &[("y_sf", 1, 1)]].concat()));
        }
        // Not by tokens: each may point at any row, so that all rows would stay.
        splits
    }
    fn tolerance(&self, output: &str, params: &Params) -> Tolerance {
        match (output, params.get("out")) {
            ("reduced", Some(ParamValue::Text(t))) if t == "e4m3" => {
                // A sum within f32's precision of a boundary between codes may fall to either side.
                Tolerance::Fp8Codes { max_code_step: 1, max_mismatch_fraction: 0.01 }
            }
            // f32 sums of a few products; those that cancel are judged by their terms' size.
            ("reduced", Some(ParamValue::Text(t))) if t == "f32" => {
                Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-6, cos_diff: None }
            }
            ("reduced", _) => Tolerance::AllCloseOr { abs: 1e-6, rel: 1.01 / 128.0, cos_diff: None },
            _ => Tolerance::BitExact,
        }
    }
    fn cases(&self) -> Vec<Case> {
        // Slots in a permuted order with holes: slot `i` of all goes to position `i·7 mod n` if `i·5 mod 4` is not 0.
        let maps = |t: usize, k: usize, n: usize| {
            let pos: Vec<f64> = (0..t * k).map(|i| if i * 5 % 4 == 0 { -1.0 } else { (i * 7 % n) as f64 }).collect();
            let expert: Vec<f64> =
                (0..n).map(|p| if pos.contains(&(p as f64)) { (p % 3) as f64 } else { -1.0 }).collect();
            [
                p::filled("token_topk_to_pos", Data::I32, &[t, k], Fill::Values(pos)),
                p::filled("pos_to_expert", Data::I32, &[n], Fill::Values(expert)),
            ]
        };
        let rows = |name: &str, dtype, n: usize, h: usize| p::filled(name, dtype, &[n, h], Fill::Normal(1.0));
        let make = |id: &str, [t, k, n]: [usize; 3], tensors: Vec<kiln_codegen::spec::InputSpec>, out: &str| {
            let [slots, experts] = maps(t, k, n);
            let has_x = tensors.iter().any(|i| i.tensor.name == "x");
            let mut inputs = vec![slots];
            inputs.extend(has_x.then_some(experts));
            inputs.extend(tensors);
            p::case(id, inputs, &[("out", ParamValue::Text(out.into())), ("gran_k", ParamValue::Int(32))])
        };
        let weights = |t: usize, k: usize| p::filled("topk_weights", Data::F32, &[t, k], Fill::Uniform(0.0, 1.0));
        let (bf16, f32, fp8) = (Data::Bf16, Data::F32, Data::E4m3);
        vec![
            make("no_tokens", [0, 2, 16], vec![rows("x", bf16, 0, 64), rows("y", bf16, 16, 64)], "bf16"),
            make(
                "t5_k8_h7168",
                [5, 8, 64],
                vec![rows("x", bf16, 5, 7168), rows("y", bf16, 64, 7168), weights(5, 8)],
                "bf16",
            ),
            make("odd_h", [13, 3, 64], vec![rows("x", bf16, 13, 77), rows("y", bf16, 64, 77), weights(13, 3)], "bf16"),
            make("wide_rows", [2, 2, 9], vec![rows("x", f32, 2, 10_000), rows("y", f32, 9, 10_000)], "f32"),
            make(
                "fp8_rows_and_scales",
                [9, 4, 64],
                vec![
                    rows("x", fp8, 9, 96),
                    rows("sf", f32, 9, 3),
                    rows("y", fp8, 64, 96),
                    rows("y_sf", f32, 64, 3),
                    weights(9, 4),
                ],
                "bf16",
            ),
            make(
                "packed_scales",
                [6, 2, 32],
                vec![rows("x", fp8, 6, 64), p::filled("sf", Data::I32, &[6, 2], Fill::Uniform(0.0, 1e6))],
                "bf16",
            ),
            make(
                "to_fp8",
                [7, 3, 32],
                vec![rows("y", bf16, 32, 64), weights(7, 3), p::filled("reduced_sf", f32, &[1], Fill::Constant(0.25))],
                "e4m3",
            ),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["tokens", "topk", "hidden", "reduce"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |sizes: [usize; 4]| self.bench_keys().iter().map(|k| k.to_string()).zip(sizes).collect();
        [[4096, 8, 7168, 0], [4096, 8, 7168, 1], [16384, 8, 7168, 0], [16384, 8, 7168, 1]].map(shape).into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        // Every slot has a position: a permutation of all.
        let [t, k, h, reduce] = p::bench_sizes(OP, shape, ["tokens", "topk", "hidden", "reduce"])?;
        let n = t
            .checked_mul(k)
            .filter(|&n| n < 1 << 31)
            .ok_or_else(|| p::refuse(OP, "too many slots; expected below 2^31"))?;
        // 7919 is prime, so that its multiples reach every position unless it divides their number.
        let stride = if n.is_multiple_of(7919) { 1 } else { 7919 };
        let to: Vec<f64> = (0..n).map(|i| (i * stride % n.max(1)) as f64).collect();
        let mut inputs = vec![p::filled("token_topk_to_pos", Data::I32, &[t, k], Fill::Values(to))];
        if reduce == 0 {
            inputs.push(p::filled("x", Data::Bf16, &[t, h], Fill::Normal(1.0)));
            inputs.push(p::filled("pos_to_expert", Data::I32, &[n], Fill::Constant(0.0)));
        } else {
            inputs.push(p::filled("y", Data::Bf16, &[n, h], Fill::Normal(1.0)));
            inputs.push(p::filled("topk_weights", Data::F32, &[t, k], Fill::Uniform(0.0, 1.0)));
        }
        Ok(p::case(format!("tokens{t}_topk{k}_hidden{h}_reduce{reduce}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let outputs = self.outputs(specs, params).unwrap_or_default();
        let all: Vec<_> = outputs.iter().chain(specs.values()).collect();
        Cost { flops: 0.0, bytes: p::bytes(&all) }
    }
}
