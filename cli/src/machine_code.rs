//! Compiling one build for a target and disassembling the result.

use crate::failure::Failure;
use crate::instance::Step;
use kiln_codegen::target::Target;
use kiln_runtime::Settings;
use kiln_runtime::compile::{self, Availability, Compiled, Toolchain, toolchain};
use std::sync::Arc;

/// The compiler, fetched if that is allowed; or why there is none.
///
/// # Errors
/// In CI a missing compiler is an error.
pub fn toolchain() -> Result<Result<Arc<Toolchain>, String>, Failure> {
    Ok(match toolchain::ensure(&Settings::from_env())? {
        Availability::Ready(t) => Ok(t),
        Availability::Skip(why) => Err(why),
    })
}

/// Compiles a build.
///
/// # Errors
/// No compiler, a refused kernel.
pub fn compile(step: &Step, target: Target) -> Result<Arc<Compiled>, Failure> {
    let toolchain = toolchain()?.map_err(Failure::Environment)?;
    let compiled = compile::compile(step.kernel.as_ref(), &step.request, target, &toolchain);
    warn(&toolchain);
    Ok(compiled?)
}

/// Says on stderr what the compiler's cache could not do. Results are not affected.
pub fn warn(toolchain: &Toolchain) {
    use std::io::Write;
    for text in toolchain.take_warnings() {
        // Nothing is left to do if stderr is closed.
        let _ = writeln!(std::io::stderr().lock(), "warning: {text}");
    }
}

/// Machine code as text.
///
/// # Errors
/// No compiler or disassembler, a refused kernel.
pub fn disassemble(step: &Step, target: Target) -> Result<String, Failure> {
    let toolchain = toolchain()?.map_err(Failure::Environment)?;
    let compiled = compile::compile(step.kernel.as_ref(), &step.request, target, &toolchain);
    warn(&toolchain);
    let compiled = compiled?;
    toolchain.sass(&compiled.image)?.ok_or_else(|| {
        Failure::environment(
            "--stage sass",
            "the disassembler nvdisasm",
            "none beside the compiler or on PATH",
            "`kiln doctor --fetch` fetches it",
        )
    })
}
