//! What stands around the programs of roles: tensor maps, the barriers of rings, the start of a block, and the walk's size.

use super::super::expr::Text;
use super::super::prelude::Snippet;
use super::super::prelude::wgmma::Wgmma;
use super::super::{Emitter, Names};
use crate::abi::{L2Promotion, MapAxis, Swizzle, TensorMapSpec};
use crate::emit::GridPlan;
use crate::ir::{BlockId, BufferId, DType, Kernel, Op, ParamId, ParamKind, RingId, RoleId, SchedOp};
use crate::pass::place::SCRATCH;
use std::collections::BTreeSet;

/// Names and findings of a kernel with roles.
#[derive(Debug, Default)]
pub struct Frame {
    /// Address of shared memory in the shared window.
    pub base: String,
    /// Number of the warp in its block.
    pub block_warp: String,
    /// One name a tensor map.
    pub maps: Vec<String>,
    /// Barriers of each ring.
    pub rings: Vec<RingNames>,
    /// Where blocks of a cluster hand over their parts of a sum.
    pub inbox: Option<InboxNames>,
    /// Number of the first tile or cluster of tiles, how many there are, and how many blocks or clusters share them.
    pub walk: Option<Walk>,
    /// `base` is wanted.
    pub used_base: bool,
    /// Parameters that are read or written without a tensor map.
    pub used_params: BTreeSet<ParamId>,
    /// Matrix instructions.
    pub products: BTreeSet<Wgmma>,
    /// Accumulators of products that go on, oldest first.
    pub held: Vec<String>,
}

/// Names of a ring's barriers and of a role's position.
#[derive(Clone, Debug)]
pub struct RingNames {
    /// Number of the slot of the current item.
    pub slot: String,
    /// Parity of the current turn.
    pub parity: String,
    /// Barriers of each part: full, empty.
    pub parts: Vec<[String; 2]>,
}

/// Names of the barriers by which blocks of a cluster hand over parts of a sum, and of the current tile's parity.
#[derive(Clone, Debug, Default)]
pub struct InboxNames {
    /// All parts are there.
    pub full: String,
    /// They have been read.
    pub free: String,
    /// Parity of the tile.
    pub parity: String,
}

/// Names of the walk over tiles.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Tiles or clusters of tiles along each grid axis.
    pub axes: Vec<String>,
    /// All of them.
    pub units: String,
}

impl Frame {
    /// Declares the names of a kernel's frame; empty without roles.
    pub fn new(k: &Kernel, names: &mut Names, params: &[String]) -> Frame {
        if k.roles.is_empty() {
            return Frame::default();
        }
        let base = names.declare("base");
        let block_warp = names.declare("block_warp");
        let maps = k.maps.iter().map(|m| names.declare(&format!("map_{}", params[m.param.0 as usize]))).collect();
        let mut rings = vec![];
        for r in &k.rings {
            let parts = r.parts.iter().map(|p| {
                let stem = if r.parts.len() > 1 { format!("{}_{}", r.name, p.name) } else { r.name.clone() };
                [names.declare(&format!("{stem}_full")), names.declare(&format!("{stem}_empty"))]
            });
            let parts = parts.collect();
            let slot = names.declare(&format!("{}_slot", r.name));
            rings.push(RingNames { slot, parity: names.declare(&format!("{}_parity", r.name)), parts });
        }
        let walks = k.ops.iter().any(|n| matches!(n.op, Op::Sched(SchedOp::Tiles { .. })));
        let walk = walks.then(|| {
            let axes = k.block_ids.iter().map(|&v| names.declare(&format!("units_{}", k.ix_var(v).name))).collect();
            Walk { axes, units: names.declare("units") }
        });
        let shared = k.cluster.as_ref().is_some_and(|c| c.axis.is_none() && c.size > 1);
        let adds = k.ops.iter().any(|n| matches!(n.op, Op::Sched(SchedOp::Combine { .. })));
        let inbox = (shared && adds).then(|| InboxNames {
            full: names.declare("parts_full"),
            free: names.declare("parts_free"),
            parity: names.declare("parts_parity"),
        });
        Frame { base, block_warp, maps, rings, inbox, walk, ..Frame::default() }
    }
}

