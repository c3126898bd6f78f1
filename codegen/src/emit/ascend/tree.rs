//! What an Ascend kernel is made of between the IR and its text: instructions with their pipe and the memory they touch,
//! in loops and branches.
//!
//! Statements are text already; what is not is who runs them, on which pipe, and which buffers they read and write. From
//! that the memory plan finds lifetimes, `sync` the events, and `print` the program of each kind of core.

use crate::ir::SpanId;

/// A pipe of a core. Instructions of one pipe run in order, pipes run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pipe {
    /// The scalar unit, which also issues the others' instructions.
    S,
    /// Vector unit.
    V,
    /// Global memory to the core.
    Mte2,
    /// UB to global memory or L1.
    Mte3,
    /// What the cube does between L1 and UB, with events of its own.
    M,
}

impl Pipe {
    /// Name in `HardEvent` and `pipe_t`.
    pub fn name(self) -> &'static str {
        match self {
            Pipe::S => "S",
            Pipe::V => "V",
            Pipe::Mte2 => "MTE2",
            Pipe::Mte3 => "MTE3",
            Pipe::M => "M",
        }
    }
    pub(super) fn bit(self) -> u8 {
        1 << (self as u8)
    }
}

/// Which cores run a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Core {
    /// Vector cores.
    Vector,
    /// The cube core.
    Cube,
    /// All of them: scalars that steer.
    Both,
}

/// On-chip memory of the Ascend form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Unified buffer of a vector core.
    Ub,
    /// L1 of the cube core.
    L1,
    /// Left operands.
    L0a,
    /// Right operands.
    L0b,
    /// Accumulators.
    L0c,
    /// Global memory of the block.
    Workspace,
}

/// Number of a [`Buf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufId(pub usize);

/// A buffer at a planned address.
#[derive(Clone, Debug)]
pub struct Buf {
    /// Name of its tensor; the constant of its address is the same in capitals.
    pub name: String,
    /// Type of an element in the text.
    pub ty: &'static str,
    /// Elements of a slot.
    pub elements: usize,
    /// Bytes of a slot, a multiple of the alignment.
    pub bytes: usize,
    /// Slots used in turn.
    pub slots: usize,
    /// Where it lies.
    pub place: Place,
    /// Lives from the kernel's start to its end, whatever touches it when.
    pub whole: bool,
    /// For the capacity report.
    pub span: SpanId,
    /// What the user calls it, with its shape.
    pub what: String,
    /// First byte, after planning.
    pub offset: usize,
}

/// An instruction (or some of one pipe) and what it touches.
#[derive(Clone, Debug)]
pub struct Inst {
    /// Number, for `sync`.
    pub id: usize,
    /// Its pipe.
    pub pipe: Pipe,
    /// Cores that run it.
    pub core: Core,
    /// Text.
    pub lines: Vec<String>,
    /// Buffers it reads.
    pub reads: Vec<BufId>,
    /// Buffers it writes.
    pub writes: Vec<BufId>,
}

