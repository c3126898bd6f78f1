//! One name for a parameter and a dimension.
use dsl::prelude::*;

#[kernel]
fn k(n: In![F32; n], y: Out![F32; n]) {}

fn main() {}
