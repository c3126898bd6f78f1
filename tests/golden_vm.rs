//! Every operator in the tile VM: golden cases, and the declared cases against the operator's own reference.

#![allow(clippy::print_stdout, reason = "skipped cases are named in the test's output")]

#[path = "golden/cases.rs"]
mod cases;
#[path = "golden/vm.rs"]
mod device;
#[path = "golden/random.rs"]
mod random;

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{Configs, DefaultConfigs, HostProblem, KernelDef};
use kiln_codegen::tune::{Config, ConfigValue};
use kiln_codegen::vm::Options;
use kiln_kernels::numeric::{Comparison, Metric, judge};
use std::collections::BTreeMap;

const SANITIZE: Options = Options { sanitize: true, threads: None, order: kiln_codegen::vm::BlockOrder::Forward };

#[test]
fn golden_cases_pass_under_the_sanitizer() {
    let registry = kiln_kernels::registry();
    let (mut passed, mut skipped, mut failures) = (0, BTreeMap::<String, usize>::new(), vec![]);
    for case in cases::load() {
        let Some(op) = registry.iter().find(|op| op.info().name == case.op) else {
            *skipped.entry(case.op.clone()).or_default() += 1;
            continue;
        };
        match device::run(op.as_ref(), &case.inputs, &case.params, &DefaultConfigs, &SANITIZE) {
            Err(e) => failures.push(format!("{}: {e}", case.id)),
            Ok(got) => {
                for (name, metric) in &case.outputs {
                    let c = Comparison { case: &case.all, got: &got, params: &case.params };
                    let v = judge(name, metric, &c);
                    if !v.ok {
                        failures.push(format!("{} {name}: {} {:.3e}: {}", case.id, v.metric, v.value, v.reason));
                    }
                }
            }
        }
        passed += 1;
    }
    println!("{passed} cases run");
    // Another set of cases may know operators that this build does not.
    let other = std::env::var_os("KILN_ORACLE").is_some();
    assert!(skipped.is_empty() || other, "no operator has these names: {skipped:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(passed >= 148, "{passed} cases");
}

/// The default with one field changed, if the kernel has that field.
#[derive(Debug)]
struct Changed(String, ConfigValue);
impl Configs for Changed {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let mut config = kernel.space().default_config();
        if config.0.contains_key(&self.0) {
            config.0.insert(self.0.clone(), self.1.clone());
        }
        config
    }
}

