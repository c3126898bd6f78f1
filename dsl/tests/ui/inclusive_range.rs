//! Ranges have two ends, the second exclusive.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    grid(n);
    for j in 0..=n {
        y[j] = 1.0;
    }
}

fn main() {}
