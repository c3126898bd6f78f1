//! Lesson 3, continued: the same kernels, built and printed for a target. Run with
//! `cargo run --example 03_kernels [TARGET] [KERNEL]`; without a kernel it lists what each text needs.
#![allow(clippy::print_stdout, reason = "a lesson shows its result")]

mod kernels;

use kernels as k;
use kiln::codegen::spec::{BuildRequest, ParamFacts};
use kiln::codegen::target::Target;
use kiln::codegen::{compile, diag::Diagnostic};
use kiln::op::KernelDef;
use kiln::prelude::*;
use std::error::Error;
use std::sync::Arc;

/// A kernel with its fixed dimensions.
type Example = (Arc<dyn KernelDef>, Vec<(&'static str, usize)>);

/// Every kernel with the dimensions to build it for.
fn all() -> Vec<Example> {
    vec![
        (k::fp8_gemm_1d2d::kernel::<Bf16>(), vec![("n", 512), ("k", 512)]),
        (k::rmsnorm::kernel::<Bf16>(), vec![("h", 4096)]),
        (k::mla_decode_split::kernel(), vec![("dk", 128), ("dv", 96), ("page", 16)]),
        (k::mla_combine::kernel(), vec![("dv", 96)]),
        (k::indexer_logits::kernel(), vec![("heads", 8), ("d", 64)]),
        (k::radix_topk::kernel(), vec![("topk", 64)]),
    ]
}

/// A build for 16-byte aligned, contiguous tensors with the default config.
fn request(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> BuildRequest {
    let facts =
        |_| ParamFacts { present: true, align_bytes: 16, contiguous: true, tma: false, stride_multiples: vec![] };
    BuildRequest {
        config: def.space().default_config(),
        fixed: fixed.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
        facts: def.info().params.iter().map(facts).collect(),
        ..BuildRequest::default()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let target = words.next().unwrap_or("sm_90a".into());
    let target = Target::parse(&target).ok_or("targets are sm_80, sm_90a and sm_100a")?;
    let only = words.next();
    let text = |all: Vec<Diagnostic>| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for (def, fixed) in all() {
        let name = &def.info().name;
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        let built = compile::build(&*def, &request(&*def, &fixed)).map_err(text)?;
        let source = compile::source(&built, target).map_err(text)?.source;
        match only {
            Some(_) => println!("{}", source.text),
            None => println!("{name}: {} threads, {} bytes of shared memory", source.threads, source.shared_bytes),
        }
    }
    Ok(())
}
