//! From the IR to instructions: control and scalars, which every core of a block runs, and what tile ops share.
//!
//! Tiles lie in UB, rows padded to the alignment. How element loops become vector code is in `vf` (registers) and `mem`
//! (memory), how they reach global memory in `stage`, matrix products in `cube`.

use super::form::{Coef, Form, Forms, Local};
use super::scalar;
use super::tree::{Buf, BufId, Core, Inst, Node, Pipe, Place};
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::emit::cuda::expr::{ADD, MUL, Text, UNARY};
use crate::ir::{
    Base, BlockId, BufferId, DType, IfResult, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ParamId, ParamKind, Space,
    SpanId, ValueId, ViewId, effects,
};
use crate::target::NpuCaps;
use crate::valid::Facts;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A finding that ends the lowering.
pub type Refused = Box<Diagnostic>;
/// Result of a step.
pub type Res<T> = Result<T, Refused>;

/// Where a tile of the IR lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its buffer.
    pub buf: BufId,
    /// Elements of a row.
    pub row: usize,
    /// Distance of rows in elements.
    pub pitch: usize,
    /// 8- and 16-bit elements are kept in 32 bits, because vector code gathers them.
    pub wide: bool,
}

/// State of the lowering.
pub struct Lower<'a> {
    /// Kernel with copies and fills as element loops.
    pub k: &'a Kernel,
    /// Its index facts.
    pub ranges: &'a Ranges,
    /// Its access facts.
    pub facts: &'a Facts,
    /// Chip.
    pub caps: NpuCaps,
    /// Element variables of reductions.
    pub axes: &'a HashMap<OpId, Vec<IxVarId>>,
    /// Identifiers taken.
    pub names: HashSet<String>,
    /// Buffers.
    pub bufs: Vec<Buf>,
    /// Open statement lists, innermost last.
    pub nodes: Vec<Vec<Node>>,
    /// Instructions made.
    pub insts: usize,
    /// Tiles.
    pub tiles: HashMap<BufferId, Tile>,
    /// Tiles that have to be wide.
    pub wide: HashSet<BufferId>,
    /// Accesses whose stages have to be wide.
    pub wide_stages: HashSet<OpId>,
    /// What this attempt finds has to be wide.
    pub wish_wide: HashSet<BufferId>,
    /// The same of stages.
    pub wish_stages: HashSet<OpId>,
    /// Tiles that matrix products read or write, see `cube`.
    pub matrix: super::cube::Matrix,
    /// The loop variable that is shared between two vector cores, the half of its extent, and the index `sub`.
    pub split_now: Option<(IxVarId, i64, IxId)>,
    /// Text of index variables.
    pub index: HashMap<IxVarId, Text>,
    /// Text of block-level values.
    pub values: HashMap<ValueId, Text>,
    /// Names of variables.
    pub vars: HashMap<BufferId, String>,
    /// Vector functions, in order.
    pub functions: Vec<String>,
    /// Names of parameters.
    pub params: Vec<String>,
    /// Flag of the checks of the vector function just written.
    pub failed: Option<BufId>,
    /// Global tensors of a parameter as another type, by the type.
    pub recast: BTreeMap<(ParamId, &'static str), String>,
    /// Scalars that only vector cores know, with the op that made them.
    pub vector_scalars: Vec<(String, OpId)>,
    /// Names of symbols.
    pub syms: Vec<String>,
    /// Which cores run what is lowered now.
    pub core: Core,
}

/// Element type in the text.
pub fn type_of(d: DType) -> &'static str {
    match d {
        DType::F32 => "float",
        DType::F16 => "half",
        DType::Bf16 => "bfloat16_t",
        DType::E4m3 => "fp8_e4m3fn_t",
        DType::E5m2 => "fp8_e5m2_t",
        DType::I8 => "int8_t",
        DType::E8m0 | DType::U8 | DType::Bool | DType::E2m1 => "uint8_t",
        DType::I32 => "int32_t",
        DType::U32 => "uint32_t",
        DType::I64 => "int64_t",
    }
}

impl<'a> Lower<'a> {
    // --- names and statements ---

