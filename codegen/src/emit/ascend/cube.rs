//! Matrix products: what the cube does, how tiles get to it and how results come back.
//!
//! A tile that a product reads lies in L1. Copies from global memory go there directly; a tile that vector code fills is
//! handed over (UB to L1, or through global memory where that way does not exist). A product goes through L0 in steps of
//! K into a fresh accumulator and from there to the vector cores, half of the rows to each, which add it to their tile.
//! Slots are used in turn: who fills one waits until its last reader has set its flag. Those flags are set for every slot
//! before the first block and taken back after the last, so no path can unbalance them. Both kinds of cores run the same
//! control flow.

use super::form::{Form, Local};
use super::lower::{Lower, Res, type_of};
use super::stage::Ub;
use super::tree::{BufId, Core, Node, Pipe, Place};
use super::vf::{self, Sites, Vf};
use crate::emit::cuda::expr::{ADD, Text};
use crate::ir::{Base, BlockId, BufferId, DType, GemmScale, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ViewId, effects};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Bytes of a slot of L0A and L0B: half of each.
const L0_SLOT: usize = 32768;

/// A tile in L1.
#[derive(Clone, Debug)]
struct Operand {
    rows: usize,
    cols: usize,
    dtype: DType,
    l1: BufId,
    /// First of two event ids, or of two full and two free flags between cores if vector code fills it.
    id: usize,
    handed: bool,
    /// A slot is being filled or read.
    open: bool,
    /// Block in which it was filled.
    home: Option<BlockId>,
    slot: String,
    valid_rows: Option<Text>,
    valid_cols: Option<Text>,
}

/// What is known about products.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// There are some.
    pub on: bool,
    /// Tiles of which each vector core has half of the rows.
    pub split: HashSet<BufferId>,
    operands: BTreeMap<BufferId, Operand>,
    /// The index `sub`: 0 on the first vector core of a group, 1 on the second.
    pub sub: Option<IxId>,
    part: Option<BufId>,
    wish: Vec<BufferId>,
}

