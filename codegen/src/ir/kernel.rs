//! The kernel: arenas of everything an op refers to by id.
//!
//! Plain data with public fields. `Builder` makes it, `valid` judges it, passes return changed copies.

use super::sched::{Cluster, Ring, Role, TensorMap};
use super::{
    DType, Distribution, IxExpr, IxId, IxVar, IxVarId, Literal, MemoryLayout, OpId, OpNode, Span, SpanId, Sym,
};
use std::collections::{BTreeMap, HashMap};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )* };
}
ids! {
    /// Id of a scalar value.
    ValueId,
    /// Id of a buffer: a tile or a variable.
    BufferId,
    /// Id of a view of a parameter or buffer.
    ViewId,
    /// Id of a parameter, in declaration order.
    ParamId,
    /// Id of a block of ops.
    BlockId,
    /// Id of a role (scheduled IR).
    RoleId,
    /// Id of a ring (scheduled IR).
    RingId,
}

/// Form of the IR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// As built: sequential, block level, bulk synchronous.
    Plain,
    /// Placed for a target: distributions, layouts, offsets and barriers are filled in.
    Scheduled,
}

/// A whole kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Name of the kernel function.
    pub name: String,
    /// Form of this kernel.
    pub stage: Stage,
    /// Type parameters in order, as `("T", dtype)`.
    pub dtypes: Vec<(String, DType)>,
    /// Compile-time dimensions that were baked in, as `("h", 7168)`.
    pub fixed_dims: Vec<(String, usize)>,
    /// Parameters, in declaration order.
    pub params: Vec<Param>,
    /// Dimensions and strides the launch gives.
    pub syms: Vec<Sym>,
    /// Index expressions; use [`Kernel::ix`] to intern.
    pub index: Vec<IxExpr>,
    /// Interning table of `index`.
    pub index_ids: HashMap<IxExpr, IxId>,
    /// Index variables.
    pub ix_vars: Vec<IxVar>,
    /// Scalar values.
    pub values: Vec<Value>,
    /// Tiles and variables.
    pub buffers: Vec<Buffer>,
    /// Views of parameters and buffers.
    pub views: Vec<View>,
    /// Ops.
    pub ops: Vec<OpNode>,
    /// Blocks of ops.
    pub blocks: Vec<Block>,
    /// The kernel's body.
    pub body: BlockId,
    /// Extents of the grid, one to three; empty until `grid(..)` was called.
    pub grid: Vec<IxId>,
    /// Block index variables, one a grid axis.
    pub block_ids: Vec<IxVarId>,
    /// Order in which the blocks of a grid of output tiles should start: in panels of this many rows of axis 0, each
    /// walked column by column of axis 1; 1 means row by row. `None` leaves the order to the target. It never changes
    /// what a block computes.
    pub raster: Option<usize>,
    /// Warps of 32 threads a block has on targets with threads. Part of the numerics: reductions use it.
    pub warps: usize,
    /// Facts every launch guarantees, from `require(..)`.
    pub requires: Vec<Require>,
    /// Declared properties.
    pub properties: Properties,
    /// Source positions.
    pub spans: Vec<Span>,
    /// Position of the kernel's name.
    pub span: SpanId,
    /// Roles (scheduled IR); empty means that all `warps` warps run the body together.
    pub roles: Vec<Role>,
    /// Rings between roles (scheduled IR).
    pub rings: Vec<Ring>,
    /// Cluster of blocks (scheduled IR).
    pub cluster: Option<Cluster>,
    /// How copy engines see tensors (scheduled IR).
    pub maps: Vec<TensorMap>,
    /// Iterations that are printed in a row, by loop variable (scheduled IR); it changes nothing but speed.
    pub unroll: BTreeMap<IxVarId, usize>,
    /// Bytes of shared memory, known after the memory plan.
    pub shared_bytes: usize,
}

