//! fp8 product of rows with the weights of their group, rows of all groups in one tensor: `d[m] = a[m] · b[g(m)]ᵀ`.
//!
//! *Tensors*: `a` `[m, k]` e4m3 with scales `sfa` `[m, ⌈k/128⌉]` f32, or their columns `sfa_mn_major` `[⌈k/128⌉, al(m,4)]`;
//! `b` `[g, n, k]` e4m3 with `sfb` `[g, ⌈n/128⌉, ⌈k/128⌉]` f32, or `[g, n, ⌈k/128⌉]` with kind `1d1d`; `d` `[m, n]` bf16.
//! Groups: `m_indices` `[m]` i32, the group of each row, negative for padding; or, with `use_psum_layout` or without
//! `m_indices`, `psum_layout` `[g]` i32, where each group's rows end. A group's rows start at a multiple of
//! `m_alignment`, 128 if it is not given.
//! *Cost*: `2nk` operations a real row; the weights of every group that has rows. Compute bound for many rows a group.
//! *Numerics*: as `gemm_fp8`. Rows of padding are 0, whatever `a` holds there. Rows of one tile in several groups end
//! the run, as does a group that does not exist.
//! *Schedule*: a small launch finds the group of each tile; then a tile of the output a block, tiles in panels.
//! *Source*: mixture-of-experts layers, DeepSeek-V3 technical report, 2.1 and 3.3.

