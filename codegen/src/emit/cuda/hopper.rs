//! Ops of roles, rings and copy engines as sm_90a text.

use super::Emitter;
use crate::ir::{OpId, SchedOp};

impl Emitter<'_> {
    /// Prints one op.
    pub fn sched(&mut self, id: OpId, op: &SchedOp) {
        self.unsupported(id, op.name(), "choose sm_80");
    }
}
