//! From a manifest's tolerance to a verdict, and the worst verdict of a case. Metrics are `kernels::numeric`'s.

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::Params;
use kiln_kernels::numeric::{self, Comparison, Metric, Verdict};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The metric a manifest's `tolerance` object describes.
///
/// # Errors
/// An unknown metric or a missing field.
pub fn metric(tolerance: &Map<String, Value>) -> Result<Metric, String> {
    let find = |path: &str| -> Option<&Value> {
        let mut at = tolerance.get(path.split('.').next()?)?;
        for part in path.split('.').skip(1) {
            at = at.get(part)?;
        }
        Some(at)
    };
    let name = tolerance.get("metric").and_then(Value::as_str).unwrap_or_default();
    let number = |field: &str| find(field).and_then(Value::as_f64);
    let text = |field: &str| find(field).and_then(Value::as_str).map(String::from);
    Metric::from_fields(name, &number, &text)
}

/// One output with how it is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Name of the output.
    pub output: String,
    /// Result.
    pub verdict: Verdict,
}

/// Judges all outputs and returns the worst: a failed one before a passed one, then the one nearest to its limit.
/// `case` holds everything known of the case, expected outputs under their names included.
pub fn worst(
    metrics: &[(String, Metric)],
    case: &BTreeMap<String, HostTensor>,
    got: &BTreeMap<String, HostTensor>,
    params: &Params,
) -> Option<Judged> {
    let judged = metrics.iter().map(|(output, metric)| Judged {
        output: output.clone(),
        verdict: numeric::judge(output, metric, &Comparison { case, got, params }),
    });
    let share = |v: &Verdict| if v.limit > 0.0 { v.value / v.limit } else { v.value };
    judged.reduce(|a, b| {
        let (x, y) = (&a.verdict, &b.verdict);
        if (!y.ok, share(y)) > (!x.ok, share(x)) { b } else { a }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_codegen::ir::DType;

    #[test]
    fn manifest_fields_reach_the_metric() {
        let parse = |text: &str| metric(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap());
        let gemm =
            parse(r#"{"metric":"gemm","calc_diff":1e-3,"elem":{"rel":0.01,"absdot_factor":0.02},"rows":"row < n"}"#);
        assert_eq!(
            gemm,
            Ok(Metric::Gemm { calc_diff: 1e-3, rel: 0.01, absdot_factor: 0.02, rows: Some("row < n".into()) })
        );
        assert!(parse(r#"{"metric":"exactly"}"#).unwrap_err().contains("`exactly`"));
        assert!(parse(r#"{"metric":"calc_diff"}"#).unwrap_err().contains("`max`"));
    }

    #[test]
    fn the_worst_output_is_the_one_shown() {
        let tensor = |x: f64| HostTensor::from_f64(DType::F32, &[1], &[x]);
        let map = |a: f64, b: f64| BTreeMap::from([("a".to_string(), tensor(a)), ("b".to_string(), tensor(b))]);
        let close = Metric::AllCloseOr { abs: 1.0, rel: 0.0, cos_diff: None };
        let metrics = [("a".to_string(), close.clone()), ("b".to_string(), close)];
        let pick = |a: f64, b: f64| worst(&metrics, &map(0.0, 0.0), &map(a, b), &Params::new()).unwrap();
        assert_eq!(pick(0.1, 0.5).output, "b");
        assert_eq!(pick(2.0, 0.5).output, "a");
        assert!(!pick(2.0, 0.5).verdict.ok);
        assert!(worst(&[], &map(0.0, 0.0), &map(0.0, 0.0), &Params::new()).is_none());
    }
}
