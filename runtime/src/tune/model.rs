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
use kiln_codegen::spec::{Configs, DimExpr, KernelDef, ParamInfo, ParamInfoKind, StrideInfo};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Axis, Config, ConfigValue, Space};
use kiln_codegen::{bind, compile};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// Arguments of a launch with these dimensions: aligned tensors with the declared strides. An optional tensor is there if
/// a dimension that only optional ones have is not 0, other optional parameters are left out. `None` if an extent does not
/// follow from the dimensions.
pub fn arguments(kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Option<Vec<Arg>> {
    let params = &kernel.info().params;
    let required: BTreeSet<&str> = params.iter().filter(|p| !p.optional).flat_map(axis_names).collect();
    let own = |name: &&str| !required.contains(name) && dims.get(*name).is_some_and(|&x| x > 0);
    let mut next = 1u64 << 32;
    let mut args = vec![];
    for p in params {
        args.push(match &p.kind {
            ParamInfoKind::Tensor { .. } | ParamInfoKind::Scalar { .. }
                if p.optional && !axis_names(p).iter().any(own) =>
            {
                Arg::Absent
            }
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

/// Names that axes of a parameter bind.
fn axis_names(p: &ParamInfo) -> Vec<&str> {
    let ParamInfoKind::Tensor { dims, .. } = &p.kind else { return vec![] };
    dims.iter().filter_map(|d| if let DimExpr::Sym(name) = d { Some(name.as_str()) } else { None }).collect()
}

/// A config other than the default has to be estimated this much faster: defaults were chosen by people who measured.
const MARGIN: f64 = 0.8;

/// Chooses by the model, where nobody has measured. Fields that change rounding keep their defaults.
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

impl Modelled {
    /// Steps from the default to the neighbour with the least time, as long as there is a better one. Neighbours differ
    /// in one field or in two, since a larger tile may pay only with fewer stages.
    fn descend(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let space = kernel.space();
        let default = space.default_config();
        let Some(args) = arguments(kernel, dims) else { return default };
        let mut known: HashMap<Config, f64> = HashMap::new();
        let mut at = default.clone();
        loop {
            let mut near = neighbours(&space, &at);
            near.push(at.clone());
            near.retain(|c| !known.contains_key(c) && kernel.require(dims, c).is_ok());
            let times: Vec<f64> = near.par_iter().map(|c| screen(kernel, c, &args, self.target).us()).collect();
            if times.is_empty() {
                break;
            }
            known.extend(near.into_iter().zip(times));
            let here = known.get(&at).copied().unwrap_or(f64::INFINITY);
            // Equal times are common, and a map has no order: the first in the order of configs wins.
            match known.iter().min_by(|a, b| a.1.total_cmp(b.1).then_with(|| a.0.cmp(b.0))) {
                Some((best, us)) if *us < here => at = best.clone(),
                _ => break,
            }
        }
        let us = |c: &Config| known.get(c).copied().unwrap_or(f64::INFINITY);
        if us(&at) < us(&default) * MARGIN { at } else { default }
    }
}

/// Configs that differ in one or two fields, none of which changes rounding.
fn neighbours(space: &Space, from: &Config) -> Vec<Config> {
    let axes: Vec<&Axis> = space.axes.iter().filter(|a| !a.numerics).collect();
    let others = |c: &Config, axis: &Axis| -> Vec<Config> {
        let with = |v: &ConfigValue| {
            let mut c = c.clone();
            c.0.insert(axis.name.clone(), v.clone());
            c
        };
        axis.values.iter().map(with).filter(|n| n != c).collect()
    };
    let mut out = vec![];
    for (i, axis) in axes.iter().enumerate() {
        for one in others(from, axis) {
            for second in &axes[i + 1..] {
                out.extend(others(&one, second));
            }
            out.push(one);
        }
    }
    out
}

/// The size that stands for those near it: three bits follow the leading one, so that launches whose sizes grow step by
/// step share a choice.
fn rounded(x: usize) -> usize {
    if x < 16 { x } else { x.next_multiple_of(1 << (x.ilog2() - 3)) }
}

impl Configs for Modelled {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let info = kernel.info();
        let fixed = |name: &str| info.dims.iter().any(|d| d.fixed && d.name == name);
        let near: BTreeMap<String, usize> =
            dims.iter().map(|(n, &x)| (n.clone(), if fixed(n) { x } else { rounded(x) })).collect();
        let key = hash(&[format!("{} {:?} {near:?}", info.name, info.dtypes).as_bytes()]);
        let chosen = lock(&self.chosen).get(&key).cloned();
        let config = chosen.unwrap_or_else(|| {
            let config = self.descend(kernel, &near);
            lock(&self.chosen).entry(key).or_insert(config).clone()
        });
        // What the sizes themselves do not allow was not seen.
        if kernel.require(dims, &config).is_ok() { config } else { kernel.space().default_config() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_share_a_choice_with_those_near() {
        assert_eq!([0, 1, 15, 16, 17, 2112, 4096, 7168].map(rounded), [0, 1, 15, 16, 18, 2304, 4096, 7168]);
    }

    #[test]
    fn neighbours_differ_in_one_or_two_fields_that_keep_the_bits() {
        let axis = |name: &str, values: usize, numerics: bool| Axis {
            name: name.into(),
            values: (0..values).map(ConfigValue::Int).collect(),
            default: 0,
            numerics,
            doc: String::new(),
        };
        let space =
            Space { name: "S".into(), axes: vec![axis("a", 3, false), axis("b", 2, false), axis("c", 5, true)] };
        let near: Vec<String> = neighbours(&space, &space.default_config()).iter().map(Config::to_string).collect();
        assert_eq!(near, ["a=1,b=1,c=0", "a=1,b=0,c=0", "a=2,b=1,c=0", "a=2,b=0,c=0", "a=0,b=1,c=0"]);
    }
}
