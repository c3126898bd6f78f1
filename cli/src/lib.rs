//! The command line of Kiln, as a library: a user's project calls [`main`] with its own operators and gets the same
//! commands for them.
//!
//! One file a command under `command`. Commands read options, call `codegen` and `runtime`, and hand rows to `output`;
//! they hold no knowledge about single kernels. Names, JSON fields and exit codes are a contract scripts depend on:
//! 0 ok, 1 a check failed, 2 usage, 3 environment missing.
#![forbid(unsafe_code)]

mod cases;
mod catalog;
mod command;
mod device;
mod diagnostics;
mod duration;
mod failure;
mod files;
mod fill;
mod instance;
mod invariance;
mod judge;
mod machine_code;
mod output;
mod peers;
mod roofline;
mod runner;
mod sample;
mod shapes;
mod suggest;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use command::{
    bench, check, doctor, emit, explain, generate, invariance as invariant, list, model, new, run, tour, tune,
};
use failure::Failure;
use kiln_codegen::spec::OpSpec;
use output::Output;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// Write a tile kernel once in Rust; run, check and tune it on every target, including hardware you do not have.
#[derive(Parser, Debug)]
#[command(name = "kiln", version, disable_help_subcommand = true)]
struct Cli {
    /// One JSON object per line instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The commands; without one, the tour.
#[derive(Subcommand, Debug)]
enum Command {
    /// Describe operators and kernels
    List(list::Args),
    /// Print a kernel's text at a stage of compilation
    Emit(emit::Args),
    /// Say what the compiler decided, and why
    Explain(explain::Args),
    /// Compile every declared instance for every target
    Check(check::Args),
    /// Run cases and compare with what is expected
    Run(run::Args),
    /// Measure on a device
    Bench(bench::Args),
    /// Search the config space of kernels
    Tune(tune::Args),
    /// Say which kernels give a row the same bits whatever else is in the batch
    Invariance(invariant::Args),
    /// Describe checkpoints, and compare models with expected numbers
    Model(model::Args),
    /// Continue prompts of token ids
    Generate(generate::Args),
    /// Make a project with a kernel to start from
    New(new::Args),
    /// Describe this machine: devices, compilers, caches
    Doctor(doctor::Args),
}

/// Runs the command line of this process over these operators.
pub fn main(ops: Vec<Arc<dyn OpSpec>>) -> ExitCode {
    // Asked before the options are read, since reading them may be what fails. What follows `--` is no option.
    let json = std::env::args_os().skip(1).take_while(|a| a != "--").any(|a| a == "--json");
    let code = match run_with(&ops, std::env::args_os()) {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(message) = failure.message() {
                let text = if json { error_row(message, failure.code()) } else { format!("error: {message}") };
                // Nothing is left to do if stderr is closed too.
                let _ = writeln!(std::io::stderr().lock(), "{text}");
            }
            failure.code()
        }
    };
    ExitCode::from(code)
}

/// A failure as a row, for scripts that read JSON: `{"v":1,"cmd":"error","code":2,"message":".."}`.
fn error_row(message: &str, code: u8) -> String {
    let fields = [("code", code.into()), ("message", message.into())];
    output::json_line("error", &fields.map(|(k, v): (_, serde_json::Value)| (k.to_string(), v)).into_iter().collect())
}

fn run_with(ops: &[Arc<dyn OpSpec>], args: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => return refuse(&e),
    };
    let out = Output { json: cli.json };
    match &cli.command {
        None => tour::run(ops, out),
        Some(Command::List(a)) => list::run(ops, a, out),
        Some(Command::Emit(a)) => emit::run(ops, a, out),
        Some(Command::Explain(a)) => explain::run(ops, a, out),
        Some(Command::Check(a)) => check::run(ops, a, out),
        Some(Command::Run(a)) => run::run(ops, a, out),
        Some(Command::Bench(a)) => bench::run(ops, a, out),
        Some(Command::Tune(a)) => tune::run(ops, a, out),
        Some(Command::Invariance(a)) => invariant::run(ops, a, out),
        Some(Command::Model(a)) => model::run(a, out),
        Some(Command::Generate(a)) => generate::run(a, out),
        Some(Command::New(a)) => new::run(a, out),
        Some(Command::Doctor(a)) => doctor::run(a, out),
    }
}

/// Help and version go to stdout; mistakes become a message that names what exists.
fn refuse(e: &clap::Error) -> Result<(), Failure> {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Output { json: false }.text(&e.render().to_string());
    }
    if e.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(given)) = e.get(ContextKind::InvalidSubcommand)
    {
        let command = Cli::command();
        let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        return Err(Failure::usage(
            "COMMAND",
            "a command, or none for the tour",
            format!("`{given}`"),
            &format!("{}; `kiln COMMAND --help` describes one", suggest::advice(given, names)),
        ));
    }
    // clap's own text: what was wrong, the nearest option, the usage line.
    let text = e.render().to_string();
    Err(Failure::Usage(text.trim_start_matches("error: ").trim_end().to_string()))
}
