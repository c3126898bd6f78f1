//! `check!(condition, "text")`: what a kernel states and every run tests.

use crate::dtype::Bool;
use crate::scalar::V;
use crate::session::with;
use kiln_codegen::ir::Op;

/// Conditions of `check!`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the condition of a `check!`",
    label = "expected a host `bool` or a device `V<Bool>`"
)]
pub trait Checked {
    /// Makes the check.
    #[track_caller]
    fn check(self, message: &str);
}
impl Checked for bool {
    #[track_caller]
    fn check(self, message: &str) {
        if !self {
            with(|s| {
                s.error("B0110", format!("a check does not hold: {message}")).help =
                    Some("it fails while the kernel is built, for this config and these dimensions".into());
            });
        }
    }
}
impl Checked for V<Bool> {
    #[track_caller]
    fn check(self, message: &str) {
        with(|s| {
            s.b.push(Op::Check { cond: self.id, message: message.to_string() });
        });
    }
}

/// What `check!(condition, "text")` is rewritten into: on the VM a condition that does not hold ends the run with a
/// message, on devices with a fault of the launch. A host condition is decided while building.
#[track_caller]
pub fn check<C: Checked>(condition: C, message: &str) {
    condition.check(message);
}
