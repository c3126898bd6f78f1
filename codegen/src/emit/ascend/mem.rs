//! Element loops as instructions on memory (arch 2201).

use super::lower::{Lower, Res, type_of};
use super::scalar;
use super::stage::Ub;
use super::tree::{BufId, Core, Node, Pipe, Place};
use super::vf::{self, Sites};
use crate::emit::cuda::expr::Text;
use crate::ir::{BinaryOp, BlockId, DType, IxVarId, Op, OpId, ReduceOp, UnaryOp, ValueId};
use std::collections::HashMap;

/// Lines that put `op(x)` into the first lanes of a tensor.
pub fn scalar_function(op: UnaryOp, name: &str, x: &str) -> Vec<String> {
    let b = "PipeBarrier<PIPE_V>();".to_string();
    let mut lines = vec![b.clone(), format!("Duplicate({name}, {x}, 8);"), b.clone()];
    match op {
        UnaryOp::Exp2 => {
            lines.extend([
                format!("Muls({name}, {name}, 0.6931471805599453f, 8);"),
                b,
                format!("Exp({name}, {name}, 8);"),
            ]);
        }
        UnaryOp::Log2 => {
            lines.extend([
                format!("Ln({name}, {name}, 8);"),
                b,
                format!("Muls({name}, {name}, 1.4426950408889634f, 8);"),
            ]);
        }
        UnaryOp::Sqrt => lines.push(format!("Sqrt({name}, {name}, 8);")),
        UnaryOp::Rsqrt => lines.extend([
            format!("Sqrt({name}, {name}, 8);"),
            b.clone(),
            format!("Duplicate({name}[8], 1.0f, 8);"),
            b,
            format!("Div({name}, {name}[8], {name}, 8);"),
        ]),
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Recip
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Floor
        | UnaryOp::Ceil => {}
    }
    lines
}

/// A statement that clears a buffer.
pub fn clear(l: &Lower<'_>, b: BufId, bytes: usize, _size: usize) -> String {
    let x = &l.bufs[b.0];
    let words = LocalWords { address: super::address_name(x), words: bytes / 4 };
    format!(
        "Duplicate(LocalTensor<uint32_t>(TPosition::VECCALC, {}, {}), 0u, {});",
        words.address, words.words, words.words
    )
}

/// A buffer seen as words.
struct LocalWords {
    address: String,
    words: usize,
}

/// A value of a row of elements.
#[derive(Clone, Debug)]
enum Row {
    /// The same for all elements of the row.
    Scalar(Text),
    /// Elements one after another: tensor text, and its buffer.
    Vec(String, BufId),
    /// The same in f32, to be rounded when it is stored.
    Narrow(String, BufId, DType),
}

struct Mem<'m, 'a> {
    l: &'m mut Lower<'a>,
    sites: &'m Sites,
    lane: Option<IxVarId>,
    n: usize,
    values: HashMap<ValueId, Row>,
    ops: Vec<OpId>,
}

/// `parallel`.
pub fn element_loop(l: &mut Lower<'_>, id: OpId, vars: &[(IxVarId, usize)], body: BlockId, sites: &Sites) -> Res<()> {
    let (lane, n) = vars.last().map_or((None, 1), |v| (Some(v.0), v.1));
    let outer = &vars[..vars.len().saturating_sub(1)];
    l.nodes.push(vec![]);
    let mut heads = vec![];
    for &(v, e) in outer {
        let name = l.name(&l.k.ix_var(v).name.clone());
        l.index.insert(v, Text::name(if e == 1 { "0".into() } else { name.clone() }));
        if e > 1 {
            heads.push(format!("for (int64_t {name} = 0; {name} < {e}; ++{name})"));
        }
    }
    let ops = l.k.block(body).ops.clone();
    let mut m = Mem { l, sites, lane, n, values: HashMap::new(), ops };
    let r = m.body(body);
    let mut list = l.nodes.pop().unwrap_or_default();
    r?;
    for head in heads.into_iter().rev() {
        list = vec![Node::Loop { head, body: list }];
    }
    let _ = id;
    for n in list {
        l.push(n);
    }
    Ok(())
}

