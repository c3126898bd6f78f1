//! Between a launch as data and a device's queue: workspaces, the build of each distinct request, the grid.
//!
//! The checks themselves are `kiln_codegen::bind`'s; argument packing for GPUs is in `pack`.

pub(crate) mod pack;

use crate::device::{Device, lock};
use crate::error::{Error, Result};
use kiln_codegen::abi::{Arg, Launch, LaunchError, LaunchErrorKind, Memory, TensorView};
use kiln_codegen::bind::{self, Bound};
use kiln_codegen::compile::{self, Built};
use kiln_codegen::ir::{Access, DType, Kernel};
use kiln_codegen::spec::{BuildRequest, KernelDef, ParamInfoKind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A launch whose arguments are checked and placed.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    pub launch: &'a Launch,
    pub bound: Bound,
    /// The arguments with workspaces replaced by tensors.
    pub args: Vec<Arg>,
}

impl Ready<'_> {
    pub fn name(&self) -> &str {
        &self.launch.kernel.info().name
    }
    /// True if the launch cannot write anything: all its outputs are empty. It then succeeds, whatever the kernel can be
    /// built for.
    pub fn idle(&self) -> bool {
        let params = &self.launch.kernel.info().params;
        let mut outputs = params.iter().zip(&self.args).filter_map(|(p, arg)| match (&p.kind, arg) {
            (ParamInfoKind::Tensor { access: Access::Out | Access::InOut, .. }, Arg::Tensor(v)) => {
                Some(v.num_elements())
            }
            (ParamInfoKind::Tensor { .. } | ParamInfoKind::Scalar { .. }, _) => None,
        });
        outputs.next().is_some_and(|first| first == 0 && outputs.all(|n| n == 0))
    }
    pub fn key(&self) -> BuildKey {
        BuildKey::new(&*self.launch.kernel, &self.bound.request)
    }
    pub fn grid(&self, kernel: &Kernel, syms: &[i64]) -> Result<Vec<i64>> {
        bind::grid(kernel, syms).ok_or_else(|| {
            Error::Launch(LaunchError {
                kernel: self.name().into(),
                parameter: None,
                kind: LaunchErrorKind::Limits,
                expected: "a grid whose extents follow from the dimensions".into(),
                got: format!("one that cannot be evaluated for {:?}", self.bound.dims),
                help: "check the arguments of `grid(..)` for division by zero or overflow".into(),
            })
        })
    }
}

/// Identity of a build. A kernel is known by its declaration, its name, which carries const generics, and its dtypes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BuildKey {
    file: String,
    line: u32,
    name: String,
    dtypes: Vec<(String, DType)>,
    request: BuildRequest,
}

impl BuildKey {
    pub fn new(kernel: &dyn KernelDef, request: &BuildRequest) -> Self {
        let info = kernel.info();
        BuildKey {
            file: info.file.clone(),
            line: info.line,
            name: info.name.clone(),
            dtypes: info.dtypes.clone(),
            request: request.clone(),
        }
    }
}

/// Plain builds of one device, one a request.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<HashMap<BuildKey, Arc<Built>>>);

impl Builds {
    pub fn get(&self, ready: &Ready) -> Result<Arc<Built>> {
        let key = ready.key();
        if let Some(built) = lock(&self.0).get(&key) {
            return Ok(Arc::clone(built));
        }
        let built = compile::build(&*ready.launch.kernel, &ready.bound.request)
            .map_err(|diagnostics| Error::Refused { kernel: ready.name().into(), target: None, diagnostics })?;
        Ok(Arc::clone(lock(&self.0).entry(key).or_insert_with(|| Arc::new(built))))
    }
}

/// Workspaces of one stream. Plans of a stream run one after another, so they share: slot `i` serves every plan's
/// workspace `i` and grows to the largest.
#[derive(Debug, Default)]
pub(crate) struct Workspaces(Vec<Arc<dyn Memory>>);

impl Workspaces {
    pub fn get(&mut self, device: &Device, sizes: &[usize]) -> Result<Vec<Arc<dyn Memory>>> {
        for (i, &size) in sizes.iter().enumerate() {
            let have = self.0.get(i).map(|m| m.len_bytes());
            if have.is_some_and(|have| have >= size) {
                continue;
            }
            let memory = device.alloc(size.max(256).next_power_of_two())?;
            match self.0.get_mut(i) {
                Some(slot) => *slot = memory,
                None => self.0.push(memory),
            }
        }
        Ok(self.0[..sizes.len()].to_vec())
    }
}

/// The launch's arguments with every workspace replaced by a view of its memory.
pub(crate) fn place(step: usize, launch: &Launch, sizes: &[usize], memory: &[Arc<dyn Memory>]) -> Result<Vec<Arg>> {
    let refuse =
        |expected: String, got: String| Error::Plan { step, kernel: launch.kernel.info().name.clone(), expected, got };
    let mut args = Vec::with_capacity(launch.args.len());
    for arg in &launch.args {
        args.push(match arg {
            Arg::Workspace { index, dtype, shape, offset_bytes } => {
                let (Some(size), Some(memory)) = (sizes.get(*index), memory.get(*index)) else {
                    return Err(refuse(format!("one of {} workspaces", sizes.len()), format!("workspace {index}")));
                };
                let view = TensorView {
                    offset_bytes: *offset_bytes,
                    ..TensorView::contiguous(*dtype, shape, Arc::clone(memory))
                };
                // The pool may hold more than the plan asked for, which must not hide a wrong size.
                let end = offset_bytes + view.span_bytes();
                if end > *size {
                    return Err(refuse(
                        format!("workspace {index} of {size} bytes"),
                        format!("a view up to byte {end}"),
                    ));
                }
                Arg::Tensor(view)
            }
            Arg::Tensor(_) | Arg::Scalar(_) | Arg::Absent => arg.clone(),
        });
    }
    Ok(args)
}
