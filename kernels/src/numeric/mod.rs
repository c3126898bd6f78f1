//! The numeric judge: how a kernel's outputs are compared with expected ones, and rounding for references.
//!
//! Pure functions over host tensors. Metrics and their names are those of the golden cases' manifest; reading files and
//! choosing cases is the caller's. [`round`] holds number formats for references.

mod elementwise;
pub mod round;
mod structure;

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Params, Tolerance};
use std::collections::BTreeMap;

/// Tensors by name.
pub type Tensors = BTreeMap<String, HostTensor>;

/// How one output is judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// Equal bytes. If the kernel's type is narrower than the stored one, equal after exact widening.
    BitExact,
    /// Each element has absolute error below `abs`, or relative error `|e| / (|want| + 1e-6)` below `rel`; infinities and
    /// NaN stand at the same places; optionally [`calc_diff`] is bounded.
    AllCloseOr {
        /// Absolute bound.
        abs: f64,
        /// Relative bound.
        rel: f64,
        /// Bound on `calc_diff`.
        cos_diff: Option<f64>,
    },
    /// [`calc_diff`] is bounded; optionally each element is within `abs + rel * max|want|`.
    CalcDiff {
        /// Bound.
        max: f64,
        /// Absolute and relative element bound.
        elem: Option<(f64, f64)>,
        /// Which columns are judged, as in the manifest: `col < NAME[row]`.
        cols: Option<String>,
        /// Which rows are judged, as in the manifest: `NAME >= 0` or `row < NAME[group]`.
        rows: Option<String>,
    },
    /// [`calc_diff`] is bounded, and each element is within `rel * |want| + absdot_factor * absdot`, where the case's
    /// `absdot` tensor holds the sum of `|a||b|`. The global number hides single wrong elements, this one finds them.
    Gemm {
        /// Bound on `calc_diff`.
        calc_diff: f64,
        /// Relative element bound.
        rel: f64,
        /// Factor of `absdot`.
        absdot_factor: f64,
        /// Which rows are judged, as in the manifest: `NAME >= 0` or `row < NAME[group]`.
        rows: Option<String>,
    },
    /// e4m3 codes differ by at most some neighbours, in at most a share of the elements.
    Fp8Codes {
        /// Largest step.
        max_code_step: u32,
        /// Largest share of elements that differ.
        max_mismatch_fraction: f64,
    },
    /// A power-of-two scale: equal, or one step away if the block maximum of `act` is within the given relative distance
    /// of the boundary between both.
    Pow2OrClose {
        /// Relative difference that counts as equal.
        rel: f64,
        /// Distance to the boundary that excuses one step.
        allow_one_step_if_amax_within: f64,
    },
    /// Indices of the k largest values, any choice among equal ones; the case's tensors `must`, `tie`, `ties_needed` and
    /// `nan_rows` say which.
    TopkSet,
    /// The four maps between token slots and positions agree with each other; the order within an expert is free.
    MoeMapping,
}

impl Metric {
    /// The metric of a manifest entry. `number` and `text` look up its fields; nested ones are written `elem.rel`.
    ///
    /// # Errors
    /// A metric that is unknown, or a field that is missing.
    pub fn from_fields(
        metric: &str,
        number: &dyn Fn(&str) -> Option<f64>,
        text: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Metric, String> {
        let need = |field: &str| number(field).ok_or(format!("tolerance `{metric}` needs the number `{field}`"));
        Ok(match metric {
            "bitexact" => Metric::BitExact,
            "allclose_or" => Metric::AllCloseOr { abs: need("abs")?, rel: need("rel")?, cos_diff: number("cos_diff") },
            "calc_diff" => Metric::CalcDiff {
                max: need("max")?,
                elem: number("elem.abs").zip(number("elem.rel")),
                cols: text("cols"),
                rows: text("rows"),
            },
            "gemm" => Metric::Gemm {
                calc_diff: need("calc_diff")?,
                rel: need("elem.rel")?,
                absdot_factor: need("elem.absdot_factor")?,
                rows: text("rows"),
            },
            "fp8_codes" => Metric::Fp8Codes {
                max_code_step: need("max_code_step")? as u32,
                max_mismatch_fraction: need("max_mismatch_fraction")?,
            },
            "pow2_or_close" => Metric::Pow2OrClose {
                rel: need("rel")?,
                allow_one_step_if_amax_within: need("allow_one_step_if_amax_within")?,
            },
            "topk_set" => Metric::TopkSet,
            "moe_mapping" => Metric::MoeMapping,
            other => return Err(format!("tolerance metric `{other}` is not known")),
        })
    }

    /// Name in the manifest.
    pub fn name(&self) -> &'static str {
        match self {
            Metric::BitExact => "bitexact",
            Metric::AllCloseOr { .. } => "allclose_or",
            Metric::CalcDiff { .. } => "calc_diff",
            Metric::Gemm { .. } => "gemm",
            Metric::Fp8Codes { .. } => "fp8_codes",
            Metric::Pow2OrClose { .. } => "pow2_or_close",
            Metric::TopkSet => "topk_set",
            Metric::MoeMapping => "moe_mapping",
        }
    }
}

