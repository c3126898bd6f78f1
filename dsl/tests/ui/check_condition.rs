//! A check of a number.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    check!(x[i], "x is there");
    y[i] = x[i];
}

fn main() {}
