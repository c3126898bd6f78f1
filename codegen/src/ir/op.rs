//! Every op of the IR with its contract.
//!
//! The enum is closed and matched without `_` arms: adding an op makes the compiler list every function that must learn
//! it (`effects`, `verify`, `print`, `vm`, each emitter). Ops marked *scheduled* appear only after lowering.

use super::{BlockId, BufferId, DType, Distribution, IxId, IxVarId, Literal, Order, SchedOp, SpanId, ValueId, ViewId};

/// Id of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

/// An op with its position.
#[derive(Clone, Debug, PartialEq)]
pub struct OpNode {
    /// The op.
    pub op: Op,
    /// Where the user wrote it.
    pub span: SpanId,
}

/// A rectangular part of a view: `extents` elements starting at `start`, with the view's rank. For a whole tile, `start`
/// is zero and `extents` are the tile's.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// The view.
    pub view: ViewId,
    /// First element along each axis.
    pub start: Vec<IxId>,
}

/// Value or index an `If` yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IfResult {
    /// A scalar: `result` is `then` or `els`.
    Value {
        /// Joined value.
        result: ValueId,
        /// Value of the first arm.
        then: ValueId,
        /// Value of the second arm.
        els: ValueId,
    },
    /// An index: `result` (kind `Data`) is `then` or `els`.
    Index {
        /// Joined index variable.
        result: IxVarId,
        /// Index of the first arm.
        then: IxId,
        /// Index of the second arm.
        els: IxId,
    },
}

/// Scale of the rows or columns of a [`Op::Gemm`]: an element body that gives one factor an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmScale {
    /// Row or column of the accumulator, kind `Element`.
    pub var: IxVarId,
    /// Body without stores.
    pub body: BlockId,
    /// The factor, F32, defined in `body`.
    pub value: ValueId,
}

