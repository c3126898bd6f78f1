//! SwiGLU followed by the cast of its rows to e4m3, in one pass.
//!
//! With `g, u` the halves of a row of `x`: `g ← min(g, clamp)`, `u ← clip(u, −clamp, clamp)` if there is a clamp,
//! `act = g/(1+e^-g) · u`, times `topk_weights.flat[pos_to_token_topk[row]]` if there are weights (an index of −1 gives a
//! row of zeros), then the cast of `per_token_fp8` with `inv = 1/sf`.
//!
//! *Tensors*: `x` `[t, 2·hidden]` bf16 or f32; `pos_to_token_topk` `[t]` i32 and `topk_weights` `[tokens, k]` f32, both or
//! neither; `act` `[t, hidden]` f32 (left out with the parameter `act: false`); `q` `[t, hidden]` e4m3; `sf`
//! `[t, ⌈hidden/gran_k⌉]` f32.
//! *Cost*: 5 bytes moved per output element without `act`, memory bound.
//! *Numerics*: f32; `e^-g` may overflow to infinity, which gives the right zero. Codes may differ by one neighbour between
//! devices, because the exponential and the inverse root are approximate there.
//! *Schedule*: as `per_token_fp8`; both halves of `x` are read once.
//! *Source*: Shazeer, GLU Variants Improve Transformer, 2020.

use crate::numeric::round::{e4m3_tensor, f32_tensor};
use crate::problem as p;
use crate::quant::scale::{Inverse, cast_row, scale_and_inverse};
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, InputSpec, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem,
    Split, TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and which cast is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct SwigluConfig {
    /// Rows of a block.
    #[tune(1, 2)]
    pub rows: usize,
    /// Groups of each row.
    #[tune(32, 16, 8)]
    pub groups: usize,
    /// Warps of a block.
    #[tune(8, 4)]
    pub warps: usize,
    /// Elements that share a scale.
    #[default(128)]
    pub group: usize,
    /// Scales are powers of two.
    #[default(false)]
    pub ue8m0: bool,
}

/// Activates and casts rows. `gate` and `up` are the halves of one tensor; as two views each has its own edge.
#[kernel(dims(h: fixed), deterministic, batch_invariant(t))]
pub fn swiglu_cast_fp8<T: Float>(
    cfg: &SwigluConfig,
    gate: In![T; t, h; strides(ld, 1)],
    up: In![T; t, h; strides(ld, 1)],
    pos: Option<In![I32; t]>,
    weights: Option<In![F32; slots]>,
    act: Option<Out![F32; t, h]>,
    q: Out![E4m3; t, h],
    sf: Out![F32; t, blocks],
    clamp_at: Option<Scalar![F32]>,
    amax_min: Scalar![F32],
) {
    let (rows, groups, group) = (cfg.rows, cfg.groups, cfg.group);
    let (ri, gi) = grid((t.div_ceil(rows), h.div_ceil(groups * group)));
    let (r0, g0) = (ri * rows, gi * groups);
    warps(cfg.warps);

    let y = frag::<F32, 3>([rows, groups, group]);
    for (i, b, j) in parallel([rows, groups, group]) {
        let (row, column) = (r0 + i, (g0 + b) * group + j);
        let g = gate[(row, column)].to::<F32>();
        let u = up[(row, column)].to::<F32>();
        let g = if let Some(c) = clamp_at { min(g, c) } else { g };
        let u = if let Some(c) = clamp_at { max(min(u, c), -c) } else { u };
        // 1/(1+e) as the square of an inverse root: one fast instruction where a correctly rounded quotient takes ten.
        // Three units in the last place off, and zero where the exponential overflows.
        let root = rsqrt(1.0 + exp(-g));
        let v = g * (root * root) * u;
        // A row without token is zero whatever its memory holds: selected, never multiplied.
        let v = if let Some(pos) = pos
            && let Some(weights) = weights
        {
            select(pos[row] >= 0, v * weights.get_or(pos[row], 0.0), 0.0)
        } else {
            v
        };
        y[(i, b, j)] = v;
    }
    let amax = reduce_absmax(y, 2);
    let factor = frag::<F32, 2>([rows, groups]);
    for (i, b) in parallel([rows, groups]) {
        let (scale, by) = scale_and_inverse(amax[(i, b)], amax_min, cfg.ue8m0, Inverse::RecipSf);
        sf[(r0 + i, g0 + b)] = scale;
        factor[(i, b)] = by;
    }
    for (i, b, j) in parallel([rows, groups, group]) {
        let (row, column) = (r0 + i, (g0 + b) * group + j);
        q[(row, column)] = (y[(i, b, j)] * factor[(i, b)]).to::<E4m3>();
        if let Some(act) = act {
            act[(row, column)] = y[(i, b, j)];
        }
    }
}

