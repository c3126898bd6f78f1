//! Copies of the engine: boxes from tensors to slots, and from staging tiles to tensors.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::prelude::Snippet;
use super::Linear;
use crate::ir::{Evict, IxId, MapId, Op, OpId, Region, SchedOp, ViewId};

/// How the boxes of a copy follow each other.
struct Boxes {
    /// For each map axis with more than one box: the axis, boxes along it, bytes from box to box in shared memory.
    axes: Vec<(usize, usize, i64)>,
    /// Elements of a box along each map axis.
    extents: Vec<usize>,
}

impl Emitter<'_> {
    /// The axis of a region that each axis of a map walks, found by its stride in the tensor.
    fn region_axes(&self, map: MapId, tensor: ViewId, extents: &[usize]) -> Vec<Option<usize>> {
        let (m, v) = (&self.k.maps[map.0 as usize], self.k.view(tensor));
        let mut free: Vec<usize> = (0..v.strides.len()).collect();
        let mut axes = vec![None; m.boxes.len()];
        for (n, stride) in m.strides.iter().enumerate() {
            // An axis of one element has no direction of its own, so one of more is preferred.
            let found = free.iter().copied().filter(|&a| v.strides[a] == *stride).max_by_key(|&a| extents[a]);
            if let Some(a) = found {
                axes[n] = Some(a);
                free.retain(|&f| f != a);
            }
        }
        axes
    }

    /// Splits a copy into boxes. `share` blocks split the first axis of the region among them.
    fn boxes(&mut self, map: MapId, tensor: ViewId, tile: &Region, extents: &[usize], share: usize) -> Option<Boxes> {
        let axes = self.region_axes(map, tensor, extents);
        let sizes = self.k.maps[map.0 as usize].boxes.clone();
        let covered: usize = axes.iter().flatten().map(|&a| extents[a]).product();
        if covered != extents.iter().product::<usize>() {
            return None;
        }
        let mut list = vec![];
        for (n, axis) in axes.iter().enumerate() {
            let Some(a) = *axis else { continue };
            let extent = if a == 0 { extents[a] / share } else { extents[a] };
            if !extent.is_multiple_of(sizes[n]) {
                return None;
            }
            let count = extent / sizes[n];
            if count > 1 {
                list.push((n, count, self.distance(tile, a, sizes[n])?));
            }
        }
        Some(Boxes { axes: list, extents: sizes })
    }

    /// Bytes between elements of a tile that are `by` apart along an axis.
    fn distance(&self, tile: &Region, axis: usize, by: usize) -> Option<i64> {
        let (buffer, m) = self.layout(tile.view)?;
        let v = self.k.view(tile.view);
        let stride = self.k.ix_const(v.strides[axis])?;
        let size = (v.dtype.bits() / 8) as i64;
        let (Some(width), Some(p)) = (m.panel, self.panels(buffer)) else { return Some(stride * by as i64 * size) };
        let elements = match stride {
            s if s % (p.rows * p.columns) == 0 => s * by as i64,
            s if s % p.columns == 0 => s / p.columns * width as i64 * by as i64,
            1 if by.is_multiple_of(width) => by as i64 / width as i64 * p.rows * p.width,
            _ => return None,
        };
        Some(elements * size)
    }

    pub fn tma_load(&mut self, id: OpId, op: &SchedOp) {
        let SchedOp::TmaLoad { map, at, src, dst, extents, ring, part, multicast, evict } = op else { return };
        let span = self.k.op(id).span;
        let size = self.cluster_size();
        let share = if *multicast && size > 1 { size } else { 1 };
        let shown = if share > 1 { format!("{extents:?}, a share in each block") } else { format!("{extents:?}") };
        self.comment(span, &format!("copy {shown}"));
        let (Some(boxes), Some(mut to)) =
            (self.boxes(*map, src.view, dst, extents, share), self.shared_bytes_to(dst.view, &dst.start))
        else {
            self.refuse(id, "a copy that is not made of whole boxes".into());
            return;
        };
        let mut places: Vec<Linear> = at.iter().map(|&i| Linear::of(self.ix(i))).collect();
        if share > 1 {
            let rank = self.k.cluster.as_ref().and_then(|c| self.index.get(&c.rank).cloned());
            let axis = self.region_axes(*map, src.view, extents).iter().position(|a| *a == Some(0));
            let rows = extents[0] / share;
            let (Some(rank), Some(axis), Some(bytes)) = (rank, axis, self.distance(dst, 0, rows)) else {
                self.refuse(id, "a shared copy without rows".into());
                return;
            };
            places[axis].add(rows as i64, rank.clone());
            to.add(bytes, rank);
        }
        self.need(Snippet::TmaLoad);
        let full = self.frame.rings[ring.0 as usize].parts[*part as usize][0].clone();
        let slot = self.frame.rings[ring.0 as usize].slot.clone();
        let hint = match evict {
            Evict::Normal => None,
            Evict::First => Some("l2_evict_first()".to_string()),
            Evict::Last => Some("l2_evict_last()".to_string()),
        };
        // There is no shared copy with a hint.
        let (kind, last) = match (share, hint) {
            (1, None) => ("", None),
            (1, hint) => ("_hint", hint),
            _ => ("_multicast", Some(format!("{:#x}", (1u32 << size) - 1))),
        };
        let rank = places.len();
        let one = self.role.is_some_and(|r| r.one_thread);
        if !one {
            self.used_warp = true;
            self.open("if (warp == 0 && elect_one())");
        }
        if self.either(*ring, *part) {
            let bytes = extents.iter().product::<usize>() * self.k.view(dst.view).dtype.bits() / 8;
            self.line(format!("mbar_expect_tx({full} + 8 * {slot}, {bytes});"));
        }
        let map = self.frame.maps[map.0 as usize].clone();
        self.each_box(&boxes, places, to, |this, places, to| {
            let mut list = vec![this.shared_address(&to).s, format!("&{map}"), format!("{full} + 8 * {slot}")];
            list.extend(places.iter().map(|p| p.text().s));
            list.extend(last.clone());
            this.call(&format!("tma_load_{rank}d{kind}"), &list);
        });
        if !one {
            self.close();
        }
    }

    /// One call for each box, in place.
    fn each_box(&mut self, boxes: &Boxes, places: Vec<Linear>, to: Linear, f: impl Fn(&mut Self, Vec<Linear>, Linear)) {
        let count: usize = boxes.axes.iter().map(|a| a.1).product();
        for n in 0..count {
            let (mut rest, mut places, mut to) = (n, places.clone(), to.clone());
            for &(axis, along, bytes) in &boxes.axes {
                let k = (rest % along) as i64;
                rest /= along;
                places[axis].number += k * boxes.extents[axis] as i64;
                to.number += k * bytes;
            }
            f(self, places, to);
        }
    }

    /// Boxes of the role's largest store: so many of its threads have stores of their own.
    fn storing_threads(&mut self) -> usize {
        let Some(program) = self.role.and_then(|r| self.program(r.id)) else { return 1 };
        let k = self.k;
        let mut most = 1;
        let mut stores = vec![];
        crate::ir::effects::walk(k, program, &mut |_, op| {
            if let Op::Sched(SchedOp::TmaStore { map, src, dst, extents, .. }) = op {
                stores.push((*map, src.clone(), dst.view, extents.clone()));
            }
        });
        for (map, src, tensor, extents) in stores {
            let boxes = self.boxes(map, tensor, &src, &extents, 1);
            most = most.max(boxes.map_or(1, |b| b.axes.iter().map(|a| a.1).product()));
        }
        most
    }

    pub fn tma_store(&mut self, id: OpId, map: MapId, at: &[IxId], src: &Region, extents: &[usize]) {
        let span = self.k.op(id).span;
        self.comment(span, &format!("copy {extents:?} out"));
        let Op::Sched(SchedOp::TmaStore { dst, .. }) = &self.k.op(id).op else { return };
        let tensor = dst.view;
        let (Some(boxes), Some(from)) =
            (self.boxes(map, tensor, src, extents, 1), self.shared_bytes_to(src.view, &src.start))
        else {
            self.refuse(id, "a copy that is not made of whole boxes".into());
            return;
        };
        self.need(Snippet::TmaStore);
        let places: Vec<Linear> = at.iter().map(|&i| Linear::of(self.ix(i))).collect();
        let rank = places.len();
        let name = self.frame.maps[map.0 as usize].clone();
        if self.role.is_none_or(|r| r.one_thread) {
            self.each_box(&boxes, places, from, |this, places, from| {
                let list: Vec<String> = places.iter().map(|p| p.text().s).collect();
                let src = this.shared_address(&from).s;
                this.line(format!("tma_store_{rank}d(&{name}, {src}, {});", list.join(", ")));
            });
            self.line("tma_store_commit();");
            return;
        }
        let count: usize = boxes.axes.iter().map(|a| a.1).product();
        let most = self.storing_threads();
        let threads = self.threads();
        if count > threads {
            self.refuse(id, format!("a store of {count} boxes by {threads} threads"));
            return;
        }
        // One box a thread.
        let (mut places, mut from) = (places, from);
        let tid = Text::name(self.tid());
        let mut below = 1;
        for &(axis, along, bytes) in &boxes.axes {
            let mut n = if below > 1 { Text::over(&tid, below) } else { tid.clone() };
            if below * along < count {
                n = Text::name(format!("({} % {along})", n.s));
            }
            below *= along;
            places[axis].add(boxes.extents[axis] as i64, n.clone());
            from.add(bytes, n);
        }
        let list: Vec<String> = places.iter().map(|p| p.text().s).collect();
        let src = self.shared_address(&from).s;
        let line = format!("tma_store_{rank}d(&{name}, {src}, {});", list.join(", "));
        self.open(&format!("if ({} < {most})", tid.s));
        if count < most {
            self.line(format!("if ({} < {count}) {line}", tid.s));
        } else {
            self.line(line);
        }
        self.line("tma_store_commit();");
        self.close();
        self.line("__syncwarp();");
    }

    pub fn tma_store_wait(&mut self, pending: usize, written: bool) {
        self.need(Snippet::TmaStore);
        let read = if written { "" } else { "_read" };
        let line = format!("tma_store_wait{read}<{pending}>();");
        if self.role.is_none_or(|r| r.one_thread) {
            self.line(line);
        } else {
            let most = self.storing_threads();
            let tid = self.tid();
            self.line(format!("if ({tid} < {most}) {line}"));
        }
    }
}
