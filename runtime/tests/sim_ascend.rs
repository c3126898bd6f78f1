//! Hand-written AscendC texts on the model of an AI core: they run without findings and give the numbers of plain
//! arithmetic, every event, flag and barrier that is taken out of them is missed by the machine, other mutations are caught
//! with their codes, and each rule has a kernel that breaks it.

#![allow(clippy::print_stdout, reason = "a skip says why")]

use kiln_codegen::abi::TensorView;
use kiln_codegen::formats;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{Access, DType};
use kiln_codegen::machine::ascend::Arch;
use kiln_codegen::machine::{Code, Findings};
use kiln_runtime::Settings;
use kiln_runtime::device::sim::ascend::{Argument, Program, Report, run};
use kiln_runtime::device::sim::{Exploration, HostCompiler, SimError};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

fn compiler() -> HostCompiler {
    HostCompiler::new(&Settings::from_env(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim"))
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

fn array(name: &str, access: Access, view: &TensorView) -> Argument {
    Argument::Tensor { name: name.into(), access, view: view.clone() }
}

fn bf16(x: f32) -> f32 {
    formats::decode_f32(DType::Bf16, formats::encode_f32(DType::Bf16, x))
}

/// One of the kernels with its problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Registers, a scalar result, unaligned stores.
    Rows3510,
    /// Instructions on memory, a reduction tree.
    Rows2201,
    /// A product with its accumulators sent to both vector cores.
    Product3510,
    /// The same through a workspace.
    Product2201,
}

impl Case {
    const ALL: [Case; 4] = [Case::Rows3510, Case::Rows2201, Case::Product3510, Case::Product2201];

    fn text(self) -> &'static str {
        match self {
            Case::Rows3510 => include_str!("ascend_texts/rows.3510.asc"),
            Case::Rows2201 => include_str!("ascend_texts/rows.2201.asc"),
            Case::Product3510 => include_str!("ascend_texts/product.3510.asc"),
            Case::Product2201 => include_str!("ascend_texts/product.2201.asc"),
        }
    }

    fn entry(self) -> &'static str {
        match self {
            Case::Rows3510 => "rows_f32",
            Case::Rows2201 => "rows_f16",
            Case::Product3510 => "product_bf16",
            Case::Product2201 => "product_f16",
        }
    }

    fn arch(self) -> Arch {
        match self {
            Case::Rows3510 | Case::Product3510 => Arch::A3510,
            Case::Rows2201 | Case::Product2201 => Arch::A2201,
        }
    }

    fn load(self, text: &str) -> Arc<Program> {
        compiler().load_ascend(text, self.entry(), self.arch()).unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// Runs a program in this case's place, with further scalars: what was found, and whether the numbers are right.
    fn run(self, program: &Program, blocks: u32, more: &[u64], schedules: usize) -> (Report, bool) {
        let number = |i: usize| (i * 7 % 23) as f32 * 0.25 - 2.75;
        let by = Exploration { spin_limit: 400_000, ..Exploration::new(schedules) };
        let go = |mut args: Vec<Argument>| {
            args.extend(more.iter().map(|&w| Argument::Word(w)));
            run(program, blocks, &args, &by).unwrap_or_else(|e| panic!("{e}"))
        };
        match self {
            Case::Rows3510 => {
                let (t, h) = (6, 200);
                // The last row has nothing above zero.
                let fx: Vec<f32> =
                    (0..t * h).map(|i| number(i + i / h) - if i / h == t - 1 { 9.0 } else { 0.0 }).collect();
                let (x, y) = (tensor(DType::F32, &[t, h], &fx), tensor(DType::Bf16, &[t, h], &vec![0.0; t * h]));
                let idx = tensor(DType::I32, &[t, h], &vec![-5.0; t * h]);
                let count = tensor(DType::U32, &[t], &vec![0.0; t]);
                let report = go(vec![
                    array("x", Access::In, &x),
                    array("y", Access::Out, &y),
                    array("idx", Access::Out, &idx),
                    array("count", Access::Out, &count),
                    Argument::Word(t as u64),
                ]);
                let (gy, gi, gc) = (values(&y), values(&idx), values(&count));
                let right = (0..t).all(|r| {
                    let row = &fx[r * h..(r + 1) * h];
                    let top = row.iter().fold(0f32, |a, b| a.max(b.abs()));
                    let mut at: Vec<f32> = (0..h).filter(|&c| row[c] > 0.0).map(|c| c as f32).collect();
                    let n = at.len();
                    at.resize(h, -5.0);
                    (0..h).all(|c| gy[r * h + c] == bf16(row[c] / top))
                        && gi[r * h..(r + 1) * h] == at
                        && gc[r] == n as f32
                });
                (report, right)
            }
            Case::Rows2201 => {
                let (t, h) = (6, 200);
                let fx: Vec<f32> = (0..t * h).map(|i| number(i + i / h) + 3.0).collect();
                let (x, y) = (tensor(DType::F16, &[t, h], &fx), tensor(DType::Bf16, &[t, h], &vec![0.0; t * h]));
                let report =
                    go(vec![array("x", Access::In, &x), array("y", Access::Out, &y), Argument::Word(t as u64)]);
                // All sums of these numbers are exact, whatever their order.
                let got = values(&y);
                let sum = |r: usize| fx[r * h..(r + 1) * h].iter().sum::<f32>();
                (report, (0..t * h).all(|i| got[i] == bf16(fx[i] / sum(i / h))))
            }
            Case::Product3510 | Case::Product2201 => {
                // Tails along all three axes; three blocks of k for two slots.
                let (m, n, k, scale) = (43, 100, 150, 0.5f32);
                let dtype = if self == Case::Product3510 { DType::Bf16 } else { DType::F16 };
                let fa: Vec<f32> = (0..m * k).map(number).collect();
                let fb: Vec<f32> = (0..n * k).map(|i| number(i / 3 + 5)).collect();
                let (a, b) = (tensor(dtype, &[m, k], &fa), tensor(dtype, &[n, k], &fb));
                let c = tensor(DType::F32, &[m, n], &vec![0.0; m * n]);
                let mut args =
                    vec![array("a", Access::In, &a), array("b", Access::In, &b), array("c", Access::Out, &c)];
                if self == Case::Product2201 {
                    args.push(Argument::Workspace { bytes: 2 * 32 * 48 * 4 * blocks as usize });
                }
                args.extend([m, n, k].map(|x| Argument::Word(x as u64)));
                args.push(Argument::Word(u64::from(scale.to_bits())));
                let report = go(args);
                let element =
                    |i: usize| scale * (0..k).fold(0.0, |s, x| fa[i / n * k + x].mul_add(fb[i % n * k + x], s));
                (report, values(&c) == (0..m * n).map(element).collect::<Vec<_>>())
            }
        }
    }
}

fn messages(found: &Findings) -> Vec<String> {
    found.list().iter().map(|f| format!("line {} (and {}): {}: {}", f.line, f.other, f.code, f.message)).collect()
}

#[test]
fn correct_kernels_are_right_and_silent() {
    for case in Case::ALL {
        let program = case.load(case.text());
        for blocks in [1, 2, 5] {
            let (report, right) = case.run(&program, blocks, &[], 8);
            assert!(report.findings.is_empty(), "{case:?}: {:#?}", messages(&report.findings));
            assert!(right, "{case:?} gives other numbers");
            let moved = report.stats.pipes.iter().map(|p| p.bytes).sum::<u64>();
            assert!(moved > 0 && report.stats.flags > 0, "{:?}", report.stats);
            let text = report.stats.to_string();
            assert!(text.starts_with("model: pipe ") && text.lines().all(|l| l.starts_with("model: ")), "{text}");
        }
    }
}

#[test]
fn texts_compile_without_warnings() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("kernel_operator.h"), Program::header()).expect("a file");
    let compiler = compiler();
    for case in Case::ALL {
        let path = dir.path().join("kernel.asc");
        std::fs::write(&path, case.text()).expect("a file");
        let output = std::process::Command::new(&compiler.command)
            .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"])
            .arg(format!("-D__NPU_ARCH__={}", case.arch().number()))
            .arg("-isystem")
            .arg(dir.path())
            .arg(&path)
            .output()
            .expect("a compiler");
        assert!(output.status.success(), "{case:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Starts of the statements that only order others.
const ORDERS: [&str; 7] = [
    "SetFlag<",
    "WaitFlag<",
    "CrossCoreSetFlag<",
    "CrossCoreWaitFlag<",
    "PipeBarrier<PIPE_V>",
    "PipeBarrier<PIPE_M>",
    "Reg::LocalMemBar<",
];

/// A text whose ordering statements can be left out one or two at a time, by a further scalar, and these statements.
fn droppable(text: &str) -> (String, Vec<String>) {
    let mut dropped = vec![];
    let mut out = String::new();
    for line in text.lines() {
        let code = line.trim();
        if ORDERS.iter().any(|o| code.starts_with(o))
            && code.split("//").next().is_some_and(|c| c.trim().ends_with(';'))
        {
            dropped.push(code.split("//").next().unwrap_or(code).trim().to_string());
            let n = dropped.len();
            out += &format!("if (first_dropped != {n} && second_dropped != {n}) {{ {} }}\n", dropped[n - 1]);
        } else {
            out += line;
            out.push('\n');
        }
    }
    out = out.replacen(
        "using namespace AscendC;",
        "using namespace AscendC; static __thread uint32_t first_dropped, second_dropped;",
        1,
    );
    let head = ")\n{\n    InitSocState();";
    assert!(out.contains(head), "an entry");
    let new =
        ", uint32_t dropped)\n{\n    first_dropped = dropped & 0xffff; second_dropped = dropped >> 16; InitSocState();";
    (out.replacen(head, new, 1), dropped)
}

#[test]
fn every_event_flag_and_barrier_is_needed() {
    let mut missed = vec![];
    let (mut singles, mut pairs) = (0, 0);
    for case in Case::ALL {
        let (text, statements) = droppable(case.text());
        let program = case.load(&text);
        let (report, right) = case.run(&program, 1, &[0], 1);
        assert!(report.findings.is_empty() && right, "{case:?} as it is: {:#?}", messages(&report.findings));
        let mut check = |dropped: &[usize], schedules: usize| {
            let word = dropped.iter().rev().fold(0, |w, &i| w << 16 | (i as u64 + 1));
            let (report, right) = case.run(&program, 1, &[word], schedules);
            let names: Vec<&str> = dropped.iter().map(|&i| statements[i].as_str()).collect();
            let implied = IMPLIED.contains(&(case, dropped));
            if implied != (report.findings.is_empty() && right) {
                missed.push(format!(
                    "{case:?} without {dropped:?} {names:?}: right {right}, {:#?}",
                    messages(&report.findings)
                ));
            }
        };
        for i in 0..statements.len() {
            singles += 1;
            check(&[i], 1);
        }
        // A set with its wait: nothing is out of balance then, only out of order.
        let key = |s: &str| {
            let inside = if s.starts_with("Cross") { "" } else { s.split(['<', '>']).nth(1).unwrap_or("") };
            (inside.to_string(), s.rsplit('(').next().unwrap_or("").to_string())
        };
        let sets = |s: &str| s.starts_with("SetFlag") || s.starts_with("CrossCoreSetFlag");
        let waits = |s: &str| s.starts_with("WaitFlag") || s.starts_with("CrossCoreWaitFlag");
        let mut seen = BTreeSet::new();
        for (i, j) in (0..statements.len()).flat_map(|i| (0..statements.len()).map(move |j| (i, j))) {
            let (a, b) = (&statements[i], &statements[j]);
            if sets(a) && waits(b) && key(a) == key(b) && seen.insert((i, j)) {
                pairs += 1;
                check(&[i, j], 2);
            }
        }
    }
    println!("{singles} statements and {pairs} pairs left out");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Statements, by their numbers, whose order others imply.
const IMPLIED: [(Case, &[usize]); 5] = [
    // The scalar unit waits for pipe V in every row before it issues the copies out and the next row's copy in.
    (Case::Rows3510, &[8, 16]),
    (Case::Rows3510, &[10, 4]),
    (Case::Rows3510, &[11, 18]),
    // The indices of a row leave after its numbers, through the same pipe, and the next row waits for them.
    (Case::Rows3510, &[17, 7]),
    // Pipe V waits for a copy that has waited for it.
    (Case::Rows2201, &[0]),
];

/// A change, and codes of which one must be found; without codes, the numbers must be wrong.
type Mutation = (Case, &'static str, &'static str, &'static [Code]);

#[test]
fn mutations_are_caught() {
    use Code::{
        EventBalance, LocalRange, Misaligned, OverwriteBeforeConsumed, Parameter, PipeBarrier, RaceRead, RaceWrite,
        Undefined,
    };
    let mutations: [Mutation; 18] = [
        // One element further.
        (Case::Rows3510, "y + i * VL, narrow", "y + i * VL + 1, narrow", &[Misaligned]),
        (Case::Rows3510, "x + i * VL);\n        Reg::Abs", "x + i * VL + 8);\n        Reg::Abs", &[]),
        (
            Case::Rows2201,
            "DataCopyPad(gY[static_cast<uint64_t>(row) * H]",
            "DataCopyPad(gY[static_cast<uint64_t>(row) * H + 1]",
            &[Code::GlobalRange],
        ),
        (
            Case::Product3510,
            "gA[static_cast<uint64_t>(m0) * k + kb * BK]",
            "gA[static_cast<uint64_t>(m0) * k + kb * BK + 1]",
            &[Code::GlobalRange],
        ),
        // One side uses the other buffer.
        (
            Case::Rows3510,
            "DataCopyPad(gY[static_cast<uint64_t>(row) * H], y, out);",
            "DataCopyPad(gY[static_cast<uint64_t>(row) * H], LocalTensor<bfloat16_t>(TPosition::VECOUT, UB_Y + (1 - slot) * YROW, STEPS * VL), out);",
            &[OverwriteBeforeConsumed, Undefined],
        ),
        (
            Case::Product3510,
            "part(TPosition::VECIN, UB_PART + oc * HALF * BN * 4, HALF * BN);\n        CrossCoreWaitFlag",
            "part(TPosition::VECIN, UB_PART + (1 - oc) * HALF * BN * 4, HALF * BN);\n        CrossCoreWaitFlag",
            &[RaceRead, Undefined],
        ),
        (
            Case::Product2201,
            "ws + oc * WS_SLOT));\n        CrossCoreWaitFlag",
            "ws + (1 - oc) * WS_SLOT));\n        CrossCoreWaitFlag",
            &[RaceRead, Undefined],
        ),
        // Memories that are too small, or meet.
        (
            Case::Rows3510,
            "idx(TPosition::VECOUT, UB_IDX,",
            "idx(TPosition::VECOUT, UB_IDX + 247 * 1024,",
            &[LocalRange],
        ),
        (
            Case::Product2201,
            "part(TPosition::VECIN, UB_PART,",
            "part(TPosition::VECIN, UB_PART + 192 * 1024 - 3072,",
            &[LocalRange],
        ),
        (Case::Rows3510, "UB_COUNT = UB_IDX + XROW;", "UB_COUNT = UB_IDX;", &[]),
        (
            Case::Product3510,
            "UB_OUT = UB_PART + 2 * HALF * BN * 4;",
            "UB_OUT = UB_PART + 2 * HALF * BN * 4 - 32;",
            &[RaceRead, RaceWrite, OverwriteBeforeConsumed, PipeBarrier],
        ),
        // The left operand as the other chip has it.
        (
            Case::Product2201,
            "ld.startIndex = i;\n                LoadData(aL0[i * kFr * 256], aL1, ld);",
            "ld.startIndex = i * kFr; ld.srcStride = 1;\n                LoadData(aL0[i * kFr * 256], aL1, ld);",
            &[],
        ),
        (Case::Product3510, "ld.dstStride = BM / 16;", "ld.dstStride = 1;", &[RaceWrite, Undefined]),
        // A ring whose end is skipped, and one whose trips are.
        (
            Case::Rows2201,
            "for (uint32_t s = 0; s < RING; ++s) {\n        WaitFlag",
            "for (uint32_t s = 0; s < RING - 1; ++s) {\n        WaitFlag",
            &[EventBalance],
        ),
        (
            Case::Product3510,
            "tile < tiles; tile += GetBlockNum(), ++out) {\n        const uint32_t m0 = tile / tilesN * BM + sub",
            "tile + 1 < tiles; tile += GetBlockNum(), ++out) {\n        const uint32_t m0 = tile / tilesN * BM + sub",
            &[Code::CrossFlag, Code::Deadlock],
        ),
        // Parts that hold nothing, and a field that says so.
        (Case::Rows3510, "DataCopyExtParams in{1, H * 4,", "DataCopyExtParams in{1, H * 4 - 4,", &[Undefined]),
        (Case::Product3510, "mm.m = BM;", "mm.m = 1;", &[Parameter]),
        (Case::Product2201, "cp.dstStride = (n - cols) * 4;", "cp.dstStride = 0;", &[]),
    ];
    let mut missed = vec![];
    for (case, from, to, codes) in mutations {
        assert!(case.text().contains(from), "`{from}` is not in {case:?}");
        let (report, right) = case.run(&case.load(&case.text().replacen(from, to, 1)), 1, &[], 4);
        let found = &report.findings;
        let caught = if codes.is_empty() { !right } else { codes.iter().any(|&c| found.has(c)) };
        if !caught {
            missed.push(format!(
                "{case:?}: `{from}` -> `{to}`: expected {codes:?}, right {right}, {:#?}",
                messages(found)
            ));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Runs case after case of a text and compares what is found with what should be.
fn each_rule(
    text: &str,
    entry: &str,
    arch: Arch,
    blocks: u32,
    args: &dyn Fn() -> Vec<Argument>,
    rules: &[Option<Code>],
) {
    let program = compiler().load_ascend(text, entry, arch).unwrap_or_else(|e| panic!("{e}"));
    let mut wrong = vec![];
    for (which, &rule) in rules.iter().enumerate() {
        let mut args = args();
        args.push(Argument::Word(which as u64));
        let by = Exploration { spin_limit: 3000, ..Exploration::new(2) };
        let found = run(&program, blocks, &args, &by).unwrap_or_else(|e| panic!("{e}")).findings;
        let right = match rule {
            None => found.is_empty(),
            Some(code) => found.has(code) && found.list().iter().filter(|f| f.code == code).all(|f| f.line > 0),
        };
        if !right {
            wrong.push(format!("{entry} {which}: expected {rule:?}, {:#?}", messages(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_rule_has_a_kernel_that_breaks_it() {
    use Code::{
        BlockRace, CoreKind, CrossFlag, Deadlock, EventBalance, EventId, GlobalRange, GlobalReadonly, LocalRange,
        Misaligned, OperandOverlap, OverwriteBeforeConsumed, Parameter, PipeBarrier, RaceRead, SpinLimit,
        UnalignedStore, Undefined, UninitGlobal,
    };
    let two = || {
        let (x, y) = (tensor(DType::F32, &[64], &[1.0; 64]), tensor(DType::F32, &[64], &[0.0; 64]));
        vec![array("x", Access::In, &x), array("y", Access::Out, &y)]
    };
    let vector = [
        None,
        Some(RaceRead),
        Some(OverwriteBeforeConsumed),
        Some(EventBalance),
        Some(EventBalance),
        Some(EventBalance),
        Some(EventBalance),
        Some(EventId),
        Some(EventId),
        Some(LocalRange),
        Some(LocalRange),
        Some(Misaligned),
        Some(Misaligned),
        Some(LocalRange),
        Some(PipeBarrier),
        Some(Undefined),
        Some(UnalignedStore),
        Some(UnalignedStore),
        Some(Undefined),
        Some(Undefined),
        Some(Parameter),
        Some(GlobalReadonly),
        Some(GlobalRange),
        None,
        Some(RaceRead),
        Some(CoreKind),
        Some(CrossFlag),
        Some(SpinLimit),
        Some(UninitGlobal),
        Some(Parameter),
    ];
    let text = include_str!("ascend_texts/wrong_vector.3510.asc");
    each_rule(text, "wrong_vector", Arch::A3510, 1, &two, &vector);
    // With two blocks the right one races: both write all of y.
    each_rule(text, "wrong_vector", Arch::A3510, 2, &two, &[Some(BlockRace)]);
    let product = || {
        let (a, y) = (tensor(DType::F16, &[256], &[1.0; 256]), tensor(DType::F32, &[256], &[0.0; 256]));
        vec![array("a", Access::In, &a), array("y", Access::Out, &y)]
    };
    let mixed = [
        None,
        Some(RaceRead),
        Some(Deadlock),
        Some(CrossFlag),
        Some(CrossFlag),
        Some(EventId),
        Some(EventId),
        Some(Parameter),
        Some(PipeBarrier),
        Some(Parameter),
        Some(Parameter),
        Some(Parameter),
        Some(Parameter),
        Some(Parameter),
        Some(LocalRange),
        Some(CoreKind),
        Some(Deadlock),
    ];
    each_rule(include_str!("ascend_texts/wrong_mixed.3510.asc"), "wrong_mixed", Arch::A3510, 1, &product, &mixed);
    let one = || vec![array("y", Access::Out, &tensor(DType::F32, &[64], &[0.0; 64]))];
    let memory = [
        None,
        Some(PipeBarrier),
        Some(PipeBarrier),
        Some(OperandOverlap),
        Some(Misaligned),
        Some(Parameter),
        Some(Parameter),
        Some(LocalRange),
        Some(Parameter),
    ];
    each_rule(include_str!("ascend_texts/wrong_vector.2201.asc"), "wrong_vector", Arch::A2201, 1, &one, &memory);
}

#[test]
fn a_chip_has_only_its_own_instructions() {
    let refused = |text: &str, entry: &str, arch: Arch| {
        let e = compiler().load_ascend(text, entry, arch).err().map(|e| matches!(e, SimError::Refused { .. }));
        assert_eq!(e, Some(true), "{entry} for {arch:?}");
    };
    for case in Case::ALL {
        let other = if case.arch() == Arch::A2201 { Arch::A3510 } else { Arch::A2201 };
        refused(case.text(), case.entry(), other);
    }
    let body = |statement: &str| {
        format!(
            "#include \"kernel_operator.h\"\nusing namespace AscendC;\nextern \"C\" __global__ __mix__(1, 2) void k()\n{{ {statement} }}\n"
        )
    };
    let fp8 = "Mmad(LocalTensor<float>(TPosition::CO1, 0, 1), LocalTensor<fp8_e4m3fn_t>(TPosition::A2, 0, 1), \
               LocalTensor<fp8_e4m3fn_t>(TPosition::B2, 0, 1), MmadParams());";
    refused(&body(fp8), "k", Arch::A2201);
    refused(&body("CrossCoreSetFlag<4, PIPE_FIX>(0);"), "k", Arch::A2201);
    refused(&body("PipeBarrier<PIPE_MTE2>();"), "k", Arch::A3510);
    refused(&body("TPipe pipe;"), "k", Arch::A3510);
}
