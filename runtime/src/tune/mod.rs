//! Tuning: searching a kernel's configurations on a device, and the records that later choices come from.
//!
//! The space is the kernel's ([`kiln_codegen::tune`]); a choice without a measured record is always the default,
//! unless [`Modelled`] is asked, which calculates.

pub mod model;
pub mod records;
pub mod search;
mod shipped;

pub use model::{Modelled, Screened};
pub use records::{Key, Record, Records, Status, Tuned};
pub use search::{Outcome, Progress, SearchOptions, Task, search};
