//! Level 2: roles written by hand, and the rings and mailboxes that join them.
//!
//! `roles(|r| { r.group("load", 1).run(|| ..); .. })` runs programs side by side, each on warp groups of its own; rings
//! and mailboxes, made before, carry tiles between them. What is acquired must be published, what is taken released:
//! `Slot`, `Taken` and `Pending` are used up by that, and one that is dropped otherwise is a mistake at the place that
//! made it. Positions, phases, fences and barriers follow from these calls. The protocol itself is judged by
//! `kiln_codegen::valid`; nothing here runs.

use crate::dtype::{DType, F32};
use crate::matrix::{Mma, held_product};
use crate::ops::{Place, copy, copy_cast};
use crate::session::{Session, with, with_current};
use crate::tile::{Frag, Shared, Space, Tile, of_view};
use kiln_codegen::ir::{
    Base, BufferId, IxVarKind, Op, Ring as RingData, RingId, RingPart, Role, RoleId, SchedOp, SpanId, View, build,
};
use std::fmt::Debug;
use std::marker::PhantomData;

/// Before a role is known.
const NOBODY: RoleId = RoleId(u32::MAX);

/// A circle of slots between one role that fills them and roles that read them; each slot holds a tile.
#[derive(Clone, Copy, Debug)]
pub struct Ring<T, const N: usize> {
    id: RingId,
    buffer: BufferId,
    extents: [usize; N],
    of: PhantomData<(T, *const ())>,
}

/// A ring of one slot: a tile that one role hands to another.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<T, const N: usize>(Ring<T, N>);

/// A ring of `depth` slots for tiles of these extents.
#[track_caller]
pub fn ring<T: DType, const N: usize>(extents: [usize; N], depth: usize) -> Ring<T, N> {
    with(|s| {
        s.block_level("ring");
        new_ring(s, "ring", extents, depth)
    })
}

/// A mailbox for tiles of these extents.
#[track_caller]
pub fn mailbox<T: DType, const N: usize>(extents: [usize; N]) -> Mailbox<T, N> {
    with(|s| {
        s.block_level("mailbox");
        Mailbox(new_ring(s, "mailbox", extents, 1))
    })
}

fn new_ring<T: DType, const N: usize>(
    s: &mut Session,
    default: &'static str,
    extents: [usize; N],
    depth: usize,
) -> Ring<T, N> {
    if extents.contains(&0) || depth == 0 {
        s.error("B0601", format!("a ring of {depth} slots for tiles of shape {extents:?}")).help =
            Some("a ring has at least one slot, and its tiles have elements".into());
    }
    if s.role.is_some() || s.roles_at.is_some() {
        s.error("B0602", "a ring made inside or behind `roles`").help = Some("make it in front of them".into());
    }
    let name = s.take_name(default);
    let slots: Vec<usize> = std::iter::once(depth).chain(extents).collect();
    let buffer = s.b.new_buffer(name, T::DTYPE, &slots, Shared::SPACE, false);
    let id = RingId(s.b.kernel.rings.len() as u32);
    s.b.kernel.rings.push(RingData {
        name: name.into(),
        depth,
        producer: NOBODY,
        consumers: vec![],
        parts: vec![RingPart { name: "all".into(), buffers: vec![buffer], reuses: None }],
        multicast: false,
        turns: 1,
    });
    Ring { id, buffer, extents, of: PhantomData }
}

/// A view of the slot that an op defines.
fn slot_view<T: DType, const N: usize>(
    s: &mut Session,
    ring: Ring<T, N>,
    op: impl FnOnce(RingId, kiln_codegen::ir::IxVarId) -> SchedOp,
) -> Tile<T, Shared, N> {
    let depth = s.b.kernel.rings[ring.id.0 as usize].depth;
    let (lo, hi) = (s.b.ix_const(0), s.b.ix_const(depth as i64 - 1));
    let slot = s.b.new_ix_var("slot", IxVarKind::Data, Some(lo), Some(hi));
    s.b.push(Op::Sched(op(ring.id, slot)));
    let size: usize = ring.extents.iter().product();
    let (v, size) = (s.b.ix_var(slot), s.b.ix_const(size as i64));
    let offset = s.b.ix_mul(v, size);
    let view = View {
        base: Base::Buffer(ring.buffer),
        dtype: T::DTYPE,
        extents: ring.extents.iter().map(|&x| s.b.ix_const(x as i64)).collect(),
        strides: build::row_major(&ring.extents).into_iter().map(|x| s.b.ix_const(x as i64)).collect(),
        offset,
        guards: vec![],
        gather: None,
        span: s.b.here(),
    };
    let view = s.b.view(view);
    of_view(view, ring.extents)
}

/// The role that runs, for an op on a ring.
fn on_ring(s: &mut Session, what: &str) -> Option<RoleId> {
    s.block_level(what);
    if s.role.is_none() {
        s.error("B0603", format!("`{what}` outside of a role")).help =
            Some("call it inside `r.group(..).run(|| ..)`".into());
    }
    s.role
}

