//! Ops of roles: names become numbers, maps affine forms.

use super::*;
use crate::ir::{GroupRows, MapId, SchedOp};
use crate::vm::program::RowCounts;

impl Compiler<'_> {
    pub(super) fn sched(&mut self, op: &SchedOp, id: OpId, code: &mut Vec<Node>) -> Option<RoleInstr> {
        let empty = HashSet::new();
        Some(match op {
            SchedOp::Roles { programs } => RoleInstr::Roles {
                programs: programs.iter().map(|&(r, b)| (r.0 as usize, self.block(b, &empty))).collect(),
            },
            SchedOp::Tiles { vars, rows, body } => RoleInstr::Tiles {
                targets: vars.iter().map(|v| v.0 as usize).collect(),
                rows: match rows {
                    Some(r) => Some(self.row_counts(r, id)?),
                    None => None,
                },
                code: self.block(*body, &empty),
            },
            SchedOp::Acquire { ring, part, slot } => {
                RoleInstr::Acquire { ring: ring.0 as usize, part: *part as usize, target: slot.0 as usize }
            }
            SchedOp::Take { ring, part, slot } => {
                RoleInstr::Take { ring: ring.0 as usize, part: *part as usize, target: slot.0 as usize }
            }
            SchedOp::Publish { ring, part } => RoleInstr::Publish { ring: ring.0 as usize, part: *part as usize },
            SchedOp::Release { ring, part } => RoleInstr::Release { ring: ring.0 as usize, part: *part as usize },
            SchedOp::Advance { ring, by } => RoleInstr::Advance { ring: ring.0 as usize, by: *by },
            SchedOp::TmaLoad { map, at, src, dst, extents, ring, part, multicast, evict: _ } => RoleInstr::Load {
                copy: self.engine_copy(*map, at, src, dst, extents, id)?,
                ring: ring.0 as usize,
                part: *part as usize,
                multicast: *multicast,
            },
            SchedOp::TmaStore { map, at, src, dst, extents } => {
                RoleInstr::Store { copy: self.engine_copy(*map, at, dst, src, extents, id)? }
            }
            SchedOp::TmaStoreWait { pending, written: _ } => RoleInstr::StoreWait { pending: *pending },
            SchedOp::Wgmma { a, b, acc, set, scales, release, hold } => RoleInstr::Product {
                product: self.product([*a, *b], *acc, *set, scales, id, code)?,
                release: release.iter().map(|r| (r.0.0 as usize, r.1 as usize)).collect(),
                hold: *hold,
            },
            SchedOp::WgmmaWait { pending } => RoleInstr::ProductWait { pending: *pending },
            SchedOp::Combine { acc, inbox, turns } => {
                RoleInstr::Combine { acc: acc.0 as usize, inbox: inbox.0 as usize, turns: *turns }
            }
            SchedOp::RoleBarrier { reason: _ } => RoleInstr::Meet,
            SchedOp::AsyncFence { reason: _ } => RoleInstr::Fence,
            SchedOp::ClusterBarrier { reason: _ } => RoleInstr::Cluster,
            SchedOp::GridWait | SchedOp::GridAllow => RoleInstr::Grid,
        })
    }

    fn row_counts(&mut self, rows: &GroupRows, id: OpId) -> Option<RowCounts> {
        let span = self.kernel.op(id).span;
        let v = self.kernel.view(rows.counts).clone();
        let &[stride] = &v.strides[..] else {
            self.error(span, "the rows of groups are not a tensor of rank 1");
            return None;
        };
        let place = match v.base {
            Base::Param(p) => Place::Param(p.0 as usize),
            Base::Buffer(b) => Place::Tile(b.0 as usize),
        };
        let (address, stride) = (self.ix(v.offset, span), self.ix(stride, span));
        let first = Access { place, dtype: v.dtype, address, checks: vec![], affine: false, lookup: None };
        Some(RowCounts { first, stride, tile: rows.tile.max(1) as i64 })
    }

    fn engine_copy(
        &mut self,
        map: MapId,
        at: &[IxId],
        tensor: &Region,
        tile: &Region,
        extents: &[usize],
        id: OpId,
    ) -> Option<EngineCopy> {
        let span = self.kernel.op(id).span;
        let m = self.kernel.maps.get(map.0 as usize)?.clone();
        let (v, t) = (self.kernel.view(tensor.view).clone(), self.kernel.view(tile.view).clone());
        let Base::Buffer(buffer) = t.base else {
            self.error(span, "a copy of the engine without a tile");
            return None;
        };
        let mut address = self.ix(t.offset, span);
        let mut strides = vec![];
        for (&s, &start) in t.strides.iter().zip(&tile.start) {
            let (s, start) = (self.ix(s, span), self.ix(start, span));
            let Some(step) = s.constant() else {
                self.error(span, "a tile's strides are not known");
                return None;
            };
            address = Self::add(address, &start, step);
            strides.push(step);
        }
        // An axis of the map walks the axis of the copy that has its stride in the tensor.
        let mut free: Vec<usize> = (0..v.strides.len().min(extents.len())).collect();
        let mut axes = vec![None; m.strides.len()];
        for (n, stride) in m.strides.iter().enumerate() {
            let found = free.iter().copied().filter(|&a| v.strides[a] == *stride).max_by_key(|&a| extents[a]);
            if let Some(a) = found {
                axes[n] = Some(a);
                free.retain(|&f| f != a);
            }
        }
        let mut list = |ids: &[IxId]| -> Vec<Ix> { ids.iter().map(|&i| self.ix(i, span)).collect() };
        Some(EngineCopy {
            tile: buffer.0 as usize,
            dtype: t.dtype,
            address,
            strides,
            extents: extents.to_vec(),
            param: m.param.0 as usize,
            map_extents: list(&m.extents),
            map_strides: list(&m.strides),
            at: list(at),
            axes,
            boxes: m.boxes,
            swizzle: m.swizzle_bytes,
        })
    }
}
