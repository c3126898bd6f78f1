//! Packs a launch's arguments as a compiled entry wants them. The one table is `abi::Signature`.

use crate::error::{Error, Result};
use crate::launch::Ready;
use kiln_codegen::abi::{Arg, LaunchError, LaunchErrorKind, SigArg, Signature, TensorMap};
use kiln_codegen::bind;
use kiln_codegen::ir::{Access, Kernel, ParamKind};
use std::ffi::c_void;

/// A tensor map as a driver encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(128))]
pub(crate) struct OpaqueMap(pub [u64; 16]);

/// Where an argument lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Word(usize),
    Map(usize),
}

/// Argument values. Numbers and addresses have slots of eight bytes; narrower ones use the low bytes, which come first in
/// memory on every host a GPU driver exists for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    words: Vec<u64>,
    maps: Vec<OpaqueMap>,
    order: Vec<Slot>,
}

impl Packed {
    /// Values of the entry's arguments; `arrivals` is the address of the stream's word for cooperative grids, `encode` makes
    /// tensor maps of checked ones.
    pub fn new(
        signature: &Signature,
        kernel: &Kernel,
        syms: &[i64],
        ready: &Ready,
        arrivals: u64,
        encode: impl Fn(&TensorMap, Access) -> Result<OpaqueMap>,
    ) -> Result<Self> {
        let mut packed = Packed { words: vec![], maps: vec![], order: vec![] };
        for arg in &signature.args {
            let word = match arg {
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
                // Only text for cube and vector cores takes one, and those launches are packed elsewhere.
                SigArg::Workspace => 0,
                SigArg::Scalar(param) => match ready.args.get(param.0 as usize) {
                    Some(Arg::Scalar(x)) => x.bits,
                    Some(Arg::Absent | Arg::Tensor(_) | Arg::Workspace { .. }) | None => 0,
                },
                SigArg::TensorMap(spec) => {
                    let map = bind::tensor_map(kernel, spec, syms, &ready.args)?;
                    let access = match kernel.param(spec.param).kind {
                        ParamKind::Tensor { access, .. } => access,
                        ParamKind::Scalar { .. } | ParamKind::Absent => Access::In,
                    };
                    packed.maps.push(encode(&map, access)?);
                    packed.order.push(Slot::Map(packed.maps.len() - 1));
                    continue;
                }
            };
            packed.words.push(word);
            packed.order.push(Slot::Word(packed.words.len() - 1));
        }
        Ok(packed)
    }

    /// Addresses of the arguments, for the driver; valid while `self` is neither moved nor dropped.
    pub fn pointers(&mut self) -> Vec<*mut c_void> {
        let (words, maps) = (self.words.as_mut_ptr(), self.maps.as_mut_ptr());
        let at = |slot: &Slot| match *slot {
            Slot::Word(i) => words.wrapping_add(i).cast(),
            Slot::Map(i) => maps.wrapping_add(i).cast(),
        };
        self.order.iter().map(at).collect()
    }
}
