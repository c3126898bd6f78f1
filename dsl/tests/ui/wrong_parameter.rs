//! A parameter that is neither tensor nor scalar nor config.
use dsl::prelude::*;

#[kernel]
fn k(x: In![F32; n], count: usize, y: Out![F32; n]) -> u32 {}

fn main() {}
