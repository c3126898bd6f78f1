//! Addresses: every buffer gets a fixed place for as long as it lives, and what does not fit is listed.
//!
//! A buffer lives from the first to the last instruction that touches it; one that is touched in a loop which does not start
//! by writing it lives through the whole loop. Buffers that never live at once share memory.

use super::tree::{Buf, BufId, Inst, Node, Place};
use crate::diag::Diagnostic;
use crate::ir::Kernel;
use crate::target::NpuCaps;
use std::collections::BTreeMap;

/// First and last position at which a buffer is alive.
type Life = (usize, usize);

/// Sets the offsets of all buffers.
///
/// # Errors
/// A space that is too small, with every buffer that is alive where it is fullest.
pub fn place(k: &Kernel, nodes: &[Node], bufs: &mut [Buf], caps: &NpuCaps, mixed: bool) -> Result<(), Vec<Diagnostic>> {
    let lives = lives(nodes, bufs);
    let reserve = if mixed { caps.mixed_reserve_bytes } else { 0 };
    for (space, capacity, name) in [
        (Place::Ub, caps.ub_bytes - reserve, "UB"),
        (Place::L1, caps.l1_bytes - reserve, "L1"),
        (Place::L0a, caps.l0a_bytes, "L0A"),
        (Place::L0b, caps.l0b_bytes, "L0B"),
        (Place::L0c, caps.l0c_bytes, "L0C"),
        (Place::Workspace, usize::MAX, "workspace"),
    ] {
        let mut order: Vec<BufId> = (0..bufs.len()).map(BufId).filter(|b| bufs[b.0].place == space).collect();
        order.retain(|b| lives.contains_key(b));
        order.sort_by_key(|b| (!bufs[b.0].whole, lives[b].0, b.0));
        let mut done: Vec<BufId> = vec![];
        for &b in &order {
            let size = bufs[b.0].bytes * bufs[b.0].slots;
            let mut taken: Vec<(usize, usize)> = done
                .iter()
                .filter(|o| meet(lives[o], lives[&b]))
                .map(|o| (bufs[o.0].offset, bufs[o.0].offset + bufs[o.0].bytes * bufs[o.0].slots))
                .collect();
            taken.sort_unstable();
            let mut at = 0;
            for (from, to) in taken {
                if at + size <= from {
                    break;
                }
                at = at.max(to);
            }
            bufs[b.0].offset = at;
            done.push(b);
        }
        let end = |b: &BufId| bufs[b.0].offset + bufs[b.0].bytes * bufs[b.0].slots;
        if let Some(worst) = order.iter().max_by_key(|b| end(b)).filter(|b| end(b) > capacity) {
            let need = end(worst);
            let at = lives[worst].0;
            let d = Diagnostic::error(
                k,
                bufs[worst.0].span,
                "C0211",
                format!("needs {need} bytes of {name}, {capacity} are there"),
            )
            .label("does not fit");
            let mut live: Vec<&BufId> = order.iter().filter(|b| lives[b].0 <= at && at <= lives[b].1).collect();
            live.sort_by_key(|b| std::cmp::Reverse(bufs[b.0].bytes * bufs[b.0].slots));
            let d = live.into_iter().fold(d, |d, b| {
                let x = &bufs[b.0];
                let slots = if x.slots > 1 { format!(", {} slots", x.slots) } else { String::new() };
                d.note(format!("{} bytes for {}{slots}", x.bytes * x.slots, x.what), Some(k.span_of(x.span).clone()))
            });
            return Err(vec![d.help("take fewer rows or a smaller tile a block (--config)")]);
        }
    }
    Ok(())
}

fn meet(a: Life, b: Life) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

fn lives(nodes: &[Node], bufs: &[Buf]) -> BTreeMap<BufId, Life> {
    let mut w = Walk { at: 0, lives: BTreeMap::new(), loops: vec![] };
    w.block(nodes);
    let end = w.at;
    // A buffer that a loop fills and something after it reads is filled step by step: it lives through the whole loop.
    loop {
        let before = w.lives.clone();
        for &(from, to) in &w.loops {
            for l in w.lives.values_mut().filter(|l| from < l.0 && l.0 <= to && l.1 > to) {
                l.0 = from;
            }
        }
        if before == w.lives {
            break;
        }
    }
    for (i, b) in bufs.iter().enumerate() {
        if b.whole {
            w.lives.entry(BufId(i)).and_modify(|l| *l = (0, end)).or_insert((0, end));
        }
    }
    w.lives
}

struct Walk {
    at: usize,
    lives: BTreeMap<BufId, Life>,
    loops: Vec<Life>,
}

impl Walk {
    fn touch(&mut self, b: BufId, at: Life) {
        self.lives.entry(b).and_modify(|l| *l = (l.0.min(at.0), l.1.max(at.1))).or_insert(at);
    }
    fn block(&mut self, nodes: &[Node]) {
        for n in nodes {
            self.at += 1;
            match n {
                Node::Inst(i) => {
                    for &b in i.reads.iter().chain(&i.writes) {
                        self.touch(b, (self.at, self.at));
                    }
                }
                Node::Loop { body, .. } => {
                    let start = self.at;
                    self.block(body);
                    self.at += 1;
                    let span = (start, self.at);
                    self.loops.push(span);
                    // What was there before the loop, or is read in it before it is written, is needed in every step.
                    let mut first: BTreeMap<BufId, bool> = BTreeMap::new();
                    firsts(body, true, &mut first);
                    for (b, written) in first {
                        if !written || self.lives.get(&b).is_some_and(|l| l.0 < start) {
                            self.touch(b, span);
                        }
                    }
                }
                Node::If { then, els, .. } => {
                    self.block(then);
                    self.block(els);
                }
                Node::Group(list) => self.block(list),
                Node::At(..) | Node::Say(..) | Node::Leave(_) => {}
            }
        }
    }
}

/// For each buffer, whether the first instruction that touches it certainly writes it without reading.
fn firsts(nodes: &[Node], sure: bool, out: &mut BTreeMap<BufId, bool>) {
    let visit = |i: &Inst, sure: bool, out: &mut BTreeMap<BufId, bool>| {
        for &b in &i.reads {
            out.entry(b).or_insert(false);
        }
        for &b in &i.writes {
            out.entry(b).or_insert(sure && !i.reads.contains(&b));
        }
    };
    for n in nodes {
        match n {
            Node::Inst(i) => visit(i, sure, out),
            // A buffer that only an inner loop or a branch touches starts afresh in each run of that loop or branch.
            Node::Loop { body, .. } | Node::Group(body) => firsts(body, sure, out),
            Node::If { then, els, .. } => {
                let mut a = BTreeMap::new();
                firsts(then, sure, &mut a);
                let mut b = BTreeMap::new();
                firsts(els, sure, &mut b);
                let keys: std::collections::BTreeSet<BufId> = a.keys().chain(b.keys()).copied().collect();
                for key in keys {
                    let both = a.get(&key).copied().unwrap_or(false) && b.get(&key).copied().unwrap_or(false);
                    out.entry(key).or_insert(both);
                }
            }
            Node::At(..) | Node::Say(..) | Node::Leave(_) => {}
        }
    }
}
