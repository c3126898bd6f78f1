//! A comparison of two types.
use dsl::prelude::*;

#[kernel]
fn k(x: In![I32; n], y: Out![F32; n]) {
    let i = grid(n);
    if x[i] < i {
        y[i] = 1.0;
    }
}

fn main() {}
