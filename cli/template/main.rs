//! Kernels of this project on the command line of Kiln: `cargo run -- check`, `run`, `tune`, `bench`, `emit`, `explain`.
//!
//! Add a kernel: one file with kernel, reference and cases, a `mod` line here, its name in the list below.

mod scale_add;

fn main() -> std::process::ExitCode {
    kiln::cli::main(kiln::kernels![scale_add::ScaleAdd])
}
