//! Factors of rows and columns of a product: copied into the ring with the operands where they lie one after another in
//! memory, loaded once where runs of rows or columns share one, and as they were otherwise.

use super::epilogue::{mentions, without};
use super::parts::{Parts, Seen, read_only, seen};
use super::views::{new_value, slot_view};
use crate::analysis::Ranges;
use crate::analysis::ranges::gcd;
use crate::ir::{
    Buffer, BufferId, Cloner, CmpOp, DType, GemmScale, IxExpr, IxId, IxVar, IxVarId, Kernel, MemoryLayout, Op, OpId,
    Space, ViewId,
};
use std::collections::BTreeMap;

/// Scales of a product that the loading role copies.
pub struct ScaleTile {
    /// Slots by rows or columns.
    pub tile: BufferId,
    /// The load they were.
    pub load: OpId,
    /// Where they come from.
    pub view: ViewId,
    /// How the engine sees it.
    pub seen: Seen,
    /// Place of the tile's first scale, and the group of K.
    pub at: [IxId; 2],
}

/// Tiles of copied scales: of rows (0) or columns (1) of a product.
pub type ScaleTiles = BTreeMap<(OpId, usize), ScaleTile>;

/// Finds scales that can be copied with the operands: one f32 a row or column and step, consecutive in memory. `spare`: a
/// thread's registers that are not needed for sums; those of columns are held while the product runs.
pub fn stage(k: &mut Kernel, ranges: &Ranges, parts: &Parts, depth: usize, spare: usize) -> ScaleTiles {
    let mut found = ScaleTiles::new();
    for p in &parts.products {
        for (side, scale) in p.scales.iter().flatten().enumerate() {
            let ops = &k.block(scale.body).ops;
            let &[id] = &ops[..] else { continue };
            let Op::Load { result, view, index } = k.op(id).op.clone() else { continue };
            let [at, group] = index[..] else { continue };
            if result != scale.value || k.view(view).dtype != DType::F32 || mentions(k, group, scale.var) {
                continue;
            }
            let (Ok(seen), Some(first)) = (seen(k, ranges, view, 0), without(k, at, scale.var)) else { continue };
            let registers = if side == 1 { parts.tile[1] / 4 } else { 0 };
            if mentions(k, first, scale.var) || !read_only(k, seen.param) || registers > spare {
                continue;
            }
            // Each slot starts at a multiple of the 128 bytes the copy engine asks for.
            let padded = parts.tile[side].next_multiple_of(32);
            let span = k.op(id).span;
            k.buffers.push(Buffer {
                name: ["row_scales", "column_scales"][side].into(),
                dtype: DType::F32,
                index: false,
                extents: vec![depth, padded],
                space: Space::Shared,
                distribution: None,
                memory: Some(MemoryLayout { strides: vec![padded, 1], swizzle: None, panel: None, offset_bytes: 0 }),
                role: None,
                span,
            });
            let tile = BufferId(k.buffers.len() as u32 - 1);
            found.insert((p.op, side), ScaleTile { tile, load: id, view, seen, at: [first, group] });
        }
    }
    found
}

/// Where factors are worked out.
pub struct Place<'a> {
    /// What is known of the plain kernel's indices.
    pub ranges: &'a Ranges,
    /// Slot of the current item.
    pub slot: IxVarId,
    /// Tile of copied scales.
    pub tile: Option<BufferId>,
    /// Rows or columns of the product, and of the whole tile.
    pub count: usize,
    pub whole: usize,
    /// The first of them in the tile.
    pub first: IxId,
}

/// The factor of a group's rows or of columns: from the ring if it was copied; where one load gives the same scale to runs,
/// `load s[(x + j) / c, ..]`, the one to three scales of the tile are loaded in front of the wait, and each row or column
/// chooses among them; else as it was.
pub fn factor(c: &mut Cloner<'_>, s: &GemmScale, p: &Place<'_>, before: &mut Vec<OpId>, like: OpId) -> GemmScale {
    if let Some(tile) = p.tile {
        let (var, i) = local_var(c, s, p.count);
        let view = slot_view(c, tile, p.slot, &[p.whole], &[1], 0);
        let mut v = c.k.view(view).clone();
        v.offset = c.k.ix_add(v.offset, p.first);
        v.extents = vec![c.k.ix_const_id(p.count as i64)];
        let view = c.new_view(v);
        let like = c.k.block(s.body).ops[0];
        let result = new_value(c, DType::F32, like);
        let load = c.push(Op::Load { result, view, index: vec![i] }, like);
        return GemmScale { var, body: c.new_block(vec![load]), value: result };
    }
    if let Some(found) = runs(c, s, p, before, like) {
        return found;
    }
    let (var, i) = local_var(c, s, p.count);
    let at = c.k.ix_add(i, p.first);
    c.ix.insert(s.var, at);
    let body = c.block(s.body);
    GemmScale { var, body, value: c.value(s.value) }
}

