//! The compiled form of a kernel for one set of dimension values: registers instead of values, affine forms instead of
//! index expressions, bodies with their loop boxes. Plain data; `compile` makes it, `exec` runs it.

use super::memory::Class;
use crate::ir::{AtomicOp, BinaryOp, BufferId, CmpOp, DType, OpId, Order, ReduceOp, ScanKind, SpanId, UnaryOp};

/// Lanes of a strip.
pub const WIDTH: usize = 512;
/// Most axes a loop box has.
pub const MAX_RANK: usize = 8;

/// A register of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg {
    /// Its class.
    pub class: Class,
    /// Number within the class.
    pub slot: usize,
}

/// Something an index depends on.
#[derive(Clone, Debug)]
pub enum Atom {
    /// A uniform index, by position in the environment.
    Env(usize),
    /// The element index of an axis of the loop box.
    Elem(usize),
    /// A per-lane index register (class L).
    Lane(usize),
    /// An integer scalar.
    Data(Reg, DType),
    /// Product of two forms neither of which is constant.
    Mul(Box<(Ix, Ix)>),
    /// Floor quotient.
    Div(Box<(Ix, Ix)>),
    /// Floor remainder.
    Mod(Box<(Ix, Ix)>),
    /// Smaller.
    Min(Box<(Ix, Ix)>),
    /// Larger.
    Max(Box<(Ix, Ix)>),
}

/// An index: a constant plus multiples of atoms.
#[derive(Clone, Debug)]
pub struct Ix {
    /// Constant part.
    pub c: i64,
    /// Atoms that are the same for all lanes.
    pub uniform: Vec<(i64, Atom)>,
    /// Coefficient of each axis of the loop box; empty if all are zero.
    pub elem: Vec<i64>,
    /// Atoms that differ between lanes otherwise.
    pub lanes: Vec<(i64, Atom)>,
}

impl Ix {
    /// The same for all lanes.
    pub fn is_uniform(&self) -> bool {
        self.lanes.is_empty() && self.elem.iter().all(|&c| c == 0)
    }
    /// The constant it is, if it is one.
    pub fn constant(&self) -> Option<i64> {
        (self.uniform.is_empty() && self.is_uniform()).then_some(self.c)
    }
    /// Coefficient of an axis.
    pub fn coef(&self, axis: usize) -> i64 {
        self.elem.get(axis).copied().unwrap_or(0)
    }
}

/// What an access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A parameter.
    Param(usize),
    /// A tile.
    Tile(usize),
}

/// How the sanitizer takes an index outside its axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The access is checked or a copy: nothing to report.
    Expected,
    /// A tail the verifier keeps a guard for: past the end is expected, before the start is not.
    Tail,
    /// A defect.
    Defect,
}

/// One axis or guard of a view.
#[derive(Clone, Debug)]
pub struct Check {
    /// The index.
    pub index: Ix,
    /// Exists iff `0 <= index < extent`.
    pub extent: Ix,
    /// What the sanitizer says otherwise.
    pub outside: Outside,
}

/// An element access.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where.
    pub place: Place,
    /// Element type of the view.
    pub dtype: DType,
    /// Address in elements of `dtype`.
    pub address: Ix,
    /// Axes, then guards.
    pub checks: Vec<Check>,
    /// All parts are affine in the loop box, so whole strips move at once.
    pub affine: bool,
    /// Axis 0 goes through a table; `address` then leaves its index out.
    pub lookup: Option<Box<Lookup>>,
}

/// How the rows of a gathered view are found: row `r` lies `table[r / page] * step + r % page * within` elements further
/// on, and exists iff the table has that entry and it is in `0..count`.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The table; its address is that of entry 0, its checks are its guards.
    pub table: Access,
    /// Distance of its entries.
    pub stride: Ix,
    /// Number of its entries.
    pub entries: Ix,
    /// Index on axis 0.
    pub row: Ix,
    /// Rows an entry stands for.
    pub page: i64,
    /// Entries are below.
    pub count: Ix,
    /// Elements an entry counts.
    pub step: Ix,
    /// Elements from row to row of a page.
    pub within: Ix,
}

/// An operand of a matrix product.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its element `(0, 0)`; checks after the first two are guards of the whole operand.
    pub access: Access,
    /// Distance of rows and of columns.
    pub strides: [i64; 2],
}

/// A matrix product.
#[derive(Clone, Debug)]
pub struct Gemm {
    /// `m`, `n`, `k`.
    pub shape: [usize; 3],
    /// Left operand, `m` rows of `k`.
    pub a: Operand,
    /// Right operand, `k` rows of `n`.
    pub b: Operand,
    /// The accumulator's first element.
    pub acc: Access,
    /// Ignores what the accumulator held.
    pub set: bool,
    /// Rows and columns have factors, which bodies before this op kept.
    pub scaled: bool,
}

/// Where an index result goes.
#[derive(Clone, Copy, Debug)]
pub enum IxTarget {
    /// The environment: a uniform index.
    Env(usize),
    /// A per-lane register.
    Lane(usize),
}

