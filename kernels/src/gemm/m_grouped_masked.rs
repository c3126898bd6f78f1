//! fp8 product of the first rows of each group with the group's weights: `d[g, ..masked_m[g]] = a[g] · b[g]ᵀ`.
//!
//! *Tensors*: `a` `[g, room, k]` e4m3 with scales `sfa` `[g, room, ⌈k/128⌉]` f32, or their columns `sfa_mn_major`
//! `[g, ⌈k/128⌉, al(room,4)]`; `b` `[g, n, k]` e4m3 with `sfb` `[g, ⌈n/128⌉, ⌈k/128⌉]` f32, or `[g, n, ⌈k/128⌉]` with kind
//! `1d1d`; `masked_m` `[g]` i32, the rows of each group that count; `d` `[g, room, n]` bf16, of which no row past `room` is
//! touched. Rows of `d` past a group's count hold anything; those of `a` may hold anything.
//! *Cost*: `2nk` operations a row that counts; the weights of every group that has rows. Memory bound for few rows a group.
//! *Numerics*: as `gemm_fp8`. A count past the room is the room, one below 0 is 0.
//! *Schedule*: a tile of the output a block; tiles without rows do nothing.
//! *Source*: mixture-of-experts layers, DeepSeek-V3 technical report, 2.1 and 3.3.

use super::grouped::{Weights, product, row_scale_arg, row_scales, scaled_rows, scaled_weights, weights};
use super::scales::{Scaled, Scales, promoted_step};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel};
use kiln_codegen::schedule::{Options, Reason, Schedule, attach, automatic};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tile of a block, and the scale groups of the problem.
#[derive(KernelConfig, Clone, Debug)]
pub struct MaskedConfig {
    /// Rows of a tile.
    #[tune(64, 128, 192, 256)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(64, 96, 112, 128, 192)]
    pub bn: usize,
    /// Stages of the copies.
    #[tune(3, 4, 6, 8)]
    pub stages: usize,
    /// Rows of tiles in a panel.
    #[tune(8, 1)]
    pub panel: usize,
    /// Blocks of a cluster, where the target has clusters: neighbours have the same rows and bring them for each other.
    #[tune(1, 2)]
    pub cluster: usize,
    /// Steps of K printed in a row.
    #[tune(8, 4)]
    pub unroll: usize,
    /// Rows of `b` that share a scale.
    #[default(128)]
    pub gran_n: usize,
}

