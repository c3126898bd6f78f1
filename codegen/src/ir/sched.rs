//! What only scheduled kernels have: roles that run side by side, rings that join them, clusters, and the ops of both.
//!
//! Data, no behaviour: `crate::schedule` makes these, `emit::cuda::hopper` prints them. `valid::rings` judges their protocol,
//! `vm::roles` interprets them. The ops are a second closed enum inside [`Op::Sched`](super::Op::Sched), so that a function
//! which does not care about scheduling needs one arm; functions over [`SchedOp`] itself have no `_` arm.
//!
//! A ring is a circle of `depth` slots that carries *items* `0, 1, 2, ..`; item `n` lies in slot `n % depth`. Each role has
//! a position on each ring it uses, which starts at item 0 and only moves by [`SchedOp::Advance`]. A slot has parts, and
//! each part of each slot has its own state: free, being filled, full. Positions are never reset, also not between tiles.

use super::{BlockId, BufferId, GemmScale, IxId, IxVarId, ParamId, Region, RingId, RoleId, ViewId};

/// A group of warps (or an Ascend core) with its own program. With several `instances` the program runs once in each,
/// beside each other; tiles allocated in it exist once an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Name from the schedule.
    pub name: String,
    /// First warp of the block that belongs to it.
    pub first_warp: usize,
    /// Warps of one instance.
    pub warps: usize,
    /// Instances, side by side: instance `i` has warps `first_warp + i * warps ..`.
    pub instances: usize,
    /// Number of the instance inside the role's program; exists if there is more than one.
    pub instance: Option<IxVarId>,
    /// Registers a thread may use; `None` leaves it to the compiler.
    pub registers: Option<usize>,
    /// One thread of the instance runs the program; the others wait for it at the end of the roles.
    pub one_thread: bool,
}

/// A ring of slots between roles.
#[derive(Clone, Debug, PartialEq)]
pub struct Ring {
    /// Name from the source.
    pub name: String,
    /// Slots.
    pub depth: usize,
    /// Role that fills slots; it may be a consumer of another ring too.
    pub producer: RoleId,
    /// Roles that read slots; all their instances take and release each part of each item.
    pub consumers: Vec<RoleId>,
    /// Parts of one slot.
    pub parts: Vec<RingPart>,
    /// Some copies into it are shared with the cluster: a slot is free when the consumers of all blocks have released it.
    pub multicast: bool,
    /// Instances of the consumer that take items in turn: instance `i` starts at item `i % turns` and takes each `turns`-th.
    /// With 1 all instances take all items.
    pub turns: usize,
}

/// A part of a ring slot: what is acquired, published, taken and released together.
#[derive(Clone, Debug, PartialEq)]
pub struct RingPart {
    /// Name.
    pub name: String,
    /// Tiles that hold this part of every slot; their first axis is the slot.
    pub buffers: Vec<BufferId>,
    /// Part whose memory this one takes over after that one's release.
    pub reuses: Option<u32>,
}

/// Blocks that start together and may copy into each other's shared memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Blocks of a cluster.
    pub size: usize,
    /// Grid axis along which they are neighbours. Blocks past the grid's edge take part: what they read is zero and what
    /// they write is dropped. With `None` all of them work on the same tile, each on its part of a sum
    /// ([`SchedOp::Combine`]).
    pub axis: Option<usize>,
    /// Number of a block in its cluster, `0..size`; visible in the whole kernel.
    pub rank: IxVarId,
}

/// Rows of groups, which only the device knows: the walk over tiles leaves out tiles without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRows {
    /// Rows of each group: I32 of rank 1, with as many elements as the last of the grid's three axes. Tiles along the first axis
    /// that start at or past them are left out.
    pub counts: ViewId,
    /// Rows of a tile.
    pub tile: usize,
}

/// How a copy engine sees a tensor parameter. Axes are innermost first.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap {
    /// The parameter.
    pub param: ParamId,
    /// Extent of each axis in elements.
    pub extents: Vec<IxId>,
    /// Stride of each axis in elements; the first is 1.
    pub strides: Vec<IxId>,
    /// Elements of one copy along each axis.
    pub boxes: Vec<usize>,
    /// Bytes of a row over which 16-byte pieces are swizzled: 0, 32, 64 or 128.
    pub swizzle_bytes: usize,
}

/// Id of a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId(pub u32);

/// How long copied data should stay in the second-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evict {
    /// As the device likes.
    #[default]
    Normal,
    /// Read once: goes first.
    First,
    /// Read again soon: goes last.
    Last,
}