impl Mem<'_, '_> {
    fn refuse<T>(&self, id: OpId, what: impl Into<String>) -> Res<T> {
        Err(self.l.refuse(id, what, "choose ascend950, whose vector registers have it"))
    }
    fn vector(&mut self, line: String, reads: &[BufId], writes: &[BufId]) {
        self.l.inst(Core::Vector, Pipe::V, vec![line], reads, writes);
    }
    fn temp(&mut self, d: DType, id: OpId) -> (String, BufId) {
        let span = self.l.k.op(id).span;
        let b = self.l.buffer("row", type_of(d), d.bytes(1), self.n, Place::Ub, span);
        (self.l.tensor(b), b)
    }
    fn value(&mut self, v: ValueId) -> Row {
        match self.values.get(&v) {
            Some(x) => x.clone(),
            None => Row::Scalar(self.l.val(v)),
        }
    }
    fn is_row(&self, v: ValueId) -> bool {
        matches!(self.values.get(&v), Some(Row::Vec(..) | Row::Narrow(..)))
    }
    fn as_vec(&mut self, id: OpId, d: DType, x: Row) -> (String, BufId) {
        match x {
            Row::Vec(t, b) | Row::Narrow(t, b, _) => (t, b),
            Row::Scalar(s) => {
                let (t, b) = self.temp(d, id);
                let n = self.n;
                self.vector(format!("Duplicate({t}, static_cast<{}>({}), {n});", type_of(d), s.s), &[], &[b]);
                (t, b)
            }
        }
    }

    fn body(&mut self, block: BlockId) -> Res<()> {
        for &id in &self.l.k.block(block).ops {
            self.op(id)?;
        }
        Ok(())
    }

    fn at(&self, u: &Ub) -> Text {
        let mut at = u.base.clone();
        for &(v, c) in &u.elem {
            if Some(v) != self.lane {
                let x = self.l.index.get(&v).cloned().unwrap_or(Text::number(0));
                at = Text::add(&at, &Text::mul(&x, &Text::number(c)));
            }
        }
        at
    }

