//! CUDA C++: header-free text that NVRTC compiles without a toolkit.
//!
//! Straight printing of a scheduled kernel: `expr` prints indices and scalars, `access` loads and stores, `body` ops,
//! `loops` element loops, `collective` what threads do together, `matrix` products, `prelude` the snippets a text uses. Which thread does
//! what was decided by the passes.

mod access;
mod body;
mod claim;
mod collective;
pub(in crate::emit) mod expr;
mod hopper;
mod loops;
mod matrix;
mod names;
mod pipeline;
pub mod prelude;

use self::expr::Text;
use self::names::Names;
use super::Source;
use crate::abi::{SigArg, Signature};
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::ir::{
    Access, BlockId, BufferId, DType, IxId, IxVarId, Kernel, OpId, ParamId, ParamKind, SpanId, SymId, Value, ValueId,
    ViewId,
};
use crate::target::{Caps, Target};
use crate::valid::Facts;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Text of a scheduled kernel.
///
/// # Errors
/// Operations that have no CUDA form yet.
pub fn emit(kernel: &Kernel, facts: &Facts, target: Target) -> Result<Source, Vec<Diagnostic>> {
    let Some(caps) = target.caps() else {
        let d = Diagnostic::error(kernel, kernel.span, "C0001", format!("`{}` takes no CUDA text", target.name()));
        return Err(vec![d.help("choose sm_80, sm_90a or sm_100a")]);
    };
    let mut e = Emitter::new(kernel, facts, caps);
    e.depth = 1;
    e.block(kernel.body);
    if e.errors.is_empty() { Ok(e.finish()) } else { Err(e.errors) }
}

/// State while one kernel is printed.
struct Emitter<'a> {
    k: &'a Kernel,
    facts: &'a Facts,
    ranges: Ranges,
    caps: Caps,
    /// Index arithmetic needs 64 bits.
    wide: bool,
    out: String,
    depth: usize,
    names: Names,
    params: Vec<String>,
    syms: Vec<String>,
    index: HashMap<IxVarId, Text>,
    values: HashMap<ValueId, Text>,
    buffers: HashMap<BufferId, String>,
    /// f32 register tiles that only ever hold widened bf16, kept as bf16.
    narrow: BTreeSet<BufferId>,
    /// Number of the tile op being printed, and the first one that read each narrow tile.
    phase: usize,
    first_read: HashMap<BufferId, usize>,
    /// Uses of each value: how many, and the block of the only one.
    uses: HashMap<ValueId, (usize, BlockId)>,
    block: BlockId,
    snippets: BTreeSet<prelude::Snippet>,
    used_syms: BTreeSet<SymId>,
    used_blocks: BTreeSet<u8>,
    /// `lane` and `group` constants by number of lanes.
    used_lanes: BTreeSet<usize>,
    used_warp: bool,
    used_tid: bool,
    /// Row the last printed address of a gathered view looked up.
    gathered: Option<(ViewId, IxId, access::Row)>,
    /// Copies being printed run ahead.
    ahead: bool,
    /// The element loop being printed.
    element: Option<loops::Element>,
    /// Scratch of the next collective.
    scratch: Option<BufferId>,
    /// The role whose program is being printed.
    role: Option<hopper::Current>,
    /// Names and findings of a kernel with roles.
    frame: hopper::Frame,
    errors: Vec<Diagnostic>,
}

