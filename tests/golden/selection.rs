//! Random problems of selection in rows: ties, NaN, orders, and rows made so that a guess from a sample of them is wrong.
//!
//! What they know of the sample is where a row of more than 8192 columns is looked at; with other samples they are rows as
//! good as any.

use super::{Dice, Random};
use kiln_codegen::ir::DType;
use kiln_codegen::spec::ParamValue;

/// Rows of several kinds, each with an end and an offset of its own or none.
pub(super) fn topk(d: &mut Dice, r: &mut Random) {
    let dtype = d.pick(&[DType::Bf16, DType::F32]);
    let rows = d.within(1, 5);
    let long = d.chance(50);
    let n = match (long, d.below(4)) {
        (false, _) => d.within(1, 700),
        (true, 0) => 8193,
        (true, 1) => d.within(8194, 12_000),
        (true, 2) => d.within(16_000, 20_000),
        // Few rows that long are cut.
        (true, _) => 33_000,
    };
    let most = if long { 900 } else { n + 20 };
    let k = match d.below(3) {
        0 => 1,
        1 => d.within(1, 40),
        _ => d.within(1, most),
    };
    let x: Vec<f64> = (0..rows).flat_map(|_| row(d, n, k, dtype)).collect();
    r.gapped(d, "x", dtype, &[rows, n], &x, 1);
    r.int("k", k);
    if d.chance(50) {
        let ends = [-3.0, 0.0, 1.0, (n / 2) as f64, n as f64, 1e9];
        let ends: Vec<f64> =
            (0..rows).map(|_| if d.chance(50) { d.below(n + 1) as f64 } else { d.pick(&ends) }).collect();
        r.tensor("end", DType::I32, &[rows], &ends);
    }
    if d.chance(30) {
        let offsets: Vec<f64> = (0..rows).map(|_| d.pick(&[0.0, 7.0, -1.0, 1e6])).collect();
        r.tensor("output_idx_offset", DType::I32, &[rows], &offsets);
    }
    if d.chance(50) {
        r.set("return_value", ParamValue::Bool(true));
    }
    // Its cost grows with the square of `k`.
    if k < 200 && d.chance(40) {
        r.set("sorted", ParamValue::Bool(true));
    }
    if d.chance(50) {
        r.set("indices_type", ParamValue::Text("i32".into()));
    }
    if d.chance(20) {
        r.set("idx_oob_fill_value", ParamValue::Int(-1));
        r.set("value_oob_fill_value", ParamValue::Float(-5.0));
    }
}

fn row(d: &mut Dice, n: usize, k: usize, dtype: DType) -> Vec<f64> {
    let odd = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.0, -0.0, 0.5, -2.0, 1e-40];
    let side = 256 / dtype.bits();
    let stride = n / (n / 32).next_power_of_two().clamp(2048, 16384) * side;
    let sampled = |i: usize| stride > 0 && i % stride < side;
    let up = |i: usize| i as f64 - n as f64 / 2.0;
    match d.below(13) {
        0 => vec![d.pick(&[1.5, -1.5, 0.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY]); n],
        1 => (0..n).map(up).collect(),
        2 => (0..n).rev().map(up).collect(),
        3 => (0..n).map(|_| d.below(3) as f64).collect(),
        4 => (0..n).map(|_| d.pick(&odd)).collect(),
        // The chosen ones last.
        5 => (0..n).map(|i| if i + k >= n { 10.0 } else { 0.0 } + d.uniform(0.0, 1.0)).collect(),
        // The sample sees only small ones, or only large ones.
        6 => (0..n).map(|i| if sampled(i) { -1.0 } else { 1.0 } + d.uniform(0.0, 0.5)).collect(),
        7 => (0..n).map(|i| if sampled(i) { 1.0 } else { -1.0 } + d.uniform(0.0, 0.5)).collect(),
        // One large one, all others equal.
        8 => {
            let at = d.below(n);
            (0..n).map(|i| if i == at { 3e38 } else { -1e-3 }).collect()
        }
        9 => (0..n).map(|_| if d.chance(1) { d.uniform(0.0, 1.0) } else { f64::NAN }).collect(),
        10 => (0..n).map(|_| d.uniform(1.0, 1.0 + 1e-6)).collect(),
        _ => (0..n).map(|_| (0..6).map(|_| d.uniform(-1.0, 1.0)).sum()).collect(),
    }
}
