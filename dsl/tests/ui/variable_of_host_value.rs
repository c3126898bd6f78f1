//! `let mut` of a host collection.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    let mut tiles = Vec::<usize>::new();
    let mut s = 0.0;
    s = i;
    y[i] = s;
}

fn main() {}
