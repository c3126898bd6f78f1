//! Level 1: where the parts of a kernel run on a target, written beside it.
//!
//! `#[schedule(for = kernel, target = Sm90a)] fn name(s: &mut Sched, cfg: &Cfg)` makes a module `name` whose `attach` gives
//! a kernel this schedule. The verbs only place: they name ops by label, or by what they touch, and cannot change what is
//! computed. A schedule that does not fit is rejected with a reason; the kernel then has the portable form, and the
//! compiler warns (`V0550`).

pub use kiln_codegen::ir::Evict;
use kiln_codegen::ir::Kernel;
use kiln_codegen::schedule::{ClusterSpec, CopySpec, Reason, RingSpec, RoleSpec, Schedule};
use kiln_codegen::tune::{Config, KernelConfig};
use std::collections::BTreeMap;

/// Axis of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Rows.
    M,
    /// Columns.
    N,
}

/// Order in which blocks take tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each block takes every n-th tile, n being the number of blocks.
    StaticStride,
}

/// How an op is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instr {
    /// A product by warp groups that split an axis of the accumulator.
    Wgmma {
        /// The axis.
        split: Axis,
        /// Warp groups.
        groups: usize,
    },
    /// A copy from a tensor by the engine.
    Tma {
        /// Bytes of the swizzle.
        swizzle: usize,
        /// Cache hint.
        evict: Evict,
    },
    /// A store by the engine, through a staging tile.
    TmaStore,
}

/// A schedule being written.
#[derive(Debug, Default)]
pub struct Sched {
    s: Schedule,
    groups: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

/// Verbs of a role.
#[derive(Debug)]
pub struct RoleVerbs<'s>(&'s mut RoleSpec);
impl RoleVerbs<'_> {
    /// Warps; the default is four.
    pub fn warps(self, n: usize) -> Self {
        self.0.warps = n;
        self
    }
    /// Registers of a thread.
    pub fn registers(self, n: usize) -> Self {
        self.0.registers = Some(n);
        self
    }
    /// Instances beside each other, each with its share of the rows.
    pub fn instances(self, n: usize) -> Self {
        self.0.instances = n;
        self
    }
    /// One thread does everything.
    pub fn issue_from_one_thread(self) -> Self {
        self.0.one_thread = true;
        self
    }
}

/// Verbs of a ring.
#[derive(Debug)]
pub struct RingVerbs<'s>(&'s mut RingSpec);
impl RingVerbs<'_> {
    /// Tiles of a slot.
    pub fn buffers<const N: usize>(self, tiles: [&str; N]) -> Self {
        self.0.tiles = tiles.iter().map(ToString::to_string).collect();
        self
    }
    /// Slots.
    pub fn depth(self, n: usize) -> Self {
        self.0.depth = n;
        self
    }
    /// Role that fills them.
    pub fn from(self, role: &str) -> Self {
        self.0.from = role.into();
        self
    }
    /// Role that reads them.
    pub fn to(self, role: &str) -> Self {
        self.0.to = role.into();
        self
    }
}

