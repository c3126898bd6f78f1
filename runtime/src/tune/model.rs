//! What the tuner knows about a config before it compiles it: whether it can run at all, and about how long it takes.
//!
//! The calculation is `kiln_codegen::model`'s; this file makes the launches it needs. [`Modelled`] chooses configs by it, for
//! targets nobody has measured on.

use crate::compile::hash;
use crate::device::lock;
use crate::error::{Error, Result};
use kiln_codegen::abi::{Arg, Memory, TensorView};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::Literal;
use kiln_codegen::model::{Chip, Estimate, Resources, estimate};
use kiln_codegen::spec::{Configs, KernelDef, ParamInfoKind, StrideInfo};
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use kiln_codegen::{bind, compile};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// What is known about a config without compiling it.
#[derive(Clone, Debug, PartialEq)]
pub enum Screened {
    /// It cannot run; why.
    Refused(String),
    /// It can, as far as this is known; `None` for targets without a model.
    Fits(Option<Estimate>),
}

impl Screened {
    /// Estimated microseconds; infinite where there is no estimate.
    pub fn us(&self) -> f64 {
        match self {
            Screened::Fits(Some(e)) => e.us,
            Screened::Fits(None) | Screened::Refused(_) => f64::INFINITY,
        }
    }
}

/// Binds, builds and lowers a launch for a target and compares what it takes with what there is.
pub fn screen(kernel: &dyn KernelDef, config: &Config, args: &[Arg], target: Target) -> Screened {
    let (Some(caps), Some(chip)) = (target.caps(), Chip::of(target)) else { return Screened::Fits(None) };
    let bound = match bind::bind(kernel, config, args) {
        Ok(bound) => bound,
        Err(e) => return Screened::Refused(e.to_string()),
    };
    let name = &kernel.info().name;
    let refused = |target| {
        move |diagnostics| Screened::Refused(Error::Refused { kernel: name.clone(), target, diagnostics }.to_string())
    };
    let built = match compile::build(kernel, &bound.request).map_err(refused(None)) {
        Ok(built) => built,
        Err(why) => return why,
    };
    let lowered = match compile::source(&built, target).map_err(refused(Some(target))) {
        Ok(lowered) => lowered,
        Err(why) => return why,
    };
    let resources = Resources::of(&lowered.kernel, &lowered.source, &caps);
    let reasons = resources.refusals(&caps);
    if !reasons.is_empty() {
        return Screened::Refused(format!("not compiled: {}", reasons.join("; ")));
    }
    let syms = bind::sym_values(&lowered.kernel, &bound.dims, args);
    Screened::Fits(estimate(&lowered.kernel, &lowered.source, &syms, &caps, &chip))
}

/// Memory that is only an address and a size.
#[derive(Debug)]
struct Nowhere {
    address: u64,
    bytes: usize,
}

impl Memory for Nowhere {
    fn device(&self) -> &str {
        "nowhere"
    }
    fn len_bytes(&self) -> usize {
        self.bytes
    }
    fn address(&self) -> u64 {
        self.address
    }
    fn host(&self) -> Option<&HostMemory> {
        None
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Arguments of a launch with these dimensions: aligned tensors with the declared strides, optional parameters left out.
/// `None` if an extent does not follow from the dimensions.
pub fn arguments(kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Option<Vec<Arg>> {
    let mut next = 1u64 << 32;
    let mut args = vec![];
    for p in &kernel.info().params {
        args.push(match &p.kind {
            ParamInfoKind::Tensor { .. } | ParamInfoKind::Scalar { .. } if p.optional => Arg::Absent,
            ParamInfoKind::Scalar { dtype } => Arg::Scalar(Literal { dtype: *dtype, bits: 0 }),
            ParamInfoKind::Tensor { dtype, dims: extents, strides, .. } => {
                let shape = extents.iter().map(|e| e.eval(dims)).collect::<Option<Vec<usize>>>()?;
                let mut view_strides = kiln_codegen::ir::build::row_major(&shape);
                for (s, declared) in view_strides.iter_mut().zip(strides.iter().flatten()) {
                    if let StrideInfo::Expr(e) = declared {
                        // A stride that only names itself is free: dense rows serve.
                        *s = e.eval(dims).filter(|&x| x > 0).unwrap_or(*s);
                    }
                }
                let mut view = TensorView {
                    dtype: *dtype,
                    shape,
                    strides: view_strides,
                    offset_bytes: 0,
                    memory: Arc::new(Nowhere { address: next, bytes: 0 }),
                };
                let bytes = view.span_bytes();
                view.memory = Arc::new(Nowhere { address: next, bytes });
                next += (bytes as u64).next_multiple_of(256) + 256;
                Arg::Tensor(view)
            }
        });
    }
    Some(args)
}

/// A config other than the default has to be estimated this much faster: defaults were chosen by people who measured.
const MARGIN: f64 = 0.8;

/// Chooses by the model, for targets without a device and without records. Fields that change rounding keep their defaults.
#[derive(Debug)]
pub struct Modelled {
    target: Target,
    chosen: Mutex<HashMap<String, Config>>,
}

impl Modelled {
    /// Chooses for a target.
    ///
    /// # Errors
    /// A target without a model.
    pub fn new(target: Target) -> Result<Self> {
        if Chip::of(target).is_none() {
            return Err(Error::Unsupported {
                what: "estimating configs".into(),
                expected: "sm_80, sm_90a or sm_100a".into(),
                got: target.name().into(),
            });
        }
        Ok(Modelled { target, chosen: Mutex::default() })
    }

    /// Every config of a kernel that its `require` accepts, with what is known about it, best first.
    pub fn rank(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Vec<(Config, Screened)> {
        let Some(args) = arguments(kernel, dims) else { return vec![] };
        let valid: Vec<Config> = kernel.space().all().into_iter().filter(|c| kernel.require(dims, c).is_ok()).collect();
        let mut all: Vec<(Config, Screened)> = valid
            .into_par_iter()
            .map(|c| {
                let screened = screen(kernel, &c, &args, self.target);
                (c, screened)
            })
            .collect();
        all.sort_by(|a, b| a.1.us().total_cmp(&b.1.us()));
        all
    }
}

impl Configs for Modelled {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let info = kernel.info();
        let key = hash(&[format!("{} {:?} {dims:?}", info.name, info.dtypes).as_bytes()]);
        if let Some(config) = lock(&self.chosen).get(&key) {
            return config.clone();
        }
        let space = kernel.space();
        let default = space.default_config();
        let same_bits =
            |c: &Config| space.axes.iter().filter(|a| a.numerics).all(|a| c.0.get(&a.name) == default.0.get(&a.name));
        let ranked = self.rank(kernel, dims);
        let of_default = ranked.iter().find(|(c, _)| *c == default).map_or(f64::INFINITY, |(_, s)| s.us());
        let best = ranked.into_iter().find(|(c, s)| same_bits(c) && s.us() < of_default * MARGIN);
        let config = best.map_or(default, |(c, _)| c);
        lock(&self.chosen).entry(key).or_insert(config).clone()
    }
}
