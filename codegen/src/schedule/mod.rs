//! Level 1: where the parts of a plain kernel run on a target, as data.
//!
//! A [`Schedule`] only places: it names roles, rings over tiles, copy engines and matrix units, the cluster, the order of
//! tiles, registers. It cannot add or remove computation, so a kernel without one, or with one that is refused, falls
//! back to the portable form. `auto` makes schedules, `parts` finds what there is to place, `apply` turns a plain kernel
//! and a schedule into a scheduled one with the programs of `load` and `math`, which use `scales`, `store` and `views`;
//! `memory` plans shared memory. `written` places roles that a kernel's author wrote, `filled` their copies.
//!
//! Ops are named by their `#[label(..)]`, or by what they touch: a copy by its tile, a product by its accumulator, a
//! store by its parameter.

mod apply;
mod attach;
mod auto;
mod epilogue;
mod filled;
mod load;
mod math;
mod memory;
mod parts;
mod scales;
mod store;
mod views;
mod written;

pub use apply::apply;
pub use attach::{attach, attach_form};
pub use auto::{Options, automatic};
pub use parts::Reason;
pub use written::written;

use crate::ir::Evict;
use std::collections::BTreeMap;
use std::fmt;

/// A place to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleSpec {
    /// Name.
    pub name: String,
    /// Warps of an instance.
    pub warps: usize,
    /// Instances, which share the rows of the tile.
    pub instances: usize,
    /// Registers of a thread, multiples of 8 in 24..=240.
    pub registers: Option<usize>,
    /// One thread does everything.
    pub one_thread: bool,
}

/// A ring between roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Name.
    pub name: String,
    /// Tiles of a slot.
    pub tiles: Vec<String>,
    /// Slots.
    pub depth: usize,
    /// Role that fills them.
    pub from: String,
    /// Role that reads them.
    pub to: String,
    /// Instances of that role that take slots in turn, each a part of the sum; with 1 all take all.
    pub turns: usize,
}

/// How the copy engine brings a tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySpec {
    /// Cache hint.
    pub evict: Evict,
    /// Blocks of the cluster each bring a share of the rows to all.
    pub multicast: bool,
}

/// Blocks that start together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Blocks.
    pub size: usize,
    /// Grid axis along which they are neighbours; with `None` they share tiles, each with its parts of the sum.
    pub axis: Option<usize>,
}

/// A schedule. Build one with its verbs, or let [`automatic`] do it and change the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Roles.
    pub roles: Vec<RoleSpec>,
    /// Rings.
    pub rings: Vec<RingSpec>,
    /// Role of each op that is placed.
    pub place: BTreeMap<String, String>,
    /// Copies by engine.
    pub copies: BTreeMap<String, CopySpec>,
    /// Stores that go through a staging tile and the copy engine.
    pub staged: Vec<String>,
    /// Blocks walk over all tiles.
    pub persistent: bool,
    /// Cluster.
    pub cluster: Option<ClusterSpec>,
    /// Loops printed several iterations in a row.
    pub unroll: BTreeMap<String, usize>,
    /// The kernel may start before the previous one has ended; it waits before it reads.
    pub dependent: bool,
}

impl Schedule {
    /// Adds a role of `warps` warps.
    pub fn role(&mut self, name: &str, warps: usize) -> &mut RoleSpec {
        let at = self.roles.len();
        self.roles.push(RoleSpec { name: name.into(), warps, instances: 1, registers: None, one_thread: false });
        &mut self.roles[at]
    }
    /// Adds a ring of `depth` slots over tiles.
    pub fn ring(&mut self, name: &str, tiles: &[&str], depth: usize, from: &str, to: &str) {
        self.rings.push(RingSpec {
            name: name.into(),
            tiles: tiles.iter().map(ToString::to_string).collect(),
            depth,
            from: from.into(),
            to: to.into(),
            turns: 1,
        });
    }
    /// Lets `turns` instances of the role that reads a ring take its slots in turn.
    pub fn take_turns(&mut self, ring: &str, turns: usize) {
        self.rings.iter_mut().filter(|r| r.name == ring).for_each(|r| r.turns = turns);
    }
    /// Gives ops to a role.
    pub fn place(&mut self, role: &str, ops: &[&str]) {
        self.place.extend(ops.iter().map(|o| (o.to_string(), role.to_string())));
    }
    /// The copy engine brings a tile.
    pub fn copy(&mut self, op: &str, how: CopySpec) {
        self.copies.insert(op.into(), how);
    }
    /// The role with this name.
    pub fn role_named(&self, name: &str) -> Option<&RoleSpec> {
        self.roles.iter().find(|r| r.name == name)
    }
}

impl RoleSpec {
    /// Sets the number of instances.
    pub fn instances(&mut self, n: usize) -> &mut Self {
        self.instances = n;
        self
    }
    /// Sets the register budget.
    pub fn registers(&mut self, n: usize) -> &mut Self {
        self.registers = Some(n);
        self
    }
    /// Lets one thread do everything.
    pub fn issue_from_one_thread(&mut self) -> &mut Self {
        self.one_thread = true;
        self
    }
}

/// The schedule as the calls that make it.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for r in &self.roles {
            write!(f, "s.role({:?}, {})", r.name, r.warps)?;
            if r.instances != 1 {
                write!(f, ".instances({})", r.instances)?;
            }
            if let Some(n) = r.registers {
                write!(f, ".registers({n})")?;
            }
            if r.one_thread {
                write!(f, ".issue_from_one_thread()")?;
            }
            writeln!(f, ";")?;
        }
        for r in &self.rings {
            writeln!(f, "s.ring({:?}, &{:?}, {}, {:?}, {:?});", r.name, r.tiles, r.depth, r.from, r.to)?;
            if r.turns > 1 {
                writeln!(f, "s.take_turns({:?}, {});", r.name, r.turns)?;
            }
        }
        for r in &self.roles {
            let ops: Vec<&String> = self.place.iter().filter(|(_, role)| **role == r.name).map(|(op, _)| op).collect();
            writeln!(f, "s.place({:?}, &{ops:?});", r.name)?;
        }
        for (op, c) in &self.copies {
            writeln!(f, "s.copy({op:?}, CopySpec {{ evict: Evict::{:?}, multicast: {} }});", c.evict, c.multicast)?;
        }
        for op in &self.staged {
            writeln!(f, "s.staged.push({op:?}.into());")?;
        }
        if let Some(c) = self.cluster {
            writeln!(f, "s.cluster = Some(ClusterSpec {{ size: {}, axis: {:?} }});", c.size, c.axis)?;
        }
        for (name, n) in &self.unroll {
            writeln!(f, "s.unroll.insert({name:?}.into(), {n});")?;
        }
        writeln!(f, "s.persistent = {};", self.persistent)?;
        writeln!(f, "s.dependent = {};", self.dependent)
    }
}
