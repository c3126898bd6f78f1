//! A kernel with a schedule written for a target, or with another form of itself there.

use super::{Reason, Schedule};
use crate::diag::Diagnostic;
use crate::ir::Kernel;
use crate::spec::{BuildRequest, KernelDef, KernelInfo};
use crate::target::Target;
use crate::tune::{Config, Space};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes the schedule of a built kernel.
type Make = fn(&Kernel, &Config) -> Result<Schedule, Reason>;

#[derive(Debug)]
struct Scheduled {
    inner: Arc<dyn KernelDef>,
    target: Target,
    make: Make,
}

/// Attaches a schedule to a kernel. Attach several times for several targets.
pub fn attach(kernel: Arc<dyn KernelDef>, target: Target, make: Make) -> Arc<dyn KernelDef> {
    Arc::new(Scheduled { inner: kernel, target, make })
}

impl KernelDef for Scheduled {
    fn info(&self) -> &KernelInfo {
        self.inner.info()
    }
    fn space(&self) -> Space {
        self.inner.space()
    }
    fn require(&self, dims: &BTreeMap<String, usize>, config: &Config) -> Result<(), Vec<String>> {
        self.inner.require(dims, config)
    }
    fn build(&self, request: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        self.inner.build(request)
    }
    fn schedule(&self, target: Target, kernel: &Kernel, config: &Config) -> Option<Result<Schedule, Reason>> {
        if target == self.target {
            return Some((self.make)(kernel, config));
        }
        self.inner.schedule(target, kernel, config)
    }
    fn form(&self, target: Target) -> Option<Arc<dyn KernelDef>> {
        self.inner.form(target)
    }
}

#[derive(Debug)]
struct Formed {
    inner: Arc<dyn KernelDef>,
    target: Target,
    form: Arc<dyn KernelDef>,
}

/// Attaches a form with roles for a target: another kernel with the same parameters, configuration and grid, which is
/// used there for the dimensions and configurations it takes. The two may round differently.
pub fn attach_form(kernel: Arc<dyn KernelDef>, target: Target, form: Arc<dyn KernelDef>) -> Arc<dyn KernelDef> {
    Arc::new(Formed { inner: kernel, target, form })
}

impl KernelDef for Formed {
    fn info(&self) -> &KernelInfo {
        self.inner.info()
    }
    fn space(&self) -> Space {
        self.inner.space()
    }
    fn require(&self, dims: &BTreeMap<String, usize>, config: &Config) -> Result<(), Vec<String>> {
        self.inner.require(dims, config)
    }
    fn build(&self, request: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        self.inner.build(request)
    }
    fn schedule(&self, target: Target, kernel: &Kernel, config: &Config) -> Option<Result<Schedule, Reason>> {
        self.inner.schedule(target, kernel, config)
    }
    fn form(&self, target: Target) -> Option<Arc<dyn KernelDef>> {
        if target == self.target { Some(self.form.clone()) } else { self.inner.form(target) }
    }
}
