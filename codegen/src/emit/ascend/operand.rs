//! Operands of matrix products: tiles in L1, how copies or vector code fill them, and when their slots are free again.
//!
//! The products themselves are in `cube` and `product`.

use super::cube::row_of;
use super::form::{Form, Local};
use super::lower::{Lower, Res, type_of};
use super::tree::{BufId, Core, Node, Pipe, Place};
use super::vf;
use crate::emit::cuda::expr::{ADD, Text};
use crate::ir::{Base, BlockId, BufferId, DType, IxId, IxVarId, Op, OpId, ViewId, effects};

/// A tile in L1.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// What an element is.
    pub dtype: DType,
    /// Its memory.
    pub l1: BufId,
    /// First of two event ids, or of two full and two free flags between cores if vector code fills it.
    pub id: usize,
    /// Vector code fills it.
    pub handed: bool,
    /// A slot is being filled or read.
    pub open: bool,
    /// Block in which it was filled.
    pub home: Option<BlockId>,
    /// Name of the slot's number.
    pub slot: String,
    /// How many rows exist, if not all.
    pub valid_rows: Option<Text>,
    /// The same of columns.
    pub valid_cols: Option<Text>,
}

impl Lower<'_> {
    /// The operand of a tile, made when first asked for.
    pub fn operand(&mut self, id: OpId, b: BufferId, handed: bool) -> Res<Operand> {
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
    pub fn declare_slot(&mut self, o: &Operand, core: Core) {
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
    pub fn fill(
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
    pub fn writers(&self, t: BufferId) -> usize {
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
    pub fn read_by_vectors(&self, t: BufferId) -> bool {
        let mut found = false;
        effects::walk(self.k, self.k.body, &mut |_, op| {
            if !matches!(op, Op::Gemm { .. } | Op::Store { .. }) {
                found |= effects::uses(op).views.iter().any(|&v| self.k.view(v).base == Base::Buffer(t));
            }
        });
        found
    }

    /// True if a product in an op reads a tile.
    pub fn multiplies(&self, id: OpId, t: BufferId) -> bool {
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
    pub fn hand_over(&mut self, id: OpId, t: BufferId) -> Res<()> {
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
        if !o.rows.is_multiple_of(2) || !tile.pitch.is_multiple_of(c0) {
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
}
