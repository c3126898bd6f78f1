//! The compiler's time budget: from a kernel function to text within 20 ms, for every operator and target.
//!
//! The limit holds for optimised builds (`cargo test --release -p kiln-benches`). Other profiles only have to stay
//! within ten times of it, which still finds work that grows with the square of something.

use kiln_benches::{instances, times_ms, to_text};
use kiln_codegen::target::Target;

const LIMIT_MS: f64 = if cfg!(debug_assertions) { 200.0 } else { 20.0 };

#[test]
fn every_kernel_becomes_text_within_the_budget() {
    let mut slow = vec![];
    for instance in instances().expect("the operators take their own cases") {
        for target in Target::ALL.into_iter().filter(|t| t.caps().is_some()) {
            // The least of five: other work on the machine only ever adds.
            let least = times_ms(5, || {
                let lowered = to_text(&instance, target);
                assert!(lowered.is_ok(), "{} for {}: {:?}", instance.name, target.name(), lowered.err());
            })[0];
            if least > LIMIT_MS {
                slow.push(format!("{} for {}: {least:.1} ms", instance.name, target.name()));
            }
        }
    }
    assert!(slow.is_empty(), "more than {LIMIT_MS} ms:\n{}", slow.join("\n"));
}
