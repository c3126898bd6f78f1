//! What one access of an element loop looks like to a thread that handles `vec` consecutive iterations: one wide access,
//! one shared by all of them, or one each.
//!
//! `distribute` asks this to choose `vec`, the emitter to print; both get the same answer because it only depends on the
//! kernel.

use crate::analysis::Ranges;
use crate::ir::effects::{uses, walk};
use crate::ir::{Base, BlockId, Gather, IxExpr, IxId, IxVarId, Kernel, Space, ViewId};
use std::collections::HashSet;

/// Form of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Consecutive elements, moved in pieces of this many bytes.
    Wide(usize),
    /// Consecutive elements of half a byte, each pair of which exists or does not as a whole. Stores move them byte by byte;
    /// loads need not.
    Pairs,
    /// The same element for all.
    Once,
    /// One access an element.
    Each,
}

/// An element loop seen by one thread.
pub struct Lanes<'a> {
    kernel: &'a Kernel,
    ranges: &'a Ranges,
    /// The index variable that advances from lane to lane.
    inner: Option<IxVarId>,
    /// Lanes; the first one's index is a multiple of it.
    vec: i64,
    /// Index variables the body defines: nothing is known about how they change.
    inside: HashSet<IxVarId>,
}

/// Position of the axis along which consecutive iterations advance: the last one that has more than one.
pub fn inner_axis(extents: &[usize]) -> Option<usize> {
    extents.iter().rposition(|&e| e > 1)
}

/// Index variables that ops of a body define.
pub fn defined_inside(kernel: &Kernel, body: BlockId) -> HashSet<IxVarId> {
    let mut set = HashSet::new();
    walk(kernel, body, &mut |_, op| {
        let u = uses(op);
        set.extend(u.defines_ix.into_iter().chain(u.body_ix));
    });
    set
}

impl<'a> Lanes<'a> {
    /// A loop over `vars` and `extents` with `vec` iterations a thread and step.
    pub fn new(
        kernel: &'a Kernel,
        ranges: &'a Ranges,
        vars: &[IxVarId],
        extents: &[usize],
        body: BlockId,
        vec: usize,
    ) -> Self {
        let inner = inner_axis(extents).map(|a| vars[a]);
        Lanes { kernel, ranges, inner, vec: vec as i64, inside: defined_inside(kernel, body) }
    }

    /// Change of an index from one lane to the next; `None` if it is not always the same.
    pub fn step(&self, id: IxId) -> Option<i64> {
        match self.kernel.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) => Some(0),
            IxExpr::Data(_) => None,
            IxExpr::Var(v) if Some(v) == self.inner => Some(1),
            IxExpr::Var(v) => (!self.inside.contains(&v)).then_some(0),
            IxExpr::Add(a, b) => Some(self.step(a)? + self.step(b)?),
            IxExpr::Sub(a, b) => Some(self.step(a)? - self.step(b)?),
            IxExpr::Mul(a, b) => match (self.step(a)?, self.step(b)?) {
                (0, 0) => Some(0),
                (s, 0) => Some(s * self.kernel.ix_const(b)?),
                (0, s) => Some(s * self.kernel.ix_const(a)?),
                _ => None,
            },
            // Lanes lie within one aligned group, so a divisor that is a multiple of the group gives all the same.
            IxExpr::Div(a, b) => match (self.step(a)?, self.step(b)?) {
                (0, 0) => Some(0),
                (1, 0) if self.aligned(a) && self.multiple(b) % self.vec == 0 => Some(0),
                _ => None,
            },
            IxExpr::Mod(a, b) => match (self.step(a)?, self.step(b)?) {
                (0, 0) => Some(0),
                (1, 0) if self.aligned(a) && self.multiple(b) % self.vec == 0 => Some(1),
                _ => None,
            },
            IxExpr::Min(a, b) | IxExpr::Max(a, b) => match (self.step(a)?, self.step(b)?) {
                (0, 0) => Some(0),
                _ => None,
            },
        }
    }

    fn aligned(&self, id: IxId) -> bool {
        self.multiple(id) % self.vec == 0
    }

    /// A number that divides the index at the first lane; 0 if the index is always 0.
    pub fn multiple(&self, id: IxId) -> i64 {
        match self.kernel.ix_expr(id) {
            IxExpr::Const(c) => c.abs(),
            IxExpr::Sym(s) => self.kernel.syms[s.0 as usize].multiple_of.max(1),
            IxExpr::Data(_) => 1,
            IxExpr::Var(v) if Some(v) == self.inner => self.vec,
            IxExpr::Var(_) => self.ranges.multiple_of(id).max(1),
            IxExpr::Add(a, b) | IxExpr::Sub(a, b) | IxExpr::Min(a, b) | IxExpr::Max(a, b) => {
                gcd(self.multiple(a), self.multiple(b))
            }
            IxExpr::Mul(a, b) => self.multiple(a).saturating_mul(self.multiple(b)).min(1 << 40),
            IxExpr::Div(a, b) => match self.kernel.ix_const(b) {
                Some(c) if c > 0 && self.multiple(a) % c == 0 => self.multiple(a) / c,
                _ => 1,
            },
            IxExpr::Mod(a, b) => gcd(self.multiple(a), self.multiple(b)),
        }
    }

    /// True if `index` still has to be compared with `0` and `extent`.
    pub fn needs_check(&self, index: IxId, extent: IxId) -> bool {
        !in_range(self.kernel, self.ranges, index, extent)
    }

    /// Form of the access `view[index]`.
    pub fn form(&self, view: ViewId, index: &[IxId]) -> Form {
        let v = self.kernel.view(view);
        let strides = strides(self.kernel, view);
        let mut step = 0;
        let mut multiple = self.multiple(v.offset);
        if let Some(gather) = v.gather {
            // All lanes have to be in one row; where that is, its distance says.
            if index.first().is_none_or(|&i| self.step(i) != Some(0)) {
                return Form::Each;
            }
            if let Gather::Paged { page_stride, .. } = gather {
                multiple = gcd(multiple, self.multiple(page_stride));
            }
            multiple = gcd(multiple, self.multiple(v.strides[0]));
        }
        for (&i, &s) in index.iter().zip(&strides).skip(usize::from(v.gather.is_some())) {
            let Some(d) = self.step(i) else { return Form::Each };
            if d != 0 {
                match stride_const(self.kernel, s) {
                    Some(c) => step += d * c,
                    None => return Form::Each,
                }
            }
            let m = match s {
                Stride::Index(id) => self.multiple(id),
                Stride::Const(c) => c,
            };
            multiple = gcd(multiple, self.multiple(i).saturating_mul(m).min(1 << 40));
        }
        let bits = memory_bits(self.kernel, view) as i64;
        let packed = bits < 8;
        let mut whole = true;
        let checks = index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied());
        for (i, e) in checks {
            if !self.needs_check(i, e) {
                continue;
            }
            match self.step(i) {
                Some(0) => {}
                // A group of lanes is then inside or outside as a whole.
                Some(1) if self.aligned(i) && self.step(e) == Some(0) && self.aligned(e) => {}
                Some(1)
                    if packed && self.step(e) == Some(0) && self.multiple(i) % 2 == 0 && self.multiple(e) % 2 == 0 =>
                {
                    whole = false;
                }
                _ => return Form::Each,
            }
        }
        if step == 0 {
            return Form::Once;
        }
        if step != 1 || self.vec == 1 || self.vec * bits < if packed { 8 } else { 16 } {
            return Form::Each;
        }
        let size = (bits / 8).max(1);
        let base = match v.base {
            Base::Param(p) => match &self.kernel.param(p).kind {
                crate::ir::ParamKind::Tensor { align_bytes, .. } => (*align_bytes as i64).max(size),
                _ => size,
            },
            Base::Buffer(_) => 16,
        };
        let width = gcd(gcd(multiple * bits / 8, base), gcd(self.vec * bits / 8, 16));
        let halves = multiple * bits % 8 != 0;
        match (width > size && whole, packed) {
            _ if halves => Form::Each,
            (true, _) => Form::Wide(width as usize),
            (false, true) => Form::Pairs,
            (false, false) => Form::Each,
        }
    }
}