/// Row size of a tile: elements from one index of the first axis to the next.
fn row_of(k: &Kernel, b: BufferId) -> i64 {
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

    /// The operand of a tile, made when first asked for.
    fn operand(&mut self, id: OpId, b: BufferId, handed: bool) -> Res<Operand> {
        if let Some(o) = self.matrix.operands.get(&b) {
            return Ok(o.clone());
        }
        let x = self.k.buffer(b).clone();
        let [rows, cols] = x.extents.as_slice() else {
            return Err(self.refuse(
                id,
                format!("operand `{}` has {} axes", x.name, x.extents.len()),
                "use tiles of rows",
            ));
        };
        let fp8 = matches!(x.dtype, DType::E4m3 | DType::E5m2);
        if !(matches!(x.dtype, DType::Bf16 | DType::F16) || fp8 && self.caps.fp8) {
            return Err(self.refuse(
                id,
                format!("the cube of arch {} does not multiply {}", self.caps.arch, x.dtype),
                "convert the operands to bf16 first, or choose another target",
            ));
        }
        let size = x.dtype.bytes(1);
        let c0 = 32 / size;
        let used: usize = self.matrix.operands.values().filter(|o| o.handed == handed).count();
        let id_base = if handed { 4 + 4 * used } else { 2 * used };
        if handed && id_base + 4 > self.caps.cross_flags || !handed && id_base + 2 > self.caps.events - 1 {
            return Err(self.refuse(id, "more operand tiles than flags", "use fewer tiles"));
        }
        let wish = format!("{}L1", x.name.trim_end_matches("_s"));
        let l1 = self.buffer(
            &wish,
            type_of(x.dtype),
            size,
            rows.next_multiple_of(16) * cols.next_multiple_of(c0),
            Place::L1,
            x.span,
        );
        self.bufs[l1.0].slots = 2;
        self.bufs[l1.0].whole = true;
        self.bufs[l1.0].what = format!("`{}`, {}[{rows}, {cols}]", x.name, x.dtype);
        let slot = self.name(&format!("{}Slot", self.tensor(l1)));
        self.names.insert(format!("{slot}It"));
        let o = Operand {
            rows: *rows,
            cols: *cols,
            dtype: x.dtype,
            l1,
            id: id_base,
            handed,
            open: false,
            home: None,
            slot,
            valid_rows: None,
            valid_cols: None,
        };
        self.matrix.operands.insert(b, o.clone());
        Ok(o)
    }

    /// True if a tile is an operand of a product.
    pub fn is_operand(&self, b: BufferId) -> bool {
        self.matrix.wish.contains(&b)
    }

    /// Declares the tensor of an operand's current slot.
    fn declare_slot(&mut self, o: &Operand, core: Core) {
        let b = &self.bufs[o.l1.0];
        let line = format!(
            "const uint32_t {0} = {0}It++ % 2;\nLocalTensor<{1}> {2}(TPosition::A1, {3} + {0} * {4}, {5});",
            o.slot,
            b.ty,
            b.name,
            super::address_name(b),
            b.bytes,
            b.elements
        );
        for l in line.lines() {
            self.push(Node::Say(core, l.to_string()));
        }
    }

    /// Takes an element loop that fills an operand from global memory: the cube's copy does it.
    pub fn matrix_loop(&mut self, id: OpId, vars: &[(IxVarId, usize)], body: BlockId) -> Res<bool> {
        if !self.matrix.on {
            return Ok(false);
        }
        let k = self.k;
        let ops = &k.block(body).ops;
        let [a, b] = ops.as_slice() else { return Ok(false) };
        let (Op::Load { result, view: from, index: fi }, Op::Store { value, view: to, index: ti, .. }) =
            (&k.op(*a).op, &k.op(*b).op)
        else {
            return Ok(false);
        };
        let (Base::Param(_), Base::Buffer(t)) = (k.view(*from).base, k.view(*to).base) else { return Ok(false) };
        if result != value
            || !self.is_operand(t)
            || self.writers(t) != 1
            || self.read_by_vectors(t)
            || self.matrix.operands.get(&t).is_some_and(|o| o.handed)
        {
            return Ok(false);
        }
        let local = Local::of(k, self.ranges, id);
        let before = self.save();
        let core = self.core;
        // Counts of what exists steer the vector cores too; where they do not, they are left out.
        self.core = Core::Both;
        let done = self.fill(id, *a, (*from, fi), (*to, ti), t, vars, &local);
        self.core = core;
        if !matches!(done, Ok(true)) {
            self.restore(before);
        }
        done
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn fill(
        &mut self,
        id: OpId,
        load: OpId,
        (from, fi): (ViewId, &[IxId]),
        (to, ti): (ViewId, &[IxId]),
        t: BufferId,
        vars: &[(IxVarId, usize)],
        local: &Local,
    ) -> Res<bool> {
        let Ok(slab) = self.slab(load, from, fi, vars, local) else { return Ok(false) };
        let address: Option<Form> = {
            let v = self.k.view(to);
            self.forms(local).address(v, ti)
        };
        let Some(address) = address else { return Ok(false) };
        let cols = row_of(self.k, t);
        let Some([row, col]) = slab.matrix(&address, cols) else { return Ok(false) };
        if !address.uniform.is_empty() {
            return Ok(false);
        }
        let o = self.operand(id, t, false)?;
        self.at(id, &format!("{} to L1", self.k.buffer(t).name.clone()));
        self.declare_slot(&o, Core::Cube);
        let rows16 = o.rows.next_multiple_of(16);
        let name = self.tensor(o.l1);
        let (start, stride, cond) = slab.source(self, row);
        let (vr, vc) = (slab.valid(row), slab.valid(col));
        let count = |v: &Option<Text>, n: usize| v.clone().unwrap_or(Text::number(n as i64));
        let mut conds: Vec<String> = cond.iter().map(|c| c.s.clone()).collect();
        conds.extend([&vr, &vc].into_iter().flatten().map(|v| format!("{} > 0", v.s)));
        let wide = self.caps.register_vectors;
        let global = self.global_as(slab.param(), o.dtype, type_of(o.dtype));
        let (u, v) = if wide { ("uint32_t", "uint64_t") } else { ("uint16_t", "uint16_t") };
        let cast = |ty: &str, t: &Text| {
            if t.s.parse::<i64>().is_ok() { t.s.clone() } else { format!("static_cast<{ty}>({})", t.s) }
        };
        let params = |n: &str| {
            vec![
                "Nd2NzParams nz;".to_string(),
                "nz.ndNum = 1;".into(),
                format!("nz.nValue = {n};"),
                format!("nz.dValue = {};", cast(u, &count(&vc, o.cols))),
                "nz.srcNdMatrixStride = 0;".into(),
                format!("nz.srcDValue = {};", cast(v, &stride)),
                format!("nz.dstNzC0Stride = {rows16};"),
                "nz.dstNzNStride = 1;".into(),
                "nz.dstNzMatrixStride = 0;".into(),
            ]
        };
        let rows = count(&vr, o.rows);
        let mut lines = vec![format!("WaitFlag<HardEvent::MTE1_MTE2>({} + {});", o.id, o.slot)];
        if conds.is_empty() {
            lines.push("{".into());
        } else {
            lines.push(format!("if ({}) {{", conds.join(" && ")));
        }
        let far = !wide && stride.s.parse::<i64>().map_or(true, |s| s > 65535);
        if far {
            // The distance of rows has 16 bits: longer ones are copied one by one.
            lines.extend(params("1"));
            lines.push(format!("if ({} <= 65535) {{", stride.s));
            lines.push(format!("nz.nValue = {};", cast("uint16_t", &rows)));
            lines.push(format!("DataCopy({name}, {global}[{}], nz);", start.s));
            lines.push("} else {".into());
            lines.push("nz.srcDValue = 1;".into());
            lines.push(format!("for (int64_t r = 0; r < {}; ++r) {{", rows.at(ADD)));
            lines.push(format!(
                "DataCopy({name}[r * {}], {global}[{} + r * ({})], nz);",
                32 / o.dtype.bytes(1),
                start.at(ADD),
                stride.s
            ));
            lines.push("}".into());
            lines.push("}".into());
        } else {
            lines.extend(params(&cast("uint16_t", &rows)));
            lines.push(format!("DataCopy({name}, {global}[{}], nz);", start.s));
        }
        lines.push("}".into());
        lines.push(format!("SetFlag<HardEvent::MTE2_MTE1>({} + {});", o.id, o.slot));
        lines.push(format!("WaitFlag<HardEvent::MTE2_MTE1>({} + {});", o.id, o.slot));
        let lines = vf::indent(&lines, 0);
        self.inst(Core::Cube, Pipe::Mte2, lines, &[], &[o.l1]);
        if let Some(x) = self.matrix.operands.get_mut(&t) {
            x.open = true;
            x.valid_rows = vr;
            x.valid_cols = vc;
        }
        Ok(true)
    }

    /// Stores to a tile in the kernel.
    fn writers(&self, t: BufferId) -> usize {
        let mut n = 0;
        effects::walk(self.k, self.k.body, &mut |_, op| {
            if let Op::Store { view, .. } = op
                && self.k.view(*view).base == Base::Buffer(t)
            {
                n += 1;
            }
        });
        n
    }

    /// True if something other than a product reads a tile.
    fn read_by_vectors(&self, t: BufferId) -> bool {
        let mut found = false;
        effects::walk(self.k, self.k.body, &mut |_, op| {
            if !matches!(op, Op::Gemm { .. } | Op::Store { .. }) {
                found |= effects::uses(op).views.iter().any(|&v| self.k.view(v).base == Base::Buffer(t));
            }
        });
        found
    }

    /// True if a product in an op reads a tile.
    fn multiplies(&self, id: OpId, t: BufferId) -> bool {
        let k = self.k;
        let reads = |op: &Op| matches!(op, Op::Gemm { a, b, .. } if [*a, *b].iter().any(|&v| k.view(v).base == Base::Buffer(t)));
        let mut found = reads(&k.op(id).op);
        for b in effects::bodies(&k.op(id).op) {
            effects::walk(k, b, &mut |_, op| found |= reads(op));
        }
        found
    }

    /// After an op of a block: hands over the tiles that vector code has filled and a product of the block reads next.
    pub fn hand_overs(&mut self, block: BlockId, n: usize) -> Res<()> {
        if !self.matrix.on {
            return Ok(());
        }
        let ops = &self.k.block(block).ops;
        let id = ops[n];
        for (t, written) in self.tiles_touched(id) {
            let cube = self.matrix.operands.get(&t).is_some_and(|o| !o.handed);
            if !written || !self.is_operand(t) || cube || self.multiplies(id, t) {
                continue;
            }
            let writes = |id: OpId| self.tiles_touched(id).contains(&(t, true)) && !self.multiplies(id, t);
            let next = ops[n + 1..].iter().find(|&&o| self.tiles_touched(o).iter().any(|x| x.0 == t));
            let read = ops[n + 1..].iter().any(|&o| self.multiplies(o, t));
            if read && next.is_some_and(|&o| !writes(o)) {
                self.hand_over(id, t)?;
            }
        }
        Ok(())
    }

    /// After vector code has filled an operand: hands it over to the cube.
    fn hand_over(&mut self, id: OpId, t: BufferId) -> Res<()> {
        let o = self.operand(id, t, true)?;
        if !self.caps.direct_exchange {
            return Err(self.refuse(
                id,
                format!(
                    "`{}` is made by vector code, which arch 2201 cannot hand to the cube yet",
                    self.k.buffer(t).name
                ),
                "fill the tile by a plain copy, or choose ascend950",
            ));
        }
        if o.open {
            return Err(self.refuse(id, "an operand tile is filled in two parts", "fill it by one loop"));
        }
        let core = self.core;
        self.declare_slot(&o, Core::Both);
        let tile = self.tile(t);
        let split = self.half_of(t);
        let rows = split.unwrap_or(o.rows / 2);
        let c0 = 32 / o.dtype.bytes(1);
        if o.rows % 2 != 0 || tile.pitch % c0 != 0 {
            return Err(self.refuse(
                id,
                format!("a tile of {} rows of {} columns cannot be handed to the cube", o.rows, o.cols),
                "use an even number of rows and whole lines of 32 bytes",
            ));
        }
        let mut from = tile.buf;
        if tile.wide {
            let n = self.real_elements(tile.buf);
            let name = format!("{}Packed", self.tensor(tile.buf));
            let span = self.k.buffer(t).span;
            from = self.buffer(&name, type_of(o.dtype), o.dtype.bytes(1), n, Place::Ub, span);
            self.narrow(tile.buf, from, o.dtype);
        }
        let (ub, l1) = (self.tensor(from), self.tensor(o.l1));
        let rows16 = o.rows.next_multiple_of(16);
        let gap = tile.pitch / c0 - 1;
        let own = if split.is_some() { "0".to_string() } else { format!("sub * {}", rows * tile.pitch) };
        let lines = vec![
            format!("for (uint32_t c = 0; c < {}; ++c) {{", o.cols.div_ceil(c0)),
            format!(
                "    DataCopy({l1}[c * {} + sub * {}], {ub}[{own} + c * {c0}], DataCopyParams{{{rows}, 1, {gap}, 0}});",
                rows16 * c0,
                rows * c0
            ),
            "}".into(),
        ];
        self.push(Node::Say(Core::Vector, format!("CrossCoreWaitFlag<2, PIPE_MTE3>({} + {});", o.id + 2, o.slot)));
        self.inst(Core::Vector, Pipe::Mte3, lines, &[from], &[o.l1]);
        self.push(Node::Say(Core::Vector, format!("CrossCoreSetFlag<2, PIPE_MTE3>({} + {});", o.id, o.slot)));
        self.push(Node::Say(Core::Cube, format!("CrossCoreWaitFlag<2, PIPE_MTE1>({} + {});", o.id, o.slot)));
        self.core = core;
        if let Some(x) = self.matrix.operands.get_mut(&t) {
            x.open = true;
        }
        Ok(())
    }

    /// After the last op of a block that reads an operand filled in it: its slot is free.
    pub fn release(&mut self, block: BlockId, done: OpId) {
        if !self.matrix.on {
            return;
        }
        let ops = &self.k.block(block).ops;
        let open: Vec<BufferId> = self.matrix.operands.iter().filter(|(_, o)| o.open).map(|(&b, _)| b).collect();
        for b in open {
            let touches = |id: &OpId| self.tiles_touched(*id).iter().any(|(x, _)| *x == b);
            let last = ops.iter().rfind(|id| touches(id)).copied();
            let Some(o) = self.matrix.operands.get_mut(&b) else { continue };
            // Blocks inside come first.
            if *o.home.get_or_insert(block) != block || last != Some(done) {
                continue;
            }
            if let Some(o) = self.matrix.operands.get_mut(&b) {
                (o.open, o.home) = (false, None);
                let o = o.clone();
                let line = if o.handed {
                    format!("CrossCoreSetFlag<2, PIPE_MTE1>({} + {});", o.id + 2, o.slot)
                } else {
                    format!("SetFlag<HardEvent::MTE1_MTE2>({} + {});", o.id, o.slot)
                };
                self.push(Node::Say(Core::Cube, line));
            }
        }
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

    /// The cube's part of a product: K in steps through L0, then out.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn cube_step(
        &mut self,
        oa: &Operand,
        ob: &Operand,
        part: BufId,
        depth: &Option<Text>,
        [m, nq, kk, kq]: [usize; 4],
        turned_b: bool,
        (ca, rb, cb): (usize, usize, usize),
        column: &str,
        steps: usize,
    ) {
        let ty = type_of(oa.dtype);
        let size = oa.dtype.bytes(1);
        let m16 = m.next_multiple_of(16);
        let c0 = 32 / size;
        let (a, b) = (self.tensor(oa.l1), self.tensor(ob.l1));
        let (ra16, rb16) = (oa.rows.next_multiple_of(16), ob.rows.next_multiple_of(16));
        let at = |base: usize| match (steps > 1, base) {
            (true, 0) => column.to_string(),
            (true, _) => format!("({base} + {column})"),
            (false, _) => base.to_string(),
        };
        let end = depth.as_ref().map_or(kk.to_string(), |d| format!("static_cast<uint32_t>({})", d.s));
        let mut l = vec![
            "const uint32_t cSlot = partIt % 2;".to_string(),
            format!(
                "LocalTensor<float> cL0(TPosition::CO1, cSlot * {}, {});",
                self.caps.l0c_bytes / 2,
                self.caps.l0c_bytes / 8
            ),
            "WaitFlag<HardEvent::FIX_M>(cSlot);".into(),
            format!("for (uint32_t k0 = 0; k0 < {end}; k0 += {kq}) {{"),
        ];
        let len = if kq == kk && depth.is_none() {
            kk.to_string()
        } else if depth.is_none() {
            kq.to_string()
        } else {
            l.push(format!("const uint32_t kLen = {end} - k0 < {kq} ? {end} - k0 : {kq};"));
            "kLen".into()
        };
        l.extend([
            "const uint32_t pp = l0It++ % 2;".to_string(),
            format!("LocalTensor<{ty}> aL0(TPosition::A2, pp * {L0_SLOT}, {});", L0_SLOT / size),
            format!("LocalTensor<{ty}> bL0(TPosition::B2, pp * {L0_SLOT}, {});", L0_SLOT / size),
            "WaitFlag<HardEvent::M_MTE1>(pp);".into(),
        ]);
        let kfr = format!("({len} + {}) / {c0}", c0 - 1);
        if self.caps.register_vectors {
            l.extend([
                "LoadData2DParamsV2 ld;".to_string(),
                "ld.mStartPosition = 0;".into(),
                format!("ld.kStartPosition = ({ca} + k0) / {c0};"),
                format!("ld.mStep = {};", m16 / 16),
                format!("ld.kStep = static_cast<uint16_t>({kfr});"),
                format!("ld.srcStride = {};", ra16 / 16),
                format!("ld.dstStride = {};", m16 / 16),
                "ld.ifTranspose = false;".into(),
                format!("LoadData(aL0, {a}, ld);"),
            ]);
            if turned_b {
                l.extend([
                    format!("ld.mStartPosition = {} / 16;", at(rb)),
                    format!("ld.kStartPosition = ({cb} + k0) / {c0};"),
                    format!("ld.mStep = {};", nq / 16),
                ]);
            } else {
                // Rows of the tile are K: fractals are turned on the way.
                l.extend([
                    format!("ld.mStartPosition = ({rb} + k0) / 16;"),
                    format!("ld.kStartPosition = {} / {c0};", at(cb)),
                    format!("ld.mStep = static_cast<uint16_t>(({len} + 15) / 16);"),
                    format!("ld.kStep = {};", nq / c0),
                    "ld.ifTranspose = true;".into(),
                ]);
            }
            l.extend([
                format!("ld.srcStride = {};", rb16 / 16),
                format!("ld.dstStride = {};", nq / 16),
                format!("LoadData(bL0, {b}, ld);"),
            ]);
        } else {
            l.extend([
                format!("const uint32_t kFr = {kfr};"),
                "LoadData2DParams ld;".into(),
                format!("ld.srcStride = {};", ra16 / 16),
                "ld.repeatTimes = static_cast<uint8_t>(kFr);".into(),
                "ld.dstGap = 0;".into(),
                "ld.ifTranspose = false;".into(),
                format!("for (uint32_t i = 0; i < {}; ++i) {{", m16 / 16),
                format!("ld.startIndex = static_cast<uint16_t>(i + ({ca} + k0) / {c0} * {});", ra16 / 16),
                format!("LoadData(aL0[i * kFr * {}], {a}, ld);", 512 / size),
                "}".into(),
                format!("ld.repeatTimes = {};", nq / 16),
            ]);
            if turned_b {
                l.push("ld.srcStride = 1;".into());
            } else {
                l.push(format!("ld.srcStride = {};", rb16 / 16));
                l.push("ld.ifTranspose = true;".into());
            }
            l.push("for (uint32_t j = 0; j < kFr; ++j) {".into());
            if turned_b {
                l.push(format!(
                    "ld.startIndex = static_cast<uint16_t>((({cb} + k0) / {c0} + j) * {} + {} / 16);",
                    rb16 / 16,
                    at(rb)
                ));
            } else {
                l.push(format!(
                    "ld.startIndex = static_cast<uint16_t>({} / {c0} * {} + ({rb} + k0) / 16 + j);",
                    at(cb),
                    rb16 / 16
                ));
            }
            l.push(format!("LoadData(bL0[j * {}], {b}, ld);", nq * c0));
            l.push("}".into());
        }
        l.extend([
            "SetFlag<HardEvent::MTE1_M>(pp);".to_string(),
            "WaitFlag<HardEvent::MTE1_M>(pp);".into(),
            "MmadParams mm;".into(),
            format!("mm.m = {m};"),
            format!("mm.n = {nq};"),
            format!("mm.k = static_cast<uint16_t>({len});"),
            "mm.cmatrixInitVal = k0 == 0;".into(),
        ]);
        if m16 / 16 * (nq / 16) < 10 && kq < kk {
            l.push("PipeBarrier<PIPE_M>();".into());
        }
        l.extend([
            "Mmad(cL0, aL0, bL0, mm);".to_string(),
            "SetFlag<HardEvent::M_MTE1>(pp);".into(),
            "}".into(),
            "SetFlag<HardEvent::M_FIX>(cSlot);".into(),
            "WaitFlag<HardEvent::M_FIX>(cSlot);".into(),
            "CrossCoreWaitFlag<2, PIPE_FIX>(PART_FREE + cSlot);".into(),
        ]);
        let bytes = "PART_BYTES";
        let name = self.tensor(part);
        if self.caps.direct_exchange {
            let ub = super::address_name(&self.bufs[part.0]);
            l.extend([
                format!("LocalTensor<float> {name}(TPosition::VECIN, {ub} + cSlot * {bytes}, {bytes} / 4);"),
                "FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> fx;".into(),
                format!("fx.nSize = {nq};"),
                format!("fx.mSize = {m};"),
                format!("fx.srcStride = {m16};"),
                format!("fx.dstStride = {nq};"),
                "fx.dualDstCtl = 1;".into(),
                "fx.params.ndNum = 1;".into(),
                "fx.params.srcNdStride = 0;".into(),
                "fx.params.dstNdStride = 0;".into(),
                format!("Fixpipe<float, float, TO_UB_ROWS>({name}, cL0, fx);"),
            ]);
        } else {
            l.extend([
                "FixpipeParamsV220 fx;".to_string(),
                format!("fx.nSize = {nq};"),
                format!("fx.mSize = {m};"),
                format!("fx.srcStride = {m16};"),
                format!("fx.dstStride = {nq};"),
                "fx.ndNum = 1;".into(),
                "fx.srcNdStride = 0;".into(),
                "fx.dstNdStride = 0;".into(),
                format!("Fixpipe<float, float, CFG_ROW_MAJOR>(gPart[cSlot * ({bytes} / 4)], cL0, fx);"),
            ]);
        }
        l.extend([
            "SetFlag<HardEvent::FIX_M>(cSlot);".to_string(),
            "CrossCoreSetFlag<2, PIPE_FIX>(PART_FULL + cSlot);".into(),
            "++partIt;".into(),
            "}".into(),
        ]);
        l.insert(0, "{".into());
        let lines = vf::indent(&l, 0);
        self.inst(Core::Cube, Pipe::M, lines, &[oa.l1, ob.l1], &[]);
    }

    /// A vector core's part of a product: its rows into its tile.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn take(
        &mut self,
        id: OpId,
        part: BufId,
        tile: super::lower::Tile,
        half: usize,
        [n, nq]: [usize; 2],
        steps: usize,
        column: &str,
        set: bool,
        row: Option<BufId>,
        col: Option<BufId>,
    ) -> Res<()> {
        let span = self.k.op(id).span;
        let acc = self.tensor(tile.buf);
        let to = if steps > 1 { format!("{acc}[{column}]") } else { acc.clone() };
        self.push(Node::Say(Core::Vector, "const uint32_t slot = partIt++ % 2;".into()));
        // Names of one product must not meet those of the next in the same block.
        let slot = self.name("slot");
        if let Some(Node::Say(_, line)) = self.nodes.last_mut().and_then(|l| l.last_mut()) {
            *line = format!("const uint32_t {slot} = partIt++ % 2;");
        }
        if self.caps.direct_exchange {
            let name = self.name("half");
            let ub = super::address_name(&self.bufs[part.0]);
            self.push(Node::Say(
                Core::Vector,
                format!("LocalTensor<float> {name}(TPosition::VECIN, {ub} + {slot} * PART_BYTES, PART_BYTES / 4);"),
            ));
            self.push(Node::Say(Core::Vector, format!("CrossCoreWaitFlag<2, PIPE_V>(PART_FULL + {slot});")));
            let mut reads = vec![part];
            let p = |t: &str| format!("(__ubuf__ float*){t}.GetPhyAddr()");
            let sizes = format!("static_cast<uint16_t>({half}), {n}u, {}u, {nq}u", tile.pitch);
            let call = match (row, col) {
                (Some(r), Some(c)) => {
                    reads.extend([r, c]);
                    vf::take_function(self, true);
                    let c = self.tensor(c);
                    let c = if steps > 1 { format!("{c}[{column}]") } else { c };
                    format!(
                        "asc_vf_call<TakeScaled<{set}>>(\n    {}, {}, {}, {},\n    {sizes});",
                        p(&to),
                        p(&name),
                        p(&self.tensor(r)),
                        p(&c)
                    )
                }
                (_, _) => {
                    vf::take_function(self, false);
                    format!("asc_vf_call<Take<{set}>>({}, {}, {sizes});", p(&to), p(&name))
                }
            };
            if !set {
                reads.push(tile.buf);
            }
            self.inst(Core::Vector, Pipe::V, vec![call], &reads, &[tile.buf]);
            self.push(Node::Say(Core::Vector, format!("CrossCoreSetFlag<2, PIPE_V>(PART_FREE + {slot});")));
            return Ok(());
        }
        if row.is_some() || col.is_some() {
            return Err(self.refuse(id, "scales of products have no form on memory vectors yet", "choose ascend950"));
        }
        let ub = self.buffer("half", "float", 4, half * nq, Place::Ub, span);
        let name = self.tensor(ub);
        self.push(Node::Say(Core::Vector, format!("CrossCoreWaitFlag<2, PIPE_MTE2>(PART_FULL + {slot});")));
        let line = format!(
            "DataCopyPad({name}, gPart[{slot} * (PART_BYTES / 4) + sub * {}], DataCopyExtParams{{1, {}, 0, 0, 0}}, DataCopyPadExtParams<float>{{false, 0, 0, float()}});",
            half * nq,
            half * nq * 4
        );
        self.inst(Core::Vector, Pipe::Mte2, vec![line], &[], &[ub]);
        self.push(Node::Say(Core::Vector, format!("CrossCoreSetFlag<2, PIPE_MTE2>(PART_FREE + {slot});")));
        let mut reads = vec![ub];
        if !set {
            reads.push(tile.buf);
        }
        let line = if steps == 1 && tile.pitch == nq && n == nq {
            let n = half * nq;
            if set { format!("Adds({acc}, {name}, 0.0f, {n});") } else { format!("Add({acc}, {acc}, {name}, {n});") }
        } else {
            let x =
                format!("{acc}[r * {}{}]", tile.pitch, if steps > 1 { format!(" + {column}") } else { String::new() });
            let y = format!("{name}[r * {nq}]");
            let op = if set { format!("Adds({x}, {y}, 0.0f, {n});") } else { format!("Add({x}, {x}, {y}, {n});") };
            format!("for (uint32_t r = 0; r < {half}; ++r) {{\n    {op}\n}}")
        };
        self.inst(Core::Vector, Pipe::V, vec![line], &reads, &[tile.buf]);
        Ok(())
    }

    /// The factors of a product's rows or columns, in a buffer.
    fn scale(&mut self, id: OpId, s: GemmScale, extent: usize, rows: bool) -> Res<BufId> {
        let k = self.k;
        let local = Local::of(k, self.ranges, id);
        let span = k.op(id).span;
        let n = if rows { extent / 2 } else { extent };
        if !self.caps.register_vectors {
            return Err(self.refuse(id, "scales of products have no form on memory vectors yet", "choose ascend950"));
        }
        let vars = [(s.var, n)];
        let core = self.core;
        self.core = Core::Vector;
        self.split_now = if rows { self.matrix.sub.map(|sub| (s.var, n as i64, sub)) } else { None };
        let b = self.buffer(
            if rows { "rowScale" } else { "colScale" },
            "float",
            4,
            n.next_multiple_of(64),
            Place::Ub,
            span,
        );
        let ub = Ub {
            buf: b,
            dtype: DType::F32,
            width: 4,
            base: Text::number(0),
            multiple: 0,
            elem: vec![(s.var, 1)],
            opaque: vec![],
            guards: vec![],
        };
        let r = self.scale_loop(id, s, &vars, &local, &ub, rows);
        self.split_now = None;
        self.core = core;
        r.map(|()| b)
    }

    fn scale_loop(
        &mut self,
        id: OpId,
        s: GemmScale,
        vars: &[(IxVarId, usize)],
        local: &Local,
        ub: &Ub,
        rows: bool,
    ) -> Res<()> {
        let sites: Sites = self.sites_of(s.body, vars, local)?;
        let mut f = Vf::new(self, local, vars, 1, &sites);
        f.body(s.body)?;
        let x = f.result_of(s.value);
        f.put(id, ub, x, DType::F32)?;
        let (call, reads, writes) = f.finish(if rows { "RowScale" } else { "ColScale" });
        self.inst(Core::Vector, Pipe::V, vec![call], &reads, &writes);
        Ok(())
    }
}

/// Constants of the ring between cube and vector cores.
pub fn ring_constants(bytes: usize) -> String {
    format!(
        "// ---- flags between cores (mode 2) ----\nconstexpr uint16_t PART_FULL = 0;  // + slot, cube to both vector cores\n\
         constexpr uint16_t PART_FREE = 2;  // + slot, both vector cores to the cube\nconstexpr uint32_t PART_BYTES = {bytes};\n\n"
    )
}

/// Bytes of a slot of that ring.
pub fn ring_bytes(l: &Lower<'_>, bufs: &[super::tree::Buf]) -> Option<usize> {
    l.matrix.part.map(|p| bufs[p.0].bytes)
}
