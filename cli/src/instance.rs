//! Instances: an operator's problem as shapes, and the kernel builds it leads to. Nothing here runs a kernel.
//!
//! To learn what an operator launches, its plan is made for tensors that have shapes and addresses but no bytes.

use crate::catalog::{self, Selection};
use crate::failure::Failure;
use crate::suggest;
use clap::Args;
use kiln_codegen::abi::{Launch, Memory, Plan, TensorView};
use kiln_codegen::bind;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::spec::{BuildRequest, Case, Configs, KernelDef, OpError, OpSpec, Params, Problem, TensorSpec};
use kiln_codegen::tune::Config;
use kiln_runtime::tune::records::{Records, Tuned};
use kiln_runtime::{Device, Settings};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which instance of an operator a command is about.
#[derive(Args, Clone, Debug, Default)]
pub struct InstanceArgs {
    /// One of the declared cases (`kiln list --json` names them)
    #[arg(long, value_name = "ID", conflicts_with = "shape")]
    pub case: Option<String>,
    /// A size, as in `tokens=4096,hidden=7168`
    #[arg(long, value_name = "K=V,..")]
    pub shape: Option<String>,
    /// Another dtype for a tensor, as in `x=f16`
    #[arg(long, value_name = "TENSOR=DTYPE")]
    pub dtype: Vec<String>,
    /// Config fields other than the default, as in `rows=2,warps=4`
    #[arg(long, value_name = "K=V,..")]
    pub config: Option<String>,
}

/// Configurations from the command line: the default with some fields replaced.
#[derive(Clone, Debug, Default)]
pub struct Overrides(pub Vec<(String, String)>);

impl Configs for Overrides {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let space = kernel.space();
        let own: Vec<_> = self.0.iter().filter(|(k, _)| space.axes.iter().any(|a| a.name == *k)).cloned().collect();
        // `InstanceArgs::configs` has checked every value against the space.
        space.with(&own).unwrap_or_else(|_| space.default_config())
    }
}

/// Configurations as commands that run kernels choose them: fields from the command line over the default, otherwise the
/// best recorded one, otherwise the default.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// From the command line.
    pub overrides: &'a Overrides,
    /// Tuning records, unless they are to be ignored.
    pub tuned: Option<&'a Tuned>,
}

impl Chosen<'_> {
    /// The records used since the last call, as a row's field.
    pub fn record(&self) -> String {
        self.tuned.map(|t| t.take_used().join(", ")).unwrap_or_default()
    }
}

impl Configs for Chosen<'_> {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let space = kernel.space();
        match self.tuned {
            Some(t) if !self.overrides.0.iter().any(|(k, _)| space.axes.iter().any(|a| a.name == *k)) => {
                t.choose(kernel, dims)
            }
            _ => self.overrides.choose(kernel, dims),
        }
    }
}

/// Tuning records of a device, if they are wanted and the device can have any.
pub fn tuned(device: &Device, untuned: bool) -> Option<Tuned> {
    // Without a compiler nothing runs on such a device either; the command says so where it matters.
    if untuned { None } else { Tuned::new(Records::new(Settings::from_env().tune_dir), device).ok() }
}

/// Why kernels run their defaults and which records are of another driver, for people: one line a kernel.
pub fn tuning_notes(tuned: Option<&Tuned>) -> Option<String> {
    let (mut lines, mut never): (Vec<String>, usize) = (vec![], 0);
    for note in tuned?.take_notes() {
        let about = note.split(':').next().unwrap_or_default().to_string();
        if note.ends_with("it was never tuned here") {
            never += 1;
        } else if !lines.iter().any(|l| l.starts_with(&about)) {
            lines.push(note);
        }
    }
    if never > 0 {
        lines.push(format!("{never} kernels run default or calculated configs: they were never tuned here"));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// One fixed configuration for every kernel of a name, the default for the others.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Kernel.
    pub kernel: String,
    /// Its configuration.
    pub config: Config,
}

impl Configs for Fixed {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        if kernel.info().name == self.kernel { self.config.clone() } else { kernel.space().default_config() }
    }
}

