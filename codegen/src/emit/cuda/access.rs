//! Loads and stores: addresses, bounds checks, register tiles, and base pointers that do not change within a loop.

use super::Emitter;
use super::expr::{Text, literal, memory_type};
use super::prelude::Snippet;
use crate::ir::{
    Access, Base, Buffer, BufferId, DType, Gather, IxExpr, IxId, Kernel, Literal, Op, OpId, ParamId, ParamKind,
    SchedOp, Space, ValueId, ViewId,
};
use crate::pass::access::{Stride, in_range, strides};
use crate::pass::distribute::constant_index;
use std::collections::BTreeSet;

/// Where an element is: `base[index]`.
pub struct Place {
    /// Pointer expression.
    pub base: String,
    /// Number of the element from there.
    pub index: Text,
}

/// A looked-up row.
#[derive(Clone)]
pub struct Row {
    /// Its first element.
    pub offset: Text,
    /// Condition on which it exists.
    pub exists: Text,
}

/// Register tiles with fewer registers than this are not worth narrowing.
const NARROW_FROM: usize = 24;

/// f32 register tiles of some size whose every element is a widened bf16.
pub fn narrow_tiles(k: &Kernel) -> BTreeSet<BufferId> {
    let large = |b: &Buffer| b.distribution.as_ref().is_some_and(|d| d.registers(&b.extents) >= NARROW_FROM);
    let mut tiles: BTreeSet<BufferId> = (0..k.buffers.len() as u32)
        .map(BufferId)
        .filter(|&b| k.buffer(b).space == Space::Frag && k.buffer(b).dtype == DType::F32 && large(k.buffer(b)))
        .collect();
    let mut written = BTreeSet::new();
    for node in &k.ops {
        if let Op::Store { view, value, .. } = &node.op {
            let Base::Buffer(b) = k.view(*view).base else { continue };
            written.insert(b);
            if widened(k, *value).is_none() {
                tiles.remove(&b);
            }
        } else if let Op::Reduce { dst, .. }
        | Op::Scan { dst, .. }
        | Op::Gemm { acc: dst, .. }
        | Op::Sched(SchedOp::Wgmma { acc: dst, .. }) = &node.op
        {
            tiles.remove(dst);
        }
    }
    tiles.retain(|b| written.contains(b));
    tiles
}

/// The bf16 a value was converted from.
pub fn widened(k: &Kernel, value: ValueId) -> Option<ValueId> {
    let def = k.value(value).def?;
    if let Op::Cast { x, .. } = &k.op(def).op
        && k.value(*x).dtype == DType::Bf16
    {
        return Some(*x);
    }
    None
}

/// Element `index` of an array of pairs.
pub fn nibble(base: &str, index: &Text) -> Text {
    Text::name(format!("(u8)({base}[({0}) / 2] >> ({0}) % 2 * 4 & 15)", index.s))
}

