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
        (k::mla_decode_split_sm90::kernel(), vec![("dk", 192), ("dv", 128), ("page", 64)]),
    ]
}

/// A build for 16-byte aligned, contiguous tensors with the default config; with roles, tiles are as wide as the matrix
/// unit's rows.
fn request(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> BuildRequest {
    let facts =
        |_| ParamFacts { present: true, align_bytes: 16, contiguous: true, tma: false, stride_multiples: vec![] };
    let wide = k::MlaCfg { bh: 64, bn: 64, split_tokens: 128, stages: 2 };
    let roles = def.info().name == "mla_decode_split_sm90";
    BuildRequest {
        config: if roles { wide.to_config() } else { def.space().default_config() },
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
        match (compile::source(&built, target), &only) {
            (Ok(l), Some(_)) => println!("{}", l.source.text),
            (Ok(l), None) => {
                println!("{name}: {} threads, {} bytes of shared memory", l.source.threads, l.source.shared_bytes);
            }
            // Roles written for one target have no form on another.
            (Err(all), None) => println!("{name}: {}", all.first().map_or("refused", |d| &d.message)),
            (Err(all), Some(_)) => return Err(text(all).into()),
        }
    }
    Ok(())
}