impl InstanceArgs {
    /// Of several operators those that declare the case these options name.
    ///
    /// # Errors
    /// A case that none of them declares.
    pub fn declaring(&self, selections: Vec<Selection>) -> Result<Vec<Selection>, Failure> {
        let Some(id) = self.case.as_deref().filter(|_| selections.len() > 1) else {
            return Ok(selections);
        };
        let has = |op: &dyn OpSpec| {
            let wanted = id.strip_prefix(&format!("{}.", op.info().name)).unwrap_or(id);
            op.cases().iter().any(|c| c.id == wanted)
        };
        let found: Vec<Selection> = selections.into_iter().filter(|s| has(s.op.as_ref())).collect();
        if found.is_empty() {
            let next = "`kiln list --json` names the cases of every operator";
            return Err(Failure::usage("--case", "a case some operator declares", format!("`{id}`"), next));
        }
        Ok(found)
    }

    /// The cases of an operator these options choose: all declared ones if none is named.
    ///
    /// # Errors
    /// An unknown case, key, tensor or dtype, or a size the operator refuses.
    pub fn cases(&self, op: &dyn OpSpec) -> Result<Vec<Case>, Failure> {
        let info = op.info();
        let mut cases =
            if let Some(text) = &self.shape { vec![bench_case(op, &catalog::shape(op, text)?)?] } else { op.cases() };
        if let Some(id) = &self.case {
            let names: Vec<String> = cases.iter().map(|c| c.id.clone()).collect();
            let wanted = id.strip_prefix(&format!("{}.", info.name)).unwrap_or(id);
            cases.retain(|c| c.id == wanted);
            if cases.is_empty() {
                return Err(Failure::usage(
                    format!("--case of {}", info.name),
                    "a declared case",
                    format!("`{id}`"),
                    &suggest::advice(id, names.iter().map(String::as_str)),
                ));
            }
        }
        for text in &self.dtype {
            for (tensor, name) in catalog::pairs("--dtype", text)? {
                let dtype = catalog::dtype(&name)?;
                let known: Vec<String> =
                    cases.iter().flat_map(|c| c.inputs.iter().map(|i| i.tensor.name.clone())).collect();
                if !known.contains(&tensor) {
                    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
                    names.sort_unstable();
                    names.dedup();
                    return Err(Failure::usage(
                        format!("--dtype of {}", info.name),
                        "an input tensor",
                        format!("`{tensor}`"),
                        &suggest::advice(&tensor, names),
                    ));
                }
                for input in cases.iter_mut().flat_map(|c| c.inputs.iter_mut()).filter(|i| i.tensor.name == tensor) {
                    input.tensor.dtype = dtype;
                }
            }
        }
        Ok(cases)
    }

    /// The configurations these options choose, checked against the spaces of the operator's kernels.
    ///
    /// # Errors
    /// A field that no kernel has, or a value outside its space.
    pub fn configs(&self, selection: &Selection) -> Result<Overrides, Failure> {
        let Some(text) = &self.config else {
            return Ok(Overrides::default());
        };
        let given = catalog::pairs("--config", text)?;
        let kernels: Vec<_> = selection.op.kernels().into_iter().filter(|k| selection.has(&k.info().name)).collect();
        for pair in &given {
            let spaces: Vec<_> = kernels.iter().map(|k| k.space()).collect();
            let owners: Vec<_> = spaces.iter().filter(|s| s.axes.iter().any(|a| a.name == pair.0)).collect();
            if owners.is_empty() {
                let mut names: Vec<&str> = spaces.iter().flat_map(|s| s.axes.iter().map(|a| a.name.as_str())).collect();
                names.sort_unstable();
                names.dedup();
                return Err(Failure::usage(
                    format!("--config of {}", selection.op.info().name),
                    "a config field",
                    format!("`{}`", pair.0),
                    &suggest::advice(&pair.0, names),
                ));
            }
            for space in owners {
                space.with(std::slice::from_ref(pair)).map_err(|_| {
                    let axis = space.axes.iter().find(|a| a.name == pair.0);
                    let allowed: Vec<String> =
                        axis.map(|a| a.values.iter().map(ToString::to_string).collect()).unwrap_or_default();
                    Failure::usage(
                        format!("--config {}={}", pair.0, pair.1),
                        format!("a value of its space ({})", allowed.join(", ")),
                        format!("`{}`", pair.1),
                        "choose one of these, or add it to #[tune(..)] of the config type",
                    )
                })?;
            }
        }
        Ok(Overrides(given))
    }
}

/// Larger problems fit no machine, and counting their bytes or operations may overflow.
const MAX_BYTES: usize = 1 << 48;

