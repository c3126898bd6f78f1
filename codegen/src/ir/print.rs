//! The text form of a kernel. `parse` reads it back; together they round-trip.
//!
//! The text is canonical: names and numbers are given in the order of first use, and what nothing uses is left out, so
//! equal programs have equal text however their arenas are numbered. Index names share one namespace, buffers carry `@`,
//! views `$`, values `%`. A name that is taken gets a suffix `.1`, `.2`, .. . Facts that follow from the op (a loop
//! variable lies in `lo..hi`) are printed only where they differ.

mod sched;

use super::*;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Text without source positions.
pub fn text(kernel: &Kernel) -> String {
    Printer::new(kernel, false).run()
}

/// Text with a comment `// file:line:column` behind each op; `parse` ignores comments.
pub fn text_with_positions(kernel: &Kernel) -> String {
    Printer::new(kernel, true).run()
}

/// Words that cannot name an index, because expressions use them.
pub(crate) const RESERVED: [&str; 4] = ["min", "max", "data", "_"];

/// Words of a memory space in text.
pub(crate) const SPACES: [(Space, &str); 10] = [
    (Space::Shared, "shared"),
    (Space::Frag, "frag"),
    (Space::Var, "var"),
    (Space::Tmem, "tmem"),
    (Space::L1, "l1"),
    (Space::L0a, "l0a"),
    (Space::L0b, "l0b"),
    (Space::L0c, "l0c"),
    (Space::Ub, "ub"),
    (Space::Workspace, "workspace"),
];

/// Gives out unique names.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    /// Index names must not look like the functions of expressions.
    reserved: bool,
}

impl Names {
    fn give(&mut self, wanted: &str) -> String {
        let mut base: String =
            wanted.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' }).collect();
        // Dots separate letters only: `x.1` is how a second `x` prints.
        let parts: Vec<&str> = base.split('.').collect();
        if parts.iter().any(|p| p.is_empty() || p.starts_with(|c: char| c.is_ascii_digit())) {
            base = base.replace('.', "_");
        }
        if base.is_empty()
            || base.starts_with(|c: char| c.is_ascii_digit())
            || (self.reserved && RESERVED.contains(&base.as_str()))
        {
            base.insert(0, 'n');
        }
        let mut name = base.clone();
        let mut n = 0;
        while !self.taken.insert(name.clone()) {
            n += 1;
            name = format!("{base}.{n}");
        }
        name
    }
}

struct Printer {
    kernel: Kernel,
    positions: bool,
    out: String,
    depth: usize,
    index_names: Names,
    buffer_names: Names,
    view_names: Names,
    param_names: Vec<String>,
    syms: Vec<String>,
    vars: HashMap<IxVarId, String>,
    buffers: HashMap<BufferId, String>,
    views: HashMap<ViewId, String>,
    values: HashMap<ValueId, usize>,
}

