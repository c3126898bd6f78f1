//! Metrics that compare element by element: bytes, distances, fp8 codes, scales.

use super::{Comparison, Finding, calc_diff, position};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;

/// Equal bytes, or equal after exact widening if the stored type is wider than the kernel's.
pub(super) fn bit_exact(got: &HostTensor, want: &HostTensor) -> Finding {
    let n = want.num_elements();
    let differs: Vec<usize> = if got.dtype == want.dtype {
        (0..n).filter(|&i| got.bits(i) != want.bits(i)).collect()
    } else {
        let (g, w) = (got.to_f64(), want.to_f64());
        (0..n).filter(|&i| g[i].to_bits() != w[i].to_bits() && !(g[i].is_nan() && w[i].is_nan())).collect()
    };
    let count = differs.len() as f64;
    match differs.first() {
        None => Finding::pass(0.0, 0.0),
        Some(&i) => Finding::fail(
            count,
            0.0,
            format!(
                "{count} of {n} elements differ, the first at {}: {} ({:#x}) instead of {} ({:#x})",
                position(&want.shape, i),
                got.to_f64()[i],
                got.bits(i),
                want.to_f64()[i],
                want.bits(i)
            ),
        ),
    }
}

/// The first place where exactly one side is NaN or infinite, or both are infinite with different signs.
fn anomaly(got: &[f64], want: &[f64], shape: &[usize], judged: &dyn Fn(usize) -> bool) -> Option<Finding> {
    let kind = |x: f64| {
        if x.is_nan() {
            3
        } else if x == f64::INFINITY {
            1
        } else if x == f64::NEG_INFINITY {
            2
        } else {
            0
        }
    };
    let at = (0..want.len()).find(|&i| judged(i) && kind(got[i]) != kind(want[i]))?;
    Some(Finding::broken(format!("{} instead of {} at {}", got[at], want[at], position(shape, at))))
}

/// Numbers of both sides with everything that is not judged or not finite set to zero.
fn finite_part(
    got: &HostTensor,
    want: &HostTensor,
    judged: &dyn Fn(usize) -> bool,
) -> Result<(Vec<f64>, Vec<f64>), Finding> {
    let (mut g, mut w) = (got.to_f64(), want.to_f64());
    if let Some(found) = anomaly(&g, &w, &want.shape, judged) {
        return Err(found);
    }
    for i in 0..w.len() {
        if !judged(i) || !w[i].is_finite() {
            (g[i], w[i]) = (0.0, 0.0);
        }
    }
    Ok((g, w))
}

/// The element that uses the largest share of its allowance: (share, index). A share above 1 is a failure.
fn worst(g: &[f64], w: &[f64], allowance: impl Fn(usize) -> f64) -> (f64, usize) {
    let mut found = (0.0, 0);
    for i in 0..w.len() {
        let error = (g[i] - w[i]).abs();
        let share = if error == 0.0 { 0.0 } else { error / allowance(i) };
        if share > found.0 {
            found = (share, i);
        }
    }
    found
}

fn describe(g: &[f64], w: &[f64], shape: &[usize], i: usize, allowed: f64) -> String {
    format!(
        "{} instead of {} at {}: error {:.3e}, allowed {allowed:.3e}",
        g[i],
        w[i],
        position(shape, i),
        (g[i] - w[i]).abs()
    )
}

/// `allclose_or`. The value is the largest share of its allowance that an element uses.
pub(super) fn all_close_or(got: &HostTensor, want: &HostTensor, abs: f64, rel: f64, cos_diff: Option<f64>) -> Finding {
    let (g, w) = match finite_part(got, want, &|_| true) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    let allowance = |i: usize| abs.max(rel * (w[i].abs() + 1e-6));
    let (share, i) = worst(&g, &w, allowance);
    if share >= 1.0 {
        return Finding::fail(share, 1.0, describe(&g, &w, &want.shape, i, allowance(i)));
    }
    if let Some(limit) = cos_diff {
        let value = calc_diff(&g, &w);
        // Nothing can be said about the direction of an (almost) zero tensor.
        let large_enough = w.iter().map(|x| x * x).sum::<f64>() >= 1e-12;
        if large_enough && (value > limit || value.is_nan()) {
            return Finding::fail(value, limit, format!("calc_diff {value:.3e} is above {limit:.3e}"));
        }
    }
    Finding::pass(share, 1.0)
}

