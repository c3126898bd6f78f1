//! A dimension that is misspelt.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(nn);
    y[i] = x[i];
}

fn main() {}
