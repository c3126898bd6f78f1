//! Filling the table: bounds of data from the ops that define it, then every expression, then what rests on it.

use super::*;

/// The state while the table of atoms grows.
pub(super) struct Build<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) syms: Vec<Sym>,
    pub(super) out: Ranges,
    pub(super) sym_polys: Vec<Option<Poly>>,
    /// `sym == divisor * something`, from requires with a divisor that is not a number.
    pub(super) sym_factors: HashMap<u32, IxId>,
    pub(super) sym_equals: HashMap<u32, IxId>,
    pub(super) done: Vec<bool>,
    pub(super) busy: Vec<bool>,
    /// Bounds of data indices, from the ops that define them.
    pub(super) data_bounds: HashMap<IxVarId, DataBounds>,
    pub(super) data_atoms: HashMap<ValueId, Atom>,
}

pub(super) enum DataBounds {
    Between(IxId, IxId),
    UpTo(usize),
    Either(IxId, IxId),
}

impl<'a> Build<'a> {
    pub(super) fn new(kernel: &'a Kernel) -> Self {
        let n = kernel.index.len();
        let mut data_bounds = HashMap::new();
        for node in &kernel.ops {
            match &node.op {
                Op::ClampIndex { var, lo, hi, .. } => drop(data_bounds.insert(*var, DataBounds::Between(*lo, *hi))),
                Op::FindFirst { result, extent, .. } => drop(data_bounds.insert(*result, DataBounds::UpTo(*extent))),
                Op::If { results, .. } => {
                    for r in results {
                        match r {
                            IfResult::Index { result, then, els } => {
                                data_bounds.insert(*result, DataBounds::Either(*then, *els));
                            }
                            IfResult::Value { .. } => {}
                        }
                    }
                }
                Op::Const { .. }
                | Op::IndexValue { .. }
                | Op::Unary { .. }
                | Op::Binary { .. }
                | Op::Fma { .. }
                | Op::Compare { .. }
                | Op::CompareIndex { .. }
                | Op::Select { .. }
                | Op::Cast { .. }
                | Op::Bits { .. }
                | Op::VarNew { .. }
                | Op::VarGet { .. }
                | Op::VarSet { .. }
                | Op::IxVarNew { .. }
                | Op::IxVarGet { .. }
                | Op::IxVarSet { .. }
                | Op::Load { .. }
                | Op::LoadOr { .. }
                | Op::Store { .. }
                | Op::Atomic { .. }
                | Op::Claim { .. }
                | Op::Alloc { .. }
                | Op::Fill { .. }
                | Op::Copy { .. }
                | Op::Parallel { .. }
                | Op::Spread { .. }
                | Op::Reduce { .. }
                | Op::ReduceRegion { .. }
                | Op::Scan { .. }
                | Op::Gemm { .. }
                | Op::For { .. }
                | Op::Loop { .. }
                | Op::Break
                | Op::Continue
                | Op::Check { .. }
                | Op::GridBarrier
                | Op::BlockBarrier { .. }
                | Op::Sched(_) => {}
            }
        }
        Build {
            kernel,
            syms: kernel.syms.clone(),
            out: Ranges {
                index: kernel.index.clone(),
                polys: vec![None; n],
                intervals: vec![ALL; n],
                affine: vec![Affine::default(); n],
                atoms: vec![],
                quotients: HashMap::new(),
                extremes: HashMap::new(),
                vars: vec![None; kernel.ix_vars.len()],
                facts: vec![],
                var_of_atom: HashMap::new(),
                data_of_atom: HashMap::new(),
                opaque: HashSet::new(),
            },
            sym_polys: vec![None; kernel.syms.len()],
            sym_factors: HashMap::new(),
            sym_equals: HashMap::new(),
            done: vec![false; n],
            busy: vec![false; n],
            data_bounds,
            data_atoms: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) -> Ranges {
        for &e in &self.kernel.grid {
            self.at_least(e, 1);
        }
        for r in &self.kernel.requires {
            self.refine(r.left, r.relation, r.right);
        }
        for i in 0..self.kernel.index.len() {
            self.visit(IxId(i as u32));
        }
        for v in 0..self.kernel.ix_vars.len() {
            self.var(IxVarId(v as u32));
        }
        let mut facts = vec![];
        let one = Poly::constant(1);
        for &e in &self.kernel.grid {
            facts.extend(self.out.polys[e.0 as usize].as_ref().and_then(|p| p.sub(&one)));
        }
        for r in &self.kernel.requires {
            let (l, h) = (&self.out.polys[r.left.0 as usize], &self.out.polys[r.right.0 as usize]);
            let (Some(l), Some(h)) = (l, h) else { continue };
            match r.relation {
                Relation::Le => facts.extend(h.sub(l)),
                Relation::Lt => facts.extend(h.sub(l).and_then(|d| d.sub(&one))),
                Relation::Eq => {
                    facts.extend(h.sub(l));
                    facts.extend(l.sub(h));
                }
            }
        }
        facts.retain(|f| f.as_constant().is_none());
        self.out.facts = facts;
        for i in 0..self.kernel.index.len() {
            self.out.affine[i] = self.affine(IxId(i as u32));
        }
        self.out
    }
}
