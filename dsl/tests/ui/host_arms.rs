//! Arms of a host `if` with two types.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let flag = true;
    let v = if flag { x[i] } else { 0.0 };
    y[i] = v;
}

fn main() {}