impl Printer {
    fn new(kernel: &Kernel, positions: bool) -> Self {
        Printer {
            kernel: kernel.clone(),
            positions,
            out: String::new(),
            depth: 0,
            index_names: Names { reserved: true, ..Names::default() },
            buffer_names: Names::default(),
            view_names: Names::default(),
            param_names: vec![],
            syms: vec![],
            vars: HashMap::new(),
            buffers: HashMap::new(),
            views: HashMap::new(),
            values: HashMap::new(),
        }
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:width$}{text}", "", width = self.depth * 2);
    }

    fn op_line(&mut self, text: &str, span: SpanId) {
        if self.positions {
            let s = self.kernel.span_of(span);
            let text = format!("{text}  // {}:{}:{}", s.file, s.line, s.column);
            self.line(&text);
        } else {
            self.line(text);
        }
    }

    fn run(mut self) -> String {
        let k = self.kernel.clone();
        let stage = match k.stage {
            Stage::Plain => "plain",
            Stage::Scheduled => "scheduled",
        };
        let head = format!("kernel {} {stage} {{", k.name);
        self.op_line(&head, k.span);
        self.depth = 1;
        for (name, dtype) in &k.dtypes {
            self.line(&format!("dtype {name} = {dtype}"));
        }
        for (name, value) in &k.fixed_dims {
            self.line(&format!("fixed {name} = {value}"));
        }
        for s in &k.syms {
            let name = self.index_names.give(&s.name);
            let kind = match s.kind {
                SymKind::Dim => "dim".into(),
                SymKind::Stride { param, axis } => format!("stride({param}, {axis})"),
            };
            self.line(&format!("sym {name} = {kind} {}..={} multiple {}", s.min, s.max, s.multiple_of));
            self.syms.push(name);
        }
        let mut names = Names::default();
        for p in &k.params {
            let name = names.give(&p.name);
            let kind = match &p.kind {
                ParamKind::Tensor { dtype, access, extents, strides, align_bytes, tma } => {
                    let access = match access {
                        Access::In => "in",
                        Access::Out => "out",
                        Access::InOut => "inout",
                    };
                    let (e, s) = (self.list(extents), self.list(strides));
                    let tma = if *tma { " tma" } else { "" };
                    format!("{access} {dtype}[{e}] strides [{s}] align {align_bytes}{tma}")
                }
                ParamKind::Scalar { dtype, value } => format!("scalar {dtype} {}", self.value(*value)),
                ParamKind::Absent => "absent".into(),
            };
            self.op_line(&format!("param {name} = {kind}"), p.span);
            self.param_names.push(name);
        }
        if !k.grid.is_empty() {
            let zero = self.kernel.ix_const_id(0);
            let axes: Vec<String> = k
                .grid
                .iter()
                .enumerate()
                .map(|(axis, &e)| {
                    let text = self.ix(e);
                    match k.block_ids.get(axis) {
                        Some(&v) => {
                            let name = self.define_var(v, Some(zero), Some((e, -1)));
                            format!("{name} in {text}")
                        }
                        None => text,
                    }
                })
                .collect();
            self.line(&format!("grid ({})", axes.join(", ")));
        }
        if let Some(panel) = k.raster {
            self.line(&format!("raster panels {panel}"));
        }
        self.line(&format!("warps {}", k.warps));
        for r in &k.requires {
            let rel = match r.relation {
                Relation::Eq => "==",
                Relation::Le => "<=",
                Relation::Lt => "<",
            };
            let text = format!("require {:?}: {} {rel} {}", r.text, self.ix(r.left), self.ix(r.right));
            self.line(&text);
        }
        if k.properties.deterministic {
            self.line("deterministic");
        }
        if k.properties.launch.cooperative {
            self.line("cooperative");
        }
        if k.properties.launch.dependent {
            self.line("pdl");
        }
        for d in &k.properties.batch_invariant {
            self.line(&format!("batch_invariant {d}"));
        }
        if k.shared_bytes > 0 {
            self.line(&format!("shared_bytes {}", k.shared_bytes));
        }
        self.tables();
        self.line("body {");
        self.block(k.body);
        self.line("}");
        self.depth = 0;
        self.line("}");
        self.out
    }

    // --- names ---

    fn value(&mut self, v: ValueId) -> String {
        let next = self.values.len();
        format!("%{}", self.values.entry(v).or_insert(next))
    }

    fn define(&mut self, v: ValueId) -> String {
        format!("{}: {}", self.value(v), self.kernel.value(v).dtype)
    }

    /// Defines an index variable; bounds that differ from the expected ones follow its name in brackets.
    fn define_var(&mut self, v: IxVarId, lo: Option<IxId>, hi: Option<(IxId, i64)>) -> String {
        let hi = hi.map(|(e, d)| {
            let d = self.kernel.ix_const_id(d);
            self.kernel.ix_add(e, d)
        });
        let var = self.kernel.ix_var(v).clone();
        let mut bounds = String::new();
        if var.lo != lo || var.hi != hi {
            let mut show = |x: Option<IxId>| x.map_or("_".to_string(), |x| self.ix(x));
            bounds = format!("[{}, {}]", show(var.lo), show(var.hi));
        }
        let name = match self.vars.get(&v) {
            Some(n) => n.clone(),
            None => {
                let n = self.index_names.give(&var.name);
                self.vars.insert(v, n.clone());
                n
            }
        };
        name + &bounds
    }

    fn var(&mut self, v: IxVarId) -> String {
        if let Some(n) = self.vars.get(&v) {
            return n.clone();
        }
        // Used before any op defines it: a broken kernel, printed all the same.
        let name = self.index_names.give(&self.kernel.ix_var(v).name.clone());
        self.vars.insert(v, name.clone());
        name
    }

    fn buffer_type(&mut self, b: BufferId) -> String {
        let buffer = self.kernel.buffer(b).clone();
        let space = SPACES.iter().find(|s| s.0 == buffer.space).map_or("frag", |s| s.1);
        let mut out = format!("{space} {}{}", if buffer.index { "index " } else { "" }, buffer.dtype);
        let _ = write!(out, "{:?}", buffer.extents);
        if let Some(d) = &buffer.distribution {
            out += " ";
            out += &distribution(d);
        }
        if let Some(m) = &buffer.memory {
            let _ = write!(out, " memory(strides {:?}", m.strides);
            if let Some((a, b, c)) = m.swizzle {
                let _ = write!(out, " swizzle {a} {b} {c}");
            }
            if let Some(p) = m.panel {
                let _ = write!(out, " panel {p}");
            }
            let _ = write!(out, " offset {})", m.offset_bytes);
        }
        if let Some(r) = buffer.role {
            let _ = write!(out, " role {}", r.0);
        }
        out
    }

    fn name_buffer(&mut self, b: BufferId) -> String {
        let name = self.buffer_names.give(&self.kernel.buffer(b).name.clone());
        self.buffers.insert(b, name.clone());
        name
    }

    fn declare_buffer(&mut self, b: BufferId) {
        if !self.buffers.contains_key(&b) {
            let name = self.name_buffer(b);
            let text = format!("buffer @{name}: {}", self.buffer_type(b));
            self.line(&text);
        }
    }

    fn buffer(&self, b: BufferId) -> String {
        format!("@{}", self.buffers.get(&b).map_or("?", |s| s.as_str()))
    }

    fn declare_view(&mut self, v: ViewId) {
        if self.views.contains_key(&v) {
            return;
        }
        let view = self.kernel.view(v).clone();
        if let Some(g) = view.gather {
            self.declare_view(g.table());
        }
        let (base, plain) = match view.base {
            Base::Param(p) => {
                let n = self.param_names[p.0 as usize].clone();
                (n.clone(), n)
            }
            Base::Buffer(b) => {
                self.declare_buffer(b);
                let n = self.buffers[&b].clone();
                (format!("@{n}"), n)
            }
        };
        let root = plain.split('.').next().unwrap_or(&plain).to_string();
        let name = self.view_names.give(&root);
        let mut text = format!("view ${name} = {base}: {}[{}]", view.dtype, self.list(&view.extents));
        let _ = write!(text, " strides [{}]", self.list(&view.strides));
        if self.kernel.ix_const(view.offset) != Some(0) {
            let _ = write!(text, " offset {}", self.ix(view.offset));
        }
        if !view.guards.is_empty() {
            let guards: Vec<String> =
                view.guards.iter().map(|&(i, e)| format!("{} < {}", self.ix(i), self.ix(e))).collect();
            let _ = write!(text, " guards [{}]", guards.join(", "));
        }
        match view.gather {
            None => {}
            Some(Gather::Paged { table, page, pages, page_stride }) => {
                let (table, pages, step) = (self.view(table), self.ix(pages), self.ix(page_stride));
                let _ = write!(text, " gather paged({table}, page {page}, pages {pages}, stride {step})");
            }
            Some(Gather::Rows { rows, count }) => {
                let (rows, count) = (self.view(rows), self.ix(count));
                let _ = write!(text, " gather rows({rows}, count {count})");
            }
        }
        self.op_line(&text, view.span);
        self.views.insert(v, name);
    }

    fn view(&self, v: ViewId) -> String {
        format!("${}", self.views.get(&v).map_or("?", |s| s.as_str()))
    }

    // --- expressions ---

    fn list(&mut self, ids: &[IxId]) -> String {
        ids.iter().map(|&i| self.ix(i)).collect::<Vec<_>>().join(", ")
    }

    fn ix(&mut self, id: IxId) -> String {
        self.ix_at(id, 0)
    }

    /// `level`: 0 anywhere, 1 as an operand of a sum's right side, 2 of a product's left, 3 of a product's right.
    fn ix_at(&mut self, id: IxId, level: u8) -> String {
        let (own, text) = match self.kernel.ix_expr(id) {
            IxExpr::Const(c) => (9, c.to_string()),
            IxExpr::Sym(s) => (9, self.syms.get(s.0 as usize).cloned().unwrap_or_default()),
            IxExpr::Var(v) => (9, self.var(v)),
            IxExpr::Data(v) => (9, format!("data({})", self.value(v))),
            IxExpr::Add(a, b) => (0, format!("{} + {}", self.ix_at(a, 0), self.ix_at(b, 1))),
            IxExpr::Sub(a, b) => (0, format!("{} - {}", self.ix_at(a, 0), self.ix_at(b, 1))),
            IxExpr::Mul(a, b) => (2, format!("{} * {}", self.ix_at(a, 2), self.ix_at(b, 3))),
            IxExpr::Div(a, b) => (2, format!("{} / {}", self.ix_at(a, 2), self.ix_at(b, 3))),
            IxExpr::Mod(a, b) => (2, format!("{} % {}", self.ix_at(a, 2), self.ix_at(b, 3))),
            IxExpr::Min(a, b) => (9, format!("min({}, {})", self.ix(a), self.ix(b))),
            IxExpr::Max(a, b) => (9, format!("max({}, {})", self.ix(a), self.ix(b))),
        };
        if own < level { format!("({text})") } else { text }
    }

    fn at(&mut self, view: ViewId, index: &[IxId]) -> String {
        format!("{}[{}]", self.view(view), self.list(index))
    }

    // --- ops ---

    fn block(&mut self, id: BlockId) {
        self.depth += 1;
        for op in self.kernel.block(id).ops.clone() {
            self.op(op);
        }
        self.depth -= 1;
    }

    fn boxed(&mut self, vars: &[IxVarId], extents: &[usize]) -> String {
        let zero = self.kernel.ix_const_id(0);
        let parts: Vec<String> = vars
            .iter()
            .enumerate()
            .map(|(i, &v)| {
                let n = extents.get(i).copied().unwrap_or(0);
                let e = self.kernel.ix_const_id(n as i64);
                format!("{} in {n}", self.define_var(v, Some(zero), Some((e, -1))))
            })
            .collect();
        format!("({})", parts.join(", "))
    }

    /// A product with the bodies of its scales, if it has any.
    fn product(&mut self, head: String, acc: BufferId, scales: &Option<[GemmScale; 2]>, span: SpanId) {
        let Some([row, col]) = scales else { return self.op_line(&head, span) };
        let extents = self.kernel.buffer(acc).extents.clone();
        let extent = |axis: usize| extents.get(axis).copied().unwrap_or(0);
        let head = format!("{head} rows {} {{", self.boxed(&[row.var], &[extent(0)]));
        self.op_line(&head, span);
        self.block(row.body);
        let middle = format!("}} yield {} cols {} {{", self.value(row.value), self.boxed(&[col.var], &[extent(1)]));
        self.line(&middle);
        self.block(col.body);
        let end = format!("}} yield {}", self.value(col.value));
        self.line(&end);
    }

    fn op(&mut self, id: OpId) {
        let OpNode { op, span } = self.kernel.op(id).clone();
        let used = super::effects::uses(&op);
        let declares_itself = |b: &BufferId| {
            matches!(&op, Op::Alloc { .. } | Op::VarNew { .. } | Op::IxVarNew { .. }) && used.buffers.contains(b)
        };
        for &b in &used.buffers {
            if !declares_itself(&b) {
                self.declare_buffer(b);
            }
        }
        for &v in &used.views {
            self.declare_view(v);
        }
        let text = match &op {
            Op::Const { result, value } => format!("{} = const {}", self.define(*result), literal(*value)),
            Op::IndexValue { result, index } => {
                let i = self.ix(*index);
                format!("{} = index_value {i}", self.define(*result))
            }
            Op::Unary { result, op, x } => {
                let x = self.value(*x);
                format!("{} = {} {x}", self.define(*result), op.name())
            }
            Op::Binary { result, op, a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                format!("{} = {} {a}, {b}", self.define(*result), op.name())
            }
            Op::Fma { result, a, b, c } => {
                let (a, b, c) = (self.value(*a), self.value(*b), self.value(*c));
                format!("{} = fma {a}, {b}, {c}", self.define(*result))
            }
            Op::Compare { result, op, a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                format!("{} = compare {} {a}, {b}", self.define(*result), op.name())
            }
            Op::CompareIndex { result, op, a, b } => {
                let (a, b) = (self.ix(*a), self.ix(*b));
                format!("{} = compare_index {} {a}, {b}", self.define(*result), op.name())
            }
            Op::Select { result, cond, a, b } => {
                let (c, a, b) = (self.value(*cond), self.value(*a), self.value(*b));
                format!("{} = select {c}, {a}, {b}", self.define(*result))
            }
            Op::Cast { result, x } => {
                let x = self.value(*x);
                format!("{} = cast {x}", self.define(*result))
            }
            Op::Bits { result, x } => {
                let x = self.value(*x);
                format!("{} = bits {x}", self.define(*result))
            }
            Op::ClampIndex { var, value, lo, hi } => {
                let (v, l, h) = (self.value(*value), self.ix(*lo), self.ix(*hi));
                format!("index {} = clamp_index {v}, {l}, {h}", self.define_var(*var, Some(*lo), Some((*hi, 0))))
            }
            Op::VarNew { var, init } => {
                let init = self.value(*init);
                if self.buffers.contains_key(var) {
                    format!("var {} = {init}", self.buffer(*var))
                } else {
                    let name = self.name_buffer(*var);
                    format!("var @{name}: {} = {init}", self.kernel.buffer(*var).dtype)
                }
            }
            Op::VarGet { result, var } => format!("{} = get {}", self.define(*result), self.buffer(*var)),
            Op::VarSet { var, value } => format!("set {} = {}", self.buffer(*var), self.value(*value)),
            Op::IxVarNew { var, init } => {
                let init = self.ix(*init);
                if !self.buffers.contains_key(var) {
                    self.name_buffer(*var);
                }
                format!("index_var {} = {init}", self.buffer(*var))
            }
            Op::IxVarGet { result, var } => {
                format!("index {} = index_get {}", self.define_var(*result, None, None), self.buffer(*var))
            }
            Op::IxVarSet { var, index } => format!("index_set {} = {}", self.buffer(*var), self.ix(*index)),
            Op::Load { result, view, index } => {
                let at = self.at(*view, index);
                format!("{} = load {at}", self.define(*result))
            }
            Op::LoadOr { result, view, index, other } => {
                let (at, other) = (self.at(*view, index), self.value(*other));
                format!("{} = load_or {at} else {other}", self.define(*result))
            }
            Op::Store { view, index, value, checked } => {
                let word = if *checked { "put" } else { "store" };
                format!("{word} {} = {}", self.at(*view, index), self.value(*value))
            }
            Op::Atomic { result, op, view, index, value } => {
                let rest = format!("atomic {} {}, {}", op.name(), self.at(*view, index), self.value(*value));
                match result {
                    Some(r) => format!("{} = {rest}", self.define(*r)),
                    None => rest,
                }
            }
            Op::Claim { result, var, cond } => {
                let rest = format!("claim {}, {}", self.buffer(*var), self.value(*cond));
                format!("{} = {rest}", self.define(*result))
            }
            Op::Alloc { buffer } => {
                if self.buffers.contains_key(buffer) {
                    format!("alloc {}", self.buffer(*buffer))
                } else {
                    let name = self.name_buffer(*buffer);
                    format!("alloc @{name}: {}", self.buffer_type(*buffer))
                }
            }
            Op::Fill { dst, value } => format!("fill {} = {}", self.view(*dst), self.value(*value)),
            Op::Copy { src, dst, extents } => {
                let (s, d) = (self.at(src.view, &src.start), self.at(dst.view, &dst.start));
                format!("copy {s} -> {d} extents {extents:?}")
            }
            Op::Parallel { vars, extents, body, distribution: d } => {
                let mut head = format!("parallel {}", self.boxed(vars, extents));
                if let Some(d) = d {
                    head += " ";
                    head += &distribution(d);
                }
                self.op_line(&format!("{head} {{"), span);
                self.block(*body);
                self.line("}");
                return;
            }
            Op::Spread { var, lo, hi, body } => {
                let (l, h) = (self.ix(*lo), self.ix(*hi));
                let head = format!("spread {} in {l}..{h} {{", self.define_var(*var, Some(*lo), Some((*hi, -1))));
                self.op_line(&head, span);
                self.block(*body);
                self.line("}");
                return;
            }
            Op::Reduce { op, src, dst, axis, order } => {
                let head = format!("reduce {} {} axis {axis} -> {}", op.name(), self.view(*src), self.buffer(*dst));
                head + &order_text(order)
            }
            Op::ReduceRegion { op, vars, extents, body, value, result, order } => {
                let head =
                    format!("{} = reduce_region {} {}", self.define(*result), op.name(), self.boxed(vars, extents));
                self.op_line(&format!("{head}{} {{", order_text(order)), span);
                self.block(*body);
                let end = format!("}} yield {}", self.value(*value));
                self.line(&end);
                return;
            }
            Op::Scan { op, kind, src, dst, axis, total } => {
                let rest = format!(
                    "scan {} {} {} axis {axis} -> {}",
                    op.name(),
                    kind.name(),
                    self.view(*src),
                    self.buffer(*dst)
                );
                match total {
                    Some(t) => format!("{} = {rest}", self.define(*t)),
                    None => rest,
                }
            }
            Op::FindFirst { var, extent, body, cond, result } => {
                let (zero, n) = (self.kernel.ix_const_id(0), self.kernel.ix_const_id(*extent as i64));
                let name = self.define_var(*result, Some(zero), Some((n, 0)));
                let head = format!("index {name} = find_first {} {{", self.boxed(&[*var], &[*extent]));
                self.op_line(&head, span);
                self.block(*body);
                let end = format!("}} yield {}", self.value(*cond));
                self.line(&end);
                return;
            }
            Op::Gemm { a, b, acc, set, scales } => {
                let word = if *set { "gemm.set" } else { "gemm" };
                let head = format!("{word} {}, {} -> {}", self.view(*a), self.view(*b), self.buffer(*acc));
                self.product(head, *acc, scales, span);
                return;
            }
            Op::For { var, lo, hi, body, stages } => {
                let (l, h) = (self.ix(*lo), self.ix(*hi));
                let mut stages = if *stages == 1 { String::new() } else { format!(" stages {stages}") };
                if let Some(n) = self.kernel.unroll.get(var) {
                    let _ = write!(stages, " unroll {n}");
                }
                let head = format!("for {} in {l}..{h}{stages} {{", self.define_var(*var, Some(*lo), Some((*hi, -1))));
                self.op_line(&head, span);
                self.block(*body);
                self.line("}");
                return;
            }
            Op::Loop { body } => {
                self.op_line("loop {", span);
                self.block(*body);
                self.line("}");
                return;
            }
            Op::Break => "break".into(),
            Op::Continue => "continue".into(),
            Op::If { cond, then, els, results } => {
                let head = format!("if {} {{", self.value(*cond));
                self.op_line(&head, span);
                self.block(*then);
                if !self.kernel.block(*els).ops.is_empty() {
                    self.line("} else {");
                    self.block(*els);
                }
                let yields: Vec<String> = results
                    .iter()
                    .map(|r| match *r {
                        IfResult::Value { result, then, els } => {
                            let (a, b) = (self.value(then), self.value(els));
                            format!("{} = {a} | {b}", self.define(result))
                        }
                        IfResult::Index { result, then, els } => {
                            let (a, b) = (self.ix(then), self.ix(els));
                            format!("index {} = {a} | {b}", self.define_var(result, None, None))
                        }
                    })
                    .collect();
                let end = if yields.is_empty() { "}".into() } else { format!("}} yield ({})", yields.join(", ")) };
                self.line(&end);
                return;
            }
            Op::Check { cond, message } => format!("check {} {message:?}", self.value(*cond)),
            Op::GridBarrier => "grid_barrier".into(),
            Op::BlockBarrier { reason } => format!("barrier {reason:?}"),
            Op::Sched(op) => return self.sched(op, span),
        };
        self.op_line(&text, span);
    }
}

