//! Element loops: from a distribution to thread indices, steps, wide accesses and a body per element.

use super::Emitter;
use super::expr::{Text, memory_type, register_type};
use super::prelude::Snippet;
use crate::ir::effects::{bodies, walk};
use crate::ir::{Base, BlockId, BufferId, DType, Distribution, Fragment, IxVarId, Op, OpId, ValueId, ViewId};
use crate::pass::access::{Form, Lanes, defined_inside, inner_axis};
use crate::pass::distribute::element_access;
use std::collections::{HashMap, HashSet};

/// The element loop that is being printed.
pub struct Element {
    /// Index variables.
    pub vars: Vec<IxVarId>,
    /// Index variables the body defines.
    pub inside: HashSet<IxVarId>,
    /// Extents of the box.
    pub extents: Vec<usize>,
    /// Where pointers are declared, with the scope and depth there.
    pub at: usize,
    pub scope: usize,
    pub depth: usize,
    /// Pointers declared so far.
    pub pointers: HashMap<String, String>,
    /// Only one thread of those that do the same work may write.
    pub owner: Option<Text>,
    /// Register tiles the body writes.
    pub stored: HashSet<BufferId>,
    /// Wide loads: array that holds the elements.
    pub arrays: HashMap<OpId, String>,
    /// Wide stores: array that collects the elements, and whether it holds them as f32.
    pub collect: HashMap<OpId, (String, bool)>,
    /// Where in those arrays the elements of this iteration start.
    pub collect_from: Text,
    /// Loads done once for all lanes.
    once: HashMap<OpId, Text>,
    pub round: Text,
    pub step: Text,
    pub lane: Text,
    pub steps: usize,
    pub vec: usize,
    pub inner: usize,
    pub threads: usize,
}

impl Element {
    /// A loop whose iterations have no place in registers.
    pub fn plain(vars: Vec<IxVarId>, inside: HashSet<IxVarId>, at: usize, scope: usize, depth: usize) -> Element {
        Element {
            vars,
            inside,
            extents: vec![],
            at,
            scope,
            depth,
            pointers: HashMap::new(),
            owner: None,
            stored: HashSet::new(),
            arrays: HashMap::new(),
            collect: HashMap::new(),
            collect_from: Text::number(0),
            once: HashMap::new(),
            round: Text::number(0),
            step: Text::number(0),
            lane: Text::number(0),
            steps: 1,
            vec: 1,
            inner: 1,
            threads: 1,
        }
    }

    /// Number of the register with the element for this iteration's row of a warp group's accumulator.
    pub fn row_register(&self) -> Text {
        let half = match self.step.s.parse::<i64>() {
            Ok(n) => Text::number(n % 2),
            Err(_) => Text::name(format!("{} % 2", self.step.s)),
        };
        Text::add(&Text::mul(&self.round, &Text::number(2)), &half)
    }

    /// Number of the register that holds the element of this iteration, or of the `ratio` iterations it stands for.
    pub fn register(&self, ratio: usize, registers: usize, lanes: usize) -> Text {
        let flat = |e: &Element| Text::add(&Text::mul(&e.round, &Text::number(e.steps as i64)), &e.step);
        if registers == 1 {
            return Text::number(0);
        }
        if ratio <= 1 {
            return Text::add(&Text::mul(&flat(self), &Text::number(self.vec as i64)), &self.lane);
        }
        let q = if ratio.is_multiple_of(self.inner) {
            ratio / self.inner * self.steps
        } else {
            (ratio / (self.vec * lanes)).max(1)
        };
        let whole_rounds = q % self.steps == 0 && self.steps > 1;
        match q {
            1 => flat(self),
            _ if whole_rounds && q == self.steps => self.round.clone(),
            _ => {
                let t = flat(self);
                Text::name(format!("({}) / {q}", t.s))
            }
        }
    }
}

