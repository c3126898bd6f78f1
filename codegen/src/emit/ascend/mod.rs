//! AscendC for arch 2201 (`ascend910b`) and arch 3510 (`ascend950`).
//!
//! One kernel a text, one arch a text. `lower` turns the IR into instructions with pipes and buffers (`tree`), `plan` gives
//! every buffer its address, `sync` finds the events, and `print` makes the text; this file runs them in that order, again from
//! the start where a tile turns out to need another form. There is no queue library in the text: addresses and flags are explicit, so that they can be checked.

mod cube;
mod element;
mod form;
mod lower;
mod mem;
mod operand;
mod plan;
mod print;
mod product;
mod ring;
mod scalar;
mod serial;
mod stage;
mod sync;
mod tree;
mod vf;
mod walk;
mod words;

use self::lower::Lower;
use self::print::Printer;
use self::print::address_name;
use self::tree::{Core, Node};
use self::words::RESERVED;
use super::Source;
use crate::analysis::Ranges;
use crate::diag::Diagnostic;
use crate::emit::cuda::expr::Text;
use crate::ir::{IxExpr, IxId, IxVar, IxVarId, IxVarKind, Kernel, Op, OpId, ParamKind};
use crate::pass::expand;
use crate::target::{NpuCaps, Target};
use crate::valid::{self, Facts};
use std::collections::{BTreeMap, HashMap, HashSet};

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
