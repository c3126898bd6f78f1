//! `while let` is no device loop.
use dsl::prelude::*;

#[kernel]
fn k(x: Option<In![F32; n]>, y: Out![F32; n]) {
    let i = grid(n);
    while let Some(x) = x {
        y[i] = x[i];
    }
}

fn main() {}
