//! Numbers of a launch: symbols, grid, tensor maps, and the limits of a device. Everything here is evaluated from
//! constants and symbols; what the arguments are was checked by [`bind`](super::bind).

use crate::abi::{Arg, LaunchError, LaunchErrorKind};
use crate::emit::Source;
use crate::ir::{IxExpr, IxId, Kernel, SymKind};
use crate::target::Caps;
use crate::tensor_map::{ALIGN_BYTES, TensorMap, TensorMapSpec};
use std::collections::BTreeMap;

/// Values of a kernel's symbols, in order. A symbol that neither `dims` nor the arguments give (one that only absent
/// parameters bind) is 0.
pub fn sym_values(kernel: &Kernel, dims: &BTreeMap<String, usize>, args: &[Arg]) -> Vec<i64> {
    let value = |kind: &SymKind, name: &str| match kind {
        SymKind::Dim => dims.get(name).copied(),
        SymKind::Stride { param, axis } => match args.get(*param as usize)? {
            Arg::Tensor(v) => v.strides.get(*axis as usize).copied(),
            Arg::Workspace { shape, .. } => crate::ir::build::row_major(shape).get(*axis as usize).copied(),
            Arg::Scalar(_) | Arg::Absent => None,
        },
    };
    kernel.syms.iter().map(|s| value(&s.kind, &s.name).unwrap_or(0) as i64).collect()
}

/// Value of an expression of symbols and constants; `None` if it mentions anything else or overflows.
fn value(kernel: &Kernel, id: IxId, syms: &[i64]) -> Option<i64> {
    let leaf = |e: IxExpr| match e {
        IxExpr::Sym(s) => syms.get(s.0 as usize).copied(),
        IxExpr::Const(c) => Some(c),
        IxExpr::Var(_)
        | IxExpr::Data(_)
        | IxExpr::Add(..)
        | IxExpr::Sub(..)
        | IxExpr::Mul(..)
        | IxExpr::Div(..)
        | IxExpr::Mod(..)
        | IxExpr::Min(..)
        | IxExpr::Max(..) => None,
    };
    kernel.eval_ix(id, &leaf)
}

/// Extents of the grid, one to three of them; negative extents count as 0. `None` if one cannot be evaluated from
/// symbols alone or overflows.
pub fn grid(kernel: &Kernel, syms: &[i64]) -> Option<Vec<i64>> {
    kernel.grid.iter().map(|&e| value(kernel, e, syms).map(|x| x.max(0))).collect()
}

/// A tensor map with the numbers of a launch, checked. `args` hold tensors where workspaces were.
///
/// # Errors
/// An argument that is no tensor, an expression without a value, and every rule of [`TensorMap::check`].
pub fn tensor_map(kernel: &Kernel, spec: &TensorMapSpec, syms: &[i64], args: &[Arg]) -> Result<TensorMap, LaunchError> {
    let refuse = |kind, expected: String, got: String, help: &str| LaunchError {
        kernel: kernel.name.clone(),
        parameter: kernel.params.get(spec.param.0 as usize).map(|p| p.name.clone()),
        kind,
        expected,
        got,
        help: help.into(),
    };
    let Some(Arg::Tensor(view)) = args.get(spec.param.0 as usize) else {
        let (expected, got) = ("a tensor for a tensor map".into(), "none".into());
        return Err(refuse(LaunchErrorKind::Arguments, expected, got, "pass the tensor"));
    };
    let number = |id: IxId, what: &str| {
        value(kernel, id, syms).and_then(|x| u64::try_from(x).ok()).ok_or_else(|| {
            let expected = format!("{what} of a tensor map that follows from the dimensions");
            let got = format!("one that cannot be evaluated for {syms:?}");
            refuse(LaunchErrorKind::Limits, expected, got, "check the shapes for division by zero or overflow")
        })
    };
    let bytes = |elements: u64| elements.saturating_mul(spec.dtype.bits() as u64) / 8;
    let offset = spec.offset.map_or(Ok(0), |o| number(o, "the offset"))?;
    let mut map = TensorMap {
        dtype: spec.dtype,
        address: view.memory.address().wrapping_add(view.offset_bytes as u64).wrapping_add(bytes(offset)),
        extents: vec![],
        strides_bytes: vec![],
        boxes: spec.axes.iter().map(|a| a.box_extent).collect(),
        swizzle: spec.swizzle,
        l2_promotion: spec.l2_promotion,
    };
    for (i, axis) in spec.axes.iter().enumerate() {
        let (extent, stride) = (number(axis.extent, "an extent")?, number(axis.stride, "a stride")?);
        map.extents.push(extent);
        match i {
            0 if stride != 1 && extent > 1 => {
                let expected = "elements that follow each other on the innermost axis of a tensor map".to_string();
                let help = "copy it into a contiguous tensor";
                return Err(refuse(LaunchErrorKind::Strides, expected, format!("stride {stride}"), help));
            }
            0 => {}
            // The stride of an axis with at most one element says nothing, but it still has to be one TMA takes.
            _ if extent <= 1 => map.strides_bytes.push(ALIGN_BYTES),
            _ => map.strides_bytes.push(bytes(stride)),
        }
    }
    // Nothing of an empty tensor is ever reached, so its address and strides may be anything.
    if map.is_empty() {
        map.strides_bytes.fill(ALIGN_BYTES);
        map.address -= map.address % ALIGN_BYTES;
    }
    map.check().map_err(|fault| {
        let kind = match fault.of_kernel {
            true => LaunchErrorKind::Limits,
            false if !map.address.is_multiple_of(ALIGN_BYTES) => LaunchErrorKind::Alignment,
            false => LaunchErrorKind::Strides,
        };
        let help = match fault.of_kernel {
            true => "use a config with other tiles",
            false => "copy it into a tensor whose address and rows are multiples of 16 bytes",
        };
        refuse(kind, fault.expected, fault.got, help)
    })?;
    Ok(map)
}

