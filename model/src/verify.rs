//! Checks of a case folder: a tiny checkpoint beside the numbers expected of it.
//!
//! `case.json` holds a prompt, the greedy continuation and splits of the prompt; `expected.safetensors` the logits. Every check is
//! a row with its value and limit. Limits: two independent f32 implementations of these models differ by up to 5e-5 on logits of
//! deviation 2, and sums in another order by as much again, so 1.5e-4 where products keep all bits and 5e-4 on a device that
//! sums in an order of its own; splits of the prompt compare two runs of that kind, 5e-4. Seeds of the cases were chosen so that
//! no decision is closer than 2e-4, so ids are compared exactly.

use crate::checkpoint::safetensors::SafeTensors;
use crate::config::Family;
use crate::error::{Error, Result};
use crate::forward::{Model, Output, State};
use crate::layer::engram::{Tables, bucket_sizes};
use crate::speculate::accept_greedy;
use kiln_runtime::Device;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// One check.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// `logits`, `decode_logits`, `greedy`, `chunks 5+1+42`, ..
    pub name: String,
    /// Within the limit; `None` if it was not run.
    pub ok: Option<bool>,
    /// What was measured.
    pub value: f64,
    /// What is allowed.
    pub limit: f64,
    /// What was compared, or why not.
    pub reason: String,
}

/// A case's own file.
#[derive(Debug)]
struct Case {
    prompt: Vec<usize>,
    greedy: Vec<usize>,
    chunks: Vec<Vec<usize>>,
    mtp_greedy: Vec<usize>,
    qat_greedy: Vec<usize>,
    cycles: Vec<Cycle>,
    tables: Tables,
    bucket_sizes: Vec<Vec<usize>>,
}

/// One round of drafting and checking.
#[derive(Debug)]
struct Cycle {
    anchor: usize,
    draft: Vec<usize>,
    target: Vec<usize>,
    accepted: usize,
    confidence: Vec<f32>,
}

/// Largest difference of chunked and whole runs.
const CHUNK_LIMIT: f64 = 5e-4;

/// Largest difference of a tensor inside the network, as a share of its largest value: streams grow from layer to layer, and an
/// error of f32 grows with them. The tile VM differs from the cases by 2e-6 to 6e-6 of the largest value, about what a hundred
/// roundings of half a last bit in one direction add up to; the rest is for devices that sum in another order.
const PART_LIMIT: f64 = 1e-4;

/// Largest mean difference with the published roundings: a number near the middle of two codes falls either way when the sum
/// before it has another order, and moves its row by up to 0.5. One such row in 25 is allowed. The same network in f64 and
/// in f32 differs by 2e-4 on average; leaving the roundings out moves it by 0.45.
const ROUNDED_MEAN: f64 = 0.02;

/// Largest share of rows whose best token is another one for that reason: one row in fifty, where the two best logits of
/// random weights lie closer together than such a row moves.
const ROUNDED_ROWS: f64 = 0.02;

/// Largest difference of logits on a device.
fn limit(device: &str) -> f64 {
    if device == "cpu" || device.starts_with("vm:") { 1.5e-4 } else { 5e-4 }
}

