//! Peers of an operator in a bench: a vendor's library measured beside it in the same run, and what other libraries
//! reached on a machine of the same kind, from a file.
//!
//! Which library's product does an operator's work is known here by bench name; the operator's own reference judges it.

use crate::instance;
use crate::runner;
use crate::sample;
use crate::shapes::Wanted;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{Case, Fill, OpSpec};
use kiln_runtime::Device;
use kiln_runtime::device::library::{Kind, Product};
use kiln_runtime::measure::{self, MeasureOptions, Measurement};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// What others reached, one line a result after a line that says on which machine.
const RECORDS: &str = include_str!("../../benches/records/peers-nvidia-h200.jsonl");

/// The one scale of each operand where a product has no others; products of test data then are of the size of one.
const SCALE: f64 = 0.01;

/// Results further off than this are wrong, whatever accumulator a library uses.
const WRONG: f64 = 2e-2;

/// A library's product that does, or bounds, an operator's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yardstick {
    /// Bench name of its rows.
    pub op: &'static str,
    /// Peer of its rows.
    pub peer: &'static str,
    scales: Scales,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    None,
    Tensor { fast: bool },
    Block,
}

/// The products to measure beside an operator of this bench name.
pub fn yardsticks(op: &str) -> Vec<Yardstick> {
    let tensor = |peer, fast| Yardstick { op: "gemm_fp8_tensorwise", peer, scales: Scales::Tensor { fast } };
    match op {
        "gemm_bf16" => vec![Yardstick { op: "gemm_bf16", peer: "cublas", scales: Scales::None }],
        "gemm_fp8_block" => vec![
            Yardstick { op: "gemm_fp8_block", peer: "cublas_blockwise", scales: Scales::Block },
            tensor("cublas_fast_accum", true),
            tensor("cublas", false),
        ],
        _ => vec![],
    }
}

/// Time of a yardstick on the problem of a bench shape, after its result was judged.
///
/// # Errors
/// No library on this device, a product it does not support, a wrong result.
pub fn measure(
    yardstick: &Yardstick,
    op: &dyn OpSpec,
    case: &Case,
    device: &Device,
    options: &MeasureOptions,
    judging: Duration,
) -> Result<(Measurement, sample::Verdict, String), String> {
    let stream = device.stream().map_err(|e| e.to_string())?;
    let library = stream.library().map_err(|e| e.to_string())?;
    let case = with_scales(case, yardstick.scales);
    let cost = op.cost(&instance::input_specs(&case), &case.params);
    let mut first = None;
    let mut products = vec![];
    for set in 0..measure::sets_for(cost.bytes as usize) {
        let inputs = runner::filled(op, &format!("{}/{set}", op.info().name), &case)?;
        let (problem, _) = runner::place(device, op, &inputs, &case.params)?;
        let tensor = |name: &str| problem.tensors.get(name).cloned().ok_or(format!("the problem has no `{name}`"));
        let upload = |t: &HostTensor| device.upload(t).map_err(|e| e.to_string());
        let one = || upload(&HostTensor::from_f64(DType::F32, &[1], &[SCALE]));
        let kind = match yardstick.scales {
            Scales::None => Kind::Plain,
            Scales::Tensor { fast } => Kind::Tensor { a: one()?, b: one()?, fast },
            Scales::Block => Kind::Block { a: tensor("sfa_mn_major")?, b: upload(&padded(&inputs["sfb"]))? },
        };
        let d = tensor("d")?;
        if yardstick.scales == Scales::Block && d.shape[0] % 4 != 0 {
            return Err(format!(
                "the library takes scales of rows without gaps: m is {}, no multiple of 4",
                d.shape[0]
            ));
        }
        let product = Product { a: tensor("a")?, b: tensor("b")?, d: d.clone(), kind };
        products.push(library.prepare(&product).map_err(|e| e.to_string())?);
        first.get_or_insert((inputs, d));
    }
    let Some((inputs, d)) = first else { return Err("no input set".into()) };
    library.run(products[0]).and_then(|()| stream.synchronize()).map_err(|e| e.to_string())?;
    let got = device.download(&d).map_err(|e| e.to_string())?;
    let verdict = sample::judge(op, &case, &inputs, &BTreeMap::from([("d".to_string(), got)]), judging)?;
    let verdict = verdict.ok_or("too large for the plain reference")?;
    // A library may keep a shorter accumulator than the operator's tolerance allows; a NaN is no small error.
    if verdict.rel_err.is_nan() || verdict.rel_err > WRONG {
        return Err(format!("wrong result: relative error {:.1e} (judged: {})", verdict.rel_err, verdict.judged));
    }
    let time = measure::time_calls(&stream, products.len(), &|_, set| library.run(products[set]), options);
    Ok((time.map_err(|e| e.to_string())?, verdict, library.name()))
}

/// The case with one scale everywhere, so that the operator's reference is that of a product with one scale.
fn with_scales(case: &Case, scales: Scales) -> Case {
    let mut case = case.clone();
    if matches!(scales, Scales::Tensor { .. }) {
        let all = case.inputs.iter_mut().filter(|i| i.tensor.name.starts_with("sf"));
        all.for_each(|i| i.fill = Fill::Constant(SCALE));
    }
    case
}