    /// A new identifier like `wish`.
    pub fn name(&mut self, wish: &str) -> String {
        let mut base: String = wish.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
            base = format!("n{base}");
        }
        let mut name = base.clone();
        let mut n = 1;
        while !self.names.insert(name.clone()) {
            n += 1;
            let dash = if base.ends_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
            name = format!("{base}{dash}{n}");
        }
        name
    }
    /// Adds a statement.
    pub fn push(&mut self, n: Node) {
        if let Some(list) = self.nodes.last_mut() {
            list.push(n);
        }
    }
    /// Adds a scalar statement.
    pub fn say(&mut self, line: impl Into<String>) {
        let core = self.core;
        self.push(Node::Say(core, line.into()));
    }
    /// Adds an instruction of one kind of core.
    pub fn inst(&mut self, core: Core, pipe: Pipe, lines: Vec<String>, reads: &[BufId], writes: &[BufId]) {
        let id = self.insts;
        self.insts += 1;
        self.push(Node::Inst(Inst { id, pipe, core, lines, reads: reads.to_vec(), writes: writes.to_vec() }));
    }
    /// After a vector function: ends the run where one of its checks has failed.
    pub fn test_failed(&mut self) {
        if let Some(b) = self.failed.take() {
            let line = format!("if ({}.GetValue(0) != 0u) {{\n    Trap();\n}}", self.tensor(b));
            self.inst(Core::Vector, Pipe::S, vec![line], &[b], &[]);
        }
    }
    /// Statements that `f` adds, as a list of their own.
    pub fn inner(&mut self, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<Vec<Node>> {
        self.nodes.push(vec![]);
        let r = f(self);
        let list = self.nodes.pop().unwrap_or_default();
        r.map(|()| list)
    }
    /// A buffer of `elements` elements in UB or elsewhere.
    pub fn buffer(
        &mut self,
        wish: &str,
        ty: &'static str,
        size: usize,
        elements: usize,
        place: Place,
        span: SpanId,
    ) -> BufId {
        let name = self.name(wish);
        let what = format!("`{wish}`, {elements} x {ty}");
        let align = match place {
            Place::Ub | Place::L1 => self.caps.align_bytes,
            Place::L0a | Place::L0b => 512,
            Place::L0c => 1024,
            Place::Workspace => 512,
        };
        let mut bytes = (size * elements).max(1).next_multiple_of(align);
        if place == Place::Ub && self.caps.register_vectors {
            // The last register of a row reaches past the row's end; nothing that the same function stores may lie there.
            bytes += 256 - align;
        }
        let elements = bytes.checked_div(size).unwrap_or(0);
        self.bufs.push(Buf { name, ty, elements, bytes, slots: 1, place, whole: false, span, what, offset: 0 });
        BufId(self.bufs.len() - 1)
    }
    /// Elements of a buffer without what only registers that reach past its end read.
    pub fn real_elements(&self, b: BufId) -> usize {
        let x = &self.bufs[b.0];
        let slack = if x.place == Place::Ub && self.caps.register_vectors { 256 - self.caps.align_bytes } else { 0 };
        let size = x.bytes.checked_div(x.elements).unwrap_or(1).max(1);
        (x.bytes - slack.min(x.bytes)) / size
    }
    /// Name of a buffer's tensor.
    pub fn tensor(&self, b: BufId) -> String {
        self.bufs[b.0].name.clone()
    }
    /// A refusal at an op.
    pub fn refuse(&self, op: OpId, message: impl Into<String>, help: &str) -> Refused {
        Box::new(Diagnostic::error(self.k, self.k.op(op).span, "C0311", message).help(help))
    }
    /// Forms of what op `local` makes differ.
    pub fn forms<'b>(&'b self, local: &'b Local) -> Forms<'b> {
        Forms { k: self.k, ranges: self.ranges, local, split: self.split_now }
    }
    /// Global tensor of a parameter.
    pub fn global(&self, p: ParamId) -> String {
        self.global_of(&self.params[p.0 as usize])
    }

    /// Global tensor of a parameter seen with elements of type `ty`, which stand for `d`.
    pub fn global_as(&mut self, p: ParamId, d: DType, ty: &'static str) -> String {
        let own = match self.k.param(p).kind {
            ParamKind::Tensor { dtype, .. } => dtype,
            ParamKind::Scalar { .. } | ParamKind::Absent => d,
        };
        if type_of(own) == ty {
            return self.global(p);
        }
        if own == d {
            return format!("{}Bits", self.global(p));
        }
        if let Some(n) = self.recast.get(&(p, ty)) {
            return n.clone();
        }
        let kind = super::vf::capital(ty.trim_end_matches("_t"));
        let name = self.name(&format!("{}{kind}", self.global(p)));
        self.recast.insert((p, ty), name.clone());
        name
    }

    // --- indices ---

    /// Text of an index that is the same for all elements.
    pub fn ix(&self, id: IxId) -> Text {
        match self.k.ix_expr(id) {
            IxExpr::Const(c) => Text::number(c),
            IxExpr::Sym(s) => Text::name(self.syms[s.0 as usize].clone()),
            IxExpr::Var(v) => self.index.get(&v).cloned().unwrap_or_else(|| Text::name(self.k.ix_var(v).name.clone())),
            IxExpr::Data(v) => Text::cast("int64_t", &self.val(v)),
            IxExpr::Add(a, b) => Text::add(&self.ix(a), &self.ix(b)),
            IxExpr::Sub(a, b) => Text::sub(&self.ix(a), &self.ix(b)),
            IxExpr::Mul(a, b) => Text::mul(&self.ix(a), &self.ix(b)),
            IxExpr::Div(a, b) | IxExpr::Mod(a, b) => {
                let division = matches!(self.k.ix_expr(id), IxExpr::Div(..));
                let (x, y) = (self.ix(a), self.ix(b));
                if self.ranges.never_below_zero(a) {
                    let op = if division { "/" } else { "%" };
                    return Text::of(format!("{} {op} {}", x.at(MUL), y.at(UNARY)), MUL);
                }
                Text::call(if division { "FloorDiv" } else { "FloorMod" }, &[&x, &y])
            }
            IxExpr::Min(a, b) => Text::call("MinOf", &[&self.ix(a), &self.ix(b)]),
            IxExpr::Max(a, b) => Text::call("MaxOf", &[&self.ix(a), &self.ix(b)]),
        }
    }
    /// Text of a coefficient.
    pub fn coef(&self, c: Coef) -> Text {
        match c.by {
            None => Text::number(c.c),
            Some(by) => Text::mul(&Text::number(c.c), &self.ix(by)),
        }
    }
    /// Text of the part of a form that is the same for all elements.
    pub fn uniform(&self, f: &Form) -> Text {
        let mut sum = Text::number(0);
        for &(x, c) in
            f.uniform.iter().filter(|(x, _)| x.is_some()).chain(f.uniform.iter().filter(|(x, _)| x.is_none()))
        {
            let factor = x.map_or(Text::number(1), |x| self.ix(x));
            let negative = c.c < 0 && x.is_some();
            let c = if negative { Coef { c: -c.c, by: c.by } } else { c };
            let term = Text::mul(&factor, &self.coef(c));
            sum = if negative { Text::sub(&sum, &Text::name(term.at(MUL))) } else { Text::add(&sum, &term) };
        }
        sum
    }
    /// Text of `0 <= index < extent`; `None` if it holds always.
    pub fn inside(&self, index: IxId, extent: IxId) -> Option<Text> {
        let low = !self.ranges.never_below_zero(index);
        let high = !self.ranges.prove_lt(index, extent);
        let (i, e) = (self.ix(index), self.ix(extent));
        let l = Text::of(format!("0 <= {}", i.at(ADD)), crate::emit::cuda::expr::COMPARE);
        let h = Text::less(&i, &e);
        match (low, high) {
            (false, false) => None,
            (true, false) => Some(l),
            (false, true) => Some(h),
            (true, true) => Some(Text::both(&l, &h)),
        }
    }
    /// Text of a block-level value.
    pub fn val(&self, v: ValueId) -> Text {
        if let Some(l) = self.k.literal(v) {
            return scalar::literal(l);
        }
        self.values.get(&v).cloned().unwrap_or_else(|| Text::name(format!("v{}", v.0)))
    }
    /// Dtype of a value.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.k.value(v).dtype
    }

    // --- tiles ---

    /// The tile of a buffer of the IR, made when first asked for.
    pub fn tile(&mut self, b: BufferId) -> Tile {
        if let Some(&t) = self.tiles.get(&b) {
            return t;
        }
        let x = self.k.buffer(b).clone();
        let wide = self.wide.contains(&b);
        let row = x.extents.last().copied().unwrap_or(1).max(1);
        let mut rows = x.extents.iter().product::<usize>() / row;
        let mut whole = x.extents.iter().product::<usize>();
        if let Some(half) = self.half_of(b) {
            let all = x.extents.first().copied().unwrap_or(1).max(1);
            whole = whole / all * half;
            rows = (rows / all * half).max(1);
        }
        let bits = if wide { 32 } else { x.dtype.bits().max(8) };
        let pitch = if rows > 1 && row * bits % (8 * self.caps.align_bytes) != 0 && self.rows_apart(b, row) {
            row.next_multiple_of(8 * self.caps.align_bytes / bits)
        } else {
            row
        };
        let ty = if wide { "uint32_t" } else { type_of(x.dtype) };
        // A vector has one row, of which a core may have half.
        let elements = if x.extents.len() > 1 { rows * pitch } else { whole };
        let buf = self.buffer(&x.name, ty, bits / 8, elements, Place::Ub, x.span);
        let shape: Vec<_> = x.extents.iter().map(usize::to_string).collect();
        self.bufs[buf.0].what = format!("`{}`, {}[{}]", x.name, x.dtype, shape.join(", "));
        let t = Tile { buf, row, pitch, wide };
        self.tiles.insert(b, t);
        t
    }

    /// True if every view of a tile keeps its rows whole, so that they may lie apart.
    fn rows_apart(&self, b: BufferId, row: usize) -> bool {
        let whole = |c: i64| c % row as i64 == 0;
        self.k.views.iter().filter(|v| v.base == Base::Buffer(b)).all(|v| {
            let constants: Option<Vec<(i64, i64)>> = v
                .strides
                .iter()
                .zip(&v.extents)
                .map(|(&s, &e)| Some((self.k.ix_const(s)?, self.k.ix_const(e)?)))
                .collect();
            let Some(constants) = constants else { return false };
            let columns: Vec<_> = constants.iter().filter(|&&(s, e)| e > 1 && !whole(s)).collect();
            let offset = self.ranges.affine(v.offset);
            let inside = match columns.as_slice() {
                [] => true,
                [(1, e)] => offset.constant.rem_euclid(row as i64) + e <= row as i64,
                _ => false,
            };
            inside && v.dtype == self.k.buffer(b).dtype && offset.terms.values().all(|&c| whole(c))
        })
    }

    /// A coefficient of a tile's packed form in the form it lies in.
    pub fn apart(t: Tile, c: i64) -> i64 {
        let row = t.row as i64;
        if t.pitch == t.row || c.abs() < row { c } else { c / row * t.pitch as i64 + c % row }
    }

    // --- control ---

    /// Lowers the ops of a block.
    pub fn block(&mut self, b: BlockId) -> Res<()> {
        for (n, &id) in self.k.block(b).ops.iter().enumerate() {
            self.op(id)?;
            self.hand_overs(b, n)?;
            self.release(b, id);
        }
        Ok(())
    }

    /// A comment with the position of an op.
    pub fn at(&mut self, id: OpId, what: &str) {
        let span = self.k.op(id).span;
        self.push(Node::At(span, what.to_string()));
    }

    fn op(&mut self, id: OpId) -> Res<()> {
        let k = self.k;
        match &k.op(id).op {
            Op::Const { .. } => Ok(()),
            Op::IndexValue { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Fma { .. }
            | Op::Compare { .. }
            | Op::CompareIndex { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Bits { .. }
            | Op::ClampIndex { .. }
            | Op::VarNew { .. }
            | Op::VarGet { .. }
            | Op::VarSet { .. }
            | Op::IxVarNew { .. }
            | Op::IxVarGet { .. }
            | Op::IxVarSet { .. } => self.scalar_op(id),
            Op::Load { .. } | Op::LoadOr { .. } => self.scalar_load(id),
            Op::Store { .. } => self.scalar_store(id),
            Op::Alloc { .. } => Ok(()),
            Op::Parallel { .. } => self.parallel(id),
            Op::Reduce { .. } => self.reduce(id),
            Op::ReduceRegion { .. } => self.reduce_region(id),
            Op::FindFirst { .. } => self.find_first(id),
            Op::Scan { .. } => self.scan(id),
            Op::Spread { .. } => self.spread(id),
            Op::Gemm { .. } => self.gemm(id),
            Op::For { var, lo, hi, body, .. } => {
                let (var, lo, hi, body) = (*var, *lo, *hi, *body);
                let name = self.name(&k.ix_var(var).name);
                let (a, b) = (self.ix(lo), self.ix(hi));
                self.index.insert(var, Text::name(name.clone()));
                let head = format!("for (int64_t {name} = {}; {name} < {}; ++{name})", a.s, b.at(ADD));
                let nodes = self.inner(|l| l.block(body))?;
                self.push(Node::Loop { head, body: nodes });
                Ok(())
            }
            Op::Loop { body } => {
                let body = *body;
                let nodes = self.inner(|l| l.block(body))?;
                self.push(Node::Loop { head: "for (;;)".into(), body: nodes });
                Ok(())
            }
            Op::Break => {
                self.push(Node::Leave("break;"));
                Ok(())
            }
            Op::Continue => {
                self.push(Node::Leave("continue;"));
                Ok(())
            }
            Op::If { cond, then, els, results } => {
                let cond = self.val(*cond).s;
                for r in results {
                    match *r {
                        IfResult::Value { result, .. } => {
                            let name = self.name("r");
                            let d = self.dtype(result);
                            self.say(format!("{} {name}{{}};", scalar::type_of(d)));
                            self.values.insert(result, Text::name(name));
                        }
                        IfResult::Index { result, .. } => {
                            let name = self.name(&k.ix_var(result).name);
                            self.say(format!("int64_t {name} = 0;"));
                            self.index.insert(result, Text::name(name));
                        }
                    }
                }
                let arm = |l: &mut Self, block: BlockId, first: bool| {
                    l.inner(|l| {
                        l.block(block)?;
                        for r in results {
                            match *r {
                                IfResult::Value { result, then, els } => {
                                    let (to, from) = (l.val(result).s, l.val(if first { then } else { els }).s);
                                    l.say(format!("{to} = {from};"));
                                }
                                IfResult::Index { result, then, els } => {
                                    let to = l.index.get(&result).map(|t| t.s.clone()).unwrap_or_default();
                                    let from = l.ix(if first { then } else { els }).s;
                                    l.say(format!("{to} = {from};"));
                                }
                            }
                        }
                        Ok(())
                    })
                };
                let then = arm(self, *then, true)?;
                let els = arm(self, *els, false)?;
                self.push(Node::If { cond, then, els });
                Ok(())
            }
            Op::Check { cond, message } => {
                let c = self.val(*cond).s;
                self.say(format!("// {}", message.replace(['\n', '\\'], " ")));
                self.say(format!("if (!({c})) {{\n    Trap();\n}}"));
                Ok(())
            }
            op @ Op::Claim { .. } => {
                Err(self.refuse(id, format!("`{}` outside of a `spread`", op.name()), "report this"))
            }
            Op::Atomic { .. } => {
                Err(self.refuse(id, "an atomic update outside an element loop has no Ascend form", "put it in a loop"))
            }
            Op::GridBarrier => Err(self.refuse(
                id,
                "a barrier of all blocks has no Ascend form: blocks may outnumber the cores",
                "make two kernels of it",
            )),
            Op::Copy { .. } | Op::Fill { .. } => Err(self.refuse(id, "a copy was not expanded", "report this")),
            Op::BlockBarrier { .. } | Op::Sched(_) => {
                Err(self.refuse(id, "a scheduled kernel has no Ascend form", "lower the plain one"))
            }
        }
    }

    /// Declares a block-level value with this text.
    pub fn define(&mut self, v: ValueId, text: Text) {
        let wish = "v";
        let name = self.name(wish);
        let ty = scalar::type_of(self.dtype(v));
        self.say(format!("const {ty} {name} = {};", text.s));
        self.values.insert(v, Text::name(name));
    }

    // --- facts about accesses ---

    /// Axes and guards of an access that need a check, in the order of `Facts::guards`.
    pub fn needs(&self, id: OpId, view: ViewId) -> Vec<bool> {
        let v = self.k.view(view);
        let all = v.extents.len() + v.guards.len();
        self.facts.guards.get(&id).cloned().unwrap_or_else(|| vec![true; all])
    }

    /// Dtype and kind of the tensor parameter a view looks at.
    pub fn tensor_param(&self, view: ViewId) -> Option<ParamId> {
        match self.k.view(view).base {
            Base::Param(p) if matches!(self.k.param(p).kind, ParamKind::Tensor { .. }) => Some(p),
            Base::Param(_) | Base::Buffer(_) => None,
        }
    }

    /// Tiles (not variables) an op and its bodies touch, with whether they are written.
    pub fn tiles_touched(&self, id: OpId) -> Vec<(BufferId, bool)> {
        let mut out = vec![];
        for e in effects::deep_effects(self.k, id) {
            if let Base::Buffer(b) = e.base(self.k)
                && self.k.buffer(b).space != Space::Var
            {
                let w = e.kind != effects::EffectKind::Read;
                if !out.contains(&(b, w)) {
                    out.push((b, w));
                }
            }
        }
        out
    }
}
