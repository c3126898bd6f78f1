//! Matrix products: which tiles they share between cores, the frame of flags around a kernel, and the shape of a product.
//! How tiles get to the cube is in `operand`, what it does with them and how results come back in `product`.
//!
//! A tile that a product reads lies in L1. Copies from global memory go there directly; a tile that vector code fills is
//! handed over (UB to L1, or through global memory where that way does not exist). A product goes through L0 in steps of
//! K into a fresh accumulator and from there to the vector cores, half of the rows to each, which add it to their tile.
//! Slots are used in turn: who fills one waits until its last reader has set its flag. Those flags are set for every slot
//! before the first block and taken back after the last, so no path can unbalance them. Both kinds of cores run the same
//! control flow.

use super::lower::{Lower, Res};
use super::operand::Operand;
use super::tree::{BufId, Core, Node, Place};
use crate::emit::cuda::expr::Text;
use crate::ir::{Base, BufferId, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ViewId, effects};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Bytes of a slot of L0A and L0B: half of each.
pub const L0_SLOT: usize = 32768;

/// What is known about products.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// There are some.
    pub on: bool,
    /// Tiles of which each vector core has half of the rows.
    pub split: HashSet<BufferId>,
    /// Tiles in L1.
    pub operands: BTreeMap<BufferId, Operand>,
    /// The index `sub`: 0 on the first vector core of a group, 1 on the second.
    pub sub: Option<IxId>,
    /// Where the cube leaves results.
    pub part: Option<BufId>,
    /// Tiles that products read.
    pub wish: Vec<BufferId>,
}

/// Row size of a tile: elements from one index of the first axis to the next.
pub fn row_of(k: &Kernel, b: BufferId) -> i64 {
    k.buffer(b).extents.iter().skip(1).product::<usize>() as i64
}

impl Matrix {
    /// Finds products and the tiles that follow the rows of their results.
    pub fn of(k: &Kernel, sub: IxId) -> Matrix {
        let mut m = Matrix { sub: Some(sub), ..Matrix::default() };
        let mut accs = vec![];
        effects::walk(k, k.body, &mut |_, op| {
            if let Op::Gemm { a, b, acc, .. } = op {
                accs.push(*acc);
                for v in [a, b] {
                    if let Base::Buffer(t) = k.view(*v).base
                        && !m.wish.contains(&t)
                    {
                        m.wish.push(t);
                    }
                }
            }
        });
        m.on = !accs.is_empty();
        m.split.extend(accs);
        loop {
            let before = m.split.len();
            effects::walk(k, k.body, &mut |id, op| {
                if let Some(v) = m.split_var(k, id) {
                    m.split.extend(walked(k, id, v).into_iter().map(|w| w.0));
                }
                if let Op::Reduce { src, dst, axis, .. } = op
                    && let Base::Buffer(b) = k.view(*src).base
                    && m.split.contains(&b)
                    && *axis > 0
                {
                    m.split.insert(*dst);
                }
            });
            if m.split.len() == before {
                return m;
            }
        }
    }

    /// The loop variable along which an element loop is shared between the vector cores.
    pub fn split_var(&self, k: &Kernel, id: OpId) -> Option<IxVarId> {
        let Op::Parallel { vars, extents, .. } = &k.op(id).op else { return None };
        vars.iter()
            .zip(extents)
            .find_map(|(&v, _)| walked(k, id, v).into_iter().any(|(b, _)| self.split.contains(&b)).then_some(v))
    }
}

/// Tiles whose first axis a loop variable walks, with whether they are written.
fn walked(k: &Kernel, id: OpId, v: IxVarId) -> Vec<(BufferId, bool)> {
    let Op::Parallel { vars, extents, body, .. } = &k.op(id).op else { return vec![] };
    let Some(extent) = vars.iter().position(|&x| x == v).map(|i| extents[i]) else { return vec![] };
    let mut out = vec![];
    effects::walk(k, *body, &mut |_, op| {
        let (view, index, store) = if let Op::Load { view, index, .. } = op {
            (*view, index, false)
        } else if let Op::Store { view, index, .. } = op {
            (*view, index, true)
        } else {
            return;
        };
        let x = k.view(view);
        let Base::Buffer(b) = x.base else { return };
        let row = row_of(k, b);
        let first = index
            .iter()
            .zip(&x.strides)
            .any(|(&i, &s)| matches!(k.ix_expr(i), IxExpr::Var(w) if w == v) && k.ix_const(s) == Some(row));
        if first && k.buffer(b).extents.first() == Some(&extent) {
            out.push((b, store));
        }
    });
    out
}

