//! Sums of several warp groups and blocks for one tile, added in the order of the parts.
//!
//! An accumulator is handed over as it lies in registers, 16 bytes a thread at a time: the thread with the same number in
//! part 0 adds it, so that layout and bank conflicts do not matter. Inside a block the other parts write to the inbox
//! between two barriers. In a cluster all of them send to the first block, which counts their bytes on an mbarrier and
//! tells the senders on another one that the inbox has been read.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::prelude::Snippet;
use super::Linear;
use crate::ir::{BufferId, Op, OpId, RoleId, SchedOp};

/// Bytes of 16-byte pieces of a warp group's threads.
const PIECES: usize = 128 * 16;

impl Emitter<'_> {
    /// Blocks of a cluster that share tiles.
    pub fn sharing_blocks(&self) -> usize {
        self.k.cluster.as_ref().filter(|c| c.axis.is_none()).map_or(1, |c| c.size)
    }

    /// The sums that the blocks of a cluster add up: role and instances of a part.
    pub fn shared_sum(&self) -> Option<(RoleId, usize)> {
        if self.sharing_blocks() == 1 {
            return None;
        }
        (0..self.k.roles.len() as u32).map(RoleId).find_map(|role| {
            let program = self.program(role)?;
            let mut found = None;
            crate::ir::effects::walk(self.k, program, &mut |_, op| {
                if let Op::Sched(SchedOp::Combine { turns, .. }) = op {
                    found = Some((role, self.k.roles[role.0 as usize].instances / turns));
                }
            });
            found
        })
    }

    pub fn combine(&mut self, id: OpId, acc: BufferId, inbox: BufferId, turns: usize) {
        let k = self.k;
        let span = k.op(id).span;
        let Some(role) = self.role else { return };
        let r = &k.roles[role.id.0 as usize];
        let registers = k.buffer(acc).distribution.as_ref().map_or(0, |d| d.registers(&k.buffer(acc).extents));
        let size = self.sharing_blocks();
        let (parts, groups, quads) = (size * turns, r.instances / turns.max(1), registers / 4);
        let Some(memory) = &k.buffer(inbox).memory else { return };
        if role.threads != 128 || quads * 4 != registers || groups * turns != r.instances || parts < 2 {
            self.refuse(id, format!("a sum of {parts} parts by {} instances of {} threads", r.instances, role.threads));
            return;
        }
        self.need(Snippet::Shared);
        self.comment(span, &format!("the sum of {parts} parts, one after another"));
        let acc = self.buffer(acc);
        let instance = r.instance.map_or(Text::number(0), |v| self.index[&v].clone());
        let group = if groups > 1 { Text::over(&instance, turns) } else { Text::number(0) };
        let turn = match (turns, groups) {
            (1, _) => Text::number(0),
            (_, 1) => instance,
            _ => Text::name(format!("{} % {turns}", instance.s)),
        };
        self.open("");
        let rank = k.cluster.as_ref().filter(|_| size > 1).and_then(|c| self.index.get(&c.rank).cloned());
        let first = rank.map_or(Text::number(0), |x| Text::mul(&x, &Text::number(turns as i64)));
        let part = self.names.declare("part");
        self.line(format!("const int {part} = {};", Text::add(&first, &turn).s));
        let own = Text::mul(&group, &Text::number((quads * PIECES) as i64));
        let mut place = Linear::constant(memory.offset_bytes as i64);
        place.add(1, own);
        let tid = self.tid();
        place.add(16, Text::name(tid));
        let at = self.shared_address(&place).s;
        let to = self.names.declare("inbox");
        self.line(format!("const smem_ptr {to} = {at};"));
        let bytes = groups * quads * PIECES;
        let piece = |from: &str, q: &str| format!("{to} + {from} * {bytes} + {q} * {PIECES}");
        let four = |q: &str| {
            [0, 1, 2, 3].map(|e| format!("{acc}[4 * {q}{}]", if e > 0 { format!(" + {e}") } else { String::new() }))
        };
        if size == 1 {
            self.inside_block(&part, quads, turns, &group, &piece, &four);
        } else {
            self.across_cluster(&part, quads, &group, (parts - 1) * bytes, &piece, &four);
        }
        self.open(&format!("if ({part} == 0)"));
        self.line("#pragma unroll");
        self.line(format!("for (int e = 0; e < {registers}; ++e) {acc}[e] = 0.0f + {acc}[e];"));
        let from = self.open_with("from", |f| format!("for (int {f} = 0; {f} < {}; ++{f})", parts - 1)).s;
        self.line("#pragma unroll");
        let q = self.open_with("q", |q| format!("for (int {q} = 0; {q} < {quads}; ++{q})")).s;
        let v = self.names.declare("v");
        self.line(format!("const float4 {v} = smem_load4({});", piece(&from, &q)));
        for (slot, lane) in four(&q).iter().zip(["x", "y", "z", "w"]) {
            self.line(format!("{slot} += {v}.{lane};"));
        }
        self.close();
        self.close();
        if size > 1 {
            self.used_warp = true;
            let free = self.frame.inbox.clone().unwrap_or_default().free;
            self.line("__syncwarp();");
            self.line(format!("if (lane < {size}) mbar_arrive_cluster({free}, lane);"));
        }
        self.close();
        if size > 1 {
            let parity = self.frame.inbox.clone().unwrap_or_default().parity;
            self.line(format!("{parity} ^= 1;"));
        }
        self.close();
    }

    /// Hands over through the block's own memory.
    fn inside_block(
        &mut self,
        part: &str,
        quads: usize,
        turns: usize,
        group: &Text,
        piece: &dyn Fn(&str, &str) -> String,
        four: &dyn Fn(&str) -> [String; 4],
    ) {
        self.need(Snippet::NamedBarrier);
        let used: usize = self.k.roles.iter().filter(|r| !r.one_thread && r.warps > 1).map(|r| r.instances).sum();
        let id = Text::add(&Text::number(used as i64 + 1), group).s;
        let threads = turns * 128;
        self.line(format!("named_barrier_sync({id}, {threads});  // the last tile's parts have been read"));
        self.open(&format!("if ({part} != 0)"));
        self.line("#pragma unroll");
        let q = self.open_with("q", |q| format!("for (int {q} = 0; {q} < {quads}; ++{q})")).s;
        self.line(format!("smem_store4({}, {});", piece(&format!("({part} - 1)"), &q), four(&q).join(", ")));
        self.close();
        self.close();
        self.line(format!("named_barrier_sync({id}, {threads});  // all parts are there"));
    }

    /// Sends to the first block of the cluster.
    fn across_cluster(
        &mut self,
        part: &str,
        quads: usize,
        group: &Text,
        bytes: usize,
        piece: &dyn Fn(&str, &str) -> String,
        four: &dyn Fn(&str) -> [String; 4],
    ) {
        self.need(Snippet::Cluster);
        self.need(Snippet::Mbarrier);
        self.used_warp = true;
        let names = self.frame.inbox.clone().unwrap_or_default();
        self.open(&format!("if ({part} == 0)"));
        let first = if group.is_zero() { String::new() } else { format!("{} == 0 && ", group.s) };
        self.line(format!("if ({first}warp == 0 && elect_one()) mbar_arrive_expect_tx({}, {bytes});", names.full));
        self.line(format!("mbar_wait({}, {});", names.full, names.parity));
        self.close();
        self.open(&format!("if ({part} != 0)"));
        self.line(format!("mbar_wait({}, {} ^ 1);  // the last tile's parts have been read", names.free, names.parity));
        let full = self.names.declare("full");
        self.line(format!("const smem_ptr {full} = cluster_address({}, 0);", names.full));
        self.line("#pragma unroll");
        let q = self.open_with("q", |q| format!("for (int {q} = 0; {q} < {quads}; ++{q})")).s;
        let v = self.names.declare("v");
        self.line(format!("const float4 {v} = {{{}}};", four(&q).join(", ")));
        let to = piece(&format!("({part} - 1)"), &q);
        self.line(format!("cluster_send4(cluster_address({to}, 0), {full}, {v});"));
        self.close();
        self.close();
    }
}
