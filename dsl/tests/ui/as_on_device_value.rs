//! `as` on a device value.
use dsl::prelude::*;

#[kernel]
fn k(x: In![I32; n], y: Out![F32; n]) {
    let i = grid(n);
    y[i] = x[i] as f32;
}

fn main() {}
