//! A store of another dtype.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![Bf16; n]) {
    let i = grid(n);
    y[i] = x[i];
}

fn main() {}
