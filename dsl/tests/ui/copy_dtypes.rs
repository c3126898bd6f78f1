//! A copy between two dtypes.
use dsl::prelude::*;

#[kernel]
fn k(x: In![Bf16; n], y: Out![F32; n]) {
    let i = grid(n);
    let t = frag::<F32, 1>([4]);
    copy(x.at(i), t);
}

fn main() {}