/// Runs every check of a case.
///
/// # Errors
/// Files that cannot be read or do not agree; the model's errors.
pub fn run(dir: &Path, device: &Device) -> Result<Vec<Check>> {
    let case = read_case(dir)?;
    let model = Model::load_with(dir, device, &case.tables, false)?;
    let expected = SafeTensors::open(&dir.join("expected.safetensors"))?;
    let rows = |name: &str| -> Result<Option<Vec<f32>>> {
        if !expected.entries.contains_key(name) {
            return Ok(None);
        }
        Ok(Some(expected.tensor(name)?.to_f64().into_iter().map(|x| x as f32).collect()))
    };
    let limit = limit(device.name());
    let mut checks = vec![];

    let mut state = model.start();
    let first = model.step(&case.prompt, &mut state)?;
    let after_prompt = state.clone();
    let whole = model.ops.download(&first.logits)?;
    if let Some(want) = rows("logits")? {
        checks.push(close("logits", &whole, &want, limit, "largest absolute difference over the prompt"));
    } else {
        checks.push(skipped("logits", "expected.safetensors has none"));
    }

    // The continuation, token by token, fed as the case has it, so that one wrong id does not hide what follows.
    let vocab = model.config.vocab_size;
    let mut predicted = model.ops.argmax(&first.logits)?.split_off(case.prompt.len() - 1);
    let (mut decoded, mut streams) = (vec![], vec![]);
    for id in &case.greedy {
        let out = model.step(&[*id], &mut state)?;
        decoded.extend(model.ops.download(&out.logits)?);
        predicted.extend(model.ops.argmax(&out.logits)?);
        streams.push(out.streams);
    }
    if let Some(want) = rows("decode_logits")? {
        let reason = format!("largest absolute difference over {} tokens fed one by one", case.greedy.len());
        checks.push(close("decode_logits", &decoded, &want, limit, &reason));
    }
    if !case.greedy.is_empty() {
        let wrong = differing(&case.greedy, &predicted[..case.greedy.len().min(predicted.len())]);
        checks.push(equal("greedy", wrong, &format!("wrong ids of {}", case.greedy.len())));
    }

    for sizes in &case.chunks {
        let name = format!("chunks {}", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("+"));
        let (mut state, mut got, mut at) = (model.start(), Vec::with_capacity(whole.len()), 0);
        for &size in sizes {
            let ids = &case.prompt[at..at + size];
            got.extend(model.ops.download(&model.step(ids, &mut state)?.logits)?);
            at += size;
        }
        checks.push(close(&name, &got, &whole, CHUNK_LIMIT, "largest absolute difference from the whole prompt"));
    }

    if let (Some(mut memory), Some(h)) = (model.start_prediction(), &first.streams) {
        let tokens = [&case.prompt[..], &case.greedy].concat();
        let prompt = case.prompt.len();
        if tokens.len() > prompt {
            let logits = model.predict(h, &tokens[1..=prompt], 0, &mut memory)?;
            if let Some(want) = rows("mtp_logits")? {
                let got = model.ops.download(&logits)?;
                checks.push(close("mtp_logits", &got, &want, limit, "largest absolute difference over the prompt"));
            }
            let (mut got, mut ids) = (vec![], vec![]);
            for (i, h) in streams.iter().enumerate().take(tokens.len() - 1 - prompt) {
                let Some(h) = h else { continue };
                let at = prompt + i;
                let logits = model.predict(h, &tokens[at + 1..at + 2], at, &mut memory)?;
                got.extend(model.ops.download(&logits)?);
                ids.extend(model.ops.argmax(&logits)?);
            }
            if let Some(want) = rows("mtp_decode_logits")? {
                let reason = "largest absolute difference, position by position";
                checks.push(close("mtp_decode_logits", &got, &want, limit, reason));
            }
            if !case.mtp_greedy.is_empty() {
                let wrong = differing(&case.mtp_greedy, &ids);
                checks.push(equal("mtp_greedy", wrong, &format!("wrong ids of {}", case.mtp_greedy.len())));
            }
        }
    }

    // Parts of the network that a case may hold: streams after each layer here, the rest is not compared.
    let mut others = 0;
    for name in expected.entries.keys().filter(|n| n.starts_with("tap.")) {
        let layer = name.strip_prefix("tap.layers.").and_then(|n| n.strip_suffix(".out")).and_then(|n| n.parse().ok());
        let (Some(h), Some(want)) = (layer.and_then(|l: usize| first.of_layer.get(l)), rows(name)?) else {
            others += 1;
            continue;
        };
        let largest = want.iter().fold(0.0f64, |a, x| a.max(f64::from(x.abs())));
        let reason = format!("largest absolute difference of streams up to {largest:.1}");
        checks.push(close(name, &model.ops.download(h)?, &want, PART_LIMIT * largest, &reason));
    }
    if others > 0 {
        checks.push(skipped("tap.*", &format!("{others} tensors inside of layers are not compared")));
    }

    // V4.1: rows of the n-gram tables, and the entries each token saw.
    if let (Family::V41(f), false) = (&model.config.family, case.bucket_sizes.is_empty()) {
        let wrong = usize::from(bucket_sizes(&f.engram) != case.bucket_sizes);
        checks.push(equal("engram_bucket_sizes", wrong, "primes by the rule and in the case"));
    }
    for (layer, got) in model.engram_rows(&case.prompt)? {
        let name = format!("engram_rows.{layer}");
        if let Some(want) = rows(&name)? {
            let wrong =
                got.iter().zip(&want).filter(|(a, b)| **a != **b as i64).count() + got.len().abs_diff(want.len());
            checks.push(equal(&name, wrong, &format!("wrong rows of {}", want.len())));
        }
    }
    for (layer, got) in first.picks.iter().enumerate() {
        let name = format!("picks.{layer}");
        if let Some(want) = rows(&name)? {
            let each = want.len() / got.len().max(1);
            let row = |r: &[f32]| r.iter().filter(|x| **x >= 0.0).map(|x| *x as usize).collect::<BTreeSet<_>>();
            let same = |(got, want): (&Vec<usize>, &[f32])| got.iter().copied().collect::<BTreeSet<_>>() == row(want);
            let wrong = got.iter().zip(want.chunks(each.max(1))).filter(|p| !same((p.0, p.1))).count();
            checks.push(equal(&name, wrong, &format!("tokens of {} that saw other entries", got.len())));
        }
    }

    if !case.cycles.is_empty() {
        let main_x = rows("main_x_prompt")?;
        checks.extend(drafting(&model, &case, (&first, after_prompt), main_x, rows("draft_logits")?, limit)?);
    }

    // The published roundings: one rounding that falls the other way moves a row by up to 0.5, so means are compared.
    if let Some(want) = rows("qat_logits")? {
        let model = Model::load_with(dir, device, &case.tables, true)?;
        let mut state = model.start();
        let out = model.step(&case.prompt, &mut state)?;
        let got = model.ops.download(&out.logits)?;
        checks.extend(rounded("qat_logits", &model, &got, &want)?);
        if let Some(want) = rows("qat_decode_logits")? {
            let mut got = vec![];
            for id in case.qat_greedy.iter().take(want.len() / vocab) {
                got.extend(model.ops.download(&model.step(&[*id], &mut state)?.logits)?);
            }
            checks.extend(rounded("qat_decode_logits", &model, &got, &want)?);
        }
    }
    Ok(checks)
}

