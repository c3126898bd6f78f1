//! Builds kernels for tests with the plainest request: default config, given fixed dimensions, all parameters there.
#![allow(dead_code, reason = "every test crate uses another part")]

use kiln_codegen::diag::Diagnostic;
use kiln_codegen::ir::{Kernel, Op};
use kiln_codegen::spec::{BuildRequest, KernelDef, ParamFacts};

/// A request with the default config.
pub fn request(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> BuildRequest {
    let present =
        |_| ParamFacts { present: true, align_bytes: 16, contiguous: true, tma: false, stride_multiples: vec![] };
    BuildRequest {
        config: def.space().default_config(),
        fixed: fixed.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
        facts: def.info().params.iter().map(present).collect(),
        ..BuildRequest::default()
    }
}

/// Builds, or fails the test with all diagnostics.
#[track_caller]
pub fn build(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Kernel {
    built(def.build(&request(def, fixed)))
}

/// Builds a kernel that the verifier must accept too.
#[track_caller]
pub fn verified(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Kernel {
    let kernel = build(def, fixed);
    built(kiln_codegen::valid::check(&kernel).map(|_| kernel))
}

/// Unwraps a build.
#[track_caller]
pub fn built<T>(result: Result<T, Vec<Diagnostic>>) -> T {
    match result {
        Ok(k) => k,
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

/// Names of all ops, in order of appearance in the arena.
pub fn op_names(k: &Kernel) -> Vec<&'static str> {
    k.ops.iter().map(|o| o.op.name()).collect()
}

/// Number of ops with a name.
pub fn count(k: &Kernel, name: &str) -> usize {
    k.ops.iter().filter(|o| o.op.name() == name).count()
}

/// `line:column` of the first op with a name.
pub fn position(k: &Kernel, name: &str) -> (u32, u32) {
    let op = k.ops.iter().find(|o| o.op.name() == name).expect("the op is there");
    let s = k.span_of(op.span);
    (s.line, s.column)
}

/// Ops of a block, with those of nested blocks.
pub fn nested<'k>(k: &'k Kernel, block: kiln_codegen::ir::BlockId, out: &mut Vec<&'k Op>) {
    kiln_codegen::ir::effects::walk(k, block, &mut |_, op| out.push(op));
}
