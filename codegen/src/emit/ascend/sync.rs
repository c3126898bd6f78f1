//! Events: which pipe has to wait for which before an instruction, found from the buffers they touch.
//!
//! Where an instruction depends on another pipe, the flag is set and waited for right before it. Such a pair is balanced on
//! every path by itself and needs no prologue or epilogue. A flag may be set again only when its last wait is known to be
//! over; where no id of a pair of pipes is, all pipes meet instead. Loops are walked until nothing changes, so conflicts
//! with the step before are found too. Buffers whose order a ring keeps are left to the ring.

use super::tree::{Buf, BufId, Inst, Node, Pipe};
use std::collections::{BTreeMap, BTreeSet};

/// Event ids for the pairs made here, in order of preference; the others belong to rings and to single elements.
const IDS: [u8; 3] = [7, 5, 4];

/// A wait before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// One pipe waits for another, with an event id.
    Pair(Pipe, Pipe, u8),
    /// Later vector instructions wait for earlier ones.
    Vector,
    /// All pipes meet.
    All,
}

/// Waits before each instruction, in order.
pub type Waits = BTreeMap<usize, Vec<Wait>>;

/// Something that another pipe may still have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// An access of a buffer; true if it writes.
    Access(BufId, Pipe, bool),
    /// The wait of an event, on its second pipe.
    Event(Pipe, Pipe, u8),
}

impl Key {
    fn pipe(self) -> Pipe {
        match self {
            Key::Access(_, p, _) | Key::Event(_, p, _) => p,
        }
    }
}

/// What is pending, with the pipes that come after it.
type State = BTreeMap<Key, u8>;

/// Finds all waits. With `strict`, a vector instruction waits for an earlier one whose result it reads or overwrites.
pub fn plan(nodes: &[Node], bufs: &[Buf], ringed: &BTreeSet<BufId>, strict: bool) -> Waits {
    let mut s = Sync { bufs, ringed, strict, waits: Waits::new(), changes: 0, exits: vec![] };
    s.block(nodes, State::new());
    s.waits
}

/// Lines of one wait.
pub fn lines(w: Wait) -> Vec<String> {
    match w {
        Wait::All => vec!["PipeBarrier<PIPE_ALL>();".into()],
        Wait::Vector => vec!["PipeBarrier<PIPE_V>();".into()],
        Wait::Pair(from, to, id) => {
            let e = format!("HardEvent::{}_{}", from.name(), to.name());
            vec![format!("SetFlag<{e}>({id});"), format!("WaitFlag<{e}>({id});")]
        }
    }
}

struct Sync<'a> {
    bufs: &'a [Buf],
    ringed: &'a BTreeSet<BufId>,
    strict: bool,
    waits: Waits,
    changes: usize,
    exits: Vec<State>,
}

fn has_event(from: Pipe, to: Pipe) -> bool {
    use Pipe::{Mte2, Mte3, S, V};
    let side = |p: Pipe| matches!(p, S | V | Mte2 | Mte3);
    from != to && side(from) && side(to)
}

/// True if `from` may set the event again.
fn free(s: &State, from: Pipe, to: Pipe, id: u8) -> bool {
    s.get(&Key::Event(from, to, id)).is_none_or(|seen| seen & from.bit() != 0)
}

fn apply(s: &mut State, w: Wait) {
    let (from, to) = match w {
        Wait::All => {
            s.clear();
            return;
        }
        Wait::Vector => (Pipe::V, Pipe::V),
        Wait::Pair(from, to, _) => (from, to),
    };
    for (k, seen) in s.iter_mut() {
        if k.pipe() == from || *seen & from.bit() != 0 {
            *seen |= to.bit();
        }
    }
    if let Wait::Pair(from, to, id) = w {
        s.insert(Key::Event(from, to, id), 0);
    }
}

/// What may be pending after either of two ways.
fn join(a: &mut State, b: &State) {
    for (k, &seen) in b {
        a.entry(*k).and_modify(|s| *s &= seen).or_insert(seen);
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
                        let changes = self.changes;
                        self.exits.clear();
                        let end = self.block(body, entry.clone());
                        let before = entry.clone();
                        join(&mut entry, &end);
                        for e in std::mem::take(&mut self.exits) {
                            join(&mut entry, &e);
                        }
                        if entry == before && changes == self.changes {
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
                Node::Group(list) => s = self.block(list, s),
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

    /// A wait of `to` for `from` that may stand where `s` is pending.
    fn pair(&self, s: &State, from: Pipe, to: Pipe) -> Wait {
        if from == to {
            return if from == Pipe::V { Wait::Vector } else { Wait::All };
        }
        if !has_event(from, to) {
            return Wait::All;
        }
        IDS.into_iter().find(|&id| free(s, from, to, id)).map_or(Wait::All, |id| Wait::Pair(from, to, id))
    }

    fn inst(&mut self, i: &Inst, mut s: State) -> State {
        let mut list = self.waits.get(&i.id).cloned().unwrap_or_default();
        for w in &mut list {
            if let Wait::Pair(from, to, id) = *w
                && !free(&s, from, to, id)
            {
                // Ids only move on, so this ends.
                let next = IDS.into_iter().skip_while(|&x| x != id).skip(1).find(|&x| free(&s, from, to, x));
                *w = next.map_or(Wait::All, |x| Wait::Pair(from, to, x));
                self.changes += 1;
            }
            apply(&mut s, *w);
        }
        let touched = i.reads.iter().map(|&b| (b, false)).chain(i.writes.iter().map(|&b| (b, true)));
        let touched: Vec<_> = touched.filter(|(b, _)| !self.ringed.contains(b)).collect();
        loop {
            let late = s.iter().find_map(|(&k, &seen)| {
                let Key::Access(other, pipe, wrote) = k else { return None };
                let ordered = pipe == i.pipe && !(self.strict && pipe == Pipe::V && wrote);
                let meets = touched.iter().any(|&(b, write)| (write || wrote) && self.overlap(b, other));
                (meets && !ordered && seen & i.pipe.bit() == 0).then_some(pipe)
            });
            let Some(pipe) = late else { break };
            let w = self.pair(&s, pipe, i.pipe);
            apply(&mut s, w);
            list.push(w);
            self.changes += 1;
        }
        if !list.is_empty() {
            self.waits.insert(i.id, list);
        }
        for (b, write) in touched {
            s.insert(Key::Access(b, i.pipe, write), 0);
        }
        s
    }
}
