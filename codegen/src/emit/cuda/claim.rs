//! A `spread` that numbers its iterations: chunks of the block, one barrier each.
//!
//! What decides is computed for all elements of a thread first, then the block agrees on numbers, then what follows the
//! claim runs for the chosen elements, or for all where it changes something for the others too, with what decides computed
//! again where it is used. Elements of an input that the body reads one after the other come 16 bytes at a time, a chunk
//! ahead; chunks begin where that is possible, so the first and the last may have elements outside of the range, which are
//! not chosen.

use super::Emitter;
use super::expr::{Text, memory_type};
use super::loops::Element;
use super::prelude::Snippet;
use crate::ir::effects::{bodies, walk};
use crate::ir::{BlockId, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ValueId, ViewId};
use crate::pass::access::{defined_inside, memory_bits};

/// Bytes of a thread in a chunk: no more than stays in registers twice. Its elements are as many as a word has bits at most.
const BYTES: usize = 64;
/// From this many ops on, what decides is printed for half as many elements: all of it is unrolled, and twice.
const LONG: usize = 8;

/// The load that is done 16 bytes at a time.
struct Stream {
    op: OpId,
    view: ViewId,
    index: Vec<IxId>,
}

/// True if an op changes something only where `cond` holds.
fn only_if(k: &Kernel, op: OpId, cond: ValueId) -> bool {
    let changes = |block: BlockId| {
        let mut found = false;
        walk(k, block, &mut |_, op| found |= matches!(op, Op::Store { .. } | Op::Atomic { .. } | Op::Check { .. }));
        found
    };
    match &k.op(op).op {
        Op::Store { .. } | Op::Atomic { .. } | Op::Check { .. } => false,
        Op::If { cond: c, els, .. } if *c == cond => !changes(*els),
        other => !bodies(other).into_iter().any(changes),
    }
}