impl<'a> Emitter<'a> {
    fn new(k: &'a Kernel, facts: &'a Facts, caps: Caps) -> Self {
        let mut names = Names::default();
        let params = k.params.iter().map(|p| names.declare(&p.name)).collect();
        let syms = k.syms.iter().map(|s| names.declare(&s.name)).collect();
        let mut e = Emitter {
            k,
            facts,
            ranges: Ranges::new(k),
            caps,
            wide: k.syms.iter().any(|s| s.max > i64::from(i32::MAX)),
            out: String::new(),
            depth: 0,
            names,
            params,
            syms,
            index: HashMap::new(),
            values: HashMap::new(),
            buffers: HashMap::new(),
            narrow: access::narrow_tiles(k),
            phase: 0,
            first_read: HashMap::new(),
            uses: body::uses(k),
            block: k.body,
            snippets: BTreeSet::new(),
            used_syms: BTreeSet::new(),
            used_blocks: BTreeSet::new(),
            used_lanes: BTreeSet::new(),
            used_warp: false,
            used_tid: false,
            gathered: None,
            ahead: false,
            element: None,
            scratch: None,
            role: None,
            frame: hopper::Frame::default(),
            errors: vec![],
        };
        for &v in &k.block_ids {
            let name = e.names.declare(&k.ix_var(v).name);
            e.index.insert(v, Text::name(name));
        }
        let params = e.params.clone();
        e.frame = hopper::Frame::new(k, &mut e.names, &params);
        e.declare_frame();
        for (i, p) in k.params.iter().enumerate() {
            if let ParamKind::Scalar { value, .. } = p.kind {
                e.values.insert(value, Text::name(e.params[i].clone()));
            }
        }
        e
    }

    // --- output ---