fn distribution(d: &Distribution) -> String {
    let fragment = d.fragment.map(|f| {
        let ([a, b], [c, d]) = (f.warps, f.atoms);
        format!(" warps {a} {b} atoms {c} {d}{}", if f.interleaved { " interleaved" } else { "" })
    });
    let fragment = fragment.unwrap_or_default();
    format!("spread_over(axis {} vec {} lanes {} threads {}{fragment})", d.split_axis, d.vec, d.lanes, d.threads)
}

fn order_text(order: &Option<Order>) -> String {
    match order {
        None => String::new(),
        Some(Order { lanes, per_lane, tree: Tree::AdjacentPairs }) => {
            format!(" order(lanes {lanes} per_lane {per_lane})")
        }
    }
}

/// A literal with its dtype: integers in decimal, f32 in the shortest form that reads back, everything else as bits.
pub(crate) fn literal(l: Literal) -> String {
    let value = match l.dtype {
        DType::F32 => {
            let x = f32::from_bits(l.bits as u32);
            if x.is_finite() { format!("{x:?}") } else { format!("0x{:x}", l.bits) }
        }
        DType::I8 => (l.bits as u8 as i8).to_string(),
        DType::I32 => (l.bits as u32 as i32).to_string(),
        DType::I64 => (l.bits as i64).to_string(),
        DType::U8 | DType::U32 => l.bits.to_string(),
        DType::Bool => (l.bits != 0).to_string(),
        DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => format!("0x{:x}", l.bits),
    };
    format!("{} {value}", l.dtype)
}
