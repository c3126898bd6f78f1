//! An `if` on something that is no condition.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    if x[i] {
        y[i] = 1.0;
    }
}

fn main() {}
