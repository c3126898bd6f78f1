//! Reads names of values, variables, buffers and views, and the lines that introduce them.

use super::{Parsed, Parser, Tok, stem};
use crate::ir::print::SPACES;
use crate::ir::*;

impl Parser {
    // --- names ---

    pub(super) fn value(&mut self) -> Parsed<ValueId> {
        match *self.peek() {
            Tok::Value(n) => match self.values.get(&n) {
                Some(&v) => {
                    self.take();
                    Ok(v)
                }
                None => self.fail(format!("value `%{n}` is not defined above")),
            },
            _ => self.expected("a value"),
        }
    }
    /// Reads `%n` as a definition.
    pub(super) fn new_value(&mut self, dtype: DType, span: SpanId) -> Parsed<ValueId> {
        match *self.peek() {
            Tok::Value(n) => {
                self.take();
                Ok(self.make_value(n, dtype, span))
            }
            _ => self.expected("a value"),
        }
    }
    pub(super) fn make_value(&mut self, n: u32, dtype: DType, span: SpanId) -> ValueId {
        self.k.values.push(Value { dtype, def: None, span });
        let v = ValueId(self.k.values.len() as u32 - 1);
        self.values.insert(n, v);
        v
    }
    pub(super) fn buffer(&mut self) -> Parsed<BufferId> {
        match self.peek().clone() {
            Tok::Buffer(n) => match self.buffers.get(&n) {
                Some(&b) => {
                    self.take();
                    Ok(b)
                }
                None => self.fail(format!("buffer `@{n}` is not declared above")),
            },
            _ => self.expected("a buffer"),
        }
    }
    pub(super) fn view(&mut self) -> Parsed<ViewId> {
        match self.peek().clone() {
            Tok::View(n) => match self.views.get(&n) {
                Some(&v) => {
                    self.take();
                    Ok(v)
                }
                None => self.fail(format!("view `${n}` is not declared above")),
            },
            _ => self.expected("a view"),
        }
    }
    /// A variable's name and, in brackets, bounds that are not the usual ones.
    #[allow(clippy::type_complexity, reason = "name and optional bounds, used in this file only")]
    pub(super) fn var_name(&mut self) -> Parsed<(String, Option<(Option<IxId>, Option<IxId>)>, SpanId)> {
        let span = self.span();
        let name = self.name("an index name")?;
        if !self.eat("[") {
            return Ok((name, None, span));
        }
        let lo = if self.eat_word("_") { None } else { Some(self.index()?) };
        self.sign(",")?;
        let hi = if self.eat_word("_") { None } else { Some(self.index()?) };
        self.sign("]")?;
        Ok((name, Some((lo, hi)), span))
    }
    #[allow(clippy::type_complexity, reason = "name and optional bounds, used in this file only")]
    pub(super) fn new_var(
        &mut self,
        (name, bounds, span): (String, Option<(Option<IxId>, Option<IxId>)>, SpanId),
        kind: IxVarKind,
        lo: Option<IxId>,
        hi: Option<(IxId, i64)>,
    ) -> Parsed<IxVarId> {
        let (lo, hi) = match bounds {
            Some(b) => b,
            None => {
                let hi = hi.map(|(e, d)| {
                    let d = self.k.ix_const_id(d);
                    self.k.ix_add(e, d)
                });
                (lo, hi)
            }
        };
        self.k.ix_vars.push(IxVar { name: stem(&name), kind, lo, hi, span });
        let v = IxVarId(self.k.ix_vars.len() as u32 - 1);
        self.vars.insert(name, v);
        Ok(v)
    }

    pub(super) fn new_buffer(&mut self, name: String, buffer: Buffer) -> BufferId {
        self.k.buffers.push(buffer);
        let b = BufferId(self.k.buffers.len() as u32 - 1);
        self.buffers.insert(name, b);
        b
    }