impl<T: DType, const N: usize> Ring<T, N> {
    /// Waits until every reader has released the next slot. The role becomes the one that fills the ring.
    #[track_caller]
    pub fn acquire(self) -> Slot<T, N> {
        with(|s| {
            if let Some(role) = on_ring(s, "acquire") {
                let r = &mut s.b.kernel.rings[self.id.0 as usize];
                if r.producer == NOBODY {
                    r.producer = role;
                }
            }
            let tile = slot_view(s, self, |ring, slot| SchedOp::Acquire { ring, part: 0, slot });
            Slot { ring: self.id, tile, at: s.b.here(), open: true }
        })
    }
    /// Waits until the next slot is full. The role becomes one that reads the ring.
    #[track_caller]
    pub fn take(self) -> Taken<T, N> {
        with(|s| {
            if let Some(role) = on_ring(s, "take") {
                let r = &mut s.b.kernel.rings[self.id.0 as usize];
                if !r.consumers.contains(&role) {
                    r.consumers.push(role);
                }
            }
            let tile = slot_view(s, self, |ring, slot| SchedOp::Take { ring, part: 0, slot });
            Taken { ring: self.id, tile, at: s.b.here(), open: true }
        })
    }
}

impl<T: DType, const N: usize> Mailbox<T, N> {
    /// Hands over the tile's elements; the sender may read what it sent until it sends again.
    #[track_caller]
    pub fn send<S: Space>(self, tile: Tile<T, S, N>) -> Tile<T, Shared, N> {
        let slot = self.0.acquire();
        let sent = slot.tile;
        copy(tile, sent);
        slot.publish();
        sent
    }
    /// Hands over the tile's elements, converted.
    #[track_caller]
    pub fn send_cast<U: DType, S: Space>(self, tile: Tile<U, S, N>) -> Tile<T, Shared, N> {
        let slot = self.0.acquire();
        let sent = slot.tile;
        copy_cast(tile, sent);
        slot.publish();
        sent
    }
    /// Waits for the next tile.
    #[track_caller]
    pub fn recv(self) -> Taken<T, N> {
        self.0.take()
    }
}

/// A slot to be filled; used up by [`publish`](Slot::publish).
#[derive(Debug)]
#[must_use = "publish the slot"]
pub struct Slot<T: DType, const N: usize> {
    ring: RingId,
    tile: Tile<T, Shared, N>,
    at: SpanId,
    open: bool,
}

/// A full slot; used up by [`release`](Taken::release).
#[derive(Debug)]
#[must_use = "release the slot"]
pub struct Taken<T: DType, const N: usize> {
    ring: RingId,
    tile: Tile<T, Shared, N>,
    at: SpanId,
    open: bool,
}

impl<T: DType, const N: usize> Slot<T, N> {
    /// The slot's tile, to be written.
    pub fn tile(&self) -> Tile<T, Shared, N> {
        self.tile
    }
    /// Copies a part of a tensor, or another tile, into the slot.
    #[track_caller]
    pub fn fill<A: Place<T, N>>(&self, src: A) {
        copy(src, self.tile);
    }
    /// Hands the slot over: what was written becomes visible to its readers, engines included.
    #[track_caller]
    pub fn publish(mut self) {
        self.open = false;
        with(|s| {
            s.block_level("publish");
            let reason = "threads wrote the slot, engines may read it".to_string();
            s.b.push(Op::Sched(SchedOp::AsyncFence { reason }));
            let reason = "all threads have written".to_string();
            s.b.push(Op::Sched(SchedOp::RoleBarrier { reason }));
            s.b.push(Op::Sched(SchedOp::Publish { ring: self.ring, part: 0 }));
            s.b.push(Op::Sched(SchedOp::Advance { ring: self.ring, by: 1 }));
        });
    }
}

impl<T: DType, const N: usize> Taken<T, N> {
    /// The slot's tile, to be read.
    pub fn tile(&self) -> Tile<T, Shared, N> {
        self.tile
    }
    /// Gives the slot back.
    #[track_caller]
    pub fn release(mut self) {
        self.open = false;
        with(|s| {
            s.block_level("release");
            s.b.push(Op::Sched(SchedOp::Release { ring: self.ring, part: 0 }));
            s.b.push(Op::Sched(SchedOp::Advance { ring: self.ring, by: 1 }));
        });
    }
}

fn forgotten(at: SpanId, what: &str, help: &str) {
    // A panic on the way is a mistake of its own.
    if !std::thread::panicking() {
        with_current(|s| s.error_at(at, "B0604", what, help));
    }
}

impl<T: DType, const N: usize> Drop for Slot<T, N> {
    fn drop(&mut self) {
        if self.open {
            forgotten(self.at, "this slot is acquired and never published", "call `publish()` when it is filled");
        }
    }
}
impl<T: DType, const N: usize> Drop for Taken<T, N> {
    fn drop(&mut self) {
        if self.open {
            forgotten(self.at, "this slot is taken and never released", "call `release()` behind its last use");
        }
    }
}