/// A statement.
#[derive(Clone, Debug)]
pub enum Node {
    /// Position of what follows.
    At(SpanId, String),
    /// A scalar statement that touches no buffer.
    Say(Core, String),
    /// An instruction.
    Inst(Inst),
    /// A loop.
    Loop {
        /// Text before the brace.
        head: String,
        /// Body.
        body: Vec<Node>,
    },
    /// A branch.
    If {
        /// Condition.
        cond: String,
        /// Taken if true.
        then: Vec<Node>,
        /// Taken if false.
        els: Vec<Node>,
    },
    /// Statements in a row.
    Group(Vec<Node>),
    /// `break;` or `continue;` of the innermost loop.
    Leave(&'static str),
}

/// Calls `f` for each instruction, in text order.
pub fn each_inst<'n>(nodes: &'n [Node], f: &mut dyn FnMut(&'n Inst)) {
    for n in nodes {
        match n {
            Node::Inst(i) => f(i),
            Node::Loop { body, .. } | Node::Group(body) => each_inst(body, f),
            Node::If { then, els, .. } => {
                each_inst(then, f);
                each_inst(els, f);
            }
            Node::At(..) | Node::Say(..) | Node::Leave(_) => {}
        }
    }
}

/// The statements one kind of core runs: others are left out, with the loops and branches that become empty.
pub fn for_core(nodes: &[Node], core: Core) -> Vec<Node> {
    let mut out: Vec<Node> = vec![];
    let runs = |c: Core| c == core || c == Core::Both;
    for n in nodes {
        match n {
            Node::At(..) => {
                if matches!(out.last(), Some(Node::At(..))) {
                    out.pop();
                }
                out.push(n.clone());
            }
            Node::Say(c, _) if runs(*c) => out.push(n.clone()),
            Node::Inst(i) if runs(i.core) => out.push(n.clone()),
            Node::Say(..) | Node::Inst(_) => {}
            Node::Loop { head, body } => {
                let body = for_core(body, core);
                if body.iter().any(does) {
                    out.push(Node::Loop { head: head.clone(), body });
                }
            }
            Node::If { cond, then, els } => {
                let (then, els) = (for_core(then, core), for_core(els, core));
                if then.iter().chain(&els).any(does) {
                    out.push(Node::If { cond: cond.clone(), then, els });
                }
            }
            Node::Group(list) => out.extend(for_core(list, core)),
            Node::Leave(_) => out.push(n.clone()),
        }
    }
    if matches!(out.last(), Some(Node::At(..))) {
        out.pop();
    }
    out
}

fn does(n: &Node) -> bool {
    !matches!(n, Node::At(..))
}

/// Lines of statements with `depth` levels of indentation; `before` gives the lines an instruction waits on.
pub fn print(nodes: &[Node], depth: usize, place: &dyn Fn(SpanId) -> String, before: &Before, out: &mut Vec<String>) {
    let pad = "    ".repeat(depth);
    for n in nodes {
        match n {
            Node::At(span, what) => {
                if out.last().is_some_and(|l| !l.is_empty() && !l.ends_with('{')) {
                    out.push(String::new());
                }
                out.push(format!("{pad}// {}: {what}", place(*span)));
            }
            Node::Say(_, line) => out.extend(line.lines().map(|l| format!("{pad}{l}"))),
            Node::Inst(i) => {
                for l in before(i.id).iter().chain(&i.lines) {
                    out.extend(l.lines().map(|l| if l.is_empty() { String::new() } else { format!("{pad}{l}") }));
                }
            }
            Node::Loop { head, body } => {
                out.push(format!("{pad}{head} {{"));
                print(body, depth + 1, place, before, out);
                out.push(format!("{pad}}}"));
            }
            Node::If { cond, then, els } => {
                out.push(format!("{pad}if ({cond}) {{"));
                print(then, depth + 1, place, before, out);
                if els.iter().any(does) {
                    out.push(format!("{pad}}} else {{"));
                    print(els, depth + 1, place, before, out);
                }
                out.push(format!("{pad}}}"));
            }
            Node::Group(list) => print(list, depth, place, before, out),
            Node::Leave(word) => out.push(format!("{pad}{word}")),
        }
    }
}

/// Lines to print before an instruction.
pub type Before<'a> = dyn Fn(usize) -> Vec<String> + 'a;

/// Removes scalar constants that nothing later mentions, last ones first.
pub fn drop_unused(lines: Vec<String>) -> Vec<String> {
    let mut words: std::collections::HashSet<String> = Default::default();
    let mut keep = vec![];
    for line in lines.into_iter().rev() {
        let t = line.trim_start();
        let name = t.strip_prefix("const ").and_then(|r| {
            let mut w = r.split_whitespace();
            let (_, name) = (w.next()?, w.next()?);
            (w.next() == Some("=") && t.ends_with(';')).then(|| name.to_string())
        });
        let tensor = (t.starts_with("LocalTensor<") || t.starts_with("GlobalTensor<"))
            .then(|| {
                t.split_whitespace().nth(1).map(|w| w.trim_end_matches(';').split('(').next().unwrap_or(w).to_string())
            })
            .flatten();
        let setup = t.split_once(".SetGlobalBuffer(").map(|(n, _)| n.to_string());
        if let Some(n) = name.or(tensor).or(setup)
            && !words.contains(&n)
        {
            continue;
        }
        if !t.starts_with("//") && !t.contains(".SetGlobalBuffer(") {
            let code = t.split("//").next().unwrap_or(t);
            // A tensor's own declaration does not count as its use, nor does a constant's.
            for w in code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                words.insert(w.to_string());
            }
        } else if let Some((_, rest)) = t.split_once(".SetGlobalBuffer(") {
            for w in rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                words.insert(w.to_string());
            }
        }
        keep.push(line);
    }
    keep.reverse();
    keep
}
