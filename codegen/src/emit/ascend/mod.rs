//! AscendC for arch 2201 (`ascend910b`) and arch 3510 (`ascend950`).
//!
//! One kernel a text, one arch a text. `lower` turns the IR into instructions with pipes and buffers (`tree`), `plan` gives
//! every buffer its address, `sync` finds the events, and this file prints the program of each kind of core with the frame
//! around it. There is no queue library in the text: addresses and flags are explicit, so that they can be checked.

mod cube;
mod element;
mod form;
mod lower;
mod mem;
mod plan;
mod ring;
mod scalar;
mod serial;
mod stage;
mod sync;
mod tree;
mod vf;
mod walk;

use self::lower::Lower;
use self::tree::{Before, Buf, BufId, Core, Node, Place};
use super::{GridPlan, NpuCores, NpuLaunch, Source};
use crate::abi::{SigArg, Signature};
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::emit::cuda::expr::Text;
use crate::ir::{DType, IxExpr, IxId, IxVar, IxVarId, IxVarKind, Kernel, Op, OpId, ParamId, ParamKind, SymId};
use crate::pass::expand;
use crate::target::{NpuCaps, Target};
use crate::valid::{self, Facts};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How text is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Every instruction waits for all before it: to tell a missing event from a wrong computation.
    pub bring_up: bool,
}

/// A lowered kernel and its text.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// The plain kernel with copies as element loops.
    pub kernel: Kernel,
    /// Its text.
    pub source: Source,
}

/// Text of a plain kernel.
///
/// # Errors
/// What the chip cannot do or hold, at the position of the op.
pub fn emit(kernel: &Kernel, _: &Facts, target: Target, options: &Options) -> Result<Emitted, Vec<Diagnostic>> {
    let Some(caps) = target.npu() else {
        let d = Diagnostic::error(kernel, kernel.span, "C0001", format!("`{}` takes no AscendC text", target.name()));
        return Err(vec![d.help("choose ascend910b or ascend950")]);
    };
    let (kernel, axes, sub) = prepare(kernel.clone());
    let facts = valid::check(&kernel)?;
    let ranges = Ranges::new(&kernel);
    let (mut wide, mut wide_stages) = (HashSet::new(), HashSet::new());
    // Some tiles turn out to need another form while their uses are lowered; then the lowering starts again.
    loop {
        let mut l = lowering(&kernel, &ranges, &facts, caps, &axes, sub);
        (l.wide, l.wide_stages) = (wide, wide_stages);
        let r = l.kernel();
        if r.is_err() && l.wishes() {
            wide = l.wide.union(&l.wish_wide).copied().collect();
            wide_stages = l.wide_stages.union(&l.wish_stages).copied().collect();
            continue;
        }
        let body = r.map_err(|d| vec![*d])?;
        let source = Printer { l, caps, target, options: *options }.source(body)?;
        return Ok(Emitted { kernel, source });
    }
}

/// Copies and fills as element loops, and variables for the axes of reductions.
fn prepare(kernel: Kernel) -> (Kernel, HashMap<OpId, Vec<IxVarId>>, IxId) {
    let mut k = expand::copies(kernel);
    let mut axes = HashMap::new();
    for i in 0..k.ops.len() {
        let Op::Reduce { src, .. } = &k.ops[i].op else { continue };
        let (src, span) = (*src, k.ops[i].span);
        let lo = k.ix_const_id(0);
        let mut vars = vec![];
        for (axis, e) in k.const_extents(src).unwrap_or_default().into_iter().enumerate() {
            let hi = k.ix_const_id(e as i64 - 1);
            let name = ["i", "j", "k", "l"][axis.min(3)].to_string();
            k.ix_vars.push(IxVar { name, kind: IxVarKind::Element, lo: Some(lo), hi: Some(hi), span });
            vars.push(IxVarId(k.ix_vars.len() as u32 - 1));
        }
        axes.insert(OpId(i as u32), vars);
    }
    // Which of a group's two vector cores.
    let (lo, hi) = (k.ix_const_id(0), k.ix_const_id(1));
    k.ix_vars.push(IxVar { name: "sub".into(), kind: IxVarKind::Loop, lo: Some(lo), hi: Some(hi), span: k.span });
    let sub = k.intern(IxExpr::Var(IxVarId(k.ix_vars.len() as u32 - 1)));
    (k, axes, sub)
}

