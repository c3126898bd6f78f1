//! An optional tensor used as a tensor.
use dsl::prelude::*;

#[kernel]
fn k(x: Option<In![F32; n]>, y: Out![F32; n]) {
    let i = grid(n);
    y[i] = x[i];
}

fn main() {}
