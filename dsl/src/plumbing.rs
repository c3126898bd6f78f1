//! The only paths generated code uses. Not for kernels: names here may change with the macro.

pub use crate::branch::{Arm, host_jump, if_begin, if_else, if_end, if_then};
pub use crate::check::check;
pub use crate::compare::{and, eq, ge, gt, host_number, le, lt, ne, or, short_and, short_or};
pub use crate::config::{ConfigField, ConfigWord, axis, field, only};
pub use crate::dtype::DType;
pub use crate::kernel::{Cx, build, dtype, require};
pub use crate::launch::{View, ViewMut, optional, scalar};
pub use crate::loops::{break_, continue_, for_begin, range, unroll_range, while_begin, while_test};
pub use crate::scalar::V;
pub use crate::schedule::written as written_schedule;
pub use crate::session::{frame, label, name};
pub use crate::tensor::{Gm, Rd, Wr};
pub use crate::var::{var, var_as};
pub use kiln_codegen::abi::{Arg, Launch, Launcher};
pub use kiln_codegen::diag::Diagnostic;
pub use kiln_codegen::ir::{Access, Kernel, LaunchMode, Relation};
pub use kiln_codegen::schedule::attach as attach_schedule;
pub use kiln_codegen::spec::{
    BuildRequest, DimExpr, DimInfo, KernelDef, KernelInfo, ParamInfo, ParamInfoKind, StrideInfo,
};
pub use kiln_codegen::target::Target;
pub use kiln_codegen::tune::{Config, ConfigError, KernelConfig, Space};
pub use std::collections::BTreeMap;
pub use std::marker::PhantomData;
pub use std::panic::Location;
pub use std::sync::Arc;