    /// Elements of an access: a row, or one element for all.
    fn load(&mut self, id: OpId, u: &Ub) -> Res<Row> {
        let step = u.elem.iter().find(|e| Some(e.0) == self.lane).map_or(0, |e| e.1);
        let (at, name) = (self.at(u), self.l.tensor(u.buf));
        if !u.opaque.is_empty() {
            return self.refuse(id, "elements at computed places have no form on memory vectors");
        }
        if step == 0 || self.n == 1 {
            let d = u.dtype;
            if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
                return self.refuse(id, format!("a single {d} of a tile is not read by the scalar unit"));
            }
            let v = self.l.name("v");
            let line = format!("const {} {v} = {name}.GetValue({});", scalar::type_of(d), at.s);
            self.l.inst(Core::Vector, Pipe::S, vec![line], &[u.buf], &[]);
            return Ok(Row::Scalar(Text::name(v)));
        }
        self.aligned(id, u, step)?;
        let t = if at.is_zero() { name } else { format!("{name}[{}]", at.s) };
        Ok(Row::Vec(t, u.buf))
    }

    /// True if a store to the buffer comes between a load and the last use of its value.
    fn changed_before_use(&self, id: OpId, v: ValueId, buf: BufId) -> bool {
        let ops = &self.ops;
        let from = ops.iter().position(|&o| o == id).unwrap_or(0);
        let last = ops.iter().rposition(|&o| crate::ir::effects::uses(&self.l.k.op(o).op).values.contains(&v));
        let stores =
            |o: OpId| matches!(self.l.k.op(o).op, Op::Store { .. }) && self.sites.get(&o).is_some_and(|u| u.buf == buf);
        last.is_some_and(|last| (from..last).any(|i| stores(ops[i])))
    }

    fn aligned(&self, id: OpId, u: &Ub, step: i64) -> Res<()> {
        let others = u.elem.iter().filter(|e| Some(e.0) != self.lane).fold(u.multiple, |g, e| vf::gcd(g, e.1));
        if step != 1 || (others * u.width as i64) % self.l.caps.align_bytes as i64 != 0 || u.width != u.dtype.bytes(1) {
            return self.refuse(id, "elements that do not follow each other have no form on memory vectors");
        }
        Ok(())
    }

    fn op(&mut self, id: OpId) -> Res<()> {
        let k = self.l.k;
        match &k.op(id).op {
            Op::Const { .. } => Ok(()),
            Op::Load { result, .. } => {
                let Some(u) = self.sites.get(&id).cloned() else { return self.refuse(id, "a read without a place") };
                let mut x = self.load(id, &u)?;
                if let Row::Vec(t, b) = &x
                    && self.changed_before_use(id, *result, u.buf)
                {
                    // A store in between changes the row in its place.
                    let f = match u.dtype {
                        DType::F32 => ("Muls", "1.0f"),
                        DType::I32 => ("Adds", "0"),
                        DType::F16
                        | DType::Bf16
                        | DType::E4m3
                        | DType::E5m2
                        | DType::E2m1
                        | DType::E8m0
                        | DType::I8
                        | DType::U8
                        | DType::U32
                        | DType::I64
                        | DType::Bool => {
                            return self.refuse(id, format!("rows of {} that change in the loop", u.dtype));
                        }
                    };
                    let (t, b) = (t.clone(), *b);
                    x = self.apply(id, u.dtype, f.0, &t, b, Some((f.1.into(), None)));
                }
                if let Row::Scalar(t) = &x {
                    self.l.values.insert(*result, t.clone());
                }
                self.values.insert(*result, x);
                Ok(())
            }
            Op::Store { value, .. } => self.store(id, *value),
            Op::Unary { result, op, x } if self.is_row(*x) => {
                let d = self.l.dtype(*x);
                let a = self.value(*x);
                let (a, b) = self.as_vec(id, d, a);
                let r = self.unary(id, d, *op, a, b)?;
                self.values.insert(*result, r);
                Ok(())
            }
            Op::Binary { result, op, a, b } if self.is_row(*a) || self.is_row(*b) => {
                let d = self.l.dtype(*result);
                let (x, y) = (self.value(*a), self.value(*b));
                let r = self.binary(id, d, *op, x, y)?;
                self.values.insert(*result, r);
                Ok(())
            }
            Op::Cast { result, x } if self.is_row(*x) => {
                let (from, to) = (self.l.dtype(*x), self.l.dtype(*result));
                let a = self.value(*x);
                let (a, b) = self.as_vec(id, from, a);
                let r = match (from, to) {
                    (DType::Bf16 | DType::F16, DType::F32) => self.cast(id, to, a, b, "NONE"),
                    (DType::I32, DType::F32) => self.cast(id, to, a, b, "RINT"),
                    (DType::F32, DType::Bf16 | DType::F16) => Row::Narrow(a, b, to),
                    (DType::F32, DType::I32) => self.cast(id, to, a, b, "TRUNC"),
                    (_, _) if from == to => Row::Vec(a, b),
                    (_, _) => {
                        return self
                            .refuse(id, format!("the vector unit of arch 2201 has no conversion from {from} to {to}"));
                    }
                };
                self.values.insert(*result, r);
                Ok(())
            }
            op @ (Op::IndexValue { .. } | Op::CompareIndex { .. }) => {
                let u = crate::ir::effects::uses(op);
                let lanes =
                    self.lane.is_some_and(|v| self.n > 1 && u.indices.iter().any(|&i| self.l.ranges.mentions(i, v)));
                if lanes {
                    return self.refuse(id, "the vector unit of arch 2201 gives elements no numbers here");
                }
                self.l.scalar_op(id)
            }
            op @ (Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Fma { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }) => {
                let u = crate::ir::effects::uses(op);
                if u.values.iter().any(|&v| self.is_row(v)) {
                    return self.refuse(id, format!("`{}` of rows has no form on memory vectors yet", op.name()));
                }
                self.l.scalar_op(id)
            }
            op @ (Op::LoadOr { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. }
            | Op::Atomic { .. }
            | Op::Claim { .. }
            | Op::Alloc { .. }
            | Op::Fill { .. }
            | Op::Copy { .. }
            | Op::Parallel { .. }
            | Op::Spread { .. }
            | Op::Reduce { .. }
            | Op::ReduceRegion { .. }
            | Op::Scan { .. }
            | Op::FindFirst { .. }
            | Op::Gemm { .. }
            | Op::For { .. }
            | Op::Loop { .. }
            | Op::Break
            | Op::Continue
            | Op::If { .. }
            | Op::Check { .. }
            | Op::GridBarrier
            | Op::BlockBarrier { .. }
            | Op::Sched(_)) => self.refuse(id, format!("`{}` has no form on memory vectors yet", op.name())),
        }
    }

    fn store(&mut self, id: OpId, value: ValueId) -> Res<()> {
        let Some(u) = self.sites.get(&id).cloned() else { return self.refuse(id, "a write without a place") };
        let (at, name) = (self.at(&u), self.l.tensor(u.buf));
        if !u.opaque.is_empty() {
            return self.refuse(id, "elements at computed places have no form on memory vectors");
        }
        let step = u.elem.iter().find(|e| Some(e.0) == self.lane).map_or(0, |e| e.1);
        let (n, d) = (self.n, u.dtype);
        let x = self.value(value);
        if n == 1 {
            let Row::Scalar(s) = x else { return self.refuse(id, "one element of a row") };
            if !matches!(d, DType::F32 | DType::I32 | DType::U32) {
                return self.refuse(id, format!("a single {d} is not written by the scalar unit"));
            }
            let line = format!("{name}.SetValue({}, {});", at.s, s.s);
            self.l.inst(Core::Vector, Pipe::S, vec![line], &[], &[u.buf]);
            return Ok(());
        }
        self.aligned(id, &u, step)?;
        let t = if at.is_zero() { name } else { format!("{name}[{}]", at.s) };
        match (x, d) {
            (Row::Scalar(s), DType::F32 | DType::I32 | DType::U32) => {
                self.vector(format!("Duplicate({t}, static_cast<{}>({}), {n});", type_of(d), s.s), &[], &[u.buf]);
            }
            (Row::Vec(from, b), DType::F32) => self.vector(format!("Muls({t}, {from}, 1.0f, {n});"), &[b], &[u.buf]),
            (Row::Vec(from, b), DType::I32) => self.vector(format!("Adds({t}, {from}, 0, {n});"), &[b], &[u.buf]),
            (Row::Narrow(from, b, to), _) if to == d => {
                self.vector(format!("Cast({t}, {from}, RoundMode::CAST_RINT, {n});"), &[b], &[u.buf]);
            }
            (Row::Scalar(_) | Row::Vec(..) | Row::Narrow(..), _) => {
                return self.refuse(id, format!("rows of {d} are not moved by memory vectors"));
            }
        }
        Ok(())
    }

    fn cast(&mut self, id: OpId, to: DType, a: String, b: BufId, round: &str) -> Row {
        let (t, r) = self.temp(to, id);
        let n = self.n;
        self.vector(format!("Cast({t}, {a}, RoundMode::CAST_{round}, {n});"), &[b], &[r]);
        Row::Vec(t, r)
    }

    /// `f(t, a, extra, n)` into a new row.
    fn apply(&mut self, id: OpId, d: DType, f: &str, a: &str, b: BufId, extra: Option<(String, Option<BufId>)>) -> Row {
        let (t, r) = self.temp(d, id);
        let n = self.n;
        let mut reads = vec![b];
        let more = match extra {
            Some((x, other)) => {
                reads.extend(other);
                format!(", {x}")
            }
            None => String::new(),
        };
        self.vector(format!("{f}({t}, {a}{more}, {n});"), &reads, &[r]);
        Row::Vec(t, r)
    }

    fn unary(&mut self, id: OpId, d: DType, op: UnaryOp, a: String, b: BufId) -> Res<Row> {
        if d != DType::F32 {
            return self.refuse(id, format!("the vector unit of arch 2201 has no `{}` of {d} here", op.name()));
        }
        let then = |s: &mut Self, x: Row, f: &str, by: Option<&str>| -> Row {
            let (a, b) = s.as_vec(id, d, x);
            s.apply(id, d, f, &a, b, by.map(|x| (x.to_string(), None)))
        };
        let x = Row::Vec(a, b);
        Ok(match op {
            UnaryOp::Neg => then(self, x, "Muls", Some("-1.0f")),
            UnaryOp::Abs => then(self, x, "Abs", None),
            UnaryOp::Sqrt => then(self, x, "Sqrt", None),
            UnaryOp::Exp2 => {
                let x = then(self, x, "Muls", Some("0.6931471805599453f"));
                then(self, x, "Exp", None)
            }
            UnaryOp::Log2 => {
                let x = then(self, x, "Ln", None);
                then(self, x, "Muls", Some("1.4426950408889634f"))
            }
            UnaryOp::Recip | UnaryOp::Rsqrt => {
                let x = if op == UnaryOp::Rsqrt { then(self, x, "Sqrt", None) } else { x };
                self.binary(id, d, BinaryOp::Div, Row::Scalar(Text::name("1.0f")), x)?
            }
            UnaryOp::Not | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Floor | UnaryOp::Ceil => {
                return self.refuse(id, format!("the vector unit of arch 2201 has no `{}` here", op.name()));
            }
        })
    }

    fn binary(&mut self, id: OpId, d: DType, op: BinaryOp, x: Row, y: Row) -> Res<Row> {
        if !matches!(d, DType::F32 | DType::I32) || d == DType::I32 && op == BinaryOp::Div {
            return self.refuse(id, format!("the vector unit of arch 2201 has no `{}` of {d} here", op.name()));
        }
        let short = match op {
            BinaryOp::Add => Some("Adds"),
            BinaryOp::Mul => Some("Muls"),
            BinaryOp::Max => Some("Maxs"),
            BinaryOp::Min => Some("Mins"),
            BinaryOp::Sub
            | BinaryOp::Div
            | BinaryOp::Rem
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl
            | BinaryOp::Shr => None,
        };
        match (&x, &y, short) {
            (Row::Vec(a, b), Row::Scalar(s), Some(f)) | (Row::Scalar(s), Row::Vec(a, b), Some(f)) => {
                let (a, b, s) = (a.clone(), *b, s.s.clone());
                return Ok(self.apply(id, d, f, &a, b, Some((s, None))));
            }
            (Row::Vec(a, b), Row::Scalar(s), None) if op == BinaryOp::Sub && d == DType::F32 => {
                let (a, b, s) = (a.clone(), *b, format!("-({})", s.s));
                return Ok(self.apply(id, d, "Adds", &a, b, Some((s, None))));
            }
            (_, _, _) => {}
        }
        let f = match op {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div => "Div",
            BinaryOp::Min => "Min",
            BinaryOp::Max => "Max",
            BinaryOp::Rem | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => {
                return self.refuse(id, format!("the vector unit of arch 2201 has no `{}` of 32 bits", op.name()));
            }
        };
        let (a, b) = self.as_vec(id, d, x);
        let (c, e) = self.as_vec(id, d, y);
        Ok(self.apply(id, d, f, &a, b, Some((c, Some(e)))))
    }
}

