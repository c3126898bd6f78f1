//! Counts of a launch, with times estimated from published rates.

use super::chip::{PIPES, Pipe, Space};

/// What a pipe did in a launch: counts, and an estimate of its time from published rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeStats {
    /// Instructions.
    pub instructions: u64,
    /// Bytes it read or wrote, whichever is more.
    pub bytes: u64,
    /// Estimated cycles of its core, all blocks one after another.
    pub cycles: u64,
}

/// What a launch did. Figures of a model, not of a chip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By the number of the pipe, all cores together.
    pub pipes: [PipeStats; PIPES],
    /// Products of matrix instructions.
    pub products: u64,
    /// Events and cross-core flags set.
    pub flags: u64,
    /// Barriers.
    pub barriers: u64,
    /// How far a cross-core flag was ahead at most.
    pub flag_depth: usize,
    /// Bytes of each memory up to the last one touched: L1, L0A, L0B, L0C, UB.
    pub high: [usize; 5],
}

/// One line a pipe that did something, each called an estimate.
impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (pipe, s) in Pipe::ALL.iter().zip(&self.pipes) {
            if s.instructions > 0 {
                let (name, n, bytes, cycles) = (pipe.name(), s.instructions, s.bytes, s.cycles);
                writeln!(f, "model: pipe {name}: {n} instructions, {bytes} bytes, about {cycles} cycles of its core")?;
            }
        }
        write!(f, "model: {} products, {} flags set, {} barriers", self.products, self.flags, self.barriers)?;
        for (space, bytes) in Space::ALL.iter().zip(self.high).filter(|s| s.1 > 0) {
            write!(f, ", {} up to byte {bytes}", space.name())?;
        }
        Ok(())
    }
}
