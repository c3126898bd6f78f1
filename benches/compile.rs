//! How long does Kiln's own compiler take for a kernel? Build and verify, and the whole way to text for `sm_90a`.
//!
//!     cargo bench -p kiln-benches --bench compile
//!
//! The vendor's compiler is not part of this; `first_result` has the whole wait. `compile_budget.rs` holds the limit.

use criterion::{Criterion, criterion_group, criterion_main};
use kiln_benches::{instances, to_text};
use kiln_codegen::compile;
use kiln_codegen::target::Target;
use std::hint::black_box;
use std::time::Duration;

fn kernels(c: &mut Criterion) {
    let instances = instances().expect("the operators take their own cases");
    // Two groups for every kernel: short windows keep the run within seconds, and milliseconds need no long ones.
    let brief = (Duration::from_millis(50), Duration::from_millis(250));
    let mut group = c.benchmark_group("build_and_verify");
    group.sample_size(10).warm_up_time(brief.0).measurement_time(brief.1);
    for i in &instances {
        group.bench_function(&i.name, |b| b.iter(|| compile::build(black_box(i.kernel.as_ref()), &i.request)));
    }
    group.finish();
    let mut group = c.benchmark_group("to_text_sm_90a");
    group.sample_size(10).warm_up_time(brief.0).measurement_time(brief.1);
    for i in &instances {
        group.bench_function(&i.name, |b| b.iter(|| to_text(black_box(i), Target::Sm90a)));
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
