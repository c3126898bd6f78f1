//! `break` belongs to no loop, or to one outside of a closure.
use dsl::prelude::*;

#[kernel]
fn k(y: Out![F32; n]) {
    let i = grid(n);
    if i > 3 {
        break;
    }
    for _ in 0..n {
        let _ = tile_max([4], |t| { continue; y[t] });
    }
}

fn main() {}
