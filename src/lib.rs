//! Kiln: write a tile kernel once in Rust; run, check and tune it on every target, including hardware you do not have.
//!
//! This crate only re-exports. Kernel files use [`prelude`] and [`op`]; programs use [`runtime`] for devices and
//! [`cli::main`] for the command line; [`codegen`] is the compiler; [`kernels`](mod@kernels) is the library of operators.
//! The map is `docs/ARCHITECTURE.md`.
#![forbid(unsafe_code)]

pub use dsl;
pub use kiln_cli as cli;
pub use kiln_codegen as codegen;
pub use kiln_kernels as kernels;
pub use kiln_runtime as runtime;

/// The language: what the body of a kernel and its config type are written with.
pub mod prelude {
    pub use dsl::prelude::*;
}

/// What an operator is described with: its plan, reference, cases and cost.
pub mod op {
    pub use kiln_codegen::abi::{Arg, Launch, LaunchError, Launcher, Plan, TensorView};
    pub use kiln_codegen::host_tensor::HostTensor;
    pub use kiln_codegen::ir::{DType, Literal};
    pub use kiln_codegen::spec::{
        Case, Configs, Cost, DefaultConfigs, Fill, HostProblem, InputSpec, KernelDef, OpError, OpInfo, OpSpec,
        ParamValue, Params, Problem, TensorSpec, Tolerance,
    };
    pub use kiln_codegen::tune::{Config, ConfigValue};
}

/// A list of operators for [`cli::main`]: `kernels![a::A, b::B]`.
#[macro_export]
macro_rules! kernels {
    ($($op:expr),* $(,)?) => {{
        let ops: ::std::vec::Vec<::std::sync::Arc<dyn $crate::op::OpSpec>> =
            ::std::vec![$(::std::sync::Arc::new($op)),*];
        ops
    }};
}
