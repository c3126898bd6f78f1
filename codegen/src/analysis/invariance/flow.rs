//! The taint analysis: abstract values, and what each op does to them. Rows are named by [`super::rows`].
//!
//! One pass over the ops in program order keeps, for each value, which row's data it holds and which sources reached it;
//! tiles and variables are joined over all their writes. Passes repeat until nothing changes, then findings are taken.

mod ops;

use super::rows::{Rows, TensorRow, TileRows};
use super::{Path, Sink, Source, Verdict};
use crate::analysis::Ranges;
use crate::analysis::carried::carried;
use crate::analysis::poly::{Atom, Poly};
use crate::ir::{
    Access, Base, BlockId, BufferId, CmpOp, GemmScale, IfResult, IxExpr, IxId, IxVarId, IxVarKind, Kernel, Op, OpId,
    ParamKind, Region, SymId, ValueId, View, ViewId,
};
use std::collections::{BTreeMap, HashMap};

/// Passes after which the analysis gives up; each one moves facts at least one variable further.
const PASSES: usize = 12;
/// Ops of a path that are kept.
const PATH: usize = 6;

/// One source that reached a value.
#[derive(Clone, Debug)]
struct Cause {
    what: String,
    path: Vec<OpId>,
}

/// A source, whether it only decided if something happens, and the op it entered at.
type Key = (Source, bool, u32);

/// What is known of a value.
#[derive(Clone, Debug, Default)]
struct Abs {
    /// The row whose data it holds; `None` if it is the same for all rows.
    row: Option<Poly>,
    causes: BTreeMap<Key, Cause>,
}

impl Abs {
    fn same(&self, other: &Abs) -> bool {
        self.row == other.row && self.causes.keys().eq(other.causes.keys())
    }
}

/// What is known of a tile or variable.
#[derive(Clone, Debug, Default)]
struct Stored {
    rows: Option<TileRows>,
    causes: BTreeMap<Key, Cause>,
    /// Its elements may differ although no row is named.
    varies: bool,
}

pub(super) fn follow(k: &Kernel, ranges: &Ranges, sym: SymId) -> Verdict {
    let mut f = Flow {
        k,
        rows: Rows::new(k, ranges, sym),
        values: vec![Abs::default(); k.values.len()],
        vars: vec![Abs::default(); k.ix_vars.len()],
        stored: vec![Stored::default(); k.buffers.len()],
        memo: HashMap::new(),
        changed: true,
        taking: false,
        verdict: Verdict::default(),
        reaches_output: false,
    };
    let mut passes = 0;
    while f.changed && passes < PASSES {
        let before = f.rows.positions.len();
        f.pass();
        f.changed |= f.rows.positions.len() != before;
        passes += 1;
    }
    let settled = !f.changed;
    f.taking = true;
    f.pass();
    let at = k.block(k.body).ops.last().copied().unwrap_or(OpId(0));
    if !f.reaches_output || !settled {
        let dim = &k.syms[sym.0 as usize].name;
        let what =
            if settled { format!("no output has an axis `{dim}`") } else { "its variables are too entangled".into() };
        let sink = Sink::Output("nothing".into());
        f.verdict.unproven.push(Path { source: Source::Unclear, sink, at, through: vec![], what });
    }
    f.verdict
}

struct Flow<'a> {
    k: &'a Kernel,
    rows: Rows<'a>,
    values: Vec<Abs>,
    /// Of variables of kind `Data`.
    vars: Vec<Abs>,
    stored: Vec<Stored>,
    memo: HashMap<IxId, Abs>,
    changed: bool,
    /// Findings are taken in the last pass only.
    taking: bool,
    verdict: Verdict,
    reaches_output: bool,
}

