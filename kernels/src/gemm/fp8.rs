//! fp8 product with block scales: `d[m, n] = Σ_κ sfa[m, κ]·sfb[n', κ]·(Σ_{k∈κ} a[m, k]·b[n, k]) + c[m, n]`.
//!
//! *Tensors*: `a` `[m, k]` e4m3; `b` `[n, k]` e4m3, or `b_packed` `[n, k/2]` bytes of two e2m1 codes, the even index in
//! the low half; `c`, `d` `[m, n]` bf16 or f32, `c` may be left out or be `d`. Scales of `a`: `sfa` `[m, ⌈k/gran_k_a⌉]` f32, or the
//! columns of it `sfa_mn_major` `[⌈k/gran_k_a⌉, al(m,4)]`, or `sfa_packed` of `sf_layout`; packed ones are preferred. The
//! same for `b`, where with kind `1d2d` 128 rows share a scale.
//! *Cost*: `2mnk` operations; `mk + nk` bytes and the output. Compute bound for many rows, bound by `b` for few.
//! *Numerics*: the products of a scale group are summed in the matrix unit, then `acc = fma(sfa·sfb, sum, acc)` in f32;
//! without that promotion the short accumulator of matrix units loses bits as K grows. `c` is added in f32 before the one
//! rounding. K = 0 gives `c` or 0.
//! *Schedule*: a tile of the output a block, tiles in panels; operands of a step in shared memory, copied ahead. Few rows
//! have a kernel of their own, `fp8_few`.
//! *Source*: DeepSeek-V3 technical report, 3.3 (fine-grained scales, promotion); OCP Microscaling Formats 1.0.

use crate::gemm::scales::{Scaled, Scales, promoted_step};
use crate::gemm::{addend, fp8_few};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel};
use kiln_codegen::schedule::{Options, Reason, Schedule, attach, automatic};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue, KernelConfig};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tile of a block, and the scale groups of the problem.
#[derive(KernelConfig, Clone, Debug)]
pub struct GemmFp8Config {
    /// Rows of a tile.
    #[tune(64, 128, 192, 256)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 96, 112, 128, 144, 192)]
    pub bn: usize,
    /// K of a step, a multiple of the groups; it does not change the sums.
    #[tune(128)]
    pub bk: usize,
    /// Stages of the copies.
    #[tune(3, 4, 6, 8)]
    pub stages: usize,
    /// Rows of tiles in a panel.
    #[tune(8, 1)]
    pub panel: usize,
    /// Blocks of a cluster, where the target has clusters: neighbours bring one operand for each other.
    #[tune(1, 2)]
    pub cluster: usize,
    /// Neighbours share rows of `a`, else rows of `b`.
    #[tune(true, false)]
    pub share_a: bool,
    /// Steps of K printed in a row.
    #[tune(8, 4)]
    pub unroll: usize,
    /// Elements along K that share a scale of `a`.
    #[default(128)]
    pub gran_a: usize,
    /// Elements along K that share a scale of `b`.
    #[default(128)]
    pub gran_b: usize,
    /// Rows of `b` that share a scale.
    #[default(128)]
    pub gran_n: usize,
    /// Add what `d` holds.
    #[default(false)]
    pub in_place: bool,
    /// Problems of at most this many rows take the kernel for few rows, whose sums have another order, and so do those of
    /// up to twice as many whose tiles would leave multiprocessors idle here; 0: none do.
    #[numerics]
    #[tune(64, 0, 128, 256)]
    pub few_rows: usize,
}