/// A reduction's parameters.
#[derive(Clone, Debug)]
pub struct ReduceInfo {
    /// Operation.
    pub op: ReduceOp,
    /// Type of the elements.
    pub dtype: DType,
    /// Order of combination.
    pub order: Order,
}

/// What becomes of a body's values.
#[derive(Clone, Debug)]
pub enum Collect {
    /// Nothing: `Parallel`, `Spread`, copies and fills.
    None,
    /// Combined to a scalar of the block frame.
    Reduce {
        /// How.
        info: ReduceInfo,
        /// The element's value.
        value: Reg,
        /// Result in the block frame.
        result: Reg,
    },
    /// The first true one's index goes to the environment.
    First {
        /// The element's condition.
        cond: Reg,
        /// Environment position.
        result: usize,
    },
    /// `Instr::Claim` counts in `counter` of the block frame; strips run in ascending order.
    Count {
        /// The counter.
        counter: Reg,
    },
    /// Kept as the factors of the rows (0) or columns (1) of the matrix product that follows.
    Keep {
        /// The element's factor.
        value: Reg,
        /// Which.
        side: usize,
    },
}

/// Extents of a loop box.
#[derive(Clone, Debug)]
pub enum Extents {
    /// Known.
    Fixed(Vec<usize>),
    /// `lo..hi`, one axis.
    Range(Ix, Ix),
}

/// A copy whose conversion, if there is one, only rounds.
#[derive(Clone, Debug)]
pub struct CopyBody {
    /// Read, zero outside.
    pub from: Access,
    /// Written, dropped outside.
    pub to: Access,
}

/// An element body.
#[derive(Clone, Debug)]
pub struct Body {
    /// The box.
    pub extents: Extents,
    /// Block scalars copied to body registers before the first strip.
    pub splats: Vec<(Reg, Reg)>,
    /// Constants, as bit patterns of a dtype.
    pub constants: Vec<(Reg, DType, u64)>,
    /// Block scalars that indices use: environment position, register, dtype.
    pub env_data: Vec<(usize, Reg, DType)>,
    /// The code.
    pub code: Vec<Node>,
    /// The body only copies.
    pub copy: Option<Box<CopyBody>>,
    /// All accesses, if element indices occur nowhere else and all are affine: then short rows may be run together.
    pub mergeable: Option<Vec<Access>>,
    /// Results.
    pub collect: Collect,
}

/// An instruction with its origin.
#[derive(Clone, Debug)]
pub struct Node {
    /// The instruction.
    pub instr: Instr,
    /// Position.
    pub span: SpanId,
    /// Op it came from.
    pub op: OpId,
}

