//! Fewer strides than dimensions.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; m, n; strides(1)], y: Out![F32; n]) {}

fn main() {}