/// Blocks of drafts, each checked by the model in one step of a copy of the state, as the case's cycles have it.
fn drafting(
    model: &Model,
    case: &Case,
    (first, mut state): (&Output, State),
    main_x: Option<Vec<f32>>,
    logits: Option<Vec<f32>>,
    limit: f64,
) -> Result<Vec<Check>> {
    let mut checks = vec![];
    let (Some(drafter), Some(features)) = (&model.drafter, &first.features) else {
        let reason = "the case has drafts, the checkpoint no drafter".into();
        return Ok(vec![Check { name: "draft".into(), ok: Some(false), value: 1.0, limit: 0.0, reason }]);
    };
    if let Some(want) = main_x {
        let got = model.ops.download(&drafter.main_x(&model.ops, features)?)?;
        checks.push(close("main_x_prompt", &got, &want, limit, "largest absolute difference over the prompt"));
    }
    let mut memory = drafter.start();
    drafter.remember(&model.ops, features, &mut memory)?;
    let (mut rows, mut confidence, mut wrong, mut ids) = (vec![], vec![], 0, 0);
    let mut committed = model.ops.argmax(&first.logits)?.split_off(case.prompt.len() - 1);
    for cycle in &case.cycles {
        let token = committed.last().copied().unwrap_or(cycle.anchor);
        let draft = model.draft(token, &memory)?;
        let whole = [&[token], &draft.ids[..]].concat();
        // A copy: what the model has seen of drafts it rejects must leave no trace.
        let target = model.ops.argmax(&model.step(&whole, &mut state.clone())?.logits)?;
        let accepted = accept_greedy(&target, &draft.ids);
        wrong += differing(&draft.ids, &cycle.draft) + differing(&target, &cycle.target);
        wrong += usize::from(token != cycle.anchor) + usize::from(accepted != cycle.accepted);
        ids += draft.ids.len() + target.len() + 2;
        rows.extend(draft.logits);
        confidence.extend(draft.confidence);

        let kept = &whole[..accepted + 1];
        if let Some(features) = model.step(kept, &mut state)?.features {
            drafter.remember(&model.ops, &features, &mut memory)?;
        }
        committed.extend(&whole[1..=accepted]);
        committed.push(target[accepted]);
    }
    checks.push(equal("draft", wrong, &format!("wrong ids of {ids}: anchors, drafts, targets, numbers accepted")));
    if let Some(want) = logits {
        checks.push(close("draft_logits", &rows, &want, limit, "largest absolute difference over all blocks"));
    }
    let want: Vec<f32> = case.cycles.iter().flat_map(|c| c.confidence.iter().copied()).collect();
    // Of streams before the last norm, which have no fixed size: as far off as parts of a layer may be.
    let largest = want.iter().fold(0.0f64, |a, x| a.max(f64::from(x.abs())));
    let reason = format!("largest absolute difference of logits up to {largest:.1}");
    checks.push(close("draft_confidence", &confidence, &want, PART_LIMIT * largest, &reason));
    checks.push(lossless(&case.greedy, &committed));
    Ok(checks)
}