/// The ops.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    // --- scalars: pure, at block level or in element bodies ---
    /// A constant.
    Const {
        /// Result.
        result: ValueId,
        /// The constant; its dtype is the result's.
        value: Literal,
    },
    /// An index as data: `result = index`, wrapped to the result's integer width.
    IndexValue {
        /// Result, I32, U32 or I64.
        result: ValueId,
        /// The index.
        index: IxId,
    },
    /// `result = op(x)`.
    Unary {
        /// Result.
        result: ValueId,
        /// Operation.
        op: UnaryOp,
        /// Operand of the result's dtype.
        x: ValueId,
    },
    /// `result = a op b`; integers wrap, floats round to nearest even.
    Binary {
        /// Result.
        result: ValueId,
        /// Operation.
        op: BinaryOp,
        /// Left operand of the result's dtype.
        a: ValueId,
        /// Right operand of the result's dtype.
        b: ValueId,
    },
    /// `result = a * b + c` with one rounding. Contraction is never implicit.
    Fma {
        /// Result, F32.
        result: ValueId,
        /// Factor.
        a: ValueId,
        /// Factor.
        b: ValueId,
        /// Addend.
        c: ValueId,
    },
    /// `result = a op b`, Bool. Comparisons with NaN are false, except `Ne`.
    Compare {
        /// Result, Bool.
        result: ValueId,
        /// Comparison.
        op: CmpOp,
        /// Left operand.
        a: ValueId,
        /// Right operand of the same dtype.
        b: ValueId,
    },
    /// `result = a op b` on indices, Bool.
    CompareIndex {
        /// Result, Bool.
        result: ValueId,
        /// Comparison.
        op: CmpOp,
        /// Left index.
        a: IxId,
        /// Right index.
        b: IxId,
    },
    /// `result = cond ? a : b`; both sides are evaluated.
    Select {
        /// Result.
        result: ValueId,
        /// Bool.
        cond: ValueId,
        /// Value if true.
        a: ValueId,
        /// Value if false.
        b: ValueId,
    },
    /// Conversion to the result's dtype. Float to float: nearest even; to E4m3, E5m2, E2m1 saturating; E8m0 takes the
    /// exponent of a power of two. Float to integer: towards zero, saturating, NaN gives 0. Integer to integer: wraps.
    /// Integer to float: nearest even. Bool to number: 0 or 1.
    Cast {
        /// Result.
        result: ValueId,
        /// Operand.
        x: ValueId,
    },
    /// Bit pattern of `x` as the result's dtype, which has the same width.
    Bits {
        /// Result.
        result: ValueId,
        /// Operand.
        x: ValueId,
    },
    /// Data becomes an index: `var = min(max(value, lo), hi)`, with `[lo, hi]` as its bounds.
    ClampIndex {
        /// Result, of kind `Data`.
        var: IxVarId,
        /// Integer scalar.
        value: ValueId,
        /// Smallest result.
        lo: IxId,
        /// Largest result.
        hi: IxId,
    },

    // --- variables: `let mut` scalars and indices ---
    /// Declares `var` (space `Var`) and gives it `init`.
    VarNew {
        /// The variable.
        var: BufferId,
        /// First value.
        init: ValueId,
    },
    /// A snapshot of `var`.
    VarGet {
        /// Result.
        result: ValueId,
        /// The variable.
        var: BufferId,
    },
    /// `var = value`. In an element body only variables declared inside that body may be set.
    VarSet {
        /// The variable.
        var: BufferId,
        /// New value.
        value: ValueId,
    },
    /// Declares the index variable `var` and gives it `init`.
    IxVarNew {
        /// The variable (`index: true`).
        var: BufferId,
        /// First value.
        init: IxId,
    },
    /// A snapshot of the index variable `var`.
    IxVarGet {
        /// Result, of kind `Data`.
        result: IxVarId,
        /// The variable.
        var: BufferId,
    },
    /// `var = index`.
    IxVarSet {
        /// The variable.
        var: BufferId,
        /// New value.
        index: IxId,
    },

    // --- elements ---
    /// `result = view[index]`, zero outside.
    Load {
        /// Result, of the view's dtype.
        result: ValueId,
        /// View.
        view: ViewId,
        /// One index an axis.
        index: Vec<IxId>,
    },
    /// `result = view[index]` if inside, else `other`. Indices may contain `Data`.
    LoadOr {
        /// Result, of the view's dtype.
        result: ValueId,
        /// View.
        view: ViewId,
        /// One index an axis.
        index: Vec<IxId>,
        /// Value outside.
        other: ValueId,
    },
    /// `view[index] = value`, dropped outside.
    Store {
        /// View.
        view: ViewId,
        /// One index an axis.
        index: Vec<IxId>,
        /// Value of the view's dtype.
        value: ValueId,
        /// True for `put`: indices may contain `Data`, and falling outside is expected.
        checked: bool,
    },
    /// `view[index] = view[index] op value` as one indivisible step; integers only. No effect outside.
    Atomic {
        /// Old value, if it is used (which makes a kernel order dependent).
        result: Option<ValueId>,
        /// Operation.
        op: AtomicOp,
        /// View, I32 or U32.
        view: ViewId,
        /// One index an axis.
        index: Vec<IxId>,
        /// Operand.
        value: ValueId,
    },

    /// Numbers the iterations of the `Spread` around it for which `cond` holds, in ascending order of its index: `result`
    /// is `var` as it was before the `Spread`, plus the number of earlier iterations with a true `cond`. After the
    /// `Spread`, `var` has grown by all of them. Where `cond` is false, `result` is the number the next one gets.
    ///
    /// Stands directly in the body of a `Spread`, once, and nothing before it there changes memory; the body names `var`
    /// nowhere else. Numbers do not depend on how iterations run, so what is stored under them does not either.
    Claim {
        /// The number, U32.
        result: ValueId,
        /// The counter, a U32 variable declared outside of the `Spread`; it wraps.
        var: BufferId,
        /// Bool.
        cond: ValueId,
    },

    // --- tiles: block level only ---
    /// Makes `buffer` (space `Shared` or `Frag`) exist from here to the end of its block. Content undefined.
    Alloc {
        /// The tile.
        buffer: BufferId,
    },
    /// Every element of `dst` becomes `value`.
    Fill {
        /// A view of a tile.
        dst: ViewId,
        /// Value of its dtype.
        value: ValueId,
    },
    /// Copies `extents` elements from `src` to `dst` (same rank), converting as `Cast` does if dtypes differ. Elements
    /// outside `src` are zero, elements outside `dst` are dropped. At least one side is a tile.
    Copy {
        /// Source.
        src: Region,
        /// Destination.
        dst: Region,
        /// Elements along each axis.
        extents: Vec<usize>,
    },
    /// Independent iterations over a box; one phase.
    Parallel {
        /// One index variable an axis, kind `Element`.
        vars: Vec<IxVarId>,
        /// Extent of each axis.
        extents: Vec<usize>,
        /// Body: scalar ops, elements, `If`, `For`, `Loop`.
        body: BlockId,
        /// How iterations are spread over threads (*scheduled*).
        distribution: Option<Distribution>,
    },
    /// Independent iterations over `lo..hi`, whose length is known only at run time; one phase.
    Spread {
        /// Index variable, kind `Element`.
        var: IxVarId,
        /// First index.
        lo: IxId,
        /// End, exclusive.
        hi: IxId,
        /// Body, as for `Parallel`.
        body: BlockId,
    },
    /// `dst[..] = reduce(src[.., axis, ..])`; `dst` has one axis less. Combines in `order`.
    Reduce {
        /// Operation.
        op: ReduceOp,
        /// A whole tile, possibly reshaped.
        src: ViewId,
        /// Frag of the source's dtype.
        dst: BufferId,
        /// Reduced axis.
        axis: usize,
        /// Filled by the numerics plan.
        order: Option<Order>,
    },
    /// `result = reduce(value over the box)`: a scalar. The body ends by defining `value`.
    ReduceRegion {
        /// Operation.
        op: ReduceOp,
        /// Index variables, kind `Element`.
        vars: Vec<IxVarId>,
        /// Extents.
        extents: Vec<usize>,
        /// Body without stores.
        body: BlockId,
        /// Value of one element, defined in `body`.
        value: ValueId,
        /// Result at block level.
        result: ValueId,
        /// Filled by the numerics plan.
        order: Option<Order>,
    },
    /// Prefix or suffix combination along `axis` of a tile, in index order, and optionally the total.
    Scan {
        /// Operation; `Sum` of integers, or `Max`/`Min`.
        op: ReduceOp,
        /// Direction and whether an element's own value counts.
        kind: ScanKind,
        /// A whole tile.
        src: ViewId,
        /// Frag of the same extents and dtype.
        dst: BufferId,
        /// Scanned axis.
        axis: usize,
        /// Total over everything, for rank 1.
        total: Option<ValueId>,
    },
    /// Smallest `i` in `0..extent` whose `cond` holds, else `extent`.
    FindFirst {
        /// Element index variable.
        var: IxVarId,
        /// Number of candidates.
        extent: usize,
        /// Body that defines `cond`.
        body: BlockId,
        /// Bool, defined in `body`.
        cond: ValueId,
        /// Result, kind `Data`, in `0..=extent`.
        result: IxVarId,
    },

    // --- matrix: block level only ---
    /// Matrix multiply-accumulate on tiles: `a [m, k]`, `b [k, n]` (a transposed tile is a strided view), `acc [m, n]`.
    ///
    /// Each element is one chain of fused multiply-adds in ascending `k`, every factor converted exactly to f32.
    /// Without scales the chain starts at `acc` (at +0 if `set`). With scales it starts at +0 and then
    /// `acc = fma(row[i] * col[j], chain, acc)` (`row[i] * col[j] * chain` added to +0 if `set`).
    /// Matrix units of devices may add the products of one `k` block in another order and with fewer guard bits: silicon
    /// is judged by the `gemm` tolerance, the VM and the simulators follow the chain.
    Gemm {
        /// Left operand: a view of a tile.
        a: ViewId,
        /// Right operand: a view of a tile.
        b: ViewId,
        /// Accumulator, a whole F32 frag.
        acc: BufferId,
        /// True if the old content of `acc` is ignored.
        set: bool,
        /// Factor of row `i` and of column `j`, for block-scaled operands.
        scales: Option<[GemmScale; 2]>,
    },

    // --- control: uniform at block level; per element inside bodies ---
    /// Sequential loop over `lo..hi`; not entered if empty. `stages` above 1 says that copies into tiles of the body may
    /// run ahead by that many iterations less one; it never changes what the loop computes.
    For {
        /// Loop index.
        var: IxVarId,
        /// First index.
        lo: IxId,
        /// End, exclusive.
        hi: IxId,
        /// Body.
        body: BlockId,
        /// Stages of the software pipeline, 1 for none.
        stages: usize,
    },
    /// Repeats `body` until a `Break`.
    Loop {
        /// Body.
        body: BlockId,
    },
    /// Leaves the innermost `For` or `Loop`.
    Break,
    /// Goes on with the next iteration of the innermost `For` or `Loop`.
    Continue,
    /// Runs one of two blocks and joins what they yield.
    If {
        /// Bool.
        cond: ValueId,
        /// Block if true.
        then: BlockId,
        /// Block if false.
        els: BlockId,
        /// Joined results.
        results: Vec<IfResult>,
    },

    /// Ends the run with `message` if `cond` is false for any iteration that gets here. Otherwise nothing happens.
    Check {
        /// Bool.
        cond: ValueId,
        /// What does not hold, in one line.
        message: String,
    },
    /// All blocks of the grid meet; what any of them wrote before, all of them may read after. At the top level of a
    /// cooperative kernel only, where every block passes it.
    GridBarrier,

    // --- synchronisation (scheduled) ---
    /// All threads of the block meet; shared and global accesses before are visible after. *Scheduled.*
    BlockBarrier {
        /// The conflict it resolves, in words, for `explain` and generated comments.
        reason: String,
    },
    /// An op of roles, rings and copy engines. *Scheduled.*
    Sched(SchedOp),
}

