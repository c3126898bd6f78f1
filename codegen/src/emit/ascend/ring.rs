//! Double buffering of vector kernels: while one block of the grid is computed, the next one's tensors are copied in and the
//! last one's results out.
//!
//! Fits kernels whose copies stand in the loop over blocks itself. A block then has three phases: copies in, vector code,
//! copies out; scalars come with the copies. A buffer that copies fill or empty gets two slots, and a block takes them in turn.
//! Whoever fills a slot waits until its last reader has set the slot's flag; flags are set for both slots before the loop and
//! taken back after it. A second flag of each slot tells that it is full.

use super::tree::{Buf, BufId, Core, Inst, Node, Pipe, Place, each_inst};
use std::collections::{BTreeMap, BTreeSet};

/// Two slots for the buffers of copies. Returns the buffers whose order the slots' flags keep.
pub fn double(nodes: &mut [Node], bufs: &mut [Buf]) -> BTreeSet<BufId> {
    let none = BTreeSet::new();
    let Some(at) = nodes.iter().position(|n| matches!(n, Node::Loop { .. })) else { return none };
    let Node::Loop { body, .. } = &nodes[at] else { return none };
    let (mut reading, mut writing): (BTreeMap<BufId, BTreeSet<Pipe>>, BTreeMap<BufId, BTreeSet<Pipe>>) =
        Default::default();
    // Scalars come with the copies, so loops and branches may not compute any.
    let mut fits = !body.iter().any(|n| matches!(n, Node::Leave(_) | Node::Group(_)) || computes(n));
    let mut note = |i: &Inst, nested: bool| {
        let copies = matches!(i.pipe, Pipe::Mte2 | Pipe::Mte3);
        fits &= i.core == Core::Vector && (i.pipe == Pipe::V || copies && !nested);
        i.reads.iter().for_each(|&b| {
            reading.entry(b).or_default().insert(i.pipe);
        });
        i.writes.iter().for_each(|&b| {
            writing.entry(b).or_default().insert(i.pipe);
        });
    };
    for n in body {
        let nested = !matches!(n, Node::Inst(_));
        each_inst(std::slice::from_ref(n), &mut |i| note(i, nested));
    }
    if !fits {
        return none;
    }
    let only = |m: &BTreeMap<BufId, BTreeSet<Pipe>>, b: BufId, p: Pipe| {
        m.get(&b).is_some_and(|s| s.len() == 1 && s.contains(&p))
    };
    let (mut into, mut out, mut through) = (vec![], vec![], vec![]);
    for &b in reading.keys().chain(writing.keys()).collect::<BTreeSet<_>>() {
        let copied = |m: &BTreeMap<BufId, BTreeSet<Pipe>>| {
            m.get(&b).is_some_and(|s| s.contains(&Pipe::Mte2) || s.contains(&Pipe::Mte3))
        };
        if bufs[b.0].place != Place::Ub || !copied(&reading) && !copied(&writing) {
            continue;
        }
        if only(&writing, b, Pipe::Mte2) && only(&reading, b, Pipe::V) {
            into.push(b);
        } else if only(&writing, b, Pipe::Mte2) && only(&reading, b, Pipe::Mte3) {
            through.push(b);
        } else if only(&writing, b, Pipe::V) && only(&reading, b, Pipe::Mte3) {
            out.push(b);
        } else {
            return none;
        }
    }
    if into.is_empty() && out.is_empty() && through.is_empty() {
        return none;
    }
    let say =
        |word: &str, event: &str, id: &str| Node::Say(Core::Vector, format!("{word}Flag<HardEvent::{event}>({id});"));
    let slot = |word: &str, event: &str| say(word, event, "slot");
    let mut all = BTreeSet::new();
    let mut head = vec![Node::Say(Core::Vector, "const uint32_t slot = it++ % 2;".into())];
    let (mut first, mut last) = (vec![Node::Say(Core::Vector, "uint32_t it = 0;".into())], vec![]);
    for (list, event, position) in
        [(&into, "V_MTE2", "VECIN"), (&through, "MTE3_MTE2", "VECIN"), (&out, "MTE3_V", "VECOUT")]
    {
        if list.is_empty() {
            continue;
        }
        let each = |word: &str| Node::Loop {
            head: "for (uint16_t s = 0; s < 2; ++s)".into(),
            body: vec![say(word, event, "s")],
        };
        first.push(each("Set"));
        last.push(each("Wait"));
        for &b in list {
            let x = &mut bufs[b.0];
            (x.slots, x.whole) = (2, true);
            let address = super::address_name(x);
            head.push(Node::Say(
                Core::Vector,
                format!(
                    "LocalTensor<{}> {}(TPosition::{position}, {address} + slot * {}, {});",
                    x.ty, x.name, x.bytes, x.elements
                ),
            ));
            all.insert(b);
        }
    }
    let Node::Loop { head: turns, body } = std::mem::replace(&mut nodes[at], Node::Leave("")) else { return none };
    let (mut loads, mut work, mut stores) = (vec![], vec![], vec![]);
    for n in body {
        match &n {
            Node::Say(..) => loads.push(n),
            Node::Inst(i) if i.pipe == Pipe::Mte2 => loads.push(n),
            Node::Inst(i) if i.pipe == Pipe::Mte3 => stores.push(n),
            Node::Inst(_) | Node::Loop { .. } | Node::If { .. } | Node::At(..) | Node::Group(_) | Node::Leave(_) => {
                work.push(n);
            }
        }
    }
    let mut body = head;
    // Scalars before the first copy stay before the wait.
    let copies = loads.iter().position(|n| matches!(n, Node::Inst(_))).unwrap_or(loads.len());
    let rest = loads.split_off(copies);
    body.extend(loads);
    if !into.is_empty() {
        body.push(slot("Wait", "V_MTE2"));
    }
    if !through.is_empty() {
        body.push(slot("Wait", "MTE3_MTE2"));
    }
    body.extend(rest);
    if !into.is_empty() {
        body.extend([slot("Set", "MTE2_V"), slot("Wait", "MTE2_V")]);
    }
    if !through.is_empty() {
        body.extend([slot("Set", "MTE2_MTE3"), slot("Wait", "MTE2_MTE3")]);
    }
    if !out.is_empty() {
        body.push(slot("Wait", "MTE3_V"));
    }
    body.extend(work);
    if !into.is_empty() {
        body.push(slot("Set", "V_MTE2"));
    }
    if !out.is_empty() {
        body.extend([slot("Set", "V_MTE3"), slot("Wait", "V_MTE3")]);
    }
    body.extend(stores);
    if !out.is_empty() {
        body.push(slot("Set", "MTE3_V"));
    }
    if !through.is_empty() {
        body.push(slot("Set", "MTE3_MTE2"));
    }
    // One node has to stand for what is before the loop, the loop, and what is after it.
    first.push(Node::Loop { head: turns, body });
    first.extend(last);
    nodes[at] = Node::Group(first);
    all
}

/// True if a loop or branch computes scalars or is left early.
fn computes(n: &Node) -> bool {
    let any = |list: &[Node]| list.iter().any(|n| matches!(n, Node::Say(..) | Node::Leave(_)) || computes(n));
    match n {
        Node::Loop { body, .. } => any(body),
        Node::If { then, els, .. } => any(then) || any(els),
        Node::Inst(_) | Node::Say(..) | Node::At(..) | Node::Group(_) | Node::Leave(_) => false,
    }
}