/// Committed ids are the first ones of plain greedy decoding. Cycles may end before it does, but every id they commit needs one
/// to be compared with.
fn lossless(greedy: &[usize], committed: &[usize]) -> Check {
    let judged = &greedy[..committed.len().min(greedy.len())];
    let reason = format!("committed ids of {} that plain greedy decoding does not give", committed.len());
    equal("draft_lossless", differing(judged, committed), &reason)
}

/// Places where two lists differ, or that only one has.
fn differing(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())
}

fn close(name: &str, got: &[f32], want: &[f32], limit: f64, reason: &str) -> Check {
    let distance = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    // A NaN on either side is a difference no limit allows.
    let worst =
        got.iter().zip(want).map(distance).fold(0.0, |w: f64, d| if d.is_nan() { f64::INFINITY } else { w.max(d) });
    let same = got.len() == want.len();
    let reason = if same { reason.into() } else { format!("{} numbers, expected {}", got.len(), want.len()) };
    Check { name: name.into(), ok: Some(same && worst <= limit), value: worst, limit, reason }
}

/// Mean distance, and the share of rows whose best token is another.
fn rounded(name: &str, model: &Model, got: &[f32], want: &[f32]) -> Result<[Check; 2]> {
    let vocab = model.config.vocab_size;
    let same = got.len() == want.len();
    let sum: f64 = got.iter().zip(want).map(|(a, b)| f64::from((a - b).abs())).sum();
    let mean = if same && sum.is_finite() { sum / want.len().max(1) as f64 } else { f64::INFINITY };
    let best = |x: &[f32]| -> Result<Vec<usize>> { model.ops.argmax(&model.ops.upload(&[x.len() / vocab, vocab], x)?) };
    let (a, b) = (best(got)?, best(want)?);
    let other = a.iter().zip(&b).filter(|(a, b)| a != b).count() as f64 / b.len().max(1) as f64;
    let check = |name: String, value: f64, limit: f64, reason: &str| Check {
        name,
        ok: Some(same && value <= limit),
        value,
        limit,
        reason: reason.into(),
    };
    Ok([
        check(name.into(), mean, ROUNDED_MEAN, "mean absolute difference with the published roundings"),
        check(format!("{name} argmax"), other, ROUNDED_ROWS, "share of rows with another best token"),
    ])
}

