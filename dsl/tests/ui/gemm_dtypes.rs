//! Operands no matrix instruction multiplies, and an accumulator that is not F32.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n, 16], y: In![Bf16; n, 16], out: Out![F32; n, 16]) {
    let i = grid(n);
    let a = shared::<F32, 2>([16, 16]);
    let b = shared::<Bf16, 2>([16, 16]);
    let acc = frag::<F32, 2>([16, 16]);
    let half = frag::<Bf16, 2>([16, 16]);
    copy(x.at((i, 0)), a);
    copy(y.at((i, 0)), b);
    gemm_set(a, b.t(), acc);
    gemm_set(b, b.t(), half);
    copy(acc, out.at((i, 0)));
}

fn main() {}
