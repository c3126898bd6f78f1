//! `unsafe`, `async`, `await`.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    y[i] = 2.0;
    unsafe {
        y[i] = 1.0;
    }
    let _f = async { 1.0 };
}

fn main() {}