/// Largest grid extents of a CUDA device. Source: CUDA C++ Programming Guide, technical specifications.
pub const GRID_MAX: [i64; 3] = [i32::MAX as i64, 65535, 65535];

/// Compares grid, threads, shared memory and cluster of a launch of `blocks` with what a target has.
///
/// # Errors
/// The first limit that is exceeded.
pub fn check_limits(kernel: &str, blocks: &[i64], source: &Source, caps: &Caps) -> Result<(), LaunchError> {
    let refuse = |expected: String, got: String, help: &str| LaunchError {
        kernel: kernel.into(),
        parameter: None,
        kind: LaunchErrorKind::Limits,
        expected,
        got,
        help: help.into(),
    };
    for (axis, (&extent, max)) in blocks.iter().zip(GRID_MAX).enumerate() {
        if extent > max {
            return Err(refuse(
                format!("at most {max} blocks on grid axis {axis}"),
                format!("{extent}"),
                "use larger tiles, or put the long axis first in `grid(..)`",
            ));
        }
    }
    if source.threads > caps.threads {
        let (expected, got) = (format!("at most {} threads a block", caps.threads), source.threads.to_string());
        return Err(refuse(expected, got, "use a config with fewer warps"));
    }
    if source.shared_bytes > caps.shared_bytes {
        let expected = format!("at most {} bytes of shared memory a block", caps.shared_bytes);
        return Err(refuse(expected, source.shared_bytes.to_string(), "use a config with smaller tiles"));
    }
    let cluster = source.cluster_blocks();
    if cluster > caps.cluster_blocks {
        let expected = format!("at most {} blocks a cluster", caps.cluster_blocks);
        return Err(refuse(expected, cluster.to_string(), "use a config with a smaller cluster"));
    }
    Ok(())
}

/// Refuses a grid of tiles in panels whose tiles cannot be counted in 32 bits: the emitted text counts them.
///
/// # Errors
/// If there are more.
pub fn check_panels(kernel: &Kernel, grid: &[i64]) -> Result<(), LaunchError> {
    let tiles = grid.iter().take(2).try_fold(1i64, |n, &e| n.checked_mul(e));
    if kernel.raster.is_none() || grid.len() < 2 || tiles.is_some_and(|n| n <= i64::from(u32::MAX)) {
        return Ok(());
    }
    let shape: Vec<_> = grid.iter().map(i64::to_string).collect();
    Err(LaunchError {
        kernel: kernel.name.clone(),
        parameter: None,
        kind: LaunchErrorKind::Limits,
        expected: format!("at most {} output tiles", u32::MAX),
        got: shape.join(" x "),
        help: "use larger tiles".into(),
    })
}
