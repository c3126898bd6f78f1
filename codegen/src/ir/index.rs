//! The index language: integer expressions over dimensions, loop indices and clamped data.
//!
//! Expressions are hash-consed per kernel ([`crate::ir::Kernel::index`]) and folded while they are built, so equal
//! expressions have equal ids. Facts (intervals, divisibility) are computed in `crate::analysis`; the only facts stored
//! here are the inclusive bounds of each index variable. All arithmetic is exact integer arithmetic on i64; division
//! and remainder are only formed with a positive right side and floor towards minus infinity.

use super::{SpanId, ValueId};

/// Id of an index expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IxId(pub u32);

/// Id of an index variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IxVarId(pub u32);

/// Id of a launch-time symbol: a dimension or a stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymId(pub u32);

/// One node of an index expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IxExpr {
    /// An integer.
    Const(i64),
    /// A dimension or stride whose value the launch gives.
    Sym(SymId),
    /// A block, loop or element index, or clamped data.
    Var(IxVarId),
    /// The value of an integer scalar, with no known range. Legal only in checked accesses (`LoadOr`, `StoreChecked`)
    /// and index comparisons.
    Data(ValueId),
    /// Sum.
    Add(IxId, IxId),
    /// Difference.
    Sub(IxId, IxId),
    /// Product.
    Mul(IxId, IxId),
    /// Quotient rounded down; the right side is positive.
    Div(IxId, IxId),
    /// Remainder in `0..b`; the right side is positive.
    Mod(IxId, IxId),
    /// Smaller of both.
    Min(IxId, IxId),
    /// Larger of both.
    Max(IxId, IxId),
}

/// A launch-time symbol.
#[derive(Clone, Debug, PartialEq)]
pub struct Sym {
    /// Name in the kernel's source, or `x.stride0` for a stride that has no name.
    pub name: String,
    /// Where its value comes from.
    pub kind: SymKind,
    /// The value is a multiple of this (at least 1).
    pub multiple_of: i64,
    /// Smallest value the launch accepts.
    pub min: i64,
    /// Largest value the launch accepts; `i32::MAX` unless 64-bit addressing is asked for.
    pub max: i64,
}

/// Where a symbol's value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum SymKind {
    /// A named dimension, bound from the shapes (or declared strides) of parameters.
    Dim,
    /// The stride, in elements, of one axis of a parameter that is not contiguous.
    Stride {
        /// Position of the parameter.
        param: u32,
        /// Axis of the parameter.
        axis: u32,
    },
}

/// An index variable.
#[derive(Clone, Debug, PartialEq)]
pub struct IxVar {
    /// Name for IR text and generated code, unique after printing.
    pub name: String,
    /// What defines it.
    pub kind: IxVarKind,
    /// Inclusive lower bound, if known.
    pub lo: Option<IxId>,
    /// Inclusive upper bound, if known. An index whose range is empty is never evaluated.
    pub hi: Option<IxId>,
    /// Position of its definition.
    pub span: SpanId,
}

/// What defines an index variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IxVarKind {
    /// Block index along a grid axis.
    Block(u8),
    /// Index of a sequential `For`: uniform in a block.
    Loop,
    /// Index of `Parallel`, `Spread` or `ReduceRegion`: differs between elements.
    Element,
    /// A value read from data: `ClampIndex`, a read of an index variable, the join of an `If`, `FindFirst`.
    Data,
}
