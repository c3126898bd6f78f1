//! Stand-in for `kiln_codegen::compile` until that part is merged, with its signatures.

use kiln_codegen::diag::Diagnostic;
use kiln_codegen::emit::Source;
use kiln_codegen::ir::{Kernel, Span};
use kiln_codegen::spec::{BuildRequest, KernelDef};
use kiln_codegen::target::Target;
use kiln_codegen::valid::{self, Facts};

#[derive(Clone, Debug)]
pub struct Built {
    pub kernel: Kernel,
    pub facts: Facts,
}
#[derive(Clone, Debug)]
pub struct Lowered {
    pub kernel: Kernel,
    pub facts: Facts,
    pub source: Source,
}
pub fn build(def: &dyn KernelDef, request: &BuildRequest) -> Result<Built, Vec<Diagnostic>> {
    let kernel = def.build(request)?;
    let facts = valid::check(&kernel)?;
    Ok(Built { kernel, facts })
}
pub fn source(_: &Built, target: Target) -> Result<Lowered, Vec<Diagnostic>> {
    Err(vec![Diagnostic::error_at(Span::unknown(), "C0001", format!("no emitter for {}", target.name()))])
}
