//! The tile IR: one arena per kernel, one closed op enum, structured blocks.
//!
//! Rules that hold for every kernel:
//! * Two stages of one IR. *Plain* is what the builder emits: sequential, block level, bulk synchronous. *Scheduled*
//!   is the same program after passes have filled in spaces, layouts, distributions, roles, rings and barriers.
//! * Values ([`ValueId`]) are scalars and are assigned once. Tiles are buffers ([`BufferId`]) seen through views
//!   ([`ViewId`]). Indices ([`IxId`]) are a separate small language with facts, and the only thing tensors are
//!   addressed with.
//! * Block level is uniform: a scalar at block level is the same for the whole block. Values differ between elements
//!   only inside the bodies of `Parallel`, `Spread` and `ReduceRegion`.
//! * Every op at block level is a phase: all its effects are visible to the next one of the same block.
//! * Reads outside a view give zero (or the `other` value), writes outside are dropped.
//! * Scopes are structured: a value, variable or index variable is visible in its block after its definition and in
//!   nested blocks.
//!
//! Nothing here checks anything; see `valid`. Nothing here runs anything; see `vm`.

pub mod build;
pub mod clone;
pub mod dtype;
pub mod effects;
pub mod hash;
pub mod index;
pub mod kernel;
pub mod layout;
pub mod op;
pub mod parse;
pub mod print;
pub mod sched;
pub mod span;

pub use build::Builder;
pub use clone::Cloner;
pub use dtype::{DType, Literal};
pub use index::{IxExpr, IxId, IxVar, IxVarId, IxVarKind, Sym, SymId, SymKind};
pub use kernel::{
    Access, AnyIx, Base, Block, BlockId, Buffer, BufferId, Gather, Kernel, LaunchMode, Param, ParamId, ParamKind,
    Properties, Relation, Require, RingId, RoleId, Space, Stage, Value, ValueId, View, ViewId,
};
pub use layout::{Distribution, Fragment, MemoryLayout, Order, Tree};
pub use op::{
    AtomicOp, BinaryOp, CmpOp, GemmScale, IfResult, Op, OpId, OpNode, ReduceOp, Region, ScanKind, UnaryOp, multiplies,
};
pub use sched::{Cluster, Evict, GroupRows, MapId, Ring, RingPart, Role, SchedOp, TensorMap};
pub use span::{Frame, Span, SpanId};