/// Multiplies.
#[kernel(pdl, deterministic)]
pub fn gemm_m_grouped_masked(
    cfg: &MaskedConfig,
    a: In![E4m3; groups, room, k; strides(_, _, 1)],
    sa: In![F32; groups, room, ka; strides(_, _, _)],
    b: In![E4m3; groups, n, k; strides(_, _, 1)],
    sb: In![F32; groups, nb, ka; strides(_, _, _)],
    count: In![I32; groups],
    d: InOut![Bf16; groups, room, n; strides(_, _, 1)],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, 128);
    let tiles = Groups::masked(count, room);

    #[label(tiles)]
    for (group, rows, ni) in tile_loop_grouped(tiles, bm, n.div_ceil(bn), Raster::panels(cfg.panel)) {
        let first = rows.start();
        let row_scales = host!(Scales { plain: Some(sa.pick(group)), packed: None, rows: 1, depth: 128 });
        let columns = host!(Scales { plain: Some(sb.pick(group)), packed: None, rows: cfg.gran_n, depth: 128 });
        let (left, weights, out) = (a.pick(group), b.pick(group), d.pick(group));
        let a_s = shared::<E4m3, 2>([bm, bk]);
        let b_s = shared::<E4m3, 2>([bn, bk]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);

        #[label(k_loop)]
        for ki in pipeline(0..k.div_ceil(bk), cfg.stages) {
            #[label(load_a)]
            copy(left.at((first, ki * bk)), a_s);
            #[label(load_b)]
            copy(weights.at((ni * bn, ki * bk)), b_s);
            #[label(mma)]
            promoted_step(
                Scaled { tile: a_s, scales: row_scales, row: first },
                Scaled { tile: b_s, scales: columns, row: ni * bn },
                ki * bk,
                acc,
            );
        }

        #[label(store)]
        for (i, j) in parallel([bm, bn]) {
            out[(first + i, ni * bn + j)] = acc[(i, j)].to::<Bf16>();
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmMGroupedMasked;

const OP: &str = "gemm_m_grouped_masked";

/// Warp groups that multiply and one thread that copies, on targets that have both.
fn schedule(k: &Kernel, config: &Config) -> Result<Schedule, Reason> {
    let c = MaskedConfig::from_config(config).map_err(|e| e.to_string())?;
    let caps = Target::Sm90a.caps().ok_or("no limits are known")?;
    automatic(k, &caps, &Options { stages: c.stages, cluster: c.cluster, unroll: c.unroll, ..Options::default() })
}

fn kernel_for() -> Arc<dyn KernelDef> {
    attach(gemm_m_grouped_masked::kernel(), Target::Sm90a, schedule)
}

/// What a problem asks for.
struct Masked {
    room: usize,
    weights: Weights,
}

fn masked_of(specs: &p::Specs, params: &Params) -> Result<Masked, OpError> {
    let a = p::input(OP, specs, "a", &[DType::E4m3], 3)?;
    row_scales(OP, specs, &a.shape)?;
    let weights = weights(OP, specs, params, a.shape[2])?;
    p::shaped(OP, a, &[weights.groups, a.shape[1], weights.k], "groups as `b` has them")?;
    p::shaped(OP, p::input(OP, specs, "masked_m", &[DType::I32], 1)?, &[weights.groups], "a count a group")?;
    Ok(Masked { room: a.shape[1], weights })
}

impl OpSpec for GemmMGroupedMasked {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("gemm_fp8_block_masked"),
            family: "gemm",
            formula: "d[g, ..masked_m[g]] = a[g] · b[g]ᵀ, scales as gemm_fp8",
            source: "DeepSeek-V3 technical report, 2.1 and 3.3",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kernel_for()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = masked_of(specs, params)?;
        Ok(vec![p::spec("d", DType::Bf16, &[x.weights.groups, x.room, x.weights.n])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = masked_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for();
        let w = x.weights;
        // The caller's guess of the rows a group has tells which tile pays; it does not change results.
        let expected = p::count(OP, &problem.params, "expected_m", Some(x.room.max(1)))?;
        let args = vec![
            p::arg(OP, problem, "a")?,
            row_scale_arg(OP, problem, x.room)?,
            p::arg(OP, problem, "b")?,
            p::arg(OP, problem, "sfb")?,
            p::arg(OP, problem, "masked_m")?,
            p::arg(OP, problem, "d")?,
        ];
        let mut dims = p::dims(OP, &kernel, &args)?;
        dims.insert("room".into(), expected.min(x.room));
        let mut config = configs.choose(kernel.as_ref(), &dims);
        p::set(&mut config, "gran_n", ConfigValue::Int(w.gran_n));
        if w.gran_n == 1 {
            // A thread holds a scale for every column it sees, of every step that is printed in a row.
            p::at_most(&mut config, "unroll", 4);
        }
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = masked_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (room, w) = (x.room, x.weights);
        let a = p::numbers(OP, problem, "a")?;
        let columns = problem.tensors.contains_key("sfa_mn_major");
        let scales = p::numbers(OP, problem, if columns { "sfa_mn_major" } else { "sfa" })?;
        let (b, sfb) = (p::numbers(OP, problem, "b")?, p::numbers(OP, problem, "sfb")?);
        let wide = columns.then(|| room.next_multiple_of(4));
        let per_group = w.k.div_ceil(128) * wide.unwrap_or(room);
        // What is not specified is no number.
        let mut d = vec![f64::NAN; w.groups * room * w.n];
        for (g, count) in p::numbers(OP, problem, "masked_m")?.into_iter().enumerate() {
            let count = (count.max(0.0) as usize).min(room);
            if count == 0 {
                continue;
            }
            let rows = a[g * room * w.k..][..count * w.k].to_vec();
            let rows = scaled_rows(rows, &scales[g * per_group..], w.k, wide);
            let part = product(&rows, &scaled_weights(&b, &sfb, g, &w), &w);
            d[g * room * w.n..][..part.len()].copy_from_slice(&part);
        }
        Ok([("d".into(), f32_tensor(&[w.groups, room, w.n], &d))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = masked_of(specs, params) else { return vec![] };
        let (w, columns) = (x.weights, x.weights.gran_n);
        let names = ["a", "sfa", "sfa_mn_major", "b", "sfb", "masked_m", "d"];
        vec![
            p::split("groups", w.groups, 1, &names.map(|n| (n, 0, 1))),
            p::split("n", w.n, columns, &[("b", 1, columns), ("sfb", 1, 1), ("d", 2, columns)]),
        ]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::CalcDiffRows { max: 1e-5, rows: "row < masked_m[group]" }
    }
    fn cases(&self) -> Vec<Case> {
        let case = |id: &str, counts: &[i64], room: usize, [n, k]: [usize; 2], kind: &str| {
            let (groups, blocks) = (counts.len(), k.div_ceil(128));
            let wide = if kind == "1d2d" { n.div_ceil(128) } else { n };
            let inputs = vec![
                p::filled("a", DType::E4m3, &[groups, room, k], Fill::Normal(8.0)),
                p::filled("sfa", DType::F32, &[groups, room, blocks], Fill::Uniform(0.5, 2.0)),
                p::filled("b", DType::E4m3, &[groups, n, k], Fill::Normal(8.0)),
                p::filled("sfb", DType::F32, &[groups, wide, blocks], Fill::Uniform(0.5, 2.0)),
                p::filled("masked_m", DType::I32, &[groups], Fill::Values(counts.iter().map(|&c| c as f64).collect())),
            ];
            p::case(id, inputs, &[("kind", ParamValue::Text(kind.into()))])
        };
        vec![
            case("no_room", &[0, 0], 0, [24, 128], "1d2d"),
            case("nothing_counts", &[0, -3], 9, [24, 128], "1d2d"),
            case("room70_n136_k272", &[70, 0, 65, 1], 70, [136, 272], "1d2d"),
            case("count_past_the_room_odd_n13_k77", &[9, 4], 5, [13, 77], "1d2d"),
            case("room40_n24_k128_1d1d", &[33, 40], 40, [24, 128], "1d1d"),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["groups", "max_m", "m_per_group", "n", "k"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let keys = ["groups", "max_m", "m_per_group", "n", "k"];
        let shape = |sizes: [usize; 5]| keys.into_iter().map(String::from).zip(sizes).collect();
        let groups = [(1, 1024), (2, 512), (4, 256)];
        let few = groups.into_iter().flat_map(|(g, m)| [[g, 4096, m, 4096, 7168], [g, 4096, m, 7168, 2048]]);
        let many = [192, 20].into_iter().flat_map(|m| [[32, 1024, m, 6144, 7168], [32, 1024, m, 7168, 3072]]);
        few.chain(many).map(shape).collect()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [groups, room, rows, n, k] = p::bench_sizes(OP, shape, ["groups", "max_m", "m_per_group", "n", "k"])?;
        if rows > room {
            return Err(p::refuse(OP, format!("m_per_group is {rows}; expected at most max_m, {room}")));
        }
        let blocks = k.div_ceil(128);
        let wide = room.next_multiple_of(4);
        let inputs = vec![
            p::filled("a", DType::E4m3, &[groups, room, k], Fill::Normal(100.0)),
            p::filled("sfa_mn_major", DType::F32, &[groups, blocks, wide], Fill::Uniform(0.005, 0.015)),
            p::filled("b", DType::E4m3, &[groups, n, k], Fill::Normal(100.0)),
            p::filled("sfb", DType::F32, &[groups, n.div_ceil(128), blocks], Fill::Uniform(0.005, 0.015)),
            p::filled("masked_m", DType::I32, &[groups], Fill::Values(vec![rows as f64; groups])),
        ];
        let params = [("expected_m", ParamValue::Int(rows.max(1) as i64))];
        Ok(p::case(format!("g{groups}_max{room}_m{rows}_n{n}_k{k}"), inputs, &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = masked_of(specs, params) else { return Cost::default() };
        let w = x.weights;
        // Counts are data; the guess stands for them.
        let rows = p::count(OP, params, "expected_m", Some(x.room.max(1))).unwrap_or(x.room).min(x.room);
        let some = |name: &str, dtype, last: usize| p::spec(name, dtype, &[w.groups, rows, last]);
        let moved =
            [some("a", DType::E4m3, w.k), some("sfa", DType::F32, w.k.div_ceil(128)), some("d", DType::Bf16, w.n)];
        let whole = ["b", "sfb", "masked_m"].into_iter().filter_map(|name| specs.get(name));
        let tensors: Vec<&TensorSpec> = whole.chain(&moved).collect();
        Cost { flops: 2.0 * p::product(&[w.groups, rows, w.n, w.k]), bytes: p::bytes(&tensors) }
    }
}