impl Evict {
    /// All, with their names in IR text.
    pub const ALL: [(Evict, &'static str); 3] =
        [(Evict::Normal, "normal"), (Evict::First, "first"), (Evict::Last, "last")];
}

/// The ops of scheduled kernels.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedOp {
    /// Runs programs of roles side by side; ends when all have ended. Once in a kernel, in its body.
    Roles {
        /// Each role with its program.
        programs: Vec<(RoleId, BlockId)>,
    },
    /// Runs `body` for each tile of the grid that falls to this block, in an order that is the same in all roles. Blocks
    /// are persistent: the grid is walked with a static stride in the kernel's raster order.
    Tiles {
        /// Block index along each grid axis, kind `Loop`.
        vars: Vec<IxVarId>,
        /// Which tiles have rows; `None` if all do.
        rows: Option<GroupRows>,
        /// What is done for a tile.
        body: BlockId,
    },
    /// The producer waits until the part of its current item's slot is free. Defines `slot`.
    Acquire {
        /// Ring.
        ring: RingId,
        /// Part of the slot.
        part: u32,
        /// Number of the slot, kind `Data`, in `0..depth`.
        slot: IxVarId,
    },
    /// A copy of the engine from a tensor into an acquired part, complete when the part is full. Elements outside the
    /// tensor are zero.
    TmaLoad {
        /// How the tensor is seen.
        map: MapId,
        /// First element along each axis of the map.
        at: Vec<IxId>,
        /// What is copied, for everyone who does not ask how.
        src: Region,
        /// Where it goes: a view of the part's buffer.
        dst: Region,
        /// Elements along each axis of the regions.
        extents: Vec<usize>,
        /// Ring whose part is filled.
        ring: RingId,
        /// The part.
        part: u32,
        /// Each block of the cluster copies its share of the rows (axis 0 of the tile) to the same place of all blocks.
        multicast: bool,
        /// Cache hint.
        evict: Evict,
    },
    /// The producer has issued or done all writes of the part: it becomes full when they have landed.
    Publish {
        /// Ring.
        ring: RingId,
        /// Part of the slot.
        part: u32,
    },
    /// A consumer waits until the part of its current item is full. Defines `slot`.
    Take {
        /// Ring.
        ring: RingId,
        /// Part of the slot.
        part: u32,
        /// Number of the slot, kind `Data`, in `0..depth`.
        slot: IxVarId,
    },
    /// A consumer has read all it needs of the part.
    Release {
        /// Ring.
        ring: RingId,
        /// Part of the slot.
        part: u32,
    },
    /// The role goes on to the item `by` further.
    Advance {
        /// Ring.
        ring: RingId,
        /// Items.
        by: usize,
    },
    /// [`Op::Gemm`](super::Op::Gemm) by the matrix unit of a warp group, same meaning and order. `a` and `b` are K-major
    /// shared tiles in rows of 128 swizzled bytes. Once the operands have been read, and before scales are applied,
    /// the parts in `release` are released.
    Wgmma {
        /// Left operand `[m, k]`.
        a: ViewId,
        /// Right operand `[k, n]`.
        b: ViewId,
        /// Accumulator, an F32 frag of the role.
        acc: BufferId,
        /// True if the old content of `acc` is ignored.
        set: bool,
        /// Factor of row `i` and of column `j`.
        scales: Option<[GemmScale; 2]>,
        /// Parts released early.
        release: Vec<(RingId, u32)>,
        /// The product goes on behind the op: the accumulator is undefined and the operands are read until
        /// [`SchedOp::WgmmaWait`]. Without factors and early releases only. A product that does not go on waits for all.
        hold: bool,
    },
    /// Waits until the role's products but the `pending` last ones are complete.
    WgmmaWait {
        /// Products that may still be under way.
        pending: usize,
    },
    /// Adds up the sums of those who share a tile: instances that take a ring's items in turn, and blocks of a cluster without
    /// an axis. Part `rank * turns + instance % turns` has summed its share; afterwards the accumulator of part 0 holds
    /// `+0 + part 0 + part 1 + ..`, added one after another, and those of other parts are undefined. All instances of
    /// the role come here for each tile.
    Combine {
        /// Accumulator, an F32 frag of the role.
        acc: BufferId,
        /// Where the other parts put theirs, in the order of registers: shared, F32, of the parts but the first times the
        /// instances of a part times the elements of `acc`.
        inbox: BufferId,
        /// Instances that take items in turn.
        turns: usize,
    },
    /// A copy of the engine from a staging tile to a tensor. It reads the tile later: see [`SchedOp::TmaStoreWait`].
    /// Elements outside the tensor are dropped.
    TmaStore {
        /// How the tensor is seen.
        map: MapId,
        /// First element along each axis of the map.
        at: Vec<IxId>,
        /// A view of the staging tile.
        src: Region,
        /// Where it goes.
        dst: Region,
        /// Elements along each axis of the regions.
        extents: Vec<usize>,
    },
    /// Waits until the role's stores but the `pending` last ones have read their tiles; with `written`, until they are
    /// in memory.
    TmaStoreWait {
        /// Stores that may still be under way.
        pending: usize,
        /// Also wait for memory.
        written: bool,
    },
    /// All threads of the role's instance meet.
    RoleBarrier {
        /// The conflict it resolves, in words.
        reason: String,
    },
    /// What the thread wrote to shared memory becomes visible to copy engines and matrix units.
    AsyncFence {
        /// The conflict it resolves, in words.
        reason: String,
    },
    /// All threads of the cluster meet.
    ClusterBarrier {
        /// Why.
        reason: String,
    },
    /// Waits for the results of the grid launched before this one.
    GridWait,
    /// Lets the next grid start its own preparations.
    GridAllow,
}

impl SchedOp {
    /// Lower-case name, as in IR text.
    pub fn name(&self) -> &'static str {
        match self {
            SchedOp::Roles { .. } => "roles",
            SchedOp::Tiles { .. } => "tiles",
            SchedOp::Acquire { .. } => "acquire",
            SchedOp::TmaLoad { .. } => "tma_load",
            SchedOp::Publish { .. } => "publish",
            SchedOp::Take { .. } => "take",
            SchedOp::Release { .. } => "release",
            SchedOp::Advance { .. } => "advance",
            SchedOp::Wgmma { set: false, .. } => "wgmma",
            SchedOp::Wgmma { set: true, .. } => "wgmma.set",
            SchedOp::WgmmaWait { .. } => "wgmma_wait",
            SchedOp::Combine { .. } => "combine",
            SchedOp::TmaStore { .. } => "tma_store",
            SchedOp::TmaStoreWait { .. } => "tma_store_wait",
            SchedOp::RoleBarrier { .. } => "role_barrier",
            SchedOp::AsyncFence { .. } => "async_fence",
            SchedOp::ClusterBarrier { .. } => "cluster_barrier",
            SchedOp::GridWait => "grid_wait",
            SchedOp::GridAllow => "grid_allow",
        }
    }
}
