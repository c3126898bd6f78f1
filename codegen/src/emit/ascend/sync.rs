//! Events: which pipe has to wait for which before an instruction, found from the buffers they touch.
//!
//! Where an instruction depends on another pipe, the flag is set and waited for right before it. Such a pair is balanced on
//! every path by itself, needs no prologue or epilogue, and has one id. Loops are walked until nothing changes, so conflicts
//! with the step before are found too. Buffers whose order a ring keeps are left to the ring.

use super::tree::{Buf, BufId, Inst, Node, Pipe};
use std::collections::{BTreeMap, BTreeSet};

/// Event id of the pairs made here; rings use smaller ones.
pub const PAIR: usize = 7;

/// Waits before each instruction, in order.
pub type Edges = BTreeMap<usize, Vec<(Pipe, Pipe)>>;

/// Accesses that something may still have to wait for, with the pipes that already have.
type State = BTreeMap<(BufId, Pipe, bool), u8>;

/// Finds all waits. With `strict`, a vector instruction waits for an earlier one whose result it reads or overwrites.
pub fn plan(nodes: &[Node], bufs: &[Buf], ringed: &BTreeSet<BufId>, strict: bool) -> Edges {
    let mut s = Sync { bufs, ringed, strict, edges: Edges::new(), exits: vec![] };
    s.block(nodes, State::new());
    s.edges
}

/// Lines of one wait.
pub fn lines(edge: (Pipe, Pipe)) -> Vec<String> {
    let (from, to) = edge;
    if from == to {
        return vec![format!("PipeBarrier<PIPE_{}>();", from.name())];
    }
    let e = format!("HardEvent::{}_{}", from.name(), to.name());
    vec![format!("SetFlag<{e}>({PAIR});"), format!("WaitFlag<{e}>({PAIR});")]
}

struct Sync<'a> {
    bufs: &'a [Buf],
    ringed: &'a BTreeSet<BufId>,
    strict: bool,
    edges: Edges,
    exits: Vec<State>,
}

/// The way from one pipe to another over pairs that have events.
fn route(from: Pipe, to: Pipe) -> Vec<(Pipe, Pipe)> {
    use Pipe::{Fix, M, Mte1, Mte2, Mte3, S, V};
    let direct = match (from, to) {
        (V, S | Mte2 | Mte3 | V) | (S | Mte2 | Mte3, V) => true,
        (Mte1, Mte2 | M) | (M, Mte1 | Fix | M) | (Mte2, Mte1) | (Fix, M) => true,
        (S | V, Mte1 | M | Fix)
        | (Mte1 | M | Fix, S | V)
        | (S, S | Mte2 | Mte3)
        | (Mte1, Mte1 | Mte3 | Fix)
        | (Mte2, S | Mte2 | Mte3 | M | Fix)
        | (Mte3, S | Mte1 | Mte2 | Mte3 | M | Fix)
        | (M, Mte2 | Mte3)
        | (Fix, Mte1 | Mte2 | Mte3 | Fix) => false,
    };
    if direct {
        return vec![(from, to)];
    }
    match (from, to) {
        (Mte2, M) => vec![(Mte2, Mte1), (Mte1, M)],
        (Mte2, Fix) => vec![(Mte2, Mte1), (Mte1, M), (M, Fix)],
        (Fix, Mte1) => vec![(Fix, M), (M, Mte1)],
        (Fix, Mte2) => vec![(Fix, M), (M, Mte1), (Mte1, Mte2)],
        (M, Mte2) => vec![(M, Mte1), (Mte1, Mte2)],
        (Mte1, Fix) => vec![(Mte1, M), (M, Fix)],
        (S | V | Mte1 | Mte2 | Mte3 | M | Fix, _) => vec![(from, V), (V, to)],
    }
}

impl Sync<'_> {
    fn block(&mut self, nodes: &[Node], mut s: State) -> State {
        for n in nodes {
            match n {
                Node::Inst(i) => s = self.inst(i, s),
                Node::Loop { body, .. } => {
                    let outer = std::mem::take(&mut self.exits);
                    let mut entry = s.clone();
                    loop {
                        let edges = self.edges.values().map(Vec::len).sum::<usize>();
                        self.exits.clear();
                        let end = self.block(body, entry.clone());
                        let before = entry.clone();
                        join(&mut entry, &end);
                        for e in std::mem::take(&mut self.exits) {
                            join(&mut entry, &e);
                        }
                        if entry == before && edges == self.edges.values().map(Vec::len).sum::<usize>() {
                            break;
                        }
                    }
                    self.exits = outer;
                    s = entry;
                }
                Node::If { then, els, .. } => {
                    let mut a = self.block(then, s.clone());
                    let b = self.block(els, s);
                    join(&mut a, &b);
                    s = a;
                }
                Node::Leave(_) => self.exits.push(s.clone()),
                Node::At(..) | Node::Say(..) => {}
            }
        }
        s
    }

    fn overlap(&self, a: BufId, b: BufId) -> bool {
        if a == b {
            return true;
        }
        let (x, y) = (&self.bufs[a.0], &self.bufs[b.0]);
        let end = |z: &Buf| z.offset + z.bytes * z.slots;
        x.place == y.place && x.offset < end(y) && y.offset < end(x)
    }

    fn inst(&mut self, i: &Inst, mut s: State) -> State {
        for &edge in self.edges.get(&i.id).into_iter().flatten() {
            apply(&mut s, edge);
        }
        let touched = i.reads.iter().map(|&b| (b, false)).chain(i.writes.iter().map(|&b| (b, true)));
        let touched: Vec<_> = touched.filter(|(b, _)| !self.ringed.contains(b)).collect();
        let mut from: Vec<Pipe> = vec![];
        for &(b, write) in &touched {
            for (&(other, pipe, wrote), &seen) in &s {
                let ordered = pipe == i.pipe && !(self.strict && pipe == Pipe::V && wrote);
                if (write || wrote) && !ordered && seen & i.pipe.bit() == 0 && self.overlap(b, other) {
                    from.push(pipe);
                }
            }
        }
        from.sort_unstable();
        from.dedup();
        for p in from {
            for edge in route(p, i.pipe) {
                let list = self.edges.entry(i.id).or_default();
                if !list.contains(&edge) {
                    list.push(edge);
                }
                apply(&mut s, edge);
            }
        }
        for (b, write) in touched {
            s.insert((b, i.pipe, write), 0);
        }
        s
    }
}

fn apply(s: &mut State, (from, to): (Pipe, Pipe)) {
    for ((_, pipe, _), seen) in s.iter_mut() {
        if *pipe == from || *seen & from.bit() != 0 {
            *seen |= to.bit();
        }
    }
}

/// What may be pending after either of two ways.
fn join(a: &mut State, b: &State) {
    for (k, &seen) in b {
        a.entry(*k).and_modify(|s| *s &= seen).or_insert(seen);
    }
}
