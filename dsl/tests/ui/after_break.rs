//! Code after `break`.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    for _ in 0..n {
        break;
        y[i] = 1.0;
    }
}

fn main() {}