/// The variable of a group's own rows or columns.
fn local_var(c: &mut Cloner<'_>, s: &GemmScale, count: usize) -> (IxVarId, IxId) {
    let old = c.k.ix_var(s.var).clone();
    let hi = c.k.ix_const_id(count as i64 - 1);
    let var = c.new_ix_var(IxVar { hi: Some(hi), ..old });
    let i = c.var(var);
    (var, i)
}

fn runs(c: &mut Cloner<'_>, s: &GemmScale, p: &Place<'_>, before: &mut Vec<OpId>, like: OpId) -> Option<GemmScale> {
    let &[id] = &c.k.block(s.body).ops.clone()[..] else { return None };
    let Op::Load { result, view, index } = c.k.op(id).op.clone() else { return None };
    if result != s.value || index.iter().filter(|&&i| mentions(c.k, i, s.var)).count() != 1 {
        return None;
    }
    let axis = index.iter().position(|&i| mentions(c.k, i, s.var))?;
    let IxExpr::Div(sum, run) = c.k.ix_expr(index[axis]) else { return None };
    let run_length = c.k.ix_const(run).filter(|&r| r >= 8 && r % 8 == 0)? as usize;
    let first = without(c.k, sum, s.var)?;
    // Ids made since are unknown to the ranges; the tile's first row or column is a multiple of its size.
    let step = multiple_of(c.k, p.ranges, first).unwrap_or(1) as usize;
    let own = if c.k.ix_const(p.first) == Some(0) { 0 } else { p.count };
    let common = gcd(gcd(step.max(1) as i128, run_length as i128), own as i128) as usize;
    let count = (run_length - common.min(run_length) + p.count).div_ceil(run_length);
    if common < 8 || count > 3 {
        return None;
    }
    let (var, j) = local_var(c, s, p.count);
    let start = c.index(first);
    let first = c.k.ix_add(start, p.first);
    let block = match c.k.ix_expr(first) {
        IxExpr::Mul(a, b) if c.k.ix_const(b) == Some(run_length as i64) => a,
        _ => c.k.ix_div(first, run),
    };
    let from = c.view(view);
    let mut values = vec![];
    for s in 0..count {
        let s = c.k.ix_const_id(s as i64);
        let mut at: Vec<IxId> = index.iter().map(|&i| c.index(i)).collect();
        at[axis] = c.k.ix_add(block, s);
        let result = new_value(c, DType::F32, like);
        before.push(c.push(Op::Load { result, view: from, index: at }, id));
        values.push(result);
    }
    let mut body = vec![];
    let mut value = values[0];
    let inside = c.k.ix_mod(first, run);
    let at = c.k.ix_add(inside, j);
    for (s, &next) in values.iter().enumerate().skip(1) {
        let edge = c.k.ix_const_id((s * run_length) as i64);
        let cond = new_value(c, DType::Bool, like);
        body.push(c.push(Op::CompareIndex { result: cond, op: CmpOp::Lt, a: at, b: edge }, id));
        let result = new_value(c, DType::F32, like);
        body.push(c.push(Op::Select { result, cond, a: value, b: next }, id));
        value = result;
    }
    let body = c.new_block(body);
    Some(GemmScale { var, body, value })
}

/// A number that divides an index: from the analysis, or from the last factor of a product made since.
fn multiple_of(k: &Kernel, ranges: &Ranges, e: IxId) -> Option<i64> {
    if (e.0 as usize) < ranges.known() {
        return Some(match ranges.multiple_of(e) {
            0 => 1 << 20,
            m => m,
        });
    }
    match k.ix_expr(e) {
        IxExpr::Mul(_, b) => k.ix_const(b),
        IxExpr::Const(c) => Some(if c == 0 { 1 << 20 } else { c }),
        _ => None,
    }
}
