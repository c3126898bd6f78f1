//! Loops have no labels.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    'outer: for j in 0..n {
        break 'outer;
    }
}

fn main() {}
