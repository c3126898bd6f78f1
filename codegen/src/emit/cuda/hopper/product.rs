//! Products by the matrix unit of a warp group: 64 rows at a time, straight into the accumulator, or with scales into
//! registers of their own that are added to it afterwards.
//!
//! Loops over registers are flat and fully unrolled: an accumulator that is indexed at run time would lie in memory.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::loops::Element;
use super::super::prelude::Snippet;
use super::super::prelude::wgmma::Wgmma;
use crate::ir::{BufferId, CmpOp, Fragment, GemmScale, IxExpr, IxId, IxVarId, Op, OpId, RingId, ViewId};
use crate::pass::access::defined_inside;
use crate::pass::walk;

/// Rows of a matrix instruction.
const ROWS: usize = 64;
/// Bytes of a row of an operand's panel.
const ROW_BYTES: i64 = 128;

/// An operand in shared memory.
struct Operand {
    /// Descriptor of the first step of the first rows.
    name: String,
    /// Steps along k within a panel, and what one adds to the descriptor.
    steps: usize,
    step: i64,
    /// What a panel adds.
    panel: i64,
    /// K runs across the rows.
    across: bool,
}

impl Operand {
    fn at(&self, wave: Option<&Text>, step: &Text, count: usize) -> String {
        let mut t = Text::name(self.name.clone());
        if let Some(w) = wave {
            t = Text::add(&t, &Text::mul(w, &Text::number(ROWS as i64 * ROW_BYTES / 16)));
        }
        if step.is_zero() {
            return t.s;
        }
        if count <= self.steps {
            return Text::add(&t, &Text::mul(step, &Text::number(self.step))).s;
        }
        let panel = Text::mul(&Text::over(step, self.steps), &Text::number(self.panel));
        let inside = Text::name(format!("{} % {}", step.s, self.steps));
        let inside = Text::mul(&inside, &Text::number(self.step));
        Text::add(&Text::add(&t, &panel), &inside).s
    }
}

/// How the factor of a column depends on the column.
enum Columns {
    /// Not at all.
    One,
    /// Only through `(start + column) / by`: one factor for each of `count` quotients.
    Quotients { start: Option<IxId>, by: i64, unit: i64, count: usize },
    /// It is the same for 8 aligned columns.
    Pieces,
    /// In any way.
    Each,
}

