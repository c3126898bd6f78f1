//! An input is written.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    x[i] = 1.0;
    let t = frag::<F32, 1>([4]);
    copy(t, x.at(0));
}

fn main() {}