/// Multiplies. Packed scales have room for every row; `ma` and `na` are 0 without them.
#[kernel(
    require(
        cfg.bk % cfg.gran_a == 0,
        cfg.bk % cfg.gran_b == 0,
        ma == 0 || m <= ma,
        na == 0 || n.div_ceil(cfg.gran_n) <= na,
    ),
    pdl,
    deterministic,
    batch_invariant(m),
)]
pub fn gemm_fp8<B: Float, O: Float>(
    cfg: &GemmFp8Config,
    a: In![E4m3; m, k; strides(lda, 1)],
    sa: Option<In![F32; m, ka; strides(_, _)]>,
    sa_packed: Option<In![I32; wa, ma]>,
    b: In![B; n, k; strides(ldb, 1)],
    sb: Option<In![F32; nb, kb; strides(_, _)]>,
    sb_packed: Option<In![I32; wb, na]>,
    c: Option<In![O; m, n; strides(ldc, 1)]>,
    d: InOut![O; m, n; strides(ldd, 1)],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, cfg.bk);
    let rows = host!(Scales { plain: sa, packed: sa_packed, rows: 1, depth: cfg.gran_a });
    let columns = host!(Scales { plain: sb, packed: sb_packed, rows: cfg.gran_n, depth: cfg.gran_b });

    #[label(tiles)]
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(bn)), Raster::panels(cfg.panel)) {
        let a_s = shared::<E4m3, 2>([bm, bk]);
        let b_s = shared::<E4m3, 2>([bn, bk]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);

        #[label(k_loop)]
        for ki in pipeline(0..k.div_ceil(bk), cfg.stages) {
            #[label(load_a)]
            copy(a.at((mi * bm, ki * bk)), a_s);
            // Every e2m1 value is an e4m3 value.
            #[label(load_b)]
            copy_cast(b.at((ni * bn, ki * bk)), b_s);
            #[label(mma)]
            promoted_step(
                Scaled { tile: a_s, scales: rows, row: mi * bm },
                Scaled { tile: b_s, scales: columns, row: ni * bn },
                ki * bk,
                acc,
            );
        }

        #[label(store)]
        for (i, j) in parallel([bm, bn]) {
            let (row, column) = (mi * bm + i, ni * bn + j);
            let x = acc[(i, j)];
            let x = if let Some(c) = c {
                x + c[(row, column)].to::<F32>()
            } else if cfg.in_place {
                x + d[(row, column)].to::<F32>()
            } else {
                x
            };
            d[(row, column)] = x.to::<O>();
        }
    }
}

/// The value of an e2m1 code.
pub fn e2m1_value(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(code & 7) as usize];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The numbers of a tensor of bytes with two e2m1 codes each.
pub fn e2m1_numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().flat_map(|b| [e2m1_value(b & 15), e2m1_value(b >> 4)]).collect()
}

/// The value of byte `byte` of a word of exponents.
pub fn exponent_value(word: i32, byte: usize) -> f64 {
    let code = (word as u32 >> (8 * byte)) & 255;
    if code == 255 { f64::NAN } else { 2f64.powi(code as i32 - 127) }
}

/// The plain loops: `x[m, k] · y[n, k]ᵀ` of numbers with their scales applied.
pub fn reference(x: &[f64], y: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let mut columns = vec![0.0; k * n];
    for j in 0..n {
        for l in 0..k {
            columns[l * n + j] = y[j * k + l];
        }
    }
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        // The sums of a row grow side by side, each in ascending K: the processor adds several at once.
        let sums = &mut out[i * n..][..n];
        for l in 0..k {
            let (factor, row) = (x[i * k + l], &columns[l * n..][..n]);
            for (sum, y) in sums.iter_mut().zip(row) {
                *sum += factor * y;
            }
        }
    }
    out
}

/// What a problem asks for.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// Elements along K that share a scale of `a`, of `b`; rows of `b` that share one.
    gran: [usize; 3],
    fp4: bool,
    out: DType,
    accumulate: bool,
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmFp8;

const OP: &str = "gemm_fp8";
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

/// Warp groups that multiply and one thread that copies, on targets that have both.
fn schedule(k: &Kernel, config: &Config) -> Result<Schedule, Reason> {
    let c = GemmFp8Config::from_config(config).map_err(|e| e.to_string())?;
    let caps = Target::Sm90a.caps().ok_or("no limits are known")?;
    let options =
        Options { stages: c.stages, cluster: c.cluster, share_left: c.share_a, unroll: c.unroll, ..Options::default() };
    automatic(k, &caps, &options)
}

fn kernel_for(fp4: bool, out: DType) -> Arc<dyn KernelDef> {
    attach(plain_kernel(fp4, out), Target::Sm90a, schedule)
}