/// `reduce` along the last axis: sums of groups of 64, then of 64 groups, and so on. The tree depends on the extent alone.
pub fn reduce(
    l: &mut Lower<'_>,
    id: OpId,
    op: ReduceOp,
    from: &Ub,
    to: &Ub,
    all: &[(IxVarId, usize)],
    axis: usize,
) -> Res<()> {
    let d = from.dtype;
    if axis + 1 != all.len() && matches!(d, DType::F32 | DType::I32) {
        return reduce_columns(l, id, op, from, to, all, axis);
    }
    let refuse =
        |l: &Lower<'_>, what: String| Err(l.refuse(id, what, "choose ascend950, whose vector registers have it"));
    let (f, neutral, order) = match op {
        ReduceOp::Sum => ("WholeReduceSum", "0.0f", ""),
        ReduceOp::Max => ("WholeReduceMax", "NEG_INF", ", ReduceOrder::ORDER_ONLY_VALUE"),
        ReduceOp::Min => ("WholeReduceMin", "POS_INF", ", ReduceOrder::ORDER_ONLY_VALUE"),
        ReduceOp::AbsMax => ("WholeReduceMax", "0.0f", ", ReduceOrder::ORDER_ONLY_VALUE"),
        ReduceOp::And | ReduceOp::Or => return refuse(l, format!("the vector unit has no `{}`", op.name())),
    };
    if d != DType::F32 || axis + 1 != all.len() || from.width != 4 {
        return refuse(l, format!("memory vectors reduce f32 along the last axis, not {d} along axis {axis}"));
    }
    let (lane, n) = all[axis];
    let outer = &all[..axis];
    let step = from.elem.iter().find(|e| e.0 == lane).map_or(0, |e| e.1);
    let others = from.elem.iter().filter(|e| e.0 != lane).fold(from.multiple, |g, e| vf::gcd(g, e.1));
    if step != 1 && n > 1 || others * 4 % l.caps.align_bytes as i64 != 0 || n > 64 * 255 {
        return refuse(l, "rows of this tile are not aligned for memory vectors".into());
    }
    let span = l.k.op(id).span;
    let padded = n.next_multiple_of(64);
    let row = l.buffer("row", "float", 4, padded, Place::Ub, span);
    let groups = n.div_ceil(64);
    let part = l.buffer("group", "float", 4, groups.next_multiple_of(64), Place::Ub, span);
    let one = l.buffer("folded", "float", 4, 64, Place::Ub, span);
    let (rn, pn, on) = (l.tensor(row), l.tensor(part), l.tensor(one));
    l.nodes.push(vec![]);
    let mut heads = vec![];
    let (mut a, mut b) = (from.base.clone(), to.base.clone());
    for &(v, e) in outer {
        if e == 1 {
            continue;
        }
        let name = l.name(&l.k.ix_var(v).name.clone());
        let x = Text::name(name.clone());
        let coef = |u: &Ub| u.elem.iter().find(|e| e.0 == v).map_or(0, |e| e.1);
        a = Text::add(&a, &Text::mul(&x, &Text::number(coef(from))));
        b = Text::add(&b, &Text::mul(&x, &Text::number(coef(to))));
        heads.push(format!("for (int64_t {name} = 0; {name} < {e}; ++{name})"));
    }
    let src = l.tensor(from.buf);
    let src = if a.is_zero() { src } else { format!("{src}[{}]", a.s) };
    let v = |l: &mut Lower<'_>, line: String, reads: &[BufId], writes: &[BufId]| {
        l.inst(Core::Vector, Pipe::V, vec![line], reads, writes);
    };
    let copy = n % 64 != 0 || op == ReduceOp::AbsMax;
    if copy {
        if n % 64 != 0 {
            v(l, format!("Duplicate({rn}, {neutral}, {padded});"), &[], &[row]);
        }
        let line = if op == ReduceOp::AbsMax {
            format!("Abs({rn}, {src}, {n});")
        } else {
            format!("Adds({rn}, {src}, 0.0f, {n});")
        };
        v(l, line, &[from.buf], &[row]);
    }
    let (src, src_buf) = if copy { (rn, row) } else { (src, from.buf) };
    if groups == 1 {
        v(l, format!("{f}<float>({on}, {src}, 64, 1, 1, 1, 8{order});"), &[src_buf], &[one]);
    } else {
        if groups > 64 {
            v(l, format!("Duplicate({pn}, {neutral}, {});", groups.next_multiple_of(64)), &[], &[part]);
        }
        v(l, format!("{f}<float>({pn}, {src}, 64, {groups}, 1, 1, 8{order});"), &[src_buf], &[part]);
        if groups <= 64 {
            v(l, format!("{f}<float>({on}, {pn}, {groups}, 1, 1, 1, 8{order});"), &[part], &[one]);
        } else {
            let top = groups.div_ceil(64);
            let whole = l.buffer("folds", "float", 4, 64, Place::Ub, span);
            let wn = l.tensor(whole);
            v(l, format!("{f}<float>({wn}, {pn}, 64, {top}, 1, 1, 8{order});"), &[part], &[whole]);
            v(l, format!("{f}<float>({on}, {wn}, {top}, 1, 1, 1, 8{order});"), &[whole], &[one]);
        }
    }
    let name = l.tensor(to.buf);
    l.inst(Core::Vector, Pipe::S, vec![format!("{name}.SetValue({}, {on}.GetValue(0));", b.s)], &[one], &[to.buf]);
    let mut list = l.nodes.pop().unwrap_or_default();
    for head in heads.into_iter().rev() {
        list = vec![Node::Loop { head, body: list }];
    }
    for n in list {
        l.push(n);
    }
    Ok(())
}

