//! `mut` inside a pattern and on a parameter.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let (mut a, b) = (x[i], x[i]);
    y[i] = a + b;
}

#[kernel]
fn p(mut x: In![F32; n], y: Out![F32; n]) {}

fn main() {}