fn plain_kernel(fp4: bool, out: DType) -> Arc<dyn KernelDef> {
    match (fp4, out == DType::F32) {
        (false, false) => gemm_fp8::kernel::<E4m3, Bf16>(),
        (false, true) => gemm_fp8::kernel::<E4m3, F32>(),
        (true, false) => gemm_fp8::kernel::<E2m1, Bf16>(),
        (true, true) => gemm_fp8::kernel::<E2m1, F32>(),
    }
}

/// True if a problem's scales are packed exponents.
fn has_packed(problem: &Problem) -> bool {
    ["sfa_packed", "sfb_packed"].iter().any(|name| problem.tensors.contains_key(*name))
}

/// The plan for few rows.
fn few_rows(x: &Product, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
    let kernel = fp8_few::kernel_for(x.out);
    let mut config = p::choose(configs, &kernel, &[("m", x.m), ("n", x.n), ("k", x.k)]);
    if config == kernel.space().default_config() {
        fp8_few::suggest(&mut config, [x.m, x.n, x.k]);
    }
    let (c, in_place) = addend(OP, problem, x.accumulate)?;
    p::set(&mut config, "gran_n", ConfigValue::Int(x.gran[2]));
    p::set(&mut config, "in_place", ConfigValue::Bool(in_place));
    let [sa, _] = scale_args(problem, "sfa", x.m)?;
    let [sb, _] = scale_args(problem, "sfb", x.n.div_ceil(x.gran[2]))?;
    let args = vec![p::arg(OP, problem, "a")?, sa, p::arg(OP, problem, "b")?, sb, c, p::arg(OP, problem, "d")?];
    Ok(p::single(kernel, config, args))
}

/// The dtype a parameter `out_dtype` names.
pub(crate) fn out_dtype(op: &str, params: &Params, default: DType) -> Result<DType, OpError> {
    let words = if default == DType::F32 { ["f32", "bf16"] } else { ["bf16", "f32"] };
    Ok(if p::word(op, params, "out_dtype", &words)? == "f32" { DType::F32 } else { DType::Bf16 })
}

/// Checks that scales are there in one of their forms, for `rows` rows and `groups` groups.
fn scales(specs: &p::Specs, name: &str, rows: usize, groups: usize, why: &str) -> Result<(), OpError> {
    let mut found = false;
    for (suffix, dtype, shape) in [
        ("", DType::F32, [rows, groups]),
        ("_mn_major", DType::F32, [groups, rows.next_multiple_of(4)]),
        ("_packed", DType::I32, [groups.div_ceil(4), rows.next_multiple_of(4)]),
    ] {
        if let Some(s) = p::optional_input(OP, specs, &format!("{name}{suffix}"), &[dtype], 2)? {
            p::shaped(OP, s, &shape, why)?;
            found = true;
        }
    }
    if found { Ok(()) } else { Err(p::refuse(OP, format!("needs the input `{name}` or `{name}_packed`"))) }
}

/// Reads a problem's inputs and parameters.
fn product_of(specs: &p::Specs, params: &Params) -> Result<Product, OpError> {
    let a = p::input(OP, specs, "a", &[DType::E4m3], 2)?;
    let (m, k) = (a.shape[0], a.shape[1]);
    let packed = p::optional_input(OP, specs, "b_packed", &[DType::U8], 2)?;
    let n = match packed {
        Some(b) => {
            p::shaped(OP, b, &[b.shape[0], k / 2], "two codes a byte along the K of `a`, which is even")?;
            b.shape[0]
        }
        None => {
            let b = p::input(OP, specs, "b", &[DType::E4m3], 2)?;
            p::shaped(OP, b, &[b.shape[0], k], "the K of `a`")?;
            b.shape[0]
        }
    };
    p::word(OP, params, "layout", &["NT"])?;
    let kinds = if packed.is_some() { ["fp4", "fp4"] } else { ["1d2d", "1d1d"] };
    let gran_n = if p::word(OP, params, "kind", &kinds)? == "1d2d" { 128 } else { 1 };
    let gran_a = p::count(OP, params, "gran_k_a", Some(128))?;
    let gran_b = p::count(OP, params, "gran_k_b", Some(if packed.is_some() { 32 } else { 128 }))?;
    scales(specs, "sfa", m, k.div_ceil(gran_a), "one scale a row and group of K")?;
    scales(specs, "sfb", n.div_ceil(gran_n), k.div_ceil(gran_b), "one scale a block of rows and of K")?;
    let out = out_dtype(OP, params, DType::Bf16)?;
    let c = p::optional_input(OP, specs, "c", &[out], 2)?;
    let accumulate = p::flag(OP, params, "accumulate", c.is_some())?;
    if accumulate {
        p::shaped(OP, p::input(OP, specs, "c", &[out], 2)?, &[m, n], "the shape of `d`")?;
    }
    Ok(Product { m, n, k, gran: [gran_a, gran_b, gran_n], fp4: packed.is_some(), out, accumulate })
}

