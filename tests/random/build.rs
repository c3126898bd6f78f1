//! Random programs of plain IR: the frame of a kernel; its steps are in `steps`.
//!
//! A program is a seed and a list of step numbers. Each step draws from dice of its own, so that leaving one out keeps
//! the others as they are, as far as they do not use what it made: that is how failures shrink.

#[path = "steps.rs"]
mod steps;

use super::expr::Place;
use kiln_codegen::ir::*;
use kiln_codegen::machine::Dice;
use kiln_codegen::spec::{BuildRequest, DimExpr, DimInfo, KernelInfo, ParamInfo, ParamInfoKind};

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Everything random follows from it.
    pub seed: u64,
    /// Steps that are built.
    pub steps: Vec<u64>,
    /// Only operations whose bits devices share with the tile VM.
    pub exact: bool,
}

/// A tensor parameter and its shape in the one launch the program has.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub access: Access,
}

/// A built program.
#[derive(Debug)]
pub struct Built {
    pub kernel: Kernel,
    pub info: KernelInfo,
    pub tensors: Vec<Tensor>,
}

/// A tile all of whose elements are defined.
#[derive(Clone, Debug)]
pub struct Tile {
    pub buffer: BufferId,
    pub view: ViewId,
    pub extents: Vec<usize>,
}

/// A kernel under construction.
pub struct Gen<'a> {
    pub b: Builder,
    dice: Dice,
    pub exact: bool,
    request: Option<&'a BuildRequest>,
    info: KernelInfo,
    tensors: Vec<Tensor>,
    /// Rows of the tensors: as an index, as a declared extent, in the launch.
    pub n: IxId,
    rows: usize,
    /// Rows of a block, columns of most tensors.
    block: usize,
    columns: usize,
    /// First row of the block.
    pub at: IxId,
    blocks: IxId,
    pub tiles: Vec<Tile>,
    shown: usize,
    pub scalars: Vec<ValueId>,
    /// Input tensors with their ranks.
    pub inputs: Vec<(ViewId, usize)>,
}

impl Program {
    /// `steps` steps from a seed.
    pub fn new(seed: u64, steps: usize, exact: bool) -> Self {
        Program { seed, steps: (0..steps as u64).collect(), exact }
    }

    /// Builds the kernel, with the facts of a launch if there is one.
    pub fn build(&self, request: Option<&BuildRequest>) -> Built {
        let mut g = Gen::new(self, request);
        for &step in &self.steps {
            g.dice = Dice::new(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step + 1) << 32);
            g.step();
            g.show();
        }
        g.finish()
    }
}

impl<'a> Gen<'a> {
    fn new(program: &Program, request: Option<&'a BuildRequest>) -> Self {
        let name = format!("random_{}", program.seed);
        let info = KernelInfo {
            // The steps tell shrunk programs apart.
            file: format!("{:?} {}", program.steps, program.exact),
            line: 1,
            dtypes: vec![],
            params: vec![],
            dims: vec![],
            deterministic: false,
            batch_invariant: vec![],
            launch: Default::default(),
            name: name.clone(),
        };
        let mut b = Builder::new(&name, Span::unknown());
        let zero = b.ix_const(0);
        let mut g = Gen {
            b,
            dice: Dice::new(program.seed),
            exact: program.exact,
            request,
            info,
            tensors: vec![],
            n: zero,
            rows: 0,
            block: 0,
            columns: 0,
            at: zero,
            blocks: zero,
            tiles: vec![],
            shown: 0,
            scalars: vec![],
            inputs: vec![],
        };
        const BLOCKS: [usize; 12] = [1, 3, 4, 7, 8, 16, 16, 20, 32, 32, 33, 48];
        g.b.kernel.warps = [1, 1, 2, 3, 4][g.below(5)];
        g.block = BLOCKS[g.below(12)];
        g.columns = [1, 2, 3, 5, 8, 8, 12, 16, 16, 17, 24][g.below(11)];
        // One to four blocks, the last one often ragged.
        let whole = g.block * g.below(4);
        g.rows = whole + 1 + if g.chance(30) { g.block - 1 } else { g.below(g.block) };
        if g.chance(60) {
            let multiple_of = request.and_then(|r| r.multiples.get("n")).map_or(1, |&m| m as i64);
            let sym = Sym { name: "n".into(), kind: SymKind::Dim, multiple_of, min: 0, max: i64::from(i32::MAX) };
            let sym = g.b.sym(sym);
            g.n = g.b.ix_sym(sym);
            g.info.dims.push(DimInfo { name: "n".into(), fixed: false });
        } else {
            g.n = g.b.ix_const(g.rows as i64);
        }
        let size = g.b.ix_const(g.block as i64);
        g.blocks = g.b.ix_div_ceil(g.n, size);
        let id = g.b.grid(&[g.blocks])[0];
        let id = g.b.ix_var(id);
        g.at = g.b.ix_mul(id, size);
        // The dimension is bound by this one.
        let d = g.dtype();
        g.input(d, 1);
        g.load_tile();
        g.show();
        g
    }

