//! A `while` whose condition cannot change.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    let more = true;
    while more {
        y[i] = 1.0;
    }
}

fn main() {}
