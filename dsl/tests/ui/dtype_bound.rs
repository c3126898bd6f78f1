//! A type parameter that is no dtype.
use dsl::prelude::*;

#[kernel]
fn k<T>(x: In![T; n], y: Out![T; n]) {
    let i = grid(n);
    y[i] = x[i];
}

fn main() {}
