//! Accumulators to 16-bit shared tiles: 16 rows and 16 columns of a warp with one matrix store.

use super::super::Emitter;
use super::super::expr::{Text, register_type};
use super::super::loops::{Element, ElementLoop};
use super::super::prelude::Snippet;
use crate::ir::effects::walk;
use crate::ir::{BufferId, DType, IxExpr, Op, OpId, ViewId};
use crate::pass::access::{Form, defined_inside, in_range};

/// A store of a body that matrix stores can do.
pub struct MatrixStore {
    id: OpId,
    view: ViewId,
    dtype: DType,
    /// Values are collected as f32 and rounded in pairs.
    narrow: bool,
}

impl Emitter<'_> {
    /// The store of an element loop, if its tile is laid out for matrix stores.
    pub fn matrix_store(&self, l: &ElementLoop<'_>) -> Option<MatrixStore> {
        let k = self.k;
        self.role?;
        let f = l.distribution.fragment.filter(|f| f.interleaved && f.warps[1] == 1)?;
        let &[m, n] = l.extents else { return None };
        if f.overhangs(0, m) || f.overhangs(1, n) || l.fold.is_some() {
            return None;
        }
        let body = k.block(l.body);
        let mut stores = vec![];
        let mut writes = 0;
        walk(k, l.body, &mut |id, op| {
            if let Op::Store { view, .. } | Op::Atomic { view, .. } = op
                && self.register_tile(*view).is_none()
            {
                writes += 1;
                if body.ops.contains(&id) {
                    stores.push(id);
                }
            }
        });
        let [id] = stores[..] else { return None };
        let Op::Store { view, index, value, checked: false } = &k.op(id).op else { return None };
        let (buffer, memory) = self.layout(*view)?;
        let v = k.view(*view);
        let plain = |i: usize| matches!(k.ix_expr(index[i]), IxExpr::Var(x) if x == l.vars[i]);
        let whole = index.len() == 2 && plain(0) && plain(1) && v.guards.is_empty() && v.gather.is_none();
        let inside = index.iter().zip(&v.extents).all(|(&i, &e)| in_range(k, &self.ranges, i, e));
        let p = self.panels(buffer)?;
        let rows = k.ix_const(v.strides[0])? == p.columns && k.ix_const(v.strides[1])? == 1;
        let bits = match p.width * 2 {
            128 => Some((3, 4, 3)),
            64 => Some((2, 4, 3)),
            32 => Some((1, 4, 3)),
            16 => None,
            _ => return None,
        };
        let fits = v.dtype.bits() == 16 && k.buffer(buffer).dtype == v.dtype && memory.swizzle == bits;
        if writes != 1 || !whole || !inside || !rows || !fits {
            return None;
        }
        Some(MatrixStore { id, view: *view, dtype: v.dtype, narrow: self.narrowing(*value, v.dtype) })
    }

    /// Prints an element loop whose store is a matrix store.
    pub fn store_pieces(&mut self, l: &ElementLoop<'_>, s: &MatrixStore) {
        let Some(f) = l.distribution.fragment else { return };
        self.phase += 1;
        self.need(Snippet::Stmatrix);
        self.used_warp = true;
        let start = self.out.len();
        self.open("");
        let Some((at, flip, panels)) = self.matrix_rows(s) else {
            self.refuse(s.id, "a store into rows that are not aligned with the swizzle".into());
            return;
        };
        let [waves, pieces] = f.atoms;
        let mut opened = 0;
        let wave = self.turns("wave", waves, &mut opened);
        for (count, first, pair) in [(pieces / 2, 0, true), (pieces % 2, pieces / 2, false)] {
            if count == 0 {
                continue;
            }
            let mut inner = 0;
            let turn = self.turns("p", count, &mut inner);
            let turn = if first > 0 { Text::number(first as i64) } else { turn };
            if inner == 0 {
                self.open("");
                inner = 1;
            }
            let halves = if pair { 4 } else { 2 };
            let name = self.base_name(s.view);
            let name = self.names.declare(&format!("{name}_v"));
            let ty = if s.narrow { "float" } else { register_type(s.dtype) };
            self.line(format!("{ty} {name}[{}];", 2 * halves));
            self.pieces_of_body(l, s, (&wave, &turn, halves), &name);
            let words: Vec<String> = (0..halves).map(|h| self.packed_pair(s, &name, 2 * h)).collect();
            let to = address_of(&at, &flip, (&wave, &turn), panels);
            let x = if pair { "x4" } else { "x2" };
            self.call(&format!("stmatrix_{x}"), &[vec![to], words].concat());
            (0..inner).for_each(|_| self.close());
        }
        (0..opened).for_each(|_| self.close());
        self.close();
        self.drop_unused(start);
    }

    /// The body for the elements of a pair of pieces.
    fn pieces_of_body(
        &mut self,
        l: &ElementLoop<'_>,
        s: &MatrixStore,
        (wave, turn, halves): (&Text, &Text, usize),
        name: &str,
    ) {
        let k = self.k;
        let d = &l.distribution;
        let mut forms = self.forms(l);
        forms.insert(s.id, Form::Each);
        self.line("#pragma unroll");
        let q = self.open_with("q", |q| format!("for (int {q} = 0; {q} < {halves}; ++{q})"));
        let mut e =
            Element::plain(l.vars.to_vec(), defined_inside(k, l.body), self.out.len(), self.names.depth(), self.depth);
        e.extents = l.extents.to_vec();
        (e.steps, e.vec, e.inner, e.threads) = (d.steps(l.extents), d.vec, d.inner(l.extents), d.threads);
        walk(k, l.body, &mut |_, op| {
            if let Op::Store { view, .. } = op {
                e.stored.extend(self.register_tile(*view));
            }
        });
        let step = self.names.declare("s");
        let ty = self.index_type();
        self.line(format!("const {ty} {step} = {};", Text::add(&Text::mul(turn, &Text::number(4)), &q).s));
        let step = Text::name(step);
        (e.round, e.step) = (wave.clone(), step.clone());
        e.collect.insert(s.id, (name.to_string(), s.narrow));
        e.collect_from = Text::mul(&q, &Text::number(2));
        self.element = Some(e);
        if let Some(f) = &d.fragment {
            self.decode_fragment(f, l, wave, &step);
        }
        self.lanes_of_body(l, &forms, None);
        self.element = None;
        self.close();
    }

    /// Two values from `at` on as one word.
    fn packed_pair(&mut self, s: &MatrixStore, name: &str, at: usize) -> String {
        let (lo, hi) = (format!("{name}[{at}]"), format!("{name}[{}]", at + 1));
        match (s.narrow, s.dtype) {
            (true, DType::Bf16) => format!("pack_bf16({lo}, {hi})"),
            (true, d) => {
                let (lo, hi) = (self.lower_f32(d, Text::name(lo)), self.lower_f32(d, Text::name(hi)));
                format!("(u32){} | (u32){} << 16", lo.s, hi.s)
            }
            (false, _) => format!("(u32){lo} | (u32){hi} << 16"),
        }
    }

    /// Opens a fully unrolled loop, if it takes more than one turn; gives its variable.
    fn turns(&mut self, wish: &str, count: usize, opened: &mut usize) -> Text {
        if count <= 1 {
            return Text::number(0);
        }
        self.line("#pragma unroll");
        *opened += 1;
        self.open_with(wish, |i| format!("for (int {i} = 0; {i} < {count}; ++{i})"))
    }

    /// Prints where a lane's row of the first piece lies, and what the swizzle flips of a column's address.
    fn matrix_rows(&mut self, s: &MatrixStore) -> Option<(String, Option<String>, [i64; 2])> {
        let buffer: BufferId = self.layout(s.view)?.0;
        let p = self.panels(buffer)?;
        let (pitch, panel) = (p.width * 2, p.rows * p.width * 2);
        let mut bytes = self.shared_bytes_to(s.view, &[])?;
        if bytes.alignment() % (8 * pitch) != 0 {
            return None;
        }
        let row = self.names.declare("row");
        self.line(format!("const int {row} = warp * 16 + lane % 16;"));
        bytes.add(pitch, Text::name(row.clone()));
        if pitch == 16 {
            bytes.add(panel, Text::name("(lane / 16)"));
        }
        let address = self.shared_address(&bytes).s;
        let at = self.names.declare("to");
        self.line(format!("const smem_ptr {at} = {address};"));
        let turn = match pitch {
            128 => format!("{row} % 8"),
            64 => format!("{row} / 2 % 4"),
            32 => format!("{row} / 4 % 2"),
            _ => return Some((at, None, [pitch, panel])),
        };
        let flip = self.names.declare("flip");
        self.line(format!("const u32 {flip} = ({turn} ^ lane / 16) * 16;"));
        Some((at, Some(flip), [pitch, panel]))
    }
}

/// Address of a lane's row in the pair of pieces `turn` of a wave.
fn address_of(at: &str, flip: &Option<String>, (wave, turn): (&Text, &Text), [pitch, panel]: [i64; 2]) -> String {
    let base = Text::add(&Text::name(at), &Text::mul(wave, &Text::number(64 * pitch)));
    let pairs = pitch / 32;
    let Some(flip) = flip else {
        return Text::add(&base, &Text::mul(turn, &Text::number(2 * panel))).s;
    };
    let constant = turn.s.parse::<i64>().ok();
    let (over, inside) = match (constant, pairs) {
        (Some(t), _) => (Text::number(t / pairs * panel), Text::number(t % pairs * 32)),
        (None, 1) => (Text::mul(turn, &Text::number(panel)), Text::number(0)),
        (None, _) => {
            let over = Text::mul(&Text::over(turn, pairs as usize), &Text::number(panel));
            (over, Text::name(format!("{} % {pairs} * 32", turn.s)))
        }
    };
    let inside =
        if inside.is_zero() { Text::name(flip.clone()) } else { Text::name(format!("({} ^ {flip})", inside.s)) };
    Text::add(&Text::add(&base, &over), &inside).s
}
