//! The `kiln` binary once more, so that tests of the command line find its path: cargo gives a test the programs of its
//! own package only.

fn main() -> std::process::ExitCode {
    kiln::cli::main(kiln::kernels::registry())
}
