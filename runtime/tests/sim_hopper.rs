//! Hand-written kernels for compute capability 9.0a on the simulator: they run without findings and give the numbers of
//! plain arithmetic to the bit, each mutation of them is caught with its code, and NVRTC compiles the same texts.

#![allow(clippy::print_stdout, reason = "a skip says why")]

use kiln_codegen::abi::{Signature, TensorView};
use kiln_codegen::emit::cuda::prelude::wgmma::Wgmma;
use kiln_codegen::emit::cuda::prelude::{self, Snippet};
use kiln_codegen::emit::{GridPlan, Source};
use kiln_codegen::formats;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{Access, DType};
use kiln_codegen::machine::{Code, Findings, Lines, Swizzle, TensorMap};
use kiln_codegen::target::Target;
use kiln_runtime::Settings;
use kiln_runtime::compile::{Availability, toolchain};
use kiln_runtime::device::sim::{Exploration, HostCompiler, Shape, SimArg, run};
use std::sync::Arc;

const GEMM: &str = include_str!("hopper_texts/gemm.cu");
const REDUCE: &str = include_str!("hopper_texts/reduce.cu");
const FRAGMENTS: &str = include_str!("hopper_texts/fragments.cu");
const PIECES: &str = include_str!("hopper_texts/pieces.cu");

/// A kernel with all of the prelude in front. `definitions` become constants.
fn text(kernel: &str, product: Option<Wgmma>, definitions: &str) -> String {
    let all = [
        Snippet::Warp,
        Snippet::Shared,
        Snippet::NamedBarrier,
        Snippet::Cluster,
        Snippet::Mbarrier,
        Snippet::Proxy,
        Snippet::TensorMap,
        Snippet::TmaLoad,
        Snippet::TmaStore,
        Snippet::Wgmma,
        Snippet::Registers,
        Snippet::GridOrder,
        Snippet::Stmatrix,
        Snippet::GlobalLoad,
    ];
    let caps = Target::Sm90a.caps().expect("a target with threads");
    let mut out = prelude::text(&all.into(), &caps);
    if let Some(w) = product {
        out += &w.device();
        out += &format!("#define WGMMA {}\n", w.name());
    }
    out + definitions + "\n" + kernel
}

fn tensor(dtype: DType, shape: &[usize], values: &[f32]) -> TensorView {
    let mut bytes = vec![0; dtype.bytes(values.len())];
    for (i, &v) in values.iter().enumerate() {
        formats::store_bits(&mut bytes, dtype, i, formats::encode_f32(dtype, v));
    }
    TensorView::contiguous(dtype, shape, Arc::new(HostMemory::from_bytes(&bytes)))
}

fn values(view: &TensorView) -> Vec<f32> {
    let bytes = view.memory.host().expect("host memory").to_bytes();
    (0..view.num_elements())
        .map(|i| formats::decode_f32(view.dtype, formats::load_bits(&bytes, view.dtype, i)))
        .collect()
}

/// A map of a matrix, or of more axes, with boxes of these extents, innermost first.
fn map(name: &str, access: Access, view: &TensorView, box_extents: &[u32], swizzle: Swizzle) -> SimArg {
    let size = view.dtype.bytes(1);
    let extents = view.shape.iter().rev().map(|&e| e as u64).collect();
    let strides = view.strides.iter().rev().skip(1).map(|&s| (s * size) as u64).collect();
    let box_extents = box_extents.to_vec();
    let map = TensorMap { address: 0, element_bytes: size, extents, strides, box_extents, swizzle };
    SimArg::TensorMap { name: name.into(), access, view: view.clone(), map }
}

fn array(name: &str, access: Access, view: &TensorView) -> SimArg {
    SimArg::Tensor { name: name.into(), access, view: view.clone() }
}