/// The activation of one element.
pub fn swiglu(gate: f64, up: f64, clamp: Option<f64>) -> f64 {
    let (g, u) = match clamp {
        Some(c) => (gate.min(c), up.clamp(-c, c)),
        None => (gate, up),
    };
    g / (1.0 + (-g).exp()) * u
}

fn kernel_for(x: DType) -> Arc<dyn KernelDef> {
    if x == DType::F32 { swiglu_cast_fp8::kernel::<F32>() } else { swiglu_cast_fp8::kernel::<Bf16>() }
}

/// What a problem asks for.
struct Shape {
    dtype: DType,
    rows: usize,
    hidden: usize,
    group: usize,
    ue8m0: bool,
    clamp: Option<f64>,
    amax_min: f32,
    weighted: bool,
    act: bool,
}

impl Shape {
    fn blocks(&self) -> usize {
        self.hidden.div_ceil(self.group)
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct SwigluQuant;

const OP: &str = "swiglu_quant";

/// Reads a problem's inputs and parameters.
fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let x = p::input(OP, specs, "x", &[DType::Bf16, DType::F32], 2)?;
    let (rows, hidden) = (x.shape[0], x.shape[1] / 2);
    if x.shape[1] % 2 != 0 || p::count(OP, params, "hidden", Some(hidden.max(1)))? != hidden.max(1) {
        let message = format!("input `x` has {} columns; expected twice the parameter `hidden`", x.shape[1]);
        return Err(p::refuse(OP, message));
    }
    let pos = p::optional_input(OP, specs, "pos_to_token_topk", &[DType::I32], 1)?;
    let weights = p::optional_input(OP, specs, "topk_weights", &[DType::F32], 2)?;
    if pos.is_some() != weights.is_some() {
        return Err(p::refuse(OP, "needs `pos_to_token_topk` and `topk_weights` together, or neither"));
    }
    if let Some(pos) = pos {
        p::shaped(OP, pos, &[rows], "one entry a row of `x`")?;
    }
    let clamp = p::number(OP, params, "clamp", Some(f64::NAN))?;
    if clamp < 0.0 {
        return Err(p::refuse(OP, format!("parameter `clamp` is {clamp}; expected a number that is not negative")));
    }
    Ok(Shape {
        dtype: x.dtype,
        rows,
        hidden,
        group: p::count(OP, params, "gran_k", Some(128))?,
        ue8m0: p::flag(OP, params, "ue8m0", false)?,
        clamp: Some(clamp).filter(|c| !c.is_nan()),
        amax_min: p::number(OP, params, "amax_min", Some(1e-4))? as f32,
        weighted: pos.is_some(),
        act: p::flag(OP, params, "act", true)?,
    })
}

/// The half of `x` that starts at column `first`.
fn half(x: &TensorView, first: usize, columns: usize) -> TensorView {
    let mut view = x.clone();
    view.shape[1] = columns;
    // A view without elements has no place: it may not point past an allocation of no bytes.
    if view.num_elements() > 0 {
        view.offset_bytes += x.dtype.bytes(first * x.strides[1]);
    }
    view
}

impl OpSpec for SwigluQuant {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("swiglu_cast_fp8"),
            family: "quant",
            formula: "act = g·σ(g)·u·w; q, sf = cast of act to e4m3",
            source: "Shazeer, 2020; OCP Microscaling Formats 1.0",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [DType::Bf16, DType::F32].map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let all = [
            p::spec("act", DType::F32, &[s.rows, s.hidden]),
            p::spec("q", DType::E4m3, &[s.rows, s.hidden]),
            p::spec("sf", DType::F32, &[s.rows, s.blocks()]),
        ];
        Ok(all.into_iter().filter(|t| s.act || t.name != "act").collect())
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(s.dtype);
        let mut config = p::choose(configs, &kernel, &[("t", s.rows), ("h", s.hidden), ("blocks", s.blocks())]);
        p::set(&mut config, "group", ConfigValue::Int(s.group));
        p::set(&mut config, "ue8m0", ConfigValue::Bool(s.ue8m0));
        p::at_most(&mut config, "groups", s.blocks().max(1));
        let x = p::view(OP, problem, "x")?;
        let weights =
            problem.tensors.get("topk_weights").cloned().map(|v| p::flat(OP, "topk_weights", v)).transpose()?;
        let args = vec![
            Arg::Tensor(half(&x, 0, s.hidden)),
            Arg::Tensor(half(&x, s.hidden, s.hidden)),
            p::optional_arg(problem, "pos_to_token_topk"),
            weights.map_or(Arg::Absent, Arg::Tensor),
            if s.act { p::arg(OP, problem, "act")? } else { Arg::Absent },
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "sf")?,
            s.clamp.map_or(Arg::Absent, |c| Arg::Scalar(Literal::f32(c as f32))),
            Arg::Scalar(Literal::f32(s.amax_min)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x = p::numbers(OP, problem, "x")?;
        let (pos, weights) = if s.weighted {
            (p::numbers(OP, problem, "pos_to_token_topk")?, p::numbers(OP, problem, "topk_weights")?)
        } else {
            (vec![], vec![])
        };
        let (mut act, mut codes, mut scales) = (vec![], vec![], vec![]);
        for (row, values) in x.chunks(2 * s.hidden.max(1)).enumerate() {
            let weight = if !s.weighted {
                Some(1.0)
            } else if pos[row] < 0.0 {
                None
            } else {
                Some(weights.get(pos[row] as usize).copied().unwrap_or(0.0))
            };
            let y: Vec<f64> = (0..s.hidden)
                .map(|j| weight.map_or(0.0, |w| swiglu(values[j], values[s.hidden + j], s.clamp) * w))
                .collect();
            let rounded: Vec<f32> = y.iter().map(|&v| v as f32).collect();
            let (q, sf) = cast_row(&rounded, s.group, s.amax_min, s.ue8m0, Inverse::RecipSf);
            act.extend(y);
            codes.extend(q);
            scales.extend(sf.into_iter().map(f64::from));
        }
        let mut outputs: BTreeMap<String, HostTensor> = BTreeMap::new();
        if s.act {
            outputs.insert("act".into(), f32_tensor(&[s.rows, s.hidden], &act));
        }
        outputs.insert("q".into(), e4m3_tensor(&[s.rows, s.hidden], codes));
        outputs.insert("sf".into(), f32_tensor(&[s.rows, s.blocks()], &scales));
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let cut = ["x", "pos_to_token_topk", "act", "q", "sf"].map(|name| (name, 0, 1));
        vec![p::split("tokens", s.rows, 1, &cut)]
    }
    fn tolerance(&self, output: &str, params: &Params) -> Tolerance {
        match output {
            "act" => Tolerance::AllCloseOr { abs: 1e-6, rel: 1e-5, cos_diff: None },
            "q" => Tolerance::Fp8Codes { max_code_step: 1, max_mismatch_fraction: 0.01 },
            // A power of two moves by a whole step when the maximum lies at the boundary. A step down is half the scale; a
            // step up would be as far off as a scale of zero, so it is refused and no case lies that close below.
            _ if params.get("ue8m0") == Some(&ParamValue::Bool(true)) => {
                Tolerance::AllCloseOr { abs: 0.0, rel: 0.6, cos_diff: None }
            }
            _ => Tolerance::AllCloseOr { abs: 0.0, rel: 1e-5, cos_diff: None },
        }
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, rows: usize, hidden: usize, fill: Fill, group: i64, ue8m0: bool, clamp: Option<f64>| {
            let params = [
                ("gran_k", ParamValue::Int(group)),
                ("ue8m0", ParamValue::Bool(ue8m0)),
                ("clamp", clamp.map_or(ParamValue::Null, ParamValue::Float)),
            ];
            p::case(id, vec![p::filled("x", DType::Bf16, &[rows, 2 * hidden], fill)], &params)
        };
        let weighted = |mut case: Case, pos: &[f64], slots: [usize; 2]| {
            let weights: InputSpec = p::filled("topk_weights", DType::F32, &slots, Fill::Uniform(0.0, 1.0));
            let pos = p::filled("pos_to_token_topk", DType::I32, &[pos.len()], Fill::Values(pos.to_vec()));
            case.inputs.extend([pos, weights]);
            case
        };
        let normal = || Fill::Normal(2.0);
        vec![
            make("no_rows", 0, 128, normal(), 128, false, None),
            make("t5_h2048", 5, 2048, normal(), 128, false, None),
            make("t3_h96_g32_tail_ue8m0", 3, 90, normal(), 32, true, Some(7.0)),
            weighted(make("t4_h256_weights", 4, 256, normal(), 128, true, Some(10.0)), &[5.0, -1.0, 0.0, 8.0], [3, 3]),
            make("zeros", 2, 128, Fill::Constant(0.0), 128, true, None),
            make("far_negative_gate", 2, 128, Fill::Uniform(-200.0, -90.0), 128, false, Some(10.0)),
            {
                let mut case = make("t3_h96_f32", 3, 96, normal(), 32, false, Some(2.0));
                case.inputs[0].tensor.dtype = DType::F32;
                case
            },
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
        let x = p::filled("x", DType::Bf16, &[tokens, 2 * hidden], Fill::Normal(1.0));
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), vec![x], &[("act", ParamValue::Bool(false))]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(outputs), Ok(s)) = (self.outputs(specs, params), shape_of(specs, params)) else {
            return Cost::default();
        };
        let tensors: Vec<_> = outputs.iter().chain(specs.values().filter(|t| !outputs.contains(t))).collect();
        Cost { flops: 8.0 * p::product(&[s.rows, s.hidden]), bytes: p::bytes(&tensors) }
    }
}
