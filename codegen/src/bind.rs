//! Binding: from the arguments of a launch to dimension values, launch facts and the build request; every refused launch
//! of the language is found here, before any device is touched.

use crate::spec::BuildRequest;
use std::collections::BTreeMap;

/// A launch whose arguments fit its kernel.
#[derive(Clone, Debug)]
pub struct Bound {
    /// What to build.
    pub request: BuildRequest,
    /// Value of every dimension, dynamic and fixed; 0 for one bound only by absent parameters.
    pub dims: BTreeMap<String, usize>,
}
