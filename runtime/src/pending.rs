//! Stand-ins for parts of the compiler that are not merged yet, with their final signatures.

#![allow(missing_docs, reason = "replaced by the documented items of kiln-codegen")]

pub mod compile {
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
        let message = format!("no emitter for {}", target.name());
        Err(vec![Diagnostic::error_at(Span::unknown(), "C0001", message)])
    }
}

pub mod vm {
    use kiln_codegen::abi::Arg;
    use kiln_codegen::diag::Diagnostic;
    use kiln_codegen::ir::{Kernel, Span};
    use kiln_codegen::valid::Facts;

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum BlockOrder {
        #[default]
        Forward,
        Reversed,
        Seeded(u64),
    }
    #[derive(Clone, Debug, Default)]
    pub struct Options {
        pub sanitize: bool,
        pub threads: Option<usize>,
        pub order: BlockOrder,
    }
    #[derive(Clone, Debug, Default)]
    pub struct Report {
        pub findings: Vec<Diagnostic>,
        pub messages: Vec<Diagnostic>,
    }
    pub fn run(_: &Kernel, _: &Facts, _: &[i64], _: &[Arg], _: &Options) -> Result<Report, Vec<Diagnostic>> {
        Err(vec![Diagnostic::error_at(Span::unknown(), "S0000", "the tile VM is not part of this build")])
    }
}

pub mod hash {
    use kiln_codegen::ir::Kernel;

    pub fn canonical(kernel: &Kernel) -> String {
        let ops: Vec<_> = kernel.ops.iter().map(|o| format!("{:?}", o.op)).collect();
        let text = format!("{} {:?} {:?} {:?} {}", kernel.name, ops, kernel.index, kernel.grid, kernel.warps);
        crate::compile::hash(&[text.as_bytes()])
    }
}
