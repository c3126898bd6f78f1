//! Packs a launch's arguments as a compiled entry wants them. The one table is `abi::Signature`.

use crate::error::{Error, Result};
use crate::launch::Ready;
use kiln_codegen::abi::{Arg, LaunchError, LaunchErrorKind, SigArg, Signature};
use std::ffi::c_void;

/// Argument values, each in a slot of eight bytes; narrower ones use the low bytes, which come first in memory on every
/// host a GPU driver exists for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed(Vec<u64>);

impl Packed {
    /// Values of the entry's arguments; `arrivals` is the address of the stream's word for cooperative grids.
    pub fn new(signature: &Signature, syms: &[i64], ready: &Ready, arrivals: u64) -> Result<Self> {
        let mut slots = Vec::with_capacity(signature.args.len());
        for arg in &signature.args {
            slots.push(match arg {
                SigArg::Pointer(param) => match ready.args.get(param.0 as usize) {
                    Some(Arg::Tensor(v)) => v.memory.address() + v.offset_bytes as u64,
                    Some(Arg::Absent | Arg::Scalar(_) | Arg::Workspace { .. }) | None => 0,
                },
                SigArg::Sym { sym, wide } => {
                    let value = syms.get(sym.0 as usize).copied().unwrap_or(0);
                    if !wide && i32::try_from(value).is_err() {
                        return Err(Error::Launch(LaunchError {
                            kernel: ready.name().into(),
                            parameter: None,
                            kind: LaunchErrorKind::Limits,
                            expected: "dimensions and strides that fit 32 bits".into(),
                            got: value.to_string(),
                            help: "split the problem".into(),
                        }));
                    }
                    value as u64
                }
                SigArg::GridArrivals => arrivals,
                SigArg::Scalar(param) => match ready.args.get(param.0 as usize) {
                    Some(Arg::Scalar(x)) => x.bits,
                    Some(Arg::Absent | Arg::Tensor(_) | Arg::Workspace { .. }) | None => 0,
                },
            });
        }
        Ok(Packed(slots))
    }

    /// Addresses of the slots, for the driver; valid while `self` is neither moved nor dropped.
    pub fn pointers(&mut self) -> Vec<*mut c_void> {
        self.0.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect()
    }
}
