//! `view_as` on something that is not bytes.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let v = x.view_as::<E4m3, 1>(0, n, 1);
}

fn main() {}
