//! Factors of the rows and columns of a scaled product: where their bodies are evaluated, and how often. A factor that
//! only changes at block boundaries is worked out once a block a tile can touch, in front of the products.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::loops::Element;
use super::super::prelude::Snippet;
use super::product::ROWS;
use crate::ir::effects::walk;
use crate::ir::{CmpOp, GemmScale, IxExpr, IxId, IxVarId, Op, ViewId};
use crate::pass::access::defined_inside;

/// Factors of pieces of columns that are worked out in front of the products: registers they may take.
const HELD_PIECES: usize = 12;

/// True if the factors of pieces of this many columns are worked out in front of the products.
pub fn holds_pieces(n: usize, unit: usize) -> bool {
    n.is_multiple_of(unit) && n / unit <= HELD_PIECES
}

/// How the factor of a column depends on the column.
pub enum Columns {
    /// Not at all.
    One,
    /// Only through `(start + column) / by`: one factor for each of `count` quotients.
    Quotients { start: Option<IxId>, by: i64, unit: i64, count: usize },
    /// It is the same for `unit` aligned columns, a multiple of 8.
    Pieces { unit: usize },
    /// In any way.
    Each,
}

impl Emitter<'_> {
    /// Prints a scale's body for one index; returns the factor.
    fn factor_at(&mut self, scale: &GemmScale, at: &Text) -> Text {
        let k = self.k;
        let inside = defined_inside(k, scale.body);
        let mut e = Element::plain(vec![scale.var], inside, self.out.len(), self.names.depth(), self.depth);
        e.extents = vec![1];
        let plain = at.s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let mut var = at.clone();
        if !plain && self.body_mentions(scale) {
            let name = self.names.declare(&k.ix_var(scale.var).name.clone());
            self.line(format!("const int {name} = {};", at.s));
            var = Text::name(name);
        }
        (e.at, e.scope, e.depth) = (self.out.len(), self.names.depth(), self.depth);
        self.element = Some(e);
        self.index.insert(scale.var, var);
        self.block(scale.body);
        let x = self.val(scale.value);
        self.element = None;
        x
    }

    /// The same with a name.
    pub fn named_factor(&mut self, scale: &GemmScale, at: &Text) -> String {
        let x = self.factor_at(scale, at);
        if x.s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return x.s;
        }
        let name = self.names.declare("column_scale");
        self.line(format!("const float {name} = {};", x.s));
        name
    }

    /// True if a scale's body reads shared memory.
    fn reads_shared(&self, scale: &GemmScale) -> bool {
        let mut found = false;
        walk(self.k, scale.body, &mut |_, op| {
            found |= views(op).iter().any(|&v| self.layout(v).is_some());
        });
        found
    }

    fn body_mentions(&self, scale: &GemmScale) -> bool {
        let mut found = false;
        walk(self.k, scale.body, &mut |_, op| {
            found |= indices(op).iter().any(|&i| self.ranges.mentions(i, scale.var));
            found |= views(op).iter().any(|&v| self.ranges.mentions(self.k.view(v).offset, scale.var));
        });
        found
    }

    /// Factors of the two rows a thread holds of each 64.
    pub fn row_factors(&mut self, scale: &GemmScale, wave: Option<&Text>) -> String {
        let name = self.names.declare("row_scale");
        self.line(format!("float {name}[2];"));
        self.line("#pragma unroll");
        let h = self.open_with("h", |h| format!("for (int {h} = 0; {h} < 2; ++{h})"));
        let wave = wave.map_or(Text::number(0), |w| Text::mul(w, &Text::number(ROWS as i64)));
        let parts = [Text::name("warp * 16"), Text::mul(&h, &Text::number(8)), Text::name("lane / 4")];
        let at = parts.iter().fold(wave, |s, p| Text::add(&s, p));
        let x = self.factor_at(scale, &at);
        self.line(format!("{name}[{}] = {};", h.s, x.s));
        self.close();
        name
    }

    /// Factors of columns that are worked out in front of the products, with `early` those that are read from shared memory
    /// too; the name of the scalar or array, empty for none.
    pub fn column_factors(&mut self, scale: &GemmScale, kind: &Columns, n: usize, early: bool) -> String {
        match kind {
            Columns::One if self.k.block(scale.body).ops.is_empty() => self.val(scale.value).s,
            Columns::One => self.named_factor(scale, &Text::number(0)),
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
                let x = self.factor_at(scale, &Text::name(at));
                self.line(format!("{name}[{}] = {};", q.s, x.s));
                self.close();
                name
            }
            Columns::Pieces { unit } if holds_pieces(n, *unit) => {
                self.held_columns(scale, n / unit, |c| format!("{c} * {unit}"))
            }
            // What lies in a slot has to be read before the slot is released.
            Columns::Pieces { .. } if early && self.reads_shared(scale) => {
                self.held_columns(scale, n / 8, |c| format!("{c} * 8"))
            }
            Columns::Each if early && self.reads_shared(scale) => {
                self.held_columns(scale, n / 4, |c| format!("{c} / 2 * 8 + lane % 4 * 2 + {c} % 2"))
            }
            Columns::Pieces { .. } | Columns::Each => String::new(),
        }
    }

    /// Works out `count` factors, that of place `c` at a column of its own; gives the name of the array.
    fn held_columns(&mut self, scale: &GemmScale, count: usize, at: impl Fn(&str) -> String) -> String {
        let name = self.names.declare("column_scale");
        self.line(format!("float {name}[{count}];"));
        self.line("#pragma unroll");
        let c = self.open_with("c", |c| format!("for (int {c} = 0; {c} < {count}; ++{c})"));
        let x = self.factor_at(scale, &Text::name(at(&c.s)));
        self.line(format!("{name}[{}] = {};", c.s, x.s));
        self.close();
        name
    }

    /// How the factor of a column depends on the column.
    pub fn columns(&self, scale: &GemmScale, n: usize) -> Columns {
        let mut list = vec![];
        let mut pieces = true;
        let mut compares = false;
        // Columns between two changes: a number that divides all places of comparisons.
        let mut unit = 0i64;
        walk(self.k, scale.body, &mut |_, op| {
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
                    match self.changes_between_pieces(*op, *a, *b, scale.var) {
                        Some(step) => unit = crate::pass::access::gcd(unit, step),
                        None => pieces = false,
                    }
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
        if compares || list.iter().skip(1).any(|q| *q != list[0]) {
            for (start, by) in list {
                let whole = start.map_or(0, |s| self.ranges.multiple_of(s));
                unit = crate::pass::access::gcd(unit, crate::pass::access::gcd(whole, by));
            }
            return Columns::Pieces { unit: unit.clamp(8, 1 << 20) as usize };
        }
        let Some(&(start, by)) = list.first() else { return Columns::One };
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

    /// A number of columns, a multiple of 8, that divides the places where a comparison with the column changes.
    fn changes_between_pieces(&self, op: CmpOp, a: IxId, b: IxId, var: IxVarId) -> Option<i64> {
        let start = |id| self.start_of(id, var).map(|s| s.map_or(0, |s| self.ranges.multiple_of(s)));
        let (from, to, left) = match (self.ranges.mentions(a, var), self.ranges.mentions(b, var)) {
            (true, false) => (start(a), self.ranges.multiple_of(b), true),
            (false, true) => (start(b), self.ranges.multiple_of(a), false),
            _ => return None,
        };
        let bound = match op {
            CmpOp::Lt | CmpOp::Ge => left,
            CmpOp::Gt | CmpOp::Le => !left,
            CmpOp::Eq | CmpOp::Ne => false,
        };
        let step = crate::pass::access::gcd(from?, to);
        (bound && step % 8 == 0).then_some(step)
    }
}

/// Indices an op of a body without stores uses.
fn indices(op: &Op) -> Vec<IxId> {
    crate::ir::effects::uses(op).indices
}

/// Views an op of a body without stores reads.
fn views(op: &Op) -> Vec<ViewId> {
    if let Op::Load { view, .. } | Op::LoadOr { view, .. } = op { vec![*view] } else { vec![] }
}