impl Sched {
    /// Declares a role.
    pub fn role(&mut self, name: &str) -> RoleVerbs<'_> {
        RoleVerbs(self.s.role(name, 4))
    }
    /// Declares a ring between two roles.
    pub fn ring(&mut self, name: &str) -> RingVerbs<'_> {
        self.s.ring(name, &[], 1, "", "");
        let last = self.s.rings.len() - 1;
        RingVerbs(&mut self.s.rings[last])
    }
    /// Gives ops to a role.
    pub fn place<const N: usize>(&mut self, role: &str, ops: [&str; N]) {
        self.s.place(role, &ops);
    }
    /// Says how an op is done.
    pub fn instr(&mut self, op: &str, how: Instr) {
        match how {
            Instr::Wgmma { split: Axis::M, groups } => drop(self.groups.insert(op.into(), groups)),
            Instr::Wgmma { split: Axis::N, .. } => {
                self.wrong.push(format!("`{op}`: warp groups share rows, not columns"));
            }
            Instr::Tma { swizzle: 128, evict } => self.s.copies.entry(op.into()).or_default().evict = evict,
            Instr::Tma { swizzle, .. } => {
                self.wrong.push(format!("`{op}`: operands lie in rows of 128 swizzled bytes, not {swizzle}"));
            }
            Instr::TmaStore => self.s.staged.push(op.into()),
        }
    }
    /// Chooses the layout of a tile. Only the layout that follows from the instructions exists so far.
    pub fn layout(&mut self, tile: &str, swizzle: usize) {
        if swizzle != 128 {
            self.wrong.push(format!("`{tile}`: a swizzle of {swizzle} bytes is not what the matrix unit takes"));
        }
    }
    /// Blocks walk over all tiles.
    pub fn persistent(&mut self, _tiles: &str, order: Order) {
        match order {
            Order::StaticStride => self.s.persistent = true,
        }
    }
    /// Blocks that start together: `x` neighbours along the columns, or `y` along the rows.
    pub fn cluster(&mut self, x: usize, y: usize) -> &mut Self {
        match (x, y) {
            (1, 1) => self.s.cluster = None,
            (x, 1) => self.s.cluster = Some(ClusterSpec { size: x, axis: Some(1) }),
            (1, y) => self.s.cluster = Some(ClusterSpec { size: y, axis: Some(0) }),
            (x, y) => self.wrong.push(format!("a cluster of {x} x {y} blocks: neighbours stand along one axis")),
        }
        self
    }
    /// Each block of the cluster copies a share of the tile to all; the tile is the same for neighbours along `axis`.
    pub fn multicast(&mut self, op: &str, axis: Axis) -> &mut Self {
        let along = match axis {
            Axis::M => 0,
            Axis::N => 1,
        };
        match self.s.cluster {
            Some(c) if c.axis == Some(along) => {
                let evict = self.s.copies.get(op).map_or(Evict::Normal, |c| c.evict);
                self.s.copy(op, CopySpec { evict, multicast: true });
            }
            Some(_) | None => self.wrong.push(format!("`{op}`: the cluster has no neighbours along {axis:?}")),
        }
        self
    }
    /// Prints `n` iterations of a loop in a row.
    pub fn unroll(&mut self, name: &str, n: usize) {
        self.s.unroll.insert(name.into(), n);
    }
    /// The kernel may start before the one before it has ended.
    pub fn pdl(&mut self) {
        self.s.dependent = true;
    }
    /// Two roles take turns at the matrix unit. No target's form has it yet.
    pub fn stagger(&mut self, a: &str, b: &str) {
        self.wrong.push(format!("`stagger({a}, {b})`: roles of this form do not take turns"));
    }
    /// An op in parts along an axis. No target's form has it yet, but for the rows that warp groups share.
    pub fn split(&mut self, op: &str, axis: Axis, parts: usize) {
        match axis {
            Axis::M => drop(self.groups.insert(op.into(), parts)),
            Axis::N => self.wrong.push(format!("`split({op}, {axis:?}, {parts})`: only rows are shared")),
        }
    }

    /// The schedule, as data.
    fn finish(mut self) -> Result<Schedule, Reason> {
        for (op, groups) in &self.groups {
            let Some(role) = self.s.place.get(op).cloned() else {
                self.wrong.push(format!("`{op}` is split among {groups} warp groups and placed in no role"));
                continue;
            };
            if let Some(r) = self.s.roles.iter_mut().find(|r| r.name == role) {
                if r.instances == 1 && r.warps == 4 * groups {
                    (r.instances, r.warps) = (*groups, 4);
                } else if r.instances != *groups || r.warps != 4 {
                    self.wrong.push(format!(
                        "role `{role}` has {} warps, {groups} warp groups take {}",
                        r.warps,
                        4 * groups
                    ));
                }
            }
        }
        if self.wrong.is_empty() { Ok(self.s) } else { Err(self.wrong.join("; ")) }
    }
}

/// Runs a schedule function on a built kernel and its config; what `#[schedule]` expands into.
#[doc(hidden)]
pub fn written<C: KernelConfig>(
    of: &str,
    kernel: &Kernel,
    config: &Config,
    f: fn(&mut Sched, &C),
) -> Result<Schedule, Reason> {
    if kernel.name != of {
        return Err(format!("the schedule is written for `{of}`, this kernel is `{}`", kernel.name));
    }
    let config = C::from_config(config).map_err(|e| e.to_string())?;
    let mut s = Sched::default();
    f(&mut s, &config);
    s.finish()
}