impl From<Tolerance> for Metric {
    fn from(t: Tolerance) -> Metric {
        match t {
            Tolerance::BitExact => Metric::BitExact,
            Tolerance::AllCloseOr { abs, rel, cos_diff } => Metric::AllCloseOr { abs, rel, cos_diff },
            Tolerance::CalcDiff { max } => Metric::CalcDiff { max, elem: None, cols: None, rows: None },
            Tolerance::CalcDiffRows { max, rows } => {
                Metric::CalcDiff { max, elem: None, cols: None, rows: Some(rows.into()) }
            }
            Tolerance::Fp8Codes { max_code_step, max_mismatch_fraction } => {
                Metric::Fp8Codes { max_code_step, max_mismatch_fraction }
            }
        }
    }
}

/// What a metric may look at.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// Everything known of the case: inputs, auxiliary tensors and expected outputs.
    pub case: &'a Tensors,
    /// What the kernel produced; some metrics look at several outputs together.
    pub got: &'a Tensors,
    /// Parameters of the case.
    pub params: &'a Params,
}

/// The result of judging one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Name of the metric.
    pub metric: &'static str,
    /// The measured number; which one depends on the metric, it is compared with `limit`.
    pub value: f64,
    /// What the number may be at most.
    pub limit: f64,
    /// The output is accepted.
    pub ok: bool,
    /// Why it is not, with the first or worst element; empty if it is.
    pub reason: String,
}

/// The measured number beside its limit; a reason makes it a failure.
struct Finding {
    value: f64,
    limit: f64,
    reason: Option<String>,
}

impl Finding {
    fn pass(value: f64, limit: f64) -> Finding {
        Finding { value, limit, reason: None }
    }
    fn fail(value: f64, limit: f64, reason: String) -> Finding {
        Finding { value, limit, reason: Some(reason) }
    }
    /// Something that has no measure: a wrong shape, a misplaced NaN, an inconsistent map.
    fn broken(reason: String) -> Finding {
        Finding { value: f64::INFINITY, limit: 0.0, reason: Some(reason) }
    }
}

/// Judges the output `name`.
pub fn judge(name: &str, metric: &Metric, comparison: &Comparison<'_>) -> Verdict {
    let found = match (comparison.got.get(name), comparison.case.get(name)) {
        (None, _) => Finding::broken(format!("the output `{name}` is missing")),
        (_, None) => Finding::broken(format!("the case expects no output `{name}`")),
        // Maps of positions are checked together, and may be longer than needed.
        (Some(got), Some(want)) if got.shape != want.shape && *metric != Metric::MoeMapping => {
            Finding::broken(format!("shape {:?} instead of {:?}", got.shape, want.shape))
        }
        (Some(got), Some(want)) => match metric {
            Metric::BitExact => elementwise::bit_exact(got, want),
            Metric::AllCloseOr { abs, rel, cos_diff } => elementwise::all_close_or(got, want, *abs, *rel, *cos_diff),
            Metric::CalcDiff { max, elem, cols, rows } => {
                let limits = [cols.as_deref(), rows.as_deref()];
                elementwise::calc_diff_metric(got, want, *max, *elem, limits, comparison)
            }
            Metric::Gemm { calc_diff, rel, absdot_factor, rows } => {
                elementwise::gemm(got, want, *calc_diff, *rel, *absdot_factor, rows.as_deref(), comparison)
            }
            Metric::Fp8Codes { max_code_step, max_mismatch_fraction } => {
                elementwise::fp8_codes(got, want, *max_code_step, *max_mismatch_fraction)
            }
            Metric::Pow2OrClose { rel, allow_one_step_if_amax_within } => {
                elementwise::pow2_or_close(got, want, *rel, *allow_one_step_if_amax_within, comparison)
            }
            Metric::TopkSet => structure::topk_set(got, want, comparison),
            Metric::MoeMapping => structure::moe_mapping(comparison),
        },
    };
    Verdict {
        metric: metric.name(),
        value: found.value,
        limit: found.limit,
        ok: found.reason.is_none(),
        reason: found.reason.unwrap_or_default(),
    }
}

/// Which rows of an output of this shape are specified; `None` if all are.
///
/// # Errors
/// A rule that is not known, or that names a tensor the case does not have.
pub fn specified_rows(metric: &Metric, shape: &[usize], c: &Comparison<'_>) -> Result<Option<Vec<bool>>, String> {
    match metric {
        Metric::CalcDiff { rows: Some(rule), .. } | Metric::Gemm { rows: Some(rule), .. } => {
            elementwise::live_rows(rule, shape, c).map(Some)
        }
        Metric::CalcDiff { .. }
        | Metric::Gemm { .. }
        | Metric::BitExact
        | Metric::AllCloseOr { .. }
        | Metric::Fp8Codes { .. }
        | Metric::Pow2OrClose { .. }
        | Metric::TopkSet
        | Metric::MoeMapping => Ok(None),
    }
}

/// Global distance of two tensors: `1 - 2<x,y> / (<x,x> + <y,y>)` in f64, 0 when both are zero.
pub fn calc_diff(x: &[f64], y: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(p, q)| p * q).sum::<f64>();
    let norms = dot(x, x) + dot(y, y);
    if norms == 0.0 { 0.0 } else { 1.0 - 2.0 * dot(x, y) / norms }
}

/// Position of a flat index, as a reader writes it.
fn position(shape: &[usize], flat: usize) -> String {
    let mut rest = flat;
    let mut axes = vec![0; shape.len()];
    for (axis, extent) in shape.iter().enumerate().rev() {
        axes[axis] = rest % extent.max(&1);
        rest /= extent.max(&1);
    }
    format!("{axes:?}")
}

#[cfg(test)]
mod tests;