/// Statement that folds a value into an accumulator.
pub type Fold<'t> = &'t dyn Fn(&mut Emitter<'_>, Text) -> String;

/// Body of a loop and what is added after each element.
pub struct ElementLoop<'t> {
    pub vars: &'t [IxVarId],
    pub extents: &'t [usize],
    pub body: BlockId,
    pub distribution: Distribution,
    /// One row for all groups of lanes, each doing the whole of it.
    pub redundant: bool,
    /// Folds a value into an accumulator: the value and the statement around it.
    pub fold: Option<(ValueId, Fold<'t>)>,
}

impl Emitter<'_> {
    /// Prints a loop over elements.
    pub fn element_loop(&mut self, l: &ElementLoop<'_>) {
        let k = self.k;
        if let Some(s) = self.matrix_store(l) {
            self.store_pieces(l, &s);
            return;
        }
        let skips = self.skips_ones(l);
        self.phase += 1;
        let (d, rank) = (&l.distribution, l.extents.len());
        let (inner, outer) = (d.inner(l.extents), d.outer(l.extents));
        let groups = d.groups();
        let (steps, rounds) = (d.steps(l.extents), if l.redundant { 1 } else { d.rounds(l.extents) });
        let body = l.body;
        let mut e =
            Element::plain(l.vars.to_vec(), defined_inside(k, body), self.out.len(), self.names.depth(), self.depth);
        e.extents = l.extents.to_vec();
        (e.steps, e.vec, e.inner, e.threads) = (steps, d.vec, inner, d.threads);
        walk(k, body, &mut |_, op| {
            if let Op::Store { view, .. } = op {
                e.stored.extend(self.register_tile(*view));
            }
        });
        let mut touches_registers = l.fold.is_some();
        walk(k, body, &mut |_, op| {
            touches_registers |= element_access(op).is_some_and(|(v, _)| self.register_tile(v).is_some());
        });
        // Without axes there is one iteration: every thread's if it is about registers, else the first thread's.
        let replicated = d.split_axis == rank && (rank > 0 || touches_registers);
        let forms = self.forms(l);
        self.element = Some(e);

        // Loops over rounds and steps; a single one needs no loop.
        let mut opened = 0;
        let unroll = if touches_registers || rounds * steps <= 8 { "#pragma unroll" } else { "#pragma unroll 4" };
        let mut counter = |this: &mut Self, count: usize, wish: &str| -> Text {
            if count <= 1 {
                return Text::number(0);
            }
            this.line(unroll);
            opened += 1;
            this.open_with(wish, |n| format!("for (int {n} = 0; {n} < {count}; ++{n})"))
        };
        let start = self.out.len();
        let single_outer: Vec<usize> = (0..d.split_axis).filter(|&a| l.extents[a] > 1).collect();
        let round_name = match single_outer[..] {
            [a] if groups == 1 => k.ix_var(l.vars[a]).name.clone(),
            _ => "r".into(),
        };
        let round = counter(self, rounds, &round_name);
        let step = counter(self, steps, "s");
        if opened == 0 {
            self.open("");
            opened = 1;
        }
        if let Some(e) = &mut self.element {
            (e.round, e.step) = (round.clone(), step.clone());
        }

        // Which element this is.
        let (lane, group) = match d.fragment {
            Some(_) => (Text::number(0), Text::number(0)),
            None => self.lane_and_group(d),
        };
        let mut conditions: Vec<Text> = vec![];
        let out = if l.redundant {
            Text::number(0)
        } else {
            Text::add(&Text::mul(&round, &Text::number(groups as i64)), &group)
        };
        if !l.redundant && d.fragment.is_none() && outer % groups != 0 {
            conditions.push(Text::less(&out, &Text::number(outer as i64)));
        }
        self.decode("row", &out, l.vars, l.extents, 0..d.split_axis);
        if let Some(f) = d.rows_of() {
            let row = self.fragment_row(&f, &round);
            let name = self.declare_index(l.vars[0], &row, self.index_type());
            self.index.insert(l.vars[0], name);
            if let Some(e) = &mut self.element {
                e.owner = Some(Text::name("lane % 4 == 0"));
            }
        } else if let Some(f) = &d.fragment {
            conditions = self.decode_fragment(f, l, &round, &step);
        } else if replicated {
            if d.lanes > 1 {
                let zero = Text::number(0);
                let owner = super::expr::compare_text(crate::ir::CmpOp::Eq, &lane, &zero);
                if let Some(e) = &mut self.element {
                    e.owner = Some(owner);
                }
            }
        } else {
            let unit = Text::add(&Text::mul(&step, &Text::number(d.lanes as i64)), &lane);
            let at = Text::mul(&unit, &Text::number(d.vec as i64));
            let named = self.decode("at", &at, l.vars, l.extents, d.split_axis..rank);
            if !inner.is_multiple_of(d.vec * d.lanes) {
                conditions.push(Text::less(&named, &Text::number(inner as i64)));
            }
        }
        let exists = conditions.into_iter().reduce(|a, b| Text::both(&a, &b));

        // Elements that do not exist: predicates on the accesses if nothing else can go wrong, else a branch.
        let simple = l.fold.is_none()
            && k.block(body).ops.iter().all(|&id| match &k.op(id).op {
                // Rows of elements that do not exist must not be looked up.
                Op::Load { view, .. } | Op::Store { view, .. } if k.view(*view).gather.is_some() => false,
                Op::Load { view, .. } => self.register_tile(*view).is_some() || forms[&id] != Form::Each,
                Op::Store { view, .. } => {
                    self.register_tile(*view).is_some() || matches!(forms.get(&id), Some(Form::Wide(_)))
                }
                // Iterations that do not exist have nothing to check.
                Op::LoadOr { .. } | Op::Atomic { .. } | Op::Check { .. } => false,
                op => bodies(op).is_empty(),
            });
        let mut branch = false;
        let mut predicate = None;
        if let Some(c) = exists {
            if simple && d.vec > 1 {
                let name = self.names.declare("ok");
                self.line(format!("const bool {name} = {};", c.s));
                predicate = Some(Text::name(name));
            } else {
                self.open(&format!("if ({})", c.s));
                branch = true;
            }
        }
        self.lanes_of_body(l, &forms, predicate.as_ref());
        if branch {
            self.close();
        }
        for _ in 0..opened {
            self.close();
        }
        let start = start.max(self.element.as_ref().map_or(start, |e| e.at));
        self.element = None;
        self.drop_unused(start);
        if skips {
            self.close();
        }
    }

    /// Row `round` of those a thread has of a warp group's accumulator.
    pub fn fragment_row(&mut self, f: &Fragment, round: &Text) -> Text {
        self.used_warp = true;
        let first = Text::add(&self.share_start(f)[0], &Text::name("lane / 4"));
        let more = match round.s.parse::<i64>() {
            Ok(n) => Text::number(n / 2 * 64 + n % 2 * 8),
            Err(_) if f.atoms[0] == 1 => Text::mul(round, &Text::number(8)),
            Err(_) => Text::name(format!("({0} / 2 * 64 + {0} % 2 * 8)", round.s)),
        };
        Text::add(&first, &more)
    }

    /// Declares the index variables of a loop over a matrix unit's accumulator; returns what has to hold for an element
    /// to exist.
    pub fn decode_fragment(&mut self, f: &Fragment, l: &ElementLoop<'_>, round: &Text, step: &Text) -> Vec<Text> {
        self.used_warp = true;
        let [row0, column0] = self.share_start(f);
        let ([m, n], ty) = ([l.extents[0], l.extents[1]], self.index_type());
        let half = match step.is_zero() {
            true => Text::number(0),
            false => Text::name(format!("{} % 2 * 8", step.s)),
        };
        let apart = if f.interleaved { 16 * f.warps[0] } else { 16 };
        let row = [Text::mul(round, &Text::number(apart as i64)), half, Text::name("lane / 4")];
        let row = row.iter().fold(row0, |s, p| Text::add(&s, p));
        let piece = match f.atoms[1] {
            1 => Text::number(0),
            _ => Text::name(format!("{} / 2 * 8", step.s)),
        };
        let column = Text::add(&Text::add(&column0, &piece), &Text::name("lane % 4 * 2"));
        let mut conditions = vec![];
        for (axis, (at, extent)) in [(row, m), (column, n)].into_iter().enumerate() {
            let name = self.declare_index(l.vars[axis], &at, ty);
            self.index.insert(l.vars[axis], name.clone());
            if f.overhangs(axis, extent) {
                conditions.push(Text::less(&name, &Text::number(extent as i64)));
            }
        }
        conditions
    }

    /// Names of a thread's lane within its row and of its group.
    pub fn lane_and_group(&mut self, d: &Distribution) -> (Text, Text) {
        if d.lanes == d.threads {
            (Text::name(self.tid()), Text::number(0))
        } else if d.lanes == 1 {
            (Text::number(0), Text::name(self.tid()))
        } else {
            self.used_lanes.insert(d.lanes);
            (Text::name(format!("lane{}", d.lanes)), Text::name(format!("group{}", d.lanes)))
        }
    }

    /// Declares the index variables of some axes from their flat number; returns the flat number as printed.
    fn decode(
        &mut self,
        flat_name: &str,
        flat: &Text,
        vars: &[IxVarId],
        extents: &[usize],
        axes: std::ops::Range<usize>,
    ) -> Text {
        let real: Vec<usize> = axes.clone().filter(|&a| extents[a] > 1).collect();
        for a in axes {
            self.index.insert(vars[a], Text::number(0));
        }
        let ty = self.index_type();
        match real[..] {
            [] => flat.clone(),
            [a] => {
                let text = self.declare_index(vars[a], flat, ty);
                self.index.insert(vars[a], text.clone());
                text
            }
            _ => {
                let name = self.names.declare(flat_name);
                self.line(format!("const {ty} {name} = {};", flat.s));
                for (n, &a) in real.iter().enumerate() {
                    let below: usize = real[n + 1..].iter().map(|&b| extents[b]).product();
                    let mut text = name.clone();
                    if below > 1 {
                        text = format!("{text} / {below}");
                    }
                    if n > 0 {
                        text = format!("{text} % {}", extents[a]);
                    }
                    let var = self.names.declare(&self.k.ix_var(vars[a]).name.clone());
                    self.line(format!("const {ty} {var} = {text};"));
                    self.index.insert(vars[a], Text::name(var));
                }
                Text::name(name)
            }
        }
    }

    fn declare_index(&mut self, var: IxVarId, value: &Text, ty: &str) -> Text {
        // A plain name or number needs no second one.
        if value.s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return value.clone();
        }
        let name = self.names.declare(&self.k.ix_var(var).name.clone());
        self.line(format!("const {ty} {name} = {};", value.s));
        Text::name(name)
    }

    /// Form of each memory access directly in a body.
    pub fn forms(&self, l: &ElementLoop<'_>) -> HashMap<OpId, Form> {
        let body = l.body;
        let lanes = Lanes::new(self.k, &self.ranges, l.vars, l.extents, body, l.distribution.vec);
        let mut forms = HashMap::new();
        // Accesses in program order: which, to what, whether it writes, whether it is directly in the body.
        let mut order = vec![];
        walk(self.k, body, &mut |id, op| {
            if let Some((view, _)) = element_access(op)
                && self.register_tile(view).is_none()
            {
                let write = matches!(op, Op::Store { .. } | Op::Atomic { .. });
                order.push((id, self.k.view(view).base, write, self.k.block(body).ops.contains(&id)));
            }
        });
        for &id in &self.k.block(body).ops {
            let op = &self.k.op(id).op;
            let Some((view, index)) = element_access(op) else { continue };
            if self.register_tile(view).is_some() {
                continue;
            }
            let base = self.k.view(view).base;
            let mine: Vec<_> = order.iter().filter(|o| o.1 == base).collect();
            let writes = mine.iter().any(|o| o.2);
            // Moving loads to the front and stores to the end must not reorder accesses to one tensor.
            let first_write = mine.iter().position(|o| o.2).unwrap_or(mine.len());
            let ordered = mine.iter().skip(first_write + 1).all(|o| o.2) && mine.iter().all(|o| o.3);
            let checked = matches!(op, Op::LoadOr { .. } | Op::Atomic { .. } | Op::Store { checked: true, .. });
            let form = if l.distribution.vec == 1 || checked || (writes && !ordered) {
                Form::Each
            } else {
                lanes.form(view, index)
            };
            let store = matches!(op, Op::Store { .. });
            let form = if form == if store { Form::Once } else { Form::Pairs } { Form::Each } else { form };
            forms.insert(id, form);
        }
        // Collected stores come after the lanes, in their order; one that is not collected comes before all of them.
        let collected = |form: Option<&Form>| matches!(form, Some(Form::Wide(_) | Form::Pairs));
        for &(id, base, write, _) in &order {
            let apart = |o: &(OpId, Base, bool, bool)| o.2 && o.1 == base && !collected(forms.get(&o.0));
            if write && order.iter().any(apart) {
                forms.insert(id, Form::Each);
            }
        }
        forms
    }

    /// Wide loads, the body for each lane, wide stores.
    pub fn lanes_of_body(&mut self, l: &ElementLoop<'_>, forms: &HashMap<OpId, Form>, predicate: Option<&Text>) {
        let (k, vec) = (self.k, l.distribution.vec);
        if self.ahead && self.async_copy(l, forms, predicate) {
            return;
        }
        let ops = k.block(l.body).ops.clone();
        let mut stores = vec![];
        for &id in &ops {
            match (&k.op(id).op, forms.get(&id)) {
                (Op::Load { view, index, .. }, Some(Form::Wide(bytes))) => {
                    self.wide_load(id, *view, index, *bytes, vec, predicate);
                }
                (Op::Load { result, view, index }, Some(Form::Once)) if vec > 1 => {
                    let mut x = self.load(id, *view, index, None);
                    if let Some(p) = predicate {
                        let zero = super::expr::literal(crate::ir::Literal { dtype: k.view(*view).dtype, bits: 0 });
                        x = Text::choose(p, &x, &zero);
                    }
                    let wish = format!("{}_i", self.base_name(*view));
                    let name = self.names.declare(&wish);
                    let ty = register_type(self.value_type(*result));
                    self.line(format!("const {ty} {name} = {};", x.s));
                    if let Some(e) = &mut self.element {
                        e.once.insert(id, Text::name(name));
                    }
                }
                (Op::Store { view, index, value, .. }, Some(&form @ (Form::Wide(_) | Form::Pairs))) => {
                    let narrow = self.narrowing(*value, k.view(*view).dtype);
                    let wish = format!("{}_v", self.base_name(*view));
                    let name = self.names.declare(&wish);
                    let ty = if narrow { "float" } else { memory_type(k.view(*view).dtype) };
                    self.line(format!("alignas(16) {ty} {name}[{vec}];"));
                    if let Some(e) = &mut self.element {
                        e.collect.insert(id, (name.clone(), narrow));
                    }
                    stores.push((id, *view, index.clone(), name, narrow, form));
                }
                (_, Some(_) | None) => {}
            }
        }
        let inner = inner_axis(l.extents).map(|a| l.vars[a]);
        let outside = inner.and_then(|v| self.index.get(&v).cloned());
        if vec > 1 {
            self.line("#pragma unroll");
            let lane = self.open_with("v", |v| format!("for (int {v} = 0; {v} < {vec}; ++{v})"));
            if let (Some(var), Some(base)) = (inner, &outside) {
                self.index.insert(var, Text::add(base, &lane));
            }
            if let Some(e) = &mut self.element {
                e.lane = lane;
            }
        }
        self.block(l.body);
        if let Some((value, fold)) = &l.fold {
            let x = self.val(*value);
            let line = fold(self, x);
            self.line(line);
        }
        if vec > 1 {
            self.close();
            if let (Some(var), Some(base)) = (inner, outside) {
                self.index.insert(var, base);
            }
            if let Some(e) = &mut self.element {
                e.lane = Text::number(0);
            }
        }
        for (id, view, index, name, narrow, form) in stores {
            match form {
                Form::Wide(bytes) => self.wide_store(id, view, &index, name, narrow, bytes, vec, predicate),
                Form::Pairs | Form::Once | Form::Each => self.pair_store(id, view, &index, &name, l, predicate),
            }
        }
    }

    /// Stores the elements that `name` collected byte by byte, each pair if it exists.
    fn pair_store(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[crate::ir::IxId],
        name: &str,
        l: &ElementLoop<'_>,
        predicate: Option<&Text>,
    ) {
        let inner = inner_axis(l.extents).map(|a| l.vars[a]);
        let outside = inner.and_then(|v| self.index.get(&v).cloned());
        self.line("#pragma unroll");
        let v = self.open_with("v", |v| format!("for (int {v} = 0; {v} < {}; {v} += 2)", l.distribution.vec));
        if let (Some(var), Some(base)) = (inner, &outside) {
            self.index.insert(var, Text::add(base, &v));
        }
        let place = self.place(view, index);
        let bound = self.bounds(id, view, index);
        let condition = match (predicate, bound) {
            (Some(p), Some(b)) => Some(Text::both(p, &b)),
            (p, b) => p.cloned().or(b),
        };
        let at = format!("({}) / 2", place.index.s);
        let line = format!("{}[{at}] = {name}[{v}] | {name}[{v} + 1] << 4;", place.base, v = v.s);
        self.guarded(condition, &line);
        self.close();
        if let (Some(var), Some(base)) = (inner, outside) {
            self.index.insert(var, base);
        }
    }

    /// True if a wide store can convert from f32 in pairs: its value is a cast used nowhere else.
    pub fn narrowing(&self, value: ValueId, to: DType) -> bool {
        let packs = matches!(to, DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2);
        let cast = self.k.value(value).def.and_then(|d| {
            let Op::Cast { x, .. } = &self.k.op(d).op else { return None };
            Some(*x)
        });
        packs
            && self.uses.get(&value).is_some_and(|u| u.0 == 1)
            && cast.is_some_and(|x| self.k.value(x).dtype == DType::F32)
    }

    #[expect(clippy::too_many_arguments, reason = "one access, spelled out")]
    fn wide_store(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[crate::ir::IxId],
        name: String,
        narrow: bool,
        bytes: usize,
        vec: usize,
        predicate: Option<&Text>,
    ) {
        let d = self.k.view(view).dtype;
        let mut source = name;
        if narrow {
            let wish = format!("{}_n", self.base_name(view));
            let packed = self.names.declare(&wish);
            let ty = memory_type(d);
            self.lower_f32(d, Text::name("0.0f"));
            self.line(format!("alignas(16) {ty} {packed}[{vec}];"));
            self.line(format!("f32_to_{ty}({packed}, {source});"));
            source = packed;
        }
        self.need(Snippet::Memory);
        let place = self.place(view, index);
        let bound = self.bounds(id, view, index);
        let condition = match (predicate, bound) {
            (Some(p), Some(b)) => Some(Text::both(p, &b)),
            (p, b) => p.cloned().or(b),
        };
        let mut at = place.index;
        if self.packed(id, view) {
            let pairs = self.names.declare("pairs");
            self.line(format!("alignas(16) u8 {pairs}[{}];", vec / 2));
            self.line("#pragma unroll");
            let each = format!("{pairs}[v] = {source}[2 * v] | {source}[2 * v + 1] << 4;");
            self.line(format!("for (int v = 0; v < {}; ++v) {each}", vec / 2));
            (source, at) = (pairs, Text::name(format!("({}) / 2", at.s)));
        }
        let line = format!("st<{bytes}>({}, {source});", Text::offset(&place.base, &at));
        self.guarded(condition, &line);
    }

    fn wide_load(
        &mut self,
        id: OpId,
        view: ViewId,
        index: &[crate::ir::IxId],
        bytes: usize,
        vec: usize,
        predicate: Option<&Text>,
    ) {
        let ty = memory_type(self.k.view(view).dtype);
        let place = self.place(view, index);
        let packed = self.packed(id, view);
        let (vec, at) = match packed {
            true => (vec / 2, Text::name(format!("({}) / 2", place.index.s))),
            false => (vec, place.index),
        };
        let address = Text::offset(&place.base, &at);
        let bound = self.bounds(id, view, index);
        let condition = match (predicate, bound) {
            (Some(p), Some(b)) => Some(Text::both(p, &b)),
            (p, b) => p.cloned().or(b),
        };
        let wish = format!("{}_v", self.base_name(view));
        let name = self.names.declare(&wish);
        self.line(format!("alignas(16) {ty} {name}[{vec}];"));
        let streaming = self.read_only(view);
        self.need(if streaming { Snippet::Global } else { Snippet::Memory });
        match (streaming, condition) {
            (true, None) => self.line(format!("ld_global<{bytes}>({name}, {address});")),
            (true, Some(c)) => self.line(format!("ld_global_if<{bytes}>({name}, {address}, {});", c.s)),
            (false, None) => self.line(format!("ld<{bytes}>({name}, {address});")),
            (false, Some(c)) => {
                self.line("#pragma unroll");
                self.line(format!("for (int v = 0; v < {vec}; ++v) {name}[v] = 0;"));
                self.line(format!("if ({}) ld<{bytes}>({name}, {address});", c.s));
            }
        }
        if let Some(e) = &mut self.element {
            e.arrays.insert(id, name);
        }
    }

    /// The text of a load in a body: an element of a wide load, a shared one, a register, or memory. The flag says that
    /// the text may be repeated and moved.
    pub fn element_load(&mut self, id: OpId, view: ViewId, index: &[crate::ir::IxId]) -> (Text, bool) {
        if let Some(e) = &self.element {
            if let Some(a) = e.arrays.get(&id) {
                let pairs = crate::pass::access::memory_bits(self.k, view) < 8;
                let x = if pairs { super::access::nibble(a, &e.lane) } else { Text::element(a, &e.lane) };
                let truth = self.k.view(view).dtype == DType::Bool;
                let zero = Text::number(0);
                let x = if truth { super::expr::compare_text(crate::ir::CmpOp::Ne, &x, &zero) } else { x };
                return (x, true);
            }
            if let Some(x) = e.once.get(&id) {
                return (x.clone(), true);
            }
        }
        let tile = self.register_tile(view);
        let stable = tile.is_some_and(|t| {
            !self.narrow.contains(&t) && self.element.as_ref().is_some_and(|e| !e.stored.contains(&t))
        });
        (self.load(id, view, index, None), stable)
    }

    /// Puts a value into the array of a wide store; false if the store is not wide.
    pub fn collect(&mut self, id: OpId, value: ValueId) -> bool {
        let Some(e) = &self.element else { return false };
        let Some((name, narrow)) = e.collect.get(&id).cloned() else { return false };
        let lane = Text::add(&e.collect_from, &e.lane);
        let x = match self.k.value(value).def.map(|d| &self.k.op(d).op) {
            Some(Op::Cast { x, .. }) if narrow => self.val(*x),
            _ => self.val(value),
        };
        self.line(format!("{} = {};", Text::element(&name, &lane).s, x.s));
        true
    }

    /// True if the value of a cast is only wanted as f32, by a wide store.
    pub fn cast_is_collected(&self, result: ValueId) -> bool {
        let Some(e) = &self.element else { return false };
        e.collect.iter().any(|(id, (_, narrow))| {
            *narrow && matches!(&self.k.op(*id).op, Op::Store { value, .. } if *value == result)
        })
    }
}
