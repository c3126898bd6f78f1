//! Rows looked up in something that is not a table.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n, 16], w: In![F32; n], t: In![I32; n, 4], out: Out![F32; n, 16]) {
    let i = grid(n);
    let a = frag::<F32, 2>([4, 16]);
    copy(x.rows(w).at((0, 0)), a);
    copy(x.rows(t).at((0, 0)), a);
    copy(a, out.at((i, 0)));
}

fn main() {}
