//! An index with the wrong number of axes.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; m, n], y: Out![F32; n]) {
    let i = grid(n);
    y[i] = x[i];
}

fn main() {}
