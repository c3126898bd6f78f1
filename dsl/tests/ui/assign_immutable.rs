//! An immutable name is assigned.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let s = x[i];
    s = s + 1.0;
    s += 2.0;
    y[i] = s;
}

fn main() {}
