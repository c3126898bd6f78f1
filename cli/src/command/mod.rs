//! One file a command: its options, its rows. `lib.rs` chooses.

pub mod bench;
pub mod check;
pub mod doctor;
pub mod emit;
pub mod explain;
pub mod generate;
pub mod invariance;
pub mod list;
pub mod model;
pub mod new;
pub mod run;
pub mod tour;
pub mod tune;