/// Declared properties the compiler checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Same inputs, config and target give the same bits.
    pub deterministic: bool,
    /// Dimensions along which a slice of the output depends only on its own slice of the input.
    pub batch_invariant: Vec<String>,
    /// How it is launched.
    pub launch: LaunchMode,
}

/// What a launch asks of a device beyond running each block once. The results of a kernel do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchMode {
    /// All blocks run at the same time, so that `grid_sync()` can wait for all of them: `#[kernel(cooperative)]`.
    pub cooperative: bool,
    /// The kernel may be started while the one before it on its stream still runs; it waits for that one's results
    /// before it touches memory, and lets the next one be started: `#[kernel(pdl)]`. Nothing where a target has no such
    /// launch.
    pub dependent: bool,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Name in the source.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
    /// Position of its declaration.
    pub span: SpanId,
}

/// What a parameter is.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamKind {
    /// A tensor in global memory.
    Tensor {
        /// Element type.
        dtype: DType,
        /// How the kernel may use it.
        access: Access,
        /// Extent of each axis.
        extents: Vec<IxId>,
        /// Stride of each axis in elements.
        strides: Vec<IxId>,
        /// The base address is a multiple of this many bytes (a launch fact, part of the build key).
        align_bytes: usize,
        /// A tensor map can describe it (a launch fact, part of the build key).
        tma: bool,
    },
    /// A scalar given at launch.
    Scalar {
        /// Type of the scalar.
        dtype: DType,
        /// The value inside the kernel.
        value: ValueId,
    },
    /// An optional parameter that this build does not have.
    Absent,
}

/// How a tensor parameter may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only.
    In,
    /// Written; its old content must not be read.
    Out,
    /// Read and written.
    InOut,
}

/// Memory spaces. Plain IR uses `Shared`, `Frag` and `Var`; lowering assigns the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Scratch memory of a block.
    Shared,
    /// Block-level register tile; a target may keep it in registers, shared memory, tensor memory or UB.
    Frag,
    /// One scalar per block (or per element inside a body).
    Var,
    /// Blackwell tensor memory.
    Tmem,
    /// Ascend L1.
    L1,
    /// Ascend cube operand A.
    L0a,
    /// Ascend cube operand B.
    L0b,
    /// Ascend cube accumulator.
    L0c,
    /// Ascend unified buffer.
    Ub,
    /// Compiler-owned global memory.
    Workspace,
}

/// A tile or a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name from the source (`acc`), not unique.
    pub name: String,
    /// Element type. Index variables use `I64` and `index: true`.
    pub dtype: DType,
    /// True for a `Var` that holds an index.
    pub index: bool,
    /// Extents; empty for `Var`.
    pub extents: Vec<usize>,
    /// Memory space.
    pub space: Space,
    /// Spread over threads, for a `Frag` kept in registers (scheduled).
    pub distribution: Option<Distribution>,
    /// Placement in shared memory (scheduled).
    pub memory: Option<MemoryLayout>,
    /// Role that owns it (scheduled).
    pub role: Option<RoleId>,
    /// Position of the allocation.
    pub span: SpanId,
}

/// What a view looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// A tensor parameter.
    Param(ParamId),
    /// A tile.
    Buffer(BufferId),
}

/// A strided window on a parameter or buffer: element `i` is at `offset + sum(i_k * strides_k)`, counted in elements of
/// the *view's* dtype from the start of the base. It exists iff `0 <= i_k < extents_k` for each axis and every guard
/// `(index, extent)` satisfies `0 <= index < extent`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// What is looked at.
    pub base: Base,
    /// Element type; differs from the base's only for `view_as` on bytes.
    pub dtype: DType,
    /// Extent of each axis.
    pub extents: Vec<IxId>,
    /// Stride of each axis in elements of `dtype`.
    pub strides: Vec<IxId>,
    /// First element, in elements of `dtype`.
    pub offset: IxId,
    /// Picked axes whose index still has to be in range.
    pub guards: Vec<(IxId, IxId)>,
    /// Axis 0 goes through a table: its index is looked up instead of multiplied by its stride alone.
    pub gather: Option<Gather>,
    /// Position of the expression that made the view.
    pub span: SpanId,
}