impl Emitter<'_> {
    /// Blocks of a cluster.
    pub fn cluster_size(&self) -> usize {
        self.k.cluster.as_ref().map_or(1, |c| c.size)
    }

    /// Blocks of a cluster along each axis of the launch; the blocks of a persistent kernel stand in a row.
    pub fn cluster_shape(&self) -> [u32; 3] {
        let mut shape = [1; 3];
        if let Some(c) = &self.k.cluster {
            shape[c.axis.filter(|_| self.frame.walk.is_none()).unwrap_or(0)] = c.size as u32;
        }
        shape
    }

    /// How many blocks are launched.
    pub fn grid_plan(&self) -> GridPlan {
        if self.frame.walk.is_none() {
            return GridPlan::Blocks;
        }
        let mut unit = [1; 3];
        if let Some(c) = &self.k.cluster
            && let Some(axis) = c.axis
        {
            unit[axis] = c.size as u32;
        }
        GridPlan::Persistent { unit }
    }

    /// True if the text waits for the launch before it.
    pub fn waits_for_grid(&self) -> bool {
        self.k.ops.iter().any(|n| matches!(n.op, Op::Sched(SchedOp::GridWait)))
    }

    /// Tensor maps as a launch makes them.
    pub fn map_specs(&self) -> Vec<TensorMapSpec> {
        let axis = |m: &crate::ir::TensorMap, n: usize| MapAxis {
            extent: m.extents[n],
            stride: m.strides[n],
            box_extent: m.boxes[n] as u32,
        };
        let spec = |m: &crate::ir::TensorMap| TensorMapSpec {
            param: m.param,
            dtype: match self.k.param(m.param).kind {
                ParamKind::Tensor { dtype, .. } | ParamKind::Scalar { dtype, .. } => dtype,
                ParamKind::Absent => DType::U8,
            },
            offset: None,
            axes: (0..m.boxes.len()).map(|n| axis(m, n)).collect(),
            swizzle: match m.swizzle_bytes {
                128 => Swizzle::B128,
                64 => Swizzle::B64,
                32 => Swizzle::B32,
                _ => Swizzle::None,
            },
            l2_promotion: L2Promotion::default(),
        };
        self.k.maps.iter().map(spec).collect()
    }

    /// Bytes of shared memory with the barriers of the rings.
    pub fn shared_total(&self) -> usize {
        let slots: usize = self.k.rings.iter().map(|r| 2 * r.depth * r.parts.len()).sum();
        let slots = slots + if self.frame.inbox.is_some() { 2 } else { 0 };
        if slots == 0 { self.k.shared_bytes } else { self.k.shared_bytes.next_multiple_of(8) + 8 * slots }
    }

    /// Makes the names of shared tiles and of the block's number in its cluster known.
    pub fn declare_frame(&mut self) {
        let k = self.k;
        if k.roles.is_empty() {
            return;
        }
        if let Some(c) = &k.cluster {
            let name =
                if c.size > 1 { Text::name(self.names.declare(&k.ix_var(c.rank).name)) } else { Text::number(0) };
            self.index.insert(c.rank, name);
        }
        // Their pointers stand at the start of the block, if a text mentions them.
        for b in (0..k.buffers.len() as u32).map(BufferId) {
            if k.buffer(b).memory.is_some() && k.buffer(b).name != SCRATCH {
                let name = self.names.declare(&k.buffer(b).name);
                self.buffers.insert(b, name);
            }
        }
    }

    /// The program of a role.
    pub fn program(&self, role: RoleId) -> Option<BlockId> {
        self.k.ops.iter().find_map(|n| {
            let Op::Sched(SchedOp::Roles { programs }) = &n.op else { return None };
            programs.iter().find(|p| p.0 == role).map(|p| p.1)
        })
    }

    /// Warps of all instances of a role that arrive at a barrier; one thread is one.
    fn arrivals(&self, role: RoleId) -> usize {
        let r = &self.k.roles[role.0 as usize];
        if r.one_thread { r.instances } else { r.warps * r.instances }
    }

    /// Arrivals that make a part full and empty.
    fn counts(&self, ring: RingId, part: u32) -> [usize; 2] {
        let r = &self.k.rings[ring.0 as usize];
        let full = if self.copied(ring, part) { 1 } else { self.arrivals(r.producer) };
        let blocks = if r.multicast { self.cluster_size() } else { 1 };
        [full, r.consumers.iter().map(|&c| self.arrivals(c)).sum::<usize>() * blocks / r.turns.max(1)]
    }

    /// True if copies of the engine fill a part.
    pub fn copied(&self, ring: RingId, part: u32) -> bool {
        self.k
            .ops
            .iter()
            .any(|n| matches!(&n.op, Op::Sched(SchedOp::TmaLoad { ring: r, part: p, .. }) if (*r, *p) == (ring, part)))
    }

    /// Prints the start of a block in front of what the programs printed.
    pub fn prologue(&mut self) -> String {
        let k = self.k;
        let body = std::mem::take(&mut self.out);
        self.depth = 1;
        let base = self.frame.base.clone();
        let rings = self.frame.rings.clone();
        if let Some(c) = &k.cluster {
            let name = self.index.get(&c.rank).map(|t| t.s.clone()).unwrap_or_default();
            if c.size > 1 {
                self.need(Snippet::Cluster);
                self.line(format!("const int {name} = cluster_rank();"));
            }
        }
        self.need(Snippet::Warp);
        let block_warp = self.frame.block_warp.clone();
        self.line(format!("const int {block_warp} = warp_uniform(threadIdx.x / 32);"));
        let words: BTreeSet<&str> = body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        for b in (0..k.buffers.len() as u32).map(BufferId) {
            if k.buffer(b).memory.is_some() && words.contains(self.buffer(b).as_str()) && k.buffer(b).name != SCRATCH {
                self.shared_pointer(b);
            }
        }
        let elects = !rings.is_empty() || !k.maps.is_empty();
        if self.frame.used_base || !rings.is_empty() {
            self.need(Snippet::Shared);
            self.line(format!("const smem_ptr {base} = smem_address(shared);"));
        }
        let mut at = k.shared_bytes.next_multiple_of(8);
        for (r, names) in k.rings.iter().zip(&rings) {
            for [full, empty] in &names.parts {
                let end = at + 8 * r.depth;
                self.line(format!("const smem_ptr {full} = {base} + {at}, {empty} = {base} + {end};"));
                at = end + 8 * r.depth;
            }
        }
        if let Some(names) = self.frame.inbox.clone() {
            self.line(format!("const smem_ptr {} = {base} + {at}, {} = {base} + {};", names.full, names.free, at + 8));
        }
        self.walk_size();
        if elects {
            self.out.push('\n');
            let chosen = k.roles.iter().find(|r| r.one_thread).map_or(0, |r| r.first_warp);
            self.open(&format!("if ({block_warp} == {chosen} && elect_one())"));
            if !k.maps.is_empty() {
                self.need(Snippet::TensorMap);
            }
            for m in self.frame.maps.clone() {
                self.line(format!("tma_prefetch_map(&{m});"));
            }
            for (n, (r, names)) in k.rings.iter().zip(&rings).enumerate() {
                self.need(Snippet::Mbarrier);
                self.open(&format!("for (int s = 0; s < {}; ++s)", r.depth));
                for (p, [full, empty]) in names.parts.iter().enumerate() {
                    let [fills, frees] = self.counts(RingId(n as u32), p as u32);
                    let copies =
                        if self.copied(RingId(n as u32), p as u32) { ", and the bytes of its copies" } else { "" };
                    self.line(format!("mbar_init({full} + 8 * s, {fills});  // the producer{copies}"));
                    self.line(format!("mbar_init({empty} + 8 * s, {frees});  // every warp that reads the slot"));
                }
                self.close();
            }
            if let (Some(names), Some((_, groups))) = (self.frame.inbox.clone(), self.shared_sum()) {
                self.line(format!(
                    "mbar_init({}, 1);  // the first block, and the bytes of the other parts",
                    names.full
                ));
                self.line(format!("mbar_init({}, {});  // every warp that reads the parts", names.free, 4 * groups));
            }
            if !rings.is_empty() {
                self.line("mbar_init_fence();");
            }
            self.close();
            self.line("__syncthreads();");
            if self.cluster_size() > 1 && !rings.is_empty() {
                self.line("cluster_arrive_relaxed();  // no block copies into another before its barriers are ready");
                self.line("cluster_wait();");
            }
        }
        self.out.push('\n');
        std::mem::replace(&mut self.out, body)
    }

    /// Tiles along each axis, in units of a cluster.
    fn walk_size(&mut self) {
        let Some(walk) = self.frame.walk.clone() else { return };
        let k = self.k;
        for (axis, name) in walk.axes.iter().enumerate() {
            let extent = self.ix(k.grid[axis]);
            let text = match &k.cluster {
                Some(c) if c.axis == Some(axis) && c.size > 1 => {
                    let sum = Text::add(&extent, &Text::number(c.size as i64 - 1));
                    Text::over(&sum, c.size).s
                }
                _ => extent.s,
            };
            self.line(format!("const u32 {name} = {text};"));
        }
        self.line(format!("const u32 {} = {};", walk.units, walk.axes.join(" * ")));
    }
}