    fn line(&mut self, text: impl AsRef<str>) {
        for _ in 0..self.depth {
            self.out += "    ";
        }
        self.out += text.as_ref();
        self.out.push('\n');
    }
    fn open(&mut self, head: &str) {
        let head = if head.is_empty() { "{".to_string() } else { format!("{head} {{") };
        self.line(head);
        self.depth += 1;
        self.names.enter();
    }
    /// A scope whose head declares a variable like `wish`.
    fn open_with(&mut self, wish: &str, head: impl FnOnce(&str) -> String) -> Text {
        self.names.enter();
        let name = self.names.declare(wish);
        let head = head(&name);
        self.line(format!("{head} {{"));
        self.depth += 1;
        Text::name(name)
    }
    fn close(&mut self) {
        self.names.leave();
        self.depth -= 1;
        self.line("}");
    }
    /// A blank line and the position of what follows.
    fn comment(&mut self, span: SpanId, what: &str) {
        let s = self.k.span_of(span);
        let label = s.label.as_ref().map(|l| format!(" {l}")).unwrap_or_default();
        if !self.out.is_empty() && !self.out.ends_with("{\n") && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
        self.line(format!("// {}{label}: {what}", s.short()));
    }
    /// Removes index and condition constants printed since `from` that nothing uses.
    fn drop_unused(&mut self, from: usize) {
        let tail = self.out.split_off(from);
        let lines: Vec<&str> = tail.lines().collect();
        let mut keep: Vec<&str> = vec![];
        let mentions = |line: &str, name: &str| {
            line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
        };
        for line in lines.iter().rev() {
            let mut words = line.split_whitespace();
            let constant = words.next() == Some("const") && matches!(words.next(), Some("int" | "i64" | "bool"));
            let name = words.next().unwrap_or_default();
            let declared = constant && words.next() == Some("=") && !line.contains("atomic");
            if !declared || keep.iter().any(|l| mentions(l, name)) {
                keep.push(line);
            }
        }
        for line in keep.iter().rev() {
            self.out += line;
            self.out.push('\n');
        }
    }
    fn unsupported(&mut self, op: OpId, what: &str, help: &str) {
        let d = Diagnostic::error(self.k, self.k.op(op).span, "C0301", format!("{what} has no CUDA form yet"));
        self.errors.push(d.help(help));
    }
    fn need(&mut self, s: prelude::Snippet) {
        self.snippets.insert(s);
    }
    fn tid(&mut self) -> String {
        self.used_tid = true;
        "tid".into()
    }
    /// Threads of a block and, where registers are not what limits how many blocks run at a time, one block: told less,
    /// the assembler saves registers for blocks that shared memory has no room for, and spills. Matrix products and the
    /// largest blocks, of which a second one would leave each thread 32, prefer registers to company in any case.
    fn launch_bounds(&self) -> String {
        let threads = self.k.warps * 32;
        if !self.k.roles.is_empty() {
            return format!("{threads}, 1");
        }
        let by_threads = self.caps.resident_threads / threads.max(1);
        let by_shared = self.caps.shared_bytes_per_sm.checked_div(self.k.shared_bytes).unwrap_or(usize::MAX);
        let products = self.k.ops.iter().any(|node| matches!(node.op, crate::ir::Op::Gemm { .. }));
        // Numbering goes through memory in steps whose threads meet; what hides that is another block.
        let steps = self.k.ops.iter().any(|node| matches!(node.op, crate::ir::Op::Claim { .. }));
        if steps && threads < 1024 {
            format!("{threads}, {}", (1024 / threads).min(by_shared).max(1))
        } else if products || by_shared <= by_threads || threads >= 1024 {
            format!("{threads}, 1")
        } else {
            threads.to_string()
        }
    }
    /// Threads that run what is being printed: of the block, or of an instance of the role.
    fn threads(&self) -> usize {
        self.role.map_or(self.k.warps * 32, |r| r.threads)
    }
    fn value_type(&self, v: ValueId) -> DType {
        let Value { dtype, .. } = self.k.value(v);
        *dtype
    }
    /// Type of index variables.
    fn index_type(&self) -> &'static str {
        if self.wide { "i64" } else { "int" }
    }

    // --- the frame around the body ---

    /// Constants that say which tile this block computes, where tiles start in panels: `P` rows of tiles at a time, each
    /// panel walked column by column. Only the order in which blocks start depends on it.
    fn tile_order(&mut self) -> Option<Vec<String>> {
        let tiled = self.k.raster.filter(|_| self.k.grid.len() >= 2)?;
        if !self.used_blocks.contains(&0) && !self.used_blocks.contains(&1) {
            return None;
        }
        // Both factors stay below 2^16, so their product fits; a longer panel is no other order on any real grid.
        let p = tiled.clamp(1, 65535);
        let [place, first, rows, inside] = ["place", "first", "rows", "inside"].map(|n| self.names.declare(n));
        let name = |axis: usize| self.index[&self.k.block_ids[axis]].s.clone();
        let (mi, ni, ty) = (name(0), name(1), self.index_type());
        let mut lines = vec![
            format!(
                "const u32 {place} = blockIdx.y * gridDim.x + blockIdx.x, {first} = {place} / ({p}u * gridDim.y) * {p}u;"
            ),
            format!(
                "const u32 {rows} = gridDim.x - {first} < {p}u ? gridDim.x - {first} : {p}u, {inside} = {place} - {first} * gridDim.y;"
            ),
        ];
        if self.used_blocks.contains(&0) {
            lines.push(format!("const {ty} {mi} = {first} + {inside} % {rows};"));
        }
        if self.used_blocks.contains(&1) {
            lines.push(format!("const {ty} {ni} = {inside} / {rows};"));
        }
        Some(lines)
    }

    fn finish(mut self) -> Source {
        let scheduled = !self.k.roles.is_empty();
        let prologue = if scheduled { self.prologue() } else { String::new() };
        let entry = self.k.dtypes.iter().fold(self.k.name.clone(), |n, (_, d)| format!("{n}_{d}"));
        let mut args: Vec<(SigArg, String)> = vec![];
        for (m, name) in self.map_specs().into_iter().zip(&self.frame.maps) {
            args.push((SigArg::TensorMap(m), format!("const __grid_constant__ TensorMap {name}")));
        }
        for (i, p) in self.k.params.iter().enumerate() {
            let (id, name) = (ParamId(i as u32), &self.params[i]);
            if scheduled && matches!(p.kind, ParamKind::Tensor { .. }) && !self.frame.used_params.contains(&id) {
                continue;
            }
            match &p.kind {
                ParamKind::Tensor { dtype, access, .. } => {
                    let ty = expr::memory_type(*dtype);
                    let constant = if *access == Access::In { "const " } else { "" };
                    args.push((SigArg::Pointer(id), format!("{constant}{ty}* __restrict__ {name}")));
                }
                ParamKind::Scalar { dtype, .. } => {
                    args.push((SigArg::Scalar(id), format!("{} {name}", expr::register_type(*dtype))));
                }
                ParamKind::Absent => {}
            }
        }
        for &s in &self.used_syms {
            let text = format!("{} {}", self.index_type(), self.syms[s.0 as usize]);
            args.push((SigArg::Sym { sym: s, wide: self.wide }, text));
        }
        if self.snippets.contains(&prelude::Snippet::Grid) {
            args.push((SigArg::GridArrivals, "u32* __restrict__ grid_arrivals".into()));
        }
        let dependent = self.k.properties.launch.dependent && self.caps.dependent_launch && !scheduled;
        if dependent {
            self.need(prelude::Snippet::Dependent);
        }
        let mut text = format!("// {}\n", self.head());
        text += &prelude::text(&self.snippets, &self.caps);
        for w in &self.frame.products {
            text += &format!("\n{}", w.device());
        }
        let bounds = self.launch_bounds();
        text += &format!("\nextern \"C\" __global__ void __launch_bounds__({bounds})\n{entry}(");
        let list: Vec<_> = args.iter().map(|(_, t)| t.as_str()).collect();
        let indent = " ".repeat(entry.len() + 1);
        text += &wrap(&list, &indent, 120);
        text += ") {\n";
        if self.shared_total() > 0 {
            let align = if scheduled { 1024 } else { 16 };
            text += &format!("    extern __shared__ __align__({align}) u8 shared[];\n");
        }
        if dependent {
            text += "    wait_for_earlier_kernels();\n    let_the_next_kernel_start();\n\n";
        }
        let mut constants = BTreeMap::new();
        if self.used_tid || self.used_warp || !self.used_lanes.is_empty() {
            constants.insert(0, "const int tid = threadIdx.x;".to_string());
        }
        if self.used_warp {
            constants.insert(1, "const int lane = tid % 32, warp = tid / 32;".to_string());
        }
        for &n in &self.used_lanes {
            let group =
                if self.out.contains(&format!("group{n}")) { format!(", group{n} = tid / {n}") } else { String::new() };
            constants.insert(1 + n, format!("const int lane{n} = tid % {n}{group};"));
        }
        let panels = self.tile_order();
        for (at, line) in panels.iter().flatten().enumerate() {
            constants.insert(4000 + at, line.clone());
        }
        for &axis in self.used_blocks.iter().filter(|&&axis| panels.is_none() || axis > 1) {
            let name = &self.index[&self.k.block_ids[axis as usize]].s;
            let part = ["x", "y", "z"][axis as usize % 3];
            constants.insert(5000 + axis as usize, format!("const {} {name} = blockIdx.{part};", self.index_type()));
        }
        if !constants.is_empty() && self.out.trim_start().starts_with("//") {
            constants.insert(usize::MAX, String::new());
        }
        for c in constants.values() {
            text += format!("    {c}").trim_end();
            text.push('\n');
        }
        text += &prologue;
        text += &self.out;
        text += "}\n";
        Source {
            text,
            signature: Signature { entry, args: args.into_iter().map(|(a, _)| a).collect() },
            threads: self.k.warps * 32,
            shared_bytes: self.shared_total(),
            cluster: self.cluster_shape(),
            dependent_launch: dependent || self.waits_for_grid(),
            cooperative: self.k.properties.launch.cooperative,
            grid: self.grid_plan(),
            npu: None,
        }
    }

    fn head(&self) -> String {
        let dtypes: Vec<_> = self.k.dtypes.iter().map(|(n, d)| format!("{n} = {d}")).collect();
        let dims: Vec<_> = self.k.fixed_dims.iter().map(|(n, d)| format!("{n} = {d}")).collect();
        let facts = [dtypes, dims].concat().join(", ");
        let at = self.k.span_of(self.k.span).short();
        if facts.is_empty() { format!("{} ({at})", self.k.name) } else { format!("{} ({at}): {facts}", self.k.name) }
    }
}

/// Joins arguments with line breaks.
fn wrap(items: &[&str], indent: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = indent.len();
    for (i, item) in items.iter().enumerate() {
        let last = i + 1 == items.len();
        if i > 0 {
            if column + item.len() + 3 > width {
                out += "\n";
                out += indent;
                column = indent.len();
            } else {
                out += " ";
                column += 1;
            }
        }
        out += item;
        if !last {
            out += ",";
        }
        column += item.len() + 1;
    }
    out
}