impl Emitter<'_> {
    fn wgmma_operand(&mut self, view: ViewId, k_axis: usize, wish: &str) -> Option<Operand> {
        let v = self.k.view(view);
        let size = (v.dtype.bits() / 8) as i64;
        let unit = self.k.ix_const(v.strides[k_axis])? == 1;
        let (buffer, m) = self.layout(view)?;
        let (swizzle, p) = (m.swizzle, self.panels(buffer)?);
        if swizzle != Some((3, 4, 3)) || p.width * size != ROW_BYTES {
            return None;
        }
        let bytes = self.shared_bytes_to(view, &[])?;
        if bytes.alignment() % 1024 != 0 {
            return None;
        }
        let across = !unit;
        if across && (k_axis == 1 || size != 2 || self.k.ix_const(v.strides[1 - k_axis])? != 1) {
            return None;
        }
        let mut constant = bytes.clone();
        let moving = bytes.moving().over(16)?.text();
        constant = super::Linear::constant(constant.number);
        let address = self.shared_address(&constant).s;
        let tile = match across {
            false => format!("wgmma_tile({address})"),
            true => format!("wgmma_tile_across({address}, {})", p.rows * ROW_BYTES),
        };
        let text = Text::add(
            &Text::name(tile),
            &if moving.is_zero() { moving } else { Text::cast("u32", &Text::name(format!("({})", moving.s))) },
        );
        let name = self.names.declare(wish);
        self.line(format!("const u64 {name} = {};", text.s));
        let panel = p.rows * ROW_BYTES / 16;
        Some(match across {
            false => Operand { name, steps: (ROW_BYTES / 32) as usize, step: 2, panel, across },
            true => Operand { name, steps: usize::MAX, step: 16 * ROW_BYTES / 16, panel: 0, across },
        })
    }

    /// `acc += a x b`, or `acc = a x b`; `release`s what the operands lie in.
    pub fn wgmma(
        &mut self,
        id: OpId,
        [a, b]: [ViewId; 2],
        acc: BufferId,
        set: bool,
        scales: Option<[GemmScale; 2]>,
        release: &[(RingId, u32)],
    ) {
        self.phase += 1;
        self.ensure(acc);
        let (ea, eb) = (self.k.const_extents(a).unwrap_or_default(), self.k.const_extents(b).unwrap_or_default());
        let (&[m, depth], &[_, n]) = (&ea[..], &eb[..]) else { return };
        let share = Fragment::warp_group(m, n);
        let held = self.k.buffer(acc).distribution.as_ref().and_then(|d| d.fragment);
        let dtype = self.k.view(a).dtype;
        let unit = Wgmma::new(n, dtype).filter(|w| self.k.view(b).dtype == dtype && depth.is_multiple_of(w.k()));
        let Some(mut unit) = unit.filter(|_| m.is_multiple_of(ROWS) && held == Some(share)) else {
            let what =
                format!("a warp group's product of {dtype}[{m}, {depth}] and {}[{depth}, {n}]", self.k.view(b).dtype);
            self.refuse(id, what);
            return;
        };
        self.need(Snippet::Wgmma);
        self.used_warp = true;
        self.open("");
        let operands = (self.wgmma_operand(a, 1, "a_tile"), self.wgmma_operand(b, 0, "b_tile"));
        let (Some(left), Some(right)) = operands else {
            self.refuse(id, "an operand of a warp group's product that is not in swizzled rows of 128 bytes".into());
            return;
        };
        let panels_hold = |o: &Operand, this: &Self, v: ViewId| {
            depth / unit.k() <= o.steps || this.layout(v).is_some_and(|(_, m)| m.panel.is_some())
        };
        if !panels_hold(&left, self, a) || !panels_hold(&right, self, b) {
            self.refuse(id, "an operand of a warp group's product whose rows are longer than 128 bytes".into());
            return;
        }
        if right.across {
            let Some(w) = unit.with_k_across() else { return };
            unit = w;
        }
        self.frame.products.insert(unit);
        let waves = m / ROWS;
        let registers = n / 2;
        let columns = scales.as_ref().map(|s| self.columns(&s[1], n));
        let held_columns = match (&scales, &columns) {
            (Some(s), Some(c)) => Some(self.column_factors(&s[1], c, n)),
            _ => None,
        };
        let part = scales.is_some().then(|| {
            let name = self.names.declare("part");
            self.line(format!("float {name}[{registers}];"));
            name
        });
        let name = self.buffer(acc);
        let wave = (waves > 1).then(|| {
            self.line("#pragma unroll");
            self.open_with("wave", |w| format!("for (int {w} = 0; {w} < {waves}; ++{w})"))
        });
        let first = wave.as_ref().map_or(Text::number(0), |w| Text::mul(w, &Text::number(registers as i64)));
        let rows = scales.as_ref().map(|s| self.row_factors(&s[0], wave.as_ref()));
        let d = match &part {
            Some(p) => p.clone(),
            None if waves == 1 => name.clone(),
            None => format!("reinterpret_cast<float (&)[{registers}]>({name}[{}])", first.s),
        };
        self.line(format!("wgmma_pin({d});"));
        self.line("wgmma_begin();");
        let steps = depth / unit.k();
        let fresh = set || part.is_some();
        let call = |step: &Text, add: &str| {
            let (x, y) = (left.at(wave.as_ref(), step, steps), right.at(None, step, steps));
            format!("{}({d}, {x}, {y}, {add});", unit.name())
        };
        if steps == 1 {
            self.line(call(&Text::number(0), if fresh { "0" } else { "1" }));
        } else {
            self.line("#pragma unroll");
            let step = self.names.declare("step");
            let add = if fresh { format!("{step} != 0") } else { "1".into() };
            let line = call(&Text::name(step.clone()), &add);
            self.line(format!("for (int {step} = 0; {step} < {steps}; ++{step}) {line}"));
        }
        self.line("wgmma_commit();");
        self.line("wgmma_wait<0>();");
        self.line(format!("wgmma_pin({d});"));
        self.early_releases(release, wave.as_ref(), waves);
        if let (Some(p), Some(r), Some(s), Some(c), Some(h)) = (&part, &rows, &scales, &columns, &held_columns) {
            self.promote([p, r, h], &name, &first, set, (&s[1], c), n);
        }
        if wave.is_some() {
            self.close();
        }
        self.close();
    }

    /// Releases once the last wave has read its operands.
    fn early_releases(&mut self, release: &[(RingId, u32)], wave: Option<&Text>, waves: usize) {
        if release.is_empty() {
            return;
        }
        if let Some(w) = wave {
            self.open(&format!("if ({} == {})", w.s, waves - 1));
        }
        for &(ring, part) in release {
            self.release(ring, part, false);
        }
        if wave.is_some() {
            self.close();
        }
    }

    /// `acc += row * column * part`, 8 columns at a time.
    fn promote(
        &mut self,
        [part, rows, columns]: [&str; 3],
        acc: &str,
        first: &Text,
        set: bool,
        (scale, kind): (&GemmScale, &Columns),
        n: usize,
    ) {
        self.line("#pragma unroll");
        let c = self.open_with("c", |c| format!("for (int {c} = 0; {c} < {}; ++{c})", n / 8));
        let piece = |e: usize| Text::add(&Text::mul(&c, &Text::number(4)), &Text::number(e as i64));
        let factors: Vec<String> = match kind {
            Columns::One => vec![columns.to_string(); 2],
            Columns::Quotients { by, unit, count, .. } => {
                // A quotient changes only at multiples of `unit`.
                let at = match unit {
                    8 => format!("{} * 8", c.s),
                    u => format!("{} * 8 / {u} * {u}", c.s),
                };
                let mut text = format!("{columns}[{}]", count - 1);
                for q in (0..count - 1).rev() {
                    let edge = if q == 0 { "edge".to_string() } else { format!("edge + {}", by * q as i64) };
                    text = format!("{at} < {edge} ? {columns}[{q}] : {text}");
                }
                let name = self.names.declare("column_scale_c");
                self.line(format!("const float {name} = {text};"));
                vec![name; 2]
            }
            Columns::Pieces => {
                let at = Text::mul(&c, &Text::number(8));
                vec![self.factor_at(scale, &at, "column_scale"); 2]
            }
            Columns::Each => (0..2)
                .map(|e| {
                    let at = Text::add(&Text::mul(&c, &Text::number(8)), &Text::name("lane % 4 * 2"));
                    self.factor_at(scale, &Text::add(&at, &Text::number(e)), "column_scale")
                })
                .collect(),
        };
        let mut scale_names: Vec<(String, String)> = vec![];
        for e in 0..4 {
            let product = format!("{rows}[{}] * {}", e / 2, factors[e % 2]);
            let name = match scale_names.iter().find(|s| s.0 == product) {
                Some(s) => s.1.clone(),
                None => {
                    let name = self.names.declare("f");
                    self.line(format!("const float {name} = {product};"));
                    scale_names.push((product, name.clone()));
                    name
                }
            };
            let at = Text::add(first, &piece(e)).s;
            let old = if set { "0.0f".to_string() } else { format!("{acc}[{at}]") };
            self.line(format!("{acc}[{at}] = __fmaf_rn({name}, {part}[{}], {old});", piece(e).s));
        }
        self.close();
    }

    /// Prints a scale's body for one index; returns the name of the factor.
    fn factor_at(&mut self, scale: &GemmScale, at: &Text, wish: &str) -> String {
        let k = self.k;
        let mut e = Element::plain(
            vec![scale.var],
            defined_inside(k, k.block(scale.body)),
            self.out.len(),
            self.names.depth(),
            self.depth,
        );
        e.extents = vec![1];
        self.element = Some(e);
        let name = self.names.declare(wish);
        let plain = at.s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let var = if plain || !self.body_mentions(scale) {
            at.s.clone()
        } else {
            let var = self.names.declare(&k.ix_var(scale.var).name.clone());
            self.line(format!("const int {var} = {};", at.s));
            var
        };
        self.index.insert(scale.var, Text::name(var));
        self.block(scale.body);
        let x = self.val(scale.value);
        self.line(format!("const float {name} = {};", x.s));
        self.element = None;
        name
    }

    fn body_mentions(&self, scale: &GemmScale) -> bool {
        let mut found = false;
        walk(self.k, self.k.block(scale.body), &mut |_, op| {
            found |= indices(op).iter().any(|&i| self.ranges.mentions(i, scale.var));
            found |= views(op).iter().any(|&v| self.ranges.mentions(self.k.view(v).offset, scale.var));
        });
        found
    }

    /// Factors of the two rows a thread holds of each 64.
    fn row_factors(&mut self, scale: &GemmScale, wave: Option<&Text>) -> String {
        let k = self.k;
        let name = self.names.declare("row_scale");
        self.line(format!("float {name}[2];"));
        self.line("#pragma unroll");
        let h = self.open_with("h", |h| format!("for (int {h} = 0; {h} < 2; ++{h})"));
        let wave = wave.map_or(Text::number(0), |w| Text::mul(w, &Text::number(ROWS as i64)));
        let parts = [Text::name("warp * 16"), Text::mul(&h, &Text::number(8)), Text::name("lane / 4")];
        let at = parts.iter().fold(wave, |s, p| Text::add(&s, p));
        let x = self.factor_at(scale, &at, &format!("{}_h", k.ix_var(scale.var).name));
        self.line(format!("{name}[{}] = {x};", h.s));
        self.close();
        name
    }

    /// Factors of columns that are worked out in front of the products; the name of the scalar or array.
    fn column_factors(&mut self, scale: &GemmScale, kind: &Columns, n: usize) -> String {
        match kind {
            Columns::One if self.k.block(scale.body).ops.is_empty() => self.val(scale.value).s,
            Columns::One => self.factor_at(scale, &Text::number(0), "column_scale"),
            Columns::Quotients { start, by, count, .. } => {
                let first = start.map_or(Text::number(0), |s| self.ix(s));
                let edge = self.names.declare("edge");
                let inside = Text::name(format!("({}) % {by}", first.s));
                self.line(format!(
                    "const int {edge} = {};  // first column of the next {by}",
                    Text::sub(&Text::number(*by), &inside).s
                ));
                let name = self.names.declare("column_scale");
                self.line(format!("float {name}[{count}];"));
                self.line("#pragma unroll");
                let q = self.open_with("q", |q| format!("for (int {q} = 0; {q} < {count}; ++{q})"));
                self.need(Snippet::MinMax);
                let last = n - 1;
                let at = format!("{0} == 0 ? 0 : min_of<int>({edge} + ({0} - 1) * {by}, {last})", q.s);
                let x = self.factor_at(scale, &Text::name(at), "column_scale_q");
                self.line(format!("{name}[{}] = {x};", q.s));
                self.close();
                name
            }
            Columns::Pieces | Columns::Each => String::new(),
        }
    }

    /// How the factor of a column depends on the column.
    fn columns(&self, scale: &GemmScale, n: usize) -> Columns {
        let mut list = vec![];
        let mut pieces = true;
        let mut compares = false;
        walk(self.k, self.k.block(scale.body), &mut |_, op| {
            for v in views(op) {
                let view = self.k.view(v);
                let parts = view.strides.iter().chain(&view.extents).chain([&view.offset]);
                for &i in parts.chain(view.guards.iter().flat_map(|g| [&g.0, &g.1])) {
                    self.quotients(i, scale.var, &mut list, &mut pieces);
                }
            }
            if let Op::CompareIndex { a, b, op, .. } = op {
                if [a, b].iter().any(|&&i| self.ranges.mentions(i, scale.var)) {
                    compares = true;
                    pieces &= self.changes_between_pieces(*op, *a, *b, scale.var);
                }
                return;
            }
            for i in indices(op) {
                self.quotients(i, scale.var, &mut list, &mut pieces);
            }
        });
        if !pieces {
            return Columns::Each;
        }
        if compares {
            return Columns::Pieces;
        }
        let Some(&(start, by)) = list.first() else { return Columns::One };
        if list.iter().any(|q| *q != (start, by)) {
            return Columns::Pieces;
        }
        let whole = start.map_or(0, |s| self.ranges.multiple_of(s));
        let unit = crate::pass::access::gcd(crate::pass::access::gcd(whole, by), 0);
        // Columns in front of the first change are `unit` at least.
        let count = (by - unit + n as i64 - 1) / by + 1;
        match count {
            1 => Columns::One,
            _ => Columns::Quotients { start, by, unit, count: count as usize },
        }
    }

    /// Collects the quotients an index has the column in; clears `pieces` if one changes within 8 aligned columns, or the
    /// column is used in another way.
    fn quotients(&self, id: IxId, var: IxVarId, list: &mut Vec<(Option<IxId>, i64)>, pieces: &mut bool) {
        if !self.ranges.mentions(id, var) {
            return;
        }
        match self.k.ix_expr(id) {
            IxExpr::Div(x, by) => match (self.start_of(x, var), self.k.ix_const(by)) {
                (Some(start), Some(by)) => {
                    let whole = start.map_or(0, |s| self.ranges.multiple_of(s));
                    let natural = start.is_none_or(|s| self.ranges.never_below_zero(s));
                    *pieces &= whole % 8 == 0 && by % 8 == 0 && natural;
                    if !list.contains(&(start, by)) {
                        list.push((start, by));
                    }
                }
                _ => *pieces = false,
            },
            IxExpr::Add(a, b)
            | IxExpr::Sub(a, b)
            | IxExpr::Mul(a, b)
            | IxExpr::Mod(a, b)
            | IxExpr::Min(a, b)
            | IxExpr::Max(a, b) => {
                self.quotients(a, var, list, pieces);
                self.quotients(b, var, list, pieces);
            }
            IxExpr::Const(_) | IxExpr::Sym(_) | IxExpr::Var(_) | IxExpr::Data(_) => *pieces = false,
        }
    }

    /// `x` of `x + column`; `Some(None)` for the column alone.
    fn start_of(&self, id: IxId, var: IxVarId) -> Option<Option<IxId>> {
        match self.k.ix_expr(id) {
            IxExpr::Var(v) if v == var => Some(None),
            IxExpr::Add(a, b) => match (self.k.ix_expr(a), self.k.ix_expr(b)) {
                (IxExpr::Var(v), _) if v == var && !self.ranges.mentions(b, var) => Some(Some(b)),
                (_, IxExpr::Var(v)) if v == var && !self.ranges.mentions(a, var) => Some(Some(a)),
                _ => None,
            },
            _ => None,
        }
    }

    /// True if a comparison with the column has one result for 8 aligned columns.
    fn changes_between_pieces(&self, op: CmpOp, a: IxId, b: IxId, var: IxVarId) -> bool {
        let start = |id| self.start_of(id, var).map(|s| s.map_or(0, |s| self.ranges.multiple_of(s)));
        let (from, to, left) = match (self.ranges.mentions(a, var), self.ranges.mentions(b, var)) {
            (true, false) => (start(a), self.ranges.multiple_of(b), true),
            (false, true) => (start(b), self.ranges.multiple_of(a), false),
            _ => return false,
        };
        let bound = match op {
            CmpOp::Lt | CmpOp::Ge => left,
            CmpOp::Gt | CmpOp::Le => !left,
            CmpOp::Eq | CmpOp::Ne => false,
        };
        bound && to % 8 == 0 && from.is_some_and(|f| f % 8 == 0)
    }
}

/// Indices an op of a body without stores uses.
fn indices(op: &Op) -> Vec<IxId> {
    match op {
        Op::Load { index, .. } | Op::LoadOr { index, .. } => index.clone(),
        Op::IndexValue { index, .. } | Op::IxVarNew { init: index, .. } | Op::IxVarSet { index, .. } => vec![*index],
        Op::CompareIndex { a, b, .. } => vec![*a, *b],
        Op::ClampIndex { lo, hi, .. } | Op::For { lo, hi, .. } | Op::Spread { lo, hi, .. } => vec![*lo, *hi],
        _ => vec![],
    }
}

/// Views an op of a body without stores reads.
fn views(op: &Op) -> Vec<ViewId> {
    match op {
        Op::Load { view, .. } | Op::LoadOr { view, .. } => vec![*view],
        _ => vec![],
    }
}
