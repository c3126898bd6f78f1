//! A config field without any value.
use dsl::prelude::*;

#[derive(KernelConfig, Clone, Debug)]
struct Cfg {
    #[numerics]
    rows: usize,
}

fn main() {}
