//! How a command ends when it does not end well: one message and one exit code.
//!
//! A message says where, what was expected, what came and what to do next. Not here: findings of single rows, which are
//! data in the table.

use std::fmt;

/// Why a command stopped.
#[derive(Debug)]
pub enum Failure {
    /// A check failed: exit code 1.
    Failed(String),
    /// The command line or a file it names is wrong: exit code 2.
    Usage(String),
    /// Something this machine lacks: exit code 3.
    Environment(String),
    /// Nobody reads the output any more, as in `kiln list | head`: quiet, exit code 0.
    ClosedPipe,
}

impl Failure {
    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Environment(_) => 3,
            Failure::ClosedPipe => 0,
        }
    }
    /// The message, if there is something to say.
    pub fn message(&self) -> Option<&str> {
        match self {
            Failure::Failed(m) | Failure::Usage(m) | Failure::Environment(m) => Some(m),
            Failure::ClosedPipe => None,
        }
    }
    /// Bad input in the four parts every such message has.
    pub fn usage(place: impl fmt::Display, expected: impl fmt::Display, got: impl fmt::Display, next: &str) -> Self {
        Failure::Usage(four_parts(place, expected, got, next))
    }
    /// Something missing, in the same four parts.
    pub fn environment(
        place: impl fmt::Display,
        expected: impl fmt::Display,
        got: impl fmt::Display,
        next: &str,
    ) -> Self {
        Failure::Environment(four_parts(place, expected, got, next))
    }
}

/// `place: expected .., got ..` and the next step on its own line.
pub fn four_parts(place: impl fmt::Display, expected: impl fmt::Display, got: impl fmt::Display, next: &str) -> String {
    let next = if next.is_empty() { String::new() } else { format!("\n  next: {next}") };
    format!("{place}: expected {expected}, got {got}{next}")
}

impl From<std::io::Error> for Failure {
    /// Errors of writing to stdout; files are reported with their path where they are written.
    fn from(e: std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::ClosedPipe
        } else {
            Failure::Environment(format!("cannot write the output: {e}"))
        }
    }
}