use super::grouped::{
    Weights, group_of_tiles, product, row_scale_arg, row_scales, scaled_rows, scaled_weights, weights,
};
use super::scales::{Scaled, Scales, promoted_step};
use crate::numeric::round::f32_tensor;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType, Kernel, Literal};
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
pub struct ContiguousConfig {
    /// Rows of a tile, all of one group; at most the alignment of groups.
    #[tune(128, 64)]
    pub bm: usize,
    /// Columns of a tile.
    #[tune(128, 64, 96, 112, 192)]
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

/// Multiplies. `of_tile` names the group of each tile of rows; rows that `indices` or `ends` do not give to a group are 0.
#[kernel(require(tiles >= m.div_ceil(cfg.bm)), pdl, deterministic)]
pub fn gemm_m_grouped_contiguous(
    cfg: &ContiguousConfig,
    a: In![E4m3; m, k; strides(lda, 1)],
    sa: In![F32; m, ka; strides(_, _)],
    b: In![E4m3; groups, n, k; strides(_, _, 1)],
    sb: In![F32; groups, nb, ka; strides(_, _, _)],
    of_tile: In![I32; tiles],
    indices: Option<In![I32; m]>,
    ends: Option<In![I32; groups]>,
    d: Out![Bf16; m, n; strides(ldd, 1)],
) {
    let (bm, bn, bk) = (cfg.bm, cfg.bn, 128);
    // Accumulators and the sums of a step, 64 registers each at most, where no warp groups take the tile over.
    warps(host!(if bm * bn > 4096 { 8 } else { 4 }));

    #[label(tiles)]
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(bn)), Raster::panels(cfg.panel)) {
        let of = of_tile[mi];
        let group = of.clamp_index(0, groups.saturating_sub(1));
        // A tile of padding takes no step, so that its rows are 0.
        let steps = k.div_ceil(bk) * (of + 1).clamp_index(0, 1);
        let rows = host!(Scales { plain: Some(sa), packed: None, rows: 1, depth: 128 });
        let columns = host!(Scales { plain: Some(sb.pick(group)), packed: None, rows: cfg.gran_n, depth: 128 });
        let weights = b.pick(group);
        let a_s = shared::<E4m3, 2>([bm, bk]);
        let b_s = shared::<E4m3, 2>([bn, bk]);
        let acc = frag::<F32, 2>([bm, bn]);
        zero(acc);

        #[label(k_loop)]
        for ki in pipeline(0..steps, cfg.stages) {
            #[label(load_a)]
            copy(a.at((mi * bm, ki * bk)), a_s);
            #[label(load_b)]
            copy(weights.at((ni * bn, ki * bk)), b_s);
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
            let real = if let Some(indices) = indices {
                indices[row] >= 0
            } else if let Some(ends) = ends {
                row.value() < ends[group]
            } else {
                lit(true)
            };
            d[(row, column)] = select(real, acc[(i, j)], 0.0).to::<Bf16>();
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct GemmMGroupedContiguous;

/// Which argument of the kernel names the group of each tile.
const OF_TILE: usize = 4;
const OP: &str = "gemm_m_grouped_contiguous";

/// Warp groups that multiply and one thread that copies, on targets that have both.
fn schedule(k: &Kernel, config: &Config) -> Result<Schedule, Reason> {
    let c = ContiguousConfig::from_config(config).map_err(|e| e.to_string())?;
    let caps = Target::Sm90a.caps().ok_or("no limits are known")?;
    automatic(k, &caps, &Options { stages: c.stages, cluster: c.cluster, unroll: c.unroll, ..Options::default() })
}

fn kernel_for() -> Arc<dyn KernelDef> {
    attach(gemm_m_grouped_contiguous::kernel(), Target::Sm90a, schedule)
}

/// What a problem asks for.
struct Rows {
    m: usize,
    weights: Weights,
    align: usize,
    /// Groups are given by where they end.
    ends: bool,
}

fn rows_of(specs: &p::Specs, params: &Params) -> Result<Rows, OpError> {
    let a = p::input(OP, specs, "a", &[DType::E4m3], 2)?;
    let (m, k) = (a.shape[0], a.shape[1]);
    row_scales(OP, specs, &a.shape)?;
    let weights = weights(OP, specs, params, k)?;
    let align = p::count(OP, params, "m_alignment", Some(128))?;
    let ends = p::flag(OP, params, "use_psum_layout", !specs.contains_key("m_indices"))?;
    if ends {
        p::shaped(OP, p::input(OP, specs, "psum_layout", &[DType::I32], 1)?, &[weights.groups], "an end a group")?;
    } else {
        p::shaped(OP, p::input(OP, specs, "m_indices", &[DType::I32], 1)?, &[m], "a group for each row")?;
    }
    Ok(Rows { m, weights, align, ends })
}

/// The most rows of a tile that groups of this alignment allow: a divisor of it in whole pieces of the matrix unit's 16
/// rows where there is one.
fn tile_rows(wish: usize, align: usize) -> usize {
    let fits = |rows: &usize| align.is_multiple_of(*rows);
    (1..=wish.min(align) / 16)
        .rev()
        .map(|x| 16 * x)
        .find(fits)
        .unwrap_or_else(|| (1..=wish.min(align)).rev().find(fits).unwrap_or(1))
}

impl OpSpec for GemmMGroupedContiguous {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("gemm_fp8_block_grouped"),
            family: "gemm",
            formula: "d[m] = a[m] · b[g(m)]ᵀ, scales as gemm_fp8",
            source: "DeepSeek-V3 technical report, 2.1 and 3.3",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![kernel_for(), group_of_tiles::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = rows_of(specs, params)?;
        Ok(vec![p::spec("d", DType::Bf16, &[x.m, x.weights.n])])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let x = rows_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for();
        let w = x.weights;
        let (indices, ends) = match x.ends {
            true => (Arg::Absent, p::arg(OP, problem, "psum_layout")?),
            false => (p::arg(OP, problem, "m_indices")?, Arg::Absent),
        };
        let tiles_of =
            |tiles: usize| Arg::Workspace { index: 0, dtype: DType::I32, shape: vec![tiles], offset_bytes: 0 };
        // As many tiles as there can be: how many there are depends on the config.
        let mut args = vec![
            p::arg(OP, problem, "a")?,
            row_scale_arg(OP, problem, x.m)?,
            p::arg(OP, problem, "b")?,
            p::arg(OP, problem, "sfb")?,
            tiles_of(x.m),
            indices.clone(),
            ends.clone(),
            p::arg(OP, problem, "d")?,
        ];
        let mut config = p::choose_for(OP, configs, &kernel, &args)?;
        let bm = match config.0.get("bm") {
            Some(ConfigValue::Int(bm)) => tile_rows(*bm, x.align),
            _ => tile_rows(128, x.align),
        };
        p::set(&mut config, "bm", ConfigValue::Int(bm));
        p::set(&mut config, "gran_n", ConfigValue::Int(w.gran_n));
        let tiles = x.m.div_ceil(bm);
        args[OF_TILE] = tiles_of(tiles);
        let find = group_of_tiles::kernel();
        let mut find_config = p::choose(configs, &find, &[("tiles", tiles)]);
        p::set(&mut find_config, "rows", ConfigValue::Int(bm));
        p::set(&mut find_config, "align", ConfigValue::Int(x.align));
        let groups = Arg::Scalar(Literal { dtype: DType::I32, bits: w.groups as u64 });
        let find_args = vec![indices, ends, tiles_of(tiles), groups];
        let steps =
            vec![Launch { kernel: find, config: find_config, args: find_args }, Launch { kernel, config, args }];
        Ok(Plan { steps, workspaces: vec![4 * tiles] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let x = rows_of(&p::host_specs(self, problem)?, &problem.params)?;
        let (m, w) = (x.m, x.weights);
        // The group of each row, rows beyond the last group and of padding without one.
        let group_of: Vec<i64> = if x.ends {
            let mut of = vec![-1; m];
            let mut start = 0;
            for (g, end) in p::numbers(OP, problem, "psum_layout")?.into_iter().enumerate() {
                let end = (end as usize).min(m);
                (start..end).for_each(|row| of[row] = g as i64);
                start = end.next_multiple_of(x.align);
            }
            of
        } else {
            p::numbers(OP, problem, "m_indices")?.into_iter().map(|g| g as i64).collect()
        };
        if let Some(g) = group_of.iter().find(|g| **g >= w.groups as i64) {
            return Err(p::refuse(OP, format!("`m_indices` names group {g}; expected groups below {}", w.groups)));
        }
        let a = p::numbers(OP, problem, "a")?;
        let columns = problem.tensors.contains_key("sfa_mn_major");
        let scales = p::numbers(OP, problem, if columns { "sfa_mn_major" } else { "sfa" })?;
        let a = scaled_rows(a, &scales, w.k, columns.then(|| m.next_multiple_of(4)));
        let (b, sfb) = (p::numbers(OP, problem, "b")?, p::numbers(OP, problem, "sfb")?);
        let mut d = vec![0.0; m * w.n];
        for g in 0..w.groups {
            let own: Vec<usize> = (0..m).filter(|&row| group_of[row] == g as i64).collect();
            let rows: Vec<f64> = own.iter().flat_map(|&row| a[row * w.k..][..w.k].iter().copied()).collect();
            let part = if own.is_empty() { vec![] } else { product(&rows, &scaled_weights(&b, &sfb, g, &w), &w) };
            for (&row, values) in own.iter().zip(part.chunks(w.n.max(1))) {
                d[row * w.n..][..w.n].copy_from_slice(values);
            }
        }
        Ok([("d".into(), f32_tensor(&[m, w.n], &d))].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(x) = rows_of(specs, params) else { return vec![] };
        let columns = x.weights.gran_n;
        let by_column = p::split("n", x.weights.n, columns, &[("b", 1, columns), ("sfb", 1, 1), ("d", 1, columns)]);
        if x.ends {
            return vec![by_column];
        }
        let rows = [("a", 0, 4), ("sfa", 0, 4), ("sfa_mn_major", 1, 4), ("m_indices", 0, 4), ("d", 0, 4)];
        vec![p::split("m", x.m, 4, &rows), by_column]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::CalcDiff { max: 1e-5 }
    }
    fn cases(&self) -> Vec<Case> {
        let case = |id: &str, rows: &[usize], align: usize, [n, k]: [usize; 2], kind: &str, ends: bool| {
            let (mut of, mut stops) = (vec![], vec![]);
            for (g, &count) in rows.iter().enumerate() {
                of.extend(std::iter::repeat_n(g as f64, count));
                stops.push(of.len() as f64);
                of.resize(of.len().next_multiple_of(align), -1.0);
            }
            let (m, groups, blocks) = (of.len(), rows.len(), k.div_ceil(128));
            let wide = if kind == "1d2d" { n.div_ceil(128) } else { n };
            let inputs = vec![
                p::filled("a", DType::E4m3, &[m, k], Fill::Normal(8.0)),
                p::filled("sfa", DType::F32, &[m, blocks], Fill::Uniform(0.5, 2.0)),
                p::filled("b", DType::E4m3, &[groups, n, k], Fill::Normal(8.0)),
                p::filled("sfb", DType::F32, &[groups, wide, blocks], Fill::Uniform(0.5, 2.0)),
                match ends {
                    true => p::filled("psum_layout", DType::I32, &[groups], Fill::Values(stops)),
                    false => p::filled("m_indices", DType::I32, &[m], Fill::Values(of)),
                },
            ];
            let params = [("m_alignment", ParamValue::Int(align as i64)), ("kind", ParamValue::Text(kind.into()))];
            p::case(id, inputs, &params)
        };
        vec![
            case("no_rows", &[0, 0], 128, [24, 128], "1d2d", false),
            case("empty_groups_n136_k272", &[0, 130, 0, 5], 128, [136, 272], "1d2d", false),
            case("odd_n13_k77_align16", &[3, 17], 16, [13, 77], "1d2d", false),
            case("align24_1d1d_n40_k128", &[24, 1, 30], 24, [40, 128], "1d1d", false),
            case("ends_n72_k200", &[70, 0, 1], 64, [72, 200], "1d2d", true),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["groups", "m_per_group", "n", "k"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let shape = |(groups, rows), (n, k)| {
            [("groups", groups), ("m_per_group", rows), ("n", n), ("k", k)].map(|(s, x)| (s.to_string(), x)).to_vec()
        };
        let weights = [(4096, 7168), (7168, 2048)];
        [(4, 8192), (8, 4096)].into_iter().flat_map(|g| weights.map(|w| shape(g, w))).collect()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [groups, rows, n, k] = p::bench_sizes(OP, shape, ["groups", "m_per_group", "n", "k"])?;
        let room = rows.next_multiple_of(128);
        let (m, blocks) = (groups * room, k.div_ceil(128));
        let of = (0..m).map(|r| if r % room < rows { (r / room) as f64 } else { -1.0 }).collect();
        let inputs = vec![
            p::filled("a", DType::E4m3, &[m, k], Fill::Normal(100.0)),
            p::filled("sfa_mn_major", DType::F32, &[blocks, m.next_multiple_of(4)], Fill::Uniform(0.005, 0.015)),
            p::filled("b", DType::E4m3, &[groups, n, k], Fill::Normal(100.0)),
            p::filled("sfb", DType::F32, &[groups, n.div_ceil(128), blocks], Fill::Uniform(0.005, 0.015)),
            p::filled("m_indices", DType::I32, &[m], Fill::Values(of)),
        ];
        Ok(p::case(format!("g{groups}_m{rows}_n{n}_k{k}"), inputs, &[]))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(x) = rows_of(specs, params) else { return Cost::default() };
        let d = p::spec("d", DType::Bf16, &[x.m, x.weights.n]);
        let columns = specs.contains_key("sfa_mn_major");
        let read = |s: &&TensorSpec| {
            s.name != "d" && !(columns && s.name == "sfa") && s.name != if x.ends { "m_indices" } else { "psum_layout" }
        };
        let tensors: Vec<_> = specs.values().filter(read).chain([&d]).collect();
        Cost { flops: 2.0 * p::product(&[x.m, x.weights.n, x.weights.k]), bytes: p::bytes(&tensors) }
    }
}
