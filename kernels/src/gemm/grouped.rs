//! What products with a group of weights for each run of rows share: the table of groups that tiles read, scales as
//! operators name them, and the reference. Not an operator; `m_grouped_contiguous` and `m_grouped_masked` are.
//!
//! The table exists because the group of a tile is known on the device only, and both roles of a scheduled product need
//! it: one element a tile, written by a launch of its own in front of the product.

use super::fp8::reference;
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{OpError, Params, Problem};

/// Rows of a tile.
#[derive(KernelConfig, Clone, Debug)]
pub struct TilesConfig {
    /// Rows of a tile of the product that follows.
    #[default(128)]
    pub rows: usize,
    /// Groups start at multiples of this many rows.
    #[default(128)]
    pub align: usize,
}

/// The group of each tile of rows, or −1 where no row belongs to one: from the group of each row, `indices`, or from the
/// end of each group's rows, `ends`. A tile with rows of two groups, or a group that does not exist, ends the run.
#[kernel(require(cfg.align % cfg.rows == 0), deterministic)]
pub fn group_of_tiles(
    cfg: &TilesConfig,
    indices: Option<In![I32; m]>,
    ends: Option<In![I32; g]>,
    of_tile: Out![I32; tiles],
    groups: Scalar![I32],
) {
    let (rows, align) = (cfg.rows, host!(cfg.align as i32));
    let tile = grid(tiles);
    warps(1);
    let start = tile * rows;
    let mut of = -1i32;
    if let Some(indices) = indices {
        let first = find_first([rows], |i: Ix| indices.get_or(start + i, -1) >= 0);
        let group = indices.get_or(start + first, -1);
        of = select(first.value() < host!(rows as i32), group, -1);
        for i in parallel([rows]) {
            let own = indices.get_or(start + i, -1);
            check!(own < 0 || own == group, "rows of a tile belong to several groups");
        }
        check!(of < groups, "a row belongs to a group that does not exist");
    }
    if let Some(ends) = ends {
        // Groups that end before the tile, each rounded up to where the next may start.
        let mut before = 0i32;
        for e in 0..g {
            let end = (ends[e] + host!(align - 1)) / align * align;
            before += select(end <= start.value(), 1, 0);
        }
        of = select(before < groups, before, -1);
    }
    for _i in parallel([1]) {
        of_tile[tile] = of;
    }
}

/// Weights of a problem: groups, columns, K and the rows that share a scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub groups: usize,
    pub n: usize,
    pub k: usize,
    pub gran_n: usize,
}

/// Reads `b`, `sfb` and the kind of scales.
pub(crate) fn weights(op: &str, specs: &p::Specs, params: &Params, k: usize) -> Result<Weights, OpError> {
    let b = p::input(op, specs, "b", &[DType::E4m3], 3)?;
    let (groups, n) = (b.shape[0], b.shape[1]);
    p::shaped(op, b, &[groups, n, k], "groups by columns by the K of `a`")?;
    let gran_n = if p::word(op, params, "kind", &["1d2d", "1d1d"])? == "1d2d" { 128 } else { 1 };
    p::word(op, params, "out_dtype", &["bf16"])?;
    let sfb = p::input(op, specs, "sfb", &[DType::F32], 3)?;
    p::shaped(op, sfb, &[groups, n.div_ceil(gran_n), k.div_ceil(128)], "a scale for each block of rows and 128 of K")?;
    Ok(Weights { groups, n, k, gran_n })
}

/// Checks that the scales of `a` are there: `sfa` `[.., rows, ⌈k/128⌉]` or `sfa_mn_major` `[.., ⌈k/128⌉, al(rows, 4)]`.
pub(crate) fn row_scales(op: &str, specs: &p::Specs, a: &[usize]) -> Result<(), OpError> {
    let [outer @ .., rows, k] = a else { return Err(p::refuse(op, "`a` has fewer than two axes")) };
    let blocks = k.div_ceil(128);
    let shape = |last: [usize; 2]| [outer, &last].concat();
    let mut found = false;
    for (name, shape) in [("sfa", shape([*rows, blocks])), ("sfa_mn_major", shape([blocks, rows.next_multiple_of(4)]))]
    {
        if let Some(s) = p::optional_input(op, specs, name, &[DType::F32], a.len())? {
            p::shaped(op, s, &shape, "a scale for each row and 128 of K")?;
            found = true;
        }
    }
    if found { Ok(()) } else { Err(p::refuse(op, "needs the input `sfa` or `sfa_mn_major`")) }
}

/// The scales of `a` as `[.., rows, ⌈k/128⌉]`, whichever form they have; columns are preferred.
pub(crate) fn row_scale_arg(op: &str, problem: &Problem, rows: usize) -> Result<Arg, OpError> {
    if !problem.tensors.contains_key("sfa_mn_major") {
        return p::arg(op, problem, "sfa");
    }
    let v = p::view(op, problem, "sfa_mn_major")?;
    let (mut shape, mut strides, axes) = (v.shape.clone(), v.strides.clone(), v.shape.len());
    shape.swap(axes - 2, axes - 1);
    strides.swap(axes - 2, axes - 1);
    shape[axes - 2] = rows;
    Ok(Arg::Tensor(TensorView { shape, strides, ..v }))
}

/// `numbers` `[rows, k]` of `a` with their scales, `[rows, ⌈k/128⌉]` or, `wide` columns apart, `[⌈k/128⌉, wide]`.
pub(crate) fn scaled_rows(mut numbers: Vec<f64>, scales: &[f64], k: usize, wide: Option<usize>) -> Vec<f64> {
    let blocks = k.div_ceil(128);
    for (i, x) in numbers.iter_mut().enumerate() {
        let (row, block) = (i / k, i % k / 128);
        *x *= match wide {
            Some(wide) => scales[block * wide + row],
            None => scales[row * blocks + block],
        };
    }
    numbers
}

/// Weights of one group with their scales, `[n, k]`.
pub(crate) fn scaled_weights(b: &[f64], sfb: &[f64], group: usize, w: &Weights) -> Vec<f64> {
    let (blocks, size) = (w.k.div_ceil(128), w.n * w.k);
    let scales = &sfb[group * w.n.div_ceil(w.gran_n) * blocks..];
    let own = b[group * size..][..size].iter().enumerate();
    own.map(|(i, x)| x * scales[i / w.k / w.gran_n * blocks + i % w.k / 128]).collect()
}

/// Some rows `[rows, k]` times the weights of one group.
pub(crate) fn product(rows: &[f64], weights: &[f64], w: &Weights) -> Vec<f64> {
    reference(rows, weights, [rows.len().checked_div(w.k).unwrap_or(0), w.n, w.k])
}
