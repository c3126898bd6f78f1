//! Every operator on the modelled Ascend chips: golden cases, judged as everywhere, on `sim:ascend950` and `sim:ascend910b`.
//!
//! What a chip or its text has no form for is refused with a code. Which cases are, and why, is listed here, so that a new
//! refusal fails and a case that starts to run leaves the list. With `SLOW=1` the declared cases of the operators run too. A
//! second test compiles the texts with warnings as errors, as a strict compiler would.

#![allow(clippy::print_stdout, reason = "what ran, and what it cost, is named in the test's output")]

#[path = "golden/cases.rs"]
mod cases;
#[path = "golden/device.rs"]
mod device;
#[path = "golden/vm.rs"]
#[allow(dead_code, reason = "only inputs of declared cases are made here")]
mod tile_vm;

use cases::Golden;
use device::{bound, place, run, simulator};
use kiln_codegen::compile;
use kiln_codegen::spec::{DefaultConfigs, HostProblem, OpSpec};
use kiln_codegen::target::Target;
use kiln_runtime::device::sim::ascend::Program;
use kiln_runtime::{Settings, open_with};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Cases that a target refuses: an operator for all of its cases, or one case, with the reason.
const REFUSED_950: Refused = &[
    ("gemm_fp8.fp8xfp4", "elements of 4 bits have no Ascend form yet"),
    ("gemm_fp8.fp8xfp4_gran32", "elements of 4 bits have no Ascend form yet"),
    ("gemm_k_grouped", "a left operand stored by columns"),
    ("indexer_logits_fp4", "elements of 4 bits have no Ascend form yet"),
    ("indexer_logits_fp8.paged_next_n2", "the cube core needs a number that only vector cores know"),
    ("indexer_logits_fp8.paged_next_n3_zero_context", "the cube core needs a number that only vector cores know"),
    ("mhc_pre", "this index has no Ascend form in an element loop"),
    ("mla_decode_sparse.v41fp4_basic", "needs 274720 bytes of UB, 253952 are there"),
    ("moe_gate.mask_fixed_physical_tp", "vector code does not read i64"),
    ("quant_lossless_fp4_to_fp8", "elements of 4 bits have no Ascend form yet"),
    ("quant_per_token_fp4", "elements of 4 bits have no Ascend form yet"),
    ("sampling.mixed_batch", "vector registers have no conversion from u32 to i64"),
];

/// The same of arch 2201, whose cube and vector unit know no 8-bit floats, and whose vector code works on memory.
const REFUSED_910B: Refused = &[
    ("attention_sliding_window", "the vector unit of arch 2201 gives elements no numbers here"),
    ("einsum.fp8_bhr_hdr_bhd_plain_f32_scales", "the cube of arch 2201 does not multiply e4m3"),
    ("engram_gate", "a scalar reduction has no form on memory vectors yet"),
    ("gemm_fp8", "the cube of arch 2201 does not multiply e4m3"),
    ("gemm_k_grouped", "the cube of arch 2201 does not multiply e4m3"),
    ("gemm_m_grouped_contiguous", "the cube of arch 2201 does not multiply e4m3"),
    ("gemm_m_grouped_masked", "the cube of arch 2201 does not multiply e4m3"),
    ("gemm_tf32_hc_prenorm", "`a_s` is made by vector code, which arch 2201 cannot hand to the cube yet"),
    ("indexer_logits_fp4", "elements of 4 bits have no Ascend form yet"),
    ("indexer_logits_fp8", "the cube of arch 2201 does not multiply e4m3"),
    ("kv_cache_pack", "the vector unit of arch 2201 has no conversion from f32 to e4m3"),
    ("kv_cache_write", "the vector unit of arch 2201 has no conversion from f32 to e4m3"),
    ("kv_compressor", "`var` has no form on memory vectors yet"),
    ("mha_prefill_dense", "the vector unit of arch 2201 gives elements no numbers here"),
    ("mhc_pre", "`r_s` is made by vector code, which arch 2201 cannot hand to the cube yet"),
    ("mhc_sinkhorn", "elements that do not follow each other have no form on memory vectors"),
    ("mla_decode_dense", "`q` is made by vector code, which arch 2201 cannot hand to the cube yet"),
    ("mla_decode_sparse", "elements at computed places have no form on memory vectors"),
    ("mla_prefill_sparse", "`k` is made by vector code, which arch 2201 cannot hand to the cube yet"),
    ("moe_expand_reduce", "`fma` of rows has no form on memory vectors yet"),
    ("moe_gate", "`compare` of rows has no form on memory vectors yet"),
    ("moe_group_topk", "memory vectors reduce f32 along the last axis, not i32 along axis 2"),
    ("moe_topk", "memory vectors reduce f32 along the last axis, not u32 along axis 1"),
    ("quant_e5m6", "a scalar reduction has no form on memory vectors yet"),
    ("quant_lossless_fp4_to_fp8", "elements of 4 bits have no Ascend form yet"),
    ("quant_per_block_fp8", "a scalar reduction has no form on memory vectors yet"),
    ("quant_per_channel_fp8", "memory vectors reduce f32 along the last axis, not bf16 along axis 0"),
    ("quant_per_token_fp4", "elements of 4 bits have no Ascend form yet"),
    ("quant_per_token_fp8", "the vector unit of arch 2201 has no conversion from f32 to e4m3"),
    ("sampling.mixed_batch", "`var` has no form on memory vectors yet"),
    ("swiglu_quant", "the vector unit of arch 2201 has no conversion from f32 to e4m3"),
];