/// Words a source name may not become.
const RESERVED: &[&str] = &[
    "alignas",
    "and",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "half",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "not",
    "nullptr",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "block",
    "blocks",
    "sub",
    "Part",
    "MinOf",
    "MaxOf",
    "FloorDiv",
    "FloorMod",
    "FloatOf",
    "BitsOf",
    "PowerOf",
    "IntOf",
    "Bf16Of",
    "Reg",
    "PutOne",
    "DivOrZero",
    "RemOrZero",
    "ShiftLeftBy",
    "ShiftRightBy",
    "Clear",
    "Fill",
    "Widen",
    "Exp2Of",
    "FmaOf",
    "Narrow",
    "Trap",
    "pp",
    "ld",
    "mm",
    "fx",
    "nz",
    "cSlot",
    "kLen",
    "kFr",
    "aL0",
    "bL0",
    "cL0",
    "Log2Of",
    "RsqrtOf",
    "SqrtOf",
    "Vector",
    "Cube",
    "Sum",
    "Max",
    "Min",
    "Add",
    "Mul",
    "Sub",
    "Div",
    "Exp",
    "Ln",
    "Abs",
    "Sqrt",
    "Cast",
    "Copy",
    "Duplicate",
    "Select",
    "Compare",
    "Gather",
    "Scatter",
    "Mmad",
    "Fixpipe",
    "LoadData",
    "DataCopy",
    "DataCopyPad",
    "Muls",
    "Adds",
    "Maxs",
    "Mins",
    "And",
    "Or",
    "Not",
    "Brcb",
    "Reduce",
    "workspace",
    "ws",
    "it",
    "slot",
];

fn lowering<'a>(
    k: &'a Kernel,
    ranges: &'a Ranges,
    facts: &'a Facts,
    caps: NpuCaps,
    axes: &'a HashMap<OpId, Vec<IxVarId>>,
    sub: IxId,
) -> Lower<'a> {
    let mut l = Lower {
        k,
        ranges,
        facts,
        caps,
        axes,
        names: RESERVED.iter().map(|s| s.to_string()).collect(),
        bufs: vec![],
        nodes: vec![vec![]],
        insts: 0,
        tiles: HashMap::new(),
        wide: HashSet::new(),
        wide_stages: HashSet::new(),
        wish_wide: HashSet::new(),
        wish_stages: HashSet::new(),
        matrix: cube::Matrix::of(k, sub),
        split_now: None,
        index: HashMap::new(),
        values: HashMap::new(),
        vars: HashMap::new(),
        functions: vec![],
        params: vec![],
        failed: None,
        recast: BTreeMap::new(),
        vector_scalars: vec![],
        syms: vec![],
        core: Core::Both,
    };
    for p in &k.params {
        let name = l.name(&p.name);
        // Its tensor has a name made from it.
        let g = l.global_of(&name);
        l.names.insert(format!("{g}Bits"));
        l.names.insert(g);
        l.params.push(name);
    }
    for s in &k.syms {
        let name = l.name(&s.name);
        l.syms.push(name);
    }
    for (i, p) in k.params.iter().enumerate() {
        if let ParamKind::Scalar { value, .. } = p.kind {
            let name = l.params[i].clone();
            l.values.insert(value, Text::name(name));
        }
    }
    for &v in &k.block_ids {
        let name = l.name(&k.ix_var(v).name);
        l.index.insert(v, Text::name(name));
    }
    l
}