/// Rows of scales with their length rounded up to four, as the library reads them.
fn padded(scales: &HostTensor) -> HostTensor {
    let (rows, groups) = (scales.shape[0], scales.shape[1]);
    let wide = groups.next_multiple_of(4);
    let mut out = HostTensor::zeros(scales.dtype, &[rows, wide]);
    for (to, from) in out.data.chunks_exact_mut(4 * wide).zip(scales.data.chunks_exact((4 * groups).max(1))) {
        to[..4 * groups].copy_from_slice(from);
    }
    out
}

/// What others reached on a shape, and on which machine.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Bench name, peer, times and rates.
    pub line: Value,
    /// Hardware and date.
    pub source: String,
}

/// The recorded lines of a shape; other keys that only the record has are in its own shape to see.
pub fn recorded(wanted: &Wanted) -> Vec<Recorded> {
    let names: Vec<&str> = std::iter::once(wanted.op.as_str())
        .chain(yardsticks(&wanted.op).iter().map(|y| y.op).filter(|name| *name != wanted.op))
        .collect();
    let mut lines = RECORDS.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let head = lines.next().unwrap_or_default();
    let word = |name: &str| head[name].as_str().unwrap_or_default().to_string();
    let source = format!("recorded on {}, {}", word("model"), word("date"));
    let has = |key: &str| wanted.shape.iter().any(|(k, _)| k == key);
    let same = |line: &Value| {
        // Half the work is another problem.
        (line["shape"]["causal"] != 1 || has("causal"))
            && names.iter().any(|n| line["op"] == **n)
            && wanted.shape.iter().all(|(key, size)| value(&line["shape"][key]) == Some(*size))
    };
    lines.filter(same).map(|line| Recorded { line, source: source.clone() }).collect()
}

/// A size; an element type counts as its bits.
fn value(v: &Value) -> Option<usize> {
    match v.as_str() {
        Some("bf16" | "bfloat16") => Some(16),
        Some("f32" | "fp32" | "float32") => Some(32),
        Some(_) => None,
        None => v.as_u64().map(|x| x as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(op: &str, shape: &[(&str, usize)]) -> Wanted {
        Wanted { op: op.into(), selection: None, shape: shape.iter().map(|(k, v)| (k.to_string(), *v)).collect() }
    }

    #[test]
    fn records_are_found_by_shape() {
        let peers = |w: &Wanted| -> Vec<String> {
            recorded(w).iter().map(|r| format!("{} {}", r.line["op"], r.line["peer"]).replace('"', "")).collect()
        };
        let block = peers(&wanted("gemm_fp8_block", &[("m", 4096), ("n", 2112), ("k", 7168)]));
        assert!(block.contains(&"gemm_fp8_block deepgemm".to_string()), "{block:?}");
        assert!(block.contains(&"gemm_fp8_tensorwise cublas_fast_accum".to_string()), "{block:?}");
        assert!(peers(&wanted("gemm_fp8_block", &[("m", 5), ("n", 2112), ("k", 7168)])).is_empty());
        let topk = wanted("topk", &[("rows", 64), ("n", 131_072), ("k", 512), ("dtype", 32)]);
        assert!(peers(&topk).iter().any(|p| p.starts_with("topk")), "{:?}", peers(&topk));
        let source = &recorded(&topk)[0].source;
        assert!(source.contains("NVIDIA H200") && source.contains("2026"), "{source}");
    }

    #[test]
    fn every_record_can_stand_in_a_row() {
        for line in RECORDS.lines().skip(1) {
            let v: Value = serde_json::from_str(line).expect("a JSON line");
            assert!(v["op"].is_string() && v["peer"].is_string() && v["shape"].is_object(), "{line}");
            assert!(v["median_us"].as_f64().is_some_and(|t| t > 0.0), "{line}");
        }
    }

    #[test]
    fn scales_are_padded_for_the_library() {
        let t = HostTensor::from_f64(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(padded(&t).to_f64(), [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 0.0]);
        assert_eq!(padded(&t).shape, [2, 4]);
    }

    #[test]
    fn one_scale_makes_the_reference_of_a_tensorwise_product() {
        let ops = kiln_kernels::registry();
        let op = ops.iter().find(|o| o.info().bench_name == Some("gemm_fp8_block")).expect("the operator");
        let shape = [("m", 4), ("n", 130), ("k", 136)].map(|(k, v)| (k.to_string(), v));
        let case = with_scales(&op.bench_case(&shape).expect("a case"), Scales::Tensor { fast: true });
        let inputs = crate::fill::inputs("x", &case);
        let scales = inputs.iter().filter(|(n, _)| n.starts_with("sf")).flat_map(|(_, t)| t.to_f64());
        assert!(scales.fold(0, |n, s| n + usize::from(s == f64::from(SCALE as f32))) > 8);
    }

    #[test]
    fn a_device_without_a_library_says_so() {
        let cpu = kiln_runtime::open("cpu").expect("always there");
        let ops = kiln_kernels::registry();
        let op = ops.iter().find(|o| o.info().bench_name == Some("gemm_bf16")).expect("the operator");
        let shape = [("m", 4), ("n", 16), ("k", 16)].map(|(k, v)| (k.to_string(), v));
        let case = op.bench_case(&shape).expect("a case");
        let all = yardsticks("gemm_bf16");
        let e = measure(&all[0], op.as_ref(), &case, &cpu, &MeasureOptions::default(), Duration::ZERO)
            .expect_err("no library");
        assert!(e.contains("cuda:N"), "{e}");
    }
}