fn execute(text: &str, entry: &str, shape: Shape, args: &[SimArg]) -> Findings {
    let compiler =
        HostCompiler::new(&Settings::from_env(), std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"));
    let program = compiler.load(text, entry).unwrap_or_else(|e| panic!("{e}"));
    let by = Exploration { spin_limit: 600_000, ..Exploration::new(4) };
    run(&program, shape, args, &by).unwrap_or_else(|e| panic!("{e}"))
}

/// One of the kernels with its problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// A ring of bulk copies, products of fp8, staged bulk stores.
    E4m3,
    /// The same in bf16, with the next product begun before the previous one is over.
    Bf16,
    /// The same in fp8 with A shared by a cluster of two.
    Cluster,
    /// A sum over a cluster of two.
    Reduce,
    /// A in registers, k across the rows of B.
    Fragments,
    /// What the others leave out: operands written by threads, f16, three axes, other swizzles, waits for whole stores.
    Pieces,
}

impl Case {
    const ALL: [Case; 6] = [Case::E4m3, Case::Bf16, Case::Cluster, Case::Reduce, Case::Fragments, Case::Pieces];

    fn entry(self) -> &'static str {
        match self {
            Case::E4m3 | Case::Bf16 | Case::Cluster => "gemm",
            Case::Reduce => "reduce",
            Case::Fragments => "fragments",
            Case::Pieces => "pieces",
        }
    }

    fn text(self) -> String {
        let dtype = if self == Case::E4m3 || self == Case::Cluster { DType::E4m3 } else { DType::Bf16 };
        let w = Wgmma::new(64, dtype).expect("a shape");
        match self {
            Case::E4m3 => text(GEMM, Some(w), "constexpr int CLUSTER = 1, WIDTH = 1; constexpr bool AHEAD = false;"),
            Case::Bf16 => text(GEMM, Some(w), "constexpr int CLUSTER = 1, WIDTH = 2; constexpr bool AHEAD = true;"),
            Case::Cluster => text(GEMM, Some(w), "constexpr int CLUSTER = 2, WIDTH = 1; constexpr bool AHEAD = false;"),
            Case::Reduce => text(REDUCE, None, ""),
            Case::Fragments => {
                let w = w.with_registers().and_then(Wgmma::with_k_across).expect("16-bit types have both");
                text(FRAGMENTS, Some(w), "")
            }
            Case::Pieces => text(PIECES, Wgmma::new(32, DType::F16), ""),
        }
    }

    fn threads(self) -> usize {
        match self.entry() {
            "gemm" => 384,
            "pieces" => 256,
            _ => 128,
        }
    }

    fn shared_bytes(self) -> usize {
        match self.entry() {
            "gemm" => 6 * 8192 + 8192 + 48,
            "reduce" => 128 * 16 + 8,
            "pieces" => 64 * 128 + 32 * 128 + 64 * 64 + 8,
            _ => 64 * 128 + 8,
        }
    }

    /// Runs a text in this case's place; gives what was found, and whether the numbers are right.
    fn run(self, text: &str) -> (Findings, bool) {
        let number = |i: usize| (i * 7 % 23) as f32 * 0.25 - 2.75;
        let shape = |grid, cluster| Shape { grid, cluster, threads: self.threads(), shared_bytes: self.shared_bytes() };
        match self {
            Case::E4m3 | Case::Bf16 | Case::Cluster => {
                // Tails along all three axes, five blocks of k for three slots.
                let (m, n) = (100, 104);
                let (dtype, k) = if self == Case::Bf16 { (DType::Bf16, 304) } else { (DType::E4m3, 592) };
                let blocks = if self == Case::Cluster { 2 } else { 1 };
                let fa: Vec<f32> = (0..m * k).map(number).collect();
                let fb: Vec<f32> = (0..n * k).map(|i| number(i / 3 + 5)).collect();
                let (a, b) = (tensor(dtype, &[m, k], &fa), tensor(dtype, &[n, k], &fb));
                let d = tensor(DType::Bf16, &[m, n], &vec![0.0; m * n]);
                let width = (128 / dtype.bytes(1)) as u32;
                let args = [
                    map("a", Access::In, &a, &[width, 64 / blocks], Swizzle::B128),
                    map("b", Access::In, &b, &[width, 64], Swizzle::B128),
                    map("d", Access::Out, &d, &[64, 64], Swizzle::B128),
                    SimArg::Word(k.div_ceil(width as usize) as u64),
                ];
                let found = execute(text, "gemm", shape([2, 1, 1], [blocks, 1, 1]), &args);
                let (fa, fb) = (values(&a), values(&b));
                let element = |i: usize| {
                    let (row, column) = (i / n, i % n);
                    let chain = (0..k).fold(0.0, |s, x| fa[row * k + x].mul_add(fb[column * k + x], s));
                    formats::decode_f32(DType::Bf16, formats::encode_f32(DType::Bf16, chain))
                };
                let right = values(&d) == (0..m * n).map(element).collect::<Vec<_>>();
                (found, right)
            }
            Case::Reduce => {
                let rows = 7;
                let fx: Vec<f32> = (0..rows * 512).map(number).collect();
                let (x, y) = (tensor(DType::F32, &[rows, 512], &fx), tensor(DType::F32, &[512], &[0.0; 512]));
                let args = [array("x", Access::In, &x), array("y", Access::Out, &y), SimArg::Word(rows as u64)];
                let found = execute(text, "reduce", shape([2, 1, 1], [2, 1, 1]), &args);
                let sum = |c: usize| (0..rows).map(|r| fx[r * 512 + c]).sum::<f32>();
                (found, values(&y) == (0..512).map(sum).collect::<Vec<_>>())
            }
            Case::Fragments => {
                let fa: Vec<f32> = (0..64 * 64).map(number).collect();
                let fb: Vec<f32> = (0..64 * 64).map(|i| number(i / 5 + 2)).collect();
                let (a, b) = (tensor(DType::Bf16, &[64, 64], &fa), tensor(DType::Bf16, &[1, 4, 16, 64], &fb));
                let d = tensor(DType::F32, &[64, 64], &[0.0; 4096]);
                let args = [
                    array("a", Access::In, &a),
                    map("b", Access::In, &b, &[64, 16, 4, 1], Swizzle::B128),
                    array("d", Access::Out, &d),
                ];
                let found = execute(text, "fragments", shape([1, 1, 1], [1, 1, 1]), &args);
                let element = |i: usize| (0..64).fold(0.0, |s, k| fa[i / 64 * 64 + k].mul_add(fb[k * 64 + i % 64], s));
                (found, values(&d) == (0..4096).map(element).collect::<Vec<_>>())
            }
            Case::Pieces => {
                let fa: Vec<f32> = (0..64 * 64).map(number).collect();
                let fb: Vec<f32> = (0..2 * 32 * 64).map(|i| number(i / 5 + 2)).collect();
                let (a, b) = (tensor(DType::F16, &[64, 64], &fa), tensor(DType::F16, &[2, 32, 64], &fb));
                let d = tensor(DType::Bf16, &[2, 64, 32], &[0.0; 2 * 64 * 32]);
                let read_back = tensor(DType::F32, &[1], &[0.0]);
                let args = [
                    array("a", Access::In, &a),
                    map("b", Access::In, &b, &[64, 32, 1], Swizzle::B128),
                    map("d", Access::Out, &d, &[32, 64, 1], Swizzle::B64),
                    array("d", Access::Out, &d),
                    array("check", Access::Out, &read_back),
                ];
                let found = execute(text, "pieces", shape([1, 1, 1], [1, 1, 1]), &args);
                let element = |i: usize| {
                    let chain = |s: f32, k: usize| fa[i / 32 * 64 + k].mul_add(fb[(32 + i % 32) * 64 + k], s);
                    let sum = (0..64).fold(0.0, chain);
                    formats::decode_f32(DType::Bf16, formats::encode_f32(DType::Bf16, sum))
                };
                let want: Vec<f32> = (0..64 * 32).map(element).collect();
                let got = values(&d);
                (found, got[64 * 32..] == want && got[0] == 0.0 && values(&read_back) == want[5..6])
            }
        }
    }
}