/// A product that goes on; used up by [`wait`](Pending::wait).
#[derive(Debug)]
#[must_use = "wait for the product"]
pub struct Pending {
    at: SpanId,
    open: bool,
}

impl Pending {
    /// Waits for this product and all before it; then the accumulator holds its sum.
    #[track_caller]
    pub fn wait(mut self) {
        self.open = false;
        with(|s| {
            s.block_level("wait");
            s.b.push(Op::Sched(SchedOp::WgmmaWait { pending: 0 }));
        });
    }
}
impl Drop for Pending {
    fn drop(&mut self) {
        if self.open {
            forgotten(self.at, "this product is never waited for", "call `wait()` before its accumulator is used");
        }
    }
}

/// `acc += a * b` by the matrix unit, which goes on while the role does other things; only in a role.
#[track_caller]
pub fn gemm_async<A: DType, B: DType, SA: Space, SB: Space>(
    a: Tile<A, SA, 2>,
    b: Tile<B, SB, 2>,
    acc: Tile<F32, Frag, 2>,
) -> Pending
where
    (A, B, F32): Mma,
{
    with(|s| {
        on_ring(s, "gemm_async");
        held_product(s, a, b, acc);
        Pending { at: s.b.here(), open: true }
    })
}

/// Declares roles; see [`roles`].
#[derive(Debug)]
pub struct Roles {
    programs: Vec<(RoleId, kiln_codegen::ir::BlockId)>,
}

/// A role on warp groups of its own.
#[derive(Debug)]
#[must_use = "give the role its program with `run`"]
pub struct Group<'r> {
    roles: &'r mut Roles,
    id: RoleId,
}

/// Runs programs side by side: `roles(|r| { r.group(..).run(|| ..); .. })`, once in a kernel, at its top level. What is
/// written to shared tiles before is visible in all of them.
#[track_caller]
pub fn roles(f: impl FnOnce(&mut Roles)) {
    with(|s| {
        s.block_level("roles");
        if s.roles_at.is_some() || s.role.is_some() {
            s.error("B0605", "`roles` twice in a kernel").help = Some("declare all roles in one call".into());
        }
        let at = s.b.here();
        s.roles_at = Some(at);
        let reason = "threads wrote tiles that engines of the roles may read".to_string();
        s.b.push(Op::Sched(SchedOp::AsyncFence { reason }));
        let reason = "the roles see what was written in front of them".to_string();
        s.b.push(Op::BlockBarrier { reason });
    });
    let mut r = Roles { programs: vec![] };
    f(&mut r);
    with(|s| {
        let at = s.roles_at.unwrap_or_else(|| s.b.here());
        let k = &s.b.kernel;
        let idle: Vec<String> =
            k.rings.iter().filter(|x| x.producer == NOBODY || x.consumers.is_empty()).map(|x| x.name.clone()).collect();
        for name in idle {
            s.error("B0606", format!("no role fills, or none reads, the ring `{name}`")).help =
                Some("a ring has one role that acquires and at least one that takes".into());
        }
        s.b.kernel.warps = s.b.kernel.roles.iter().map(|r| r.warps * r.instances).sum();
        s.push_at(at, Op::Sched(SchedOp::Roles { programs: r.programs }));
    });
}

impl Roles {
    /// A role of this many warp groups of 128 threads.
    #[track_caller]
    pub fn group(&mut self, name: &str, warp_groups: usize) -> Group<'_> {
        let id = with(|s| {
            if warp_groups == 0 || warp_groups > 7 {
                s.error("B0607", format!("a role of {warp_groups} warp groups")).help =
                    Some("a role has 1 to 7 groups of 128 threads".into());
            }
            let first_warp = s.b.kernel.roles.iter().map(|r| r.warps * r.instances).sum();
            s.b.kernel.roles.push(Role {
                name: name.into(),
                first_warp,
                warps: 4 * warp_groups.max(1),
                instances: 1,
                instance: None,
                registers: None,
                one_thread: false,
            });
            RoleId(s.b.kernel.roles.len() as u32 - 1)
        });
        Group { roles: self, id }
    }
}

impl Group<'_> {
    /// Registers of a thread: a multiple of 8 from 24 to 248. All roles have a budget or none.
    pub fn registers(self, registers: usize) -> Self {
        with(|s| s.b.kernel.roles[self.id.0 as usize].registers = Some(registers));
        self
    }
    /// The program of the role.
    #[track_caller]
    pub fn run(self, program: impl FnOnce()) {
        let body = with(|s| {
            if s.role.is_some() {
                s.error("B0605", "a role inside a role").help = Some("declare roles beside each other".into());
            }
            s.role = Some(self.id);
            s.b.open()
        });
        program();
        with(|s| {
            s.role = None;
            s.b.close();
        });
        self.roles.programs.push((self.id, body));
    }
}
