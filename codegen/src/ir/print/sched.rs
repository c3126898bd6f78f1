//! Text of what only scheduled kernels have: the tables of roles, rings, maps and the cluster, and the ops of `SchedOp`.

use super::Printer;
use crate::ir::{IxVarId, Region, Ring, Role, SchedOp, SpanId};
use std::fmt::Write;

impl Printer {
    /// Lines of the tables, before the body.
    pub(super) fn tables(&mut self) {
        let k = self.kernel.clone();
        if let Some(c) = &k.cluster {
            let (zero, size) = (self.kernel.ix_const_id(0), self.kernel.ix_const_id(c.size as i64));
            let rank = self.define_var(c.rank, Some(zero), Some((size, -1)));
            let axis = c.axis.map_or("none".into(), |a| a.to_string());
            self.line(&format!("cluster {} axis {axis} rank {rank}", c.size));
        }
        for (n, m) in k.maps.iter().enumerate() {
            let param = self.param_names[m.param.0 as usize].clone();
            let (e, s) = (self.list(&m.extents), self.list(&m.strides));
            self.line(&format!("map {n} {param}[{e}] strides [{s}] box {:?} swizzle {}", m.boxes, m.swizzle_bytes));
        }
        for r in &k.roles {
            let line = self.role_line(r);
            self.line(&line);
        }
        for r in &k.rings {
            self.ring_line(r);
        }
    }

    fn role_line(&mut self, r: &Role) -> String {
        let mut text = format!("role {} warps {} {}", r.name, r.first_warp, r.warps);
        if r.instances != 1 {
            let _ = write!(text, " instances {}", r.instances);
        }
        if let Some(v) = r.instance {
            let (zero, n) = (self.kernel.ix_const_id(0), self.kernel.ix_const_id(r.instances as i64));
            let _ = write!(text, " as {}", self.define_var(v, Some(zero), Some((n, -1))));
        }
        if let Some(n) = r.registers {
            let _ = write!(text, " registers {n}");
        }
        if r.one_thread {
            text += " one_thread";
        }
        text
    }

    fn ring_line(&mut self, r: &Ring) {
        for b in r.parts.iter().flat_map(|p| &p.buffers) {
            self.declare_buffer(*b);
        }
        let consumers: Vec<String> = r.consumers.iter().map(|c| c.0.to_string()).collect();
        let parts: Vec<String> = r
            .parts
            .iter()
            .map(|p| {
                let buffers: Vec<String> = p.buffers.iter().map(|&b| self.buffer(b)).collect();
                let reuses = p.reuses.map_or(String::new(), |n| format!(" reuses {n}"));
                format!("{} ({}){reuses}", p.name, buffers.join(", "))
            })
            .collect();
        let multicast = if r.multicast { " multicast" } else { "" };
        let turns = if r.turns > 1 { format!(" turns {}", r.turns) } else { String::new() };
        self.line(&format!(
            "ring {} depth {} producer {} consumers [{}] parts [{}]{multicast}{turns}",
            r.name,
            r.depth,
            r.producer.0,
            consumers.join(", "),
            parts.join(", ")
        ));
    }

    fn slot(&mut self, ring: crate::ir::RingId, slot: IxVarId) -> String {
        let depth = self.kernel.rings.get(ring.0 as usize).map_or(0, |r| r.depth);
        let (zero, n) = (self.kernel.ix_const_id(0), self.kernel.ix_const_id(depth as i64));
        self.define_var(slot, Some(zero), Some((n, -1)))
    }

    fn region(&mut self, r: &Region) -> String {
        self.at(r.view, &r.start)
    }

    /// Lines of one op.
    pub(super) fn sched(&mut self, op: &SchedOp, span: SpanId) {
        let word = op.name();
        let text = match op {
            SchedOp::Roles { programs } => {
                self.op_line("roles {", span);
                self.depth += 1;
                for (role, body) in programs {
                    self.line(&format!("program {} {{", role.0));
                    self.block(*body);
                    self.line("}");
                }
                self.depth -= 1;
                self.line("}");
                return;
            }
            SchedOp::Tiles { vars, rows, body } => {
                let vars: Vec<String> = vars.iter().map(|&v| self.define_var(v, None, None)).collect();
                let rows = rows.map_or(String::new(), |r| format!(" rows {} by {}", self.view(r.counts), r.tile));
                self.op_line(&format!("tiles ({}){rows} {{", vars.join(", ")), span);
                self.block(*body);
                self.line("}");
                return;
            }
            SchedOp::Acquire { ring, part, slot } | SchedOp::Take { ring, part, slot } => {
                format!("{word} {} part {part} slot {}", ring.0, self.slot(*ring, *slot))
            }
            SchedOp::Publish { ring, part } | SchedOp::Release { ring, part } => {
                format!("{word} {} part {part}", ring.0)
            }
            SchedOp::Advance { ring, by } => format!("{word} {} by {by}", ring.0),
            SchedOp::TmaLoad { map, at, src, dst, extents, ring, part, multicast, evict } => {
                let (a, s, d) = (self.list(at), self.region(src), self.region(dst));
                let multicast = if *multicast { " multicast" } else { "" };
                let evict = crate::ir::Evict::ALL.iter().find(|e| e.0 == *evict).map_or("normal", |e| e.1);
                format!(
                    "{word} map {} at [{a}] {s} -> {d} extents {extents:?} ring {} part {part}{multicast} evict {evict}",
                    map.0, ring.0
                )
            }
            SchedOp::TmaStore { map, at, src, dst, extents } => {
                let (a, s, d) = (self.list(at), self.region(src), self.region(dst));
                format!("{word} map {} at [{a}] {s} -> {d} extents {extents:?}", map.0)
            }
            SchedOp::TmaStoreWait { pending, written } => {
                format!("{word} {pending}{}", if *written { " written" } else { "" })
            }
            SchedOp::RoleBarrier { reason } | SchedOp::AsyncFence { reason } | SchedOp::ClusterBarrier { reason } => {
                format!("{word} {reason:?}")
            }
            SchedOp::Combine { acc, inbox, turns } => {
                format!("{word} {} inbox {} turns {turns}", self.buffer(*acc), self.buffer(*inbox))
            }
            SchedOp::GridWait | SchedOp::GridAllow => word.to_string(),
            SchedOp::WgmmaWait { pending } => format!("{word} {pending}"),
            SchedOp::Wgmma { a, b, acc, set: _, scales, release, hold } => {
                let release: Vec<String> = release.iter().map(|(r, p)| format!("{} {p}", r.0)).collect();
                let head = format!(
                    "{word} {}, {} -> {} release [{}]{}",
                    self.view(*a),
                    self.view(*b),
                    self.buffer(*acc),
                    release.join(", "),
                    if *hold { " hold" } else { "" }
                );
                self.product(head, *acc, scales, span);
                return;
            }
        };
        self.op_line(&text, span);
    }
}