impl Emitter<'_> {
    /// Prints such a `spread`.
    pub fn claim(&mut self, var: IxVarId, lo: IxId, hi: IxId, body: BlockId) {
        self.need(Snippet::Claim);
        let k = self.k;
        let ops = k.block(body).ops.clone();
        let Some(at) = ops.iter().position(|&o| matches!(k.op(o).op, Op::Claim { .. })) else { return };
        let Op::Claim { result, var: counter, cond } = k.op(ops[at]).op else { return };
        let (decide, keep) = (&ops[..at], &ops[at + 1..]);
        let stream = decide.iter().find_map(|&o| self.stream(o, var));
        let (vec, steps) = match &stream {
            Some(s) => {
                let bytes = k.view(s.view).dtype.bits() / 8;
                let steps = if decide.len() > LONG { BYTES / 32 } else { BYTES / 16 };
                // A block of 1024 threads leaves 64 registers each.
                let most = if self.k.warps < 32 { 32 } else { 16 };
                (16 / bytes, steps.min(most * bytes / 16))
            }
            None => (1, 4),
        };
        let (each, warps) = (vec * steps, self.k.warps);
        let chunk = each * 32 * warps;
        let counts = self.scratch.take().map(|s| self.buffer(s));
        let ty = self.index_type();
        self.open("");
        let bound = |e: &mut Self, wish: &str, i: IxId| {
            let x = e.ix(i);
            let name = e.names.declare(wish);
            e.line(format!("const {ty} {name} = {};", x.s));
            name
        };
        let (lo, hi) = (bound(self, "lo", lo), bound(self, "hi", hi));
        let name = self.buffer(counter);
        let seen = self.names.declare("seen");
        self.line(format!("u32 {seen} = {name};"));
        let turn = self.names.declare("turn");
        if counts.is_some() {
            self.line(format!("int {turn} = 0;"));
        }
        let mut start = lo.clone();
        let mut ahead = None;
        if let Some(s) = &stream {
            self.index.insert(var, Text::number(0));
            let place = self.place(s.view, &s.index);
            let t = memory_type(k.view(s.view).dtype);
            let src = self.names.declare("src");
            self.line(format!("const {t}* const {src} = {};", Text::offset(&place.base, &place.index)));
            start = self.names.declare("start");
            let bytes = 16 / vec;
            self.line(format!("const {ty} {start} = {lo} - ({ty})(((u64)({src} + {lo}) & 15) / {bytes});"));
            let next = self.names.declare("next");
            self.line(format!("alignas(16) {t} {next}[{each}];"));
            ahead = Some((src, next, t));
        }
        self.used_warp = true;
        let tid = self.tid();
        let own = match each * 32 {
            _ if warps == 1 => format!("{tid} * {vec}"),
            n => format!("warp * {n} + {tid} % 32 * {vec}"),
        };
        let from = self.names.declare("from");
        self.line(format!("const {ty} {from} = {own};"));
        let load = |e: &mut Self, at: &str, first: &str| {
            if let Some((src, next, _)) = &ahead {
                let whole = format!("{first} >= {lo} && {first} + {chunk} <= {hi}");
                e.line(format!("claim_load<{vec}, {steps}>({next}, {src}, {at}, {lo}, {hi}, {whole});"));
            }
        };
        if ahead.is_some() {
            load(self, &format!("{start} + {from}"), &start);
        }
        let mut element =
            Element::plain(vec![var], defined_inside(k, body), self.out.len(), self.names.depth(), self.depth);
        element.extents = vec![1];
        let base = self.open_with("base", |n| format!("for ({ty} {n} = {start}; {n} < {hi}; {n} += {chunk})")).s;
        let held = self.names.declare("held");
        if let (Some((_, next, t)), Some(s)) = (&ahead, &stream) {
            self.line(format!("alignas(16) {t} {held}[{each}];"));
            self.line(format!("ld<16>({held}, {next});"));
            element.arrays.insert(s.op, held.clone());
            let then = format!("{base} + {chunk}");
            self.open(&format!("if ({then} < {hi})"));
            load(self, &format!("{then} + {from}"), &then);
            self.close();
        }
        self.element = Some(element);
        let kept = self.names.declare("kept");
        self.line(format!("u32 {kept} = 0;"));
        // Other loads are not to happen for elements that do not exist.
        let careful = decide.iter().any(|&o| {
            let mut found = false;
            let mut look = |id: OpId, op: &Op| {
                found |=
                    matches!(op, Op::Load { .. } | Op::LoadOr { .. }) && stream.as_ref().is_none_or(|s| s.op != id);
            };
            look(o, &k.op(o).op);
            for b in crate::ir::effects::bodies(&k.op(o).op) {
                walk(k, b, &mut look);
            }
            found
        });
        let i = self.lane_of_claim(var, each, vec, &base, &from);
        let exists = format!("{i} >= {lo} && {i} < {hi}");
        if careful {
            self.open(&format!("if ({exists})"));
        }
        self.ops_of_claim(decide, body);
        let c = self.val(cond);
        self.line(format!("if ({}) {kept} |= 1u << e;", c.s));
        if careful {
            self.close();
        }
        self.close();
        if !careful {
            self.open(&format!("if ({base} < {lo} || {base} + {chunk} > {hi})"));
            let i = self.lane_of_claim(var, each, vec, &base, &from);
            self.line(format!("if ({i} < {lo} || {i} >= {hi}) {kept} &= ~(1u << e);"));
            self.close();
            self.close();
        }
        let first = self.names.declare("first");
        self.line(format!("u32 {first}[{steps}];"));
        let shared = match &counts {
            Some(c) => format!("{c} + {turn}"),
            None => "(u32*)nullptr".into(),
        };
        self.line(format!("claim_numbers<{vec}, {steps}, {warps}>({kept}, {seen}, {shared}, {first});"));
        if counts.is_some() {
            self.line(format!("{turn} ^= {warps};"));
        }
        let i = self.lane_of_claim(var, each, vec, &base, &from);
        let number = self.names.declare("number");
        if keep.iter().all(|&o| only_if(k, o, cond)) {
            self.open(&format!("if ({kept} >> e & 1)"));
            self.ops_of_claim(decide, body);
            self.line(format!("const u32 {number} = {first}[e / {vec}]++;"));
            self.values.insert(cond, Text::name("true"));
        } else {
            self.open(&format!("if ({i} >= {lo} && {i} < {hi})"));
            self.ops_of_claim(decide, body);
            let chosen = self.names.declare("chosen");
            self.line(format!("const bool {chosen} = {kept} >> e & 1;"));
            self.line(format!("const u32 {number} = {first}[e / {vec}];"));
            self.line(format!("{first}[e / {vec}] += {chosen};"));
            self.values.insert(cond, Text::name(chosen));
        }
        self.values.insert(result, Text::name(number));
        self.ops_of_claim(keep, body);
        self.close();
        self.close();
        self.element = None;
        self.close();
        self.line(format!("{name} = {seen};"));
        self.close();
    }

    /// Opens the loop over a thread's elements `e`; returns the name of the index.
    fn lane_of_claim(&mut self, var: IxVarId, each: usize, vec: usize, base: &str, from: &str) -> String {
        self.line("#pragma unroll");
        self.open(&format!("for (int e = 0; e < {each}; ++e)"));
        let i = self.names.declare(&self.k.ix_var(var).name.clone());
        let ty = self.index_type();
        let within = if vec == 1 { "e * 32".into() } else { format!("e / {vec} * {} + e % {vec}", 32 * vec) };
        self.line(format!("const {ty} {i} = {base} + {from} + {within};"));
        self.index.insert(var, Text::name(i.clone()));
        if let Some(e) = &mut self.element {
            e.lane = Text::name("e");
        }
        i
    }

    fn ops_of_claim(&mut self, ops: &[OpId], body: BlockId) {
        let outer = std::mem::replace(&mut self.block, body);
        for &id in ops {
            self.op(id);
        }
        self.block = outer;
    }

    /// A load of consecutive elements of an input.
    fn stream(&mut self, id: OpId, var: IxVarId) -> Option<Stream> {
        let k = self.k;
        let Op::Load { view, index, .. } = &k.op(id).op else { return None };
        let v = k.view(*view);
        let (&last, rest) = index.split_last()?;
        let even = k.ix_const(*v.strides.last()?) == Some(1) && k.ix_expr(last) == IxExpr::Var(var);
        let bits = memory_bits(k, *view);
        // Its guards, like the bounds of the range, must hold for every element of the range.
        let proven = self.facts.guards.get(&id).is_some_and(|g| g.iter().all(|need| !need));
        let fixed = rest.iter().chain([&v.offset]).all(|&i| !mentions(k, i, var));
        (even && fixed && proven && v.gather.is_none() && matches!(bits, 8 | 16 | 32) && self.read_only(*view))
            .then(|| Stream { op: id, view: *view, index: index.clone() })
    }
}

/// True if an index is computed from a variable, or from what it may have been computed from.
fn mentions(k: &crate::ir::Kernel, i: IxId, var: IxVarId) -> bool {
    match k.ix_expr(i) {
        IxExpr::Const(_) | IxExpr::Sym(_) => false,
        IxExpr::Data(_) => true,
        IxExpr::Var(v) => v == var || k.ix_var(v).kind == crate::ir::IxVarKind::Data,
        IxExpr::Add(a, b)
        | IxExpr::Sub(a, b)
        | IxExpr::Mul(a, b)
        | IxExpr::Div(a, b)
        | IxExpr::Mod(a, b)
        | IxExpr::Min(a, b)
        | IxExpr::Max(a, b) => mentions(k, a, var) || mentions(k, b, var),
    }
}
