//! Targets and what each can do, as constants.
//!
//! Passes ask for capabilities, never for a target's name.

/// Something kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The tile VM on this machine's CPU.
    Vm,
    /// NVIDIA, compute capability 8.0 and everything newer.
    Sm80,
    /// NVIDIA Hopper.
    Sm90a,
    /// NVIDIA Blackwell.
    Sm100a,
    /// Ascend 910B and 910C: arch 2201.
    Ascend910b,
    /// Ascend 950: arch 3510.
    Ascend950,
}

/// Limits of a target with cube and vector cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuCaps {
    /// Number of the instruction set, as in `dav-3510`.
    pub arch: u32,
    /// Cube cores of the smallest chip sold with this instruction set; a launch asks the device.
    pub cube_cores: usize,
    /// Vector cores that share a cube core.
    pub vector_per_cube: usize,
    /// Bytes of a vector core's unified buffer that a kernel may use.
    pub ub_bytes: usize,
    /// Bytes of a cube core's L1.
    pub l1_bytes: usize,
    /// Bytes of the left operand's buffer.
    pub l0a_bytes: usize,
    /// Bytes of the right operand's buffer.
    pub l0b_bytes: usize,
    /// Bytes of the accumulators.
    pub l0c_bytes: usize,
    /// Bytes of UB and of L1 that the runtime keeps back in kernels with both kinds of cores.
    pub mixed_reserve_bytes: usize,
    /// Every start in UB and L1 is a multiple of this many bytes.
    pub align_bytes: usize,
    /// Event ids of an ordered pair of pipes.
    pub events: usize,
    /// Flag ids between cores of a group.
    pub cross_flags: usize,
    /// Vector code works on registers; otherwise on memory.
    pub register_vectors: bool,
    /// Conversions to and from e4m3, and e4m3 operands of the cube.
    pub fp8: bool,
    /// Accumulators reach UB, and UB reaches L1, without going through global memory.
    pub direct_exchange: bool,
}

/// Limits of a target with threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Largest dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
    /// Largest number of threads of a block.
    pub threads: usize,
    /// 32-bit registers of a multiprocessor.
    pub registers: usize,
    /// Largest number of registers of a thread.
    pub registers_per_thread: usize,
    /// Threads resident on a multiprocessor.
    pub resident_threads: usize,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_bytes_per_sm: usize,
    /// Largest number of blocks of a cluster; 1 without clusters. More than 8 need a permission of their own.
    pub cluster_blocks: usize,
    /// Native conversion from f32 to fp8.
    pub fp8_conversion: bool,
    /// Matrix instructions of whole warp groups, with operands in shared memory, and a copy engine for tensors.
    pub warp_group_matrix: bool,
    /// A kernel can start while the one before it ends.
    pub dependent_launch: bool,
    /// The smallest or largest of three integers in one instruction.
    pub fused_min_max: bool,
}

impl Target {
    /// All targets that exist today.
    pub const ALL: [Target; 6] =
        [Target::Vm, Target::Sm80, Target::Sm90a, Target::Sm100a, Target::Ascend910b, Target::Ascend950];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Vm => "vm",
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
            Target::Ascend910b => "ascend910b",
            Target::Ascend950 => "ascend950",
        }
    }

    /// The target with this name.
    pub fn parse(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Limits of a target with threads; `None` for the others.
    ///
    /// Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    pub const fn caps(self) -> Option<Caps> {
        match self {
            Target::Vm | Target::Ascend910b | Target::Ascend950 => None,
            Target::Sm80 => Some(Caps {
                shared_bytes: 163 * 1024,
                threads: 1024,
                registers: 65536,
                registers_per_thread: 255,
                resident_threads: 2048,
                shared_bytes_per_sm: 164 * 1024,
                cluster_blocks: 1,
                fp8_conversion: false,
                warp_group_matrix: false,
                dependent_launch: false,
                fused_min_max: false,
            }),
            Target::Sm90a | Target::Sm100a => Some(Caps {
                warp_group_matrix: matches!(self, Target::Sm90a),
                shared_bytes: 227 * 1024,
                threads: 1024,
                registers: 65536,
                registers_per_thread: 255,
                resident_threads: 2048,
                shared_bytes_per_sm: 228 * 1024,
                cluster_blocks: 16,
                fp8_conversion: true,
                dependent_launch: true,
                fused_min_max: true,
            }),
        }
    }

    /// Limits of a target with cube and vector cores; `None` for the others.
    ///
    /// Source: the platform descriptions and documentation that CANN publishes for both instruction sets. Of the 256 KiB
    /// of UB of arch 3510 8 KiB belong to the runtime.
    pub const fn npu(self) -> Option<NpuCaps> {
        match self {
            Target::Vm | Target::Sm80 | Target::Sm90a | Target::Sm100a => None,
            Target::Ascend910b => Some(NpuCaps {
                arch: 2201,
                cube_cores: 20,
                vector_per_cube: 2,
                ub_bytes: 192 * 1024,
                l1_bytes: 512 * 1024,
                l0a_bytes: 64 * 1024,
                l0b_bytes: 64 * 1024,
                l0c_bytes: 128 * 1024,
                mixed_reserve_bytes: 256,
                align_bytes: 32,
                events: 8,
                cross_flags: 16,
                register_vectors: false,
                fp8: false,
                direct_exchange: false,
            }),
            Target::Ascend950 => Some(NpuCaps {
                arch: 3510,
                cube_cores: 28,
                vector_per_cube: 2,
                ub_bytes: 248 * 1024,
                l1_bytes: 512 * 1024,
                l0a_bytes: 64 * 1024,
                l0b_bytes: 64 * 1024,
                l0c_bytes: 256 * 1024,
                mixed_reserve_bytes: 0,
                align_bytes: 32,
                events: 8,
                cross_flags: 16,
                register_vectors: true,
                fp8: true,
                direct_exchange: true,
            }),
        }
    }
}