/// Bits of an element where it lies. Codes of e2m1 are packed in pairs, except in tiles of that type.
pub fn memory_bits(kernel: &Kernel, view: ViewId) -> usize {
    let v = kernel.view(view);
    match v.base {
        Base::Buffer(b) if kernel.buffer(b).dtype == v.dtype => v.dtype.bits().max(8),
        Base::Buffer(_) | Base::Param(_) => v.dtype.bits(),
    }
}

/// True if `0 <= index < extent` is proven.
pub fn in_range(kernel: &Kernel, ranges: &Ranges, index: IxId, extent: IxId) -> bool {
    let low = matches!(ranges.interval(index), (Some(lo), _) if lo >= 0)
        || kernel.index_ids.get(&IxExpr::Const(0)).is_some_and(|&zero| ranges.prove_le(zero, index));
    low && ranges.prove_lt(index, extent)
}

/// Stride of a view's axis in memory: as declared, or with the row padding of a shared tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// An index expression.
    Index(IxId),
    /// A number.
    Const(i64),
}

fn stride_const(kernel: &Kernel, s: Stride) -> Option<i64> {
    match s {
        Stride::Index(id) => kernel.ix_const(id),
        Stride::Const(c) => Some(c),
    }
}

/// Strides of a view as memory has them.
pub fn strides(kernel: &Kernel, view: ViewId) -> Vec<Stride> {
    let v = kernel.view(view);
    if let Base::Buffer(b) = v.base
        && let Some((row, pitch)) = padding(kernel, b)
    {
        let pad = |c: i64| if c % row == 0 { c / row * pitch } else { c };
        return v
            .strides
            .iter()
            .map(|&s| kernel.ix_const(s).map_or(Stride::Index(s), |c| Stride::Const(pad(c))))
            .collect();
    }
    v.strides.iter().map(|&s| Stride::Index(s)).collect()
}

/// Length of a padded tile's rows and their distance in memory; `None` for a tile without padding.
pub fn padding(kernel: &Kernel, buffer: crate::ir::BufferId) -> Option<(i64, i64)> {
    let b = kernel.buffer(buffer);
    let m = b.memory.as_ref()?;
    let rank = b.extents.len();
    if rank < 2 || b.space == Space::Var || m.panel.is_some() {
        return None;
    }
    let (row, pitch) = (b.extents[rank - 1] as i64, m.strides[rank - 2] as i64);
    (row != pitch).then_some((row, pitch))
}

/// Greatest common divisor; `gcd(0, x) = x`.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
