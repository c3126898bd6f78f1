//! Ids, nesting and visibility, and with them uniformity: what differs between elements is not visible outside.

use crate::diag::Diagnostic;
use crate::ir::effects::uses;
use crate::ir::{
    Base, BlockId, BufferId, Gather, IfResult, IxExpr, IxId, IxVarId, IxVarKind, Kernel, Op, OpId, ParamKind, SchedOp,
    Space, SpanId, Stage, ValueId, ViewId,
};
use std::collections::{HashMap, HashSet};

pub(super) fn check(k: &Kernel) -> Vec<Diagnostic> {
    let mut found = ids(k);
    if !found.is_empty() {
        return found;
    }
    if k.grid.is_empty() || k.grid.len() > 3 || k.block_ids.len() != k.grid.len() {
        let what = if k.grid.is_empty() { "has no grid".into() } else { format!("has {} grid axes", k.grid.len()) };
        found.push(
            Diagnostic::error(k, k.span, "V0108", format!("kernel `{}` {what}", k.name))
                .help("call `grid(..)` once with one to three extents"),
        );
    }
    let mut w = Walk {
        k,
        found,
        scope: Scope::default(),
        all: Scope::default(),
        element: None,
        loops: 0,
        origin: HashMap::new(),
    };
    for p in &k.params {
        match p.kind {
            ParamKind::Scalar { value, .. } => drop(w.scope.values.insert(value)),
            ParamKind::Tensor { .. } | ParamKind::Absent => {}
        }
    }
    w.scope.vars.extend(&k.block_ids);
    w.scope.vars.extend(k.cluster.iter().map(|c| c.rank));
    w.scope.vars.extend(k.roles.iter().filter_map(|r| r.instance));
    w.scope.buffers.extend(k.rings.iter().flat_map(|r| &r.parts).flat_map(|p| &p.buffers));
    w.all = w.scope.clone();
    w.block(k.body);
    w.found
}

/// Everything that would make other checks index out of range.
fn ids(k: &Kernel) -> Vec<Diagnostic> {
    let mut out = vec![];
    let mut bad = |span: SpanId, what: String| {
        let span = if (span.0 as usize) < k.spans.len() { k.span_of(span).clone() } else { crate::ir::Span::unknown() };
        out.push(Diagnostic::error_at(span, "V0101", what).help("this is a defect of the builder or of a pass"));
    };
    let ix_ok = |i: IxId| (i.0 as usize) < k.index.len();
    for (n, e) in k.index.iter().enumerate() {
        let ok = match *e {
            IxExpr::Const(_) => true,
            IxExpr::Sym(s) => (s.0 as usize) < k.syms.len(),
            IxExpr::Var(v) => (v.0 as usize) < k.ix_vars.len(),
            IxExpr::Data(v) => (v.0 as usize) < k.values.len(),
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => (a.0 as usize) < n && (b.0 as usize) < n,
        };
        if !ok {
            bad(k.span, format!("index expression {n} names something that does not exist"));
        }
    }
    for (n, v) in k.views.iter().enumerate() {
        let base = match v.base {
            Base::Param(p) => (p.0 as usize) < k.params.len(),
            Base::Buffer(b) => (b.0 as usize) < k.buffers.len(),
        };
        let mut all: Vec<IxId> = v.extents.iter().chain(&v.strides).copied().chain([v.offset]).collect();
        all.extend(v.guards.iter().flat_map(|g| [g.0, g.1]));
        match v.gather {
            None => {}
            Some(Gather::Paged { pages, page_stride, .. }) => all.extend([pages, page_stride]),
            Some(Gather::Rows { count, .. }) => all.push(count),
        }
        // A table is an older view, so that looking tables up ends.
        let base = base && v.gather.is_none_or(|g| (g.table().0 as usize) < n);
        if !base || !all.into_iter().all(ix_ok) || v.strides.len() != v.extents.len() {
            bad(v.span, format!("view {n} names something that does not exist"));
        }
    }
    for v in &k.ix_vars {
        if !v.lo.into_iter().chain(v.hi).all(ix_ok) {
            bad(v.span, format!("a bound of index `{}` does not exist", v.name));
        }
    }
    let mut parents = vec![0; k.blocks.len()];
    match parents.get_mut(k.body.0 as usize) {
        Some(n) => *n += 1,
        None => bad(k.span, "the body does not exist".into()),
    }
    let mut op_parents = vec![0; k.ops.len()];
    for b in &k.blocks {
        for op in &b.ops {
            match op_parents.get_mut(op.0 as usize) {
                Some(n) => *n += 1,
                None => bad(k.span, "a block names an op that does not exist".into()),
            }
        }
    }
    for (n, node) in k.ops.iter().enumerate() {
        let u = uses(&node.op);
        let values = u.values.iter().chain(&u.defines).chain(u.yields.iter().map(|y| &y.1));
        let ok = values.copied().all(|v: ValueId| (v.0 as usize) < k.values.len())
            && u.indices.iter().chain(u.index_yields.iter().map(|y| &y.1)).copied().all(ix_ok)
            && u.views.iter().all(|v| (v.0 as usize) < k.views.len())
            && u.buffers.iter().all(|b| (b.0 as usize) < k.buffers.len())
            && u.defines_ix.iter().chain(&u.body_ix).all(|v| (v.0 as usize) < k.ix_vars.len())
            && (node.span.0 as usize) < k.spans.len();
        if !ok {
            bad(node.span, format!("`{}` names something that does not exist", node.op.name()));
        }
        // Ops in no block are leftovers of passes and mean nothing.
        if op_parents[n] == 0 {
            continue;
        }
        for b in u.blocks {
            match parents.get_mut(b.0 as usize) {
                Some(n) => *n += 1,
                None => bad(node.span, format!("a body of `{}` does not exist", node.op.name())),
            }
        }
    }
    for (n, &count) in parents.iter().enumerate() {
        if count > 1 {
            let span = k.blocks[n].ops.first().map_or(k.span, |&o| k.op(o).span);
            out.push(Diagnostic::error(k, span, "V0104", format!("block {n} has {count} parents")));
        }
    }
    out
}

