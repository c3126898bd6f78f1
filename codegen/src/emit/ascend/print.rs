//! The text of a lowered kernel: head, map of memories, helper functions, a program for each kind of core, entry.

use super::lower::{self, Lower};
use super::tree::{self, Before, Buf, BufId, Core, Node, Place};
use super::words::HELPERS;
use super::{Options, plan, product, ring, scalar, sync, vf};
use crate::abi::{SigArg, Signature};
use crate::diag::Diagnostic;
use crate::emit::{GridPlan, NpuCores, NpuLaunch, Source};
use crate::ir::{DType, ParamId, ParamKind, SymId};
use crate::target::{NpuCaps, Target};
use std::collections::BTreeSet;

/// A lowered kernel that is printed.
pub struct Printer<'a> {
    /// The lowering.
    pub l: Lower<'a>,
    /// Chip.
    pub caps: NpuCaps,
    /// Target.
    pub target: Target,
    /// How.
    pub options: Options,
}

fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|w| w == name)
}

fn without_comments(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or(l)).collect::<Vec<_>>().join("\n")
}

impl Printer<'_> {
    /// The text and its signature.
    pub fn source(mut self, nodes: Vec<Node>) -> Result<Source, Vec<Diagnostic>> {
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
        if let Some(bytes) = product::ring_bytes(&self.l, &bufs) {
            out += &product::ring_constants(bytes);
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
pub fn address_name(b: &Buf) -> String {
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