/// Operations with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// Bitwise complement of integers, logical of Bool.
    Not,
    /// `2^x`; approximate on devices.
    Exp2,
    /// Base-2 logarithm; approximate on devices.
    Log2,
    /// `1/sqrt(x)`; approximate on devices.
    Rsqrt,
    /// Square root, correctly rounded.
    Sqrt,
    /// `1/x`, correctly rounded.
    Recip,
    /// Sine; approximate on devices.
    Sin,
    /// Cosine; approximate on devices.
    Cos,
    /// Largest integer not above.
    Floor,
    /// Smallest integer not below.
    Ceil,
}

/// Operations with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; correctly rounded for floats, towards zero for integers (division by zero gives 0).
    Div,
    /// Remainder with the sign of the left side, integers only (by zero gives 0).
    Rem,
    /// Smaller; of a number and NaN, the number (as PTX `min`).
    Min,
    /// Larger; of a number and NaN, the number (as PTX `max`).
    Max,
    /// Bitwise or logical and.
    And,
    /// Bitwise or logical or.
    Or,
    /// Bitwise or logical exclusive or.
    Xor,
    /// Shift left; a count of the width or more gives 0.
    Shl,
    /// Shift right, arithmetic for signed; a count of the width or more gives 0 or the sign.
    Shr,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmpOp {
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Equal; +0 equals -0.
    Eq,
    /// Not equal.
    Ne,
}

