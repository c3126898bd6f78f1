//! Cast of rows to e4m3 with one scale for each `group` consecutive elements of a row.
//!
//! `amax = max(max|x|, amax_min)` over a group, `sf = amax/448` (with `ue8m0` the next power of two),
//! `q = e4m3(x · inv)` with `inv = 1/sf`, or `448/amax` in the mode `max_over_amax`.
//!
//! *Tensors*: `x` `[m, n]` bf16 or f32; `q` `[m, n]` e4m3; `sf` `[m, ⌈n/group⌉]` f32; with `ue8m0` also `sf_packed`
//! `[⌈⌈n/group⌉/4⌉, al(m,4)]` i32: exponents of four groups a word, first group in the low byte, padding 0.
//! *Cost*: 3 bytes moved per bf16 element, memory bound.
//! *Numerics*: f32, correctly rounded division; nearest even, saturating. A zero group gives the floor's scale and zeros.
//! *Schedule*: `rows × groups` groups a block; a group's elements stay in registers between maximum and cast.
//! *Source*: OCP Microscaling Formats 1.0 for the power-of-two scales; `sf_packed` is what block-scaled matrix units read.

use crate::numeric::round::{e4m3_tensor, f32_tensor, i32_tensor, ue8m0_code};
use crate::problem as p;
use crate::quant::scale::{Inverse, cast_row, scale_and_inverse};
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work of a block, and which cast is meant.
#[derive(KernelConfig, Clone, Debug)]
pub struct PerTokenConfig {
    /// Rows of a block.
    #[tune(1, 4)]
    pub rows: usize,
    /// Groups of each row; a multiple of four, because a word of packed scales holds four.
    #[tune(56, 16, 32)]
    pub groups: usize,
    /// Warps of a block.
    #[tune(4, 8)]
    pub warps: usize,
    /// Elements that share a scale.
    #[default(128)]
    pub group: usize,
    /// Scales are powers of two.
    #[default(false)]
    pub ue8m0: bool,
    /// How the factor is formed.
    #[default(Inverse::RecipSf)]
    pub inverse: Inverse,
}

/// Casts rows. Packed scales have room for every row; `aligned` is 0 without them.
#[kernel(
    dims(n: fixed),
    require(cfg.groups % 4 == 0, aligned == 0 || m <= aligned),
    deterministic,
    batch_invariant(m)
)]
pub fn per_token_cast_fp8<T: Float>(
    cfg: &PerTokenConfig,
    x: In![T; m, n],
    q: Out![E4m3; m, n],
    sf: Out![F32; m, blocks],
    sf_packed: Option<Out![I32; words, aligned]>,
    amax_min: Scalar![F32],
) {
    let (rows, groups, group) = (cfg.rows, cfg.groups, cfg.group);
    // Packed scales have padding rows, which are written too.
    let height = if sf_packed.is_some() { aligned } else { m };
    let (ri, gi) = grid((height.div_ceil(rows), n.div_ceil(groups * group)));
    let (r0, g0) = (ri * rows, gi * groups);
    warps(cfg.warps);

    let xf = frag::<F32, 3>([rows, groups, group]);
    for (i, g, j) in parallel([rows, groups, group]) {
        xf[(i, g, j)] = x[(r0 + i, (g0 + g) * group + j)].to::<F32>();
    }
    let amax = reduce_absmax(xf, 2);
    // Only packed scales need exponents, across the threads that own the groups.
    let exponents = if sf_packed.is_some() { Some(shared::<I32, 2>([rows, groups])) } else { None };
    let factor = frag::<F32, 2>([rows, groups]);
    for (i, g) in parallel([rows, groups]) {
        let (scale, by) = scale_and_inverse(amax[(i, g)], amax_min, cfg.ue8m0, cfg.inverse);
        sf[(r0 + i, g0 + g)] = scale;
        factor[(i, g)] = by;
        if let Some(exponents) = exponents {
            exponents[(i, g)] = (scale.bits() >> 23).to::<I32>();
        }
    }
    for (i, g, j) in parallel([rows, groups, group]) {
        q[(r0 + i, (g0 + g) * group + j)] = (xf[(i, g, j)] * factor[(i, g)]).to::<E4m3>();
    }

    if let Some(packed) = sf_packed
        && let Some(exponents) = exponents
    {
        for (w, i) in parallel([groups / 4, rows]) {
            let mut word = 0i32;
            for byte in unroll(0..4) {
                let g = w * 4 + byte;
                let live = g0 + g < blocks && r0 + i < m;
                word = word | select(live, exponents[(i, g)] << (8 * byte as i32), 0);
            }
            packed[(gi * (groups / 4) + w, r0 + i)] = word;
        }
    }
}

/// What a problem asks for.
struct Cast {
    m: usize,
    n: usize,
    group: usize,
    ue8m0: bool,
    inverse: Inverse,
    amax_min: f32,
    dtype: DType,
}