/// How axis 0 of a view is looked up. An entry outside its range makes the element not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gather {
    /// Row `i` lies in page `table[i / page]` at row `i % page`: its offset is
    /// `table[i / page] * page_stride + (i % page) * strides[0]`, and it exists iff `0 <= table[i / page] < pages`.
    Paged {
        /// Rank-1 view of integers.
        table: ViewId,
        /// Rows of a page, a constant.
        page: usize,
        /// Number of pages.
        pages: IxId,
        /// Distance of pages in elements.
        page_stride: IxId,
    },
    /// Row `i` is row `rows[i]` of the base: its offset is `rows[i] * strides[0]`, and it exists iff
    /// `0 <= rows[i] < count`.
    Rows {
        /// Rank-1 view of integers.
        rows: ViewId,
        /// Rows of the base.
        count: IxId,
    },
}

impl Gather {
    /// The view rows are looked up in.
    pub fn table(self) -> ViewId {
        match self {
            Gather::Paged { table, .. } => table,
            Gather::Rows { rows, .. } => rows,
        }
    }
}

/// A scalar value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Type.
    pub dtype: DType,
    /// Defining op; `None` for scalar parameters.
    pub def: Option<OpId>,
    /// Position.
    pub span: SpanId,
}

/// A sequence of ops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Ops in order.
    pub ops: Vec<OpId>,
}

/// An index of a checked access: an index expression, or data with any value.
pub type AnyIx = IxId;

/// A fact every launch guarantees: `left relation right`.
#[derive(Clone, Debug, PartialEq)]
pub struct Require {
    /// Text of the clause.
    pub text: String,
    /// Left side.
    pub left: IxId,
    /// Relation.
    pub relation: Relation,
    /// Right side.
    pub right: IxId,
}

/// Relation of a [`Require`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// Equal.
    Eq,
    /// Less or equal.
    Le,
    /// Less.
    Lt,
}

impl Kernel {
    /// The expression of an index id.
    pub fn ix_expr(&self, id: IxId) -> IxExpr {
        self.index[id.0 as usize]
    }
    /// The constant an index is, if it is one.
    pub fn ix_const(&self, id: IxId) -> Option<i64> {
        match self.ix_expr(id) {
            IxExpr::Const(c) => Some(c),
            IxExpr::Sym(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Add(..)
            | IxExpr::Sub(..)
            | IxExpr::Mul(..)
            | IxExpr::Div(..)
            | IxExpr::Mod(..)
            | IxExpr::Min(..)
            | IxExpr::Max(..) => None,
        }
    }
    /// The op of an id.
    pub fn op(&self, id: OpId) -> &OpNode {
        &self.ops[id.0 as usize]
    }
    /// The buffer of an id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
    /// The view of an id.
    pub fn view(&self, id: ViewId) -> &View {
        &self.views[id.0 as usize]
    }
    /// The value of an id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }
    /// The block of an id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
    /// The parameter of an id.
    pub fn param(&self, id: ParamId) -> &Param {
        &self.params[id.0 as usize]
    }
    /// The index variable of an id.
    pub fn ix_var(&self, id: IxVarId) -> &IxVar {
        &self.ix_vars[id.0 as usize]
    }
    /// The position of an id.
    pub fn span_of(&self, id: SpanId) -> &Span {
        &self.spans[id.0 as usize]
    }
    /// The constant a value is, if a `Const` op defines it.
    pub fn literal(&self, id: ValueId) -> Option<Literal> {
        let def = self.value(id).def?;
        if let super::Op::Const { value, .. } = &self.op(def).op { Some(*value) } else { None }
    }
    /// Extents of a tile view as numbers; `None` if an extent is not a constant.
    pub fn const_extents(&self, view: ViewId) -> Option<Vec<usize>> {
        self.view(view).extents.iter().map(|&e| self.ix_const(e).map(|c| c as usize)).collect()
    }
}
