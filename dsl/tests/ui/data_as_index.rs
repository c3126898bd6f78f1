//! Data used as an index, and mixed with one.
use dsl::prelude::*;

#[kernel]
fn k(x: In![I32; n], y: Out![F32; n, n]) {
    let i = grid(n);
    let d = x[i];
    y[(i + d, i)] = 1.0;
    y[(i, d)] = 1.0;
}

fn main() {}
