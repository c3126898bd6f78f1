//! A host iterator in a device loop.
use dsl::prelude::*;

const WIDTHS: [usize; 2] = [1, 2];

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    for w in WIDTHS.iter() {
        y[i] = 1.0;
    }
}

fn main() {}