    pub(super) fn buffer_type(&mut self, name: &str, span: SpanId) -> Parsed<Buffer> {
        let Tok::Word(w) = self.peek().clone() else { return self.expected("a memory space") };
        let Some(&(space, _)) = SPACES.iter().find(|s| s.1 == w) else { return self.expected("a memory space") };
        self.take();
        let index = self.eat_word("index");
        let dtype = self.dtype()?;
        let extents = self.counts()?;
        let distribution = self.distribution()?;
        let memory = if self.eat_word("memory") {
            self.sign("(")?;
            self.word("strides")?;
            let strides = self.counts()?;
            let swizzle = if self.eat_word("swizzle") {
                Some((self.count()? as u32, self.count()? as u32, self.count()? as u32))
            } else {
                None
            };
            let panel = if self.eat_word("panel") { Some(self.count()?) } else { None };
            self.word("offset")?;
            let offset_bytes = self.count()?;
            self.sign(")")?;
            Some(MemoryLayout { strides, swizzle, panel, offset_bytes })
        } else {
            None
        };
        let role = if self.eat_word("role") { Some(RoleId(self.count()? as u32)) } else { None };
        Ok(Buffer { name: stem(name), dtype, index, extents, space, distribution, memory, role, span })
    }

    pub(super) fn buffer_line(&mut self) -> Parsed<()> {
        self.word("buffer")?;
        let span = self.span();
        let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a buffer") };
        self.take();
        self.sign(":")?;
        let b = self.buffer_type(&name, span)?;
        self.new_buffer(name, b);
        Ok(())
    }

    pub(super) fn distribution(&mut self) -> Parsed<Option<Distribution>> {
        if !self.eat_word("spread_over") {
            return Ok(None);
        }
        self.sign("(")?;
        self.word("axis")?;
        let split_axis = self.count()?;
        self.word("vec")?;
        let vec = self.count()?;
        self.word("lanes")?;
        let lanes = self.count()?;
        self.word("threads")?;
        let threads = self.count()?;
        let mut fragment = None;
        if self.eat_word("warps") {
            let warps = [self.count()?, self.count()?];
            self.word("atoms")?;
            let atoms = [self.count()?, self.count()?];
            fragment = Some(Fragment { warps, atoms, interleaved: self.eat_word("interleaved") });
        }
        self.sign(")")?;
        Ok(Some(Distribution { split_axis, vec, lanes, threads, fragment }))
    }

    pub(super) fn order(&mut self) -> Parsed<Option<Order>> {
        if !self.eat_word("order") {
            return Ok(None);
        }
        self.sign("(")?;
        self.word("lanes")?;
        let lanes = self.count()?;
        self.word("per_lane")?;
        let per_lane = self.count()?;
        self.sign(")")?;
        Ok(Some(Order { lanes, per_lane, tree: Tree::AdjacentPairs }))
    }

    pub(super) fn view_line(&mut self) -> Parsed<()> {
        let span = self.span();
        self.word("view")?;
        let Tok::View(name) = self.peek().clone() else { return self.expected("a view") };
        self.take();
        self.sign("=")?;
        let base = match self.peek().clone() {
            Tok::Buffer(_) => Base::Buffer(self.buffer()?),
            Tok::Word(w) => match self.params.get(&w) {
                Some(&p) => {
                    self.take();
                    Base::Param(p)
                }
                None => return self.fail(format!("no parameter is named `{w}`")),
            },
            _ => return self.expected("a parameter or buffer"),
        };
        self.sign(":")?;
        let dtype = self.dtype()?;
        let extents = self.indices()?;
        self.word("strides")?;
        let strides = self.indices()?;
        let offset = if self.eat_word("offset") { self.index()? } else { self.k.ix_const_id(0) };
        let mut guards = vec![];
        if self.eat_word("guards") {
            self.sign("[")?;
            while !self.eat("]") {
                let i = self.index()?;
                self.sign("<")?;
                guards.push((i, self.index()?));
                if !self.is("]") {
                    self.sign(",")?;
                }
            }
        }
        let gather = if self.eat_word("gather") { Some(self.gather()?) } else { None };
        self.k.views.push(View { base, dtype, extents, strides, offset, guards, gather, span });
        self.views.insert(name, ViewId(self.k.views.len() as u32 - 1));
        Ok(())
    }

    pub(super) fn gather(&mut self) -> Parsed<Gather> {
        let paged = self.eat_word("paged");
        if !paged && !self.eat_word("rows") {
            return self.expected("`paged` or `rows`");
        }
        self.sign("(")?;
        let table = self.view()?;
        self.sign(",")?;
        let gather = if paged {
            self.word("page")?;
            let page = self.count()?;
            self.sign(",")?;
            self.word("pages")?;
            let pages = self.index()?;
            self.sign(",")?;
            self.word("stride")?;
            Gather::Paged { table, page, pages, page_stride: self.index()? }
        } else {
            self.word("count")?;
            Gather::Rows { rows: table, count: self.index()? }
        };
        self.sign(")")?;
        Ok(gather)
    }
}
