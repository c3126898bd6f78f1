//! Labels are unique.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    #[label(a)]
    let v = x[i];
    #[label(a)]
    y[i] = v;
}

fn main() {}