/// Names with reasons.
type Refused = &'static [(&'static str, &'static str)];

fn targets() -> [(&'static str, Target, Refused, usize); 2] {
    [("sim:ascend950", Target::Ascend950, REFUSED_950, 135), ("sim:ascend910b", Target::Ascend910b, REFUSED_910B, 38)]
}

/// Runs `f` for each of `0..n` on all cores.
fn each(n: usize, f: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        if i >= n {
            return;
        }
        f(i);
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| (0..workers).for_each(|_| drop(s.spawn(work))));
}

fn operator<'a>(registry: &'a [Arc<dyn OpSpec>], name: &str) -> &'a dyn OpSpec {
    registry.iter().find(|op| op.info().name == name).expect("cases are of operators").as_ref()
}

/// Golden cases of operators; with `SLOW=1` also the declared ones, with their references.
fn all_cases(registry: &[Arc<dyn OpSpec>]) -> Vec<Golden> {
    let mut cases = cases::load();
    cases.retain(|c| registry.iter().any(|op| op.info().name == c.op));
    if std::env::var("SLOW").is_ok_and(|v| v == "1") {
        for op in registry {
            for case in op.cases() {
                let inputs = tile_vm::fill(&case);
                let problem = HostProblem { tensors: inputs.clone(), params: case.params.clone() };
                let Ok(expected) = op.reference(&problem) else { continue };
                let outputs = expected.keys().map(|n| (n.clone(), op.tolerance(n, &case.params).into())).collect();
                let mut all = inputs.clone();
                all.extend(expected);
                let name = op.info().name;
                let id = format!("{name}.declared.{}", case.id);
                cases.push(Golden { id, op: name.into(), params: case.params.clone(), inputs, all, outputs });
            }
        }
    }
    cases
}