    // --- dice ---

    pub fn below(&mut self, n: usize) -> usize {
        self.dice.below(n.max(1))
    }
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() { None } else { Some(all[self.below(all.len())].clone()) }
    }

    // --- declarations ---

    fn row_extent(&self) -> DimExpr {
        if self.info.dims.is_empty() { DimExpr::Const(self.rows) } else { DimExpr::Sym("n".into()) }
    }

    /// A parameter with these extents: as indices, as declared, in the launch.
    fn tensor(&mut self, dtype: DType, access: Access, extents: Vec<(IxId, DimExpr, usize)>) -> ViewId {
        let i = self.info.params.len();
        let name = format!("p{i}");
        let align_bytes = self.request.and_then(|r| r.facts.get(i)).map_or(1, |f| f.align_bytes);
        let ix: Vec<IxId> = extents.iter().map(|e| e.0).collect();
        let mut strides = vec![self.b.ix_const(1); ix.len()];
        for i in (0..ix.len().saturating_sub(1)).rev() {
            strides[i] = self.b.ix_mul(strides[i + 1], ix[i + 1]);
        }
        let dims = extents.iter().map(|e| e.1.clone()).collect();
        let kind = ParamInfoKind::Tensor { dtype, access, dims, strides: None };
        self.info.params.push(ParamInfo { name: name.clone(), kind, optional: false });
        self.tensors.push(Tensor { dtype, access, shape: extents.iter().map(|e| e.2).collect() });
        let p = self.b.param(&name, ParamKind::Tensor { dtype, access, extents: ix, strides, align_bytes, tma: false });
        self.b.param_view(p)
    }
    fn constant_extent(&mut self, n: usize) -> (IxId, DimExpr, usize) {
        (self.b.ix_const(n as i64), DimExpr::Const(n), n)
    }
    /// `[n]` or `[n, columns]`.
    fn shaped(&mut self, dtype: DType, access: Access, rank: usize, columns: usize) -> ViewId {
        let mut extents = vec![(self.n, self.row_extent(), self.rows)];
        if rank == 2 {
            extents.push(self.constant_extent(columns));
        }
        self.tensor(dtype, access, extents)
    }
    /// An input, a new one or one that exists.
    fn input(&mut self, dtype: DType, rank: usize) -> ViewId {
        let same: Vec<_> = self.inputs.iter().filter(|i| i.1 == rank).map(|i| i.0).collect();
        if self.chance(40)
            && let Some(v) = self.pick(&same)
        {
            return v;
        }
        let columns = self.columns;
        let v = self.shaped(dtype, Access::In, rank, columns);
        self.inputs.push((v, rank));
        v
    }
    fn tile(&mut self, dtype: DType, extents: &[usize]) -> Tile {
        let space = if self.chance(50) { Space::Frag } else { Space::Shared };
        self.tile_in(dtype, extents, space)
    }
    fn tile_in(&mut self, dtype: DType, extents: &[usize], space: Space) -> Tile {
        let buffer = self.b.new_buffer("t", dtype, extents, space, false);
        self.b.push(Op::Alloc { buffer });
        let view = self.b.buffer_view(buffer);
        Tile { buffer, view, extents: extents.to_vec() }
    }
    fn elements(&mut self, extents: &[usize]) -> (Vec<IxVarId>, Place) {
        let zero = self.b.ix_const(0);
        let mut vars = vec![];
        let mut place = Place { extents: extents.to_vec(), ..Place::default() };
        for &e in extents {
            let hi = self.b.ix_const(e as i64 - 1);
            let v = self.b.new_ix_var("i", IxVarKind::Element, Some(zero), Some(hi));
            vars.push(v);
            place.ix.push(self.b.ix_var(v));
        }
        (vars, place)
    }
    fn parallel(&mut self, extents: &[usize], f: impl FnOnce(&mut Self, &mut Place)) {
        let (vars, mut place) = self.elements(extents);
        let body = self.b.open();
        f(self, &mut place);
        self.b.close();
        self.b.push(Op::Parallel { vars, extents: extents.to_vec(), body, distribution: None });
    }
    fn store(&mut self, view: ViewId, index: &[IxId], value: ValueId, checked: bool) {
        self.b.push(Op::Store { view, index: index.to_vec(), value, checked });
    }
    fn copy(&mut self, src: ViewId, from: &[IxId], dst: ViewId, to: &[IxId], extents: &[usize]) {
        let (src, dst) = (Region { view: src, start: from.to_vec() }, Region { view: dst, start: to.to_vec() });
        self.b.push(Op::Copy { src, dst, extents: extents.to_vec() });
    }
    fn transposed(&mut self, view: ViewId) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        v.extents.reverse();
        v.strides.reverse();
        self.b.view(v)
    }
    /// Extents of a new tile.
    fn extents(&mut self) -> Vec<usize> {
        if self.chance(40) {
            return vec![self.block];
        }
        let columns = if self.chance(70) { self.columns } else { 1 + self.below(20) };
        vec![self.block, columns]
    }

    // --- outputs ---

    /// Copies tiles that are new since the last call to outputs.
    fn show(&mut self) {
        for i in self.shown..self.tiles.len() {
            self.show_tile(i);
        }
        self.shown = self.tiles.len();
    }

    fn show_tile(&mut self, i: usize) {
        let t = self.tiles[i].clone();
        let dtype = self.b.kernel.buffer(t.buffer).dtype;
        let zero = self.b.ix_const(0);
        let rank = t.extents.len();
        let mut to = vec![self.at, zero];
        to.truncate(rank);
        let out = if t.extents[0] == self.block {
            self.shaped(dtype, Access::Out, rank, t.extents.get(1).copied().unwrap_or(1))
        } else {
            // Every block has rows of its own.
            let p = self.b.ix_const(t.extents[0] as i64);
            let rows = self.b.ix_mul(self.blocks, p);
            let blocks = self.rows.div_ceil(self.block);
            let declared = if self.info.dims.is_empty() {
                DimExpr::Const(blocks * t.extents[0])
            } else {
                let blocks = DimExpr::Ceil(Box::new(self.row_extent()), Box::new(DimExpr::Const(self.block)));
                DimExpr::Mul(Box::new(blocks), Box::new(DimExpr::Const(t.extents[0])))
            };
            let mut extents = vec![(rows, declared, blocks * t.extents[0])];
            if rank == 2 {
                extents.push(self.constant_extent(t.extents[1]));
            }
            let id = self.b.kernel.block_ids[0];
            let id = self.b.ix_var(id);
            to[0] = self.b.ix_mul(id, p);
            self.tensor(dtype, Access::Out, extents)
        };
        let from = vec![zero; rank];
        self.copy(t.view, &from, out, &to, &t.extents);
    }

    fn finish(mut self) -> Built {
        // What steps changed in place since it was shown is shown again.
        for i in 0..self.tiles.len().min(3) {
            self.show_tile(i);
        }
        let Gen { b, info, tensors, .. } = self;
        Built { kernel: b.finish().expect("every scope is closed"), info, tensors }
    }
}
