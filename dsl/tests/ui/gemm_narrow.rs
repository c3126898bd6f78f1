//! An 8-bit float with a 4-bit one, without scales.
use dsl::prelude::*;

#[kernel]
fn k(x: In![E4m3; n, 32], y: In![E2m1; n, 32], out: Out![F32; n, 16]) {
    let i = grid(n);
    let a = shared::<E4m3, 2>([16, 32]);
    let b = shared::<E2m1, 2>([16, 32]);
    let acc = frag::<F32, 2>([16, 16]);
    copy(x.at((i, 0)), a);
    copy(y.at((i, 0)), b);
    zero(acc);
    gemm_scaled((a, |_| 1.0), (b.t(), |_| 1.0), acc);
    gemm(a, b.t(), acc);
    copy(acc, out.at((i, 0)));
}

fn main() {}