impl Cast {
    fn blocks(&self) -> usize {
        self.n.div_ceil(self.group)
    }
    fn packed_shape(&self) -> [usize; 2] {
        [self.blocks().div_ceil(4), self.m.next_multiple_of(4)]
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct PerTokenFp8;

const OP: &str = "quant_per_token_fp8";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

fn kernel_for(dtype: DType) -> Arc<dyn KernelDef> {
    if dtype == DType::F32 { per_token_cast_fp8::kernel::<F32>() } else { per_token_cast_fp8::kernel::<Bf16>() }
}

/// Reads a problem's inputs and parameters.
fn cast_of(specs: &p::Specs, params: &Params) -> Result<Cast, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    p::word(OP, params, "fmt", &["e4m3"])?;
    let [1, group] = p::pair(OP, params, "block", [1, 128])? else {
        return Err(p::refuse(OP, format!("parameter `block` is {:?}; expected [1, group]", params.get("block"))));
    };
    let inverse = Inverse::read(OP, params)?;
    Ok(Cast {
        m: x.shape[0],
        n: x.shape[1],
        group,
        ue8m0: p::flag(OP, params, "ue8m0", false)?,
        inverse,
        amax_min: p::number(OP, params, "amax_min", Some(1e-4))? as f32,
        dtype: x.dtype,
    })
}

impl OpSpec for PerTokenFp8 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("cast_fp8_1x128"),
            family: "quant",
            formula: "sf = max(max|x|, amax_min)/448 over groups; q = e4m3(x/sf)",
            source: "OCP Microscaling Formats 1.0",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let c = cast_of(specs, params)?;
        let mut outputs = vec![p::spec("q", DType::E4m3, &[c.m, c.n]), p::spec("sf", DType::F32, &[c.m, c.blocks()])];
        if c.ue8m0 {
            outputs.push(p::spec("sf_packed", DType::I32, &c.packed_shape()));
        }
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let c = cast_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(c.dtype);
        let mut config = p::choose(configs, &kernel, &[("m", c.m), ("n", c.n), ("blocks", c.blocks())]);
        p::set(&mut config, "group", ConfigValue::Int(c.group));
        p::set(&mut config, "ue8m0", ConfigValue::Bool(c.ue8m0));
        p::set(&mut config, "inverse", ConfigValue::Word(format!("{:?}", c.inverse)));
        p::at_most(&mut config, "groups", c.blocks().next_multiple_of(4));
        let args = vec![
            p::arg(OP, problem, "x")?,
            p::arg(OP, problem, "q")?,
            p::arg(OP, problem, "sf")?,
            if c.ue8m0 { p::arg(OP, problem, "sf_packed")? } else { Arg::Absent },
            Arg::Scalar(Literal::f32(c.amax_min)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let c = cast_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x: Vec<f32> = p::numbers(OP, problem, "x")?.into_iter().map(|v| v as f32).collect();
        let (mut codes, mut scales) = (vec![], vec![]);
        for row in x.chunks(c.n.max(1)) {
            let (q, sf) = cast_row(row, c.group, c.amax_min, c.ue8m0, c.inverse);
            codes.extend(q);
            scales.extend(sf);
        }
        let mut outputs = BTreeMap::new();
        if c.ue8m0 {
            let [words, aligned] = c.packed_shape();
            let mut packed = vec![0i32; words * aligned];
            for row in 0..c.m {
                for block in 0..c.blocks() {
                    let exponent = ue8m0_code(scales[row * c.blocks() + block]) as u32;
                    packed[block / 4 * aligned + row] |= (exponent << (8 * (block % 4))) as i32;
                }
            }
            outputs.insert("sf_packed".into(), i32_tensor(&[words, aligned], &packed));
        }
        let scales: Vec<f64> = scales.into_iter().map(f64::from).collect();
        outputs.insert("q".into(), e4m3_tensor(&[c.m, c.n], codes));
        outputs.insert("sf".into(), f32_tensor(&[c.m, c.blocks()], &scales));
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        // Packed scales are padded to four rows.
        let Ok(c) = cast_of(specs, params) else { return vec![] };
        vec![p::split("tokens", c.m, 4, &[("x", 0, 4), ("q", 0, 4), ("sf", 0, 4), ("sf_packed", 1, 4)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: [usize; 2], dtype, fill: Fill, group: i64, ue8m0: bool, mode: &str| {
            let params = [
                ("block", ParamValue::List(vec![ParamValue::Int(1), ParamValue::Int(group)])),
                ("ue8m0", ParamValue::Bool(ue8m0)),
                ("inv_mode", ParamValue::Text(mode.into())),
            ];
            p::case(id, vec![p::filled("x", dtype, &shape, fill)], &params)
        };
        let (recip, over) = ("recip_sf", "max_over_amax");
        let normal = || Fill::Normal(2.0);
        vec![
            make("no_rows", [0, 256], DType::Bf16, normal(), 128, true, recip),
            make("m5_n7168", [5, 7168], DType::Bf16, normal(), 128, false, recip),
            make("m5_n7168_ue8m0", [5, 7168], DType::Bf16, normal(), 128, true, recip),
            make("m7_n256_max_over_amax", [7, 256], DType::Bf16, normal(), 128, false, over),
            make("m5_n200_tail", [5, 200], DType::Bf16, normal(), 128, true, recip),
            make("m3_n77_odd", [3, 77], DType::Bf16, normal(), 32, false, recip),
            make("m9_n96_g32_f32", [9, 96], DType::F32, normal(), 32, true, recip),
            make("zeros", [4, 256], DType::Bf16, Fill::Constant(0.0), 128, true, recip),
            make("tiny", [4, 256], DType::F32, Fill::Normal(1e-30), 128, false, recip),
            make("huge", [4, 256], DType::Bf16, Fill::Uniform(-3e38, 3e38), 128, true, recip),
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
        Ok(p::case(format!("tokens{tokens}_hidden{hidden}"), vec![x], &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(outputs) = self.outputs(specs, params) else { return Cost::default() };
        let elements = p::product(&specs["x"].shape);
        let tensors: Vec<_> = outputs.iter().chain([&specs["x"]]).collect();
        Cost { flops: 2.0 * elements, bytes: p::bytes(&tensors) }
    }
}