/// The two scale arguments of an operand with `rows` rows of scales: plain or transposed, and packed.
fn scale_args(problem: &Problem, name: &str, rows: usize) -> Result<[Arg; 2], OpError> {
    let (packed, columns) = (format!("{name}_packed"), format!("{name}_mn_major"));
    if problem.tensors.contains_key(&packed) {
        return Ok([Arg::Absent, p::arg(OP, problem, &packed)?]);
    }
    if problem.tensors.contains_key(&columns) {
        let v = p::view(OP, problem, &columns)?;
        let view = TensorView { shape: vec![rows, v.shape[0]], strides: vec![v.strides[1], v.strides[0]], ..v };
        return Ok([Arg::Tensor(view), Arg::Absent]);
    }
    Ok([p::arg(OP, problem, name)?, Arg::Absent])
}

/// Bytes of packed codes seen as e2m1 elements.
pub(crate) fn as_e2m1(v: TensorView) -> TensorView {
    let last = v.shape.len() - 1;
    let (mut shape, mut strides) = (v.shape.clone(), v.strides.clone());
    shape[last] *= 2;
    strides[..last].iter_mut().for_each(|s| *s *= 2);
    TensorView { dtype: DType::E2m1, shape, strides, ..v }
}

/// Scales of an operand as numbers, one an element of `[rows, k]`.
fn spread(problem: &HostProblem, name: &str, rows: usize, k: usize, gran: [usize; 2]) -> Result<Vec<f64>, OpError> {
    let groups = k.div_ceil(gran[1]);
    let scale_rows = rows.div_ceil(gran[0]);
    let wide = scale_rows.next_multiple_of(4);
    let mut table = vec![0.0; scale_rows * groups];
    let has = |suffix: &str| problem.tensors.contains_key(&format!("{name}{suffix}"));
    let suffix = if has("_packed") {
        "_packed"
    } else if has("_mn_major") {
        "_mn_major"
    } else {
        ""
    };
    let numbers = p::numbers(OP, problem, &format!("{name}{suffix}"))?;
    for row in 0..scale_rows {
        for group in 0..groups {
            table[row * groups + group] = match suffix {
                "_packed" => exponent_value(numbers[group / 4 * wide + row] as i32, group % 4),
                "_mn_major" => numbers[group * wide + row],
                _ => numbers[row * groups + group],
            };
        }
    }
    let at = |row: usize, l: usize| table[row / gran[0] * groups + l / gran[1]];
    Ok((0..rows).flat_map(|row| (0..k).map(move |l| (row, l))).map(|(row, l)| at(row, l)).collect())
}

