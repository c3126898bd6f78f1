//! Which shapes of which operators are measured: from options, from a file, or the declared ones.

use crate::catalog::{self, Selection};
use crate::failure::Failure;
use crate::instance::shape_text;
use kiln_codegen::spec::OpSpec;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A shape to measure.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Bench name.
    pub op: String,
    /// The operator; `None` if this build has none of that name.
    pub selection: Option<Selection>,
    /// Sizes in the order of the operator's keys.
    pub shape: Vec<(String, usize)>,
}

fn wanted(s: &Selection, shape: Vec<(String, usize)>) -> Wanted {
    let info = s.op.info();
    Wanted { op: info.bench_name.unwrap_or(info.name).into(), selection: Some(s.clone()), shape }
}

/// Shapes from the command line: those given, or the declared ones of the named operators.
///
/// # Errors
/// Unknown names or keys; shapes without an operator to apply them to.
pub fn choose(ops: &[Arc<dyn OpSpec>], names: &[String], texts: &[String]) -> Result<Vec<Wanted>, Failure> {
    if !texts.is_empty() && names.is_empty() {
        return Err(Failure::usage(
            "--shape",
            "the operator it is a shape of",
            "no NAME",
            "write `kiln bench NAME --shape K=V,..`",
        ));
    }
    let mut out = vec![];
    for s in catalog::select(ops, names)? {
        if s.op.bench_keys().is_empty() {
            if !names.is_empty() {
                let benched: Vec<&str> =
                    ops.iter().filter(|o| !o.bench_keys().is_empty()).map(|o| o.info().name).collect();
                return Err(Failure::usage(
                    "NAME",
                    "an operator with a bench",
                    format!("`{}`, which declares none", s.op.info().name),
                    &format!("there are: {}", benched.join(", ")),
                ));
            }
            continue;
        }
        if texts.is_empty() {
            out.extend(s.op.bench_shapes().into_iter().map(|shape| wanted(&s, shape)));
        }
        for text in texts {
            out.push(wanted(&s, catalog::shape(s.op.as_ref(), text)?));
        }
    }
    Ok(out)
}

/// Shapes from a file. Lines of operators this build lacks are kept, to be reported as skipped.
///
/// # Errors
/// A file that cannot be read, a line that is neither form, an unknown key.
pub fn read(ops: &[Arc<dyn OpSpec>], path: &Path) -> Result<Vec<Wanted>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::usage(path.display(), "a readable file of shapes", e, "one `OP K=V,..` or JSON object a line")
    })?;
    let mut out: Vec<Wanted> = vec![];
    for (i, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{}:{i}", path.display());
        let (name, shape) = split(line).ok_or_else(|| {
            let shown: String = line.chars().take(60).collect();
            Failure::usage(&place, "`OP K=V,..` or a JSON object with op and shape", format!("`{shown}`"), "")
        })?;
        let Ok(s) = catalog::find(ops, &name) else {
            out.push(Wanted { op: name, selection: None, shape: vec![] });
            continue;
        };
        let shape = catalog::shape(s.op.as_ref(), &shape).map_err(|e| match e {
            Failure::Usage(m) => Failure::Usage(format!("{place}: {m}")),
            Failure::Failed(_) | Failure::Environment(_) | Failure::ClosedPipe => e,
        })?;
        out.push(wanted(&s, shape));
    }
    // Files of results name a shape once a peer.
    let mut seen = std::collections::BTreeSet::new();
    out.retain(|w| seen.insert((w.op.clone(), shape_text(&w.shape))));
    Ok(out)
}

/// Name and shape text of a line of either form.
fn split(line: &str) -> Option<(String, String)> {
    if line.starts_with('{') {
        let json: Value = serde_json::from_str(line).ok()?;
        let pairs: Vec<String> = json
            .get("shape")?
            .as_object()?
            .iter()
            .map(|(k, v)| format!("{k}={}", v.as_str().map_or(v.to_string(), String::from)))
            .collect();
        return Some((json.get("op")?.as_str()?.into(), pairs.join(",")));
    }
    let (name, shape) = line.split_once(char::is_whitespace)?;
    Some((name.into(), shape.trim().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_forms() {
        let want = Some(("rmsnorm_bf16".to_string(), "tokens=4,hidden=8".to_string()));
        assert_eq!(split("rmsnorm_bf16  tokens=4,hidden=8"), want);
        assert_eq!(split(r#"{"op":"rmsnorm_bf16","shape":{"tokens":4,"hidden":8},"peer":"x"}"#), want);
        assert_eq!(split("rmsnorm_bf16"), None);
        assert_eq!(split("{}"), None);
    }
}
