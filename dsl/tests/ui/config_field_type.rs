//! A config field of another type.
use dsl::prelude::*;

#[derive(KernelConfig, Clone, Debug)]
struct Cfg {
    #[default(1.5)]
    rows: f32,
}

fn main() {}
