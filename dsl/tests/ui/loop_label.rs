//! Loops have no labels.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    y[grid(n)] = 1.0;
    'outer: for _ in 0..n {
        break 'outer;
    }
}

fn main() {}
