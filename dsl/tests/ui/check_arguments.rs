//! A check without a condition.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    check!();
    y[i] = 1.0;
}

fn main() {}
