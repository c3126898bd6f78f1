//! What the kernels of hyper-connections share: the doubly stochastic normalisation of a small matrix, and the gate; each
//! in the kernel language and in plain Rust. Not a kernel.

use dsl::prelude::*;

/// `1/(1 + e^-x)`.
#[kernel_fn]
pub fn gate(x: V<F32>) -> V<F32> {
    recip(1.0 + exp(-x))
}

/// Sum of some values in their order, at least one.
pub fn sum(values: &[V<F32>]) -> V<F32> {
    values[1..].iter().fold(values[0], |a, &b| a + b)
}

/// Divides each row (or column) of an `m` by `m` matrix by its sum and `eps`.
#[kernel_fn]
fn normalise(x: &[Var<V<F32>>], m: usize, by_row: bool, eps: V<F32>) {
    for i in unroll(0..m) {
        let line: Vec<Var<V<F32>>> = host!((0..m).map(|j| if by_row { x[i * m + j] } else { x[j * m + i] }).collect());
        let values: Vec<V<F32>> = host!(line.iter().map(Var::get).collect());
        let by = recip(sum(&values) + eps);
        for (place, &value) in unroll(line.iter().zip(&values)) {
            place.set(value * by);
        }
    }
}

/// Sinkhorn's iteration on the rows of an `m` by `m` matrix: softmax of its rows plus `eps`, then columns and rows are
/// divided by their sums in turn, `repeat` times by columns, which come last. A thread does all of it in registers.
#[kernel_fn]
pub fn sinkhorn(x: &[V<F32>], m: usize, repeat: usize, eps: V<F32>) -> Vec<V<F32>> {
    let mut start = host!(Vec::new());
    for row in unroll(x.chunks(m)) {
        let top = host!(row[1..].iter().fold(row[0], |a, &b| a.max(b)));
        let powers: Vec<V<F32>> = host!(row.iter().map(|&v| exp(v - top)).collect());
        let by = recip(sum(&powers));
        for &power in unroll(powers.iter()) {
            start.push(power * by + eps);
        }
    }
    let v = vars("v", &start);
    normalise(&v, m, false, eps);
    if repeat > 1 {
        for _ in 1..repeat {
            normalise(&v, m, true, eps);
            normalise(&v, m, false, eps);
        }
    }
    host!(v.iter().map(Var::get).collect())
}

/// The same in f64.
pub fn reference_sinkhorn(x: &[f64], m: usize, repeat: usize, eps: f64) -> Vec<f64> {
    let mut y = vec![];
    for row in x.chunks(m) {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = row.iter().map(|v| (v - top).exp()).collect();
        let sum: f64 = powers.iter().sum();
        y.extend(powers.iter().map(|p| p / sum + eps));
    }
    let divide = |y: &mut [f64], by_row: bool| {
        for i in 0..m {
            let at = |j: usize| if by_row { i * m + j } else { j * m + i };
            let sum: f64 = (0..m).map(|j| y[at(j)]).sum::<f64>() + eps;
            (0..m).for_each(|j| y[at(j)] /= sum);
        }
    };
    divide(&mut y, false);
    for _ in 1..repeat {
        divide(&mut y, true);
        divide(&mut y, false);
    }
    y
}

/// The gate in f64.
pub fn reference_gate(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