fn skipped(name: &str, reason: &str) -> Check {
    Check { name: name.into(), ok: None, value: f64::NAN, limit: f64::NAN, reason: reason.into() }
}

fn equal(name: &str, wrong: usize, reason: &str) -> Check {
    Check { name: name.into(), ok: Some(wrong == 0), value: wrong as f64, limit: 0.0, reason: reason.into() }
}

fn read_case(dir: &Path) -> Result<Case> {
    let place = dir.join("case.json");
    let fail = |expected: &str, got: String| Error::Input {
        place: place.clone(),
        expected: expected.into(),
        got,
        next: "name a folder with config.json, model.safetensors, case.json and expected.safetensors".into(),
    };
    let text = std::fs::read_to_string(&place).map_err(|e| fail("a readable file", e.to_string()))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| fail("JSON", e.to_string()))?;
    let ids = |key: &str, value: Option<&Value>| -> Result<Vec<usize>> {
        let Some(value) = value else { return Ok(vec![]) };
        let list = value.as_array().and_then(|l| l.iter().map(|x| x.as_u64().map(|x| x as usize)).collect());
        list.ok_or_else(|| fail(&format!("`{key}` as a list of whole numbers"), value.to_string()))
    };
    let prompt = ids("prompt", json.get("prompt"))?;
    if prompt.is_empty() {
        return Err(fail("`prompt` with at least one id", "none".into()));
    }
    let mut chunks = vec![];
    for check in json.get("chunk_checks").and_then(Value::as_array).into_iter().flatten() {
        let sizes = ids("chunk_checks.sizes", check.get("sizes"))?;
        if sizes.iter().sum::<usize>() != prompt.len() || sizes.contains(&0) {
            let want = format!("`chunk_checks.sizes` that add up to the prompt's {} tokens", prompt.len());
            return Err(fail(&want, format!("{sizes:?}")));
        }
        chunks.push(sizes);
    }
    let list = |key: &str| json.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut cycles = vec![];
    for c in list("cycles") {
        let numbers = c.get("confidence_logits").and_then(Value::as_array).into_iter().flatten();
        let count = |key: &str| c.get(key).and_then(Value::as_u64).map(|x| x as usize);
        let (Some(anchor), Some(accepted)) = (count("anchor"), count("accepted")) else {
            return Err(fail("`cycles` with `anchor` and `accepted`", c.to_string()));
        };
        cycles.push(Cycle {
            anchor,
            accepted,
            draft: ids("cycles.draft", c.get("draft"))?,
            target: ids("cycles.target", c.get("target"))?,
            confidence: numbers.filter_map(Value::as_f64).map(|x| x as f32).collect(),
        });
    }
    let layers = |key: &str| list(key).map(|l| ids(key, Some(l))).collect::<Result<Vec<_>>>();
    let tables = Tables {
        token_map: ids("engram_token_map", json.get("engram_token_map"))?.into_iter().map(|x| x as i32).collect(),
        multipliers: layers("engram_multipliers")?
            .into_iter()
            .map(|l| l.into_iter().map(|x| x as i64).collect())
            .collect(),
    };
    Ok(Case {
        cycles,
        tables,
        bucket_sizes: layers("engram_bucket_sizes")?,
        greedy: ids("greedy", json.get("greedy"))?,
        mtp_greedy: ids("mtp_greedy", json.get("mtp_greedy"))?,
        qat_greedy: ids("qat_greedy", json.get("qat_greedy"))?,
        prompt,
        chunks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_id_is_judged() {
        let ok = |greedy: &[usize], committed: &[usize]| lossless(greedy, committed).ok == Some(true);
        assert!(ok(&[1, 2, 3], &[1, 2, 3]) && ok(&[1, 2, 3], &[1, 2]));
        assert!(!ok(&[1, 2, 3], &[1, 4]), "another id");
        assert!(!ok(&[1, 2], &[1, 2, 3]), "an id that nothing is known of");
        assert!(!ok(&[], &[1]));
    }
}
