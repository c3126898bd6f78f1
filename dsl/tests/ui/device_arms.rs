//! Arms of a device `if` that cannot be joined.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let v = if x[i] > 0.0 { x[i] } else { i.value() };
    let t = if x[i] > 0.0 { frag::<F32, 1>([4]) } else { frag::<F32, 1>([4]) };
}

fn main() {}
