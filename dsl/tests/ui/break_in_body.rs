//! `break` of an element body.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    for j in parallel([4]) {
        if j > 2 {
            break;
        }
        y[j] = 1.0;
    }
}

fn main() {}
