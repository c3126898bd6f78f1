//! `unsafe`, `async`, `await`.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    unsafe {
        y[i] = 1.0;
    }
    let f = async { 1.0 };
}

fn main() {}
