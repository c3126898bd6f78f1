//! What crosses from a kernel's description to whatever runs it: views, arguments, launches, plans, signatures.
//!
//! No device here: `runtime` implements [`Memory`] and [`Launcher`], the VM reads host memory. A [`Launch`] is data; it
//! names a kernel by its definition, not by compiled code, so any device can build what it needs.

use crate::host_memory::HostMemory;
use crate::ir::{DType, Literal, ParamId, SymId};
use crate::spec::KernelDef;
pub use crate::tensor_map::{L2Promotion, MapAxis, Swizzle, TensorMap, TensorMapSpec};
use crate::tune::Config;
use std::fmt::Debug;
use std::sync::Arc;

/// An allocation on some device.
pub trait Memory: Debug + Send + Sync {
    /// Name of the device it lives on (`cpu`, `cuda:0`, `null`).
    fn device(&self) -> &str;
    /// Size in bytes.
    fn len_bytes(&self) -> usize;
    /// Address as the device sees it; used for alignment facts and overlap checks.
    fn address(&self) -> u64;
    /// The bytes, if the host can reach them.
    fn host(&self) -> Option<&HostMemory>;
    /// For the runtime to find its own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}

impl Memory for HostMemory {
    fn device(&self) -> &str {
        "cpu"
    }
    fn len_bytes(&self) -> usize {
        HostMemory::len_bytes(self)
    }
    fn address(&self) -> u64 {
        std::ptr::from_ref(self.word_or_self()) as u64
    }
    fn host(&self) -> Option<&HostMemory> {
        Some(self)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl HostMemory {
    fn word_or_self(&self) -> &std::sync::atomic::AtomicU64 {
        static EMPTY: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        if self.len_bytes() == 0 { &EMPTY } else { self.word(0) }
    }
}

/// A strided view of an allocation. Keeps the allocation alive.
#[derive(Clone, Debug)]
pub struct TensorView {
    /// Element type.
    pub dtype: DType,
    /// Extent of each axis.
    pub shape: Vec<usize>,
    /// Stride of each axis in elements.
    pub strides: Vec<usize>,
    /// Byte offset of element 0 in the allocation.
    pub offset_bytes: usize,
    /// The allocation.
    pub memory: Arc<dyn Memory>,
}

impl TensorView {
    /// A contiguous view of a whole allocation.
    pub fn contiguous(dtype: DType, shape: &[usize], memory: Arc<dyn Memory>) -> Self {
        let strides = crate::ir::build::row_major(shape);
        TensorView { dtype, shape: shape.to_vec(), strides, offset_bytes: 0, memory }
    }
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
    /// True if elements follow each other in row-major order; axes of extent 1 may carry any stride.
    pub fn is_contiguous(&self) -> bool {
        let want = crate::ir::build::row_major(&self.shape);
        self.num_elements() == 0 || (0..self.shape.len()).all(|i| self.shape[i] == 1 || self.strides[i] == want[i])
    }
    /// Bytes from the first to the end of the last element; 0 for an empty view.
    pub fn span_bytes(&self) -> usize {
        if self.num_elements() == 0 {
            return 0;
        }
        let last: usize = self.shape.iter().zip(&self.strides).map(|(&e, &s)| (e - 1) * s).sum();
        self.dtype.bytes(last + 1)
    }
}

/// One argument of a launch, in the order of the kernel's parameters.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A tensor.
    Tensor(TensorView),
    /// A scalar.
    Scalar(Literal),
    /// An optional parameter left out.
    Absent,
    /// A part of a workspace that the launcher allocates for the plan.
    Workspace {
        /// Index into [`Plan::workspaces`].
        index: usize,
        /// Element type of this view.
        dtype: DType,
        /// Shape of this view, contiguous.
        shape: Vec<usize>,
        /// Byte offset in the workspace.
        offset_bytes: usize,
    },
}

/// One kernel launch as data.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Which kernel, with its dtypes.
    pub kernel: Arc<dyn KernelDef>,
    /// Its configuration.
    pub config: Config,
    /// Its arguments, one a parameter.
    pub args: Vec<Arg>,
}

/// What an operator does for one problem: launches in order, and the scratch memory they share.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Launches in order.
    pub steps: Vec<Launch>,
    /// Sizes in bytes of the workspaces.
    pub workspaces: Vec<usize>,
}

/// Executes launches and plans; `runtime::Stream` is one.
pub trait Launcher {
    /// Its error.
    type Error;
    /// Enqueues one launch after checking it.
    fn launch(&self, launch: &Launch) -> Result<(), Self::Error>;
    /// Enqueues all steps of a plan with its workspaces.
    fn run(&self, plan: &Plan) -> Result<(), Self::Error>;
}

/// Arguments of a compiled entry, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// Name of the entry function.
    pub entry: String,
    /// Arguments.
    pub args: Vec<SigArg>,
}

/// One argument of a compiled entry.
#[derive(Clone, Debug, PartialEq)]
pub enum SigArg {
    /// Address of a tensor's first element.
    Pointer(ParamId),
    /// Value of a dimension or stride; 32 bits, or 64 if `wide`.
    Sym {
        /// The symbol.
        sym: SymId,
        /// 64-bit argument.
        wide: bool,
    },
    /// A scalar parameter.
    Scalar(ParamId),
    /// A tensor map, 128 bytes by value, aligned to 64 bytes.
    TensorMap(TensorMapSpec),
    /// Address of a 32-bit word that is zero before the first launch and that only launches of one stream share: where
    /// blocks of a cooperative grid count their arrivals. It is zero or 2^31 between launches.
    GridArrivals,
    /// Address of scratch in global memory: [`crate::emit::NpuLaunch::workspace_bytes`] for each launched block, content
    /// undefined.
    Workspace,
}

/// A launch that was refused: which kernel and parameter, what was expected, what came, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// Kernel.
    pub kernel: String,
    /// Parameter, if one is at fault.
    pub parameter: Option<String>,
    /// Kind of the mistake.
    pub kind: LaunchErrorKind,
    /// What the kernel needs.
    pub expected: String,
    /// What it was given.
    pub got: String,
    /// Next step.
    pub help: String,
}

/// Kinds of refused launches, in the order they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchErrorKind {
    /// Number of arguments, or a tensor where a scalar is expected.
    Arguments,
    /// Dtype of a parameter.
    DType,
    /// Rank of a parameter.
    Rank,
    /// Two parameters disagree about a dimension.
    Dimension,
    /// A `require` clause does not hold.
    Require,
    /// A stride pattern the declaration does not allow.
    Strides,
    /// An address that is not a multiple of the element size.
    Alignment,
    /// The view reaches past its allocation.
    OutOfMemoryRange,
    /// Tensor on another device than the stream.
    Device,
    /// An output overlaps another argument.
    Overlap,
    /// Grid, threads or shared memory beyond the device.
    Limits,
    /// The kernel or device does not support this target.
    Target,
    /// The config does not fit the kernel.
    Config,
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot launch `{}`", self.kernel)?;
        if let Some(p) = &self.parameter {
            write!(f, ": parameter `{p}`")?;
        }
        write!(f, ": expected {}, got {}", self.expected, self.got)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}
impl std::error::Error for LaunchError {}