/// `calc_diff`, optionally with an element bound and rules of the judged columns and rows.
pub(super) fn calc_diff_metric(
    got: &HostTensor,
    want: &HostTensor,
    max: f64,
    elem: Option<(f64, f64)>,
    [cols, rows]: [Option<&str>; 2],
    c: &Comparison<'_>,
) -> Finding {
    let columns = want.shape.last().copied().unwrap_or(1).max(1);
    let limits = match cols {
        None => None,
        Some(rule) => match column_limits(rule, want.num_elements() / columns, c) {
            Ok(limits) => Some(limits),
            Err(reason) => return Finding::broken(reason),
        },
    };
    let live = match rows.map(|rule| live_rows(rule, &want.shape, c)).transpose() {
        Ok(live) => live,
        Err(reason) => return Finding::broken(reason),
    };
    let judged = |i: usize| {
        limits.as_ref().is_none_or(|l| ((i % columns) as f64) < l[i / columns])
            && live.as_ref().is_none_or(|l| l[i / columns])
    };
    let (g, w) = match finite_part(got, want, &judged) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    let value = calc_diff(&g, &w);
    if value > max || value.is_nan() {
        return Finding::fail(value, max, format!("calc_diff {value:.3e} is above {max:.3e}"));
    }
    if let Some((abs, rel)) = elem {
        let allowed = abs + rel * w.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let (share, i) = worst(&g, &w, |_| allowed);
        if share > 1.0 {
            return Finding::fail(share, 1.0, describe(&g, &w, &want.shape, i, allowed));
        }
    }
    Finding::pass(value, max)
}

/// `gemm`: the global distance, and a bound for each element from the sum of absolute products.
pub(super) fn gemm(
    got: &HostTensor,
    want: &HostTensor,
    limit: f64,
    rel: f64,
    absdot_factor: f64,
    rows: Option<&str>,
    c: &Comparison<'_>,
) -> Finding {
    let Some(absdot) = c.case.get("absdot").filter(|t| t.shape == want.shape).map(HostTensor::to_f64) else {
        return Finding::broken("the metric `gemm` needs the tensor `absdot` in the output's shape".into());
    };
    let columns = want.shape.last().copied().unwrap_or(1).max(1);
    let live = match rows {
        None => None,
        Some(rule) => match live_rows(rule, &want.shape, c) {
            Ok(live) => Some(live),
            Err(reason) => return Finding::broken(reason),
        },
    };
    let judged = |i: usize| live.as_ref().is_none_or(|l| l[i / columns]);
    let (g, w) = match finite_part(got, want, &judged) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    let value = calc_diff(&g, &w);
    if value > limit || value.is_nan() {
        return Finding::fail(value, limit, format!("calc_diff {value:.3e} is above {limit:.3e}"));
    }
    let allowance = |i: usize| rel * w[i].abs() + absdot_factor * absdot[i];
    let (share, i) = worst(&g, &w, allowance);
    if share > 1.0 {
        return Finding::fail(share, 1.0, describe(&g, &w, &want.shape, i, allowance(i)));
    }
    Finding::pass(value, limit)
}

/// Judged columns of each row, from `col < NAME[row]..`.
fn column_limits(rule: &str, rows: usize, c: &Comparison<'_>) -> Result<Vec<f64>, String> {
    let name = rule.strip_prefix("col < ").and_then(|r| r.split_once("[row]")).map(|(name, _)| name);
    let name = name.ok_or(format!("the rule of judged columns `{rule}` is not known"))?;
    let limits = c.case.get(name).ok_or(format!("the rule `{rule}` names a tensor the case does not have"))?;
    if limits.num_elements() != rows {
        return Err(format!("`{name}` has {} entries for {rows} rows", limits.num_elements()));
    }
    Ok(limits.to_f64())
}

/// Which rows are judged, from `NAME >= 0..` (one entry a row) or `row < NAME[group]..` (one entry a group of rows).
pub(super) fn live_rows(rule: &str, shape: &[usize], c: &Comparison<'_>) -> Result<Vec<bool>, String> {
    let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let tensor = |name: &str| {
        c.case
            .get(name)
            .map(HostTensor::to_f64)
            .ok_or(format!("the rule `{rule}` names a tensor the case does not have"))
    };
    if let Some((name, _)) = rule.strip_prefix("row < ").and_then(|r| r.split_once("[group]")) {
        let counts = tensor(name)?;
        let per_group = shape.get(shape.len().saturating_sub(2)).copied().unwrap_or(0);
        if counts.len() * per_group != rows {
            return Err(format!("`{name}` has {} entries for {rows} rows of {per_group} a group", counts.len()));
        }
        return Ok((0..rows).map(|r| ((r % per_group) as f64) < counts[r / per_group]).collect());
    }
    let name = rule.split_once(" >= 0").map(|(name, _)| name);
    let groups = tensor(name.ok_or(format!("the rule of judged rows `{rule}` is not known"))?)?;
    if groups.len() != rows {
        return Err(format!("the rule `{rule}` has {} entries for {rows} rows", groups.len()));
    }
    Ok(groups.iter().map(|&g| g >= 0.0).collect())
}