#[test]
fn correct_kernels_are_right_and_silent() {
    for case in Case::ALL {
        let (found, right) = case.run(&case.text());
        assert!(found.is_empty(), "{case:?}: {:#?}", found.list());
        assert!(right, "{case:?} gives other numbers");
    }
}

/// A change, and codes of which one must be found; without codes, the numbers must be wrong.
type Mutation = (Case, &'static str, &'static str, &'static [Code]);

fn check(mutations: &[Mutation]) {
    let mut missed = vec![];
    for &(case, from, to, codes) in mutations {
        let text = case.text();
        assert!(text.contains(from), "`{from}` is not in {case:?}");
        let (found, right) = case.run(&text.replacen(from, to, 1));
        let caught = if codes.is_empty() { !right } else { codes.iter().any(|&c| found.has(c)) };
        if !caught {
            let list: Vec<String> = found.list().iter().map(|f| format!("{}: {}", f.code, f.message)).collect();
            missed.push(format!("{case:?}: `{from}` -> `{to}`: expected {codes:?}, right {right}, found {list:#?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn ring() {
    check(&[
        (Case::E4m3, "if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * slot, lane);", "", &[Code::Deadlock]),
        (Case::E4m3, "mbar_wait(empty + 8 * slot, parity ^ 1);", "", &[Code::RaceWrite, Code::OverwriteBeforeConsumed]),
        (Case::E4m3, "mbar_wait(full + 8 * slot, parity);", "", &[Code::ReadBeforeComplete]),
        (Case::E4m3, "parity ^ 1);", "parity);", &[Code::Deadlock]),
        (
            Case::E4m3,
            "mbar_wait(full + 8 * slot, parity);",
            "mbar_wait(full + 8 * slot, parity ^ 1);",
            &[Code::ReadBeforeComplete],
        ),
        (
            Case::E4m3,
            "slot = 0; parity ^= 1; }\n            }\n        }",
            "slot = 0; }\n            }\n        }",
            &[Code::OverwriteBeforeConsumed, Code::MbarrierLapped, Code::Deadlock],
        ),
        (Case::E4m3, "SLOT_BYTES = A_BYTES + B_BYTES", "SLOT_BYTES = A_BYTES", &[Code::TxBytes]),
        (Case::E4m3, "SLOT_BYTES = A_BYTES + B_BYTES", "SLOT_BYTES = A_BYTES + B_BYTES + 16", &[Code::Deadlock]),
        (
            Case::E4m3,
            "mbar_arrive_expect_tx(full + 8 * slot, SLOT_BYTES);",
            "mbar_expect_tx(full + 8 * slot, SLOT_BYTES);",
            &[Code::Deadlock],
        ),
        (
            Case::E4m3,
            "base + B_RING + slot * B_BYTES, &map_b",
            "base + B_RING, &map_b",
            &[Code::RaceWrite, Code::UninitShared],
        ),
        (
            Case::E4m3,
            "mbar_init(empty + 8 * s, 4 * CLUSTER);",
            "mbar_init(empty + 8 * s, 1);",
            &[Code::OverwriteBeforeConsumed, Code::MbarrierArrivals],
        ),
        (Case::E4m3, "mbar_init(empty + 8 * s, 4 * CLUSTER);", "mbar_init(empty + 8 * s, 5);", &[Code::Deadlock]),
        (Case::E4m3, "mbar_init(full + 8 * s, 1);", "", &[Code::MbarrierInit]),
        (Case::E4m3, "mbar_init_fence();", "", &[Code::MbarrierInit]),
        (Case::E4m3, "    __syncthreads();", "", &[Code::MbarrierInit]),
        (
            Case::E4m3,
            "if (warp == 4 && elect_one()) {\n            u32",
            "if (warp == 4) {\n            u32",
            &[Code::MbarrierArrivals, Code::RaceWrite],
        ),
        (Case::E4m3, "if (lane < CLUSTER) mbar", "mbar", &[Code::ClusterRank, Code::MbarrierArrivals]),
        (Case::E4m3, "BARRIERS = STAGING + 64 * BN * 2", "BARRIERS = STAGING", &[Code::MbarrierTouched]),
        (Case::E4m3, "k_blocks; i++)", "k_blocks - 1; i++)", &[Code::Deadlock]),
    ]);
}

#[test]
fn products() {
    check(&[
        (Case::E4m3, "wgmma_wait<0>();", "", &[Code::OverwriteBeforeConsumed, Code::AccumulatorInFlight]),
        (
            Case::E4m3,
            "wgmma_wait<0>();",
            "wgmma_wait<1>();",
            &[Code::OverwriteBeforeConsumed, Code::AccumulatorInFlight],
        ),
        (Case::E4m3, "wgmma_commit();", "", &[Code::OverwriteBeforeConsumed, Code::AccumulatorInFlight]),
        (Case::E4m3, "wgmma_begin();", "", &[Code::WgmmaFence]),
        (Case::Fragments, "wgmma_begin();", "", &[Code::WgmmaFence]),
        (Case::Fragments, "wgmma_wait<0>();", "", &[Code::AccumulatorInFlight, Code::LeftRunning]),
        // A descriptor with a 64-byte swizzle.
        (
            Case::E4m3,
            "b = wgmma_tile(base + B_RING + slot * B_BYTES);",
            "b = wgmma_tile(base + B_RING + slot * B_BYTES) ^ 3ull << 62;",
            &[Code::Swizzle],
        ),
        (Case::E4m3, "b + step * 2", "b + step * 8", &[Code::Descriptor]),
        (
            Case::E4m3,
            "const u64 a = wgmma_tile(base + A_RING + slot * A_BYTES)",
            "const u64 a = wgmma_tile(base + A_RING + slot * A_BYTES) + (warp == 1)",
            &[Code::Warpgroup],
        ),
        (
            Case::E4m3,
            "wgmma_wait<0>();\n                    wgmma_pin(d);\n                    if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * slot, lane);  // release",
            "if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * slot, lane);\n wgmma_wait<0>();\n wgmma_pin(d);",
            &[Code::OverwriteBeforeConsumed],
        ),
        (Case::Bf16, "wgmma_wait<1>();", "wgmma_wait<2>();", &[Code::OverwriteBeforeConsumed]),
        (
            Case::Bf16,
            "empty + 8 * previous, lane);\n                    previous",
            "empty + 8 * slot, lane);\n                    previous",
            &[Code::Deadlock, Code::OverwriteBeforeConsumed],
        ),
        (Case::Bf16, "wgmma_wait<0>();  // all", "", &[Code::AccumulatorInFlight, Code::OverwriteBeforeConsumed]),
        (Case::Pieces, "async_proxy_fence();  // operand", "", &[Code::ProxyFence]),
        (Case::Pieces, "named_barrier_arrive(1, 256);", "", &[Code::DivergentBarrier]),
        (Case::Pieces, "named_barrier_arrive(1, 256);", "named_barrier_arrive(1, 128);", &[Code::BarrierCount]),
        (Case::Pieces, "named_barrier_sync(1, 256);", "", &[Code::RaceRead, Code::UninitShared]),
        (Case::Pieces, "left = wgmma_tile(base + A)", "left = wgmma_tile(base + A + 128)", &[Code::Descriptor]),
        (Case::Pieces, "left = wgmma_tile(base + A)", "left = wgmma_tile(base + A + 240 * 1024)", &[Code::SharedRange]),
        (Case::Pieces, "/ 2 ^ row % 8)", "/ 2)", &[]),
        (Case::E4m3, "registers_shrink<40>();", "registers_shrink<152>();", &[Code::Deadlock]),
        (Case::E4m3, "registers_shrink<40>();", "registers_shrink<41>();", &[Code::Registers]),
        (Case::Fragments, "mbar_wait(bar, 0);", "", &[Code::ReadBeforeComplete]),
        (Case::Fragments, "mbar_expect_tx(bar, 64 * 128);", "", &[Code::TxBytes]),
        // Everything is in order; only the numbers are wrong.
        (Case::Fragments, "bar, 0, 0, 0, 0)", "bar, 0, 0, 1, 0)", &[]),
    ]);
}

#[test]
fn stores() {
    check(&[
        (Case::E4m3, "async_proxy_fence();", "", &[Code::ProxyFence]),
        (Case::E4m3, "named_barrier_sync(1, 128);  // staging is full", "", &[Code::RaceRead, Code::UninitShared]),
        (Case::E4m3, "named_barrier_sync(1, 128);  // staging is free", "", &[Code::OverwriteBeforeConsumed]),
        (
            Case::E4m3,
            "if (threadIdx.x == 0) tma_store_wait_read<0>();  // before reuse",
            "",
            &[Code::OverwriteBeforeConsumed],
        ),
        (Case::E4m3, "if (threadIdx.x == 0) tma_store_wait_read<0>();  // at the end", "", &[Code::LeftRunning]),
        (Case::E4m3, "tma_store_commit();", "", &[Code::OverwriteBeforeConsumed, Code::LeftRunning]),
        (
            Case::E4m3,
            "named_barrier_sync(1, 128);  // staging is free",
            "named_barrier_sync(1, 160);",
            &[Code::Deadlock, Code::BarrierCount],
        ),
        (Case::Pieces, "async_proxy_fence();  // staging", "", &[Code::ProxyFence]),
        (Case::Pieces, "tma_store_wait<0>();", "tma_store_wait_read<0>();", &[Code::ReadBeforeComplete]),
        (Case::Pieces, "base + STAGING, 0, 0, 1);", "base + STAGING - 64, 0, 0, 1);", &[Code::Misaligned]),
        (
            Case::Pieces,
            "&map_b, bar, 0, 0, 1, l2_evict_first());",
            "&map_d, bar, 0, 0, 1, l2_evict_first());",
            &[Code::UninitGlobal],
        ),
        (
            Case::Pieces,
            "tma_load_3d_hint(base + B, &map_b, bar, 0, 0, 1,",
            "tma_load_2d_hint(base + B, &map_b, bar, 0, 0,",
            &[Code::TensorMap],
        ),
        (Case::Pieces, "STAGING + 64 * 64;", "STAGING + 64 * 64 - 4;", &[Code::Misaligned]),
        (Case::Pieces, "mbar_init(bar, 1);", "mbar_init(bar, 1); mbar_init(bar, 1);", &[Code::MbarrierInit]),
        (Case::E4m3, "(blockIdx.y * TILES + tile) * 64);", "blockIdx.y * 64);", &[Code::RaceWrite]),
        (
            Case::E4m3,
            "tma_store_2d(&map_d, base + STAGING,",
            "tma_store_2d(&map_a, base + STAGING,",
            &[Code::GlobalReadonly],
        ),
    ]);
}

#[test]
fn clusters() {
    check(&[
        (Case::Cluster, "(1 << CLUSTER) - 1);", "1 << rank);", &[Code::Deadlock]),
        (
            Case::Cluster,
            "mbar_wait(full + 8 * slot, parity);",
            "if (rank == 0) mbar_wait(full + 8 * slot, parity);",
            &[Code::ReadBeforeComplete],
        ),
        (
            Case::Cluster,
            "mbar_init(empty + 8 * s, 4 * CLUSTER);",
            "mbar_init(empty + 8 * s, 4);",
            &[Code::OverwriteBeforeConsumed, Code::MbarrierArrivals],
        ),
        (
            Case::Cluster,
            "if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * slot, lane);",
            "if (lane == 0) mbar_arrive_cluster(empty + 8 * slot, rank);",
            &[Code::Deadlock],
        ),
        (Case::Cluster, "{ cluster_arrive_relaxed(); cluster_wait(); }  // at the end", "{}", &[Code::ExitedBlock]),
        (Case::Cluster, "{ cluster_arrive_relaxed(); cluster_wait(); }  // set up", "{}", &[Code::MbarrierInit]),
        (
            Case::Cluster,
            "{ cluster_arrive_relaxed(); cluster_wait(); }  // set up",
            "{ cluster_wait(); }",
            &[Code::ClusterBarrier],
        ),
        (
            Case::Cluster,
            "SLOT_BYTES = A_BYTES + B_BYTES",
            "SLOT_BYTES = SHARE + B_BYTES",
            &[Code::TxBytes, Code::ReadBeforeComplete],
        ),
        (Case::Cluster, "slot * A_BYTES + rank * SHARE", "slot * A_BYTES", &[Code::RaceWrite, Code::UninitShared]),
        (Case::Cluster, "(1 << CLUSTER) - 1);", "7);", &[Code::ClusterRank]),
        (Case::Reduce, "mbar_wait(base + BARRIER, 0);", "", &[Code::ReadBeforeComplete]),
        (Case::Reduce, "rank == 0 ? 128 * 16 : 0", "rank == 0 ? 127 * 16 : 0", &[Code::TxBytes]),
        (Case::Reduce, "rank == 0 ? 128 * 16 : 0", "rank == 0 ? 129 * 16 : 0", &[Code::Deadlock]),
        (
            Case::Reduce,
            "cluster_address(base + BARRIER, 0)",
            "cluster_address(base + BARRIER, 1)",
            &[Code::ClusterRank],
        ),
        (Case::Reduce, "cluster_arrive_relaxed();\n    cluster_wait();", "", &[Code::MbarrierInit, Code::ExitedBlock]),
        (
            Case::Reduce,
            "base + INBOX + threadIdx.x * 16, 0)",
            "base + INBOX + threadIdx.x / 2 * 16, 0)",
            &[Code::RaceWrite, Code::UninitShared],
        ),
    ]);
}

#[test]
fn reports_name_the_source_line_and_the_wait() {
    let text = Case::E4m3.text();
    let (found, _) = Case::E4m3.run(&text.replacen("wgmma_begin();", "", 1));
    let found = found.list().iter().find(|f| f.code == Code::WgmmaFence).expect("found").clone();
    let shown = Lines::of(&text).diagnostic(&found).to_string();
    assert!(shown.contains("error[S0830]: WGMMA_FENCE") && shown.contains("--> gemm.rs:20:9"), "{shown}");
    let (found, _) = Case::E4m3.run(&text.replacen("SLOT_BYTES = A_BYTES + B_BYTES", "SLOT_BYTES = 16", 1));
    assert!(!found.is_empty());
    let (found, _) = Case::E4m3.run(&text.replacen("A_BYTES + B_BYTES;", "A_BYTES + B_BYTES + 16;", 1));
    let dead = found.list().iter().find(|f| f.code == Code::Deadlock).expect("a deadlock");
    assert!(dead.message.contains("phase 0, 0 of 1 arrivals missing, 16 bytes outstanding"), "{}", dead.message);
}

#[test]
fn the_compiler_takes_the_same_texts() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut settings = Settings::from_env();
    settings.cache_dirs = vec![dir.path().to_path_buf()];
    let compiler = match toolchain::ensure(&settings).expect("CI has a compiler") {
        Availability::Ready(t) => t,
        Availability::Skip(why) => return println!("skip: {why}"),
    };
    for case in Case::ALL {
        let signature = Signature { entry: case.entry().into(), args: vec![] };
        let (threads, shared_bytes) = (case.threads(), case.shared_bytes());
        let source = Source {
            text: case.text(),
            signature,
            threads,
            shared_bytes,
            cluster: [1; 3],
            cooperative: false,
            dependent_launch: false,
            grid: GridPlan::Blocks,
            npu: None,
        };
        let (_, report) = compiler.compile_source(&source, case.entry(), "sm_90a").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.spill_bytes, report.stack_bytes), (0, 0), "{case:?}");
        assert!(report.missed().is_empty(), "{case:?}: {report:?}");
    }
}
