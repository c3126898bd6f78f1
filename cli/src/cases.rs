//! Folders of golden cases: `manifest.json` and one `.safetensors` file a case.
//!
//! Reading and checking only: sizes, hashes, dtypes and shapes against the manifest. Judging outputs is `judge`'s.

use crate::failure::Failure;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{ParamValue, Params};
use kiln_model::checkpoint::safetensors::{SafeTensors, parse_dtype};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The format of manifests this reader knows.
const FORMAT: u64 = 1;

/// What a tensor of a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Given to the operator.
    Input,
    /// Expected from the operator.
    Output,
    /// Given to the judge only.
    Aux,
}

/// A tensor as the manifest describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseTensor {
    /// What it is for.
    pub role: Role,
    /// Dtype in the file.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// How an output is judged, as the manifest writes it.
    pub tolerance: Option<Map<String, Value>>,
}

/// A case as the manifest describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldenCase {
    /// Unique id, `op.name`.
    pub id: String,
    /// Operator.
    pub op: String,
    /// File beside the manifest.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// Hash of the file, lower-case hex.
    pub sha256: String,
    /// Parameters of the problem.
    pub params: Params,
    /// Tensors by name.
    pub tensors: BTreeMap<String, CaseTensor>,
}

/// A folder of cases.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseFolder {
    /// The folder.
    pub path: PathBuf,
    /// Its cases, in the manifest's order.
    pub cases: Vec<GoldenCase>,
}

const NEXT: &str = "point --cases at a folder that holds manifest.json and the files it names";

/// Reads a folder's manifest.
///
/// # Errors
/// A folder without manifest, or a manifest that is malformed anywhere.
pub fn open(folder: &Path) -> Result<CaseFolder, Failure> {
    let path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::usage(path.display(), "a readable manifest of cases", e, NEXT))?;
    let cases = parse(&text).map_err(|(place, expected, got)| {
        let place = if place.is_empty() { path.display().to_string() } else { format!("{}: {place}", path.display()) };
        Failure::usage(place, expected, got, NEXT)
    })?;
    Ok(CaseFolder { path: folder.to_path_buf(), cases })
}

/// Where in the manifest, what was expected, what was found.
type Malformed = (String, String, String);

/// Parses a manifest. Pure.
///
/// # Errors
/// The first place that is malformed.
pub fn parse(text: &str) -> Result<Vec<GoldenCase>, Malformed> {
    let whole = |expected: &str, got: String| (String::new(), expected.to_string(), got);
    let json: Value = serde_json::from_str(text).map_err(|e| whole("valid JSON", e.to_string()))?;
    let format = json.get("format").cloned().unwrap_or(Value::Null);
    if format != FORMAT {
        return Err(whole(&format!("`format` {FORMAT}"), format.to_string()));
    }
    let list =
        json.get("cases").and_then(Value::as_array).ok_or_else(|| whole("a list `cases`", short(json.get("cases"))))?;
    let mut cases: Vec<GoldenCase> = vec![];
    for (i, value) in list.iter().enumerate() {
        let case = parse_case(value).map_err(|(field, expected, got)| {
            let name = value.get("id").and_then(Value::as_str).map_or(format!("case {i}"), |id| format!("case `{id}`"));
            (format!("{name}: {field}"), expected, got)
        })?;
        if cases.iter().any(|c| c.id == case.id) {
            return Err((format!("case `{}`", case.id), "an id used once".into(), "the id twice".into()));
        }
        cases.push(case);
    }
    Ok(cases)
}

fn short(v: Option<&Value>) -> String {
    v.map_or("nothing".into(), |v| v.to_string().chars().take(60).collect())
}

fn parse_case(value: &Value) -> Result<GoldenCase, Malformed> {
    let field = |key: &str| value.get(key);
    let text = |key: &str| -> Result<String, Malformed> {
        let found = field(key).and_then(Value::as_str);
        found.map(String::from).ok_or_else(|| (key.into(), "a string".into(), short(field(key))))
    };
    let object = |key: &str| -> Result<&Map<String, Value>, Malformed> {
        field(key).and_then(Value::as_object).ok_or_else(|| (key.into(), "an object".into(), short(field(key))))
    };
    let file = text("file")?;
    // A manifest may come from elsewhere: its files stay inside its folder.
    if Path::new(&file).components().count() != 1 || Path::new(&file).file_name().is_none() {
        return Err(("file".into(), "the name of a file in the same folder".into(), file));
    }
    let bytes = field("bytes").and_then(Value::as_u64);
    let mut params = Params::new();
    for (k, v) in object("params")? {
        add_param(&mut params, k.clone(), v);
    }
    let mut tensors = BTreeMap::new();
    for (name, t) in object("tensors")? {
        let t = parse_tensor(t).map_err(|(f, expected, got)| (format!("tensors.{name}.{f}"), expected, got))?;
        tensors.insert(name.clone(), t);
    }
    Ok(GoldenCase {
        id: text("id")?,
        op: text("op")?,
        file,
        bytes: bytes.ok_or_else(|| ("bytes".into(), "a number of bytes".into(), short(field("bytes"))))?,
        sha256: text("sha256")?,
        params,
        tensors,
    })
}

