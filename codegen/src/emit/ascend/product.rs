//! A matrix product's two sides: the cube's steps through L0 and out, and the vector cores' part, which scales and adds.
//!
//! How its operands get to L1 is in `operand`, its shape is judged in `cube`.

use super::cube::L0_SLOT;
use super::form::Local;
use super::lower::{Lower, Res, type_of};
use super::operand::Operand;
use super::stage::Ub;
use super::tree::{BufId, Core, Node, Pipe, Place};
use super::vf::{self, Sites, Vf};
use crate::emit::cuda::expr::Text;
use crate::ir::{DType, GemmScale, IxVarId, OpId};

impl Lower<'_> {
    /// The cube's part of a product: K in steps through L0, then out.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub fn cube_step(
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
    pub fn take(
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
    pub fn scale(&mut self, id: OpId, s: GemmScale, extent: usize, rows: bool) -> Res<BufId> {
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

    pub fn scale_loop(
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
