//! Which thread runs next, and other choices the hardware leaves open. All of them come from a seed.

/// How a runnable warp is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Lowest number first, until it has to wait.
    InOrder,
    /// Any, and threads are also interrupted between their accesses.
    Random,
    /// By priorities drawn anew for each block: one warp runs as far ahead as it can.
    Priorities,
}

/// When an asynchronous operation takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// At once.
    Early,
    /// At any step before it is waited for.
    Random,
    /// Only when it is waited for.
    Late,
}

/// A small deterministic generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }
    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }
}
