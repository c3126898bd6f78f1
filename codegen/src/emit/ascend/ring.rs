//! Double buffering of vector kernels: while one block of the grid is computed, the next one's tensors are copied in and the
//! last one's results out.
//!
//! Fits kernels whose copies stand in the loop over blocks itself. A buffer that copies fill, or that copies empty, gets two
//! slots; a block takes them in turn. Whoever fills a slot waits until its last reader has set the slot's flag; flags are set
//! for both slots before the loop and taken back after it. That a slot is full is told by the pairs of `sync`.

use super::tree::{Buf, BufId, Core, Inst, Node, Pipe, Place, each_inst};
use std::collections::{BTreeMap, BTreeSet};

/// What touches a buffer.
#[derive(Default)]
struct Use {
    pipes_reading: BTreeSet<Pipe>,
    pipes_writing: BTreeSet<Pipe>,
    first: usize,
    last: usize,
    seen: bool,
}

/// Two slots for the buffers of copies. Returns the buffers whose slots are kept apart by flags.
pub fn double(nodes: &mut [Node], bufs: &mut [Buf]) -> BTreeSet<BufId> {
    let none = BTreeSet::new();
    let Some(at) = nodes.iter().position(|n| matches!(n, Node::Loop { .. })) else { return none };
    let Node::Loop { body, .. } = &nodes[at] else { return none };
    let mut uses: BTreeMap<BufId, Use> = BTreeMap::new();
    let mut fits = !body.iter().any(|n| matches!(n, Node::Leave(_) | Node::Group(_)));
    let mut note = |i: &Inst, index: usize, nested: bool| {
        fits &= !(nested && matches!(i.pipe, Pipe::Mte2 | Pipe::Mte3)) && i.core == Core::Vector;
        for (list, read) in [(&i.reads, true), (&i.writes, false)] {
            for &b in list {
                let u = uses.entry(b).or_default();
                let side = if read { &mut u.pipes_reading } else { &mut u.pipes_writing };
                side.insert(i.pipe);
                if !u.seen {
                    (u.seen, u.first) = (true, index);
                }
                u.last = index;
            }
        }
    };
    for (index, n) in body.iter().enumerate() {
        match n {
            Node::Inst(i) => note(i, index, false),
            Node::Loop { .. } | Node::If { .. } => each_inst(std::slice::from_ref(n), &mut |i| note(i, index, true)),
            Node::Leave(_) | Node::Group(_) | Node::At(..) | Node::Say(..) => {}
        }
    }
    if !fits {
        return none;
    }
    let only = |s: &BTreeSet<Pipe>, allowed: &[Pipe]| !s.is_empty() && s.iter().all(|p| allowed.contains(p));
    let (mut into, mut out, mut through) = (vec![], vec![], vec![]);
    for (&b, u) in uses.iter().filter(|(b, _)| bufs[b.0].place == Place::Ub) {
        // Clearing before a copy is vector code too.
        let copied_in = u.pipes_writing.contains(&Pipe::Mte2) && only(&u.pipes_writing, &[Pipe::Mte2, Pipe::V]);
        let cleared = u.pipes_writing.contains(&Pipe::V);
        if copied_in && only(&u.pipes_reading, &[Pipe::V]) {
            into.push(b);
        } else if copied_in && !cleared && only(&u.pipes_reading, &[Pipe::Mte3]) {
            through.push(b);
        } else if only(&u.pipes_writing, &[Pipe::V]) && only(&u.pipes_reading, &[Pipe::Mte3]) {
            out.push(b);
        }
    }
    let rings: Vec<(Vec<BufId>, &str)> =
        [(into, "V_MTE2"), (out, "MTE3_V"), (through, "MTE3_MTE2")].into_iter().filter(|r| !r.0.is_empty()).collect();
    if rings.is_empty() {
        return none;
    }
    let mut before: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
    let mut after: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
    let (mut first, mut last) = (vec![], vec![]);
    let mut head = vec![Node::Say(Core::Vector, "const uint32_t slot = it++ % 2;".into())];
    let mut all = BTreeSet::new();
    first.push(Node::Say(Core::Vector, "uint32_t it = 0;".into()));
    for (list, event) in &rings {
        let say = |word: &str, id: &str| Node::Say(Core::Vector, format!("{word}Flag<HardEvent::{event}>({id});"));
        let each =
            |word: &str| Node::Loop { head: "for (uint16_t s = 0; s < 2; ++s)".into(), body: vec![say(word, "s")] };
        first.push(each("Set"));
        last.push(each("Wait"));
        let from = list.iter().map(|b| uses[b].first).min().unwrap_or(0);
        let to = list.iter().map(|b| uses[b].last).max().unwrap_or(0);
        before.entry(from).or_default().push(say("Wait", "slot"));
        after.entry(to).or_default().push(say("Set", "slot"));
        for &b in list {
            let x = &mut bufs[b.0];
            (x.slots, x.whole) = (2, true);
            let position = if *event == "MTE3_V" { "VECOUT" } else { "VECIN" };
            head.push(Node::Say(
                Core::Vector,
                format!(
                    "LocalTensor<{}> {}(TPosition::{position}, {} + slot * {}, {});",
                    x.ty,
                    x.name,
                    super::address_name(x),
                    x.bytes,
                    x.elements
                ),
            ));
            all.insert(b);
        }
    }
    let Node::Loop { body, .. } = &mut nodes[at] else { return none };
    let old = std::mem::take(body);
    body.extend(head);
    for (index, n) in old.into_iter().enumerate() {
        body.extend(before.remove(&index).unwrap_or_default());
        body.push(n);
        body.extend(after.remove(&index).unwrap_or_default());
    }
    let Node::Loop { head, body } = std::mem::replace(&mut nodes[at], Node::Leave("")) else { return none };
    // One node has to stand for what is before the loop, the loop, and what is after it.
    let mut list = first;
    list.push(Node::Loop { head, body });
    list.extend(last);
    nodes[at] = Node::Group(list);
    all
}