/// Instructions. Register operands belong to the frame the code runs in.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are the op's operands, in the op's own words")]
pub enum Instr {
    Const {
        dst: Reg,
        dtype: DType,
        bits: u64,
    },
    Index {
        dst: Reg,
        dtype: DType,
        ix: Ix,
    },
    Unary {
        op: UnaryOp,
        dtype: DType,
        dst: Reg,
        x: Reg,
    },
    Binary {
        op: BinaryOp,
        dtype: DType,
        dst: Reg,
        a: Reg,
        b: Reg,
    },
    Fma {
        dst: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Compare {
        op: CmpOp,
        dtype: DType,
        dst: Reg,
        a: Reg,
        b: Reg,
    },
    CompareIndex {
        op: CmpOp,
        dst: Reg,
        a: Ix,
        b: Ix,
    },
    Select {
        dst: Reg,
        cond: Reg,
        a: Reg,
        b: Reg,
    },
    Cast {
        from: DType,
        to: DType,
        dst: Reg,
        x: Reg,
    },
    Bits {
        from: DType,
        to: DType,
        dst: Reg,
        x: Reg,
    },
    Clamp {
        target: IxTarget,
        dtype: DType,
        x: Reg,
        lo: Ix,
        hi: Ix,
    },
    /// Under the mask.
    Move {
        dst: Reg,
        src: Reg,
    },
    /// Under the mask.
    MoveIndex {
        target: IxTarget,
        ix: Ix,
    },
    Load {
        dst: Reg,
        access: Box<Access>,
        other: Option<Reg>,
    },
    Store {
        access: Box<Access>,
        src: Reg,
    },
    Atomic {
        op: AtomicOp,
        access: Box<Access>,
        dst: Option<Reg>,
        src: Reg,
    },
    /// Numbers the lanes whose `cond` holds, from where the last strip ended.
    Claim {
        dst: Reg,
        cond: Reg,
    },
    /// Runs `code` for the lanes whose element of `access` exists; only the sanitizer needs it.
    Inside {
        access: Box<Access>,
        code: Vec<Node>,
    },
    If {
        cond: Reg,
        then: Vec<Node>,
        els: Vec<Node>,
    },
    For {
        target: IxTarget,
        lo: Ix,
        hi: Ix,
        code: Vec<Node>,
    },
    Loop {
        code: Vec<Node>,
    },
    Break,
    Continue,
    /// A fault if `cond` is false for a lane.
    Check {
        cond: Reg,
        message: String,
    },
    /// Ends a part of the program: see [`Program::parts`].
    GridBarrier,
    Alloc {
        tile: usize,
    },
    Body(Box<Body>),
    Reduce {
        info: ReduceInfo,
        src: Box<Access>,
        shape: Vec<usize>,
        strides: Vec<i64>,
        axis: usize,
        dst: usize,
    },
    Scan {
        info: ReduceInfo,
        kind: ScanKind,
        src: Box<Access>,
        shape: Vec<usize>,
        strides: Vec<i64>,
        axis: usize,
        dst: usize,
        total: Option<Reg>,
    },
    Gemm(Box<Gemm>),
    /// An op of roles.
    Role(Box<RoleInstr>),
    /// A barrier: block-level ops are phases already.
    Nothing,
}

/// A copy between a tensor and a shared tile by the engine.
#[derive(Clone, Debug)]
pub struct EngineCopy {
    /// Tile.
    pub tile: usize,
    /// Type of its elements.
    pub dtype: DType,
    /// First element in the tile.
    pub address: Ix,
    /// Distances in the tile along each axis of the copy.
    pub strides: Vec<i64>,
    /// Elements along each axis.
    pub extents: Vec<usize>,
    /// Tensor.
    pub param: usize,
    /// Extent of each axis of the map.
    pub map_extents: Vec<Ix>,
    /// Stride of each axis of the map.
    pub map_strides: Vec<Ix>,
    /// First element along each axis of the map.
    pub at: Vec<Ix>,
    /// Axis of the copy that each axis of the map walks.
    pub axes: Vec<Option<usize>>,
    /// Box along each axis of the map.
    pub boxes: Vec<usize>,
    /// Bytes of the map's swizzle.
    pub swizzle: usize,
}

/// Rows of groups: tiles along the first axis that start at or past those of their group are left out.
#[derive(Clone, Debug)]
pub struct RowCounts {
    /// The count of group 0.
    pub first: Access,
    /// Distance of counts.
    pub stride: Ix,
    /// Rows of a tile.
    pub tile: i64,
}

/// Ops of roles, rings and engines, by numbers of rings, parts and environment positions.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are the op's operands, in the op's own words")]
pub enum RoleInstr {
    Roles {
        programs: Vec<(usize, Vec<Node>)>,
    },
    Tiles {
        targets: Vec<usize>,
        rows: Option<RowCounts>,
        code: Vec<Node>,
    },
    Acquire {
        ring: usize,
        part: usize,
        target: usize,
    },
    Publish {
        ring: usize,
        part: usize,
    },
    Take {
        ring: usize,
        part: usize,
        target: usize,
    },
    Release {
        ring: usize,
        part: usize,
    },
    Advance {
        ring: usize,
        by: usize,
    },
    Load {
        copy: EngineCopy,
        ring: usize,
        part: usize,
        multicast: bool,
    },
    Store {
        copy: EngineCopy,
    },
    StoreWait {
        pending: usize,
    },
    Product {
        product: Gemm,
        release: Vec<(usize, usize)>,
        hold: bool,
    },
    ProductWait {
        pending: usize,
    },
    Combine {
        acc: usize,
        inbox: usize,
        turns: usize,
    },
    /// A barrier of the instance, or of the block outside of roles.
    Meet,
    Fence,
    Cluster,
    /// Waits for other grids: there are none.
    Grid,
}

/// A tile's storage.
#[derive(Clone, Debug)]
pub struct TileInfo {
    /// The buffer.
    pub buffer: BufferId,
    /// Element type.
    pub dtype: DType,
    /// Number of elements; 0 for variables.
    pub len: usize,
    /// Kept as bytes, because a view reinterprets it.
    pub bytes: bool,
}

/// A kernel compiled for one set of dimension values.
#[derive(Clone, Debug)]
pub struct Program {
    /// Block-level code.
    pub code: Vec<Node>,
    /// Registers of the block frame.
    pub block_regs: [usize; 3],
    /// Registers of the largest body.
    pub body_regs: [usize; 3],
    /// Size of the environment: index variables, then index buffers, then block scalars used in bodies.
    pub env: usize,
    /// One entry a buffer.
    pub tiles: Vec<TileInfo>,
    /// Extents of the grid.
    pub grid: Vec<i64>,
    /// Environment positions of the block indices.
    pub block_ids: Vec<usize>,
    /// Scalar parameters: register, dtype, position of the parameter.
    pub scalars: Vec<(Reg, DType, usize)>,
    /// Offsets may take 64 bits.
    pub wide: bool,
}

impl Program {
    /// Parts of the code between grid barriers: all blocks end one before any begins the next.
    pub fn parts(&self) -> Vec<std::ops::Range<usize>> {
        let mut parts = vec![];
        let mut from = 0;
        for (at, node) in self.code.iter().enumerate() {
            if matches!(node.instr, Instr::GridBarrier) {
                parts.push(from..at);
                from = at + 1;
            }
        }
        parts.push(from..self.code.len());
        parts
    }
}
