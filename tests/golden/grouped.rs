//! Random grouped products: empty groups, groups of one row, odd columns, tails of K, rows of padding.

use super::{Dice, Random};
use kiln_codegen::ir::DType;
use kiln_codegen::spec::ParamValue;

/// Makes the problem of an operator, if this file knows it.
pub(super) fn problem(op: &str, d: &mut Dice, r: &mut Random) -> bool {
    match op {
        "gemm_m_grouped_contiguous" => contiguous(d, r),
        "gemm_m_grouped_masked" => masked(d, r),
        "gemm_k_grouped" => k_grouped(d, r),
        _ => return false,
    }
    true
}

fn fill(d: &mut Dice, r: &mut Random, name: &str, dtype: DType, shape: &[usize], range: [f64; 2]) {
    let x = d.floats(shape.iter().product(), range[0], range[1]);
    r.tensor(name, dtype, shape, &x);
}

/// Columns and K.
fn sizes(d: &mut Dice) -> [usize; 2] {
    [d.pick(&[1, 8, 13, 72, 128, 136, 200, 256]), d.pick(&[16, 77, 128, 200, 272, 384])]
}

/// Weights of all groups with their scales.
fn weights(d: &mut Dice, r: &mut Random, groups: usize, [n, k]: [usize; 2]) {
    let kind = d.pick(&["1d2d", "1d1d"]);
    let wide = if kind == "1d2d" { n.div_ceil(128) } else { n };
    fill(d, r, "b", DType::E4m3, &[groups, n, k], [-40.0, 40.0]);
    fill(d, r, "sfb", DType::F32, &[groups, wide, k.div_ceil(128)], [0.25, 2.0]);
    r.set("kind", ParamValue::Text(kind.into()));
}

/// Rows of a group.
fn rows(d: &mut Dice, most: usize) -> usize {
    match d.below(100) {
        0..25 => 0,
        25..40 => 1,
        40..50 => most,
        _ => d.within(1, most),
    }
}

fn contiguous(d: &mut Dice, r: &mut Random) {
    let (groups, align) = (d.within(1, 6), d.pick(&[16, 32, 64, 128]));
    let [n, k] = sizes(d);
    let (mut of, mut ends) = (vec![], vec![]);
    for g in 0..groups {
        of.extend(std::iter::repeat_n(g as f64, rows(d, 150)));
        ends.push(of.len() as f64);
        of.resize(of.len().next_multiple_of(align), -1.0);
    }
    let m = of.len();
    fill(d, r, "a", DType::E4m3, &[m, k], [-40.0, 40.0]);
    fill(d, r, "sfa", DType::F32, &[m, k.div_ceil(128)], [0.25, 2.0]);
    weights(d, r, groups, [n, k]);
    match d.chance(30) {
        true => r.tensor("psum_layout", DType::I32, &[groups], &ends),
        false => r.tensor("m_indices", DType::I32, &[m], &of),
    }
    r.int("m_alignment", align);
}

fn masked(d: &mut Dice, r: &mut Random) {
    let (groups, room) = (d.within(1, 6), d.pick(&[8, 40, 64, 130, 200]));
    let [n, k] = sizes(d);
    fill(d, r, "a", DType::E4m3, &[groups, room, k], [-40.0, 40.0]);
    fill(d, r, "sfa", DType::F32, &[groups, room, k.div_ceil(128)], [0.25, 2.0]);
    weights(d, r, groups, [n, k]);
    let counts: Vec<f64> = (0..groups).map(|_| rows(d, room) as f64).collect();
    r.tensor("masked_m", DType::I32, &[groups], &counts);
}

fn k_grouped(d: &mut Dice, r: &mut Random) {
    let (groups, m, n) = (d.within(1, 5), d.pick(&[1, 24, 64, 130]), d.pick(&[8, 40, 128, 136]));
    let ks: Vec<usize> = (0..groups).map(|_| 128 * d.pick(&[0, 0, 1, 2, 3])).collect();
    let k = ks.iter().sum::<usize>();
    for (name, scales, columns) in [("a", "sfa", m), ("b", "sfb", n)] {
        fill(d, r, name, DType::E4m3, &[k, columns], [-40.0, 40.0]);
        fill(d, r, scales, DType::F32, &[k / 128, columns], [0.25, 2.0]);
    }
    let list: Vec<f64> = ks.iter().map(|&k| k as f64).collect();
    r.tensor("ks", DType::I32, &[groups], &list);
    if d.chance(50) {
        fill(d, r, "c", DType::F32, &[groups, m, n], [-100.0, 100.0]);
    }
    r.set("ks", ParamValue::List(ks.iter().map(|&k| ParamValue::Int(k as i64)).collect()));
}
