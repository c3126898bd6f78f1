//! How a matrix product is done: which unit, and how its operands come out of shared memory.
//!
//! `place` asks this to choose row distances, the emitter to print; both get the same answer because it only depends on
//! the kernel.

use super::access::{Stride, in_range, strides};
use crate::analysis::Ranges;
use crate::ir::effects::walk;
use crate::ir::{Base, BufferId, DType, Kernel, Op, ViewId};
use std::collections::BTreeSet;

/// The way to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Matrix unit on 16-bit operands, fragments loaded as whole 8 x 8 pieces. The flags say that an operand lies in
    /// memory with `k` along its rows.
    Pieces {
        /// The left operand does.
        left_by_k: bool,
        /// The right operand does.
        right_by_k: bool,
    },
    /// Matrix unit on operands of one byte, loaded as pieces, with `k` along rows, and widened to f16.
    Bytes,
    /// Matrix unit on 16-bit operands, fragments loaded and widened element by element.
    Elements,
    /// One multiply-add after the other in f32.
    Scalar,
}

impl Unit {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Pieces { .. } => "matrix unit",
            Unit::Bytes => "matrix unit after widening bytes",
            Unit::Elements => "matrix unit, elements one by one",
            Unit::Scalar => "no matrix unit",
        }
    }
}

/// Bytes of an element of an operand in shared memory: codes of e2m1 have one each.
pub fn element_bytes(d: DType) -> usize {
    d.bits().div_ceil(8)
}

/// Format in which the matrix unit sees an operand.
pub fn unit_format(d: DType) -> Option<DType> {
    match d {
        DType::Bf16 => Some(DType::Bf16),
        DType::F16 | DType::E4m3 | DType::E5m2 | DType::E2m1 => Some(DType::F16),
        DType::F32 | DType::E8m0 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => None,
    }
}

/// The way to `a x b`.
pub fn unit(k: &Kernel, ranges: &Ranges, a: ViewId, b: ViewId) -> Unit {
    let (da, db) = (k.view(a).dtype, k.view(b).dtype);
    let (Some(fa), Some(fb)) = (unit_format(da), unit_format(db)) else { return Unit::Scalar };
    if fa != fb {
        return Unit::Scalar;
    }
    let (Some(ea), Some(eb)) = (k.const_extents(a), k.const_extents(b)) else { return Unit::Elements };
    let (m, depth, n) = (ea[0], ea[1], eb[1]);
    let (size_a, size_b) = (element_bytes(da), element_bytes(db));
    // Rows of pieces: along k, or along the other axis.
    let left = [(1, true), (0, false)].into_iter().find(|&(axis, _)| pieces(k, ranges, a, axis)).map(|p| p.1);
    let right = [(0, true), (1, false)].into_iter().find(|&(axis, _)| pieces(k, ranges, b, axis)).map(|p| p.1);
    let (Some(left_by_k), Some(right_by_k)) = (left, right) else { return Unit::Elements };
    if size_a == 1 && size_b == 1 && left_by_k && right_by_k && depth.is_multiple_of(32) {
        return Unit::Bytes;
    }
    let whole = depth.is_multiple_of(16) && (left_by_k || m.is_multiple_of(8)) && (right_by_k || n.is_multiple_of(8));
    if size_a == 2 && size_b == 2 && whole {
        return Unit::Pieces { left_by_k, right_by_k };
    }
    Unit::Elements
}

/// True if 16 bytes along `axis` are consecutive and aligned wherever they start at a multiple of 16 bytes.
fn pieces(k: &Kernel, ranges: &Ranges, view: ViewId, axis: usize) -> bool {
    let v = k.view(view);
    let Base::Buffer(b) = v.base else { return false };
    let exists = v.guards.iter().all(|&(i, e)| in_range(k, ranges, i, e));
    if v.dtype != k.buffer(b).dtype || v.gather.is_some() || !exists {
        return false;
    }
    let per = (16 / element_bytes(v.dtype)) as i64;
    let stride = |s: Stride| match s {
        Stride::Const(c) => Some(c),
        Stride::Index(id) => k.ix_const(id),
    };
    let s = strides(k, view);
    let (Some(along), Some(across)) = (stride(s[axis]), stride(s[1 - axis])) else { return false };
    along == 1 && across % per == 0 && across > 0 && ranges.multiple_of(v.offset) % per == 0
}

/// Tiles that are operands of products.
pub fn operands(k: &Kernel) -> BTreeSet<BufferId> {
    let mut found = BTreeSet::new();
    walk(k, k.body, &mut |_, op| {
        if let Op::Gemm { a, b, .. } = op {
            for v in [*a, *b] {
                if let Base::Buffer(t) = k.view(v).base {
                    found.insert(t);
                }
            }
        }
    });
    found
}

/// Row distance of an operand's tile, in elements, that puts eight rows of 16 bytes into different banks: an odd number
/// of times 16 bytes.
pub fn pitch(d: DType, row: usize) -> usize {
    let units = (row * element_bytes(d)).div_ceil(16);
    (units | 1) * 16 / element_bytes(d)
}
