//! Golden cases as the tests need them: every tensor of a case, its parameters, and the metric of each output.
//!
//! A second reader beside the command line's, on purpose small: it trusts the committed folder and panics on surprises.

use kiln_codegen::spec::{ParamValue, Params};
use kiln_kernels::numeric::{Metric, Tensors};
use kiln_model::checkpoint::safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A case.
#[derive(Clone, Debug)]
pub struct Golden {
    /// `op.name`.
    pub id: String,
    /// Operator.
    pub op: String,
    /// Parameters.
    pub params: Params,
    /// Inputs.
    pub inputs: Tensors,
    /// Inputs, expected outputs and auxiliary tensors.
    pub all: Tensors,
    /// Outputs with their metrics.
    pub outputs: Vec<(String, Metric)>,
}

/// The committed folder, and the one `KILN_ORACLE` names, which may hold data of models alone.
pub fn folders() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kernels")];
    if let Some(other) = std::env::var_os("KILN_ORACLE").map(PathBuf::from) {
        let has = |name: &str| other.join(name).exists();
        assert!(
            has("manifest.json") || has("encoding.json") || has("units"),
            "KILN_ORACLE: nothing in {}",
            other.display()
        );
        folders.extend(has("manifest.json").then_some(other));
    }
    folders
}

/// All cases of all folders.
pub fn load() -> Vec<Golden> {
    folders().iter().flat_map(|folder| load_folder(folder)).collect()
}

fn load_folder(folder: &Path) -> Vec<Golden> {
    let text = std::fs::read_to_string(folder.join("manifest.json"));
    let text = text.unwrap_or_else(|e| panic!("no manifest in {}: {e}", folder.display()));
    let manifest: Value = serde_json::from_str(&text).expect("the manifest is JSON");
    let cases = manifest["cases"].as_array().expect("the manifest has cases");
    cases.iter().map(|c| load_case(folder, c)).collect()
}

fn load_case(folder: &Path, c: &Value) -> Golden {
    let text = |key: &str| c[key].as_str().expect("a string").to_string();
    let file = SafeTensors::open(&folder.join(text("file"))).expect("a readable case");
    let (mut inputs, mut all, mut outputs) = (Tensors::new(), Tensors::new(), vec![]);
    for (name, entry) in c["tensors"].as_object().expect("tensors") {
        let tensor = file.tensor(name).expect("the tensor the manifest names");
        if entry["role"] == "input" {
            inputs.insert(name.clone(), tensor.clone());
        }
        if entry["role"] == "output" {
            outputs.push((name.clone(), metric(&entry["tolerance"])));
        }
        all.insert(name.clone(), tensor);
    }
    let params = c["params"].as_object().expect("params");
    let mut flat = Params::new();
    params.iter().for_each(|(k, v)| add_param(&mut flat, k.clone(), v));
    let params = flat;
    Golden { id: text("id"), op: text("op"), params, inputs, all, outputs }
}

/// Adds a parameter; the members of an object become `name.member`.
fn add_param(params: &mut Params, name: String, v: &Value) {
    match v {
        Value::Object(members) => members.iter().for_each(|(k, v)| add_param(params, format!("{name}.{k}"), v)),
        _ => drop(params.insert(name, param(v))),
    }
}

fn param(v: &Value) -> ParamValue {
    match v {
        Value::Null | Value::Object(_) => ParamValue::Null,
        Value::Bool(x) => ParamValue::Bool(*x),
        Value::Number(x) => x.as_i64().map_or(ParamValue::Float(x.as_f64().unwrap_or(f64::NAN)), ParamValue::Int),
        Value::String(x) => ParamValue::Text(x.clone()),
        Value::Array(x) => ParamValue::List(x.iter().map(param).collect()),
    }
}

fn metric(tolerance: &Value) -> Metric {
    let find = |path: &str| tolerance.pointer(&format!("/{}", path.replace('.', "/")));
    let name = tolerance["metric"].as_str().expect("a metric");
    Metric::from_fields(name, &|field| find(field).and_then(Value::as_f64), &|field| {
        find(field).and_then(Value::as_str).map(String::from)
    })
    .expect("a known metric")
}
