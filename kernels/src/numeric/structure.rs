//! Metrics that accept more than one answer: top-k sets and expert maps.

use super::{Comparison, Finding};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::ParamValue;

fn integers(t: &HostTensor) -> Vec<i64> {
    t.to_f64().into_iter().map(|x| x as i64).collect()
}

/// `topk_set`, row by row: with `n = min(k, end)`, the first `n` outputs are distinct indices in `[0, end)` plus the
/// row's offset, hold all of `must` and take the rest from `tie`; the others are the fill value.
pub(super) fn topk_set(got: &HostTensor, want: &HostTensor, c: &Comparison<'_>) -> Finding {
    match topk_rows(got, want, c) {
        Ok(()) => Finding::pass(0.0, 0.0),
        Err(reason) => Finding::broken(reason),
    }
}

fn topk_rows(got: &HostTensor, want: &HostTensor, c: &Comparison<'_>) -> Result<(), String> {
    let tensor = |name: &str| c.case.get(name).ok_or(format!("the metric `topk_set` needs the tensor `{name}`"));
    let &[rows, k] = want.shape.as_slice() else { return Err("the output of a top-k has two axes".into()) };
    let (must, tie) = (tensor("must")?, tensor("tie")?);
    let vocab = must.shape.last().copied().unwrap_or(0);
    let (must, tie) = (integers(must), integers(tie));
    let (needed, nan_rows) = (integers(tensor("ties_needed")?), integers(tensor("nan_rows")?));
    let ends = c.case.get("end").map(integers).unwrap_or(vec![vocab as i64; rows]);
    let offsets = c.case.get("output_idx_offset").map(integers).unwrap_or(vec![0; rows]);
    let fill = match c.params.get("idx_oob_fill_value") {
        Some(ParamValue::Int(x)) => *x,
        _ => return Err("the metric `topk_set` needs the parameter `idx_oob_fill_value`".into()),
    };
    let got = integers(got);
    for row in 0..rows {
        let end = ends[row].clamp(0, vocab as i64);
        let n = (k as i64).min(end) as usize;
        let out = &got[row * k..(row + 1) * k];
        if let Some(at) = (n..k).find(|&i| out[i] != fill) {
            return Err(format!("row {row}: {} instead of the fill value {fill} at {at}", out[at]));
        }
        let mut chosen = vec![false; vocab];
        // A row with NaN may say so in its first slot instead of holding an index there.
        if nan_rows[row] != 0 && out.first() == Some(&0x3f3f_3f3f) {
            continue;
        }
        for (at, &index) in out[..n].iter().enumerate() {
            let column = index - offsets[row];
            if column < 0 || column >= end {
                return Err(format!("row {row}: index {index} at {at} is outside [0, {end}) plus {}", offsets[row]));
            }
            if std::mem::replace(&mut chosen[column as usize], true) {
                return Err(format!("row {row}: index {index} occurs twice"));
            }
        }
        if nan_rows[row] != 0 {
            continue;
        }
        let mut ties = 0;
        for column in 0..vocab {
            let (must, tie) = (must[row * vocab + column] != 0, tie[row * vocab + column] != 0);
            if must && !chosen[column] {
                return Err(format!("row {row}: column {column} is among the largest and missing"));
            }
            if chosen[column] && !must {
                if !tie {
                    return Err(format!("row {row}: column {column} is smaller than the {n} largest"));
                }
                ties += 1;
            }
        }
        if ties != needed[row] {
            return Err(format!("row {row}: {ties} entries equal to the smallest kept one instead of {}", needed[row]));
        }
    }
    Ok(())
}

/// `moe_mapping`: every routed slot has one position inside its expert's range, the four maps agree about it, and all
/// other positions are -1. Maps of positions may be longer than the case's, which ends where the last expert does: the
/// caller trims the rest, which must be -1.
pub(super) fn moe_mapping(c: &Comparison<'_>) -> Finding {
    match maps_agree(c) {
        Ok(()) => Finding::pass(0.0, 0.0),
        Err(reason) => Finding::broken(reason),
    }
}

fn maps_agree(c: &Comparison<'_>) -> Result<(), String> {
    let expected = |name: &str| c.case.get(name).ok_or(format!("the metric `moe_mapping` needs the tensor `{name}`"));
    let produced = |name: &str| -> Result<Vec<i64>, String> {
        let (got, want) = (c.got.get(name).ok_or(format!("the output `{name}` is missing"))?, expected(name)?);
        let longer = got.shape.len() == 1 && want.shape.len() == 1 && got.shape[0] >= want.shape[0];
        if got.shape != want.shape && !longer {
            return Err(format!("`{name}` has shape {:?} instead of {:?}", got.shape, want.shape));
        }
        let mut got = integers(got);
        let rest = got.split_off(want.num_elements());
        match rest.iter().position(|&x| x != -1) {
            Some(at) => Err(format!("`{name}` has {} past its end, at {}", rest[at], got.len() + at)),
            None => Ok(got),
        }
    };
    let topk = expected("topk_idx")?;
    let slots = topk.shape.last().copied().unwrap_or(1).max(1);
    let topk = integers(topk);
    let (start, end) = (integers(expected("expert_start")?), integers(expected("expert_end")?));
    let (to_expert, to_token) = (produced("pos_to_expert")?, produced("pos_to_token")?);
    let (to_slot, to_pos) = (produced("pos_to_token_topk")?, produced("token_topk_to_pos")?);
    let mut used = vec![false; to_expert.len()];
    for (flat, (&expert, &pos)) in topk.iter().zip(&to_pos).enumerate() {
        let slot = format!("token {} slot {}", flat / slots, flat % slots);
        if expert < 0 {
            if pos != -1 {
                return Err(format!("{slot} goes to no expert but has position {pos}"));
            }
            continue;
        }
        let (from, to) = match (start.get(expert as usize), end.get(expert as usize)) {
            (Some(&from), Some(&to)) => (from, to),
            _ => return Err(format!("{slot} names expert {expert}, which does not exist")),
        };
        if pos < from || pos >= to {
            return Err(format!("{slot} has position {pos}, outside the range [{from}, {to}) of expert {expert}"));
        }
        let at = pos as usize;
        if std::mem::replace(&mut used[at], true) {
            return Err(format!("position {pos} is given twice"));
        }
        let (want, have) = ([expert, (flat / slots) as i64, flat as i64], [to_expert[at], to_token[at], to_slot[at]]);
        if want != have {
            return Err(format!("position {pos} belongs to {slot} but is mapped to {have:?} instead of {want:?}"));
        }
    }
    for (at, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
        if [to_expert[at], to_token[at], to_slot[at]] != [-1, -1, -1] {
            return Err(format!("position {at} is padding but is not mapped to -1"));
        }
    }
    Ok(())
}
