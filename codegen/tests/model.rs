//! Estimates of resources and time: what is refused without compiling, and which of two configs is ranked first.

#[allow(dead_code, reason = "the emitter's own test uses the rest")]
mod emit_kernels;

use emit_kernels::{D, gemm_bf16, vector_add};
use kiln_codegen::compile::{self, Lowered};
use kiln_codegen::ir::Kernel;
use kiln_codegen::model::{Chip, Estimate, Resources, estimate};
use kiln_codegen::target::{Caps, Target};

fn lowered(kernel: Kernel, target: Target) -> Lowered {
    let built = compile::check(kernel).unwrap_or_else(|e| panic!("{e:?}"));
    compile::source(&built, target).unwrap_or_else(|e| panic!("{e:?}"))
}

fn caps(target: Target) -> Caps {
    target.caps().expect("a target with threads")
}

fn estimated(kernel: Kernel, target: Target, syms: &[i64]) -> Estimate {
    let l = lowered(kernel, target);
    let chip = Chip::of(target).expect("a chip");
    estimate(&l.kernel, &l.source, syms, &caps(target), &chip).expect("it fits")
}

#[test]
fn accumulators_count_as_registers() {
    let of = |bm, bn, warps| {
        let l = lowered(gemm_bf16(bm, bn, 64, warps, 1), Target::Sm90a);
        Resources::of(&l.kernel, &l.source, &caps(Target::Sm90a))
    };
    // 128 x 128 elements over 256 threads.
    let usual = of(128, 128, 8);
    assert_eq!((usual.threads, usual.registers, usual.cluster_blocks), (256, 64 + 24, 1));
    assert!(usual.refusals(&caps(Target::Sm90a)).is_empty());
    // 256 threads with 88 registers: two blocks, by registers.
    assert_eq!(usual.resident_blocks, 2);
    let huge = Resources { registers: 600, ..usual };
    assert_eq!(huge.refusals(&caps(Target::Sm90a)), ["about 600 registers a thread, at most 255 exist"]);
    let many = Resources { threads: 1024, registers: 100, ..usual };
    assert_eq!(many.refusals(&caps(Target::Sm90a)), ["about 100 registers a thread, at most 64 exist"]);
}

#[test]
fn every_limit_is_named() {
    let l = lowered(gemm_bf16(128, 128, 64, 8, 1), Target::Sm80);
    let usual = Resources::of(&l.kernel, &l.source, &caps(Target::Sm80));
    let wrong = Resources { threads: 2048, shared_bytes: 1 << 20, cluster_blocks: 2, registers: 10, ..usual };
    assert_eq!(
        wrong.refusals(&caps(Target::Sm80)),
        [
            "2048 threads a block, at most 1024 exist",
            "1048576 bytes of shared memory a block, at most 166912 exist",
            "2 blocks a cluster, at most 1 exist"
        ]
    );
}

#[test]
fn vector_addition_is_bound_by_memory() {
    let n = 1 << 26;
    let e = estimated(vector_add(D::S("n", 16)), Target::Sm90a, &[n]);
    assert_eq!(e.bound, "memory");
    assert_eq!(e.memory_bytes, 12.0 * n as f64);
    // 805 MB at 4.8 TB/s are 168 us; other parts and the launch come on top.
    assert!((168.0..220.0).contains(&e.us), "{e:?}");
}

#[test]
fn larger_tiles_ask_for_less() {
    let syms = [4096, 4096, 4096];
    let small = estimated(gemm_bf16(32, 32, 64, 4, 1), Target::Sm90a, &syms);
    let large = estimated(gemm_bf16(128, 128, 64, 8, 1), Target::Sm90a, &syms);
    assert_eq!(large.matrix_flops, 2.0 * 4096f64.powi(3));
    assert_eq!(small.matrix_flops, large.matrix_flops);
    assert!(small.asked_bytes > 3.0 * large.asked_bytes, "{small:?} {large:?}");
    assert!(large.us < small.us, "{small:?} {large:?}");
    // 137 GFLOP at 989 TFLOP/s are 139 us at best.
    assert!((139.0..400.0).contains(&large.us), "{large:?}");
}

#[test]
fn one_block_too_many_is_a_round_of_its_own() {
    let of = |rows: i64, columns: i64| {
        estimated(gemm_bf16(128, 128, 64, 8, 1), Target::Sm90a, &[128 * rows, 8192, 128 * columns])
    };
    let (full, more) = (of(11, 12), of(7, 19));
    assert!(more.us > 1.5 * full.us, "{full:?} {more:?}");
    assert!((full.waves - 0.5).abs() < 1e-9, "132 blocks, two fit on each of 132 multiprocessors");
}