#[test]
fn declared_cases_equal_the_reference_with_every_config_value() {
    let mut failures = vec![];
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        let mut configs: Vec<Box<dyn Configs>> = vec![Box::new(DefaultConfigs)];
        for axis in op.kernels().first().map(|k| k.space().axes).unwrap_or_default() {
            let others = axis.values.iter().enumerate().filter(|(i, _)| *i != axis.default);
            configs.extend(others.map(|(_, v)| Box::new(Changed(axis.name.clone(), v.clone())) as Box<dyn Configs>));
        }
        for case in op.cases() {
            let inputs = device::fill(&case);
            let problem = HostProblem { tensors: inputs.clone(), params: case.params.clone() };
            let want = op.reference(&problem).unwrap_or_else(|e| panic!("{e}"));
            let mut all = inputs.clone();
            all.extend(want);
            for (i, config) in configs.iter().enumerate() {
                let options = if i == 0 { SANITIZE } else { Options::default() };
                let got = match device::run(op.as_ref(), &inputs, &case.params, config.as_ref(), &options) {
                    Ok(got) => got,
                    Err(e) => {
                        failures.push(format!("{name} {} config {i}: {e}", case.id));
                        continue;
                    }
                };
                for output in got.keys() {
                    let metric = Metric::from(op.tolerance(output, &case.params));
                    let c = Comparison { case: &all, got: &got, params: &case.params };
                    let v = judge(output, &metric, &c);
                    if !v.ok {
                        failures.push(format!("{name} {} {output} config {i}: {:.3e}: {}", case.id, v.value, v.reason));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Rows `range` of a tensor's first axis.
fn rows(t: &HostTensor, range: std::ops::Range<usize>) -> HostTensor {
    t.pick(0, 1, &range.collect::<Vec<_>>())
}

/// Sequences that are packed, and positions that come later, change nothing in what the others give.
#[test]
fn pieces_of_packed_problems_give_the_bits_of_the_whole() {
    let registry = kiln_kernels::registry();
    let op = |name: &str| registry.iter().find(|op| op.info().name == name).expect("an operator").as_ref();
    let run = |name: &str, inputs: &_, params: &_| {
        device::run(op(name), inputs, params, &DefaultConfigs, &Options::default()).unwrap_or_else(|e| panic!("{e}"))
    };
    let mut pieces = 0;
    for seed in 1..7 {
        let p = random::problem("mha_prefill_dense", seed).expect("a known operator");
        let whole = run("mha_prefill_dense", &p.inputs, &p.params);
        let starts = |name: &str| p.inputs[name].to_f64().into_iter().map(|x| x as usize).collect::<Vec<_>>();
        let (cu_q, cu_k) = (starts("cu_seqlens_q"), starts("cu_seqlens_k"));
        for s in 0..cu_q.len() - 1 {
            let (q, k) = (cu_q[s]..cu_q[s + 1], cu_k[s]..cu_k[s + 1]);
            let mut inputs = p.inputs.clone();
            inputs.insert("q".into(), rows(&p.inputs["q"], q.clone()));
            for name in ["k", "v"] {
                inputs.insert(name.into(), rows(&p.inputs[name], k.clone()));
            }
            for (name, n) in [("cu_seqlens_q", q.len()), ("cu_seqlens_k", k.len())] {
                inputs.insert(name.into(), HostTensor::from_f64(DType::I32, &[2], &[0.0, n as f64]));
            }
            let alone = run("mha_prefill_dense", &inputs, &p.params);
            for (name, t) in &alone {
                assert!(t.data == rows(&whole[name], q.clone()).data, "seed {seed}, sequence {s}: {name}");
            }
            pieces += usize::from(!q.is_empty());
        }

        let p = random::problem("kv_compressor", seed).expect("a known operator");
        let whole = run("kv_compressor", &p.inputs, &p.params);
        for n in 0..p.inputs["kv"].shape[0] {
            // What is there after each position, as if decoded token by token.
            let made = n / p.inputs["ape"].shape[0];
            let mut inputs = p.inputs.clone();
            for name in ["kv", "score"] {
                inputs.insert(name.into(), rows(&p.inputs[name], 0..n));
            }
            for name in ["cos", "sin"] {
                inputs.insert(name.into(), rows(&p.inputs[name], 0..made));
            }
            for (name, t) in &run("kv_compressor", &inputs, &p.params) {
                assert!(t.data == rows(&whole[name], 0..made).data, "seed {seed}, {n} positions: {name}");
            }
            pieces += made;
        }
    }
    assert!(pieces > 20, "{pieces} pieces");
}

/// Random problems of the operators that `golden/random.rs` knows: sizes, gaps between rows, numbers nobody likes.
/// `KILN_PROBLEMS` of each, from seed `KILN_SEED` on; `SLOW=1` makes 200 of each.
#[test]
fn random_problems_equal_the_reference() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let slow = std::env::var("SLOW").is_ok_and(|v| v == "1");
    let count = number("KILN_PROBLEMS").unwrap_or(if slow { 200 } else { 16 });
    if !slow {
        println!("skipped: all but {count} problems an operator; SLOW=1 runs 200");
    }
    let seed = number("KILN_SEED").unwrap_or(1);
    let (mut run, mut failures) = (0u64, vec![]);
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        for seed in seed..seed + count {
            let Some(p) = random::problem(name, seed) else { continue };
            run += 1;
            let problem = HostProblem { tensors: p.inputs.clone(), params: p.params.clone() };
            let want = op.reference(&problem).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
            let mut all = p.inputs.clone();
            all.extend(want);
            let got = match device::run_strided(op.as_ref(), &p.inputs, &p.gaps, &p.params, &DefaultConfigs, &SANITIZE)
            {
                Ok(got) => got,
                Err(e) => {
                    failures.push(format!("{name}, seed {seed}: {e}"));
                    continue;
                }
            };
            for output in got.keys() {
                let metric = Metric::from(op.tolerance(output, &p.params));
                let c = Comparison { case: &all, got: &got, params: &p.params };
                let v = judge(output, &metric, &c);
                if !v.ok {
                    failures.push(format!("{name}, seed {seed}, {output}: {:.3e}: {}", v.value, v.reason));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(run >= 15 * count, "{run} problems");
}

/// The random problems again, with rows so far apart that their offsets need 64 bits. Only the rows themselves exist.
#[test]
fn rows_past_two_to_the_31_equal_the_reference() {
    let mut run = 0;
    for op in kiln_kernels::registry() {
        let name = op.info().name;
        for seed in 100..112 {
            let Some(mut p) = random::problem(name, seed) else { continue };
            // The first three rows end beyond 2^31 elements.
            p.gaps.values_mut().for_each(|gap| *gap += 1 << 30);
            if !p.gaps.keys().any(|name| p.inputs[name].shape[0] > 2) {
                continue;
            }
            run += 1;
            let problem = HostProblem { tensors: p.inputs.clone(), params: p.params.clone() };
            let mut all = p.inputs.clone();
            all.extend(op.reference(&problem).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}")));
            let options = Options::default();
            let got = device::run_strided(op.as_ref(), &p.inputs, &p.gaps, &p.params, &DefaultConfigs, &options);
            let got = got.unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
            for output in got.keys() {
                let metric = Metric::from(op.tolerance(output, &p.params));
                let v = judge(output, &metric, &Comparison { case: &all, got: &got, params: &p.params });
                assert!(v.ok, "{name}, seed {seed}, {output}: {}", v.reason);
            }
            break;
        }
    }
    assert!(run >= 10, "{run} operators");
}
