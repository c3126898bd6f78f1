//! Golden cases against the judge and the references: neither needs a device.
//!
//! Three witnesses meet here: the files (numpy in f64), the operators' own loops, and the metrics. Devices are judged
//! against the same files in `golden_vm.rs` and by `kiln run --cases`.

#[path = "golden/cases.rs"]
mod cases;
#[path = "golden/catalogue.rs"]
mod catalogue;

use cases::{Golden, load};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::HostProblem;
use kiln_kernels::numeric::{Comparison, Metric, Tensors, judge};
use std::collections::BTreeMap;

fn comparison<'a>(case: &'a Golden, got: &'a Tensors) -> Comparison<'a> {
    Comparison { case: &case.all, got, params: &case.params }
}

#[test]
fn expected_outputs_pass_their_own_metric() {
    for case in load() {
        for (name, metric) in &case.outputs {
            let mut got = case.all.clone();
            if *metric == Metric::TopkSet {
                answer_nan_rows(&mut got, name);
            }
            let v = judge(name, metric, &comparison(&case, &got));
            assert!(v.ok, "{} {name}: {}", case.id, v.reason);
        }
    }
}

/// The files hold no answer for rows with NaN, only a filler: puts the marker that a kernel may report there.
fn answer_nan_rows(got: &mut Tensors, name: &str) {
    let nan = got["nan_rows"].to_f64();
    let mut indices = got[name].clone();
    let row_bytes = indices.data.len() / nan.len().max(1);
    for row in (0..nan.len()).filter(|&row| nan[row] != 0.0) {
        let marker = HostTensor::from_f64(indices.dtype, &[1], &[f64::from(0x3f3f_3f3f)]);
        indices.data[row * row_bytes..][..marker.data.len()].copy_from_slice(&marker.data);
    }
    got.insert(name.into(), indices);
}

/// A copy of `t` with element `at` moved far away.
fn disturbed(t: &HostTensor, at: usize) -> HostTensor {
    let mut t = t.clone();
    let size = t.dtype.bytes(1);
    let old = t.to_f64()[at];
    let new = match t.dtype {
        DType::Bool => 1.0 - old,
        // Far beyond any tolerance, and no value the format rounds back.
        _ if old == 0.0 || !old.is_finite() => 7.0,
        _ => old * -3.0,
    };
    let moved = HostTensor::from_f64(t.dtype, &[1], &[new]);
    t.data[at * size..(at + 1) * size].copy_from_slice(&moved.data);
    t
}

#[test]
fn one_wrong_element_fails() {
    let (mut tried, mut found) = (0, 0);
    for case in load() {
        for (name, metric) in &case.outputs {
            let want = &case.all[name];
            let n = want.num_elements();
            for at in [0, n / 2, n.saturating_sub(1)].into_iter().filter(|&at| at < n) {
                let mut got = case.all.clone();
                got.insert(name.clone(), disturbed(want, at));
                let v = judge(name, metric, &comparison(&case, &got));
                tried += 1;
                found += usize::from(!v.ok);
                // Metrics that leave rows, columns or answers free, or allow some codes to differ, may accept one.
                let strict = match metric {
                    Metric::BitExact | Metric::MoeMapping | Metric::Fp8Codes { .. } | Metric::Pow2OrClose { .. } => {
                        true
                    }
                    Metric::AllCloseOr { abs, .. } => {
                        want.to_f64()[at].abs() > 10.0 * abs || !want.to_f64()[at].is_finite()
                    }
                    Metric::CalcDiff { .. } | Metric::Gemm { .. } | Metric::TopkSet => false,
                };
                assert!(!strict || !v.ok, "{} {name} element {at}: {:?} accepts a wrong one", case.id, metric);
            }
        }
    }
    assert!(found * 10 > tried * 9, "only {found} of {tried} disturbances were found");
}

#[test]
fn references_reproduce_the_golden_outputs() {
    let mut judged: BTreeMap<&str, usize> = BTreeMap::new();
    let registry = kiln_kernels::registry();
    for case in load() {
        let Some(op) = registry.iter().find(|op| op.info().name == case.op) else { continue };
        let problem = HostProblem { tensors: case.inputs.clone(), params: case.params.clone() };
        let got = op.reference(&problem).unwrap_or_else(|e| panic!("{}: {e}", case.id));
        for (name, metric) in &case.outputs {
            let v = judge(name, metric, &comparison(&case, &got));
            assert!(v.ok, "{} {name}: {} {:.3e} > {:.3e}: {}", case.id, v.metric, v.value, v.limit, v.reason);
        }
        *judged.entry(op.info().name).or_default() += 1;
    }
    for op in registry.iter().map(|op| op.info().name).filter(|name| !judged.contains_key(name)) {
        // Vector addition is an example, the copy a yardstick, and making streams a copy too; none has a golden case.
        assert!(["vector_add", "copy", "mhc_expand"].contains(&op), "no golden case of `{op}` was judged");
    }
}

#[test]
fn the_catalogue_of_kernels_is_current() {
    catalogue::check(&kiln_kernels::registry());
}
