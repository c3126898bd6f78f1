//! Where the elements of a tile live, and in which order a reduction adds them.
//!
//! Plain IR carries none of this except [`Order`], which is part of a kernel's meaning. Passes fill in the rest.

/// Memory layout of a shared or global tile: element `(i0, i1, ..)` is at `sum(i_k * strides[k])`, and the byte address
/// is then XOR-swizzled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryLayout {
    /// Stride of each axis in elements; powers of two are not assumed.
    pub strides: Vec<usize>,
    /// XOR swizzle `(bits, base, shift)`: `bits` address bits starting at `base + shift` are XORed onto those at `base`.
    pub swizzle: Option<(u32, u32, u32)>,
    /// First byte of the tile in the block's shared memory.
    pub offset_bytes: usize,
}

/// How the iterations of a `Parallel` loop, or the elements of a `Frag` tile, are spread over the threads of a block.
///
/// The elements, in row-major order, are seen as `[outer, inner]` where `inner` is the product of the extents from
/// `split_axis` on. A row's inner elements go round `lanes` threads, `vec` consecutive ones at a time; rows go round the
/// `threads / lanes` groups of threads:
/// `lane = (in / vec) % lanes`, `step = in / (vec * lanes)`, `group = out % groups`, `round = out / groups`,
/// `thread = group * lanes + lane`, `register = (round * steps + step) * vec + in % vec`.
/// If `split_axis` is the rank, rows are single elements and every one of the `lanes` threads holds or computes a copy.
/// A row whose length is not a multiple of `vec * lanes` is padded: the missing elements exist in no thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Distribution {
    /// First axis that belongs to `inner`.
    pub split_axis: usize,
    /// Consecutive inner elements one thread holds.
    pub vec: usize,
    /// Threads that share a row; divides `threads`.
    pub lanes: usize,
    /// Threads of the block.
    pub threads: usize,
}

impl Distribution {
    /// Threads groups that work on different rows.
    pub fn groups(&self) -> usize {
        self.threads / self.lanes
    }
    /// Product of the extents before `split_axis`.
    pub fn outer(&self, extents: &[usize]) -> usize {
        extents[..self.split_axis].iter().product()
    }
    /// Product of the extents from `split_axis` on.
    pub fn inner(&self, extents: &[usize]) -> usize {
        extents[self.split_axis..].iter().product()
    }
    /// Rows each group goes through.
    pub fn rounds(&self, extents: &[usize]) -> usize {
        self.outer(extents).div_ceil(self.groups())
    }
    /// Vectors of a row each thread goes through.
    pub fn steps(&self, extents: &[usize]) -> usize {
        self.inner(extents).div_ceil(self.vec * self.lanes)
    }
    /// Registers each thread needs to hold its elements.
    pub fn registers(&self, extents: &[usize]) -> usize {
        self.rounds(extents) * self.steps(extents) * self.vec
    }
}

/// The order in which a reduction combines the elements along its axis. It is part of the result's bits, so the VM and
/// every target obey it.
///
/// Element `e` of the axis belongs to lane `(e / per_lane) % lanes`. Each lane folds its elements in ascending `e`,
/// starting from its first one; then the lanes are combined by `tree`. Lanes without elements take no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Number of lanes.
    pub lanes: usize,
    /// Consecutive elements a lane takes at a time.
    pub per_lane: usize,
    /// How lanes are combined.
    pub tree: Tree,
}

/// Combination of the partial results of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// Neighbours first: `(0,1) (2,3) ..`, then pairs of pairs, and so on; at each level an odd last one passes through.
    AdjacentPairs,
}

impl Order {
    /// Plain left-to-right order.
    pub const SEQUENTIAL: Order = Order { lanes: 1, per_lane: 1, tree: Tree::AdjacentPairs };
}
