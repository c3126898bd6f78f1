//! `break` of an unrolled loop under a device condition.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    for j in unroll(0..4) {
        if x[i] > 0.0 {
            break;
        }
        y[j] = 1.0;
    }
}

fn main() {}
