//! A dimension that nothing binds.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; k / 128, m], y: Out![F32; m]) {}

fn main() {}
