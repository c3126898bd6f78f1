//! What threads do together: reductions, scans, searches. The order of every floating-point sum is the planned one.

use super::Emitter;
use super::expr::{Text, compare_text, literal, register_type};
use super::loops::ElementLoop;
use super::prelude::Snippet;
use crate::ir::{
    Base, BlockId, BufferId, DType, Distribution, Fragment, IxVarId, Literal, OpId, Order, ReduceOp, ScanKind, Space,
    ValueId, ViewId,
};
use crate::pass::distribute::{order_of, row_map};
use crate::pass::place::accumulator;

impl Emitter<'_> {
    /// Value that leaves the other side of an operation as it is. For float sums that is minus zero; for the larger and
    /// the smaller of floats it is NaN, so that elements that are all NaN give NaN.
    fn neutral(&self, op: ReduceOp, d: DType) -> Text {
        let bits = |bits| literal(Literal { dtype: d, bits });
        match (op, d) {
            (ReduceOp::Sum, DType::F32) => bits((-0.0f32).to_bits() as u64),
            (ReduceOp::Max | ReduceOp::Min | ReduceOp::AbsMax, DType::F32) => bits(f32::NAN.to_bits() as u64),
            (ReduceOp::Sum | ReduceOp::Or, _) => bits(0),
            // The smallest integer is its own absolute value.
            (ReduceOp::Max | ReduceOp::AbsMax, DType::I32) => bits(i32::MIN as u32 as u64),
            (ReduceOp::Min, DType::I32) => bits(i32::MAX as u64),
            (ReduceOp::Max | ReduceOp::AbsMax, DType::I64) => bits(i64::MIN as u64),
            (ReduceOp::Min, DType::I64) => bits(i64::MAX as u64),
            (ReduceOp::Max | ReduceOp::AbsMax, DType::I8) => bits(0x80),
            (ReduceOp::Min, DType::I8) => bits(0x7f),
            (ReduceOp::Max | ReduceOp::AbsMax, _) => bits(0),
            (ReduceOp::And, DType::Bool) => bits(1),
            (ReduceOp::Min | ReduceOp::And, _) => bits(u64::MAX >> (64 - d.bits())),
        }
    }

    fn too_narrow(&mut self, id: OpId, op: ReduceOp, d: DType) -> bool {
        let bad = matches!(d, DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::E2m1) && op == ReduceOp::Sum;
        if bad {
            self.unsupported(id, &format!("a sum in {d}"), "convert to f32 first");
        }
        bad
    }

    /// `dst = reduce(src)` along one axis.
    pub fn reduce(&mut self, id: OpId, op: ReduceOp, src: ViewId, dst: BufferId, axis: usize, order: Option<Order>) {
        let d = self.k.view(src).dtype;
        if self.too_narrow(id, op, d) {
            return;
        }
        self.phase += 1;
        self.ensure(dst);
        let extents = self.k.const_extents(src).unwrap_or_default();
        if axis + 1 != extents.len() {
            self.reduce_columns(op, src, dst, axis, &extents);
            return;
        }
        if let Some(t) = self.register_tile(src)
            && let Some(f) = self.k.buffer(t).distribution.as_ref().and_then(|d| d.fragment)
        {
            self.reduce_fragment(op, t, dst, &f);
            return;
        }
        let (n, threads) = (extents[axis], self.threads());
        let order = order_of(order, op, d, &[n], self.k.warps);
        let map = row_map(order, n, threads);
        let dist = Distribution { split_axis: axis, vec: map.vec, lanes: map.lanes, threads, fragment: None };
        let (rounds, steps, groups) = (dist.rounds(&extents), dist.steps(&extents), dist.groups());
        let outer = dist.outer(&extents);
        let a = accumulator(d);
        let ty = register_type(a);
        let wide = map.lanes > 32 && self.k.warps > 1;
        let f = self.functor(op, d);
        let (lane, group) = self.lane_and_group(&dist);
        let scratch = if wide { self.scratch.take().map(|s| self.buffer(s)) } else { None };

        // One accumulator a row, then its lanes.
        let row_loop = |this: &mut Self| -> Text {
            if rounds == 1 {
                this.open("");
                return Text::number(0);
            }
            this.line("#pragma unroll");
            this.open_with("r", |r| format!("for (int {r} = 0; {r} < {rounds}; ++{r})"))
        };
        let r = row_loop(self);
        let out = Text::add(&Text::mul(&r, &Text::number(groups as i64)), &group);
        let acc = self.names.declare("acc");
        let start = self.neutral(op, a);
        self.line(format!("{ty} {acc} = {};", start.s));
        self.fold_row(op, src, &extents, &dist, &acc, &r, &out, &lane, steps);
        let lanes = map.lanes.min(32);
        let mut x =
            if lanes > 1 { Text::name(format!("reduce_lanes<{f}, {lanes}>({acc})")) } else { Text::name(acc.clone()) };
        if let Some(partials) = &scratch {
            self.used_warp = true;
            let warps = self.k.warps;
            self.line(format!("{acc} = {};", x.s));
            let at = Text::add(&Text::mul(&r, &Text::number(warps as i64)), &Text::name("warp"));
            self.line(format!("if (lane == 0) {partials}[{}] = {acc};", at.s));
            self.close();
            self.line("__syncthreads();  // partial results of all warps");
            let r2 = row_loop(self);
            let at = Text::offset(partials, &Text::mul(&r2, &Text::number(warps as i64)));
            x = Text::name(format!("reduce_warps<{f}, {warps}>({at})"));
            self.put_row(dst, d, x, &r2, &r2, &lane, outer, groups);
            self.close();
            return;
        }
        if self.k.buffer(dst).space != Space::Frag && lanes > 1 {
            self.line(format!("{acc} = {};", x.s));
            x = Text::name(acc);
        }
        self.put_row(dst, d, x, &r, &out, &lane, outer, groups);
        self.close();
    }

    /// Reduces the rows of a warp group's accumulator where they lie: each thread its elements in ascending order, then the
    /// four lanes of the row.
    fn reduce_fragment(&mut self, op: ReduceOp, src: BufferId, dst: BufferId, f: &Fragment) {
        let d = self.k.buffer(src).dtype;
        let (a, function) = (accumulator(d), self.functor(op, d));
        let (name, start) = (self.buffer(src), self.neutral(op, a));
        let [waves, pieces] = f.atoms;
        self.line("#pragma unroll");
        let r = self.open_with("r", |r| format!("for (int {r} = 0; {r} < {}; ++{r})", 2 * waves));
        let acc = self.names.declare("acc");
        self.line(format!("{} {acc} = {};", register_type(a), start.s));
        self.line("#pragma unroll");
        let s = self.open_with("s", |s| format!("for (int {s} = 0; {s} < {}; ++{s})", 2 * pieces));
        let wave =
            if waves > 1 { format!("{0} / 2 * {1} + {0} % 2 * 2", r.s, 4 * pieces) } else { format!("{} * 2", r.s) };
        let x = self.lift(d, Text::name(format!("{name}[{wave} + {0} / 2 * 4 + {0} % 2]", s.s)), true);
        let line = self.fold(op, d, &acc, &x);
        self.line(line);
        self.close();
        let mut x = Text::name(format!("reduce_lanes<{function}, 4>({acc})"));
        if self.k.buffer(dst).space != Space::Frag {
            self.line(format!("{acc} = {};", x.s));
            x = Text::name(acc);
        }
        let row = self.fragment_row(f, &r);
        self.put_row(dst, d, x, &r, &row, &Text::name("lane % 4"), 1, 1);
        self.close();
    }

    /// Folds the elements of a row that this thread has, in ascending order.
    #[expect(clippy::too_many_arguments, reason = "the loop nest's names")]
    fn fold_row(
        &mut self,
        op: ReduceOp,
        src: ViewId,
        extents: &[usize],
        dist: &Distribution,
        acc: &str,
        r: &Text,
        out: &Text,
        lane: &Text,
        steps: usize,
    ) {
        let (d, vec) = (self.k.view(src).dtype, dist.vec);
        let (n, outer) = (dist.inner(extents), dist.outer(extents));
        let mut opened = 0;
        let mut s = Text::number(0);
        if steps > 1 {
            self.line("#pragma unroll");
            s = self.open_with("s", |s| format!("for (int {s} = 0; {s} < {steps}; ++{s})"));
            opened += 1;
        }
        let unit = Text::add(&Text::mul(&s, &Text::number(dist.lanes as i64)), lane);
        let at = Text::mul(&unit, &Text::number(vec as i64));
        let padded = !n.is_multiple_of(vec * dist.lanes);
        let tile = self.register_tile(src);
        let missing_row = tile.is_none() && outer % dist.groups() != 0;
        let mut condition = padded.then(|| Text::less(&at, &Text::number(n as i64)));
        if missing_row {
            let c = Text::less(out, &Text::number(outer as i64));
            condition = Some(condition.map_or(c.clone(), |p| Text::both(&p, &c)));
        }
        if let Some(c) = condition {
            self.open(&format!("if ({})", c.s));
            opened += 1;
        }
        // Where the elements are: registers, or memory from `base` on.
        let element: Box<dyn Fn(&Text) -> Text> = if let Some(t) = tile {
            let name = self.buffer(t);
            let flat = Text::add(&Text::mul(r, &Text::number(steps as i64)), &s);
            let first = Text::mul(&flat, &Text::number(vec as i64));
            Box::new(move |v| Text::element(&name, &Text::add(&first, v)))
        } else {
            let (base, stride) = self.row_base(src, extents, out);
            if vec > 1 && stride == 1 {
                self.need(Snippet::Memory);
                let bytes = (vec * d.bits() / 8).min(16);
                let name = self.names.declare("x");
                let ty = super::expr::memory_type(d);
                self.line(format!("alignas(16) {ty} {name}[{vec}];"));
                let from = Text::offset(&base, &at);
                self.line(format!("ld<{bytes}>({name}, {from});"));
                Box::new(move |v| Text::element(&name, v))
            } else {
                Box::new(move |v| {
                    let e = Text::mul(&Text::add(&at, v), &Text::number(stride));
                    Text::element(&format!("({base})"), &e)
                })
            }
        };
        let mut v = Text::number(0);
        if vec > 1 {
            self.line("#pragma unroll");
            v = self.open_with("v", |v| format!("for (int {v} = 0; {v} < {vec}; ++{v})"));
            opened += 1;
        }
        let mut x = element(&v);
        if let Some(t) = tile {
            x = self.held(t, x);
        }
        let x = self.lift(d, x, tile.is_some());
        let line = self.fold(op, d, acc, &x);
        self.line(line);
        for _ in 0..opened {
            self.close();
        }
    }

    /// A stored element in the accumulator's type.
    fn lift(&mut self, d: DType, x: Text, register: bool) -> Text {
        if d.is_float() {
            self.lift_f32(d, x)
        } else if d == DType::Bool && !register {
            compare_text(crate::ir::CmpOp::Ne, &x, &Text::number(0))
        } else {
            x
        }
    }

    /// Address of a row of a shared tile, and the distance of its elements.
    fn row_base(&mut self, src: ViewId, extents: &[usize], out: &Text) -> (String, i64) {
        let v = self.k.view(src);
        let name = match v.base {
            Base::Buffer(b) => self.buffer(b),
            Base::Param(p) => self.param(p),
        };
        let mut sum = self.ix(v.offset);
        let rank = extents.len();
        let rows: Vec<usize> = (0..rank - 1).filter(|&a| extents[a] > 1).collect();
        for (n, &a) in rows.iter().enumerate() {
            let below: usize = rows[n + 1..].iter().map(|&b| extents[b]).product();
            let mut part = out.clone();
            if below > 1 {
                part = Text::name(format!("({}) / {below}", part.s));
            }
            if n > 0 {
                part = Text::name(format!("({}) % {}", part.s, extents[a]));
            }
            if below > 1 || n > 0 {
                part = Text::name(format!("({})", part.s));
            }
            let s = self.ix(v.strides[a]);
            sum = Text::add(&sum, &Text::mul(&part, &s));
        }
        let stride = self.k.ix_const(v.strides[rank - 1]).unwrap_or(1);
        (Text::offset(&name, &sum), stride)
    }

    /// Stores the result of row `r` of this thread, which is row `out` of all.
    #[expect(clippy::too_many_arguments, reason = "one statement, spelled out")]
    fn put_row(
        &mut self,
        dst: BufferId,
        d: DType,
        x: Text,
        r: &Text,
        out: &Text,
        lane: &Text,
        outer: usize,
        groups: usize,
    ) {
        let x = if d.is_float() { self.lower_f32(d, x) } else { x };
        let name = self.buffer(dst);
        if self.k.buffer(dst).space == Space::Frag {
            let single = self
                .k
                .buffer(dst)
                .distribution
                .as_ref()
                .is_none_or(|dd| dd.registers(&self.k.buffer(dst).extents) <= 1);
            let at = if single { Text::number(0) } else { r.clone() };
            self.line(format!("{} = {};", Text::element(&name, &at).s, x.s));
            return;
        }
        let mut condition = None;
        if !lane.is_zero() {
            condition = Some(compare_text(crate::ir::CmpOp::Eq, lane, &Text::number(0)));
        }
        if !outer.is_multiple_of(groups) {
            let c = Text::less(out, &Text::number(outer as i64));
            condition = Some(condition.map_or(c.clone(), |p| Text::both(&p, &c)));
        }
        let x = if d == DType::Bool { Text::cast("u8", &x) } else { x };
        let line = format!("{} = {};", Text::element(&name, out).s, x.s);
        match condition {
            Some(c) => self.line(format!("if ({}) {line}", c.s)),
            None => self.line(line),
        }
    }

    /// Reduction along another axis than the last: each thread does whole columns, in order.
    fn reduce_columns(&mut self, op: ReduceOp, src: ViewId, dst: BufferId, axis: usize, extents: &[usize]) {
        let d = self.k.view(src).dtype;
        let a = accumulator(d);
        let n = extents[axis];
        let columns = extents.iter().product::<usize>() / n.max(1);
        let (tid, threads) = (self.tid(), self.threads());
        let c = self.open_with("c", |c| format!("for (int {c} = {tid}; {c} < {columns}; {c} += {threads})")).s;
        // Coordinates of the column in the source, axis by axis.
        let v = self.k.view(src);
        let base = match v.base {
            Base::Buffer(b) => self.buffer(b),
            Base::Param(p) => self.param(p),
        };
        let mut sum = self.ix(v.offset);
        let others: Vec<usize> = (0..extents.len()).filter(|&x| x != axis && extents[x] > 1).collect();
        for (i, &x) in others.iter().enumerate() {
            let under: usize = others[i + 1..].iter().map(|&y| extents[y]).product();
            let mut part = c.clone();
            if under > 1 {
                part = format!("{part} / {under}");
            }
            if i > 0 {
                part = format!("{part} % {}", extents[x]);
            }
            let part = if part == c { Text::name(part) } else { Text::name(format!("({part})")) };
            let s = self.ix(v.strides[x]);
            sum = Text::add(&sum, &Text::mul(&part, &s));
        }
        let ty = super::expr::memory_type(d);
        let column = self.names.declare("column");
        self.line(format!("const {ty}* const {column} = {};", Text::offset(&base, &sum)));
        let stride = self.ix(v.strides[axis]);
        let acc = self.names.declare("acc");
        let start = self.neutral(op, a);
        self.line(format!("{} {acc} = {};", register_type(a), start.s));
        let e = self.open_with("e", |e| format!("for (int {e} = 0; {e} < {n}; ++{e})"));
        let x = Text::element(&column, &Text::mul(&e, &stride));
        let x = self.lift(d, x, false);
        let line = self.fold(op, d, &acc, &x);
        self.line(line);
        self.close();
        let x = if d.is_float() { self.lower_f32(d, Text::name(acc)) } else { Text::name(acc) };
        let name = self.buffer(dst);
        self.line(format!("{name}[{c}] = {};", x.s));
        self.close();
    }

    /// `result = reduce(value over the box)`.
    #[expect(clippy::too_many_arguments, reason = "the op's fields")]
    pub fn reduce_region(
        &mut self,
        id: OpId,
        op: ReduceOp,
        vars: &[IxVarId],
        extents: &[usize],
        region: BlockId,
        value: ValueId,
        result: ValueId,
        order: Option<Order>,
    ) {
        let d = self.value_type(value);
        if self.too_narrow(id, op, d) {
            return;
        }
        let order = order_of(order, op, d, extents, self.k.warps);
        let (lanes, threads) = (order.lanes, self.threads());
        let a = accumulator(d);
        let acc = self.names.declare("acc");
        let start = self.neutral(op, a);
        self.line(format!("{} {acc} = {};", register_type(a), start.s));
        let name = acc.clone();
        let fold = move |e: &mut Emitter<'_>, x: Text| {
            let x = if d.is_float() { e.lift_f32(d, x) } else { x };
            e.fold(op, d, &name, &x)
        };
        let l = ElementLoop {
            vars,
            extents,
            body: region,
            distribution: Distribution { split_axis: 0, vec: order.per_lane, lanes, threads, fragment: None },
            redundant: true,
            fold: Some((value, &fold)),
        };
        self.element_loop(&l);
        let f = self.functor(op, d);
        let wide = lanes > 32 && self.k.warps > 1;
        let mut x = Text::name(format!("reduce_lanes<{f}, {}>({acc})", lanes.min(32)));
        if let (true, Some(s)) = (wide, self.scratch.take_if(|_| wide)) {
            let partials = self.buffer(s);
            self.used_warp = true;
            self.line(format!("{acc} = {};", x.s));
            self.line(format!("if (lane == 0) {partials}[warp] = {acc};"));
            self.line("__syncthreads();  // partial results of all warps");
            x = Text::name(format!("reduce_warps<{f}, {}>({partials})", self.k.warps));
        }
        let x = if d.is_float() { self.lower_f32(d, x) } else { x };
        let name = self.names.declare("t");
        self.line(format!("const {} {name} = {};", register_type(d), x.s));
        self.values.insert(result, Text::name(name));
    }

    /// Prefix or suffix combination.
    #[expect(clippy::too_many_arguments, reason = "the op's fields")]
    pub fn scan(
        &mut self,
        id: OpId,
        op: ReduceOp,
        kind: ScanKind,
        src: ViewId,
        dst: BufferId,
        axis: usize,
        total: Option<ValueId>,
    ) {
        let d = self.k.view(src).dtype;
        if !matches!(d, DType::I32 | DType::U32 | DType::I64 | DType::F32) || (d == DType::F32 && op == ReduceOp::Sum) {
            self.unsupported(id, &format!("a scan of {d}"), "scan i32, u32 or i64");
            return;
        }
        self.ensure(dst);
        self.need(Snippet::Scan);
        let extents = self.k.const_extents(src).unwrap_or_default();
        let (reverse, inclusive) = match kind {
            ScanKind::PrefixExclusive => (false, false),
            ScanKind::PrefixInclusive => (false, true),
            ScanKind::SuffixExclusive => (true, false),
            ScanKind::SuffixInclusive => (true, true),
        };
        let f = self.functor(op, d);
        let ty = register_type(d);
        let none = self.neutral(op, d);
        let target = self.buffer(dst);
        let n = extents[axis];
        let position = |p: &str| if reverse { format!("{} - {p}", n - 1) } else { p.to_string() };
        if axis + 1 != extents.len() {
            let below: usize = extents[axis + 1..].iter().product();
            let columns = extents.iter().product::<usize>() / n.max(1);
            let tid = self.tid();
            let base = self.flat_base(src);
            self.open(&format!("for (int c = {tid}; c < {columns}; c += {})", self.threads()));
            self.line(format!("const int at = c / {below} * {} + c % {below};", n * below));
            self.line(format!("{ty} run = {};", none.s));
            self.open(&format!("for (int e = 0; e < {n}; ++e)"));
            self.line(format!("const int p = at + ({}) * {below};", position("e")));
            self.line(format!("const {ty} x = {base}[p];"));
            let step = format!("run = {f}::apply(run, x);");
            self.scan_step(inclusive, &step, &format!("{target}[p] = run;"));
            self.close();
            self.close();
            return;
        }
        let (threads, warps) = (self.threads(), self.k.warps);
        let items = n.div_ceil(threads);
        let rows = extents.iter().product::<usize>() / n.max(1);
        let partials = match self.scratch.take() {
            Some(s) => self.buffer(s),
            None => format!("({ty}*)nullptr"),
        };
        let base = self.flat_base(src);
        let tid = self.tid();
        let sum = self.names.declare("total");
        self.line(format!("{ty} {sum};"));
        if rows > 1 {
            self.open(&format!("for (int row = 0; row < {rows}; ++row)"));
        } else {
            self.open("");
        }
        let shift = if rows > 1 { format!("row * {n} + ") } else { String::new() };
        self.line(format!("{ty} x[{items}], part = {};", none.s));
        self.line("#pragma unroll");
        self.open(&format!("for (int i = 0; i < {items}; ++i)"));
        self.line(format!("const int p = {tid} * {items} + i;"));
        self.line(format!("x[i] = p < {n} ? {base}[{shift}{}] : {};", position("p"), none.s));
        self.line(format!("part = {f}::apply(part, x[i]);"));
        self.close();
        self.line(format!("{ty} run = scan_block<{f}, {warps}>(part, ({ty}){}, {partials}, {sum});", none.s));
        self.line("#pragma unroll");
        self.open(&format!("for (int i = 0; i < {items}; ++i)"));
        self.line(format!("const int p = {tid} * {items} + i;"));
        let step = format!("run = {f}::apply(run, x[i]);");
        self.scan_step(inclusive, &step, &format!("if (p < {n}) {target}[{shift}{}] = run;", position("p")));
        self.close();
        if rows > 1 && warps > 1 {
            self.line("__syncthreads();  // the next row reuses the partial results");
        }
        self.close();
        if let Some(t) = total {
            self.values.insert(t, Text::name(sum));
        }
    }

    fn scan_step(&mut self, inclusive: bool, step: &str, write: &str) {
        let lines = if inclusive { [step, write] } else { [write, step] };
        for l in lines {
            self.line(l);
        }
    }

    /// Pointer to the first element of a whole tile.
    fn flat_base(&mut self, src: ViewId) -> String {
        let v = self.k.view(src);
        let name = match v.base {
            Base::Buffer(b) => self.buffer(b),
            Base::Param(p) => self.param(p),
        };
        let offset = self.ix(v.offset);
        if offset.is_zero() { name } else { format!("({})", Text::offset(&name, &offset)) }
    }

    /// Smallest index whose condition holds.
    pub fn find_first(&mut self, var: IxVarId, extent: usize, region: BlockId, cond: ValueId, result: IxVarId) {
        let tid = self.tid();
        let f = self.functor(ReduceOp::Min, DType::I32);
        let scratch = self.scratch.take().map(|s| self.buffer(s));
        let first = self.names.declare("first");
        self.line(format!("int {first} = {extent};"));
        let k = self.k;
        let mut e = super::loops::Element::plain(
            vec![var],
            crate::pass::access::defined_inside(k, region),
            self.out.len(),
            self.names.depth(),
            self.depth,
        );
        e.extents = vec![1];
        self.element = Some(e);
        let threads = self.threads();
        let head = |i: &str| format!("for (int {i} = {tid}; {i} < {extent}; {i} += {threads})");
        let i = self.open_with(&k.ix_var(var).name, head).s;
        self.index.insert(var, Text::name(i.clone()));
        self.block(region);
        let c = self.val(cond);
        self.open(&format!("if ({})", c.s));
        self.line(format!("{first} = {i};"));
        self.line("break;");
        self.close();
        self.close();
        self.element = None;
        let mut x = Text::name(format!("reduce_lanes<{f}, 32>({first})"));
        if let Some(partials) = scratch {
            self.used_warp = true;
            self.line(format!("{first} = {};", x.s));
            self.line(format!("if (lane == 0) {partials}[warp] = {first};"));
            self.line("__syncthreads();  // partial results of all warps");
            x = Text::name(format!("reduce_warps<{f}, {}>({partials})", k.warps));
        }
        self.declare_ix(result, &x);
    }
}
