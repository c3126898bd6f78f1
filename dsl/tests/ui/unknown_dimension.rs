//! The attribute names a dimension that does not exist.
use dsl::prelude::*;

#[kernel(dims(h: fixed), batch_invariant(t))]
fn k(x: In![F32; n], y: Out![F32; n]) {}

fn main() {}