/// Combining operations of reductions and scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Larger, as `BinaryOp::Max`.
    Max,
    /// Smaller, as `BinaryOp::Min`.
    Min,
    /// Largest absolute value.
    AbsMax,
    /// Bitwise and logical and.
    And,
    /// Bitwise and logical or.
    Or,
}

/// Kind of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanKind {
    /// Sum of everything before.
    PrefixExclusive,
    /// Sum of everything up to and with the element.
    PrefixInclusive,
    /// Sum of everything after.
    SuffixExclusive,
    /// Sum of the element and everything after.
    SuffixInclusive,
}

/// Atomic operations on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Sum.
    Add,
    /// Larger.
    Max,
    /// Smaller.
    Min,
    /// Bitwise or.
    Or,
}

impl Op {
    /// Lower-case name, as in IR text.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Const { .. } => "const",
            Op::IndexValue { .. } => "index_value",
            Op::Unary { op, .. } => op.name(),
            Op::Binary { op, .. } => op.name(),
            Op::Fma { .. } => "fma",
            Op::Compare { .. } => "compare",
            Op::CompareIndex { .. } => "compare_index",
            Op::Select { .. } => "select",
            Op::Cast { .. } => "cast",
            Op::Bits { .. } => "bits",
            Op::ClampIndex { .. } => "clamp_index",
            Op::VarNew { .. } => "var",
            Op::VarGet { .. } => "get",
            Op::VarSet { .. } => "set",
            Op::IxVarNew { .. } => "index_var",
            Op::IxVarGet { .. } => "index_get",
            Op::IxVarSet { .. } => "index_set",
            Op::Load { .. } => "load",
            Op::LoadOr { .. } => "load_or",
            Op::Store { checked: false, .. } => "store",
            Op::Store { checked: true, .. } => "put",
            Op::Atomic { .. } => "atomic",
            Op::Claim { .. } => "claim",
            Op::Alloc { .. } => "alloc",
            Op::Fill { .. } => "fill",
            Op::Copy { .. } => "copy",
            Op::Parallel { .. } => "parallel",
            Op::Spread { .. } => "spread",
            Op::Reduce { .. } => "reduce",
            Op::ReduceRegion { .. } => "reduce_region",
            Op::Scan { .. } => "scan",
            Op::FindFirst { .. } => "find_first",
            Op::Gemm { .. } => "gemm",
            Op::For { .. } => "for",
            Op::Loop { .. } => "loop",
            Op::Break => "break",
            Op::Continue => "continue",
            Op::If { .. } => "if",
            Op::Check { .. } => "check",
            Op::GridBarrier => "grid_barrier",
            Op::BlockBarrier { .. } => "barrier",
            Op::Sched(s) => s.name(),
        }
    }
}

