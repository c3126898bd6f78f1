//! Loops whose copies run ahead: a prologue, one barrier an iteration, versions of the tiles in turn.

use super::Emitter;
use super::expr::{Text, memory_type};
use super::loops::ElementLoop;
use super::prelude::Snippet;
use crate::ir::{BlockId, BufferId, IxId, IxVarId, Op, OpId, SpanId};
use crate::pass::access::{Form, memory_bits};
use crate::pass::matrix::element_bytes;
use crate::pass::pipeline::{Ahead, scalar, version_bytes};
use std::collections::HashMap;

impl Emitter<'_> {
    /// A loop with `stages` versions of the tiles its leading copies fill.
    pub fn pipelined(
        &mut self,
        span: SpanId,
        var: IxVarId,
        [lo, hi]: [IxId; 2],
        body: BlockId,
        stages: usize,
        ahead: &Ahead,
    ) {
        let k = self.k;
        self.need(Snippet::AsyncCopy);
        for &id in &ahead.leading {
            if let Op::Alloc { buffer } = &k.op(id).op {
                self.alloc(*buffer);
            }
        }
        self.comment(span, &format!("loop, copies run {} iterations ahead", stages - 1));
        if self.depth > 1 {
            self.line("__syncthreads();  // the tiles of an earlier round are free");
        }
        let (l, h) = (self.ix(lo), self.ix(hi));
        let ty = self.index_type();
        let wish = k.ix_var(var).name.clone();
        let head = |n: &str| format!("for ({ty} {n} = 0; {n} < {}; ++{n})", stages - 1);
        let stage = self.open_with("stage", head);
        self.issue(var, &Text::add(&l, &stage), &h, &stage, body, ahead);
        self.close();
        let head = |n: &str| format!("for ({ty} {n} = {}; {n} < {}; ++{n})", l.s, h.s);
        let name = self.open_with(&wish, head);
        self.line(format!("cp_async_wait<{}>();", stages - 2));
        self.line("__syncthreads();  // the copies of all threads have arrived, and the oldest version is free");
        self.open("");
        let next = Text::add(&name, &Text::number(stages as i64 - 1));
        let turn = self.version(&next, &l, stages);
        self.issue(var, &next, &h, &turn, body, ahead);
        self.close();
        self.index.insert(var, name.clone());
        let turn = self.version(&name, &l, stages);
        let homes = self.versions(&turn, "now", ahead);
        let outer = std::mem::replace(&mut self.block, body);
        // Nothing but the copies has happened since the barrier above: another one there would be for them.
        let mut quiet = true;
        for &id in &k.block(body).ops {
            let op = &k.op(id).op;
            let copied = ahead.leading.contains(&id);
            if copied && matches!(op, Op::Parallel { .. } | Op::Alloc { .. })
                || quiet && matches!(op, Op::BlockBarrier { .. })
            {
                continue;
            }
            quiet &= scalar(k, op);
            self.op(id);
        }
        self.block = outer;
        self.close();
        self.buffers.extend(homes);
        self.line("cp_async_wait<0>();");
    }

    /// Number of the version an iteration uses.
    fn version(&mut self, at: &Text, lo: &Text, stages: usize) -> Text {
        let since = Text::sub(at, lo).s;
        let name = self.names.declare("version");
        self.line(format!("const int {name} = ({since}) % {stages};"));
        Text::name(name)
    }

    /// Declares the tiles' versions with a number; gives their usual names.
    fn versions(&mut self, turn: &Text, wish: &str, ahead: &Ahead) -> HashMap<BufferId, String> {
        let mut homes = HashMap::new();
        for &t in &ahead.tiles {
            let b = self.k.buffer(t);
            let home = self.buffer(t);
            let name = self.names.declare(&format!("{home}_{wish}"));
            let (ty, step) = (memory_type(b.dtype), version_bytes(b) / element_bytes(b.dtype));
            let at = Text::offset(&home, &Text::mul(turn, &Text::number(step as i64)));
            self.line(format!("{ty}* const {name} = {at};"));
            self.buffers.insert(t, name);
            homes.insert(t, home);
        }
        homes
    }

    /// The copies of iteration `next`, if there is one, into version `turn`.
    fn issue(&mut self, var: IxVarId, next: &Text, hi: &Text, turn: &Text, body: BlockId, ahead: &Ahead) {
        let ty = self.index_type();
        let name = self.names.declare(&format!("{}_ahead", self.k.ix_var(var).name));
        self.line(format!("const {ty} {name} = {};", next.s));
        self.open(&format!("if ({name} < {})", hi.s));
        let homes = self.versions(turn, "ahead", ahead);
        self.index.insert(var, Text::name(name));
        let outer = std::mem::replace(&mut self.block, body);
        self.ahead = true;
        for &id in &ahead.leading {
            if !matches!(self.k.op(id).op, Op::Alloc { .. } | Op::BlockBarrier { .. }) {
                self.op(id);
            }
        }
        self.ahead = false;
        self.block = outer;
        self.close();
        self.buffers.extend(homes);
        self.line("cp_async_commit();");
    }

    /// Prints a copy that runs ahead, if pieces of one size go from memory to memory as they are.
    pub fn async_copy(&mut self, l: &ElementLoop<'_>, forms: &HashMap<OpId, Form>, predicate: Option<&Text>) -> bool {
        let k = self.k;
        let [first, second] = k.block(l.body).ops[..] else { return false };
        let (Op::Load { result, view: from, index }, Op::Store { view: to, index: target, value, .. }) =
            (&k.op(first).op, &k.op(second).op)
        else {
            return false;
        };
        let (Some(Form::Wide(bytes)), Some(Form::Wide(other))) = (forms.get(&first), forms.get(&second)) else {
            return false;
        };
        let bits = memory_bits(k, *from);
        let fits = self.ahead
            && value == result
            && bytes == other
            && matches!(bytes, 4 | 8 | 16)
            && bits >= 8
            && bits == memory_bits(k, *to)
            && self.register_tile(*to).is_none();
        if !fits {
            return false;
        }
        let source = self.place(*from, index);
        let valid = self.bounds(first, *from, index);
        let place = self.place(*to, target);
        let inside = self.bounds(second, *to, target);
        let condition = match (predicate, inside) {
            (Some(p), Some(b)) => Some(Text::both(p, &b)),
            (p, b) => p.cloned().or(b),
        };
        let valid = valid.map(|c| format!(", {}", Text::choose(&c, &Text::number(*bytes as i64), &Text::number(0)).s));
        let valid = valid.unwrap_or_default();
        let step = *bytes * 8 / bits;
        for piece in 0..l.distribution.vec / step {
            let skip = Text::number((piece * step) as i64);
            let to = Text::offset(&place.base, &Text::add(&place.index, &skip));
            let from = Text::offset(&source.base, &Text::add(&source.index, &skip));
            self.guarded(condition.clone(), &format!("cp_async{bytes}({to}, {from}{valid});"));
        }
        true
    }
}
