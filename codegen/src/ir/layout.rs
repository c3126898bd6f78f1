//! Where the elements of a tile live, and in which order a reduction adds them.
//!
//! Plain IR carries none of this except [`Order`], which is part of a kernel's meaning. Passes fill in the rest.

/// Memory layout of a shared or global tile: element `(i0, i1, ..)` is at `sum(i_k * strides[k])`, and the byte address
/// is then XOR-swizzled. With `panel` the last axis is cut into panels of that many elements: a panel holds those columns
/// of all rows of the last two axes, and panels follow each other; `strides` then describe one panel, and the stride of an
/// axis before the last two counts all panels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryLayout {
    /// Stride of each axis in elements; powers of two are not assumed.
    pub strides: Vec<usize>,
    /// XOR swizzle `(bits, base, shift)`: `bits` address bits starting at `base + shift` are XORed onto those at `base`.
    pub swizzle: Option<(u32, u32, u32)>,
    /// Elements of a row of a panel.
    pub panel: Option<usize>,
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
///
/// With a [`Fragment`] the elements lie as matrix units leave them instead; `split_axis`, `vec` and `lanes` are then 0, 2
/// and 32. A tile of one element a row of such a tile has `split_axis` 1, `vec` 1 and `lanes` 4: every thread that holds
/// a part of a row holds its element, in register `a * 2 + row / 8` for the row of pieces `a`.
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
    /// Layout of a matrix unit's accumulator.
    pub fragment: Option<Fragment>,
}

/// An `[m, n]` tile in 16 x 8 pieces. Warp `w` has the pieces of `atoms[0]` rows and `atoms[1]` columns of pieces that
/// start at piece `(w / warps[1] * atoms[0], w % warps[1] * atoms[1])`. Within piece `(a, b)` of a warp, lane `l` holds
/// rows `l / 4` and `l / 4 + 8`, columns `l % 4 * 2` and the next: register `((a * atoms[1] + b) * 2 + row / 8) * 2 +
/// column % 2`. With `interleaved` a warp's rows of pieces are not neighbours but `warps[0]` apart, as those of a warp
/// group's matrix unit are: piece `a` of the first axis starts at `a * warps[0] + w / warps[1]`. Pieces may reach over the tile's end; what lies there is held and never looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Warps along each axis.
    pub warps: [usize; 2],
    /// Pieces a warp has along each axis.
    pub atoms: [usize; 2],
    /// Rows of pieces go round the warps.
    pub interleaved: bool,
}

impl Fragment {
    /// Rows and columns of a piece.
    pub const ATOM: [usize; 2] = [16, 8];

    /// The layout of an `[m, n]` tile that gives the warps equal shares, as square as they can be: operands are read
    /// once for each row and column of pieces.
    pub fn of(m: usize, n: usize, warps: usize) -> Fragment {
        let pieces = [m.div_ceil(Self::ATOM[0]).max(1), n.div_ceil(Self::ATOM[1]).max(1)];
        let split = |rows: usize| {
            let warps = [rows, warps / rows];
            let atoms = [pieces[0].div_ceil(warps[0]), pieces[1].div_ceil(warps[1])];
            Fragment { warps, atoms, interleaved: false }
        };
        let cost = |f: &Fragment| {
            let [a, b] = f.atoms;
            (a * b, a * Self::ATOM[0] + b * Self::ATOM[1], f.warps[1])
        };
        let whole = split(warps);
        (1..warps)
            .filter(|&r| warps.is_multiple_of(r))
            .map(split)
            .fold(whole, |best, f| if cost(&f) < cost(&best) { f } else { best })
    }

    /// The layout of the accumulators of a warp group's matrix unit for an `[m, n]` tile, `m` a multiple of 64.
    pub fn warp_group(m: usize, n: usize) -> Fragment {
        Fragment { warps: [4, 1], atoms: [m.div_ceil(64), n.div_ceil(Self::ATOM[1])], interleaved: true }
    }

    /// True if some warp's pieces reach over the end of an axis with this extent.
    pub fn overhangs(&self, axis: usize, extent: usize) -> bool {
        self.warps[axis] * self.atoms[axis] * Self::ATOM[axis] != extent
    }
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
    /// The fragment whose rows the elements belong to, one each.
    pub fn rows_of(&self) -> Option<Fragment> {
        self.fragment.filter(|_| self.split_axis == 1)
    }
    /// Rows each group goes through.
    pub fn rounds(&self, extents: &[usize]) -> usize {
        match self.fragment {
            Some(f) if self.split_axis == 1 => 2 * f.atoms[0],
            Some(f) => f.atoms[0],
            None => self.outer(extents).div_ceil(self.groups()),
        }
    }
    /// Vectors of a row each thread goes through.
    pub fn steps(&self, extents: &[usize]) -> usize {
        match self.fragment {
            Some(_) if self.split_axis == 1 => 1,
            Some(f) => 2 * f.atoms[1],
            None => self.inner(extents).div_ceil(self.vec * self.lanes),
        }
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
