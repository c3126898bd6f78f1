//! Arithmetic on a storage format.
use dsl::prelude::*;

#[kernel]
fn k(x: In![E4m3; n], y: Out![E4m3; n]) {
    let i = grid(n);
    y[i] = x[i] + x[i];
}

fn main() {}