impl Flow<'_> {
    fn pass(&mut self) {
        self.changed = false;
        self.memo.clear();
        self.block(self.k.body, &Abs::default());
    }

    fn dim(&self) -> String {
        self.k.syms[self.rows.sym.0 as usize].name.clone()
    }

    fn cause(&self, source: Source, at: OpId, what: String) -> Abs {
        let key = (source, false, at.0);
        Abs { row: None, causes: [(key, Cause { what, path: vec![at] })].into() }
    }

    /// Both together, seen at op `at`.
    fn join(&self, a: &Abs, b: &Abs, at: OpId) -> Abs {
        let mut out = a.clone();
        for (key, cause) in &b.causes {
            out.causes.entry(*key).or_insert_with(|| cause.clone());
        }
        match (&a.row, &b.row) {
            (Some(p), Some(q)) if p != q => {
                let more = if self.rows.differ(p, q) {
                    self.cause(Source::OtherRows, at, "data of two rows meets".into())
                } else {
                    self.cause(Source::Unclear, at, "data of rows meets that may not be the same".into())
                };
                out.causes.extend(more.causes);
            }
            (None, Some(_)) => out.row = b.row.clone(),
            _ => {}
        }
        out
    }

    fn join_all(&self, parts: &[Abs], at: OpId) -> Abs {
        parts.iter().fold(Abs::default(), |sum, p| self.join(&sum, p, at))
    }

    /// The same, one op further.
    fn step(mut a: Abs, at: OpId) -> Abs {
        for c in a.causes.values_mut() {
            if c.path.len() < PATH && !c.path.contains(&at) {
                c.path.push(at);
            }
        }
        a
    }

    /// What it means for things that happen or not as `a` decides.
    fn implied(a: &Abs) -> Abs {
        let causes = a.causes.iter().map(|(k, c)| ((k.0, true, k.2), c.clone())).collect();
        Abs { row: a.row.clone(), causes }
    }

    fn define(&mut self, v: ValueId, a: Abs, at: OpId) {
        let a = Self::step(a, at);
        let slot = &mut self.values[v.0 as usize];
        if !slot.same(&a) {
            self.changed = true;
            *slot = a;
        }
    }

    fn define_ix(&mut self, v: IxVarId, a: Abs, at: OpId) {
        let a = Self::step(a, at);
        let slot = &mut self.vars[v.0 as usize];
        if !slot.same(&a) {
            self.changed = true;
            *slot = a;
            self.memo.clear();
        }
    }

    fn value(&self, v: ValueId) -> Abs {
        self.values[v.0 as usize].clone()
    }

    /// An index as data.
    fn ix(&mut self, i: IxId, at: OpId) -> Abs {
        if let Some(a) = self.memo.get(&i) {
            return a.clone();
        }
        let out = match self.k.ix_expr(i) {
            IxExpr::Const(_) => Abs::default(),
            IxExpr::Sym(s) if s == self.rows.sym => {
                self.cause(Source::Extent, at, format!("the extent of `{}`", self.dim()))
            }
            IxExpr::Sym(_) => Abs::default(),
            IxExpr::Data(v) => self.value(v),
            IxExpr::Var(v) => self.index_variable(v, at),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => {
                let (a, b) = (self.ix(a, at), self.ix(b, at));
                self.join(&a, &b, at)
            }
        };
        self.memo.insert(i, out.clone());
        out
    }

    fn index_variable(&mut self, v: IxVarId, at: OpId) -> Abs {
        let var = self.k.ix_var(v);
        if var.kind == IxVarKind::Data {
            return self.vars[v.0 as usize].clone();
        }
        let stands = self.rows.ranges.var_atom(v).is_some_and(|a| self.rows.positions.contains(&a));
        // A block index whose grid follows the dimension tells rows apart even where none is named by it.
        let counts = match var.kind {
            IxVarKind::Block(axis) => self.k.grid.get(axis as usize).is_some_and(|&g| self.rows.names_dimension(g)),
            IxVarKind::Loop | IxVarKind::Element | IxVarKind::Data => false,
        };
        if stands || counts {
            return self.cause(Source::Position, at, format!("`{}`, the position along `{}`", var.name, self.dim()));
        }
        Abs::default()
    }

    /// A test that a row exists, which holds for every row there is.
    fn tests_row(&mut self, op: CmpOp, a: IxId, b: IxId) -> bool {
        let (row, end) = match op {
            CmpOp::Lt | CmpOp::Ge => (a, b),
            CmpOp::Gt | CmpOp::Le => (b, a),
            CmpOp::Eq | CmpOp::Ne => return false,
        };
        let Some(p) = self.rows.poly(row) else { return false };
        self.rows.is_extent(end) && p.atoms().iter().any(|a| self.rows.positions.contains(a))
    }

    /// What the indices of an access add to the value, without those axes (`own`) that only name the row. `by_name`
    /// tensors have no such axis: there a position is a place the analysis cannot judge.
    fn axes(&mut self, v: &View, index: &[Option<IxId>], own: &[bool], row: Option<&Poly>, at: OpId) -> Abs {
        let mut out = Abs::default();
        for (k, i) in index.iter().enumerate() {
            let Some(i) = *i else { continue };
            let mut a = self.ix(i, at);
            if own[k] {
                a.causes.retain(|key, _| !matches!(key.0, Source::Position | Source::Extent));
            }
            out = self.join(&out, &a, at);
        }
        for &(i, extent) in &v.guards {
            if row.is_some() && self.rows.is_extent(extent) {
                continue;
            }
            let (a, b) = (self.ix(i, at), self.ix(extent, at));
            let both = self.join(&a, &b, at);
            out = self.join(&out, &both, at);
        }
        out
    }

    fn polys(&self, index: &[Option<IxId>], coordinates: &[Poly]) -> Vec<Option<Poly>> {
        index
            .iter()
            .enumerate()
            .map(|(k, i)| {
                let start = match i {
                    Some(i) => self.rows.poly(*i)?,
                    None => Poly::default(),
                };
                match coordinates.get(k) {
                    Some(c) => start.add(c),
                    None => Some(start),
                }
            })
            .collect()
    }

    fn read(&mut self, view: ViewId, index: &[Option<IxId>], coordinates: &[Poly], at: OpId) -> Abs {
        let v = self.k.view(view).clone();
        let polys = self.polys(index, coordinates);
        let mut out = match v.base {
            Base::Param(p) => {
                let name = &self.k.param(p).name;
                let (row, own) = self.rows.tensor(&v, &polys);
                match row {
                    TensorRow::At(row) => {
                        self.rows.positions_of(&row);
                        let mut a = self.axes(&v, index, &own, Some(&row), at);
                        a = self.join(&a, &Abs { row: Some(row), causes: BTreeMap::new() }, at);
                        a
                    }
                    TensorRow::None => {
                        let mut a = self.axes(&v, index, &own, None, at);
                        if let Some(offset) = self.rows.poly(v.offset)
                            && self.mentions_position(&offset)
                        {
                            let what = format!("`{name}` has no axis `{}` but is read where the row says", self.dim());
                            a = self.join(&a, &self.cause(Source::Unclear, at, what), at);
                        }
                        self.unclear_positions(a, name, at)
                    }
                    TensorRow::Unclear => {
                        let what = format!("rows of `{name}` are kept in a form that is not followed");
                        self.cause(Source::Unclear, at, what)
                    }
                }
            }
            Base::Buffer(b) => self.read_tile(&v, b, index, &polys, at),
        };
        if let Some(g) = v.gather {
            let table = self.k.view(g.table()).clone();
            let entry = self.read(g.table(), &vec![None; table.extents.len()], &[], at);
            out = self.join(&out, &entry, at);
        }
        out
    }

    /// Positions become places the analysis cannot judge.
    fn unclear_positions(&self, mut a: Abs, name: &str, at: OpId) -> Abs {
        let before = a.causes.len();
        a.causes.retain(|key, _| key.0 != Source::Position);
        if a.causes.len() < before {
            let what = format!("`{name}` has no axis `{}` but is read where the row says", self.dim());
            a.causes.extend(self.cause(Source::Unclear, at, what).causes);
        }
        a
    }

    fn mentions_position(&self, p: &Poly) -> bool {
        p.atoms().iter().any(|a| self.rows.positions.contains(a))
    }

    fn read_tile(&mut self, v: &View, b: BufferId, index: &[Option<IxId>], polys: &[Option<Poly>], at: OpId) -> Abs {
        let stored = self.stored[b.0 as usize].clone();
        let name = self.k.buffer(b).name.clone();
        let own = Abs { row: None, causes: stored.causes };
        let (row, axes) = match &stored.rows {
            None => {
                let a = self.axes(v, index, &vec![false; index.len()], None, at);
                let placed = polys.iter().flatten().any(|p| self.mentions_position(p));
                let mut a = self.unclear_positions(a, &name, at);
                if !stored.varies {
                    a.causes.retain(|k, _| k.0 != Source::Unclear);
                } else if placed {
                    let what = format!("`{name}` holds no rows but is read where the row says");
                    a.causes.extend(self.cause(Source::Unclear, at, what).causes);
                }
                return self.join(&own, &a, at);
            }
            Some(rows) => match self.rows.tile(v, rows, polys) {
                Some((row, axes)) => (Some(row), axes),
                None => {
                    let what = format!("which rows are read of `{name}` is not followed");
                    return self.join(&own, &self.cause(Source::Unclear, at, what), at);
                }
            },
        };
        let a = self.axes(v, index, &axes, row.as_ref(), at);
        let held = self.join(&own, &Abs { row, causes: BTreeMap::new() }, at);
        self.join(&held, &a, at)
    }

    fn write(&mut self, view: ViewId, index: &[Option<IxId>], coordinates: &[Poly], value: &Abs, ctx: &Abs, at: OpId) {
        let v = self.k.view(view).clone();
        let polys = self.polys(index, coordinates);
        match v.base {
            Base::Param(p) => self.write_output(&v, p.0, index, &polys, &self.join(value, ctx, at), at),
            Base::Buffer(b) => {
                let mut a = self.axes(&v, index, &vec![false; index.len()], None, at);
                a.causes.retain(|key, _| key.0 != Source::Position);
                let a = self.join_all(&[value.clone(), ctx.clone(), a], at);
                let rows = match &a.row {
                    None => Ok(None),
                    Some(p) => self.rows.put(&v, &polys, p).map(Some).ok_or(()),
                };
                self.store(b, rows, a.causes, true, at);
            }
        }
    }

    fn store(
        &mut self,
        b: BufferId,
        rows: Result<Option<TileRows>, ()>,
        causes: BTreeMap<Key, Cause>,
        varies: bool,
        at: OpId,
    ) {
        let mut lost = None;
        let name = self.k.buffer(b).name.clone();
        let old = self.stored[b.0 as usize].rows.clone();
        let rows = match (old, rows) {
            (old, Ok(None)) => old,
            (None, Ok(new)) => new,
            (Some(old), Ok(Some(new))) if old == new => Some(old),
            (Some(old), Ok(Some(_))) => {
                lost = Some(format!("`{name}` holds different rows at different times"));
                Some(old)
            }
            (old, Err(())) => {
                lost = Some(format!("which rows `{name}` holds is not followed"));
                old
            }
        };
        let causes = Self::step(Abs { row: None, causes }, at).causes;
        let lost = lost.map(|what| self.cause(Source::Unclear, at, what).causes).unwrap_or_default();
        let slot = &mut self.stored[b.0 as usize];
        let mut changed = slot.rows != rows || varies && !slot.varies;
        slot.rows = rows;
        slot.varies |= varies;
        for (key, cause) in causes.into_iter().chain(lost) {
            if let std::collections::btree_map::Entry::Vacant(e) = slot.causes.entry(key) {
                e.insert(cause);
                changed = true;
            }
        }
        self.changed |= changed;
    }

    fn write_output(
        &mut self,
        v: &View,
        p: u32,
        index: &[Option<IxId>],
        polys: &[Option<Poly>],
        value: &Abs,
        at: OpId,
    ) {
        let param = &self.k.params[p as usize];
        let name = param.name.clone();
        let (row, own) = self.rows.tensor(v, polys);
        let mut all = value.clone();
        match row {
            TensorRow::At(row) => {
                self.reaches_output = true;
                self.rows.positions_of(&row);
                let axes = self.axes(v, index, &own, Some(&row), at);
                let here = Abs { row: Some(row), causes: BTreeMap::new() };
                all = self.join_all(&[here, all, axes], at);
            }
            TensorRow::None | TensorRow::Unclear => {
                let what = format!("output `{name}` has no axis `{}`", self.dim());
                all.causes.extend(self.cause(Source::Unclear, at, what).causes);
            }
        }
        if matches!(&param.kind, ParamKind::Tensor { access: Access::In, .. }) {
            return;
        }
        self.report(&all, &Sink::Output(name), at);
    }

    fn report(&mut self, a: &Abs, sink: &Sink, at: OpId) {
        if !self.taking {
            return;
        }
        for (&(source, implied, _), cause) in &a.causes {
            let path = Path { source, sink: sink.clone(), at, through: cause.path.clone(), what: cause.what.clone() };
            let to = match source {
                Source::Unclear => &mut self.verdict.unproven,
                Source::Extent | Source::Position | Source::OtherRows if implied => &mut self.verdict.unproven,
                Source::Extent | Source::Position | Source::OtherRows => &mut self.verdict.violations,
            };
            if !to.iter().any(|p| p.source == path.source && p.at == path.at) {
                to.push(path);
            }
        }
    }

    fn coordinates(&mut self, op: OpId, extents: &[Option<usize>]) -> Vec<Poly> {
        let coordinate = |(k, e): (usize, &Option<usize>)| match e {
            Some(1) => Poly::default(),
            _ => Poly::atom(self.rows.coordinate(op.0, k as u8, *e)),
        };
        extents.iter().enumerate().map(coordinate).collect()
    }

    fn view_extents(&self, v: ViewId) -> Vec<Option<usize>> {
        self.k.view(v).extents.iter().map(|&e| self.k.ix_const(e).map(|c| c as usize)).collect()
    }

    /// The value gathered over these coordinates: rows must not change with them.
    fn gathered(&self, a: Abs, over: &[Atom], at: OpId, what: &str) -> Abs {
        let mixes = a.row.as_ref().is_some_and(|p| over.iter().any(|&c| self.rows.depends(p, c)));
        if !mixes {
            return a;
        }
        let own = Abs { row: None, causes: a.causes };
        self.join(&own, &self.cause(Source::OtherRows, at, format!("{what} over rows")), at)
    }

    fn element_atoms(&self, vars: &[IxVarId]) -> Vec<Atom> {
        vars.iter().filter_map(|&v| self.rows.ranges.var_atom(v)).collect()
    }
}