#[test]
fn golden_cases_pass_or_are_refused_as_listed() {
    let registry = kiln_kernels::registry();
    let cases = all_cases(&registry);
    let mut wrong = vec![];
    for (name, _, refused, passing) in targets() {
        let Some(device) = simulator(name) else { return };
        let start = Instant::now();
        // What is wrong with each case, and whether that is a refusal.
        let found: Mutex<BTreeMap<&str, (String, bool)>> = Mutex::new(BTreeMap::new());
        each(cases.len(), &|i| {
            let case = &cases[i];
            let from = Instant::now();
            let result = run(&device, operator(&registry, &case.op), case);
            println!("{:>6} ms {name} {}", from.elapsed().as_millis(), case.id);
            if let Err(e) = result {
                let gate = e.contains("is refused for ascend") && e.contains("error[C0");
                found.lock().expect("no panic").insert(&case.id, (e, gate));
            }
        });
        let found = found.into_inner().expect("no panic");
        let listed = |case: &Golden, entry: &str| case.op == entry || case.id == entry;
        for case in &cases {
            let expected = refused.iter().any(|(entry, _)| listed(case, entry));
            // Declared cases are not in the list one by one, and one without elements launches nothing.
            let declared = case.id.contains(".declared.");
            let empty = case.outputs.iter().any(|(n, _)| case.all[n].num_elements() == 0);
            match found.get(case.id.as_str()) {
                Some((_, true)) if expected || declared => {}
                Some((e, true)) => wrong.push(format!("{name} {}: refused now: {e}", case.id)),
                Some((e, false)) => wrong.push(format!("{name} {}: {e}", case.id)),
                None if expected && !declared && !empty => {
                    wrong.push(format!("{name} {}: listed as refused, but runs", case.id))
                }
                None => {}
            }
        }
        for (entry, _) in refused {
            if !cases.iter().any(|c| listed(c, entry)) {
                wrong.push(format!("{name}: `{entry}` is listed, but is no case"));
            }
        }
        let ok = cases.len() - found.len();
        let gates = found.values().filter(|f| f.1).count();
        // Declared cases and other sets have other numbers.
        let usual = !std::env::var("SLOW").is_ok_and(|v| v == "1") && std::env::var_os("KILN_ORACLE").is_none();
        if usual && ok != passing {
            wrong.push(format!("{name}: {ok} cases pass, README.md and docs/CHANGELOG.md say {passing}"));
        }
        println!("{name}: {ok} ok, {gates} refused of {} in {:.1} s", cases.len(), start.elapsed().as_secs_f64());
        for (entry, why) in refused {
            println!("{name}: refused: {entry}: {why}");
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn texts_of_every_operator_compile_without_warnings() {
    let registry = kiln_kernels::registry();
    let mut cases = cases::load();
    cases.retain(|c| registry.iter().any(|op| op.info().name == c.op));
    let settings = Settings::from_env();
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("kernel_operator.h"), Program::header()).expect("a file");
    let mut texts: BTreeMap<String, (Target, String)> = BTreeMap::new();
    if simulator("sim:ascend950").is_none() {
        return;
    }
    let device = open_with("cpu", &settings).expect("it is everywhere");
    for (_, target, _, _) in targets() {
        let mut done = BTreeSet::new();
        for case in &cases {
            let op = operator(&registry, &case.op);
            let Ok(placed) = place(&device, op, &case.inputs, &case.params, &DefaultConfigs) else { continue };
            for step in &placed.plan.steps {
                let kernel = step.kernel.info().name.clone();
                // The first case of a kernel; in slow runs all of them.
                if !std::env::var("SLOW").is_ok_and(|v| v == "1") && done.contains(&kernel) {
                    continue;
                }
                let bound = bound(&device, step).unwrap_or_else(|e| panic!("{}: {e}", case.id));
                let built = compile::build(step.kernel.as_ref(), &bound.request).unwrap_or_else(|e| panic!("{e:?}"));
                if let Ok(lowered) = compile::source(&built, target) {
                    done.insert(kernel);
                    texts.insert(lowered.source.text, (target, case.id.clone()));
                }
            }
        }
    }
    let texts: Vec<_> = texts.into_iter().collect();
    let wrong = Mutex::new(vec![]);
    let start = Instant::now();
    each(texts.len(), &|i| {
        let (text, (target, id)) = &texts[i];
        let path = dir.path().join(format!("kernel{i}.asc"));
        std::fs::write(&path, text).expect("a file");
        let arch = target.npu().expect("an Ascend target").arch;
        let output = std::process::Command::new(&settings.cxx)
            .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"])
            .arg(format!("-D__NPU_ARCH__={arch}"))
            .arg("-isystem")
            .arg(dir.path())
            .arg(&path)
            .output()
            .expect("a compiler");
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.lock().expect("no panic").push(format!("{id} for {}:\n{text}", target.name()));
        }
    });
    println!("{} texts in {:.1} s", texts.len(), start.elapsed().as_secs_f64());
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(texts.len() >= 80, "only {} texts", texts.len());
}