impl Emitter<'_> {
    /// The register tile a view looks at.
    pub fn register_tile(&self, view: ViewId) -> Option<BufferId> {
        match self.k.view(view).base {
            Base::Buffer(b) if self.k.buffer(b).space == Space::Frag => Some(b),
            Base::Buffer(_) | Base::Param(_) => None,
        }
    }

    /// True if a view is of global memory that nobody writes.
    pub fn read_only(&self, view: ViewId) -> bool {
        match self.k.view(view).base {
            Base::Param(p) => {
                matches!(self.k.param(p).kind, ParamKind::Tensor { access: Access::In, .. })
            }
            Base::Buffer(_) => false,
        }
    }

    /// True if a view's elements lie in pairs in a byte.
    pub fn packed(&mut self, op: OpId, view: ViewId) -> bool {
        if let Base::Buffer(b) = self.k.view(view).base
            && self.k.buffer(b).dtype == DType::E2m1
            && self.k.view(view).dtype != DType::E2m1
        {
            self.unsupported(op, "another view of an e2m1 tile", "make the tile of bytes, and view it as e2m1");
        }
        crate::pass::access::memory_bits(self.k, view) < 8
    }

    /// Name of a parameter, which the text uses: of a kernel with roles, others are left out of the signature.
    pub fn param(&mut self, p: ParamId) -> String {
        self.frame.used_params.insert(p);
        self.params[p.0 as usize].clone()
    }

    /// Short name of what a view looks at, for names of loaded values.
    pub fn base_name(&mut self, view: ViewId) -> String {
        match self.k.view(view).base {
            Base::Param(p) => self.param(p),
            Base::Buffer(b) => self.buffer(b),
        }
    }

    pub fn buffer(&self, b: BufferId) -> String {
        self.buffers.get(&b).cloned().unwrap_or_else(|| self.k.buffer(b).name.clone())
    }

    /// Memory element of an access.
    pub fn place(&mut self, view: ViewId, index: &[IxId]) -> Place {
        let v = self.k.view(view);
        let strides = strides(self.k, view);
        let ty = memory_type(v.dtype);
        let (name, constant, stored) = match v.base {
            Base::Param(p) => {
                let (constant, dtype) = match &self.k.param(p).kind {
                    ParamKind::Tensor { dtype, access, .. } => (*access == Access::In, *dtype),
                    ParamKind::Scalar { dtype, .. } => (true, *dtype),
                    ParamKind::Absent => (true, DType::U8),
                };
                (self.param(p), constant, dtype)
            }
            Base::Buffer(b) => (self.buffer(b), false, self.k.buffer(b).dtype),
        };
        let ty = if constant { format!("const {ty}") } else { ty.to_string() };
        let name = if stored == v.dtype { name } else { format!("(({ty}*){name})") };

        if let Some(place) = self.swizzled_place(view, index, &name) {
            return place;
        }
        let row = self.lookup(view, index);

        // Terms that are the same for all iterations go into a pointer in front of the loop.
        let mut parts: Vec<(bool, IxId, Option<Stride>)> = vec![];
        self.terms(v.offset, false, None, &mut parts);
        for (&i, &s) in index.iter().zip(&strides).skip(usize::from(row.is_some())) {
            self.terms(i, false, Some(s), &mut parts);
        }
        // Addresses of packed elements are divided by two at the end.
        let split = self.element.is_some() && matches!(v.base, Base::Param(_)) && v.dtype != DType::E2m1;
        let (mut fixed, mut moving) = (Text::number(0), Text::number(0));
        let mut number = 0i64;
        if let Some(r) = &row {
            moving = r.offset.clone();
        }
        for (negative, id, stride) in parts {
            let factor = match stride {
                None => Some(1),
                Some(Stride::Const(c)) => Some(c),
                Some(Stride::Index(s)) => self.k.ix_const(s),
            };
            if let (Some(c), Some(f)) = (self.k.ix_const(id), factor) {
                number += if negative { -c * f } else { c * f };
                continue;
            }
            let x = self.ix(id);
            let f = match stride {
                None => Text::number(1),
                Some(Stride::Const(c)) => Text::number(c),
                Some(Stride::Index(s)) => self.ix(s),
            };
            let term = Text::mul(&x, &f);
            let sum = if split && self.fixed_in_loop(id) { &mut fixed } else { &mut moving };
            *sum = if negative { Text::sub(sum, &term) } else { Text::add(sum, &term) };
        }
        if !fixed.is_zero() {
            fixed = Text::add(&fixed, &Text::number(number));
            let base = self.hoist(&name, &ty, &fixed);
            return Place { base, index: moving };
        }
        Place { base: name, index: Text::add(&moving, &Text::number(number)) }
    }

    /// Prints the lookup of a gathered view's row: from where on it lies, and whether it exists.
    fn lookup(&mut self, view: ViewId, index: &[IxId]) -> Option<Row> {
        let (k, v) = (self.k, self.k.view(view));
        let (gather, &at) = (v.gather?, index.first()?);
        let (extent, stride) = (*v.extents.first()?, self.ix(*v.strides.first()?));
        let table = k.view(gather.table());
        let ty = self.index_type();
        let i = self.ix(at);
        let (entry, limit) = match gather {
            Gather::Paged { page, pages, .. } => (self.quotient(at, &i, page, "/"), pages),
            Gather::Rows { count, .. } => (i.clone(), count),
        };
        // The view's own extent, then the table's, unless it is clear that they hold.
        let mut inside = if in_range(k, &self.ranges, at, extent) { None } else { Some(self.inside(at, extent)) };
        let paged = matches!(gather, Gather::Paged { .. });
        let page = if let Gather::Paged { page, .. } = gather { page as i64 } else { 1 };
        let slots = table.extents[0];
        let covered = match (k.ix_const(extent), k.ix_const(slots)) {
            (Some(e), Some(s)) => e <= s * page,
            _ => !paged && extent == slots,
        };
        let unsigned = if self.wide || self.has_data(at) { "u64" } else { "u32" };
        if !covered {
            let s = self.ix(slots);
            let c = Text::less(&Text::cast(unsigned, &entry), &Text::cast(unsigned, &s));
            inside = Some(inside.map_or(c.clone(), |a| Text::both(&a, &c)));
        }
        for &(i, e) in &table.guards {
            if !in_range(k, &self.ranges, i, e) {
                let c = self.inside(i, e);
                inside = Some(inside.map_or(c.clone(), |a| Text::both(&a, &c)));
            }
        }
        let name = self.base_name(gather.table());
        let name = match table.base {
            Base::Buffer(b) if k.buffer(b).dtype != table.dtype => format!("(({}*){name})", memory_type(table.dtype)),
            Base::Param(_) | Base::Buffer(_) => name,
        };
        let (offset, step) = (self.ix(table.offset), self.ix(table.strides[0]));
        let slot = Text::element(&name, &Text::add(&offset, &Text::mul(&entry, &step)));
        let word = if matches!(table.dtype, DType::I64 | DType::U32) { "i64" } else { "int" };
        let row = self.names.declare(if paged { "page" } else { "row" });
        match inside {
            Some(c) => self.line(format!("const {word} {row} = {} ? {} : -1;", c.s, slot.s)),
            None => self.line(format!("const {word} {row} = {};", slot.s)),
        }
        let end = self.ix(limit);
        let unsigned = if word == "i64" || self.wide { "u64" } else { "u32" };
        let exists = Text::less(&Text::cast(unsigned, &Text::name(row.as_str())), &Text::cast(unsigned, &end));
        let number = if word == ty { Text::name(row) } else { Text::cast(ty, &Text::name(row)) };
        let offset = match gather {
            Gather::Paged { page, page_stride, .. } => {
                let within = self.quotient(at, &i, page, "%");
                let s = self.ix(page_stride);
                Text::add(&Text::mul(&number, &s), &Text::mul(&within, &stride))
            }
            Gather::Rows { .. } => Text::mul(&number, &stride),
        };
        let found = Row { offset, exists };
        self.gathered = Some((view, at, found.clone()));
        Some(found)
    }

    /// Splits an index into what is added up in it.
    pub fn terms(&self, id: IxId, negative: bool, stride: Option<Stride>, out: &mut Vec<(bool, IxId, Option<Stride>)>) {
        match self.k.ix_expr(id) {
            IxExpr::Add(a, b) => {
                self.terms(a, negative, stride, out);
                self.terms(b, negative, stride, out);
            }
            IxExpr::Sub(a, b) => {
                self.terms(a, negative, stride, out);
                self.terms(b, !negative, stride, out);
            }
            IxExpr::Const(_)
            | IxExpr::Sym(_)
            | IxExpr::Var(_)
            | IxExpr::Data(_)
            | IxExpr::Mul(..)
            | IxExpr::Div(..)
            | IxExpr::Mod(..)
            | IxExpr::Min(..)
            | IxExpr::Max(..) => out.push((negative, id, stride)),
        }
    }

    /// True if an index has one value during the element loop.
    fn fixed_in_loop(&self, id: IxId) -> bool {
        let Some(e) = &self.element else { return false };
        match self.k.ix_expr(id) {
            IxExpr::Const(_) | IxExpr::Sym(_) => true,
            IxExpr::Data(_) => false,
            IxExpr::Var(v) => !e.vars.contains(&v) && !e.inside.contains(&v),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => self.fixed_in_loop(a) && self.fixed_in_loop(b),
        }
    }

    /// A pointer to `base + offset`, declared in front of the loop.
    fn hoist(&mut self, base: &str, ty: &str, offset: &Text) -> String {
        let key = format!("{base} {ty} {}", offset.s);
        let Some(e) = &self.element else { return base.to_string() };
        if let Some(name) = e.pointers.get(&key) {
            return name.clone();
        }
        let (at, scope, depth) = (e.at, e.scope, e.depth);
        let clean: String = base.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let wish = if base.starts_with('(') { "at".to_string() } else { format!("{clean}_at") };
        let name = self.names.declare_in(scope, &wish);
        let line = format!("{}{ty}* const {name} = {};\n", "    ".repeat(depth), Text::offset(base, offset));
        self.out.insert_str(at, &line);
        if let Some(e) = &mut self.element {
            e.at += line.len();
            e.pointers.insert(key, name.clone());
        }
        name
    }

    /// What has to hold for an access to exist, if anything is left to check.
    pub fn bounds(&mut self, op: OpId, view: ViewId, index: &[IxId]) -> Option<Text> {
        let v = self.k.view(view);
        let pairs: Vec<(IxId, IxId)> =
            index.iter().copied().zip(v.extents.iter().copied()).chain(v.guards.iter().copied()).collect();
        let proven = self.facts.guards.get(&op).cloned();
        let row = match self.gathered.take() {
            Some((v, i, row)) if v == view && Some(&i) == index.first() => Some(row),
            _ => self.lookup(view, index),
        };
        self.gathered = None;
        let mut all: Option<Text> = row.map(|r| r.exists);
        for (axis, (i, e)) in pairs.into_iter().enumerate() {
            // The lookup has checked the index of a row.
            let known = axis == 0 && v.gather.is_some() && !index.is_empty()
                || proven.as_ref().is_some_and(|p| p.get(axis) == Some(&false));
            if known || crate::pass::access::in_range(self.k, &self.ranges, i, e) {
                continue;
            }
            let t = self.inside(i, e);
            all = Some(all.map_or(t.clone(), |a| Text::both(&a, &t)));
        }
        all
    }

    /// An element in a register: of this iteration, or at a constant index of a tile that every thread has whole.
    pub fn register(&mut self, tile: BufferId, view: ViewId, index: &[IxId]) -> Text {
        let name = self.buffer(tile);
        let whole = self
            .k
            .buffer(tile)
            .distribution
            .as_ref()
            .is_some_and(|d| d.split_axis == self.k.buffer(tile).extents.len() && d.lanes == d.threads);
        if let (true, Some(c)) = (whole, constant_index(self.k, view, index)) {
            return Text::element(&name, &Text::number(c));
        }
        let elements: usize = self.k.buffer(tile).extents.iter().product();
        let (registers, lanes) = match &self.k.buffer(tile).distribution {
            Some(d) => (d.registers(&self.k.buffer(tile).extents), d.lanes),
            None => (1, 1),
        };
        let Some(e) = &self.element else { return Text::element(&name, &Text::number(0)) };
        let count: usize = e.extents.iter().product();
        let ratio = count.checked_div(elements).unwrap_or(1);
        let rows = self.k.buffer(tile).distribution.as_ref().is_some_and(|d| d.rows_of().is_some());
        let index = match rows && ratio > 1 {
            true => e.row_register(),
            false => e.register(ratio, registers, lanes),
        };
        Text::element(&name, &index)
    }

    /// The value of a register of a tile.
    pub fn held(&mut self, tile: BufferId, x: Text) -> Text {
        if !self.narrow.contains(&tile) {
            return x;
        }
        self.need(Snippet::Bf16);
        // The first reader may convert as it likes; later ones must not find its results still alive.
        let first = *self.first_read.entry(tile).or_insert(self.phase);
        Text::call(if first == self.phase { "bf16_to_f32" } else { "widen" }, &[&x])
    }

    /// A value read from memory or a register; zero or `other` outside.
    pub fn load(&mut self, op: OpId, view: ViewId, index: &[IxId], other: Option<ValueId>) -> Text {
        if let Some(tile) = self.register_tile(view) {
            let x = self.register(tile, view, index);
            return self.held(tile, x);
        }
        let d = self.k.view(view).dtype;
        if self.packed(op, view) {
            let place = self.place(view, index);
            let x = nibble(&place.base, &place.index);
            let Some(c) = self.bounds(op, view, index) else { return x };
            let zero = other.map_or(Text::number(0), |v| self.val(v));
            return Text::choose(&c, &x, &zero);
        }
        let place = self.place(view, index);
        let mut x = Text::element(&place.base, &place.index);
        if d == DType::Bool {
            x = super::expr::compare_text(crate::ir::CmpOp::Ne, &x, &Text::number(0));
        }
        let Some(c) = self.bounds(op, view, index) else { return x };
        let zero = match other {
            Some(v) => self.val(v),
            None => literal(Literal { dtype: d, bits: 0 }),
        };
        Text::choose(&c, &x, &zero)
    }

    /// Writes a value; dropped outside.
    pub fn store(&mut self, op: OpId, view: ViewId, index: &[IxId], value: &Text) {
        if let Some(tile) = self.register_tile(view) {
            let place = self.register(tile, view, index);
            self.line(format!("{} = {};", place.s, value.s));
            return;
        }
        if self.packed(op, view) {
            let help = "let the innermost loop write neighbouring elements of a row whose offset is even";
            self.unsupported(op, "a store of half a byte", help);
            return;
        }
        let place = self.place(view, index);
        let target = Text::element(&place.base, &place.index);
        let condition = self.bounds(op, view, index);
        let line = format!("{} = {};", target.s, value.s);
        self.guarded(condition, &line);
    }

    /// Prints a statement under a condition and, at block level or in a replicated loop, for one thread only.
    pub fn guarded(&mut self, condition: Option<Text>, line: &str) {
        let owner = match &self.element {
            Some(e) => e.owner.clone(),
            None if self.role.is_some_and(|r| r.one_thread) => None,
            None => {
                let tid = self.tid();
                Some(super::expr::compare_text(crate::ir::CmpOp::Eq, &Text::name(tid), &Text::number(0)))
            }
        };
        let all = match (owner, condition) {
            (Some(a), Some(b)) => Some(Text::both(&a, &b)),
            (a, b) => a.or(b),
        };
        match all {
            Some(c) => self.line(format!("if ({}) {line}", c.s)),
            None => self.line(line),
        }
    }
}
