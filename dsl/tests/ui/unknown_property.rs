//! The attribute has a word it does not know.
use dsl::prelude::*;

#[kernel(fast)]
fn k(x: In![F32; n], y: Out![F32; n]) {}

fn main() {}