impl Lower<'_> {
    /// Buffers whose order rings keep.
    pub fn ringed(&self) -> BTreeSet<BufId> {
        let mut all: BTreeSet<BufId> = self.matrix.operands.values().map(|o| o.l1).collect();
        if self.caps.direct_exchange {
            all.extend(self.matrix.part);
        }
        all
    }

    /// Rows of a tile that one vector core has.
    pub fn half_of(&self, b: BufferId) -> Option<usize> {
        self.matrix.split.contains(&b).then(|| self.k.buffer(b).extents.first().copied().unwrap_or(1) / 2)
    }

    /// Statements before and after the loop over blocks: every slot starts free and ends free.
    pub fn frame(&self) -> (Vec<Node>, Vec<Node>) {
        let (mut first, mut last) = (vec![], vec![]);
        if !self.matrix.on {
            return (first, last);
        }
        let each = |list: &mut Vec<Node>, core: Core, line: String| {
            list.push(Node::Loop {
                head: "for (uint16_t s = 0; s < 2; ++s)".into(),
                body: vec![Node::Say(core, line)],
            });
        };
        first.push(Node::Say(Core::Vector, "const int64_t sub = GetSubBlockIdx();".into()));
        first.push(Node::Say(Core::Cube, "uint32_t l0It = 0;".into()));
        first.push(Node::Say(Core::Both, "uint32_t partIt = 0;".into()));
        let direct = self.caps.direct_exchange;
        for o in self.matrix.operands.values() {
            let both = if o.handed { Core::Both } else { Core::Cube };
            first.push(Node::Say(both, format!("uint32_t {}It = 0;", o.slot)));
            let id = o.id;
            if o.handed {
                let pipe = if direct { "MTE1" } else { "MTE2" };
                each(&mut first, Core::Cube, format!("CrossCoreSetFlag<2, PIPE_{pipe}>({} + s);", id + 2));
                each(&mut last, Core::Vector, format!("CrossCoreWaitFlag<2, PIPE_MTE3>({} + s);", id + 2));
            } else {
                each(&mut first, Core::Cube, format!("SetFlag<HardEvent::MTE1_MTE2>({id} + s);"));
                each(&mut last, Core::Cube, format!("WaitFlag<HardEvent::MTE1_MTE2>({id} + s);"));
            }
        }
        each(&mut first, Core::Cube, "SetFlag<HardEvent::M_MTE1>(s);\nSetFlag<HardEvent::FIX_M>(s);".into());
        each(&mut last, Core::Cube, "WaitFlag<HardEvent::M_MTE1>(s);\nWaitFlag<HardEvent::FIX_M>(s);".into());
        let pipe = if direct { "V" } else { "MTE2" };
        each(&mut first, Core::Vector, format!("CrossCoreSetFlag<2, PIPE_{pipe}>(PART_FREE + s);"));
        each(&mut last, Core::Cube, "CrossCoreWaitFlag<2, PIPE_FIX>(PART_FREE + s);".into());
        if !direct && let Some(p) = self.matrix.part {
            let ws = super::address_name(&self.bufs[p.0]);
            first.push(Node::Say(
                Core::Both,
                format!(
                    "GlobalTensor<float> gPart;\ngPart.SetGlobalBuffer((__gm__ float*)(workspace + (BLOCK_FIRST) * WS_BLOCK + {ws}));"
                ),
            ));
        }
        (first, last)
    }

    /// `gemm`.
    pub fn gemm(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        let Op::Gemm { a, b, acc, set, scales } = &k.op(id).op else { return Ok(()) };
        let (set, acc, scales) = (*set, *acc, *scales);
        let bad = |l: &Self, what: &str| l.refuse(id, what.to_string(), "keep operands as rows of tiles");
        let side = |l: &Self, v: ViewId| -> Res<(BufferId, bool, usize, usize)> {
            let x = l.k.view(v);
            let Base::Buffer(t) = x.base else { return Err(bad(l, "an operand that is no tile")) };
            let cols = row_of(l.k, t);
            let s: Vec<Option<i64>> = x.strides.iter().map(|&s| l.k.ix_const(s)).collect();
            let offset = l.k.ix_const(x.offset).unwrap_or(-1);
            let turned = if s == [Some(cols), Some(1)] {
                false
            } else if s == [Some(1), Some(cols)] {
                true
            } else {
                return Err(bad(l, "an operand with rows of another length than its tile's"));
            };
            if offset < 0 || !l.is_operand(t) {
                return Err(bad(l, "an operand at a place known only at run time"));
            }
            Ok((t, turned, (offset / cols) as usize, (offset % cols) as usize))
        };
        let (ta, turned_a, ra, ca) = side(self, *a)?;
        let (tb, turned_b, rb, cb) = side(self, *b)?;
        if turned_a {
            return Err(bad(self, "a left operand stored by columns"));
        }
        let ea = k.const_extents(*a).unwrap_or_default();
        let eb = k.const_extents(*b).unwrap_or_default();
        let (m, kk, n) = (ea[0], ea[1], eb[1]);
        let (Some(oa), Some(ob)) = (self.matrix.operands.get(&ta).cloned(), self.matrix.operands.get(&tb).cloned())
        else {
            return Err(bad(self, "an operand that nothing has filled"));
        };
        let size = oa.dtype.bytes(1);
        let c0 = 32 / size;
        if !oa.open || !ob.open {
            return Err(bad(self, "an operand that is filled somewhere else"));
        }
        if m % 2 != 0 || m < 2 || ra != 0 || k.buffer(acc).extents != [m, n] {
            return Err(self.refuse(
                id,
                format!("a product of {m} rows is not shared between two vector cores"),
                "use an even number of rows",
            ));
        }
        if oa.dtype != ob.dtype || !turned_b && size != 2 {
            return Err(bad(self, "operands in this order or of these types"));
        }
        if ca % c0 != 0 || cb % c0 != 0 || rb % 16 != 0 {
            return Err(self.refuse(
                id,
                format!("a product of [{m}, {kk}] by [{kk}, {n}] fits no whole fractals"),
                "use multiples of 16 columns and of 32 bytes of K",
            ));
        }
        // Columns of a step, K of a step.
        let (m16, mut nq, mut kq) = (m.next_multiple_of(16), n.next_multiple_of(16), kk);
        while n % 16 == 0 && nq % 32 == 0 && (m16 * nq * 4 > self.caps.l0c_bytes / 2 || m16 / 2 * nq * 4 > 32768) {
            nq /= 2;
        }
        let step = if turned_b { c0 } else { 16 };
        while kq % (2 * step) == 0 && (m16 * kq * size > L0_SLOT || nq * kq * size > L0_SLOT) {
            kq /= 2;
        }
        let k_whole = kq.next_multiple_of(step);
        if m16 * nq * 4 > self.caps.l0c_bytes / 2 || m16 * k_whole * size > L0_SLOT || nq * k_whole * size > L0_SLOT {
            return Err(self.refuse(
                id,
                format!("a product of [{m}, {kk}] by [{kk}, {n}] does not fit L0"),
                "choose a smaller tile (--config)",
            ));
        }
        let span = k.op(id).span;
        let half = m / 2;
        let direct = self.caps.direct_exchange;
        let bytes = if direct { half * nq * 4 } else { m * nq * 4 };
        let part = match self.matrix.part {
            Some(p) => p,
            None => {
                let place = if direct { Place::Ub } else { Place::Workspace };
                let p = self.buffer("part", "float", 4, bytes / 4, place, span);
                self.bufs[p.0].slots = 2;
                self.bufs[p.0].whole = true;
                self.bufs[p.0].what = "results of the cube".into();
                self.matrix.part = Some(p);
                p
            }
        };
        if self.bufs[part.0].bytes < bytes {
            self.bufs[part.0].bytes = bytes;
            self.bufs[part.0].elements = bytes / 4;
        }
        self.at(id, &format!("product into {}", k.buffer(acc).name));
        // Valid K: what the fills of both sides say.
        let limit = |v: &Option<Text>, from: usize| {
            v.clone().map(|v| {
                let left = Text::sub(&v, &Text::number(from as i64));
                Text::call("Part", &[&left, &Text::number(kk as i64)])
            })
        };
        let kv =
            limit(&oa.valid_cols, ca).or(if turned_b { limit(&ob.valid_cols, cb) } else { limit(&ob.valid_rows, rb) });
        let depth = kv.map(|t| {
            let name = self.name("depth");
            self.push(Node::Say(Core::Both, format!("const int64_t {name} = {};", t.s)));
            Text::name(name)
        });
        let (row, col) = match scales {
            Some([r, c]) => {
                let r = self.scale(id, r, m, true)?;
                let c = self.scale(id, c, n, false)?;
                (Some(r), Some(c))
            }
            None => (None, None),
        };
        let tile = self.tile(acc);
        let steps = (n / nq).max(1);
        let column = self.name("column");
        let body = self.inner(|l| {
            l.cube_step(&oa, &ob, part, &depth, [m, nq, kk, kq], turned_b, (ca, rb, cb), &column, steps);
            l.take(id, part, tile, half, [n / steps, nq], steps, &column, set, row, col)
        })?;
        let body = if steps > 1 {
            vec![Node::Loop { head: format!("for (uint32_t {column} = 0; {column} < {n}; {column} += {nq})"), body }]
        } else {
            body
        };
        match depth {
            // Without K nothing is added, and both sides know.
            Some(d) if !set => self.push(Node::If { cond: format!("{} > 0", d.s), then: body, els: vec![] }),
            Some(_) | None => {
                for n in body {
                    self.push(n);
                }
            }
        }
        Ok(())
    }
}