macro_rules! names {
    ($($ty:ident { $($v:ident => $s:literal),* $(,)? })*) => { $(
        impl $ty {
            /// All variants.
            pub const ALL: &'static [$ty] = &[$($ty::$v),*];
            /// Name in IR text.
            pub const fn name(self) -> &'static str { match self { $($ty::$v => $s),* } }
            /// The variant with this name.
            pub fn parse(s: &str) -> Option<$ty> { $ty::ALL.iter().copied().find(|v| v.name() == s) }
        }
    )* };
}
names! {
    UnaryOp { Neg => "neg", Abs => "abs", Not => "not", Exp2 => "exp2", Log2 => "log2", Rsqrt => "rsqrt", Sqrt => "sqrt",
        Recip => "recip", Sin => "sin", Cos => "cos", Floor => "floor", Ceil => "ceil" }
    BinaryOp { Add => "add", Sub => "sub", Mul => "mul", Div => "div", Rem => "rem", Min => "min", Max => "max",
        And => "and", Or => "or", Xor => "xor", Shl => "shl", Shr => "shr" }
    CmpOp { Lt => "lt", Le => "le", Gt => "gt", Ge => "ge", Eq => "eq", Ne => "ne" }
    ReduceOp { Sum => "sum", Max => "max", Min => "min", AbsMax => "absmax", And => "and", Or => "or" }
    ScanKind { PrefixExclusive => "prefix_exclusive", PrefixInclusive => "prefix_inclusive",
        SuffixExclusive => "suffix_exclusive", SuffixInclusive => "suffix_inclusive" }
    AtomicOp { Add => "add", Max => "max", Min => "min", Or => "or" }
}

/// Dtypes an index can be turned into by `IndexValue`.
pub const INDEX_VALUE_DTYPES: [DType; 3] = [DType::I32, DType::U32, DType::I64];

/// True if `Op::Gemm` takes these operand types. One narrow float format may meet another (the two 8-bit formats); an
/// 8-bit float meets a 4-bit one only with scales, since neither has a range of its own.
pub const fn multiplies(a: DType, b: DType, scaled: bool) -> bool {
    use DType::{Bf16, E2m1, E4m3, E5m2, F16, F32, I8};
    match (a, b) {
        (F32, F32) | (F16, F16) | (Bf16, Bf16) | (I8, I8) | (E2m1, E2m1) => true,
        (E4m3 | E5m2, E4m3 | E5m2) => true,
        (E4m3 | E5m2, E2m1) | (E2m1, E4m3 | E5m2) => scaled,
        _ => false,
    }
}
