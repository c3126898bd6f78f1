//! What the two modelled chips have: memories, pipes, limits of their instructions. Constants only.
//!
//! Figures as published for arch 2201 (910B, 910C) and 3510 (950): capacities of one cube core and its two vector cores.

/// Architecture number, as `__NPU_ARCH__` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Ascend 910B and 910C.
    A2201,
    /// Ascend 950.
    A3510,
}

/// Memory a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Of the cube core.
    L1,
    /// Left operand.
    L0a,
    /// Right operand.
    L0b,
    /// Accumulators.
    L0c,
    /// Of each vector core.
    Ub,
}

/// A queue of instructions of a core; `S` is the scalar unit, which runs the program text and fills the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pipe {
    /// Scalar unit.
    S,
    /// Vector unit.
    V,
    /// Matrix unit.
    M,
    /// L1 to L0.
    Mte1,
    /// Global memory to L1 or UB.
    Mte2,
    /// UB to global memory or L1.
    Mte3,
    /// L0C to anywhere.
    Fix,
}

/// What a core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Matrix instructions.
    Cube,
    /// Vector instructions.
    Vector,
}

/// Number of pipes.
pub const PIPES: usize = 7;
/// Event ids of an ordered pair of pipes.
pub const EVENTS: usize = 8;
/// Cross-core flags.
pub const FLAGS: usize = 16;
/// How far a cross-core flag may be ahead.
pub const FLAG_DEPTH: usize = 15;
/// Bytes of a line: the unit of UB and L1 addresses.
pub const LINE: usize = 32;
/// Bytes of a fractal: 16 lines.
pub const FRACTAL: usize = 512;

impl Arch {
    /// The number.
    pub const fn number(self) -> u32 {
        match self {
            Arch::A2201 => 2201,
            Arch::A3510 => 3510,
        }
    }

    /// Bytes of a memory that a kernel may use; a mixed kernel on 2201 leaves 256 bytes of L1 and UB to the system.
    pub const fn capacity(self, space: Space, mixed: bool) -> usize {
        let kept = if mixed && matches!(self, Arch::A2201) { 256 } else { 0 };
        match (space, self) {
            (Space::L1, _) => 512 * 1024 - kept,
            (Space::L0a | Space::L0b, _) => 64 * 1024,
            (Space::L0c, Arch::A2201) => 128 * 1024,
            (Space::L0c, Arch::A3510) => 256 * 1024,
            (Space::Ub, Arch::A2201) => 192 * 1024 - kept,
            (Space::Ub, Arch::A3510) => 248 * 1024,
        }
    }

    /// Bytes a pipe moves in a cycle of its core, for estimates: published figures where there are some, else those of
    /// the path next to it. The vector unit does 256 bytes of one operand, the matrix unit is counted in products.
    pub const fn bytes_per_cycle(self, pipe: Pipe) -> u64 {
        match (pipe, self) {
            (Pipe::S, _) => 8,
            (Pipe::V, _) => 256,
            (Pipe::M, _) => 0,
            (Pipe::Mte1, _) => 256,
            (Pipe::Mte2 | Pipe::Mte3, Arch::A2201) => 64,
            (Pipe::Mte2 | Pipe::Mte3 | Pipe::Fix, Arch::A3510) => 128,
            (Pipe::Fix, Arch::A2201) => 128,
        }
    }

    /// Products of two numbers of `bytes` bytes the matrix unit does in a cycle: 16 x 16 results from a 32-byte line of
    /// each operand.
    pub const fn products_per_cycle(bytes: usize) -> u64 {
        (16 * 16 * LINE / bytes) as u64
    }
}

impl Space {
    /// All of them.
    pub const ALL: [Space; 5] = [Space::L1, Space::L0a, Space::L0b, Space::L0c, Space::Ub];

    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Space::L1 => "L1",
            Space::L0a => "L0A",
            Space::L0b => "L0B",
            Space::L0c => "L0C",
            Space::Ub => "UB",
        }
    }

    /// Alignment of a tensor's address.
    pub const fn align(self) -> usize {
        match self {
            Space::L1 | Space::Ub => LINE,
            Space::L0a | Space::L0b => FRACTAL,
            Space::L0c => 64,
        }
    }
}

impl Pipe {
    /// All of them, by number.
    pub const ALL: [Pipe; PIPES] = [Pipe::S, Pipe::V, Pipe::M, Pipe::Mte1, Pipe::Mte2, Pipe::Mte3, Pipe::Fix];

    /// The pipe with this number.
    pub fn from_number(n: u64) -> Option<Pipe> {
        Pipe::ALL.get(usize::try_from(n).ok()?).copied()
    }

    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Pipe::S => "S",
            Pipe::V => "V",
            Pipe::M => "M",
            Pipe::Mte1 => "MTE1",
            Pipe::Mte2 => "MTE2",
            Pipe::Mte3 => "MTE3",
            Pipe::Fix => "FIX",
        }
    }
}

impl Kind {
    /// Pipes this kind of core has.
    pub const fn has(self, pipe: Pipe) -> bool {
        match (self, pipe) {
            (_, Pipe::S | Pipe::Mte2) => true,
            (Kind::Cube, Pipe::M | Pipe::Mte1 | Pipe::Fix) | (Kind::Vector, Pipe::V | Pipe::Mte3) => true,
            (Kind::Cube, Pipe::V | Pipe::Mte3) | (Kind::Vector, Pipe::M | Pipe::Mte1 | Pipe::Fix) => false,
        }
    }
}