impl Lower<'_> {
    fn global_of(&self, param: &str) -> String {
        format!("g{}", vf::capital(param))
    }

    /// The loop over the blocks of the grid and what is in it.
    fn kernel(&mut self) -> lower::Res<Vec<Node>> {
        let k = self.k;
        let mut body = vec![];
        // Last axis fastest.
        let extents: Vec<Text> = k.grid.iter().map(|&g| self.ix(g)).collect();
        let mut rest = Text::name("block");
        for axis in (0..k.grid.len()).rev() {
            let name = self.index[&k.block_ids[axis]].s.clone();
            let one = k.ix_const(k.grid[axis]) == Some(1);
            let e = extents[axis].at(crate::emit::cuda::expr::UNARY);
            let t = if one {
                "0".to_string()
            } else if axis == 0 {
                rest.s.clone()
            } else {
                format!("{} % {e}", rest.at(crate::emit::cuda::expr::MUL))
            };
            body.push(Node::Say(Core::Both, format!("const int64_t {name} = {t};")));
            if !one && axis > 0 {
                rest =
                    Text::of(format!("{} / {e}", rest.at(crate::emit::cuda::expr::MUL)), crate::emit::cuda::expr::MUL);
            }
        }
        let ops = self.inner(|l| l.block(k.body))?;
        body.extend(ops);
        let mut total = Text::number(1);
        for e in &extents {
            total = Text::mul(&total, e);
        }
        let (mut out, last) = self.frame();
        out.push(Node::Say(Core::Both, format!("const int64_t blocks = {};", total.s)));
        let head = "for (int64_t block = BLOCK_FIRST; block < blocks; block += GetBlockNum())".into();
        out.push(Node::Loop { head, body });
        out.extend(last);
        Ok(out)
    }
}

/// Functions that texts use, each printed if its name occurs.
const HELPERS: &[(&str, &str)] = &[
    ("NEG_INF", "constexpr float NEG_INF = -__builtin_inff();"),
    ("POS_INF", "constexpr float POS_INF = __builtin_inff();"),
    ("NOT_A_NUMBER", "constexpr float NOT_A_NUMBER = __builtin_nanf(\"\");"),
    ("MinOf", "__aicore__ inline int64_t MinOf(int64_t a, int64_t b) { return a < b ? a : b; }"),
    ("MaxOf", "__aicore__ inline int64_t MaxOf(int64_t a, int64_t b) { return a > b ? a : b; }"),
    (
        "Part",
        "// How many of `full` elements exist if `left` do from the first on.\n\
         __aicore__ inline int64_t Part(int64_t left, int64_t full) { return left < 0 ? 0 : left < full ? left : full; }",
    ),
    (
        "PadOf",
        "// Elements that fill the last line of a copy.\n\
         __aicore__ inline uint8_t PadOf(int64_t n, int64_t line) { return static_cast<uint8_t>((line - n % line) % line); }",
    ),
    (
        "FloorDiv",
        "__aicore__ inline int64_t FloorDiv(int64_t a, int64_t b) { return a < 0 ? -((b - 1 - a) / b) : a / b; }",
    ),
    ("FloorMod", "__aicore__ inline int64_t FloorMod(int64_t a, int64_t b) { return (a % b + b) % b; }"),
    (
        "FloatOf",
        "__aicore__ inline float FloatOf(uint32_t bits)\n{\n    union { uint32_t u; float f; } x;\n    x.u = bits;\n    return x.f;\n}",
    ),
    (
        "BitsOf",
        "__aicore__ inline uint32_t BitsOf(float value)\n{\n    union { float f; uint32_t u; } x;\n    x.f = value;\n    return x.u;\n}",
    ),
    (
        "PowerOf",
        "__aicore__ inline float PowerOf(uint8_t exponent)\n{\n    \
         return FloatOf(exponent == 255 ? 0x7fc00000u : exponent == 0 ? 0x400000u : static_cast<uint32_t>(exponent) << 23);\n}",
    ),
    (
        "Bf16Of",
        "__aicore__ inline uint16_t Bf16Of(float value)\n{\n    const uint32_t u = BitsOf(value);\n    \
         const bool nan = (u & 0x7fffffffu) > 0x7f800000u;\n    \
         return static_cast<uint16_t>(nan ? (u >> 16) | 64u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);\n}",
    ),
    (
        "IntOf",
        "__aicore__ inline int32_t IntOf(float x)\n{\n    if (!(x == x)) {\n        return 0;\n    }\n    \
         return x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : static_cast<int32_t>(x);\n}",
    ),
    (
        "DivOrZero",
        "template <typename T> __aicore__ inline T DivOrZero(T a, T b) { return b == 0 ? T(0) : static_cast<T>(a / b); }",
    ),
    (
        "RemOrZero",
        "template <typename T> __aicore__ inline T RemOrZero(T a, T b) { return b == 0 ? T(0) : static_cast<T>(a % b); }",
    ),
    (
        "ShiftLeftBy",
        "template <typename T, typename U> __aicore__ inline T ShiftLeftBy(T a, U n)\n{\n    \
         return static_cast<uint64_t>(n) < 8 * sizeof(T) ? static_cast<T>(static_cast<uint64_t>(a) << n) : T(0);\n}",
    ),
    (
        "ShiftRightBy",
        "template <typename T, typename U> __aicore__ inline T ShiftRightBy(T a, U n)\n{\n    \
         return static_cast<uint64_t>(n) < 8 * sizeof(T) ? static_cast<T>(a >> n) : a < T(0) ? static_cast<T>(-1) : T(0);\n}",
    ),
    (
        "PutOne",
        "// One element to global memory, through a line of UB.\n\
         template <typename T>\n__aicore__ inline void PutOne(const GlobalTensor<T>& to, const LocalTensor<T>& line, T value)\n{\n    \
         line.SetValue(0, value);\n    SetFlag<HardEvent::S_V>(6);\n    WaitFlag<HardEvent::S_V>(6);\n    \
         SetFlag<HardEvent::V_MTE3>(6);\n    WaitFlag<HardEvent::V_MTE3>(6);\n    \
         DataCopyPad(to, line, DataCopyExtParams{1, sizeof(T), 0, 0, 0});\n    \
         SetFlag<HardEvent::MTE3_V>(6);\n    WaitFlag<HardEvent::MTE3_V>(6);\n    \
         SetFlag<HardEvent::V_S>(6);\n    WaitFlag<HardEvent::V_S>(6);\n}",
    ),
    (
        "WIDEN",
        "constexpr Reg::CastTrait WIDEN = {\n    Reg::RegLayout::ZERO, Reg::SatMode::UNKNOWN, Reg::MaskMergeMode::ZEROING, RoundMode::UNKNOWN};",
    ),
    (
        "ROUND",
        "constexpr Reg::CastTrait ROUND = {\n    Reg::RegLayout::ZERO, Reg::SatMode::NO_SAT, Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};",
    ),
    (
        "SATURATE",
        "constexpr Reg::CastTrait SATURATE = {\n    Reg::RegLayout::ZERO, Reg::SatMode::SAT, Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};",
    ),
    (
        "TRUNCATE",
        "constexpr Reg::CastTrait TRUNCATE = {\n    Reg::RegLayout::ZERO, Reg::SatMode::SAT, Reg::MaskMergeMode::ZEROING, RoundMode::CAST_TRUNC};",
    ),
    (
        "FROM_INT",
        "constexpr Reg::CastTrait FROM_INT = {\n    Reg::RegLayout::ZERO, Reg::SatMode::UNKNOWN, Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};",
    ),
];

