//! Tuning: searching a kernel's configurations on a device, and the records that later choices come from.
//!
//! The space is the kernel's ([`kiln_codegen::tune`]); a choice without a measured record is always the default.

pub mod records;
pub mod search;

pub use records::{Key, Record, Records, Status, Tuned};
pub use search::{Outcome, SearchOptions, Task, search};