fn parse_tensor(t: &Value) -> Result<CaseTensor, Malformed> {
    let text = |key: &str| t.get(key).and_then(Value::as_str).unwrap_or("");
    let role = match text("role") {
        "input" => Role::Input,
        "output" => Role::Output,
        "aux" => Role::Aux,
        _ => return Err(("role".into(), "input, output or aux".into(), short(t.get("role")))),
    };
    let dtype = parse_dtype(text("dtype"))
        .ok_or_else(|| ("dtype".to_string(), "a dtype such as BF16".into(), short(t.get("dtype"))))?;
    let shape = t.get("shape").and_then(Value::as_array).and_then(|s| {
        let axes: Option<Vec<usize>> = s.iter().map(|x| x.as_u64().map(|x| x as usize)).collect();
        axes
    });
    let shape = shape.ok_or_else(|| ("shape".to_string(), "a list of sizes".into(), short(t.get("shape"))))?;
    let tolerance = match t.get("tolerance") {
        None => None,
        Some(Value::Object(map)) => Some(map.clone()),
        other => return Err(("tolerance".into(), "an object".into(), short(other))),
    };
    if role == Role::Output && tolerance.as_ref().and_then(|t| t.get("metric")).and_then(Value::as_str).is_none() {
        return Err(("tolerance".into(), "an object with a `metric`".into(), short(t.get("tolerance"))));
    }
    Ok(CaseTensor { role, dtype, shape, tolerance })
}

/// Adds a parameter; the members of an object become `name.member`.
fn add_param(params: &mut Params, name: String, value: &Value) {
    if let Value::Object(map) = value {
        for (k, v) in map {
            add_param(params, format!("{name}.{k}"), v);
        }
    } else {
        params.insert(name, param(value));
    }
}

/// A parameter's value. Non-finite numbers are text in JSON and stay text.
fn param(value: &Value) -> ParamValue {
    match value {
        Value::Null => ParamValue::Null,
        Value::Bool(b) => ParamValue::Bool(*b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => ParamValue::Int(i),
            None => ParamValue::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => ParamValue::Text(s.clone()),
        Value::Array(list) => ParamValue::List(list.iter().map(param).collect()),
        Value::Object(_) => ParamValue::Text(value.to_string()),
    }
}

/// Reads all tensors of a case after checking the file against the manifest.
///
/// # Errors
/// A file that is missing, of another size or hash, malformed, or whose tensors differ from the manifest.
pub fn load(folder: &Path, case: &GoldenCase) -> Result<BTreeMap<String, HostTensor>, String> {
    use sha2::{Digest, Sha256};
    let path = folder.join(&case.file);
    let bytes = std::fs::read(&path).map_err(|e| format!("{}: cannot read: {e}", path.display()))?;
    if bytes.len() as u64 != case.bytes {
        return Err(format!(
            "{}: expected {} bytes, got {}: truncated or replaced",
            path.display(),
            case.bytes,
            bytes.len()
        ));
    }
    let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    if hash != case.sha256 {
        return Err(format!("{}: expected sha256 {}, got {hash}: the file was changed", path.display(), case.sha256));
    }
    let file = SafeTensors::open(&path).map_err(|e| e.to_string())?;
    let mut out = BTreeMap::new();
    for (name, want) in &case.tensors {
        let t = file.tensor(name).map_err(|e| e.to_string())?;
        if t.dtype != want.dtype || t.shape != want.shape {
            return Err(format!(
                "{}: tensor `{name}`: expected {} {:?} as in the manifest, got {} {:?}",
                path.display(),
                want.dtype,
                want.shape,
                t.dtype,
                t.shape
            ));
        }
        out.insert(name.clone(), t);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, place: &str, expected: &str) {
        let (p, e, g) = parse(text).unwrap_err();
        assert!(p.contains(place) && e.contains(expected), "{p} | {e} | {g}");
    }

    fn case(extra: &str) -> String {
        format!(
            r#"{{"format":1,"cases":[{{"id":"a.b","op":"a","file":"a.b.safetensors","bytes":1,"sha256":"00","params":{{}},"tensors":{{}}{extra}}}]}}"#
        )
    }

    #[test]
    fn malformed_manifests_name_the_place() {
        check("{", "", "valid JSON");
        check("{}", "", "`format` 1");
        check(r#"{"format":2,"cases":[]}"#, "", "`format` 1");
        check(r#"{"format":1}"#, "", "a list `cases`");
        check(r#"{"format":1,"cases":[{}]}"#, "case 0: file", "a string");
        check(&case(r#","file":"../x""#), "case `a.b`: file", "same folder");
        check(&case(r#","file":"/x""#), "case `a.b`: file", "same folder");
        check(&case(r#","bytes":-1"#), "case `a.b`: bytes", "number of bytes");
        check(&case(r#","params":3"#), "case `a.b`: params", "an object");
        check(&case(r#","tensors":{"x":{}}"#), "tensors.x.role", "input, output or aux");
        check(&case(r#","tensors":{"x":{"role":"input","dtype":"F9"}}"#), "tensors.x.dtype", "a dtype");
        check(&case(r#","tensors":{"x":{"role":"input","dtype":"F32","shape":[-1]}}"#), "tensors.x.shape", "sizes");
        check(
            &case(r#","tensors":{"x":{"role":"output","dtype":"F32","shape":[]}}"#),
            "tensors.x.tolerance",
            "a `metric`",
        );
    }

    #[test]
    fn parameters_keep_their_kind() {
        let text = case(r#","params":{"a":1,"b":1.5,"c":"inf","d":[true,null],"e":{"f":2}}"#);
        let params = &parse(&text).unwrap()[0].params;
        assert_eq!(params["a"], ParamValue::Int(1));
        assert_eq!(params["b"], ParamValue::Float(1.5));
        assert_eq!(params["c"], ParamValue::Text("inf".into()));
        assert_eq!(params["d"], ParamValue::List(vec![ParamValue::Bool(true), ParamValue::Null]));
        assert_eq!(params["e.f"], ParamValue::Int(2));
    }
}