/// `fp8_codes`: e4m3 codes in the order of their values, both zeros alike.
pub(super) fn fp8_codes(got: &HostTensor, want: &HostTensor, max_step: u32, max_fraction: f64) -> Finding {
    if got.dtype != DType::E4m3 || want.dtype != DType::E4m3 {
        return Finding::broken(format!("codes of type {} and {} instead of e4m3", got.dtype, want.dtype));
    }
    let rank = |code: u8| {
        let magnitude = (code & 0x7f) as i32;
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    };
    let nan = |code: u8| code & 0x7f == 0x7f;
    let mut mismatches = 0usize;
    for (i, (&g, &w)) in got.data.iter().zip(&want.data).enumerate() {
        if nan(g) != nan(w) {
            return Finding::broken(format!("code {g:#04x} instead of {w:#04x} at {}", position(&want.shape, i)));
        }
        let step = if nan(g) { 0 } else { rank(g).abs_diff(rank(w)) };
        if step > max_step {
            return Finding::fail(
                step as f64,
                max_step as f64,
                format!("code {g:#04x} is {step} steps from {w:#04x} at {}", position(&want.shape, i)),
            );
        }
        mismatches += usize::from(step > 0);
    }
    let fraction = mismatches as f64 / want.data.len().max(1) as f64;
    if fraction > max_fraction {
        let reason = format!("{mismatches} of {} codes differ, allowed {:.3} %", want.data.len(), 100.0 * max_fraction);
        return Finding::fail(fraction, max_fraction, reason);
    }
    Finding::pass(fraction, max_fraction)
}

/// `pow2_or_close`: scales of the blocks of the case's `act` along its last axis, for e4m3.
pub(super) fn pow2_or_close(got: &HostTensor, want: &HostTensor, rel: f64, within: f64, c: &Comparison<'_>) -> Finding {
    let (g, w) = (got.to_f64(), want.to_f64());
    let blocks = want.shape.last().copied().unwrap_or(1);
    let mut steps = 0usize;
    for i in 0..w.len() {
        let place = || position(&want.shape, i);
        if (g[i] - w[i]).abs() <= rel * w[i].abs() {
            continue;
        }
        let reason = if g[i] != 2.0 * w[i] && w[i] != 2.0 * g[i] {
            format!("scale {:e} instead of {:e} at {}: more than one step", g[i], w[i], place())
        } else {
            match block_maximum(c, i / blocks, i % blocks) {
                Err(reason) => reason,
                // The boundary between both powers of two is the smaller one: a larger quotient takes the larger power.
                Ok(amax) if (amax / 448.0 / g[i].min(w[i]) - 1.0).abs() <= within => {
                    steps += 1;
                    continue;
                }
                Ok(amax) => format!(
                    "scale {:e} instead of {:e} at {}: block maximum {amax:e} is not at the boundary",
                    g[i],
                    w[i],
                    place()
                ),
            }
        };
        return Finding::broken(reason);
    }
    Finding::pass(steps as f64, w.len() as f64)
}

/// Largest magnitude of block `block` in row `row` of the expected `act`.
fn block_maximum(c: &Comparison<'_>, row: usize, block: usize) -> Result<f64, String> {
    let act = c.case.get("act").ok_or("the metric `pow2_or_close` needs the tensor `act`")?;
    let group = match c.params.get("gran_k") {
        Some(kiln_codegen::spec::ParamValue::Int(g)) if *g > 0 => *g as usize,
        _ => return Err("the metric `pow2_or_close` needs the parameter `gran_k`".into()),
    };
    let columns = act.shape.last().copied().unwrap_or(0);
    let values = act.to_f64();
    let (from, to) = (block * group, ((block + 1) * group).min(columns));
    values
        .get(row * columns + from..row * columns + to)
        .map(|part| part.iter().fold(0.0, |m: f64, x| m.max(x.abs())))
        .ok_or_else(|| "`act` is smaller than its scales".into())
}