/// `reduce` along an axis that is not the last: row by row into the result's row.
fn reduce_columns(
    l: &mut Lower<'_>,
    id: OpId,
    op: ReduceOp,
    from: &Ub,
    to: &Ub,
    all: &[(IxVarId, usize)],
    axis: usize,
) -> Res<()> {
    let d = from.dtype;
    let refuse =
        |l: &Lower<'_>, what: String| Err(l.refuse(id, what, "choose ascend950, whose vector registers have it"));
    let f = match (op, d) {
        (ReduceOp::Sum, _) => "Add",
        (ReduceOp::Max, _) | (ReduceOp::AbsMax, DType::F32) => "Max",
        (ReduceOp::Min, _) => "Min",
        (ReduceOp::AbsMax | ReduceOp::And | ReduceOp::Or, _) => {
            return refuse(l, format!("memory vectors have no `{}` of {d}", op.name()));
        }
    };
    let Some(&(lane, n)) = all.last() else { return refuse(l, "a reduction without axes".into()) };
    let aligned = |l: &Lower<'_>, u: &Ub| {
        let step = u.elem.iter().find(|e| e.0 == lane).map_or(0, |e| e.1);
        let others = u.elem.iter().filter(|e| e.0 != lane).fold(u.multiple, |g, e| vf::gcd(g, e.1));
        step == 1 && others * 4 % l.caps.align_bytes as i64 == 0 && u.width == 4 && u.opaque.is_empty()
    };
    if !aligned(l, from) || !aligned(l, to) {
        return refuse(l, "rows of this tile are not aligned for memory vectors".into());
    }
    let span = l.k.op(id).span;
    let row = (op == ReduceOp::AbsMax).then(|| l.buffer("row", type_of(d), 4, n, Place::Ub, span));
    let (mut heads, mut a, mut b) = (vec![], from.base.clone(), to.base.clone());
    let mut walk = None;
    for (i, &(v, e)) in all[..all.len() - 1].iter().enumerate() {
        let x = if e == 1 && i != axis { Text::number(0) } else { Text::name(l.name(&l.k.ix_var(v).name.clone())) };
        let coef = |u: &Ub| u.elem.iter().find(|c| c.0 == v).map_or(0, |c| c.1);
        if i == axis {
            walk = Some((x, e, coef(from)));
            continue;
        }
        a = Text::add(&a, &Text::mul(&x, &Text::number(coef(from))));
        b = Text::add(&b, &Text::mul(&x, &Text::number(coef(to))));
        if e > 1 {
            heads.push(format!("for (int64_t {0} = 0; {0} < {e}; ++{0})", x.s));
        }
    }
    let Some((x, e, c)) = walk else { return refuse(l, "a reduction along no axis".into()) };
    let at = |l: &Lower<'_>, buf: BufId, t: &Text| {
        if t.is_zero() { l.tensor(buf) } else { format!("{}[{}]", l.tensor(buf), t.s) }
    };
    let (dst, first) = (at(l, to.buf, &b), at(l, from.buf, &a));
    let next = at(l, from.buf, &Text::add(&a, &Text::mul(&x, &Text::number(c))));
    l.nodes.push(vec![]);
    let start = match (op, d) {
        (ReduceOp::AbsMax, _) => format!("Abs({dst}, {first}, {n});"),
        (_, DType::F32) => format!("Muls({dst}, {first}, 1.0f, {n});"),
        (_, _) => format!("Adds({dst}, {first}, 0, {n});"),
    };
    l.inst(Core::Vector, Pipe::V, vec![start], &[from.buf], &[to.buf]);
    l.nodes.push(vec![]);
    match row {
        Some(r) => {
            let name = l.tensor(r);
            l.inst(Core::Vector, Pipe::V, vec![format!("Abs({name}, {next}, {n});")], &[from.buf], &[r]);
            let line = format!("{f}({dst}, {dst}, {name}, {n});");
            l.inst(Core::Vector, Pipe::V, vec![line], &[to.buf, r], &[to.buf]);
        }
        None => {
            let line = format!("{f}({dst}, {dst}, {next}, {n});");
            l.inst(Core::Vector, Pipe::V, vec![line], &[to.buf, from.buf], &[to.buf]);
        }
    }
    let body = l.nodes.pop().unwrap_or_default();
    if e > 1 {
        l.push(Node::Loop { head: format!("for (int64_t {0} = 1; {0} < {e}; ++{0})", x.s), body });
    }
    let mut list = l.nodes.pop().unwrap_or_default();
    for head in heads.into_iter().rev() {
        list = vec![Node::Loop { head, body: list }];
    }
    for n in list {
        l.push(n);
    }
    Ok(())
}
