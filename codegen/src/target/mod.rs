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
    /// A kernel can start while the one before it ends.
    pub dependent_launch: bool,
}

impl Target {
    /// All targets that exist today.
    pub const ALL: [Target; 4] = [Target::Vm, Target::Sm80, Target::Sm90a, Target::Sm100a];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Vm => "vm",
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
        }
    }

    /// The target with this name.
    pub fn parse(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Limits; `None` for the VM, which has none.
    ///
    /// Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    pub const fn caps(self) -> Option<Caps> {
        match self {
            Target::Vm => None,
            Target::Sm80 => Some(Caps {
                shared_bytes: 163 * 1024,
                threads: 1024,
                registers: 65536,
                registers_per_thread: 255,
                resident_threads: 2048,
                shared_bytes_per_sm: 164 * 1024,
                cluster_blocks: 1,
                fp8_conversion: false,
                dependent_launch: false,
            }),
            Target::Sm90a | Target::Sm100a => Some(Caps {
                shared_bytes: 227 * 1024,
                threads: 1024,
                registers: 65536,
                registers_per_thread: 255,
                resident_threads: 2048,
                shared_bytes_per_sm: 228 * 1024,
                cluster_blocks: 16,
                fp8_conversion: true,
                dependent_launch: true,
            }),
        }
    }
}