/// The problem of a bench shape, named after the shape.
///
/// # Errors
/// A size the operator refuses.
pub fn bench_case(op: &dyn OpSpec, shape: &[(String, usize)]) -> Result<Case, Failure> {
    let mut case = op.bench_case(shape).map_err(|e| {
        let text = shape_text(shape);
        Failure::usage(
            format!("--shape {text} of {}", op.info().name),
            "sizes the operator takes",
            e.message,
            "choose other sizes",
        )
    })?;
    case.id = shape_text(shape);
    if bytes(case.inputs.iter().map(|i| &i.tensor)).is_none_or(|n| n > MAX_BYTES) {
        return Err(Failure::usage(
            format!("--shape {} of {}", case.id, op.info().name),
            format!("tensors of {MAX_BYTES} bytes at most"),
            "larger ones",
            "choose smaller sizes",
        ));
    }
    Ok(case)
}

/// Bytes of tensors; `None` if 64 bits cannot count them.
pub fn bytes<'a>(mut specs: impl Iterator<Item = &'a TensorSpec>) -> Option<usize> {
    specs.try_fold(0usize, |sum, t| {
        let elements = t.shape.iter().try_fold(1usize, |n, &e| n.checked_mul(e))?;
        sum.checked_add(elements.checked_mul(t.dtype.bits())?.div_ceil(8))
    })
}

/// `k=v,k=v`.
pub fn shape_text(shape: &[(String, usize)]) -> String {
    shape.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

/// Shapes of a case's inputs, by name.
pub fn input_specs(case: &Case) -> BTreeMap<String, TensorSpec> {
    case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect()
}

/// Memory that has a size and an address but no bytes.
#[derive(Debug)]
struct Addresses {
    address: u64,
    len_bytes: usize,
}

impl Memory for Addresses {
    fn device(&self) -> &str {
        "null"
    }
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
    fn address(&self) -> u64 {
        self.address
    }
    fn host(&self) -> Option<&HostMemory> {
        None
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A contiguous view without bytes, at an address no other such view has.
fn without_bytes(spec: &TensorSpec) -> TensorView {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 20);
    let len_bytes = spec.dtype.bytes(spec.shape.iter().product());
    let size = (len_bytes as u64).next_multiple_of(256) + 256;
    let address = NEXT.fetch_add(size, Ordering::Relaxed);
    TensorView::contiguous(spec.dtype, &spec.shape, Arc::new(Addresses { address, len_bytes }))
}

/// The plan of an operator for a problem of these shapes.
///
/// # Errors
/// What the operator refuses.
pub fn plan(
    op: &dyn OpSpec,
    inputs: &BTreeMap<String, TensorSpec>,
    params: &Params,
    configs: &dyn Configs,
) -> Result<Plan, OpError> {
    let mut problem = Problem { tensors: BTreeMap::new(), params: params.clone() };
    for spec in inputs.values().chain(&op.outputs(inputs, params)?) {
        problem.tensors.insert(spec.name.clone(), without_bytes(spec));
    }
    op.plan(&problem, configs)
}

/// One kernel build an instance needs.
#[derive(Clone, Debug)]
pub struct Step {
    /// Kernel.
    pub kernel: Arc<dyn KernelDef>,
    /// What to build.
    pub request: BuildRequest,
    /// Values of its dimensions.
    pub dims: BTreeMap<String, usize>,
    /// The launch it comes from.
    pub launch: Launch,
}

impl Step {
    /// Equal keys build equal code.
    pub fn key(&self) -> String {
        let info = self.kernel.info();
        format!("{} {:?} {:?}", info.name, info.dtypes, self.request)
    }
    /// `kernel<T = bf16>`.
    pub fn title(&self) -> String {
        let info = self.kernel.info();
        let dtypes: Vec<_> = info.dtypes.iter().map(|(n, d)| format!("{n} = {d}")).collect();
        if dtypes.is_empty() { info.name.clone() } else { format!("{}<{}>", info.name, dtypes.join(", ")) }
    }
}

/// The builds of a plan, in order; steps of other kernels than the selected one are left out.
///
/// # Errors
/// The text of a refused launch.
pub fn steps(plan: &Plan, selection: &Selection) -> Result<Vec<Step>, String> {
    let mut out = vec![];
    for launch in plan.steps.iter().filter(|l| selection.has(&l.kernel.info().name)) {
        let bound = bind::bind(launch.kernel.as_ref(), &launch.config, &launch.args).map_err(|e| e.to_string())?;
        out.push(Step {
            kernel: launch.kernel.clone(),
            request: bound.request,
            dims: bound.dims,
            launch: launch.clone(),
        });
    }
    Ok(out)
}
