//! Checks of a case folder: a tiny checkpoint beside the numbers expected of it.
//!
//! `case.json` holds a prompt, the greedy continuation and splits of the prompt; `expected.safetensors` the logits. Every check is
//! a row with its value and limit. Limits: two independent f32 implementations of these models differ by up to 5e-5 on logits of
//! deviation 2, and sums in another order by as much again, so 1.5e-4 where products keep all bits and 5e-4 on a device that
//! sums in an order of its own; splits of the prompt compare two runs of that kind, 5e-4. Seeds of the cases were chosen so that
//! no decision is closer than 2e-4, so ids are compared exactly.

use crate::checkpoint::safetensors::SafeTensors;
use crate::error::{Error, Result};
use crate::forward::Model;
use kiln_runtime::Device;
use serde_json::Value;
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
}

/// Largest difference of chunked and whole runs.
const CHUNK_LIMIT: f64 = 5e-4;

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
    let model = Model::load(dir, device)?;
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
    let whole = model.ops.download(&first.logits)?;
    if let Some(want) = rows("logits")? {
        checks.push(close("logits", &whole, &want, limit, "largest absolute difference over the prompt"));
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
        let wrong = case.greedy.iter().zip(&predicted).filter(|(a, b)| a != b).count();
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
                let wrong = case.mtp_greedy.iter().zip(&ids).filter(|(a, b)| a != b).count();
                checks.push(equal("mtp_greedy", wrong, &format!("wrong ids of {}", case.mtp_greedy.len())));
            }
        }
    }

    // What this version computes nothing for is said, not passed over.
    for (name, why) in [
        ("qat_logits", "the published rounding of activations is not implemented"),
        ("draft_logits", "block drafting is not implemented"),
    ] {
        if expected.entries.contains_key(name) {
            let reason = why.to_string();
            checks.push(Check { name: name.into(), ok: None, value: f64::NAN, limit: f64::NAN, reason });
        }
    }
    debug_assert!(decoded.len() == case.greedy.len() * vocab);
    Ok(checks)
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
    Ok(Case {
        greedy: ids("greedy", json.get("greedy"))?,
        mtp_greedy: ids("mtp_greedy", json.get("mtp_greedy"))?,
        prompt,
        chunks,
    })
}
