//! Scheduled kernels as sm_90a text: roles, rings, clusters, copy engines and the matrix unit of warp groups.
//!
//! `frame` prints what stands around the programs, `role` their heads and the walk over tiles, `ring` the hand-over of
//! slots, `copy` the engine's copies, `product` matrix products and `scale` their factors, `combine` sums of several warp
//! groups and blocks, `store` fragments to shared memory, `rescale` leaves out factors of one, `memory` where elements of tiles lie. Expressions, accesses and
//! element loops are the rest of the emitter's; inside a role they speak of the role's threads.

mod combine;
mod copy;
mod frame;
mod memory;
mod product;
mod rescale;
mod ring;
mod role;
mod scale;
mod store;

pub use frame::Frame;
pub use memory::Linear;

use super::Emitter;
use crate::ir::{OpId, RoleId, SchedOp};

/// The role whose program is being printed.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// Which.
    pub id: RoleId,
    /// Threads of an instance.
    pub threads: usize,
    /// One thread runs the program.
    pub one_thread: bool,
}

impl Emitter<'_> {
    /// Prints one op.
    pub fn sched(&mut self, id: OpId, op: &SchedOp) {
        let span = self.k.op(id).span;
        match op {
            SchedOp::Roles { programs } => self.roles(id, programs),
            SchedOp::Tiles { vars, rows, body } => self.tiles(id, vars, *rows, *body),
            SchedOp::Acquire { ring, part, slot } => self.acquire(id, *ring, *part, *slot),
            SchedOp::Publish { ring, part } => self.publish(*ring, *part),
            SchedOp::Take { ring, part, slot } => self.take(*ring, *part, *slot),
            SchedOp::Release { ring, part } => self.release(*ring, *part, true),
            SchedOp::Advance { ring, by } => self.advance(*ring, *by),
            SchedOp::TmaLoad { .. } => self.tma_load(id, op),
            SchedOp::TmaStore { map, at, src, extents, .. } => self.tma_store(id, *map, at, src, extents),
            SchedOp::TmaStoreWait { pending, written } => self.tma_store_wait(*pending, *written),
            SchedOp::WgmmaWait { pending } => self.wgmma_wait(*pending),
            SchedOp::Wgmma { a, b, acc, set, scales, release, hold } => {
                let sizes = [*a, *b].map(|v| self.k.const_extents(v).unwrap_or_default());
                let by = format!("{} x {}", self.k.view(*a).dtype, self.k.view(*b).dtype);
                let verb = if *set { "=" } else { "+=" };
                self.comment(span, &format!("wgmma {verb} {:?} x {:?}, {by}", sizes[0], sizes[1]));
                self.wgmma(id, [*a, *b], *acc, [*set, *hold], *scales, release);
            }
            SchedOp::Combine { acc, inbox, turns } => self.combine(id, *acc, *inbox, *turns),
            SchedOp::RoleBarrier { reason } => self.role_barrier(reason),
            SchedOp::AsyncFence { reason } => {
                self.need(super::prelude::Snippet::Proxy);
                self.line(format!("async_proxy_fence();  // {reason}"));
            }
            SchedOp::ClusterBarrier { reason } => {
                if self.k.cluster.as_ref().is_some_and(|c| c.size > 1) {
                    self.need(super::prelude::Snippet::Cluster);
                    self.line(format!("cluster_arrive_relaxed();  // {reason}"));
                    self.line("cluster_wait();");
                }
            }
            SchedOp::GridWait => {
                self.need(super::prelude::Snippet::GridOrder);
                self.line("grid_wait_previous();");
            }
            SchedOp::GridAllow => {
                self.need(super::prelude::Snippet::GridOrder);
                self.line("grid_allow_next();");
            }
        }
    }

    /// Prints a call, on more lines if it is long.
    fn call(&mut self, head: &str, arguments: &[String]) {
        let list: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let indent = " ".repeat(4 * self.depth + head.len() + 1);
        let text = super::wrap(&list, &indent, 120);
        self.line(format!("{head}({text});"));
    }

    /// Reports what an op of a scheduled kernel asks for and cannot have.
    fn refuse(&mut self, id: OpId, what: String) {
        self.unsupported(id, &what, "choose another schedule");
    }
}
