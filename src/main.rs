//! The `kiln` binary: the command line over the library's operators.

fn main() -> std::process::ExitCode {
    kiln::cli::main(kiln::kernels::registry())
}