struct Printer<'a> {
    l: Lower<'a>,
    caps: NpuCaps,
    target: Target,
    options: Options,
}

fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|w| w == name)
}

fn without_comments(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or(l)).collect::<Vec<_>>().join("\n")
}

impl Printer<'_> {
    fn source(mut self, nodes: Vec<Node>) -> Result<Source, Vec<Diagnostic>> {
        let k = self.l.k;
        let mut cubes = false;
        tree::each_inst(&nodes, &mut |i| cubes |= i.core == Core::Cube);
        let roles: Vec<(Core, &str)> =
            if cubes { vec![(Core::Cube, "Cube"), (Core::Vector, "Vector")] } else { vec![(Core::Vector, "Vector")] };
        let mut bufs = std::mem::take(&mut self.l.bufs);
        let (mut doubled, mut nodes) = (BTreeSet::new(), nodes);
        if !cubes && !self.options.bring_up {
            let (mut two, mut twice) = (nodes.clone(), bufs.clone());
            let ring = ring::double(&mut two, &mut twice);
            if !ring.is_empty() && plan::place(k, &two, &mut twice, &self.caps, cubes).is_ok() {
                (doubled, nodes, bufs) = (ring, two, twice);
            }
        }
        if doubled.is_empty() {
            plan::place(k, &nodes, &mut bufs, &self.caps, cubes)?;
        }
        let mut programs = vec![];
        for &(core, _name) in &roles {
            programs.push(self.program(&nodes, &bufs, core, &doubled, cubes));
        }
        if cubes
            && let Some((_, id)) =
                self.l.vector_scalars.iter().find(|(n, _)| mentions(&without_comments(&programs[0].0), n))
        {
            let d = Diagnostic::error(
                k,
                k.op(*id).span,
                "C0311",
                "the cube core needs a number that only vector cores know",
            );
            return Err(vec![d.help("read it from a tensor, so that all cores compute it")]);
        }
        let entry = k.dtypes.iter().fold(k.name.clone(), |n, (_, d)| format!("{n}_{d}"));
        let space = format!("{}_k", k.name);
        let text = programs.iter().map(|p| p.0.as_str()).collect::<Vec<_>>().join("\n");
        let mut args: Vec<(SigArg, String, String)> = vec![];
        for (i, p) in k.params.iter().enumerate() {
            let name = self.l.params[i].clone();
            match p.kind {
                ParamKind::Tensor { .. } => args.push((SigArg::Pointer(ParamId(i as u32)), "GM_ADDR".into(), name)),
                ParamKind::Scalar { dtype, .. } => {
                    args.push((SigArg::Scalar(ParamId(i as u32)), scalar::type_of(dtype).into(), name));
                }
                ParamKind::Absent => {}
            }
        }
        for i in 0..k.syms.len() {
            let name = self.l.syms[i].clone();
            if mentions(&text, &name) {
                args.push((SigArg::Sym { sym: SymId(i as u32), wide: true }, "int64_t".into(), name));
            }
        }
        let workspace: usize = bufs
            .iter()
            .filter(|b| b.place == Place::Workspace)
            .map(|b| b.offset + b.bytes * b.slots)
            .max()
            .unwrap_or(0);
        if workspace > 0 {
            args.push((SigArg::Workspace, "GM_ADDR".into(), "workspace".into()));
        }
        let mut out = self.head(cubes);
        out += "#include \"kernel_operator.h\"\n\nusing namespace AscendC;\n\n";
        out += &format!("namespace {space} {{\n\n");
        out += &self.map(&bufs, &text, cubes, workspace);
        if let Some(bytes) = cube::ring_bytes(&self.l, &bufs) {
            out += &cube::ring_constants(bytes);
            if self.caps.direct_exchange {
                out += "constexpr FixpipeConfig TO_UB_ROWS = {CO2Layout::ROW_MAJOR, true};\n\n";
            }
        }
        let mut code = self.l.functions.join("\n\n");
        code += &text;
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        loop {
            let mut more = false;
            for (i, (name, _)) in HELPERS.iter().enumerate() {
                let own: String = wanted.iter().map(|&j: &usize| HELPERS[j].1).collect::<Vec<_>>().join("\n");
                if !wanted.contains(&i) && (mentions(&code, name) || mentions(&own, name)) {
                    wanted.insert(i);
                    more = true;
                }
            }
            if !more {
                break;
            }
        }
        for i in &wanted {
            out += HELPERS[*i].1;
            out.push('\n');
        }
        if !wanted.is_empty() {
            out.push('\n');
        }
        if !self.l.functions.is_empty() {
            out += "// ---- vector functions ----\n";
            for f in &self.l.functions {
                out += f;
                out += "\n\n";
            }
        }
        let mut calls = vec![];
        for ((lines, _), &(core, name)) in programs.iter().zip(&roles) {
            let code = without_comments(lines);
            let used: Vec<&(SigArg, String, String)> = args.iter().filter(|a| mentions(&code, &a.2)).collect();
            let params: Vec<String> = used.iter().map(|a| format!("{} {}", a.1, a.2)).collect();
            out += &vf::wrap(&format!("__aicore__ inline void {name}("), &params, ")").join("\n");
            out += &format!("\n{{\n{lines}}}\n\n");
            let list: Vec<String> = used.iter().map(|a| a.2.clone()).collect();
            calls.push((core, format!("{space}::{name}({});", list.join(", "))));
        }
        out += &format!("}} // namespace {space}\n\n");
        let kind = if cubes { "__mix__(1, 2)" } else { "__vector__" };
        // Tensors that no core touches stay in the entry, which callers know by its order of parameters.
        let params: Vec<String> = args
            .iter()
            .map(|a| {
                let used = calls.iter().any(|c| mentions(&c.1, &a.2));
                if used { format!("{} {}", a.1, a.2) } else { format!("{} /* {} */", a.1, a.2) }
            })
            .collect();
        out += &vf::wrap(&format!("extern \"C\" __global__ {kind} void {entry}("), &params, ")").join("\n");
        out += "\n{\n    InitSocState();\n";
        for (core, call) in &calls {
            if cubes {
                let which = if *core == Core::Cube { "AIC" } else { "AIV" };
                out += &format!("    if ASCEND_IS_{which} {{\n        {call}\n    }}\n");
            } else {
                out += &format!("    {call}\n");
            }
        }
        out += "    PipeBarrier<PIPE_ALL>();\n}\n";
        Ok(Source {
            text: out,
            signature: Signature { entry, args: args.into_iter().map(|a| a.0).collect() },
            threads: 1,
            shared_bytes: 0,
            cluster: [1; 3],
            cooperative: false,
            dependent_launch: false,
            grid: GridPlan::Persistent { unit: [1; 3] },
            npu: Some(NpuLaunch {
                arch: self.caps.arch,
                cores: if cubes { NpuCores::Mixed } else { NpuCores::Vector },
                workspace_bytes: workspace,
            }),
        })
    }

    fn head(&self, cubes: bool) -> String {
        let k = self.l.k;
        let at = k.span_of(k.span).short();
        let dtypes: Vec<_> = k.dtypes.iter().map(|(n, d)| format!("{n} = {d}")).collect();
        let dims: Vec<_> = k.fixed_dims.iter().map(|(n, d)| format!("{n} = {d}")).collect();
        let facts = [dtypes, dims].concat().join(", ");
        let facts = if facts.is_empty() { String::new() } else { format!(" | {facts}") };
        let mut out = format!(
            "// {} | target {} (arch {}){facts}\n// from {at}\n//\n",
            k.name,
            self.target.name(),
            self.caps.arch
        );
        if cubes {
            out += "// Roles   cube: GM -> L1 -> L0A, L0B -> Mmad -> L0C -> Fixpipe; vector cores: everything between products.\n";
            out += "// Launch  __mix__(1, 2), any number of blocks; each takes block after block of the grid.\n";
        } else {
            out += "// Roles   vector cores only; core b of B takes blocks b, b + B, .. of the grid.\n";
            out += "// Launch  __vector__, any number of cores.\n";
        }
        if self.options.bring_up {
            out += "// Note    bring-up form: every instruction waits for all before it.\n";
        }
        out
    }

    fn map(&self, bufs: &[Buf], text: &str, cubes: bool, workspace: usize) -> String {
        let mut out = String::new();
        let reserve = if cubes { self.caps.mixed_reserve_bytes } else { 0 };
        for (place, name, capacity) in [
            (Place::Ub, "UB", self.caps.ub_bytes - reserve),
            (Place::L1, "L1", self.caps.l1_bytes - reserve),
            (Place::L0a, "L0A", self.caps.l0a_bytes),
            (Place::L0b, "L0B", self.caps.l0b_bytes),
            (Place::L0c, "L0C", self.caps.l0c_bytes),
            (Place::Workspace, "GM workspace of a block", usize::MAX),
        ] {
            let mut list: Vec<&Buf> =
                bufs.iter().filter(|b| b.place == place && b.bytes > 0 && mentions(text, &address_name(b))).collect();
            list.sort_by_key(|b| (b.offset, b.name.clone()));
            if list.is_empty() {
                continue;
            }
            out += &format!("// ---- {name} (bytes) ----\n");
            let mut end = 0;
            for b in list {
                let slots = if b.slots > 1 { format!("{} x ", b.slots) } else { String::new() };
                out += &format!(
                    "constexpr uint32_t {} = {};  // {slots}{} bytes, {}\n",
                    address_name(b),
                    b.offset,
                    b.bytes,
                    b.what
                );
                end = end.max(b.offset + b.bytes * b.slots);
            }
            if capacity != usize::MAX {
                out += &format!("static_assert({end} <= {capacity}, \"{name}\");\n");
            } else {
                out += &format!("constexpr uint32_t WS_BLOCK = {workspace};\n");
            }
            out.push('\n');
        }
        out
    }

    /// Text of the function of one kind of core.
    fn program(
        &mut self,
        nodes: &[Node],
        bufs: &[Buf],
        core: Core,
        doubled: &BTreeSet<BufId>,
        mixed: bool,
    ) -> (String, BTreeSet<BufId>) {
        let k = self.l.k;
        let mine = tree::for_core(nodes, core);
        let ringed: BTreeSet<BufId> = self.l.ringed().union(doubled).copied().collect();
        let edges = if self.options.bring_up {
            sync::Waits::new()
        } else {
            sync::plan(&mine, bufs, &ringed, !self.caps.register_vectors)
        };
        let bring_up = self.options.bring_up;
        let before: Box<Before<'_>> = Box::new(move |id| {
            if bring_up {
                return vec!["PipeBarrier<PIPE_ALL>();".into()];
            }
            edges.get(&id).into_iter().flatten().flat_map(|&e| sync::lines(e)).collect()
        });
        let place = |span| {
            let s = k.span_of(span);
            let name = s.file.rsplit('/').next().unwrap_or(&s.file);
            format!("{name}:{}", s.line)
        };
        let mut lines = vec![];
        for (i, p) in k.params.iter().enumerate() {
            if let ParamKind::Tensor { dtype, .. } = p.kind {
                let id = ParamId(i as u32);
                let (g, ty) = (self.l.global(id), lower::type_of(dtype));
                let param = &self.l.params[i];
                lines.push(format!("    GlobalTensor<{ty}> {g};"));
                lines.push(format!("    {g}.SetGlobalBuffer((__gm__ {ty}*){param});"));
                if matches!(dtype, DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2) {
                    let ty = scalar::type_of(dtype);
                    lines.push(format!("    GlobalTensor<{ty}> {g}Bits;"));
                    lines.push(format!("    {g}Bits.SetGlobalBuffer((__gm__ {ty}*){param});"));
                }
                for ((_, ty), name) in self.l.recast.iter().filter(|((p, _), _)| *p == id) {
                    lines.push(format!("    GlobalTensor<{ty}> {name};"));
                    lines.push(format!("    {name}.SetGlobalBuffer((__gm__ {ty}*){param});"));
                }
            }
        }
        for b in bufs.iter().filter(|b| b.slots == 1 && b.bytes > 0 && b.place != Place::Workspace) {
            let position = match b.place {
                Place::Ub => "VECCALC",
                Place::L1 => "A1",
                Place::L0a => "A2",
                Place::L0b => "B2",
                Place::L0c => "CO1",
                Place::Workspace => "GM",
            };
            lines.push(format!(
                "    LocalTensor<{}> {}(TPosition::{position}, {}, {});",
                b.ty,
                b.name,
                address_name(b),
                b.elements
            ));
        }
        lines.push(String::new());
        tree::print(&mine, 1, &place, &*before, &mut lines);
        let first = if mixed && core == Core::Vector { "GetBlockIdx() / 2" } else { "GetBlockIdx()" };
        let lines: Vec<String> = lines.into_iter().map(|l| l.replace("BLOCK_FIRST", first)).collect();
        let lines = tree::drop_unused(lines);
        let mut text = String::new();
        for l in lines {
            text += &l;
            text.push('\n');
        }
        (text, BTreeSet::new())
    }
}

/// Name of the constant with a buffer's address.
fn address_name(b: &Buf) -> String {
    let place = match b.place {
        Place::Ub => "UB",
        Place::L1 => "L1",
        Place::L0a => "L0A",
        Place::L0b => "L0B",
        Place::L0c => "L0C",
        Place::Workspace => "WS",
    };
    let mut out = format!("{place}_");
    let mut lower = false;
    for c in b.name.chars() {
        if c.is_ascii_uppercase() && lower {
            out.push('_');
        }
        lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        out.push(c.to_ascii_uppercase());
    }
    out
}
