//! Finding operators and kernels by name, and the values of command-line options, with advice for misspelt ones.

use crate::failure::Failure;
use crate::suggest;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::OpSpec;
use kiln_codegen::target::Target;
use std::sync::Arc;

/// An operator, or one of its kernels.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The operator.
    pub op: Arc<dyn OpSpec>,
    /// The kernel, if a kernel was named.
    pub kernel: Option<String>,
}

impl Selection {
    /// True if a kernel with this name is meant.
    pub fn has(&self, kernel: &str) -> bool {
        self.kernel.as_deref().is_none_or(|k| k == kernel)
    }
}

/// Names of the kernels of an operator, each once.
pub fn kernel_names(op: &dyn OpSpec) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for k in op.kernels() {
        if !names.contains(&k.info().name) {
            names.push(k.info().name.clone());
        }
    }
    names
}

/// The operators or kernels of these names; all operators if there are none. Operators count before kernels.
///
/// # Errors
/// A name that nothing has.
pub fn select(ops: &[Arc<dyn OpSpec>], names: &[String]) -> Result<Vec<Selection>, Failure> {
    if names.is_empty() {
        return Ok(ops.iter().map(|op| Selection { op: op.clone(), kernel: None }).collect());
    }
    names.iter().map(|n| find(ops, n)).collect()
}

/// The operator or kernel of this name. Bench names count as operator names.
///
/// # Errors
/// A name that nothing has.
pub fn find(ops: &[Arc<dyn OpSpec>], name: &str) -> Result<Selection, Failure> {
    if let Some(op) = ops.iter().find(|o| o.info().name == name || o.info().bench_name == Some(name)) {
        return Ok(Selection { op: op.clone(), kernel: None });
    }
    if let Some(op) = ops.iter().find(|o| kernel_names(o.as_ref()).iter().any(|k| k == name)) {
        return Ok(Selection { op: op.clone(), kernel: Some(name.into()) });
    }
    let mut names: Vec<String> = vec![];
    for op in ops {
        names.push(op.info().name.into());
        names.extend(kernel_names(op.as_ref()).into_iter().filter(|k| k != op.info().name));
    }
    // Operators may share a kernel.
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|n| seen.insert(n.clone()));
    Err(Failure::usage(
        "NAME",
        "an operator or a kernel",
        format!("`{name}`"),
        &format!("{}; `kiln list` describes them", suggest::advice(name, names.iter().map(String::as_str))),
    ))
}

/// The target of this name.
///
/// # Errors
/// A name that no target has.
pub fn target(name: &str) -> Result<Target, Failure> {
    Target::parse(name).ok_or_else(|| {
        Failure::usage(
            "--target",
            "a target",
            format!("`{name}`"),
            &suggest::advice(name, Target::ALL.into_iter().map(Target::name)),
        )
    })
}

/// The targets of these names; all if there are none.
///
/// # Errors
/// A name that no target has.
pub fn targets(names: &[String]) -> Result<Vec<Target>, Failure> {
    if names.is_empty() { Ok(Target::ALL.to_vec()) } else { names.iter().map(|n| target(n)).collect() }
}

/// Splits `k=v,k=v`.
///
/// # Errors
/// A part without `=`, an empty key, a key given twice.
pub fn pairs(option: &str, text: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut out: Vec<(String, String)> = vec![];
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let fail = |got: String| {
            Failure::usage(option, "key=value pairs with commas", got, &format!("write {option} key=value,key=value"))
        };
        let (k, v) = part.split_once('=').ok_or_else(|| fail(format!("`{part}`")))?;
        let (k, v) = (k.trim(), v.trim());
        if k.is_empty() || v.is_empty() {
            return Err(fail(format!("`{part}`")));
        }
        if out.iter().any(|(old, _)| old == k) {
            return Err(fail(format!("`{k}` twice")));
        }
        out.push((k.into(), v.into()));
    }
    if out.is_empty() {
        return Err(Failure::usage(option, "key=value pairs with commas", "nothing", "give at least one pair"));
    }
    Ok(out)
}

/// A bench shape `k=v,..` checked against the keys of the operator, in their order.
///
/// # Errors
/// An unknown or missing key, or a value that is no size.
pub fn shape(op: &dyn OpSpec, text: &str) -> Result<Vec<(String, usize)>, Failure> {
    let info = op.info();
    let keys = op.bench_keys();
    if keys.is_empty() {
        return Err(Failure::usage(
            "--shape",
            "an operator with shape keys",
            format!("`{}`, which declares none", info.name),
            "choose one of its declared cases with --case ID",
        ));
    }
    let given = pairs("--shape", text)?;
    for (k, v) in &given {
        if !keys.contains(&k.as_str()) {
            return Err(Failure::usage(
                format!("--shape of {}", info.name),
                format!("the keys {}", keys.join(", ")),
                format!("`{k}`"),
                &suggest::advice(k, keys.iter().copied()),
            ));
        }
        if v.parse::<usize>().is_err() {
            return Err(Failure::usage(
                format!("--shape of {}: {k}", info.name),
                "a whole number of 0 or more",
                format!("`{v}`"),
                &format!("write {k}=SIZE, as in {k}=4096"),
            ));
        }
    }
    keys.iter()
        .map(|key| {
            let value = given.iter().find(|(k, _)| k == key).and_then(|(_, v)| v.parse().ok());
            value.map(|v| (key.to_string(), v)).ok_or_else(|| {
                Failure::usage(
                    format!("--shape of {}", info.name),
                    format!("the keys {}", keys.join(", ")),
                    format!("`{text}`, without `{key}`"),
                    &format!("add {key}=SIZE"),
                )
            })
        })
        .collect()
}

/// A dtype by name.
///
/// # Errors
/// A name that no dtype has.
pub fn dtype(name: &str) -> Result<DType, Failure> {
    DType::parse(&name.to_lowercase()).ok_or_else(|| {
        let names = DType::ALL.into_iter().map(DType::name);
        Failure::usage("--dtype", "a dtype", format!("`{name}`"), &suggest::advice(name, names))
    })
}
