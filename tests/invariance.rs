//! Declared properties of the registry: proven or tested, and what equal numerics fingerprints promise.

#[path = "golden/vm.rs"]
#[allow(dead_code, reason = "the golden tests use the rest")]
mod device;

use kiln_codegen::analysis::fingerprint::fingerprint;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Configs, KernelDef};
use kiln_codegen::tune::Config;
use kiln_codegen::vm::Options;
use kiln_codegen::{bind, compile};
use std::collections::BTreeMap;
use std::process::Command;

fn kiln(args: &[&str]) -> (bool, Vec<serde_json::Value>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_kiln-command-line")).args(args).output().expect("it starts");
    let rows = String::from_utf8_lossy(&out.stdout).lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    (out.status.success(), rows, String::from_utf8_lossy(&out.stderr).into_owned())
}

fn statuses(rows: &[serde_json::Value]) -> BTreeMap<(String, String), String> {
    let text = |r: &serde_json::Value, f: &str| r[f].as_str().unwrap_or_default().to_string();
    rows.iter().map(|r| ((text(r, "kernel"), text(r, "dim")), text(r, "status"))).collect()
}

/// Kernels whose declared property is followed from source to sink. One that drops out of this list has lost its proof.
const PROVEN: [&str; 12] = [
    "rmsnorm",
    "hadamard",
    "transpose",
    "gemm_bf16",
    "mla_combine",
    "mla_decode_dense",
    "mla_decode_sparse",
    "topk_select",
    "moe_gate",
    "moe_reduce",
    "sampling",
    "engram_gate",
];

#[test]
fn the_audit_proves_what_it_can_and_refuses_nothing() {
    let (ok, rows, err) = kiln(&["--json", "invariance", "audit"]);
    assert!(ok, "{err}");
    let found = statuses(&rows);
    assert!(found.values().all(|s| s != "violated"), "{rows:?}");
    for kernel in PROVEN {
        let own: Vec<_> = found.iter().filter(|f| f.0.0 == kernel).collect();
        assert!(!own.is_empty() && own.iter().all(|f| f.1 == "proven"), "{kernel}: {own:?} in {rows:#?}");
    }
}

#[test]
fn the_check_finds_equal_bits_for_every_declared_dimension() {
    let (ok, rows, err) = kiln(&["--json", "invariance", "check", "--device", "cpu"]);
    assert!(ok, "{err}\n{rows:#?}");
    for ((kernel, dim), status) in statuses(&rows) {
        let want = if dim.is_empty() { "none" } else { "tested" };
        assert_eq!(status, want, "{kernel} along {dim}: {rows:#?}");
    }
}

/// One configuration for one kernel.
#[derive(Debug)]
struct One(String, Config);
impl Configs for One {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        if kernel.info().name == self.0 { self.1.clone() } else { kernel.space().default_config() }
    }
}

/// The fingerprints of a plan's kernels.
fn fingerprints(op: &dyn kiln_codegen::spec::OpSpec, case: &kiln_codegen::spec::Case, by: &One) -> Option<Vec<String>> {
    let plan = device::plan(op, case, by).ok()?;
    let of = |l: &kiln_codegen::abi::Launch| {
        let bound = bind::bind(l.kernel.as_ref(), &l.config, &l.args).ok()?;
        let built = compile::build(l.kernel.as_ref(), &bound.request).ok()?;
        Some(fingerprint(&built.kernel))
    };
    plan.steps.iter().map(of).collect()
}

#[test]
fn equal_fingerprints_give_equal_bits() {
    let slow = std::env::var("SLOW").is_ok_and(|v| v == "1");
    let (mut compared, mut wrong, mut kinds) = (0, vec![], 0);
    for op in kiln_kernels::registry() {
        let mut spaces = BTreeMap::new();
        for k in op.kernels() {
            spaces.entry(k.info().name.clone()).or_insert(k.space());
        }
        // The smallest cases with work to do; all of them on request.
        let mut cases: Vec<_> =
            op.cases().into_iter().filter(|c| c.inputs.iter().all(|i| !i.tensor.shape.contains(&0))).collect();
        let size = |c: &kiln_codegen::spec::Case| {
            c.inputs.iter().map(|i| i.tensor.shape.iter().product::<usize>()).sum::<usize>()
        };
        cases.sort_by_key(size);
        cases.retain(|c| slow || size(c) < 200_000);
        cases.truncate(if slow { usize::MAX } else { 2 });
        for case in &cases {
            let inputs = device::fill(case);
            for (kernel, space) in &spaces {
                // Each field alone: what it changes is its own doing.
                let default = space.default_config();
                let mut configs = vec![default.clone()];
                for axis in &space.axes {
                    for v in axis.values.iter().filter(|v| default.0.get(&axis.name) != Some(*v)) {
                        let mut c = default.clone();
                        c.0.insert(axis.name.clone(), v.clone());
                        configs.push(c);
                    }
                }
                let mut first: BTreeMap<Vec<String>, (String, BTreeMap<String, HostTensor>)> = BTreeMap::new();
                for config in configs {
                    let name = format!("{kernel} {} {config}", case.id);
                    let by = One(kernel.clone(), config);
                    let Some(prints) = fingerprints(op.as_ref(), case, &by) else { continue };
                    let Ok(got) = device::run(op.as_ref(), &inputs, &case.params, &by, &Options::default()) else {
                        continue;
                    };
                    match first.get(&prints) {
                        None => drop(first.insert(prints, (name, got))),
                        Some((other, want)) => {
                            compared += 1;
                            if want.iter().any(|(n, t)| got[n].data != t.data) {
                                wrong.push(format!("{name} and {other} differ"));
                            }
                        }
                    }
                }
                kinds += usize::from(first.len() > 1);
            }
        }
    }
    assert!(wrong.is_empty(), "equal fingerprints, other bits:\n{}", wrong.join("\n"));
    assert!(compared >= 30 && kinds >= 3, "{compared} comparisons, {kinds} kernels with several fingerprints");
}