#[derive(Clone, Debug, Default)]
struct Scope {
    values: HashSet<ValueId>,
    vars: HashSet<IxVarId>,
    buffers: HashSet<BufferId>,
}

struct Walk<'a> {
    k: &'a Kernel,
    found: Vec<Diagnostic>,
    /// What is visible.
    scope: Scope,
    /// What was defined anywhere so far.
    all: Scope,
    /// The element op whose body is being walked, with the variables that existed before it.
    element: Option<(OpId, HashSet<BufferId>)>,
    loops: usize,
    /// The element op a value was defined under.
    origin: HashMap<ValueId, OpId>,
}

impl Walk<'_> {
    fn error(&mut self, op: OpId, code: &'static str, message: String) -> &mut Diagnostic {
        self.found.push(Diagnostic::error(self.k, self.k.op(op).span, code, message));
        let last = self.found.len() - 1;
        &mut self.found[last]
    }

    fn block(&mut self, id: BlockId) {
        let ops = &self.k.block(id).ops;
        for (n, &op) in ops.iter().enumerate() {
            self.op(op);
            if matches!(self.k.op(op).op, Op::Break | Op::Continue) && n + 1 < ops.len() {
                let name = self.k.op(op).op.name();
                self.error(ops[n + 1], "V0109", format!("this never runs: `{name}` stands before it"));
                break;
            }
        }
    }

    fn op(&mut self, id: OpId) {
        let op = &self.k.op(id).op;
        let u = uses(op);
        for &v in &u.values {
            self.value(id, v);
        }
        for &i in &u.indices {
            self.index(id, i, "the index");
        }
        for &v in &u.views {
            self.view(id, v);
        }
        self.placement(id, op);
        for &b in &u.buffers {
            let declares = matches!(op, Op::Alloc { .. } | Op::VarNew { .. } | Op::IxVarNew { .. });
            // A lowered reduction may make its result itself.
            if declares {
                if !self.all.buffers.insert(b) {
                    let name = self.k.buffer(b).name.clone();
                    self.error(id, "V0103", format!("`{name}` is declared twice"));
                }
                self.scope.buffers.insert(b);
            } else {
                self.buffer(id, b);
            }
        }
        let saved = self.scope.clone();
        let is_element = matches!(
            op,
            Op::Parallel { .. }
                | Op::Spread { .. }
                | Op::ReduceRegion { .. }
                | Op::FindFirst { .. }
                | Op::Gemm { .. }
                | Op::Sched(SchedOp::Wgmma { .. })
        );
        let is_loop = matches!(op, Op::For { .. } | Op::Loop { .. });
        let outer_element = self.element.clone();
        let outer_loops = self.loops;
        if is_element && self.element.is_none() {
            self.element = Some((id, self.scope.buffers.clone()));
            self.loops = 0;
        }
        self.loops += is_loop as usize;
        for &v in &u.body_ix {
            self.define_ix(id, v);
        }
        for &b in &u.blocks {
            let before = self.scope.clone();
            if let Op::Gemm { scales, .. } | Op::Sched(SchedOp::Wgmma { scales, .. }) = op {
                // A row's factor knows no column, and the reverse.
                for other in scales.iter().flatten().filter(|s| s.body != b) {
                    self.scope.vars.remove(&other.var);
                }
            }
            self.block(b);
            for &(_, v) in u.yields.iter().filter(|y| y.0 == b) {
                self.value(id, v);
            }
            for &(_, i) in u.index_yields.iter().filter(|y| y.0 == b) {
                self.index(id, i, "the index an arm gives");
            }
            self.scope = before;
        }
        if !u.blocks.is_empty() {
            self.scope = saved;
        }
        self.element = outer_element;
        self.loops = outer_loops;
        for &v in &u.defines {
            if !self.all.values.insert(v) {
                self.error(id, "V0103", "a value is defined twice".into());
            }
            if let Some((e, _)) = &self.element {
                self.origin.insert(v, *e);
            }
            self.scope.values.insert(v);
        }
        for &v in &u.defines_ix {
            self.define_ix(id, v);
        }
    }

    fn define_ix(&mut self, op: OpId, v: IxVarId) {
        if !self.all.vars.insert(v) {
            let name = self.k.ix_var(v).name.clone();
            self.error(op, "V0103", format!("index `{name}` is defined twice"));
        }
        self.scope.vars.insert(v);
    }

    fn placement(&mut self, id: OpId, op: &Op) {
        let name = op.name();
        match op {
            Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Copy { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::Reduce { .. }
            | Op::ReduceRegion { .. }
            | Op::Scan { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. }
            | Op::BlockBarrier { .. }
            | Op::Sched(_) => {
                if let Some((outer, _)) = &self.element {
                    let outer = *outer;
                    let (outer_name, at) = (self.k.op(outer).op.name(), self.k.span_of(self.k.op(outer).span).clone());
                    let d = self.error(id, "V0105", format!("`{name}` inside an element body"));
                    d.notes.push((format!("the body belongs to `{outer_name}`"), Some(at)));
                    d.help = Some("element bodies hold scalar code only; move it before or after".into());
                }
            }
            Op::Break | Op::Continue => {
                if self.loops == 0 {
                    self.error(id, "V0106", format!("`{name}` outside of a loop"));
                }
            }
            Op::VarSet { var, .. } | Op::IxVarSet { var, .. } => {
                if let Some((outer, before)) = &self.element
                    && before.contains(var)
                {
                    let (outer, b) = (*outer, self.k.buffer(*var));
                    let (n, at) = (b.name.clone(), self.k.span_of(b.span).clone());
                    let outer_name = self.k.op(outer).op.name();
                    let d = self.error(id, "V0302", format!("an element body sets `{n}`, which all elements share"));
                    d.label = format!("iterations of `{outer_name}` have no order");
                    d.notes.push((format!("`{n}` is declared outside of the body"), Some(at)));
                    d.help = Some("declare it inside the body, or use a reduction".into());
                }
            }
            Op::Claim { var, .. } => self.claim(id, *var),
            Op::Store { .. } | Op::Atomic { .. } => {
                if let Some((outer, _)) = &self.element
                    && matches!(self.k.op(*outer).op, Op::ReduceRegion { .. } | Op::FindFirst { .. } | Op::Gemm { .. })
                {
                    let outer_name = self.k.op(*outer).op.name();
                    self.error(id, "V0209", format!("`{name}` inside the body of `{outer_name}`"));
                }
            }
            Op::Const { .. }
            | Op::IndexValue { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Fma { .. }
            | Op::Compare { .. }
            | Op::CompareIndex { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::Load { .. }
            | Op::LoadOr { .. }
            | Op::For { .. }
            | Op::Loop { .. }
            | Op::Check { .. }
            | Op::If { .. } => {}
            Op::GridBarrier => {
                if !self.k.block(self.k.body).ops.contains(&id) {
                    let d = self.error(id, "V0110", "`grid_sync` inside a loop, a branch or a body".into());
                    d.help = Some("every block must pass it: put it at the top level of the kernel".into());
                }
                if !self.k.properties.launch.cooperative {
                    let d =
                        self.error(id, "V0111", "`grid_sync` in a kernel whose blocks need not run together".into());
                    d.help = Some("declare the kernel `#[kernel(cooperative, ..)]`".into());
                }
            }
        }
        // Roles written in a kernel come with their ops before anything is placed.
        let own = !self.k.roles.is_empty() && matches!(op, Op::BlockBarrier { .. } | Op::Sched(_));
        let scheduled =
            matches!(op, Op::BlockBarrier { .. } | Op::Sched(_) | Op::Parallel { distribution: Some(_), .. }) && !own;
        if scheduled && self.k.stage == Stage::Plain {
            self.error(id, "V0107", format!("`{name}` is placed on threads in a plain kernel"));
        }
    }

    /// A claim numbers whole iterations: every iteration gets to it, and before it none has changed anything.
    fn claim(&mut self, id: OpId, var: BufferId) {
        let k = self.k;
        let around = self.element.as_ref().map(|e| (e.0, e.1.contains(&var)));
        let Some((outer, declared)) = around else {
            let d = self.error(id, "V0112", "`claim` outside of a `spread`".into());
            d.help = Some("it numbers the iterations of a `spread`".into());
            return;
        };
        let body = match &k.op(outer).op {
            Op::Spread { body, .. } => *body,
            op => {
                let m = format!("`claim` in the body of `{}`", op.name());
                self.error(id, "V0112", m).help = Some("it numbers the iterations of a `spread`".into());
                return;
            }
        };
        let ops = &k.block(body).ops;
        let Some(at) = ops.iter().position(|&o| o == id) else {
            let d = self.error(id, "V0112", "`claim` inside a branch or a loop of the body".into());
            d.help = Some("give it the condition: `claim(&mut count, condition)`".into());
            return;
        };
        if !declared {
            let name = k.buffer(var).name.clone();
            let d = self.error(id, "V0112", format!("the counter `{name}` is declared inside the body"));
            d.help = Some("declare it before the `spread`".into());
            return;
        }
        for (n, &o) in ops.iter().enumerate() {
            let mut wrong = None;
            let mut look = |inner: OpId, op: &Op| {
                if inner == id {
                } else if matches!(op, Op::Claim { .. }) {
                    wrong = Some((inner, "there is another `claim` in the body"));
                } else if uses(op).buffers.contains(&var) {
                    wrong = Some((inner, "the body uses the counter itself"));
                } else if n < at && matches!(op, Op::Store { .. } | Op::Atomic { .. } | Op::Check { .. }) {
                    wrong = Some((inner, "this stands before the `claim`"));
                } else if n < at
                    && matches!(op, Op::For { .. } | Op::Loop { .. } | Op::VarNew { .. } | Op::IxVarNew { .. })
                {
                    wrong = Some((inner, "what decides about a `claim` has neither loops nor variables"));
                }
            };
            look(o, &k.op(o).op);
            for b in uses(&k.op(o).op).blocks {
                crate::ir::effects::walk(k, b, &mut look);
            }
            if let Some((other, why)) = wrong {
                let span = k.span_of(k.op(other).span).clone();
                let d = self.error(id, "V0112", "`claim` after what it must come before, or not alone".into());
                d.notes.push((why.into(), Some(span)));
                d.help = Some("compute the condition, claim once, then store".into());
                return;
            }
        }
    }

    // --- uses ---

    fn value(&mut self, op: OpId, v: ValueId) {
        if self.scope.values.contains(&v) {
            return;
        }
        let name = self.k.op(op).op.name();
        let role = if matches!(self.k.op(op).op, Op::If { .. }) { "the condition" } else { "an operand" };
        if let Some(&outer) = self.origin.get(&v)
            && self.element.as_ref().is_none_or(|e| e.0 != outer)
        {
            let path = self.path(v, outer);
            let d = self.error(op, "V0301", format!("{role} of `{name}` differs between elements"));
            d.label = "all threads of the block must agree here".into();
            d.notes.extend(path);
            d.help = Some("reduce it first, for example with `tile_any` or `tile_max`".into());
        } else if self.all.values.contains(&v) {
            let at = self.k.span_of(self.k.value(v).span).clone();
            let d = self.error(op, "V0102", format!("{role} of `{name}` is not visible here"));
            d.notes.push(("it is defined in a block that has ended, or runs only sometimes,".into(), Some(at)));
        } else {
            self.error(op, "V0102", format!("{role} of `{name}` is used before its definition"));
        }
    }

    /// From a value back to what makes it differ between elements.
    fn path(&self, v: ValueId, outer: OpId) -> Vec<(String, Option<crate::ir::Span>)> {
        let mut notes = vec![];
        let mut at = v;
        for _ in 0..6 {
            let Some(def) = self.k.value(at).def else { break };
            let node = self.k.op(def);
            let span = Some(self.k.span_of(node.span).clone());
            let u = uses(&node.op);
            let indices = u.indices.iter().copied().chain(u.views.iter().flat_map(|&v| view_indices(self.k, v)));
            let var = indices.flat_map(|i| leaves(self.k, i).0).find(|&v| self.k.ix_var(v).kind == IxVarKind::Element);
            if let Some(var) = var {
                notes.push((
                    format!("`{}` depends on the element index `{}`", node.op.name(), self.k.ix_var(var).name),
                    span,
                ));
                break;
            }
            let Some(&next) = u.values.iter().find(|&x| self.origin.get(x) == Some(&outer)) else { break };
            notes.push((format!("it comes from `{}`", node.op.name()), span));
            at = next;
        }
        if notes.is_empty() {
            let n = self.k.op(outer);
            notes.push((
                format!("it is defined in the body of `{}`", n.op.name()),
                Some(self.k.span_of(n.span).clone()),
            ));
        }
        notes
    }

    fn index(&mut self, op: OpId, i: IxId, what: &str) {
        let (vars, data) = leaves(self.k, i);
        for v in vars {
            if self.scope.vars.contains(&v) {
                continue;
            }
            let var = self.k.ix_var(v);
            let (name, at, kind) = (var.name.clone(), self.k.span_of(var.span).clone(), var.kind);
            let op_name = self.k.op(op).op.name();
            if kind == IxVarKind::Element && self.all.vars.contains(&v) {
                let d = self.error(op, "V0301", format!("{what} of `{op_name}` uses the element index `{name}`"));
                d.label = "there is no current element here".into();
                d.notes.push((format!("`{name}` belongs to the body"), Some(at)));
            } else {
                let d =
                    self.error(op, "V0102", format!("{what} of `{op_name}` uses `{name}`, which is not visible here"));
                d.notes.push((format!("`{name}` is defined"), Some(at)));
            }
        }
        for v in data {
            self.value(op, v);
        }
    }

    fn buffer(&mut self, op: OpId, b: BufferId) {
        if self.scope.buffers.contains(&b) {
            return;
        }
        let buffer = self.k.buffer(b);
        let (name, at) = (buffer.name.clone(), self.k.span_of(buffer.span).clone());
        let space = if buffer.space == Space::Var { "variable" } else { "tile" };
        let known = self.all.buffers.contains(&b);
        let op_name = self.k.op(op).op.name();
        let d = self.error(op, "V0102", format!("`{op_name}` uses the {space} `{name}`, which does not exist here"));
        d.notes.push((
            if known { "its block has ended; it is declared" } else { "no op allocates it; it is declared" }.into(),
            Some(at),
        ));
    }

    fn view(&mut self, op: OpId, v: ViewId) {
        match self.k.view(v).base {
            Base::Buffer(b) => self.buffer(op, b),
            Base::Param(_) => {}
        }
        if let Some(g) = self.k.view(v).gather {
            self.view(op, g.table());
        }
        for i in view_indices(self.k, v) {
            self.index(op, i, "the view");
        }
    }
}

/// Index expressions a view is made of, with those of the table it looks rows up in.
pub(super) fn view_indices(k: &Kernel, v: ViewId) -> Vec<IxId> {
    let v = k.view(v);
    let guards = v.guards.iter().flat_map(|g| [g.0, g.1]);
    let mut all: Vec<IxId> = v.extents.iter().chain(&v.strides).copied().chain([v.offset]).chain(guards).collect();
    match v.gather {
        None => {}
        Some(Gather::Paged { table, pages, page_stride, .. }) => {
            all.extend([pages, page_stride]);
            all.extend(view_indices(k, table));
        }
        Some(Gather::Rows { rows, count }) => {
            all.push(count);
            all.extend(view_indices(k, rows));
        }
    }
    all
}

/// Variables and data an expression names.
pub(super) fn leaves(k: &Kernel, i: IxId) -> (Vec<IxVarId>, Vec<ValueId>) {
    fn go(k: &Kernel, i: IxId, vars: &mut Vec<IxVarId>, data: &mut Vec<ValueId>) {
        match k.ix_expr(i) {
            IxExpr::Const(_) | IxExpr::Sym(_) => {}
            IxExpr::Var(v) => {
                if !vars.contains(&v) {
                    vars.push(v);
                }
            }
            IxExpr::Data(v) => {
                if !data.contains(&v) {
                    data.push(v);
                }
            }
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Div(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => {
                go(k, a, vars, data);
                go(k, b, vars, data);
            }
        }
    }
    let (mut vars, mut data) = (vec![], vec![]);
    go(k, i, &mut vars, &mut data);
    (vars, data)
}

/// Used by checks that pair the arms of an `If`.
pub(super) fn if_values(results: &[IfResult]) -> Vec<(ValueId, ValueId, ValueId)> {
    results
        .iter()
        .filter_map(|r| match *r {
            IfResult::Value { result, then, els } => Some((result, then, els)),
            IfResult::Index { .. } => None,
        })
        .collect()
}
