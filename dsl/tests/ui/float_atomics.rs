//! Atomics on floats.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    y.atomic_add(0, x[i]);
}

fn main() {}