impl OpSpec for GemmFp8 {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("gemm_fp8_block"),
            family: "gemm",
            formula: "d[m, n] = Σ_κ sfa[m, κ]·sfb[n', κ]·(Σ_{k∈κ} a[m, k]·b[n, k]) + c[m, n]",
            source: "DeepSeek-V3 technical report, 3.3",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        let all = [false, true].into_iter().flat_map(|fp4| TYPES.map(|out| kernel_for(fp4, out)));
        all.chain(TYPES.map(fp8_few::kernel_for)).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = product_of(specs, params)?;
        Ok(vec![p::spec("d", x.out, &[x.m, x.n])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = product_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(x.fp4, x.out);
        let (c, in_place) = addend(OP, problem, x.accumulate)?;
        let [sa, sa_packed] = scale_args(problem, "sfa", x.m)?;
        let [sb, sb_packed] = scale_args(problem, "sfb", x.n.div_ceil(x.gran[2]))?;
        let b = if x.fp4 { as_e2m1(p::view(OP, problem, "b_packed")?) } else { p::view(OP, problem, "b")? };
        let args =
            vec![p::arg(OP, problem, "a")?, sa, sa_packed, Arg::Tensor(b), sb, sb_packed, c, p::arg(OP, problem, "d")?];
        let mut config = p::choose_for(OP, configs, &kernel, &args)?;
        let limit = if let Some(ConfigValue::Int(limit)) = config.0.get("few_rows") { *limit } else { 0 };
        let few = x.m <= limit || (x.m <= 2 * limit && fp8_few::fits_at_once(x.m, x.n));
        if few && !x.fp4 && x.gran[..2] == [128, 128] && !has_packed(problem) {
            return few_rows(&x, problem, configs);
        }
        for (name, value) in ["gran_a", "gran_b", "gran_n"].into_iter().zip(x.gran) {
            p::set(&mut config, name, ConfigValue::Int(value));
        }
        p::set(&mut config, "in_place", ConfigValue::Bool(in_place));
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = product_of(&p::host_specs(self, problem)?, &problem.params)?;
        let [gran_a, gran_b, gran_n] = x.gran;
        let mut a = p::numbers(OP, problem, "a")?;
        let mut b = match problem.tensors.get("b_packed") {
            Some(bytes) => e2m1_numbers(&bytes.data),
            None => p::numbers(OP, problem, "b")?,
        };
        let scale = |values: &mut Vec<f64>, by: Vec<f64>| values.iter_mut().zip(by).for_each(|(v, s)| *v *= s);
        scale(&mut a, spread(problem, "sfa", x.m, x.k, [1, gran_a])?);
        scale(&mut b, spread(problem, "sfb", x.n, x.k, [gran_n, gran_b])?);
        let mut d = reference(&a, &b, [x.m, x.n, x.k]);
        if x.accumulate {
            d.iter_mut().zip(p::numbers(OP, problem, "c")?).for_each(|(d, c)| *d += c);
        }
        Ok([("d".into(), f32_tensor(&[x.m, x.n], &d))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = product_of(specs, params) else { return vec![] };
        // Transposed and packed scales are padded to four rows.
        let four = ["sfb_mn_major", "sfb_packed"].iter().any(|name| specs.contains_key(*name));
        let (scales, gran_n) = (if four { 4 } else { 1 }, x.gran[2]);
        let columns = scales * gran_n;
        vec![
            p::split(
                "m",
                x.m,
                4,
                &[("a", 0, 4), ("sfa", 0, 4), ("sfa_mn_major", 1, 4), ("sfa_packed", 1, 4), ("c", 0, 4), ("d", 0, 4)],
            ),
            p::split(
                "n",
                x.n,
                columns,
                &[
                    ("b", 0, columns),
                    ("b_packed", 0, columns),
                    ("sfb", 0, scales),
                    ("sfb_mn_major", 1, scales),
                    ("sfb_packed", 1, scales),
                    ("c", 1, columns),
                    ("d", 1, columns),
                ],
            ),
        ]
    }
    fn tolerance(&self, _: &str, params: &Params) -> Tolerance {
        let f32 = out_dtype(OP, params, DType::Bf16).is_ok_and(|d| d == DType::F32);
        Tolerance::CalcDiff { max: if f32 { 1e-6 } else { 1e-5 } }
    }
    fn cases(&self) -> Vec<Case> {
        let text = |s: &str| ParamValue::Text(s.into());
        let block = |id: &str, [m, n, k]: [usize; 3], columns: bool| {
            let (groups, scale) = (k.div_ceil(128), || Fill::Uniform(0.5, 2.0));
            let sfa = match columns {
                true => p::filled("sfa_mn_major", DType::F32, &[groups, m.next_multiple_of(4)], scale()),
                false => p::filled("sfa", DType::F32, &[m, groups], scale()),
            };
            let inputs = vec![
                p::filled("a", DType::E4m3, &[m, k], Fill::Normal(8.0)),
                sfa,
                p::filled("b", DType::E4m3, &[n, k], Fill::Normal(8.0)),
                p::filled("sfb", DType::F32, &[n.div_ceil(128), groups], scale()),
            ];
            p::case(id, inputs, &[])
        };
        // Words of exponents between 2^-7 and 2^5, every byte another one.
        let words = |name: &str, groups: usize, rows: usize| {
            let shape = [groups.div_ceil(4), rows.next_multiple_of(4)];
            let word = |i: usize| (0..4).map(|b| (120 + (i * 5 + b * 3) % 13) << (8 * b)).sum::<usize>() as f64;
            p::filled(name, DType::I32, &shape, Fill::Values((0..shape[0] * shape[1]).map(word).collect()))
        };
        let packed = |id: &str, [m, n, k]: [usize; 3], gran: usize, fp4: bool, out: &str| {
            let gran_b = if fp4 { 32 } else { gran };
            let dtype = if out == "f32" { DType::F32 } else { DType::Bf16 };
            let b = match fp4 {
                true => p::filled("b_packed", DType::U8, &[n, k / 2], Fill::Bits),
                false => p::filled("b", DType::E4m3, &[n, k], Fill::Normal(8.0)),
            };
            let inputs = vec![
                p::filled("a", DType::E4m3, &[m, k], Fill::Normal(8.0)),
                words("sfa_packed", k.div_ceil(gran), m),
                b,
                words("sfb_packed", k.div_ceil(gran_b), n),
                p::filled("c", dtype, &[m, n], Fill::Normal(100.0)),
            ];
            let grans = [("gran_k_a", ParamValue::Int(gran as i64)), ("gran_k_b", ParamValue::Int(gran_b as i64))];
            let kind = [("kind", text(if fp4 { "fp4" } else { "1d1d" })), ("out_dtype", text(out))];
            p::case(id, inputs, &[grans, kind].concat())
        };
        vec![
            block("no_rows", [0, 64, 128], false),
            block("no_k", [5, 24, 0], false),
            block("m70_n136_k272", [70, 136, 272], false),
            block("m5_n13_k77_columns", [5, 13, 77], true),
            packed("m9_n40_k200_packed", [9, 40, 200], 128, false, "f32"),
            packed("m10_n24_k96_g32", [10, 24, 96], 32, false, "bf16"),
            packed("m7_n20_k160_fp4", [7, 20, 160], 128, true, "bf16"),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["m", "n", "k"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let sizes = [(2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048)];
        let shape = |m: usize, (n, k): (usize, usize)| {
            [("m", m), ("n", n), ("k", k)].map(|(name, x)| (name.to_string(), x)).to_vec()
        };
        [64, 4096].into_iter().flat_map(|m| sizes.map(|nk| shape(m, nk))).collect()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [m, n, k] = p::bench_sizes(OP, shape, ["m", "n", "k"])?;
        let groups = k.div_ceil(128);
        let inputs = vec![
            p::filled("a", DType::E4m3, &[m, k], Fill::Normal(100.0)),
            p::filled("sfa_mn_major", DType::F32, &[groups, m.next_multiple_of(4)], Fill::Uniform(0.005, 0.015)),
            p::filled("b", DType::E4m3, &[n, k], Fill::Normal(100.0)),
            p::filled("sfb", DType::F32, &[n.div_ceil(128), groups], Fill::Uniform(0.005, 0.015)),
        ];
        Ok(p::case(format!("m{m}_n{n}_k{k}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = product_of(specs, params) else { return Cost::default() };
        let d = p::spec("d", x.out, &[x.m, x.n]);
        // Where scales come in several forms, one is read.
        let unread = |s: &&TensorSpec| {
            let base = s.name.strip_suffix("_mn_major").unwrap_or(&s.name);
            let packed = specs.contains_key(&format!("{base}_packed"));
            let columns = base == s.name && specs.contains_key(&format!("{base}_mn_major"));
            !packed && !columns && (s.name != "c" || x.accumulate)
        };
        let read: Vec<_> = specs.values().filter(|s| s.name != "d").filter(unread).chain([&d]).collect();
        Cost { flops: 2.0 * p::product(&[x.m, x.n, x.k]), bytes: p::bytes(&read) }
    }
}
