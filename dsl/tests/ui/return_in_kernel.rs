//! `return` leaves a kernel.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    if x[i] > 0.0 {
        return;
    }
    y[i] = 1.0;
}

fn main() {}
